/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDMA_CONN_H
#define RDMA_CONN_H

#include "verbs.h"
#include "wire.h"

/* A connection between the listener that took it and the server that accepts it. Any thread, one
 * at a time. */

/* Who asks, as text without port. */
void rconn_from(const struct kvt_rdma_conn *conn, char *out, size_t cap);
/* What it asks for. PROTOCOL: nothing of ours. */
KVB_MUST_USE kvb_status_t rconn_wants(const struct kvt_rdma_conn *conn,
                                      struct rwire_connect *wants_p);
/* Its identifier, whose events are heard on that channel from now on, with that context. The
 * connection is over, whatever comes of it. */
KVB_MUST_USE kvb_status_t rconn_take(struct kvt_rdma_conn *conn, struct rdma_event_channel *channel,
                                     void *context, struct rdma_cm_id **id_p);
void rconn_reject(struct kvt_rdma_conn *conn, kvb_status_t why);

#endif
