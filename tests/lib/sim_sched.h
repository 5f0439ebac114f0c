/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_SCHED_H
#define TESTS_SIM_SCHED_H

/*
 * A struct kvb_sched with a clock that only a test moves and a seeded generator, so that a run with
 * the same seed is the same run. Time passes only in sim_advance() and in sim_run_until(), which
 * jumps to the next timer when there is nothing else to do: nothing ever sleeps.
 *
 * The seed of the test comes from KVPLANE_SEED if it is set; a failing test prints sim.seed.
 */
#include "splitmix.h"

#include "base/assert.h"
#include "base/sched.h"

#include <stdio.h>
#include <stdlib.h>

struct sim_sched {
    struct kvb_sched sched;
    struct kvb_clock clock;
    struct kvb_random random;
    uint64_t now_ns;
    uint64_t seed;
    uint64_t random_state;
    uint64_t turns;
};

/* A turn that never gets anywhere is a livelock, not slowness. */
#define SIM_TURNS_MAX 20000000ull

static inline uint64_t sim_now_(void *ctx)
{
    const struct sim_sched *sim = ctx;
    return sim->now_ns;
}

static inline void sim_fill_(void *ctx, void *buf, size_t len)
{
    struct sim_sched *sim = ctx;
    splitmix_fill(&sim->random_state, buf, len);
}

/* KVPLANE_SEED, else the given one. */
static inline uint64_t sim_seed(uint64_t fallback)
{
    const char *text = getenv("KVPLANE_SEED");
    return text != NULL ? strtoull(text, NULL, 0) : fallback;
}

static inline void sim_init(struct sim_sched *sim, uint64_t seed)
{
    *sim = (struct sim_sched){.seed = seed, .random_state = seed, .now_ns = 1000 * KVB_NS_PER_S};
    sim->clock = (struct kvb_clock){.now_ns = sim_now_, .ctx = sim};
    sim->random = (struct kvb_random){.fill = sim_fill_, .ctx = sim};
    kvb_sched_init(&sim->sched, &sim->clock, &sim->random);
}

/* Allocations that fail are not those of timers: without one no deadline would hold, and the
 * scheduler asserts that it has it. */
static inline void sim_reserve_timers(struct kvb_sched *sched)
{
    struct kvb_timer timers[256];
    for (int i = 0; i < 256; i++) {
        kvb_timer_init(&timers[i], NULL);
        kvb_sched_timer_set(sched, &timers[i], KVB_NEVER - 1);
    }
    for (int i = 0; i < 256; i++) {
        kvb_sched_timer_clear(sched, &timers[i]);
    }
}

/* Asserts that nothing is posted and no timer is set: whoever was tested cleaned up. */
static inline void sim_cleanup(struct sim_sched *sim)
{
    kvb_sched_cleanup(&sim->sched);
}

/* A seeded number below n. */
static inline uint64_t sim_below(struct sim_sched *sim, uint64_t n)
{
    return splitmix_next(&sim->random_state) % n;
}

static inline uint64_t sim_in_ms(const struct sim_sched *sim, uint64_t ms)
{
    return sim->now_ns + ms * KVB_NS_PER_MS;
}

/* One turn at the present time; when the next one is due. */
static inline uint64_t sim_turn(struct sim_sched *sim)
{
    kvb_assert(++sim->turns < SIM_TURNS_MAX);
    return kvb_sched_turn(&sim->sched);
}

/* Runs turns without letting time pass, until nothing is ready. */
static inline void sim_settle(struct sim_sched *sim)
{
    while (sim_turn(sim) <= sim->now_ns) {
    }
}

/* Lets ms pass, stopping at every timer on the way. */
static inline void sim_advance(struct sim_sched *sim, uint64_t ms)
{
    uint64_t end_ns = sim_in_ms(sim, ms);
    for (;;) {
        uint64_t due_ns = sim_turn(sim);
        if (due_ns <= sim->now_ns) {
            continue;
        }
        if (due_ns > end_ns) {
            break;
        }
        sim->now_ns = due_ns;
    }
    sim->now_ns = end_ns;
    sim_settle(sim);
}

/* Runs until condition(arg), jumping from timer to timer; false if limit_ms of simulated time
 * passed, or nothing is left to run, without it. */
static inline bool sim_run_until(struct sim_sched *sim, bool (*condition)(void *arg), void *arg,
                                 uint64_t limit_ms)
{
    uint64_t end_ns = sim_in_ms(sim, limit_ms);
    while (!condition(arg)) {
        uint64_t due_ns = sim_turn(sim);
        if (due_ns <= sim->now_ns || condition(arg)) {
            continue;
        }
        if (due_ns == KVB_NEVER || due_ns > end_ns) {
            return false;
        }
        sim->now_ns = due_ns;
    }
    return true;
}

static inline bool sim_is_true_(void *arg)
{
    const bool *flag = arg;
    return *flag;
}

static inline bool sim_run_until_true(struct sim_sched *sim, bool *flag, uint64_t limit_ms)
{
    return sim_run_until(sim, sim_is_true_, flag, limit_ms);
}

#endif
