/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane of the tcp transport, as either side, against another that was admitted and then says what
 * it likes. First byte: which side (bit 0), and how many bytes arrive at a time (the rest; 0: all).
 * Then records: how (1), length (1), bytes. how: 1, the record is a frame whose checksums are put
 * right; 2, and whose seq becomes that of a question that is open (node) or new (client); 4, time
 * passes after it.
 */
#define TESTS_PLAIN 1
#define TCP_SIM_LEN (256ull << 10)
#include "tcp_sim.h"

#include "base/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define QUESTIONS 4

struct fuzz {
    struct tcp_sim rig;
    struct tcp_raw raw;
    struct tcp_job jobs[QUESTIONS];
    uint64_t seqs[QUESTIONS];
    uint32_t seqs_n;
    bool met;
};

static void put_u32(uint8_t *out, uint32_t value)
{
    for (int b = 0; b < 4; b++) {
        out[b] = (uint8_t)(value >> 8 * b);
    }
}

static uint32_t get_u32(const uint8_t *in)
{
    return in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

static void put_right(struct fuzz *fuzz, uint8_t *frame, size_t len, bool seq, uint8_t number)
{
    put_u32(frame, KVB_FRAME_MAGIC);
    if (seq && fuzz->seqs_n > 0) {
        uint64_t open = fuzz->seqs[number % fuzz->seqs_n];
        put_u32(frame + 8, (uint32_t)open);
        put_u32(frame + 12, (uint32_t)(open >> 32));
    } else if (seq) {
        put_u32(frame + 8, number + 1u);
        put_u32(frame + 12, 0);
    }
    put_u32(frame + 20, XXH32(frame, 20, 0));
    if (len >= TCP_HEAD_LEN) {
        size_t text = get_u32(frame + 32);
        text = text < len - TCP_HEAD_LEN ? text : len - TCP_HEAD_LEN;
        put_u32(frame + 24, (uint32_t)XXH3_64bits(frame + 28, 12 + text));
    }
}

static void say_all(struct fuzz *fuzz, const uint8_t *data, size_t size)
{
    uint8_t frame[256];
    for (uint8_t number = 0; size >= 2 && !fuzz->raw.over; number++) {
        uint8_t how = data[0];
        size_t len = data[1] < size - 2 ? data[1] : size - 2;
        memcpy(frame, data + 2, len);
        if ((how & 1) != 0 && len >= KVB_FRAME_HEADER_LEN) {
            put_right(fuzz, frame, len, (how & 2) != 0, number);
        }
        (void)tcp_raw_say(&fuzz->raw, frame, len);
        sim_settle(&fuzz->rig.sim);
        if ((how & 4) != 0) {
            sim_advance(&fuzz->rig.sim, 700);
        }
        data += 2 + len;
        size -= 2 + len;
    }
}

static void accept_raw(void *ctx, int fd)
{
    struct fuzz *fuzz = ctx;
    struct kvt_net *net = &fuzz->rig.net.base;
    struct kvt_socket *socket;
    kvb_assert(net->ops->adopt(net, fd, &socket) == KVB_OK);
    if (fuzz->met) { /* one that comes later is not talked to */
        net->ops->close(socket);
        return;
    }
    fuzz->met = true;
    tcp_raw_own(&fuzz->raw, net, socket);
}

/* A node that misbehaves towards a peer with a put, two gets and a question. */
static void against_peer(struct fuzz *fuzz, const uint8_t *data, size_t size, size_t step)
{
    static const uint64_t lens[QUESTIONS] = {40, 40, 20000, 0};
    static const uint16_t types[QUESTIONS] = {RIG_PUT, RIG_GET, RIG_GET, RIG_ECHO};
    fuzz->rig.side.accept = accept_raw;
    fuzz->rig.side.ctx = fuzz;
    tcp_sim_peer(&fuzz->rig, (struct kvt_tcp_peer_config){.lanes = 1, .in_flight_max = 8});
    kvb_assert(tcp_raw_serve(&fuzz->raw, &fuzz->rig, &fuzz->rig.common, 1));
    for (int i = 0; i < QUESTIONS; i++) {
        tcp_job_init(&fuzz->jobs[i], &fuzz->rig, types[i], (uint64_t)i * 30000, lens[i]);
        kvb_assert(tcp_job_start(&fuzz->jobs[i]) == KVB_OK);
    }
    sim_settle(&fuzz->rig.sim);
    for (size_t at = 0; at + KVB_FRAME_HEADER_LEN <= fuzz->raw.in_len;) {
        struct kvb_frame frame;
        kvb_assert(kvb_frame_unpack(fuzz->raw.in + at, &frame) == KVB_OK);
        fuzz->seqs[fuzz->seqs_n++] = frame.seq;
        at += KVB_FRAME_HEADER_LEN + frame.len;
    }
    fuzz->rig.net.step = step;
    say_all(fuzz, data, size);
    tcp_raw_close(&fuzz->raw);
    sim_advance(&fuzz->rig.sim, 10000);
    for (int i = 0; i < QUESTIONS; i++) {
        kvb_assert(fuzz->jobs[i].done);
    }
    for (int i = 80000; i < 90000; i++) { /* no slice names it */
        kvb_assert(fuzz->rig.engine.base[i + 30000] == TEST_PREFILL);
    }
}

static void against_node(struct fuzz *fuzz, const uint8_t *data, size_t size, size_t step)
{
    tcp_raw_connect(&fuzz->raw, &fuzz->rig);
    kvb_assert(tcp_raw_admit(&fuzz->raw, &fuzz->rig, &fuzz->rig.common));
    fuzz->rig.net.step = step;
    say_all(fuzz, data, size);
    tcp_raw_close(&fuzz->raw);
    sim_settle(&fuzz->rig.sim);
    kvb_assert(fuzz->rig.node.sessions == 0 && fuzz->rig.node.running == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    struct fuzz *fuzz = calloc(1, sizeof *fuzz);
    kvb_assert(fuzz != NULL);
    tcp_sim_open(&fuzz->rig, NULL);
    kvb_log_threshold = KVB_LOG_ERROR;
    if ((data[0] & 1) != 0) {
        against_peer(fuzz, data + 1, size - 1, data[0] >> 1);
    } else {
        against_node(fuzz, data + 1, size - 1, data[0] >> 1);
    }
    tcp_sim_close(&fuzz->rig);
    free(fuzz);
    return 0;
}
