/* SPDX-License-Identifier: Apache-2.0 */
#include "http/percent.h"

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

kvb_status_t kvp_percent_decode(const char *text, size_t len, bool plus_is_space, char *out,
                                size_t cap)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '%') {
            int high = i + 1 < len ? hex_digit(text[i + 1]) : -1;
            int low = i + 2 < len ? hex_digit(text[i + 2]) : -1;
            if (high < 0 || low < 0) {
                return KVB_ERR_INVALID;
            }
            c = (char)(high * 16 + low);
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        if (c == '\0') {
            return KVB_ERR_INVALID;
        }
        if (n + 1 >= cap) {
            return KVB_ERR_TOO_LARGE;
        }
        out[n++] = c;
    }
    out[n] = '\0';
    return KVB_OK;
}
