/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_NODE_H
#define STORE_NODE_H

#include "base/clock.h"
#include "store/client.h"
#include "store/coordinator.h"
#include "store/core.h"

/*
 * A store node: what a client asks (the interface, for this process's own node and for ones behind
 * a connection), and this process's own.
 */

/* ---- the interface ---- */

/*
 * The part of a batch that lies on one node. The node writes status and len of each of its items,
 * then calls done, once, never inside submit or stop. The batch, its items and what they point to
 * stay valid until then.
 */
struct kvs_node_call {
    struct kvs_batch *batch;
    const uint32_t *index; /* which items of the batch; NULL: all */
    uint32_t n;
    void (*done)(struct kvs_node_call *call);
    /* the node's own */
    struct {
        struct kvb_list link;
        void *state;
    } impl;
};

struct kvs_node_ops {
    /* OK: taken. NO_MEMORY, LIMIT: not taken, done will not come. */
    kvb_status_t (*submit)(struct kvs_node *node, struct kvs_node_call *call);
    /*
     * Ends a call soon. expired: its deadline has passed; items not begun become UNAVAILABLE, those
     * begun TIMEOUT. Else they become CANCELED. What is finished keeps its status; what moves bytes
     * is stopped by the deadline. Idempotent.
     */
    void (*stop)(struct kvs_node *node, struct kvs_node_call *call, bool expired,
                 uint64_t stop_deadline_ns);
    /* Gives back what the request holds, or everything its instance holds. */
    void (*discard)(struct kvs_node *node, struct kvs_hold hold, bool all_of_instance);
};
struct kvs_node {
    const struct kvs_node_ops *ops;
};

/* The i-th item of a call. */
static inline struct kvs_item *kvs_node_call_item(const struct kvs_node_call *call, uint32_t i)
{
    return &call->batch->items[call->index == NULL ? i : call->index[i]];
}

/* ---- this process's own node ---- */

/*
 * A share of memory, divided into shards, each with its own index, range and lock (DESIGN.md
 * section 6). The shard is chosen from (space, lineage, block key), not from group and part: the
 * pieces of a block lie together and go together.
 *
 * Index work runs under the shard's lock, in short bounded steps; bytes are moved outside it, as
 * transfers. Loop thread only, but for the functions that say `any thread`.
 */
struct kvs_node_config {
    uint64_t share_bytes;
    uint32_t shards;         /* 0: one for each 4 GiB of share, at least 1 and at most 16 */
    uint64_t ticket_ms;      /* how long a reader's ticket or a writer's attempt lasts; 0: 60 s.
                                 In fault runs a few ms at most */
    uint64_t hold_ms;        /* how long a lookup's promise lasts; 0: 60 s */
    uint64_t hold_bytes_max; /* that one instance may hold; 0: a quarter of the share */
};

/* transport reaches the share and is borrowed. INVALID, NO_MEMORY, IO. */
KVB_MUST_USE kvb_status_t kvs_node_create(struct kvb_sched *sched, struct kvt_transport *transport,
                                          const struct kvs_node_config *config,
                                          struct kvs_node **node_p);
void kvs_node_destroy(struct kvs_node *node); /* no call in flight; NULL: nothing */

/* Split evenly over the shards. UINT64_MAX: none. LIMIT (too many tenants), NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_node_set_quota(struct kvs_node *node, const char *tenant,
                                             uint64_t quota_bytes);

/* These miss at once; the space follows in small steps (store/core.h, clearing). */
void kvs_node_retire(struct kvs_node *node, const struct kvb_lineage *lineages, uint32_t n);
void kvs_node_remove_tenant(struct kvs_node *node, const char *tenant);
void kvs_node_clear(struct kvs_node *node);

/* What an embedded coordinator retires through; ctx: the node. */
extern const struct kvs_reclaim_ops kvs_node_reclaim;

/* name, what it counts since create */
#define KVS_NODE_COUNTERS(X)                                                                       \
    X(lookups, "keys looked up")                                                                   \
    X(lookup_hits, "keys looked up and found")                                                     \
    X(puts, "objects stored")                                                                      \
    X(put_bytes, "bytes stored")                                                                   \
    X(puts_existed, "puts of a key that was there already")                                        \
    X(puts_refused, "puts for which there was no space or quota")                                  \
    X(puts_fenced, "puts under a lineage that was retired")                                        \
    X(puts_failed, "puts that failed otherwise")                                                   \
    X(gets, "objects read")                                                                        \
    X(get_bytes, "bytes read")                                                                     \
    X(gets_missed, "gets of keys that were not there")                                             \
    X(gets_ticket, "gets refused because the ticket was no longer held")                           \
    X(gets_checksum, "gets refused because the bytes did not match their checksum")                \
    X(gets_failed, "gets that failed otherwise")                                                   \
    X(removes, "objects removed by key")                                                           \
    X(scrubs, "objects hashed again after a checksum mismatch")                                    \
    X(scrubs_bad, "objects dropped because their bytes were bad")

struct kvs_node_stats {
    struct kvs_core_stats core; /* sums over the shards */
    uint32_t shards;
    uint32_t calls; /* in flight */
#define X(name, what) uint64_t name;
    KVS_NODE_COUNTERS(X)
#undef X
};

/* Any thread; takes each shard's lock for a moment. */
void kvs_node_stats(struct kvs_node *node, struct kvs_node_stats *stats_p);
/* Any thread. Sums over the shards; an unknown tenant has used nothing. */
void kvs_node_tenant_stats(struct kvs_node *node, const char *tenant,
                           struct kvs_core_tenant_stats *stats_p);
/* Any thread. Every tenant the node has heard of; each must not call into the node. */
void kvs_node_each_tenant(struct kvs_node *node,
                          void (*each)(void *arg, const char *tenant,
                                       const struct kvs_core_tenant_stats *stats),
                          void *arg);
/* Proves the invariants of every shard: NULL, or which one is broken (static text). For tests. */
const char *kvs_node_validate(struct kvs_node *node);

#endif
