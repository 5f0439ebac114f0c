/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LINK_INTERNAL_H
#define LINK_INTERNAL_H

#include "link.h"

#include "base/list.h"

/* The link itself, as its parts see it. */
struct kvp_listener;
struct kvp_session;

struct kvp_link {
    struct kvp_link_config config; /* immutable */
    struct kvp_listener *listener; /* NULL: stopped */
    struct kvb_list sessions;      /* struct kvp_session, by its `link` */
    uint32_t nsessions;
    uint32_t nranks; /* ranks not yet freed: also those whose connection is gone */
    uint64_t last_session;
    uint32_t tasks_running[3]; /* by kvp_task_kind, over all ranks */
    struct kvb_list starved;   /* struct kvp_link_rank, whose batch the store had no room for */
    void (*stopped)(void *ctx);
    void *stopped_ctx;
    struct kvb_event stop_event;
};

/* listener.c. accepted takes fd. */
KVB_MUST_USE kvb_status_t kvp_listener_create(struct kvp_link *link,
                                              struct kvp_listener **listener_p);
void kvp_listener_destroy(struct kvp_listener *listener);

/* A session or a rank was freed. */
void kvp_link_settle(struct kvp_link *link);

#endif
