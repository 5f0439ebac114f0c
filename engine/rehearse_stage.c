/* SPDX-License-Identifier: Apache-2.0 */
#include "rehearse.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_MS 30000
#define LEASE_MS 10000
#define ETCD_MS  3000
#define NODE_MS  5000
#define TENANT   "rehearsal"
/* Enough for what a step promises; in fault runs so small that space is used again at once. */
#define STORE_BYTES         (512u << 20)
#define STORE_BYTES_FAULT   (4u << 20)
#define STORE_BYTES_CONTROL (1u << 20) /* the least there is: nothing gets there */
/* A name that nobody holds any more goes soon, so that its space can be seen to come back. */
#define NAME_GRACE "1s"

/* ---- a process ---- */

static struct kve_process *add(struct kve_rehearsal *r, enum kve_readiness ready,
                               const char *format, ...) __attribute__((format(printf, 3, 4)));

static struct kve_process *add(struct kve_rehearsal *r, enum kve_readiness ready,
                               const char *format, ...)
{
    struct kve_process *process = &r->stage.processes[r->stage.nprocesses++];
    va_list args;

    *process = (struct kve_process){.ready = ready, .child.fd = -1};
    va_start(args, format);
    vsnprintf(process->name, sizeof process->name, format, args);
    va_end(args);
    return process;
}

static void arg(struct kve_process *process, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Without memory, argv ends here, and the process will say what it lacks. */
static void arg(struct kve_process *process, const char *format, ...)
{
    char *text = NULL;
    va_list args;

    va_start(args, format);
    if (process->nargs < KVE_ARGS_MAX && vasprintf(&text, format, args) >= 0) {
        process->argv[process->nargs++] = text;
    }
    va_end(args);
}

static void clear_args(struct kve_process *process)
{
    for (uint32_t i = 0; i < process->nargs; i++) {
        free(process->argv[i]);
        process->argv[i] = NULL;
    }
    process->nargs = 0;
}

bool kve_process_spawn(struct kve_rehearsal *r, struct kve_process *process)
{
    char log[128];
    const struct kve_child_how how = {.program = process->program,
                                      .netns = process->far ? r->stage.net.far : -1,
                                      .log = log,
                                      .sound = process->sound};

    snprintf(log, sizeof log, "%s/%s.log", r->dir, process->name);
    return kve_child_start(&process->child, process->name, process->argv, &how) == KVB_OK ||
           kve_rehearse_fail(r, "cannot start %s: %s", process->name, strerror(errno));
}

static bool await_line(struct kve_rehearsal *r, struct kve_process *process)
{
    const char *start =
        strcmp(process->argv[1], "store") == 0 ? "kvplane store ready " : "kvplane ready ";
    char text[sizeof process->url];
    kvb_status_t status = kve_child_await_text(&process->child, start, text, sizeof text,
                                               kve_rehearse_bound(r, START_MS), &kve_rehearse_stop);
    const char *space;

    if (status != KVB_OK) {
        return kve_rehearse_fail(r, "%s did not become ready: %s", process->name,
                                 kvb_status_text(status));
    }
    space = strrchr(text, ' ');
    snprintf(process->url, sizeof process->url, "%s", space == NULL ? text : space + 1);
    return true;
}

static bool await_health(struct kve_rehearsal *r, struct kve_process *process)
{
    uint64_t deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, kve_rehearse_bound(r, START_MS));

    for (;;) {
        const struct timespec pause = {.tv_nsec = 20000000};
        long http_status = 0;
        json_t *answer = NULL;
        kvb_status_t status =
            kve_rest_call(process->rest, "GET", "/health", NULL, &http_status, &answer);
        json_decref(answer);
        if (status == KVB_OK && http_status == 200) {
            return true;
        }
        if (kve_rehearse_stop != 0 || kvb_now_ns(&kvb_clock_real) > deadline_ns ||
            waitpid(process->child.pid, &process->child.exit_status, WNOHANG) != 0) {
            return kve_rehearse_fail(r, "%s did not become healthy: %s, %ld", process->name,
                                     kvb_status_text(status), http_status);
        }
        nanosleep(&pause, NULL);
    }
}

static bool await_attached(struct kve_rehearsal *r, struct kve_process *process)
{
    static const char *const attached[] = {"attached", "refused", NULL};
    json_t *event;
    kvb_status_t status = kve_child_await(
        &process->child, attached, 0, kve_rehearse_bound(r, START_MS), &kve_rehearse_stop, &event);
    const char *text;

    if (status != KVB_OK) {
        return kve_rehearse_fail(r, "%s did not attach: %s", process->name,
                                 kvb_status_text(status));
    }
    text = json_string_value(json_object_get(event, "text"));
    if (text != NULL) {
        kve_rehearse_fail(r, "%s was refused: %s", process->name, text);
    }
    json_decref(event);
    return text == NULL;
}

bool kve_process_await(struct kve_rehearsal *r, struct kve_process *process)
{
    if (process->ready == KVE_READY_ATTACHED) {
        return await_attached(r, process);
    }
    if (process->ready == KVE_READY_LINE && !await_line(r, process)) {
        return false;
    }
    if (process->rest != NULL) {
        kve_rest_close(process->rest);
    }
    process->rest = kve_rest_open(process->url, &kve_rehearse_stop);
    if (process->rest == NULL) {
        return kve_rehearse_fail(r, "out of memory");
    }
    return process->ready != KVE_READY_HEALTH || await_health(r, process);
}

bool kve_process_start(struct kve_rehearsal *r, struct kve_process *process)
{
    return kve_process_spawn(r, process) && kve_process_await(r, process);
}

void kve_process_kill(struct kve_process *process)
{
    kve_child_kill(&process->child);
    process->frozen = false;
    process->first_anon = 0;
}

void kve_process_freeze(struct kve_process *process, bool frozen)
{
    kill(process->child.pid, frozen ? SIGSTOP : SIGCONT);
    process->frozen = frozen;
}

/* ---- the parts ---- */

/* A TCP port that is free now. None twice, and none of those that the kernel gives to connections
 * (ip_local_port_range) before whoever is to listen there does. 0: none. */
static uint16_t free_port(void)
{
    enum { FIRST = 10000, PORTS = 20000 };
    static uint32_t at = UINT32_MAX;
    if (at == UINT32_MAX) {
        kvb_random_real.fill(kvb_random_real.ctx, &at, sizeof at);
        at %= PORTS;
    }
    for (uint32_t i = 0; i < PORTS; i++) {
        at = (at + 1) % PORTS;
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                      .sin_port = htons((uint16_t)(FIRST + at))};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool free = fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
        if (fd >= 0) {
            close(fd);
        }
        if (free) {
            return (uint16_t)(FIRST + at);
        }
    }
    return 0;
}

struct etcd_ports {
    uint16_t client[KVE_MEMBERS], peer[KVE_MEMBERS];
};

static void add_members(struct kve_rehearsal *r, const struct etcd_ports *ports)
{
    char cluster[256] = "";

    r->stage.nmembers = r->nmembers;
    for (size_t i = 0; i < r->nmembers; i++) {
        size_t len = strlen(cluster);
        snprintf(cluster + len, sizeof cluster - len, "%setcd-%zu=http://127.0.0.1:%u",
                 i == 0 ? "" : ",", i, ports->peer[i]);
    }
    for (size_t i = 0; i < r->nmembers; i++) {
        struct kve_process *member = add(r, KVE_READY_HEALTH, "etcd-%zu", i);
        member->program = "etcd";
        snprintf(member->url, sizeof member->url, "http://127.0.0.1:%u", ports->client[i]);
        arg(member, "etcd");
        arg(member, "--name=%s", member->name);
        arg(member, "--data-dir=%s/%s", r->dir, member->name);
        /* The far namespace reaches it too; outside of ours nobody does. */
        arg(member, "--listen-client-urls=http://%s:%u",
            r->stage.net.made ? "0.0.0.0" : "127.0.0.1", ports->client[i]);
        arg(member, "--advertise-client-urls=%s", member->url);
        arg(member, "--listen-peer-urls=http://127.0.0.1:%u", ports->peer[i]);
        arg(member, "--initial-advertise-peer-urls=http://127.0.0.1:%u", ports->peer[i]);
        arg(member, "--initial-cluster=%s", cluster);
        arg(member, "--logger=zap");
        arg(member, "--log-level=error");
        arg(member, "--log-outputs=stderr");
        r->stage.members = i == 0 ? member : r->stage.members;
    }
}

static void cluster_args(const struct kve_rehearsal *r, struct kve_process *process,
                         const struct etcd_ports *ports)
{
    const char *host = process->far ? KVE_NET_HOME_ADDRESS : "127.0.0.1";
    char urls[256] = "";

    for (size_t i = 0; i < r->nmembers; i++) {
        size_t len = strlen(urls);
        snprintf(urls + len, sizeof urls - len, "%shttp://%s:%u", i == 0 ? "" : ",", host,
                 ports->client[i]);
    }
    arg(process, "--etcd=%s", urls);
    arg(process, "--secret-file=%s/secret", r->dir);
    arg(process, "--lease=%" PRIu32 "ms", kve_rehearse_bound(r, LEASE_MS));
    arg(process, "--etcd-bound=%" PRIu32 "ms", kve_rehearse_bound(r, ETCD_MS));
    if (r->transport != NULL) {
        arg(process, "--transport=%s", r->transport);
    }
}

static bool write_secret(struct kve_rehearsal *r)
{
    char path[128];
    FILE *file;
    bool done;

    snprintf(path, sizeof path, "%s/secret", r->dir);
    file = fopen(path, "we");
    done = file != NULL && fprintf(file, "%016" PRIx64 "\n", kve_rehearse_draw(r, UINT64_MAX)) > 0;
    done = file != NULL && fclose(file) == 0 && done;
    return done || kve_rehearse_fail(r, "cannot write %s: %s", path, strerror(errno));
}

static uint64_t store_bytes(const struct kve_rehearsal *r)
{
    uint64_t bytes = r->fault == NULL ? STORE_BYTES : STORE_BYTES_FAULT;

    return r->block_bytes < KVE_BLOCK_BYTES ? bytes * r->block_bytes / KVE_BLOCK_BYTES : bytes;
}

static void add_stores(struct kve_rehearsal *r, const struct etcd_ports *ports)
{
    r->stage.nstores = r->nstores;
    for (size_t i = 0; i < r->nstores; i++) {
        struct kve_process *store = add(r, KVE_READY_LINE, "store-%zu", i);
        store->share = true;
        /* The last one, if there is a far side. */
        store->far = r->stage.net.made && i == r->nstores - 1;
        arg(store, "kvplane");
        arg(store, "store");
        arg(store, "--node-name=%s", store->name);
        arg(store, "--listen=%s:0", store->far ? KVE_NET_FAR_ADDRESS : "127.0.0.1");
        arg(store, "--cluster-listen=%s:%u", store->far ? KVE_NET_FAR_ADDRESS : "127.0.0.1",
            free_port());
        if (store->far) {
            arg(store, "--insecure"); /* its REST API: nobody but us can reach that address */
        }
        arg(store, "--store-bytes=%" PRIu64, store_bytes(r) / r->nstores);
        cluster_args(r, store, ports);
        r->stage.stores = i == 0 ? store : r->stage.stores;
    }
}

static struct kve_process *add_daemon(struct kve_rehearsal *r, const char *name)
{
    struct kve_process *daemon = add(r, KVE_READY_LINE, "%s", name);

    arg(daemon, "kvplane");
    arg(daemon, "serve");
    arg(daemon, "--listen=127.0.0.1:0");
    arg(daemon, "--engine-socket=%s/%s.sock", r->dir, name);
    return daemon;
}

void kve_side_engine_args(struct kve_rehearsal *r, struct kve_side *side, bool fingerprint)
{
    struct kve_process *engine = side->engine;

    clear_args(engine);
    arg(engine, "kvplane");
    arg(engine, "engine");
    arg(engine, "--instance=%s", side->instance);
    arg(engine, "--tenant=%s", TENANT);
    arg(engine, "--socket=%s/%s.sock", r->dir, side->daemon->name);
    arg(engine, "--weights-id=%" PRIu64, side->weights);
    arg(engine, "--weights-name=v%" PRIu64, side->weights);
    arg(engine, "--control=%d", KVE_CHILD_FD);
    if (r->tp > 1) {
        arg(engine, "--tp=%" PRIu32, side == &r->a ? r->tp : 1);
        arg(engine, "--store-tp=%" PRIu32, r->tp);
    }
    if (r->fault != NULL) {
        arg(engine, "--max-running=16"); /* many at a time: most of them are held */
    }
    if (side->tracks_lineage) {
        arg(engine, "--tracks-lineage");
    }
    if (fingerprint) {
        arg(engine, "--fingerprint");
    }
    if (r->model != NULL) {
        arg(engine, "--model");
        return;
    }
    arg(engine, "--block-bytes=%" PRIu32, r->block_bytes);
    arg(engine, "--requests=%" PRIu32, r->requests);
    arg(engine, "--seed=%" PRIu64, r->seed);
    if (r->trace_path != NULL) {
        arg(engine, "--trace=%s", r->trace_path);
    }
}

static void add_engine(struct kve_rehearsal *r, struct kve_side *side, struct kve_process *daemon)
{
    side->daemon = daemon;
    side->engine = add(r, KVE_READY_ATTACHED, "engine-%s", side->instance);
    kve_side_engine_args(r, side, r->model != NULL);
}

/* ---- the stages ---- */

static void set_machine(struct kve_rehearsal *r)
{
    struct kve_process *daemon = add_daemon(r, "daemon");

    daemon->share = true;
    arg(daemon, "--store-bytes=%" PRIu64, store_bytes(r));
    add_engine(r, &r->a, daemon);
    add_engine(r, &r->b, daemon);
    if (r->model != NULL) {
        /* A version that nobody has seen change names nothing: so that they share from the first
         * prompt on, they are started with a fingerprint. */
        kve_side_named(&r->a, r->a.weights, KVE_NAMING_FINGERPRINT);
        kve_side_named(&r->b, r->b.weights, KVE_NAMING_FINGERPRINT);
        daemon = add_daemon(r, "daemon-control");
        arg(daemon, "--store-bytes=%u", STORE_BYTES_CONTROL);
        add_engine(r, &r->control, daemon);
        daemon->sound = r->control.engine->sound = true;
    }
}

static bool set_cluster(struct kve_rehearsal *r)
{
    struct kve_side *sides[] = {&r->a, &r->b};
    struct etcd_ports ports;

    for (size_t i = 0; i < r->nmembers; i++) {
        ports.client[i] = free_port();
        ports.peer[i] = free_port();
        if (ports.client[i] == 0 || ports.peer[i] == 0) {
            return kve_rehearse_fail(r, "no free port");
        }
    }
    if (!write_secret(r)) {
        return false;
    }
    add_members(r, &ports);
    add_stores(r, &ports);
    for (size_t i = 0; i < 2; i++) {
        char name[32];
        struct kve_process *daemon;
        snprintf(name, sizeof name, "daemon-%s", sides[i]->instance);
        daemon = add_daemon(r, name);
        daemon->share = r->share_mib > 0;
        cluster_args(r, daemon, &ports);
        arg(daemon, "--store-bytes=%" PRIu32 "MiB", r->share_mib);
        arg(daemon, "--name-grace=%s", NAME_GRACE);
        arg(daemon, "--node-bound=%" PRIu32 "ms", kve_rehearse_bound(r, NODE_MS));
        if (r->share_mib > 0) {
            arg(daemon, "--node-name=%s", name);
            arg(daemon, "--cluster-listen=127.0.0.1:%u", free_port());
        }
        add_engine(r, sides[i], daemon);
    }
    return true;
}

bool kve_stage_set(struct kve_rehearsal *r)
{
    r->stage.net = (struct kve_net){.home = -1, .far = -1, .far_socket = -1};
    if (!r->cluster) {
        set_machine(r);
        return true;
    }
    if (r->transport != NULL && strcmp(r->transport, "rdma") == 0) {
        snprintf(r->skipped, sizeof r->skipped, "no RDMA device is in a network of its own");
    } else if (kve_net_create(&r->stage.net, r->skipped, sizeof r->skipped) != KVB_OK) {
        fprintf(stderr, "kvplane rehearse: %s\n", r->skipped);
    }
    return set_cluster(r);
}

bool kve_stage_start(struct kve_rehearsal *r)
{
    struct kve_stage *stage = &r->stage;
    uint32_t n = 0;

    /* The members wait for each other. */
    for (; n < stage->nmembers; n++) {
        if (!kve_process_spawn(r, &stage->members[n])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < stage->nprocesses; i++) {
        if (i < n ? !kve_process_await(r, &stage->processes[i])
                  : !kve_process_start(r, &stage->processes[i])) {
            return false;
        }
    }
    return true;
}

void kve_stage_end(struct kve_rehearsal *r)
{
    struct kve_stage *stage = &r->stage;

    for (uint32_t i = stage->nprocesses; i-- > 0;) {
        struct kve_process *process = &stage->processes[i];
        bool ran = process->child.pid > 0;
        /* etcd ends by the signal itself. */
        bool by_signal = process->ready == KVE_READY_HEALTH;
        int how;

        if (process->frozen) {
            kve_process_freeze(process, false);
        }
        kve_child_stop(&process->child);
        how = process->child.exit_status;
        if (ran && kve_rehearse_stop == 0 && !(WIFEXITED(how) && WEXITSTATUS(how) == 0) &&
            !(by_signal && WIFSIGNALED(how) && WTERMSIG(how) == SIGTERM)) {
            kve_rehearse_fail(r, "%s ended badly (wait status 0x%x)", process->name, how);
        }
        if (process->rest != NULL) {
            kve_rest_close(process->rest);
        }
        clear_args(process);
    }
    stage->nprocesses = 0;
    kve_net_destroy(&stage->net);
}
