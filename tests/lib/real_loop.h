/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_REAL_LOOP_H
#define TESTS_REAL_LOOP_H

/*
 * A struct kvb_sched and a struct kvb_io in real time, over poll(2), for tests of what talks to
 * other processes. Runs only inside real_run_until(): it waits for a condition, never for time to
 * pass. Randomness is seeded like a simulated run's, but the outcome is not reproducible: the other
 * processes are not.
 */
#include "sim_sched.h"

#include "base/io.h"

#include <poll.h>

#define REAL_WATCHES_MAX 256

struct real_loop {
    struct sim_sched sim; /* its randomness; the clock is the real one */
    struct kvb_io io;
    struct kvb_io_watch *watches[REAL_WATCHES_MAX];
    unsigned events[REAL_WATCHES_MAX];
    uint32_t nwatches;
    uint64_t fail_watch_after; /* so many more watches succeed; UINT64_MAX: all */
    uint64_t due_ns;           /* of the next turn, by the scheduler's clock */
};

static inline kvb_status_t real_watch_(struct kvb_io *io, struct kvb_io_watch *watch,
                                       unsigned events)
{
    struct real_loop *loop = kvb_container_of(io, struct real_loop, io);
    if (loop->fail_watch_after != UINT64_MAX && loop->fail_watch_after-- == 0) {
        loop->fail_watch_after = UINT64_MAX;
        return KVB_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < loop->nwatches; i++) {
        if (loop->watches[i] == watch) {
            loop->events[i] = events;
            return KVB_OK;
        }
    }
    kvb_assert(loop->nwatches < REAL_WATCHES_MAX);
    watch->impl = loop;
    loop->watches[loop->nwatches] = watch;
    loop->events[loop->nwatches++] = events;
    return KVB_OK;
}

static inline void real_unwatch_(struct kvb_io *io, struct kvb_io_watch *watch)
{
    struct real_loop *loop = kvb_container_of(io, struct real_loop, io);
    for (uint32_t i = 0; i < loop->nwatches; i++) {
        if (loop->watches[i] == watch) {
            loop->nwatches--;
            loop->watches[i] = loop->watches[loop->nwatches];
            loop->events[i] = loop->events[loop->nwatches];
            watch->impl = NULL;
            return;
        }
    }
    KVB_UNREACHABLE("not watched");
}

static const struct kvb_io_ops real_io_ops = {.watch = real_watch_, .unwatch = real_unwatch_};

static inline void real_wake_(void *ctx)
{
    struct real_loop *loop = ctx;
    loop->due_ns = 0;
}

static inline void real_init(struct real_loop *loop, uint64_t seed)
{
    *loop = (struct real_loop){.fail_watch_after = UINT64_MAX};
    sim_init(&loop->sim, seed);
    loop->sim.sched.clock = &kvb_clock_real;
    loop->sim.sched.wake = real_wake_;
    loop->sim.sched.wake_ctx = loop;
    loop->io.ops = &real_io_ops;
}

static inline void real_cleanup(struct real_loop *loop)
{
    kvb_assert(loop->nwatches == 0);
    sim_cleanup(&loop->sim);
}

static inline uint64_t real_now_ns(void)
{
    return kvb_now_ns(&kvb_clock_real);
}

static inline uint64_t real_until_(uint64_t then_ns, uint64_t now_ns)
{
    return then_ns > now_ns ? then_ns - now_ns : 0;
}

/* A look at the descriptors, waiting until end_ns or the next timer at most, and a turn. */
static inline void real_step(struct real_loop *loop, uint64_t end_ns)
{
    struct pollfd fds[REAL_WATCHES_MAX];
    struct kvb_io_watch *watches[REAL_WATCHES_MAX];
    /* A test may put another clock into the scheduler; end_ns is real. */
    uint64_t due_in_ns = real_until_(loop->due_ns, kvb_now_ns(loop->sim.sched.clock));
    uint64_t end_in_ns = real_until_(end_ns, real_now_ns());
    uint64_t wait_ns = due_in_ns < end_in_ns ? due_in_ns : end_in_ns;
    uint64_t wait_ms = wait_ns / KVB_NS_PER_MS + (wait_ns % KVB_NS_PER_MS != 0);
    uint32_t n = loop->nwatches;
    for (uint32_t i = 0; i < n; i++) {
        watches[i] = loop->watches[i];
        fds[i] = (struct pollfd){
            .fd = loop->watches[i]->fd,
            .events = (short)(((loop->events[i] & KVB_IO_READ) != 0 ? POLLIN : 0) |
                              ((loop->events[i] & KVB_IO_WRITE) != 0 ? POLLOUT : 0))};
    }
    int nready = poll(fds, n, wait_ms > 1000 ? 1000 : (int)wait_ms);
    for (uint32_t i = 0; i < n && nready > 0; i++) {
        unsigned ready = ((fds[i].revents & POLLIN) != 0 ? KVB_IO_READ : 0u) |
                         ((fds[i].revents & POLLOUT) != 0 ? KVB_IO_WRITE : 0u);
        ready |= (fds[i].revents & (POLLERR | POLLHUP)) != 0 ? KVB_IO_READ | KVB_IO_WRITE : 0u;
        bool there = false; /* another one's callback may have ended it */
        for (uint32_t j = 0; j < loop->nwatches; j++) {
            there = there || loop->watches[j] == watches[i];
        }
        if (there && ready != 0 && watches[i]->fd == fds[i].fd) {
            watches[i]->fn(watches[i], ready);
        }
    }
    loop->due_ns = sim_turn(&loop->sim);
}

/* Until condition(arg); false: limit_ms of real time passed without it. */
static inline bool real_run_until(struct real_loop *loop, bool (*condition)(void *arg), void *arg,
                                  uint64_t limit_ms)
{
    uint64_t end_ns = kvb_deadline_in_ms(&kvb_clock_real, limit_ms);
    while (!condition(arg)) {
        if (real_now_ns() >= end_ns) {
            return false;
        }
        real_step(loop, end_ns);
    }
    return true;
}

static inline bool real_never_(void *arg)
{
    (void)arg;
    return false;
}

/* For what must not happen: there is no condition to wait for. */
static inline void real_run_for(struct real_loop *loop, uint64_t ms)
{
    (void)real_run_until(loop, real_never_, NULL, ms);
}

#endif
