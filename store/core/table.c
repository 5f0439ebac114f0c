/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include "base/assert.h"

#define BUCKETS_MIN 256u
#define SPLITS_MAX  2u /* per insert: enough to keep 4 buckets for 3 records */

kvb_status_t kvs_table_init(struct kvs_table *table, char *base, uint64_t max_records)
{
    uint64_t buckets = max_records / 3 * 4 + BUCKETS_MIN;
    if (buckets > 1u << 31) {
        buckets = 1u << 31;
    }
    *table = (struct kvs_table){.base = base, .nbuckets = BUCKETS_MIN, .level = BUCKETS_MIN};
    kvb_status_t status = kvs_memory_init(&table->heads, buckets * sizeof(uint32_t));
    if (status != KVB_OK) {
        return status;
    }
    if (!kvs_memory_grow(&table->heads, BUCKETS_MIN * sizeof(uint32_t))) {
        kvs_memory_cleanup(&table->heads);
        return KVB_ERR_NO_MEMORY;
    }
    return KVB_OK;
}

void kvs_table_cleanup(struct kvs_table *table)
{
    kvs_memory_cleanup(&table->heads);
}

/* One more bucket; it takes its records from the one bucket that had them so far. Without memory
 * for it the chains get longer, nothing else. */
static bool split(struct kvs_table *table)
{
    if (!kvs_memory_grow(&table->heads, ((size_t)table->nbuckets + 1) * sizeof(uint32_t))) {
        return false;
    }
    uint32_t *heads = (uint32_t *)(void *)table->heads.base;
    uint32_t added = table->nbuckets;
    uint32_t *from = &heads[added - table->level];
    uint32_t *to = &heads[added];
    uint32_t mask = 2 * table->level - 1;
    while (*from != 0) {
        uint32_t handle = *from;
        struct kvs_node *node = kvs_node_at(table, handle);
        if ((node->hash & mask) == added) {
            *from = node->next;
            *to = handle;
            to = &node->next;
        } else {
            from = &node->next;
        }
    }
    *to = 0;
    table->nbuckets++;
    if (table->nbuckets == 2 * table->level) {
        table->level *= 2;
    }
    return true;
}

void kvs_table_insert(struct kvs_table *table, uint32_t handle, uint32_t hash)
{
    table->count++;
    for (uint32_t i = 0; i < SPLITS_MAX; i++) {
        if ((uint64_t)table->count * 4 <= (uint64_t)table->nbuckets * 3 || !split(table)) {
            break;
        }
    }
    uint32_t *head = kvs_table_head(table, hash);
    struct kvs_node *node = kvs_node_at(table, handle);
    node->hash = hash;
    node->next = *head;
    *head = handle;
}

void kvs_table_remove(struct kvs_table *table, uint32_t handle)
{
    struct kvs_node *node = kvs_node_at(table, handle);
    uint32_t *at = kvs_table_head(table, node->hash);
    while (*at != handle) {
        kvb_assert(*at != 0);
        at = &kvs_node_at(table, *at)->next;
    }
    *at = node->next;
    kvb_assert(table->count > 0);
    table->count--;
}
