/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_NET_H
#define TESTS_SIM_NET_H

/*
 * A struct kvt_net without a kernel: connections are queues of bytes in this process, on a
 * simulated clock, so that a fault can be put at an exact byte and a run repeats. Level triggered,
 * as the kernel's is. What a test turns:
 *
 *   step       most bytes of one read or write (1: one byte at a time); 0: any
 *   room       bytes that lie between a writer and its reader
 *   cut_at     of each connection made from then on: after so many bytes, of both directions
 *              together, it is reset, or closed after what was delivered (cut_close)
 *   drop       bytes are taken and never arrive (a cable pulled without a word)
 *   frozen     of a side: its sockets do nothing (a stopped process)
 */
#include "sim_sched.h"

#include "transport/net.h"

#include <stdint.h>
#include <string.h>

#define SIM_FD_BASE 1000000

#ifdef TESTS_FAIL_ALLOC_H /* the net is the world's, and does not run out of memory */
#define sim_calloc_  __real_calloc
#define sim_realloc_ __real_realloc
#else
#define sim_calloc_  calloc
#define sim_realloc_ realloc
#endif

struct sim_socket;

struct sim_side { /* one process, as far as the net goes */
    bool frozen;
    bool refuse; /* nobody listens */
    /* The fd is one for kvt_net's adopt. */
    void (*accept)(void *ctx, int fd);
    void *ctx;
};

struct sim_net {
    struct kvt_net base;
    struct sim_sched *sim;
    struct sim_side *server; /* whom every address means */
    size_t step;
    size_t room;
    uint64_t cut_at;
    bool cut_close;
    bool drop;
    uint32_t connects, open;
    uint64_t moved;              /* bytes written, of all */
    kvb_status_t connect_status; /* not OK: what connect() says */
    struct sim_socket *pending[64];
    struct kvb_list sockets;
};

struct sim_socket {
    struct kvt_socket base;
    struct sim_net *net;
    struct sim_side *side;    /* NULL: the client's */
    struct sim_socket *other; /* NULL: closed */
    bool reset;
    bool eof;             /* the other side closed */
    struct kvb_list link; /* one of net's */
    unsigned wanted;
    size_t least;  /* bytes that make it readable */
    uint8_t *data; /* arrived, not read */
    size_t len, cap;
    uint64_t *moved; /* of the connection, both ways; shared with the other */
    uint32_t *users;
    uint64_t cut_at;
    struct kvb_event event;
    bool *closed_p; /* set while ready() runs */
};

static inline struct sim_socket *sim_socket_of_(struct kvt_socket *socket)
{
    return kvb_container_of(socket, struct sim_socket, base);
}

static inline bool sim_frozen_(const struct sim_socket *socket)
{
    return socket->side != NULL && socket->side->frozen;
}

static inline size_t sim_room_(const struct sim_socket *socket)
{
    const struct sim_socket *other = socket->other;
    return other == NULL ? 0
                         : socket->net->room -
                               (other->len < socket->net->room ? other->len : socket->net->room);
}

static inline unsigned sim_readiness_(const struct sim_socket *socket)
{
    bool over = socket->reset || socket->eof || socket->other == NULL;
    size_t least = socket->least < socket->net->room ? socket->least : socket->net->room;
    bool readable = socket->len > 0 && socket->len >= least;
    unsigned ready = (readable || over ? KVB_IO_READ : 0u) |
                     (over || sim_room_(socket) > 0 || socket->net->drop ? KVB_IO_WRITE : 0u);
    return sim_frozen_(socket) ? 0 : ready & socket->wanted;
}

static inline void sim_look_(struct sim_socket *socket)
{
    if (socket != NULL && sim_readiness_(socket) != 0) {
        kvb_sched_post(&socket->net->sim->sched, &socket->event);
    }
}

static inline void sim_on_event_(struct kvb_event *event)
{
    struct sim_socket *socket = kvb_container_of(event, struct sim_socket, event);
    unsigned ready = sim_readiness_(socket);
    bool closed = false;
    if (ready == 0) {
        return;
    }
    socket->closed_p = &closed;
    socket->base.ready(&socket->base, ready);
    if (!closed) {
        socket->closed_p = NULL;
        sim_look_(socket);
    }
}

static inline struct sim_socket *sim_socket_new_(struct sim_net *net)
{
    struct sim_socket *socket = sim_calloc_(1, sizeof *socket);
    kvb_assert(socket != NULL);
    socket->net = net;
    kvb_event_init(&socket->event, sim_on_event_);
    kvb_list_push_back(&net->sockets, &socket->link);
    net->open++;
    return socket;
}

static inline void sim_reset_(struct sim_socket *socket)
{
    socket->reset = true;
    socket->len = 0;
    sim_look_(socket);
}

static inline kvb_status_t sim_net_connect_(struct kvt_net *base, const char *address,
                                            struct kvt_socket **socket_p)
{
    struct sim_net *net = kvb_container_of(base, struct sim_net, base);
    if (!kvt_address_valid(address)) {
        return KVB_ERR_INVALID;
    }
    net->connects++;
    if (net->connect_status != KVB_OK) {
        return net->connect_status;
    }
    struct sim_socket *client = sim_socket_new_(net);
    client->moved = sim_calloc_(1, sizeof *client->moved);
    client->users = sim_calloc_(1, sizeof *client->users);
    *client->users = 1;
    client->cut_at = net->cut_at;
    *socket_p = &client->base;
    if (net->server->refuse) {
        client->reset = true;
        return KVB_OK;
    }
    struct sim_socket *server = sim_socket_new_(net);
    server->side = net->server;
    server->other = client;
    client->other = server;
    server->moved = client->moved;
    server->users = client->users;
    ++*client->users;
    server->cut_at = net->cut_at;
    for (int i = 0; i < 64; i++) {
        if (net->pending[i] == NULL) {
            net->pending[i] = server;
            net->server->accept(net->server->ctx, SIM_FD_BASE + i);
            return KVB_OK;
        }
    }
    kvb_assert(false);
    return KVB_ERR_LIMIT;
}

static inline void sim_net_close_(struct kvt_socket *base)
{
    struct sim_socket *socket = sim_socket_of_(base);
    if (socket->closed_p != NULL) {
        *socket->closed_p = true;
    }
    if (socket->other != NULL) {
        socket->other->other = NULL;
        if (socket->len > 0) {
            sim_reset_(socket->other); /* as the kernel does with what was not read */
        } else {
            socket->other->eof = true;
        }
        sim_look_(socket->other);
    }
    if (--*socket->users == 0) {
        free(socket->users);
        free(socket->moved);
    }
    kvb_sched_unpost(&socket->event);
    kvb_list_remove(&socket->link);
    socket->net->open--;
    free(socket->data);
    free(socket);
}

static inline kvb_status_t sim_net_adopt_(struct kvt_net *base, int fd,
                                          struct kvt_socket **socket_p)
{
    struct sim_net *net = kvb_container_of(base, struct sim_net, base);
    kvb_assert(fd >= SIM_FD_BASE && fd < SIM_FD_BASE + 64);
    struct sim_socket *socket = net->pending[fd - SIM_FD_BASE];
    kvb_assert(socket != NULL);
    net->pending[fd - SIM_FD_BASE] = NULL;
    *socket_p = &socket->base;
    return KVB_OK;
}

/* A connection that the server did not take: what the kernel does when its descriptor is closed. */
static inline void sim_net_untaken(struct sim_net *net, int fd)
{
    struct sim_socket *socket = net->pending[fd - SIM_FD_BASE];
    if (socket != NULL) {
        net->pending[fd - SIM_FD_BASE] = NULL;
        sim_net_close_(&socket->base);
    }
}

static inline kvb_status_t sim_net_read_(struct kvt_socket *base, const struct iovec *to, int n,
                                         size_t *len_p)
{
    struct sim_socket *socket = sim_socket_of_(base);
    struct sim_net *net = socket->net;
    if (sim_frozen_(socket)) {
        return KVB_ERR_AGAIN;
    }
    if (socket->reset) {
        return socket->side == NULL && net->server->refuse ? KVB_ERR_UNAVAILABLE
                                                           : KVB_ERR_DISCONNECTED;
    }
    if (socket->len == 0) {
        return socket->eof || socket->other == NULL ? KVB_ERR_DISCONNECTED : KVB_ERR_AGAIN;
    }
    size_t total = 0;
    size_t most = net->step == 0 || net->step > socket->len ? socket->len : net->step;
    for (int i = 0; i < n && total < most; i++) {
        size_t len = to[i].iov_len < most - total ? to[i].iov_len : most - total;
        memcpy(to[i].iov_base, socket->data + total, len);
        total += len;
    }
    memmove(socket->data, socket->data + total, socket->len - total);
    socket->len -= total;
    sim_look_(socket->other);
    *len_p = total;
    return total > 0 ? KVB_OK : KVB_ERR_AGAIN;
}

/* The connection ends here and now. */
static inline void sim_cut_(struct sim_socket *socket)
{
    struct sim_socket *other = socket->other;
    socket->other = NULL;
    if (other != NULL) {
        other->other = NULL;
        if (socket->net->cut_close) {
            other->eof = true;
            sim_look_(other);
        } else {
            sim_reset_(other);
        }
    }
    sim_reset_(socket);
}

static inline kvb_status_t sim_net_write_(struct kvt_socket *base, const struct iovec *from, int n,
                                          size_t *len_p)
{
    struct sim_socket *socket = sim_socket_of_(base);
    struct sim_net *net = socket->net;
    if (sim_frozen_(socket)) {
        return KVB_ERR_AGAIN;
    }
    if (socket->reset || socket->other == NULL) {
        return socket->side == NULL && net->server->refuse ? KVB_ERR_UNAVAILABLE
                                                           : KVB_ERR_DISCONNECTED;
    }
    size_t room = net->drop ? SIZE_MAX : sim_room_(socket);
    if (room == 0) {
        return KVB_ERR_AGAIN;
    }
    size_t most = net->step == 0 || net->step > room ? room : net->step;
    uint64_t until_cut = socket->cut_at == 0 ? UINT64_MAX : socket->cut_at - *socket->moved;
    most = most < until_cut ? most : (size_t)until_cut;
    struct sim_socket *other = socket->other;
    size_t total = 0;
    for (int i = 0; i < n && total < most; i++) {
        size_t len = from[i].iov_len < most - total ? from[i].iov_len : most - total;
        if (!net->drop) {
            if (other->len + len > other->cap) {
                other->cap = (other->len + len) * 2;
                other->data = sim_realloc_(other->data, other->cap);
                kvb_assert(other->data != NULL);
            }
            memcpy(other->data + other->len, from[i].iov_base, len);
            other->len += len;
        }
        total += len;
    }
    *socket->moved += total;
    net->moved += total;
    *len_p = total;
    if (*socket->moved == socket->cut_at) {
        sim_cut_(socket);
        return total > 0 ? KVB_OK : KVB_ERR_DISCONNECTED;
    }
    sim_look_(other);
    return total > 0 ? KVB_OK : KVB_ERR_AGAIN;
}

static inline void sim_net_want_(struct kvt_socket *base, unsigned events)
{
    struct sim_socket *socket = sim_socket_of_(base);
    socket->wanted = events;
    sim_look_(socket);
}

static inline void sim_net_gather_(struct kvt_socket *base, uint32_t bytes)
{
    struct sim_socket *socket = sim_socket_of_(base);
    socket->least = bytes;
    sim_look_(socket);
}

static inline void sim_net_from_(struct kvt_socket *base, char out[KVT_NET_FROM_MAX])
{
    (void)base;
    (void)snprintf(out, KVT_NET_FROM_MAX, "sim");
}

static inline void sim_net_init(struct sim_net *net, struct sim_sched *sim, struct sim_side *server)
{
    static const struct kvt_net_ops ops = {
        .connect = sim_net_connect_,
        .adopt = sim_net_adopt_,
        .read = sim_net_read_,
        .write = sim_net_write_,
        .want = sim_net_want_,
        .gather = sim_net_gather_,
        .from = sim_net_from_,
        .close = sim_net_close_,
    };
    *net =
        (struct sim_net){.base = {.ops = &ops}, .sim = sim, .server = server, .room = 256u << 10};
    kvb_list_init(&net->sockets);
}

/* After frozen or drop was lifted. */
static inline void sim_net_look(struct sim_net *net)
{
    kvb_list_each(&net->sockets, link)
    {
        sim_look_(kvb_container_of(link, struct sim_socket, link));
    }
}

#endif
