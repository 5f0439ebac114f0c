/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_NODE_H
#define STORE_NODE_H

#include "base/clock.h"
#include "store/client.h"
#include "store/share.h"

/*
 * A store node: what a client asks (the interface, for this process's own node and for ones behind
 * a connection), and this process's own.
 */

/* ---- the interface ---- */

/*
 * The part of a batch that lies on one node. The node writes status and len of each of its items,
 * then calls done, once, never inside submit or stop. The batch, its items and what they point to
 * stay valid until then.
 */
struct kvs_node_call {
    struct kvs_batch *batch;
    const uint32_t *index; /* which items of the batch; NULL: all */
    uint32_t n;
    void (*done)(struct kvs_node_call *call);
    bool ours; /* set by the node: something failed for a reason of this process's own, so that no
                  failure of the call counts against the node */
    /* the node's own */
    struct {
        struct kvb_list link;
        void *state;
    } impl;
};

struct kvs_node_ops {
    /* OK: taken. NO_MEMORY, LIMIT: not taken, done will not come. */
    kvb_status_t (*submit)(struct kvs_node *node, struct kvs_node_call *call);
    /*
     * Ends a call soon. expired: its deadline has passed; items not begun become UNAVAILABLE, those
     * begun TIMEOUT. Else they become CANCELED. What is finished keeps its status; what moves bytes
     * is stopped by the deadline. Idempotent.
     */
    void (*stop)(struct kvs_node *node, struct kvs_node_call *call, bool expired,
                 uint64_t stop_deadline_ns);
    /* Gives back what the request holds, or everything its instance holds. */
    void (*discard)(struct kvs_node *node, struct kvs_hold hold, bool all_of_instance);
    /* When something was last heard of it (monotonic, here), so that one that is silent is told
     * from one that is busy. NULL: only its answers tell. */
    uint64_t (*heard_ns)(struct kvs_node *node);
    /* In this process: it cannot be away, and only the deadline of a batch bounds its calls. */
    bool in_process;
};
struct kvs_node {
    const struct kvs_node_ops *ops;
};

/* The i-th item of a call. */
static inline struct kvs_item *kvs_node_call_item(const struct kvs_node_call *call, uint32_t i)
{
    return &call->batch->items[call->index == NULL ? i : call->index[i]];
}

/* ---- this process's own share ---- */

/*
 * A share as a node of this process's own client: index work runs under the shard's lock, in short
 * bounded steps; bytes are moved outside it, as transfers. Loop thread only, but for what says
 * `any thread`.
 */
struct kvs_node_config {
    uint64_t ticket_ms; /* how long a reader's ticket or a writer's attempt lasts; 0: 60 s. In fault
                           runs a few ms at most */
    uint64_t hold_ms;   /* how long a lookup's promise lasts; 0: 60 s */
};

/* transport reaches the share; both are borrowed. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_node_create(struct kvb_sched *sched, struct kvt_transport *transport,
                                          struct kvs_share *share,
                                          const struct kvs_node_config *config,
                                          struct kvs_node **node_p);
void kvs_node_destroy(struct kvs_node *node); /* no call in flight; NULL: nothing */
/* Any thread: calls in flight. */
uint32_t kvs_node_calls(struct kvs_node *node);

#endif
