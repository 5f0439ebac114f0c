/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDMA_DEVICE_H
#define RDMA_DEVICE_H

#include "verbs.h"
#include "watch.h"

#include "transport/rdma.h"

#include <stdatomic.h>

/*
 * A device, inside. Immutable once open, but for what is said to be atomic, and the list of the
 * node's registrations, which does not change while servers run.
 */
#define RDEV_MESSAGE_BYTES 4096u /* of a packet; what a receive has room for */
#define RDEV_MTU_UNSAID    1024u /* the path's, if the other end does not say its own */

struct kvt_rdma_device {
    const struct kvt_verbs *verbs;
    struct kvt_rdma_config config; /* with defaults filled in, as far as they are of both ends */
    struct kvt_rdma_info info;
    struct ibv_context *context;
    struct ibv_device_attr attr;
    struct ibv_port_attr port;
    struct ibv_pd *pd;
    struct sockaddr_storage source; /* ss_family 0: the network's choice */
    uint32_t sge_read;              /* pieces of memory in a READ */
    struct kvb_list shares;

    struct kvb_sched *sched;
    struct kvb_io *io;
    struct rwatch async;

    atomic_bool dead;
    atomic_bool port_up;
    atomic_ullong counts[KVT_RDMA_CAUSES_N]; /* relaxed: nothing hangs on their order */
};

void rdev_count(struct kvt_rdma_device *device, enum kvt_rdma_cause cause);
/* It is gone, or broken: for good. */
void rdev_die(struct kvt_rdma_device *device, const char *why);

/* Status of this process for an errno that a call of the libraries left. */
kvb_status_t rdev_status(int error);

/* A remote key for iovecs' bytes: the registration they lie in; NULL: none (all of it). */
const struct kvt_rdma_share *rdev_share_of(const struct kvt_rdma_device *device, const void *base,
                                           uint64_t len);
uint32_t rshare_key(const struct kvt_rdma_share *share);

/* HOST:PORT with a numeric host. INVALID. */
KVB_MUST_USE kvb_status_t rdev_address_parse(const char *text, struct sockaddr_storage *address_p);
void rdev_address_text(const struct sockaddr *address, char *out, size_t cap);

/* IBV_MTU_* of so many bytes; 0: there is none of that size. And back. */
enum ibv_mtu rdev_mtu(uint32_t bytes);
uint32_t rdev_mtu_bytes(enum ibv_mtu mtu);

#endif
