/* SPDX-License-Identifier: Apache-2.0 */
#include "node/control.h"

#include "http/errors.h"
#include "node/routes.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OBJECT_MS = 5000, /* bound of a question for one object */
    EVENTS_MAX = 256, /* in one answer */
};

struct kvp_node_control {
    struct kvp_node_control_config config;
    struct kvp_inbox inbox;
    struct kvb_list questions;
    struct kvb_list sweeps;
};

/* Objects removed by pattern, a step a turn. */
struct sweep {
    struct kvb_list link;
    struct kvp_node_control *control;
    struct kvp_request *request;
    struct kvb_event step;
    struct kvs_sweep sweep;
};

/* One object, asked of the share as an engine's daemon does. */
struct question {
    struct kvb_list link;
    struct kvp_node_control *control;
    struct kvp_request *request; /* NULL: closed, replied to already */
    struct kvs_space space;
    struct kvp_params params;
    struct kvs_item item;
    struct kvs_batch batch;
};

static void reply_node(struct kvp_node_control *control, struct kvp_request *request)
{
    struct kvs_share_stats stats;
    const struct kvs_node_record *record = control->config.record;
    kvs_share_stats(control->config.share, &stats);
    kvp_inbox_reply(
        &control->inbox, request, 200,
        json_pack("{s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "name", record->name,
                  "address", record->address, "draining", record->draining, "capacity_bytes",
                  (json_int_t)stats.core.share_bytes, "used_bytes",
                  (json_int_t)stats.core.used_bytes, "objects", (json_int_t)stats.core.objects,
                  "shards", (json_int_t)stats.shards, "puts", (json_int_t)stats.puts, "gets",
                  (json_int_t)stats.gets, "requests_running",
                  (json_int_t)control->config.running(control->config.ctx)),
        0);
}

static void reply_drain(struct kvp_node_control *control, struct kvp_request *request)
{
    control->config.drain(control->config.ctx);
    kvp_inbox_reply(&control->inbox, request, 200, json_pack("{s:s}", "status", "draining"), 0);
}

/* ---- one object ---- */

static const char *const pins[] = {
    [KVS_PIN_NONE] = "none", [KVS_PIN_SOFT] = "soft", [KVS_PIN_HARD] = "hard"};

static json_t *object_json(const struct question *question)
{
    const struct kvs_item *item = &question->item;
    switch (question->batch.op) {
    case KVS_REMOVE:
        return json_pack("{s:s}", "status", "removed");
    case KVS_PIN:
        return json_pack("{s:s, s:s}", "status", "pinned", "pin", pins[question->batch.pin]);
    default:
        return json_pack("{s:b, s:I}", "exists", 1, "bytes", (json_int_t)item->len);
    }
}

static void reply_object(const struct question *question)
{
    struct kvp_inbox *inbox = &question->control->inbox;
    kvb_status_t status = question->item.status;
    if (status == KVB_OK) {
        kvp_inbox_reply(inbox, question->request, 200, object_json(question), 0);
    } else {
        kvp_inbox_reply_error(inbox, question->request, status,
                              status == KVB_ERR_NOT_FOUND ? "key" : NULL,
                              status == KVB_ERR_NOT_FOUND ? "there is no such object on this node"
                              : status == KVB_ERR_BUSY
                                  ? "it is read, promised or pinned; force=true removes it all the "
                                    "same"
                                  : kvb_status_text(status));
    }
}

static void question_free(struct question *question)
{
    kvb_list_remove(&question->link);
    free(question);
}

static void on_answered(struct kvs_batch *batch)
{
    struct question *question = kvb_container_of(batch, struct question, batch);
    if (question->request != NULL) {
        reply_object(question);
    }
    question_free(question);
}

/* Which parameter is missing, or NULL. */
static const char *missing(const struct kvp_params *params)
{
    static const enum kvp_param needed[] = {KVP_PARAM_tenant, KVP_PARAM_layout, KVP_PARAM_lineage,
                                            KVP_PARAM_key};
    static const char *const names[] = {"tenant", "layout", "lineage", "key"};
    for (uint32_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        if (!kvp_given(params, needed[i])) {
            return names[i];
        }
    }
    return NULL;
}

static void ask_object(struct kvp_node_control *control, struct kvp_request *request,
                       enum kvs_batch_op op)
{
    const char *name = missing(&request->params);
    if (name == NULL && op == KVS_PIN && !kvp_given(&request->params, KVP_PARAM_pin)) {
        name = "pin";
    }
    if (name != NULL) {
        char message[64];
        (void)snprintf(message, sizeof message, "%s is needed", name);
        kvp_inbox_reply_error(&control->inbox, request, KVB_ERR_INVALID, name, message);
        return;
    }
    struct question *question = calloc(1, sizeof *question);
    if (question == NULL) {
        kvp_inbox_reply_error(&control->inbox, request, KVB_ERR_NO_MEMORY, NULL,
                              "out of memory; try again");
        return;
    }
    const struct kvp_params *params = &question->params;
    question->control = control;
    question->request = request;
    question->params = request->params;
    strcpy(question->space.tenant, params->tenant);
    strcpy(question->space.layout, params->layout);
    question->item = (struct kvs_item){
        .key = {params->key.bytes, params->key.len}, .group = params->group, .part = params->part};
    question->batch = (struct kvs_batch){
        .op = op,
        .space = &question->space,
        .lineage = {params->lineage},
        .force = params->force,
        .pin = params->pin,
        .deadline_ns = kvb_deadline_in_ms(control->config.sched->clock, OBJECT_MS),
        .items = &question->item,
        .nitems = 1,
        .done = on_answered};
    kvb_list_push_back(&control->questions, &question->link);
    kvb_status_t status = kvs_client_submit(control->config.client, &question->batch);
    if (status != KVB_OK) {
        question_free(question);
        kvp_inbox_reply_error(&control->inbox, request, status, NULL, kvb_status_text(status));
    }
}

/* ---- by pattern ---- */

static void sweep_free(struct sweep *sweep)
{
    kvb_list_remove(&sweep->link);
    kvb_sched_unpost(&sweep->step);
    free(sweep);
}

static void on_step(struct kvb_event *event)
{
    struct sweep *sweep = kvb_container_of(event, struct sweep, step);
    struct kvp_node_control *control = sweep->control;
    struct kvb_sched *sched = control->config.sched;
    if (kvs_share_sweep(control->config.share, kvb_now_ns(sched->clock), &sweep->sweep)) {
        kvb_sched_post(sched, &sweep->step);
        return;
    }
    kvp_inbox_reply(&control->inbox, sweep->request, 200,
                    json_pack("{s:s, s:I, s:I}", "status", "removed", "removed",
                              (json_int_t)sweep->sweep.removed, "kept",
                              (json_int_t)sweep->sweep.kept),
                    0);
    sweep_free(sweep);
}

static void remove_matching(struct kvp_node_control *control, struct kvp_request *request)
{
    const struct kvp_params *params = &request->params;
    if (!kvp_given(params, KVP_PARAM_tenant) || kvp_given(params, KVP_PARAM_key)) {
        bool both = kvp_given(params, KVP_PARAM_key);
        kvp_inbox_reply_error(&control->inbox, request, KVB_ERR_INVALID, both ? "key" : "tenant",
                              both ? "give key or pattern, not both" : "tenant is needed");
        return;
    }
    struct sweep *sweep = calloc(1, sizeof *sweep);
    if (sweep == NULL) {
        kvp_inbox_reply_error(&control->inbox, request, KVB_ERR_NO_MEMORY, NULL,
                              "out of memory; try again");
        return;
    }
    sweep->control = control;
    sweep->request = request;
    sweep->sweep.force = params->force;
    sweep->sweep.pattern_len = params->pattern.len;
    memcpy(sweep->sweep.pattern, params->pattern.bytes, params->pattern.len);
    strcpy(sweep->sweep.tenant, params->tenant);
    kvb_event_init(&sweep->step, on_step);
    kvb_list_push_back(&control->sweeps, &sweep->link);
    kvb_sched_post(control->config.sched, &sweep->step);
}

/* ---- events ---- */

static json_t *event_json(const struct kvs_event *event)
{
    char id[KVB_ID_HEX_LEN + 1];
    char key[2 * KVS_CORE_KEY_MAX + 1] = "";
    json_t *json = json_pack("{s:I, s:s}", "seq", (json_int_t)event->seq, "event",
                             kvs_event_text(event->kind));
    for (uint32_t i = 0; i < event->key_len; i++) {
        (void)snprintf(key + (size_t)2 * i, 3, "%02x", event->key[i]);
    }
    if (event->space.tenant[0] != '\0') {
        (void)json_object_set_new(json, "tenant", json_string(event->space.tenant));
    }
    if (event->space.layout[0] != '\0') {
        (void)json_object_set_new(json, "layout", json_string(event->space.layout));
    }
    if (!kvb_id_none(event->lineage.id)) {
        kvb_id_format(event->lineage.id, id);
        (void)json_object_set_new(json, "lineage", json_string(id));
    }
    if (event->key_len > 0) {
        (void)json_object_update_missing_new(
            json, json_pack("{s:s, s:I, s:I, s:I}", "key", key, "group", (json_int_t)event->group,
                            "part", (json_int_t)event->part, "bytes", (json_int_t)event->len));
    }
    return json;
}

static void reply_events(struct kvp_node_control *control, struct kvp_request *request)
{
    struct kvs_share *share = control->config.share;
    struct kvs_share_stats stats;
    kvs_share_stats(share, &stats);
    if (request->params.shard >= stats.shards) {
        kvp_inbox_reply_error(&control->inbox, request, KVB_ERR_INVALID, "query.shard",
                              "there is no such shard; /v1/kvplane/node says how many there are");
        return;
    }
    struct kvs_event *events = malloc(EVENTS_MAX * sizeof *events);
    if (events == NULL) {
        kvp_inbox_reply_error(&control->inbox, request, KVB_ERR_NO_MEMORY, NULL,
                              "out of memory; try again");
        return;
    }
    uint64_t lost = 0;
    uint32_t n = kvs_share_events(share, request->params.shard, request->params.after, events,
                                  EVENTS_MAX, &lost);
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) {
        (void)json_array_append_new(list, event_json(&events[i]));
    }
    free(events);
    kvp_inbox_reply(&control->inbox, request, 200,
                    json_pack("{s:o, s:I}", "events", list, "lost", (json_int_t)lost), 0);
}

/* ---- life ---- */

static void answer(struct kvp_node_control *control, struct kvp_request *request)
{
    switch ((enum kvp_store_route_id)request->route->id) {
    case KVP_STORE_get_node:
        reply_node(control, request);
        return;
    case KVP_STORE_get_object:
        ask_object(control, request, KVS_EXISTS);
        return;
    case KVP_STORE_remove_object:
        if (kvp_given(&request->params, KVP_PARAM_pattern)) {
            remove_matching(control, request);
        } else {
            ask_object(control, request, KVS_REMOVE);
        }
        return;
    case KVP_STORE_list_events:
        reply_events(control, request);
        return;
    case KVP_STORE_pin_object:
        ask_object(control, request, KVS_PIN);
        return;
    case KVP_STORE_drain:
        reply_drain(control, request);
        return;
    default:
        KVB_UNREACHABLE("a route of kind PROBE");
    }
}

kvb_status_t kvp_node_control_create(const struct kvp_node_control_config *config,
                                     struct kvp_node_control **control_p)
{
    struct kvp_node_control *control = calloc(1, sizeof *control);
    if (control == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    control->config = *config;
    kvb_list_init(&control->questions);
    kvb_list_init(&control->sweeps);
    kvp_inbox_init(&control->inbox, config->queue_max, config->wake, config->wake_ctx);
    *control_p = control;
    return KVB_OK;
}

struct kvp_inbox *kvp_node_control_inbox(struct kvp_node_control *control)
{
    return &control->inbox;
}

void kvp_node_control_run(struct kvp_node_control *control)
{
    struct kvp_request *request;
    while ((request = kvp_inbox_next(&control->inbox)) != NULL) {
        kvb_log_request(request->request_id);
        answer(control, request);
        kvb_log_request(NULL);
    }
}

void kvp_node_control_close(struct kvp_node_control *control)
{
    kvp_inbox_close(&control->inbox);
    kvb_list_each(&control->questions, link)
    {
        struct question *question = kvb_container_of(link, struct question, link);
        if (question->request != NULL) {
            kvp_inbox_reply_closed(&control->inbox, question->request);
            question->request = NULL;
        }
    }
    kvb_list_each(&control->sweeps, link)
    {
        struct sweep *sweep = kvb_container_of(link, struct sweep, link);
        kvp_inbox_reply_closed(&control->inbox, sweep->request);
        sweep_free(sweep);
    }
}

void kvp_node_control_destroy(struct kvp_node_control *control)
{
    if (control != NULL) {
        kvp_node_control_close(control);
        kvb_assert(kvb_list_empty(&control->questions));
        kvp_inbox_cleanup(&control->inbox);
        free(control);
    }
}
