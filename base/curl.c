/* SPDX-License-Identifier: Apache-2.0 */
#include "base/curl.h"

#include "base/assert.h"

#include <curl/curl.h>

#include <stdlib.h>

#define SOCKETS_EACH 4 /* of a connection: the resolver has some, too */
#define REWATCH_MS   10

struct socket {
    bool used;
    bool unwatched; /* the loop had no memory for it: tried again */
    unsigned events;
    struct kvb_io_watch watch;
    struct kvb_curl *curl;
};

struct kvb_curl {
    struct kvb_sched *sched;
    struct kvb_io *io;
    CURLM *multi;
    struct kvb_timer timer; /* libcurl's */
    struct kvb_timer rewatch;
    bool closing;
    uint32_t nsockets;
    struct socket sockets[];
};

/* What libcurl has finished. */
static void drain(struct kvb_curl *curl)
{
    int left;
    for (CURLMsg *msg;
         !curl->closing && (msg = curl_multi_info_read(curl->multi, &left)) != NULL;) {
        struct kvb_transfer *transfer = NULL;
        if (msg->msg == CURLMSG_DONE) {
            (void)curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &transfer);
            transfer->over(transfer, (int)msg->data.result);
        }
    }
}

static void on_socket_ready(struct kvb_io_watch *watch, unsigned events)
{
    struct kvb_curl *curl = kvb_container_of(watch, struct socket, watch)->curl;
    int mask = ((events & KVB_IO_READ) != 0 ? CURL_CSELECT_IN : 0) |
               ((events & KVB_IO_WRITE) != 0 ? CURL_CSELECT_OUT : 0);
    int running;
    (void)curl_multi_socket_action(curl->multi, watch->fd, mask, &running);
    drain(curl);
}

static void on_curl_timer(struct kvb_timer *timer)
{
    struct kvb_curl *curl = kvb_container_of(timer, struct kvb_curl, timer);
    int running;
    (void)curl_multi_socket_action(curl->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    drain(curl);
}

static int set_curl_timer(CURLM *multi, long timeout_ms, void *ctx)
{
    (void)multi;
    struct kvb_curl *curl = ctx;
    uint64_t deadline_ns =
        timeout_ms < 0 ? KVB_NEVER : kvb_deadline_in_ms(curl->sched->clock, (uint64_t)timeout_ms);
    kvb_sched_timer_set(curl->sched, &curl->timer, deadline_ns);
    return 0;
}

static void drop_socket(struct socket *sock)
{
    kvb_io_unwatch(sock->curl->io, &sock->watch);
    sock->used = sock->unwatched = false;
}

static void watch_socket(struct socket *sock)
{
    struct kvb_curl *curl = sock->curl;
    sock->unwatched = kvb_io_watch(curl->io, &sock->watch, sock->events) != KVB_OK;
    if (sock->unwatched && !kvb_timer_armed(&curl->rewatch)) {
        kvb_sched_timer_set(curl->sched, &curl->rewatch,
                            kvb_deadline_in_ms(curl->sched->clock, REWATCH_MS));
    }
}

static void on_rewatch(struct kvb_timer *timer)
{
    struct kvb_curl *curl = kvb_container_of(timer, struct kvb_curl, rewatch);
    for (uint32_t i = 0; i < curl->nsockets; i++) {
        if (curl->sockets[i].used && curl->sockets[i].unwatched) {
            watch_socket(&curl->sockets[i]);
        }
    }
}

static struct socket *new_socket(struct kvb_curl *curl, int fd)
{
    struct socket *sock = curl->sockets;
    while (sock < curl->sockets + curl->nsockets && sock->used) {
        sock++;
    }
    kvb_assert(sock < curl->sockets + curl->nsockets); /* connections and resolvers are limited */
    *sock = (struct socket){.used = true, .curl = curl};
    sock->watch = (struct kvb_io_watch){.fd = fd, .fn = on_socket_ready};
    return sock;
}

/* It never says no to libcurl, which (7.88) may follow a null pointer then: a socket that cannot be
 * watched is tried again a little later. */
static int set_curl_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *assigned)
{
    (void)easy;
    struct kvb_curl *curl = ctx;
    struct socket *sock = assigned;
    if (what == CURL_POLL_REMOVE) {
        if (sock != NULL) {
            drop_socket(sock);
        }
        return 0;
    }
    if (sock == NULL) {
        sock = new_socket(curl, fd);
        (void)curl_multi_assign(curl->multi, fd, sock);
    }
    sock->events = ((what & CURL_POLL_IN) != 0 ? KVB_IO_READ : 0u) |
                   ((what & CURL_POLL_OUT) != 0 ? KVB_IO_WRITE : 0u);
    watch_socket(sock);
    return 0;
}

bool kvb_curl_start(struct kvb_curl *curl, struct kvb_transfer *transfer)
{
    (void)curl_easy_setopt(transfer->easy, CURLOPT_PRIVATE, transfer);
    return curl_multi_add_handle(curl->multi, transfer->easy) == CURLM_OK;
}

void kvb_curl_stop(struct kvb_curl *curl, struct kvb_transfer *transfer)
{
    if (transfer->easy != NULL) {
        (void)curl_multi_remove_handle(curl->multi, transfer->easy);
        curl_easy_cleanup(transfer->easy);
        transfer->easy = NULL;
    }
}

kvb_status_t kvb_curl_create(struct kvb_sched *sched, struct kvb_io *io, uint32_t connections_max,
                             struct kvb_curl **curl_p)
{
    uint32_t nsockets = SOCKETS_EACH * connections_max;
    struct kvb_curl *curl = calloc(1, sizeof *curl + nsockets * sizeof curl->sockets[0]);
    if (curl == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    curl->sched = sched;
    curl->io = io;
    curl->nsockets = nsockets;
    kvb_timer_init(&curl->timer, on_curl_timer);
    kvb_timer_init(&curl->rewatch, on_rewatch);
    curl->multi = curl_multi_init();
    if (curl->multi == NULL) {
        free(curl);
        return KVB_ERR_NO_MEMORY;
    }
    (void)curl_multi_setopt(curl->multi, CURLMOPT_SOCKETFUNCTION, set_curl_socket);
    (void)curl_multi_setopt(curl->multi, CURLMOPT_SOCKETDATA, curl);
    (void)curl_multi_setopt(curl->multi, CURLMOPT_TIMERFUNCTION, set_curl_timer);
    (void)curl_multi_setopt(curl->multi, CURLMOPT_TIMERDATA, curl);
    (void)curl_multi_setopt(curl->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
    (void)curl_multi_setopt(curl->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)connections_max);
    *curl_p = curl;
    return KVB_OK;
}

void kvb_curl_destroy(struct kvb_curl *curl)
{
    curl->closing = true;
    (void)curl_multi_cleanup(curl->multi);
    for (uint32_t i = 0; i < curl->nsockets; i++) {
        if (curl->sockets[i].used) {
            drop_socket(&curl->sockets[i]);
        }
    }
    kvb_sched_timer_clear(curl->sched, &curl->rewatch);
    kvb_sched_timer_clear(curl->sched, &curl->timer);
    free(curl);
}
