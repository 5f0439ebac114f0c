/* SPDX-License-Identifier: Apache-2.0 */
#include "spaces.h"

#include <xxhash.h>

#include <stdlib.h>
#include <string.h>

kvb_status_t kvs_spaces_init(struct kvs_spaces *spaces, struct kvs_names *names,
                             const struct kvb_random *random)
{
    *spaces = (struct kvs_spaces){.names = names};
    random->fill(random->ctx, &spaces->seed, sizeof spaces->seed);
    spaces->cached = calloc(KVS_SPACES_CACHED, sizeof *spaces->cached);
    return spaces->cached == NULL ? KVB_ERR_NO_MEMORY : KVB_OK;
}

void kvs_spaces_cleanup(struct kvs_spaces *spaces)
{
    free(spaces->cached);
}

static kvb_status_t ask_names(struct kvs_names *names, const struct kvs_ask *ask, bool make,
                              struct kvs_cached_space *found)
{
    struct kvs_space space = {0};
    memcpy(space.tenant, ask->space.tenant.data, ask->space.tenant.len);
    if (ask->space.layout.len > 0) {
        memcpy(space.layout, ask->space.layout.data, ask->space.layout.len);
    }
    return make ? kvs_names_space(names, &space, &found->space, &found->tenant)
                : kvs_names_find_space(names, &space, &found->space, &found->tenant);
}

kvb_status_t kvs_spaces_find(struct kvs_spaces *spaces, const struct kvs_ask *ask, bool make,
                             struct kvs_core_where *where_p)
{
    struct kvb_span packed = ask->space.packed;
    uint64_t hash = XXH3_64bits_withSeed(packed.data, packed.len, spaces->seed);
    struct kvs_cached_space *cached = &spaces->cached[hash % KVS_SPACES_CACHED];
    if (cached->len != packed.len || memcmp(cached->packed, packed.data, packed.len) != 0) {
        struct kvs_cached_space found = {.len = (uint32_t)packed.len};
        kvb_status_t status = ask_names(spaces->names, ask, make, &found);
        if (status != KVB_OK) {
            return status;
        }
        memcpy(found.packed, packed.data, packed.len);
        *cached = found;
    }
    *where_p = (struct kvs_core_where){cached->space, cached->tenant, ask->lineage};
    return KVB_OK;
}
