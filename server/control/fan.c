/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request for every instance (?instance=*): an operation of its own, made of one of each
 * instance, which run at once. It is listed, waited for and canceled as any other, and tells what
 * became of each. Who asks for the same while it runs shares its answer.
 *
 * A pause, a sleep and a release are done on all or on none, unless all_or_nothing=false: if one
 * fails, what the others did is taken back, by the id of the operation that did it (TAKE_BACK): so
 * nothing is lifted that was so before, and what another request was told meanwhile stays true:
 * then it stays, and the answer says so. What cannot be taken back is done last: a sleep of level 2
 * is one of level 1 first, everywhere, and deepened only when all sleep; or a pause, where one of
 * them cannot be deepened.
 */
#include "control/internal.h"
#include "http/errors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct kvp_fan *fan;
    char instance[KVB_NAME_MAX];
    uint64_t operation; /* that runs, or ran last */
    uint64_t did;       /* that changed something in the first phase; 0: none */
    bool running;
    bool ok;
    json_t *answer; /* of the last phase; NULL: none yet, or no memory */
};

struct kvp_fan {
    struct kvp_own own;          /* status and message of its record: the first failure's */
    struct kvb_list askers;      /* pendings that want its answer; the first is that of its ask */
    struct kvp_pending *pending; /* the first asker, to the end: the ask's body is its */
    enum { FAN_FIRST, FAN_DEEPER, FAN_UNDO } phase;
    bool all;         /* or nothing */
    bool sleeps_once; /* one of them does */
    uint32_t n, left;
    char message[KVB_NAME_MAX + 640]; /* the same, whole */
    struct entry entries[];
};

static void on_done(void *arg, const struct kvp_outcome *outcome);

static struct kvp_fan *fan_of(struct kvp_own *own)
{
    return kvb_container_of(own, struct kvp_fan, own);
}

/* What others can take back: it only stops, and gives up what comes back whole. */
static bool can_take_back(enum kvp_operation operation)
{
    return operation == KVP_OP_PAUSE || operation == KVP_OP_SLEEP ||
           operation == KVP_OP_RELEASE_KV || operation == KVP_OP_RELEASE;
}

/* ---- what is told of it ---- */

static struct kvp_pending *first_of(struct kvb_list *waiting)
{
    struct kvb_list *link = kvb_list_first(waiting);
    return link == NULL ? NULL : kvb_container_of(link, struct kvp_pending, wait_link);
}

static json_t *entries_json(const struct kvp_fan *fan)
{
    json_t *instances = json_object();

    for (uint32_t i = 0; i < fan->n; i++) {
        const struct entry *entry = &fan->entries[i];
        json_t *answer = entry->answer != NULL
                             ? json_deep_copy(entry->answer) /* another thread's, soon */
                             : json_pack("{s:s}", "status", entry->running ? "running" : "unknown");
        (void)json_object_set_new(instances, entry->instance, answer);
    }
    return instances;
}

/* Which of those that run has the most left to do; NULL: none runs. */
static const struct entry *slowest(const struct kvp_fan *fan, struct kvp_operation_record *all_p)
{
    const struct entry *slow = NULL;
    uint64_t most = 0;

    for (uint32_t i = 0; i < fan->n; i++) {
        const struct entry *entry = &fan->entries[i];
        struct kvp_operation_record one;
        if (!entry->running ||
            !kvp_fleet_operation(fan->own.control->config.fleet, entry->operation, &one)) {
            continue;
        }
        uint64_t left = one.drain.bytes_left + one.drain.queued + one.drain.running;
        all_p->drain.queued += one.drain.queued;
        all_p->drain.running += one.drain.running;
        all_p->drain.bytes_left += one.drain.bytes_left;
        if (slow == NULL || left > most) {
            slow = entry;
            most = left;
            memcpy(all_p->step, one.step, sizeof all_p->step);
            all_p->deadline_ns = one.deadline_ns;
        }
    }
    return slow;
}

static json_t *fan_json(const struct kvp_own *own)
{
    static const char *const phases[] = {
        [FAN_FIRST] = "doing", [FAN_DEEPER] = "deepening", [FAN_UNDO] = "taking_back"};
    const struct kvp_fan *fan = fan_of((struct kvp_own *)(uintptr_t)own);
    struct kvp_operation_record record = fan->own.record;
    const struct entry *slow = fan->own.record.finished ? NULL : slowest(fan, &record);
    json_t *json = kvp_operation_json(fan->own.control, &record);

    (void)json_object_set_new(json, "instances_done", json_integer(fan->n - fan->left));
    (void)json_object_set_new(json, "instances_all", json_integer(fan->n));
    if (!fan->own.record.finished) {
        kvp_json_set_text(json, "phase", phases[fan->phase]);
        kvp_json_set_text(json, "slowest", slow != NULL ? slow->instance : NULL);
    }
    (void)json_object_set_new(json, "instances", entries_json(fan));
    return json;
}

/* ---- its end ---- */

/* Done on some is 207, whatever the others failed of; but a reset says so in its body alone. */
static unsigned http_of(const struct kvp_fan *fan)
{
    bool any = false;

    for (uint32_t i = 0; i < fan->n; i++) {
        any = any || fan->entries[i].ok;
    }
    if (fan->own.record.status == KVB_OK ||
        (fan->pending->action->success == NULL && !fan->pending->params.strict)) {
        return 200;
    }
    return any && !fan->all ? 207 : kvp_error_http(fan->own.record.status);
}

static json_t *answer_of(const struct kvp_fan *fan, unsigned http_status)
{
    bool failed = fan->own.record.status != KVB_OK;
    json_t *body =
        http_status >= 400 ? kvp_error_body(http_status, NULL, fan->message) : json_object();

    (void)json_object_set_new(body, "success", json_boolean(!failed));
    if (failed) {
        kvp_json_set_side(body, fan->own.record.side, fan->own.record.at);
    }
    kvp_json_set_text(body, "message", failed ? fan->message : fan->pending->action->text);
    kvp_json_set_u64(body, "operation_id", fan->own.record.id);
    (void)json_object_set_new(body, "instances", entries_json(fan));
    if (!failed) { /* who knows of one server alone reads what he knows */
        (void)json_object_update_missing(body, fan->entries[0].answer);
    }
    return body;
}

static void fan_free(struct kvp_own *own)
{
    struct kvp_fan *fan = fan_of(own);
    for (uint32_t i = 0; i < fan->n; i++) {
        json_decref(fan->entries[i].answer);
    }
    free(fan);
}

/* Ended ones are told of for a while, but for what engines answered, which may be long. */
static void forget_results(struct kvp_fan *fan)
{
    for (uint32_t i = 0; i < fan->n; i++) {
        (void)json_object_del(fan->entries[i].answer, "result");
        (void)json_object_del(fan->entries[i].answer, "results");
    }
}

static void end(struct kvp_fan *fan)
{
    struct kvp_control *control = fan->own.control;
    unsigned http_status = http_of(fan);
    bool error = http_status >= 400;
    json_t *body = answer_of(fan, http_status);
    struct kvp_pending *waits;

    kvp_own_finished(&fan->own);
    while ((waits = first_of(&fan->askers)) != NULL) {
        if (waits->request != NULL) {
            kvp_control_reply(control, waits->request, http_status, json_deep_copy(body),
                              error ? kvp_error_retry_s(fan->own.record.status) : 0);
        }
        kvp_pending_free(waits);
    }
    fan->pending = NULL;
    json_decref(body);
    forget_results(fan);
    kvp_own_tell_end(&fan->own);
}

/* ---- its way ---- */

static void note_failure(struct kvp_fan *fan, const char *who, kvb_status_t status,
                         const char *message)
{
    if (fan->own.record.status == KVB_OK) {
        fan->own.record.status = status;
        fan->own.record.side = kvp_side_of(status);
        snprintf(fan->message, sizeof fan->message, "%s: %s", who, message);
        snprintf(fan->own.record.message, sizeof fan->own.record.message, "%.255s", fan->message);
    }
}

static void take(struct entry *entry, kvb_status_t status, json_t *answer, const char *message)
{
    struct kvp_fan *fan = entry->fan;

    if (fan->phase == FAN_UNDO) { /* what it did is told, and that it was undone, or not */
        (void)json_object_set_new(entry->answer, "undone", json_boolean(status == KVB_OK));
        if (status != KVB_OK) {
            kvp_json_set_text(entry->answer, "undo_failed", message);
        }
        json_decref(answer);
        return;
    }
    entry->ok = status == KVB_OK;
    json_decref(entry->answer);
    entry->answer = answer;
    if (!entry->ok) {
        note_failure(fan, entry->instance, status, message);
    }
}

static void ask_entry(struct entry *entry, const struct kvp_ask *ask)
{
    struct kvp_fan *fan = entry->fan;
    kvb_status_t status =
        kvp_fleet_request(fan->own.control->config.fleet, entry->instance, ask,
                          fan->own.record.request_id, on_done, entry, &entry->operation);

    if (status == KVB_OK) {
        entry->running = true;
        fan->left++;
    } else {
        take(entry, status, kvp_error_body(503, NULL, "out of memory; try again"),
             "out of memory; try again");
    }
}

/* Asks those that did it; ends if there is nobody. */
static void go_on(struct kvp_fan *fan, struct kvp_ask ask)
{
    for (uint32_t i = 0; i < fan->n; i++) {
        struct entry *entry = &fan->entries[i];
        ask.take_back = fan->phase == FAN_UNDO ? entry->did : 0;
        if (entry->ok && (fan->phase != FAN_UNDO || entry->did != 0)) {
            ask_entry(entry, &ask);
        }
    }
    if (fan->left == 0) {
        end(fan);
    }
}

static void next_phase(struct kvp_fan *fan)
{
    const struct kvp_ask *ask = &fan->pending->ask;

    if (fan->phase != FAN_FIRST || fan->own.control->closing || !fan->all) {
        end(fan);
    } else if (fan->own.record.status != KVB_OK) {
        fan->phase = FAN_UNDO;
        if (can_take_back(ask->operation)) {
            go_on(fan, (struct kvp_ask){.operation = KVP_OP_TAKE_BACK});
        } else {
            end(fan);
        }
    } else if (ask->operation == KVP_OP_SLEEP && ask->level == 2) {
        fan->phase = FAN_DEEPER;
        go_on(fan, *ask);
    } else {
        end(fan);
    }
}

static void on_done(void *arg, const struct kvp_outcome *outcome)
{
    struct entry *entry = arg;
    struct kvp_fan *fan = entry->fan;
    const struct kvp_pending *pending = fan->pending;
    const struct kvp_action *action = pending->action;
    kvb_status_t status = outcome->status;
    json_t *answer;

    if (action->operation == KVP_OP_RESET && action->success == NULL) {
        bool done = kvp_reset_succeeded(pending, outcome);
        status = done || status != KVB_OK ? status : KVB_ERR_UNAVAILABLE;
        answer = kvp_answer_reset(pending, outcome);
    } else {
        answer = status == KVB_OK ? action->success(pending, outcome)
                                  : kvp_failure_body(pending, outcome);
    }
    entry->running = false;
    if (fan->phase == FAN_FIRST && status == KVB_OK && !outcome->nothing_to_do) {
        entry->did = outcome->operation_id;
    }
    bool first = fan->own.record.status == KVB_OK;
    take(entry, status, answer, kvp_outcome_message(outcome));
    if (first && outcome->status != KVB_OK) { /* the operation knows it better than its status */
        fan->own.record.side = outcome->side;
        snprintf(fan->own.record.at, sizeof fan->own.record.at, "%s",
                 outcome->at != NULL ? outcome->at : "");
    }
    if (--fan->left == 0) {
        next_phase(fan);
    }
}

static kvb_status_t fan_cancel(struct kvp_own *own)
{
    struct kvp_fan *fan = fan_of(own);
    struct kvp_fleet *fleet = fan->own.control->config.fleet;
    bool some = fan->all; /* also what has ended is taken back */

    if (fan->phase != FAN_FIRST || !can_take_back(fan->own.record.operation)) {
        return KVB_ERR_BAD_STATE;
    }
    for (uint32_t i = 0; i < fan->n; i++) {
        const struct entry *entry = &fan->entries[i];
        some = (entry->running && kvp_fleet_cancel(fleet, entry->operation) == KVB_OK) || some;
    }
    if (some) {
        note_failure(fan, KVP_EVERY_INSTANCE, KVB_ERR_CANCELED,
                     "canceled by a request to cancel it");
    }
    return some ? KVB_OK : KVB_ERR_BAD_STATE;
}

static const struct kvp_own_ops fan_ops = {
    .json = fan_json, .cancel = fan_cancel, .free = fan_free};

static struct kvp_fan *next_fan(const struct kvp_control *control, const struct kvp_fan *fan)
{
    struct kvb_list *link = fan == NULL ? control->owns.next : fan->own.link.next;
    while (link != &control->owns &&
           kvb_container_of(link, struct kvp_own, link)->ops != &fan_ops) {
        link = link->next;
    }
    return link == &control->owns ? NULL : fan_of(kvb_container_of(link, struct kvp_own, link));
}

/* ---- its beginning ---- */

/* Why it is known beforehand that this one would fail of what is done on all or on none: others
 * may have discarded by then, which nothing takes back. NULL: it is not known. */
static const char *would_fail(const struct kvp_fan *fan, const struct kvp_view *view)
{
    const struct kvp_ask *ask = &fan->pending->ask;

    if (!view->attached) {
        return "not attached";
    }
    if (!fan->all || ask->operation != KVP_OP_SLEEP || ask->level != 2) {
        return NULL;
    }
    if (view->no_release) {
        return KVP_FOREIGN_NO_RELEASE;
    }
    for (uint32_t i = 0; i < view->ntags; i++) {
        if (view->sleeps_once && view->tags[i].residency == KVB_OFFLOADED) {
            return KVP_FOREIGN_SLEEPS_ONCE;
        }
    }
    return NULL;
}

static void add_entry(void *arg, const struct kvp_view *view)
{
    struct kvp_fan *fan = arg;
    struct entry *entry = &fan->entries[fan->n++];
    const char *why = would_fail(fan, view);

    entry->fan = fan;
    snprintf(entry->instance, sizeof entry->instance, "%s", view->instance);
    entry->ok = why == NULL;
    fan->sleeps_once = fan->sleeps_once || view->sleeps_once;
    if (why != NULL) {
        entry->answer = kvp_error_body(409, NULL, why);
        if (fan->own.record.status == KVB_OK) {
            note_failure(fan, entry->instance, KVB_ERR_BAD_STATE, why);
            fan->own.record.side = KVP_SIDE_ENGINE;
            snprintf(fan->own.record.at, sizeof fan->own.record.at, "%s", entry->instance);
        }
    }
}

/* Under way, and what some have done of it may have to be taken back. */
static bool may_be_undone(const struct kvp_fan *fan)
{
    return !fan->own.record.finished && can_take_back(fan->own.record.operation);
}

/* One that runs, and that a request for the same may share. */
static struct kvp_fan *find_same(struct kvp_control *control, const struct kvp_pending *pending,
                                 bool all)
{
    for (struct kvp_fan *fan = NULL; (fan = next_fan(control, fan)) != NULL;) {
        if (may_be_undone(fan) && fan->phase == FAN_FIRST && fan->own.record.status == KVB_OK &&
            fan->all == all && fan->pending->action == pending->action &&
            kvp_ask_equal(&fan->pending->ask, &pending->ask)) {
            return fan;
        }
    }
    return NULL;
}

/* One that failed, and whose work is not taken back yet: who joined now would keep it from being.
 */
static bool one_fails(const struct kvp_control *control)
{
    for (const struct kvp_fan *fan = NULL; (fan = next_fan(control, fan)) != NULL;) {
        if (may_be_undone(fan) && fan->all && fan->own.record.status != KVB_OK) {
            return true;
        }
    }
    return false;
}

static struct kvp_fan *fan_create(struct kvp_control *control, struct kvp_pending *pending,
                                  uint32_t n, bool all)
{
    struct kvp_fan *fan = calloc(1, sizeof *fan + n * sizeof fan->entries[0]);

    if (fan != NULL) {
        fan->pending = pending;
        fan->all = all;
        kvb_list_init(&fan->askers);
        kvp_own_begin(&fan->own, control, &fan_ops, pending->ask.operation, pending->request);
        snprintf(fan->own.record.instance, sizeof fan->own.record.instance, KVP_EVERY_INSTANCE);
    }
    return fan;
}

uint64_t kvp_fan_start(struct kvp_pending *pending)
{
    struct kvp_control *control = pending->control;
    const struct kvp_params *params = &pending->params;
    uint32_t n = kvp_fleet_count(control->config.fleet);
    bool can = can_take_back(pending->ask.operation);
    bool all = kvp_given(params, KVP_PARAM_all_or_nothing) ? params->all_or_nothing : can;
    struct kvp_ask first = pending->ask;
    struct kvp_fan *fan = find_same(control, pending, all);

    if (fan != NULL) {
        kvb_list_push_back(&fan->askers, &pending->wait_link);
        return fan->own.record.id;
    }
    if (can && one_fails(control)) {
        kvp_control_reply_error(control, pending->request, KVB_ERR_BUSY, NULL,
                                "an operation of all instances has failed and is being taken "
                                "back: try again later");
        kvp_pending_free(pending);
        return 0;
    }
    fan = n == 0 ? NULL : fan_create(control, pending, n, all);
    if (fan == NULL) {
        kvp_control_reply_error(control, pending->request,
                                n == 0 ? KVB_ERR_BAD_STATE : KVB_ERR_NO_MEMORY, NULL,
                                n == 0 ? "no engine has attached yet" : "out of memory; try again");
        kvp_pending_free(pending);
        return 0;
    }
    kvb_list_push_back(&fan->askers, &pending->wait_link);
    kvp_fleet_each(control->config.fleet, add_entry, fan);
    if (all && fan->own.record.status != KVB_OK) {
        for (uint32_t i = 0; i < fan->n; i++) {
            if (fan->entries[i].answer == NULL) {
                fan->entries[i].answer = kvp_error_body(
                    409, NULL, "not asked: another instance cannot, and nothing has begun");
            }
        }
        end(fan);
        return 0;
    }
    if (all && first.operation == KVP_OP_SLEEP && first.level == 2) {
        first.level = 1;
        first.operation = fan->sleeps_once ? KVP_OP_PAUSE : KVP_OP_SLEEP;
    }
    go_on(fan, first);
    return fan->own.record.finished ? 0 : fan->own.record.id;
}
