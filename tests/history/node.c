/* SPDX-License-Identifier: Apache-2.0 */
/* A store node: one share, a service for each of its I/O threads, on one port. */
#include "history.h"
#include "loop.h"
#include "test_memory.h"

#include "base/log.h"
#include "store/service.h"
#include "store/share.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SHARE_BYTES (6ull << 20) /* far from enough */
#define POLL_MS     2
/* A reader that is slower than its ticket reads bytes that are written meanwhile, and is told so:
 * as it should be, and a race all the same. */
#ifdef __SANITIZE_THREAD__
#define TICKET_MS 60000
#else
#define TICKET_MS 200
#endif
#define FINISH_MS 120000

struct node;

struct io {
    struct node *node;
    struct kvp_loop *loop;
    struct kvt_net *net;
    struct kvs_service *service;
    struct kvb_io_watch listener;
    struct kvb_timer poll;
    pthread_t thread;
};

struct node {
    struct shared *shared;
    uint32_t number;
    uint32_t generation;
    char name[32];
    uint64_t incarnation;
    struct kvs_share *share;
    struct kvs_keeper keeper;
    struct io ios[IO_THREADS];
    atomic_uint ended; /* I/O threads without a request left */
    uint64_t finish_ns;
    bool cleared;
};

static void must(struct node *node, bool condition, const char *what)
{
    if (!condition) {
        history_fail(node->shared, node->name, "%s", what);
    }
}

static void on_accept(struct kvb_io_watch *watch, unsigned events)
{
    (void)events;
    struct io *io = kvb_container_of(watch, struct io, listener);
    int fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    must(io->node, fd < 0 || kvs_service_adopt(io->service, fd) == KVB_OK, "adopt");
}

static void listen_on_port(struct io *io)
{
    struct node *node = io->node;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(node->shared->nodes[node->number].port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    must(node,
         fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
             setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0 &&
             bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 128) == 0,
         "cannot listen");
    io->listener = (struct kvb_io_watch){.fd = fd, .fn = on_accept};
    must(node, kvb_io_watch(kvp_loop_io(io->loop), &io->listener, KVB_IO_READ) == KVB_OK, "watch");
}

static void obey(struct node *node)
{
    struct shared *shared = node->shared;
    uint32_t at = atomic_load(&shared->nodes[node->number].obeyed);
    uint32_t n = atomic_load(&shared->norders);
    for (; at < n; at++) {
        const struct order *order = &shared->orders[at];
        if (order->type == ORDER_RETIRE) {
            struct kvb_lineage lineage;
            history_lineage_id(shared, order->tenant, order->serial, &lineage);
            kvs_share_retire(node->share, &lineage, 1);
        } else {
            kvs_share_remove_tenant(node->share, history_tenants[order->tenant]);
        }
    }
    atomic_store(&shared->nodes[node->number].obeyed, n);
}

/* Everything it was given has to come back. True: it has. */
static bool finish(struct node *node)
{
    struct kvs_share_stats stats;
    if (!node->cleared) {
        node->cleared = true;
        node->finish_ns = clock_ns() + FINISH_MS * 1000000ull;
        kvs_share_clear(node->share);
    }
    kvs_share_stats(node->share, &stats);
    const char *broken = kvs_share_validate(node->share);
    must(node, broken == NULL, broken == NULL ? "" : broken);
    if (stats.core.used_bytes == 0 && atomic_load(&node->ended) == IO_THREADS) {
        return true;
    }
    if (clock_ns() > node->finish_ns) {
        history_fail(node->shared, node->name, "%lu bytes did not come back, %u threads ended",
                     stats.core.used_bytes, atomic_load(&node->ended));
    }
    return false;
}

static void on_poll(struct kvb_timer *timer)
{
    struct io *io = kvb_container_of(timer, struct io, poll);
    struct node *node = io->node;
    bool first = io == &node->ios[0];
    struct kvb_sched *sched = kvp_loop_sched(io->loop);
    if (first) {
        obey(node);
    }
    if (atomic_load(&node->shared->finish) != 0) {
        if (io->service != NULL && kvs_service_running(io->service) == 0) {
            kvb_io_unwatch(kvp_loop_io(io->loop), &io->listener);
            (void)close(io->listener.fd);
            kvs_service_destroy(io->service);
            io->service = NULL;
            (void)atomic_fetch_add(&node->ended, 1);
        }
        if (io->service == NULL && (!first || finish(node))) {
            kvp_loop_stop(io->loop);
            return;
        }
    }
    kvb_sched_timer_set(sched, timer, kvb_deadline_in_ms(sched->clock, POLL_MS));
}

static void on_woken(void *ctx)
{
    struct io *io = ctx;
    if (io == &io->node->ios[0]) {
        kvs_keeper_woken(&io->node->keeper);
    }
}

static const struct kvp_loop_ops loop_ops = {.woken = on_woken};

static void open_io(struct io *io, struct node *node)
{
    io->node = node;
    must(node, kvp_loop_create(&loop_ops, io, &io->loop) == KVB_OK, "loop");
    must(node, kvt_net_kernel_create(kvp_loop_io(io->loop), SOCKET_BYTES, &io->net) == KVB_OK,
         "net");
    struct kvs_service_config config = {
        .sched = kvp_loop_sched(io->loop),
        .share = node->share,
        .common = {.net = io->net, .secret = SECRET, .secret_len = sizeof SECRET - 1},
        .name = node->name,
        .incarnation = node->incarnation,
        .ticket_ms = TICKET_MS,
        .hold_ms = 300,
        .lanes_max = 256,
        .lanes_each_max = 256,
    };
    must(node, kvs_service_create(&config, &io->service) == KVB_OK, "service");
    kvb_timer_init(&io->poll, on_poll);
    kvb_sched_timer_set(kvp_loop_sched(io->loop), &io->poll, 0);
    listen_on_port(io);
}

static void close_io(struct io *io)
{
    kvt_net_kernel_destroy(io->net);
    kvp_loop_destroy(io->loop);
}

static void *run_io(void *arg)
{
    struct io *io = arg;
    kvp_loop_run(io->loop);
    return NULL;
}

void history_node(struct shared *shared, uint32_t number, uint32_t generation)
{
    struct node *node = calloc(1, sizeof *node);
    if (node == NULL) {
        exit(1);
    }
    history_settle_fds();
    size_t fds = test_count_fds();
    node->shared = shared;
    node->number = number;
    node->generation = generation;
    (void)snprintf(node->name, sizeof node->name, "node-%u", number);
    node->incarnation = clock_ns();
    const struct kvs_share_config share = {.bytes = SHARE_BYTES, .shards = 2};
    must(node, kvs_share_create(&kvb_random_real, &share, &node->share) == KVB_OK, "share");
    for (uint32_t i = 0; i < IO_THREADS; i++) {
        struct io *io = &node->ios[i];
        if (i == 0) {
            io->node = node;
        }
        open_io(io, node);
    }
    kvs_keeper_start(&node->keeper, node->share, kvp_loop_sched(node->ios[0].loop), kvp_loop_wake,
                     node->ios[0].loop);
    atomic_store(&shared->nodes[number].obeyed, 0);
    obey(node); /* all that was told before, before anybody is served */
    atomic_store(&shared->nodes[number].ready, generation);
    for (uint32_t i = 1; i < IO_THREADS; i++) {
        must(node, pthread_create(&node->ios[i].thread, NULL, run_io, &node->ios[i]) == 0,
             "thread");
    }
    kvp_loop_run(node->ios[0].loop);
    for (uint32_t i = 1; i < IO_THREADS; i++) {
        (void)pthread_join(node->ios[i].thread, NULL);
    }
    kvs_keeper_stop(&node->keeper);
    for (uint32_t i = 0; i < IO_THREADS; i++) {
        close_io(&node->ios[i]);
    }
    kvs_share_destroy(node->share);
    must(node, test_count_fds() == fds, "descriptors are left");
    free(node);
    atomic_store(&shared->nodes[number].clean, 1);
    exit(0);
}
