/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/shape.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

static struct kvb_link_hello hello_of(uint32_t world, uint32_t tp, uint32_t store_tp)
{
    struct kvb_link_hello hello = {.world_size = world,
                                   .local_world_size = world,
                                   .tp_size = tp,
                                   .store_tp_size = store_tp,
                                   .block_tokens = 16,
                                   .layout = "model/fp16"};
    return hello;
}

static const char *layout_of(uint32_t world, uint32_t tp, uint32_t store_tp)
{
    static char layouts[8][KVB_LAYOUT_MAX];
    static unsigned next;
    struct kvb_link_hello hello = hello_of(world, tp, store_tp);
    struct kvp_shape shape;
    char reason[256];
    cr_assert_eq(kvp_shape_make(&hello, &shape, reason, sizeof reason), KVB_OK);
    char *layout = layouts[next++ % 8];
    cr_assert_eq(kvp_shape_layout(&hello, &shape, layout, KVB_LAYOUT_MAX, reason, sizeof reason),
                 KVB_OK);
    return layout;
}

Test(shape, engines_share_a_layout_if_and_only_if_their_parts_are_the_same_bytes)
{
    static const uint32_t splits[][4] = {/* world, tp, store_tp, which ones are alike */
                                         {1, 1, 0, 0}, {2, 2, 0, 1}, {4, 4, 0, 2}, {2, 1, 0, 3},
                                         {4, 2, 0, 4}, {1, 1, 2, 5}, {2, 2, 2, 5}, {1, 1, 4, 6},
                                         {2, 2, 4, 6}, {4, 4, 4, 6}, {4, 2, 4, 7}, {2, 1, 4, 7},
                                         {8, 4, 4, 7}, {1, 1, 1, 8}, {2, 0, 0, 1}, {4, 0, 4, 6}};
    const size_t n = sizeof splits / sizeof splits[0];
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n; k++) {
            char a[KVB_LAYOUT_MAX], b[KVB_LAYOUT_MAX];
            strcpy(a, layout_of(splits[i][0], splits[i][1], splits[i][2]));
            strcpy(b, layout_of(splits[k][0], splits[k][1], splits[k][2]));
            cr_assert_eq(strcmp(a, b) == 0, splits[i][3] == splits[k][3], "%s and %s", a, b);
        }
    }
    cr_assert_str_eq(layout_of(1, 1, 0), "model/fp16");
}

Test(shape, every_part_is_exactly_one_ranks)
{
    static const uint32_t splits[][3] = {{1, 1, 0}, {1, 1, 4}, {2, 2, 4}, {4, 2, 4},
                                         {8, 2, 6}, {4, 1, 3}, {3, 3, 0}};
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        struct kvb_link_hello hello = hello_of(splits[i][0], splits[i][1], splits[i][2]);
        struct kvp_shape shape;
        char reason[256];
        cr_assert_eq(kvp_shape_make(&hello, &shape, reason, sizeof reason), KVB_OK);
        uint32_t store = splits[i][2] == 0 ? splits[i][1] : splits[i][2];
        cr_assert_eq(shape.nparts, store * (splits[i][0] / splits[i][1]));
        for (uint32_t part = 0; part < shape.nparts + 3; part++) {
            uint32_t owners = 0;
            for (uint32_t rank = 0; rank < shape.world_size; rank++) {
                owners += kvp_shape_owns(&shape, rank, part);
            }
            cr_assert_eq(owners, part < shape.nparts, "part %u of split %zu", part, i);
        }
        /* and no rank reaches into another stage */
        for (uint32_t part = 0; part < shape.nparts; part++) {
            uint32_t rank = 0;
            while (!kvp_shape_owns(&shape, rank, part)) {
                rank++;
            }
            cr_assert_eq(rank / shape.tp_size, part / shape.store_tp_size);
        }
    }
}

Test(shape, what_does_not_fit_together_is_refused_with_what_to_change)
{
    static const struct {
        uint32_t world, tp, store_tp;
        const char *word;
    } splits[] = {{4, 3, 0, "tp_size does not divide"}, {2, 4, 0, "tp_size does not divide"},
                  {4, 4, 2, "multiple of tp_size"},     {4, 4, 6, "multiple of tp_size"},
                  {1, 1, 1025, "1024 parts"},           {2, 1, 1024, "1024 parts"},
                  {2, 1, 0x80000000u, "1024 parts"}};
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        struct kvb_link_hello hello = hello_of(splits[i].world, splits[i].tp, splits[i].store_tp);
        struct kvp_shape shape;
        char reason[256] = "";
        cr_assert_eq(kvp_shape_make(&hello, &shape, reason, sizeof reason), KVB_ERR_REFUSED);
        cr_assert_not_null(strstr(reason, splits[i].word), "%s", reason);
    }
}

Test(shape, a_layout_that_is_too_long_or_says_what_the_daemon_adds_is_refused)
{
    struct kvb_link_hello hello = hello_of(2, 2, 4);
    struct kvp_shape shape;
    char layout[KVB_LAYOUT_MAX], reason[256];
    cr_assert_eq(kvp_shape_make(&hello, &shape, reason, sizeof reason), KVB_OK);
    strcpy(hello.layout, "model@split(store_tp=4,pp=1)");
    cr_assert_eq(kvp_shape_layout(&hello, &shape, layout, sizeof layout, reason, sizeof reason),
                 KVB_ERR_REFUSED);
    const size_t added = strlen("@split(store_tp=4,pp=1)");
    for (size_t len = 200; len < KVB_LAYOUT_MAX; len++) {
        memset(hello.layout, 'x', len);
        hello.layout[len] = '\0';
        bool fits = len + added < KVB_LAYOUT_MAX;
        cr_assert_eq(kvp_shape_layout(&hello, &shape, layout, sizeof layout, reason, sizeof reason),
                     fits ? KVB_OK : KVB_ERR_REFUSED);
        cr_assert(!fits || strlen(layout) == len + added);
    }
}

Test(shape, without_groups_every_group_is_like_the_first)
{
    struct kvb_link_hello hello = hello_of(1, 1, 0);
    struct kvp_shape shape;
    char reason[256];
    cr_assert_eq(kvp_shape_make(&hello, &shape, reason, sizeof reason), KVB_OK);
    cr_assert_eq(kvp_shape_group(&shape, 7)->block_tokens, 16);
    cr_assert_eq(kvp_shape_group(&shape, 7)->window_tokens, 0);
    hello.ngroups = 2;
    hello.groups[1] = (struct kvb_link_group_info){32, 1024};
    cr_assert_eq(kvp_shape_make(&hello, &shape, reason, sizeof reason), KVB_OK);
    cr_assert_eq(kvp_shape_group(&shape, 1)->window_tokens, 1024);
    cr_assert_null(kvp_shape_group(&shape, 2));
}
