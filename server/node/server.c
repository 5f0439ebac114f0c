/* SPDX-License-Identifier: Apache-2.0 */
#include "node/server.h"

#include "loop.h"
#include "metrics.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * What an I/O thread has lives and dies on it; the owner reaches it through the queue of accepted
 * descriptors and a flag, and wakes it. Its loop alone is made and freed by the owner, so that
 * it can always be woken.
 */
enum { ACCEPTS_PER_TURN = 64, ACCEPT_RETRY_MS = 100, ACCEPTED_MAX = 1024 };

struct accepted {
    struct kvb_item item;
    int fd;
    struct kvt_rdma_conn *conn; /* rather than fd; NULL: that */
};

struct worker {
    struct kvp_server *server;
    struct kvb_metrics *metrics; /* immutable; NULL: nothing is counted */
    struct kvp_loop *loop;
    struct kvb_queue accepted;
    pthread_t thread;
    bool running; /* the thread was started */
    atomic_bool stopping;
    struct kvb_mutex lock;
    struct kvs_service_stats stats; /* guarded by lock: as they were at the last beat */
    /* the thread's; service is also asked from others while it runs */
    struct kvt_net *net;
    struct kvs_service *service;
};

struct kvp_server {
    struct kvb_sched *sched;
    struct kvb_io *io;
    struct kvb_io_watch listener;
    struct kvt_rdma_listener *rdma_listener; /* NULL: none */
    struct kvb_timer retry; /* out of descriptors: nothing is accepted until then */
    uint32_t next;          /* the thread for the next connection */
    uint32_t nworkers;
    struct worker *workers;
    char name[64];
};

/* ---- an I/O thread ---- */

static void drop_accepted(void *ctx, struct kvb_item *item)
{
    (void)ctx;
    struct accepted *accepted = kvb_container_of(item, struct accepted, item);
    if (accepted->conn != NULL) {
        kvt_rdma_conn_drop(accepted->conn);
    } else {
        (void)close(accepted->fd);
    }
    free(accepted);
}

static void on_woken(void *ctx)
{
    struct worker *worker = ctx;
    struct kvb_item *item;
    if (atomic_load(&worker->stopping)) {
        kvp_loop_stop(worker->loop);
        return;
    }
    while ((item = kvb_queue_pop(&worker->accepted)) != NULL) {
        struct accepted *accepted = kvb_container_of(item, struct accepted, item);
        kvb_status_t status = accepted->conn != NULL
                                  ? kvs_service_adopt_rdma(worker->service, accepted->conn)
                                  : kvs_service_adopt(worker->service, accepted->fd);
        if (status != KVB_OK) {
            KVB_LOG_LIMITED(WARN, "a connection was not admitted", KVB_STATUS(status));
        }
        free(accepted);
    }
}

static void on_beat(void *ctx, uint64_t now_ns, uint64_t lag_ns)
{
    struct worker *worker = ctx;
    struct kvs_service_stats stats;
    (void)now_ns;
    if (worker->metrics != NULL) {
        kvp_metrics_beat(worker->metrics, "io", lag_ns);
    }
    kvs_service_stats(worker->service, &stats);
    kvb_mutex_lock(&worker->lock);
    worker->stats = stats;
    kvb_mutex_unlock(&worker->lock);
}

static const struct kvp_loop_ops loop_ops = {.woken = on_woken, .beat = on_beat};

static void *work(void *arg)
{
    struct worker *worker = arg;
    char name[16];
    (void)snprintf(name, sizeof name, "io-%u", (unsigned)(worker - worker->server->workers));
    (void)pthread_setname_np(pthread_self(), name);
    kvp_loop_run(worker->loop);
    kvs_service_destroy(worker->service);
    worker->service = NULL;
    kvt_net_kernel_destroy(worker->net);
    worker->net = NULL;
    return NULL;
}

/* ---- the listeners ---- */

static void hand_over(struct kvp_server *server, int fd, struct kvt_rdma_conn *conn)
{
    struct worker *worker = &server->workers[server->next];
    struct accepted *accepted = malloc(sizeof *accepted);
    server->next = (server->next + 1) % server->nworkers;
    if (accepted == NULL && conn != NULL) {
        kvt_rdma_conn_drop(conn);
        return;
    }
    if (accepted == NULL) {
        (void)close(fd);
        return;
    }
    accepted->fd = fd;
    accepted->conn = conn;
    if (kvb_queue_put(&worker->accepted, &accepted->item) != KVB_OK) {
        KVB_LOG_LIMITED(WARN, "a connection was not admitted: too many at one time");
        drop_accepted(NULL, &accepted->item);
    }
}

static void on_connection(struct kvb_io_watch *watch, unsigned events)
{
    (void)events;
    struct kvp_server *server = kvb_container_of(watch, struct kvp_server, listener);
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            hand_over(server, fd, NULL);
            continue;
        }
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
            KVB_LOG_LIMITED(ERROR, "accept for the share", KVB_ERRNO(errno));
            /* Who waits keeps the descriptor readable: looking again at once would spin. */
            kvb_io_unwatch(server->io, watch);
            kvb_sched_timer_set(server->sched, &server->retry,
                                kvb_deadline_in_ms(server->sched->clock, ACCEPT_RETRY_MS));
        }
        return;
    }
}

static void on_retry(struct kvb_timer *timer)
{
    struct kvp_server *server = kvb_container_of(timer, struct kvp_server, retry);
    if (kvb_io_watch(server->io, &server->listener, KVB_IO_READ) != KVB_OK) {
        kvb_sched_timer_set(server->sched, timer,
                            kvb_deadline_in_ms(server->sched->clock, ACCEPT_RETRY_MS));
    }
}

static void on_rdma_connection(void *ctx, struct kvt_rdma_conn *conn)
{
    hand_over(ctx, -1, conn);
}

static kvb_status_t listen_rdma(struct kvp_server *server, const struct kvp_server_config *config)
{
    char reason[KVT_RDMA_REASON_MAX];
    const struct kvt_rdma_listener_config listener = {.device = config->rdma,
                                                      .sched = config->sched,
                                                      .io = config->io,
                                                      .address = config->rdma_listen,
                                                      .accepted = on_rdma_connection,
                                                      .ctx = server};
    kvb_status_t status = kvt_rdma_listener_create(&listener, &server->rdma_listener, reason);
    if (status == KVB_OK) {
        return KVB_OK;
    }
    if (config->rdma_must) {
        KVB_LOG(ERROR, "the share cannot be served by rdma", KVB_STR("address", listener.address),
                KVB_STR("reason", reason), KVB_STATUS(status));
        return status;
    }
    KVB_LOG(WARN, "the share cannot be served by rdma", KVB_STR("address", listener.address),
            KVB_STR("reason", reason), KVB_STATUS(status), KVB_STR("transport", "tcp"));
    return KVB_OK;
}

uint16_t kvp_server_rdma_port(const struct kvp_server *server)
{
    return server->rdma_listener != NULL ? kvt_rdma_listener_port(server->rdma_listener) : 0;
}

/* ---- life ---- */

/* Everything but the thread, which then owns net and service. */
static kvb_status_t prepare(struct worker *worker, const struct kvp_server_config *config)
{
    worker->metrics = config->metrics;
    kvb_status_t status = kvp_loop_create(&loop_ops, worker, &worker->loop);
    if (status != KVB_OK) {
        return status;
    }
    kvb_queue_init(&worker->accepted, "accepted", ACCEPTED_MAX, kvp_loop_wake, worker->loop);
    status = kvt_net_kernel_create(kvp_loop_io(worker->loop), 0, &worker->net);
    if (status != KVB_OK) {
        return status;
    }
    struct kvs_service_config service = {.sched = kvp_loop_sched(worker->loop),
                                         .share = config->share,
                                         .common = config->common,
                                         .rdma = config->rdma,
                                         .io = kvp_loop_io(worker->loop),
                                         .name = worker->server->name,
                                         .incarnation = config->incarnation,
                                         .ticket_ms = config->ticket_ms,
                                         .hold_ms = config->hold_ms,
                                         .lanes_max = config->lanes_max,
                                         .lanes_each_max = config->lanes_each_max};
    service.common.net = worker->net;
    return kvs_service_create(&service, &worker->service);
}

static kvb_status_t start(struct worker *worker, const struct kvp_server_config *config)
{
    kvb_status_t status = prepare(worker, config);
    if (status == KVB_OK && pthread_create(&worker->thread, NULL, work, worker) != 0) {
        status = KVB_ERR_LIMIT;
    }
    worker->running = status == KVB_OK;
    if (status != KVB_OK) {
        KVB_LOG(ERROR, "an I/O thread cannot be started; too few descriptors? (ulimit -n)",
                KVB_STATUS(status));
    }
    return status;
}

static void stop(struct worker *worker)
{
    if (worker->loop == NULL) {
        kvb_mutex_cleanup(&worker->lock);
        return;
    }
    if (worker->running) {
        atomic_store(&worker->stopping, true);
        kvp_loop_wake(worker->loop);
        (void)pthread_join(worker->thread, NULL);
    } else {
        kvs_service_destroy(worker->service);
        kvt_net_kernel_destroy(worker->net);
    }
    kvb_queue_close(&worker->accepted, drop_accepted, NULL);
    kvb_queue_cleanup(&worker->accepted);
    kvp_loop_destroy(worker->loop);
    kvb_mutex_cleanup(&worker->lock);
}

kvb_status_t kvp_server_create(const struct kvp_server_config *config, struct kvp_server **server_p)
{
    struct kvp_server *server = calloc(1, sizeof *server);
    struct worker *workers = calloc(config->threads, sizeof *workers);
    if (server == NULL || workers == NULL) {
        free(server);
        free(workers);
        return KVB_ERR_NO_MEMORY;
    }
    server->sched = config->sched;
    server->io = config->io;
    server->workers = workers;
    server->listener = (struct kvb_io_watch){.fd = -1, .fn = on_connection};
    kvb_timer_init(&server->retry, on_retry);
    (void)snprintf(server->name, sizeof server->name, "%s", config->name);
    kvb_status_t status = KVB_OK;
    while (status == KVB_OK && server->nworkers < config->threads) {
        struct worker *worker = &workers[server->nworkers++];
        worker->server = server;
        kvb_mutex_init(&worker->lock, "server worker");
        status = start(worker, config);
    }
    if (status == KVB_OK && config->rdma != NULL) {
        status = listen_rdma(server, config);
    }
    if (status == KVB_OK) {
        server->listener.fd = config->listener;
        status = kvb_io_watch(server->io, &server->listener, KVB_IO_READ);
    }
    if (status != KVB_OK) {
        server->listener.fd = -1;
        kvp_server_destroy(server);
        return status;
    }
    *server_p = server;
    return KVB_OK;
}

void kvp_server_drain(struct kvp_server *server)
{
    for (uint32_t i = 0; i < server->nworkers; i++) {
        kvs_service_drain(server->workers[i].service);
    }
}

uint32_t kvp_server_running(const struct kvp_server *server)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < server->nworkers; i++) {
        n += kvs_service_running(server->workers[i].service);
    }
    return n;
}

static void add_stats(struct kvt_peer_stats *sum, const struct kvt_peer_stats *stats)
{
    sum->lanes += stats->lanes;
#define X(name, what) sum->name += stats->name;
    KVT_PEER_COUNTERS(X)
#undef X
}

void kvp_server_stats(struct kvp_server *server, struct kvs_service_stats *stats_p)
{
    struct kvs_service_stats sum = {.tcp = {.up = true}, .rdma = {.up = true}};
    for (uint32_t i = 0; i < server->nworkers; i++) {
        struct worker *worker = &server->workers[i];
        kvb_mutex_lock(&worker->lock);
        add_stats(&sum.tcp, &worker->stats.tcp);
        add_stats(&sum.rdma, &worker->stats.rdma);
        kvb_mutex_unlock(&worker->lock);
    }
    *stats_p = sum;
}

uint64_t kvp_server_beat_ns(const struct kvp_server *server)
{
    uint64_t oldest_ns = KVB_NEVER;
    for (uint32_t i = 0; i < server->nworkers; i++) {
        uint64_t beat_ns = kvp_server_thread_beat_ns(server, i);
        oldest_ns = beat_ns < oldest_ns ? beat_ns : oldest_ns;
    }
    return oldest_ns;
}

uint32_t kvp_server_threads(const struct kvp_server *server)
{
    return server->nworkers;
}

uint64_t kvp_server_thread_beat_ns(const struct kvp_server *server, uint32_t i)
{
    return kvp_loop_beat_ns(server->workers[i].loop);
}

void kvp_server_destroy(struct kvp_server *server)
{
    if (server == NULL) {
        return;
    }
    kvb_sched_timer_clear(server->sched, &server->retry);
    kvt_rdma_listener_destroy(server->rdma_listener);
    kvb_io_unwatch(server->io, &server->listener);
    if (server->listener.fd >= 0) {
        (void)close(server->listener.fd);
    }
    for (uint32_t i = 0; i < server->nworkers; i++) {
        stop(&server->workers[i]);
    }
    free(server->workers);
    free(server);
}
