/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the two ends of a tcp lane come to know each other, against one that says what it likes.
 * First byte: bit 0, it plays the node; the rest, how many bytes arrive at a time (0: all). Then
 * records: how, which message, offset, length, bytes. The message is made as it should be, with the
 * secret, and the bytes are put over it at the offset. how: 1, the checksum of its header is put
 * right; 2, its length too; 4, time passes after it; 8, what is signed later is what was said, not
 * what was made; 16, only the bytes are sent.
 *
 * Nobody is admitted whose proof was not right, nobody is served by a node whose was not.
 */
#define TCP_SIM_LEN (64ull << 10)
#include "fuzz_lane.h"

struct fuzz {
    struct fuzz_lane lane;
    bool node; /* which it plays */
    bool proved;
};

/* A message as it should be. */
static size_t make(struct fuzz *fuzz, enum tcp_message type,
                   uint8_t out[KVB_FRAME_HEADER_LEN + KVT_PAYLOAD_MAX])
{
    static const struct kvt_identity identity = {.name = "node-1", .incarnation = 11};
    uint8_t payload[KVT_PAYLOAD_MAX] = {0};
    size_t len = 0;
    kvb_status_t status = KVB_OK;
    struct kvt_peer_common own = fuzz->lane.rig.common;
    own.silence_ms = 3000;
    switch (type) {
    case TCP_HELLO:
    case TCP_CHALLENGE:
        kvt_greeting_make(&kvt_tcp_protocol, &own, &fuzz->lane.rig.sim.random, payload, &len);
        break;
    case TCP_PROOF:
        status = kvt_proof_make(&kvt_tcp_protocol, &own, &fuzz->lane.raw.shake, payload);
        len = KVT_PROOF_LEN;
        break;
    case TCP_ADMITTED:
        status = kvt_identity_make(&kvt_tcp_protocol, &own, &fuzz->lane.raw.shake, &identity,
                                   payload, &len);
        break;
    case TCP_REFUSED:
        kvb_le_put32(payload, (uint32_t)KVB_ERR_REFUSED);
        len = 4;
        break;
    case TCP_ALIVE:
        break;
    }
    kvb_assert(status == KVB_OK);
    return tcp_message_pack(type, payload, len, out);
}

/* What it said itself is what it goes by when it signs. */
static void remember(struct fuzz *fuzz, enum tcp_message type, const uint8_t *frame, size_t len)
{
    size_t n = len - KVB_FRAME_HEADER_LEN;
    n = n < KVT_PAYLOAD_MAX ? n : KVT_PAYLOAD_MAX;
    if (type == (fuzz->node ? TCP_CHALLENGE : TCP_HELLO)) {
        memcpy(fuzz->node ? fuzz->lane.raw.shake.challenge : fuzz->lane.raw.shake.hello,
               frame + KVB_FRAME_HEADER_LEN, n);
        *(fuzz->node ? &fuzz->lane.raw.shake.challenge_len : &fuzz->lane.raw.shake.hello_len) = n;
    }
}

/* Of the other end: its greeting, to sign it. */
static void listen(struct fuzz *fuzz)
{
    uint8_t payload[KVT_PAYLOAD_MAX];
    uint16_t wanted = fuzz->node ? TCP_HELLO : TCP_CHALLENGE;
    if (tcp_raw_type(&fuzz->lane.raw) != wanted) {
        return;
    }
    size_t len = tcp_raw_take(&fuzz->lane.raw, payload);
    struct kvt_handshake *shake = &fuzz->lane.raw.shake;
    kvb_status_t status =
        kvt_greeting_take(payload, len, fuzz->node ? shake->hello : shake->challenge,
                          fuzz->node ? &shake->hello_len : &shake->challenge_len);
    kvb_assert(status == KVB_OK);
}

static void say_one(struct fuzz *fuzz, const uint8_t *record, size_t len)
{
    static const enum tcp_message types[] = {TCP_HELLO,    TCP_CHALLENGE, TCP_PROOF,
                                             TCP_ADMITTED, TCP_REFUSED,   TCP_ALIVE};
    uint8_t frame[KVB_FRAME_HEADER_LEN + KVT_PAYLOAD_MAX + 512], right[sizeof frame];
    uint8_t how = record[0], offset = record[2];
    enum tcp_message type = types[record[1] % 6];
    size_t made = (how & 16) != 0 ? 0 : make(fuzz, type, frame);
    memset(right, 0, sizeof right);
    memcpy(right, frame, made);
    size_t at = offset < made ? offset : made, total = made;
    remember(fuzz, type, frame, made > KVB_FRAME_HEADER_LEN ? made : KVB_FRAME_HEADER_LEN);
    memcpy(frame + at, record + 4, len);
    total = at + len > total ? at + len : total;
    if (total >= KVB_FRAME_HEADER_LEN && (how & 2) != 0) {
        kvb_le_put32(frame + 16, (uint32_t)(total - KVB_FRAME_HEADER_LEN));
    }
    if (total >= KVB_FRAME_HEADER_LEN && (how & 1) != 0) {
        kvb_le_put32(frame + 20, XXH32(frame, 20, 0));
    }
    if ((how & 8) != 0 && total >= KVB_FRAME_HEADER_LEN) {
        remember(fuzz, type, frame, total);
    }
    bool right_proof =
        type == TCP_PROOF && made > 0 &&
        memcmp(frame + KVB_FRAME_HEADER_LEN, right + KVB_FRAME_HEADER_LEN, KVT_PROOF_LEN) == 0;
    fuzz->proved = fuzz->proved || right_proof || (how & 16) != 0; /* whatever that was */
    (void)tcp_raw_say(&fuzz->lane.raw, frame, total);
    sim_settle(&fuzz->lane.rig.sim);
    listen(fuzz);
    if ((how & 4) != 0) {
        sim_advance(&fuzz->lane.rig.sim, 700);
    }
}

static void say_all(struct fuzz *fuzz, const uint8_t *data, size_t size)
{
    while (size >= 4 && !fuzz->lane.raw.over) {
        size_t len = data[3] < size - 4 ? data[3] : size - 4;
        say_one(fuzz, data, len);
        data += 4 + len;
        size -= 4 + len;
    }
}

static void as_node(struct fuzz *fuzz, const uint8_t *data, size_t size, size_t step)
{
    fuzz_lane_as_node(&fuzz->lane, 0);
    sim_settle(&fuzz->lane.rig.sim);
    kvb_assert(fuzz->lane.met);
    listen(fuzz);
    fuzz->lane.rig.net.step = step;
    say_all(fuzz, data, size);
    kvb_assert(!fuzz->lane.rig.up ||
               kvt_name_valid(fuzz->lane.rig.hello.name, strlen(fuzz->lane.rig.hello.name)));
    fuzz_lane_leave_peer(&fuzz->lane);
    kvb_assert(!fuzz->lane.rig.up);
}

static void as_client(struct fuzz *fuzz, const uint8_t *data, size_t size, size_t step)
{
    tcp_raw_connect(&fuzz->lane.raw, &fuzz->lane.rig);
    fuzz->lane.rig.net.step = step;
    say_all(fuzz, data, size);
    kvb_assert(fuzz->lane.rig.node.sessions == 0 || fuzz->proved);
    fuzz_lane_leave_node(&fuzz->lane);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    struct fuzz *fuzz = calloc(1, sizeof *fuzz);
    kvb_assert(fuzz != NULL);
    fuzz_lane_open(&fuzz->lane);
    fuzz->node = (data[0] & 1) != 0;
    if (fuzz->node) {
        as_node(fuzz, data + 1, size - 1, data[0] >> 1);
    } else {
        as_client(fuzz, data + 1, size - 1, data[0] >> 1);
    }
    tcp_sim_close(&fuzz->lane.rig);
    free(fuzz);
    return 0;
}
