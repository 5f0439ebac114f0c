/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the CPU does not reach (transport/rdma.h, unhashed): the asking side never touches
 * it, and the node makes the checksum of what has arrived. */
#include "rdma_sim.h"
#include "wire.h"

#include "transport_impl.h"

#include <sys/mman.h>

static const struct kvt_rdma_peer_config unhashed = {.unhashed = true};

/* As a GPU's memory: only the device reaches it. */
static void hide(struct rdma_sim *rig, bool hidden)
{
    cr_assert_eq(
        mprotect(rig->region->map, RDMA_SIM_LEN, hidden ? PROT_NONE : PROT_READ | PROT_WRITE), 0);
}

static uint64_t checksum_of(const struct rdma_job *job)
{
    uint64_t checksum = 0;
    cr_assert_eq(job->transfer.answer_len, sizeof checksum);
    memcpy(&checksum, job->answer, sizeof checksum);
    return checksum;
}

Test(rdma_unhashed, the_node_makes_the_checksum_and_the_cpu_of_the_asker_touches_nothing)
{
    static struct rdma_sim rig;
    static const uint64_t lens[] = {1, 4096, KIB(256), KIB(256) + 1, MIB(3) + 17};
    rdma_sim_open(&rig, 1, unhashed);
    hide(&rig, true);
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        uint64_t at = 4096 * i, len = lens[i];
        test_value_fill(rig.engine.base + at, len, "t", &i, sizeof i, 1);
        memset(rig.node_memory.base, 0, RDMA_SIM_LEN);
        struct rdma_job job;
        rdma_job_init(&job, &rig, RIG_PUT, at, len);
        cr_assert_eq(rdma_job_run(&job), KVB_OK, "%lu bytes", len);
        cr_assert_eq(checksum_of(&job), XXH3_64bits(rig.engine.base + at, len));
        cr_assert_eq(test_value_check(rig.node_memory.base + at, len, "t", &i, sizeof i, 1), len);
        memset(rig.engine.base, 0, RDMA_SIM_LEN);
        rdma_job_init(&job, &rig, RIG_GET, at, len);
        cr_assert_eq(rdma_job_run(&job), KVB_OK, "%lu bytes", len);
        cr_assert_eq(test_value_check(rig.engine.base + at, len, "t", &i, sizeof i, 1), len);
    }
    cr_assert_eq(rdma_sim_run(&rig, RIG_ECHO, 0, 0), KVB_OK);
    hide(&rig, false);
    rdma_sim_close(&rig);
}

Test(rdma_unhashed, a_get_succeeds_only_on_the_nodes_last_word)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, unhashed);
    rig.node.verdict = KVB_ERR_NOT_FOUND; /* the ticket was not held any more */
    cr_assert_eq(rdma_sim_run(&rig, RIG_GET, 0, KIB(700)), KVB_ERR_NOT_FOUND);
    rdma_sim_close(&rig);
}

Test(rdma_unhashed, many_at_once_each_get_their_own)
{
    enum { MANY = 16 };
    static struct rdma_sim rig;
    static struct rdma_job jobs[MANY];
    uint64_t len = RDMA_SIM_LEN / MANY;
    for (uint64_t seed = 1; seed < 4; seed++) {
        rdma_sim_open(&rig, seed, unhashed);
        for (uint64_t i = 0; i < MANY; i++) {
            test_value_fill(rig.engine.base + i * len, len, "t", &i, sizeof i, seed);
            rdma_job_init(&jobs[i], &rig, RIG_PUT, i * len, len);
            cr_assert_eq(rdma_job_start(&jobs[i]), KVB_OK);
        }
        for (uint64_t i = 0; i < MANY; i++) {
            cr_assert_eq(rdma_job_wait(&jobs[i]), KVB_OK);
            cr_assert_eq(checksum_of(&jobs[i]), XXH3_64bits(rig.engine.base + i * len, len));
        }
        cr_assert_eq(rig.node.puts, MANY);
        rdma_sim_close(&rig);
    }
}

/* Also while the node hashes: it hears gone(), once, and nothing of the request is left. */
Test(rdma_unhashed, a_lane_that_is_lost_at_any_moment_takes_its_requests_along)
{
    static struct rdma_sim rig;
    uint32_t ended = 0, lost = 0;
    for (uint32_t steps = 1; steps < 2000; steps++) {
        struct rdma_job jobs[2];
        rdma_sim_open(&rig, steps, unhashed);
        kvb_log_threshold = KVB_LOG_ERROR;
        for (int i = 0; i < 2; i++) {
            rdma_job_init(&jobs[i], &rig, RIG_PUT, (uint64_t)i * MIB(1), MIB(1));
            cr_assert_eq(rdma_job_start(&jobs[i]), KVB_OK);
        }
        for (uint32_t i = 0; i < steps && !(jobs[0].done && jobs[1].done); i++) {
            rdma_step(&rig);
        }
        bool over = jobs[0].done && jobs[1].done;
        fake_verbs_break(FAKE_NODE);
        for (int i = 0; i < 2; i++) {
            lost += rdma_job_wait(&jobs[i]) != KVB_OK;
        }
        ended += over;
        rdma_sim_close(&rig); /* asserts that each request ended */
        if (over) {
            break;
        }
    }
    cr_assert_eq(ended, 1, "the last run came to its end before");
    cr_assert_gt(lost, 10);
}

/* The node does not want it any more (its time is over, say): before DONE its memory is taken back
 * with the lane; while it hashes the client is through, and hears why. */
Test(rdma_unhashed, a_put_may_be_answered_before_it_is_hashed)
{
    static struct rdma_sim rig;
    uint32_t answered = 0, taken_back = 0, ended = 0;
    for (uint32_t steps = 1; steps < 2000 && ended == 0; steps++) {
        struct rdma_job job;
        rdma_sim_open(&rig, 1, unhashed);
        kvb_log_threshold = KVB_LOG_ERROR;
        rdma_job_init(&job, &rig, RIG_PUT, 0, MIB(4));
        cr_assert_eq(rdma_job_start(&job), KVB_OK);
        for (uint32_t i = 0; i < steps && !job.done; i++) {
            rdma_step(&rig);
        }
        struct kvt_request *request = rig.node.receiving;
        if (request != NULL) {
            rig.node.running--;
            rig.node.receiving = NULL;
            kvt_answer(request, KVB_ERR_TIMEOUT, NULL, 0);
            kvb_status_t status = rdma_job_wait(&job);
            bool lost = rdma_sim_stats(&rig).disconnects > 0;
            cr_assert_eq(status, lost ? KVB_ERR_DISCONNECTED : KVB_ERR_TIMEOUT);
            answered += !lost;
            taken_back += lost;
            rdma_advance(&rig, 100); /* nothing of it is hashed any more */
        }
        ended += job.done && request == NULL;
        (void)rdma_job_wait(&job);
        rdma_sim_close(&rig);
    }
    cr_assert(answered > 3 && taken_back > 0, "%u, %u", answered, taken_back);
}

/* ---- a get ---- */

static struct ibv_cq *received; /* the asker's first; the others are of what it sends */
static bool held_back;

static struct ibv_cq *create_cq(struct ibv_context *context, int n, void *ctx,
                                struct ibv_comp_channel *channel, int vector)
{
    struct ibv_cq *cq = fake_verbs_table.ibv_create_cq(context, n, ctx, channel, vector);
    received = received == NULL && channel != NULL ? cq : received;
    return cq;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
    return held_back && cq != received ? 0 : fake_verbs_table.ibv_poll_cq(cq, n, wc);
}

/* DONE lets the node use the memory anew: it must not overtake the READs. */
Test(rdma_unhashed, the_node_is_told_that_a_get_is_through_only_after_its_bytes_are_there)
{
    static struct rdma_sim rig;
    struct kvt_verbs verbs = fake_verbs_table;
    verbs.ibv_create_cq = create_cq;
    verbs.ibv_poll_cq = poll_cq;
    rdma_sim_init(&rig, 1);
    rig.config[FAKE_ASKER].verbs = &verbs;
    cr_assert_eq(rdma_sim_node(&rig), KVB_OK);
    cr_assert_eq(rdma_sim_engine(&rig), KVB_OK);
    cr_assert_eq(rdma_sim_peer(&rig, unhashed), KVB_OK);
    cr_assert(rdma_run_until(&rig, &rig.up, BOUND_MS));
    cr_assert_eq(rdma_sim_run(&rig, RIG_GET, 0, KIB(64)), KVB_OK);
    struct rdma_job job;
    held_back = true;
    rdma_job_init(&job, &rig, RIG_GET, 0, KIB(64));
    uint64_t reads = rig.fake->reads;
    cr_assert_eq(rdma_job_start(&job), KVB_OK);
    rdma_advance(&rig, 100);
    cr_assert_gt(rig.fake->reads, reads, "they have run");
    cr_assert_eq(rig.node.running, 1, "and nobody has seen it: the node waits");
    held_back = false;
    cr_assert_eq(rdma_job_wait(&job), KVB_OK);
    rdma_sim_close(&rig);
}

/* What a node that knows of no such bodies must not be sent. */
Test(rdma_unhashed, a_question_that_says_something_else_is_refused)
{
    uint8_t head[RWIRE_QUESTION_LEN];
    struct rwire_question question;
    rwire_question_head_pack(true, 16, head);
    cr_assert_eq(rwire_question_unpack(head, sizeof head, &question), KVB_OK);
    cr_assert(question.unhashed);
    cr_assert_eq(question.body_len, 16);
    head[0] = 2;
    cr_assert_eq(rwire_question_unpack(head, sizeof head, &question), KVB_ERR_PROTOCOL);
    rwire_question_head_pack(true, 0, head);
    cr_assert_eq(rwire_question_unpack(head, sizeof head, &question), KVB_ERR_PROTOCOL,
                 "no body to hash");
    rwire_question_head_pack(false, 16, head);
    cr_assert_eq(rwire_question_unpack(head, sizeof head, &question), KVB_OK);
    cr_assert(!question.unhashed);
}
