/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history [OPERATIONS]: starts the nodes and clients, kills and stops them, retires lineages and
 * removes tenants, until so many items were answered (100,000 by default), and then looks whether
 * everything came back. KVPLANE_SEED=N repeats a run, as far as processes can be repeated.
 */
#include "history.h"
#include "loop.h"

#include "base/log.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TICK_US  2000
#define STUCK_MS 120000
#define END_MS   240000

const char *const history_tenants[TENANTS] = {"a", "a/k", "A", "default"};

void history_lineage_id(const struct shared *shared, uint32_t tenant, uint64_t serial, void *id)
{
    uint64_t state = shared->seed ^ (serial << 8) ^ tenant;
    uint64_t word[2] = {splitmix_next(&state), splitmix_next(&state)};
    memcpy(id, word, sizeof word);
}

void history_fail(struct shared *shared, const char *who, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (atomic_fetch_add(&shared->failed, 1) == 0) {
        fprintf(stderr, "KVPLANE_SEED=%lu %s (pid %d): %s\n", shared->seed, who, getpid(), text);
    }
    _exit(3);
}

void history_settle_fds(void)
{
    static const struct kvp_loop_ops ops = {0};
    struct kvp_loop *loop;
    if (kvp_loop_create(&ops, NULL, &loop) == KVB_OK) {
        kvp_loop_destroy(loop);
    }
}

struct process {
    pid_t pid; /* 0: none */
    uint32_t generation;
    uint64_t stopped_until_ns; /* 0: it runs */
};

/* What happens, and after how many operations on average: not by the clock, so that a slow build
 * sees as much of it as a fast one. */
enum { KILL_CLIENT, KILL_NODE, STOP_CLIENT, STOP_NODE, ORDER, HAPPENINGS };
static const uint32_t every[HAPPENINGS] = {[KILL_CLIENT] = 1000,
                                           [KILL_NODE] = 4500,
                                           [STOP_CLIENT] = 5000,
                                           [STOP_NODE] = 7500,
                                           [ORDER] = 200};

struct director {
    struct shared *shared;
    uint64_t random;
    struct process nodes[NODES], clients[CLIENTS];
    int reserved[NODES];        /* sockets that keep the nodes' ports theirs */
    uint32_t retiring[TENANTS]; /* orders + 1 that no node may have missed; 0: none */
    uint64_t retiring_serial[TENANTS];
    uint64_t next[HAPPENINGS]; /* operations, at which it happens again */
    uint64_t client_kills, node_kills, stops, retired, removals;
};

static void die(struct director *d, const char *what)
{
    history_fail(d->shared, "director", "%s", what);
}

/* ---- processes ---- */

static void start(struct director *d, struct process *process, uint32_t number,
                  void (*body)(struct shared *, uint32_t, uint32_t))
{
    process->generation++;
    process->stopped_until_ns = 0;
    (void)fflush(NULL);
    process->pid = fork();
    if (process->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (uint32_t i = 0; i < NODES; i++) {
            (void)close(d->reserved[i]);
        }
        body(d->shared, number, process->generation);
    }
    if (process->pid < 0) {
        die(d, "fork");
    }
}

static void kill_hard(struct director *d, struct process *process)
{
    int status;
    (void)kill(process->pid, SIGKILL);
    if (waitpid(process->pid, &status, 0) != process->pid) {
        die(d, "waitpid");
    }
    if (!WIFSIGNALED(status)) {
        die(d, "a process had ended by itself");
    }
    process->pid = 0;
}

static void start_node(struct director *d, uint32_t i)
{
    atomic_store(&d->shared->nodes[i].obeyed, 0);
    start(d, &d->nodes[i], i, history_node);
}

static void reserve_port(struct director *d, uint32_t i)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
        die(d, "cannot reserve a port");
    }
    d->reserved[i] = fd;
    d->shared->nodes[i].port = ntohs(address.sin_port);
}

/* Nobody ends by himself. */
static void watch(struct director *d)
{
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid > 0) {
        fprintf(stderr, "pid %d ended with status %#x\n", pid, (unsigned)status);
        die(d, "a process ended by itself");
    }
    if (atomic_load(&d->shared->failed) != 0) {
        die(d, "failed");
    }
}

/* ---- what happens to them ---- */

static void kill_client(struct director *d)
{
    uint32_t i = below(&d->random, CLIENTS);
    kill_hard(d, &d->clients[i]);
    start(d, &d->clients[i], i, history_client);
    d->client_kills++;
}

static void kill_node(struct director *d)
{
    uint32_t i = below(&d->random, NODES);
    kill_hard(d, &d->nodes[i]);
    start_node(d, i);
    d->node_kills++;
}

/* For up to 1.3 s: longer than a ticket lasts, and than a peer may be silent. */
static void stop_process(struct director *d, struct process *process)
{
    if (process->stopped_until_ns == 0) {
        process->stopped_until_ns = clock_ns() + (100 + below(&d->random, 1200)) * 1000000ull;
        (void)kill(process->pid, SIGSTOP);
        d->stops++;
    }
}

static void stop_client(struct director *d)
{
    stop_process(d, &d->clients[below(&d->random, CLIENTS)]);
}

static void stop_node(struct director *d)
{
    stop_process(d, &d->nodes[below(&d->random, NODES)]);
}

static void let_go_on(struct process *process, uint32_t n, bool all)
{
    for (uint32_t i = 0; i < n; i++) {
        if (process[i].stopped_until_ns != 0 &&
            (all || clock_ns() >= process[i].stopped_until_ns)) {
            process[i].stopped_until_ns = 0;
            (void)kill(process[i].pid, SIGCONT);
        }
    }
}

static uint32_t tell(struct director *d, struct order order)
{
    uint32_t n = atomic_load(&d->shared->norders);
    d->shared->orders[n] = order;
    atomic_store(&d->shared->norders, n + 1);
    return n + 1;
}

/* A new lineage for the tenant, then away with the old one; or all of a tenant's objects. */
static void give_order(struct director *d)
{
    struct shared *shared = d->shared;
    uint32_t tenant = below(&d->random, TENANTS);
    uint64_t serial = atomic_load(&shared->serial[tenant]);
    if (atomic_load(&shared->norders) == ORDERS_MAX) {
        return;
    }
    if (below(&d->random, 10) == 0) {
        (void)tell(d, (struct order){.type = ORDER_REMOVE_TENANT, .tenant = tenant});
        d->removals++;
    } else if (serial + 1 < SERIALS_MAX && d->retiring[tenant] == 0) {
        atomic_store(&shared->serial[tenant], serial + 1);
        d->retiring_serial[tenant] = serial;
        d->retiring[tenant] =
            tell(d, (struct order){.type = ORDER_RETIRE, .tenant = tenant, .serial = serial});
        d->retired++;
    }
}

/* From here on nobody may find anything of a lineage that every node has retired. */
static void note_retired(struct director *d)
{
    for (uint32_t t = 0; t < TENANTS; t++) {
        bool everywhere = d->retiring[t] != 0;
        for (uint32_t i = 0; i < NODES; i++) {
            everywhere = everywhere && atomic_load(&d->shared->nodes[i].obeyed) >= d->retiring[t];
        }
        if (everywhere) {
            atomic_store(&d->shared->lineages[t][d->retiring_serial[t]].retired_ns, clock_ns());
            d->retiring[t] = 0;
        }
    }
}

static void happen(struct director *d, uint64_t ops)
{
    static void (*const what[HAPPENINGS])(struct director *) = {[KILL_CLIENT] = kill_client,
                                                                [KILL_NODE] = kill_node,
                                                                [STOP_CLIENT] = stop_client,
                                                                [STOP_NODE] = stop_node,
                                                                [ORDER] = give_order};
    for (uint32_t i = 0; i < HAPPENINGS; i++) {
        if (ops >= d->next[i]) {
            d->next[i] = ops + 1 + below(&d->random, 2 * every[i]);
            what[i](d);
        }
    }
    let_go_on(d->nodes, NODES, false);
    let_go_on(d->clients, CLIENTS, false);
    note_retired(d);
}

/* ---- the run ---- */

static void run(struct director *d, uint64_t operations)
{
    uint64_t last = 0, since_ns = clock_ns();
    for (uint64_t ops = 0; ops < operations; ops = atomic_load(&d->shared->ops)) {
        (void)usleep(TICK_US);
        watch(d);
        happen(d, ops);
        if (ops != last) {
            last = ops;
            since_ns = clock_ns();
        } else if (clock_ns() - since_ns > STUCK_MS * 1000000ull) {
            die(d, "nothing was answered for a long time");
        }
    }
}

static void wait_for(struct director *d, struct process *process, const char *what)
{
    uint64_t end_ns = clock_ns() + END_MS * 1000000ull;
    int status;
    pid_t pid;
    while ((pid = waitpid(process->pid, &status, WNOHANG)) == 0) {
        if (clock_ns() > end_ns) {
            die(d, what);
        }
        (void)usleep(TICK_US);
    }
    if (pid != process->pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        die(d, what);
    }
    process->pid = 0;
}

static void finish(struct director *d)
{
    let_go_on(d->nodes, NODES, true);
    let_go_on(d->clients, CLIENTS, true);
    atomic_store(&d->shared->stop, 1);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        wait_for(d, &d->clients[i], "a client did not end cleanly");
    }
    atomic_store(&d->shared->finish, 1);
    for (uint32_t i = 0; i < NODES; i++) {
        wait_for(d, &d->nodes[i], "a node did not end cleanly");
        if (atomic_load(&d->shared->nodes[i].clean) == 0) {
            die(d, "a node did not end cleanly");
        }
    }
}

static void tell_counts(const struct director *d)
{
    printf("history: ok seed=%lu ops=%llu", d->shared->seed,
           (unsigned long long)atomic_load(&d->shared->ops));
#define X(name) printf(" " #name "=%llu", (unsigned long long)atomic_load(&d->shared->name));
    COUNTS(X)
#undef X
    printf(" retired=%lu removals=%lu client_kills=%lu node_kills=%lu stops=%lu\n", d->retired,
           d->removals, d->client_kills, d->node_kills, d->stops);
}

int main(int argc, char **argv)
{
    const char *seed = getenv("KVPLANE_SEED");
    uint64_t operations = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000;
    static struct director d;
    d.shared =
        mmap(NULL, sizeof *d.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (d.shared == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    d.shared->seed = seed != NULL ? strtoull(seed, NULL, 0) : clock_ns() / 1000 % 1000000;
    d.random = d.shared->seed;
    printf("history: seed=%lu operations=%lu\n", d.shared->seed, operations);
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    (void)signal(SIGPIPE, SIG_IGN);
    for (uint32_t i = 0; i < NODES; i++) {
        reserve_port(&d, i);
    }
    for (uint32_t i = 0; i < NODES; i++) {
        start_node(&d, i);
    }
    for (uint32_t i = 0; i < CLIENTS; i++) {
        start(&d, &d.clients[i], i, history_client);
    }
    run(&d, operations);
    finish(&d);
    tell_counts(&d);
    uint64_t hits = atomic_load(&d.shared->hits), gets = atomic_load(&d.shared->gets);
    if (hits < gets / 20 || d.client_kills == 0) {
        die(&d, "too little was read to say anything");
    }
    return 0;
}
