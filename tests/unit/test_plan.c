/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/plan.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

static struct kvp_fsm fsm_of(enum kvb_residency kv, enum kvb_residency weights,
                             enum kvp_scheduler scheduler, unsigned stopped)
{
    struct kvp_fsm fsm;
    kvp_fsm_init(&fsm);
    fsm.scheduler = scheduler;
    fsm.stopped_by = stopped;
    kvp_fsm_add_tag(&fsm, "kv_cache")->residency = kv;
    kvp_fsm_add_tag(&fsm, "weights")->residency = weights;
    return fsm;
}

static struct kvp_plan plan_of(const struct kvp_fsm *fsm, const struct kvp_ask *ask)
{
    struct kvp_situation now = {.fsm = fsm, .store = true};
    struct kvp_plan plan;
    kvp_plan_make(ask, &now, &plan);
    return plan;
}

static void text_of(const struct kvp_plan *plan, char *out, size_t cap)
{
    static const char *const names[] = {"NONE",
#define X(name, label, who, soft, noreturn, ...) #name,
                                        KVP_STEPS(X)
#undef X
    };
    out[0] = '\0';
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        size_t used = strlen(out);
        snprintf(out + used, cap - used, "%s%s", i > 0 ? " " : "", names[plan->steps[i]]);
    }
}

#define STEPS(plan, expected)                                                                      \
    do {                                                                                           \
        char text_[512];                                                                           \
        struct kvp_plan plan_ = (plan);                                                            \
        text_of(&plan_, text_, sizeof text_);                                                      \
        cr_assert_str_eq(text_, expected);                                                         \
    } while (0)

static const struct kvp_ask sleep1 = {.operation = KVP_OP_SLEEP, .level = 1};
static const struct kvp_ask sleep2 = {.operation = KVP_OP_SLEEP, .level = 2};
static const struct kvp_ask wake_all = {.operation = KVP_OP_WAKE};

Test(plan, operations_have_the_steps_of_the_design_in_its_order)
{
    struct kvp_fsm awake = fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_RUNNING, 0);
    const struct {
        struct kvp_ask ask;
        const char *steps;
    } cases[] = {
        {{.operation = KVP_OP_PAUSE}, "STOP DRAIN"},
        {{.operation = KVP_OP_PAUSE, .clear_cache = true}, "STOP DRAIN LEAVE RESET_LOCAL"},
        {{.operation = KVP_OP_PAUSE, .clear_cache = true, .reset_external = KVP_NO},
         "STOP DRAIN RESET_LOCAL"},
        {{.operation = KVP_OP_PAUSE, .mode = KVP_MODE_RETRACT}, "STOP DRAIN RESET_LOCAL"},
        {{.operation = KVP_OP_SLEEP, .level = 0}, "STOP DRAIN"},
        {sleep1, "STOP DRAIN LEAVE RESET_LOCAL DRAIN UNREGISTER OFFLOAD DISCARD"},
        {sleep2, "STOP DRAIN LEAVE RESET_LOCAL DRAIN UNREGISTER OFFLOAD DISCARD"},
        {{.operation = KVP_OP_SLEEP, .level = 1, .reset_external = KVP_NO},
         "STOP DRAIN RESET_LOCAL DRAIN UNREGISTER OFFLOAD DISCARD"},
        {{.operation = KVP_OP_RESET}, "RESET_SOFT"},
        {{.operation = KVP_OP_RESET, .reset_external = KVP_YES}, "LEAVE RESET_SOFT RETIRE NAME"},
        {{.operation = KVP_OP_START_UPDATE}, "BEGIN_UPDATE RELAY"},
        {{.operation = KVP_OP_UPDATE, .weight_version = "1"},
         "BEGIN_CALL RELAY VERSION END_CALL NAME"},
        {{.operation = KVP_OP_FINISH_UPDATE, .weight_version = "1"}, "RELAY VERSION FINISH NAME"},
        {{.operation = KVP_OP_FINISH_UPDATE}, "RELAY FINISH NAME"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvp_plan plan = plan_of(&awake, &cases[i].ask);
        cr_assert_eq(plan.refused, KVB_OK);
        STEPS(plan, cases[i].steps);
    }
}

Test(plan, a_sleep_opts_out_of_leaving_only_at_level_1)
{
    struct kvp_fsm awake = fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_RUNNING, 0);
    struct kvp_ask ask = {.operation = KVP_OP_SLEEP, .level = 2, .reset_external = KVP_NO};
    struct kvp_plan plan = plan_of(&awake, &ask);
    cr_assert(plan.leaving);
    cr_assert_not(plan.opt_out);
    ask.level = 1;
    plan = plan_of(&awake, &ask);
    cr_assert_not(plan.leaving);
    cr_assert(plan.opt_out);
}

Test(plan, a_later_sleep_that_does_not_opt_out_leaves)
{
    struct kvp_fsm asleep =
        fsm_of(KVB_DISCARDED, KVB_OFFLOADED, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_SLEEP);
    struct kvp_situation now = {.fsm = &asleep, .opted_out = true, .store = true};
    struct kvp_plan plan;
    kvp_plan_make(&sleep1, &now, &plan);
    cr_assert_not(plan.nothing_to_do);
    STEPS(plan, "LEAVE RESET_LOCAL");
    struct kvp_ask again = sleep1;
    again.reset_external = KVP_NO;
    kvp_plan_make(&again, &now, &plan);
    cr_assert(plan.nothing_to_do);
    struct kvp_ask release = {.operation = KVP_OP_RELEASE_KV};
    kvp_plan_make(&release, &now, &plan);
    STEPS(plan, "LEAVE RESET_LOCAL");
}

Test(plan, levels_decide_what_is_kept)
{
    struct kvp_fsm awake = fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_RUNNING, 0);
    struct kvp_plan plan = plan_of(&awake, &sleep1);
    cr_assert_eq(plan.nrelease, 2);
    cr_assert_not(plan.release[0].offload);
    cr_assert(plan.release[1].offload);
    plan = plan_of(&awake, &sleep2);
    cr_assert_eq(plan.nrelease, 2);
    cr_assert_not(plan.release[0].offload);
    cr_assert_not(plan.release[1].offload);
    struct kvp_fsm level1 =
        fsm_of(KVB_DISCARDED, KVB_OFFLOADED, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_SLEEP);
    cr_assert(plan_of(&level1, &sleep1).nothing_to_do);
    plan = plan_of(&level1, &sleep2);
    cr_assert_eq(plan.nrelease, 1);
    cr_assert_str_eq(plan.release[0].tag, "weights");
    STEPS(plan, "LEAVE RESET_LOCAL DISCARD");
    struct kvp_fsm level2 =
        fsm_of(KVB_DISCARDED, KVB_DISCARDED, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_SLEEP);
    cr_assert(plan_of(&level2, &sleep1).nothing_to_do);
    cr_assert(plan_of(&level2, &sleep2).nothing_to_do);
    /* half awake: the other tag goes back down */
    struct kvp_fsm half =
        fsm_of(KVB_DISCARDED, KVB_RESIDENT, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_SLEEP);
    plan = plan_of(&half, &sleep1);
    cr_assert_eq(plan.nrelease, 1);
    cr_assert_str_eq(plan.release[0].tag, "weights");
}

Test(plan, wake_resumes_only_when_nothing_is_missing)
{
    struct kvp_fsm asleep =
        fsm_of(KVB_DISCARDED, KVB_OFFLOADED, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_SLEEP);
    struct kvp_ask weights = {.operation = KVP_OP_WAKE, .tags_given = true, .ntags = 1};
    strcpy(weights.tags[0], "weights");
    struct kvp_plan plan = plan_of(&asleep, &weights);
    STEPS(plan, "RESTORE STATE REGISTER AWAKE");
    cr_assert_eq(plan.lift, 0);
    plan = plan_of(&asleep, &wake_all);
    STEPS(plan, "RESTORE STATE REGISTER AWAKE CLOSE_AWAKE NAME RUN");
    cr_assert_eq(plan.ntags_woken, 2);
    struct kvp_ask given = wake_all;
    strcpy(given.weight_version, "7");
    plan = plan_of(&asleep, &given);
    STEPS(plan, "RESTORE STATE REGISTER AWAKE VERSION CLOSE_AWAKE NAME RUN");
    /* it lifts the stop of sleep, release and pause alike; SGLang's name for it not the pause */
    asleep.stopped_by |= KVP_STOPPED_BY_PAUSE;
    plan = plan_of(&asleep, &wake_all);
    cr_assert_eq(asleep.stopped_by & ~plan.lift, 0);
    struct kvp_ask sglang = wake_all;
    sglang.keep_pause = true;
    plan = plan_of(&asleep, &sglang);
    STEPS(plan, "RESTORE STATE REGISTER AWAKE CLOSE_AWAKE NAME");
    cr_assert_eq(asleep.stopped_by & ~plan.lift, KVP_STOPPED_BY_PAUSE);
}

Test(plan, unknown_empty_and_idle_tags_wake_nothing)
{
    struct kvp_fsm asleep =
        fsm_of(KVB_DISCARDED, KVB_OFFLOADED, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_SLEEP);
    struct kvp_ask odd = {.operation = KVP_OP_WAKE, .tags_given = true, .ntags = 3};
    strcpy(odd.tags[0], "bogus");
    strcpy(odd.tags[1], "");
    strcpy(odd.tags[2], "cuda_graph");
    struct kvp_plan plan = plan_of(&asleep, &odd);
    cr_assert(plan.nothing_to_do);
    cr_assert_eq(plan.nsteps, 0);
    cr_assert_eq(plan.ntags_ignored, 2);
    cr_assert_eq(plan.lift, 0);
    struct kvp_fsm level0 =
        fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_SLEEP0);
    cr_assert(plan_of(&level0, &odd).nothing_to_do);
    strcpy(odd.tags[0], "scheduling");
    STEPS(plan_of(&level0, &odd), "NAME RUN");
    STEPS(plan_of(&level0, &wake_all), "NAME RUN");
    /* tags of memory that is not asleep do not end a level-0 sleep */
    strcpy(odd.tags[0], "weights");
    cr_assert(plan_of(&level0, &odd).nothing_to_do);
    /* merely paused: nothing changes */
    struct kvp_fsm paused =
        fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_PAUSE);
    cr_assert(plan_of(&paused, &wake_all).nothing_to_do);
    /* scheduling does not wake memory, nor run without it */
    odd.ntags = 1;
    strcpy(odd.tags[0], "scheduling");
    cr_assert(plan_of(&asleep, &odd).nothing_to_do);
    asleep.stopped_by |= KVP_STOPPED_BY_SLEEP0; /* but it ends the level 0 of a deeper sleep */
    plan = plan_of(&asleep, &odd);
    cr_assert_not(plan.nothing_to_do);
    cr_assert_eq(plan.lift, KVP_STOPPED_BY_SLEEP0);
    STEPS(plan, "NAME");
}

Test(plan, release_needs_a_completed_pause_or_an_idle_instance)
{
    struct kvp_ask release = {.operation = KVP_OP_RELEASE_KV};
    struct kvp_fsm running = fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_RUNNING, 0);
    cr_assert_eq(plan_of(&running, &release).refused, KVB_ERR_BAD_STATE);
    struct kvp_situation idle = {.fsm = &running, .idle = true, .store = true};
    struct kvp_plan plan;
    kvp_plan_make(&release, &idle, &plan);
    STEPS(plan, "STOP DRAIN LEAVE RESET_LOCAL DRAIN UNREGISTER OFFLOAD DISCARD");
    cr_assert_eq(plan.stop, KVP_STOPPED_BY_RELEASE);
    struct kvp_fsm paused =
        fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_PAUSE);
    plan = plan_of(&paused, &release);
    STEPS(plan, "LEAVE RESET_LOCAL DRAIN UNREGISTER OFFLOAD DISCARD");
    cr_assert_eq(plan.nrelease, 1);
    cr_assert_str_eq(plan.release[0].tag, "kv_cache");
    struct kvp_fsm released =
        fsm_of(KVB_DISCARDED, KVB_RESIDENT, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_RELEASE);
    cr_assert(plan_of(&released, &release).nothing_to_do);
    struct kvp_fsm none;
    kvp_fsm_init(&none);
    cr_assert_eq(plan_of(&none, &release).refused, KVB_ERR_BAD_STATE);
}

Test(plan, release_by_tags_keeps_aside_what_is_not_kv)
{
    static const struct {
        uint32_t ntags; /* given; 0: none is */
        const char *tags[2];
        uint32_t n;
        const char *released[2];
        uint32_t ignored;
    } cases[] = {
        {0, {""}, 2, {"kv_cache", "weights"}, 0}, {1, {"kv_cache"}, 1, {"kv_cache"}, 0},
        {1, {"weights"}, 1, {"weights"}, 0},      {2, {"weights", "x"}, 1, {"weights"}, 1},
        {2, {"cuda_graph", "x"}, 0, {NULL}, 1},
    };
    struct kvp_fsm paused =
        fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_PAUSE);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvp_ask release = {
            .operation = KVP_OP_RELEASE, .tags_given = cases[i].ntags > 0, .ntags = cases[i].ntags};
        for (uint32_t t = 0; t < cases[i].ntags; t++) {
            strcpy(release.tags[t], cases[i].tags[t]);
        }
        struct kvp_plan plan = plan_of(&paused, &release);
        cr_assert_eq(plan.refused, KVB_OK);
        cr_assert_eq(plan.nothing_to_do, cases[i].n == 0);
        cr_assert_eq(plan.nrelease, cases[i].n, "%zu", i);
        cr_assert_eq(plan.ntags_ignored, cases[i].ignored);
        for (uint32_t t = 0; t < plan.nrelease; t++) {
            cr_assert_str_eq(plan.release[t].tag, cases[i].released[t]);
            cr_assert_eq(plan.release[t].offload, strcmp(plan.release[t].tag, "kv_cache") != 0);
        }
        if (cases[i].n > 0) {
            STEPS(plan, "LEAVE RESET_LOCAL DRAIN UNREGISTER OFFLOAD DISCARD");
            cr_assert_eq(plan.stop, KVP_STOPPED_BY_RELEASE);
        }
    }
    struct kvp_ask all = {.operation = KVP_OP_RELEASE};
    struct kvp_fsm running = fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_RUNNING, 0);
    cr_assert_eq(plan_of(&running, &all).refused, KVB_ERR_BAD_STATE);
    struct kvp_fsm deep =
        fsm_of(KVB_DISCARDED, KVB_DISCARDED, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_SLEEP);
    cr_assert(plan_of(&deep, &all).nothing_to_do); /* never brought up */
}

Test(plan, a_resume_that_wakes_brings_back_what_is_missing_first)
{
    struct kvp_ask resume = {.operation = KVP_OP_RESUME, .wakes = true};
    struct kvp_fsm asleep = fsm_of(KVB_DISCARDED, KVB_OFFLOADED, KVP_SCHEDULER_PAUSED,
                                   (unsigned)KVP_STOPPED_BY_SLEEP | (unsigned)KVP_STOPPED_BY_PAUSE);
    struct kvp_plan plan = plan_of(&asleep, &resume);
    cr_assert_eq(plan.refused, KVB_OK);
    cr_assert_eq(plan.nrestore, 2);
    STEPS(plan, "RESTORE STATE REGISTER AWAKE CLOSE_AWAKE NAME RUN");
    struct kvp_fsm paused =
        fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_PAUSE);
    plan = plan_of(&paused, &resume);
    STEPS(plan, "STATE CLOSE_RESUME NAME RUN");
}

Test(plan, work_is_never_resumed_onto_memory_that_is_not_there)
{
    struct kvp_ask resume = {.operation = KVP_OP_RESUME};
    for (int kv = 0; kv < KVP_RESIDENCY_COUNT; kv++) {
        for (int weights = 0; weights < KVP_RESIDENCY_COUNT; weights++) {
            struct kvp_fsm fsm = fsm_of((enum kvb_residency)kv, (enum kvb_residency)weights,
                                        KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_PAUSE);
            struct kvp_plan plan = plan_of(&fsm, &resume);
            bool resident = kv == KVB_RESIDENT && weights == KVB_RESIDENT;
            cr_assert_eq(plan.refused, resident ? KVB_OK : KVB_ERR_BAD_STATE);
            if (resident) {
                STEPS(plan, "STATE CLOSE_RESUME NAME RUN");
            }
        }
    }
    struct kvp_fsm running = fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_RUNNING, 0);
    cr_assert(plan_of(&running, &resume).nothing_to_do);
    running.bracket = KVP_BRACKET_EXPLICIT; /* resume closes any bracket */
    cr_assert_not(plan_of(&running, &resume).nothing_to_do);
}

Test(plan, undo_is_the_undo_column_in_reverse)
{
    struct kvp_fsm awake = fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_RUNNING, 0);
    struct kvp_plan plan = plan_of(&awake, &sleep1);
    static const char *const undone[] = {
        "",
        "UNSTOP",
        "UNSTOP",
        "UNSTOP",
        "UNSTOP",
        "UNSTOP",
        "STATE RESTORE REGISTER UNSTOP",
        "STATE RESTORE REGISTER UNSTOP",
    };
    for (uint32_t done = 0; done < plan.nsteps; done++) {
        struct kvp_plan undo;
        kvp_plan_undo(&plan, done, &awake, &undo);
        STEPS(undo, undone[done]);
        cr_assert_eq(undo.nrestore, 2);
    }
    cr_assert(kvp_step_info(KVP_STEP_DISCARD)->no_return);
    for (int step = 1; step < KVP_STEP_COUNT; step++) {
        cr_assert_eq(kvp_step_info((enum kvp_step)step)->no_return, step == KVP_STEP_DISCARD);
    }
    struct kvp_fsm asleep =
        fsm_of(KVB_DISCARDED, KVB_OFFLOADED, KVP_SCHEDULER_PAUSED, KVP_STOPPED_BY_SLEEP);
    plan = plan_of(&asleep, &wake_all);
    struct kvp_plan undo;
    kvp_plan_undo(&plan, 3, &asleep, &undo);
    STEPS(undo, "STATE UNREGISTER OFFLOAD RELEASE_BACK");
    cr_assert_eq(undo.nrelease, 2);
    cr_assert_not(undo.release[0].offload);
    cr_assert(undo.release[1].offload);
}

Test(plan, without_a_store_nothing_is_asked_of_one)
{
    struct kvp_fsm awake = fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_RUNNING, 0);
    struct kvp_situation now = {.fsm = &awake, .store = false};
    struct kvp_ask reset = {.operation = KVP_OP_RESET, .reset_external = KVP_YES};
    struct kvp_plan plan;
    kvp_plan_make(&reset, &now, &plan);
    STEPS(plan, "LEAVE RESET_SOFT");
}

Test(plan, start_again_is_no_new_start)
{
    struct kvp_fsm awake = fsm_of(KVB_RESIDENT, KVB_RESIDENT, KVP_SCHEDULER_RUNNING, 0);
    awake.bracket = KVP_BRACKET_EXPLICIT;
    struct kvp_ask start = {.operation = KVP_OP_START_UPDATE};
    cr_assert(plan_of(&awake, &start).nothing_to_do);
}
