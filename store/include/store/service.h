/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_SERVICE_H
#define STORE_SERVICE_H

#include "store/node.h"
#include "store/share.h"
#include "transport/tcp.h"

/*
 * A share served to other processes (service), and such a share as a node of this process's client
 * (remote). Between them: the questions of store/wire (a table: name, direction, fields, limits).
 * A put and a get are one question each; lookups, removes and pins are batches.
 */

/* ---- service: one for each I/O thread over the same share ---- */

struct kvs_service;

struct kvs_service_config {
    struct kvb_sched *sched;
    struct kvs_share *share;
    struct kvt_tcp_common tcp;
    const char *name;
    uint64_t incarnation;
    uint64_t ticket_ms; /* how long a reader's ticket or a writer's attempt lasts; 0: 60 s */
    uint64_t hold_ms;   /* how long a lookup's promise lasts; 0: 60 s */
    uint32_t lanes_max, lanes_each_max;
};

KVB_MUST_USE kvb_status_t kvs_service_create(const struct kvs_service_config *config,
                                             struct kvs_service **service_p);
void kvs_service_destroy(struct kvs_service *service); /* closes its lanes; NULL: nothing */
KVB_MUST_USE kvb_status_t kvs_service_adopt(struct kvs_service *service, int fd);
/* New puts are answered UNAVAILABLE; gets and lookups go on. Peers are told with the next ping, so
 * that they place nothing new here. */
void kvs_service_drain(struct kvs_service *service);
/* Any thread. Requests that are not answered yet. */
uint32_t kvs_service_running(const struct kvs_service *service);

/* ---- remote: a node behind connections ---- */

/* What a node says of itself, with each ping of the store and on demand. */
struct kvs_remote_status {
    bool up;
    bool draining;
    uint64_t incarnation;
    uint64_t heard_ns; /* monotonic here; 0: never */
    uint64_t capacity_bytes, used_bytes, objects;
    uint64_t puts, put_bytes, gets, get_bytes; /* since it started */
};

struct kvs_remote_config {
    struct kvb_sched *sched;
    struct kvt_regions *regions;
    struct kvt_tcp_peer_config peer; /* ops and ctx are the remote's own */
    /* state or figures have changed; may be NULL */
    void (*changed)(void *ctx, struct kvs_node *node, const struct kvs_remote_status *status);
    void *ctx;
};

KVB_MUST_USE kvb_status_t kvs_remote_create(const struct kvs_remote_config *config,
                                            struct kvs_node **node_p);
void kvs_remote_destroy(struct kvs_node *node); /* no call in flight; NULL: nothing */
void kvs_remote_status(const struct kvs_node *node, struct kvs_remote_status *status_p);

/* Tenants with their figures on that node. done comes once, later; UNAVAILABLE, TIMEOUT. */
struct kvs_remote_tenants {
    void (*done)(struct kvs_remote_tenants *ask, kvb_status_t status);
    struct {
        char tenant[64];
        struct kvs_core_tenant_stats stats;
    } * tenants; /* the ask's, until done returns */
    uint32_t n;
    struct {
        struct kvt_transfer transfer;
    } impl;
};
void kvs_remote_tenants(struct kvs_node *node, uint64_t deadline_ns,
                        struct kvs_remote_tenants *ask);

#endif
