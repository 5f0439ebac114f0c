/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_TCP_PROXY_H
#define TESTS_TCP_PROXY_H

/*
 * A TCP proxy inside a test's own loop, with a switch: it passes everything on, refuses and cuts,
 * or lets connections hang. It can also cut each connection once so many more bytes of the answers
 * were to come: then what was asked has happened, and the asker does not know.
 */
#include "base/assert.h"
#include "base/io.h"
#include "base/list.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PROXY_PAIRS_MAX 64
#define PROXY_BUFFER    65536

enum proxy_mode { PROXY_PASS, PROXY_CUT, PROXY_HANG };

struct tcp_proxy;
struct proxy_side {
    struct kvb_io_watch watch;
    struct proxy_side *other;
    struct tcp_proxy *proxy;
    bool server; /* towards whom it stands for */
    uint32_t len, sent;
    char data[PROXY_BUFFER]; /* read here, to be written to the other */
};
struct proxy_pair {
    bool used;
    struct proxy_side client, server;
};
struct tcp_proxy {
    struct kvb_io *io;
    struct kvb_io_watch listener;
    int port;
    int to_port;
    enum proxy_mode mode;
    /* Called for what comes from a client; true: it is passed on, its connection is cut before any
     * more of an answer. NULL: none. */
    bool (*cut_after)(void *ctx, const char *data, uint32_t len);
    void *ctx;
    struct proxy_pair *pairs;
    uint32_t connections; /* accepted so far */
};

static inline void proxy_drop_(struct proxy_pair *pair)
{
    if (!pair->used) {
        return;
    }
    pair->used = false;
    struct proxy_side *const sides[] = {&pair->client, &pair->server};
    for (int i = 0; i < 2; i++) {
        kvb_io_unwatch(sides[i]->proxy->io, &sides[i]->watch);
        /* reset, not closed in good order */
        struct linger hard = {.l_onoff = 1};
        (void)setsockopt(sides[i]->watch.fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        (void)close(sides[i]->watch.fd);
    }
}

static inline struct proxy_pair *proxy_pair_of_(struct proxy_side *side)
{
    return side->server ? kvb_container_of(side, struct proxy_pair, server)
                        : kvb_container_of(side, struct proxy_pair, client);
}

static inline void proxy_want_(struct proxy_side *side)
{
    unsigned events = (side->len == 0 && side->proxy->mode != PROXY_HANG ? KVB_IO_READ : 0u) |
                      (side->other->len > 0 && side->proxy->mode != PROXY_HANG ? KVB_IO_WRITE : 0u);
    kvb_status_t status = kvb_io_watch(side->proxy->io, &side->watch, events);
    kvb_assert(status == KVB_OK);
}

static inline bool proxy_flush_(struct proxy_side *from)
{
    while (from->sent < from->len) {
        ssize_t n = send(from->other->watch.fd, from->data + from->sent, from->len - from->sent,
                         MSG_NOSIGNAL);
        if (n < 0) {
            return errno == EAGAIN;
        }
        from->sent += (uint32_t)n;
    }
    from->len = from->sent = 0;
    return true;
}

static inline void proxy_ready_(struct kvb_io_watch *watch, unsigned events)
{
    struct proxy_side *side = kvb_container_of(watch, struct proxy_side, watch);
    struct tcp_proxy *proxy = side->proxy;
    struct proxy_pair *pair = proxy_pair_of_(side);
    bool ok = true;
    bool cut = false;
    if (proxy->mode == PROXY_HANG) {
        proxy_want_(side);
        return;
    }
    if ((events & KVB_IO_WRITE) != 0) {
        ok = proxy_flush_(side->other);
    }
    if (ok && (events & KVB_IO_READ) != 0 && side->len == 0) {
        ssize_t n = recv(side->watch.fd, side->data, sizeof side->data, 0);
        if (n > 0) {
            side->len = (uint32_t)n;
            cut = !side->server && proxy->cut_after != NULL &&
                  proxy->cut_after(proxy->ctx, side->data, side->len);
            ok = proxy_flush_(side);
        } else {
            ok = n < 0 && errno == EAGAIN;
        }
    }
    if (cut) { /* all of it has gone to the other side; give it the time to act on it */
        const struct timespec pause = {.tv_nsec = 30000000};
        (void)nanosleep(&pause, NULL);
    }
    if (!ok || cut) {
        proxy_drop_(pair);
        return;
    }
    proxy_want_(&pair->client);
    proxy_want_(&pair->server);
}

static inline void proxy_accept_(struct kvb_io_watch *watch, unsigned events)
{
    (void)events;
    struct tcp_proxy *proxy = kvb_container_of(watch, struct tcp_proxy, listener);
    int fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        return;
    }
    proxy->connections++;
    struct proxy_pair *pair = proxy->pairs;
    while (pair < proxy->pairs + PROXY_PAIRS_MAX && pair->used) {
        pair++;
    }
    kvb_assert(pair < proxy->pairs + PROXY_PAIRS_MAX);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)proxy->to_port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (proxy->mode == PROXY_CUT || connect(server, (struct sockaddr *)&to, sizeof to) != 0) {
        (void)close(server);
        (void)close(fd);
        return;
    }
    (void)fcntl(server, F_SETFL, O_NONBLOCK);
    pair->used = true;
    struct proxy_side *const sides[] = {&pair->client, &pair->server};
    for (int i = 0; i < 2; i++) {
        sides[i]->proxy = proxy;
        sides[i]->other = sides[1 - i];
        sides[i]->server = i == 1;
        sides[i]->len = sides[i]->sent = 0;
        sides[i]->watch = (struct kvb_io_watch){.fd = i == 0 ? fd : server, .fn = proxy_ready_};
        proxy_want_(sides[i]);
    }
}

static inline void proxy_open(struct tcp_proxy *proxy, struct kvb_io *io, int to_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    *proxy = (struct tcp_proxy){.io = io, .to_port = to_port};
    proxy->pairs = calloc(PROXY_PAIRS_MAX, sizeof *proxy->pairs);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    kvb_assert(proxy->pairs != NULL && fd >= 0 && bind(fd, (struct sockaddr *)&address, len) == 0 &&
               listen(fd, 64) == 0 && getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    proxy->port = ntohs(address.sin_port);
    proxy->listener = (struct kvb_io_watch){.fd = fd, .fn = proxy_accept_};
    kvb_status_t status = kvb_io_watch(io, &proxy->listener, KVB_IO_READ);
    kvb_assert(status == KVB_OK);
}

static inline void proxy_set(struct tcp_proxy *proxy, enum proxy_mode mode)
{
    proxy->mode = mode;
    for (uint32_t i = 0; i < PROXY_PAIRS_MAX; i++) {
        struct proxy_pair *pair = &proxy->pairs[i];
        if (pair->used && mode == PROXY_CUT) {
            proxy_drop_(pair);
        } else if (pair->used) {
            proxy_want_(&pair->client);
            proxy_want_(&pair->server);
        }
    }
}

static inline void proxy_close(struct tcp_proxy *proxy)
{
    proxy_set(proxy, PROXY_CUT);
    kvb_io_unwatch(proxy->io, &proxy->listener);
    (void)close(proxy->listener.fd);
    free(proxy->pairs);
}

#endif
