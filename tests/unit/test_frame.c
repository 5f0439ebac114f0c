/* SPDX-License-Identifier: Apache-2.0 */
#include "base/frame.h"

#include <criterion/criterion.h>
#include <xxhash.h>

#include <string.h>

static const struct kvb_frame good = {
    .type = 0x0102, .flags = KVB_FRAME_REPLY, .seq = 0x1112131415161718, .len = 0x21222324};

static void sign(uint8_t header[KVB_FRAME_HEADER_LEN])
{
    uint32_t check = XXH32(header, 20, 0);
    for (int i = 0; i < 4; i++) {
        header[20 + i] = (uint8_t)(check >> (8 * i));
    }
}

Test(frame, the_header_is_laid_out_as_written)
{
    uint8_t header[KVB_FRAME_HEADER_LEN];
    kvb_frame_pack(&good, header);
    static const uint8_t wanted[20] = {'K',  'V',  'P',  '1',  0x02, 0x01, 0x01, 0x00, 0x18, 0x17,
                                       0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21};
    cr_assert(memcmp(header, wanted, sizeof wanted) == 0);
    uint8_t check[4];
    memcpy(check, header + 20, 4);
    sign(header);
    cr_assert(memcmp(check, header + 20, 4) == 0);
    struct kvb_frame frame;
    cr_assert_eq(kvb_frame_unpack(header, &frame), KVB_OK);
    cr_assert_eq(frame.type, good.type);
    cr_assert_eq(frame.flags, good.flags);
    cr_assert_eq(frame.seq, good.seq);
    cr_assert_eq(frame.len, good.len);
}

Test(frame, every_single_bit_error_is_noticed)
{
    uint8_t header[KVB_FRAME_HEADER_LEN];
    kvb_frame_pack(&good, header);
    for (int bit = 0; bit < KVB_FRAME_HEADER_LEN * 8; bit++) {
        struct kvb_frame frame = {.type = 77};
        header[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_eq(kvb_frame_unpack(header, &frame), KVB_ERR_PROTOCOL, "bit %d", bit);
        cr_assert_eq(frame.type, 77, "written on failure");
        header[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

/* With a right checksum, so that it is the field itself that is judged. */
Test(frame, fields_are_judged)
{
    uint8_t header[KVB_FRAME_HEADER_LEN];
    struct kvb_frame frame = good;
    frame.seq = 0;
    kvb_frame_pack(&frame, header);
    cr_assert_eq(kvb_frame_unpack(header, &frame), KVB_ERR_PROTOCOL);
    for (int bit = 1; bit < 16; bit++) {
        frame = good;
        frame.flags = (uint16_t)(1 << bit);
        kvb_frame_pack(&frame, header);
        cr_assert_eq(kvb_frame_unpack(header, &frame), KVB_ERR_PROTOCOL, "flag %d", bit);
    }
    kvb_frame_pack(&good, header);
    header[3] = '2';
    sign(header);
    cr_assert_eq(kvb_frame_unpack(header, &frame), KVB_ERR_PROTOCOL, "another magic");
}
