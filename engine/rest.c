/* SPDX-License-Identifier: Apache-2.0 */
#include "rest.h"

#include <curl/curl.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_MAX (8u << 20)
#define TIMEOUT_S  300L

struct kve_rest {
    CURL *curl;
    struct curl_slist *headers;
    const volatile int *stop;
    char base[256];
    char *answer; /* of the running call */
    size_t len;
};

static size_t take_answer(char *data, size_t size, size_t n, void *ctx)
{
    struct kve_rest *rest = ctx;
    size_t more = size * n;
    char *answer;

    if (more > ANSWER_MAX - rest->len) {
        return 0;
    }
    answer = realloc(rest->answer, rest->len + more + 1);
    if (answer == NULL) {
        return 0;
    }
    memcpy(answer + rest->len, data, more);
    rest->answer = answer;
    rest->len += more;
    rest->answer[rest->len] = '\0';
    return more;
}

static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct kve_rest *rest = ctx;

    (void)a;
    (void)b;
    (void)c;
    (void)d;
    return rest->stop != NULL && *rest->stop != 0;
}

struct kve_rest *kve_rest_open(const char *base, const volatile int *stop)
{
    struct kve_rest *rest = calloc(1, sizeof *rest);

    if (rest == NULL) {
        return NULL;
    }
    snprintf(rest->base, sizeof rest->base, "%s", base);
    rest->stop = stop;
    rest->curl = curl_easy_init();
    rest->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (rest->curl == NULL || rest->headers == NULL) {
        kve_rest_close(rest);
        return NULL;
    }
    return rest;
}

void kve_rest_close(struct kve_rest *rest)
{
    curl_slist_free_all(rest->headers);
    curl_easy_cleanup(rest->curl);
    free(rest->answer);
    free(rest);
}

static kvb_status_t status_of(CURLcode code)
{
    switch ((int)code) {
    case CURLE_OK:
        return KVB_OK;
    case CURLE_OPERATION_TIMEDOUT:
        return KVB_ERR_TIMEOUT;
    case CURLE_ABORTED_BY_CALLBACK:
        return KVB_ERR_CANCELED;
    case CURLE_OUT_OF_MEMORY:
        return KVB_ERR_NO_MEMORY;
    default:
        return KVB_ERR_UNAVAILABLE;
    }
}

kvb_status_t kve_rest_call(struct kve_rest *rest, const char *method, const char *path,
                           const json_t *body, long *http_status_p, json_t **answer_p)
{
    char url[1024];
    char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    bool post = strcmp(method, "POST") == 0;
    kvb_status_t status;

    if (body != NULL && text == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    snprintf(url, sizeof url, "%s%s", rest->base, path);
    rest->len = 0;
    curl_easy_reset(rest->curl); /* keeps the connection */
    curl_easy_setopt(rest->curl, CURLOPT_URL, url);
    curl_easy_setopt(rest->curl, CURLOPT_PROXY, "");
    curl_easy_setopt(rest->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(rest->curl, CURLOPT_TIMEOUT, TIMEOUT_S);
    curl_easy_setopt(rest->curl, CURLOPT_WRITEFUNCTION, take_answer);
    curl_easy_setopt(rest->curl, CURLOPT_WRITEDATA, rest);
    curl_easy_setopt(rest->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(rest->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(rest->curl, CURLOPT_XFERINFODATA, rest);
    if (post) {
        curl_easy_setopt(rest->curl, CURLOPT_POST, 1L);
        curl_easy_setopt(rest->curl, CURLOPT_POSTFIELDS, text == NULL ? "" : text);
        curl_easy_setopt(rest->curl, CURLOPT_POSTFIELDSIZE,
                         (long)(text == NULL ? 0 : strlen(text)));
        if (text != NULL) {
            curl_easy_setopt(rest->curl, CURLOPT_HTTPHEADER, rest->headers);
        }
    }
    status = status_of(curl_easy_perform(rest->curl));
    if (status == KVB_OK) {
        *http_status_p = 0;
        curl_easy_getinfo(rest->curl, CURLINFO_RESPONSE_CODE, http_status_p);
        *answer_p =
            rest->len == 0 ? NULL : json_loadb(rest->answer, rest->len, JSON_DECODE_ANY, NULL);
    }
    free(text);
    return status;
}

const char *kve_rest_text(const struct kve_rest *rest)
{
    return rest->len == 0 ? "" : rest->answer;
}
