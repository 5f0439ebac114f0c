/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_PROXY_FIELDS_H
#define SERVER_PROXY_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Headers, and which of them are of one connection alone and must not go through (RFC 9110, 7.6.1).
 */

/* Of a connection, or of how a message is laid out on it: by its name. */
bool kvp_field_is_hop(const char *name, size_t len);
/* Does a Connection header's list of names have this one? */
bool kvp_field_named(const char *connection, const char *name, size_t len);

/* The head of an answer as it comes, line by line. */
#define KVP_FIELDS_TEXT_MAX                                                                        \
    (32u << 10) /* what a connection has room for (KVP_HTTP_CONNECTION_MEM) */
#define KVP_FIELDS_MAX 200
struct kvp_fields {
    char *text; /* names and values with their NULs, malloc'd */
    size_t len, cap;
    struct {
        uint32_t name, value; /* where in text */
    } at[KVP_FIELDS_MAX];
    uint32_t n;
    uint64_t length; /* Content-Length */
    bool has_length, has_encoding;
    bool bad; /* no head that we could pass on */
};

/* Forgets what there was; keeps the memory. */
void kvp_fields_reset(struct kvp_fields *fields);
void kvp_fields_cleanup(struct kvp_fields *fields);
/* A line with its line end, which is neither the status line nor the empty one. */
void kvp_fields_add(struct kvp_fields *fields, const char *line, size_t len);
/* That was all: what is of the connection goes, and so does the server's own address,
 * http://HOST:PORT, where it says that something is elsewhere: clients reach it here. */
void kvp_fields_finish(struct kvp_fields *fields, const char *server);

#endif
