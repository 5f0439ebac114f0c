/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_STORAGE_H
#define SERVER_STORAGE_H

#include "cluster.h"
#include "config.h"
#include "loop.h"

#include "store/share.h"

/*
 * The store as the daemon reaches it, and what it gives to it. Alone: its own share and the
 * embedded coordinator. In a cluster (--etcd): the nodes that etcd knows, over TCP, with its own
 * share, if it has one, as one of them: reached without a socket here, and served to the others by
 * I/O threads of its own. Loop thread only.
 */
struct kvp_storage;

/* config is borrowed. Logged with its cause: INVALID, BUSY, IO, LIMIT, NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvp_storage_create(const struct kvp_config *config, struct kvp_loop *loop,
                                             struct kvb_metrics *metrics,
                                             struct kvp_storage **storage_p);
/* The loop was woken. */
void kvp_storage_woken(struct kvp_storage *storage);
/* Others place nothing in the own share any more; left, once, later: they have read what they
 * wanted, or share-drain-bound is over. False: nobody is served, left does not come. */
bool kvp_storage_leave(struct kvp_storage *storage, void (*left)(void *ctx), void *ctx);
/* Readers are waited for no longer; left does not come any more. */
void kvp_storage_hurry(struct kvp_storage *storage);
/* No batch is asked for any more: withdraws what is announced; stopped, once, later. */
void kvp_storage_stop(struct kvp_storage *storage, void (*stopped)(void *ctx), void *ctx);
/* Stopped, or the loop has not run; the members of the coordinator are closed. Who has asked
 * something of it hears of its end. NULL: nothing. */
void kvp_storage_destroy(struct kvp_storage *storage);

/* What carries questions to that node now: for metrics. */
const char *kvp_storage_transport(const struct kvp_storage *storage, struct kvs_node *node);
struct kvs_client *kvp_storage_client(struct kvp_storage *storage);
struct kvs_coordinator *kvp_storage_coordinator(struct kvp_storage *storage);
struct kvt_regions *kvp_storage_regions(struct kvp_storage *storage);
const struct kvp_server *kvp_storage_server(const struct kvp_storage *storage); /* NULL: none */
struct kvs_share *kvp_storage_share(struct kvp_storage *storage);               /* NULL: none */
struct kvp_cluster *kvp_storage_cluster(struct kvp_storage *storage);
/* With which an RDMA device is to reach GPU memory; NULL: it is not. */
const struct kvt_cuda_direct *kvp_storage_gpu_rdma(const struct kvp_storage *storage);

#endif
