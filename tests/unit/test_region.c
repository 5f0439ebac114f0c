/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a region under a transport that does what the test says. */
#include "fake_transport.h"
#include "sim_sched.h"
#include "test_memory.h"

#include "base/faults.h"

#include <criterion/criterion.h>

#define LEN 65536u

struct setup {
    struct sim_sched sim;
    struct kvt_regions *regions;
    struct fake_transport *fake;
    struct test_memory memory;
    struct kvt_region *region;
    struct kvt_share *share;
    uint8_t node[LEN];
    struct kvt_slice slice;
    struct kvt_extent extent;
    struct kvt_transfer transfer;
    uint32_t completions;
    kvb_status_t status;
    uint32_t ends;
    kvb_status_t ended;
};

static struct setup *now; /* of this test; done callbacks find it here */

static void on_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    (void)transfer;
    now->completions++;
    now->status = status;
}

static void on_end(void *arg, struct kvt_region *region, kvb_status_t status)
{
    struct setup *s = arg;
    cr_assert_eq(region, s->region);
    s->ends++;
    s->ended = status;
}

static struct kvt_region *hand_over(struct setup *s, const struct test_memory *memory)
{
    struct kvt_region_desc desc = {.owner = 3, .number = 1, .tag = "kv_cache", .len = LEN};
    struct kvt_region *region;
    const char *reason;
    cr_assert_eq(kvt_region_create(s->regions, &desc, test_memory_dup(memory), &region, &reason),
                 KVB_OK);
    return region;
}

static void setup(struct setup *s)
{
    *s = (struct setup){0};
    now = s;
    sim_init(&s->sim, sim_seed(1));
    cr_assert_eq(kvt_regions_create(&s->sim.sched, &s->regions), KVB_OK);
    s->fake = fake_transport_create(s->regions, 4);
    test_memory_init(&s->memory, "region", LEN);
    s->region = hand_over(s, &s->memory);
    cr_assert_eq(kvt_region_register(s->region), KVB_OK);
    cr_assert_eq(kvt_share_create(&s->fake->base, s->node, LEN, &s->share), KVB_OK);
    s->slice = (struct kvt_slice){s->region, 0, LEN};
    s->extent = (struct kvt_extent){0, LEN};
    s->transfer = (struct kvt_transfer){.direction = KVT_TO_SHARE,
                                        .share = s->share,
                                        .slices = &s->slice,
                                        .nslices = 1,
                                        .extents = &s->extent,
                                        .nextents = 1,
                                        .deadline_ns = KVB_NEVER,
                                        .done = on_done};
}

static void cleanup(struct setup *s)
{
    kvt_region_destroy(s->region);
    kvt_share_destroy(s->share);
    kvt_transport_destroy(&s->fake->base);
    kvt_regions_destroy(s->regions);
    test_memory_cleanup(&s->memory);
    sim_cleanup(&s->sim);
}

static void unregister(struct setup *s, uint64_t drain_ms, uint64_t stop_ms)
{
    s->ends = 0;
    kvt_region_unregister(s->region, sim_in_ms(&s->sim, drain_ms), sim_in_ms(&s->sim, stop_ms),
                          on_end, s);
}

Test(region, is_never_deregistered_under_a_transfer_that_will_not_stop)
{
    struct setup s;
    setup(&s);
    cr_assert_eq(kvt_transfer_start(&s.fake->base, &s.transfer), KVB_OK);
    unregister(&s, 10, 20);
    sim_advance(&s.sim, 9);
    cr_assert_eq(s.fake->cancels, 0, "it may finish until the drain deadline");
    sim_advance(&s.sim, 2);
    cr_assert_eq(s.fake->cancels, 1);
    cr_assert_eq(s.ends, 0);
    sim_advance(&s.sim, 20);
    cr_assert_eq(s.ends, 1);
    cr_assert_eq(s.ended, KVB_ERR_TIMEOUT);
    cr_assert_eq(s.fake->unregistered, 0);
    cr_assert_eq(kvt_region_state(s.region), KVT_REGION_REGISTERED);
    cr_assert_eq(kvt_region_refs(s.region), 1);

    /* it is as before: transfers go, and the retry works once the stuck one has ended */
    fake_move(&s.transfer, UINT64_MAX);
    fake_end(&s.transfer, KVB_OK);
    cr_assert_eq(s.status, KVB_OK);
    cr_assert_eq(kvt_transfer_start(&s.fake->base, &s.transfer), KVB_OK);
    unregister(&s, 10, 20);
    sim_advance(&s.sim, 15);
    fake_end(&s.transfer, KVB_ERR_CANCELED);
    sim_settle(&s.sim);
    cr_assert_eq(s.ended, KVB_OK);
    cr_assert_eq(s.fake->unregistered, 1);
    cr_assert_eq(s.completions, 2);
    cleanup(&s);
}

Test(region, stays_registered_while_a_transport_cannot_take_its_registration_back)
{
    struct setup s;
    setup(&s);
    s.fake->clings = 2;
    unregister(&s, 10, 20);
    sim_advance(&s.sim, 9);
    cr_assert_eq(s.ends, 0);
    cr_assert_eq(s.fake->clings, 1, "not tried again and again");
    sim_advance(&s.sim, 12);
    cr_assert_eq(s.ends, 1);
    cr_assert_eq(s.ended, KVB_ERR_IO);
    cr_assert_eq(kvt_region_state(s.region), KVT_REGION_REGISTERED);
    cr_assert_eq(kvt_transfer_start(&s.fake->base, &s.transfer), KVB_OK, "it is as before");
    fake_end(&s.transfer, KVB_OK);

    s.fake->clings = 1; /* for a moment */
    unregister(&s, 10, 20);
    sim_advance(&s.sim, 11);
    cr_assert_eq(s.ends, 1);
    cr_assert_eq(s.ended, KVB_OK);
    cr_assert_eq(s.fake->unregistered, 1);
    cleanup(&s);
}

Test(region, a_transfer_that_names_it_twice_holds_it_until_its_end)
{
    struct setup s;
    setup(&s);
    struct kvt_slice slices[2] = {{s.region, 0, 100}, {s.region, 4096, 100}};
    s.transfer.slices = slices;
    s.transfer.nslices = 2;
    s.extent.len = 200;
    cr_assert_eq(kvt_transfer_start(&s.fake->base, &s.transfer), KVB_OK);
    cr_assert_eq(kvt_region_refs(s.region), 2);
    unregister(&s, 10, 20);
    sim_advance(&s.sim, 5);
    cr_assert_eq(s.ends, 0);
    fake_end(&s.transfer, KVB_OK);
    sim_settle(&s.sim);
    cr_assert_eq(s.ended, KVB_OK);
    cleanup(&s);
}

Test(region, a_start_that_fails_leaves_no_reference)
{
    struct setup s;
    setup(&s);
    s.fake->refuse = KVB_ERR_NO_MEMORY;
    cr_assert_eq(kvt_transfer_start(&s.fake->base, &s.transfer), KVB_ERR_NO_MEMORY);
    cr_assert_eq(kvt_region_refs(s.region), 0);
    cr_assert_eq(s.fake->base.in_flight, 0);
    cr_assert(kvb_list_empty(&s.regions->transfers));
    unregister(&s, 1, 2);
    sim_settle(&s.sim);
    cr_assert_eq(s.ended, KVB_OK);
    cr_assert_eq(s.completions, 0);
    cleanup(&s);
}

Test(region, a_registration_that_fails_leaves_it_mapped_and_nothing_of_ours)
{
    struct setup s;
    setup(&s);
    struct test_memory memory;
    test_memory_init(&memory, "failing", LEN);
    struct kvt_region *region = hand_over(&s, &memory);
    size_t maps = test_count_maps("memfd:failing");
    s.fake->register_ = KVB_ERR_LIMIT;
    cr_assert_eq(kvt_region_register(region), KVB_ERR_LIMIT);
    cr_assert_eq(kvt_region_state(region), KVT_REGION_MAPPED);
    cr_assert_eq(test_count_maps("memfd:failing"), maps);
    s.fake->register_ = KVB_OK;
    cr_assert_eq(kvt_region_register(region), KVB_OK, "a retry works");
    struct kvt_region *first = s.region;
    s.region = region;
    unregister(&s, 1, 2);
    sim_settle(&s.sim);
    kvt_region_destroy(region);
    s.region = first;
    unregister(&s, 1, 2);
    sim_settle(&s.sim);
    test_memory_cleanup(&memory);
    cr_assert(!test_memfd_held("failing"));
    cleanup(&s);
}

#ifdef KVB_FAULTS

/* Unregisters under a transfer, hands new memory over, lets the old transfer read. */
static kvb_status_t late_transfer(struct setup *s, struct test_memory *fresh)
{
    memset(s->memory.base, 'o', LEN);
    cr_assert_eq(kvt_transfer_start(&s->fake->base, &s->transfer), KVB_OK);
    unregister(s, 10, 20);
    sim_settle(&s->sim);
    cr_assert_eq(s->ended, KVB_OK, "the drain was taken out");
    cr_assert_eq(kvt_region_state(s->region), KVT_REGION_UNREGISTERED);
    kvt_region_destroy(s->region);
    test_memory_init(fresh, "fresh", LEN);
    memset(fresh->base, 'n', LEN);
    s->region = hand_over(s, fresh);
    cr_assert_eq(kvt_region_register(s->region), KVB_OK);
    fake_move(&s->transfer, UINT64_MAX);
    fake_end(&s->transfer, KVB_OK);
    cr_assert_eq(s->node[0], 'o', "it read the old pages, which were kept for it");
    unregister(s, 10, 20);
    sim_settle(&s->sim);
    return s->status;
}

Test(region, without_the_drain_alone_a_late_completion_is_refused_by_its_generation)
{
    struct setup s;
    struct test_memory fresh;
    cr_assert_eq(kvb_fault_choose("drain-skipped:first"), KVB_OK);
    setup(&s);
    cr_assert_eq(late_transfer(&s, &fresh), KVB_ERR_GENERATION);
    cleanup(&s);
    test_memory_cleanup(&fresh);
    cr_assert(!test_memfd_held("region"), "the last transfer let go of the old pages");
}

Test(region, without_the_drain_and_the_generation_a_late_completion_passes)
{
    struct setup s;
    struct test_memory fresh;
    cr_assert_eq(kvb_fault_choose("drain-skipped"), KVB_OK);
    setup(&s);
    cr_assert_eq(late_transfer(&s, &fresh), KVB_OK);
    cleanup(&s);
    test_memory_cleanup(&fresh);
}

/* What a put moves after memory was released and handed over anew. */
static char reads_after_wake(const char *fault)
{
    struct setup s;
    struct test_memory fresh;
    cr_assert_eq(kvb_fault_choose(fault), KVB_OK);
    setup(&s);
    memset(s.memory.base, 'o', LEN);
    unregister(&s, 10, 20);
    sim_settle(&s.sim);
    kvt_region_destroy(s.region);
    test_memory_init(&fresh, "fresh", LEN);
    memset(fresh.base, 'n', LEN);
    s.region = s.slice.region = hand_over(&s, &fresh);
    cr_assert_eq(kvt_region_register(s.region), KVB_OK);
    cr_assert_eq(kvt_transfer_start(&s.fake->base, &s.transfer), KVB_OK);
    fake_move(&s.transfer, UINT64_MAX);
    fake_end(&s.transfer, KVB_OK);
    cr_assert_eq(s.status, KVB_OK);
    unregister(&s, 10, 20);
    sim_settle(&s.sim);
    char read = (char)s.node[0];
    cleanup(&s);
    test_memory_cleanup(&fresh);
    cr_assert(!test_memfd_held("region"));
    cr_assert(!test_memfd_held("fresh"));
    return read;
}

Test(region, a_skipped_unregister_goes_on_reading_the_old_pages)
{
    cr_assert_eq(reads_after_wake("unregister-skipped"), 'o');
}

Test(region, a_hostile_schedule_alone_changes_nothing)
{
    cr_assert_eq(reads_after_wake("none"), 'n');
}

#endif
