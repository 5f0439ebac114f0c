/* SPDX-License-Identifier: Apache-2.0 */
#include "http/probe.h"

#include "http/errors.h"

#include <string.h>

void kvp_probe_metrics(struct kvb_metrics *metrics, struct kvp_probe_answer *answer)
{
    char *text = NULL;
    kvb_status_t status = kvb_metrics_write(metrics, &text, &answer->text_len);

    answer->content_type = "text/plain; version=0.0.4; charset=utf-8";
    if (status == KVB_OK) {
        answer->text = text;
    } else {
        answer->http_status = kvp_error_http(status);
        answer->json = kvp_error_body(answer->http_status, NULL, kvb_status_text(status));
    }
}

void kvp_probe_bytes(const char *begin, const char *end, const char *content_type,
                     struct kvp_probe_answer *answer)
{
    answer->text = begin;
    answer->text_len = (size_t)(end - begin);
    answer->constant = true;
    answer->content_type = content_type;
}

void kvp_probe_constant(const char *text, struct kvp_probe_answer *answer)
{
    kvp_probe_bytes(text, text + strlen(text), "application/json", answer);
}

void kvp_probe_reasons(json_t *reasons, struct kvp_probe_answer *answer)
{
    answer->http_status = 503;
    answer->json = kvp_error_body(503, NULL, json_string_value(json_array_get(reasons, 0)));
    (void)json_object_set_new(answer->json, "reasons", reasons);
}
