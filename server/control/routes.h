/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONTROL_ROUTES_H
#define SERVER_CONTROL_ROUTES_H

#include "http/routes.h"

/* Every route of the daemon, once; the contract is api/openapi.yaml. */
/* clang-format off */
#define KVP_ROUTES(X) \
    /* method path                              operation                    role   where    body   parameters */ \
    X(GET,  "/",                                page,                        READ,  STATIC,  SMALL, 0) \
    X(GET,  "/page/{name}",                     page_file,                   READ,  STATIC,  SMALL, 0) \
    X(GET,  "/health",                          health,                      READ,  PROBE,   SMALL, 0) \
    X(GET,  "/livez",                           livez,                       READ,  PROBE,   SMALL, 0) \
    X(GET,  "/readyz",                          readyz,                      READ,  PROBE,   SMALL, 0) \
    X(GET,  "/startupz",                        startupz,                    READ,  PROBE,   SMALL, 0) \
    X(GET,  "/metrics",                         metrics,                     READ,  PROBE,   SMALL, 0) \
    X(GET,  "/version",                         version,                     READ,  PROBE,   SMALL, 0) \
    X(GET,  "/openapi.yaml",                    openapi,                     READ,  PROBE,   SMALL, 0) \
    X(GET,  "/is_paused",                       is_paused,                   READ,  PROBE,   SMALL, INSTANCE) \
    X(GET,  "/is_sleeping",                     is_sleeping,                 READ,  PROBE,   SMALL, INSTANCE) \
    X(POST, "/pause",                           pause,                       ADMIN, CONTROL, SMALL, FLEET | P(mode) | P(clear_cache) | P(wait_for_inflight_requests) | P(reset_external)) \
    X(POST, "/resume",                          resume,                      ADMIN, CONTROL, SMALL, FLEET) \
    X(POST, "/sleep",                           sleep,                       ADMIN, CONTROL, SMALL, FLEET | P(level) | P(mode) | P(reset_external)) \
    X(POST, "/wake_up",                         wake_up,                     ADMIN, CONTROL, SMALL, FLEET | P(tags) | P(weight_version)) \
    X(POST, "/release_kv_cache_memory",         release_kv_cache_memory,     ADMIN, CONTROL, SMALL, FLEET | P(reset_external)) \
    X(POST, "/reset_prefix_cache",              reset_prefix_cache,          ADMIN, CONTROL, SMALL, FLEET | P(reset_running_requests) | P(reset_external) | P(strict)) \
    X(POST, "/init_weight_transfer_engine",     init_weight_transfer_engine, ADMIN, CONTROL, RELAY, INSTANCE) \
    X(POST, "/start_weight_update",             start_weight_update,         ADMIN, CONTROL, RELAY, FLEET | P(weight_version)) \
    X(POST, "/update_weights",                  update_weights,              ADMIN, CONTROL, RELAY, FLEET | P(weight_version)) \
    X(POST, "/finish_weight_update",            finish_weight_update,        ADMIN, CONTROL, RELAY, FLEET | P(weight_version)) \
    X(POST, "/update_weight_version",           update_weight_version,       ADMIN, CONTROL, SMALL, FLEET | P(new_version)) \
    X(GET,  "/weight_info",                     weight_info,                 READ,  CONTROL, SMALL, INSTANCE) \
    X(POST, "/collective_rpc",                  collective_rpc,              ADMIN, CONTROL, RELAY, FLEET | P(weight_version)) \
    X(GET,  "/get_world_size",                  get_world_size,              READ,  CONTROL, SMALL, INSTANCE) \
    /* vLLM, beside those above */ \
    X(POST, "/start_draft_weight_update",       start_draft_weight_update,   ADMIN, CONTROL, RELAY, FLEET | P(weight_version)) \
    X(POST, "/weight_checker",                  weight_checker,              ADMIN, CONTROL, RELAY, FLEET) \
    X(POST, "/abort_requests",                  abort_requests,              ADMIN, CONTROL, SMALL, FLEET) \
    X(POST, "/reset_mm_cache",                  reset_mm_cache,              ADMIN, CONTROL, SMALL, FLEET) \
    X(POST, "/reset_encoder_cache",             reset_encoder_cache,         ADMIN, CONTROL, SMALL, FLEET) \
    X(POST, "/v1/load_lora_adapter",            load_lora_adapter,           ADMIN, CONTROL, SMALL, FLEET) \
    X(POST, "/v1/unload_lora_adapter",          unload_lora_adapter,         ADMIN, CONTROL, SMALL, FLEET) \
    X(GET,  "/v1/models",                       list_models,                 READ,  PROBE,   SMALL, 0) \
    X(GET,  "/server_info",                     server_info,                 READ,  CONTROL, SMALL, INSTANCE) \
    X(GET,  "/load",                            load,                        READ,  CONTROL, SMALL, INSTANCE) \
    X(GET,  "/liveness",                        liveness,                    READ,  PROBE,   SMALL, 0) \
    X(GET,  "/ready",                           ready,                       READ,  PROBE,   SMALL, 0) \
    X(GET,  "/health/ready",                    health_ready,                READ,  PROBE,   SMALL, 0) \
    /* SGLang, and what drives it */ \
    X(POST, "/release_memory_occupation",       release_memory_occupation,   ADMIN, CONTROL, SMALL, FLEET | P(tags) | P(reset_external)) \
    X(GET,  "/release_memory_occupation",       get_release_memory,          ADMIN, CONTROL, SMALL, FLEET | P(tags) | P(reset_external)) \
    X(POST, "/resume_memory_occupation",        resume_memory_occupation,    ADMIN, CONTROL, SMALL, FLEET | P(tags) | P(weight_version)) \
    X(GET,  "/resume_memory_occupation",        get_resume_memory,           ADMIN, CONTROL, SMALL, FLEET | P(tags) | P(weight_version)) \
    X(POST, "/flush_cache",                     flush_cache,                 ADMIN, CONTROL, SMALL, INSTANCE | P(timeout)) \
    X(GET,  "/flush_cache",                     get_flush_cache,             ADMIN, CONTROL, SMALL, INSTANCE | P(timeout)) \
    X(POST, "/pause_generation",                pause_generation,            ADMIN, CONTROL, SMALL, FLEET | P(mode) | P(clear_cache)) \
    X(POST, "/continue_generation",             continue_generation,         ADMIN, CONTROL, SMALL, FLEET) \
    X(POST, "/abort_request",                   abort_request,               ADMIN, CONTROL, SMALL, FLEET) \
    X(POST, "/init_weights_update_group",       init_weights_update_group,   ADMIN, CONTROL, RELAY, INSTANCE) \
    X(POST, "/destroy_weights_update_group",    destroy_weights_update_group, ADMIN, CONTROL, SMALL, INSTANCE) \
    X(POST, "/update_weights_from_disk",        update_weights_from_disk,    ADMIN, CONTROL, RELAY, FLEET | P(weight_version)) \
    X(POST, "/update_weights_from_tensor",      update_weights_from_tensor,  ADMIN, CONTROL, RELAY, INSTANCE | P(weight_version)) \
    X(POST, "/update_weights_from_distributed", update_weights_from_distributed, ADMIN, CONTROL, RELAY, FLEET | P(weight_version)) \
    X(POST, "/update_weights_from_ipc",         update_weights_from_ipc,     ADMIN, CONTROL, RELAY, INSTANCE | P(weight_version)) \
    X(POST, "/weights_checker",                 weights_checker,             ADMIN, CONTROL, RELAY, FLEET) \
    X(GET,  "/get_server_info",                 get_server_info,             READ,  CONTROL, SMALL, INSTANCE) \
    X(GET,  "/model_info",                      model_info,                  READ,  CONTROL, SMALL, INSTANCE) \
    X(GET,  "/get_model_info",                  get_model_info,              READ,  CONTROL, SMALL, INSTANCE) \
    X(GET,  "/get_weight_version",              get_weight_version,          READ,  CONTROL, SMALL, INSTANCE) \
    X(GET,  "/get_load",                        get_load,                    READ,  CONTROL, SMALL, INSTANCE) \
    X(GET,  "/v1/loads",                        list_loads,                  READ,  CONTROL, SMALL, INSTANCE) \
    X(GET,  "/health_generate",                 health_generate,             READ,  CONTROL, SMALL, INSTANCE) \
    X(GET,  "/health_generate_original",        health_generate_original,    READ,  CONTROL, SMALL, INSTANCE) \
    /* TensorRT-LLM, AReaL, TRL, Dynamo */ \
    X(POST, "/release_memory",                  release_memory,              ADMIN, CONTROL, SMALL, FLEET | P(tags) | P(reset_external)) \
    X(POST, "/resume_memory",                   resume_memory,               ADMIN, CONTROL, SMALL, FLEET | P(tags) | P(weight_version)) \
    X(POST, "/areal_pause_generation",          areal_pause_generation,      ADMIN, CONTROL, SMALL, FLEET | P(mode) | P(clear_cache)) \
    X(POST, "/areal_continue_generation",       areal_continue_generation,   ADMIN, CONTROL, SMALL, FLEET) \
    X(POST, "/areal_update_weights",            areal_update_weights,        ADMIN, CONTROL, RELAY, FLEET | P(weight_version)) \
    X(POST, "/areal_update_weights_xccl",       areal_update_weights_xccl,   ADMIN, CONTROL, RELAY, FLEET | P(weight_version)) \
    X(POST, "/areal_init_weights_update_group", areal_init_weights_update_group, ADMIN, CONTROL, RELAY, INSTANCE) \
    X(POST, "/areal_set_update_weight_meta",    areal_set_update_weight_meta, ADMIN, CONTROL, RELAY, INSTANCE) \
    X(POST, "/init_communicator",               init_communicator,           ADMIN, CONTROL, SMALL, INSTANCE) \
    X(POST, "/update_named_param",              update_named_param,          ADMIN, CONTROL, RELAY, INSTANCE | P(weight_version)) \
    X(POST, "/batch_update_named_params",       batch_update_named_params,   ADMIN, CONTROL, RELAY, INSTANCE | P(weight_version)) \
    X(POST, "/close_communicator",              close_communicator,          ADMIN, CONTROL, SMALL, INSTANCE) \
    X(POST, "/engine/{name}",                   engine_call,                 ADMIN, CONTROL, RELAY, INSTANCE | P(mode) | P(clear_cache) | P(weight_version)) \
    /* our own */ \
    X(GET,  "/v1/kvplane/instances",            list_instances,              READ,  CONTROL, SMALL, PAGED) \
    X(GET,  "/v1/kvplane/instances/{name}",     get_instance,                READ,  CONTROL, SMALL, 0) \
    X(GET,  "/v1/kvplane/regions",              list_regions,                READ,  CONTROL, SMALL, INSTANCE | PAGED) \
    X(GET,  "/v1/kvplane/queues",               list_queues,                 READ,  CONTROL, SMALL, INSTANCE | PAGED) \
    X(GET,  "/v1/kvplane/operations",           list_operations,             READ,  CONTROL, SMALL, PAGED) \
    X(GET,  "/v1/kvplane/operations/{id}",      get_operation,               READ,  CONTROL, SMALL, P(timeout)) \
    X(POST, "/v1/kvplane/operations/{id}/cancel", cancel_operation,          ADMIN, CONTROL, SMALL, 0) \
    X(GET,  "/v1/kvplane/events",               list_events,                 READ,  STREAM,  SMALL, P(after)) \
    X(GET,  "/v1/kvplane/cluster",              get_cluster,                 READ,  CONTROL, SMALL, PAGED) \
    X(GET,  "/v1/kvplane/nodes",                list_nodes,                  READ,  CONTROL, SMALL, PAGED) \
    X(GET,  "/v1/kvplane/nodes/{name}",         get_node,                    READ,  CONTROL, SMALL, 0) \
    X(GET,  "/v1/kvplane/tenants",              list_tenants,                READ,  CONTROL, SMALL, PAGED) \
    X(GET,  "/v1/kvplane/tenants/{name}",       get_tenant,                  READ,  CONTROL, SMALL, 0) \
    X(POST, "/v1/kvplane/tenants/{name}/reset", reset_tenant,                ADMIN, CONTROL, SMALL, 0) \
    X(POST, "/v1/kvplane/tenants/{name}/remove", remove_tenant,              ADMIN, CONTROL, SMALL, P(force)) \
    X(POST, "/v1/kvplane/tenants/{name}/quota", set_quota,                   ADMIN, CONTROL, SMALL, P(quota_bytes)) \
    X(POST, "/v1/kvplane/objects/exists",       list_existing,               READ,  CONTROL, SMALL, INSTANCE | P(tenant) | P(layout) | P(lineage) | P(group) | P(part)) \
    X(GET,  "/v1/kvplane/objects",              get_object,                  READ,  CONTROL, SMALL, INSTANCE | OBJECT | P(namespace) | PAGED) \
    X(POST, "/v1/kvplane/objects/remove",       remove_object,               ADMIN, CONTROL, SMALL, INSTANCE | OBJECT | P(force)) \
    X(POST, "/v1/kvplane/objects/pin",          pin_object,                  ADMIN, CONTROL, SMALL, INSTANCE | OBJECT | P(pin))
/* clang-format on */

enum kvp_route_id {
#define X(method, path, operation, role, where, body, params) KVP_ROUTE_##operation,
    KVP_ROUTES(X)
#undef X
        KVP_ROUTE_COUNT
};
extern const struct kvp_route kvp_routes[KVP_ROUTE_COUNT];
extern const struct kvp_route_table kvp_route_table;

#endif
