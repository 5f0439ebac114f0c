/* SPDX-License-Identifier: Apache-2.0 */
#include "generate.h"

#include "request.h"

#include "base/assert.h"

#include <xxhash.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kve_generation {
    uint32_t nprompt; /* tokens of the prompt */
    uint32_t ntokens; /* and those that came after it */
    uint32_t most;    /* so many there are to be */
    uint32_t done;    /* tokens whose KV is there */
    bool started;     /* `done` counts what was found */
    uint16_t tokens[];
};

struct kve_generator {
    struct kve_model *model;
    struct kve_gather *gather; /* NULL: one rank */
    struct kve_batch *batch;
    struct kve_request *of[KVE_BATCH_SPANS]; /* whose span it is */
    uint16_t next[KVE_BATCH_SPANS];
    struct kve_request *wanting; /* the oldest that found no free block in this turn */
    uint64_t *hashes;            /* of parts of blocks, of every rank */
};

/* ---- of one engine ---- */

static kvb_status_t gather_floats(void *arg, void *all, size_t bytes)
{
    struct kve_generator *generator = arg;

    return kve_gather_all(generator->gather, KVB_OK, all, bytes);
}

kvb_status_t kve_generator_create(struct kve_engine *engine, struct kve_generator **generator_p)
{
    const struct kve_engine_options *options = &engine->options;
    struct kve_generator *generator = calloc(1, sizeof *generator);
    size_t parts = options->store_tp == 0 ? options->tp : options->store_tp;
    kvb_status_t status = KVB_ERR_NO_MEMORY;

    if (generator == NULL) {
        return status;
    }
    generator->gather = options->gather;
    generator->batch = calloc(1, sizeof *generator->batch);
    generator->hashes = calloc(KVE_MODEL_CONTEXT_BLOCKS * parts, sizeof *generator->hashes);
    if (generator->batch != NULL && generator->hashes != NULL) {
        status = kve_model_create(options->rank, options->tp, gather_floats, generator,
                                  &generator->model);
    }
    if (status != KVB_OK) {
        kve_generator_destroy(generator);
        return status;
    }
    *generator_p = generator;
    return KVB_OK;
}

void kve_generator_destroy(struct kve_generator *generator)
{
    if (generator != NULL) {
        kve_model_destroy(generator->model);
        free(generator->batch);
        free(generator->hashes);
        free(generator);
    }
}

kvb_status_t kve_generate_options(struct kve_engine_options *options)
{
    uint32_t store_tp = options->store_tp == 0 ? options->tp : options->store_tp;

    if (options->block_bytes != 0 || options->weights_bytes != 0) {
        fprintf(stderr, "kvplane engine: with --model, the model says how many bytes there are\n");
        return KVB_ERR_INVALID;
    }
    if (options->pp != 1 || KVE_MODEL_LANES % options->tp != 0 || KVE_MODEL_LANES % store_tp != 0) {
        fprintf(stderr, "kvplane engine: with --model, --tp and --store-tp are 1, 2 or 4 and --pp "
                        "is 1\n");
        return KVB_ERR_INVALID;
    }
    options->block_bytes = kve_model_block_bytes(KVE_MODEL_LANES);
    options->weights_bytes = KVE_WEIGHTS_HEAD_BYTES + kve_model_weights_bytes(options->tp);
    return KVB_OK;
}

static void *weights_of(const struct kve_engine *engine)
{
    return engine->weights.base + KVE_WEIGHTS_HEAD_BYTES;
}

static void write_weights(struct kve_engine *engine, uint64_t id)
{
    kve_model_generate(engine->generator->model, id, weights_of(engine));
}

static void fingerprint(const struct kve_engine *engine, char out[40])
{
    kve_model_fingerprint(engine->generator->model, weights_of(engine), out);
}

/* ---- a batch, in every rank ---- */

static size_t size_of(const struct kve_batch *batch)
{
    return offsetof(struct kve_batch, blocks) + batch->nblocks * sizeof batch->blocks[0];
}

static void clear(struct kve_batch *batch)
{
    batch->nspans = batch->ntokens = batch->nblocks = 0;
}

/* What keeps this rank from computing. */
static kvb_status_t ready(const struct kve_engine *engine)
{
    return engine->kv_cache.fd >= 0 && kve_weights_held(engine) != 0 ? KVB_OK : KVB_ERR_BAD_STATE;
}

/* Hashes of this rank's parts of the batch's blocks, and those of the others. */
static kvb_status_t hash_blocks(struct kve_engine *engine)
{
    struct kve_generator *generator = engine->generator;
    const struct kve_batch *batch = generator->batch;
    uint32_t parts = kve_parts(&engine->options);
    size_t n = (size_t)batch->nblocks * parts;
    uint64_t *mine = generator->hashes + engine->options.rank * n;

    for (uint32_t i = 0; i < batch->nblocks; i++) {
        for (uint32_t j = 0; j < parts; j++) {
            mine[i * parts + j] = kve_parts_hash(engine, batch->blocks[i], j);
        }
    }
    return generator->gather == NULL
               ? KVB_OK
               : kve_gather_all(generator->gather, KVB_OK, generator->hashes, n * sizeof *mine);
}

/* A batch without spans: hashes of its blocks are wanted. */
static kvb_status_t compute_batch(struct kve_engine *engine)
{
    struct kve_generator *generator = engine->generator;
    struct kve_batch *batch = generator->batch;
    kvb_status_t status = ready(engine);
    uint8_t nothing[KVE_MODEL_LANES];

    if (generator->gather != NULL) {
        status = kve_gather_all(generator->gather, status, nothing, 1);
    }
    if (status != KVB_OK) {
        return status;
    }
    return batch->nspans == 0
               ? hash_blocks(engine)
               : kve_model_forward(generator->model, weights_of(engine), engine->kv_cache.base,
                                   batch, engine->options.rank == 0 ? generator->next : NULL);
}

static kvb_status_t compute_on_all(struct kve_engine *engine)
{
    struct kve_generator *generator = engine->generator;
    kvb_status_t status = KVB_OK;

    if (generator->gather != NULL) {
        status = kve_gather_tell(generator->gather, generator->batch, size_of(generator->batch));
    }
    return status == KVB_OK ? compute_batch(engine) : status;
}

int kve_generate_fd(const struct kve_engine *engine)
{
    return engine->options.gather == NULL ? -1 : engine->options.gather->fds[0];
}

static bool gone(kvb_status_t status)
{
    return status != KVB_OK && status != KVB_ERR_BAD_STATE;
}

kvb_status_t kve_generate_follow(struct kve_engine *engine)
{
    struct kve_generator *generator = engine->generator;
    size_t len;
    kvb_status_t status =
        kve_gather_hear(generator->gather, generator->batch, sizeof *generator->batch, &len);

    if (status == KVB_OK) {
        status = compute_batch(engine);
    }
    clear(generator->batch);
    return gone(status) ? status : KVB_OK; /* else rank 0 knows, too */
}

/* ---- a request ---- */

static uint32_t blocks_of(uint32_t tokens)
{
    return (tokens + KVE_MODEL_BLOCK_TOKENS - 1) / KVE_MODEL_BLOCK_TOKENS;
}

static void begin(struct kve_request *request)
{
    struct kve_generation *generation = request->generation;

    generation->ntokens = generation->nprompt;
    generation->done = 0;
    generation->started = false;
    request->nblocks = blocks_of(generation->nprompt);
}

/* Goes on behind what was found. What was found behind a gap is computed too. */
static void start(struct kve_request *request)
{
    struct kve_generation *generation = request->generation;
    uint32_t n = 0;

    while (n < request->nblocks && request->slots[n].from != KVE_FROM_NOWHERE) {
        n++;
    }
    generation->done = n * KVE_MODEL_BLOCK_TOKENS;
    generation->started = true;
}

/* False: a block is missing, and there is none. */
static bool find_blocks(struct kve_request *request, uint32_t tokens)
{
    while (request->nblocks < blocks_of(tokens)) {
        uint32_t block = kve_pool_alloc(request->engine->pool);
        if (block == KVE_NO_BLOCK) {
            return false;
        }
        request->slots[request->nblocks++].block = block;
    }
    return true;
}

static void step(struct kve_request *request, bool *more_p)
{
    struct kve_engine *engine = request->engine;
    struct kve_generator *generator = engine->generator;
    struct kve_generation *generation = request->generation;
    struct kve_batch *batch = generator->batch;

    if (!generation->started) {
        start(request);
    }
    if (request->stall &&
        2 * (generation->ntokens - generation->nprompt) >= generation->most - generation->nprompt) {
        kve_request_stall(request);
        return;
    }
    uint32_t room = KVE_BATCH_TOKENS - batch->ntokens;
    uint32_t n = generation->ntokens - generation->done;
    n = n < room ? n : room;
    (void)more_p; /* the turn says so */
    if (n == 0 || batch->nspans == KVE_BATCH_SPANS) {
        return; /* in another turn */
    }
    if (!find_blocks(request, generation->done + n)) {
        if (generator->wanting == NULL) {
            generator->wanting = request;
        }
        return;
    }
    generator->of[batch->nspans] = request;
    batch->spans[batch->nspans++] = (struct kve_span){
        .first = generation->done, .n = n, .token_at = batch->ntokens, .block_at = batch->nblocks};
    memcpy(batch->tokens + batch->ntokens, generation->tokens + generation->done,
           n * sizeof batch->tokens[0]);
    batch->ntokens += n;
    for (uint32_t i = 0; i < blocks_of(generation->done + n); i++) {
        batch->blocks[batch->nblocks++] = request->slots[i].block;
    }
}

/* ---- what comes of it ---- */

/* The key of block i, whose tokens are known. */
static void name_block(struct kve_request *request, uint32_t i)
{
    const uint16_t *tokens = request->generation->tokens + i * KVE_MODEL_BLOCK_TOKENS;
    uint64_t before = i == 0 ? 0 : request->slots[i - 1].key;

    request->slots[i].key =
        XXH3_64bits_withSeed(tokens, KVE_MODEL_BLOCK_TOKENS * sizeof *tokens, before);
}

static json_t *hashes_json(struct kve_engine *engine)
{
    const struct kve_generator *generator = engine->generator;
    uint32_t parts = kve_parts(&engine->options), nblocks = generator->batch->nblocks;
    json_t *blocks = json_array();

    for (uint32_t i = 0; i < nblocks; i++) {
        json_t *block = json_array();
        for (uint32_t rank = 0; rank < engine->options.tp; rank++) {
            for (uint32_t j = 0; j < parts; j++) {
                char text[20];
                snprintf(text, sizeof text, "%016" PRIx64,
                         generator->hashes[(rank * nblocks + i) * parts + j]);
                (void)json_array_append_new(block, json_string(text));
            }
        }
        (void)json_array_append_new(blocks, block);
    }
    return blocks;
}

/* What the asker is told. NULL: no memory. */
static json_t *output_of(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;
    const struct kve_generation *generation = request->generation;
    json_t *tokens = json_array();
    uint32_t from[KVE_FROM_COMPUTE + 1] = {0};

    for (uint32_t i = generation->nprompt; i < generation->ntokens; i++) {
        (void)json_array_append_new(tokens, json_integer(generation->tokens[i]));
    }
    for (uint32_t i = 0; i < request->nprompt; i++) {
        from[request->slots[i].from]++;
    }
    return json_pack("{s:o,s:i,s:i,s:i,s:o}", "tokens", tokens, "local_blocks",
                     (int)from[KVE_FROM_CACHE], "store_blocks", (int)from[KVE_FROM_STORE],
                     "computed_blocks", (int)from[KVE_FROM_COMPUTE], "blocks", hashes_json(engine));
}

static kvb_status_t finish(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;
    struct kve_batch *batch = engine->generator->batch;
    const struct kve_generation *generation = request->generation;
    kvb_status_t status;

    clear(batch);
    for (uint32_t i = 0; i < generation->done / KVE_MODEL_BLOCK_TOKENS; i++) {
        batch->blocks[batch->nblocks++] = request->slots[i].block;
    }
    status = compute_on_all(engine);
    if (status == KVB_OK) {
        int failed = json_array_set_new(request->run->outputs, request->index, output_of(request));
        KVE_COUNT(request, errors, failed != 0);
        KVE_COUNT(request, tokens, generation->ntokens - generation->nprompt);
        kve_request_finish(request);
    }
    return status;
}

/* The step has computed n more of its tokens; `next` follows the last of them. */
static void advance(struct kve_request *request, uint32_t n, uint16_t next)
{
    struct kve_generation *generation = request->generation;
    uint64_t weights = kve_weights_held(request->engine);

    generation->done += n;
    for (uint32_t i = (generation->done - n) / KVE_MODEL_BLOCK_TOKENS;
         i < generation->done / KVE_MODEL_BLOCK_TOKENS; i++) {
        name_block(request, i);
        request->slots[i].from = KVE_FROM_COMPUTE;
        request->slots[i].weights = weights;
        request->ncomputed++;
        KVE_COUNT(request, computed, i < request->nprompt);
    }
    if (generation->done == generation->ntokens) {
        generation->tokens[generation->ntokens++] = next;
    }
}

/* The youngest request that still computes or loads gives its blocks to the one that wants some.
 * True: something has changed. */
static bool make_room(struct kve_engine *engine, struct kve_request *wanting)
{
    struct kve_request *youngest = NULL;
    uint32_t n = 0;

    kvb_list_each(&engine->active, link)
    {
        struct kve_request *request = kvb_container_of(link, struct kve_request, link);
        if (kve_request_finished(request) || request->dead || request->again) {
            continue;
        }
        n++;
        if (youngest == NULL || request->number > youngest->number) {
            youngest = request;
        }
    }
    if (n < 2) {
        return false; /* puts hold the rest: they end */
    }
    kve_request_preempt(youngest);
    if (youngest != wanting) {
        (void)find_blocks(wanting, wanting->generation->done + 1); /* before anybody begins */
    }
    return true;
}

static void turn(struct kve_engine *engine, bool *more_p)
{
    struct kve_generator *generator = engine->generator;
    struct kve_batch *batch = generator->batch;
    const uint32_t nspans = batch->nspans;
    kvb_status_t status;

    kvb_assert(nspans == 0 || engine->options.rank == 0); /* others follow */
    status = nspans == 0 ? KVB_OK : compute_on_all(engine);
    for (uint32_t i = 0; i < nspans && status == KVB_OK; i++) {
        advance(generator->of[i], batch->spans[i].n, generator->next[i]);
    }
    for (uint32_t i = 0; i < nspans; i++) {
        struct kve_request *request = generator->of[i];
        if (status == KVB_OK && request->generation->ntokens == request->generation->most) {
            status = finish(request);
        }
        if (status == KVB_ERR_BAD_STATE) {
            KVE_COUNT(request, errors, 1); /* resumed although another rank has no memory */
            kve_request_abort(request);
        }
    }
    if (gone(status)) {
        fprintf(stderr, "engine %s: another rank is gone: %s\n", engine->options.instance,
                kvb_status_text(status));
        engine->broken = true;
    }
    bool room = generator->wanting != NULL && make_room(engine, generator->wanting);
    generator->wanting = NULL;
    clear(batch);
    *more_p = *more_p || nspans > 0 || room;
}

const struct kve_computer kve_generate = {
    .write_weights = write_weights,
    .fingerprint = fingerprint,
    .begin = begin,
    .step = step,
    .turn = turn,
};

/* ---- asking ---- */

static bool fits(const struct kve_engine *engine, const json_t *prompt, uint32_t max_tokens)
{
    size_t n = json_array_size(prompt), i;
    const json_t *token;

    if (n == 0 || max_tokens == 0 || n > KVE_MODEL_CONTEXT || max_tokens > KVE_MODEL_CONTEXT - n ||
        blocks_of((uint32_t)n + max_tokens) > engine->options.nblocks) {
        return false;
    }
    json_array_foreach(prompt, i, token)
    {
        if (!json_is_integer(token) || json_integer_value(token) < 0 ||
            json_integer_value(token) >= KVE_MODEL_VOCAB) {
            return false;
        }
    }
    return true;
}

static struct kve_request *ask(struct kve_engine *engine, struct kve_run *run,
                               struct kvb_list *fresh, uint32_t index, const json_t *prompt,
                               uint32_t max_tokens)
{
    uint32_t n = (uint32_t)json_array_size(prompt);
    struct kve_request *request =
        kve_request_create(engine, run, fresh, index, blocks_of(n + max_tokens));

    if (request == NULL) {
        return NULL;
    }
    request->generation = calloc(1, sizeof *request->generation +
                                        (n + max_tokens) * sizeof request->generation->tokens[0]);
    if (request->generation == NULL) {
        return NULL;
    }
    request->generation->nprompt = n;
    request->generation->most = n + max_tokens;
    for (uint32_t i = 0; i < n; i++) {
        request->generation->tokens[i] = (uint16_t)json_integer_value(json_array_get(prompt, i));
    }
    request->nblocks = blocks_of(n);
    request->nprompt = n / KVE_MODEL_BLOCK_TOKENS;
    request->nfindable = (n - 1) / KVE_MODEL_BLOCK_TOKENS; /* the last token is always computed */
    for (uint32_t i = 0; i < request->nprompt; i++) {
        name_block(request, i);
    }
    return request;
}

kvb_status_t kve_engine_generate(struct kve_engine *engine, const json_t *prompts,
                                 uint32_t max_tokens, bool use_cache, bool stall, kve_run_fn done,
                                 kve_run_fn stalled_fn, void *arg, struct kve_run **run_p)
{
    uint32_t n = (uint32_t)json_array_size(prompts);
    struct kve_run *run;
    struct kvb_list fresh;

    if (engine->generator == NULL || n == 0) {
        return KVB_ERR_INVALID;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!fits(engine, json_array_get(prompts, i), max_tokens)) {
            return KVB_ERR_INVALID;
        }
    }
    run = kve_run_create(done, stalled_fn, arg);
    if (run == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    run->outputs = json_array();
    kvb_list_init(&fresh);
    for (uint32_t i = 0; i < n; i++) {
        struct kve_request *request =
            ask(engine, run, &fresh, i, json_array_get(prompts, i), max_tokens);
        if (request == NULL || json_array_append_new(run->outputs, json_null()) != 0) {
            kve_run_drop(run, &fresh);
            return KVB_ERR_NO_MEMORY;
        }
        request->use_cache = use_cache;
        request->stall = stall;
    }
    kve_run_start(engine, run, &fresh);
    *run_p = run;
    return KVB_OK;
}
