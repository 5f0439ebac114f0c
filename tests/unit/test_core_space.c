/* SPDX-License-Identifier: Apache-2.0 */
#include "space.h"

#include "base/assert.h"

#include <criterion/criterion.h>

#define PAGE ((uint64_t)KVS_CORE_PAGE)

Test(core_space, no_length_from_64_bytes_up_wastes_more_than_an_eighth)
{
    struct kvs_space space;
    cr_assert_eq(kvs_space_init(&space, 64 * PAGE), KVB_OK);
    double waste = 0;
    uint64_t n = 0;
    for (uint64_t len = 1; len <= 3 * PAGE; len++) {
        struct kvs_plan plan;
        cr_assert(kvs_space_plan(&space, len, &plan));
        cr_assert(plan.bytes >= len && plan.nslots <= KVS_SLOTS_MAX);
        cr_assert(len < 64 ? plan.bytes == 64 : (plan.bytes - len) * 8 <= len, "length %d",
                  (int)len);
        for (uint32_t i = 1; i < plan.nslots; i++) {
            cr_assert(plan.classes[i] < plan.classes[i - 1], "slots of one value differ");
        }
        if (len >= 64 && len < PAGE) {
            waste += (double)(plan.bytes - len) / (double)len;
            n++;
        }
        if (len % PAGE == 0 || len == 16384 || len == 32768) {
            cr_assert_eq(plan.bytes, len);
        }
    }
    cr_assert(waste / (double)n < 0.033, "mean waste %f", waste / (double)n);
    kvs_space_cleanup(&space);
}

Test(core_space, a_value_that_can_never_fit_is_told_from_the_start)
{
    struct kvs_space space;
    struct kvs_plan plan;
    cr_assert_eq(kvs_space_init(&space, 2 * PAGE), KVB_OK);
    cr_assert(kvs_space_plan(&space, 2 * PAGE, &plan));
    /* One page and two slots would be three pages: it takes two whole ones. */
    cr_assert(kvs_space_plan(&space, PAGE + 40000, &plan));
    cr_assert(plan.npages == 2 && plan.nslots == 0);
    cr_assert(!kvs_space_plan(&space, 2 * PAGE + 1, &plan));
    kvs_space_cleanup(&space);
}

/* In a share in pieces, the longest runs at hand are taken, not the first pages. */
Test(core_space, pages_come_in_runs_where_there_are_runs)
{
    struct kvs_space space;
    struct kvs_plan one;
    struct kvs_plan many;
    static struct kvs_pieces pieces[512];
    struct kvs_extents extents;
    kvs_extents_init(&extents);
    cr_assert_eq(kvs_space_init(&space, 512 * PAGE), KVB_OK);
    cr_assert(kvs_space_plan(&space, PAGE, &one));
    cr_assert(kvs_space_plan(&space, 100 * PAGE, &many));
    for (uint32_t i = 0; i < 512; i++) {
        cr_assert_eq(kvs_space_take(&space, &one, i + 1, &pieces[i]), KVB_OK);
        kvs_space_lock(&space, &one, pieces[i], false);
    }
    /* Holes of one page every other page up to 8, then a run of 100. */
    for (uint32_t i = 0; i < 8; i += 2) {
        kvs_space_give(&space, &one, pieces[i]);
    }
    for (uint32_t i = 200; i < 300; i++) {
        kvs_space_give(&space, &one, pieces[i]);
    }
    struct kvs_pieces value;
    cr_assert_eq(kvs_space_take(&space, &many, 1000, &value), KVB_OK);
    cr_assert_eq(kvs_space_extents(&space, &many, value, 100 * PAGE, &extents), KVB_OK);
    cr_assert_eq(extents.n, 1);
    cr_assert_eq(extents.at[0].offset, 200 * PAGE);
    kvs_extents_cleanup(&extents);
    kvs_space_cleanup(&space);
}
