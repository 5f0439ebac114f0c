/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcurl's callbacks just fill buffers: whatever an answer leads to happens after it has returned,
 * since it may not be entered twice.
 *
 * A call ends once: in end_call(), or canceled. An attempt has a bound of its own (a share of
 * request_ms), so that one endpoint that hangs does not use up the call's; with one endpoint it is
 * the call's: an etcd that is slow would be asked again before it can answer, over and over.
 *
 * With user and password, calls wait (`parked`) while a token is asked for; a token that etcd
 * refuses (it forgets them after some minutes) is asked for anew.
 */
#include "etcd_http.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/utf8.h"

#include <curl/curl.h>

#include <stdlib.h>
#include <string.h>

#define REQUEST_MS_DEFAULT 3000
#define ATTEMPTS_IN_BOUND  3u  /* endpoints that hang, before the call's bound is over */
#define ROUND_PAUSE_MS     100 /* between two rounds over all endpoints */
#define RENEWALS_MAX       2
#define ANSWER_MAX         (64u << 20) /* bytes; etcd's own limit is below this */
#define CONNECTIONS_MAX    32          /* calls beyond that wait for one */
#define ENDPOINTS_MAX      64

_Static_assert(sizeof((struct kvs_http_call *)0)->impl.error >= CURL_ERROR_SIZE, "its words fit");

struct kvs_http {
    struct kvb_sched *sched;
    struct kvb_curl *curl;
    char **endpoints;
    uint32_t nendpoints;
    uint32_t endpoint; /* where the next attempt goes */
    char *user, *password, *ca_file, *cert_file, *key_file;
    char *token; /* NULL: none yet */
    uint32_t request_ms;
    struct kvb_list calls;
    struct kvb_list parked; /* wait for a token */
    struct kvb_list streams;
    struct kvs_http_call auth;
};

/* ---- one transfer ---- */

static bool append(char **text, size_t *len, size_t *cap, const char *data, size_t n)
{
    if (*len + n + 1 > *cap) {
        size_t want = *cap == 0 ? 4096 : *cap;
        while (want < *len + n + 1) {
            want *= 2;
        }
        char *grown = want > ANSWER_MAX ? NULL : realloc(*text, want);
        if (grown == NULL) {
            return false;
        }
        *text = grown;
        *cap = want;
    }
    memcpy(*text + *len, data, n);
    *len += n;
    (*text)[*len] = '\0';
    return true;
}

static struct curl_slist *make_headers(const struct kvs_http *http)
{
    char line[4096];
    struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json");
    struct curl_slist *more = list == NULL ? NULL : curl_slist_append(list, "Expect:");
    if (more != NULL && http->token != NULL) {
        snprintf(line, sizeof line, "Authorization: %s", http->token);
        more = curl_slist_append(list, line);
    }
    if (more == NULL) {
        curl_slist_free_all(list);
    }
    return more;
}

/* NULL: out of memory, or an option this libcurl does not have. */
static CURL *make_easy(const struct kvs_http *http, const char *path, const char *body,
                       struct curl_slist *headers,
                       size_t (*write)(char *data, size_t size, size_t n, void *ctx), void *ctx)
{
    char url[1024];
    CURL *easy = curl_easy_init();
    if (easy == NULL) {
        return NULL;
    }
    snprintf(url, sizeof url, "%s%s", http->endpoints[http->endpoint], path);
    bool ok =
        curl_easy_setopt(easy, CURLOPT_URL, url) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body)) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, write) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_WRITEDATA, ctx) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_NOPROXY, "*") == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L) == CURLE_OK;
    if (ok && http->ca_file != NULL) {
        ok = curl_easy_setopt(easy, CURLOPT_CAINFO, http->ca_file) == CURLE_OK;
    }
    if (ok && http->cert_file != NULL) {
        ok = curl_easy_setopt(easy, CURLOPT_SSLCERT, http->cert_file) == CURLE_OK;
    }
    if (ok && http->key_file != NULL) {
        ok = curl_easy_setopt(easy, CURLOPT_SSLKEY, http->key_file) == CURLE_OK;
    }
    if (!ok) {
        curl_easy_cleanup(easy);
        return NULL;
    }
    return easy;
}

static void drop_easy(struct kvs_http *http, struct kvb_transfer *transfer, void **headers_p)
{
    kvb_curl_stop(http->curl, transfer);
    curl_slist_free_all(*headers_p);
    *headers_p = NULL;
}

/* `bad` did not do: whoever comes next begins at another one. */
static void blame(struct kvs_http *http, uint32_t bad)
{
    if (http->endpoint == bad) {
        http->endpoint = (bad + 1) % http->nendpoints;
    }
}

/* ---- calls ---- */

static void start_attempt(struct kvs_http_call *call);

static void stop_call(struct kvs_http_call *call)
{
    struct kvs_http *http = call->impl.http;
    kvb_sched_timer_clear(http->sched, &call->impl.timer);
    kvb_sched_unpost(&call->impl.fail);
    drop_easy(http, &call->impl.transfer, &call->impl.headers);
    kvb_list_remove(&call->impl.link);
    free(call->impl.body);
    free(call->impl.answer);
    call->impl.body = NULL;
    call->impl.answer = NULL;
    call->impl.http = NULL;
}

static void end_call(struct kvs_http_call *call, kvb_status_t status, json_t *answer)
{
    stop_call(call);
    call->done(call, status, answer);
    json_decref(answer);
}

static void on_fail(struct kvb_event *event)
{
    struct kvs_http_call *call = kvb_container_of(event, struct kvs_http_call, impl.fail);
    end_call(call, call->impl.status, NULL);
}

/* In a later turn: the caller's frame may be below. */
static void fail_later(struct kvs_http_call *call, kvb_status_t status)
{
    call->impl.status = status;
    kvb_sched_post(call->impl.http->sched, &call->impl.fail);
}

/* The attempt led to nothing: the next one, at once while there is an endpoint not tried. */
static void try_again(struct kvs_http_call *call)
{
    struct kvs_http *http = call->impl.http;
    drop_easy(http, &call->impl.transfer, &call->impl.headers);
    blame(http, call->impl.endpoint);
    uint64_t now_ns = kvb_now_ns(http->sched->clock);
    uint64_t next_ns = now_ns;
    if (call->impl.attempts % http->nendpoints == 0) {
        next_ns += ROUND_PAUSE_MS * KVB_NS_PER_MS;
    }
    if (next_ns >= call->impl.deadline_ns) {
        kvb_sched_timer_clear(http->sched, &call->impl.timer);
        fail_later(call, KVB_ERR_UNAVAILABLE);
        return;
    }
    kvb_sched_timer_set(http->sched, &call->impl.timer, next_ns);
}

/* Between attempts: begins the next. In one: it took too long. */
static void on_call_timer(struct kvb_timer *timer)
{
    struct kvs_http_call *call = kvb_container_of(timer, struct kvs_http_call, impl.timer);
    if (call->impl.transfer.easy == NULL) {
        start_attempt(call);
        return;
    }
    long sent = 0;
    (void)curl_easy_getinfo(call->impl.transfer.easy, CURLINFO_REQUEST_SIZE, &sent);
    call->uncertain = call->uncertain || sent > 0;
    KVB_LOG_LIMITED(WARN, "etcd does not answer",
                    KVB_STR("endpoint", call->impl.http->endpoints[call->impl.endpoint]),
                    KVB_STR("path", call->impl.path));
    try_again(call);
}

static size_t on_call_data(char *data, size_t size, size_t n, void *ctx)
{
    struct kvs_http_call *call = ctx;
    if (!append(&call->impl.answer, &call->impl.len, &call->impl.cap, data, size * n)) {
        call->impl.broken = true;
        return 0;
    }
    return size * n;
}

static void ask_for_token(struct kvs_http *http);
static void on_call_over(struct kvb_transfer *transfer, int result);

static void start_attempt(struct kvs_http_call *call)
{
    struct kvs_http *http = call->impl.http;
    uint64_t now_ns = kvb_now_ns(http->sched->clock);
    if (now_ns >= call->impl.deadline_ns) {
        fail_later(call, KVB_ERR_UNAVAILABLE);
        return;
    }
    if (http->user != NULL && http->token == NULL && call != &http->auth) {
        kvb_list_remove(&call->impl.link);
        kvb_list_push_back(&http->parked, &call->impl.link);
        /* at the latest then it fails, whatever becomes of the token */
        kvb_sched_timer_set(http->sched, &call->impl.timer, call->impl.deadline_ns);
        ask_for_token(http);
        return;
    }
    call->impl.attempts++;
    call->asked_ns = now_ns;
    call->impl.endpoint = http->endpoint;
    call->impl.len = 0;
    call->impl.broken = false;
    struct curl_slist *headers = make_headers(http);
    CURL *easy = headers == NULL ? NULL
                                 : make_easy(http, call->impl.path, call->impl.body, headers,
                                             on_call_data, call);
    if (easy == NULL) {
        curl_slist_free_all(headers);
        fail_later(call, KVB_ERR_NO_MEMORY);
        return;
    }
    call->impl.transfer = (struct kvb_transfer){.easy = easy, .over = on_call_over};
    call->impl.headers = headers;
    call->impl.error[0] = '\0'; /* else it says less of why: CURLOPT_ERRORBUFFER is but a wish */
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call->impl.error);
    if (!kvb_curl_start(http->curl, &call->impl.transfer)) {
        drop_easy(http, &call->impl.transfer, &call->impl.headers);
        fail_later(call, KVB_ERR_NO_MEMORY);
        return;
    }
    uint32_t attempts = http->nendpoints < ATTEMPTS_IN_BOUND ? http->nendpoints : ATTEMPTS_IN_BOUND;
    uint64_t bound_ns = (uint64_t)http->request_ms * KVB_NS_PER_MS / attempts;
    uint64_t end_ns = now_ns + bound_ns;
    kvb_sched_timer_set(http->sched, &call->impl.timer,
                        end_ns < call->impl.deadline_ns ? end_ns : call->impl.deadline_ns);
}

void kvs_http_call(struct kvs_http *http, const char *path, char *body, uint32_t bound_ms,
                   struct kvs_http_call *call)
{
    kvb_assert(call->impl.http == NULL);
    memset(&call->impl, 0, sizeof call->impl);
    call->uncertain = false;
    call->impl.http = http;
    call->impl.path = path;
    call->impl.body = body;
    call->impl.deadline_ns =
        kvb_deadline_in_ms(http->sched->clock, bound_ms == 0 ? http->request_ms : bound_ms);
    kvb_timer_init(&call->impl.timer, on_call_timer);
    kvb_event_init(&call->impl.fail, on_fail);
    kvb_list_push_back(&http->calls, &call->impl.link);
    if (body == NULL) {
        fail_later(call, KVB_ERR_NO_MEMORY);
        return;
    }
    start_attempt(call);
}

void kvs_http_cancel(struct kvs_http_call *call)
{
    if (kvs_http_running(call)) {
        stop_call(call);
    }
}

/* ---- answers ---- */

/* gRPC's numbers, as the gateway gives them. */
enum {
    CODE_INVALID = 3,
    CODE_NOT_FOUND = 5,
    CODE_PERMISSION = 7,
    CODE_PRECONDITION = 9,
    CODE_RANGE = 11,
    CODE_UNAUTHENTICATED = 16
};

static bool names_token(const char *text)
{
    return strstr(text, "invalid auth token") != NULL ||
           strstr(text, "user name is empty") != NULL ||
           strstr(text, "revision of auth store is old") != NULL;
}

static bool about_token(long http_status, json_int_t code, const char *text)
{
    return http_status == 401 || code == CODE_UNAUTHENTICATED || names_token(text);
}

bool kvs_http_refuses(const char *text)
{
    return names_token(text) || strstr(text, "permission denied") != NULL;
}

static void renew_token(struct kvs_http_call *call)
{
    struct kvs_http *http = call->impl.http;
    free(http->token);
    http->token = NULL;
    drop_easy(http, &call->impl.transfer, &call->impl.headers);
    start_attempt(call); /* parks it */
}

/* An answer that is none. What etcd itself refused was not done. */
static void on_refusal(struct kvs_http_call *call, long http_status, json_t *answer)
{
    struct kvs_http *http = call->impl.http;
    /* Two shapes: of plain calls, and of those that are streams to etcd. */
    const json_t *error = json_object_get(answer, "error");
    const char *text = json_string_value(error);
    json_int_t code = json_integer_value(json_object_get(answer, "code"));
    if (json_is_object(error)) {
        text = json_string_value(json_object_get(error, "message"));
        code = json_integer_value(json_object_get(error, "grpc_code"));
    }
    text = text == NULL ? "" : text;
    if (http->user != NULL && call != &http->auth && about_token(http_status, code, text) &&
        call->impl.renewed++ < RENEWALS_MAX) {
        renew_token(call);
        return;
    }
    switch (code) {
    case CODE_NOT_FOUND:
        end_call(call, KVB_ERR_NOT_FOUND, NULL);
        return;
    case CODE_INVALID:
    case CODE_PERMISSION:
    case CODE_PRECONDITION:
    case CODE_RANGE:
    case CODE_UNAUTHENTICATED:
        KVB_LOG_LIMITED(WARN, "etcd refuses",
                        KVB_STR("endpoint", http->endpoints[call->impl.endpoint]),
                        KVB_STR("path", call->impl.path), KVB_STR("error", text));
        end_call(call, KVB_ERR_REFUSED, NULL);
        return;
    default: /* no leader, too slow, too busy, or not etcd at all */
        KVB_LOG_LIMITED(WARN, "etcd cannot serve",
                        KVB_STR("endpoint", http->endpoints[call->impl.endpoint]),
                        KVB_I64("http_status", http_status), KVB_STR("error", text));
        call->uncertain = true;
        try_again(call);
        return;
    }
}

static void on_call_over(struct kvb_transfer *transfer, int result)
{
    struct kvs_http_call *call = kvb_container_of(transfer, struct kvs_http_call, impl.transfer);
    struct kvs_http *http = call->impl.http;
    long http_status = 0, sent = 0;
    (void)curl_easy_getinfo(call->impl.transfer.easy, CURLINFO_RESPONSE_CODE, &http_status);
    (void)curl_easy_getinfo(call->impl.transfer.easy, CURLINFO_REQUEST_SIZE, &sent);
    kvb_sched_timer_clear(http->sched, &call->impl.timer);
    if (result != CURLE_OK) {
        call->uncertain = call->uncertain || sent > 0;
        KVB_LOG_LIMITED(WARN, "etcd cannot be reached",
                        KVB_STR("endpoint", http->endpoints[call->impl.endpoint]),
                        KVB_STR("cause", call->impl.broken ? "answer too long, or out of memory"
                                         : call->impl.error[0] != '\0'
                                             ? call->impl.error
                                             : curl_easy_strerror((CURLcode)result)));
        try_again(call);
        return;
    }
    json_t *answer = call->impl.len == 0 ? NULL
                                         : json_loadb(call->impl.answer, call->impl.len,
                                                      JSON_REJECT_DUPLICATES, NULL);
    if (http_status != 200 || !json_is_object(answer) || json_object_get(answer, "error") != NULL) {
        on_refusal(call, http_status, answer);
        json_decref(answer);
        return;
    }
    end_call(call, KVB_OK, answer);
}

/* ---- the token ---- */

static void on_token(struct kvs_http_call *call, kvb_status_t status, json_t *answer)
{
    struct kvs_http *http = kvb_container_of(call, struct kvs_http, auth);
    const char *token = json_string_value(json_object_get(answer, "token"));
    /* It goes into a header, where the end of a line would begin another one. */
    if (status == KVB_OK && token != NULL && strlen(token) < 4000 &&
        kvb_utf8_printable(token, strlen(token))) {
        http->token = strdup(token);
    }
    struct kvb_list parked;
    kvb_list_init(&parked);
    for (struct kvb_list *link; (link = kvb_list_pop(&http->parked)) != NULL;) {
        kvb_list_push_back(&parked, link);
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&parked)) != NULL;) {
        struct kvs_http_call *waiting = kvb_container_of(link, struct kvs_http_call, impl.link);
        kvb_list_push_back(&http->calls, &waiting->impl.link);
        if (http->token != NULL) {
            start_attempt(waiting);
        } else {
            fail_later(waiting, status == KVB_ERR_REFUSED ? KVB_ERR_REFUSED : KVB_ERR_UNAVAILABLE);
        }
    }
}

static void ask_for_token(struct kvs_http *http)
{
    if (kvs_http_running(&http->auth)) {
        return;
    }
    json_t *body = json_pack("{s:s, s:s}", "name", http->user, "password", http->password);
    http->auth.done = on_token;
    kvs_http_call(http, "/v3/auth/authenticate", body == NULL ? NULL : json_dumps(body, 0), 0,
                  &http->auth);
    json_decref(body);
}

/* ---- streams ---- */

static size_t on_stream_data(char *data, size_t size, size_t n, void *ctx)
{
    struct kvs_http_stream *stream = ctx;
    if (!append(&stream->impl.text, &stream->impl.len, &stream->impl.cap, data, size * n)) {
        return 0; /* ends it */
    }
    kvb_sched_post(stream->impl.http->sched, &stream->impl.event);
    return size * n;
}

void kvs_http_stream_close(struct kvs_http_stream *stream)
{
    struct kvs_http *http = stream->impl.http;
    if (http == NULL) {
        return;
    }
    kvb_sched_unpost(&stream->impl.event);
    drop_easy(http, &stream->impl.transfer, &stream->impl.headers);
    kvb_list_remove(&stream->impl.link);
    free(stream->impl.body);
    free(stream->impl.text);
    memset(&stream->impl, 0, sizeof stream->impl);
}

void kvs_http_stream_blame(struct kvs_http_stream *stream)
{
    if (kvs_http_streaming(stream)) {
        blame(stream->impl.http, stream->impl.endpoint);
    }
}

static void end_stream(struct kvs_http_stream *stream)
{
    kvs_http_stream_blame(stream);
    kvs_http_stream_close(stream);
    stream->ended(stream);
}

/* Every whole line; false: the stream is no more. A line may be long and come in many pieces. */
static bool take_lines(struct kvs_http_stream *stream)
{
    while (stream->impl.searched < stream->impl.len) {
        const char *from = stream->impl.text + stream->impl.searched;
        const char *end = memchr(from, '\n', stream->impl.len - stream->impl.searched);
        if (end == NULL) {
            stream->impl.searched = stream->impl.len;
            return true;
        }
        size_t len = (size_t)(end - stream->impl.text);
        json_t *object = json_loadb(stream->impl.text, len, JSON_REJECT_DUPLICATES, NULL);
        stream->impl.len -= len + 1;
        stream->impl.searched = 0;
        memmove(stream->impl.text, end + 1, stream->impl.len);
        if (!json_is_object(object)) {
            json_decref(object);
            end_stream(stream);
            return false;
        }
        stream->object(stream, object);
        json_decref(object);
        if (!kvs_http_streaming(stream)) {
            return false;
        }
    }
    return true;
}

static void on_stream_event(struct kvb_event *event)
{
    struct kvs_http_stream *stream = kvb_container_of(event, struct kvs_http_stream, impl.event);
    if (take_lines(stream) && stream->impl.over) {
        end_stream(stream);
    }
}

static void on_stream_over(struct kvb_transfer *transfer, int result)
{
    struct kvs_http_stream *stream =
        kvb_container_of(transfer, struct kvs_http_stream, impl.transfer);
    (void)result;
    stream->impl.over = true;
    kvb_sched_post(stream->impl.http->sched, &stream->impl.event);
}

void kvs_http_stream_open(struct kvs_http *http, const char *path, char *body,
                          struct kvs_http_stream *stream)
{
    kvb_assert(stream->impl.http == NULL);
    memset(&stream->impl, 0, sizeof stream->impl);
    stream->impl.http = http;
    stream->impl.body = body;
    stream->impl.endpoint = http->endpoint;
    kvb_event_init(&stream->impl.event, on_stream_event);
    kvb_list_push_back(&http->streams, &stream->impl.link);
    struct curl_slist *headers = body == NULL ? NULL : make_headers(http);
    CURL *easy =
        headers == NULL ? NULL : make_easy(http, path, body, headers, on_stream_data, stream);
    stream->impl.transfer = (struct kvb_transfer){.easy = easy, .over = on_stream_over};
    stream->impl.headers = headers;
    if (easy == NULL || !kvb_curl_start(http->curl, &stream->impl.transfer)) {
        stream->impl.over = true;
        kvb_sched_post(http->sched, &stream->impl.event);
    }
}

/* ---- create and destroy ---- */

const char *kvs_http_endpoint(const struct kvs_http *http)
{
    return http->endpoints[http->endpoint];
}

static bool copy_text(char **copy_p, const char *text)
{
    *copy_p = text == NULL ? NULL : strdup(text);
    return text == NULL || *copy_p != NULL;
}

static bool sound_endpoint(const char *url)
{
    size_t scheme = strncmp(url, "http://", 7) == 0 ? 7 : strncmp(url, "https://", 8) == 0 ? 8 : 0;
    size_t len = strnlen(url, 512);
    return scheme != 0 && len > scheme && len < 512 && url[len - 1] != '/';
}

static void free_texts(struct kvs_http *http)
{
    for (uint32_t i = 0; http->endpoints != NULL && i < http->nendpoints; i++) {
        free(http->endpoints[i]);
    }
    free(http->endpoints);
    free(http->user);
    free(http->password);
    free(http->ca_file);
    free(http->cert_file);
    free(http->key_file);
    free(http->token);
}

kvb_status_t kvs_http_create(const struct kvs_http_config *config, struct kvs_http **http_p)
{
    if (config->nendpoints == 0 || config->nendpoints > ENDPOINTS_MAX ||
        (config->user != NULL && config->password == NULL)) {
        return KVB_ERR_INVALID;
    }
    for (uint32_t i = 0; i < config->nendpoints; i++) {
        if (!sound_endpoint(config->endpoints[i])) {
            return KVB_ERR_INVALID;
        }
    }
    struct kvs_http *http = calloc(1, sizeof *http);
    if (http == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    http->sched = config->sched;
    http->request_ms = config->request_ms == 0 ? REQUEST_MS_DEFAULT : config->request_ms;
    kvb_list_init(&http->calls);
    kvb_list_init(&http->parked);
    kvb_list_init(&http->streams);
    http->endpoints = calloc(config->nendpoints, sizeof *http->endpoints);
    bool ok = http->endpoints != NULL && copy_text(&http->user, config->user) &&
              copy_text(&http->password, config->password) &&
              copy_text(&http->ca_file, config->ca_file) &&
              copy_text(&http->cert_file, config->cert_file) &&
              copy_text(&http->key_file, config->key_file);
    for (uint32_t i = 0; ok && i < config->nendpoints; i++) {
        ok = copy_text(&http->endpoints[i], config->endpoints[i]);
        http->nendpoints = i + 1;
    }
    if (!ok) {
        goto err_texts;
    }
    /* Daemons that all begin at the first endpoint would leave the others idle. */
    uint32_t first;
    config->sched->random->fill(config->sched->random->ctx, &first, sizeof first);
    http->endpoint = first % http->nendpoints;
    if (kvb_curl_create(config->sched, config->io, CONNECTIONS_MAX, &http->curl) != KVB_OK) {
        goto err_texts;
    }
    *http_p = http;
    return KVB_OK;

err_texts:
    free_texts(http);
    free(http);
    return KVB_ERR_NO_MEMORY;
}

void kvs_http_destroy(struct kvs_http *http)
{
    struct kvb_list *const lists[] = {&http->calls, &http->parked};
    for (int i = 0; i < 2; i++) {
        for (struct kvb_list *link; (link = kvb_list_first(lists[i])) != NULL;) {
            stop_call(kvb_container_of(link, struct kvs_http_call, impl.link));
        }
    }
    for (struct kvb_list *link; (link = kvb_list_first(&http->streams)) != NULL;) {
        kvs_http_stream_close(kvb_container_of(link, struct kvs_http_stream, impl.link));
    }
    kvb_curl_destroy(http->curl);
    free_texts(http);
    free(http);
}
