/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/engine.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/*
 * What is handed through to a server's own route: POST /METHOD with the body that came, where a
 * dialect does not say otherwise. Whatever it answers becomes JSON.
 */

#define RPC "collective_rpc:"

static const struct kvp_relay rpc = {.method = RPC, .path = "/collective_rpc"};

bool kvp_relay_writes(const char *method)
{
    return strstr(method, "update_weights") != NULL || strstr(method, "update_named") != NULL ||
           strncmp(method, RPC, strlen(RPC)) == 0;
}

static const struct kvp_relay *find(const struct kvp_dialect *dialect, const char *method)
{
    if (strncmp(method, RPC, strlen(RPC)) == 0) {
        return &rpc;
    }
    const struct kvp_relay *relay = dialect->relays;
    while (relay->method != NULL && strcmp(relay->method, method) != 0) {
        relay++;
    }
    return relay->method != NULL ? relay : NULL;
}

/* body: malloc'd JSON text; NULL: none. */
static void reply_with(struct kvp_engine_call *call, kvb_status_t status, char *body)
{
    const union kvp_rank_reply reply = {
        .relay = {.status = status,
                  .weights_written = status != KVB_OK && call->moves && call->asked_ns != 0,
                  .body = {.data = (const uint8_t *)body, .len = body != NULL ? strlen(body) : 0}}};
    kvp_engine_call_end_with(call, status, &reply);
    free(body);
}

/* Of a relay the answer is the client's: also what is against its request. */
static kvb_status_t status_of(unsigned http_status, bool failed)
{
    switch (http_status) {
    case 400:
    case 422:
        return KVB_ERR_INVALID;
    case 404:
    case 405:
    case 501:
        return KVB_ERR_UNSUPPORTED;
    case 409:
        return KVB_ERR_BAD_STATE;
    case 503:
        return KVB_ERR_UNAVAILABLE;
    default:
        return http_status >= 300 || failed ? KVB_ERR_REFUSED : KVB_OK;
    }
}

static void on_relayed(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    if (answer->status != KVB_OK) {
        kvp_engine_call_fail(call, answer);
        return;
    }
    bool optional = call->relay != NULL && call->relay->optional;
    if (answer->http_status == 404 && optional) {
        reply_with(call, KVB_OK, NULL);
        return;
    }
    json_t *json = kvp_answer_json(answer);
    kvb_status_t status =
        status_of(answer->http_status, json_is_false(json_object_get(json, "success")));
    if (json == NULL && answer->len > 0) {
        char *text = strdup(answer->body);
        if (text != NULL) {
            kvb_utf8_clean(text);
        }
        json = json_string(text != NULL ? text : "");
        free(text);
    }
    reply_with(call, status,
               json != NULL ? json_dumps(json, JSON_ENCODE_ANY | JSON_COMPACT) : NULL);
    json_decref(json);
}

void kvp_relay_begin(struct kvp_engine_call *call)
{
    const struct kvp_relay *relay = find(call->engine->dialect, call->method);
    call->begun = true;
    call->relay = relay;
    if (relay != NULL && relay->never) {
        kvp_engine_call_end(call, KVB_ERR_UNSUPPORTED);
        return;
    }
    if (relay != NULL && relay->path == NULL) {
        reply_with(call, KVB_OK, NULL);
        return;
    }
    if (relay != NULL && relay->body != NULL) {
        char *body = relay->body(call->body, call->body_len);
        free(call->body);
        call->body = body;
        if (body == NULL) {
            kvp_engine_call_end(call, KVB_ERR_NO_MEMORY);
            return;
        }
    }
    if (kvp_relay_writes(call->method)) {
        call->moves = true;
        call->engine->writing++;
    }
    if (relay != NULL && relay->get) {
        kvp_engine_call_get(call, on_relayed, "%s", relay->path);
    } else if (relay != NULL) {
        kvp_engine_call_post(call, on_relayed, call->body, "%s", relay->path);
    } else {
        kvp_engine_call_post(call, on_relayed, call->body, "/%s", call->method);
    }
}
