/* SPDX-License-Identifier: Apache-2.0 */
#include "control/routes.h"

#define INSTANCE KVP_TAKES_INSTANCE
#define FLEET    (INSTANCE | P(all_or_nothing))
#define P(name)  (1u << KVP_PARAM_##name)
#define PAGED    (P(limit) | P(cursor))
#define OBJECT   (P(tenant) | P(layout) | P(lineage) | P(key) | P(group) | P(part))

const struct kvp_route kvp_routes[KVP_ROUTE_COUNT] = {
#define X(...) KVP_ROUTE_ROW(KVP_ROUTE_, __VA_ARGS__)
    KVP_ROUTES(X)
#undef X
};
const struct kvp_route_table kvp_route_table = {kvp_routes, KVP_ROUTE_COUNT};
