/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/plan.h"

#include "base/assert.h"

#include <string.h>

#define TAG_KV      "kv_cache"
#define TAG_WEIGHTS "weights"

static const struct kvp_step_info infos[KVP_STEP_COUNT] = {
#define X(name, text, ranks, is_soft, noreturn, ...)                                               \
    [KVP_STEP_##name] = {.label = (text),                                                          \
                         .who = KVP_WHO_##ranks,                                                   \
                         .soft = (is_soft),                                                        \
                         .no_return = (noreturn),                                                  \
                         .undo = {__VA_ARGS__}},
    KVP_STEPS(X)
#undef X
};

const struct kvp_step_info *kvp_step_info(enum kvp_step step)
{
    return &infos[step];
}

static void add(struct kvp_plan *plan, enum kvp_step step)
{
    kvb_assert(plan->nsteps < KVP_PLAN_STEPS_MAX);
    plan->steps[plan->nsteps++] = (uint8_t)step;
}

static void copy_tag(char dst[KVB_NAME_MAX], const char *tag)
{
    memset(dst, 0, KVB_NAME_MAX);
    memcpy(dst, tag, strnlen(tag, KVB_NAME_MAX - 1));
}

static void refuse(struct kvp_plan *plan, kvb_status_t status, const char *reason)
{
    plan->refused = status;
    plan->reason = reason;
}

static void nothing(struct kvp_plan *plan, const char *reason)
{
    plan->nothing_to_do = true;
    plan->reason = reason;
}

static enum kvb_pause_mode engine_mode(enum kvp_pause_kind kind)
{
    static const enum kvb_pause_mode modes[] = {
        [KVP_MODE_ABORT] = KVB_PAUSE_ABORT,
        [KVP_MODE_WAIT] = KVB_PAUSE_WAIT,
        [KVP_MODE_KEEP] = KVB_PAUSE_KEEP,
        [KVP_MODE_RETRACT] = KVB_PAUSE_KEEP,
    };
    return modes[kind];
}

/* How deep a residency is: a sleep never brings a tag up. */
static int depth(enum kvb_residency residency)
{
    static const int depths[] = {
        [KVB_RESIDENT] = 0, [KVB_OFFLOADED] = 1, [KVB_DISCARDED] = 2, [KVB_UNKNOWN] = -1, /* always
                                                                                             to be
                                                                                             done */
    };
    return depths[residency];
}

static void leave(struct kvp_plan *plan, bool leaving)
{
    plan->leaving = leaving;
    if (leaving) {
        add(plan, KVP_STEP_LEAVE);
    }
}

static void plan_pause(const struct kvp_ask *ask, const struct kvp_situation *now,
                       struct kvp_plan *plan)
{
    plan->mode = engine_mode(ask->mode);
    plan->stop = KVP_STOPPED_BY_PAUSE;
    if (kvp_fsm_all_resident(now->fsm)) { /* else it is stopped already */
        add(plan, KVP_STEP_STOP);
        add(plan, KVP_STEP_DRAIN);
    }
    leave(plan, ask->clear_cache && ask->reset_external != KVP_NO);
    if (ask->clear_cache || ask->mode == KVP_MODE_RETRACT) {
        plan->preempt = true;
        add(plan, KVP_STEP_RESET_LOCAL);
    }
}

/* The common end of sleep and release: give up the tags in plan->release. */
static void plan_release(const struct kvp_situation *now, bool stop, bool leaving,
                         struct kvp_plan *plan)
{
    bool resident = false;
    for (uint32_t i = 0; i < plan->nrelease; i++) {
        enum kvb_residency residency = kvp_fsm_find_tag(now->fsm, plan->release[i].tag)->residency;
        resident = resident || residency == KVB_RESIDENT || residency == KVB_UNKNOWN;
    }
    if (stop && resident) {
        add(plan, KVP_STEP_STOP);
        add(plan, KVP_STEP_DRAIN);
    }
    leave(plan, leaving);
    plan->preempt = true;
    add(plan, KVP_STEP_RESET_LOCAL);
    if (resident) {
        add(plan, KVP_STEP_DRAIN);
        add(plan, KVP_STEP_UNREGISTER);
        add(plan, KVP_STEP_OFFLOAD);
    }
    if (plan->nrelease > 0) {
        add(plan, KVP_STEP_DISCARD);
    }
}

static void plan_sleep(const struct kvp_ask *ask, const struct kvp_situation *now,
                       struct kvp_plan *plan)
{
    const struct kvp_fsm *fsm = now->fsm;
    plan->mode = engine_mode(ask->mode);
    if (ask->level == 0) {
        if (!kvp_fsm_all_resident(fsm) || (fsm->stopped_by & KVP_STOPPED_BY_SLEEP0) != 0) {
            nothing(plan, "asleep already");
            return;
        }
        plan->stop = KVP_STOPPED_BY_SLEEP0;
        add(plan, KVP_STEP_STOP);
        add(plan, KVP_STEP_DRAIN);
        return;
    }
    for (uint32_t i = 0; i < fsm->ntags; i++) {
        bool discard = ask->level >= 2 || strcmp(fsm->tags[i].tag, TAG_KV) == 0;
        enum kvb_residency target = discard ? KVB_DISCARDED : KVB_OFFLOADED;
        if (now->sleeps_once && discard && fsm->tags[i].residency == KVB_OFFLOADED) {
            plan->nrelease = 0;
            refuse(plan, KVB_ERR_BAD_STATE, KVP_FOREIGN_SLEEPS_ONCE);
            return;
        }
        if (depth(fsm->tags[i].residency) < depth(target)) {
            copy_tag(plan->release[plan->nrelease].tag, fsm->tags[i].tag);
            plan->release[plan->nrelease++].offload = !discard;
        }
    }
    bool opt_out = ask->level == 1 && ask->reset_external == KVP_NO;
    if (plan->nrelease == 0 && (!now->opted_out || opt_out)) {
        nothing(plan, "asleep already, at this level or deeper");
        return;
    }
    plan->stop = KVP_STOPPED_BY_SLEEP;
    plan->opt_out = opt_out;
    plan_release(now, true, !opt_out, plan);
}

static bool asked_for(const struct kvp_ask *ask, const char *tag)
{
    if (!ask->tags_given) {
        return true;
    }
    for (uint32_t i = 0; i < ask->ntags; i++) {
        if (strcmp(ask->tags[i], tag) == 0) {
            return true;
        }
    }
    return false;
}

/* Tags that name nothing are told, and change nothing. cuda_graph is known: it has nothing to do.
 */
static void ignore_unknown(const struct kvp_ask *ask, const struct kvp_fsm *fsm,
                           struct kvp_plan *plan)
{
    for (uint32_t i = 0; ask->tags_given && i < ask->ntags; i++) {
        const char *tag = ask->tags[i];
        if (kvp_fsm_find_tag(fsm, tag) == NULL && strcmp(tag, "scheduling") != 0 &&
            strcmp(tag, "cuda_graph") != 0) {
            copy_tag(plan->tags_ignored[plan->ntags_ignored++], tag);
        }
    }
}

/* kv_cache alone, or the tags named: what is not KV is kept aside. */
static void plan_release_tags(const struct kvp_ask *ask, const struct kvp_situation *now,
                              struct kvp_plan *plan)
{
    const struct kvp_fsm *fsm = now->fsm;
    bool kv_alone = ask->operation == KVP_OP_RELEASE_KV;
    bool named = false;
    if (kv_alone && kvp_fsm_find_tag(fsm, TAG_KV) == NULL) {
        refuse(plan, KVB_ERR_BAD_STATE, "this engine has no memory with the tag kv_cache");
        return;
    }
    for (uint32_t i = 0; i < fsm->ntags; i++) {
        bool kv = strcmp(fsm->tags[i].tag, TAG_KV) == 0;
        if (kv_alone ? !kv : !asked_for(ask, fsm->tags[i].tag)) {
            continue;
        }
        named = true;
        if (depth(fsm->tags[i].residency) < depth(kv ? KVB_DISCARDED : KVB_OFFLOADED)) {
            copy_tag(plan->release[plan->nrelease].tag, fsm->tags[i].tag);
            plan->release[plan->nrelease++].offload = !kv;
        }
    }
    if (!kv_alone) {
        ignore_unknown(ask, fsm, plan);
    }
    bool opt_out = ask->reset_external == KVP_NO;
    if (!named || (plan->nrelease == 0 && (!now->opted_out || opt_out))) {
        nothing(plan, named ? "released already" : "no memory of these tags");
        return;
    }
    bool paused = fsm->scheduler == KVP_SCHEDULER_PAUSED;
    if (!paused && !now->idle) {
        plan->nrelease = 0;
        refuse(plan, KVB_ERR_BAD_STATE,
               "needs a completed pause first: POST /pause, then try again");
        return;
    }
    plan->mode = KVB_PAUSE_WAIT;
    plan->stop = KVP_STOPPED_BY_RELEASE;
    plan->opt_out = opt_out;
    plan_release(now, !paused, !opt_out, plan);
}

static void plan_wake(const struct kvp_ask *ask, const struct kvp_situation *now,
                      struct kvp_plan *plan)
{
    const struct kvp_fsm *fsm = now->fsm;
    uint32_t missing = 0;
    for (uint32_t i = 0; i < fsm->ntags; i++) {
        if (fsm->tags[i].residency == KVB_RESIDENT) {
            continue;
        }
        missing++;
        if (asked_for(ask, fsm->tags[i].tag)) {
            copy_tag(plan->restore[plan->nrestore++], fsm->tags[i].tag);
            copy_tag(plan->tags_woken[plan->ntags_woken++], fsm->tags[i].tag);
        }
    }
    ignore_unknown(ask, fsm, plan);
    bool scheduling = asked_for(ask, "scheduling");
    bool level0 = scheduling && (fsm->stopped_by & KVP_STOPPED_BY_SLEEP0) != 0;
    bool last = plan->nrestore > 0 && plan->nrestore == missing;
    unsigned all = (unsigned)(KVP_STOPPED_BY_PAUSE | KVP_STOPPED_BY_SLEEP | KVP_STOPPED_BY_RELEASE |
                              KVP_STOPPED_BY_SLEEP0 | KVP_STOPPED_BY_DEGRADED);
    if (last || (level0 && missing == 0)) {
        plan->lift = ask->keep_pause ? all & ~(unsigned)KVP_STOPPED_BY_PAUSE : all;
    } else if (level0) {
        plan->lift = KVP_STOPPED_BY_SLEEP0;
    }
    if (plan->nrestore > 0) {
        add(plan, KVP_STEP_RESTORE);
        add(plan, KVP_STEP_STATE);
        add(plan, KVP_STEP_REGISTER);
        add(plan, KVP_STEP_AWAKE);
    }
    if (ask->weight_version[0] != '\0') {
        add(plan, KVP_STEP_VERSION);
    }
    bool runs =
        missing == plan->nrestore && plan->lift != 0 && (fsm->stopped_by & ~plan->lift) == 0;
    if (last) {
        add(plan, KVP_STEP_CLOSE_AWAKE);
    }
    if (last || level0 || ask->weight_version[0] != '\0') {
        add(plan, KVP_STEP_NAME);
    }
    if (runs) {
        add(plan, KVP_STEP_RUN);
    }
    if (plan->nrestore == 0 && plan->lift == 0) {
        nothing(plan, "nothing to wake");
    }
}

static void plan_resume(const struct kvp_ask *ask, const struct kvp_situation *now,
                        struct kvp_plan *plan)
{
    const struct kvp_fsm *fsm = now->fsm;
    if (!kvp_fsm_all_resident(fsm) && ask->wakes) {
        plan_wake(ask, now, plan);
        return;
    }
    if (!kvp_fsm_all_resident(fsm)) {
        refuse(plan, KVB_ERR_BAD_STATE,
               "memory is not resident: POST /wake_up first, it also resumes");
        return;
    }
    if (fsm->scheduler == KVP_SCHEDULER_RUNNING && fsm->stopped_by == 0 &&
        fsm->bracket == KVP_BRACKET_NONE) {
        nothing(plan, "running already");
        return;
    }
    plan->lift = ~0u;
    add(plan, KVP_STEP_STATE);
    add(plan, KVP_STEP_CLOSE_RESUME);
    add(plan, KVP_STEP_NAME);
    add(plan, KVP_STEP_RUN);
}

/* Without the ends of a wake or a resume: what is lifted, closed or named by these is others'. */
static void plan_take_back(const struct kvp_ask *ask, const struct kvp_situation *now,
                           struct kvp_plan *plan)
{
    const struct kvp_fsm *fsm = now->fsm;
    const struct kvp_found *found = now->found;
    uint32_t missing = 0;
    if (found->id != ask->take_back || found->touched) {
        refuse(plan, KVB_ERR_BAD_STATE,
               "another request has asked for the same, or acted since: it stays as it is");
        return;
    }
    for (uint32_t i = 0; i < fsm->ntags; i++) {
        const struct kvb_tag_state *was = kvp_fsm_find_tag(&found->before, fsm->tags[i].tag);
        bool here = fsm->tags[i].residency == KVB_RESIDENT;
        missing += !here;
        if (!here && (was == NULL || was->residency == KVB_RESIDENT)) {
            copy_tag(plan->restore[plan->nrestore++], fsm->tags[i].tag);
        }
    }
    plan->lift = found->stop & ~found->before.stopped_by;
    if (plan->nrestore > 0) {
        add(plan, KVP_STEP_RESTORE);
        add(plan, KVP_STEP_STATE);
        add(plan, KVP_STEP_REGISTER);
        add(plan, KVP_STEP_AWAKE);
        add(plan, KVP_STEP_NAME);
    }
    if (missing == plan->nrestore && (fsm->stopped_by & ~plan->lift) == 0) {
        add(plan, KVP_STEP_RUN);
    }
}

static void plan_reset(const struct kvp_ask *ask, const struct kvp_situation *now,
                       struct kvp_plan *plan)
{
    plan->preempt = ask->reset_running_requests;
    if (ask->reset_external != KVP_YES) {
        add(plan, KVP_STEP_RESET_SOFT);
        return;
    }
    if (now->counts_steps) {
        add(plan, KVP_STEP_STATE);
    }
    leave(plan, true);
    add(plan, KVP_STEP_RESET_SOFT);
    if (now->store) {
        add(plan, KVP_STEP_RETIRE);
        add(plan, KVP_STEP_NAME);
    }
}

static void plan_start(const struct kvp_situation *now, struct kvp_plan *plan)
{
    if (now->fsm->bracket == KVP_BRACKET_EXPLICIT) {
        nothing(plan, "a weight update is open already");
        return;
    }
    add(plan, KVP_STEP_BEGIN_UPDATE);
    add(plan, KVP_STEP_RELAY);
}

static void version(const struct kvp_ask *ask, struct kvp_plan *plan)
{
    if (ask->weight_version[0] != '\0') {
        add(plan, KVP_STEP_VERSION);
    }
}

void kvp_plan_make(const struct kvp_ask *ask, const struct kvp_situation *now,
                   struct kvp_plan *plan_p)
{
    memset(plan_p, 0, sizeof *plan_p);
    switch (ask->operation) {
    case KVP_OP_PAUSE:
        plan_pause(ask, now, plan_p);
        break;
    case KVP_OP_RESUME:
        plan_resume(ask, now, plan_p);
        break;
    case KVP_OP_SLEEP:
        plan_sleep(ask, now, plan_p);
        break;
    case KVP_OP_WAKE:
        plan_wake(ask, now, plan_p);
        break;
    case KVP_OP_RELEASE_KV:
    case KVP_OP_RELEASE:
        plan_release_tags(ask, now, plan_p);
        break;
    case KVP_OP_RESET:
        plan_reset(ask, now, plan_p);
        break;
    case KVP_OP_START_UPDATE:
        plan_start(now, plan_p);
        break;
    case KVP_OP_UPDATE:
        add(plan_p, KVP_STEP_BEGIN_CALL);
        add(plan_p, KVP_STEP_RELAY);
        version(ask, plan_p);
        add(plan_p, KVP_STEP_END_CALL);
        add(plan_p, KVP_STEP_NAME);
        break;
    case KVP_OP_FINISH_UPDATE:
        add(plan_p, KVP_STEP_RELAY);
        version(ask, plan_p);
        add(plan_p, KVP_STEP_FINISH);
        add(plan_p, KVP_STEP_NAME);
        break;
    case KVP_OP_SET_VERSION:
        add(plan_p, KVP_STEP_RELAY_SOFT);
        version(ask, plan_p);
        add(plan_p, KVP_STEP_NAME);
        break;
    case KVP_OP_TENANT_RESET:
        plan_p->preempt = true;
        if (now->store) {
            add(plan_p, KVP_STEP_TENANT);
        }
        add(plan_p, KVP_STEP_RESET_SOFT);
        add(plan_p, KVP_STEP_NAME);
        break;
    case KVP_OP_TAKE_BACK:
        plan_take_back(ask, now, plan_p);
        break;
    case KVP_OP_RELAY:
        add(plan_p, KVP_STEP_RELAY);
        add(plan_p, KVP_STEP_LEFT);
        break;
    case KVP_OP_COUNT:
        KVB_UNREACHABLE("no such operation");
    }
}

void kvp_plan_reconcile(struct kvp_plan *plan_p)
{
    static const enum kvp_step steps[] = {
        KVP_STEP_STATE,      KVP_STEP_CONVERGE, /* then, if something is to be released: */
        KVP_STEP_STOP,       KVP_STEP_LEAVE,    KVP_STEP_RESET_LOCAL, KVP_STEP_DRAIN,
        KVP_STEP_UNREGISTER, KVP_STEP_OFFLOAD,  KVP_STEP_DISCARD, /* and in any case: */
        KVP_STEP_RESTORE,    KVP_STEP_REGISTER, KVP_STEP_SETTLE,
    };
    memset(plan_p, 0, sizeof *plan_p);
    plan_p->reconcile = true;
    plan_p->preempt = true;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        add(plan_p, steps[i]);
    }
}

void kvp_plan_undo(const struct kvp_plan *plan, uint32_t done, const struct kvp_fsm *before,
                   struct kvp_plan *undo_p)
{
    memset(undo_p, 0, sizeof *undo_p);
    bool memory = false;
    for (uint32_t i = 0; i < done; i++) {
        memory =
            memory || plan->steps[i] == KVP_STEP_UNREGISTER || plan->steps[i] == KVP_STEP_RESTORE;
    }
    if (memory) {
        add(undo_p, KVP_STEP_STATE);
    }
    for (uint32_t i = done; i-- > 0;) {
        const struct kvp_step_info *info = &infos[plan->steps[i]];
        for (uint32_t u = 0; u < KVP_STEP_UNDO_MAX && info->undo[u] != 0; u++) {
            add(undo_p, (enum kvp_step)info->undo[u]);
        }
    }
    /* What was to be released is handed over anew, what was to be restored is released again to
     * where it was. */
    for (uint32_t i = 0; i < plan->nrelease; i++) {
        if (kvp_fsm_find_tag(before, plan->release[i].tag)->residency == KVB_RESIDENT) {
            copy_tag(undo_p->restore[undo_p->nrestore++], plan->release[i].tag);
        }
    }
    for (uint32_t i = 0; i < plan->nrestore; i++) {
        const struct kvb_tag_state *tag = kvp_fsm_find_tag(before, plan->restore[i]);
        if (tag->residency == KVB_OFFLOADED || tag->residency == KVB_DISCARDED) {
            copy_tag(undo_p->release[undo_p->nrelease].tag, plan->restore[i]);
            undo_p->release[undo_p->nrelease++].offload = tag->residency == KVB_OFFLOADED;
        }
    }
}
