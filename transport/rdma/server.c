/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side that is asked. What a request's client may touch was granted to it (GRANT, or an answer
 * with a body), from then until it says that it is through (DONE), or its queue pair is destroyed:
 * one of the two comes before the node hears received(), sent() or gone().
 *
 * A client has no more questions open than was agreed, so that its DONEs are always read. A request
 * is over for the node at one of: answer(), sent(), gone().
 */
#include "body.h"
#include "conn.h"
#include "defaults.h"
#include "door.h"
#include "lane.h"
#include "standing.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/xxh3.h"

#include <stdlib.h>
#include <string.h>

/* Questions that a lane may have open, in bytes; a client keeps to less. */
#define TEXT_MAX (8u << 20)
/* Hashed of one body, and of all of a lane, in one turn. */
#define HASH_SLICE (256u << 10)
#define PIECES     16

enum request_state {
    REQUEST_ASKED,     /* with the node; its body, if any, was not asked for yet */
    REQUEST_GRANTED,   /* its client writes to the node's memory. waits for: DONE */
    REQUEST_HASHING,   /* as GRANTED, and is hashed now that DONE was heard */
    REQUEST_UNGRANTED, /* there was no memory to grant it. waits for: received() to be told */
    REQUEST_RECEIVED,  /* with the node; its body is over */
    REQUEST_SENDING,   /* its client reads the node's memory. waits for: DONE */
    REQUEST_UNSENT     /* there was no memory to answer with a body. waits for: gone() to be told */
};

/* A body that comes without a checksum: it is made of what has arrived, before anybody reads it. */
struct unhashed {
    XXH3_state_t hash; /* first: its alignment */
    struct kvt_body body;
    struct iovec iov[];
};

struct request {
    struct kvt_request is;
    struct server_lane *lane;
    struct kvb_list link;    /* lane.all */
    struct kvb_list failed;  /* lane.failed: to be told in the lane's turn */
    struct kvb_list hashing; /* lane.hashing */
    enum request_state state;
    bool sender_hashes;
    struct unhashed *unhashed; /* GRANTED, HASHING: of a body that its sender does not hash */
    uint64_t seq;
    uint8_t ask[];
};

enum lane_phase {
    LANE_GREETED, /* waits for: HELLO */
    LANE_TESTED,  /* waits for: PROOF */
    LANE_ADMITTED,
    LANE_REFUSED /* waits for: its client to hear of it and go, until the handshake's time is over
                  */
};

struct server_lane {
    struct rlane lane;
    struct kvt_rdma_server *server;
    struct kvt_guest guest;
    enum lane_phase phase;
    struct kvb_list all; /* requests that are not over */
    struct kvb_list failed;
    struct kvb_list hashing;
    uint32_t requests;
    uint64_t text;
};

struct kvt_rdma_server {
    struct kvt_rdma_server_config config;
    struct rend end;
    struct rlane_totals totals;
    struct kvt_door door;
    uint8_t *room; /* for the extents of one grant */
    uint32_t room_n;
};

static struct server_lane *lane_of(struct rlane *lane)
{
    return kvb_container_of(lane, struct server_lane, lane);
}

static struct request *request_of(struct kvt_request *request)
{
    return kvb_container_of(request, struct request, is);
}

/* ---- requests ---- */

static const struct kvt_request_ops request_ops;

static struct request *request_new(struct server_lane *lane, const struct kvb_frame *frame,
                                   const struct rwire_question *question)
{
    struct request *request = malloc(sizeof *request + question->text_len);
    if (request == NULL) {
        return NULL;
    }
    if (question->text_len > 0) {
        memcpy(request->ask, question->text, question->text_len);
    }
    request->is = (struct kvt_request){
        .ops = &request_ops,
        .type = frame->type,
        .ask = {.data = request->ask, .len = question->text_len},
        .body_len = question->body_len,
        .session = lane->guest.session,
    };
    kvb_list_init(&request->is.link);
    kvb_list_init(&request->failed);
    kvb_list_init(&request->hashing);
    request->lane = lane;
    request->state = REQUEST_ASKED;
    request->sender_hashes = !question->unhashed;
    request->unhashed = NULL;
    request->seq = frame->seq;
    kvb_list_push_back(&lane->all, &request->link);
    lane->requests++;
    lane->text += question->text_len;
    return request;
}

static void request_free(struct request *request)
{
    struct server_lane *lane = request->lane;
    lane->requests--;
    lane->text -= request->is.ask.len;
    kvb_list_remove(&request->link);
    kvb_list_remove(&request->failed);
    kvb_list_remove(&request->hashing);
    free(request->unhashed);
    free(request);
}

static bool granted(const struct request *request)
{
    return request->state == REQUEST_GRANTED || request->state == REQUEST_SENDING;
}

/* Something is to be told to the node about it, which cannot be done inside its own call. */
static void fail_later(struct request *request, enum request_state state)
{
    request->state = state;
    kvb_list_push_back(&request->lane->failed, &request->failed);
    rlane_kick(&request->lane->lane);
}

/* Packs where iovecs are, for others, into the server's room; those that touch become one. 0: too
 * many, or no memory. */
static uint32_t pack_extents(struct kvt_rdma_server *server, const struct iovec *iov, uint32_t n)
{
    if (n > RWIRE_EXTENTS_MAX) {
        return 0;
    }
    if (n > server->room_n) {
        uint8_t *grown = realloc(server->room, (size_t)n * RWIRE_EXTENT_LEN);
        if (grown == NULL) {
            return 0;
        }
        server->room = grown;
        server->room_n = n;
    }
    struct rwire_extent last = {0};
    uint32_t packed = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct kvt_rdma_share *share =
            rdev_share_of(server->config.device, iov[i].iov_base, iov[i].iov_len);
        kvb_assert(share != NULL); /* the node grants what it registered */
        struct rwire_extent extent = {.address = (uintptr_t)iov[i].iov_base,
                                      .len = (uint32_t)iov[i].iov_len,
                                      .key = rshare_key(share)};
        if (extent.len == 0) {
            continue;
        }
        if (packed > 0 && last.key == extent.key && last.address + last.len == extent.address) {
            last.len += extent.len;
            packed--;
        } else {
            last = extent;
        }
        rwire_extent_pack(&last, server->room + (size_t)packed++ * RWIRE_EXTENT_LEN);
    }
    return packed;
}

static uint64_t iov_len(const struct iovec *iov, uint32_t n)
{
    uint64_t len = 0;
    for (uint32_t i = 0; i < n; i++) {
        len += iov[i].iov_len;
    }
    return len;
}

/* NO_MEMORY. */
static kvb_status_t prepare_hashing(struct request *request, const struct iovec *to, uint32_t n)
{
    size_t align = _Alignof(struct unhashed);
    size_t size = sizeof(struct unhashed) + n * sizeof *to;
    struct unhashed *unhashed = aligned_alloc(align, (size + align - 1) / align * align);
    if (unhashed == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    memcpy(unhashed->iov, to, n * sizeof *to);
    unhashed->body = kvt_body_iov(unhashed->iov, request->is.body_len);
    (void)XXH3_64bits_reset(&unhashed->hash);
    request->unhashed = unhashed;
    return KVB_OK;
}

static void request_receive(struct kvt_request *is, const struct iovec *to, uint32_t n)
{
    struct request *request = request_of(is);
    struct kvt_rdma_server *server = request->lane->server;
    kvb_assert(request->state == REQUEST_ASKED && is->body_len > 0);
    kvb_assert(iov_len(to, n) == is->body_len);
    uint32_t extents = pack_extents(server, to, n);
    if (extents == 0 || (!request->sender_hashes && prepare_hashing(request, to, n) != KVB_OK)) {
        fail_later(request, REQUEST_UNGRANTED);
        return;
    }
    uint8_t head[RWIRE_GRANT_LEN];
    struct iovec parts[] = {{head, sizeof head},
                            {server->room, (size_t)extents * RWIRE_EXTENT_LEN}};
    rwire_grant_head_pack(extents, head);
    request->state = REQUEST_GRANTED;
    rlane_send(&request->lane->lane, RWIRE_GRANT, 0, request->seq, parts, 2);
}

static void send_answer(struct request *request, kvb_status_t status, const void *text,
                        uint32_t len, uint32_t extents, uint64_t checksum)
{
    struct server_lane *lane = request->lane;
    uint8_t head[RWIRE_ANSWER_LEN];
    union { /* an iovec to be read has no const */
        const void *in;
        void *out;
    } cast = {.in = text};
    struct iovec parts[] = {{head, sizeof head},
                            {lane->server->room, (size_t)extents * RWIRE_EXTENT_LEN},
                            {cast.out, len}};
    kvb_assert(len <= lane->lane.common->ask_max);
    rwire_answer_head_pack(status, extents, checksum, head);
    rlane_send(&lane->lane, request->is.type, KVB_FRAME_REPLY, request->seq, parts, 3);
}

static void request_answer(struct kvt_request *is, kvb_status_t status, const void *text,
                           uint32_t len)
{
    struct request *request = request_of(is);
    struct server_lane *lane = request->lane;
    kvb_assert(status <= KVB_OK);
    kvb_assert(request->state != REQUEST_SENDING && request->state != REQUEST_UNSENT);
    kvb_assert(status != KVB_OK || is->body_len == 0 || request->state == REQUEST_RECEIVED);
    if (granted(request)) {
        /* Its client may write there still, whatever became of it: no longer than this takes. */
        rdev_count(lane->server->config.device, KVT_RDMA_TAKEN_BACK);
        KVB_LOG_LIMITED(WARN, "rdma: granted memory is taken back from a client with its lane",
                        KVB_STR("from", lane->guest.from), KVB_STATUS(status));
        rlane_destroy_queue(&lane->lane, KVB_ERR_TIMEOUT);
    } else {
        send_answer(request, status, text, len, 0, 0);
    }
    request_free(request);
}

static void request_answer_body(struct kvt_request *is, const void *text, uint32_t len,
                                const struct iovec *from, uint32_t n, uint64_t checksum)
{
    struct request *request = request_of(is);
    uint64_t body_len = iov_len(from, n);
    kvb_assert(body_len > 0 && body_len <= KVT_BODY_MAX);
    kvb_assert(request->state == REQUEST_RECEIVED ||
               (request->state == REQUEST_ASKED && is->body_len == 0));
    is->body_len = body_len;
    uint32_t extents = pack_extents(request->lane->server, from, n);
    if (extents == 0) {
        fail_later(request, REQUEST_UNSENT);
        return;
    }
    request->state = REQUEST_SENDING;
    send_answer(request, KVB_OK, text, len, extents, checksum);
}

static const struct kvt_request_ops request_ops = {
    .receive = request_receive,
    .answer = request_answer,
    .answer_body = request_answer_body,
};

/* ---- messages ---- */

static kvb_status_t on_question(struct server_lane *lane, const struct kvb_frame *frame,
                                const uint8_t *payload)
{
    struct kvt_rdma_server *server = lane->server;
    struct rwire_question question;
    /* Answers that it has not made room for are of questions that it has open still. */
    if ((frame->flags & KVB_FRAME_REPLY) != 0 ||
        rwire_question_unpack(payload, frame->len, &question) != KVB_OK ||
        (question.unhashed && lane->guest.shake.version < KVT_RDMA_VERSION_UNHASHED) ||
        lane->requests >= server->config.requests_max ||
        lane->lane.out.queued > server->config.requests_max || lane->text > TEXT_MAX) {
        return KVB_ERR_PROTOCOL;
    }
    struct request *request = request_new(lane, frame, &question);
    if (request == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    server->door.counted.transfers++;
    server->config.ops->request(server->config.ctx, &request->is);
    return KVB_OK;
}

static struct request *granted_of(struct server_lane *lane, uint64_t seq)
{
    kvb_list_each(&lane->all, link)
    {
        struct request *request = kvb_container_of(link, struct request, link);
        if (request->seq == seq && granted(request)) {
            return request;
        }
    }
    return NULL;
}

static kvb_status_t on_done(struct server_lane *lane, const struct kvb_frame *frame,
                            const uint8_t *payload)
{
    struct kvt_rdma_server *server = lane->server;
    const struct kvt_server_ops *ops = server->config.ops;
    struct request *request = granted_of(lane, frame->seq);
    kvb_status_t status;
    uint64_t checksum;
    if (request == NULL || rwire_done_unpack(payload, &status, &checksum) != KVB_OK) {
        return KVB_ERR_PROTOCOL;
    }
    if (status == KVB_ERR_CHECKSUM) {
        server->door.counted.checksums++;
    } else if (status != KVB_OK) {
        server->door.counted.abandoned++;
    }
    if (request->state == REQUEST_GRANTED && request->unhashed != NULL && status == KVB_OK) {
        request->state = REQUEST_HASHING;
        kvb_list_push_back(&lane->hashing, &request->hashing);
        rlane_kick(&lane->lane);
        return checksum == 0 ? KVB_OK : KVB_ERR_PROTOCOL;
    }
    if (request->state == REQUEST_GRANTED) {
        server->totals.bytes_received += status == KVB_OK ? request->is.body_len : 0;
        request->state = REQUEST_RECEIVED;
        ops->received(server->config.ctx, &request->is, status, checksum);
        return KVB_OK;
    }
    uint8_t verdict[RWIRE_VERDICT_LEN];
    struct iovec part = {verdict, sizeof verdict};
    server->totals.bytes_sent += status == KVB_OK ? request->is.body_len : 0;
    kvb_status_t said = ops->sent(server->config.ctx, &request->is);
    if (said != KVB_OK) {
        server->door.counted.abandoned++;
    }
    rwire_verdict_pack(said, verdict);
    rlane_send(&lane->lane, RWIRE_VERDICT, 0, request->seq, &part, 1);
    request_free(request);
    return KVB_OK;
}

/* ---- the handshake ---- */

static void send_shake(struct server_lane *lane, enum rwire_message type, uint8_t *payload,
                       size_t len)
{
    struct iovec part = {payload, len};
    rlane_send(&lane->lane, (uint16_t)type, 0, 1, &part, 1);
}

static kvb_status_t refuse(struct server_lane *lane, kvb_status_t why)
{
    uint8_t payload[4];
    rwire_refusal_pack(why, payload);
    kvt_door_refused(&lane->server->door, &lane->guest, why);
    send_shake(lane, RWIRE_REFUSED, payload, sizeof payload);
    lane->phase = LANE_REFUSED;
    return KVB_OK;
}

static kvb_status_t on_hello(struct server_lane *lane, const uint8_t *payload, size_t len)
{
    struct kvt_handshake *shake = &lane->guest.shake;
    const struct kvt_rdma_server_config *config = &lane->server->config;
    kvb_status_t status = kvt_hello_take(&kvt_rdma_protocol, &config->common, config->sched->random,
                                         shake, payload, len);
    if (status != KVB_OK) {
        return status == KVB_ERR_UNSUPPORTED ? refuse(lane, status) : status;
    }
    lane->phase = LANE_TESTED;
    send_shake(lane, RWIRE_CHALLENGE, shake->challenge, shake->challenge_len);
    return KVB_OK;
}

static kvb_status_t on_proof(struct server_lane *lane, const uint8_t *proof)
{
    struct kvt_rdma_server *server = lane->server;
    const struct kvt_rdma_server_config *config = &server->config;
    uint8_t identity[KVT_PAYLOAD_MAX];
    size_t identity_len = 0;
    kvb_status_t status =
        kvt_proof_check(&kvt_rdma_protocol, &config->common, &lane->guest.shake, proof);
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
    send_shake(lane, RWIRE_ADMITTED, identity, identity_len);
    rlane_admit(&lane->lane, lane->guest.shake.their_silence_ms);
    return KVB_OK;
}

static kvb_status_t lane_message(struct rlane *base, const struct kvb_frame *frame,
                                 const uint8_t *payload)
{
    struct server_lane *lane = lane_of(base);
    if (frame->type <= KVT_TYPE_MAX) {
        return on_question(lane, frame, payload);
    }
    switch (frame->type) {
    case RWIRE_DONE:
        return on_done(lane, frame, payload);
    case RWIRE_HELLO:
        return lane->phase == LANE_GREETED ? on_hello(lane, payload, frame->len) : KVB_ERR_PROTOCOL;
    case RWIRE_PROOF:
        return lane->phase == LANE_TESTED ? on_proof(lane, payload) : KVB_ERR_PROTOCOL;
    default:
        return KVB_ERR_PROTOCOL;
    }
}

/* Hashes a slice of it. True: that was all. */
static bool hash_slice(struct unhashed *unhashed)
{
    struct kvt_body *body = &unhashed->body;
    uint64_t len = body->left < HASH_SLICE ? body->left : HASH_SLICE;
    while (len > 0) {
        struct iovec pieces[PIECES];
        int n;
        uint64_t some = kvt_body_peek(body, len, pieces, &n, PIECES);
        for (int i = 0; i < n; i++) {
            (void)XXH3_64bits_update(&unhashed->hash, pieces[i].iov_base, pieces[i].iov_len);
        }
        kvt_body_skip(body, some);
        len -= some;
    }
    return body->left == 0;
}

/* A slice of one of them a turn, one after the other: what else the lanes have to do goes between.
 */
static void hash_some(struct server_lane *lane)
{
    struct kvt_rdma_server *server = lane->server;
    struct kvb_list *link = kvb_list_pop(&lane->hashing);
    if (link == NULL) {
        return;
    }
    struct request *request = kvb_container_of(link, struct request, hashing);
    if (hash_slice(request->unhashed)) {
        uint64_t checksum = XXH3_64bits_digest(&request->unhashed->hash);
        server->totals.bytes_received += request->is.body_len;
        request->state = REQUEST_RECEIVED;
        server->config.ops->received(server->config.ctx, &request->is, KVB_OK, checksum);
    } else {
        kvb_list_push_back(&lane->hashing, link);
    }
    if (!kvb_list_empty(&lane->hashing)) {
        rlane_kick(&lane->lane);
    }
}

static void lane_turn(struct rlane *base)
{
    struct server_lane *lane = lane_of(base);
    const struct kvt_rdma_server_config *config = &lane->server->config;
    hash_some(lane);
    for (struct kvb_list *link; (link = kvb_list_pop(&lane->failed)) != NULL;) {
        struct request *request = kvb_container_of(link, struct request, failed);
        if (request->state == REQUEST_UNGRANTED) {
            request->state = REQUEST_RECEIVED;
            config->ops->received(config->ctx, &request->is, KVB_ERR_NO_MEMORY, 0);
        } else {
            config->ops->gone(config->ctx, &request->is);
            send_answer(request, KVB_ERR_NO_MEMORY, NULL, 0, 0, 0);
            request_free(request);
        }
    }
}

/* ---- the end of a lane ---- */

/* Its queue pair is gone. */
static void lane_end(struct server_lane *lane)
{
    struct kvt_rdma_server *server = lane->server;
    const struct kvt_rdma_server_config *config = &server->config;

    bool admitted = lane->phase == LANE_ADMITTED;
    kvt_door_leave(&server->door, &lane->guest, admitted);
    for (struct kvb_list *link; (link = kvb_list_first(&lane->all)) != NULL;) {
        struct request *request = kvb_container_of(link, struct request, link);
        config->ops->gone(config->ctx, &request->is);
        request_free(request);
    }
    if (admitted) {
        config->ops->closed(config->ctx, lane->guest.session);
    }
    free(lane);
}

static void lane_lost(struct rlane *base, kvb_status_t why)
{
    struct server_lane *lane = lane_of(base);
    struct kvt_rdma_server *server = lane->server;
    bool admitted = lane->phase == LANE_ADMITTED;
    kvt_door_lost(&server->door, &lane->guest, admitted, why);
    lane_end(lane);
}

static void lane_opened(struct rlane *base)
{
    (void)base; /* the client speaks first */
}

static const struct rlane_ops lane_ops = {
    .opened = lane_opened,
    .message = lane_message,
    .turn = lane_turn,
    .lost = lane_lost,
};

static void on_event(struct rend *end, const struct rdma_cm_event *event, const uint8_t *data,
                     size_t len)
{
    (void)end;
    rlane_event(event->id->context, event, data, len);
}

/* ---- the server ---- */

static void set_limits(struct kvt_rdma_server *server)
{
    server->door.lanes_max = server->config.lanes_max;
    server->door.lanes_each_max = server->config.lanes_each_max;
    server->door.strangers_max = server->config.strangers_max;
}

kvb_status_t kvt_rdma_server_create(const struct kvt_rdma_server_config *given,
                                    struct kvt_rdma_server **server_p)
{
    struct kvt_rdma_server_config config = *given;
    kvt_default_u32(&config.lanes_max, 256);
    kvt_default_u32(&config.lanes_each_max, 64);
    kvt_default_u32(&config.strangers_max, 64);
    kvt_default_u32(&config.requests_max, 256);
    if (!kvt_common_defaults(&config.common) || !kvt_name_valid(config.name, strlen(config.name))) {
        return KVB_ERR_INVALID;
    }
    struct kvt_rdma_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    server->config = config;
    kvt_door_init(&server->door, "rdma", &kvt_rdma_protocol, config.name, config.incarnation);
    uint64_t lanes = (uint64_t)config.lanes_max + config.strangers_max;
    kvb_status_t status = rend_open(&server->end, config.device, config.sched, config.io,
                                    lanes < UINT32_MAX ? (uint32_t)lanes : UINT32_MAX);
    if (status != KVB_OK) {
        free(server);
        return status;
    }
    if (server->end.lanes_max < lanes) { /* the device has room for fewer */
        uint32_t fit = server->end.lanes_max;
        server->config.strangers_max = fit > 4 ? fit / 4 : 1;
        server->config.lanes_max = fit - server->config.strangers_max;
    }
    set_limits(server);
    server->end.event = on_event;
    *server_p = server;
    return KVB_OK;
}

static void end_all(struct kvb_list *lanes)
{
    for (struct kvb_list *link; (link = kvb_list_first(lanes)) != NULL;) {
        struct server_lane *lane = kvb_container_of(link, struct server_lane, guest.link);
        rlane_close(&lane->lane);
        lane_end(lane);
    }
}

void kvt_rdma_server_destroy(struct kvt_rdma_server *server)
{
    if (server == NULL) {
        return;
    }
    end_all(&server->door.strangers);
    end_all(&server->door.lanes);
    rend_close(&server->end);
    free(server->room);
    free(server);
}

kvb_status_t kvt_rdma_server_adopt(struct kvt_rdma_server *server, struct kvt_rdma_conn *conn)
{
    struct rwire_connect wants;
    char from[64];
    rconn_from(conn, from, sizeof from);
    kvb_status_t status =
        kvt_door_has_room(&server->door, from) ? rconn_wants(conn, &wants) : KVB_ERR_LIMIT;
    struct server_lane *lane = status == KVB_OK ? calloc(1, sizeof *lane) : NULL;
    if (lane == NULL) {
        status = status == KVB_OK ? KVB_ERR_NO_MEMORY : status;
        rconn_reject(conn, status == KVB_ERR_PROTOCOL ? KVB_ERR_UNSUPPORTED : status);
        return status;
    }
    struct kvt_guest *oldest = kvt_door_oldest(&server->door);
    if (oldest != NULL) {
        struct server_lane *stranger = kvb_container_of(oldest, struct server_lane, guest);
        rlane_close(&stranger->lane);
        lane_lost(&stranger->lane, KVB_ERR_LIMIT);
    }
    rlane_init(&lane->lane);
    lane->server = server;
    memcpy(lane->guest.from, from, sizeof from);
    kvb_list_init(&lane->all);
    kvb_list_init(&lane->failed);
    kvb_list_init(&lane->hashing);
    struct rdma_cm_id *id;
    status = rconn_take(conn, server->end.channel, &lane->lane, &id);
    if (status == KVB_OK) {
        status = rlane_accept(&lane->lane, &lane_ops, &server->config.common, &server->end,
                              &server->totals, id, &wants, server->config.requests_max);
    }
    if (status != KVB_OK) {
        free(lane);
        return status;
    }
    kvt_door_enter(&server->door, &lane->guest);
    return KVB_OK;
}

void kvt_rdma_server_stats(const struct kvt_rdma_server *server, struct kvt_peer_stats *stats_p)
{
    kvt_stats_of(&server->door.counted, server->door.admitted, server->totals.heard_ns,
                 server->totals.bytes_sent, server->totals.bytes_received, stats_p);
}
