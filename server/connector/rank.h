/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONNECTOR_RANK_H
#define SERVER_CONNECTOR_RANK_H

#include "base/link.h"
#include "base/sched.h"

/*
 * The seam between an instance (connector: what must happen, in which order) and one rank of its
 * engine (link: sockets, regions, put and get queues). The real rank is server/link/rank.c; unit
 * tests script a fake one. Loop thread only.
 */

struct kvt_device_info;

/*
 * The stay every lookup, get and put is judged by, at submission and again at completion. Written
 * by the instance's lineage rules only, read by its ranks for each message.
 */
struct kvp_stay {
    struct kvb_lineage lineage;
    struct kvb_token token;
    bool open;     /* closed: lookups miss, puts are dropped and counted, gets fail */
    bool private_; /* not joined under a name: a miss is counted as `private` */
};

/* The reply of a call; which member is valid follows from the message type. Borrowed for the
 * callback. */
union kvp_rank_reply {
    struct kvb_link_reset_local_reply reset_local;
    struct kvb_link_fingerprint_reply fingerprint;
    struct kvb_link_relay_reply relay;
    struct kvb_link_state_reply state;
};

/*
 * status: what the engine answered; TIMEOUT: no answer by the deadline (the rank's state is now
 * unknown to us; a late answer is dropped); DISCONNECTED. reply is NULL unless the engine answered
 * with a payload beyond a status.
 */
typedef void (*kvp_rank_call_fn)(void *arg, kvb_status_t status, const union kvp_rank_reply *reply);
typedef void (*kvp_rank_done_fn)(void *arg, kvb_status_t status);

struct kvp_drain_progress {
    uint32_t queued;  /* tasks not begun, both queues */
    uint32_t running; /* tasks begun, both queues */
    uint64_t bytes_left;
};

/* Queues of a rank, in the order in which they are served: name, word. */
#define KVP_QUEUES(X) X(LOOKUP, "lookup") X(PUT, "put") X(GET, "get")
enum kvp_queue {
#define X(name, text) KVP_QUEUE_##name,
    KVP_QUEUES(X)
#undef X
        KVP_QUEUE_KINDS
};
const char *kvp_queue_text(enum kvp_queue queue);

/* One of them as it is: for status. */
struct kvp_queue_view {
    uint32_t queued;        /* tasks not begun */
    uint32_t running;       /* tasks begun */
    uint64_t oldest_age_ns; /* of those, since it came; 0: there is none */
    uint64_t bytes;         /* of their blocks */
};

/* One hand-over of a region as it is: for status. Borrowed for the callback. */
struct kvp_region_view {
    uint32_t number; /* the engine's */
    const char *tag;
    const char *kind;  /* of its memory: a word */
    const char *state; /* a word of KVT_REGION_STATES */
    bool current;      /* false: it was replaced or given up, and is on its way out */
    bool kept_across_sleep;
    uint64_t generation;
    uint64_t bytes; /* of its length; unregistered: of what was handed over last */
    uint64_t pinned_bytes;
    uint32_t transfers; /* that name it now */
};
typedef void (*kvp_region_fn)(void *arg, const struct kvp_region_view *view);

struct kvp_rank_ops {
    /*
     * Sends a request of the link (LINEAGE … STATE) whose message struct is msg (NULL for those
     * without one); done comes exactly once, later, never inside call. Messages of one rank keep
     * their order.
     */
    void (*call)(void *rank, enum kvb_link_type type, const void *msg, uint64_t deadline_ns,
                 kvp_rank_call_fn done, void *arg);
    /* Gives every PAUSE that is open this deadline, if its own is later: who cancels the drain of
     * an engine that hangs does not wait for the drain's bound. */
    void (*hurry_pauses)(void *rank, uint64_t deadline_ns);
    /*
     * Waits until no put or get is queued or running. abort: queued ones are failed at once and
     * running ones stopped within the transfers' abort bound. TIMEOUT at the deadline, with nothing
     * undone. One drain at a time.
     */
    void (*drain)(void *rank, bool abort, uint64_t deadline_ns, kvp_rank_done_fn done, void *arg);
    /* Ends a running drain: its done comes soon, with CANCELED (or how it ended just then). */
    void (*drain_stop)(void *rank);
    struct kvp_drain_progress (*progress)(void *rank);
    /*
     * Fails running gets of an earlier stay as soon as they end, and stops the long ones (rule 2).
     * Puts of an earlier stay are dropped. Called at every change of stay.
     */
    void (*stay_changed)(void *rank);
    /*
     * Unregisters every region of these tags that sleep touches (not the host-resident). All or
     * nothing: on failure what was undone is registered again before done tells it. Already
     * unregistered: OK.
     */
    void (*unregister)(void *rank, const char (*tags)[KVB_NAME_MAX], uint32_t ntags,
                       uint64_t deadline_ns, kvp_rank_done_fn done, void *arg);
    /*
     * Registers the regions of these tags that the engine has handed over since they were
     * unregistered (RESTORE). All or nothing. BAD_STATE: a region that was there before was not
     * handed over anew. A region that arrives while its tag is not unregistered (at attach) is
     * registered on arrival; after unregister() arrivals only wait for this call.
     */
    void (*register_)(void *rank, const char (*tags)[KVB_NAME_MAX], uint32_t ntags,
                      kvp_rank_done_fn done, void *arg);
    /* How many regions of this tag (NULL: all) are registered, and their bytes (may be NULL): the
     * truth, for status and tests. */
    uint32_t (*registered)(void *rank, const char *tag, uint64_t *bytes_p);
    /* Every number that the engine has ever used, with what is on its way out of each: the truth,
     * for status. */
    void (*each_region)(void *rank, kvp_region_fn each, void *arg);
    void (*queues)(void *rank, struct kvp_queue_view views[KVP_QUEUE_KINDS]);
    /* The process that reaches the rank's memory for us, if it has such memory (a GPU's). False:
     * there is none. */
    bool (*device)(void *rank, struct kvt_device_info *info_p);
    /* What that process said of why the last unregister or register_ failed; "": nothing. Valid
     * until the next of them. */
    const char *(*cause)(void *rank);
    /* Ends the connection; the instance hears of it by kvp_rank_events.gone, later. */
    void (*disconnect)(void *rank, const char *reason);
};

/* Why not, of those below: for whoever refuses it, before anything or as a step. */
#define KVP_FOREIGN_SLEEPS_ONCE                                                                    \
    "this server keeps what it has offloaded until it is awake: POST /wake_up, then /sleep at "    \
    "this level"
#define KVP_FOREIGN_NO_RELEASE                                                                     \
    "this server was started without --enable-sleep-mode: it gives no memory up"

/* A server that is driven by its own routes (server/driver), rather than an engine on the link:
 * none of its KV moves through here, and it shares none. */
struct kvp_foreign {
    const char *kind; /* vllm, sglang */
    const char *url;
    uint32_t world_size; /* its own; to us it is one rank. 0: not known */
    bool sleeps_once;    /* what it has offloaded it cannot discard: it must wake before */
    bool no_release;     /* it gives no memory up */
};

/* A rank as its instance holds it. */
struct kvp_rank {
    const struct kvp_rank_ops *ops;
    void *impl;
    const struct kvp_stay *stay;       /* the instance's */
    const struct kvp_foreign *foreign; /* NULL: it is on the link. As alive as the fleet */
    uint32_t index;
    uint8_t roles;
};

#endif
