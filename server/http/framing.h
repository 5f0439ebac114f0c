/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_FRAMING_H
#define SERVER_HTTP_FRAMING_H

#include <microhttpd.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a request's headers say about its body. */
struct kvp_framing {
    unsigned lengths;   /* Content-Length headers */
    unsigned encodings; /* Transfer-Encoding headers */
    unsigned headers;
    uint64_t length;   /* of the body, if lengths is 1 and it is well formed */
    bool bad_length;   /* not plain digits, or too large */
    bool bad_encoding; /* not exactly `chunked` */
};

/*
 * libmicrohttpd takes one of two contradicting lengths and goes on; whoever is in front of us may
 * take the other, and what lies between is a hidden request (request smuggling). So the headers are
 * judged here once more.
 */
void kvp_framing_read(struct MHD_Connection *connection, struct kvp_framing *framing_p);

/* NULL, or why the end of the body is not certain. */
const char *kvp_framing_ambiguous(const struct kvp_framing *framing, const char *http_version);

static inline bool kvp_framing_has_body(const struct kvp_framing *framing)
{
    return framing->encodings > 0 || framing->length > 0;
}

#endif
