/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every transport promises (transport/transport.h, transport/region.h). Each test runs against
 * each row of `kinds`; a new transport adds a row. Where KVPLANE_RDMA_ADDRESS names an address of
 * an RDMA device (tests/rdma-vm/run), the row of that device is the only one.
 */
#include "sim_io.h"
#include "sim_net.h"
#include "sim_sched.h"
#include "tcp_rig.h"
#ifdef KVT_RDMA_BUILT
#include "fake_verbs.h"

#include "transport/rdma.h"
#endif
#include "test_memory.h"
#include "test_values.h"

#include "transport/transport.h"

#include <criterion/criterion.h>
#include <xxhash.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#define KIB(n) ((uint64_t)(n) << 10)
#define MIB(n) ((uint64_t)(n) << 20)

struct bench;
struct job;

struct kind {
    const char *name;
    kvb_status_t (*open)(struct bench *bench, uint32_t in_flight_max);
    void (*close)(struct bench *bench); /* after the transport is gone; NULL: nothing */
    /* Puts where the node's bytes are into a question, for transports that ask; NULL: nothing. */
    kvb_status_t (*ask)(struct bench *bench, struct job *job);
    bool device; /* a real one */
};

static kvb_status_t loopback_open(struct bench *bench, uint32_t in_flight_max);
static kvb_status_t tcp_open(struct bench *bench, uint32_t in_flight_max);
static void tcp_close(struct bench *bench);
static kvb_status_t sockets_open(struct bench *bench, uint32_t in_flight_max);
static void sockets_close(struct bench *bench);
static kvb_status_t tcp_ask(struct bench *bench, struct job *job);
#ifdef KVT_RDMA_BUILT
static kvb_status_t fake_open(struct bench *bench, uint32_t in_flight_max);
static void fake_close(struct bench *bench);
static kvb_status_t device_open(struct bench *bench, uint32_t in_flight_max);
static void device_close(struct bench *bench);
#endif

static const struct kind kinds[] = {
    {"loopback", loopback_open, NULL, NULL, false},
    {"tcp", tcp_open, tcp_close, tcp_ask, false},
    {"tcp, sockets of the kernel", sockets_open, sockets_close, tcp_ask, false},
#ifdef KVT_RDMA_BUILT
    {"rdma, fake verbs", fake_open, fake_close, tcp_ask, false},
    {"rdma, device", device_open, device_close, tcp_ask, true},
#endif
};

static const char *device_address(void)
{
    return getenv("KVPLANE_RDMA_ADDRESS");
}

#define EACH_KIND(kind)                                                                            \
    for (const struct kind *kind = kinds; kind < kinds + sizeof kinds / sizeof kinds[0]; kind++)   \
        if (kind->device == (device_address() != NULL))

#define NODE_LEN MIB(16)

struct bench {
    const struct kind *kind;
    struct sim_sched sim;
    struct sim_net net;
    struct sim_side side;
    struct sim_io io;
    struct kvt_net *kernel;
    struct kvb_io_watch listener;
    bool up;
    struct rig_node rig;
#ifdef KVT_RDMA_BUILT
    struct fake_io fake_io;
    struct kvt_rdma_device *devices[FAKE_SIDES];
    struct kvt_rdma_memory *memory;
    struct kvt_rdma_share *rdma_share;
    struct kvt_rdma_server *server;
    struct kvt_rdma_listener *rdma_listener;
#endif
    struct kvt_regions *regions;
    struct kvt_transport *transport;
    struct kvt_share *share;
    struct test_memory node;
    struct test_memory engine;
    struct kvt_region *region;
    const char *reason;
};

static kvb_status_t region_open(struct bench *bench, const struct test_memory *memory,
                                uint64_t offset, uint64_t len, struct kvt_region **region_p)
{
    struct kvt_region_desc desc = {
        .owner = 1, .number = 7, .tag = "kv_cache", .fd_offset = offset, .len = len};
    int fd = test_memory_dup(memory);
    kvb_status_t status = kvt_region_create(bench->regions, &desc, fd, region_p, &bench->reason);
    if (status != KVB_OK) {
        (void)close(fd);
    }
    return status;
}

static void bench_open(struct bench *bench, const struct kind *kind, uint32_t in_flight_max,
                       uint64_t engine_len)
{
    bench->kind = kind;
    sim_init(&bench->sim, sim_seed(1));
    cr_assert_eq(kvt_regions_create(&bench->sim.sched, &bench->regions), KVB_OK);
    test_memory_init(&bench->node, "node", NODE_LEN);
    cr_assert_eq(kind->open(bench, in_flight_max), KVB_OK);
    test_memory_init(&bench->engine, "engine", engine_len);
    cr_assert_eq(kvt_share_create(bench->transport, bench->node.base, NODE_LEN, &bench->share),
                 KVB_OK);
    cr_assert_eq(region_open(bench, &bench->engine, 0, engine_len, &bench->region), KVB_OK);
    cr_assert_eq(kvt_region_register(bench->region), KVB_OK);
}

struct ended {
    bool done;
    kvb_status_t status;
};

static void on_unregistered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    (void)region;
    struct ended *ended = arg;
    cr_assert(!ended->done);
    *ended = (struct ended){.done = true, .status = status};
}

static kvb_status_t unregister(struct bench *bench, struct kvt_region *region)
{
    struct ended ended = {0};
    kvt_region_unregister(region, sim_in_ms(&bench->sim, 1000), sim_in_ms(&bench->sim, 2000),
                          on_unregistered, &ended);
    cr_assert(!ended.done, "never inside the call");
    cr_assert(sim_run_until_true(&bench->sim, &ended.done, 3000));
    return ended.status;
}

static void bench_close(struct bench *bench)
{
    if (kvt_region_state(bench->region) == KVT_REGION_REGISTERED) {
        cr_assert_eq(unregister(bench, bench->region), KVB_OK);
    }
    kvt_region_destroy(bench->region);
    kvt_share_destroy(bench->share);
    kvt_transport_destroy(bench->transport);
    if (bench->kind->close != NULL) {
        bench->kind->close(bench);
    }
    kvt_regions_destroy(bench->regions);
    test_memory_cleanup(&bench->engine);
    test_memory_cleanup(&bench->node);
    sim_cleanup(&bench->sim);
}

struct job {
    struct kvt_transfer transfer;
    struct kvt_slice slice; /* used unless the test brings its own */
    struct kvt_extent extent;
    uint8_t text[RIG_EXTENTS_MAX * sizeof(struct kvt_extent)];
    uint8_t answer[16];
    bool done;
    bool inside; /* start or cancel is running */
    uint32_t times;
    kvb_status_t status;
};

static void on_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct job *job = kvb_container_of(transfer, struct job, transfer);
    cr_assert(!job->inside, "a completion inside start or cancel");
    job->times++;
    cr_assert_eq(job->times, 1, "completed twice");
    job->done = true;
    job->status = status;
}

static void job_init(struct job *job, struct bench *bench, enum kvt_direction direction,
                     uint64_t slice_at, uint64_t extent_at, uint64_t len)
{
    *job = (struct job){
        .slice = {.region = bench->region, .offset = slice_at, .len = len},
        .extent = {.offset = extent_at, .len = len},
    };
    job->transfer = (struct kvt_transfer){
        .direction = direction,
        .share = bench->share,
        .slices = &job->slice,
        .nslices = 1,
        .extents = &job->extent,
        .nextents = 1,
        .hash = true,
        .deadline_ns = KVB_NEVER,
        .done = on_done,
    };
}

static kvb_status_t job_start(struct job *job, struct bench *bench)
{
    kvb_status_t status = bench->kind->ask != NULL ? bench->kind->ask(bench, job) : KVB_OK;
    if (status == KVB_OK) {
        job->inside = true;
        status = kvt_transfer_start(bench->transport, &job->transfer);
        job->inside = false;
    }
    return status;
}

static void job_cancel(struct job *job, struct bench *bench)
{
    job->inside = true;
    kvt_transfer_cancel(&job->transfer, sim_in_ms(&bench->sim, 200));
    job->inside = false;
}

static kvb_status_t job_run(struct job *job, struct bench *bench)
{
    kvb_status_t status = job_start(job, bench);
    if (status != KVB_OK) {
        return status;
    }
    cr_assert(sim_run_until_true(&bench->sim, &job->done, 60000));
    return job->status;
}

/* ---- kinds ---- */

static kvb_status_t loopback_open(struct bench *bench, uint32_t in_flight_max)
{
    return kvt_loopback_create(bench->regions, in_flight_max, &bench->transport);
}

static void on_accept(void *ctx, int fd)
{
    struct bench *bench = ctx;
    cr_assert_eq(kvt_tcp_server_adopt(bench->rig.server, fd), KVB_OK);
}

static void on_up(void *ctx, const struct kvt_hello *hello)
{
    struct bench *bench = ctx;
    cr_assert_str_eq(hello->name, "node");
    bench->up = true;
}

static void on_down(void *ctx, kvb_status_t why)
{
    (void)ctx;
    cr_assert_fail("down: %s", kvb_status_label(why));
}

static kvb_status_t open_over(struct bench *bench, uint32_t in_flight_max, struct kvt_net *net,
                              const char *address, uint32_t lanes)
{
    static const struct kvt_peer_ops peer_ops = {.up = on_up, .down = on_down};
    struct kvt_peer_common common = {.net = net, .secret = "s", .secret_len = 1};
    struct kvt_tcp_server_config server = {
        .common = common, .sched = &bench->sim.sched, .name = "node", .incarnation = 1};
    cr_assert_eq(rig_node_init(&bench->rig, bench->node.base, NODE_LEN, server), KVB_OK);
    struct kvt_tcp_peer_config peer = {.common = common,
                                       .address = address,
                                       .lanes = lanes,
                                       .in_flight_max = in_flight_max,
                                       .ops = &peer_ops,
                                       .ctx = bench};
    return kvt_tcp_peer_create(bench->regions, &peer, &bench->transport);
}

static kvb_status_t tcp_open(struct bench *bench, uint32_t in_flight_max)
{
    bench->side = (struct sim_side){.accept = on_accept, .ctx = bench};
    sim_net_init(&bench->net, &bench->sim, &bench->side);
    return open_over(bench, in_flight_max, &bench->net.base, "127.0.0.1:1", 4);
}

static void tcp_close(struct bench *bench)
{
    rig_node_cleanup(&bench->rig);
    cr_assert_eq(bench->net.open, 0);
}

static void on_connection(struct kvb_io_watch *watch, unsigned events)
{
    (void)events;
    int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        on_accept(kvb_container_of(watch, struct bench, listener), fd);
    }
}

static kvb_status_t sockets_open(struct bench *bench, uint32_t in_flight_max)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    char address[32];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    cr_assert_eq(listen(fd, 16), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(at.sin_port));
    sim_io_init(&bench->io, &bench->sim);
    bench->up = false;
    cr_assert_eq(kvt_net_kernel_create(&bench->io.base, 256u << 10, &bench->kernel), KVB_OK);
    bench->listener = (struct kvb_io_watch){.fd = fd, .fn = on_connection};
    cr_assert_eq(kvb_io_watch(&bench->io.base, &bench->listener, KVB_IO_READ), KVB_OK);
    /* One lane, which stands: descriptors are counted. */
    kvb_status_t status = open_over(bench, in_flight_max, bench->kernel, address, 1);
    cr_assert(status != KVB_OK || sim_run_until_true(&bench->sim, &bench->up, 1000));
    return status;
}

static void sockets_close(struct bench *bench)
{
    kvb_io_unwatch(&bench->io.base, &bench->listener);
    (void)close(bench->listener.fd);
    rig_node_cleanup(&bench->rig);
    kvt_net_kernel_destroy(bench->kernel);
    sim_io_cleanup(&bench->io);
}

#ifdef KVT_RDMA_BUILT
static void rdma_accepted(void *ctx, struct kvt_rdma_conn *conn)
{
    struct bench *bench = ctx;
    cr_assert_eq(kvt_rdma_server_adopt(bench->server, conn), KVB_OK);
}

/* Peer and node over bench->devices, both on `host`. */
static kvb_status_t open_rdma(struct bench *bench, uint32_t in_flight_max, struct kvb_io *io,
                              const char *host)
{
    static const struct kvt_peer_ops peer_ops = {.up = on_up, .down = on_down};
    struct kvt_peer_common common = {.secret = "s", .secret_len = 1};
    struct kvb_sched *sched = &bench->sim.sched;
    char reason[KVT_RDMA_REASON_MAX], address[64];
    bench->up = false;
    (void)snprintf(address, sizeof address, "%s:0", host);
    bench->rig = (struct rig_node){.base = bench->node.base, .len = NODE_LEN};
    kvb_list_init(&bench->rig.waiting);
    struct kvt_rdma_server_config server = {.common = common,
                                            .device = bench->devices[FAKE_NODE],
                                            .sched = sched,
                                            .io = io,
                                            .name = "node",
                                            .incarnation = 1,
                                            .ops = &rig_server_ops,
                                            .ctx = &bench->rig};
    struct kvt_rdma_listener_config listener = {.device = bench->devices[FAKE_NODE],
                                                .sched = sched,
                                                .io = io,
                                                .address = address,
                                                .accepted = rdma_accepted,
                                                .ctx = bench};
    cr_assert_eq(kvt_rdma_share_register(bench->devices[FAKE_NODE], bench->node.base, NODE_LEN,
                                         &bench->rdma_share, reason),
                 KVB_OK);
    cr_assert_eq(kvt_rdma_server_create(&server, &bench->server), KVB_OK);
    cr_assert_eq(kvt_rdma_listener_create(&listener, &bench->rdma_listener, reason), KVB_OK);
    cr_assert_eq(kvt_rdma_memory_create(bench->devices[FAKE_ASKER], bench->regions, &bench->memory),
                 KVB_OK);
    (void)snprintf(address, sizeof address, "%s:%u", host,
                   kvt_rdma_listener_port(bench->rdma_listener));
    struct kvt_rdma_peer_config peer = {.common = common,
                                        .memory = bench->memory,
                                        .io = io,
                                        .address = address,
                                        .lanes = 2,
                                        .in_flight_max = in_flight_max,
                                        .ops = &peer_ops,
                                        .ctx = bench};
    kvb_status_t status = kvt_rdma_peer_create(bench->regions, &peer, &bench->transport);
    cr_assert(status != KVB_OK || sim_run_until_true(&bench->sim, &bench->up, 1000));
    return status;
}

static void close_rdma(struct bench *bench)
{
    kvt_rdma_listener_destroy(bench->rdma_listener);
    kvt_rdma_server_destroy(bench->server);
    cr_assert(bench->rig.sessions == 0 && bench->rig.running == 0);
    kvt_rdma_memory_destroy(bench->memory);
    kvt_rdma_share_unregister(bench->rdma_share);
}

static kvb_status_t fake_open(struct bench *bench, uint32_t in_flight_max)
{
    static const char *names[] = {"fake0", "fake1"};
    char reason[KVT_RDMA_REASON_MAX];
    (void)fake_verbs_open(&bench->sim);
    fake_io_init(&bench->fake_io, &bench->sim);
    for (int side = 0; side < FAKE_SIDES; side++) {
        struct kvt_rdma_config config = {.device = names[side], .verbs = &fake_verbs_table};
        cr_assert_eq(kvt_rdma_device_open(&config, &bench->sim.sched, &bench->fake_io.base,
                                          &bench->devices[side], reason),
                     KVB_OK, "%s", reason);
    }
    return open_rdma(bench, in_flight_max, &bench->fake_io.base, FAKE_NODE_ADDRESS);
}

static void fake_close(struct bench *bench)
{
    close_rdma(bench);
    for (int side = 0; side < FAKE_SIDES; side++) {
        kvt_rdma_device_close(bench->devices[side]);
    }
    fake_io_cleanup(&bench->fake_io);
    fake_verbs_close();
}

/* One device for both; work takes real time there, which simulated time has to wait for. */
static kvb_status_t device_open(struct bench *bench, uint32_t in_flight_max)
{
    struct kvt_rdma_config config = {0};
    char reason[KVT_RDMA_REASON_MAX];
    sim_io_init(&bench->io, &bench->sim);
    bench->io.slow = 400;
    cr_assert_eq(kvt_rdma_device_open(&config, &bench->sim.sched, &bench->io.base,
                                      &bench->devices[FAKE_ASKER], reason),
                 KVB_OK, "%s", reason);
    bench->devices[FAKE_NODE] = bench->devices[FAKE_ASKER];
    return open_rdma(bench, in_flight_max, &bench->io.base, device_address());
}

static void device_close(struct bench *bench)
{
    close_rdma(bench);
    kvt_rdma_device_close(bench->devices[FAKE_ASKER]);
    sim_io_cleanup(&bench->io);
}
#endif

/* What lies outside is refused here, as by the store's side of it; by the node, too (test_tcp.c).
 */
static kvb_status_t tcp_ask(struct bench *bench, struct job *job)
{
    struct kvt_transfer *transfer = &job->transfer;
    uint64_t slices = 0, extents = 0;
    for (uint32_t i = 0; i < transfer->nslices; i++) {
        slices += transfer->slices[i].len;
    }
    for (uint32_t i = 0; i < transfer->nextents; i++) {
        const struct kvt_extent *extent = &transfer->extents[i];
        if (extent->len > NODE_LEN || extent->offset > NODE_LEN - extent->len) {
            return KVB_ERR_INVALID;
        }
        extents += extent->len;
    }
    if (slices != extents) {
        return KVB_ERR_INVALID;
    }
    rig_text_pack(transfer->extents, transfer->nextents, job->text);
    transfer->type = transfer->direction == KVT_TO_SHARE ? RIG_PUT : RIG_GET;
    transfer->ask = (struct kvb_span){job->text, transfer->nextents * sizeof(struct kvt_extent)};
    transfer->answer = job->answer;
    transfer->answer_cap = sizeof job->answer;
    (void)bench;
    return KVB_OK;
}

static void assert_idle(struct bench *bench)
{
    cr_assert_eq(bench->transport->in_flight, 0);
    cr_assert_eq(kvt_region_refs(bench->region), 0);
}

/* ---- bytes ---- */

#define PARTS_MAX 32

/* Cuts [0, total) into pieces laid out at seeded places, with gaps, inside limit. */
static uint32_t cut(struct sim_sched *sim, uint64_t total, uint64_t limit, uint64_t *offsets,
                    uint64_t *lens)
{
    uint32_t n = 1 + (uint32_t)sim_below(sim, PARTS_MAX);
    uint64_t gap_left = limit - total;
    uint64_t at = 0;
    uint32_t used = 0;
    while (total > 0) {
        uint64_t len = used + 1 == n ? total : 1 + sim_below(sim, total);
        uint64_t gap = sim_below(sim, gap_left / PARTS_MAX + 1);
        gap_left -= gap;
        at += gap;
        offsets[used] = at;
        lens[used++] = len;
        at += len;
        total -= len;
    }
    /* in any order: a list of slices need not go upwards */
    for (uint32_t i = used; i > 1; i--) {
        uint32_t j = (uint32_t)sim_below(sim, i);
        uint64_t offset = offsets[j], len = lens[j];
        offsets[j] = offsets[i - 1], lens[j] = lens[i - 1];
        offsets[i - 1] = offset, lens[i - 1] = len;
    }
    return used;
}

static void gather(uint8_t *out, const uint8_t *base, const uint64_t *offsets, const uint64_t *lens,
                   uint32_t n)
{
    for (uint32_t i = 0; i < n; out += lens[i], i++) {
        memcpy(out, base + offsets[i], lens[i]);
    }
}

static void scatter(uint8_t *base, const uint8_t *in, const uint64_t *offsets, const uint64_t *lens,
                    uint32_t n)
{
    for (uint32_t i = 0; i < n; in += lens[i], i++) {
        memcpy(base + offsets[i], in, lens[i]);
    }
}

static void one_shape(struct bench *bench, enum kvt_direction direction, uint64_t round)
{
    static const uint64_t sizes[] = {1, 2, 63, 4096, 65537, KIB(256), KIB(256) + 1, MIB(1)};
    uint64_t total = round % 2 == 0 ? sizes[sim_below(&bench->sim, sizeof sizes / sizeof sizes[0])]
                                    : 1 + sim_below(&bench->sim, MIB(1));
    uint64_t soff[PARTS_MAX], slen[PARTS_MAX], eoff[PARTS_MAX], elen[PARTS_MAX];
    uint32_t nslices = cut(&bench->sim, total, bench->engine.len, soff, slen);
    uint32_t nextents = cut(&bench->sim, total, bench->engine.len, eoff, elen);
    struct kvt_slice slices[PARTS_MAX];
    struct kvt_extent extents[PARTS_MAX];
    for (uint32_t i = 0; i < nslices; i++) {
        slices[i] = (struct kvt_slice){bench->region, soff[i], slen[i]};
    }
    for (uint32_t i = 0; i < nextents; i++) {
        extents[i] = (struct kvt_extent){eoff[i], elen[i]};
    }
    uint8_t *value = malloc(total);
    test_value_fill(value, total, "t", &round, sizeof round, 5);

    /* What memory must look like afterwards, made without the transport. */
    bool in = direction == KVT_TO_SHARE;
    const struct test_memory *to = in ? &bench->node : &bench->engine;
    const struct test_memory *from = in ? &bench->engine : &bench->node;
    uint8_t *expected = malloc(bench->engine.len);
    memset(bench->node.base, TEST_PREFILL, bench->engine.len);
    memset(bench->engine.base, TEST_PREFILL, bench->engine.len);
    memset(expected, TEST_PREFILL, bench->engine.len);
    scatter(from->base, value, in ? soff : eoff, in ? slen : elen, in ? nslices : nextents);
    scatter(expected, value, in ? eoff : soff, in ? elen : slen, in ? nextents : nslices);

    struct job job;
    job_init(&job, bench, direction, 0, 0, 1);
    job.transfer.slices = slices;
    job.transfer.nslices = nslices;
    job.transfer.extents = extents;
    job.transfer.nextents = nextents;
    cr_assert_eq(job_run(&job, bench), KVB_OK);
    cr_assert_eq(memcmp(to->base, expected, bench->engine.len), 0,
                 "seed %lu round %lu: wrong bytes, or bytes outside", bench->sim.seed, round);
    uint8_t *moved = malloc(total);
    gather(moved, to->base, in ? eoff : soff, in ? elen : slen, in ? nextents : nslices);
    cr_assert_eq(test_value_check(moved, total, "t", &round, sizeof round, 5), total);
    cr_assert_eq(job.transfer.checksum, XXH3_64bits(moved, total));
    free(moved);
    free(expected);
    free(value);
}

Test(transport_contract, moves_exactly_the_bytes_named_in_every_split)
{
    EACH_KIND(kind)
    {
        struct bench bench;
        bench_open(&bench, kind, 4, MIB(2));
        for (uint64_t round = 0; round < 60; round++) {
            one_shape(&bench, round % 3 == 0 ? KVT_FROM_SHARE : KVT_TO_SHARE, round);
        }
        assert_idle(&bench);
        bench_close(&bench);
    }
}

Test(transport_contract, many_transfers_at_once_do_not_mix)
{
    EACH_KIND(kind)
    {
        struct bench bench;
        bench_open(&bench, kind, 16, MIB(8));
        struct job jobs[16];
        uint64_t len = KIB(512);
        for (uint64_t i = 0; i < 16; i++) {
            test_value_fill(bench.engine.base + i * len, len, "t", &i, sizeof i, 1);
            job_init(&jobs[i], &bench, KVT_TO_SHARE, i * len, (15 - i) * len, len);
            cr_assert_eq(job_start(&jobs[i], &bench), KVB_OK);
        }
        for (uint64_t i = 0; i < 16; i++) {
            cr_assert(sim_run_until_true(&bench.sim, &jobs[i].done, 1000));
            cr_assert_eq(jobs[i].status, KVB_OK);
            cr_assert_eq(
                test_value_check(bench.node.base + (15 - i) * len, len, "t", &i, sizeof i, 1), len);
        }
        bench_close(&bench);
    }
}

/* ---- refusals ---- */

Test(transport_contract, refuses_what_is_empty_outside_or_of_another_length)
{
    static const struct {
        uint64_t slice_offset, slice_len, extent_offset, extent_len;
    } bad[] = {
        {0, 0, 0, 0},
        {0, 0, 0, 1},
        {0, 1, 0, 0},
        {0, 2, 0, 1},
        {0, 1, 0, 2},
        {MIB(1), 1, 0, 1},
        {MIB(1) - 1, 2, 0, 2},
        {0, MIB(1) + 1, 0, MIB(1) + 1},
        {UINT64_MAX, 1, 0, 1},
        {UINT64_MAX, 2, 0, 2},
        {1, UINT64_MAX, 0, UINT64_MAX},
        {0, 1, NODE_LEN, 1},
        {0, 2, NODE_LEN - 1, 2},
        {0, 1, UINT64_MAX, 1},
        {0, 2, UINT64_MAX - 1, 2},
    };
    EACH_KIND(kind)
    {
        struct bench bench;
        bench_open(&bench, kind, 4, MIB(1));
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            struct job job;
            job_init(&job, &bench, KVT_TO_SHARE, bad[i].slice_offset, bad[i].extent_offset,
                     bad[i].slice_len);
            job.extent.len = bad[i].extent_len;
            cr_assert_eq(job_start(&job, &bench), KVB_ERR_INVALID, "row %zu", i);
            assert_idle(&bench);
        }
        struct job job;
        job_init(&job, &bench, KVT_TO_SHARE, 0, 0, 1);
        job.transfer.nslices = 0;
        cr_assert_eq(job_start(&job, &bench), KVB_ERR_INVALID);
        job.transfer.nslices = 1;
        job.transfer.nextents = 0;
        cr_assert_eq(job_start(&job, &bench), KVB_ERR_INVALID);
        /* sums that wrap to what would fit */
        struct kvt_slice slices[2] = {{bench.region, 0, MIB(1)}, {bench.region, 0, 0}};
        job.transfer.slices = slices;
        job.transfer.nslices = 2;
        job.transfer.nextents = 1;
        job.extent.len = MIB(1);
        cr_assert_eq(job_start(&job, &bench), KVB_ERR_INVALID, "an empty slice among others");
        assert_idle(&bench);
        sim_settle(&bench.sim);
        bench_close(&bench);
    }
}

Test(transport_contract, refuses_regions_that_are_not_registered)
{
    EACH_KIND(kind)
    {
        struct bench bench;
        bench_open(&bench, kind, 4, MIB(1));
        struct kvt_region *other;
        cr_assert_eq(region_open(&bench, &bench.engine, 0, KIB(64), &other), KVB_OK);
        struct job job;
        job_init(&job, &bench, KVT_TO_SHARE, 0, 0, KIB(64));
        job.slice.region = other;
        cr_assert_eq(job_start(&job, &bench), KVB_ERR_GENERATION, "mapped only");
        cr_assert_eq(kvt_region_register(other), KVB_OK);
        cr_assert_eq(job_run(&job, &bench), KVB_OK);

        struct ended ended = {0};
        kvt_region_unregister(other, sim_in_ms(&bench.sim, 1), sim_in_ms(&bench.sim, 2),
                              on_unregistered, &ended);
        job_init(&job, &bench, KVT_TO_SHARE, 0, 0, KIB(64));
        job.slice.region = other;
        cr_assert_eq(job_start(&job, &bench), KVB_ERR_GENERATION, "draining");
        cr_assert(sim_run_until_true(&bench.sim, &ended.done, 10));
        cr_assert_eq(ended.status, KVB_OK);
        cr_assert_eq(job_start(&job, &bench), KVB_ERR_GENERATION, "unregistered");

        /* one bad region among good ones takes no reference on any */
        struct kvt_slice slices[2] = {{bench.region, 0, 1}, {other, 0, 1}};
        job_init(&job, &bench, KVT_TO_SHARE, 0, 0, 2);
        job.transfer.slices = slices;
        job.transfer.nslices = 2;
        cr_assert_eq(job_start(&job, &bench), KVB_ERR_GENERATION);
        assert_idle(&bench);
        kvt_region_destroy(other);
        bench_close(&bench);
    }
}

Test(transport_contract, takes_only_descriptors_that_fit)
{
    EACH_KIND(kind)
    {
        struct bench bench;
        bench_open(&bench, kind, 4, MIB(1));
        struct kvt_region *region = NULL;
        static const struct {
            uint64_t offset, len;
        } bad[] = {
            {0, 0},
            {0, MIB(1) + 1},
            {MIB(1), 1},
            {4096, MIB(1)},
            {1, 4096},
            {4096, UINT64_MAX},
            {4096, UINT64_MAX - 4095},
            {UINT64_MAX - 4095, 4096},
        };
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            bench.reason = NULL;
            cr_assert_eq(region_open(&bench, &bench.engine, bad[i].offset, bad[i].len, &region),
                         KVB_ERR_INVALID, "row %zu", i);
            cr_assert_not_null(bench.reason);
        }
        struct test_memory unsealed = bench.engine;
        unsealed.fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        cr_assert_eq(ftruncate(unsealed.fd, 4096), 0);
        cr_assert_eq(region_open(&bench, &unsealed, 0, 4096, &region), KVB_ERR_INVALID);
        cr_assert_not_null(strstr(bench.reason, "F_SEAL_SHRINK"));
        cr_assert_eq(fcntl(unsealed.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE), 0);
        cr_assert_eq(region_open(&bench, &unsealed, 0, 4096, &region), KVB_ERR_INVALID);
        (void)close(unsealed.fd);
        int pipes[2];
        cr_assert_eq(pipe(pipes), 0);
        unsealed.fd = pipes[0];
        cr_assert_eq(region_open(&bench, &unsealed, 0, 4096, &region), KVB_ERR_INVALID);
        (void)close(pipes[0]);
        (void)close(pipes[1]);
        unsealed.fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        cr_assert_eq(region_open(&bench, &unsealed, 0, 4096, &region), KVB_ERR_INVALID);
        (void)close(unsealed.fd);

        struct kvt_region_desc cuda = {.kind = KVT_MEMORY_CUDA, .len = 4096};
        cr_assert_eq(
            kvt_region_create(bench.regions, &cuda, bench.engine.fd, &region, &bench.reason),
            KVB_ERR_UNSUPPORTED);
        cr_assert_eq(kvt_regions_count(bench.regions), 1);
        bench_close(&bench);
    }
}

Test(transport_contract, says_again_when_full_and_a_completion_makes_room)
{
    EACH_KIND(kind)
    {
        struct bench bench;
        bench_open(&bench, kind, 2, MIB(1));
        struct job jobs[3];
        for (int i = 0; i < 3; i++) {
            job_init(&jobs[i], &bench, KVT_TO_SHARE, 0, 0, KIB(16));
        }
        cr_assert_eq(job_start(&jobs[0], &bench), KVB_OK);
        cr_assert_eq(job_start(&jobs[1], &bench), KVB_OK);
        cr_assert_eq(job_start(&jobs[2], &bench), KVB_ERR_AGAIN);
        cr_assert_eq(kvt_region_refs(bench.region), 2);
        cr_assert(sim_run_until_true(&bench.sim, &jobs[0].done, 1000));
        cr_assert_eq(job_run(&jobs[2], &bench), KVB_OK);
        cr_assert(sim_run_until_true(&bench.sim, &jobs[1].done, 1000));
        assert_idle(&bench);
        bench_close(&bench);
    }
}

/* ---- ends that are not success ---- */

Test(transport_contract, a_deadline_ends_it_with_timeout)
{
    EACH_KIND(kind)
    {
        for (uint32_t turns = 0; turns < 8; turns++) {
            struct bench bench;
            bench_open(&bench, kind, 4, MIB(8));
            struct job job;
            job_init(&job, &bench, KVT_TO_SHARE, 0, 0, MIB(8));
            job.transfer.deadline_ns = sim_in_ms(&bench.sim, 5);
            cr_assert_eq(job_start(&job, &bench), KVB_OK);
            for (uint32_t i = 0; i < turns; i++) {
                (void)sim_turn(&bench.sim);
            }
            cr_assert(!job.done);
            bench.sim.now_ns = job.transfer.deadline_ns;
            cr_assert(sim_run_until_true(&bench.sim, &job.done, 1));
            cr_assert_eq(job.status, KVB_ERR_TIMEOUT);
            assert_idle(&bench);
            bench_close(&bench);
        }
    }
}

Test(transport_contract, cancel_ends_it_at_every_step)
{
    EACH_KIND(kind)
    {
        bool finished = false;
        /* a look at a device is a turn, too: by far too many to stop after each */
        for (uint32_t turns = 0; !finished; turns += kind->device ? 1 + turns / 2 : 1) {
            cr_assert_lt(turns, 1000000);
            struct bench bench;
            bench_open(&bench, kind, 4, MIB(2));
            struct job job;
            job_init(&job, &bench, KVT_FROM_SHARE, 0, 0, MIB(2));
            cr_assert_eq(job_start(&job, &bench), KVB_OK);
            for (uint32_t i = 0; i < turns && !job.done; i++) {
                (void)sim_turn(&bench.sim);
            }
            finished = job.done;
            if (!finished) {
                job_cancel(&job, &bench);
                job_cancel(&job, &bench);
                cr_assert(sim_run_until_true(&bench.sim, &job.done, 200), "by its deadline");
                cr_assert(job.status == KVB_ERR_CANCELED || job.status == KVB_OK);
                cr_assert(turns > 0 || job.status == KVB_ERR_CANCELED);
            }
            assert_idle(&bench);
            job_init(&job, &bench, KVT_TO_SHARE, 0, 0, KIB(300));
            cr_assert_eq(job_run(&job, &bench), KVB_OK, "the transport goes on");
            sim_settle(&bench.sim);
            bench_close(&bench);
        }
    }
}

/* ---- unregistering ---- */

Test(transport_contract, unregister_waits_for_running_transfers)
{
    EACH_KIND(kind)
    {
        struct bench bench;
        bench_open(&bench, kind, 4, MIB(4));
        struct job jobs[2];
        uint64_t zero = 0;
        test_value_fill(bench.engine.base, MIB(4), "t", &zero, sizeof zero, 1);
        for (uint64_t i = 0; i < 2; i++) {
            job_init(&jobs[i], &bench, KVT_TO_SHARE, 0, i * MIB(4), MIB(4));
            cr_assert_eq(job_start(&jobs[i], &bench), KVB_OK);
        }
        struct ended ended = {0};
        kvt_region_unregister(bench.region, sim_in_ms(&bench.sim, 1000),
                              sim_in_ms(&bench.sim, 2000), on_unregistered, &ended);
        cr_assert_eq(kvt_region_state(bench.region), KVT_REGION_DRAINING);
        while (!ended.done) {
            cr_assert(!(jobs[0].done && jobs[1].done) || kvt_region_refs(bench.region) == 0);
            (void)sim_turn(&bench.sim);
        }
        cr_assert(jobs[0].done && jobs[1].done, "never under a transfer");
        cr_assert_eq(jobs[0].status, KVB_OK);
        cr_assert_eq(jobs[1].status, KVB_OK);
        cr_assert_eq(ended.status, KVB_OK);
        cr_assert_eq(kvt_region_state(bench.region), KVT_REGION_UNREGISTERED);
        for (uint64_t i = 0; i < 2; i++) {
            cr_assert_eq(
                test_value_check(bench.node.base + i * MIB(4), MIB(4), "t", &zero, sizeof zero, 1),
                MIB(4));
        }
        bench_close(&bench);
    }
}

Test(transport_contract, unregister_cancels_what_outlasts_the_drain_deadline)
{
    EACH_KIND(kind)
    {
        struct bench bench;
        bench_open(&bench, kind, 4, MIB(8));
        struct job job;
        job_init(&job, &bench, KVT_FROM_SHARE, 0, 0, MIB(8));
        cr_assert_eq(job_start(&job, &bench), KVB_OK);
        struct ended ended = {0};
        kvt_region_unregister(bench.region, sim_in_ms(&bench.sim, 10), sim_in_ms(&bench.sim, 20),
                              on_unregistered, &ended);
        (void)sim_turn(&bench.sim);
        (void)sim_turn(&bench.sim);
        cr_assert(!job.done && !ended.done);
        bench.sim.now_ns = sim_in_ms(&bench.sim, 10);
        cr_assert(sim_run_until_true(&bench.sim, &ended.done, 10));
        cr_assert(job.done);
        cr_assert_eq(job.status, KVB_ERR_CANCELED);
        cr_assert_eq(ended.status, KVB_OK);
        bench_close(&bench);
    }
}

Test(transport_contract, thousands_of_cycles_leave_descriptors_and_mappings_as_before)
{
    EACH_KIND(kind)
    {
        struct bench bench;
        bench_open(&bench, kind, 4, KIB(64));
        size_t fds = test_count_fds();
        size_t maps = test_count_maps("memfd:engine");
        size_t all_maps = test_count_maps("");
        int cycles = kind->device ? 500 : 5000; /* the rest: tests/rdma-vm/transport.c */
        for (int i = 0; i < cycles; i++) {
            struct kvt_region *region;
            uint64_t len = i % 100 == 0 ? KIB(64) : KIB(4) * (1 + (uint64_t)i % 16);
            cr_assert_eq(region_open(&bench, &bench.engine, KIB(64) - len, len, &region), KVB_OK);
            cr_assert_eq(kvt_region_register(region), KVB_OK);
            if (i % 100 == 0) {
                struct job job;
                job_init(&job, &bench, KVT_TO_SHARE, 0, 0, KIB(64));
                job.slice.region = region;
                cr_assert_eq(job_run(&job, &bench), KVB_OK);
            }
            cr_assert_eq(unregister(&bench, region), KVB_OK);
            kvt_region_destroy(region);
        }
        cr_assert_eq(test_count_fds(), fds);
        cr_assert_eq(test_count_maps("memfd:engine"), maps);
        cr_assert_leq(test_count_maps(""), all_maps + 50,
                      "buffers of ours, not one for each cycle");
        bench_close(&bench);
    }
}

Test(transport_contract, nothing_of_ours_holds_memory_once_unregistered)
{
    EACH_KIND(kind)
    {
        struct bench bench;
        bench_open(&bench, kind, 4, KIB(64));
        struct test_memory memory;
        test_memory_init(&memory, "released", KIB(64));
        struct kvt_region *region;
        cr_assert_eq(region_open(&bench, &memory, 0, KIB(64), &region), KVB_OK);
        cr_assert_eq(kvt_region_register(region), KVB_OK);
        test_memory_cleanup(&memory);
        cr_assert(test_memfd_held("released"), "registered: the pages live");
        cr_assert_eq(unregister(&bench, region), KVB_OK);
        cr_assert(!test_memfd_held("released"), "before `done` is told, not when it is destroyed");
        kvt_region_destroy(region);

        test_memory_init(&memory, "refused", KIB(64));
        cr_assert_eq(region_open(&bench, &memory, 0, KIB(64), &region), KVB_OK);
        kvt_region_destroy(region);
        test_memory_cleanup(&memory);
        cr_assert(!test_memfd_held("refused"), "handed over but never registered");
        bench_close(&bench);
    }
}

/* ---- fairness ---- */

struct ticker {
    struct kvb_event event;
    struct kvb_sched *sched;
    uint64_t ticks;
};

static void on_tick(struct kvb_event *event)
{
    struct ticker *ticker = kvb_container_of(event, struct ticker, event);
    ticker->ticks++;
    kvb_sched_post(ticker->sched, event);
}

Test(transport_contract, a_long_copy_lets_other_work_run_in_between)
{
    EACH_KIND(kind)
    {
        struct bench bench;
        bench_open(&bench, kind, 16, MIB(8));
        struct ticker ticker = {.sched = &bench.sim.sched};
        kvb_event_init(&ticker.event, on_tick);
        kvb_sched_post(&bench.sim.sched, &ticker.event);
        struct job jobs[16];
        for (int i = 0; i < 16; i++) {
            job_init(&jobs[i], &bench, KVT_TO_SHARE, 0, 0, MIB(8));
            cr_assert_eq(job_start(&jobs[i], &bench), KVB_OK);
        }
        cr_assert(sim_run_until_true(&bench.sim, &jobs[15].done, 1000));
        cr_assert_geq(ticker.ticks, 16 * MIB(8) / KVT_LOOPBACK_TURN - 16);
        kvb_sched_unpost(&ticker.event);
        bench_close(&bench);
    }
}
