/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LIB_HTTP_CLIENT_H
#define TESTS_LIB_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A client that sends exactly the bytes it is told to. Every wait has a deadline of HTTP_WAIT_MS,
 * so a server that hangs fails the test instead of hanging it. */
#define HTTP_WAIT_MS 120000

struct http_answer {
    int status; /* 0: the connection ended, or nothing came in time */
    char head[8192];
    char *body; /* malloc'd, NUL-terminated */
    size_t len;
};

int http_connect(uint16_t port);
/* False: the other side closed. */
bool http_send(int fd, const void *data, size_t len);
bool http_send_text(int fd, const char *text);
/* The next answer on this connection. no_body: to a HEAD, or an interim one. */
struct http_answer http_receive(int fd, bool no_body);
void http_answer_free(struct http_answer *answer);
/* Value of a header of the answer, copied into a buffer of the thread; NULL if there is none. */
const char *http_header(const struct http_answer *answer, const char *name);
/* True once the other side has closed and no byte is left. */
bool http_closed(int fd);

/* One request on a connection of its own. headers: lines with CR LF, or NULL; body or NULL. */
struct http_answer http_ask(uint16_t port, const char *method, const char *target,
                            const char *headers, const char *body);

#endif
