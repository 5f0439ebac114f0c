/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/lineage.h"

#include "base/assert.h"
#include "base/faults.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/*
 * Shape: each event changes the state, then settle() emits what the state now asks for (level
 * triggered: whatever is missing and not already asked is asked). What is drawn or left on the way
 * is emitted where it happens.
 */

#define FINGERPRINT_PREFIX "fingerprint:" /* never mistaken for a version of the same text */
#define STEP_PREFIX        "step:"

const char *kvp_leave_label(enum kvp_leave why)
{
    static const char *const labels[] = {
#define X(name, keep, label) [KVP_LEAVE_##name] = (label),
        KVP_LEAVE_REASONS(X)
#undef X
    };
    return labels[why];
}

static bool keeps_name(enum kvp_leave why)
{
    static const bool keep[] = {
#define X(name, keeps, label) [KVP_LEAVE_##name] = (keeps),
        KVP_LEAVE_REASONS(X)
#undef X
    };
    return keep[why];
}

const char *kvp_private_text(enum kvp_private why)
{
    static const char *const texts[] = {
#define X(name, text) [KVP_PRIVATE_##name] = (text),
        KVP_PRIVATE_REASONS(X)
#undef X
    };
    return texts[why];
}

/* Zero-padded, so that states compare byte for byte. False if it does not fit. */
static bool name_set(char dst[KVB_WEIGHTS_NAME_MAX], const char *prefix, const char *text)
{
    size_t head = strlen(prefix);
    size_t len = strnlen(text, KVB_WEIGHTS_NAME_MAX);
    if (head + len >= KVB_WEIGHTS_NAME_MAX) {
        return false;
    }
    char copy[KVB_WEIGHTS_NAME_MAX] = {0};
    memcpy(copy, prefix, head);
    memcpy(copy + head, text, len);
    memcpy(dst, copy, sizeof copy);
    return true;
}

static void name_clear(char dst[KVB_WEIGHTS_NAME_MAX])
{
    memset(dst, 0, KVB_WEIGHTS_NAME_MAX);
}

static struct kvp_lineage_action *emit(struct kvp_lineage_out *out, enum kvp_lineage_do what)
{
    kvb_assert(out->n < KVP_LINEAGE_ACTIONS_MAX);
    struct kvp_lineage_action *action = &out->actions[out->n++];
    memset(action, 0, sizeof *action);
    action->what = what;
    return action;
}

static uint32_t ask_next(struct kvp_lineage *l)
{
    if (++l->asks == 0) {
        l->asks = 1;
    }
    return l->asks;
}

static void send(struct kvp_lineage *l, struct kvp_lineage_out *out)
{
    l->send_ask = ask_next(l);
    emit(out, KVP_DO_SEND)->ask = l->send_ask;
}

static void retire_later(struct kvp_lineage *l, struct kvb_lineage lineage)
{
    if (kvb_id_none(lineage.id)) {
        return;
    }
    for (uint32_t i = 0; i < l->nretired; i++) {
        if (kvb_lineage_equal(l->retired[i], lineage)) {
            return;
        }
    }
    if (l->nretired == KVB_RETIRED_MAX) {
        /* The oldest gives way. Its readers are gone: every reset that put one here has left it,
         * and what others may still share under it was reported as not cleared. */
        memmove(&l->retired[0], &l->retired[1], (KVB_RETIRED_MAX - 1) * sizeof l->retired[0]);
        l->nretired--;
        l->retiring -= l->retiring > 0;
    }
    l->retired[l->nretired++] = lineage;
}

/* ---- derived ---- */

bool kvp_lineage_named(const struct kvp_lineage *l)
{
    return l->joined_name[0] != '\0';
}

/* Rule 2 */
bool kvp_lineage_open(const struct kvp_lineage *l)
{
    return l->attached && l->ack != KVP_ACK_LEFT && !l->update && l->resident && !l->echoed &&
           (l->local_reset_done || l->tracks);
}

/* Rule 5, and retirements go first (Clearing) */
static bool may_join(const struct kvp_lineage *l)
{
    return l->attached && l->coordinator && l->reachable && l->ack != KVP_ACK_LEFT && l->resident &&
           !l->update && !l->echoed && !l->reset_owned && l->nretired == 0 && !l->starved;
}

static bool may_fingerprint(const struct kvp_lineage *l)
{
    return l->fingerprints && !l->fingerprint_failed && l->unversioned == KVP_UNVERSIONED_OFF &&
           l->attached && l->coordinator && l->ack == KVP_ACKED && l->resident && !l->update &&
           !l->stopped && !l->echoed && !l->starved;
}

static bool may_reset(const struct kvp_lineage *l)
{
    return l->attached && !l->local_reset_done && !l->tracks && !l->reset_owned &&
           !l->reset_refused && l->ack != KVP_ACK_LEFT && l->resident && !l->update;
}

bool kvp_lineage_settled(const struct kvp_lineage *l)
{
    return !l->attached || (l->ack == KVP_ACKED && l->resolve_ask == 0 && l->fingerprint_ask == 0 &&
                            l->check_ask == 0 && l->reset_ask == 0 && l->retire_ask == 0);
}

enum kvp_private kvp_lineage_why_private(const struct kvp_lineage *l)
{
    if (kvp_lineage_named(l)) {
        return KVP_PRIVATE_NONE;
    }
    if (!l->coordinator) {
        return KVP_PRIVATE_NO_STORE;
    }
    if (!l->attached) {
        return KVP_PRIVATE_DETACHED;
    }
    if (l->update) {
        return KVP_PRIVATE_UPDATING;
    }
    if (!l->resident) {
        return KVP_PRIVATE_ASLEEP;
    }
    if (l->held[0] != '\0') {
        return KVP_PRIVATE_HELD;
    }
    if (l->name[0] == '\0' && l->fingerprint_ask == 0) {
        return l->unnamed;
    }
    if (!l->reachable) {
        return KVP_PRIVATE_UNREACHABLE;
    }
    if (l->nretired > 0) {
        return KVP_PRIVATE_RETIREMENT;
    }
    return l->want_join || l->resolve_ask != 0 || l->fingerprint_ask != 0 ? KVP_PRIVATE_JOINING
                                                                          : l->unnamed;
}

void kvp_lineage_stay(const struct kvp_lineage *l, struct kvp_stay *stay_p)
{
    *stay_p = (struct kvp_stay){.lineage = l->lineage,
                                .token = l->token,
                                .open = kvp_lineage_open(l),
                                .private_ = !kvp_lineage_named(l)};
}

void kvp_lineage_message(const struct kvp_lineage *l, struct kvb_link_lineage *msg_p)
{
    memset(msg_p, 0, sizeof *msg_p);
    msg_p->lineage = l->lineage;
    msg_p->token = l->token;
    memcpy(msg_p->name, l->joined_name, sizeof msg_p->name);
    msg_p->left = l->ack == KVP_ACK_LEFT;
    msg_p->nretired = l->nretired;
    memcpy(msg_p->retired, l->retired, l->nretired * sizeof l->retired[0]);
}

/* ---- what the state asks for ---- */

static void set_name(struct kvp_lineage *l, enum kvp_name_kind kind, const char *prefix,
                     const char *text, struct kvp_lineage_out *out)
{
    if (l->resolve_ask != 0) {
        memcpy(emit(out, KVP_DO_LEAVE_NAME)->name, l->name, sizeof l->name); /* counted in it */
        l->resolve_ask = 0;
    }
    if (!name_set(l->name, prefix, text)) {
        name_clear(l->name);
        l->kind = KVP_NAME_NONE;
        l->unnamed = KVP_PRIVATE_REFUSED;
        return;
    }
    l->kind = kind;
    l->want_join = strcmp(l->name, l->joined_name) != 0;
    memcpy(l->last_name, l->name, sizeof l->last_name);
    memset(&l->last_lineage, 0, sizeof l->last_lineage);
}

static void settle(struct kvp_lineage *l, struct kvp_lineage_out *out)
{
    if (l->ack != KVP_ACK_LEFT || !l->attached) {
        for (uint32_t i = 0; i < l->ntold; i++) {
            emit(out, KVP_DO_MEMBER_LEFT)->retirement = l->told[i];
            l->told[i] = 0;
        }
        l->ntold = 0;
    }
    if (!l->attached) {
        return;
    }
    if (l->nretired > 0 && l->retire_ask == 0 && l->coordinator && l->reachable && !l->starved &&
        l->ack != KVP_ACK_LEFT && !l->reset_owned) {
        l->retire_ask = ask_next(l);
        l->retiring = l->nretired;
        emit(out, KVP_DO_RETIRE)->ask = l->retire_ask;
    }
    if (may_reset(l) && l->reset_ask == 0) {
        l->reset_ask = ask_next(l);
        emit(out, KVP_DO_LOCAL_RESET)->ask = l->reset_ask;
    }
    if (l->name[0] == '\0' && l->fingerprint_ask == 0 && may_fingerprint(l)) {
        l->fingerprint_ask = ask_next(l);
        emit(out, KVP_DO_FINGERPRINT)->ask = l->fingerprint_ask;
    }
    if (l->want_join && l->resolve_ask == 0 && may_join(l)) {
        l->resolve_ask = ask_next(l);
        l->want_join = false;
        emit(out, l->kind == KVP_NAME_STEP ? KVP_DO_STEP : KVP_DO_RESOLVE)->ask = l->resolve_ask;
    }
}

/* ---- leaving ---- */

static void drop_name(struct kvp_lineage *l)
{
    name_clear(l->name);
    l->kind = KVP_NAME_NONE;
    l->want_join = false;
    l->vouched = false;
    l->unnamed = KVP_PRIVATE_UNNAMED;
}

static void leave_membership(struct kvp_lineage *l, struct kvp_lineage_out *out)
{
    if (kvp_lineage_named(l)) {
        memcpy(emit(out, KVP_DO_LEAVE_NAME)->name, l->joined_name, sizeof l->joined_name);
        l->last_lineage = l->lineage;
    } else {
        emit(out, KVP_DO_ABANDON)->lineage = l->lineage;
    }
    if (l->resolve_ask != 0 && strcmp(l->name, l->joined_name) != 0) {
        memcpy(emit(out, KVP_DO_LEAVE_NAME)->name, l->name, sizeof l->name); /* counted in it */
    }
}

static void leave(struct kvp_lineage *l, bool keep_name, const struct kvb_random *random,
                  struct kvp_lineage_out *out)
{
    leave_membership(l, out);
    l->lineage.id = kvb_id_draw(random);
    l->token.id = kvb_id_draw(random);
    name_clear(l->joined_name);
    l->ack = KVP_ACK_LEFT;
    l->local_reset_done = false;
    l->reset_ask = 0;
    l->reset_refused = false;
    l->opted_out = false;
    l->echoed = false;
    l->fingerprint_failed = false;
    /* Rule 4: what was asked in this stay is void. */
    l->resolve_ask = 0;
    l->fingerprint_ask = 0;
    l->check_ask = 0;
    if (keep_name && l->kind != KVP_NAME_STEP) {
        l->want_join = l->name[0] != '\0';
    } else {
        drop_name(l);
    }
    emit(out, KVP_DO_STAY);
    send(l, out);
}

/* `./dev rehearse --fault lineage-kept`: what has a weight change or a reset behind it is not left.
 */
static bool kept_by_fault(enum kvp_leave why)
{
    return kvb_fault(KVB_FAULT_LINEAGE_KEPT) && why != KVP_LEAVE_ATTACH && why != KVP_LEAVE_ECHO;
}

static void leave_for(struct kvp_lineage *l, enum kvp_leave why, const struct kvb_random *random,
                      struct kvp_lineage_out *out)
{
    if (kept_by_fault(why)) {
        return;
    }
    leave(l, keeps_name(why), random, out);
    out->left |= 1u << why;
}

/* Rule 7: this leaving is the step event. It counts only if weights were written since the last. */
static void take_step(struct kvp_lineage *l, enum kvp_unversioned event,
                      struct kvp_lineage_out *out)
{
    if (l->unversioned != event || event == KVP_UNVERSIONED_OFF) {
        return;
    }
    drop_name(l);
    if (!l->written_since_step) {
        l->unnamed = KVP_PRIVATE_UNNAMED;
        return;
    }
    l->written_since_step = false;
    if (!l->aligned || !l->reachable) {
        l->aligned = false;
        l->unnamed = KVP_PRIVATE_OUT_OF_STEP;
        return;
    }
    char text[64];
    l->step++;
    snprintf(text, sizeof text, "%" PRIu64 ".%" PRIu64, l->epoch, l->step);
    set_name(l, KVP_NAME_STEP, STEP_PREFIX, text, out);
}

void kvp_lineage_leave(struct kvp_lineage *l, enum kvp_leave why, bool owned,
                       const struct kvb_random *random, struct kvp_lineage_out *out)
{
    if (why == KVP_LEAVE_RESET && l->coordinator && !kept_by_fault(why)) {
        retire_later(l, l->lineage);
        retire_later(l, l->last_lineage);
        l->retire_name = l->last_name[0] != '\0';
    }
    leave_for(l, why, random, out);
    l->reset_owned = owned && !kept_by_fault(why);
    if (why == KVP_LEAVE_RESET) {
        take_step(l, KVP_UNVERSIONED_RESET, out);
    } else if (why == KVP_LEAVE_SLEEP) {
        take_step(l, KVP_UNVERSIONED_SLEEP, out);
    }
    settle(l, out);
}

void kvp_lineage_opt_out(struct kvp_lineage *l)
{
    l->opted_out = true;
}

/* ---- the engine's answers ---- */

void kvp_lineage_acked(struct kvp_lineage *l, uint32_t ask, struct kvp_lineage_out *out)
{
    if (ask != l->send_ask) {
        return;
    }
    l->send_ask = 0;
    l->ack = KVP_ACKED;
    settle(l, out);
}

void kvp_lineage_resend(struct kvp_lineage *l, struct kvp_lineage_out *out)
{
    if (l->send_ask != 0 && l->attached) {
        send(l, out);
    }
}

uint32_t kvp_lineage_reset_begin(struct kvp_lineage *l)
{
    l->reset_refused = false;
    uint32_t ask = ask_next(l);
    if (l->ack != KVP_ACK_LEFT) {
        l->reset_ask = ask;
    } /* else the engine may go on caching what it computes in the stay it left: asked for again */
    return ask;
}

void kvp_lineage_local_reset(struct kvp_lineage *l, uint32_t ask, kvb_status_t status,
                             struct kvp_lineage_out *out)
{
    if (ask != l->reset_ask) {
        return;
    }
    l->reset_ask = 0;
    l->reset_owned = false;
    if (status == KVB_OK) {
        l->local_reset_done = true;
    } else {
        l->reset_refused = true;
    }
    settle(l, out);
}

void kvp_lineage_disown(struct kvp_lineage *l, struct kvp_lineage_out *out)
{
    l->reset_owned = false;
    settle(l, out);
}

void kvp_lineage_report(struct kvp_lineage *l, struct kvp_lineage_out *out)
{
    l->reset_refused = false;
    l->starved = false;
    settle(l, out);
}

/* ---- weights ---- */

void kvp_lineage_update_begins(struct kvp_lineage *l, const struct kvb_random *random,
                               struct kvp_lineage_out *out)
{
    l->changed = true;
    l->written_since_step = true;
    if (!l->update) {
        name_clear(l->held);
        name_clear(l->last_name);
        leave_for(l, KVP_LEAVE_UPDATE_BEGINS, random, out);
        memset(&l->last_lineage, 0, sizeof l->last_lineage);
        l->update = !kept_by_fault(KVP_LEAVE_UPDATE_BEGINS);
    }
    settle(l, out);
}

/* Is this version believed (rules 6 and 7)? */
static void judge(struct kvp_lineage *l, const char *version, struct kvp_lineage_out *out)
{
    if (l->version[0] == '\0') {
        l->changed = false;
        l->unnamed = KVP_PRIVATE_FIRST_VERSION;
        name_set(l->version, "", version);
        return;
    }
    if (strcmp(l->version, version) == 0) {
        if (!l->proven) {
            l->changed = false;
            l->unnamed = KVP_PRIVATE_FIRST_VERSION;
            return;
        }
        if (l->changed) {
            l->unnamed = KVP_PRIVATE_SAME_VERSION; /* a trainer's constant */
            return;
        }
    }
    l->proven = true;
    l->changed = false;
    l->vouched = true;
    name_set(l->version, "", version);
    if (l->unversioned == KVP_UNVERSIONED_OFF && (!l->fingerprints || l->fingerprint_failed) &&
        strcmp(l->name, version) != 0) {
        set_name(l, KVP_NAME_VERSION, "", version, out);
    }
}

static void judge_held(struct kvp_lineage *l, struct kvp_lineage_out *out)
{
    if (l->held[0] == '\0' || l->update || !l->resident || l->stopped) {
        return;
    }
    char version[KVB_WEIGHTS_NAME_MAX];
    memcpy(version, l->held, sizeof version);
    name_clear(l->held);
    judge(l, version, out);
}

void kvp_lineage_version(struct kvp_lineage *l, const char *version, struct kvp_lineage_out *out)
{
    if (version[0] != '\0' && name_set(l->held, "", version)) {
        judge_held(l, out);
    }
    settle(l, out);
}

void kvp_lineage_update_ends(struct kvp_lineage *l, bool clean, bool finish,
                             const struct kvb_random *random, struct kvp_lineage_out *out)
{
    l->update = false;
    l->changed = true;
    l->written_since_step = true;
    leave_for(l, KVP_LEAVE_UPDATE_ENDS, random, out);
    memset(&l->last_lineage, 0, sizeof l->last_lineage);
    if (!clean) {
        name_clear(l->held);
        l->unnamed = KVP_PRIVATE_CUT_SHORT;
    }
    if (finish && clean) {
        take_step(l, KVP_UNVERSIONED_FINISH, out);
    }
    judge_held(l, out);
    settle(l, out);
}

void kvp_lineage_written(struct kvp_lineage *l, const struct kvb_random *random,
                         struct kvp_lineage_out *out)
{
    l->changed = true;
    l->written_since_step = true;
    /* Also within a change, which has left at its start: what the engine caches for itself since
     * then, under that stay, was computed with what these weights replace. */
    leave_for(l, KVP_LEAVE_WRITTEN, random, out);
    name_clear(l->last_name);
    memset(&l->last_lineage, 0, sizeof l->last_lineage);
    settle(l, out);
}

/* What failed is asked again when it is back; that, or the next report, is when. */
static void note_failure(struct kvp_lineage *l, kvb_status_t status)
{
    l->reachable = l->reachable && status != KVB_ERR_UNAVAILABLE;
    l->starved |= status == KVB_ERR_NO_MEMORY;
}

void kvp_lineage_fingerprint(struct kvp_lineage *l, uint32_t ask, kvb_status_t status,
                             const char *fingerprint, struct kvp_lineage_out *out)
{
    if (ask != l->fingerprint_ask) {
        return;
    }
    l->fingerprint_ask = 0;
    if (status == KVB_OK && fingerprint[0] != '\0') {
        l->changed = false;
        set_name(l, KVP_NAME_FINGERPRINT, FINGERPRINT_PREFIX, fingerprint, out);
    } else if (status == KVB_ERR_NO_MEMORY) {
        note_failure(l, status); /* asked again */
    } else {
        l->fingerprint_failed = true;
        if (l->vouched) {
            set_name(l, KVP_NAME_VERSION, "", l->version, out);
        }
    }
    settle(l, out);
}

void kvp_lineage_resident(struct kvp_lineage *l, bool resident, const struct kvb_random *random,
                          struct kvp_lineage_out *out)
{
    l->resident = resident;
    if (resident) {
        l->opted_out = false;
    } else if (!l->opted_out && (kvp_lineage_named(l) || l->name[0] != '\0')) {
        /* Named since it left: the weights may change unseen from here on. */
        leave_for(l, KVP_LEAVE_SLEEP, random, out);
    }
    if (!resident) {
        l->fingerprint_ask = 0;
    }
    judge_held(l, out);
    settle(l, out);
}

void kvp_lineage_stopped(struct kvp_lineage *l, bool stopped, struct kvp_lineage_out *out)
{
    l->stopped = stopped;
    judge_held(l, out);
    settle(l, out);
}

/* ---- the coordinator ---- */

void kvp_lineage_resolved(struct kvp_lineage *l, uint32_t ask, kvb_status_t status,
                          struct kvb_lineage lineage, const struct kvb_random *random,
                          struct kvp_lineage_out *out)
{
    if (ask != l->resolve_ask) {
        return;
    }
    l->resolve_ask = 0;
    if (status != KVB_OK) {
        if (l->kind == KVP_NAME_STEP) {
            l->aligned = false; /* never joins late */
            drop_name(l);
            l->unnamed = KVP_PRIVATE_OUT_OF_STEP;
        } else if (status == KVB_ERR_UNAVAILABLE || status == KVB_ERR_NO_MEMORY) {
            l->want_join = true;
        } else {
            l->unnamed = KVP_PRIVATE_REFUSED;
        }
        note_failure(l, status);
        settle(l, out);
        return;
    }
    if (kvp_lineage_named(l) && kvb_lineage_equal(l->lineage, lineage)) {
        memcpy(l->joined_name, l->name, sizeof l->joined_name);
        settle(l, out);
        return;
    }
    leave_membership(l, out);
    l->lineage = lineage;
    l->token.id = kvb_id_draw(random);
    l->last_lineage = lineage;
    memcpy(l->joined_name, l->name, sizeof l->joined_name);
    l->check_ask = 0;
    if (l->ack != KVP_ACK_LEFT) {
        l->ack = KVP_ACK_JOIN;
    }
    emit(out, KVP_DO_STAY);
    send(l, out);
    settle(l, out);
}

static void check(struct kvp_lineage *l, struct kvp_lineage_out *out)
{
    l->check_ask = ask_next(l);
    emit(out, KVP_DO_CHECK)->ask = l->check_ask;
}

void kvp_lineage_checked(struct kvp_lineage *l, uint32_t ask, kvb_status_t status, bool bound,
                         const struct kvb_random *random, struct kvp_lineage_out *out)
{
    if (ask != l->check_ask) {
        return;
    }
    l->check_ask = 0;
    if (status == KVB_ERR_UNAVAILABLE) {
        l->reachable = false;
    }
    bool failed = status != KVB_OK || !bound;
    if (status == KVB_ERR_UNAVAILABLE && !l->echoed) {
        failed = false; /* compared when it is back */
    }
    if (failed) {
        leave_for(l, l->echoed ? KVP_LEAVE_ECHO : KVP_LEAVE_TOLD, random, out);
    }
    l->echoed = false;
    settle(l, out);
}

void kvp_lineage_retired(struct kvp_lineage *l, uint32_t ask, kvb_status_t status,
                         struct kvp_lineage_out *out)
{
    if (ask != l->retire_ask) {
        return;
    }
    l->retire_ask = 0;
    if (status == KVB_OK || status == KVB_ERR_TIMEOUT) { /* the coordinator has it */
        uint32_t left = l->nretired - l->retiring;
        memmove(&l->retired[0], &l->retired[l->retiring], left * sizeof l->retired[0]);
        memset(&l->retired[left], 0, l->retiring * sizeof l->retired[0]);
        l->nretired = left;
        l->retire_name = l->retire_name && left > 0;
        if (l->attached) {
            send(l, out); /* the engine need not keep them any more */
        }
    } else {
        note_failure(l, status == KVB_ERR_UNAVAILABLE ? status : KVB_ERR_NO_MEMORY); /* kept */
    }
    l->retiring = 0;
    settle(l, out);
}

static void told_push(struct kvp_lineage *l, uint64_t retirement)
{
    if (l->ntold < KVP_TOLD_MAX) { /* else it counts as a member that did not answer */
        l->told[l->ntold++] = retirement;
    }
}

void kvp_lineage_told(struct kvp_lineage *l, struct kvb_lineage lineage, uint64_t retirement,
                      const struct kvb_random *random, struct kvp_lineage_out *out)
{
    if (l->resolve_ask != 0) {
        l->resolve_ask = 0; /* the answer on its way may name what was just retired */
        l->want_join = true;
    }
    told_push(l, retirement);
    if (kvb_lineage_equal(l->lineage, lineage)) {
        leave_for(l, KVP_LEAVE_TOLD, random, out);
    }
    settle(l, out);
}

void kvp_lineage_told_tenant(struct kvp_lineage *l, uint64_t retirement,
                             const struct kvb_random *random, struct kvp_lineage_out *out)
{
    told_push(l, retirement);
    leave_for(l, KVP_LEAVE_TENANT, random, out);
    l->aligned = l->unversioned != KVP_UNVERSIONED_OFF && l->attached && l->resident &&
                 !l->update && !l->stopped && !l->written_since_step;
    l->epoch = retirement;
    l->step = 0;
    settle(l, out);
}

void kvp_lineage_reachable(struct kvp_lineage *l, bool reachable, struct kvp_lineage_out *out)
{
    bool back = reachable && !l->reachable;
    l->reachable = reachable;
    if (back && kvp_lineage_named(l) && l->check_ask == 0 && !l->echoed) {
        check(l, out);
    }
    settle(l, out);
}

void kvp_lineage_lost(struct kvp_lineage *l, const struct kvb_random *random,
                      struct kvp_lineage_out *out)
{
    l->reachable = false;
    l->aligned = false; /* a reset of the tenant may pass unheard */
    leave_for(l, KVP_LEAVE_LOST, random, out);
    settle(l, out);
}

/* ---- attaching ---- */

void kvp_lineage_init(struct kvp_lineage *l, bool coordinator, enum kvp_unversioned unversioned,
                      const struct kvb_random *random)
{
    memset(l, 0, sizeof *l);
    l->coordinator = coordinator;
    l->unversioned = unversioned;
    l->reachable = coordinator;
    l->lineage.id = kvb_id_draw(random);
    l->token.id = kvb_id_draw(random);
    l->ack = KVP_ACK_LEFT;
    l->unnamed = KVP_PRIVATE_UNNAMED;
}

/* It echoed nothing: it restarted, or never acknowledged anything. */
static void attach_anew(struct kvp_lineage *l, const struct kvp_lineage_hello *hello,
                        const struct kvb_random *random, struct kvp_lineage_out *out)
{
    leave_for(l, KVP_LEAVE_ATTACH, random, out);
    name_clear(l->held);
    name_clear(l->last_name);
    memset(&l->last_lineage, 0, sizeof l->last_lineage);
    name_clear(l->version);
    l->local_reset_done = hello->local_reset_done;
    l->proven = false;
    l->changed = true;
    l->aligned = false;
    l->written_since_step = false;
    if (l->unversioned != KVP_UNVERSIONED_OFF) {
        l->unnamed = KVP_PRIVATE_OUT_OF_STEP;
    }
    if (hello->weights_name[0] != '\0' && name_set(l->version, "", hello->weights_name)) {
        l->changed = false;
        l->unnamed = KVP_PRIVATE_FIRST_VERSION;
    }
}

/* A new daemon: only what the engine tells is known. */
static void attach_echo(struct kvp_lineage *l, const struct kvp_lineage_hello *hello,
                        const struct kvb_random *random, struct kvp_lineage_out *out)
{
    emit(out, KVP_DO_ABANDON)->lineage = l->lineage;
    l->lineage = hello->lineage;
    l->token = hello->token;
    l->local_reset_done = hello->local_reset_done;
    l->ack = KVP_ACKED;
    l->send_ask = 0;
    l->changed = hello->written;
    drop_name(l);
    if (hello->name[0] != '\0' && name_set(l->name, "", hello->name)) {
        bool fingerprint = strncmp(l->name, FINGERPRINT_PREFIX, sizeof FINGERPRINT_PREFIX - 1) == 0;
        bool step = l->unversioned != KVP_UNVERSIONED_OFF;
        l->kind = step ? KVP_NAME_STEP : fingerprint ? KVP_NAME_FINGERPRINT : KVP_NAME_VERSION;
        memcpy(l->joined_name, l->name, sizeof l->joined_name);
        memcpy(l->last_name, l->name, sizeof l->last_name);
        l->last_lineage = l->lineage;
        if (l->kind == KVP_NAME_VERSION) {
            memcpy(l->version, l->name, sizeof l->version);
            l->proven = true;
        }
    }
    emit(out, KVP_DO_STAY);
    if (l->update || hello->written) {
        leave(l, false, random, out);
        out->left |= 1u << KVP_LEAVE_WRITTEN;
        name_clear(l->last_name);
    } else if (!kvp_lineage_named(l) || !l->coordinator || !l->reachable ||
               l->kind == KVP_NAME_STEP) {
        leave_for(l, KVP_LEAVE_ECHO, random, out);
    } else {
        l->echoed = true;
        check(l, out);
    }
    if (l->unversioned != KVP_UNVERSIONED_OFF) {
        l->unnamed = KVP_PRIVATE_OUT_OF_STEP;
    }
}

void kvp_lineage_attached(struct kvp_lineage *l, const struct kvp_lineage_hello *hello,
                          const struct kvb_random *random, struct kvp_lineage_out *out)
{
    bool began = hello->update && !l->update;
    l->attached = true;
    l->tracks = hello->tracks;
    l->fingerprints = hello->fingerprints;
    l->resident = hello->resident;
    l->stopped = hello->stopped;
    l->update = hello->update;
    l->reset_owned = false;
    l->reset_refused = false;
    l->reset_ask = 0;
    l->fingerprint_ask = 0;
    for (uint32_t i = 0; i < hello->nretired && l->coordinator; i++) {
        retire_later(l, hello->retired[i]);
    }
    if (kvb_id_none(hello->token.id)) {
        attach_anew(l, hello, random, out);
    } else if (!hello->living) {
        attach_echo(l, hello, random, out);
    } else {
        /* A living daemon's own lineage wins. */
        if (!kvb_token_equal(hello->token, l->token)) {
            l->ack = KVP_ACK_LEFT;
        } else {
            l->local_reset_done = l->local_reset_done || hello->local_reset_done;
        }
        if (began || (hello->written && !l->update)) {
            l->changed = true;
            l->written_since_step = true;
            leave_for(l, began ? KVP_LEAVE_UPDATE_BEGINS : KVP_LEAVE_WRITTEN, random, out);
        } else {
            send(l, out);
        }
    }
    settle(l, out);
}

void kvp_lineage_detached(struct kvp_lineage *l, struct kvp_lineage_out *out)
{
    l->attached = false;
    l->reset_owned = false;
    settle(l, out);
}
