/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_COORDINATOR_H
#define STORE_COORDINATOR_H

#include "base/id.h"
#include "base/io.h"
#include "base/sched.h"
#include "store/client.h"

/*
 * What instances must agree on (DESIGN.md sections 4 and 10): which lineage a name of the weights
 * stands for, who its members are, which lineages are retired, and the tenants' quotas. An
 * interface: embedded (this process, lossless) and etcd. Everything is asynchronous and may
 * answer UNAVAILABLE; nobody waits for it to sleep or wake. Loop thread only. Callbacks never run
 * inside the call that starts them; each request completes exactly once.
 */
struct kvs_coordinator;
struct kvs_member;

/* One instance as the coordinator knows it; its callbacks are the watch. */
struct kvs_member_ops {
    /* `lineage` was retired by somebody: leave it (DESIGN.md section 4, rules 1-4), then call
     * kvs_member_left(). Also called for an instance that is not in it any more; it then answers at
     * once. */
    void (*told)(void *ctx, struct kvb_lineage lineage, uint64_t retirement);
    /* The tenant is reset: leave whatever it is in, named or private, then call kvs_member_left().
     * `retirement` is also the epoch that this reset begins (kvs_member_step()). */
    void (*told_tenant)(void *ctx, uint64_t retirement);
    /* The coordinator went out of reach, or is back (then compare the binding: kvs_member_check()).
     * An answer UNAVAILABLE is always followed by reachable(true) when it is worth asking again. */
    void (*reachable)(void *ctx, bool reachable);
    /* Out of reach for so long that others may be told by now that this one has left: leave
     * whatever it is in, named or private, now. Its bindings end. reachable(false) came before, or
     * comes with it. Never with an embedded coordinator. May be NULL. */
    void (*lost)(void *ctx);
};

KVB_MUST_USE kvb_status_t kvs_member_open(struct kvs_coordinator *coordinator, const char *instance,
                                          const struct kvs_space *space,
                                          const struct kvs_member_ops *ops, void *ctx,
                                          struct kvs_member **member_p);
/* Its pending requests complete with CANCELED inside this call; its bindings end. */
void kvs_member_close(struct kvs_member *member);

struct kvs_coord_request {
    void (*done)(struct kvs_coord_request *request, kvb_status_t status);
    struct kvb_lineage lineage; /* resolve, step: the answer */
    bool bound;                 /* check: the answer */
    uint64_t epoch;             /* tenant_reset: the epoch it began, whatever became of it */
    struct {
        struct kvb_list link;
        struct kvb_event event;
        struct kvs_coordinator *coordinator;
        struct kvs_member *member;
        kvb_status_t status;
        bool binds; /* what it answers OK holds as long as the member's lease */
        void *state;
    } impl;
};

/* The lineage of a name, created if absent; the member is counted in it, and in no other name, from
 * then on. OK, UNAVAILABLE, INVALID (empty, or longer than 255 bytes), NO_MEMORY. */
void kvs_member_resolve(struct kvs_member *member, const char *name,
                        struct kvs_coord_request *request);
/* Is this name still bound to this lineage? If so the member is counted in it (again). OK,
 * UNAVAILABLE. */
void kvs_member_check(struct kvs_member *member, const char *name, struct kvb_lineage lineage,
                      struct kvs_coord_request *request);
/* Not a member of that name any more; no answer. A name whose last member left is forgotten after a
 * grace period. */
void kvs_member_leave(struct kvs_member *member, const char *name);
/* A private lineage was left: nobody can read it again, its space may go. No answer. A lineage that
 * a name or a step stands for is left alone. */
void kvs_member_abandon(struct kvs_member *member, struct kvb_lineage lineage);
/* This member has left what retirement named and its engine has acknowledged that. May be called
 * inside told. An unknown or finished retirement: no effect. */
void kvs_member_left(struct kvs_member *member, uint64_t retirement);

/*
 * Retires lineages for everyone, and the lineage that `name` (NULL: none) stands for now, if any:
 * names unbound, members told, nodes reclaim. OK: the coordinator has it and every live member has
 * left. TIMEOUT: it has it, a member did not answer by the deadline (and is fenced). UNAVAILABLE,
 * NO_MEMORY: nothing is known to have happened (etcd may have it all the same: ask again). All
 * other members of the same space are told, one call for each lineage, since one that left a moment
 * ago may still wait for its engine; the asking member is not: it has left already. A lineage that
 * a name of another space stands for is left alone (etcd: as far as this process has heard of it;
 * but nobody is ever told another space's).
 */
void kvs_member_retire(struct kvs_member *member, const struct kvb_lineage *lineages, uint32_t n,
                       const char *name, uint64_t deadline_ns, struct kvs_coord_request *request);
/* Every lineage of the tenant, and every instance of it leaves, named or private. member: who asks
 * and has left already (it is not told); NULL: every instance of the tenant is told. One that is
 * lost (kvs_member_ops) is not waited for: it has left what it shared, and is told when it is back.
 */
void kvs_tenant_reset(struct kvs_coordinator *coordinator, const char *tenant,
                      struct kvs_member *member, uint64_t deadline_ns,
                      struct kvs_coord_request *request);

/* Makes the tenant's next lineage for `--unversioned` (DESIGN.md section 4, rule 7): the first
 * caller of a step makes it, later callers of the same step get the same. `step` counts the steps
 * the caller has taken since `epoch`, which the tenant's last reset began: the first is 1. FENCED:
 * out of step (another epoch, one that this member took no part in, a step already passed or
 * skipped); stay private. */
void kvs_member_step(struct kvs_member *member, uint64_t epoch, uint64_t step,
                     struct kvs_coord_request *request);

/* ---- the cluster (DESIGN.md section 10) ---- */

/* A store node as the others find it. */
struct kvs_node_record {
    char name[64];
    char address[256]; /* HOST:PORT, of tcp */
    char rdma[64];     /* the same of rdma; "": not to be had */
    uint64_t capacity_bytes;
    uint64_t incarnation; /* random for each life of the process */
    bool draining;        /* leaves: nothing new is placed there */
};

/* What the coordinator knows beside the lineages, told as it changes; what was known already is
 * told first. Members may be NULL. With an embedded coordinator there is nothing to tell. */
struct kvs_watch_ops {
    /* New, or changed (the same name). */
    void (*node)(void *ctx, const struct kvs_node_record *record);
    /* Left, or its lease has ended. While the coordinator cannot be reached nobody is gone. */
    void (*node_gone)(void *ctx, const char *name);
    /* For nodes: nobody can read these any more (they may be told again); and the bytes a tenant
     * may use in the whole cluster (UINT64_MAX: no quota), of which a node's part is by its
     * capacity. */
    void (*retired)(void *ctx, const struct kvb_lineage *lineages, uint32_t n);
    void (*quota)(void *ctx, const char *tenant, uint64_t bytes);
    void (*reachable)(void *ctx, bool reachable);
};
KVB_MUST_USE kvb_status_t kvs_coordinator_watch(struct kvs_coordinator *coordinator,
                                                const struct kvs_watch_ops *ops, void *ctx);

/* Makes a node known, for as long as this process lives and keeps its lease; again to change it.
 * Kept up by itself, through any outage. UNSUPPORTED: embedded. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_coordinator_announce(struct kvs_coordinator *coordinator,
                                                   const struct kvs_node_record *record);
/* Takes it back; done as for any request. EXISTS: another process has its name now. */
void kvs_coordinator_withdraw(struct kvs_coordinator *coordinator,
                              struct kvs_coord_request *request);
/* OK, UNAVAILABLE, NO_MEMORY. UINT64_MAX: none. */
void kvs_coordinator_set_quota(struct kvs_coordinator *coordinator, const char *tenant,
                               uint64_t bytes, struct kvs_coord_request *request);

/* An instance as status shows it: its member's state, kept with its lease. text: JSON, at most 1
 * KiB; the last one counts. Kept up by itself. INVALID: not UTF-8, or with control characters.
 * TOO_LARGE, NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_member_publish(struct kvs_member *member, const char *text);
/* An instance of the cluster, as its process last told the coordinator. */
struct kvs_instance_record {
    const char *instance;
    const struct kvs_space *space;
    const char *process; /* of its daemon, for people */
    bool own;            /* this process told it */
    uint64_t token;      /* its fencing token, larger for each later life */
    const char *text;    /* published; "{}": nothing yet */
};
/* For status: every instance that the coordinator knows of; while it cannot be reached, as it was
 * then. */
void kvs_coordinator_each_instance(struct kvs_coordinator *coordinator,
                                   void (*each)(void *arg,
                                                const struct kvs_instance_record *record),
                                   void *arg);

/* ---- etcd ---- */

struct kvs_etcd_config {
    struct kvb_sched *sched;
    struct kvb_io *io;
    const char *const *endpoints; /* URLs, http:// or https:// */
    uint32_t nendpoints;
    const char *prefix; /* of every key; one for each cluster. NULL: "/kvplane/" */
    const char *user;   /* with password; NULL: none */
    const char *password;
    const char *ca_file, *cert_file, *key_file; /* NULL: none, the system's */
    uint32_t request_ms;                        /* one request, all endpoints; 0: 3,000 */
    uint32_t lease_ms;   /* a member, node or instance is gone so long after its last sign of life;
                            0: 10,000 */
    uint64_t grace_ms;   /* as for embedded */
    const char *process; /* of this process, in records; for people */
};
/* Begins to reach etcd by itself; OK also when it is away. INVALID, NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_etcd_create(const struct kvs_etcd_config *config,
                                          struct kvs_coordinator **coordinator_p);

/* ---- embedded ---- */

/* What retires objects: the nodes of this process. */
struct kvs_reclaim_ops {
    void (*retire)(void *ctx, const struct kvb_lineage *lineages, uint32_t n);
    /* All lineages of the tenant that hold objects now, as a malloc'd array returned to the caller.
     */
    kvb_status_t (*lineages)(void *ctx, const char *tenant, struct kvb_lineage **lineages_p,
                             uint32_t *n_p);
};
KVB_MUST_USE kvb_status_t kvs_embedded_create(struct kvb_sched *sched, uint64_t grace_ms,
                                              const struct kvs_reclaim_ops *reclaim,
                                              void *reclaim_ctx,
                                              struct kvs_coordinator **coordinator_p);
void kvs_coordinator_destroy(struct kvs_coordinator *coordinator); /* members closed first */

/* Tests and simulation: as if the coordinator could not be reached. */
void kvs_embedded_set_reachable(struct kvs_coordinator *coordinator, bool reachable);

/* For status: one call per bound name. */
void kvs_coordinator_each_name(struct kvs_coordinator *coordinator,
                               void (*each)(void *arg, const struct kvs_space *space,
                                            const char *name, struct kvb_lineage lineage,
                                            uint32_t members),
                               void *arg);

#endif
