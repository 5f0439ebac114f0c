/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_NODE_LEAVING_H
#define SERVER_NODE_LEAVING_H

#include "node/server.h"

/*
 * A share that leaves the cluster, of a store node or of a daemon: others place nothing new there
 * and read what they still want; when nobody has read anything for a moment, or the bound is over,
 * it may go. Loop thread of the server's owner only.
 */
struct kvp_leaving {
    struct kvb_sched *sched;
    struct kvs_share *share;
    struct kvp_server *server;
    void (*over)(void *ctx);
    void *ctx;
    /* own */
    uint64_t by_ns;
    uint64_t quiet_since_ns;
    uint64_t gets;
    struct kvb_timer look;
};

/* The members above `own` are set; over comes once, later. */
void kvp_leaving_start(struct kvp_leaving *leaving, uint64_t bound_ms);
/* Over does not come any more. Also if it was never started. */
void kvp_leaving_stop(struct kvp_leaving *leaving);

#endif
