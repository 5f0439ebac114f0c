/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLUSTER_H
#define SERVER_CLUSTER_H

#include "base/metrics.h"
#include "store/coordinator.h"
#include "store/service.h"

/*
 * This process's place in the cluster (DESIGN.md section 10). The store nodes that the coordinator
 * tells of become nodes of this process's client, each behind its own connections; one that comes
 * back under another address or incarnation replaces the old. The share of this process, if it has
 * one, is announced, loses what is retired, and keeps its part of the tenants' quotas. A process
 * that is alone is a cluster of one. Loop thread only.
 */
struct kvp_cluster;

struct kvp_cluster_params {
    struct kvb_sched *sched;
    struct kvs_coordinator *coordinator;
    bool alone; /* the coordinator is embedded: nobody is told of the share */
    /* The share of this process; NULL: none. */
    struct kvs_share *share;
    struct kvs_node_record own; /* its record */
    /* What reads and writes the nodes; NULL: this process does not (a store node). */
    struct kvs_client *client;
    struct kvs_node *local; /* the own share for it; NULL: none */
    struct kvt_regions *regions;
    struct kvt_peer_common common;
    /* By rdma where a node can, by tcp if that fails or cannot be; NULL: by tcp alone. */
    struct kvt_rdma_memory *rdma;
    struct kvb_io *io;           /* of rdma */
    bool rdma_only;              /* never by tcp */
    struct kvb_metrics *metrics; /* the families of metrics.h about nodes; NULL: none */
};

/* Watches, announces, and adds `local` to the client. NO_MEMORY, LIMIT. */
KVB_MUST_USE kvb_status_t kvp_cluster_create(const struct kvp_cluster_params *params,
                                             struct kvp_cluster **cluster_p);
/* The own share is withdrawn; stopped, once, later: that was answered, or could not be within
 * bound_ms, and no question is under way. No new ones. */
void kvp_cluster_stop(struct kvp_cluster *cluster, uint64_t bound_ms, void (*stopped)(void *ctx),
                      void *ctx);
/* Stopped, or the loop has not run; after the client and the coordinator were destroyed: ends the
 * connections. NULL: nothing. */
void kvp_cluster_destroy(struct kvp_cluster *cluster);

/* A tenant may use so many bytes of the whole cluster: told to the coordinator once it can be
 * reached. Before the loop runs. NO_MEMORY; alone also LIMIT. */
KVB_MUST_USE kvb_status_t kvp_cluster_want_quota(struct kvp_cluster *cluster, const char *tenant,
                                                 uint64_t bytes);
/* The same at any time, by a request. OK: alone, and done; LIMIT, NO_MEMORY: it is not.
 * IN_PROGRESS: request's done follows, as the coordinator answers. UINT64_MAX: no quota. */
KVB_MUST_USE kvb_status_t kvp_cluster_set_quota(struct kvp_cluster *cluster, const char *tenant,
                                                uint64_t bytes, struct kvs_coord_request *request);
/* The own share takes no new objects any more. */
void kvp_cluster_drain(struct kvp_cluster *cluster);

bool kvp_cluster_alone(const struct kvp_cluster *cluster);
bool kvp_cluster_reachable(const struct kvp_cluster *cluster); /* the coordinator */
bool kvp_cluster_was_reachable(const struct kvp_cluster *cluster);
/* Regions of engines whose bytes do not go by rdma although others' do, since the device could not
 * register them; *reason_p: why the last one was not, and what to change. */
uint64_t kvp_cluster_left_out(const struct kvp_cluster *cluster, const char **reason_p);
/* Since when it cannot be reached; what it told is as old. 0: it can be, or never could. */
uint64_t kvp_cluster_away_ns(const struct kvp_cluster *cluster);

/* A node as this process sees it. */
struct kvp_cluster_node {
    const struct kvs_node_record *record;
    bool used; /* by this process's client */
    bool own;
    struct kvs_remote_status status;
    bool sick;
    uint64_t sick_ns; /* since when; 0: it is not */
    uint64_t sick_times;
    uint64_t calls, failures; /* of this process, since the node came */
    uint32_t in_flight;
    kvb_status_t last_failure; /* OK: none yet */
    uint64_t failed_ns;
    uint32_t nways; /* connections of its kinds; 0: it is the own share, or not used */
    struct kvs_way_status ways[KVS_WAYS_MAX];
    /* per second, over the last seconds */
    double puts, put_bytes, gets, get_bytes;
};
void kvp_cluster_each_node(struct kvp_cluster *cluster,
                           void (*each)(void *arg, const struct kvp_cluster_node *node), void *arg);

/* Tenants with their figures over all nodes that answer. */
struct kvp_cluster_tenant {
    char tenant[64];
    uint64_t used_bytes, objects;
    uint64_t quota_bytes; /* of the whole cluster; UINT64_MAX: none, or not known */
};
struct kvp_cluster_tenants {
    /* Once, later; the tenants are valid during the call. silent: nodes that did not answer. */
    void (*done)(struct kvp_cluster_tenants *ask, const struct kvp_cluster_tenant *tenants,
                 uint32_t n, uint32_t silent);
};
/* NO_MEMORY; CANCELED: stopped. */
KVB_MUST_USE kvb_status_t kvp_cluster_ask_tenants(struct kvp_cluster *cluster, uint64_t deadline_ns,
                                                  struct kvp_cluster_tenants *ask);

/* Objects on one node, as kvs_share_list() there. */
struct kvp_cluster_list {
    /* Once, later; as kvs_remote_list.done. */
    void (*done)(struct kvp_cluster_list *ask, kvb_status_t status);
    struct kvs_list *list; /* borrowed until done */
};
/* NOT_FOUND: there is no node of that name; UNAVAILABLE: it is not used; NO_MEMORY; CANCELED:
 * stopped. */
KVB_MUST_USE kvb_status_t kvp_cluster_ask_list(struct kvp_cluster *cluster, const char *node,
                                               uint64_t deadline_ns, struct kvp_cluster_list *ask);

#endif
