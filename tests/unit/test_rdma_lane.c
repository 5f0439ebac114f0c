/* SPDX-License-Identifier: Apache-2.0 */
/* What a queue pair's owner does with it when others do not do their part (transport/rdma/lane.h).
 */
#include "rdma_sim.h"

/* Work is posted, and completions do not come any more. */
static void held_put(struct rdma_sim *rig, struct rdma_job *job, uint64_t deadline_ms)
{
    rdma_sim_open(rig, 1, (struct kvt_rdma_peer_config){.stop_ms = 100});
    kvb_log_threshold = KVB_LOG_ERROR;
    cr_assert_eq(rdma_sim_run(rig, RIG_PUT, 0, 16), KVB_OK);
    rdma_job_init(job, rig, RIG_PUT, 0, MIB(4));
    job->transfer.deadline_ns = deadline_ms != 0 ? rdma_in_ms(rig, deadline_ms) : KVB_NEVER;
    cr_assert_eq(rdma_job_start(job), KVB_OK);
    for (int i = 0; i < 100000 && fake_verbs_posted(FAKE_ASKER) < 2; i++) {
        rdma_step(rig);
    }
    cr_assert_geq(fake_verbs_posted(FAKE_ASKER), 2);
    fake_verbs_mute(FAKE_ASKER, true);
}

Test(rdma_lane, work_that_does_not_come_back_costs_the_queue_pair_and_not_the_bound)
{
    static struct rdma_sim rig;
    struct rdma_job job;
    held_put(&rig, &job, 0);
    uint64_t stop_ns = rdma_in_ms(&rig, 200);
    job.inside = true;
    kvt_transfer_cancel(&job.transfer, stop_ns);
    job.inside = false;
    cr_assert(rdma_run_until(&rig, &job.done, 199), "before its bound");
    cr_assert_eq(job.status, KVB_ERR_CANCELED);
    cr_assert_eq(rdma_sim_cause(&rig, FAKE_ASKER, KVT_RDMA_QUIESCED), 1);
    cr_assert_eq(rdma_sim_cause(&rig, FAKE_ASKER, KVT_RDMA_DESTROYED_UNFLUSHED), 1);
    fake_verbs_mute(FAKE_ASKER, false);
    cr_assert(rdma_sim_recovers(&rig, 1));
    rdma_sim_close(&rig);
}

Test(rdma_lane, a_deadline_ends_a_transfer_whose_work_does_not_come_back)
{
    static struct rdma_sim rig;
    struct rdma_job job;
    held_put(&rig, &job, 50);
    cr_assert(rdma_run_until(&rig, &job.done, 150));
    cr_assert_eq(job.status, KVB_ERR_TIMEOUT);
    fake_verbs_mute(FAKE_ASKER, false);
    cr_assert(rdma_sim_recovers(&rig, 1));
    rdma_sim_close(&rig);
}

/* Until the device has let go of it, it may still write: nothing is told as over, and it is asked
 * for again. */
Test(rdma_lane, a_queue_pair_that_is_not_let_go_of_is_asked_for_again)
{
    static struct rdma_sim rig;
    struct rdma_job job;
    held_put(&rig, &job, 0);
    struct fake_counts before = rig.fake->open;
    fake_verbs_fail("ibv_destroy_qp", 0, EBUSY);
    job.inside = true;
    kvt_transfer_cancel(&job.transfer, rdma_in_ms(&rig, 200));
    job.inside = false;
    bool failed = false;
    for (int i = 0; i < 100000 && !failed; i++) {
        rdma_step(&rig);
        failed = fake_verbs_has_failed();
        cr_assert(failed || !job.done);
    }
    cr_assert(failed && !job.done);
    cr_assert(rdma_run_until(&rig, &job.done, BOUND_MS));
    cr_assert_eq(job.status, KVB_ERR_CANCELED);
    fake_verbs_mute(FAKE_ASKER, false);
    cr_assert(rdma_sim_recovers(&rig, 1));
    rdma_advance(&rig, 1000);
    const char *leak = fake_verbs_leak(&before);
    cr_assert_null(leak, "%s", leak);
    rdma_sim_close(&rig);
}

/* Long questions and long answers at the same time, where little room is granted: each end must
 * still be able to say that it has room. */
Test(rdma_lane, two_floods_do_not_stop_each_other)
{
    static struct rdma_sim rig;
    static uint8_t text[KIB(300)], answers[8][KIB(300)];
    struct rdma_job jobs[8];
    rdma_sim_init(&rig, 1);
    rig.config[FAKE_ASKER].window = rig.config[FAKE_NODE].window = 4;
    rig.config[FAKE_ASKER].depth = rig.config[FAKE_NODE].depth = 16;
    cr_assert_eq(rdma_sim_node(&rig), KVB_OK);
    cr_assert_eq(rdma_sim_engine(&rig), KVB_OK);
    cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){0}), KVB_OK);
    test_value_fill(text, sizeof text, "t", "q", 1, 1);
    for (int i = 0; i < 8; i++) {
        rdma_job_init(&jobs[i], &rig, RIG_ECHO, 0, 0);
        jobs[i].transfer.ask = (struct kvb_span){text, sizeof text};
        jobs[i].transfer.answer = answers[i];
        jobs[i].transfer.answer_cap = sizeof answers[i];
        cr_assert_eq(rdma_job_start(&jobs[i]), KVB_OK);
    }
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(rdma_job_wait(&jobs[i]), KVB_OK);
        cr_assert_eq(memcmp(answers[i], text, sizeof text), 0);
    }
    cr_assert_eq(rig.fake->rnrs, 0);
    cr_assert_eq(rig.downs, 0);
    rdma_sim_close(&rig);
}
