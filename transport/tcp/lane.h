/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TCP_LANE_H
#define TCP_LANE_H

#include "body.h"
#include "wire.h"

#include "base/sched.h"
#include "base/xxh3.h"

/*
 * One connection: turns bytes into frames and frames into bytes, the same on both sides. What a
 * frame means is its owner's (peer.c, server.c), who is told through lane_ops.
 *
 * A body that is long and has addresses is read and written in place; every other one goes through
 * the lane's buffers, together with its neighbours. All is bounded for each turn, so that no lane,
 * however busy, holds up another. A frame that was begun is always ended as it was announced: a
 * body that is given up goes on as zeros, and its trailer says so.
 *
 * The end of a lane is told in one place, last of all in each of its three entries (readiness,
 * turn, tick): whatever notices that it is lost only notes why. So nothing that a lane calls finds
 * it gone when it returns. Loop thread only.
 */
struct lane;

struct lane_out { /* a frame to send */
    struct tcp_head head;
    const void *text;     /* head.text_len bytes, copied at once */
    struct kvt_body body; /* head.body_len bytes, to be readable until sent() */
    bool hash;            /* computes the trailer's checksum; else the owner knows it */
    kvb_status_t status;  /* OK, or why the body was given up */
};

struct lane_ops {
    /* One of the transport's own messages, but for ALIVE. Not OK: the lane is lost for that. */
    kvb_status_t (*message)(struct lane *lane, enum tcp_message type, const uint8_t *payload,
                            size_t len);
    /* A frame's head and text (valid during the call). With a body: lane->in.body says where it
     * goes, at first nowhere; lane_hold() if that is not known yet. Not OK: as above. */
    kvb_status_t (*frame)(struct lane *lane, const struct tcp_head *head, const uint8_t *text);
    /* Its body is over. OK: whole, and the checksum, which was compared unless it went nowhere;
     * CHECKSUM; or why it was given up. Not OK: as above. */
    kvb_status_t (*body)(struct lane *lane, kvb_status_t status, uint64_t checksum);
    /* The next frame to send; false: none. */
    bool (*next)(struct lane *lane, struct lane_out *out);
    /* Its body's bytes were all copied: what its trailer says. *checksum_p: as computed. Called
     * again for the same body if it computes its checksum (out.hash). */
    kvb_status_t (*verdict)(struct lane *lane, kvb_status_t status, uint64_t *checksum_p);
    /* The frame that next() gave is not needed any more. */
    void (*sent)(struct lane *lane);
    /* The last thing of a lane; closes it. */
    void (*lost)(struct lane *lane, kvb_status_t why);
};

enum lane_in_state {
    LANE_IN_HEAD,   /* waits for: a header, and what must be there to judge it */
    LANE_IN_BODY,   /* waits for: the bytes of a body */
    LANE_IN_TRAILER /* waits for: a trailer */
};

struct lane_totals { /* of all lanes of an owner, also closed ones */
    uint64_t bytes_sent, bytes_received, heard_ns;
};

struct lane {
    /* immutable once open */
    const struct lane_ops *ops;
    const struct kvt_peer_common *common; /* with its defaults filled in */
    struct kvb_sched *sched;
    struct lane_totals *totals;
    struct kvt_socket *socket;

    kvb_status_t lost; /* OK, or why it is */
    bool admitted;     /* frames may come and go */
    bool hold;         /* nothing more is read for now */
    struct kvb_event turn;
    struct kvb_timer tick;
    uint64_t hello_deadline_ns;
    uint64_t alive_ns; /* how often a sign of life is due */
    unsigned wanted;
    uint32_t gathered; /* bytes that wake it */

    struct lane_in {
        XXH3_state_t hash;
        uint8_t *data;
        uint32_t at, len, cap; /* bytes not parsed yet: [at, len) */
        uint32_t need;         /* of them, for the next step */
        enum lane_in_state state;
        struct kvt_body body;
        uint32_t body_len;
        kvb_status_t status; /* OK, or what went wrong with writing the body where it goes */
        bool hashed;         /* digest: of the whole body, which was kept */
        uint64_t digest;
        uint64_t bytes;
        uint64_t heard_ns;
        uint64_t mark_ns,
            mark_bytes; /* since when, and at what, a begun frame is waited for; 0: none */
    } in;

    struct lane_send {
        XXH3_state_t hash;
        uint8_t *data;
        uint32_t at, len, cap; /* bytes not written yet: [at, len) */
        bool active;           /* frame: its head is packed, its trailer is not */
        bool direct;           /* its body goes from where it is */
        struct lane_out frame;
        struct kvt_body ahead; /* direct: what of it is not hashed yet */
        bool hashed;           /* digest: of the whole body */
        uint64_t digest;
        uint8_t trailer[TCP_TRAILER_LEN];
        uint64_t bytes;
        uint64_t sent_ns;
        uint64_t mark_ns, mark_bytes;
    } out;
};

/* Memory for lanes: XXH3_state_t wants more alignment than malloc promises. */
#define LANE_ALIGN 64u

/* Takes the socket on success. Nothing is called before the next turn. NO_MEMORY. */
KVB_MUST_USE kvb_status_t lane_open(struct lane *lane, const struct lane_ops *ops,
                                    const struct kvt_peer_common *common, struct kvb_sched *sched,
                                    struct lane_totals *totals, struct kvt_socket *socket);
/* The socket, buffers, timers; nothing is called any more. */
void lane_close(struct lane *lane);

/* lost() comes in a later turn. The first reason stays. */
void lane_fail(struct lane *lane, kvb_status_t why);

/* One of the transport's own messages; only while no frame's body is being sent. */
void lane_message(struct lane *lane, enum tcp_message type, const void *payload, size_t len);
/* Frames may go and come from now on; the other side gives up after so much silence. */
void lane_admit(struct lane *lane, uint32_t their_silence_ms);
/* next() has something. */
void lane_kick(struct lane *lane);

/* Stops reading, and goes on with it. */
void lane_hold(struct lane *lane);
void lane_release(struct lane *lane);

/* The body that is being sent, or received, is given up: its memory is not touched any more. */
void lane_give_up_out(struct lane *lane, kvb_status_t why);
void lane_give_up_in(struct lane *lane);

#endif
