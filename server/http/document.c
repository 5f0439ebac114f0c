/* SPDX-License-Identifier: Apache-2.0 */
#include "http/errors.h"
#include "http/internal.h"

#include <xxhash.h>

#include <stdio.h>
#include <string.h>

/* All of the page is of this server. Trusted types: no text becomes HTML or a script, not even by
 * a mistake of the page's own. */
static const struct {
    const char *name;
    const char *value;
} headers[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
     "require-trusted-types-for 'script'; trusted-types 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cache-Control", "no-cache"}, /* kept, but asked for anew: after an update the new one shows */
};

#define ETAG_MAX 24 /* bytes: 16 hex digits, quotes, NUL */

static void make_etag(const struct kvp_document *document, char etag[ETAG_MAX])
{
    size_t len = (size_t)(document->end - document->begin);
    snprintf(etag, ETAG_MAX, "\"%016llx\"", (unsigned long long)XXH3_64bits(document->begin, len));
}

/* Is it one of those in If-None-Match? */
static bool has_it(const struct kvp_exchange *exchange, const char *etag)
{
    const char *list =
        MHD_lookup_connection_value(exchange->mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_IF_NONE_MATCH);
    return list != NULL && (strstr(list, etag) != NULL || strcmp(list, "*") == 0);
}

static struct MHD_Response *response_of(const char *bytes, size_t len)
{
    union {
        const char *in;
        void *out;
    } constant = {.in = bytes}; /* only read, in spite of the type */
    return MHD_create_response_from_buffer(len, constant.out, MHD_RESPMEM_PERSISTENT);
}

enum MHD_Result kvp_exchange_document(struct kvp_exchange *exchange)
{
    const struct kvp_http *http = exchange->http;
    const struct kvp_document *document = http->config.ops->document(exchange->request.path_arg);
    if (document == NULL) {
        kvp_exchange_refuse(exchange, 404, "path.name", "there is no such file");
        return kvp_exchange_answer(exchange);
    }
    char etag[ETAG_MAX];
    make_etag(document, etag);
    bool same = has_it(exchange, etag);
    struct MHD_Response *response =
        response_of(document->begin, same ? 0 : (size_t)(document->end - document->begin));
    bool ok = response != NULL &&
              MHD_add_response_header(response, MHD_HTTP_HEADER_ETAG, etag) == MHD_YES;
    for (size_t i = 0; ok && i < sizeof headers / sizeof headers[0]; i++) {
        ok = MHD_add_response_header(response, headers[i].name, headers[i].value) == MHD_YES;
    }
    if (!ok) {
        if (response != NULL) {
            MHD_destroy_response(response);
        }
        return MHD_NO; /* no memory for anything */
    }
    exchange->http_status = same ? 304 : 200;
    exchange->phase = KVP_ANSWERING;
    kvp_exchange_enters(exchange, KVP_CONNECTION_SENDING);
    return kvp_exchange_queue(exchange, response, document->content_type);
}
