/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An op is one transaction at etcd, built from what is known when it is sent. It may be sent more
 * than once (the answer of the first was lost, or what it rested on had changed), so each is built
 * such that a second time changes nothing, and such that one that arrives late, when the world has
 * moved on, changes nothing either: it compares the revisions that it was built from.
 *
 * It ends once, in end_op().
 */
#include "etcd_impl.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

#define NO_MEMORY_MS 100
#define AGAIN_MS     5 /* what it rested on has changed: by then the watch has told how */

static void start_op(struct op *op);

static void forget_sent(struct op *op)
{
    json_decref(op->then);
    json_decref(op->otherwise);
    op->then = op->otherwise = NULL;
}

void kvs_op_free(struct op *op)
{
    forget_sent(op);
    kvs_http_cancel(&op->call);
    kvb_sched_timer_clear(op->etcd->sched, &op->again);
    kvb_list_remove(&op->link);
    free(op->text);
    free(op->lineages);
    for (uint32_t i = 0; i < op->nwaiting; i++) {
        free(op->waiting[i]);
    }
    free(op->waiting);
    free(op);
}

static void end_op(struct op *op, kvb_status_t status);

static void on_again(struct kvb_timer *timer)
{
    struct op *op = kvb_container_of(timer, struct op, again);
    if (op->etcd->up) {
        start_op(op);
    } else {
        end_op(op, KVB_ERR_UNAVAILABLE);
    }
}

struct op *kvs_op_create(struct etcd *etcd, const struct op_type *type, struct member *member,
                         struct kvs_coord_request *request)
{
    struct op *op = calloc(1, sizeof *op);
    if (op == NULL) {
        return NULL;
    }
    op->etcd = etcd;
    op->type = type;
    op->member = member;
    op->request = request;
    kvb_list_init(&op->link);
    kvb_timer_init(&op->again, on_again);
    op->deadline_ns = kvb_deadline_in_ms(etcd->sched->clock, etcd->request_ms);
    if (member != NULL) {
        memcpy(op->path, member->path, sizeof op->path);
    }
    if (request != NULL) {
        request->impl.state = op;
        request->impl.binds = type->leased;
    }
    return op;
}

static void once_more(struct op *op)
{
    kvb_sched_timer_set(op->etcd->sched, &op->again,
                        kvb_deadline_in_ms(op->etcd->sched->clock, AGAIN_MS));
}

/* Lasting: kept for when etcd is back, or for when there is memory. */
static bool rest(struct op *op, kvb_status_t status)
{
    op->started = false;
    if (op->type->lasting && status == KVB_ERR_NO_MEMORY) {
        op->started = true;
        kvb_sched_timer_set(op->etcd->sched, &op->again,
                            kvb_deadline_in_ms(op->etcd->sched->clock, NO_MEMORY_MS));
    }
    return op->type->lasting && (status == KVB_ERR_UNAVAILABLE || status == KVB_ERR_NO_MEMORY);
}

static void end_op(struct op *op, kvb_status_t status)
{
    struct etcd *etcd = op->etcd;
    struct member *member = op->member;
    struct kvb_list *queue = op->beside ? NULL : member != NULL ? &member->queue : &etcd->queue;
    if (rest(op, status)) {
        return;
    }
    kvb_list_remove(&op->link);
    if (op->type->end != NULL && op->type->end(op, status)) {
        op = NULL; /* it goes on elsewhere */
    }
    if (op != NULL) {
        if (op->request != NULL) {
            op->request->impl.state = NULL;
            kvs_request_answer(etcd->sched, op->request, status);
        }
        kvs_op_free(op);
    }
    if (queue != NULL) {
        kvs_op_run_queue(etcd, member, queue);
    }
    if (member != NULL && member->closed) {
        kvs_member_reap(member);
    }
}

static void on_txn(struct kvs_http_call *call, kvb_status_t status, json_t *answer)
{
    struct op *op = kvb_container_of(call, struct op, call);
    struct etcd *etcd = op->etcd;
    struct kvs_txn_answer parsed;
    bool sound = status == KVB_OK && kvs_txn_parse(answer, op->then, op->otherwise, &parsed);
    bool rewound = sound && parsed.rev < op->seen_rev;
    call->uncertain = call->uncertain || (status == KVB_OK && (!sound || rewound));
    status = rewound ? KVB_ERR_UNAVAILABLE : status;
    if (status == KVB_OK && op->type->leased && op->lease != etcd->lease) {
        status = KVB_ERR_UNAVAILABLE;
    }
    if (status == KVB_OK) {
        status = sound ? op->type->answer(op, &parsed) : KVB_ERR_PROTOCOL;
    }
    if (status == KVB_ERR_AGAIN) {
        once_more(op);
        return;
    }
    bool lost = status == KVB_ERR_NOT_FOUND && op->lease == etcd->lease;
    status = status == KVB_ERR_NOT_FOUND ? KVB_ERR_UNAVAILABLE : status;
    if (status == KVB_ERR_PROTOCOL || status == KVB_ERR_REFUSED) {
        KVB_LOG_LIMITED(WARN, "etcd did not do what was asked", KVB_STR("what", op->type->name),
                        KVB_STATUS(status));
        status = KVB_ERR_UNAVAILABLE;
    }
    /* It failed on connections of before; since then etcd was reached again. */
    bool late = status == KVB_ERR_UNAVAILABLE && etcd->up && op->joins != etcd->joins;
    bool away = status == KVB_ERR_UNAVAILABLE && !late;
    struct member *member = op->member;
    if (late && member != NULL && op->request != NULL) {
        kvs_request_answer(etcd->sched, op->request, status);
        op->request->impl.state = NULL;
        op->request = NULL;
        kvs_member_tell_reach(member);
    }
    end_op(op, status);
    if (rewound) {
        kvs_session_rewound(etcd);
        return;
    }
    if (lost) { /* a lease that it has not */
        etcd->retired_lease = 0;
        kvs_session_lost(etcd);
    }
    if (away && etcd->up) { /* else it joins already, and begins anew for nothing */
        kvs_session_away(etcd);
    }
}

static void start_op(struct op *op)
{
    struct etcd *etcd = op->etcd;
    uint64_t now_ns = kvb_now_ns(etcd->sched->clock);
    if (op->type->lasting) {
        op->deadline_ns = kvb_deadline_in_ms(etcd->sched->clock, etcd->request_ms);
    }
    op->started = true;
    op->lease = etcd->lease;
    op->joins = etcd->joins;
    op->seen_rev = etcd->mirror.rev;
    if (now_ns >= op->deadline_ns) {
        end_op(op, KVB_ERR_UNAVAILABLE);
        kvs_session_away(etcd);
        return;
    }
    struct kvs_txn txn;
    kvs_txn_init(&txn);
    kvb_status_t status = op->type->build(op, &txn);
    forget_sent(op);
    op->then = json_incref(txn.then);
    op->otherwise = json_incref(txn.otherwise);
    char *body = kvs_txn_body(&txn);
    if (status == KVB_ERR_AGAIN) {
        free(body);
        once_more(op);
        return;
    }
    if (status != KVB_OK) {
        free(body);
        end_op(op, status);
        return;
    }
    uint64_t bound_ms = (op->deadline_ns - now_ns + KVB_NS_PER_MS - 1) / KVB_NS_PER_MS;
    op->call.done = on_txn;
    kvs_http_call(etcd->http, "/v3/kv/txn", body,
                  bound_ms < etcd->request_ms ? (uint32_t)bound_ms : etcd->request_ms, &op->call);
}

static kvb_status_t note_kv(void *ctx, const struct kvs_kv *kv)
{
    struct kvs_found *found = ctx;
    free(found->value);
    found->value = strdup(kv->value);
    found->create_rev = kv->create_rev;
    found->n++;
    return found->value == NULL ? KVB_ERR_NO_MEMORY : KVB_OK;
}

kvb_status_t kvs_op_one_kv(const struct kvs_txn_answer *answer, uint32_t place,
                           struct kvs_found *found)
{
    bool sound;
    *found = (struct kvs_found){0};
    const json_t *kvs = kvs_txn_kvs(answer, place, &sound);
    kvb_status_t status = sound ? kvs_wire_each_kv(kvs, note_kv, found) : KVB_ERR_PROTOCOL;
    return status == KVB_OK && found->n > 1 ? KVB_ERR_PROTOCOL : status;
}

/* ---- queues ---- */

static struct op *first_of(const struct kvb_list *queue)
{
    struct kvb_list *link = kvb_list_first(queue);
    return link == NULL ? NULL : kvb_container_of(link, struct op, link);
}

void kvs_op_run_queue(struct etcd *etcd, struct member *member, struct kvb_list *queue)
{
    struct op *first = first_of(queue);
    if (first == NULL || first->started) {
        return;
    }
    if (!etcd->up) {
        kvs_op_fail_queue(queue);
        return;
    }
    if (member != NULL && member->record != NULL && member->closed) {
        return; /* when that has ended */
    }
    if (member != NULL && member->lease != etcd->lease && !member->closed) {
        kvs_member_register(member);
        return;
    }
    start_op(first);
}

void kvs_op_queue(struct kvb_list *queue, struct op *op)
{
    kvb_list_push_back(queue, &op->link);
    kvs_op_run_queue(op->etcd, op->member, queue);
}

void kvs_op_beside(struct kvb_list *list, struct op *op)
{
    op->beside = true;
    kvb_list_push_back(list, &op->link);
    if (op->etcd->up) {
        start_op(op);
    } else {
        end_op(op, KVB_ERR_UNAVAILABLE);
    }
}

void kvs_op_restart(struct kvb_list *list, struct op *op)
{
    kvb_timer_init(&op->again, on_again);
    op->started = false;
    op->deadline_ns = kvb_deadline_in_ms(op->etcd->sched->clock, op->etcd->request_ms);
    kvs_op_beside(list, op);
}

void kvs_op_later(struct kvb_list *list, struct op *op, uint64_t ms)
{
    op->beside = true;
    kvb_list_push_back(list, &op->link);
    kvb_sched_timer_set(op->etcd->sched, &op->again,
                        kvb_deadline_in_ms(op->etcd->sched->clock, ms));
}

void kvs_op_run_beside(struct kvb_list *list)
{
    kvb_list_each(list, link)
    {
        struct op *op = kvb_container_of(link, struct op, link);
        if (!op->started && op->etcd->up && !kvb_timer_armed(&op->again)) {
            start_op(op);
        }
    }
}

void kvs_op_fail_queue(struct kvb_list *queue)
{
    kvb_list_each(queue, link)
    {
        struct op *op = kvb_container_of(link, struct op, link);
        if (op->started || op->type->lasting) {
            continue;
        }
        kvb_list_remove(&op->link);
        if (op->type->end != NULL) {
            bool goes_on = op->type->end(op, KVB_ERR_UNAVAILABLE);
            kvb_assert(!goes_on); /* nothing does that was not begun */
        }
        if (op->request != NULL) {
            op->request->impl.state = NULL;
            kvs_request_answer(op->etcd->sched, op->request, KVB_ERR_UNAVAILABLE);
        }
        kvs_op_free(op);
    }
}

void kvs_op_drop_all(struct kvb_list *list)
{
    for (struct kvb_list *link; (link = kvb_list_first(list)) != NULL;) {
        struct op *op = kvb_container_of(link, struct op, link);
        if (op->request != NULL) {
            op->request->impl.state = NULL;
        }
        kvs_op_free(op);
    }
}
