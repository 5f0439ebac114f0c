/* SPDX-License-Identifier: Apache-2.0 */
#include "base/frame.h"

#include "base/le.h"

#include <xxhash.h>

/* Offsets as in the table of the header. */
enum { AT_MAGIC = 0, AT_TYPE = 4, AT_FLAGS = 6, AT_SEQ = 8, AT_LEN = 16, AT_CHECK = 20 };
_Static_assert(AT_CHECK + 4 == KVB_FRAME_HEADER_LEN, "the check is the last field");

void kvb_frame_pack(const struct kvb_frame *frame, uint8_t out[KVB_FRAME_HEADER_LEN])
{
    kvb_le_put(out + AT_MAGIC, KVB_FRAME_MAGIC, 4);
    kvb_le_put(out + AT_TYPE, frame->type, 2);
    kvb_le_put(out + AT_FLAGS, frame->flags, 2);
    kvb_le_put(out + AT_SEQ, frame->seq, 8);
    kvb_le_put(out + AT_LEN, frame->len, 4);
    kvb_le_put(out + AT_CHECK, XXH32(out, AT_CHECK, 0), 4);
}

kvb_status_t kvb_frame_unpack(const uint8_t in[KVB_FRAME_HEADER_LEN], struct kvb_frame *frame_p)
{
    struct kvb_frame frame = {
        .type = (uint16_t)kvb_le_get(in + AT_TYPE, 2),
        .flags = (uint16_t)kvb_le_get(in + AT_FLAGS, 2),
        .seq = kvb_le_get(in + AT_SEQ, 8),
        .len = (uint32_t)kvb_le_get(in + AT_LEN, 4),
    };
    if (kvb_le_get(in + AT_MAGIC, 4) != KVB_FRAME_MAGIC ||
        kvb_le_get(in + AT_CHECK, 4) != XXH32(in, AT_CHECK, 0) ||
        (frame.flags & ~KVB_FRAME_REPLY) != 0 || frame.seq == 0) {
        return KVB_ERR_PROTOCOL;
    }
    *frame_p = frame;
    return KVB_OK;
}
