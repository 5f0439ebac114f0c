/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_NODE_SERVER_H
#define SERVER_NODE_SERVER_H

#include "base/io.h"
#include "base/sched.h"
#include "store/service.h"

/*
 * A share served to other processes: listeners (tcp, and rdma where there is a device) on its
 * owner's loop, which hand accepted connections in turn to threads, each with a loop and a
 * kvs_service of its own over the one share. A connection stays with its thread. Owner's loop
 * thread only, unless said otherwise.
 */
struct kvp_server;

struct kvp_server_config {
    struct kvb_sched *sched; /* of the owner's loop */
    struct kvb_io *io;
    struct kvs_share *share;
    int listener; /* listens, does not block; taken on OK */
    /* NULL: tcp alone. The share's memory is registered with it. */
    struct kvt_rdma_device *rdma;
    const char *rdma_listen; /* HOST:PORT; HOST an address */
    bool rdma_must;          /* else tcp alone will do, if nothing can listen there */
    uint32_t threads;
    struct kvt_peer_common common; /* net: each thread's own */
    const char *name;              /* of the node; copied */
    uint64_t incarnation;
    uint64_t ticket_ms, hold_ms;
    uint32_t lanes_max, lanes_each_max; /* of each thread */
    struct kvb_metrics *metrics;        /* of kvp_metric_table; NULL: nothing is counted */
};

/* NO_MEMORY, LIMIT (threads, descriptors, the device's queues), IO; BUSY, UNAVAILABLE, INVALID
 * (rdma_listen, if it must be); logged. */
KVB_MUST_USE kvb_status_t kvp_server_create(const struct kvp_server_config *config,
                                            struct kvp_server **server_p);
/* No new objects are taken; lookups and gets go on. Idempotent. */
void kvp_server_drain(struct kvp_server *server);
/* Any thread. Requests of peers that are not answered yet. */
uint32_t kvp_server_running(const struct kvp_server *server);
/* That rdma_listen got; 0: there is no device. */
uint16_t kvp_server_rdma_port(const struct kvp_server *server);
/* Any thread: of all threads, as they were a moment ago. */
void kvp_server_stats(struct kvp_server *server, struct kvs_service_stats *stats_p);
/* Any thread: when the thread that is furthest behind last turned its loop (monotonic). */
uint64_t kvp_server_beat_ns(const struct kvp_server *server);
/* Any thread: the threads, and when the i-th, which is named io-I, last turned its loop. */
uint32_t kvp_server_threads(const struct kvp_server *server);
uint64_t kvp_server_thread_beat_ns(const struct kvp_server *server, uint32_t i);
/* Closes every connection and ends the threads, which takes a turn of each. NULL: nothing. */
void kvp_server_destroy(struct kvp_server *server);

#endif
