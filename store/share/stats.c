/* SPDX-License-Identifier: Apache-2.0 */
#include "share_impl.h"

/* ---- counting ---- */

void kvs_share_counts_add(struct kvs_share *share, struct kvs_counts *counts)
{
    kvb_mutex_lock(&share->counts_lock);
    kvb_list_push_back(&share->users, &counts->link);
    kvb_mutex_unlock(&share->counts_lock);
}

static uint64_t load(const atomic_ulong *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void kvs_share_counts_remove(struct kvs_share *share, struct kvs_counts *counts)
{
    kvb_mutex_lock(&share->counts_lock);
    kvb_list_remove(&counts->link);
#define X(name, what) KVS_COUNT(&share->gone, name, load(&counts->name));
    KVS_NODE_COUNTERS(X)
#undef X
    kvb_mutex_unlock(&share->counts_lock);
}

static void count_put(struct kvs_counts *counts, kvb_status_t status, uint64_t len)
{
    switch (status) {
    case KVB_OK:
        KVS_COUNT(counts, puts, 1);
        KVS_COUNT(counts, put_bytes, len);
        break;
    case KVB_ERR_EXISTS:
        KVS_COUNT(counts, puts_existed, 1);
        break;
    case KVB_ERR_NO_SPACE:
    case KVB_ERR_QUOTA:
        KVS_COUNT(counts, puts_refused, 1);
        break;
    case KVB_ERR_FENCED:
        KVS_COUNT(counts, puts_fenced, 1);
        break;
    default:
        KVS_COUNT(counts, puts_failed, 1);
    }
}

static void count_get(struct kvs_counts *counts, kvb_status_t status, uint64_t len)
{
    switch (status) {
    case KVB_OK:
        KVS_COUNT(counts, gets, 1);
        KVS_COUNT(counts, get_bytes, len);
        break;
    case KVB_ERR_NOT_FOUND:
        KVS_COUNT(counts, gets_missed, 1);
        break;
    case KVB_ERR_TICKET:
        KVS_COUNT(counts, gets_ticket, 1);
        break;
    case KVB_ERR_CHECKSUM:
        KVS_COUNT(counts, gets_checksum, 1);
        break;
    default:
        KVS_COUNT(counts, gets_failed, 1);
    }
}

void kvs_count_answer(struct kvs_counts *counts, enum kvs_batch_op op, kvb_status_t status,
                      uint64_t len)
{
    switch (op) {
    case KVS_EXISTS:
        KVS_COUNT(counts, lookups, 1);
        KVS_COUNT(counts, lookup_hits, status == KVB_OK);
        break;
    case KVS_PUT:
        count_put(counts, status, len);
        break;
    case KVS_GET:
        count_get(counts, status, len);
        break;
    case KVS_REMOVE:
        KVS_COUNT(counts, removes, status == KVB_OK);
        break;
    case KVS_PIN:
        break;
    }
}

/* ---- sums ---- */

static void add_counts(struct kvs_share_stats *sum, const struct kvs_counts *counts)
{
#define X(name, what) sum->name += load(&counts->name);
    KVS_NODE_COUNTERS(X)
#undef X
}

static void add_core(struct kvs_core_stats *sum, const struct kvs_core_stats *one)
{
    sum->share_bytes += one->share_bytes;
    sum->used_bytes += one->used_bytes;
    sum->live_bytes += one->live_bytes;
    sum->reserved_bytes += one->reserved_bytes;
    sum->quarantined_bytes += one->quarantined_bytes;
    sum->retired_bytes += one->retired_bytes;
    sum->free_bytes += one->free_bytes;
    sum->value_bytes += one->value_bytes;
    sum->locked_bytes += one->locked_bytes;
    sum->objects += one->objects;
    sum->attempts += one->attempts;
    sum->tickets += one->tickets;
    sum->holds += one->holds;
    sum->evicted += one->evicted;
    sum->reclaimed += one->reclaimed;
    sum->fenced += one->fenced;
    sum->tickets_lost += one->tickets_lost;
    sum->metadata_bytes += one->metadata_bytes;
}

void kvs_share_stats(struct kvs_share *share, struct kvs_share_stats *stats_p)
{
    *stats_p = (struct kvs_share_stats){.shards = share->nshards};
    kvb_mutex_lock(&share->counts_lock);
    add_counts(stats_p, &share->gone);
    kvb_list_each(&share->users, link)
    {
        add_counts(stats_p, kvb_container_of(link, struct kvs_counts, link));
    }
    kvb_mutex_unlock(&share->counts_lock);
    for (uint32_t i = 0; i < share->nshards; i++) {
        struct kvs_shard *shard = &share->shards[i];
        struct kvs_core_stats one;
        kvb_mutex_lock(&shard->lock);
        kvs_core_stats(shard->core, &one);
        kvb_mutex_unlock(&shard->lock);
        add_core(&stats_p->core, &one);
    }
}

static void tenant_stats(struct kvs_share *share, uint32_t tenant,
                         struct kvs_core_tenant_stats *stats_p)
{
    *stats_p = (struct kvs_core_tenant_stats){0};
    for (uint32_t i = 0; i < share->nshards; i++) {
        struct kvs_shard *shard = &share->shards[i];
        struct kvs_core_tenant_stats one;
        kvb_mutex_lock(&shard->lock);
        kvs_core_tenant_stats(shard->core, tenant, &one);
        kvb_mutex_unlock(&shard->lock);
        stats_p->quota_bytes =
            one.quota_bytes == UINT64_MAX ? UINT64_MAX : stats_p->quota_bytes + one.quota_bytes;
        stats_p->used_bytes += one.used_bytes;
        stats_p->live_bytes += one.live_bytes;
        stats_p->objects += one.objects;
        stats_p->evicted += one.evicted;
    }
}

void kvs_share_tenant_stats(struct kvs_share *share, const char *tenant,
                            struct kvs_core_tenant_stats *stats_p)
{
    uint32_t id;
    if (kvs_names_find_tenant(&share->names, tenant, &id) == KVB_OK) {
        tenant_stats(share, id, stats_p);
    } else {
        *stats_p = (struct kvs_core_tenant_stats){.quota_bytes = UINT64_MAX};
    }
}

bool kvs_share_tenant_at(struct kvs_share *share, uint32_t number, char tenant[64],
                         struct kvs_core_tenant_stats *stats_p)
{
    if (number >= kvs_names_ntenants(&share->names)) {
        return false;
    }
    kvs_names_tenant_text(&share->names, number, tenant);
    tenant_stats(share, number, stats_p);
    return true;
}

void kvs_share_each_tenant(struct kvs_share *share,
                           void (*each)(void *arg, const char *tenant,
                                        const struct kvs_core_tenant_stats *stats),
                           void *arg)
{
    char tenant[64];
    struct kvs_core_tenant_stats stats;
    for (uint32_t i = 0; kvs_share_tenant_at(share, i, tenant, &stats); i++) {
        each(arg, tenant, &stats);
    }
}
