/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench transport: transport/tcp alone, a peer and a server whose node is a bare memory, against
 * the limit program (limit_tcp.h): what of the distance that bench tcp shows is the transport's.
 */
#include "limit_tcp.h"
#include "net_rig.h"

#include "base/xxh3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY (256u << 20) /* of the server and of the client */
#define SAMPLE (16u << 20)  /* bytes moved for one figure: short, so that neighbours meet both */
#define ROUNDS 41u

/* ---- the server: a question names a place in its memory ---- */

enum { GET = 1, PUT };

struct ask {
    uint64_t offset, len;
};

struct server {
    struct kvt_tcp_server *tcp;
    char *memory;
    uint64_t checksum_of[8], len_of[8]; /* its bytes are all alike */
};

static kvb_status_t on_opened(void *ctx, const struct kvt_lane *lane, void **session_p)
{
    (void)ctx;
    (void)lane;
    *session_p = NULL;
    return KVB_OK;
}

static void on_closed(void *ctx, void *session)
{
    (void)ctx;
    (void)session;
}

static uint64_t checksum(struct server *server, uint64_t len)
{
    uint32_t i = 0;
    while (server->len_of[i] != len) {
        if (server->len_of[i] == 0) {
            server->len_of[i] = len;
            server->checksum_of[i] = XXH3_64bits(server->memory, len);
            break;
        }
        i++;
    }
    return server->checksum_of[i];
}

static void on_request(void *ctx, struct kvt_request *request)
{
    struct server *server = ctx;
    struct ask ask;
    memcpy(&ask, request->ask.data, sizeof ask);
    struct iovec iov = {server->memory + ask.offset, ask.len};
    if (request->type == PUT) {
        kvt_receive(request, &iov, 1);
    } else {
        kvt_answer_body(request, NULL, 0, &iov, 1, checksum(server, ask.len));
    }
}

static void on_received(void *ctx, struct kvt_request *request, kvb_status_t status, uint64_t sum)
{
    (void)ctx;
    (void)sum;
    kvt_answer(request, status, NULL, 0);
}

static kvb_status_t on_sent(void *ctx, struct kvt_request *request)
{
    (void)ctx;
    (void)request;
    return KVB_OK;
}

static void on_gone(void *ctx, struct kvt_request *request)
{
    (void)ctx;
    (void)request;
}

static void *server_start(struct kvp_loop *loop, struct kvt_net *net, const void *arg)
{
    static struct server server;
    static const struct kvt_server_ops ops = {.opened = on_opened,
                                              .closed = on_closed,
                                              .request = on_request,
                                              .received = on_received,
                                              .sent = on_sent,
                                              .gone = on_gone};
    (void)arg;
    server.memory = rig_memory(MEMORY);
    const struct kvt_tcp_server_config config = {.common = {.net = net},
                                                 .sched = kvp_loop_sched(loop),
                                                 .name = "bench",
                                                 .incarnation = 1,
                                                 .ops = &ops,
                                                 .ctx = &server};
    if (kvt_tcp_server_create(&config, &server.tcp) != KVB_OK) {
        rig_fail("a server");
    }
    return &server;
}

static kvb_status_t server_adopt(void *ctx, int fd)
{
    struct server *server = ctx;
    return kvt_tcp_server_adopt(server->tcp, fd);
}

static const struct rig_server_ops server_ops = {.start = server_start, .adopt = server_adopt};

/* ---- the client ---- */

struct transfer {
    struct kvt_transfer transfer;
    struct kvt_slice slice;
    struct ask ask;
};

static struct rig_net net;
static struct kvt_transport *peer;
static struct transfer transfers[256];
static bool putting;
static uint64_t walk;
static uint32_t len, begun, done, total;

static void on_done(struct kvt_transfer *transfer, kvb_status_t status);

static void begin(struct transfer *t)
{
    if (walk + len > MEMORY) {
        walk = 0;
    }
    t->ask = (struct ask){.offset = walk, .len = len};
    t->slice = (struct kvt_slice){.region = net.region, .offset = walk, .len = len};
    t->transfer = (struct kvt_transfer){.direction = putting ? KVT_TO_SHARE : KVT_FROM_SHARE,
                                        .slices = &t->slice,
                                        .nslices = 1,
                                        .hash = true,
                                        .deadline_ns = rig_now_ns() + 30 * KVB_NS_PER_S,
                                        .done = on_done,
                                        .type = putting ? PUT : GET,
                                        .ask = {(const uint8_t *)&t->ask, sizeof t->ask}};
    walk += len;
    begun++;
    kvb_status_t status = kvt_transfer_start(peer, &t->transfer);
    if (status != KVB_OK) {
        rig_fail("transfer: %s", kvb_status_text(status));
    }
}

static void on_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    if (status != KVB_OK) {
        rig_fail("transfer: %s", kvb_status_text(status));
    }
    if (++done == total) {
        kvp_loop_stop(net.loop);
    } else if (begun < total) {
        begin(kvb_container_of(transfer, struct transfer, transfer));
    }
}

static double run(bool put, uint32_t value, uint32_t outstanding)
{
    putting = put;
    len = value;
    begun = done = 0;
    total = SAMPLE / len;
    uint64_t start_ns = rig_now_ns();
    for (uint32_t i = 0; i < outstanding && i < total; i++) {
        begin(&transfers[i]);
    }
    kvp_loop_run(net.loop);
    return rig_gib_per_s(SAMPLE, rig_now_ns() - start_ns);
}

static void on_up(void *ctx, const struct kvt_hello *hello)
{
    (void)ctx;
    (void)hello;
    kvp_loop_stop(net.loop);
}

static void on_down(void *ctx, kvb_status_t why)
{
    (void)ctx;
    rig_fail("the peer is down: %s", kvb_status_text(why));
}

int main(void)
{
    static const struct limit_tcp_config limit_config = LIMIT_TCP_CONFIG;
    struct limit_tcp *limit = limit_tcp_open(&limit_config);
    struct rig_server server;
    rig_server_start(&server, RIG_SERVER_CPU, &server_ops, NULL);
    rig_net_open(&net, MEMORY);
    static const struct kvt_peer_ops ops = {.up = on_up, .down = on_down};
    const struct kvt_tcp_peer_config config = {
        .common = {.net = net.net}, .address = server.address, .lanes = 4, .ops = &ops};
    if (kvt_tcp_peer_create(net.regions, &config, &peer) != KVB_OK) {
        rig_fail("a peer");
    }
    kvp_loop_run(net.loop);

    static const struct {
        const char *name;
        uint32_t len, outstanding;
    } sizes[] = {{"4 KiB", 4u << 10, 128},
                 {"64 KiB", 64u << 10, 16},
                 {"1 MiB", 1u << 20, 8},
                 {"4 MiB", 4u << 20, 8}};
    double of_1m[2] = {0, 0};
    printf("%-8s %4s %12s %12s %8s\n", "value", "", "limit GiB/s", "ours GiB/s", "ratio");
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int put = 0; put < 2; put++) {
            double best[ROUNDS], ours[ROUNDS], ratio[ROUNDS];
            for (uint32_t r = 0; r < ROUNDS; r++) {
                best[r] = rig_gib_per_s(SAMPLE, limit_tcp_run(limit, put, sizes[s].len,
                                                              SAMPLE / sizes[s].len,
                                                              sizes[s].outstanding, 0, NULL));
                ours[r] = run(put, sizes[s].len, sizes[s].outstanding);
                ratio[r] = ours[r] / best[r];
            }
            double of_limit = rig_quantile(ratio, ROUNDS, 0.5);
            printf("%-8s %4s %12.2f %12.2f %8.2f\n", sizes[s].name, put ? "put" : "get",
                   rig_quantile(best, ROUNDS, 0.5), rig_quantile(ours, ROUNDS, 0.5), of_limit);
            of_1m[put] = sizes[s].len == 1u << 20 ? of_limit : of_1m[put];
        }
    }
    kvt_transport_destroy(peer);
    rig_net_close(&net);
    rig_server_stop(&server);
    limit_tcp_close(limit);
    printf("bench transport: get_1m_ratio=%.2f put_1m_ratio=%.2f\n", of_1m[0], of_1m[1]);
    return 0;
}
