/* SPDX-License-Identifier: Apache-2.0 */
/* What transport/tcp.h promises beside the contract of every transport (test_transport_contract.c).
 */
#include "tcp_sim.h"

static void open_up(struct tcp_sim *rig, struct kvt_tcp_peer_config config)
{
    tcp_sim_open(rig, NULL);
    tcp_sim_peer(rig, config);
    tcp_sim_wait_up(rig);
}

static bool is_all(const uint8_t *data, uint8_t value, uint64_t len)
{
    for (uint64_t i = 0; i < len; i++) {
        if (data[i] != value) {
            return false;
        }
    }
    return true;
}

/* ---- giving up ---- */

/* Cancelled, or past its deadline, after any number of turns: the transfer ends at once, its memory
 * is not touched any more, nothing half is kept, and the lane goes on. */
Test(tcp, giving_up_at_every_step_keeps_the_lane_and_lets_go_of_memory)
{
    static const uint64_t sizes[] = {100, 4096, MIB(1)};
    for (int by_deadline = 0; by_deadline < 2; by_deadline++) {
        for (int type = RIG_PUT; type <= RIG_ECHO; type++) {
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                struct tcp_sim rig;
                open_up(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
                rig.net.room = KIB(64);
                bool finished = false;
                uint64_t len = sizes[s];
                for (int turns = 0; !finished; turns++) {
                    cr_assert_lt(turns, 1000);
                    struct tcp_job job;
                    memset(rig.node_memory.base, type == RIG_GET ? 0x11 : TEST_PREFILL, len);
                    memset(rig.engine.base, type == RIG_PUT ? 0x22 : TEST_PREFILL, len);
                    uint32_t puts = rig.node.puts;
                    tcp_job_init(&job, &rig, (uint16_t)type, 0, len);
                    if (by_deadline) {
                        job.transfer.deadline_ns = sim_in_ms(&rig.sim, 100);
                    }
                    cr_assert_eq(tcp_job_start(&job), KVB_OK);
                    for (int i = 0; i < turns && !job.done; i++) {
                        (void)sim_turn(&rig.sim);
                    }
                    finished = job.done;
                    if (!finished && by_deadline) {
                        rig.sim.now_ns = job.transfer.deadline_ns;
                    } else if (!finished) {
                        tcp_job_cancel(&job);
                        tcp_job_cancel(&job);
                    }
                    for (int i = 0; i < 2 && !job.done; i++) {
                        (void)sim_turn(&rig.sim);
                    }
                    cr_assert(job.done, "at once");
                    cr_assert(job.status == KVB_OK ||
                              (!finished &&
                               job.status == (by_deadline ? KVB_ERR_TIMEOUT : KVB_ERR_CANCELED)));
                    cr_assert_eq(kvt_region_refs(rig.region), 0);
                    memset(rig.engine.base, 0x99, MIB(1));
                    sim_settle(&rig.sim);
                    cr_assert(is_all(rig.engine.base, 0x99, MIB(1)), "not touched any more");
                    cr_assert_null(memchr(rig.node_memory.base, 0x99, len), "nor read");
                    cr_assert_eq(rig.node.running, 0);
                    cr_assert(job.status != KVB_OK || type != RIG_PUT || rig.node.puts == puts + 1);
                    cr_assert(rig.node.puts == puts || is_all(rig.node_memory.base, 0x22, len),
                              "kept only if whole");
                }
                cr_assert_eq(tcp_sim_run(&rig, RIG_PUT, 0, KIB(300)), KVB_OK);
                cr_assert_eq(tcp_sim_run(&rig, RIG_GET, 0, KIB(300)), KVB_OK);
                cr_assert_eq(rig.net.connects, 1, "the lane was kept");
                cr_assert_eq(rig.downs, 0);
                tcp_sim_close(&rig);
            }
        }
    }
}

/* Any number of them one after the other, as long as the answers come. */
Test(tcp, answers_that_come_by_late_are_not_held_against_the_lane)
{
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){.lanes = 1, .in_flight_max = 8});
    for (int i = 0; i < 100; i++) {
        struct tcp_job job;
        tcp_job_init(&job, &rig, (uint16_t)(RIG_PUT + i % 3), 0, 100);
        cr_assert_eq(tcp_job_start(&job), KVB_OK);
        (void)sim_turn(&rig.sim);
        (void)sim_turn(&rig.sim);
        tcp_job_cancel(&job);
        sim_settle(&rig.sim);
        cr_assert(job.done);
    }
    cr_assert_eq(rig.net.connects, 1);
    cr_assert_eq(rig.downs, 0);
    tcp_sim_close(&rig);
}

/* What waits for answers that never come is bounded, too. */
Test(tcp, too_many_overdue_answers_end_the_lane)
{
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){.lanes = 1, .in_flight_max = 8});
    rig.node.late = true;
    for (int i = 0; i < 100 && rig.downs == 0; i++) {
        struct tcp_job job;
        tcp_job_init(&job, &rig, RIG_ECHO, 0, 0);
        kvb_status_t status = tcp_job_start(&job);
        if (status == KVB_ERR_UNAVAILABLE) { /* it has ended */
            sim_settle(&rig.sim);
            break;
        }
        cr_assert_eq(status, KVB_OK);
        sim_settle(&rig.sim);
        tcp_job_cancel(&job);
        cr_assert_eq(tcp_job_wait(&job), KVB_ERR_CANCELED);
    }
    cr_assert_eq(rig.downs, 1);
    rig.node.late = false;
    kvb_list_init(&rig.node.waiting);
    sim_advance(&rig.sim, 1000);
    cr_assert_eq(tcp_sim_run(&rig, RIG_ECHO, 0, 0), KVB_OK);
    tcp_sim_close(&rig);
}

/* ---- bytes ---- */

Test(tcp, bytes_that_change_on_the_way_are_not_kept)
{
    /* a small body is read once; of a large one the engine changes what was sent already, or not */
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
    rig.net.room = KIB(64);
    int changed = 0;
    bool finished = false;
    for (int turns = 0; !finished; turns++) {
        struct tcp_job job;
        memset(rig.engine.base, 0x33, MIB(1));
        uint32_t puts = rig.node.puts;
        tcp_job_init(&job, &rig, RIG_PUT, 0, MIB(1));
        cr_assert_eq(tcp_job_start(&job), KVB_OK);
        for (int i = 0; i < turns && !job.done; i++) {
            (void)sim_turn(&rig.sim);
        }
        finished = job.done;
        memset(rig.engine.base, 0x44, MIB(1));
        kvb_status_t status = tcp_job_wait(&job);
        cr_assert(status == KVB_OK || status == KVB_ERR_CHECKSUM);
        cr_assert_eq(rig.node.puts, puts + (status == KVB_OK));
        if (status == KVB_OK) {
            cr_assert_eq(job.transfer.checksum, XXH3_64bits(rig.node_memory.base, MIB(1)));
        }
        changed += status != KVB_OK;
    }
    cr_assert_gt(changed, 0);
    cr_assert_eq(tcp_sim_node_stats(&rig).checksums, changed);
    cr_assert_eq(rig.net.connects, 1);

    /* a node that sends other bytes than those it hashed */
    finished = false;
    changed = 0;
    for (int turns = 0; !finished; turns++) {
        struct tcp_job job;
        memset(rig.node_memory.base, 0x33, MIB(1));
        tcp_job_init(&job, &rig, RIG_GET, 0, MIB(1));
        cr_assert_eq(tcp_job_start(&job), KVB_OK);
        for (int i = 0; i < turns && !job.done; i++) {
            (void)sim_turn(&rig.sim);
        }
        finished = job.done;
        rig.node_memory.base[MIB(1) - 1] = 0x34;
        kvb_status_t status = tcp_job_wait(&job);
        cr_assert(status == KVB_OK || status == KVB_ERR_CHECKSUM);
        cr_assert(status != KVB_OK ||
                  job.transfer.checksum == XXH3_64bits(rig.engine.base, MIB(1)));
        changed += status != KVB_OK;
    }
    cr_assert_gt(changed, 0);
    cr_assert_eq(tcp_sim_stats(&rig).checksums, changed);
    cr_assert_eq(rig.net.connects, 1);
    tcp_sim_close(&rig);
}

Test(tcp, what_the_node_found_worthless_when_it_was_sent_fails)
{
    static const uint64_t sizes[] = {10, MIB(1)};
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
    for (size_t i = 0; i < 2; i++) {
        rig.node.verdict = KVB_ERR_TICKET;
        cr_assert_eq(tcp_sim_run(&rig, RIG_GET, 0, sizes[i]), KVB_ERR_TICKET);
        rig.node.verdict = KVB_OK;
        cr_assert_eq(tcp_sim_run(&rig, RIG_GET, 0, sizes[i]), KVB_OK);
    }
    cr_assert_eq(rig.net.connects, 1);
    cr_assert_eq(tcp_sim_node_stats(&rig).abandoned, 2);
    tcp_sim_close(&rig);
}

Test(tcp, a_refused_put_keeps_the_lane_in_step)
{
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
    static const uint64_t sizes[] = {1, 5000, KIB(300), MIB(7)};
    for (int late = 0; late < 2; late++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            struct tcp_job job;
            tcp_job_init(&job, &rig, RIG_PUT, 0, sizes[i]);
            job.extent.offset = TCP_SIM_LEN; /* not the node's to give */
            rig.node.late = late != 0;
            cr_assert_eq(tcp_job_start(&job), KVB_OK);
            sim_settle(&rig.sim);
            rig_answer_all(&rig.node);
            cr_assert_eq(tcp_job_wait(&job), KVB_ERR_INVALID);
            rig.node.late = false;
            cr_assert_eq(tcp_sim_run(&rig, RIG_PUT, 0, sizes[i]), KVB_OK);
        }
    }
    cr_assert_eq(rig.net.connects, 1);
    tcp_sim_close(&rig);
}

/* The node has second thoughts (its own bound, say) while the bytes arrive. */
Test(tcp, a_put_that_is_refused_on_the_way_touches_the_nodes_memory_no_more)
{
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
    rig.net.room = KIB(64);
    for (int turns = 1; turns < 20; turns++) {
        struct tcp_job job;
        memset(rig.engine.base, 0x55, MIB(1));
        tcp_job_init(&job, &rig, RIG_PUT, 0, MIB(1));
        cr_assert_eq(tcp_job_start(&job), KVB_OK);
        while (rig.node.receiving == NULL) {
            (void)sim_turn(&rig.sim);
        }
        for (int i = 0; i < turns; i++) {
            (void)sim_turn(&rig.sim);
        }
        cr_assert_not_null(rig.node.receiving);
        rig.node.running--;
        kvt_answer(rig.node.receiving, KVB_ERR_TIMEOUT, NULL, 0);
        rig.node.receiving = NULL;
        memset(rig.node_memory.base, 0x66, MIB(1));
        cr_assert_eq(tcp_job_wait(&job), KVB_ERR_TIMEOUT);
        sim_settle(&rig.sim);
        cr_assert(is_all(rig.node_memory.base, 0x66, MIB(1)));
        cr_assert_eq(tcp_sim_run(&rig, RIG_GET, 0, KIB(100)), KVB_OK);
    }
    cr_assert_eq(rig.net.connects, 1);
    cr_assert_eq(rig.node.puts, 0);
    tcp_sim_close(&rig);
}

Test(tcp, questions_and_answers_of_any_length_up_to_the_limit)
{
    static const size_t sizes[] = {0,        1,        255,          256,        257,   KIB(127),
                                   KIB(128), KIB(256), KIB(512) + 3, MIB(1) - 1, MIB(1)};
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
    uint8_t *ask = malloc(MIB(1) + 1), *answer = malloc(MIB(1));
    for (int step = 0; step < 2; step++) {
        rig.net.room = step == 0 ? KIB(256) : 1000;
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            struct tcp_job job;
            test_value_fill(ask, sizes[i], "ask", &i, sizeof i, 1);
            tcp_job_init(&job, &rig, RIG_ECHO, 0, 0);
            job.transfer.ask = (struct kvb_span){ask, sizes[i]};
            job.transfer.answer = answer;
            job.transfer.answer_cap = (uint32_t)sizes[i];
            cr_assert_eq(tcp_job_run(&job), KVB_OK, "%zu", sizes[i]);
            cr_assert_eq(job.transfer.answer_len, sizes[i]);
            cr_assert_eq(memcmp(ask, answer, sizes[i]), 0);
        }
    }
    struct tcp_job job;
    tcp_job_init(&job, &rig, RIG_ECHO, 0, 0);
    job.transfer.ask = (struct kvb_span){ask, MIB(1) + 1};
    cr_assert_eq(tcp_job_run(&job), KVB_ERR_TOO_LARGE);
    cr_assert_eq(rig.net.connects, 1);
    free(ask);
    free(answer);
    tcp_sim_close(&rig);
}

/* ---- bounds ---- */

Test(tcp, what_is_in_flight_is_bounded_in_number_and_in_bytes)
{
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){.in_flight_max = 8, .bytes_max = MIB(2)});
    struct tcp_job jobs[9];
    for (int i = 0; i < 9; i++) {
        tcp_job_init(&jobs[i], &rig, RIG_ECHO, 0, 0);
        cr_assert_eq(tcp_job_start(&jobs[i]), i < 8 ? KVB_OK : KVB_ERR_AGAIN);
    }
    cr_assert_eq(tcp_job_wait(&jobs[0]), KVB_OK);
    cr_assert_eq(tcp_job_run(&jobs[8]), KVB_OK, "a completion makes room");
    sim_settle(&rig.sim);

    tcp_job_init(&jobs[0], &rig, RIG_PUT, 0, MIB(1));
    tcp_job_init(&jobs[1], &rig, RIG_GET, MIB(1), MIB(1));
    tcp_job_init(&jobs[2], &rig, RIG_PUT, MIB(2), 1);
    tcp_job_init(&jobs[3], &rig, RIG_ECHO, 0, 0);
    cr_assert_eq(tcp_job_start(&jobs[0]), KVB_OK);
    cr_assert_eq(tcp_job_start(&jobs[1]), KVB_OK);
    cr_assert_eq(tcp_job_start(&jobs[2]), KVB_ERR_AGAIN);
    cr_assert_eq(tcp_job_start(&jobs[3]), KVB_OK, "brings no bytes");
    cr_assert_eq(tcp_job_wait(&jobs[0]), KVB_OK);
    cr_assert_eq(tcp_job_run(&jobs[2]), KVB_OK);
    cr_assert_eq(tcp_job_wait(&jobs[1]), KVB_OK);
    cr_assert_eq(tcp_job_wait(&jobs[3]), KVB_OK);
    cr_assert_eq(tcp_sim_run(&rig, RIG_PUT, 0, MIB(8)), KVB_OK, "a single one always goes");
    tcp_sim_close(&rig);
}

Test(tcp, types_that_are_not_the_nodes_are_refused)
{
    static const uint16_t bad[] = {0, KVT_TYPE_MAX + 1, 0xff01, 0xffff};
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){0});
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(tcp_sim_run(&rig, bad[i], 0, 100), KVB_ERR_INVALID);
    }
    cr_assert_eq(tcp_sim_run(&rig, KVT_TYPE_MAX, 0, 100), KVB_ERR_INVALID, "by the node");
    cr_assert_eq(rig.net.connects, 1);
    tcp_sim_close(&rig);
}

Test(tcp, configs_that_cannot_be_are_refused)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    struct kvt_tcp_peer_config good = {
        .common = rig.common, .address = "h:1", .ops = &tcp_sim_peer_ops, .ctx = &rig};
    struct kvt_tcp_peer_config bad[5] = {good, good, good, good, good};
    bad[0].address = "h";
    bad[1].lanes = 5;
    bad[2].common.secret_len = KVT_SECRET_MAX + 1;
    bad[3].common.ask_max = KVT_ASK_MAX + 1;
    bad[4].in_flight_max = UINT32_MAX;
    for (size_t i = 0; i < 5; i++) {
        cr_assert_eq(kvt_tcp_peer_create(rig.regions, &bad[i], &rig.peer), KVB_ERR_INVALID);
    }
    struct kvt_tcp_server_config server = {.common = rig.common, .sched = &rig.sim.sched};
    static const char *const names[] = {
        "", "a b", "1234567890123456789012345678901234567890123456789012345678901234"};
    struct kvt_tcp_server *none;
    for (size_t i = 0; i < 3; i++) {
        server.name = names[i];
        cr_assert_eq(kvt_tcp_server_create(&server, &none), KVB_ERR_INVALID);
    }
    rig.peer = NULL;
    tcp_sim_close(&rig);
}

/* ---- lanes ---- */

Test(tcp, a_small_question_does_not_wait_behind_a_big_body)
{
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){0});
    for (int type = RIG_PUT; type <= RIG_GET; type++) {
        struct tcp_job big, small;
        tcp_job_init(&big, &rig, (uint16_t)type, 0, MIB(8));
        cr_assert_eq(tcp_job_start(&big), KVB_OK);
        for (int i = 0; i < 8; i++) {
            (void)sim_turn(&rig.sim);
        }
        for (int i = 0; i < 3; i++) {
            tcp_job_init(&small, &rig, RIG_ECHO, 0, 0);
            cr_assert_eq(tcp_job_run(&small), KVB_OK);
            cr_assert(!big.done);
        }
        cr_assert_eq(tcp_job_wait(&big), KVB_OK);
    }
    tcp_sim_close(&rig);
}

Test(tcp, lookups_go_past_any_number_of_big_bodies)
{
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){0});
    for (int round = 0; round < 4; round++) { /* in the first, other lanes are only opened */
        struct tcp_job big[32], small;
        for (int i = 0; i < 32; i++) {
            tcp_job_init(&big[i], &rig, round % 2 == 0 ? RIG_PUT : RIG_GET, 0, MIB(8));
            cr_assert_eq(tcp_job_start(&big[i]), KVB_OK);
        }
        for (int i = 0; i < 10 && round > 0; i++) {
            uint64_t turns = rig.sim.turns;
            tcp_job_init(&small, &rig, RIG_ECHO, 0, 0);
            cr_assert_eq(tcp_job_run(&small), KVB_OK);
            cr_assert_leq(rig.sim.turns - turns, 10);
            cr_assert(!big[0].done);
        }
        for (int i = 0; i < 32; i++) {
            cr_assert_eq(tcp_job_wait(&big[i]), KVB_OK);
        }
    }
    tcp_sim_close(&rig);
}

Test(tcp, lanes_are_opened_when_there_is_work_and_no_more_than_allowed)
{
    for (uint32_t most = 1; most <= 4; most++) {
        struct tcp_sim rig;
        open_up(&rig, (struct kvt_tcp_peer_config){.lanes = most});
        for (int i = 0; i < 100; i++) {
            cr_assert_eq(tcp_sim_run(&rig, RIG_PUT, 0, KIB(4)), KVB_OK);
        }
        cr_assert_eq(rig.net.connects, 1, "one is enough");
        struct tcp_job jobs[32];
        for (int i = 0; i < 32; i++) {
            tcp_job_init(&jobs[i], &rig, RIG_PUT, (uint64_t)i * KIB(256), KIB(256));
            cr_assert_eq(tcp_job_start(&jobs[i]), KVB_OK);
            (void)sim_turn(&rig.sim);
            (void)sim_turn(&rig.sim);
        }
        for (int i = 0; i < 32; i++) {
            cr_assert_eq(tcp_job_wait(&jobs[i]), KVB_OK);
        }
        cr_assert_eq(rig.net.connects, most);
        cr_assert_eq(tcp_sim_stats(&rig).lanes, most);
        tcp_sim_close(&rig);
    }
}

Test(tcp, a_node_that_takes_fewer_lanes_is_used_over_those)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, &(struct kvt_tcp_server_config){.lanes_each_max = 2});
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){0});
    tcp_sim_wait_up(&rig);
    struct tcp_job jobs[32];
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 32; i++) {
            tcp_job_init(&jobs[i], &rig, RIG_PUT, (uint64_t)i * KIB(256), KIB(256));
            cr_assert_eq(tcp_job_start(&jobs[i]), KVB_OK);
            (void)sim_turn(&rig.sim);
        }
        for (int i = 0; i < 32; i++) {
            cr_assert_eq(tcp_job_wait(&jobs[i]), KVB_OK);
        }
    }
    cr_assert_eq(rig.node.sessions, 2);
    cr_assert_leq(rig.net.connects, 5, "not tried again and again");
    cr_assert_eq(rig.downs, 0);
    tcp_sim_close(&rig);
}

/* ---- nodes that come, go and move ---- */

Test(tcp, transfers_wait_for_the_first_connection_and_fail_when_there_is_none)
{
    for (int refuse = 0; refuse < 2; refuse++) {
        struct tcp_sim rig;
        tcp_sim_open(&rig, NULL);
        rig.side.refuse = refuse != 0;
        tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){0});
        struct tcp_job job;
        tcp_job_init(&job, &rig, RIG_PUT, 0, 100);
        cr_assert_eq(tcp_job_run(&job), refuse ? KVB_ERR_UNAVAILABLE : KVB_OK);
        cr_assert_eq(rig.ups, refuse ? 0 : 1);
        cr_assert_eq(tcp_sim_run(&rig, RIG_ECHO, 0, 0), refuse ? KVB_ERR_UNAVAILABLE : KVB_OK);
        tcp_sim_close(&rig);
    }
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    rig.side.frozen = true;
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){0});
    uint64_t from_ns = rig.sim.now_ns;
    cr_assert_eq(tcp_sim_run(&rig, RIG_ECHO, 0, 0), KVB_ERR_UNAVAILABLE);
    cr_assert_eq(rig.sim.now_ns - from_ns, 2000 * KVB_NS_PER_MS, "hello_ms");
    tcp_sim_close(&rig);
}

static void restart(struct tcp_sim *rig, uint64_t incarnation)
{
    rig_node_cleanup(&rig->node);
    struct kvt_tcp_server_config config = {.common = rig->common,
                                           .sched = &rig->sim.sched,
                                           .name = "node-1",
                                           .incarnation = incarnation};
    cr_assert_eq(rig_node_init(&rig->node, rig->node_memory.base, TCP_SIM_LEN, config), KVB_OK);
}

Test(tcp, a_node_that_began_another_life_is_another_node)
{
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){0});
    struct tcp_job job;
    tcp_job_init(&job, &rig, RIG_PUT, 0, MIB(8));
    cr_assert_eq(tcp_job_start(&job), KVB_OK);
    for (int i = 0; i < 6; i++) {
        (void)sim_turn(&rig.sim);
    }
    restart(&rig, 12);
    cr_assert_eq(tcp_job_wait(&job), KVB_ERR_DISCONNECTED);
    sim_advance(&rig.sim, 1000);
    cr_assert_eq(rig.downs, 1);
    cr_assert_eq(rig.ups, 2);
    cr_assert_eq(rig.hello.incarnation, 12);
    cr_assert_eq(tcp_sim_run(&rig, RIG_PUT, 0, MIB(1)), KVB_OK);
    tcp_sim_close(&rig);
}

/* A second lane finds another life behind the address while the first still stands. */
Test(tcp, lanes_to_an_old_life_are_left_when_a_new_one_is_met)
{
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){0});
    struct rig_node old = rig.node;
    struct kvt_tcp_server_config config = {
        .common = rig.common, .sched = &rig.sim.sched, .name = "node-1", .incarnation = 99};
    struct rig_node young;
    cr_assert_eq(rig_node_init(&young, rig.node_memory.base, TCP_SIM_LEN, config), KVB_OK);
    rig.node.server = young.server; /* whom the next connection meets */
    struct tcp_job job;
    tcp_job_init(&job, &rig, RIG_PUT, 0, MIB(8));
    cr_assert_eq(tcp_job_start(&job), KVB_OK);
    (void)tcp_job_wait(&job);
    sim_advance(&rig.sim, 100);
    cr_assert_eq(rig.downs, 1);
    cr_assert_eq(rig.ups, 2);
    cr_assert_eq(rig.hello.incarnation, 99);
    cr_assert_eq(rig.node.sessions, 0, "nothing stands to the old one");
    cr_assert_eq(tcp_sim_run(&rig, RIG_ECHO, 0, 0), KVB_OK);
    kvt_transport_destroy(rig.peer);
    rig.peer = NULL;
    sim_settle(&rig.sim);
    kvt_tcp_server_destroy(old.server);
    rig.node.server = young.server;
    tcp_sim_close(&rig);
}

Test(tcp, a_new_address_is_used_for_the_next_connection_and_at_once_when_down)
{
    struct tcp_sim rig;
    open_up(&rig, (struct kvt_tcp_peer_config){0});
    cr_assert_eq(kvt_tcp_peer_set_address(rig.peer, "nonsense"), KVB_ERR_INVALID);
    cr_assert_eq(kvt_tcp_peer_set_address(rig.peer, "10.0.0.2:7"), KVB_OK);
    cr_assert_eq(rig.net.connects, 1, "what stands, stands");
    cr_assert_eq(tcp_sim_run(&rig, RIG_ECHO, 0, 0), KVB_OK);
    rig.side.refuse = true;
    rig_node_cleanup(&rig.node);
    cr_assert_eq(rig_node_init(&rig.node, rig.node_memory.base, TCP_SIM_LEN,
                               (struct kvt_tcp_server_config){.common = rig.common,
                                                              .sched = &rig.sim.sched,
                                                              .name = "n",
                                                              .incarnation = 3}),
                 KVB_OK);
    sim_advance(&rig.sim, 30000);
    cr_assert_eq(rig.downs, 1);
    uint32_t connects = rig.net.connects;
    rig.side.refuse = false;
    cr_assert_eq(kvt_tcp_peer_set_address(rig.peer, "10.0.0.3:7"), KVB_OK);
    cr_assert_eq(rig.net.connects, connects + 1, "at once");
    sim_settle(&rig.sim);
    cr_assert_eq(rig.ups, 2);
    cr_assert_eq(tcp_sim_run(&rig, RIG_ECHO, 0, 0), KVB_OK);
    /* while it connects to one that does not answer */
    rig.side.frozen = true;
    tcp_sim_close(&rig);
}
