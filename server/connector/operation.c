/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/instance_impl.h"

#include "base/assert.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The life of an operation: asked → (waiting) → running: plan, steps, perhaps undo → answered.
 *
 * Every caller is answered exactly once, by answer(): at the end of its operation, or when the
 * operation it waits for its turn with gives up. An operation ends only when each call it made has
 * been answered, and each of those has a deadline of its own, so an operation ends. The slot is
 * free when instance.running is NULL; whoever frees it pumps, and pump() starts the next: first
 * the daemon's own reconcile, which the others build on, then the queue.
 */

static void advance(struct kvp_op *op);
static void on_turn_over(struct kvb_timer *timer);
static void on_go(struct kvb_timer *timer);
static void on_moved(struct kvb_event *event);
static void on_gone(struct kvb_timer *timer);

enum {
    GONE_MS = 5000
}; /* from a rank's last call to its end being told: its transfers are stopped */

void kvp_op_say(struct kvp_op *op, const char *format, ...)
{
    if (op->message[0] != '\0') {
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(op->message, sizeof op->message, format, args);
    va_end(args);
}

const struct kvp_plan *kvp_op_plan(const struct kvp_op *op)
{
    return op->undoing ? &op->undo : &op->plan;
}

/* Every line from here on is its doing, until what is returned is set again. */
static struct kvb_log_context log_as(const struct kvp_op *op)
{
    return kvb_log_enter(op->record.request_id, op->record.id);
}

static const char *label_of(const struct kvp_op *op)
{
    return op->internal ? "reconcile" : kvp_operation_label(op->ask.operation);
}

static uint64_t since(const struct kvp_op *op, uint64_t begun_ns)
{
    return kvb_now_ns(op->fleet->config.sched->clock) - begun_ns;
}

/* ---- made and freed ---- */

static void set_timer(struct kvp_op *op, void (*fn)(struct kvb_timer *), uint64_t deadline_ns)
{
    op->timer.fn = fn;
    kvb_sched_timer_set(op->fleet->config.sched, &op->timer, deadline_ns);
}

static struct kvp_op *op_create(struct kvp_fleet *fleet, struct kvp_instance *instance,
                                const struct kvp_ask *ask)
{
    struct kvp_op *op = calloc(1, sizeof *op);
    if (op == NULL) {
        return NULL;
    }
    op->ask = *ask;
    op->ask.body = NULL;
    if (ask->body_len > 0) {
        op->body = malloc(ask->body_len);
        if (op->body == NULL) {
            free(op);
            return NULL;
        }
        memcpy(op->body, ask->body, ask->body_len);
        op->ask.body = op->body;
    }
    op->fleet = fleet;
    op->instance = instance;
    kvb_list_init(&op->link);
    kvb_list_init(&op->callers);
    kvb_timer_init(&op->timer, on_turn_over);
    kvb_event_init(&op->event, on_moved);
    op->record.id = ++fleet->last_op_id;
    op->record.operation = ask->operation;
    op->record.started_ns = kvb_now_ns(fleet->config.sched->clock);
    if (instance != NULL) {
        memcpy(op->record.instance, instance->name, sizeof op->record.instance);
    }
    return op;
}

static void op_free(struct kvp_op *op)
{
    kvb_assert(kvb_list_empty(&op->callers) && op->left == 0);
    kvb_list_remove(&op->link);
    kvb_sched_timer_clear(op->fleet->config.sched, &op->timer);
    kvb_sched_unpost(&op->event);
    free(op->relay_body);
    free(op->body);
    free(op);
}

/* ---- answering ---- */

void kvp_op_blame(struct kvp_op *op, enum kvp_side side, const struct kvp_rank *rank)
{
    struct kvp_operation_record *record = &op->record;
    if (op->blamed) {
        return;
    }
    op->blamed = true;
    record->side = side;
    if (side == KVP_SIDE_ENGINE && rank != NULL) {
        snprintf(record->at, sizeof record->at, "%s/%u", record->instance, rank->index);
    } else if (side == KVP_SIDE_ENGINE) {
        snprintf(record->at, sizeof record->at, "%s", record->instance);
    }
}

static void answer(struct kvp_op *op)
{
    if (op->status != KVB_OK) {
        kvp_op_blame(op, kvp_side_of(op->status), NULL);
    }
    struct kvp_view view;
    struct kvp_outcome outcome = {
        .status = op->status,
        .message = op->message,
        .side = op->record.side,
        .at = op->record.at[0] != '\0' ? op->record.at : NULL,
        .operation_id = op->record.id,
        .nothing_to_do = op->nothing_to_do,
        .local_done = op->local_done,
        .blocks_held = op->blocks_held,
        .external = op->external,
        .ntags_woken = op->status == KVB_OK ? op->plan.ntags_woken : 0,
        .ntags_ignored = op->plan.ntags_ignored,
        .relay_body = op->relay_body,
        .relay_len = op->relay_len,
    };
    memcpy(outcome.tags_woken, op->plan.tags_woken, sizeof outcome.tags_woken);
    memcpy(outcome.tags_ignored, op->plan.tags_ignored, sizeof outcome.tags_ignored);
    if (op->instance != NULL) {
        kvp_instance_fill_view(op->instance, &view);
        outcome.view = &view;
    }
    op->record.finished = true;
    op->record.status = op->status;
    op->record.finished_ns = kvb_now_ns(op->fleet->config.sched->clock);
    snprintf(op->record.message, sizeof op->record.message, "%.255s", op->message);
    if (!op->internal) {
        const struct kvp_fleet_config *config = &op->fleet->config;
        kvp_fleet_record(op->fleet, &op->record);
        if (config->ended != NULL) {
            config->ended(config->ctx, &op->record);
        }
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&op->callers)) != NULL;) {
        struct kvp_caller *caller = kvb_container_of(link, struct kvp_caller, link);
        if (caller->done != NULL) {
            caller->done(caller->arg, &outcome);
        }
        free(caller);
    }
}

/* The last line of its story. */
static void log_ended(const struct kvp_op *op)
{
    if (op->internal) {
        KVB_LOG(DEBUG, "operation ended", KVB_STR("instance", op->record.instance),
                KVB_STR("operation", label_of(op)), KVB_STATUS(op->status),
                KVB_MS("took", since(op, op->record.started_ns)));
        return;
    }
    KVB_LOG(INFO, "operation ended",
            KVB_STR("instance", op->instance != NULL ? op->instance->name : NULL),
            KVB_STR("operation", label_of(op)), KVB_STATUS(op->status),
            KVB_MS("took", since(op, op->record.started_ns)),
            KVB_STR("message", op->message[0] != '\0' ? op->message : NULL));
}

/* Never ran: its turn did not come, or it was refused. */
static void reject(struct kvp_op *op, kvb_status_t status, const char *message)
{
    struct kvb_log_context before = log_as(op);
    op->status = status;
    kvp_op_say(op, "%s", message);
    log_ended(op);
    answer(op);
    op_free(op);
    kvb_log_set_context(&before);
}

static void on_rejected(struct kvb_event *event)
{
    struct kvp_op *op = kvb_container_of(event, struct kvp_op, event);
    struct kvb_log_context before = log_as(op);
    log_ended(op);
    answer(op);
    op_free(op);
    kvb_log_set_context(&before);
}

static void reject_later(struct kvp_op *op, kvb_status_t status)
{
    op->status = status;
    kvb_list_push_back(&op->fleet->rejected, &op->link);
    kvb_event_init(&op->event, on_rejected);
    kvb_sched_post(op->fleet->config.sched, &op->event);
}

static void unqueue(struct kvp_op *op)
{
    kvb_list_remove(&op->link);
    op->instance->nwaiting--;
}

static void on_turn_over(struct kvb_timer *timer)
{
    struct kvp_op *op = kvb_container_of(timer, struct kvp_op, timer);
    struct kvp_instance *instance = op->instance;
    char text[256];
    if (instance->running != NULL && !instance->running->internal) {
        snprintf(text, sizeof text,
                 "%s is running (step %s) and did not end in time: try again later, or POST "
                 "/resume to cancel a drain",
                 kvp_operation_label(instance->running->ask.operation),
                 instance->running->record.step);
    } else {
        snprintf(
            text, sizeof text,
            "a rank of the engine does not answer; the daemon goes on asking: try again later");
    }
    unqueue(op);
    reject(op, KVB_ERR_BUSY, text);
    kvp_instance_changed(instance);
}

/* ---- asking ---- */

/* The one of that name; NULL: any, which is the only one if there is one. */
static struct kvp_instance *named_or_any(struct kvp_fleet *fleet, const char *name)
{
    if (name != NULL) {
        return kvp_fleet_find(fleet, name);
    }
    struct kvb_list *first = kvb_list_first(&fleet->instances);
    return first == NULL ? NULL : kvb_container_of(first, struct kvp_instance, link);
}

static bool add_caller(struct kvp_op *op, kvp_outcome_fn done, void *arg)
{
    struct kvp_caller *caller = malloc(sizeof *caller);
    if (caller == NULL) {
        return false;
    }
    caller->done = done;
    caller->arg = arg;
    kvb_list_push_back(&op->callers, &caller->link);
    return true;
}

static struct kvp_op *last_waiting(const struct kvp_instance *instance)
{
    return kvb_list_empty(&instance->waiting)
               ? NULL
               : kvb_container_of(instance->waiting.prev, struct kvp_op, link);
}

/* Has anything begun that a later identical request must not take for its own? */
static bool joinable(const struct kvp_op *op)
{
    bool reset = op->ask.operation == KVP_OP_RESET || op->ask.operation == KVP_OP_TENANT_RESET;
    return !op->internal && !op->undoing && op->cancel == NULL && !(reset && op->leaving_begun);
}

/* Stops an instance, and can be undone until memory is discarded. */
static bool stops(const struct kvp_op *op)
{
    return op->ask.operation == KVP_OP_PAUSE || op->ask.operation == KVP_OP_SLEEP ||
           op->ask.operation == KVP_OP_RELEASE_KV || op->ask.operation == KVP_OP_RELEASE;
}

static bool cancelable(const struct kvp_op *op)
{
    return stops(op) && !op->internal && !op->undoing && !op->no_return;
}

static void on_engine_resumed(void *arg, kvb_status_t status, const union kvp_rank_reply *reply)
{
    /* The pause it ends answers CANCELED; that is what the operation goes by. */
    (void)arg;
    (void)status;
    (void)reply;
}

static void cancel(struct kvp_op *op, const char *who)
{
    struct kvp_instance *instance = op->instance;
    if (op->cancel != NULL) {
        return;
    }
    op->cancel = who;
    if (!op->in_step) {
        return;
    }
    enum kvp_step step = (enum kvp_step)op->plan.steps[op->pos];
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        struct kvp_rank *rank = instance->sessions[i].rank;
        if (step == KVP_STEP_DRAIN && (rank->roles & KVB_ROLE_WORKER) != 0) {
            rank->ops->drain_stop(rank->impl);
        } else if (step == KVP_STEP_STOP && (rank->roles & KVB_ROLE_SCHEDULER) != 0) {
            uint64_t bound_ns = kvp_instance_bound(instance, KVB_LINK_RESUME);
            rank->ops->hurry_pauses(rank->impl, bound_ns);
            if (op->before.scheduler == KVP_SCHEDULER_RUNNING) { /* a pause stays one */
                struct kvb_link_resume msg = {.operation = op->record.id};
                rank->ops->call(rank->impl, KVB_LINK_RESUME, &msg, bound_ns, on_engine_resumed,
                                NULL);
            }
        }
    }
}

static kvb_status_t refuse_to(struct kvp_fleet *fleet, const struct kvp_ask *ask,
                              const char *request_id, kvp_outcome_fn done, void *arg,
                              kvb_status_t status, const char *message,
                              struct kvp_instance *instance, uint64_t *id_p)
{
    struct kvp_ask bare = {.operation = ask->operation};
    struct kvp_op *op = op_create(fleet, instance, &bare);
    if (op == NULL || !add_caller(op, done, arg)) {
        free(op);
        return KVB_ERR_NO_MEMORY;
    }
    snprintf(op->record.request_id, sizeof op->record.request_id, "%s", request_id);
    kvp_op_say(op, "%s", message);
    if (status == KVB_ERR_BAD_STATE) { /* not attached */
        kvp_op_blame(op, KVP_SIDE_ENGINE, NULL);
    }
    *id_p = op->record.id;
    reject_later(op, status);
    return KVB_OK;
}

static struct kvp_instance *choose(struct kvp_fleet *fleet, const char *name,
                                   char text[KVP_MESSAGE_MAX], kvb_status_t *status_p)
{
    struct kvp_instance *instance = named_or_any(fleet, name);
    if (instance == NULL) {
        *status_p = name == NULL ? KVB_ERR_BAD_STATE : KVB_ERR_NOT_FOUND;
        snprintf(text, KVP_MESSAGE_MAX,
                 name == NULL ? "no engine has attached yet: start one with this daemon's socket"
                              : "no instance of the name %s has attached",
                 name);
        return NULL;
    }
    if (name == NULL && kvp_fleet_count(fleet) > 1) {
        *status_p = KVB_ERR_INVALID;
        int used = snprintf(text, KVP_MESSAGE_MAX, "several instances: say ?instance= one of");
        kvb_list_each(&fleet->instances, link)
        {
            struct kvp_instance *each = kvb_container_of(link, struct kvp_instance, link);
            if (used > 0 && used < KVP_MESSAGE_MAX) {
                used += snprintf(text + used, (size_t)(KVP_MESSAGE_MAX - used), " %s", each->name);
            }
        }
        return NULL;
    }
    if (!instance->attached) {
        *status_p = KVB_ERR_BAD_STATE;
        snprintf(text, KVP_MESSAGE_MAX, "%s is not attached (%u of %u ranks)%s%s: try again later",
                 instance->name, instance->nsessions, instance->shape.world_size,
                 instance->message[0] != '\0' ? ": " : "", instance->message);
    }
    return instance;
}

/* Is there room on the way to the engine for one more? Beside one that runs: see the stream. */
static bool relays_fit(const struct kvp_instance *instance, const struct kvp_ask *ask)
{
    uint64_t bytes = ask->body_len;
    kvb_list_each(&instance->beside, link)
    {
        bytes += kvb_container_of(link, struct kvp_op, link)->ask.body_len;
    }
    return instance->nbeside < KVP_WAITING_MAX && bytes <= KVB_RELAY_BODY_MAX;
}

/* Joins, queues or starts it. The status that refuses it, with text. */
static kvb_status_t admit(struct kvp_instance *instance, const struct kvp_ask *ask,
                          const char *request_id, kvp_outcome_fn done, void *arg, uint64_t *id_p,
                          char words[KVP_MESSAGE_MAX], const char **text_p)
{
    struct kvp_fleet *fleet = instance->fleet;
    struct kvp_op *last = last_waiting(instance);
    struct kvp_op *running = instance->running;
    struct kvp_slot slot = {
        .running = running != NULL ? &running->ask : NULL,
        .joinable = running != NULL && joinable(running),
        .cancelable = running != NULL && cancelable(running),
        .last = last != NULL ? &last->ask : NULL,
        .waiting = instance->nwaiting,
    };
    enum kvp_admit way = kvp_fsm_admit(&slot, ask);
    *text_p = "out of memory: try again later";
    if (way == KVP_ADMIT_JOIN || way == KVP_ADMIT_JOIN_LAST) {
        struct kvp_op *shared = way == KVP_ADMIT_JOIN ? running : last;
        if (!add_caller(shared, done, arg)) {
            return KVB_ERR_NO_MEMORY;
        }
        shared->shared = true;
        *id_p = shared->record.id;
        return KVB_OK;
    }
    /* The daemon's own and another reset are soon over, and this is not theirs to share. */
    bool soon = running != NULL && last == NULL &&
                (running->internal || running->ask.operation == KVP_OP_RESET);
    if (ask->at_once && way == KVP_ADMIT_WAIT && !soon) {
        snprintf(words, KVP_MESSAGE_MAX, "%s is %s: try again later",
                 kvp_operation_label(last != NULL ? last->ask.operation : running->ask.operation),
                 last != NULL ? "waiting" : "running");
        *text_p = words;
        return KVB_ERR_BUSY;
    }
    if (way == KVP_ADMIT_FULL || (way == KVP_ADMIT_BESIDE && !relays_fit(instance, ask))) {
        *text_p = "too many operations are waiting: try again later";
        return KVB_ERR_BUSY;
    }
    struct kvp_op *op = op_create(fleet, instance, ask);
    if (op == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    if (!add_caller(op, done, arg)) {
        op_free(op);
        return KVB_ERR_NO_MEMORY;
    }
    *id_p = op->record.id;
    snprintf(op->record.request_id, sizeof op->record.request_id, "%s", request_id);
    if (way == KVP_ADMIT_BESIDE) {
        kvb_list_push_back(&instance->beside, &op->link);
        instance->nbeside++;
        kvp_plan_make(ask, &(struct kvp_situation){.fsm = &instance->fsm}, &op->plan);
        set_timer(op, on_go, kvb_now_ns(fleet->config.sched->clock)); /* it may end at once */
        return KVB_OK;
    }
    kvb_list_push_back(&instance->waiting, &op->link);
    instance->nwaiting++;
    op->record.deadline_ns = kvp_instance_in_ms(instance, fleet->config.bounds.slot_wait_ms);
    set_timer(op, on_turn_over, op->record.deadline_ns);
    if (way == KVP_ADMIT_CANCEL) {
        cancel(running, "/resume");
    }
    kvb_sched_post(fleet->config.sched, &instance->pump);
    return KVB_OK;
}

kvb_status_t kvp_fleet_request(struct kvp_fleet *fleet, const char *name, const struct kvp_ask *ask,
                               const char *request_id, kvp_outcome_fn done, void *arg,
                               uint64_t *operation_id_p)
{
    char words[KVP_MESSAGE_MAX] = "";
    const char *text = words;
    kvb_status_t status = KVB_OK;
    uint64_t id = 0;
    request_id = request_id != NULL ? request_id : "";
    struct kvp_instance *instance = choose(fleet, name, words, &status);
    if (status == KVB_OK) {
        status = admit(instance, ask, request_id, done, arg, &id, words, &text);
    }
    if (status != KVB_OK) {
        status = refuse_to(fleet, ask, request_id, done, arg, status, text, instance, &id);
    }
    if (status == KVB_OK && operation_id_p != NULL) {
        *operation_id_p = id;
    }
    return status;
}

/* ---- one that was asked for ---- */

static struct kvp_op *find_in(struct kvb_list *ops, uint64_t id)
{
    kvb_list_each(ops, link)
    {
        struct kvp_op *op = kvb_container_of(link, struct kvp_op, link);
        if (op->record.id == id && !op->internal) {
            return op;
        }
    }
    return NULL;
}

/* One that has not ended. */
static struct kvp_op *find_op(struct kvp_fleet *fleet, uint64_t id)
{
    struct kvp_op *found = find_in(&fleet->rejected, id);
    kvb_list_each(&fleet->instances, link)
    {
        struct kvp_instance *instance = kvb_container_of(link, struct kvp_instance, link);
        struct kvp_op *running = instance->running;
        if (running != NULL && running->record.id == id && !running->internal) {
            return running;
        }
        found = found != NULL ? found : find_in(&instance->waiting, id);
        found = found != NULL ? found : find_in(&instance->beside, id);
    }
    return found;
}

kvb_status_t kvp_fleet_await(struct kvp_fleet *fleet, uint64_t id, kvp_outcome_fn done, void *arg)
{
    struct kvp_op *op = find_op(fleet, id);
    if (op == NULL) {
        return KVB_ERR_NOT_FOUND;
    }
    return add_caller(op, done, arg) ? KVB_OK : KVB_ERR_NO_MEMORY;
}

kvb_status_t kvp_fleet_cancel(struct kvp_fleet *fleet, uint64_t id)
{
    static const char who[] = "a request to cancel it";
    struct kvp_op *op = find_op(fleet, id);
    if (op == NULL) {
        return KVB_ERR_NOT_FOUND;
    }
    if (op->instance != NULL && op == op->instance->running) {
        if (!cancelable(op)) {
            return KVB_ERR_BAD_STATE;
        }
        cancel(op, who);
        return KVB_OK;
    }
    if (op->instance == NULL || find_in(&op->instance->waiting, id) == NULL) {
        return KVB_ERR_BAD_STATE; /* its answer is on the way, or the engine has it */
    }
    struct kvp_instance *instance = op->instance;
    unqueue(op);
    kvb_sched_timer_clear(fleet->config.sched, &op->timer);
    kvp_op_say(op, "canceled by %s", who);
    reject_later(op, KVB_ERR_CANCELED);
    kvp_instance_changed(instance);
    return KVB_OK;
}

static void forget_in(struct kvp_op *op, const void *arg)
{
    kvb_list_each(&op->callers, link)
    {
        struct kvp_caller *caller = kvb_container_of(link, struct kvp_caller, link);
        if (caller->arg == arg) {
            caller->done = NULL;
        }
    }
}

static void forget_list(struct kvb_list *ops, const void *arg)
{
    kvb_list_each(ops, link)
    {
        forget_in(kvb_container_of(link, struct kvp_op, link), arg);
    }
}

void kvp_fleet_forget(struct kvp_fleet *fleet, void *arg)
{
    forget_list(&fleet->rejected, arg);
    kvb_list_each(&fleet->instances, link)
    {
        struct kvp_instance *instance = kvb_container_of(link, struct kvp_instance, link);
        forget_list(&instance->waiting, arg);
        forget_list(&instance->beside, arg);
        if (instance->running != NULL) {
            forget_in(instance->running, arg);
        }
    }
}

/* ---- running ---- */

/* Takes no slot. */
static bool beside(const struct kvp_op *op)
{
    return op->ask.operation == KVP_OP_RELAY && !op->internal;
}

/* Whoever was told of a state goes by it: then it is not only the work of the one before. */
static void note_found(struct kvp_op *op)
{
    struct kvp_found *found = &op->instance->found;
    switch (op->ask.operation) {
    case KVP_OP_RESET:
    case KVP_OP_TENANT_RESET:
    case KVP_OP_SET_VERSION:
    case KVP_OP_RELAY:
        return;
    case KVP_OP_TAKE_BACK:
        found->id = op->status == KVB_OK ? 0 : found->id;
        return;
    default:
        break;
    }
    if (op->status == KVB_OK && !op->nothing_to_do && stops(op)) {
        *found = (struct kvp_found){.id = op->record.id,
                                    .touched = op->shared,
                                    .stop = op->plan.stop,
                                    .before = op->before};
    } else if (op->plan.refused == KVB_OK &&
               (op->status == KVB_OK || !stops(op) || op->no_return)) {
        found->touched = true;
    }
}

static void finish(struct kvp_op *op)
{
    struct kvp_instance *instance = op->instance;
    struct kvp_fsm *fsm = &instance->fsm;
    if (beside(op)) {
        kvb_list_remove(&op->link);
        instance->nbeside--;
        log_ended(op);
        answer(op);
        op_free(op);
        return;
    }
    if (instance->nsessions > 0) {
        kvp_instance_refresh_tags(instance, op->undoing ? &op->undo : &op->plan);
    }
    if (op->status == KVB_OK) {
        fsm->stopped_by |= op->plan.stop;
        fsm->stopped_by &= ~op->plan.lift;
        if (op->plan.nrelease > 0 || op->plan.nrestore > 0 || op->internal) {
            fsm->stopped_by &= ~(unsigned)KVP_STOPPED_BY_DEGRADED;
            instance->message[0] = '\0';
        }
    } else if (op->status != KVB_ERR_BAD_STATE && !op->internal) {
        char state[KVP_MESSAGE_MAX / 2];
        kvp_instance_state_text(instance, state, sizeof state);
        size_t used = strlen(op->message);
        snprintf(op->message + used, sizeof op->message - used, "; the instance is now %s", state);
    }
    if (fsm->bracket == KVP_BRACKET_UNKNOWN) {
        kvp_instance_schedule_reconcile(instance); /* asks whether it has ended */
    }
    KVP_LINEAGE(instance, stopped, fsm->scheduler != KVP_SCHEDULER_RUNNING);
    KVP_LINEAGE(instance, disown);
    instance->running = NULL;
    if (!op->internal) {
        note_found(op);
        kvp_instance_event(instance, kvp_operation_label(op->ask.operation),
                           kvb_status_label(op->status));
    }
    log_ended(op);
    kvp_instance_changed(instance);
    answer(op);
    op_free(op);
    kvb_sched_post(instance->fleet->config.sched, &instance->pump);
}

static void go_degraded(struct kvp_op *op)
{
    struct kvp_instance *instance = op->instance;
    instance->fsm.stopped_by |= KVP_STOPPED_BY_DEGRADED;
    snprintf(instance->message, sizeof instance->message, "%.200s", op->message);
    KVB_LOG(ERROR, "instance degraded: memory is partly discarded",
            KVB_STR("instance", instance->name), KVB_STR("message", op->message));
    kvp_instance_event(instance, "degraded", op->message);
    size_t used = strlen(op->message);
    snprintf(op->message + used, sizeof op->message - used,
             "; degraded, not serving: repeat this call to go on, or POST /wake_up");
    finish(op);
}

/* A step without return failed: only forward, a bounded number of times. */
static void forward(struct kvp_op *op)
{
    const struct kvp_bounds *bounds = &op->fleet->config.bounds;
    if (op->tries >= bounds->forward_tries || op->step_status == KVB_ERR_DISCONNECTED) {
        op->status = op->step_status;
        go_degraded(op);
        return;
    }
    op->tries++;
    op->plan.nsteps = 0;
    op->plan.steps[op->plan.nsteps++] = KVP_STEP_STATE;
    op->plan.steps[op->plan.nsteps++] = KVP_STEP_DISCARD;
    op->pos = 0;
    set_timer(op, on_go, kvp_instance_in_ms(op->instance, bounds->forward_retry_ms));
}

static void on_go(struct kvb_timer *timer)
{
    advance(kvb_container_of(timer, struct kvp_op, timer));
}

/* Brings memory back: also on the ranks that are left when one went. The rest of an undo waits
 * until that one is there again. */
static bool brings_memory_back(enum kvp_step step)
{
    return step == KVP_STEP_STATE || step == KVP_STEP_RESTORE || step == KVP_STEP_REGISTER ||
           step == KVP_STEP_UNREGISTER || step == KVP_STEP_OFFLOAD || step == KVP_STEP_RELEASE_BACK;
}

static void begin_undo(struct kvp_op *op)
{
    struct kvp_instance *instance = op->instance;
    if (op->status == KVB_ERR_DISCONNECTED && instance->attached && !op->gone_awaited) {
        /* Its calls end before the rank is gone: undone is what is left after that. */
        op->gone_awaited = true;
        set_timer(op, on_gone, kvp_instance_in_ms(instance, GONE_MS));
        return;
    }
    if (!instance->attached && (op->internal || kvp_instance_any_unknown(instance))) {
        finish(op); /* attaching again reconciles */
        return;
    }
    for (uint32_t i = 0; i < op->before.ntags; i++) {
        if (op->before.tags[i].residency != KVB_UNKNOWN) {
            instance->want[i] = op->before.tags[i].residency;
        }
    }
    op->failed = op->pos < op->plan.nsteps ? (enum kvp_step)op->plan.steps[op->pos] : KVP_STEP_NONE;
    uint32_t done = op->pos < op->plan.nsteps ? op->pos + 1 : op->plan.nsteps;
    if (kvp_instance_any_unknown(instance)) {
        kvp_step_undo_bracket(op);
        kvp_plan_reconcile(&op->undo); /* what is so must be asked first */
    } else {
        kvp_plan_undo(&op->plan, done, &op->before, &op->undo);
    }
    op->undoing = true;
    op->drain_deadline_ns = kvp_instance_in_ms(instance, op->fleet->config.bounds.drain_ms);
    op->pos = 0;
    advance(op);
}

static void on_gone(struct kvb_timer *timer)
{
    begin_undo(kvb_container_of(timer, struct kvp_op, timer));
}

void kvp_op_rank_gone(struct kvp_instance *instance)
{
    struct kvp_op *op = instance->running;
    if (op != NULL && op->gone_awaited && !op->undoing) {
        set_timer(op, on_gone, kvb_now_ns(op->fleet->config.sched->clock)); /* a turn of its own */
    }
}

static void step_failed(struct kvp_op *op)
{
    const struct kvp_plan *plan = kvp_op_plan(op);
    const struct kvp_step_info *info = kvp_step_info((enum kvp_step)plan->steps[op->pos]);
    if (op->no_return) {
        kvp_op_say(op, "%s failed: %s", info->label, kvb_status_text(op->step_status));
        forward(op);
        return;
    }
    if (op->undoing || op->internal) {
        /* Undoing what cannot be undone now: the daemon goes on by itself. */
        KVB_LOG(WARN, "undo failed", KVB_STR("instance", op->instance->name),
                KVB_STR("step", info->label), KVB_STATUS(op->step_status));
        if (op->internal) {
            op->status = op->step_status;
        }
        kvp_instance_schedule_reconcile(op->instance);
        finish(op);
        return;
    }
    op->status = op->cancel != NULL ? KVB_ERR_CANCELED : op->step_status;
    if (op->cancel != NULL) { /* what an engine answers to that is no fault of its own */
        op->blamed = false;
        op->record.at[0] = '\0';
    }
    if (beside(op)) {
        kvp_op_say(op, "%s", kvb_status_text(op->step_status));
        finish(op);
        return;
    }
    if (op->cancel != NULL) {
        kvp_op_say(op, "canceled by %s", op->cancel);
    }
    kvp_op_say(op, "%s failed: %s", info->label, kvb_status_text(op->step_status));
    begin_undo(op);
}

static void note_soft(struct kvp_op *op)
{
    const struct kvp_plan *plan = kvp_op_plan(op);
    enum kvp_step step = (enum kvp_step)plan->steps[op->pos];
    if (step == KVP_STEP_RELAY_SOFT) {
        if (op->step_status == KVB_ERR_TIMEOUT || op->step_status == KVB_ERR_DISCONNECTED) {
            op->status = op->step_status;
            kvp_op_say(op, "the engine did not answer");
        }
        return;
    }
    if (step == KVP_STEP_RETIRE || step == KVP_STEP_TENANT) {
        op->external = KVP_EXTERNAL_FAILED;
    }
    if (op->status == KVB_OK) {
        op->status = op->step_status;
    }
    if (op->step_status == KVB_ERR_BUSY) {
        kvp_op_say(op,
                   "%u blocks are held by requests: repeat when they have ended, or with "
                   "reset_running_requests=true",
                   op->blocks_held);
    }
    kvp_op_say(op, "%s: %s", kvp_step_info(step)->label, kvb_status_text(op->step_status));
}

/* A step ended with op->step_status: told and counted. */
static void step_ended(struct kvp_op *op, const struct kvp_step_info *info)
{
    const struct kvp_fleet_config *config = &op->fleet->config;
    uint64_t took_ns = since(op, op->step_ns);
    const char *msg = op->undoing ? "operation step, undoing" : "operation step";
    if (op->internal || beside(op)) {
        KVB_LOG(DEBUG, msg, KVB_STR("instance", op->instance->name),
                KVB_STR("operation", label_of(op)), KVB_STR("step", info->label),
                KVB_STATUS(op->step_status), KVB_MS("took", took_ns));
    } else {
        KVB_LOG(INFO, msg, KVB_STR("instance", op->instance->name),
                KVB_STR("operation", label_of(op)), KVB_STR("step", info->label),
                KVB_STATUS(op->step_status), KVB_MS("took", took_ns));
    }
    if (config->stepped != NULL) {
        config->stepped(config->ctx, label_of(op), info->label, op->step_status, took_ns);
    }
}

/* Runs steps until one has to be waited for, or the plan is done. */
static void advance(struct kvp_op *op)
{
    struct kvb_log_context before = log_as(op);
    for (;;) {
        const struct kvp_plan *plan = kvp_op_plan(op);
        if (!op->instance->attached && !op->undoing) {
            op->status = KVB_ERR_DISCONNECTED;
            kvp_op_say(op, "%s",
                       op->instance->message[0] != '\0' ? op->instance->message
                                                        : "the engine went away");
            if (op->no_return || op->pos == plan->nsteps || beside(op)) {
                finish(op); /* attaching again reconciles */
            } else {
                begin_undo(op);
            }
            break;
        }
        if (op->cancel != NULL && !op->undoing && !op->no_return && op->pos < plan->nsteps) {
            op->step_status = KVB_ERR_CANCELED;
            if (op->pos > 0) {
                op->pos--; /* the last one done: what undo begins with */
            }
            step_failed(op);
            break;
        }
        if (op->pos == plan->nsteps) {
            finish(op);
            break;
        }
        enum kvp_step step = (enum kvp_step)plan->steps[op->pos];
        if (!op->instance->attached && !brings_memory_back(step)) {
            op->pos++;
            continue;
        }
        const struct kvp_step_info *info = kvp_step_info(step);
        snprintf(op->record.step, sizeof op->record.step, "%s", info->label);
        op->no_return = op->no_return || (info->no_return && !op->undoing && !op->internal);
        op->in_step = true;
        op->step_ns = kvb_now_ns(op->fleet->config.sched->clock);
        op->step_status = KVB_OK;
        if (kvp_step_begin(op, step)) {
            kvp_instance_changed(op->instance);
            break;
        }
        op->in_step = false;
        step_ended(op, info);
        if (op->step_status != KVB_OK && !info->soft) {
            step_failed(op);
            break;
        }
        if (op->step_status != KVB_OK) {
            note_soft(op);
        }
        op->pos++;
    }
    kvb_log_set_context(&before);
}

void kvp_op_step_done(struct kvp_op *op, kvb_status_t status)
{
    kvb_assert(op->in_step);
    const struct kvp_plan *plan = kvp_op_plan(op);
    const struct kvp_step_info *info = kvp_step_info((enum kvp_step)plan->steps[op->pos]);
    kvb_sched_timer_clear(op->fleet->config.sched, &op->timer);
    op->in_step = false;
    op->wait = KVP_WAIT_NOTHING;
    op->step_status = status;
    struct kvb_log_context before = log_as(op);
    step_ended(op, info);
    kvb_log_set_context(&before);
    if (status != KVB_OK && !info->soft) {
        (void)log_as(op);
        step_failed(op);
        kvb_log_set_context(&before);
        return;
    }
    if (status != KVB_OK) {
        note_soft(op);
    }
    op->pos++;
    advance(op);
}

/* Is what the step waits for so? */
static void on_moved(struct kvb_event *event)
{
    struct kvp_op *op = kvb_container_of(event, struct kvp_op, event);
    struct kvp_instance *instance = op->instance;
    const struct kvp_lineage *l = &instance->lineage;
    if (!op->in_step || op->wait == KVP_WAIT_NOTHING) {
        return;
    }
    if (!instance->attached) {
        kvp_op_say(op, "%s: repeat when the engine has attached again", instance->message);
        kvp_op_step_done(op, KVB_ERR_DISCONNECTED);
        return;
    }
    bool acked = l->ack != KVP_ACK_LEFT;
    bool failed = instance->ack_status != KVB_OK && instance->ack_status != KVB_IN_PROGRESS;
    bool over = kvb_now_ns(op->fleet->config.sched->clock) >= op->left_by_ns;
    if (op->wait == KVP_WAIT_RETIRED && l->retire_ask != 0) {
        return;
    }
    /* A retirement is asked for once the engine has left: also where it leaves once more meanwhile,
     * for another's reset. */
    bool comes = l->nretired > 0 && !acked && l->reachable && !l->starved;
    if (op->wait == KVP_WAIT_RETIRED && !comes) {
        kvb_status_t status = instance->retire_status;
        if (status == KVB_OK && l->nretired > 0) { /* nobody was asked */
            status = l->starved ? KVB_ERR_NO_MEMORY : KVB_ERR_UNAVAILABLE;
        }
        if (status != KVB_OK && status != KVB_ERR_NO_MEMORY) {
            kvp_op_blame(op, KVP_SIDE_COORDINATOR, NULL);
        }
        kvp_op_step_done(op, status);
    } else if (!acked && (failed || over)) {
        kvp_op_say(op, "the engine did not acknowledge that it left its lineage");
        kvp_op_blame(op, KVP_SIDE_ENGINE, NULL);
        kvp_op_step_done(op, failed ? instance->ack_status : KVB_ERR_TIMEOUT);
    } else if (acked && (op->wait == KVP_WAIT_ACK || kvp_lineage_settled(l))) {
        kvp_op_step_done(op, KVB_OK);
    }
}

static void look_again(struct kvp_op *op)
{
    if (op->in_step && op->wait != KVP_WAIT_NOTHING) {
        /* In a turn of its own: this may be inside of what the step itself began. */
        kvb_sched_post(op->fleet->config.sched, &op->event);
    }
}

void kvp_op_lineage_moved(struct kvp_instance *instance)
{
    if (instance->running != NULL) {
        look_again(instance->running);
    }
    kvb_list_each(&instance->beside, link)
    {
        look_again(kvb_container_of(link, struct kvp_op, link));
    }
}

/* Only NAME and LEFT wait with a bound of their own: a name that does not come is no failure. */
static void on_wait_over(struct kvb_timer *timer)
{
    struct kvp_op *op = kvb_container_of(timer, struct kvp_op, timer);
    bool acked = op->instance->lineage.ack != KVP_ACK_LEFT;
    kvp_op_step_done(op, acked ? KVB_OK : KVB_ERR_TIMEOUT);
}

bool kvp_op_wait_for(struct kvp_op *op, enum kvp_op_wait wait, uint64_t deadline_ns)
{
    uint64_t leave_ms = 2ull * kvb_link_info(KVB_LINK_LINEAGE)->bound_ms;
    uint64_t retire_ms = wait == KVP_WAIT_RETIRED ? op->fleet->config.bounds.retire_ms : 0;
    op->wait = wait;
    op->left_by_ns = wait == KVP_WAIT_SETTLED
                         ? KVB_NEVER
                         : kvp_instance_in_ms(op->instance, leave_ms + retire_ms);
    set_timer(op, on_wait_over, deadline_ns);
    kvp_op_lineage_moved(op->instance);
    return true;
}

/* ---- the slot ---- */

static void start(struct kvp_op *op)
{
    struct kvp_instance *instance = op->instance;
    instance->running = op;
    kvb_sched_timer_clear(op->fleet->config.sched, &op->timer);
    op->before = instance->fsm;
    op->drain_deadline_ns = kvp_instance_in_ms(instance, op->fleet->config.bounds.drain_ms);
    op->record.deadline_ns = op->drain_deadline_ns;
    if (op->internal) {
        kvp_plan_reconcile(&op->plan);
    } else {
        const struct kvb_load *load = &instance->load;
        struct kvp_situation now = {
            .fsm = &instance->fsm,
            .found = &instance->found,
            .opted_out = instance->lineage.opted_out,
            .idle = load->running == 0 && load->waiting == 0 && load->loading == 0,
            .store = instance->member != NULL,
            .counts_steps = op->fleet->unversioned == KVP_UNVERSIONED_RESET,
            .sleeps_once = instance->foreign != NULL && instance->foreign->sleeps_once,
        };
        kvp_plan_make(&op->ask, &now, &op->plan);
        struct kvb_log_context before = log_as(op);
        KVB_LOG(INFO, "operation started", KVB_STR("instance", instance->name),
                KVB_STR("operation", label_of(op)));
        kvb_log_set_context(&before);
    }
    if (op->plan.refused != KVB_OK) {
        op->status = op->plan.refused;
        op->plan.nsteps = 0;
    }
    op->nothing_to_do = op->plan.nothing_to_do;
    if (op->plan.reason != NULL) {
        kvp_op_say(op, "%s", op->plan.reason);
    }
    advance(op);
}

void kvp_op_pump(struct kvp_instance *instance)
{
    if (instance->running != NULL || !instance->attached) {
        return;
    }
    if (instance->reconcile && !kvb_timer_armed(&instance->reconcile_timer)) {
        struct kvp_ask none = {.operation = KVP_OP_RELAY};
        struct kvp_op *op = op_create(instance->fleet, instance, &none);
        if (op == NULL) {
            kvp_instance_schedule_reconcile(instance);
            return;
        }
        op->internal = true;
        instance->reconcile = false;
        start(op);
        return;
    }
    if (kvp_instance_any_unknown(instance)) {
        return; /* the queue builds on what reconcile finds */
    }
    struct kvb_list *link = kvb_list_first(&instance->waiting);
    if (link != NULL) {
        struct kvp_op *op = kvb_container_of(link, struct kvp_op, link);
        unqueue(op);
        start(op);
    }
}

void kvp_op_fail_waiting(struct kvp_instance *instance, kvb_status_t status, const char *message)
{
    for (struct kvb_list *link; (link = kvb_list_first(&instance->waiting)) != NULL;) {
        struct kvp_op *op = kvb_container_of(link, struct kvp_op, link);
        unqueue(op);
        reject(op, status, message);
    }
}

static void destroy_op(struct kvp_op *op)
{
    op->left = 0;
    op->status = KVB_ERR_CANCELED;
    kvp_op_say(op, "the daemon is shutting down");
    answer(op);
    op_free(op);
}

void kvp_op_destroy_all(struct kvp_instance *instance)
{
    kvp_op_fail_waiting(instance, KVB_ERR_CANCELED, "the daemon is shutting down");
    for (struct kvb_list *link; (link = kvb_list_pop(&instance->beside)) != NULL;) {
        destroy_op(kvb_container_of(link, struct kvp_op, link));
    }
    if (instance->running != NULL) {
        struct kvp_op *op = instance->running;
        instance->running = NULL;
        destroy_op(op);
    }
}

void kvp_op_destroy_rejected(struct kvp_fleet *fleet)
{
    for (struct kvb_list *link; (link = kvb_list_pop(&fleet->rejected)) != NULL;) {
        struct kvp_op *op = kvb_container_of(link, struct kvp_op, link);
        answer(op);
        op_free(op);
    }
}
