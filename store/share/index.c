/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked of the index alone, by key: a batch of lookups; remove; pin. */
#include "share_impl.h"

#include "base/assert.h"

/* Hands those that lie in one shard to its core, in order. */
static void exists_shard(struct kvs_share *share, uint32_t which, uint64_t now_ns,
                         const struct kvs_core_where *where, struct kvs_lookup *lookup, uint32_t n,
                         struct kvs_core_holder holder, uint64_t hold_deadline_ns)
{
    struct kvs_shard *shard = &share->shards[which];
    uint32_t nsorted = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (lookup->shard[i] == which) {
            lookup->index[nsorted] = i;
            lookup->sorted[nsorted++].key = lookup->entries[i].key;
        }
    }
    if (nsorted == 0) {
        return;
    }
    kvb_mutex_lock(&shard->lock);
    kvs_core_exists(shard->core, now_ns, where, lookup->sorted, nsorted, holder, hold_deadline_ns);
    kvb_mutex_unlock(&shard->lock);
    for (uint32_t i = 0; i < nsorted; i++) {
        lookup->entries[lookup->index[i]] = lookup->sorted[i];
    }
}

void kvs_share_exists(struct kvs_share *share, uint64_t now_ns, const struct kvs_core_where *where,
                      struct kvs_lookup *lookup, uint32_t n, struct kvs_hold hold,
                      uint64_t hold_deadline_ns)
{
    kvb_assert(n <= KVS_LOOKUP_STEP);
    uint64_t seed = kvs_share_seed(share, where);
    struct kvs_core_holder holder = {hold.instance, hold.request};
    for (uint32_t i = 0; i < n; i++) {
        struct kvs_shard *shard = kvs_share_shard(share, seed, lookup->entries[i].key.block);
        lookup->shard[i] = (uint32_t)(shard - share->shards);
    }
    for (uint32_t s = 0; s < share->nshards; s++) {
        exists_shard(share, s, now_ns, where, lookup, n, holder, hold_deadline_ns);
    }
    if (hold.instance != 0) {
        kvs_share_poke(share, false);
    }
}

kvb_status_t kvs_share_remove(struct kvs_share *share, uint64_t now_ns,
                              const struct kvs_core_where *where, const struct kvs_core_key *key,
                              bool force)
{
    struct kvs_shard *shard = kvs_share_shard(share, kvs_share_seed(share, where), key->block);
    kvb_mutex_lock(&shard->lock);
    kvb_status_t status = kvs_core_remove(shard->core, now_ns, where, key, force);
    kvb_mutex_unlock(&shard->lock);
    return status;
}

kvb_status_t kvs_share_pin(struct kvs_share *share, uint64_t now_ns,
                           const struct kvs_core_where *where, const struct kvs_core_key *key,
                           enum kvs_pin pin)
{
    struct kvs_shard *shard = kvs_share_shard(share, kvs_share_seed(share, where), key->block);
    kvb_mutex_lock(&shard->lock);
    kvb_status_t status = kvs_core_pin(shard->core, now_ns, where, key, pin);
    kvb_mutex_unlock(&shard->lock);
    return status;
}
