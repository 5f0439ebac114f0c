/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request for every instance (?instance=*): the operation runs on all of them at once, and the
 * answer has what became of each.
 *
 * A pause, a sleep and a release are done on all or on none, unless all_or_nothing=false: if one
 * fails, those that did it are brought back. What cannot be brought back is done last: a sleep of
 * level 2 is one of level 1 first, everywhere, which can be undone, and deepened only when all
 * sleep. Any other operation is done wherever it can be.
 *
 * To bring one back is to lift what was asked for here, never what was so before, or what another
 * has asked for: where the one cannot be told from the other it stays, and the answer says so.
 */
#include "control/internal.h"
#include "http/errors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct fan *fan;
    char instance[KVB_NAME_MAX];
    bool ok;
    bool changed;      /* it did something in the first phase, which can be undone */
    const char *stays; /* NULL, or why that is not undone */
    bool paused;       /* before */
    bool partly;       /* before, of its memory only these were resident */
    uint32_t ntags;
    char tags[KVB_TAGS_MAX][KVB_NAME_MAX];
    json_t *answer; /* of the last phase; NULL: none yet, or no memory */
};

struct fan {
    struct kvp_pending *pending;
    enum { FAN_FIRST, FAN_DEEPER, FAN_UNDO } phase;
    bool all; /* or nothing */
    uint32_t n, left;
    kvb_status_t status; /* the first failure */
    char message[512];
    struct entry entries[];
};

static void on_done(void *arg, const struct kvp_outcome *outcome);

/* The operation that undoes one; false: there is none. */
static bool undo_of(const struct kvp_ask *ask, struct kvp_ask *undo)
{
    *undo = (struct kvp_ask){.keep_pause = true};
    switch (ask->operation) {
    case KVP_OP_PAUSE:
        undo->operation = KVP_OP_RESUME;
        return true;
    case KVP_OP_SLEEP:
    case KVP_OP_RELEASE_KV:
    case KVP_OP_RELEASE:
        undo->operation = KVP_OP_WAKE;
        return true;
    default:
        return false;
    }
}

static void reply(struct fan *fan)
{
    struct kvp_pending *pending = fan->pending;
    json_t *instances = json_object();
    unsigned http_status = 200;
    json_t *body;

    for (uint32_t i = 0; i < fan->n; i++) {
        (void)json_object_set(instances, fan->entries[i].instance, fan->entries[i].answer);
    }
    bool failed = fan->status != KVB_OK;
    if (failed && fan->all) {
        http_status = kvp_error_http(fan->status);
        body = kvp_error_body(http_status, NULL, fan->message);
    } else {
        body = json_object();
    }
    (void)json_object_set_new(body, "success", json_boolean(!failed));
    (void)json_object_set_new(body, "instances", instances);
    if (pending->request != NULL) {
        kvp_control_reply(pending->control, pending->request, http_status, body,
                          failed && fan->all ? kvp_error_retry_s(fan->status) : 0);
    } else {
        json_decref(body);
    }
}

static void end(struct fan *fan)
{
    reply(fan);
    for (uint32_t i = 0; i < fan->n; i++) {
        json_decref(fan->entries[i].answer);
    }
    kvp_pending_free(fan->pending);
    free(fan);
}

static void note_failure(struct fan *fan, const struct entry *entry, kvb_status_t status,
                         const char *message)
{
    if (fan->status == KVB_OK) {
        fan->status = status;
        snprintf(fan->message, sizeof fan->message, "%s: %s", entry->instance, message);
    }
}

static void take(struct entry *entry, kvb_status_t status, json_t *answer, const char *message)
{
    struct fan *fan = entry->fan;

    entry->ok = status == KVB_OK;
    if (fan->phase == FAN_UNDO) { /* what it did is told, and that it was undone, or not */
        (void)json_object_set_new(entry->answer, "undone", json_boolean(entry->ok));
        if (!entry->ok) {
            kvp_json_set_text(entry->answer, "undo_failed", message);
        }
        json_decref(answer);
        return;
    }
    json_decref(entry->answer);
    entry->answer = answer;
    if (!entry->ok) {
        note_failure(fan, entry, status, message);
    }
}

static void ask_entry(struct entry *entry, const struct kvp_ask *ask)
{
    struct fan *fan = entry->fan;
    struct kvp_pending *pending = fan->pending;
    kvb_status_t status = kvp_fleet_request(
        pending->control->config.fleet, entry->instance, ask,
        pending->request != NULL ? pending->request->request_id : "", on_done, entry, NULL);

    if (status == KVB_OK) {
        fan->left++;
    } else {
        take(entry, status, kvp_error_body(503, NULL, "out of memory; try again"),
             "out of memory; try again");
    }
}

/* As it is before anything is asked of it. */
static void look(struct entry *entry, const struct kvp_view *view)
{
    enum kvp_operation operation = entry->fan->pending->ask.operation;
    bool pause = operation == KVP_OP_PAUSE;

    entry->paused = (view->stopped_by & KVP_STOPPED_BY_PAUSE) != 0;
    if (view->operation_id != 0 && view->operation == operation) {
        entry->stays = "another request asked for the same";
    } else if (pause ? !entry->paused && view->scheduler != KVP_SCHEDULER_RUNNING
                     : (view->stopped_by & KVP_STOPPED_BY_SLEEP0) != 0) {
        entry->stays = "it was stopped before, too, and that would be lifted with it";
    }
    for (uint32_t i = 0; i < view->ntags; i++) {
        if (view->tags[i].residency == KVB_RESIDENT) {
            memcpy(entry->tags[entry->ntags++], view->tags[i].tag, KVB_NAME_MAX);
        }
    }
    entry->partly = entry->ntags < view->ntags;
}

/* False: it is left as it is, and told if that is not as it was. */
static bool may_undo(struct entry *entry, const struct kvp_ask *undo)
{
    struct kvp_fleet *fleet = entry->fan->pending->control->config.fleet;
    bool resume = undo->operation == KVP_OP_RESUME;
    struct kvp_view view;

    if (resume && entry->paused) {
        return false;
    }
    if (resume && kvp_fleet_view(fleet, entry->instance, &view) && view.weight_change_running) {
        entry->stays = "a weight change is running, which would be ended with it";
    }
    if (entry->stays != NULL) {
        (void)json_object_set_new(entry->answer, "undone", json_false());
        kvp_json_set_text(entry->answer, "undo_failed", entry->stays);
    }
    return entry->stays == NULL;
}

static void undo_entry(struct entry *entry, const struct kvp_ask *undo)
{
    struct kvp_ask ask = *undo;

    if (ask.operation == KVP_OP_WAKE && entry->partly) {
        ask.tags_given = true;
        ask.ntags = entry->ntags;
        memcpy(ask.tags, entry->tags, sizeof ask.tags);
    }
    if (may_undo(entry, undo)) {
        ask_entry(entry, &ask);
    }
}

/* Asks those that did it; ends if there is nobody. */
static void go_on(struct fan *fan, const struct kvp_ask *ask)
{
    for (uint32_t i = 0; i < fan->n; i++) {
        struct entry *entry = &fan->entries[i];
        if (fan->phase == FAN_UNDO && entry->ok && entry->changed) {
            undo_entry(entry, ask);
        } else if (fan->phase != FAN_UNDO && entry->ok) {
            ask_entry(entry, ask);
        }
    }
    if (fan->left == 0) {
        end(fan);
    }
}

static void next_phase(struct fan *fan)
{
    const struct kvp_ask *ask = &fan->pending->ask;
    struct kvp_ask undo;

    if (fan->phase != FAN_FIRST || fan->pending->control->closing) {
        end(fan);
    } else if (fan->status != KVB_OK) {
        bool can = fan->all && undo_of(ask, &undo);
        fan->phase = FAN_UNDO;
        if (can) {
            go_on(fan, &undo);
        } else {
            end(fan);
        }
    } else if (fan->all && ask->operation == KVP_OP_SLEEP && ask->level == 2) {
        fan->phase = FAN_DEEPER;
        go_on(fan, ask);
    } else {
        end(fan);
    }
}

static void on_done(void *arg, const struct kvp_outcome *outcome)
{
    struct entry *entry = arg;
    struct fan *fan = entry->fan;
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
    if (fan->phase == FAN_FIRST) {
        entry->changed = !outcome->nothing_to_do;
    }
    take(entry, status, answer, kvp_outcome_message(outcome));
    if (--fan->left == 0) {
        next_phase(fan);
    }
}

static void add_entry(void *arg, const struct kvp_view *view)
{
    struct fan *fan = arg;
    struct entry *entry = &fan->entries[fan->n++];

    entry->fan = fan;
    snprintf(entry->instance, sizeof entry->instance, "%s", view->instance);
    look(entry, view);
    if (view->attached) {
        entry->ok = true;
        return;
    }
    entry->answer = kvp_error_body(409, NULL, "not attached");
    note_failure(fan, entry, KVB_ERR_BAD_STATE, "not attached");
}

void kvp_fan_start(struct kvp_pending *pending)
{
    struct kvp_control *control = pending->control;
    const struct kvp_params *params = &pending->params;
    uint32_t n = kvp_fleet_count(control->config.fleet);
    struct kvp_ask undo;
    bool can = undo_of(&pending->ask, &undo);
    struct fan *fan = n == 0 ? NULL : calloc(1, sizeof *fan + n * sizeof fan->entries[0]);

    if (fan == NULL) {
        kvp_control_reply_error(control, pending->request,
                                n == 0 ? KVB_ERR_BAD_STATE : KVB_ERR_NO_MEMORY, NULL,
                                n == 0 ? "no engine has attached yet" : "out of memory; try again");
        kvp_pending_free(pending);
        return;
    }
    fan->pending = pending;
    fan->all = kvp_given(params, KVP_PARAM_all_or_nothing) ? params->all_or_nothing : can;
    kvp_fleet_each(control->config.fleet, add_entry, fan);
    if (fan->all && fan->status != KVB_OK) { /* nothing has begun */
        end(fan);
        return;
    }
    struct kvp_ask first = pending->ask;
    if (fan->all && first.operation == KVP_OP_SLEEP && first.level == 2) {
        first.level = 1;
    }
    go_on(fan, &first);
}
