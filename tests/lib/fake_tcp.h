/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_TCP_H
#define TESTS_FAKE_TCP_H

/*
 * transport/tcp.h in one process and without sockets, for one test program (included once): a peer
 * finds the server whose name is its address. Each exchange goes through its stages, one a turn;
 * a test may stop exchanges at a stage, move a part of a body, cut the lane, or take the server
 * away. Include path: transport/ (private headers).
 */
#include "base/assert.h"
#include "base/faults.h"
#include "base/list.h"
#include "transport/tcp.h"
#include "transport_impl.h"

#include <xxhash.h>

#include <stdlib.h>
#include <string.h>

enum fake_stage {
    FAKE_ASKED,     /* the question is on its way */
    FAKE_SERVING,   /* the node has it, and has not answered; owns the request */
    FAKE_RECEIVING, /* its body is on its way */
    FAKE_ANSWERED,  /* the answer is on its way */
    FAKE_SENDING,   /* the answer's body is on its way; the request is not over */
    FAKE_OVER,      /* the asker has not heard yet */
    FAKE_STAGES
};

struct kvt_tcp_server {
    struct kvb_list link; /* of fake_tcp.servers */
    struct kvt_tcp_server_config config;
    struct kvb_list lanes;
};
struct kvt_tcp_lane {
    struct kvb_list link; /* of the server's lanes */
    struct kvt_tcp_server *server;
    struct fake_peer *peer;
    void *session;
};
#define FAKE_LANES 2
struct fake_peer {
    struct kvt_transport base;
    struct kvb_list link; /* of fake_tcp.peers */
    struct kvt_tcp_peer_config config;
    char address[64];
    bool up;
    struct kvt_tcp_lane *lanes[FAKE_LANES];
    uint32_t next_lane;
    uint64_t transfers; /* asked for, also those that could not be */
    struct kvb_list exchanges;
    struct kvb_event pump;
    struct kvb_timer connect;
};
struct fake_exchange {
    struct kvb_list link; /* of the peer's exchanges */
    struct fake_peer *peer;
    struct kvt_tcp_lane *lane;     /* NULL: it is gone */
    struct kvt_transfer *transfer; /* NULL: the asker has its answer */
    struct kvt_request request;
    enum fake_stage stage;
    bool held;            /* waits for fake_go(), wherever it is */
    kvb_status_t stopped; /* what the asker is told instead, soon */
    kvb_status_t status;  /* that the node answered */
    uint8_t *ask;
    uint8_t *answer;
    uint32_t answer_len;
    struct iovec *iovecs; /* where the body goes, or comes from */
    uint32_t niovecs;
    uint64_t body_len, moved;
    uint64_t checksum; /* that the node said */
    XXH3_state_t *hash;
    bool no_memory; /* to receive its body */
    struct kvb_timer deadline;
};
struct fake_tcp {
    struct kvb_list servers, peers;
    bool held[FAKE_STAGES]; /* exchanges wait there for fake_go() */
    uint64_t corrupt;       /* so many bodies arrive with a byte that is not theirs */
    uint32_t running;       /* exchanges */
    char first_asked[64];   /* address of the peer of the first transfer since this was empty */
    /* what the node answers to questions of that type instead, so many times; after some */
    const void *lie;
    uint32_t lie_len, lie_type, lies, lies_after;
};
static struct fake_tcp fake_tcp;

static inline void fake_tcp_init(void)
{
    fake_tcp = (struct fake_tcp){0};
    kvb_list_init(&fake_tcp.servers);
    kvb_list_init(&fake_tcp.peers);
}

static inline struct fake_peer *fake_peer_of(struct kvt_transport *transport)
{
    return kvb_container_of(transport, struct fake_peer, base);
}

static inline struct fake_exchange *fake_exchange_of_(struct kvt_request *request)
{
    return kvb_container_of(request, struct fake_exchange, request);
}

static inline void fake_pump_(struct fake_peer *peer)
{
    kvb_sched_post(peer->base.sched, &peer->pump);
}

/* The fake's own: one failure of a test that makes allocations fail is none of this. */
static inline void *fake_alloc_(size_t len)
{
    void *bytes = malloc(len);
    if (bytes == NULL) {
        bytes = malloc(len);
    }
    kvb_assert(bytes != NULL);
    return bytes;
}

/* ---- bytes ---- */

/* Moves len more bytes of the body between the asker's slices and the node's extents. */
static inline void fake_move_body(struct fake_exchange *exchange, uint64_t len)
{
    const struct kvt_transfer *transfer = exchange->transfer;
    bool to_node = exchange->stage == FAKE_RECEIVING;
    while (len > 0 && exchange->moved < exchange->body_len) {
        uint64_t at = exchange->moved, slice_at = at;
        uint32_t v = 0, s = 0;
        while (at >= exchange->iovecs[v].iov_len) {
            at -= exchange->iovecs[v++].iov_len;
        }
        uint8_t *node = (uint8_t *)exchange->iovecs[v].iov_base + at;
        uint64_t n = exchange->iovecs[v].iov_len - at;
        n = n < len ? n : len;
        if (transfer != NULL) {
            while (slice_at >= transfer->slices[s].len) {
                slice_at -= transfer->slices[s++].len;
            }
            const struct kvt_slice *slice = &transfer->slices[s];
            n = n < slice->len - slice_at ? n : slice->len - slice_at;
            uint64_t offset = slice->offset + slice_at;
            kvb_assert((to_node ? kvt_region_read(slice->region, offset, node, n)
                                : kvt_region_write(slice->region, offset, node, n)) == KVB_OK);
        }
        if (!to_node && fake_tcp.corrupt > 0 && transfer != NULL) {
            static const uint8_t wrong = 0x5a;
            fake_tcp.corrupt--;
            kvb_assert(kvt_region_write(transfer->slices[s].region,
                                        transfer->slices[s].offset + slice_at, &wrong,
                                        1) == KVB_OK);
            kvb_assert(XXH3_64bits_update(exchange->hash, &wrong, 1) == XXH_OK);
        }
        kvb_assert(XXH3_64bits_update(exchange->hash, node, n) == XXH_OK);
        exchange->moved += n;
        len -= n;
    }
}

static inline void fake_body_(struct fake_exchange *exchange, const struct iovec *iovecs,
                              uint32_t n)
{
    exchange->iovecs = fake_alloc_(n * sizeof *iovecs);
    memcpy(exchange->iovecs, iovecs, n * sizeof *iovecs);
    exchange->niovecs = n;
    exchange->body_len = 0;
    exchange->moved = 0;
    for (uint32_t i = 0; i < n; i++) {
        exchange->body_len += iovecs[i].iov_len;
    }
    exchange->hash = XXH3_createState();
    kvb_assert(exchange->hash != NULL && XXH3_64bits_reset(exchange->hash) == XXH_OK);
}

static inline uint64_t fake_end_body_(struct fake_exchange *exchange)
{
    uint64_t checksum = XXH3_64bits_digest(exchange->hash);
    XXH3_freeState(exchange->hash);
    exchange->hash = NULL;
    free(exchange->iovecs);
    exchange->iovecs = NULL;
    return checksum;
}

/* ---- the node's side ---- */

kvb_status_t kvt_tcp_server_create(const struct kvt_tcp_server_config *config,
                                   struct kvt_tcp_server **server_p)
{
    struct kvt_tcp_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    server->config = *config;
    kvb_list_init(&server->lanes);
    kvb_list_push_back(&fake_tcp.servers, &server->link);
    *server_p = server;
    return KVB_OK;
}

static inline void fake_exchange_destroy_(struct fake_exchange *exchange)
{
    kvb_assert(exchange->transfer == NULL);
    kvb_assert(exchange->iovecs == NULL);
    kvb_sched_timer_clear(exchange->peer->base.sched, &exchange->deadline);
    kvb_list_remove(&exchange->link);
    free(exchange->ask);
    free(exchange->answer);
    free(exchange);
    fake_tcp.running--;
}

/* The node will not hear of it any more. */
static inline void fake_gone_(struct fake_exchange *exchange)
{
    if (exchange->stage == FAKE_SERVING || exchange->stage == FAKE_RECEIVING ||
        exchange->stage == FAKE_SENDING) {
        if (exchange->iovecs != NULL) {
            (void)fake_end_body_(exchange);
        }
        exchange->lane->server->config.ops->gone(exchange->lane->server->config.ctx,
                                                 &exchange->request);
    }
    exchange->stage = FAKE_OVER;
    exchange->status = KVB_ERR_DISCONNECTED;
    exchange->lane = NULL;
}

static inline void fake_lane_close(struct kvt_tcp_lane *lane)
{
    struct fake_peer *peer = lane->peer;
    kvb_list_each(&peer->exchanges, link)
    {
        struct fake_exchange *exchange = kvb_container_of(link, struct fake_exchange, link);
        if (exchange->lane == lane) {
            fake_gone_(exchange);
        }
    }
    lane->server->config.ops->closed(lane->server->config.ctx, lane->session);
    kvb_list_remove(&lane->link);
    for (int i = 0; i < FAKE_LANES; i++) {
        if (peer->lanes[i] == lane) {
            peer->lanes[i] = NULL;
        }
    }
    free(lane);
    fake_pump_(peer);
}

void kvt_tcp_server_destroy(struct kvt_tcp_server *server)
{
    if (server == NULL) {
        return;
    }
    for (struct kvb_list *link; (link = kvb_list_first(&server->lanes)) != NULL;) {
        fake_lane_close(kvb_container_of(link, struct kvt_tcp_lane, link));
    }
    kvb_list_remove(&server->link);
    free(server);
}

kvb_status_t kvt_tcp_server_adopt(struct kvt_tcp_server *server, int fd)
{
    (void)server, (void)fd;
    return KVB_ERR_UNSUPPORTED;
}
void kvt_tcp_server_stats(const struct kvt_tcp_server *server, struct kvt_peer_stats *stats_p)
{
    (void)server;
    *stats_p = (struct kvt_peer_stats){0};
}
static inline void fake_receive_(struct kvt_request *request, const struct iovec *to, uint32_t n)
{
    struct fake_exchange *exchange = fake_exchange_of_(request);
    kvb_assert(exchange->stage == FAKE_SERVING && request->body_len > 0);
    exchange->stage = FAKE_RECEIVING;
    void *room = malloc(1); /* what may be missing: then received() says so */
    exchange->no_memory = room == NULL;
    free(room);
    fake_body_(exchange, to, n);
    kvb_assert(exchange->body_len == request->body_len);
    fake_pump_(exchange->peer);
}

static inline void fake_answer_(struct fake_exchange *exchange, kvb_status_t status,
                                const void *answer, uint32_t len)
{
    kvb_assert(exchange->stage == FAKE_SERVING);
    if (fake_tcp.lies > 0 && exchange->request.type == fake_tcp.lie_type &&
        (fake_tcp.lies_after == 0 || fake_tcp.lies_after-- == 0)) {
        fake_tcp.lies--;
        answer = fake_tcp.lie;
        len = fake_tcp.lie_len;
    }
    exchange->status = status;
    exchange->answer_len = len;
    exchange->answer = fake_alloc_(len + 1);
    if (len > 0) {
        memcpy(exchange->answer, answer, len);
    }
    fake_pump_(exchange->peer);
}

static inline void fake_request_answer_(struct kvt_request *request, kvb_status_t status,
                                        const void *answer, uint32_t len)
{
    struct fake_exchange *exchange = fake_exchange_of_(request);
    if (exchange->stage == FAKE_RECEIVING) { /* given up: what comes of it goes by */
        (void)fake_end_body_(exchange);
        exchange->stage = FAKE_SERVING;
    }
    fake_answer_(exchange, status, answer, len);
    exchange->stage = FAKE_ANSWERED;
}

static inline void fake_answer_body_(struct kvt_request *request, const void *answer, uint32_t len,
                                     const struct iovec *from, uint32_t n, uint64_t checksum)
{
    struct fake_exchange *exchange = fake_exchange_of_(request);
    fake_answer_(exchange, KVB_OK, answer, len);
    exchange->stage = FAKE_SENDING;
    exchange->checksum = checksum;
    fake_body_(exchange, from, n);
}

static const struct kvt_request_ops fake_request_ops_ = {
    .receive = fake_receive_,
    .answer = fake_request_answer_,
    .answer_body = fake_answer_body_,
};

/* ---- the asker's side ---- */

static inline void fake_finish_(struct fake_exchange *exchange, kvb_status_t status)
{
    struct kvt_transfer *transfer = exchange->transfer;
    exchange->transfer = NULL;
    kvb_sched_timer_clear(exchange->peer->base.sched, &exchange->deadline);
    kvt_transfer_finish(transfer, status);
}

static inline void fake_tell_(struct fake_exchange *exchange)
{
    struct kvt_transfer *transfer = exchange->transfer;
    transfer->answer_len = 0;
    if (exchange->answer_len > transfer->answer_cap) {
        exchange->status = KVB_ERR_PROTOCOL;
    } else if (exchange->answer_len > 0) {
        memcpy(transfer->answer, exchange->answer, exchange->answer_len);
        transfer->answer_len = exchange->answer_len;
    }
    fake_finish_(exchange, exchange->status);
}

/* The body is there: the node is told, or the asker. */
static inline void fake_body_ends_(struct fake_exchange *exchange)
{
    const struct kvt_tcp_server_config *server = &exchange->lane->server->config;
    bool abandoned = exchange->transfer == NULL || exchange->stopped != KVB_OK;
    uint64_t checksum = fake_end_body_(exchange);
    if (exchange->stage == FAKE_RECEIVING) {
        kvb_status_t status = exchange->no_memory    ? KVB_ERR_NO_MEMORY
                              : abandoned            ? KVB_ERR_CANCELED
                              : fake_tcp.corrupt > 0 ? KVB_ERR_CHECKSUM
                                                     : KVB_OK;
        fake_tcp.corrupt -= status == KVB_ERR_CHECKSUM;
        exchange->stage = FAKE_SERVING;
        server->ops->received(server->ctx, &exchange->request, status, checksum);
        return;
    }
    kvb_status_t verdict = server->ops->sent(server->ctx, &exchange->request);
    exchange->stage = FAKE_ANSWERED;
    if (verdict != KVB_OK) {
        exchange->status = verdict;
    } else if (checksum != exchange->checksum && !kvb_fault_all(KVB_FAULT_TICKET_IGNORED)) {
        exchange->status = KVB_ERR_CHECKSUM;
    }
}

/* One stage further, whatever is held. */
static inline void fake_go(struct fake_exchange *exchange)
{
    switch (exchange->stage) {
    case FAKE_ASKED:
        exchange->stage = FAKE_SERVING;
        exchange->request.session = exchange->lane->session;
        exchange->lane->server->config.ops->request(exchange->lane->server->config.ctx,
                                                    &exchange->request);
        break;
    case FAKE_RECEIVING:
    case FAKE_SENDING:
        if (exchange->transfer != NULL) {
            fake_move_body(exchange, UINT64_MAX);
        }
        fake_body_ends_(exchange);
        break;
    case FAKE_ANSWERED:
        exchange->stage = FAKE_OVER;
        break;
    case FAKE_SERVING:
    case FAKE_OVER:
    case FAKE_STAGES:
        break;
    }
    fake_pump_(exchange->peer);
}

static inline void fake_pump_one_(struct fake_exchange *exchange)
{
    if (exchange->stopped != KVB_OK && exchange->transfer != NULL) {
        fake_finish_(exchange, exchange->stopped);
    } else if (exchange->stage == FAKE_OVER) {
        if (exchange->transfer != NULL) {
            fake_tell_(exchange);
        }
        fake_exchange_destroy_(exchange);
        return;
    }
    if (!fake_tcp.held[exchange->stage] && !exchange->held && exchange->stage != FAKE_SERVING) {
        fake_go(exchange);
    }
}

static inline bool fake_connect_(struct fake_peer *peer)
{
    kvb_list_each(&fake_tcp.servers, link)
    {
        struct kvt_tcp_server *server = kvb_container_of(link, struct kvt_tcp_server, link);
        if (strcmp(server->config.name, peer->address) != 0) {
            continue;
        }
        for (int i = 0; i < FAKE_LANES; i++) {
            struct kvt_tcp_lane *lane = calloc(1, sizeof *lane);
            if (lane == NULL) {
                return i > 0;
            }
            lane->server = server;
            lane->peer = peer;
            if (server->config.ops->opened(server->config.ctx, &(struct kvt_lane){.from = "fake"},
                                           &lane->session) != KVB_OK) {
                free(lane);
                return i > 0;
            }
            kvb_list_push_back(&server->lanes, &lane->link);
            peer->lanes[i] = lane;
        }
        return true;
    }
    return false;
}

static inline bool fake_has_lane_(const struct fake_peer *peer)
{
    for (int i = 0; i < FAKE_LANES; i++) {
        if (peer->lanes[i] != NULL) {
            return true;
        }
    }
    return false;
}

static inline void fake_on_connect_(struct kvb_timer *timer)
{
    struct fake_peer *peer = kvb_container_of(timer, struct fake_peer, connect);
    if (!peer->up && fake_connect_(peer)) {
        const struct kvt_tcp_server_config *server =
            &(peer->lanes[0] != NULL ? peer->lanes[0] : peer->lanes[1])->server->config;
        struct kvt_hello hello = {.incarnation = server->incarnation, .version = 1};
        strcpy(hello.name, server->name);
        peer->up = true;
        peer->config.ops->up(peer->config.ctx, &hello);
    } else if (!peer->up) {
        kvb_sched_timer_set(peer->base.sched, &peer->connect,
                            kvb_deadline_in_ms(peer->base.sched->clock, 50));
    }
}

static inline void fake_on_pump_(struct kvb_event *event)
{
    struct fake_peer *peer = kvb_container_of(event, struct fake_peer, pump);
    kvb_list_each(&peer->exchanges, link)
    {
        fake_pump_one_(kvb_container_of(link, struct fake_exchange, link));
    }
    if (peer->up && !fake_has_lane_(peer)) {
        peer->up = false;
        peer->config.ops->down(peer->config.ctx, KVB_ERR_DISCONNECTED);
        kvb_sched_timer_set(peer->base.sched, &peer->connect,
                            kvb_deadline_in_ms(peer->base.sched->clock, 50));
    }
}

static inline void fake_on_deadline_(struct kvb_timer *timer)
{
    struct fake_exchange *exchange = kvb_container_of(timer, struct fake_exchange, deadline);
    exchange->stopped = KVB_ERR_TIMEOUT;
    fake_pump_(exchange->peer);
}

static inline kvb_status_t fake_peer_start_(struct kvt_transport *transport,
                                            struct kvt_transfer *transfer)
{
    struct fake_peer *peer = fake_peer_of(transport);
    peer->transfers++;
    if (fake_tcp.first_asked[0] == '\0') {
        strcpy(fake_tcp.first_asked, peer->address);
    }
    if (!peer->up || !fake_has_lane_(peer)) {
        return KVB_ERR_UNAVAILABLE;
    }
    struct fake_exchange *exchange = calloc(1, sizeof *exchange);
    uint8_t *ask = malloc(transfer->ask.len + 1);
    if (exchange == NULL || ask == NULL) {
        free(exchange);
        free(ask);
        return KVB_ERR_NO_MEMORY;
    }
    kvb_assert(transfer->type != 0 && transfer->type <= KVT_TYPE_MAX);
    if (transfer->ask.len > 0) {
        memcpy(ask, transfer->ask.data, transfer->ask.len);
    }
    exchange->peer = peer;
    exchange->transfer = transfer;
    exchange->ask = ask;
    exchange->request.ops = &fake_request_ops_;
    exchange->request.type = transfer->type;
    exchange->request.ask = (struct kvb_span){ask, transfer->ask.len};
    for (uint32_t i = 0; transfer->direction == KVT_TO_SHARE && i < transfer->nslices; i++) {
        exchange->request.body_len += transfer->slices[i].len;
    }
    while (peer->lanes[peer->next_lane % FAKE_LANES] == NULL) {
        peer->next_lane++;
    }
    exchange->lane = peer->lanes[peer->next_lane++ % FAKE_LANES];
    kvb_timer_init(&exchange->deadline, fake_on_deadline_);
    kvb_list_push_back(&peer->exchanges, &exchange->link);
    kvb_sched_timer_set(peer->base.sched, &exchange->deadline, transfer->deadline_ns);
    transfer->impl.state = exchange;
    fake_tcp.running++;
    fake_pump_(peer);
    return KVB_OK;
}

static inline void fake_peer_cancel_(struct kvt_transport *transport, struct kvt_transfer *transfer,
                                     uint64_t stop_deadline_ns)
{
    struct fake_exchange *exchange = transfer->impl.state;
    (void)transport, (void)stop_deadline_ns;
    if (exchange->stopped == KVB_OK) {
        exchange->stopped = KVB_ERR_CANCELED;
    }
    fake_pump_(exchange->peer);
}

/* Lanes are cut; what runs ends. */
static inline void fake_peer_cut(struct fake_peer *peer)
{
    for (int i = 0; i < FAKE_LANES; i++) {
        if (peer->lanes[i] != NULL) {
            fake_lane_close(peer->lanes[i]);
        }
    }
}

static inline void fake_peer_destroy_(struct kvt_transport *transport)
{
    struct fake_peer *peer = fake_peer_of(transport);
    fake_peer_cut(peer);
    for (struct kvb_list *link; (link = kvb_list_first(&peer->exchanges)) != NULL;) {
        struct fake_exchange *exchange = kvb_container_of(link, struct fake_exchange, link);
        if (exchange->transfer != NULL) {
            fake_finish_(exchange, KVB_ERR_CANCELED);
        }
        fake_exchange_destroy_(exchange);
    }
    kvb_sched_unpost(&peer->pump);
    kvb_sched_timer_clear(peer->base.sched, &peer->connect);
    kvb_list_remove(&peer->link);
    free(peer);
}

kvb_status_t kvt_tcp_peer_create(struct kvt_regions *regions,
                                 const struct kvt_tcp_peer_config *config,
                                 struct kvt_transport **transport_p)
{
    static const struct kvt_transport_ops ops = {
        .name = "tcp",
        .capabilities = KVT_CAP_NODE_COPIES | KVT_CAP_ASKS,
        .start = fake_peer_start_,
        .cancel = fake_peer_cancel_,
        .destroy = fake_peer_destroy_,
    };
    struct fake_peer *peer = calloc(1, sizeof *peer);
    if (peer == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kvt_transport_init(&peer->base, &ops, regions,
                       config->in_flight_max != 0 ? config->in_flight_max : 1024);
    peer->config = *config;
    strcpy(peer->address, config->address);
    kvb_list_init(&peer->exchanges);
    kvb_event_init(&peer->pump, fake_on_pump_);
    kvb_timer_init(&peer->connect, fake_on_connect_);
    kvb_list_push_back(&fake_tcp.peers, &peer->link);
    kvb_sched_timer_set(peer->base.sched, &peer->connect, kvb_now_ns(peer->base.sched->clock));
    *transport_p = &peer->base;
    return KVB_OK;
}

kvb_status_t kvt_tcp_peer_set_address(struct kvt_transport *transport, const char *address)
{
    strcpy(fake_peer_of(transport)->address, address);
    return KVB_OK;
}
void kvt_tcp_peer_stats(const struct kvt_transport *transport, struct kvt_peer_stats *stats_p)
{
    const struct fake_peer *peer = (const struct fake_peer *)(const void *)transport; /* base */
    *stats_p = (struct kvt_peer_stats){.up = peer->up, .transfers = peer->transfers};
}

/* The oldest exchange that waits at this stage, of any peer; NULL: none. */
static inline struct fake_exchange *fake_waiting(enum fake_stage stage)
{
    kvb_list_each(&fake_tcp.peers, peer_link)
    {
        struct fake_peer *peer = kvb_container_of(peer_link, struct fake_peer, link);
        kvb_list_each(&peer->exchanges, link)
        {
            struct fake_exchange *exchange = kvb_container_of(link, struct fake_exchange, link);
            if (exchange->stage == stage) {
                return exchange;
            }
        }
    }
    return NULL;
}

#endif
