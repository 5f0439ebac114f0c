/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_ACTORS_H
#define TESTS_SIM_ACTORS_H

#include "connector/instance.h"
#include "world.h"

/*
 * What lives in a world: store nodes, daemons with an engine each, and what is checked of them.
 * Machine 0 is etcd's, then one for each store node, then one for each daemon and its engine.
 */

/* ---- store nodes: node.c ---- */

struct sim_node;
struct sim_node *sim_node_start(uint32_t number, uint32_t machine, uint64_t bytes);
struct sim_process *sim_node_process(const struct sim_node *node);
void sim_node_drain(struct sim_node *node);
/* NULL, or which invariant of its memory is broken. */
const char *sim_node_validate(struct sim_node *node);
/* Bytes of puts that are neither stored nor given back. */
uint64_t sim_node_reserved(struct sim_node *node);

/* ---- daemons: daemon.c ---- */

struct sim_daemon;
/* store_bytes: of its own share; 0: none */
struct sim_daemon *sim_daemon_start(uint32_t number, uint32_t machine, uint64_t store_bytes);
struct sim_process *sim_daemon_process(const struct sim_daemon *daemon);
struct kvp_fleet *sim_daemon_fleet(const struct sim_daemon *daemon);
void sim_daemon_kill(struct sim_daemon *daemon, bool off); /* off: its machine, too */
const char *sim_daemon_validate(struct sim_daemon *daemon);
/* Asks for an operation of the daemon's instance. *status_p, if not NULL: IN_PROGRESS, and how it
 * ended. */
void sim_daemon_ask(struct sim_daemon *daemon, const struct kvp_ask *ask, kvb_status_t *status_p);
/* How many wait for their one answer, of a daemon that lives; fails if one waits for too long. */
uint32_t sim_asks_check(void);

/* ---- engines: engine.c ---- */

#define SIM_RANKS_MAX 2

struct sim_counts {
    uint64_t requests, got, stored, fenced, missed;
    uint64_t operations, operations_failed;
};
extern struct sim_counts sim_counts;
/* When the last reset was asked for that has been answered with success: of the tenant, and of what
 * that engine shared under the weights that it held. */
#define SIM_ENGINES_MAX 8
#define SIM_WEIGHTS_MAX 64 /* from there on they are nobody's */
struct sim_resets {
    uint64_t tenant_ns, own_ns[SIM_WEIGHTS_MAX];
};
extern struct sim_resets sim_resets[SIM_ENGINES_MAX];
/* What an engine's own reset clears: what was shared under the name that it was given last, unless
 * a change of weights, even one that failed, or an end of the engine came since: whoever still
 * holds the weights of that name keeps what they share. */
struct sim_shares {
    bool named;
    uint32_t changes; /* since it began; never fewer */
};
extern struct sim_shares sim_shares[SIM_ENGINES_MAX];
void sim_weights_changed(uint32_t number);
uint64_t sim_weights_of(uint32_t number);

struct sim_engine;
struct sim_engine *sim_engine_start(uint32_t number, uint32_t machine, uint32_t nranks,
                                    const char *tenant);
struct sim_process *sim_engine_process(const struct sim_engine *engine);
void sim_engine_kill(struct sim_engine *engine);
/* In thousandths: calls of the daemon that it refuses, answers late, or never. */
void sim_engine_misbehave(struct sim_engine *engine, uint32_t in_1000);
/* Attached, all memory there, nothing paused. */
bool sim_engine_serves(const struct sim_engine *engine);
/* Memory it has given up was not touched; else fails. */
void sim_engine_check(struct sim_engine *engine);
uint64_t sim_engine_weights(const struct sim_engine *engine);

#endif
