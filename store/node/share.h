/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_NODE_SHARE_H
#define STORE_NODE_SHARE_H

#include "names.h"

#include "base/mutex.h"
#include "store/core.h"
#include "store/node.h"

/* The one session of this process's own clients: their writers stop when their transfers end. */
#define KVS_LOCAL_SESSION 1

/* One shard. Its core is run by whoever holds the lock; bytes are moved without it. */
struct kvs_shard {
    struct kvb_mutex lock;
    struct kvs_core *core; /* guarded by lock */
    /* immutable */
    uint8_t *base;
    struct kvt_share *reach; /* the same range, as the transport reaches it */
};

/* The memory a node contributes, with its index. Immutable after init but for what is in it. */
struct kvs_share {
    uint8_t *memory;
    uint64_t bytes;
    uint32_t nshards;
    struct kvs_shard *shards;
    uint64_t seed; /* of the choice of a shard */
    struct kvs_names names;
};

KVB_MUST_USE kvb_status_t kvs_share_init(struct kvs_share *share, struct kvt_transport *transport,
                                         const struct kvb_random *random,
                                         const struct kvs_node_config *config);
void kvs_share_cleanup(struct kvs_share *share);

/* Of a key under a seed that stands for space and lineage (kvs_share_seed). */
struct kvs_shard *kvs_share_shard(const struct kvs_share *share, uint64_t seed,
                                  struct kvb_span key);
uint64_t kvs_share_seed(const struct kvs_share *share, const struct kvs_core_where *where);

#endif
