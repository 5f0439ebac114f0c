/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each control route does: one table, `actions`. A route either starts an operation of the
 * fleet (fill the ask, later encode its outcome) or reads and replies at once. Who replies: exactly
 * one of handle() (refused, read), started() (respond-async), operation_done(), reset_done(), and
 * close() for what is open then. After close() what was started still ends here, without a client.
 */
#include "control.h"

#include "http/errors.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RPC_PREFIX  "collective_rpc:"
#define MESSAGE_MAX 512

struct kvp_control {
    struct kvp_control_config config;
    struct kvb_queue submitted;
    atomic_uint open;         /* requests taken and not yet replied to; any thread */
    struct kvb_list pendings; /* loop thread */
};

/* A request whose answer comes later. */
struct pending {
    struct kvb_list link;
    struct kvp_control *control;
    struct kvp_request *request; /* NULL: replied already, or closed */
    const struct action *action;
    struct kvp_params params;
    char *body;                     /* taken: relayed until the operation ends */
    struct kvs_coord_request coord; /* tenant reset */
    char tenant[KVB_NAME_MAX];
};

struct action {
    /* starts an operation: */
    enum kvp_operation operation;
    /* NULL or a message, then *param_p says what it is about */
    const char *(*fill)(const struct kvp_request *request, struct kvp_ask *ask,
                        const char **param_p);
    json_t *(*success)(const struct pending *pending, const struct kvp_outcome *outcome);
    /* or answers at once: */
    void (*read)(struct kvp_control *control, struct kvp_request *request);
};

static const struct action actions[KVP_ROUTE_COUNT];

/* ---- replying ---- */

static void reply(struct kvp_control *control, struct kvp_request *request, unsigned http_status,
                  json_t *body, unsigned retry_after_s)
{
    atomic_fetch_sub(&control->open, 1); /* before: the client may ask again at once */
    request->reply(request, http_status, body, retry_after_s);
}

static void reply_error(struct kvp_control *control, struct kvp_request *request,
                        kvb_status_t status, const char *param, const char *message)
{
    unsigned http_status = kvp_error_http(status);
    reply(control, request, http_status, kvp_error_body(http_status, param, message),
          kvp_error_retry_s(status));
}

static void set_text(json_t *object, const char *name, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        (void)json_object_set_new(object, name, json_string(text));
    }
}

static void set_u64(json_t *object, const char *name, uint64_t value)
{
    (void)json_object_set_new(object, name, json_integer((json_int_t)value));
}

/* ---- what an instance looks like ---- */

static const char *scheduler_text(enum kvp_scheduler scheduler)
{
    switch (scheduler) {
#define X(name, text)                                                                              \
    case KVP_SCHEDULER_##name:                                                                     \
        return text;
        KVP_SCHEDULER_STATES(X)
#undef X
    }
    KVB_UNREACHABLE("scheduler state");
}

static json_t *stoppers_json(unsigned bits)
{
    json_t *list = json_array();
#define X(name, bit, text)                                                                         \
    if ((bits & (bit)) != 0) {                                                                     \
        (void)json_array_append_new(list, json_string(text));                                      \
    }
    KVP_STOPPERS(X)
#undef X
    return list;
}

static json_t *tags_json(const struct kvp_view *view)
{
    json_t *tags = json_object();
    for (uint32_t i = 0; i < view->ntags; i++) {
        set_text(tags, view->tags[i].tag, kvb_residency_text(view->tags[i].residency));
    }
    return tags;
}

/* The short form, for the answers of failed operations. */
static json_t *state_json(const struct kvp_view *view)
{
    return json_pack("{s:s, s:b, s:s, s:o, s:o, s:b}", "instance", view->instance, "attached",
                     view->attached, "scheduler", scheduler_text(view->scheduler), "stopped_by",
                     stoppers_json(view->stopped_by), "tags", tags_json(view), "degraded",
                     view->degraded);
}

static json_t *drain_json(const struct kvp_drain_progress *drain)
{
    return json_pack("{s:I, s:I, s:I}", "queued", (json_int_t)drain->queued, "running",
                     (json_int_t)drain->running, "bytes_left", (json_int_t)drain->bytes_left);
}

static int64_t ms_until(const struct kvp_control *control, uint64_t deadline_ns)
{
    uint64_t now_ns = kvb_now_ns(control->config.clock);
    return deadline_ns > now_ns ? (int64_t)((deadline_ns - now_ns) / KVB_NS_PER_MS) : 0;
}

static void set_deadline(const struct kvp_control *control, json_t *object, uint64_t deadline_ns)
{
    if (deadline_ns != KVB_NEVER && deadline_ns != 0) {
        (void)json_object_set_new(object, "deadline_in_ms",
                                  json_integer(ms_until(control, deadline_ns)));
    }
}

static json_t *lineage_json(const struct kvp_view *view)
{
    char hex[KVB_ID_HEX_LEN + 1];
    kvb_id_format(view->lineage.id, hex);
    json_t *json = json_pack("{s:s, s:b, s:b, s:I, s:b}", "id", hex, "open", view->open,
                             "weight_change_running", view->weight_change_running,
                             "retirements_pending", (json_int_t)view->retirements_pending,
                             "coordinator_reachable", view->coordinator_reachable);
    set_text(json, "weights_name", view->weights_name);
    set_text(json, "private_reason", view->private_reason);
    return json;
}

static json_t *instance_json(const struct kvp_control *control, const struct kvp_view *view)
{
    json_t *json = state_json(view);

    set_text(json, "tenant", view->tenant);
    set_text(json, "layout", view->layout);
    set_text(json, "message", view->message);
    set_u64(json, "world_size", view->world_size);
    set_u64(json, "ranks", view->ranks);
    (void)json_object_update_new(
        json, json_pack("{s:b, s:b, s:b, s:s}", "is_paused", view->is_paused, "is_sleeping",
                        view->is_sleeping, "ready", view->ready, "weight_version",
                        view->weight_version[0] != '\0' ? view->weight_version : "default"));
    if (!view->ready) {
        set_text(json, "not_ready", view->not_ready);
    }
    (void)json_object_set_new(json, "regions",
                              json_pack("{s:I, s:I}", "registered",
                                        (json_int_t)view->registered_regions, "bytes",
                                        (json_int_t)view->registered_bytes));
    (void)json_object_set_new(json, "lineage", lineage_json(view));
    (void)json_object_set_new(
        json, "load",
        json_pack("{s:I, s:I, s:I, s:I}", "running", (json_int_t)view->load.running, "waiting",
                  (json_int_t)view->load.waiting, "loading", (json_int_t)view->load.loading,
                  "blocks_held", (json_int_t)view->load.blocks_held));
    if (view->operation_id != 0) {
        json_t *operation = json_pack(
            "{s:I, s:s, s:s, s:o, s:I}", "id", (json_int_t)view->operation_id, "operation",
            kvp_operation_label(view->operation), "step", view->step, "drain",
            drain_json(&view->drain), "waiting", (json_int_t)view->waiting_operations);
        set_deadline(control, operation, view->deadline_ns);
        (void)json_object_set_new(json, "operation", operation);
    }
    return json;
}

/* ---- asks: NULL, or what is wrong ---- */

static const char *fill_nothing(const struct kvp_request *request, struct kvp_ask *ask,
                                const char **param_p)
{
    (void)request;
    (void)ask;
    (void)param_p;
    return NULL;
}

static const char *fill_pause(const struct kvp_request *request, struct kvp_ask *ask,
                              const char **param_p)
{
    const struct kvp_params *params = &request->params;

    (void)param_p;
    ask->clear_cache = !kvp_given(params, KVP_PARAM_clear_cache) || params->clear_cache;
    if (params->wait_for_inflight_requests) {
        ask->mode = KVP_MODE_WAIT;
    }
    return NULL;
}

#define LEVEL_DEFAULT 1

static const char *fill_sleep(const struct kvp_request *request, struct kvp_ask *ask,
                              const char **param_p)
{
    (void)param_p;
    ask->level =
        kvp_given(&request->params, KVP_PARAM_level) ? request->params.level : LEVEL_DEFAULT;
    return NULL;
}

static const char *fill_wake(const struct kvp_request *request, struct kvp_ask *ask,
                             const char **param_p)
{
    (void)param_p;
    ask->tags_given = kvp_given(&request->params, KVP_PARAM_tags);
    ask->ntags = request->params.ntags;
    memcpy(ask->tags, request->params.tags, sizeof ask->tags);
    return NULL;
}

static const char *fill_reset(const struct kvp_request *request, struct kvp_ask *ask,
                              const char **param_p)
{
    (void)param_p;
    ask->reset_running_requests = request->params.reset_running_requests;
    return NULL;
}

static const char *fill_relay(const struct kvp_request *request, struct kvp_ask *ask,
                              const char **param_p)
{
    (void)param_p;
    snprintf(ask->method, sizeof ask->method, "%s", request->route->operation);
    return NULL;
}

static const char *need_body(const struct kvp_request *request, struct kvp_ask *ask,
                             const char **param_p)
{
    if (request->json == NULL || json_object_size(request->json) == 0) {
        *param_p = "body";
        return "a JSON object is needed";
    }
    return fill_relay(request, ask, param_p);
}

static const char *fill_init(const struct kvp_request *request, struct kvp_ask *ask,
                             const char **param_p)
{
    if (!json_is_object(json_object_get(request->json, "init_info"))) {
        *param_p = "body.init_info";
        return "init_info, an object, is needed";
    }
    return fill_relay(request, ask, param_p);
}

static const char *fill_set_version(const struct kvp_request *request, struct kvp_ask *ask,
                                    const char **param_p)
{
    if (!kvp_given(&request->params, KVP_PARAM_new_version)) {
        *param_p = "body.new_version";
        return "new_version, a string, is needed";
    }
    strcpy(ask->weight_version, request->params.new_version);
    return fill_relay(request, ask, param_p);
}

/*
 * Which calls leave the lineage. A worker may be extended with methods of any name, and one that
 * loads weights unnoticed would leave stale KV in the store for everybody, so every method counts
 * as a weight change but those known to be none. What that costs is a cold cache.
 */
static const char *const harmless_methods[] = {
    "ping",
    "profile",
    "start_profile",
    "stop_profile",
    "init_communicator",
    "close_communicator",
    "init_weight_transfer_engine",
    "init_weight_update_group",
    "init_weights_update_group",
    "destroy_weight_update_group",
    "destroy_weights_update_group",
    "determine_num_available_blocks",
    "save_sharded_state",
    "save_tensorized_model",
};
static const char *const harmless_prefixes[] = {"get_",  "is_",    "has_",
                                                "list_", "check_", "report_"};

/* These free or map memory behind the daemon's back while it holds registrations of it. */
static const struct {
    const char *method;
    const char *message;
} refused_methods[] = {
    {"sleep", "call POST /sleep instead: the memory is registered here"},
    {"wake_up", "call POST /wake_up instead: the memory is registered here"},
    {"release_kv_cache_memory",
     "call POST /release_kv_cache_memory instead: the memory is registered here"},
};

bool kvp_method_changes_weights(const char *method)
{
    for (size_t i = 0; i < sizeof harmless_methods / sizeof harmless_methods[0]; i++) {
        if (strcmp(method, harmless_methods[i]) == 0) {
            return false;
        }
    }
    for (size_t i = 0; i < sizeof harmless_prefixes / sizeof harmless_prefixes[0]; i++) {
        if (strncmp(method, harmless_prefixes[i], strlen(harmless_prefixes[i])) == 0) {
            return false;
        }
    }
    return true;
}

static const char *fill_rpc(const struct kvp_request *request, struct kvp_ask *ask,
                            const char **param_p)
{
    const char *method = json_string_value(json_object_get(request->json, "method"));

    *param_p = "body.method";
    if (method == NULL || method[0] == '\0') {
        return "method, a string, is needed";
    }
    if (strlen(RPC_PREFIX) + strlen(method) >= sizeof ask->method) {
        return "the name of the method is too long";
    }
    for (size_t i = 0; i < sizeof refused_methods / sizeof refused_methods[0]; i++) {
        if (strcmp(method, refused_methods[i].method) == 0) {
            return refused_methods[i].message;
        }
    }
    snprintf(ask->method, sizeof ask->method, RPC_PREFIX "%s", method);
    ask->operation = kvp_method_changes_weights(method) ? KVP_OP_UPDATE : KVP_OP_RELAY;
    return NULL;
}

/* ---- what success looks like ---- */

static const char *mode_text(enum kvp_pause_kind mode)
{
    switch (mode) {
    case KVP_MODE_ABORT:
        return "abort";
    case KVP_MODE_WAIT:
        return "wait";
    case KVP_MODE_KEEP:
        return "keep";
    case KVP_MODE_RETRACT:
        return "retract";
    }
    KVB_UNREACHABLE("pause mode");
}

/* What every success may say besides. */
static json_t *with_common(json_t *json, const struct kvp_outcome *outcome)
{
    if (outcome->external == KVP_EXTERNAL_PENDING) {
        set_text(json, "external", "pending");
    }
    if (outcome->nothing_to_do) {
        (void)json_object_set_new(json, "nothing_to_do", json_true());
    }
    return json;
}

static json_t *paused(const struct pending *pending, const struct kvp_outcome *outcome)
{
    const struct kvp_params *params = &pending->params;
    enum kvp_pause_kind mode = params->wait_for_inflight_requests ? KVP_MODE_WAIT : params->mode;
    bool clear = !kvp_given(params, KVP_PARAM_clear_cache) || params->clear_cache;

    return with_common(json_pack("{s:s, s:s, s:b}", "status", "paused", "mode", mode_text(mode),
                                 "clear_cache", clear),
                       outcome);
}

static json_t *resumed(const struct pending *pending, const struct kvp_outcome *outcome)
{
    (void)pending;
    return with_common(json_pack("{s:s}", "status", "resumed"), outcome);
}

/* The level in force: a sleep that found a deeper one changed nothing. */
static uint32_t level_of(const struct kvp_view *view)
{
    uint32_t level = 0;
    for (uint32_t i = 0; view != NULL && i < view->ntags; i++) {
        bool kv = strcmp(view->tags[i].tag, "kv_cache") == 0;
        if (view->tags[i].residency == KVB_DISCARDED && !kv) {
            level = 2;
        } else if (view->tags[i].residency != KVB_RESIDENT && level == 0) {
            level = 1;
        }
    }
    return level;
}

static json_t *sleeping(const struct pending *pending, const struct kvp_outcome *outcome)
{
    const struct kvp_params *params = &pending->params;
    uint32_t level = kvp_given(params, KVP_PARAM_level) ? params->level : LEVEL_DEFAULT;

    if (outcome->nothing_to_do && level_of(outcome->view) > level) {
        level = level_of(outcome->view);
    }
    return with_common(json_pack("{s:s, s:i, s:s}", "status", "sleeping", "level", (int)level,
                                 "mode", mode_text(params->mode)),
                       outcome);
}

static json_t *names_json(const char (*names)[KVB_NAME_MAX], uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) {
        (void)json_array_append_new(list, json_string(names[i]));
    }
    return list;
}

static json_t *woken(const struct pending *pending, const struct kvp_outcome *outcome)
{
    (void)pending;
    bool asleep = outcome->view != NULL && outcome->view->is_sleeping;
    return with_common(
        json_pack("{s:s, s:o, s:o}", "status", asleep ? "sleeping" : "awake", "tags_woken",
                  names_json(outcome->tags_woken, outcome->ntags_woken), "tags_ignored",
                  names_json(outcome->tags_ignored, outcome->ntags_ignored)),
        outcome);
}

static json_t *released(const struct pending *pending, const struct kvp_outcome *outcome)
{
    (void)pending;
    return with_common(json_pack("{s:s}", "status", "kv_cache_released"), outcome);
}

static const char *external_text(enum kvp_external external)
{
    switch (external) {
    case KVP_EXTERNAL_NONE:
        return "not_asked";
    case KVP_EXTERNAL_DONE:
        return "done";
    case KVP_EXTERNAL_PENDING:
        return "pending";
    case KVP_EXTERNAL_FAILED:
        return "failed";
    }
    KVB_UNREACHABLE("external");
}

static const char *message_of(const struct kvp_outcome *outcome)
{
    return outcome->message != NULL && outcome->message[0] != '\0'
               ? outcome->message
               : kvb_status_text(outcome->status);
}

/* Asked for the store to forget, and it has not: that is no success, whatever else went well. */
static bool reset_succeeded(const struct pending *pending, const struct kvp_outcome *outcome)
{
    return outcome->status == KVB_OK &&
           !(pending->params.reset_external && (outcome->external == KVP_EXTERNAL_PENDING ||
                                                outcome->external == KVP_EXTERNAL_FAILED));
}

static json_t *reset_json(const struct pending *pending, const struct kvp_outcome *outcome)
{
    bool success = reset_succeeded(pending, outcome);
    json_t *json = json_pack("{s:b, s:b, s:s}", "success", success, "local", outcome->local_done,
                             "external", external_text(outcome->external));
    if (!success) {
        set_text(json, "message", message_of(outcome));
        set_u64(json, "blocks_held", outcome->blocks_held);
    }
    return json;
}

/* The engine's JSON, whatever kind of value; text that is not JSON comes as a string. */
static json_t *relayed_json(const struct kvp_outcome *outcome)
{
    if (outcome->relay_body == NULL || outcome->relay_len == 0) {
        return NULL;
    }
    json_t *json = json_loadb(outcome->relay_body, outcome->relay_len, JSON_DECODE_ANY, NULL);
    return json != NULL ? json : json_stringn(outcome->relay_body, outcome->relay_len);
}

static json_t *with_relayed(json_t *json, const struct pending *pending,
                            const struct kvp_outcome *outcome)
{
    json_t *relayed = relayed_json(outcome);

    if (relayed != NULL && !json_is_null(relayed)) {
        (void)json_object_set(json, "result", relayed);
    }
    json_decref(relayed);
    set_text(json, "weight_version", pending->params.weight_version);
    return with_common(json, outcome);
}

static json_t *transfer_initialized(const struct pending *pending,
                                    const struct kvp_outcome *outcome)
{
    return with_relayed(json_pack("{s:s}", "message", "Weight transfer initialized"), pending,
                        outcome);
}

static json_t *update_started(const struct pending *pending, const struct kvp_outcome *outcome)
{
    return with_relayed(json_pack("{s:s}", "message", "Weight update started"), pending, outcome);
}

static json_t *updated(const struct pending *pending, const struct kvp_outcome *outcome)
{
    return with_relayed(json_pack("{s:s}", "message", "Weights updated"), pending, outcome);
}

static json_t *update_finished(const struct pending *pending, const struct kvp_outcome *outcome)
{
    return with_relayed(json_pack("{s:s}", "message", "Weight update finished"), pending, outcome);
}

static json_t *version_set(const struct pending *pending, const struct kvp_outcome *outcome)
{
    return with_common(
        json_pack("{s:b, s:s}", "success", 1, "new_version", pending->params.new_version), outcome);
}

static json_t *rpc_results(const struct pending *pending, const struct kvp_outcome *outcome)
{
    json_t *relayed = relayed_json(outcome);
    json_t *results = json_object_get(relayed, "results");

    (void)pending;
    if (json_is_array(results)) {
        json_incref(results);
    } else if (json_is_array(relayed)) {
        results = json_incref(relayed);
    } else {
        results = json_array();
        if (relayed != NULL) {
            (void)json_array_append(results, relayed);
        }
    }
    json_decref(relayed);
    return with_common(json_pack("{s:o}", "results", results), outcome);
}

/* ---- operations ---- */

static void pending_free(struct pending *pending)
{
    kvb_list_remove(&pending->link);
    free(pending->body);
    free(pending);
}

static struct pending *pending_create(struct kvp_control *control, struct kvp_request *request)
{
    struct pending *pending = calloc(1, sizeof *pending);
    if (pending != NULL) {
        pending->control = control;
        pending->request = request;
        pending->action = &actions[request->route->id];
        pending->params = request->params;
        kvb_list_push_back(&control->pendings, &pending->link);
    }
    return pending;
}

static void reply_failure(struct pending *pending, const struct kvp_outcome *outcome)
{
    struct kvp_request *request = pending->request;
    unsigned http_status = kvp_error_http(outcome->status);
    const char *param = NULL;

    if (outcome->status == KVB_ERR_NOT_FOUND ||
        (outcome->status == KVB_ERR_INVALID && request->instance[0] == '\0' &&
         kvp_fleet_count(pending->control->config.fleet) > 1)) {
        param = "query.instance";
    }
    json_t *body = kvp_error_body(http_status, param, message_of(outcome));
    set_text(body, "status", kvb_status_label(outcome->status));
    if (outcome->operation_id != 0) {
        set_u64(body, "operation_id", outcome->operation_id);
    }
    if (outcome->view != NULL) {
        (void)json_object_set_new(body, "state", state_json(outcome->view));
    }
    reply(pending->control, request, http_status, body, kvp_error_retry_s(outcome->status));
}

/* Trainers take any other answer than 200 {"success":…} for a fault of the server and retry for
 * ever or stop; only those who asked to be told by the status are. */
static void reply_reset(struct pending *pending, const struct kvp_outcome *outcome)
{
    struct kvp_outcome told = *outcome;

    if (pending->params.strict && !reset_succeeded(pending, outcome)) {
        told.status = outcome->status != KVB_OK ? outcome->status : KVB_ERR_UNAVAILABLE;
        json_t *body = kvp_error_body(kvp_error_http(told.status), NULL, message_of(&told));
        (void)json_object_update_missing_new(body, reset_json(pending, &told));
        reply(pending->control, pending->request, kvp_error_http(told.status), body,
              kvp_error_retry_s(told.status));
        return;
    }
    reply(pending->control, pending->request, 200, reset_json(pending, outcome), 0);
}

/* The request itself was at fault, rather than the operation. */
static bool request_fault(const struct kvp_outcome *outcome)
{
    return outcome->status == KVB_ERR_INVALID || outcome->status == KVB_ERR_NOT_FOUND;
}

static void operation_done(void *arg, const struct kvp_outcome *outcome)
{
    struct pending *pending = arg;

    if (pending->request == NULL) {
        ; /* nobody listens any more */
    } else if (pending->action->operation == KVP_OP_RESET && !request_fault(outcome)) {
        reply_reset(pending, outcome);
    } else if (outcome->status != KVB_OK) {
        reply_failure(pending, outcome);
    } else {
        reply(pending->control, pending->request, 200, pending->action->success(pending, outcome),
              0);
    }
    pending_free(pending);
}

static void fill_common(const struct kvp_request *request, struct kvp_ask *ask)
{
    const struct kvp_params *params = &request->params;

    ask->mode = params->mode; /* not given: abort, which is 0 */
    if (kvp_given(params, KVP_PARAM_reset_external)) {
        ask->reset_external = params->reset_external ? KVP_YES : KVP_NO;
    }
    strcpy(ask->weight_version, params->weight_version);
    ask->body = request->body;
    ask->body_len = request->body_len;
}

/* The answer is that it was started; its end is looked up at Location. */
static void started(struct pending *pending, uint64_t operation_id)
{
    struct kvp_request *request = pending->request;

    pending->request = NULL;
    snprintf(request->location, sizeof request->location, "/v1/kvplane/operations/%llu",
             (unsigned long long)operation_id);
    reply(pending->control, request, 202,
          json_pack("{s:s, s:I, s:s}", "status", "started", "operation_id",
                    (json_int_t)operation_id, "location", request->location),
          0);
}

static void start(struct kvp_control *control, struct kvp_request *request)
{
    const struct action *action = &actions[request->route->id];
    struct kvp_ask ask = {.operation = action->operation};
    const char *param = NULL;
    uint64_t operation_id = 0;

    fill_common(request, &ask);
    const char *wrong = action->fill(request, &ask, &param);
    if (wrong != NULL) {
        reply_error(control, request, KVB_ERR_INVALID, param, wrong);
        return;
    }
    struct pending *pending = pending_create(control, request);
    if (pending == NULL) {
        reply_error(control, request, KVB_ERR_NO_MEMORY, NULL, "out of memory; try again");
        return;
    }
    pending->body = request->body;
    request->body = NULL;
    kvp_fleet_request(control->config.fleet,
                      request->instance[0] != '\0' ? request->instance : NULL, &ask,
                      request->request_id, operation_done, pending, &operation_id);
    if (request->respond_async && operation_id != 0) {
        started(pending, operation_id);
    }
}

/* ---- reads ---- */

static void list_name(void *arg, const struct kvp_view *view)
{
    char *list = arg;
    size_t used = strlen(list);
    snprintf(list + used, MESSAGE_MAX - used, "%s%s", used > 0 ? ", " : "", view->instance);
}

/* The instance a request is about; false: replied. */
static bool find_instance(struct kvp_control *control, struct kvp_request *request,
                          struct kvp_view *view_p)
{
    struct kvp_fleet *fleet = control->config.fleet;
    const char *name = request->instance[0] != '\0' ? request->instance : NULL;
    char names[MESSAGE_MAX] = "";
    char message[MESSAGE_MAX + 64];

    if (kvp_fleet_view(fleet, name, view_p)) {
        return true;
    }
    if (name != NULL) {
        reply_error(control, request, KVB_ERR_NOT_FOUND, "query.instance",
                    "there is no instance of that name");
    } else if (kvp_fleet_count(fleet) == 0) {
        reply_error(control, request, KVB_ERR_BAD_STATE, NULL, "no engine has attached yet");
    } else {
        kvp_fleet_each(fleet, list_name, names);
        snprintf(message, sizeof message, "say which by ?instance=NAME: %s", names);
        reply_error(control, request, KVB_ERR_INVALID, "query.instance", message);
    }
    return false;
}

static void read_weight_info(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_view view;

    if (find_instance(control, request, &view)) {
        const char *version = view.weight_version[0] != '\0' ? view.weight_version : "default";
        reply(control, request, 200, json_pack("{s:s}", "weight_version", version), 0);
    }
}

static void read_world_size(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_view view;

    if (!find_instance(control, request, &view)) {
        return;
    }
    if (!view.attached) {
        reply_error(control, request, KVB_ERR_BAD_STATE, NULL,
                    "not all ranks of the engine are attached");
        return;
    }
    reply(control, request, 200, json_pack("{s:I}", "world_size", (json_int_t)view.world_size), 0);
}

struct listing {
    const struct kvp_control *control;
    json_t *list;
};

static void add_instance(void *arg, const struct kvp_view *view)
{
    struct listing *listing = arg;
    (void)json_array_append_new(listing->list, instance_json(listing->control, view));
}

static void read_instances(struct kvp_control *control, struct kvp_request *request)
{
    struct listing listing = {.control = control, .list = json_array()};
    kvp_fleet_each(control->config.fleet, add_instance, &listing);
    reply(control, request, 200, json_pack("{s:o}", "instances", listing.list), 0);
}

static void read_instance(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_view view;

    if (kvp_fleet_view(control->config.fleet, request->path_arg, &view)) {
        reply(control, request, 200, instance_json(control, &view), 0);
    } else {
        reply_error(control, request, KVB_ERR_NOT_FOUND, "path.name",
                    "there is no instance of that name");
    }
}

static json_t *operation_json(const struct kvp_control *control,
                              const struct kvp_operation_record *record)
{
    const char *status = !record->finished          ? "running"
                         : record->status == KVB_OK ? "succeeded"
                                                    : "failed";
    uint64_t end_ns = record->finished ? record->finished_ns : kvb_now_ns(control->config.clock);
    json_t *json = json_pack("{s:I, s:s, s:s, s:s}", "id", (json_int_t)record->id, "operation",
                             kvp_operation_label(record->operation), "instance", record->instance,
                             "status", status);

    set_text(json, "request_id", record->request_id);
    set_text(json, "message", record->message);
    (void)json_object_set_new(
        json, "elapsed_ms",
        json_real((double)(end_ns > record->started_ns ? end_ns - record->started_ns : 0) / 1e6));
    if (record->finished) {
        set_text(json, "result", kvb_status_label(record->status));
    } else {
        set_text(json, "step", record->step);
        (void)json_object_set_new(json, "drain", drain_json(&record->drain));
        set_deadline(control, json, record->deadline_ns);
    }
    return json;
}

static void add_operation(void *arg, const struct kvp_operation_record *record)
{
    struct listing *listing = arg;
    (void)json_array_append_new(listing->list, operation_json(listing->control, record));
}

static void read_operations(struct kvp_control *control, struct kvp_request *request)
{
    struct listing listing = {.control = control, .list = json_array()};
    kvp_fleet_each_operation(control->config.fleet, add_operation, &listing);
    reply(control, request, 200, json_pack("{s:o}", "operations", listing.list), 0);
}

/* Decimal digits only; an id that overflows is one that does not exist. */
static bool parse_id(const char *text, uint64_t *id_p)
{
    uint64_t id = 0;
    if (text[0] == '\0' || text[strspn(text, "0123456789")] != '\0' || strlen(text) > 19) {
        return false;
    }
    for (; *text != '\0'; text++) {
        id = id * 10 + (uint64_t)(*text - '0');
    }
    *id_p = id;
    return true;
}

static void read_operation(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_operation_record record;
    uint64_t id;

    if (parse_id(request->path_arg, &id) &&
        kvp_fleet_operation(control->config.fleet, id, &record)) {
        reply(control, request, 200, operation_json(control, &record), 0);
    } else {
        reply_error(control, request, KVB_ERR_NOT_FOUND, "path.id",
                    "there is no such operation, or it ended too long ago");
    }
}

/* ---- tenants ---- */

/* The entry of a tenant in an object by name, made if absent; NULL: out of memory. */
static json_t *tenant_entry(json_t *tenants, const char *name)
{
    json_t *entry = json_object_get(tenants, name);
    if (entry == NULL) {
        entry = json_pack("{s:s, s:[], s:[]}", "name", name, "instances", "lineages");
        if (json_object_set_new(tenants, name, entry) != 0) {
            return NULL;
        }
    }
    return entry;
}

static void add_member(void *arg, const struct kvp_view *view)
{
    json_t *entry = tenant_entry(arg, view->tenant);
    (void)json_array_append_new(json_object_get(entry, "instances"), json_string(view->instance));
}

static void add_name(void *arg, const struct kvs_space *space, const char *name,
                     struct kvb_lineage lineage, uint32_t members)
{
    char hex[KVB_ID_HEX_LEN + 1];
    json_t *entry = tenant_entry(arg, space->tenant);

    kvb_id_format(lineage.id, hex);
    (void)json_array_append_new(json_object_get(entry, "lineages"),
                                json_pack("{s:s, s:s, s:s, s:I}", "weights_name", name, "layout",
                                          space->layout, "id", hex, "members",
                                          (json_int_t)members));
}

static json_t *tenants_json(struct kvp_control *control)
{
    json_t *tenants = json_object();

    kvp_fleet_each(control->config.fleet, add_member, tenants);
    if (control->config.coordinator != NULL) {
        kvs_coordinator_each_name(control->config.coordinator, add_name, tenants);
    }
    return tenants;
}

static void read_tenants(struct kvp_control *control, struct kvp_request *request)
{
    json_t *tenants = tenants_json(control);
    json_t *list = json_array();
    const char *name;
    json_t *entry;

    json_object_foreach(tenants, name, entry)
    {
        (void)json_array_append(list, entry);
    }
    json_decref(tenants);
    reply(control, request, 200, json_pack("{s:o}", "tenants", list), 0);
}

static void read_tenant(struct kvp_control *control, struct kvp_request *request)
{
    json_t *tenants = tenants_json(control);
    json_t *entry = json_incref(json_object_get(tenants, request->path_arg));

    json_decref(tenants);
    if (entry != NULL) {
        reply(control, request, 200, entry, 0);
    } else {
        reply_error(control, request, KVB_ERR_NOT_FOUND, "path.name",
                    "this tenant has neither instances nor named lineages");
    }
}

static void reset_done(struct kvs_coord_request *coord, kvb_status_t status)
{
    struct pending *pending = kvb_container_of(coord, struct pending, coord);

    if (pending->request != NULL && status == KVB_OK) {
        reply(pending->control, pending->request, 200,
              json_pack("{s:b, s:s}", "success", 1, "tenant", pending->tenant), 0);
    } else if (pending->request != NULL) {
        reply_error(pending->control, pending->request, status, NULL,
                    status == KVB_ERR_TIMEOUT
                        ? "all lineages are retired, but an instance has not confirmed that it "
                          "left; it is fenced until it does; try again"
                        : "the coordinator did not take it; nothing was reset; try again");
    }
    pending_free(pending);
}

static void reset_tenant(struct kvp_control *control, struct kvp_request *request)
{
    if (!kvb_name_valid(request->path_arg)) {
        reply_error(control, request, KVB_ERR_NOT_FOUND, "path.name",
                    "a tenant's name has 1 to 63 characters of A-Z a-z 0-9 . _ -");
        return;
    }
    if (control->config.coordinator == NULL) {
        reply(control, request, 200,
              json_pack("{s:b, s:s, s:s}", "success", 1, "tenant", request->path_arg, "message",
                        "no store is configured"),
              0);
        return;
    }
    struct pending *pending = pending_create(control, request);
    if (pending == NULL) {
        reply_error(control, request, KVB_ERR_NO_MEMORY, NULL, "out of memory; try again");
        return;
    }
    strcpy(pending->tenant, request->path_arg); /* a valid name fits */
    pending->coord.done = reset_done;
    kvs_tenant_reset(control->config.coordinator, pending->tenant, NULL,
                     kvb_deadline_in_ms(control->config.clock, control->config.retire_ms),
                     &pending->coord);
}

/* ---- the table ---- */

#define OPERATION(op, fill_, success_)                                                             \
    {                                                                                              \
        .operation = KVP_OP_##op, .fill = (fill_), .success = (success_)                           \
    }
#define READ(read_)                                                                                \
    {                                                                                              \
        .read = (read_)                                                                            \
    }

static const struct action actions[KVP_ROUTE_COUNT] = {
    [KVP_ROUTE_pause] = OPERATION(PAUSE, fill_pause, paused),
    [KVP_ROUTE_resume] = OPERATION(RESUME, fill_nothing, resumed),
    [KVP_ROUTE_sleep] = OPERATION(SLEEP, fill_sleep, sleeping),
    [KVP_ROUTE_wake_up] = OPERATION(WAKE, fill_wake, woken),
    [KVP_ROUTE_release_kv_cache_memory] = OPERATION(RELEASE_KV, fill_nothing, released),
    [KVP_ROUTE_reset_prefix_cache] = OPERATION(RESET, fill_reset, reset_json),
    [KVP_ROUTE_init_weight_transfer_engine] = OPERATION(RELAY, fill_init, transfer_initialized),
    [KVP_ROUTE_start_weight_update] = OPERATION(START_UPDATE, fill_relay, update_started),
    [KVP_ROUTE_update_weights] = OPERATION(UPDATE, need_body, updated),
    [KVP_ROUTE_finish_weight_update] = OPERATION(FINISH_UPDATE, fill_relay, update_finished),
    [KVP_ROUTE_update_weight_version] = OPERATION(SET_VERSION, fill_set_version, version_set),
    [KVP_ROUTE_collective_rpc] = OPERATION(UPDATE, fill_rpc, rpc_results),
    [KVP_ROUTE_weight_info] = READ(read_weight_info),
    [KVP_ROUTE_get_world_size] = READ(read_world_size),
    [KVP_ROUTE_list_instances] = READ(read_instances),
    [KVP_ROUTE_get_instance] = READ(read_instance),
    [KVP_ROUTE_list_operations] = READ(read_operations),
    [KVP_ROUTE_get_operation] = READ(read_operation),
    [KVP_ROUTE_list_tenants] = READ(read_tenants),
    [KVP_ROUTE_get_tenant] = READ(read_tenant),
    [KVP_ROUTE_reset_tenant] = READ(reset_tenant),
};

/* ---- life ---- */

kvb_status_t kvp_control_create(const struct kvp_control_config *config,
                                struct kvp_control **control_p)
{
    struct kvp_control *control = calloc(1, sizeof *control);
    if (control == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    control->config = *config;
    atomic_init(&control->open, 0);
    kvb_list_init(&control->pendings);
    kvb_queue_init(&control->submitted, "control", config->queue_max, config->wake,
                   config->wake_ctx);
    *control_p = control;
    return KVB_OK;
}

kvb_status_t kvp_control_submit(struct kvp_control *control, struct kvp_request *request)
{
    if (atomic_fetch_add(&control->open, 1) >= control->config.queue_max) {
        atomic_fetch_sub(&control->open, 1);
        return KVB_ERR_AGAIN;
    }
    kvb_status_t status = kvb_queue_put(&control->submitted, &request->item);
    if (status != KVB_OK) {
        atomic_fetch_sub(&control->open, 1);
    }
    return status;
}

void kvp_control_run(struct kvp_control *control)
{
    struct kvb_item *item;

    while ((item = kvb_queue_pop(&control->submitted)) != NULL) {
        struct kvp_request *request = kvb_container_of(item, struct kvp_request, item);
        const struct action *action = &actions[request->route->id];
        kvb_log_request(request->request_id);
        if (action->read != NULL) {
            action->read(control, request);
        } else {
            start(control, request);
        }
        kvb_log_request(NULL);
    }
}

static void reply_closed(struct kvp_control *control, struct kvp_request *request)
{
    reply(control, request, 503,
          kvp_error_body(503, NULL,
                         "the daemon is shutting down; what was begun may or may not be done"),
          0);
}

static void drop(void *ctx, struct kvb_item *item)
{
    reply_closed(ctx, kvb_container_of(item, struct kvp_request, item));
}

void kvp_control_close(struct kvp_control *control)
{
    kvb_queue_close(&control->submitted, drop, control);
    kvb_list_each(&control->pendings, link)
    {
        struct pending *pending = kvb_container_of(link, struct pending, link);
        if (pending->request != NULL) {
            struct kvp_request *request = pending->request;
            pending->request = NULL;
            reply_closed(control, request);
        }
    }
}

void kvp_control_destroy(struct kvp_control *control)
{
    if (control != NULL) {
        kvp_control_close(control); /* already done, unless the daemon never started */
        kvb_assert(kvb_list_empty(&control->pendings) && atomic_load(&control->open) == 0);
        kvb_queue_cleanup(&control->submitted);
        free(control);
    }
}
