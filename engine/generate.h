/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_GENERATE_H
#define ENGINE_GENERATE_H

#include "gather.h"

#include "engine.h"

/*
 * Computes by the model. Requests have prompts of tokens and go on by max_tokens more, greedily;
 * a block's key is a hash of all tokens up to its end. One step computes a batch of tokens of
 * whatever requests are running: pieces of prompts, or one more token of each.
 *
 * Rank 0 tells the others each batch and they all compute it at once, each with the lanes that it
 * holds; no rank begins another step before all have ended this one.
 */

/* What the model makes of the sizes that options leave open. INVALID: not a split that it has, or
 * an option that it does not have; why is printed. */
KVB_MUST_USE kvb_status_t kve_generate_options(struct kve_engine_options *options);

/* Before the engine has memory. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kve_generator_create(struct kve_engine *engine,
                                               struct kve_generator **generator_p);
void kve_generator_destroy(struct kve_generator *generator); /* NULL: nothing */

/* In another rank than 0: what it polls for reading (-1: nothing), and what it does when there is
 * something. DISCONNECTED, TIMEOUT: it cannot go on. */
int kve_generate_fd(const struct kve_engine *engine);
KVB_MUST_USE kvb_status_t kve_generate_follow(struct kve_engine *engine);

#endif
