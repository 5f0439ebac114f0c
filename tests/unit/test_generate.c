/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_kvplane.h"
#include "generate.h"

#include <criterion/criterion.h>

/*
 * An engine with a model over a daemon that the test plays. `store` is what that daemon has: blocks
 * by key, filled by puts; a test chooses what a lookup finds and how a get ends.
 */
enum { PROMPT = 64, MORE = 20, STORED = 64 };

static struct kve_engine *engine;
static struct {
    char key[24];
    unsigned char bytes[8192];
} store[STORED];
static size_t nstored;

static int runs_done, last_done;
static int first = 1, second = 2; /* arguments of runs */
static struct kve_counts last;
static json_t *outputs;
static json_int_t prompt[256];

static void create_rank(uint32_t nblocks, uint32_t tp, struct kve_gather *gather)
{
    struct kve_engine_options options = {.model = true,
                                         .gather = gather,
                                         .instance = "e",
                                         .tenant = "t",
                                         .weights = 1,
                                         .tp = tp,
                                         .pp = 1,
                                         .store_tp = 2,
                                         .nblocks = nblocks,
                                         .max_running = 4,
                                         .fingerprint = true};

    cr_assert_eq(kve_generate_options(&options), KVB_OK);
    cr_assert_eq(kve_engine_create(&options, &engine), KVB_OK);
    fake.attached = true;
    fake.token = (kvplane_token){1, 1};
    fake.callbacks->attached(fake.ctx, KVPLANE_OK);
    runs_done = 0;
    for (int i = 0; i < 256; i++) {
        prompt[i] = (i * 37 + i / 7) % 256;
    }
}
static void create(uint32_t nblocks)
{
    create_rank(nblocks, 1, NULL);
}
static void setup(void)
{
    nstored = 0;
    create(64);
}
static void teardown(void)
{
    kve_engine_destroy(engine);
    json_decref(outputs);
    outputs = NULL;
}
TestSuite(generate, .init = setup, .fini = teardown);

static void done(void *arg, struct kve_run *run)
{
    last_done = arg == NULL ? 0 : *(const int *)arg;
    runs_done++;
    last = run->counts;
    json_decref(outputs);
    outputs = json_incref(run->outputs);
}

static void ask_as(int *arg, uint32_t n, uint32_t more, bool use_cache, bool stall)
{
    json_t *tokens = json_array(), *prompts = json_pack("[o]", tokens);
    struct kve_run *run;

    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(json_array_append_new(tokens, json_integer(prompt[i])), 0);
    }
    cr_assert_eq(
        kve_engine_generate(engine, prompts, more, use_cache, stall, done, NULL, arg, &run),
        KVB_OK);
    json_decref(prompts);
}

static void ask(uint32_t n, uint32_t more, bool use_cache, bool stall)
{
    ask_as(NULL, n, more, use_cache, stall);
}

static void turns(void)
{
    for (int i = 0; i < 60; i++) {
        (void)kve_engine_turn(engine);
    }
}

static void looked_up(uint32_t hits)
{
    struct fake_asked *asked = fake_find('l');

    cr_assert_not_null(asked);
    asked->kind = 0;
    asked->looked(asked->arg, KVPLANE_OK, &hits, 1);
}

static void answer_lookup(uint32_t hits)
{
    looked_up(hits);
    turns();
}

/* The put ends as stored; what it named is in the store. */
static void take_put(void)
{
    struct fake_asked *asked = fake_find('p');
    int results[64] = {0};

    cr_assert_not_null(asked);
    cr_assert_leq(asked->n, 64);
    for (size_t i = 0; i < asked->n;
         i += 2) { /* two parts of each block, the first one begins it */
        cr_assert_lt(nstored, STORED);
        memcpy(store[nstored].key, asked->keys[i], 24);
        memcpy(store[nstored++].bytes, engine->kv_cache.base + asked->slices[i].offset, 8192);
    }
    asked->kind = 0;
    asked->done(asked->arg, results, asked->n);
    turns();
}

/* The get ends; block `bad` of it (-1: none) with that result. */
static void answer_get(int bad, int result)
{
    struct fake_asked *asked = fake_find('g');
    int results[64] = {0};

    cr_assert_not_null(asked);
    for (size_t i = 0; i < asked->n; i += 2) {
        size_t k = 0;
        while (k < nstored && strcmp(store[k].key, asked->keys[i]) != 0) {
            k++;
        }
        cr_assert_lt(k, nstored, "%s was never put", asked->keys[i]);
        if ((int)i / 2 == bad) {
            results[i] = result;
        } else {
            memcpy(engine->kv_cache.base + asked->slices[i].offset, store[k].bytes, 8192);
        }
    }
    asked->kind = 0;
    asked->done(asked->arg, results, asked->n);
    turns();
}

/* What it says with nothing of the store's, and the store then has. */
static json_t *said_cold(void)
{
    ask(PROMPT, MORE, true, false);
    turns();
    answer_lookup(0);
    take_put();
    cr_assert_eq(runs_done, 1);
    runs_done = 0;
    return json_deep_copy(json_object_get(json_array_get(outputs, 0), "tokens"));
}

static json_int_t told(const char *name)
{
    return json_integer_value(json_object_get(json_array_get(outputs, 0), name));
}

static void says(const json_t *want, bool equal)
{
    const json_t *tokens = json_object_get(json_array_get(outputs, 0), "tokens");

    cr_assert_eq(json_array_size(tokens), json_array_size(want));
    cr_assert_eq(json_equal(tokens, want), equal);
}

/* ---- */

Test(generate, the_last_token_of_a_prompt_is_always_computed)
{
    static const uint32_t lengths[][2] = {{16, 0}, {17, 1}, {64, 3}, {65, 4}};

    for (size_t i = 0; i < 4; i++) {
        ask(lengths[i][0], 1, false, false);
        turns();
        cr_assert_eq(fake_find('l') != NULL ? fake_find('l')->n : 0, lengths[i][1]);
        if (lengths[i][1] > 0) {
            answer_lookup(0);
        }
        take_put();
        cr_assert_eq(told("computed_blocks"), lengths[i][0] / 16);
    }
    cr_assert_eq(runs_done, 4);
}

Test(generate, what_comes_from_the_store_is_read_and_what_is_full_is_put)
{
    json_t *want = said_cold();

    cr_assert_eq(nstored, (PROMPT + MORE - 1) / 16, "prompt and answer, what is full");
    cr_assert_eq(kve_pool_cached(engine->pool), nstored);
    cr_assert_eq(last.computed, 4);
    cr_assert_eq(last.stored, nstored);
    cr_assert_eq(last.tokens, MORE);
    ask(PROMPT, MORE, false, false);
    turns();
    answer_lookup(3);
    answer_get(-1, 0);
    cr_assert_eq(fake_find('p')->n, 2 * 2);
    take_put();
    says(want, true);
    cr_assert_eq(told("store_blocks"), 3);
    cr_assert_eq(told("computed_blocks"), 1);
    json_decref(want);
}

Test(generate, a_block_that_did_not_come_is_computed_and_those_behind_it)
{
    json_t *want = said_cold();

    for (int bad = 0; bad < 3; bad++) {
        ask(PROMPT, MORE, false, false);
        turns();
        answer_lookup(3);
        answer_get(bad, KVPLANE_ERR_TICKET);
        take_put();
        says(want, true);
        cr_assert_eq(told("store_blocks"), bad);
        cr_assert_eq(told("computed_blocks"), 4 - bad);
        cr_assert_eq(last.caught, 1);
    }
    json_decref(want);
}

Test(generate, a_block_of_other_weights_makes_it_say_something_else)
{
    json_t *want = said_cold();
    unsigned char kept[8192];

    memcpy(kept, store[1].bytes, sizeof kept);
    for (size_t i = 1; i < sizeof kept; i += 2) {
        store[1].bytes[i] ^= 0x80; /* as far off as any other block */
    }
    ask(PROMPT, MORE, false, false);
    turns();
    answer_lookup(3);
    answer_get(-1, 0);
    take_put();
    says(want, false);
    json_decref(want);
}

Test(generate, its_own_cache_serves_all_but_what_must_be_computed)
{
    json_t *want = said_cold();

    ask(PROMPT, MORE, true, false);
    turns();
    cr_assert_null(fake_find('l'), "nothing left to look up");
    take_put();
    says(want, true);
    cr_assert_eq(told("local_blocks"), 3);
    /* not behind a reset, nor before one that is due */
    fake.token = (kvplane_token){2, 2};
    fake.callbacks->lineage(fake.ctx, true, "");
    ask(PROMPT, MORE, true, false);
    turns();
    answer_lookup(0);
    take_put();
    says(want, true);
    cr_assert_eq(told("local_blocks"), 0);
    json_decref(want);
}

Test(generate, keys_name_all_tokens_up_to_the_blocks_end)
{
    char keys[3][24];

    ask(PROMPT, 1, false, false);
    turns();
    memcpy(keys, fake_find('l')->keys, sizeof keys);
    answer_lookup(0);
    take_put();
    for (uint32_t changed = 0; changed < 48; changed += 7) {
        prompt[changed] ^= 1;
        ask(PROMPT, 1, false, false);
        turns();
        for (uint32_t i = 0; i < 3; i++) {
            bool same = strcmp(fake_find('l')->keys[i], keys[i]) == 0;
            cr_assert_eq(same, i < changed / 16, "token %u, block %u", changed, i);
        }
        answer_lookup(0);
        take_put();
        prompt[changed] ^= 1;
    }
}

Test(generate, preempted_requests_begin_again_and_say_the_same)
{
    json_t *want = said_cold();
    struct kvplane_call call = {.fake = {0}};

    ask(PROMPT, MORE, true, true);
    turns();
    fake.callbacks->reset_local(fake.ctx, &call, true);
    cr_assert_eq(call.fake.result, KVPLANE_OK);
    fake.callbacks->resume(fake.ctx, &call);
    turns();
    answer_lookup(0);
    take_put();
    says(want, true);
    cr_assert_eq(last.preempted, 1);
    cr_assert_eq(told("computed_blocks"), 4);
    json_decref(want);
}

Test(generate, without_room_the_youngest_gives_way_and_all_say_the_same)
{
    json_t *want = said_cold();

    kve_engine_destroy(engine);
    create(11); /* two of 4 blocks that grow to 6 */
    ask_as(&first, PROMPT, MORE, false, false);
    ask_as(&second, PROMPT, MORE, false, false);
    turns();
    looked_up(0);
    looked_up(0);
    turns();
    take_put();
    cr_assert_eq(runs_done, 1);
    cr_assert_eq(last_done, 1);
    cr_assert_eq(last.preempted, 0);
    says(want, true);
    answer_lookup(0);
    take_put();
    cr_assert_eq(runs_done, 2);
    cr_assert_eq(last.preempted, 1);
    says(want, true);
    json_decref(want);
}

Test(generate, blocks_that_a_put_still_holds_are_waited_for)
{
    json_t *want = said_cold();

    kve_engine_destroy(engine);
    create(11);
    ask(PROMPT, MORE, false, false);
    turns();
    answer_lookup(0); /* computed: its put begins, and holds 6 blocks */
    ask(PROMPT, MORE, false, false);
    turns();
    answer_lookup(0); /* wants a sixth one */
    take_put();
    take_put();
    cr_assert_eq(runs_done, 2);
    cr_assert_eq(last.preempted, 0);
    says(want, true);
    json_decref(want);
}

Test(generate, an_engine_whose_other_rank_says_nothing_gives_up)
{
    struct kve_gather_mesh mesh;
    struct kve_gather gather;

    kve_engine_destroy(engine);
    cr_assert_eq(kve_gather_mesh_open(2, &mesh), KVB_OK);
    gather = (struct kve_gather){.n = 2, .wait_ms = 20, .fds = {-1, mesh.fds[0][1]}};
    create_rank(64, 2, &gather);
    ask(PROMPT, MORE, false, false);
    for (int i = 0; i < 3; i++) {
        (void)kve_engine_turn(engine);
    }
    looked_up(0);
    (void)kve_engine_turn(engine);
    cr_assert(engine->broken);
    kve_gather_mesh_close(&mesh);
}

Test(generate, what_does_not_fit_is_refused)
{
    static const struct {
        const char *prompts;
        uint32_t max_tokens;
    } wrong[] = {
        {"[]", 1},       {"[[]]", 1},           {"[[256]]", 1},
        {"[[-1]]", 1},   {"[[1.5]]", 1},        {"[[1]]", 0},
        {"[1]", 1},      {"[[1],[\"a\"]]", 1},  {"{}", 1},
        {"[[1]]", 4096}, {"[[1]]", UINT32_MAX}, {"[[1]]", 64 * 16},
    };
    struct kve_run *run;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        json_t *prompts = json_loads(wrong[i].prompts, 0, NULL);
        cr_assert_not_null(prompts, "%s", wrong[i].prompts);
        cr_assert_eq(kve_engine_generate(engine, prompts, wrong[i].max_tokens, true, false, done,
                                         NULL, NULL, &run),
                     KVB_ERR_INVALID, "%s %u", wrong[i].prompts, wrong[i].max_tokens);
        json_decref(prompts);
    }
    cr_assert_eq(kve_engine_run(engine, NULL, 0, 1, true, false, done, NULL, NULL, &run),
                 KVB_ERR_INVALID, "it has no trace");
}
