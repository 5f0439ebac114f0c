/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_PEER_H
#define TRANSPORT_PEER_H

#include "base/list.h"
#include "base/status.h"
#include "base/wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * What a node behind connections is, whatever carries them (tcp, rdma): the two sides of a lane,
 * the requests that arrive on it, and what both sides agree on. The node of the store is written
 * against this file; what carries its requests it does not know.
 */
struct kvt_net;

#define KVT_ASK_MAX    (1u << 20) /* bytes of a question, and of an answer */
#define KVT_BODY_MAX   (1ull << 30)
#define KVT_SECRET_MAX 256u
#define KVT_TYPE_MAX   0xfeffu /* of a question; types beyond are the transport's own */

#define KVT_STALL_BYTES (64u << 10)

/* ---- what both sides agree on ---- */

/* Either side proves that it knows the secret before anything else is heard of it (challenge and
 * HMAC-SHA256, both ways); an empty one is a secret, too. Version: the highest that both know;
 * features: those that both have. */
struct kvt_peer_common {
    struct kvt_net *net; /* of tcp; borrowed */
    uint8_t secret[KVT_SECRET_MAX];
    uint32_t secret_len;
    uint64_t features;   /* bits; the store's to name */
    uint32_t hello_ms;   /* handshake within; 0: 2,000 */
    uint32_t ping_ms;    /* a sign of life each, unless something else was sent; 0: 1,000, or a
                            third of the other side's silence_ms if that is less */
    uint32_t silence_ms; /* nothing heard for so long: the lane is dead; 0: 3,000 */
    uint32_t stall_ms;   /* a peer that is alive, but takes, or sends of a frame that it began, less
                            than KVT_STALL_BYTES in it: the lane is dead; 0: 10,000 */
    uint32_t ask_max;    /* 0: KVT_ASK_MAX; the same on both sides */
};

/* ---- the side that asks ---- */

struct kvt_hello { /* what the node said of itself in the handshake */
    char name[64];
    uint64_t incarnation; /* random for each life of the process */
    uint32_t version;
    uint64_t features;
};

struct kvt_peer_ops {
    /* The first lane is admitted; again after each outage. hello: valid during the call. */
    void (*up)(void *ctx, const struct kvt_hello *hello);
    /* The last lane is gone, or the node cannot be reached; why: REFUSED (secret or version),
     * UNAVAILABLE, TIMEOUT (it is silent), PROTOCOL, DISCONNECTED; or this process is short of
     * something: LIMIT (descriptors, local ports), NO_MEMORY, IO. Once per outage. */
    void (*down)(void *ctx, kvb_status_t why);
};

/* name, what it counts since create (of all lanes, also closed ones) */
#define KVT_PEER_COUNTERS(X)                                                                       \
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

struct kvt_peer_stats {
    bool up;
    uint32_t lanes;    /* admitted */
    uint64_t heard_ns; /* when something was last heard; 0: never */
#define X(name, what) uint64_t name;
    KVT_PEER_COUNTERS(X)
#undef X
};

/* ---- the side that is asked ---- */

/* Who is behind a lane. */
struct kvt_lane {
    const char *from;  /* no port; "": it does not say */
    uint64_t features; /* what both sides have of common.features */
};

struct kvt_request;
struct kvt_request_ops { /* a transport's; the calls below say what they do */
    void (*receive)(struct kvt_request *request, const struct iovec *to, uint32_t n);
    void (*answer)(struct kvt_request *request, kvb_status_t status, const void *answer,
                   uint32_t len);
    void (*answer_body)(struct kvt_request *request, const void *answer, uint32_t len,
                        const struct iovec *from, uint32_t n, uint64_t checksum);
};

/*
 * A request that arrived. The node answers each exactly once, with one of the three calls below,
 * inside request() or later; a lane that closes takes its requests along (gone).
 */
struct kvt_request {
    const struct kvt_request_ops *ops;
    uint16_t type;
    struct kvb_span ask;  /* valid until answered */
    uint64_t body_len;    /* of the question; 0: none */
    void *session;        /* of the lane */
    void *state;          /* the node's */
    struct kvb_list link; /* the node's */
};

struct kvt_server_ops { /* none of them inside kvt_receive, _answer or _answer_body */
    /* A lane was admitted. OK, or it is closed (and closed() does not come). */
    kvb_status_t (*opened)(void *ctx, const struct kvt_lane *lane, void **session_p);
    /* It is gone, after gone() for each of its requests: nothing of it touches the node's memory
     * any more. */
    void (*closed)(void *ctx, void *session);
    void (*request)(void *ctx, struct kvt_request *request);
    /* After kvt_receive(): OK, the body is there and its checksum was right; CHECKSUM; anything
     * else: it was abandoned, for that reason. To be answered (kvt_answer) inside or later. */
    void (*received)(void *ctx, struct kvt_request *request, kvb_status_t status,
                     uint64_t checksum);
    /* After kvt_answer_body(): all of its bytes have been copied from there. Not OK: they are
     * worth nothing, and the asker is told so, with that status. The request is over. */
    kvb_status_t (*sent)(void *ctx, struct kvt_request *request);
    /* The lane closed before the request was over: nothing is moved for it any more. The request is
     * over. */
    void (*gone)(void *ctx, struct kvt_request *request);
};

/* The question's body goes there, in order: iovecs of exactly body_len bytes (copied). Once, before
 * it is answered. NO_MEMORY comes as received(). */
static inline void kvt_receive(struct kvt_request *request, const struct iovec *to, uint32_t n)
{
    request->ops->receive(request, to, n);
}

/* Status (OK, not of a question with a body that was not received: asserted) and answer (copied; at
 * most ask_max), without a body. The body of a question that is refused early is diverted: nothing
 * touches where it was to go. The request is over. NO_MEMORY is sent as such, with an empty answer.
 */
static inline void kvt_answer(struct kvt_request *request, kvb_status_t status, const void *answer,
                              uint32_t len)
{
    request->ops->answer(request, status, answer, len);
}

/* OK, an answer (copied) and a body: iovecs (copied) that stay readable until sent() or gone().
 * checksum: XXH3-64 of the body, which the asker compares. */
static inline void kvt_answer_body(struct kvt_request *request, const void *answer, uint32_t len,
                                   const struct iovec *from, uint32_t n, uint64_t checksum)
{
    request->ops->answer_body(request, answer, len, from, n, checksum);
}

#endif
