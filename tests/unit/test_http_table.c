/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What no client should send: each gets its answer, in the one shape, and then the connection is
 * in step (the next request on it is answered as it should be) or closed. Nothing that hides in
 * them runs.
 */
#include "http_client.h"
#include "rest_server.h"

#include <criterion/criterion.h>
#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

static struct rest_server rest;

static void setup(void)
{
    rest_start(&rest, NULL, 0);
}

static void teardown(void)
{
    rest_stop(&rest);
}

TestSuite(http_table, .init = setup, .fini = teardown, .timeout = 600);

#define HOST   "Host: x\r\n"
#define HIDDEN "POST /sleep HTTP/1.1\r\n" HOST "\r\n"
#define GET    "GET /health HTTP/1.1\r\n" HOST
#define POST   "POST /pause HTTP/1.1\r\n" HOST
#define CHUNKS POST "Transfer-Encoding: chunked\r\n\r\n"

/* What becomes of the connection. */
enum then {
    OPEN,   /* the next request on it is answered */
    CLOSED, /* it ends with the answer, which says so */
};

struct request {
    const char *what;
    const char *bytes; /* @ stands for a NUL */
    int status;        /* 0: it ends without an answer */
    enum then then;
    const char *param; /* error.param; NULL: not looked at */
    int calls;         /* it really asks for */
};

static const struct request requests[] = {
    /* where does it end? */
    {"both lengths", POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" HIDDEN,
     400, CLOSED, NULL, 0},
    {"both lengths, the other way",
     POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" HIDDEN, 400, CLOSED,
     NULL, 0},
    {"two lengths", POST "Content-Length: 0\r\nContent-Length: 40\r\n\r\n" HIDDEN, 400, CLOSED,
     NULL, 0},
    {"one length twice", POST "Content-Length: 0\r\nContent-Length: 0\r\n\r\n" HIDDEN, 400, CLOSED,
     NULL, 0},
    {"a list of lengths", POST "Content-Length: 0, 0\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"no length", POST "Content-Length:\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a length with a sign", POST "Content-Length: +5\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a negative length", POST "Content-Length: -1\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a hexadecimal length", POST "Content-Length: 0x0\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a length with a blank", POST "Content-Length: 0 0\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a length that no body has", POST "Content-Length: 99999999999999999999999999\r\n\r\n" HIDDEN,
     413, CLOSED, NULL, 0},
    {"a length behind a blank in the name", POST "Content-Length : 0\r\n\r\n" HIDDEN, 400, CLOSED,
     NULL, 0},
    {"a length that ends at a NUL", POST "Content-Length: 0@ 40\r\n\r\n" HIDDEN, 400, CLOSED, NULL,
     0},
    {"a length of two lines", POST "Content-Length: 0\r\n 40\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"an encoding of two lines", POST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" HIDDEN, 400,
     CLOSED, NULL, 0},
    {"an unknown encoding", POST "Transfer-Encoding: gzip\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"an encoding with more", POST "Transfer-Encoding: chunked, identity\r\n\r\n" HIDDEN, 400,
     CLOSED, NULL, 0},
    {"an encoding that ends at a NUL", POST "Transfer-Encoding: chunked@x\r\n\r\n" HIDDEN, 400,
     CLOSED, NULL, 0},
    {"two encodings",
     POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" HIDDEN, 400,
     CLOSED, NULL, 0},
    {"chunks in HTTP/1.0",
     "POST /pause HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" HIDDEN, 400, CLOSED,
     NULL, 0},

    /* chunks */
    {"a chunk's size is no number", CHUNKS "zz\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a chunk's size is negative", CHUNKS "-1\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a chunk's size is none", CHUNKS "\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a chunk that no body has", CHUNKS "fffffffffffffffff\r\n" HIDDEN, 413, CLOSED, NULL, 0},
    {"a chunk that is longer than its size", CHUNKS "1\r\n{}\r\n0\r\n\r\n" HIDDEN, 400, CLOSED,
     NULL, 0},
    {"a chunk with an extension", CHUNKS "2;a=b\r\n{}\r\n0\r\n\r\n", 200, OPEN, NULL, 1},
    {"a trailer", CHUNKS "2\r\n{}\r\n0\r\nX: y\r\n\r\n", 200, OPEN, NULL, 1},
    {"a length as a trailer", CHUNKS "0\r\nContent-Length: 40\r\n\r\n", 200, OPEN, NULL, 1},
    {"a trailer without a colon", CHUNKS "0\r\nno trailer\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"chunks that are refused",
     "POST /nosuch HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
     404, OPEN, NULL, 0},

    /* headers */
    {"a header of two lines", GET "X: a\r\n b\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a header of two lines, the last", "GET /health HTTP/1.1\r\n" HOST "X: a\r\n\tb\r\n\r\n", 400,
     CLOSED, NULL, 0},
    {"it begins with a blank", "GET /health HTTP/1.1\r\n X: a\r\n" HOST "\r\n" HIDDEN, 400, CLOSED,
     NULL, 0},
    {"a header without a colon", GET "nothing\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a header without a name", GET ": a\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a NUL in a value", GET "X: a@b\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a NUL in the last value", "GET /health HTTP/1.1\r\nHost: x@y\r\n\r\n" HIDDEN, 400, CLOSED,
     NULL, 0},
    {"a NUL in a name", GET "X@Y: b\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a bare CR in a value", GET "X: a\rContent-Length: 40\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a control character in a value", GET "X: a\x01\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a tab in a value", GET "X: a\tb\r\n\r\n", 200, OPEN, NULL, 0},
    {"bytes beyond ASCII in a value", GET "X: \xc3\xa4\xff\r\n\r\n", 200, OPEN, NULL, 0},
    {"blanks around a value", GET "X: \t  a  \t \r\nY:b\r\n\r\n", 200, OPEN, NULL, 0},
    {"an empty value", GET "X:\r\nY: \r\n\r\n", 200, OPEN, NULL, 0},
    {"lines that end in LF alone", "GET /health HTTP/1.1\nHost: x\n\n", 200, OPEN, NULL, 0},
    {"no Host", "GET /health HTTP/1.1\r\n\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"two Hosts", GET HOST "\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"an unknown expectation", POST "Expect: all\r\n\r\n", 417, OPEN, NULL, 0},

    /* request lines */
    {"a NUL in the target", "POST /sleep@ HTTP/1.1\r\n" HOST "\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"a NUL in the query", "POST /sleep?level=1@2 HTTP/1.1\r\n" HOST "\r\n" HIDDEN, 400, CLOSED,
     NULL, 0},
    {"a NUL in front", "@GET /health HTTP/1.1\r\n" HOST "\r\n", 400, CLOSED, NULL, 0},
    {"a blank in the target", "POST /sleep x HTTP/1.1\r\n" HOST "\r\n" HIDDEN, 400, CLOSED, NULL,
     0},
    {"a coded NUL in the path", "POST /sleep%00 HTTP/1.1\r\n" HOST "\r\n", 400, OPEN, "path", 0},
    {"a coded NUL in the query", "POST /sleep?level=%00 HTTP/1.1\r\n" HOST "\r\n", 400, OPEN,
     "query", 0},
    {"half an escape in the path", "POST /sleep%2 HTTP/1.1\r\n" HOST "\r\n", 400, OPEN, "path", 0},
    {"no hex digits in an escape", "POST /sl%zzeep HTTP/1.1\r\n" HOST "\r\n", 400, OPEN, "path", 0},
    {"half an escape in the query", "POST /sleep?level=%3 HTTP/1.1\r\n" HOST "\r\n", 400, OPEN,
     "query", 0},
    {"no hex digits in the query", "POST /sleep?level=%gg HTTP/1.1\r\n" HOST "\r\n", 400, OPEN,
     "query", 0},
    {"no UTF-8 in the query", "POST /wake_up?tags=%ff HTTP/1.1\r\n" HOST "\r\n", 400, OPEN,
     "query.tags", 0},
    {"a scalar twice: the last", "POST /sleep?level=1&level=9 HTTP/1.1\r\n" HOST "\r\n", 400, OPEN,
     "query.level", 0},
    {"a scalar twice, the last is good", "POST /sleep?level=9&level=1 HTTP/1.1\r\n" HOST "\r\n",
     200, OPEN, NULL, 1},
    {"a fragment", "POST /sleep?level=1#x HTTP/1.1\r\n" HOST "\r\n" HIDDEN, 400, CLOSED, NULL, 0},
    {"dots are not climbed", "GET /v1/../health HTTP/1.1\r\n" HOST "\r\n", 404, OPEN, NULL, 0},
    {"absolute", "GET http://elsewhere/health HTTP/1.1\r\n" HOST "\r\n", 200, OPEN, NULL, 0},
    {"absolute, of the wrong scheme", "GET ftp://elsewhere/health HTTP/1.1\r\n" HOST "\r\n", 404,
     OPEN, NULL, 0},
    {"OPTIONS of all", "OPTIONS * HTTP/1.1\r\n" HOST "\r\n", 404, OPEN, NULL, 0},
    {"OPTIONS", "OPTIONS /sleep HTTP/1.1\r\n" HOST "\r\n", 405, OPEN, NULL, 0},
    {"TRACE", "TRACE /health HTTP/1.1\r\n" HOST "\r\n", 405, OPEN, NULL, 0},
    {"CONNECT", "CONNECT x:443 HTTP/1.1\r\n" HOST "\r\n", 404, OPEN, NULL, 0},
    {"a method in small letters", "get /health HTTP/1.1\r\n" HOST "\r\n", 405, OPEN, NULL, 0},
    {"empty lines in front", "\r\n\r\n" GET "\r\n", 200, OPEN, NULL, 0},
    {"HTTP/0.9", "GET /health\r\n", 400, CLOSED, NULL, 0},
    {"a version of old", "GET /health HTTP/0.9\r\n" HOST "\r\n", 505, CLOSED, NULL, 0},
    {"HTTP/2, as one that knows it begins", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, CLOSED, NULL,
     0},
    {"HTTP/1.0", "GET /health HTTP/1.0\r\n\r\n", 200, CLOSED, NULL, 0},
    {"HTTP/1.0, kept", "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, OPEN, NULL,
     0},
    {"its last", GET "Connection: close\r\n\r\n", 200, CLOSED, NULL, 0},
    {"no request line", "GET\r\n\r\n" HIDDEN, 0, CLOSED, NULL, 0},
    {"a blank in front", " GET /health HTTP/1.1\r\n" HOST "\r\n" HIDDEN, 0, CLOSED, NULL, 0},
};

#define REQUESTS (sizeof requests / sizeof requests[0])

/* The bytes with their NULs; to be freed. */
static char *bytes_of(const struct request *request, size_t *len_p)
{
    char *bytes = strdup(request->bytes);
    cr_assert_not_null(bytes);
    *len_p = strlen(bytes);
    for (char *at = bytes; (at = strchr(at, '@')) != NULL; at++) {
        *at = '\0'; /* at + 1 goes on behind it */
    }
    return bytes;
}

static void expect_shape(const struct http_answer *answer, const struct request *request)
{
    cr_expect_eq(answer->status, request->status, "%s: %d instead of %d: %s", request->what,
                 answer->status, request->status, answer->body != NULL ? answer->body : "");
    if (request->status == 0) {
        return;
    }
    const char *type = http_header(answer, "Content-Type");
    cr_expect(type != NULL && strcmp(type, "application/json") == 0, "%s: %s", request->what,
              answer->head);
    cr_expect_not_null(http_header(answer, "X-Request-Id"), "%s", request->what);
    json_t *json = json_loadb(answer->body, answer->len, 0, NULL);
    cr_expect(json_is_object(json), "%s: %s", request->what, answer->body);
    json_t *error = json_object_get(json, "error");
    cr_expect_eq(request->status >= 400, json_is_object(error), "%s", request->what);
    if (error != NULL) {
        const char *param = json_string_value(json_object_get(error, "param"));
        cr_expect_eq(json_integer_value(json_object_get(error, "code")), request->status);
        cr_expect(request->param == NULL || (param != NULL && strcmp(param, request->param) == 0),
                  "%s: %s", request->what, param != NULL ? param : "null");
    }
    json_decref(json);
}

static void expect_then(int fd, const struct http_answer *answer, const struct request *request)
{
    const char *connection = http_header(answer, "Connection");
    if (request->then == CLOSED) {
        cr_expect(request->status == 0 ||
                      (connection != NULL && strcasecmp(connection, "close") == 0),
                  "%s: %s", request->what, answer->head);
        cr_expect(http_closed(fd), "%s: something comes after the answer", request->what);
        return;
    }
    cr_expect(connection == NULL || strcasecmp(connection, "close") != 0, "%s", request->what);
    cr_expect(http_send_text(fd, "GET /livez HTTP/1.1\r\nX-Request-Id: next\r\n" HOST "\r\n"));
    struct http_answer next = http_receive(fd, false);
    cr_expect_eq(next.status, 200, "%s: out of step: %d", request->what, next.status);
    const char *id = http_header(&next, "X-Request-Id");
    cr_expect(id != NULL && strcmp(id, "next") == 0, "%s: out of step", request->what);
    http_answer_free(&next);
}

/* Sent at once, or byte by byte: nothing depends on how it comes. */
static void send_all(int fd, const char *bytes, size_t len, bool in_pieces)
{
    for (size_t at = 0; at < len; at += in_pieces ? 1 : len) {
        if (!http_send(fd, bytes + at, in_pieces ? 1 : len)) {
            return; /* it was refused before it was whole */
        }
    }
}

static void try_all(bool in_pieces)
{
    uint32_t calls = 0;
    for (size_t i = 0; i < REQUESTS; i++) {
        const struct request *request = &requests[i];
        size_t len;
        char *bytes = bytes_of(request, &len);
        int fd = http_connect(rest.port);
        cr_assert(fd >= 0);
        send_all(fd, bytes, len, in_pieces);
        struct http_answer answer = http_receive(fd, false);
        expect_shape(&answer, request);
        expect_then(fd, &answer, request);
        http_answer_free(&answer);
        close(fd);
        free(bytes);
        calls += (uint32_t)request->calls;
        cr_expect_eq(rest_calls(&rest), calls, "%s: something ran that should not", request->what);
        calls = rest_calls(&rest);
    }
}

Test(http_table, what_comes_at_once_has_its_answer)
{
    try_all(false);
}

Test(http_table, what_comes_byte_by_byte_has_the_same)
{
    try_all(true);
}

/* Many on one connection, in one piece: as many answers, in their order. */
Test(http_table, what_may_stay_open_does_so_one_after_the_other)
{
    int fd = http_connect(rest.port);
    char head[96];

    for (size_t i = 0; i < REQUESTS; i++) {
        if (requests[i].then == OPEN) {
            size_t len;
            char *bytes = bytes_of(&requests[i], &len);
            cr_assert(http_send(fd, bytes, len));
            free(bytes);
            snprintf(head, sizeof head, "GET /livez HTTP/1.1\r\nX-Request-Id: %zu\r\n" HOST "\r\n",
                     i);
            cr_assert(http_send_text(fd, head));
        }
    }
    for (size_t i = 0; i < REQUESTS; i++) {
        if (requests[i].then == OPEN) {
            struct http_answer answer = http_receive(fd, false);
            expect_shape(&answer, &requests[i]);
            http_answer_free(&answer);
            answer = http_receive(fd, false);
            snprintf(head, sizeof head, "%zu", i);
            cr_assert_eq(answer.status, 200, "%s", requests[i].what);
            cr_assert_str_eq(http_header(&answer, "X-Request-Id"), head);
            http_answer_free(&answer);
        }
    }
    close(fd);
}

/* Cut anywhere, with the client's end behind it: it never does what the whole would have done. */
Test(http_table, what_is_cut_off_has_no_effect)
{
    static const char *const whole[] = {
        POST "Content-Length: 16\r\n\r\n{\"mode\":\"abort\"}",
        CHUNKS "a\r\n{\"mode\":\"a\r\n5\r\nbort\"\r\n1\r\n}\r\n0\r\n\r\n",
    };
    for (size_t i = 0; i < 2; i++) {
        for (size_t cut = 1; cut < strlen(whole[i]) - 2; cut++) {
            int fd = http_connect(rest.port);
            http_send(fd, whole[i], cut);
            shutdown(fd, SHUT_WR);
            struct http_answer answer = http_receive(fd, false);
            cr_expect(answer.status == 0 || answer.status >= 400, "%zu of %zu: %d", cut, i,
                      answer.status);
            http_answer_free(&answer);
            cr_expect(http_closed(fd));
            close(fd);
        }
    }
    cr_expect_eq(rest_calls(&rest), 0);
}
