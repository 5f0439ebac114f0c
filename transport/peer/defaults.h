/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PEER_DEFAULTS_H
#define PEER_DEFAULTS_H

#include "transport/peer.h"

static inline void kvt_default_u32(uint32_t *value, uint32_t otherwise)
{
    *value = *value != 0 ? *value : otherwise;
}

/* False: a value that is not allowed. */
static inline bool kvt_common_defaults(struct kvt_peer_common *common)
{
    kvt_default_u32(&common->hello_ms, 2000);
    kvt_default_u32(&common->ping_ms, 1000);
    kvt_default_u32(&common->silence_ms, 3000);
    kvt_default_u32(&common->stall_ms, 10000);
    kvt_default_u32(&common->ask_max, KVT_ASK_MAX);
    return common->secret_len <= KVT_SECRET_MAX && common->ask_max <= KVT_ASK_MAX;
}

#endif
