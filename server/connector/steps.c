/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/instance_impl.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * What each step does. A step that asks ranks ends when all of them have answered, with the first
 * failure. A rank that did not answer is unknown from then on: what it is, only STATE tells.
 */

struct step_call {
    struct kvp_op *op;
    struct kvp_instance *instance;
    struct kvp_rank *rank;
    enum kvb_link_type type;
    uint32_t ask;  /* RESET_LOCAL: the lineage's */
    bool commit;   /* RELEASE */
    uint32_t tags; /* bit per fsm tag: what RELEASE and RESTORE name */
    uint32_t offload;
};

static struct kvp_session_of *session_of(struct kvp_instance *instance, const struct kvp_rank *rank)
{
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        if (instance->sessions[i].rank == rank) {
            return &instance->sessions[i];
        }
    }
    return NULL;
}

static bool concerns(const struct kvp_rank *rank, enum kvp_who who)
{
    static const uint8_t roles[] = {
        [KVP_WHO_NOBODY] = 0,
        [KVP_WHO_SCHEDULER] = KVB_ROLE_SCHEDULER,
        [KVP_WHO_WORKERS] = KVB_ROLE_WORKER,
        [KVP_WHO_ALL] = KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER,
    };
    return (rank->roles & roles[who]) != 0;
}

/* ---- residency ---- */

static uint32_t tag_bit(const struct kvp_instance *instance, const char *tag)
{
    for (uint32_t i = 0; i < instance->fsm.ntags; i++) {
        if (strcmp(instance->fsm.tags[i].tag, tag) == 0) {
            return 1u << i;
        }
    }
    return 0;
}

void kvp_instance_memory_lost(struct kvp_instance *instance, const struct kvp_rank *rank,
                              const char (*tags)[KVB_NAME_MAX], uint32_t ntags)
{
    struct kvp_session_of *session = session_of(instance, rank);
    char detail[64];
    if (session == NULL) {
        return;
    }
    for (uint32_t i = 0; i < ntags; i++) {
        session->unregistered |= tag_bit(instance, tags[i]);
        session->lost |= tag_bit(instance, tags[i]);
    }
    (void)snprintf(detail, sizeof detail, "rank %u", rank->index);
    KVB_LOG(WARN, "registered memory is lost: the engine is asked for it anew",
            KVB_STR("instance", instance->name), KVB_U64("rank", rank->index));
    kvp_instance_event(instance, "memory_lost", detail);
    kvp_instance_schedule_reconcile(instance);
    kvp_instance_changed(instance);
}

static struct kvb_tag_state *session_tag(struct kvp_session_of *session, const char *tag)
{
    for (uint32_t i = 0; i < session->state.ntags; i++) {
        if (strcmp(session->state.tags[i].tag, tag) == 0) {
            return &session->state.tags[i];
        }
    }
    return NULL;
}

/* One residency for all ranks: unknown if they differ, or if it is mapped but not registered. */
static enum kvb_residency aggregate(struct kvp_instance *instance, uint32_t index)
{
    bool any = false;
    enum kvb_residency all = KVB_UNKNOWN;
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        struct kvp_session_of *session = &instance->sessions[i];
        const struct kvb_tag_state *tag = session_tag(session, instance->fsm.tags[index].tag);
        if (tag == NULL || (session->rank->roles & KVB_ROLE_WORKER) == 0) {
            continue;
        }
        bool bare = tag->residency == KVB_RESIDENT && (session->unregistered & (1u << index)) != 0;
        if (session->unknown || bare || (any && all != tag->residency)) {
            return KVB_UNKNOWN;
        }
        all = tag->residency;
        any = true;
    }
    return any ? all : KVB_RESIDENT;
}

/* By what event a tag came to be what it is: by our own doing, or as the ranks say. */
static enum kvp_tag_event tag_event(const struct kvp_plan *done, const char *tag,
                                    enum kvb_residency residency)
{
    static const enum kvp_tag_event says[] = {
        [KVB_RESIDENT] = KVP_TAG_SAYS_RESIDENT,
        [KVB_OFFLOADED] = KVP_TAG_SAYS_OFFLOADED,
        [KVB_DISCARDED] = KVP_TAG_SAYS_DISCARDED,
        [KVB_UNKNOWN] = KVP_TAG_LOST,
    };
    for (uint32_t i = 0; done != NULL && i < done->nrelease; i++) {
        if (strcmp(done->release[i].tag, tag) == 0 && residency == KVB_OFFLOADED) {
            return KVP_TAG_OFFLOADED;
        }
        if (strcmp(done->release[i].tag, tag) == 0 && residency == KVB_DISCARDED) {
            return KVP_TAG_DISCARDED;
        }
    }
    for (uint32_t i = 0; done != NULL && i < done->nrestore; i++) {
        if (strcmp(done->restore[i], tag) == 0 && residency == KVB_RESIDENT) {
            return KVP_TAG_RESTORED;
        }
    }
    return says[residency];
}

void kvp_instance_refresh_tags(struct kvp_instance *instance, const struct kvp_plan *done)
{
    for (uint32_t i = 0; i < instance->fsm.ntags; i++) {
        const char *tag = instance->fsm.tags[i].tag;
        bool legal = kvp_fsm_tag(&instance->fsm, tag, tag_event(done, tag, aggregate(instance, i)));
        kvb_assert(legal);
    }
    if (instance->attached) {
        kvp_instance_tell_resident(instance, kvp_fsm_all_resident(&instance->fsm));
    }
}

void kvp_instance_tell_resident(struct kvp_instance *instance, bool resident)
{
    if (instance->lineage.resident != resident) {
        KVP_LINEAGE(instance, resident, resident, kvp_instance_random(instance));
    }
}

void kvp_instance_bracket(struct kvp_instance *instance, enum kvp_bracket_event event)
{
    enum kvp_bracket_effect effect = KVP_EFFECT_NONE;
    enum kvp_bracket was = instance->fsm.bracket;
    if (!kvp_fsm_bracket(&instance->fsm, event, &effect)) {
        return; /* it closed meanwhile (the engine restarted) */
    }
    const struct kvb_random *random = kvp_instance_random(instance);
    switch (effect) {
    case KVP_EFFECT_NONE:
        break;
    case KVP_EFFECT_BEGIN:
        KVP_LINEAGE(instance, update_begins, random);
        break;
    case KVP_EFFECT_END:
        KVP_LINEAGE(instance, update_ends, true, false, random);
        break;
    case KVP_EFFECT_FINISH:
        KVP_LINEAGE(instance, update_ends, true, true, random);
        break;
    case KVP_EFFECT_CUT:
        KVP_LINEAGE(instance, update_ends, false, false, random);
        break;
    }
    if (effect == KVP_EFFECT_CUT) {
        KVB_LOG(WARN, "weight update ended otherwise than by finish: its version names nothing",
                KVB_STR("instance", instance->name));
    }
    if (was != instance->fsm.bracket) {
        kvp_instance_event(instance, "weight_update", kvp_bracket_text(instance->fsm.bracket));
    }
}

/* ---- calls to ranks ---- */

static void learn_state(struct kvp_instance *instance, struct kvp_session_of *session,
                        const struct kvb_engine_state *state)
{
    session->unknown = false;
    session->state = *state;
    for (uint32_t i = 0; i < state->ntags; i++) {
        uint32_t before = instance->fsm.ntags;
        if (kvp_fsm_add_tag(&instance->fsm, state->tags[i].tag) != NULL &&
            instance->fsm.ntags > before) {
            instance->want[before] = state->tags[i].residency;
        }
    }
    if ((session->rank->roles & KVB_ROLE_SCHEDULER) != 0) {
        bool legal = kvp_fsm_scheduler(&instance->fsm, state->paused ? KVP_SCHED_SAYS_PAUSED
                                                                     : KVP_SCHED_SAYS_RUNNING);
        kvb_assert(legal);
        instance->fsm.pause_mode = state->pause_mode;
    }
}

static void keep_relay(struct kvp_op *op, const struct kvp_rank *rank,
                       const struct kvb_link_relay_reply *reply)
{
    op->weights_written = op->weights_written || reply->weights_written;
    if (reply->status != KVB_OK && op->message[0] == '\0') {
        kvp_op_say(
            op, "the engine answered: %.*s", (int)(reply->body.len < 180 ? reply->body.len : 180),
            reply->body.len > 0 ? (const char *)reply->body.data : kvb_status_text(reply->status));
        if (reply->body.len == 0) {
            snprintf(op->message, sizeof op->message, "the engine answered: %s",
                     kvb_status_text(reply->status));
        }
    }
    if (rank->index != 0 || op->relay_body != NULL || reply->body.len == 0) {
        return;
    }
    op->relay_body = malloc(reply->body.len + 1);
    if (op->relay_body != NULL) {
        memcpy(op->relay_body, reply->body.data, reply->body.len);
        op->relay_body[reply->body.len] = '\0';
        op->relay_len = reply->body.len;
    }
}

static void learn_memory(const struct step_call *call, struct kvp_session_of *session,
                         kvb_status_t status)
{
    struct kvp_instance *instance = call->instance;
    if (status != KVB_OK || (call->type == KVB_LINK_RELEASE && !call->commit)) {
        return;
    }
    for (uint32_t i = 0; i < instance->fsm.ntags; i++) {
        struct kvb_tag_state *tag = session_tag(session, instance->fsm.tags[i].tag);
        if (tag == NULL || (call->tags & (1u << i)) == 0) {
            continue;
        }
        tag->residency = call->type == KVB_LINK_RESTORE     ? KVB_RESIDENT
                         : (call->offload & (1u << i)) != 0 ? KVB_OFFLOADED
                                                            : KVB_DISCARDED;
    }
}

/* Drain, unregister and register are the daemon's own: how they end says nothing of the engine. */
static bool asks_engine(const struct step_call *call)
{
    return call->type != KVB_LINK_EVENT && call->type != KVB_LINK_REGISTER_REGION;
}

/* After a failure of the daemon's own part: what the operator can do. */
static const char *advice(kvb_status_t status)
{
    switch (status) {
    case KVB_ERR_NO_MEMORY:
        return "free memory of that GPU and of this host, then repeat";
    case KVB_ERR_UNSUPPORTED:
        return "this host has no GPU that the daemon can use: see its log";
    case KVB_ERR_INVALID:
        return "the engine must hand over what this host can import: an exported descriptor, or a "
               "fabric handle";
    case KVB_ERR_TIMEOUT:
    case KVB_ERR_UNAVAILABLE:
        return "what that process held went with it: repeat, another one is started";
    default:
        return "nothing of it is held: repeat, and see the daemon's log if it fails again";
    }
}

static void say_why(struct kvp_op *op, const struct step_call *call, kvb_status_t status)
{
    const struct kvb_load *load = &op->instance->load;
    uint32_t rank = call->rank->index;
    const char *label = kvb_link_info((uint16_t)call->type)->label;
    const struct kvp_foreign *foreign = call->rank->foreign;
    const char *cause = call->rank->ops->cause(call->rank->impl);
    if (foreign != NULL && status != KVB_ERR_CANCELED && cause[0] != '\0' &&
        (call->type != KVB_LINK_PAUSE || status != KVB_ERR_TIMEOUT) &&
        call->type != KVB_LINK_RELAY) {
        kvp_op_say(op, "%s failed: %s: %s", op->record.step, kvb_status_text(status), cause);
    } else if (status == KVB_ERR_DISCONNECTED) {
        kvp_op_say(op, "rank %u of the engine went away: repeat when it has attached again", rank);
    } else if (status == KVB_ERR_TIMEOUT && call->type == KVB_LINK_PAUSE) {
        kvp_op_say(op,
                   "the engine was not idle within the drain bound (%u running, %u loading): "
                   "repeat when it is, or with mode=abort",
                   load->running, load->loading);
    } else if (status == KVB_ERR_TIMEOUT && call->type == KVB_LINK_EVENT) {
        kvp_op_say(op,
                   "puts and gets of rank %u did not end within the drain bound: repeat later, or "
                   "with mode=abort",
                   rank);
    } else if (status == KVB_ERR_TIMEOUT && asks_engine(call)) {
        kvp_op_say(op, "rank %u did not answer %s within its bound: repeat when it does", rank,
                   label);
    } else if (asks_engine(call) && status != KVB_ERR_CANCELED &&
               call->type != KVB_LINK_RESET_LOCAL) {
        kvp_op_say(op, "rank %u answered %s with \"%s\": see its log, then repeat", rank, label,
                   kvb_status_label(status));
    } else if (call->type == KVB_LINK_REGISTER_REGION) {
        kvp_op_say(op, "%s failed on rank %u: %s%s%s: %s", op->record.step, rank,
                   kvb_status_text(status), cause[0] != '\0' ? ": " : "", cause, advice(status));
    }
}

/* A rank that attaches while another one's weights are written may have cached what was computed
 * with those before: that its cache was empty when it said hello is past. */
static void forget_resets(struct kvp_instance *instance)
{
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        instance->sessions[i].state.local_reset_done = false;
    }
}

static void on_answer(void *arg, kvb_status_t status, const union kvp_rank_reply *reply)
{
    struct step_call *call = arg;
    struct kvp_op *op = call->op;
    struct kvp_instance *instance = call->instance;
    struct kvp_session_of *session = session_of(instance, call->rank);
    if (session != NULL) {
        if (status == KVB_ERR_TIMEOUT && asks_engine(call)) {
            session->unknown = true;
            kvp_instance_schedule_reconcile(instance);
        }
        switch (call->type) {
        case KVB_LINK_STATE:
            if (status == KVB_OK && reply != NULL) {
                learn_state(instance, session, &reply->state.state);
            }
            break;
        case KVB_LINK_RELEASE:
        case KVB_LINK_RESTORE:
            learn_memory(call, session, status);
            break;
        case KVB_LINK_RELAY:
            if (reply != NULL) {
                keep_relay(op, call->rank, &reply->relay);
            }
            if (reply != NULL && /* whatever the call's name said, or else its answer */
                (reply->relay.weights_written ||
                 (status == KVB_OK && op->ask.operation == KVP_OP_UPDATE))) {
                KVP_LINEAGE(instance, written, kvp_instance_random(instance));
                forget_resets(instance);
            }
            break;
        case KVB_LINK_RESET_LOCAL:
            if (reply != NULL) {
                op->blocks_held = reply->reset_local.blocks_held;
            }
            op->local_done = status == KVB_OK;
            if (status != KVB_OK && status != KVB_ERR_BUSY) {
                kvp_instance_schedule_reconcile(instance); /* asks again */
            }
            KVP_LINEAGE(instance, local_reset, call->ask, status);
            break;
        case KVB_LINK_PAUSE:
            instance->pause_open = instance->pause_open || status == KVB_ERR_TIMEOUT;
            if (status == KVB_OK) {
                KVP_LINEAGE(instance, stopped, true);
                bool legal = kvp_fsm_scheduler(&instance->fsm, KVP_SCHED_IDLE);
                kvb_assert(legal);
                instance->fsm.pause_mode = kvp_op_plan(op)->mode;
            }
            break;
        case KVB_LINK_RESUME:
            if (status == KVB_OK) {
                instance->pause_open = false;
                KVP_LINEAGE(instance, stopped, false);
                bool legal = kvp_fsm_scheduler(&instance->fsm, KVP_SCHED_RUN);
                kvb_assert(legal);
            }
            break;
        default:
            break;
        }
    }
    if (call->type == KVB_LINK_RELAY && (status == KVB_OK || status == KVB_ERR_TIMEOUT)) {
        op->taken = true;
    }
    if (status != KVB_OK && op->step_status == KVB_OK) {
        op->step_status = status;
        say_why(op, call, status);
        kvp_op_blame(op,
                     asks_engine(call) || status == KVB_ERR_DISCONNECTED ? KVP_SIDE_ENGINE
                     : call->type == KVB_LINK_EVENT                      ? KVP_SIDE_STORE
                                                                         : KVP_SIDE_DAEMON,
                     call->rank);
    }
    free(call);
    if (--op->left == 0) {
        kvp_op_step_done(op, op->step_status);
    }
}

static void on_done(void *arg, kvb_status_t status)
{
    on_answer(arg, status, NULL);
}

static struct step_call *call_create(struct kvp_op *op, struct kvp_rank *rank,
                                     enum kvb_link_type type)
{
    struct step_call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        op->step_status = KVB_ERR_NO_MEMORY;
        kvp_op_blame(op, KVP_SIDE_DAEMON, NULL);
        return NULL;
    }
    call->op = op;
    call->instance = op->instance;
    call->rank = rank;
    call->type = type;
    op->left++;
    return call;
}

static void call_rank(struct step_call *call, const void *msg, uint64_t deadline_ns)
{
    if (call != NULL) {
        call->rank->ops->call(call->rank->impl, call->type, msg, deadline_ns, on_answer, call);
    }
}

/* The loop over the ranks a step concerns; `each` asks one. True if somebody was asked. One that
 * has come while the operation ends is none of its: what it says is weighed when all are there. */
typedef void (*each_fn)(struct kvp_op *op, struct kvp_session_of *session);
static bool on_ranks(struct kvp_op *op, enum kvp_who who, each_fn each)
{
    struct kvp_instance *instance = op->instance;
    kvb_assert(op->left == 0);
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        if (!instance->sessions[i].fresh && concerns(instance->sessions[i].rank, who)) {
            each(op, &instance->sessions[i]);
        }
    }
    return op->left > 0;
}

static void ask_pause(struct kvp_op *op, struct kvp_session_of *session)
{
    struct kvb_link_pause msg = {.operation = op->record.id, .mode = kvp_op_plan(op)->mode};
    call_rank(call_create(op, session->rank, KVB_LINK_PAUSE), &msg, op->drain_deadline_ns);
}

static void ask_resume(struct kvp_op *op, struct kvp_session_of *session)
{
    struct kvb_link_resume msg = {.operation = op->record.id};
    call_rank(call_create(op, session->rank, KVB_LINK_RESUME), &msg,
              kvp_instance_bound(op->instance, KVB_LINK_RESUME));
}

static void ask_drain(struct kvp_op *op, struct kvp_session_of *session)
{
    struct step_call *call = call_create(op, session->rank, KVB_LINK_EVENT);
    if (call != NULL) {
        bool abort = !op->internal && !op->undoing && op->plan.mode == KVB_PAUSE_ABORT;
        session->rank->ops->drain(session->rank->impl, abort, op->drain_deadline_ns, on_done, call);
    }
}

static void ask_state(struct kvp_op *op, struct kvp_session_of *session)
{
    call_rank(call_create(op, session->rank, KVB_LINK_STATE), NULL,
              kvp_instance_bound(op->instance, KVB_LINK_STATE));
}

static void ask_relay(struct kvp_op *op, struct kvp_session_of *session)
{
    struct kvb_link_relay msg = {
        .operation = op->record.id,
        .body = {.data = (const uint8_t *)op->body, .len = op->ask.body_len},
    };
    memcpy(msg.method, op->ask.method, sizeof msg.method);
    call_rank(call_create(op, session->rank, KVB_LINK_RELAY), &msg,
              op->ask.bound_ms != 0 ? kvp_instance_in_ms(op->instance, op->ask.bound_ms)
                                    : kvp_instance_bound(op->instance, KVB_LINK_RELAY));
}

static void ask_reset(struct kvp_op *op, struct kvp_session_of *session)
{
    struct kvb_link_reset_local msg = {.operation = op->record.id,
                                       .preempt = kvp_op_plan(op)->preempt};
    struct step_call *call = call_create(op, session->rank, KVB_LINK_RESET_LOCAL);
    if (call != NULL) {
        call->ask = kvp_lineage_reset_begin(&op->instance->lineage);
        call_rank(call, &msg, kvp_instance_bound(op->instance, KVB_LINK_RESET_LOCAL));
    }
}

static void on_unregistered(void *arg, kvb_status_t status)
{
    struct step_call *call = arg;
    struct kvp_session_of *session = session_of(call->instance, call->rank);
    if (status != KVB_OK && session != NULL) {
        session->unregistered &= ~(call->tags & ~session->lost); /* all or nothing: as it was */
    }
    on_answer(arg, status, NULL);
}

static void ask_unregister(struct kvp_op *op, struct kvp_session_of *session)
{
    const struct kvp_plan *plan = kvp_op_plan(op);
    struct kvp_instance *instance = op->instance;
    char tags[KVB_TAGS_MAX][KVB_NAME_MAX];
    struct step_call *call = call_create(op, session->rank, KVB_LINK_REGISTER_REGION);
    if (call != NULL) {
        for (uint32_t i = 0; i < plan->nrelease; i++) {
            memcpy(tags[i], plan->release[i].tag, sizeof tags[i]);
            uint32_t bit = tag_bit(instance, plan->release[i].tag);
            call->tags |= bit & ~session->unregistered;
            session->unregistered |= bit;
        }
        session->rank->ops->unregister(
            session->rank->impl, (const char(*)[KVB_NAME_MAX])tags, plan->nrelease,
            kvp_instance_in_ms(instance, instance->fleet->config.bounds.transfer_ms),
            on_unregistered, call);
    }
}

static void on_registered(void *arg, kvb_status_t status)
{
    struct step_call *call = arg;
    struct kvp_session_of *session = session_of(call->instance, call->rank);
    if (status == KVB_OK && session != NULL) {
        session->unregistered &= ~call->tags;
        session->lost &= ~call->tags;
    }
    on_answer(arg, status, NULL);
}

static void ask_register(struct kvp_op *op, struct kvp_session_of *session)
{
    const struct kvp_plan *plan = kvp_op_plan(op);
    char tags[KVB_TAGS_MAX][KVB_NAME_MAX];
    uint32_t ntags = 0;
    uint32_t bits = 0;
    for (uint32_t i = 0; i < plan->nrestore; i++) {
        uint32_t bit = tag_bit(op->instance, plan->restore[i]);
        if ((session->unregistered & bit) != 0 && session_tag(session, plan->restore[i]) != NULL) {
            memcpy(tags[ntags++], plan->restore[i], sizeof tags[0]);
            bits |= bit;
        }
    }
    struct step_call *call =
        ntags > 0 ? call_create(op, session->rank, KVB_LINK_REGISTER_REGION) : NULL;
    if (call != NULL) {
        call->tags = bits;
        session->rank->ops->register_(session->rank->impl, (const char(*)[KVB_NAME_MAX])tags, ntags,
                                      on_registered, call);
    }
}

static void ask_release(struct kvp_op *op, struct kvp_session_of *session, bool commit)
{
    const struct kvp_plan *plan = kvp_op_plan(op);
    struct kvb_link_release msg = {.operation = op->record.id, .commit = commit};
    uint32_t tags = 0;
    uint32_t offload = 0;
    for (uint32_t i = 0; i < plan->nrelease; i++) {
        const struct kvb_tag_state *tag = session_tag(session, plan->release[i].tag);
        bool aside = plan->release[i].offload;
        if (tag == NULL || (!commit && !aside) ||
            (!session->unknown && tag->residency == (aside ? KVB_OFFLOADED : KVB_DISCARDED)) ||
            (aside && tag->residency == KVB_DISCARDED)) {
            continue;
        }
        msg.tags[msg.ntags++] = plan->release[i];
        tags |= tag_bit(op->instance, tag->tag);
        offload |= aside ? tag_bit(op->instance, tag->tag) : 0;
    }
    if (msg.ntags == 0) {
        return;
    }
    struct step_call *call = call_create(op, session->rank, KVB_LINK_RELEASE);
    if (call != NULL) {
        call->commit = commit;
        call->tags = tags;
        call->offload = offload;
        call_rank(call, &msg, kvp_instance_bound(op->instance, KVB_LINK_RELEASE));
    }
}

static void ask_offload(struct kvp_op *op, struct kvp_session_of *session)
{
    ask_release(op, session, false);
}

static void ask_discard(struct kvp_op *op, struct kvp_session_of *session)
{
    ask_release(op, session, true);
}

static void ask_restore(struct kvp_op *op, struct kvp_session_of *session)
{
    const struct kvp_plan *plan = kvp_op_plan(op);
    struct kvb_link_restore msg = {.operation = op->record.id};
    uint32_t tags = 0;
    for (uint32_t i = 0; i < plan->nrestore; i++) {
        const struct kvb_tag_state *tag = session_tag(session, plan->restore[i]);
        uint32_t bit = tag_bit(op->instance, plan->restore[i]);
        bool bare = (session->unregistered & bit) != 0; /* mapped: to be handed over anew */
        if (tag == NULL || (tag->residency == KVB_RESIDENT && !session->unknown && !bare)) {
            continue;
        }
        memcpy(msg.tags[msg.ntags++], plan->restore[i], sizeof msg.tags[0]);
        tags |= bit;
    }
    if (msg.ntags == 0) {
        return;
    }
    /* Whatever of these tags is registered now is of memory that is gone, or about to be replaced.
     */
    session->unregistered |= tags;
    struct step_call *call = call_create(op, session->rank, KVB_LINK_RESTORE);
    if (call != NULL) {
        call->tags = tags;
        call_rank(call, &msg, kvp_instance_bound(op->instance, KVB_LINK_RESTORE));
    }
}

/* ---- reconcile ---- */

/* What is to be done so that every rank is where it should be. */
static void converge(struct kvp_op *op)
{
    struct kvp_instance *instance = op->instance;
    struct kvp_plan *plan = op->undoing ? &op->undo : &op->plan;
    plan->nrelease = 0;
    plan->nrestore = 0;
    for (uint32_t i = 0; i < instance->fsm.ntags; i++) {
        const char *tag = instance->fsm.tags[i].tag;
        if (aggregate(instance, i) == instance->want[i]) {
            continue;
        }
        if (instance->want[i] == KVB_RESIDENT) {
            memcpy(plan->restore[plan->nrestore++], tag, KVB_NAME_MAX);
        } else {
            memcpy(plan->release[plan->nrelease].tag, tag, KVB_NAME_MAX);
            plan->release[plan->nrelease++].offload = instance->want[i] == KVB_OFFLOADED;
        }
    }
}

/* Paused, or about to be, while nothing stops it, running while something does (a resume that
 * failed, and was done all the same), or running on memory that is not there. */
static bool settle_scheduler(struct kvp_op *op)
{
    struct kvp_instance *instance = op->instance;
    struct kvp_fsm *fsm = &instance->fsm;
    struct kvp_plan *plan = op->undoing ? &op->undo : &op->plan;
    kvp_instance_refresh_tags(instance, kvp_op_plan(op));
    bool resident = kvp_fsm_all_resident(fsm);
    if (resident && fsm->scheduler == KVP_SCHEDULER_RUNNING) { /* nothing of a sleep is left */
        fsm->stopped_by &= ~(unsigned)(KVP_STOPPED_BY_SLEEP | KVP_STOPPED_BY_RELEASE);
    }
    unsigned stoppers = fsm->stopped_by & ~(unsigned)KVP_STOPPED_BY_DEGRADED;
    bool running = fsm->scheduler == KVP_SCHEDULER_RUNNING;
    if (!resident && (running || stoppers == 0)) {
        fsm->stopped_by |= KVP_STOPPED_BY_SLEEP;
    }
    if (running && (!resident || stoppers != 0)) {
        plan->mode = resident ? KVB_PAUSE_KEEP : KVB_PAUSE_ABORT;
        bool legal = kvp_fsm_scheduler(fsm, KVP_SCHED_STOP);
        kvb_assert(legal);
        return on_ranks(op, KVP_WHO_SCHEDULER, ask_pause);
    }
    if ((!running || instance->pause_open) && resident && stoppers == 0) {
        return on_ranks(op, KVP_WHO_SCHEDULER, ask_resume);
    }
    return false;
}

/* ---- the steps ---- */

static void after_state(struct kvp_instance *instance)
{
    bool written = false;
    bool running = false;
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        written = written || instance->sessions[i].state.weights_written;
        running = running || instance->sessions[i].state.weight_change_running;
        instance->sessions[i].state.weights_written = false; /* taken into account */
    }
    kvp_instance_bracket(instance, running ? KVP_BEV_SAYS_RUNNING : KVP_BEV_SAYS_ENDED);
    if (written) {
        KVP_LINEAGE(instance, written, kvp_instance_random(instance));
    }
}

static enum kvp_leave leave_reason(enum kvp_operation operation)
{
    switch (operation) {
    case KVP_OP_SLEEP:
        return KVP_LEAVE_SLEEP;
    case KVP_OP_RELEASE_KV:
    case KVP_OP_RELEASE:
        return KVP_LEAVE_RELEASE;
    case KVP_OP_RESET:
        return KVP_LEAVE_RESET;
    default:
        return KVP_LEAVE_PAUSE;
    }
}

static bool begin_leave(struct kvp_op *op)
{
    struct kvp_instance *instance = op->instance;
    const struct kvp_plan *plan = kvp_op_plan(op);
    op->leaving_begun = true;
    if (op->pos > 0 && op->plan.steps[op->pos - 1] == KVP_STEP_STATE) {
        after_state(instance);
    }
    instance->retire_status = KVB_OK;
    if (!plan->reconcile) {
        op->external = !instance->lineage.coordinator || instance->lineage.reachable
                           ? KVP_EXTERNAL_DONE
                           : KVP_EXTERNAL_PENDING;
    }
    kvp_instance_event(instance, "leave", kvp_operation_label(op->ask.operation));
    KVP_LINEAGE(instance, leave, leave_reason(op->ask.operation), true,
                kvp_instance_random(instance));
    return kvp_op_wait_for(op, KVP_WAIT_ACK, KVB_NEVER);
}

static void want(struct kvp_instance *instance, const char *tag, enum kvb_residency residency)
{
    for (uint32_t t = 0; t < instance->fsm.ntags; t++) {
        if (strcmp(instance->fsm.tags[t].tag, tag) == 0) {
            instance->want[t] = residency;
        }
    }
}

static bool begin_discard(struct kvp_op *op)
{
    struct kvp_instance *instance = op->instance;
    instance->fsm.stopped_by |= op->plan.stop;
    for (uint32_t i = 0; i < op->plan.nrelease; i++) {
        want(instance, op->plan.release[i].tag,
             op->plan.release[i].offload ? KVB_OFFLOADED : KVB_DISCARDED);
    }
    return on_ranks(op, KVP_WHO_WORKERS, ask_discard);
}

static bool plan_has(const struct kvp_plan *plan, enum kvp_step step)
{
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        if (plan->steps[i] == step) {
            return true;
        }
    }
    return false;
}

static bool begin_name(struct kvp_op *op)
{
    struct kvp_instance *instance = op->instance;
    if (plan_has(&op->plan, KVP_STEP_RUN)) {
        KVP_LINEAGE(instance, stopped, false); /* about to run: what was held is judged */
    }
    return kvp_op_wait_for(op, KVP_WAIT_SETTLED,
                           kvp_instance_bound(instance, KVB_LINK_FINGERPRINT));
}

static bool begin_unstop(struct kvp_op *op)
{
    struct kvp_instance *instance = op->instance;
    if (op->before.scheduler == KVP_SCHEDULER_RUNNING && kvp_fsm_all_resident(&op->before)) {
        return on_ranks(op, KVP_WHO_SCHEDULER, ask_resume);
    } /* one that ran on what was not there waits for reconcile */
    bool legal = kvp_fsm_scheduler(&instance->fsm, KVP_SCHED_SAYS_PAUSED);
    kvb_assert(legal);
    return false;
}

void kvp_step_undo_bracket(struct kvp_op *op)
{
    struct kvp_instance *instance = op->instance;
    bool relayed = op->failed == KVP_STEP_RELAY;
    bool unknown = op->before.bracket == KVP_BRACKET_UNKNOWN; /* and no failure ends that */
    bool lost = unknown || (relayed && op->status == KVB_ERR_TIMEOUT);
    if (op->plan.steps[0] == KVP_STEP_BEGIN_UPDATE) {
        bool begun = unknown || (relayed && op->taken); /* also by some ranks only */
        kvp_instance_bracket(instance, begun ? KVP_BEV_START_LOST : KVP_BEV_START_FAILED);
    } else if (op->plan.steps[0] == KVP_STEP_BEGIN_CALL && lost) {
        kvp_instance_bracket(instance, KVP_BEV_CALL_LOST);
    } else if (op->plan.steps[0] == KVP_STEP_BEGIN_CALL &&
               (instance->fsm.scheduler == KVP_SCHEDULER_RUNNING ||
                (!relayed && op->before.bracket == KVP_BRACKET_NONE))) {
        kvp_instance_bracket(instance, KVP_BEV_CALL_FAILED);
    }
}

bool kvp_step_begin(struct kvp_op *op, enum kvp_step step)
{
    struct kvp_instance *instance = op->instance;
    const struct kvp_plan *plan = kvp_op_plan(op);
    enum kvp_who who = kvp_step_info(step)->who;
    bool pending;
    if (plan->reconcile && plan->nrelease == 0 &&
        (step == KVP_STEP_STOP || step == KVP_STEP_LEAVE || step == KVP_STEP_RESET_LOCAL ||
         step == KVP_STEP_DRAIN)) {
        return false;
    }
    switch (step) {
    case KVP_STEP_NONE:
    case KVP_STEP_COUNT:
        KVB_UNREACHABLE("no such step");
    case KVP_STEP_STOP: {
        bool legal = kvp_fsm_scheduler(&instance->fsm, KVP_SCHED_STOP);
        kvb_assert(legal);
        return on_ranks(op, who, ask_pause);
    }
    case KVP_STEP_DRAIN:
        return on_ranks(op, who, ask_drain);
    case KVP_STEP_LEAVE:
        return begin_leave(op);
    case KVP_STEP_RESET_SOFT:
        op->leaving_begun = true; /* who asks from here on asks for what is cached since, too */
        return on_ranks(op, who, ask_reset);
    case KVP_STEP_RESET_LOCAL:
        return on_ranks(op, who, ask_reset);
    case KVP_STEP_UNREGISTER:
        if (plan->nrelease == 0) {
            return false;
        }
        if (plan->opt_out) {
            kvp_lineage_opt_out(&instance->lineage);
        }
        kvp_instance_tell_resident(instance, false);
        return on_ranks(op, who, ask_unregister);
    case KVP_STEP_OFFLOAD:
        return on_ranks(op, who, ask_offload);
    case KVP_STEP_DISCARD:
        return op->internal || op->undoing ? on_ranks(op, who, ask_discard) : begin_discard(op);
    case KVP_STEP_RELEASE_BACK:
        return on_ranks(op, who, ask_discard);
    case KVP_STEP_RESTORE:
        return on_ranks(op, who, ask_restore);
    case KVP_STEP_REGISTER:
        return plan->nrestore > 0 && on_ranks(op, who, ask_register);
    case KVP_STEP_STATE:
        return on_ranks(op, who, ask_state);
    case KVP_STEP_CONVERGE:
        after_state(instance);
        converge(op);
        return false;
    case KVP_STEP_SETTLE:
        if (!kvp_instance_any_unknown(instance)) {
            instance->reconcile = false;
            kvb_sched_timer_clear(instance->fleet->config.sched, &instance->reconcile_timer);
        }
        pending = settle_scheduler(op);
        if (instance->ack_status != KVB_IN_PROGRESS) { /* else its own end tells */
            KVP_LINEAGE(instance, resend);
        }
        KVP_LINEAGE(instance, report);
        return pending;
    case KVP_STEP_BEGIN_UPDATE:
    case KVP_STEP_BEGIN_CALL:
        if (step == KVP_STEP_BEGIN_CALL && instance->lineage.update) { /* what begins one leaves */
            KVP_LINEAGE(instance, written, kvp_instance_random(instance));
        }
        kvp_instance_bracket(instance, step == KVP_STEP_BEGIN_CALL ? KVP_BEV_CALL : KVP_BEV_START);
        return kvp_op_wait_for(op, KVP_WAIT_ACK, KVB_NEVER);
    case KVP_STEP_RELAY:
    case KVP_STEP_RELAY_SOFT:
        return on_ranks(op, who, ask_relay);
    case KVP_STEP_LEFT:
        return op->weights_written &&
               kvp_op_wait_for(op, KVP_WAIT_ACK, kvp_instance_bound(instance, KVB_LINK_LINEAGE));
    case KVP_STEP_END_CALL:
        if (instance->fsm.scheduler == KVP_SCHEDULER_RUNNING) {
            kvp_instance_bracket(instance, KVP_BEV_CALL_ENDED);
        }
        return false;
    case KVP_STEP_UNBEGIN:
        kvp_step_undo_bracket(op);
        return false;
    case KVP_STEP_FINISH:
        kvp_instance_bracket(instance, KVP_BEV_FINISH);
        return false;
    case KVP_STEP_CLOSE_RESUME:
        after_state(instance);
        kvp_instance_bracket(instance, KVP_BEV_RESUME);
        return false;
    case KVP_STEP_CLOSE_AWAKE:
        kvp_instance_bracket(instance, KVP_BEV_ALL_AWAKE);
        return false;
    case KVP_STEP_AWAKE:
        after_state(instance); /* before it can open */
        for (uint32_t i = 0; i < plan->nrestore; i++) {
            want(instance, plan->restore[i], KVB_RESIDENT);
        }
        kvp_instance_refresh_tags(instance, plan);
        return false;
    case KVP_STEP_VERSION:
        memcpy(instance->weight_version, op->ask.weight_version, sizeof instance->weight_version);
        KVP_LINEAGE(instance, version, op->ask.weight_version);
        return false;
    case KVP_STEP_NAME:
        return begin_name(op);
    case KVP_STEP_RETIRE:
        KVP_LINEAGE(instance, disown); /* also where it left once more while it was reset */
        return kvp_op_wait_for(op, KVP_WAIT_RETIRED, KVB_NEVER);
    case KVP_STEP_TENANT:
        op->leaving_begun = true;
        pending = kvp_bind_tenant_reset(
            op, kvp_instance_in_ms(instance, instance->fleet->config.bounds.retire_ms));
        op->step_status = pending ? KVB_OK : KVB_ERR_NO_MEMORY;
        return pending;
    case KVP_STEP_RUN:
        return on_ranks(op, who, ask_resume);
    case KVP_STEP_UNSTOP:
        return begin_unstop(op);
    }
    return false;
}
