/* SPDX-License-Identifier: Apache-2.0 */
#include "http/probe.h"

#include "http/errors.h"

#include <stdlib.h>
#include <string.h>

void kvp_probe_metrics(struct kvb_metrics *metrics, struct kvp_probe_answer *answer)
{
    kvb_status_t status = kvb_metrics_write(metrics, &answer->text, &answer->text_len);

    answer->content_type = "text/plain; version=0.0.4; charset=utf-8";
    if (status != KVB_OK) {
        answer->http_status = kvp_error_http(status);
        answer->json = kvp_error_body(answer->http_status, NULL, kvb_status_text(status));
    }
}

void kvp_probe_bytes(const char *begin, const char *end, const char *content_type,
                     struct kvp_probe_answer *answer)
{
    answer->text_len = (size_t)(end - begin);
    answer->text = malloc(answer->text_len);
    answer->content_type = content_type;
    if (answer->text != NULL) {
        memcpy(answer->text, begin, answer->text_len);
    }
}

void kvp_probe_reasons(json_t *reasons, const char *yes, struct kvp_probe_answer *answer)
{
    if (json_array_size(reasons) == 0) {
        json_decref(reasons);
        answer->json = json_pack("{s:s}", "status", yes);
        return;
    }
    answer->http_status = 503;
    answer->json = kvp_error_body(503, NULL, json_string_value(json_array_get(reasons, 0)));
    (void)json_object_set_new(answer->json, "reasons", reasons);
}
