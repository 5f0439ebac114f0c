/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_NODE_ROUTES_H
#define SERVER_NODE_ROUTES_H

#include "http/routes.h"

/* Every route of a store node, once; the contract is api/openapi-store.yaml. */
/* clang-format off */
#define KVP_STORE_ROUTES(X) \
    /* method path                           operation       role   where    body   parameters */ \
    X(GET,  "/health",                       health,         READ,  PROBE,   SMALL, 0) \
    X(GET,  "/livez",                        livez,          READ,  PROBE,   SMALL, 0) \
    X(GET,  "/readyz",                       readyz,         READ,  PROBE,   SMALL, 0) \
    X(GET,  "/metrics",                      metrics,        READ,  PROBE,   SMALL, 0) \
    X(GET,  "/version",                      version,        READ,  PROBE,   SMALL, 0) \
    X(GET,  "/openapi.yaml",                 openapi,        READ,  PROBE,   SMALL, 0) \
    X(GET,  "/v1/kvplane/node",              get_node,       READ,  CONTROL, SMALL, 0) \
    X(GET,  "/v1/kvplane/objects",           get_object,     READ,  CONTROL, SMALL, OBJECT) \
    X(POST, "/v1/kvplane/objects/remove",    remove_object,  ADMIN, CONTROL, SMALL, OBJECT | P(force) | P(pattern)) \
    X(POST, "/v1/kvplane/objects/pin",       pin_object,     ADMIN, CONTROL, SMALL, OBJECT | P(pin)) \
    X(GET,  "/v1/kvplane/events",            list_events,    READ,  CONTROL, SMALL, P(shard) | P(after)) \
    X(POST, "/v1/kvplane/drain",             drain,          ADMIN, CONTROL, SMALL, 0)
/* clang-format on */

enum kvp_store_route_id {
#define X(method, path, operation, role, where, body, params) KVP_STORE_##operation,
    KVP_STORE_ROUTES(X)
#undef X
        KVP_STORE_ROUTE_COUNT
};
extern const struct kvp_route kvp_store_routes[KVP_STORE_ROUTE_COUNT];
extern const struct kvp_route_table kvp_store_route_table;

/* api/openapi-store.yaml as it was when this was built. */
extern const char kvp_openapi_store[];
extern const char kvp_openapi_store_end[];

#endif
