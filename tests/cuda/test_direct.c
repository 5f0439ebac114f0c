/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory that an RDMA device reaches itself (transport/cuda.h, direct): the fake driver and the
 * fake verbs in one helper process, with a node at the other end of its wire (direct_helper.c).
 * This process is the engine and the daemon, whose own way to the node is played here: what arrives
 * by it went through the pool.
 */
#include "direct.h"
#include "real_loop.h"
#include "rig.h"
#include "test_values.h"

#include "base/log.h"
#include "engine.h"
#include "transport/cuda.h"
#include "transport_impl.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>

#define MIB      (1u << 20)
#define LEN      (4 * MIB) /* of the region */
#define POOL     (2 * MIB)
#define LIMIT_MS 120000u
#define MOVES    8u
#define EXPORTED CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

enum { PUT = 1, GET = 2 }; /* as the node's (tcp_rig.h): the question is extents of its memory */

/* The daemon's way to the node. */
struct way {
    struct kvt_transport base;
    uint8_t *node;
    const struct direct_shared *shared;
    bool nowhere; /* not by RDMA */
    uint32_t moved;
    struct kvb_list ended;
    struct kvb_event event;
};

struct move {
    struct kvt_transfer transfer;
    struct kvt_slice slices[2];
    struct kvt_extent extent;
    uint8_t answer[64];
    bool done;
    kvb_status_t status;
};

struct setup {
    struct cuda_rig rig;
    struct real_loop loop;
    struct kvt_regions *regions;
    struct way way;
    struct direct_shared *shared;
    int shared_fd;
    char lock_path[128];
    struct kvt_rdma_config rdma;
    struct kvt_peer_common common;
    struct kvt_cuda_direct direct;
    struct kvt_device *device;
    bool closed;

    struct cuda_engine engine;
    struct cuda_memory memory;
    uint64_t asleep; /* held when the region's memory is released: the engine's context */

    struct kvt_region *region;
    bool registered, unregistered;
    kvb_status_t status;
    struct move moves[MOVES];
};

/* ---- the daemon's way to the node ---- */

static void copy(const struct way *way, const struct kvt_transfer *transfer)
{
    struct kvt_extent extent;
    memcpy(&extent, transfer->ask.data, sizeof extent);
    uint8_t *at = way->node + extent.offset;
    for (uint32_t i = 0; i < transfer->nslices; i++) {
        const struct kvt_slice *slice = &transfer->slices[i];
        kvb_status_t status =
            transfer->direction == KVT_TO_SHARE
                ? kvt_region_read(slice->region, slice->offset, at, (size_t)slice->len)
                : kvt_region_write(slice->region, slice->offset, at, (size_t)slice->len);
        cr_assert_eq(status, KVB_OK);
        at += slice->len;
    }
}

static void way_turn(struct kvb_event *event)
{
    struct way *way = kvb_container_of(event, struct way, event);
    for (struct kvb_list *link; (link = kvb_list_pop(&way->ended)) != NULL;) {
        struct kvt_transfer *transfer = kvb_container_of(link, struct kvt_transfer, impl.link);
        copy(way, transfer);
        way->moved++;
        kvt_transfer_finish(transfer, KVB_OK);
    }
}

static struct way *way_of(const struct kvt_transport *transport)
{
    return kvb_container_of((struct kvt_transport *)(uintptr_t)transport, struct way, base);
}

static kvb_status_t way_start(struct kvt_transport *transport, struct kvt_transfer *transfer)
{
    struct way *way = way_of(transport);
    kvb_list_remove(&transfer->impl.link);
    kvb_list_push_back(&way->ended, &transfer->impl.link);
    kvb_sched_post(transport->sched, &way->event);
    return KVB_OK;
}

static void way_cancel(struct kvt_transport *transport, struct kvt_transfer *transfer,
                       uint64_t stop_deadline_ns)
{
    (void)transport, (void)transfer, (void)stop_deadline_ns;
}

static void way_destroy(struct kvt_transport *transport)
{
    (void)transport;
}

static const char *way_address(const struct kvt_transport *transport)
{
    const struct way *way = way_of(transport);
    return way->nowhere ? NULL : way->shared->address;
}

static const struct kvt_transport_ops way_ops = {
    .name = "played",
    .capabilities = KVT_CAP_ASKS,
    .start = way_start,
    .cancel = way_cancel,
    .rdma_address = way_address,
    .destroy = way_destroy,
};

/* ---- setting up ---- */

static void open_device(struct setup *s)
{
    struct kvt_cuda_config config = {
        .sched = &s->loop.sim.sched,
        .io = &s->loop.io,
        .regions = s->regions,
        .program = DIRECT_HELPER,
        .lock_path = s->lock_path,
        .owner = 7,
        .pool_len = POOL,
        .start_ms = LIMIT_MS,
        .direct = &s->direct,
    };
    cr_assert_eq(kvt_cuda_open(&config, &s->device), KVB_OK);
}

static void setup(struct setup *s)
{
    memset(s, 0, sizeof *s);
    if (!cuda_rig_init(&s->rig, 64)) {
        cr_skip_test("nothing can be mounted here");
    }
    kvb_log_threshold = KVB_LOG_ERROR;
    atomic_store(&s->rig.control->spared, (int)getpid());
    s->shared_fd = memfd_create("direct", MFD_CLOEXEC);
    cr_assert(s->shared_fd >= 0 && ftruncate(s->shared_fd, sizeof *s->shared) == 0);
    s->shared = mmap(NULL, sizeof *s->shared, PROT_READ | PROT_WRITE, MAP_SHARED, s->shared_fd, 0);
    cr_assert_neq(s->shared, MAP_FAILED);
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), s->shared_fd);
    cr_assert_eq(setenv(DIRECT_SHARED_ENV, path, 1), 0);

    real_init(&s->loop, sim_seed(1));
    cr_assert_eq(kvt_regions_create(&s->loop.sim.sched, &s->regions), KVB_OK);
    kvt_transport_init(&s->way.base, &way_ops, s->regions, MOVES);
    s->way.shared = s->shared;
    s->way.node = s->shared->node;
    kvb_list_init(&s->way.ended);
    kvb_event_init(&s->way.event, way_turn);
    (void)snprintf(s->lock_path, sizeof s->lock_path, "%s/lock", s->rig.dir);
    s->rdma = (struct kvt_rdma_config){.device = "fake0"};
    s->common = (struct kvt_peer_common){.secret = "a secret", .secret_len = 8};
    s->direct = (struct kvt_cuda_direct){&s->rdma, &s->common};
    open_device(s);

    char why[256] = "";
    cr_assert_eq(kvt_cu_open(KVT_CU_LIBRARY, &s->engine.cu, why), KVB_OK, "%s", why);
    cr_assert_eq(engine_open(&s->engine), CUDA_SUCCESS);
    s->asleep = cuda_rig_held(&s->rig);
    cr_assert_eq(engine_allocate(&s->engine, &s->memory, LEN, EXPORTED), CUDA_SUCCESS);
}

static bool is_true(void *flag)
{
    return *(bool *)flag;
}

static void on_closed(void *arg)
{
    struct setup *s = arg;
    s->closed = true;
}

static void close_device(struct setup *s)
{
    s->closed = false;
    kvt_cuda_close(s->device, on_closed, s);
    cr_assert(real_run_until(&s->loop, is_true, &s->closed, LIMIT_MS));
}

static void cleanup(struct setup *s)
{
    kvt_region_destroy(s->region);
    close_device(s);
    engine_free(&s->engine, &s->memory);
    cr_assert(cuda_rig_comes_to(&s->rig, s->asleep), "nothing of the region is held");
    engine_close(&s->engine);
    cr_assert_eq(atomic_load(&s->rig.control->misuse), 0, "no call that the driver forbids");
    kvt_transport_destroy(&s->way.base);
    kvt_regions_destroy(s->regions);
    (void)munmap(s->shared, sizeof *s->shared);
    (void)close(s->shared_fd);
    real_cleanup(&s->loop);
    cuda_rig_cleanup(&s->rig);
}

/* ---- a region's life ---- */

static void on_registered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    struct setup *s = arg;
    (void)region;
    s->registered = true;
    s->status = status;
}

static void on_unregistered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    struct setup *s = arg;
    (void)region;
    s->unregistered = true;
    s->status = status;
}

static kvb_status_t hand_over(struct setup *s)
{
    struct kvt_region_desc desc = {.owner = 7,
                                   .number = 1,
                                   .kind = KVT_MEMORY_CUDA,
                                   .tag = "kv_cache",
                                   .len = LEN,
                                   .generation = 1,
                                   .device = s->device};
    const char *reason = "";
    int fd = engine_export(&s->engine, &s->memory);
    cr_assert_geq(fd, 0);
    kvt_region_destroy(s->region);
    cr_assert_eq(kvt_region_create(s->regions, &desc, fd, &s->region, &reason), KVB_OK, "%s",
                 reason);
    s->registered = false;
    cr_assert_eq(kvt_region_register_start(s->region, kvb_deadline_in_ms(&kvb_clock_real, LIMIT_MS),
                                           on_registered, s),
                 KVB_IN_PROGRESS);
    cr_assert(real_run_until(&s->loop, is_true, &s->registered, LIMIT_MS));
    return s->status;
}

static kvb_status_t unregister_within(struct setup *s, uint64_t drain_ms, uint64_t stop_ms)
{
    s->unregistered = false;
    kvt_region_unregister(s->region, kvb_deadline_in_ms(&kvb_clock_real, drain_ms),
                          kvb_deadline_in_ms(&kvb_clock_real, stop_ms), on_unregistered, s);
    cr_assert(real_run_until(&s->loop, is_true, &s->unregistered, LIMIT_MS));
    return s->status;
}

static void sleep_engine(struct setup *s)
{
    cr_assert_eq(unregister_within(s, LIMIT_MS, 2 * LIMIT_MS), KVB_OK);
    engine_release(&s->engine, &s->memory);
}

static void wake_engine(struct setup *s)
{
    cr_assert_eq(engine_allocate(&s->engine, &s->memory, LEN, EXPORTED), CUDA_SUCCESS);
    cr_assert_eq(hand_over(s), KVB_OK);
}

static struct kvt_device_info info(const struct setup *s)
{
    struct kvt_device_info info;
    s->device->ops->info(s->device, &info);
    return info;
}

/* ---- the helper's side of it ---- */

static bool is_told(void *arg)
{
    const struct setup *s = arg;
    return atomic_load(&s->shared->asked) == atomic_load(&s->shared->done);
}

static void tell(struct setup *s, enum direct_command command, uint32_t number, int value)
{
    s->shared->command = command;
    s->shared->number = number;
    s->shared->value = value;
    (void)atomic_fetch_add(&s->shared->asked, 1);
    cr_assert(real_run_until(&s->loop, is_told, s, LIMIT_MS));
}

static bool is_running(void *arg)
{
    const struct setup *s = arg;
    return atomic_load(&s->shared->running) > 0;
}

/* ---- moves ---- */

static void on_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct move *move = kvb_container_of(transfer, struct move, transfer);
    cr_assert(!move->done, "once");
    move->done = true;
    move->status = status;
}

/* Two slices with a gap, and a run of the node's memory. */
static kvb_status_t start_move(struct setup *s, uint32_t i, int type, uint64_t at, uint64_t len,
                               uint64_t node_at, uint64_t within_ms)
{
    struct move *move = &s->moves[i];
    uint64_t half = len / 2;
    *move = (struct move){
        .slices = {{s->region, at, half}, {s->region, at + half + 512, len - half}},
        .extent = {node_at, len},
    };
    move->transfer = (struct kvt_transfer){
        .direction = type == PUT ? KVT_TO_SHARE : KVT_FROM_SHARE,
        .slices = move->slices,
        .nslices = 2,
        .hash = true,
        .type = (uint16_t)type,
        .ask = {(const uint8_t *)&move->extent, sizeof move->extent},
        .answer = move->answer,
        .answer_cap = sizeof move->answer,
        .deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, within_ms),
        .done = on_done,
    };
    kvb_status_t status = kvt_transfer_start(&s->way.base, &move->transfer);
    cr_assert(!move->done, "never inside the call");
    return status;
}

static kvb_status_t wait_for(struct setup *s, uint32_t i)
{
    cr_assert(real_run_until(&s->loop, is_true, &s->moves[i].done, LIMIT_MS));
    return s->moves[i].status;
}

static kvb_status_t move(struct setup *s, int type, uint64_t at, uint64_t len, uint64_t node_at)
{
    kvb_status_t status = start_move(s, 0, type, at, len, node_at, LIMIT_MS);
    return status == KVB_OK ? wait_for(s, 0) : status;
}

/* The engine writes, all of it goes there and comes back elsewhere, where the engine reads it. */
static bool works(struct setup *s, uint64_t number)
{
    enum { SIZE = 700 << 10 };
    static uint8_t bytes[SIZE + 512];
    uint64_t half = SIZE / 2;
    test_value_fill(bytes, SIZE, "direct", &number, sizeof number, 1);
    memset(s->shared->node, 0, SIZE);
    if (engine_fill(&s->engine, &s->memory, 4096, bytes, half) != CUDA_SUCCESS ||
        engine_fill(&s->engine, &s->memory, 4096 + half + 512, bytes + half, half) !=
            CUDA_SUCCESS ||
        move(s, PUT, 4096, SIZE, 8192) != KVB_OK ||
        memcmp(s->shared->node + 8192, bytes, SIZE) != 0) {
        return false;
    }
    memset(bytes, 0, sizeof bytes);
    if (move(s, GET, 2 * MIB + 64, SIZE, 8192) != KVB_OK ||
        engine_read(&s->engine, &s->memory, 2 * MIB + 64, bytes, sizeof bytes) != CUDA_SUCCESS) {
        return false;
    }
    memmove(bytes + half, bytes + half + 512, half);
    return test_value_check(bytes, SIZE, "direct", &number, sizeof number, 1) == SIZE;
}

static bool works_direct(struct setup *s, uint64_t number)
{
    uint32_t through_pool = s->way.moved;
    uint64_t before = info(s).moves;
    return works(s, number) && s->way.moved == through_pool && info(s).moves == before + 2;
}

static bool works_by_pool(struct setup *s, uint64_t number)
{
    uint32_t through_pool = s->way.moved;
    return works(s, number) && s->way.moved == through_pool + 2;
}

/* ---- what it promises ---- */

Test(direct, bytes_go_both_ways_and_the_pool_sees_none_of_them)
{
    static struct setup s;
    setup(&s);
    cr_assert_eq(hand_over(&s), KVB_OK);
    cr_assert(works_direct(&s, 1));
    cr_assert_eq(atomic_load(&s.rig.control->pieces), 0, "no copy");
    struct kvt_device_info now = info(&s);
    cr_assert(now.direct);
    cr_assert_eq(now.registrations, 1);
    cr_assert_eq(now.dma_bufs, 0, "the descriptor is closed when it is registered");
    cr_assert_str_empty(now.pool_cause);
    cr_assert_eq(s.moves[0].transfer.answer_len, 3);
    cr_assert_eq(memcmp(s.moves[0].answer, "got", 3), 0, "the node's answer is the transfer's");
    sleep_engine(&s);
    cleanup(&s);
}

static uint32_t descriptors(int pid)
{
    char path[64];
    uint32_t n = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    cr_assert_not_null(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    (void)closedir(dir);
    return n;
}

Test(direct, sleep_gives_all_of_it_back_in_every_cycle)
{
    static struct setup s;
    setup(&s);
    uint64_t awake = 0, asleep = 0;
    uint32_t open = 0;
    for (uint64_t cycle = 0; cycle < 5; cycle++) {
        if (cycle == 0) {
            cr_assert_eq(hand_over(&s), KVB_OK);
        } else {
            wake_engine(&s);
        }
        cr_assert(works_direct(&s, cycle));
        uint64_t held = cuda_rig_held(&s.rig);
        cr_assert(cycle == 0 || held == awake, "awake: %lu, %lu before", held, awake);
        awake = held;
        sleep_engine(&s);
        cr_assert_eq(info(&s).registrations, 0);
        held = cuda_rig_held(&s.rig);
        cr_assert(cycle == 0 || held == asleep, "asleep: %lu, %lu before", held, asleep);
        asleep = held;
        cr_assert_eq(held, s.asleep);
        cr_assert_eq(info(&s).starts, 1);
        uint32_t now = descriptors(info(&s).pid);
        cr_assert(cycle < 2 || now == open, "descriptors: %u, %u before", now, open);
        open = now;
    }
    cleanup(&s);
}

Test(direct, each_single_forgotten_reference_is_seen_in_the_account)
{
    static struct setup s;
    for (int what = 0; what < 2; what++) {
        setup(&s);
        s.shared->forget_registration = what == 0;
        s.shared->forget_descriptor = what == 1;
        cr_assert_eq(hand_over(&s), KVB_OK);
        cr_assert(works_direct(&s, 1));
        sleep_engine(&s);
        cr_assert_eq(cuda_rig_held(&s.rig), s.asleep + LEN, "what is forgotten holds it");
        close_device(&s); /* the release that always works */
        cr_assert(cuda_rig_comes_to(&s.rig, s.asleep));
        open_device(&s);
        cleanup(&s);
    }
}

/* ---- where it cannot be ---- */

Test(direct, where_there_is_no_dma_buf_the_address_is_registered)
{
    static struct setup s;
    for (int what = 0; what < 2; what++) {
        setup(&s);
        s.shared->peer_memory = true;
        s.shared->no_dma_buf = what == 0;
        atomic_store(&s.rig.control->no_dma_buf, what == 1);
        cr_assert_eq(hand_over(&s), KVB_OK);
        cr_assert(works_direct(&s, 1));
        cr_assert_str_empty(info(&s).pool_cause);
        sleep_engine(&s);
        cr_assert_eq(cuda_rig_held(&s.rig), s.asleep);
        cleanup(&s);
    }
}

Test(direct, what_cannot_be_registered_goes_through_the_pool_and_the_reason_is_kept)
{
    static struct setup s;
    setup(&s);
    s.shared->no_dma_buf = true;
    cr_assert_eq(hand_over(&s), KVB_OK);
    cr_assert(works_by_pool(&s, 1));
    struct kvt_device_info now = info(&s);
    cr_assert(now.direct);
    cr_assert_eq(now.registrations, 0);
    cr_assert_eq(now.moves, 0);
    cr_assert_not_null(strstr(now.pool_cause, "dma-buf: "), "%s", now.pool_cause);
    cr_assert_not_null(strstr(now.pool_cause, "nvidia-peermem: "), "%s", now.pool_cause);
    sleep_engine(&s);
    cleanup(&s);
}

Test(direct, without_an_rdma_device_all_goes_through_the_pool_and_the_reason_is_kept)
{
    static struct setup s;
    setup(&s);
    s.shared->no_device = true;
    cr_assert_eq(hand_over(&s), KVB_OK);
    cr_assert(works_by_pool(&s, 1));
    cr_assert_not_null(strstr(info(&s).pool_cause, "fake0"), "%s", info(&s).pool_cause);
    sleep_engine(&s);
    cleanup(&s);
}

Test(direct, a_device_whose_name_is_longer_than_any_costs_the_pool_and_no_helper)
{
    static struct setup s;
    setup(&s);
    s.rdma.device = "a-name-that-somebody-configured-and-that-no-device-of-this-kernel-can-have";
    cr_assert_eq(hand_over(&s), KVB_OK);
    cr_assert(works_by_pool(&s, 1));
    cr_assert_not_null(strstr(info(&s).pool_cause, "of that name"), "%s", info(&s).pool_cause);
    sleep_engine(&s);
    cleanup(&s);
}

Test(direct, a_node_that_is_not_reached_by_rdma_is_reached_through_the_pool)
{
    static struct setup s;
    setup(&s);
    s.way.nowhere = true;
    cr_assert_eq(hand_over(&s), KVB_OK);
    cr_assert(works_by_pool(&s, 1));
    s.way.nowhere = false;
    cr_assert(works_direct(&s, 2));
    sleep_engine(&s);
    cleanup(&s);
}

Test(direct, what_the_gpu_would_not_see_at_once_is_flushed_or_goes_through_the_pool)
{
    static struct setup s;
    setup(&s);
    atomic_store(&s.rig.control->unordered, 1);
    cr_assert_eq(hand_over(&s), KVB_OK);
    cr_assert(works_direct(&s, 1));
    cr_assert_eq(atomic_load(&s.rig.control->calls[FAKE_CUDA_flush_writes]), 1, "after the get");
    atomic_store(&s.rig.control->only, FAKE_CUDA_flush_writes + 1);
    cuda_rig_arm(&s.rig, 1, FAKE_CUDA_FAIL, CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(move(&s, GET, 0, 4096, 0), KVB_ERR_IO, "a get that is not seen is none");
    cr_assert(cuda_rig_disarm(&s.rig));
    cr_assert_not_null(strstr(info(&s).cause, "flush_writes"), "%s", info(&s).cause);
    cr_assert_eq(info(&s).kills, 0);
    cuda_rig_arm(&s.rig, 1, FAKE_CUDA_POISON, CUDA_ERROR_ILLEGAL_ADDRESS);
    cr_assert_eq(move(&s, GET, 0, 4096, 0), KVB_ERR_IO);
    cr_assert(cuda_rig_disarm(&s.rig));
    cr_assert_eq(info(&s).kills, 1, "nothing works any more in that process");
    sleep_engine(&s);
    wake_engine(&s);
    cr_assert(works_direct(&s, 1));
    sleep_engine(&s);
    atomic_store(&s.rig.control->unflushable, 1);
    wake_engine(&s);
    cr_assert(works_by_pool(&s, 2));
    cr_assert_not_null(strstr(info(&s).pool_cause, "does not say when"), "%s", info(&s).pool_cause);
    sleep_engine(&s);
    cleanup(&s);
}

/* ---- each step fails once ---- */

/* Whatever it comes to, the bytes get there, and sleep gives all back. */
static void check_import(struct setup *s, const char *what, uint64_t number)
{
    cr_assert_eq(hand_over(s), KVB_OK, "%s: the region serves all the same", what);
    bool direct = info(s).registrations == 1;
    cr_assert(direct ? works_direct(s, number) : works_by_pool(s, number), "%s", what);
    cr_assert(direct || info(s).pool_cause[0] != '\0', "%s: the reason is kept", what);
    sleep_engine(s);
    cr_assert_eq(cuda_rig_held(&s->rig), s->asleep, "%s", what);
    cr_assert_eq(engine_allocate(&s->engine, &s->memory, LEN, EXPORTED), CUDA_SUCCESS);
}

/* Soon: a connection that could not be made is tried again. */
static bool works_soon(struct setup *s, uint64_t number)
{
    for (int i = 0; i < 100 && !works(s, number); i++) {
        real_run_for(&s->loop, 20);
    }
    return works(s, number);
}

Test(direct, each_call_of_opening_and_connecting_fails_once, .timeout = 600)
{
    static struct setup s;
    setup(&s);
    enum { CALLS = 90 }; /* more than it takes until the first bytes go */
    uint32_t pooled = 0, failed = 0;
    (void)snprintf(s.shared->fail_name, sizeof s.shared->fail_name, "any");
    s.shared->fail_value = ENOMEM;
    for (uint32_t i = 0; i < CALLS; i++) {
        s.shared->fail_number = i;
        cr_assert_eq(hand_over(&s), KVB_OK, "call %u", i);
        pooled += info(&s).registrations == 0;
        cr_assert(works_soon(&s, i), "call %u", i);
        failed += atomic_load(&s.shared->failed) != 0;
        sleep_engine(&s);
        cr_assert_eq(cuda_rig_held(&s.rig), s.asleep, "call %u", i);
        close_device(&s);
        open_device(&s);
        cr_assert_eq(engine_allocate(&s.engine, &s.memory, LEN, EXPORTED), CUDA_SUCCESS);
    }
    cr_assert_eq(failed, CALLS);
    cr_assert_gt(pooled, 3);
    cleanup(&s);
}

Test(direct, each_call_of_registering_fails_once, .timeout = 600)
{
    static const char *const names[] = {"ibv_reg_dmabuf_mr", "ibv_reg_mr"};
    static struct setup s;
    setup(&s);
    s.shared->peer_memory = true;
    check_import(&s, "nothing", 0);
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(s.shared->name, sizeof s.shared->name, "%s", names[i]);
        tell(&s, DIRECT_FAIL, 0, EINVAL);
        check_import(&s, names[i], i);
    }
    cuda_rig_arm(&s.rig, 1, FAKE_CUDA_FAIL, CUDA_ERROR_NOT_PERMITTED);
    atomic_store(&s.rig.control->only, FAKE_CUDA_mem_range_handle + 1);
    check_import(&s, "mem_range_handle", 3);
    cr_assert(cuda_rig_disarm(&s.rig));
    cr_assert_eq(info(&s).starts, 1, "one helper all along");
    cleanup(&s);
}

Test(direct, a_registration_that_is_not_taken_back_is_asked_for_again_or_costs_the_helper)
{
    static struct setup s;
    setup(&s);
    for (int again = 0; again < 2; again++) {
        cr_assert_eq(hand_over(&s), KVB_OK);
        cr_assert(works_direct(&s, 1));
        (void)snprintf(s.shared->name, sizeof s.shared->name, "ibv_dereg_mr");
        tell(&s, DIRECT_FAIL, 0, EBUSY);
        sleep_engine(&s);
        cr_assert_eq(cuda_rig_held(&s.rig), s.asleep);
        cr_assert_eq(engine_allocate(&s.engine, &s.memory, LEN, EXPORTED), CUDA_SUCCESS);
    }
    cleanup(&s);
}

/* ---- what stops a move ---- */

Test(direct, a_region_is_taken_from_posted_work_within_its_bound)
{
    static struct setup s;
    setup(&s);
    cr_assert_eq(hand_over(&s), KVB_OK);
    cr_assert(works_direct(&s, 1));
    int pid = info(&s).pid;
    tell(&s, DIRECT_MUTE, 1, 0);
    cr_assert_eq(start_move(&s, 1, PUT, 0, MIB, 0, LIMIT_MS), KVB_OK);
    real_run_for(&s.loop, 50);
    cr_assert(!s.moves[1].done);
    cr_assert_eq(unregister_within(&s, 100, 4000), KVB_OK);
    cr_assert(s.moves[1].done && s.moves[1].status != KVB_OK);
    cr_assert_eq(info(&s).registrations, 0);
    cr_assert_eq(info(&s).pid, pid, "and nobody was killed for it");
    engine_release(&s.engine, &s.memory);
    cr_assert_eq(cuda_rig_held(&s.rig), s.asleep);
    tell(&s, DIRECT_MUTE, 0, 0);
    wake_engine(&s);
    for (int i = 0; i < 50 && !works_direct(&s, 2); i++) {
        real_run_for(&s.loop, 50);
    }
    cr_assert(works_direct(&s, 3), "and it goes on");
    sleep_engine(&s);
    cleanup(&s);
}

Test(direct, a_helper_that_does_not_stop_is_killed_within_the_bound)
{
    static struct setup s;
    setup(&s);
    cr_assert_eq(hand_over(&s), KVB_OK);
    tell(&s, DIRECT_LATE, 1, 0);
    cr_assert_eq(start_move(&s, 0, PUT, 0, MIB, 0, LIMIT_MS), KVB_OK);
    cr_assert(real_run_until(&s.loop, is_running, &s, LIMIT_MS));
    cr_assert_eq(kill(info(&s).pid, SIGSTOP), 0);
    cr_assert_eq(unregister_within(&s, 50, 2000), KVB_OK);
    cr_assert_neq(s.moves[0].status, KVB_OK);
    cr_assert_eq(info(&s).kills, 1);
    engine_release(&s.engine, &s.memory);
    cr_assert(cuda_rig_comes_to(&s.rig, s.asleep));
    wake_engine(&s);
    cr_assert(works_direct(&s, 1));
    sleep_engine(&s);
    cleanup(&s);
}

Test(direct, a_cancelled_move_ends_within_its_bound)
{
    static struct setup s;
    setup(&s);
    cr_assert_eq(hand_over(&s), KVB_OK);
    tell(&s, DIRECT_LATE, 1, 0);
    cr_assert_eq(start_move(&s, 0, PUT, 0, MIB, 0, LIMIT_MS), KVB_OK);
    cr_assert(real_run_until(&s.loop, is_running, &s, LIMIT_MS));
    kvt_transfer_cancel(&s.moves[0].transfer, kvb_deadline_in_ms(&kvb_clock_real, 4000));
    cr_assert(!s.moves[0].done, "never inside the call");
    cr_assert_eq(wait_for(&s, 0), KVB_ERR_CANCELED);
    cr_assert_eq(start_move(&s, 0, PUT, 0, MIB, 0, 30), KVB_OK);
    cr_assert_eq(wait_for(&s, 0), KVB_ERR_TIMEOUT, "as one whose time is over");
    cr_assert_eq(info(&s).kills, 0);
    tell(&s, DIRECT_LATE, 0, 0);
    cr_assert(works_direct(&s, 1));
    sleep_engine(&s);
    cleanup(&s);
}

Test(direct, the_nodes_last_word_is_the_gets_end)
{
    static struct setup s;
    setup(&s);
    cr_assert_eq(hand_over(&s), KVB_OK);
    cr_assert(works_direct(&s, 1));
    tell(&s, DIRECT_VERDICT, 0, KVB_ERR_NOT_FOUND); /* its ticket was not held any more */
    cr_assert_eq(move(&s, GET, 0, MIB, 0), KVB_ERR_NOT_FOUND);
    tell(&s, DIRECT_VERDICT, 0, KVB_OK);
    cr_assert_eq(move(&s, GET, 0, MIB, 0), KVB_OK);
    sleep_engine(&s);
    cleanup(&s);
}

/* ---- who dies ---- */

Test(direct, a_node_that_dies_fails_what_runs_and_is_reached_again_when_it_is_back)
{
    static struct setup s;
    setup(&s);
    cr_assert_eq(hand_over(&s), KVB_OK);
    tell(&s, DIRECT_LATE, 1, 0);
    cr_assert_eq(start_move(&s, 0, PUT, 0, MIB, 0, LIMIT_MS), KVB_OK);
    cr_assert(real_run_until(&s.loop, is_running, &s, LIMIT_MS));
    tell(&s, DIRECT_CLOSE, 0, 0);
    cr_assert_eq(wait_for(&s, 0), KVB_ERR_DISCONNECTED);
    cr_assert(works_by_pool(&s, 1), "there may be another way to it");
    cr_assert_str_not_empty(info(&s).pool_cause);
    tell(&s, DIRECT_LATE, 0, 0);
    tell(&s, DIRECT_OPEN, 0, 0);
    cr_assert(works_direct(&s, 2));
    cr_assert_eq(info(&s).starts, 1);
    sleep_engine(&s);
    cleanup(&s);
}

Test(direct, a_node_that_is_not_there_from_the_start_is_reached_through_the_pool)
{
    static struct setup s;
    setup(&s);
    cr_assert_eq(hand_over(&s), KVB_OK);
    tell(&s, DIRECT_CLOSE, 0, 0);
    cr_assert(works_by_pool(&s, 1));
    tell(&s, DIRECT_OPEN, 0, 0);
    cr_assert(works_direct(&s, 2));
    sleep_engine(&s);
    cleanup(&s);
}

Test(direct, a_helper_that_is_killed_in_the_middle_gives_all_back_and_the_next_goes_on)
{
    static struct setup s;
    setup(&s);
    for (int type = PUT; type <= GET; type++) {
        cr_assert_eq(hand_over(&s), KVB_OK);
        cr_assert(works_direct(&s, 1));
        tell(&s, DIRECT_LATE, 1, 0);
        cr_assert_eq(start_move(&s, 0, type, 0, MIB, 0, LIMIT_MS), KVB_OK);
        cr_assert(real_run_until(&s.loop, is_running, &s, LIMIT_MS));
        cr_assert_eq(kill(info(&s).pid, SIGKILL), 0);
        cr_assert_eq(wait_for(&s, 0), KVB_ERR_UNAVAILABLE);
        cr_assert(s.moves[0].transfer.ours, "it says nothing of the node");
        cr_assert_eq(info(&s).registrations, 0);
        cr_assert_eq(move(&s, type, 0, 4096, 0), KVB_ERR_UNAVAILABLE, "until it is handed over");
        sleep_engine(&s);
        cr_assert(cuda_rig_comes_to(&s.rig, s.asleep));
        cr_assert_eq(engine_allocate(&s.engine, &s.memory, LEN, EXPORTED), CUDA_SUCCESS);
    }
    cr_assert_eq(info(&s).starts, 2);
    cleanup(&s);
}

Test(direct, a_device_that_goes_away_leaves_the_pool_and_sleep_gives_all_back)
{
    static struct setup s;
    setup(&s);
    cr_assert_eq(hand_over(&s), KVB_OK);
    tell(&s, DIRECT_LATE, 1, 0);
    cr_assert_eq(start_move(&s, 0, PUT, 0, MIB, 0, LIMIT_MS), KVB_OK);
    cr_assert(real_run_until(&s.loop, is_running, &s, LIMIT_MS));
    tell(&s, DIRECT_REMOVE, 0, 0);
    cr_assert_neq(wait_for(&s, 0), KVB_OK);
    cr_assert(works_by_pool(&s, 1));
    sleep_engine(&s);
    cr_assert(cuda_rig_comes_to(&s.rig, s.asleep));
    wake_engine(&s);
    cr_assert_not_null(strstr(info(&s).pool_cause, "is lost"), "%s", info(&s).pool_cause);
    cr_assert_eq(info(&s).registrations, 0);
    cr_assert(works_by_pool(&s, 2));
    sleep_engine(&s);
    cleanup(&s);
}
