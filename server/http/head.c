/* SPDX-License-Identifier: Apache-2.0 */
#include "http/internal.h"
#include "http/tls_session.h"

#include "base/assert.h"

#include <string.h>
#include <strings.h>

static const char *header(struct kvp_exchange *exchange, const char *name)
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

/* Of a W3C traceparent, 00-TRACE-PARENT-FLAGS, the trace id: what belongs together in a tracing
 * system then does so in the log. */
static bool trace_id(const char *text, char id[KVB_ID_HEX_LEN + 1])
{
    static const char hex[] = "0123456789abcdef";
    if (text == NULL || strlen(text) < 55 || strncmp(text, "ff", 2) == 0 ||
        strspn(text, hex) != 2 || text[2] != '-' || strspn(text + 3, hex) != 32 ||
        text[35] != '-' || strspn(text + 36, hex) != 16 || text[52] != '-' ||
        strspn(text + 3, "0") == 32) {
        return false;
    }
    memcpy(id, text + 3, KVB_ID_HEX_LEN);
    id[KVB_ID_HEX_LEN] = '\0';
    return true;
}

/* Nobody must be unable to guess them, so one draw serves them all. */
struct kvb_id kvp_http_next_id(struct kvp_http *http)
{
    http->id.lo += 0x9e3779b97f4a7c15u; /* odd: comes around after 2^64 */
    return http->id;
}

static void name_request(struct kvp_exchange *exchange)
{
    const char *given = header(exchange, "X-Request-Id");
    char hex[KVB_ID_HEX_LEN + 1];

    if ((given == NULL || !sane_request_id(given)) &&
        trace_id(header(exchange, "traceparent"), hex)) {
        given = hex;
    }
    if (given == NULL || !sane_request_id(given)) {
        kvb_id_format(kvp_http_next_id(exchange->http), hex);
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

/* What an Authorization header gives; NULL: no such token. */
static const char *bearer(const char *value)
{
    return value != NULL && strncasecmp(value, "Bearer ", 7) == 0 ? value + 7 : NULL;
}

/* Which it is, from 1, and what it allows at most; 0: none of ours. text may be NULL. */
static uint32_t token_locked(const struct kvp_http *http, const char *text,
                             enum kvp_role_needed *role_p)
{
    char secret[KVP_HTTP_TOKEN_MAX] = {0};
    uint32_t token = 0;

    if (text != NULL && strlen(text) < KVP_HTTP_TOKEN_MAX) {
        strncpy(secret, text, sizeof secret - 1);
    }
    *role_p = KVP_ROLE_READ;
    for (uint32_t i = 0; i < http->ntokens; i++) {
        if (same_secret(secret, http->tokens[i].secret) && secret[0] != '\0') {
            token = i + 1;
            *role_p = http->tokens[i].role > *role_p ? http->tokens[i].role : *role_p;
        }
    }
    return token;
}

bool kvp_exchange_is_own_token(struct kvp_exchange *exchange, const char *authorization)
{
    struct kvp_http *http = exchange->http;
    enum kvp_role_needed role;

    pthread_mutex_lock(&http->lock);
    bool own = token_locked(http, bearer(authorization), &role) != 0;
    pthread_mutex_unlock(&http->lock);
    return own;
}

enum kvp_token_verdict kvp_exchange_token_locked(struct kvp_exchange *exchange)
{
    const struct kvp_http *http = exchange->http;
    const char *text =
        exchange->request.route->where == KVP_PASS ? header(exchange, KVP_PASS_TOKEN_HEADER) : NULL;
    enum kvp_role_needed role;

    if (text == NULL) {
        text = bearer(header(exchange, MHD_HTTP_HEADER_AUTHORIZATION));
    }
    exchange->judged = http->tokens_read;
    exchange->token = token_locked(http, text, &role);
    if (exchange->token == 0) {
        return KVP_TOKEN_UNKNOWN;
    }
    return role >= exchange->request.route->role ? KVP_TOKEN_ALLOWED : KVP_TOKEN_TOO_LITTLE;
}

static void check_token(struct kvp_exchange *exchange)
{
    struct kvp_http *http = exchange->http;

    if (http->config.ntokens == 0 || exchange->request.route->where == KVP_PROBE ||
        exchange->request.route->where == KVP_STATIC) {
        return;
    }
    pthread_mutex_lock(&http->lock);
    enum kvp_token_verdict verdict = kvp_exchange_token_locked(exchange);
    pthread_mutex_unlock(&http->lock);
    if (exchange->request.route->where == KVP_PASS && http->config.pass_free) {
        return;
    }
    if (verdict == KVP_TOKEN_UNKNOWN) {
        kvp_exchange_refuse(exchange, 401, NULL,
                            "this needs an Authorization: Bearer header with a valid token");
        exchange->extra_name = MHD_HTTP_HEADER_WWW_AUTHENTICATE;
        exchange->extra_value = "Bearer";
    } else if (verdict == KVP_TOKEN_TOO_LITTLE) {
        kvp_exchange_refuse(exchange, 403, NULL, "this needs a token with the role admin");
    }
}

/* Kubelets have none to show, so a probe needs none. */
static void check_certificate(struct kvp_exchange *exchange)
{
    const struct kvp_tls *tls = exchange->connection->tls;
    if (tls == NULL || !kvp_tls_asks(tls) || exchange->request.route->where == KVP_PROBE ||
        exchange->request.route->where == KVP_STATIC) {
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(exchange->mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    if (info == NULL || !kvp_tls_shown(info->tls_session)) {
        kvp_exchange_refuse(exchange, 403, NULL,
                            "this needs a client certificate of an authority that this server "
                            "knows (tls-client-ca-file)");
    }
}

static void check_origin(struct kvp_exchange *exchange)
{
    const char *foreign = kvp_exchange_foreign(exchange);
    if (foreign != NULL) {
        kvp_exchange_refuse(exchange, 403, NULL, foreign);
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

static void find_route(struct kvp_exchange *exchange, const char *method)
{
    const char *path = path_of(exchange->target);
    size_t len = strcspn(path, "?");
    const struct kvp_route *route = NULL;

    exchange->query = path[len] == '?' ? path + len + 1 : NULL;
    switch (kvp_route_find(exchange->http->config.routes, method, path, len, &route,
                           exchange->request.path_arg)) {
    case KVP_FOUND:
        exchange->request.route = route;
        return;
    case KVP_FOUND_NOTHING:
        exchange->request.route = kvp_pass_route(exchange->http, method, path, len);
        if (exchange->request.route != NULL) {
            return;
        }
        kvp_exchange_refuse(exchange, 404, NULL,
                            "there is no such route; GET /openapi.yaml lists them");
        return;
    case KVP_FOUND_OTHER_METHOD:
        kvp_exchange_refuse(exchange, 405, NULL,
                            "this route does not answer that method; Allow says which it does");
        exchange->extra_name = MHD_HTTP_HEADER_ALLOW;
        exchange->extra_value = kvp_route_allow(exchange->http->config.routes, route);
        return;
    case KVP_FOUND_BAD_PATH:
        kvp_exchange_refuse(
            exchange, 400, "path",
            "a '%' in the path must be followed by two hex digits and must not code a NUL");
        return;
    }
    KVB_UNREACHABLE("found");
}

/* Checks that need no body. The first that fails decides the answer. */
static void check(struct kvp_exchange *exchange, const char *method, const char *version)
{
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
        kvp_exchange_refuse(exchange, 400, NULL, ambiguous);
        exchange->close = true;
    } else if (exchange->raw_target_len > KVP_HTTP_TARGET_MAX) {
        kvp_exchange_refuse(exchange, 414, NULL, KVP_SAY_TARGET);
    } else if (exchange->framing.headers > KVP_HTTP_HEADERS_MAX ||
               exchange->framing.size > KVP_HTTP_HEADER_MAX) {
        kvp_exchange_refuse(exchange, 431, NULL, KVP_SAY_HEADERS);
    } else if (expect != NULL && strcasecmp(expect, "100-continue") != 0) {
        kvp_exchange_refuse(exchange, 417, NULL,
                            "the only expectation understood here is 100-continue");
    } else {
        find_route(exchange, method);
        if (exchange->http_status == 0) {
            check_origin(exchange);
        }
        if (exchange->http_status == 0) {
            check_certificate(exchange);
        }
        if (exchange->http_status == 0) {
            check_token(exchange);
        }
        if (exchange->http_status == 0 && exchange->request.route->where != KVP_PASS &&
            exchange->framing.length > exchange->request.route->body_max) {
            kvp_exchange_refuse(exchange, 413, "body", "the body is larger than this route takes");
        }
    }
}

void kvp_exchange_check_head(struct kvp_exchange *exchange, const char *method, const char *version)
{
    kvp_framing_read(exchange->mhd, method, version, &exchange->framing);
    name_request(exchange);
    check(exchange, method, version);
    exchange->request.respond_async = list_has(header(exchange, "Prefer"), "respond-async");
}
