/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What became of the objects of a shard, for whoever asks in time: a ring, written under the lock
 * of the shard by what changes them. Names are looked up when it is read.
 */
#include "share_impl.h"

#include <stdlib.h>
#include <string.h>

struct record {
    enum kvs_event_kind kind;
    uint32_t space; /* UINT32_MAX: of none */
    uint32_t tenant;
    struct kvb_lineage lineage;
    uint32_t key_len, group, part;
    uint64_t len;
    uint8_t key[KVS_CORE_KEY_MAX];
};

struct kvs_ring {
    uint64_t last; /* number of the latest */
    uint32_t n;
    struct record at[];
};

static const char *const texts[] = {
#define X(name, text) text,
    KVS_EVENTS(X)
#undef X
};

const char *kvs_event_text(enum kvs_event_kind kind)
{
    return texts[kind];
}

static struct record *next_record(struct kvs_ring *ring)
{
    return &ring->at[++ring->last % ring->n];
}

static void on_change(void *arg, const struct kvs_core_change *change)
{
    static const enum kvs_event_kind kinds[] = {
        [KVS_CHANGE_STORED] = KVS_EVENT_STORED,
        [KVS_CHANGE_REMOVED] = KVS_EVENT_REMOVED,
        [KVS_CHANGE_EVICTED] = KVS_EVENT_EVICTED,
    };
    struct record *record = next_record(arg);
    record->kind = kinds[change->change];
    record->space = change->space;
    record->tenant = change->tenant;
    record->lineage = change->lineage;
    record->group = change->key.group;
    record->part = change->key.part;
    record->len = change->len;
    record->key_len = (uint32_t)change->key.block.len;
    memcpy(record->key, change->key.block.data, change->key.block.len);
}

void kvs_ring_cleared(struct kvs_shard *shard, enum kvs_event_kind kind, uint32_t tenant,
                      struct kvb_lineage lineage)
{
    if (shard->events == NULL) {
        return;
    }
    struct record *record = next_record(shard->events);
    record->kind = kind;
    record->space = UINT32_MAX;
    record->tenant = tenant;
    record->lineage = lineage;
    record->group = record->part = record->key_len = 0;
    record->len = 0;
}

kvb_status_t kvs_ring_create(struct kvs_shard *shard, uint32_t n)
{
    if (n == 0) {
        return KVB_OK;
    }
    shard->events = malloc(sizeof *shard->events + n * sizeof shard->events->at[0]);
    if (shard->events == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    shard->events->last = 0;
    shard->events->n = n;
    kvs_core_on_change(shard->core, on_change, shard->events);
    return KVB_OK;
}

void kvs_ring_destroy(struct kvs_shard *shard)
{
    free(shard->events);
}

static void read_record(struct kvs_names *names, const struct record *record, uint64_t seq,
                        struct kvs_event *event)
{
    *event = (struct kvs_event){
        .seq = seq,
        .kind = record->kind,
        .lineage = record->lineage,
        .key_len = record->key_len,
        .group = record->group,
        .part = record->part,
        .len = record->len,
    };
    memcpy(event->key, record->key, record->key_len);
    if (record->space != UINT32_MAX) {
        kvs_names_space_text(names, record->space, &event->space);
    } else if (record->tenant != UINT32_MAX) {
        kvs_names_tenant_text(names, record->tenant, event->space.tenant);
    }
}

uint32_t kvs_share_events(struct kvs_share *share, uint32_t which, uint64_t after,
                          struct kvs_event *out, uint32_t max, uint64_t *lost_p)
{
    uint32_t n = 0;
    *lost_p = 0;
    if (which >= share->nshards || share->shards[which].events == NULL) {
        return 0;
    }
    struct kvs_shard *shard = &share->shards[which];
    const struct kvs_ring *ring = shard->events;
    kvb_mutex_lock(&shard->lock);
    uint64_t oldest = ring->last > ring->n ? ring->last - ring->n + 1 : 1;
    if (after + 1 < oldest) {
        *lost_p = oldest - 1 - after;
        after = oldest - 1;
    }
    for (uint64_t seq = after + 1; seq <= ring->last && n < max; seq++) {
        read_record(&share->names, &ring->at[seq % ring->n], seq, &out[n++]);
    }
    kvb_mutex_unlock(&shard->lock);
    return n;
}
