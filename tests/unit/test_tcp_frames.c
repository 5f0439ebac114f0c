/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a peer sends is checked, every field of it (B32): what is wrong costs that connection,
 * touches no memory, and nobody else notices.
 */
#include "tcp_sim.h"

static void put_u32(uint8_t *out, uint32_t value)
{
    for (int b = 0; b < 4; b++) {
        out[b] = (uint8_t)(value >> 8 * b);
    }
}

/* A frame as bytes, made well; then a test spoils it, and signs it again where that is needed. */
struct bytes {
    uint8_t data[40000];
    size_t len;
};

static void sign(struct bytes *bytes, uint32_t text_len)
{
    put_u32(bytes->data + 24, (uint32_t)XXH3_64bits(bytes->data + 28, 12 + text_len));
    put_u32(bytes->data + 20, XXH32(bytes->data, 20, 0));
}

static void frame_make(struct bytes *bytes, const struct tcp_head *head, const void *text,
                       const uint8_t *body, kvb_status_t trailer)
{
    tcp_head_pack(head, text, bytes->data);
    bytes->len = TCP_HEAD_LEN + head->text_len;
    if (head->body_len > 0) {
        memcpy(bytes->data + bytes->len, body, head->body_len);
        bytes->len += head->body_len;
        tcp_trailer_pack(trailer, XXH3_64bits(body, head->body_len), bytes->data + bytes->len);
        bytes->len += TCP_TRAILER_LEN;
    }
}

#define BODY_LEN 20

static void put_make(struct bytes *bytes, uint64_t seq, const struct kvt_extent *extent,
                     const uint8_t *body)
{
    struct tcp_head head = {.frame = {.type = RIG_PUT, .seq = seq},
                            .text_len = sizeof *extent,
                            .body_len = (uint32_t)extent->len};
    frame_make(bytes, &head, extent, body, KVB_OK);
}

enum { AT_BODY = TCP_HEAD_LEN + sizeof(struct kvt_extent) };

/* A node with one good peer, beside which others misbehave. */
static void open_beside(struct tcp_sim *rig)
{
    tcp_sim_open(rig, NULL);
    tcp_sim_peer(rig, (struct kvt_tcp_peer_config){0});
    tcp_sim_wait_up(rig);
}

static bool untouched(const struct tcp_sim *rig, uint64_t from, uint64_t len)
{
    for (uint64_t i = from; i < from + len; i++) {
        if (rig->node_memory.base[i] != TEST_PREFILL) {
            return false;
        }
    }
    return true;
}

/* Says it all to the node; true: the connection was closed for it. */
static bool costs_the_lane(struct tcp_sim *rig, const struct bytes *bytes, struct tcp_raw *raw)
{
    tcp_raw_connect(raw, rig);
    cr_assert(tcp_raw_admit(raw, rig, &rig->common));
    (void)tcp_raw_say(raw, bytes->data, bytes->len);
    sim_settle(&rig->sim);
    bool over = raw->over;
    tcp_raw_close(raw);
    sim_settle(&rig->sim);
    cr_assert_eq(rig->node.sessions, 1, "the good one");
    cr_assert_eq(rig->node.running, 0);
    return over;
}

Test(tcp_frames, a_good_question_is_answered_and_every_bit_of_its_head_and_text_counts)
{
    struct tcp_sim rig;
    open_beside(&rig);
    struct tcp_raw *raw = malloc(sizeof *raw);
    struct bytes *good = malloc(sizeof *good), *bad = malloc(sizeof *bad);
    struct kvt_extent extent = {.offset = 4096, .len = BODY_LEN};
    uint8_t body[BODY_LEN] = "the bytes of a value";
    put_make(good, 1, &extent, body);
    cr_assert(!costs_the_lane(&rig, good, raw));
    cr_assert_eq(memcmp(rig.node_memory.base + 4096, body, BODY_LEN), 0);
    memset(rig.node_memory.base + 4096, TEST_PREFILL, BODY_LEN);
    for (size_t bit = 0; bit < 8 * AT_BODY; bit++) {
        *bad = *good;
        bad->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        cr_assert(costs_the_lane(&rig, bad, raw), "bit %zu", bit);
        cr_assert(untouched(&rig, 0, KIB(64)), "bit %zu", bit);
    }
    cr_assert_eq(tcp_sim_node_stats(&rig).protocol_errors, 8 * AT_BODY);
    cr_assert_eq(tcp_sim_run(&rig, RIG_PUT, 0, KIB(100)), KVB_OK, "the good peer's");
    cr_assert_eq(tcp_sim_stats(&rig).disconnects, 0);
    free(good);
    free(bad);
    free(raw);
    tcp_sim_close(&rig);
}

/* The same with lengths and values that are wrong, but well signed. */
Test(tcp_frames, lengths_and_values_that_cannot_be_are_refused)
{
    struct tcp_sim rig;
    open_beside(&rig);
    struct tcp_raw *raw = malloc(sizeof *raw);
    struct bytes *good = malloc(sizeof *good), *bad = malloc(sizeof *bad);
    struct kvt_extent extent = {.offset = 4096, .len = BODY_LEN};
    uint8_t body[BODY_LEN] = "the bytes of a value";
    put_make(good, 1, &extent, body);
    static const struct {
        size_t at;
        uint32_t value;
        const char *what;
    } rows[] = {
        {4, RIG_PUT | KVB_FRAME_REPLY << 16, "an answer to no question"},
        {4, 0, "type 0"},
        {4, 0xff00, "a message of ours that does not exist"},
        {4, TCP_HELLO, "a second greeting"},
        {16, 0, "no payload"},
        {16, 15, "less than a head"},
        {16, 16 + 16 + BODY_LEN + 16 - 1, "a byte less than there is"},
        {16, 16 + 16 + BODY_LEN + 16 + 1, "a byte more"},
        {16, UINT32_MAX, "all that a length can be"},
        {28, 1, "a question with a status"},
        {28, (uint32_t)KVB_ERR_INVALID, "a question that failed"},
        {28, 0x80000000u, "a status that does not exist"},
        {32, 15, "a text one shorter"},
        {32, 17, "a text one longer"},
        {32, UINT32_MAX, "a text beyond all limits"},
        {36, 0, "no body, but a trailer"},
        {36, BODY_LEN - 1, "a body one shorter"},
        {36, UINT32_MAX, "a body beyond all limits"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        *bad = *good;
        put_u32(bad->data + rows[i].at, rows[i].value);
        sign(bad, sizeof extent);
        cr_assert(costs_the_lane(&rig, bad, raw), "%s", rows[i].what);
        cr_assert(untouched(&rig, 0, KIB(64)), "%s", rows[i].what);
    }
    /* sums that wrap around to what would fit */
    *bad = *good;
    put_u32(bad->data + 32, UINT32_MAX - 15);
    put_u32(bad->data + 36, 16 + 16 + BODY_LEN);
    sign(bad, sizeof extent);
    cr_assert(costs_the_lane(&rig, bad, raw), "lengths that wrap");
    /* a text, and a body, one byte beyond the limits, with the length to match */
    struct tcp_head head = {.frame = {.type = RIG_ECHO, .seq = 1}, .text_len = 8};
    frame_make(bad, &head, "12345678", NULL, KVB_OK);
    put_u32(bad->data + 32, KVT_ASK_MAX + 1);
    put_u32(bad->data + 16, 16 + KVT_ASK_MAX + 1);
    sign(bad, 8);
    cr_assert(costs_the_lane(&rig, bad, raw), "a text one beyond the limit");
    frame_make(bad, &head, "12345678", NULL, KVB_OK);
    put_u32(bad->data + 36, (uint32_t)KVT_BODY_MAX + 1);
    put_u32(bad->data + 16, 16 + 8 + (uint32_t)KVT_BODY_MAX + 1 + 16);
    sign(bad, 8);
    cr_assert(costs_the_lane(&rig, bad, raw), "a body one beyond the limit");
    free(good);
    free(bad);
    free(raw);
    tcp_sim_close(&rig);
}

Test(tcp_frames, a_trailer_says_whole_or_why_not_and_nothing_else)
{
    struct tcp_sim rig;
    open_beside(&rig);
    struct tcp_raw *raw = malloc(sizeof *raw);
    struct bytes *good = malloc(sizeof *good), *bad = malloc(sizeof *bad);
    struct kvt_extent extent = {.offset = 4096, .len = BODY_LEN};
    uint8_t body[BODY_LEN] = "the bytes of a value";
    put_make(good, 1, &extent, body);
    size_t trailer = good->len - TCP_TRAILER_LEN;

    *bad = *good;
    put_u32(bad->data + trailer, 1);
    cr_assert(costs_the_lane(&rig, bad, raw), "a status that is not final");
    *bad = *good;
    put_u32(bad->data + trailer, 0x12345);
    cr_assert(costs_the_lane(&rig, bad, raw), "a status that does not exist");
    *bad = *good;
    bad->data[trailer + 4] = 1;
    cr_assert(costs_the_lane(&rig, bad, raw), "what must be 0");
    *bad = *good;
    put_u32(bad->data + trailer, (uint32_t)KVB_ERR_CANCELED);
    cr_assert(costs_the_lane(&rig, bad, raw), "abandoned, with a checksum");
    cr_assert_eq(rig.node.puts, 0);

    /* wrong bytes, or a wrong checksum: the put fails, the lane lives */
    for (size_t at = AT_BODY; at < good->len; at++) {
        if (at >= trailer && at < trailer + 8) {
            continue;
        }
        *bad = *good;
        bad->data[at] ^= 0x40;
        tcp_raw_connect(raw, &rig);
        cr_assert(tcp_raw_admit(raw, &rig, &rig.common));
        (void)tcp_raw_say(raw, bad->data, bad->len);
        sim_settle(&rig.sim);
        struct tcp_head answer;
        struct kvb_frame frame;
        cr_assert_geq(raw->in_len, TCP_HEAD_LEN);
        cr_assert_eq(kvb_frame_unpack(raw->in, &frame), KVB_OK);
        cr_assert_eq(tcp_head_unpack(&frame, raw->in, 1000, &answer), KVB_OK);
        cr_assert_eq(answer.status, KVB_ERR_CHECKSUM, "byte %zu", at);
        cr_assert_eq(answer.frame.flags, KVB_FRAME_REPLY);
        cr_assert(!raw->over);
        cr_assert_eq(rig.node.puts, 0);
        tcp_raw_close(raw);
        sim_settle(&rig.sim);
    }
    free(good);
    free(bad);
    free(raw);
    tcp_sim_close(&rig);
}

/* B32: a question for memory that is not the node's to give: refused by what serves it, the rest of
 * its body goes by, guard pages and neighbours stay as they are. */
Test(tcp_frames, no_address_of_a_peer_reaches_memory_that_was_not_given)
{
    static const struct kvt_extent bad[] = {
        {0x1000, TCP_SIM_LEN}, {TCP_SIM_LEN, 20},     {TCP_SIM_LEN - 19, 20},
        {UINT64_MAX, 20},      {UINT64_MAX - 18, 20}, {0, UINT64_MAX},
    };
    struct tcp_sim rig;
    open_beside(&rig);
    struct tcp_raw *raw = malloc(sizeof *raw);
    struct bytes *bytes = malloc(sizeof *bytes);
    uint8_t body[BODY_LEN] = "the bytes of a value";
    for (int round = 0; round < 100; round++) {
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            struct tcp_head head = {.frame = {.type = RIG_PUT, .seq = 1},
                                    .text_len = sizeof bad[i],
                                    .body_len = BODY_LEN};
            frame_make(bytes, &head, &bad[i], body, KVB_OK);
            cr_assert(!costs_the_lane(&rig, bytes, raw));
            head.frame.type = RIG_GET;
            head.body_len = 0;
            frame_make(bytes, &head, &bad[i], body, KVB_OK);
            cr_assert(!costs_the_lane(&rig, bytes, raw));
            cr_assert_eq(raw->in_len, TCP_HEAD_LEN, "an answer without bytes");
        }
    }
    cr_assert_eq(rig.node.puts + rig.node.gets, 0);
    cr_assert(untouched(&rig, 0, KIB(64)));
    uint64_t turns = rig.sim.turns;
    sim_settle(&rig.sim);
    cr_assert_leq(rig.sim.turns - turns, 2, "nothing spins");
    cr_assert_eq(tcp_sim_run(&rig, RIG_PUT, 0, KIB(100)), KVB_OK, "the good peer's");
    free(bytes);
    free(raw);
    tcp_sim_close(&rig);
}

/* ---- a node that says what it likes to a peer ---- */

struct bad_node {
    struct tcp_sim rig;
    struct tcp_raw raw;
    struct bytes bytes;
    struct kvb_frame asked; /* the last question */
};

static void on_bad_node(void *ctx, int fd)
{
    struct bad_node *bad = ctx;
    struct kvt_socket *socket;
    struct kvt_net *net = &bad->rig.net.base;
    cr_assert_eq(net->ops->adopt(net, fd, &socket), KVB_OK);
    cr_assert_null(bad->raw.socket);
    tcp_raw_own(&bad->raw, net, socket);
}

/* A peer with one lane that has asked: a get, a put or an echo. */
static void bad_open(struct bad_node *bad, struct tcp_job *job, uint16_t type, uint64_t len)
{
    memset(&bad->raw, 0, sizeof bad->raw);
    tcp_sim_open(&bad->rig, NULL);
    bad->rig.side.accept = on_bad_node;
    bad->rig.side.ctx = bad;
    tcp_sim_peer(&bad->rig, (struct kvt_tcp_peer_config){
                                .lanes = 1, .backoff_ms = 10000, .backoff_max_ms = 10000});
    cr_assert(tcp_raw_serve(&bad->raw, &bad->rig, &bad->rig.common, 1));
    cr_assert_eq(bad->rig.ups, 1);
    tcp_job_init(job, &bad->rig, type, 0, len);
    cr_assert_eq(tcp_job_start(job), KVB_OK);
    sim_settle(&bad->rig.sim);
    cr_assert_geq(bad->raw.in_len, TCP_HEAD_LEN);
    cr_assert_eq(kvb_frame_unpack(bad->raw.in, &bad->asked), KVB_OK);
}

static void bad_close(struct bad_node *bad)
{
    kvt_transport_destroy(bad->rig.peer);
    bad->rig.peer = NULL;
    tcp_raw_close(&bad->raw);
    tcp_sim_close(&bad->rig);
}

static struct tcp_head answer_to(const struct bad_node *bad)
{
    struct tcp_head head = {.frame = bad->asked, .text_len = 3};
    head.frame.flags = KVB_FRAME_REPLY;
    return head;
}

static void bad_say(struct bad_node *bad)
{
    cr_assert_eq(tcp_raw_say(&bad->raw, bad->bytes.data, bad->bytes.len), bad->bytes.len);
    sim_settle(&bad->rig.sim);
}

Test(tcp_frames, an_answer_must_be_one_that_the_question_can_have)
{
    struct bad_node *bad = calloc(1, sizeof *bad);
    uint8_t body[101] = {0};
    static const struct {
        const char *what;
        uint16_t type; /* of the question */
        uint64_t seq;  /* added */
        int type_off, flags;
        kvb_status_t status;
        uint32_t text_len, body_len;
        bool good;
    } rows[] = {
        {"right", RIG_GET, 0, 0, 1, KVB_OK, 3, 100, true},
        {"right", RIG_ECHO, 0, 0, 1, KVB_OK, 3, 0, true},
        {"right: refused", RIG_GET, 0, 0, 1, KVB_ERR_NOT_FOUND, 3, 0, true},
        {"right: text as long as can be", RIG_ECHO, 0, 0, 1, KVB_OK, 64, 0, true},
        {"right: no text", RIG_ECHO, 0, 0, 1, KVB_OK, 0, 0, true},
        {"another's seq", RIG_GET, 1, 0, 1, KVB_OK, 3, 100, false},
        {"a later seq of the same place", RIG_GET, 2048, 0, 1, KVB_OK, 3, 100, false},
        {"another type", RIG_GET, 0, 1, 1, KVB_OK, 3, 100, false},
        {"a question", RIG_GET, 0, 0, 0, KVB_OK, 3, 100, false},
        {"a body one too long", RIG_GET, 0, 0, 1, KVB_OK, 3, 101, false},
        {"a body one too short", RIG_GET, 0, 0, 1, KVB_OK, 3, 99, false},
        {"no body", RIG_GET, 0, 0, 1, KVB_OK, 3, 0, false},
        {"a body that nobody asked for", RIG_ECHO, 0, 0, 1, KVB_OK, 3, 100, false},
        {"a body to a put", RIG_PUT, 0, 0, 1, KVB_OK, 3, 100, false},
        {"a text too long", RIG_ECHO, 0, 0, 1, KVB_OK, 65, 0, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tcp_job job;
        bad_open(bad, &job, rows[i].type, 100);
        struct tcp_head head = answer_to(bad);
        head.frame.seq += rows[i].seq;
        head.frame.type = (uint16_t)(head.frame.type + rows[i].type_off);
        head.frame.flags = (uint16_t)rows[i].flags;
        head.status = rows[i].status;
        head.text_len = rows[i].text_len;
        head.body_len = rows[i].body_len;
        uint8_t text[65] = "got";
        memset(bad->rig.engine.base, TEST_PREFILL, 200);
        frame_make(&bad->bytes, &head, text, body, KVB_OK);
        bad_say(bad);
        cr_assert(job.done, "%s", rows[i].what);
        if (rows[i].good) {
            cr_assert_eq(job.status, rows[i].status, "%s", rows[i].what);
            cr_assert_eq(job.transfer.answer_len, rows[i].text_len);
            cr_assert_eq(memcmp(job.answer, text, rows[i].text_len), 0);
            cr_assert(!bad->raw.over);
        } else {
            cr_assert(job.status == KVB_ERR_PROTOCOL || job.status == KVB_ERR_DISCONNECTED, "%s",
                      rows[i].what);
            cr_assert_eq(job.transfer.answer_len, 0);
            cr_assert(bad->raw.over, "%s", rows[i].what);
            cr_assert_eq(tcp_sim_stats(&bad->rig).protocol_errors, 1);
            for (int b = 0; b < 200; b++) {
                cr_assert_eq(bad->rig.engine.base[b], TEST_PREFILL);
            }
        }
        bad_close(bad);
    }
    free(bad);
}

Test(tcp_frames, an_answer_comes_once_and_not_before_the_question_was_whole)
{
    struct bad_node *bad = calloc(1, sizeof *bad);
    struct tcp_job job;
    bad_open(bad, &job, RIG_ECHO, 0);
    struct tcp_head head = answer_to(bad);
    frame_make(&bad->bytes, &head, "got", NULL, KVB_OK);
    bad_say(bad);
    cr_assert_eq(job.status, KVB_OK);
    bad_say(bad);
    cr_assert(bad->raw.over, "a second time");
    bad_close(bad);

    free(bad);
}

/* The node may refuse a put before it has all of it; that it has stored it, it may not say. */
Test(tcp_frames, a_put_may_be_refused_early_but_not_be_done_early)
{
    struct bad_node *bad = calloc(1, sizeof *bad);
    for (int refuse = 0; refuse < 2; refuse++) {
        struct tcp_job job;
        bad_open(bad, &job, RIG_ECHO, 0);
        struct tcp_head head = answer_to(bad);
        frame_make(&bad->bytes, &head, "got", NULL, KVB_OK);
        bad_say(bad);
        bad->raw.in_len = 0;
        bad->raw.came = 0;
        bad->raw.net->ops->want(bad->raw.socket, 0);
        tcp_job_init(&job, &bad->rig, RIG_PUT, 0, MIB(1));
        memset(bad->rig.engine.base, 0x77, MIB(1));
        cr_assert_eq(tcp_job_start(&job), KVB_OK);
        sim_settle(&bad->rig.sim);
        uint8_t first[TCP_HEAD_LEN];
        struct iovec to = {first, sizeof first};
        size_t got;
        cr_assert_eq(bad->raw.net->ops->read(bad->raw.socket, &to, 1, &got), KVB_OK);
        cr_assert_eq(got, sizeof first);
        cr_assert_eq(kvb_frame_unpack(first, &bad->asked), KVB_OK);
        head = answer_to(bad);
        head.status = refuse ? KVB_ERR_NO_SPACE : KVB_OK;
        frame_make(&bad->bytes, &head, "got", NULL, KVB_OK);
        bad_say(bad);
        cr_assert(job.done);
        cr_assert_eq(job.status, refuse ? KVB_ERR_NO_SPACE : KVB_ERR_PROTOCOL);
        cr_assert_eq(job.transfer.answer_len, refuse ? 3 : 0);
        tcp_raw_hear(&bad->raw);
        sim_settle(&bad->rig.sim);
        cr_assert_eq(bad->raw.over, !refuse);
        if (refuse) { /* the body is as long as it was said to be, and abandoned */
            cr_assert_eq(bad->raw.came, 16 + MIB(1) + TCP_TRAILER_LEN);
            cr_assert_eq(tcp_sim_stats(&bad->rig).abandoned, 1);
        }
        bad_close(bad);
    }
    free(bad);
}

Test(tcp_frames, a_body_that_is_wrong_or_given_up_fails_its_get_and_nothing_else)
{
    struct bad_node *bad = calloc(1, sizeof *bad);
    uint8_t body[100];
    memset(body, 7, sizeof body);
    static const struct {
        kvb_status_t trailer;
        size_t spoil; /* from the end; 0: nothing */
        kvb_status_t status;
        bool lane_lives;
    } rows[] = {
        {KVB_OK, 0, KVB_OK, true},
        {KVB_OK, 1, KVB_ERR_CHECKSUM, true},
        {KVB_OK, 8, KVB_ERR_CHECKSUM, true},
        {KVB_OK, 17, KVB_ERR_CHECKSUM, true},
        {KVB_OK, 116, KVB_ERR_CHECKSUM, true},
        {KVB_ERR_TICKET, 0, KVB_ERR_TICKET, true},
        {KVB_ERR_CANCELED, 0, KVB_ERR_CANCELED, true},
        {KVB_OK, 12, KVB_ERR_DISCONNECTED, false},
        {KVB_OK, 13, KVB_ERR_DISCONNECTED, false},
        {KVB_IN_PROGRESS, 0, KVB_ERR_DISCONNECTED, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tcp_job job;
        bad_open(bad, &job, RIG_GET, sizeof body);
        struct tcp_head head = answer_to(bad);
        head.body_len = sizeof body;
        frame_make(&bad->bytes, &head, "got", body, rows[i].trailer);
        if (rows[i].spoil > 0) {
            bad->bytes.data[bad->bytes.len - rows[i].spoil] ^= 0x20;
        }
        bad_say(bad);
        cr_assert(job.done, "row %zu", i);
        cr_assert_eq(job.status, rows[i].status, "row %zu: %s", i, kvb_status_label(job.status));
        cr_assert_eq(bad->raw.over, !rows[i].lane_lives, "row %zu", i);
        bad_close(bad);
    }
    free(bad);
}
