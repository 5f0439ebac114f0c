/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport in a program that was built without its libraries: no device ever opens, so nothing
 * that needs one is ever called.
 */
#include "base/assert.h"
#include "transport/rdma.h"

#include <stdio.h>

kvb_status_t kvt_rdma_device_open(const struct kvt_rdma_config *config, struct kvb_sched *sched,
                                  struct kvb_io *io, struct kvt_rdma_device **device_p,
                                  char reason[KVT_RDMA_REASON_MAX])
{
    (void)config, (void)sched, (void)io, (void)device_p;
    (void)snprintf(reason, KVT_RDMA_REASON_MAX,
                   "this program was built without RDMA (libibverbs, librdmacm)");
    return KVB_ERR_UNSUPPORTED;
}

void kvt_rdma_device_close(struct kvt_rdma_device *device)
{
    kvb_assert(device == NULL);
}

void kvt_rdma_device_info(const struct kvt_rdma_device *device, struct kvt_rdma_info *info_p)
{
    (void)device, (void)info_p;
    KVB_UNREACHABLE("no device was opened");
}

bool kvt_rdma_device_dead(const struct kvt_rdma_device *device)
{
    (void)device;
    KVB_UNREACHABLE("no device was opened");
}

bool kvt_rdma_device_port_up(const struct kvt_rdma_device *device)
{
    (void)device;
    KVB_UNREACHABLE("no device was opened");
}

uint64_t kvt_rdma_device_count(const struct kvt_rdma_device *device, enum kvt_rdma_cause cause)
{
    (void)device, (void)cause;
    KVB_UNREACHABLE("no device was opened");
}

kvb_status_t kvt_rdma_share_register(struct kvt_rdma_device *device, void *base, uint64_t len,
                                     struct kvt_rdma_share **share_p,
                                     char reason[KVT_RDMA_REASON_MAX])
{
    (void)device, (void)base, (void)len, (void)share_p, (void)reason;
    KVB_UNREACHABLE("no device was opened");
}

void kvt_rdma_share_unregister(struct kvt_rdma_share *share)
{
    kvb_assert(share == NULL);
}

kvb_status_t kvt_rdma_memory_create(struct kvt_rdma_device *device, struct kvt_regions *regions,
                                    struct kvt_rdma_memory **memory_p)
{
    (void)device, (void)regions, (void)memory_p;
    KVB_UNREACHABLE("no device was opened");
}

void kvt_rdma_memory_destroy(struct kvt_rdma_memory *memory)
{
    kvb_assert(memory == NULL);
}

void kvt_rdma_memory_optional(struct kvt_rdma_memory *memory)
{
    (void)memory;
}

const char *kvt_rdma_memory_reason(const struct kvt_rdma_memory *memory)
{
    (void)memory;
    KVB_UNREACHABLE("no device was opened");
}

void kvt_rdma_memory_stats(const struct kvt_rdma_memory *memory,
                           struct kvt_rdma_memory_stats *stats_p)
{
    (void)memory, (void)stats_p;
    KVB_UNREACHABLE("no device was opened");
}

kvb_status_t kvt_rdma_peer_create(struct kvt_regions *regions,
                                  const struct kvt_rdma_peer_config *config,
                                  struct kvt_transport **transport_p)
{
    (void)regions, (void)config, (void)transport_p;
    KVB_UNREACHABLE("no device was opened");
}

kvb_status_t kvt_rdma_peer_set_address(struct kvt_transport *transport, const char *address)
{
    (void)transport, (void)address;
    KVB_UNREACHABLE("no device was opened");
}

void kvt_rdma_peer_stats(const struct kvt_transport *transport, struct kvt_peer_stats *stats_p)
{
    (void)transport, (void)stats_p;
    KVB_UNREACHABLE("no device was opened");
}

kvb_status_t kvt_rdma_server_create(const struct kvt_rdma_server_config *config,
                                    struct kvt_rdma_server **server_p)
{
    (void)config, (void)server_p;
    KVB_UNREACHABLE("no device was opened");
}

void kvt_rdma_server_destroy(struct kvt_rdma_server *server)
{
    kvb_assert(server == NULL);
}

kvb_status_t kvt_rdma_server_adopt(struct kvt_rdma_server *server, struct kvt_rdma_conn *conn)
{
    (void)server, (void)conn;
    KVB_UNREACHABLE("no device was opened");
}

void kvt_rdma_server_stats(const struct kvt_rdma_server *server, struct kvt_peer_stats *stats_p)
{
    (void)server, (void)stats_p;
    KVB_UNREACHABLE("no device was opened");
}

kvb_status_t kvt_rdma_listener_create(const struct kvt_rdma_listener_config *config,
                                      struct kvt_rdma_listener **listener_p,
                                      char reason[KVT_RDMA_REASON_MAX])
{
    (void)config, (void)listener_p, (void)reason;
    KVB_UNREACHABLE("no device was opened");
}

void kvt_rdma_listener_destroy(struct kvt_rdma_listener *listener)
{
    kvb_assert(listener == NULL);
}

uint16_t kvt_rdma_listener_port(const struct kvt_rdma_listener *listener)
{
    (void)listener;
    KVB_UNREACHABLE("no device was opened");
}

void kvt_rdma_conn_drop(struct kvt_rdma_conn *conn)
{
    (void)conn;
    KVB_UNREACHABLE("no device was opened");
}
