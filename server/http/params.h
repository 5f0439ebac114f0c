/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_PARAMS_H
#define SERVER_HTTP_PARAMS_H

#include "http/routes.h"

#include <jansson.h>

/* What is wrong with a request's parameters, for error.param and error.message. */
struct kvp_param_error {
    char param[80]; /* "query.level", "body.tags", "query", "body" */
    char message[256];
};

/*
 * Reads what a route reads (table KVP_PARAMS): from the raw query (NULL: none), else from a JSON
 * object (NULL: none). Everything is checked before anything is done:
 *
 *   - the query wins over the body; of a repeated scalar the last one counts, tags add up;
 *   - null in the body means not given, so does a parameter that is absent;
 *   - a parameter without '=' has the empty value, which only `tags` accepts;
 *   - a value that does not fit its kind is refused, never rounded, cut or replaced by a default.
 *
 * instance gets ?instance= ("" if not given), from the query only.
 * Errors: KVB_ERR_INVALID with *error_p filled in; outputs untouched.
 */
KVB_MUST_USE kvb_status_t kvp_params_read(const struct kvp_route *route, const char *query,
                                          const json_t *body, struct kvp_params *params_p,
                                          char instance[KVB_NAME_MAX],
                                          struct kvp_param_error *error_p);

/* The name in front of `_p` of openapi.yaml: "level" for KVP_PARAM_level. */
const char *kvp_param_name(enum kvp_param which);

/* 2 to 2 * cap hex digits, an even number of them; false: it is something else. */
bool kvp_hex_read(const char *text, uint8_t *out, size_t cap, size_t *len_p);

#endif
