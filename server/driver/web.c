/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/web.h"

#include "base/assert.h"
#include "base/list.h"

#include <curl/curl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Each request has a connection of its own: these servers close idle ones after a few seconds, and
 * one that is closed just as a request is sent leaves open whether it was done. A peer whose host
 * is gone is noticed by TCP's own probes, since a drain or an update may rightly be silent for
 * long.
 */
#define CONNECT_S       5L
#define KEEP_IDLE_S     15L
#define KEEP_INTERVAL_S 5L

struct kvp_web {
    struct kvb_sched *sched;
    struct kvb_curl *curl;
    struct curl_slist *headers; /* of every request */
    const char *ca_file;
};

struct request {
    struct kvp_web *web;
    struct kvp_web_call *call;
    struct kvb_transfer transfer;
    struct kvb_event fail; /* it could not be begun */
    char *answer;
    size_t len, cap;
    bool too_large;
    char error[CURL_ERROR_SIZE];
};

static void request_free(struct request *request)
{
    kvb_sched_unpost(&request->fail);
    kvb_curl_stop(request->web->curl, &request->transfer);
    free(request->answer);
    free(request);
}

static void end(struct request *request, struct kvp_web_answer answer)
{
    struct kvp_web_call *call = request->call;
    char *text = request->answer;
    answer.body = text != NULL ? text : "";
    answer.len = request->len;
    request->answer = NULL;
    call->impl = NULL;
    request_free(request);
    call->done(call, &answer);
    free(text);
}

static void on_fail(struct kvb_event *event)
{
    struct request *request = kvb_container_of(event, struct request, fail);
    end(request, (struct kvp_web_answer){.status = KVB_ERR_NO_MEMORY, .why = "out of memory"});
}

static void on_over(struct kvb_transfer *transfer, int result)
{
    struct request *request = kvb_container_of(transfer, struct request, transfer);
    struct kvp_web_answer answer = {.status = KVB_OK};
    char why[CURL_ERROR_SIZE];
    long http_status = 0, sent = 0;
    (void)curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &http_status);
    (void)curl_easy_getinfo(transfer->easy, CURLINFO_REQUEST_SIZE, &sent);
    if (result != CURLE_OK) {
        request->len = 0;
        answer.status = request->too_large ? KVB_ERR_TOO_LARGE
                        : sent > 0         ? KVB_ERR_DISCONNECTED
                                           : KVB_ERR_REFUSED;
        (void)snprintf(why, sizeof why, "%s",
                       request->error[0] != '\0' ? request->error
                                                 : curl_easy_strerror((CURLcode)result));
        answer.why = why;
    }
    answer.http_status = (unsigned)http_status;
    end(request, answer);
}

static size_t on_data(char *data, size_t size, size_t n, void *ctx)
{
    struct request *request = ctx;
    size_t more = size * n;
    if (request->len + more + 1 > request->cap) {
        size_t want = request->cap == 0 ? 4096 : request->cap;
        while (want < request->len + more + 1) {
            want *= 2;
        }
        request->too_large = want > 2 * KVP_WEB_ANSWER_MAX;
        char *grown = request->too_large ? NULL : realloc(request->answer, want);
        if (grown == NULL) {
            return 0;
        }
        request->answer = grown;
        request->cap = want;
    }
    memcpy(request->answer + request->len, data, more);
    request->len += more;
    request->answer[request->len] = '\0';
    return more;
}

/* NULL: out of memory. */
static CURL *make_easy(struct request *request, const struct kvp_web_ask *ask)
{
    CURL *easy = curl_easy_init();
    if (easy == NULL) {
        return NULL;
    }
    bool ok = curl_easy_setopt(easy, CURLOPT_URL, ask->url) == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_HTTPHEADER, request->web->headers) == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_data) == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_WRITEDATA, request) == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, request->error) == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_NOPROXY, "*") == CURLE_OK &&
              (request->web->ca_file[0] == '\0' ||
               curl_easy_setopt(easy, CURLOPT_CAINFO, request->web->ca_file) == CURLE_OK) &&
              curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1) == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L) == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L) == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, CONNECT_S) == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L) == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, KEEP_IDLE_S) == CURLE_OK &&
              curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, KEEP_INTERVAL_S) == CURLE_OK;
    if (ok && ask->post) {
        ok = curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                              (curl_off_t)(ask->body != NULL ? ask->body_len : 0)) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_POSTFIELDS, ask->body != NULL ? ask->body : "") ==
                 CURLE_OK;
    }
    if (!ok) {
        curl_easy_cleanup(easy);
        return NULL;
    }
    return easy;
}

static void start(void *ctx, const struct kvp_web_ask *ask, struct kvp_web_call *call)
{
    struct kvp_web *web = ctx;
    struct request *request = calloc(1, sizeof *request);
    kvb_assert(request != NULL && call->impl == NULL); /* as for a call of the link */
    request->web = web;
    request->call = call;
    kvb_event_init(&request->fail, on_fail);
    call->impl = request;
    request->transfer = (struct kvb_transfer){.easy = make_easy(request, ask), .over = on_over};
    if (request->transfer.easy == NULL) {
        kvb_sched_post(web->sched, &request->fail);
    } else if (!kvb_curl_start(web->curl, &request->transfer)) {
        kvb_curl_stop(web->curl, &request->transfer);
        kvb_sched_post(web->sched, &request->fail);
    }
}

static void cancel(void *ctx, struct kvp_web_call *call)
{
    (void)ctx;
    if (call->impl != NULL) {
        struct request *request = call->impl;
        call->impl = NULL;
        request_free(request);
    }
}

const struct kvp_web_ops kvp_web_ops = {.start = start, .cancel = cancel};

static bool add_header(struct kvp_web *web, const char *line)
{
    struct curl_slist *more = curl_slist_append(web->headers, line);
    web->headers = more != NULL ? more : web->headers;
    return more != NULL;
}

kvb_status_t kvp_web_create(struct kvb_sched *sched, struct kvb_io *io, uint32_t connections_max,
                            const char *authorization, const char *ca_file, struct kvp_web **web_p)
{
    struct kvp_web *web = calloc(1, sizeof *web);
    if (web == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    web->sched = sched;
    web->ca_file = ca_file;
    bool ok = add_header(web, "Content-Type: application/json") && add_header(web, "Expect:");
    if (ok && authorization != NULL) {
        char line[4200];
        (void)snprintf(line, sizeof line, "Authorization: %s", authorization);
        ok = add_header(web, line);
        explicit_bzero(line, sizeof line);
    }
    if (!ok || kvb_curl_create(sched, io, connections_max, &web->curl) != KVB_OK) {
        curl_slist_free_all(web->headers);
        free(web);
        return KVB_ERR_NO_MEMORY;
    }
    *web_p = web;
    return KVB_OK;
}

void kvp_web_destroy(struct kvp_web *web)
{
    if (web != NULL) {
        kvb_curl_destroy(web->curl);
        curl_slist_free_all(web->headers);
        free(web);
    }
}
