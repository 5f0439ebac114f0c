/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The life of a request. Who ends what, exactly once: a lookup, a get and a put end through their
 * callback, whatever happens meanwhile. A request that is aborted or preempted while one of them
 * runs keeps its blocks (they belong to the transfer) and is marked; the callback then ends it or
 * begins it anew.
 *
 * The token is taken when a request begins and given with all it does. What a request found,
 * computed or was given is judged against the weights the engine holds at that moment; only a
 * request kept across an update goes on with blocks of the old weights, and only for itself.
 */
#include "base/assert.h"
#include "base/faults.h"
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Blocks that one request computes in one step. */
#define BLOCKS_PER_STEP 8

#define COUNT(request, counter, n)                                                                 \
    do {                                                                                           \
        (request)->engine->counts.counter += (n);                                                  \
        (request)->run->counts.counter += (n);                                                     \
    } while (0)

static uint64_t key_of(const struct kve_request *request, uint32_t i)
{
    return request->trace->blocks[i];
}

static size_t key_text(uint64_t key, char out[20])
{
    return (size_t)snprintf(out, 20, "b%016" PRIx64, key);
}

static bool same_token(kvplane_token a, kvplane_token b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

static bool resident(const struct kve_engine *engine)
{
    return engine->kv_cache.fd >= 0 && engine->weights.fd >= 0;
}

static bool frozen(const struct kve_engine *engine)
{
    return engine->paused && engine->pause_mode == KVPLANE_PAUSE_KEEP;
}

/* ---- bytes ---- */

static struct kve_pattern_source source_of(const struct kve_request *request, uint32_t i,
                                           uint64_t weights, char text[20])
{
    const struct kve_engine *engine = request->engine;

    return (struct kve_pattern_source){
        .tenant = engine->options.tenant,
        .layout = engine->layout,
        .weights = weights,
        .key = text,
        .key_len = key_text(key_of(request, i), text),
    };
}

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
        request->index, i, request->trace->nblocks, key_of(request, i), where, weights,
        finding->offset, finding->got, finding->expected, finding->bad_bytes,
        engine->options.block_bytes, whose, engine->kv_cache.generation, request->token.hi,
        kvplane_get_token(engine->kv).hi);
}

/* True: the bytes are right. */
static bool judge(struct kve_request *request, uint32_t i, const char *where)
{
    struct kve_engine *engine = request->engine;
    struct kve_slot *slot = &request->slots[i];
    struct kve_finding finding = {.verdict = KVE_TORN};
    char text[20];
    struct kve_pattern_source source = source_of(request, i, slot->weights, text);
    enum kve_verdict verdict = KVE_TORN;

    if (engine->kv_cache.fd >= 0) {
        verdict =
            kve_pattern_check(&source, kve_pool_bytes(engine->pool, slot->block),
                              engine->options.block_bytes, engine->seen, engine->nseen, &finding);
    } else {
        where = "memory that is not mapped";
    }
    COUNT(request, blocks_checked, 1);
    if (verdict == KVE_GOOD) {
        return true;
    }
    COUNT(request, stale, verdict == KVE_STALE);
    COUNT(request, torn, verdict == KVE_TORN);
    tell_story(request, i, where, slot->weights, &finding);
    return false;
}

/* ---- beginning and ending ---- */

static void give_back(struct kve_request *request)
{
    for (uint32_t i = 0; i < request->trace->nblocks; i++) {
        if (request->slots[i].block != KVE_NO_BLOCK) {
            kve_pool_release(request->engine->pool, request->slots[i].block);
        }
        request->slots[i] = (struct kve_slot){.block = KVE_NO_BLOCK};
    }
}

static void note_stalled(struct kve_run *run)
{
    if (!run->told_stalled && run->stalled_fn != NULL && run->stalled == run->left &&
        run->left > 0) {
        run->told_stalled = true;
        run->stalled_fn(run->arg, run);
    }
}

static void end(struct kve_request *request)
{
    struct kve_run *run = request->run;

    give_back(request);
    kvb_list_remove(&request->link);
    free(request);
    if (--run->left > 0) {
        note_stalled(run);
        return;
    }
    kvb_list_remove(&run->link);
    run->done(run->arg, run);
    json_decref(run->unfinished);
    free(run);
}

static void end_aborted(struct kve_request *request)
{
    json_t *index = json_integer((json_int_t)request->index);

    COUNT(request, aborted, 1);
    if (index == NULL || json_array_append_new(request->run->unfinished, index) != 0) {
        COUNT(request, errors, 1);
    }
    end(request);
}

static void begin_anew(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;

    give_back(request);
    COUNT(request, preempted, 1);
    request->again = false;
    request->state = KVE_WAITING;
    kvb_list_remove(&request->link);
    kvb_list_push_front(&engine->waiting, &request->link);
    engine->nwaiting++;
}

/* True: the request was aborted or preempted meanwhile, and that has now been done. */
static bool overtaken(struct kve_request *request)
{
    if (request->dead) {
        end_aborted(request);
        return true;
    }
    if (request->again) {
        begin_anew(request);
        return true;
    }
    return false;
}

/* A cached block of another stay, told by its token. */
static bool foreign(const struct kve_request *request, uint32_t block)
{
    const struct kve_engine *engine = request->engine;

    return engine->options.tracks_lineage &&
           !same_token(engine->block_tokens[block], request->token);
}

/* The longest prefix that the local cache has, under this request's token. */
static uint32_t find_local(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;
    uint32_t n = 0;

    if (!request->use_cache || engine->cache_closed) {
        return 0;
    }
    for (; n < request->trace->nblocks; n++) {
        uint32_t block = kve_pool_find(engine->pool, key_of(request, n));
        if (block == KVE_NO_BLOCK) {
            break;
        }
        if (foreign(request, block)) {
            kve_pool_release(engine->pool, block);
            break;
        }
        request->slots[n] = (struct kve_slot){.block = block, .from = KVE_FROM_CACHE};
    }
    return n;
}

/* False: there are not enough blocks now. */
static bool begin(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;
    uint32_t n = request->trace->nblocks;

    request->token = kvplane_get_token(engine->kv);
    request->nlocal = find_local(request);
    if (kve_pool_available(engine->pool) < n - request->nlocal) {
        give_back(request);
        return false;
    }
    for (uint32_t i = request->nlocal; i < n; i++) {
        request->slots[i].block = kve_pool_alloc(engine->pool);
    }
    COUNT(request, blocks, request->counted ? 0 : n);
    request->counted = true;
    COUNT(request, local_hits, request->nlocal);
    for (uint32_t i = 0; i < request->nlocal; i++) {
        request->slots[i].weights = kve_weights_held(engine);
        (void)judge(request, i, "the local prefix cache");
    }
    request->nhit = 0;
    request->ncomputed = 0;
    request->state = request->nlocal < n && engine->attached ? KVE_NEED_LOOKUP : KVE_RUNNING;
    kvb_list_remove(&request->link);
    kvb_list_push_back(&engine->active, &request->link);
    engine->nwaiting--;
    return true;
}

/* ---- lookup and get ---- */

static enum kve_miss miss_of(int result)
{
    static const int results[KVE_MISS_COUNT] = {
#define X(name, number) [KVE_MISS_##name] = (number),
        KVE_MISSES(X)
#undef X
    };
    for (size_t i = 0; i < KVE_MISS_other; i++) {
        if (results[i] == result) {
            return (enum kve_miss)i;
        }
    }
    return KVE_MISS_other;
}

static void missed(struct kve_request *request, int result, uint32_t n)
{
    COUNT(request, missed[miss_of(result)], n);
}

static bool caught(int result)
{
    return result == KVPLANE_ERR_FENCED || result == KVPLANE_ERR_TICKET ||
           result == KVPLANE_ERR_GENERATION || result == KVPLANE_ERR_CHECKSUM;
}

static void on_lookup(void *arg, int result, const uint32_t *hits, size_t ngroups)
{
    struct kve_request *request = arg;
    uint32_t asked = request->trace->nblocks - request->nlocal;
    uint32_t found = result == KVPLANE_OK && ngroups == 1 ? hits[0] : 0;

    COUNT(request, looked_up, asked);
    if (found > asked) {
        COUNT(request, errors, 1);
        found = asked;
    }
    missed(request, result == KVPLANE_OK ? KVPLANE_ERR_NOT_FOUND : result, asked - found);
    request->engine->changed = true;
    if (request->dead || request->again) {
        if (found > 0) {
            (void)kvplane_discard(request->engine->kv, request->number);
        }
        (void)overtaken(request);
        return;
    }
    request->nhit = found;
    request->state = found > 0 ? KVE_NEED_GET : KVE_RUNNING;
}

static void on_get(void *arg, const int *results, size_t n)
{
    struct kve_request *request = arg;
    struct kve_engine *engine = request->engine;

    kvb_assert(n == request->nhit);
    engine->changed = true;
    for (uint32_t i = 0; i < n; i++) {
        struct kve_slot *slot = &request->slots[request->nlocal + i];
        COUNT(request, caught, caught(results[i]));
        if (results[i] != KVPLANE_OK) {
            missed(request, results[i], 1);
            continue;
        }
        COUNT(request, hits, 1);
        COUNT(request, bytes_got, engine->options.block_bytes);
        if (request->dead || request->again) {
            continue; /* it came, and nobody reads it */
        }
        slot->from = KVE_FROM_STORE;
        slot->weights = kve_weights_held(engine);
        if (!judge(request, request->nlocal + i, "the store")) {
            slot->from = KVE_FROM_NOWHERE; /* told; computed, so that one mistake counts once */
        }
    }
    if (!overtaken(request)) {
        request->state = KVE_RUNNING;
    }
}

/* Fills the engine's scratch with the entries of slots [from, from + n) that `wanted` says. */
static size_t fill_entries(struct kve_request *request, uint32_t from, uint32_t n,
                           uint32_t wanted_from)
{
    struct kve_engine *engine = request->engine;
    size_t entries = 0;

    for (uint32_t i = 0; i < request->trace->nblocks; i++) {
        engine->keys[i].key = engine->key_text[i];
        engine->keys[i].len = key_text(key_of(request, i), engine->key_text[i]);
        const struct kvplane_key *leader =
            &engine->keys[kvplane_placement(i, KVE_TRACE_BLOCK_TOKENS)];
        engine->keys[i].placement = leader->key;
        engine->keys[i].placement_len = leader->len;
    }
    for (uint32_t i = from; i < from + n; i++) {
        if (request->slots[i].from != wanted_from) {
            continue;
        }
        engine->slices[entries] = (struct kvplane_slice){
            .region = KVE_REGION_KV_CACHE,
            .offset = kve_pool_offset(engine->pool, request->slots[i].block),
            .len = engine->options.block_bytes,
        };
        engine->entries[entries] = (struct kvplane_entry){
            .key = engine->keys[i].key,
            .key_len = engine->keys[i].len,
            .placement = engine->keys[i].placement,
            .placement_len = engine->keys[i].placement_len,
            .token = request->token,
            .slices = &engine->slices[entries],
            .nslices = 1,
        };
        entries++;
    }
    return entries;
}

static int ask_lookup(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;
    uint32_t n = request->trace->nblocks - request->nlocal;
    struct kvplane_keys group;

    (void)fill_entries(request, request->nlocal, n, KVE_FROM_NOWHERE);
    group = (struct kvplane_keys){.keys = &engine->keys[request->nlocal], .nkeys = n};
    return kvplane_lookup(engine->kv, request->number, request->token, &group, 1, on_lookup,
                          request);
}

static int ask_get(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;
    size_t n = fill_entries(request, request->nlocal, request->nhit, KVE_FROM_NOWHERE);

    for (uint32_t i = 0; i < request->nhit; i++) {
        kve_pattern_poison(kve_pool_bytes(engine->pool, request->slots[request->nlocal + i].block),
                           engine->options.block_bytes);
    }
    return kvplane_get(engine->kv, request->number, request->token, engine->entries, n, on_get,
                       request);
}

/* ---- the rest, and what becomes of it ---- */

static uint32_t missing(const struct kve_request *request)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < request->trace->nblocks; i++) {
        n += request->slots[i].from == KVE_FROM_NOWHERE;
    }
    return n;
}

static void compute(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;
    uint64_t weights = kve_weights_held(engine);
    uint32_t half = (missing(request) + request->ncomputed + 1) / 2, done = 0;

    for (uint32_t i = 0; i < request->trace->nblocks && done < BLOCKS_PER_STEP; i++) {
        struct kve_slot *slot = &request->slots[i];
        char text[20];
        struct kve_pattern_source source;

        if (slot->from != KVE_FROM_NOWHERE) {
            continue;
        }
        if (request->stall && request->ncomputed >= half) {
            return;
        }
        source = source_of(request, i, weights, text);
        kve_pattern_fill(&source, kve_pool_bytes(engine->pool, slot->block),
                         engine->options.block_bytes);
        slot->from = KVE_FROM_COMPUTE;
        slot->weights = weights;
        request->ncomputed++;
        done++;
        COUNT(request, computed, 1);
    }
}

static void leave_to_cache(struct kve_request *request, uint32_t i)
{
    struct kve_engine *engine = request->engine;
    uint32_t block = request->slots[i].block;
    uint32_t there = kve_pool_find(engine->pool, key_of(request, i));

    if (there != KVE_NO_BLOCK) {
        if (foreign(request, there)) {
            kve_pool_forget(engine->pool, there);
        }
        kve_pool_release(engine->pool, there);
    }
    engine->block_tokens[block] = request->token;
    kve_pool_insert(engine->pool, key_of(request, i), block);
}

/* The last step reads all of the prompt's blocks, as attention does. */
static void finish(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;
    bool current = same_token(request->token, kvplane_get_token(engine->kv));

    for (uint32_t i = 0; i < request->trace->nblocks; i++) {
        (void)judge(request, i, "its own blocks");
        if (current && !engine->cache_closed) {
            leave_to_cache(request, i);
        }
    }
    COUNT(request, requests, 1);
    request->state = KVE_NEED_PUT;
}

static void on_put(void *arg, const int *results, size_t n)
{
    struct kve_request *request = arg;

    request->engine->changed = true;
    for (size_t i = 0; i < n; i++) {
        bool stored = results[i] == KVPLANE_OK || results[i] == KVPLANE_ERR_EXISTS;
        COUNT(request, stored, stored);
        COUNT(request, bytes_put,
              results[i] == KVPLANE_OK ? request->engine->options.block_bytes : 0);
        COUNT(request, put_fenced, results[i] == KVPLANE_ERR_FENCED);
        COUNT(request, put_dropped, !stored && results[i] != KVPLANE_ERR_FENCED);
        COUNT(request, caught, caught(results[i]));
    }
    end(request);
}

static int ask_put(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;
    size_t n = fill_entries(request, 0, request->trace->nblocks, KVE_FROM_COMPUTE);

    return kvplane_put(engine->kv, engine->entries, n, on_put, request);
}

/* ---- the turn ---- */

/* Asks; full: stays where it is. Not accepted for another reason: goes on without the store. */
static void try_ask(struct kve_request *request, int (*ask)(struct kve_request *request),
                    enum kve_request_state asked, enum kve_request_state without)
{
    int result = request->engine->attached ? ask(request) : KVPLANE_ERR_BAD_STATE;

    if (result == KVPLANE_OK) {
        request->state = asked;
    } else if (result != KVPLANE_ERR_AGAIN) {
        if (without == KVE_STORING) {
            COUNT(request, put_dropped, request->ncomputed);
            end(request);
            return;
        }
        COUNT(request, looked_up,
              asked == KVE_LOOKUP ? request->trace->nblocks - request->nlocal : 0);
        missed(request, result,
               asked == KVE_LOOKUP ? request->trace->nblocks - request->nlocal : request->nhit);
        request->state = without;
    }
}

static void step(struct kve_request *request, bool *more_p)
{
    if (request->stall) {
        uint32_t before = request->ncomputed;
        compute(request);
        if (request->ncomputed > before) {
            *more_p = true;
        } else if (!request->stalled) {
            request->stalled = true;
            request->run->stalled++;
            note_stalled(request->run);
        }
        return;
    }
    compute(request);
    if (missing(request) == 0) {
        finish(request);
    }
    *more_p = true;
}

static void turn_one(struct kve_request *request, bool *more_p)
{
    struct kve_engine *engine = request->engine;
    bool may_run = !frozen(engine) && resident(engine);

    switch (request->state) {
    case KVE_WAITING:
        KVB_UNREACHABLE("a waiting request is not active");
    case KVE_NEED_LOOKUP:
        if (may_run) {
            try_ask(request, ask_lookup, KVE_LOOKUP, KVE_RUNNING);
        }
        return;
    case KVE_NEED_GET:
        if (may_run) {
            try_ask(request, ask_get, KVE_LOADING, KVE_RUNNING);
        }
        return;
    case KVE_RUNNING:
        if (!may_run) {
            return;
        }
        if (kve_weights_held(engine) == 0) {
            COUNT(request, errors, 1); /* the trainer resumed an engine without weights */
            end_aborted(request);
            *more_p = true; /* its place is free */
            return;
        }
        step(request, more_p);
        return;
    case KVE_NEED_PUT:
        if (request->ncomputed == 0) {
            end(request);
            return;
        }
        try_ask(request, ask_put, KVE_STORING, KVE_STORING);
        return;
    case KVE_LOOKUP:
    case KVE_LOADING:
    case KVE_STORING:
    case KVE_REQUEST_STATE_COUNT:
        return;
    }
}

static uint32_t running(const struct kve_engine *engine)
{
    uint32_t n = 0;

    kvb_list_each(&engine->active, link)
    {
        const struct kve_request *request = kvb_container_of(link, struct kve_request, link);
        n += request->state != KVE_STORING && request->state != KVE_NEED_PUT;
    }
    return n;
}

void kve_requests_turn(struct kve_engine *engine, bool *more_p)
{
    uint32_t begun = running(engine);

    kvb_list_each(&engine->active, link)
    {
        turn_one(kvb_container_of(link, struct kve_request, link), more_p);
    }
    if (engine->paused || !resident(engine)) {
        return;
    }
    for (; begun < engine->options.max_running; begun++) {
        struct kvb_list *link = kvb_list_first(&engine->waiting);
        if (link == NULL || !begin(kvb_container_of(link, struct kve_request, link))) {
            return;
        }
        *more_p = true;
    }
}

/* ---- what the lifecycle does to requests ---- */

static bool in_transfer(const struct kve_request *request)
{
    return request->state == KVE_LOOKUP || request->state == KVE_LOADING;
}

static bool finished(const struct kve_request *request)
{
    return request->state == KVE_NEED_PUT || request->state == KVE_STORING;
}

uint32_t kve_requests_abort(struct kve_engine *engine)
{
    uint32_t n = 0;

    kvb_list_each(&engine->active, link)
    {
        struct kve_request *request = kvb_container_of(link, struct kve_request, link);
        if (finished(request) || request->dead) {
            continue;
        }
        n++;
        if (in_transfer(request)) {
            request->dead = true;
            continue;
        }
        if (request->state == KVE_NEED_GET) {
            (void)kvplane_discard(engine->kv, request->number);
        }
        end_aborted(request);
    }
    kvb_list_each(&engine->waiting, link)
    {
        n++;
        engine->nwaiting--;
        end_aborted(kvb_container_of(link, struct kve_request, link));
    }
    return n;
}

void kve_requests_preempt(struct kve_engine *engine)
{
    kvb_list_each(&engine->active, link)
    {
        struct kve_request *request = kvb_container_of(link, struct kve_request, link);
        if (finished(request) || request->dead) {
            continue;
        }
        if (in_transfer(request)) {
            /* The control for a missing drain is an engine that still counts on its loads. */
            request->again = !kvb_fault_all(KVB_FAULT_DRAIN_SKIPPED);
            continue;
        }
        if (request->state == KVE_NEED_GET) {
            (void)kvplane_discard(engine->kv, request->number);
        }
        begin_anew(request);
    }
}

void kve_requests_unstall(struct kve_engine *engine)
{
    struct kvb_list *lists[] = {&engine->active, &engine->waiting};

    for (size_t i = 0; i < 2; i++) {
        kvb_list_each(lists[i], link)
        {
            struct kve_request *request = kvb_container_of(link, struct kve_request, link);
            request->stall = false;
            if (request->stalled) {
                request->stalled = false;
                request->run->stalled--;
            }
        }
    }
}

bool kve_requests_idle(const struct kve_engine *engine, enum kvplane_pause_mode mode)
{
    kvb_list_each(&engine->active, link)
    {
        const struct kve_request *request = kvb_container_of(link, struct kve_request, link);
        bool wanted = !request->dead && !request->again && !finished(request);
        if (mode == KVPLANE_PAUSE_KEEP) {
            wanted = wanted && in_transfer(request) && !kvb_fault_all(KVB_FAULT_DRAIN_SKIPPED);
        }
        if (wanted) {
            return false;
        }
    }
    return true;
}

void kve_requests_load(const struct kve_engine *engine, uint32_t *running_p, uint32_t *waiting_p,
                       uint32_t *loading_p)
{
    uint32_t run = 0, load = 0;

    kvb_list_each(&engine->active, link)
    {
        const struct kve_request *request = kvb_container_of(link, struct kve_request, link);
        if (request->dead || finished(request)) {
            continue;
        }
        run += !in_transfer(request);
        load += in_transfer(request);
    }
    *running_p = run;
    *waiting_p = engine->nwaiting;
    *loading_p = load;
}

void kve_requests_destroy(struct kve_engine *engine)
{
    struct kvb_list *lists[] = {&engine->active, &engine->waiting};

    for (size_t i = 0; i < 2; i++) {
        kvb_list_each(lists[i], link)
        {
            struct kve_request *request = kvb_container_of(link, struct kve_request, link);
            kvb_list_remove(&request->link);
            free(request);
        }
    }
    kvb_list_each(&engine->runs, link)
    {
        struct kve_run *run = kvb_container_of(link, struct kve_run, link);
        kvb_list_remove(&run->link);
        json_decref(run->unfinished);
        free(run);
    }
}

/* ---- asking ---- */

static struct kve_request *create_request(struct kve_engine *engine, struct kve_run *run,
                                          uint32_t index, bool use_cache, bool stall)
{
    const struct kve_trace_request *trace = &engine->options.trace->requests[index];
    struct kve_request *request =
        calloc(1, sizeof *request + trace->nblocks * sizeof(struct kve_slot));

    if (request == NULL) {
        return NULL;
    }
    request->engine = engine;
    request->run = run;
    request->number = engine->next_number++;
    request->index = index;
    request->state = KVE_WAITING;
    request->use_cache = use_cache;
    request->stall = stall;
    request->trace = trace;
    for (uint32_t i = 0; i < trace->nblocks; i++) {
        request->slots[i].block = KVE_NO_BLOCK;
    }
    return request;
}

kvb_status_t kve_engine_run(struct kve_engine *engine, const uint32_t *indexes, uint32_t first,
                            uint32_t count, bool use_cache, bool stall, kve_run_fn done,
                            kve_run_fn stalled_fn, void *arg, struct kve_run **run_p)
{
    const struct kve_trace *trace = engine->options.trace;
    struct kve_run *run;
    struct kvb_list fresh;

    if (trace == NULL || count == 0) {
        return KVB_ERR_INVALID;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t index = indexes != NULL ? indexes[i] : (uint64_t)first + i;
        if (index >= trace->nrequests || trace->requests[index].nblocks > engine->options.nblocks) {
            return KVB_ERR_INVALID;
        }
    }
    run = calloc(1, sizeof *run);
    if (run == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    run->unfinished = json_array();
    run->left = count;
    run->done = done;
    run->stalled_fn = stalled_fn;
    run->arg = arg;
    kvb_list_init(&fresh);
    for (uint32_t i = 0; i < count && run->unfinished != NULL; i++) {
        struct kve_request *request =
            create_request(engine, run, indexes != NULL ? indexes[i] : first + i, use_cache, stall);
        if (request == NULL) {
            break;
        }
        kvb_list_push_back(&fresh, &request->link);
        run->left--;
    }
    if (run->left > 0) {
        kvb_list_each(&fresh, link)
        {
            free(kvb_container_of(link, struct kve_request, link));
        }
        json_decref(run->unfinished);
        free(run);
        return KVB_ERR_NO_MEMORY;
    }
    run->left = count;
    kvb_list_each(&fresh, link)
    {
        kvb_list_remove(link);
        kvb_list_push_back(&engine->waiting, link);
    }
    engine->nwaiting += count;
    kvb_list_push_back(&engine->runs, &run->link);
    *run_p = run;
    return KVB_OK;
}
