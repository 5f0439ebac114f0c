/* SPDX-License-Identifier: Apache-2.0 */
#include "rehearse_answer.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#define PROMPT_BLOCKS 3
#define PARTS         2

/* Three blocks of prompt, one of output, each of two parts; the last block was computed. */
static json_t *output(void)
{
    json_t *object = json_pack("{s:[i,i,i],s:i,s:i,s:i,s:[]}", "tokens", 7, 8, 9, "local_blocks", 0,
                               "store_blocks", 2, "computed_blocks", 1, "blocks");

    for (int block = 0; block < PROMPT_BLOCKS + 1; block++) {
        char hashes[PARTS][20];
        for (int part = 0; part < PARTS; part++) {
            snprintf(hashes[part], sizeof hashes[part], "%016x", 0xa0 + 16 * block + part);
        }
        json_array_append_new(json_object_get(object, "blocks"),
                              json_pack("[s,s]", hashes[0], hashes[1]));
    }
    return object;
}

static struct kve_answer parse(json_t *object)
{
    struct kve_answer answer = {0};
    const char *why = NULL;

    cr_assert_eq(kve_answer_parse(object, PROMPT_BLOCKS, PARTS, &answer, &why), KVB_OK, "%s", why);
    json_decref(object);
    return answer;
}

static void refused(json_t *object, const char *because)
{
    struct kve_answer answer = {.ntokens = 77};
    const char *why = "";

    cr_assert_eq(kve_answer_parse(object, PROMPT_BLOCKS, PARTS, &answer, &why), KVB_ERR_INVALID,
                 "%s", because);
    cr_assert_neq(strstr(why, because), NULL, "%s is not: %s", why, because);
    cr_assert_eq(answer.ntokens, 77, "an answer was written");
    json_decref(object);
}

Test(rehearse_answer, an_output_is_read_whole)
{
    struct kve_answer answer = parse(output());

    cr_assert_eq(answer.ntokens, 3);
    cr_assert_eq(answer.tokens[2], 9);
    cr_assert_eq(answer.prompt_blocks, PROMPT_BLOCKS);
    cr_assert_eq(answer.local, 0);
    cr_assert_eq(answer.store, 2);
    cr_assert_eq(answer.computed, 1);
    cr_assert_eq(answer.nblocks, PROMPT_BLOCKS + 1);
    cr_assert_eq(answer.nparts, PARTS);
    cr_assert_eq(answer.hashes[0], 0xa0);
    cr_assert_eq(answer.hashes[3 * PARTS + 1], 0xd1);
    kve_answer_cleanup(&answer);
}

Test(rehearse_answer, an_output_that_is_not_one_is_refused_with_what_is_wrong)
{
    static const char *const counts[] = {"local_blocks", "store_blocks", "computed_blocks"};
    static const char *const hashes[] = {"",
                                         "00000000000000a",
                                         "00000000000000a00",
                                         "0x000000000000a0",
                                         "00000000000000A0",
                                         "-0000000000000a0",
                                         "00000000000000a0z"};
    json_t *object;

    refused(json_null(), "no tokens");
    refused(json_object(), "no tokens");
    object = output();
    json_object_set_new(object, "tokens", json_array());
    refused(object, "no tokens");
    for (size_t i = 0; i < 3; i++) {
        object = output();
        json_object_del(object, counts[i]);
        refused(object, "do not make its prompt");
        object = output();
        json_object_set_new(object, counts[i], json_integer(3));
        refused(object, "do not make its prompt");
    }
    object = output();
    json_object_set_new(object, "store_blocks", json_integer(-1));
    json_object_set_new(object, "computed_blocks", json_integer(4));
    refused(object, "do not make its prompt");
    object = output();
    json_array_set_new(json_object_get(object, "tokens"), 1, json_string("8"));
    refused(object, "a token is no number");
    object = output();
    json_array_set_new(json_object_get(object, "tokens"), 1, json_integer(-8));
    refused(object, "a token is no number");
    object = output();
    json_array_remove(json_object_get(object, "blocks"), 0);
    json_array_remove(json_object_get(object, "blocks"), 0);
    refused(object, "fewer blocks");
    object = output();
    json_array_remove(json_array_get(json_object_get(object, "blocks"), 3), 1);
    refused(object, "as many parts");
    for (size_t i = 0; i < sizeof hashes / sizeof hashes[0]; i++) {
        object = output();
        json_array_set_new(json_array_get(json_object_get(object, "blocks"), 2), 1,
                           json_string(hashes[i]));
        refused(object, "16 hexadecimal digits");
    }
}

Test(rehearse_answer, the_same_is_the_same_wherever_it_came_from)
{
    struct kve_answer got = parse(output()), control = parse(output());
    struct kve_difference difference;

    control.store = 0;
    control.computed = PROMPT_BLOCKS;
    cr_assert(kve_answer_same(&got, &control, &difference));
    kve_answer_cleanup(&got);
    kve_answer_cleanup(&control);
}

Test(rehearse_answer, the_first_token_and_the_first_part_that_differ_are_named)
{
    for (uint32_t token = 0; token <= 3; token++) {
        for (uint32_t at = 0; at <= (PROMPT_BLOCKS + 1) * PARTS; at++) {
            struct kve_answer got = parse(output()), control = parse(output());
            struct kve_difference difference;
            bool same = token == 3 && at == (PROMPT_BLOCKS + 1) * PARTS;
            /* And all that follows. */
            for (uint32_t i = token; i < 3; i++) {
                got.tokens[i]++;
            }
            for (uint32_t i = at; i < (PROMPT_BLOCKS + 1) * PARTS; i++) {
                got.hashes[i] ^= 1;
            }
            cr_assert_eq(kve_answer_same(&got, &control, &difference), same);
            cr_assert_eq(difference.token, token == 3 ? KVE_NOWHERE : token);
            cr_assert_eq(difference.block,
                         at == (PROMPT_BLOCKS + 1) * PARTS ? KVE_NOWHERE : at / PARTS);
            cr_assert_eq(difference.part,
                         at == (PROMPT_BLOCKS + 1) * PARTS ? KVE_NOWHERE : at % PARTS);
            kve_answer_cleanup(&got);
            kve_answer_cleanup(&control);
        }
    }
}

Test(rehearse_answer, a_shorter_or_longer_output_differs_where_it_ends)
{
    for (int longer = 0; longer < 2; longer++) {
        struct kve_answer got = parse(output()), control = parse(output());
        struct kve_difference difference;
        struct kve_answer *shorter = longer ? &control : &got;

        shorter->ntokens = 2;
        shorter->nblocks = PROMPT_BLOCKS;
        cr_assert_not(kve_answer_same(&got, &control, &difference));
        cr_assert_eq(difference.token, 2);
        cr_assert_eq(difference.block, PROMPT_BLOCKS);
        cr_assert_eq(difference.part, 0);
        kve_answer_cleanup(&got);
        kve_answer_cleanup(&control);
    }
}

Test(rehearse_answer, a_wrong_part_is_known_by_the_weights_that_have_it_there)
{
    struct kve_answer got = parse(output()), other = parse(output());

    cr_assert(kve_answer_part_is(&got, &other, 1, 1));
    other.hashes[1 * PARTS + 1] = other.hashes[1 * PARTS];
    cr_assert_not(kve_answer_part_is(&got, &other, 1, 1));
    cr_assert(kve_answer_part_is(&got, &other, 1, 0));
    cr_assert_not(kve_answer_part_is(&got, &other, PROMPT_BLOCKS + 1, 0));
    cr_assert_not(kve_answer_part_is(&got, &(struct kve_answer){0}, 0, 0),
                  "weights that were never asked have nothing");
    kve_answer_cleanup(&got);
    kve_answer_cleanup(&other);
}

static struct kve_share share_of(uint32_t blocks, uint32_t store, uint32_t answers)
{
    const struct kve_answer answer = {
        .prompt_blocks = blocks, .store = store, .computed = blocks - store};
    struct kve_share share = {0};

    for (uint32_t i = 0; i < answers; i++) {
        kve_share_add(&share, &answer);
    }
    return share;
}

Test(rehearse_answer, hits_are_good_if_all_but_the_last_block_and_nine_tenths_came)
{
    struct kve_share share = share_of(16, 15, 4), none = {0}, half;

    cr_assert(kve_share_good(&share));
    cr_assert_eq(share.blocks, 64);
    cr_assert_eq(share.store, 60);
    cr_assert_not(kve_share_good(&none), "a run without hits");
    share = share_of(16, 0, 4);
    cr_assert_not(kve_share_good(&share));
    share = share_of(8, 7, 4);
    cr_assert_not(kve_share_good(&share), "less than 90 %%");
    share = share_of(10, 9, 1);
    cr_assert(kve_share_good(&share), "90 %%");
    /* One that computed two blocks among many that did not. */
    share = share_of(32, 31, 50);
    half = share_of(32, 30, 1);
    kve_share_add_all(&share, &half);
    cr_assert_eq(share.answers, 51);
    cr_assert_eq(share.incomplete, 1);
    cr_assert_not(kve_share_good(&share));
    share = share_of(16, 16, 4);
    cr_assert(kve_share_good(&share), "a prompt that does not end with its last whole block");
}
