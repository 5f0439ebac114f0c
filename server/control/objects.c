/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One object by its key. Where it lies only its placement key says, which a person does not have:
 * every node is asked, each by itself, so that the answer tells what became of it on each.
 */
#include "control/internal.h"
#include "http/errors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OBJECT_MS = 2000, /* bound of the whole question */
    STOP_MS = 200,    /* of ending it, when the daemon goes */
};

/* What one node is asked. */
struct asked_node {
    struct question *question;
    char name[64];
    struct kvs_item item;
    struct kvs_batch batch;
};

struct question {
    struct kvb_list link; /* control.questions */
    struct kvp_control *control;
    struct kvp_request *request; /* NULL: replied already */
    enum kvs_batch_op op;
    struct kvs_space space;
    struct kvp_params params;
    struct kvb_event end; /* no node was asked */
    uint32_t left;        /* have not answered */
    uint32_t n, cap;
    struct asked_node nodes[];
};

static void question_free(struct question *question)
{
    struct kvp_control *control = question->control;
    kvb_sched_unpost(&question->end);
    kvb_list_remove(&question->link);
    free(question);
    if (kvp_control_quiet(control) && control->config.quiet != NULL) {
        control->config.quiet(control->config.quiet_ctx);
    }
}

/* ---- the answer ---- */

static bool silent(const struct asked_node *node)
{
    kvb_status_t status = node->item.status;
    return status != KVB_OK && status != KVB_ERR_NOT_FOUND && status != KVB_ERR_BUSY;
}

/* Of what two nodes say, what holds for both together: the higher. */
static uint32_t rank(enum kvs_batch_op op, kvb_status_t status)
{
    switch (status) {
    case KVB_ERR_NOT_FOUND:
        return 0;
    case KVB_OK: /* it is removed only if nobody else has it */
        return op == KVS_REMOVE ? 1 : 4;
    case KVB_ERR_BUSY:
        return 3;
    default: /* it may be there */
        return 2;
    }
}

static const struct asked_node *judge(const struct question *question, uint32_t *silent_p)
{
    const struct asked_node *first = NULL;
    for (uint32_t i = 0; i < question->n; i++) {
        const struct asked_node *node = &question->nodes[i];
        *silent_p += silent(node);
        if (first == NULL ||
            rank(question->op, node->item.status) > rank(question->op, first->item.status)) {
            first = node;
        }
    }
    return first;
}

static json_t *nodes_json(const struct question *question)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < question->n; i++) {
        const struct asked_node *node = &question->nodes[i];
        json_t *json = json_pack("{s:s, s:s}", "node", node->name, "result",
                                 kvb_status_label(node->item.status));
        if (node->item.status == KVB_OK && question->op == KVS_EXISTS) {
            kvp_json_set_u64(json, "bytes", node->item.len);
        }
        (void)json_array_append_new(list, json);
    }
    return list;
}

/* The whole key, so that one that was made of an instance's can be asked for again. */
static json_t *found_json(const struct question *question, const struct asked_node *node)
{
    static const char *const pins[] = {
        [KVS_PIN_NONE] = "none", [KVS_PIN_SOFT] = "soft", [KVS_PIN_HARD] = "hard"};
    char lineage[KVB_ID_HEX_LEN + 1];
    char key[2 * KVB_KEY_MAX + 1] = "";
    const struct kvp_params *params = &question->params;
    kvb_id_format(params->lineage, lineage);
    for (uint32_t i = 0; i < params->key.len; i++) {
        (void)snprintf(key + (size_t)2 * i, 3, "%02x", params->key.bytes[i]);
    }
    json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I}", "tenant", question->space.tenant,
                             "layout", question->space.layout, "lineage", lineage, "key", key,
                             "group", (json_int_t)params->group, "part", (json_int_t)params->part);
    switch (question->op) {
    case KVS_REMOVE:
        kvp_json_set_text(json, "status", "removed");
        break;
    case KVS_PIN:
        kvp_json_set_text(json, "status", "pinned");
        kvp_json_set_text(json, "pin", pins[params->pin]);
        break;
    default:
        (void)json_object_set_new(json, "exists", json_true());
        kvp_json_set_u64(json, "bytes", node->item.len);
    }
    return json;
}

static void reply(const struct question *question)
{
    uint32_t nsilent = 0;
    const struct asked_node *node = judge(question, &nsilent);
    kvb_status_t status = node != NULL ? node->item.status : KVB_ERR_UNAVAILABLE;
    char text[160];
    const char *param = NULL;
    if (status == KVB_ERR_NOT_FOUND) {
        param = "key";
        (void)snprintf(text, sizeof text, "no node has it");
    } else if (status == KVB_ERR_BUSY) {
        (void)snprintf(text, sizeof text,
                       "it is read, promised or pinned; force=true removes it all the same");
    } else {
        status = status == KVB_OK ? KVB_OK : KVB_ERR_UNAVAILABLE;
        (void)snprintf(text, sizeof text,
                       "%u of %u nodes did not answer and may have it: try again", nsilent,
                       question->n);
    }
    unsigned code = status == KVB_OK ? 200 : kvp_error_http(status);
    json_t *body =
        status == KVB_OK ? found_json(question, node) : kvp_error_body(code, param, text);
    (void)json_object_set_new(body, "nodes", nodes_json(question));
    kvp_json_set_u64(body, "nodes_silent", nsilent);
    kvp_control_reply(question->control, question->request, code, body, kvp_error_retry_s(status));
}

static void finish(struct question *question)
{
    if (question->request != NULL) {
        reply(question);
    }
    question_free(question);
}

static void on_answered(struct kvs_batch *batch)
{
    struct question *question = kvb_container_of(batch, struct asked_node, batch)->question;
    if (--question->left == 0) {
        finish(question);
    }
}

static void on_end(struct kvb_event *event)
{
    finish(kvb_container_of(event, struct question, end));
}

/* ---- the question ---- */

static void count_node(void *arg, const struct kvp_cluster_node *node)
{
    (void)node;
    ++*(uint32_t *)arg;
}

static void ask_node(void *arg, const struct kvp_cluster_node *told)
{
    struct question *question = arg;
    const struct kvp_params *params = &question->params;
    struct kvp_control *control = question->control;
    struct asked_node *node = &question->nodes[question->n++];
    node->question = question;
    (void)snprintf(node->name, sizeof node->name, "%s", told->record->name);
    node->item = (struct kvs_item){
        .key = {params->key.bytes, params->key.len}, .group = params->group, .part = params->part};
    node->batch =
        (struct kvs_batch){.op = question->op,
                           .space = &question->space,
                           .lineage = {params->lineage},
                           .force = params->force,
                           .pin = params->pin,
                           .deadline_ns = kvb_deadline_in_ms(control->config.clock, OBJECT_MS),
                           .items = &node->item,
                           .nitems = 1,
                           .done = on_answered};
    kvb_status_t status = kvs_client_submit_to(control->config.client, node->name, &node->batch);
    if (status == KVB_OK) {
        question->left++;
    } else { /* not used, left alone, or no memory: it does not answer */
        node->item.status = KVB_ERR_UNAVAILABLE;
    }
}

/* What is not given of the key's namespace is that of an instance. False: replied. */
static bool complete(struct kvp_control *control, struct kvp_request *request)
{
    static const uint32_t all =
        1u << KVP_PARAM_tenant | 1u << KVP_PARAM_layout | 1u << KVP_PARAM_lineage;
    struct kvp_params *params = &request->params;
    struct kvp_view view;
    if ((params->given & all) == all) {
        return true;
    }
    if (!kvp_find_instance(control, request, &view)) {
        return false;
    }
    if (!kvp_given(params, KVP_PARAM_tenant)) {
        strcpy(params->tenant, view.tenant);
    }
    if (!kvp_given(params, KVP_PARAM_layout)) {
        (void)snprintf(params->layout, sizeof params->layout, "%s", view.layout);
    }
    if (!kvp_given(params, KVP_PARAM_lineage)) {
        params->lineage = view.lineage.id;
    }
    return true;
}

static bool check(struct kvp_control *control, struct kvp_request *request, enum kvs_batch_op op)
{
    const struct kvp_params *params = &request->params;
    const char *name = !kvp_given(params, KVP_PARAM_key)                    ? "key"
                       : op == KVS_PIN && !kvp_given(params, KVP_PARAM_pin) ? "pin"
                                                                            : NULL;
    if (name != NULL) {
        char message[64];
        (void)snprintf(message, sizeof message, "%s is needed", name);
        kvp_control_reply_error(control, request, KVB_ERR_INVALID, name, message);
        return false;
    }
    return complete(control, request);
}

static void ask(struct kvp_control *control, struct kvp_request *request, enum kvs_batch_op op)
{
    if (!check(control, request, op)) {
        return;
    }
    uint32_t n = 0;
    kvp_cluster_each_node(control->config.cluster, count_node, &n);
    struct question *question = calloc(1, sizeof *question + n * sizeof question->nodes[0]);
    if (question == NULL) {
        kvp_control_reply_error(control, request, KVB_ERR_NO_MEMORY, NULL,
                                "out of memory; try again");
        return;
    }
    question->control = control;
    question->request = request;
    question->op = op;
    question->params = request->params;
    strcpy(question->space.tenant, question->params.tenant);
    strcpy(question->space.layout, question->params.layout);
    kvb_event_init(&question->end, on_end);
    kvb_list_push_back(&control->questions, &question->link);
    kvp_cluster_each_node(control->config.cluster, ask_node, question);
    if (question->left == 0) {
        kvb_sched_post(control->config.sched, &question->end);
    }
}

void kvp_read_object(struct kvp_control *control, struct kvp_request *request)
{
    ask(control, request, KVS_EXISTS);
}

void kvp_remove_object(struct kvp_control *control, struct kvp_request *request)
{
    ask(control, request, KVS_REMOVE);
}

void kvp_pin_object(struct kvp_control *control, struct kvp_request *request)
{
    ask(control, request, KVS_PIN);
}

void kvp_objects_close(struct kvp_control *control)
{
    kvb_list_each(&control->questions, link)
    {
        struct question *question = kvb_container_of(link, struct question, link);
        if (question->request == NULL) {
            continue;
        }
        kvp_inbox_reply_closed(&control->inbox, question->request);
        question->request = NULL;
        for (uint32_t i = 0; i < question->n; i++) {
            kvs_client_cancel(&question->nodes[i].batch,
                              kvb_deadline_in_ms(control->config.clock, STOP_MS));
        }
    }
}
