/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A put or a get of one item: index work under the shard's lock, then a transfer without it, then
 * index work again.
 *
 *   put   reserve -> transfer -> commit; every other way out revokes
 *   get   find -> transfer -> release, which is the check, and compare the checksum; every other
 *         way out releases
 *
 * An operation is in one of two places: its transfer runs, or it is held on its timer (in fault
 * runs, by the hostile schedule; otherwise only while others fill the transport). Whatever ends it
 * goes through finish(), once. Since the transfer has completed before any revoke, the writer is
 * stopped there and the space needs no quarantine.
 */
#include "local.h"

#include "base/assert.h"
#include "base/faults.h"
#include "base/log.h"

#include <stdlib.h>

#define FULL_RETRY_MS 1

struct op {
    struct kvb_list link; /* call.ops or local.idle */
    struct kvs_local_call *call;
    uint32_t item;
    struct kvs_shard *shard;
    kvb_status_t stopped; /* OK: goes on; else what it ends with */
    union {
        struct kvs_attempt attempt;  /* put */
        struct kvs_core_found found; /* get */
    };
    uint64_t len;
    struct kvs_extents found_extents;
    struct kvt_extent *extents; /* the same for the transport; keeps its room from use to use */
    uint32_t extents_cap;
    struct kvt_transfer transfer;
    struct kvb_timer hold;
    void (*after_hold)(struct op *op);
};

static void on_hold_over(struct kvb_timer *timer)
{
    struct op *op = kvb_container_of(timer, struct op, hold);
    op->after_hold(op);
}

static struct op *get_op(struct kvs_local *local)
{
    struct kvb_list *link = kvb_list_pop(&local->idle);
    if (link != NULL) {
        return kvb_container_of(link, struct op, link);
    }
    struct op *op = calloc(1, sizeof *op);
    if (op != NULL) {
        kvs_extents_init(&op->found_extents);
        kvb_timer_init(&op->hold, on_hold_over);
        kvb_list_init(&op->link);
    }
    return op;
}

static void put_op(struct kvs_local *local, struct op *op)
{
    kvb_list_remove(&op->link);
    kvb_list_push_front(&local->idle, &op->link);
}

void kvs_op_cleanup(struct kvs_local *local)
{
    kvb_assert(local->nops == 0);
    for (struct kvb_list *link; (link = kvb_list_pop(&local->idle)) != NULL;) {
        struct op *op = kvb_container_of(link, struct op, link);
        kvs_extents_cleanup(&op->found_extents);
        free(op->extents);
        free(op);
    }
}

static struct kvs_local *home(const struct op *op)
{
    return op->call->local;
}

static uint64_t now(const struct op *op)
{
    return kvb_now_ns(home(op)->sched->clock);
}

static const struct kvs_item *item_of(const struct op *op)
{
    return kvs_call_item(&op->call->base, op->item);
}

static struct kvs_core_key key_of(const struct kvs_item *item)
{
    return (struct kvs_core_key){.block = item->key, .group = item->group, .part = item->part};
}

static void finish(struct op *op, kvb_status_t status, uint64_t len)
{
    struct kvs_local_call *call = op->call;
    uint32_t index = op->item;
    const struct kvs_item *item = item_of(op);
    kvb_assert(!kvb_timer_armed(&op->hold));
    kvt_slices_put(item->slices, item->nslices);
    put_op(call->local, op);
    call->local->nops--;
    kvs_call_answer(&call->base, index, status, len);
    kvs_call_wake(&call->base);
}

static void hold_for(struct op *op, uint64_t ns, void (*after)(struct op *op))
{
    op->after_hold = after;
    kvb_sched_timer_set(home(op)->sched, &op->hold, now(op) + ns);
}

/* The next step, at once; in fault runs perhaps later. */
static void step(struct op *op, void (*next)(struct op *op))
{
    uint64_t hold_ns = kvb_fault_hold_ns(home(op)->sched->random);
    if (hold_ns == 0) {
        next(op);
    } else {
        hold_for(op, hold_ns, next);
    }
}

static kvb_status_t copy_extents(struct op *op)
{
    const struct kvs_extents *from = &op->found_extents;
    if (op->extents_cap < from->n) {
        struct kvt_extent *grown = realloc(op->extents, from->n * sizeof *grown);
        if (grown == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        op->extents = grown;
        op->extents_cap = from->n;
    }
    for (uint32_t i = 0; i < from->n; i++) {
        op->extents[i] = (struct kvt_extent){from->at[i].offset, from->at[i].len};
    }
    return KVB_OK;
}

/* ---- transfer ---- */

/* Starts it, or tells why not; AGAIN is tried again by itself. */
static kvb_status_t start_transfer(struct op *op, enum kvt_direction direction,
                                   void (*done)(struct kvt_transfer *, kvb_status_t),
                                   void (*again)(struct op *op))
{
    const struct kvs_item *item = item_of(op);
    op->transfer = (struct kvt_transfer){
        .direction = direction,
        .share = home(op)->reach[op->shard - home(op)->share->shards],
        .slices = item->slices,
        .nslices = item->nslices,
        .extents = op->extents,
        .nextents = op->found_extents.n,
        .hash = true,
        .deadline_ns = op->call->base.base->batch->deadline_ns,
        .done = done,
    };
    kvb_status_t status = kvt_transfer_start(home(op)->transport, &op->transfer);
    if (status == KVB_ERR_AGAIN) {
        hold_for(op, FULL_RETRY_MS * KVB_NS_PER_MS, again);
        return KVB_OK;
    }
    return status;
}

/* ---- put ---- */

static void put_failed(struct op *op, kvb_status_t status)
{
    kvb_mutex_lock(&op->shard->lock);
    kvb_status_t revoked =
        kvs_core_revoke(op->shard->core, now(op), op->attempt, KVS_LOCAL_SESSION, true);
    kvb_mutex_unlock(&op->shard->lock);
    kvb_assert(revoked == KVB_OK || revoked == KVB_ERR_NOT_FOUND); /* over already, by its commit */
    kvs_share_poke(home(op)->share, false);
    finish(op, status, 0);
}

static void put_commit(struct op *op)
{
    if (op->stopped != KVB_OK) {
        put_failed(op, op->stopped);
        return;
    }
    kvb_mutex_lock(&op->shard->lock);
    kvb_status_t status = kvs_core_commit(op->shard->core, now(op), op->attempt, KVS_LOCAL_SESSION,
                                          op->transfer.checksum);
    kvb_mutex_unlock(&op->shard->lock);
    if (status == KVB_OK || status == KVB_ERR_EXISTS) {
        finish(op, status, op->len);
    } else {
        put_failed(op, status == KVB_ERR_NOT_FOUND ? KVB_ERR_TIMEOUT : status);
    }
}

static void put_moved(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct op *op = kvb_container_of(transfer, struct op, transfer);
    if (status == KVB_OK) {
        step(op, put_commit);
    } else {
        put_failed(op, op->stopped != KVB_OK ? op->stopped : status);
    }
}

static void put_write(struct op *op)
{
    kvb_status_t status = op->stopped;
    if (status == KVB_OK) {
        status = start_transfer(op, KVT_TO_SHARE, put_moved, put_write);
    }
    if (status != KVB_OK) {
        put_failed(op, status);
    }
}

static kvb_status_t put_begin(struct op *op, const struct kvs_core_key *key)
{
    struct kvs_local *local = home(op);
    uint64_t now_ns = now(op);
    struct kvs_core_put put = {
        .len = op->len,
        .pin = op->call->base.base->batch->pin,
        .session = KVS_LOCAL_SESSION,
        .deadline_ns = now_ns + local->ticket_ms * KVB_NS_PER_MS,
    };
    kvb_mutex_lock(&op->shard->lock);
    kvb_status_t status = kvs_core_reserve(op->shard->core, now_ns, &op->call->where, key, &put,
                                           &op->attempt, &op->found_extents);
    kvb_mutex_unlock(&op->shard->lock);
    if (status != KVB_OK) {
        return status;
    }
    status = copy_extents(op);
    if (status != KVB_OK) {
        put_failed(op, status);
    } else {
        step(op, put_write);
    }
    return KVB_OK;
}

/* ---- get ---- */

/* Is it still worth what it was when it was found? */
static kvb_status_t get_release(struct op *op)
{
    kvb_mutex_lock(&op->shard->lock);
    kvb_status_t status =
        kvs_core_release(op->shard->core, now(op), op->found.ticket, KVS_LOCAL_SESSION);
    kvb_mutex_unlock(&op->shard->lock);
    kvs_share_poke(home(op)->share, false);
    return kvb_fault(KVB_FAULT_TICKET_IGNORED) ? KVB_OK : status;
}

static void get_failed(struct op *op, kvb_status_t status)
{
    (void)get_release(op);
    finish(op, status, op->found.len);
}

static void get_verify(struct op *op)
{
    if (op->stopped != KVB_OK) {
        get_failed(op, op->stopped);
        return;
    }
    const struct kvs_item *item = item_of(op);
    kvb_status_t status = get_release(op);
    if (status == KVB_OK && kvt_slices_gone(item->slices, item->nslices)) {
        status = KVB_ERR_GENERATION;
    }
    if (status == KVB_OK && op->transfer.checksum != op->found.checksum &&
        !kvb_fault_all(KVB_FAULT_TICKET_IGNORED)) {
        status = KVB_ERR_CHECKSUM;
        KVB_LOG_LIMITED(WARN, "bytes read do not match their checksum",
                        KVB_U64("bytes", op->found.len));
        struct kvs_core_key key = key_of(item);
        kvs_scrub_start(&home(op)->scrubs, op->shard, &op->call->where, &key);
    }
    finish(op, status, op->found.len);
}

static void get_moved(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct op *op = kvb_container_of(transfer, struct op, transfer);
    if (status == KVB_OK) {
        step(op, get_verify);
    } else {
        get_failed(op, op->stopped != KVB_OK ? op->stopped : status);
    }
}

static void get_read(struct op *op)
{
    kvb_status_t status = op->stopped;
    if (status == KVB_OK) {
        status = start_transfer(op, KVT_FROM_SHARE, get_moved, get_read);
    }
    if (status != KVB_OK) {
        get_failed(op, status);
    }
}

static kvb_status_t get_begin(struct op *op, const struct kvs_core_key *key)
{
    struct kvs_local *local = home(op);
    const struct kvs_batch *batch = op->call->base.base->batch;
    uint64_t now_ns = now(op);
    struct kvs_core_holder holder = {batch->hold.instance, batch->hold.request};

    kvb_mutex_lock(&op->shard->lock);
    kvb_status_t status = kvs_core_find(
        op->shard->core, now_ns, &op->call->where, key, KVS_LOCAL_SESSION,
        now_ns + local->ticket_ms * KVB_NS_PER_MS, holder, &op->found, &op->found_extents);
    kvb_mutex_unlock(&op->shard->lock);
    if (status != KVB_OK) {
        return status;
    }
    status = op->found.len == op->len ? copy_extents(op) : KVB_ERR_TOO_LARGE;
    if (status != KVB_OK) {
        get_failed(op, status);
    } else {
        step(op, get_read);
    }
    return KVB_OK;
}

/* ---- begin and end ---- */

kvb_status_t kvs_op_begin(struct kvs_local_call *call, uint32_t index)
{
    struct kvs_local *local = call->local;
    const struct kvs_item *item = kvs_call_item(&call->base, index);
    uint64_t len = 0;

    /* before anything is evicted for it */
    kvb_status_t status = kvt_slices_check(item->slices, item->nslices, &len);
    if (status != KVB_OK) {
        kvs_call_answer(&call->base, index, status, 0);
        return KVB_OK;
    }
    if (local->nops >= local->transport->in_flight_max) {
        return KVB_ERR_BUSY;
    }
    struct op *op = get_op(local);
    if (op == NULL) {
        kvs_call_answer(&call->base, index, KVB_ERR_NO_MEMORY, 0);
        return KVB_OK;
    }
    op->call = call;
    op->item = index;
    op->shard = kvs_share_shard(local->share, call->seed, item->key);
    op->stopped = KVB_OK;
    op->len = len;
    kvb_list_push_back(&call->base.ops, &op->link);
    kvt_slices_get(item->slices, item->nslices);
    local->nops++;

    struct kvs_core_key key = key_of(item);
    status = call->base.base->batch->op == KVS_PUT ? put_begin(op, &key) : get_begin(op, &key);
    if (status == KVB_ERR_AGAIN) {
        kvt_slices_put(item->slices, item->nslices);
        put_op(local, op);
        local->nops--;
    } else if (status != KVB_OK) {
        finish(op, status, 0);
        status = KVB_OK;
    }
    kvs_share_poke(local->share, false);
    return status;
}

static void stop(struct op *op, kvb_status_t status, uint64_t stop_deadline_ns)
{
    if (op->stopped == KVB_OK) {
        op->stopped = status;
    }
    if (kvb_timer_armed(&op->hold)) {
        kvb_sched_timer_clear(home(op)->sched, &op->hold);
        op->after_hold(op);
    } else {
        kvt_transfer_cancel(&op->transfer, stop_deadline_ns);
    }
}

void kvs_op_stop_all(struct kvs_local_call *call, kvb_status_t status, uint64_t stop_deadline_ns)
{
    kvb_list_each(&call->base.ops, link)
    {
        stop(kvb_container_of(link, struct op, link), status, stop_deadline_ns);
    }
}
