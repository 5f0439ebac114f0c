/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

size_t kvb_utf8_sequence(const char *text, size_t len)
{
    unsigned char first = (unsigned char)text[0];
    if (first < 0x80) {
        return 1;
    }
    size_t need = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || need > len) {
        return 0;
    }
    uint32_t code = first & (0xffu >> (need + 1));
    for (size_t i = 1; i < need; i++) {
        unsigned char next = (unsigned char)text[i];
        if ((next & 0xc0) != 0x80) {
            return 0;
        }
        code = code << 6 | (next & 0x3f);
    }
    static const uint32_t least[] = {[2] = 0x80, [3] = 0x800, [4] = 0x10000};
    bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < least[need] || code > 0x10ffff || surrogate ? 0 : need;
}

void kvb_utf8_clean(char *text)
{
    size_t len = strlen(text);
    for (size_t i = 0; i < len;) {
        size_t n = kvb_utf8_sequence(text + i, len - i);
        unsigned char first = (unsigned char)text[i];
        bool c1 = n == 2 && first == 0xc2 && (unsigned char)text[i + 1] < 0xa0;
        if (n == 0 || c1 || first < 0x20 || first == 0x7f) {
            n = n == 0 ? 1 : n;
            memset(text + i, '?', n);
        }
        i += n;
    }
}

bool kvb_utf8_printable(const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = kvb_utf8_sequence(text + i, len - i);
        if (n == 0 || (unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
            return false;
        }
        i += n;
    }
    return true;
}
