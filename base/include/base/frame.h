/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_FRAME_H
#define BASE_FRAME_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/*
 * The frame of every stream of ours (engine link now, node connections later): a fixed header, then
 * `len` bytes of payload. Integers are little endian. The header carries its own checksum, so that
 * a stream that lost step is noticed at the first header and not after a wild length.
 *
 *   offset  size  field
 *        0     4  magic     "KVP1"
 *        4     2  type      message type
 *        6     2  flags     KVB_FRAME_REPLY: answers the request with this seq
 *        8     8  seq       chosen by the requester, never 0, never reused on a connection
 *       16     4  len       payload bytes
 *       20     4  check     XXH32 over bytes 0..19, seed 0
 */
#define KVB_FRAME_HEADER_LEN 24
#define KVB_FRAME_MAGIC      0x3150564bu
#define KVB_FRAME_REPLY      1u

struct kvb_frame {
    uint16_t type;
    uint16_t flags;
    uint64_t seq;
    uint32_t len;
};

void kvb_frame_pack(const struct kvb_frame *frame, uint8_t out[KVB_FRAME_HEADER_LEN]);

/*
 * Reads a header. ERR_PROTOCOL: magic, checksum, an unknown flag or seq 0. The payload's length is
 * for the caller to judge: its limit depends on the type.
 */
KVB_MUST_USE kvb_status_t kvb_frame_unpack(const uint8_t in[KVB_FRAME_HEADER_LEN],
                                           struct kvb_frame *frame_p);

#endif
