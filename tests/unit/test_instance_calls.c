/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An RL loop of two engines, in which memory runs out once, at every place in turn where fleet,
 * connector and embedded coordinator ask for any: who asked is told, once; the same asked again is
 * done; nobody reads under a stay that was left (the fake engines check what is mapped and
 * registered); and in the end everybody serves, under the one name of their weights.
 */
#define FAIL_CALLS_CALLERS 4
#include "fail_calls.h"
#include "instance_fixture.h"

#include <criterion/criterion.h>

/* What one ask leaves of the engine's stay. */
static bool stays(const struct fake_engine *engine, const struct kvb_token *before)
{
    for (uint32_t i = 0; i < engine->nranks; i++) {
        if (kvb_token_equal(engine->ranks[i].lineage.token, *before)) {
            return true;
        }
    }
    return false;
}

/* Asks until it succeeds; what fails failed for want of memory. */
static void ask(struct world *w, const char *words, bool leaves)
{
    struct kvp_ask asked = world_ask(words);
    char body[] = "{}";
    asked.body = body;
    asked.body_len = sizeof body - 1;
    for (uint32_t try = 0;; try++) {
        struct kvb_token before = w->engine.ranks[0].lineage.token;
        struct told told = {.world = w};
        kvb_status_t status =
            kvp_fleet_request(w->fleet, "a", &asked, "req", world_told_, &told, NULL);
        cr_assert_eq(told.times, 0, "%s: never inside the call", words);
        if (status == KVB_OK) {
            cr_assert(sim_run_until(&w->sim, world_is_told_, &told, 2 * 3600 * 1000),
                      "%s: no answer", words);
            sim_settle(&w->sim);
            status = told.status;
        }
        cr_assert(status == KVB_OK || (fail_hit && status == KVB_ERR_NO_MEMORY),
                  "place %zx, %s: %s: %s", fail_calls_place(), words, kvb_status_label(status),
                  told.message);
        cr_assert(status != KVB_OK || !leaves || !stays(&w->engine, &before),
                  "place %zx, %s: the stay that it left goes on", fail_calls_place(), words);
        if (status == KVB_OK) {
            return;
        }
        cr_assert_lt(try, 3, "%s: does not recover", words);
        sim_advance(&w->sim, 2000); /* what failed is tried again after forward_retry_ms */
    }
}

static bool all_serve(void *arg)
{
    struct world *w = arg;
    return fake_engine_serves(&w->engine) && fake_engine_open(&w->engine) &&
           fake_engine_serves(&w->other) && fake_engine_open(&w->other);
}

/* Both under the name of the weights that they hold. */
static void check_together(struct world *w, const char *when)
{
    cr_assert(sim_run_until(&w->sim, all_serve, w, 3600 * 1000), "place %zx, %s: not serving",
              fail_calls_place(), when);
    sim_advance(&w->sim, 120 * 1000);
    struct kvp_view a, b;
    cr_assert(kvp_fleet_view(w->fleet, "a", &a) && kvp_fleet_view(w->fleet, "b", &b));
    cr_assert(a.open && a.ready && b.open && b.ready, "place %zx, %s: %s; %s", fail_calls_place(),
              when, a.not_ready, b.not_ready);
    cr_assert_str_neq(a.weights_name, "", "place %zx, %s: %s", fail_calls_place(), when,
                      a.private_reason);
    cr_assert_str_eq(a.weights_name, b.weights_name, "place %zx, %s", fail_calls_place(), when);
    cr_assert(w->engine.nranks != w->other.nranks || kvb_lineage_equal(a.lineage, b.lineage),
              "place %zx, %s: apart", fail_calls_place(), when);
    cr_assert_eq(a.retirements_pending, 0);
}

/* Refused for want of memory, and nothing of it is left, it comes again. */
static void attach(struct world *w, struct fake_engine *engine)
{
    kvb_status_t status;
    while ((status = fake_engine_try_attach(engine)) != KVB_OK) {
        cr_assert(fail_hit && status == KVB_ERR_NO_MEMORY, "place %zx: %s", fail_calls_place(),
                  kvb_status_label(status));
    }
    sim_settle(&w->sim);
}

static const struct {
    const char *words;
    bool leaves;
} loop[] = {
    {"pause clear", true},     {"resume", false},        {"relay", false},
    {"sleep 1", true},         {"wake weights", false},  {"wake", false},
    {"sleep 1 optout", false}, {"wake", false},          {"release kv_cache", true},
    {"wake kv_cache", false},  {"reset external", true}, {"tenant", true},
};

/* A trainer that gives versions instead: every update is named, and never before its end. */
static void run_versions(struct world *w)
{
    static const char *const versions[] = {"v=1", "v=2", "v=3"};
    w->engine.fingerprints = false;
    attach(w, &w->engine);
    for (size_t i = 0; i < 3; i++) {
        char finish[32];
        (void)snprintf(finish, sizeof finish, "finish %s", versions[i]);
        ask(w, "sleep 1", true); /* leaves the name, too */
        ask(w, "wake", false);
        ask(w, "start", true);
        ask(w, "update", false);
        ask(w, finish, false);
    }
    sim_advance(&w->sim, 120 * 1000);
    struct kvp_view view = world_view(w);
    cr_assert(view.open && view.ready, "place %zx: %s", fail_calls_place(), view.not_ready);
    cr_assert_str_eq(view.weights_name, "3", "place %zx: '%s': %s", fail_calls_place(),
                     view.weights_name, view.private_reason);
}

static void run_fingerprints(struct world *w)
{
    attach(w, &w->engine);
    fake_engine_init(&w->other, &w->sim, w->fleet, "b", 1);
    w->has_other = true;
    attach(w, &w->other);
    for (size_t i = 0; i < sizeof loop / sizeof loop[0]; i++) {
        ask(w, loop[i].words, loop[i].leaves);
    }
    check_together(w, "after the loop");
    fake_engine_drop_link(&w->engine);
    sim_settle(&w->sim);
    attach(w, &w->engine); /* echoes what it had */
    check_together(w, "attached again");
    fake_engine_restart(&w->engine);
    sim_settle(&w->sim);
    attach(w, &w->engine);
    check_together(w, "started again");
}

static void each_place(void (*run)(struct world *w), uint32_t ranks)
{
    for (uint32_t nth = 1; nth <= 40; nth++) { /* many ways lead by one place */
        FAIL_CALLS_EACH(nth)
        {
            struct world w;
            fail_calls_pause();
            world_open_fleet(&w, true, NULL);
            fake_engine_init(&w.engine, &w.sim, w.fleet, "a", ranks);
            sim_reserve_timers(&w.sim.sched);
            fail_calls_resume();
            run(&w);
            fail_calls_stop();
            world_close(&w);
        }
    }
}

Test(instance_calls, memory_that_runs_out_once_costs_a_retry_and_no_promise, .timeout = 300)
{
    each_place(run_fingerprints, 1);
    each_place(run_fingerprints, 2);
}

Test(instance_calls, nor_a_version_that_was_given, .timeout = 300)
{
    each_place(run_versions, 1);
}

Test(instance_calls, a_fleet_that_cannot_be_made_leaves_nothing)
{
    struct sim_sched sim;
    sim_init(&sim, 1);
    struct kvp_fleet *none = NULL;
    const struct kvp_fleet_config strange = {.sched = &sim.sched, .unversioned_event = "noon"};
    cr_assert_eq(kvp_fleet_create(&strange, &none), KVB_ERR_INVALID);
    cr_assert_null(none);
    const struct kvp_fleet_config config = {.sched = &sim.sched};
    FAIL_CALLS_EACH(1)
    {
        struct kvp_fleet *fleet = NULL;
        kvb_status_t status = kvp_fleet_create(&config, &fleet);
        cr_assert_eq(status, fail_calls_stop() ? KVB_ERR_NO_MEMORY : KVB_OK);
        cr_assert_eq(fleet == NULL, status != KVB_OK);
        if (fleet != NULL) {
            kvp_fleet_destroy(fleet);
        }
    }
    sim_cleanup(&sim);
}

/* After so many turns of the loop; false: all was answered before. */
static bool ends_after(const char *words, uint32_t turns)
{
    struct world w;
    struct told told[2] = {{.world = &w}, {.world = &w}};
    world_open(&w, 2, true);
    world_add_other(&w);
    for (int i = 0; i < 2; i++) { /* the second one waits, or joins */
        struct kvp_ask asked = world_ask(i == 0 ? words : "reset external");
        cr_assert_eq(kvp_fleet_request(w.fleet, "a", &asked, "req", world_told_, &told[i], NULL),
                     KVB_OK);
    }
    for (uint32_t i = 0; i < turns; i++) {
        w.sim.now_ns += KVB_NS_PER_MS;
        (void)sim_turn(&w.sim);
    }
    bool open = told[0].times + told[1].times < 2;
    fake_engine_drop_link(&w.engine);
    fake_engine_drop_link(&w.other);
    kvp_fleet_destroy(w.fleet);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(told[i].times, 1, "%s, %u turns: answered %u times", words, turns,
                     told[i].times);
        cr_assert(told[i].status == KVB_OK || told[i].status == KVB_ERR_CANCELED ||
                      told[i].status == KVB_ERR_DISCONNECTED,
                  "%s, %u turns: %s", words, turns, kvb_status_label(told[i].status));
    }
    kvs_coordinator_destroy(w.coordinator);
    sim_settle(&w.sim); /* what was asked of the coordinator is nobody's now */
    sim_cleanup(&w.sim);
    return open;
}

Test(instance_calls, a_fleet_that_ends_at_any_moment_answers_everything_once)
{
    static const char *const asks[] = {"sleep 1", "reset external", "tenant", "update"};
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        for (uint32_t turns = 0; ends_after(asks[i], turns); turns++) {
            cr_assert_lt(turns, 1000);
        }
    }
}

/* One asks, one joins, one is refused at once, one waits for what was asked: each is told once, or
 * has NO_MEMORY and is not told; and what was asked for runs as if the others had not been. */
Test(instance_calls, who_cannot_be_told_is_refused_at_once)
{
    static const char *const words[] = {"sleep 1", "sleep 1", "reset at_once", "wake"};
    enum { ASKS = 4, AWAITS = ASKS, ALL };
    for (uint32_t nth = 1; nth <= 4; nth++) {
        FAIL_CALLS_EACH(nth)
        {
            struct world w;
            struct told told[ALL];
            kvb_status_t begun[ALL];
            uint64_t id = UINT64_MAX;
            fail_calls_pause();
            world_open(&w, 1, true);
            sim_reserve_timers(&w.sim.sched);
            fail_calls_resume();
            for (int i = 0; i < ALL; i++) {
                told[i] = (struct told){.world = &w};
            }
            for (int i = 0; i < ASKS; i++) {
                struct kvp_ask asked = world_ask(words[i]);
                begun[i] = kvp_fleet_request(w.fleet, "a", &asked, "req", world_told_, &told[i],
                                             i < 2 && id == UINT64_MAX ? &id : NULL);
            }
            begun[AWAITS] = id != UINT64_MAX
                                ? kvp_fleet_await(w.fleet, id, world_told_, &told[AWAITS])
                                : KVB_ERR_NO_MEMORY;
            fail_calls_stop();
            sim_advance(&w.sim, 3600 * 1000);
            for (int i = 0; i < ALL; i++) {
                cr_assert(begun[i] == KVB_OK || (fail_hit && begun[i] == KVB_ERR_NO_MEMORY),
                          "place %zx, %d: %s", fail_calls_place(), i, kvb_status_label(begun[i]));
                cr_assert_eq(told[i].times, begun[i] == KVB_OK, "place %zx, %d: told %u times",
                             fail_calls_place(), i, told[i].times);
                cr_assert(begun[i] != KVB_OK || told[i].status == KVB_OK ||
                              (i == 2 && told[i].status == KVB_ERR_BUSY) ||
                              (fail_hit && told[i].status == KVB_ERR_NO_MEMORY),
                          "place %zx, %d: %s", fail_calls_place(), i,
                          kvb_status_label(told[i].status));
            }
            cr_assert_eq(world_view(&w).is_sleeping,
                         begun[3] != KVB_OK || told[3].status != KVB_OK);
            world_close(&w);
        }
    }
}
