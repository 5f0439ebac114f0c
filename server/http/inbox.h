/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_INBOX_H
#define SERVER_HTTP_INBOX_H

#include "http/routes.h"

#include "base/log.h"
#include "base/queue.h"

#include <jansson.h>

#include <stdatomic.h>

/*
 * From an HTTP thread to the loop and back. The HTTP side parses and checks a request, fills this
 * struct and submits it; the loop side takes it from the inbox, does what the route says and
 * replies exactly once. The HTTP connection is suspended meanwhile; no thread waits.
 */
struct kvp_request {
    struct kvb_item item; /* the inbox's while submitted */
    const struct kvp_route *route;
    char path_arg[KVP_PATH_ARG_MAX]; /* {name} or {id} of the path, decoded */
    char instance[KVB_NAME_MAX];     /* ?instance=; "" = not given */
    struct kvp_params params;        /* checked */
    char *body; /* as received, NUL-terminated; NULL if none; malloc'd. the loop side may take it
                   (and sets NULL), else the HTTP side frees it */
    size_t body_len;
    json_t *json; /* body parsed if it is a JSON object, else NULL; owned by the HTTP side */
    char request_id[KVB_REQUEST_ID_MAX];
    bool respond_async; /* Prefer: respond-async */
    char location[64];  /* set by the loop side before it replies: the Location header, "" = none */
    /* Loop thread, exactly once. body is taken (an object); retry_after_s 0: no header. The request
     * is gone when this returns. */
    void (*reply)(struct kvp_request *request, unsigned http_status, json_t *body,
                  unsigned retry_after_s);
};

/* Requests submitted and not yet replied to, of one loop. */
struct kvp_inbox {
    struct kvb_queue submitted;
    atomic_uint open; /* any thread */
    uint32_t max;
};

/* wake: any thread; kvp_inbox_next() is due. */
void kvp_inbox_init(struct kvp_inbox *inbox, uint32_t max, void (*wake)(void *ctx), void *wake_ctx);
void kvp_inbox_cleanup(struct kvp_inbox *inbox); /* closed, and everything replied to */

/* Any thread. AGAIN: too many requests in flight (answer 503 with Retry-After). CANCELED: shutting
 * down. */
KVB_MUST_USE kvb_status_t kvp_inbox_submit(struct kvp_inbox *inbox, struct kvp_request *request);

/* ---- loop thread ---- */

/* The oldest one, or NULL. */
struct kvp_request *kvp_inbox_next(struct kvp_inbox *inbox);
/* Exactly once for each request, which is gone then. body is taken. */
void kvp_inbox_reply(struct kvp_inbox *inbox, struct kvp_request *request, unsigned http_status,
                     json_t *body, unsigned retry_after_s);
void kvp_inbox_reply_error(struct kvp_inbox *inbox, struct kvp_request *request,
                           kvb_status_t status, const char *param, const char *message);
/* That this process is going. */
void kvp_inbox_reply_closed(struct kvp_inbox *inbox, struct kvp_request *request);
/* No more are taken; those that nobody has taken out get kvp_inbox_reply_closed(). Idempotent. */
void kvp_inbox_close(struct kvp_inbox *inbox);

#endif
