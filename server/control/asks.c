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

const char *kvp_ask_relay(const struct kvp_request *request, struct kvp_ask *ask,
                          const char **param_p)
{
    (void)param_p;
    snprintf(ask->method, sizeof ask->method, "%s", request->route->operation);
    return NULL;
}

const char *kvp_ask_update(const struct kvp_request *request, struct kvp_ask *ask,
                           const char **param_p)
{
    if (request->json == NULL || json_object_size(request->json) == 0) {
        *param_p = "body";
        return "a JSON object is needed";
    }
    return kvp_ask_relay(request, ask, param_p);
}

const char *kvp_ask_init(const struct kvp_request *request, struct kvp_ask *ask,
                         const char **param_p)
{
    if (!json_is_object(json_object_get(request->json, "init_info"))) {
        *param_p = "body.init_info";
        return "init_info, an object, is needed";
    }
    return kvp_ask_relay(request, ask, param_p);
}

const char *kvp_ask_set_version(const struct kvp_request *request, struct kvp_ask *ask,
                                const char **param_p)
{
    if (!kvp_given(&request->params, KVP_PARAM_new_version)) {
        *param_p = "body.new_version";
        return "new_version, a string, is needed";
    }
    strcpy(ask->weight_version, request->params.new_version);
    return kvp_ask_relay(request, ask, param_p);
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
    snprintf(ask->method, sizeof ask->method, RPC_PREFIX "%s", method);
    ask->operation = kvp_method_changes_weights(method) ? KVP_OP_UPDATE : KVP_OP_RELAY;
    return NULL;
}
