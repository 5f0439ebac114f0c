/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDMA_LANE_H
#define RDMA_LANE_H

#include "cause.h"
#include "end.h"
#include "wire.h"

#include <sys/uio.h>

/*
 * One connection and its queue pair, the same on both sides: messages, in order and of any length,
 * and the client's READs and WRITEs. What a message means is its owner's (peer.c, server.c), who is
 * told through rlane_ops.
 *
 * Sending: each posted work request has a slot in a ring that holds the send queue, in the order of
 * posting, which is that of completing. Only some are signalled; the completion of one gives back
 * every slot up to its own. Unsignalled ones in a row are fewer than a quarter of the queue, and of
 * the buffers half, so that one is under way whenever something is waited for; the last of a batch
 * of READs or WRITEs always is, so that its transfer's end is heard of. wr_id is the lane's
 * generation and the slot's number: what does not belong to a slot that is under way changes
 * nothing.
 *
 * Receiving: a packet is sent only where the other end said that it has room for it, all but the
 * last, which is kept for saying the same (CREDIT): so both can always go on.
 *
 * The end: whatever notices that a lane is lost only notes why. Then its queue pair is moved to
 * error, and what was posted comes back flushed; a queue pair whose work does not come back in time
 * is destroyed, which is synchronous. Only then the owner is told, last of all (lost): nothing of
 * it touches memory any more. Loop thread only.
 */
#define RLANE_STATES(X)                                                                            \
    X(CLOSED, "closed")         /* owns: nothing */                                                \
    X(RESOLVING, "resolving")   /* owns: id. waits for: the device of the address */               \
    X(ROUTING, "routing")       /* owns: id. waits for: a route */                                 \
    X(CONNECTING, "connecting") /* owns: id, queue pair. waits for: the other end's answer */      \
    X(ACCEPTED, "accepted")     /* owns: id, queue pair. waits for: the other end to have it */    \
    X(OPEN, "open")             /* owns: id, queue pair */                                         \
    X(FLUSHING, "flushing")     /* owns: id, queue pair. waits for: posted work to come back */
enum rlane_state {
#define X(name, text) RLANE_##name,
    RLANE_STATES(X)
#undef X
};

struct rlane;

struct rwork {            /* what is posted of one transfer */
    struct kvb_list link; /* lane.progressed */
    uint32_t posted;      /* work requests under way */
    uint64_t bytes;       /* of which the READs or WRITEs have come back, in order */
    kvb_status_t status;  /* OK, or why one of them failed */
};

struct rlane_ops {
    /* Connected: messages may go, of the handshake until rlane_admit(). */
    void (*opened)(struct rlane *lane);
    /* A message but ALIVE and CREDIT, whole (valid during the call). Not OK: the lane is lost. */
    kvb_status_t (*message)(struct rlane *lane, const struct kvb_frame *frame,
                            const uint8_t *payload);
    /* Some of its work has come back, or failed (then the lane is lost, too). NULL: none. */
    void (*work)(struct rlane *lane, struct rwork *work);
    /* Room for more work, perhaps. NULL: none. */
    void (*turn)(struct rlane *lane);
    /* The last thing of a lane, which is closed by then. */
    void (*lost)(struct rlane *lane, kvb_status_t why);
};

struct rlane_totals { /* of all lanes of an owner, also closed ones */
    uint64_t bytes_sent, bytes_received, heard_ns;
};

struct rslot {          /* of the send queue */
    struct rwork *work; /* NULL: a message */
    uint32_t bytes;     /* of work */
    int32_t buffer;     /* -1: none */
};

struct rmsg; /* waits to be sent */

struct rlane {
    /* immutable while open */
    const struct rlane_ops *ops;
    const struct kvt_peer_common *common; /* with its defaults filled in */
    struct rend *end;
    struct rlane_totals *totals;
    uint32_t generation;
    bool client;
    struct rwire_connect agreed; /* window, message_bytes: the other end's */

    enum rlane_state state;
    kvb_status_t lost; /* OK, or why it is */
    enum rcause_reaction reaction;
    bool admitted;
    struct rdma_cm_id *id;
    struct ibv_qp *qp;
    struct ibv_cq *cq; /* of sends */
    struct kvb_list by_number, ready;
    struct kvb_event turn_event;
    struct kvb_timer tick;
    uint64_t hello_deadline_ns;
    uint64_t alive_ns;
    uint64_t flush_deadline_ns; /* flushing: then it is destroyed */

    struct {           /* packets that arrived */
        uint32_t next; /* number of the next */
        uint32_t told; /* up to which number the other end knows that there is room */
        uint8_t *data; /* a message in pieces; NULL: none */
        uint32_t at, len;
        uint64_t heard_ns, mark_ns, mark_bytes, bytes;
    } in;
    struct kvb_list inbox;

    struct {
        struct rslot *slots; /* slots_n of them, a power of 2: numbers wrap around */
        uint32_t slots_n;    /* info.depth, or the next one above */
        uint32_t head, tail; /* numbers: next to post, oldest under way */
        uint32_t run;        /* unsignalled since the last signalled one */
        uint32_t run_buffers;
        uint32_t works; /* slots under way that have work */
        uint64_t bytes; /* of it */
        uint8_t *pages; /* buffers_n of them */
        size_t pages_len;
        struct ibv_mr *mr;
        int32_t *free;
        uint32_t free_n, buffers_n;
        struct kvb_list queue; /* messages, queued of them */
        uint32_t queued;
        uint32_t next; /* number of the next packet */
        uint32_t room; /* up to which number the other end has room */
        uint64_t sent_ns, mark_ns;
    } out;
    struct kvb_list progressed;
};

/* A lane in memory of the caller's, closed. */
void rlane_init(struct rlane *lane);

/* Begins to connect. The address is numeric. Not OK: it is closed. NO_MEMORY, LIMIT, IO,
 * UNAVAILABLE. */
KVB_MUST_USE kvb_status_t rlane_connect(struct rlane *lane, const struct rlane_ops *ops,
                                        const struct kvt_peer_common *common, struct rend *end,
                                        struct rlane_totals *totals,
                                        const struct sockaddr_storage *to);
/* Accepts a connection that asks for `wants`; the id is taken, also on a failure, after it was
 * rejected. requests: what the client may have open at most. INVALID (they cannot agree), LIMIT,
 * NO_MEMORY, IO. */
KVB_MUST_USE kvb_status_t rlane_accept(struct rlane *lane, const struct rlane_ops *ops,
                                       const struct kvt_peer_common *common, struct rend *end,
                                       struct rlane_totals *totals, struct rdma_cm_id *id,
                                       const struct rwire_connect *wants, uint32_t requests);

/* An event of its connection. */
void rlane_event(struct rlane *lane, const struct rdma_cm_event *event, const uint8_t *data,
                 size_t len);
/* Takes completions of its sends. */
void rlane_poll(struct rlane *lane);
/* The same, and is told of more (before it is emptied, or one would be missed). */
void rlane_arm(struct rlane *lane);
/* All that there is to do for it; the owner's calls are made from here. */
void rlane_run(struct rlane *lane);

/* Lost: lost() comes later. The first reason stays. */
void rlane_fail(struct rlane *lane, kvb_status_t why);
/* The same, and what does not come back until then is destroyed with its queue pair. */
void rlane_fail_by(struct rlane *lane, kvb_status_t why, uint64_t deadline_ns);
/* Lost, and when this returns nothing of the other end's reaches our memory any more. */
void rlane_destroy_queue(struct rlane *lane, kvb_status_t why);
/* At once and for good; lost() does not come. All of its posted work has ended. */
void rlane_close(struct rlane *lane);

/* A message of head and what follows it; queued where it cannot go at once. */
void rlane_send(struct rlane *lane, uint16_t type, uint16_t flags, uint64_t seq,
                const struct iovec *parts, uint32_t n);
/* Questions and answers may come and go from now on. */
void rlane_admit(struct rlane *lane, uint32_t their_silence_ms);
void rlane_kick(struct rlane *lane);

/* How many READs or WRITEs may be posted now. */
uint32_t rlane_room(const struct rlane *lane);
/* Posts n of them, in order: opcode, sg_list, num_sge and wr.rdma are set. Returns how many were
 * taken; the lane sees to the rest being asked for again (turn). */
uint32_t rlane_post(struct rlane *lane, struct rwork *work, struct ibv_send_wr *wrs, uint32_t n);

#endif
