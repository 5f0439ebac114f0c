/* SPDX-License-Identifier: Apache-2.0 */
#include "lane.h"

#include "base/assert.h"
#include "base/faults.h"

#include <stdlib.h>
#include <string.h>

#define IN_BYTES  (128u << 10)
#define OUT_BYTES (256u << 10)
/* Bodies up to this are cheaper to copy than to name one by one to the kernel. */
#define SMALL_BYTES (16u << 10)
/* Of a large body in one call: hashed while it is still in the core's cache; and what its receiver
 * waits for before it reads. */
#define CHUNK_BYTES (512u << 10)
/* Each way in one turn. */
#define TURN_BYTES (1u << 20)
/* Read beyond a large body, when another may follow, whose bytes would be copied. */
#define LARGE_AHEAD_BYTES (4u << 10)
/* Room for a frame's head and text, without which the buffer is written first. */
#define OUT_ROOM_BYTES (4u << 10)
#define PIECES         64

static uint64_t now_of(const struct lane *lane)
{
    return kvb_now_ns(lane->sched->clock);
}

static void lose(struct lane *lane, kvb_status_t why)
{
    if (lane->lost == KVB_OK) {
        lane->lost = why;
    }
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- buffers ---- */

/* Makes room for a frame that is longer than the buffer; it shrinks back when it is empty. */
static kvb_status_t grow(uint8_t **data_p, uint32_t *cap_p, uint32_t cap)
{
    uint8_t *data = realloc(*data_p, cap);
    if (data == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *data_p = data;
    *cap_p = cap;
    return KVB_OK;
}

static void shrink(uint8_t **data_p, uint32_t *cap_p, uint32_t cap)
{
    uint8_t *data = *cap_p > cap ? realloc(*data_p, cap) : NULL;
    if (data != NULL) {
        *data_p = data;
        *cap_p = cap;
    }
}

/* ---- receiving: from bytes to frames ---- */

static void in_consume(struct lane_in *in, uint32_t len)
{
    in->at += len;
    if (in->at == in->len) {
        in->at = in->len = 0;
        shrink(&in->data, &in->cap, IN_BYTES);
    }
}

/* The checksum of a body that is kept; of one that goes nowhere nobody asks. */
static bool in_hashing(const struct lane_in *in)
{
    return !kvt_body_nothing(&in->body);
}

static void in_body_begin(struct lane_in *in, uint32_t body_len)
{
    in->state = LANE_IN_BODY;
    in->body = (struct kvt_body){.left = body_len};
    in->body_len = body_len;
    in->status = KVB_OK;
    in->hashed = false;
    if (in->len - in->at - in->need < body_len) { /* it comes in pieces */
        (void)XXH3_64bits_reset(&in->hash);
    }
}

/* What lies in the buffer of a body goes where it belongs. */
static void in_body_copy(struct lane_in *in)
{
    uint64_t len = min_u64(in->len - in->at, in->body.left);
    uint64_t left_then = in->body.left - len;
    bool whole = len == in->body_len;
    const uint8_t *from = in->data + in->at;
    if (!in_hashing(in)) {
        kvt_body_skip(&in->body, len);
    } else {
        in->status = kvt_body_write(&in->body, from, len);
        if (whole) {
            in->digest = XXH3_64bits(from, (size_t)len);
        } else {
            (void)XXH3_64bits_update(&in->hash, from, (size_t)len);
        }
    }
    if (in->status != KVB_OK) {
        kvt_body_let_go(&in->body);
        in->body.left = left_then;
    }
    in_consume(in, (uint32_t)len);
    if (in->body.left == 0) {
        in->hashed = in_hashing(in);
        in->digest = whole || !in->hashed ? in->digest : XXH3_64bits_digest(&in->hash);
        in->state = LANE_IN_TRAILER;
    }
}

static kvb_status_t in_trailer(struct lane *lane)
{
    struct lane_in *in = &lane->in;
    kvb_status_t status;
    uint64_t checksum;
    kvb_status_t bad = tcp_trailer_unpack(in->data + in->at, &status, &checksum);
    if (bad != KVB_OK) {
        return bad;
    }
    in_consume(in, TCP_TRAILER_LEN);
    in->state = LANE_IN_HEAD;
    in->mark_ns = 0;
    if (status == KVB_OK) {
        status = in->status;
    }
    if (status == KVB_OK && in->hashed && checksum != in->digest &&
        !kvb_fault_all(KVB_FAULT_TICKET_IGNORED)) {
        status = KVB_ERR_CHECKSUM;
    }
    return lane->ops->body(lane, status, checksum);
}

static kvb_status_t in_message(struct lane *lane, const struct kvb_frame *frame)
{
    struct lane_in *in = &lane->in;
    const uint8_t *payload = in->data + in->at + KVB_FRAME_HEADER_LEN;
    kvb_status_t status = KVB_OK;
    if (frame->type != TCP_ALIVE) {
        status = lane->ops->message(lane, (enum tcp_message)frame->type, payload, frame->len);
    } else if (!lane->admitted) {
        status = KVB_ERR_PROTOCOL;
    }
    in_consume(in, KVB_FRAME_HEADER_LEN + frame->len);
    in->mark_ns = 0;
    return status;
}

/* One step of whatever is next in the buffer. IN_PROGRESS: more bytes are needed. */
static kvb_status_t in_head(struct lane *lane)
{
    struct lane_in *in = &lane->in;
    const uint8_t *data = in->data + in->at;
    uint32_t len = in->len - in->at;
    struct kvb_frame frame;

    in->need = KVB_FRAME_HEADER_LEN;
    if (len < in->need) {
        return KVB_IN_PROGRESS;
    }
    kvb_status_t status = kvb_frame_unpack(data, &frame);
    if (status != KVB_OK) {
        return status;
    }
    if (frame.type > KVT_TYPE_MAX) {
        status = tcp_message_check(&frame);
        in->need = KVB_FRAME_HEADER_LEN + frame.len;
        return status != KVB_OK ? status
               : len < in->need ? KVB_IN_PROGRESS
                                : in_message(lane, &frame);
    }
    if (frame.type == 0 || !lane->admitted) {
        return KVB_ERR_PROTOCOL;
    }
    in->need = TCP_HEAD_LEN;
    if (len < in->need) {
        return KVB_IN_PROGRESS;
    }
    struct tcp_head head;
    status = tcp_head_unpack(&frame, data, lane->common->ask_max, &head);
    if (status != KVB_OK) {
        return status;
    }
    in->need = TCP_HEAD_LEN + head.text_len;
    if (len < in->need) {
        return KVB_IN_PROGRESS;
    }
    if (!tcp_text_intact(data, head.text_len)) {
        return KVB_ERR_PROTOCOL;
    }
    in->mark_ns = 0;
    if (head.body_len > 0) {
        in_body_begin(in, head.body_len);
    }
    status = lane->ops->frame(lane, &head, data + TCP_HEAD_LEN);
    in_consume(in, in->need);
    in->need = KVB_FRAME_HEADER_LEN;
    return status;
}

static kvb_status_t in_step(struct lane *lane)
{
    struct lane_in *in = &lane->in;
    switch (in->state) {
    case LANE_IN_HEAD:
        return in_head(lane);
    case LANE_IN_BODY:
        if (in->body.left > 0 && in->at == in->len) {
            return KVB_IN_PROGRESS;
        }
        in_body_copy(in);
        return KVB_OK;
    case LANE_IN_TRAILER:
        in->need = TCP_TRAILER_LEN;
        return in->len - in->at < in->need ? KVB_IN_PROGRESS : in_trailer(lane);
    }
    KVB_UNREACHABLE("a state of receiving");
}

static bool reading(const struct lane *lane)
{
    return lane->lost == KVB_OK && !lane->hold;
}

/* Since when has a frame that was begun brought too little? */
static void in_mark(struct lane *lane)
{
    struct lane_in *in = &lane->in;
    if (in->state == LANE_IN_HEAD && in->at == in->len) {
        in->mark_ns = 0;
    } else if (in->mark_ns == 0 || in->bytes - in->mark_bytes >= KVT_STALL_BYTES) {
        in->mark_ns = in->heard_ns;
        in->mark_bytes = in->bytes;
    }
}

static void parse(struct lane *lane)
{
    while (reading(lane)) {
        kvb_status_t status = in_step(lane);
        if (status == KVB_IN_PROGRESS) {
            return;
        }
        if (status != KVB_OK) {
            lose(lane, status);
        }
    }
}

/* Where the next bytes go: the body itself, as far as it is the next thing and has addresses, and
 * behind it the buffer. Returns the bytes asked for, *body_p of them of the body. */
static uint64_t in_target(struct lane *lane, struct iovec *to, int *n_p, uint64_t *body_p)
{
    struct lane_in *in = &lane->in;
    uint64_t body = 0;
    int n = 0;
    if (in->state == LANE_IN_BODY && in_hashing(in) && in->at == in->len &&
        kvt_body_addressable(&in->body)) {
        body = kvt_body_peek(&in->body, CHUNK_BYTES, to, &n, PIECES);
        if (body < in->body.left) {
            *n_p = n;
            *body_p = body;
            return body;
        }
    }
    if (in->at > 0) {
        memmove(in->data, in->data + in->at, in->len - in->at);
        in->len -= in->at;
        in->at = 0;
    }
    uint32_t room = in->cap - in->len;
    uint32_t least = in->need > in->len ? in->need - in->len : 1;
    bool large = in->body_len > SMALL_BYTES && (body > 0 || in->state != LANE_IN_BODY);
    uint32_t ahead = large ? LARGE_AHEAD_BYTES : room;
    ahead = ahead > least ? ahead : least;
    ahead = ahead < room ? ahead : room;
    to[n++] = (struct iovec){.iov_base = in->data + in->len, .iov_len = ahead};
    *n_p = n;
    *body_p = body;
    return body + ahead;
}

/* What arrived of a body in place. */
static void in_body_arrived(struct lane_in *in, const struct iovec *at, uint64_t len)
{
    kvt_body_skip(&in->body, len);
    for (; len > 0; at++) {
        uint64_t piece = min_u64(at->iov_len, len);
        (void)XXH3_64bits_update(&in->hash, at->iov_base, (size_t)piece);
        len -= piece;
    }
}

static void receive(struct lane *lane)
{
    struct lane_in *in = &lane->in;
    uint64_t budget = TURN_BYTES;
    while (reading(lane) && budget > 0) {
        struct iovec to[PIECES + 1];
        int n;
        uint64_t of_body;
        if (in->need > in->cap) {
            kvb_status_t status = grow(&in->data, &in->cap, in->need);
            if (status != KVB_OK) {
                lose(lane, status);
                return;
            }
        }
        uint64_t asked = in_target(lane, to, &n, &of_body);
        size_t got;
        kvb_status_t status = lane->common->net->ops->read(lane->socket, to, n, &got);
        if (status == KVB_ERR_AGAIN) {
            return;
        }
        if (status != KVB_OK) {
            lose(lane, status);
            return;
        }
        in->heard_ns = lane->totals->heard_ns = now_of(lane);
        in->bytes += got;
        lane->totals->bytes_received += got;
        budget -= min_u64(budget, got);
        if (of_body > 0) {
            uint64_t arrived = min_u64(of_body, got);
            in_body_arrived(in, to, arrived);
            in->len += (uint32_t)(got - arrived);
        } else {
            in->len += (uint32_t)got;
        }
        parse(lane);
        in_mark(lane);
        if (got < asked) {
            return; /* there was no more */
        }
    }
}

/* ---- sending: from frames to bytes ---- */

static uint32_t out_room(const struct lane_send *out)
{
    return out->cap - out->len;
}

static void out_consume(struct lane_send *out, uint64_t len)
{
    out->at += (uint32_t)len;
    if (out->at == out->len) {
        out->at = out->len = 0;
        shrink(&out->data, &out->cap, OUT_BYTES);
    }
}

static bool out_pending(const struct lane *lane)
{
    return lane->out.len > lane->out.at || lane->out.active;
}

/* Head and text of a new frame, whole. */
static void out_begin(struct lane *lane)
{
    struct lane_send *out = &lane->out;
    uint32_t need = TCP_HEAD_LEN + out->frame.head.text_len;
    if (need > out_room(out)) {
        kvb_status_t status = grow(&out->data, &out->cap, out->len + need);
        if (status != KVB_OK) {
            lose(lane, status);
            return;
        }
    }
    tcp_head_pack(&out->frame.head, out->frame.text, out->data + out->len);
    out->len += need;
    if (out->frame.head.body_len == 0) {
        lane->ops->sent(lane);
        return;
    }
    out->active = true;
    out->direct = out->frame.body.left > SMALL_BYTES && kvt_body_addressable(&out->frame.body);
    out->ahead = out->frame.body;
    out->hashed = false;
    if (out->frame.hash) {
        (void)XXH3_64bits_reset(&out->hash);
    }
}

/* Hashes the body up to where `len` more of its bytes will have been sent. */
static void out_hash(struct lane_send *out, uint64_t len)
{
    uint64_t left_then = out->frame.body.left - len;
    while (out->ahead.left > left_then) {
        struct iovec pieces[PIECES];
        int n;
        uint64_t more = kvt_body_peek(&out->ahead, out->ahead.left - left_then, pieces, &n, PIECES);
        for (int i = 0; i < n; i++) {
            (void)XXH3_64bits_update(&out->hash, pieces[i].iov_base, pieces[i].iov_len);
        }
        kvt_body_skip(&out->ahead, more);
    }
}

/* Part of a body goes through the buffer. */
static void out_body_copy(struct lane_send *out)
{
    struct lane_out *frame = &out->frame;
    uint64_t left = frame->body.left;
    uint64_t len = min_u64(out_room(out), left);
    uint8_t *to = out->data + out->len;
    kvb_status_t status = kvt_body_read(&frame->body, to, len);
    out->len += (uint32_t)(left - frame->body.left);
    if (status != KVB_OK) {
        frame->status = status;
        kvt_body_let_go(&frame->body);
    } else if (frame->hash && len == frame->head.body_len) { /* in one piece */
        out->hashed = true;
        out->digest = XXH3_64bits(to, (size_t)len);
    } else if (frame->hash) {
        (void)XXH3_64bits_update(&out->hash, to, (size_t)len);
    }
}

static void out_trailer(struct lane *lane, uint8_t to[TCP_TRAILER_LEN])
{
    struct lane_send *out = &lane->out;
    uint64_t checksum = 0;
    if (out->frame.hash && out->frame.status == KVB_OK) {
        checksum = out->hashed ? out->digest : XXH3_64bits_digest(&out->hash);
    }
    kvb_status_t status = lane->ops->verdict(lane, out->frame.status, &checksum);
    tcp_trailer_pack(status, checksum, to);
}

static void out_end(struct lane *lane)
{
    lane->out.active = false;
    lane->ops->sent(lane);
}

/* Fills the buffer with what comes next. */
static void fill(struct lane *lane)
{
    struct lane_send *out = &lane->out;
    while (lane->lost == KVB_OK) {
        if (out->active && out->frame.body.left > 0) {
            if (out->direct || out_room(out) == 0) {
                return;
            }
            out_body_copy(out);
        } else if (out->active) {
            if (out_room(out) < TCP_TRAILER_LEN) {
                return;
            }
            out_trailer(lane, out->data + out->len);
            out->len += TCP_TRAILER_LEN;
            out_end(lane);
        } else if (out->at < out->len && out_room(out) < OUT_ROOM_BYTES) {
            return;
        } else if (lane->admitted && lane->ops->next(lane, &out->frame)) {
            out_begin(lane);
        } else {
            return;
        }
    }
}

/* What was written of: the buffer, the body behind it, the trailer behind that. */
static void out_written(struct lane *lane, uint64_t len)
{
    struct lane_send *out = &lane->out;
    uint64_t of_buffer = min_u64(out->len - out->at, len);
    out_consume(out, of_buffer);
    len -= of_buffer;
    if (len == 0) {
        return;
    }
    uint64_t of_body = min_u64(out->frame.body.left, len);
    kvt_body_skip(&out->frame.body, of_body);
    len -= of_body;
    uint64_t of_trailer = min_u64(TCP_TRAILER_LEN, len);
    if (of_trailer > 0) { /* the body is whole */
        memcpy(out->data, out->trailer + of_trailer, TCP_TRAILER_LEN - of_trailer);
        out->len = TCP_TRAILER_LEN - (uint32_t)of_trailer;
        out_end(lane);
    }
}

static void out_mark(struct lane *lane)
{
    struct lane_send *out = &lane->out;
    if (!out_pending(lane)) {
        out->mark_ns = 0;
    } else if (out->mark_ns == 0 || out->bytes - out->mark_bytes >= KVT_STALL_BYTES) {
        out->mark_ns = now_of(lane);
        out->mark_bytes = out->bytes;
    }
}

static void send_frames(struct lane *lane)
{
    struct lane_send *out = &lane->out;
    uint64_t budget = TURN_BYTES;
    while (lane->lost == KVB_OK && budget > 0) {
        struct iovec from[PIECES + 2];
        int n = 0;
        uint64_t total = 0;
        fill(lane);
        if (out->len > out->at) {
            total = out->len - out->at;
            from[n++] = (struct iovec){.iov_base = out->data + out->at, .iov_len = total};
        }
        if (out->active && out->direct && out->frame.body.left > 0) {
            int pieces;
            uint64_t len = kvt_body_peek(&out->frame.body, CHUNK_BYTES, from + n, &pieces, PIECES);
            n += pieces;
            total += len;
            if (out->frame.hash && out->frame.status == KVB_OK) {
                out_hash(out, len);
            }
            if (out->frame.hash && len == out->frame.body.left) {
                out_trailer(lane, out->trailer);
                from[n++] = (struct iovec){out->trailer, TCP_TRAILER_LEN};
                total += TCP_TRAILER_LEN;
            }
        }
        if (n == 0) {
            break;
        }
        size_t written;
        kvb_status_t status = lane->common->net->ops->write(lane->socket, from, n, &written);
        if (status == KVB_ERR_AGAIN) {
            break;
        }
        if (status != KVB_OK) {
            lose(lane, status);
            break;
        }
        out->sent_ns = now_of(lane);
        out->bytes += written;
        lane->totals->bytes_sent += written;
        budget -= min_u64(budget, written);
        out_written(lane, written);
        if (written < total) {
            break; /* the socket is full */
        }
    }
    out_mark(lane);
}

/* ---- time ---- */

static uint64_t ms(uint64_t n)
{
    return n * KVB_NS_PER_MS;
}

static void on_tick(struct kvb_timer *timer)
{
    struct lane *lane = kvb_container_of(timer, struct lane, tick);
    const struct kvt_peer_common *common = lane->common;
    uint64_t now_ns = now_of(lane);

    if (lane->gathered > 1) {
        receive(lane); /* what is too little to be told of is a sign of life all the same */
    }
    if (!lane->admitted && now_ns >= lane->hello_deadline_ns) {
        lose(lane, KVB_ERR_TIMEOUT);
    }
    if (lane->admitted && !lane->hold &&
        (now_ns >= lane->in.heard_ns + ms(common->silence_ms) ||
         (lane->in.mark_ns != 0 && now_ns >= lane->in.mark_ns + ms(common->stall_ms)))) {
        lose(lane, KVB_ERR_TIMEOUT);
    }
    if (lane->out.mark_ns != 0 && now_ns >= lane->out.mark_ns + ms(common->stall_ms)) {
        lose(lane, KVB_ERR_TIMEOUT);
    }
    if (lane->lost == KVB_OK && lane->admitted && !out_pending(lane) &&
        now_ns >= lane->out.sent_ns + lane->alive_ns) {
        lane_message(lane, TCP_ALIVE, NULL, 0);
    }
    kvb_sched_post(lane->sched, &lane->turn);
}

/* When the tick has something to look at; traffic only moves that back, so it is set by ticks. */
static void set_tick(struct lane *lane)
{
    const struct kvt_peer_common *common = lane->common;
    uint64_t now_ns = now_of(lane);
    uint64_t at_ns = lane->hello_deadline_ns;
    if (lane->admitted) {
        at_ns = now_ns + lane->alive_ns;
        if (!out_pending(lane)) {
            at_ns = min_u64(at_ns, lane->out.sent_ns + lane->alive_ns);
        }
        if (!lane->hold) {
            at_ns = min_u64(at_ns, lane->in.heard_ns + ms(common->silence_ms));
        }
        if (!lane->hold && lane->in.mark_ns != 0) {
            at_ns = min_u64(at_ns, lane->in.mark_ns + ms(common->stall_ms));
        }
    }
    if (lane->out.mark_ns != 0) {
        at_ns = min_u64(at_ns, lane->out.mark_ns + ms(common->stall_ms));
    }
    kvb_sched_timer_set(lane->sched, &lane->tick, at_ns);
}

/* ---- entries ---- */

/* How much of a long body is worth a wake-up, which costs both ends more than a call. */
static void gather(struct lane *lane)
{
    struct lane_in *in = &lane->in;
    const struct kvt_net_ops *net = lane->common->net->ops;
    uint32_t bytes = 1;
    if (in->state == LANE_IN_BODY && in->body_len > SMALL_BYTES && in_hashing(in)) {
        bytes = (uint32_t)min_u64(in->body.left, CHUNK_BYTES) + TCP_TRAILER_LEN;
    }
    if (bytes != lane->gathered && net->gather != NULL) {
        lane->gathered = bytes;
        net->gather(lane->socket, bytes);
    }
}

static void want(struct lane *lane)
{
    unsigned events = (reading(lane) ? KVB_IO_READ : 0u) |
                      (lane->lost == KVB_OK && out_pending(lane) ? KVB_IO_WRITE : 0u);
    if (events != lane->wanted) {
        lane->wanted = events;
        lane->common->net->ops->want(lane->socket, events);
    }
}

/* Why it was refused, perhaps. */
static void last_words(struct lane *lane)
{
    struct lane_send *out = &lane->out;
    if (!out->active && out->len > out->at) {
        struct iovec from = {out->data + out->at, out->len - out->at};
        size_t written;
        (void)lane->common->net->ops->write(lane->socket, &from, 1, &written);
    }
}

/* The last thing in each entry. */
static void leave(struct lane *lane)
{
    if (lane->lost != KVB_OK) {
        last_words(lane);
        lane->ops->lost(lane, lane->lost);
        return;
    }
    gather(lane);
    want(lane);
    if (!kvb_timer_armed(&lane->tick)) {
        set_tick(lane);
    }
}

static void on_ready(struct kvt_socket *socket, unsigned events)
{
    struct lane *lane = socket->ctx;
    if ((events & KVB_IO_READ) != 0) {
        receive(lane);
    }
    if (kvb_event_posted(&lane->turn)) { /* answers to what was received, most often */
        kvb_sched_unpost(&lane->turn);
        parse(lane);
    }
    send_frames(lane);
    leave(lane);
}

static void on_turn(struct kvb_event *event)
{
    struct lane *lane = kvb_container_of(event, struct lane, turn);
    parse(lane); /* what was held back; the rest is read when the socket says so */
    send_frames(lane);
    leave(lane);
}

/* ---- for the owner ---- */

kvb_status_t lane_open(struct lane *lane, const struct lane_ops *ops,
                       const struct kvt_peer_common *common, struct kvb_sched *sched,
                       struct lane_totals *totals, struct kvt_socket *socket)
{
    uint8_t *in = malloc(IN_BYTES);
    uint8_t *out = malloc(OUT_BYTES);
    if (in == NULL || out == NULL) {
        free(in);
        free(out);
        return KVB_ERR_NO_MEMORY;
    }
    uint64_t now_ns = kvb_now_ns(sched->clock);
    *lane = (struct lane){
        .ops = ops,
        .common = common,
        .sched = sched,
        .totals = totals,
        .socket = socket,
        .gathered = 1,
        .hello_deadline_ns = now_ns + ms(common->hello_ms),
        .in = {.data = in, .cap = IN_BYTES, .need = KVB_FRAME_HEADER_LEN, .heard_ns = now_ns},
        .out = {.data = out, .cap = OUT_BYTES, .sent_ns = now_ns},
    };
    kvb_event_init(&lane->turn, on_turn);
    kvb_timer_init(&lane->tick, on_tick);
    socket->ready = on_ready;
    socket->ctx = lane;
    kvb_sched_post(sched, &lane->turn);
    return KVB_OK;
}

void lane_close(struct lane *lane)
{
    kvb_sched_unpost(&lane->turn);
    kvb_sched_timer_clear(lane->sched, &lane->tick);
    lane->common->net->ops->close(lane->socket);
    free(lane->in.data);
    free(lane->out.data);
}

void lane_fail(struct lane *lane, kvb_status_t why)
{
    lose(lane, why);
    kvb_sched_post(lane->sched, &lane->turn);
}

void lane_message(struct lane *lane, enum tcp_message type, const void *payload, size_t len)
{
    struct lane_send *out = &lane->out;
    kvb_assert(!out->active && out_room(out) >= KVB_FRAME_HEADER_LEN + KVT_PAYLOAD_MAX);
    out->len += (uint32_t)tcp_message_pack(type, payload, len, out->data + out->len);
    kvb_sched_post(lane->sched, &lane->turn);
}

void lane_admit(struct lane *lane, uint32_t their_silence_ms)
{
    lane->admitted = true;
    lane->alive_ns = ms(min_u64(lane->common->ping_ms, their_silence_ms / 3 + 1));
    kvb_sched_timer_clear(lane->sched, &lane->tick); /* other things are due now */
    kvb_sched_post(lane->sched, &lane->turn);
}

void lane_kick(struct lane *lane)
{
    kvb_sched_post(lane->sched, &lane->turn);
}

void lane_hold(struct lane *lane)
{
    lane->hold = true;
}

void lane_release(struct lane *lane)
{
    if (lane->hold) { /* what it did not read it could not hear */
        lane->hold = false;
        lane->in.heard_ns = now_of(lane);
        lane->in.mark_ns = 0;
        kvb_sched_post(lane->sched, &lane->turn);
    }
}

void lane_give_up_out(struct lane *lane, kvb_status_t why)
{
    kvb_assert(lane->out.active);
    if (lane->out.frame.status == KVB_OK) {
        lane->out.frame.status = why;
    }
    kvt_body_let_go(&lane->out.frame.body);
}

void lane_give_up_in(struct lane *lane)
{
    kvt_body_let_go(&lane->in.body);
}
