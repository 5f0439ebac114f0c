/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Computes by the pattern: a block is "computed" by filling it with the bytes that the weights and
 * its key make, so that whoever reads it knows every byte it may see.
 */
#include "request.h"

#include "base/assert.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Blocks that one request computes in one step. */
#define BLOCKS_PER_STEP 8

/* ---- weights: the pattern of their id ---- */

static void write_weights(struct kve_engine *engine, uint64_t id)
{
    const struct kve_pattern_source source = {.tenant = engine->options.tenant,
                                              .layout = engine->layout,
                                              .weights = id,
                                              .key = "weights",
                                              .key_len = 7};

    kve_pattern_fill(&source, engine->weights.base + KVE_WEIGHTS_HEAD_BYTES,
                     engine->weights.len - KVE_WEIGHTS_HEAD_BYTES);
}

static void fingerprint(const struct kve_engine *engine, char out[40])
{
    uint64_t a = 0, b = 1;

    for (size_t offset = 0; offset + 8 <= engine->weights.len; offset += 8) {
        uint64_t word;
        memcpy(&word, engine->weights.base + offset, 8);
        a = kve_mix64(a + word);
        b = (b ^ word) * 0x9e3779b97f4a7c15u;
    }
    snprintf(out, 40, "fp-%016" PRIx64 "%016" PRIx64, a, kve_mix64(b));
}

/* ---- reading: checks ---- */

static void tell_story(const struct kve_request *request, uint32_t i, const char *where,
                       uint64_t weights, const struct kve_finding *finding)
{
    struct kve_engine *engine = request->engine;
    char whose[64] = "";

    if (engine->story[0] != '\0') {
        return;
    }
    if (finding->verdict == KVE_STALE) {
        snprintf(whose, sizeof whose, ", the bytes of weights %" PRIu64, finding->weights);
    } else if (finding->poison) {
        snprintf(whose, sizeof whose, ", nothing was ever written there");
    }
    snprintf(
        engine->story, sizeof engine->story,
        "%s: instance %s, request %" PRIu64 " (trace %" PRIu32 "), block %" PRIu32 " of %" PRIu32
        ", key b%016" PRIx64 ", read from %s, should be of weights %" PRIu64
        ": byte %zu is 0x%02x, expected 0x%02x, %zu of %zu bytes are wrong%s; kv_cache generation "
        "%" PRIu64 ", begun under token %016" PRIx64 ", now %016" PRIx64,
        kve_verdict_text(finding->verdict), engine->options.instance, request->number,
        request->index, i, request->nblocks, request->slots[i].key, where, weights, finding->offset,
        finding->got, finding->expected, finding->bad_bytes, kve_parts_bytes(&engine->options),
        whose, engine->kv_cache.generation, request->token.hi, kvplane_get_token(engine->kv).hi);
}

/* True: the bytes of this rank's part are right. */
static bool judge(struct kve_request *request, uint32_t i, const char *where)
{
    struct kve_engine *engine = request->engine;
    const struct kve_block_of what = kve_request_block(request, i);
    struct kve_finding finding;
    enum kve_verdict verdict = kve_parts_judge(engine, &what, &finding);

    if (engine->kv_cache.fd < 0) {
        where = "memory that is not mapped";
    }
    KVE_COUNT(request, blocks_checked, 1);
    if (verdict == KVE_GOOD) {
        return true;
    }
    KVE_COUNT(request, stale, verdict == KVE_STALE);
    KVE_COUNT(request, torn, verdict == KVE_TORN);
    tell_story(request, i, where, what.weights, &finding);
    return false;
}

/* ---- computing ---- */

static uint32_t missing(const struct kve_request *request)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < request->nblocks; i++) {
        n += request->slots[i].from == KVE_FROM_NOWHERE;
    }
    return n;
}

static void compute(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;
    uint64_t weights = kve_weights_held(engine);
    uint32_t half = (missing(request) + request->ncomputed + 1) / 2, done = 0;

    for (uint32_t i = 0; i < request->nblocks && done < BLOCKS_PER_STEP; i++) {
        struct kve_slot *slot = &request->slots[i];

        if (slot->from != KVE_FROM_NOWHERE) {
            continue;
        }
        if (request->stall && request->ncomputed >= half) {
            break;
        }
        slot->from = KVE_FROM_COMPUTE;
        slot->weights = weights;
        engine->blocks[done] = kve_request_block(request, i);
        kve_parts_fill(engine, &engine->blocks[done]);
        request->ncomputed++;
        done++;
        KVE_COUNT(request, computed, 1);
    }
    (void)kve_request_tell_ranks(request, KVE_RANK_FILL, done);
}

static void step(struct kve_request *request, bool *more_p)
{
    if (request->stall) {
        uint32_t before = request->ncomputed;
        compute(request);
        if (request->ncomputed > before) {
            *more_p = true;
        } else {
            kve_request_stall(request);
        }
        return;
    }
    compute(request);
    if (missing(request) == 0) {
        kve_request_finish(request);
    }
    *more_p = true;
}

const struct kve_computer kve_fill = {
    .write_weights = write_weights,
    .fingerprint = fingerprint,
    .step = step,
    .judge = judge,
};
