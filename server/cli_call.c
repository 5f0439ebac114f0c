/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_call.h"

#include "cli.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_MAX = 16 << 20, PAGES_MAX = 10000 };

static size_t take_answer(char *data, size_t size, size_t n, void *ctx)
{
    struct kvp_call *call = ctx;
    size_t more = size * n;
    if (more > ANSWER_MAX - call->len) {
        return 0;
    }
    char *answer = realloc(call->answer, call->len + more + 1);
    if (answer == NULL) {
        return 0;
    }
    memcpy(answer + call->len, data, more);
    call->answer = answer;
    call->len += more;
    answer[call->len] = '\0';
    return more;
}

static void tell(struct kvp_call *call, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void tell(struct kvp_call *call, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(call->trouble, sizeof call->trouble, format, args);
    va_end(args);
    kvb_utf8_clean(call->trouble);
    if (!call->quiet) {
        (void)fprintf(stderr, "kvplane: %s\n", call->trouble);
    }
}

static const char *given(const char *option, const char *variable)
{
    return option != NULL ? option : getenv(variable);
}

void kvp_call_reach(struct kvp_call *call)
{
    const char *url = getenv("KVPLANE_URL");
    if (call->base == NULL && call->socket == NULL && url != NULL) {
        call->base = url;
    } else if (call->base == NULL && given(call->socket, "KVPLANE_HTTP_SOCKET") != NULL) {
        call->socket = given(call->socket, "KVPLANE_HTTP_SOCKET");
        call->base = "http://localhost";
    } else if (call->base == NULL) {
        call->base = KVP_CLI_URL;
    }
    (void)snprintf(call->where, sizeof call->where, "%s",
                   call->socket != NULL ? call->socket : call->base);
    kvb_utf8_clean(call->where);
    call->token = given(call->token, "KVPLANE_TOKEN");
    call->ca_file = given(call->ca_file, "KVPLANE_CA_FILE");
    call->cert_file = given(call->cert_file, "KVPLANE_CLIENT_CERT_FILE");
    call->key_file = given(call->key_file, "KVPLANE_CLIENT_KEY_FILE");
    (void)curl_easy_setopt(call->curl, CURLOPT_ERRORBUFFER, call->why);
    (void)curl_easy_setopt(call->curl, CURLOPT_UNIX_SOCKET_PATH, call->socket);
    if (call->ca_file != NULL) {
        (void)curl_easy_setopt(call->curl, CURLOPT_CAINFO, call->ca_file);
        (void)curl_easy_setopt(call->curl, CURLOPT_CAPATH, NULL); /* and nobody else */
    }
    (void)curl_easy_setopt(call->curl, CURLOPT_SSLCERT, call->cert_file);
    (void)curl_easy_setopt(call->curl, CURLOPT_SSLKEY, call->key_file);
}

const char *kvp_call_where(const struct kvp_call *call)
{
    return call->where;
}

void kvp_call_why(const struct kvp_call *call, CURLcode result, char *text, size_t cap)
{
    static const struct {
        CURLcode result;
        const char *hint;
    } hints[] = {
        {CURLE_PEER_FAILED_VERIFICATION, "; --tls-ca-file names the authorities to be trusted"},
        {CURLE_GOT_NOTHING, "; does it speak TLS (--url https://…)?"},
        {CURLE_SSL_CONNECT_ERROR, "; does it speak TLS, or plain HTTP (--url http://…)?"},
    };
    const char *hint = "";
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        hint = hints[i].result == result ? hints[i].hint : hint;
    }
    (void)snprintf(text, cap, "%s%s", call->why[0] != '\0' ? call->why : curl_easy_strerror(result),
                   hint);
}

struct curl_slist *kvp_call_headers(const struct kvp_call *call, const char *header)
{
    char token[1024];
    struct curl_slist *headers = NULL;
    if (call->token != NULL) {
        (void)snprintf(token, sizeof token, "Authorization: Bearer %s", call->token);
        headers = curl_slist_append(headers, token);
    }
    return header != NULL ? curl_slist_append(headers, header) : headers;
}

static CURLcode perform(struct kvp_call *call)
{
    struct curl_waitfd watched = {.fd = call->watched, .events = CURL_WAIT_POLLIN};
    CURLcode rc = CURLE_ABORTED_BY_CALLBACK;
    const CURLMsg *message;
    int running = 1;
    if (call->ends == NULL) {
        return curl_easy_perform(call->curl);
    }
    call->multi = call->multi != NULL ? call->multi : curl_multi_init();
    if (call->multi == NULL || curl_multi_add_handle(call->multi, call->curl) != CURLM_OK) {
        return CURLE_OUT_OF_MEMORY;
    }
    while (curl_multi_perform(call->multi, &running) == CURLM_OK && running > 0) {
        (void)curl_multi_poll(call->multi, &watched, call->watched >= 0 ? 1 : 0, 100, NULL);
        if (call->ends()) {
            break;
        }
    }
    while ((message = curl_multi_info_read(call->multi, &(int){0})) != NULL) {
        rc = message->msg == CURLMSG_DONE ? message->data.result : rc;
    }
    (void)curl_multi_remove_handle(call->multi, call->curl);
    return rc;
}

int kvp_call_send(struct kvp_call *call, bool post, const char *path, long *code_p)
{
    char url[8192];
    int len = snprintf(url, sizeof url, "%s%s", call->base, path);
    if (len < 0 || (size_t)len >= sizeof url) {
        (void)fprintf(stderr, "kvplane: the URL is too long\n");
        return KVP_CLI_BAD_USAGE;
    }
    struct curl_slist *headers = kvp_call_headers(call, post ? call->header : NULL);
    free(call->answer);
    call->answer = NULL;
    call->len = 0;
    (void)curl_easy_setopt(call->curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(call->curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(call->curl, CURLOPT_WRITEFUNCTION, take_answer);
    (void)curl_easy_setopt(call->curl, CURLOPT_WRITEDATA, call);
    (void)curl_easy_setopt(call->curl, CURLOPT_NOPROXY, "*");
    (void)curl_easy_setopt(call->curl, CURLOPT_CONNECTTIMEOUT, 5L);
    (void)curl_easy_setopt(call->curl, CURLOPT_HTTPGET, 1L);
    if (post) {
        (void)curl_easy_setopt(call->curl, CURLOPT_POSTFIELDS, "");
    }
    call->why[0] = '\0';
    CURLcode rc = perform(call);
    (void)curl_easy_setopt(call->curl, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    if (rc != CURLE_OK) {
        char why[CURL_ERROR_SIZE + 128];
        kvp_call_why(call, rc, why, sizeof why);
        tell(call, "%s: %s", kvp_call_where(call), why);
        return KVP_CLI_UNREACHABLE;
    }
    (void)curl_easy_getinfo(call->curl, CURLINFO_RESPONSE_CODE, code_p);
    return KVP_CLI_DONE;
}

int kvp_call_refused(struct kvp_call *call, long code)
{
    const char *answer = call->answer != NULL ? call->answer : "";
    json_t *json = json_loads(answer, 0, NULL);
    const char *message =
        json_string_value(json_object_get(json_object_get(json, "error"), "message"));
    tell(call, "%ld: %s", code, message != NULL ? message : answer);
    json_decref(json);
    return KVP_CLI_REFUSED;
}

json_t *kvp_call_fetch(struct kvp_call *call, const char *path, int *rc_p)
{
    long code = 0;
    *rc_p = kvp_call_send(call, false, path, &code);
    if (*rc_p != KVP_CLI_DONE) {
        return NULL;
    }
    json_t *json = code == 200 && call->answer != NULL ? json_loads(call->answer, 0, NULL) : NULL;
    if (!json_is_object(json)) {
        json_decref(json);
        *rc_p = kvp_call_refused(call, code);
        return NULL;
    }
    return json;
}

json_t *kvp_call_fetch_all(struct kvp_call *call, const char *path, const char *list, int *rc_p)
{
    char mark = strchr(path, '?') == NULL ? '?' : '&';
    char page_path[640];
    json_t *all = kvp_call_fetch(call, path, rc_p);
    const char *next;
    uint32_t pages = 1;
    while ((next = json_string_value(json_object_get(all, "next"))) != NULL) {
        if (pages++ == PAGES_MAX) {
            tell(call, "%s: a list that does not end", kvp_call_where(call));
            json_decref(all);
            *rc_p = KVP_CLI_REFUSED;
            return NULL;
        }
        (void)snprintf(page_path, sizeof page_path, "%s%ccursor=%.300s", path, mark, next);
        json_t *page = kvp_call_fetch(call, page_path, rc_p);
        if (page == NULL) {
            json_decref(all);
            return NULL;
        }
        (void)json_array_extend(json_object_get(all, list), json_object_get(page, list));
        (void)json_object_set(all, "next", json_object_get(page, "next"));
        json_decref(page);
    }
    return all;
}
