/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream sockets of the kernel. Connecting is a small walk: addresses are looked up (numeric ones
 * at once, names on a thread, because the resolver blocks), then each is tried until one takes the
 * connection. One that says nothing is left after a while if there are others: of a name in two
 * families one may lead nowhere. Whatever fails on the way is told by the first read or write after
 * it.
 */
#include "base/list.h"
#include "transport/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define HOST_MAX    256
#define PORT_MAX    16
#define LOOKUPS_MAX 32  /* threads in the resolver, of the process */
#define PATIENCE_MS 500 /* with an address, while there is another */

struct net {
    struct kvt_net base;
    struct kvb_io *io;
    uint32_t buffer_bytes;
};

/* A name being looked up. Belongs to whoever comes second: the thread with its answer, or the
 * socket that does not want it any more. */
struct lookup {
    char host[HOST_MAX];
    char port[PORT_MAX];
    struct addrinfo *found; /* NULL: unknown */
    int done_fd;            /* becomes readable */
    atomic_bool second;     /* acq_rel: the first leaves `found` to the second */
};

enum socket_state {
    SOCKET_LOOKUP,     /* owns: lookup. waits for: its descriptor */
    SOCKET_CONNECTING, /* owns: fd, found. waits for: writable, patience if there is a next */
    SOCKET_OPEN,       /* owns: fd */
    SOCKET_FAILED      /* owns: nothing. reads and writes say why */
};

struct sock {
    struct kvt_socket base;
    struct net *net;
    enum socket_state state;
    kvb_status_t why;
    int fd; /* -1: none */
    struct kvb_io_watch watch;
    unsigned wanted;
    struct lookup *lookup;
    struct addrinfo *found;       /* to be freed */
    struct addrinfo *next;        /* of found, to be tried */
    struct kvb_io_watch patience; /* a timer; fd -1: none */
};

static struct net *net_of(struct kvt_net *net)
{
    return kvb_container_of(net, struct net, base);
}

static struct sock *of(struct kvt_socket *socket)
{
    return kvb_container_of(socket, struct sock, base);
}

/* ---- errno ---- */

static kvb_status_t connect_error(int error)
{
    switch (error) {
    case EMFILE:
    case ENFILE:
    case EADDRNOTAVAIL: /* no local port is left: ours, not the peer's fault */
    case EAGAIN:
        return KVB_ERR_LIMIT;
    case ENOMEM:
    case ENOBUFS:
        return KVB_ERR_NO_MEMORY;
    default:
        return KVB_ERR_UNAVAILABLE;
    }
}

static kvb_status_t transfer_error(int error)
{
    switch (error) {
    case EAGAIN:
        return KVB_ERR_AGAIN;
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ETIMEDOUT:
    case ENOTCONN:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return KVB_ERR_DISCONNECTED;
    case ENOMEM:
    case ENOBUFS:
        return KVB_ERR_NO_MEMORY;
    default:
        return KVB_ERR_IO;
    }
}

/* ---- a name ---- */

static atomic_uint lookups_running; /* relaxed: a bound, nothing hangs on the order */

static void lookup_free(struct lookup *lookup)
{
    if (lookup->found != NULL) {
        freeaddrinfo(lookup->found);
    }
    (void)close(lookup->done_fd);
    free(lookup);
}

static struct addrinfo *resolve(const char *host, const char *port, int flags)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    struct addrinfo *found;
    return getaddrinfo(host, port, &hints, &found) == 0 ? found : NULL;
}

/* This side is through with it. */
static void lookup_leave(struct lookup *lookup)
{
    if (atomic_exchange_explicit(&lookup->second, true, memory_order_acq_rel)) {
        lookup_free(lookup);
    }
}

static void *lookup_run(void *arg)
{
    struct lookup *lookup = arg;
    lookup->found = resolve(lookup->host, lookup->port, 0);
    atomic_fetch_sub_explicit(&lookups_running, 1, memory_order_relaxed);
    (void)eventfd_write(lookup->done_fd, 1); /* fails only at the counter's end */
    lookup_leave(lookup);
    return NULL;
}

static kvb_status_t lookup_start(const char *host, const char *port, struct lookup **lookup_p)
{
    struct lookup *lookup = calloc(1, sizeof *lookup);
    if (lookup == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    (void)snprintf(lookup->host, sizeof lookup->host, "%s", host);
    (void)snprintf(lookup->port, sizeof lookup->port, "%s", port);
    pthread_t thread;
    lookup->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (lookup->done_fd < 0) {
        goto err_lookup;
    }
    if (atomic_fetch_add_explicit(&lookups_running, 1, memory_order_relaxed) >= LOOKUPS_MAX ||
        pthread_create(&thread, NULL, lookup_run, lookup) != 0) {
        goto err_running;
    }
    (void)pthread_detach(thread); /* it may sit in the resolver for longer than anybody waits */
    *lookup_p = lookup;
    return KVB_OK;

err_running:
    atomic_fetch_sub_explicit(&lookups_running, 1, memory_order_relaxed);
    (void)close(lookup->done_fd);
err_lookup:
    free(lookup);
    return KVB_ERR_LIMIT;
}

/* ---- a socket ---- */

static void on_event(struct kvb_io_watch *watch, unsigned events);
static void on_patience_over(struct kvb_io_watch *watch, unsigned events);

static struct sock *sock_new(struct net *net)
{
    struct sock *sock = calloc(1, sizeof *sock);
    if (sock != NULL) {
        sock->net = net;
        sock->fd = -1;
        sock->watch.fn = on_event;
        sock->patience = (struct kvb_io_watch){.fd = -1, .fn = on_patience_over};
    }
    return sock;
}

static void stop_watching(struct sock *sock)
{
    kvb_io_unwatch(sock->net->io, &sock->watch);
}

static void close_fd(struct sock *sock)
{
    if (sock->fd >= 0) {
        stop_watching(sock);
        (void)close(sock->fd);
        sock->fd = -1;
    }
}

static void drop_lookup(struct sock *sock)
{
    if (sock->lookup != NULL) {
        stop_watching(sock);
        lookup_leave(sock->lookup);
        sock->lookup = NULL;
    }
}

static void end_patience(struct sock *sock)
{
    if (sock->patience.fd >= 0) {
        kvb_io_unwatch(sock->net->io, &sock->patience);
        (void)close(sock->patience.fd);
        sock->patience.fd = -1;
    }
}

/* What cannot be had is done without: the user has a bound of his own. */
static void begin_patience(struct sock *sock)
{
    const struct itimerspec span = {.it_value = {.tv_nsec = PATIENCE_MS * 1000000L}};
    if (sock->patience.fd < 0) {
        sock->patience.fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    }
    if (sock->patience.fd < 0 || timerfd_settime(sock->patience.fd, 0, &span, NULL) != 0 ||
        kvb_io_watch(sock->net->io, &sock->patience, KVB_IO_READ) != KVB_OK) {
        end_patience(sock);
    }
}

static void drop_found(struct sock *sock)
{
    end_patience(sock);
    if (sock->found != NULL) {
        freeaddrinfo(sock->found);
        sock->found = sock->next = NULL;
    }
}

static void net_close(struct kvt_socket *base)
{
    struct sock *sock = of(base);
    close_fd(sock);
    drop_lookup(sock);
    drop_found(sock);
    free(sock);
}

/* What does not exist for this kind of socket (a Unix one, say) is not needed for it. */
static void set_options(const struct net *net, int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},   {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 10}, {IPPROTO_TCP, TCP_KEEPINTVL, 5},
        {IPPROTO_TCP, TCP_KEEPCNT, 3},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
    }
    if (net->buffer_bytes > 0) {
        int bytes = (int)(net->buffer_bytes / 2); /* the kernel doubles it */
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
}

static kvb_status_t watch_fd(struct sock *sock, int fd, unsigned events)
{
    sock->watch.fd = fd;
    return kvb_io_watch(sock->net->io, &sock->watch, events);
}

/* Tries the addresses that are left until one takes the connection, or at least begins to. */
static kvb_status_t connect_next(struct sock *sock, kvb_status_t why)
{
    for (; sock->next != NULL; sock->next = sock->next->ai_next) {
        const struct addrinfo *to = sock->next;
        int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            why = connect_error(errno);
            continue;
        }
        set_options(sock->net, fd);
        if (connect(fd, to->ai_addr, to->ai_addrlen) != 0 && errno != EINPROGRESS) {
            why = connect_error(errno);
            (void)close(fd);
            continue;
        }
        kvb_status_t status = watch_fd(sock, fd, KVB_IO_WRITE);
        if (status != KVB_OK) {
            (void)close(fd);
            return status;
        }
        sock->fd = fd;
        sock->state = SOCKET_CONNECTING;
        sock->next = sock->next->ai_next;
        if (sock->next != NULL) {
            begin_patience(sock);
        } else {
            end_patience(sock);
        }
        return KVB_OK;
    }
    return why;
}

static void fail(struct sock *sock, kvb_status_t why)
{
    close_fd(sock);
    end_patience(sock);
    sock->state = SOCKET_FAILED;
    sock->why = why;
}

/* The thread has left its answer. */
static void on_lookup_done(struct sock *sock)
{
    eventfd_t count;
    if (eventfd_read(sock->lookup->done_fd, &count) != 0) {
        return;
    }
    sock->found = sock->next = sock->lookup->found;
    sock->lookup->found = NULL;
    drop_lookup(sock);
    kvb_status_t status = connect_next(sock, KVB_ERR_UNAVAILABLE);
    if (status != KVB_OK) {
        fail(sock, status);
    }
}

static void on_connected(struct sock *sock)
{
    int error = 0;
    socklen_t len = sizeof error;
    if (getsockopt(sock->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) {
        error = errno;
    }
    kvb_status_t status = error == 0 ? watch_fd(sock, sock->fd, sock->wanted) : KVB_OK;
    if (error == 0 && status == KVB_OK) {
        drop_found(sock);
        sock->state = SOCKET_OPEN;
        return;
    }
    close_fd(sock);
    status = status == KVB_OK ? connect_next(sock, connect_error(error)) : status;
    if (status != KVB_OK) {
        fail(sock, status);
    }
}

static void on_patience_over(struct kvb_io_watch *watch, unsigned events)
{
    struct sock *sock = kvb_container_of(watch, struct sock, patience);
    (void)events;
    close_fd(sock);
    kvb_status_t status = connect_next(sock, KVB_ERR_UNAVAILABLE);
    if (status != KVB_OK) {
        fail(sock, status);
        sock->base.ready(&sock->base, KVB_IO_WRITE);
    }
}

static void on_event(struct kvb_io_watch *watch, unsigned events)
{
    struct sock *sock = kvb_container_of(watch, struct sock, watch);
    if (sock->state == SOCKET_LOOKUP) {
        on_lookup_done(sock);
    } else if (sock->state == SOCKET_CONNECTING) {
        on_connected(sock);
    }
    if (sock->state == SOCKET_OPEN || sock->state == SOCKET_FAILED) {
        sock->base.ready(&sock->base, sock->state == SOCKET_OPEN ? events : KVB_IO_WRITE);
    }
}

/* ---- operations ---- */

/* `HOST:PORT`, `[IPV6]:PORT` */
static bool split(const char *address, char host[HOST_MAX], char port[PORT_MAX])
{
    const char *colon = strrchr(address, ':');
    if (colon == NULL || colon == address) {
        return false;
    }
    const char *from = address;
    const char *to = colon;
    if (address[0] == '[') {
        if (to[-1] != ']') {
            return false;
        }
        from++;
        to--;
    } else if (memchr(from, ':', (size_t)(to - from)) != NULL) {
        return false; /* an IPv6 address needs its brackets */
    }
    size_t host_len = (size_t)(to - from);
    size_t port_len = strlen(colon + 1);
    if (host_len == 0 || host_len >= HOST_MAX || port_len == 0 || port_len > 5 ||
        strspn(colon + 1, "0123456789") != port_len || atoi(colon + 1) == 0 ||
        atoi(colon + 1) > UINT16_MAX) {
        return false;
    }
    memcpy(host, from, host_len);
    host[host_len] = '\0';
    memcpy(port, colon + 1, port_len + 1);
    return true;
}

bool kvt_address_valid(const char *address)
{
    char host[HOST_MAX];
    char port[PORT_MAX];
    return split(address, host, port);
}

static kvb_status_t begin_connect(struct sock *sock, const char *host, const char *port)
{
    sock->found = sock->next = resolve(host, port, AI_NUMERICHOST);
    if (sock->found != NULL) {
        return connect_next(sock, KVB_ERR_UNAVAILABLE);
    }
    kvb_status_t status = lookup_start(host, port, &sock->lookup);
    if (status == KVB_OK) {
        sock->state = SOCKET_LOOKUP;
        status = watch_fd(sock, sock->lookup->done_fd, KVB_IO_READ);
    }
    return status;
}

static kvb_status_t net_connect(struct kvt_net *base, const char *address,
                                struct kvt_socket **socket_p)
{
    char host[HOST_MAX];
    char port[PORT_MAX];
    if (!split(address, host, port)) {
        return KVB_ERR_INVALID;
    }
    struct sock *sock = sock_new(net_of(base));
    if (sock == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kvb_status_t status = begin_connect(sock, host, port);
    if (status != KVB_OK) {
        net_close(&sock->base);
        return status;
    }
    *socket_p = &sock->base;
    return KVB_OK;
}

static kvb_status_t net_adopt(struct kvt_net *base, int fd, struct kvt_socket **socket_p)
{
    struct sock *sock = sock_new(net_of(base));
    if (sock == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    int flags = fcntl(fd, F_GETFL);
    kvb_status_t status = KVB_ERR_IO;
    if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) {
        set_options(sock->net, fd);
        status = watch_fd(sock, fd, 0);
    }
    if (status != KVB_OK) {
        free(sock);
        return status;
    }
    sock->fd = fd;
    sock->state = SOCKET_OPEN;
    *socket_p = &sock->base;
    return KVB_OK;
}

/* Before there is a connection, and when there will be none. */
static kvb_status_t not_open(const struct sock *sock)
{
    return sock->state == SOCKET_FAILED ? sock->why : KVB_ERR_AGAIN;
}

static kvb_status_t net_read(struct kvt_socket *base, const struct iovec *to, int n, size_t *len_p)
{
    const struct sock *sock = of(base);
    if (sock->state != SOCKET_OPEN) {
        return not_open(sock);
    }
    ssize_t len;
    do {
        len = readv(sock->fd, to, n);
    } while (len < 0 && errno == EINTR);
    if (len <= 0) {
        return len == 0 ? KVB_ERR_DISCONNECTED : transfer_error(errno);
    }
    *len_p = (size_t)len;
    return KVB_OK;
}

static kvb_status_t net_write(struct kvt_socket *base, const struct iovec *from, int n,
                              size_t *len_p)
{
    const struct sock *sock = of(base);
    if (sock->state != SOCKET_OPEN) {
        return not_open(sock);
    }
    union { /* sendmsg only reads them */
        const struct iovec *in;
        struct iovec *out;
    } iov = {.in = from};
    const struct msghdr message = {.msg_iov = iov.out, .msg_iovlen = (size_t)n};
    ssize_t len;
    do {
        len = sendmsg(sock->fd, &message, MSG_NOSIGNAL);
    } while (len < 0 && errno == EINTR);
    if (len < 0) {
        return transfer_error(errno);
    }
    *len_p = (size_t)len;
    return KVB_OK;
}

static void net_want(struct kvt_socket *base, unsigned events)
{
    struct sock *sock = of(base);
    sock->wanted = events;
    if (sock->state == SOCKET_OPEN && watch_fd(sock, sock->fd, events) != KVB_OK) {
        fail(sock,
             KVB_ERR_IO); /* the kernel has never refused this; a bound of the user's ends it */
    }
}

static void net_gather(struct kvt_socket *base, uint32_t bytes)
{
    int least = (int)bytes;
    (void)setsockopt(of(base)->fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
}

static void net_from(struct kvt_socket *base, char out[KVT_NET_FROM_MAX])
{
    const struct sock *sock = of(base);
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    socklen_t len = sizeof address;
    out[0] = '\0';
    if (sock->fd >= 0 && getpeername(sock->fd, (struct sockaddr *)&address, &len) == 0 &&
        getnameinfo((const struct sockaddr *)&address, len, out, KVT_NET_FROM_MAX, NULL, 0,
                    NI_NUMERICHOST) != 0) {
        out[0] = '\0';
    }
}

static const struct kvt_net_ops net_ops = {
    .connect = net_connect,
    .adopt = net_adopt,
    .read = net_read,
    .write = net_write,
    .want = net_want,
    .gather = net_gather,
    .from = net_from,
    .close = net_close,
};

kvb_status_t kvt_net_kernel_create(struct kvb_io *io, uint32_t buffer_bytes, struct kvt_net **net_p)
{
    struct net *net = malloc(sizeof *net);
    if (net == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *net = (struct net){.base = {.ops = &net_ops}, .io = io, .buffer_bytes = buffer_bytes};
    *net_p = &net->base;
    return KVB_OK;
}

void kvt_net_kernel_destroy(struct kvt_net *net)
{
    if (net != NULL) {
        free(net_of(net));
    }
}
