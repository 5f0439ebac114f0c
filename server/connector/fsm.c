/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/fsm.h"

#include <string.h>

/* An edge holds its target + 1, so that what is not listed (0) is illegal. */
#define TO(state) ((uint8_t)((state) + 1))

#define S(name) TO(KVP_SCHEDULER_##name)
static const uint8_t scheduler_edges[KVP_SCHEDULER_COUNT][KVP_SCHED_EVENT_COUNT] = {
    [KVP_SCHEDULER_RUNNING] =
        {
            [KVP_SCHED_STOP] = S(PAUSING),
            [KVP_SCHED_RUN] = S(RUNNING), /* a resume that was answered twice */
            [KVP_SCHED_SAYS_PAUSED] = S(PAUSED),
            [KVP_SCHED_SAYS_RUNNING] = S(RUNNING),
        },
    [KVP_SCHEDULER_PAUSING] =
        {
            [KVP_SCHED_STOP] = S(PAUSING), /* asked again, after an answer was lost */
            [KVP_SCHED_IDLE] = S(PAUSED),
            [KVP_SCHED_RUN] = S(RUNNING),
            [KVP_SCHED_SAYS_PAUSED] = S(PAUSED),
            [KVP_SCHED_SAYS_RUNNING] = S(RUNNING),
        },
    [KVP_SCHEDULER_PAUSED] =
        {
            [KVP_SCHED_STOP] = S(PAUSING), /* with another mode */
            [KVP_SCHED_RUN] = S(RUNNING),
            [KVP_SCHED_SAYS_PAUSED] = S(PAUSED),
            [KVP_SCHED_SAYS_RUNNING] = S(RUNNING),
        },
};
#undef S

#define R(name) TO(KVB_##name)
static const uint8_t tag_edges[KVP_RESIDENCY_COUNT][KVP_TAG_EVENT_COUNT] = {
    [KVB_RESIDENT] =
        {
            [KVP_TAG_OFFLOADED] = R(OFFLOADED),
            [KVP_TAG_DISCARDED] = R(DISCARDED),
            [KVP_TAG_RESTORED] = R(RESIDENT), /* undo: the same memory handed over anew */
            [KVP_TAG_LOST] = R(UNKNOWN),
            [KVP_TAG_SAYS_RESIDENT] = R(RESIDENT),
            [KVP_TAG_SAYS_OFFLOADED] = R(OFFLOADED),
            [KVP_TAG_SAYS_DISCARDED] = R(DISCARDED),
        },
    [KVB_OFFLOADED] =
        {
            [KVP_TAG_OFFLOADED] = R(OFFLOADED),
            [KVP_TAG_DISCARDED] = R(DISCARDED), /* level 2 after level 1 */
            [KVP_TAG_RESTORED] = R(RESIDENT),
            [KVP_TAG_LOST] = R(UNKNOWN),
            [KVP_TAG_SAYS_RESIDENT] = R(RESIDENT),
            [KVP_TAG_SAYS_OFFLOADED] = R(OFFLOADED),
            [KVP_TAG_SAYS_DISCARDED] = R(DISCARDED),
        },
    [KVB_DISCARDED] =
        {
            /* no OFFLOADED: what is gone cannot be kept aside */
            [KVP_TAG_DISCARDED] = R(DISCARDED),
            [KVP_TAG_RESTORED] = R(RESIDENT),
            [KVP_TAG_LOST] = R(UNKNOWN),
            [KVP_TAG_SAYS_RESIDENT] = R(RESIDENT),
            [KVP_TAG_SAYS_OFFLOADED] = R(OFFLOADED),
            [KVP_TAG_SAYS_DISCARDED] = R(DISCARDED),
        },
    [KVB_UNKNOWN] =
        {
            [KVP_TAG_OFFLOADED] = R(OFFLOADED),
            [KVP_TAG_DISCARDED] = R(DISCARDED),
            [KVP_TAG_RESTORED] = R(RESIDENT),
            [KVP_TAG_LOST] = R(UNKNOWN),
            [KVP_TAG_SAYS_RESIDENT] = R(RESIDENT),
            [KVP_TAG_SAYS_OFFLOADED] = R(OFFLOADED),
            [KVP_TAG_SAYS_DISCARDED] = R(DISCARDED),
        },
};
#undef R

struct bracket_edge {
    uint8_t next; /* + 1; 0: illegal */
    enum kvp_bracket_effect effect;
};
#define B(name, what)                                                                              \
    {                                                                                              \
        TO(KVP_BRACKET_##name), KVP_EFFECT_##what                                                  \
    }
static const struct bracket_edge bracket_edges[KVP_BRACKET_COUNT][KVP_BRACKET_EVENT_COUNT] =
    {
        [KVP_BRACKET_NONE] =
            {
                [KVP_BEV_START] = B(EXPLICIT, BEGIN),
                [KVP_BEV_CALL] = B(IMPLICIT, BEGIN),
                [KVP_BEV_FINISH] = B(NONE, NONE), /* relayed again: nothing was open */
                [KVP_BEV_RESUME] = B(NONE, NONE),
                [KVP_BEV_ALL_AWAKE] = B(NONE, NONE),
                [KVP_BEV_SAYS_RUNNING] = B(EXPLICIT, BEGIN), /* begun under an earlier daemon */
                [KVP_BEV_SAYS_ENDED] = B(NONE, NONE),
            },
        [KVP_BRACKET_EXPLICIT] =
            {
                [KVP_BEV_START] = B(EXPLICIT, NONE),
                [KVP_BEV_START_FAILED] = B(NONE, CUT),
                [KVP_BEV_START_LOST] = B(UNKNOWN, NONE),
                [KVP_BEV_CALL] = B(EXPLICIT, NONE),
                [KVP_BEV_CALL_ENDED] = B(EXPLICIT, NONE),
                [KVP_BEV_CALL_FAILED] = B(EXPLICIT, NONE),
                [KVP_BEV_CALL_LOST] = B(EXPLICIT, NONE), /* until finish or resume says otherwise */
                [KVP_BEV_FINISH] = B(NONE, FINISH),
                [KVP_BEV_RESUME] = B(NONE, CUT),
                [KVP_BEV_ALL_AWAKE] = B(EXPLICIT, NONE),
                [KVP_BEV_SAYS_RUNNING] = B(EXPLICIT, NONE),
                [KVP_BEV_SAYS_ENDED] = B(EXPLICIT, NONE), /* between two calls of it */
            },
        [KVP_BRACKET_IMPLICIT] =
            {
                [KVP_BEV_START] = B(EXPLICIT, NONE),
                [KVP_BEV_CALL] = B(IMPLICIT, NONE),
                [KVP_BEV_CALL_ENDED] = B(NONE, END),
                [KVP_BEV_CALL_FAILED] = B(NONE, CUT),
                [KVP_BEV_CALL_LOST] = B(UNKNOWN, NONE),
                [KVP_BEV_FINISH] = B(NONE, FINISH),
                [KVP_BEV_RESUME] = B(NONE, END),
                [KVP_BEV_ALL_AWAKE] = B(NONE, END),
                [KVP_BEV_SAYS_RUNNING] = B(IMPLICIT, NONE),
                [KVP_BEV_SAYS_ENDED] = B(IMPLICIT, NONE),
            },
        [KVP_BRACKET_UNKNOWN] =
            {
                [KVP_BEV_START] = B(EXPLICIT, NONE),
                [KVP_BEV_CALL] = B(IMPLICIT, NONE), /* tried again: its answer tells */
                [KVP_BEV_FINISH] = B(NONE, FINISH),
                [KVP_BEV_RESUME] = B(UNKNOWN, NONE), /* the engine is asked, see SAYS_ */
                [KVP_BEV_ALL_AWAKE] = B(UNKNOWN, NONE),
                [KVP_BEV_SAYS_RUNNING] = B(UNKNOWN, NONE),
                [KVP_BEV_SAYS_ENDED] = B(NONE, CUT),
            },
};
#undef B

void kvp_fsm_init(struct kvp_fsm *fsm)
{
    memset(fsm, 0, sizeof *fsm);
}

bool kvp_fsm_scheduler(struct kvp_fsm *fsm, enum kvp_scheduler_event event)
{
    uint8_t edge = scheduler_edges[fsm->scheduler][event];
    if (edge == 0) {
        return false;
    }
    fsm->scheduler = (enum kvp_scheduler)(edge - 1);
    return true;
}

bool kvp_fsm_tag(struct kvp_fsm *fsm, const char *tag, enum kvp_tag_event event)
{
    for (uint32_t i = 0; i < fsm->ntags; i++) {
        if (strcmp(fsm->tags[i].tag, tag) == 0) {
            uint8_t edge = tag_edges[fsm->tags[i].residency][event];
            if (edge == 0) {
                return false;
            }
            fsm->tags[i].residency = (enum kvb_residency)(edge - 1);
            return true;
        }
    }
    return false;
}

bool kvp_fsm_bracket(struct kvp_fsm *fsm, enum kvp_bracket_event event,
                     enum kvp_bracket_effect *effect_p)
{
    const struct bracket_edge *edge = &bracket_edges[fsm->bracket][event];
    if (edge->next == 0) {
        return false;
    }
    fsm->bracket = (enum kvp_bracket)(edge->next - 1);
    *effect_p = edge->effect;
    return true;
}

const char *kvp_scheduler_text(enum kvp_scheduler scheduler)
{
    static const char *const texts[] = {
#define X(name, text) [KVP_SCHEDULER_##name] = (text),
        KVP_SCHEDULER_STATES(X)
#undef X
    };
    return texts[scheduler];
}

const char *kvp_bracket_text(enum kvp_bracket bracket)
{
    static const char *const texts[] = {
#define X(name, text) [KVP_BRACKET_##name] = (text),
        KVP_BRACKETS(X)
#undef X
    };
    return texts[bracket];
}

struct kvb_tag_state *kvp_fsm_add_tag(struct kvp_fsm *fsm, const char *tag)
{
    for (uint32_t i = 0; i < fsm->ntags; i++) {
        if (strcmp(fsm->tags[i].tag, tag) == 0) {
            return &fsm->tags[i];
        }
    }
    if (fsm->ntags == KVB_TAGS_MAX) {
        return NULL;
    }
    struct kvb_tag_state *state = &fsm->tags[fsm->ntags++];
    memset(state, 0, sizeof *state);
    memcpy(state->tag, tag, strnlen(tag, KVB_NAME_MAX - 1));
    state->residency = KVB_RESIDENT;
    return state;
}

const struct kvb_tag_state *kvp_fsm_find_tag(const struct kvp_fsm *fsm, const char *tag)
{
    for (uint32_t i = 0; i < fsm->ntags; i++) {
        if (strcmp(fsm->tags[i].tag, tag) == 0) {
            return &fsm->tags[i];
        }
    }
    return NULL;
}

bool kvp_fsm_all_resident(const struct kvp_fsm *fsm)
{
    for (uint32_t i = 0; i < fsm->ntags; i++) {
        if (fsm->tags[i].residency != KVB_RESIDENT) {
            return false;
        }
    }
    return true;
}

bool kvp_fsm_none_resident(const struct kvp_fsm *fsm)
{
    for (uint32_t i = 0; i < fsm->ntags; i++) {
        if (fsm->tags[i].residency == KVB_RESIDENT || fsm->tags[i].residency == KVB_UNKNOWN) {
            return false;
        }
    }
    return fsm->ntags > 0;
}

struct kvp_derived kvp_fsm_derive(const struct kvp_fsm *fsm, bool attached, bool unknown)
{
    bool resident = kvp_fsm_all_resident(fsm);
    struct kvp_derived derived = {
        .is_paused = fsm->scheduler != KVP_SCHEDULER_RUNNING,
        .is_sleeping = !resident || (fsm->stopped_by & KVP_STOPPED_BY_SLEEP0) != 0,
        .not_ready = "",
    };
    if (!attached) {
        derived.not_ready = "the engine is not attached";
    } else if ((fsm->stopped_by & KVP_STOPPED_BY_DEGRADED) != 0) {
        derived.not_ready = "degraded: see message";
    } else if (unknown) {
        derived.not_ready = "a rank did not answer: its state is being asked";
    } else if (derived.is_sleeping) {
        derived.not_ready = "asleep: wake it with /wake_up";
    } else if (fsm->scheduler == KVP_SCHEDULER_PAUSING) {
        derived.not_ready = "pausing";
    } else if (fsm->scheduler == KVP_SCHEDULER_PAUSED) {
        derived.not_ready = "paused: go on with /resume";
    }
    derived.ready = derived.not_ready[0] == '\0';
    return derived;
}

/* ---- the operation slot ---- */

const char *kvp_operation_label(enum kvp_operation operation)
{
    static const char *const labels[] = {
#define X(name, label, slot) [KVP_OP_##name] = (label),
        KVP_OPERATIONS(X)
#undef X
    };
    return labels[operation];
}

const char *kvp_side_text(enum kvp_side side)
{
    static const char *const texts[] = {
#define X(name, text) [KVP_SIDE_##name] = (text),
        KVP_SIDES(X)
#undef X
    };
    return texts[side];
}

#define SIDE_TABLE(X)                                                                              \
    X(OK, DAEMON)                                                                                  \
    X(IN_PROGRESS, DAEMON)                                                                         \
    X(ERR_INVALID, CLIENT)                                                                         \
    X(ERR_NOT_FOUND, CLIENT)                                                                       \
    X(ERR_EXISTS, CLIENT)                                                                          \
    X(ERR_TOO_LARGE, CLIENT)                                                                       \
    X(ERR_UNSUPPORTED, CLIENT)                                                                     \
    X(ERR_BAD_STATE, CLIENT)                                                                       \
    X(ERR_BUSY, CLIENT)                                                                            \
    X(ERR_FENCED, CLIENT)                                                                          \
    X(ERR_TICKET, STORE)                                                                           \
    X(ERR_GENERATION, ENGINE)                                                                      \
    X(ERR_CHECKSUM, STORE)                                                                         \
    X(ERR_CLOSED, CLIENT)                                                                          \
    X(ERR_AGAIN, DAEMON)                                                                           \
    X(ERR_NO_SPACE, STORE)                                                                         \
    X(ERR_QUOTA, STORE)                                                                            \
    X(ERR_TIMEOUT, ENGINE)                                                                         \
    X(ERR_CANCELED, CLIENT)                                                                        \
    X(ERR_PROTOCOL, ENGINE)                                                                        \
    X(ERR_DISCONNECTED, ENGINE)                                                                    \
    X(ERR_UNAVAILABLE, COORDINATOR)                                                                \
    X(ERR_REFUSED, ENGINE)                                                                         \
    X(ERR_DRAINING, STORE)                                                                         \
    X(ERR_NO_MEMORY, DAEMON)                                                                       \
    X(ERR_IO, DAEMON)                                                                              \
    X(ERR_LIMIT, DAEMON)                                                                           \
    X(ERR_INTERNAL, DAEMON)

enum kvp_side kvp_side_of(kvb_status_t status)
{
    switch (status) { /* no default: a new status without a line here is a warning */
#define X(name, side)                                                                              \
    case KVB_##name:                                                                               \
        return KVP_SIDE_##side;
        SIDE_TABLE(X)
#undef X
    }
    return KVP_SIDE_DAEMON;
}

bool kvp_operation_takes_slot(enum kvp_operation operation)
{
    static const bool slots[] = {
#define X(name, label, slot) [KVP_OP_##name] = (slot),
        KVP_OPERATIONS(X)
#undef X
    };
    return slots[operation];
}

bool kvp_ask_equal(const struct kvp_ask *a, const struct kvp_ask *b)
{
    if (a->operation != b->operation || a->level != b->level || a->mode != b->mode ||
        a->clear_cache != b->clear_cache || a->reset_external != b->reset_external ||
        a->reset_running_requests != b->reset_running_requests || a->keep_pause != b->keep_pause ||
        a->at_once != b->at_once || a->wakes != b->wakes || a->tags_given != b->tags_given ||
        a->ntags != b->ntags || a->take_back != b->take_back || a->body_len != b->body_len ||
        strcmp(a->weight_version, b->weight_version) != 0 || strcmp(a->method, b->method) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < a->ntags; i++) {
        if (strcmp(a->tags[i], b->tags[i]) != 0) {
            return false;
        }
    }
    return a->body_len == 0 || memcmp(a->body, b->body, a->body_len) == 0;
}

enum kvp_admit kvp_fsm_admit(const struct kvp_slot *slot, const struct kvp_ask *ask)
{
    if (ask->operation == KVP_OP_RELAY) {
        return KVP_ADMIT_BESIDE;
    }
    if (slot->last != NULL && kvp_ask_equal(slot->last, ask)) {
        return KVP_ADMIT_JOIN_LAST;
    }
    if (slot->running == NULL && slot->waiting == 0) {
        return KVP_ADMIT_START;
    }
    if (slot->running != NULL && slot->waiting == 0 && slot->joinable &&
        kvp_ask_equal(slot->running, ask)) {
        return KVP_ADMIT_JOIN;
    }
    /* What takes back is at most one for each operation that is under way. */
    if (slot->waiting >= KVP_WAITING_MAX && ask->operation != KVP_OP_TAKE_BACK) {
        return KVP_ADMIT_FULL;
    }
    if (ask->operation == KVP_OP_RESUME && slot->running != NULL && slot->cancelable) {
        return KVP_ADMIT_CANCEL;
    }
    return KVP_ADMIT_WAIT;
}
