/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of one process. Running copies stand in a ring; one event takes turns through it,
 * a slice each and a bounded number of bytes in all, and posts itself again while there is work.
 *
 * A copy ends in one place, at its place in the ring (run_copy): cancel and the deadline only note
 * what is to be told. So a completion never runs inside start or cancel, comes once, and the ring
 * is changed by nobody else while it is walked.
 */
#include "base/assert.h"
#include "base/faults.h"
#include "base/xxh3.h"
#include "transport_impl.h"

#include <stdlib.h>

/* Bytes moved and then hashed while they are still in the core's cache. */
#define CHUNK (64u << 10)

struct copy {
    XXH3_state_t hash;
    struct kvb_list link; /* in active, held or idle */
    struct loopback *loopback;
    struct kvt_transfer *transfer;
    uint32_t slice, extent; /* next to move: which, and from where in it */
    uint64_t slice_offset, extent_offset;
    kvb_status_t stopped; /* OK: goes on; else what it ends with */
    struct kvb_timer deadline;
    struct kvb_timer hold; /* fault runs: until when it is held between two steps */
};

struct loopback {
    struct kvt_transport base;
    struct kvb_event turn;
    struct kvb_list active;
    struct kvb_list held;
    struct kvb_list idle;
    struct copy *copies; /* in_flight_max of them: starting cannot fail for want of memory */
};

static struct loopback *of(struct kvt_transport *transport)
{
    return kvb_container_of(transport, struct loopback, base);
}

static void activate(struct copy *copy)
{
    kvb_list_remove(&copy->link);
    kvb_list_push_back(&copy->loopback->active, &copy->link);
    kvb_sched_post(copy->loopback->base.sched, &copy->loopback->turn);
}

/* Notes how the copy ends, if it does not know that already, and sees to it that it does. */
static void stop(struct copy *copy, kvb_status_t status)
{
    if (copy->stopped == KVB_OK) {
        copy->stopped = status;
    }
    if (kvb_timer_armed(&copy->hold)) {
        kvb_sched_timer_clear(copy->loopback->base.sched, &copy->hold);
        activate(copy);
    }
}

static void on_deadline(struct kvb_timer *timer)
{
    stop(kvb_container_of(timer, struct copy, deadline), KVB_ERR_TIMEOUT);
}

static void on_hold_over(struct kvb_timer *timer)
{
    activate(kvb_container_of(timer, struct copy, hold));
}

/* True: the hostile schedule holds it here, and brings it back by itself. */
static bool hold(struct copy *copy)
{
    struct kvb_sched *sched = copy->loopback->base.sched;
    uint64_t hold_ns = kvb_fault_hold_ns(sched->random);
    if (hold_ns == 0) {
        return false;
    }
    kvb_list_remove(&copy->link);
    kvb_list_push_back(&copy->loopback->held, &copy->link);
    kvb_sched_timer_set(sched, &copy->hold, kvb_now_ns(sched->clock) + hold_ns);
    return true;
}

static kvb_status_t loopback_start(struct kvt_transport *transport, struct kvt_transfer *transfer)
{
    struct loopback *loopback = of(transport);
    struct copy *copy = kvb_container_of(kvb_list_pop(&loopback->idle), struct copy, link);
    copy->transfer = transfer;
    copy->slice = copy->extent = 0;
    copy->slice_offset = copy->extent_offset = 0;
    copy->stopped = KVB_OK;
    if (transfer->hash) {
        (void)XXH3_64bits_reset(&copy->hash);
    }
    transfer->impl.state = copy;
    kvb_sched_timer_set(transport->sched, &copy->deadline, transfer->deadline_ns);
    activate(copy);
    return KVB_OK;
}

static void loopback_cancel(struct kvt_transport *transport, struct kvt_transfer *transfer,
                            uint64_t stop_deadline_ns)
{
    (void)transport;
    (void)stop_deadline_ns; /* it stops at its next turn */
    stop(transfer->impl.state, KVB_ERR_CANCELED);
}

static uint64_t min3(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Moves up to CHUNK bytes that lie in one piece on both sides. */
static kvb_status_t move(struct copy *copy, uint64_t *moved_p)
{
    const struct kvt_transfer *transfer = copy->transfer;
    const struct kvt_slice *slice = &transfer->slices[copy->slice];
    const struct kvt_extent *extent = &transfer->extents[copy->extent];
    uint64_t len = min3(CHUNK, slice->len - copy->slice_offset, extent->len - copy->extent_offset);
    uint8_t *share = (uint8_t *)transfer->share->base + extent->offset + copy->extent_offset;
    uint64_t offset = slice->offset + copy->slice_offset;

    kvb_status_t status = transfer->direction == KVT_TO_SHARE
                              ? kvt_region_read(slice->region, offset, share, (size_t)len)
                              : kvt_region_write(slice->region, offset, share, (size_t)len);
    if (status != KVB_OK) {
        return status;
    }
    if (transfer->hash) { /* the share's side: the engine may change its bytes meanwhile */
        (void)XXH3_64bits_update(&copy->hash, share, (size_t)len);
    }
    copy->slice_offset += len;
    if (copy->slice_offset == slice->len) {
        copy->slice++;
        copy->slice_offset = 0;
    }
    copy->extent_offset += len;
    if (copy->extent_offset == extent->len) {
        copy->extent++;
        copy->extent_offset = 0;
    }
    *moved_p = len;
    return KVB_OK;
}

static kvb_status_t move_slice(struct copy *copy, uint64_t *budget)
{
    uint64_t left = KVT_LOOPBACK_SLICE;
    while (left >= CHUNK && copy->slice < copy->transfer->nslices) {
        uint64_t moved;
        kvb_status_t status = move(copy, &moved);
        if (status != KVB_OK) {
            return status;
        }
        left -= moved;
        *budget = *budget > moved ? *budget - moved : 0;
    }
    return copy->slice < copy->transfer->nslices ? KVB_IN_PROGRESS : KVB_OK;
}

static void finish(struct copy *copy, kvb_status_t status)
{
    struct loopback *loopback = copy->loopback;
    struct kvt_transfer *transfer = copy->transfer;
    kvb_sched_timer_clear(loopback->base.sched, &copy->deadline);
    if (status == KVB_OK && transfer->hash) {
        transfer->checksum = XXH3_64bits_digest(&copy->hash);
    }
    copy->transfer = NULL;
    transfer->impl.state = NULL;
    kvb_list_remove(&copy->link);
    kvb_list_push_back(&loopback->idle, &copy->link);
    kvt_transfer_finish(transfer, status);
}

/* One step of one copy. */
static void run_copy(struct copy *copy, uint64_t *budget)
{
    kvb_status_t status = copy->stopped;
    if (status == KVB_OK) {
        status = move_slice(copy, budget);
        if ((status == KVB_OK || status == KVB_IN_PROGRESS) && hold(copy)) {
            return;
        }
    }
    if (status == KVB_IN_PROGRESS) {
        kvb_list_push_back(&copy->loopback->active, &copy->link);
        return;
    }
    finish(copy, status);
}

static void on_turn(struct kvb_event *event)
{
    struct loopback *loopback = kvb_container_of(event, struct loopback, turn);
    uint64_t budget = KVT_LOOPBACK_TURN;
    uint32_t steps = loopback->base.in_flight; /* each copy at most once a turn */

    for (; steps > 0 && budget > 0; steps--) {
        struct kvb_list *link = kvb_list_pop(&loopback->active);
        if (link == NULL) {
            break;
        }
        run_copy(kvb_container_of(link, struct copy, link), &budget);
    }
    if (!kvb_list_empty(&loopback->active)) {
        kvb_sched_post(loopback->base.sched, &loopback->turn);
    }
}

static void loopback_destroy(struct kvt_transport *transport)
{
    struct loopback *loopback = of(transport);
    kvb_sched_unpost(&loopback->turn);
    free(loopback->copies);
    free(loopback);
}

static const struct kvt_transport_ops loopback_ops = {
    .name = "loopback",
    .capabilities = KVT_CAP_NODE_COPIES,
    .start = loopback_start,
    .cancel = loopback_cancel,
    .destroy = loopback_destroy,
};

kvb_status_t kvt_loopback_create(struct kvt_regions *regions, uint32_t in_flight_max,
                                 struct kvt_transport **transport_p)
{
    struct loopback *loopback = malloc(sizeof *loopback);
    if (loopback == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    /* XXH3_state_t wants 64-byte alignment, which calloc does not promise. */
    struct copy *copies = aligned_alloc(_Alignof(struct copy), in_flight_max * sizeof *copies);
    if (copies == NULL) {
        goto err_free;
    }
    *loopback = (struct loopback){.copies = copies};
    kvt_transport_init(&loopback->base, &loopback_ops, regions, in_flight_max);
    kvb_event_init(&loopback->turn, on_turn);
    kvb_list_init(&loopback->active);
    kvb_list_init(&loopback->held);
    kvb_list_init(&loopback->idle);
    for (uint32_t i = 0; i < in_flight_max; i++) {
        struct copy *copy = &copies[i];
        copy->loopback = loopback;
        copy->transfer = NULL;
        kvb_timer_init(&copy->deadline, on_deadline);
        kvb_timer_init(&copy->hold, on_hold_over);
        kvb_list_push_back(&loopback->idle, &copy->link);
    }
    *transport_p = &loopback->base;
    return KVB_OK;

err_free:
    free(loopback);
    return KVB_ERR_NO_MEMORY;
}
