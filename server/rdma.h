/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_RDMA_H
#define SERVER_RDMA_H

#include "cluster_keys.h"

#include "base/io.h"
#include "base/metrics.h"
#include "base/sched.h"
#include "store/share.h"
#include "transport/rdma.h"

/*
 * RDMA in this process, as its key `transport` wants it: `rdma` must be there, or the process does
 * not start; under `auto` it is used where it can be, and the log says once whether it is; else
 * nothing is asked for. Loop thread only.
 */
#define KVP_RDMA_ADDRESS_MAX 64
struct kvp_rdma {
    struct kvt_rdma_config config;  /* that was asked for; strings are the program's config's */
    struct kvt_rdma_device *device; /* NULL: tcp carries everything */
    bool only;                      /* tcp is not to be used in its place */
    /* The own share, once it is registered; NULL: it is not served by rdma. */
    struct kvt_rdma_share *share;
    uint64_t share_bytes;
    char listen[KVP_RDMA_ADDRESS_MAX]; /* where it is to be served: HOST:PORT */
    char host[KVP_RDMA_ADDRESS_MAX];   /* by which others reach it there */
};

/* Under `rdma`, what kvt_rdma_device_open() says; else OK. Logged. */
KVB_MUST_USE kvb_status_t kvp_rdma_open(const struct kvp_cluster_config *config,
                                        struct kvb_sched *sched, struct kvb_io *io,
                                        struct kvp_rdma *rdma_p);
/* Registers the share, which pins all of its memory until the close, and finds out where to serve
 * it. A failure is one only under `rdma`; else share stays NULL. Logged. */
KVB_MUST_USE kvb_status_t kvp_rdma_serve(struct kvp_rdma *rdma,
                                         const struct kvp_cluster_config *config,
                                         const struct kvs_share *share);
/* The address for others of what is served at that port; 0: "". */
void kvp_rdma_address(const struct kvp_rdma *rdma, uint16_t port, char out[KVP_RDMA_ADDRESS_MAX]);
/* Nothing uses it any more. Zeroed, or closed: nothing. */
void kvp_rdma_close(struct kvp_rdma *rdma);

/* The families RDMA_*. At a scrape; any thread. */
void kvp_rdma_collect(const struct kvp_rdma *rdma, struct kvb_metrics *metrics);

#endif
