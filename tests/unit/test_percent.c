/* SPDX-License-Identifier: Apache-2.0 */
/* Names and ids as text: what is taken, and that nothing is written otherwise. */
#include "base/id.h"
#include "base/percent.h"

#include <criterion/criterion.h>

Test(percent, two_digits_of_either_case_are_a_byte_and_nothing_cuts_a_name_short)
{
    static const struct {
        const char *text;
        size_t len;
        bool plus_is_space;
        kvb_status_t status;
        const char *want;
    } cases[] = {
        {"", 0, false, KVB_OK, ""},
        {"plain-_.~", 9, false, KVB_OK, "plain-_.~"},
        {"a%2Fb%c3%BC", 11, false, KVB_OK, "a/b\xc3\xbc"},
        {"a+b", 3, false, KVB_OK, "a+b"},
        {"a+b%2b", 6, true, KVB_OK, "a b+"},
        {"%41%42", 3, false, KVB_OK, "A"}, /* no more than len */
        {"%4", 2, false, KVB_ERR_INVALID, NULL},
        {"%", 1, false, KVB_ERR_INVALID, NULL},
        {"%414", 2, false, KVB_ERR_INVALID, NULL},
        {"%g0", 3, false, KVB_ERR_INVALID, NULL},
        {"%0g", 3, false, KVB_ERR_INVALID, NULL},
        {"%%41", 4, false, KVB_ERR_INVALID, NULL},
        {"a%00b", 5, false, KVB_ERR_INVALID, NULL},
        {"a\0b", 3, false, KVB_ERR_INVALID, NULL},
        {"fifteen letters", 15, false, KVB_OK, "fifteen letters"},
        {"sixteen letters!", 16, false, KVB_ERR_TOO_LARGE, NULL},
        {"sixteen letters%41", 18, false, KVB_ERR_TOO_LARGE, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[16];
        kvb_status_t status = kvb_percent_decode(cases[i].text, cases[i].len,
                                                 cases[i].plus_is_space, out, sizeof out);
        cr_expect_eq(status, cases[i].status, "case %zu", i);
        if (status == KVB_OK) {
            cr_expect_str_eq(out, cases[i].want);
        }
    }
}

Test(id, what_was_formatted_is_parsed_and_nothing_else)
{
    static const char *const bad[] = {
        "",
        "0123456789abcdef0123456789abcde",
        "0123456789abcdef0123456789abcdef0",
        "0123456789abcdef0123456789abcdeg",
        "-123456789abcdef0123456789abcdef",
        "0x23456789abcdef0123456789abcdef",
        " 123456789abcdef0123456789abcdef",
    };
    struct kvb_id id = {0x0123456789abcdef, 0xfedcba9876543210}, parsed = {0, 0};
    char text[KVB_ID_HEX_LEN + 1];
    kvb_id_format(id, text);
    cr_assert(kvb_id_parse(text, strlen(text), &parsed));
    cr_assert(kvb_id_equal(parsed, id));
    cr_assert(kvb_id_parse("0123456789ABCDEFfedcba9876543210", KVB_ID_HEX_LEN, &parsed));
    cr_assert(kvb_id_equal(parsed, id));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect(!kvb_id_parse(bad[i], strlen(bad[i]), &parsed), "%s", bad[i]);
        cr_expect(kvb_id_equal(parsed, id), "outputs are written on success only");
    }
}
