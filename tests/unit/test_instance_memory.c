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
