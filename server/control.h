/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONTROL_H
#define SERVER_CONTROL_H

#include "connector/instance.h"
#include "http/routes.h"

#include "base/log.h"
#include "base/queue.h"

#include <jansson.h>

/*
 * From an HTTP thread to the loop and back. The HTTP side parses and checks a request, fills this
 * struct and submits it; the loop side (control.c) does what the route says and replies exactly
 * once. The HTTP connection is suspended meanwhile; no thread waits.
 */
struct kvp_request {
    struct kvb_item item; /* control's while submitted */
    const struct kvp_route *route;
    char path_arg[KVB_KEY_MAX + 1]; /* {name} or {id} of the path, decoded */
    char instance[KVB_NAME_MAX];    /* ?instance=; "" = not given */
    struct kvp_params params;       /* checked */
    char *body; /* as received, NUL-terminated; NULL if none; owned by the HTTP side */
    size_t body_len;
    json_t *json; /* body parsed if it is a JSON object, else NULL; owned by the HTTP side */
    char request_id[KVB_REQUEST_ID_MAX];
    bool respond_async; /* Prefer: respond-async */
    /* Loop thread, exactly once. body is taken (an object); retry_after_s 0: no header. */
    void (*reply)(struct kvp_request *request, unsigned http_status, json_t *body,
                  unsigned retry_after_s);
};

struct kvp_control;

KVB_MUST_USE kvb_status_t kvp_control_create(struct kvp_fleet *fleet,
                                             struct kvs_coordinator *coordinator,
                                             uint32_t queue_max, void (*wake)(void *ctx),
                                             void *wake_ctx, struct kvp_control **control_p);
/* Any thread. AGAIN: too many requests in flight (answer 503 with Retry-After). CANCELED: shutting
 * down. */
KVB_MUST_USE kvb_status_t kvp_control_submit(struct kvp_control *control,
                                             struct kvp_request *request);
/* Loop thread: handles what was submitted. */
void kvp_control_run(struct kvp_control *control);
/* Loop thread: replies 503 to everything still open. */
void kvp_control_close(struct kvp_control *control);
void kvp_control_destroy(struct kvp_control *control);

#endif
