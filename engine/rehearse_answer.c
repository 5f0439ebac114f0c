/* SPDX-License-Identifier: Apache-2.0 */
#include "rehearse_answer.h"

#include <stdlib.h>
#include <string.h>

#define SHARE_PERCENT 90 /* of the blocks of prompts that had to hit */

static bool number(const json_t *object, const char *name, uint32_t *number_p)
{
    const json_t *value = json_object_get(object, name);
    json_int_t n = json_integer_value(value);

    *number_p = (uint32_t)n;
    return json_is_integer(value) && n >= 0 && n < UINT32_MAX;
}

static bool hash(const json_t *value, uint64_t *hash_p)
{
    const char *text = json_string_value(value);

    if (text == NULL || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
        return false;
    }
    *hash_p = strtoull(text, NULL, 16);
    return true;
}

static const char *read_tokens(const json_t *list, struct kve_answer *answer)
{
    for (uint32_t i = 0; i < answer->ntokens; i++) {
        const json_t *token = json_array_get(list, i);
        if (!json_is_integer(token) || json_integer_value(token) < 0 ||
            json_integer_value(token) > UINT32_MAX) {
            return "a token is no number";
        }
        answer->tokens[i] = (uint32_t)json_integer_value(token);
    }
    return NULL;
}

static const char *read_blocks(const json_t *list, struct kve_answer *answer)
{
    for (uint32_t i = 0; i < answer->nblocks; i++) {
        const json_t *parts = json_array_get(list, i);
        if (json_array_size(parts) != answer->nparts) {
            return "a block has not as many parts as it should";
        }
        for (uint32_t k = 0; k < answer->nparts; k++) {
            if (!hash(json_array_get(parts, k), &answer->hashes[i * answer->nparts + k])) {
                return "the hash of a part is no 16 hexadecimal digits";
            }
        }
    }
    return NULL;
}

kvb_status_t kve_answer_parse(const json_t *output, uint32_t prompt_blocks, uint32_t parts,
                              struct kve_answer *answer_p, const char **why_p)
{
    const json_t *tokens = json_object_get(output, "tokens");
    const json_t *blocks = json_object_get(output, "blocks");
    struct kve_answer answer = {.prompt_blocks = prompt_blocks,
                                .ntokens = (uint32_t)json_array_size(tokens),
                                .nblocks = (uint32_t)json_array_size(blocks),
                                .nparts = parts};
    kvb_status_t status = KVB_ERR_INVALID;

    if (answer.ntokens == 0) {
        *why_p = "it has no tokens";
        return status;
    }
    if (!number(output, "local_blocks", &answer.local) ||
        !number(output, "store_blocks", &answer.store) ||
        !number(output, "computed_blocks", &answer.computed) ||
        (uint64_t)answer.local + answer.store + answer.computed != prompt_blocks) {
        *why_p = "its local, store and computed blocks do not make its prompt";
        return status;
    }
    if (answer.nblocks < prompt_blocks) {
        *why_p = "it has fewer blocks than its prompt";
        return status;
    }
    answer.tokens = calloc(answer.ntokens, sizeof *answer.tokens);
    answer.hashes = calloc((size_t)answer.nblocks * parts + 1, sizeof *answer.hashes);
    if (answer.tokens == NULL || answer.hashes == NULL) {
        *why_p = "out of memory";
        status = KVB_ERR_NO_MEMORY;
        goto err_cleanup;
    }
    *why_p = read_tokens(tokens, &answer);
    if (*why_p == NULL) {
        *why_p = read_blocks(blocks, &answer);
    }
    if (*why_p != NULL) {
        goto err_cleanup;
    }
    *answer_p = answer;
    return KVB_OK;

err_cleanup:
    kve_answer_cleanup(&answer);
    return status;
}

void kve_answer_cleanup(struct kve_answer *answer)
{
    free(answer->tokens);
    free(answer->hashes);
    *answer = (struct kve_answer){0};
}

/* ---- the verdict ---- */

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t first_token(const struct kve_answer *got, const struct kve_answer *control)
{
    uint32_t n = least(got->ntokens, control->ntokens);

    for (uint32_t i = 0; i < n; i++) {
        if (got->tokens[i] != control->tokens[i]) {
            return i;
        }
    }
    return got->ntokens == control->ntokens ? KVE_NOWHERE : n;
}

bool kve_answer_part_is(const struct kve_answer *got, const struct kve_answer *other,
                        uint32_t block, uint32_t part)
{
    return block < least(got->nblocks, other->nblocks) &&
           part < least(got->nparts, other->nparts) &&
           got->hashes[block * got->nparts + part] == other->hashes[block * other->nparts + part];
}

bool kve_answer_same(const struct kve_answer *got, const struct kve_answer *control,
                     struct kve_difference *difference_p)
{
    uint32_t nblocks = got->nblocks > control->nblocks ? got->nblocks : control->nblocks;
    uint32_t nparts = got->nparts > control->nparts ? got->nparts : control->nparts;

    *difference_p = (struct kve_difference){first_token(got, control), KVE_NOWHERE, KVE_NOWHERE};
    for (uint32_t i = 0; i < nblocks * nparts; i++) {
        if (!kve_answer_part_is(got, control, i / nparts, i % nparts)) {
            difference_p->block = i / nparts;
            difference_p->part = i % nparts;
            break;
        }
    }
    return difference_p->token == KVE_NOWHERE && difference_p->block == KVE_NOWHERE;
}

/* ---- hits ---- */

void kve_share_add(struct kve_share *share, const struct kve_answer *answer)
{
    share->answers++;
    share->blocks += answer->prompt_blocks;
    share->store += answer->store;
    share->incomplete += answer->store + 1 < answer->prompt_blocks;
}

void kve_share_add_all(struct kve_share *share, const struct kve_share *more)
{
    share->answers += more->answers;
    share->blocks += more->blocks;
    share->store += more->store;
    share->incomplete += more->incomplete;
}

bool kve_share_good(const struct kve_share *share)
{
    return share->blocks > 0 && share->incomplete == 0 &&
           share->store * 100 >= share->blocks * SHARE_PERCENT;
}
