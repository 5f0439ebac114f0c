/* SPDX-License-Identifier: Apache-2.0 */
#include "actors.h"
#include "etcd.h"

#include "base/assert.h"
#include "base/faults.h"
#include "base/log.h"

#include <dirent.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/*
 * simulate --seeds N [--seed S] [--steps N] [--fault NAME] [--verbose]
 *
 * Each seed is a world of its own, in a process of its own: a trainer that does what trainers do
 * and what they should not, while things break. Its plan is drawn first, as a list, so that a
 * failing seed can be shrunk: steps are left out as long as it still fails.
 */
enum {
    NODES = 3,
    DAEMONS = 3,
    STEPS = 40,
    STEPS_MAX = 256,
    JOBS_MAX = 64,
    NODE_BYTES = 160 << 10, /* small: there is eviction */
    STEP_MS_MAX = 1500,
    CALM_MS = 400000, /* once everything was mended, all serve again within; calls that nobody
                         answers take 120 s */
    LEASES_MS = 12000,
    SHARE_MS = 15000, /* and then hit what the others put */
};

#define VERBS(X)                                                                                   \
    X(SLEEP1, "sleep level 1")                                                                     \
    X(SLEEP2, "sleep level 2")                                                                     \
    X(SLEEP0, "sleep level 0")                                                                     \
    X(WAKE, "wake")                                                                                \
    X(WAKE_WEIGHTS, "wake weights")                                                                \
    X(PAUSE, "pause")                                                                              \
    X(RESUME, "resume")                                                                            \
    X(RELEASE_KV, "release kv_cache memory")                                                       \
    X(RESET, "reset prefix cache, external")                                                       \
    X(TENANT_RESET, "reset the tenant")                                                            \
    X(START, "start weight update")                                                                \
    X(UPDATE, "update weights")                                                                    \
    X(FINISH, "finish weight update")                                                              \
    X(UPDATE_ALL, "new weights for every engine")                                                  \
    X(CYCLE, "sleep 2, wake weights, update, wake")                                                \
    X(KILL_ENGINE, "kill an engine")                                                               \
    X(KILL_DAEMON, "kill a daemon")                                                                \
    X(KILL_NODE, "kill a store node")                                                              \
    X(OFF_NODE, "switch a store node's machine off")                                               \
    X(FREEZE, "stop a process for a while")                                                        \
    X(CUT, "cut two machines apart")                                                               \
    X(ISOLATE, "cut a machine off")                                                                \
    X(SLOW, "slow the network")                                                                    \
    X(ETCD_AWAY, "etcd loses its quorum")                                                          \
    X(ETCD_COMPACT, "etcd compacts")                                                               \
    X(ETCD_DROP, "etcd drops its connections")                                                     \
    X(DRAIN, "drain a store node")                                                                 \
    X(MISBEHAVE, "an engine misbehaves")
enum verb {
#define X(name, text) VERB_##name,
    VERBS(X)
#undef X
        VERB_COUNT
};
static const char *const verb_texts[] = {
#define X(name, text) [VERB_##name] = (text),
    VERBS(X)
#undef X
};

struct step {
    enum verb verb;
    uint32_t who, detail;
    uint64_t after_ms, for_ms;
    bool left_out;
};

static struct {
    uint32_t nsteps;
    struct step steps[STEPS_MAX];
} plan;

static struct {
    struct sim_node *nodes[NODES];
    struct sim_daemon *daemons[DAEMONS];
    struct sim_engine *engines[DAEMONS];
    uint32_t nranks[DAEMONS];
    uint64_t share_bytes[DAEMONS];
    uint64_t weights; /* the newest */
} world;

static bool verbose;

static uint32_t machine_of_node(uint32_t i)
{
    return 1 + i;
}

static uint32_t machine_of_daemon(uint32_t i)
{
    return 1 + NODES + i;
}

/* ---- what happens ---- */

static void start_node(void *ctx)
{
    uint32_t i = (uint32_t)(uintptr_t)ctx;
    if (sim_node_process(world.nodes[i])->dead) {
        world.nodes[i] = sim_node_start(i, machine_of_node(i), NODE_BYTES);
    }
}

static void start_daemon(void *ctx)
{
    uint32_t i = (uint32_t)(uintptr_t)ctx;
    if (sim_daemon_process(world.daemons[i])->dead) {
        world.daemons[i] = sim_daemon_start(i, machine_of_daemon(i), world.share_bytes[i]);
    }
}

static void start_engine(void *ctx)
{
    uint32_t i = (uint32_t)(uintptr_t)ctx;
    if (sim_engine_process(world.engines[i])->dead) {
        world.engines[i] = sim_engine_start(i, machine_of_daemon(i), world.nranks[i], "default");
    }
}

static void mend_network(void *ctx)
{
    (void)ctx;
    memset(sim.cut, 0, sizeof sim.cut);
    sim.slow_ns = 0;
}

static void mend_etcd(void *ctx)
{
    (void)ctx;
    sim_etcd_away(false);
}

static void ask(uint32_t i, struct kvp_ask what)
{
    sim_daemon_ask(world.daemons[i], &what, NULL);
}

static void set_tags(struct kvp_ask *what, const char *tag)
{
    what->tags_given = true;
    what->ntags = 1;
    (void)snprintf(what->tags[0], sizeof what->tags[0], "%s", tag);
}

static void ask_update(uint32_t i, uint64_t weights, bool named)
{
    char body[64];
    struct kvp_ask what = {.operation = KVP_OP_UPDATE};
    (void)snprintf(what.method, sizeof what.method, "update_weights");
    (void)snprintf(body, sizeof body, "{\"w\":%llu}", (unsigned long long)weights);
    if (named) {
        (void)snprintf(what.weight_version, sizeof what.weight_version, "v%llu",
                       (unsigned long long)weights);
    }
    what.body = body;
    what.body_len = strlen(body);
    ask(i, what);
}

static void ask_relayed(uint32_t i, enum kvp_operation operation, const char *method)
{
    struct kvp_ask what = {.operation = operation};
    (void)snprintf(what.method, sizeof what.method, "%s", method);
    ask(i, what);
}

static void ask_wake(uint32_t i, const char *tag)
{
    struct kvp_ask what = {.operation = KVP_OP_WAKE};
    if (tag != NULL) {
        set_tags(&what, tag);
    }
    ask(i, what);
}

static void ask_sleep(uint32_t i, uint32_t level, uint32_t detail)
{
    ask(i, (struct kvp_ask){.operation = KVP_OP_SLEEP,
                            .level = level,
                            .mode = (enum kvp_pause_kind)(detail % 3),
                            .reset_external = detail % 5 == 0 ? KVP_NO : KVP_UNSET});
}

static void do_step(const struct step *step)
{
    uint32_t i = step->who % DAEMONS, n = step->who % NODES;
    void *daemon = (void *)(uintptr_t)i, *node = (void *)(uintptr_t)n;
    uint64_t for_ns = step->for_ms * KVB_NS_PER_MS;
    if (verbose) {
        (void)printf("%8llu ms: %s (%u, %llu ms)\n",
                     (unsigned long long)(sim.now_ns / KVB_NS_PER_MS), verb_texts[step->verb],
                     step->who, (unsigned long long)step->for_ms);
    }
    switch (step->verb) {
    case VERB_SLEEP0:
    case VERB_SLEEP1:
    case VERB_SLEEP2:
        ask_sleep(i,
                  step->verb == VERB_SLEEP0   ? 0
                  : step->verb == VERB_SLEEP1 ? 1
                                              : 2,
                  step->detail);
        return;
    case VERB_WAKE:
        ask_wake(i, NULL);
        return;
    case VERB_WAKE_WEIGHTS:
        ask_wake(i, "weights");
        return;
    case VERB_PAUSE:
        ask(i, (struct kvp_ask){.operation = KVP_OP_PAUSE,
                                .mode = (enum kvp_pause_kind)(step->detail % 4),
                                .clear_cache = step->detail % 2 == 0});
        return;
    case VERB_RESUME:
        ask(i, (struct kvp_ask){.operation = KVP_OP_RESUME});
        return;
    case VERB_RELEASE_KV:
        ask(i, (struct kvp_ask){.operation = KVP_OP_RELEASE_KV});
        return;
    case VERB_RESET:
        ask(i, (struct kvp_ask){.operation = KVP_OP_RESET,
                                .reset_external = KVP_YES,
                                .reset_running_requests = step->detail % 2 == 0});
        return;
    case VERB_TENANT_RESET:
        ask(i, (struct kvp_ask){.operation = KVP_OP_TENANT_RESET});
        return;
    case VERB_START:
        ask_relayed(i, KVP_OP_START_UPDATE, "start_weight_update");
        return;
    case VERB_UPDATE:
        ask_update(i, ++world.weights, step->detail % 3 != 0);
        return;
    case VERB_FINISH:
        ask_relayed(i, KVP_OP_FINISH_UPDATE, "finish_weight_update");
        return;
    case VERB_UPDATE_ALL:
        world.weights++;
        for (uint32_t d = 0; d < DAEMONS; d++) {
            ask_update(d, world.weights, step->detail % 2 == 0);
        }
        return;
    case VERB_CYCLE:
        ask_sleep(i, 2, step->detail);
        ask_wake(i, "weights");
        ask_update(i, ++world.weights, true);
        ask_wake(i, NULL);
        return;
    case VERB_KILL_ENGINE:
        if (!sim_engine_process(world.engines[i])->dead) {
            sim_engine_kill(world.engines[i]);
            sim_after(for_ns, start_engine, daemon);
        }
        return;
    case VERB_KILL_DAEMON:
        if (!sim_daemon_process(world.daemons[i])->dead) {
            sim_daemon_kill(world.daemons[i], false);
            sim_after(for_ns, start_daemon, daemon);
        }
        return;
    case VERB_KILL_NODE:
    case VERB_OFF_NODE:
        if (!sim_node_process(world.nodes[n])->dead) {
            sim_process_kill(sim_node_process(world.nodes[n]), step->verb == VERB_OFF_NODE);
            sim_after(for_ns, start_node, node);
        }
        return;
    case VERB_FREEZE: {
        struct sim_process *processes[] = {sim_node_process(world.nodes[n]),
                                           sim_daemon_process(world.daemons[i]),
                                           sim_engine_process(world.engines[i])};
        sim_process_freeze(processes[step->detail % 3], for_ns);
        return;
    }
    case VERB_CUT:
        sim.cut[step->who % (1 + NODES + DAEMONS)][step->detail % (1 + NODES + DAEMONS)] = true;
        sim_after(for_ns, mend_network, NULL);
        return;
    case VERB_ISOLATE:
        for (uint32_t m = 0; m < SIM_MACHINES_MAX; m++) {
            uint32_t alone = 1 + step->who % (NODES + DAEMONS);
            sim.cut[alone][m] = m != alone;
        }
        sim_after(for_ns, mend_network, NULL);
        return;
    case VERB_SLOW:
        sim.slow_ns = (1 + step->detail % 200) * KVB_NS_PER_MS;
        sim_after(for_ns, mend_network, NULL);
        return;
    case VERB_ETCD_AWAY:
        sim_etcd_away(true);
        sim_after(for_ns, mend_etcd, NULL);
        return;
    case VERB_ETCD_COMPACT:
        sim_etcd_compact();
        return;
    case VERB_ETCD_DROP:
        sim_etcd_drop_connections();
        return;
    case VERB_DRAIN: /* and leaves, and comes back */
        if (!sim_node_process(world.nodes[n])->dead) {
            sim_node_drain(world.nodes[n]);
        }
        return;
    case VERB_MISBEHAVE:
        sim_engine_misbehave(world.engines[i], step->detail % 150);
        return;
    case VERB_COUNT:
        break;
    }
    KVB_UNREACHABLE("a verb");
}

/* ---- a seed ---- */

static void tell_failed(const char *why);

static void draw_plan(uint64_t seed, uint32_t nsteps)
{
    sim_world_init(seed ^ 0x5eed);
    plan.nsteps = nsteps;
    for (uint32_t i = 0; i < nsteps; i++) {
        plan.steps[i] = (struct step){
            .verb = (enum verb)sim_below(VERB_COUNT),
            .who = (uint32_t)sim_below(1000),
            .detail = (uint32_t)sim_below(1000),
            .after_ms = sim_between(1, STEP_MS_MAX),
            .for_ms = sim_chance(300) ? sim_between(50, 800) : sim_between(500, 14000),
        };
    }
}

static bool all_serve(void)
{
    for (uint32_t i = 0; i < DAEMONS; i++) {
        struct kvp_view view;
        if (!sim_engine_serves(world.engines[i]) ||
            !kvp_fleet_view(sim_daemon_fleet(world.daemons[i]), NULL, &view) || !view.ready ||
            !view.open || view.weights_name[0] == '\0') {
            return false;
        }
    }
    return true;
}

static void check_all(void)
{
    for (uint32_t i = 0; i < DAEMONS; i++) {
        sim_engine_check(world.engines[i]);
        const char *broken = sim_daemon_process(world.daemons[i])->dead
                                 ? NULL
                                 : sim_daemon_validate(world.daemons[i]);
        if (broken != NULL) {
            sim_fail("the share of daemon-%u: %s", i, broken);
        }
    }
    for (uint32_t i = 0; i < NODES; i++) {
        const char *broken =
            sim_node_process(world.nodes[i])->dead ? NULL : sim_node_validate(world.nodes[i]);
        if (broken != NULL) {
            sim_fail("store-%u: %s", i, broken);
        }
    }
    (void)sim_asks_check();
}

static void tell_states(void)
{
    for (uint32_t i = 0; i < DAEMONS; i++) {
        struct kvp_view view;
        if (kvp_fleet_view(sim_daemon_fleet(world.daemons[i]), NULL, &view)) {
            (void)fprintf(
                stderr,
                "engine-%u: attached %d ready %d (%s) open %d name `%s` (%s) paused %d "
                "sleeping %d operation %llu step %s coordinator %d; serves %d weights %llu\n",
                i, view.attached, view.ready, view.not_ready, view.open, view.weights_name,
                view.private_reason, view.is_paused, view.is_sleeping,
                (unsigned long long)view.operation_id, view.step, view.coordinator_reachable,
                sim_engine_serves(world.engines[i]),
                (unsigned long long)sim_engine_weights(world.engines[i]));
        }
    }
}

/* Everything is mended; then everybody must serve, share and have given back what is not theirs. */
static void recover(void)
{
    mend_network(NULL);
    mend_etcd(NULL);
    for (uint32_t i = 0; i < DAEMONS; i++) {
        sim_engine_misbehave(world.engines[i], 0);
        start_engine((void *)(uintptr_t)i);
        start_daemon((void *)(uintptr_t)i);
    }
    for (uint32_t i = 0; i < NODES; i++) { /* also those that were drained */
        if (!sim_node_process(world.nodes[i])->dead) {
            sim_process_kill(sim_node_process(world.nodes[i]), false);
        }
        start_node((void *)(uintptr_t)i);
    }
    uint64_t end_ns = sim.now_ns + CALM_MS * KVB_NS_PER_MS;
    world.weights++;
    while (!all_serve() || sim_asks_check() > 0) {
        if (sim.now_ns > end_ns) {
            tell_states();
            sim_fail("not everybody serves and shares %d s after everything was mended",
                     CALM_MS / 1000);
        }
        for (uint32_t i = 0; i < DAEMONS; i++) {
            struct kvp_view view;
            if (!kvp_fleet_view(sim_daemon_fleet(world.daemons[i]), NULL, &view) ||
                !view.attached || view.operation_id != 0) {
                continue;
            }
            if (view.is_sleeping) {
                ask_wake(i, NULL);
            } else if (sim_engine_weights(world.engines[i]) != world.weights) {
                ask_update(i, world.weights, true);
            } else if (view.weight_change_running) {
                ask_relayed(i, KVP_OP_FINISH_UPDATE, "finish_weight_update");
            } else if (view.is_paused) {
                ask(i, (struct kvp_ask){.operation = KVP_OP_RESUME});
            }
        }
        sim_run_ms(500);
    }
}

/* A trainer's step as it should be, of every engine: each operation succeeds. */
static void calm_cycle(void)
{
    static const struct kvp_ask asks[] = {{.operation = KVP_OP_SLEEP, .level = 1},
                                          {.operation = KVP_OP_WAKE},
                                          {.operation = KVP_OP_TENANT_RESET}};
    for (uint32_t k = 0; k < sizeof asks / sizeof asks[0]; k++) {
        kvb_status_t statuses[DAEMONS];
        for (uint32_t i = 0; i < DAEMONS; i++) {
            sim_daemon_ask(world.daemons[i], &asks[k], &statuses[i]);
        }
        for (uint32_t waits = 0; waits < 150 && sim_asks_check() > 0; waits++) {
            sim_run_ms(100);
        }
        for (uint32_t i = 0; i < DAEMONS; i++) {
            struct kvp_view view;
            bool found = kvp_fleet_view(sim_daemon_fleet(world.daemons[i]), NULL, &view);
            if (statuses[i] != KVB_OK) {
                tell_states();
                sim_fail("in calm, %s of engine-%u: %s", kvp_operation_label(asks[k].operation), i,
                         kvb_status_text(statuses[i]));
            }
            if (k == 0 && (!found || view.registered_regions != 0)) {
                sim_fail("P3: engine-%u sleeps, and %u regions are registered", i,
                         view.registered_regions);
            }
        }
    }
}

static uint32_t descriptors(void)
{
    uint32_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir != NULL && readdir(dir) != NULL) {
        n++;
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return n;
}

static void await_hits(void)
{
    uint64_t hits = sim_counts.got;
    uint64_t end_ns = sim.now_ns + SHARE_MS * KVB_NS_PER_MS;
    while (sim.now_ns < end_ns && sim_counts.got < hits + 50) {
        sim_run_ms(200);
    }
    if (sim_counts.got < hits + 50) {
        tell_states();
        sim_fail("only %llu blocks got in %d s of calm",
                 (unsigned long long)(sim_counts.got - hits), SHARE_MS / 1000);
    }
}

static void check_calm(void)
{
    sim_run_ms(
        LEASES_MS); /* who was killed is a member until its lease ends, and resets wait for it */
    await_hits();
    calm_cycle();
    uint32_t before = descriptors();
    await_hits();
    calm_cycle();
    if (descriptors() != before) {
        sim_fail("%u descriptors before a sleep, and %u after the wake", before, descriptors());
    }
    check_all();
}

static void run_seed(uint64_t seed)
{
    sim_world_init(seed);
    sim.failed = tell_failed;
    sim_etcd_init();
    world.weights = 1;
    for (uint32_t i = 0; i < NODES; i++) {
        world.nodes[i] = sim_node_start(i, machine_of_node(i), NODE_BYTES);
    }
    for (uint32_t i = 0; i < DAEMONS; i++) {
        world.nranks[i] = 1 + (uint32_t)sim_below(2);
        world.share_bytes[i] = i == 0 && sim_chance(500) ? NODE_BYTES : 0;
        world.nranks[i] = world.nranks[0]; /* alike, or they would not share */
        world.daemons[i] = sim_daemon_start(i, machine_of_daemon(i), world.share_bytes[i]);
        world.engines[i] = sim_engine_start(i, machine_of_daemon(i), world.nranks[i], "default");
    }
    sim_run_ms(2000);
    for (uint32_t i = 0; i < plan.nsteps; i++) {
        sim_run_ms(plan.steps[i].after_ms);
        if (!plan.steps[i].left_out) {
            do_step(&plan.steps[i]);
        }
        check_all();
    }
    recover();
    check_calm();
}

/* ---- many seeds ---- */

struct told {        /* what a seed's process tells at its end */
    const char *why; /* it failed: what it says of that; NULL: it did not, or died */
    struct sim_counts counts;
    uint64_t turns, ms;
};

static void add_counts(struct told *all, const struct told *one)
{
    uint64_t *to = (uint64_t *)&all->counts;
    const uint64_t *from = (const uint64_t *)&one->counts;
    for (size_t i = 0; i < sizeof all->counts / sizeof *to; i++) {
        to[i] += from[i];
    }
    all->turns += one->turns;
    all->ms += one->ms;
}

/* A seed that runs in a process of its own. */
struct run {
    pid_t child; /* 0: none */
    int fd;      /* what it tells comes from here */
    uint64_t seed;
};

static int tell_fd = -1;

static void tell_failed(const char *why)
{
    const struct told told = {.why = why};
    (void)!write(tell_fd, &told, sizeof told);
}

static void start_seed(uint64_t seed, bool quiet, struct run *run)
{
    int fds[2];
    if (pipe(fds) != 0) {
        perror("simulate: pipe");
        exit(2);
    }
    (void)fflush(NULL);
    *run = (struct run){.child = fork(), .fd = fds[0], .seed = seed};
    if (run->child < 0) {
        perror("simulate: fork");
        exit(2);
    }
    if (run->child > 0) {
        (void)close(fds[1]);
        return;
    }
    (void)close(fds[0]);
    if (quiet) {
        (void)!freopen("/dev/null", "w", stderr);
    }
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    tell_fd = fds[1];
    run_seed(seed);
    struct told told = {.counts = sim_counts, .turns = sim.turns, .ms = sim.now_ns / KVB_NS_PER_MS};
    (void)!write(fds[1], &told, sizeof told);
    (void)fflush(NULL);
    _exit(0);
}

/* status: waitpid's. NULL: it held; else what was wrong, the same text for the same fault. */
static const char *end_seed(struct run *run, int status, bool quiet, struct told *all)
{
    struct told told = {0};
    bool whole = read(run->fd, &told, sizeof told) == (ssize_t)sizeof told;
    (void)close(run->fd);
    run->child = 0;
    if (WIFSIGNALED(status) && !quiet) {
        (void)fprintf(stderr, "seed %llu: %s\n", (unsigned long long)run->seed,
                      strsignal(WTERMSIG(status)));
    }
    add_counts(all, &told);
    return told.why != NULL                                         ? told.why
           : whole && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? NULL
                                                                    : "it died";
}

static const char *try_seed(uint64_t seed, bool quiet)
{
    struct run run;
    struct told ignored = {0};
    int status = -1;
    start_seed(seed, quiet, &run);
    (void)waitpid(run.child, &status, 0);
    return end_seed(&run, status, quiet, &ignored);
}

/* Leaves out as many steps as it can: halves, quarters, …, single ones. */
static void shrink(uint64_t seed, const char *why)
{
    for (uint32_t size = plan.nsteps / 2; size > 0; size /= 2) {
        for (uint32_t at = 0; at < plan.nsteps; at += size) {
            struct step before[STEPS_MAX];
            bool any = false;
            memcpy(before, plan.steps, sizeof before);
            for (uint32_t i = at; i < at + size && i < plan.nsteps; i++) {
                any = any || !plan.steps[i].left_out;
                plan.steps[i].left_out = true;
            }
            if (any && try_seed(seed, true) != why) {
                memcpy(plan.steps, before, sizeof before);
            }
        }
    }
    (void)fprintf(stderr, "seed %llu, the steps that it takes:\n", (unsigned long long)seed);
    for (uint32_t i = 0; i < plan.nsteps; i++) {
        const struct step *step = &plan.steps[i];
        if (!step->left_out) {
            (void)fprintf(stderr, "  %3u. %s (who %u, detail %u, for %llu ms)\n", i,
                          verb_texts[step->verb], step->who, step->detail,
                          (unsigned long long)step->for_ms);
        }
    }
    (void)try_seed(seed, false);
}

/* The first seed that fails; 0: they all hold. */
static uint64_t run_seeds(uint64_t first, uint64_t n, uint32_t nsteps, uint32_t jobs,
                          struct told *all, const char **why_p)
{
    struct run runs[JOBS_MAX] = {{0}};
    uint64_t failed = 0;
    uint32_t running = 0;
    for (uint64_t next = first; running > 0 || (failed == 0 && next < first + n);) {
        if (failed == 0 && next < first + n && running < jobs) {
            struct run *run = runs;
            while (run->child != 0) {
                run++;
            }
            draw_plan(next, nsteps);
            start_seed(next++, false, run);
            running++;
            continue;
        }
        int status;
        pid_t child = waitpid(-1, &status, 0);
        for (uint32_t i = 0; i < jobs; i++) {
            if (child > 0 && runs[i].child == child) {
                uint64_t seed = runs[i].seed;
                running--;
                const char *why = end_seed(&runs[i], status, false, all);
                if (why != NULL && (failed == 0 || seed < failed)) {
                    failed = seed;
                    *why_p = why;
                }
            }
        }
    }
    return failed;
}

static void usage(FILE *out)
{
    (void)fprintf(
        out,
        "usage: simulate [--seeds N] [--seed S] [--steps N] [--jobs N] [--no-shrink]\n"
        "                [--verbose] [--fault NAME]\n"
        "\n"
        "A cluster of %d store nodes, %d daemons with an engine each and etcd, in one thread\n"
        "and on one simulated clock, while a trainer works and things break. A seed is a\n"
        "whole run, and the same run each time.\n"
        "\n"
        "  --seeds N     so many, from --seed on (100)\n"
        "  --seed S      the first; alone: that one only\n"
        "  --steps N     things that happen in each, at most %d (%d)\n"
        "  --jobs N      seeds at a time (one a core)\n"
        "  --no-shrink   a seed that fails is not tried again with fewer steps\n"
        "  --verbose     what happens, and the log of every process\n"
        "  --fault NAME  one protection taken out: see kvplane rehearse --fault list\n",
        NODES, DAEMONS, STEPS_MAX, STEPS);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"seeds", required_argument, NULL, 'n'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"steps", required_argument, NULL, 't'},
                                            {"jobs", required_argument, NULL, 'j'},
                                            {"fault", required_argument, NULL, 'f'},
                                            {"no-shrink", no_argument, NULL, 'k'},
                                            {"verbose", no_argument, NULL, 'v'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    uint64_t nseeds = 0, first = 0;
    uint32_t nsteps = STEPS, jobs = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    bool shrinks = true;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'n':
            nseeds = strtoull(optarg, NULL, 0);
            break;
        case 's':
            first = strtoull(optarg, NULL, 0);
            break;
        case 't':
            nsteps = (uint32_t)strtoul(optarg, NULL, 0);
            break;
        case 'j':
            jobs = (uint32_t)strtoul(optarg, NULL, 0);
            break;
        case 'f':
#ifdef KVB_FAULTS
            if (kvb_fault_choose(optarg) == KVB_OK) {
                break;
            }
#endif
            (void)fprintf(stderr, "simulate: no such fault in this build: %s\n", optarg);
            return 2;
        case 'k':
            shrinks = false;
            break;
        case 'v':
            verbose = true;
            break;
        case 'h':
            usage(stdout);
            return 0;
        default:
            usage(stderr);
            return 2;
        }
    }
    nseeds = nseeds == 0 ? (first == 0 ? 100 : 1) : nseeds;
    first = first == 0 ? 1 : first;
    jobs = jobs == 0 ? 1 : jobs > JOBS_MAX ? JOBS_MAX : jobs;
    if (nsteps == 0 || nsteps > STEPS_MAX) {
        (void)fprintf(stderr, "simulate: --steps: 1 to %d\n", STEPS_MAX);
        return 2;
    }
    kvb_log_setup(verbose ? KVB_LOG_DEBUG : KVB_LOG_ERROR, KVB_LOG_LOGFMT, verbose ? 2 : -1);
    struct told all = {0};
    struct timespec begin, end;
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    const char *why = NULL;
    uint64_t failed = run_seeds(first, nseeds, nsteps, jobs, &all, &why);
    if (failed != 0) {
        if (shrinks) {
            draw_plan(failed, nsteps);
            shrink(failed, why);
        }
        (void)printf("simulate: failed seed=%llu; again: ./dev simulate --seed %llu --steps %u\n",
                     (unsigned long long)failed, (unsigned long long)failed, nsteps);
        return 1;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    (void)printf("simulate: ok seeds=%llu simulated_s=%llu turns=%llu operations=%llu failed=%llu "
                 "requests=%llu got=%llu stored=%llu fenced=%llu missed=%llu took_s=%lld\n",
                 (unsigned long long)nseeds, (unsigned long long)(all.ms / 1000),
                 (unsigned long long)all.turns, (unsigned long long)all.counts.operations,
                 (unsigned long long)all.counts.operations_failed,
                 (unsigned long long)all.counts.requests, (unsigned long long)all.counts.got,
                 (unsigned long long)all.counts.stored, (unsigned long long)all.counts.fenced,
                 (unsigned long long)all.counts.missed, (long long)(end.tv_sec - begin.tv_sec));
    return 0;
}
