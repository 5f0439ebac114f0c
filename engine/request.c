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
#include "request.h"

#include "base/assert.h"
#include "base/faults.h"

#include <stdlib.h>
#include <string.h>

static uint64_t key_of(const struct kve_request *request, uint32_t i)
{
    return request->slots[i].key;
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

struct kve_block_of kve_request_block(const struct kve_request *request, uint32_t i)
{
    uint32_t tokens = kve_block_tokens(&request->engine->options);

    return (struct kve_block_of){
        .key = key_of(request, i),
        .placement = key_of(request, (uint32_t)kvplane_placement(i, tokens)),
        .weights = request->slots[i].weights,
        .block = request->slots[i].block,
    };
}

bool kve_request_tell_ranks(struct kve_request *request, enum kve_rank_command command, uint32_t n)
{
    struct kve_engine *engine = request->engine;
    uint32_t others = kve_ranks_count(engine->ranks);

    if (others == 0 || n == 0) {
        return true;
    }
    if (kve_ranks_tell(engine->ranks, command, request->number, 0, request->token, engine->blocks,
                       n) != KVB_OK) {
        KVE_COUNT(request, errors, 1);
        return false;
    }
    request->unacked += others;
    return true;
}

/* ... with the blocks of slots [0, n). */
static void check_on_ranks(struct kve_request *request, uint32_t n)
{
    if (request->engine->computer->judge == NULL) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        request->engine->blocks[i] = kve_request_block(request, i);
    }
    (void)kve_request_tell_ranks(request, KVE_RANK_CHECK, n);
}

static bool judge(struct kve_request *request, uint32_t i, const char *where)
{
    const struct kve_computer *computer = request->engine->computer;

    return computer->judge == NULL || computer->judge(request, i, where);
}

/* ---- beginning and ending ---- */

static void give_back(struct kve_request *request)
{
    for (uint32_t i = 0; i < request->nslots; i++) {
        if (request->slots[i].block != KVE_NO_BLOCK) {
            kve_pool_release(request->engine->pool, request->slots[i].block);
        }
        request->slots[i] = (struct kve_slot){.block = KVE_NO_BLOCK, .key = key_of(request, i)};
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

static void destroy(struct kve_request *request)
{
    free(request->results);
    free(request->generation);
    free(request);
}

static void destroy_run(struct kve_run *run)
{
    json_decref(run->unfinished);
    json_decref(run->outputs);
    free(run->owned);
    free(run);
}

void kve_request_stall(struct kve_request *request)
{
    if (!request->stalled) {
        request->stalled = true;
        request->run->stalled++;
        note_stalled(request->run);
    }
}

static void end(struct kve_request *request)
{
    struct kve_run *run = request->run;

    give_back(request);
    kvb_list_remove(&request->link);
    destroy(request);
    if (--run->left > 0) {
        note_stalled(run);
        return;
    }
    kvb_list_remove(&run->link);
    run->done(run->arg, run);
    destroy_run(run);
}

void kve_request_abort(struct kve_request *request)
{
    json_t *index = json_integer((json_int_t)request->index);

    KVE_COUNT(request, aborted, 1);
    if (index == NULL || json_array_append_new(request->run->unfinished, index) != 0) {
        KVE_COUNT(request, errors, 1);
    }
    end(request);
}

static void begin_anew(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;

    give_back(request);
    KVE_COUNT(request, preempted, 1);
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
        kve_request_abort(request);
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
    for (; n < request->nfindable; n++) {
        uint32_t block = kve_pool_find(engine->pool, key_of(request, n));
        if (block == KVE_NO_BLOCK) {
            break;
        }
        if (foreign(request, block)) {
            kve_pool_release(engine->pool, block);
            break;
        }
        request->slots[n].block = block;
        request->slots[n].from = KVE_FROM_CACHE;
    }
    return n;
}

/* False: there are not enough blocks now. */
static bool begin(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;

    if (engine->computer->begin != NULL) {
        engine->computer->begin(request);
    }
    uint32_t n = request->nblocks;
    request->token = kvplane_get_token(engine->kv);
    request->nlocal = find_local(request);
    if (kve_pool_available(engine->pool) < n - request->nlocal) {
        give_back(request);
        return false;
    }
    for (uint32_t i = request->nlocal; i < n; i++) {
        request->slots[i].block = kve_pool_alloc(engine->pool);
    }
    KVE_COUNT(request, blocks, request->counted ? 0 : request->nprompt);
    request->counted = true;
    KVE_COUNT(request, local_hits, request->nlocal);
    for (uint32_t i = 0; i < request->nlocal; i++) {
        request->slots[i].weights = kve_weights_held(engine);
        (void)judge(request, i, "the local prefix cache");
    }
    check_on_ranks(request, request->nlocal);
    request->nhit = 0;
    request->ncomputed = 0;
    request->state = request->nlocal < request->nfindable && kve_engine_attached(engine)
                         ? KVE_NEED_LOOKUP
                         : KVE_RUNNING;
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
    KVE_COUNT(request, missed[miss_of(result)], n);
}

static bool caught(int result)
{
    return result == KVPLANE_ERR_FENCED || result == KVPLANE_ERR_TICKET ||
           result == KVPLANE_ERR_GENERATION || result == KVPLANE_ERR_CHECKSUM;
}

static void on_lookup(void *arg, int result, const uint32_t *hits, size_t ngroups)
{
    struct kve_request *request = arg;
    uint32_t asked = request->nfindable - request->nlocal;
    uint32_t found = result == KVPLANE_OK && ngroups == 1 ? hits[0] : 0;

    KVE_COUNT(request, looked_up, asked);
    if (found > asked) {
        KVE_COUNT(request, errors, 1);
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

/* ---- a transfer: every rank moves its part, and it has ended when the last of them has ---- */

static void merge(struct kve_request *request, const int *results, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        request->results[i] = kve_parts_worse(request->results[i], results[i]);
    }
}

static void get_ended(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;

    for (uint32_t i = 0; i < request->nhit; i++) {
        struct kve_slot *slot = &request->slots[request->nlocal + i];
        int result = request->results[i];
        KVE_COUNT(request, caught, caught(result));
        if (result != KVPLANE_OK && result != KVE_RANK_BAD) {
            missed(request, result, 1);
            continue;
        }
        KVE_COUNT(request, hits, 1);
        KVE_COUNT(request, bytes_got, engine->options.block_bytes * engine->options.pp);
        if (request->dead || request->again) {
            continue; /* it came, and nobody reads it */
        }
        slot->from = KVE_FROM_STORE;
        slot->weights = kve_weights_held(engine);
        if (!judge(request, request->nlocal + i, "the store") || result == KVE_RANK_BAD) {
            slot->from = KVE_FROM_NOWHERE; /* told; computed, so that one mistake counts once */
        }
    }
    if (!overtaken(request)) {
        request->state = KVE_RUNNING;
    }
}

static void end_if_all_is_told(struct kve_request *request)
{
    if (request->state == KVE_STORING && request->left == 0 && request->unacked == 0) {
        end(request);
    }
}

static void put_ended(struct kve_request *request)
{
    const struct kve_engine_options *options = &request->engine->options;

    for (size_t i = 0; i < request->ncomputed; i++) {
        int result = request->results[i];
        bool stored = result == KVPLANE_OK || result == KVPLANE_ERR_EXISTS;
        KVE_COUNT(request, stored, stored);
        KVE_COUNT(request, bytes_put,
                  result == KVPLANE_OK ? options->block_bytes * options->pp : 0);
        KVE_COUNT(request, put_fenced, result == KVPLANE_ERR_FENCED);
        KVE_COUNT(request, put_dropped, !stored && result != KVPLANE_ERR_FENCED);
        KVE_COUNT(request, caught, caught(result));
    }
    end_if_all_is_told(request);
}

static void part_ended(struct kve_request *request)
{
    request->engine->changed = true;
    if (--request->left > 0) {
        return;
    }
    if (request->state == KVE_LOADING) {
        get_ended(request);
    } else {
        put_ended(request);
    }
}

static void on_transfer(void *arg, const int *results, size_t n)
{
    struct kve_request *request = arg;
    struct kve_engine *engine = request->engine;
    size_t nblocks = n / kve_parts(&engine->options);

    kvb_assert(nblocks == (request->state == KVE_LOADING ? request->nhit : request->ncomputed));
    kve_parts_results(engine, results, nblocks, engine->results);
    merge(request, engine->results, nblocks);
    part_ended(request);
}

void kve_request_told(struct kve_engine *engine, const struct kve_rank_message *message)
{
    struct kve_request *request = NULL;

    engine->changed = true;
    kvb_list_each(&engine->active, link)
    {
        struct kve_request *each = kvb_container_of(link, struct kve_request, link);
        request = each->number == message->request ? each : request;
    }
    kvb_list_each(&engine->waiting, link)
    {
        struct kve_request *each = kvb_container_of(link, struct kve_request, link);
        request = each->number == message->request ? each : request;
    }
    if (engine->story[0] == '\0') {
        memcpy(engine->story, message->story, sizeof engine->story);
    }
    if (request == NULL) { /* it ended as aborted meanwhile */
        engine->counts.blocks_checked += message->checked;
        engine->counts.stale += message->stale;
        engine->counts.torn += message->torn;
        return;
    }
    KVE_COUNT(request, blocks_checked, message->checked);
    KVE_COUNT(request, stale, message->stale);
    KVE_COUNT(request, torn, message->torn);
    if (message->command == KVE_RANK_ACK) {
        request->unacked--;
        end_if_all_is_told(request);
        return;
    }
    for (uint32_t i = 0; i < message->n; i++) {
        engine->results[i] = message->blocks[i].result;
    }
    merge(request, engine->results, message->n);
    part_ended(request);
}

/* Puts slots [from, from + n) that are from there into the engine's scratch. */
static uint32_t choose(struct kve_request *request, uint32_t from, uint32_t n, uint32_t wanted_from)
{
    uint32_t chosen = 0;

    for (uint32_t i = from; i < from + n; i++) {
        if (request->slots[i].from == wanted_from) {
            request->engine->blocks[chosen++] = kve_request_block(request, i);
        }
    }
    return chosen;
}

/* Asks for the chosen blocks on every rank, this one first: what it refuses nobody begins. */
static int ask_transfer(struct kve_request *request, bool get, uint32_t n)
{
    struct kve_engine *engine = request->engine;
    int *results = calloc(n + 1, sizeof *results);
    size_t entries = kve_parts_entries(engine, engine->blocks, n, request->token);

    if (results == NULL) {
        return KVPLANE_ERR_NO_MEMORY;
    }
    int result = get ? kvplane_get(engine->kv, request->number, request->token, engine->entries,
                                   entries, on_transfer, request)
                     : kvplane_put(engine->kv, engine->entries, entries, on_transfer, request);
    if (result != KVPLANE_OK) {
        free(results);
        return result;
    }
    free(request->results);
    request->results = results;
    request->left = 1;
    if (kve_request_tell_ranks(request, get ? KVE_RANK_GET : KVE_RANK_PUT, n)) {
        request->left += kve_ranks_count(engine->ranks);
    } else {
        for (uint32_t i = 0; i < n; i++) {
            results[i] = KVPLANE_ERR_NO_MEMORY;
        }
    }
    return KVPLANE_OK;
}

static int ask_lookup(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;
    uint32_t n = request->nfindable - request->nlocal;
    struct kvplane_keys group = {.keys = engine->keys, .nkeys = n};

    for (uint32_t i = 0; i < n; i++) {
        const struct kve_block_of what = kve_request_block(request, request->nlocal + i);
        struct kvplane_key *key = &engine->keys[i];
        key->key = engine->key_text[2 * i];
        key->len = kve_parts_key(what.key, engine->key_text[2 * i]);
        key->placement = engine->key_text[2 * i + 1];
        key->placement_len = kve_parts_key(what.placement, engine->key_text[2 * i + 1]);
    }
    return kvplane_lookup(engine->kv, request->number, request->token, &group, 1, on_lookup,
                          request);
}

static int ask_get(struct kve_request *request)
{
    uint32_t n = choose(request, request->nlocal, request->nhit, KVE_FROM_NOWHERE);

    for (uint32_t i = 0; i < n; i++) {
        kve_parts_poison(request->engine, &request->engine->blocks[i]);
    }
    return ask_transfer(request, true, n);
}

/* ---- the rest, and what becomes of it ---- */

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
void kve_request_finish(struct kve_request *request)
{
    struct kve_engine *engine = request->engine;
    bool current = same_token(request->token, kvplane_get_token(engine->kv));

    check_on_ranks(request, request->nblocks);
    for (uint32_t i = 0; i < request->nblocks; i++) {
        if (request->slots[i].from == KVE_FROM_NOWHERE) {
            continue; /* it is not full */
        }
        (void)judge(request, i, "its own blocks");
        if (current && !engine->cache_closed) {
            leave_to_cache(request, i);
        }
    }
    KVE_COUNT(request, requests, 1);
    request->state = KVE_NEED_PUT;
}

static int ask_put(struct kve_request *request)
{
    return ask_transfer(request, false, choose(request, 0, request->nblocks, KVE_FROM_COMPUTE));
}

/* ---- the turn ---- */

/* Asks; full: stays where it is. Not accepted for another reason: goes on without the store. */
static void try_ask(struct kve_request *request, int (*ask)(struct kve_request *request),
                    enum kve_request_state asked, enum kve_request_state without)
{
    int result = kve_engine_attached(request->engine) ? ask(request) : KVPLANE_ERR_BAD_STATE;

    if (result == KVPLANE_OK) {
        request->state = asked;
    } else if (result != KVPLANE_ERR_AGAIN) {
        if (without == KVE_STORING) {
            KVE_COUNT(request, put_dropped, request->ncomputed);
            request->state = KVE_STORING;
            end_if_all_is_told(request);
            return;
        }
        KVE_COUNT(request, looked_up,
                  asked == KVE_LOOKUP ? request->nfindable - request->nlocal : 0);
        missed(request, result,
               asked == KVE_LOOKUP ? request->nfindable - request->nlocal : request->nhit);
        request->state = without;
    }
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
            KVE_COUNT(request, errors, 1); /* the trainer resumed an engine without weights */
            kve_request_abort(request);
            *more_p = true; /* its place is free */
            return;
        }
        engine->computer->step(request, more_p);
        return;
    case KVE_NEED_PUT:
        if (request->ncomputed == 0) {
            request->state = KVE_STORING;
            end_if_all_is_told(request);
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
        n += !kve_request_finished(request);
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
    if (engine->computer->turn != NULL) {
        engine->computer->turn(engine, more_p);
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

bool kve_request_finished(const struct kve_request *request)
{
    return request->state == KVE_NEED_PUT || request->state == KVE_STORING;
}

uint32_t kve_requests_abort(struct kve_engine *engine)
{
    uint32_t n = 0;

    kvb_list_each(&engine->active, link)
    {
        struct kve_request *request = kvb_container_of(link, struct kve_request, link);
        if (kve_request_finished(request) || request->dead) {
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
        kve_request_abort(request);
    }
    kvb_list_each(&engine->waiting, link)
    {
        n++;
        engine->nwaiting--;
        kve_request_abort(kvb_container_of(link, struct kve_request, link));
    }
    return n;
}

void kve_request_preempt(struct kve_request *request)
{
    if (in_transfer(request)) {
        /* The control for a missing drain is an engine that still counts on its loads. */
        request->again = !kvb_fault_all(KVB_FAULT_DRAIN_SKIPPED);
        return;
    }
    if (request->state == KVE_NEED_GET) {
        (void)kvplane_discard(request->engine->kv, request->number);
    }
    begin_anew(request);
}

void kve_requests_preempt(struct kve_engine *engine)
{
    kvb_list_each(&engine->active, link)
    {
        struct kve_request *request = kvb_container_of(link, struct kve_request, link);
        if (!kve_request_finished(request) && !request->dead) {
            kve_request_preempt(request);
        }
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
    if (kve_ranks_busy(engine->ranks) > 0) {
        return false; /* another rank's step goes on */
    }
    kvb_list_each(&engine->active, link)
    {
        const struct kve_request *request = kvb_container_of(link, struct kve_request, link);
        bool wanted = !request->dead && !request->again && !kve_request_finished(request);
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
        if (request->dead || kve_request_finished(request)) {
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
            destroy(request);
        }
    }
    kvb_list_each(&engine->runs, link)
    {
        struct kve_run *run = kvb_container_of(link, struct kve_run, link);
        kvb_list_remove(&run->link);
        destroy_run(run);
    }
}

/* ---- asking ---- */

struct kve_run *kve_run_create(kve_run_fn done, kve_run_fn stalled_fn, void *arg)
{
    struct kve_run *run = calloc(1, sizeof *run);

    if (run == NULL) {
        return NULL;
    }
    run->unfinished = json_array();
    if (run->unfinished == NULL) {
        free(run);
        return NULL;
    }
    run->done = done;
    run->stalled_fn = stalled_fn;
    run->arg = arg;
    return run;
}

struct kve_request *kve_request_create(struct kve_engine *engine, struct kve_run *run,
                                       struct kvb_list *fresh, uint32_t index, uint32_t nslots)
{
    struct kve_request *request = calloc(1, sizeof *request + nslots * sizeof(struct kve_slot));

    if (request == NULL) {
        return NULL;
    }
    request->engine = engine;
    request->run = run;
    request->number = engine->next_number++;
    request->index = index;
    request->state = KVE_WAITING;
    request->nslots = nslots;
    for (uint32_t i = 0; i < nslots; i++) {
        request->slots[i].block = KVE_NO_BLOCK;
    }
    kvb_list_push_back(fresh, &request->link);
    run->left++;
    return request;
}

void kve_run_start(struct kve_engine *engine, struct kve_run *run, struct kvb_list *fresh)
{
    kvb_list_each(fresh, link)
    {
        kvb_list_remove(link);
        kvb_list_push_back(&engine->waiting, link);
    }
    engine->nwaiting += run->left;
    kvb_list_push_back(&engine->runs, &run->link);
}

void kve_run_drop(struct kve_run *run, struct kvb_list *fresh)
{
    kvb_list_each(fresh, link)
    {
        destroy(kvb_container_of(link, struct kve_request, link));
    }
    destroy_run(run);
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
    run = kve_run_create(done, stalled_fn, arg);
    if (run == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kvb_list_init(&fresh);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = indexes != NULL ? indexes[i] : first + i;
        const struct kve_trace_request *what = &trace->requests[index];
        struct kve_request *request = kve_request_create(engine, run, &fresh, index, what->nblocks);
        if (request == NULL) {
            kve_run_drop(run, &fresh);
            return KVB_ERR_NO_MEMORY;
        }
        request->use_cache = use_cache;
        request->stall = stall;
        request->nblocks = request->nprompt = request->nfindable = what->nblocks;
        for (uint32_t k = 0; k < what->nblocks; k++) {
            request->slots[k].key = what->blocks[k];
        }
    }
    kve_run_start(engine, run, &fresh);
    *run_p = run;
    return KVB_OK;
}
