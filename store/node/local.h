/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_NODE_LOCAL_H
#define STORE_NODE_LOCAL_H

/*
 * This process's own share as a node, inside: calls (node.c) and the puts and gets of which they
 * consist (op.c). Loop thread only, but for the share.
 */
#include "calls.h"
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

    struct kvs_calls calls;
    struct kvs_lookup *lookup; /* room for one step of a lookup */

    /* operations */
    struct kvb_list idle;
    uint32_t nops; /* running */

    struct kvs_scrubs scrubs;
};

struct kvs_local_call {
    struct kvs_call base;
    struct kvs_local *local;
    struct kvs_core_where where;
    uint64_t seed; /* of the choice of a shard */
};

/*
 * Begins a put or get. OK: it runs, or has answered already. AGAIN: nothing happened, call again in
 * a later turn. BUSY: nothing happened, as many run as can; the end of any makes room.
 */
KVB_MUST_USE kvb_status_t kvs_op_begin(struct kvs_local_call *call, uint32_t item);
/* Ends all of a call's operations soon, with this status unless they come to another by then. */
void kvs_op_stop_all(struct kvs_local_call *call, kvb_status_t status, uint64_t stop_deadline_ns);
void kvs_op_cleanup(struct kvs_local *local);

#endif
