/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONTROL_ROUTES_H
#define SERVER_CONTROL_ROUTES_H

#include "http/routes.h"

/* Every route of the daemon, once; the contract is api/openapi.yaml. */
/* clang-format off */
#define KVP_ROUTES(X) \
    /* method path                              operation                    role   where    body   parameters */ \
    X(GET,  "/health",                          health,                      READ,  PROBE,   SMALL, 0) \
    X(GET,  "/livez",                           livez,                       READ,  PROBE,   SMALL, 0) \
    X(GET,  "/readyz",                          readyz,                      READ,  PROBE,   SMALL, 0) \
    X(GET,  "/startupz",                        startupz,                    READ,  PROBE,   SMALL, 0) \
    X(GET,  "/metrics",                         metrics,                     READ,  PROBE,   SMALL, 0) \
    X(GET,  "/version",                         version,                     READ,  PROBE,   SMALL, 0) \
    X(GET,  "/openapi.yaml",                    openapi,                     READ,  PROBE,   SMALL, 0) \
    X(GET,  "/is_paused",                       is_paused,                   READ,  PROBE,   SMALL, INSTANCE) \
    X(GET,  "/is_sleeping",                     is_sleeping,                 READ,  PROBE,   SMALL, INSTANCE) \
    X(POST, "/pause",                           pause,                       ADMIN, CONTROL, SMALL, INSTANCE | P(mode) | P(clear_cache) | P(wait_for_inflight_requests) | P(reset_external)) \
    X(POST, "/resume",                          resume,                      ADMIN, CONTROL, SMALL, INSTANCE) \
    X(POST, "/sleep",                           sleep,                       ADMIN, CONTROL, SMALL, INSTANCE | P(level) | P(mode) | P(reset_external)) \
    X(POST, "/wake_up",                         wake_up,                     ADMIN, CONTROL, SMALL, INSTANCE | P(tags) | P(weight_version)) \
    X(POST, "/release_kv_cache_memory",         release_kv_cache_memory,     ADMIN, CONTROL, SMALL, INSTANCE | P(reset_external)) \
    X(POST, "/reset_prefix_cache",              reset_prefix_cache,          ADMIN, CONTROL, SMALL, INSTANCE | P(reset_running_requests) | P(reset_external) | P(strict)) \
    X(POST, "/init_weight_transfer_engine",     init_weight_transfer_engine, ADMIN, CONTROL, RELAY, INSTANCE) \
    X(POST, "/start_weight_update",             start_weight_update,         ADMIN, CONTROL, RELAY, INSTANCE | P(weight_version)) \
    X(POST, "/update_weights",                  update_weights,              ADMIN, CONTROL, RELAY, INSTANCE | P(weight_version)) \
    X(POST, "/finish_weight_update",            finish_weight_update,        ADMIN, CONTROL, RELAY, INSTANCE | P(weight_version)) \
    X(POST, "/update_weight_version",           update_weight_version,       ADMIN, CONTROL, SMALL, INSTANCE | P(new_version)) \
    X(GET,  "/weight_info",                     weight_info,                 READ,  CONTROL, SMALL, INSTANCE) \
    X(POST, "/collective_rpc",                  collective_rpc,              ADMIN, CONTROL, RELAY, INSTANCE | P(weight_version)) \
    X(GET,  "/get_world_size",                  get_world_size,              READ,  CONTROL, SMALL, INSTANCE) \
    X(GET,  "/v1/kvplane/instances",            list_instances,              READ,  CONTROL, SMALL, 0) \
    X(GET,  "/v1/kvplane/instances/{name}",     get_instance,                READ,  CONTROL, SMALL, 0) \
    X(GET,  "/v1/kvplane/operations",           list_operations,             READ,  CONTROL, SMALL, 0) \
    X(GET,  "/v1/kvplane/operations/{id}",      get_operation,               READ,  CONTROL, SMALL, 0) \
    X(GET,  "/v1/kvplane/cluster",              get_cluster,                 READ,  CONTROL, SMALL, 0) \
    X(GET,  "/v1/kvplane/nodes",                list_nodes,                  READ,  CONTROL, SMALL, 0) \
    X(GET,  "/v1/kvplane/tenants",              list_tenants,                READ,  CONTROL, SMALL, 0) \
    X(GET,  "/v1/kvplane/tenants/{name}",       get_tenant,                  READ,  CONTROL, SMALL, 0) \
    X(POST, "/v1/kvplane/tenants/{name}/reset", reset_tenant,                ADMIN, CONTROL, SMALL, 0) \
    X(GET,  "/v1/kvplane/objects",              get_object,                  READ,  CONTROL, SMALL, INSTANCE | OBJECT) \
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
