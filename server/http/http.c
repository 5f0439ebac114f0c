/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Design. One thread, libmicrohttpd's, runs everything below but kvp_http_start/stop and reply().
 *
 * A request is an `exchange`, made when its request line is known (target_known) and freed when
 * libmicrohttpd says that it is completed, however that came (completed). Its phases:
 *
 *   HEAD -> BODY -> ANSWERING              a probe, or a refusal, or
 *        -> BODY -> SUBMITTED -> ANSWERING a control request
 *
 * A refused request's body is read to its end and dropped, so that the client, who is still
 * sending, gets to read the answer, and the connection can go on. Only if the end of the body is
 * not certain, or too far, is the answer sent at once and the connection closed.
 *
 * In SUBMITTED the connection is suspended. The exchange then belongs to control until reply(),
 * which may run on another thread and may even run before kvp_control_submit() has returned; it
 * resumes the connection as its last act, after which only the HTTP thread touches the exchange. So
 * nothing is locked here but the count of answers owed, which kvp_http_stop() waits for.
 *
 * Connections hang in one of two lists, oldest first: idle (no request begun) and receiving. At the
 * limit, the oldest of both is shut down for each new one: a probe on a new connection always gets
 * in. Those whose request is being answered are never touched.
 */
#include "http/http.h"

#include "http/errors.h"
#include "http/framing.h"
#include "http/params.h"
#include "http/probes.h"

#include "base/assert.h"
#include "base/list.h"
#include "base/log.h"

#include <microhttpd.h>

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTEN_BACKLOG    1024
#define CONNECTIONS_SPARE 16 /* above the limit: room while evicted ones are being closed */
#define CONNECTIONS_MIN   16
#define BODY_CHUNK        (16u << 10) /* first size of a body's buffer */

struct connection {
    struct kvb_list link; /* in idle or receiving, or in none while answered */
    int fd;               /* borrowed from libmicrohttpd until its CLOSED notice */
    uint64_t since_ns;    /* in this list */
};

enum phase { HEAD, BODY, SUBMITTED, ANSWERING };

#define EXCHANGE_MAGIC 0x6b76685eu

struct exchange {
    uint32_t magic;
    enum phase phase;
    struct kvp_http *http;
    struct MHD_Connection *mhd;
    struct connection *connection;
    uint64_t begun_ns;
    const char *raw_target; /* libmicrohttpd's, only to be compared */
    size_t raw_target_len;
    char *target;      /* path and query as sent; owned */
    const char *query; /* in target; NULL: none */
    struct kvp_framing framing;
    size_t body_cap;
    uint64_t received; /* bytes of body, kept or dropped */
    bool owed;         /* counted in http->owed */
    bool close;        /* after the answer */
    /* What was decided, by a check or by reply(): the answer. http_status 0: nothing yet. */
    unsigned http_status;
    json_t *json;
    unsigned retry_after_s;
    const char *extra_name; /* one more header */
    const char *extra_value;
    struct kvp_request request;
};

struct kvp_http {
    struct MHD_Daemon *mhd; /* immutable after start */
    struct kvp_http_config config;
    struct kvp_http_token *tokens; /* immutable */
    uint32_t connections_max;      /* immutable */
    uint16_t port;                 /* immutable */
    int listener;                  /* libmicrohttpd's until quiesced */
    /* HTTP thread only */
    struct kvb_list idle;
    struct kvb_list receiving;
    uint32_t connections;
    uint64_t bodies; /* bytes of all request bodies */
    /* guarded by lock */
    pthread_mutex_t lock;
    pthread_cond_t paid; /* owed became 0 */
    uint32_t owed;       /* whole requests not yet completed */
};

/* ---- connections ---- */

static void move_to(struct connection *connection, struct kvb_list *list, uint64_t now_ns)
{
    kvb_list_remove(&connection->link);
    kvb_list_push_back(list, &connection->link);
    connection->since_ns = now_ns;
}

static struct connection *oldest(struct kvb_list *list)
{
    struct kvb_list *first = kvb_list_first(list);
    return first != NULL ? kvb_container_of(first, struct connection, link) : NULL;
}

static void shut(struct connection *connection, const char *why)
{
    kvb_list_remove(&connection->link);
    KVB_LOG_LIMITED(WARN, "connection closed", KVB_STR("why", why));
    shutdown(connection->fd, SHUT_RDWR); /* libmicrohttpd sees its end, and closes it */
}

/* Before one more connection is counted. */
static void make_room(struct kvp_http *http, uint64_t now_ns)
{
    struct connection *idle = oldest(&http->idle);
    struct connection *sender;

    while ((sender = oldest(&http->receiving)) != NULL &&
           now_ns - sender->since_ns > KVP_HTTP_RECEIVE_S * KVB_NS_PER_S) {
        shut(sender, "its request did not arrive whole in time");
    }
    if (http->connections < http->connections_max) {
        return;
    }
    if (idle != NULL && (sender == NULL || idle->since_ns <= sender->since_ns)) {
        shut(idle, "too many connections: the longest idle one");
    } else if (sender != NULL) {
        shut(sender, "too many connections: the slowest sender");
    }
}

static void connection_notice(void *cls, struct MHD_Connection *mhd, void **context,
                              enum MHD_ConnectionNotificationCode code)
{
    struct kvp_http *http = cls;
    struct connection *connection = *context;

    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (connection != NULL) {
            kvb_list_remove(&connection->link);
            free(connection);
            http->connections--;
        }
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    connection = info != NULL ? calloc(1, sizeof *connection) : NULL;
    if (connection == NULL) {
        return; /* its first request will find no context, and be closed */
    }
    uint64_t now_ns = kvb_now_ns(http->config.clock);
    connection->fd = info->connect_fd;
    kvb_list_init(&connection->link);
    make_room(http, now_ns);
    move_to(connection, &http->idle, now_ns);
    *context = connection;
    http->connections++;
}

/* ---- the life of an exchange ---- */

static void reply(struct kvp_request *request, unsigned http_status, json_t *body,
                  unsigned retry_after_s);

/* First notice of a request: its request line is there. The result becomes *con_cls. */
static void *target_known(void *cls, const char *target, struct MHD_Connection *mhd)
{
    struct kvp_http *http = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct connection *connection = info != NULL ? info->socket_context : NULL;
    if (connection == NULL) {
        return NULL;
    }
    struct exchange *exchange = calloc(1, sizeof *exchange);
    char *copy = strndup(target, KVP_HTTP_TARGET_MAX + 1);
    if (exchange == NULL || copy == NULL) {
        free(exchange);
        free(copy);
        return NULL;
    }
    exchange->magic = EXCHANGE_MAGIC;
    exchange->http = http;
    exchange->mhd = mhd;
    exchange->connection = connection;
    exchange->begun_ns = kvb_now_ns(http->config.clock);
    exchange->raw_target = target;
    exchange->raw_target_len = strlen(target);
    exchange->target = copy;
    exchange->request.reply = reply;
    move_to(connection, &http->receiving, exchange->begun_ns);
    return exchange;
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

static void completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                      enum MHD_RequestTerminationCode code)
{
    struct kvp_http *http = cls;
    struct exchange *exchange = *con_cls;

    (void)mhd;
    (void)code;
    *con_cls = NULL;
    if (exchange == NULL) {
        return;
    }
    kvb_assert(exchange->magic == EXCHANGE_MAGIC &&
               (exchange->phase != SUBMITTED || exchange->http_status != 0));
    uint64_t now_ns = kvb_now_ns(http->config.clock);
    if (http->config.answered != NULL && exchange->http_status != 0) {
        http->config.answered(http->config.answered_ctx,
                              &(struct kvp_http_answered){.route = exchange->request.route,
                                                          .http_status = exchange->http_status,
                                                          .took_ns = now_ns - exchange->begun_ns});
    }
    kvb_log_request(exchange->request.request_id);
    KVB_LOG(TRACE, "request answered",
            KVB_STR("operation",
                    exchange->request.route != NULL ? exchange->request.route->operation : NULL),
            KVB_U64("http_status", exchange->http_status),
            KVB_MS("took", now_ns - exchange->begun_ns));
    kvb_log_request(NULL);
    move_to(exchange->connection, &http->idle, now_ns);
    http->bodies -= exchange->body_cap;
    if (exchange->owed) {
        pay(http);
    }
    json_decref(exchange->json);
    json_decref(exchange->request.json);
    free(exchange->request.body);
    free(exchange->target);
    exchange->magic = 0;
    free(exchange);
}

/* The loop's answer, exactly once. */
static void reply(struct kvp_request *request, unsigned http_status, json_t *body,
                  unsigned retry_after_s)
{
    struct exchange *exchange = kvb_container_of(request, struct exchange, request);

    kvb_assert(exchange->magic == EXCHANGE_MAGIC && exchange->phase == SUBMITTED &&
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

static enum MHD_Result queue(struct exchange *exchange, struct MHD_Response *response,
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
    if (exchange->close || kvp_board_is_stopping(exchange->http->config.board)) {
        ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close") == MHD_YES;
    }
    enum MHD_Result result =
        ok ? MHD_queue_response(exchange->mhd, exchange->http_status, response) : MHD_NO;
    MHD_destroy_response(response);
    return result;
}

/* Takes text (malloc'd). */
static enum MHD_Result answer_text(struct exchange *exchange, char *text, size_t len,
                                   const char *content_type)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(text);
    }
    return queue(exchange, response, content_type);
}

/* Sends what http_status, json, … of the exchange say. */
static enum MHD_Result answer(struct exchange *exchange)
{
    char *text = NULL;

    exchange->phase = ANSWERING;
    kvb_list_remove(&exchange->connection->link);
    if (exchange->json != NULL) {
        text = json_dumps(exchange->json, JSON_COMPACT | JSON_REAL_PRECISION(9));
    }
    if (text != NULL) {
        return answer_text(exchange, text, strlen(text), "application/json");
    }
    exchange->http_status = 503;
    union {
        const char *in;
        void *out;
    } constant = {.in = out_of_memory}; /* only read, in spite of the type */
    return queue(exchange,
                 MHD_create_response_from_buffer(sizeof out_of_memory - 1, constant.out,
                                                 MHD_RESPMEM_PERSISTENT),
                 "application/json");
}

/* Decides the answer; it is sent once the body has been read. */
static void refuse(struct exchange *exchange, unsigned http_status, const char *param,
                   const char *message)
{
    kvb_assert(exchange->http_status == 0);
    exchange->http_status = http_status;
    exchange->json = kvp_error_body(http_status, param, message);
}

/* ---- the head of a request ---- */

static const char *header(struct exchange *exchange, const char *name)
{
    return MHD_lookup_connection_value(exchange->mhd, MHD_HEADER_KIND, name);
}

static bool sane_request_id(const char *id)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
    size_t len = strspn(id, allowed);
    return len > 0 && len < KVB_REQUEST_ID_MAX && id[len] == '\0';
}

static void name_request(struct exchange *exchange)
{
    const char *given = header(exchange, "X-Request-Id");
    char hex[KVB_ID_HEX_LEN + 1];

    if (given == NULL || !sane_request_id(given)) {
        kvb_id_format(kvb_id_draw(exchange->http->config.random), hex);
        given = hex;
    }
    strcpy(exchange->request.request_id, given);
}

/* Is word one of a comma-separated list (RFC 7240: parameters after ';' do not matter)? */
static bool list_has(const char *list, const char *word)
{
    while (list != NULL && *list != '\0') {
        list += strspn(list, " \t,");
        size_t len = strcspn(list, ",; \t=");
        if (len == strlen(word) && strncasecmp(list, word, len) == 0) {
            return true;
        }
        list += strcspn(list, ",");
    }
    return false;
}

/* Compares all of both, whatever they hold, so that time tells nothing about where they differ. */
static bool same_secret(const char a[KVP_HTTP_TOKEN_MAX], const char b[KVP_HTTP_TOKEN_MAX])
{
    unsigned char differ = 0;
    for (size_t i = 0; i < KVP_HTTP_TOKEN_MAX; i++) {
        differ |= (unsigned char)(a[i] ^ b[i]);
    }
    return differ == 0;
}

static void check_token(struct exchange *exchange)
{
    const struct kvp_http *http = exchange->http;
    const char *given = header(exchange, MHD_HTTP_HEADER_AUTHORIZATION);
    char secret[KVP_HTTP_TOKEN_MAX] = {0};
    bool known = false;
    bool allowed = false;

    if (http->config.ntokens == 0 || exchange->request.route->where == KVP_PROBE) {
        return;
    }
    if (given != NULL && strncasecmp(given, "Bearer ", 7) == 0 &&
        strlen(given + 7) < KVP_HTTP_TOKEN_MAX) {
        strncpy(secret, given + 7, sizeof secret - 1);
    }
    for (uint32_t i = 0; i < http->config.ntokens; i++) {
        bool same = same_secret(secret, http->tokens[i].secret);
        known |= same;
        allowed |= same && http->tokens[i].role >= exchange->request.route->role;
    }
    if (!known || secret[0] == '\0') {
        refuse(exchange, 401, NULL,
               "this needs an Authorization: Bearer header with a valid token");
        exchange->extra_name = MHD_HTTP_HEADER_WWW_AUTHENTICATE;
        exchange->extra_value = "Bearer";
    } else if (!allowed) {
        refuse(exchange, 403, NULL, "this needs a token with the role admin");
    }
}

/* The path of a target; absolute form (http://host/path, as proxies send) is understood too. */
static const char *path_of(const char *target)
{
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        const char *path = strchr(strchr(target, ':') + 3, '/');
        return path != NULL ? path : "/";
    }
    return target;
}

static void find_route(struct exchange *exchange, const char *method)
{
    const char *path = path_of(exchange->target);
    size_t len = strcspn(path, "?");
    const struct kvp_route *route = NULL;

    exchange->query = path[len] == '?' ? path + len + 1 : NULL;
    switch (kvp_route_find(method, path, len, &route, exchange->request.path_arg)) {
    case KVP_FOUND:
        exchange->request.route = route;
        return;
    case KVP_FOUND_NOTHING:
        refuse(exchange, 404, NULL, "there is no such route; GET /openapi.yaml lists them");
        return;
    case KVP_FOUND_OTHER_METHOD:
        refuse(exchange, 405, NULL,
               route->method == KVP_GET ? "this route answers GET" : "this route answers POST");
        exchange->extra_name = MHD_HTTP_HEADER_ALLOW;
        exchange->extra_value = kvp_route_allow(route);
        return;
    case KVP_FOUND_BAD_PATH:
        refuse(exchange, 400, "path",
               "a '%' in the path must be followed by two hex digits and must not code a NUL");
        return;
    }
    KVB_UNREACHABLE("found");
}

/* Checks that need no body. The first that fails decides the answer. */
static void check_head(struct exchange *exchange, const char *method, const char *version)
{
    const union MHD_ConnectionInfo *size =
        MHD_get_connection_info(exchange->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    const char *expect = header(exchange, MHD_HTTP_HEADER_EXPECT);
    const char *ambiguous = kvp_framing_ambiguous(&exchange->framing, version);

    if (ambiguous == NULL &&
        kvp_framing_target_cut(exchange->raw_target, exchange->raw_target_len, version)) {
        ambiguous = "a NUL in the request line";
    }
    if (ambiguous == NULL && !kvp_framing_target_plain(exchange->target)) {
        ambiguous = "a space or a control character in the target: code it as %XX";
    }
    if (ambiguous != NULL) {
        refuse(exchange, 400, NULL, ambiguous);
        exchange->close = true;
    } else if (exchange->raw_target_len > KVP_HTTP_TARGET_MAX) {
        refuse(exchange, 414, NULL, "path and query may have 8 KiB together");
    } else if (exchange->framing.headers > KVP_HTTP_HEADERS_MAX ||
               (size != NULL && size->header_size > KVP_HTTP_HEADER_MAX)) {
        refuse(exchange, 431, NULL, "at most 100 headers, and 32 KiB of them");
    } else if (expect != NULL && strcasecmp(expect, "100-continue") != 0) {
        refuse(exchange, 417, NULL, "the only expectation understood here is 100-continue");
    } else {
        find_route(exchange, method);
        if (exchange->http_status == 0) {
            check_token(exchange);
        }
        if (exchange->http_status == 0 &&
            exchange->framing.length > kvp_route_body_max(exchange->request.route)) {
            refuse(exchange, 413, "body", "the body is larger than this route takes");
        }
    }
}

static enum MHD_Result begin(struct exchange *exchange, const char *method, const char *version)
{
    kvp_framing_read(exchange->mhd, &exchange->framing);
    name_request(exchange);
    check_head(exchange, method, version);
    exchange->request.respond_async = list_has(header(exchange, "Prefer"), "respond-async");
    exchange->phase = BODY;
    if (exchange->http_status != 0 && kvp_framing_has_body(&exchange->framing) &&
        (header(exchange, MHD_HTTP_HEADER_EXPECT) != NULL ||
         exchange->framing.length > KVP_HTTP_DISCARD_MAX)) {
        exchange->close = true; /* it waits for our word before it sends, or would send too much */
    }
    return exchange->close ? answer(exchange) : MHD_YES;
}

/* ---- the body ---- */

static void drop_body(struct exchange *exchange)
{
    free(exchange->request.body);
    exchange->request.body = NULL;
    exchange->request.body_len = 0;
    exchange->http->bodies -= exchange->body_cap;
    exchange->body_cap = 0;
}

/* Room for len more bytes and a NUL. */
static bool grow_body(struct exchange *exchange, size_t len)
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

static enum MHD_Result take_body(struct exchange *exchange, const char *data, size_t len)
{
    struct kvp_request *request = &exchange->request;

    exchange->received += len;
    if (exchange->http_status == 0 && exchange->received > kvp_route_body_max(request->route)) {
        refuse(exchange, 413, "body", "the body is larger than this route takes");
    }
    if (exchange->http_status == 0 && request->route->method == KVP_POST) {
        if (grow_body(exchange, len)) {
            memcpy(request->body + request->body_len, data, len);
            request->body_len += len;
            request->body[request->body_len] = '\0';
            return MHD_YES;
        }
        refuse(exchange, 503, NULL, "too many request bodies at one time; try again");
        exchange->retry_after_s = 1;
    }
    drop_body(exchange); /* of a GET nobody reads it; of a refused request neither */
    return exchange->received <= KVP_HTTP_DISCARD_MAX ? MHD_YES : MHD_NO;
}

/* ---- a whole request ---- */

static enum MHD_Result answer_probe(struct exchange *exchange)
{
    struct kvp_http *http = exchange->http;
    struct kvp_probe_answer probe;

    kvp_probe(exchange->request.route, exchange->request.instance, http->config.board,
              http->config.metrics, &probe);
    exchange->http_status = probe.http_status;
    exchange->json = probe.json;
    if (probe.text == NULL) {
        return answer(exchange);
    }
    exchange->phase = ANSWERING;
    kvb_list_remove(&exchange->connection->link);
    return answer_text(exchange, probe.text, probe.text_len, probe.content_type);
}

/* Parses body and parameters. False: refused. */
static bool understand(struct exchange *exchange)
{
    struct kvp_request *request = &exchange->request;
    struct kvp_param_error wrong;

    if (request->body_len > 0) {
        json_error_t error;
        char message[256];
        json_t *json = json_loadb(request->body, request->body_len, 0, &error);
        if (!json_is_object(json)) {
            snprintf(message, sizeof message, "the body must be a JSON object, or empty%s%s",
                     json == NULL ? ": " : "", json == NULL ? error.text : "");
            json_decref(json);
            refuse(exchange, 400, "body", message);
            return false;
        }
        request->json = json;
    }
    if (kvp_params_read(request->route, exchange->query, request->json, &request->params,
                        request->instance, &wrong) != KVB_OK) {
        refuse(exchange, 400, wrong.param, wrong.message);
        return false;
    }
    return true;
}

static enum MHD_Result submit(struct exchange *exchange)
{
    struct kvp_http *http = exchange->http;

    exchange->phase = SUBMITTED;
    kvb_list_remove(&exchange->connection->link);
    MHD_suspend_connection(exchange->mhd); /* before submit: the reply may come at once */
    kvb_status_t status = http->config.submit(http->config.control, &exchange->request);
    if (status != KVB_OK) {
        reply(&exchange->request, 503,
              kvp_error_body(503, NULL,
                             status == KVB_ERR_CANCELED ? "the daemon is shutting down"
                                                        : "too many requests; try again"),
              status == KVB_ERR_CANCELED ? 0 : 1);
    }
    return MHD_YES;
}

/* The body is there, or there is none. */
static enum MHD_Result whole(struct exchange *exchange)
{
    struct kvp_http *http = exchange->http;

    pthread_mutex_lock(&http->lock);
    http->owed++;
    pthread_mutex_unlock(&http->lock);
    exchange->owed = true;
    if (exchange->http_status != 0 || !understand(exchange)) {
        return answer(exchange);
    }
    return exchange->request.route->where == KVP_PROBE ? answer_probe(exchange) : submit(exchange);
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *mhd, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *len, void **con_cls)
{
    struct exchange *exchange = *con_cls;

    (void)cls;
    (void)mhd;
    (void)url; /* cut at an encoded NUL and its slashes decoded: the target is what was sent */
    if (exchange == NULL) {
        return MHD_NO; /* there was no memory for it */
    }
    kvb_assert(exchange->magic == EXCHANGE_MAGIC);
    switch (exchange->phase) {
    case HEAD:
        return begin(exchange, method, version);
    case BODY:
        if (*len > 0) {
            enum MHD_Result result = take_body(exchange, data, *len);
            *len = 0;
            return result;
        }
        return whole(exchange);
    case SUBMITTED: /* resumed */
        return answer(exchange);
    case ANSWERING:
        return MHD_YES;
    }
    KVB_UNREACHABLE("phase");
}

/* ---- start and stop ---- */

static size_t keep_escapes(void *cls, struct MHD_Connection *mhd, char *text)
{
    (void)cls;
    (void)mhd;
    return strlen(text);
}

static void log_line(void *cls, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

static void log_line(void *cls, const char *format, va_list arguments)
{
    char text[512];

    (void)cls;
    vsnprintf(text, sizeof text, format, arguments);
    text[strcspn(text, "\n")] = '\0';
    KVB_LOG_LIMITED(DEBUG, "libmicrohttpd", KVB_STR("text", text));
}

static kvb_status_t listen_on(const char *address, uint16_t port, int *fd_p, uint16_t *port_p)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[8];
    int on = 1;
    kvb_status_t status = KVB_ERR_IO;

    snprintf(service, sizeof service, "%u", port);
    int error = getaddrinfo(address, service, &hints, &found);
    if (error != 0) {
        KVB_LOG(ERROR, "not an address to listen on", KVB_STR("address", address),
                KVB_STR("cause", gai_strerror(error)));
        return KVB_ERR_INVALID;
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, LISTEN_BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &len) != 0) {
        KVB_LOG(ERROR, "cannot listen", KVB_STR("address", address), KVB_U64("port", port),
                KVB_ERRNO(errno));
        goto err_socket;
    }
    char text[8];
    if (getnameinfo((struct sockaddr *)&bound, len, NULL, 0, text, sizeof text, NI_NUMERICSERV) !=
        0) {
        goto err_socket;
    }
    *fd_p = fd;
    *port_p = (uint16_t)strtoul(text, NULL, 10);
    freeaddrinfo(found);
    return KVB_OK;

err_socket:
    if (fd >= 0) {
        close(fd);
    }
    freeaddrinfo(found);
    return status;
}

/* What the process's descriptors allow. Reaching that limit instead would stop accept(). */
static uint32_t connections_allowed(uint32_t wanted)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
        rlim_t left = files.rlim_cur > KVP_HTTP_FDS_RESERVED
                          ? files.rlim_cur - KVP_HTTP_FDS_RESERVED
                          : files.rlim_cur / 4;
        if (wanted > left) {
            KVB_LOG(WARN, "fewer connections than configured: too few descriptors",
                    KVB_U64("configured", wanted), KVB_U64("allowed", left),
                    KVB_U64("nofile", files.rlim_cur));
            wanted = (uint32_t)left;
        }
    }
    return wanted > CONNECTIONS_MIN ? wanted : CONNECTIONS_MIN;
}

static kvb_status_t copy_tokens(struct kvp_http *http, const struct kvp_http_config *config)
{
    if (config->ntokens > KVP_HTTP_TOKENS_MAX) {
        KVB_LOG(ERROR, "too many tokens", KVB_U64("max", KVP_HTTP_TOKENS_MAX));
        return KVB_ERR_INVALID;
    }
    http->tokens = calloc(config->ntokens + 1, sizeof *http->tokens);
    if (http->tokens == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < config->ntokens; i++) {
        http->tokens[i] = config->tokens[i];
        http->tokens[i].secret[KVP_HTTP_TOKEN_MAX - 1] = '\0';
    }
    return KVB_OK;
}

static void init_lock(struct kvp_http *http)
{
    pthread_condattr_t monotonic;

    pthread_mutex_init(&http->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&http->paid, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static struct MHD_Daemon *start_daemon(struct kvp_http *http)
{
    unsigned idle_s =
        http->config.idle_timeout_s != 0 ? http->config.idle_timeout_s : KVP_HTTP_IDLE_S;

    /* poll, not epoll: 0.9.75 uses edge-triggered epoll and misses the end of a client that came
     * together with the first part of a request, so that vanished clients stay until the idle
     * timeout. Not strict: that would add one check, of Host, which kvp_framing_ambiguous() makes
     * too; and what the library finds wrong itself it answers with its header sent twice. */
    return MHD_start_daemon(
        MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        handle, http, MHD_OPTION_EXTERNAL_LOGGER, log_line, NULL, MHD_OPTION_LISTEN_SOCKET,
        http->listener, MHD_OPTION_NOTIFY_CONNECTION, connection_notice, http,
        MHD_OPTION_URI_LOG_CALLBACK, target_known, http, MHD_OPTION_NOTIFY_COMPLETED, completed,
        http, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_STRICT_FOR_CLIENT, 0,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)KVP_HTTP_CONNECTION_MEM,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)(http->connections_max + CONNECTIONS_SPARE),
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)http->config.connections_per_ip_max,
        MHD_OPTION_CONNECTION_TIMEOUT, idle_s, MHD_OPTION_END);
}

kvb_status_t kvp_http_start(const struct kvp_http_config *config, struct kvp_http **http_p)
{
    struct kvp_http *http = calloc(1, sizeof *http);
    if (http == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    const char *address = config->address != NULL ? config->address : "127.0.0.1";
    http->config = *config;
    http->connections_max = connections_allowed(
        config->connections_max != 0 ? config->connections_max : KVP_HTTP_CONNECTIONS);
    kvb_list_init(&http->idle);
    kvb_list_init(&http->receiving);
    init_lock(http);
    kvb_status_t status = copy_tokens(http, config);
    if (status != KVB_OK) {
        goto err_tokens;
    }
    status = listen_on(address, config->port, &http->listener, &http->port);
    if (status != KVB_OK) {
        goto err_tokens;
    }
    http->mhd = start_daemon(http);
    if (http->mhd == NULL) {
        KVB_LOG(ERROR, "libmicrohttpd does not start", KVB_ERRNO(errno));
        status = KVB_ERR_IO;
        goto err_listener;
    }
    KVB_LOG(INFO, "listening", KVB_STR("address", address), KVB_U64("port", http->port));
    *http_p = http;
    return KVB_OK;

err_listener:
    close(http->listener);
err_tokens:
    free(http->tokens);
    pthread_cond_destroy(&http->paid);
    pthread_mutex_destroy(&http->lock);
    free(http);
    return status;
}

uint16_t kvp_http_port(const struct kvp_http *http)
{
    return http->port;
}

/* Until nothing is owed, or KVP_HTTP_STOP_MS are over. */
static void await_answers(struct kvp_http *http)
{
    struct timespec until;
    int error = 0;

    clock_gettime(CLOCK_MONOTONIC, &until); /* the kernel's clock: pthread waits by no other */
    until.tv_sec += KVP_HTTP_STOP_MS / 1000;
    pthread_mutex_lock(&http->lock);
    while (http->owed > 0 && error == 0) {
        error = pthread_cond_timedwait(&http->paid, &http->lock, &until);
    }
    if (http->owed > 0) {
        KVB_LOG(WARN, "stopping before every answer was read", KVB_U64("unread", http->owed));
    }
    pthread_mutex_unlock(&http->lock);
}

void kvp_http_stop(struct kvp_http *http)
{
    int listener = MHD_quiesce_daemon(http->mhd);
    if (listener >= 0) {
        close(listener);
    }
    await_answers(http);
    MHD_stop_daemon(http->mhd);
    kvb_assert(kvb_list_empty(&http->idle) && kvb_list_empty(&http->receiving));
    free(http->tokens);
    pthread_cond_destroy(&http->paid);
    pthread_mutex_destroy(&http->lock);
    free(http);
}
