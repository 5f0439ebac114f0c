/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_SERVICE_SERVICE_H
#define STORE_SERVICE_SERVICE_H

/*
 * A share served to others, inside: questions that the index alone answers (service.c), puts and
 * gets (op.c). Loop thread only, but for the share and what says `any thread`. A session is one
 * lane's.
 */
#include "share/share_impl.h"
#include "spaces.h"
#include "wire/wire.h"

#include "store/service.h"

#include <sys/uio.h>

struct kvs_service {
    struct kvb_sched *sched;
    struct kvs_share *share;
    struct kvt_tcp_server *tcp;
    struct kvt_rdma_server *rdma; /* NULL: none */
    struct kvs_counts counts;
    struct kvs_spaces spaces;
    struct kvs_scrubs scrubs;
    uint64_t ticket_ns;
    uint64_t hold_ns;
    atomic_bool draining; /* any thread */
    atomic_uint running;  /* operations; any thread reads */

    /* operations */
    struct kvb_list idle;
    struct kvb_list waiting; /* puts for which room is being made */
    struct kvb_event make_room;

    /* room to work in, for one request at a time */
    struct kvs_ask ask;
    struct kvs_lookup lookup;
    struct kvs_wire_item items[KVS_WIRE_ITEMS_MAX];
    struct kvs_wire_tenants tenants;
    struct kvs_list list;
    struct kvb_writer answer;
    struct iovec *iovecs;
    uint32_t iovecs_cap;
};
_Static_assert(KVS_WIRE_ITEMS_MAX <= KVS_LOOKUP_STEP, "a question is one step");

struct kvs_lane {
    struct kvs_service *service;
    uint64_t session;
};

/* Begins a put or a get; it answers the request by itself. ask: the service's. */
void kvs_serve_put(struct kvs_service *service, struct kvt_request *request,
                   const struct kvs_core_where *where);
void kvs_serve_get(struct kvs_service *service, struct kvt_request *request,
                   const struct kvs_core_where *where);
/* kvt_server_ops, of requests that one of these began. */
void kvs_serve_received(void *ctx, struct kvt_request *request, kvb_status_t status,
                        uint64_t checksum);
kvb_status_t kvs_serve_sent(void *ctx, struct kvt_request *request);
void kvs_serve_gone(void *ctx, struct kvt_request *request);

void kvs_serve_init(struct kvs_service *service);
void kvs_serve_cleanup(struct kvs_service *service); /* nothing runs */

#endif
