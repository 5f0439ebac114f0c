/* SPDX-License-Identifier: Apache-2.0 */
/* A call as a transfer of libcurl. All of it runs on the proxy's thread. */
#include "proxy/internal.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK (64l << 10) /* bytes that libcurl asks for at once: fewer than a ring has */
/* Connections that have been idle for longer are not used again: uvicorn, and so vLLM and SGLang,
 * close them after 5 s, and what is sent at that moment is lost. libcurl adds up to a second. */
#define IDLE_S 3l

static void touch_byte(struct kvp_proxy_call *call)
{
    call->byte_ns = call->proxy->now_ns;
}

/* For a moment at least its client is not waited for. */
static void end_starving(struct kvp_proxy_call *call)
{
    if (call->starved_ns != 0) {
        call->waited_ns += call->proxy->now_ns - call->starved_ns;
        call->starved_ns = 0;
    }
}

/* ---- what libcurl calls ---- */

static size_t on_read(char *data, size_t size, size_t n, void *ctx)
{
    struct kvp_proxy_call *call = ctx;

    kvb_mutex_lock(&call->lock);
    size_t taken = kvp_ring_take(&call->up, data, size * n);
    call->starved = taken == 0 && !call->sent;
    bool starved = call->starved;
    kvb_mutex_unlock(&call->lock);
    touch_byte(call);
    end_starving(call);
    if (starved) {
        call->starved_ns = call->proxy->now_ns;
        return CURL_READFUNC_PAUSE;
    }
    call->fed += taken;
    if (call->fed >= KVP_PROXY_SMALL) {
        call->fed = call->waited_ns = 0;
    }
    if (taken > 0) {
        call->proxy->sent_bytes += taken;
        kvp_call_touch(call, false); /* there is room for more */
    }
    return taken;
}

static size_t on_data(char *data, size_t size, size_t n, void *ctx)
{
    struct kvp_proxy_call *call = ctx;
    size_t len = size * n;

    kvb_mutex_lock(&call->lock);
    bool fits = call->down.len + len <= KVP_PROXY_BUFFER;
    call->stuffed = !fits;
    bool put = fits && kvp_ring_put(&call->down, KVP_PROXY_BUFFER, data, len) == len;
    kvb_mutex_unlock(&call->lock);
    touch_byte(call);
    if (!fits) {
        return CURL_WRITEFUNC_PAUSE;
    }
    call->proxy->received_bytes += len;
    kvp_call_touch(call, false);
    return put ? len : 0;
}

static void end_head(struct kvp_proxy_call *call)
{
    long status = 0;

    (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status < 200) { /* an interim answer: the next one comes */
        return;
    }
    kvp_fields_finish(&call->fields, call->target->url);
    kvb_mutex_lock(&call->lock);
    call->http_status = (unsigned)status;
    call->headed = !call->fields.bad;
    kvb_mutex_unlock(&call->lock);
    kvp_call_touch(call, false);
}

/* Line by line; behind the body, the trailer. Until the head is whole nobody else looks at it. */
static size_t on_header(char *line, size_t size, size_t n, void *ctx)
{
    struct kvp_proxy_call *call = ctx;
    size_t len = size * n;

    touch_byte(call);
    if (call->headed) {
        return len;
    }
    if (len >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        kvp_fields_reset(&call->fields);
    } else if (line[0] == '\r' || line[0] == '\n') {
        end_head(call);
    } else {
        kvp_fields_add(&call->fields, line, len);
    }
    return call->fields.bad ? 0 : len; /* which libcurl takes for an error */
}

static bool sent_nothing(CURL *easy)
{
    long size = 1; /* of all that was written, on any connection */
    return curl_easy_getinfo(easy, CURLINFO_REQUEST_SIZE, &size) == CURLE_OK && size == 0;
}

/* There is a connection. libcurl tries again with another one where the one that it had used again
 * ends unanswered; but its server may have done by then what it was asked for. */
static int on_connection(void *ctx, char *to, char *from, int to_port, int from_port)
{
    struct kvp_proxy_call *call = ctx;

    (void)to;
    (void)from;
    (void)to_port;
    (void)from_port;
    return call->repeatable || sent_nothing(call->easy) ? CURL_PREREQFUNC_OK
                                                        : CURL_PREREQFUNC_ABORT;
}

/* ---- beginning ---- */

static CURL *take_easy(struct kvp_proxy *proxy)
{
    if (proxy->nspare > 0) {
        return proxy->spare[--proxy->nspare];
    }
    CURL *easy = curl_easy_init();
    if (easy == NULL) {
        return NULL;
    }
    bool ok =
        curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_NOPROXY, "*") == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, IDLE_S) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, on_connection) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, CHUNK) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)proxy->config.connect_ms) ==
            CURLE_OK &&
        (proxy->config.ca_file[0] == '\0' ||
         curl_easy_setopt(easy, CURLOPT_CAINFO, proxy->config.ca_file) == CURLE_OK) &&
        curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, kvp_proxy_open_socket) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, proxy) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, kvp_proxy_close_socket) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, proxy) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_read) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_data) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header) == CURLE_OK;
    if (!ok) {
        curl_easy_cleanup(easy);
        return NULL;
    }
    return easy;
}

static void give_easy(struct kvp_proxy *proxy, CURL *easy)
{
    if (proxy->nspare < proxy->config.idle_max) {
        proxy->spare[proxy->nspare++] = easy;
    } else {
        curl_easy_cleanup(easy);
    }
}

/* A body that is not kept cannot be sent again, on another connection, where the one it was sent on
 * turns out to be a dead one: it gets a new one. */
static bool set_body(CURL *easy, struct kvp_proxy_call *call, bool plain)
{
    if (call->body_len == 0 && (plain || !call->has_length)) {
        return true;
    }
    if (call->small) {
        const char *bytes = call->up.data != NULL ? call->up.data : "";
        return curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body_len) ==
                   CURLE_OK &&
               curl_easy_setopt(easy, CURLOPT_POSTFIELDS, bytes) == CURLE_OK;
    }
    curl_off_t size = call->body_len == KVP_PROXY_LENGTH_UNKNOWN ? -1 : (curl_off_t)call->body_len;
    return curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, size) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L) == CURLE_OK;
}

/* Every option that a call before it may have set. */
static bool set_up(CURL *easy, struct kvp_proxy_call *call)
{
    bool head = strcmp(call->method, "HEAD") == 0;
    bool plain = head || strcmp(call->method, "GET") == 0;

    return curl_easy_setopt(easy, CURLOPT_URL, call->target->url) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_REQUEST_TARGET, call->path) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_HTTPHEADER, call->lines) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_PRIVATE, call) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_PREREQDATA, call) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_READDATA, call) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_WRITEDATA, call) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_HEADERDATA, call) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 0L) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_POSTFIELDS, NULL) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L) == CURLE_OK && set_body(easy, call, plain) &&
           (!head || curl_easy_setopt(easy, CURLOPT_NOBODY, 1L) == CURLE_OK) &&
           curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST,
                            plain && call->body_len == 0 ? NULL : call->method) == CURLE_OK;
}

void kvp_transfer_start(struct kvp_proxy_call *call)
{
    struct kvp_proxy *proxy = call->proxy;

    call->easy = take_easy(proxy);
    touch_byte(call);
    if (call->easy != NULL && set_up(call->easy, call) &&
        curl_multi_add_handle(proxy->multi, call->easy) == CURLM_OK) {
        proxy->sent_bytes += call->small ? call->body_len : 0;
        return;
    }
    if (call->easy != NULL) {
        curl_easy_cleanup(call->easy);
        call->easy = NULL;
    }
    kvp_call_fail(call, &kvp_refusal_memory, "memory");
}

void kvp_transfer_go_on(struct kvp_proxy_call *call)
{
    if (call->easy != NULL) {
        touch_byte(call);
        end_starving(call);
        (void)curl_easy_pause(call->easy, CURLPAUSE_CONT);
    }
}

void kvp_transfer_stop(struct kvp_proxy_call *call)
{
    CURL *easy = call->easy;

    if (easy != NULL) {
        call->easy = NULL;
        (void)curl_multi_remove_handle(call->proxy->multi, easy);
        give_easy(call->proxy, easy);
    }
}

/* ---- ending ---- */

static const struct failure {
    CURLcode code;
    unsigned http_status;
    const char *kind;
    const char *message;
} failures[] = {
    {CURLE_COULDNT_CONNECT, 502, "connect", "the engine's server cannot be reached"},
    {CURLE_COULDNT_RESOLVE_HOST, 502, "connect", "the name of the engine's server is not known"},
    {CURLE_OPERATION_TIMEDOUT, 504, "timeout",
     "the engine's server was not reached in time (upstream-connect-timeout)"},
    {CURLE_SSL_CONNECT_ERROR, 502, "tls", "the engine's server and this one agree on no TLS"},
    {CURLE_PEER_FAILED_VERIFICATION, 502, "tls",
     "the certificate of the engine's server is not trusted (upstream-ca-file)"},
    {CURLE_SSL_CACERT_BADFILE, 502, "tls", "upstream-ca-file cannot be read"},
    {CURLE_GOT_NOTHING, 502, "closed", "the engine's server closed the connection unanswered"},
    {CURLE_RECV_ERROR, 502, "closed", "the engine's server broke the connection off unanswered"},
    {CURLE_SEND_ERROR, 502, "closed", "the engine's server broke the connection off unanswered"},
    {CURLE_SEND_FAIL_REWIND, 502, "closed",
     "the engine's server broke the connection off unanswered"},
    {CURLE_ABORTED_BY_CALLBACK, 502, "closed", /* on_connection() */
     "the engine's server closed the connection unanswered"},
    {CURLE_OUT_OF_MEMORY, 503, "memory", "out of memory; try again"},
};
static const struct failure malformed = {
    .http_status = 502,
    .kind = "malformed",
    .message = "the engine's server answered with what is no well-formed HTTP"};

static const struct failure *failure_of(CURLcode code)
{
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        if (failures[i].code == code) {
            return &failures[i];
        }
    }
    return &malformed;
}

static void transfer_ended(struct kvp_proxy_call *call, CURLcode code)
{
    struct kvp_proxy_refusal refusal;
    const struct failure *failure = failure_of(code);
    bool unreached = code != CURLE_OK && code != CURLE_OUT_OF_MEMORY && sent_nothing(call->easy);

    kvp_transfer_stop(call);
    if (code == CURLE_OK && call->headed) {
        kvb_mutex_lock(&call->lock);
        call->whole = true;
        kvb_mutex_unlock(&call->lock);
        kvp_call_touch(call, true);
        return;
    }
    if (call->headed) {
        kvp_call_fail(call, NULL, "broken");
        return;
    }
    KVB_LOG_LIMITED(
        WARN, unreached ? "an engine's server was not reached" : "a request was not passed on",
        KVB_STR("url", call->target->url), KVB_STR("why", curl_easy_strerror(code)));
    if (unreached && kvp_call_elsewhere(call)) {
        return;
    }
    kvp_refusal_set(&refusal, failure->http_status, failure->http_status == 503 ? 1 : 0,
                    failure->kind, "%s: %s", failure->message, call->target->url);
    kvp_call_fail(call, &refusal, failure->kind);
}

void kvp_transfers_ended(struct kvp_proxy *proxy)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(proxy->multi, &left)) != NULL) {
        struct kvp_proxy_call *call = NULL;
        CURLcode code = message->data.result;
        if (message->msg == CURLMSG_DONE &&
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &call) == CURLE_OK) {
            transfer_ended(call, code);
        }
    }
}

void kvp_transfers_cleanup(struct kvp_proxy *proxy)
{
    while (proxy->nspare > 0) {
        curl_easy_cleanup(proxy->spare[--proxy->nspare]);
    }
}
