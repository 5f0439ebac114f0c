/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libmicrohttpd itself finds wrong with a request (its lines, its length, a chunk, its
 * version, a head that its memory does not hold) never comes to us. It answers with a page of HTML,
 * and (0.9.75) to a bad length with its header twice; no option changes that. But it gives these
 * answers to its own MHD_queue_response(), and the one of this program comes before the library's:
 * here the client gets the one shape of all answers instead, and the library is told that it could
 * not answer, so that it closes the connection. Over TLS only the library can send: there it sends
 * our answer. Where a linker does not let us in between, clients see the library's pages, with the
 * same status.
 */
#include "http/errors.h"
#include "http/internal.h"

#include "base/assert.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define ANSWER_MAX 1024 /* bytes, header and body */

static const struct {
    unsigned http_status;
    const char *message;
} messages[] = {
    {400, "not a well-formed request: see its request line, headers, Content-Length and chunks"},
    {413, "a length that no body has"},
    {414, KVP_SAY_TARGET},
    {431, KVP_SAY_HEADERS},
    {505, "this server speaks HTTP/1.1 and HTTP/1.0"},
};

static const char *message_of(unsigned http_status)
{
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
        if (messages[i].http_status == http_status) {
            return messages[i].message;
        }
    }
    return "this request cannot be answered";
}

/* ---- the library's function ---- */

typedef enum MHD_Result (*queue_fn)(struct MHD_Connection *, unsigned, struct MHD_Response *);

static queue_fn librarys;
static pthread_once_t found_once = PTHREAD_ONCE_INIT;

static void find(void)
{
    union {
        void *symbol;
        queue_fn fn;
    } found = {.symbol = dlsym(RTLD_NEXT, "MHD_queue_response")};
    librarys = found.fn;
    kvb_assert(librarys != NULL);
}

enum MHD_Result kvp_queue_response(struct MHD_Connection *mhd, unsigned http_status,
                                   struct MHD_Response *response)
{
    pthread_once(&found_once, find);
    return librarys(mhd, http_status, response);
}

/* ---- a refusal ---- */

static bool over_tls(struct MHD_Connection *mhd)
{
    return MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION) != NULL;
}

static enum MHD_Result queue_text(struct MHD_Connection *mhd, unsigned http_status, char *text,
                                  const char *id)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_COPY);
    if (response == NULL) {
        return MHD_NO;
    }
    bool ok = MHD_add_response_header(response, "Content-Type", "application/json") == MHD_YES &&
              MHD_add_response_header(response, "X-Request-Id", id) == MHD_YES;
    enum MHD_Result result = ok ? kvp_queue_response(mhd, http_status, response) : MHD_NO;
    MHD_destroy_response(response);
    return result;
}

/* As much as the socket takes at once, which is all unless the client reads nothing. */
static void send_text(int fd, unsigned http_status, const char *text, const char *id)
{
    char answer[ANSWER_MAX], date[32];
    time_t now = time(NULL);
    struct tm utc;

    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &utc));
    int len =
        snprintf(answer, sizeof answer,
                 "HTTP/1.1 %u %s\r\nDate: %s\r\nContent-Type: application/json\r\n"
                 "X-Request-Id: %s\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
                 http_status, MHD_get_reason_phrase_for(http_status), date, id, strlen(text), text);
    kvb_assert(len > 0 && (size_t)len < sizeof answer);
    (void)send(fd, answer, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A request that has begun is counted when it is completed, whatever it was to be answered. */
static void count(struct kvp_http *http, struct kvp_exchange *exchange, unsigned http_status,
                  const char *id)
{
    if (exchange != NULL) {
        exchange->http_status = http_status;
        (void)snprintf(exchange->request.request_id, sizeof exchange->request.request_id, "%s", id);
    } else if (http->config.ops->answered != NULL) {
        http->config.ops->answered(
            http->config.ctx, &(struct kvp_http_answered){
                                  .http_status = http_status, .request_id = id, .instance = ""});
    }
}

static enum MHD_Result refuse(struct MHD_Connection *mhd, struct kvp_connection *connection,
                              unsigned http_status)
{
    struct kvp_http *http = connection->http;
    char id[KVB_ID_HEX_LEN + 1];
    json_t *json = kvp_error_body(http_status, NULL, message_of(http_status));
    char *text = json_dumps(json, JSON_COMPACT);
    enum MHD_Result result = MHD_NO;

    json_decref(json);
    if (text == NULL) {
        return MHD_NO; /* no memory for anything */
    }
    kvb_id_format(kvp_http_next_id(http), id);
    if (over_tls(mhd)) {
        result = queue_text(mhd, http_status, text, id);
    } else {
        send_text(connection->fd, http_status, text, id);
    }
    count(http, connection->exchange, http_status, id);
    free(text);
    return result;
}

/* Only the library calls this. */
__attribute__((visibility("default"))) enum MHD_Result
MHD_queue_response(struct MHD_Connection *mhd, unsigned http_status, struct MHD_Response *response)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (info == NULL || info->socket_context == NULL) {
        return kvp_queue_response(mhd, http_status, response);
    }
    return refuse(mhd, info->socket_context, http_status);
}
