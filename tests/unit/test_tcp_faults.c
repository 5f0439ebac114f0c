/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that break, stall or fall silent at every point (B34): each transfer ends once,
 * within its bound, with a clear code; what ended well is whole; nothing is left of the rest.
 */
#include "tcp_sim.h"

static void fill(struct tcp_sim *rig, uint64_t round, uint64_t at, uint64_t len)
{
    test_value_fill(rig->engine.base + at, len, "t", &round, sizeof round, 1);
    memset(rig->node_memory.base + at, TEST_PREFILL, len);
}

static bool holds(const uint8_t *base, uint64_t round, uint64_t len)
{
    return test_value_check(base, len, "t", &round, sizeof round, 1) == len;
}

/* One transfer through a fault; false: it was not hit any more. */
static void one_cut(struct tcp_sim *rig, uint16_t type, uint64_t len, uint64_t round)
{
    struct tcp_job job;
    if (type == RIG_PUT) {
        fill(rig, round, 0, len);
    } else {
        test_value_fill(rig->node_memory.base, len, "t", &round, sizeof round, 1);
        memset(rig->engine.base, TEST_PREFILL, len);
    }
    tcp_job_init(&job, rig, type, 0, len);
    uint64_t start_ns = rig->sim.now_ns;
    kvb_status_t status = tcp_job_run(&job);
    cr_assert_leq(rig->sim.now_ns - start_ns, 5 * KVB_NS_PER_S);
    cr_assert(status == KVB_OK || status == KVB_ERR_DISCONNECTED || status == KVB_ERR_UNAVAILABLE,
              "%s", kvb_status_label(status));
    if (status == KVB_OK && type == RIG_PUT) {
        cr_assert(holds(rig->node_memory.base, round, len));
    } else if (status == KVB_OK && type == RIG_GET) {
        cr_assert(holds(rig->engine.base, round, len));
    }
    cr_assert_eq(rig->peer->in_flight, 0);
    cr_assert_eq(kvt_region_refs(rig->region), 0);
}

/* The connection is made anew for each, and cut after every byte of handshake, question and answer
 * together, from either side. 10^4 faults; then everything is as it was. */
Test(tcp_faults, a_cut_at_every_byte_ends_the_transfer_and_leaves_nothing, .timeout = 600)
{
    static const struct {
        uint16_t type;
        uint64_t len, step; /* large ones: past the handshake, by more than a byte */
    } rows[] = {
        {RIG_PUT, 1500, 1},   {RIG_GET, 1500, 1},   {RIG_ECHO, 0, 1},
        {RIG_PUT, 40000, 23}, {RIG_GET, 40000, 23},
    };
    uint64_t faults = 0;
    for (int close = 0; close < 2; close++) {
        struct tcp_sim rig;
        tcp_sim_open(&rig, NULL);
        tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
        tcp_sim_wait_up(&rig);
        rig.net.cut_close = close != 0;
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            bool whole = false;
            for (uint64_t at = 1; !whole; at += rows[i].step) {
                cr_assert_leq(at, 60000);
                /* a connection that will be cut there; the one before goes */
                rig.net.cut_at = at;
                uint32_t connects = rig.net.connects;
                kvb_list_each(&rig.net.sockets, link)
                {
                    struct sim_socket *socket = kvb_container_of(link, struct sim_socket, link);
                    sim_cut_(socket);
                    break;
                }
                sim_settle(&rig.sim);
                while (rig.net.connects == connects) {
                    sim_advance(&rig.sim, 50);
                }
                one_cut(&rig, rows[i].type, rows[i].len, at);
                whole = rig.net.moved > 0 && tcp_sim_stats(&rig).up;
                faults += whole ? 0 : 1;
                cr_assert_leq(rig.net.open, 2);
            }
        }
        rig.net.cut_at = 0;
        sim_advance(&rig.sim, 5000);
        tcp_sim_wait_up(&rig);
        cr_assert_eq(rig.node.running, 0, "the node holds no request");
        cr_assert_eq(rig.node.sessions, 1);
        one_cut(&rig, RIG_PUT, KIB(300), 1);
        cr_assert_eq(tcp_sim_run(&rig, RIG_GET, 0, KIB(300)), KVB_OK);
        tcp_sim_close(&rig);
    }
    cr_assert_geq(faults, 10000, "%lu", faults);
}

/* On one lane: one has begun, others wait for their turn. */
Test(tcp_faults, what_waits_for_its_turn_on_a_connection_that_is_cut_ends_with_it)
{
    struct tcp_sim rig;
    struct tcp_job jobs[4];
    tcp_sim_open(&rig, NULL);
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
    tcp_sim_wait_up(&rig);
    for (int i = 0; i < 4; i++) {
        tcp_job_init(&jobs[i], &rig, RIG_PUT, 0, MIB(4));
        cr_assert_eq(tcp_job_start(&jobs[i]), KVB_OK);
    }
    (void)sim_turn(&rig.sim);
    sim_cut_(kvb_container_of(kvb_list_first(&rig.net.sockets), struct sim_socket, link));
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(tcp_job_wait(&jobs[i]), KVB_ERR_DISCONNECTED);
    }
    cr_assert_eq(kvt_region_refs(rig.region), 0);
    tcp_sim_wait_up(&rig);
    one_cut(&rig, RIG_PUT, KIB(300), 1);
    tcp_sim_close(&rig);
}

Test(tcp_faults, delivery_one_byte_at_a_time_changes_nothing)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    rig.net.step = 1;
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){0});
    tcp_sim_wait_up(&rig);
    static const uint64_t sizes[] = {1, 16, 4095, 20000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        one_cut(&rig, RIG_PUT, sizes[i], i);
        cr_assert(holds(rig.node_memory.base, i, sizes[i]));
        one_cut(&rig, RIG_GET, sizes[i], i + 100);
        cr_assert(holds(rig.engine.base, i + 100, sizes[i]));
        cr_assert_eq(tcp_sim_run(&rig, RIG_ECHO, 0, 0), KVB_OK);
    }
    cr_assert_eq(rig.node.puts, 4, "each exactly once");
    cr_assert_eq(rig.node.gets, 4);
    cr_assert_eq(rig.downs, 0);
    tcp_sim_close(&rig);
}

/* ---- silence ---- */

struct silence {
    const char *name;
    bool frozen; /* else everything sent is dropped */
};
static const struct silence silences[] = {{"a stopped process", true}, {"a pulled cable", false}};

static void fall_silent(struct tcp_sim *rig, const struct silence *silence, bool on)
{
    rig->side.frozen = silence->frozen && on;
    rig->net.drop = !silence->frozen && on;
    sim_net_look(&rig->net);
}

Test(tcp_faults, a_silent_node_fails_its_transfers_within_the_bound_and_comes_back)
{
    for (size_t s = 0; s < 2; s++) {
        for (int type = RIG_PUT; type <= RIG_ECHO; type++) {
            for (int turns = 0; turns < 12; turns++) {
                struct tcp_sim rig;
                tcp_sim_open(&rig, NULL);
                tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){0});
                tcp_sim_wait_up(&rig);
                struct tcp_job job;
                tcp_job_init(&job, &rig, (uint16_t)type, 0, MIB(8));
                cr_assert_eq(tcp_job_start(&job), KVB_OK);
                for (int i = 0; i < turns; i++) {
                    (void)sim_turn(&rig.sim);
                }
                fall_silent(&rig, &silences[s], true);
                sim_advance(&rig.sim, 4001);
                cr_assert(job.done, "%s", silences[s].name);
                cr_assert(job.status == KVB_ERR_DISCONNECTED || job.status == KVB_OK);
                cr_assert_eq(rig.downs, 1);
                cr_assert_eq(rig.why, KVB_ERR_TIMEOUT);
                tcp_job_init(&job, &rig, RIG_ECHO, 0, 0);
                cr_assert_eq(tcp_job_start(&job), KVB_ERR_UNAVAILABLE, "at once");
                sim_advance(&rig.sim, 20000);
                cr_assert_eq(rig.downs, 1, "once per outage");
                fall_silent(&rig, &silences[s], false);
                sim_advance(&rig.sim, 10000);
                cr_assert_eq(rig.ups, 2);
                cr_assert_eq(tcp_sim_run(&rig, RIG_PUT, 0, KIB(100)), KVB_OK);
                cr_assert_eq(rig.node.running, 0);
                cr_assert_geq(tcp_sim_stats(&rig).silences, 1);
                tcp_sim_close(&rig);
            }
        }
    }
}

Test(tcp_faults, a_client_that_fell_silent_is_forgotten_by_the_node)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    struct tcp_raw *raw = malloc(sizeof *raw);
    tcp_raw_connect(raw, &rig);
    cr_assert(tcp_raw_admit(raw, &rig, &rig.common));
    sim_advance(&rig.sim, 2999);
    cr_assert(!raw->over);
    cr_assert_geq(raw->came, KVB_FRAME_HEADER_LEN, "the node says that it lives");
    tcp_raw_message(raw, TCP_ALIVE, NULL, 0);
    sim_advance(&rig.sim, 2999);
    cr_assert(!raw->over);
    sim_advance(&rig.sim, 2);
    cr_assert(raw->over);
    cr_assert_eq(rig.node.sessions, 0);
    tcp_raw_close(raw);
    free(raw);
    tcp_sim_close(&rig);
}

Test(tcp_faults, idle_connections_live_on_signs_of_life)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){0});
    tcp_sim_wait_up(&rig);
    uint64_t moved = rig.net.moved;
    sim_advance(&rig.sim, 600000);
    cr_assert_eq(rig.downs, 0);
    cr_assert_eq(rig.net.connects, 1);
    moved = rig.net.moved - moved;
    cr_assert_geq(moved, 2 * 599 * KVB_FRAME_HEADER_LEN);
    cr_assert_leq(moved, 2 * 601 * KVB_FRAME_HEADER_LEN, "one a second and side");
    tcp_sim_close(&rig);
}

/* P3: the memory of an engine that wants it back is let go of, whoever holds still. */
Test(tcp_faults, unregistering_never_waits_for_a_silent_node)
{
    for (size_t s = 0; s < 2; s++) {
        for (int type = RIG_PUT; type <= RIG_GET; type++) {
            for (int turns = 0; turns < 16; turns++) {
                struct tcp_sim rig;
                tcp_sim_open(&rig, NULL);
                tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){0});
                tcp_sim_wait_up(&rig);
                struct tcp_job jobs[4];
                for (int i = 0; i < 4; i++) {
                    tcp_job_init(&jobs[i], &rig, (uint16_t)type, (uint64_t)i * MIB(2), MIB(2));
                    cr_assert_eq(tcp_job_start(&jobs[i]), KVB_OK);
                }
                for (int i = 0; i < turns; i++) {
                    (void)sim_turn(&rig.sim);
                }
                fall_silent(&rig, &silences[s], true);
                tcp_sim_unregister(&rig); /* asserts its bound, which is before the silence's */
                for (int i = 0; i < 4; i++) {
                    cr_assert(jobs[i].done);
                }
                /* whatever comes now goes nowhere */
                uint8_t *copy = malloc(TCP_SIM_LEN);
                memcpy(copy, rig.engine.base, TCP_SIM_LEN);
                fall_silent(&rig, &silences[s], false);
                sim_advance(&rig.sim, 30000);
                cr_assert_eq(memcmp(copy, rig.engine.base, TCP_SIM_LEN), 0);
                free(copy);
                cr_assert_eq(tcp_sim_run(&rig, RIG_ECHO, 0, 0), KVB_OK);
                tcp_sim_close(&rig);
            }
        }
    }
}

/* ---- those who are alive, but slow ---- */

Test(tcp_faults, a_reader_that_does_not_read_stops_only_itself_and_is_ended)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
    tcp_sim_wait_up(&rig);
    struct tcp_raw *raw = malloc(sizeof *raw);
    tcp_raw_connect(raw, &rig);
    cr_assert(tcp_raw_admit(raw, &rig, &rig.common));
    raw->net->ops->want(raw->socket, 0);
    uint8_t frame[TCP_HEAD_LEN + sizeof(struct kvt_extent)];
    struct kvt_extent extent = {0, MIB(1)};
    struct tcp_head head = {.frame = {.type = RIG_GET}, .text_len = sizeof extent};
    size_t said = 0;
    for (uint64_t i = 1; i < 100000; i++) { /* asks until nobody takes its questions any more */
        head.frame.seq = i;
        tcp_head_pack(&head, &extent, frame);
        size_t n = tcp_raw_say(raw, frame, sizeof frame);
        said += n;
        sim_settle(&rig.sim);
        if (n < sizeof frame) {
            break;
        }
    }
    cr_assert_leq(rig.node.running, 256, "requests_max");
    cr_assert_leq(said, rig.net.room + 256 * sizeof frame + KIB(128) + sizeof frame);
    cr_assert_eq(tcp_sim_run(&rig, RIG_GET, 0, MIB(2)), KVB_OK, "others go on");
    uint64_t from_ns = rig.sim.now_ns;
    for (int s = 0; s < 13 && rig.node.sessions == 2; s++) {
        tcp_raw_message(raw, TCP_ALIVE, NULL, 0); /* (if there is room) */
        sim_advance(&rig.sim, 1000);
    }
    cr_assert_eq(rig.node.sessions, 1, "ended");
    cr_assert_geq(rig.sim.now_ns - from_ns, 9000 * KVB_NS_PER_MS);
    cr_assert_eq(rig.node.running, 0);
    tcp_raw_close(raw);
    free(raw);
    cr_assert_eq(tcp_sim_run(&rig, RIG_GET, 0, MIB(2)), KVB_OK);
    cr_assert_eq(rig.downs, 0);
    tcp_sim_close(&rig);
}

Test(tcp_faults, a_writer_that_trickles_is_ended_and_its_request_with_it)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
    tcp_sim_wait_up(&rig);
    struct tcp_raw *raw = malloc(sizeof *raw);
    tcp_raw_connect(raw, &rig);
    cr_assert(tcp_raw_admit(raw, &rig, &rig.common));
    uint8_t frame[TCP_HEAD_LEN + sizeof(struct kvt_extent)];
    struct kvt_extent extent = {0, MIB(1)};
    struct tcp_head head = {.frame = {.type = RIG_PUT, .seq = 1},
                            .text_len = sizeof extent,
                            .body_len = (uint32_t)MIB(1)};
    tcp_head_pack(&head, &extent, frame);
    (void)tcp_raw_say(raw, frame, sizeof frame);
    sim_settle(&rig.sim);
    cr_assert_eq(rig.node.running, 1);
    int s = 0;
    for (; s < 15 && !raw->over; s++) {
        (void)tcp_raw_say(raw, "a byte", 1);
        sim_advance(&rig.sim, 1000);
    }
    cr_assert(raw->over);
    cr_assert_geq(s, 9);
    cr_assert_eq(rig.node.running, 0);
    cr_assert_eq(rig.node.gone, 1);
    tcp_raw_close(raw);
    free(raw);
    cr_assert_eq(rig.downs, 0);
    tcp_sim_close(&rig);
}

/* Too little to wake a reader of long bodies is a sign of life all the same. */
Test(tcp_faults, a_writer_that_is_slow_but_steady_is_heard_to_the_end)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    rig.net.room = MIB(2);
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
    tcp_sim_wait_up(&rig);
    struct tcp_raw *raw = malloc(sizeof *raw);
    tcp_raw_connect(raw, &rig);
    cr_assert(tcp_raw_admit(raw, &rig, &rig.common));
    uint8_t frame[TCP_HEAD_LEN + sizeof(struct kvt_extent)];
    struct kvt_extent extent = {0, MIB(1)};
    struct tcp_head head = {.frame = {.type = RIG_PUT, .seq = 1},
                            .text_len = sizeof extent,
                            .body_len = (uint32_t)MIB(1)};
    tcp_head_pack(&head, &extent, frame);
    fill(&rig, 7, 0, MIB(1));
    (void)tcp_raw_say(raw, frame, sizeof frame);
    for (uint64_t at = 0; at < MIB(1) && !raw->over; at += KIB(32)) {
        cr_assert_eq(tcp_raw_say(raw, rig.engine.base + at, KIB(32)), KIB(32));
        sim_advance(&rig.sim, 2000);
    }
    cr_assert_not(raw->over);
    uint8_t trailer[TCP_TRAILER_LEN];
    tcp_trailer_pack(KVB_OK, XXH3_64bits(rig.engine.base, MIB(1)), trailer);
    (void)tcp_raw_say(raw, trailer, sizeof trailer);
    sim_settle(&rig.sim);
    cr_assert_eq(rig.node.running, 0);
    cr_assert(holds(rig.node_memory.base, 7, MIB(1)));
    tcp_raw_close(raw);
    free(raw);
    cr_assert_eq(rig.downs, 0);
    tcp_sim_close(&rig);
}

/* A node that is slow to answer does not read on, and is not taken for dead, nor its client. */
Test(tcp_faults, a_node_that_is_behind_stops_reading_and_nobody_dies)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, &(struct kvt_tcp_server_config){.requests_max = 4});
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
    tcp_sim_wait_up(&rig);
    rig.node.late = true;
    struct tcp_job *jobs = calloc(40, sizeof *jobs);
    for (int i = 0; i < 40; i++) {
        tcp_job_init(&jobs[i], &rig, i % 2 == 0 ? RIG_PUT : RIG_GET, (uint64_t)i * KIB(64),
                     KIB(64));
        cr_assert_eq(tcp_job_start(&jobs[i]), KVB_OK);
    }
    sim_advance(&rig.sim, 8000);
    cr_assert_leq(rig.node.running, 4);
    cr_assert_eq(rig.downs, 0);
    rig.sim.now_ns = sim_in_ms(&rig.sim, 1000); /* it looks at the time before it can read */
    rig.node.late = false;
    rig_answer_all(&rig.node);
    for (int i = 0; i < 40; i++) {
        cr_assert_eq(tcp_job_wait(&jobs[i]), KVB_OK);
    }
    free(jobs);
    cr_assert_eq(rig.downs, 0);
    tcp_sim_close(&rig);
}

/* The same with few questions that are long: what a lane keeps is bounded in bytes, too. */
Test(tcp_faults, a_node_keeps_so_many_bytes_of_questions_and_no_more)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){.lanes = 1});
    tcp_sim_wait_up(&rig);
    rig.node.late = true;
    struct tcp_job *jobs = calloc(20, sizeof *jobs);
    uint8_t *text = calloc(1, MIB(1));
    for (int i = 0; i < 20; i++) {
        tcp_job_init(&jobs[i], &rig, RIG_ECHO, 0, 0);
        jobs[i].transfer.ask = (struct kvb_span){text, MIB(1)};
        jobs[i].transfer.answer = text; /* (they are all the same) */
        jobs[i].transfer.answer_cap = (uint32_t)MIB(1);
        cr_assert_eq(tcp_job_start(&jobs[i]), KVB_OK);
    }
    sim_settle(&rig.sim);
    cr_assert_eq(rig.node.running, 4);
    rig.node.late = false;
    rig_answer_all(&rig.node);
    for (int i = 0; i < 20; i++) {
        cr_assert_eq(tcp_job_wait(&jobs[i]), KVB_OK);
    }
    free(text);
    free(jobs);
    cr_assert_eq(rig.downs, 0);
    tcp_sim_close(&rig);
}

/* ---- B34, B39: what is lost, and what stays ---- */

Test(tcp_faults, a_lost_lane_takes_its_own_transfers_only)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){0});
    tcp_sim_wait_up(&rig);
    struct tcp_job jobs[16];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 16; i++) {
            tcp_job_init(&jobs[i], &rig, RIG_PUT, (uint64_t)i * KIB(512), KIB(512));
            cr_assert_eq(tcp_job_start(&jobs[i]), KVB_OK);
            (void)sim_turn(&rig.sim);
        }
        if (round == 2) {
            struct kvb_list *second = rig.net.sockets.next->next->next;
            sim_cut_(kvb_container_of(second, struct sim_socket, link));
        }
        int lost = 0;
        for (int i = 0; i < 16; i++) {
            kvb_status_t status = tcp_job_wait(&jobs[i]);
            cr_assert(status == KVB_OK || (round == 2 && status == KVB_ERR_DISCONNECTED));
            lost += status != KVB_OK;
        }
        cr_assert(round < 2 ? lost == 0 : lost > 0 && lost < 16, "%d", lost);
    }
    cr_assert_eq(tcp_sim_stats(&rig).disconnects, 1);
    cr_assert_eq(rig.downs, 0, "other lanes stand");
    tcp_sim_close(&rig);
}

Test(tcp_faults, fifty_thousand_transfers_use_four_connections)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){.idle_ms = 10000});
    tcp_sim_wait_up(&rig);
    struct tcp_job jobs[16];
    for (int i = 0; i < 50000; i += 16) {
        for (int j = 0; j < 16; j++) {
            tcp_job_init(&jobs[j], &rig, j % 2 == 0 ? RIG_PUT : RIG_GET, (uint64_t)j * 8192, 8192);
            cr_assert_eq(tcp_job_start(&jobs[j]), KVB_OK);
        }
        for (int j = 0; j < 16; j++) {
            cr_assert_eq(tcp_job_wait(&jobs[j]), KVB_OK);
        }
    }
    cr_assert_leq(rig.net.connects, 4);
    cr_assert_leq(rig.net.open, 8);
    sim_advance(&rig.sim, 15000);
    cr_assert_eq(rig.net.open, 2, "idle ones are closed, but for the last");
    cr_assert_eq(rig.node.sessions, 1);
    cr_assert_eq(rig.downs, 0);
    tcp_sim_close(&rig);
}

Test(tcp_faults, a_shortage_of_our_own_is_not_called_the_death_of_the_node)
{
    static const kvb_status_t shortages[] = {KVB_ERR_LIMIT, KVB_ERR_NO_MEMORY, KVB_ERR_IO};
    for (size_t i = 0; i < sizeof shortages / sizeof shortages[0]; i++) {
        struct tcp_sim rig;
        tcp_sim_open(&rig, NULL);
        rig.net.connect_status = shortages[i];
        tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){0});
        sim_settle(&rig.sim);
        cr_assert_eq(rig.downs, 1);
        cr_assert_eq(rig.why, shortages[i]);
        rig.net.connect_status = KVB_OK;
        tcp_sim_wait_up(&rig);
        tcp_sim_close(&rig);
    }
}

Test(tcp_faults, it_comes_back_by_itself_with_growing_jittered_waits)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    rig.side.refuse = true;
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){0});
    uint64_t last_ns = rig.sim.now_ns;
    uint32_t seen = rig.net.connects;
    uint64_t waits[20];
    bool differ = false;
    for (int n = 0; n < 20;) {
        cr_assert_neq(sim_turn(&rig.sim), KVB_NEVER);
        if (rig.net.connects > seen) {
            seen = rig.net.connects;
            waits[n++] = rig.sim.now_ns - last_ns;
            last_ns = rig.sim.now_ns;
        }
        rig.sim.now_ns += KVB_NS_PER_MS / 4;
    }
    for (int n = 0; n < 20; n++) {
        uint64_t whole = n < 6 ? 50ull << n : 2000;
        whole = whole < 2000 ? whole : 2000;
        cr_assert_geq(waits[n], whole * KVB_NS_PER_MS / 2, "wait %d", n);
        cr_assert_leq(waits[n], whole * KVB_NS_PER_MS + 2 * KVB_NS_PER_MS, "wait %d", n);
        differ = differ || (n > 8 && waits[n] > waits[n - 1] + 50 * KVB_NS_PER_MS);
    }
    cr_assert(differ, "jitter");
    cr_assert_eq(rig.downs, 1);
    cr_assert_eq(rig.why, KVB_ERR_UNAVAILABLE);
    rig.side.refuse = false;
    tcp_sim_wait_up(&rig);
    tcp_sim_close(&rig);
}
