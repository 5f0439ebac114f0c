/* SPDX-License-Identifier: Apache-2.0 */
#include "lane.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Buffers for messages that do not travel inline. */
#define SEND_BUFFERS 32u
/* Flushed work comes back within it, or the queue pair is destroyed. */
#define FLUSH_MS 100u
/* Looks again at a queue pair that cannot be destroyed, or takes no work just now. */
#define AGAIN_MS 2u
/* Of 4.096 us * 2^n: 0.64 ms (table 45 of the InfiniBand specification): how long a sender waits
 * that found no room. */
#define MIN_RNR_TIMER 12u
#define POLL_STEP     32
#define INLINE_MAX    1024u

struct rmsg {
    struct kvb_list link;
    uint32_t at, len;
    uint8_t data[];
};

static const char *const state_texts[] = {
#define X(name, text) [RLANE_##name] = (text),
    RLANE_STATES(X)
#undef X
};

static uint64_t now_of(const struct rlane *lane)
{
    return kvb_now_ns(lane->end->sched->clock);
}

static uint64_t ms(uint64_t n)
{
    return n * KVB_NS_PER_MS;
}

static const struct kvt_verbs *verbs_of(const struct rlane *lane)
{
    return lane->end->device->verbs;
}

static const struct kvt_rdma_info *info_of(const struct rlane *lane)
{
    return &lane->end->device->info;
}

static void set_state(struct rlane *lane, enum rlane_state state)
{
    static const bool legal[][RLANE_FLUSHING + 1] = {
        [RLANE_CLOSED] = {[RLANE_RESOLVING] = true, [RLANE_ACCEPTED] = true},
        [RLANE_RESOLVING] = {[RLANE_ROUTING] = true, [RLANE_CLOSED] = true},
        [RLANE_ROUTING] = {[RLANE_CONNECTING] = true, [RLANE_CLOSED] = true},
        [RLANE_CONNECTING] = {[RLANE_OPEN] = true, [RLANE_FLUSHING] = true},
        [RLANE_ACCEPTED] = {[RLANE_OPEN] = true, [RLANE_FLUSHING] = true},
        [RLANE_OPEN] = {[RLANE_FLUSHING] = true},
        [RLANE_FLUSHING] = {[RLANE_CLOSED] = true},
    };
    kvb_assert(legal[lane->state][state]);
    KVB_LOG(DEBUG, "rdma lane", KVB_U64("lane", lane->generation),
            KVB_U64("qp", lane->qp != NULL ? lane->qp->qp_num : 0),
            KVB_STR("from", state_texts[lane->state]), KVB_STR("to", state_texts[state]),
            KVB_STATUS(lane->lost));
    lane->state = state;
}

static void lose(struct rlane *lane, kvb_status_t why)
{
    if (lane->lost == KVB_OK) {
        lane->lost = why;
    }
}

/* For a cause that is counted and has its reaction. */
static void lose_for(struct rlane *lane, const struct rcause *row)
{
    rdev_count(lane->end->device, row->cause);
    if (row->reaction == RCAUSE_DEAD) {
        rdev_die(lane->end->device, kvt_rdma_cause_text(row->cause));
    }
    if (row->reaction != RCAUSE_NOTHING && lane->lost == KVB_OK) {
        lane->reaction = row->reaction;
        lose(lane, row->lane);
    }
}

static bool usable(const struct rlane *lane)
{
    return lane->lost == KVB_OK && (lane->state == RLANE_OPEN || lane->state == RLANE_ACCEPTED);
}

/* ---- the send queue ---- */

static uint32_t under_way(const struct rlane *lane)
{
    return lane->out.head - lane->out.tail;
}

static struct rslot *slot_of(struct rlane *lane, uint32_t number)
{
    return &lane->out.slots[number & (lane->out.slots_n - 1)];
}

/* A slot, and whether its work request must be signalled (last: something waits for it). */
static bool slot_take(struct rlane *lane, struct rwork *work, uint32_t bytes, int32_t buffer,
                      bool last, uint64_t *wr_id_p)
{
    uint32_t number = lane->out.head++;
    *slot_of(lane, number) = (struct rslot){.work = work, .bytes = bytes, .buffer = buffer};
    *wr_id_p = (uint64_t)lane->generation << 32 | number;
    lane->out.run++;
    lane->out.run_buffers += buffer >= 0 ? 1 : 0;
    bool signal = last || lane->out.run >= info_of(lane)->depth / 4 ||
                  lane->out.run_buffers >= lane->out.buffers_n / 2;
    if (signal) {
        lane->out.run = lane->out.run_buffers = 0;
    }
    return signal;
}

/* Those that were not taken by the queue; the newest ones. */
static void slots_return(struct rlane *lane, uint32_t n)
{
    lane->out.head -= n;
    /* Whether the last one that stays is signalled is not known: the next one will be. */
    lane->out.run = info_of(lane)->depth / 4;
}

static void progress(struct rlane *lane, struct rwork *work)
{
    if (kvb_list_empty(&work->link)) {
        kvb_list_push_back(&lane->progressed, &work->link);
    }
}

static void slot_retire(struct rlane *lane, struct rslot *slot, kvb_status_t status)
{
    if (slot->buffer >= 0) {
        lane->out.free[lane->out.free_n++] = slot->buffer;
    }
    struct rwork *work = slot->work;
    if (work == NULL) {
        return;
    }
    kvb_assert(work->posted > 0 && lane->out.works > 0);
    work->posted--;
    lane->out.works--;
    lane->out.bytes -= slot->bytes;
    if (status != KVB_OK) {
        work->status = work->status == KVB_OK ? status : work->status;
    } else if (work->status == KVB_OK) {
        work->bytes += slot->bytes;
    }
    progress(lane, work);
}

static void on_sent(struct rlane *lane, const struct ibv_wc *wc)
{
    uint32_t number = (uint32_t)wc->wr_id;
    if ((uint32_t)(wc->wr_id >> 32) != lane->generation ||
        number - lane->out.tail >= under_way(lane)) {
        return; /* of nothing that is under way */
    }
    kvb_status_t status = KVB_OK;
    if (wc->status != IBV_WC_SUCCESS) {
        const struct rcause *row = rcause_of_wc(wc->status);
        status = row->transfer;
        lose_for(lane, row);
    }
    while (lane->out.tail != number) { /* older ones ended well, or they would have said so */
        slot_retire(lane, slot_of(lane, lane->out.tail++), KVB_OK);
    }
    slot_retire(lane, slot_of(lane, lane->out.tail++), status);
}

void rlane_poll(struct rlane *lane)
{
    struct ibv_wc wcs[POLL_STEP];
    if (lane->cq == NULL) {
        return;
    }
    int n;
    do { /* ends: no more than the queue is long */
        n = verbs_of(lane)->ibv_poll_cq(lane->cq, POLL_STEP, wcs);
        for (int i = 0; i < n; i++) {
            on_sent(lane, &wcs[i]);
        }
    } while (n == POLL_STEP);
    if (n < 0) {
        KVB_LOG_LIMITED(ERROR, "rdma: completions cannot be read",
                        KVB_U64("lane", lane->generation));
        lose(lane, KVB_ERR_IO);
    }
}

void rlane_arm(struct rlane *lane)
{
    if (verbs_of(lane)->ibv_req_notify_cq(lane->cq, 0) != 0) {
        lose(lane, KVB_ERR_IO);
    }
    rlane_poll(lane);
}

static void look_again(struct rlane *lane)
{
    kvb_sched_timer_set(lane->end->sched, &lane->tick, now_of(lane) + ms(AGAIN_MS));
}

/* Posts a list of n; how many were taken. */
static uint32_t post(struct rlane *lane, struct ibv_send_wr *wrs, uint32_t n)
{
    struct ibv_send_wr *bad = NULL;
    int error = verbs_of(lane)->ibv_post_send(lane->qp, wrs, &bad);
    if (error == 0) {
        return n;
    }
    uint32_t taken = 0;
    for (const struct ibv_send_wr *wr = wrs; wr != NULL && wr != bad; wr = wr->next) {
        taken++;
    }
    taken = bad != NULL && taken < n ? taken : 0;
    slots_return(lane, n - taken);
    if (error == ENOMEM || error == EAGAIN || error == ENOBUFS) {
        look_again(lane); /* the device is short of something: those that wait keep their order */
    } else {
        KVB_LOG_LIMITED(WARN, "rdma: work could not be posted", KVB_U64("lane", lane->generation),
                        KVB_ERRNO(error));
        lose(lane, rdev_status(error));
    }
    return taken;
}

/* ---- messages going out ---- */

static bool has_room(const struct rlane *lane, uint32_t keep)
{
    return (int32_t)(lane->out.room - lane->out.next) > (int32_t)keep;
}

/* One packet with a piece of a message. False: not now. */
static bool send_packet(struct rlane *lane, const struct iovec *parts, uint32_t n, uint32_t len,
                        uint32_t keep)
{
    const struct kvt_rdma_info *info = info_of(lane);
    uint8_t inlined[RWIRE_PACKET_LEN + INLINE_MAX];
    uint32_t total = RWIRE_PACKET_LEN + len;
    bool is_inline = total <= info->inline_bytes;
    int32_t buffer = -1;
    if (!usable(lane) || !has_room(lane, keep) || under_way(lane) == info->depth ||
        (!is_inline && lane->out.free_n == 0)) {
        return false;
    }
    uint8_t *data = inlined;
    if (!is_inline) {
        buffer = lane->out.free[--lane->out.free_n];
        data = lane->out.pages + (size_t)buffer * RDEV_MESSAGE_BYTES;
    }
    uint32_t room = lane->in.next + info->window;
    const struct rwire_packet packet = {.number = lane->out.next, .room = room};
    rwire_packet_pack(&packet, data);
    uint32_t at = RWIRE_PACKET_LEN;
    for (uint32_t i = 0; i < n; i++) {
        if (parts[i].iov_len > 0) {
            memcpy(data + at, parts[i].iov_base, parts[i].iov_len);
            at += (uint32_t)parts[i].iov_len;
        }
    }
    struct ibv_sge sge = {
        .addr = (uintptr_t)data, .length = total, .lkey = is_inline ? 0 : lane->out.mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
    bool signal = slot_take(lane, NULL, 0, buffer, false, &wr.wr_id);
    wr.send_flags = (signal ? IBV_SEND_SIGNALED : 0u) | (is_inline ? IBV_SEND_INLINE : 0u);
    if (post(lane, &wr, 1) == 0) {
        if (buffer >= 0) {
            lane->out.free[lane->out.free_n++] = buffer;
        }
        return false;
    }
    lane->out.next++;
    lane->in.told = room;
    lane->out.sent_ns = now_of(lane);
    lane->totals->bytes_sent += total;
    return true;
}

static uint32_t piece_max(const struct rlane *lane)
{
    return lane->agreed.message_bytes - RWIRE_PACKET_LEN;
}

void rlane_send(struct rlane *lane, uint16_t type, uint16_t flags, uint64_t seq,
                const struct iovec *parts, uint32_t n)
{
    uint8_t head[KVB_FRAME_HEADER_LEN];
    struct iovec all[6];
    struct kvb_frame frame = {.type = type, .flags = flags, .seq = seq};
    kvb_assert(n < sizeof all / sizeof all[0]);
    if (!usable(lane)) {
        return; /* what was to be said nobody hears */
    }
    for (uint32_t i = 0; i < n; i++) {
        frame.len += (uint32_t)parts[i].iov_len;
        all[i + 1] = parts[i];
    }
    kvb_frame_pack(&frame, head);
    all[0] = (struct iovec){head, sizeof head};
    uint32_t total = KVB_FRAME_HEADER_LEN + frame.len;
    if (kvb_list_empty(&lane->out.queue) && total <= piece_max(lane) &&
        send_packet(lane, all, n + 1, total, 1)) {
        return;
    }
    struct rmsg *msg = malloc(sizeof *msg + total);
    if (msg == NULL) {
        lose(lane, KVB_ERR_NO_MEMORY);
        rlane_kick(lane);
        return;
    }
    msg->at = msg->len = 0;
    for (uint32_t i = 0; i < n + 1; i++) {
        if (all[i].iov_len > 0) {
            memcpy(msg->data + msg->len, all[i].iov_base, all[i].iov_len);
            msg->len += (uint32_t)all[i].iov_len;
        }
    }
    kvb_list_push_back(&lane->out.queue, &msg->link);
    lane->out.queued++;
    if (lane->out.mark_ns == 0) {
        lane->out.mark_ns = now_of(lane);
    }
    rlane_kick(lane);
}

static void send_queued(struct rlane *lane)
{
    for (struct kvb_list *link; (link = kvb_list_first(&lane->out.queue)) != NULL;) {
        struct rmsg *msg = kvb_container_of(link, struct rmsg, link);
        uint32_t left = msg->len - msg->at;
        uint32_t len = left < piece_max(lane) ? left : piece_max(lane);
        struct iovec piece = {msg->data + msg->at, len};
        if (!send_packet(lane, &piece, 1, len, 1)) {
            return;
        }
        lane->out.mark_ns = now_of(lane);
        msg->at += len;
        if (msg->at == msg->len) {
            kvb_list_remove(&msg->link);
            lane->out.queued--;
            free(msg);
        }
    }
    lane->out.mark_ns = 0;
}

/* Something of the lane's own, that nothing may keep from going. */
static void send_own(struct rlane *lane, enum rwire_message type)
{
    uint8_t head[KVB_FRAME_HEADER_LEN];
    struct kvb_frame frame = {.type = (uint16_t)type, .seq = 1};
    kvb_frame_pack(&frame, head);
    struct iovec piece = {head, sizeof head};
    (void)send_packet(lane, &piece, 1, sizeof head, type == RWIRE_CREDIT ? 0 : 1);
}

/* A message that waits to go on in pieces must not be interrupted. */
static bool between_messages(const struct rlane *lane)
{
    struct kvb_list *link = kvb_list_first(&lane->out.queue);
    return link == NULL || kvb_container_of(link, struct rmsg, link)->at == 0;
}

static void tell_room(struct rlane *lane)
{
    uint32_t window = info_of(lane)->window;
    uint32_t room = lane->in.next + window;
    if (room - lane->in.told >= window / 2 && usable(lane)) {
        if (between_messages(lane)) {
            send_own(lane, RWIRE_CREDIT);
        } else { /* an empty piece, which belongs to no message */
            (void)send_packet(lane, NULL, 0, 0, 0);
        }
    }
}

/* ---- packets coming in ---- */

static kvb_status_t deliver(struct rlane *lane, const struct kvb_frame *frame,
                            const uint8_t *payload)
{
    if (frame->type == RWIRE_ALIVE || frame->type == RWIRE_CREDIT) {
        return lane->admitted ? KVB_OK : KVB_ERR_PROTOCOL;
    }
    return lane->ops->message(lane, frame, payload);
}

static bool of_handshake(uint16_t type)
{
    return type >= RWIRE_HELLO && type <= RWIRE_REFUSED;
}

/* The first piece of a message: its header is whole, or it is none. */
static kvb_status_t begin_message(struct rlane *lane, const uint8_t *data, uint32_t len)
{
    struct kvb_frame frame;
    if (len < KVB_FRAME_HEADER_LEN) {
        return KVB_ERR_PROTOCOL;
    }
    kvb_status_t status = kvb_frame_unpack(data, &frame);
    if (status == KVB_OK) {
        status = rwire_frame_check(&frame, lane->common->ask_max);
    }
    if (status == KVB_OK && lane->admitted == of_handshake(frame.type)) {
        status = KVB_ERR_PROTOCOL;
    }
    if (status != KVB_OK) {
        return status;
    }
    uint32_t total = KVB_FRAME_HEADER_LEN + frame.len;
    if (len > total) {
        return KVB_ERR_PROTOCOL;
    }
    if (len == total) {
        return deliver(lane, &frame, data + KVB_FRAME_HEADER_LEN);
    }
    lane->in.data = malloc(total);
    if (lane->in.data == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    memcpy(lane->in.data, data, len);
    lane->in.at = len;
    lane->in.len = total;
    lane->in.mark_ns = now_of(lane);
    lane->in.mark_bytes = lane->in.bytes;
    return KVB_OK;
}

static kvb_status_t go_on_message(struct rlane *lane, const uint8_t *data, uint32_t len)
{
    if (len > lane->in.len - lane->in.at) {
        return KVB_ERR_PROTOCOL;
    }
    memcpy(lane->in.data + lane->in.at, data, len);
    lane->in.at += len;
    if (lane->in.bytes - lane->in.mark_bytes >= KVT_STALL_BYTES) {
        lane->in.mark_ns = now_of(lane);
        lane->in.mark_bytes = lane->in.bytes;
    }
    if (lane->in.at < lane->in.len) {
        return KVB_OK;
    }
    struct kvb_frame frame;
    uint8_t *whole = lane->in.data;
    kvb_status_t status = kvb_frame_unpack(whole, &frame);
    lane->in.data = NULL;
    lane->in.mark_ns = 0;
    if (status == KVB_OK) {
        status = deliver(lane, &frame, whole + KVB_FRAME_HEADER_LEN);
    }
    free(whole);
    return status;
}

static kvb_status_t take_packet(struct rlane *lane, const uint8_t *data, uint32_t len)
{
    if (len < RWIRE_PACKET_LEN) {
        return KVB_ERR_PROTOCOL;
    }
    struct rwire_packet packet = rwire_packet_unpack(data);
    /* In step, no more than there was room for, and room is only ever added, within the window. */
    if (packet.number != lane->in.next || packet.number == lane->in.told ||
        (int32_t)(packet.room - lane->out.room) < 0 ||
        packet.room - lane->out.next > lane->agreed.window) {
        return KVB_ERR_PROTOCOL;
    }
    lane->out.room = packet.room;
    lane->in.next++;
    lane->in.bytes += len;
    lane->in.heard_ns = lane->totals->heard_ns = now_of(lane);
    lane->totals->bytes_received += len;
    data += RWIRE_PACKET_LEN;
    len -= RWIRE_PACKET_LEN;
    if (len == 0) { /* only to say that there is room */
        return lane->admitted ? KVB_OK : KVB_ERR_PROTOCOL;
    }
    return lane->in.data != NULL ? go_on_message(lane, data, len) : begin_message(lane, data, len);
}

static void opened(struct rlane *lane)
{
    set_state(lane, RLANE_OPEN);
    lane->ops->opened(lane);
}

static void take_inbox(struct rlane *lane)
{
    for (struct kvb_list *link; (link = kvb_list_pop(&lane->inbox)) != NULL;) {
        struct rbuf *buffer = kvb_container_of(link, struct rbuf, link);
        if (lane->state == RLANE_ACCEPTED) { /* it came before what says that it may */
            opened(lane);
        }
        if (usable(lane)) {
            kvb_status_t status = take_packet(lane, buffer->data, buffer->len);
            if (status != KVB_OK) {
                lose(lane, status);
            }
        }
        rend_buffer_put(lane->end, buffer);
    }
}

/* ---- READs and WRITEs ---- */

uint32_t rlane_room(const struct rlane *lane)
{
    uint32_t depth = info_of(lane)->depth;
    uint32_t keep = depth / 8 > 2 ? depth / 8 : 2; /* for messages */
    uint32_t used = under_way(lane) + keep;
    return usable(lane) && lane->admitted && used < depth ? depth - used : 0;
}

uint32_t rlane_post(struct rlane *lane, struct rwork *work, struct ibv_send_wr *wrs, uint32_t n)
{
    kvb_assert(n > 0 && n <= rlane_room(lane));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bytes = 0;
        for (int s = 0; s < wrs[i].num_sge; s++) {
            bytes += wrs[i].sg_list[s].length;
        }
        bool signal = slot_take(lane, work, bytes, -1, i + 1 == n, &wrs[i].wr_id);
        wrs[i].send_flags = signal ? IBV_SEND_SIGNALED : 0;
        wrs[i].next = i + 1 < n ? &wrs[i + 1] : NULL;
    }
    uint32_t taken = post(lane, wrs, n);
    work->posted += taken;
    lane->out.works += taken;
    for (uint32_t i = 0; i < taken; i++) {
        lane->out.bytes += slot_of(lane, lane->out.head - taken + i)->bytes;
    }
    return taken;
}

/* ---- making it ---- */

static enum ibv_mtu agreed_mtu(const struct rlane *lane)
{
    return rdev_mtu(lane->agreed.mtu);
}

/* The smallest n with 4.096 us * 2^n of at least so much. */
static uint8_t ack_timeout(uint32_t at_least_ms)
{
    uint8_t n = 1;
    while (n < 31 && (4096ull << n) < at_least_ms * KVB_NS_PER_MS) {
        n++;
    }
    return n;
}

static kvb_status_t move_queue(struct rlane *lane, enum ibv_qp_state state)
{
    const struct kvt_rdma_config *config = &lane->end->device->config;
    struct ibv_qp_attr attr = {.qp_state = state};
    int mask = 0;
    errno = 0;
    if (verbs_of(lane)->rdma_init_qp_attr(lane->id, &attr, &mask) != 0) {
        return rdev_status(errno);
    }
    switch (state) {
    case IBV_QPS_INIT: /* to a client's memory nobody ever gets */
        attr.qp_access_flags = lane->client ? 0 : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
        break;
    case IBV_QPS_RTR:
        attr.path_mtu = agreed_mtu(lane);
        attr.max_dest_rd_atomic = lane->client ? 1 : (uint8_t)lane->agreed.rd_atomic;
        attr.min_rnr_timer = MIN_RNR_TIMER;
        break;
    case IBV_QPS_RTS:
        attr.timeout = ack_timeout(config->ack_timeout_ms);
        attr.retry_cnt = (uint8_t)config->retries;
        attr.rnr_retry = (uint8_t)config->rnr_retries;
        attr.max_rd_atomic = lane->client ? (uint8_t)lane->agreed.rd_atomic : 1;
        break;
    default:
        KVB_UNREACHABLE("a state that queue pairs are moved to");
    }
    int error = verbs_of(lane)->ibv_modify_qp(lane->qp, &attr, mask);
    return error == 0 ? KVB_OK : rdev_status(error);
}

static kvb_status_t make_buffers(struct rlane *lane)
{
    uint32_t depth = info_of(lane)->depth;
    char reason[KVT_RDMA_REASON_MAX];
    uint32_t n = depth / 2 < SEND_BUFFERS ? depth / 2 : SEND_BUFFERS;
    lane->out.buffers_n = n;
    lane->out.slots_n = 1;
    while (lane->out.slots_n < depth) {
        lane->out.slots_n *= 2;
    }
    lane->out.pages_len = (size_t)n * RDEV_MESSAGE_BYTES;
    lane->out.pages = rmem_pages(lane->out.pages_len);
    lane->out.slots = calloc(lane->out.slots_n, sizeof *lane->out.slots);
    lane->out.free = calloc(n, sizeof *lane->out.free);
    if (lane->out.pages == NULL || lane->out.slots == NULL || lane->out.free == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n; i++) {
        lane->out.free[lane->out.free_n++] = (int32_t)i;
    }
    return rmem_register(lane->end->device, lane->out.pages, lane->out.pages_len,
                         IBV_ACCESS_LOCAL_WRITE, &lane->out.mr, reason);
}

/* All that a lane has beside its id. What was made is taken back by unmake(). */
static kvb_status_t make_queue(struct rlane *lane)
{
    const struct kvt_rdma_info *info = info_of(lane);
    const struct kvt_verbs *verbs = verbs_of(lane);
    struct rend *end = lane->end;
    kvb_status_t status = make_buffers(lane);
    if (status != KVB_OK) {
        return status;
    }
    errno = 0;
    lane->cq =
        verbs->ibv_create_cq(end->device->context, (int)info->depth, lane, end->completions, 0);
    if (lane->cq == NULL) {
        return rdev_status(errno);
    }
    if (verbs->ibv_req_notify_cq(lane->cq, 0) != 0) {
        return KVB_ERR_IO;
    }
    struct ibv_qp_init_attr attr = {
        .qp_context = lane,
        .send_cq = lane->cq,
        .recv_cq = end->received,
        .srq = end->srq,
        .cap = {.max_send_wr = info->depth,
                .max_send_sge = info->sge,
                .max_inline_data = info->inline_bytes},
        .qp_type = IBV_QPT_RC,
    };
    errno = 0;
    lane->qp = verbs->ibv_create_qp(end->device->pd, &attr);
    if (lane->qp == NULL) {
        return rdev_status(errno);
    }
    rend_lane_add(end, lane);
    return move_queue(lane, IBV_QPS_INIT);
}

static void inbox_return(struct rlane *lane)
{
    for (struct kvb_list *link; (link = kvb_list_pop(&lane->inbox)) != NULL;) {
        rend_buffer_put(lane->end, kvb_container_of(link, struct rbuf, link));
    }
}

/* Packets that it has received, or that its end has left behind, go back; then its number may be
 * used again. False: the device did not let go of it. */
static bool destroy_queue(struct rlane *lane)
{
    const struct kvt_verbs *verbs = verbs_of(lane);
    rend_poll(lane->end);
    int error = verbs->ibv_destroy_qp(lane->qp);
    if (error != 0 && !kvt_rdma_device_dead(lane->end->device)) {
        KVB_LOG_LIMITED(ERROR, "rdma: a queue pair could not be destroyed",
                        KVB_U64("lane", lane->generation), KVB_ERRNO(error));
        return false;
    }
    rend_poll(lane->end);
    rend_lane_remove(lane->end, lane);
    inbox_return(lane);
    lane->qp = NULL;
    return true;
}

/* What was posted and did not come back never will. */
static void drop_work(struct rlane *lane)
{
    while (lane->out.tail != lane->out.head) {
        slot_retire(lane, slot_of(lane, lane->out.tail++), KVB_ERR_DISCONNECTED);
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&lane->progressed)) != NULL;) {
        if (lane->ops->work != NULL) {
            lane->ops->work(lane, kvb_container_of(link, struct rwork, link));
        }
    }
}

/* Everything but the queue pair. */
static void unmake(struct rlane *lane)
{
    const struct kvt_verbs *verbs = verbs_of(lane);
    kvb_assert(lane->qp == NULL);
    if (lane->cq != NULL) {
        (void)verbs->ibv_destroy_cq(lane->cq);
        lane->cq = NULL;
    }
    if (lane->out.mr != NULL) {
        (void)verbs->ibv_dereg_mr(lane->out.mr);
    }
    rmem_pages_free(lane->out.pages, lane->out.pages_len);
    free(lane->out.slots);
    free(lane->out.free);
    for (struct kvb_list *link; (link = kvb_list_pop(&lane->out.queue)) != NULL;) {
        free(kvb_container_of(link, struct rmsg, link));
    }
    free(lane->in.data);
    lane->in.data = NULL;
    if (lane->id != NULL) {
        (void)verbs->rdma_destroy_id(lane->id);
        lane->id = NULL;
    }
    kvb_list_remove(&lane->ready);
    kvb_sched_unpost(&lane->turn_event);
    kvb_sched_timer_clear(lane->end->sched, &lane->tick);
    rend_window_put(lane->end);
    set_state(lane, RLANE_CLOSED);
}

/* ---- connecting ---- */

static struct rwire_connect wanted(const struct rlane *lane)
{
    const struct kvt_rdma_info *info = info_of(lane);
    return (struct rwire_connect){.version_min = KVT_RDMA_VERSION_MIN,
                                  .version = KVT_RDMA_VERSION,
                                  .mtu = info->mtu,
                                  .window = info->window,
                                  .message_bytes = RDEV_MESSAGE_BYTES,
                                  .rd_atomic = info->rd_atomic};
}

#define MESSAGE_BYTES_MIN 512u

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* What both can, of what the other end wants. INVALID. */
static kvb_status_t agree(struct rlane *lane, const struct rwire_connect *theirs)
{
    const struct kvt_rdma_info *info = info_of(lane);
    uint32_t mtu = theirs->mtu != 0 ? theirs->mtu : RDEV_MTU_UNSAID;
    if (theirs->window < 4 || theirs->window > 1024 || theirs->message_bytes < MESSAGE_BYTES_MIN ||
        rdev_mtu(mtu) == 0 || theirs->rd_atomic == 0) {
        return KVB_ERR_INVALID;
    }
    lane->agreed = *theirs;
    lane->agreed.mtu = min_u32(mtu, info->mtu);
    lane->agreed.message_bytes = min_u32(theirs->message_bytes, RDEV_MESSAGE_BYTES);
    lane->agreed.rd_atomic = min_u32(theirs->rd_atomic, info->rd_atomic);
    lane->out.room = theirs->window;
    return KVB_OK;
}

static struct rdma_conn_param connect_param(const struct rlane *lane, const uint8_t *data)
{
    const struct kvt_rdma_config *config = &lane->end->device->config;
    uint32_t reads = lane->client ? info_of(lane)->rd_atomic : lane->agreed.rd_atomic;
    return (struct rdma_conn_param){
        .private_data = data,
        .private_data_len = RWIRE_CONNECT_LEN,
        .responder_resources = lane->client ? 1 : (uint8_t)reads,
        .initiator_depth = lane->client ? (uint8_t)reads : 1,
        .flow_control = 1,
        .retry_count = (uint8_t)config->retries,
        .rnr_retry_count = (uint8_t)config->rnr_retries,
        .srq = 1,
        .qp_num = lane->qp->qp_num,
    };
}

static kvb_status_t on_resolved(struct rlane *lane)
{
    struct kvt_rdma_device *device = lane->end->device;
    if (lane->id->verbs != device->context) {
        rdev_count(device, KVT_RDMA_OTHER_DEVICE);
        KVB_LOG_LIMITED(WARN, "rdma: the address is reached over another device than the chosen",
                        KVB_STR("device", device->info.device));
        return KVB_ERR_UNAVAILABLE;
    }
    errno = 0;
    if (verbs_of(lane)->rdma_resolve_route(lane->id, (int)device->config.resolve_ms) != 0) {
        return errno == ENOMEM ? KVB_ERR_NO_MEMORY : KVB_ERR_UNAVAILABLE;
    }
    set_state(lane, RLANE_ROUTING);
    return KVB_OK;
}

static kvb_status_t on_routed(struct rlane *lane)
{
    uint8_t data[RWIRE_CONNECT_LEN];
    set_state(lane, RLANE_CONNECTING);
    kvb_status_t status = make_queue(lane);
    if (status != KVB_OK) {
        return status;
    }
    const struct rwire_connect wants = wanted(lane);
    rwire_connect_pack(&wants, data);
    struct rdma_conn_param param = connect_param(lane, data);
    errno = 0;
    if (verbs_of(lane)->rdma_connect(lane->id, &param) != 0) {
        return errno == ENOMEM ? KVB_ERR_NO_MEMORY : KVB_ERR_UNAVAILABLE;
    }
    return KVB_OK;
}

static kvb_status_t on_response(struct rlane *lane, const uint8_t *data, size_t len)
{
    struct rwire_connect answer;
    const struct rwire_connect wants = wanted(lane);
    kvb_status_t status = rwire_connect_unpack(data, len, &answer);
    if (status != KVB_OK) {
        return status;
    }
    if (answer.version_min < wants.version_min || answer.version_min > wants.version ||
        answer.mtu > wants.mtu || answer.rd_atomic > wants.rd_atomic || answer.requests == 0 ||
        agree(lane, &answer) != KVB_OK) {
        rdev_count(lane->end->device, KVT_RDMA_DISAGREED);
        return KVB_ERR_PROTOCOL;
    }
    status = move_queue(lane, IBV_QPS_RTR);
    if (status == KVB_OK) {
        status = move_queue(lane, IBV_QPS_RTS);
    }
    if (status == KVB_OK && verbs_of(lane)->rdma_establish(lane->id) != 0) {
        status = KVB_ERR_UNAVAILABLE;
    }
    if (status == KVB_OK) {
        opened(lane);
    }
    return status;
}

void rlane_event(struct rlane *lane, const struct rdma_cm_event *event, const uint8_t *data,
                 size_t len)
{
    kvb_status_t status = KVB_OK;
    const struct rcause *row = rcause_of_cm(event->event);
    if (row != NULL) {
        if (event->event == RDMA_CM_EVENT_REJECTED) {
            lose(lane, rwire_reject_status(data, len));
        }
        lose_for(lane, row);
    } else if (lane->lost != KVB_OK) {
        /* it is on its way out */
    } else if (event->event == RDMA_CM_EVENT_ADDR_RESOLVED && lane->state == RLANE_RESOLVING) {
        status = on_resolved(lane);
    } else if (event->event == RDMA_CM_EVENT_ROUTE_RESOLVED && lane->state == RLANE_ROUTING) {
        status = on_routed(lane);
    } else if (event->event == RDMA_CM_EVENT_CONNECT_RESPONSE && lane->state == RLANE_CONNECTING) {
        status = on_response(lane, data, len);
    } else if (event->event == RDMA_CM_EVENT_ESTABLISHED && lane->state == RLANE_ACCEPTED) {
        opened(lane);
    }
    if (status != KVB_OK) {
        lose(lane, status);
    }
    rlane_kick(lane);
}

/* ---- time ---- */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* When the tick has something to look at; traffic only moves that back. */
static void set_tick(struct rlane *lane)
{
    const struct kvt_peer_common *common = lane->common;
    uint64_t at_ns = lane->hello_deadline_ns;
    if (lane->admitted) {
        at_ns = min_u64(lane->in.heard_ns + ms(common->silence_ms), now_of(lane) + lane->alive_ns);
        if (kvb_list_empty(&lane->out.queue)) { /* else what waits is the sign of life */
            at_ns = min_u64(at_ns, lane->out.sent_ns + lane->alive_ns);
        }
    }
    if (lane->in.mark_ns != 0) {
        at_ns = min_u64(at_ns, lane->in.mark_ns + ms(common->stall_ms));
    }
    if (lane->out.mark_ns != 0) {
        at_ns = min_u64(at_ns, lane->out.mark_ns + ms(common->stall_ms));
    }
    kvb_sched_timer_set(lane->end->sched, &lane->tick, at_ns);
}

static void on_tick(struct kvb_timer *timer)
{
    struct rlane *lane = kvb_container_of(timer, struct rlane, tick);
    const struct kvt_peer_common *common = lane->common;
    uint64_t now_ns = now_of(lane);
    rend_poll(lane->end); /* this process may have been stopped: what came meanwhile counts */
    rlane_poll(lane);
    take_inbox(lane);
    if (kvt_rdma_device_dead(lane->end->device)) {
        lose(lane, KVB_ERR_IO);
    }
    if (!lane->admitted && now_ns >= lane->hello_deadline_ns) {
        bool nobody = lane->state < RLANE_ACCEPTED && lane->lost == KVB_OK;
        if (nobody) { /* the library would go on asking for a minute */
            rdev_count(lane->end->device, KVT_RDMA_CM_UNREACHABLE);
        }
        lose(lane, nobody ? KVB_ERR_UNAVAILABLE : KVB_ERR_TIMEOUT);
    }
    if (lane->admitted && now_ns >= lane->in.heard_ns + ms(common->silence_ms)) {
        lose(lane, KVB_ERR_TIMEOUT);
    }
    if ((lane->in.mark_ns != 0 && now_ns >= lane->in.mark_ns + ms(common->stall_ms)) ||
        (lane->out.mark_ns != 0 && now_ns >= lane->out.mark_ns + ms(common->stall_ms))) {
        lose(lane, KVB_ERR_TIMEOUT);
    }
    if (usable(lane) && lane->admitted && kvb_list_empty(&lane->out.queue) &&
        now_ns >= lane->out.sent_ns + lane->alive_ns) {
        send_own(lane, RWIRE_ALIVE);
        lane->out.sent_ns = now_ns; /* it was tried: not again at once, where there is no room */
    }
    rlane_kick(lane);
}

/* ---- the end ---- */

static void begin_flush(struct rlane *lane)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    uint64_t deadline_ns = now_of(lane) + ms(FLUSH_MS);
    lane->flush_deadline_ns = min_u64(lane->flush_deadline_ns, deadline_ns);
    set_state(lane, RLANE_FLUSHING);
    if (lane->qp != NULL && verbs_of(lane)->ibv_modify_qp(lane->qp, &attr, IBV_QP_STATE) != 0) {
        lane->flush_deadline_ns = 0; /* nothing will come back: it is destroyed */
    }
    if (lane->qp != NULL && lane->id != NULL) {
        (void)verbs_of(lane)->rdma_disconnect(lane->id); /* says so, where anybody listens */
    }
}

/* True: the lane is closed, and its owner was told. */
static bool end_lane(struct rlane *lane)
{
    if (lane->state != RLANE_FLUSHING && lane->state != RLANE_CLOSED) {
        if (lane->state == RLANE_RESOLVING || lane->state == RLANE_ROUTING) {
            unmake(lane);
            lane->ops->lost(lane, lane->lost);
            return true;
        }
        begin_flush(lane);
    }
    rlane_poll(lane);
    bool late = now_of(lane) >= lane->flush_deadline_ns || kvt_rdma_device_dead(lane->end->device);
    if (lane->out.works > 0 && !late) {
        kvb_sched_timer_set(lane->end->sched, &lane->tick, lane->flush_deadline_ns);
        return false;
    }
    if (lane->qp != NULL) {
        if (lane->out.works > 0) {
            rdev_count(lane->end->device, KVT_RDMA_DESTROYED_UNFLUSHED);
        }
        if (!destroy_queue(lane)) {
            look_again(lane);
            return false;
        }
    }
    rlane_poll(lane);
    drop_work(lane);
    unmake(lane);
    lane->ops->lost(lane, lane->lost);
    return true;
}

/* ---- entries ---- */

void rlane_run(struct rlane *lane)
{
    kvb_sched_unpost(&lane->turn_event);
    if (lane->state == RLANE_CLOSED) {
        return;
    }
    if (kvt_rdma_device_dead(lane->end->device)) {
        lose(lane, KVB_ERR_IO);
    }
    take_inbox(lane);
    for (struct kvb_list *link; (link = kvb_list_pop(&lane->progressed)) != NULL;) {
        if (lane->ops->work != NULL) {
            lane->ops->work(lane, kvb_container_of(link, struct rwork, link));
        }
    }
    if (usable(lane)) {
        send_queued(lane);
    }
    if (usable(lane) && lane->admitted && lane->ops->turn != NULL) {
        lane->ops->turn(lane);
    }
    if (usable(lane)) {
        tell_room(lane);
    }
    if (lane->lost != KVB_OK) {
        (void)end_lane(lane);
        return;
    }
    if (!kvb_timer_armed(&lane->tick)) {
        set_tick(lane);
    }
}

static void on_turn(struct kvb_event *event)
{
    rlane_run(kvb_container_of(event, struct rlane, turn_event));
}

void rlane_kick(struct rlane *lane)
{
    kvb_sched_post(lane->end->sched, &lane->turn_event);
}

void rlane_fail(struct rlane *lane, kvb_status_t why)
{
    lose(lane, why);
    rlane_kick(lane);
}

void rlane_fail_by(struct rlane *lane, kvb_status_t why, uint64_t deadline_ns)
{
    lane->flush_deadline_ns = min_u64(lane->flush_deadline_ns, deadline_ns);
    if (lane->state == RLANE_FLUSHING) {
        kvb_sched_timer_set(lane->end->sched, &lane->tick, lane->flush_deadline_ns);
    }
    rlane_fail(lane, why);
}

void rlane_destroy_queue(struct rlane *lane, kvb_status_t why)
{
    lose(lane, why);
    if (lane->state != RLANE_FLUSHING) {
        begin_flush(lane);
    }
    if (lane->qp != NULL) {
        bool in_error = lane->flush_deadline_ns != 0;
        bool destroyed = destroy_queue(lane);
        /* In error it answers nobody either. If it is neither, somebody may still write where the
         * next object will be: better to stop. */
        kvb_assert(destroyed || in_error);
    }
    rlane_kick(lane);
}

void rlane_close(struct rlane *lane)
{
    if (lane->state == RLANE_CLOSED) {
        return;
    }
    lose(lane, KVB_ERR_CANCELED);
    if (lane->state != RLANE_RESOLVING && lane->state != RLANE_ROUTING) {
        if (lane->state != RLANE_FLUSHING) {
            begin_flush(lane);
        }
        if (lane->qp != NULL && !destroy_queue(lane)) {
            /* Nobody waits for it any more; its descriptors go with the process. */
            rend_lane_remove(lane->end, lane);
            inbox_return(lane);
            lane->qp = NULL;
        }
        drop_work(lane);
    }
    unmake(lane);
}

void rlane_init(struct rlane *lane)
{
    *lane = (struct rlane){.state = RLANE_CLOSED};
    kvb_list_init(&lane->by_number);
    kvb_list_init(&lane->ready);
    kvb_list_init(&lane->inbox);
    kvb_list_init(&lane->out.queue);
    kvb_list_init(&lane->progressed);
    kvb_event_init(&lane->turn_event, on_turn);
    kvb_timer_init(&lane->tick, on_tick);
}

static kvb_status_t start(struct rlane *lane, const struct rlane_ops *ops,
                          const struct kvt_peer_common *common, struct rend *end,
                          struct rlane_totals *totals, bool client)
{
    kvb_assert(lane->state == RLANE_CLOSED);
    rlane_init(lane);
    kvb_status_t status = kvt_rdma_device_dead(end->device) ? KVB_ERR_IO : rend_window_get(end);
    if (status != KVB_OK) {
        return status;
    }
    uint64_t now_ns = kvb_now_ns(end->sched->clock);
    lane->ops = ops;
    lane->common = common;
    lane->end = end;
    lane->totals = totals;
    lane->client = client;
    lane->generation = ++end->generation;
    lane->hello_deadline_ns = now_ns + ms(common->hello_ms);
    lane->flush_deadline_ns = KVB_NEVER;
    lane->in.heard_ns = lane->out.sent_ns = now_ns;
    lane->in.told = end->device->info.window;
    return KVB_OK;
}

kvb_status_t rlane_connect(struct rlane *lane, const struct rlane_ops *ops,
                           const struct kvt_peer_common *common, struct rend *end,
                           struct rlane_totals *totals, const struct sockaddr_storage *to)
{
    const struct kvt_verbs *verbs = end->device->verbs;
    struct sockaddr_storage source = end->device->source, target = *to;
    bool bind = source.ss_family == target.ss_family && source.ss_family != 0;
    kvb_status_t status = start(lane, ops, common, end, totals, true);
    if (status != KVB_OK) {
        return status;
    }
    if (!kvt_rdma_device_port_up(end->device)) {
        status = KVB_ERR_UNAVAILABLE;
        goto err_window;
    }
    errno = 0;
    if (verbs->rdma_create_id(end->channel, &lane->id, lane, RDMA_PS_TCP) != 0) {
        lane->id = NULL;
        status = rdev_status(errno);
        goto err_window;
    }
    errno = 0;
    if (verbs->rdma_resolve_addr(lane->id, bind ? (struct sockaddr *)&source : NULL,
                                 (struct sockaddr *)&target,
                                 (int)end->device->config.resolve_ms) != 0) {
        status = errno == ENOMEM ? KVB_ERR_NO_MEMORY
                 : errno == EADDRINUSE || errno == EADDRNOTAVAIL || errno == EAGAIN
                     ? KVB_ERR_LIMIT
                     : KVB_ERR_UNAVAILABLE;
        goto err_id;
    }
    set_state(lane, RLANE_RESOLVING);
    set_tick(lane);
    return KVB_OK;

err_id:
    (void)verbs->rdma_destroy_id(lane->id);
    lane->id = NULL;
err_window:
    rend_window_put(end);
    return status;
}

static void reject(struct rdma_cm_id *id, const struct kvt_verbs *verbs, kvb_status_t why)
{
    uint8_t data[RWIRE_REJECT_LEN];
    rwire_reject_pack(why, data);
    (void)verbs->rdma_reject(id, data, sizeof data);
}

/* The connection as it was asked for, up to the queue pair that can receive. */
static kvb_status_t prepare_accept(struct rlane *lane, const struct rwire_connect *wants)
{
    if (wants->version_min > KVT_RDMA_VERSION || wants->version < KVT_RDMA_VERSION_MIN ||
        wants->version_min > wants->version || agree(lane, wants) != KVB_OK) {
        rdev_count(lane->end->device, KVT_RDMA_DISAGREED);
        return KVB_ERR_INVALID;
    }
    kvb_status_t status = make_queue(lane);
    if (status == KVB_OK) {
        status = move_queue(lane, IBV_QPS_RTR);
    }
    return status == KVB_OK ? move_queue(lane, IBV_QPS_RTS) : status;
}

kvb_status_t rlane_accept(struct rlane *lane, const struct rlane_ops *ops,
                          const struct kvt_peer_common *common, struct rend *end,
                          struct rlane_totals *totals, struct rdma_cm_id *id,
                          const struct rwire_connect *wants, uint32_t requests)
{
    const struct kvt_verbs *verbs = end->device->verbs;
    kvb_status_t status = start(lane, ops, common, end, totals, false);
    if (status != KVB_OK) {
        reject(id, verbs, status);
        (void)verbs->rdma_destroy_id(id);
        return status;
    }
    id->context = lane;
    lane->id = id;
    set_state(lane, RLANE_ACCEPTED);
    status = prepare_accept(lane, wants);
    if (status == KVB_OK) {
        uint8_t data[RWIRE_CONNECT_LEN];
        struct rwire_connect answer = wanted(lane);
        answer.version_min = wants->version < KVT_RDMA_VERSION ? wants->version : KVT_RDMA_VERSION;
        answer.version = 0;
        answer.mtu = lane->agreed.mtu;
        answer.rd_atomic = lane->agreed.rd_atomic;
        answer.requests = requests;
        rwire_connect_pack(&answer, data);
        struct rdma_conn_param param = connect_param(lane, data);
        errno = 0;
        if (verbs->rdma_accept(id, &param) == 0) {
            set_tick(lane);
            return KVB_OK;
        }
        status = rdev_status(errno);
    } else {
        reject(id, verbs, status == KVB_ERR_INVALID ? KVB_ERR_UNSUPPORTED : status);
    }
    rlane_close(lane);
    return status;
}

void rlane_admit(struct rlane *lane, uint32_t their_silence_ms)
{
    lane->admitted = true;
    lane->alive_ns = ms(min_u64(lane->common->ping_ms, their_silence_ms / 3 + 1));
    kvb_sched_timer_clear(lane->end->sched, &lane->tick); /* other things are due now */
    rlane_kick(lane);
}
