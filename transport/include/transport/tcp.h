/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_TCP_H
#define TRANSPORT_TCP_H

#include "transport/net.h"
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

/* ---- what both sides agree on ---- */

#define KVT_TCP_VERSION     1u
#define KVT_TCP_VERSION_MIN 1u
#define KVT_TCP_ASK_MAX     (1u << 20) /* bytes of a question, and of an answer */
#define KVT_TCP_BODY_MAX    (1ull << 30)
#define KVT_TCP_SECRET_MAX  256u
#define KVT_TCP_TYPE_MAX    0xfeffu /* of a question; types beyond are the transport's own */

#define KVT_TCP_STALL_BYTES (64u << 10)

/* Either side proves that it knows the secret before anything else is heard of it (challenge and
 * HMAC-SHA256, both ways); an empty one is a secret, too. Version: the highest that both know;
 * features: those that both have. */
struct kvt_tcp_common {
    struct kvt_net *net; /* borrowed */
    uint8_t secret[KVT_TCP_SECRET_MAX];
    uint32_t secret_len;
    uint64_t features;   /* bits; the store's to name */
    uint32_t hello_ms;   /* handshake within; 0: 2,000 */
    uint32_t ping_ms;    /* a sign of life each, unless something else was sent; 0: 1,000, or a
                            third of the other side's silence_ms if that is less */
    uint32_t silence_ms; /* nothing heard for so long: the lane is dead; 0: 3,000 */
    uint32_t stall_ms;   /* a peer that is alive, but takes, or sends of a frame that it began, less
                            than KVT_TCP_STALL_BYTES in it: the lane is dead; 0: 10,000 */
    uint32_t ask_max;    /* 0: KVT_TCP_ASK_MAX; the same on both sides */
};

/* ---- the side that asks ---- */

struct kvt_tcp_hello { /* what the node said of itself in the handshake */
    char name[64];
    uint64_t incarnation; /* random for each life of the process */
    uint32_t version;
    uint64_t features;
};

struct kvt_tcp_peer_ops {
    /* The first lane is admitted; again after each outage. hello: valid during the call. */
    void (*up)(void *ctx, const struct kvt_tcp_hello *hello);
    /* The last lane is gone, or the node cannot be reached; why: REFUSED (secret or version),
     * UNAVAILABLE, TIMEOUT (it is silent), PROTOCOL, DISCONNECTED; or this process is short of
     * something: LIMIT (descriptors, local ports), NO_MEMORY, IO. Once per outage. */
    void (*down)(void *ctx, kvb_status_t why);
};

struct kvt_tcp_peer_config {
    struct kvt_tcp_common common;
    const char *address;     /* copied */
    uint32_t lanes;          /* 1 to 4; 0: 4. Opened when there is work for them; one always, and
                                that one keeps free of large bodies while there are others */
    uint32_t in_flight_max;  /* transfers; 0: 1,024 */
    uint64_t bytes_max;      /* of their bodies together; 0: 256 MiB; a single one always goes */
    uint32_t backoff_ms;     /* first wait before connecting again; 0: 50 */
    uint32_t backoff_max_ms; /* the waits double up to it, each with jitter; 0: 2,000 */
    uint32_t idle_ms;        /* a lane but the first is closed after it; 0: 60,000 */
    const struct kvt_tcp_peer_ops *ops;
    void *ctx;
};

/* While it is down, kvt_transfer_start answers UNAVAILABLE at once (and, in the first hello_ms of
 * its life, until connecting has failed, takes the transfer and waits); TOO_LARGE: a question
 * beyond ask_max, or a body beyond KVT_TCP_BODY_MAX. A transfer ends with the status that the node
 * answered it with. It begins to connect by itself; up() and down() come later, never inside a
 * call. INVALID, NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvt_tcp_peer_create(struct kvt_regions *regions,
                                              const struct kvt_tcp_peer_config *config,
                                              struct kvt_transport **transport_p);

/* The node is elsewhere now: the next connection goes there, at once if none stands. INVALID,
 * NO_MEMORY: all as before. */
KVB_MUST_USE kvb_status_t kvt_tcp_peer_set_address(struct kvt_transport *transport,
                                                   const char *address);

/* name, what it counts since create (of all lanes, also closed ones) */
#define KVT_TCP_COUNTERS(X)                                                                        \
    X(connects, "connections that were admitted")                                                  \
    X(connect_failures, "connections that could not be made or were not admitted")                 \
    X(disconnects, "connections lost after they were admitted")                                    \
    X(silences, "connections closed because the peer was silent")                                  \
    X(protocol_errors, "connections closed because the peer broke the protocol")                   \
    X(transfers, "transfers begun")                                                                \
    X(transfers_failed, "transfers that ended in an error of the transport")                       \
    X(abandoned, "bodies given up on the way")                                                     \
    X(checksums, "bodies that did not match their checksum")                                       \
    X(bytes_sent, "bytes written to sockets")                                                      \
    X(bytes_received, "bytes read from sockets")

struct kvt_tcp_stats {
    bool up;
    uint32_t lanes;    /* admitted */
    uint64_t heard_ns; /* when something was last heard; 0: never */
#define X(name, what) uint64_t name;
    KVT_TCP_COUNTERS(X)
#undef X
};
void kvt_tcp_peer_stats(const struct kvt_transport *transport, struct kvt_tcp_stats *stats_p);

/* ---- the side that is asked ---- */

/*
 * The lanes of one I/O thread of a node. A lane belongs to the thread that adopted it: it parses
 * its requests, answers them, and moves their bytes. Requests of one lane are begun in order.
 */
struct kvt_tcp_server;
struct kvt_tcp_lane;

/*
 * A request that arrived. The node answers each exactly once, with one of the three calls below,
 * inside request() or later; a lane that closes takes its requests along (gone).
 */
struct kvt_tcp_request {
    uint16_t type;
    struct kvb_span ask;  /* valid until answered */
    uint64_t body_len;    /* of the question; 0: none */
    void *session;        /* of the lane */
    void *state;          /* the node's */
    struct kvb_list link; /* the node's */
};

struct kvt_tcp_server_ops { /* none of them inside kvt_tcp_receive, _answer or _answer_body */
    /* A lane was admitted. OK, or it is closed (and closed() does not come). */
    kvb_status_t (*opened)(void *ctx, struct kvt_tcp_lane *lane, void **session_p);
    /* It is gone, after gone() for each of its requests: nothing of it touches the node's memory
     * any more. */
    void (*closed)(void *ctx, void *session);
    void (*request)(void *ctx, struct kvt_tcp_request *request);
    /* After kvt_tcp_receive(): OK, the body is there and its checksum was right; CHECKSUM; anything
     * else: it was abandoned, for that reason. To be answered (kvt_tcp_answer) inside or later. */
    void (*received)(void *ctx, struct kvt_tcp_request *request, kvb_status_t status,
                     uint64_t checksum);
    /* After kvt_tcp_answer_body(): all of its bytes have been copied from there. Not OK: they are
     * worth nothing, and the asker is told so, with that status. The request is over. */
    kvb_status_t (*sent)(void *ctx, struct kvt_tcp_request *request);
    /* The lane closed before the request was over: nothing is moved for it any more. The request is
     * over. */
    void (*gone)(void *ctx, struct kvt_tcp_request *request);
};

struct kvt_tcp_server_config {
    struct kvt_tcp_common common;
    struct kvb_sched *sched;
    const char *name; /* of the node; at most 63 bytes */
    uint64_t incarnation;
    uint32_t lanes_max;      /* of this server; 0: 1,024 */
    uint32_t lanes_each_max; /* from one remote address; 0: 64 */
    uint32_t requests_max;   /* of one lane, not answered; its socket is not read beyond; 0: 256 */
    const struct kvt_tcp_server_ops *ops;
    void *ctx;
};

KVB_MUST_USE kvb_status_t kvt_tcp_server_create(const struct kvt_tcp_server_config *config,
                                                struct kvt_tcp_server **server_p);
/* Closes every lane (gone, closed). NULL: nothing. */
void kvt_tcp_server_destroy(struct kvt_tcp_server *server);
/* An accepted connection; the descriptor is taken, and closed on a failure: LIMIT, NO_MEMORY, IO.
 */
KVB_MUST_USE kvb_status_t kvt_tcp_server_adopt(struct kvt_tcp_server *server, int fd);
void kvt_tcp_server_stats(const struct kvt_tcp_server *server, struct kvt_tcp_stats *stats_p);
/* What both sides have of common.features, and where it comes from (no port), for logs. */
uint64_t kvt_tcp_lane_features(const struct kvt_tcp_lane *lane);
const char *kvt_tcp_lane_from(const struct kvt_tcp_lane *lane);

/* The question's body goes there, in order: iovecs of exactly body_len bytes (copied). Once, before
 * it is answered. NO_MEMORY comes as received(). */
void kvt_tcp_receive(struct kvt_tcp_request *request, const struct iovec *to, uint32_t n);
/* Status (OK, not of a question with a body that was not received: asserted) and answer (copied; at
 * most ask_max), without a body. The body of a question that is refused early is diverted: nothing
 * touches where it was to go. The request is over. NO_MEMORY is sent as such, with an empty answer.
 */
void kvt_tcp_answer(struct kvt_tcp_request *request, kvb_status_t status, const void *answer,
                    uint32_t len);
/* OK, an answer (copied) and a body: iovecs (copied) that stay readable until sent() or gone().
 * checksum: XXH3-64 of the body, which the asker compares. */
void kvt_tcp_answer_body(struct kvt_tcp_request *request, const void *answer, uint32_t len,
                         const struct iovec *from, uint32_t n, uint64_t checksum);

#endif
