/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include "base/assert.h"
#include "base/le.h"

#include <xxhash.h>

#include <string.h>

/* Offsets as in the table of the header. */
enum { AT_CHECK = 24, AT_STATUS = 28, AT_TEXT_LEN = 32, AT_BODY_LEN = 36, AT_TEXT = 40 };
_Static_assert(AT_CHECK == KVB_FRAME_HEADER_LEN && AT_TEXT == TCP_HEAD_LEN, "the head is whole");
_Static_assert(16ull + KVT_ASK_MAX + KVT_BODY_MAX + TCP_TRAILER_LEN <= UINT32_MAX,
               "the longest frame has a length");

const struct kvt_protocol kvt_tcp_protocol = {
    .version_min = KVT_TCP_VERSION_MIN,
    .version = KVT_TCP_VERSION,
    .client_label = "kvplane tcp 1 client",
    .node_label = "kvplane tcp 1 node",
};

static uint32_t check_of(const uint8_t *frame, uint32_t text_len)
{
    return (uint32_t)XXH3_64bits(frame + AT_STATUS, AT_TEXT - AT_STATUS + text_len);
}

static uint64_t payload_len(uint32_t text_len, uint32_t body_len)
{
    return AT_TEXT - AT_CHECK + (uint64_t)text_len + body_len +
           (body_len > 0 ? TCP_TRAILER_LEN : 0);
}

void tcp_head_pack(const struct tcp_head *head, const void *text, uint8_t *out)
{
    struct kvb_frame frame = head->frame;
    frame.len = (uint32_t)payload_len(head->text_len, head->body_len);
    kvb_frame_pack(&frame, out);
    kvb_le_put32(out + AT_STATUS, (uint32_t)head->status);
    kvb_le_put32(out + AT_TEXT_LEN, head->text_len);
    kvb_le_put32(out + AT_BODY_LEN, head->body_len);
    if (head->text_len > 0) {
        memcpy(out + AT_TEXT, text, head->text_len);
    }
    kvb_le_put32(out + AT_CHECK, check_of(out, head->text_len));
}

/* A final status of the list: success or a failure. */
static kvb_status_t get_status(const uint8_t *in, kvb_status_t *status_p)
{
    int32_t value = (int32_t)kvb_le_get32(in);
    *status_p = kvb_status_from_wire(value);
    return (int32_t)*status_p == value && value <= 0 ? KVB_OK : KVB_ERR_PROTOCOL;
}

kvb_status_t tcp_head_unpack(const struct kvb_frame *frame, const uint8_t in[TCP_HEAD_LEN],
                             uint32_t text_max, struct tcp_head *head_p)
{
    struct tcp_head head = {
        .frame = *frame,
        .text_len = kvb_le_get32(in + AT_TEXT_LEN),
        .body_len = kvb_le_get32(in + AT_BODY_LEN),
    };
    bool reply = (frame->flags & KVB_FRAME_REPLY) != 0;
    if (get_status(in + AT_STATUS, &head.status) != KVB_OK || head.text_len > text_max ||
        head.body_len > KVT_BODY_MAX || frame->len != payload_len(head.text_len, head.body_len) ||
        (head.status != KVB_OK && (!reply || head.body_len > 0))) {
        return KVB_ERR_PROTOCOL;
    }
    *head_p = head;
    return KVB_OK;
}

bool tcp_text_intact(const uint8_t *in, uint32_t text_len)
{
    return kvb_le_get32(in + AT_CHECK) == check_of(in, text_len);
}

void tcp_trailer_pack(kvb_status_t status, uint64_t checksum, uint8_t out[TCP_TRAILER_LEN])
{
    kvb_le_put32(out, (uint32_t)status);
    kvb_le_put32(out + 4, 0);
    kvb_le_put64(out + 8, status == KVB_OK ? checksum : 0);
}

kvb_status_t tcp_trailer_unpack(const uint8_t in[TCP_TRAILER_LEN], kvb_status_t *status_p,
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

kvb_status_t tcp_refusal(const uint8_t payload[4])
{
    kvb_status_t status;
    return get_status(payload, &status) == KVB_OK && status != KVB_OK ? status : KVB_ERR_PROTOCOL;
}

/* ---- the transport's own ---- */

static const struct {
    uint16_t type;
    uint32_t least, most;
} messages[] = {
#define X(name, type, least, most) {(type), (least), (most)},
    TCP_MESSAGES(X)
#undef X
};

kvb_status_t tcp_message_check(const struct kvb_frame *frame)
{
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

size_t tcp_message_pack(enum tcp_message type, const void *payload, size_t len,
                        uint8_t out[KVB_FRAME_HEADER_LEN + KVT_PAYLOAD_MAX])
{
    kvb_assert(len <= KVT_PAYLOAD_MAX);
    struct kvb_frame frame = {.type = (uint16_t)type, .seq = 1, .len = (uint32_t)len};
    kvb_frame_pack(&frame, out);
    if (len > 0) {
        memcpy(out + KVB_FRAME_HEADER_LEN, payload, len);
    }
    return KVB_FRAME_HEADER_LEN + len;
}
