/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_SHARE_IMPL_H
#define STORE_SHARE_IMPL_H

/*
 * A share, inside: for those that run its shards' cores (store/node, store/service). Immutable
 * after create but for what says otherwise.
 */
#include "names.h"

#include "base/list.h"
#include "base/mutex.h"
#include "store/share.h"

#include <stdatomic.h>

/* Open in every shard from the beginning, for copies that end before their loop does anything else:
 * the local client's and a scrub's. Other sessions: kvs_share_session_open(). */
#define KVS_LOCAL_SESSION 1

/* One shard. Its core is run by whoever holds the lock; bytes are moved without it. */
struct kvs_shard {
    struct kvb_mutex lock;
    struct kvs_core *core;   /* guarded by lock */
    struct kvs_ring *events; /* guarded by lock; NULL: none are kept */
    uint8_t *base;
    uint64_t len;
};

/* What one user of the share has counted. Written by its thread alone, so that counting costs
 * nobody anything; read by any. */
struct kvs_counts {
    struct kvb_list link; /* guarded by share.counts_lock */
#define X(name, what) atomic_ulong name;
    KVS_NODE_COUNTERS(X)
#undef X
};
#define KVS_COUNT(counts, name, by)                                                                \
    ((void)atomic_fetch_add_explicit(&(counts)->name, (by), memory_order_relaxed))

struct kvs_share {
    uint8_t *memory;
    uint64_t bytes; /* of all shards */
    uint64_t mapped_bytes;
    uint32_t nshards;
    struct kvs_shard *shards;
    uint64_t seed; /* of the choice of a shard */
    struct kvs_names names;

    atomic_ulong last_session;

    struct kvb_mutex counts_lock;
    struct kvb_list users;  /* guarded by counts_lock */
    struct kvs_counts gone; /* what users that are gone have counted; guarded by counts_lock */

    /* upkeep: any thread pokes, the owner alone takes steps */
    atomic_bool cleared;      /* since the owner looked: space is to be reclaimed */
    atomic_bool armed;        /* the owner will look by itself in time */
    void (*poked)(void *ctx); /* set while nobody else uses the share */
    void *poked_ctx;
    bool sweeping;       /* owner */
    uint32_t sweep_next; /* owner: shard */
    uint64_t due_ns;     /* owner */
};

/* Of a key under a seed that stands for space and lineage (kvs_share_seed). */
struct kvs_shard *kvs_share_shard(const struct kvs_share *share, uint64_t seed,
                                  struct kvb_span key);
uint64_t kvs_share_seed(const struct kvs_share *share, const struct kvs_core_where *where);

/* ---- by key, under the shards' locks ---- */

#define KVS_LOOKUP_STEP 256 /* keys: what one step of a lookup does */
struct kvs_lookup {
    struct kvs_core_entry entries[KVS_LOOKUP_STEP]; /* key set by the caller; the answers */
    /* room to work in */
    struct kvs_core_entry sorted[KVS_LOOKUP_STEP];
    uint32_t index[KVS_LOOKUP_STEP];
    uint32_t shard[KVS_LOOKUP_STEP];
};
/* As kvs_core_exists, over all shards. */
void kvs_share_exists(struct kvs_share *share, uint64_t now_ns, const struct kvs_core_where *where,
                      struct kvs_lookup *lookup, uint32_t n, struct kvs_hold hold,
                      uint64_t hold_deadline_ns);
/* As kvs_core_remove, kvs_core_pin. */
KVB_MUST_USE kvb_status_t kvs_share_remove(struct kvs_share *share, uint64_t now_ns,
                                           const struct kvs_core_where *where,
                                           const struct kvs_core_key *key, bool force);
KVB_MUST_USE kvb_status_t kvs_share_pin(struct kvs_share *share, uint64_t now_ns,
                                        const struct kvs_core_where *where,
                                        const struct kvs_core_key *key, enum kvs_pin pin);

/* ---- events ---- */

/* n 0: none. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_ring_create(struct kvs_shard *shard, uint32_t n);
void kvs_ring_destroy(struct kvs_shard *shard);
/* Something was cleared, as a whole. Lock held. UINT32_MAX: of no tenant. */
void kvs_ring_cleared(struct kvs_shard *shard, enum kvs_event_kind kind, uint32_t tenant,
                      struct kvb_lineage lineage);

/* ---- sessions, holds ---- */

/* A session in every shard, with an id of its own. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_share_session_open(struct kvs_share *share, uint64_t *session_p);
/* Its writers have stopped: its tickets end, and its space is free. */
void kvs_share_session_close(struct kvs_share *share, uint64_t session);

/* Gives back what a request holds, or everything its instance holds. */
void kvs_share_discard(struct kvs_share *share, struct kvs_hold hold, bool all_of_instance);

/* ---- scrubs: one loop's ---- */

struct kvs_scrubs {
    struct kvb_sched *sched;
    struct kvs_share *share;
    struct kvs_counts *counts;
    uint64_t ticket_ns;
    struct kvb_list running;
    uint32_t n;
};
void kvs_scrubs_init(struct kvs_scrubs *scrubs, struct kvb_sched *sched, struct kvs_share *share,
                     struct kvs_counts *counts, uint64_t ticket_ns);
void kvs_scrubs_cleanup(struct kvs_scrubs *scrubs); /* ends those that run */
/* Hashes an object again after a mismatch, in small steps, and drops it if it is bad. Best effort:
 * does nothing when too many run. */
void kvs_scrub_start(struct kvs_scrubs *scrubs, struct kvs_shard *shard,
                     const struct kvs_core_where *where, const struct kvs_core_key *key);

/* ---- counters, upkeep ---- */

/* counts: zeroed; the caller's until removed. */
void kvs_share_counts_add(struct kvs_share *share, struct kvs_counts *counts);
void kvs_share_counts_remove(struct kvs_share *share, struct kvs_counts *counts);
/* The tenant of that number, given out from 0 up; false: no such. */
bool kvs_share_tenant_at(struct kvs_share *share, uint32_t number, char tenant[64],
                         struct kvs_core_tenant_stats *stats_p);
/* One put, get, lookup or remove has its answer. */
void kvs_count_answer(struct kvs_counts *counts, enum kvs_batch_op op, kvb_status_t status,
                      uint64_t len);

/* How long a ticket or an attempt lasts: as wanted, 0: 60 s; in fault runs a few ms at most. */
uint64_t kvs_ticket_ms(uint64_t wanted_ms);

/* A lease was given, or space cleared (now): upkeep will be due. Cheap when it is known. */
void kvs_share_poke(struct kvs_share *share, bool now);

#endif
