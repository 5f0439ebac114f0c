/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_SERVICE_SPACES_H
#define STORE_SERVICE_SPACES_H

#include "share/names.h"
#include "wire/wire.h"

/*
 * What a share's names said lately about the spaces of questions, by their bytes as they travel: so
 * that the way of a request takes no lock that all share, and the whole space can travel with each
 * (some 60 bytes; a number given out per connection would save those, and cost a round trip after
 * each reconnect and a table on both sides). One thread.
 */
#define KVS_SPACES_CACHED 1024u

struct kvs_spaces {
    struct kvs_names *names;
    uint64_t seed;
    struct kvs_cached_space {
        uint32_t len; /* 0: empty */
        uint32_t space, tenant;
        uint8_t packed[8 + KVS_WIRE_TENANT_MAX + KVS_WIRE_LAYOUT_MAX];
    } * cached;
};

/* NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_spaces_init(struct kvs_spaces *spaces, struct kvs_names *names,
                                          const struct kvb_random *random);
void kvs_spaces_cleanup(struct kvs_spaces *spaces);
/* The space of an unpacked question. make: give out a number if it has none; else NOT_FOUND. LIMIT,
 * NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_spaces_find(struct kvs_spaces *spaces, const struct kvs_ask *ask,
                                          bool make, struct kvs_core_where *where_p);

#endif
