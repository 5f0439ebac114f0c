/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RDMA_SIM_H
#define TESTS_RDMA_SIM_H

/*
 * A peer, and a node that serves plain memory, over the fake's verbs. Each side has a scheduler of
 * its own, so that either process can be stopped (SIGSTOP) while the wire, a third one, goes on.
 */
#include "fake_verbs.h"
#include "tcp_rig.h"
#include "test_memory.h"
#include "test_values.h"

#include "base/log.h"
#include "transport/rdma.h"

#include <errno.h>

#ifdef TESTS_PLAIN /* a program without Criterion */
#define cr_assert(expression, ...) kvb_assert(expression)
#define cr_assert_eq(a, b, ...)    kvb_assert((a) == (b))
#define cr_assert_leq(a, b, ...)   kvb_assert((a) <= (b))
#define cr_assert_null(a, ...)     kvb_assert((a) == NULL)
#else
#include <criterion/criterion.h>
#endif

#define KIB(n) ((uint64_t)(n) << 10)
#define MIB(n) ((uint64_t)(n) << 20)
#ifndef RDMA_SIM_LEN
#define RDMA_SIM_LEN MIB(8)
#endif
#define BOUND_MS 60000

enum { SIDE_ASKER = FAKE_ASKER, SIDE_NODE = FAKE_NODE, SIDE_WIRE, SIDES };

struct rdma_sim {
    struct sim_sched sims[SIDES];
    bool stopped[SIDES]; /* the process: nothing of it runs */
    struct fake_verbs *fake;
    struct fake_io ios[FAKE_SIDES];
    struct kvt_rdma_device *devices[FAKE_SIDES];
    struct test_memory engine, node_memory;
    struct rig_node node;
    const struct kvt_server_ops *server_ops; /* the rig's, unless a test has its own */
    struct kvt_rdma_share *share;
    struct kvt_rdma_server *server;
    struct kvt_rdma_listener *listener;
    char address[64];
    struct kvt_regions *regions;
    struct kvt_rdma_memory *memory;
    struct kvt_region *region;
    struct kvt_transport *peer;
    struct kvt_peer_common common;
    struct kvt_rdma_config config[FAKE_SIDES];
    char reason[KVT_RDMA_REASON_MAX];
    uint32_t ups, downs;
    bool up;
    kvb_status_t why; /* of the last down */
    uint32_t refused; /* connections that the server did not take */
};

/* ---- time ---- */

/* One turn of all that runs; when the next is due. */
static inline uint64_t rdma_turn(struct rdma_sim *rig)
{
    uint64_t due_ns = KVB_NEVER;
    for (int side = 0; side < SIDES; side++) {
        if (!rig->stopped[side]) {
            uint64_t at_ns = sim_turn(&rig->sims[side]);
            due_ns = at_ns < due_ns ? at_ns : due_ns;
        }
    }
    for (int side = 0; side < SIDES; side++) { /* one may have posted to another */
        if (!rig->stopped[side] && !kvb_list_empty(&rig->sims[side].sched.ready)) {
            due_ns = 0;
        }
    }
    return due_ns;
}

static inline void rdma_jump(struct rdma_sim *rig, uint64_t now_ns)
{
    for (int side = 0; side < SIDES; side++) {
        rig->sims[side].now_ns = now_ns;
    }
}

static inline uint64_t rdma_now_ns(const struct rdma_sim *rig)
{
    return rig->sims[SIDE_WIRE].now_ns;
}

static inline uint64_t rdma_in_ms(const struct rdma_sim *rig, uint64_t ms)
{
    return rdma_now_ns(rig) + ms * KVB_NS_PER_MS;
}

/* One turn, and, if there is nothing else to do, on to what is due next. */
static inline void rdma_step(struct rdma_sim *rig)
{
    uint64_t due_ns = rdma_turn(rig);
    if (due_ns > rdma_now_ns(rig) && due_ns != KVB_NEVER) {
        rdma_jump(rig, due_ns);
    }
}

static inline void rdma_settle(struct rdma_sim *rig)
{
    while (rdma_turn(rig) <= rdma_now_ns(rig)) {
    }
}

static inline void rdma_advance(struct rdma_sim *rig, uint64_t ms)
{
    uint64_t end_ns = rdma_in_ms(rig, ms);
    for (;;) {
        uint64_t due_ns = rdma_turn(rig);
        if (due_ns > end_ns) {
            break;
        }
        if (due_ns > rdma_now_ns(rig)) {
            rdma_jump(rig, due_ns);
        }
    }
    rdma_jump(rig, end_ns);
    rdma_settle(rig);
}

static inline bool rdma_run_until(struct rdma_sim *rig, const bool *flag, uint64_t limit_ms)
{
    uint64_t end_ns = rdma_in_ms(rig, limit_ms);
    while (!*flag) {
        uint64_t due_ns = rdma_turn(rig);
        if (*flag || due_ns <= rdma_now_ns(rig)) {
            continue;
        }
        if (due_ns > end_ns) {
            rdma_jump(rig, end_ns);
            return false;
        }
        rdma_jump(rig, due_ns);
    }
    return true;
}

/* ---- the two of them ---- */

static inline void rdma_sim_accepted_(void *ctx, struct kvt_rdma_conn *conn)
{
    struct rdma_sim *rig = ctx;
    if (rig->server == NULL) {
        kvt_rdma_conn_drop(conn);
        return;
    }
    rig->refused += kvt_rdma_server_adopt(rig->server, conn) != KVB_OK;
}

static inline void rdma_sim_up_(void *ctx, const struct kvt_hello *hello)
{
    struct rdma_sim *rig = ctx;
    cr_assert_eq(hello->incarnation, 11);
    rig->ups++;
    rig->up = true;
}

static inline void rdma_sim_down_(void *ctx, kvb_status_t why)
{
    struct rdma_sim *rig = ctx;
    rig->downs++;
    rig->up = false;
    rig->why = why;
}

static const struct kvt_peer_ops rdma_sim_peer_ops = {.up = rdma_sim_up_, .down = rdma_sim_down_};

/* Schedulers, wire and memory; no device yet. */
static inline void rdma_sim_init(struct rdma_sim *rig, uint64_t seed)
{
    *rig = (struct rdma_sim){0};
    for (int side = 0; side < SIDES; side++) {
        sim_init(&rig->sims[side], sim_seed(seed) + (uint64_t)side);
    }
    rig->fake = fake_verbs_open(&rig->sims[SIDE_WIRE]);
    for (int side = 0; side < FAKE_SIDES; side++) {
        fake_io_init(&rig->ios[side], &rig->sims[side]);
        rig->config[side] = (struct kvt_rdma_config){
            .device = side == SIDE_ASKER ? "fake0" : "fake1", .verbs = &fake_verbs_table};
    }
    rig->common = (struct kvt_peer_common){.secret = "a secret", .secret_len = 8};
    test_memory_init(&rig->node_memory, "node", RDMA_SIM_LEN);
    test_memory_init(&rig->engine, "engine", RDMA_SIM_LEN);
    rig->node = (struct rig_node){.base = rig->node_memory.base, .len = RDMA_SIM_LEN};
    kvb_list_init(&rig->node.waiting);
    rig->server_ops = &rig_server_ops;
}

static inline kvb_status_t rdma_sim_device(struct rdma_sim *rig, enum fake_side side)
{
    return kvt_rdma_device_open(&rig->config[side], &rig->sims[side].sched, &rig->ios[side].base,
                                &rig->devices[side], rig->reason);
}

/* The node's side, all of it; on a failure what was made is gone again. */
static inline kvb_status_t rdma_sim_node(struct rdma_sim *rig)
{
    struct kvt_rdma_listener_config listener = {.sched = &rig->sims[SIDE_NODE].sched,
                                                .io = &rig->ios[SIDE_NODE].base,
                                                .address = FAKE_NODE_ADDRESS ":0",
                                                .accepted = rdma_sim_accepted_,
                                                .ctx = rig};
    struct kvt_rdma_server_config server = {.common = rig->common,
                                            .sched = &rig->sims[SIDE_NODE].sched,
                                            .io = &rig->ios[SIDE_NODE].base,
                                            .name = "node-1",
                                            .incarnation = 11,
                                            .ops = rig->server_ops,
                                            .ctx = &rig->node};
    kvb_status_t status = rdma_sim_device(rig, FAKE_NODE);
    if (status != KVB_OK) {
        return status;
    }
    listener.device = server.device = rig->devices[SIDE_NODE];
    status = kvt_rdma_share_register(rig->devices[SIDE_NODE], rig->node_memory.base, RDMA_SIM_LEN,
                                     &rig->share, rig->reason);
    if (status != KVB_OK) {
        goto err_device;
    }
    status = kvt_rdma_server_create(&server, &rig->server);
    if (status != KVB_OK) {
        goto err_share;
    }
    status = kvt_rdma_listener_create(&listener, &rig->listener, rig->reason);
    if (status != KVB_OK) {
        goto err_server;
    }
    (void)snprintf(rig->address, sizeof rig->address, FAKE_NODE_ADDRESS ":%u",
                   kvt_rdma_listener_port(rig->listener));
    return KVB_OK;

err_server:
    kvt_rdma_server_destroy(rig->server);
    rig->server = NULL;
err_share:
    kvt_rdma_share_unregister(rig->share);
    rig->share = NULL;
err_device:
    kvt_rdma_device_close(rig->devices[SIDE_NODE]);
    rig->devices[SIDE_NODE] = NULL;
    return status;
}

static inline kvb_status_t rdma_sim_region(struct rdma_sim *rig, struct kvt_region **region_p,
                                           uint64_t owner, uint64_t offset, uint64_t len)
{
    struct kvt_region_desc desc = {
        .owner = owner, .number = 1, .tag = "kv_cache", .fd_offset = offset, .len = len};
    const char *reason;
    int fd = test_memory_dup(&rig->engine);
    kvb_status_t status = kvt_region_create(rig->regions, &desc, fd, region_p, &reason);
    if (status != KVB_OK) {
        *region_p = NULL;
        (void)close(fd);
        return status;
    }
    status = kvt_region_register(*region_p);
    if (status != KVB_OK) {
        kvt_region_destroy(*region_p);
        *region_p = NULL;
    }
    return status;
}

/* The engine's side without the peer; on a failure what was made is gone again. */
static inline kvb_status_t rdma_sim_engine(struct rdma_sim *rig)
{
    kvb_status_t status = rdma_sim_device(rig, FAKE_ASKER);
    if (status != KVB_OK) {
        return status;
    }
    status = kvt_regions_create(&rig->sims[SIDE_ASKER].sched, &rig->regions);
    if (status != KVB_OK) {
        rig->regions = NULL;
        goto err_device;
    }
    status = kvt_rdma_memory_create(rig->devices[SIDE_ASKER], rig->regions, &rig->memory);
    if (status != KVB_OK) {
        goto err_regions;
    }
    status = rdma_sim_region(rig, &rig->region, 1, 0, RDMA_SIM_LEN);
    if (status != KVB_OK) {
        goto err_memory;
    }
    return KVB_OK;

err_memory:
    kvt_rdma_memory_destroy(rig->memory);
    rig->memory = NULL;
err_regions:
    kvt_regions_destroy(rig->regions);
    rig->regions = NULL;
err_device:
    kvt_rdma_device_close(rig->devices[SIDE_ASKER]);
    rig->devices[SIDE_ASKER] = NULL;
    return status;
}

static inline kvb_status_t rdma_sim_peer(struct rdma_sim *rig, struct kvt_rdma_peer_config config)
{
    if (config.common.secret_len == 0) {
        config.common = rig->common;
    }
    config.memory = rig->memory;
    config.io = &rig->ios[SIDE_ASKER].base;
    config.address = config.address != NULL ? config.address : rig->address;
    config.ops = &rdma_sim_peer_ops;
    config.ctx = rig;
    return kvt_rdma_peer_create(rig->regions, &config, &rig->peer);
}

/* All of it, up. */
static inline void rdma_sim_open(struct rdma_sim *rig, uint64_t seed,
                                 struct kvt_rdma_peer_config config)
{
    rdma_sim_init(rig, seed);
    cr_assert_eq(rdma_sim_node(rig), KVB_OK, "%s", rig->reason);
    cr_assert_eq(rdma_sim_engine(rig), KVB_OK, "%s", rig->reason);
    cr_assert_eq(rdma_sim_peer(rig, config), KVB_OK);
    cr_assert(rdma_run_until(rig, &rig->up, BOUND_MS), "it comes up");
}

struct rdma_ended {
    bool done;
    kvb_status_t status;
};

static inline void rdma_sim_unregistered_(void *arg, struct kvt_region *region, kvb_status_t status)
{
    (void)region;
    struct rdma_ended *ended = arg;
    cr_assert(!ended->done);
    *ended = (struct rdma_ended){.done = true, .status = status};
}

/* Within drain_ms, and stop_ms after that. */
static inline kvb_status_t rdma_sim_unregister(struct rdma_sim *rig, struct kvt_region *region,
                                               uint64_t drain_ms, uint64_t stop_ms)
{
    struct rdma_ended ended = {0};
    kvt_region_unregister(region, rdma_in_ms(rig, drain_ms), rdma_in_ms(rig, drain_ms + stop_ms),
                          rdma_sim_unregistered_, &ended);
    cr_assert(rdma_run_until(rig, &ended.done, drain_ms + stop_ms + 1), "bounded");
    return ended.status;
}

static inline void rdma_sim_close_engine(struct rdma_sim *rig)
{
    if (rig->peer != NULL) {
        kvt_transport_destroy(rig->peer);
        rig->peer = NULL;
    }
    if (rig->region != NULL) {
        cr_assert_eq(kvt_region_refs(rig->region), 0);
        if (kvt_region_state(rig->region) == KVT_REGION_REGISTERED) {
            cr_assert_eq(rdma_sim_unregister(rig, rig->region, 1000, 1000), KVB_OK);
        }
        kvt_region_destroy(rig->region);
        rig->region = NULL;
    }
    if (rig->regions != NULL) {
        kvt_rdma_memory_destroy(rig->memory);
        kvt_regions_destroy(rig->regions);
        kvt_rdma_device_close(rig->devices[SIDE_ASKER]);
        rig->memory = NULL;
        rig->regions = NULL;
        rig->devices[SIDE_ASKER] = NULL;
    }
}

static inline void rdma_sim_close_node(struct rdma_sim *rig)
{
    if (rig->server != NULL) {
        kvt_rdma_listener_destroy(rig->listener);
        kvt_rdma_server_destroy(rig->server);
        kvt_rdma_share_unregister(rig->share);
        kvt_rdma_device_close(rig->devices[SIDE_NODE]);
        rig->server = NULL;
        rig->devices[SIDE_NODE] = NULL;
    }
    cr_assert(rig->node.sessions == 0 && rig->node.running == 0, "each request ended");
}

/* Nothing is left behind, on either side. */
static inline void rdma_sim_close(struct rdma_sim *rig)
{
    rig->stopped[SIDE_ASKER] = rig->stopped[SIDE_NODE] = false;
    rdma_sim_close_engine(rig);
    rdma_sim_close_node(rig);
    for (int side = 0; side < FAKE_SIDES; side++) {
        fake_io_cleanup(&rig->ios[side]);
    }
    fake_verbs_close();
    test_memory_cleanup(&rig->engine);
    test_memory_cleanup(&rig->node_memory);
    for (int side = 0; side < SIDES; side++) {
        sim_cleanup(&rig->sims[side]);
    }
}

static inline struct kvt_peer_stats rdma_sim_stats(const struct rdma_sim *rig)
{
    struct kvt_peer_stats stats;
    kvt_rdma_peer_stats(rig->peer, &stats);
    return stats;
}

static inline uint64_t rdma_sim_cause(const struct rdma_sim *rig, enum fake_side side,
                                      enum kvt_rdma_cause cause)
{
    return kvt_rdma_device_count(rig->devices[side], cause);
}

/* ---- transfers ---- */

struct rdma_job {
    struct kvt_transfer transfer;
    struct rdma_sim *rig;
    struct kvt_slice slice;
    struct kvt_extent extent;
    uint8_t answer[64];
    bool done, inside;
    kvb_status_t status;
    uint64_t ended_ns;
};

static inline void rdma_job_done_(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct rdma_job *job = kvb_container_of(transfer, struct rdma_job, transfer);
    cr_assert(!job->done, "exactly once");
    cr_assert(!job->inside, "never inside a call");
    job->done = true;
    job->status = status;
    job->ended_ns = rdma_now_ns(job->rig);
}

/* RIG_PUT, RIG_GET of [at, at + len) of both memories; RIG_ECHO */
static inline void rdma_job_init(struct rdma_job *job, struct rdma_sim *rig, uint16_t type,
                                 uint64_t at, uint64_t len)
{
    *job = (struct rdma_job){
        .rig = rig, .slice = {rig->region, at, len}, .extent = {.offset = at, .len = len}};
    job->transfer = (struct kvt_transfer){
        .direction = type == RIG_PUT ? KVT_TO_SHARE : KVT_FROM_SHARE,
        .slices = &job->slice,
        .nslices = type == RIG_ECHO ? 0 : 1,
        .type = type,
        .ask = {(const uint8_t *)&job->extent, sizeof job->extent},
        .answer = job->answer,
        .answer_cap = sizeof job->answer,
        .deadline_ns = KVB_NEVER,
        .done = rdma_job_done_,
    };
}

static inline kvb_status_t rdma_job_start(struct rdma_job *job)
{
    job->inside = true;
    kvb_status_t status = kvt_transfer_start(job->rig->peer, &job->transfer);
    job->inside = false;
    return status;
}

static inline kvb_status_t rdma_job_wait(struct rdma_job *job)
{
    cr_assert(rdma_run_until(job->rig, &job->done, BOUND_MS), "it ends");
    return job->status;
}

/* What it ended with, or why it did not start. */
static inline kvb_status_t rdma_job_run(struct rdma_job *job)
{
    kvb_status_t status = rdma_job_start(job);
    return status == KVB_OK ? rdma_job_wait(job) : status;
}

static inline kvb_status_t rdma_sim_run(struct rdma_sim *rig, uint16_t type, uint64_t at,
                                        uint64_t len)
{
    struct rdma_job job;
    rdma_job_init(&job, rig, type, at, len);
    return rdma_job_run(&job);
}

/* Works, both ways, with the right bytes. */
static inline bool rdma_sim_works(struct rdma_sim *rig, uint64_t number)
{
    test_value_fill(rig->engine.base, KIB(100), "t", &number, sizeof number, 1);
    memset(rig->node_memory.base, 0, KIB(100));
    if (rdma_sim_run(rig, RIG_PUT, 0, KIB(100)) != KVB_OK ||
        test_value_check(rig->node_memory.base, KIB(100), "t", &number, sizeof number, 1) !=
            KIB(100)) {
        return false;
    }
    memset(rig->engine.base, 0, KIB(100));
    return rdma_sim_run(rig, RIG_GET, 0, KIB(100)) == KVB_OK &&
           test_value_check(rig->engine.base, KIB(100), "t", &number, sizeof number, 1) ==
               KIB(100) &&
           rdma_sim_run(rig, RIG_ECHO, 0, 0) == KVB_OK;
}

/* Works again, within a bound. */
static inline bool rdma_sim_recovers(struct rdma_sim *rig, uint64_t number)
{
    for (int i = 0; i < 200; i++) {
        if (rdma_sim_works(rig, number)) {
            return true;
        }
        rdma_advance(rig, 100);
    }
    return false;
}

#endif
