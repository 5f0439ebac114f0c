/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane of the rdma transport against an end that says what it likes: messages of a put, two gets
 * and a question are changed on their way. First byte: how many messages go through untouched
 * before (7 bits; the handshake takes four), and whose are changed (bit 7: the node's). Then
 * records, one for each message from there on: how (1), offset (1), length (1), bytes. how: 1, the
 * bytes are put over the message's own at the offset; 2, they become the message from there on; 4,
 * the checksum of the frame's header is put right; 8, the packet's number and room stay as they
 * were.
 */
#define TESTS_PLAIN  1
#define RDMA_SIM_LEN (256ull << 10)
#include "rdma_sim.h"
#include "wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz {
    struct rdma_sim rig;
    struct rdma_job jobs[4];
    const uint8_t *data;
    size_t size;
    enum fake_side from;
    uint32_t untouched;
};

static void put_u32(uint8_t *out, uint32_t value)
{
    for (int b = 0; b < 4; b++) {
        out[b] = (uint8_t)(value >> 8 * b);
    }
}

static void on_message(void *ctx, enum fake_side from, uint8_t *bytes, uint32_t *len_p)
{
    struct fuzz *fuzz = ctx;
    if (from != fuzz->from || fuzz->size < 3) {
        return;
    }
    if (fuzz->untouched > 0) {
        fuzz->untouched--;
        return;
    }
    uint8_t how = fuzz->data[0], packet[RWIRE_PACKET_LEN];
    uint32_t offset = fuzz->data[1], len = fuzz->data[2];
    fuzz->data += 3;
    fuzz->size -= 3;
    len = len < fuzz->size ? len : (uint32_t)fuzz->size;
    memcpy(packet, bytes, sizeof packet);
    if ((how & 3) != 0 && offset <= *len_p) {
        memcpy(bytes + offset, fuzz->data, len);
        if ((how & 2) != 0 || offset + len > *len_p) {
            *len_p = offset + len;
        }
    }
    if ((how & 4) != 0 && *len_p >= RWIRE_PACKET_LEN + KVB_FRAME_HEADER_LEN) {
        uint8_t *frame = bytes + RWIRE_PACKET_LEN;
        put_u32(frame + 20, XXH32(frame, 20, 0));
    }
    if ((how & 8) != 0 && *len_p >= RWIRE_PACKET_LEN) {
        memcpy(bytes, packet, sizeof packet);
    }
    fuzz->data += len;
    fuzz->size -= len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint64_t lens[4] = {40, 40, 20000, 0};
    static const uint16_t types[4] = {RIG_PUT, RIG_GET, RIG_GET, RIG_ECHO};
    if (size == 0) {
        return 0;
    }
    struct fuzz *fuzz = calloc(1, sizeof *fuzz);
    kvb_assert(fuzz != NULL);
    struct rdma_sim *rig = &fuzz->rig;
    rdma_sim_init(rig, 1);
    kvb_log_threshold = KVB_LOG_ERROR;
    kvb_assert(rdma_sim_node(rig) == KVB_OK && rdma_sim_engine(rig) == KVB_OK);
    fuzz->data = data + 1;
    fuzz->size = size - 1;
    fuzz->untouched = data[0] & 0x7f;
    fuzz->from = (data[0] & 0x80) != 0 ? FAKE_NODE : FAKE_ASKER;
    fake_verbs_tap(on_message, fuzz);
    kvb_assert(rdma_sim_peer(rig, (struct kvt_rdma_peer_config){.lanes = 2}) == KVB_OK);
    for (int i = 0; i < 4; i++) {
        rdma_job_init(&fuzz->jobs[i], rig, types[i], (uint64_t)i * 30000, lens[i]);
        fuzz->jobs[i].transfer.deadline_ns = rdma_in_ms(rig, 5000);
        if (rdma_job_start(&fuzz->jobs[i]) != KVB_OK) {
            fuzz->jobs[i].done = true;
        }
    }
    rdma_advance(rig, 10000);
    for (int i = 0; i < 4; i++) {
        kvb_assert(fuzz->jobs[i].done);
    }
    for (int i = 110000; i < 120000; i++) { /* no slice names it */
        kvb_assert(rig->engine.base[i] == TEST_PREFILL);
    }
    fake_verbs_tap(NULL, NULL);
    rdma_sim_close(rig);
    free(fuzz);
    return 0;
}
