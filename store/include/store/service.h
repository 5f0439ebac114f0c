/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_SERVICE_H
#define STORE_SERVICE_H

#include "store/node.h"
#include "store/share.h"
#include "transport/rdma.h"
#include "transport/tcp.h"

/*
 * A share served to other processes (service), and such a share as a node of this process's client
 * (remote). Between them: the questions of store/wire (a table: name, direction, fields, limits).
 * A put and a get are one question each; lookups, removes and pins are batches.
 */

/* ---- service: one for each I/O thread over the same share, whatever carries its questions ---- */

struct kvs_service;

struct kvs_service_config {
    struct kvb_sched *sched;
    struct kvs_share *share;
    struct kvt_peer_common common; /* net: of tcp */
    /* NULL: tcp alone. The share's memory is registered with it before, and until the service is
     * destroyed. */
    struct kvt_rdma_device *rdma;
    struct kvb_io *io; /* of rdma */
    const char *name;
    uint64_t incarnation;
    uint64_t ticket_ms; /* how long a reader's ticket or a writer's attempt lasts; 0: 60 s */
    uint64_t hold_ms;   /* how long a lookup's promise lasts; 0: 60 s */
    uint32_t lanes_max, lanes_each_max; /* of each carrier */
};

KVB_MUST_USE kvb_status_t kvs_service_create(const struct kvs_service_config *config,
                                             struct kvs_service **service_p);
void kvs_service_destroy(struct kvs_service *service); /* closes its lanes; NULL: nothing */
/* As kvt_tcp_server_adopt; kvt_rdma_server_adopt (only where it was created with a device). */
KVB_MUST_USE kvb_status_t kvs_service_adopt(struct kvs_service *service, int fd);
KVB_MUST_USE kvb_status_t kvs_service_adopt_rdma(struct kvs_service *service,
                                                 struct kvt_rdma_conn *conn);
/* Any thread. New puts are answered DRAINING; gets and lookups go on. Peers learn it from that
 * answer, or when they next ask for the status, and place nothing new here. */
void kvs_service_drain(struct kvs_service *service);
/* Any thread. Puts and gets that are not over yet. */
uint32_t kvs_service_running(const struct kvs_service *service);
struct kvs_service_stats {
    struct kvt_peer_stats tcp, rdma; /* rdma: zero where there is none */
};
void kvs_service_stats(const struct kvs_service *service, struct kvs_service_stats *stats_p);

/* ---- remote: a node behind connections ---- */

/* What carries questions to a node, and how a peer of it is made. */
struct kvs_carrier {
    const char *name; /* for people: tcp, rdma */
    /* As kvt_tcp_peer_create. config: the carrier's own, whose ops and ctx do not count. */
    kvb_status_t (*create)(struct kvt_regions *regions, const void *config,
                           const struct kvt_peer_ops *ops, void *ctx,
                           struct kvt_transport **transport_p);
    void (*stats)(const struct kvt_transport *transport, struct kvt_peer_stats *stats_p);
};
extern const struct kvs_carrier kvs_by_tcp;  /* config: struct kvt_tcp_peer_config */
extern const struct kvs_carrier kvs_by_rdma; /* config: struct kvt_rdma_peer_config */

/*
 * A node may be reached in several ways, each by a carrier of its own, all of which stay connected.
 * A question goes the first way that is up, and ends there; while none is, the last one is asked
 * first: it is what the others fall back to.
 */
#define KVS_WAYS_MAX 2
struct kvs_way {
    const struct kvs_carrier *by; /* NULL: no further way */
    const void *config;           /* copied by what it creates */
};

/* What a node says of itself, with each ping of the store and on demand. */
struct kvs_remote_status {
    bool up;        /* some way is */
    const char *by; /* name of what carries its questions now; NULL: nothing does */
    bool draining;
    uint64_t incarnation;
    uint64_t heard_ns; /* monotonic here; 0: never */
    uint64_t capacity_bytes, used_bytes, objects;
    uint64_t puts, put_bytes, gets, get_bytes; /* since it started */
};

struct kvs_remote_config {
    struct kvb_sched *sched;
    struct kvt_regions *regions;
    struct kvs_way ways[KVS_WAYS_MAX]; /* the best first; at least one */
    /* state or figures have changed; may be NULL */
    void (*changed)(void *ctx, struct kvs_node *node, const struct kvs_remote_status *status);
    void *ctx;
};

/* Connects by itself, now and after each outage. While the node cannot be reached, what is
 * submitted ends UNAVAILABLE in the next turn. Its holds are told apart from those of other
 * processes. INVALID (an address), NO_MEMORY, and what else a carrier says. */
KVB_MUST_USE kvb_status_t kvs_remote_create(const struct kvs_remote_config *config,
                                            struct kvs_node **node_p);
/* No call and no question about tenants or objects in flight; NULL: nothing. */
void kvs_remote_destroy(struct kvs_node *node);
/* One of its ways, numbered as in its config. False: no such. */
struct kvs_way_status {
    const char *by;
    bool up;
    kvb_status_t why; /* it is not, as kvt_peer_ops.down says; OK: it is, or was not tried yet */
    struct kvt_peer_stats stats;
};
bool kvs_remote_way(struct kvs_node *node, uint32_t number, struct kvs_way_status *way_p);
void kvs_remote_status(struct kvs_node *node, struct kvs_remote_status *status_p);
/* Calls in flight; any thread. */
uint32_t kvs_remote_calls(struct kvs_node *node);

/* Tenants with their figures on that node. done comes once, later, with OK, UNAVAILABLE, TIMEOUT,
 * PROTOCOL or NO_MEMORY. */
struct kvs_remote_tenant {
    char tenant[64];
    struct kvs_core_tenant_stats stats;
};
struct kvs_remote_tenants {
    void (*done)(struct kvs_remote_tenants *ask, kvb_status_t status);
    struct kvs_remote_tenant *tenants; /* the ask's, until done returns */
    uint32_t n;
    struct {
        void *state;
    } impl;
};
/* NO_MEMORY: done does not come. */
KVB_MUST_USE kvb_status_t kvs_remote_tenants(struct kvs_node *node, uint64_t deadline_ns,
                                             struct kvs_remote_tenants *ask);

/* As kvs_share_list() on that node. done comes once, later, with OK, UNAVAILABLE, TIMEOUT,
 * PROTOCOL, UNSUPPORTED (it is of an earlier version) or NO_MEMORY; but for OK what was asked is as
 * it was. */
struct kvs_remote_list {
    void (*done)(struct kvs_remote_list *ask, kvb_status_t status);
    struct kvs_list *list; /* borrowed until done */
};
/* NO_MEMORY: done does not come. */
KVB_MUST_USE kvb_status_t kvs_remote_list(struct kvs_node *node, uint64_t deadline_ns,
                                          struct kvs_remote_list *ask);

#endif
