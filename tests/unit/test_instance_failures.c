/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failure injected at every call of every lifecycle operation, on every rank, in every way a call
 * can go wrong. Afterwards what P4 says holds: the memory is as it was, or as it was to be, the
 * same on all ranks; the instance tells the truth about it; the retry works; and the way back
 * leads to an instance that serves. P3 is asserted by the fake engine at every step.
 */
#include "instance_fixture.h"

#include <criterion/criterion.h>

static const struct scenario {
    const char *setup[3];
    const char *op;
    const char *back[2];
} scenarios[] = {
    {{NULL}, "sleep 0", {"wake"}},
    {{NULL}, "sleep 1", {"wake"}},
    {{NULL}, "sleep 2 keep", {"wake"}},
    {{NULL}, "sleep 1 optout", {"wake"}},
    {{"sleep 1"}, "sleep 2", {"wake"}},
    {{"sleep 1"}, "wake", {NULL}},
    {{"sleep 1"}, "wake v=7", {NULL}},
    {{"sleep 2"}, "wake weights", {"wake kv_cache"}},
    {{"sleep 1", "wake weights"}, "wake kv_cache", {NULL}},
    {{"sleep 1", "wake weights"}, "sleep 1", {"wake"}},
    {{"pause"}, "release", {"wake"}},
    {{NULL}, "release", {"wake"}},
    {{"pause"}, "sleep 1", {"wake"}},
    {{NULL}, "pause clear", {"resume"}},
    {{NULL}, "pause keep", {"resume"}},
    {{"pause"}, "resume", {NULL}},
    {{NULL}, "reset external", {NULL}},
    {{NULL}, "reset", {NULL}},
    {{NULL}, "start", {"update", "finish v=1"}},
    {{"start", "update"}, "finish v=1", {NULL}},
    {{"pause", "start"}, "resume", {NULL}},
    {{NULL}, "update v=1", {NULL}},
    {{"pause"}, "update v=1", {"resume"}},
    {{NULL}, "version v=2", {NULL}},
    {{NULL}, "tenant", {NULL}},
};

/* Residency of both tags on all ranks as one number; UINT32_MAX: the ranks differ. */
static uint32_t memory_of(const struct fake_engine *engine)
{
    uint32_t all = 0;
    for (uint32_t r = 0; r < engine->nranks; r++) {
        uint32_t mine =
            engine->ranks[r].tags[0].residency * 8 + (uint32_t)engine->ranks[r].tags[1].residency;
        if (r > 0 && mine != all) {
            return UINT32_MAX;
        }
        all = mine;
    }
    return all;
}

static void set_up(struct world *w, const struct scenario *scenario)
{
    for (int i = 0; i < 3 && scenario->setup[i] != NULL; i++) {
        struct told *told = world_do(w, scenario->setup[i]);
        cr_assert_eq(told->status, KVB_OK, "%s: %s", scenario->setup[i], told->message);
    }
}

static void view_is_true(struct world *w, const char *where)
{
    struct kvp_view view = world_view(w);
    for (uint32_t t = 0; t < view.ntags; t++) {
        for (uint32_t r = 0; r < w->engine.nranks; r++) {
            const struct fake_tag *tags = w->engine.ranks[r].tags;
            const struct fake_tag *tag =
                strcmp(tags[0].tag, view.tags[t].tag) == 0 ? &tags[0] : &tags[1];
            cr_assert(
                view.tags[t].residency == tag->residency || view.tags[t].residency == KVB_UNKNOWN,
                "%s: %s is said to be %s, is %s", where, tag->tag,
                kvb_residency_text(view.tags[t].residency), kvb_residency_text(tag->residency));
            cr_assert(view.tags[t].residency != KVB_RESIDENT || tag->registered,
                      "%s: %s is said to be resident but is not registered", where, tag->tag);
        }
    }
    cr_assert(!view.ready || fake_engine_serves(&w->engine), "%s", where);
}

/* Of the ranks that are left when one went: all as before, or all as it was to be; and what is
 * there is registered. */
static void fellows_agree(const struct world *w, uint32_t before, uint32_t after, const char *where)
{
    uint32_t all = UINT32_MAX;
    for (uint32_t r = 0; r < w->engine.nranks; r++) {
        const struct fake_rank *rank = &w->engine.ranks[r];
        if (rank->instance == NULL) {
            continue;
        }
        uint32_t mine = rank->tags[0].residency * 8 + (uint32_t)rank->tags[1].residency;
        cr_assert(mine == before || mine == after, "%s: rank %u is left at %u", where, r, mine);
        cr_assert(all == UINT32_MAX || all == mine, "%s: rank %u differs", where, r);
        all = mine;
        for (uint32_t t = 0; t < w->engine.ntags; t++) {
            cr_assert(rank->tags[t].registered == (rank->tags[t].residency == KVB_RESIDENT),
                      "%s: rank %u, %s: mapped and not registered", where, r, rank->tags[t].tag);
        }
    }
}

/* One run with the nth call of the operation going wrong. False: it has no nth call. */
static bool run(const struct scenario *scenario, uint32_t ranks, enum fake_fault fault,
                uint64_t nth)
{
    char where[256];
    snprintf(where, sizeof where, "%s, %u ranks, call %llu %s", scenario->op, ranks,
             (unsigned long long)nth, fake_fault_text(fault));
    /* What it is like when nothing goes wrong. */
    struct world clean;
    world_open(&clean, ranks, true);
    set_up(&clean, scenario);
    uint32_t before = memory_of(&clean.engine);
    world_do(&clean, scenario->op);
    uint32_t after = memory_of(&clean.engine);
    world_close(&clean);

    struct world w;
    world_open(&w, ranks, true);
    set_up(&w, scenario);
    bool ran = !w.engine.paused;
    w.engine.fault = fault;
    w.engine.fault_at = w.engine.ncalls + nth;
    struct told *told = world_do(&w, scenario->op);
    bool hit = w.engine.ncalls >= w.engine.fault_at;
    bool died = !fake_engine_attached(&w.engine);
    if (!died) {
        view_is_true(&w, where);
    }
    sim_advance(&w.sim, 900000); /* what the daemon does by itself */
    died = !fake_engine_attached(&w.engine);
    if (died && fault >= FAKE_VANISH) {
        cr_assert_not(world_view(&w).ready);
        cr_assert_not(world_view(&w).attached);
        fellows_agree(&w, before, after, where);
        fake_engine_attach(&w.engine);
        sim_advance(&w.sim, 900000);
        died = false;
    }
    uint32_t now = memory_of(&w.engine);
    if (!died) {
        cr_assert_neq(now, UINT32_MAX, "%s: the ranks differ", where);
        cr_assert(now == before || now == after, "%s: neither as before nor done (%u)", where, now);
        cr_assert(told->status != KVB_OK || now == after || fault >= FAKE_VANISH,
                  "%s: success, but not done", where);
        view_is_true(&w, where);
        struct kvp_view view = world_view(&w);
        if (now == before && before != after && ran) {
            cr_assert(view.ready && fake_engine_serves(&w.engine), "%s: %s; %s", where,
                      view.not_ready, told->message);
            cr_assert(fake_engine_open(&w.engine), "%s: %s; open %d; said %s", where,
                      view.private_reason, view.open, told->message);
        }
    }
    if (died) {
        cr_assert_not(world_view(&w).ready);
        fake_engine_attach(&w.engine);
        sim_settle(&w.sim);
        cr_assert(world_view(&w).ready, "%s: %s", where, world_view(&w).not_ready);
        set_up(&w, scenario);
    }
    w.engine.fault_at = 0;
    told = world_do(&w, scenario->op);
    cr_assert_eq(told->status, KVB_OK, "%s: retry: %s", where, told->message);
    cr_assert_eq(memory_of(&w.engine), after, "%s: retry", where);
    for (int i = 0; i < 2 && scenario->back[i] != NULL; i++) {
        told = world_do(&w, scenario->back[i]);
        cr_assert_eq(told->status, KVB_OK, "%s: %s: %s", where, scenario->back[i], told->message);
    }
    sim_advance(&w.sim, 60000);
    cr_assert(fake_engine_serves(&w.engine), "%s: does not serve in the end", where);
    cr_assert(world_view(&w).ready, "%s: %s", where, world_view(&w).not_ready);
    cr_assert(fake_engine_open(&w.engine), "%s: not open in the end: %s", where,
              world_view(&w).private_reason);
    world_close(&w);
    return hit;
}

static void every_call(enum fake_fault fault)
{
    for (uint32_t ranks = fault >= FAKE_VANISH ? 2 : 1; ranks <= 4; ranks *= 2) {
        for (size_t s = 0; s < sizeof scenarios / sizeof scenarios[0]; s++) {
            uint64_t nth = 1;
            while (run(&scenarios[s], ranks, fault, nth)) {
                nth++;
                cr_assert_lt(nth, 200);
            }
        }
    }
}

Test(instance_failures, an_error_answer_at_any_call)
{
    every_call(FAKE_ERROR);
}

Test(instance_failures, no_answer_at_any_call)
{
    every_call(FAKE_SILENT);
}

Test(instance_failures, done_but_answered_too_late_at_any_call)
{
    every_call(FAKE_LATE);
}

Test(instance_failures, done_only_after_the_daemon_gave_up_at_any_call)
{
    every_call(FAKE_SLOW);
}

Test(instance_failures, the_engine_dies_at_any_call)
{
    every_call(FAKE_DIE);
}

Test(instance_failures, a_rank_vanishes_at_any_call_and_its_fellows_do_not)
{
    every_call(FAKE_VANISH);
}

Test(instance_failures, a_rank_vanishes_while_another_is_asked)
{
    every_call(FAKE_VANISH_OTHER);
}
