/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets of the kernel (transport/net.h) when the kernel refuses: each call in turn, at each place
 * where it is made, with each kind of error. It is told as what it is; what was begun is given
 * back, a descriptor that was not taken is its owner's still; and the next attempt works.
 */
#include "fail_calls.h"
#include "real_loop.h"
#include "test_memory.h"

#include "transport/net.h"
#include "transport/tcp.h"

#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LIMIT_MS 240000

static int fail_errno; /* what a call says that fails */

#define WRAP(type, name, parameters, arguments)                                                    \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        if (FAIL_CALLS_NOW()) {                                                                    \
            errno = fail_errno;                                                                    \
            return -1;                                                                             \
        }                                                                                          \
        return __real_##name arguments;                                                            \
    }
WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol))

static bool connected_at_once;
int __real_connect(int fd, const struct sockaddr *to, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t len)
{
    if (FAIL_CALLS_NOW()) {
        errno = fail_errno;
        return -1;
    }
    int rc = __real_connect(fd, to, len);
    if (rc != 0 && errno == EINPROGRESS && connected_at_once) {
        struct pollfd there = {.fd = fd, .events = POLLOUT};
        rc = poll(&there, 1, LIMIT_MS) == 1 ? 0 : -1;
    }
    return rc;
}

WRAP(int, getpeername, (int fd, struct sockaddr *at, socklen_t *len), (fd, at, len))
WRAP(int, eventfd, (unsigned count, int flags), (count, flags))
WRAP(int, timerfd_create, (int clock, int flags), (clock, flags))
WRAP(int, timerfd_settime, (int fd, int flags, const struct itimerspec *to, struct itimerspec *was),
     (fd, flags, to, was))
WRAP(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *len),
     (fd, level, name, value, len))
WRAP(int, getnameinfo,
     (const struct sockaddr *at, socklen_t len, char *host, socklen_t host_len, char *service,
      socklen_t service_len, int flags),
     (at, len, host, host_len, service, service_len, flags))
/* Those of this file and of net_kernel.c have one argument of three at most. */
WRAP(int, fcntl, (int fd, int what, int value), (fd, what, value))

static bool interrupting; /* every other call that moves bytes is interrupted */
static bool interrupted(void)
{
    static bool last;
    last = interrupting && !last;
    if (last) {
        errno = EINTR;
    }
    return last;
}
#define WRAP_MOVE(name, type)                                                                      \
    ssize_t __real_##name(int fd, type what, int n);                                               \
    ssize_t __wrap_##name(int fd, type what, int n);                                               \
    ssize_t __wrap_##name(int fd, type what, int n)                                                \
    {                                                                                              \
        if (FAIL_CALLS_NOW()) {                                                                    \
            errno = fail_errno;                                                                    \
            return -1;                                                                             \
        }                                                                                          \
        return interrupted() ? -1 : __real_##name(fd, what, n);                                    \
    }
WRAP_MOVE(readv, const struct iovec *)
WRAP_MOVE(sendmsg, const struct msghdr *)

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg)
{
    return FAIL_CALLS_NOW() ? EAGAIN : __real_pthread_create(thread, attributes, run, arg);
}

/* A name with two addresses: the first refuses. Its caller runs on a thread of its own. */
static uint16_t ports[2];
int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found_p);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found_p);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found_p)
{
    if (strcmp(host, "twice") != 0) {
        return __real_getaddrinfo(host, port, hints, found_p);
    }
    if ((hints->ai_flags & AI_NUMERICHOST) != 0) {
        return EAI_NONAME;
    }
    struct addrinfo *found[2];
    for (int i = 0; i < 2; i++) {
        char text[8];
        (void)snprintf(text, sizeof text, "%u", ports[i]);
        if (__real_getaddrinfo("127.0.0.1", text, hints, &found[i]) != 0) {
            return EAI_MEMORY;
        }
    }
    found[0]->ai_next = found[1];
    *found_p = found[0];
    return 0;
}

/* What is watched already cannot fail to be watched for something else. */
static kvb_status_t failing_watch(struct kvb_io *io, struct kvb_io_watch *watch, unsigned events)
{
    return watch->impl == NULL && FAIL_CALLS_NOW() ? KVB_ERR_NO_MEMORY
                                                   : real_watch_(io, watch, events);
}
static const struct kvb_io_ops failing_io = {.watch = failing_watch, .unwatch = real_unwatch_};

struct end {
    struct kvt_net *net;
    struct kvt_socket *socket;
    unsigned events;
};

static void on_ready(struct kvt_socket *socket, unsigned events)
{
    struct end *end = socket->ctx;
    end->events = events;
    end->net->ops->want(socket, 0);
}

static bool is_ready(void *arg)
{
    return ((struct end *)arg)->events != 0;
}

static void await(struct real_loop *loop, struct end *end, unsigned events)
{
    end->events = 0;
    end->socket->ready = on_ready;
    end->socket->ctx = end;
    end->net->ops->want(end->socket, events);
    cr_assert(real_run_until(loop, is_ready, end, LIMIT_MS), "place %zx: never ready",
              fail_calls_place());
}

/* Its port is this test's; without a listener, connections to it are refused. */
static int bind_any(uint16_t *port_p, bool listener)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 &&
              (!listener || listen(fd, 16) == 0) &&
              getsockname(fd, (struct sockaddr *)&at, &len) == 0);
    *port_p = ntohs(at.sin_port);
    return fd;
}

/* What a refusal by the kernel may be told as. */
static void check_told(kvb_status_t status, const char *what)
{
    static const struct {
        int error;
        kvb_status_t told[3]; /* of connecting; of moving bytes; of both */
    } errors[] = {
        {EMFILE, {KVB_ERR_LIMIT, KVB_ERR_IO}},
        {EADDRNOTAVAIL, {KVB_ERR_LIMIT, KVB_ERR_IO}},
        {ENOBUFS, {KVB_ERR_NO_MEMORY, KVB_ERR_NO_MEMORY}},
        {ECONNRESET, {KVB_ERR_UNAVAILABLE, KVB_ERR_DISCONNECTED}},
        {ETIMEDOUT, {KVB_ERR_UNAVAILABLE, KVB_ERR_DISCONNECTED}},
        {EIO, {KVB_ERR_UNAVAILABLE, KVB_ERR_IO}},
    };
    bool legal = status == KVB_ERR_NO_MEMORY || status == KVB_ERR_LIMIT || status == KVB_ERR_IO;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        legal = legal || (errors[i].error == fail_errno &&
                          (errors[i].told[0] == status || errors[i].told[1] == status));
    }
    cr_assert(fail_hit && legal, "place %zx, errno %d, %s: %s", fail_calls_place(), fail_errno,
              what, kvb_status_label(status));
}

/* A byte from one end to the other. False: something was told, and nothing is left. */
static bool talk(struct real_loop *loop, struct kvt_net *net, int listener, const char *address)
{
    struct end near = {.net = net}, far = {.net = net};
    struct iovec byte = {(char[1]){'x'}, 1};
    size_t len = 0;
    kvb_status_t status = net->ops->connect(net, address, &near.socket);
    if (status != KVB_OK) {
        check_told(status, "connect");
        return false;
    }
    do { /* a want that was refused, by a watch that failed, ends it */
        await(loop, &near, KVB_IO_WRITE);
        status = net->ops->write(near.socket, &byte, 1, &len);
    } while (status == KVB_ERR_AGAIN);
    if (status != KVB_OK) {
        check_told(status, "write");
        net->ops->close(near.socket);
        return false;
    }
    int fd = accept(listener, NULL, NULL);
    cr_assert_geq(fd, 0);
    status = net->ops->adopt(net, fd, &far.socket);
    if (status != KVB_OK) {
        check_told(status, "adopt");
        cr_assert_eq(close(fd), 0, "place %zx: taken, and refused", fail_calls_place());
        net->ops->close(near.socket);
        return false;
    }
    char from[KVT_NET_FROM_MAX];
    net->ops->from(far.socket, from);
    cr_assert(strcmp(from, "127.0.0.1") == 0 || (fail_hit && from[0] == '\0'), "place %zx: '%s'",
              fail_calls_place(), from);
    char got = '\0';
    struct iovec to = {&got, 1};
    do {
        await(loop, &far, KVB_IO_READ);
        status = net->ops->read(far.socket, &to, 1, &len);
    } while (status == KVB_ERR_AGAIN);
    if (status != KVB_OK) {
        check_told(status, "read");
    } else {
        cr_assert(len == 1 && got == 'x');
    }
    net->ops->close(far.socket);
    net->ops->close(near.socket);
    return status == KVB_OK;
}

/* A node takes a connection: it is there, or its descriptor is closed. */
static void serve(struct real_loop *loop, struct kvt_net *net)
{
    static const struct kvt_server_ops nobody_comes; /* nobody shows the secret */
    const struct kvt_tcp_server_config config = {
        .common = {.net = net, .secret = "s", .secret_len = 1},
        .sched = &loop->sim.sched,
        .name = "n",
        .ops = &nobody_comes};
    struct kvt_tcp_server *server = NULL;
    kvb_status_t status;
    while ((status = kvt_tcp_server_create(&config, &server)) != KVB_OK) {
        check_told(status, "create");
    }
    for (int try = 0;; try++) {
        int ends[2];
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        status = kvt_tcp_server_adopt(server, ends[1]);
        char byte;
        bool closed = status != KVB_OK && recv(ends[0], &byte, 1, MSG_DONTWAIT) == 0;
        (void)close(ends[0]);
        if (status == KVB_OK) {
            break;
        }
        check_told(status, "adopt");
        cr_assert(closed, "place %zx: the descriptor stays", fail_calls_place());
        cr_assert_lt(try, 2);
    }
    kvt_tcp_server_destroy(server);
}

static void each_place(int error, uint32_t nth)
{
    char address[2][32];
    fail_errno = error;
    FAIL_CALLS_EACH(nth)
    {
        struct real_loop loop;
        struct kvt_net *net = NULL;
        fail_calls_pause();
        real_init(&loop, 1);
        sim_reserve_timers(&loop.sim.sched);
        loop.io.ops = &failing_io;
        int nobody = bind_any(&ports[0], false);
        int listener = bind_any(&ports[1], true);
        (void)snprintf(address[0], sizeof address[0], "127.0.0.1:%u", ports[1]);
        (void)snprintf(address[1], sizeof address[1], "twice:%u", ports[1]);
        fail_calls_resume();
        kvb_status_t status = kvt_net_kernel_create(&loop.io, 0, &net);
        if (status != KVB_OK) {
            cr_assert(fail_hit && status == KVB_ERR_NO_MEMORY);
            cr_assert_eq(kvt_net_kernel_create(&loop.io, 0, &net), KVB_OK);
        }
        for (int i = 0; i < 2; i++) {
            bool hit = fail_hit;
            bool good = talk(&loop, net, listener, address[i]);
            cr_assert(good || !hit, "place %zx: fails again", fail_calls_place());
            /* once more, and what was left in the listener's queue is of no interest */
            (void)fcntl(listener, F_SETFL, O_NONBLOCK);
            for (int fd; !good && (fd = accept(listener, NULL, NULL)) >= 0;) {
                (void)close(fd);
            }
            (void)fcntl(listener, F_SETFL, 0);
            cr_assert(good || talk(&loop, net, listener, address[i]), "place %zx: does not recover",
                      fail_calls_place());
        }
        serve(&loop, net);
        fail_calls_stop();
        kvt_net_kernel_destroy(net);
        (void)close(listener);
        (void)close(nobody);
        real_cleanup(&loop);
    }
}

Test(net_calls, whatever_the_kernel_refuses_is_told_and_the_next_attempt_works, .timeout = 500)
{
    static const int errors[] = {EMFILE, EADDRNOTAVAIL, ENOBUFS, ECONNRESET, ETIMEDOUT, EIO};
    size_t fds = test_count_fds();
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        each_place(errors[i], 1);
    }
    for (uint32_t nth = 2; nth <= 8; nth++) { /* what is asked for by one place, of the loop */
        each_place(EIO, nth);
    }
    for (uint64_t end_ns = kvb_deadline_in_ms(&kvb_clock_real, LIMIT_MS);
         test_count_fds() != fds && real_now_ns() < end_ns;) {
        (void)usleep(1000); /* a lookup's thread closes its descriptor when it is through */
    }
    cr_assert_eq(test_count_fds(), fds);
}

/* Sockets that the kernel treats this way. */
static void talk_with(bool *how)
{
    struct real_loop loop;
    struct kvt_net *net;
    char address[32];
    real_init(&loop, 1);
    int listener = bind_any(&ports[1], true);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", ports[1]);
    cr_assert_eq(kvt_net_kernel_create(&loop.io, 0, &net), KVB_OK);
    *how = true;
    cr_assert(talk(&loop, net, listener, address));
    kvt_net_kernel_destroy(net);
    (void)close(listener);
    real_cleanup(&loop);
}

Test(net_calls, an_interrupted_call_is_made_again)
{
    talk_with(&interrupting);
}

Test(net_calls, a_connection_may_be_there_at_once)
{
    talk_with(&connected_at_once);
}
