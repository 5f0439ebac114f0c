/* SPDX-License-Identifier: Apache-2.0 */
#include "node/routes.h"

#define P(name) (1u << KVP_PARAM_##name)
#define OBJECT  (P(tenant) | P(layout) | P(lineage) | P(key) | P(group) | P(part))

const struct kvp_route kvp_store_routes[KVP_STORE_ROUTE_COUNT] = {
#define X(...) KVP_ROUTE_ROW(KVP_STORE_, __VA_ARGS__)
    KVP_STORE_ROUTES(X)
#undef X
};
const struct kvp_route_table kvp_store_route_table = {kvp_store_routes, KVP_STORE_ROUTE_COUNT};

/* The contract travels inside the program, so that the two cannot differ. */
__asm__(".pushsection .rodata\n"
        ".global kvp_openapi_store\n"
        ".global kvp_openapi_store_end\n"
        ".hidden kvp_openapi_store\n"
        ".hidden kvp_openapi_store_end\n"
        "kvp_openapi_store:\n"
        ".incbin \"" KVP_OPENAPI_STORE_FILE "\"\n"
        "kvp_openapi_store_end:\n"
        ".byte 0\n"
        ".popsection\n");
