/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_COLLECT_H
#define SERVER_COLLECT_H

#include "compat.h"
#include "connector/instance.h"
#include "http/http.h"
#include "loop.h"
#include "node/server.h"
#include "rdma.h"

#include "base/metrics.h"
#include "store/node.h"
#include "store/share.h"

/*
 * Fills the families of metrics.h that live elsewhere: the share's counters at each scrape (any
 * thread), the instances' state when it changes, operations and transfers as they end (loop
 * thread), HTTP answers as they go out (HTTP thread).
 */
struct kvp_collect {
    struct kvb_metrics *metrics;
    struct kvs_share *share; /* NULL: none */
    struct kvp_loop *loop;
    struct kvp_compat *compat; /* NULL: not shown; its owner's */
    /* loop thread */
    uint32_t nknown;
    struct kvp_collect_known {
        char instance[KVB_NAME_MAX];
        /* as it was last shown */
        char tenant[KVB_NAME_MAX];
        uint32_t ntags;
        char tags[KVB_TAGS_MAX][KVB_NAME_MAX];
    } known[KVP_INSTANCES_MAX];
};

void kvp_collect_init(struct kvp_collect *collect, struct kvb_metrics *metrics,
                      struct kvs_share *share, struct kvp_loop *loop);
/* kvp_fleet_config.changed. */
void kvp_collect_instance(struct kvp_collect *collect, const struct kvp_view *view);
/* kvp_fleet_config.stepped, .ended, .left */
void kvp_collect_step(struct kvp_collect *collect, const char *operation, const char *step,
                      kvb_status_t status, uint64_t took_ns);
void kvp_collect_operation(struct kvp_collect *collect, const struct kvp_operation_record *record);
void kvp_collect_left(struct kvp_collect *collect, const char *why);
/* A put or get of one node has ended (kvs_client_on_moved). transport: what carried it. */
void kvp_collect_moved(struct kvp_collect *collect, const char *transport,
                       const struct kvs_node_call *call, uint64_t took_ns);
/* kvp_loop_ops.beat of the main loop */
void kvp_collect_beat(struct kvp_collect *collect, uint64_t lag_ns);
/* kvp_http_ops.answered */
void kvp_collect_answered(struct kvp_collect *collect, const struct kvp_http_answered *answered);

/* The share as it is served to others (server NULL: it is not), and rdma. At a scrape; any thread.
 */
void kvp_collect_server(struct kvb_metrics *metrics, struct kvp_server *server,
                        const struct kvp_rdma *rdma);

#endif
