/* SPDX-License-Identifier: Apache-2.0 */
#include "control/internal.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

#define RPC_PREFIX "collective_rpc:"

const char *kvp_ask_nothing(const struct kvp_request *request, struct kvp_ask *ask,
                            const char **param_p)
{
    (void)request;
    (void)ask;
    (void)param_p;
    return NULL;
}

const char *kvp_ask_pause(const struct kvp_request *request, struct kvp_ask *ask,
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

const char *kvp_ask_sleep(const struct kvp_request *request, struct kvp_ask *ask,
                          const char **param_p)
{
    (void)param_p;
    ask->level = kvp_given(&request->params, KVP_PARAM_level) ? request->params.level
                                                              : KVP_SLEEP_LEVEL_DEFAULT;
    return NULL;
}

const char *kvp_ask_wake(const struct kvp_request *request, struct kvp_ask *ask,
                         const char **param_p)
{
    (void)param_p;
    ask->tags_given = kvp_given(&request->params, KVP_PARAM_tags);
    ask->ntags = request->params.ntags;
    memcpy(ask->tags, request->params.tags, sizeof ask->tags);
    return NULL;
}

const char *kvp_ask_reset(const struct kvp_request *request, struct kvp_ask *ask,
                          const char **param_p)
{
    (void)param_p;
    ask->reset_running_requests = request->params.reset_running_requests;
    return NULL;
}

const char *kvp_ask_update(const struct kvp_request *request, struct kvp_ask *ask,
                           const char **param_p)
{
    (void)ask;
    if (request->json == NULL || json_object_size(request->json) == 0) {
        *param_p = "body";
        return "a JSON object is needed";
    }
    return NULL;
}

const char *kvp_ask_init(const struct kvp_request *request, struct kvp_ask *ask,
                         const char **param_p)
{
    (void)ask;
    if (!json_is_object(json_object_get(request->json, "init_info"))) {
        *param_p = "body.init_info";
        return "init_info, an object, is needed";
    }
    return NULL;
}

const char *kvp_ask_set_version(const struct kvp_request *request, struct kvp_ask *ask,
                                const char **param_p)
{
    if (!kvp_given(&request->params, KVP_PARAM_new_version)) {
        *param_p = "body.new_version";
        return "new_version, a string, is needed";
    }
    strcpy(ask->weight_version, request->params.new_version);
    return NULL;
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

/* SkyRL's worker extension: it pauses first, keeps its requests, and resumes at the end. */
static const char *sleep_for_sync(const json_t *kwargs, struct kvp_ask *ask)
{
    ask->operation = KVP_OP_RELEASE;
    ask->tags_given = json_is_false(json_object_get(kwargs, "offload_kv"));
    ask->ntags = ask->tags_given ? 1 : 0;
    strcpy(ask->tags[0], ask->tags_given ? "weights" : "");
    return NULL;
}

static const char *wake_for_sync(const json_t *kwargs, struct kvp_ask *ask)
{
    const json_t *tags = json_object_get(kwargs, "tags");

    ask->operation = KVP_OP_WAKE;
    ask->keep_pause = true;
    ask->tags_given = json_is_array(tags);
    for (size_t i = 0; i < json_array_size(tags); i++) {
        const char *tag = json_string_value(json_array_get(tags, i));
        if (tag == NULL || strlen(tag) >= KVB_NAME_MAX || i == KVB_TAGS_MAX ||
            !kvb_utf8_printable(tag, strlen(tag))) {
            return "kwargs.tags, a list of at most 8 names, is needed";
        }
        strcpy(ask->tags[ask->ntags++], tag);
    }
    return NULL;
}

/* Methods that free or map memory and are known well enough to be done here. */
static const struct {
    const char *method;
    const char *(*fill)(const json_t *kwargs, struct kvp_ask *ask);
} memory_methods[] = {
    {"skyrl_sleep_for_weight_sync", sleep_for_sync},
    {"skyrl_wake_for_weight_sync", wake_for_sync},
};

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

const char *kvp_ask_rpc(const struct kvp_request *request, struct kvp_ask *ask,
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
    if (!kvb_utf8_printable(method, strlen(method))) {
        return "the name of the method has control characters"; /* the link takes none */
    }
    for (size_t i = 0; i < sizeof refused_methods / sizeof refused_methods[0]; i++) {
        if (strcmp(method, refused_methods[i].method) == 0) {
            return refused_methods[i].message;
        }
    }
    for (size_t i = 0; i < sizeof memory_methods / sizeof memory_methods[0]; i++) {
        if (strcmp(method, memory_methods[i].method) == 0) {
            *param_p = "body.kwargs";
            return memory_methods[i].fill(json_object_get(request->json, "kwargs"), ask);
        }
    }
    snprintf(ask->method, sizeof ask->method, RPC_PREFIX "%s", method);
    ask->operation = kvp_method_changes_weights(method) ? KVP_OP_UPDATE : KVP_OP_RELAY;
    return NULL;
}

/* ---- routes of SGLang and of those who drive it ---- */

const char *kvp_ask_release(const struct kvp_request *request, struct kvp_ask *ask,
                            const char **param_p)
{
    return kvp_ask_wake(request, ask, param_p); /* the tags */
}

const char *kvp_ask_resume_memory(const struct kvp_request *request, struct kvp_ask *ask,
                                  const char **param_p)
{
    ask->keep_pause = true;
    return kvp_ask_wake(request, ask, param_p);
}

const char *kvp_ask_flush(const struct kvp_request *request, struct kvp_ask *ask,
                          const char **param_p)
{
    (void)request;
    (void)param_p;
    ask->at_once = true;
    return NULL;
}

/* Its clients flush by a call of their own. */
const char *kvp_ask_pause_generation(const struct kvp_request *request, struct kvp_ask *ask,
                                     const char **param_p)
{
    (void)param_p;
    ask->clear_cache = request->params.clear_cache;
    return NULL;
}

/* Of SGLang's actions one writes garbage over the weights; an unknown one may. */
const char *kvp_ask_check_weights(const struct kvp_request *request, struct kvp_ask *ask,
                                  const char **param_p)
{
    static const char *const reading[] = {"snapshot", "compare", "checksum"};
    const char *action = json_string_value(json_object_get(request->json, "action"));

    if (action == NULL) {
        *param_p = "body.action";
        return "action, a string, is needed";
    }
    for (size_t i = 0; i < sizeof reading / sizeof reading[0]; i++) {
        if (strcmp(action, reading[i]) == 0) {
            ask->operation = KVP_OP_RELAY;
        }
    }
    return NULL;
}

const char *kvp_ask_lora(const struct kvp_request *request, struct kvp_ask *ask,
                         const char **param_p)
{
    (void)ask;
    if (!json_is_string(json_object_get(request->json, "lora_name"))) {
        *param_p = "body.lora_name";
        return "lora_name, a string, is needed";
    }
    return NULL;
}

/* Dynamo's worker routes: the path says the verb, or engine_rpc in the body what is relayed. */
const char *kvp_ask_engine_call(const struct kvp_request *request, struct kvp_ask *ask,
                                const char **param_p)
{
    static const struct {
        const char *name;
        enum kvp_operation operation;
    } calls[] = {
        {"pause_generation", KVP_OP_PAUSE},
        {"resume_generation", KVP_OP_RESUME},
        {"init_weights_update_group", KVP_OP_RELAY},
        {"init_weight_transfer_engine", KVP_OP_RELAY},
        {"destroy_weights_update_group", KVP_OP_RELAY},
        {"start_weight_update", KVP_OP_START_UPDATE},
        {"update_weights", KVP_OP_UPDATE},
        {"update_weights_from_distributed", KVP_OP_UPDATE},
        {"update_weights_from_disk", KVP_OP_UPDATE},
        {"update_weights_from_tensor", KVP_OP_UPDATE},
        {"finish_weight_update", KVP_OP_FINISH_UPDATE},
    };
    const char *rpc = json_string_value(json_object_get(request->json, "engine_rpc"));
    const char *name = rpc != NULL ? rpc : request->path_arg;

    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (strcmp(name, calls[i].name) != 0) {
            continue;
        }
        ask->operation = calls[i].operation;
        if (ask->operation == KVP_OP_PAUSE) {
            return kvp_ask_pause(request, ask, param_p);
        }
        ask->wakes = ask->operation == KVP_OP_RESUME;
        if (!ask->wakes) {
            snprintf(ask->method, sizeof ask->method, "%s", calls[i].name);
        }
        return NULL;
    }
    *param_p = rpc != NULL ? "body.engine_rpc" : "path.name";
    return "there is no such call of an engine here";
}

#define GENERATE_MS 20000u

const char *kvp_ask_generate(const struct kvp_request *request, struct kvp_ask *ask,
                             const char **param_p)
{
    (void)request;
    (void)param_p;
    ask->bound_ms = GENERATE_MS;
    return NULL;
}
