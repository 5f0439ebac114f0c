/* SPDX-License-Identifier: Apache-2.0 */
#include "base/percent.h"

#include "base/id.h"

kvb_status_t kvb_percent_decode(const char *text, size_t len, bool plus_is_space, char *out,
                                size_t cap)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '%') {
            int high = i + 1 < len ? kvb_hex_digit(text[i + 1]) : -1;
            int low = i + 2 < len ? kvb_hex_digit(text[i + 2]) : -1;
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
