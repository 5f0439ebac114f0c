/* SPDX-License-Identifier: Apache-2.0 */
#include "loop.h"

#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>

#define BATCH 64

/* Also for nothing (events 0), which epoll does not have: errors would be told all the same. */
static kvb_status_t loop_watch(struct kvb_io *io, struct kvb_io_watch *watch, unsigned events)
{
    struct helper_loop *loop = kvb_container_of(io, struct helper_loop, io);
    struct epoll_event event = {
        .events = ((events & KVB_IO_READ) != 0 ? (unsigned)EPOLLIN : 0u) |
                  ((events & KVB_IO_WRITE) != 0 ? (unsigned)EPOLLOUT : 0u),
        .data.ptr = watch,
    };
    int op = events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    int result = epoll_ctl(loop->epoll_fd, op, watch->fd, &event);
    if (result != 0 && errno == ENOENT) {
        result = events == 0 ? 0 : epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, watch->fd, &event);
    }
    if (result != 0) {
        return errno == ENOMEM || errno == ENOSPC ? KVB_ERR_NO_MEMORY : KVB_ERR_IO;
    }
    watch->impl = loop;
    return KVB_OK;
}

static void loop_unwatch(struct kvb_io *io, struct kvb_io_watch *watch)
{
    struct helper_loop *loop = kvb_container_of(io, struct helper_loop, io);
    (void)epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL); /* not there: watched for
                                                                        nothing */
    watch->impl = NULL;
    for (int i = 0; i < loop->nbatch; i++) {
        if (loop->batch[i] == watch) {
            loop->batch[i] = NULL;
        }
    }
}

static const struct kvb_io_ops io_ops = {.watch = loop_watch, .unwatch = loop_unwatch};

kvb_status_t helper_loop_init(struct helper_loop *loop)
{
    *loop = (struct helper_loop){.io = {.ops = &io_ops}};
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    kvb_sched_init(&loop->sched, &kvb_clock_real, &kvb_random_real);
    return loop->epoll_fd < 0 ? KVB_ERR_IO : KVB_OK;
}

/* Rounded up: an early look would only find that nothing is due. */
static int wait_ms(const struct helper_loop *loop, uint64_t due_ns)
{
    if (due_ns == KVB_NEVER) {
        return -1;
    }
    uint64_t now_ns = kvb_now_ns(loop->sched.clock);
    uint64_t left_ns = due_ns > now_ns ? due_ns - now_ns : 0;
    uint64_t ms = left_ns / KVB_NS_PER_MS + (left_ns % KVB_NS_PER_MS != 0);
    return ms < INT_MAX ? (int)ms : INT_MAX;
}

void helper_loop_step(struct helper_loop *loop)
{
    struct epoll_event events[BATCH];
    struct kvb_io_watch *batch[BATCH];
    uint64_t due_ns = kvb_sched_turn(&loop->sched);
    int n = epoll_wait(loop->epoll_fd, events, BATCH, wait_ms(loop, due_ns));
    for (int i = 0; i < n; i++) {
        batch[i] = events[i].data.ptr;
    }
    loop->batch = batch;
    loop->nbatch = n > 0 ? n : 0;
    for (int i = 0; i < n; i++) {
        if (batch[i] != NULL) {
            uint32_t ready = events[i].events;
            unsigned both = (ready & (EPOLLERR | EPOLLHUP)) != 0 ? KVB_IO_READ | KVB_IO_WRITE : 0u;
            batch[i]->fn(batch[i], both | ((ready & EPOLLIN) != 0 ? KVB_IO_READ : 0u) |
                                       ((ready & EPOLLOUT) != 0 ? KVB_IO_WRITE : 0u));
        }
    }
    loop->batch = NULL;
    loop->nbatch = 0;
}
