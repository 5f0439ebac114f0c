/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_ETCD_IMPL_H
#define STORE_ETCD_IMPL_H

#include "coordinator_impl.h"
#include "etcd_http.h"
#include "etcd_mirror.h"
#include "etcd_wire.h"

#include "base/id.h"
#include "base/percent.h"

#include <string.h>

/* The parts of the coordinator on etcd; store/coordinator/etcd.c has the design. */

#define KVS_ETCD_ID_MAX   (KVB_ID_HEX_LEN + 1)
#define KVS_ETCD_PATH_MAX (3 * (64 + 256) + 3) /* "TENANT/LAYOUT/", each encoded */
#define KVS_ETCD_NAME_MAX 255                  /* bytes of a name of the weights */
#define KVS_ETCD_KEY_MAX  (128 + 16 + KVS_ETCD_PATH_MAX + 3 * KVS_ETCD_NAME_MAX + KVS_ETCD_ID_MAX)

struct etcd;
struct member;
struct op;

/* One atomic step at etcd, repeated until its outcome is known or its bound is over. */
struct op_type {
    const char *name; /* for the log */
    /* Kept until it is done, through any outage; what fails for good is dropped. */
    bool lasting;
    /* What it binds ends with the lease: an answer that comes after that end is none. */
    bool leased;
    /* What it asks now. Other than OK: it ends with that, nothing is sent. */
    kvb_status_t (*build)(struct op *op, struct kvs_txn *txn);
    /* How it went. AGAIN: it is built and sent anew, a little later. PROTOCOL: a bad answer. */
    kvb_status_t (*answer)(struct op *op, const struct kvs_txn_answer *answer);
    /* It ends; NULL: nothing but the request's answer. May take the op over: then true. */
    bool (*end)(struct op *op, kvb_status_t status);
};

struct op {
    struct kvb_list link; /* member.queue, etcd.queue, member.lefts, etcd.beside */
    const struct op_type *type;
    struct etcd *etcd;
    struct member *member;             /* NULL: nobody's, or it has closed */
    struct kvs_coord_request *request; /* NULL: nobody waits */
    struct kvs_http_call call;
    struct kvb_timer again;
    uint64_t deadline_ns;
    json_t *then, *otherwise; /* what was sent */
    bool beside;              /* not of a queue */
    bool started;
    uint64_t lease;    /* under which it was sent */
    uint64_t joins;    /* etcd.joins then */
    uint64_t seen_rev; /* etcd.mirror.rev then */

    char path[KVS_ETCD_PATH_MAX]; /* of the space, or of the tenant */
    char id[KVS_ETCD_ID_MAX];     /* of a retirement */
    char *text;                   /* a name, a record; malloc'd */
    struct kvb_lineage lineage;
    uint64_t number; /* an epoch, a quota, a revision */
    uint64_t step;
    bool fenced;    /* a step that is not next */
    bool creates;   /* the name is not there, as far as is known */
    bool left;      /* a name was left while it was being resolved */
    uint32_t place; /* in the answer */

    /* retirements */
    struct kvb_lineage *lineages;
    uint32_t nlineages;
    bool uncounts;        /* its asker leaves a name in the same step */
    bool quiet;           /* nobody is told: private lineages, for the nodes alone */
    uint64_t until_ns;    /* the asker's deadline */
    uint64_t retired_rev; /* when it was done; 0: not yet */
    char **waiting;       /* keys of members that have not left */
    uint32_t nwaiting, nwaited;
    kvb_status_t outcome;
};

struct watcher {
    struct kvb_list link; /* etcd.watchers */
    const struct kvs_watch_ops *ops;
    void *ctx;
    bool replayed;
    bool behind; /* no memory to tell of a retirement: all are told again */
};

struct member {
    struct kvs_member base;
    struct kvb_list link; /* etcd.members */
    struct kvs_space space;
    char path[KVS_ETCD_PATH_MAX];
    char instance[64];
    char id[KVS_ETCD_ID_MAX];
    const struct kvs_member_ops *ops;
    void *ctx;
    bool closed; /* only its last ops keep it */

    uint64_t lease;    /* under which etcd has it; 0: has not */
    uint64_t token;    /* create revision of its record */
    uint64_t told_rev; /* retirements up to here it has been told */
    uint64_t epoch;    /* the last reset of its tenant that it took part in, else 0 */
    bool behind;       /* a tell found no memory */

    struct kvb_list queue; /* ops, one after the other */
    struct kvb_list lefts; /* ops: it has left, as asked */
    struct kvb_list tells;
    struct kvb_list requests; /* not answered yet */

    bool lost; /* to be told */
    struct kvb_event reach;

    char in[KVS_ETCD_NAME_MAX + 1]; /* the name in which etcd counts it; "": none */
    bool uncount;                   /* and should not any more */
    struct kvb_timer uncount_timer;

    char *text; /* published; NULL: nothing yet */
    bool text_new;
    struct kvb_timer text_timer;
    struct op *record; /* registers or publishes, now */
};

struct etcd {
    struct kvs_coordinator base;
    struct kvb_sched *sched;
    struct kvs_http *http;
    char prefix[128];
    char process[64];
    char id[KVS_ETCD_ID_MAX]; /* of this life of the process */
    uint32_t request_ms, lease_ms;
    uint64_t grace_ms;
    struct kvs_mirror mirror;

    /* the session (etcd_session.c) */
    bool up;
    uint64_t joins; /* how often it was reached */
    uint64_t lease; /* 0: none */
    uint64_t lease_ttl_ms;
    uint64_t retired_lease;    /* under which retirements are kept for some hours; 0: none */
    uint64_t retired_lease_ns; /* when it was granted */
    uint64_t up_ns;            /* since when */
    bool synced;               /* the mirror has a whole snapshot */
    char *page_key;            /* where the next page of the snapshot begins; NULL: the first */
    uint64_t page_rev;
    uint64_t heard_rev; /* the mirror's, once the events that are being read are all in it */
    uint32_t mark;
    struct kvs_http_call join; /* the step of joining that runs */
    struct kvs_http_call beat;
    struct kvs_http_call ping;
    json_t *ping_then; /* what it asks */
    uint64_t pings, ping_seen;
    uint64_t ping_rev; /* the mirror's when it was sent */
    struct kvs_http_stream stream;
    unsigned created; /* watches that etcd has confirmed: bits 1 and 2 */
    struct kvb_timer retry;
    struct kvb_timer beat_timer;
    struct kvb_timer lease_timer;
    struct kvb_timer deaf_timer; /* armed: no sound watch since before */
    struct kvb_timer ping_timer; /* armed: the watch owes us a ping */

    struct kvb_list members;
    struct kvb_list watchers;
    struct kvb_event news; /* to watchers */
    bool news_reach;
    struct kvb_list queue;    /* ops of nobody's, one after the other */
    struct kvb_list beside;   /* ops beside each other */
    struct kvb_list waiting;  /* retirements done, whose members have not all left */
    struct kvb_list requests; /* of nobody's in particular */
    struct kvb_timer sweep;   /* looks for names without members */

    /* the node of this process */
    struct kvs_node_record node;
    bool node_wanted, node_new;
    uint64_t node_lease; /* under which etcd has it; 0: has not */
    bool node_before;    /* it was there once, or may have been: others may have its name by now */
    uint64_t node_base;  /* what others wrote up to then we replace, what they wrote later stays */
    uint64_t node_rev;   /* when we last wrote it */
    bool node_gone;      /* its record went, and not by us: to be announced again */
    bool announcing;
    struct kvb_list missing; /* nodes that went just after we were away */
    struct kvb_timer gone;
    bool revoked; /* a member of ours has gone at etcd */
};

static inline struct etcd *kvs_etcd_of(struct kvs_coordinator *coordinator)
{
    return kvb_container_of(coordinator, struct etcd, base);
}
static inline struct etcd *kvs_etcd_home(struct member *member)
{
    return kvs_etcd_of(member->base.coordinator);
}

/* ---- keys (etcd.c) ---- */

/* The full key of a kind: prefix, version, kind, a, b (NULL: none). */
const char *kvs_etcd_key(const struct etcd *etcd, enum kvs_key_kind kind, const char *a,
                         const char *b, char out[KVS_ETCD_KEY_MAX]);
/* Appends text so that it holds no '/' and no byte that is not of a name. */
void kvs_etcd_encode(char *out, size_t cap, const char *text);
static inline bool kvs_etcd_decode(const char *text, size_t len, char *out, size_t cap)
{
    return kvb_percent_decode(text, len, false, out, cap) == KVB_OK;
}
static inline bool kvs_etcd_parse_lineage(const char *hex, struct kvb_lineage *lineage_p)
{
    return kvb_id_parse(hex, strlen(hex), &lineage_p->id);
}
bool kvs_etcd_parse_u64(const char *text, uint64_t *value_p);

static inline bool kvs_etcd_sound_tenant(const char *tenant)
{
    size_t len = strnlen(tenant, sizeof((struct kvs_space *)0)->tenant);
    return len > 0 && len < sizeof((struct kvs_space *)0)->tenant;
}

/* ---- session (etcd_session.c) ---- */

void kvs_session_start(struct etcd *etcd);
void kvs_session_stop(struct etcd *etcd);
/* Something that etcd should have answered did not come: members are told, and it joins anew. */
void kvs_session_away(struct etcd *etcd);
/* The lease has ended, or nobody can say that it has not. */
void kvs_session_lost(struct etcd *etcd);
/* An answer is of an earlier revision than was heard before it was asked for. */
void kvs_session_rewound(struct etcd *etcd);

/* The name that an entry of kind IN counts its member in; NULL: there is none. */
struct kvs_entry *kvs_etcd_name_of(const struct etcd *etcd, const struct kvs_entry *in);
void kvs_etcd_announce_again(struct etcd *etcd);

/* ---- what changed in the mirror (etcd.c) ---- */

void kvs_etcd_changed(struct etcd *etcd, enum kvs_key_kind kind, struct kvs_entry *entry,
                      const char *old);
/* Before it is removed. */
void kvs_etcd_removed(struct etcd *etcd, enum kvs_key_kind kind, const struct kvs_entry *entry);
/* After a batch of changes; and after a snapshot. */
void kvs_etcd_settled(struct etcd *etcd);
void kvs_etcd_synced(struct etcd *etcd);
void kvs_etcd_up(struct etcd *etcd);
void kvs_etcd_down(struct etcd *etcd, bool lost);

/* ---- ops (etcd_op.c) ---- */

/* NULL: no memory. In no list yet. */
struct op *kvs_op_create(struct etcd *etcd, const struct op_type *type, struct member *member,
                         struct kvs_coord_request *request);
void kvs_op_free(struct op *op); /* not running, in no list */
/* Behind the others of a queue; it runs when it is the first and etcd can be reached. */
void kvs_op_queue(struct kvb_list *queue, struct op *op);
/* At once, if etcd can be reached; else lasting ones wait, others answer UNAVAILABLE. */
void kvs_op_beside(struct kvb_list *list, struct op *op);
/* The same, in ms. */
void kvs_op_later(struct kvb_list *list, struct op *op, uint64_t ms);
/* Beside, anew, as what its type says now. */
void kvs_op_restart(struct kvb_list *list, struct op *op);
void kvs_op_run_queue(struct etcd *etcd, struct member *member, struct kvb_list *queue);
void kvs_op_run_beside(struct kvb_list *list);
/* etcd cannot be reached: what has not begun answers so. */
void kvs_op_fail_queue(struct kvb_list *queue);
void kvs_op_drop_all(struct kvb_list *list);

/* ---- members (etcd_member.c) ---- */

/* What kvs_coordinator_ops has for members. */
kvb_status_t kvs_member_etcd_open(struct kvs_coordinator *base, const char *instance,
                                  const struct kvs_space *space, const struct kvs_member_ops *ops,
                                  void *ctx, struct kvs_member **member_p);
void kvs_member_etcd_close(struct kvs_member *base);
void kvs_member_etcd_resolve(struct kvs_member *base, const char *name,
                             struct kvs_coord_request *request);
void kvs_member_etcd_check(struct kvs_member *base, const char *name, struct kvb_lineage lineage,
                           struct kvs_coord_request *request);
void kvs_member_etcd_leave(struct kvs_member *base, const char *name);
void kvs_member_etcd_abandon(struct kvs_member *base, struct kvb_lineage lineage);
void kvs_member_etcd_left(struct kvs_member *base, uint64_t retirement);
void kvs_member_etcd_retire(struct kvs_member *base, const struct kvb_lineage *lineages, uint32_t n,
                            const char *name, uint64_t deadline_ns,
                            struct kvs_coord_request *request);
void kvs_member_etcd_tenant_reset(struct kvs_coordinator *base, const char *tenant,
                                  struct kvs_member *asker, uint64_t deadline_ns,
                                  struct kvs_coord_request *request);
void kvs_member_etcd_step(struct kvs_member *base, uint64_t epoch, uint64_t step,
                          struct kvs_coord_request *request);
kvb_status_t kvs_member_etcd_publish(struct kvs_member *base, const char *text);
/* Makes it known to etcd, under the present lease; then its queue runs. */
void kvs_member_register(struct member *member);
/* Tells it whether etcd can be reached, behind all that was posted before. */
void kvs_member_tell_reach(struct member *member);
void kvs_member_up(struct member *member);
void kvs_member_down(struct member *member, bool lost);
/* At once, if that is still to be told; it may close inside. */
bool kvs_member_tell_lost(struct member *member);
void kvs_member_reap(struct member *member); /* closed: freed soon, when nothing is left to do */
/* In a txn of a member's op: what was left is not counted any more; and when that was done. */
void kvs_member_uncount(struct op *op, struct kvs_txn *txn);
void kvs_member_uncounted(struct member *member);
/* The step of op's space stands for this lineage: the record that stands for another. text:
 * malloc'd, NULL: no memory. False: it does not; mod_rev is set all the same. */
bool kvs_member_step_redrawn(const struct op *op, struct kvb_lineage lineage, char **text_p,
                             uint64_t *mod_rev_p);
uint32_t kvs_member_step_lineages(const struct kvs_entry *entry, struct kvb_lineage out[2]);
bool kvs_member_step_stands(const struct kvs_entry *entry, struct kvb_lineage lineage);

struct kvs_found {
    uint64_t create_rev;
    uint32_t n;
    char *value; /* malloc'd */
};
/* The one key of a range in an answer, or none. value is set whatever the status. */
KVB_MUST_USE kvb_status_t kvs_op_one_kv(const struct kvs_txn_answer *answer, uint32_t place,
                                        struct kvs_found *found);

/* ---- retirements (etcd_retire.c) ---- */

void kvs_retire_member(struct member *member, const struct kvb_lineage *lineages, uint32_t n,
                       const char *name, uint64_t deadline_ns, struct kvs_coord_request *request);
void kvs_retire_tenant(struct etcd *etcd, const char *tenant, struct member *asker,
                       uint64_t deadline_ns, struct kvs_coord_request *request);
void kvs_retire_abandon(struct member *member, struct kvb_lineage lineage);
void kvs_retire_left(struct member *member, uint64_t retirement);
/* It has, and etcd has not answered yet whether that was part of the reset of this epoch. */
bool kvs_retire_is_leaving(const struct member *member, uint64_t epoch);
void kvs_retire_forget(struct etcd *etcd, const struct kvs_entry *name);
/* Puts the record of lineages that nobody uses any more; in a txn of another op. */
void kvs_retire_quietly(struct op *op, struct kvs_txn *txn, const char *path,
                        struct kvb_lineage lineage);
/* A retirement that etcd has, to everybody here. */
void kvs_retire_heard(struct etcd *etcd, const struct kvs_entry *entry);
void kvs_retire_replay(struct etcd *etcd, struct watcher *watcher);
/* What a member has missed. */
void kvs_retire_catch_up(struct member *member);
/* Members left, or are gone: who waits for them? */
void kvs_retire_settle(struct etcd *etcd);
/* What etcd knew of them is not to be had any more: nobody can say that all have left. */
void kvs_retire_give_up(struct etcd *etcd);
/* Names that have members: since_ns is now, which it gives; the others' is earlier. */
uint64_t kvs_retire_note_members(struct etcd *etcd);
void kvs_retire_sweep(struct etcd *etcd);
/* It closes: it is told nothing any more, and what it asked for goes on without it. */
void kvs_retire_close(struct member *member);
/* An op whose asker is gone. */
void kvs_retire_disown(void *op);
bool kvs_retire_goes_on(const struct op *op);

#endif
