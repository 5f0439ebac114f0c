/* SPDX-License-Identifier: Apache-2.0 */
#include "generate.h"
#include "ranks.h"

#include "base/assert.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const kve_miss_names[KVE_MISS_COUNT] = {
#define X(name, number) #name,
    KVE_MISSES(X)
#undef X
};

/* ---- results ---- */

json_t *kve_counts_json(const struct kve_counts *counts)
{
    json_t *object = json_object(), *missed = json_object();
    int failed = object == NULL || missed == NULL;

#define X(name)                                                                                    \
    failed |= json_object_set_new(object, #name, json_integer((json_int_t)counts->name));
    KVE_COUNTERS(X)
#undef X
    for (size_t i = 0; i < KVE_MISS_COUNT; i++) {
        failed |= json_object_set_new(missed, kve_miss_names[i],
                                      json_integer((json_int_t)counts->missed[i]));
    }
    failed |= json_object_set_new(object, "missed", missed);
    if (failed) {
        json_decref(object);
        return NULL;
    }
    return object;
}

void kve_counts_add(struct kve_counts *counts, const struct kve_counts *more, int n)
{
    const uint64_t times = (uint64_t)(int64_t)n; /* modulo 2^64, -1 takes away */

#define X(name) counts->name += times * more->name;
    KVE_COUNTERS(X)
#undef X
    for (size_t i = 0; i < KVE_MISS_COUNT; i++) {
        counts->missed[i] += times * more->missed[i];
    }
}

void kve_counts_add_json(struct kve_counts *counts, const json_t *object)
{
    const json_t *missed = json_object_get(object, "missed");

#define X(name) counts->name += (uint64_t)json_integer_value(json_object_get(object, #name));
    KVE_COUNTERS(X)
#undef X
    for (size_t i = 0; i < KVE_MISS_COUNT; i++) {
        counts->missed[i] +=
            (uint64_t)json_integer_value(json_object_get(missed, kve_miss_names[i]));
    }
}

json_t *kve_engine_stats(struct kve_engine *engine)
{
    uint32_t running, waiting, loading;
    json_t *object = kve_counts_json(&engine->counts);
    int failed = object == NULL;

    kve_requests_load(engine, &running, &waiting, &loading);
    failed |= json_object_set_new(object, "running", json_integer(running));
    failed |= json_object_set_new(object, "waiting", json_integer(waiting));
    failed |= json_object_set_new(object, "loading", json_integer(loading));
    failed |= json_object_set_new(object, "blocks_held", json_integer(kve_pool_held(engine->pool)));
    failed |=
        json_object_set_new(object, "blocks_cached", json_integer(kve_pool_cached(engine->pool)));
    failed |= json_object_set_new(object, "attached", json_boolean(kve_engine_attached(engine)));
    failed |= json_object_set_new(object, "rank_pids", kve_ranks_pids(engine->ranks));
    failed |= json_object_set_new(object, "paused", json_boolean(engine->paused));
    failed |= json_object_set_new(object, "weights_id",
                                  json_integer((json_int_t)kve_weights_held(engine)));
    failed |= json_object_set_new(object, "weight_change_running",
                                  json_boolean(engine->weight_change_running));
    failed |= json_object_set_new(object, "weight_transfers", json_integer(engine->transfers));
    failed |= json_object_set_new(object, "kv_cache_generation",
                                  json_integer((json_int_t)engine->kv_cache.generation));
    failed |= json_object_set(object, "calls", engine->calls);
    failed |= json_object_set_new(object, "story", json_string(engine->story));
    if (failed) {
        json_decref(object);
        return NULL;
    }
    return object;
}

/* ---- weights ---- */

/* The weights region begins with this. */
struct weights_head {
    uint64_t magic;
    uint64_t id;
};
#define WEIGHTS_MAGIC 0x6b766577656967u
_Static_assert(sizeof(struct weights_head) <= KVE_WEIGHTS_HEAD_BYTES, "it fits");

uint64_t kve_weights_held(const struct kve_engine *engine)
{
    struct weights_head head;

    if (engine->weights.fd < 0) {
        return 0;
    }
    memcpy(&head, engine->weights.base, sizeof head);
    return head.magic == WEIGHTS_MAGIC ? head.id : 0;
}

void kve_weights_write(struct kve_engine *engine, uint64_t id)
{
    struct weights_head head = {WEIGHTS_MAGIC, id};

    kvb_assert(engine->weights.fd >= 0);
    kve_engine_see_weights(engine, id);
    memcpy(engine->weights.base, &head, sizeof head);
    engine->computer->write_weights(engine, id);
}

void kve_engine_see_weights(struct kve_engine *engine, uint64_t id)
{
    for (size_t i = 0; i < engine->nseen; i++) {
        if (engine->seen[i] == id) {
            return;
        }
    }
    /* Forgetting the oldest would call its bytes torn instead of stale: wrong all the same. */
    if (engine->nseen == KVE_WEIGHTS_SEEN_MAX) {
        memmove(engine->seen, engine->seen + 1,
                (KVE_WEIGHTS_SEEN_MAX - 1) * sizeof engine->seen[0]);
        engine->nseen--;
    }
    engine->seen[engine->nseen++] = id;
    if (kve_ranks_tell(engine->ranks, KVE_RANK_SEE, 0, id, (kvplane_token){0, 0}, NULL, 0) !=
        KVB_OK) {
        engine->counts.errors++;
    }
}

/* ---- the handle ---- */

uint32_t kve_block_tokens(const struct kve_engine_options *options)
{
    return options->model ? KVE_MODEL_BLOCK_TOKENS : KVE_TRACE_BLOCK_TOKENS;
}

static kvb_status_t create_memory(struct kve_engine *engine)
{
    const struct kve_engine_options *options = &engine->options;
    kvb_status_t status = kve_memory_init(&engine->kv_cache, options->instance, "kv_cache",
                                          kve_parts_bytes(options) * options->nblocks);

    if (status == KVB_OK) {
        status =
            kve_memory_init(&engine->weights, options->instance, "weights", options->weights_bytes);
    }
    if (status == KVB_OK) {
        status = kve_memory_map(&engine->kv_cache);
    }
    if (status == KVB_OK) {
        status = kve_memory_map(&engine->weights);
    }
    if (status == KVB_OK) {
        status = kve_pool_create(engine->kv_cache.base, options->nblocks, kve_parts_bytes(options),
                                 &engine->pool);
    }
    return status;
}

static kvb_status_t create_scratch(struct kve_engine *engine)
{
    const size_t most = KVE_TRACE_BLOCKS_MAX;
    const uint32_t parts = kve_parts(&engine->options);

    engine->block_tokens = calloc(engine->options.nblocks, sizeof *engine->block_tokens);
    engine->entries = calloc(most * parts, sizeof *engine->entries);
    engine->slices = calloc(2 * most * parts, sizeof *engine->slices);
    engine->keys = calloc(most, sizeof *engine->keys);
    engine->key_text = calloc(2 * most, sizeof *engine->key_text);
    engine->blocks = calloc(most, sizeof *engine->blocks);
    engine->results = calloc(most, sizeof *engine->results);
    engine->part_bytes = malloc(kve_parts_bytes(&engine->options));
    return engine->block_tokens != NULL && engine->entries != NULL && engine->slices != NULL &&
                   engine->keys != NULL && engine->key_text != NULL && engine->blocks != NULL &&
                   engine->results != NULL && engine->part_bytes != NULL
               ? KVB_OK
               : KVB_ERR_NO_MEMORY;
}

static kvb_status_t open_link(struct kve_engine *engine)
{
    const struct kve_engine_options *options = &engine->options;
    const struct kvplane_options link = {
        .socket = options->socket,
        .instance = options->instance,
        .tenant = options->tenant,
        .layout = engine->layout,
        .model = "kvplane-reference",
        .max_model_len = options->nblocks * KVE_TRACE_BLOCK_TOKENS,
        .weights_name = options->weights_name,
        .block_tokens = kve_block_tokens(options),
        .roles = options->rank == 0 ? KVPLANE_ROLE_BOTH : KVPLANE_ROLE_WORKER,
        .rank = options->rank,
        .world_size = kve_world(options),
        .tp_size = options->tp,
        .store_tp_size = options->store_tp,
        .tracks_lineage = options->tracks_lineage,
        .callbacks = &kve_callbacks,
        .ctx = engine,
    };
    int result = kvplane_open(&link, &engine->kv);

    if (result != KVPLANE_OK) {
        fprintf(stderr, "engine %s: cannot open the link: %s\n", options->instance,
                kvplane_last_error(NULL)[0] != '\0' ? kvplane_last_error(NULL)
                                                    : kvplane_strerror(result));
        return result == KVPLANE_ERR_INVALID ? KVB_ERR_INVALID : KVB_ERR_IO;
    }
    return KVB_OK;
}

kvb_status_t kve_engine_create(const struct kve_engine_options *options,
                               struct kve_engine **engine_p)
{
    struct kve_engine *engine = calloc(1, sizeof *engine);
    kvb_status_t status;

    if (engine == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    engine->options = *options;
    engine->options.tp = options->tp == 0 ? 1 : options->tp;
    engine->options.pp = options->pp == 0 ? 1 : options->pp;
    engine->kv_cache.fd = engine->kv_cache.aside_fd = -1;
    engine->weights.fd = engine->weights.aside_fd = -1;
    engine->fingerprinting = options->fingerprint;
    engine->next_number = 1;
    engine->calls = json_object();
    kvb_list_init(&engine->waiting);
    kvb_list_init(&engine->active);
    kvb_list_init(&engine->runs);
    kvb_list_init(&engine->pauses);
    kvb_list_init(&engine->late);
    snprintf(engine->version, sizeof engine->version, "%s",
             options->weights_name == NULL ? "default" : options->weights_name);
    if (options->model) {
        snprintf(engine->layout, sizeof engine->layout, "%s", kve_model_layout);
    } else {
        snprintf(engine->layout, sizeof engine->layout, "reference-1/block=%zu/tokens=%d",
                 options->block_bytes, KVE_TRACE_BLOCK_TOKENS);
    }
    engine->computer = options->model ? &kve_generate : &kve_fill;
    status = options->model ? kve_generator_create(engine, &engine->generator) : KVB_OK;
    if (status == KVB_OK) {
        status = create_memory(engine);
    }
    if (status == KVB_OK) {
        status = create_scratch(engine);
    }
    if (status == KVB_OK) {
        kve_weights_write(engine, options->weights);
        status = open_link(engine);
    }
    if (status != KVB_OK) {
        kve_engine_destroy(engine);
        return status;
    }
    *engine_p = engine;
    return KVB_OK;
}

void kve_engine_destroy(struct kve_engine *engine)
{
    if (engine->kv != NULL) {
        engine->closing = true;
        kvplane_close(engine->kv); /* ends what is in flight */
        engine->kv = NULL;
    }
    kve_lifecycle_forget(engine);
    kve_requests_destroy(engine);
    kve_generator_destroy(engine->generator);
    kve_pool_destroy(engine->pool);
    kve_memory_cleanup(&engine->kv_cache);
    kve_memory_cleanup(&engine->weights);
    free(engine->block_tokens);
    free(engine->entries);
    free(engine->slices);
    free(engine->keys);
    free(engine->key_text);
    free(engine->blocks);
    free(engine->results);
    free(engine->part_bytes);
    json_decref(engine->calls);
    free(engine);
}

/* ---- the turn ---- */

static void report(struct kve_engine *engine)
{
    uint32_t running, waiting, loading, held = kve_pool_held(engine->pool);

    kve_requests_load(engine, &running, &waiting, &loading);
    if (engine->options.rank != 0 || !engine->attached ||
        (running == engine->told_running && waiting == engine->told_waiting &&
         loading == engine->told_loading && held == engine->told_held)) {
        return;
    }
    if (kvplane_report(engine->kv, running, waiting, loading, held) == KVPLANE_OK) {
        engine->told_running = running;
        engine->told_waiting = waiting;
        engine->told_loading = loading;
        engine->told_held = held;
    }
}

bool kve_engine_attached(const struct kve_engine *engine)
{
    return engine->attached && kve_ranks_attached(engine->ranks);
}

int kve_engine_turn(struct kve_engine *engine)
{
    bool more = false;

    (void)kvplane_process(engine->kv); /* what ended is told to on_disconnected() */
    if (engine->lost) {
        engine->lost = kvplane_reattach(engine->kv) != KVPLANE_OK; /* then with back-off */
    }
    engine->changed = false;
    engine->broken = kve_ranks_turn(engine->ranks, engine) != KVB_OK || engine->broken;
    kve_requests_turn(engine, &more);
    kve_lifecycle_turn(engine);
    report(engine);
    (void)kvplane_process(engine->kv); /* sends what this turn asked, and may call back */
    return more || engine->changed ? 0 : kve_lifecycle_wait_ms(engine);
}
