/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side that asks. A transfer becomes an ask, which goes to the lane with the fewest bytes
 * outstanding (a large one not to the first, where there is another) and stays with it until its
 * answer came, or the lane was lost.
 *
 * Two ends are kept apart. The transfer's: finish() notes it, once, and the peer's event tells it,
 * so never inside start or cancel; from then on nothing of ours touches its memory. The ask's: it
 * lives on without its transfer (`over`) until the node's answer to it came by, for the lane must
 * stay in step. All calls to the user come from the peer's event, never out of a lane.
 */
#include "defaults.h"
#include "handshake.h"
#include "lane.h"
#include "standing.h"

#include "base/assert.h"
#include "base/log.h"
#include "transport_impl.h"

#include <stdlib.h>
#include <string.h>

#define LANES_MAX 4u
/* Outstanding on the best lane, from which on another one is opened. */
#define LANE_BUSY_BYTES (64u << 10)
/* What costs more is kept off the first lane, where there is another: lookups go past it there. */
#define LARGE_BYTES (64u << 10)
/* What a question costs beside its bytes, when lanes are compared. */
#define ASK_COST 64u

enum ask_state {
    ASK_WAITING, /* in: peer.waiting. waits for: the first lane */
    ASK_QUEUED,  /* in: lane.queue. waits for: its turn */
    ASK_BEGUN,   /* in: lane.begun. waits for: the answer */
    ASK_ENDED    /* in: no list. waits for: its transfer to be told */
};

struct ask {
    struct kvb_list link;      /* idle, or as the state says */
    struct kvb_list over_link; /* peer.over: the end of its transfer is to be told */
    struct peer *peer;
    struct peer_lane *lane;
    struct kvt_transfer *transfer; /* NULL: told */
    struct kvb_timer deadline;
    enum ask_state state;
    bool over;     /* the transfer has come to its end */
    bool answered; /* by what the node said */
    kvb_status_t status;
    bool get; /* the answer brings the body */
    uint64_t seq;
    uint64_t body_len;
    uint64_t cost;
    uint64_t checksum; /* of the body that was sent */
    uint16_t type;
    uint32_t answer_cap;
};

enum lane_phase {
    LANE_CLOSED,     /* owns: nothing */
    LANE_CHALLENGED, /* waits for: CHALLENGE */
    LANE_PROVING,    /* waits for: ADMITTED */
    LANE_ADMITTED
};

struct peer_lane {
    struct lane lane; /* first: its alignment */
    struct peer *peer;
    enum lane_phase phase;
    struct kvt_handshake shake;
    struct kvb_list queue;
    struct kvb_list begun;
    struct ask *sending;   /* its body is on the way out */
    struct ask *receiving; /* its body is on the way in */
    uint64_t load;         /* cost of queue and begun */
    uint64_t admitted_ns, used_ns;
};

struct peer {
    struct peer_lane lanes[LANES_MAX];
    struct kvt_transport base;
    struct kvt_tcp_peer_config config;
    char *address;
    struct lane_totals totals;

    struct ask *asks; /* asks_len of them, a power of 2 */
    uint32_t asks_len;
    uint64_t seq; /* of the last question; its low bits name the ask */
    struct kvb_list idle;
    struct kvb_list waiting;
    struct kvb_list over;
    uint32_t orphans; /* asks that only wait for their answer to come by */
    uint64_t bytes;   /* bodies of transfers in flight */

    uint32_t failures; /* connections in a row that came to nothing */
    uint64_t retry_ns; /* not before */
    struct kvt_standing node;
    struct kvb_event turn;
    struct kvb_timer retry;
    struct kvb_timer idle_check;
};

static struct peer *of(const struct kvt_transport *transport)
{
    union {
        const struct kvt_transport *in;
        struct kvt_transport *out;
    } cast = {.in = transport};
    return kvb_container_of(cast.out, struct peer, base);
}

static struct peer_lane *lane_of(struct lane *lane)
{
    return kvb_container_of(lane, struct peer_lane, lane);
}

static uint64_t now_of(const struct peer *peer)
{
    return kvb_now_ns(peer->base.sched->clock);
}

/* ---- the end of a transfer, and of its ask ---- */

static void ask_free(struct ask *ask)
{
    kvb_list_push_back(&ask->peer->idle, &ask->link);
}

/* The transfer's end; the first one counts. */
static void finish(struct ask *ask, kvb_status_t status)
{
    struct peer *peer = ask->peer;
    if (ask->over) {
        return;
    }
    ask->over = true;
    ask->status = status;
    kvb_sched_timer_clear(peer->base.sched, &ask->deadline);
    kvb_list_push_back(&peer->over, &ask->over_link);
    kvb_sched_post(peer->base.sched, &peer->turn);
}

/* The lane is through with it, and so is the transfer. */
static void end(struct ask *ask, kvb_status_t status)
{
    struct peer *peer = ask->peer;
    kvb_list_remove(&ask->link);
    if (ask->lane != NULL) {
        ask->lane->load -= ask->cost;
        ask->lane->used_ns = now_of(peer);
        ask->lane = NULL;
    }
    if (ask->state == ASK_BEGUN && ask->over) {
        peer->orphans--;
    }
    ask->state = ASK_ENDED;
    finish(ask, status);
    if (ask->transfer == NULL) {
        ask_free(ask);
    }
}

static void tell(struct ask *ask)
{
    struct peer *peer = ask->peer;
    struct kvt_transfer *transfer = ask->transfer;
    kvb_status_t status = ask->status;
    transfer->checksum = ask->checksum;
    transfer->impl.state = NULL;
    ask->transfer = NULL;
    peer->bytes -= ask->body_len;
    if (ask->state == ASK_ENDED) {
        ask_free(ask);
    }
    if (status != KVB_OK && status != KVB_ERR_CANCELED && !ask->answered) {
        peer->node.counted.transfers_failed++;
    }
    kvt_transfer_finish(transfer, status);
}

/* The transfer's end, before that of its ask. */
static void orphan(struct ask *ask, kvb_status_t why)
{
    struct peer *peer = ask->peer;
    if (ask->over) {
        return;
    }
    finish(ask, why);
    /* More overdue answers than may be in flight at once: the lane is sick. */
    if (++peer->orphans > peer->base.in_flight_max) {
        lane_fail(&ask->lane->lane, KVB_ERR_TIMEOUT);
    }
}

/* Gives a transfer up; its ask goes on alone if the node has heard of it. */
static void give_up(struct ask *ask, kvb_status_t why)
{
    struct peer *peer = ask->peer;
    struct peer_lane *lane = ask->lane;
    if (ask->over) {
        return;
    }
    if (ask->state != ASK_BEGUN) {
        end(ask, why);
        return;
    }
    if (lane->sending == ask) {
        lane_give_up_out(&lane->lane, KVB_ERR_CANCELED);
        peer->node.counted.abandoned++;
    }
    if (lane->receiving == ask) {
        lane_give_up_in(&lane->lane);
        peer->node.counted.abandoned++;
    }
    orphan(ask, why);
}

static void on_deadline(struct kvb_timer *timer)
{
    give_up(kvb_container_of(timer, struct ask, deadline), KVB_ERR_TIMEOUT);
}

static void peer_cancel(struct kvt_transport *transport, struct kvt_transfer *transfer,
                        uint64_t stop_deadline_ns)
{
    (void)transport;
    (void)stop_deadline_ns; /* it stops at once */
    give_up(transfer->impl.state, KVB_ERR_CANCELED);
}

/* ---- lanes: choosing and opening ---- */

static const struct lane_ops lane_ops;
static void lane_gone(struct peer *peer, bool admitted, uint64_t lived_ns, kvb_status_t why);

/* The lane for an ask of that cost; NULL: none stands. */
static struct peer_lane *choose_lane(struct peer *peer, uint64_t cost)
{
    struct peer_lane *first = NULL;
    struct peer_lane *best = NULL;
    for (uint32_t i = 0; i < peer->config.lanes; i++) {
        struct peer_lane *lane = &peer->lanes[i];
        if (lane->phase != LANE_ADMITTED || lane->lane.lost != KVB_OK) {
            continue;
        }
        if (first == NULL) {
            first = lane;
            best = cost < LARGE_BYTES ? lane : NULL;
        } else if (best == NULL || lane->load < best->load) {
            best = lane;
        }
    }
    return best != NULL ? best : first;
}

/* A lane of that phase, or NULL. */
static struct peer_lane *lane_in(struct peer *peer, enum lane_phase phase)
{
    for (uint32_t i = 0; i < peer->config.lanes; i++) {
        if (peer->lanes[i].phase == phase) {
            return &peer->lanes[i];
        }
    }
    return NULL;
}

static bool connecting(struct peer *peer)
{
    return lane_in(peer, LANE_CHALLENGED) != NULL || lane_in(peer, LANE_PROVING) != NULL;
}

static void connect_lane(struct peer *peer)
{
    struct peer_lane *lane = lane_in(peer, LANE_CLOSED);
    const struct kvt_peer_common *common = &peer->config.common;
    struct kvt_socket *socket;

    kvb_status_t status = common->net->ops->connect(common->net, peer->address, &socket);
    if (status != KVB_OK) {
        lane_gone(peer, false, 0, status);
        return;
    }
    status = lane_open(&lane->lane, &lane_ops, common, peer->base.sched, &peer->totals, socket);
    if (status != KVB_OK) {
        common->net->ops->close(socket);
        lane_gone(peer, false, 0, status);
        return;
    }
    lane->phase = LANE_CHALLENGED;
    lane->shake = (struct kvt_handshake){0};
    kvt_greeting_make(&kvt_tcp_protocol, common, peer->base.sched->random, lane->shake.hello,
                      &lane->shake.hello_len);
    lane_message(&lane->lane, TCP_HELLO, lane->shake.hello, lane->shake.hello_len);
}

static void on_retry(struct kvb_timer *timer)
{
    struct peer *peer = kvb_container_of(timer, struct peer, retry);
    if (peer->node.admitted == 0 && !connecting(peer)) {
        connect_lane(peer);
    }
}

static void fail_waiting(struct peer *peer)
{
    kvb_list_each(&peer->waiting, link)
    {
        end(kvb_container_of(link, struct ask, link), KVB_ERR_UNAVAILABLE);
    }
}

/* A connection came to nothing, or to its end. */
static void lane_gone(struct peer *peer, bool admitted, uint64_t lived_ns, kvb_status_t why)
{
    kvt_standing_gone(&peer->node, admitted, why);
    peer->failures =
        lived_ns >= peer->config.backoff_max_ms * KVB_NS_PER_MS ? 1 : peer->failures + 1;
    peer->retry_ns =
        now_of(peer) + kvt_backoff_ns(peer->base.sched->random, peer->config.backoff_ms,
                                      peer->config.backoff_max_ms, peer->failures);
    if (peer->node.admitted > 0 || connecting(peer)) {
        return;
    }
    peer->node.reached = true;
    fail_waiting(peer);
    kvb_sched_timer_set(peer->base.sched, &peer->retry, peer->retry_ns);
    kvb_sched_post(peer->base.sched, &peer->turn);
}

static void maybe_another_lane(struct peer *peer, const struct peer_lane *best)
{
    if (best->load >= LANE_BUSY_BYTES && lane_in(peer, LANE_CLOSED) != NULL && !connecting(peer) &&
        now_of(peer) >= peer->retry_ns) {
        connect_lane(peer);
    }
}

static void assign(struct peer_lane *lane, struct ask *ask)
{
    ask->lane = lane;
    ask->state = ASK_QUEUED;
    lane->load += ask->cost;
    kvb_list_push_back(&lane->queue, &ask->link);
    lane_kick(&lane->lane);
}

static void on_idle_check(struct kvb_timer *timer)
{
    struct peer *peer = kvb_container_of(timer, struct peer, idle_check);
    uint64_t idle_ns = peer->config.idle_ms * KVB_NS_PER_MS;
    uint64_t now_ns = now_of(peer);
    for (uint32_t i = peer->config.lanes; i-- > 0 && peer->node.admitted > 1;) {
        struct peer_lane *lane = &peer->lanes[i];
        if (lane->phase == LANE_ADMITTED && lane->load == 0 && lane->lane.lost == KVB_OK &&
            now_ns >= lane->used_ns + idle_ns) {
            lane_close(&lane->lane);
            lane->phase = LANE_CLOSED;
            peer->node.admitted--;
        }
    }
    if (peer->node.admitted > 1) {
        kvb_sched_timer_set(peer->base.sched, timer, now_ns + idle_ns / 4 + 1);
    }
}

/* ---- starting ---- */

static kvb_status_t peer_start(struct kvt_transport *transport, struct kvt_transfer *transfer)
{
    struct peer *peer = of(transport);
    uint64_t body_len = 0;
    for (uint32_t i = 0; i < transfer->nslices; i++) {
        body_len += transfer->slices[i].len; /* checked */
    }
    if (transfer->type == 0 || transfer->type > KVT_TYPE_MAX) {
        return KVB_ERR_INVALID;
    }
    if (transfer->ask.len > peer->config.common.ask_max || body_len > KVT_BODY_MAX) {
        return KVB_ERR_TOO_LARGE;
    }
    uint64_t cost = ASK_COST + transfer->ask.len + body_len;
    struct peer_lane *lane = choose_lane(peer, cost);
    if (lane == NULL && peer->node.reached) {
        return KVB_ERR_UNAVAILABLE;
    }
    struct kvb_list *link = kvb_list_first(&peer->idle);
    uint64_t room = peer->config.bytes_max > peer->bytes ? peer->config.bytes_max - peer->bytes : 0;
    if (link == NULL || (peer->bytes > 0 && body_len > room)) {
        return KVB_ERR_AGAIN;
    }
    struct ask *ask = kvb_container_of(link, struct ask, link);
    kvb_list_remove(link);
    ask->transfer = transfer;
    ask->lane = NULL;
    ask->state = ASK_WAITING;
    ask->over = ask->answered = false;
    ask->get = transfer->direction == KVT_FROM_SHARE && body_len > 0;
    peer->seq += peer->asks_len;
    ask->seq = peer->seq + (uint64_t)(ask - peer->asks);
    ask->type = transfer->type;
    ask->body_len = body_len;
    ask->cost = cost;
    ask->checksum = 0;
    ask->answer_cap = transfer->answer_cap;
    transfer->answer_len = 0;
    transfer->impl.state = ask;
    peer->bytes += body_len;
    peer->node.counted.transfers++;
    kvb_sched_timer_set(transport->sched, &ask->deadline, transfer->deadline_ns);
    if (lane == NULL) {
        kvb_list_push_back(&peer->waiting, &ask->link);
        return KVB_OK;
    }
    assign(lane, ask);
    maybe_another_lane(peer, lane);
    return KVB_OK;
}

/* ---- what a lane asks and tells: sending ---- */

static bool lane_next(struct lane *base, struct lane_out *out)
{
    struct peer_lane *lane = lane_of(base);
    struct kvb_list *link = kvb_list_pop(&lane->queue);
    if (link == NULL) {
        return false;
    }
    struct ask *ask = kvb_container_of(link, struct ask, link);
    const struct kvt_transfer *transfer = ask->transfer;
    uint64_t body_len = ask->get ? 0 : ask->body_len;
    kvb_list_push_back(&lane->begun, &ask->link);
    ask->state = ASK_BEGUN;
    lane->sending = ask;
    *out = (struct lane_out){
        .head = {.frame = {.type = ask->type, .seq = ask->seq},
                 .text_len = (uint32_t)transfer->ask.len,
                 .body_len = (uint32_t)body_len},
        .text = transfer->ask.data,
        .body = kvt_body_slices(transfer->slices, body_len),
        .hash = true,
    };
    return true;
}

static kvb_status_t lane_verdict(struct lane *base, kvb_status_t status, uint64_t *checksum_p)
{
    struct ask *ask = lane_of(base)->sending;
    if (ask == NULL) { /* it has its answer already */
        return status;
    }
    ask->checksum = *checksum_p;
    if (status != KVB_OK && !ask->over) { /* its memory could not be read */
        ask->peer->node.counted.abandoned++;
        orphan(ask, status);
    }
    return status;
}

static void lane_sent(struct lane *base)
{
    lane_of(base)->sending = NULL;
}

/* ---- receiving ---- */

/* The ask that an answer is for; NULL: none that this lane could have an answer to. */
static struct ask *ask_of(struct peer_lane *lane, const struct kvb_frame *frame)
{
    struct peer *peer = lane->peer;
    struct ask *ask = &peer->asks[frame->seq & (peer->asks_len - 1)];
    bool right = (frame->flags & KVB_FRAME_REPLY) != 0 && ask->lane == lane &&
                 ask->state == ASK_BEGUN && ask->seq == frame->seq && ask->type == frame->type &&
                 lane->receiving != ask;
    return right ? ask : NULL;
}

/* An answer must be one that this question can have. OK to a put: only to all of its bytes. */
static bool answer_fits(const struct peer_lane *lane, const struct ask *ask,
                        const struct tcp_head *head)
{
    uint64_t body_len = ask->get && head->status == KVB_OK ? ask->body_len : 0;
    return head->text_len <= ask->answer_cap && head->body_len == body_len &&
           (head->status != KVB_OK || lane->sending != ask);
}

static kvb_status_t lane_frame(struct lane *base, const struct tcp_head *head, const uint8_t *text)
{
    struct peer_lane *lane = lane_of(base);
    struct ask *ask = ask_of(lane, &head->frame);
    if (ask == NULL) {
        return KVB_ERR_PROTOCOL;
    }
    if (!answer_fits(lane, ask, head)) {
        orphan(ask, KVB_ERR_PROTOCOL);
        return KVB_ERR_PROTOCOL;
    }
    if (!ask->over) {
        if (head->text_len > 0) {
            memcpy(ask->transfer->answer, text, head->text_len);
        }
        ask->transfer->answer_len = head->text_len;
    }
    if (head->body_len > 0) {
        lane->receiving = ask;
        if (!ask->over) {
            base->in.body = kvt_body_slices(ask->transfer->slices, ask->body_len);
        }
        return KVB_OK;
    }
    if (lane->sending == ask) { /* refused before all of it was sent */
        lane_give_up_out(base, KVB_ERR_CANCELED);
        lane->peer->node.counted.abandoned++;
        lane->sending = NULL; /* the frame goes on without its ask */
    }
    ask->answered = !ask->over;
    end(ask, head->status);
    return KVB_OK;
}

static kvb_status_t lane_body(struct lane *base, kvb_status_t status, uint64_t checksum)
{
    struct peer_lane *lane = lane_of(base);
    struct ask *ask = lane->receiving;
    lane->receiving = NULL;
    if (status == KVB_ERR_CHECKSUM) {
        lane->peer->node.counted.checksums++;
    } else if (status != KVB_OK) {
        lane->peer->node.counted.abandoned++;
    }
    if (!ask->over) {
        ask->checksum = checksum;
    }
    end(ask, status);
    return KVB_OK;
}

/* ---- the handshake ---- */

static kvb_status_t on_challenge(struct peer_lane *lane, const uint8_t *payload, size_t len)
{
    const struct kvt_peer_common *common = &lane->peer->config.common;
    uint8_t proof[KVT_PROOF_LEN];
    kvb_status_t status =
        kvt_challenge_take(&kvt_tcp_protocol, common, &lane->shake, payload, len, proof);
    if (status == KVB_OK) {
        lane->phase = LANE_PROVING;
        lane_message(&lane->lane, TCP_PROOF, proof, sizeof proof);
    }
    return status;
}

/* A node that began another life is another node: what stands to the old one is worth nothing. */
static void leave_old_life(struct peer *peer, const struct peer_lane *of_new)
{
    for (uint32_t i = 0; i < peer->config.lanes; i++) {
        struct peer_lane *lane = &peer->lanes[i];
        if (lane != of_new && lane->phase == LANE_ADMITTED) {
            lane_fail(&lane->lane, KVB_ERR_DISCONNECTED);
        }
    }
}

static kvb_status_t on_admitted(struct peer_lane *lane, const uint8_t *payload, size_t len)
{
    struct peer *peer = lane->peer;
    struct kvt_identity identity;
    kvb_status_t status = kvt_identity_take(&kvt_tcp_protocol, &peer->config.common, &lane->shake,
                                            payload, len, &identity);
    if (status != KVB_OK) {
        return status;
    }
    if (peer->node.admitted > 0 && identity.incarnation != peer->node.hello.incarnation) {
        leave_old_life(peer, lane);
    }
    kvt_standing_admitted(&peer->node, &identity, &lane->shake);
    lane->phase = LANE_ADMITTED;
    lane->admitted_ns = lane->used_ns = now_of(peer);
    lane_admit(&lane->lane, lane->shake.their_silence_ms);
    for (struct kvb_list *link; (link = kvb_list_pop(&peer->waiting)) != NULL;) {
        assign(lane, kvb_container_of(link, struct ask, link));
    }
    if (peer->node.admitted > 1 && !kvb_timer_armed(&peer->idle_check)) {
        kvb_sched_timer_set(peer->base.sched, &peer->idle_check,
                            now_of(peer) + peer->config.idle_ms * KVB_NS_PER_MS);
    }
    kvb_sched_post(peer->base.sched, &peer->turn);
    return KVB_OK;
}

static kvb_status_t lane_message_in(struct lane *base, enum tcp_message type,
                                    const uint8_t *payload, size_t len)
{
    struct peer_lane *lane = lane_of(base);
    if (type == TCP_CHALLENGE && lane->phase == LANE_CHALLENGED) {
        return on_challenge(lane, payload, len);
    }
    if (type == TCP_ADMITTED && lane->phase == LANE_PROVING) {
        return on_admitted(lane, payload, len);
    }
    if (type == TCP_REFUSED && lane->phase != LANE_ADMITTED) {
        return tcp_refusal(payload);
    }
    return KVB_ERR_PROTOCOL;
}

/* ---- the end of a lane ---- */

static void lane_lost(struct lane *base, kvb_status_t why)
{
    struct peer_lane *lane = lane_of(base);
    struct peer *peer = lane->peer;
    bool admitted = lane->phase == LANE_ADMITTED;

    KVB_LOG_LIMITED(DEBUG, "tcp: a connection to a node is lost", KVB_STR("address", peer->address),
                    KVB_STATUS(why));
    lane_close(base);
    lane->phase = LANE_CLOSED;
    lane->sending = lane->receiving = NULL;
    kvb_list_each(&lane->begun, link)
    {
        end(kvb_container_of(link, struct ask, link), KVB_ERR_DISCONNECTED);
    }
    kvb_list_each(&lane->queue, link)
    {
        end(kvb_container_of(link, struct ask, link), KVB_ERR_DISCONNECTED);
    }
    peer->node.admitted -= admitted ? 1 : 0;
    lane_gone(peer, admitted, admitted ? now_of(peer) - lane->admitted_ns : 0, why);
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

/* ---- what the user is told ---- */

static void on_turn(struct kvb_event *event)
{
    struct peer *peer = kvb_container_of(event, struct peer, turn);
    struct kvb_list over;
    kvb_list_init(&over);
    for (struct kvb_list *link; (link = kvb_list_pop(&peer->over)) != NULL;) {
        kvb_list_push_back(&over, link); /* what ends meanwhile is told in the next turn */
    }
    kvt_standing_tell(&peer->node, peer->address);
    for (struct kvb_list *link; (link = kvb_list_pop(&over)) != NULL;) {
        tell(kvb_container_of(link, struct ask, over_link));
    }
}

/* ---- create and destroy ---- */

/* Whoever destroys it waits for nothing any more (transport.h). */
static void end_all(struct peer *peer)
{
    for (uint32_t i = 0; i < peer->asks_len; i++) {
        struct ask *ask = &peer->asks[i];
        if (ask->transfer != NULL) {
            kvb_sched_timer_clear(peer->base.sched, &ask->deadline);
            kvt_transfer_finish(ask->transfer, KVB_ERR_CANCELED);
        }
    }
}

static void peer_destroy(struct kvt_transport *transport)
{
    struct peer *peer = of(transport);
    for (uint32_t i = 0; i < peer->config.lanes; i++) {
        if (peer->lanes[i].phase != LANE_CLOSED) {
            lane_close(&peer->lanes[i].lane);
        }
    }
    end_all(peer);
    kvb_sched_unpost(&peer->turn);
    kvb_sched_timer_clear(transport->sched, &peer->retry);
    kvb_sched_timer_clear(transport->sched, &peer->idle_check);
    free(peer->address);
    free(peer->asks);
    free(peer);
}

static const struct kvt_transport_ops peer_ops = {
    .name = "tcp",
    .capabilities = KVT_CAP_NODE_COPIES | KVT_CAP_ASKS,
    .start = peer_start,
    .cancel = peer_cancel,
    .destroy = peer_destroy,
};

static bool config_defaults(struct kvt_tcp_peer_config *config)
{
    kvt_default_u32(&config->lanes, LANES_MAX);
    kvt_default_u32(&config->in_flight_max, 1024);
    kvt_default_u32(&config->backoff_ms, 50);
    kvt_default_u32(&config->backoff_max_ms, 2000);
    kvt_default_u32(&config->idle_ms, 60000);
    config->bytes_max = config->bytes_max != 0 ? config->bytes_max : 256ull << 20;
    return kvt_common_defaults(&config->common) && config->lanes <= LANES_MAX &&
           config->in_flight_max <= 1u << 20 && kvt_address_valid(config->address);
}

static void peer_init(struct peer *peer, const struct kvt_tcp_peer_config *config, char *address,
                      struct ask *asks, uint32_t asks_len)
{
    *peer =
        (struct peer){.config = *config, .address = address, .asks = asks, .asks_len = asks_len};
    peer->config.address = NULL; /* peer->address is */
    peer->node = (struct kvt_standing){.by = "tcp", .ops = config->ops, .ctx = config->ctx};
    kvb_event_init(&peer->turn, on_turn);
    kvb_timer_init(&peer->retry, on_retry);
    kvb_timer_init(&peer->idle_check, on_idle_check);
    kvb_list_init(&peer->idle);
    kvb_list_init(&peer->waiting);
    kvb_list_init(&peer->over);
    for (uint32_t i = 0; i < LANES_MAX; i++) {
        peer->lanes[i].peer = peer;
        kvb_list_init(&peer->lanes[i].queue);
        kvb_list_init(&peer->lanes[i].begun);
    }
    for (uint32_t i = 0; i < asks_len; i++) {
        asks[i].peer = peer;
        kvb_list_init(&asks[i].over_link);
        kvb_timer_init(&asks[i].deadline, on_deadline);
        kvb_list_push_back(&peer->idle, &asks[i].link);
    }
}

kvb_status_t kvt_tcp_peer_create(struct kvt_regions *regions,
                                 const struct kvt_tcp_peer_config *given,
                                 struct kvt_transport **transport_p)
{
    struct kvt_tcp_peer_config config = *given;
    if (!config_defaults(&config)) {
        return KVB_ERR_INVALID;
    }
    uint32_t asks_len = 16;
    while (asks_len < 2 * config.in_flight_max) { /* half of them may be orphans */
        asks_len *= 2;
    }
    struct peer *peer = aligned_alloc(LANE_ALIGN, sizeof *peer);
    char *address = strdup(config.address);
    struct ask *asks = calloc(asks_len, sizeof *asks);
    if (peer == NULL || address == NULL || asks == NULL) {
        free(asks);
        free(address);
        free(peer);
        return KVB_ERR_NO_MEMORY;
    }
    peer_init(peer, &config, address, asks, asks_len);
    kvt_transport_init(&peer->base, &peer_ops, regions, config.in_flight_max);
    connect_lane(peer);
    *transport_p = &peer->base;
    return KVB_OK;
}

kvb_status_t kvt_tcp_peer_set_address(struct kvt_transport *transport, const char *address)
{
    struct peer *peer = of(transport);
    if (!kvt_address_valid(address)) {
        return KVB_ERR_INVALID;
    }
    char *copy = strdup(address);
    if (copy == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    free(peer->address);
    peer->address = copy;
    if (peer->node.admitted > 0) {
        return KVB_OK;
    }
    for (uint32_t i = 0; i < peer->config.lanes; i++) { /* on their way to the old one */
        if (peer->lanes[i].phase != LANE_CLOSED) {
            lane_close(&peer->lanes[i].lane);
            peer->lanes[i].phase = LANE_CLOSED;
        }
    }
    peer->failures = 0;
    kvb_sched_timer_clear(transport->sched, &peer->retry);
    connect_lane(peer);
    return KVB_OK;
}

void kvt_tcp_peer_stats(const struct kvt_transport *transport, struct kvt_peer_stats *stats_p)
{
    const struct peer *peer = of(transport);
    kvt_stats_of(&peer->node.counted, peer->node.admitted, peer->totals.heard_ns,
                 peer->totals.bytes_sent, peer->totals.bytes_received, stats_p);
}
