/* SPDX-License-Identifier: Apache-2.0 */
#include "loop.h"

#include <criterion/criterion.h>

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

/* The loop on a real clock: a test that hangs is ended by the alarm, nothing here measures time. */

static struct kvp_loop *loop;
static uint32_t woken;
static uint32_t beats;
static int signum_seen;
static uint32_t signals;

static void on_woken(void *ctx)
{
    (void)ctx;
    woken++;
    kvp_loop_stop(loop);
}

static void on_signalled(void *ctx, int signum)
{
    (void)ctx;
    signum_seen = signum;
    signals++;
    kvp_loop_stop(loop);
}

static void on_beat(void *ctx, uint64_t now_ns, uint64_t lag_ns)
{
    (void)ctx;
    (void)lag_ns;
    beats++;
    cr_assert_eq(kvp_loop_beat_ns(loop), now_ns);
}

static const struct kvp_loop_ops ops = {
    .woken = on_woken, .signalled = on_signalled, .beat = on_beat};

static void setup(void)
{
    (void)alarm(120);
    kvp_loop_hold_signals();
    cr_assert_eq(kvp_loop_create(&ops, NULL, &loop), KVB_OK);
}

static void teardown(void)
{
    kvp_loop_destroy(loop);
}

TestSuite(loop, .init = setup, .fini = teardown);

static struct kvb_timer timer;
static struct kvb_event event;
static uint32_t times;

static void on_timer(struct kvb_timer *t)
{
    if (++times == 200) {
        kvp_loop_stop(loop);
        return;
    }
    /* From less than the millisecond in which libuv counts, to a few of them. */
    struct kvb_sched *sched = kvp_loop_sched(loop);
    kvb_sched_timer_set(sched, t, kvb_now_ns(sched->clock) + times % 7 * 333333);
}

Test(loop, a_timer_ends_the_wait_though_nothing_else_happens)
{
    struct kvb_sched *sched = kvp_loop_sched(loop);
    kvb_timer_init(&timer, on_timer);
    kvb_sched_timer_set(sched, &timer, kvb_now_ns(sched->clock) + 1);
    kvp_loop_run(loop);
    cr_assert_eq(times, 200);
}

static void on_event(struct kvb_event *e)
{
    if (++times == 1000) {
        kvp_loop_stop(loop);
        return;
    }
    kvb_sched_post(kvp_loop_sched(loop), e);
}

Test(loop, posted_events_run_without_waiting_for_anything)
{
    kvb_event_init(&event, on_event);
    kvb_sched_post(kvp_loop_sched(loop), &event); /* before it runs */
    kvp_loop_run(loop);
    cr_assert_eq(times, 1000);
    cr_assert_leq(beats, 100, "and nobody waited for a heartbeat in between");
}

static void *wake_from_outside(void *arg)
{
    kvp_loop_wake(arg);
    return NULL;
}

Test(loop, another_thread_wakes_it)
{
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, wake_from_outside, loop), 0);
    kvp_loop_run(loop);
    (void)pthread_join(thread, NULL);
    cr_assert_geq(woken, 1);
}

Test(loop, signals_are_told_on_the_loop)
{
    static const int signums[] = {SIGTERM, SIGINT};
    for (size_t i = 0; i < 2; i++) {
        (void)kill(getpid(), signums[i]);
        kvp_loop_run(loop);
        cr_assert_eq(signum_seen, signums[i]);
    }
}

Test(loop, what_is_signalled_before_there_is_a_loop_is_told_and_after_it_does_nothing)
{
    static const int signums[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    kvp_loop_destroy(loop);
    for (size_t i = 0; i < 4; i++) {
        (void)kill(getpid(), signums[i]);
    }
    cr_assert_eq(kvp_loop_create(&ops, NULL, &loop), KVB_OK);
    kvp_loop_run(loop);
    cr_assert_eq(signals, 4);
    kvp_loop_destroy(loop);
    for (size_t i = 0; i < 4; i++) {
        (void)kill(getpid(), signums[i]);
    }
    cr_assert_eq(kvp_loop_create(&ops, NULL, &loop), KVB_OK);
}

static void on_third_beat(struct kvb_timer *t)
{
    if (beats >= 3) {
        kvp_loop_stop(loop);
        return;
    }
    struct kvb_sched *sched = kvp_loop_sched(loop);
    kvb_sched_timer_set(sched, t, kvb_now_ns(sched->clock) + 50 * KVB_NS_PER_MS);
}

Test(loop, the_heart_beats_while_it_runs)
{
    struct kvb_sched *sched = kvp_loop_sched(loop);
    uint64_t before_ns = kvb_now_ns(sched->clock);
    kvb_timer_init(&timer, on_third_beat);
    kvb_sched_timer_set(sched, &timer, 0);
    kvp_loop_run(loop);
    cr_assert_geq(kvp_loop_beat_ns(loop), before_ns);
    cr_assert_lt(kvp_loop_lag_ns(loop), kvb_now_ns(sched->clock) - before_ns);
}
