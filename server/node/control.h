/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_NODE_CONTROL_H
#define SERVER_NODE_CONTROL_H

#include "http/inbox.h"

#include "base/clock.h"
#include "store/client.h"
#include "store/coordinator.h"
#include "store/share.h"

/* What the routes of a store node do (node/routes.h), on its first loop. */
struct kvp_node_control;

struct kvp_node_control_config {
    struct kvb_sched *sched;
    struct kvs_share *share;
    struct kvs_client *client; /* the share is its only node */
    const struct kvs_node_record *record;
    uint32_t queue_max; /* requests in work */
    void (*wake)(void *ctx);
    void *wake_ctx;
    void (*drain)(void *ctx);       /* asked by POST; may be called again */
    uint32_t (*running)(void *ctx); /* requests of peers in work */
    void *ctx;
};

KVB_MUST_USE kvb_status_t kvp_node_control_create(const struct kvp_node_control_config *config,
                                                  struct kvp_node_control **control_p);
struct kvp_inbox *kvp_node_control_inbox(struct kvp_node_control *control);
/* Loop thread: answers what was submitted. */
void kvp_node_control_run(struct kvp_node_control *control);
/* Loop thread: nothing is taken any more, what is open is answered 503. */
void kvp_node_control_close(struct kvp_node_control *control);
/* Closed, and nothing of the client's in flight. NULL: nothing. */
void kvp_node_control_destroy(struct kvp_node_control *control);

#endif
