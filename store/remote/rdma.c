/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/rdma.h"

#include "store/service.h"

static kvb_status_t create(struct kvt_regions *regions, const void *config,
                           const struct kvt_peer_ops *ops, void *ctx,
                           struct kvt_transport **transport_p)
{
    struct kvt_rdma_peer_config peer = *(const struct kvt_rdma_peer_config *)config;
    peer.ops = ops;
    peer.ctx = ctx;
    return kvt_rdma_peer_create(regions, &peer, transport_p);
}

const struct kvs_carrier kvs_by_rdma = {
    .name = "rdma",
    .create = create,
    .stats = kvt_rdma_peer_stats,
};
