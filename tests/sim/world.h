/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include "base/sched.h"
#include "transport/net.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * A whole cluster in one thread, drawn from one seed: machines, the processes on them, the network
 * between them and etcd. The processes are the real code with its seams taken (DESIGN.md section
 * 12): a scheduler and a clock each, kvt_net for the store's connections (net.c), kvs_http for
 * etcd's gateway (etcd.c), kvp_stream for the engine link (wire.c). Whose turn is next, how long
 * everything takes and when something breaks is drawn; nothing asks the real machine, so that a
 * seed replays exactly.
 *
 * One world a process: whoever dies in it is never run again and stays allocated, as memory of a
 * killed process is nobody's business; the program forks for each seed.
 */

#define SIM_MACHINES_MAX  16
#define SIM_PROCESSES_MAX 512

/* A running process: its turn is one turn of its scheduler. */
struct sim_process {
    struct kvb_sched sched;
    struct kvb_clock clock;
    struct kvb_random random;
    char name[40];
    uint32_t machine;
    bool dead;
    uint64_t frozen_until_ns; /* of the world: stopped (SIGSTOP, a long pause of its machine) */
    int64_t drift_ppm;        /* its clock against the world's */
    uint64_t born_ns, offset_ns;
    uint64_t due_ns;     /* of its own clock: 0: at once */
    struct kvt_net *net; /* its connections; NULL: none */
    uint64_t draws;
};

struct sim_world {
    uint64_t seed;
    uint64_t now_ns;
    uint64_t draws; /* state of the generator of everything that no process draws */
    uint64_t turns;
    struct kvb_sched sched; /* what the world itself does later: arrivals, faults */
    struct kvb_clock clock;
    struct kvb_random random;
    struct sim_process *processes[SIM_PROCESSES_MAX];
    uint32_t nprocesses;
    bool cut[SIM_MACHINES_MAX][SIM_MACHINES_MAX]; /* nothing comes through */
    bool off[SIM_MACHINES_MAX];
    void (*failed)(
        const char *why); /* told by sim_fail(): its format, the same for the same fault */
    uint64_t slow_ns;     /* added to each way, at most; drawn anew each time */
};
extern struct sim_world sim;

void sim_world_init(uint64_t seed);
/* Everything that happens from now on until the world's clock is there. */
void sim_run_until_ns(uint64_t ns);
void sim_run_ms(uint64_t ms);

uint64_t sim_draw(void);
uint64_t sim_below(uint64_t n);
bool sim_chance(uint32_t in_1000);
/* Between the two, and more often near the first. */
uint64_t sim_between(uint64_t low, uint64_t high);
/* How long one way takes between two machines now. */
uint64_t sim_way_ns(void);

/* fn(ctx), once, so much later. */
void sim_after(uint64_t ns, void (*fn)(void *ctx), void *ctx);

struct sim_process *sim_process_start(const char *name, uint32_t machine);
/* Runs no more. Its machine resets its connections; off: that is gone, too, and answers nothing. */
void sim_process_kill(struct sim_process *process, bool off);
void sim_process_freeze(struct sim_process *process, uint64_t ns);
bool sim_process_runs(const struct sim_process *process);

/* A promise was broken, or the simulation itself: says where and ends the process with 1. */
void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* ---- net.c ---- */

/* The process's connections: those it opens, and those that come to its machine's port, for which
 * accept is called with a number for kvt_net's adopt. */
struct kvt_net *sim_net_open(struct sim_process *process, void (*accept)(void *ctx, int fd),
                             void *ctx);
/* "sim-3:7" for machine 3 */
void sim_address(uint32_t machine, char out[32]);
void sim_net_died(struct sim_process *process, bool off);

#endif
