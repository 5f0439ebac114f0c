/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_REHEARSE_ANSWER_H
#define ENGINE_REHEARSE_ANSWER_H

#include "base/status.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

/*
 * The judge of a rehearsal with a model: what an engine generated, held against what the control
 * generated with the same weights. Pure: answers in, a verdict out.
 */

/* One output of the engines' command `generate` (control.h). */
struct kve_answer {
    uint32_t ntokens; /* generated; 0: there is no answer */
    uint32_t *tokens;
    /* Whole blocks of the prompt, and where their KV came from. */
    uint32_t prompt_blocks, local, store, computed;
    uint32_t nblocks, nparts; /* whole blocks of prompt and output, parts of each */
    uint64_t *hashes;         /* of every part, block by block */
};

/*
 * prompt_blocks, parts: how many it must have. INVALID: *why_p says what is wrong with it, a
 * constant text. NO_MEMORY. Cleaned up by the caller.
 */
KVB_MUST_USE kvb_status_t kve_answer_parse(const json_t *output, uint32_t prompt_blocks,
                                           uint32_t parts, struct kve_answer *answer_p,
                                           const char **why_p);
void kve_answer_cleanup(struct kve_answer *answer);

#define KVE_NOWHERE UINT32_MAX
struct kve_difference {
    uint32_t token;       /* the first that differs; KVE_NOWHERE: none does */
    uint32_t block, part; /* the first whose bytes differ; KVE_NOWHERE: none does */
};
/* True: every token and every block's every part is the same. Else the difference is filled. */
bool kve_answer_same(const struct kve_answer *got, const struct kve_answer *control,
                     struct kve_difference *difference_p);
/* The bytes of this part of got are those that `other` has there. */
bool kve_answer_part_is(const struct kve_answer *got, const struct kve_answer *other,
                        uint32_t block, uint32_t part);

/* What came from the store in reads that had to hit. */
struct kve_share {
    uint64_t answers, blocks; /* all of them, and all whole blocks of their prompts */
    uint64_t store;           /* those that came from the store */
    uint64_t incomplete;      /* answers that computed more than the prompt's last block */
};
void kve_share_add(struct kve_share *share, const struct kve_answer *answer);
void kve_share_add_all(struct kve_share *share, const struct kve_share *more);
/* There were some; each read all but its last block, and 90 % of all blocks came from the store. */
bool kve_share_good(const struct kve_share *share);

#endif
