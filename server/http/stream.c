/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers without an end. The HTTP thread asks for more whenever libmicrohttpd can send; where
 * there is nothing, the connection sleeps until kvp_http_wake(). Nothing is queued for a slow
 * client: it has a cursor, and what it does not come to read in time is lost to it, which it is
 * told. Whenever the tokens were read anew, that of each stream is judged anew.
 */
#include "http/internal.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK (16u << 10)

/* Comments. */
static const char beat[] = ": \n\n";
static const char farewell[] = ": the token of this stream does not allow it any more\n\n";

/* It came with a token that allows it, or none is asked for. */
static bool still_allowed_locked(struct kvp_exchange *exchange)
{
    return exchange->judged == exchange->http->tokens_read ||
           kvp_exchange_token_locked(exchange) == KVP_TOKEN_ALLOWED;
}

static ssize_t more_locked(struct kvp_exchange *exchange, char *text, size_t cap)
{
    struct kvp_http *http = exchange->http;

    if (http->listener < 0) { /* kvp_http_stop() has begun: nobody may be suspended any more */
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    if (!still_allowed_locked(exchange)) {
        exchange->stream.ended = true;
        if (cap < sizeof farewell) {
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        memcpy(text, farewell, sizeof farewell - 1);
        return sizeof farewell - 1;
    }
    size_t len = http->config.ops->stream(http->config.ctx, &exchange->stream.cursor, text, cap);
    if (len == 0 && exchange->stream.beat && cap >= sizeof beat - 1) {
        len = sizeof beat - 1;
        memcpy(text, beat, len);
    }
    exchange->stream.beat = false;
    if (len == 0) {
        exchange->stream.sleeps = true;
        MHD_suspend_connection(exchange->mhd);
    }
    return (ssize_t)len;
}

static ssize_t more(void *cls, uint64_t pos, char *text, size_t cap)
{
    struct kvp_exchange *exchange = cls;
    struct kvp_http *http = exchange->http;

    (void)pos;
    if (exchange->stream.ended || http->config.ops->stopping(http->config.ctx)) {
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    pthread_mutex_lock(&http->lock);
    ssize_t len = more_locked(exchange, text, cap);
    pthread_mutex_unlock(&http->lock);
    return len;
}

/* What the client saw last. */
static uint64_t cursor_of(const struct kvp_exchange *exchange)
{
    const char *last = MHD_lookup_connection_value(exchange->mhd, MHD_HEADER_KIND, "Last-Event-ID");
    bool number = last != NULL && *last != '\0' && strlen(last) <= 19 &&
                  last[strspn(last, "0123456789")] == '\0';
    return number ? strtoull(last, NULL, 10) : exchange->request.params.after;
}

enum MHD_Result kvp_exchange_stream(struct kvp_exchange *exchange)
{
    struct kvp_http *http = exchange->http;

    pthread_mutex_lock(&http->lock);
    /* They have no end: half of those that may wait is left to calls (kvp_connections_crowded()).
     */
    bool full = http->nstreams == KVP_HTTP_STREAMS_MAX ||
                http->connections.counts[KVP_CONNECTION_STREAMING] >= http->connections.max / 4;
    if (!full) {
        exchange->stream.cursor = cursor_of(exchange);
        exchange->stream.beat = true; /* its first words come at once */
        http->nstreams++;
        kvb_list_push_back(&http->streams, &exchange->stream.link);
    }
    pthread_mutex_unlock(&http->lock);
    if (full) {
        kvp_exchange_refuse(exchange, 503, NULL, "too many streams; try again");
        exchange->retry_after_s = 5;
        return kvp_exchange_answer(exchange);
    }
    exchange->phase = KVP_ANSWERING;
    exchange->http_status = 200;
    exchange->extra_name = MHD_HTTP_HEADER_CACHE_CONTROL;
    exchange->extra_value = "no-store";
    kvp_exchange_enters(exchange, KVP_CONNECTION_STREAMING);
    return kvp_exchange_queue(
        exchange, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CHUNK, more, exchange, NULL),
        "text/event-stream");
}

void kvp_exchange_stream_ended(struct kvp_exchange *exchange)
{
    struct kvp_http *http = exchange->http;

    pthread_mutex_lock(&http->lock);
    if (!kvb_list_empty(&exchange->stream.link)) {
        kvb_list_remove(&exchange->stream.link);
        http->nstreams--;
    }
    pthread_mutex_unlock(&http->lock);
}

void kvp_http_wake(struct kvp_http *http, bool beats)
{
    pthread_mutex_lock(&http->lock);
    kvb_list_each(&http->streams, link)
    {
        struct kvp_exchange *exchange = kvb_container_of(link, struct kvp_exchange, stream.link);
        exchange->stream.beat = exchange->stream.beat || beats;
        if (exchange->stream.sleeps) {
            exchange->stream.sleeps = false;
            MHD_resume_connection(exchange->mhd);
        }
    }
    pthread_mutex_unlock(&http->lock);
}
