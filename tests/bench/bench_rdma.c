/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench rdma [ROUNDS]: transport/rdma alone, a peer and a server whose node is a bare memory,
 * against perftest (ib_read_bw, ib_write_bw, ib_read_lat) on the same device, in turns. perftest
 * moves the same bytes again and again; ours walk their memories, are hashed, and each of them is
 * asked for and answered: what a get costs beyond its READ.
 *
 * On a machine without a device it says so. Over soft RoCE (tests/rdma-vm/run -- …/bench_rdma 1) it
 * runs, and its figures mean nothing.
 */
#include "loop.h"
#include "rig.h"

#include "base/xxh3.h"
#include "transport/rdma.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEMORY  (32u << 20) /* of the server and of the client */
#define RUN_NS  (500u * KVB_NS_PER_MS)
#define LATE_NS (60 * KVB_NS_PER_S)
#define SMALL   4096u
#define WAY_MAX 16u

enum { GET = 1, PUT };
static const char *const way_name[] = {[GET] = "get", [PUT] = "put"};
static const char *const perftest[] = {[GET] = "ib_read_bw", [PUT] = "ib_write_bw"};

static const struct kvp_loop_ops no_ops;
/* Both processes stand still while perftest runs. */
static const struct kvt_peer_common common = {.silence_ms = 120000};

static void must(kvb_status_t status, const char *what, const char *reason)
{
    if (status != KVB_OK) {
        rig_fail("%s: %s %s", what, kvb_status_text(status), reason);
    }
}

/* ---- the server: a question names a place in its memory ---- */

struct ask {
    uint64_t offset, len;
};
static char *memory;

static kvb_status_t on_opened(void *ctx, const struct kvt_lane *lane, void **session_p)
{
    (void)ctx;
    (void)lane;
    *session_p = NULL;
    return KVB_OK;
}

static void on_closed(void *ctx, void *session)
{
    (void)ctx;
    (void)session;
}

/* All bytes are alike: the checksum of a length is that of any place. */
static uint64_t checksum(uint64_t len)
{
    static uint64_t len_of, sum_of;
    if (len_of != len) {
        len_of = len;
        sum_of = XXH3_64bits(memory, len);
    }
    return sum_of;
}

static void on_request(void *ctx, struct kvt_request *request)
{
    (void)ctx;
    struct ask ask;
    memcpy(&ask, request->ask.data, sizeof ask);
    struct iovec iov = {memory + ask.offset, ask.len};
    if (request->type == PUT) {
        kvt_receive(request, &iov, 1);
    } else {
        kvt_answer_body(request, NULL, 0, &iov, 1, checksum(ask.len));
    }
}

static void on_received(void *ctx, struct kvt_request *request, kvb_status_t status, uint64_t sum)
{
    (void)ctx;
    (void)sum;
    kvt_answer(request, status, NULL, 0);
}

static kvb_status_t on_sent(void *ctx, struct kvt_request *request)
{
    (void)ctx;
    (void)request;
    return KVB_OK;
}

static void on_gone(void *ctx, struct kvt_request *request)
{
    (void)ctx;
    (void)request;
}

static void on_accepted(void *ctx, struct kvt_rdma_conn *conn)
{
    must(kvt_rdma_server_adopt(ctx, conn), "adopt", "");
}

static struct kvp_loop *new_loop(int cpu)
{
    struct kvp_loop *loop;
    rig_pin(cpu);
    must(kvp_loop_create(&no_ops, NULL, &loop), "a loop", "");
    return loop;
}

/* What the server tells: opened devices are no use across a fork, so it is the first to look. */
struct told {
    struct kvt_rdma_info info;
    char host[64]; /* "": none, for that reason */
    char reason[KVT_RDMA_REASON_MAX];
    uint16_t port;
};

static void tell(int fd, const struct told *told)
{
    if (write(fd, told, sizeof *told) != sizeof *told) {
        rig_fail("write: %s", strerror(errno));
    }
}

static void name_address(char *out, size_t cap, const char *host, uint16_t port)
{
    snprintf(out, cap, strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u", host, port);
}

static _Noreturn void serve(int to)
{
    char address[96];
    struct told told = {0};
    struct kvt_rdma_device *device;
    struct kvt_rdma_share *share;
    struct kvt_rdma_server *server;
    struct kvt_rdma_listener *listener;
    static const struct kvt_server_ops ops = {.opened = on_opened,
                                              .closed = on_closed,
                                              .request = on_request,
                                              .received = on_received,
                                              .sent = on_sent,
                                              .gone = on_gone};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct kvp_loop *loop = new_loop(RIG_SERVER_CPU);
    struct kvb_sched *sched = kvp_loop_sched(loop);
    struct kvb_io *io = kvp_loop_io(loop);
    const struct kvt_rdma_config config = {0};
    if (kvt_rdma_device_open(&config, sched, io, &device, told.reason) != KVB_OK) {
        tell(to, &told);
        _exit(0);
    }
    kvt_rdma_device_info(device, &told.info);
    const char *host = getenv("KVPLANE_RDMA_ADDRESS");
    snprintf(told.host, sizeof told.host, "%s", host != NULL ? host : told.info.address);
    if (told.host[0] == '\0') {
        snprintf(told.reason, sizeof told.reason,
                 "%s has no IP address that is known: say one in KVPLANE_RDMA_ADDRESS",
                 told.info.device);
        tell(to, &told);
        _exit(0);
    }
    memory = rig_memory(MEMORY);
    must(kvt_rdma_share_register(device, memory, MEMORY, &share, told.reason), "memory",
         told.reason);
    const struct kvt_rdma_server_config server_config = {.common = common,
                                                         .device = device,
                                                         .sched = sched,
                                                         .io = io,
                                                         .name = "bench",
                                                         .incarnation = 1,
                                                         .ops = &ops};
    must(kvt_rdma_server_create(&server_config, &server), "server", "");
    name_address(address, sizeof address, told.host, 0);
    const struct kvt_rdma_listener_config listener_config = {.device = device,
                                                             .sched = sched,
                                                             .io = io,
                                                             .address = address,
                                                             .accepted = on_accepted,
                                                             .ctx = server};
    must(kvt_rdma_listener_create(&listener_config, &listener, told.reason), "listener",
         told.reason);
    told.port = kvt_rdma_listener_port(listener);
    tell(to, &told);
    kvp_loop_run(loop);
    _exit(0);
}

static pid_t start_server(struct told *told)
{
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC) != 0) {
        rig_fail("pipe: %s", strerror(errno));
    }
    pid_t pid = fork();
    if (pid == 0) {
        serve(pipes[1]);
    }
    close(pipes[1]);
    if (pid < 0 || read(pipes[0], told, sizeof *told) != sizeof *told) {
        rig_fail("the server did not start");
    }
    close(pipes[0]);
    return pid;
}

/* ---- the client ---- */

struct transfer {
    struct kvt_transfer transfer;
    struct kvt_slice slice;
    struct ask ask;
    uint64_t begun_ns;
};

static struct kvp_loop *loop;
static struct kvt_region *region;
static struct kvt_transport *peer;
static struct transfer transfers[WAY_MAX];

/* the run at hand */
static int way;
static uint32_t len, outstanding;
static uint64_t walk, moved, end_ns;
static double latency_ns[1u << 16];
static size_t n_latency;

static void on_done(struct kvt_transfer *transfer, kvb_status_t status);

static void begin(struct transfer *t)
{
    walk = walk + len > MEMORY ? 0 : walk;
    t->begun_ns = rig_now_ns();
    t->ask = (struct ask){.offset = walk, .len = len};
    t->slice = (struct kvt_slice){.region = region, .offset = walk, .len = len};
    t->transfer = (struct kvt_transfer){.direction = way == PUT ? KVT_TO_SHARE : KVT_FROM_SHARE,
                                        .slices = &t->slice,
                                        .nslices = 1,
                                        .hash = true,
                                        .deadline_ns = t->begun_ns + LATE_NS,
                                        .done = on_done,
                                        .type = (uint16_t)way,
                                        .ask = {(const uint8_t *)&t->ask, sizeof t->ask}};
    walk += len;
    outstanding++;
    must(kvt_transfer_start(peer, &t->transfer), "transfer", "");
}

static void on_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct transfer *t = kvb_container_of(transfer, struct transfer, transfer);
    uint64_t now_ns = rig_now_ns();
    must(status, way_name[way], "");
    moved += len;
    outstanding--;
    if (n_latency < sizeof latency_ns / sizeof latency_ns[0]) {
        latency_ns[n_latency++] = (double)(now_ns - t->begun_ns);
    }
    if (now_ns < end_ns) {
        begin(t);
    } else if (outstanding == 0) {
        kvp_loop_stop(loop);
    }
}

/* MiB/s, for about RUN_NS; latency_ns of each. */
static double run(int direction, uint32_t value, uint32_t n)
{
    way = direction;
    len = value;
    moved = 0;
    n_latency = 0;
    uint64_t start_ns = rig_now_ns();
    end_ns = start_ns + RUN_NS;
    for (uint32_t i = 0; i < n; i++) {
        begin(&transfers[i]);
    }
    kvp_loop_run(loop);
    return (double)moved / (1u << 20) * 1e9 / (double)(rig_now_ns() - start_ns);
}

/* ---- perftest: the limit ---- */

static struct kvt_rdma_info info;

/* Its server on the server's cpu, its client on ours; the one figure that it prints last. */
static double limit(const char *tool, const char *output, const char *arguments)
{
    char command[640], line[256];
    double figure = NAN;
    uint16_t port = rig_free_port();
    snprintf(command, sizeof command,
             "both='%s -F -d %s -i %u -x %u -p %u %s'\n"
             "taskset -c %d $both >/dev/null 2>&1 & server=$!\n"
             "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.2\n"
             "out=$(taskset -c %d timeout 60 $both --output=%s 127.0.0.1 2>&1) && break\n"
             "done\n"
             "kill $server 2>/dev/null; echo \"$out\" | tail -n 1",
             tool, info.device, info.port, info.gid_index, port, arguments, RIG_SERVER_CPU,
             RIG_CLIENT_CPU, output);
    FILE *pipe = popen(command, "re");
    char *end = line;
    if (pipe != NULL && fgets(line, sizeof line, pipe) != NULL) {
        figure = strtod(line, &end);
    }
    if (pipe == NULL || pclose(pipe) == -1 || end == line) {
        rig_fail("%s gave no figure", tool);
    }
    return figure;
}

/* ---- both, in turns ---- */

#define ROUNDS_MAX 99u

static double bandwidth(const char *name, uint32_t value, uint32_t n, int direction,
                        uint32_t rounds)
{
    double best[ROUNDS_MAX], ours[ROUNDS_MAX], ratio[ROUNDS_MAX];
    char arguments[64];
    snprintf(arguments, sizeof arguments, "-s %u -t %u -D 1", value, n);
    for (uint32_t r = 0; r < rounds; r++) {
        best[r] = limit(perftest[direction], "bandwidth", arguments);
        ours[r] = run(direction, value, n);
        ratio[r] = ours[r] / best[r];
    }
    double of_limit = rig_quantile(ratio, rounds, 0.5);
    printf("%-8s %-4s %12.1f %12.1f %8.2f\n", name, way_name[direction],
           rig_quantile(best, rounds, 0.5), rig_quantile(ours, rounds, 0.5), of_limit);
    return of_limit;
}

static double latency(uint32_t rounds)
{
    double best[ROUNDS_MAX], ours[ROUNDS_MAX], ratio[ROUNDS_MAX];
    for (uint32_t r = 0; r < rounds; r++) {
        best[r] = limit("ib_read_lat", "latency", "-s 4096 -n 200");
        (void)run(GET, SMALL, 1);
        ours[r] = rig_quantile(latency_ns, n_latency, 0.5) / 1e3;
        ratio[r] = ours[r] / best[r];
    }
    double of_limit = rig_quantile(ratio, rounds, 0.5);
    printf("\n%-13s %12s %12s %8s\n%-13s %12.1f %12.1f %8.2f\n", "latency", "ib_read us", "ours us",
           "times", "4 KiB    get", rig_quantile(best, rounds, 0.5),
           rig_quantile(ours, rounds, 0.5), of_limit);
    return of_limit;
}

static void on_up(void *ctx, const struct kvt_hello *hello)
{
    (void)ctx;
    (void)hello;
    kvp_loop_stop(loop);
}

static void on_down(void *ctx, kvb_status_t why)
{
    (void)ctx;
    rig_fail("the peer is down: %s", kvb_status_text(why));
}

static void on_unregistered(void *arg, struct kvt_region *gone, kvb_status_t status)
{
    (void)arg;
    must(status, "unregistering", "");
    kvt_region_destroy(gone);
    kvp_loop_stop(loop);
}

int main(int argc, char **argv)
{
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 7;
    rounds = rounds < 1 || rounds > ROUNDS_MAX ? 7 : rounds;
    char reason[KVT_RDMA_REASON_MAX] = "", address[96];
    struct told told;
    pid_t server = start_server(&told);
    if (told.host[0] == '\0') {
        printf("bench rdma: not run: %s\n", told.reason);
        waitpid(server, NULL, 0);
        return getenv("KVPLANE_RDMA_ADDRESS") != NULL; /* there should be a device */
    }
    info = told.info;

    struct kvt_rdma_device *device;
    struct kvt_regions *regions;
    struct kvt_rdma_memory *pins;
    loop = new_loop(RIG_CLIENT_CPU);
    struct kvb_sched *sched = kvp_loop_sched(loop);
    struct kvb_io *io = kvp_loop_io(loop);
    const struct kvt_rdma_config config = {0};
    must(kvt_rdma_device_open(&config, sched, io, &device, reason), "device", reason);
    must(kvt_regions_create(sched, &regions), "regions", "");
    must(kvt_rdma_memory_create(device, regions, &pins), "memory", "");
    int fd = memfd_create("kvplane-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, MEMORY) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        rig_fail("memfd: %s", strerror(errno));
    }
    /* A put may carry what no get has filled yet, and the server's memory stays as it is. */
    char *bytes = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) {
        rig_fail("mmap: %s", strerror(errno));
    }
    memset(bytes, 0x5a, MEMORY);
    munmap(bytes, MEMORY);
    const struct kvt_region_desc desc = {.owner = 1, .number = 1, .tag = "kv_cache", .len = MEMORY};
    const char *why = "";
    must(kvt_region_create(regions, &desc, fd, &region, &why), "region", why);
    must(kvt_region_register(region), "registering", kvt_rdma_memory_reason(pins));
    name_address(address, sizeof address, told.host, told.port);
    static const struct kvt_peer_ops ops = {.up = on_up, .down = on_down};
    const struct kvt_rdma_peer_config peer_config = {
        .common = common, .memory = pins, .io = io, .address = address, .ops = &ops};
    must(kvt_rdma_peer_create(regions, &peer_config, &peer), "peer", "");
    kvp_loop_run(loop); /* until it is up */

    static const struct {
        const char *name;
        uint32_t len, outstanding;
    } sizes[] = {{"64 KiB", 64u << 10, 16}, {"1 MiB", 1u << 20, 8}};
    double of_1m[] = {[GET] = 0, [PUT] = 0};
    printf("device %s, %s, mtu %u; MiB/s, medians of %u rounds\n", info.device, info.link, info.mtu,
           rounds);
    printf("%-8s %-4s %12s %12s %8s\n", "value", "", "perftest", "ours", "ratio");
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int direction = GET; direction <= PUT; direction++) {
            of_1m[direction] =
                bandwidth(sizes[s].name, sizes[s].len, sizes[s].outstanding, direction, rounds);
        }
    }
    double times = latency(rounds);

    uint64_t now_ns = rig_now_ns();
    kvt_region_unregister(region, now_ns + KVB_NS_PER_S, now_ns + 2 * KVB_NS_PER_S, on_unregistered,
                          NULL);
    kvp_loop_run(loop);
    kvt_transport_destroy(peer);
    kvt_rdma_memory_destroy(pins);
    kvt_regions_destroy(regions);
    kvt_rdma_device_close(device);
    kvp_loop_destroy(loop);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    printf("bench rdma: get_1m_ratio=%.2f put_1m_ratio=%.2f get_4k_latency_x=%.2f\n", of_1m[GET],
           of_1m[PUT], times);
    return 0;
}
