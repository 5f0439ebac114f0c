/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane of the tcp transport, as either side, against another that was admitted and then says what
 * it likes. First byte: which side (bit 0), and how many bytes arrive at a time (the rest; 0: all).
 * Then records: how (1), length (1), bytes. how: 1, the record is a frame whose checksums are put
 * right; 2, and whose seq becomes that of a question that is open (node) or new (client); 4, time
 * passes after it; 8, the frame is as long as its head says that text and body are.
 */
#define TCP_SIM_LEN (256ull << 10)
#include "fuzz_lane.h"

#define QUESTIONS  4
#define MEMORY_MAX (8ull << 20)

struct fuzz {
    struct fuzz_lane lane;
    struct tcp_job jobs[QUESTIONS];
    uint64_t seqs[QUESTIONS];
    uint32_t seqs_n;
};

static void put_right(struct fuzz *fuzz, uint8_t *frame, size_t len, uint8_t how, uint8_t number)
{
    bool seq = (how & 2) != 0;
    kvb_le_put32(frame, KVB_FRAME_MAGIC);
    if ((how & 8) != 0 && len >= TCP_HEAD_LEN) {
        uint32_t body = kvb_le_get32(frame + 36);
        kvb_le_put32(frame + 16, TCP_HEAD_LEN - KVB_FRAME_HEADER_LEN + kvb_le_get32(frame + 32) +
                                     body + (body > 0 ? TCP_TRAILER_LEN : 0));
    }
    if (seq && fuzz->seqs_n > 0) {
        uint64_t open = fuzz->seqs[number % fuzz->seqs_n];
        kvb_le_put32(frame + 8, (uint32_t)open);
        kvb_le_put32(frame + 12, (uint32_t)(open >> 32));
    } else if (seq) {
        kvb_le_put32(frame + 8, number + 1u);
        kvb_le_put32(frame + 12, 0);
    }
    kvb_le_put32(frame + 20, XXH32(frame, 20, 0));
    if (len >= TCP_HEAD_LEN) {
        size_t text = kvb_le_get32(frame + 32);
        text = text < len - TCP_HEAD_LEN ? text : len - TCP_HEAD_LEN;
        kvb_le_put32(frame + 24, (uint32_t)XXH3_64bits(frame + 28, 12 + text));
    }
}

static void say_all(struct fuzz *fuzz, const uint8_t *data, size_t size)
{
    uint8_t frame[256];
    for (uint8_t number = 0; size >= 2 && !fuzz->lane.raw.over; number++) {
        uint8_t how = data[0];
        size_t len = data[1] < size - 2 ? data[1] : size - 2;
        memcpy(frame, data + 2, len);
        if ((how & 1) != 0 && len >= KVB_FRAME_HEADER_LEN) {
            put_right(fuzz, frame, len, how, number);
        }
        (void)tcp_raw_say(&fuzz->lane.raw, frame, len);
        sim_settle(&fuzz->lane.rig.sim);
        if ((how & 4) != 0) {
            sim_advance(&fuzz->lane.rig.sim, 700);
        }
        data += 2 + len;
        size -= 2 + len;
    }
}

/* A node that misbehaves towards a peer with a put, two gets and a question. */
static void against_peer(struct fuzz *fuzz, const uint8_t *data, size_t size, size_t step)
{
    static const uint64_t lens[QUESTIONS] = {40, 40, 20000, 0};
    static const uint16_t types[QUESTIONS] = {RIG_PUT, RIG_GET, RIG_GET, RIG_ECHO};
    fuzz_lane_as_node(&fuzz->lane, 8);
    kvb_assert(tcp_raw_serve(&fuzz->lane.raw, &fuzz->lane.rig, &fuzz->lane.rig.common, 1));
    for (int i = 0; i < QUESTIONS; i++) {
        tcp_job_init(&fuzz->jobs[i], &fuzz->lane.rig, types[i], (uint64_t)i * 30000, lens[i]);
        kvb_assert(tcp_job_start(&fuzz->jobs[i]) == KVB_OK);
    }
    sim_settle(&fuzz->lane.rig.sim);
    for (size_t at = 0; at + KVB_FRAME_HEADER_LEN <= fuzz->lane.raw.in_len;) {
        struct kvb_frame frame;
        kvb_assert(kvb_frame_unpack(fuzz->lane.raw.in + at, &frame) == KVB_OK);
        fuzz->seqs[fuzz->seqs_n++] = frame.seq;
        at += KVB_FRAME_HEADER_LEN + frame.len;
    }
    fuzz->lane.rig.net.step = step;
    say_all(fuzz, data, size);
    fuzz_lane_leave_peer(&fuzz->lane);
    for (int i = 0; i < QUESTIONS; i++) {
        kvb_assert(fuzz->jobs[i].done);
    }
    for (int i = 80000; i < 90000; i++) { /* no slice names it */
        kvb_assert(fuzz->lane.rig.engine.base[i + 30000] == TEST_PREFILL);
    }
}

static void against_node(struct fuzz *fuzz, const uint8_t *data, size_t size, size_t step)
{
    tcp_raw_connect(&fuzz->lane.raw, &fuzz->lane.rig);
    kvb_assert(tcp_raw_admit(&fuzz->lane.raw, &fuzz->lane.rig, &fuzz->lane.rig.common));
    fuzz->lane.rig.net.step = step;
    say_all(fuzz, data, size);
    fuzz_lane_leave_node(&fuzz->lane);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    fuzz_memory_begin();
    struct fuzz *fuzz = calloc(1, sizeof *fuzz);
    kvb_assert(fuzz != NULL);
    fuzz_lane_open(&fuzz->lane);
    if ((data[0] & 1) != 0) {
        against_peer(fuzz, data + 1, size - 1, data[0] >> 1);
    } else {
        against_node(fuzz, data + 1, size - 1, data[0] >> 1);
    }
    tcp_sim_close(&fuzz->lane.rig);
    free(fuzz);
    fuzz_memory_end(MEMORY_MAX); /* whatever lengths are claimed */
    return 0;
}
