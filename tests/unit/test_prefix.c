/* SPDX-License-Identifier: Apache-2.0 */
#include "prefix.h"
#include "sim_sched.h"

#include <criterion/criterion.h>

#include <string.h>

/* What is there, and the longest usable prefix by trying every one. */
struct prompt {
    uint32_t ngroups;
    struct kvb_link_group_info infos[3];
    uint32_t nkeys[3];
    bool there[3][200];
};

static bool usable(const struct prompt *prompt, uint64_t tokens)
{
    for (uint32_t g = 0; g < prompt->ngroups; g++) {
        uint64_t block = prompt->infos[g].block_tokens;
        uint64_t window = prompt->infos[g].window_tokens;
        if (tokens % block != 0 || tokens / block > prompt->nkeys[g]) {
            return false;
        }
        for (uint64_t k = 0; k < tokens / block; k++) {
            bool needs = window == 0 || (k + 1) * block + window > tokens;
            if (needs && !prompt->there[g][k]) {
                return false;
            }
        }
    }
    return true;
}

static uint64_t longest(const struct prompt *prompt)
{
    uint64_t tokens = 200 * 96;
    while (!usable(prompt, tokens)) {
        tokens--;
    }
    return tokens;
}

static struct prompt make(uint64_t *rng)
{
    static const uint32_t blocks[] = {1, 16, 32, 48, 96};
    struct prompt prompt = {.ngroups = 1 + (uint32_t)(splitmix_next(rng) % 3)};
    for (uint32_t g = 0; g < prompt.ngroups; g++) {
        uint64_t holes = splitmix_next(rng) % 3; /* none, few, many */
        prompt.infos[g].block_tokens = blocks[splitmix_next(rng) % 5];
        prompt.infos[g].window_tokens =
            splitmix_next(rng) % 2 == 0 ? 0 : 1 + (uint32_t)(splitmix_next(rng) % 300);
        prompt.nkeys[g] = (uint32_t)(splitmix_next(rng) % 200);
        for (uint32_t k = 0; k < prompt.nkeys[g]; k++) {
            prompt.there[g][k] = holes == 0 || splitmix_next(rng) % (holes == 1 ? 40 : 4) != 0;
        }
    }
    return prompt;
}

/* Searches it, with at most `room` keys in a wave. Returns how many keys were asked for. */
static uint32_t search(const struct prompt *prompt, uint32_t room, uint32_t *hits)
{
    struct kvp_prefix prefix;
    uint32_t asked = 0;
    cr_assert_eq(kvp_prefix_init(&prefix, prompt->infos, prompt->nkeys, prompt->ngroups), KVB_OK);
    bool seen[3][200] = {{false}};
    while (kvp_prefix_next(&prefix, room)) {
        uint32_t wave = 0;
        for (uint32_t g = 0; g < prompt->ngroups; g++) {
            cr_assert_eq(kvp_prefix_hits(&prefix, g), 0, "not final");
            for (uint32_t k = 0; k < prefix.groups[g].asked; k++) {
                uint32_t key = prefix.groups[g].first + k;
                cr_assert_not(seen[g][key], "asked twice");
                seen[g][key] = true;
                kvp_prefix_tell(&prefix, g, key, prompt->there[g][key]);
            }
            wave += prefix.groups[g].asked;
        }
        cr_assert(wave > 0 && wave <= room);
        asked += wave;
    }
    for (uint32_t g = 0; g < prompt->ngroups; g++) {
        hits[g] = kvp_prefix_hits(&prefix, g);
    }
    kvp_prefix_cleanup(&prefix);
    return asked;
}

Test(prefix, what_is_found_is_the_longest_that_all_groups_can_use)
{
    uint64_t rng = sim_seed(1);
    for (int i = 0; i < 3000; i++) {
        struct prompt prompt = make(&rng);
        uint32_t hits[3];
        (void)search(&prompt, 1 + (uint32_t)(splitmix_next(&rng) % 50), hits);
        uint64_t tokens = longest(&prompt);
        for (uint32_t g = 0; g < prompt.ngroups; g++) {
            cr_assert_eq(hits[g] * (uint64_t)prompt.infos[g].block_tokens, tokens, "prompt %d", i);
        }
    }
}

Test(prefix, of_a_window_only_its_end_is_asked_for)
{
    struct prompt prompt = {.ngroups = 2, .infos = {{16, 0}, {32, 64}}, .nkeys = {100, 50}};
    memset(prompt.there[0], true, 60); /* 960 tokens */
    memset(prompt.there[1] + 20, true, 30);
    uint32_t hits[3];
    cr_assert_eq(search(&prompt, 1000, hits), 100 + 2);
    cr_assert_eq(hits[0], 60);
    cr_assert_eq(hits[1], 30);
}

Test(prefix, what_was_not_told_when_it_is_stopped_is_not_there)
{
    struct kvp_prefix prefix;
    struct kvb_link_group_info info = {.block_tokens = 16};
    uint32_t nkeys = 10;
    cr_assert_eq(kvp_prefix_init(&prefix, &info, &nkeys, 1), KVB_OK);
    cr_assert(kvp_prefix_next(&prefix, 4));
    for (uint32_t k = 0; k < 4; k++) {
        kvp_prefix_tell(&prefix, 0, k, true);
    }
    cr_assert(kvp_prefix_next(&prefix, 4));
    kvp_prefix_stop(&prefix);
    cr_assert_eq(kvp_prefix_hits(&prefix, 0), 4);
    kvp_prefix_cleanup(&prefix);
}

Test(prefix, blocks_without_a_common_measure_are_no_hit)
{
    struct kvp_prefix prefix;
    struct kvb_link_group_info infos[4] = {{1048573, 0}, {1048571, 0}, {1048559, 0}, {1048549, 0}};
    uint32_t nkeys[4] = {4096, 4096, 4096, 4096};
    cr_assert_eq(kvp_prefix_init(&prefix, infos, nkeys, 4), KVB_OK);
    cr_assert_not(kvp_prefix_next(&prefix, 10));
    cr_assert_eq(kvp_prefix_hits(&prefix, 0), 0);
    kvp_prefix_cleanup(&prefix);
}
