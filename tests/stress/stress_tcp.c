/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two nodes and two clients, each on a thread of its own, over sockets of the kernel: the lanes of
 * different threads share nothing but what net_kernel.c and the log share. Clients come by name (a
 * thread looks it up), move values both ways, give some up, and go while others are looked up.
 */
#include "loop.h"
#include "tcp_rig.h"
#include "test_memory.h"
#include "test_values.h"

#include "base/log.h"
#include "transport/tcp.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define NODES      2
#define CLIENTS    2
#define LIVES      6   /* of each client */
#define TRANSFERS  120 /* of each life, to each node */
#define SLOTS      8
#define SLOT_BYTES (96u << 10)
#define NODE_BYTES ((uint64_t)CLIENTS * SLOTS * SLOT_BYTES)

/* ---- nodes ---- */

struct node {
    struct rig_node rig;
    struct kvp_loop *loop;
    struct kvt_net *net;
    struct test_memory memory;
    struct kvb_io_watch listener;
    uint16_t port;
    atomic_bool stop; /* relaxed: the wake that follows carries it */
    pthread_t thread;
};

static void on_woken(void *ctx)
{
    struct node *node = ctx;
    if (atomic_load_explicit(&node->stop, memory_order_relaxed)) {
        kvp_loop_stop(node->loop);
    }
}

static const struct kvp_loop_ops node_loop_ops = {.woken = on_woken};

static void on_accept(struct kvb_io_watch *watch, unsigned events)
{
    (void)events;
    struct node *node = kvb_container_of(watch, struct node, listener);
    int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        kvb_assert(kvt_tcp_server_adopt(node->rig.server, fd) == KVB_OK);
    }
}

static const struct kvt_peer_common common_of_all = {
    .secret = "s", .secret_len = 1, .hello_ms = 120000, .silence_ms = 120000, .stall_ms = 120000};

static void *node_main(void *arg)
{
    struct node *node = arg;
    kvp_loop_run(node->loop);
    kvb_io_unwatch(kvp_loop_io(node->loop), &node->listener);
    rig_node_cleanup(&node->rig);
    return NULL;
}

static void node_start(struct node *node)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    kvb_assert(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 64) == 0);
    kvb_assert(getsockname(fd, (struct sockaddr *)&at, &len) == 0);
    node->port = ntohs(at.sin_port);
    node->listener = (struct kvb_io_watch){.fd = fd, .fn = on_accept};
    test_memory_init(&node->memory, "node", NODE_BYTES);
    kvb_assert(kvp_loop_create(&node_loop_ops, node, &node->loop) == KVB_OK);
    kvb_assert(kvt_net_kernel_create(kvp_loop_io(node->loop), 256u << 10, &node->net) == KVB_OK);
    struct kvt_tcp_server_config config = {.common = common_of_all,
                                           .sched = kvp_loop_sched(node->loop),
                                           .name = "node",
                                           .incarnation = 1};
    config.common.net = node->net;
    kvb_assert(rig_node_init(&node->rig, node->memory.base, NODE_BYTES, config) == KVB_OK);
    kvb_assert(kvb_io_watch(kvp_loop_io(node->loop), &node->listener, KVB_IO_READ) == KVB_OK);
    kvb_assert(pthread_create(&node->thread, NULL, node_main, node) == 0);
}

static void node_stop(struct node *node)
{
    atomic_store_explicit(&node->stop, true, memory_order_relaxed);
    kvp_loop_wake(node->loop);
    kvb_assert(pthread_join(node->thread, NULL) == 0);
    (void)close(node->listener.fd);
    kvt_net_kernel_destroy(node->net);
    kvp_loop_destroy(node->loop);
    test_memory_cleanup(&node->memory);
}

/* ---- clients ---- */

struct client;
struct slot { /* one transfer after the other: put, get, put, get … */
    struct client *client;
    struct kvt_transport *peer;
    struct kvt_transfer transfer;
    struct kvt_slice slice;
    struct kvt_extent extent;
    uint8_t answer[16];
    uint64_t round;
    bool cancelled;
};

struct client {
    uint64_t number;
    const struct node *nodes;
    struct kvp_loop *loop;
    struct kvt_net *net;
    struct kvt_regions *regions;
    struct kvt_region *region;
    struct test_memory memory;
    struct kvt_transport *peers[NODES];
    struct slot slots[NODES][SLOTS];
    uint32_t running;
    uint32_t left; /* transfers to be begun */
    bool unregistered;
    pthread_t thread;
};

static const struct kvp_loop_ops client_loop_ops;

static uint8_t *place_of(const struct slot *slot)
{
    return slot->client->memory.base + slot->slice.offset;
}

static void slot_next(struct slot *slot)
{
    struct client *client = slot->client;
    bool put = slot->round % 2 == 0;
    if (client->left == 0) {
        if (client->running == 0) {
            kvp_loop_stop(client->loop);
        }
        return;
    }
    client->left--;
    client->running++;
    if (put) {
        test_value_fill(place_of(slot), slot->slice.len, "s", &slot->round, sizeof slot->round, 1);
    } else {
        memset(place_of(slot), 0, slot->slice.len);
    }
    slot->transfer.direction = put ? KVT_TO_SHARE : KVT_FROM_SHARE;
    slot->transfer.type = put ? RIG_PUT : RIG_GET;
    kvb_assert(kvt_transfer_start(slot->peer, &slot->transfer) == KVB_OK);
    slot->cancelled = slot->round % 12 == 10;
    if (slot->cancelled) {
        kvt_transfer_cancel(&slot->transfer, KVB_NEVER - 1);
    }
}

static void on_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct slot *slot = kvb_container_of(transfer, struct slot, transfer);
    slot->client->running--;
    kvb_assert(status == (slot->cancelled ? KVB_ERR_CANCELED : KVB_OK));
    uint64_t put = slot->round - 1;
    if (slot->round % 2 == 1) {
        kvb_assert(test_value_check(place_of(slot), slot->slice.len, "s", &put, sizeof put, 1) ==
                   slot->slice.len);
    }
    slot->round += slot->cancelled ? 2 : 1;
    slot_next(slot);
}

static void slot_init(struct client *client, uint32_t node, uint32_t n)
{
    struct slot *slot = &client->slots[node][n];
    uint64_t len = n % 2 == 0 ? SLOT_BYTES : 4096 + n;
    *slot = (struct slot){
        .client = client,
        .peer = client->peers[node],
        .slice = {client->region, ((uint64_t)node * SLOTS + n) * SLOT_BYTES, len},
        .extent = {(client->number * SLOTS + n) * SLOT_BYTES, len},
    };
    slot->transfer = (struct kvt_transfer){
        .slices = &slot->slice,
        .nslices = 1,
        .ask = {(const uint8_t *)&slot->extent, sizeof slot->extent},
        .answer = slot->answer,
        .answer_cap = sizeof slot->answer,
        .deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, 600000),
        .done = on_done,
    };
}

static void on_up(void *ctx, const struct kvt_hello *hello)
{
    (void)ctx;
    (void)hello;
}

static void on_down(void *ctx, kvb_status_t why)
{
    (void)ctx;
    (void)why;
    kvb_assert(false);
}

static const struct kvt_peer_ops peer_ops = {.up = on_up, .down = on_down};

static void on_unregistered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    (void)region;
    struct client *client = arg;
    kvb_assert(status == KVB_OK);
    kvp_loop_stop(client->loop);
}

/* By name, so that looking it up is part of it, unless this host knows none. */
static const char *own_host(void)
{
    struct addrinfo *found;
    if (getaddrinfo("localhost", NULL, NULL, &found) != 0) {
        return "127.0.0.1";
    }
    freeaddrinfo(found);
    return "localhost";
}

static void open_peers(struct client *client)
{
    for (uint32_t i = 0; i < NODES; i++) {
        char address[64];
        (void)snprintf(address, sizeof address, "%s:%u", own_host(), client->nodes[i].port);
        struct kvt_tcp_peer_config config = {
            .common = common_of_all, .address = address, .ops = &peer_ops, .ctx = client};
        config.common.net = client->net;
        kvb_assert(kvt_tcp_peer_create(client->regions, &config, &client->peers[i]) == KVB_OK);
    }
}

static void close_peers(struct client *client)
{
    for (uint32_t i = 0; i < NODES; i++) {
        kvt_transport_destroy(client->peers[i]);
    }
}

static void one_life(struct client *client)
{
    kvb_assert(kvp_loop_create(&client_loop_ops, client, &client->loop) == KVB_OK);
    kvb_assert(kvt_net_kernel_create(kvp_loop_io(client->loop), 256u << 10, &client->net) ==
               KVB_OK);
    kvb_assert(kvt_regions_create(kvp_loop_sched(client->loop), &client->regions) == KVB_OK);
    test_memory_init(&client->memory, "client", (uint64_t)NODES * SLOTS * SLOT_BYTES);
    struct kvt_region_desc desc = {.owner = 1, .number = 1, .len = client->memory.len};
    const char *reason;
    kvb_assert(kvt_region_create(client->regions, &desc, test_memory_dup(&client->memory),
                                 &client->region, &reason) == KVB_OK);
    kvb_assert(kvt_region_register(client->region) == KVB_OK);

    open_peers(client); /* gone again before their names are known */
    close_peers(client);
    open_peers(client);
    client->left = NODES * TRANSFERS;
    for (uint32_t node = 0; node < NODES; node++) {
        for (uint32_t n = 0; n < SLOTS; n++) {
            slot_init(client, node, n);
            slot_next(&client->slots[node][n]);
        }
    }
    kvp_loop_run(client->loop);

    uint64_t bound_ns = kvb_deadline_in_ms(&kvb_clock_real, 120000);
    kvt_region_unregister(client->region, bound_ns, bound_ns + 1, on_unregistered, client);
    kvp_loop_run(client->loop);
    kvt_region_destroy(client->region);
    close_peers(client);
    kvt_regions_destroy(client->regions);
    kvt_net_kernel_destroy(client->net);
    kvp_loop_destroy(client->loop);
    test_memory_cleanup(&client->memory);
}

static void *client_main(void *arg)
{
    for (int life = 0; life < LIVES; life++) {
        one_life(arg);
    }
    return NULL;
}

int main(void)
{
    static struct node nodes[NODES];
    static struct client clients[CLIENTS];
    kvb_log_threshold = KVB_LOG_WARN;
    for (int i = 0; i < NODES; i++) {
        node_start(&nodes[i]);
    }
    for (uint64_t i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){.number = i, .nodes = nodes};
        kvb_assert(pthread_create(&clients[i].thread, NULL, client_main, &clients[i]) == 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        kvb_assert(pthread_join(clients[i].thread, NULL) == 0);
    }
    for (int i = 0; i < NODES; i++) {
        node_stop(&nodes[i]);
    }
    printf("stress_tcp: ok transfers=%d\n", CLIENTS * LIVES * NODES * TRANSFERS);
    return 0;
}
