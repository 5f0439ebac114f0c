/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kinds of fault that others shipped, as what must hold in every order and at every failure:
 *
 *   a sleep of which a step failed has released nothing (B05, vllm-project/vllm#54581);
 *   work starts again only when every tag of every rank is there (B06, vllm-project/vllm#44395).
 *
 * Every call that the daemon makes is watched, so that what is promised is about each moment, and
 * not only about how it ends.
 */
#include "instance_fixture.h"

#include <criterion/criterion.h>

/* ---- the watch ---- */

#define TYPES 64

struct watch {
    struct world world;
    char where[256];
    bool down;  /* memory is to go, and not only back to where it was (a wake undone) */
    bool whole; /* what is asleep now was wholly awake: nothing of the way down may be left out */
    bool leaves, offloads;
    /* since the operation was asked */
    bool told;         /* it was answered: what comes now is the daemon's own doing */
    uint32_t failures; /* before memory went */
    bool released, resumed;
    bool done[FAKE_RANKS_MAX][TYPES];
    bool set_aside[FAKE_RANKS_MAX];
};

static bool all_there(const struct fake_engine *engine)
{
    for (uint32_t r = 0; r < engine->nranks; r++) {
        for (uint32_t t = 0; t < engine->ntags; t++) {
            const struct fake_tag *tag = &engine->ranks[r].tags[t];
            if (tag->residency != KVB_RESIDENT || !tag->registered) {
                return false;
            }
        }
    }
    return true;
}

static void memory_goes(const struct watch *watch)
{
    cr_assert(watch->failures == 0 || !watch->down, "%s: memory goes although a step failed",
              watch->where);
    if (!watch->whole) {
        return;
    }
    cr_assert(watch->done[0][KVB_LINK_PAUSE], "%s: not paused", watch->where);
    cr_assert(watch->done[0][KVB_LINK_RESET_LOCAL], "%s: not reset", watch->where);
    for (uint32_t r = 0; r < watch->world.engine.nranks; r++) {
        cr_assert(watch->done[r][KVB_LINK_EVENT], "%s: rank %u not drained", watch->where, r);
        cr_assert(watch->done[r][KVB_LINK_REGISTER_REGION], "%s: rank %u still registered",
                  watch->where, r);
        cr_assert(watch->done[r][KVB_LINK_LINEAGE] || !watch->leaves, "%s: rank %u has not left",
                  watch->where, r);
        cr_assert(watch->set_aside[r] || !watch->offloads, "%s: rank %u is not offloaded",
                  watch->where, r);
    }
}

static void on_step(void *ctx, const struct fake_step *step, kvb_status_t status)
{
    struct watch *watch = ctx;
    kvb_assert(step->type < TYPES);
    if (status == KVB_IN_PROGRESS && step->type == KVB_LINK_RESUME) {
        watch->resumed = true;
        cr_assert(all_there(&watch->world.engine), "%s: resumed with a tag missing", watch->where);
    }
    cr_assert(step->rank == 0 || (step->type != KVB_LINK_PAUSE && step->type != KVB_LINK_RESUME &&
                                  step->type != KVB_LINK_RESET_LOCAL),
              "%s: asked of a worker", watch->where);
    if (watch->told) {
        return;
    }
    if (status == KVB_IN_PROGRESS) {
        if (step->commit) {
            memory_goes(watch);
            watch->released = true;
        }
    } else if (status != KVB_OK) {
        watch->failures += !watch->released;
    } else if (step->type == KVB_LINK_RELEASE) {
        watch->set_aside[step->rank] = true;
    } else {
        watch->done[step->rank][step->type] = true;
    }
}

static void watch_open(struct watch *watch, uint32_t ranks, uint32_t tags)
{
    memset(watch, 0, sizeof *watch);
    struct world *w = &watch->world;
    world_open_fleet(w, true, NULL);
    fake_engine_init(&w->engine, &w->sim, w->fleet, "a", ranks);
    w->engine.ntags = tags;
    w->engine.watch = on_step;
    w->engine.watch_ctx = watch;
    fake_engine_attach(&w->engine);
    sim_settle(&w->sim);
    watch->told = true;
}

static void watch_begin(struct watch *watch)
{
    watch->told = watch->released = watch->resumed = false;
    watch->failures = 0;
    memset(watch->done, 0, sizeof watch->done);
    memset(watch->set_aside, 0, sizeof watch->set_aside);
}

/* As world_do(), but what is watched ends when the answer is there, not when all has settled. */
static struct told *watch_do(struct watch *watch, const char *words)
{
    watch_begin(watch);
    struct told *told = world_start(&watch->world, words);
    bool answered = sim_run_until(&watch->world.sim, world_is_told_, told, 2 * 3600 * 1000);
    kvb_assert(answered);
    watch->told = true;
    return told;
}

/* Residency of all tags of all ranks as text. */
static const char *memory_of(const struct fake_engine *engine, char text[128])
{
    size_t n = 0;
    for (uint32_t r = 0; r < engine->nranks; r++) {
        for (uint32_t t = 0; t < engine->ntags; t++) {
            text[n++] = kvb_residency_text(engine->ranks[r].tags[t].residency)[0];
        }
        text[n++] = ' ';
    }
    text[n] = '\0';
    return text;
}

/* ---- B05 ---- */

static const struct way_down {
    const char *setup[3];
    const char *op;
    bool whole, leaves, offloads;
} ways_down[] = {
    {{NULL}, "sleep 1", true, true, true},
    {{NULL}, "sleep 1 wait", true, true, true},
    {{NULL}, "sleep 1 keep", true, true, true},
    {{NULL}, "sleep 1 retract", true, true, true},
    {{NULL}, "sleep 1 optout", true, false, true},
    {{NULL}, "sleep 2", true, true, false},
    {{NULL}, "sleep 2 keep", true, true, false},
    {{"pause keep"}, "sleep 1", true, true, true},
    {{"start"}, "sleep 2 wait", true, true, false},
    {{NULL}, "release", true, true, false},
    {{"pause"}, "release", false, true, false}, /* paused by the pause before */
    {{NULL}, "occupation", true, true, true},
    {{NULL}, "occupation weights", true, true, true},
    {{NULL}, "occupation kv_cache", true, true, false},
    {{"pause", "occupation kv_cache"}, "occupation weights", false, true, true},
    {{"sleep 1"}, "sleep 2", false, true, false},
    {{"sleep 1 optout"}, "sleep 1", false, true, false},
    {{"sleep 1", "wake weights"}, "sleep 1", false, true, true},
    {{"sleep 2", "wake kv_cache"}, "sleep 2", false, true, false},
    {{"pause", "release"}, "sleep 1", false, true, true},
};

static void set_up(struct watch *watch, const char *const setup[3])
{
    watch->whole = false;
    for (int i = 0; i < 3 && setup[i] != NULL; i++) {
        struct told *told = world_do(&watch->world, setup[i]);
        cr_assert_eq(told->status, KVB_OK, "%s: %s", setup[i], told->message);
    }
}

/* What a caller is told of a sleep that failed: nothing went, and what the instance is now. */
static void says_what_is_so(struct watch *watch, const struct told *told, enum fake_fault fault,
                            const char *before)
{
    const struct fake_engine *engine = &watch->world.engine;
    char now[128];
    cr_assert_neq(told->status, KVB_OK, "%s", watch->where);
    cr_assert_str_eq(memory_of(engine, now), before, "%s", watch->where);
    cr_assert(told->has_view && told->message[0] != '\0', "%s", watch->where);
    cr_assert_not_null(strstr(told->message, "; the instance is now "), "%s: %s", watch->where,
                       told->message);
    if (fault != FAKE_ERROR) {
        return; /* a rank that did not answer is asked by and by */
    }
    cr_assert_eq(told->view.scheduler == KVP_SCHEDULER_RUNNING, !engine->paused, "%s: said %s",
                 watch->where, told->message);
    for (uint32_t t = 0; t < told->view.ntags; t++) {
        const struct fake_tag *tag = &engine->ranks[0].tags[0];
        tag += strcmp(tag->tag, told->view.tags[t].tag) != 0;
        cr_assert_eq(told->view.tags[t].residency, tag->residency, "%s: said %s", watch->where,
                     told->message);
    }
    cr_assert(engine->paused || told->view.ready, "%s: %s", watch->where, told->message);
}

/* False: the operation has no nth call. */
static bool fail_nth(const struct way_down *way, uint32_t ranks, enum fake_fault fault,
                     uint64_t nth)
{
    struct watch watch;
    watch_open(&watch, ranks, 2);
    struct fake_engine *engine = &watch.world.engine;
    set_up(&watch, way->setup);
    char before[128], after[128];
    memory_of(engine, before);
    bool ran = !engine->paused;
    snprintf(watch.where, sizeof watch.where, "%s %s, %u ranks, call %llu %s",
             way->setup[0] == NULL ? "" : way->setup[0], way->op, ranks, (unsigned long long)nth,
             fake_fault_text(fault));
    watch.down = true;
    watch.whole = way->whole;
    watch.leaves = way->leaves;
    watch.offloads = way->offloads;
    if (nth > 0) {
        engine->fault = fault;
        engine->fault_at = engine->ncalls + nth;
    }
    struct told *told = watch_do(&watch, way->op);
    bool hit = engine->ncalls >= engine->fault_at && nth > 0;
    if (watch.failures > 0) {
        cr_assert_not(watch.released, "%s", watch.where);
        says_what_is_so(&watch, told, fault, before);
    }
    engine->fault_at = 0;
    sim_advance(&watch.world.sim, 900000); /* what the daemon does by itself */
    if (watch.failures > 0) {
        cr_assert_str_eq(memory_of(engine, after), before, "%s", watch.where);
        cr_assert_eq(!engine->paused, ran, "%s: not as before", watch.where);
        cr_assert(!ran || fake_engine_serves(engine), "%s", watch.where);
    }
    told = watch_do(&watch, way->op); /* without any other call */
    cr_assert_eq(told->status, KVB_OK, "%s: retry: %s", watch.where, told->message);
    cr_assert(world_view(&watch.world).is_sleeping, "%s", watch.where);
    sim_settle(&watch.world.sim);
    told = world_do(&watch.world, "wake");
    cr_assert_eq(told->status, KVB_OK, "%s: %s", watch.where, told->message);
    cr_assert(fake_engine_serves(engine), "%s", watch.where);
    world_close(&watch.world);
    return hit;
}

static void fail_every_step(enum fake_fault fault)
{
    for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
        for (size_t i = 0; i < sizeof ways_down / sizeof ways_down[0]; i++) {
            uint64_t nth = 0; /* first without */
            while (fail_nth(&ways_down[i], ranks, fault, nth) || nth == 0) {
                nth++;
                cr_assert_lt(nth, 100);
            }
            cr_assert_gt(nth, 2);
        }
    }
}

Test(sleep_rules, a_sleep_with_a_step_that_failed_releases_nothing_and_says_what_is_so)
{
    fail_every_step(FAKE_ERROR);
}

Test(sleep_rules, a_sleep_with_a_step_that_was_not_answered_releases_nothing)
{
    fail_every_step(FAKE_SILENT);
}

Test(sleep_rules, a_sleep_with_a_step_that_was_answered_too_late_releases_nothing)
{
    fail_every_step(FAKE_LATE);
}

Test(sleep_rules, a_sleep_with_a_step_that_was_done_too_late_releases_nothing)
{
    fail_every_step(FAKE_SLOW);
}

/* A drain that is not done in time is such a step: by requests that run, by transfers. */
Test(sleep_rules, a_sleep_that_cannot_drain_releases_nothing_and_the_retry_works)
{
    for (int by = 0; by < 2; by++) {
        struct watch watch;
        watch_open(&watch, 2, 2);
        struct fake_engine *engine = &watch.world.engine;
        snprintf(watch.where, sizeof watch.where, "drain %d", by);
        watch.down = watch.whole = watch.leaves = watch.offloads = true;
        engine->busy = by == 0;
        engine->held = by == 0 ? 3 : 0;
        engine->ranks[1].transfers = by == 1;
        uint64_t begun_ns = watch.world.sim.now_ns;
        struct told *told = watch_do(&watch, "sleep 1 wait");
        cr_assert_eq(told->status, KVB_ERR_TIMEOUT, "%s", told->message);
        cr_assert_eq((watch.world.sim.now_ns - begun_ns) / KVB_NS_PER_MS, 480000, "its bound");
        cr_assert_not_null(strstr(told->message, by == 0 ? "was not idle within the drain bound"
                                                         : "puts and gets of rank 1 did not end"),
                           "%s", told->message);
        cr_assert_not(watch.released);
        sim_settle(&watch.world.sim);
        cr_assert(fake_engine_serves(engine), "%s", told->message);
        cr_assert(world_view(&watch.world).ready);
        fake_engine_finish_requests(engine);
        told = watch_do(&watch, "sleep 1 wait");
        cr_assert_eq(told->status, KVB_OK, "%s", told->message);
        world_close(&watch.world);
    }
}

/* ---- B06 ---- */

static const char *const all_tags[FAKE_TAGS_MAX] = {"kv_cache", "weights", "draft"};

static unsigned missing(const struct fake_engine *engine)
{
    unsigned bits = 0;
    for (uint32_t t = 0; t < engine->ntags; t++) {
        bits |= engine->ranks[0].tags[t].residency != KVB_RESIDENT ? 1u << t : 0;
    }
    return bits;
}

/* What must be so at every moment between the first tag's leaving and the last one's return. */
static void nothing_runs(struct watch *watch)
{
    struct kvp_view view = world_view(&watch->world);
    const struct fake_engine *engine = &watch->world.engine;
    cr_assert(engine->paused, "%s", watch->where);
    cr_assert_not(watch->resumed, "%s", watch->where);
    cr_assert(view.is_sleeping && view.is_paused && !view.ready && !view.open, "%s", watch->where);
    for (uint32_t r = 0; r < engine->nranks; r++) {
        cr_assert_not(engine->ranks[r].rank.stay->open, "%s: rank %u", watch->where, r);
    }
}

static void refuses_to_run(struct watch *watch, const char *words, kvb_status_t expected)
{
    struct told *told = watch_do(watch, words);
    sim_settle(&watch->world.sim);
    cr_assert_eq(told->status, expected, "%s: %s: %s", watch->where, words, told->message);
    nothing_runs(watch);
}

static void wake_words(unsigned tags, const char *more, char text[128])
{
    size_t n = (size_t)snprintf(text, 128, "wake");
    for (uint32_t t = 0; t < FAKE_TAGS_MAX; t++) {
        n += (tags & (1u << t)) != 0 ? (size_t)snprintf(text + n, 128 - n, " %s", all_tags[t]) : 0;
    }
    snprintf(text + n, 128 - n, "%s", more);
}

/* Brings back those tags (some may be there already) and tries to start work in every other way. */
static void wake(struct watch *watch, unsigned tags, const char *more)
{
    char words[128];
    struct fake_engine *engine = &watch->world.engine;
    wake_words(tags, more, words);
    size_t used = strlen(watch->where);
    snprintf(watch->where + used, sizeof watch->where - used, "; %s", words);
    unsigned after = missing(engine) & ~tags;
    struct told *told = watch_do(watch, words);
    sim_settle(&watch->world.sim);
    cr_assert_eq(told->status, KVB_OK, "%s: %s", watch->where, told->message);
    cr_assert_eq(missing(engine), after, "%s", watch->where);
    cr_assert_eq(told->view.is_sleeping, after != 0, "%s", watch->where);
    if (after == 0) {
        cr_assert(watch->resumed && fake_engine_serves(engine), "%s", watch->where);
        cr_assert(world_view(&watch->world).ready, "%s", watch->where);
        return;
    }
    nothing_runs(watch);
    refuses_to_run(watch, "resume", KVB_ERR_BAD_STATE);
    refuses_to_run(watch, "wake nonsense", KVB_OK);
    refuses_to_run(watch, "wake scheduling", KVB_OK);
    refuses_to_run(watch, "pause keep", KVB_OK);
    refuses_to_run(watch, "reset", KVB_OK);
    refuses_to_run(watch, "update", KVB_OK);
}

static const char *const downs[][2] = {
    {"sleep 1", NULL},
    {"sleep 2 keep", NULL},
    {"sleep 1 optout", NULL},
    {"sleep 0", "sleep 1"},
    {"pause", "sleep 1"},
    {"release", NULL},
    {"pause keep", "release"},
    {"sleep 1", "sleep 2"},
    {"release", "sleep 2"},
    {"occupation", NULL},
    {"occupation weights", "occupation kv_cache"},
};

/* The wake calls as numbers in base 2^ntags: each a subset of all tags, those that are there too.
 */
static void wake_in_order(const char *const down[2], uint32_t ranks, uint32_t ntags, uint32_t plan)
{
    static const char *const mores[] = {"", " nonsense", " cuda_graph", " scheduling"};
    struct watch watch;
    watch_open(&watch, ranks, ntags);
    struct fake_engine *engine = &watch.world.engine;
    snprintf(watch.where, sizeof watch.where, "%s", down[0]);
    for (int i = 0; i < 2 && down[i] != NULL; i++) {
        struct told *told = watch_do(&watch, down[i]);
        sim_settle(&watch.world.sim);
        cr_assert_eq(told->status, KVB_OK, "%s: %s", down[i], told->message);
    }
    for (uint32_t step = 0; missing(engine) != 0; step++) {
        unsigned tags = (plan >> (step * ntags)) & ((1u << ntags) - 1);
        if (tags == 0) {
            wake_words(0, "", watch.where);
            snprintf(watch.where, sizeof watch.where, "%s and the rest", down[0]);
            struct told *told = watch_do(&watch, "wake");
            sim_settle(&watch.world.sim);
            cr_assert_eq(told->status, KVB_OK, "%s", told->message);
            cr_assert(watch.resumed, "%s", watch.where);
            break;
        }
        wake(&watch, tags, mores[(plan + step) % 4]);
    }
    cr_assert(fake_engine_serves(engine), "%s", watch.where);
    world_close(&watch.world);
}

Test(sleep_rules, nothing_starts_before_the_last_tag_whatever_is_woken_in_whatever_order)
{
    for (uint32_t ntags = 2; ntags <= FAKE_TAGS_MAX; ntags++) {
        for (size_t d = 0; d < sizeof downs / sizeof downs[0]; d++) {
            for (uint32_t plan = 0; plan < 1u << (ntags * ntags); plan++) {
                wake_in_order(downs[d], 1 + plan % 2, ntags, plan);
            }
        }
    }
}

/* The same while a step of it goes wrong: on_step() judges each resume. */
Test(sleep_rules, nothing_starts_before_the_last_tag_whatever_fails_on_the_way)
{
    static const char *const ups[][3] = {
        {"wake"},
        {"wake weights", "wake kv_cache"},
        {"wake kv_cache", "wake weights"},
        {"wake weights v=3", "wake weights kv_cache"},
    };
    static const char *const falls[] = {"sleep 1", "sleep 2 keep", "release"};
    for (size_t u = 0; u < sizeof ups / sizeof ups[0]; u++) {
        for (size_t d = 0; d < sizeof falls / sizeof falls[0]; d++) {
            for (int fault = FAKE_ERROR; fault <= FAKE_SLOW; fault++) {
                bool hit = true;
                for (uint64_t nth = 1; hit; nth++) {
                    struct watch watch;
                    watch_open(&watch, 2, 2);
                    struct fake_engine *engine = &watch.world.engine;
                    (void)world_do(&watch.world, falls[d]);
                    snprintf(watch.where, sizeof watch.where, "%s, %s, call %llu %s", falls[d],
                             ups[u][0], (unsigned long long)nth, fake_fault_text(fault));
                    engine->fault = (enum fake_fault)fault;
                    engine->fault_at = engine->ncalls + nth;
                    for (int i = 0; i < 3 && ups[u][i] != NULL; i++) {
                        (void)watch_do(&watch, ups[u][i]);
                        sim_advance(&watch.world.sim, 900000);
                        cr_assert(engine->paused || all_there(engine), "%s", watch.where);
                    }
                    hit = engine->ncalls >= engine->fault_at;
                    engine->fault_at = 0;
                    struct told *told = world_do(&watch.world, "wake");
                    cr_assert_eq(told->status, KVB_OK, "%s: %s", watch.where, told->message);
                    cr_assert(fake_engine_serves(engine), "%s", watch.where);
                    world_close(&watch.world);
                    cr_assert_lt(nth, 100);
                }
            }
        }
    }
}
