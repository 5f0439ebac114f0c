/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong below the rdma transport: events of connections and of the device, registrations
 * that are refused, devices that will not do. It is counted, said, and works again. */
#include "rdma_sim.h"

#include "transport_impl.h"

#include <sys/resource.h>

Test(rdma_faults, a_failure_ends_only_what_its_queue_pair_carries)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    struct kvt_region *second;
    cr_assert_eq(rdma_sim_region(&rig, &second, 2, MIB(4), MIB(4)), KVB_OK);
    struct rdma_job warm, jobs[2];
    for (uint64_t i = 0; i < 2; i++) { /* both queue pairs stand */
        rdma_job_init(&warm, &rig, RIG_PUT, 0, KIB(1));
        warm.slice.region = i == 0 ? rig.region : second;
        cr_assert_eq(rdma_job_run(&warm), KVB_OK);
    }
    rdma_job_init(&jobs[0], &rig, RIG_PUT, 0, MIB(3));
    rdma_job_init(&jobs[1], &rig, RIG_PUT, 0, MIB(3));
    jobs[1].slice.region = second;
    jobs[1].extent.offset = MIB(4);
    cr_assert_eq(rdma_job_start(&jobs[0]), KVB_OK);
    fake_verbs_status(FAKE_ASKER, IBV_WC_RDMA_WRITE, 0, IBV_WC_REM_OP_ERR);
    for (int i = 0; i < 200 && rdma_sim_cause(&rig, FAKE_ASKER, KVT_RDMA_WC_REM_OP) == 0; i++) {
        (void)rdma_turn(&rig);
        if (i == 0) {
            cr_assert_eq(rdma_job_start(&jobs[1]), KVB_OK);
        }
    }
    kvb_status_t first = rdma_job_wait(&jobs[0]), other = rdma_job_wait(&jobs[1]);
    cr_assert((first == KVB_OK) != (other == KVB_OK), "%s and %s", kvb_status_label(first),
              kvb_status_label(other));
    cr_assert_eq(rig.downs, 0);
    cr_assert_eq(rdma_sim_unregister(&rig, second, 1000, 1000), KVB_OK);
    kvt_region_destroy(second);
    rdma_sim_close(&rig);
}

/* ---- events of connections and of the device ---- */

Test(rdma_faults, every_event_of_a_connection_is_counted_and_recovered_from)
{
    static const struct {
        enum rdma_cm_event_type event;
        int status;
        enum kvt_rdma_cause cause;
    } rows[] = {
        {RDMA_CM_EVENT_DISCONNECTED, 0, KVT_RDMA_CM_DISCONNECTED},
        {RDMA_CM_EVENT_ADDR_CHANGE, 0, KVT_RDMA_CM_ADDR_CHANGE},
        {RDMA_CM_EVENT_CONNECT_ERROR, -EINVAL, KVT_RDMA_CM_CONNECT_ERROR},
        {RDMA_CM_EVENT_MULTICAST_ERROR, -EINVAL, KVT_RDMA_CM_OTHER},
        {RDMA_CM_EVENT_ROUTE_ERROR, -EINVAL, KVT_RDMA_CM_ROUTE_ERROR},
        {RDMA_CM_EVENT_ADDR_ERROR, -EINVAL, KVT_RDMA_CM_ADDR_ERROR},
        {RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, KVT_RDMA_CM_UNREACHABLE},
        {RDMA_CM_EVENT_REJECTED, 28, KVT_RDMA_CM_REJECTED},
    };
    kvb_log_threshold = KVB_LOG_ERROR;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int side = 0; side < FAKE_SIDES; side++) {
            static struct rdma_sim rig;
            rdma_sim_open(&rig, i, (struct kvt_rdma_peer_config){0});
            struct rdma_job job;
            rdma_job_init(&job, &rig, RIG_PUT, 0, MIB(8));
            cr_assert_eq(rdma_job_start(&job), KVB_OK);
            rdma_turn(&rig);
            fake_verbs_cm_event((enum fake_side)side, rows[i].event, rows[i].status);
            (void)rdma_job_wait(&job);
            rdma_advance(&rig, 100);
            cr_assert(rdma_sim_recovers(&rig, i), "event %d at %d", (int)rows[i].event, side);
            cr_assert_gt(rdma_sim_cause(&rig, (enum fake_side)side, rows[i].cause), 0,
                         "event %d at %d", (int)rows[i].event, side);
            rdma_sim_close(&rig);
        }
    }
}

Test(rdma_faults, what_cannot_be_reached_is_down_with_its_reason_and_comes_back)
{
    static const struct {
        const char *address;
        bool silent;
        enum kvt_rdma_cause cause;
    } rows[] = {
        {"10.0.0.77:1", false, KVT_RDMA_CM_ADDR_ERROR},
        {FAKE_NODE_ADDRESS ":1", false, KVT_RDMA_CM_REJECTED},
        {NULL, true, KVT_RDMA_CM_UNREACHABLE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static struct rdma_sim rig;
        rdma_sim_init(&rig, i);
        cr_assert_eq(rdma_sim_node(&rig), KVB_OK);
        cr_assert_eq(rdma_sim_engine(&rig), KVB_OK);
        rig.common.hello_ms = 10000; /* longer than connecting takes */
        fake_verbs_silence(FAKE_NODE, rows[i].silent);
        cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){.address = rows[i].address}),
                     KVB_OK);
        rdma_advance(&rig, 30000);
        cr_assert_eq(rig.ups, 0);
        cr_assert_eq(rig.downs, 1, "once per outage");
        cr_assert(rig.why == KVB_ERR_UNAVAILABLE || rig.why == KVB_ERR_TIMEOUT, "%s",
                  kvb_status_label(rig.why));
        cr_assert_gt(rdma_sim_cause(&rig, FAKE_ASKER, rows[i].cause), 0, "row %zu", i);
        cr_assert_eq(rdma_sim_run(&rig, RIG_PUT, 0, 16), KVB_ERR_UNAVAILABLE, "at once");
        fake_verbs_silence(FAKE_NODE, false);
        cr_assert_eq(kvt_rdma_peer_set_address(rig.peer, rig.address), KVB_OK);
        cr_assert(rdma_run_until(&rig, &rig.up, BOUND_MS));
        cr_assert(rdma_sim_works(&rig, i));
        rdma_sim_close(&rig);
    }
}

Test(rdma_faults, a_port_that_goes_down_fails_what_runs_and_comes_back)
{
    for (int side = 0; side < FAKE_SIDES; side++) {
        static struct rdma_sim rig;
        rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
        struct rdma_job job;
        rdma_job_init(&job, &rig, RIG_PUT, 0, MIB(8));
        cr_assert_eq(rdma_job_start(&job), KVB_OK);
        (void)rdma_turn(&rig);
        fake_verbs_port((enum fake_side)side, false);
        uint64_t from_ns = rdma_now_ns(&rig);
        cr_assert_neq(rdma_job_wait(&job), KVB_OK);
        cr_assert_leq(rdma_now_ns(&rig) - from_ns, 10 * KVB_NS_PER_S);
        rdma_advance(&rig, 5000);
        cr_assert_gt(rdma_sim_cause(&rig, (enum fake_side)side, KVT_RDMA_DEV_PORT_DOWN), 0);
        cr_assert(!kvt_rdma_device_port_up(rig.devices[side]));
        fake_verbs_port((enum fake_side)side, true);
        cr_assert(rdma_sim_recovers(&rig, 1));
        cr_assert(kvt_rdma_device_port_up(rig.devices[side]));
        rdma_sim_close(&rig);
    }
}

Test(rdma_faults, a_device_that_is_removed_ends_everything_and_leaves_nothing)
{
    for (int side = 0; side < FAKE_SIDES; side++) {
        for (int flush = 0; flush < 2; flush++) {
            static struct rdma_sim rig;
            rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
            struct rdma_job jobs[16];
            for (uint64_t i = 0; i < 16; i++) {
                rdma_job_init(&jobs[i], &rig, i % 2 == 0 ? RIG_PUT : RIG_GET, i * KIB(512),
                              KIB(512));
                cr_assert_eq(rdma_job_start(&jobs[i]), KVB_OK);
            }
            for (int i = 0; i < 8; i++) {
                (void)rdma_turn(&rig);
            }
            fake_verbs_remove((enum fake_side)side, flush == 1);
            for (int i = 0; i < 16; i++) {
                (void)rdma_job_wait(&jobs[i]);
            }
            rdma_advance(&rig, 10000);
            cr_assert(!rig.up);
            cr_assert(kvt_rdma_device_dead(rig.devices[side]));
            cr_assert_neq(rdma_sim_run(&rig, RIG_PUT, 0, 16), KVB_OK);
            rdma_sim_close(&rig);
        }
    }
}

/* Its engine sleeps and wakes all the same: what is left may carry the bytes. */
Test(rdma_faults, without_its_device_memory_is_let_go_and_taken_again)
{
    for (int flush = 0; flush < 2; flush++) {
        static struct rdma_sim rig;
        rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
        cr_assert(rdma_sim_works(&rig, 1));
        fake_verbs_remove(FAKE_ASKER, flush == 1);
        rdma_advance(&rig, 10000);
        cr_assert_eq(rdma_sim_unregister(&rig, rig.region, 1000, 1000), KVB_OK);
        kvt_region_destroy(rig.region);
        cr_assert_eq(rdma_sim_region(&rig, &rig.region, 1, 0, RDMA_SIM_LEN), KVB_OK);
        cr_assert_eq(kvt_region_pinned(rig.region), 0);
        cr_assert_eq(rdma_sim_run(&rig, RIG_PUT, 0, 16), KVB_ERR_UNAVAILABLE, "for now");
        rdma_sim_close(&rig);
    }
}

Test(rdma_faults, events_of_the_device_are_counted)
{
    static const struct {
        enum ibv_event_type event;
        enum kvt_rdma_cause cause;
    } rows[] = {
        {IBV_EVENT_PORT_ERR, KVT_RDMA_DEV_PORT_DOWN},
        {IBV_EVENT_DEVICE_FATAL, KVT_RDMA_DEV_FATAL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static struct rdma_sim rig;
        rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
        fake_verbs_async_event(FAKE_ASKER, rows[i].event);
        rdma_advance(&rig, 100);
        cr_assert_gt(rdma_sim_cause(&rig, FAKE_ASKER, rows[i].cause), 0);
        rdma_sim_close(&rig);
    }
}

Test(rdma_faults, a_peer_that_vanishes_fails_its_transfers_and_nobody_elses_bytes)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    struct rdma_job jobs[8];
    for (uint64_t i = 0; i < 8; i++) {
        rdma_job_init(&jobs[i], &rig, RIG_PUT, i * MIB(1), MIB(1));
        cr_assert_eq(rdma_job_start(&jobs[i]), KVB_OK);
    }
    for (int i = 0; i < 10; i++) {
        (void)rdma_turn(&rig);
    }
    fake_verbs_silence(FAKE_NODE, true);
    uint64_t from_ns = rdma_now_ns(&rig);
    for (int i = 0; i < 8; i++) {
        (void)rdma_job_wait(&jobs[i]);
        cr_assert_leq(jobs[i].ended_ns - from_ns, 10 * KVB_NS_PER_S, "bounded");
    }
    cr_assert_neq(jobs[7].status, KVB_OK);
    rdma_advance(&rig, 10000);
    cr_assert_eq(rig.downs, 1);
    fake_verbs_silence(FAKE_NODE, false);
    cr_assert(rdma_sim_recovers(&rig, 1));
    rdma_sim_close(&rig);
}

/* ---- registering ---- */

Test(rdma_faults, a_registration_that_is_refused_says_why_and_what_to_change)
{
    static struct rdma_sim rig;
    struct kvt_region *region;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    cr_assert_eq(rdma_sim_region(&rig, &region, 2, 0, KIB(64)), KVB_OK);
    cr_assert_eq(rdma_sim_unregister(&rig, region, 1000, 1000), KVB_OK);
    kvt_region_destroy(region);
    cr_assert_str_empty(kvt_rdma_memory_reason(rig.memory));

    struct fake_counts before = rig.fake->open;
    struct rlimit limit, low = {.rlim_cur = KIB(32)};
    cr_assert_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    low.rlim_max = limit.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &low), 0); /* the device keeps to it, and it is asked */
    rig.fake->devices[FAKE_ASKER].memlock = rig.fake->pinned + KIB(32);
    cr_assert_eq(rdma_sim_region(&rig, &region, 2, 0, KIB(64)), KVB_ERR_LIMIT);
    cr_assert_not_null(strstr(kvt_rdma_memory_reason(rig.memory), "RLIMIT_MEMLOCK"), "%s",
                       kvt_rdma_memory_reason(rig.memory));
    cr_assert_null(fake_verbs_leak(&before));
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    rig.fake->devices[FAKE_ASKER].memlock = UINT64_MAX;
    rig.fake->devices[FAKE_ASKER].attr.max_mr = 1;
    cr_assert_neq(rdma_sim_region(&rig, &region, 2, 0, KIB(64)), KVB_OK);
    rig.fake->devices[FAKE_ASKER].attr.max_mr = 100;
    cr_assert_eq(rdma_sim_region(&rig, &region, 2, 0, KIB(64)), KVB_OK, "and then it works");
    cr_assert_eq(rdma_sim_unregister(&rig, region, 1000, 1000), KVB_OK);
    kvt_region_destroy(region);
    cr_assert(rdma_sim_works(&rig, 1));
    rdma_sim_close(&rig);
}

/* B38: at start, and when an engine hands memory over, or wakes. */
Test(rdma_faults, every_registration_that_fails_is_told_with_its_size_and_cause)
{
    static const struct {
        int error;
        kvb_status_t status;
        const char *says;
    } causes[] = {
        {ENOMEM, KVB_ERR_LIMIT, "locked"},        {EFAULT, KVB_ERR_IO, "bad address"},
        {ENOSPC, KVB_ERR_LIMIT, "no room"},       {EMFILE, KVB_ERR_LIMIT, "no room"},
        {EAGAIN, KVB_ERR_LIMIT, "no room"},       {EINVAL, KVB_ERR_IO, "Invalid argument (22)"},
        {EPERM, KVB_ERR_IO, "not permitted (1)"}, {EIO, KVB_ERR_IO, "(5)"},
    };
    static struct rdma_sim rig;
    struct kvt_region *region;
    struct rlimit limit, low;
    cr_assert_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    low = (struct rlimit){.rlim_cur = KIB(64), .rlim_max = limit.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &low), 0);
    for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
        rdma_sim_init(&rig, 1);
        fake_verbs_fail("ibv_reg_mr", 0, causes[i].error);
        cr_assert_neq(rdma_sim_node(&rig), KVB_OK);
        cr_assert_not_null(strstr(rig.reason, causes[i].says), "%s", rig.reason);
        cr_assert_not_null(strstr(rig.reason, "fake1 cannot register 8388608 bytes"), "%s",
                           rig.reason);
        cr_assert_null(fake_verbs_leak(NULL));
        cr_assert_eq(rdma_sim_node(&rig), KVB_OK, "%s", rig.reason);
        cr_assert_eq(rdma_sim_engine(&rig), KVB_OK, "%s", rig.reason);
        cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){0}), KVB_OK);
        cr_assert(rdma_run_until(&rig, &rig.up, BOUND_MS));
        const struct fake_counts before = rig.fake->open;
        fake_verbs_fail("ibv_reg_mr", 0, causes[i].error);
        cr_assert_eq(rdma_sim_region(&rig, &region, 2, 0, KIB(64)), causes[i].status);
        const char *reason = kvt_rdma_memory_reason(rig.memory);
        cr_assert_not_null(strstr(reason, causes[i].says), "%s", reason);
        cr_assert_not_null(strstr(reason, "fake0 cannot register 65536 bytes"), "%s", reason);
        cr_assert_null(fake_verbs_leak(&before));
        cr_assert_eq(rdma_sim_cause(&rig, FAKE_ASKER, KVT_RDMA_REGISTRATION), 1, "and counted");
        cr_assert_eq(rdma_sim_region(&rig, &region, 2, 0, KIB(64)), KVB_OK, "the next one works");
        cr_assert_eq(rdma_sim_unregister(&rig, region, 1000, 1000), KVB_OK);
        kvt_region_destroy(region);
        rdma_sim_close(&rig);
    }
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

/* Under `auto`: a small RLIMIT_MEMLOCK costs the speed of rdma, and not the engine. */
Test(rdma_faults, memory_that_may_be_left_out_is_registered_and_goes_another_way)
{
    static struct rdma_sim rig;
    struct kvt_region *left;
    struct kvt_rdma_memory_stats stats;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    kvt_rdma_memory_optional(rig.memory);
    cr_assert(rdma_sim_works(&rig, 1)); /* its queue pair stands */
    const struct fake_counts before = rig.fake->open;
    rig.fake->devices[FAKE_ASKER].memlock = rig.fake->pinned + KIB(32);
    cr_assert_eq(rdma_sim_region(&rig, &left, 2, 0, KIB(64)), KVB_OK);
    cr_assert_eq(kvt_region_state(left), KVT_REGION_REGISTERED);
    cr_assert_eq(kvt_region_pinned(left), 0);
    kvt_rdma_memory_stats(rig.memory, &stats);
    cr_assert_eq(stats.left_out, 1);
    cr_assert_eq(stats.registrations, 1, "the rest's");
    cr_assert_eq(stats.failed, 1);
    cr_assert_eq(rdma_sim_cause(&rig, FAKE_ASKER, KVT_RDMA_REGISTRATION), 1);
    cr_assert_not_null(strstr(kvt_rdma_memory_reason(rig.memory), "65536"));

    struct rdma_job job;
    for (int type = RIG_PUT; type <= RIG_GET; type++) {
        rdma_job_init(&job, &rig, (uint16_t)type, 0, KIB(16));
        job.slice.region = left;
        cr_assert_eq(rdma_job_run(&job), KVB_ERR_UNSUPPORTED, "before anything is asked");
        cr_assert_eq(kvt_region_refs(left), 0);
    }
    struct kvt_slice mixed[] = {{rig.region, 0, KIB(8)}, {left, 0, KIB(8)}};
    rdma_job_init(&job, &rig, RIG_PUT, 0, KIB(16));
    job.transfer.slices = mixed;
    job.transfer.nslices = 2;
    cr_assert_eq(rdma_job_run(&job), KVB_ERR_UNSUPPORTED, "one of them is enough");
    uint8_t byte = 0;
    cr_assert_eq(kvt_region_read(left, 7, &byte, 1), KVB_OK, "others do reach it");
    cr_assert(rdma_sim_works(&rig, 1), "other memory goes as before");

    cr_assert_eq(rdma_sim_unregister(&rig, left, 1000, 1000), KVB_OK, "it sleeps like any other");
    kvt_region_destroy(left);
    kvt_rdma_memory_stats(rig.memory, &stats);
    cr_assert_eq(stats.left_out, 0);
    cr_assert_null(fake_verbs_leak(&before));
    rig.fake->devices[FAKE_ASKER].memlock = UINT64_MAX;
    cr_assert_eq(rdma_sim_region(&rig, &left, 2, 0, KIB(64)), KVB_OK, "and wakes with more");
    rdma_job_init(&job, &rig, RIG_PUT, 0, KIB(16));
    job.slice.region = left;
    cr_assert_eq(rdma_job_run(&job), KVB_OK);
    cr_assert_eq(rdma_sim_unregister(&rig, left, 1000, 1000), KVB_OK);
    kvt_region_destroy(left);
    rdma_sim_close(&rig);
}

Test(rdma_faults, engine_memory_is_registered_for_local_access_only)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    cr_assert(rdma_sim_works(&rig, 1));
    int remote = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    cr_assert_geq(fake_verbs_mrs(FAKE_ASKER, 0), 1);
    cr_assert_eq(fake_verbs_mrs(FAKE_ASKER, remote), 0, "no key to it exists");
    cr_assert_eq(fake_verbs_mrs(FAKE_NODE, remote), 1, "the node's memory, once");
    cr_assert_eq(fake_verbs_qps(FAKE_ASKER, (unsigned)remote), 0, "no way to it either");
    cr_assert_geq(fake_verbs_qps(FAKE_NODE, (unsigned)remote), 1);
    rdma_sim_close(&rig);
}

/* ---- devices that are not for us ---- */

Test(rdma_faults, devices_that_will_not_do_are_refused_with_the_reason)
{
    static struct rdma_sim rig;
    rdma_sim_init(&rig, 1);
    rig.config[FAKE_ASKER].device = NULL;
    rig.fake->devices[FAKE_ASKER].absent = rig.fake->devices[FAKE_NODE].absent = true;
    cr_assert_eq(rdma_sim_device(&rig, FAKE_ASKER), KVB_ERR_UNSUPPORTED);
    cr_assert(rig.reason[0] != '\0');
    rig.fake->devices[FAKE_ASKER].absent = false;
    rig.fake->devices[FAKE_ASKER].device->transport_type = IBV_TRANSPORT_IWARP;
    cr_assert_eq(rdma_sim_device(&rig, FAKE_ASKER), KVB_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(rig.reason, "iWARP"), "%s", rig.reason);
    rig.fake->devices[FAKE_ASKER].device->transport_type = IBV_TRANSPORT_IB;
    rig.fake->devices[FAKE_ASKER].port.state = IBV_PORT_DOWN;
    cr_assert_eq(rdma_sim_device(&rig, FAKE_ASKER), KVB_ERR_UNSUPPORTED);
    rig.fake->devices[FAKE_ASKER].port.state = IBV_PORT_ACTIVE;
    rig.config[FAKE_ASKER].device = "nosuch";
    cr_assert_eq(rdma_sim_device(&rig, FAKE_ASKER), KVB_ERR_INVALID);
    cr_assert_not_null(strstr(rig.reason, "nosuch"), "%s", rig.reason);
    cr_assert_null(fake_verbs_leak(NULL));
    rdma_sim_close(&rig);
}

Test(rdma_faults, ends_with_different_mtus_take_the_smaller)
{
    static const enum ibv_mtu mtus[][2] = {
        {IBV_MTU_4096, IBV_MTU_1024}, {IBV_MTU_1024, IBV_MTU_4096}, {IBV_MTU_256, IBV_MTU_2048}};
    for (size_t i = 0; i < sizeof mtus / sizeof mtus[0]; i++) {
        static struct rdma_sim rig;
        rdma_sim_init(&rig, i);
        for (int side = 0; side < FAKE_SIDES; side++) {
            rig.fake->devices[side].port.active_mtu = mtus[i][side];
        }
        cr_assert_eq(rdma_sim_node(&rig), KVB_OK);
        cr_assert_eq(rdma_sim_engine(&rig), KVB_OK);
        cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){0}), KVB_OK);
        cr_assert(rdma_run_until(&rig, &rig.up, BOUND_MS));
        cr_assert(rdma_sim_works(&rig, i));
        rdma_sim_close(&rig);
    }
}

Test(rdma_faults, the_routable_address_of_our_own_is_chosen)
{
    struct {
        const char *what;
        enum { LOCAL, MAPPED, V6 } gids[FAKE_GIDS]; /* link-local, or ours: IPv4-mapped, IPv6 */
        uint32_t type[FAKE_GIDS];
        int chosen; /* -1: refused */
    } rows[] = {
        {"link-local first", {LOCAL, MAPPED}, {2, 2}, 1},
        {"link-local before IPv6 alone", {LOCAL, V6}, {2, 2}, 1},
        {"v1 before v2", {MAPPED, MAPPED}, {1, 2}, 1},
        {"nothing usable", {LOCAL, LOCAL}, {2, 2}, -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static struct rdma_sim rig;
        rdma_sim_init(&rig, i);
        struct fake_device *device = &rig.fake->devices[FAKE_ASKER];
        union ibv_gid gids[] = {
            [LOCAL] = device->gids[0], [MAPPED] = device->gids[1], [V6] = device->gids[0]};
        gids[LOCAL].raw[15] = gids[V6].raw[15] = 1; /* else it is none at all */
        gids[V6].raw[0] = 0xfd;
        for (int g = 0; g < 2; g++) {
            device->gids[g] = gids[rows[i].gids[g]];
            device->gid_types[g] =
                rows[i].type[g] == 1 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
        }
        kvb_status_t status = rdma_sim_device(&rig, FAKE_ASKER);
        cr_assert_eq(status, rows[i].chosen < 0 ? KVB_ERR_UNSUPPORTED : KVB_OK, "%s: %s",
                     rows[i].what, rig.reason);
        if (status == KVB_OK) {
            struct kvt_rdma_info info;
            kvt_rdma_device_info(rig.devices[FAKE_ASKER], &info);
            cr_assert_eq(info.gid_index, rows[i].chosen, "%s", rows[i].what);
            kvt_rdma_device_close(rig.devices[FAKE_ASKER]);
        }
        rdma_sim_close(&rig);
    }
}
