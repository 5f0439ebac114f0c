/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/fsm.h"

#include <criterion/criterion.h>

/*
 * The tables of fsm.c against a second, flat list: what is written here is legal, all the rest is
 * not. Break one edge and the test fails.
 */

struct triple {
    uint8_t state, event, next;
};

#define S(state, event, next)                                                                      \
    {                                                                                              \
        KVP_SCHEDULER_##state, KVP_SCHED_##event, KVP_SCHEDULER_##next                             \
    }
static const struct triple scheduler[] = {
    S(RUNNING, STOP, PAUSING),         S(RUNNING, RUN, RUNNING),
    S(RUNNING, SAYS_PAUSED, PAUSED),   S(RUNNING, SAYS_RUNNING, RUNNING),
    S(PAUSING, STOP, PAUSING),         S(PAUSING, IDLE, PAUSED),
    S(PAUSING, RUN, RUNNING),          S(PAUSING, SAYS_PAUSED, PAUSED),
    S(PAUSING, SAYS_RUNNING, RUNNING), S(PAUSED, STOP, PAUSING),
    S(PAUSED, RUN, RUNNING),           S(PAUSED, SAYS_PAUSED, PAUSED),
    S(PAUSED, SAYS_RUNNING, RUNNING),
};

#define R(state, event, next)                                                                      \
    {                                                                                              \
        KVB_##state, KVP_TAG_##event, KVB_##next                                                   \
    }
static const struct triple tags[] = {
    R(RESIDENT, OFFLOADED, OFFLOADED),
    R(RESIDENT, DISCARDED, DISCARDED),
    R(RESIDENT, RESTORED, RESIDENT),
    R(RESIDENT, LOST, UNKNOWN),
    R(RESIDENT, SAYS_RESIDENT, RESIDENT),
    R(RESIDENT, SAYS_OFFLOADED, OFFLOADED),
    R(RESIDENT, SAYS_DISCARDED, DISCARDED),
    R(OFFLOADED, OFFLOADED, OFFLOADED),
    R(OFFLOADED, DISCARDED, DISCARDED),
    R(OFFLOADED, RESTORED, RESIDENT),
    R(OFFLOADED, LOST, UNKNOWN),
    R(OFFLOADED, SAYS_RESIDENT, RESIDENT),
    R(OFFLOADED, SAYS_OFFLOADED, OFFLOADED),
    R(OFFLOADED, SAYS_DISCARDED, DISCARDED),
    R(DISCARDED, DISCARDED, DISCARDED),
    R(DISCARDED, RESTORED, RESIDENT),
    R(DISCARDED, LOST, UNKNOWN),
    R(DISCARDED, SAYS_RESIDENT, RESIDENT),
    R(DISCARDED, SAYS_OFFLOADED, OFFLOADED),
    R(DISCARDED, SAYS_DISCARDED, DISCARDED),
    R(UNKNOWN, OFFLOADED, OFFLOADED),
    R(UNKNOWN, DISCARDED, DISCARDED),
    R(UNKNOWN, RESTORED, RESIDENT),
    R(UNKNOWN, LOST, UNKNOWN),
    R(UNKNOWN, SAYS_RESIDENT, RESIDENT),
    R(UNKNOWN, SAYS_OFFLOADED, OFFLOADED),
    R(UNKNOWN, SAYS_DISCARDED, DISCARDED),
};

struct bracket_triple {
    enum kvp_bracket state;
    enum kvp_bracket_event event;
    enum kvp_bracket next;
    enum kvp_bracket_effect effect;
};
#define B(state, event, next, effect)                                                              \
    {                                                                                              \
        KVP_BRACKET_##state, KVP_BEV_##event, KVP_BRACKET_##next, KVP_EFFECT_##effect              \
    }
static const struct bracket_triple brackets[] = {
    B(NONE, START, EXPLICIT, BEGIN),
    B(NONE, CALL, IMPLICIT, BEGIN),
    B(NONE, FINISH, NONE, NONE),
    B(NONE, RESUME, NONE, NONE),
    B(NONE, ALL_AWAKE, NONE, NONE),
    B(NONE, SAYS_RUNNING, EXPLICIT, BEGIN),
    B(NONE, SAYS_ENDED, NONE, NONE),
    B(EXPLICIT, START, EXPLICIT, NONE),
    B(EXPLICIT, START_FAILED, NONE, CUT),
    B(EXPLICIT, START_LOST, UNKNOWN, NONE),
    B(EXPLICIT, CALL, EXPLICIT, NONE),
    B(EXPLICIT, CALL_ENDED, EXPLICIT, NONE),
    B(EXPLICIT, CALL_FAILED, EXPLICIT, NONE),
    B(EXPLICIT, CALL_LOST, EXPLICIT, NONE),
    B(EXPLICIT, FINISH, NONE, FINISH),
    B(EXPLICIT, RESUME, NONE, CUT),
    B(EXPLICIT, ALL_AWAKE, EXPLICIT, NONE),
    B(EXPLICIT, SAYS_RUNNING, EXPLICIT, NONE),
    B(EXPLICIT, SAYS_ENDED, EXPLICIT, NONE),
    B(IMPLICIT, START, EXPLICIT, NONE),
    B(IMPLICIT, CALL, IMPLICIT, NONE),
    B(IMPLICIT, CALL_ENDED, NONE, END),
    B(IMPLICIT, CALL_FAILED, NONE, CUT),
    B(IMPLICIT, CALL_LOST, UNKNOWN, NONE),
    B(IMPLICIT, FINISH, NONE, FINISH),
    B(IMPLICIT, RESUME, NONE, END),
    B(IMPLICIT, ALL_AWAKE, NONE, END),
    B(IMPLICIT, SAYS_RUNNING, IMPLICIT, NONE),
    B(IMPLICIT, SAYS_ENDED, IMPLICIT, NONE),
    B(UNKNOWN, START, EXPLICIT, NONE),
    B(UNKNOWN, CALL, IMPLICIT, NONE),
    B(UNKNOWN, FINISH, NONE, FINISH),
    B(UNKNOWN, RESUME, UNKNOWN, NONE),
    B(UNKNOWN, ALL_AWAKE, UNKNOWN, NONE),
    B(UNKNOWN, SAYS_RUNNING, UNKNOWN, NONE),
    B(UNKNOWN, SAYS_ENDED, NONE, CUT),
};

static const struct triple *find(const struct triple *list, size_t n, uint8_t state, uint8_t event)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i].state == state && list[i].event == event) {
            return &list[i];
        }
    }
    return NULL;
}

Test(fsm, every_pair_of_the_scheduler_behaves_as_listed)
{
    for (uint8_t state = 0; state < KVP_SCHEDULER_COUNT; state++) {
        for (uint8_t event = 0; event < KVP_SCHED_EVENT_COUNT; event++) {
            struct kvp_fsm fsm;
            kvp_fsm_init(&fsm);
            fsm.scheduler = (enum kvp_scheduler)state;
            struct kvp_fsm before = fsm;
            bool done = kvp_fsm_scheduler(&fsm, (enum kvp_scheduler_event)event);
            const struct triple *legal =
                find(scheduler, sizeof scheduler / sizeof scheduler[0], state, event);
            cr_assert_eq(done, legal != NULL, "state %u event %u", state, event);
            if (legal != NULL) {
                cr_assert_eq(fsm.scheduler, (enum kvp_scheduler)legal->next);
            } else {
                cr_assert_arr_eq(&fsm, &before, sizeof fsm);
            }
        }
    }
}

Test(fsm, every_pair_of_a_tag_behaves_as_listed)
{
    for (uint8_t state = 0; state < KVP_RESIDENCY_COUNT; state++) {
        for (uint8_t event = 0; event < KVP_TAG_EVENT_COUNT; event++) {
            struct kvp_fsm fsm;
            kvp_fsm_init(&fsm);
            kvp_fsm_add_tag(&fsm, "other");
            kvp_fsm_add_tag(&fsm, "kv_cache")->residency = (enum kvb_residency)state;
            bool done = kvp_fsm_tag(&fsm, "kv_cache", (enum kvp_tag_event)event);
            const struct triple *legal = find(tags, sizeof tags / sizeof tags[0], state, event);
            cr_assert_eq(done, legal != NULL, "state %u event %u", state, event);
            cr_assert_eq(fsm.tags[1].residency,
                         (enum kvb_residency)(legal != NULL ? legal->next : state));
            cr_assert_eq(fsm.tags[0].residency, KVB_RESIDENT);
        }
    }
    struct kvp_fsm none;
    kvp_fsm_init(&none);
    cr_assert_not(kvp_fsm_tag(&none, "kv_cache", KVP_TAG_LOST));
}

Test(fsm, every_pair_of_a_weight_update_behaves_as_listed)
{
    for (int state = 0; state < KVP_BRACKET_COUNT; state++) {
        for (int event = 0; event < KVP_BRACKET_EVENT_COUNT; event++) {
            struct kvp_fsm fsm;
            kvp_fsm_init(&fsm);
            fsm.bracket = (enum kvp_bracket)state;
            enum kvp_bracket_effect effect = KVP_EFFECT_CUT;
            bool done = kvp_fsm_bracket(&fsm, (enum kvp_bracket_event)event, &effect);
            const struct bracket_triple *legal = NULL;
            for (size_t i = 0; i < sizeof brackets / sizeof brackets[0]; i++) {
                if ((int)brackets[i].state == state && (int)brackets[i].event == event) {
                    legal = &brackets[i];
                }
            }
            cr_assert_eq(done, legal != NULL, "state %d event %d", state, event);
            cr_assert_eq(fsm.bracket, legal != NULL ? legal->next : (enum kvp_bracket)state);
            cr_assert(legal == NULL || effect == legal->effect, "state %d event %d", state, event);
        }
    }
}

/* Every combination of what an instance is, against the words of the design. */
Test(fsm, what_is_told_follows_from_the_state)
{
    for (int scheduler_state = 0; scheduler_state < KVP_SCHEDULER_COUNT; scheduler_state++) {
        for (unsigned stopped = 0; stopped < 32; stopped++) {
            for (int kv = 0; kv < KVP_RESIDENCY_COUNT; kv++) {
                for (int bits = 0; bits < 4; bits++) {
                    bool attached = (bits & 1) != 0;
                    bool unknown = (bits & 2) != 0;
                    struct kvp_fsm fsm;
                    kvp_fsm_init(&fsm);
                    fsm.scheduler = (enum kvp_scheduler)scheduler_state;
                    fsm.stopped_by = stopped;
                    kvp_fsm_add_tag(&fsm, "kv_cache")->residency = (enum kvb_residency)kv;
                    kvp_fsm_add_tag(&fsm, "weights");
                    struct kvp_derived is = kvp_fsm_derive(&fsm, attached, unknown);
                    bool asleep = kv != KVB_RESIDENT || (stopped & KVP_STOPPED_BY_SLEEP0) != 0;
                    bool runs = scheduler_state == KVP_SCHEDULER_RUNNING;
                    cr_assert_eq(is.is_sleeping, asleep);
                    cr_assert_eq(is.is_paused, !runs);
                    cr_assert_eq(is.ready, attached && !unknown && !asleep && runs &&
                                               (stopped & KVP_STOPPED_BY_DEGRADED) == 0);
                    cr_assert_eq(is.ready, is.not_ready[0] == '\0');
                }
            }
        }
    }
}

Test(fsm, a_request_starts_joins_waits_or_cancels_as_the_slot_says)
{
    struct kvp_ask sleep = {.operation = KVP_OP_SLEEP, .level = 1};
    struct kvp_ask deeper = {.operation = KVP_OP_SLEEP, .level = 2};
    struct kvp_ask wake = {.operation = KVP_OP_WAKE};
    struct kvp_ask resume = {.operation = KVP_OP_RESUME};
    struct kvp_ask relay = {.operation = KVP_OP_RELAY};
    const struct {
        struct kvp_slot slot;
        const struct kvp_ask *ask;
        enum kvp_admit expected;
    } cases[] = {
        {{0}, &sleep, KVP_ADMIT_START},
        {{.running = &sleep, .joinable = true}, &sleep, KVP_ADMIT_JOIN},
        {{.running = &sleep, .joinable = false}, &sleep, KVP_ADMIT_WAIT},
        {{.running = &sleep, .joinable = true}, &deeper, KVP_ADMIT_WAIT},
        {{.running = &sleep, .joinable = true, .last = &wake, .waiting = 1},
         &sleep,
         KVP_ADMIT_WAIT},
        {{.running = &sleep, .joinable = true, .last = &wake, .waiting = 1},
         &wake,
         KVP_ADMIT_JOIN_LAST},
        {{.running = NULL, .last = &wake, .waiting = 1}, &sleep, KVP_ADMIT_WAIT},
        {{.running = &sleep, .cancelable = true}, &resume, KVP_ADMIT_CANCEL},
        {{.running = &sleep, .cancelable = true, .last = &wake, .waiting = 1},
         &resume,
         KVP_ADMIT_CANCEL},
        {{.running = &sleep, .cancelable = false}, &resume, KVP_ADMIT_WAIT},
        {{.running = &sleep, .cancelable = true}, &wake, KVP_ADMIT_WAIT},
        {{.running = &sleep, .cancelable = true}, &relay, KVP_ADMIT_BESIDE},
        {{0}, &relay, KVP_ADMIT_BESIDE},
        {{.running = &sleep, .last = &wake, .waiting = KVP_WAITING_MAX}, &deeper, KVP_ADMIT_FULL},
        {{.running = &sleep, .last = &wake, .waiting = KVP_WAITING_MAX},
         &wake,
         KVP_ADMIT_JOIN_LAST},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(kvp_fsm_admit(&cases[i].slot, cases[i].ask), cases[i].expected, "case %zu", i);
    }
}

Test(fsm, requests_are_identical_only_field_by_field)
{
    struct kvp_ask base = {
        .operation = KVP_OP_WAKE, .tags_given = true, .ntags = 1, .body = "x", .body_len = 1};
    strcpy(base.tags[0], "weights");
    struct kvp_ask same = base;
    char body[] = "x";
    same.body = body;
    cr_assert(kvp_ask_equal(&base, &same));
#define DIFFERS(change)                                                                            \
    do {                                                                                           \
        struct kvp_ask other = base;                                                               \
        change;                                                                                    \
        cr_assert_not(kvp_ask_equal(&base, &other), #change);                                      \
    } while (0)
    DIFFERS(other.operation = KVP_OP_SLEEP);
    DIFFERS(other.level = 2);
    DIFFERS(other.mode = KVP_MODE_WAIT);
    DIFFERS(other.clear_cache = true);
    DIFFERS(other.reset_external = KVP_NO);
    DIFFERS(other.reset_running_requests = true);
    DIFFERS(other.keep_pause = true);
    DIFFERS(other.tags_given = false);
    DIFFERS(other.ntags = 0);
    DIFFERS(strcpy(other.tags[0], "kv_cache"));
    DIFFERS(strcpy(other.weight_version, "1"));
    DIFFERS(strcpy(other.method, "m"));
    DIFFERS(other.body = "y");
    DIFFERS(other.body_len = 0);
}
