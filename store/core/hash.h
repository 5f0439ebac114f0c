/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_CORE_HASH_H
#define STORE_CORE_HASH_H

#include "base/id.h"
#include "base/wire.h"
#include "store/core.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/*
 * Hashes of the shard's tables. All are seeded with the shard's own random number, so that nobody
 * outside can choose keys that meet in one chain.
 */

static inline uint32_t kvs_hash_words(uint64_t seed, uint64_t a, uint64_t b)
{
    const uint64_t words[2] = {a, b};
    return (uint32_t)XXH3_64bits_withSeed(words, sizeof words, seed);
}

static inline uint32_t kvs_hash_lineage(uint64_t seed, struct kvb_lineage lineage)
{
    return kvs_hash_words(seed, lineage.id.hi, lineage.id.lo);
}

/* The seed of all block keys under one space and lineage. */
static inline uint64_t kvs_hash_where(uint64_t seed, const struct kvs_core_where *where)
{
    const uint64_t words[3] = {where->lineage.id.hi, where->lineage.id.lo, where->space};
    return XXH3_64bits_withSeed(words, sizeof words, seed);
}

static inline uint32_t kvs_hash_block(uint64_t salt, struct kvb_span block)
{
    return (uint32_t)XXH3_64bits_withSeed(block.data, block.len, salt);
}

#endif
