/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each rule of DESIGN.md section 4 by itself: events in, what is asked and what is open out. What
 * the rules prevent together is the explorer's business (lineage_explorer.c).
 */
#include "connector/lineage.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

static uint64_t drawn;
static void fill(void *ctx, void *buf, size_t len)
{
    (void)ctx;
    struct kvb_id id = {.hi = 1, .lo = ++drawn};
    memcpy(buf, &id, len);
}
static const struct kvb_random draw = {.fill = fill};

static struct kvp_lineage l;
static struct kvp_lineage_out out;

#define DO(event, ...)                                                                             \
    do {                                                                                           \
        out.n = 0;                                                                                 \
        kvp_lineage_##event(&l, ##__VA_ARGS__, &out);                                              \
    } while (0)

/* The ask number of the last event's action of this kind; 0: there was none. */
static uint32_t asked(enum kvp_lineage_do what)
{
    for (uint32_t i = 0; i < out.n; i++) {
        if (out.actions[i].what == what) {
            return out.actions[i].ask != 0 ? out.actions[i].ask : 1;
        }
    }
    return 0;
}

static struct kvb_lineage lin(uint64_t n)
{
    return (struct kvb_lineage){{9, n}};
}

static struct kvp_lineage_hello hello_of(bool fingerprints)
{
    return (struct kvp_lineage_hello){.fingerprints = fingerprints,
                                      .name = "",
                                      .weights_name = "",
                                      .local_reset_done = true,
                                      .resident = true};
}

/* Everything the engine is asked for is answered well, the coordinator gives lineage n to name n of
 * its asking. */
static uint64_t resolved_as;
static void answer(void)
{
    for (int round = 0; round < 20; round++) {
        if (l.send_ask != 0) {
            DO(acked, l.send_ask);
        } else if (l.reset_ask != 0 && !l.reset_owned) {
            DO(local_reset, l.reset_ask, KVB_OK);
        } else if (l.fingerprint_ask != 0) {
            DO(fingerprint, l.fingerprint_ask, KVB_OK, "w");
        } else if (l.resolve_ask != 0) {
            DO(resolved, l.resolve_ask, KVB_OK, lin(++resolved_as), &draw);
        } else if (l.check_ask != 0) {
            DO(checked, l.check_ask, KVB_OK, true, &draw);
        } else if (l.retire_ask != 0) {
            DO(retired, l.retire_ask, KVB_OK);
        } else {
            return;
        }
    }
}

static void attach(bool fingerprints)
{
    kvp_lineage_init(&l, true, KVP_UNVERSIONED_OFF, &draw);
    struct kvp_lineage_hello hello = hello_of(fingerprints);
    DO(attached, &hello, &draw);
    answer();
}

/* Joined under a version: the second one given is believed. */
static void join_version(const char *version)
{
    attach(false);
    DO(version, "base");
    DO(version, version);
    answer();
    cr_assert(kvp_lineage_named(&l));
    cr_assert_str_eq(l.joined_name, version);
}

/* ---- leaving (rules 1 to 4) ---- */

Test(lineage, every_reason_to_leave_draws_a_fresh_lineage_and_token_and_closes)
{
    for (int why = 0; why < 8; why++) {
        join_version("v");
        struct kvb_lineage before = l.lineage;
        struct kvb_token token = l.token;
        static const enum kvp_leave own[] = {KVP_LEAVE_PAUSE, KVP_LEAVE_SLEEP, KVP_LEAVE_RELEASE,
                                             KVP_LEAVE_RESET};
        if (why < 4) {
            DO(leave, own[why], true, &draw);
        } else if (why == 4) {
            DO(update_begins, &draw);
        } else if (why == 5) {
            DO(told, l.lineage, 7, &draw);
        } else if (why == 6) {
            DO(told_tenant, 7, &draw);
        } else {
            DO(written, &draw);
        }
        cr_assert_not(kvb_lineage_equal(before, l.lineage), "reason %d", why);
        cr_assert_not(kvb_token_equal(token, l.token), "reason %d", why);
        cr_assert_not(kvp_lineage_open(&l), "reason %d", why);
        cr_assert_not(kvp_lineage_named(&l), "reason %d", why);
        cr_assert(asked(KVP_DO_SEND));
        cr_assert(asked(KVP_DO_STAY));
        cr_assert(asked(KVP_DO_LEAVE_NAME));
        bool keeps = why == 3 || why == 5 || why == 6;
        cr_assert_eq(l.name[0] != '\0', keeps, "reason %d", why);
    }
}

Test(lineage, the_end_of_a_weight_change_leaves_again)
{
    join_version("v");
    DO(update_begins, &draw);
    DO(acked, l.send_ask);
    struct kvb_token token = l.token;
    DO(update_ends, true, true, &draw);
    cr_assert_not(kvb_token_equal(token, l.token));
    cr_assert(asked(KVP_DO_SEND));
}

Test(lineage, it_opens_only_after_acknowledgement_and_local_reset)
{
    join_version("v");
    DO(leave, KVP_LEAVE_PAUSE, true, &draw);
    uint32_t early = kvp_lineage_reset_begin(&l);
    DO(local_reset, early, KVB_OK);
    cr_assert_not(kvp_lineage_open(&l)); /* not acknowledged */
    DO(acked, l.send_ask);
    cr_assert_not(kvp_lineage_open(&l)); /* what it cached until then is of the stay it left */
    DO(disown);
    cr_assert(asked(KVP_DO_LOCAL_RESET)); /* by itself */
    DO(local_reset, l.reset_ask, KVB_OK);
    cr_assert(kvp_lineage_open(&l));

    DO(leave, KVP_LEAVE_PAUSE, true, &draw);
    DO(acked, l.send_ask);
    cr_assert_not(kvp_lineage_open(&l)); /* not reset */
    DO(local_reset, kvp_lineage_reset_begin(&l), KVB_ERR_BUSY);
    cr_assert_not(kvp_lineage_open(&l));
    DO(report);
    cr_assert(asked(KVP_DO_LOCAL_RESET)); /* by itself */
    DO(local_reset, l.reset_ask, KVB_OK);
    cr_assert(kvp_lineage_open(&l));
}

Test(lineage, only_the_acknowledgement_of_the_last_message_counts)
{
    join_version("v");
    DO(leave, KVP_LEAVE_PAUSE, true, &draw);
    uint32_t first = l.send_ask;
    DO(leave, KVP_LEAVE_SLEEP, true, &draw);
    DO(acked, first);
    cr_assert_eq(l.ack, KVP_ACK_LEFT);
    DO(acked, l.send_ask);
    cr_assert_eq(l.ack, KVP_ACKED);
}

Test(lineage, a_reset_of_an_earlier_stay_does_not_open_a_later_one)
{
    join_version("v");
    DO(leave, KVP_LEAVE_PAUSE, true, &draw);
    uint32_t reset = kvp_lineage_reset_begin(&l);
    DO(leave, KVP_LEAVE_PAUSE, true, &draw);
    DO(acked, l.send_ask);
    DO(local_reset, reset, KVB_OK);
    cr_assert_not(kvp_lineage_open(&l));
}

Test(lineage, it_is_closed_while_updating_not_resident_or_detached)
{
    join_version("v");
    DO(resident, false, &draw);
    cr_assert_not(kvp_lineage_open(&l));

    join_version("v");
    l.tracks = true; /* needs no local reset */
    DO(update_begins, &draw);
    answer();
    cr_assert_not(kvp_lineage_open(&l));
    cr_assert_eq(kvp_lineage_why_private(&l), KVP_PRIVATE_UPDATING);
    DO(update_ends, true, true, &draw);
    answer();
    cr_assert(kvp_lineage_open(&l));
    DO(detached);
    cr_assert_not(kvp_lineage_open(&l));
}

Test(lineage, a_join_draws_a_token_of_its_own_and_stays_open)
{
    attach(false);
    DO(version, "base");
    DO(version, "v");
    struct kvb_token token = l.token;
    DO(resolved, l.resolve_ask, KVB_OK, lin(5), &draw);
    cr_assert_not(kvb_token_equal(token, l.token));
    cr_assert_not(kvb_id_equal(l.token.id, l.lineage.id));
    cr_assert(kvb_lineage_equal(l.lineage, lin(5)));
    cr_assert(asked(KVP_DO_ABANDON));
    cr_assert(kvp_lineage_open(&l));
    struct kvb_link_lineage msg;
    kvp_lineage_message(&l, &msg);
    cr_assert_not(msg.left);
    cr_assert_str_eq(msg.name, "v");
}

Test(lineage, what_was_asked_in_one_stay_is_void_after_a_leave)
{
    attach(false);
    DO(version, "base");
    DO(version, "v");
    uint32_t resolve = l.resolve_ask;
    cr_assert(resolve);
    DO(leave, KVP_LEAVE_RESET, true, &draw);
    struct kvb_lineage own = l.lineage;
    DO(resolved, resolve, KVB_OK, lin(5), &draw);
    cr_assert(kvb_lineage_equal(l.lineage, own));

    kvp_lineage_init(&l, true, KVP_UNVERSIONED_OFF, &draw);
    struct kvp_lineage_hello hello = hello_of(true);
    DO(attached, &hello, &draw);
    DO(acked, l.send_ask);
    uint32_t fingerprint = l.fingerprint_ask;
    cr_assert(fingerprint);
    DO(update_begins, &draw);
    DO(fingerprint, fingerprint, KVB_OK, "old");
    cr_assert_eq(l.name[0], '\0');
}

Test(lineage, an_answer_that_may_name_what_was_just_retired_is_asked_again)
{
    attach(false);
    DO(version, "base");
    DO(version, "v");
    uint32_t resolve = l.resolve_ask;
    DO(told, lin(5), 3, &draw);
    cr_assert(asked(KVP_DO_RESOLVE));
    DO(resolved, resolve, KVB_OK, lin(5), &draw);
    cr_assert_not(kvp_lineage_named(&l));
    DO(resolved, l.resolve_ask, KVB_OK, lin(6), &draw);
    cr_assert(kvp_lineage_named(&l));
}

/* ---- naming (rules 5 and 6) ---- */

Test(lineage, a_fingerprint_is_computed_only_resident_at_rest_and_acknowledged)
{
    static const char *const what[] = {"asleep", "updating", "stopped", "not acknowledged"};
    for (int way = 0; way < 4; way++) {
        kvp_lineage_init(&l, true, KVP_UNVERSIONED_OFF, &draw);
        struct kvp_lineage_hello hello = hello_of(true);
        hello.resident = way != 0;
        hello.update = way == 1;
        hello.stopped = way == 2;
        DO(attached, &hello, &draw);
        cr_assert_not(asked(KVP_DO_FINGERPRINT), "%s", what[way]);
        if (way < 3) {
            DO(acked, l.send_ask);
            cr_assert_not(asked(KVP_DO_FINGERPRINT), "%s", what[way]);
        }
        switch (way) {
        case 0:
            DO(resident, true, &draw);
            break;
        case 1:
            DO(update_ends, true, true, &draw);
            DO(acked, l.send_ask);
            break;
        case 2:
            DO(stopped, false);
            break;
        default:
            DO(acked, l.send_ask);
            break;
        }
        cr_assert(asked(KVP_DO_FINGERPRINT), "%s", what[way]);
    }
}

Test(lineage, a_fingerprint_on_its_way_is_void_once_memory_goes)
{
    kvp_lineage_init(&l, true, KVP_UNVERSIONED_OFF, &draw);
    struct kvp_lineage_hello hello = hello_of(true);
    DO(attached, &hello, &draw);
    DO(acked, l.send_ask);
    uint32_t fingerprint = l.fingerprint_ask;
    DO(resident, false, &draw);
    DO(fingerprint, fingerprint, KVB_OK, "w");
    cr_assert_eq(l.name[0], '\0');
}

Test(lineage, a_name_is_joined_only_resident_at_rest_acknowledged_and_retired_first)
{
    for (int way = 0; way < 6; way++) {
        join_version("v");
        DO(told, l.lineage, 3, &draw);        /* keeps the name, wants it again */
        cr_assert_not(asked(KVP_DO_RESOLVE)); /* not acknowledged */
        uint32_t ack = l.send_ask;
        l.resident = way != 0;
        l.update = way == 1;
        l.reachable = way != 2;
        l.reset_owned = way == 3;
        if (way == 4) {
            l.reachable = false;
            l.nretired = 1;
            l.retired[0] = lin(77);
        }
        DO(acked, ack);
        cr_assert_eq(asked(KVP_DO_RESOLVE) != 0, way == 5, "way %d", way);
        if (way == 4) {
            DO(reachable, true);
            cr_assert(asked(KVP_DO_RETIRE));
            cr_assert_not(asked(KVP_DO_RESOLVE));
            DO(retired, l.retire_ask, KVB_OK);
            cr_assert(asked(KVP_DO_RESOLVE));
        }
    }
}

Test(lineage, a_version_vouches_only_once_it_was_seen_to_change)
{
    attach(false);
    DO(version, "1");
    answer();
    cr_assert_not(kvp_lineage_named(&l));
    cr_assert_eq(kvp_lineage_why_private(&l), KVP_PRIVATE_FIRST_VERSION);
    DO(version, "1");
    answer();
    cr_assert_not(kvp_lineage_named(&l));
    DO(version, "2");
    answer();
    cr_assert_str_eq(l.joined_name, "2");
    /* the version it was started with counts as seen */
    kvp_lineage_init(&l, true, KVP_UNVERSIONED_OFF, &draw);
    struct kvp_lineage_hello hello = hello_of(false);
    hello.weights_name = "1";
    DO(attached, &hello, &draw);
    answer();
    cr_assert_not(kvp_lineage_named(&l));
    DO(version, "2");
    answer();
    cr_assert_str_eq(l.joined_name, "2");
}

Test(lineage, a_trainers_constant_vouches_for_nothing)
{
    join_version("v");
    DO(update_begins, &draw);
    answer();
    DO(version, "v");
    DO(update_ends, true, true, &draw);
    answer();
    cr_assert_not(kvp_lineage_named(&l));
    cr_assert_eq(kvp_lineage_why_private(&l), KVP_PRIVATE_SAME_VERSION);
    /* nor one written without anybody telling */
    join_version("v");
    DO(written, &draw);
    answer();
    DO(version, "v");
    answer();
    cr_assert_not(kvp_lineage_named(&l));
    /* but unchanged weights under their version again are what they were */
    join_version("v");
    DO(leave, KVP_LEAVE_SLEEP, false, &draw);
    answer();
    cr_assert_not(kvp_lineage_named(&l));
    DO(version, "v");
    answer();
    cr_assert_str_eq(l.joined_name, "v");
}

Test(lineage, a_version_is_held_until_the_change_ends_memory_is_back_and_it_runs)
{
    for (int way = 0; way < 3; way++) {
        join_version("v");
        if (way == 0) {
            DO(update_begins, &draw);
        } else if (way == 1) {
            DO(leave, KVP_LEAVE_SLEEP, true, &draw);
            DO(resident, false, &draw);
        } else {
            DO(stopped, true);
        }
        answer();
        DO(version, "next");
        answer();
        cr_assert_str_neq(l.joined_name, "next", "way %d", way);
        cr_assert_str_eq(l.held, "next");
        if (way == 0) {
            DO(update_ends, true, true, &draw);
        } else if (way == 1) {
            DO(resident, true, &draw);
            DO(disown);
        } else {
            DO(stopped, false);
        }
        answer();
        cr_assert_str_eq(l.joined_name, "next", "way %d", way);
    }
}

Test(lineage, a_change_cut_short_names_nothing)
{
    join_version("v");
    DO(update_begins, &draw);
    answer();
    DO(version, "next");
    DO(update_ends, false, false, &draw);
    answer();
    cr_assert_not(kvp_lineage_named(&l));
    cr_assert_eq(kvp_lineage_why_private(&l), KVP_PRIVATE_CUT_SHORT);
    cr_assert(kvp_lineage_open(&l));
}

Test(lineage, a_version_given_before_a_change_does_not_name_what_comes_of_it)
{
    join_version("v");
    DO(stopped, true);
    DO(version, "early");
    DO(update_begins, &draw);
    answer();
    DO(update_ends, true, true, &draw);
    DO(stopped, false);
    answer();
    cr_assert_not(kvp_lineage_named(&l));
}

Test(lineage, a_fingerprint_that_cannot_be_had_leaves_the_word_to_the_version)
{
    kvp_lineage_init(&l, true, KVP_UNVERSIONED_OFF, &draw);
    struct kvp_lineage_hello hello = hello_of(true);
    DO(attached, &hello, &draw);
    DO(acked, l.send_ask);
    DO(version, "1");
    DO(version, "2");
    cr_assert_not(asked(KVP_DO_RESOLVE)); /* the fingerprint is asked */
    DO(fingerprint, l.fingerprint_ask, KVB_ERR_UNSUPPORTED, "");
    cr_assert(asked(KVP_DO_RESOLVE));
    cr_assert_str_eq(l.name, "2");
    /* and without a version it stays private rather than ask for ever */
    kvp_lineage_init(&l, true, KVP_UNVERSIONED_OFF, &draw);
    DO(attached, &hello, &draw);
    DO(acked, l.send_ask);
    DO(fingerprint, l.fingerprint_ask, KVB_ERR_UNSUPPORTED, "");
    cr_assert_not(asked(KVP_DO_FINGERPRINT));
    cr_assert(kvp_lineage_settled(&l));
}

/* ---- clearing ---- */

Test(lineage, a_reset_retires_what_it_left_and_what_its_name_stands_for)
{
    join_version("v");
    struct kvb_lineage shared = l.lineage;
    DO(leave, KVP_LEAVE_PAUSE, false, &draw); /* left its name before */
    answer();
    struct kvb_lineage own = l.lineage;
    DO(leave, KVP_LEAVE_RESET, true, &draw);
    cr_assert_not(asked(KVP_DO_RETIRE)); /* leave, then local reset, then retire */
    DO(acked, l.send_ask);
    cr_assert_not(asked(KVP_DO_RETIRE));
    DO(local_reset, kvp_lineage_reset_begin(&l), KVB_OK);
    cr_assert(asked(KVP_DO_RETIRE));
    cr_assert_eq(l.retiring, 2);
    cr_assert(kvb_lineage_equal(l.retired[0], own));
    cr_assert(kvb_lineage_equal(l.retired[1], shared));
    cr_assert(l.retire_name);
    cr_assert_str_eq(l.last_name, "v");
}

Test(lineage, a_name_that_the_coordinator_refuses_is_not_asked_for_again)
{
    attach(false);
    DO(version, "base");
    DO(version, "v");
    cr_assert(asked(KVP_DO_RESOLVE));
    DO(resolved, l.resolve_ask, KVB_ERR_INVALID, lin(0), &draw);
    cr_assert_not(asked(KVP_DO_RESOLVE));
    cr_assert_eq(kvp_lineage_why_private(&l), KVP_PRIVATE_REFUSED);
    DO(reachable, true);
    cr_assert_not(asked(KVP_DO_RESOLVE));
}

Test(lineage, a_retirement_is_kept_told_to_the_engine_and_delivered_when_it_can_be)
{
    join_version("v");
    DO(reachable, false);
    struct kvb_lineage shared = l.lineage;
    DO(leave, KVP_LEAVE_RESET, true, &draw);
    struct kvb_link_lineage msg;
    kvp_lineage_message(&l, &msg);
    cr_assert_eq(msg.nretired, 1);
    cr_assert(kvb_lineage_equal(msg.retired[0], shared));
    DO(acked, l.send_ask);
    DO(local_reset, kvp_lineage_reset_begin(&l), KVB_OK);
    cr_assert_not(asked(KVP_DO_RETIRE));
    cr_assert_eq(kvp_lineage_why_private(&l), KVP_PRIVATE_UNREACHABLE);
    DO(reachable, true);
    cr_assert(asked(KVP_DO_RETIRE));
    cr_assert_not(asked(KVP_DO_RESOLVE));
    DO(retired, l.retire_ask, KVB_ERR_UNAVAILABLE); /* away again */
    cr_assert_eq(l.nretired, 1);
    DO(reachable, true);
    DO(retired, l.retire_ask, KVB_OK);
    cr_assert_eq(l.nretired, 0);
    cr_assert(asked(KVP_DO_SEND)); /* the engine may forget it */
    cr_assert(asked(KVP_DO_RESOLVE));
}

Test(lineage, what_is_told_is_answered_only_after_the_engine_acknowledged)
{
    join_version("v");
    DO(told, l.lineage, 42, &draw);
    cr_assert_not(asked(KVP_DO_MEMBER_LEFT));
    DO(told, lin(999), 43, &draw); /* not in it, but not acknowledged out of the other either */
    cr_assert_not(asked(KVP_DO_MEMBER_LEFT));
    DO(acked, l.send_ask);
    cr_assert_eq(out.actions[0].what, KVP_DO_MEMBER_LEFT);
    cr_assert_eq(out.actions[0].retirement, 42);
    cr_assert_eq(out.actions[1].retirement, 43);
    answer();
    DO(told, lin(999), 44, &draw);
    cr_assert(asked(KVP_DO_MEMBER_LEFT)); /* not in it: at once */
    cr_assert(kvp_lineage_named(&l));
    DO(detached);
    DO(told, l.lineage, 45, &draw); /* nobody there who could read it */
    cr_assert(asked(KVP_DO_MEMBER_LEFT));
}

Test(lineage, a_tenant_reset_makes_the_private_leave_too)
{
    attach(false);
    cr_assert_not(kvp_lineage_named(&l));
    struct kvb_token token = l.token;
    DO(told_tenant, 5, &draw);
    cr_assert_not(kvb_token_equal(token, l.token));
    cr_assert_not(kvp_lineage_open(&l));
}

Test(lineage, back_in_touch_it_compares_and_leaves_what_is_not_bound_any_more)
{
    join_version("v");
    DO(reachable, false);
    DO(reachable, true);
    uint32_t check = asked(KVP_DO_CHECK);
    cr_assert(check);
    struct kvb_lineage before = l.lineage;
    DO(checked, check, KVB_OK, true, &draw);
    cr_assert(kvb_lineage_equal(before, l.lineage));
    DO(reachable, false);
    DO(reachable, true);
    DO(checked, l.check_ask, KVB_OK, false, &draw);
    cr_assert_not(kvb_lineage_equal(before, l.lineage));
    DO(acked, l.send_ask);
    cr_assert(asked(KVP_DO_RESOLVE)); /* the weights did not change */
}

Test(lineage, one_that_the_coordinator_may_have_given_up_leaves_named_or_private)
{
    for (int named = 0; named <= 1; named++) {
        if (named) {
            join_version("v");
        } else {
            attach(false);
        }
        struct kvb_token token = l.token;
        struct kvb_lineage before = l.lineage;
        DO(reachable, false);
        cr_assert(kvp_lineage_open(&l), "an outage alone closes nothing");
        DO(lost, &draw);
        cr_assert_not(kvb_token_equal(token, l.token));
        cr_assert_not(kvb_lineage_equal(before, l.lineage));
        cr_assert_not(kvp_lineage_named(&l));
        cr_assert_not(kvp_lineage_open(&l));
        answer();
        cr_assert(kvp_lineage_open(&l), "private");
        cr_assert_not(kvp_lineage_named(&l));
        DO(reachable, true);
        cr_assert_eq(asked(KVP_DO_RESOLVE) != 0, named, "the weights did not change");
        cr_assert_not(asked(KVP_DO_CHECK));
    }
    join_version("v");
    DO(reachable, false);
    DO(reachable, true);
    uint32_t check = l.check_ask;
    DO(lost, &draw);
    struct kvb_lineage after = l.lineage;
    DO(checked, check, KVB_OK, true, &draw);
    cr_assert(kvb_lineage_equal(after, l.lineage));
    cr_assert_not(kvp_lineage_named(&l), "what was asked before is void");
}

Test(lineage, what_found_no_memory_is_asked_again_at_the_next_report)
{
    join_version("v");
    DO(leave, KVP_LEAVE_RESET, true, &draw);
    DO(acked, l.send_ask);
    DO(local_reset, kvp_lineage_reset_begin(&l), KVB_OK);
    DO(retired, l.retire_ask, KVB_ERR_NO_MEMORY);
    cr_assert(l.reachable, "nobody would say that it is back");
    cr_assert_eq(l.nretired, 1);
    cr_assert_not(asked(KVP_DO_RETIRE), "not at once");
    cr_assert_not(asked(KVP_DO_RESOLVE), "and nothing goes before it");
    DO(report);
    cr_assert(asked(KVP_DO_RETIRE));
    DO(retired, l.retire_ask, KVB_OK);
    cr_assert(asked(KVP_DO_RESOLVE));
    DO(resolved, l.resolve_ask, KVB_ERR_NO_MEMORY, lin(0), &draw);
    cr_assert_not(asked(KVP_DO_RESOLVE));
    DO(report);
    cr_assert(asked(KVP_DO_RESOLVE));
}

/* ---- attaching ---- */

static struct kvp_lineage_hello echo_of(const char *name)
{
    struct kvp_lineage_hello hello = hello_of(false);
    hello.lineage = lin(50);
    hello.token = (struct kvb_token){{9, 51}};
    hello.name = name;
    return hello;
}

Test(lineage, a_new_daemon_takes_an_echo_only_if_it_is_named_and_still_bound)
{
    static const char *const what[] = {"bound",       "not bound", "private",        "away",
                                       "unavailable", "updating",  "weights written"};
    for (int way = 0; way < 7; way++) {
        kvp_lineage_init(&l, true, KVP_UNVERSIONED_OFF, &draw);
        l.reachable = way != 3;
        struct kvp_lineage_hello hello = echo_of(way == 2 ? "" : "v");
        hello.update = way == 5;
        hello.written = way == 6;
        DO(attached, &hello, &draw);
        cr_assert_not(kvp_lineage_open(&l), "%s", what[way]);
        uint32_t check = asked(KVP_DO_CHECK);
        cr_assert_eq(check != 0, way <= 1 || way == 4, "%s", what[way]);
        if (check != 0) {
            cr_assert(kvb_lineage_equal(l.lineage, lin(50)));
            DO(checked, check, way == 4 ? KVB_ERR_UNAVAILABLE : KVB_OK, way == 0, &draw);
        }
        cr_assert_eq(kvb_lineage_equal(l.lineage, lin(50)), way == 0, "%s", what[way]);
        cr_assert_eq(kvp_lineage_open(&l), way == 0, "%s", what[way]);
        cr_assert_eq(l.name[0] != '\0', way != 2 && way < 5, "%s", what[way]);
    }
}

Test(lineage, an_echo_whose_cache_was_not_reset_stays_closed_until_it_is)
{
    kvp_lineage_init(&l, true, KVP_UNVERSIONED_OFF, &draw);
    struct kvp_lineage_hello hello = echo_of("v");
    hello.local_reset_done = false;
    DO(attached, &hello, &draw);
    uint32_t reset = asked(KVP_DO_LOCAL_RESET);
    cr_assert(reset);
    DO(checked, l.check_ask, KVB_OK, true, &draw);
    cr_assert_not(kvp_lineage_open(&l));
    DO(local_reset, reset, KVB_OK);
    cr_assert(kvp_lineage_open(&l));
}

Test(lineage, an_echoed_retirement_is_delivered_before_anything_is_joined)
{
    kvp_lineage_init(&l, true, KVP_UNVERSIONED_OFF, &draw);
    struct kvb_lineage retired = lin(60);
    struct kvp_lineage_hello hello = echo_of("");
    hello.retired = &retired;
    hello.nretired = 1;
    DO(attached, &hello, &draw);
    DO(acked, l.send_ask);
    cr_assert(asked(KVP_DO_RETIRE));
    cr_assert(kvb_lineage_equal(l.retired[0], retired));
}

Test(lineage, a_living_daemon_wins_over_what_an_engine_echoes)
{
    join_version("v");
    struct kvp_lineage_hello hello = hello_of(false);
    hello.living = true;
    hello.lineage = l.lineage;
    hello.token = l.token;
    DO(detached);
    DO(leave, KVP_LEAVE_RESET, true, &draw); /* while its engine was away */
    struct kvb_lineage own = l.lineage;
    hello.name = "v";
    DO(attached, &hello, &draw);
    cr_assert(kvb_lineage_equal(l.lineage, own));
    cr_assert_eq(l.ack, KVP_ACK_LEFT);
    cr_assert(asked(KVP_DO_SEND));
    cr_assert_not(kvp_lineage_open(&l));
    /* and what the engine did meanwhile counts */
    join_version("v");
    hello.lineage = l.lineage;
    hello.token = l.token;
    hello.written = true;
    DO(detached);
    DO(attached, &hello, &draw);
    cr_assert_not(kvp_lineage_named(&l));
    join_version("v");
    hello.lineage = l.lineage;
    hello.token = l.token;
    hello.written = false;
    hello.update = true;
    DO(detached);
    DO(attached, &hello, &draw);
    cr_assert_not(kvp_lineage_named(&l));
    cr_assert_not(kvp_lineage_open(&l));
}

Test(lineage, an_engine_that_attaches_without_echo_has_left)
{
    join_version("v");
    struct kvp_lineage_hello hello = hello_of(false);
    hello.living = true;
    struct kvb_lineage before = l.lineage;
    DO(detached);
    DO(attached, &hello, &draw);
    cr_assert_not(kvb_lineage_equal(before, l.lineage));
    cr_assert_eq(l.name[0], '\0');
    cr_assert_eq(l.last_name[0], '\0');
    cr_assert_eq(l.version[0], '\0');
    cr_assert_not(l.proven);
}

/* ---- without a store; in lockstep ---- */

Test(lineage, without_a_store_everything_is_private_and_nothing_is_asked)
{
    kvp_lineage_init(&l, false, KVP_UNVERSIONED_OFF, &draw);
    struct kvp_lineage_hello hello = hello_of(true);
    DO(attached, &hello, &draw);
    answer();
    DO(version, "1");
    DO(version, "2");
    DO(leave, KVP_LEAVE_RESET, false, &draw);
    answer();
    cr_assert(kvp_lineage_open(&l));
    cr_assert_not(kvp_lineage_named(&l));
    cr_assert_eq(l.nretired, 0);
    cr_assert_eq(kvp_lineage_why_private(&l), KVP_PRIVATE_NO_STORE);
}

static void attach_unversioned(enum kvp_unversioned event)
{
    kvp_lineage_init(&l, true, event, &draw);
    struct kvp_lineage_hello hello = hello_of(true);
    DO(attached, &hello, &draw);
    answer();
}

Test(lineage, unversioned_only_its_one_event_takes_a_step_and_only_in_step)
{
    attach_unversioned(KVP_UNVERSIONED_FINISH);
    cr_assert_eq(kvp_lineage_why_private(&l), KVP_PRIVATE_OUT_OF_STEP);
    DO(update_begins, &draw);
    answer();
    DO(update_ends, true, true, &draw);
    answer();
    cr_assert_not(kvp_lineage_named(&l)); /* out of step: no tenant reset yet */
    DO(update_begins, &draw);
    answer();
    DO(told_tenant, 9, &draw); /* in the middle of its step: still out of it */
    answer();
    cr_assert_not(l.aligned);
    attach_unversioned(KVP_UNVERSIONED_FINISH);
    DO(told_tenant, 9, &draw);
    answer();
    cr_assert(l.aligned);
    cr_assert_not(kvp_lineage_named(&l));
    for (uint64_t step = 1; step <= 3; step++) {
        DO(update_begins, &draw);
        answer();
        DO(update_ends, true, true, &draw);
        cr_assert_eq(l.step, step);
        cr_assert_eq(l.epoch, 9);
        DO(acked, l.send_ask);
        cr_assert(asked(KVP_DO_STEP));
        answer();
        cr_assert(kvp_lineage_named(&l));
        /* every other leaving is private, and no step */
        DO(leave, KVP_LEAVE_SLEEP, false, &draw);
        answer();
        cr_assert_not(kvp_lineage_named(&l));
        cr_assert_eq(l.step, step);
        /* the event repeated by its caller: no weights were written since */
        DO(leave, KVP_LEAVE_RESET, false, &draw);
        answer();
        cr_assert_eq(l.step, step);
    }
}

Test(lineage, unversioned_a_repeated_event_is_no_second_step)
{
    attach_unversioned(KVP_UNVERSIONED_RESET);
    DO(told_tenant, 9, &draw);
    answer();
    DO(written, &draw);
    answer();
    DO(leave, KVP_LEAVE_RESET, false, &draw);
    answer();
    cr_assert_eq(l.step, 1);
    cr_assert(kvp_lineage_named(&l));
    DO(leave, KVP_LEAVE_RESET, false, &draw);
    answer();
    cr_assert_eq(l.step, 1);
    cr_assert_not(kvp_lineage_named(&l));
}

Test(lineage, unversioned_who_misses_the_coordinator_is_out_of_step_and_never_joins_late)
{
    for (int way = 0; way < 4; way++) {
        attach_unversioned(KVP_UNVERSIONED_FINISH);
        DO(told_tenant, 9, &draw);
        answer();
        if (way == 0 || way == 3) {
            DO(reachable, false);
        }
        if (way == 3) { /* back in time, but a reset may have passed unheard */
            DO(lost, &draw);
            answer();
            DO(reachable, true);
        }
        DO(update_begins, &draw);
        answer();
        DO(update_ends, true, true, &draw);
        if (way == 1 || way == 2) {
            DO(acked, l.send_ask);
            DO(resolved, l.resolve_ask, way == 1 ? KVB_ERR_UNAVAILABLE : KVB_ERR_FENCED, lin(1),
               &draw);
        }
        DO(reachable, true);
        answer();
        cr_assert_not(kvp_lineage_named(&l), "way %d", way);
        cr_assert_eq(kvp_lineage_why_private(&l), KVP_PRIVATE_OUT_OF_STEP, "way %d", way);
        DO(update_begins, &draw);
        answer();
        DO(update_ends, true, true, &draw);
        answer();
        cr_assert_not(kvp_lineage_named(&l), "way %d", way);
    }
}

Test(lineage, unversioned_a_restart_is_out_of_step_also_with_an_echo)
{
    kvp_lineage_init(&l, true, KVP_UNVERSIONED_FINISH, &draw);
    struct kvp_lineage_hello hello = echo_of("step:9.1");
    DO(attached, &hello, &draw);
    answer();
    cr_assert_not(kvb_lineage_equal(l.lineage, lin(50)));
    cr_assert_not(kvp_lineage_named(&l));
    cr_assert_eq(kvp_lineage_why_private(&l), KVP_PRIVATE_OUT_OF_STEP);
}
