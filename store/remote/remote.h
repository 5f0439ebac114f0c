/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_REMOTE_REMOTE_H
#define STORE_REMOTE_REMOTE_H

/*
 * A node behind connections, inside: calls and the questions of which they consist (remote.c,
 * question.c), what carries them (tcp.c), and what the node says of itself (report.c) and of its
 * objects (list.c). Loop thread only.
 */
#include "node/calls.h"
#include "wire/wire.h"

#include "store/service.h"

struct kvs_remote_way {
    struct kvs_remote *remote;
    const struct kvs_carrier *by;
    struct kvt_transport *transport;
    bool up;
    kvb_status_t why;
};

struct kvs_remote {
    struct kvs_node base;
    struct kvb_sched *sched;
    struct kvs_remote_way ways[KVS_WAYS_MAX];
    uint32_t nways;
    struct kvs_calls calls;
    uint64_t hold_salt; /* instances of other processes may have the same numbers */

    /* questions of calls */
    struct kvb_list idle;
    uint32_t nrunning;
    struct kvb_timer retry; /* the transport is full, but not of ours */
    struct kvs_ask ask;     /* room to work in */

    /* what the node says of itself */
    struct kvs_remote_status status;
    void (*changed)(void *ctx, struct kvs_node *node, const struct kvs_remote_status *status);
    void *ctx;
    struct kvb_timer report_due;
    bool report_asked;
    struct kvt_transfer report;
    uint8_t report_answer[KVS_STATUS_WIRE];

    struct kvb_list asides; /* discards and scrubs in flight */
    uint32_t nlistings;     /* questions about tenants and objects */
};

struct kvs_remote *kvs_remote_of(struct kvs_node *node);

/* As kvt_transfer_start, by the way that is to be taken now. */
KVB_MUST_USE kvb_status_t kvs_remote_start(struct kvs_remote *remote,
                                           struct kvt_transfer *transfer);
/* Asks what remote.ask says, and waits for no answer. */
void kvs_remote_aside(struct kvs_remote *remote, enum kvs_question type);
/* Whom a hold belongs to, as the node knows it. */
struct kvs_hold kvs_remote_hold(const struct kvs_remote *remote, struct kvs_hold hold);

/* As kvs_calls_ops.step. */
kvb_status_t kvs_question_step(struct kvs_call *call);
/* Ends all questions of a call soon, with this status unless they come to another by then. */
void kvs_question_stop_all(struct kvs_call *call, kvb_status_t status, uint64_t stop_deadline_ns);
void kvs_question_cleanup(struct kvs_remote *remote);

/* A way came, or went; ctx: it. */
extern const struct kvt_peer_ops kvs_report_peer_ops;
void kvs_report_init(struct kvs_remote *remote);
/* It has said so in an answer. */
void kvs_report_draining(struct kvs_remote *remote);
void kvs_report_cleanup(struct kvs_remote *remote);

#endif
