/* SPDX-License-Identifier: Apache-2.0 */
#include "instance_fixture.h"

#include "base/faults.h"

#include <criterion/criterion.h>

Test(instance, an_engine_attaches_opens_and_serves)
{
    struct world w;
    world_open(&w, 1, true);
    cr_assert(world_view(&w).ready);
    cr_assert(fake_engine_serves(&w.engine));
    cr_assert(fake_engine_open(&w.engine));
    cr_assert_str_eq(world_view(&w).weights_name, "fingerprint:w0");
    world_close(&w);
}

Test(instance, every_form_of_sleep_and_wake_goes_there_and_back)
{
    static const struct {
        const char *down;
        const char *up[3];
    } forms[] = {
        {"sleep 0", {"wake"}},
        {"sleep 0", {"wake scheduling"}},
        {"sleep 1", {"wake"}},
        {"sleep 1", {"wake weights", "wake kv_cache"}},
        {"sleep 1", {"wake kv_cache", "wake weights"}},
        {"sleep 2", {"wake weights kv_cache"}},
        {"sleep 2", {"wake"}},
        {"sleep 1 optout", {"wake"}},
        {"release", {"wake kv_cache"}},
        {"pause", {"resume"}},
    };
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
            struct world w;
            world_open(&w, ranks, true);
            for (int cycle = 0; cycle < 20; cycle++) {
                struct told *down = world_do(&w, forms[i].down);
                cr_assert_eq(down->status, KVB_OK, "%s: %s", forms[i].down, down->message);
                cr_assert_not(fake_engine_serves(&w.engine));
                cr_assert_not(world_view(&w).ready);
                for (int u = 0; u < 3 && forms[i].up[u] != NULL; u++) {
                    struct told *up = world_do(&w, forms[i].up[u]);
                    cr_assert_eq(up->status, KVB_OK, "%s: %s", forms[i].up[u], up->message);
                }
                cr_assert(fake_engine_serves(&w.engine), "%s cycle %d", forms[i].down, cycle);
                cr_assert(world_view(&w).ready, "%s: %s", forms[i].down, world_view(&w).not_ready);
                cr_assert(fake_engine_open(&w.engine));
                cr_assert_str_eq(world_view(&w).weights_name,
                                 ranks == 1 ? "fingerprint:w0" : world_view(&w).weights_name);
                cr_assert_neq(world_view(&w).weights_name[0], '\0');
            }
            world_close(&w);
        }
    }
}

#define OK(w, words)                                                                               \
    do {                                                                                           \
        struct told *told_ = world_do(w, words);                                                   \
        cr_assert_eq(told_->status, KVB_OK, "%s: %s", words, told_->message);                      \
    } while (0)
#define FAILS(w, words, expected)                                                                  \
    do {                                                                                           \
        struct told *told_ = world_do(w, words);                                                   \
        cr_assert_eq(told_->status, expected, "%s: %s: %s", words,                                 \
                     kvb_status_label(told_->status), told_->message);                             \
        cr_assert_neq(told_->message[0], '\0');                                                    \
    } while (0)

/* ---- pausing, sleeping, waking ---- */

Test(instance, a_partial_wake_is_still_asleep_and_never_resumes)
{
    struct world w;
    world_open(&w, 2, true);
    OK(&w, "sleep 1");
    OK(&w, "wake weights");
    struct kvp_view view = world_view(&w);
    cr_assert(view.is_sleeping);
    cr_assert(view.is_paused);
    cr_assert_not(view.ready);
    cr_assert_not(view.open);
    FAILS(&w, "resume", KVB_ERR_BAD_STATE);
    cr_assert(w.engine.paused);
    OK(&w, "wake kv_cache");
    cr_assert(fake_engine_serves(&w.engine));
    world_close(&w);
}

Test(instance, what_is_so_already_is_answered_at_once_and_changes_nothing)
{
    struct world w;
    world_open(&w, 1, true);
    static const char *const twice[] = {"resume",  "wake",       "wake bogus", "sleep 1", "sleep 1",
                                        "release", "wake bogus", "sleep 2",    "sleep 1"};
    static const bool nothing[] = {true, true, true, false, true, true, true, false, true};
    for (size_t i = 0; i < sizeof twice / sizeof twice[0]; i++) {
        struct told *told = world_do(&w, twice[i]);
        cr_assert_eq(told->status, KVB_OK, "%s: %s", twice[i], told->message);
        cr_assert_eq(told->nothing_to_do, nothing[i], "%zu %s", i, twice[i]);
    }
    OK(&w, "wake");
    OK(&w, "pause");
    OK(&w, "pause");
    cr_assert(world_do(&w, "wake")->nothing_to_do); /* merely paused */
    cr_assert(w.engine.paused);
    OK(&w, "resume");
    world_close(&w);
}

Test(instance, a_level_0_sleep_keeps_everything_and_counts_as_sleep)
{
    struct world w;
    world_open(&w, 1, true);
    struct kvb_lineage before = world_view(&w).lineage;
    w.engine.cached = 3;
    OK(&w, "sleep 0");
    cr_assert(world_view(&w).is_sleeping);
    cr_assert(kvb_lineage_equal(before, world_view(&w).lineage));
    cr_assert_eq(w.engine.cached, 3);
    cr_assert(world_do(&w, "wake weights")->nothing_to_do);
    cr_assert(world_view(&w).is_sleeping);
    OK(&w, "wake scheduling");
    cr_assert(fake_engine_serves(&w.engine));
    world_close(&w);
}

Test(instance, kept_requests_are_preempted_by_a_sleep_but_not_by_a_plain_reset)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.busy = w.engine.held = 2;
    fake_engine_report(&w.engine);
    struct told *told = world_do(&w, "reset");
    cr_assert_eq(told->status, KVB_ERR_BUSY);
    cr_assert_eq(told->blocks_held, 2);
    cr_assert_not(told->local_done);
    cr_assert(world_view(&w).open); /* nothing was left */
    OK(&w, "reset preempt");
    cr_assert_eq(w.engine.held, 0);
    w.engine.held = 2;
    OK(&w, "sleep 1 keep");
    cr_assert_eq(w.engine.preempts, 2);
    OK(&w, "wake");
    world_close(&w);
}

Test(instance, a_release_needs_a_pause_or_an_idle_instance)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.busy = 1;
    fake_engine_report(&w.engine);
    FAILS(&w, "release", KVB_ERR_BAD_STATE);
    cr_assert(fake_engine_serves(&w.engine));
    OK(&w, "pause keep");
    OK(&w, "release");
    cr_assert_eq(w.engine.ranks[0].tags[0].residency, KVB_DISCARDED);
    cr_assert_eq(w.engine.ranks[0].tags[1].residency, KVB_RESIDENT);
    OK(&w, "wake kv_cache");
    cr_assert(fake_engine_serves(&w.engine));
    world_close(&w);
}

Test(instance, a_drain_that_is_not_done_in_time_fails_and_the_instance_serves_on)
{
    static const char *const words[] = {"pause wait", "sleep 1 wait", "sleep 2 keep",
                                        "sleep 1 wait"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct world w;
        world_open(&w, 2, true);
        if (i == 0 || i == 1) {
            w.engine.busy = w.engine.held = 1;
        } else {
            w.engine.ranks[i - 2].transfers = 1;
        }
        uint64_t began = w.sim.now_ns;
        FAILS(&w, words[i], KVB_ERR_TIMEOUT);
        cr_assert_leq(w.sim.now_ns - began, 500 * KVB_NS_PER_S);
        sim_advance(&w.sim, 60000);
        cr_assert(fake_engine_serves(&w.engine), "%s", words[i]);
        cr_assert(world_view(&w).ready);
        cr_assert_eq(world_view(&w).registered_regions, 4);
        fake_engine_finish_requests(&w.engine);
        OK(&w, words[i]);
        OK(&w, i == 0 ? "resume" : "wake");
        cr_assert(fake_engine_serves(&w.engine));
        world_close(&w);
    }
}

Test(instance, resume_cancels_a_drain_and_nothing_is_unregistered)
{
    static const char *const words[] = {"pause wait", "sleep 1 wait", "sleep 2 wait",
                                        "pause wait clear"};
    for (size_t i = 0; i < 2 * sizeof words / sizeof words[0]; i++) {
        struct world w;
        world_open(&w, 1, true);
        if (i % 2 == 0) {
            w.engine.busy = 1;
        } else {
            w.engine.ranks[0].transfers = 1;
        }
        struct told *drains = world_start(&w, words[i / 2]);
        sim_advance(&w.sim, 1000);
        cr_assert_eq(drains->times, 0);
        struct told *resume = world_start(&w, "resume");
        world_await(&w, resume);
        cr_assert_eq(resume->status, KVB_OK, "%s", resume->message);
        cr_assert_eq(drains->times, 1);
        cr_assert_eq(drains->status, KVB_ERR_CANCELED, "%s", drains->message);
        cr_assert(fake_engine_serves(&w.engine));
        cr_assert_eq(world_view(&w).registered_regions, 2);
        fake_engine_finish_requests(&w.engine);
        OK(&w, words[i / 2]);
        world_close(&w);
    }
}

static void tell_end_(void *arg, const struct kvp_outcome *outcome)
{
    *(kvb_status_t *)arg = outcome->status;
}

Test(instance, a_drain_that_is_canceled_is_undone_and_all_who_wait_are_told)
{
    static const char *const words[] = {"pause wait", "sleep 1 wait", "sleep 2 wait"};
    for (size_t i = 0; i < 2 * sizeof words / sizeof words[0]; i++) {
        struct world w;
        world_open(&w, 1, true);
        if (i % 2 == 0) {
            w.engine.busy = 1;
        } else {
            w.engine.ranks[0].transfers = 1;
        }
        struct told *drains = world_start(&w, words[i / 2]);
        struct told *waits = world_start(&w, "wake");
        sim_advance(&w.sim, 1000);
        kvb_status_t end = KVB_OK;
        cr_assert_eq(kvp_fleet_await(w.fleet, drains->operation_id, tell_end_, &end), KVB_OK);
        cr_assert_eq(kvp_fleet_cancel(w.fleet, waits->operation_id), KVB_OK);
        world_await(&w, waits);
        cr_assert_eq(waits->status, KVB_ERR_CANCELED);
        cr_assert_eq(drains->times, 0);
        cr_assert_eq(kvp_fleet_cancel(w.fleet, drains->operation_id), KVB_OK);
        world_await(&w, drains);
        cr_assert_eq(drains->status, KVB_ERR_CANCELED, "%s", drains->message);
        cr_assert_not_null(strstr(drains->message, "canceled by"));
        cr_assert_eq(end, KVB_ERR_CANCELED);
        cr_assert(fake_engine_serves(&w.engine));
        cr_assert_eq(world_view(&w).registered_regions, 2);
        cr_assert_eq(kvp_fleet_cancel(w.fleet, drains->operation_id), KVB_ERR_NOT_FOUND);
        cr_assert_eq(kvp_fleet_await(w.fleet, drains->operation_id, tell_end_, &end),
                     KVB_ERR_NOT_FOUND);
        fake_engine_finish_requests(&w.engine);
        OK(&w, words[i / 2]);
        world_close(&w);
    }
}

Test(instance, what_is_answered_already_or_is_with_the_engine_cannot_be_canceled)
{
    struct world w;
    struct told told = {.world = &w}, first = told;
    struct kvp_ask ask = world_ask("sleep 1");
    uint64_t id = 0;
    world_open_fleet(&w, true, NULL);
    cr_assert_eq(kvp_fleet_request(w.fleet, NULL, &ask, "req", world_told_, &first, &id), KVB_OK);
    cr_assert_eq(kvp_fleet_cancel(w.fleet, id), KVB_ERR_BAD_STATE);
    sim_settle(&w.sim);
    cr_assert_eq(first.times, 1);
    cr_assert_eq(first.status, KVB_ERR_BAD_STATE);
    cr_assert_not_null(strstr(first.message, "no engine has attached yet"), "%s", first.message);
    fake_engine_init(&w.engine, &w.sim, w.fleet, "a", 1);
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    cr_assert_eq(kvp_fleet_request(w.fleet, "nobody", &ask, "req", world_told_, &told, &id),
                 KVB_OK);
    cr_assert_eq(kvp_fleet_cancel(w.fleet, id), KVB_ERR_BAD_STATE);
    sim_settle(&w.sim);
    cr_assert_eq(told.times, 1);
    cr_assert_eq(told.status, KVB_ERR_NOT_FOUND);
    cr_assert_not_null(strstr(told.message, "nobody"), "%s", told.message);
    w.engine.fault_at = w.engine.ncalls + 1;
    w.engine.fault = FAKE_SILENT;
    struct told *relay = world_start(&w, "relay");
    sim_settle(&w.sim);
    cr_assert_eq(relay->times, 0);
    cr_assert_eq(kvp_fleet_cancel(w.fleet, relay->operation_id), KVB_ERR_BAD_STATE);
    world_await(&w, relay);
    cr_assert_eq(relay->status, KVB_ERR_TIMEOUT);
    world_close(&w);
}

Test(instance, at_every_moment_of_a_sleep_a_cancel_undoes_it_or_is_refused_and_it_goes_on)
{
    bool undone = false, refused = false, over = false;
    for (uint64_t turns = 0; !over; turns++) {
        struct world w;
        world_open(&w, 2, true);
        struct told *sleep = world_start(&w, "sleep 2");
        for (uint64_t i = 0; i < turns && sleep->times == 0; i++) {
            sim_turn(&w.sim);
        }
        over = sleep->times > 0;
        kvb_status_t status = kvp_fleet_cancel(w.fleet, sleep->operation_id);
        world_await(&w, sleep);
        cr_assert_eq(sleep->times, 1);
        if (over) {
            cr_assert_eq(status, KVB_ERR_NOT_FOUND);
        } else if (sleep->status == KVB_OK) {
            refused = refused || status == KVB_ERR_BAD_STATE;
            cr_assert(world_view(&w).is_sleeping);
            OK(&w, "wake");
        } else {
            cr_assert_eq(status, KVB_OK);
            cr_assert_eq(sleep->status, KVB_ERR_CANCELED, "%s", sleep->message);
            undone = true;
        }
        cr_assert_not(world_view(&w).is_sleeping && !over);
        if (!over) {
            cr_assert(fake_engine_serves(&w.engine));
        }
        world_close(&w);
        cr_assert_lt(turns, 10000);
    }
    cr_assert(undone && refused);
}

/* ---- the slot ---- */

Test(instance, identical_requests_share_one_answer_and_different_ones_wait_their_turn)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.busy = 1;
    struct told *first = world_start(&w, "sleep 1 wait");
    struct told *same = world_start(&w, "sleep 1 wait");
    sim_advance(&w.sim, 10);
    struct told *late = world_start(&w, "sleep 1 wait");
    struct told *wake = world_start(&w, "wake");
    struct told *after = world_start(&w, "sleep 1 wait"); /* a different one is queued between */
    cr_assert_eq(first->operation_id, same->operation_id);
    cr_assert_eq(first->operation_id, late->operation_id);
    cr_assert_neq(first->operation_id, after->operation_id);
    sim_advance(&w.sim, 100);
    cr_assert_eq(first->times + same->times + late->times + wake->times + after->times, 0);
    fake_engine_finish_requests(&w.engine);
    world_await(&w, after);
    cr_assert_eq(first->status, KVB_OK);
    cr_assert_eq(same->status, KVB_OK);
    cr_assert_eq(late->status, KVB_OK);
    cr_assert_eq(wake->status, KVB_OK);
    cr_assert_not(wake->nothing_to_do);
    cr_assert_eq(after->status, KVB_OK);
    cr_assert_not(after->nothing_to_do);
    cr_assert(world_view(&w).is_sleeping);
    world_close(&w);
}

Test(instance, who_does_not_wait_for_its_turn_is_told_busy_at_once_and_shares_an_equal)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.busy = 1;
    struct told *pause = world_start(&w, "pause wait");
    sim_settle(&w.sim);
    uint64_t began = w.sim.now_ns;
    struct told *flush = world_do(&w, "reset at_once");
    cr_assert_eq(flush->status, KVB_ERR_BUSY);
    cr_assert_eq(w.sim.now_ns, began);
    fake_engine_finish_requests(&w.engine);
    world_await(&w, pause);
    struct told *first = world_start(&w, "reset at_once");
    struct told *second = world_start(&w, "reset at_once");
    world_await(&w, first);
    world_await(&w, second);
    cr_assert_eq(first->status, KVB_OK);
    cr_assert_eq(second->status, KVB_OK);
    cr_assert_eq(first->operation_id, second->operation_id);
    world_close(&w);
}

Test(instance, memory_released_by_tags_comes_back_and_the_pause_stays)
{
    static const char *const tags[] = {"", " kv_cache", " weights", " kv_cache weights"};
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        struct world w;
        char words[64];
        world_open(&w, 1, true);
        OK(&w, "pause keep");
        struct kvb_lineage before = world_view(&w).lineage;
        snprintf(words, sizeof words, "occupation%s", tags[i]);
        OK(&w, words);
        cr_assert(world_view(&w).is_sleeping);
        cr_assert_not(kvb_lineage_equal(before, world_view(&w).lineage));
        cr_assert(world_do(&w, words)->nothing_to_do);
        OK(&w, "wake keep_pause");
        cr_assert_not(world_view(&w).is_sleeping);
        cr_assert(world_view(&w).is_paused);
        cr_assert_not(fake_engine_serves(&w.engine));
        OK(&w, "resume");
        cr_assert(fake_engine_serves(&w.engine));
        world_close(&w);
    }
}

Test(instance, who_waits_longer_than_its_turn_may_take_is_told_busy)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.busy = 1;
    struct told *pause = world_start(&w, "pause wait");
    sim_advance(&w.sim, 1000);
    uint64_t began = w.sim.now_ns;
    struct told *sleep = world_start(&w, "sleep 1");
    world_await(&w, sleep);
    cr_assert_eq(sleep->status, KVB_ERR_BUSY);
    cr_assert_eq(w.sim.now_ns - began, 30 * KVB_NS_PER_S);
    cr_assert(strstr(sleep->message, "pause is running") != NULL, "%s", sleep->message);
    cr_assert_eq(pause->times, 0);
    fake_engine_finish_requests(&w.engine);
    world_await(&w, pause);
    cr_assert_eq(pause->status, KVB_OK);
    world_close(&w);
}

Test(instance, a_client_that_goes_away_cancels_nothing)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.busy = 1;
    struct told *gone = world_start(&w, "sleep 1 wait");
    sim_advance(&w.sim, 10);
    kvp_fleet_forget(w.fleet, gone);
    fake_engine_finish_requests(&w.engine);
    sim_advance(&w.sim, 1000);
    cr_assert_eq(gone->times, 0);
    gone->times = 1;
    cr_assert(world_view(&w).is_sleeping);
    struct kvp_operation_record record;
    cr_assert(kvp_fleet_operation(w.fleet, gone->operation_id, &record));
    cr_assert(record.finished);
    cr_assert_eq(record.status, KVB_OK);
    world_close(&w);
}

Test(instance, what_takes_no_slot_goes_beside_a_running_operation)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.busy = 1;
    struct told *pause = world_start(&w, "pause wait");
    sim_advance(&w.sim, 10);
    OK(&w, "relay");
    cr_assert_str_eq(w.engine.last_method, "get_world_size");
    cr_assert_eq(pause->times, 0);
    FAILS(&w, "relay method=unknown", KVB_ERR_UNSUPPORTED);
    fake_engine_finish_requests(&w.engine);
    world_await(&w, pause);
    world_close(&w);
}

/* Two and three clients, every choice of what they ask and of when: each is answered exactly once,
 * nobody waits for ever, and the way back to serving is open. */
static void clients_in_every_order(int clients)
{
    static const char *const asks[] = {"pause wait", "resume",         "sleep 1 wait", "sleep 2",
                                       "wake",       "reset external", "update v=1"};
    enum { N = sizeof asks / sizeof asks[0] };
    static const uint64_t gaps[] = {0, 2, 7, 600000};
    int combinations = 1;
    for (int c = 0; c < clients; c++) {
        combinations *= N;
    }
    for (int which = 0; which < combinations; which++) {
        for (int when = 0; when < (clients == 2 ? 4 : 16); when++) {
            for (int busy = 0; busy < 2; busy++) {
                struct world w;
                world_open(&w, 1, true);
                w.engine.busy = w.engine.held = (uint32_t)busy;
                struct told *told[3] = {NULL};
                int choice = which;
                int gap = when;
                for (int c = 0; c < clients; c++) {
                    told[c] = world_start(&w, asks[choice % N]);
                    choice /= N;
                    uint64_t turns = gaps[gap % 4];
                    gap /= 4;
                    if (turns > 100) {
                        sim_advance(&w.sim, 1000);
                    }
                    for (uint64_t t = 0; t < turns && turns <= 100; t++) {
                        (void)sim_turn(&w.sim);
                    }
                }
                if (which % 2 == 0) {
                    fake_engine_finish_requests(&w.engine);
                }
                for (int c = 0; c < clients; c++) {
                    world_await(&w, told[c]);
                }
                fake_engine_finish_requests(&w.engine);
                sim_advance(&w.sim, 1000);
                OK(&w, "wake");
                OK(&w, "resume");
                cr_assert(fake_engine_serves(&w.engine), "%d clients, %d, %d", clients, which,
                          when);
                cr_assert(fake_engine_open(&w.engine), "%d clients, %d, %d", clients, which, when);
                cr_assert_eq(world_view(&w).waiting_operations, 0);
                world_close(&w);
            }
        }
    }
}

Test(instance, two_clients_in_every_order_are_each_answered_once)
{
    clients_in_every_order(2);
}

Test(instance, three_clients_in_every_order_are_each_answered_once)
{
    clients_in_every_order(3);
}

/* ---- lineage, through the operations ---- */

Test(instance, instances_with_one_name_share_and_those_with_others_do_not)
{
    struct world w;
    world_open(&w, 1, true);
    world_add_other(&w);
    struct kvp_view b;
    cr_assert(kvp_fleet_view(w.fleet, "b", &b));
    cr_assert(kvb_lineage_equal(world_view(&w).lineage, b.lineage));
    OK(&w, "update");
    cr_assert_not(kvb_lineage_equal(world_view(&w).lineage, b.lineage));
    cr_assert_str_eq(world_view(&w).weights_name, "fingerprint:w1");
    struct told *other = world_start_on(&w, "b", "update");
    world_await(&w, other);
    cr_assert(kvp_fleet_view(w.fleet, "b", &b));
    cr_assert(kvb_lineage_equal(world_view(&w).lineage, b.lineage));
    world_close(&w);
}

Test(instance, a_reset_clears_for_everyone_before_it_answers)
{
    struct world w;
    world_open(&w, 1, true);
    world_add_other(&w);
    struct kvb_lineage before = world_view(&w).lineage;
    struct told *told = world_do(&w, "reset external");
    cr_assert_eq(told->status, KVB_OK, "%s", told->message);
    cr_assert_eq(told->external, KVP_EXTERNAL_DONE);
    cr_assert(told->local_done);
    cr_assert_not(kvb_token_equal(w.other.ranks[0].lineage.token, (struct kvb_token){{0, 0}}));
    cr_assert_not(kvb_lineage_equal(w.other.ranks[0].lineage.lineage, before));
    cr_assert_not(kvb_lineage_equal(world_view(&w).lineage, before));
    struct kvp_view b;
    sim_advance(&w.sim, 100);
    cr_assert(kvp_fleet_view(w.fleet, "b", &b));
    cr_assert(kvb_lineage_equal(world_view(&w).lineage, b.lineage)); /* and share again */
    cr_assert(b.open);
    world_close(&w);
}

/* Another instance resets the tenant with the nth of a's calls, as it begins or as it ends. */
static struct other_reset {
    struct world *w;
    uint32_t left;
    bool ended;
    struct told *told;
} other_reset;
static void reset_by_other(void *ctx, const struct fake_step *step, kvb_status_t status)
{
    (void)ctx;
    (void)step;
    if ((status != KVB_IN_PROGRESS) == other_reset.ended && other_reset.left > 0 &&
        --other_reset.left == 0) {
        other_reset.told = world_start_on(other_reset.w, "b", "tenant");
    }
}

Test(instance, a_reset_into_which_another_comes_at_any_moment_is_done_and_blames_nobody)
{
    for (uint32_t i = 0; i < 12; i++) {
        struct world w;
        world_open(&w, 2, true);
        world_add_other(&w);
        struct kvb_lineage before = world_view(&w).lineage;
        other_reset = (struct other_reset){.w = &w, .left = i / 2 + 1, .ended = i % 2 == 1};
        w.engine.watch = reset_by_other;
        struct told *told = world_do(&w, "reset external");
        w.engine.watch = NULL;
        cr_expect_eq(told->status, KVB_OK, "%u: %s", i, told->message);
        cr_expect_eq(told->external, KVP_EXTERNAL_DONE, "%u", i);
        if (other_reset.told != NULL) {
            world_await(&w, other_reset.told);
            cr_expect_eq(other_reset.told->status, KVB_OK, "%u: %s", i, other_reset.told->message);
        }
        cr_expect(i >= 6 || other_reset.told != NULL, "%u", i);
        sim_advance(&w.sim, 10000);
        cr_expect_not(kvb_lineage_equal(world_view(&w).lineage, before));
        cr_expect(fake_engine_open(&w.engine), "%u", i);
        world_close(&w);
    }
}

Test(instance, a_reset_that_waits_for_an_engine_to_leave_once_more_blames_the_engine)
{
    struct world w;
    world_open(&w, 2, true);
    world_add_other(&w);
    other_reset = (struct other_reset){.w = &w, .left = 1};
    w.engine.watch = reset_by_other;
    w.engine.fault = FAKE_SILENT;
    w.engine.fault_at = w.engine.ncalls + 4; /* leave, of two ranks, local reset; leave */
    struct told *told = world_do(&w, "reset external");
    w.engine.watch = NULL;
    cr_assert_eq(told->status, KVB_ERR_TIMEOUT, "%s", told->message);
    cr_expect_eq(told->external, KVP_EXTERNAL_FAILED);
    cr_expect_eq(told->side, KVP_SIDE_ENGINE);
    cr_expect(strstr(told->message, "did not acknowledge") != NULL, "%s", told->message);
    world_await(&w, other_reset.told);
    sim_advance(&w.sim, 60000);
    cr_expect_eq(world_view(&w).retirements_pending, 0); /* and is done later */
    cr_expect(fake_engine_open(&w.engine));
    world_close(&w);
}

static void reset_is_over(struct kvs_coord_request *request, kvb_status_t status)
{
    (void)request;
    (void)status;
}

/* Every 3 s, 100 times at most, until it is answered. */
static void reset_often(struct world *w, const struct told *told)
{
    struct kvs_coord_request resets[100];
    for (uint32_t i = 0; i < 100 && told->times == 0; i++) {
        resets[i] = (struct kvs_coord_request){.done = reset_is_over};
        kvs_tenant_reset(w->coordinator, "default", NULL,
                         kvb_deadline_in_ms(w->sim.sched.clock, 2000), &resets[i]);
        sim_advance(&w->sim, 3000);
    }
}

/* Each reset makes it leave once more, which is acknowledged after the next one. It waits for that
 * itself; or, with its local reset unanswered, where it would retire. */
Test(instance, a_leaving_ends_however_often_others_reset)
{
    for (uint32_t heard = 0; heard < 2; heard++) {
        struct world w;
        world_open(&w, 2, true);
        w.engine.lineage_ms = heard == 0 ? 5000 : 0;
        w.engine.fault = FAKE_SILENT;
        w.engine.fault_at = heard == 0 ? 0 : w.engine.ncalls + 3;
        struct told *told = world_start(&w, "reset external");
        sim_settle(&w.sim);
        w.engine.lineage_ms = 5000;
        reset_often(&w, told);
        cr_assert_eq(told->times, 1, "%u", heard);
        cr_expect_eq(told->status, KVB_ERR_TIMEOUT);
        cr_expect_eq(told->side, KVP_SIDE_ENGINE);
        sim_advance(&w.sim, 100000);
        cr_expect(fake_engine_open(&w.engine));
        world_close(&w);
    }
}

Test(instance, the_acknowledgement_of_the_last_leaving_counts_and_no_earlier_one)
{
    struct world w;
    world_open(&w, 2, true);
    w.engine.fault = FAKE_SILENT; /* the first is given up at 10 s */
    w.engine.fault_at = w.engine.ncalls + 1;
    struct told *told = world_start(&w, "reset external");
    sim_advance(&w.sim, 5000);
    cr_assert_eq(told->times, 0);
    w.engine.lineage_ms = 8000; /* the second is acknowledged at 13 s */
    struct kvs_coord_request reset = {.done = reset_is_over};
    kvs_tenant_reset(w.coordinator, "default", NULL, kvb_deadline_in_ms(w.sim.sched.clock, 2000),
                     &reset);
    world_await(&w, told);
    cr_assert_eq(told->status, KVB_OK, "%s", told->message);
    cr_expect_eq(told->external, KVP_EXTERNAL_DONE);
    w.engine.lineage_ms = 0;
    sim_advance(&w.sim, 60000);
    cr_expect(fake_engine_open(&w.engine));
    world_close(&w);
}

Test(instance, a_reset_with_the_coordinator_away_fails_but_has_left_and_is_delivered_later)
{
    struct world w;
    world_open(&w, 1, true);
    struct kvb_lineage before = world_view(&w).lineage;
    kvs_embedded_set_reachable(w.coordinator, false);
    sim_settle(&w.sim);
    struct told *told = world_do(&w, "reset external");
    cr_assert_eq(told->status, KVB_ERR_UNAVAILABLE);
    cr_assert_eq(told->external, KVP_EXTERNAL_FAILED);
    cr_assert(told->local_done);
    cr_assert_not(kvb_lineage_equal(w.engine.ranks[0].lineage.lineage, before));
    cr_assert_eq(w.engine.ranks[0].lineage.nretired, 1); /* the engine keeps it too */
    struct told *sleep = world_do(&w, "sleep 1");
    cr_assert_eq(sleep->status, KVB_OK);
    cr_assert_eq(sleep->external, KVP_EXTERNAL_PENDING);
    OK(&w, "wake");
    cr_assert(fake_engine_serves(&w.engine)); /* training stays alive */
    cr_assert_eq(world_view(&w).weights_name[0], '\0');
    kvs_embedded_set_reachable(w.coordinator, true);
    sim_settle(&w.sim);
    cr_assert_eq(world_view(&w).retirements_pending, 0);
    cr_assert_eq(w.engine.ranks[0].lineage.nretired, 0);
    cr_assert_str_eq(world_view(&w).weights_name, "fingerprint:w0");
    cr_assert_not(kvb_lineage_equal(world_view(&w).lineage, before));
    world_close(&w);
}

Test(instance, a_reset_refused_for_held_blocks_still_leaves_and_is_tried_again_by_itself)
{
    struct world w;
    world_open(&w, 1, true);
    world_add_other(&w);
    struct kvb_lineage before = world_view(&w).lineage;
    cr_assert(kvb_lineage_equal(w.other.ranks[0].lineage.lineage, before), "they share");
    w.engine.busy = w.engine.held = 2;
    struct told *told = world_do(&w, "reset external");
    cr_assert_eq(told->status, KVB_ERR_BUSY);
    cr_assert_eq(told->external, KVP_EXTERNAL_DONE); /* retired all the same */
    cr_assert_not(kvb_lineage_equal(w.other.ranks[0].lineage.lineage, before));
    cr_assert_not(told->local_done);
    cr_assert_not(world_view(&w).open);
    uint64_t resets = w.engine.resets;
    fake_engine_finish_requests(&w.engine);
    sim_settle(&w.sim);
    cr_assert_eq(w.engine.resets, resets + 1);
    cr_assert(fake_engine_open(&w.engine));
    world_close(&w);
}

Test(instance, a_weight_update_closes_and_its_version_names_once_it_was_seen_to_change)
{
    struct world w;
    world_open_fleet(&w, true, NULL);
    fake_engine_init(&w.engine, &w.sim, w.fleet, "a", 2);
    w.engine.fingerprints = false;
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    for (int i = 0; i < 3; i++) {
        OK(&w, "start");
        cr_assert(world_do(&w, "start")->nothing_to_do);
        cr_assert_not(world_view(&w).open);
        cr_assert(world_view(&w).weight_change_running);
        OK(&w, "update");
        cr_assert_not(world_view(&w).open);
        char words[32];
        snprintf(words, sizeof words, "finish v=%d", i);
        OK(&w, words);
        cr_assert(world_view(&w).open);
        char version[8];
        snprintf(version, sizeof version, "%d", i);
        cr_assert_str_eq(world_view(&w).weight_version, version);
        cr_assert_str_eq(world_view(&w).weights_name, i == 0 ? "" : version);
        cr_assert_eq(world_view(&w).private_reason[0] != '\0', i == 0);
    }
    OK(&w, "start");
    OK(&w, "finish v=2"); /* a constant vouches for nothing */
    cr_assert_str_eq(world_view(&w).weights_name, "");
    world_close(&w);
}

Test(instance, an_implicit_bracket_is_judged_once_when_it_closes)
{
    struct world w;
    world_open_fleet(&w, true, NULL);
    fake_engine_init(&w.engine, &w.sim, w.fleet, "a", 1);
    w.engine.fingerprints = false;
    strcpy(w.engine.hello.weights_name, "0");
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    /* paused, in buckets, each with the version: at resume */
    OK(&w, "pause keep");
    OK(&w, "update v=1");
    cr_assert(world_view(&w).weight_change_running);
    cr_assert_not(world_view(&w).open);
    OK(&w, "update v=1");
    cr_assert_str_eq(world_view(&w).weights_name, "");
    struct told *resume = world_do(&w, "resume");
    cr_assert_str_eq(resume->view.weights_name, "1"); /* before it is answered */
    cr_assert(world_view(&w).open);
    /* running: at its own end */
    OK(&w, "update v=2");
    cr_assert_str_eq(world_view(&w).weights_name, "2");
    /* asleep: at the wake of the last tag */
    OK(&w, "sleep 2");
    OK(&w, "wake weights");
    OK(&w, "update v=3");
    cr_assert_str_eq(world_view(&w).weights_name, "");
    OK(&w, "wake kv_cache");
    cr_assert_str_eq(world_view(&w).weights_name, "3");
    cr_assert(fake_engine_open(&w.engine));
    /* an explicit one cut short by resume names nothing */
    OK(&w, "pause");
    OK(&w, "start");
    OK(&w, "update v=4");
    OK(&w, "resume");
    cr_assert_str_eq(world_view(&w).weights_name, "");
    cr_assert_not(world_view(&w).weight_change_running);
    cr_assert(world_view(&w).open);
    world_close(&w);
}

Test(instance, a_weight_change_whose_end_is_unknown_is_still_running)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.fault = FAKE_SILENT;
    w.engine.fault_at = w.engine.ncalls + 2; /* the relay */
    w.engine.update = true;                  /* and it hangs in it */
    struct told *told = world_do(&w, "update v=1");
    cr_assert_eq(told->status, KVB_ERR_TIMEOUT);
    sim_advance(&w.sim, 100000);
    cr_assert(world_view(&w).weight_change_running);
    cr_assert_not(world_view(&w).open);
    OK(&w, "pause"); /* it can be told what to do all the same */
    OK(&w, "resume");
    cr_assert_not(world_view(&w).open);
    w.engine.update = false;
    sim_advance(&w.sim, 10000);
    cr_assert_not(world_view(&w).weight_change_running);
    cr_assert(fake_engine_open(&w.engine));
    world_close(&w);
}

Test(instance, a_weight_change_that_only_some_ranks_began_is_running)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct world w;
        world_open(&w, 2, true);
        w.engine.fault = FAKE_ERROR;
        w.engine.fault_at = w.engine.ncalls + 3 + i; /* the relay to rank i; both have left */
        FAILS(&w, "start", KVB_ERR_INTERNAL);
        cr_assert(w.engine.ranks[1 - i].updating);
        cr_assert_not(w.engine.ranks[i].updating);
        sim_advance(&w.sim, 100000);
        cr_assert(world_view(&w).weight_change_running, "%u", i);
        cr_assert_not(world_view(&w).open);
        OK(&w, "start"); /* the rest of them */
        cr_assert(w.engine.ranks[i].updating);
        OK(&w, "update");
        OK(&w, "finish");
        sim_advance(&w.sim, 10000);
        cr_assert_not(world_view(&w).weight_change_running, "%u", i);
        cr_assert_str_eq(world_view(&w).weights_name, "fingerprint:w1");
        cr_assert(fake_engine_open(&w.engine));
        world_close(&w);
    }
}

/* A call of it that is refused, or waits in vain for the engine to leave. */
Test(instance, a_weight_change_whose_end_is_unknown_is_not_ended_by_a_failure)
{
    static const char *const again[] = {"start", "update"};
    for (uint32_t i = 0; i < 4; i++) {
        struct world w;
        world_open(&w, 1, true);
        w.engine.fault = FAKE_LATE;
        w.engine.fault_at = w.engine.ncalls + 2;
        FAILS(&w, "start", KVB_ERR_TIMEOUT);
        sim_advance(&w.sim, 10000);
        cr_assert(world_view(&w).weight_change_running);
        if (i < 2) {
            w.engine.fault = FAKE_ERROR;
            w.engine.fault_at = w.engine.ncalls + 1 + i; /* what writes leaves once more */
            FAILS(&w, again[i], KVB_ERR_INTERNAL);
        } else {
            w.engine.mute = true;
            FAILS(&w, again[i - 2], KVB_ERR_TIMEOUT);
            w.engine.mute = false;
        }
        cr_assert_not(world_view(&w).open, "%u", i);
        sim_advance(&w.sim, 100000);
        cr_assert(world_view(&w).weight_change_running, "%u", i);
        cr_assert_not(world_view(&w).open, "%u", i);
        OK(&w, "finish");
        sim_advance(&w.sim, 10000);
        cr_assert(fake_engine_open(&w.engine));
        world_close(&w);
    }
}

Test(instance,
     a_call_that_a_rank_refuses_while_paused_leaves_the_change_and_its_version_as_they_were)
{
    struct world w;
    world_open_fleet(&w, true, NULL);
    fake_engine_init(&w.engine, &w.sim, w.fleet, "a", 2);
    w.engine.fingerprints = false;
    strcpy(w.engine.hello.weights_name, "0");
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    OK(&w, "pause");
    OK(&w, "update v=5");
    w.engine.fault = FAKE_ERROR;
    w.engine.fault_at = w.engine.ncalls + 4; /* of rank 1: leave and relay */
    FAILS(&w, "update", KVB_ERR_INTERNAL);
    sim_advance(&w.sim, 100000);
    cr_assert(world_view(&w).weight_change_running);
    cr_assert_not(world_view(&w).open);
    OK(&w, "update");
    OK(&w, "resume");
    cr_assert_str_eq(world_view(&w).weights_name, "5");
    cr_assert(fake_engine_open(&w.engine));
    world_close(&w);
}

Test(instance, weights_written_unseen_are_left_before_anything_opens)
{
    struct world w;
    world_open(&w, 1, true);
    OK(&w, "sleep 1 optout");
    w.engine.ranks[0].weights = 5;
    w.engine.ranks[0].weights_written = true;
    OK(&w, "wake");
    cr_assert_str_eq(world_view(&w).weights_name, "fingerprint:w5");
    OK(&w, "pause keep");
    w.engine.ranks[0].weights = 6;
    w.engine.ranks[0].weights_written = true;
    OK(&w, "resume");
    cr_assert_str_eq(world_view(&w).weights_name, "fingerprint:w6");
    world_close(&w);
}

Test(instance, what_an_engine_says_of_a_relay_counts_for_more_than_its_name)
{
    struct world w;
    world_open(&w, 1, true);
    cr_assert_str_eq(world_view(&w).weights_name, "fingerprint:w0");
    struct kvb_token token = w.engine.ranks[0].rank.stay->token;
    OK(&w, "relay method=update_weights_unawares");
    cr_assert_not(kvb_token_equal(token, w.engine.ranks[0].rank.stay->token));
    sim_advance(&w.sim, 1000);
    cr_assert_str_eq(world_view(&w).weights_name, "fingerprint:w1");
    cr_assert(fake_engine_open(&w.engine));
    OK(&w, "relay");
    cr_assert_str_eq(world_view(&w).weights_name, "fingerprint:w1");

    w.engine.fault = FAKE_SILENT; /* and it is answered when the leaving is acknowledged */
    w.engine.fault_at = w.engine.ncalls + 2;
    FAILS(&w, "relay method=update_weights_unawares", KVB_ERR_TIMEOUT);
    sim_advance(&w.sim, 100000);
    cr_assert_str_eq(world_view(&w).weights_name, "fingerprint:w2");
    world_close(&w);
}

Test(instance, within_a_bracket_every_call_that_wrote_weights_leaves_what_was_cached_before_it)
{
    struct world w;
    world_open(&w, 1, true);
    OK(&w, "start");
    OK(&w, "reset"); /* from here on the engine caches for itself again, while it runs */
    struct kvb_token token = w.engine.ranks[0].rank.stay->token;
    w.engine.local_reset_done = true;
    w.engine.cached = 3;
    OK(&w, "update");
    cr_assert_not(kvb_token_equal(token, w.engine.ranks[0].rank.stay->token));
    cr_assert(
        kvb_lineage_equal(w.engine.ranks[0].lineage.lineage, w.engine.ranks[0].rank.stay->lineage),
        "acknowledged before it is answered");
    cr_assert_not(w.engine.local_reset_done);
    cr_assert_not(world_view(&w).open);
    OK(&w, "finish");
    sim_advance(&w.sim, 1000);
    cr_assert(fake_engine_open(&w.engine));
    cr_assert_str_eq(world_view(&w).weights_name, "fingerprint:w1");
    world_close(&w);
}

Test(instance, a_sleep_with_the_opt_out_keeps_its_lineage_and_a_later_one_without_leaves)
{
    struct world w;
    world_open(&w, 1, true);
    struct kvb_lineage before = world_view(&w).lineage;
    OK(&w, "sleep 1 optout");
    cr_assert(kvb_lineage_equal(before, world_view(&w).lineage));
    cr_assert_not(world_view(&w).open);
    OK(&w, "wake");
    cr_assert(kvb_lineage_equal(before, world_view(&w).lineage));
    cr_assert(fake_engine_open(&w.engine));
    OK(&w, "sleep 1 optout");
    OK(&w, "sleep 1");
    cr_assert_not(kvb_lineage_equal(before, world_view(&w).lineage));
    OK(&w, "wake");
    world_close(&w);
}

Test(instance, a_tenant_reset_reaches_every_instance)
{
    struct world w;
    world_open(&w, 1, true);
    world_add_other(&w);
    struct kvb_token a = w.engine.ranks[0].lineage.token;
    struct kvb_token b = w.other.ranks[0].lineage.token;
    OK(&w, "tenant");
    cr_assert_not(kvb_token_equal(a, w.engine.ranks[0].lineage.token));
    cr_assert_not(kvb_token_equal(b, w.other.ranks[0].lineage.token));
    sim_advance(&w.sim, 100);
    cr_assert(fake_engine_open(&w.engine));
    cr_assert(fake_engine_open(&w.other));
    world_close(&w);
}

Test(instance, without_a_store_the_external_part_is_success)
{
    struct world w;
    world_open(&w, 1, false);
    struct told *told = world_do(&w, "reset external");
    cr_assert_eq(told->status, KVB_OK);
    cr_assert_eq(told->external, KVP_EXTERNAL_DONE);
    told = world_do(&w, "sleep 1");
    cr_assert_eq(told->external, KVP_EXTERNAL_DONE);
    OK(&w, "wake");
    OK(&w, "tenant");
    cr_assert(fake_engine_serves(&w.engine));
    world_close(&w);
}

/* ---- attaching ---- */

/* The daemon is replaced while the engine goes on. */
static void new_daemon(struct world *w, bool same_coordinator)
{
    (void)same_coordinator;
    fake_engine_drop_link(&w->engine);
    sim_settle(&w->sim);
    kvp_fleet_destroy(w->fleet);
    struct kvp_fleet_config config = {
        .sched = &w->sim.sched,
        .coordinator = w->coordinator,
        .bounds = {480000, 60000, 200, 30000, 10000, 1000, 3},
        .changed = world_changed_,
        .ctx = w,
    };
    kvb_status_t status = kvp_fleet_create(&config, &w->fleet);
    cr_assert_eq(status, KVB_OK);
    w->engine.fleet = w->fleet;
    fake_engine_attach(&w->engine);
    sim_settle(&w->sim);
}

Test(instance, a_new_daemon_takes_the_engine_back_in_its_true_state)
{
    static const char *const before[][3] = {
        {NULL},
        {"pause"},
        {"sleep 1"},
        {"sleep 2", "wake weights"},
        {"pause", "release"},
        {"start"},
        {"pause", "start", "update"},
    };
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        struct world w;
        world_open(&w, 2, true);
        for (int s = 0; s < 3 && before[i][s] != NULL; s++) {
            OK(&w, before[i][s]);
        }
        struct kvp_view was = world_view(&w);
        new_daemon(&w, true);
        struct kvp_view is = world_view(&w);
        cr_assert_eq(is.is_sleeping, was.is_sleeping, "case %zu", i);
        cr_assert_eq(is.is_paused, was.is_paused, "case %zu", i);
        cr_assert_eq(is.weight_change_running, was.weight_change_running, "case %zu", i);
        cr_assert_eq(is.ready, was.ready, "case %zu: %s", i, is.not_ready);
        cr_assert_eq(is.open, was.open, "case %zu", i);
        for (uint32_t t = 0; t < is.ntags; t++) {
            cr_assert_eq(is.tags[t].residency, was.tags[t].residency, "case %zu", i);
        }
        if (was.weights_name[0] != '\0') {
            cr_assert(kvb_lineage_equal(is.lineage, was.lineage), "case %zu", i);
        }
        if (is.weight_change_running) {
            OK(&w, "finish");
        }
        OK(&w, "wake");
        OK(&w, "resume");
        cr_assert(fake_engine_serves(&w.engine), "case %zu", i);
        cr_assert(fake_engine_open(&w.engine), "case %zu", i);
        world_close(&w);
    }
}

Test(instance, ranks_that_differ_are_brought_together_before_anything_runs)
{
    for (int way = 0; way < 3; way++) {
        struct world w;
        world_open(&w, 2, true);
        OK(&w, "sleep 1");
        fake_engine_drop_link(&w.engine);
        sim_settle(&w.sim);
        /* one rank came up again, in whole or in part, before the daemon was there */
        struct fake_rank *rank = &w.engine.ranks[way == 2 ? 0 : 1];
        rank->tags[0].residency = KVB_RESIDENT;
        if (way > 0) {
            rank->tags[1].residency = KVB_RESIDENT;
        }
        fake_engine_attach(&w.engine);
        cr_assert_not(world_view(&w).ready);
        sim_settle(&w.sim);
        cr_assert_eq(w.engine.ranks[0].tags[0].residency, KVB_DISCARDED, "way %d", way);
        cr_assert_eq(w.engine.ranks[1].tags[0].residency, KVB_DISCARDED, "way %d", way);
        cr_assert_eq(w.engine.ranks[0].tags[1].residency, KVB_OFFLOADED, "way %d", way);
        cr_assert_eq(w.engine.ranks[1].tags[1].residency, KVB_OFFLOADED, "way %d", way);
        OK(&w, "wake");
        cr_assert(fake_engine_serves(&w.engine));
        world_close(&w);
    }
}

Test(instance, what_was_discarded_in_part_ends_degraded_and_a_repeated_call_goes_on)
{
    struct world w;
    world_open(&w, 2, true);
    /* release is refused by rank 1 every time: found by its number among the calls, then mute */
    w.engine.ranks[1].refuses_release = true;
    struct told *told = world_do(&w, "sleep 1");
    cr_assert_neq(told->status, KVB_OK);
    struct kvp_view view = world_view(&w);
    cr_assert(view.degraded);
    cr_assert_not(view.ready);
    cr_assert(strstr(told->message, "degraded") != NULL, "%s", told->message);
    FAILS(&w, "resume", KVB_ERR_BAD_STATE);
    w.engine.ranks[1].refuses_release = false;
    OK(&w, "sleep 1");
    cr_assert_not(world_view(&w).degraded);
    OK(&w, "wake");
    cr_assert(fake_engine_serves(&w.engine));
    /* or the way up */
    w.engine.ranks[1].refuses_release = true;
    (void)world_do(&w, "sleep 2");
    cr_assert(world_view(&w).degraded);
    OK(&w, "wake");
    cr_assert(fake_engine_serves(&w.engine));
    cr_assert(world_view(&w).ready, "%s", world_view(&w).not_ready);
    world_close(&w);
}

Test(instance, operations_are_refused_until_every_rank_is_there_and_after_it_died)
{
    struct world w;
    world_open_fleet(&w, true, NULL);
    FAILS(&w, "sleep 1", KVB_ERR_NOT_FOUND);
    fake_engine_init(&w.engine, &w.sim, w.fleet, "a", 2);
    w.engine.nranks = 1;
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    FAILS(&w, "sleep 1", KVB_ERR_BAD_STATE);
    cr_assert_not(world_view(&w).attached);
    w.engine.nranks = 2;
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    OK(&w, "sleep 1");
    w.engine.busy = 0;
    OK(&w, "wake");
    w.engine.busy = 1;
    struct told *runs = world_start(&w, "pause wait");
    sim_advance(&w.sim, 10);
    struct told *waits = world_start(&w, "sleep 1");
    fake_engine_restart(&w.engine);
    sim_settle(&w.sim);
    cr_assert_eq(runs->status, KVB_ERR_DISCONNECTED);
    cr_assert_eq(waits->status, KVB_ERR_DISCONNECTED);
    FAILS(&w, "sleep 1", KVB_ERR_BAD_STATE);
    cr_assert(world_view(&w).ever_attached);
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    cr_assert(fake_engine_serves(&w.engine));
    cr_assert(world_view(&w).ready);
    world_close(&w);
}

Test(instance, several_instances_must_be_named)
{
    struct world w;
    world_open(&w, 1, true);
    struct told *told = world_start_on(&w, NULL, "sleep 0");
    world_await(&w, told);
    cr_assert_eq(told->status, KVB_OK);
    OK(&w, "wake");
    world_add_other(&w);
    told = world_start_on(&w, NULL, "sleep 0");
    world_await(&w, told);
    cr_assert_eq(told->status, KVB_ERR_INVALID);
    cr_assert(strstr(told->message, " a b") != NULL, "%s", told->message);
    told = world_start_on(&w, "c", "sleep 0");
    world_await(&w, told);
    cr_assert_eq(told->status, KVB_ERR_NOT_FOUND);
    world_close(&w);
}

static kvb_status_t hello_with(struct world *w, struct kvb_link_hello *hello, char reason[256])
{
    struct kvp_rank rank = {.ops = w->engine.ranks[0].rank.ops, .impl = &w->engine.ranks[0]};
    struct kvp_instance *instance = NULL;
    return kvp_fleet_hello(w->fleet, hello, &rank, reason, 256, &instance);
}

Test(instance, names_that_are_remembered_have_a_limit_and_known_ones_still_come_back)
{
    struct world w;
    world_open(&w, 1, true);
    struct kvb_link_hello hello = w.engine.hello;
    hello.roles = KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER;
    struct kvp_rank rank = {.ops = w.engine.ranks[0].rank.ops, .impl = &w.engine.ranks[0]};
    struct kvp_instance *instance = NULL;
    char reason[256] = "";
    for (uint32_t i = 1; i < KVP_INSTANCES_MAX; i++) { /* one is there */
        snprintf(hello.instance, sizeof hello.instance, "gone-%u", i);
        cr_assert_eq(kvp_fleet_hello(w.fleet, &hello, &rank, reason, 256, &instance), KVB_OK);
        kvp_instance_rank_gone(instance, &rank, "it went");
    }
    snprintf(hello.instance, sizeof hello.instance, "one-more");
    cr_assert_eq(kvp_fleet_hello(w.fleet, &hello, &rank, reason, 256, &instance), KVB_ERR_REFUSED);
    cr_expect_not_null(strstr(reason, "old name"), "%s", reason);
    snprintf(hello.instance, sizeof hello.instance, "gone-7");
    cr_assert_eq(kvp_fleet_hello(w.fleet, &hello, &rank, reason, 256, &instance), KVB_OK);
    kvp_instance_rank_gone(instance, &rank, "it went");
    world_close(&w);
}

Test(instance, a_hello_that_does_not_fit_is_refused_with_what_to_change)
{
    struct world w;
    world_open(&w, 1, true);
    struct kvb_link_hello good = w.engine.hello;
    good.roles = KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER;
    for (int way = 0; way < 8; way++) {
        struct kvb_link_hello hello = good;
        switch (way) {
        case 0:
            break; /* attached already */
        case 7:
            hello.roles = KVB_ROLE_SCHEDULER;
            break;
        case 1:
            hello.world_size = hello.local_world_size = 2;
            break;
        case 2:
            strcpy(hello.tenant, "another");
            break;
        case 3:
            strcpy(hello.layout, "another");
            break;
        case 4:
            strcpy(hello.instance, "spans");
            hello.world_size = 2; /* local_world_size is 1 */
            break;
        case 5:
            strcpy(hello.instance, "rank");
            hello.rank = 1;
            break;
        default:
            strcpy(hello.instance, "roles");
            hello.roles = 0;
            break;
        }
        char reason[256] = "";
        cr_assert_eq(hello_with(&w, &hello, reason), KVB_ERR_REFUSED, "way %d", way);
        cr_assert_neq(reason[0], '\0', "way %d", way);
    }
    cr_assert_eq(kvp_fleet_count(w.fleet), 1);
    world_close(&w);
}

Test(instance, every_open_request_is_answered_when_the_daemon_ends)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.busy = 1;
    struct told *runs = world_start(&w, "pause wait");
    sim_advance(&w.sim, 10);
    struct told *waits = world_start(&w, "sleep 1");
    struct told *beside = world_start(&w, "relay");
    struct told *refused = world_start_on(&w, "nobody", "sleep 1");
    world_close(&w); /* asserts that each was answered once */
    (void)runs;
    (void)waits;
    (void)beside;
    (void)refused;
}

/* ---- in lockstep, without versions ---- */

Test(instance, unversioned_instances_share_each_step_after_a_tenant_reset_and_no_two_steps)
{
    struct world w;
    world_open_fleet(&w, true, "finish");
    fake_engine_init(&w.engine, &w.sim, w.fleet, "a", 1);
    w.engine.fingerprints = false;
    fake_engine_attach(&w.engine);
    fake_engine_init(&w.other, &w.sim, w.fleet, "b", 1);
    w.other.fingerprints = false;
    w.has_other = true;
    fake_engine_attach(&w.other);
    sim_settle(&w.sim);
    OK(&w, "tenant");
    struct kvb_lineage last = {{0, 0}};
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < 2; i++) {
            const char *who = i == 0 ? "a" : "b";
            world_await(&w, world_start_on(&w, who, "start"));
            world_await(&w, world_start_on(&w, who, "update"));
            world_await(&w, world_start_on(&w, who, "finish"));
            if (i == 0) { /* not what the other still holds of the step before */
                struct kvp_view b;
                cr_assert(kvp_fleet_view(w.fleet, "b", &b));
                cr_assert_not(kvb_lineage_equal(world_view(&w).lineage, b.lineage));
            }
        }
        struct kvp_view b;
        cr_assert(kvp_fleet_view(w.fleet, "b", &b));
        cr_assert(kvb_lineage_equal(world_view(&w).lineage, b.lineage), "step %d", step);
        cr_assert_not(kvb_lineage_equal(world_view(&w).lineage, last), "step %d", step);
        cr_assert(b.open);
        last = b.lineage;
    }
    /* one that restarts is private until the next tenant reset */
    fake_engine_restart(&w.other);
    fake_engine_attach(&w.other);
    sim_settle(&w.sim);
    for (int i = 0; i < 2; i++) {
        const char *who = i == 0 ? "a" : "b";
        world_await(&w, world_start_on(&w, who, "start"));
        world_await(&w, world_start_on(&w, who, "finish"));
    }
    struct kvp_view b;
    cr_assert(kvp_fleet_view(w.fleet, "b", &b));
    cr_assert_str_eq(b.weights_name, "");
    cr_assert_neq(world_view(&w).weights_name[0], '\0');
    OK(&w, "tenant");
    for (int i = 0; i < 2; i++) {
        const char *who = i == 0 ? "a" : "b";
        world_await(&w, world_start_on(&w, who, "start"));
        world_await(&w, world_start_on(&w, who, "finish"));
    }
    cr_assert(kvp_fleet_view(w.fleet, "b", &b));
    cr_assert(kvb_lineage_equal(world_view(&w).lineage, b.lineage));
    world_close(&w);
}

Test(instance, while_a_rank_does_not_answer_nothing_is_begun_and_who_waits_is_told)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.mute = true;
    struct told *sleep = world_do(&w, "sleep 1 wait");
    cr_assert_eq(sleep->status, KVB_ERR_TIMEOUT);
    cr_assert_not(world_view(&w).ready);
    struct told *next = world_do(&w, "pause");
    cr_assert_eq(next->status, KVB_ERR_BUSY);
    cr_assert(strstr(next->message, "does not answer") != NULL, "%s", next->message);
    w.engine.mute = false;
    sim_advance(&w.sim, 30000);
    cr_assert(world_view(&w).ready, "%s", world_view(&w).not_ready);
    OK(&w, "sleep 1");
    OK(&w, "wake");
    cr_assert(fake_engine_serves(&w.engine));
    world_close(&w);
}

Test(instance, ranks_that_echo_different_stays_have_left)
{
    struct world w;
    world_open(&w, 2, true);
    struct kvb_token before = w.engine.ranks[0].lineage.token;
    fake_engine_drop_link(&w.engine);
    sim_settle(&w.sim);
    w.engine.ranks[1].lineage.token.id.lo ^= 1;
    uint64_t resets = w.engine.resets;
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    cr_assert_not(kvb_token_equal(w.engine.ranks[0].lineage.token, before));
    cr_assert_eq(w.engine.resets, resets + 1); /* what its cache holds is of nobody knows when */
    cr_assert(fake_engine_open(&w.engine));
    world_close(&w);
}

Test(instance, an_unregister_that_fails_leaves_everything_registered_and_serving)
{
    struct world w;
    world_open(&w, 2, true);
    uint64_t generation = w.engine.ranks[0].tags[0].generation;
    w.engine.ranks[0].refuses_unregister = w.engine.ranks[1].refuses_unregister = true;
    w.engine.ranks[1].cause = "mem_unmap: CUDA_ERROR_ILLEGAL_ADDRESS";
    struct told *told = world_do(&w, "sleep 1");
    cr_assert_eq(told->status, KVB_ERR_TIMEOUT);
    cr_assert_not_null(strstr(told->message, "unregister failed on rank 0: "), "%s", told->message);
    w.engine.ranks[0].cause = "mem_unmap: CUDA_ERROR_ILLEGAL_ADDRESS";
    told = world_do(&w, "sleep 1");
    cr_assert_not_null(strstr(told->message, "mem_unmap: CUDA_ERROR_ILLEGAL_ADDRESS: "), "%s",
                       told->message);
    cr_assert_not_null(strstr(told->message, "repeat"), "what to do: %s", told->message);
    cr_assert(fake_engine_serves(&w.engine));
    cr_assert(world_view(&w).ready);
    /* nothing was undone, so nothing need be handed over anew */
    cr_assert_eq(w.engine.ranks[0].tags[0].generation, generation);
    world_close(&w);
}

Test(instance, memory_that_only_the_daemon_lost_is_handed_over_anew_while_the_engine_serves)
{
    static const char kv[1][KVB_NAME_MAX] = {"kv_cache"};
    struct world w;
    world_open(&w, 2, true);
    struct fake_rank *rank = &w.engine.ranks[1];
    struct fake_tag *tag = &rank->tags[0];
    cr_assert_str_eq(tag->tag, "kv_cache");
    uint64_t generation = tag->generation;
    tag->registered = tag->handed = false;
    kvp_instance_memory_lost(rank->instance, &rank->rank, kv, 1);
    sim_settle(&w.sim);
    cr_assert_not(tag->registered, "in a while");
    sim_advance(&w.sim, 10000);
    cr_assert(tag->registered);
    cr_assert_gt(tag->generation, generation);
    cr_assert(fake_engine_serves(&w.engine));
    cr_assert(world_view(&w).ready);
    /* Whoever sleeps before that has nothing to fear. */
    tag->registered = tag->handed = false;
    kvp_instance_memory_lost(rank->instance, &rank->rank, kv, 1);
    OK(&w, "sleep 1");
    sim_advance(&w.sim, 10000);
    cr_assert(world_view(&w).is_sleeping);
    OK(&w, "wake");
    cr_assert(fake_engine_serves(&w.engine));
    world_close(&w);
}

Test(instance, what_a_rank_lost_that_is_gone_is_nothing)
{
    static const char kv[1][KVB_NAME_MAX] = {"kv_cache"};
    struct world w;
    world_open(&w, 2, true);
    struct kvp_instance *instance = w.engine.ranks[1].instance;
    fake_engine_lose_rank(&w.engine, 1);
    sim_settle(&w.sim);
    uint64_t changes = w.changes;
    kvp_instance_memory_lost(instance, &w.engine.ranks[1].rank, kv, 1);
    sim_advance(&w.sim, 10000);
    cr_assert_eq(w.changes, changes);
    fake_engine_attach(&w.engine);
    sim_advance(&w.sim, 10000);
    cr_assert(fake_engine_serves(&w.engine));
    world_close(&w);
}

Test(instance, more_tags_than_an_instance_may_have_are_left_out)
{
    static const char *const tags[3][FAKE_TAGS_MAX] = {
        {"kv_cache", "weights", "c"}, {"d", "e", "f"}, {"g", "h", "i"}};
    struct world w;
    world_open_fleet(&w, true, NULL);
    fake_engine_init(&w.engine, &w.sim, w.fleet, "a", 3);
    w.engine.ntags = FAKE_TAGS_MAX;
    for (int r = 0; r < 3; r++) {
        for (int t = 0; t < FAKE_TAGS_MAX; t++) {
            w.engine.ranks[r].tags[t].tag = tags[r][t];
        }
    }
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    struct kvp_view view = world_view(&w);
    cr_assert_eq(view.ntags, KVB_TAGS_MAX);
    for (uint32_t t = 0; t < view.ntags; t++) {
        cr_assert_str_eq(view.tags[t].tag, tags[t / 3][t % 3]);
    }
    world_close(&w);
}

static uint32_t nfingerprints;
static void count_fingerprints(void *ctx, const struct fake_step *step, kvb_status_t status)
{
    (void)ctx;
    nfingerprints += step->type == KVB_LINK_FINGERPRINT && status == KVB_IN_PROGRESS;
}

/* Asked again for want of memory is what found none here. */
Test(instance, an_engine_that_has_no_memory_for_a_fingerprint_is_asked_once)
{
    struct world w;
    world_open(&w, 2, true);
    OK(&w, "sleep 1");
    w.engine.no_fingerprint = KVB_ERR_NO_MEMORY;
    w.engine.watch = count_fingerprints;
    nfingerprints = 0;
    OK(&w, "wake");
    sim_advance(&w.sim, 3600 * 1000);
    cr_assert_eq(nfingerprints, 2, "once each: %u", nfingerprints);
    cr_assert(world_view(&w).open);
    cr_assert_str_eq(world_view(&w).weights_name, "");
    world_close(&w);
}

Test(instance, who_reads_that_memory_could_not_be_unregistered_reads_what_to_do)
{
    static const struct {
        kvb_status_t says;
        const char *advice;
    } cases[] = {{KVB_ERR_NO_MEMORY, "free memory"},
                 {KVB_ERR_UNSUPPORTED, "no GPU"},
                 {KVB_ERR_INVALID, "must hand over"},
                 {KVB_ERR_UNAVAILABLE, "another one is started"},
                 {KVB_ERR_IO, "see the daemon's log"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world w;
        world_open(&w, 1, true);
        w.engine.says = cases[i].says;
        w.engine.ranks[0].refuses_unregister = true;
        struct told *told = world_do(&w, "sleep 1");
        cr_assert_eq(told->status, cases[i].says);
        cr_assert_not_null(strstr(told->message, cases[i].advice), "%s", told->message);
        cr_assert(fake_engine_serves(&w.engine));
        w.engine.ranks[0].refuses_unregister = false;
        OK(&w, "sleep 1");
        world_close(&w);
    }
}

static void lose_kv(void *ctx, const struct fake_step *step, kvb_status_t status)
{
    static const char kv[1][KVB_NAME_MAX] = {"kv_cache"};
    struct world *w = ctx;
    struct fake_rank *rank = &w->engine.ranks[0];
    bool unregisters = step->type == KVB_LINK_REGISTER_REGION && !step->register_;
    if (unregisters && step->rank == 0 && status == KVB_IN_PROGRESS) {
        rank->tags[0].registered = rank->tags[0].handed = false;
        kvp_instance_memory_lost(rank->instance, &rank->rank, kv, 1);
    }
}

Test(instance, memory_lost_while_an_unregister_fails_is_not_taken_for_registered)
{
    struct world w;
    world_open(&w, 1, true);
    struct fake_tag *tag = &w.engine.ranks[0].tags[0];
    uint64_t generation = tag->generation;
    w.engine.ranks[0].refuses_unregister = true;
    w.engine.watch = lose_kv;
    w.engine.watch_ctx = &w;
    struct told *told = world_do(&w, "sleep 1");
    cr_assert_eq(told->status, KVB_ERR_TIMEOUT);
    w.engine.watch = NULL;
    sim_advance(&w.sim, 10000);
    cr_assert(tag->registered);
    cr_assert_gt(tag->generation, generation);
    cr_assert(fake_engine_serves(&w.engine));
    cr_assert(world_view(&w).ready);
    w.engine.ranks[0].refuses_unregister = false;
    OK(&w, "sleep 1");
    OK(&w, "wake");
    cr_assert(fake_engine_serves(&w.engine));
    world_close(&w);
}

struct seen_ranks {
    uint32_t n, attached, workers, schedulers, helpers;
    uint32_t resident, discarded, regions;
};

static void see_rank(void *arg, const struct kvp_rank_view *view)
{
    struct seen_ranks *seen = arg;
    cr_assert_eq(view->rank, seen->n++, "in order");
    seen->attached += view->attached;
    seen->workers += view->worker;
    seen->schedulers += view->scheduler;
    seen->helpers += view->device != NULL;
    seen->regions += view->regions;
    for (uint32_t i = 0; i < view->ntags; i++) {
        seen->resident += view->tags[i].residency == KVB_RESIDENT;
        seen->discarded += view->tags[i].residency == KVB_DISCARDED;
    }
}

Test(instance, every_rank_is_shown_with_what_it_holds_also_one_that_is_gone)
{
    struct world w;
    struct seen_ranks seen = {0};
    world_open(&w, 4, true);
    w.engine.ranks[2].cause = "";
    kvp_fleet_each_rank(w.fleet, "a", see_rank, &seen);
    cr_assert_eq(seen.n, 4);
    cr_assert_eq(seen.attached, 4);
    cr_assert_eq(seen.workers, 4);
    cr_assert_eq(seen.helpers, 1);
    cr_assert_eq(seen.resident, 4 * w.engine.ntags);
    cr_assert_eq(seen.regions, 4 * w.engine.ntags);
    OK(&w, "sleep 2");
    fake_engine_lose_rank(&w.engine, 1);
    sim_settle(&w.sim);
    memset(&seen, 0, sizeof seen);
    kvp_fleet_each_rank(w.fleet, "a", see_rank, &seen);
    cr_assert_eq(seen.n, 4);
    cr_assert_eq(seen.attached, 3);
    cr_assert_eq(seen.discarded, 3 * w.engine.ntags);
    cr_assert_eq(seen.regions, 0);
    kvp_fleet_each_rank(w.fleet, "nobody", see_rank, &seen);
    cr_assert_eq(seen.n, 4);
    world_close(&w);
}

Test(instance, nothing_is_answered_or_relayed_before_the_leaving_is_acknowledged)
{
    static const char *const words[] = {"pause clear", "sleep 1", "reset external", "start",
                                        "update"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct world w;
        world_open(&w, 1, true);
        w.engine.fault = FAKE_SILENT;
        w.engine.fault_at = w.engine.ncalls + (i < 2 ? 3 : 1); /* LINEAGE */
        struct told *told = world_do(&w, words[i]);
        cr_assert_neq(told->status, KVB_OK, "%s", words[i]);
        cr_assert_str_eq(w.engine.last_method, "");
        sim_advance(&w.sim, 100000);
        cr_assert(fake_engine_serves(&w.engine), "%s", words[i]);
        cr_assert(fake_engine_open(&w.engine), "%s", words[i]); /* sent again by itself */
        world_close(&w);
    }
}

Test(instance, a_start_that_was_not_answered_is_relayed_again_when_repeated)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.fault = FAKE_SILENT;
    w.engine.fault_at = w.engine.ncalls + 2; /* RELAY */
    FAILS(&w, "start", KVB_ERR_TIMEOUT);
    sim_advance(&w.sim, 10000);
    cr_assert_not(world_view(&w).weight_change_running); /* the engine says so */
    cr_assert(fake_engine_open(&w.engine));
    OK(&w, "start");
    cr_assert(w.engine.ranks[0].updating);
    OK(&w, "finish");
    w.engine.fault = FAKE_LATE;
    w.engine.fault_at = w.engine.ncalls + 2;
    FAILS(&w, "start", KVB_ERR_TIMEOUT);
    sim_advance(&w.sim, 10000);
    cr_assert(world_view(&w).weight_change_running); /* it did begin */
    cr_assert_not(world_view(&w).open);
    OK(&w, "start");
    OK(&w, "finish");
    cr_assert(fake_engine_open(&w.engine));
    world_close(&w);
}

Test(instance, a_reset_is_not_joined_any_more_once_its_leaving_has_begun)
{
    struct world w;
    world_open(&w, 1, true);
    struct told *first = world_start(&w, "reset external");
    struct told *same = world_start(&w, "reset external");
    cr_assert_eq(first->operation_id, same->operation_id);
    (void)sim_turn(&w.sim);
    cr_assert_str_eq(world_view(&w).step, "leave");
    struct told *later = world_start(&w, "reset external");
    cr_assert_neq(first->operation_id, later->operation_id);
    struct kvb_token token = w.engine.ranks[0].rank.stay->token;
    world_await(&w, first);
    world_await(&w, later);
    cr_assert_eq(later->status, KVB_OK);
    cr_assert_not(kvb_token_equal(token, w.engine.ranks[0].rank.stay->token));
    world_close(&w);
}

Test(instance, a_local_reset_is_not_joined_any_more_once_the_engine_was_asked)
{
    struct world w;
    world_open(&w, 1, true);
    struct told *first = world_start(&w, "reset");
    struct told *same = world_start(&w, "reset");
    cr_assert_eq(first->operation_id, same->operation_id);
    (void)sim_turn(&w.sim);
    cr_assert_str_eq(world_view(&w).step, "reset_local");
    struct told *later = world_start(&w, "reset");
    cr_assert_neq(first->operation_id, later->operation_id);
    uint64_t resets = w.engine.resets;
    world_await(&w, first);
    world_await(&w, later);
    cr_assert_eq(later->status, KVB_OK);
    cr_assert_eq(w.engine.resets, resets + 2);
    world_close(&w);
}

Test(instance, relays_beside_each_other_have_a_limit_in_bytes)
{
    struct world w;
    world_open(&w, 1, true);
    size_t len = KVB_RELAY_BODY_MAX / 2 + 1;
    char *body = calloc(1, len);
    struct told told[2] = {{.world = &w}, {.world = &w}};
    struct kvp_ask ask = world_ask("relay");
    ask.body = body;
    ask.body_len = len;
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(kvp_fleet_request(w.fleet, "a", &ask, "req", world_told_, &told[i], NULL),
                     KVB_OK);
    }
    sim_advance(&w.sim, 1000);
    cr_assert_eq(told[0].status, KVB_OK);
    cr_assert_eq(told[1].times, 1);
    cr_assert_eq(told[1].status, KVB_ERR_BUSY);
    told[1].times = 0;
    cr_assert_eq(kvp_fleet_request(w.fleet, "a", &ask, "req", world_told_, &told[1], NULL), KVB_OK);
    sim_advance(&w.sim, 1000);
    cr_assert_eq(told[1].status, KVB_OK, "when the first has gone");
    free(body);
    world_close(&w);
}

Test(instance, an_operation_that_is_being_undone_is_not_joined)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.fault = FAKE_ERROR;
    w.engine.fault_at = w.engine.ncalls + 4; /* RESET_LOCAL */
    struct told *first = world_start(&w, "sleep 1");
    for (int turn = 0; turn < 100 && strcmp(world_view(&w).step, "resume") != 0; turn++) {
        (void)sim_turn(&w.sim);
    }
    cr_assert_eq(first->times, 0);
    struct told *second = world_start(&w, "sleep 1");
    cr_assert_neq(first->operation_id, second->operation_id);
    world_await(&w, second);
    cr_assert_eq(first->status, KVB_ERR_INTERNAL);
    cr_assert_eq(second->status, KVB_OK, "%s", second->message);
    world_close(&w);
}

Test(instance, an_engine_that_dies_between_two_tries_is_no_success)
{
    struct world w;
    world_open(&w, 1, true);
    w.engine.ranks[0].refuses_release = true;
    struct told *sleep = world_start(&w, "sleep 1");
    sim_advance(&w.sim, 500); /* waits for its second try */
    cr_assert_eq(sleep->times, 0);
    w.engine.ranks[0].refuses_release = false;
    fake_engine_restart(&w.engine);
    world_await(&w, sleep);
    cr_assert_eq(sleep->status, KVB_ERR_DISCONNECTED);
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    cr_assert(world_view(&w).ready, "%s", world_view(&w).not_ready);
    world_close(&w);
}

#ifdef KVB_FAULTS
Test(instance, the_fault_switch_leaves_nothing_at_reset_sleep_and_update)
{
    kvb_status_t status = kvb_fault_choose("lineage-kept");
    cr_assert_eq(status, KVB_OK);
    static const char *const words[][2] = {
        {"reset external", "resume"}, {"sleep 2", "wake"}, {"update", "resume"},
        {"pause clear", "resume"},    {"release", "wake"},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct world w;
        world_open(&w, 1, true);
        struct kvb_lineage before = world_view(&w).lineage;
        OK(&w, words[i][0]);
        OK(&w, words[i][1]);
        cr_assert(kvb_lineage_equal(world_view(&w).lineage, before), "%s", words[i][0]);
        cr_assert(fake_engine_open(&w.engine), "%s", words[i][0]);
        world_close(&w);
    }
}
#endif

/* Each of four ranks dies alone and comes back, in every state. Where memory should be is where it
 * is in the end, on all of them; nothing that was cached or agreed before counts any more. */
Test(instance, a_rank_that_dies_alone_is_brought_to_where_its_fellows_are)
{
    static const char *const states[][2] = {
        {"", ""}, {"pause keep", "resume"}, {"sleep 1", "wake"}, {"sleep 2", "wake"}};
    for (size_t s = 0; s < sizeof states / sizeof states[0]; s++) {
        for (uint32_t r = 0; r < 4; r++) {
            struct world w;
            world_open(&w, 4, true);
            if (states[s][0][0] != '\0') {
                cr_assert_eq(world_do(&w, states[s][0])->status, KVB_OK);
            }
            struct kvp_view before = world_view(&w);
            struct kvb_token before_token = w.engine.ranks[0].lineage.token;
            w.engine.cached = 3; /* of the scheduler, found there by prefix */
            uint64_t resets = w.engine.resets;
            fake_engine_lose_rank(&w.engine, r);
            struct kvp_view view = world_view(&w);
            cr_assert(!view.attached && !view.ready && view.ranks == 3);
            cr_assert_eq(world_do(&w, "wake")->status, KVB_ERR_BAD_STATE);
            fake_engine_attach(&w.engine);
            sim_advance(&w.sim, 60000);
            view = world_view(&w);
            cr_assert(view.attached);
            cr_assert_not(kvb_token_equal(w.engine.ranks[3 - r].lineage.token, before_token));
            cr_assert(r == 0 || w.engine.resets > resets, "%s: not reset", states[s][0]);
            for (uint32_t t = 0; t < 2; t++) {
                cr_assert_eq(view.tags[t].residency, before.tags[t].residency);
                for (uint32_t k = 0; k < 4; k++) {
                    cr_assert_eq(w.engine.ranks[k].tags[t].residency,
                                 w.engine.ranks[0].tags[t].residency, "%s, rank %u: %u differs",
                                 states[s][0], r, k);
                }
            }
            /* a scheduler that stayed stays stopped by whom it was stopped */
            cr_assert(r == 0 || view.stopped_by == before.stopped_by, "%s: %x", states[s][0],
                      view.stopped_by);
            if (states[s][1][0] != '\0') {
                cr_assert_eq(world_do(&w, states[s][1])->status, KVB_OK);
            }
            cr_assert(fake_engine_serves(&w.engine) && fake_engine_open(&w.engine), "%s, rank %u",
                      states[s][0], r);
            world_close(&w);
        }
    }
}

Test(instance, ranks_that_are_not_split_alike_are_refused)
{
    struct world w;
    world_open_fleet(&w, true, NULL);
    fake_engine_init(&w.engine, &w.sim, w.fleet, "a", 2);
    w.engine.hello.store_tp_size = 4;
    w.engine.nranks = 1;
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    cr_assert_not(world_view(&w).attached);
    cr_assert_str_eq(world_view(&w).layout, "layout@split(store_tp=4,pp=1)");
    for (int way = 0; way < 4; way++) {
        struct kvb_link_hello hello = w.engine.hello;
        hello.rank = 1;
        hello.roles = KVB_ROLE_WORKER;
        switch (way) {
        case 0:
            hello.tp_size = 1;
            break;
        case 1:
            hello.store_tp_size = 2;
            break;
        case 2:
            hello.ngroups = 1;
            hello.groups[0].block_tokens = 32;
            break;
        default:
            hello.store_tp_size = 3;
            break;
        }
        char reason[256] = "";
        cr_assert_eq(hello_with(&w, &hello, reason), KVB_ERR_REFUSED, "way %d", way);
        cr_assert_neq(reason[0], '\0', "way %d", way);
    }
    w.engine.nranks = 2;
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    cr_assert(world_view(&w).attached);
    world_close(&w);
}

/* ---- taking back ---- */

static struct told *take_back(struct world *w, uint64_t id)
{
    struct told *told = calloc(1, sizeof *told);
    struct kvp_ask ask = {.operation = KVP_OP_TAKE_BACK, .take_back = id};
    kvb_assert(told != NULL);
    told->world = w;
    told->next = w->told;
    w->told = told;
    kvb_status_t status =
        kvp_fleet_request(w->fleet, "a", &ask, "req", world_told_, told, &told->operation_id);
    kvb_assert(status == KVB_OK);
    world_await(w, told);
    return told;
}

/* What stops an instance, whatever stopped it before. */
static const char *const stopping[] = {"pause keep", "sleep 0", "sleep 1", "release",
                                       "sleep 1 optout"};
static const char *const befores[] = {"",        "pause",         "sleep 0",
                                      "release", "pause|release", "sleep 1|wake kv_cache"};

static void do_each(struct world *w, const char *list)
{
    char copy[128];
    char *rest = NULL;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *one = strtok_r(copy, "|", &rest); one != NULL; one = strtok_r(NULL, "|", &rest)) {
        cr_assert_eq(world_do(w, one)->status, KVB_OK, "%s of %s", one, list);
    }
}

static void expect_state(const struct kvp_view *now, const struct kvp_view *was, const char *where)
{
    cr_expect_eq(now->scheduler, was->scheduler, "%s: %d", where, now->scheduler);
    cr_expect_eq(now->stopped_by, was->stopped_by, "%s: %u, not %u", where, now->stopped_by,
                 was->stopped_by);
    cr_expect_eq(now->registered_regions, was->registered_regions, "%s", where);
    for (uint32_t i = 0; i < was->ntags; i++) {
        cr_expect_eq(now->tags[i].residency, was->tags[i].residency, "%s: %s is %d", where,
                     was->tags[i].tag, now->tags[i].residency);
    }
}

Test(instance, what_an_operation_did_is_taken_back_to_what_it_found_and_no_further)
{
    char where[128];
    for (size_t b = 0; b < sizeof befores / sizeof befores[0]; b++) {
        for (size_t s = 0; s < sizeof stopping / sizeof stopping[0]; s++) {
            struct world w;
            world_open(&w, 2, true);
            snprintf(where, sizeof where, "%s, then %s", befores[b], stopping[s]);
            do_each(&w, befores[b]);
            struct kvp_view was = world_view(&w);
            struct told *did = world_do(&w, stopping[s]);
            if (did->status == KVB_OK && !did->nothing_to_do) {
                struct told *back = take_back(&w, did->operation_id);
                cr_expect_eq(back->status, KVB_OK, "%s: %s", where, back->message);
                struct kvp_view now = world_view(&w);
                expect_state(&now, &was, where);
                /* once */
                cr_expect_eq(take_back(&w, did->operation_id)->status, KVB_ERR_BAD_STATE);
            }
            world_close(&w);
        }
    }
}

Test(instance, what_another_request_was_told_or_did_meanwhile_is_never_taken_back)
{
    /* asks for the same or more, acts on it, or begins a weight change */
    static const char *const others[] = {"same", "sleep 2", "pause",  "wake weights",
                                         "wake", "start",   "update", "resume"};
    char where[128];
    for (size_t s = 0; s < sizeof stopping / sizeof stopping[0]; s++) {
        for (size_t o = 0; o < sizeof others / sizeof others[0]; o++) {
            for (uint32_t joins = 0; joins < (o == 0 ? 2u : 1u); joins++) {
                struct world w;
                world_open(&w, 2, true);
                snprintf(where, sizeof where, "%s, then %s %u", stopping[s], others[o], joins);
                struct told *did = world_start(&w, stopping[s]);
                struct told *other = joins ? world_start(&w, stopping[s]) : NULL;
                world_await(&w, did);
                if (other != NULL) {
                    world_await(&w, other);
                } else {
                    other = world_do(&w, o == 0 ? stopping[s] : others[o]);
                }
                bool refused = other->status == KVB_ERR_BAD_STATE; /* it was told so, too */
                struct kvp_view was = world_view(&w);
                struct told *back = take_back(&w, did->operation_id);
                cr_expect_eq(back->status, refused ? KVB_OK : KVB_ERR_BAD_STATE, "%s: %s", where,
                             back->message);
                if (!refused) {
                    struct kvp_view now = world_view(&w);
                    expect_state(&now, &was, where);
                    cr_expect_eq(now.weight_change_running, was.weight_change_running, "%s", where);
                }
                world_close(&w);
            }
        }
    }
}

/* Who only looked or reset has no part in it. */
Test(instance, what_changes_nothing_does_not_keep_from_taking_back)
{
    static const char *const others[] = {"reset", "reset external", "version v=7", "relay"};
    for (size_t o = 0; o < sizeof others / sizeof others[0]; o++) {
        struct world w;
        world_open(&w, 1, true);
        struct kvp_view was = world_view(&w);
        struct told *did = world_do(&w, "sleep 0");
        cr_expect_eq(world_do(&w, others[o])->status, KVB_OK);
        struct told *back = take_back(&w, did->operation_id);
        cr_expect_eq(back->status, KVB_OK, "%s: %s", others[o], back->message);
        struct kvp_view now = world_view(&w);
        expect_state(&now, &was, others[o]);
        world_close(&w);
    }
}

Test(instance, an_engine_that_was_away_meanwhile_is_not_taken_back)
{
    struct world w;
    world_open(&w, 1, true);
    struct told *did = world_do(&w, "sleep 1");
    fake_engine_drop_link(&w.engine);
    sim_settle(&w.sim);
    fake_engine_attach(&w.engine);
    sim_settle(&w.sim);
    struct kvp_view was = world_view(&w);
    cr_expect_eq(take_back(&w, did->operation_id)->status, KVB_ERR_BAD_STATE);
    struct kvp_view now = world_view(&w);
    expect_state(&now, &was, "back again");
    world_close(&w);
}

/* ---- whose fault ---- */

/* The call that failed last. */
static void note_step(void *ctx, const struct fake_step *step, kvb_status_t status)
{
    if (status != KVB_OK && status != KVB_IN_PROGRESS) {
        *(struct fake_step *)ctx = *step;
    }
}

Test(instance, a_failure_is_told_with_the_side_that_it_is_on)
{
    /* each call of a sleep fails once */
    for (uint64_t at = 1, any = 1; any; at++) {
        struct world w;
        struct fake_step failed = {0};
        char where[KVP_AT_MAX];
        world_open(&w, 2, true);
        w.engine.watch = note_step;
        w.engine.watch_ctx = &failed;
        w.engine.fault_at = w.engine.ncalls + at;
        w.engine.fault = FAKE_ERROR;
        struct told *told = world_do(&w, "sleep 1");
        any = failed.type != 0;
        if (told->status != KVB_OK) {
            enum kvp_side side = failed.type == KVB_LINK_EVENT             ? KVP_SIDE_STORE
                                 : failed.type == KVB_LINK_REGISTER_REGION ? KVP_SIDE_DAEMON
                                                                           : KVP_SIDE_ENGINE;
            snprintf(where, sizeof where, "a/%u", failed.rank);
            bool ack = failed.type == KVB_LINK_LINEAGE; /* waited for over all of them */
            cr_expect_eq(told->side, side, "call %u of rank %u: %s", failed.type, failed.rank,
                         kvp_side_text(told->side));
            cr_expect_str_eq(told->at, side != KVP_SIDE_ENGINE ? "" : ack ? "a" : where);
        }
        w.engine.watch = NULL;
        world_close(&w);
    }
    struct world w;
    world_open(&w, 1, true);
    cr_expect_eq(world_do(&w, "sleep 1")->side, 0);
    struct told *told = world_do(&w, "resume"); /* memory is not resident */
    cr_expect(told->status == KVB_ERR_BAD_STATE && told->side == KVP_SIDE_CLIENT);
    (void)world_do(&w, "wake");
    kvs_embedded_set_reachable(w.coordinator, false);
    told = world_do(&w, "reset external");
    cr_expect(told->status != KVB_OK && told->side == KVP_SIDE_COORDINATOR, "%d", told->side);
    kvs_embedded_set_reachable(w.coordinator, true);
    w.engine.busy = 1;
    told = world_start(&w, "sleep 1 wait");
    sim_settle(&w.sim);
    cr_expect_eq(kvp_fleet_cancel(w.fleet, told->operation_id), KVB_OK);
    world_await(&w, told);
    cr_expect(told->status == KVB_ERR_CANCELED && told->side == KVP_SIDE_CLIENT, "%d", told->side);
    fake_engine_drop_link(&w.engine);
    sim_settle(&w.sim);
    told = world_do(&w, "sleep 1");
    cr_expect(told->status == KVB_ERR_BAD_STATE && told->side == KVP_SIDE_ENGINE);
    cr_expect_str_eq(told->at, "a");
    world_close(&w);
}

/* Its calls end as those of one that is gone do, and nobody says that it is gone. */
Test(instance, a_rank_whose_end_is_never_told_is_waited_for_no_longer_than_its_bound)
{
    struct fake_step failed;
    uint64_t at = 1;
    do {
        struct world w;
        failed = (struct fake_step){0};
        world_open(&w, 2, true);
        w.engine.watch = note_step;
        w.engine.watch_ctx = &failed;
        w.engine.says = KVB_ERR_DISCONNECTED;
        w.engine.fault_at = w.engine.ncalls + at++;
        w.engine.fault = FAKE_ERROR;
        struct told *told = world_do(&w, "sleep 1");
        cr_assert(told->status == KVB_OK || failed.type != 0);
        w.engine.fault_at = 0;
        sim_advance(&w.sim, 60 * 1000);
        OK(&w, "sleep 1");
        OK(&w, "wake");
        cr_assert(fake_engine_serves(&w.engine), "call %lu", (unsigned long)at - 1);
        world_close(&w);
    } while (failed.type != 0);
    cr_assert_gt(at, 5);
}

Test(instance, a_canceled_sleep_leaves_a_pause_that_was_there_before)
{
    struct world w;
    world_open(&w, 2, true);
    OK(&w, "pause keep");
    w.engine.busy = 1;
    struct told *told = world_start(&w, "sleep 1 wait");
    sim_settle(&w.sim);
    cr_assert_eq(kvp_fleet_cancel(w.fleet, told->operation_id), KVB_OK);
    sim_settle(&w.sim);
    cr_expect(w.engine.paused, "not for a moment");
    fake_engine_finish_requests(&w.engine);
    world_await(&w, told);
    cr_expect_eq(told->status, KVB_ERR_CANCELED, "%s", told->message);
    cr_expect(w.engine.paused && world_view(&w).is_paused);
    OK(&w, "resume");
    cr_expect(fake_engine_serves(&w.engine));
    world_close(&w);
}

/* An engine that was asked to stop says that it runs until it is idle. */
Test(instance, a_pause_that_nobody_waits_for_any_more_is_taken_back)
{
    struct world w;
    world_open(&w, 2, true);
    w.engine.busy = 1;
    struct told *told = world_do(&w, "pause wait");
    cr_expect_eq(told->status, KVB_ERR_TIMEOUT, "%s", told->message);
    sim_advance(&w.sim, 60000);
    cr_expect(!world_view(&w).is_paused);
    cr_expect(!w.engine.paused, "it was told to go on");
    fake_engine_finish_requests(&w.engine);
    sim_advance(&w.sim, 60000);
    cr_expect(fake_engine_serves(&w.engine));
    world_close(&w);
}

/* Who cancels what hangs does not wait for the drain's bound, also where a pause was there before.
 */
Test(instance, a_cancel_of_a_drain_that_hangs_ends_as_soon_as_a_resume_would)
{
    static const char *const before[] = {"", "pause keep"};
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        struct world w;
        world_open(&w, 2, true);
        if (before[i][0] != '\0') {
            OK(&w, before[i]);
        }
        w.engine.busy = 1;
        w.engine.fault = FAKE_SILENT;
        w.engine.fault_at = w.engine.ncalls + 1;
        struct told *told = world_start(&w, "sleep 1 wait");
        sim_settle(&w.sim);
        w.engine.mute = true;
        cr_assert_eq(kvp_fleet_cancel(w.fleet, told->operation_id), KVB_OK);
        sim_advance(&w.sim, kvb_link_info(KVB_LINK_RESUME)->bound_ms + 1);
        w.engine.mute = false;
        sim_advance(&w.sim, 60000);
        cr_expect_eq(told->times, 1, "%s", before[i]);
        cr_expect_eq(told->status, KVB_ERR_CANCELED, "%s", told->message);
        cr_expect_eq(w.engine.paused, before[i][0] != '\0', "%s", before[i]);
        cr_expect_eq(world_view(&w).is_paused, before[i][0] != '\0', "%s", before[i]);
        world_close(&w);
    }
}

Test(instance, a_resume_that_failed_and_was_done_all_the_same_is_undone)
{
    for (uint64_t nth = 1; nth < 12; nth++) {
        struct world w;
        world_open(&w, 2, true);
        OK(&w, "pause keep");
        w.engine.fault = FAKE_LATE;
        w.engine.fault_at = w.engine.ncalls + nth;
        struct told *told = world_do(&w, "resume");
        sim_advance(&w.sim, 60000);
        struct kvp_view view = world_view(&w);
        cr_expect_eq(view.is_paused, w.engine.paused, "call %llu", (unsigned long long)nth);
        cr_expect_eq(w.engine.paused, told->status != KVB_OK, "call %llu: %s",
                     (unsigned long long)nth, told->message);
        cr_expect_eq(view.stopped_by, told->status != KVB_OK ? KVP_STOPPED_BY_PAUSE : 0);
        w.engine.fault_at = 0;
        OK(&w, "resume");
        cr_expect(fake_engine_serves(&w.engine));
        world_close(&w);
    }
}

/* Its connection ends, its process goes on. */
static void drop_rank(struct world *w, uint32_t index)
{
    kvb_sched_post(&w->sim.sched, &w->engine.ranks[index].gone);
    sim_settle(&w->sim);
}

Test(instance, what_an_engine_cached_in_a_stay_that_was_left_goes_whoever_attaches_first)
{
    for (uint32_t other = 0; other < 2; other++) { /* the other rank stays, or dies */
        struct world w;
        world_open(&w, 2, true);
        w.engine.cached = 3;
        w.engine.fault = FAKE_SILENT; /* rank 0 never hears that the stay was left */
        w.engine.fault_at = w.engine.ncalls + 1;
        struct told *told = world_start(&w, "reset external");
        sim_settle(&w.sim);
        if (other == 1) {
            fake_engine_lose_rank(&w.engine, 1);
        }
        drop_rank(&w, 0);
        fake_engine_attach(&w.engine);
        sim_advance(&w.sim, 60000);
        cr_expect(told->times == 1);
        cr_expect(fake_engine_open(&w.engine));
        cr_expect_eq(w.engine.cached, 0, "open, with blocks of before the reset");
        world_close(&w);
    }
}

Test(instance, a_rank_that_comes_while_an_operation_ends_is_none_of_its)
{
    struct world w;
    world_open(&w, 2, true);
    OK(&w, "sleep 1");
    w.engine.fault = FAKE_SILENT; /* rank 1 does not answer RESTORE */
    w.engine.fault_at = w.engine.ncalls + 2;
    struct told *told = world_start(&w, "wake");
    sim_settle(&w.sim);
    cr_assert_eq(told->times, 0);
    fake_engine_lose_rank(&w.engine, 0);
    fake_engine_attach(&w.engine); /* the scheduler, running, with all of its memory */
    sim_advance(&w.sim, 900000);
    cr_expect_eq(told->times, 1);
    for (uint32_t t = 0; t < w.engine.ntags; t++) {
        cr_expect_eq(w.engine.ranks[0].tags[t].residency, w.engine.ranks[1].tags[t].residency);
    }
    OK(&w, "wake");
    cr_expect(fake_engine_serves(&w.engine));
    world_close(&w);
}

/* ---- leaving by itself ---- */

static void on_left(void *arg)
{
    *(int *)arg += 1;
}

Test(instance, an_engine_that_leaves_is_answered_when_every_rank_has_acknowledged_it)
{
    struct world w;
    int left = 0;
    world_open(&w, 2, true);
    struct kvb_lineage before = world_view(&w).lineage;
    w.engine.mute = true;
    cr_assert(kvp_instance_leave(w.engine.ranks[0].instance, on_left, &left));
    cr_assert_not(kvp_instance_leave(w.engine.ranks[0].instance, on_left, &left), "one at a time");
    sim_settle(&w.sim);
    cr_assert_eq(left, 0);
    cr_assert_not(world_view(&w).open);
    cr_assert_not(kvb_lineage_equal(world_view(&w).lineage, before));
    cr_assert_str_eq(world_view(&w).weights_name, "");
    w.engine.mute = false;
    sim_advance(&w.sim, 60000); /* asked again */
    cr_assert_eq(left, 1);
    cr_assert(fake_engine_open(&w.engine));
    world_close(&w);
}

Test(instance, an_engine_that_leaves_does_not_wait_for_a_rank_that_is_gone)
{
    for (uint32_t lost = 0; lost < 2; lost++) {
        struct world w;
        int left = 0;
        world_open(&w, 2, true);
        w.engine.mute = true;
        cr_assert(kvp_instance_leave(w.engine.ranks[0].instance, on_left, &left));
        fake_engine_lose_rank(&w.engine, lost);
        sim_settle(&w.sim);
        cr_assert_eq(left, lost == 0 ? 0 : 1, "the scheduler's own is nobody's answer");
        w.engine.mute = false;
        fake_engine_attach(&w.engine);
        sim_advance(&w.sim, 60000);
        cr_assert(fake_engine_open(&w.engine));
        cr_assert(kvp_instance_leave(w.engine.ranks[0].instance, on_left, &left));
        sim_settle(&w.sim);
        cr_assert_eq(left, lost == 0 ? 1 : 2);
        world_close(&w);
    }
}
