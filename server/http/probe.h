/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_PROBE_H
#define SERVER_HTTP_PROBE_H

#include "base/metrics.h"

#include <jansson.h>

#include <stdbool.h>

/* The answer of a probe: json, or text. Both are taken, but for a constant; both NULL: out of
 * memory. */
struct kvp_probe_answer {
    unsigned http_status;
    json_t *json;
    const char *text; /* malloc'd, or a constant */
    bool constant;    /* text is in the program */
    size_t text_len;
    const char *content_type; /* of text */
};

/* ---- what the probes of every program have in common ---- */

/* The Prometheus text. */
void kvp_probe_metrics(struct kvb_metrics *metrics, struct kvp_probe_answer *answer);
/* Bytes that are in the program, up to end. */
void kvp_probe_bytes(const char *begin, const char *end, const char *content_type,
                     struct kvp_probe_answer *answer);
/* A JSON text that is in the program. */
void kvp_probe_constant(const char *text, struct kvp_probe_answer *answer);
/* 503 with the reasons (taken; an array of text). */
void kvp_probe_reasons(json_t *reasons, struct kvp_probe_answer *answer);

#endif
