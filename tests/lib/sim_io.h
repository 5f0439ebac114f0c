/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_IO_H
#define TESTS_SIM_IO_H

/*
 * Descriptors of the kernel under a simulated clock: a struct kvb_io whose look at them is an event
 * like any other. It goes on looking until they have been quiet for a while, and again as soon as
 * something else runs, for only that can have written anything. Only then can simulated time pass.
 */
#include "sim_sched.h"

#include "base/io.h"

#include <poll.h>

#define SIM_IO_MAX  64
#define SIM_IO_FAST 50 /* looks that do not wait, before those that wait for 1 ms each */
#define SIM_IO_SLOW 40

struct sim_io {
    struct kvb_io base;
    struct sim_sched *sim;
    struct kvb_event look;
    int quiet;      /* looks in a row that saw nothing */
    int slow;       /* SIM_IO_SLOW, unless what is behind a descriptor needs longer */
    bool reposting; /* it is the look that is posted */
    struct kvb_io_watch *watches[SIM_IO_MAX];
    unsigned events[SIM_IO_MAX];
};

static inline kvb_status_t sim_io_watch_(struct kvb_io *base, struct kvb_io_watch *watch,
                                         unsigned events)
{
    struct sim_io *io = kvb_container_of(base, struct sim_io, base);
    for (int i = 0; i < SIM_IO_MAX; i++) {
        if (io->watches[i] == watch || (watch->impl == NULL && io->watches[i] == NULL)) {
            io->watches[i] = watch;
            io->events[i] = events;
            watch->impl = io;
            kvb_sched_post(&io->sim->sched, &io->look);
            return KVB_OK;
        }
    }
    return KVB_ERR_LIMIT;
}

static inline void sim_io_unwatch_(struct kvb_io *base, struct kvb_io_watch *watch)
{
    struct sim_io *io = kvb_container_of(base, struct sim_io, base);
    for (int i = 0; i < SIM_IO_MAX; i++) {
        if (io->watches[i] == watch) {
            io->watches[i] = NULL;
        }
    }
    watch->impl = NULL;
}

static inline void sim_io_look_(struct kvb_event *event)
{
    struct sim_io *io = kvb_container_of(event, struct sim_io, look);
    struct pollfd fds[SIM_IO_MAX];
    for (int i = 0; i < SIM_IO_MAX; i++) {
        const struct kvb_io_watch *watch = io->watches[i];
        fds[i] = (struct pollfd){.fd = watch != NULL && io->events[i] != 0 ? watch->fd : -1};
        fds[i].events = (short)(((io->events[i] & KVB_IO_READ) != 0 ? POLLIN : 0) |
                                ((io->events[i] & KVB_IO_WRITE) != 0 ? POLLOUT : 0));
    }
    bool some = poll(fds, SIM_IO_MAX, io->quiet < SIM_IO_FAST ? 0 : 1) > 0;
    io->quiet = some ? 0 : io->quiet + 1;
    for (int i = 0; i < SIM_IO_MAX; i++) {
        struct kvb_io_watch *watch = io->watches[i];
        if (some && fds[i].revents != 0 && watch != NULL && watch->fd == fds[i].fd) {
            unsigned ready = (fds[i].revents & (POLLERR | POLLHUP)) != 0
                                 ? (unsigned)(KVB_IO_READ | KVB_IO_WRITE)
                                 : ((fds[i].revents & POLLIN) != 0 ? KVB_IO_READ : 0u) |
                                       ((fds[i].revents & POLLOUT) != 0 ? KVB_IO_WRITE : 0u);
            watch->fn(watch, ready);
        }
    }
    if (io->quiet < SIM_IO_FAST + io->slow) {
        io->reposting = true;
        kvb_sched_post(&io->sim->sched, &io->look);
        io->reposting = false;
    }
}

/* Something was posted to an empty scheduler. */
static inline void sim_io_wake_(void *ctx)
{
    struct sim_io *io = ctx;
    if (io->reposting) {
        return;
    }
    io->quiet = 0;
    kvb_sched_post(&io->sim->sched, &io->look);
}

static inline void sim_io_init(struct sim_io *io, struct sim_sched *sim)
{
    static const struct kvb_io_ops ops = {.watch = sim_io_watch_, .unwatch = sim_io_unwatch_};
    *io = (struct sim_io){.base = {.ops = &ops}, .sim = sim, .slow = SIM_IO_SLOW};
    kvb_event_init(&io->look, sim_io_look_);
    sim->sched.wake = sim_io_wake_;
    sim->sched.wake_ctx = io;
}

/* Nothing is watched any more. */
static inline void sim_io_cleanup(struct sim_io *io)
{
    io->sim->sched.wake = NULL;
    kvb_sched_unpost(&io->look);
}

#endif
