/* SPDX-License-Identifier: Apache-2.0 */
#include "extents.h"

#include <stdlib.h>

void kvs_extents_init(struct kvs_extents *extents)
{
    extents->at = extents->few;
    extents->n = 0;
    extents->cap = KVS_EXTENTS_INLINE;
}

void kvs_extents_cleanup(struct kvs_extents *extents)
{
    if (extents->at != extents->few) {
        free(extents->at);
    }
    kvs_extents_init(extents);
}

kvb_status_t kvs_extents_append(struct kvs_extents *extents, uint64_t offset, uint64_t len)
{
    if (extents->n > 0) {
        struct kvs_extent *last = &extents->at[extents->n - 1];
        if (last->offset + last->len == offset) {
            last->len += len;
            return KVB_OK;
        }
    }
    if (extents->n == extents->cap) {
        uint32_t cap = extents->cap * 4;
        struct kvs_extent *at = malloc(cap * sizeof *at);
        if (at == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        for (uint32_t i = 0; i < extents->n; i++) {
            at[i] = extents->at[i];
        }
        if (extents->at != extents->few) {
            free(extents->at);
        }
        extents->at = at;
        extents->cap = cap;
    }
    extents->at[extents->n++] = (struct kvs_extent){.offset = offset, .len = len};
    return KVB_OK;
}
