/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <criterion/criterion.h>

enum { BLOCKS = 4, BYTES = 64 };
static unsigned char memory[BLOCKS * BYTES];

static struct kve_pool *create(void)
{
    struct kve_pool *pool = NULL;

    cr_assert_eq(kve_pool_create(memory, BLOCKS, BYTES, &pool), KVB_OK);
    return pool;
}

Test(pool, every_block_is_given_once)
{
    struct kve_pool *pool = create();
    bool seen[BLOCKS] = {false};

    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t block = kve_pool_alloc(pool);
        cr_assert_lt(block, BLOCKS);
        cr_assert_not(seen[block]);
        seen[block] = true;
        cr_assert_eq(kve_pool_bytes(pool, block), memory + block * BYTES);
    }
    cr_assert_eq(kve_pool_alloc(pool), KVE_NO_BLOCK);
    cr_assert_eq(kve_pool_held(pool), BLOCKS);
    kve_pool_destroy(pool);
}

Test(pool, a_released_block_is_found_by_its_key_until_it_is_needed)
{
    struct kve_pool *pool = create();
    uint32_t first = kve_pool_alloc(pool);

    kve_pool_insert(pool, 77, first);
    kve_pool_release(pool, first);
    cr_assert_eq(kve_pool_held(pool), 0);
    cr_assert_eq(kve_pool_find(pool, 77), first);
    cr_assert_eq(kve_pool_find(pool, 78), KVE_NO_BLOCK);
    kve_pool_release(pool, first);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        cr_assert_neq(kve_pool_alloc(pool), KVE_NO_BLOCK);
    }
    cr_assert_eq(kve_pool_find(pool, 77), KVE_NO_BLOCK);
    cr_assert_eq(kve_pool_cached(pool), 0);
    kve_pool_destroy(pool);
}

Test(pool, a_held_block_is_not_given_away)
{
    struct kve_pool *pool = create();
    uint32_t kept = kve_pool_alloc(pool);

    kve_pool_insert(pool, 1, kept);
    kve_pool_release(pool, kept);
    cr_assert_eq(kve_pool_find(pool, 1), kept);
    for (uint32_t i = 0; i < BLOCKS - 1; i++) {
        cr_assert_neq(kve_pool_alloc(pool), kept);
    }
    cr_assert_eq(kve_pool_alloc(pool), KVE_NO_BLOCK);
    cr_assert_eq(kve_pool_find(pool, 1), kept);
    kve_pool_destroy(pool);
}

Test(pool, the_least_recently_released_goes_first_and_uncached_ones_before_it)
{
    struct kve_pool *pool = create();
    uint32_t block[BLOCKS];

    for (uint32_t i = 0; i < BLOCKS; i++) {
        block[i] = kve_pool_alloc(pool);
        if (i != 3) {
            kve_pool_insert(pool, i, block[i]);
        }
    }
    kve_pool_release(pool, block[1]);
    kve_pool_release(pool, block[0]);
    kve_pool_release(pool, block[2]);
    kve_pool_release(pool, block[3]);
    cr_assert_eq(kve_pool_alloc(pool), block[3]);
    cr_assert_eq(kve_pool_alloc(pool), block[1]);
    cr_assert_eq(kve_pool_alloc(pool), block[0]);
    cr_assert_eq(kve_pool_find(pool, 2), block[2]);
    kve_pool_destroy(pool);
}

Test(pool, the_first_block_of_a_key_stays)
{
    struct kve_pool *pool = create();
    uint32_t a = kve_pool_alloc(pool), b = kve_pool_alloc(pool);

    kve_pool_insert(pool, 9, a);
    kve_pool_insert(pool, 9, b);
    cr_assert_eq(kve_pool_cached(pool), 1);
    cr_assert_eq(kve_pool_find(pool, 9), a);
    kve_pool_destroy(pool);
}

Test(pool, after_a_reset_nothing_is_found_and_holders_keep_theirs)
{
    struct kve_pool *pool = create();
    uint32_t held = kve_pool_alloc(pool), idle = kve_pool_alloc(pool);

    kve_pool_insert(pool, 1, held);
    kve_pool_insert(pool, 2, idle);
    kve_pool_release(pool, idle);
    kve_pool_reset(pool);
    cr_assert_eq(kve_pool_find(pool, 1), KVE_NO_BLOCK);
    cr_assert_eq(kve_pool_find(pool, 2), KVE_NO_BLOCK);
    cr_assert_eq(kve_pool_held(pool), 1);
    cr_assert_eq(kve_pool_available(pool), BLOCKS - 1);
    for (uint32_t i = 0; i < BLOCKS - 1; i++) {
        cr_assert_neq(kve_pool_alloc(pool), held);
    }
    kve_pool_insert(pool, 1, held);
    cr_assert_eq(kve_pool_find(pool, 1), held, "a reset is no ban");
    kve_pool_destroy(pool);
}
