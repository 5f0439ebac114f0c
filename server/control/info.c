/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What clients of an inference server ask about it, each in the form that they read. Everything is
 * of the view, but for health_generate.
 */
#include "control/internal.h"

#include "base/assert.h"

#include <string.h>

void kvp_read_weight_info(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_view view;

    if (kvp_find_instance(control, request, &view)) {
        const char *version = view.weight_version[0] != '\0' ? view.weight_version : "default";
        kvp_control_reply(control, request, 200, json_pack("{s:s}", "weight_version", version), 0);
    }
}

static json_int_t world_of(const struct kvp_view *view)
{
    return view->own_world_size > 0 ? view->own_world_size : view->world_size;
}

static void add_world(void *arg, const struct kvp_view *view)
{
    *(json_int_t *)arg += view->attached ? world_of(view) : 0;
}

/* Of a fleet that is spoken to as one, all workers. */
void kvp_read_world_size(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_view view;
    json_int_t all = 0;
    bool every = kvp_means_all(control, request);

    if (!kvp_find_instance(control, request, &view)) {
        return;
    }
    if (!view.attached) {
        kvp_control_reply_error(control, request, KVB_ERR_BAD_STATE, NULL,
                                "not all ranks of the engine are attached");
        return;
    }
    if (every) {
        kvp_fleet_each(control->config.fleet, add_world, &all);
    } else {
        all = world_of(&view);
    }
    kvp_control_reply(control, request, 200, json_pack("{s:I}", "world_size", all), 0);
}

/* vLLM's and SGLang's members in one object. */
static json_t *server_info(const struct kvp_view *view)
{
    json_int_t world = world_of(view);
    json_int_t tp = view->tp_size > 0 && view->own_world_size == 0 ? view->tp_size : world;
    json_int_t pp = tp > 0 ? world / tp : 0;
    json_t *parallel =
        json_pack("{s:I, s:I, s:i, s:i, s:I}", "tensor_parallel_size", tp, "pipeline_parallel_size",
                  pp, "data_parallel_size", 1, "nnodes", 1, "world_size", world);
    return json_pack("{s:s, s:s, s:{s:o}, s:I, s:I, s:i, s:i, s:I, s:s, s:n, s:b}", "version",
                     KVP_VERSION, "model_path", view->model, "vllm_config", "parallel_config",
                     parallel, "tp_size", tp, "pp_size", pp, "dp_size", 1, "nnodes", 1, "num_gpus",
                     world, "disaggregation_mode", "null", "disaggregation_bootstrap_port",
                     "encoder_only", 0);
}

static json_t *model_info(const struct kvp_view *view)
{
    return json_pack("{s:s, s:b, s:s}", "model_path", view->model, "is_generation", 1,
                     "weight_version", view->weight_version);
}

/* ---- which a server that is driven knows better ---- */

static const struct {
    enum kvp_route_id route;
    json_t *(*json)(const struct kvp_view *view);
} infos[] = {{KVP_ROUTE_server_info, server_info},
             {KVP_ROUTE_get_server_info, server_info},
             {KVP_ROUTE_model_info, model_info},
             {KVP_ROUTE_get_model_info, model_info}};

static json_t *info_json(const struct kvp_request *request, const struct kvp_view *view)
{
    for (size_t i = 0; i < sizeof infos / sizeof infos[0]; i++) {
        if (infos[i].route == (enum kvp_route_id)request->route->id) {
            return infos[i].json(view);
        }
    }
    KVB_UNREACHABLE("no such information");
}

void kvp_read_info(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_view view;

    if (!kvp_find_instance(control, request, &view)) {
        return;
    }
    if (view.kind[0] != '\0' && view.attached) {
        strcpy(request->instance, view.instance);
        kvp_control_start(control, request);
    } else {
        kvp_control_reply(control, request, 200, info_json(request, &view), 0);
    }
}

/* Of what is known, what it says itself. */
static void correct(json_t *known, const json_t *told)
{
    const char *key;
    json_t *value;
    json_object_foreach(known, key, value)
    {
        json_t *its = json_object_get(told, key);
        if (json_is_object(value) && json_is_object(its)) {
            correct(value, its);
        } else if (its != NULL && json_typeof(its) == json_typeof(value)) {
            (void)json_object_set(known, key, its);
        }
    }
}

/* What it says, and of what it does not say what is known here. */
bool kvp_finish_info(struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    struct kvp_view view;
    json_t *told = outcome->status != KVB_OK || outcome->relay_len == 0
                       ? NULL
                       : json_loadb(outcome->relay_body, outcome->relay_len, 0, NULL);

    if (!kvp_fleet_view(pending->control->config.fleet, pending->request->instance, &view)) {
        json_decref(told);
        kvp_control_reply_error(pending->control, pending->request, KVB_ERR_UNAVAILABLE, NULL,
                                kvp_outcome_message(outcome));
        return true;
    }
    json_t *known = info_json(pending->request, &view);
    if (json_is_object(told)) {
        correct(known, told);
        (void)json_object_set(known, "result", told);
    }
    json_decref(told);
    kvp_control_reply(pending->control, pending->request, 200, known, 0);
    return true;
}

/* ---- load: every form falls to zero when nothing runs, waits or loads ---- */

static json_int_t running(const struct kvp_view *view)
{
    return (json_int_t)view->load.running + view->load.loading;
}

static json_int_t all_requests(const struct kvp_view *view)
{
    return running(view) + view->load.waiting;
}

void kvp_read_load(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_view view;

    if (kvp_find_instance(control, request, &view)) {
        kvp_control_reply(control, request, 200,
                          json_pack("{s:I, s:I, s:I, s:{s:I, s:I}}", "server_load",
                                    all_requests(&view), "num_requests", all_requests(&view),
                                    "inflight", running(&view), "queues", "running", running(&view),
                                    "waiting", (json_int_t)view.load.waiting),
                          0);
    }
}

static json_t *load_json(const struct kvp_view *view)
{
    return json_pack("{s:i, s:I, s:I, s:I, s:I}", "dp_rank", 0, "num_reqs", all_requests(view),
                     "num_total_reqs", all_requests(view), "num_running_reqs", running(view),
                     "num_waiting_reqs", (json_int_t)view->load.waiting);
}

void kvp_read_get_load(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_view view;

    if (kvp_find_instance(control, request, &view)) {
        kvp_control_reply(control, request, 200, json_pack("[o]", load_json(&view)), 0);
    }
}

void kvp_read_loads(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_view view;

    if (kvp_find_instance(control, request, &view)) {
        kvp_control_reply(control, request, 200,
                          json_pack("{s:i, s:[o]}", "dp_rank_count", 1, "loads", load_json(&view)),
                          0);
    }
}

/* ---- health_generate ---- */

static json_t *generated_json(bool generated)
{
    return json_pack("{s:s, s:b, s:b}", "status", "ok", "success", 1, "generated", generated);
}

struct worst {
    struct kvp_view *view;
    bool first;
};

/* Of a fleet that is spoken to as one: who is not there, else who can be asked, else any. */
static void keep_worst(void *arg, const struct kvp_view *view)
{
    struct worst *worst = arg;
    bool gone = !worst->first && (!worst->view->attached || worst->view->degraded);

    if (worst->first || !view->attached || view->degraded || (!gone && view->ready)) {
        *worst->view = *view;
        worst->first = false;
    }
}

/* Probes of Kubernetes ask it too, and one that fails ends the pod: an engine that is stopped or
 * asleep, as it was told, is well. */
void kvp_read_health_generate(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_view view = {.attached = false};
    struct worst worst = {.view = &view, .first = true};

    if (kvp_fleet_count(control->config.fleet) == 0) {
        kvp_control_reply_error(control, request, KVB_ERR_UNAVAILABLE, NULL,
                                "no engine has attached yet");
        return;
    }
    if (kvp_means_all(control, request)) {
        kvp_fleet_each(control->config.fleet, keep_worst, &worst);
        snprintf(request->instance, sizeof request->instance, "%s", view.instance);
    } else if (!kvp_find_instance(control, request, &view)) {
        return;
    }
    if (!view.attached || view.degraded) {
        kvp_control_reply_error(control, request, KVB_ERR_UNAVAILABLE, NULL,
                                view.degraded ? "the engine is degraded"
                                              : "not all ranks of the engine are attached");
    } else if (!view.ready) {
        kvp_control_reply(control, request, 200, generated_json(false), 0);
    } else {
        kvp_control_start(control, request);
    }
}

bool kvp_finish_health_generate(struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    bool lacks = outcome->status == KVB_ERR_UNSUPPORTED; /* the engine has no such call */

    if (outcome->status == KVB_OK || lacks) {
        kvp_control_reply(pending->control, pending->request, 200, generated_json(!lacks), 0);
    } else {
        kvp_control_reply_error(pending->control, pending->request, KVB_ERR_UNAVAILABLE, NULL,
                                kvp_outcome_message(outcome));
    }
    return true;
}
