/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include "base/assert.h"
#include "base/list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Connections as the kernel's are: bytes arrive in order or not at all, some time later; what a
 * machine has taken it keeps while its process sleeps; a window of bytes lies between writer and
 * reader; a cut network holds everything back (TCP would send it again), and a dead process's
 * machine answers with a reset, a dead machine with nothing.
 */
#define FD_BASE  1000000
#define FDS_MAX  4096
#define WINDOW   (128u << 10)
#define AGAIN_NS (20 * KVB_NS_PER_MS) /* what a cut held back is tried again */

struct chunk {
    struct kvb_list link;
    uint64_t at_ns; /* arrives, at the earliest */
    bool fin;
    size_t len;
    uint8_t bytes[];
};

struct net {
    struct kvt_net base;
    struct sim_process *process;
    void (*accept)(void *ctx, int fd);
    void *ctx;
    struct kvb_list sockets;
};

struct sock {
    struct kvt_socket base;
    struct net *net;
    struct kvb_list link;   /* of net */
    struct sock *other;     /* NULL: it is not there (any more) */
    struct kvb_list coming; /* struct chunk: on the way to this one */
    size_t coming_len;
    bool moving; /* its next arrival is planned */
    bool open;   /* connecting has ended well */
    bool refused, reset, eof, closed;
    unsigned wanted;
    size_t least;
    uint8_t *data; /* arrived, not read */
    size_t len, cap;
    struct kvb_event event;
    uint32_t peer_machine;
};

static struct net *listeners[SIM_MACHINES_MAX];
static struct sock *pending[FDS_MAX];

static struct sock *sock_of(struct kvt_socket *base)
{
    return kvb_container_of(base, struct sock, base);
}

static bool is_cut(uint32_t a, uint32_t b)
{
    return sim.cut[a][b] || sim.cut[b][a] || sim.off[a] || sim.off[b];
}

static size_t room(const struct sock *to)
{
    size_t used = to->len + to->coming_len;
    return used < WINDOW ? WINDOW - used : 0;
}

static unsigned readiness(const struct sock *sock)
{
    bool over = sock->reset || sock->refused || sock->eof;
    size_t least = sock->least < WINDOW / 2 ? sock->least : WINDOW / 2;
    bool readable = sock->len > 0 && sock->len >= least;
    bool writable = sock->open && sock->other != NULL && room(sock->other) > 0;
    bool gone = sock->reset || sock->refused;
    unsigned ready = (readable || over ? KVB_IO_READ : 0u) | (writable || gone ? KVB_IO_WRITE : 0u);
    return ready & sock->wanted;
}

static void look(struct sock *sock)
{
    if (!sock->closed && !sock->net->process->dead && readiness(sock) != 0) {
        kvb_sched_post(&sock->net->process->sched, &sock->event);
    }
}

static void on_event(struct kvb_event *event)
{
    struct sock *sock = kvb_container_of(event, struct sock, event);
    unsigned ready = readiness(sock);
    if (ready != 0 && !sock->closed) {
        sock->base.ready(&sock->base, ready);
        look(sock); /* level triggered; a closed one stays allocated */
    }
}

static struct sock *new_sock(struct net *net)
{
    struct sock *sock = calloc(1, sizeof *sock);
    kvb_assert(sock != NULL);
    sock->net = net;
    sock->least = 1;
    kvb_list_init(&sock->coming);
    kvb_event_init(&sock->event, on_event);
    kvb_list_push_back(&net->sockets, &sock->link);
    return sock;
}

static void set_reset(struct sock *sock)
{
    sock->reset = true;
    sock->len = 0;
    sock->other = NULL;
    look(sock);
}

/* ---- on the way ---- */

static void plan(struct sock *sock);
static void send_reset(struct sock *to, uint32_t from);

static void on_arrival(void *ctx)
{
    struct sock *sock = ctx;
    sock->moving = false;
    if (sock->closed || sock->reset) {
        return;
    }
    while (!kvb_list_empty(&sock->coming)) {
        struct chunk *chunk = kvb_container_of(kvb_list_first(&sock->coming), struct chunk, link);
        if (chunk->at_ns > sim.now_ns) {
            break;
        }
        if (is_cut(sock->net->process->machine, sock->peer_machine)) {
            chunk->at_ns = sim.now_ns + AGAIN_NS;
            break;
        }
        kvb_list_remove(&chunk->link);
        sock->coming_len -= chunk->len;
        if (sock->net->process->dead) { /* its machine answers for it */
            if (sock->other != NULL) {
                send_reset(sock->other, sock->net->process->machine);
                sock->other = NULL;
            }
        } else if (chunk->fin) {
            sock->eof = true;
        } else {
            if (sock->len + chunk->len > sock->cap) {
                sock->cap = (sock->len + chunk->len) * 2;
                sock->data = realloc(sock->data, sock->cap);
                kvb_assert(sock->data != NULL);
            }
            memcpy(sock->data + sock->len, chunk->bytes, chunk->len);
            sock->len += chunk->len;
        }
        free(chunk);
        look(sock);
    }
    plan(sock);
}

static void plan(struct sock *sock)
{
    struct kvb_list *first = kvb_list_first(&sock->coming);
    if (first != NULL && !sock->moving) {
        uint64_t at_ns = kvb_container_of(first, struct chunk, link)->at_ns;
        sock->moving = true;
        sim_after(at_ns > sim.now_ns ? at_ns - sim.now_ns : 0, on_arrival, sock);
    }
}

static void send_chunk(struct sock *to, const struct iovec *from, int n, size_t len, bool fin)
{
    struct chunk *chunk = malloc(sizeof *chunk + len);
    kvb_assert(chunk != NULL);
    *chunk = (struct chunk){.fin = fin, .len = len, .at_ns = sim.now_ns + sim_way_ns()};
    size_t done = 0;
    for (int i = 0; i < n && done < len; i++) {
        size_t part = from[i].iov_len < len - done ? from[i].iov_len : len - done;
        memcpy(chunk->bytes + done, from[i].iov_base, part);
        done += part;
    }
    if (!kvb_list_empty(&to->coming)) { /* in order */
        uint64_t last_ns = kvb_container_of(to->coming.prev, struct chunk, link)->at_ns;
        chunk->at_ns = chunk->at_ns < last_ns ? last_ns : chunk->at_ns;
    }
    kvb_list_push_back(&to->coming, &chunk->link);
    to->coming_len += len;
    plan(to);
}

/* A reset travels, too. */
struct kill {
    struct sock *to;
    uint32_t from;
};

static void on_kill(void *ctx)
{
    struct kill *kill = ctx;
    if (is_cut(kill->to->net->process->machine, kill->from)) {
        sim_after(AGAIN_NS, on_kill, kill);
        return;
    }
    if (!kill->to->closed) {
        set_reset(kill->to);
    }
    free(kill);
}

static void send_reset(struct sock *to, uint32_t from)
{
    struct kill *kill = malloc(sizeof *kill);
    kvb_assert(kill != NULL);
    *kill = (struct kill){to, from};
    sim_after(sim_way_ns(), on_kill, kill);
}

/* ---- connecting ---- */

void sim_address(uint32_t machine, char out[32])
{
    (void)snprintf(out, 32, "sim-%u:7", machine);
}

static void on_opened(void *ctx)
{
    struct sock *sock = ctx;
    if (sock->closed) {
        return;
    }
    sock->open = true;
    look(sock);
}

static void on_syn(void *ctx)
{
    struct sock *client = ctx;
    if (client->closed) {
        return;
    }
    if (is_cut(client->net->process->machine, client->peer_machine)) {
        sim_after(AGAIN_NS, on_syn, client);
        return;
    }
    struct net *net = listeners[client->peer_machine];
    if (net == NULL || net->process->dead) { /* the machine is there, nobody listens */
        client->refused = true;
        look(client);
        return;
    }
    struct sock *server = new_sock(net);
    server->open = true;
    server->other = client;
    server->peer_machine = client->net->process->machine;
    client->other = server;
    sim_after(sim_way_ns(), on_opened, client);
    for (int i = 0; i < FDS_MAX; i++) {
        if (pending[i] == NULL) {
            pending[i] = server;
            net->accept(net->ctx, FD_BASE + i);
            if (pending[i] == server) { /* not taken: closed */
                pending[i] = NULL;
                server->base.ready = NULL;
                server->closed = true;
                send_reset(client, net->process->machine);
            }
            return;
        }
    }
    sim_fail("too many connections at a time");
}

static kvb_status_t net_connect(struct kvt_net *base, const char *address,
                                struct kvt_socket **socket_p)
{
    struct net *net = kvb_container_of(base, struct net, base);
    unsigned machine;
    if (sscanf(address, "sim-%u:7", &machine) != 1 || machine >= SIM_MACHINES_MAX) {
        return KVB_ERR_INVALID;
    }
    struct sock *sock = new_sock(net);
    sock->peer_machine = machine;
    sim_after(sim_way_ns(), on_syn, sock);
    *socket_p = &sock->base;
    return KVB_OK;
}

static kvb_status_t net_adopt(struct kvt_net *base, int fd, struct kvt_socket **socket_p)
{
    (void)base;
    kvb_assert(fd >= FD_BASE && fd < FD_BASE + FDS_MAX && pending[fd - FD_BASE] != NULL);
    *socket_p = &pending[fd - FD_BASE]->base;
    pending[fd - FD_BASE] = NULL;
    return KVB_OK;
}

/* ---- bytes ---- */

static kvb_status_t net_read(struct kvt_socket *base, const struct iovec *to, int n, size_t *len_p)
{
    struct sock *sock = sock_of(base);
    if (sock->refused || sock->reset) {
        return sock->refused ? KVB_ERR_UNAVAILABLE : KVB_ERR_DISCONNECTED;
    }
    if (sock->len == 0) {
        return sock->eof ? KVB_ERR_DISCONNECTED : KVB_ERR_AGAIN;
    }
    size_t total = 0;
    size_t most = sim_chance(100) ? 1 + sim_below(sock->len) : sock->len;
    for (int i = 0; i < n && total < most; i++) {
        size_t len = to[i].iov_len < most - total ? to[i].iov_len : most - total;
        memcpy(to[i].iov_base, sock->data + total, len);
        total += len;
    }
    memmove(sock->data, sock->data + total, sock->len - total);
    sock->len -= total;
    if (sock->other != NULL) {
        look(sock->other);
    }
    *len_p = total;
    return total > 0 ? KVB_OK : KVB_ERR_AGAIN;
}

static kvb_status_t net_write(struct kvt_socket *base, const struct iovec *from, int n,
                              size_t *len_p)
{
    struct sock *sock = sock_of(base);
    if (sock->refused) {
        return KVB_ERR_UNAVAILABLE;
    }
    if (sock->reset || (sock->open && sock->other == NULL)) {
        return KVB_ERR_DISCONNECTED;
    }
    if (!sock->open || room(sock->other) == 0) {
        return KVB_ERR_AGAIN;
    }
    size_t asked = 0;
    for (int i = 0; i < n; i++) {
        asked += from[i].iov_len;
    }
    size_t most = asked < room(sock->other) ? asked : room(sock->other);
    if (most > 1 && sim_chance(100)) {
        most = 1 + sim_below(most);
    }
    if (most == 0) {
        return KVB_ERR_AGAIN;
    }
    send_chunk(sock->other, from, n, most, false);
    *len_p = most;
    return KVB_OK;
}

static void net_want(struct kvt_socket *base, unsigned events)
{
    sock_of(base)->wanted = events;
    look(sock_of(base));
}

static void net_gather(struct kvt_socket *base, uint32_t bytes)
{
    sock_of(base)->least = bytes;
    look(sock_of(base));
}

static void net_from(struct kvt_socket *base, char out[KVT_NET_FROM_MAX])
{
    (void)snprintf(out, KVT_NET_FROM_MAX, "sim-%u", sock_of(base)->peer_machine);
}

static void net_close(struct kvt_socket *base)
{
    struct sock *sock = sock_of(base);
    sock->closed = true;
    kvb_sched_unpost(&sock->event);
    kvb_list_remove(&sock->link);
    struct sock *other = sock->other;
    sock->other = NULL;
    if (other == NULL) {
        return;
    }
    if (sock->len > 0) {
        other->other = NULL;
        send_reset(other, sock->net->process->machine);
    } else {
        other->other = NULL; /* what it still writes goes nowhere */
        send_chunk(other, NULL, 0, 0, true);
    }
}

static const struct kvt_net_ops ops = {
    .connect = net_connect,
    .adopt = net_adopt,
    .read = net_read,
    .write = net_write,
    .want = net_want,
    .gather = net_gather,
    .from = net_from,
    .close = net_close,
};

struct kvt_net *sim_net_open(struct sim_process *process, void (*accept)(void *ctx, int fd),
                             void *ctx)
{
    struct net *net = calloc(1, sizeof *net);
    kvb_assert(net != NULL);
    *net = (struct net){.base = {.ops = &ops}, .process = process, .accept = accept, .ctx = ctx};
    kvb_list_init(&net->sockets);
    process->net = &net->base;
    if (accept != NULL) {
        listeners[process->machine] = net;
    }
    return &net->base;
}

void sim_net_died(struct sim_process *process, bool off)
{
    struct net *net =
        process->net == NULL ? NULL : kvb_container_of(process->net, struct net, base);
    if (net == NULL || off) {
        return; /* nobody is told anything, until the machine is back */
    }
    kvb_list_each(&net->sockets, link)
    {
        struct sock *sock = kvb_container_of(link, struct sock, link);
        if (sock->other != NULL) {
            send_reset(sock->other, process->machine);
            sock->other = NULL;
        }
    }
}
