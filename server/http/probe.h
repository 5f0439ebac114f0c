/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_PROBE_H
#define SERVER_HTTP_PROBE_H

#include "base/metrics.h"

#include <jansson.h>

/* The answer of a probe: json, or text. Both are taken; both NULL: out of memory. */
struct kvp_probe_answer {
    unsigned http_status;
    json_t *json;
    char *text; /* malloc'd */
    size_t text_len;
    const char *content_type; /* of text */
};

/* ---- what the probes of every program have in common ---- */

/* The Prometheus text. */
void kvp_probe_metrics(struct kvb_metrics *metrics, struct kvp_probe_answer *answer);
/* Bytes that are in the program, up to end. */
void kvp_probe_bytes(const char *begin, const char *end, const char *content_type,
                     struct kvp_probe_answer *answer);
/* 200 {"status": yes}, or 503 with the reasons (taken; an array of text, empty: none). */
void kvp_probe_reasons(json_t *reasons, const char *yes, struct kvp_probe_answer *answer);

#endif
