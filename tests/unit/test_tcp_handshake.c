/* SPDX-License-Identifier: Apache-2.0 */
/* How both sides of a lane come to know each other (transport/peer/handshake.h). */
#include "tcp_sim.h"

#include "base/le.h"

static struct kvt_peer_common with_secret(const struct tcp_sim *rig, const char *secret)
{
    struct kvt_peer_common common = rig->common;
    common.secret_len = (uint32_t)strlen(secret);
    memset(common.secret, 0, sizeof common.secret);
    memcpy(common.secret, secret, strlen(secret));
    return common;
}

/* ---- towards a node ---- */

Test(tcp_handshake, who_knows_the_secret_is_admitted_and_is_told_who_the_node_is)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){0});
    cr_assert_eq(rig.ups, 0, "never inside a call");
    tcp_sim_wait_up(&rig);
    cr_assert_str_eq(rig.hello.name, "node-1");
    cr_assert_eq(rig.hello.incarnation, 11);
    cr_assert_eq(rig.hello.version, KVT_TCP_VERSION);
    cr_assert_eq(rig.node.sessions, 1);
    tcp_sim_close(&rig);
}

Test(tcp_handshake, features_are_those_that_both_have)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, &(struct kvt_tcp_server_config){.common.features = 0xf0000000000000f6ull});
    struct kvt_peer_common common = rig.common;
    common.features = 0x700000000000003aull;
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){.common = common});
    tcp_sim_wait_up(&rig);
    cr_assert_eq(rig.hello.features, 0x7000000000000032ull);
    tcp_sim_close(&rig);
}

Test(tcp_handshake, an_empty_secret_is_a_secret_too)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){.common = with_secret(&rig, "")});
    sim_advance(&rig.sim, 3000);
    cr_assert_eq(rig.ups, 0);
    cr_assert_eq(rig.downs, 1, "once per outage");
    cr_assert_eq(rig.why, KVB_ERR_REFUSED);
    tcp_sim_close(&rig);

    tcp_sim_open(&rig, NULL);
    rig_node_cleanup(&rig.node);
    struct kvt_peer_common none = with_secret(&rig, "");
    struct kvt_tcp_server_config config = {
        .common = none, .sched = &rig.sim.sched, .name = "n", .incarnation = 1};
    cr_assert_eq(rig_node_init(&rig.node, rig.node_memory.base, TCP_SIM_LEN, config), KVB_OK);
    tcp_sim_peer(&rig, (struct kvt_tcp_peer_config){.common = none});
    tcp_sim_wait_up(&rig);
    tcp_sim_close(&rig);
}

Test(tcp_handshake, a_wrong_secret_is_refused_and_learns_nothing)
{
    /* also: one that is longer, shorter, or differs in the last byte */
    static const char *const wrong[] = {"", "a", "a secre", "a secres", "A secret", "a secret!"};
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct tcp_raw raw;
        tcp_raw_connect(&raw, &rig);
        struct kvt_peer_common common = with_secret(&rig, wrong[i]);
        cr_assert(!tcp_raw_admit(&raw, &rig, &common), "secret '%s'", wrong[i]);
        uint8_t payload[KVT_PAYLOAD_MAX];
        cr_assert_eq(tcp_raw_type(&raw), TCP_REFUSED);
        cr_assert_eq(tcp_raw_take(&raw, payload), 4);
        cr_assert_eq(tcp_refusal(payload), KVB_ERR_REFUSED);
        cr_assert_eq(raw.in_len, 0, "nothing else was said");
        cr_assert(raw.over);
        tcp_raw_close(&raw);
        sim_settle(&rig.sim);
    }
    cr_assert_eq(rig.node.sessions, 0);
    cr_assert_eq(tcp_sim_node_stats(&rig).connects, 0);
    tcp_sim_close(&rig);
}

Test(tcp_handshake, every_bit_of_a_proof_counts)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    for (size_t bit = 0; bit <= 8 * KVT_PROOF_LEN; bit++) {
        struct tcp_raw raw;
        uint8_t payload[KVT_PAYLOAD_MAX], proof[KVT_PROOF_LEN];
        tcp_raw_connect(&raw, &rig);
        tcp_raw_hello(&raw, &rig, &rig.common);
        sim_settle(&rig.sim);
        size_t len = tcp_raw_take(&raw, payload);
        cr_assert_eq(kvt_greeting_take(payload, len, raw.shake.challenge, &raw.shake.challenge_len),
                     KVB_OK);
        cr_assert_eq(kvt_proof_make(&kvt_tcp_protocol, &rig.common, &raw.shake, proof), KVB_OK);
        if (bit < 8 * KVT_PROOF_LEN) {
            proof[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        tcp_raw_message(&raw, TCP_PROOF, proof, sizeof proof);
        sim_settle(&rig.sim);
        cr_assert_eq(tcp_raw_type(&raw), bit < 8 * KVT_PROOF_LEN ? TCP_REFUSED : TCP_ADMITTED);
        tcp_raw_close(&raw);
        sim_settle(&rig.sim);
    }
    tcp_sim_close(&rig);
}

/* What was said is what is signed: nobody in between talks the two into something else. */
Test(tcp_handshake, every_bit_of_both_greetings_is_signed)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    for (size_t bit = 0; bit < 8 * 2 * KVT_GREETING_LEN; bit += 5) {
        struct tcp_raw raw;
        uint8_t payload[KVT_PAYLOAD_MAX], proof[KVT_PROOF_LEN];
        tcp_raw_connect(&raw, &rig);
        tcp_raw_hello(&raw, &rig, &rig.common);
        sim_settle(&rig.sim);
        size_t len = tcp_raw_take(&raw, payload);
        cr_assert_eq(kvt_greeting_take(payload, len, raw.shake.challenge, &raw.shake.challenge_len),
                     KVB_OK);
        uint8_t *said = bit < 8 * KVT_GREETING_LEN ? raw.shake.hello : raw.shake.challenge;
        said[bit / 8 % KVT_GREETING_LEN] ^= (uint8_t)(1u << bit % 8);
        cr_assert_eq(kvt_proof_make(&kvt_tcp_protocol, &rig.common, &raw.shake, proof), KVB_OK);
        tcp_raw_message(&raw, TCP_PROOF, proof, sizeof proof);
        sim_settle(&rig.sim);
        cr_assert_eq(tcp_raw_type(&raw), TCP_REFUSED, "bit %zu", bit);
        tcp_raw_close(&raw);
        sim_settle(&rig.sim);
    }
    tcp_sim_close(&rig);
}

Test(tcp_handshake, a_proof_is_good_for_one_connection)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    struct tcp_raw first, second;
    uint8_t payload[KVT_PAYLOAD_MAX], proof[KVT_PROOF_LEN];
    tcp_raw_connect(&first, &rig);
    cr_assert(tcp_raw_admit(&first, &rig, &rig.common));
    cr_assert_eq(kvt_proof_make(&kvt_tcp_protocol, &rig.common, &first.shake, proof), KVB_OK);
    tcp_raw_connect(&second, &rig);
    tcp_raw_message(&second, TCP_HELLO, first.shake.hello, first.shake.hello_len);
    sim_settle(&rig.sim);
    (void)tcp_raw_take(&second, payload);
    tcp_raw_message(&second, TCP_PROOF, proof, sizeof proof);
    sim_settle(&rig.sim);
    cr_assert_eq(tcp_raw_type(&second), TCP_REFUSED, "said again");
    tcp_raw_close(&first);
    tcp_raw_close(&second);
    sim_settle(&rig.sim);
    tcp_sim_close(&rig);
}

Test(tcp_handshake, the_highest_version_that_both_know_or_none)
{
    static const struct {
        uint32_t min, max;
        bool good;
    } rows[] = {
        {KVT_TCP_VERSION, KVT_TCP_VERSION, true},
        {KVT_TCP_VERSION, KVT_TCP_VERSION + 7, true},
        {1, UINT32_MAX, true},
        {KVT_TCP_VERSION + 1, KVT_TCP_VERSION + 2, false},
        {UINT32_MAX, UINT32_MAX, false},
        {0, KVT_TCP_VERSION, false},
        {0, 0, false},
        {2, 1, false},
    };
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tcp_raw raw;
        uint8_t payload[KVT_PAYLOAD_MAX];
        tcp_raw_connect(&raw, &rig);
        struct kvt_peer_common common = rig.common;
        common.silence_ms = 1;
        kvt_greeting_make(&kvt_tcp_protocol, &common, &rig.sim.random, payload,
                          &raw.shake.hello_len);
        for (int b = 0; b < 4; b++) {
            payload[b] = (uint8_t)(rows[i].min >> 8 * b);
            payload[4 + b] = (uint8_t)(rows[i].max >> 8 * b);
        }
        tcp_raw_message(&raw, TCP_HELLO, payload, KVT_GREETING_LEN);
        sim_settle(&rig.sim);
        cr_assert_eq(tcp_raw_type(&raw) == TCP_CHALLENGE, rows[i].good, "row %zu", i);
        cr_assert_eq(raw.over, !rows[i].good);
        tcp_raw_close(&raw);
        sim_settle(&rig.sim);
    }
    tcp_sim_close(&rig);
}

Test(tcp_handshake, a_later_version_may_say_more_in_its_greeting)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    struct tcp_raw raw;
    uint8_t payload[KVT_PAYLOAD_MAX], proof[KVT_PROOF_LEN];
    tcp_raw_connect(&raw, &rig);
    struct kvt_peer_common common = rig.common;
    common.silence_ms = 3000;
    kvt_greeting_make(&kvt_tcp_protocol, &common, &rig.sim.random, raw.shake.hello,
                      &raw.shake.hello_len);
    memset(raw.shake.hello + KVT_GREETING_LEN, 0x5a, 100);
    raw.shake.hello_len = KVT_GREETING_LEN + 100;
    tcp_raw_message(&raw, TCP_HELLO, raw.shake.hello, raw.shake.hello_len);
    sim_settle(&rig.sim);
    size_t len = tcp_raw_take(&raw, payload);
    cr_assert_eq(kvt_greeting_take(payload, len, raw.shake.challenge, &raw.shake.challenge_len),
                 KVB_OK);
    cr_assert_eq(kvt_proof_make(&kvt_tcp_protocol, &rig.common, &raw.shake, proof), KVB_OK);
    tcp_raw_message(&raw, TCP_PROOF, proof, sizeof proof);
    sim_settle(&rig.sim);
    cr_assert_eq(tcp_raw_type(&raw), TCP_ADMITTED);
    tcp_raw_close(&raw);
    sim_settle(&rig.sim);
    tcp_sim_close(&rig);
}

/* Cut off after every byte, and with every byte changed: closed by the bound, never admitted. */
Test(tcp_handshake, half_a_greeting_or_garbage_costs_the_connection_only)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    uint8_t frame[KVB_FRAME_HEADER_LEN + KVT_PAYLOAD_MAX], payload[KVT_PAYLOAD_MAX];
    size_t payload_len;
    struct kvt_peer_common common = rig.common;
    common.silence_ms = 3000;
    kvt_greeting_make(&kvt_tcp_protocol, &common, &rig.sim.random, payload, &payload_len);
    size_t len = tcp_message_pack(TCP_HELLO, payload, payload_len, frame);
    for (size_t at = 0; at < len; at++) {
        struct tcp_raw raw;
        tcp_raw_connect(&raw, &rig);
        cr_assert_eq(tcp_raw_say(&raw, frame, at), at);
        sim_advance(&rig.sim, 1999);
        cr_assert(!raw.over, "there is still time");
        sim_advance(&rig.sim, 1);
        cr_assert(raw.over, "half of it, %zu bytes", at);
        cr_assert_eq(raw.came, 0);
        tcp_raw_close(&raw);

        if (at < KVB_FRAME_HEADER_LEN) {
            uint8_t bad[sizeof frame];
            memcpy(bad, frame, len);
            bad[at] ^= 0x10;
            tcp_raw_connect(&raw, &rig);
            (void)tcp_raw_say(&raw, bad, len);
            sim_settle(&rig.sim);
            cr_assert(raw.over, "byte %zu is wrong", at);
            cr_assert_eq(raw.came, 0);
            tcp_raw_close(&raw);
        }
    }
    cr_assert_eq(rig.node.sessions, 0);
    tcp_sim_close(&rig);
}

Test(tcp_handshake, nothing_but_the_next_message_is_taken)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    uint8_t zeros[KVT_PAYLOAD_MAX] = {0};
    static const struct {
        enum tcp_message type;
        size_t len;
    } messages[] = {
        {TCP_PROOF, 32},          {TCP_CHALLENGE, 56},
        {TCP_ADMITTED, 41},       {TCP_REFUSED, 4},
        {TCP_ALIVE, 0},           {(enum tcp_message)0xff07, 0},
        {TCP_HELLO, 55},          {(enum tcp_message)RIG_PUT, 16},
        {(enum tcp_message)0, 0},
    };
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
        for (int after_hello = 0; after_hello < 2; after_hello++) {
            struct tcp_raw raw;
            tcp_raw_connect(&raw, &rig);
            if (after_hello) {
                tcp_raw_hello(&raw, &rig, &rig.common);
                sim_settle(&rig.sim);
                (void)tcp_raw_take(&raw, NULL);
            }
            tcp_raw_message(&raw, messages[i].type, zeros, messages[i].len);
            sim_settle(&rig.sim);
            cr_assert(raw.over, "message %zu", i);
            tcp_raw_close(&raw);
            sim_settle(&rig.sim);
        }
    }
    /* once admitted, none of them at all, but for ALIVE */
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
        struct tcp_raw raw;
        tcp_raw_connect(&raw, &rig);
        cr_assert(tcp_raw_admit(&raw, &rig, &rig.common));
        tcp_raw_message(&raw, messages[i].type, zeros, messages[i].len);
        sim_settle(&rig.sim);
        cr_assert_eq(raw.over, messages[i].type != TCP_ALIVE, "message %zu", i);
        tcp_raw_close(&raw);
        sim_settle(&rig.sim);
    }
    cr_assert_eq(rig.node.running, 0);
    tcp_sim_close(&rig);
}

Test(tcp_handshake, a_proof_counts_once_and_only_of_what_was_asked)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    struct tcp_raw raw;
    uint8_t proof[KVT_PROOF_LEN];
    tcp_raw_connect(&raw, &rig);
    cr_assert_eq(kvt_proof_make(&kvt_tcp_protocol, &rig.common, &raw.shake, proof),
                 KVB_OK); /* of nothing */
    tcp_raw_message(&raw, TCP_PROOF, proof, sizeof proof);
    sim_settle(&rig.sim);
    cr_assert(raw.over);
    cr_assert_eq(raw.came, 0);
    tcp_raw_close(&raw);
    sim_settle(&rig.sim);

    tcp_raw_connect(&raw, &rig);
    cr_assert(tcp_raw_admit(&raw, &rig, &rig.common));
    cr_assert_eq(kvt_proof_make(&kvt_tcp_protocol, &rig.common, &raw.shake, proof), KVB_OK);
    tcp_raw_message(&raw, TCP_PROOF, proof, sizeof proof);
    sim_settle(&rig.sim);
    cr_assert(raw.over, "a second time");
    cr_assert_eq(rig.node.sessions, 0);
    tcp_raw_close(&raw);
    sim_settle(&rig.sim);
    tcp_sim_close(&rig);
}

Test(tcp_handshake, a_greeting_comes_once)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    for (int admitted = 0; admitted < 2; admitted++) {
        struct tcp_raw raw;
        tcp_raw_connect(&raw, &rig);
        if (admitted) {
            cr_assert(tcp_raw_admit(&raw, &rig, &rig.common));
        } else {
            tcp_raw_hello(&raw, &rig, &rig.common);
            sim_settle(&rig.sim);
            (void)tcp_raw_take(&raw, NULL);
        }
        tcp_raw_hello(&raw, &rig, &rig.common);
        sim_settle(&rig.sim);
        cr_assert(raw.over);
        cr_assert_eq(raw.in_len, 0);
        tcp_raw_close(&raw);
        sim_settle(&rig.sim);
    }
    tcp_sim_close(&rig);
}

Test(tcp_handshake, nobody_is_served_before_the_proof)
{
    struct tcp_sim rig;
    tcp_sim_open(&rig, NULL);
    struct kvt_extent extent = {0, 100};
    struct tcp_head head = {.frame = {.type = RIG_GET, .seq = 1}, .text_len = sizeof extent};
    uint8_t question[TCP_HEAD_LEN + sizeof extent];
    tcp_head_pack(&head, &extent, question);
    for (int after_hello = 0; after_hello < 2; after_hello++) {
        struct tcp_raw raw;
        tcp_raw_connect(&raw, &rig);
        if (after_hello) {
            tcp_raw_hello(&raw, &rig, &rig.common);
            sim_settle(&rig.sim);
            (void)tcp_raw_take(&raw, NULL);
        }
        (void)tcp_raw_say(&raw, question, sizeof question);
        sim_settle(&rig.sim);
        cr_assert(raw.over);
        cr_assert_eq(raw.in_len, 0);
        tcp_raw_close(&raw);
        sim_settle(&rig.sim);
    }
    cr_assert_eq(rig.node.gets, 0);
    cr_assert_eq(tcp_sim_node_stats(&rig).transfers, 0);
    tcp_sim_close(&rig);
}

Test(tcp_handshake, connections_are_limited_in_all_and_from_one_place)
{
    for (int each = 0; each < 2; each++) {
        struct tcp_sim rig;
        tcp_sim_open(&rig, &(struct kvt_tcp_server_config){.lanes_max = each ? 50 : 3,
                                                           .lanes_each_max = each ? 3 : 50});
        struct tcp_raw *raws = calloc(6, sizeof *raws);
        for (int i = 0; i < 4; i++) {
            tcp_raw_connect(&raws[i], &rig);
        }
        for (int i = 0; i < 3; i++) {
            cr_assert(tcp_raw_admit(&raws[i], &rig, &rig.common));
        }
        cr_assert(!tcp_raw_admit(&raws[3], &rig, &rig.common), "it came in time, and is too late");
        cr_assert(raws[3].over);
        cr_assert_eq(rig.node.sessions, 3);
        tcp_raw_connect(&raws[4], &rig);
        sim_settle(&rig.sim);
        cr_assert(raws[4].over);
        tcp_raw_close(&raws[0]);
        sim_settle(&rig.sim);
        tcp_raw_connect(&raws[5], &rig);
        cr_assert(tcp_raw_admit(&raws[5], &rig, &rig.common), "one has gone");
        for (int i = 1; i < 6; i++) {
            tcp_raw_close(&raws[i]);
        }
        sim_settle(&rig.sim);
        const struct kvt_peer_stats stats = tcp_sim_node_stats(&rig);
        cr_assert_eq(stats.connects, 4);
        cr_assert_eq(stats.disconnects, 4);
        cr_assert_eq(stats.connect_failures, 1, "who was too late");
        cr_assert_eq(stats.lanes, 0);
        free(raws);
        tcp_sim_close(&rig);
    }
}

Test(tcp_handshake, strangers_take_no_peers_place_and_the_oldest_makes_room_for_the_next)
{
    enum { STRANGERS = 4, CAME = 12 };
    struct tcp_sim rig;
    tcp_sim_open(&rig, &(struct kvt_tcp_server_config){
                           .lanes_max = 2, .lanes_each_max = 2, .strangers_max = STRANGERS});
    struct tcp_raw *raws = calloc(CAME + 1, sizeof *raws);
    struct tcp_raw *peer = &raws[CAME];
    for (int i = 0; i < CAME; i++) {
        tcp_raw_connect(&raws[i], &rig);
        if (i % 2 == 1) { /* a greeting proves nothing */
            tcp_raw_hello(&raws[i], &rig, &rig.common);
        }
        sim_settle(&rig.sim);
        for (int k = 0; k <= i; k++) {
            cr_assert_eq(raws[k].over, k <= i - STRANGERS, "%d of %d", k, i);
        }
    }
    tcp_raw_connect(peer, &rig);
    cr_assert(tcp_raw_admit(peer, &rig, &rig.common));
    for (int i = 0; i < CAME; i++) { /* nor does the peer make room for them */
        tcp_raw_close(&raws[i]);
        tcp_raw_connect(&raws[i], &rig);
        sim_settle(&rig.sim);
    }
    cr_assert(!peer->over);
    cr_assert_eq(rig.node.sessions, 1);
    for (int i = 0; i <= CAME; i++) {
        tcp_raw_close(&raws[i]);
    }
    sim_settle(&rig.sim);
    free(raws);
    tcp_sim_close(&rig);
}

/* ---- towards a peer ---- */

struct imposter {
    struct tcp_sim rig;
    struct tcp_raw raw;
    bool connected;
};

static void on_imposter(void *ctx, int fd)
{
    struct imposter *imposter = ctx;
    struct kvt_socket *socket;
    struct kvt_net *net = &imposter->rig.net.base;
    cr_assert_eq(net->ops->adopt(net, fd, &socket), KVB_OK);
    tcp_raw_close(&imposter->raw);
    tcp_raw_own(&imposter->raw, net, socket);
    imposter->connected = true;
}

static void imposter_open(struct imposter *imposter)
{
    memset(&imposter->raw, 0, sizeof imposter->raw);
    imposter->connected = false;
    tcp_sim_open(&imposter->rig, NULL);
    imposter->rig.side.accept = on_imposter;
    imposter->rig.side.ctx = imposter;
    tcp_sim_peer(&imposter->rig, (struct kvt_tcp_peer_config){0});
    cr_assert(imposter->connected);
}

static void imposter_close(struct imposter *imposter)
{
    tcp_raw_close(&imposter->raw);
    sim_settle(&imposter->rig.sim);
    kvt_transport_destroy(imposter->rig.peer);
    imposter->rig.peer = NULL;
    tcp_raw_close(&imposter->raw);
    tcp_sim_close(&imposter->rig);
}

Test(tcp_handshake, a_node_that_does_not_know_the_secret_is_refused)
{
    struct imposter *it = calloc(1, sizeof *it);
    imposter_open(it);
    struct kvt_peer_common wrong = with_secret(&it->rig, "another");
    uint8_t payload[KVT_PAYLOAD_MAX];
    size_t len;
    /* it cannot check the proof, but says that it did */
    (void)tcp_raw_serve(&it->raw, &it->rig, &wrong, 1);
    struct kvt_identity identity = {.name = "raw", .incarnation = 1};
    cr_assert_eq(
        kvt_identity_make(&kvt_tcp_protocol, &wrong, &it->raw.shake, &identity, payload, &len),
        KVB_OK);
    tcp_raw_message(&it->raw, TCP_ADMITTED, payload, len);
    sim_settle(&it->rig.sim);
    cr_assert(it->raw.over);
    cr_assert_eq(it->rig.ups, 0);
    cr_assert_eq(it->rig.why, KVB_ERR_REFUSED);
    imposter_close(it);
    free(it);
}

Test(tcp_handshake, a_proof_that_is_sent_back_proves_nothing)
{
    struct imposter *it = calloc(1, sizeof *it);
    imposter_open(it);
    uint8_t payload[KVT_PAYLOAD_MAX] = {0};
    sim_settle(&it->rig.sim);
    size_t len = tcp_raw_take(&it->raw, payload);
    tcp_raw_message(&it->raw, TCP_CHALLENGE, payload, len); /* its own greeting */
    sim_settle(&it->rig.sim);
    cr_assert_eq(tcp_raw_type(&it->raw), TCP_PROOF);
    (void)tcp_raw_take(&it->raw, payload);
    memset(payload + KVT_PROOF_LEN, 0, 9);
    payload[40] = 1;
    payload[41] = 'n';
    tcp_raw_message(&it->raw, TCP_ADMITTED, payload, 42);
    sim_settle(&it->rig.sim);
    cr_assert(it->raw.over);
    cr_assert_eq(it->rig.ups, 0);
    cr_assert_eq(it->rig.why, KVB_ERR_REFUSED);
    imposter_close(it);
    free(it);
}

Test(tcp_handshake, what_a_node_says_of_itself_is_checked_and_signed)
{
    /* each byte of a good ADMITTED changed; and names that are none, well signed */
    struct imposter *it = calloc(1, sizeof *it);
    static const char *const names[] = {"", "a name", "n\n", "\x7f", "\xc3\xa9"};
    for (size_t at = 0; at < 44 + sizeof names / sizeof names[0]; at++) {
        imposter_open(it);
        uint8_t payload[KVT_PAYLOAD_MAX];
        size_t len;
        struct kvt_peer_common common = it->rig.common;
        common.silence_ms = 3000;
        sim_settle(&it->rig.sim);
        len = tcp_raw_take(&it->raw, payload);
        cr_assert_eq(kvt_greeting_take(payload, len, it->raw.shake.hello, &it->raw.shake.hello_len),
                     KVB_OK);
        kvt_greeting_make(&kvt_tcp_protocol, &common, &it->rig.sim.random, it->raw.shake.challenge,
                          &it->raw.shake.challenge_len);
        tcp_raw_message(&it->raw, TCP_CHALLENGE, it->raw.shake.challenge,
                        it->raw.shake.challenge_len);
        sim_settle(&it->rig.sim);
        (void)tcp_raw_take(&it->raw, NULL);
        struct kvt_identity identity = {.name = "raw", .incarnation = 5};
        if (at >= 44) {
            strcpy(identity.name, names[at - 44]);
        }
        cr_assert_eq(
            kvt_identity_make(&kvt_tcp_protocol, &common, &it->raw.shake, &identity, payload, &len),
            KVB_OK);
        if (at < 44) {
            cr_assert_eq(len, 44);
            payload[at] ^= 1;
        }
        tcp_raw_message(&it->raw, TCP_ADMITTED, payload, len);
        sim_settle(&it->rig.sim);
        cr_assert(it->raw.over, "byte %zu", at);
        cr_assert_eq(it->rig.ups, 0);
        cr_assert_eq(it->rig.why, at < 44 ? KVB_ERR_REFUSED : KVB_ERR_PROTOCOL);
        imposter_close(it);
    }
    free(it);
}

/* At each moment of a handshake, and after it, each message that is not the next one. */
Test(tcp_handshake, a_node_that_speaks_out_of_turn_or_refuses_without_a_reason_is_left)
{
    static const struct {
        enum tcp_message type;
        size_t len;
        kvb_status_t status; /* that it begins with */
    } messages[] = {
        {TCP_HELLO, 56, KVB_OK},           {TCP_CHALLENGE, 56, KVB_OK}, {TCP_PROOF, 32, KVB_OK},
        {TCP_ADMITTED, 41, KVB_OK},        {TCP_REFUSED, 4, KVB_OK},    {TCP_REFUSED, 5, KVB_OK},
        {TCP_REFUSED, 4, KVB_ERR_REFUSED},
    };
    enum { GREETED, PROVED, ADMITTED, MOMENTS };
    struct imposter *it = calloc(1, sizeof *it);
    for (int moment = GREETED; moment < MOMENTS; moment++) {
        for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
            bool next = (moment == GREETED && messages[i].type == TCP_CHALLENGE) ||
                        (moment == PROVED && messages[i].type == TCP_ADMITTED) ||
                        (moment != ADMITTED && messages[i].status != KVB_OK);
            if (next) {
                continue; /* which is checked elsewhere */
            }
            uint8_t payload[KVT_PAYLOAD_MAX] = {0};
            imposter_open(it);
            sim_settle(&it->rig.sim);
            if (moment == PROVED) {
                size_t len = tcp_raw_take(&it->raw, payload);
                tcp_raw_message(&it->raw, TCP_CHALLENGE, payload, len);
                sim_settle(&it->rig.sim);
                cr_assert_eq(tcp_raw_type(&it->raw), TCP_PROOF);
                memset(payload, 0, sizeof payload);
            } else if (moment == ADMITTED) {
                cr_assert(tcp_raw_serve(&it->raw, &it->rig, &it->rig.common, 1));
                cr_assert_eq(it->rig.ups, 1);
            }
            kvb_le_put32(payload, (uint32_t)messages[i].status);
            tcp_raw_message(&it->raw, messages[i].type, payload, messages[i].len);
            sim_settle(&it->rig.sim);
            cr_assert(it->raw.over, "moment %d, message %zu: goes on", moment, i);
            cr_assert_eq(it->rig.why, KVB_ERR_PROTOCOL, "moment %d, message %zu: %s", moment, i,
                         kvb_status_label(it->rig.why));
            cr_assert_eq(it->rig.ups, moment == ADMITTED);
            imposter_close(it);
        }
    }
    free(it);
}

Test(tcp_handshake, a_node_of_other_versions_is_refused_and_a_silent_one_times_out)
{
    struct imposter *it = calloc(1, sizeof *it);
    imposter_open(it);
    uint8_t payload[KVT_PAYLOAD_MAX];
    size_t len;
    struct kvt_peer_common common = it->rig.common;
    common.silence_ms = 3000;
    kvt_greeting_make(&kvt_tcp_protocol, &common, &it->rig.sim.random, payload, &len);
    payload[0] = KVT_TCP_VERSION + 1;
    payload[4] = KVT_TCP_VERSION + 1;
    tcp_raw_message(&it->raw, TCP_CHALLENGE, payload, len);
    sim_settle(&it->rig.sim);
    cr_assert(it->raw.over);
    cr_assert_eq(it->rig.why, KVB_ERR_REFUSED);
    imposter_close(it);

    imposter_open(it);
    sim_advance(&it->rig.sim, 1999);
    cr_assert_eq(it->rig.downs, 0);
    sim_advance(&it->rig.sim, 1);
    cr_assert_eq(it->rig.downs, 1);
    cr_assert_eq(it->rig.why, KVB_ERR_TIMEOUT);
    imposter_close(it);
    free(it);
}
