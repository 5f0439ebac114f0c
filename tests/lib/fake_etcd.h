/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_ETCD_H
#define TESTS_FAKE_ETCD_H

/*
 * A server in a test's loop that speaks just enough of etcd's JSON gateway to be joined: leases,
 * an empty range, a watch, and transactions that all succeed and change nothing. A script may
 * answer in its place.
 */
#include "base/assert.h"
#include "base/io.h"
#include "base/list.h"

#include <jansson.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FAKE_CONNECTIONS 32
#define FAKE_REQUEST_MAX 65536

struct fake_etcd;
struct fake_connection {
    struct kvb_io_watch watch;
    struct fake_etcd *fake;
    bool used;
    bool watching; /* its answer does not end */
    uint32_t len;
    char request[FAKE_REQUEST_MAX];
};
struct fake_etcd {
    struct kvb_io *io;
    struct kvb_io_watch listener;
    int port;
    uint64_t rev;
    struct fake_connection *connections;
    /* The whole body of the answer (malloc'd), and *status_p; NULL: as the fake would. */
    char *(*script)(void *ctx, const char *path, const char *body, int *status_p);
    void *ctx;
    /* Transactions are answered when that is let go (fake_answer_held): one at a time. */
    bool hold;
    struct fake_connection *held;
    char *held_text;
};

static inline void fake_drop_(struct fake_connection *connection)
{
    kvb_io_unwatch(connection->fake->io, &connection->watch);
    (void)close(connection->watch.fd);
    connection->used = false;
}

static inline void fake_write_(const struct fake_connection *connection, const char *text)
{
    size_t len = strlen(text);
    ssize_t n = send(connection->watch.fd, text, len, MSG_NOSIGNAL);
    (void)n; /* small, to a local peer; one that has gone does not matter */
}

/* A line on every watch that is open. */
static inline void fake_push(struct fake_etcd *fake, const char *line)
{
    for (int i = 0; i < FAKE_CONNECTIONS; i++) {
        struct fake_connection *connection = &fake->connections[i];
        if (connection->used && connection->watching) {
            char head[32];
            snprintf(head, sizeof head, "%zx\r\n", strlen(line) + 1);
            fake_write_(connection, head);
            fake_write_(connection, line);
            fake_write_(connection, "\n\r\n");
        }
    }
}

static inline char *fake_txn_(struct fake_etcd *fake, const char *body)
{
    json_t *root = json_loads(body, 0, NULL);
    json_t *responses = json_array();
    const char *kind;
    json_t *asked;
    size_t i;
    json_t *request;
    json_array_foreach(json_object_get(root, "success"), i, request)
    {
        json_t *range = json_object_get(request, "request_range");
        const char *key = json_string_value(json_object_get(range, "key"));
        json_t *response = NULL;
        json_object_foreach(request, kind, asked)
        {
            char name[64];
            snprintf(name, sizeof name, "response_%s", kind + strlen("request_"));
            response = json_pack("{s:{}}", name);
        }
        if (range != NULL && json_object_get(range, "range_end") == NULL) {
            json_decref(response);
            response = json_pack("{s:{s:[{s:s, s:s, s:s, s:s}], s:s}}", "response_range", "kvs",
                                 "key", key, "create_revision", "5", "mod_revision", "5", "value",
                                 "MDAwMDAwMDAwMDAwMDAwMTAwMDAwMDAwMDAwMDAwMDI=", "count", "1");
        }
        json_array_append_new(responses, response);
    }
    char rev[24];
    snprintf(rev, sizeof rev, "%llu", (unsigned long long)fake->rev);
    json_t *answer = json_pack("{s:{s:s}, s:b, s:o}", "header", "revision", rev, "succeeded", 1,
                               "responses", responses);
    char *text = json_dumps(answer, 0);
    json_decref(answer);
    json_decref(root);
    return text;
}

static inline void fake_say_(struct fake_connection *connection, const char *path, const char *body)
{
    struct fake_etcd *fake = connection->fake;
    int status = 200;
    char *text = fake->script == NULL ? NULL : fake->script(fake->ctx, path, body, &status);
    if (text == NULL && strcmp(path, "/v3/watch") == 0) {
        connection->watching = true;
        fake_write_(connection, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        fake_push(fake, "{\"result\":{\"header\":{\"revision\":\"5\"},\"watch_id\":\"1\","
                        "\"created\":true}}");
        fake_push(fake, "{\"result\":{\"header\":{\"revision\":\"5\"},\"watch_id\":\"2\","
                        "\"created\":true}}");
        return;
    }
    if (text == NULL && strcmp(path, "/v3/kv/txn") == 0) {
        text = fake_txn_(fake, body);
    } else if (text == NULL && strcmp(path, "/v3/kv/range") == 0) {
        text = strdup("{\"header\":{\"revision\":\"5\"}}");
    } else if (text == NULL && strcmp(path, "/v3/lease/keepalive") == 0) {
        text = strdup("{\"result\":{\"ID\":\"7\",\"TTL\":\"600\"}}");
    } else if (text == NULL) {
        text = strdup("{\"header\":{\"revision\":\"5\"},\"ID\":\"7\",\"TTL\":\"600\"}");
    }
    if (fake->hold && fake->held == NULL && strcmp(path, "/v3/kv/txn") == 0) {
        fake->held = connection;
        fake->held_text = text;
        return;
    }
    char head[128];
    snprintf(head, sizeof head, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n\r\n", status,
             strlen(text));
    fake_write_(connection, head);
    fake_write_(connection, text);
    free(text);
}

/* Where calls are made to fail, none of its own does. */
static inline void fake_answer_(struct fake_connection *connection, const char *path,
                                const char *body)
{
#ifdef TESTS_FAIL_CALLS_H
    bool armed = fail_armed;
    fail_calls_pause();
    fake_say_(connection, path, body);
    fail_armed = armed;
#else
    fake_say_(connection, path, body);
#endif
}

/* text: instead of what it would have been; NULL: that. */
static inline void fake_answer_held(struct fake_etcd *fake, const char *text)
{
    char head[128];
    text = text != NULL ? text : fake->held_text;
    snprintf(head, sizeof head, "HTTP/1.1 200 X\r\nContent-Length: %zu\r\n\r\n", strlen(text));
    fake_write_(fake->held, head);
    fake_write_(fake->held, text);
    free(fake->held_text);
    fake->held_text = NULL;
    fake->held = NULL;
    fake->hold = false;
}

static inline void fake_ready_(struct kvb_io_watch *watch, unsigned events)
{
    (void)events;
    struct fake_connection *connection = kvb_container_of(watch, struct fake_connection, watch);
    ssize_t n = recv(watch->fd, connection->request + connection->len,
                     sizeof connection->request - 1 - connection->len, 0);
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN) {
            fake_drop_(connection);
        }
        return;
    }
    connection->len += (uint32_t)n;
    connection->request[connection->len] = '\0';
    char path[64];
    unsigned length = 0;
    const char *body = strstr(connection->request, "\r\n\r\n");
    const char *field = strcasestr(connection->request, "content-length:");
    if (body == NULL || field == NULL || sscanf(field + 15, "%u", &length) != 1 ||
        sscanf(connection->request, "POST %63s", path) != 1 ||
        connection->len < (size_t)(body + 4 - connection->request) + length) {
        return;
    }
    char *copy = strndup(body + 4, length);
    connection->len = 0; /* one at a time: the client does not pipeline */
    fake_answer_(connection, path, copy);
    free(copy);
}

static inline void fake_accept_(struct kvb_io_watch *watch, unsigned events)
{
    (void)events;
    struct fake_etcd *fake = kvb_container_of(watch, struct fake_etcd, listener);
    int fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct fake_connection *connection = fake->connections;
    while (connection < fake->connections + FAKE_CONNECTIONS && connection->used) {
        connection++;
    }
    if (fd < 0) {
        return;
    }
    kvb_assert(connection < fake->connections + FAKE_CONNECTIONS);
    connection->used = true;
    connection->fake = fake;
    connection->watching = false;
    connection->len = 0;
    connection->watch = (struct kvb_io_watch){.fd = fd, .fn = fake_ready_};
    kvb_status_t status = kvb_io_watch(fake->io, &connection->watch, KVB_IO_READ);
    kvb_assert(status == KVB_OK);
}

static inline void fake_open(struct fake_etcd *fake, struct kvb_io *io)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    *fake = (struct fake_etcd){.io = io, .rev = 6}; /* ahead of what is watched */
    fake->connections = calloc(FAKE_CONNECTIONS, sizeof *fake->connections);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    kvb_assert(fake->connections != NULL && fd >= 0 &&
               bind(fd, (struct sockaddr *)&address, len) == 0 && listen(fd, 64) == 0 &&
               getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    fake->port = ntohs(address.sin_port);
    fake->listener = (struct kvb_io_watch){.fd = fd, .fn = fake_accept_};
    kvb_status_t status = kvb_io_watch(io, &fake->listener, KVB_IO_READ);
    kvb_assert(status == KVB_OK);
}

static inline void fake_close(struct fake_etcd *fake)
{
    for (int i = 0; i < FAKE_CONNECTIONS; i++) {
        if (fake->connections[i].used) {
            fake_drop_(&fake->connections[i]);
        }
    }
    kvb_io_unwatch(fake->io, &fake->listener);
    (void)close(fake->listener.fd);
    free(fake->connections);
}

#endif
