/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A put or a get of others: index work under the shard's lock, bytes moved without it, by the
 * transport, between the socket and the share's extents.
 *
 *   put   reserve -> receive -> commit, if the body is there and its checksum was right; every
 *         other way out revokes. A body that is not there when the attempt's time is over is not
 *         waited for: the request is answered, which keeps the rest of it from the space. Nobody
 *         writes there at a revoke, so the space is free at once
 *   get   find -> answer with the body -> release, which is the check: a ticket that was lost
 *         meanwhile makes the body worthless, and the asker is told so in its trailer
 *
 * An operation waits for one thing: for room (in `waiting`), for its bytes, or, in fault runs, on
 * its timer. It ends in end(), once, together with its request.
 */
#include "service.h"

#include "base/assert.h"
#include "base/faults.h"

#include <stdlib.h>

#define ROOM_STEP 16 /* puts for which room is looked for in one turn */

struct op {
    struct kvb_list link; /* idle, waiting, or its own */
    struct kvs_service *service;
    struct kvt_request *request;
    uint64_t session;
    bool put;
    bool reserved; /* put: there is an attempt */
    struct kvs_core_where where;
    struct kvs_shard *shard;
    struct kvs_core_key key; /* in the request's bytes */
    enum kvs_pin pin;
    union {
        struct kvs_attempt attempt;  /* put */
        struct kvs_core_found found; /* get */
    };
    uint64_t checksum; /* put: of what was received */
    struct kvs_extents extents;
    struct kvb_timer over; /* put: until its body is there */
    struct kvb_timer hold; /* fault runs */
    void (*after_hold)(struct op *op);
};

static void on_over(struct kvb_timer *timer);

static void on_hold_over(struct kvb_timer *timer)
{
    struct op *op = kvb_container_of(timer, struct op, hold);
    op->after_hold(op);
}

static struct op *create_op(void)
{
    struct op *op = calloc(1, sizeof *op);
    if (op != NULL) {
        kvb_list_init(&op->link);
        kvs_extents_init(&op->extents);
        kvb_timer_init(&op->over, on_over);
        kvb_timer_init(&op->hold, on_hold_over);
    }
    return op;
}

/* NULL: out of memory, and the request was answered so. */
static struct op *begin(struct kvs_service *service, struct kvt_request *request,
                        const struct kvs_core_where *where)
{
    const struct kvs_lane *lane = request->session;
    const struct kvs_ask *ask = &service->ask;
    struct kvb_list *link = kvb_list_pop(&service->idle);
    struct op *op = link != NULL ? kvb_container_of(link, struct op, link) : create_op();
    if (op == NULL) {
        kvt_answer(request, KVB_ERR_NO_MEMORY, NULL, 0);
        return NULL;
    }
    op->service = service;
    op->request = request;
    op->session = lane->session;
    op->put = request->type == KVS_ASK_PUT;
    op->reserved = false;
    op->where = *where;
    op->key = ask->keys[0];
    op->pin = ask->pin;
    op->shard =
        kvs_share_shard(service->share, kvs_share_seed(service->share, where), op->key.block);
    request->state = op;
    (void)atomic_fetch_add_explicit(&service->running, 1, memory_order_relaxed);
    return op;
}

/* Its request is over, or about to be answered. */
static void end(struct op *op, kvb_status_t status, uint64_t len)
{
    struct kvs_service *service = op->service;
    kvb_assert(!kvb_timer_armed(&op->over) && !kvb_timer_armed(&op->hold));
    kvs_count_answer(&service->counts, op->put ? KVS_PUT : KVS_GET, status, len);
    kvb_list_remove(&op->link);
    kvb_list_push_front(&service->idle, &op->link);
    (void)atomic_fetch_sub_explicit(&service->running, 1, memory_order_relaxed);
}

static void end_and_answer(struct op *op, kvb_status_t status, uint64_t len)
{
    struct kvt_request *request = op->request;
    end(op, status, len);
    kvt_answer(request, status, NULL, 0);
}

static uint64_t now(const struct op *op)
{
    return kvb_now_ns(op->service->sched->clock);
}

/* The next step, at once; in fault runs perhaps later. */
static void step(struct op *op, void (*next)(struct op *op))
{
    uint64_t hold_ns = kvb_fault_hold_ns(op->service->sched->random);
    if (hold_ns == 0) {
        next(op);
    } else {
        op->after_hold = next;
        kvb_sched_timer_set(op->service->sched, &op->hold, now(op) + hold_ns);
    }
}

/* The extents as addresses, in the service's room. */
static kvb_status_t address(struct op *op)
{
    struct kvs_service *service = op->service;
    if (service->iovecs_cap < op->extents.n) {
        struct iovec *grown = realloc(service->iovecs, op->extents.n * sizeof *grown);
        if (grown == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        service->iovecs = grown;
        service->iovecs_cap = op->extents.n;
    }
    for (uint32_t i = 0; i < op->extents.n; i++) {
        service->iovecs[i] =
            (struct iovec){op->shard->base + op->extents.at[i].offset, op->extents.at[i].len};
    }
    return KVB_OK;
}

/* ---- put ---- */

/* Nobody writes there any more. */
static void revoke(struct op *op)
{
    kvb_mutex_lock(&op->shard->lock);
    kvb_status_t revoked =
        kvs_core_revoke(op->shard->core, now(op), op->attempt, op->session, true);
    kvb_mutex_unlock(&op->shard->lock);
    kvb_assert(revoked == KVB_OK || revoked == KVB_ERR_NOT_FOUND); /* over already, by its commit */
    op->reserved = false;
    kvs_share_poke(op->service->share, false);
}

/* Answered first: where its body is on the way still, that is what stops it. */
static void put_failed(struct op *op, kvb_status_t status)
{
    kvb_sched_timer_clear(op->service->sched, &op->over);
    kvt_answer(op->request, status, NULL, 0);
    revoke(op);
    end(op, status, 0);
}

static void on_over(struct kvb_timer *timer)
{
    struct op *op = kvb_container_of(timer, struct op, over);
    kvb_sched_timer_clear(op->service->sched, &op->hold);
    put_failed(op, KVB_ERR_TIMEOUT);
}

static void put_commit(struct op *op)
{
    kvb_mutex_lock(&op->shard->lock);
    kvb_status_t status =
        kvs_core_commit(op->shard->core, now(op), op->attempt, op->session, op->checksum);
    kvb_mutex_unlock(&op->shard->lock);
    if (status == KVB_OK || status == KVB_ERR_EXISTS) {
        end_and_answer(op, status, op->request->body_len);
    } else {
        put_failed(op, status == KVB_ERR_NOT_FOUND ? KVB_ERR_TIMEOUT : status);
    }
}

void kvs_serve_received(void *ctx, struct kvt_request *request, kvb_status_t status,
                        uint64_t checksum)
{
    (void)ctx;
    struct op *op = request->state;
    kvb_sched_timer_clear(op->service->sched, &op->over);
    if (status != KVB_OK) {
        put_failed(op, status);
        return;
    }
    op->checksum = checksum;
    step(op, put_commit);
}

static void put_receive(struct op *op)
{
    kvb_status_t status = address(op);
    if (status == KVB_OK) {
        kvt_receive(op->request, op->service->iovecs, op->extents.n);
    } else {
        put_failed(op, status);
    }
}

static void put_reserve(struct op *op)
{
    struct kvs_service *service = op->service;
    uint64_t now_ns = now(op);
    const struct kvs_core_put put = {
        .len = op->request->body_len,
        .pin = op->pin,
        .session = op->session,
        .deadline_ns = now_ns + service->ticket_ns,
    };
    kvb_mutex_lock(&op->shard->lock);
    kvb_status_t status = kvs_core_reserve(op->shard->core, now_ns, &op->where, &op->key, &put,
                                           &op->attempt, &op->extents);
    kvb_mutex_unlock(&op->shard->lock);
    if (status == KVB_OK) {
        op->reserved = true;
        kvb_sched_timer_set(service->sched, &op->over, put.deadline_ns);
        kvs_share_poke(service->share, false);
        step(op, put_receive);
    } else if (status == KVB_ERR_AGAIN) {
        kvb_list_push_back(&service->waiting, &op->link);
        kvb_sched_post(service->sched, &service->make_room);
    } else {
        end_and_answer(op, status, 0);
    }
}

static void on_make_room(struct kvb_event *event)
{
    struct kvs_service *service = kvb_container_of(event, struct kvs_service, make_room);
    struct kvb_list now_waiting;
    kvb_list_init(&now_waiting);
    for (int i = 0; i < ROOM_STEP && !kvb_list_empty(&service->waiting); i++) {
        kvb_list_push_back(&now_waiting, kvb_list_pop(&service->waiting));
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&now_waiting)) != NULL;) {
        put_reserve(kvb_container_of(link, struct op, link));
    }
    if (!kvb_list_empty(&service->waiting)) {
        kvb_sched_post(service->sched, &service->make_room);
    }
}

void kvs_serve_put(struct kvs_service *service, struct kvt_request *request,
                   const struct kvs_core_where *where)
{
    if (atomic_load_explicit(&service->draining, memory_order_relaxed)) {
        kvt_answer(request, KVB_ERR_DRAINING, NULL, 0);
        return;
    }
    struct op *op = begin(service, request, where);
    if (op != NULL) {
        put_reserve(op);
    }
}

/* ---- get ---- */

/* Is what was read worth what it was when it was found? */
static kvb_status_t release(struct op *op)
{
    kvb_mutex_lock(&op->shard->lock);
    kvb_status_t status = kvs_core_release(op->shard->core, now(op), op->found.ticket, op->session);
    kvb_mutex_unlock(&op->shard->lock);
    return kvb_fault(KVB_FAULT_TICKET_IGNORED) ? KVB_OK : status;
}

kvb_status_t kvs_serve_sent(void *ctx, struct kvt_request *request)
{
    (void)ctx;
    struct op *op = request->state;
    kvb_status_t status = release(op);
    end(op, status, op->found.len);
    return status;
}

/* Its length goes along: with OK, and so that an asker of another length learns it. */
static uint32_t pack_len(struct op *op)
{
    struct kvb_writer *out = &op->service->answer;
    out->len = 0;
    out->status = KVB_OK;
    kvs_len_pack(out, op->found.len);
    return out->status == KVB_OK ? (uint32_t)out->len : 0;
}

static void get_answer(struct op *op)
{
    struct kvs_service *service = op->service;
    uint32_t len = pack_len(op);
    kvb_status_t status = len == 0 ? KVB_ERR_NO_MEMORY : address(op);
    if (status == KVB_OK) {
        kvt_answer_body(op->request, service->answer.data, len, service->iovecs, op->extents.n,
                        op->found.checksum);
    } else {
        (void)release(op);
        end_and_answer(op, status, 0);
    }
}

static void get_of_other_length(struct op *op)
{
    struct kvt_request *request = op->request;
    const struct kvb_writer *answer = &op->service->answer;
    uint32_t len = pack_len(op);
    (void)release(op);
    end(op, KVB_ERR_TOO_LARGE, 0);
    kvt_answer(request, KVB_ERR_TOO_LARGE, answer->data, len);
}

void kvs_serve_get(struct kvs_service *service, struct kvt_request *request,
                   const struct kvs_core_where *where)
{
    const struct kvs_ask *ask = &service->ask;
    struct op *op = begin(service, request, where);
    if (op == NULL) {
        return;
    }
    uint64_t now_ns = now(op);
    struct kvs_core_holder holder = {ask->hold.instance, ask->hold.request};
    kvb_mutex_lock(&op->shard->lock);
    kvb_status_t status =
        kvs_core_find(op->shard->core, now_ns, where, &op->key, op->session,
                      now_ns + service->ticket_ns, holder, &op->found, &op->extents);
    kvb_mutex_unlock(&op->shard->lock);
    if (status != KVB_OK) {
        end_and_answer(op, status, 0);
        return;
    }
    kvs_share_poke(service->share, false);
    if (op->found.len != ask->len) {
        get_of_other_length(op);
    } else {
        step(op, get_answer);
    }
}

/* ---- the lane is gone ---- */

void kvs_serve_gone(void *ctx, struct kvt_request *request)
{
    (void)ctx;
    struct op *op = request->state;
    kvb_sched_timer_clear(op->service->sched, &op->over);
    kvb_sched_timer_clear(op->service->sched, &op->hold);
    if (!op->put) {
        (void)release(op);
    } else if (op->reserved) {
        revoke(op);
    }
    end(op, KVB_ERR_DISCONNECTED, 0);
}

void kvs_serve_init(struct kvs_service *service)
{
    kvb_list_init(&service->idle);
    kvb_list_init(&service->waiting);
    kvb_event_init(&service->make_room, on_make_room);
}

void kvs_serve_cleanup(struct kvs_service *service)
{
    kvb_sched_unpost(&service->make_room);
    for (struct kvb_list *link; (link = kvb_list_pop(&service->idle)) != NULL;) {
        struct op *op = kvb_container_of(link, struct op, link);
        kvs_extents_cleanup(&op->extents);
        free(op);
    }
    free(service->iovecs);
}
