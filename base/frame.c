/* SPDX-License-Identifier: Apache-2.0 */
#include "base/frame.h"

#include <xxhash.h>

/* Offsets as in the table of the header. */
enum { AT_MAGIC = 0, AT_TYPE = 4, AT_FLAGS = 6, AT_SEQ = 8, AT_LEN = 16, AT_CHECK = 20 };
_Static_assert(AT_CHECK + 4 == KVB_FRAME_HEADER_LEN, "the check is the last field");

static void put_le(uint8_t *out, uint64_t value, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint64_t get_le(const uint8_t *in, size_t len)
{
    uint64_t value = 0;
    for (size_t i = 0; i < len; i++) {
        value |= (uint64_t)in[i] << (8 * i);
    }
    return value;
}

void kvb_frame_pack(const struct kvb_frame *frame, uint8_t out[KVB_FRAME_HEADER_LEN])
{
    put_le(out + AT_MAGIC, KVB_FRAME_MAGIC, 4);
    put_le(out + AT_TYPE, frame->type, 2);
    put_le(out + AT_FLAGS, frame->flags, 2);
    put_le(out + AT_SEQ, frame->seq, 8);
    put_le(out + AT_LEN, frame->len, 4);
    put_le(out + AT_CHECK, XXH32(out, AT_CHECK, 0), 4);
}

kvb_status_t kvb_frame_unpack(const uint8_t in[KVB_FRAME_HEADER_LEN], struct kvb_frame *frame_p)
{
    struct kvb_frame frame = {
        .type = (uint16_t)get_le(in + AT_TYPE, 2),
        .flags = (uint16_t)get_le(in + AT_FLAGS, 2),
        .seq = get_le(in + AT_SEQ, 8),
        .len = (uint32_t)get_le(in + AT_LEN, 4),
    };
    if (get_le(in + AT_MAGIC, 4) != KVB_FRAME_MAGIC ||
        get_le(in + AT_CHECK, 4) != XXH32(in, AT_CHECK, 0) ||
        (frame.flags & ~KVB_FRAME_REPLY) != 0 || frame.seq == 0) {
        return KVB_ERR_PROTOCOL;
    }
    *frame_p = frame;
    return KVB_OK;
}
