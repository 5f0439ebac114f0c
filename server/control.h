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
    char path_arg[KVP_PATH_ARG_MAX]; /* {name} or {id} of the path, decoded */
    char instance[KVB_NAME_MAX];     /* ?instance=; "" = not given */
    struct kvp_params params;        /* checked */
    char *body; /* as received, NUL-terminated; NULL if none; malloc'd. control may take it (and
                   sets NULL), else the HTTP side frees it */
    size_t body_len;
    json_t *json; /* body parsed if it is a JSON object, else NULL; owned by the HTTP side */
    char request_id[KVB_REQUEST_ID_MAX];
    bool respond_async; /* Prefer: respond-async */
    char location[64];  /* set by control before it replies: the Location header, "" = none */
    /* Loop thread, exactly once. body is taken (an object); retry_after_s 0: no header. The request
     * is gone when this returns. */
    void (*reply)(struct kvp_request *request, unsigned http_status, json_t *body,
                  unsigned retry_after_s);
};

struct kvp_control;

struct kvp_control_config {
    struct kvp_fleet *fleet;
    struct kvs_coordinator *coordinator; /* NULL: no store configured */
    const struct kvb_clock *clock;
    uint64_t retire_ms;      /* bound of a tenant's reset */
    uint32_t queue_max;      /* requests submitted and not yet replied to */
    void (*wake)(void *ctx); /* any thread: kvp_control_run() is due */
    void *wake_ctx;
};

KVB_MUST_USE kvb_status_t kvp_control_create(const struct kvp_control_config *config,
                                             struct kvp_control **control_p);
/* Any thread. AGAIN: too many requests in flight (answer 503 with Retry-After). CANCELED: shutting
 * down. */
KVB_MUST_USE kvb_status_t kvp_control_submit(struct kvp_control *control,
                                             struct kvp_request *request);
/* Loop thread: handles what was submitted. */
void kvp_control_run(struct kvp_control *control);
/* Loop thread: replies 503 to everything still open, and CANCELED to every later submit. */
void kvp_control_close(struct kvp_control *control);
/* After kvp_fleet_destroy() and kvs_coordinator_destroy(), which end what control started: until
 * then outcomes still come, and bodies that were relayed are still read. */
void kvp_control_destroy(struct kvp_control *control);

/* Does a collective_rpc of this method count as a weight change (DESIGN.md section 4)? */
bool kvp_method_changes_weights(const char *method);

#endif
