/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_PROBES_H
#define SERVER_HTTP_PROBES_H

#include "board.h"
#include "http/routes.h"

#include "base/metrics.h"

#include <jansson.h>

/* The answer of a probe: json, or text. Both are the caller's to free; both NULL: out of memory. */
struct kvp_probe_answer {
    unsigned http_status;
    json_t *json;
    char *text; /* malloc'd */
    size_t text_len;
    const char *content_type; /* of text */
};

/* Answers a route of kind PROBE from the board and the metrics registry. Never waits. */
void kvp_probe(const struct kvp_route *route, const char *instance, struct kvp_board *board,
               struct kvb_metrics *metrics, struct kvp_probe_answer *answer_p);

/* api/openapi.yaml as it was when this was built. */
extern const char kvp_openapi[];
extern const char kvp_openapi_end[];

#endif
