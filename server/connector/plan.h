/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONNECTOR_PLAN_H
#define SERVER_CONNECTOR_PLAN_H

#include "connector/fsm.h"

/*
 * What an operation does, as a list of steps out of one table, made before anything is done. Pure.
 * A step runs on all the ranks it concerns and ends when each has answered; only then the next one
 * begins, so everything happens in phases over all ranks.
 *
 * If a step fails before a step without return has begun, what was done is undone in reverse, by
 * the undo column. From a step without return on it only goes forward.
 */
enum kvp_who { KVP_WHO_NOBODY, KVP_WHO_SCHEDULER, KVP_WHO_WORKERS, KVP_WHO_ALL };

#define KVP_STEP_UNDO_MAX 3
/* name, label, who, soft (a failure is told, but the rest is done), no return, undo steps */
#define KVP_STEPS(X)                                                                               \
    X(STOP, "pause", SCHEDULER, false, false, KVP_STEP_UNSTOP)                                     \
    X(DRAIN, "drain", WORKERS, false, false, 0)                                                    \
    X(LEAVE, "leave", ALL, false, false, 0)                                                        \
    X(RESET_LOCAL, "reset_local", SCHEDULER, false, false, 0)                                      \
    X(RESET_SOFT, "reset_local", SCHEDULER, true, false, 0) /* may be refused: blocks held */      \
    X(UNREGISTER, "unregister", WORKERS, false, false, KVP_STEP_RESTORE, KVP_STEP_REGISTER)        \
    X(OFFLOAD, "offload", WORKERS, false, false, 0)                                                \
    X(DISCARD, "release", WORKERS, false, true, 0)                                                 \
    X(RESTORE, "restore", WORKERS, false, false, KVP_STEP_UNREGISTER, KVP_STEP_OFFLOAD,            \
      KVP_STEP_RELEASE_BACK)                                                                       \
    X(RELEASE_BACK, "release", WORKERS, false, false, 0) /* of what was only just restored */      \
    X(REGISTER, "register", WORKERS, false, false, 0)    /* undone with RESTORE */                 \
    X(AWAKE, "register", NOBODY, false, false, 0)        /* what was restored is what should be */ \
    X(STATE, "state", ALL, false, false, 0)                                                        \
    X(CONVERGE, "converge", NOBODY, false, false, 0) /* what the ranks' states leave to be done */ \
    X(SETTLE, "settle", NOBODY, false, false, 0)     /* scheduler as it should be, after that */   \
    X(BEGIN_UPDATE, "begin_update", ALL, false, false, KVP_STEP_UNBEGIN)                           \
    X(BEGIN_CALL, "begin_update", ALL, false, false, KVP_STEP_UNBEGIN)                             \
    X(RELAY, "relay", ALL, false, false, 0)                                                        \
    X(RELAY_SOFT, "relay", ALL, true, false, 0) /* the engine may not know the call */             \
    X(LEFT, "leave", NOBODY, false, false, 0)   /* if the relay wrote weights: acknowledged */     \
    X(END_CALL, "end_update", NOBODY, false, false, 0)                                             \
    X(FINISH, "finish", NOBODY, false, false, 0)                                                   \
    X(CLOSE_RESUME, "end_update", NOBODY, false, false, 0)                                         \
    X(CLOSE_AWAKE, "end_update", NOBODY, false, false, 0)                                          \
    X(VERSION, "version", NOBODY, false, false, 0)                                                 \
    X(NAME, "name", NOBODY, false, false, 0) /* acknowledged, and named if it can be */            \
    X(RETIRE, "retire", NOBODY, true, false, 0)                                                    \
    X(TENANT, "tenant", NOBODY, true, false, 0)                                                    \
    X(RUN, "resume", SCHEDULER, false, false, 0)                                                   \
    X(UNSTOP, "resume", SCHEDULER, false, false, 0) /* if it ran before */                         \
    X(UNBEGIN, "end_update", NOBODY, false, false, 0)
enum kvp_step {
    KVP_STEP_NONE,
#define X(name, label, who, soft, noreturn, ...) KVP_STEP_##name,
    KVP_STEPS(X)
#undef X
        KVP_STEP_COUNT
};
struct kvp_step_info {
    const char *label;
    enum kvp_who who;
    bool soft;
    bool no_return;
    uint8_t undo[KVP_STEP_UNDO_MAX];
};
const struct kvp_step_info *kvp_step_info(enum kvp_step step);

#define KVP_PLAN_STEPS_MAX 24
struct kvp_plan {
    kvb_status_t refused; /* OK, or why it cannot be done now */
    const char *reason;   /* static text, with refused or nothing_to_do */
    bool nothing_to_do;   /* it is so already */
    uint32_t nsteps;
    uint8_t steps[KVP_PLAN_STEPS_MAX];
    /* memory */
    uint32_t nrelease;
    struct kvb_link_release_tag release[KVB_TAGS_MAX];
    uint32_t nrestore;
    char restore[KVB_TAGS_MAX][KVB_NAME_MAX];
    bool reconcile; /* steps that release are for what CONVERGE found to be released */
    /* scheduler */
    enum kvb_pause_mode mode;
    bool preempt;
    unsigned stop; /* bits set when it succeeded, or from the step without return on */
    unsigned lift; /* bits lifted when it succeeded */
    bool opt_out;  /* memory goes without leaving */
    bool leaving;  /* a LEAVE is in it */
    /* answers */
    uint32_t ntags_woken, ntags_ignored;
    char tags_woken[KVB_TAGS_MAX][KVB_NAME_MAX];
    char tags_ignored[KVB_TAGS_MAX][KVB_NAME_MAX];
};

/* What the last operation that stopped an instance found there, and did: to take it back. */
struct kvp_found {
    uint64_t id;  /* of the operation; 0: none */
    bool touched; /* another request was told that it is so, or has changed it since */
    unsigned stop;
    struct kvp_fsm before;
};

/* What an instance is when the plan is made. */
struct kvp_situation {
    const struct kvp_fsm *fsm;
    const struct kvp_found *found;
    bool opted_out;    /* asleep without having left */
    bool idle;         /* by the last report: nothing runs, waits or loads */
    bool store;        /* one is configured */
    bool counts_steps; /* --unversioned: weights written must be known before its event */
    bool sleeps_once;  /* what is offloaded cannot be discarded, but after a wake */
};
void kvp_plan_make(const struct kvp_ask *ask, const struct kvp_situation *now,
                   struct kvp_plan *plan_p);
/* Asks the engine what is so and brings it to where it should be. */
void kvp_plan_reconcile(struct kvp_plan *plan_p);
/* The undo of the steps [0, done): asks for the ranks' state, then the undo columns in reverse.
 * before: the residencies when the plan was made. */
void kvp_plan_undo(const struct kvp_plan *plan, uint32_t done, const struct kvp_fsm *before,
                   struct kvp_plan *undo_p);

#endif
