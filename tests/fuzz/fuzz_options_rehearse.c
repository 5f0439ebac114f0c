/* SPDX-License-Identifier: Apache-2.0 */
#include "rehearse.c" /* instead of the library's */

#include "base/assert.h"

bool fuzz_rehearse_options(int argc, char **argv);

bool fuzz_rehearse_options(int argc, char **argv)
{
    struct kve_rehearsal r = {.play = &kve_play_trace,
                              .requests = 600,
                              .slow = 1,
                              .block_bytes = KVE_BLOCK_BYTES,
                              .nmembers = KVE_MEMBERS,
                              .nstores = KVE_STORES};
    if (!kve_options_parse("kvplane rehearse", options, SET_COUNT, argc, argv, take, &r)) {
        return false;
    }
    int code = r.fault != NULL && strcmp(r.fault, "list") != 0 ? -1 : choose_fault(r.fault);
    code = code < 0 ? choose_happening(&r) : code;
    code = code < 0 ? choose_play(&r) : code;
    kvb_assert(code != 1);
    if (code < 0) {
        kvb_assert(r.steps > 0 && r.steps <= 10000 && r.requests > 0 && r.slow > 0);
        kvb_assert(r.prompts <= PROMPTS_MAX && r.prompt_tokens >= PROMPT_TOKENS_MIN);
        kvb_assert(r.prompt_tokens + r.max_tokens <= KVE_MODEL_CONTEXT);
        kvb_assert(r.nmembers % 2 == 1 && r.nstores > 0 && r.nstores <= KVE_STORES);
        kvb_assert(kve_rehearse_bound(&r, 300000) >= 300000);
    }
    return code < 0;
}
