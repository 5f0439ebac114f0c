/* SPDX-License-Identifier: Apache-2.0 */
#include "http/internal.h"
#include "http/params.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/*
 * A JSON value of two bytes costs 50 of memory when parsed; real bodies of many MiB are long
 * strings (handles, names) and have few.
 */
#define VALUES_MAX (1u << 20)
/* Of a body that is kept whole as long as its operation takes. */
#define VALUES_KEPT 65536u
#define BYTES_KEPT  KVP_BODY_SMALL

/* At least as many values as a text has, without parsing it. */
static size_t count_values(const char *text, size_t len)
{
    size_t n = 1;
    for (size_t i = 0; i < len; i++) {
        n += text[i] == ',' || text[i] == '[' || text[i] == '{';
    }
    return n;
}

/* A copy of the object with its lists and objects emptied: of what is relayed control looks at the
 * first level alone. NULL: out of memory. */
static json_t *first_level(json_t *object)
{
    json_t *copy = json_object();
    const char *name;
    json_t *value;

    json_object_foreach(object, name, value)
    {
        json_t *kept = json_is_object(value)  ? json_object()
                       : json_is_array(value) ? json_array()
                                              : json_incref(value);
        if (json_object_set_new(copy, name, kept) != 0) {
            json_decref(copy);
            return NULL;
        }
    }
    return copy;
}

/* The body as an object, or NULL: refused. */
static json_t *parse_body(struct kvp_exchange *exchange)
{
    const struct kvp_request *request = &exchange->request;
    json_error_t error;
    char message[256];

    if (count_values(request->body, request->body_len) > VALUES_MAX) {
        kvp_exchange_refuse(exchange, 413, "body", "the body has more than a million values");
        return NULL;
    }
    json_t *json = json_loadb(request->body, request->body_len, 0, &error);
    if (!json_is_object(json)) {
        (void)snprintf(message, sizeof message, "the body must be a JSON object, or empty%s%s",
                       json == NULL ? ": " : "", json == NULL ? error.text : "");
        kvb_utf8_clean(message); /* it repeats what the body has */
        json_decref(json);
        kvp_exchange_refuse(exchange, 400, "body", message);
        return NULL;
    }
    return json;
}

void kvp_exchange_parse(struct kvp_exchange *exchange)
{
    struct kvp_request *request = &exchange->request;
    struct kvp_param_error wrong;
    json_t *json = NULL;

    if (request->body_len > 0) {
        json = parse_body(exchange);
        if (json == NULL) {
            return;
        }
    }
    if (kvp_params_read(request->route, exchange->query, json, &request->params, request->instance,
                        &wrong) != KVB_OK) {
        kvp_exchange_refuse(exchange, 400, wrong.param, wrong.message);
    } else if (json != NULL) {
        bool whole = request->body_len <= BYTES_KEPT &&
                     count_values(request->body, request->body_len) <= VALUES_KEPT;
        request->json = whole ? json_incref(json) : first_level(json);
        if (request->json == NULL) {
            kvp_exchange_refuse(exchange, 503, NULL, "out of memory; try again");
        }
    }
    json_decref(json);
}

/* ---- the parser's thread ---- */

static void wake(void *ctx)
{
    struct kvp_http *http = ctx;
    sem_post(&http->parser_woken);
}

static struct kvp_exchange *exchange_of(struct kvb_item *item)
{
    struct kvp_request *request = kvb_container_of(item, struct kvp_request, item);
    struct kvp_exchange *exchange = kvb_container_of(request, struct kvp_exchange, request);

    kvb_assert(exchange->magic == KVP_EXCHANGE_MAGIC && exchange->phase == KVP_PARSING);
    return exchange;
}

/* Before it is put: else the thread might be done with it already. */
kvb_status_t kvp_parser_put(struct kvp_exchange *exchange)
{
    struct kvp_http *http = exchange->http;
    uint64_t none = 0;

    (void)atomic_compare_exchange_strong(http->config.parsing_since_ns, &none,
                                         kvb_now_ns(http->config.clock));
    return kvb_queue_put(&http->parsing, &exchange->request.item);
}

static void *parse_all(void *arg)
{
    struct kvp_http *http = arg;
    struct kvb_item *item;

    (void)pthread_setname_np(pthread_self(),
                             http->config.unix_path == NULL ? "bodies" : "bodies-unix");
    while (!atomic_load(&http->parser_stopping)) {
        while ((item = kvb_queue_pop(&http->parsing)) != NULL) {
            struct kvp_exchange *exchange = exchange_of(item);
            atomic_store(http->config.parsing_since_ns, kvb_now_ns(http->config.clock));
            kvp_exchange_parse(exchange);
            MHD_resume_connection(exchange->mhd); /* now it is the HTTP thread's */
            atomic_store(http->config.parsing_since_ns, 0);
        }
        while (sem_wait(&http->parser_woken) != 0) { /* interrupted by a signal */
        }
    }
    return NULL;
}

kvb_status_t kvp_parser_start(struct kvp_http *http, uint32_t queue_max)
{
    if (http->config.parsing_since_ns == NULL) {
        http->config.parsing_since_ns = &http->parsing_since_ns;
    }
    if (sem_init(&http->parser_woken, 0, 0) != 0) {
        return KVB_ERR_LIMIT;
    }
    kvb_queue_init(&http->parsing, "parsing", queue_max, wake, http);
    atomic_init(&http->parser_stopping, false);
    int error = pthread_create(&http->parser, NULL, parse_all, http);
    if (error != 0) {
        KVB_LOG(ERROR, "no thread for large bodies", KVB_ERRNO(error));
        kvb_queue_cleanup(&http->parsing);
        sem_destroy(&http->parser_woken);
        return KVB_ERR_LIMIT;
    }
    return KVB_OK;
}

static void drop(void *ctx, struct kvb_item *item)
{
    struct kvp_exchange *exchange = exchange_of(item);

    (void)ctx;
    kvp_exchange_refuse(exchange, 503, NULL, "the daemon is shutting down");
    MHD_resume_connection(exchange->mhd);
}

void kvp_parser_stop(struct kvp_http *http)
{
    kvb_queue_close(&http->parsing, drop, http);
    atomic_store(&http->parser_stopping, true);
    wake(http);
    pthread_join(http->parser, NULL);
}

void kvp_parser_cleanup(struct kvp_http *http)
{
    kvb_queue_cleanup(&http->parsing);
    sem_destroy(&http->parser_woken);
}
