/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects by their keys. Where one lies only its placement key says, which a person does not have:
 * every node is asked, each by itself, so that the answer tells what became of it on each.
 */
#include "control/internal.h"
#include "http/errors.h"
#include "http/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEYS_MAX = 1000,  /* of one question */
    OBJECT_MS = 2000, /* bound of the whole question */
    STOP_MS = 200,    /* of ending it, when the daemon goes */
};

/* What one node is asked. */
struct asked_node {
    struct question *question;
    char name[64];
    struct kvs_item *items; /* one for each key */
    struct kvs_batch batch;
};

struct key {
    uint16_t len;
    uint8_t bytes[KVB_KEY_MAX];
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
    bool batch; /* asked for as a list: answered as one */
    uint32_t nkeys;
    struct key *keys;
    struct kvs_item *items; /* of all nodes */
    struct asked_node nodes[];
};

static void question_free(struct question *question)
{
    struct kvp_control *control = question->control;
    kvb_sched_unpost(&question->end);
    kvb_list_remove(&question->link);
    free(question->keys);
    free(question->items);
    free(question);
    kvp_control_settle(control);
}

/* ---- the answer ---- */

static bool silent(kvb_status_t status)
{
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

/* What holds of a key for all nodes together; NULL: there are none. */
static const struct kvs_item *judge(const struct question *question, uint32_t key,
                                    uint32_t *silent_p)
{
    const struct kvs_item *first = NULL;
    for (uint32_t i = 0; i < question->n; i++) {
        const struct kvs_item *item = &question->nodes[i].items[key];
        *silent_p += silent(item->status);
        if (first == NULL || rank(question->op, item->status) > rank(question->op, first->status)) {
            first = item;
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
                                 kvb_status_label(node->items[0].status));
        if (node->items[0].status == KVB_OK && question->op == KVS_EXISTS) {
            kvp_json_set_u64(json, "bytes", node->items[0].len);
        }
        (void)json_array_append_new(list, json);
    }
    return list;
}

json_t *kvp_key_json(const uint8_t *bytes, uint32_t len)
{
    char text[2 * KVB_KEY_MAX + 1] = "";
    for (uint32_t i = 0; i < len; i++) {
        (void)snprintf(text + (size_t)2 * i, 3, "%02x", bytes[i]);
    }
    return json_string(text);
}

const char *kvp_pin_text(enum kvs_pin pin)
{
    static const char *const texts[] = {
        [KVS_PIN_NONE] = "none", [KVS_PIN_SOFT] = "soft", [KVS_PIN_HARD] = "hard"};
    return texts[pin];
}

static json_t *key_json(const struct key *key)
{
    return kvp_key_json(key->bytes, key->len);
}

/* All of the key but its bytes, so that what was made of an instance's can be asked for again. */
static json_t *space_json(const struct question *question)
{
    char lineage[KVB_ID_HEX_LEN + 1];
    const struct kvp_params *params = &question->params;
    kvb_id_format(params->lineage, lineage);
    return json_pack("{s:s, s:s, s:s, s:I, s:I}", "tenant", question->space.tenant, "layout",
                     question->space.layout, "lineage", lineage, "group", (json_int_t)params->group,
                     "part", (json_int_t)params->part);
}

static json_t *found_json(const struct question *question, const struct kvs_item *item)
{
    json_t *json = space_json(question);
    (void)json_object_set_new(json, "key", key_json(&question->keys[0]));
    switch (question->op) {
    case KVS_REMOVE:
        kvp_json_set_text(json, "status", "removed");
        break;
    case KVS_PIN:
        kvp_json_set_text(json, "status", "pinned");
        kvp_json_set_text(json, "pin", kvp_pin_text(question->params.pin));
        break;
    default:
        (void)json_object_set_new(json, "exists", json_true());
        kvp_json_set_u64(json, "bytes", item->len);
    }
    return json;
}

/* true or false, or null: no node that answered has it, and one may that did not. */
static json_t *exists_json(const struct question *question, uint32_t key)
{
    uint32_t nsilent = 0;
    const struct kvs_item *item = judge(question, key, &nsilent);
    kvb_status_t status = item != NULL ? item->status : KVB_ERR_UNAVAILABLE;
    json_t *nodes = json_array();
    for (uint32_t i = 0; i < question->n; i++) {
        if (question->nodes[i].items[key].status == KVB_OK) {
            (void)json_array_append_new(nodes, json_string(question->nodes[i].name));
        }
    }
    json_t *exists = status == KVB_OK              ? json_true()
                     : status == KVB_ERR_NOT_FOUND ? json_false()
                                                   : json_null();
    json_t *json = json_pack("{s:o, s:o, s:o}", "key", key_json(&question->keys[key]), "exists",
                             exists, "nodes", nodes);
    if (status == KVB_OK) {
        kvp_json_set_u64(json, "bytes", item->len);
    }
    return json;
}

static void reply_batch(const struct question *question)
{
    json_t *body = space_json(question);
    json_t *objects = json_array();
    uint32_t nsilent = 0;
    (void)judge(question, 0, &nsilent);
    for (uint32_t i = 0; i < question->nkeys; i++) {
        (void)json_array_append_new(objects, exists_json(question, i));
    }
    (void)json_object_set_new(body, "objects", objects);
    kvp_json_set_u64(body, "nodes_silent", nsilent);
    kvp_control_reply(question->control, question->request, 200, body, 0);
}

static void reply(const struct question *question)
{
    uint32_t nsilent = 0;
    const struct kvs_item *item = judge(question, 0, &nsilent);
    kvb_status_t status = item != NULL ? item->status : KVB_ERR_UNAVAILABLE;
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
        status == KVB_OK ? found_json(question, item) : kvp_error_body(code, param, text);
    (void)json_object_set_new(body, "nodes", nodes_json(question));
    kvp_json_set_u64(body, "nodes_silent", nsilent);
    kvp_control_reply(question->control, question->request, code, body, kvp_error_retry_s(status));
}

static void finish(struct question *question)
{
    if (question->request != NULL && question->batch) {
        reply_batch(question);
    } else if (question->request != NULL) {
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
    struct asked_node *node = &question->nodes[question->n];
    node->question = question;
    node->items = &question->items[(size_t)question->n++ * question->nkeys];
    (void)snprintf(node->name, sizeof node->name, "%s", told->record->name);
    for (uint32_t i = 0; i < question->nkeys; i++) {
        const struct key *key = &question->keys[i];
        node->items[i] = (struct kvs_item){
            .key = {key->bytes, key->len}, .group = params->group, .part = params->part};
    }
    node->batch =
        (struct kvs_batch){.op = question->op,
                           .space = &question->space,
                           .lineage = {params->lineage},
                           .force = params->force,
                           .pin = params->pin,
                           .deadline_ns = kvb_deadline_in_ms(control->config.clock, OBJECT_MS),
                           .items = node->items,
                           .nitems = question->nkeys,
                           .done = on_answered};
    kvb_status_t status = kvs_client_submit_to(control->config.client, node->name, &node->batch);
    if (status == KVB_OK) {
        question->left++;
    } else { /* not used, left alone, or no memory: it does not answer */
        for (uint32_t i = 0; i < question->nkeys; i++) {
            node->items[i].status = KVB_ERR_UNAVAILABLE;
        }
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

/* NULL: out of memory; replied. */
static struct question *question_create(struct kvp_control *control, struct kvp_request *request,
                                        enum kvs_batch_op op, uint32_t nkeys)
{
    uint32_t n = 0;
    kvp_cluster_each_node(control->config.cluster, count_node, &n);
    struct question *question = calloc(1, sizeof *question + n * sizeof question->nodes[0]);
    if (question != NULL) {
        question->keys = calloc(nkeys, sizeof question->keys[0]);
        question->items = calloc((size_t)n * nkeys + 1, sizeof question->items[0]);
    }
    if (question == NULL || question->keys == NULL || question->items == NULL) {
        if (question != NULL) {
            free(question->keys);
            free(question->items);
        }
        free(question);
        kvp_control_reply_error(control, request, KVB_ERR_NO_MEMORY, NULL,
                                "out of memory; try again");
        return NULL;
    }
    question->control = control;
    question->request = request;
    question->op = op;
    question->nkeys = nkeys;
    question->params = request->params;
    strcpy(question->space.tenant, question->params.tenant);
    strcpy(question->space.layout, question->params.layout);
    kvb_event_init(&question->end, on_end);
    kvb_list_push_back(&control->questions, &question->link);
    return question;
}

static void ask_nodes(struct question *question)
{
    struct kvp_control *control = question->control;
    kvp_cluster_each_node(control->config.cluster, ask_node, question);
    if (question->left == 0) {
        kvb_sched_post(control->config.sched, &question->end);
    }
}

static void ask(struct kvp_control *control, struct kvp_request *request, enum kvs_batch_op op)
{
    struct question *question =
        check(control, request, op) ? question_create(control, request, op, 1) : NULL;
    if (question != NULL) {
        question->keys[0].len = request->params.key.len;
        memcpy(question->keys[0].bytes, request->params.key.bytes, request->params.key.len);
        ask_nodes(question);
    }
}

/* `keys` of the body, 1 to KEYS_MAX; 0: it is something else. */
static uint32_t count_keys(const json_t *body)
{
    const json_t *list = json_object_get(body, "keys");
    size_t n = json_is_array(list) ? json_array_size(list) : 0;
    return n <= KEYS_MAX ? (uint32_t)n : 0;
}

static bool read_keys(const json_t *body, struct key *keys)
{
    size_t i;
    const json_t *value;
    json_array_foreach(json_object_get(body, "keys"), i, value)
    {
        const char *text = json_string_value(value);
        size_t len;
        if (text == NULL || !kvp_hex_read(text, keys[i].bytes, sizeof keys[i].bytes, &len)) {
            return false;
        }
        keys[i].len = (uint16_t)len;
    }
    return true;
}

void kvp_read_existing(struct kvp_control *control, struct kvp_request *request)
{
    uint32_t nkeys = count_keys(request->json);
    if (nkeys == 0) {
        kvp_control_reply_error(control, request, KVB_ERR_INVALID, "body.keys",
                                "keys, a list of 1 to 1000 keys, is needed");
        return;
    }
    struct question *question =
        complete(control, request) ? question_create(control, request, KVS_EXISTS, nkeys) : NULL;
    if (question == NULL) {
        return;
    }
    question->batch = true;
    if (!read_keys(request->json, question->keys)) {
        kvp_control_reply_error(control, request, KVB_ERR_INVALID, "body.keys",
                                "a key is its bytes, 1 to 512, as hex digits");
        question_free(question);
        return;
    }
    ask_nodes(question);
}

void kvp_read_object(struct kvp_control *control, struct kvp_request *request)
{
    const struct kvp_params *params = &request->params;
    if (!kvp_given(params, KVP_PARAM_namespace) && !kvp_given(params, KVP_PARAM_key)) {
        kvp_control_reply_error(control, request, KVB_ERR_INVALID, "key",
                                "key is needed, or namespace for a list of objects");
    } else if (!kvp_given(params, KVP_PARAM_namespace)) {
        ask(control, request, KVS_EXISTS);
    } else if (!kvp_given(params, KVP_PARAM_key)) {
        kvp_list_objects(control, request);
    } else {
        kvp_control_reply_error(control, request, KVB_ERR_INVALID, "key",
                                "give key or namespace, not both");
    }
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
