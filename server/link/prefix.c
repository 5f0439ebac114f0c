/* SPDX-License-Identifier: Apache-2.0 */
#include "prefix.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#define STEP_MAX (1ull << 40) /* tokens: no prompt is so long, and nothing overflows */

enum kvp_known { UNKNOWN, THERE, MISSING };

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void shorten(struct kvp_prefix *prefix, uint64_t tokens)
{
    prefix->tokens = tokens - tokens % prefix->step;
}

kvb_status_t kvp_prefix_init(struct kvp_prefix *prefix, const struct kvb_link_group_info *infos,
                             const uint32_t *nkeys, uint32_t ngroups)
{
    memset(prefix, 0, sizeof *prefix);
    prefix->ngroups = ngroups;
    prefix->step = 1;
    uint64_t tokens = STEP_MAX;
    for (uint32_t g = 0; g < ngroups; g++) {
        struct kvp_prefix_group *group = &prefix->groups[g];
        uint64_t block = infos[g].block_tokens;
        group->info = infos[g];
        group->nkeys = nkeys[g];
        group->known = calloc(nkeys[g] + 1, 1);
        if (group->known == NULL) {
            kvp_prefix_cleanup(prefix);
            return KVB_ERR_NO_MEMORY;
        }
        tokens = block * nkeys[g] < tokens ? block * nkeys[g] : tokens;
        if (prefix->step < STEP_MAX) {
            prefix->step *= block / common_divisor(prefix->step, block);
        }
    }
    shorten(prefix, tokens);
    return KVB_OK;
}

void kvp_prefix_cleanup(struct kvp_prefix *prefix)
{
    for (uint32_t g = 0; g < prefix->ngroups; g++) {
        free(prefix->groups[g].known);
        prefix->groups[g].known = NULL;
    }
}

/* Of a prefix of the present length, keys [*from_p, *to_p) are what the group needs. */
static void needed(const struct kvp_prefix *prefix, const struct kvp_prefix_group *group,
                   uint32_t *from_p, uint32_t *to_p)
{
    uint64_t window = group->info.window_tokens;
    uint64_t block = group->info.block_tokens;
    *from_p =
        window == 0 || window >= prefix->tokens ? 0 : (uint32_t)((prefix->tokens - window) / block);
    *to_p = (uint32_t)(prefix->tokens / block);
}

/* To before the first block that is missing of those needed: every prefix between that and the
 * present one needs it, too. */
static bool shortened(struct kvp_prefix *prefix)
{
    for (uint32_t g = 0; g < prefix->ngroups; g++) {
        const struct kvp_prefix_group *group = &prefix->groups[g];
        uint32_t from, to;
        needed(prefix, group, &from, &to);
        for (uint32_t key = from; key < to; key++) {
            if (group->known[key] == MISSING) {
                shorten(prefix, (uint64_t)key * group->info.block_tokens);
                return true;
            }
        }
    }
    return false;
}

/* The first run of keys that are needed and not known, from the front or from the back. */
static uint32_t ask(struct kvp_prefix *prefix, struct kvp_prefix_group *group, uint32_t room)
{
    uint32_t from, to;
    needed(prefix, group, &from, &to);
    if (group->info.window_tokens == 0) {
        while (from < to && group->known[from] != UNKNOWN) {
            from++;
        }
        group->asked = to - from < room ? to - from : room;
        group->first = from;
        return group->asked;
    }
    while (from < to && group->known[to - 1] != UNKNOWN) {
        to--;
    }
    while (group->asked < room && from < to && group->known[to - 1] == UNKNOWN) {
        to--;
        group->asked++;
    }
    group->first = to;
    return group->asked;
}

bool kvp_prefix_next(struct kvp_prefix *prefix, uint32_t room)
{
    uint32_t asked = 0;
    while (shortened(prefix)) {
    }
    for (uint32_t g = 0; g < prefix->ngroups; g++) {
        prefix->groups[g].asked = 0;
    }
    for (int windows = 0; windows < 2 && asked == 0; windows++) {
        for (uint32_t g = 0; g < prefix->ngroups && asked < room; g++) {
            if ((prefix->groups[g].info.window_tokens != 0) == (windows == 1)) {
                asked += ask(prefix, &prefix->groups[g], room - asked);
            }
        }
    }
    prefix->final = asked == 0;
    return asked > 0;
}

void kvp_prefix_stop(struct kvp_prefix *prefix)
{
    while (kvp_prefix_next(prefix, UINT32_MAX)) {
        for (uint32_t g = 0; g < prefix->ngroups; g++) {
            struct kvp_prefix_group *group = &prefix->groups[g];
            memset(group->known + group->first, MISSING, group->asked);
        }
    }
}

void kvp_prefix_tell(struct kvp_prefix *prefix, uint32_t group, uint32_t key, bool there)
{
    kvb_assert(key < prefix->groups[group].nkeys);
    prefix->groups[group].known[key] = there ? THERE : MISSING;
}

uint32_t kvp_prefix_hits(const struct kvp_prefix *prefix, uint32_t group)
{
    return prefix->final ? (uint32_t)(prefix->tokens / prefix->groups[group].info.block_tokens) : 0;
}
