/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_SHARE_H
#define STORE_SHARE_H

#include "base/sched.h"
#include "store/client.h"
#include "store/core.h"

/*
 * The memory that a process contributes to the store, divided into shards, each with its own index,
 * range and lock (DESIGN.md sections 3 and 6). The shard is chosen from (space, lineage, block
 * key), not from group and part: the pieces of a block lie together and go together. Nothing global
 * on the path of a request. It is reached by this process's own client (store/node.h) and by those
 * of others (store/service.h), both at once.
 *
 * Any thread, all of it, but for create and destroy, and upkeep, which has one owner.
 */
struct kvs_share;

struct kvs_share_config {
    uint64_t bytes;
    uint32_t shards;         /* 0: one for each 4 GiB, at least 1 and at most 16 */
    uint64_t hold_bytes_max; /* that one instance may hold; 0: a quarter of the share */
    bool huge_pages;         /* hugetlb pages, or NO_MEMORY; else transparent ones, as a wish */
    bool prefault;           /* touch every page now, rather than with the first put there */
    uint32_t events;         /* of each shard, that are kept for readers; 0: none */
};

/* INVALID, NO_MEMORY, IO; logged with its cause and what to change. */
KVB_MUST_USE kvb_status_t kvs_share_create(const struct kvb_random *random,
                                           const struct kvs_share_config *config,
                                           struct kvs_share **share_p);
void kvs_share_destroy(struct kvs_share *share); /* nobody uses it; NULL: nothing */

/* All of its memory, one range, the same for as long as it lives: for devices that move its bytes
 * themselves. */
void kvs_share_memory(const struct kvs_share *share, void **base_p, uint64_t *len_p);

/* Split evenly over the shards. UINT64_MAX: none. LIMIT (too many tenants), NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_share_set_quota(struct kvs_share *share, const char *tenant,
                                              uint64_t quota_bytes);

/* These miss at once; the space follows in small steps (store/core.h, clearing). */
void kvs_share_retire(struct kvs_share *share, const struct kvb_lineage *lineages, uint32_t n);
void kvs_share_remove_tenant(struct kvs_share *share, const char *tenant);
void kvs_share_clear(struct kvs_share *share);

/* What a coordinator retires through; ctx: the share. */
extern const struct kvs_reclaim_ops kvs_share_reclaim;

/*
 * Removes a tenant's objects, of all its layouts and lineages, whose block key matches the pattern:
 * `*` is any bytes, `?` any one byte, a backslash takes the next byte as it is. A bounded step
 * each; true: not through yet. What is put meanwhile may be met or not. Any thread; one for each
 * sweep.
 */
#define KVS_PATTERN_MAX 512u
struct kvs_sweep {
    char tenant[64];
    uint8_t pattern[KVS_PATTERN_MAX];
    uint32_t pattern_len;
    bool force; /* else what is read, promised or pinned is kept */
    uint64_t removed, kept;
    struct {
        uint32_t shard, next;
    } impl; /* zero at first */
};
bool kvs_share_sweep(struct kvs_share *share, uint64_t now_ns, struct kvs_sweep *sweep);

/*
 * A part of a tenant's objects: a bounded step over the index from `place` on, at most as many as
 * there is room for. One that is there all the time is met by the steps from the first place to the
 * last, more than once only where the index grows meanwhile; what comes or goes may be met or not.
 */
#define KVS_LIST_MAX 256u
struct kvs_list_place { /* zero: the beginning */
    uint32_t shard, bucket, object;
};
struct kvs_listed {
    char layout[256];
    struct kvb_lineage lineage;
    uint8_t key[KVS_CORE_KEY_MAX];
    uint32_t key_len, group, part;
    uint64_t len;
    enum kvs_pin pin;
};
struct kvs_list {
    /* asked; kept */
    char tenant[64];
    char layout[256];           /* "": of all layouts */
    struct kvb_lineage lineage; /* none: of all lineages */
    uint32_t max;               /* 1 to KVS_LIST_MAX */
    /* asked, and then from where to go on */
    struct kvs_list_place place;
    /* answered */
    bool more; /* it was not the end */
    uint32_t n;
    struct kvs_listed at[KVS_LIST_MAX];
};
void kvs_share_list(struct kvs_share *share, struct kvs_list *list);

/* ---- events ---- */

#define KVS_EVENTS(X)                                                                              \
    X(STORED, "stored")                                                                            \
    X(REMOVED, "removed")                                                                          \
    X(EVICTED, "evicted")                                                                          \
    X(RETIRED, "retired")               /* everything of the lineage */                            \
    X(TENANT_REMOVED, "tenant_removed") /* everything of the tenant, so far */                     \
    X(CLEARED, "cleared")               /* everything, so far */
enum kvs_event_kind {
#define X(name, text) KVS_EVENT_##name,
    KVS_EVENTS(X)
#undef X
};
const char *kvs_event_text(enum kvs_event_kind kind);

/* What became of an object, or of many. Members that do not apply are empty. */
struct kvs_event {
    uint64_t seq; /* of its shard: 1, 2, ... */
    enum kvs_event_kind kind;
    struct kvs_space space;
    struct kvb_lineage lineage;
    uint8_t key[KVS_CORE_KEY_MAX];
    uint32_t key_len, group, part;
    uint64_t len;
};
/*
 * The events of one shard (0 to shards - 1) that came after `after` (0: from the first), at most
 * max, oldest first, in the order in which they happened there. Events wait for nobody: those
 * overwritten before they were read are counted in *lost_p. Recording costs no lock of its own.
 */
uint32_t kvs_share_events(struct kvs_share *share, uint32_t shard, uint64_t after,
                          struct kvs_event *out, uint32_t max, uint64_t *lost_p);

/* ---- statistics ---- */

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

struct kvs_share_stats {
    struct kvs_core_stats core; /* sums over the shards */
    uint32_t shards;
#define X(name, what) uint64_t name;
    KVS_NODE_COUNTERS(X)
#undef X
};

/* Takes each shard's lock for a moment. */
void kvs_share_stats(struct kvs_share *share, struct kvs_share_stats *stats_p);
/* Sums over the shards; an unknown tenant has used nothing. */
void kvs_share_tenant_stats(struct kvs_share *share, const char *tenant,
                            struct kvs_core_tenant_stats *stats_p);
/* Every tenant the share has heard of; each must not call into the share. */
void kvs_share_each_tenant(struct kvs_share *share,
                           void (*each)(void *arg, const char *tenant,
                                        const struct kvs_core_tenant_stats *stats),
                           void *arg);
/* Proves the invariants of every shard: NULL, or which one is broken (static text). For tests. */
const char *kvs_share_validate(struct kvs_share *share);

/* ---- upkeep ---- */

/*
 * One bounded step of upkeep, of one shard: due leases, cleared space. Returns when the next is due
 * (absolute, 0: at once, KVB_NEVER). Whoever owns the share calls it from one thread; called early
 * it does nothing. poked is called, from any thread, when it is due earlier than that: space was
 * cleared, or the first lease was given. Promises hold without upkeep; space comes back with it.
 */
uint64_t kvs_share_upkeep(struct kvs_share *share, uint64_t now_ns);
/* While no other thread uses the share. NULL: nobody. */
void kvs_share_on_poke(struct kvs_share *share, void (*poked)(void *ctx), void *ctx);

/*
 * Drives a share's upkeep on one loop, a step at a time with a rest after each, so that readers do
 * not feel it. wake is called from any thread that uses the
 * share and makes the loop thread call kvs_keeper_woken() soon; if that is the only thread, it may
 * do so itself. Start and stop while no other thread uses the share.
 */
struct kvs_keeper {
    struct kvs_share *share;
    struct kvb_sched *sched;
    struct kvb_event step;
    struct kvb_timer due;
    bool resting; /* more is to be done, when it is due */
};
void kvs_keeper_start(struct kvs_keeper *keeper, struct kvs_share *share, struct kvb_sched *sched,
                      void (*wake)(void *ctx), void *ctx);
void kvs_keeper_woken(struct kvs_keeper *keeper); /* loop thread; also when it was not meant */
void kvs_keeper_stop(struct kvs_keeper *keeper);

#endif
