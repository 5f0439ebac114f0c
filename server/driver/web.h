/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_DRIVER_WEB_H
#define SERVER_DRIVER_WEB_H

#include "base/curl.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * One HTTP request and its answer, as the driver needs it: nothing is repeated, no time is bounded
 * (who asks has a deadline, and cancels). Ops, so that a test answers in place of servers. Loop
 * thread only.
 */
struct kvp_web_ask {
    bool post;        /* else GET */
    const char *url;  /* whole; copied */
    const char *body; /* JSON text of a POST; borrowed until it is over; NULL: none */
    size_t body_len;
};

struct kvp_web_answer {
    /* OK: it answered, whatever it said. REFUSED: nobody listens there, nothing was sent.
     * DISCONNECTED: the connection broke: it was done, or it was not. TOO_LARGE: so too.
     * NO_MEMORY: nothing was sent. */
    kvb_status_t status;
    unsigned http_status;
    const char *body; /* with a NUL behind it; "" without one; borrowed for the callback */
    size_t len;
    const char *why; /* failures: for people */
};

struct kvp_web_call {
    /* Exactly once unless it is canceled, later, never inside of start. */
    void (*done)(struct kvp_web_call *call, const struct kvp_web_answer *answer);
    void *impl; /* NULL: not running */
};

struct kvp_web_ops {
    void (*start)(void *ctx, const struct kvp_web_ask *ask, struct kvp_web_call *call);
    /* done is not called any more; what was sent may still be done. Not running: nothing. */
    void (*cancel)(void *ctx, struct kvp_web_call *call);
};

/* ---- over libcurl ---- */

#define KVP_WEB_ANSWER_MAX (32u << 20)

struct kvp_web;
extern const struct kvp_web_ops kvp_web_ops; /* ctx: a struct kvp_web */

/* authorization: a header sent with every request; NULL: none; copied. ca_file: the authorities
 * that an https server's certificate may come from; "": the system's; as alive as it. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvp_web_create(struct kvb_sched *sched, struct kvb_io *io,
                                         uint32_t connections_max, const char *authorization,
                                         const char *ca_file, struct kvp_web **web_p);
/* Nothing runs. NULL: nothing. */
void kvp_web_destroy(struct kvp_web *web);

#endif
