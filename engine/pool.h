/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_POOL_H
#define ENGINE_POOL_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Paged blocks over a range of memory, with a prefix cache: a block whose holders are gone keeps
 * its bytes and can be found by its key until it is needed for something else (least recently
 * released first). The pool looks at no bytes. One thread.
 */
#define KVE_NO_BLOCK UINT32_MAX

struct kve_pool;

KVB_MUST_USE kvb_status_t kve_pool_create(void *base, uint32_t nblocks, size_t block_bytes,
                                          struct kve_pool **pool_p);
void kve_pool_destroy(struct kve_pool *pool);

unsigned char *kve_pool_bytes(const struct kve_pool *pool, uint32_t block);
uint64_t kve_pool_offset(const struct kve_pool *pool, uint32_t block);

/* Blocks that kve_pool_alloc() could give now: free, or cached and held by nobody. */
uint32_t kve_pool_available(const struct kve_pool *pool);
uint32_t kve_pool_held(const struct kve_pool *pool);   /* held by somebody */
uint32_t kve_pool_cached(const struct kve_pool *pool); /* to be found by key */

/* A block with one holder, in no cache. KVE_NO_BLOCK: all are held. */
uint32_t kve_pool_alloc(struct kve_pool *pool);
void kve_pool_hold(struct kve_pool *pool, uint32_t block);
void kve_pool_release(struct kve_pool *pool, uint32_t block);

/* Finds a cached block and holds it. KVE_NO_BLOCK: not there. */
uint32_t kve_pool_find(struct kve_pool *pool, uint64_t key);
/* Makes a held block findable. A key that is there already keeps its first block. */
void kve_pool_insert(struct kve_pool *pool, uint64_t key, uint32_t block);

/* Makes a block findable no more. */
void kve_pool_forget(struct kve_pool *pool, uint32_t block);

/* Empties the cache. Held blocks stay with their holders, but are found no more. */
void kve_pool_reset(struct kve_pool *pool);

#endif
