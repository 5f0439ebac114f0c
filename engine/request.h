/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

#include "ranks.h"

/*
 * Between the life of a request (request.c) and what computes for it (fill.c, generate.c).
 */
/* n is evaluated twice. */
#define KVE_COUNT(request, counter, n)                                                             \
    do {                                                                                           \
        (request)->engine->counts.counter += (n);                                                  \
        (request)->run->counts.counter += (n);                                                     \
    } while (0)

struct kve_block_of kve_request_block(const struct kve_request *request, uint32_t i);
/* The other ranks do the same with their parts of the engine's n scratch blocks. False: no memory,
 * counted. */
bool kve_request_tell_ranks(struct kve_request *request, enum kve_rank_command command, uint32_t n);
/* It has computed what it was to compute before the next resume. */
void kve_request_stall(struct kve_request *request);
/* Everything is computed: what is full is left to the cache and put. */
void kve_request_finish(struct kve_request *request);
/* As a pause of mode abort ends it; freed, maybe its run too. It must not be in a transfer. */
void kve_request_abort(struct kve_request *request);
/* Gives all of its blocks back and will be computed anew; if it is in a transfer, when that has
 * ended. */
void kve_request_preempt(struct kve_request *request);
/* It has nothing left to compute, and is not aborted. */
bool kve_request_finished(const struct kve_request *request);

/* A run of requests that are made one by one, none of them begun. NULL: no memory. */
struct kve_run *kve_run_create(kve_run_fn done, kve_run_fn stalled_fn, void *arg);
/* One of nslots blocks at most, added to `fresh`. NULL: no memory. */
struct kve_request *kve_request_create(struct kve_engine *engine, struct kve_run *run,
                                       struct kvb_list *fresh, uint32_t index, uint32_t nslots);
void kve_run_start(struct kve_engine *engine, struct kve_run *run, struct kvb_list *fresh);
void kve_run_drop(struct kve_run *run, struct kvb_list *fresh); /* instead of starting it */

#endif
