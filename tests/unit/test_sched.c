/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_sched.h"

#include <criterion/criterion.h>

/* ---- events ---- */

struct step {
    struct kvb_event event;
    struct kvb_sched *sched;
    char name;
    char *log; /* names in the order in which they ran */
    struct step *posts;
    struct step *unposts;
};

static void on_step(struct kvb_event *event)
{
    struct step *step = kvb_container_of(event, struct step, event);
    strncat(step->log, &step->name, 1);
    if (step->posts != NULL) {
        kvb_sched_post(step->sched, &step->posts->event);
    }
    if (step->unposts != NULL) {
        kvb_sched_unpost(&step->unposts->event);
    }
}

static void steps_init(struct step *steps, size_t n, struct sim_sched *sim, char *log)
{
    for (size_t i = 0; i < n; i++) {
        steps[i] = (struct step){.sched = &sim->sched, .name = (char)('a' + i), .log = log};
        kvb_event_init(&steps[i].event, on_step);
    }
}

Test(sched, events_run_in_the_order_of_posting_and_once)
{
    struct sim_sched sim;
    struct step steps[3];
    char log[32] = "";
    sim_init(&sim, 1);
    steps_init(steps, 3, &sim, log);
    kvb_sched_post(&sim.sched, &steps[1].event);
    kvb_sched_post(&sim.sched, &steps[0].event);
    kvb_sched_post(&sim.sched, &steps[1].event); /* posted already */
    kvb_sched_post(&sim.sched, &steps[2].event);
    cr_assert(kvb_event_posted(&steps[1].event));
    cr_assert_str_eq(log, "", "nothing runs inside post");
    cr_assert_eq(sim_turn(&sim), KVB_NEVER);
    cr_assert_str_eq(log, "bac");
    cr_assert_not(kvb_event_posted(&steps[1].event));
    sim_turn(&sim);
    cr_assert_str_eq(log, "bac");
    sim_cleanup(&sim);
}

Test(sched, an_event_posted_by_an_event_runs_in_a_later_turn)
{
    struct sim_sched sim;
    struct step steps[3];
    char log[32] = "";
    sim_init(&sim, 1);
    steps_init(steps, 3, &sim, log);
    steps[0].posts = &steps[0]; /* itself, as long work does */
    steps[1].posts = &steps[2];
    kvb_sched_post(&sim.sched, &steps[0].event);
    kvb_sched_post(&sim.sched, &steps[1].event);
    cr_assert_eq(sim_turn(&sim), 0, "something is ready");
    cr_assert_str_eq(log, "ab");
    steps[0].posts = NULL;
    cr_assert_eq(sim_turn(&sim), KVB_NEVER);
    cr_assert_str_eq(log, "abac");
    sim_cleanup(&sim);
}

Test(sched, an_event_can_be_taken_back_even_by_one_that_runs_before_it)
{
    struct sim_sched sim;
    struct step steps[3];
    char log[32] = "";
    sim_init(&sim, 1);
    steps_init(steps, 3, &sim, log);
    steps[0].unposts = &steps[1];
    for (int i = 0; i < 3; i++) {
        kvb_sched_post(&sim.sched, &steps[i].event);
    }
    kvb_sched_unpost(&steps[2].event);
    kvb_sched_unpost(&steps[2].event);
    cr_assert_eq(sim_turn(&sim), KVB_NEVER);
    cr_assert_str_eq(log, "a");
    sim_cleanup(&sim);
}

/* ---- timers ---- */

static int wakes;

static void count_wake(void *ctx)
{
    (void)ctx;
    wakes++;
}

static void nothing(struct kvb_timer *timer)
{
    (void)timer;
}

Test(sched, whoever_sleeps_is_woken_only_for_what_is_earlier)
{
    struct sim_sched sim;
    struct step steps[2];
    struct kvb_timer timers[2];
    char log[32] = "";
    sim_init(&sim, 1);
    steps_init(steps, 2, &sim, log);
    sim.sched.wake = count_wake;
    wakes = 0;
    kvb_timer_init(&timers[0], nothing);
    kvb_timer_init(&timers[1], nothing);
    kvb_sched_timer_set(&sim.sched, &timers[0], sim_in_ms(&sim, 10));
    cr_assert_eq(wakes, 1);
    kvb_sched_timer_set(&sim.sched, &timers[1], sim_in_ms(&sim, 20));
    cr_assert_eq(wakes, 1);
    kvb_sched_timer_set(&sim.sched, &timers[1], sim_in_ms(&sim, 5));
    cr_assert_eq(wakes, 2);
    cr_assert_eq(sim_turn(&sim), sim_in_ms(&sim, 5));
    kvb_sched_post(&sim.sched, &steps[0].event);
    kvb_sched_post(&sim.sched, &steps[1].event);
    cr_assert_eq(wakes, 3);
    sim_settle(&sim);
    kvb_sched_timer_set(&sim.sched, &timers[0], KVB_NEVER);
    cr_assert_not(kvb_timer_armed(&timers[0]));
    kvb_sched_timer_clear(&sim.sched, &timers[1]);
    kvb_sched_timer_clear(&sim.sched, &timers[1]);
    cr_assert_eq(sim_turn(&sim), KVB_NEVER);
    sim_cleanup(&sim);
}

struct rearm {
    struct kvb_timer timer;
    struct sim_sched *sim;
    int fired;
};

static void arm_again(struct kvb_timer *timer)
{
    struct rearm *rearm = kvb_container_of(timer, struct rearm, timer);
    rearm->fired++;
    kvb_sched_timer_set(&rearm->sim->sched, timer, rearm->sim->now_ns);
}

Test(sched, a_timer_that_arms_itself_for_now_holds_up_nothing)
{
    struct sim_sched sim;
    struct step step;
    char log[32] = "";
    sim_init(&sim, 1);
    steps_init(&step, 1, &sim, log);
    struct rearm rearm = {.sim = &sim};
    kvb_timer_init(&rearm.timer, arm_again);
    kvb_sched_timer_set(&sim.sched, &rearm.timer, sim.now_ns);
    kvb_sched_post(&sim.sched, &step.event);
    cr_assert_leq(sim_turn(&sim), sim.now_ns, "it is due again at once");
    cr_assert_eq(rearm.fired, 1);
    cr_assert_str_eq(log, "a");
    kvb_sched_timer_clear(&sim.sched, &rearm.timer);
    sim_cleanup(&sim);
}

/* Random setting, moving and clearing of many timers against an array of deadlines. */
#define TIMERS 200

struct model {
    struct sim_sched sim;
    struct {
        struct kvb_timer timer;
        struct model *model;
    } real[TIMERS];
    uint64_t wanted[TIMERS]; /* KVB_NEVER: not set */
    uint64_t last_fired_ns;
};

static void model_set(struct model *model, size_t i)
{
    uint64_t deadline_ns = model->sim.now_ns + 1 + sim_below(&model->sim, 1000);
    if (sim_below(&model->sim, 4) == 0) {
        deadline_ns = KVB_NEVER;
    }
    kvb_sched_timer_set(&model->sim.sched, &model->real[i].timer, deadline_ns);
    model->wanted[i] = deadline_ns;
}

static void on_model(struct kvb_timer *timer)
{
    size_t i = 0;
    struct model *model = NULL;
    for (struct model *m = *(struct model **)(void *)(timer + 1); i < TIMERS; i++) {
        model = m;
        if (&m->real[i].timer == timer) {
            break;
        }
    }
    cr_assert_lt(i, TIMERS);
    cr_assert_leq(model->wanted[i], model->sim.now_ns, "seed %llu: too early or not set",
                  (unsigned long long)model->sim.seed);
    cr_assert_geq(model->wanted[i], model->last_fired_ns, "seed %llu: out of order",
                  (unsigned long long)model->sim.seed);
    cr_assert_not(kvb_timer_armed(timer));
    model->last_fired_ns = model->wanted[i];
    model->wanted[i] = KVB_NEVER;
    if (sim_below(&model->sim, 3) == 0) { /* callbacks set and clear timers, too */
        model_set(model, sim_below(&model->sim, TIMERS));
    }
}

Test(sched, timers_fire_once_in_order_and_on_time_as_in_a_naive_model)
{
    struct model *model = calloc(1, sizeof *model);
    sim_init(&model->sim, sim_seed(20250101));
    for (size_t i = 0; i < TIMERS; i++) {
        kvb_timer_init(&model->real[i].timer, on_model);
        model->real[i].model = model;
        model->wanted[i] = KVB_NEVER;
    }
    for (int round = 0; round < 20000; round++) {
        model_set(model, sim_below(&model->sim, TIMERS));
        if (sim_below(&model->sim, 8) == 0) {
            model->sim.now_ns += sim_below(&model->sim, 300);
            model->last_fired_ns = 0;
        }
        uint64_t due_ns = sim_turn(&model->sim);
        uint64_t earliest_ns = KVB_NEVER;
        for (size_t i = 0; i < TIMERS; i++) {
            earliest_ns = model->wanted[i] < earliest_ns ? model->wanted[i] : earliest_ns;
            cr_assert_eq(kvb_timer_armed(&model->real[i].timer), model->wanted[i] != KVB_NEVER);
        }
        cr_assert_eq(due_ns, earliest_ns, "seed %llu round %d", (unsigned long long)model->sim.seed,
                     round);
        cr_assert_gt(earliest_ns, model->sim.now_ns, "everything due has fired");
    }
    for (size_t i = 0; i < TIMERS; i++) {
        kvb_sched_timer_clear(&model->sim.sched, &model->real[i].timer);
    }
    sim_cleanup(&model->sim);
    free(model);
}

Test(sched, a_deadline_far_away_saturates)
{
    struct sim_sched sim;
    sim_init(&sim, 1);
    cr_assert_eq(kvb_deadline_in_ms(&sim.clock, 5), sim.now_ns + 5 * KVB_NS_PER_MS);
    cr_assert_eq(kvb_deadline_in_ms(&sim.clock, UINT64_MAX), KVB_NEVER);
    cr_assert_eq(kvb_deadline_in_ms(&sim.clock, UINT64_MAX / KVB_NS_PER_MS), KVB_NEVER);
    sim_cleanup(&sim);
}
