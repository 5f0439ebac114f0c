/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDMA_WATCH_H
#define RDMA_WATCH_H

#include "base/io.h"
#include "base/sched.h"

#include <stdbool.h>

/*
 * A descriptor of the libraries', set to not block and watched for events. If they cannot be read,
 * it is left alone for a moment and then looked at again: what is lost meanwhile shows in silence.
 */
struct rwatch {
    struct kvb_io_watch watch;
    struct kvb_io *io;
    struct kvb_sched *sched;
    struct kvb_timer again;
    /* Takes the events that are there. Not 0: they cannot be read; an errno. */
    int (*take)(struct rwatch *watch);
};

/* IO, NO_MEMORY. */
KVB_MUST_USE kvb_status_t rwatch_open(struct rwatch *watch, struct kvb_sched *sched,
                                      struct kvb_io *io, int fd, int (*take)(struct rwatch *watch));
void rwatch_close(struct rwatch *watch); /* the descriptor stays */

#endif
