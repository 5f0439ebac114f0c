/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONNECTOR_FSM_H
#define SERVER_CONNECTOR_FSM_H

#include "connector/instance.h"

/*
 * The state machine of one instance (DESIGN.md section 8), pure: three small machines as tables,
 * each with one setter, and the rule of the one operation slot. What is not listed is illegal.
 * Everything else about an instance is derived from these.
 */

/* ---- scheduler ---- */

#define KVP_SCHEDULER_EVENTS(X)                                                                    \
    X(STOP)        /* pause was asked of the engine */                                             \
    X(IDLE)        /* and it answered: idle */                                                     \
    X(RUN)         /* resume was answered */                                                       \
    X(SAYS_PAUSED) /* the engine's own account (hello, state) */                                   \
    X(SAYS_RUNNING)
enum kvp_scheduler_event {
#define X(name) KVP_SCHED_##name,
    KVP_SCHEDULER_EVENTS(X)
#undef X
        KVP_SCHED_EVENT_COUNT
};
#define KVP_SCHEDULER_COUNT 3

/* ---- residency of one tag (over all ranks; unknown also if they differ) ---- */

#define KVP_TAG_EVENTS(X)                                                                          \
    X(OFFLOADED) /* released, contents kept aside */                                               \
    X(DISCARDED) /* released, contents gone */                                                     \
    X(RESTORED)  /* mapped and registered again */                                                 \
    X(LOST)      /* an answer did not come, or the ranks differ */                                 \
    X(SAYS_RESIDENT) X(SAYS_OFFLOADED) X(SAYS_DISCARDED)
enum kvp_tag_event {
#define X(name) KVP_TAG_##name,
    KVP_TAG_EVENTS(X)
#undef X
        KVP_TAG_EVENT_COUNT
};
#define KVP_RESIDENCY_COUNT 4

/* ---- weight updates ---- */

#define KVP_BRACKETS(X)                                                                            \
    X(NONE, "none")         /* no weight change runs */                                            \
    X(EXPLICIT, "explicit") /* between start and finish */                                         \
    X(IMPLICIT, "implicit") /* opened by a call outside of one; until resume or the last wake */   \
    X(UNKNOWN, "unknown")   /* its call was not answered: still running */
enum kvp_bracket {
#define X(name, text) KVP_BRACKET_##name,
    KVP_BRACKETS(X)
#undef X
        KVP_BRACKET_COUNT
};
#define KVP_BRACKET_EVENTS(X)                                                                      \
    X(START)        /* start_weight_update is about to be relayed */                               \
    X(START_FAILED) /* the engine refused it, or never got it */                                   \
    X(START_LOST)   /* it was not answered */                                                      \
    X(CALL)         /* another call that changes weights is about to be relayed */                 \
    X(CALL_ENDED)   /* it was answered, and the scheduler runs */                                  \
    X(CALL_FAILED)  /* it was answered with an error, and the scheduler runs */                    \
    X(CALL_LOST)    /* it was not answered */                                                      \
    X(FINISH)       /* finish_weight_update was answered */                                        \
    X(RESUME)                                                                                      \
    X(ALL_AWAKE)    /* the last tag was woken */                                                   \
    X(SAYS_RUNNING) /* the engine's own account */                                                 \
    X(SAYS_ENDED)
enum kvp_bracket_event {
#define X(name) KVP_BEV_##name,
    KVP_BRACKET_EVENTS(X)
#undef X
        KVP_BRACKET_EVENT_COUNT
};
/* What a transition means for the lineage. */
enum kvp_bracket_effect {
    KVP_EFFECT_NONE,
    KVP_EFFECT_BEGIN,  /* a weight change begins */
    KVP_EFFECT_END,    /* it ended as it should */
    KVP_EFFECT_FINISH, /* likewise, by finish */
    KVP_EFFECT_CUT     /* it ended otherwise: names nothing */
};

struct kvp_fsm {
    enum kvp_scheduler scheduler;
    unsigned stopped_by; /* kvp_stopper bits; what must be lifted before it may run again */
    enum kvb_pause_mode pause_mode;
    enum kvp_bracket bracket;
    uint32_t ntags;
    struct kvb_tag_state tags[KVB_TAGS_MAX];
};

void kvp_fsm_init(struct kvp_fsm *fsm);

/* The setters. True: done. False: illegal here, nothing changed. */
KVB_MUST_USE bool kvp_fsm_scheduler(struct kvp_fsm *fsm, enum kvp_scheduler_event event);
KVB_MUST_USE bool kvp_fsm_tag(struct kvp_fsm *fsm, const char *tag, enum kvp_tag_event event);
KVB_MUST_USE bool kvp_fsm_bracket(struct kvp_fsm *fsm, enum kvp_bracket_event event,
                                  enum kvp_bracket_effect *effect_p);

const char *kvp_scheduler_text(enum kvp_scheduler scheduler);
const char *kvp_bracket_text(enum kvp_bracket bracket);

/* A tag that was not known is added as resident. NULL: KVB_TAGS_MAX reached. */
struct kvb_tag_state *kvp_fsm_add_tag(struct kvp_fsm *fsm, const char *tag);
const struct kvb_tag_state *kvp_fsm_find_tag(const struct kvp_fsm *fsm, const char *tag);
bool kvp_fsm_all_resident(const struct kvp_fsm *fsm);
bool kvp_fsm_none_resident(const struct kvp_fsm *fsm);

/* What status and probes say; the one place where they are derived. */
struct kvp_derived {
    bool is_paused;
    bool is_sleeping;
    bool ready;
    const char *not_ready; /* "" if ready; static */
};
struct kvp_derived kvp_fsm_derive(const struct kvp_fsm *fsm, bool attached, bool unknown);

/* ---- the operation slot ---- */

enum kvp_admit {
    KVP_ADMIT_START,     /* the slot is free and nobody waits */
    KVP_ADMIT_JOIN,      /* shares the answer of the one running */
    KVP_ADMIT_JOIN_LAST, /* shares the answer of the last one waiting */
    KVP_ADMIT_WAIT,      /* its turn comes */
    KVP_ADMIT_CANCEL,    /* cancels the one running, then waits */
    KVP_ADMIT_BESIDE,    /* takes no slot */
    KVP_ADMIT_FULL       /* too many wait */
};
#define KVP_WAITING_MAX 64
struct kvp_slot {
    const struct kvp_ask *running; /* NULL: free */
    bool joinable;                 /* a later identical request may share its answer */
    bool cancelable;               /* nothing irreversible was begun, and it drains */
    const struct kvp_ask *last;    /* the last one waiting, NULL: none */
    uint32_t waiting;
};
enum kvp_admit kvp_fsm_admit(const struct kvp_slot *slot, const struct kvp_ask *ask);

bool kvp_operation_takes_slot(enum kvp_operation operation);

#endif
