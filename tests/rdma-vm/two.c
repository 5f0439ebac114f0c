/* SPDX-License-Identifier: Apache-2.0 */
#include "two.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define BOUND_MS 60000 /* of anything that has no bound of its own: the machine is slow */

/* Slow as the machine is, and as busy as the one below it may be. */
static const struct kvt_peer_common common = {
    .secret = "a secret", .secret_len = 8, .hello_ms = 10000, .silence_ms = 8000};

static bool is_true(void *arg)
{
    const bool *flag = arg;
    return *flag;
}

bool two_await(struct two *two, const bool *flag, uint64_t ms)
{
    bool seen = *flag;
    return real_run_until(&two->loop, is_true, (void *)(uintptr_t)flag, ms) || seen;
}

static struct kvt_rdma_device *open_device(struct real_loop *loop)
{
    struct kvt_rdma_config config = {0};
    struct kvt_rdma_device *device;
    char reason[KVT_RDMA_REASON_MAX] = "";
    if (kvt_rdma_device_open(&config, &loop->sim.sched, &loop->io, &device, reason) != KVB_OK) {
        rig_failed(__FILE__, __LINE__, __func__, reason);
    }
    return device;
}

static uint8_t *map(int fd, size_t len)
{
    uint8_t *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(at != MAP_FAILED);
    return at;
}

/* ---- the node ---- */

static void on_accepted(void *ctx, struct kvt_rdma_conn *conn)
{
    if (kvt_rdma_server_adopt(ctx, conn) != KVB_OK) {
        (void)fprintf(stderr, "node: a connection was not taken\n");
    }
}

/* The program of the node. */
static _Noreturn void serve(int fd, size_t len, int tell)
{
    struct real_loop loop;
    struct rig_node node = {.base = map(fd, len), .len = len};
    struct kvt_rdma_share *share;
    struct kvt_rdma_server *server;
    struct kvt_rdma_listener *listener;
    char reason[KVT_RDMA_REASON_MAX] = "", address[64];
    real_init(&loop, 1);
    kvb_list_init(&node.waiting);
    struct kvt_rdma_device *device = open_device(&loop);
    (void)snprintf(address, sizeof address, "%s:0", getenv("KVPLANE_RDMA_ADDRESS"));
    const struct kvt_rdma_server_config server_config = {.common = common,
                                                         .device = device,
                                                         .sched = &loop.sim.sched,
                                                         .io = &loop.io,
                                                         .name = "node",
                                                         .incarnation = (uint64_t)getpid(),
                                                         .ops = &rig_server_ops,
                                                         .ctx = &node};
    check(kvt_rdma_share_register(device, node.base, node.len, &share, reason) == KVB_OK);
    check(kvt_rdma_server_create(&server_config, &server) == KVB_OK);
    const struct kvt_rdma_listener_config listener_config = {.device = device,
                                                             .sched = &loop.sim.sched,
                                                             .io = &loop.io,
                                                             .address = address,
                                                             .accepted = on_accepted,
                                                             .ctx = server};
    if (kvt_rdma_listener_create(&listener_config, &listener, reason) != KVB_OK) {
        rig_failed(__FILE__, __LINE__, __func__, reason);
    }
    uint16_t port = kvt_rdma_listener_port(listener);
    check(write(tell, &port, sizeof port) == sizeof port);
    (void)close(tell);
    for (;;) {
        real_run_for(&loop, BOUND_MS);
    }
}

void two_main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "node") == 0) {
        serve(atoi(argv[2]), strtoull(argv[3], NULL, 10), atoi(argv[4]));
    }
}

/* A program of its own: what was opened of a device is no use across a fork. */
void two_node_start(struct two *two)
{
    int pipes[2];
    uint16_t port = 0;
    char fd[16], len[32], tell[16];
    (void)fflush(stdout);
    check(pipe2(pipes, O_CLOEXEC) == 0);
    (void)snprintf(fd, sizeof fd, "%d", two->node_fd);
    (void)snprintf(len, sizeof len, "%zu", two->node_len);
    (void)snprintf(tell, sizeof tell, "%d", pipes[1]);
    two->node = fork();
    check(two->node >= 0);
    if (two->node == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)fcntl(two->node_fd, F_SETFD, 0);
        (void)fcntl(pipes[1], F_SETFD, 0);
        (void)execl("/proc/self/exe", "node", "node", fd, len, tell, NULL);
        _exit(127);
    }
    (void)close(pipes[1]);
    check(read(pipes[0], &port, sizeof port) == sizeof port);
    (void)close(pipes[0]);
    (void)snprintf(two->address, sizeof two->address, "%s:%u", getenv("KVPLANE_RDMA_ADDRESS"),
                   port);
}

void two_node_kill(struct two *two)
{
    check(kill(two->node, SIGKILL) == 0);
    check(waitpid(two->node, NULL, 0) == two->node);
    two->node = 0;
}

/* ---- this side ---- */

static void on_up(void *ctx, const struct kvt_hello *hello)
{
    struct two *two = ctx;
    (void)hello;
    two->up = true;
    two->ups++;
}

static void on_down(void *ctx, kvb_status_t why)
{
    struct two *two = ctx;
    two->up = false;
    two->downs++;
    two->why = why;
}

void two_open(struct two *two, size_t node_len)
{
    static const struct kvt_peer_ops ops = {.up = on_up, .down = on_down};
    *two = (struct two){.node_len = node_len};
    two->node_fd = memfd_create("node", MFD_CLOEXEC);
    check(two->node_fd >= 0 && ftruncate(two->node_fd, (off_t)node_len) == 0);
    two->node_memory = map(two->node_fd, node_len);
    two_node_start(two);
    real_init(&two->loop, 2);
    two->device = open_device(&two->loop);
    check(kvt_regions_create(&two->loop.sim.sched, &two->regions) == KVB_OK);
    check(kvt_rdma_memory_create(two->device, two->regions, &two->memory) == KVB_OK);
    const struct kvt_rdma_peer_config config = {.common = common,
                                                .memory = two->memory,
                                                .io = &two->loop.io,
                                                .address = two->address,
                                                .ops = &ops,
                                                .ctx = two};
    check(kvt_rdma_peer_create(two->regions, &config, &two->peer) == KVB_OK);
    check(two_await(two, &two->up, BOUND_MS));
}

void two_close(struct two *two)
{
    kvt_transport_destroy(two->peer);
    kvt_rdma_memory_destroy(two->memory);
    kvt_regions_destroy(two->regions);
    kvt_rdma_device_close(two->device);
    real_cleanup(&two->loop);
    if (two->node != 0) {
        two_node_kill(two);
    }
    check(rig_pinned() == 0);
    check(munmap(two->node_memory, two->node_len) == 0);
    check(close(two->node_fd) == 0);
}

void two_engine_map(struct two *two, size_t len)
{
    two->engine_len = len;
    two->engine_fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    check(two->engine_fd >= 0 && ftruncate(two->engine_fd, (off_t)len) == 0);
    check(fcntl(two->engine_fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    int flags = MAP_SHARED | MAP_POPULATE | (two->engine != NULL ? MAP_FIXED_NOREPLACE : 0);
    uint8_t *at = mmap(two->engine, len, PROT_READ | PROT_WRITE, flags, two->engine_fd, 0);
    check(at != MAP_FAILED && (two->engine == NULL || at == two->engine));
    two->engine = at;
}

void two_engine_unmap(struct two *two)
{
    check(munmap(two->engine, two->engine_len) == 0);
    check(close(two->engine_fd) == 0);
}

void two_register(struct two *two)
{
    const struct kvt_region_desc desc = {.owner = 1,
                                         .number = 1,
                                         .tag = "kv_cache",
                                         .len = two->engine_len,
                                         .generation = ++two->generation};
    const char *reason = "";
    int fd = fcntl(two->engine_fd, F_DUPFD_CLOEXEC, 0);
    check(fd >= 0);
    check(kvt_region_create(two->regions, &desc, fd, &two->region, &reason) == KVB_OK);
    if (kvt_region_register(two->region) != KVB_OK) {
        rig_failed(__FILE__, __LINE__, __func__, kvt_rdma_memory_reason(two->memory));
    }
}

struct ended {
    bool done;
    kvb_status_t status;
};

static void on_unregistered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    struct ended *ended = arg;
    (void)region;
    *ended = (struct ended){.done = true, .status = status};
}

void two_unregister(struct two *two)
{
    struct ended ended = {0};
    uint64_t drain_ns = kvb_deadline_in_ms(&kvb_clock_real, 1000);
    kvt_region_unregister(two->region, drain_ns, drain_ns + KVB_NS_PER_S, on_unregistered, &ended);
    check(two_await(two, &ended.done, BOUND_MS));
    check(ended.status == KVB_OK);
    check(kvt_region_pinned(two->region) == 0);
    kvt_region_destroy(two->region);
    two->region = NULL;
}

static void on_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct two_job *job = kvb_container_of(transfer, struct two_job, transfer);
    check(!job->done);
    job->done = true;
    job->status = status;
}

kvb_status_t two_start(struct two *two, struct two_job *job, uint16_t type, size_t at, size_t len)
{
    *job = (struct two_job){.slice = {two->region, at, len}, .extent = {at, len}};
    job->transfer = (struct kvt_transfer){
        .direction = type == RIG_PUT ? KVT_TO_SHARE : KVT_FROM_SHARE,
        .slices = &job->slice,
        .nslices = 1,
        .hash = true,
        .deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, BOUND_MS / 2),
        .type = type,
        .ask = {(const uint8_t *)&job->extent, sizeof job->extent},
        .answer = job->answer,
        .answer_cap = sizeof job->answer,
        .done = on_done,
    };
    return kvt_transfer_start(two->peer, &job->transfer);
}

kvb_status_t two_move(struct two *two, uint16_t type, size_t at, size_t len)
{
    struct two_job job;
    kvb_status_t status = two_start(two, &job, type, at, len);
    if (status != KVB_OK) {
        return status;
    }
    check(two_await(two, &job.done, BOUND_MS));
    return job.status;
}

bool two_works(struct two *two)
{
    static uint8_t value;
    size_t len = 64u << 10;
    uint8_t mine = ++value, its = ++value;
    memset(two->engine, mine, len);
    if (two_move(two, RIG_PUT, 0, len) != KVB_OK || two->node_memory[0] != mine ||
        memcmp(two->node_memory, two->engine, len) != 0) {
        return false;
    }
    memset(two->node_memory, its, len);
    return two_move(two, RIG_GET, 0, len) == KVB_OK && two->engine[0] == its &&
           memcmp(two->engine, two->node_memory, len) == 0;
}
