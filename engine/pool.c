/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include "pattern.h"

#include "base/assert.h"
#include "base/list.h"

#include <stdlib.h>

struct block {
    struct kvb_list link;  /* in `idle` while nobody holds it */
    struct kvb_list chain; /* in its bucket while cached */
    uint64_t key;
    uint32_t holders;
    bool cached;
};

struct kve_pool {
    unsigned char *base;
    size_t block_bytes;
    uint32_t nblocks;
    uint32_t held;
    uint32_t cached;
    uint32_t mask;        /* buckets - 1 */
    struct kvb_list idle; /* uncached in front, then least recently released first */
    struct kvb_list *buckets;
    struct block *blocks;
};

kvb_status_t kve_pool_create(void *base, uint32_t nblocks, size_t block_bytes,
                             struct kve_pool **pool_p)
{
    struct kve_pool *pool = calloc(1, sizeof *pool);
    uint32_t nbuckets = 1;

    kvb_assert(nblocks > 0 && nblocks < UINT32_MAX / 2);
    while (nbuckets < nblocks) {
        nbuckets *= 2;
    }
    if (pool == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    pool->buckets = malloc(nbuckets * sizeof *pool->buckets);
    pool->blocks = calloc(nblocks, sizeof *pool->blocks);
    if (pool->buckets == NULL || pool->blocks == NULL) {
        kve_pool_destroy(pool);
        return KVB_ERR_NO_MEMORY;
    }
    pool->base = base;
    pool->block_bytes = block_bytes;
    pool->nblocks = nblocks;
    pool->mask = nbuckets - 1;
    kvb_list_init(&pool->idle);
    for (uint32_t i = 0; i < nbuckets; i++) {
        kvb_list_init(&pool->buckets[i]);
    }
    for (uint32_t i = 0; i < nblocks; i++) {
        kvb_list_init(&pool->blocks[i].chain);
        kvb_list_push_back(&pool->idle, &pool->blocks[i].link);
    }
    *pool_p = pool;
    return KVB_OK;
}

void kve_pool_destroy(struct kve_pool *pool)
{
    if (pool != NULL) {
        free(pool->buckets);
        free(pool->blocks);
        free(pool);
    }
}

uint64_t kve_pool_offset(const struct kve_pool *pool, uint32_t block)
{
    kvb_assert(block < pool->nblocks);
    return (uint64_t)block * pool->block_bytes;
}

unsigned char *kve_pool_bytes(const struct kve_pool *pool, uint32_t block)
{
    return pool->base + kve_pool_offset(pool, block);
}

uint32_t kve_pool_available(const struct kve_pool *pool)
{
    return pool->nblocks - pool->held;
}

uint32_t kve_pool_held(const struct kve_pool *pool)
{
    return pool->held;
}

uint32_t kve_pool_cached(const struct kve_pool *pool)
{
    return pool->cached;
}

static void uncache(struct kve_pool *pool, struct block *block)
{
    if (block->cached) {
        kvb_list_remove(&block->chain);
        block->cached = false;
        pool->cached--;
    }
}

uint32_t kve_pool_alloc(struct kve_pool *pool)
{
    struct kvb_list *link = kvb_list_pop(&pool->idle);
    struct block *block;

    if (link == NULL) {
        return KVE_NO_BLOCK;
    }
    block = kvb_container_of(link, struct block, link);
    uncache(pool, block);
    block->holders = 1;
    pool->held++;
    return (uint32_t)(block - pool->blocks);
}

void kve_pool_hold(struct kve_pool *pool, uint32_t index)
{
    struct block *block = &pool->blocks[index];

    kvb_assert(index < pool->nblocks);
    if (block->holders++ == 0) {
        kvb_list_remove(&block->link);
        pool->held++;
    }
}

void kve_pool_release(struct kve_pool *pool, uint32_t index)
{
    struct block *block = &pool->blocks[index];

    kvb_assert(index < pool->nblocks && block->holders > 0);
    if (--block->holders > 0) {
        return;
    }
    pool->held--;
    if (block->cached) {
        kvb_list_push_back(&pool->idle, &block->link);
    } else {
        kvb_list_push_front(&pool->idle, &block->link);
    }
}

static struct block *lookup(const struct kve_pool *pool, uint64_t key)
{
    struct kvb_list *bucket = &pool->buckets[kve_mix64(key) & pool->mask];

    kvb_list_each(bucket, link)
    {
        struct block *block = kvb_container_of(link, struct block, chain);
        if (block->key == key) {
            return block;
        }
    }
    return NULL;
}

uint32_t kve_pool_find(struct kve_pool *pool, uint64_t key)
{
    const struct block *block = lookup(pool, key);
    uint32_t index;

    if (block == NULL) {
        return KVE_NO_BLOCK;
    }
    index = (uint32_t)(block - pool->blocks);
    kve_pool_hold(pool, index);
    return index;
}

void kve_pool_insert(struct kve_pool *pool, uint64_t key, uint32_t index)
{
    struct block *block = &pool->blocks[index];

    kvb_assert(index < pool->nblocks && block->holders > 0);
    if (block->cached || lookup(pool, key) != NULL) {
        return;
    }
    block->key = key;
    block->cached = true;
    pool->cached++;
    kvb_list_push_back(&pool->buckets[kve_mix64(key) & pool->mask], &block->chain);
}

void kve_pool_forget(struct kve_pool *pool, uint32_t index)
{
    kvb_assert(index < pool->nblocks);
    uncache(pool, &pool->blocks[index]);
}

void kve_pool_reset(struct kve_pool *pool)
{
    for (uint32_t i = 0; i < pool->nblocks; i++) {
        uncache(pool, &pool->blocks[i]);
    }
}
