/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_TCP_H
#define TRANSPORT_TCP_H

#include "transport/net.h"
#include "transport/peer.h"
#include "transport/transport.h"

/*
 * Transfers to a node behind TCP connections (DESIGN.md section 6).
 *
 * A peer is one node as this process sees it: a kvt_transport over at most `lanes` connections,
 * which stay, are pipelined, and come back by themselves after they broke. A question with its body
 * goes to the node as one frame, its answer with its body comes back as one; bodies go straight
 * from and to region memory (small ones through the lane's buffer). Each body ends in a trailer:
 * verdict (ok or abandoned) and checksum; a node keeps, and a get succeeds, only on ok and the
 * right checksum. No address of anybody's memory travels.
 *
 * Cancelling, or a deadline: the transfer's remaining bytes are diverted (receiving) or replaced by
 * zeros and the body is abandoned (sending), and the lane is kept. A lane on which a peer breaks
 * the protocol, or is silent for longer than the bound, is closed; the transfers on it fail
 * with DISCONNECTED and nobody else's.
 */

#define KVT_TCP_VERSION     1u
#define KVT_TCP_VERSION_MIN 1u

/* ---- the side that asks ---- */

struct kvt_tcp_peer_config {
    struct kvt_peer_common common;
    const char *address;     /* copied */
    uint32_t lanes;          /* 1 to 4; 0: 4. Opened when there is work for them; one always, and
                                that one keeps free of large bodies while there are others */
    uint32_t in_flight_max;  /* transfers; 0: 1,024 */
    uint64_t bytes_max;      /* of their bodies together; 0: 256 MiB; a single one always goes */
    uint32_t backoff_ms;     /* first wait before connecting again; 0: 50 */
    uint32_t backoff_max_ms; /* the waits double up to it, each with jitter; 0: 2,000 */
    uint32_t idle_ms;        /* a lane but the first is closed after it; 0: 60,000 */
    const struct kvt_peer_ops *ops;
    void *ctx;
};

/* While it is down, kvt_transfer_start answers UNAVAILABLE at once (and, in the first hello_ms of
 * its life, until connecting has failed, takes the transfer and waits); TOO_LARGE: a question
 * beyond ask_max, or a body beyond KVT_BODY_MAX. A transfer ends with the status that the node
 * answered it with. It begins to connect by itself; up() and down() come later, never inside a
 * call. INVALID, NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvt_tcp_peer_create(struct kvt_regions *regions,
                                              const struct kvt_tcp_peer_config *config,
                                              struct kvt_transport **transport_p);

/* The node is elsewhere now: the next connection goes there, at once if none stands. INVALID,
 * NO_MEMORY: all as before. */
KVB_MUST_USE kvb_status_t kvt_tcp_peer_set_address(struct kvt_transport *transport,
                                                   const char *address);

void kvt_tcp_peer_stats(const struct kvt_transport *transport, struct kvt_peer_stats *stats_p);

/* ---- the side that is asked ---- */

/*
 * The lanes of one I/O thread of a node. A lane belongs to the thread that adopted it: it parses
 * its requests, answers them, and moves their bytes. Requests of one lane are begun in order.
 */
struct kvt_tcp_server;

struct kvt_tcp_server_config {
    struct kvt_peer_common common;
    struct kvb_sched *sched;
    const char *name; /* of the node; at most 63 bytes */
    uint64_t incarnation;
    uint32_t lanes_max;      /* admitted ones, of this server; 0: 1,024 */
    uint32_t lanes_each_max; /* of these, from one remote address; 0: 64 */
    uint32_t strangers_max;  /* not admitted yet, beside those; when one more comes the oldest goes;
                                0: 64 */
    uint32_t requests_max;   /* of one lane, not answered; its socket is not read beyond; 0: 256 */
    const struct kvt_server_ops *ops;
    void *ctx;
};

KVB_MUST_USE kvb_status_t kvt_tcp_server_create(const struct kvt_tcp_server_config *config,
                                                struct kvt_tcp_server **server_p);
/* Closes every lane (gone, closed). NULL: nothing. */
void kvt_tcp_server_destroy(struct kvt_tcp_server *server);
/* An accepted connection; the descriptor is taken, and closed on a failure: LIMIT, NO_MEMORY, IO.
 */
KVB_MUST_USE kvb_status_t kvt_tcp_server_adopt(struct kvt_tcp_server *server, int fd);
void kvt_tcp_server_stats(const struct kvt_tcp_server *server, struct kvt_peer_stats *stats_p);

#endif
