/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>

#define AGAIN_MS 100u

static void look_again(struct rwatch *watch)
{
    kvb_io_unwatch(watch->io, &watch->watch); /* or it would be called for ever */
    kvb_sched_timer_set(watch->sched, &watch->again,
                        kvb_deadline_in_ms(watch->sched->clock, AGAIN_MS));
}

static void take(struct rwatch *watch)
{
    int error = watch->take(watch);
    if (error != 0 && error != EAGAIN && error != EINTR) {
        KVB_LOG_LIMITED(ERROR, "rdma: events cannot be read", KVB_ERRNO(error));
        look_again(watch);
    }
}

static void on_ready(struct kvb_io_watch *io_watch, unsigned events)
{
    (void)events;
    take(kvb_container_of(io_watch, struct rwatch, watch));
}

static void on_again(struct kvb_timer *timer)
{
    struct rwatch *watch = kvb_container_of(timer, struct rwatch, again);
    if (kvb_io_watch(watch->io, &watch->watch, KVB_IO_READ) != KVB_OK) {
        look_again(watch);
    }
}

kvb_status_t rwatch_open(struct rwatch *watch, struct kvb_sched *sched, struct kvb_io *io, int fd,
                         int (*take_fn)(struct rwatch *watch))
{
    *watch = (struct rwatch){
        .watch = {.fd = fd, .fn = on_ready}, .io = io, .sched = sched, .take = take_fn};
    kvb_timer_init(&watch->again, on_again);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        return KVB_ERR_IO;
    }
    return kvb_io_watch(io, &watch->watch, KVB_IO_READ);
}

void rwatch_close(struct rwatch *watch)
{
    kvb_sched_timer_clear(watch->sched, &watch->again);
    kvb_io_unwatch(watch->io, &watch->watch);
}
