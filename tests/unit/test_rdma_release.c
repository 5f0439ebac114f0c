/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages and processes: what a registration holds, who may be stopped at any moment, and what never
 * happens all the same: a byte in memory that is somebody else's now.
 */
#include "rdma_sim.h"

#include "transport_impl.h"

#include <sys/wait.h>

static bool all(const uint8_t *bytes, size_t len, int value)
{
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] != value) {
            return false;
        }
    }
    return true;
}

/* ---- release while transfers run ---- */

#define MANY 64

/* What the other end, or the device, does meanwhile. */
enum trouble { NOTHING, NODE_STOPPED, NODE_SILENT, COMPLETIONS_HELD, NODE_LATE, TROUBLES };

static void make_trouble(struct rdma_sim *rig, enum trouble trouble)
{
    switch (trouble) {
    case NOTHING:
    case NODE_LATE:
    case TROUBLES:
        break;
    case NODE_STOPPED:
        rig->stopped[SIDE_NODE] = true;
        break;
    case NODE_SILENT:
        fake_verbs_silence(FAKE_NODE, true);
        break;
    case COMPLETIONS_HELD:
        fake_verbs_mute(FAKE_ASKER, true);
        break;
    }
}

static void release_under_load(enum trouble trouble, uint32_t turns, uint64_t seed)
{
    static struct rdma_sim rig;
    static struct rdma_job jobs[MANY];
    rdma_sim_open(&rig, seed, (struct kvt_rdma_peer_config){0});
    kvb_log_threshold = KVB_LOG_ERROR;
    rig.fake->delay_ns = KVB_NS_PER_MS / 10;
    cr_assert_eq(rdma_sim_run(&rig, RIG_PUT, 0, 16), KVB_OK); /* its queue pair stands */
    rig.node.late = trouble == NODE_LATE;
    uint64_t each = RDMA_SIM_LEN / MANY;
    for (uint64_t i = 0; i < MANY; i++) {
        rdma_job_init(&jobs[i], &rig, i % 2 == 0 ? RIG_GET : RIG_PUT, i * each, each);
        cr_assert_eq(rdma_job_start(&jobs[i]), KVB_OK);
    }
    for (uint32_t i = 0; i < turns; i++) {
        rdma_step(&rig);
    }
    make_trouble(&rig, trouble);
    cr_assert_eq(rdma_sim_unregister(&rig, rig.region, 50, 1000), KVB_OK, "trouble %d",
                 (int)trouble);
    for (int i = 0; i < MANY; i++) {
        cr_assert(jobs[i].done, "before the memory is given back");
    }
    cr_assert_eq(fake_verbs_mrs(FAKE_ASKER, 0) > 0 ? rig.fake->misuses : 0, 0);

    /* It is the engine's alone now. */
    memset(rig.engine.base, 'g', RDMA_SIM_LEN);
    rig.stopped[SIDE_NODE] = false;
    fake_verbs_silence(FAKE_NODE, false);
    fake_verbs_mute(FAKE_ASKER, false);
    rig.node.late = false;
    rig_answer_all(&rig.node);
    rdma_advance(&rig, 20000);
    cr_assert(all(rig.engine.base, RDMA_SIM_LEN, 'g'), "trouble %d", (int)trouble);
    cr_assert_eq(rig.node.running, 0);

    kvt_region_destroy(rig.region);
    cr_assert_eq(rdma_sim_region(&rig, &rig.region, 1, 0, RDMA_SIM_LEN), KVB_OK);
    cr_assert(rdma_sim_recovers(&rig, seed), "trouble %d", (int)trouble);
    rdma_sim_close(&rig);
}

Test(rdma_release, under_64_transfers_it_is_bounded_and_memory_is_left_alone)
{
    for (int trouble = 0; trouble < TROUBLES; trouble++) {
        for (uint32_t turns = 0; turns < 200; turns += 1 + turns / 2) {
            release_under_load((enum trouble)trouble, turns, 1 + turns);
        }
    }
}

Test(rdma_release, it_does_not_fail_what_another_rank_moves)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    rig.fake->delay_ns = KVB_NS_PER_MS;
    struct kvt_region *second;
    cr_assert_eq(rdma_sim_region(&rig, &second, 2, 0, MIB(4)), KVB_OK);
    struct rdma_job own, other;
    rdma_job_init(&own, &rig, RIG_PUT, 0, MIB(4));
    own.slice.region = second;
    rdma_job_init(&other, &rig, RIG_PUT, MIB(4), MIB(4));
    cr_assert_eq(rdma_job_start(&own), KVB_OK);
    cr_assert_eq(rdma_job_start(&other), KVB_OK);
    rdma_advance(&rig, 5);
    cr_assert(!own.done && !other.done);
    cr_assert_eq(rdma_sim_unregister(&rig, second, 0, 10), KVB_OK);
    cr_assert_gt(rdma_sim_cause(&rig, FAKE_ASKER, KVT_RDMA_QUIESCED), 0, "its queue pair is lost");
    cr_assert(own.done);
    cr_assert_eq(own.status, KVB_ERR_CANCELED);
    cr_assert_eq(rdma_job_wait(&other), KVB_OK);
    kvt_region_destroy(second);
    rdma_sim_close(&rig);
}

/* ---- a writer that was stopped ---- */

/* The node's process gives the attempt up, and uses its space for something else. */
static bool writer_is_stopped(uint32_t turns, uint64_t seed, bool wire_goes_on)
{
    static struct rdma_sim rig;
    static struct rdma_job job;
    rdma_sim_open(&rig, seed, (struct kvt_rdma_peer_config){0});
    kvb_log_threshold = KVB_LOG_ERROR;
    rig.fake->delay_ns = KVB_NS_PER_MS / 20;
    memset(rig.engine.base, 'w', MIB(1));
    memset(rig.node_memory.base, 0, MIB(1));
    rdma_job_init(&job, &rig, RIG_PUT, 0, MIB(1));
    cr_assert_eq(rdma_job_start(&job), KVB_OK);
    for (uint32_t i = 0; i < turns && !job.done; i++) {
        if (rdma_turn(&rig) > rdma_now_ns(&rig)) {
            rdma_jump(&rig, rdma_now_ns(&rig) + KVB_NS_PER_MS / 50);
        }
    }
    bool finished = job.done;
    rig.stopped[SIDE_ASKER] = true;
    rig.stopped[SIDE_WIRE] = !wire_goes_on;
    (void)rdma_turn(&rig);
    if (rig.node.receiving != NULL) {
        struct kvt_request *request = rig.node.receiving;
        rig.node.receiving = NULL;
        rig.node.running--;
        kvt_answer(request, KVB_ERR_TIMEOUT, NULL, 0);
        memset(rig.node_memory.base, 'n', MIB(1)); /* at once another object's */
        rig.stopped[SIDE_WIRE] = false;
        rig.stopped[SIDE_NODE] = true; /* what arrives does not wait for its next turn */
        rdma_advance(&rig, 10);
        rig.stopped[SIDE_NODE] = false;
        rdma_advance(&rig, 30000);
        rig.stopped[SIDE_ASKER] = false;
        cr_assert_neq(rdma_job_wait(&job), KVB_OK, "turn %u", turns);
        rdma_advance(&rig, 5000);
        cr_assert(all(rig.node_memory.base, MIB(1), 'n'), "turn %u seed %lu: a late write", turns,
                  seed);
        cr_assert_gt(rdma_sim_cause(&rig, FAKE_NODE, KVT_RDMA_TAKEN_BACK), 0);
    } else {
        rig.stopped[SIDE_WIRE] = false;
        rig.stopped[SIDE_ASKER] = false;
        (void)rdma_job_wait(&job);
    }
    cr_assert(rdma_sim_recovers(&rig, seed));
    rdma_sim_close(&rig);
    return !finished;
}

Test(rdma_release, a_writer_that_was_given_up_writes_nowhere)
{
    for (int wire = 0; wire < 2; wire++) {
        uint32_t turns = 0;
        while (writer_is_stopped(turns, 1 + turns, wire == 1)) {
            turns += 1 + turns / 16;
            cr_assert_lt(turns, 20000);
        }
    }
}

/* ---- a commit is never seen before its data ---- */

static void check_received(void *ctx, struct kvt_request *request, kvb_status_t status,
                           uint64_t checksum)
{
    const struct rig_node *node = ctx;
    struct iovec iov[RIG_EXTENTS_MAX];
    uint32_t n = rig_iov_(node, request, iov);
    cr_assert(status != KVB_OK || rig_hash_(iov, n) == checksum, "not all of it is there");
    rig_received_(ctx, request, status, checksum);
}

Test(rdma_release, a_commit_is_never_seen_before_its_data)
{
    for (uint64_t seed = 1; seed < 25; seed++) {
        static struct rdma_sim rig;
        static struct rdma_job jobs[16];
        rdma_sim_init(&rig, seed);
        struct kvt_server_ops ops = rig_server_ops;
        ops.received = check_received;
        rig.server_ops = &ops;
        cr_assert_eq(rdma_sim_node(&rig), KVB_OK);
        cr_assert_eq(rdma_sim_engine(&rig), KVB_OK);
        cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){0}), KVB_OK);
        cr_assert(rdma_run_until(&rig, &rig.up, BOUND_MS));
        rig.fake->delay_ns = (seed % 3) * KVB_NS_PER_MS;
        for (uint64_t i = 0; i < 16; i++) {
            test_value_fill(rig.engine.base + i * KIB(256), KIB(256), "t", &i, sizeof i, seed);
            rdma_job_init(&jobs[i], &rig, RIG_PUT, i * KIB(256),
                          1 + sim_below(&rig.sims[SIDE_ASKER], KIB(256)));
            cr_assert_eq(rdma_job_start(&jobs[i]), KVB_OK);
        }
        for (int i = 0; i < 16; i++) {
            cr_assert_eq(rdma_job_wait(&jobs[i]), KVB_OK);
        }
        /* More than may be posted at once: hashed long before it is on its way. */
        rig.fake->delay_ns = KVB_NS_PER_MS;
        test_value_fill(rig.engine.base, RDMA_SIM_LEN, "t", &seed, sizeof seed, seed + 100);
        cr_assert_eq(rdma_sim_run(&rig, RIG_PUT, 0, RDMA_SIM_LEN), KVB_OK);
        cr_assert_eq(rig.fake->rnrs, 0, "room was promised for each message");
        rdma_sim_close(&rig);
    }
}

/* ---- stale pages ---- */

/* New pages at the address of the region, behind everybody's back. */
static void remap(const struct kvt_region *region, int value)
{
    int fd = memfd_create("new", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(fd, (off_t)region->desc.len), 0);
    void *at =
        mmap(region->map, region->desc.len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    cr_assert_eq(at, region->map);
    memset(at, value, region->desc.len);
    (void)close(fd);
}

Test(rdma_release, without_unregistering_old_pages_move_both_ways)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    rig.fake->stale_allowed = true;
    memset(rig.engine.base, 'a', RDMA_SIM_LEN);
    cr_assert_eq(rdma_sim_run(&rig, RIG_PUT, 0, KIB(64)), KVB_OK);
    cr_assert(all(rig.node_memory.base, KIB(64), 'a'));
    const uint8_t *map = rig.region->map;
    remap(rig.region, 'b');
    kvb_status_t put = rdma_sim_run(&rig, RIG_PUT, 0, KIB(64));
    cr_assert(all(rig.node_memory.base, KIB(64), 'a'),
              "the device sends what no process has mapped any more: %s", kvb_status_label(put));
    memset(rig.node_memory.base, 'c', KIB(64));
    (void)rdma_sim_run(&rig, RIG_GET, 0, KIB(64));
    cr_assert(all(map, KIB(64), 'b'), "and what it gets goes there");
    cr_assert(all(rig.engine.base, KIB(64), 'c'), "to the old pages");
    rdma_sim_close(&rig);
}

Test(rdma_release, with_the_life_cycle_the_bytes_are_right_and_nothing_grows)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    cr_assert(rdma_sim_works(&rig, 0));
    cr_assert_eq(rdma_sim_unregister(&rig, rig.region, 1000, 1000), KVB_OK);
    kvt_region_destroy(rig.region);
    struct fake_counts before = rig.fake->open;
    uint64_t pinned = rig.fake->pinned;
    size_t fds = test_count_fds(), maps = test_count_maps("");
    for (uint64_t cycle = 0; cycle < 5000; cycle++) {
        uint64_t len = KIB(64) * (1 + cycle % 7);
        cr_assert_eq(rdma_sim_region(&rig, &rig.region, 1, 0, len), KVB_OK);
        if (cycle % 50 == 0) {
            test_value_fill(rig.engine.base, len, "t", &cycle, sizeof cycle, 1);
            memset(rig.node_memory.base, 0, len);
            cr_assert_eq(rdma_sim_run(&rig, RIG_PUT, 0, len), KVB_OK);
            cr_assert_eq(test_value_check(rig.node_memory.base, len, "t", &cycle, sizeof cycle, 1),
                         len);
        }
        cr_assert_eq(rdma_sim_unregister(&rig, rig.region, 1000, 1000), KVB_OK);
        cr_assert_eq(rig.fake->pinned, pinned);
        kvt_region_destroy(rig.region);
    }
    rig.region = NULL;
    const char *leak = fake_verbs_leak(&before);
    cr_assert_null(leak, "%s", leak);
    cr_assert_eq(test_count_fds(), fds);
    cr_assert_leq(test_count_maps(""), maps + 4);
    struct kvt_rdma_memory_stats stats;
    kvt_rdma_memory_stats(rig.memory, &stats);
    cr_assert_eq(stats.registrations, 0);
    cr_assert_eq(stats.pinned_bytes, 0);
    cr_assert_eq(stats.registered, stats.unregistered);
    rdma_sim_close(&rig);
}

Test(rdma_release, what_the_device_does_not_let_go_of_stays_registered)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    cr_assert(rdma_sim_works(&rig, 0));
    uint64_t pinned = rig.fake->pinned;
    fake_verbs_fail("ibv_dereg_mr", 0, EBUSY);
    struct rdma_ended ended = {0};
    kvt_region_unregister(rig.region, rdma_in_ms(&rig, 100), rdma_in_ms(&rig, 200),
                          rdma_sim_unregistered_, &ended);
    (void)rdma_run_until(&rig, &ended.done, 50);
    cr_assert(!ended.done, "not said to be gone");
    cr_assert_eq(rig.fake->pinned, pinned);
    cr_assert(fake_verbs_failed(NULL));
    cr_assert(rdma_run_until(&rig, &ended.done, 151), "bounded");
    cr_assert_eq(ended.status, KVB_OK, "tried again");
    cr_assert_lt(rig.fake->pinned, pinned);
    rdma_sim_close(&rig);
}

Test(rdma_release, a_helper_that_is_forked_and_executed_meanwhile_does_no_harm)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    uint64_t zero = 0;
    test_value_fill(rig.engine.base, MIB(4), "t", &zero, sizeof zero, 1);
    struct rdma_job job;
    rdma_job_init(&job, &rig, RIG_PUT, 0, MIB(4));
    cr_assert_eq(rdma_job_start(&job), KVB_OK);
    for (int i = 0; i < 8; i++) {
        (void)rdma_turn(&rig);
    }
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    memset(rig.engine.base + MIB(4), 'p', MIB(1)); /* the parent writes on */
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    cr_assert_eq(rdma_job_wait(&job), KVB_OK);
    cr_assert_eq(test_value_check(rig.node_memory.base, MIB(4), "t", &zero, sizeof zero, 1),
                 MIB(4));
    cr_assert_eq(rdma_sim_run(&rig, RIG_PUT, MIB(4), MIB(1)), KVB_OK);
    cr_assert(all(rig.node_memory.base + MIB(4), MIB(1), 'p'));
    rdma_sim_close(&rig);
}

/*
 * B37: of a kernel that copies pinned pages at fork nothing is asked; of an older one registered
 * pages are kept out of children, which no one takes back: the mappings must go with them.
 */
static void many_cycles(enum ibv_fork_status kernel, uint32_t inits)
{
    static struct rdma_sim rig;
    rdma_sim_init(&rig, 1);
    rig.fake->fork_status = kernel;
    cr_assert_eq(rdma_sim_node(&rig), KVB_OK, "%s", rig.reason);
    cr_assert_eq(rdma_sim_engine(&rig), KVB_OK, "%s", rig.reason);
    cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){0}), KVB_OK);
    cr_assert(rdma_run_until(&rig, &rig.up, BOUND_MS));
    cr_assert_eq(rig.fake->fork_inits, inits);
    cr_assert(rdma_sim_works(&rig, 1));
    const struct fake_counts before = rig.fake->open;
    uint64_t pinned = rig.fake->pinned;
    size_t maps = test_count_maps("");
    size_t fds = test_count_fds();
    for (uint64_t i = 0; i < 1500; i++) {
        struct kvt_region *region;
        cr_assert_eq(rdma_sim_region(&rig, &region, 2, KIB(4) * (i % 7), KIB(4) * (1 + i % 16)),
                     KVB_OK);
        cr_assert_eq(rig.fake->pinned, pinned + KIB(4) * (1 + i % 16));
        cr_assert_eq(rdma_sim_unregister(&rig, region, 1000, 1000), KVB_OK);
        kvt_region_destroy(region);
    }
    cr_assert_leq(test_count_maps(""), maps + 2, "of malloc");
    cr_assert_eq(test_count_fds(), fds);
    cr_assert_eq(rig.fake->pinned, pinned);
    cr_assert_null(fake_verbs_leak(&before));
    cr_assert_eq(rig.fake->misuses, 0, "never unmapped before it was deregistered");
    cr_assert(rdma_sim_works(&rig, 2));
    rdma_sim_close(&rig);
}

Test(rdma_release, thousands_of_cycles_split_no_mapping_and_leave_nothing)
{
    many_cycles(IBV_FORK_UNNEEDED, 0);
    many_cycles(IBV_FORK_ENABLED, 0);
    many_cycles(IBV_FORK_DISABLED, 1);
}
