/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_NODE_LOCAL_H
#define STORE_NODE_LOCAL_H

/*
 * This process's own share as a node, inside: calls (node.c) and the puts and gets of which they
 * consist (op.c). Loop thread only, but for the share.
 */
#include "share/share_impl.h"

#include "base/list.h"
#include "base/sched.h"
#include "store/node.h"

#include <stdatomic.h>

struct kvs_local {
    struct kvs_node base;
    struct kvb_sched *sched;
    struct kvt_transport *transport;
    struct kvs_share *share;
    struct kvt_share **reach; /* of each shard, the range as the transport reaches it */
    struct kvs_counts counts;
    uint64_t ticket_ms;
    uint64_t hold_ms;

    /* calls: each in one of these */
    struct kvb_event work;
    struct kvb_list ready;     /* something can be done */
    struct kvb_list parked;    /* waits for one of its own operations */
    struct kvb_list starved;   /* waits for any operation to end */
    atomic_uint ncalls;        /* written on the loop, read by any thread */
    struct kvs_lookup *lookup; /* room for one step of a lookup */

    /* operations */
    struct kvb_list idle;
    uint32_t nops; /* running */

    struct kvb_list scrubbing;
    uint32_t nscrubbing;
};

/* The part of a batch that is here. */
struct kvs_local_call {
    struct kvb_list link; /* ready, parked or starved */
    struct kvs_local *local;
    struct kvs_node_call *call;
    struct kvs_core_where where;
    uint64_t seed;       /* of the choice of a shard */
    uint32_t next;       /* first item not begun */
    uint32_t left;       /* items without an answer */
    uint32_t *earlier;   /* PUT: of each item, the nearest before it with the same key, or NONE */
    struct kvb_list ops; /* running */
};
#define KVS_NO_ITEM UINT32_MAX

/* An item has its answer. */
void kvs_local_answer(struct kvs_local_call *call, uint32_t item, kvb_status_t status,
                      uint64_t len);
/* Something ended: there may be something to do for its call, and for those that starve. */
void kvs_local_wake(struct kvs_local_call *call);

/*
 * Begins a put or get. OK: it runs, or has answered already. AGAIN: nothing happened, call again in
 * a later turn. BUSY: nothing happened, as many run as can; the end of any makes room.
 */
KVB_MUST_USE kvb_status_t kvs_op_begin(struct kvs_local_call *call, uint32_t item);
/* Ends all of a call's operations soon, with this status unless they come to another by then. */
void kvs_op_stop_all(struct kvs_local_call *call, kvb_status_t status, uint64_t stop_deadline_ns);
void kvs_op_cleanup(struct kvs_local *local);

/* Hashes an object again after a mismatch, in small steps, and drops it if it is bad. Best effort:
 * does nothing when too many run. */
void kvs_scrub_start(struct kvs_local *local, struct kvs_shard *shard,
                     const struct kvs_core_where *where, const struct kvs_core_key *key);
void kvs_scrub_cleanup(struct kvs_local *local);

#endif
