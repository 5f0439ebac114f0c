/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_COLLECT_H
#define SERVER_COLLECT_H

#include "connector/instance.h"
#include "http/http.h"
#include "loop.h"
#include "node/server.h"
#include "rdma.h"

#include "base/metrics.h"
#include "store/share.h"

/*
 * Fills the families of metrics.h that live elsewhere: the share's counters at each scrape (any
 * thread), the instances' state when it changes, finished operations at each heartbeat (loop
 * thread), HTTP answers as they go out (HTTP thread).
 */
struct kvp_collect {
    struct kvb_metrics *metrics;
    struct kvs_share *share; /* NULL: none */
    struct kvp_loop *loop;
    uint64_t counted_ns; /* operations that finished until then were counted */
    uint64_t lag_max_ns; /* loop thread */
};

void kvp_collect_init(struct kvp_collect *collect, struct kvb_metrics *metrics,
                      struct kvs_share *share, struct kvp_loop *loop);
/* kvp_fleet_config.changed. */
void kvp_collect_instance(struct kvp_collect *collect, const struct kvp_view *view);
/* fleet: NULL, a store node has none. */
void kvp_collect_beat(struct kvp_collect *collect, struct kvp_fleet *fleet, uint64_t lag_ns);
/* kvp_http_ops.answered */
void kvp_collect_answered(struct kvp_collect *collect, const struct kvp_http_answered *answered);

/* The share as it is served to others (server NULL: it is not), and rdma. At a scrape; any thread.
 */
void kvp_collect_server(struct kvb_metrics *metrics, struct kvp_server *server,
                        const struct kvp_rdma *rdma);

#endif
