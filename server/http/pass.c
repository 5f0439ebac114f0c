/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is not ours goes to the engine's own server (server/proxy). The connection is suspended
 * whenever that is to be waited for, so a slow client or a slow server costs nobody else anything.
 * Like everybody who waits for an answer such a connection is never shut for another's sake; so
 * that they cannot be all, they have a share of their own.
 */
#include "http/internal.h"
#include "proxy/fields.h"
#include "proxy/proxy.h"

#include "base/assert.h"
#include "base/link.h"
#include "base/percent.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define READ_BLOCK (16u << 10)
#define OWN_MAX    4 /* headers that we add */
#define FROM_MAX   512

/* What stands for a route where there is none. */
static const struct kvp_route passed[] = {
    [KVP_ROLE_READ] = {.path = "",
                       .operation = "passed",
                       .role = KVP_ROLE_READ,
                       .where = KVP_PASS,
                       .body_max = UINT32_MAX},
    [KVP_ROLE_ADMIN] = {.path = "",
                        .operation = "passed_change",
                        .role = KVP_ROLE_ADMIN,
                        .where = KVP_PASS,
                        .body_max = UINT32_MAX},
};

/* ---- the head ---- */

/* Whatever reads such a path in another way than we do could take it for one of ours, which the
 * engine must not be asked for behind our back. */
static bool one_reading(const char *path, size_t len)
{
    const char *end = path + len;

    while (path < end) {
        char segment[8];
        const char *begin = path + 1;
        const char *slash = memchr(begin, '/', (size_t)(end - begin));
        path = slash != NULL ? slash : end;
        if (path == begin && path < end) {
            return false; /* an empty segment */
        }
        kvb_status_t status =
            kvb_percent_decode(begin, (size_t)(path - begin), false, segment, sizeof segment);
        if (status == KVB_OK && (strcmp(segment, ".") == 0 || strcmp(segment, "..") == 0)) {
            return false;
        }
        for (const char *at = begin; at < path; at++) {
            if (*at == '\\' || strncasecmp(at, "%2f", 3) == 0 || strncasecmp(at, "%5c", 3) == 0) {
                return false;
            }
        }
    }
    return true;
}

const struct kvp_route *kvp_pass_route(const struct kvp_http *http, const char *method,
                                       const char *path, size_t len)
{
    static const char own[] = "/v1/kvplane";

    if (http->config.proxy == NULL || len == 0 || *path != '/' ||
        strcmp(method, MHD_HTTP_METHOD_CONNECT) == 0 || !one_reading(path, len) ||
        (len >= sizeof own - 1 && memcmp(path, own, sizeof own - 1) == 0)) {
        return NULL;
    }
    return &passed[kvp_proxy_changes(method, path) ? KVP_ROLE_ADMIN : KVP_ROLE_READ];
}

struct head {
    struct kvp_exchange *exchange;
    struct kvp_proxy_header headers[KVP_HTTP_HEADERS_MAX + OWN_MAX];
    uint32_t n;
    char forwarded[FROM_MAX]; /* X-Forwarded-For so far */
    bool authorized;
};

static const char *header(const struct kvp_exchange *exchange, const char *name)
{
    return MHD_lookup_connection_value(exchange->mhd, MHD_HEADER_KIND, name);
}

struct naming {
    const char *name;
    bool found;
};

static enum MHD_Result find_named(void *arg, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    struct naming *naming = arg;

    (void)kind;
    naming->found =
        naming->found || (strcasecmp(name, MHD_HTTP_HEADER_CONNECTION) == 0 && value != NULL &&
                          kvp_field_named(value, naming->name, strlen(naming->name)));
    return naming->found ? MHD_NO : MHD_YES;
}

/* One of those that a Connection header names. */
static bool of_connection(const struct head *head, const char *name)
{
    struct naming naming = {.name = name};

    if (header(head->exchange, MHD_HTTP_HEADER_CONNECTION) != NULL) {
        MHD_get_connection_values(head->exchange->mhd, MHD_HEADER_KIND, find_named, &naming);
    }
    return naming.found;
}

static void add(struct head *head, const char *name, const char *value)
{
    kvb_assert(head->n < sizeof head->headers / sizeof head->headers[0]);
    head->headers[head->n++] = (struct kvp_proxy_header){.name = name, .value = value};
}

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* The newest are what somebody near has seen: where there are too many, the oldest make room. */
static void append_forwarded(struct head *head, const char *text)
{
    char *list = head->forwarded;
    size_t used = strlen(list);
    size_t len = strlen(text);
    const char *cut = list;

    while (len + 1 > FROM_MAX) {
        const char *comma = strchr(text, ',');
        text = comma != NULL ? comma + 1 : text + len;
        text += strspn(text, " ");
        len = strlen(text);
    }
    while (cut < list + used && (size_t)(list + used - cut) + 2 + len + 1 > FROM_MAX) {
        const char *comma = strchr(cut, ',');
        cut = comma != NULL ? comma + 1 : list + used;
        cut += strspn(cut, " ");
    }
    used -= (size_t)(cut - list);
    memmove(list, cut, used + 1);
    (void)snprintf(list + used, FROM_MAX - used, "%s%s", used > 0 && len > 0 ? ", " : "", text);
}

static enum MHD_Result take_header(void *arg, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    /* Ours, or made anew. */
    static const char *const own[] = {MHD_HTTP_HEADER_HOST,  MHD_HTTP_HEADER_EXPECT,
                                      "X-Request-Id",        "X-Forwarded-Proto",
                                      KVP_PASS_TOKEN_HEADER, KVP_PASS_INSTANCE_HEADER};
    struct head *head = arg;

    (void)kind;
    if (kvp_field_is_hop(name, strlen(name)) || is_one_of(name, own, sizeof own / sizeof own[0]) ||
        of_connection(head, name)) {
        return MHD_YES;
    }
    if (strcasecmp(name, "X-Forwarded-For") == 0) {
        append_forwarded(head, value);
        return MHD_YES;
    }
    if (strcasecmp(name, MHD_HTTP_HEADER_AUTHORIZATION) == 0) {
        if (kvp_exchange_is_own_token(head->exchange, value)) {
            return MHD_YES;
        }
        head->authorized = true;
    }
    add(head, name, value);
    return MHD_YES;
}

static void add_forwarded(struct head *head)
{
    const struct kvp_exchange *exchange = head->exchange;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(exchange->mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    char from[INET6_ADDRSTRLEN] = "";
    union {
        const struct sockaddr *any;
        const struct sockaddr_in *v4;
        const struct sockaddr_in6 *v6;
    } as = {.any = info != NULL ? info->client_addr : NULL};

    if (as.any != NULL && as.any->sa_family == AF_INET) {
        (void)inet_ntop(AF_INET, &as.v4->sin_addr, from, sizeof from);
    } else if (as.any != NULL && as.any->sa_family == AF_INET6) {
        (void)inet_ntop(AF_INET6, &as.v6->sin6_addr, from, sizeof from);
    }
    append_forwarded(head, from);
    if (head->forwarded[0] != '\0') {
        add(head, "X-Forwarded-For", head->forwarded);
    }
    add(head, "X-Forwarded-Proto", exchange->http->tls != NULL ? "https" : "http");
    add(head, "X-Request-Id", exchange->request.request_id);
}

/* By header, else by ?instance=; a value that is no name names nothing of ours. */
static void name_instance(struct kvp_exchange *exchange)
{
    static const char parameter[] = "instance=";
    const char *given = header(exchange, KVP_PASS_INSTANCE_HEADER);
    const char *at = exchange->query;
    char *instance = exchange->request.instance;

    if (given != NULL) {
        (void)snprintf(instance, KVB_NAME_MAX, "%s", given);
        return;
    }
    while (at != NULL) {
        size_t len = strcspn(at, "&");
        if (strncmp(at, parameter, sizeof parameter - 1) == 0) {
            at += sizeof parameter - 1;
            len -= sizeof parameter - 1;
            if (kvb_percent_decode(at, len, true, instance, KVB_NAME_MAX) != KVB_OK ||
                !kvb_name_valid(instance)) {
                instance[0] = '\0';
            }
        }
        at = at[len] == '&' ? at + len + 1 : NULL;
    }
}

/* ---- waiting ---- */

static void fall_asleep(void *arg)
{
    struct kvp_exchange *exchange = arg;
    MHD_suspend_connection(exchange->mhd);
}

static void wake(void *arg)
{
    struct kvp_exchange *exchange = arg;
    MHD_resume_connection(exchange->mhd);
}

/* ---- the request ---- */

static void refuse(struct kvp_exchange *exchange, const struct kvp_proxy_refusal *refusal)
{
    kvp_exchange_refuse(exchange, refusal->http_status, refusal->param, refusal->message);
    exchange->retry_after_s = refusal->retry_after_s;
}

static bool has_room(struct kvp_exchange *exchange)
{
    const struct kvp_connections *connections = &exchange->http->connections;

    if (connections->counts[KVP_CONNECTION_PASSING] < connections->max / 2) {
        return true;
    }
    kvp_exchange_refuse(exchange, 503, NULL,
                        "too many connections wait for the engine's server; try again");
    exchange->retry_after_s = 1;
    return false;
}

void kvp_pass_begin(struct kvp_exchange *exchange, const char *method)
{
    struct kvp_http *http = exchange->http;
    const struct kvp_framing *framing = &exchange->framing;
    struct kvp_proxy_refusal refusal;
    struct head head = {.exchange = exchange};

    if (!has_room(exchange)) {
        return;
    }
    name_instance(exchange);
    MHD_get_connection_values(exchange->mhd, MHD_HEADER_KIND, take_header, &head);
    add_forwarded(&head);
    /* Whoever may not speak for us does not speak with our key. */
    if (!head.authorized && http->config.pass_authorization != NULL &&
        (http->config.ntokens == 0 || exchange->token != 0)) {
        add(&head, MHD_HTTP_HEADER_AUTHORIZATION, http->config.pass_authorization);
    }
    const char *path = exchange->target;
    if (*path != '/') { /* http://host/path, as proxies send */
        path = strchr(strchr(path, ':') + 3, '/');
        path = path != NULL ? path : "/";
    }
    const struct kvp_proxy_head call = {
        .method = method,
        .target = path,
        .instance = exchange->request.instance,
        .headers = head.headers,
        .nheaders = head.n,
        .body_len = framing->encodings > 0 ? KVP_PROXY_LENGTH_UNKNOWN : framing->length,
        .has_length = framing->lengths > 0,
        .client_fd = exchange->connection->fd};
    const struct kvp_proxy_waiter waiter = {.sleep = fall_asleep, .wake = wake, .arg = exchange};
    if (!kvp_proxy_begin(http->config.proxy, &call, &waiter, &exchange->pass, &refusal)) {
        refuse(exchange, &refusal);
        return;
    }
    if (call.body_len == 0 || call.body_len > KVP_PROXY_SMALL) { /* it begins at once */
        kvp_exchange_enters(exchange, KVP_CONNECTION_PASSING);
    }
}

enum MHD_Result kvp_pass_body(struct kvp_exchange *exchange, const char *data, size_t *len)
{
    *len -= kvp_proxy_send(exchange->pass, data, *len);
    return kvp_proxy_dropped(exchange->pass) <= KVP_HTTP_DISCARD_MAX ? MHD_YES : MHD_NO;
}

enum MHD_Result kvp_pass_whole(struct kvp_exchange *exchange)
{
    if (exchange->connection->state == KVP_CONNECTION_RECEIVING) {
        if (!has_room(exchange)) {
            kvp_pass_ended(exchange);
            return kvp_exchange_answer(exchange);
        }
        kvp_exchange_enters(exchange, KVP_CONNECTION_PASSING);
    }
    kvp_proxy_sent(exchange->pass);
    exchange->phase = KVP_PASSING;
    return kvp_pass_answer(exchange);
}

/* ---- the answer ---- */

static ssize_t more(void *cls, uint64_t pos, char *text, size_t cap)
{
    struct kvp_exchange *exchange = cls;
    ssize_t len = kvp_proxy_read(exchange->pass, text, cap);

    (void)pos;
    if (len == KVP_PROXY_READ_END) {
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    if (len == KVP_PROXY_READ_BROKEN) {
        const struct sockaddr reset = {.sa_family = AF_UNSPEC};
        if (exchange->needs_reset) {
            (void)connect(exchange->connection->fd, &reset, sizeof reset);
        }
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    return len;
}

static bool bodiless(unsigned http_status)
{
    return http_status == MHD_HTTP_NO_CONTENT || http_status == MHD_HTTP_NOT_MODIFIED;
}

static struct MHD_Response *make_response(struct kvp_exchange *exchange,
                                          const struct kvp_proxy_answer *answer)
{
    if (bodiless(answer->http_status) || answer->body_len == 0) {
        return MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    }
    if (answer->body != NULL) {
        union {
            const char *in;
            void *out;
        } body = {
            .in = answer->body}; /* only read, in spite of the type; it lives as long as the call */
        return MHD_create_response_from_buffer((size_t)answer->body_len, body.out,
                                               MHD_RESPMEM_PERSISTENT);
    }
    uint64_t len =
        answer->body_len != KVP_PROXY_LENGTH_UNKNOWN ? answer->body_len : MHD_SIZE_UNKNOWN;
    return MHD_create_response_from_callback(len, READ_BLOCK, more, exchange, NULL);
}

/* The library takes no empty values. */
static bool add_answers(struct MHD_Response *response, const struct kvp_proxy_header *each)
{
    return each->value[0] == '\0' ||
           MHD_add_response_header(response, each->name, each->value) == MHD_YES;
}

static enum MHD_Result queue(struct kvp_exchange *exchange, const struct kvp_proxy_answer *answer)
{
    struct MHD_Response *response = make_response(exchange, answer);
    bool ok = response != NULL;
    bool named = false;

    if (!ok) {
        return MHD_NO;
    }
    for (uint32_t i = 0; i < answer->nheaders; i++) {
        ok = ok && add_answers(response, &answer->headers[i]);
        named = named || strcasecmp(answer->headers[i].name, "X-Request-Id") == 0;
    }
    if (!named) {
        ok = ok && MHD_add_response_header(response, "X-Request-Id",
                                           exchange->request.request_id) == MHD_YES;
    }
    if (exchange->close || exchange->http->config.ops->stopping(exchange->http->config.ctx)) {
        ok =
            ok && MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close") == MHD_YES;
    }
    exchange->phase = KVP_ANSWERING;
    exchange->http_status = answer->http_status;
    exchange->needs_reset = exchange->framing.old && answer->body_len == KVP_PROXY_LENGTH_UNKNOWN;
    enum MHD_Result result =
        ok ? kvp_queue_response(exchange->mhd, answer->http_status, response) : MHD_NO;
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result kvp_pass_answer(struct kvp_exchange *exchange)
{
    struct kvp_proxy_answer answer;
    struct kvp_proxy_refusal refusal;

    switch (kvp_proxy_answer(exchange->pass, &answer, &refusal)) {
    case KVP_PROXY_WAITS:
        return MHD_YES;
    case KVP_PROXY_ANSWERS:
        return queue(exchange, &answer);
    case KVP_PROXY_REFUSES:
        refuse(exchange, &refusal);
        return kvp_exchange_answer(exchange);
    case KVP_PROXY_LEFT:
        return MHD_NO;
    }
    KVB_UNREACHABLE("answered");
}

void kvp_pass_ended(struct kvp_exchange *exchange)
{
    if (exchange->pass != NULL) {
        kvp_proxy_end(exchange->pass);
        exchange->pass = NULL;
    }
}
