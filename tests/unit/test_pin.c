/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a region against real pins: a kernel that holds the pages of what is registered, as
 * an RDMA driver does. Asleep, nothing is held; and the control, in which nobody unregisters, shows
 * that it would be, and that the bytes would be the old ones.
 */
#include "sim_sched.h"
#include "test_memory.h"
#include "uring_pin.h"

#include <criterion/criterion.h>

#include <fcntl.h>
#include <sys/stat.h>

#define LEN     (1u << 20)
#define LEN_KIB (LEN >> 10)

struct rig {
    struct sim_sched sim;
    struct kvt_regions *regions;
    struct pin pin;
    struct kvt_share *share;
    struct test_memory node, engine;
    struct kvt_region *region;
    uint64_t base_kib; /* pinned by others */
    uint64_t generation;
};

/* False: this kernel does not do it, which was said. */
static bool rig_open(struct rig *rig)
{
    const char *why = pin_refused();
    if (why != NULL) {
        printf("SKIP: %s\n", why);
        return false;
    }
    *rig = (struct rig){.base_kib = pin_kib()};
    sim_init(&rig->sim, sim_seed(1));
    cr_assert_eq(kvt_regions_create(&rig->sim.sched, &rig->regions), KVB_OK);
    test_memory_init(&rig->node, "node", LEN);
    test_memory_init(&rig->engine, "engine", LEN);
    pin_init(&rig->pin, rig->regions, rig->node.fd);
    cr_assert_eq(kvt_share_create(&rig->pin.base, rig->node.base, LEN, &rig->share), KVB_OK);
    return true;
}

static void wake(struct rig *rig)
{
    struct kvt_region_desc desc = {
        .owner = 1, .number = 1, .tag = "kv_cache", .len = LEN, .generation = ++rig->generation};
    const char *reason;
    cr_assert_eq(kvt_region_create(rig->regions, &desc, test_memory_dup(&rig->engine), &rig->region,
                                   &reason),
                 KVB_OK);
    cr_assert_eq(kvt_region_register(rig->region), KVB_OK);
}

static void on_unregistered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    (void)region;
    cr_assert_eq(status, KVB_OK);
    *(bool *)arg = true;
}

static void release(struct rig *rig)
{
    bool done = false;
    kvt_region_unregister(rig->region, sim_in_ms(&rig->sim, 100), sim_in_ms(&rig->sim, 200),
                          on_unregistered, &done);
    cr_assert(sim_run_until_true(&rig->sim, &done, 300));
    kvt_region_destroy(rig->region);
    rig->region = NULL;
}

static void rig_close(struct rig *rig)
{
    if (rig->region != NULL) {
        release(rig);
    }
    kvt_share_destroy(rig->share);
    kvt_transport_destroy(&rig->pin.base);
    kvt_regions_destroy(rig->regions);
    test_memory_cleanup(&rig->engine);
    test_memory_cleanup(&rig->node);
    sim_cleanup(&rig->sim);
}

/* The engine gives its pages back: the descriptor stays, and what is written next lies elsewhere.
 */
static void discard(struct rig *rig)
{
    cr_assert_eq(fallocate(rig->engine.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, LEN), 0);
    struct stat stat;
    cr_assert_eq(fstat(rig->engine.fd, &stat), 0);
    cr_assert_eq(stat.st_blocks, 0);
}

struct job {
    struct kvt_transfer transfer;
    struct kvt_slice slice;
    struct kvt_extent extent;
    bool done;
    kvb_status_t status;
};

static void on_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct job *job = kvb_container_of(transfer, struct job, transfer);
    job->done = true;
    job->status = status;
}

static void start(struct rig *rig, struct job *job, enum kvt_direction direction)
{
    *job = (struct job){.slice = {rig->region, 0, LEN}, .extent = {0, LEN}};
    job->transfer = (struct kvt_transfer){.direction = direction,
                                          .slices = &job->slice,
                                          .nslices = 1,
                                          .deadline_ns = KVB_NEVER,
                                          .done = on_done,
                                          .share = rig->share,
                                          .extents = &job->extent,
                                          .nextents = 1};
    cr_assert_eq(kvt_transfer_start(&rig->pin.base, &job->transfer), KVB_OK);
}

static void run(struct rig *rig, enum kvt_direction direction)
{
    struct job job;
    start(rig, &job, direction);
    cr_assert(sim_run_until_true(&rig->sim, &job.done, 60000));
    cr_assert_eq(job.status, KVB_OK, "also what is stale says so");
}

static bool all(const uint8_t *bytes, int value)
{
    for (size_t i = 0; i < LEN; i++) {
        if (bytes[i] != value) {
            return false;
        }
    }
    return true;
}

Test(pin, without_unregistering_old_bytes_move_both_ways_and_the_pages_stay_held)
{
    struct rig rig;
    if (!rig_open(&rig)) {
        return;
    }
    memset(rig.engine.base, 'a', LEN);
    wake(&rig);
    run(&rig, KVT_TO_SHARE);
    cr_assert(all(rig.node.base, 'a'));
    cr_assert_eq(pin_kib() - rig.base_kib, LEN_KIB);

    discard(&rig);
    cr_assert_eq(pin_kib() - rig.base_kib, LEN_KIB, "freed, and held all the same");
    memset(rig.engine.base, 'b', LEN);
    run(&rig, KVT_TO_SHARE);
    cr_assert(all(rig.node.base, 'a'), "a put sends what no process sees any more");
    memset(rig.node.base, 'c', LEN);
    run(&rig, KVT_FROM_SHARE);
    cr_assert(all(rig.engine.base, 'b'), "a get goes where no process sees it");
    rig_close(&rig);
}

Test(pin, with_the_life_cycle_the_bytes_are_right_and_asleep_nothing_is_held)
{
    struct rig rig;
    if (!rig_open(&rig)) {
        return;
    }
    size_t fds = 0, maps = 0;
    for (int cycle = 0; cycle < 50; cycle++) {
        memset(rig.engine.base, 'A' + cycle % 16, LEN);
        wake(&rig);
        cr_assert_eq(pin_kib() - rig.base_kib, LEN_KIB);
        run(&rig, KVT_TO_SHARE);
        cr_assert(all(rig.node.base, 'A' + cycle % 16), "cycle %d", cycle);
        memset(rig.node.base, 'a' + cycle % 16, LEN);
        run(&rig, KVT_FROM_SHARE);
        cr_assert(all(rig.engine.base, 'a' + cycle % 16), "cycle %d", cycle);
        release(&rig);
        cr_assert_eq(pin_kib(), rig.base_kib);
        discard(&rig);
        if (cycle == 0) {
            fds = test_count_fds();
            maps = test_count_maps("");
        }
        cr_assert_eq(test_count_fds(), fds);
        cr_assert_leq(test_count_maps(""), maps + 4);
    }
    rig_close(&rig);
}

Test(pin, a_transfer_that_waits_is_stopped_before_its_pages_are_given_back)
{
    struct rig rig;
    if (!rig_open(&rig)) {
        return;
    }
    int pipes[2];
    cr_assert_eq(pipe2(pipes, O_CLOEXEC), 0);
    rig.pin.file = pipes[0];
    rig.pin.piped = true;
    wake(&rig);
    struct job job;
    start(&rig, &job, KVT_FROM_SHARE);
    bool done = false;
    uint64_t from_ns = rig.sim.now_ns;
    kvt_region_unregister(rig.region, sim_in_ms(&rig.sim, 100), sim_in_ms(&rig.sim, 200),
                          on_unregistered, &done);
    sim_settle(&rig.sim);
    cr_assert(!done && !job.done, "never under a transfer");
    cr_assert_eq(pin_kib() - rig.base_kib, LEN_KIB);
    cr_assert(sim_run_until_true(&rig.sim, &done, 300));
    cr_assert(job.done, "first");
    cr_assert_eq(job.status, KVB_ERR_CANCELED);
    cr_assert_geq(rig.sim.now_ns - from_ns, 100 * KVB_NS_PER_MS);
    cr_assert_eq(pin_kib(), rig.base_kib);
    kvt_region_destroy(rig.region);
    rig.region = NULL;

    /* What comes too late goes nowhere. */
    uint8_t late[4096];
    memset(late, 'x', sizeof late);
    cr_assert_eq(write(pipes[1], late, sizeof late), (ssize_t)sizeof late);
    cr_assert(all(rig.engine.base, TEST_PREFILL));
    (void)close(pipes[0]);
    (void)close(pipes[1]);
    rig_close(&rig);
}
