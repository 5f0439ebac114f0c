/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_NODE_CALLS_H
#define STORE_NODE_CALLS_H

/*
 * The calls of one node, whichever kind: each stands in one of three rings; one event takes a
 * bounded step of each that is ready. A call is done there and nowhere else, when its last item has
 * an answer, so `done` never runs inside submit or stop. What a step does is the node's (ops).
 * Loop thread only, but for n.
 */
#include "base/list.h"
#include "base/sched.h"
#include "store/node.h"

#include <stdatomic.h>

#define KVS_NO_ITEM UINT32_MAX

struct kvs_call;
struct kvs_calls_ops {
    /*
     * Begins some of what is left, from call->next on, and counts it there before it can be
     * answered. OK: what one step may do is done. AGAIN: the rest in a later turn. BUSY: the rest
     * when any operation of the node ends. IN_PROGRESS: when one of the call's own ends.
     */
    kvb_status_t (*step)(struct kvs_call *call);
    /* An item has its answer; for counters. May be NULL. */
    void (*answered)(struct kvs_call *call, kvb_status_t status, uint64_t len);
    /* The call is over: to be freed. */
    void (*ended)(struct kvs_call *call);
};

struct kvs_calls {
    struct kvb_sched *sched;
    const struct kvs_calls_ops *ops;
    struct kvb_event work;
    struct kvb_list ready;   /* something can be done */
    struct kvb_list parked;  /* waits for one of its own operations */
    struct kvb_list starved; /* waits for any operation to end */
    atomic_uint n;           /* in flight: written on the loop, read by any thread */
};

/* The part of a batch that is here; embedded in the node's own. */
struct kvs_call {
    struct kvb_list link; /* ready, parked or starved */
    struct kvs_calls *calls;
    struct kvs_node_call *base;
    uint32_t next;       /* first item not begun */
    uint32_t left;       /* items without an answer */
    uint32_t *earlier;   /* PUT: of each item, the nearest before it with the same key, or NONE */
    struct kvb_list ops; /* running; the node's */
};

void kvs_calls_init(struct kvs_calls *calls, struct kvb_sched *sched,
                    const struct kvs_calls_ops *ops);
void kvs_calls_cleanup(struct kvs_calls *calls); /* no call in flight */

/* On OK the call is taken, every item is in progress, and the node_call's state is the call.
 * NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_call_submit(struct kvs_calls *calls, struct kvs_call *call,
                                          struct kvs_node_call *base);
/* Items not begun have this answer; the call ends by what it was submitted or stopped with. */
void kvs_call_answer_rest(struct kvs_call *call, kvb_status_t status);
/* Items not begun get their answer (kvs_node_ops.stop). */
void kvs_call_stop(struct kvs_call *call, bool expired);
/* An item has its answer. */
void kvs_call_answer(struct kvs_call *call, uint32_t item, kvb_status_t status, uint64_t len);
/* Something ended: there may be something to do for its call, and for those that starve. */
void kvs_call_wake(struct kvs_call *call);
/* The one that has starved longest may go on; when it has taken what it needs, the next. */
void kvs_calls_feed(struct kvs_calls *calls);
/* Of two puts of one key in a batch the first is the first, whichever has fewer bytes to move. */
bool kvs_call_waits_for_earlier(const struct kvs_call *call, uint32_t item);

static inline struct kvs_item *kvs_call_item(const struct kvs_call *call, uint32_t i)
{
    return kvs_node_call_item(call->base, i);
}

#endif
