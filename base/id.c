/* SPDX-License-Identifier: Apache-2.0 */
#include "base/id.h"

#include <inttypes.h>
#include <stdio.h>

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
    snprintf(out, KVB_ID_HEX_LEN + 1, "%016" PRIx64 "%016" PRIx64, id.hi, id.lo);
}
