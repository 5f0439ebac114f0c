/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_kvplane.h"

#include "engine.h"

#include <criterion/criterion.h>

#include <sys/stat.h>

/* Two prompts of four blocks that share their first two, and one of its own. */
static uint64_t blocks[3][4] = {{0, 1, 2, 3}, {0, 1, 12, 13}, {20, 21, 22, 23}};
static struct kve_trace_request requests[3] = {
    {.input_length = 2048, .nblocks = 4, .blocks = blocks[0]},
    {.input_length = 2048, .nblocks = 4, .blocks = blocks[1]},
    {.input_length = 2048, .nblocks = 4, .blocks = blocks[2]},
};
static const struct kve_trace trace = {.requests = requests, .nrequests = 3, .longest = 4};

static struct kve_engine *engine;
static int runs_done;
static struct kve_counts last;
static size_t last_unfinished;

static void create(bool tracks)
{
    const struct kve_engine_options options = {.instance = "e",
                                               .tenant = "t",
                                               .weights = 1,
                                               .block_bytes = 256,
                                               .nblocks = 16,
                                               .weights_bytes = 8192,
                                               .max_running = 4,
                                               .fingerprint = true,
                                               .tracks_lineage = tracks,
                                               .trace = &trace};
    runs_done = 0;
    cr_assert_eq(kve_engine_create(&options, &engine), KVB_OK);
    fake.attached = true;
    fake.token = (kvplane_token){1, 1};
    fake.callbacks->attached(fake.ctx, KVPLANE_OK);
}
static void setup(void)
{
    create(false);
}
static void teardown(void)
{
    kve_engine_destroy(engine);
}
TestSuite(engine, .init = setup, .fini = teardown);

static void done(void *arg, struct kve_run *run)
{
    (void)arg;
    runs_done++;
    last = run->counts;
    last_unfinished = json_array_size(run->unfinished);
}

static void run_request(uint32_t index, bool stall)
{
    struct kve_run *run;

    cr_assert_eq(kve_engine_run(engine, NULL, index, 1, true, stall, done, NULL, NULL, &run),
                 KVB_OK);
}

static void turns(void)
{
    for (int i = 0; i < 20; i++) {
        (void)kve_engine_turn(engine);
    }
}

static unsigned char *bytes_of(const struct fake_asked *asked, size_t i)
{
    return engine->kv_cache.base + asked->slices[i].offset;
}

static void fill(const struct fake_asked *asked, size_t i, uint64_t weights)
{
    struct kve_pattern_source source = {.tenant = "t",
                                        .layout = engine->layout,
                                        .weights = weights,
                                        .key = asked->keys[i],
                                        .key_len = strlen(asked->keys[i])};

    kve_pattern_fill(&source, bytes_of(asked, i), 256);
}

static void answer_lookup(int result, uint32_t hits)
{
    struct fake_asked *asked = fake_find('l');

    cr_assert_not_null(asked);
    asked->kind = 0;
    asked->looked(asked->arg, result, &hits, 1);
}

/* All entries of the oldest put or get end like this. */
static void answer_batch(char kind, int result)
{
    struct fake_asked *asked = fake_find(kind);
    int results[64];

    cr_assert_not_null(asked, "%c", kind);
    for (size_t i = 0; i < asked->n; i++) {
        results[i] = result;
    }
    asked->kind = 0;
    asked->done(asked->arg, results, asked->n);
}

/* Runs a request to its end; the store has nothing and takes everything. */
static void run_cold(uint32_t index)
{
    int before = runs_done;

    run_request(index, false);
    turns();
    if (fake_find('l') != NULL) {
        answer_lookup(KVPLANE_OK, 0);
        turns();
    }
    if (fake_find('p') != NULL) {
        answer_batch('p', KVPLANE_OK);
    }
    turns();
    cr_assert_eq(runs_done, before + 1);
}

static void leave(uint64_t token)
{
    fake.token = (kvplane_token){token, token};
    fake.callbacks->lineage(fake.ctx, true, "");
}

static struct kvplane_call call;
static struct fake_call *relay(const char *method, const char *body)
{
    memset(&call, 0, sizeof call);
    fake.callbacks->relay(fake.ctx, &call, method, body, strlen(body));
    return &call.fake;
}
static struct fake_call *reset_local(bool preempt)
{
    memset(&call, 0, sizeof call);
    fake.callbacks->reset_local(fake.ctx, &call, preempt);
    return &call.fake;
}
static struct fake_call *release(const char *tag, bool commit, bool offload)
{
    memset(&call, 0, sizeof call);
    fake.callbacks->release(fake.ctx, &call, commit, &tag, &offload, 1);
    return &call.fake;
}
static struct fake_call *restore(const char *tag)
{
    memset(&call, 0, sizeof call);
    fake.callbacks->restore(fake.ctx, &call, &tag, 1);
    return &call.fake;
}
static struct kvplane_call pause_call;
static struct fake_call *pause_with(enum kvplane_pause_mode mode)
{
    memset(&pause_call, 0, sizeof pause_call);
    fake.callbacks->pause(fake.ctx, &pause_call, mode);
    return &pause_call.fake;
}
static struct fake_call *resume(void)
{
    memset(&call, 0, sizeof call);
    fake.callbacks->resume(fake.ctx, &call);
    return &call.fake;
}

/* ---- requests ---- */

Test(engine, what_does_not_hit_is_computed_and_put_under_the_token_of_the_start)
{
    struct fake_asked *put;

    run_request(0, false);
    turns();
    cr_assert_eq(fake_find('l')->n, 4);
    fake.token = (kvplane_token){2, 2};
    answer_lookup(KVPLANE_OK, 0);
    turns();
    put = fake_find('p');
    cr_assert_eq(put->n, 4);
    for (size_t i = 0; i < 4; i++) {
        cr_assert_eq(put->entries[i].token.hi, 1);
    }
    answer_batch('p', KVPLANE_OK);
    cr_assert_eq(runs_done, 1);
    cr_assert_eq(last.computed, 4);
    cr_assert_eq(last.stored, 4);
    cr_assert_eq(last.errors + last.stale + last.torn, 0);
    cr_assert_eq(kve_pool_cached(engine->pool), 0, "another stay now: not for others");
}

Test(engine, what_hits_is_got_and_not_computed)
{
    run_request(0, false);
    turns();
    answer_lookup(KVPLANE_OK, 3);
    turns();
    cr_assert_eq(fake_find('g')->n, 3);
    for (size_t i = 0; i < 3; i++) {
        fill(fake_find('g'), i, 1);
    }
    answer_batch('g', KVPLANE_OK);
    turns();
    cr_assert_eq(fake_find('p')->n, 1);
    answer_batch('p', KVPLANE_OK);
    cr_assert_eq(last.hits, 3);
    cr_assert_eq(last.computed, 1);
    cr_assert_eq(last.missed[KVE_MISS_not_found], 1);
    cr_assert_eq(last.stale + last.torn, 0);
}

static void placed_in_groups(const struct fake_asked *asked, const char keys[4][24], size_t from)
{
    for (size_t i = 0; i < asked->n; i++) {
        size_t leader = kvplane_placement(from + i, KVE_TRACE_BLOCK_TOKENS);
        cr_assert_str_eq(asked->keys[i], keys[from + i]);
        cr_assert_str_eq(asked->placements[i], keys[leader]);
    }
}

Test(engine, lookups_gets_and_puts_say_alike_where_a_block_lies)
{
    char keys[4][24];

    run_request(0, false);
    turns();
    memcpy(keys, fake_find('l')->keys, sizeof keys);
    placed_in_groups(fake_find('l'), keys, 0);
    cr_assert_str_eq(fake_find('l')->placements[3], keys[2]);
    answer_lookup(KVPLANE_OK, 3);
    turns();
    placed_in_groups(fake_find('g'), keys, 0);
    for (size_t i = 0; i < 3; i++) {
        fill(fake_find('g'), i, 1);
    }
    answer_batch('g', KVPLANE_OK);
    turns();
    cr_assert_eq(fake_find('p')->n, 1);
    placed_in_groups(fake_find('p'), keys, 3);
    answer_batch('p', KVPLANE_OK);
}

Test(engine, a_get_that_is_refused_is_computed_and_counted_as_caught)
{
    run_request(0, false);
    turns();
    answer_lookup(KVPLANE_OK, 4);
    turns();
    answer_batch('g', KVPLANE_ERR_TICKET);
    turns();
    answer_batch('p', KVPLANE_ERR_FENCED);
    cr_assert_eq(last.caught, 8);
    cr_assert_eq(last.missed[KVE_MISS_ticket], 4);
    cr_assert_eq(last.put_fenced, 4);
    cr_assert_eq(last.stale + last.torn + last.errors, 0);
}

/* What a get that failed has left behind is never used: not by the request, not by the local cache,
 * not by another request with the same blocks. Any of the blocks may be it, and several. */
Test(engine, a_block_that_could_not_be_loaded_is_computed_and_what_was_left_there_serves_nobody)
{
    for (unsigned bad = 1; bad < 16; bad++) {
        uint32_t failed = 0;
        run_request(0, false);
        run_request(1, false); /* shares the first two */
        turns();
        answer_lookup(KVPLANE_OK, 4);
        answer_lookup(KVPLANE_OK, 4);
        turns();
        for (int request = 0; request < 2; request++) {
            struct fake_asked *asked = fake_find('g');
            int results[4];
            cr_assert_not_null(asked);
            for (size_t i = 0; i < 4; i++) {
                bool fails = (bad & (1u << i)) != 0;
                fill(asked, i, fails ? 7 : 1); /* undefined, after a failure */
                results[i] = fails ? KVPLANE_ERR_CHECKSUM : KVPLANE_OK;
                failed += fails;
            }
            asked->kind = 0;
            asked->done(asked->arg, results, 4);
        }
        kve_engine_see_weights(engine, 7);
        turns();
        cr_assert_eq(runs_done, 0);
        answer_batch('p', KVPLANE_OK);
        cr_assert_eq(last.computed, (uint64_t)__builtin_popcount(bad));
        answer_batch('p', KVPLANE_OK);
        cr_assert_eq(runs_done, 2);
        cr_assert_eq(engine->counts.missed[KVE_MISS_checksum], failed);
        run_cold(0); /* from the local cache */
        cr_assert_eq(last.local_hits, 4);
        run_cold(1);
        cr_assert_eq(last.local_hits, 4);
        cr_assert_eq(engine->counts.stale + engine->counts.torn + engine->counts.errors, 0, "%s",
                     engine->story);
        kve_engine_destroy(engine);
        create(false);
    }
}

Test(engine, bytes_of_other_weights_are_told_as_stale)
{
    kve_engine_see_weights(engine, 7);
    run_request(0, false);
    turns();
    answer_lookup(KVPLANE_OK, 1);
    turns();
    fill(fake_find('g'), 0, 7);
    answer_batch('g', KVPLANE_OK);
    turns();
    answer_batch('p', KVPLANE_OK);
    cr_assert_eq(last.stale, 1);
    cr_assert_eq(last.torn, 0);
    cr_assert_not_null(strstr(engine->story, "weights 7"), "%s", engine->story);
    cr_assert_not_null(strstr(engine->story, "the store"), "%s", engine->story);
}

Test(engine, bytes_that_were_never_written_are_told_as_torn)
{
    run_request(0, false);
    turns();
    answer_lookup(KVPLANE_OK, 2);
    turns();
    fill(fake_find('g'), 0, 1);
    answer_batch('g', KVPLANE_OK);
    turns();
    answer_batch('p', KVPLANE_OK);
    cr_assert_eq(last.torn, 1);
    cr_assert_eq(last.stale, 0);
    cr_assert_not_null(strstr(engine->story, "ever written"), "%s", engine->story);
}

Test(engine, a_local_block_that_changed_is_told)
{
    uint32_t block;

    run_cold(0);
    block = kve_pool_find(engine->pool, 1);
    cr_assert_neq(block, KVE_NO_BLOCK);
    kve_pool_bytes(engine->pool, block)[100] ^= 1;
    kve_pool_release(engine->pool, block);
    run_cold(1);
    cr_assert_eq(last.local_hits, 2);
    cr_assert_gt(last.torn, 0);
}

Test(engine, a_full_queue_is_tried_again)
{
    fake.full = true;
    run_request(0, false);
    turns();
    cr_assert_null(fake_find('l'));
    fake.full = false;
    turns();
    cr_assert_not_null(fake_find('l'));
    answer_lookup(KVPLANE_ERR_CLOSED, 0);
    fake.full = true;
    turns();
    cr_assert_eq(runs_done, 0);
    fake.full = false;
    turns();
    answer_batch('p', KVPLANE_ERR_CLOSED);
    cr_assert_eq(runs_done, 1);
    cr_assert_eq(last.missed[KVE_MISS_closed], 4);
    cr_assert_eq(last.put_dropped, 4);
}

/* ---- the local cache ---- */

Test(engine, the_local_cache_serves_the_common_prefix)
{
    run_cold(0);
    run_cold(1);
    cr_assert_eq(last.local_hits, 2);
    cr_assert_eq(last.looked_up, 2);
    cr_assert_eq(last.computed, 2);
}

Test(engine, after_a_leave_the_local_cache_serves_nothing_until_it_was_reset)
{
    run_cold(0);
    leave(2);
    run_cold(1);
    cr_assert_eq(last.local_hits, 0);
    cr_assert_eq(reset_local(false)->result, KVPLANE_OK);
    run_cold(1);
    cr_assert_eq(last.local_hits, 0, "it is empty");
    run_cold(1);
    cr_assert_eq(last.local_hits, 4);
}

Test(engine, an_engine_that_tracks_lineage_needs_no_reset)
{
    teardown();
    create(true);
    run_cold(0);
    leave(2);
    run_cold(1);
    cr_assert_eq(last.local_hits, 0);
    run_cold(1);
    cr_assert_eq(last.local_hits, 4, "blocks of this stay");
}

/* An update of an engine that is not paused: leave, reset, write, leave, reset, and it runs on. */
static void update_unpaused(uint64_t next_stay, bool reset)
{
    leave(next_stay);
    cr_assert(!reset || reset_local(false)->result == KVPLANE_OK);
    run_cold(0);
    cr_assert(relay("update_weights", "{\"update_info\":{\"weights_id\":9}}")->written);
    run_cold(0);
    cr_assert_eq(last.local_hits, 0, "computed with the weights of before");
    cr_assert_eq(last.stale, 0);
    leave(next_stay + 1);
    cr_assert(!reset || reset_local(false)->result == KVPLANE_OK);
    run_cold(0);
    cr_assert_eq(last.local_hits, 0);
    run_cold(0);
    cr_assert_gt(last.local_hits, 0, "open again");
    cr_assert_eq(last.stale, 0);
}

Test(engine, what_was_cached_before_the_weights_were_written_serves_nothing_after)
{
    update_unpaused(2, true);
    teardown();
    create(true);
    update_unpaused(2, false);
}

Test(engine, a_reset_is_refused_while_blocks_are_held_and_preempts_if_told)
{
    struct fake_call *reset;

    run_request(0, true);
    turns();
    answer_lookup(KVPLANE_OK, 0);
    turns();
    reset = reset_local(false);
    cr_assert_eq(reset->result, KVPLANE_ERR_BUSY);
    cr_assert_eq(reset->held, 4);
    reset = reset_local(true);
    cr_assert_eq(reset->result, KVPLANE_OK);
    cr_assert_eq(reset->held, 0);
    cr_assert_eq(runs_done, 0, "it begins again");
    turns();
    cr_assert_not_null(fake_find('l'));
}

Test(engine, blocks_of_a_running_get_stay_its_own_through_a_reset)
{
    run_request(0, false);
    turns();
    answer_lookup(KVPLANE_OK, 4);
    turns();
    cr_assert_eq(reset_local(true)->held, 4);
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t block = kve_pool_alloc(engine->pool);
        for (size_t k = 0; k < 4; k++) {
            cr_assert_neq(kve_pool_bytes(engine->pool, block), bytes_of(fake_find('g'), k));
        }
    }
    cr_assert_eq(kve_pool_alloc(engine->pool), KVE_NO_BLOCK);
    answer_batch('g', KVPLANE_ERR_CANCELED);
    cr_assert_eq(kve_pool_held(engine->pool), 12);
}

/* ---- pause ---- */

Test(engine, abort_ends_what_runs_and_does_not_wait_for_its_loads)
{
    run_request(0, true);
    turns();
    answer_lookup(KVPLANE_OK, 4);
    turns();
    run_request(2, true);
    cr_assert_eq(pause_with(KVPLANE_PAUSE_ABORT)->answered, 0);
    turns();
    cr_assert_eq(pause_call.fake.answered, 1);
    cr_assert_eq(pause_call.fake.result, KVPLANE_OK);
    cr_assert_eq(kve_pool_held(engine->pool), 4, "the get's");
    answer_batch('g', KVPLANE_OK);
    cr_assert_eq(kve_pool_held(engine->pool), 0);
    cr_assert_eq(runs_done, 2);
    cr_assert_eq(last_unfinished, 1);
    cr_assert_eq(last.aborted, 1);
    cr_assert_eq(last.blocks_checked, 0, "nobody reads it");
    run_request(2, false);
    turns();
    cr_assert_null(fake_find('l'), "new requests queue");
}

Test(engine, keep_waits_for_loads_and_freezes_the_rest)
{
    run_request(0, true);
    turns();
    answer_lookup(KVPLANE_OK, 1);
    turns();
    pause_with(KVPLANE_PAUSE_KEEP);
    turns();
    cr_assert_eq(pause_call.fake.answered, 0);
    fill(fake_find('g'), 0, 1);
    answer_batch('g', KVPLANE_OK);
    turns();
    cr_assert_eq(pause_call.fake.answered, 1);
    cr_assert_eq(engine->counts.computed, 0, "frozen");
    run_request(2, false);
    turns();
    cr_assert_null(fake_find('l'), "new requests queue");
    cr_assert_eq(resume()->result, KVPLANE_OK);
    turns();
    cr_assert_eq(engine->counts.computed, 3);
    cr_assert_eq(runs_done, 0);
    answer_batch('p', KVPLANE_OK);
    cr_assert_eq(runs_done, 1);
}

Test(engine, wait_lets_what_runs_finish)
{
    run_request(0, false);
    turns();
    pause_with(KVPLANE_PAUSE_WAIT);
    turns();
    cr_assert_eq(pause_call.fake.answered, 0);
    answer_lookup(KVPLANE_OK, 0);
    turns();
    cr_assert_eq(pause_call.fake.answered, 1);
    cr_assert_eq(engine->counts.requests, 1);
}

Test(engine, a_resume_cancels_a_pause_that_is_not_complete)
{
    run_request(0, false);
    turns();
    pause_with(KVPLANE_PAUSE_WAIT);
    turns();
    cr_assert_eq(resume()->result, KVPLANE_OK);
    cr_assert_eq(pause_call.fake.answered, 1);
    cr_assert_eq(pause_call.fake.result, KVPLANE_ERR_CANCELED);
}

Test(engine, a_request_kept_across_an_update_goes_on_alone)
{
    run_request(0, true);
    turns();
    answer_lookup(KVPLANE_OK, 0);
    turns();
    cr_assert_eq(engine->counts.computed, 2);
    pause_with(KVPLANE_PAUSE_KEEP);
    turns();
    leave(2);
    cr_assert_eq(reset_local(false)->result, KVPLANE_ERR_BUSY);
    cr_assert(relay("update_weights", "{\"update_info\":{\"weights_id\":9}}")->written);
    resume();
    turns();
    cr_assert_eq(fake_find('p')->token.hi, 1, "the token of its start");
    answer_batch('p', KVPLANE_ERR_FENCED);
    cr_assert_eq(last.stale + last.torn, 0);
    cr_assert_eq(kve_pool_cached(engine->pool), 0, "its blocks are for nobody else");
    cr_assert_eq(reset_local(false)->result, KVPLANE_OK);
}

/* ---- memory ---- */

static void state_is(enum kvplane_residency kv_cache, enum kvplane_residency weights)
{
    struct kvplane_state state;

    fake.callbacks->state(fake.ctx, &state);
    cr_assert_eq(state.ntags, 2);
    cr_assert_eq(state.tags[0].residency, kv_cache);
    cr_assert_eq(state.tags[1].residency, weights);
}

Test(engine, release_frees_and_restore_hands_over_fresh_memory)
{
    uint64_t generation = engine->kv_cache.generation;
    struct stat before, after;

    cr_assert_eq(fake.nregions, 2, "handed over at attach");
    cr_assert_eq(fstat(engine->kv_cache.fd, &before), 0);
    cr_assert_eq(release("kv_cache", false, false)->result, KVPLANE_OK);
    state_is(KVPLANE_RESIDENT, KVPLANE_RESIDENT);
    cr_assert_eq(release("kv_cache", true, false)->result, KVPLANE_OK);
    state_is(KVPLANE_DISCARDED, KVPLANE_RESIDENT);
    cr_assert_eq(release("kv_cache", true, false)->result, KVPLANE_OK, "again is as good as once");
    cr_assert_eq(restore("kv_cache")->result, KVPLANE_OK);
    state_is(KVPLANE_RESIDENT, KVPLANE_RESIDENT);
    cr_assert_eq(fstat(engine->kv_cache.fd, &after), 0);
    cr_assert_neq(before.st_ino, after.st_ino);
    cr_assert_eq(fake.nregions, 3);
    cr_assert_gt(fake.regions[2].generation, generation);
    cr_assert_eq(fake.regions[2].fd, engine->kv_cache.fd);
}

Test(engine, offloaded_weights_come_back_and_discarded_ones_do_not)
{
    release("weights", false, true);
    release("weights", true, true);
    state_is(KVPLANE_RESIDENT, KVPLANE_OFFLOADED);
    restore("weights");
    cr_assert_eq(kve_weights_held(engine), 1);
    release("weights", false, true);
    release("weights", true, true);
    release("weights", true, false);
    state_is(KVPLANE_RESIDENT, KVPLANE_DISCARDED);
    restore("weights");
    cr_assert_eq(kve_weights_held(engine), 0);
}

Test(engine, restoring_what_is_resident_hands_the_same_memory_over_anew)
{
    struct stat before, after;
    uint64_t generation = engine->weights.generation;

    fstat(engine->weights.fd, &before);
    cr_assert_eq(restore("weights")->result, KVPLANE_OK);
    fstat(engine->weights.fd, &after);
    cr_assert_eq(before.st_ino, after.st_ino);
    cr_assert_eq(kve_weights_held(engine), 1);
    cr_assert_gt(fake.regions[2].generation, generation);
}

Test(engine, a_resume_without_memory_is_refused_and_told)
{
    release("kv_cache", true, false);
    cr_assert_eq(resume()->result, KVPLANE_ERR_BAD_STATE);
    cr_assert_eq(engine->counts.errors, 1);
}

Test(engine, a_request_on_weights_that_were_never_loaded_is_an_error)
{
    release("weights", true, false);
    restore("weights");
    run_request(0, false);
    turns();
    answer_lookup(KVPLANE_OK, 0);
    turns();
    cr_assert_eq(runs_done, 1);
    cr_assert_eq(last.errors, 1);
}

Test(engine, requests_that_end_at_once_let_those_behind_them_begin)
{
    release("weights", true, false);
    restore("weights");
    for (int i = 0; i < 10; i++) {
        run_request(0, false);
    }
    while (kve_engine_turn(engine) == 0) { /* as its loop does: until it has nothing to do */
    }
    while (runs_done < 10) {
        cr_assert_not_null(fake_find('l'), "it waits for nothing, with %d of 10 done", runs_done);
        while (fake_find('l') != NULL) {
            answer_lookup(KVPLANE_OK, 0);
        }
        while (kve_engine_turn(engine) == 0) {
        }
    }
}

/* ---- relayed calls ---- */

Test(engine, every_update_call_has_its_effect)
{
    char before[40], after[40];
    struct kvplane_state state;

    cr_assert_eq(relay("init_weight_transfer_engine", "{\"init_info\":{}}")->result, KVPLANE_OK);
    cr_assert_eq(engine->transfers, 1);
    engine->computer->fingerprint(engine, before);
    cr_assert_not(relay("start_weight_update", "{}")->written);
    fake.callbacks->state(fake.ctx, &state);
    cr_assert(state.weight_change_running);
    cr_assert_not(state.weights_written);
    cr_assert(relay("update_weights", "{\"update_info\":{}}")->written);
    cr_assert_eq(kve_weights_held(engine), 2, "no id given: the next one");
    engine->computer->fingerprint(engine, after);
    cr_assert_str_neq(before, after);
    fake.callbacks->state(fake.ctx, &state);
    cr_assert(state.weights_written);
    leave(2);
    fake.callbacks->state(fake.ctx, &state);
    cr_assert_not(state.weights_written, "not since this lineage");
    cr_assert_not(relay("finish_weight_update", "{\"weight_version\":\"v2\"}")->written);
    fake.callbacks->state(fake.ctx, &state);
    cr_assert_not(state.weight_change_running);
    cr_assert_not_null(strstr(relay("weight_info", "")->text, "\"v2\""));
    relay("update_weight_version", "{\"new_version\":\"v3\"}");
    cr_assert_not_null(strstr(relay("weight_info", "")->text, "\"v3\""));
    cr_assert(relay("collective_rpc:reload_weights", "{\"kwargs\":{\"weights_id\":40}}")->written);
    cr_assert_eq(kve_weights_held(engine), 40);
    cr_assert_not_null(strstr(relay("get_world_size", "")->text, "\"world_size\":1"));
    cr_assert_eq(relay("no_such_call", "")->result, KVPLANE_ERR_UNSUPPORTED);
    cr_assert_eq(relay("collective_rpc", "{\"method\":\"nothing\"}")->result,
                 KVPLANE_ERR_UNSUPPORTED);
    cr_assert_eq(relay("update_weights", "not JSON")->result, KVPLANE_ERR_INVALID);
}

Test(engine, a_run_can_be_asked_for_by_rpc)
{
    static const char body[] = "{\"kwargs\":{\"first\":0,\"count\":1}}";
    struct kvplane_call waiting;

    memset(&waiting, 0, sizeof waiting);
    fake.callbacks->relay(fake.ctx, &waiting, "collective_rpc:check_reference_run", body,
                          strlen(body));
    turns();
    cr_assert_eq(waiting.fake.answered, 0);
    answer_lookup(KVPLANE_OK, 0);
    turns();
    answer_batch('p', KVPLANE_OK);
    cr_assert_eq(waiting.fake.answered, 1);
    cr_assert_not_null(strstr(waiting.fake.text, "\"requests\":1"), "%s", waiting.fake.text);
    cr_assert_eq(
        relay("collective_rpc:check_reference_run", "{\"kwargs\":{\"first\":3,\"count\":1}}")
            ->result,
        KVPLANE_ERR_INVALID);
}

Test(engine, fingerprints_name_the_bytes_and_only_if_asked_to)
{
    char first[64];

    memset(&call, 0, sizeof call);
    fake.callbacks->fingerprint(fake.ctx, &call);
    strcpy(first, call.fake.text);
    cr_assert_eq(strncmp(first, "fp-", 3), 0);
    relay("update_weights", "{\"update_info\":{\"weights_id\":2}}");
    relay("update_weights", "{\"update_info\":{\"weights_id\":1}}");
    memset(&call, 0, sizeof call);
    fake.callbacks->fingerprint(fake.ctx, &call);
    cr_assert_str_eq(call.fake.text, first, "the same weights have the same name");
    engine->fingerprinting = false;
    memset(&call, 0, sizeof call);
    fake.callbacks->fingerprint(fake.ctx, &call);
    cr_assert_eq(call.fake.result, KVPLANE_ERR_UNSUPPORTED);
}

Test(engine, without_its_daemon_it_serves_on)
{
    run_request(0, false);
    turns();
    fake.attached = false;
    answer_lookup(KVPLANE_ERR_DISCONNECTED, 0);
    fake.callbacks->disconnected(fake.ctx, KVPLANE_ERR_DISCONNECTED);
    turns();
    cr_assert_eq(runs_done, 1);
    cr_assert_eq(last.requests, 1);
    cr_assert_eq(last.put_dropped, 4);
}
