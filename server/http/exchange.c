/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Design. An exchange is one request and its answer: made when the request line is known
 * (kvp_exchange_target) and freed when libmicrohttpd says that it is completed, however that came.
 * Its phases:
 *
 *   HEAD -> BODY -> ANSWERING                          a probe, or a refusal
 *        -> BODY -> SUBMITTED -> ANSWERING             a control request
 *        -> BODY -> PARSING -> SUBMITTED -> ANSWERING  one with a large body
 *        -> BODY -> PASSING -> ANSWERING               one for the engine's server
 *
 * All of it runs in libmicrohttpd's thread, which never waits: a body that would take long to parse
 * is handed to the parser, a control request to control. Meanwhile the connection is suspended and
 * the exchange is theirs. They give it back by resuming the connection as their last act, which may
 * be before the call that handed it over has returned; after that only the HTTP thread touches it.
 * So nothing is locked here but the count of answers owed, which kvp_http_stop() waits for.
 *
 * A refused request's body is read to its end and dropped, so that the client, who is still
 * sending, gets to read the answer, and the connection can go on. Only if the end of the body is
 * not certain, or too far, is the answer sent at once and the connection closed.
 */
#include "http/errors.h"
#include "http/internal.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BODY_CHUNK   (16u << 10) /* first size of a body's buffer */
#define PARSE_INLINE (64u << 10) /* a larger body would keep the HTTP thread for too long */

/* ---- the life of an exchange ---- */

static void reply(struct kvp_request *request, unsigned http_status, json_t *body,
                  unsigned retry_after_s);

/* We read the query from our copy. libmicrohttpd would take memory of the connection for each of
 * its parameters, and after some thousand have none left to answer with: it gets to see one. */
static void hide_parameters(char *target)
{
    char *at = strchr(target, '?');
    while (at != NULL && (at = strchr(at, '&')) != NULL) {
        *at = '+';
    }
}

static struct kvp_exchange *take_exchange(struct kvp_http *http)
{
    if (http->nspare == 0) {
        return calloc(1, sizeof(struct kvp_exchange));
    }
    struct kvp_exchange *exchange = http->spare[--http->nspare];
    memset(exchange, 0, sizeof *exchange);
    return exchange;
}

static void give_exchange(struct kvp_http *http, struct kvp_exchange *exchange)
{
    exchange->magic = 0;
    if (exchange->target != exchange->short_target) {
        free(exchange->target);
    }
    if (http->nspare < KVP_SPARE_MAX) {
        http->spare[http->nspare++] = exchange;
    } else {
        free(exchange);
    }
}

void kvp_exchanges_cleanup(struct kvp_http *http)
{
    while (http->nspare > 0) {
        free(http->spare[--http->nspare]);
    }
}

/* A target beyond the limit is not kept whole: it is refused. */
static bool copy_target(struct kvp_exchange *exchange, const char *target)
{
    size_t len = strlen(target);

    exchange->raw_target = target;
    exchange->raw_target_len = len;
    if (len < sizeof exchange->short_target) {
        exchange->target = memcpy(exchange->short_target, target, len + 1);
    } else {
        exchange->target = strndup(target, KVP_HTTP_TARGET_MAX + 1);
    }
    return exchange->target != NULL;
}

/* First notice of a request: its request line is there. The result becomes *con_cls. */
void *kvp_exchange_target(void *cls, const char *target, struct MHD_Connection *mhd)
{
    struct kvp_http *http = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct kvp_connection *connection = info != NULL ? info->socket_context : NULL;
    if (connection == NULL) {
        return NULL;
    }
    struct kvp_exchange *exchange = take_exchange(http);
    if (exchange == NULL || !copy_target(exchange, target)) {
        free(exchange);
        return NULL;
    }
    exchange->magic = KVP_EXCHANGE_MAGIC;
    exchange->http = http;
    exchange->mhd = mhd;
    exchange->connection = connection;
    connection->exchange = exchange;
    exchange->begun_ns = kvb_now_ns(http->config.clock);
    kvb_list_init(&exchange->stream.link);
    hide_parameters((char *)(uintptr_t)target); /* const by the callback's type alone */
    exchange->request.reply = reply;
    kvp_connection_enters(&http->connections, connection, KVP_CONNECTION_RECEIVING,
                          exchange->begun_ns);
    return exchange;
}

void kvp_exchange_enters(struct kvp_exchange *exchange, enum kvp_connection_state state)
{
    kvp_connection_enters(&exchange->http->connections, exchange->connection, state,
                          kvb_now_ns(exchange->http->config.clock));
}

static void pay(struct kvp_http *http)
{
    pthread_mutex_lock(&http->lock);
    kvb_assert(http->owed > 0);
    http->owed--;
    if (http->owed == 0) {
        pthread_cond_broadcast(&http->paid);
    }
    pthread_mutex_unlock(&http->lock);
}

static void trace(const struct kvp_exchange *exchange, uint64_t now_ns)
{
    const struct kvp_route *route = exchange->request.route;

    kvb_log_request(exchange->request.request_id);
    KVB_LOG(
        TRACE, "request answered", KVB_STR("operation", route != NULL ? route->operation : NULL),
        KVB_U64("http_status", exchange->http_status), KVB_MS("took", now_ns - exchange->begun_ns));
    kvb_log_request(NULL);
}

void kvp_exchange_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                            enum MHD_RequestTerminationCode code)
{
    struct kvp_http *http = cls;
    struct kvp_exchange *exchange = *con_cls;

    (void)code;
    *con_cls = NULL;
    if (exchange == NULL) {
        return;
    }
    kvb_assert(exchange->magic == KVP_EXCHANGE_MAGIC &&
               (exchange->phase != KVP_SUBMITTED || exchange->http_status != 0));
    exchange->connection->exchange = NULL;
    uint64_t now_ns = kvb_now_ns(http->config.clock);
    if (http->config.ops->answered != NULL && exchange->http_status != 0) {
        const union MHD_ConnectionInfo *from =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
        http->config.ops->answered(
            http->config.ctx,
            &(struct kvp_http_answered){
                .route = exchange->request.route,
                .http_status = exchange->http_status,
                .took_ns = now_ns - exchange->begun_ns,
                .request_id = exchange->request.request_id,
                .instance = exchange->request.instance,
                .from = from != NULL ? from->client_addr : NULL,
                .peer = http->config.unix_path != NULL ? &exchange->connection->peer : NULL,
                .token = exchange->token});
    }
    if (kvb_log_threshold >= KVB_LOG_TRACE) {
        trace(exchange, now_ns);
    }
    kvp_connection_enters(&http->connections, exchange->connection, KVP_CONNECTION_IDLE, now_ns);
    http->bodies -= exchange->body_cap;
    kvp_exchange_stream_ended(exchange);
    kvp_pass_ended(exchange);
    if (exchange->owed) {
        pay(http);
    }
    json_decref(exchange->json);
    json_decref(exchange->request.json);
    free(exchange->request.body);
    give_exchange(http, exchange);
}

/* The loop's answer, exactly once. */
static void reply(struct kvp_request *request, unsigned http_status, json_t *body,
                  unsigned retry_after_s)
{
    struct kvp_exchange *exchange = kvb_container_of(request, struct kvp_exchange, request);

    kvb_assert(exchange->magic == KVP_EXCHANGE_MAGIC && exchange->phase == KVP_SUBMITTED &&
               exchange->http_status == 0);
    exchange->http_status = http_status;
    exchange->json = body;
    exchange->retry_after_s = retry_after_s;
    MHD_resume_connection(exchange->mhd);
}

/* ---- answering ---- */

/* Sent when there is no memory to make any other. */
static const char out_of_memory[] =
    "{\"error\":{\"message\":\"out of memory\",\"type\":\"ServiceUnavailableError\","
    "\"param\":null,\"code\":503}}";

enum MHD_Result kvp_exchange_queue(struct kvp_exchange *exchange, struct MHD_Response *response,
                                   const char *content_type)
{
    if (response == NULL) {
        return MHD_NO; /* no memory for anything: the connection ends, which is an answer too */
    }
    char number[16];
    bool ok =
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, content_type) == MHD_YES &&
        MHD_add_response_header(response, "X-Request-Id", exchange->request.request_id) == MHD_YES;
    if (exchange->retry_after_s > 0) {
        snprintf(number, sizeof number, "%u", exchange->retry_after_s);
        ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, number) == MHD_YES;
    }
    if (exchange->extra_name != NULL) {
        ok &= MHD_add_response_header(response, exchange->extra_name, exchange->extra_value) ==
              MHD_YES;
    }
    if (exchange->request.location[0] != '\0') {
        ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_LOCATION,
                                      exchange->request.location) == MHD_YES;
    }
    if (exchange->close || exchange->http->config.ops->stopping(exchange->http->config.ctx)) {
        ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close") == MHD_YES;
    }
    enum MHD_Result result =
        ok ? kvp_queue_response(exchange->mhd, exchange->http_status, response) : MHD_NO;
    MHD_destroy_response(response);
    return result;
}

/* Takes text (malloc'd), unless it is a constant. */
static enum MHD_Result answer_text(struct kvp_exchange *exchange, const char *text, size_t len,
                                   bool constant, const char *content_type)
{
    union {
        const char *in;
        void *out;
    } bytes = {.in = text}; /* only read, in spite of the type */
    struct MHD_Response *response = MHD_create_response_from_buffer(
        len, bytes.out, constant ? MHD_RESPMEM_PERSISTENT : MHD_RESPMEM_MUST_FREE);
    if (response == NULL && !constant) {
        free(bytes.out);
    }
    return kvp_exchange_queue(exchange, response, content_type);
}

/* Sends what http_status, json, … of the exchange say. */
enum MHD_Result kvp_exchange_answer(struct kvp_exchange *exchange)
{
    char *text = NULL;

    exchange->phase = KVP_ANSWERING;
    kvp_exchange_enters(exchange, KVP_CONNECTION_SENDING);
    if (exchange->json != NULL) {
        text = json_dumps(exchange->json, JSON_COMPACT | JSON_REAL_PRECISION(9));
    }
    if (text != NULL) {
        return answer_text(exchange, text, strlen(text), false, "application/json");
    }
    exchange->http_status = 503;
    return answer_text(exchange, out_of_memory, sizeof out_of_memory - 1, true, "application/json");
}

/* Decides the answer; it is sent once the body has been read. */
void kvp_exchange_refuse(struct kvp_exchange *exchange, unsigned http_status, const char *param,
                         const char *message)
{
    kvb_assert(exchange->http_status == 0);
    exchange->http_status = http_status;
    exchange->json = kvp_error_body(http_status, param, message);
}

/* ---- the head and the body ---- */

static enum MHD_Result begin(struct kvp_exchange *exchange, const char *method, const char *version)
{
    kvp_exchange_check_head(exchange, method, version);
    exchange->phase = KVP_BODY;
    if (exchange->http_status == 0 && exchange->request.route->where == KVP_PASS) {
        kvp_pass_begin(exchange, method);
    }
    if (exchange->http_status != 0 && kvp_framing_has_body(&exchange->framing) &&
        (MHD_lookup_connection_value(exchange->mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT) !=
             NULL ||
         exchange->framing.length > KVP_HTTP_DISCARD_MAX)) {
        exchange->close = true; /* it waits for our word before it sends, or would send too much */
    }
    return exchange->close ? kvp_exchange_answer(exchange) : MHD_YES;
}

static void drop_body(struct kvp_exchange *exchange)
{
    free(exchange->request.body);
    exchange->request.body = NULL;
    exchange->request.body_len = 0;
    exchange->http->bodies -= exchange->body_cap;
    exchange->body_cap = 0;
}

/* Room for len more bytes and a NUL. */
static bool grow_body(struct kvp_exchange *exchange, size_t len)
{
    struct kvp_http *http = exchange->http;
    size_t need = exchange->request.body_len + len + 1;
    size_t cap = exchange->body_cap > 0 ? exchange->body_cap : BODY_CHUNK;

    while (cap < need) {
        cap *= 2;
    }
    if (cap == exchange->body_cap) {
        return true;
    }
    if (http->bodies - exchange->body_cap + cap > KVP_HTTP_BODIES_MAX) {
        return false;
    }
    char *body = realloc(exchange->request.body, cap);
    if (body == NULL) {
        return false;
    }
    http->bodies += cap - exchange->body_cap;
    exchange->request.body = body;
    exchange->body_cap = cap;
    return true;
}

/* *len: what is left. */
static enum MHD_Result take_body(struct kvp_exchange *exchange, const char *data, size_t *left)
{
    size_t len = *left;
    struct kvp_request *request = &exchange->request;

    if (exchange->pass != NULL) {
        return kvp_pass_body(exchange, data, left);
    }
    *left = 0;
    exchange->received += len;
    if (exchange->http_status == 0 && exchange->received > request->route->body_max) {
        kvp_exchange_refuse(exchange, 413, "body", "the body is larger than this route takes");
    }
    if (exchange->http_status == 0 && request->route->method == KVP_POST) {
        if (grow_body(exchange, len)) {
            memcpy(request->body + request->body_len, data, len);
            request->body_len += len;
            request->body[request->body_len] = '\0';
            return MHD_YES;
        }
        kvp_exchange_refuse(exchange, 503, NULL, "too many request bodies at one time; try again");
        exchange->retry_after_s = 1;
    }
    drop_body(exchange); /* of a GET nobody reads it; of a refused request neither */
    return exchange->received <= KVP_HTTP_DISCARD_MAX ? MHD_YES : MHD_NO;
}

/* ---- a whole request ---- */

static enum MHD_Result answer_probe(struct kvp_exchange *exchange)
{
    struct kvp_http *http = exchange->http;
    struct kvp_probe_answer probe = {.http_status = 200};

    http->config.ops->probe(http->config.ctx, exchange->request.route, exchange->request.instance,
                            &probe);
    exchange->http_status = probe.http_status;
    exchange->json = probe.json;
    if (probe.text == NULL) {
        return kvp_exchange_answer(exchange);
    }
    exchange->phase = KVP_ANSWERING;
    kvp_exchange_enters(exchange, KVP_CONNECTION_SENDING);
    return answer_text(exchange, probe.text, probe.text_len, probe.constant, probe.content_type);
}

static enum MHD_Result submit(struct kvp_exchange *exchange)
{
    struct kvp_http *http = exchange->http;

    exchange->phase = KVP_SUBMITTED;
    kvp_exchange_enters(exchange, KVP_CONNECTION_WAITING);
    MHD_suspend_connection(exchange->mhd); /* before submit: the reply may come at once */
    kvb_status_t status = kvp_inbox_submit(http->config.inbox, &exchange->request);
    if (status != KVB_OK) {
        reply(&exchange->request, 503,
              kvp_error_body(503, NULL,
                             status == KVB_ERR_CANCELED ? "the daemon is shutting down"
                                                        : "too many requests; try again"),
              status == KVB_ERR_CANCELED ? 0 : 1);
    }
    return MHD_YES;
}

static enum MHD_Result let_parse(struct kvp_exchange *exchange)
{
    exchange->phase = KVP_PARSING;
    kvp_exchange_enters(exchange, KVP_CONNECTION_WAITING);
    MHD_suspend_connection(exchange->mhd);
    if (kvp_parser_put(exchange) != KVB_OK) {
        kvp_exchange_refuse(exchange, 503, NULL, "the daemon is shutting down");
        MHD_resume_connection(exchange->mhd);
    }
    return MHD_YES;
}

static bool accepts_stream(const struct kvp_exchange *exchange)
{
    const char *accept =
        MHD_lookup_connection_value(exchange->mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);
    return accept != NULL && strstr(accept, "text/event-stream") != NULL;
}

/* Those that are to wait leave room for probes, which do not, and for those of others. */
static void check_room(struct kvp_exchange *exchange)
{
    const struct kvp_http *http = exchange->http;
    const struct kvp_connection *connection = exchange->connection;
    enum kvp_where where = exchange->request.route->where;
    const char *why = NULL;

    if (where == KVP_PROBE || where == KVP_STATIC || where == KVP_PASS) {
        return;
    }
    if (kvp_connections_crowded(&http->connections)) {
        why = "too many requests; try again";
    } else if (http->config.requests_each_max != 0 && connection->has_from &&
               kvp_connections_wait_from(&http->connections, connection,
                                         http->config.requests_each_max)) {
        why = "too many requests from this address (requests-each-max); try again";
    }
    if (why != NULL) {
        kvp_exchange_refuse(exchange, 503, NULL, why);
        exchange->retry_after_s = 1;
    }
}

/* The body is there, or there is none. */
static enum MHD_Result whole(struct kvp_exchange *exchange)
{
    struct kvp_http *http = exchange->http;

    pthread_mutex_lock(&http->lock);
    http->owed++;
    pthread_mutex_unlock(&http->lock);
    exchange->owed = true;
    if (exchange->pass != NULL) {
        return kvp_pass_whole(exchange);
    }
    if (exchange->http_status == 0) {
        check_room(exchange);
    }
    if (exchange->http_status == 0 && exchange->request.body_len > PARSE_INLINE) {
        return let_parse(exchange);
    }
    if (exchange->http_status == 0) {
        kvp_exchange_parse(exchange);
    }
    if (exchange->http_status != 0) {
        return kvp_exchange_answer(exchange);
    }
    switch (exchange->request.route->where) {
    case KVP_PROBE:
        return answer_probe(exchange);
    case KVP_STATIC:
        return kvp_exchange_document(exchange);
    case KVP_STREAM:
        if (accepts_stream(exchange)) {
            return kvp_exchange_stream(exchange);
        }
        return submit(exchange);
    case KVP_CONTROL:
        return submit(exchange);
    case KVP_PASS: /* above */
        break;
    }
    KVB_UNREACHABLE("where");
}

enum MHD_Result kvp_exchange_handle(void *cls, struct MHD_Connection *mhd, const char *url,
                                    const char *method, const char *version, const char *data,
                                    size_t *len, void **con_cls)
{
    struct kvp_exchange *exchange = *con_cls;

    (void)cls;
    (void)mhd;
    (void)url; /* cut at an encoded NUL and its slashes decoded: the target is what was sent */
    if (exchange == NULL) {
        return MHD_NO; /* there was no memory for it */
    }
    kvb_assert(exchange->magic == KVP_EXCHANGE_MAGIC);
    switch (exchange->phase) {
    case KVP_HEAD:
        return begin(exchange, method, version);
    case KVP_BODY:
        if (*len > 0) {
            return take_body(exchange, data, len);
        }
        return whole(exchange);
    case KVP_PARSING: /* resumed */
        return exchange->http_status != 0 ? kvp_exchange_answer(exchange) : submit(exchange);
    case KVP_SUBMITTED: /* resumed */
        return kvp_exchange_answer(exchange);
    case KVP_PASSING: /* resumed */
        return kvp_pass_answer(exchange);
    case KVP_ANSWERING:
        return MHD_YES;
    }
    KVB_UNREACHABLE("phase");
}
