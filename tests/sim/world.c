/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include "splitmix.h"

#include "base/assert.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TURNS_MAX 40000000ull /* a world that never gets anywhere is a livelock */

struct sim_world sim;

uint64_t sim_draw(void)
{
    return splitmix_next(&sim.draws);
}

uint64_t sim_below(uint64_t n)
{
    return n == 0 ? 0 : sim_draw() % n;
}

bool sim_chance(uint32_t in_1000)
{
    return sim_below(1000) < in_1000;
}

uint64_t sim_between(uint64_t low, uint64_t high)
{
    uint64_t a = sim_below(high - low + 1), b = sim_below(high - low + 1);
    return low + (a < b ? a : b);
}

uint64_t sim_way_ns(void)
{
    return sim_between(20000, 400000) + (sim.slow_ns == 0 ? 0 : sim_below(sim.slow_ns));
}

void sim_fail(const char *format, ...)
{
    va_list arguments;
    (void)fprintf(stderr, "seed %llu, %llu.%06llu ms: ", (unsigned long long)sim.seed,
                  (unsigned long long)(sim.now_ns / 1000000),
                  (unsigned long long)(sim.now_ns % 1000000));
    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
    (void)fflush(NULL);
    if (sim.failed != NULL) {
        sim.failed(format);
    }
    _exit(1);
}

/* ---- clocks ---- */

static uint64_t world_now(void *ctx)
{
    (void)ctx;
    return sim.now_ns;
}

static uint64_t process_now(void *ctx)
{
    const struct sim_process *process = ctx;
    int64_t past = (int64_t)(sim.now_ns - process->born_ns);
    return process->offset_ns + (uint64_t)(past + past / 1000000 * process->drift_ppm);
}

/* The world's time at which the process's clock shows that. */
static uint64_t world_time_of(struct sim_process *process, uint64_t local_ns)
{
    uint64_t now_ns = process_now(process);
    if (local_ns <= now_ns) {
        return sim.now_ns;
    }
    uint64_t past = local_ns - now_ns;
    uint64_t ns =
        past + past / 1000000 * (uint64_t)(process->drift_ppm < 0 ? -process->drift_ppm : 0);
    return sim.now_ns + ns + 1000000; /* late rather than never: the clock counts whole steps */
}

static void world_fill(void *ctx, void *buf, size_t len)
{
    (void)ctx;
    splitmix_fill(&sim.draws, buf, len);
}

static void process_fill(void *ctx, void *buf, size_t len)
{
    splitmix_fill(&((struct sim_process *)ctx)->draws, buf, len);
}

static void process_wake(void *ctx)
{
    ((struct sim_process *)ctx)->due_ns = 0;
}

void sim_world_init(uint64_t seed)
{
    sim = (struct sim_world){
        .seed = seed, .draws = seed * 0x9e3779b97f4a7c15ull + 1, .now_ns = KVB_NS_PER_S};
    sim.clock = (struct kvb_clock){.now_ns = world_now};
    sim.random = (struct kvb_random){.fill = world_fill};
    kvb_sched_init(&sim.sched, &sim.clock, &sim.random);
}

/* ---- processes ---- */

struct sim_process *sim_process_start(const char *name, uint32_t machine)
{
    struct sim_process *process = calloc(1, sizeof *process);
    kvb_assert(process != NULL && sim.nprocesses < SIM_PROCESSES_MAX);
    (void)snprintf(process->name, sizeof process->name, "%s", name);
    process->machine = machine;
    process->born_ns = sim.now_ns;
    process->offset_ns = sim_below(1000 * KVB_NS_PER_S) + KVB_NS_PER_S;
    process->drift_ppm = (int64_t)sim_below(40001) - 20000; /* two in a hundred, either way */
    process->draws = sim_draw();
    process->clock = (struct kvb_clock){.now_ns = process_now, .ctx = process};
    process->random = (struct kvb_random){.fill = process_fill, .ctx = process};
    kvb_sched_init(&process->sched, &process->clock, &process->random);
    process->sched.wake = process_wake;
    process->sched.wake_ctx = process;
    sim.processes[sim.nprocesses++] = process;
    return process;
}

void sim_process_kill(struct sim_process *process, bool off)
{
    process->dead = true;
    sim.off[process->machine] = sim.off[process->machine] || off;
    sim_net_died(process, off);
}

void sim_process_freeze(struct sim_process *process, uint64_t ns)
{
    uint64_t until_ns = sim.now_ns + ns;
    process->frozen_until_ns =
        until_ns > process->frozen_until_ns ? until_ns : process->frozen_until_ns;
}

bool sim_process_runs(const struct sim_process *process)
{
    return !process->dead && process->frozen_until_ns <= sim.now_ns;
}

/* When it wants its next turn, in the world's time. */
static uint64_t wants_ns(struct sim_process *process)
{
    if (process->dead || process->due_ns == KVB_NEVER) {
        return KVB_NEVER;
    }
    uint64_t ns = world_time_of(process, process->due_ns);
    return ns > process->frozen_until_ns ? ns : process->frozen_until_ns;
}

/* ---- later ---- */

struct later {
    struct kvb_timer timer;
    void (*fn)(void *ctx);
    void *ctx;
};

static void on_later(struct kvb_timer *timer)
{
    struct later *later = kvb_container_of(timer, struct later, timer);
    void (*fn)(void *ctx) = later->fn;
    void *ctx = later->ctx;
    free(later);
    fn(ctx);
}

void sim_after(uint64_t ns, void (*fn)(void *ctx), void *ctx)
{
    struct later *later = calloc(1, sizeof *later);
    kvb_assert(later != NULL);
    later->fn = fn;
    later->ctx = ctx;
    kvb_timer_init(&later->timer, on_later);
    kvb_sched_timer_set(&sim.sched, &later->timer, sim.now_ns + ns);
}

/* ---- time ---- */

/* One turn of one of those that want one now; false: nobody does. *next_p: when somebody will. */
static bool turn(uint64_t *next_p)
{
    struct sim_process *ready[SIM_PROCESSES_MAX];
    uint32_t nready = 0;
    uint64_t next_ns = KVB_NEVER;
    for (uint32_t i = 0; i < sim.nprocesses; i++) {
        uint64_t ns = wants_ns(sim.processes[i]);
        if (ns <= sim.now_ns) {
            ready[nready++] = sim.processes[i];
        }
        next_ns = ns < next_ns ? ns : next_ns;
    }
    uint64_t world_ns = sim.sched.heap_len > 0 ? sim.sched.heap[0]->deadline_ns : KVB_NEVER;
    bool world = world_ns <= sim.now_ns || !kvb_list_empty(&sim.sched.ready);
    *next_p = world_ns < next_ns ? world_ns : next_ns;
    if (nready == 0 && !world) {
        return false;
    }
    if (++sim.turns > TURNS_MAX) {
        sim_fail("no end of turns: a livelock");
    }
    uint32_t which = (uint32_t)sim_below(nready + (world ? 1u : 0u));
    if (which == nready) {
        (void)kvb_sched_turn(&sim.sched);
        return true;
    }
    struct sim_process *process = ready[which];
    process->due_ns = KVB_NEVER;
    uint64_t due_ns = kvb_sched_turn(&process->sched);
    process->due_ns = due_ns < process->due_ns ? due_ns : process->due_ns;
    sim.now_ns += sim_between(200, 20000); /* it took a while */
    return true;
}

void sim_run_until_ns(uint64_t ns)
{
    uint64_t next_ns;
    while (sim.now_ns < ns) {
        if (!turn(&next_ns)) {
            sim.now_ns = next_ns < ns ? next_ns : ns;
        }
    }
}

void sim_run_ms(uint64_t ms)
{
    sim_run_until_ns(sim.now_ns + ms * KVB_NS_PER_MS);
}
