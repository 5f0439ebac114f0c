/* SPDX-License-Identifier: Apache-2.0 */
#include "limit_proxy.h"

#include "rig.h"

#include <curl/curl.h>
#include <microhttpd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#define CALLS   256 /* at a time */
#define SOCKETS 4096
#define EVENTS  128
#define TURN_MS 1000
#define SERVER  UINT32_MAX /* libmicrohttpd's own set, among the sockets of libcurl */

struct call {
    struct MHD_Connection *connection;
    CURL *easy;
    char *body;
    size_t len;
    long status; /* 0: not yet */
};

static struct {
    uint16_t port;
    const char *url;
} limit;

static _Thread_local struct {
    struct MHD_Daemon *server;
    CURLM *multi;
    int epoll;
    long timer_ms; /* libcurl's; -1: none */
    uint32_t watched[SOCKETS];
    CURL *spare[CALLS];
    int nspare;
} proxy = {.timer_ms = -1};

/* ---- libcurl ---- */

static size_t take(char *data, size_t size, size_t n, void *ctx)
{
    struct call *call = ctx;
    size_t len = size * n;
    char *body = realloc(call->body, call->len + len);
    if (body == NULL) {
        return 0;
    }
    memcpy(body + call->len, data, len);
    call->body = body;
    call->len += len;
    return len;
}

/* A socket stays in the set while its connection is idle: it is soon used again. */
static int set_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *assigned)
{
    struct epoll_event event = {.data.u32 = (uint32_t)fd};
    (void)easy;
    (void)ctx;
    (void)assigned;
    if (what == CURL_POLL_REMOVE || fd >= SOCKETS) {
        return fd >= SOCKETS ? -1 : 0;
    }
    event.events = ((what & CURL_POLL_IN) != 0 ? (uint32_t)EPOLLIN : 0) |
                   ((what & CURL_POLL_OUT) != 0 ? (uint32_t)EPOLLOUT : 0);
    if (proxy.watched[fd] != event.events) {
        int op = proxy.watched[fd] == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
        proxy.watched[fd] = event.events;
        return epoll_ctl(proxy.epoll, op, fd, &event);
    }
    return 0;
}

static int close_socket(void *ctx, curl_socket_t fd)
{
    (void)ctx;
    if (fd < SOCKETS) {
        proxy.watched[fd] = 0;
    }
    return close(fd);
}

static int set_timer(CURLM *multi, long timeout_ms, void *ctx)
{
    (void)multi;
    (void)ctx;
    proxy.timer_ms = timeout_ms;
    return 0;
}

static CURL *take_easy(void)
{
    if (proxy.nspare > 0) {
        return proxy.spare[--proxy.nspare];
    }
    CURL *easy = curl_easy_init();
    if (easy == NULL || curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) != CURLE_OK ||
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take) != CURLE_OK ||
        curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, close_socket) != CURLE_OK) {
        rig_fail("libcurl: no transfer");
    }
    return easy;
}

static void ask(struct call *call, const char *path)
{
    char url[256];
    (void)snprintf(url, sizeof url, "%s%s", limit.url, path);
    call->easy = take_easy();
    if (curl_easy_setopt(call->easy, CURLOPT_URL, url) != CURLE_OK ||
        curl_easy_setopt(call->easy, CURLOPT_WRITEDATA, call) != CURLE_OK ||
        curl_easy_setopt(call->easy, CURLOPT_PRIVATE, call) != CURLE_OK ||
        curl_multi_add_handle(proxy.multi, call->easy) != CURLM_OK) {
        rig_fail("libcurl: a transfer does not begin");
    }
}

static void take_ended(void)
{
    CURLMsg *message;
    int left;
    while ((message = curl_multi_info_read(proxy.multi, &left)) != NULL) {
        struct call *call = NULL;
        (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &call);
        if (message->data.result != CURLE_OK ||
            curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &call->status) != CURLE_OK) {
            rig_fail("libcurl: %s", curl_easy_strerror(message->data.result));
        }
        (void)curl_multi_remove_handle(proxy.multi, call->easy);
        if (proxy.nspare < CALLS) {
            proxy.spare[proxy.nspare++] = call->easy;
        } else {
            curl_easy_cleanup(call->easy);
        }
        MHD_resume_connection(call->connection);
    }
}

/* ---- libmicrohttpd ---- */

static enum MHD_Result handle(void *ctx, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *data,
                              size_t *len, void **call_p)
{
    struct call *call = *call_p;
    (void)ctx;
    (void)method;
    (void)version;
    (void)data;
    (void)len;
    if (call == NULL) {
        *call_p = call = calloc(1, sizeof *call);
        return call != NULL ? MHD_YES : MHD_NO;
    }
    if (call->status == 0) {
        call->connection = connection;
        MHD_suspend_connection(connection);
        ask(call, path);
        return MHD_YES;
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(call->len, call->body, MHD_RESPMEM_PERSISTENT);
    enum MHD_Result result = MHD_queue_response(connection, (unsigned)call->status, response);
    MHD_destroy_response(response);
    return result;
}

static void completed(void *ctx, struct MHD_Connection *connection, void **call_p,
                      enum MHD_RequestTerminationCode code)
{
    struct call *call = *call_p;
    (void)ctx;
    (void)connection;
    (void)code;
    if (call != NULL) {
        free(call->body);
        free(call);
    }
}

/* ---- both ---- */

static void start(void)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = SERVER};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons(limit.port)};
    proxy.epoll = epoll_create1(EPOLL_CLOEXEC);
    proxy.multi = curl_multi_init();
    proxy.server =
        MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, limit.port, NULL, NULL, handle,
                         NULL, MHD_OPTION_SOCK_ADDR, &address, MHD_OPTION_LISTENING_ADDRESS_REUSE,
                         1u, MHD_OPTION_NOTIFY_COMPLETED, completed, NULL, MHD_OPTION_END);
    if (proxy.epoll < 0 || proxy.multi == NULL || proxy.server == NULL ||
        curl_multi_setopt(proxy.multi, CURLMOPT_SOCKETFUNCTION, set_socket) != CURLM_OK ||
        curl_multi_setopt(proxy.multi, CURLMOPT_TIMERFUNCTION, set_timer) != CURLM_OK ||
        curl_multi_setopt(proxy.multi, CURLMOPT_MAXCONNECTS, (long)CALLS) != CURLM_OK ||
        epoll_ctl(proxy.epoll, EPOLL_CTL_ADD,
                  MHD_get_daemon_info(proxy.server, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd,
                  &event) != 0) {
        rig_fail("the limit program does not start: %m");
    }
}

static void socket_ready(const struct epoll_event *event)
{
    int running;
    int mask = ((event->events & (EPOLLIN | EPOLLHUP)) != 0 ? CURL_CSELECT_IN : 0) |
               ((event->events & EPOLLOUT) != 0 ? CURL_CSELECT_OUT : 0) |
               ((event->events & EPOLLERR) != 0 ? CURL_CSELECT_ERR : 0);
    (void)curl_multi_socket_action(proxy.multi, (int)event->data.u32, mask, &running);
}

static void run_timer(void)
{
    int running;
    proxy.timer_ms = -1; /* it is set anew inside, if it is to be */
    (void)curl_multi_socket_action(proxy.multi, CURL_SOCKET_TIMEOUT, 0, &running);
}

/* Milliseconds until one of the libraries wants to go on. */
static int until_due(void)
{
    MHD_UNSIGNED_LONG_LONG due_ms;
    long timeout_ms = proxy.timer_ms < 0 || proxy.timer_ms > TURN_MS ? TURN_MS : proxy.timer_ms;
    if (MHD_get_timeout(proxy.server, &due_ms) == MHD_YES &&
        due_ms < (MHD_UNSIGNED_LONG_LONG)timeout_ms) {
        timeout_ms = (long)due_ms;
    }
    return (int)timeout_ms;
}

static void turn(void)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(proxy.epoll, events, EVENTS, until_due());
    for (int i = 0; i < n; i++) {
        if (events[i].data.u32 != SERVER) {
            socket_ready(&events[i]);
        }
    }
    take_ended();
    (void)MHD_run(proxy.server);
    while (proxy.timer_ms == 0) { /* what was asked, begins */
        run_timer();
    }
    take_ended();
    if (n == 0 && proxy.timer_ms > 0) {
        run_timer();
    }
}

static void *run(void *arg)
{
    (void)arg;
    start();
    for (;;) {
        turn();
    }
    return NULL;
}

pid_t limit_proxy(uint16_t port, const char *url)
{
    pthread_t threads[LIMIT_PROXY_THREADS];
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    limit.port = port;
    limit.url = url;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        rig_fail("libcurl does not start");
    }
    for (int i = 0; i < LIMIT_PROXY_THREADS; i++) {
        if (pthread_create(&threads[i], NULL, run, NULL) != 0) {
            rig_fail("no thread");
        }
    }
    for (;;) {
        pause();
    }
}
