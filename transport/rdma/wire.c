/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include "base/le.h"

#define MAGIC 0x3152564bu /* "KVR1" */

const struct kvt_protocol kvt_rdma_protocol = {
    .version_min = KVT_RDMA_VERSION_MIN,
    .version = KVT_RDMA_VERSION,
    .client_label = "kvplane rdma 1 client",
    .node_label = "kvplane rdma 1 node",
};

/* A final status of the list: success or a failure. */
static kvb_status_t get_status(const uint8_t *in, kvb_status_t *status_p)
{
    int32_t value = (int32_t)kvb_le_get32(in);
    *status_p = kvb_status_from_wire(value);
    return (int32_t)*status_p == value && value <= 0 ? KVB_OK : KVB_ERR_PROTOCOL;
}

/* ---- connecting ---- */

void rwire_connect_pack(const struct rwire_connect *connect, uint8_t out[RWIRE_CONNECT_LEN])
{
    kvb_le_put32(out, MAGIC);
    kvb_le_put32(out + 4, connect->version_min);
    kvb_le_put32(out + 8, connect->version);
    kvb_le_put32(out + 12, connect->mtu);
    kvb_le_put32(out + 16, connect->window);
    kvb_le_put32(out + 20, connect->message_bytes);
    kvb_le_put32(out + 24, connect->rd_atomic);
    kvb_le_put32(out + 28, connect->requests);
}

kvb_status_t rwire_connect_unpack(const uint8_t *in, size_t len, struct rwire_connect *connect_p)
{
    if (len < RWIRE_CONNECT_LEN || kvb_le_get32(in) != MAGIC) {
        return KVB_ERR_PROTOCOL;
    }
    *connect_p = (struct rwire_connect){
        .version_min = kvb_le_get32(in + 4),
        .version = kvb_le_get32(in + 8),
        .mtu = kvb_le_get32(in + 12),
        .window = kvb_le_get32(in + 16),
        .message_bytes = kvb_le_get32(in + 20),
        .rd_atomic = kvb_le_get32(in + 24),
        .requests = kvb_le_get32(in + 28),
    };
    return KVB_OK;
}

void rwire_reject_pack(kvb_status_t status, uint8_t out[RWIRE_REJECT_LEN])
{
    kvb_le_put32(out, MAGIC);
    kvb_le_put32(out + 4, (uint32_t)status);
}

kvb_status_t rwire_reject_status(const uint8_t *in, size_t len)
{
    kvb_status_t status;
    if (len < RWIRE_REJECT_LEN || kvb_le_get32(in) != MAGIC ||
        get_status(in + 4, &status) != KVB_OK || status == KVB_OK) {
        return KVB_ERR_UNAVAILABLE;
    }
    return status;
}

/* ---- packets and messages ---- */

void rwire_packet_pack(const struct rwire_packet *packet, uint8_t out[RWIRE_PACKET_LEN])
{
    kvb_le_put32(out, packet->number);
    kvb_le_put32(out + 4, packet->room);
}

struct rwire_packet rwire_packet_unpack(const uint8_t in[RWIRE_PACKET_LEN])
{
    return (struct rwire_packet){.number = kvb_le_get32(in), .room = kvb_le_get32(in + 4)};
}

static const struct {
    uint16_t type;
    uint32_t least, most;
} messages[] = {
#define X(name, type, least, most) {(type), (least), (most)},
    RWIRE_MESSAGES(X)
#undef X
};

kvb_status_t rwire_frame_check(const struct kvb_frame *frame, uint32_t text_max)
{
    if (frame->type == 0) {
        return KVB_ERR_PROTOCOL;
    }
    if (frame->type <= KVT_TYPE_MAX) {
        bool reply = (frame->flags & KVB_FRAME_REPLY) != 0;
        uint32_t least = reply ? RWIRE_ANSWER_LEN : RWIRE_QUESTION_LEN;
        uint32_t most = least + text_max + (reply ? RWIRE_EXTENTS_MAX * RWIRE_EXTENT_LEN : 0);
        return frame->len >= least && frame->len <= most ? KVB_OK : KVB_ERR_PROTOCOL;
    }
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
        if (messages[i].type == frame->type) {
            return frame->flags == 0 && frame->len >= messages[i].least &&
                           frame->len <= messages[i].most
                       ? KVB_OK
                       : KVB_ERR_PROTOCOL;
        }
    }
    return KVB_ERR_PROTOCOL;
}

void rwire_extent_pack(const struct rwire_extent *extent, uint8_t out[RWIRE_EXTENT_LEN])
{
    kvb_le_put64(out, extent->address);
    kvb_le_put32(out + 8, extent->len);
    kvb_le_put32(out + 12, extent->key);
}

struct rwire_extent rwire_extent_unpack(const uint8_t in[RWIRE_EXTENT_LEN])
{
    return (struct rwire_extent){
        .address = kvb_le_get64(in), .len = kvb_le_get32(in + 8), .key = kvb_le_get32(in + 12)};
}

kvb_status_t rwire_extents_check(const uint8_t *in, uint32_t n, uint64_t body_len)
{
    uint64_t len = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct rwire_extent extent = rwire_extent_unpack(in + (size_t)i * RWIRE_EXTENT_LEN);
        if (extent.len == 0 || extent.address > UINT64_MAX - extent.len) {
            return KVB_ERR_PROTOCOL;
        }
        len += extent.len;
    }
    return len == body_len ? KVB_OK : KVB_ERR_PROTOCOL;
}

void rwire_question_head_pack(bool unhashed, uint32_t body_len, uint8_t out[RWIRE_QUESTION_LEN])
{
    kvb_le_put32(out, unhashed);
    kvb_le_put32(out + 4, body_len);
}

kvb_status_t rwire_question_unpack(const uint8_t *payload, uint32_t len,
                                   struct rwire_question *question_p)
{
    struct rwire_question question = {
        .unhashed = kvb_le_get32(payload) == 1,
        .body_len = kvb_le_get32(payload + 4),
        .text = payload + RWIRE_QUESTION_LEN,
        .text_len = len - RWIRE_QUESTION_LEN,
    };
    if (kvb_le_get32(payload) > 1 || question.body_len > KVT_BODY_MAX ||
        (question.unhashed && question.body_len == 0)) {
        return KVB_ERR_PROTOCOL;
    }
    *question_p = question;
    return KVB_OK;
}

void rwire_answer_head_pack(kvb_status_t status, uint32_t extents_n, uint64_t checksum,
                            uint8_t out[RWIRE_ANSWER_LEN])
{
    kvb_le_put32(out, (uint32_t)status);
    kvb_le_put32(out + 4, extents_n);
    kvb_le_put64(out + 8, checksum);
}

kvb_status_t rwire_answer_unpack(const uint8_t *payload, uint32_t len,
                                 struct rwire_answer *answer_p)
{
    struct rwire_answer answer = {
        .extents_n = kvb_le_get32(payload + 4),
        .extents = payload + RWIRE_ANSWER_LEN,
        .checksum = kvb_le_get64(payload + 8),
    };
    uint32_t rest = len - RWIRE_ANSWER_LEN;
    if (get_status(payload, &answer.status) != KVB_OK || answer.extents_n > RWIRE_EXTENTS_MAX ||
        answer.extents_n > rest / RWIRE_EXTENT_LEN ||
        (answer.extents_n > 0 && answer.status != KVB_OK) ||
        (answer.extents_n == 0 && answer.checksum != 0)) {
        return KVB_ERR_PROTOCOL;
    }
    answer.text = answer.extents + (size_t)answer.extents_n * RWIRE_EXTENT_LEN;
    answer.text_len = rest - answer.extents_n * RWIRE_EXTENT_LEN;
    *answer_p = answer;
    return KVB_OK;
}

void rwire_grant_head_pack(uint32_t extents_n, uint8_t out[RWIRE_GRANT_LEN])
{
    kvb_le_put32(out, extents_n);
    kvb_le_put32(out + 4, 0);
}

kvb_status_t rwire_grant_unpack(const uint8_t *payload, uint32_t len, uint32_t *extents_n_p,
                                const uint8_t **extents_p)
{
    uint32_t n = kvb_le_get32(payload);
    uint32_t rest = len - RWIRE_GRANT_LEN;
    if (kvb_le_get32(payload + 4) != 0 || rest % RWIRE_EXTENT_LEN != 0 ||
        n != rest / RWIRE_EXTENT_LEN) {
        return KVB_ERR_PROTOCOL;
    }
    *extents_n_p = n;
    *extents_p = payload + RWIRE_GRANT_LEN;
    return KVB_OK;
}

void rwire_done_pack(kvb_status_t status, uint64_t checksum, uint8_t out[RWIRE_DONE_LEN])
{
    kvb_le_put32(out, (uint32_t)status);
    kvb_le_put32(out + 4, 0);
    kvb_le_put64(out + 8, checksum);
}

kvb_status_t rwire_done_unpack(const uint8_t in[RWIRE_DONE_LEN], kvb_status_t *status_p,
                               uint64_t *checksum_p)
{
    kvb_status_t status;
    if (get_status(in, &status) != KVB_OK || kvb_le_get32(in + 4) != 0 ||
        (status != KVB_OK && kvb_le_get64(in + 8) != 0)) {
        return KVB_ERR_PROTOCOL;
    }
    *status_p = status;
    *checksum_p = kvb_le_get64(in + 8);
    return KVB_OK;
}

void rwire_verdict_pack(kvb_status_t status, uint8_t out[RWIRE_VERDICT_LEN])
{
    kvb_le_put32(out, (uint32_t)status);
    kvb_le_put32(out + 4, 0);
}

kvb_status_t rwire_verdict_unpack(const uint8_t in[RWIRE_VERDICT_LEN], kvb_status_t *status_p)
{
    return get_status(in, status_p) == KVB_OK && kvb_le_get32(in + 4) == 0 ? KVB_OK
                                                                           : KVB_ERR_PROTOCOL;
}

void rwire_refusal_pack(kvb_status_t status, uint8_t out[4])
{
    kvb_le_put32(out, (uint32_t)status);
}

kvb_status_t rwire_refusal(const uint8_t payload[4])
{
    kvb_status_t status;
    return get_status(payload, &status) == KVB_OK && status != KVB_OK ? status : KVB_ERR_PROTOCOL;
}
