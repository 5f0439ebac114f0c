/* SPDX-License-Identifier: Apache-2.0 */
#include "net_rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECRET    "bench"
#define KEY_BYTES 16u
#define LATE_NS   (30 * KVB_NS_PER_S) /* nothing in a bench takes longer */

static void must(kvb_status_t status, const char *what)
{
    if (status != KVB_OK) {
        rig_fail("%s: %s", what, kvb_status_text(status));
    }
}

static struct kvt_peer_common common(struct kvt_net *net)
{
    struct kvt_peer_common tcp = {.net = net, .secret_len = sizeof SECRET - 1};
    memcpy(tcp.secret, SECRET, sizeof SECRET - 1);
    return tcp;
}

/* ---- servers ---- */

static const struct kvp_loop_ops no_ops;

struct acceptor {
    struct kvb_io_watch watch;
    const struct rig_server_ops *ops;
    void *server;
};

static void on_connection(struct kvb_io_watch *watch, unsigned events)
{
    struct acceptor *acceptor = kvb_container_of(watch, struct acceptor, watch);
    (void)events;
    int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        must(acceptor->ops->adopt(acceptor->server, fd), "adopt");
    }
}

static _Noreturn void serve(int listener, int cpu, const struct rig_server_ops *ops,
                            const void *arg)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    rig_pin(cpu);
    struct kvp_loop *loop;
    struct kvt_net *net;
    must(kvp_loop_create(&no_ops, NULL, &loop), "a loop");
    must(kvt_net_kernel_create(kvp_loop_io(loop), RIG_SOCKET_BYTES, &net), "a net");
    struct acceptor acceptor = {.watch = {.fd = listener, .fn = on_connection}, .ops = ops};
    acceptor.server = ops->start(loop, net, arg);
    must(kvb_io_watch(kvp_loop_io(loop), &acceptor.watch, KVB_IO_READ), "watch");
    kvp_loop_run(loop);
    _exit(0);
}

void rig_server_start(struct rig_server *server, int cpu, const struct rig_server_ops *ops,
                      const void *arg)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, len) != 0 ||
        listen(listener, 64) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &len) != 0) {
        rig_fail("listen: %s", strerror(errno));
    }
    server->port = ntohs(address.sin_port);
    snprintf(server->address, sizeof server->address, "127.0.0.1:%u", server->port);
    server->pid = fork();
    if (server->pid == 0) {
        serve(listener, cpu, ops, arg);
    }
    close(listener);
}

void rig_server_stop(struct rig_server *server)
{
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
}

struct node {
    struct kvs_share *share;
    struct kvs_service *service;
    struct kvs_keeper keeper;
};

static void on_poke(void *ctx)
{
    kvs_keeper_woken(ctx); /* the only thread */
}

static void *node_start(struct kvp_loop *loop, struct kvt_net *net, const void *arg)
{
    const struct rig_node *config = arg;
    struct node *node = calloc(1, sizeof *node);
    if (node == NULL) {
        rig_fail("out of memory");
    }
    const struct kvs_share_config share = {.bytes = config->share_bytes};
    must(kvs_share_create(&kvb_random_real, &share, &node->share), "a share");
    kvs_keeper_start(&node->keeper, node->share, kvp_loop_sched(loop), on_poke, &node->keeper);
    const struct kvs_service_config service = {.sched = kvp_loop_sched(loop),
                                               .share = node->share,
                                               .common = common(net),
                                               .name = "bench",
                                               .incarnation = 1};
    must(kvs_service_create(&service, &node->service), "a service");
    return node;
}

static kvb_status_t node_adopt(void *server, int fd)
{
    struct node *node = server;
    return kvs_service_adopt(node->service, fd);
}

const struct rig_server_ops rig_node_ops = {.start = node_start, .adopt = node_adopt};

/* ---- this process ---- */

void rig_net_open(struct rig_net *net, size_t len)
{
    *net = (struct rig_net){.len = len};
    rig_pin(RIG_CLIENT_CPU);
    must(kvp_loop_create(&no_ops, NULL, &net->loop), "a loop");
    must(kvt_net_kernel_create(kvp_loop_io(net->loop), RIG_SOCKET_BYTES, &net->net), "a net");
    must(kvt_regions_create(kvp_loop_sched(net->loop), &net->regions), "regions");
    int fd = memfd_create("kvplane-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)len) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        rig_fail("memfd of %zu bytes: %s", len, strerror(errno));
    }
    net->memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (net->memory == MAP_FAILED) {
        rig_fail("mmap: %s", strerror(errno));
    }
    memset(net->memory, 0x5a, len);
    const struct kvt_region_desc desc = {.number = 1, .tag = "kv_cache", .len = len};
    const char *reason = "";
    must(kvt_region_create(net->regions, &desc, fd, &net->region, &reason), "a region");
    must(kvt_region_register(net->region), "registering");
}

static void on_unregistered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    struct rig_net *net = arg;
    must(status, "unregistering");
    kvt_region_destroy(region);
    net->region = NULL;
    kvp_loop_stop(net->loop);
}

void rig_net_close(struct rig_net *net)
{
    uint64_t now_ns = rig_now_ns();
    kvt_region_unregister(net->region, now_ns + KVB_NS_PER_S, now_ns + 2 * KVB_NS_PER_S,
                          on_unregistered, net);
    kvp_loop_run(net->loop);
    kvt_regions_destroy(net->regions);
    kvt_net_kernel_destroy(net->net);
    kvp_loop_destroy(net->loop);
    munmap(net->memory, net->len);
}

struct idle {
    struct kvb_timer timer;
    struct rig_net *net;
};

static void on_idle(struct kvb_timer *timer)
{
    kvp_loop_stop(kvb_container_of(timer, struct idle, timer)->net->loop);
}

void rig_net_idle(struct rig_net *net, uint64_t ns)
{
    struct idle idle = {.net = net};
    kvb_timer_init(&idle.timer, on_idle);
    kvb_sched_timer_set(kvp_loop_sched(net->loop), &idle.timer, rig_now_ns() + ns);
    kvp_loop_run(net->loop);
}

struct output {
    struct kvb_io_watch watch;
    struct rig_net *net;
    char *out;
    size_t cap, len;
};

static void on_output(struct kvb_io_watch *watch, unsigned events)
{
    struct output *output = kvb_container_of(watch, struct output, watch);
    (void)events;
    ssize_t n = read(watch->fd, output->out + output->len, output->cap - 1 - output->len);
    if (n <= 0) {
        kvb_io_unwatch(kvp_loop_io(output->net->loop), watch);
        kvp_loop_stop(output->net->loop);
        return;
    }
    output->len += (size_t)n;
}

void rig_net_spawn(struct rig_net *net, const char *const *argv, char *out, size_t cap)
{
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC) != 0) {
        rig_fail("pipe: %s", strerror(errno));
    }
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rig_pin(RIG_CLIENT_CPU);
        dup2(pipes[1], 1);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(pipes[1]);
    struct output output = {
        .watch = {.fd = pipes[0], .fn = on_output}, .net = net, .out = out, .cap = cap};
    must(kvb_io_watch(kvp_loop_io(net->loop), &output.watch, KVB_IO_READ), "watch");
    kvp_loop_run(net->loop);
    close(pipes[0]);
    out[output.len] = '\0';
    int status;
    if (waitpid(pid, &status, 0) != pid || status != 0) {
        rig_fail("%s ended with status %d: %s", argv[0], status, out);
    }
}

/* ---- a client of store nodes ---- */

static void await_up(struct rig_client *client, struct kvs_node *node)
{
    uint64_t deadline_ns = rig_now_ns() + LATE_NS;
    struct kvs_remote_status status;
    for (;;) {
        kvs_remote_status(node, &status);
        if (status.up) {
            return;
        }
        if (rig_now_ns() > deadline_ns) {
            rig_fail("a node does not come up");
        }
        rig_net_idle(client->net, KVB_NS_PER_MS);
    }
}

void rig_client_open(struct rig_client *client, struct rig_net *net,
                     const struct rig_server *servers, uint32_t n)
{
    *client = (struct rig_client){
        .net = net, .space = {.tenant = "default", .layout = "bench"}, .lineage = {{1, 1}}};
    struct kvb_sched *sched = kvp_loop_sched(net->loop);
    must(kvs_client_create(sched, &client->client), "a client");
    for (uint32_t i = 0; i < n; i++) {
        const struct kvt_tcp_peer_config peer = {
            .common = common(net->net), .address = servers[i].address, .lanes = 4};
        const struct kvs_remote_config config = {
            .sched = sched, .regions = net->regions, .ways = {{&kvs_by_tcp, &peer}}};
        must(kvs_remote_create(&config, &client->nodes[i]), "a remote node");
        client->nnodes++;
        char name[32];
        snprintf(name, sizeof name, "node%u", i);
        must(kvs_client_add_node(client->client, name, client->nodes[i], 1), "add_node");
        await_up(client, client->nodes[i]);
    }
}

static void on_removed(void *ctx, struct kvs_node *node)
{
    struct rig_client *client = ctx;
    (void)node;
    kvp_loop_stop(client->net->loop);
}

void rig_client_close(struct rig_client *client)
{
    for (uint32_t i = 0; i < client->nnodes; i++) {
        char name[32];
        snprintf(name, sizeof name, "node%u", i);
        must(kvs_client_remove_node(client->client, name, on_removed, client), "remove_node");
        kvp_loop_run(client->net->loop);
        kvs_remote_destroy(client->nodes[i]);
    }
    kvs_client_destroy(client->client);
}

struct call {
    struct kvs_batch batch;
    struct rig_running *running;
    struct kvb_list link;
    uint64_t due_ns;
    uint64_t (*keys)[KEY_BYTES / 8];
    struct kvt_slice *slices;
    struct kvs_item *items;
};

struct rig_running {
    struct rig_client *client;
    struct rig_run *run;
    struct kvb_event event; /* open loop: looks at the clock each turn */
    struct kvb_list idle;
    uint64_t start_ns;
    uint32_t batches, begun, done;
    uint64_t at; /* where the walk through the region is */
};

static void on_batch(struct kvs_batch *batch);

static struct call *call_create(struct rig_running *running)
{
    const struct rig_run *run = running->run;
    struct call *call = calloc(1, sizeof *call);
    call->keys = calloc(run->batch, sizeof *call->keys);
    call->slices = calloc(run->batch, sizeof *call->slices);
    call->items = calloc(run->batch, sizeof *call->items);
    if (call->keys == NULL || call->slices == NULL || call->items == NULL) {
        rig_fail("out of memory");
    }
    call->running = running;
    kvb_list_init(&call->link);
    return call;
}

static void call_destroy(struct call *call)
{
    free(call->keys);
    free(call->slices);
    free(call->items);
    free(call);
}

/* False: the client is full, a completion makes room. */
static bool begin(struct rig_running *running, uint64_t due_ns)
{
    const struct rig_run *run = running->run;
    const struct rig_net *net = running->client->net;
    struct call *call = kvb_list_empty(&running->idle)
                            ? call_create(running)
                            : kvb_container_of(kvb_list_pop(&running->idle), struct call, link);
    for (uint32_t i = 0; i < run->batch; i++) {
        uint64_t key = run->first + (uint64_t)running->begun * run->batch + i;
        call->keys[i][0] = key;
        call->keys[i][1] = key * 0x9e3779b97f4a7c15u;
        if (running->at + run->len > net->len) {
            running->at = 0;
        }
        call->slices[i] =
            (struct kvt_slice){.region = net->region, .offset = running->at, .len = run->len};
        running->at += run->len;
        call->items[i] = (struct kvs_item){.key = {(const uint8_t *)call->keys[i], KEY_BYTES}};
        if (run->op == KVS_PUT || run->op == KVS_GET) {
            call->items[i].slices = &call->slices[i];
            call->items[i].nslices = 1;
        }
    }
    call->due_ns = due_ns;
    call->batch = (struct kvs_batch){.op = run->op,
                                     .space = &running->client->space,
                                     .lineage = running->client->lineage,
                                     .deadline_ns = rig_now_ns() + LATE_NS,
                                     .items = call->items,
                                     .nitems = run->batch,
                                     .done = on_batch};
    kvb_status_t status = kvs_client_submit(running->client->client, &call->batch);
    if (status == KVB_ERR_AGAIN) {
        kvb_list_push_back(&running->idle, &call->link);
        return false;
    }
    must(status, "submit");
    running->begun++;
    return true;
}

static void on_batch(struct kvs_batch *batch)
{
    struct call *call = kvb_container_of(batch, struct call, batch);
    struct rig_running *running = call->running;
    struct rig_run *run = running->run;
    uint64_t now_ns = run->latency_ns != NULL || run->per_s == 0 ? rig_now_ns() : 0;
    if (run->latency_ns != NULL) {
        run->latency_ns[running->done] = (double)(now_ns - call->due_ns);
    }
    for (uint32_t i = 0; i < batch->nitems; i++) {
        run->failed += batch->items[i].status != KVB_OK;
    }
    kvb_list_push_back(&running->idle, &call->link);
    running->done++;
    if (running->done == running->batches) {
        kvp_loop_stop(running->client->net->loop);
    } else if (run->per_s == 0 && running->begun < running->batches) {
        (void)begin(running, now_ns);
    }
}

static void on_turn(struct kvb_event *event)
{
    struct rig_running *running = kvb_container_of(event, struct rig_running, event);
    double elapsed_s = (double)(rig_now_ns() - running->start_ns) / 1e9;
    bool room = true;
    while (room && running->begun < running->batches &&
           (double)running->begun <= elapsed_s * running->run->per_s) {
        room = begin(running, running->start_ns +
                                  (uint64_t)((double)running->begun * 1e9 / running->run->per_s));
    }
    if (running->begun < running->batches) {
        kvb_sched_post(kvp_loop_sched(running->client->net->loop), event);
    }
}

uint64_t rig_client_run(struct rig_client *client, struct rig_run *run)
{
    static uint64_t walk; /* goes on where the last run stopped */
    run->failed = 0;
    struct rig_running running = {.client = client, .run = run, .batches = run->n / run->batch};
    running.at = walk;
    kvb_list_init(&running.idle);
    kvb_event_init(&running.event, on_turn);
    running.start_ns = rig_now_ns();
    if (run->per_s > 0) {
        kvb_sched_post(kvp_loop_sched(client->net->loop), &running.event);
    } else {
        for (uint32_t i = 0; i < run->outstanding && i < running.batches; i++) {
            (void)begin(&running, running.start_ns);
        }
    }
    kvp_loop_run(client->net->loop);
    uint64_t ns = rig_now_ns() - running.start_ns;
    walk = running.at;
    while (!kvb_list_empty(&running.idle)) {
        call_destroy(kvb_container_of(kvb_list_pop(&running.idle), struct call, link));
    }
    return ns;
}
