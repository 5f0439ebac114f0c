/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side that is asked. A lane reads questions in order; it stops reading while the node has not
 * said what is to become of a question's body, and while too many questions, or too many bytes of
 * them and their answers, are with the node or wait to be sent. A client that does not read its
 * answers so stops only itself.
 *
 * A request is over for the node at one of: answer(), sent(), gone(). What is left of it here
 * (the text of its answer) stays until it was sent.
 */
#include "defaults.h"
#include "door.h"
#include "handshake.h"
#include "lane.h"
#include "standing.h"

#include "base/assert.h"
#include "base/le.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of a lane: questions and answers that are kept, beyond which it does not read. */
#define HELD_MAX (4u << 20)
/* What a request holds without asking for memory. */
#define ASK_INLINE    256u
#define ANSWER_INLINE 128u
#define IOV_INLINE    8u

enum request_state {
    REQUEST_ASKED,     /* with the node; its body, if any, was not asked for yet */
    REQUEST_RECEIVING, /* its body is on the way in, to the node's memory */
    REQUEST_RECEIVED,  /* with the node; its body is over */
    REQUEST_SENDING,   /* answered with a body, out of the node's memory */
    REQUEST_OVER       /* the node is through with it */
};

struct request {
    struct kvt_request is;
    struct kvt_tcp_lane *lane;
    struct kvb_list all; /* lane.all or lane.spare */
    struct kvb_list out; /* lane.answers */
    enum request_state state;
    uint64_t seq;
    uint32_t held; /* bytes of question and answer */
    kvb_status_t received;

    struct iovec *iov; /* where the body goes, or comes from */
    uint32_t iov_n;
    void *answer;
    struct tcp_head head; /* of the answer */
    uint64_t checksum;
    uint8_t *ask;

    struct iovec iov_inline[IOV_INLINE];
    uint8_t ask_inline[ASK_INLINE];
    uint8_t answer_inline[ANSWER_INLINE];
};

enum lane_phase {
    LANE_GREETED, /* waits for: HELLO */
    LANE_TESTED,  /* waits for: PROOF */
    LANE_ADMITTED
};

struct kvt_tcp_lane {
    struct lane lane; /* first: its alignment */
    struct kvt_tcp_server *server;
    struct kvt_guest guest;
    enum lane_phase phase;
    struct kvb_list all;     /* requests, until their answer was sent */
    struct kvb_list answers; /* of them, those to be sent */
    struct kvb_list spare;   /* to be used again */
    struct request *asking;  /* its body is next in the stream */
    struct request *sending; /* its answer is on the way out */
    uint32_t requests, spares;
    uint64_t held;
};

struct kvt_tcp_server {
    struct kvt_tcp_server_config config;
    struct lane_totals totals;
    struct kvt_door door;
};

static struct kvt_tcp_lane *lane_of(struct lane *lane)
{
    return kvb_container_of(lane, struct kvt_tcp_lane, lane);
}

static struct request *request_of(struct kvt_request *request)
{
    return kvb_container_of(request, struct request, is);
}

/* ---- requests ---- */

static const struct kvt_request_ops request_ops;

static struct request *request_new(struct kvt_tcp_lane *lane, const struct tcp_head *head,
                                   const uint8_t *text)
{
    struct kvb_list *link = kvb_list_pop(&lane->spare);
    struct request *request;
    if (link != NULL) {
        request = kvb_container_of(link, struct request, all);
        lane->spares--;
    } else {
        request = malloc(sizeof *request);
    }
    if (request == NULL) {
        return NULL;
    }
    uint8_t *ask = head->text_len <= ASK_INLINE ? request->ask_inline : malloc(head->text_len);
    if (ask == NULL) {
        free(request);
        return NULL;
    }
    if (head->text_len > 0) {
        memcpy(ask, text, head->text_len);
    }
    request->is = (struct kvt_request){
        .ops = &request_ops,
        .type = head->frame.type,
        .ask = {.data = ask, .len = head->text_len},
        .body_len = head->body_len,
        .session = lane->guest.session,
    };
    kvb_list_init(&request->is.link);
    request->lane = lane;
    request->state = REQUEST_ASKED;
    request->seq = head->frame.seq;
    request->held = head->text_len;
    request->received = KVB_OK;
    request->iov = request->iov_inline;
    request->iov_n = 0;
    request->answer = request->answer_inline;
    request->ask = ask;
    kvb_list_push_back(&lane->all, &request->all);
    kvb_list_init(&request->out);
    lane->requests++;
    lane->held += request->held;
    return request;
}

static void drop_iov(struct request *request)
{
    if (request->iov != request->iov_inline) {
        free(request->iov);
        request->iov = request->iov_inline;
    }
}

static void request_free(struct request *request)
{
    struct kvt_tcp_lane *lane = request->lane;
    drop_iov(request);
    if (request->ask != request->ask_inline) {
        free(request->ask);
    }
    if (request->answer != request->answer_inline) {
        free(request->answer);
    }
    lane->requests--;
    lane->held -= request->held;
    kvb_list_remove(&request->all);
    kvb_list_remove(&request->out);
    if (lane->spares < lane->server->config.requests_max) {
        lane->spares++;
        kvb_list_push_front(&lane->spare, &request->all);
    } else {
        free(request);
    }
}

static bool too_much(const struct kvt_tcp_lane *lane)
{
    return lane->requests >= lane->server->config.requests_max || lane->held >= HELD_MAX;
}

/* A body that was begun is read to its end whatever else waits: its request could not go else. */
static void update_hold(struct kvt_tcp_lane *lane)
{
    bool hold = lane->asking != NULL ? lane->asking->state == REQUEST_ASKED : too_much(lane);
    if (hold) {
        lane_hold(&lane->lane);
    } else {
        lane_release(&lane->lane);
    }
}

static bool copy_iov(struct request *request, const struct iovec *iov, uint32_t n)
{
    kvb_assert(request->iov == request->iov_inline);
    if (n > IOV_INLINE) {
        struct iovec *copy = malloc(n * sizeof *copy);
        if (copy == NULL) {
            return false;
        }
        request->iov = copy;
    }
    memcpy(request->iov, iov, n * sizeof *iov);
    request->iov_n = n;
    return true;
}

static uint64_t iov_len(const struct iovec *iov, uint32_t n)
{
    uint64_t len = 0;
    for (uint32_t i = 0; i < n; i++) {
        len += iov[i].iov_len;
    }
    return len;
}

static void request_receive(struct kvt_request *is, const struct iovec *to, uint32_t n)
{
    struct request *request = request_of(is);
    struct kvt_tcp_lane *lane = request->lane;
    kvb_assert(request->state == REQUEST_ASKED && lane->asking == request);
    kvb_assert(iov_len(to, n) == is->body_len);
    request->state = REQUEST_RECEIVING;
    if (copy_iov(request, to, n)) {
        lane->lane.in.body = kvt_body_iov(request->iov, is->body_len);
    } else { /* it goes by, and then the node hears why */
        request->received = KVB_ERR_NO_MEMORY;
    }
    update_hold(lane);
}

/* The text of an answer, and the answer itself on its way. */
static void answer(struct request *request, kvb_status_t status, const void *text, uint32_t len,
                   uint64_t body_len)
{
    struct kvt_tcp_lane *lane = request->lane;
    kvb_assert(len <= lane->lane.common->ask_max);
    if (len > ANSWER_INLINE) {
        request->answer = malloc(len);
        if (request->answer == NULL) {
            request->answer = request->answer_inline;
            status = KVB_ERR_NO_MEMORY;
            len = 0;
            body_len = 0;
        }
    }
    if (len > 0) {
        memcpy(request->answer, text, len);
    }
    request->head = (struct tcp_head){
        .frame = {.type = request->is.type, .flags = KVB_FRAME_REPLY, .seq = request->seq},
        .status = status,
        .text_len = len,
        .body_len = (uint32_t)body_len,
    };
    request->held += len;
    lane->held += len;
    kvb_list_push_back(&lane->answers, &request->out);
    lane_kick(&lane->lane);
}

static void request_answer(struct kvt_request *is, kvb_status_t status, const void *text,
                           uint32_t len)
{
    struct request *request = request_of(is);
    struct kvt_tcp_lane *lane = request->lane;
    kvb_assert(status <= KVB_OK);
    kvb_assert(request->state < REQUEST_SENDING);
    kvb_assert(status != KVB_OK || is->body_len == 0 || request->state == REQUEST_RECEIVED);
    if (lane->asking == request) { /* what is left of its body goes by */
        if (request->state == REQUEST_RECEIVING) {
            lane_give_up_in(&lane->lane);
        }
        lane->asking = NULL;
    }
    request->state = REQUEST_OVER;
    drop_iov(request);
    answer(request, status, text, len, 0);
    update_hold(lane);
}

static void request_answer_body(struct kvt_request *is, const void *text, uint32_t len,
                                const struct iovec *from, uint32_t n, uint64_t checksum)
{
    struct request *request = request_of(is);
    uint64_t body_len = iov_len(from, n);
    kvb_assert(body_len > 0 && body_len <= KVT_BODY_MAX);
    kvb_assert(request->state == REQUEST_RECEIVED ||
               (request->state == REQUEST_ASKED && is->body_len == 0));
    drop_iov(request);
    request->state = REQUEST_SENDING;
    request->checksum = checksum;
    if (copy_iov(request, from, n)) {
        answer(request, KVB_OK, text, len, body_len);
    } else {
        answer(request, KVB_ERR_NO_MEMORY, NULL, 0, 0);
    }
}

static const struct kvt_request_ops request_ops = {
    .receive = request_receive,
    .answer = request_answer,
    .answer_body = request_answer_body,
};

/* ---- what a lane asks and tells: receiving ---- */

static kvb_status_t lane_frame(struct lane *base, const struct tcp_head *head, const uint8_t *text)
{
    struct kvt_tcp_lane *lane = lane_of(base);
    struct kvt_tcp_server *server = lane->server;
    if ((head->frame.flags & KVB_FRAME_REPLY) != 0) {
        return KVB_ERR_PROTOCOL;
    }
    struct request *request = request_new(lane, head, text);
    if (request == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    server->door.counted.transfers++;
    lane->asking = head->body_len > 0 ? request : NULL;
    server->config.ops->request(server->config.ctx, &request->is);
    update_hold(lane);
    return KVB_OK;
}

static kvb_status_t lane_body(struct lane *base, kvb_status_t status, uint64_t checksum)
{
    struct kvt_tcp_lane *lane = lane_of(base);
    struct kvt_tcp_server *server = lane->server;
    struct request *request = lane->asking;
    if (request == NULL) { /* nobody wanted it */
        return KVB_OK;
    }
    if (status == KVB_ERR_CHECKSUM) {
        server->door.counted.checksums++;
    } else if (status != KVB_OK) {
        server->door.counted.abandoned++;
    }
    lane->asking = NULL;
    request->state = REQUEST_RECEIVED;
    status = request->received != KVB_OK ? request->received : status;
    server->config.ops->received(server->config.ctx, &request->is, status, checksum);
    update_hold(lane);
    return KVB_OK;
}

/* ---- sending ---- */

static bool lane_next(struct lane *base, struct lane_out *out)
{
    struct kvt_tcp_lane *lane = lane_of(base);
    struct kvt_tcp_server *server = lane->server;
    struct kvb_list *link = kvb_list_pop(&lane->answers);
    if (link == NULL) {
        return false;
    }
    struct request *request = kvb_container_of(link, struct request, out);
    lane->sending = request;
    if (request->state == REQUEST_SENDING && request->head.body_len == 0) { /* no memory for it */
        request->state = REQUEST_OVER;
        server->config.ops->gone(server->config.ctx, &request->is);
    }
    *out = (struct lane_out){
        .head = request->head,
        .text = request->answer,
        .body = kvt_body_iov(request->iov, request->head.body_len),
    };
    return true;
}

static kvb_status_t lane_verdict(struct lane *base, kvb_status_t status, uint64_t *checksum_p)
{
    struct kvt_tcp_lane *lane = lane_of(base);
    struct kvt_tcp_server *server = lane->server;
    struct request *request = lane->sending;
    kvb_assert(status == KVB_OK); /* our own memory can be read */
    request->state = REQUEST_OVER;
    status = server->config.ops->sent(server->config.ctx, &request->is);
    if (status != KVB_OK) {
        server->door.counted.abandoned++;
    }
    *checksum_p = request->checksum;
    return status;
}

static void lane_sent(struct lane *base)
{
    struct kvt_tcp_lane *lane = lane_of(base);
    request_free(lane->sending);
    lane->sending = NULL;
    update_hold(lane);
}

/* ---- the handshake ---- */

static kvb_status_t refuse(struct kvt_tcp_lane *lane, kvb_status_t why)
{
    uint8_t payload[4];
    kvb_le_put32(payload, (uint32_t)why);
    kvt_door_refused(&lane->server->door, &lane->guest, why);
    lane_message(&lane->lane, TCP_REFUSED, payload, sizeof payload);
    return why;
}

static kvb_status_t on_hello(struct kvt_tcp_lane *lane, const uint8_t *payload, size_t len)
{
    struct kvt_handshake *shake = &lane->guest.shake;
    const struct kvt_tcp_server_config *config = &lane->server->config;
    kvb_status_t status = kvt_hello_take(&kvt_tcp_protocol, &config->common, config->sched->random,
                                         shake, payload, len);
    if (status != KVB_OK) {
        return status == KVB_ERR_UNSUPPORTED ? refuse(lane, status) : status;
    }
    lane->phase = LANE_TESTED;
    lane_message(&lane->lane, TCP_CHALLENGE, shake->challenge, shake->challenge_len);
    return KVB_OK;
}

static kvb_status_t on_proof(struct kvt_tcp_lane *lane, const uint8_t *proof)
{
    struct kvt_tcp_server *server = lane->server;
    const struct kvt_tcp_server_config *config = &server->config;
    uint8_t identity[KVT_PAYLOAD_MAX];
    size_t identity_len;
    kvb_status_t status =
        kvt_proof_check(&kvt_tcp_protocol, &config->common, &lane->guest.shake, proof);
    if (status == KVB_OK &&
        !kvt_door_has_room(&server->door, lane->guest.from)) { /* others were faster */
        return KVB_ERR_LIMIT;
    }
    if (status == KVB_OK) {
        status = kvt_door_admit(&server->door, &lane->guest, &config->common, config->ops,
                                config->ctx, identity, &identity_len);
    }
    if (status != KVB_OK) {
        return refuse(lane, status);
    }
    lane->phase = LANE_ADMITTED;
    lane_message(&lane->lane, TCP_ADMITTED, identity, identity_len);
    lane_admit(&lane->lane, lane->guest.shake.their_silence_ms);
    return KVB_OK;
}

static kvb_status_t lane_message_in(struct lane *base, enum tcp_message type,
                                    const uint8_t *payload, size_t len)
{
    struct kvt_tcp_lane *lane = lane_of(base);
    if (type == TCP_HELLO && lane->phase == LANE_GREETED) {
        return on_hello(lane, payload, len);
    }
    if (type == TCP_PROOF && lane->phase == LANE_TESTED) {
        return on_proof(lane, payload);
    }
    return KVB_ERR_PROTOCOL;
}

/* ---- the end of a lane ---- */

static void lane_end(struct kvt_tcp_lane *lane)
{
    struct kvt_tcp_server *server = lane->server;
    const struct kvt_tcp_server_config *config = &server->config;
    bool admitted = lane->phase == LANE_ADMITTED;

    lane_close(&lane->lane);
    kvt_door_leave(&server->door, &lane->guest, admitted);
    for (struct kvb_list *link; (link = kvb_list_first(&lane->all)) != NULL;) {
        struct request *request = kvb_container_of(link, struct request, all);
        if (request->state != REQUEST_OVER) {
            request->state = REQUEST_OVER;
            config->ops->gone(config->ctx, &request->is);
        }
        request_free(request);
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&lane->spare)) != NULL;) {
        free(kvb_container_of(link, struct request, all));
    }
    if (admitted) {
        config->ops->closed(config->ctx, lane->guest.session);
    }
    free(lane);
}

static void lane_lost(struct lane *base, kvb_status_t why)
{
    struct kvt_tcp_lane *lane = lane_of(base);
    struct kvt_tcp_server *server = lane->server;
    bool admitted = lane->phase == LANE_ADMITTED;
    kvt_door_lost(&server->door, &lane->guest, admitted, why);
    lane_end(lane);
}

static const struct lane_ops lane_ops = {
    .message = lane_message_in,
    .frame = lane_frame,
    .body = lane_body,
    .next = lane_next,
    .verdict = lane_verdict,
    .sent = lane_sent,
    .lost = lane_lost,
};

/* ---- the server ---- */

static void set_limits(struct kvt_tcp_server *server)
{
    server->door.lanes_max = server->config.lanes_max;
    server->door.lanes_each_max = server->config.lanes_each_max;
    server->door.strangers_max = server->config.strangers_max;
}

kvb_status_t kvt_tcp_server_create(const struct kvt_tcp_server_config *given,
                                   struct kvt_tcp_server **server_p)
{
    struct kvt_tcp_server_config config = *given;
    kvt_default_u32(&config.lanes_max, 1024);
    kvt_default_u32(&config.lanes_each_max, 64);
    kvt_default_u32(&config.strangers_max, 64);
    kvt_default_u32(&config.requests_max, 256);
    if (!kvt_common_defaults(&config.common) || !kvt_name_valid(config.name, strlen(config.name))) {
        return KVB_ERR_INVALID;
    }
    struct kvt_tcp_server *server = malloc(sizeof *server);
    if (server == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *server = (struct kvt_tcp_server){.config = config};
    kvt_door_init(&server->door, "tcp", &kvt_tcp_protocol, config.name, config.incarnation);
    set_limits(server);
    *server_p = server;
    return KVB_OK;
}

static void end_all(struct kvb_list *lanes)
{
    for (struct kvb_list *link; (link = kvb_list_first(lanes)) != NULL;) {
        lane_end(kvb_container_of(link, struct kvt_tcp_lane, guest.link));
    }
}

void kvt_tcp_server_destroy(struct kvt_tcp_server *server)
{
    if (server == NULL) {
        return;
    }
    end_all(&server->door.strangers);
    end_all(&server->door.lanes);
    free(server);
}

static kvb_status_t adopt(struct kvt_tcp_server *server, struct kvt_socket *socket)
{
    const struct kvt_tcp_server_config *config = &server->config;
    char from[KVT_NET_FROM_MAX];
    config->common.net->ops->from(socket, from);
    if (!kvt_door_has_room(&server->door, from)) {
        return KVB_ERR_LIMIT;
    }
    struct kvt_tcp_lane *lane = aligned_alloc(LANE_ALIGN, sizeof *lane);
    if (lane == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *lane = (struct kvt_tcp_lane){.server = server};
    memcpy(lane->guest.from, from, sizeof from);
    kvb_list_init(&lane->all);
    kvb_list_init(&lane->answers);
    kvb_list_init(&lane->spare);
    kvb_status_t status =
        lane_open(&lane->lane, &lane_ops, &config->common, config->sched, &server->totals, socket);
    if (status != KVB_OK) {
        free(lane);
        return status;
    }
    struct kvt_guest *oldest = kvt_door_oldest(&server->door);
    if (oldest != NULL) {
        lane_lost(&kvb_container_of(oldest, struct kvt_tcp_lane, guest)->lane, KVB_ERR_LIMIT);
    }
    kvt_door_enter(&server->door, &lane->guest);
    return KVB_OK;
}

kvb_status_t kvt_tcp_server_adopt(struct kvt_tcp_server *server, int fd)
{
    struct kvt_net *net = server->config.common.net;
    struct kvt_socket *socket;
    kvb_status_t status = net->ops->adopt(net, fd, &socket);
    if (status != KVB_OK) {
        (void)close(fd);
        return status;
    }
    status = adopt(server, socket);
    if (status != KVB_OK) {
        net->ops->close(socket);
    }
    return status;
}

void kvt_tcp_server_stats(const struct kvt_tcp_server *server, struct kvt_peer_stats *stats_p)
{
    kvt_stats_of(&server->door.counted, server->door.admitted, server->totals.heard_ns,
                 server->totals.bytes_sent, server->totals.bytes_received, stats_p);
}
