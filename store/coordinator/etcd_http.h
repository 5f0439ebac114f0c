/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_ETCD_HTTP_H
#define STORE_ETCD_HTTP_H

#include "base/curl.h"
#include "base/io.h"
#include "base/sched.h"

#include <jansson.h>

/*
 * etcd's v3 JSON gateway over libcurl's multi interface: no thread, nothing blocks. A call is
 * repeated, on the next endpoint, until one answers or its bound is over; so every call must be
 * safe to repeat. Loop thread only; done never runs inside the call that starts it.
 */
struct kvs_http;
struct kvs_http_config {
    struct kvb_sched *sched;
    struct kvb_io *io;
    const char *const *endpoints; /* copied, like all texts */
    uint32_t nendpoints;
    const char *user, *password;                /* NULL: none */
    const char *ca_file, *cert_file, *key_file; /* NULL: none, the system's */
    uint32_t request_ms;
};

/* INVALID (no endpoint, or no http(s) URL), NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_http_create(const struct kvs_http_config *config,
                                          struct kvs_http **http_p);
/* Calls and streams that run are dropped without a word. */
void kvs_http_destroy(struct kvs_http *http);

struct kvs_http_call {
    /* answer: borrowed, an object. OK. NOT_FOUND: a lease that etcd does not have. REFUSED: etcd
     * said no (logged); nothing happened. UNAVAILABLE: no endpoint gave a sound answer within the
     * bound; it has happened or not, unless !uncertain: then nothing was sent. NO_MEMORY: so too.
     */
    void (*done)(struct kvs_http_call *call, kvb_status_t status, json_t *answer);
    bool uncertain;
    uint64_t asked_ns; /* when the last attempt began: what etcd answers, it did after that */
    struct {
        struct kvs_http *http; /* NULL: not running */
        struct kvb_list link;
        const char *path;
        char *body;
        uint64_t deadline_ns;
        uint32_t attempts;
        uint32_t renewed; /* times that the token was refused */
        uint32_t endpoint;
        kvb_status_t status;
        struct kvb_timer timer; /* the attempt's bound, or the next attempt */
        struct kvb_event fail;
        struct kvb_transfer transfer;
        void *headers;
        char *answer;
        size_t len, cap;
        bool broken;     /* answer: too long, or no memory for it */
        char error[256]; /* libcurl's words for what became of the attempt */
    } impl;
};

static inline bool kvs_http_running(const struct kvs_http_call *call)
{
    return call->impl.http != NULL;
}
/* path: static. body: taken; NULL: NO_MEMORY is its answer. bound_ms 0: request_ms. */
void kvs_http_call(struct kvs_http *http, const char *path, char *body, uint32_t bound_ms,
                   struct kvs_http_call *call);
/* done is not called any more; what was sent may still happen. Not running: nothing. */
void kvs_http_cancel(struct kvs_http_call *call);

/* An answer without an end, one JSON object a line: one attempt on the endpoint in use. */
struct kvs_http_stream {
    void (*object)(struct kvs_http_stream *stream, json_t *object); /* borrowed; may close it */
    void (*ended)(struct kvs_http_stream *stream);                  /* closed already */
    struct {
        struct kvs_http *http; /* NULL: not open */
        struct kvb_list link;
        char *body;
        struct kvb_event event;
        struct kvb_transfer transfer;
        void *headers;
        char *text;
        size_t len, cap;
        size_t searched; /* of it: there is no end of a line */
        bool over;       /* nothing more will come */
        uint32_t endpoint;
    } impl;
};
static inline bool kvs_http_streaming(const struct kvs_http_stream *stream)
{
    return stream->impl.http != NULL;
}
/* body: taken. Failures come as ended. */
void kvs_http_stream_open(struct kvs_http *http, const char *path, char *body,
                          struct kvs_http_stream *stream);
void kvs_http_stream_close(struct kvs_http_stream *stream);
/* The endpoint that this stream uses is no good: others are tried first. */
void kvs_http_stream_blame(struct kvs_http_stream *stream);
/* Words with which etcd refuses one whose token it does not know, or who may not. */
bool kvs_http_refuses(const char *text);
/* For the log. */
const char *kvs_http_endpoint(const struct kvs_http *http);

#endif
