/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each control route does: one table, `actions`. A route either starts an operation of the
 * fleet (fill the ask, later encode its outcome) or reads and replies at once. Who replies: exactly
 * one of start() (refused), the route's read(), started() (respond-async), operation_done(), the
 * tenant's reset, the answer about an object, and kvp_control_close() for what is open then. What
 * was started ends here also after that, without a client.
 */
#include "control/internal.h"
#include "http/errors.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kvp_action actions[KVP_ROUTE_COUNT];

/* ---- replying ---- */

void kvp_control_reply(struct kvp_control *control, struct kvp_request *request,
                       unsigned http_status, json_t *body, unsigned retry_after_s)
{
    kvp_inbox_reply(&control->inbox, request, http_status, body, retry_after_s);
}

void kvp_control_reply_error(struct kvp_control *control, struct kvp_request *request,
                             kvb_status_t status, const char *param, const char *message)
{
    kvp_inbox_reply_error(&control->inbox, request, status, param, message);
}

/* ---- operations ---- */

void kvp_pending_free(struct kvp_pending *pending)
{
    kvb_list_remove(&pending->link);
    kvb_list_remove(&pending->wait_link);
    kvb_sched_timer_clear(pending->control->config.sched, &pending->timer);
    free(pending->body);
    free(pending);
}

struct kvp_pending *kvp_pending_create(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_pending *pending = calloc(1, sizeof *pending);
    if (pending != NULL) {
        pending->control = control;
        pending->request = request;
        pending->action = &actions[request->route->id];
        pending->params = request->params;
        kvb_timer_init(&pending->timer, NULL);
        kvb_list_init(&pending->wait_link);
        kvb_list_push_back(&control->pendings, &pending->link);
    }
    return pending;
}

json_t *kvp_failure_body(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    const struct kvp_request *request = pending->request;
    unsigned http_status = kvp_error_http(outcome->status);
    const char *param = NULL;

    if (outcome->status == KVB_ERR_NOT_FOUND ||
        (outcome->status == KVB_ERR_INVALID && request != NULL && request->instance[0] == '\0' &&
         kvp_fleet_count(pending->control->config.fleet) > 1)) {
        param = "query.instance";
    }
    json_t *body = kvp_error_body(http_status, param, kvp_outcome_message(outcome));
    kvp_json_set_text(body, "status", kvb_status_label(outcome->status));
    kvp_json_set_side(body, outcome->side, outcome->at);
    if (outcome->operation_id != 0) {
        kvp_json_set_u64(body, "operation_id", outcome->operation_id);
    }
    if (outcome->view != NULL) {
        (void)json_object_set_new(body, "state", kvp_state_json(outcome->view));
    }
    if (pending->action->plain) {
        (void)json_object_set_new(body, "success", json_false());
        kvp_json_set_text(body, "message", kvp_outcome_message(outcome));
    }
    return body;
}

static void reply_failure(struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    kvp_control_reply(pending->control, pending->request, kvp_error_http(outcome->status),
                      kvp_failure_body(pending, outcome), kvp_error_retry_s(outcome->status));
}

/* The request itself was at fault, rather than the operation. */
static bool request_fault(const struct kvp_outcome *outcome)
{
    return outcome->status == KVB_ERR_INVALID || outcome->status == KVB_ERR_NOT_FOUND;
}

/* Trainers take any other answer than 200 {"success":…} for a fault of the server and retry for
 * ever or stop; only those who asked to be told by the status are. */
static bool finish_reset(struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    struct kvp_outcome told = *outcome;

    if (request_fault(outcome)) {
        reply_failure(pending, outcome);
        return true;
    }

    if (pending->params.strict && !kvp_reset_succeeded(pending, outcome)) {
        told.status = outcome->status != KVB_OK ? outcome->status : KVB_ERR_UNAVAILABLE;
        json_t *body =
            kvp_error_body(kvp_error_http(told.status), NULL, kvp_outcome_message(&told));
        (void)json_object_update_missing_new(body, kvp_answer_reset(pending, &told));
        kvp_control_reply(pending->control, pending->request, kvp_error_http(told.status), body,
                          kvp_error_retry_s(told.status));
        return true;
    }
    kvp_control_reply(pending->control, pending->request, 200, kvp_answer_reset(pending, outcome),
                      0);
    return true;
}

#define FLUSH_AGAIN_MS 100u

static kvb_status_t ask_fleet(struct kvp_pending *pending, uint64_t *operation_id_p);

static void on_flush_again(struct kvb_timer *timer)
{
    struct kvp_pending *pending = kvb_container_of(timer, struct kvp_pending, timer);
    kvb_status_t status = pending->request != NULL ? ask_fleet(pending, NULL) : KVB_ERR_CANCELED;

    if (status == KVB_OK) {
        return;
    }
    if (pending->request != NULL) {
        reply_failure(pending,
                      &(struct kvp_outcome){.status = status, .side = kvp_side_of(status)});
    }
    kvp_pending_free(pending);
}

/* SGLang's contract: busy is 400, at once, and the client comes again; or ?timeout= has it tried
 * here for so long. */
static bool finish_flush(struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    struct kvp_control *control = pending->control;
    uint64_t next_ns = kvb_deadline_in_ms(control->config.clock, FLUSH_AGAIN_MS);

    if (outcome->status != KVB_ERR_BUSY) {
        reply_failure(pending, outcome);
        return true;
    }
    if (next_ns < pending->until_ns) {
        pending->timer.fn = on_flush_again;
        kvb_sched_timer_set(control->config.sched, &pending->timer, next_ns);
        return false;
    }
    json_t *body = kvp_error_body(400, NULL, kvp_outcome_message(outcome));
    (void)json_object_set_new(body, "success", json_false());
    kvp_json_set_text(body, "message", kvp_outcome_message(outcome));
    kvp_json_set_side(body, outcome->side, outcome->at);
    kvp_json_set_u64(body, "blocks_held", outcome->blocks_held);
    kvp_control_reply(control, pending->request, 400, body, 0);
    return true;
}

static void operation_done(void *arg, const struct kvp_outcome *outcome)
{
    struct kvp_pending *pending = arg;
    const struct kvp_action *action = pending->action;

    if (pending->request == NULL) {
        ; /* nobody listens any more */
    } else if (outcome->status == KVB_OK && action->success != NULL) {
        kvp_control_reply(pending->control, pending->request, 200,
                          action->success(pending, outcome), 0);
    } else if (action->finish == NULL) {
        reply_failure(pending, outcome);
    } else if (!action->finish(pending, outcome)) {
        return;
    }
    kvp_pending_free(pending);
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
void kvp_control_started(struct kvp_pending *pending, uint64_t operation_id)
{
    struct kvp_request *request = pending->request;

    pending->request = NULL;
    snprintf(request->location, sizeof request->location, "/v1/kvplane/operations/%llu",
             (unsigned long long)operation_id);
    kvp_control_reply(pending->control, request, 202,
                      json_pack("{s:s, s:I, s:s}", "status", "started", "operation_id",
                                (json_int_t)operation_id, "location", request->location),
                      0);
}

bool kvp_means_all(const struct kvp_control *control, const struct kvp_request *request)
{
    return control->config.verbs_for_all && request->instance[0] == '\0' &&
           kvp_fleet_count(control->config.fleet) > 1;
}

/* A level-0 sleep gives nothing up. Waking is never refused: an engine may come asleep. */
static bool gives_memory_up(const struct kvp_ask *ask)
{
    return (ask->operation == KVP_OP_SLEEP && ask->level > 0) ||
           ask->operation == KVP_OP_RELEASE_KV || ask->operation == KVP_OP_RELEASE;
}

static kvb_status_t ask_fleet(struct kvp_pending *pending, uint64_t *operation_id_p)
{
    struct kvp_request *request = pending->request;

    return kvp_fleet_request(pending->control->config.fleet,
                             request->instance[0] != '\0' ? request->instance : NULL, &pending->ask,
                             request->request_id, operation_done, pending, operation_id_p);
}

void kvp_control_start(struct kvp_control *control, struct kvp_request *request)
{
    const struct kvp_action *action = &actions[request->route->id];
    struct kvp_ask ask = {.operation = action->operation};
    const char *param = NULL;
    uint64_t operation_id = 0;

    fill_common(request, &ask);
    if (action->relay != NULL) {
        snprintf(ask.method, sizeof ask.method, "%s", action->relay);
    }
    const char *wrong = action->fill(request, &ask, &param);
    if (wrong != NULL) {
        kvp_control_reply_error(control, request, KVB_ERR_INVALID, param, wrong);
        return;
    }
    if (control->config.never_sleeps && gives_memory_up(&ask)) {
        kvp_control_reply_error(control, request, KVB_ERR_UNSUPPORTED, NULL,
                                "sleep mode is off: nothing was done; start the daemon with "
                                "--sleep-mode to have engines give their memory up");
        return;
    }
    struct kvp_pending *pending = kvp_pending_create(control, request);
    if (pending == NULL) {
        kvp_control_reply_error(control, request, KVB_ERR_NO_MEMORY, NULL,
                                "out of memory; try again");
        return;
    }
    pending->ask = ask;
    pending->body = request->body;
    pending->until_ns = kvb_deadline_in_ms(control->config.clock, request->params.timeout);
    request->body = NULL;
    bool every = strcmp(request->instance, KVP_EVERY_INSTANCE) == 0 ||
                 (action->read == NULL && kvp_means_all(control, request));
    kvb_status_t status = KVB_OK;
    if (every) {
        operation_id = kvp_fan_start(pending); /* 0: pending has gone, too */
    } else {
        status = ask_fleet(pending, &operation_id);
    }
    if (status != KVB_OK) {
        kvp_pending_free(pending);
        kvp_control_reply_error(control, request, status, NULL, "out of memory; try again");
        return;
    }
    if (operation_id != 0 && request->respond_async) {
        kvp_control_started(pending, operation_id);
    }
}

/* ---- the table ---- */

#define OPERATION(op, fill_, success_, ...)                                                        \
    {                                                                                              \
        .operation = KVP_OP_##op, .fill = (fill_), .success = (success_), __VA_ARGS__              \
    }
/* What the engine is to do: `method` is what the link calls it. */
#define RELAYED(op, method, fill_, text_)                                                          \
    OPERATION(op, fill_, kvp_answer_relayed, .relay = (method), .text = (text_))
/* The same, for clients that read `success` and `message`. */
#define PLAIN(op, fill_, text_)                                                                    \
    OPERATION(op, fill_, kvp_answer_plain, .text = (text_), .plain = true)
#define PLAIN_RELAYED(op, method, fill_, text_)                                                    \
    OPERATION(op, fill_, kvp_answer_plain, .relay = (method), .text = (text_), .plain = true)
#define READ(read_)                                                                                \
    {                                                                                              \
        .read = (read_)                                                                            \
    }

#define FLUSH                                                                                      \
    OPERATION(RESET, kvp_ask_flush, kvp_answer_plain, .text = "Cache flushed", .plain = true,      \
              .finish = finish_flush)
#define RELEASE       PLAIN(RELEASE, kvp_ask_release, "Memory released")
#define RESUME_MEMORY PLAIN(WAKE, kvp_ask_resume_memory, "Memory resumed")
#define INFO(method)                                                                               \
    {                                                                                              \
        .read = kvp_read_info, .operation = KVP_OP_RELAY, .relay = (method),                       \
        .fill = kvp_ask_generate, .finish = kvp_finish_info                                        \
    }
#define GENERATE                                                                                   \
    {                                                                                              \
        .read = kvp_read_health_generate, .operation = KVP_OP_RELAY, .relay = "health_generate",   \
        .fill = kvp_ask_generate, .finish = kvp_finish_health_generate                             \
    }

static const struct kvp_action actions[KVP_ROUTE_COUNT] = {
    [KVP_ROUTE_pause] = OPERATION(PAUSE, kvp_ask_pause, kvp_answer_paused),
    [KVP_ROUTE_resume] = OPERATION(RESUME, kvp_ask_nothing, kvp_answer_resumed),
    [KVP_ROUTE_sleep] = OPERATION(SLEEP, kvp_ask_sleep, kvp_answer_sleeping),
    [KVP_ROUTE_wake_up] = OPERATION(WAKE, kvp_ask_wake, kvp_answer_woken),
    [KVP_ROUTE_release_kv_cache_memory] =
        OPERATION(RELEASE_KV, kvp_ask_nothing, kvp_answer_released),
    [KVP_ROUTE_reset_prefix_cache] = OPERATION(RESET, kvp_ask_reset, NULL, .finish = finish_reset),
    [KVP_ROUTE_init_weight_transfer_engine] =
        RELAYED(RELAY, "init_weight_transfer_engine", kvp_ask_init, "Weight transfer initialized"),
    [KVP_ROUTE_start_weight_update] =
        RELAYED(START_UPDATE, "start_weight_update", kvp_ask_nothing, "Weight update started"),
    [KVP_ROUTE_start_draft_weight_update] = RELAYED(START_UPDATE, "start_draft_weight_update",
                                                    kvp_ask_nothing, "Draft weight update started"),
    [KVP_ROUTE_update_weights] =
        RELAYED(UPDATE, "update_weights", kvp_ask_update, "Weights updated"),
    [KVP_ROUTE_finish_weight_update] =
        RELAYED(FINISH_UPDATE, "finish_weight_update", kvp_ask_nothing, "Weight update finished"),
    [KVP_ROUTE_update_weight_version] = OPERATION(
        SET_VERSION, kvp_ask_set_version, kvp_answer_version_set, .relay = "update_weight_version"),
    [KVP_ROUTE_collective_rpc] = OPERATION(UPDATE, kvp_ask_rpc, kvp_answer_rpc_results),
    [KVP_ROUTE_weight_checker] =
        RELAYED(UPDATE, "weights_checker", kvp_ask_check_weights, "Weights checked"),
    [KVP_ROUTE_abort_requests] =
        OPERATION(RELAY, kvp_ask_nothing, kvp_answer_aborted, .relay = "abort_requests"),
    [KVP_ROUTE_reset_mm_cache] =
        PLAIN_RELAYED(RELAY, "reset_mm_cache", kvp_ask_nothing, "Multimodal cache reset"),
    [KVP_ROUTE_reset_encoder_cache] =
        PLAIN_RELAYED(RELAY, "reset_encoder_cache", kvp_ask_nothing, "Encoder cache reset"),
    [KVP_ROUTE_load_lora_adapter] =
        RELAYED(UPDATE, "load_lora_adapter", kvp_ask_lora, "LoRA adapter loaded"),
    [KVP_ROUTE_unload_lora_adapter] =
        RELAYED(RELAY, "unload_lora_adapter", kvp_ask_lora, "LoRA adapter unloaded"),
    [KVP_ROUTE_weight_info] = READ(kvp_read_weight_info),
    [KVP_ROUTE_get_world_size] = READ(kvp_read_world_size),
    [KVP_ROUTE_server_info] = INFO("server_info"),
    [KVP_ROUTE_load] = READ(kvp_read_load),

    [KVP_ROUTE_release_memory_occupation] = RELEASE,
    [KVP_ROUTE_get_release_memory] = RELEASE,
    [KVP_ROUTE_release_memory] = RELEASE,
    [KVP_ROUTE_resume_memory_occupation] = RESUME_MEMORY,
    [KVP_ROUTE_get_resume_memory] = RESUME_MEMORY,
    [KVP_ROUTE_resume_memory] = RESUME_MEMORY,
    [KVP_ROUTE_flush_cache] = FLUSH,
    [KVP_ROUTE_get_flush_cache] = FLUSH,
    [KVP_ROUTE_pause_generation] = PLAIN(PAUSE, kvp_ask_pause_generation, "Generation paused"),
    [KVP_ROUTE_continue_generation] = PLAIN(RESUME, kvp_ask_nothing, "Generation continued"),
    [KVP_ROUTE_abort_request] = PLAIN_RELAYED(RELAY, "abort_request", kvp_ask_nothing, "Aborted"),
    [KVP_ROUTE_init_weights_update_group] = PLAIN_RELAYED(
        RELAY, "init_weights_update_group", kvp_ask_nothing, "Weight update group initialized"),
    [KVP_ROUTE_destroy_weights_update_group] = PLAIN_RELAYED(
        RELAY, "destroy_weights_update_group", kvp_ask_nothing, "Weight update group destroyed"),
    [KVP_ROUTE_update_weights_from_disk] =
        PLAIN_RELAYED(UPDATE, "update_weights_from_disk", kvp_ask_nothing, "Weights updated"),
    [KVP_ROUTE_update_weights_from_tensor] =
        PLAIN_RELAYED(UPDATE, "update_weights_from_tensor", kvp_ask_nothing, "Weights updated"),
    [KVP_ROUTE_update_weights_from_distributed] = PLAIN_RELAYED(
        UPDATE, "update_weights_from_distributed", kvp_ask_nothing, "Weights updated"),
    [KVP_ROUTE_update_weights_from_ipc] =
        PLAIN_RELAYED(UPDATE, "update_weights_from_ipc", kvp_ask_nothing, "Weights updated"),
    [KVP_ROUTE_weights_checker] =
        PLAIN_RELAYED(UPDATE, "weights_checker", kvp_ask_check_weights, "Weights checked"),
    [KVP_ROUTE_get_server_info] = INFO("server_info"),
    [KVP_ROUTE_model_info] = INFO("model_info"),
    [KVP_ROUTE_get_model_info] = INFO("model_info"),
    [KVP_ROUTE_get_weight_version] = READ(kvp_read_weight_info),
    [KVP_ROUTE_get_load] = READ(kvp_read_get_load),
    [KVP_ROUTE_list_loads] = READ(kvp_read_loads),
    [KVP_ROUTE_health_generate] = GENERATE,
    [KVP_ROUTE_health_generate_original] = GENERATE,

    [KVP_ROUTE_areal_pause_generation] = PLAIN(PAUSE, kvp_ask_pause, "Generation paused"),
    [KVP_ROUTE_areal_continue_generation] = PLAIN(RESUME, kvp_ask_nothing, "Generation continued"),
    [KVP_ROUTE_areal_update_weights] =
        PLAIN_RELAYED(UPDATE, "areal_update_weights", kvp_ask_nothing, "Weights updated"),
    [KVP_ROUTE_areal_update_weights_xccl] =
        PLAIN_RELAYED(UPDATE, "areal_update_weights_xccl", kvp_ask_nothing, "Weights updated"),
    [KVP_ROUTE_areal_init_weights_update_group] =
        PLAIN_RELAYED(RELAY, "areal_init_weights_update_group", kvp_ask_nothing,
                      "Weight update group initialized"),
    [KVP_ROUTE_areal_set_update_weight_meta] =
        PLAIN_RELAYED(RELAY, "areal_set_update_weight_meta", kvp_ask_nothing, "Meta data taken"),
    [KVP_ROUTE_init_communicator] =
        RELAYED(RELAY, "init_communicator", kvp_ask_nothing, "Communicator initialized"),
    [KVP_ROUTE_update_named_param] =
        RELAYED(UPDATE, "update_named_param", kvp_ask_nothing, "Parameter updated"),
    [KVP_ROUTE_batch_update_named_params] =
        RELAYED(UPDATE, "batch_update_named_params", kvp_ask_nothing, "Parameters updated"),
    [KVP_ROUTE_close_communicator] =
        RELAYED(RELAY, "close_communicator", kvp_ask_nothing, "Communicator closed"),
    [KVP_ROUTE_engine_call] = PLAIN(RELAY, kvp_ask_engine_call, "Done"),

    [KVP_ROUTE_list_instances] = READ(kvp_read_instances),
    [KVP_ROUTE_get_instance] = READ(kvp_read_instance),
    [KVP_ROUTE_list_regions] = READ(kvp_read_regions),
    [KVP_ROUTE_list_queues] = READ(kvp_read_queues),
    [KVP_ROUTE_list_operations] = READ(kvp_read_operations),
    [KVP_ROUTE_get_operation] = READ(kvp_read_operation),
    [KVP_ROUTE_cancel_operation] = READ(kvp_cancel_operation),
    [KVP_ROUTE_list_events] = READ(kvp_read_events),
    [KVP_ROUTE_get_cluster] = READ(kvp_read_cluster),
    [KVP_ROUTE_list_nodes] = READ(kvp_read_nodes),
    [KVP_ROUTE_get_node] = READ(kvp_read_node),
    [KVP_ROUTE_list_tenants] = READ(kvp_read_tenants),
    [KVP_ROUTE_get_tenant] = READ(kvp_read_tenant),
    [KVP_ROUTE_reset_tenant] = READ(kvp_reset_tenant),
    [KVP_ROUTE_remove_tenant] = READ(kvp_remove_tenant),
    [KVP_ROUTE_set_quota] = READ(kvp_set_quota),
    [KVP_ROUTE_list_existing] = READ(kvp_read_existing),
    [KVP_ROUTE_get_object] = READ(kvp_read_object),
    [KVP_ROUTE_remove_object] = READ(kvp_remove_object),
    [KVP_ROUTE_pin_object] = READ(kvp_pin_object),
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
    kvb_list_init(&control->pendings);
    kvb_list_init(&control->questions);
    kvb_list_init(&control->listings);
    kvb_list_init(&control->owns);
    kvp_inbox_init(&control->inbox, config->queue_max, config->wake, config->wake_ctx);
    *control_p = control;
    return KVB_OK;
}

struct kvp_inbox *kvp_control_inbox(struct kvp_control *control)
{
    return &control->inbox;
}

void kvp_control_run(struct kvp_control *control)
{
    struct kvp_request *request;

    while ((request = kvp_inbox_next(&control->inbox)) != NULL) {
        const struct kvp_action *action = &actions[request->route->id];
        kvb_log_request(request->request_id);
        if (action->read != NULL) {
            action->read(control, request);
        } else {
            kvp_control_start(control, request);
        }
        kvb_log_request(NULL);
    }
}

void kvp_control_close(struct kvp_control *control)
{
    control->closing = true;
    kvp_inbox_close(&control->inbox);
    kvb_list_each(&control->pendings, link)
    {
        struct kvp_pending *pending = kvb_container_of(link, struct kvp_pending, link);
        if (pending->request != NULL) {
            struct kvp_request *request = pending->request;
            pending->request = NULL;
            kvp_inbox_reply_closed(&control->inbox, request);
        }
        if (kvb_timer_armed(&pending->timer)) { /* nothing else would end it */
            kvp_fleet_forget(control->config.fleet, pending);
            kvp_pending_free(pending);
        }
    }
    kvp_objects_close(control);
    kvp_listings_close(control);
}

bool kvp_control_quiet(const struct kvp_control *control)
{
    return kvb_list_empty(&control->questions) && kvb_list_empty(&control->listings);
}

void kvp_control_settle(struct kvp_control *control)
{
    if (kvp_control_quiet(control) && control->config.quiet != NULL) {
        control->config.quiet(control->config.quiet_ctx);
    }
}

void kvp_control_destroy(struct kvp_control *control)
{
    if (control != NULL) {
        kvp_control_close(control); /* already done, unless the daemon never started */
        kvb_assert(kvb_list_empty(&control->pendings) && kvp_control_quiet(control));
        kvp_owns_destroy_ended(control);
        kvp_inbox_cleanup(&control->inbox);
        free(control);
    }
}
