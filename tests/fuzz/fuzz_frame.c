/* SPDX-License-Identifier: Apache-2.0 */
/* Frame headers, as they come and with a right checksum: one that is accepted packs to itself. */
#include "base/assert.h"
#include "base/frame.h"

#include <xxhash.h>

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void judge(const uint8_t header[KVB_FRAME_HEADER_LEN])
{
    struct kvb_frame frame;
    uint8_t again[KVB_FRAME_HEADER_LEN];
    if (kvb_frame_unpack(header, &frame) == KVB_OK) {
        kvb_frame_pack(&frame, again);
        kvb_assert(memcmp(again, header, sizeof again) == 0);
        kvb_assert(frame.seq != 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t header[KVB_FRAME_HEADER_LEN];
    if (size < sizeof header) {
        return 0;
    }
    memcpy(header, data, sizeof header);
    judge(header);
    uint32_t check = XXH32(header, 20, 0);
    for (int i = 0; i < 4; i++) {
        header[20 + i] = (uint8_t)(check >> (8 * i));
    }
    judge(header);
    return 0;
}
