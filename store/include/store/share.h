/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_SHARE_H
#define STORE_SHARE_H

#include "base/clock.h"
#include "store/client.h"
#include "store/core.h"

/*
 * The memory that a process contributes to the store, divided into shards, each with its own index,
 * range and lock (DESIGN.md sections 3 and 6). The shard is chosen from (space, lineage, block
 * key), not from group and part: the pieces of a block lie together and go together. Nothing global
 * on the path of a request. It is reached by this process's own client (store/node.h) and by those
 * of others (store/service.h), both at once.
 *
 * Any thread, all of it, but for create and destroy.
 */
struct kvs_share;

struct kvs_share_config {
    uint64_t bytes;
    uint32_t shards;         /* 0: one for each 4 GiB, at least 1 and at most 16 */
    uint64_t hold_bytes_max; /* that one instance may hold; 0: a quarter of the share */
    bool huge_pages;         /* hugetlb pages, or NO_MEMORY; else transparent ones, as a wish */
    bool prefault;           /* touch every page now, rather than with the first put there */
};

/* INVALID, NO_MEMORY, IO; logged with its cause and what to change. */
KVB_MUST_USE kvb_status_t kvs_share_create(const struct kvb_random *random,
                                           const struct kvs_share_config *config,
                                           struct kvs_share **share_p);
void kvs_share_destroy(struct kvs_share *share); /* nobody uses it; NULL: nothing */

/* Split evenly over the shards. UINT64_MAX: none. LIMIT (too many tenants), NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_share_set_quota(struct kvs_share *share, const char *tenant,
                                              uint64_t quota_bytes);

/* These miss at once; the space follows in small steps (store/core.h, clearing). */
void kvs_share_retire(struct kvs_share *share, const struct kvb_lineage *lineages, uint32_t n);
void kvs_share_remove_tenant(struct kvs_share *share, const char *tenant);
void kvs_share_clear(struct kvs_share *share);

/* What a coordinator retires through; ctx: the share. */
extern const struct kvs_reclaim_ops kvs_share_reclaim;

/* One bounded step of upkeep over all shards: due leases, cleared space. Returns when the next one
 * is due (absolute, 0: at once, KVB_NEVER). Whoever owns the share calls it from one loop; poked is
 * called, from any thread, when it is due earlier than that. */
uint64_t kvs_share_upkeep(struct kvs_share *share, uint64_t now_ns);
void kvs_share_on_poke(struct kvs_share *share, void (*poked)(void *ctx), void *ctx);

#endif
