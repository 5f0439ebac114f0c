/* SPDX-License-Identifier: Apache-2.0 */
/* What the rdma transport promises beside the contract (transport/rdma.h): lanes, admission, life
 * signs, and what the node hears. */
#include "rdma_sim.h"

Test(rdma, questions_of_every_length_are_answered_word_by_word)
{
    static struct rdma_sim rig;
    static uint8_t text[KVT_ASK_MAX], answer[KVT_ASK_MAX];
    static const uint32_t lens[] = {0, 1, 100, 128, 129, 4000, 4096, 8192, 70000, KVT_ASK_MAX};
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    test_value_fill(text, sizeof text, "t", "q", 1, 1);
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        struct rdma_job job;
        rdma_job_init(&job, &rig, RIG_ECHO, 0, 0);
        job.transfer.ask = (struct kvb_span){text, lens[i]};
        job.transfer.answer = answer;
        job.transfer.answer_cap = sizeof answer;
        memset(answer, 0, sizeof answer);
        cr_assert_eq(rdma_job_run(&job), KVB_OK, "%u bytes", lens[i]);
        cr_assert_eq(job.transfer.answer_len, lens[i]);
        cr_assert_eq(memcmp(answer, text, lens[i]), 0);
    }
    struct rdma_job job;
    rdma_job_init(&job, &rig, RIG_ECHO, 0, 0);
    job.transfer.ask = (struct kvb_span){text, KVT_ASK_MAX + 1ull};
    cr_assert_eq(rdma_job_start(&job), KVB_ERR_TOO_LARGE);
    job.transfer.ask.len = 65;
    job.transfer.answer_cap = 64;
    cr_assert_eq(rdma_job_run(&job), KVB_ERR_PROTOCOL, "an answer for which there is no room");
    cr_assert_eq(rig.fake->rnrs, 0, "room was promised for each message");
    rdma_sim_close(&rig);
}

Test(rdma, many_at_once_of_many_ranks_do_not_mix)
{
    enum { RANKS = 24, EACH = 8 };
    static struct rdma_sim rig;
    static struct kvt_region *regions[RANKS];
    static struct rdma_job jobs[RANKS][EACH];
    for (uint64_t seed = 1; seed < 4; seed++) {
        rdma_sim_open(&rig, seed, (struct kvt_rdma_peer_config){.lanes = 5});
        rig.fake->delay_ns = KVB_NS_PER_MS / 4;
        uint64_t len = RDMA_SIM_LEN / RANKS / EACH / 4096 * 4096;
        for (uint64_t r = 0; r < RANKS; r++) {
            cr_assert_eq(rdma_sim_region(&rig, &regions[r], 10 + r, 0, RDMA_SIM_LEN), KVB_OK);
            for (uint64_t i = 0; i < EACH; i++) {
                uint64_t number = r * EACH + i, at = number * len;
                test_value_fill(rig.engine.base + at, len, "t", &number, sizeof number, seed);
                rdma_job_init(&jobs[r][i], &rig, RIG_PUT, at, len);
                jobs[r][i].slice.region = regions[r];
                cr_assert_eq(rdma_job_start(&jobs[r][i]), KVB_OK);
            }
        }
        for (uint64_t r = 0; r < RANKS; r++) {
            for (uint64_t i = 0; i < EACH; i++) {
                uint64_t number = r * EACH + i;
                cr_assert_eq(rdma_job_wait(&jobs[r][i]), KVB_OK);
                cr_assert_eq(test_value_check(rig.node_memory.base + number * len, len, "t",
                                              &number, sizeof number, seed),
                             len);
            }
            cr_assert_eq(rdma_sim_unregister(&rig, regions[r], 1000, 1000), KVB_OK);
            kvt_region_destroy(regions[r]);
        }
        cr_assert_leq(rdma_sim_stats(&rig).lanes, 5);
        cr_assert_eq(rig.fake->rnrs, 0);
        rdma_sim_close(&rig);
    }
}

Test(rdma, who_does_not_know_the_secret_is_refused)
{
    static struct rdma_sim rig;
    rdma_sim_init(&rig, 1);
    kvb_log_threshold = KVB_LOG_ERROR;
    cr_assert_eq(rdma_sim_node(&rig), KVB_OK);
    cr_assert_eq(rdma_sim_engine(&rig), KVB_OK);
    struct kvt_peer_common other = {.secret = "another", .secret_len = 7};
    cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){.common = other}), KVB_OK);
    rdma_advance(&rig, 10000);
    cr_assert_eq(rig.ups, 0);
    cr_assert_eq(rig.downs, 1);
    cr_assert_eq(rig.why, KVB_ERR_REFUSED);
    cr_assert_eq(rig.node.sessions, 0);
    cr_assert_eq(rdma_sim_run(&rig, RIG_PUT, 0, 16), KVB_ERR_UNAVAILABLE);
    rdma_sim_close(&rig);
}

Test(rdma, what_is_started_before_the_first_connection_waits_for_it)
{
    static struct rdma_sim rig;
    rdma_sim_init(&rig, 1);
    cr_assert_eq(rdma_sim_node(&rig), KVB_OK);
    cr_assert_eq(rdma_sim_engine(&rig), KVB_OK);
    cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){0}), KVB_OK);
    cr_assert_eq(rdma_sim_run(&rig, RIG_PUT, 0, KIB(64)), KVB_OK);
    rdma_sim_close(&rig);
}

Test(rdma, a_quiet_peer_stays_up_and_a_stopped_one_does_not)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    kvb_log_threshold = KVB_LOG_ERROR;
    rdma_advance(&rig, 600000);
    cr_assert_eq(rig.downs, 0);
    cr_assert(rdma_sim_works(&rig, 1));
    struct rdma_job job;
    rig.node.late = true;
    rdma_job_init(&job, &rig, RIG_PUT, 0, KIB(64));
    cr_assert_eq(rdma_job_start(&job), KVB_OK);
    rdma_advance(&rig, 100);
    cr_assert(!job.done);
    rig.stopped[SIDE_NODE] = true; /* its device still acknowledges */
    uint64_t from_ns = rdma_now_ns(&rig);
    cr_assert_neq(rdma_job_wait(&job), KVB_OK);
    cr_assert_leq(rdma_now_ns(&rig) - from_ns, 5 * KVB_NS_PER_S, "within the bound of silence");
    rdma_advance(&rig, 10000);
    cr_assert_eq(rig.downs, 1);
    rig.stopped[SIDE_NODE] = false;
    rig.node.late = false;
    rig_answer_all(&rig.node);
    cr_assert(rdma_sim_recovers(&rig, 2));
    rdma_sim_close(&rig);
}

Test(rdma, a_client_that_is_gone_takes_its_requests_along)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    rig.node.late = true;
    struct rdma_job jobs[3];
    static const uint16_t types[] = {RIG_PUT, RIG_GET, RIG_ECHO};
    for (int i = 0; i < 3; i++) {
        rdma_job_init(&jobs[i], &rig, types[i], (uint64_t)i * KIB(64), KIB(64));
        cr_assert_eq(rdma_job_start(&jobs[i]), KVB_OK);
    }
    rdma_advance(&rig, 100);
    cr_assert_eq(rig.node.running, 3);
    rdma_sim_close_engine(&rig);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(jobs[i].status, KVB_ERR_CANCELED);
    }
    rdma_advance(&rig, 10000);
    cr_assert_eq(rig.node.running, 0);
    cr_assert_eq(rig.node.gone, 3);
    cr_assert_eq(rig.node.sessions, 0);
    rdma_sim_close(&rig);
}

Test(rdma, a_node_that_ends_ends_its_transfers_and_is_found_again)
{
    for (uint32_t turns = 0; turns < 40; turns += 1 + turns / 4) {
        static struct rdma_sim rig;
        rdma_sim_open(&rig, 1 + turns, (struct kvt_rdma_peer_config){0});
        kvb_log_threshold = KVB_LOG_ERROR;
        struct rdma_job jobs[8];
        for (uint64_t i = 0; i < 8; i++) {
            rdma_job_init(&jobs[i], &rig, i % 2 == 0 ? RIG_PUT : RIG_GET, i * MIB(1), MIB(1));
            cr_assert_eq(rdma_job_start(&jobs[i]), KVB_OK);
        }
        for (uint32_t i = 0; i < turns; i++) {
            (void)rdma_turn(&rig);
        }
        rdma_sim_close_node(&rig);
        uint64_t from_ns = rdma_now_ns(&rig);
        for (int i = 0; i < 8; i++) {
            (void)rdma_job_wait(&jobs[i]);
        }
        cr_assert_leq(rdma_now_ns(&rig) - from_ns, 5 * KVB_NS_PER_S);
        cr_assert_eq(rdma_sim_node(&rig), KVB_OK);
        cr_assert_eq(kvt_rdma_peer_set_address(rig.peer, rig.address), KVB_OK);
        cr_assert(rdma_sim_recovers(&rig, turns));
        rdma_sim_close(&rig);
    }
}

Test(rdma, a_get_whose_ticket_ran_out_meanwhile_fails_with_that)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    rig.node.verdict = KVB_ERR_GENERATION;
    cr_assert_eq(rdma_sim_run(&rig, RIG_GET, 0, KIB(64)), KVB_ERR_GENERATION);
    rig.node.verdict = KVB_OK;
    cr_assert(rdma_sim_works(&rig, 1), "on the same lane");
    cr_assert_eq(rdma_sim_stats(&rig).disconnects, 0);
    rdma_sim_close(&rig);
}

Test(rdma, what_is_canceled_ends_by_its_deadline_and_leaves_memory_alone)
{
    for (uint32_t turns = 0; turns < 200; turns += 1 + turns / 4) {
        for (int type = RIG_PUT; type <= RIG_GET; type++) {
            static struct rdma_sim rig;
            rdma_sim_open(&rig, 1 + turns, (struct kvt_rdma_peer_config){0});
            kvb_log_threshold = KVB_LOG_ERROR;
            struct rdma_job job;
            rdma_job_init(&job, &rig, (uint16_t)type, 0, MIB(4));
            cr_assert_eq(rdma_job_start(&job), KVB_OK);
            for (uint32_t i = 0; i < turns; i++) {
                (void)rdma_turn(&rig);
            }
            if (!job.done) {
                uint64_t by_ns = rdma_in_ms(&rig, 200);
                job.inside = true;
                kvt_transfer_cancel(&job.transfer, by_ns);
                job.inside = false;
                kvb_status_t status = rdma_job_wait(&job);
                cr_assert(status == KVB_ERR_CANCELED || status == KVB_OK, "%s",
                          kvb_status_label(status));
                cr_assert_leq(job.ended_ns, by_ns);
                memset(rig.engine.base, 'x', MIB(4));
                rdma_advance(&rig, 2000);
                for (size_t i = 0; i < MIB(4); i++) {
                    cr_assert_eq(rig.engine.base[i], 'x', "turn %u byte %zu", turns, i);
                }
            }
            cr_assert(rdma_sim_recovers(&rig, turns));
            rdma_sim_close(&rig);
        }
    }
}

Test(rdma, completion_queues_never_overrun_however_small_the_queues_are)
{
    static struct rdma_sim rig;
    for (uint32_t depth = 16; depth <= 64; depth *= 2) {
        rdma_sim_init(&rig, depth);
        for (int side = 0; side < FAKE_SIDES; side++) {
            rig.config[side].depth = depth;
            rig.config[side].sge = 1;
            rig.config[side].window = 4;
            rig.config[side].inline_bytes = 16;
            rig.config[side].rd_atomic = 1;
        }
        cr_assert_eq(rdma_sim_node(&rig), KVB_OK, "%s", rig.reason);
        cr_assert_eq(rdma_sim_engine(&rig), KVB_OK, "%s", rig.reason);
        cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){.lanes = 2}), KVB_OK);
        cr_assert(rdma_run_until(&rig, &rig.up, BOUND_MS));
        rig.fake->delay_ns = KVB_NS_PER_MS / 50;
        static struct rdma_job jobs[100];
        static struct kvt_extent extents[100][40];
        static struct kvt_slice slices[100][40];
        for (uint64_t i = 0; i < 100; i++) {
            rdma_job_init(&jobs[i], &rig, i % 3 == 2 ? RIG_ECHO : (uint16_t)(1 + i % 3), 0, 1);
            for (uint64_t e = 0; e < 40; e++) {
                uint64_t at = (i * 40 + e) * 2000;
                extents[i][e] = (struct kvt_extent){at, 1000 + e};
                slices[i][39 - e] = (struct kvt_slice){rig.region, at, 1000 + e};
            }
            if (i % 3 != 2) {
                jobs[i].transfer.slices = slices[i];
                jobs[i].transfer.nslices = 40;
                jobs[i].transfer.ask =
                    (struct kvb_span){(const uint8_t *)extents[i], sizeof extents[i]};
            }
            cr_assert_eq(rdma_job_start(&jobs[i]), KVB_OK);
        }
        for (int i = 0; i < 100; i++) {
            cr_assert_eq(rdma_job_wait(&jobs[i]), KVB_OK, "%d", i);
        }
        cr_assert_eq(rig.fake->rnrs, 0);
        rdma_sim_close(&rig);
    }
}

/* Everything posted comes back at once, and nobody takes it. */
Test(rdma, completion_queues_never_overrun_while_the_process_is_stopped)
{
    for (int side = 0; side < FAKE_SIDES; side++) {
        static struct rdma_sim rig;
        static struct rdma_job jobs[32];
        rdma_sim_init(&rig, 1);
        kvb_log_threshold = KVB_LOG_ERROR;
        rig.config[FAKE_ASKER].depth = rig.config[FAKE_NODE].depth = 32;
        rig.config[FAKE_ASKER].window = rig.config[FAKE_NODE].window = 4;
        cr_assert_eq(rdma_sim_node(&rig), KVB_OK, "%s", rig.reason);
        cr_assert_eq(rdma_sim_engine(&rig), KVB_OK, "%s", rig.reason);
        cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){.lanes = 2}), KVB_OK);
        cr_assert_eq(rdma_sim_run(&rig, RIG_PUT, 0, 16), KVB_OK);
        rig.fake->delay_ns = KVB_NS_PER_MS;
        for (uint64_t i = 0; i < 32; i++) {
            rdma_job_init(&jobs[i], &rig, i == 0 ? RIG_PUT : RIG_ECHO, 0, RDMA_SIM_LEN);
            cr_assert_eq(rdma_job_start(&jobs[i]), KVB_OK);
        }
        for (int i = 0; i < 500 && fake_verbs_posted(FAKE_ASKER) < 12; i++) {
            rdma_step(&rig);
        }
        cr_assert_geq(fake_verbs_posted(FAKE_ASKER), 12);
        rig.stopped[side] = true;
        rdma_advance(&rig, 10);
        fake_verbs_break((enum fake_side)side);
        rdma_advance(&rig, 1000);
        rig.stopped[side] = false;
        for (int i = 0; i < 32; i++) {
            (void)rdma_job_wait(&jobs[i]);
        }
        cr_assert(rdma_sim_recovers(&rig, 1));
        rdma_sim_close(&rig);
    }
}

Test(rdma, a_listener_says_why_it_cannot)
{
    static struct rdma_sim rig;
    rdma_sim_init(&rig, 1);
    cr_assert_eq(rdma_sim_node(&rig), KVB_OK);
    struct kvt_rdma_listener_config config = {.device = rig.devices[SIDE_NODE],
                                              .sched = &rig.sims[SIDE_NODE].sched,
                                              .io = &rig.ios[SIDE_NODE].base,
                                              .accepted = rdma_sim_accepted_,
                                              .ctx = &rig};
    static const char *bad[] = {"", "nonsense", "10.0.0.2", "10.0.0.2:99999", "host.name:1"};
    struct kvt_rdma_listener *listener;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        config.address = bad[i];
        rig.reason[0] = '\0';
        cr_assert_eq(kvt_rdma_listener_create(&config, &listener, rig.reason), KVB_ERR_INVALID,
                     "%s", bad[i]);
        cr_assert(rig.reason[0] != '\0');
    }
    config.address = rig.address;
    cr_assert_eq(kvt_rdma_listener_create(&config, &listener, rig.reason), KVB_ERR_EXISTS);
    config.address = "192.0.2.1:1";
    cr_assert_eq(kvt_rdma_listener_create(&config, &listener, rig.reason), KVB_ERR_UNAVAILABLE);
    rdma_sim_close(&rig);
}

Test(rdma, lanes_are_limited)
{
    static struct rdma_sim rig;
    rdma_sim_init(&rig, 1);
    kvb_log_threshold = KVB_LOG_ERROR;
    cr_assert_eq(rdma_sim_node(&rig), KVB_OK);
    cr_assert_eq(rdma_sim_engine(&rig), KVB_OK);
    struct kvt_rdma_server_config config = {.common = rig.common,
                                            .device = rig.devices[SIDE_NODE],
                                            .sched = &rig.sims[SIDE_NODE].sched,
                                            .io = &rig.ios[SIDE_NODE].base,
                                            .name = "node-1",
                                            .incarnation = 11,
                                            .lanes_max = 1,
                                            .ops = &rig_server_ops,
                                            .ctx = &rig.node};
    kvt_rdma_server_destroy(rig.server);
    cr_assert_eq(kvt_rdma_server_create(&config, &rig.server), KVB_OK);
    cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){0}), KVB_OK);
    cr_assert(rdma_run_until(&rig, &rig.up, BOUND_MS));
    struct rdma_job job;
    rdma_job_init(&job, &rig, RIG_PUT, 0, KIB(64));
    job.transfer.deadline_ns = rdma_in_ms(&rig, 10000);
    if (rdma_job_start(&job) == KVB_OK) {
        (void)rdma_job_wait(&job);
    }
    cr_assert_leq(rig.node.sessions, 1);
    cr_assert_eq(rdma_sim_run(&rig, RIG_ECHO, 0, 0), KVB_OK, "the one it has goes on");
    rdma_sim_close(&rig);
}
