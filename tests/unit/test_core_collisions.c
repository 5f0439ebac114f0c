/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and lineages whose hashes are the same are still told apart: hashes only say where to look.
 * Nobody outside can find such keys, since the hashes are seeded; the test looks at the seed.
 */
#include "core_fixture.h"
#include "hash.h"
#include "shard.h"

#include <criterion/criterion.h>

#include <stdlib.h>

#define TRIES 400000u /* among so many, some 18 pairs have the same 32 bits */

struct hashed {
    uint32_t hash;
    uint32_t n;
};

static int by_hash(const void *a, const void *b)
{
    const struct hashed *x = a;
    const struct hashed *y = b;
    return (x->hash > y->hash) - (x->hash < y->hash);
}

/* Two numbers with the same hash. */
static void find_pair(uint32_t (*hash)(const struct shard *s, uint32_t n), const struct shard *s,
                      uint32_t pair[2])
{
    struct hashed *all = calloc(TRIES, sizeof *all);
    for (uint32_t i = 0; i < TRIES; i++) {
        all[i] = (struct hashed){.hash = hash(s, i + 1), .n = i + 1};
    }
    qsort(all, TRIES, sizeof *all, by_hash);
    uint32_t i = 1;
    while (i < TRIES && all[i].hash != all[i - 1].hash) {
        i++;
    }
    cr_assert(i < TRIES, "no pair among so many");
    pair[0] = all[i - 1].n;
    pair[1] = all[i].n;
    free(all);
}

static uint32_t hash_of_lineage(const struct shard *s, uint32_t n)
{
    return kvs_hash_lineage(s->core->seed, shard_lineage(n));
}

static struct kvs_core_key number_key(uint32_t *n)
{
    return (struct kvs_core_key){.block = {.data = (const uint8_t *)n, .len = sizeof *n}};
}

static uint32_t hash_of_block(const struct shard *s, uint32_t n)
{
    struct kvs_core_key key = number_key(&n);
    return kvs_hash_block(kvs_hash_where(s->core->seed, &s->where), key.block);
}

Test(core_collisions, lineages_with_one_hash_are_two)
{
    struct shard s;
    uint32_t pair[2];
    shard_init(&s, 16);
    find_pair(hash_of_lineage, &s, pair);
    s.where.lineage = shard_lineage(pair[0]);
    cr_assert_eq(shard_put(&s, "a", 0, 100), KVB_OK);
    s.where.lineage = shard_lineage(pair[1]);
    cr_assert(!shard_has(&s, "a", 0));
    cr_assert_eq(shard_put(&s, "b", 0, 100), KVB_OK);
    uint32_t scope = kvs_scope_find(s.core, &s.where);
    cr_assert(kvb_lineage_equal(scope_at(s.core, scope)->lineage, s.where.lineage));
    kvs_core_retire(s.core, shard_lineage(pair[0]));
    cr_assert(shard_has(&s, "b", 0), "another lineage was retired");
    cr_assert_eq(shard_put(&s, "c", 0, 100), KVB_OK, "another lineage was remembered");
    kvs_core_retire(s.core, shard_lineage(pair[1]));
    cr_assert_eq(shard_put(&s, "d", 0, 100), KVB_ERR_FENCED);
    cr_assert(kvs_core_validate(s.core) == NULL);
    shard_cleanup(&s);
}

Test(core_collisions, blocks_with_one_hash_are_two)
{
    struct shard s;
    uint32_t pair[2];
    shard_init(&s, 16);
    find_pair(hash_of_block, &s, pair);
    cr_assert_eq(shard_put_key(&s, number_key(&pair[0]), 100), KVB_OK);
    struct kvs_core_holder nobody = {0};
    cr_assert_eq(shard_ask_key(&s, number_key(&pair[1]), nobody).status, KVB_ERR_NOT_FOUND);
    cr_assert_eq(shard_put_key(&s, number_key(&pair[1]), 200), KVB_OK);
    cr_assert_eq(shard_ask_key(&s, number_key(&pair[0]), nobody).len, 100);
    cr_assert_eq(shard_ask_key(&s, number_key(&pair[1]), nobody).len, 200);
    /* Nor are they pieces of one block: the older one goes alone. */
    while (shard_stats(&s).evicted == 0) {
        static uint64_t n;
        cr_assert_eq(shard_put(&s, "fill", n++, KVS_CORE_PAGE), KVB_OK);
    }
    cr_assert(kvs_core_validate(s.core) == NULL);
    shard_cleanup(&s);
}
