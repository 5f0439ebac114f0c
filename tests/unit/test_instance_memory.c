/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of what starts an operation fails in turn: it is told, or answered, once. */
#include "fail_alloc.h"
#include "instance_fixture.h"

#include <criterion/criterion.h>

/* False: nothing failed. */
static bool ask_without_memory(struct world *w, const char *words, uint64_t n)
{
    struct told told = {.world = w};
    struct kvp_ask ask = world_ask(words);
    char body[] = "{}";
    ask.body = body;
    ask.body_len = sizeof body - 1;
    uint64_t id = UINT64_MAX;
    fail_alloc_arm(n);
    kvb_status_t status = kvp_fleet_request(w->fleet, "a", &ask, "req", world_told_, &told, &id);
    bool failed = fail_alloc_disarm();
    cr_assert_eq(told.times, 0, "never inside the call");
    if (status != KVB_OK) {
        cr_assert_eq(status, KVB_ERR_NO_MEMORY);
        cr_assert(failed);
        cr_assert_eq(id, UINT64_MAX, "there is nothing to look at");
    } else {
        cr_assert_neq(id, UINT64_MAX);
    }
    sim_advance(&w->sim, 3600 * 1000);
    cr_assert_eq(told.times, status == KVB_OK ? 1 : 0);
    return failed;
}

Test(instance_memory, an_operation_that_cannot_be_started_is_told_or_answered_once)
{
    struct world w;
    world_open(&w, 1, true);
    for (uint64_t n = 0; ask_without_memory(&w, "pause", n); n++) {
    }
    for (uint64_t n = 0; ask_without_memory(&w, "relay", n); n++) {
    }
    world_close(&w);
}

Test(instance_memory, who_cannot_join_an_operation_is_told_and_has_none)
{
    struct world w;
    world_open(&w, 1, true);
    struct kvp_ask ask = world_ask("sleep 1");
    struct told first = {.world = &w};
    cr_assert_eq(kvp_fleet_request(w.fleet, "a", &ask, "req", world_told_, &first, NULL), KVB_OK);
    sim_settle(&w.sim);
    for (uint64_t n = 0;; n++) {
        struct told told = {.world = &w};
        uint64_t id = UINT64_MAX;
        fail_alloc_arm(n);
        kvb_status_t status = kvp_fleet_request(w.fleet, "a", &ask, "req", world_told_, &told, &id);
        bool failed = fail_alloc_disarm();
        cr_assert_eq(told.times, 0);
        cr_assert_eq(status != KVB_OK, id == UINT64_MAX);
        if (status == KVB_OK) {
            world_await(&w, &told);
            break;
        }
        cr_assert(failed);
    }
    world_await(&w, &first);
    world_close(&w);
}

/* What the daemon does by itself: it is asked for once more when there is memory. */
static void memory_is_lost(struct world *w)
{
    static const char kv[1][KVB_NAME_MAX] = {"kv_cache"};
    struct fake_rank *rank = &w->engine.ranks[0];
    rank->tags[0].registered = rank->tags[0].handed = false;
    kvp_instance_memory_lost(rank->instance, &rank->rank, kv, 1);
}

static void coordinator_is_back(struct world *w)
{
    kvs_embedded_set_reachable(w->coordinator, true);
}

static bool as_it_was(void *arg)
{
    struct world *w = arg;
    struct kvp_view view = world_view(w);
    return fake_engine_serves(&w->engine) && view.open && view.ready &&
           view.registered_regions == 2;
}

Test(instance_memory, what_nobody_asked_for_comes_about_all_the_same)
{
    void (*const events[])(struct world *) = {memory_is_lost, coordinator_is_back};
    for (int i = 0; i < 2; i++) {
        bool more = true;
        for (uint64_t n = 0; more; n++) {
            struct world w;
            world_open(&w, 1, true);
            sim_advance(&w.sim, 10 * 1000);
            struct kvb_lineage lineage = world_view(&w).lineage;
            cr_assert_str_neq(world_view(&w).weights_name, "");
            kvs_embedded_set_reachable(w.coordinator, events[i] != coordinator_is_back);
            sim_settle(&w.sim);
            sim_reserve_timers(&w.sim.sched);
            fail_alloc_arm(n);
            events[i](&w);
            sim_advance(&w.sim, 10 * 1000);
            more = fail_alloc_disarm();
            cr_assert(sim_run_until(&w.sim, as_it_was, &w, 60 * 1000), "%d, allocation %lu", i,
                      (unsigned long)n);
            sim_advance(&w.sim, 10 * 1000);
            cr_assert(kvb_lineage_equal(world_view(&w).lineage, lineage));
            world_close(&w);
        }
    }
}
