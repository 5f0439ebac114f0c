/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side that asks. A transfer becomes an ask, which goes to the lane of its engine rank and
 * stays with it until all that belongs to it has come by, or the lane was lost.
 *
 * Three ends are kept apart. That of its work: READs and WRITEs that are posted name the engine's
 * memory until they have come back. The transfer's: finish() notes it, once, and not before the
 * first, and the peer's event tells it, so never inside start or cancel; from then on nothing of
 * ours touches its memory. The ask's: it lives on without its transfer (`over`) until the node's
 * last word to it came by. All calls to the user come from the peer's event, never out of a lane.
 *
 * A transfer that is to stop while work of it is posted waits for that to come back; halfway to its
 * bound its queue pair is given up, so that all of it comes back flushed, and halfway from there
 * the queue pair is destroyed: so whoever waits until the bound finds it ended.
 */
#include "body.h"
#include "defaults.h"
#include "lane.h"
#include "standing.h"

#include "base/assert.h"
#include "base/faults.h"
#include "base/log.h"
#include "base/xxh3.h"

#include <stdlib.h>
#include <string.h>

#define LANES_MAX 64u
/* What a question costs beside its bytes, when lanes are compared. */
#define ASK_COST 64u
/* Of questions that a lane has not had its answers to. */
#define TEXT_MAX (4u << 20)
/* Of one READ or WRITE, and of all that are posted on a lane: enough for any wire, and little
 * enough to come back soon when it is to stop. */
#define WORK_BYTES   (256u << 10)
#define POSTED_BYTES (4u << 20)
/* Hashed of one transfer, and of all of a lane, in one turn. */
#define HASH_SLICE (256u << 10)
#define HASH_TURN  (1u << 20)
#define BATCH      16u
#define SGE_MAX    32u
#define PIECES     16

enum ask_state {
    ASK_QUEUED,   /* in: lane.queue. waits for: its turn */
    ASK_ASKED,    /* in: lane.begun. waits for: GRANT, or the answer */
    ASK_MOVING,   /* in: lane.begun, lane.moving. waits for: its bytes, moved and hashed */
    ASK_SETTLING, /* in: lane.begun. waits for: the node's last word */
    ASK_ENDED     /* in: no list. waits for: its work, and its transfer to be told */
};

struct ask {
    XXH3_state_t hash;         /* first: its alignment */
    struct kvb_list link;      /* idle, or as the state says */
    struct kvb_list moving;    /* lane.moving */
    struct kvb_list over_link; /* peer.over: the end of its transfer is to be told */
    struct peer *peer;
    struct peer_lane *lane;
    struct kvt_transfer *transfer; /* NULL: told */
    struct kvb_timer deadline;     /* then, if it is stopping, when the lane is given up */
    enum ask_state state;
    bool over;             /* the transfer has come to its end */
    bool answered;         /* by what the node said */
    bool get;              /* the answer grants the body */
    bool ended;            /* the ask has come to its end, but for its work; end_status is it */
    kvb_status_t stopping; /* OK, or what the transfer ends with once its work is back */
    uint64_t stop_ns;
    kvb_status_t end_status;
    kvb_status_t status;
    uint64_t seq;
    uint64_t body_len;
    uint64_t cost;
    uint64_t checksum;
    uint16_t type;
    uint32_t text_len;
    uint32_t answer_cap;

    /* moving */
    struct rwork work;
    struct kvt_body ahead; /* to be posted */
    struct kvt_body unhashed;
    uint8_t *extents; /* as they came; to be freed */
    uint32_t extents_n, extent;
    uint32_t extent_offset;
};

enum lane_phase {
    LANE_CLOSED,     /* owns: nothing */
    LANE_MAKING,     /* waits for: its connection */
    LANE_CHALLENGED, /* waits for: CHALLENGE */
    LANE_PROVING,    /* waits for: ADMITTED */
    LANE_ADMITTED
};

struct peer_lane {
    struct rlane lane;
    struct peer *peer;
    enum lane_phase phase;
    struct kvt_handshake shake;
    bool owned; /* owner is its engine rank */
    uint64_t owner;
    struct kvb_list queue;
    struct kvb_list begun;
    struct kvb_list moving; /* of begun */
    uint32_t begun_n, queue_n;
    uint64_t begun_text;
    uint64_t load; /* cost of queue and begun */
    uint64_t admitted_ns, used_ns;
    uint64_t retry_ns; /* not before */
    uint32_t failures;
};

struct peer {
    struct kvt_transport base;
    struct kvt_rdma_peer_config config;
    struct kvt_rdma_device *device;
    struct rend end;
    struct sockaddr_storage to;
    char *address;
    struct rlane_totals totals;

    struct peer_lane *lanes; /* config.lanes; the first: questions without a body */
    struct ask *asks;        /* asks_len of them, a power of 2 */
    uint32_t asks_len;
    uint64_t seq; /* of the last question; its low bits name the ask */
    struct kvb_list idle;
    struct kvb_list over;
    uint32_t orphans; /* asks that only wait for their last word to come by */
    uint64_t bytes;   /* bodies of transfers in flight */

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

static struct peer_lane *lane_of(struct rlane *lane)
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
    free(ask->extents);
    ask->extents = NULL;
    kvb_list_push_back(&ask->peer->idle, &ask->link);
}

/* The transfer's end; the first one counts. None of its work is posted. */
static void finish(struct ask *ask, kvb_status_t status)
{
    struct peer *peer = ask->peer;
    kvb_assert(ask->work.posted == 0);
    if (ask->over) {
        return;
    }
    ask->over = true;
    ask->status = status;
    kvb_sched_timer_clear(peer->base.sched, &ask->deadline);
    kvb_list_push_back(&peer->over, &ask->over_link);
    kvb_sched_post(peer->base.sched, &peer->turn);
}

static void leave_moving(struct ask *ask)
{
    kvb_list_remove(&ask->moving);
}

/* Out of the lane's lists and counts. */
static void leave_lane(struct ask *ask)
{
    struct peer_lane *lane = ask->lane;
    kvb_list_remove(&ask->link);
    kvb_list_remove(&ask->work.link);
    leave_moving(ask);
    if (ask->state == ASK_QUEUED) {
        lane->queue_n--;
    } else {
        lane->begun_n--;
        lane->begun_text -= ask->text_len;
        if (ask->over) {
            ask->peer->orphans--;
        }
    }
    lane->load -= ask->cost;
    lane->used_ns = now_of(ask->peer);
    ask->lane = NULL;
}

/* The lane is through with it, and, as soon as its work is back, so is the transfer. */
static void end(struct ask *ask, kvb_status_t status)
{
    if (ask->work.posted > 0) {
        leave_moving(ask);
        if (!ask->ended) {
            ask->ended = true;
            ask->end_status = status;
        }
        return;
    }
    status = ask->ended ? ask->end_status : status;
    status = ask->stopping != KVB_OK ? ask->stopping : status;
    leave_lane(ask);
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
    bool answered = ask->answered;
    transfer->checksum = ask->checksum;
    transfer->impl.state = NULL;
    ask->transfer = NULL;
    peer->bytes -= ask->body_len;
    if (ask->state == ASK_ENDED) {
        ask_free(ask);
    }
    if (status != KVB_OK && status != KVB_ERR_CANCELED && !answered) {
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
        rlane_fail(&ask->lane->lane, KVB_ERR_TIMEOUT);
    }
}

/* What was granted is not used any more. */
static void send_done(struct ask *ask, kvb_status_t status)
{
    uint8_t done[RWIRE_DONE_LEN];
    struct iovec part = {done, sizeof done};
    rwire_done_pack(status, status == KVB_OK ? ask->checksum : 0, done);
    leave_moving(ask);
    ask->state = ASK_SETTLING;
    if (status != KVB_OK) {
        ask->peer->node.counted.abandoned++;
    }
    rlane_send(&ask->lane->lane, RWIRE_DONE, 0, ask->seq, &part, 1);
}

/* It was to stop, and none of its work is posted any more. */
static void stopped(struct ask *ask)
{
    if (ask->ended) {
        end(ask, ask->end_status);
        return;
    }
    if (ask->state == ASK_MOVING) {
        send_done(ask, KVB_ERR_CANCELED);
    }
    orphan(ask, ask->stopping);
}

/* Gives a transfer up, by then; its ask goes on alone if the node has heard of it. */
static void give_up(struct ask *ask, kvb_status_t why, uint64_t stop_ns)
{
    struct peer *peer = ask->peer;
    uint64_t now_ns = now_of(peer);
    if (ask->over) {
        return;
    }
    if (ask->stopping == KVB_OK) {
        ask->stopping = why;
    }
    if (ask->state == ASK_QUEUED) {
        end(ask, why);
    } else if (ask->work.posted == 0) {
        stopped(ask);
    } else if (stop_ns < ask->stop_ns) {
        leave_moving(ask); /* nothing more is posted */
        ask->stop_ns = stop_ns;
        uint64_t left_ns = stop_ns > now_ns ? stop_ns - now_ns : 0;
        kvb_sched_timer_set(peer->base.sched, &ask->deadline, now_ns + left_ns / 2);
    }
}

static void on_deadline(struct kvb_timer *timer)
{
    struct ask *ask = kvb_container_of(timer, struct ask, deadline);
    struct peer *peer = ask->peer;
    if (ask->stopping == KVB_OK) {
        give_up(ask, KVB_ERR_TIMEOUT, now_of(peer) + peer->config.stop_ms * KVB_NS_PER_MS);
        return;
    }
    rdev_count(peer->device, KVT_RDMA_QUIESCED);
    KVB_LOG_LIMITED(WARN, "rdma: a queue pair is given up to stop a transfer",
                    KVB_STR("address", peer->address), KVB_U64("lane", ask->lane->lane.generation));
    uint64_t now_ns = now_of(peer);
    uint64_t left_ns = ask->stop_ns > now_ns ? ask->stop_ns - now_ns : 0;
    rlane_fail_by(&ask->lane->lane, KVB_ERR_CANCELED, now_ns + left_ns / 2);
}

static void peer_cancel(struct kvt_transport *transport, struct kvt_transfer *transfer,
                        uint64_t stop_deadline_ns)
{
    (void)transport;
    give_up(transfer->impl.state, KVB_ERR_CANCELED, stop_deadline_ns);
}

/* ---- moving bytes ---- */

/* The next READ or WRITE of an ask: from or to one extent, no more pieces of memory than fit.
 * False: its memory has no registration. */
static bool next_work(struct ask *ask, uint64_t max, struct ibv_sge *sges, struct ibv_send_wr *wr)
{
    const struct kvt_rdma_memory *memory = ask->peer->config.memory;
    struct rwire_extent extent =
        rwire_extent_unpack(ask->extents + (size_t)ask->extent * RWIRE_EXTENT_LEN);
    uint64_t left = extent.len - ask->extent_offset;
    uint32_t sge_max = ask->get ? ask->peer->device->sge_read : ask->peer->device->info.sge;
    struct iovec pieces[SGE_MAX];
    int n;
    uint64_t len = kvt_body_peek(&ask->ahead, left < max ? left : max, pieces, &n, (int)sge_max);
    uint32_t used = 0;
    uint64_t total = 0;
    for (int i = 0; i < n && used < sge_max; i++) {
        uint64_t registered;
        const struct ibv_mr *mr = rmem_find(memory, pieces[i].iov_base, &registered);
        if (mr == NULL || registered < pieces[i].iov_len) {
            return false;
        }
        sges[used++] = (struct ibv_sge){.addr = (uintptr_t)pieces[i].iov_base,
                                        .length = (uint32_t)pieces[i].iov_len,
                                        .lkey = mr->lkey};
        total += pieces[i].iov_len;
    }
    kvb_assert(total == len);
    *wr = (struct ibv_send_wr){
        .sg_list = sges,
        .num_sge = (int)used,
        .opcode = ask->get ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
        .wr.rdma = {.remote_addr = extent.address + ask->extent_offset, .rkey = extent.key},
    };
    kvt_body_skip(&ask->ahead, total);
    ask->extent_offset += (uint32_t)total;
    if (ask->extent_offset == extent.len) {
        ask->extent++;
        ask->extent_offset = 0;
    }
    return true;
}

struct place { /* of an ask, before a work request of its batch */
    struct kvt_body ahead;
    uint32_t extent, extent_offset;
};

static struct place place_of(const struct ask *ask)
{
    return (struct place){ask->ahead, ask->extent, ask->extent_offset};
}

static void go_back(struct ask *ask, const struct place *place)
{
    ask->ahead = place->ahead;
    ask->extent = place->extent;
    ask->extent_offset = place->extent_offset;
}

/* Posts what may be posted of it, one batch. NOT OK: it cannot go on. */
static kvb_status_t post_work(struct ask *ask)
{
    struct rlane *lane = &ask->lane->lane;
    struct ibv_sge sges[BATCH][SGE_MAX];
    struct ibv_send_wr wrs[BATCH];
    struct place before[BATCH];
    uint32_t n = 0;
    uint64_t bytes = 0;
    uint32_t room = rlane_room(lane);
    room = room < BATCH ? room : BATCH;
    while (n < room && ask->ahead.left > 0 && lane->out.bytes + bytes < POSTED_BYTES) {
        before[n] = place_of(ask);
        if (!next_work(ask, WORK_BYTES, sges[n], &wrs[n])) {
            go_back(ask, &before[n]);
            return KVB_ERR_GENERATION;
        }
        bytes += before[n].ahead.left - ask->ahead.left;
        n++;
    }
    if (n > 0) {
        uint32_t taken = rlane_post(lane, &ask->work, wrs, n);
        if (taken < n) {
            go_back(ask, &before[taken]);
        }
    }
    return KVB_OK;
}

/* Hashes what is there to be hashed, a slice of it; *budget: of the turn. */
static void hash_some(struct ask *ask, uint64_t *budget)
{
    if (ask->unhashed.left == 0) {
        return;
    }
    uint64_t hashed = ask->body_len - ask->unhashed.left;
    uint64_t there = ask->get ? ask->work.bytes - hashed : ask->unhashed.left;
    uint64_t len = there < HASH_SLICE ? there : HASH_SLICE;
    len = len < *budget ? len : *budget;
    *budget -= len;
    while (len > 0) {
        struct iovec pieces[PIECES];
        int n;
        uint64_t some = kvt_body_peek(&ask->unhashed, len, pieces, &n, PIECES);
        for (int i = 0; i < n; i++) {
            (void)XXH3_64bits_update(&ask->hash, pieces[i].iov_base, pieces[i].iov_len);
        }
        kvt_body_skip(&ask->unhashed, some);
        len -= some;
    }
}

static void moved(struct ask *ask)
{
    struct peer *peer = ask->peer;
    bool hashed = !peer->config.unhashed;
    uint64_t digest = hashed ? XXH3_64bits_digest(&ask->hash) : 0;
    kvb_status_t status = KVB_OK;
    if (hashed && ask->get && digest != ask->checksum && !kvb_fault_all(KVB_FAULT_TICKET_IGNORED)) {
        peer->node.counted.checksums++;
        status = KVB_ERR_CHECKSUM;
    }
    ask->end_status = status; /* unless the node's last word is worse */
    ask->checksum = ask->get ? ask->checksum : digest;
    if (ask->get) {
        peer->totals.bytes_received += ask->body_len;
    } else {
        peer->totals.bytes_sent += ask->body_len;
    }
    send_done(ask, status);
}

/* Work of it came back, or there is room for more. */
static void move(struct ask *ask, uint64_t *budget)
{
    kvb_status_t status = post_work(ask);
    if (status != KVB_OK) {
        give_up(ask, status, now_of(ask->peer) + ask->peer->config.stop_ms * KVB_NS_PER_MS);
        return;
    }
    hash_some(ask, budget);
    /* A get's bytes have come back by then; a put's may still be on the way, ahead of DONE. */
    if (ask->ahead.left == 0 && ask->unhashed.left == 0 &&
        (!ask->get || ask->work.bytes == ask->body_len)) {
        moved(ask);
    }
}

static bool can_hash(const struct ask *ask)
{
    return ask->unhashed.left > 0 &&
           (!ask->get || ask->work.bytes > ask->body_len - ask->unhashed.left);
}

static void lane_turn(struct rlane *base)
{
    struct peer_lane *lane = lane_of(base);
    struct kvb_list now;
    uint64_t budget = HASH_TURN;
    bool more = false;
    kvb_list_init(&now);
    for (struct kvb_list *link; (link = kvb_list_pop(&lane->moving)) != NULL;) {
        kvb_list_push_back(&now, link);
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&now)) != NULL;) {
        struct ask *ask = kvb_container_of(link, struct ask, moving);
        kvb_list_push_back(&lane->moving, &ask->moving);
        move(ask, &budget);
        more = more || (ask->state == ASK_MOVING && !kvb_list_empty(&ask->moving) && can_hash(ask));
    }
    struct kvb_list *first = kvb_list_pop(&lane->moving);
    if (first != NULL) { /* another one has the first say next time */
        kvb_list_push_back(&lane->moving, first);
    }
    if (more) {
        rlane_kick(base);
    }
}

static void lane_work(struct rlane *base, struct rwork *work)
{
    (void)base;
    struct ask *ask = kvb_container_of(work, struct ask, work);
    if (work->status != KVB_OK && ask->stopping == KVB_OK) {
        ask->stopping = work->status; /* the lane is lost */
        leave_moving(ask);
    }
    if (work->posted > 0 || ask->state == ASK_ENDED) {
        return;
    }
    if (ask->ended) {
        end(ask, ask->end_status);
    } else if (ask->stopping != KVB_OK && work->status == KVB_OK && !ask->over) {
        stopped(ask);
    } /* or else it ends with its lane */
}

static void granted(struct ask *ask, const uint8_t *extents, uint32_t n)
{
    struct peer_lane *lane = ask->lane;
    ask->state = ASK_MOVING;
    if (ask->over) { /* nobody wants it any more */
        send_done(ask, KVB_ERR_CANCELED);
        return;
    }
    ask->extents = malloc((size_t)n * RWIRE_EXTENT_LEN);
    if (ask->extents == NULL) {
        give_up(ask, KVB_ERR_NO_MEMORY, now_of(ask->peer));
        return;
    }
    memcpy(ask->extents, extents, (size_t)n * RWIRE_EXTENT_LEN);
    ask->extents_n = n;
    ask->extent = ask->extent_offset = 0;
    ask->work = (struct rwork){.status = KVB_OK};
    kvb_list_init(&ask->work.link);
    ask->ahead = ask->unhashed = kvt_body_slices(ask->transfer->slices, ask->body_len);
    if (ask->peer->config.unhashed) {
        ask->unhashed.left = 0;
    }
    (void)XXH3_64bits_reset(&ask->hash);
    kvb_list_push_back(&lane->moving, &ask->moving);
    rlane_kick(&lane->lane);
}

/* ---- lanes: choosing and opening ---- */

static const struct rlane_ops lane_ops;

static bool stands(const struct peer_lane *lane)
{
    return lane->phase == LANE_ADMITTED && lane->lane.lost == KVB_OK;
}

/* The lane of an engine rank: its own, or a free one that becomes it, or, if there are more ranks
 * than lanes, the one with the least to do. */
static struct peer_lane *lane_of_owner(struct peer *peer, uint64_t owner)
{
    struct peer_lane *unused = NULL;
    struct peer_lane *least = NULL;
    for (uint32_t i = 1; i < peer->config.lanes; i++) {
        struct peer_lane *lane = &peer->lanes[i];
        if (lane->owned && lane->owner == owner) {
            return lane;
        }
        if (unused == NULL && (!lane->owned || (lane->phase == LANE_CLOSED && lane->load == 0))) {
            unused = lane;
        }
        if (least == NULL || lane->load < least->load) {
            least = lane;
        }
    }
    if (unused != NULL) {
        unused->owned = true;
        unused->owner = owner;
        unused->retry_ns = 0;
        unused->failures = 0;
        return unused;
    }
    return least;
}

static void lane_gone(struct peer_lane *lane, bool admitted, uint64_t lived_ns, kvb_status_t why);

static void fail_queue(struct peer_lane *lane, kvb_status_t why)
{
    kvb_list_each(&lane->queue, link)
    {
        end(kvb_container_of(link, struct ask, link), why);
    }
}

static void connect_lane(struct peer_lane *lane)
{
    struct peer *peer = lane->peer;
    kvb_assert(lane->phase == LANE_CLOSED);
    kvb_status_t status = rlane_connect(&lane->lane, &lane_ops, &peer->config.common, &peer->end,
                                        &peer->totals, &peer->to);
    if (status != KVB_OK) {
        lane_gone(lane, false, 0, status);
        return;
    }
    lane->phase = LANE_MAKING;
}

static bool connecting(const struct peer *peer)
{
    for (uint32_t i = 0; i < peer->config.lanes; i++) {
        enum lane_phase phase = peer->lanes[i].phase;
        if (phase != LANE_CLOSED && phase != LANE_ADMITTED) {
            return true;
        }
    }
    return false;
}

static void on_retry(struct kvb_timer *timer)
{
    struct peer *peer = kvb_container_of(timer, struct peer, retry);
    if (peer->lanes[0].phase == LANE_CLOSED) {
        connect_lane(&peer->lanes[0]);
    }
}

/* A connection came to nothing, or to its end. */
static void lane_gone(struct peer_lane *lane, bool admitted, uint64_t lived_ns, kvb_status_t why)
{
    struct peer *peer = lane->peer;
    kvt_standing_gone(&peer->node, admitted, why);
    bool drop = lane->lane.reaction == RCAUSE_DROP;
    lane->failures = lived_ns >= peer->config.backoff_max_ms * KVB_NS_PER_MS ? 1
                     : drop                                                  ? 31
                                                                             : lane->failures + 1;
    /* Given up by us: nothing is wrong with the node. (It may say so itself when it refuses.) */
    if (admitted && why == KVB_ERR_CANCELED) {
        lane->failures = 0;
        lane->retry_ns = now_of(peer);
    } else {
        lane->retry_ns =
            now_of(peer) + kvt_backoff_ns(peer->base.sched->random, peer->config.backoff_ms,
                                          peer->config.backoff_max_ms, lane->failures);
    }
    fail_queue(lane, admitted ? KVB_ERR_DISCONNECTED : KVB_ERR_UNAVAILABLE);
    if (lane == &peer->lanes[0]) { /* the one that is always to stand */
        kvb_sched_timer_set(peer->base.sched, &peer->retry, lane->retry_ns);
    }
    if (peer->node.admitted > 0 || connecting(peer)) {
        return;
    }
    peer->node.reached = true;
    kvb_sched_post(peer->base.sched, &peer->turn);
}

static void on_idle_check(struct kvb_timer *timer)
{
    struct peer *peer = kvb_container_of(timer, struct peer, idle_check);
    uint64_t idle_ns = peer->config.idle_ms * KVB_NS_PER_MS;
    uint64_t now_ns = now_of(peer);
    for (uint32_t i = 1; i < peer->config.lanes; i++) {
        struct peer_lane *lane = &peer->lanes[i];
        if (stands(lane) && lane->load == 0 && now_ns >= lane->used_ns + idle_ns) {
            rlane_close(&lane->lane);
            lane->phase = LANE_CLOSED;
            lane->owned = false;
            peer->node.admitted--;
        }
    }
    if (peer->node.admitted > 1) {
        kvb_sched_timer_set(peer->base.sched, timer, now_ns + idle_ns / 4 + 1);
    }
}

/* ---- starting ---- */

/* Without its device nothing is registered, and nothing starts: UNAVAILABLE, of which start tells.
 */
static bool peer_reaches(struct kvt_transport *transport, const struct kvt_region *region)
{
    const struct peer *peer = of(transport);
    return kvt_rdma_device_dead(peer->device) || rmem_covers(peer->config.memory, region);
}

static void feed(struct peer_lane *lane);

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
    if (peer->node.reached && peer->node.admitted == 0) {
        return KVB_ERR_UNAVAILABLE;
    }
    struct kvb_list *link = kvb_list_first(&peer->idle);
    uint64_t room = peer->config.bytes_max > peer->bytes ? peer->config.bytes_max - peer->bytes : 0;
    if (link == NULL || (peer->bytes > 0 && body_len > room)) {
        return KVB_ERR_AGAIN;
    }
    struct peer_lane *lane = body_len == 0
                                 ? &peer->lanes[0]
                                 : lane_of_owner(peer, transfer->slices[0].region->desc.owner);
    if (lane->phase == LANE_CLOSED && now_of(peer) < lane->retry_ns) {
        return KVB_ERR_UNAVAILABLE;
    }
    struct ask *ask = kvb_container_of(link, struct ask, link);
    kvb_list_remove(link);
    ask->transfer = transfer;
    ask->lane = lane;
    ask->state = ASK_QUEUED;
    ask->over = ask->answered = ask->ended = false;
    ask->stopping = ask->end_status = KVB_OK;
    ask->stop_ns = KVB_NEVER;
    ask->get = transfer->direction == KVT_FROM_SHARE && body_len > 0;
    peer->seq += peer->asks_len;
    ask->seq = peer->seq + (uint64_t)(ask - peer->asks);
    ask->type = transfer->type;
    ask->body_len = body_len;
    ask->text_len = (uint32_t)transfer->ask.len;
    ask->cost = ASK_COST + transfer->ask.len + body_len;
    ask->checksum = 0;
    ask->answer_cap = transfer->answer_cap;
    ask->work = (struct rwork){.status = KVB_OK};
    kvb_list_init(&ask->work.link);
    transfer->answer_len = 0;
    transfer->impl.state = ask;
    peer->bytes += body_len;
    peer->node.counted.transfers++;
    lane->load += ask->cost;
    lane->queue_n++;
    kvb_list_push_back(&lane->queue, &ask->link);
    kvb_sched_timer_set(transport->sched, &ask->deadline, transfer->deadline_ns);
    if (lane->phase == LANE_CLOSED) {
        connect_lane(lane);
    } else {
        feed(lane);
    }
    return KVB_OK;
}

/* Sends the questions that wait, as many as the node takes at once. */
static void feed(struct peer_lane *lane)
{
    while (stands(lane)) {
        struct kvb_list *link = kvb_list_first(&lane->queue);
        struct ask *ask = link != NULL ? kvb_container_of(link, struct ask, link) : NULL;
        if (ask == NULL || lane->begun_n >= lane->lane.agreed.requests ||
            (lane->begun_n > 0 && lane->begun_text + ask->text_len > TEXT_MAX)) {
            return;
        }
        uint8_t head[RWIRE_QUESTION_LEN];
        const struct kvt_transfer *transfer = ask->transfer;
        union { /* an iovec to be read has no const */
            const uint8_t *in;
            void *out;
        } text = {.in = transfer->ask.data};
        struct iovec parts[] = {{head, sizeof head}, {text.out, transfer->ask.len}};
        uint32_t body_len = ask->get ? 0 : (uint32_t)ask->body_len;
        rwire_question_head_pack(lane->peer->config.unhashed && body_len > 0, body_len, head);
        kvb_list_remove(link);
        kvb_list_push_back(&lane->begun, link);
        lane->queue_n--;
        lane->begun_n++;
        lane->begun_text += ask->text_len;
        ask->state = ASK_ASKED;
        rlane_send(&lane->lane, ask->type, 0, ask->seq, parts, 2);
    }
}

/* ---- messages ---- */

/* The ask that a message is about; NULL: none that this lane could hear of. */
static struct ask *ask_of(struct peer_lane *lane, uint64_t seq)
{
    struct peer *peer = lane->peer;
    struct ask *ask = &peer->asks[seq & (peer->asks_len - 1)];
    bool right = ask->lane == lane && ask->seq == seq && ask->state >= ASK_ASKED &&
                 ask->state <= ASK_SETTLING && !ask->ended;
    return right ? ask : NULL;
}

static void settle(struct ask *ask, kvb_status_t status)
{
    struct peer_lane *lane = ask->lane;
    ask->answered = !ask->over && ask->stopping == KVB_OK;
    end(ask, status);
    feed(lane);
}

/* OK to a put: only after all of its bytes were sent and said to be. */
static bool answer_fits(const struct ask *ask, const struct rwire_answer *answer)
{
    bool grants = answer->extents_n > 0;
    bool put = ask->body_len > 0 && !ask->get;
    if (answer->text_len > ask->answer_cap || ask->state == ASK_MOVING ||
        (ask->state == ASK_SETTLING && !put)) {
        return false;
    }
    if (answer->status == KVB_OK && put && ask->state != ASK_SETTLING) {
        return false;
    }
    return grants == (ask->get && answer->status == KVB_OK);
}

static kvb_status_t on_answer(struct peer_lane *lane, const struct kvb_frame *frame,
                              const uint8_t *payload)
{
    struct ask *ask = ask_of(lane, frame->seq);
    struct rwire_answer answer;
    if (ask == NULL || ask->type != frame->type ||
        rwire_answer_unpack(payload, frame->len, &answer) != KVB_OK) {
        return KVB_ERR_PROTOCOL;
    }
    if (!answer_fits(ask, &answer) ||
        (answer.extents_n > 0 &&
         rwire_extents_check(answer.extents, answer.extents_n, ask->body_len) != KVB_OK)) {
        if (ask->work.posted == 0) {
            orphan(ask, KVB_ERR_PROTOCOL);
        } else if (ask->stopping == KVB_OK) {
            ask->stopping = KVB_ERR_PROTOCOL;
        }
        return KVB_ERR_PROTOCOL;
    }
    if (!ask->over) {
        if (answer.text_len > 0) {
            memcpy(ask->transfer->answer, answer.text, answer.text_len);
        }
        ask->transfer->answer_len = answer.text_len;
    }
    if (answer.extents_n > 0) {
        ask->checksum = answer.checksum;
        granted(ask, answer.extents, answer.extents_n);
        return KVB_OK;
    }
    settle(ask, answer.status);
    return KVB_OK;
}

static kvb_status_t on_grant(struct peer_lane *lane, const struct kvb_frame *frame,
                             const uint8_t *payload)
{
    struct ask *ask = ask_of(lane, frame->seq);
    uint32_t n;
    const uint8_t *extents;
    if (ask == NULL || ask->state != ASK_ASKED || ask->get || ask->body_len == 0 ||
        rwire_grant_unpack(payload, frame->len, &n, &extents) != KVB_OK ||
        rwire_extents_check(extents, n, ask->body_len) != KVB_OK) {
        return KVB_ERR_PROTOCOL;
    }
    granted(ask, extents, n);
    return KVB_OK;
}

static kvb_status_t on_verdict(struct peer_lane *lane, const struct kvb_frame *frame,
                               const uint8_t *payload)
{
    struct ask *ask = ask_of(lane, frame->seq);
    kvb_status_t status;
    if (ask == NULL || !ask->get || ask->state != ASK_SETTLING ||
        rwire_verdict_unpack(payload, &status) != KVB_OK) {
        return KVB_ERR_PROTOCOL;
    }
    if (status != KVB_OK) {
        ask->peer->node.counted.abandoned++;
    }
    settle(ask, status != KVB_OK ? status : ask->end_status);
    return KVB_OK;
}

/* ---- the handshake ---- */

static void send_shake(struct peer_lane *lane, enum rwire_message type, uint8_t *payload,
                       size_t len)
{
    struct iovec part = {payload, len};
    rlane_send(&lane->lane, (uint16_t)type, 0, 1, &part, 1);
}

static void lane_opened(struct rlane *base)
{
    struct peer_lane *lane = lane_of(base);
    lane->phase = LANE_CHALLENGED;
    lane->shake = (struct kvt_handshake){0};
    kvt_greeting_make(&kvt_rdma_protocol, &lane->peer->config.common,
                      lane->peer->base.sched->random, lane->shake.hello, &lane->shake.hello_len);
    send_shake(lane, RWIRE_HELLO, lane->shake.hello, lane->shake.hello_len);
}

static kvb_status_t on_challenge(struct peer_lane *lane, const uint8_t *payload, size_t len)
{
    const struct kvt_peer_common *common = &lane->peer->config.common;
    uint8_t proof[KVT_PROOF_LEN];
    kvb_status_t status =
        kvt_challenge_take(&kvt_rdma_protocol, common, &lane->shake, payload, len, proof);
    if (status == KVB_OK) {
        lane->phase = LANE_PROVING;
        send_shake(lane, RWIRE_PROOF, proof, sizeof proof);
    }
    return status;
}

/* A node that began another life is another node: what stands to the old one is worth nothing. */
static void leave_old_life(struct peer *peer, const struct peer_lane *of_new)
{
    for (uint32_t i = 0; i < peer->config.lanes; i++) {
        struct peer_lane *lane = &peer->lanes[i];
        if (lane != of_new && lane->phase == LANE_ADMITTED) {
            rlane_fail(&lane->lane, KVB_ERR_DISCONNECTED);
        }
    }
}

static kvb_status_t on_admitted(struct peer_lane *lane, const uint8_t *payload, size_t len)
{
    struct peer *peer = lane->peer;
    struct kvt_identity identity;
    kvb_status_t status = kvt_identity_take(&kvt_rdma_protocol, &peer->config.common, &lane->shake,
                                            payload, len, &identity);
    if (status == KVB_OK && peer->config.unhashed &&
        lane->shake.version < KVT_RDMA_VERSION_UNHASHED) {
        status = KVB_ERR_UNSUPPORTED;
    }
    if (status != KVB_OK) {
        return status;
    }
    if (peer->node.admitted > 0 && identity.incarnation != peer->node.hello.incarnation) {
        leave_old_life(peer, lane);
    }
    kvt_standing_admitted(&peer->node, &identity, &lane->shake);
    lane->phase = LANE_ADMITTED;
    lane->admitted_ns = lane->used_ns = now_of(peer);
    rlane_admit(&lane->lane, lane->shake.their_silence_ms);
    feed(lane);
    if (peer->node.admitted > 1 && !kvb_timer_armed(&peer->idle_check)) {
        kvb_sched_timer_set(peer->base.sched, &peer->idle_check,
                            now_of(peer) + peer->config.idle_ms * KVB_NS_PER_MS);
    }
    kvb_sched_post(peer->base.sched, &peer->turn);
    return KVB_OK;
}

static kvb_status_t lane_message(struct rlane *base, const struct kvb_frame *frame,
                                 const uint8_t *payload)
{
    struct peer_lane *lane = lane_of(base);
    if (frame->type <= KVT_TYPE_MAX) {
        return (frame->flags & KVB_FRAME_REPLY) != 0 ? on_answer(lane, frame, payload)
                                                     : KVB_ERR_PROTOCOL;
    }
    switch (frame->type) {
    case RWIRE_GRANT:
        return on_grant(lane, frame, payload);
    case RWIRE_VERDICT:
        return on_verdict(lane, frame, payload);
    case RWIRE_CHALLENGE:
        return lane->phase == LANE_CHALLENGED ? on_challenge(lane, payload, frame->len)
                                              : KVB_ERR_PROTOCOL;
    case RWIRE_ADMITTED:
        return lane->phase == LANE_PROVING ? on_admitted(lane, payload, frame->len)
                                           : KVB_ERR_PROTOCOL;
    case RWIRE_REFUSED:
        return rwire_refusal(payload);
    default:
        return KVB_ERR_PROTOCOL;
    }
}

/* ---- the end of a lane ---- */

static void lane_lost(struct rlane *base, kvb_status_t why)
{
    struct peer_lane *lane = lane_of(base);
    struct peer *peer = lane->peer;
    bool admitted = lane->phase == LANE_ADMITTED;

    KVB_LOG_LIMITED(DEBUG, "rdma: a connection to a node is lost",
                    KVB_STR("address", peer->address), KVB_STATUS(why));
    lane->phase = LANE_CLOSED;
    kvb_list_each(&lane->begun, link)
    {
        end(kvb_container_of(link, struct ask, link), KVB_ERR_DISCONNECTED);
    }
    peer->node.admitted -= admitted ? 1 : 0;
    lane_gone(lane, admitted, admitted ? now_of(peer) - lane->admitted_ns : 0, why);
}

static const struct rlane_ops lane_ops = {
    .opened = lane_opened,
    .message = lane_message,
    .work = lane_work,
    .turn = lane_turn,
    .lost = lane_lost,
};

static void on_event(struct rend *end, const struct rdma_cm_event *event, const uint8_t *data,
                     size_t len)
{
    (void)end;
    struct rlane *lane = event->id->context;
    rlane_event(lane, event, data, len);
}

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
        free(ask->extents);
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
        rlane_close(&peer->lanes[i].lane); /* with it, all that is posted */
    }
    end_all(peer);
    kvb_sched_unpost(&peer->turn);
    kvb_sched_timer_clear(transport->sched, &peer->retry);
    kvb_sched_timer_clear(transport->sched, &peer->idle_check);
    rend_close(&peer->end);
    free(peer->address);
    free(peer->asks);
    free(peer->lanes);
    free(peer);
}

static const char *peer_rdma_address(const struct kvt_transport *transport)
{
    return of(transport)->address;
}

static const struct kvt_transport_ops peer_ops = {
    .name = "rdma",
    .capabilities = KVT_CAP_ASKS | KVT_CAP_PINS_MEMORY,
    .start = peer_start,
    .cancel = peer_cancel,
    .rdma_address = peer_rdma_address,
    .reaches = peer_reaches,
    .destroy = peer_destroy,
};

static bool config_defaults(struct kvt_rdma_peer_config *config)
{
    kvt_default_u32(&config->lanes, 17);
    kvt_default_u32(&config->in_flight_max, 1024);
    kvt_default_u32(&config->stop_ms, 200);
    kvt_default_u32(&config->backoff_ms, 50);
    kvt_default_u32(&config->backoff_max_ms, 2000);
    kvt_default_u32(&config->idle_ms, 60000);
    config->bytes_max = config->bytes_max != 0 ? config->bytes_max : 256ull << 20;
    return kvt_common_defaults(&config->common) && config->lanes >= 2 &&
           config->lanes <= LANES_MAX && config->in_flight_max <= 1u << 20;
}

static void lane_init(struct peer_lane *lane, struct peer *peer)
{
    rlane_init(&lane->lane);
    lane->peer = peer;
    lane->phase = LANE_CLOSED;
    kvb_list_init(&lane->queue);
    kvb_list_init(&lane->begun);
    kvb_list_init(&lane->moving);
}

static void peer_init(struct peer *peer)
{
    kvb_event_init(&peer->turn, on_turn);
    kvb_timer_init(&peer->retry, on_retry);
    kvb_timer_init(&peer->idle_check, on_idle_check);
    kvb_list_init(&peer->idle);
    kvb_list_init(&peer->over);
    for (uint32_t i = 0; i < peer->config.lanes; i++) {
        lane_init(&peer->lanes[i], peer);
    }
    for (uint32_t i = 0; i < peer->asks_len; i++) {
        struct ask *ask = &peer->asks[i];
        ask->peer = peer;
        ask->lane = NULL;
        ask->transfer = NULL;
        ask->extents = NULL;
        ask->state = ASK_ENDED;
        ask->seq = 0;
        kvb_list_init(&ask->over_link);
        kvb_list_init(&ask->moving);
        kvb_timer_init(&ask->deadline, on_deadline);
        kvb_list_push_back(&peer->idle, &ask->link);
    }
}

kvb_status_t kvt_rdma_peer_create(struct kvt_regions *regions,
                                  const struct kvt_rdma_peer_config *given,
                                  struct kvt_transport **transport_p)
{
    struct kvt_rdma_peer_config config = *given;
    struct sockaddr_storage to;
    if (!config_defaults(&config) || rdev_address_parse(config.address, &to) != KVB_OK) {
        return KVB_ERR_INVALID;
    }
    uint32_t asks_len = 16;
    while (asks_len < 2 * config.in_flight_max) { /* half of them may be orphans */
        asks_len *= 2;
    }
    struct peer *peer = calloc(1, sizeof *peer);
    char *address = strdup(config.address);
    struct peer_lane *lanes = calloc(config.lanes, sizeof *lanes);
    struct ask *asks = aligned_alloc(_Alignof(struct ask), asks_len * sizeof *asks);
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    if (peer == NULL || address == NULL || lanes == NULL || asks == NULL) {
        goto err_free;
    }
    peer->config = config;
    peer->config.address = NULL; /* peer->address is */
    peer->node = (struct kvt_standing){.by = "rdma", .ops = config.ops, .ctx = config.ctx};
    peer->device = rmem_device(config.memory);
    peer->to = to;
    peer->address = address;
    peer->lanes = lanes;
    peer->asks = asks;
    peer->asks_len = asks_len;
    status = rend_open(&peer->end, peer->device, regions->sched, config.io, config.lanes);
    if (status != KVB_OK) {
        goto err_free;
    }
    peer->end.event = on_event;
    peer_init(peer);
    kvt_transport_init(&peer->base, &peer_ops, regions, config.in_flight_max);
    connect_lane(&peer->lanes[0]);
    *transport_p = &peer->base;
    return KVB_OK;

err_free:
    free(asks);
    free(lanes);
    free(address);
    free(peer);
    return status;
}

kvb_status_t kvt_rdma_peer_set_address(struct kvt_transport *transport, const char *address)
{
    struct peer *peer = of(transport);
    struct sockaddr_storage to;
    if (rdev_address_parse(address, &to) != KVB_OK) {
        return KVB_ERR_INVALID;
    }
    char *copy = strdup(address);
    if (copy == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    free(peer->address);
    peer->address = copy;
    peer->to = to;
    if (peer->node.admitted > 0) {
        return KVB_OK;
    }
    for (uint32_t i = 0; i < peer->config.lanes; i++) { /* on their way to the old one */
        struct peer_lane *lane = &peer->lanes[i];
        rlane_close(&lane->lane);
        lane->phase = LANE_CLOSED;
        lane->failures = 0;
        lane->retry_ns = 0;
    }
    kvb_sched_timer_clear(transport->sched, &peer->retry);
    for (uint32_t i = 0; i < peer->config.lanes; i++) {
        if (i == 0 || peer->lanes[i].queue_n > 0) {
            connect_lane(&peer->lanes[i]);
        }
    }
    return KVB_OK;
}

void kvt_rdma_peer_stats(const struct kvt_transport *transport, struct kvt_peer_stats *stats_p)
{
    const struct peer *peer = of(transport);
    kvt_stats_of(&peer->node.counted, peer->node.admitted, peer->totals.heard_ns,
                 peer->totals.bytes_sent, peer->totals.bytes_received, stats_p);
}
