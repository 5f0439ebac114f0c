/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is refused, at each allocation of a run: it ends with a code or works, and leaves
 * nothing behind. */
#include "fail_alloc.h"
#include "tcp_sim.h"

static void on_nothing(struct kvb_timer *timer)
{
    (void)timer;
}

/* The scheduler's first timer takes room for many, and asserts that it gets it. */
static void make_room_for_timers(struct tcp_sim *rig)
{
    struct kvb_timer timer;
    kvb_timer_init(&timer, on_nothing);
    kvb_sched_timer_set(&rig->sim.sched, &timer, sim_in_ms(&rig->sim, 1));
    kvb_sched_timer_clear(&rig->sim.sched, &timer);
}

/* Node, peer, put, get and question in the large and in the small; what fails is told. */
static void run_all(uint64_t nth, bool *hit_p)
{
    struct tcp_sim *rig = calloc(1, sizeof *rig);
    tcp_sim_open(rig, NULL);
    struct kvt_tcp_server *second;
    struct kvt_tcp_server_config server = {.common = rig->common,
                                           .sched = &rig->sim.sched,
                                           .name = "other",
                                           .ops = &rig_server_ops,
                                           .ctx = &rig->node};
    struct kvt_tcp_peer_config peer = {
        .common = rig->common, .address = "h:1", .ops = &tcp_sim_peer_ops, .ctx = rig};
    uint8_t *text = malloc(KIB(700)), *answer = malloc(KIB(700));
    memset(text, 5, KIB(700));

    make_room_for_timers(rig);
    fail_alloc_arm(nth);
    if (kvt_tcp_server_create(&server, &second) == KVB_OK) {
        kvt_tcp_server_destroy(second);
    }
    kvb_status_t status = kvt_tcp_peer_create(rig->regions, &peer, &rig->peer);
    if (status != KVB_OK) {
        cr_assert_eq(status, KVB_ERR_NO_MEMORY);
        rig->peer = NULL;
    }
    for (int i = 0; i < 8 && rig->peer != NULL; i++) {
        struct tcp_job job;
        struct kvt_extent extents[RIG_EXTENTS_MAX];
        uint32_t n = i % 2 == 0 ? 40 : 1;
        uint64_t each = i < 4 ? 100 : KIB(20);
        for (uint32_t e = 0; e < n; e++) {
            extents[e] = (struct kvt_extent){e * each, each};
        }
        uint16_t type = i % 4 < 2 ? RIG_PUT : RIG_GET;
        tcp_job_init(&job, rig, type, 0, n * each);
        job.transfer.ask = (struct kvb_span){(const uint8_t *)extents, n * sizeof extents[0]};
        if (i == 7) {
            job.transfer.type = RIG_ECHO;
            job.transfer.nslices = 0;
            job.transfer.ask = (struct kvb_span){text, KIB(700)};
            job.transfer.answer = answer;
            job.transfer.answer_cap = (uint32_t)KIB(700);
        }
        status = tcp_job_run(&job);
        cr_assert(status == KVB_OK || status == KVB_ERR_NO_MEMORY ||
                      status == KVB_ERR_DISCONNECTED || status == KVB_ERR_UNAVAILABLE,
                  "%lu: %s", nth, kvb_status_label(status));
        cr_assert_eq(rig->peer->in_flight, 0);
        if (status != KVB_OK) {
            sim_advance(&rig->sim, 3000); /* and comes back */
        }
    }
    *hit_p = fail_alloc_disarm();
    if (rig->peer != NULL) {
        sim_advance(&rig->sim, 5000);
        cr_assert_eq(tcp_sim_run(rig, RIG_PUT, 0, KIB(100)), KVB_OK, "%lu", nth);
        cr_assert_eq(rig->node.running, 0);
    }
    free(text);
    free(answer);
    tcp_sim_close(rig);
    free(rig);
}

Test(tcp_memory, every_allocation_may_fail_and_nothing_is_left_behind)
{
    bool hit = true;
    uint64_t nth = 0;
    for (; hit; nth++) {
        run_all(nth, &hit);
    }
    cr_assert_gt(nth, 20);
}

Test(tcp_memory, a_new_address_is_taken_whole_or_not_at_all)
{
    struct tcp_sim *rig = calloc(1, sizeof *rig);
    tcp_sim_open(rig, NULL);
    tcp_sim_peer(rig, (struct kvt_tcp_peer_config){0});
    cr_assert_eq(tcp_sim_run(rig, RIG_PUT, 0, KIB(1)), KVB_OK);
    fail_alloc_arm(0);
    cr_assert_eq(kvt_tcp_peer_set_address(rig->peer, "h:2"), KVB_ERR_NO_MEMORY);
    cr_assert(fail_alloc_disarm());
    cr_assert_eq(tcp_sim_run(rig, RIG_PUT, 0, KIB(1)), KVB_OK, "the old one stays");
    cr_assert_eq(kvt_tcp_peer_set_address(rig->peer, "nothing"), KVB_ERR_INVALID);
    kvt_tcp_server_destroy(NULL); /* of one that could not be made */
    cr_assert_eq(kvt_tcp_peer_set_address(rig->peer, "h:2"), KVB_OK);
    tcp_sim_close(rig);
    free(rig);
}

/* ---- an engine's memory that is not there any more ---- */

static uint64_t gone_after = UINT64_MAX; /* so many more accesses, and the next one finds it gone */
static bool gone_hit;

static bool gone(void)
{
    if (gone_after == UINT64_MAX || gone_after-- > 0) {
        return false;
    }
    gone_after = UINT64_MAX;
    gone_hit = true;
    return true;
}

kvb_status_t __real_kvt_region_read(struct kvt_region *region, uint64_t offset, void *to,
                                    size_t len);
kvb_status_t __wrap_kvt_region_read(struct kvt_region *region, uint64_t offset, void *to,
                                    size_t len);
kvb_status_t __wrap_kvt_region_read(struct kvt_region *region, uint64_t offset, void *to,
                                    size_t len)
{
    return gone() ? KVB_ERR_GENERATION : __real_kvt_region_read(region, offset, to, len);
}
kvb_status_t __real_kvt_region_write(struct kvt_region *region, uint64_t offset, const void *from,
                                     size_t len);
kvb_status_t __wrap_kvt_region_write(struct kvt_region *region, uint64_t offset, const void *from,
                                     size_t len);
kvb_status_t __wrap_kvt_region_write(struct kvt_region *region, uint64_t offset, const void *from,
                                     size_t len)
{
    return gone() ? KVB_ERR_GENERATION : __real_kvt_region_write(region, offset, from, len);
}

/* At each piece of a body: its transfer fails and says why, the connection and the others stay. */
Test(tcp_memory, a_region_that_is_gone_in_the_middle_of_a_body_fails_its_transfer_alone)
{
    struct tcp_sim *rig = calloc(1, sizeof *rig);
    tcp_sim_open(rig, NULL);
    tcp_sim_peer(rig, (struct kvt_tcp_peer_config){0});
    cr_assert_eq(tcp_sim_run(rig, RIG_PUT, 0, KIB(100)), KVB_OK);
    uint32_t ups = rig->ups;
    static const uint64_t lens[] = {100, KIB(3), KIB(100)};
    uint32_t hits = 0;
    for (int get = 0; get < 2; get++) {
        for (size_t l = 0; l < sizeof lens / sizeof lens[0]; l++) {
            gone_hit = true;
            for (uint64_t n = 0; gone_hit; n++) {
                gone_hit = false;
                gone_after = n;
                kvb_status_t status = tcp_sim_run(rig, get ? RIG_GET : RIG_PUT, 0, lens[l]);
                gone_after = UINT64_MAX;
                hits += gone_hit;
                cr_assert_eq(status, gone_hit ? KVB_ERR_GENERATION : KVB_OK, "%d, %lu bytes: %s",
                             get, lens[l], kvb_status_label(status));
                cr_assert_eq(rig->peer->in_flight, 0);
                cr_assert_eq(tcp_sim_run(rig, RIG_PUT, 0, lens[l]), KVB_OK);
            }
        }
    }
    cr_assert_gt(hits, 2);
    cr_assert_eq(rig->ups, ups, "the connection stays");
    cr_assert_eq(rig->node.running, 0);
    tcp_sim_close(rig);
    free(rig);
}
