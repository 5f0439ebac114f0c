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
    unsigned hosts;     /* Host headers */
    unsigned headers;
    size_t size;       /* bytes of the head */
    uint64_t length;   /* of the body, if lengths is 1 and it is well formed */
    bool old;          /* of HTTP/1.0, where the end of a body may be that of the connection */
    bool bad_length;   /* not plain digits, or too large */
    bool bad_encoding; /* not exactly `chunked` */
    bool bad_name;  /* a header's name is not a token: `Content-Length :` must not pass for none */
    bool hidden;    /* there is more in the head than what the headers' names and values say */
    const char *at; /* of the head, that far it has been looked at */
    const char *end;
};

/*
 * libmicrohttpd takes one of two contradicting lengths and goes on; whoever is in front of us may
 * take the other, and what lies between is a hidden request (request smuggling). So the headers are
 * judged here once more. It also ends a value at a NUL, and takes a line that begins with a blank
 * for more of the one before it. Its copy of the head shows that: it begins with the method, and
 * between a value and the next name there are line ends and nothing else.
 */
void kvp_framing_read(struct MHD_Connection *connection, const char *method,
                      const char *http_version, struct kvp_framing *framing_p);

/* NULL, or why it is not certain where the request ends or what it is. */
const char *kvp_framing_ambiguous(const struct kvp_framing *framing, const char *http_version);

/*
 * Is there something between the target, as it was handed over (with its length then), and the HTTP
 * version? Both lie in libmicrohttpd's copy of the request line, with one space between them turned
 * into a NUL; whatever else is there was hidden behind a NUL in the target.
 */
static inline bool kvp_framing_target_cut(const char *target, size_t target_len,
                                          const char *http_version)
{
    return http_version != target + target_len + 1;
}

/* No spaces, no control characters and no '#': who cuts a fragment off sees another path. */
bool kvp_framing_target_plain(const char *target);

static inline bool kvp_framing_has_body(const struct kvp_framing *framing)
{
    return framing->encodings > 0 || framing->length > 0;
}

#endif
