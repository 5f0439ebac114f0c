/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_CORE_TABLE_H
#define STORE_CORE_TABLE_H

#include "memory.h"

#include <stdint.h>

/*
 * A hash table of records by linear hashing: chains through the records, one 4-byte head per
 * bucket, and at most two buckets split per insert, so that it grows without ever being rebuilt.
 * Knows nothing of keys: the caller walks the chain of a hash and compares. Between 0.67 and 1.5
 * records per bucket: 0.75 on average.
 */
struct kvs_node { /* first in every record that is in a table */
    uint32_t next;
    uint32_t hash;
};

struct kvs_table {
    struct kvs_memory heads;
    char *base; /* of the records */
    uint32_t nbuckets;
    uint32_t level; /* power of two; level <= nbuckets < 2 * level */
    uint32_t count;
};

/* base: handle 1 lies at base + 8. */
KVB_MUST_USE kvb_status_t kvs_table_init(struct kvs_table *table, char *base, uint64_t max_records);
void kvs_table_cleanup(struct kvs_table *table);

void kvs_table_insert(struct kvs_table *table, uint32_t handle, uint32_t hash);
void kvs_table_remove(struct kvs_table *table, uint32_t handle);

static inline struct kvs_node *kvs_node_at(const struct kvs_table *table, uint32_t handle)
{
    return (struct kvs_node *)(void *)(table->base + (uint64_t)handle * 8);
}

static inline uint32_t *kvs_table_head(const struct kvs_table *table, uint32_t hash)
{
    uint32_t bucket = hash & (2 * table->level - 1);
    if (bucket >= table->nbuckets) {
        bucket &= table->level - 1;
    }
    return (uint32_t *)(void *)table->heads.base + bucket;
}

/* The record, or the one after it, in its chain, that has this hash; 0: none. */
static inline uint32_t kvs_table_next(const struct kvs_table *table, uint32_t handle, uint32_t hash)
{
    while (handle != 0 && kvs_node_at(table, handle)->hash != hash) {
        handle = kvs_node_at(table, handle)->next;
    }
    return handle;
}

/* Every record with this hash, one after the other. The current one may not be removed. */
#define kvs_table_each(table, wanted, handle)                                                      \
    for (uint32_t handle = kvs_table_next((table), *kvs_table_head((table), (wanted)), (wanted));  \
         (handle) != 0;                                                                            \
         (handle) = kvs_table_next((table), kvs_node_at((table), (handle))->next, (wanted)))

#endif
