/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is refused, at each allocation of a run over rdma: it ends with a code or works, and
 * leaves nothing behind. */
#define RDMA_SIM_LEN (1ull << 20)
#include "fail_alloc.h"
#include "rdma_sim.h"

static void on_nothing(struct kvb_timer *timer)
{
    (void)timer;
}

/* A scheduler's first timer takes room for many, and asserts that it gets it. */
static void make_room_for_timers(struct rdma_sim *rig)
{
    for (int side = 0; side < SIDES; side++) {
        struct kvb_timer timer;
        kvb_timer_init(&timer, on_nothing);
        kvb_sched_timer_set(&rig->sims[side].sched, &timer, rdma_in_ms(rig, 1));
        kvb_sched_timer_clear(&rig->sims[side].sched, &timer);
    }
}

static void expect(kvb_status_t status, uint64_t nth)
{
    cr_assert(status == KVB_OK || status == KVB_ERR_NO_MEMORY || status == KVB_ERR_LIMIT ||
                  status == KVB_ERR_DISCONNECTED || status == KVB_ERR_UNAVAILABLE,
              "%lu: %s", nth, kvb_status_label(status));
}

static bool one_run(uint64_t nth)
{
    static struct rdma_sim rig;
    static uint8_t text[KIB(200)], answer[KIB(200)];
    rdma_sim_init(&rig, 1);
    kvb_log_threshold = KVB_LOG_ERROR;
    make_room_for_timers(&rig);
    fail_alloc_arm(nth);
    kvb_status_t status = rdma_sim_node(&rig);
    expect(status, nth);
    cr_assert(status == KVB_OK || rdma_sim_node(&rig) == KVB_OK);
    status = rdma_sim_engine(&rig);
    expect(status, nth);
    cr_assert(status == KVB_OK || rdma_sim_engine(&rig) == KVB_OK);
    status = rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){0});
    expect(status, nth);
    if (status != KVB_OK) {
        rig.peer = NULL;
        cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){0}), KVB_OK);
    }
    for (int i = 0; i < 5; i++) {
        struct rdma_job job;
        struct kvt_extent extents[RIG_EXTENTS_MAX];
        for (uint32_t e = 0; e < 40; e++) {
            extents[e] = (struct kvt_extent){e * KIB(20), KIB(20)};
        }
        rdma_job_init(&job, &rig, i % 2 == 0 ? RIG_PUT : RIG_GET, 0, 40 * KIB(20));
        job.transfer.ask = (struct kvb_span){(const uint8_t *)extents, 40 * sizeof extents[0]};
        if (i == 4) {
            job.transfer.type = RIG_ECHO;
            job.transfer.nslices = 0;
            job.transfer.ask = (struct kvb_span){text, sizeof text};
            job.transfer.answer = answer;
            job.transfer.answer_cap = sizeof answer;
        }
        expect(rdma_job_run(&job), nth);
    }
    bool hit = fail_alloc_disarm();
    cr_assert(rdma_sim_recovers(&rig, nth), "%lu", nth);
    rdma_sim_close(&rig);
    return hit;
}

Test(rdma_memory, every_allocation_may_fail_and_nothing_is_left_behind)
{
    uint64_t nth = 0;
    while (one_run(nth)) {
        nth++;
    }
    cr_assert_gt(nth, 20);
}
