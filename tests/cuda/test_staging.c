/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that another process reaches for us: the life of its regions, and transfers through the
 * pool, over loopback and over connections, with a device whose jobs end when the test says so.
 */
#include "fake_device.h"
#include "tcp_sim.h"

#include "base/faults.h"
#include "base/xxh3.h"

#include <criterion/criterion.h>

#define LEN  KIB(256)
#define POOL KIB(64)

struct setup {
    struct sim_sched *sim;
    struct kvt_regions *regions;
    struct fake_device device;
    struct kvt_region *region;
    int fd;
    uint32_t registers, unregisters, ends;
    kvb_status_t registered, unregistered, status;
    bool inside;

    struct kvt_transport *transport;
    struct kvt_share *share;
    uint8_t *node; /* what the transfers move to and from */
    struct test_memory host;
    struct kvt_region *host_region;
    struct kvt_slice slices[3];
    struct kvt_extent extent;
    struct kvt_transfer transfer, other;

    struct sim_sched own_sim;
    struct tcp_sim tcp;
    uint8_t answer[64];
};

static struct setup *now;

static void on_registered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    struct setup *s = arg;
    cr_assert(region == s->region && !s->inside);
    s->registers++;
    s->registered = status;
}

static void on_unregistered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    struct setup *s = arg;
    cr_assert(region == s->region && !s->inside);
    s->unregisters++;
    s->unregistered = status;
}

static void on_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    (void)transfer;
    cr_assert(!now->inside, "never inside a call");
    now->ends++;
    now->status = status;
}

static void hand_over(struct setup *s)
{
    struct kvt_region_desc desc = {.owner = 7,
                                   .number = 1,
                                   .kind = KVT_MEMORY_CUDA,
                                   .tag = "kv_cache",
                                   .len = LEN,
                                   .device = &s->device.base};
    const char *reason = "";
    kvt_region_destroy(s->region);
    s->fd = memfd_create("gpu", MFD_CLOEXEC);
    cr_assert_eq(kvt_region_create(s->regions, &desc, s->fd, &s->region, &reason), KVB_OK);
}

static void begin_register(struct setup *s)
{
    s->inside = true;
    cr_assert_eq(kvt_region_register_start(s->region, sim_in_ms(s->sim, 1000), on_registered, s),
                 KVB_IN_PROGRESS);
    s->inside = false;
}

static void register_region(struct setup *s)
{
    s->registers = 0;
    begin_register(s);
    sim_settle(s->sim);
    cr_assert_eq(s->registers, 1);
    cr_assert_eq(s->registered, KVB_OK);
    cr_assert_eq(kvt_region_state(s->region), KVT_REGION_REGISTERED);
}

static void begin_unregister(struct setup *s, uint64_t drain_ms, uint64_t stop_ms)
{
    s->unregisters = 0;
    s->inside = true;
    kvt_region_unregister(s->region, sim_in_ms(s->sim, drain_ms), sim_in_ms(s->sim, stop_ms),
                          on_unregistered, s);
    s->inside = false;
}

static void unregister(struct setup *s)
{
    begin_unregister(s, 1000, 2000);
    sim_settle(s->sim);
    cr_assert_eq(s->unregisters, 1);
    cr_assert_eq(s->unregistered, KVB_OK);
}

static bool memfd_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void make_memory(struct setup *s)
{
    fake_device_init(&s->device, s->regions, &s->sim->sched, LEN, POOL);
    for (uint64_t i = 0; i < LEN; i++) {
        s->device.bytes[i] = (uint8_t)(i * 7 + (i >> 9));
    }
    test_memory_init(&s->host, "host", KIB(64));
    struct kvt_region_desc desc = {.owner = 7, .number = 2, .tag = "host", .len = KIB(64)};
    const char *reason = "";
    cr_assert_eq(
        kvt_region_create(s->regions, &desc, test_memory_dup(&s->host), &s->host_region, &reason),
        KVB_OK);
    cr_assert_eq(kvt_region_register_start(s->host_region, KVB_NEVER, on_registered, s), KVB_OK,
                 "host memory registers at once");
    hand_over(s);
    s->transfer = (struct kvt_transfer){.slices = s->slices,
                                        .hash = true,
                                        .share = s->share,
                                        .extents = &s->extent,
                                        .nextents = 1,
                                        .deadline_ns = KVB_NEVER,
                                        .done = on_done};
}

static void setup(struct setup *s)
{
    memset(s, 0, sizeof *s);
    now = s;
    s->sim = &s->own_sim;
    sim_init(s->sim, sim_seed(1));
    cr_assert_eq(kvt_regions_create(&s->sim->sched, &s->regions), KVB_OK);
    cr_assert_eq(kvt_loopback_create(s->regions, 4, &s->transport), KVB_OK);
    s->node = calloc(1, LEN);
    cr_assert_eq(kvt_share_create(s->transport, s->node, LEN, &s->share), KVB_OK);
    make_memory(s);
}

static void setup_tcp(struct setup *s)
{
    memset(s, 0, sizeof *s);
    now = s;
    tcp_sim_open(&s->tcp, NULL);
    tcp_sim_peer(&s->tcp, (struct kvt_tcp_peer_config){0});
    tcp_sim_wait_up(&s->tcp);
    s->sim = &s->tcp.sim;
    s->regions = s->tcp.regions;
    s->transport = s->tcp.peer;
    s->node = s->tcp.node_memory.base;
    make_memory(s);
    s->transfer.share = NULL;
    s->transfer.extents = NULL;
    s->transfer.nextents = 0;
    s->transfer.ask = (struct kvb_span){(const uint8_t *)&s->extent, sizeof s->extent};
    s->transfer.answer = s->answer;
    s->transfer.answer_cap = sizeof s->answer;
}

static void host_gone(void *arg, struct kvt_region *region, kvb_status_t status)
{
    cr_assert_eq(status, KVB_OK);
    kvt_region_destroy(region);
    *(bool *)arg = true;
}

static void cleanup(struct setup *s)
{
    bool gone = false;
    bool host = false;
    if (kvt_region_state(s->region) == KVT_REGION_REGISTERED) {
        unregister(s);
    }
    cr_assert_eq(s->device.imported, 0);
    kvt_region_destroy(s->region);
    kvt_region_unregister(s->host_region, s->sim->now_ns, s->sim->now_ns, host_gone, &host);
    fake_device_close(&s->device, &gone);
    sim_settle(s->sim);
    cr_assert(gone && host);
    fake_device_free(&s->device);
    test_memory_cleanup(&s->host);
    if (s->tcp.peer != NULL) {
        tcp_sim_close(&s->tcp);
        return;
    }
    kvt_share_destroy(s->share);
    kvt_transport_destroy(s->transport);
    kvt_regions_destroy(s->regions);
    free(s->node);
    sim_cleanup(s->sim);
}

/* A device's slice, one of host memory, and another of the device's; all of the pool. */
static void describe(struct setup *s, enum kvt_direction direction)
{
    s->slices[0] = (struct kvt_slice){s->region, 100, KIB(32)};
    s->slices[1] = (struct kvt_slice){s->host_region, 5, 1000};
    s->slices[2] = (struct kvt_slice){s->region, KIB(64) + 3, KIB(32)};
    s->extent = (struct kvt_extent){.offset = 333, .len = KIB(64) + 1000};
    s->transfer.nslices = 3;
    s->transfer.direction = direction;
    s->transfer.type = direction == KVT_TO_SHARE ? RIG_PUT : RIG_GET;
}

static void start(struct setup *s)
{
    s->ends = 0;
    s->inside = true;
    cr_assert_eq(kvt_transfer_start(s->transport, &s->transfer), KVB_OK);
    s->inside = false;
}

static bool ended(void *arg)
{
    return ((struct setup *)arg)->ends > 0;
}

static kvb_status_t run(struct setup *s)
{
    start(s);
    cr_assert(sim_run_until(s->sim, ended, s, 60000));
    cr_assert_eq(s->ends, 1);
    return s->status;
}

static void check_both_ways(struct setup *s)
{
    describe(s, KVT_TO_SHARE);
    for (uint32_t i = 0; i < 1000; i++) {
        s->host.base[5 + i] = (uint8_t)(i * 3 + 1);
    }
    cr_assert_eq(run(s), KVB_OK);
    const uint8_t *node = s->node + 333;
    cr_assert_arr_eq(node, s->device.bytes + 100, KIB(32));
    cr_assert_arr_eq(node + KIB(32), s->host.base + 5, 1000);
    cr_assert_arr_eq(node + KIB(32) + 1000, s->device.bytes + KIB(64) + 3, KIB(32));
    cr_assert_eq(s->transfer.checksum, XXH3_64bits(node, KIB(64) + 1000));

    static uint8_t want[LEN];
    for (uint64_t i = 0; i < s->extent.len; i++) {
        s->node[333 + i] = (uint8_t)(i * 5 + (i >> 8));
    }
    memcpy(want, s->device.bytes, LEN);
    memcpy(want + 100, node, KIB(32));
    memcpy(want + KIB(64) + 3, node + KIB(32) + 1000, KIB(32));
    describe(s, KVT_FROM_SHARE);
    cr_assert_eq(run(s), KVB_OK);
    cr_assert_arr_eq(s->device.bytes, want, LEN);
    cr_assert_arr_eq(s->host.base + 5, node + KIB(32), 1000);
    cr_assert_eq(s->transfer.checksum, XXH3_64bits(node, KIB(64) + 1000));
    cr_assert_eq(kvt_region_refs(s->region), 0);
    cr_assert_eq(kvt_region_refs(s->device.base.pool), 0);
}

Test(staging, device_and_host_slices_go_both_ways_in_one_transfer)
{
    struct setup s;
    setup(&s);
    register_region(&s);
    check_both_ways(&s);
    cleanup(&s);
}

static const struct kvt_region *blind_to;

static bool reaches_others(struct kvt_transport *transport, const struct kvt_region *region)
{
    (void)transport;
    return region != blind_to;
}

/* The pool may be memory that rdma could not register: another way takes it, and the device was
 * asked for nothing. */
Test(staging, a_transport_that_does_not_reach_the_pool_starts_nothing)
{
    struct setup s;
    setup(&s);
    register_region(&s);
    const struct kvt_transport_ops *ops = s.transport->ops;
    struct kvt_transport_ops blind = *ops;
    blind.reaches = reaches_others;
    s.transport->ops = &blind;
    for (int direction = 0; direction < 2; direction++) {
        describe(&s, direction == 0 ? KVT_TO_SHARE : KVT_FROM_SHARE);
        blind_to = s.device.base.pool;
        cr_assert_eq(kvt_transfer_start(s.transport, &s.transfer), KVB_ERR_UNSUPPORTED);
        cr_assert_eq(kvt_region_refs(s.region), 0);
        cr_assert(kvb_list_empty(&s.device.base.placed));
        blind_to = s.region; /* which nobody but the device reaches */
        cr_assert_eq(run(&s), KVB_OK);
    }
    s.transport->ops = ops;
    cleanup(&s);
}

Test(staging, a_node_behind_connections_is_none_the_wiser)
{
    static struct setup s;
    setup_tcp(&s);
    register_region(&s);
    check_both_ways(&s);
    cleanup(&s);
}

/* ---- regions ---- */

Test(staging, a_region_holds_its_descriptor_until_the_device_has_it)
{
    struct setup s;
    setup(&s);
    s.device.hold[FAKE_IMPORT] = true;
    begin_register(&s);
    sim_settle(s.sim);
    cr_assert_eq(kvt_region_state(s.region), KVT_REGION_REGISTERING);
    cr_assert(memfd_open(s.fd));
    fake_device_end(&s.device, fake_device_job(&s.device), KVB_OK);
    cr_assert_eq(s.registered, KVB_OK);
    cr_assert(!memfd_open(s.fd), "a descriptor here would hold the memory, too");
    cleanup(&s);
}

Test(staging, a_failed_import_leaves_the_region_as_it_was_and_a_retry_works)
{
    struct setup s;
    setup(&s);
    s.device.fail[FAKE_IMPORT] = KVB_ERR_NO_MEMORY;
    begin_register(&s);
    sim_settle(s.sim);
    cr_assert_eq(s.registered, KVB_ERR_NO_MEMORY);
    cr_assert_eq(kvt_region_state(s.region), KVT_REGION_MAPPED);
    cr_assert(memfd_open(s.fd));
    register_region(&s);
    cleanup(&s);
}

Test(staging, transfers_are_refused_until_it_is_registered_and_when_it_goes)
{
    struct setup s;
    setup(&s);
    describe(&s, KVT_TO_SHARE);
    s.device.hold[FAKE_IMPORT] = true;
    begin_register(&s);
    cr_assert_eq(kvt_transfer_start(s.transport, &s.transfer), KVB_ERR_GENERATION);
    s.device.hold[FAKE_IMPORT] = false;
    sim_settle(s.sim);
    cr_assert_eq(s.registered, KVB_OK);
    s.device.hold[FAKE_DROP] = true;
    begin_unregister(&s, 1000, 2000);
    sim_settle(s.sim);
    cr_assert_eq(kvt_transfer_start(s.transport, &s.transfer), KVB_ERR_GENERATION);
    cr_assert_eq(s.unregisters, 0, "not before the device has let go");
    fake_device_end(&s.device, fake_device_job(&s.device), KVB_OK);
    cr_assert_eq(s.unregisters, 1);
    cr_assert_eq(kvt_region_state(s.region), KVT_REGION_UNREGISTERED);
    cleanup(&s);
}

Test(staging, a_region_given_up_while_it_is_imported_is_dropped_when_that_is_over)
{
    for (int ok = 0; ok < 2; ok++) {
        struct setup s;
        setup(&s);
        s.device.hold[FAKE_IMPORT] = true;
        begin_register(&s);
        sim_settle(s.sim);
        begin_unregister(&s, 10, 30);
        sim_settle(s.sim);
        cr_assert_eq(s.unregisters, 0);
        sim_advance(s.sim, 11);
        cr_assert_eq(s.device.hurried_to_ns, sim_in_ms(s.sim, 9), "half of what is left");
        sim_advance(s.sim, 100);
        cr_assert_eq(s.unregisters, 0, "it is not known what is held");
        fake_device_end(&s.device, fake_device_job(&s.device), ok ? KVB_OK : KVB_ERR_TIMEOUT);
        cr_assert_eq(s.registered, KVB_ERR_CANCELED);
        sim_settle(s.sim);
        cr_assert_eq(s.unregisters, 1);
        cr_assert_eq(s.unregistered, KVB_OK);
        cr_assert_eq(s.device.begun[FAKE_DROP], ok ? 1 : 0);
        cr_assert(!memfd_open(s.fd));
        cleanup(&s);
    }
}

Test(staging, a_device_that_cannot_let_go_keeps_the_region_registered)
{
    struct setup s;
    setup(&s);
    register_region(&s);
    s.device.fail[FAKE_DROP] = KVB_ERR_TIMEOUT;
    begin_unregister(&s, 10, 20);
    sim_settle(s.sim);
    cr_assert_eq(s.unregistered, KVB_ERR_TIMEOUT);
    cr_assert_eq(kvt_region_state(s.region), KVT_REGION_REGISTERED);
    unregister(&s);
    cleanup(&s);
}

Test(staging, a_region_is_never_dropped_under_a_copy)
{
    struct setup s;
    setup(&s);
    register_region(&s);
    describe(&s, KVT_FROM_SHARE);
    s.device.hold[FAKE_COPY] = true;
    start(&s);
    sim_settle(s.sim);
    cr_assert_eq(s.device.begun[FAKE_COPY], 1);
    begin_unregister(&s, 10, 30);
    sim_advance(s.sim, 11);
    cr_assert_eq(s.device.hurried_to_ns, sim_in_ms(s.sim, 9));
    sim_advance(s.sim, 100);
    cr_assert_eq(s.device.begun[FAKE_DROP], 0);
    cr_assert_eq(s.unregistered, KVB_ERR_TIMEOUT);
    cr_assert_eq(kvt_region_state(s.region), KVT_REGION_REGISTERED);
    fake_device_end(&s.device, fake_device_job(&s.device), KVB_OK);
    cr_assert_eq(s.status, KVB_ERR_CANCELED);
    cleanup(&s);
}

/* ---- transfers ---- */

Test(staging, a_copy_that_fails_ends_its_transfer_with_that)
{
    struct setup s;
    setup(&s);
    register_region(&s);
    for (enum kvt_direction direction = KVT_TO_SHARE; direction <= KVT_FROM_SHARE; direction++) {
        memset(s.node, 0, LEN);
        describe(&s, direction);
        s.device.fail[FAKE_COPY] = KVB_ERR_IO;
        cr_assert_eq(run(&s), KVB_ERR_IO);
        cr_assert(s.transfer.ours, "it says nothing of the node");
        for (uint64_t i = 0; i < LEN; i++) {
            cr_assert_eq(s.node[i], 0, "nothing was moved of what was not copied");
        }
        cr_assert_eq(run(&s), KVB_OK, "its place in the pool is free again");
        cr_assert_not(s.transfer.ours);
    }
    cleanup(&s);
}

Test(staging, a_place_in_the_pool_is_one_transfers_alone_until_it_is_over)
{
    struct setup s;
    setup(&s);
    register_region(&s);
    describe(&s, KVT_TO_SHARE);
    s.device.hold[FAKE_COPY] = true;
    start(&s);
    s.other = s.transfer;
    cr_assert_eq(kvt_transfer_start(s.transport, &s.other), KVB_OK);
    sim_advance(s.sim, 100);
    cr_assert_eq(s.device.begun[FAKE_COPY], 1, "the other has no place");
    fake_device_end(&s.device, fake_device_job(&s.device), KVB_OK);
    sim_settle(s.sim);
    cr_assert_eq(s.ends, 1);
    cr_assert_eq(s.device.begun[FAKE_COPY], 2);
    fake_device_end(&s.device, fake_device_job(&s.device), KVB_OK);
    sim_settle(s.sim);
    cr_assert_eq(s.ends, 2);
    cr_assert_eq(s.status, KVB_OK);
    cleanup(&s);
}

Test(staging, small_ones_do_not_overtake_a_large_one_for_ever)
{
    struct setup s;
    setup(&s);
    register_region(&s);
    s.device.hold[FAKE_COPY] = true;
    struct kvt_slice small = {s.region, 0, KIB(4)};
    struct kvt_extent few = {0, KIB(4)};
    describe(&s, KVT_TO_SHARE);
    struct kvt_transfer first = s.transfer, second, third;
    first.slices = &small;
    first.nslices = 1;
    first.extents = &few;
    second = third = first;
    cr_assert_eq(kvt_transfer_start(s.transport, &first), KVB_OK);
    cr_assert_eq(kvt_transfer_start(s.transport, &second), KVB_OK);
    cr_assert_eq(kvt_transfer_start(s.transport, &s.transfer), KVB_OK); /* all of the pool */
    cr_assert_eq(kvt_transfer_start(s.transport, &third), KVB_OK);      /* there were room */
    sim_settle(s.sim);
    for (uint32_t i = 1; i <= 4; i++) {
        cr_assert_eq(s.device.begun[FAKE_COPY], i == 1 ? 2 : i, "after %u", i - 1);
        fake_device_end(&s.device, fake_device_job(&s.device), KVB_OK);
        sim_settle(s.sim);
        cr_assert_eq(s.ends, i);
    }
    cleanup(&s);
}

Test(staging, a_deadline_that_passes_ends_each_phase)
{
    struct setup s;
    setup(&s);
    register_region(&s);
    describe(&s, KVT_TO_SHARE);
    s.device.hold[FAKE_COPY] = true;
    s.transfer.deadline_ns = sim_in_ms(s.sim, 100);
    start(&s);
    s.other = s.transfer; /* waits for its place */
    s.other.deadline_ns = sim_in_ms(s.sim, 50);
    cr_assert_eq(kvt_transfer_start(s.transport, &s.other), KVB_OK);
    sim_advance(s.sim, 51);
    cr_assert_eq(s.ends, 1);
    cr_assert_eq(s.status, KVB_ERR_TIMEOUT);
    sim_advance(s.sim, 50);
    cr_assert_eq(s.ends, 1, "a copy runs, and the pool is its own until that ends");
    cr_assert_eq(s.device.hurried_to_ns, sim_in_ms(s.sim, 999));
    fake_device_end(&s.device, fake_device_job(&s.device), KVB_OK);
    cr_assert_eq(s.ends, 2);
    cr_assert_eq(s.status, KVB_ERR_TIMEOUT);
    cr_assert(s.transfer.ours && s.other.ours, "the node was not asked yet");
    s.device.hold[FAKE_COPY] = false;
    s.transfer.deadline_ns = KVB_NEVER;
    cr_assert_eq(run(&s), KVB_OK);
    cleanup(&s);
}

/* Cancelled after so many turns: it ends once, with what it came to, and everything is free. */
Test(staging, a_transfer_may_be_cancelled_at_any_step)
{
    static struct setup s;
    for (int tcp = 0; tcp < 2; tcp++) {
        for (enum kvt_direction direction = KVT_TO_SHARE; direction <= KVT_FROM_SHARE;
             direction++) {
            bool completed = false;
            for (uint32_t turns = 0; !completed; turns++) {
                if (tcp) {
                    setup_tcp(&s);
                } else {
                    setup(&s);
                }
                register_region(&s);
                describe(&s, direction);
                start(&s);
                for (uint32_t i = 0; i < turns && s.ends == 0; i++) {
                    (void)sim_turn(s.sim);
                }
                completed = s.ends == 1;
                if (!completed) {
                    s.inside = true;
                    kvt_transfer_cancel(&s.transfer, sim_in_ms(s.sim, 200));
                    kvt_transfer_cancel(&s.transfer, sim_in_ms(s.sim, 200));
                    s.inside = false;
                    cr_assert(sim_run_until(s.sim, ended, &s, 200));
                }
                cr_assert_eq(s.ends, 1);
                cr_assert(s.status == KVB_ERR_CANCELED || s.status == KVB_OK, "%s",
                          kvb_status_label(s.status));
                cr_assert_eq(kvt_region_refs(s.region), 0);
                cr_assert_eq(kvt_region_refs(s.device.base.pool), 0);
                cr_assert_eq(run(&s), KVB_OK);
                cleanup(&s);
                cr_assert_lt(turns, 10000);
            }
        }
    }
}

Test(staging, two_devices_in_one_transfer_are_refused)
{
    struct setup s;
    setup(&s);
    register_region(&s);
    struct fake_device second;
    fake_device_init(&second, s.regions, &s.sim->sched, LEN, POOL);
    struct kvt_region_desc desc = *kvt_region_desc(s.region);
    desc.device = &second.base;
    struct kvt_region *region;
    const char *reason = "";
    cr_assert_eq(
        kvt_region_create(s.regions, &desc, memfd_create("x", MFD_CLOEXEC), &region, &reason),
        KVB_OK);
    struct kvt_region *first = s.region;
    s.region = region;
    register_region(&s);
    describe(&s, KVT_TO_SHARE);
    s.slices[0].region = first;
    cr_assert_eq(kvt_transfer_start(s.transport, &s.transfer), KVB_ERR_INVALID);
    cr_assert_eq(kvt_region_refs(region) + kvt_region_refs(first), 0);
    unregister(&s);
    kvt_region_destroy(region);
    s.region = first;
    bool gone = false;
    fake_device_close(&second, &gone);
    sim_settle(s.sim);
    fake_device_free(&second);
    cleanup(&s);
}

#ifdef KVB_FAULTS

/* Which import a put of the second registration reads, as its number. */
static uint64_t reads_after_wake(const char *fault, uint32_t *held_p)
{
    struct setup s;
    cr_assert_eq(kvb_fault_choose(fault), KVB_OK);
    setup(&s);
    register_region(&s);
    unregister(&s);
    hand_over(&s);
    register_region(&s);
    s.device.hold[FAKE_COPY] = true;
    s.slices[0] = (struct kvt_slice){s.region, 0, 4096};
    s.transfer.nslices = 1;
    s.extent = (struct kvt_extent){0, 4096};
    s.transfer.direction = KVT_TO_SHARE;
    cr_assert_eq(kvt_transfer_start(s.transport, &s.transfer), KVB_OK);
    sim_settle(s.sim);
    uint64_t id = s.device.copies[0].pieces[0].id;
    s.device.hold[FAKE_COPY] = false;
    fake_device_end(&s.device, fake_device_job(&s.device), KVB_OK);
    sim_settle(s.sim);
    cr_assert_eq(s.ends, 1);
    unregister(&s);
    *held_p = s.device.imported;
    s.device.imported = 0;
    cleanup(&s);
    return id;
}

Test(staging, a_skipped_release_of_a_device_holds_and_reads_the_old_pages)
{
    uint32_t held;
    cr_assert_eq(reads_after_wake("unregister-skipped", &held), 1);
    cr_assert_eq(held, 1);
}

Test(staging, a_hostile_schedule_alone_reads_what_was_handed_over_last)
{
    uint32_t held;
    cr_assert_eq(reads_after_wake("none", &held), 2);
    cr_assert_eq(held, 0);
}

#endif
