/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBKVPLANE_SESSION_H
#define LIBKVPLANE_SESSION_H

#include "base/frame.h"
#include "base/link.h"
#include "base/list.h"
#include "kvplane.h"

#define KVPLANE_BLOCK_TOKENS_DEFAULT 16u

/*
 * One handle: the socket to the daemon (session.c), calls to it (calls.c) and calls from it
 * (upcalls.c). Everything is used by one thread at a time.
 *
 * Exactly once: a call to the daemon lives in a slot from the moment it was accepted. It leaves the
 * slot in one place, take_slot(), and whoever took it completes it: the reply, or the end of the
 * session. Its callback runs only under kvplane_process() and kvplane_close().
 *
 * Memory of transfers: a daemon may be writing into a region until it has closed its end of the
 * socket, which it does only when the session's transfers are over. So when it is we who end the
 * session, we close our direction, and complete what is open only when the daemon's end is closed
 * too (ENDING).
 */
#define SESSION_STATES(X)                                                                          \
    X(DOWN)     /* no socket; waits for kvplane_reattach() */                                      \
    X(WAITING)  /* no socket; waits for the timer to try again */                                  \
    X(GREETING) /* socket; waits for the reply to hello, until the timer */                        \
    X(ATTACHED) /* socket, slots, calls */                                                         \
    X(ENDING)   /* socket, closed in our direction; waits for the daemon to close its own */
enum session_state {
#define X(name) SESSION_##name,
    SESSION_STATES(X)
#undef X
};

/* A frame on its way out. */
struct out {
    struct kvb_list link;
    int fd; /* goes with the first byte; -1: none; owned */
    uint8_t *data;
    size_t len;
    size_t sent;
};

/* A call to the daemon that waits for its reply. Its seq is a count, which makes it unique, above
 * the slot's index, which finds it again. */
#define KVPLANE_SLOT_BITS 20
struct slot {
    uint64_t seq; /* 0: free */
    uint16_t type;
    uint32_t n;                     /* entries of a batch, groups of a lookup */
    uint32_t nkeys[KVB_GROUPS_MAX]; /* of a lookup's groups */
    union {
        kvplane_done_fn done;
        kvplane_lookup_fn lookup;
        kvplane_batch_fn batch;
    } fn;
    void *arg;
    uint32_t next_free;
};

/* A call from the daemon. */
struct kvplane_call {
    struct kvb_list link;
    struct kvplane *kv;
    uint16_t type;
    uint64_t seq;
    uint64_t operation;
    bool writes_weights; /* answering it ends what the weights' name at start vouched for */
    bool alive;          /* of the present session: the answer goes somewhere */
};

struct kvplane {
    /* immutable after open */
    char path[108];
    const struct kvplane_callbacks *callbacks;
    void *ctx;
    uint32_t queue_max;
    int epoll_fd;
    int timer_fd;

    /* what hello says; its echo part (lineage, token, names, retirements, last operation) is kept
     * up to date and outlives every session */
    struct kvb_link_hello hello;

    enum session_state state;
    int socket_fd;   /* -1: none */
    bool processing; /* inside kvplane_process(): callbacks may run */
    bool timer_armed;
    uint32_t backoff_ms;
    uint64_t attached_ns; /* when the last session was; 0: none since the last start */
    kvb_status_t doom;    /* an answer could not be sent: end the session at the next process */
    kvb_status_t end_reason;
    char error[512];

    struct kvb_list out;
    size_t out_bytes;
    bool want_write; /* epoll asks for it */

    uint8_t *in;
    size_t in_len;
    size_t in_cap;

    struct slot *slots;
    uint32_t free_slot;  /* index + 1; 0: none */
    uint32_t nslots;     /* queue_max, and what is not counted there: regions, a report, a leave */
    uint32_t calls_open; /* in slots, against queue_max */
    uint32_t regions_open; /* in slots, against KVB_REGIONS_MAX */
    uint64_t next_seq;
    uint64_t hello_seq;
    int results[KVB_ENTRIES_MAX]; /* of the batch that is being completed */

    struct kvb_load load;
    bool load_told;   /* the daemon has been sent `load` */
    bool load_known;  /* the engine has reported one */
    bool report_open; /* one report waits for its reply */
    bool leave_open;  /* one leave does: until then there is no token */

    struct kvb_list upcalls;
    uint32_t nupcalls;
};

/* ---- session.c ---- */

void kvplane_session_error(struct kvplane *kv, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Begins a frame: room for the header. */
void kvplane_frame_begin(struct kvb_writer *writer, uint16_t type);
/* Queues it and takes the writer's bytes and fd (both also on failure). */
KVB_MUST_USE kvb_status_t kvplane_frame_send(struct kvplane *kv, struct kvb_writer *writer,
                                             uint16_t type, uint16_t flags, uint64_t seq, int fd);
kvb_status_t kvplane_session_start(struct kvplane *kv);
/* Reads, writes, and does what is due. Callbacks run in here. */
void kvplane_session_turn(struct kvplane *kv);
/* An answer that was owed could not be sent: ends the session at the next turn, which comes soon.
 */
void kvplane_session_doom(struct kvplane *kv, kvb_status_t reason);
/* Ends an attached session in order: `disconnected` comes when the daemon holds nothing of it. */
void kvplane_session_detach(struct kvplane *kv);
/* Closes the socket at once; completes what is open with this result. */
void kvplane_session_close(struct kvplane *kv, kvb_status_t result);

/* ---- calls.c ---- */

KVB_MUST_USE kvb_status_t kvplane_calls_init(struct kvplane *kv);
/* PROTOCOL: not a reply to what was asked. */
KVB_MUST_USE kvb_status_t kvplane_calls_reply(struct kvplane *kv, const struct kvb_frame *frame,
                                              struct kvb_span payload);
void kvplane_calls_fail_all(struct kvplane *kv, kvb_status_t result);
KVB_MUST_USE kvb_status_t kvplane_calls_report(struct kvplane *kv);
/* The next hello echoes nothing. */
void kvplane_calls_forget_stay(struct kvplane *kv);

/* ---- upcalls.c ---- */

/* Fills the state of a message from callbacks.state. INVALID: the engine filled it wrongly. */
KVB_MUST_USE kvb_status_t kvplane_upcalls_state(struct kvplane *kv,
                                                struct kvb_engine_state *state_p);
KVB_MUST_USE kvb_status_t kvplane_upcalls_request(struct kvplane *kv, const struct kvb_frame *frame,
                                                  struct kvb_span payload);
/* The session is over: open calls may still be answered, to nobody. */
void kvplane_upcalls_orphan(struct kvplane *kv);

#endif
