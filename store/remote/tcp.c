/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp.h"

#include "store/service.h"

static kvb_status_t create(struct kvt_regions *regions, const void *config,
                           const struct kvt_peer_ops *ops, void *ctx,
                           struct kvt_transport **transport_p)
{
    struct kvt_tcp_peer_config peer = *(const struct kvt_tcp_peer_config *)config;
    peer.ops = ops;
    peer.ctx = ctx;
    return kvt_tcp_peer_create(regions, &peer, transport_p);
}

const struct kvs_carrier kvs_by_tcp = {
    .name = "tcp",
    .create = create,
    .stats = kvt_tcp_peer_stats,
};
