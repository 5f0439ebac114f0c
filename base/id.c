/* SPDX-License-Identifier: Apache-2.0 */
#include "base/id.h"

struct kvb_id kvb_id_draw(const struct kvb_random *random)
{
    struct kvb_id id;
    do {
        random->fill(random->ctx, &id, sizeof id);
    } while (kvb_id_none(id));
    return id;
}

void kvb_id_format(struct kvb_id id, char out[KVB_ID_HEX_LEN + 1])
{
    for (int i = 0; i < KVB_ID_HEX_LEN / 2; i++) {
        int shift = 60 - 4 * i;
        out[i] = "0123456789abcdef"[id.hi >> shift & 15];
        out[i + KVB_ID_HEX_LEN / 2] = "0123456789abcdef"[id.lo >> shift & 15];
    }
    out[KVB_ID_HEX_LEN] = '\0';
}

int kvb_hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

bool kvb_id_parse(const char *hex, size_t len, struct kvb_id *id_p)
{
    struct kvb_id id = {0, 0};
    if (len != KVB_ID_HEX_LEN) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        int digit = kvb_hex_digit(hex[i]);
        if (digit < 0) {
            return false;
        }
        uint64_t *half = i < KVB_ID_HEX_LEN / 2 ? &id.hi : &id.lo;
        *half = *half << 4 | (unsigned)digit;
    }
    *id_p = id;
    return true;
}
