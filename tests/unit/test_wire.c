/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"
#include "base/wire.h"

#include <criterion/criterion.h>

#include <string.h>

Test(wire, values_are_little_endian_and_come_back)
{
    struct kvb_writer out;
    kvb_writer_init(&out, 1000);
    kvb_put_u8(&out, 0x01);
    kvb_put_u16(&out, 0x0302);
    kvb_put_u32(&out, 0x07060504);
    kvb_put_u64(&out, 0x0f0e0d0c0b0a0908);
    for (uint8_t i = 0; i < 15; i++) {
        cr_assert_eq(out.data[i], i + 1);
    }
    kvb_put_id(&out, (struct kvb_id){1, 2});
    kvb_put_str(&out, "text");
    kvb_put_str(&out, NULL);
    kvb_put_span(&out, (struct kvb_span){(const uint8_t *)"\0\1", 2});
    cr_assert_eq(out.status, KVB_OK);
    struct kvb_reader in;
    char text[8];
    kvb_reader_init(&in, out.data, out.len);
    cr_assert_eq(kvb_get_u8(&in), 0x01);
    cr_assert_eq(kvb_get_u16(&in), 0x0302);
    cr_assert_eq(kvb_get_u32(&in), 0x07060504);
    cr_assert_eq(kvb_get_u64(&in), 0x0f0e0d0c0b0a0908);
    cr_assert(kvb_id_equal(kvb_get_id(&in), (struct kvb_id){1, 2}));
    kvb_get_str(&in, text, sizeof text);
    cr_assert_str_eq(text, "text");
    kvb_get_str(&in, text, sizeof text);
    cr_assert_str_eq(text, "");
    struct kvb_span span = kvb_get_span(&in, 2);
    cr_assert_eq(span.len, 2);
    cr_assert_eq(span.data[1], 1);
    cr_assert_eq(kvb_reader_finish(&in), KVB_OK);
    kvb_writer_cleanup(&out);
}

Test(wire, a_writer_refuses_to_pass_its_limit_and_stays_refused)
{
    for (size_t max = 0; max < 300; max++) {
        struct kvb_writer out;
        kvb_writer_init(&out, max);
        for (size_t i = 0; i < max; i++) {
            kvb_put_u8(&out, (uint8_t)i);
        }
        cr_assert_eq(out.status, KVB_OK);
        cr_assert_eq(out.len, max);
        kvb_put_u8(&out, 0);
        cr_assert_eq(out.status, KVB_ERR_TOO_LARGE);
        kvb_put_bytes(&out, "", 0);
        cr_assert_eq(out.status, KVB_ERR_TOO_LARGE);
        cr_assert_eq(out.len, max);
        kvb_writer_cleanup(&out);
    }
    struct kvb_writer out;
    kvb_writer_init(&out, 7);
    kvb_put_u64(&out, 1);
    kvb_put_u8(&out, 1); /* it would fit, but the message is broken */
    cr_assert_eq(out.len, 0);
    kvb_put_span(&out, (struct kvb_span){NULL, (size_t)UINT32_MAX + 1});
    cr_assert_eq(out.status, KVB_ERR_TOO_LARGE);
    kvb_writer_cleanup(&out);
}

Test(wire, a_span_whose_length_has_no_place_on_the_wire_is_refused_unread)
{
    struct kvb_writer out;
    kvb_writer_init(&out, SIZE_MAX);
    kvb_put_span(&out, (struct kvb_span){NULL, (size_t)UINT32_MAX + 1});
    cr_assert_eq(out.status, KVB_ERR_TOO_LARGE);
    cr_assert_eq(out.len, 0);
    kvb_writer_cleanup(&out);
}

Test(wire, a_reader_gives_zeros_after_the_first_error)
{
    struct kvb_reader in;
    kvb_reader_init(&in, "\1\1\1\1\1\1\1", 7);
    cr_assert_eq(kvb_get_u64(&in), 0);
    cr_assert_eq(kvb_get_u8(&in), 0);
    cr_assert_eq(kvb_get_span(&in, 10).len, 0);
    cr_assert_null(kvb_get_span(&in, 10).data);
    struct kvb_id id = kvb_get_id(&in);
    cr_assert(kvb_id_none(id));
    char text[4] = "abc";
    kvb_get_str(&in, text, sizeof text);
    cr_assert_str_eq(text, "");
    cr_assert_eq(kvb_get_count(&in, 10, 0), 0);
    cr_assert_eq(kvb_reader_finish(&in), KVB_ERR_PROTOCOL);
}

Test(wire, half_an_id_is_no_id)
{
    struct kvb_reader in;
    kvb_reader_init(&in, "\1\1\1\1\1\1\1\1\1\1", 10);
    cr_assert(kvb_id_none(kvb_get_id(&in)));
}

Test(wire, spans_texts_and_counts_are_judged)
{
    struct kvb_reader in;
    kvb_reader_init(&in, "\3\0\0\0abc", 7);
    cr_assert_eq(kvb_get_span(&in, 2).len, 0); /* over the limit */
    cr_assert_eq(in.status, KVB_ERR_PROTOCOL);
    kvb_reader_init(&in, "\4\0\0\0abc", 7);
    cr_assert_eq(kvb_get_span(&in, 9).len, 0); /* more than there is */
    cr_assert_eq(in.status, KVB_ERR_PROTOCOL);
    char text[4];
    kvb_reader_init(&in, "\3\0\0\0abc", 7);
    kvb_get_str(&in, text, 4);
    cr_assert_str_eq(text, "abc");
    kvb_reader_init(&in, "\3\0\0\0abc", 7);
    kvb_get_str(&in, text, 3);
    cr_assert_eq(in.status, KVB_ERR_PROTOCOL);
    kvb_reader_init(&in, "\3\0\0\0a\0c", 7);
    kvb_get_str(&in, text, 4);
    cr_assert_eq(in.status, KVB_ERR_PROTOCOL);
    kvb_reader_init(&in, "\2", 1);
    cr_assert_not(kvb_get_bool(&in));
    cr_assert_eq(in.status, KVB_ERR_PROTOCOL);
    kvb_reader_init(&in, "\2\0\0\0abcdef", 10);
    cr_assert_eq(kvb_get_count(&in, 2, 3), 2);
    kvb_reader_init(&in, "\2\0\0\0abcde", 9);
    cr_assert_eq(kvb_get_count(&in, 2, 3), 0); /* the rest cannot hold two */
    kvb_reader_init(&in, "\2\0\0\0abcdef", 10);
    cr_assert_eq(kvb_get_count(&in, 1, 3), 0);
    kvb_reader_init(&in, "\1", 1);
    cr_assert_eq(kvb_reader_finish(&in), KVB_ERR_PROTOCOL); /* left over */
    kvb_reader_init(&in, NULL, 0);
    cr_assert_eq(kvb_reader_finish(&in), KVB_OK);
}

Test(utf8, sequences_are_judged_by_rfc_3629)
{
    static const struct {
        const char *text;
        size_t len;
        size_t wanted;
    } cases[] = {
        {"a", 1, 1},
        {"\0", 1, 1},
        {"\x7f", 1, 1},
        {"\x80", 1, 0},             /* a continuation */
        {"\xc0\x80", 2, 0},         /* overlong NUL */
        {"\xc1\xbf", 2, 0},         /* overlong */
        {"\xc2\x80", 2, 2},         /* U+0080 */
        {"\xc2", 1, 0},             /* cut */
        {"\xc2g", 2, 0},            /* no continuation */
        {"\xe0\x9f\xbf", 3, 0},     /* overlong */
        {"\xe0\xa0\x80", 3, 3},     /* U+0800 */
        {"\xed\x9f\xbf", 3, 3},     /* U+D7FF */
        {"\xed\xa0\x80", 3, 0},     /* a surrogate */
        {"\xee\x80\x80", 3, 3},     /* U+E000 */
        {"\xf0\x8f\xbf\xbf", 4, 0}, /* overlong */
        {"\xf0\x90\x80\x80", 4, 4}, /* U+10000 */
        {"\xf0\x90\x80", 3, 0},     /* cut */
        {"\xf4\x8f\xbf\xbf", 4, 4}, /* U+10FFFF */
        {"\xf4\x90\x80\x80", 4, 0}, /* over it */
        {"\xf5\x80\x80\x80", 4, 0},
        {"\xff", 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(kvb_utf8_sequence(cases[i].text, cases[i].len), cases[i].wanted, "case %zu",
                     i);
    }
}

Test(utf8, printable_text_has_no_control_characters)
{
    cr_assert(kvb_utf8_printable("", 0));
    cr_assert(kvb_utf8_printable("abc \xc3\xa9", 6));
    cr_assert_not(kvb_utf8_printable("a\nb", 3));
    cr_assert_not(kvb_utf8_printable("a\x7f", 2));
    cr_assert_not(kvb_utf8_printable("a\0b", 3));
    cr_assert_not(kvb_utf8_printable("a\xc3", 2));
}
