/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_CLIENT_MEMBERS_H
#define STORE_CLIENT_MEMBERS_H

#include "health.h"
#include "placement.h"

#include "base/list.h"
#include "store/node.h"

/*
 * The nodes of a client, and which of them are in the choice for what. Loop thread only.
 */
struct kvs_members;

struct kvs_member {
    struct kvs_members *owner;
    struct kvs_node *node;
    char *name;
    struct kvs_place place;
    uint64_t weight;
    bool readable_only;
    struct kvs_health health;
    kvb_status_t last_failure; /* by its fault; OK: none yet */
    uint64_t failed_ns;        /* when that was */
    /* calls in flight */
    struct kvb_list calls; /* the client's */
    uint32_t ncalls;
    uint64_t bytes;    /* of their bodies */
    uint64_t asked_ns; /* when it was first asked since it last answered; 0: it has not been */
    /* once removed */
    bool gone;
    struct kvb_list link; /* owner.leaving */
    struct kvb_event event;
    void (*removed)(void *ctx, struct kvs_node *node);
    void *ctx;
};

/* Those that an operation may be placed on, side by side for kvs_placement_pick(). */
struct kvs_choice {
    struct kvs_place *places;
    struct kvs_member **members;
    uint32_t n;
};

struct kvs_members {
    struct kvb_sched *sched;
    struct kvs_client_health limits;
    struct kvs_member **all;
    uint32_t n;
    uint32_t cap;
    struct kvs_choice readable, writable; /* valid until: */
    uint64_t choice_until_ns;
    struct kvb_list leaving;
};

void kvs_members_init(struct kvs_members *members, struct kvb_sched *sched);
void kvs_members_cleanup(struct kvs_members *members); /* no call in flight */
void kvs_members_limit(struct kvs_members *members, const struct kvs_client_health *limits);

KVB_MUST_USE kvb_status_t kvs_members_add(struct kvs_members *members, const char *name,
                                          struct kvs_node *node, uint64_t weight);
struct kvs_member *kvs_members_find(const struct kvs_members *members, const char *name);
void kvs_member_set(struct kvs_member *member, uint64_t weight, bool readable_only);
/* Not in any choice any more; removed comes when its last call has ended. */
void kvs_member_remove(struct kvs_member *member, void (*removed)(void *ctx, struct kvs_node *node),
                       void *ctx);

/* Valid until anything else of this is called. */
const struct kvs_choice *kvs_members_choice(struct kvs_members *members, enum kvs_batch_op op);

/* ---- a call to a member ---- */

struct kvs_member_call {
    struct kvs_member *member; /* NULL: not in flight */
    struct kvb_list link;      /* member.calls */
    struct kvs_health_call health;
    uint64_t bytes;
    uint64_t begun_ns;
    uint64_t span_ns;  /* what it may take */
    uint64_t bound_ns; /* by when it has to be answered; KVB_NEVER: by the batch's deadline */
    bool late;         /* given up, and judged for it */
};

void kvs_member_call_begin(struct kvs_member *member, struct kvs_member_call *call,
                           enum kvs_batch_op op, uint64_t bytes);
/* It is not answered and is given up, by its bound or by the batch's deadline. Once. */
void kvs_member_call_late(struct kvs_member_call *call);

enum kvs_verdict {
    KVS_NO_VERDICT,    /* says nothing of the node */
    KVS_NODE_ANSWERED, /* only a node that works says so */
    KVS_NODE_FAILED,
};
enum kvs_verdict kvs_verdict(kvb_status_t status);

/* The member may be gone afterwards. why: the status of KVS_NODE_FAILED. */
void kvs_member_call_end(struct kvs_member_call *call, enum kvs_verdict verdict, kvb_status_t why);

#endif
