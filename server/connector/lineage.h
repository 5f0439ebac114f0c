/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONNECTOR_LINEAGE_H
#define SERVER_CONNECTOR_LINEAGE_H

#include "connector/rank.h"

/*
 * The lineage rules of one instance (DESIGN.md section 4), pure: events in, next state and actions
 * out. No I/O, no clock; randomness is handed in. The rules were model-checked (model/lineage.py in
 * the design's shared folder); the words here are the model's. A change of rules is tried there
 * first.
 *
 * What is asked of others (engine, coordinator) carries an ask number; an answer with another
 * number than the one waited for is void (rule 4). The state is plain data without pointers, names
 * zero-padded, so that it can be copied, compared and walked by a test.
 */

#define KVP_TOLD_MAX 32 /* retirements told and not yet answered */

/* Why it leaves.  keep: the weights did not change, so their name stays. */
#define KVP_LEAVE_REASONS(X)                                                                       \
    /*  name        keep   label */                                                                \
    X(PAUSE, false, "pause")                                                                       \
    X(SLEEP, false, "sleep")                                                                       \
    X(RELEASE, false, "release")                                                                   \
    X(RESET, true, "reset_external")                                                               \
    X(TOLD, true, "retired")                                                                       \
    X(TENANT, true, "tenant_reset")                                                                \
    X(LOST, true, "coordinator_lost")                                                              \
    X(UPDATE_BEGINS, false, "update_begins")                                                       \
    X(UPDATE_ENDS, false, "update_ends")                                                           \
    X(WRITTEN, false, "weights_written")                                                           \
    X(ATTACH, false, "attach")                                                                     \
    X(ECHO, true, "echo_not_bound")
enum kvp_leave {
#define X(name, keep, label) KVP_LEAVE_##name,
    KVP_LEAVE_REASONS(X)
#undef X
};
const char *kvp_leave_label(enum kvp_leave why);

/* Why it shares with nobody, and how to do better. */
#define KVP_PRIVATE_REASONS(X)                                                                     \
    X(NONE, "")                                                                                    \
    X(NO_STORE, "no store is configured")                                                          \
    X(DETACHED, "the engine is not attached")                                                      \
    X(UPDATING, "a weight change is running, or its end is unknown: finish it")                    \
    X(ASLEEP, "memory is not resident: it is named when everything is awake")                      \
    X(UNREACHABLE, "the coordinator cannot be reached: joins its name when it is back")            \
    X(RETIREMENT, "a reset is not delivered yet: joins its name after that")                       \
    X(JOINING, "on its way into the lineage of its name")                                          \
    X(HELD, "a version was given and is judged at resume")                                         \
    X(UNNAMED, "nothing vouches for the weights: give weight_version when they change (finish, "   \
               "update_weight_version, wake_up), or let the engine compute a fingerprint")         \
    X(FIRST_VERSION, "the version was not yet seen to change: the next different one names")       \
    X(SAME_VERSION, "the weights changed but the version given did not: give each its own")        \
    X(CUT_SHORT, "the weight change was ended by resume instead of finish: nothing vouches")       \
    X(OUT_OF_STEP, "out of step (attached, restarted or missed the coordinator): reset the "       \
                   "tenant between two steps")                                                     \
    X(REFUSED, "the coordinator refused the name")
enum kvp_private {
#define X(name, text) KVP_PRIVATE_##name,
    KVP_PRIVATE_REASONS(X)
#undef X
};
const char *kvp_private_text(enum kvp_private why);

enum kvp_ack { KVP_ACKED, KVP_ACK_JOIN, KVP_ACK_LEFT }; /* what the engine has yet to acknowledge */
enum kvp_name_kind { KVP_NAME_NONE, KVP_NAME_VERSION, KVP_NAME_FINGERPRINT, KVP_NAME_STEP };
enum kvp_unversioned {
    KVP_UNVERSIONED_OFF,
    KVP_UNVERSIONED_RESET,
    KVP_UNVERSIONED_FINISH,
    KVP_UNVERSIONED_SLEEP
};

struct kvp_lineage {
    /* what it is; changes only at hello */
    bool tracks;       /* the engine keeps the token per local block: needs no local reset */
    bool fingerprints; /* the engine computes fingerprints */
    bool coordinator;  /* a store is configured */
    enum kvp_unversioned unversioned;

    /* the stay */
    struct kvb_lineage lineage;
    struct kvb_token token;
    char joined_name[KVB_WEIGHTS_NAME_MAX]; /* name under which it is in there; "" = private */
    enum kvp_ack ack;
    uint32_t send_ask; /* the LINEAGE whose acknowledgement counts */

    /* what keeps it closed */
    bool attached;
    bool local_reset_done; /* the engine's own cache, since the last leave */
    bool reset_owned;      /* an operation does the local reset itself; no join until it has */
    bool reset_refused;    /* blocks are held: waits for a report */
    uint32_t reset_ask;
    bool update;   /* a weight change runs, or its end is unknown */
    bool resident; /* every tag */
    bool echoed;   /* taken over from a hello; the coordinator is being asked */

    /* the name of the weights */
    char name[KVB_WEIGHTS_NAME_MAX]; /* to be joined, or joined; "" = none */
    enum kvp_name_kind kind;
    bool want_join;
    char last_name[KVB_WEIGHTS_NAME_MAX]; /* last one of the present weights, also after a leave */
    struct kvb_lineage last_lineage;      /* and what it stood for */
    char version[KVB_WEIGHTS_NAME_MAX];   /* last version judged */
    bool proven;                          /* it was seen to change since attach */
    bool changed;                         /* the weights changed since it was judged */
    bool vouched;                         /* it was given for the weights held now */
    char held[KVB_WEIGHTS_NAME_MAX];      /* given during a change, judged at its end */
    bool stopped;                         /* the scheduler is: versions are held */
    bool opted_out;                       /* asleep without having left */
    bool fingerprint_failed;              /* in this stay: a version may name instead */
    enum kvp_private unnamed;             /* why there is no name */
    uint32_t resolve_ask, fingerprint_ask, check_ask;

    /* the coordinator */
    bool reachable;
    bool starved;      /* it found no memory: asked again at the next report */
    uint32_t nretired; /* retirements it has not got yet; also kept by the engine */
    uint32_t retiring; /* how many of them retire_ask carries */
    uint32_t retire_ask;
    bool retire_name; /* and what last_name stands for */
    struct kvb_lineage retired[KVB_RETIRED_MAX];
    uint32_t ntold;
    uint64_t told[KVP_TOLD_MAX]; /* to be answered once the engine has acknowledged the leaving */

    /* --unversioned */
    bool aligned;
    uint64_t epoch, step;
    bool written_since_step;

    uint32_t asks; /* last ask number used */
};

enum kvp_lineage_do {
    KVP_DO_SEND,        /* kvp_lineage_message() to every rank; then kvp_lineage_acked(ask) */
    KVP_DO_STAY,        /* the stay changed: ranks fail what belongs to an earlier one */
    KVP_DO_LOCAL_RESET, /* without preemption; then kvp_lineage_local_reset(ask) */
    KVP_DO_FINGERPRINT,
    KVP_DO_RESOLVE,    /* `name` */
    KVP_DO_STEP,       /* (epoch, step); answered like RESOLVE */
    KVP_DO_CHECK,      /* is joined_name still bound to lineage? */
    KVP_DO_RETIRE,     /* retired[0 .. retiring), and last_name if retire_name */
    KVP_DO_LEAVE_NAME, /* action's name */
    KVP_DO_ABANDON,    /* action's lineage: private, nobody can read it again */
    KVP_DO_MEMBER_LEFT /* action's retirement */
};
struct kvp_lineage_action {
    enum kvp_lineage_do what;
    uint32_t ask;
    struct kvb_lineage lineage;
    uint64_t retirement;
    char name[KVB_WEIGHTS_NAME_MAX];
};
#define KVP_LINEAGE_ACTIONS_MAX (KVP_TOLD_MAX + 16)
/* Filled by each event; to be carried out in order. */
struct kvp_lineage_out {
    uint32_t left; /* bits (1 << kvp_leave): it was left, and why; for the metrics */
    uint32_t n;
    struct kvp_lineage_action actions[KVP_LINEAGE_ACTIONS_MAX];
};

/* Closed, private, not attached. */
void kvp_lineage_init(struct kvp_lineage *l, bool coordinator, enum kvp_unversioned unversioned,
                      const struct kvb_random *random);

/* What an engine says when all its ranks have attached (DESIGN.md section 4, Attaching). */
struct kvp_lineage_hello {
    bool living; /* this daemon knew the instance before: its own lineage wins */
    bool tracks, fingerprints;
    struct kvb_lineage lineage; /* echo; token none: it never acknowledged one, or restarted */
    struct kvb_token token;
    const char *name;         /* under which it had joined; "" = private */
    const char *weights_name; /* version it was started with; "" */
    bool update;              /* a weight change was running */
    bool written;             /* weights written since it acknowledged */
    bool local_reset_done;
    bool resident, stopped;
    const struct kvb_lineage *retired;
    uint32_t nretired;
};
void kvp_lineage_attached(struct kvp_lineage *l, const struct kvp_lineage_hello *hello,
                          const struct kvb_random *random, struct kvp_lineage_out *out);
void kvp_lineage_detached(struct kvp_lineage *l, struct kvp_lineage_out *out);

/* Leaving; owned: the caller does the local reset (kvp_lineage_reset_begin). Only PAUSE, SLEEP,
 * RELEASE, RESET: the other reasons are events of their own. */
void kvp_lineage_leave(struct kvp_lineage *l, enum kvp_leave why, bool owned,
                       const struct kvb_random *random, struct kvp_lineage_out *out);
/* About to sleep without leaving (reset_external=false, level 1); until all is resident again. */
void kvp_lineage_opt_out(struct kvp_lineage *l);

/* The engine acknowledged LINEAGE `ask` on every rank. */
void kvp_lineage_acked(struct kvp_lineage *l, uint32_t ask, struct kvp_lineage_out *out);
/* It did not (timeout): send again. */
void kvp_lineage_resend(struct kvp_lineage *l, struct kvp_lineage_out *out);
/* The LINEAGE to send now. */
void kvp_lineage_message(const struct kvp_lineage *l, struct kvb_link_lineage *msg_p);

/* An operation begins a local reset of its own: its ask number. */
uint32_t kvp_lineage_reset_begin(struct kvp_lineage *l);
/* OK; BUSY: blocks are held; anything else: it is asked for again by kvp_lineage_report(). */
void kvp_lineage_local_reset(struct kvp_lineage *l, uint32_t ask, kvb_status_t status,
                             struct kvp_lineage_out *out);
/* The operation that owned the local reset is over, however it went. */
void kvp_lineage_disown(struct kvp_lineage *l, struct kvp_lineage_out *out);
/* The engine holds no block, or something changed: what was refused may be tried again. */
void kvp_lineage_report(struct kvp_lineage *l, struct kvp_lineage_out *out);

void kvp_lineage_update_begins(struct kvp_lineage *l, const struct kvb_random *random,
                               struct kvp_lineage_out *out);
/* clean: it ended as it should, so a version given in it is judged; finish: the step event of
 * --unversioned=finish. */
void kvp_lineage_update_ends(struct kvp_lineage *l, bool clean, bool finish,
                             const struct kvb_random *random, struct kvp_lineage_out *out);
/* The engine reports that its weights were written. */
void kvp_lineage_written(struct kvp_lineage *l, const struct kvb_random *random,
                         struct kvp_lineage_out *out);
void kvp_lineage_version(struct kvp_lineage *l, const char *version, struct kvp_lineage_out *out);
void kvp_lineage_fingerprint(struct kvp_lineage *l, uint32_t ask, kvb_status_t status,
                             const char *fingerprint, struct kvp_lineage_out *out);
void kvp_lineage_resident(struct kvp_lineage *l, bool resident, const struct kvb_random *random,
                          struct kvp_lineage_out *out);
void kvp_lineage_stopped(struct kvp_lineage *l, bool stopped, struct kvp_lineage_out *out);

void kvp_lineage_resolved(struct kvp_lineage *l, uint32_t ask, kvb_status_t status,
                          struct kvb_lineage lineage, const struct kvb_random *random,
                          struct kvp_lineage_out *out);
void kvp_lineage_checked(struct kvp_lineage *l, uint32_t ask, kvb_status_t status, bool bound,
                         const struct kvb_random *random, struct kvp_lineage_out *out);
void kvp_lineage_retired(struct kvp_lineage *l, uint32_t ask, kvb_status_t status,
                         struct kvp_lineage_out *out);
void kvp_lineage_told(struct kvp_lineage *l, struct kvb_lineage lineage, uint64_t retirement,
                      const struct kvb_random *random, struct kvp_lineage_out *out);
void kvp_lineage_told_tenant(struct kvp_lineage *l, uint64_t retirement,
                             const struct kvb_random *random, struct kvp_lineage_out *out);
void kvp_lineage_reachable(struct kvp_lineage *l, bool reachable, struct kvp_lineage_out *out);
/* Out of reach for so long that others may be told that it has left (kvs_member_ops.lost). */
void kvp_lineage_lost(struct kvp_lineage *l, const struct kvb_random *random,
                      struct kvp_lineage_out *out);

/* ---- derived ---- */
bool kvp_lineage_open(const struct kvp_lineage *l);
bool kvp_lineage_named(const struct kvp_lineage *l);
/* Nothing of what it asked is outstanding: what could be joined by now, is. */
bool kvp_lineage_settled(const struct kvp_lineage *l);
enum kvp_private kvp_lineage_why_private(const struct kvp_lineage *l);
void kvp_lineage_stay(const struct kvp_lineage *l, struct kvp_stay *stay_p);

#endif
