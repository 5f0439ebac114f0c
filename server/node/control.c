/* SPDX-License-Identifier: Apache-2.0 */
#include "node/control.h"

#include "http/errors.h"
#include "node/routes.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OBJECT_MS = 5000 }; /* bound of a question for one object */

struct kvp_node_control {
    struct kvp_node_control_config config;
    struct kvp_inbox inbox;
    struct kvb_list questions;
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
    question->batch =
        (struct kvs_batch){.op = op,
                           .space = &question->space,
                           .lineage = {params->lineage},
                           .force = params->force,
                           .pin = params->pin,
                           .deadline_ns = kvb_deadline_in_ms(control->config.clock, OBJECT_MS),
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
        ask_object(control, request, KVS_REMOVE);
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
