/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that name memory of a device (transport/device.h), by way of the device's pool:
 *
 *   put   waits for a place in the pool · copied there by the device · moved from there
 *   get   waits for a place in the pool · moved there · copied on by the device
 *
 * The middle part is a transfer of the same transport between pool and node, with the same
 * question. The outer transfer is the one that is counted and cancelled, and whose regions are held
 * until the last byte has come to rest; so a region is never let go of under a copy.
 *
 * Places are given in the order of asking; one that waits starts from an event, never from inside
 * the end of another. A transfer ends in one place (finish), and only when neither the transport
 * nor the device has anything of it: stopping it earlier only notes how it is to end.
 */
#include "base/assert.h"
#include "transport_impl.h"

#include <stdlib.h>

enum phase {
    WAITING, /* for a place in the pool, or, stopped, for the event that ends it */
    COPYING, /* by the device */
    MOVING,  /* by the transport */
};

struct staging {
    struct kvt_transfer inner;
    struct kvt_transfer *outer;
    struct kvt_device *device;
    struct kvb_list link; /* device->placed or device->waiting */
    enum phase phase;
    kvb_status_t stopped; /* OK: it goes on; else what it ends with */
    bool ours;            /* and that, or what a copy failed with, is not the node's fault */
    uint64_t offset, len; /* its place in the pool */
    struct kvt_device_job job;
    struct kvb_timer deadline;
    uint32_t npieces;
    struct kvt_device_piece *pieces; /* pool_offset: from the beginning of its place */
    struct kvt_slice slices[];       /* of inner; pieces after them */
};

#define ALIGN 4096u /* of places: what a copy engine likes */

static uint64_t now_ns(const struct staging *staging)
{
    return kvb_now_ns(staging->device->sched->clock);
}

bool kvt_staging_needed(const struct kvt_transfer *transfer)
{
    for (uint32_t i = 0; i < transfer->nslices; i++) {
        if (transfer->slices[i].region->desc.device != NULL) {
            return true;
        }
    }
    return false;
}

/* ---- places in the pool ---- */

static bool place(struct staging *staging)
{
    struct kvt_device *device = staging->device;
    uint64_t at = 0;
    struct kvb_list *link = device->placed.next;
    for (; link != &device->placed; link = link->next) {
        const struct staging *other = kvb_container_of(link, struct staging, link);
        if (other->offset - at >= staging->len) {
            break;
        }
        at = other->offset + other->len;
    }
    if (link == &device->placed && device->pool_len - at < staging->len) {
        return false;
    }
    staging->offset = at;
    kvb_list_push_back(link, &staging->link); /* before that one: the list is in order */
    return true;
}

static void set_places(struct staging *staging)
{
    for (uint32_t i = 0; i < staging->npieces; i++) {
        staging->pieces[i].pool_offset += staging->offset;
    }
    for (uint32_t i = 0; i < staging->inner.nslices; i++) {
        if (staging->slices[i].region == staging->device->pool) {
            staging->slices[i].offset += staging->offset;
        }
    }
}

/* ---- the end ---- */

static void finish(struct staging *staging, kvb_status_t status)
{
    struct kvt_device *device = staging->device;
    struct kvt_transfer *outer = staging->outer;
    kvb_sched_timer_clear(device->sched, &staging->deadline);
    kvb_list_remove(&staging->link);
    if (!kvb_list_empty(&device->waiting)) {
        kvb_sched_post(device->sched, &device->turn);
    }
    outer->checksum = staging->inner.checksum;
    outer->answer_len = staging->inner.answer_len;
    outer->ours = status != KVB_OK && staging->ours;
    outer->impl.staging = NULL;
    free(staging);
    kvt_transfer_finish(outer, status);
}

/* ---- the steps ---- */

static void on_copied(struct kvt_device_job *job, kvb_status_t status);

static void copy(struct staging *staging)
{
    struct kvt_device *device = staging->device;
    staging->phase = COPYING;
    staging->job = (struct kvt_device_job){
        .done = on_copied,
        .deadline_ns = kvb_deadline_in_ms(device->sched->clock, KVT_DEVICE_COPY_MS)};
    kvb_list_init(&staging->job.link);
    device->ops->copy(device, staging->outer->direction == KVT_TO_SHARE, staging->pieces,
                      staging->npieces, &staging->job);
}

static kvb_status_t move(struct staging *staging)
{
    struct kvt_transfer *inner = &staging->inner;
    struct kvt_transport *transport = inner->impl.transport;
    staging->phase = MOVING;
    kvt_slices_get(inner->slices, inner->nslices);
    kvb_status_t status = transport->ops->start(transport, inner);
    if (status != KVB_OK) {
        kvt_slices_put(inner->slices, inner->nslices);
    }
    return status;
}

static kvb_status_t begin(struct staging *staging)
{
    set_places(staging);
    if (staging->outer->direction == KVT_FROM_SHARE) {
        return move(staging);
    }
    copy(staging);
    return KVB_OK;
}

static void on_copied(struct kvt_device_job *job, kvb_status_t status)
{
    struct staging *staging = kvb_container_of(job, struct staging, job);
    staging->ours = staging->ours || status != KVB_OK;
    if (staging->stopped != KVB_OK) {
        status = staging->stopped;
    }
    if (status == KVB_OK && staging->outer->direction == KVT_TO_SHARE) {
        status = move(staging);
        if (status == KVB_OK) {
            return;
        }
    }
    finish(staging, status);
}

void kvt_staging_moved(struct kvt_transfer *inner, kvb_status_t status)
{
    struct staging *staging = kvb_container_of(inner, struct staging, inner);
    kvt_slices_put(inner->slices, inner->nslices);
    /* A put that has arrived has; a get that was stopped has not yet. */
    if (staging->stopped != KVB_OK && staging->outer->direction == KVT_FROM_SHARE) {
        status = staging->stopped;
    }
    if (status == KVB_OK && staging->outer->direction == KVT_FROM_SHARE) {
        copy(staging);
        return;
    }
    finish(staging, status);
}

/* ---- stopping ---- */

static void stop(struct staging *staging, kvb_status_t status, uint64_t stop_deadline_ns)
{
    struct kvt_device *device = staging->device;
    if (staging->stopped == KVB_OK) {
        staging->stopped = status;
    }
    switch (staging->phase) {
    case WAITING:
        kvb_sched_post(device->sched, &device->turn);
        break;
    case COPYING:
        device->ops->hurry(device, &staging->job, stop_deadline_ns);
        break;
    case MOVING: {
        struct kvt_transport *transport = staging->inner.impl.transport;
        transport->ops->cancel(transport, &staging->inner, stop_deadline_ns);
        break;
    }
    }
}

void kvt_staging_cancel(struct kvt_transfer *transfer, uint64_t stop_deadline_ns)
{
    struct staging *staging = transfer->impl.staging;
    uint64_t now = now_ns(staging);
    uint64_t left_ns = stop_deadline_ns > now ? stop_deadline_ns - now : 0;
    /* A copy that is not over by half of it is killed, which takes time, too. */
    stop(staging, KVB_ERR_CANCELED,
         staging->phase == COPYING ? now + left_ns / 2 : stop_deadline_ns);
}

/* While the transport moves, it is its own deadline that counts. */
static void on_deadline(struct kvb_timer *timer)
{
    struct staging *staging = kvb_container_of(timer, struct staging, deadline);
    if (staging->phase != MOVING) {
        staging->ours = true;
        stop(staging, KVB_ERR_TIMEOUT, now_ns(staging) + KVB_NS_PER_S);
    }
}

static void on_turn(struct kvb_event *event)
{
    struct kvt_device *device = kvb_container_of(event, struct kvt_device, turn);
    struct kvb_list ended;
    bool full = false;
    kvb_list_init(&ended);
    kvb_list_each(&device->waiting, link)
    {
        struct staging *staging = kvb_container_of(link, struct staging, link);
        if (staging->stopped == KVB_OK) {
            if (full) {
                continue;
            }
            kvb_list_remove(link);
            if (!place(staging)) {
                kvb_list_push_front(&device->waiting, link);
                full = true; /* in order: nobody overtakes the first that does not fit */
                continue;
            }
            staging->stopped = begin(staging);
            if (staging->stopped == KVB_OK) {
                continue;
            }
        }
        kvb_list_remove(link);
        kvb_list_push_back(&ended, link);
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&ended)) != NULL;) {
        struct staging *staging = kvb_container_of(link, struct staging, link);
        finish(staging, staging->stopped);
    }
}

/* ---- starting ---- */

/* Whether it can be staged, and how much of it: bytes and slices that are a device's. */
static kvb_status_t measure(const struct kvt_transfer *transfer, struct kvt_device **device_p,
                            uint64_t *len_p, uint32_t *npieces_p)
{
    struct kvt_device *device = NULL;
    uint64_t len = 0;
    uint32_t npieces = 0;
    for (uint32_t i = 0; i < transfer->nslices; i++) {
        struct kvt_device *its = transfer->slices[i].region->desc.device;
        if (its == NULL) {
            continue;
        }
        if (device != NULL && its != device) {
            return KVB_ERR_INVALID;
        }
        device = its;
        len += transfer->slices[i].len; /* kvt_slices_check has added them up before */
        npieces++;
    }
    len = (len + ALIGN - 1) / ALIGN * ALIGN;
    if (device == NULL || len > device->pool_len || npieces > KVT_DEVICE_PIECES_MAX) {
        return KVB_ERR_INVALID;
    }
    *device_p = device;
    *len_p = len;
    *npieces_p = npieces;
    return KVB_OK;
}

static void describe(struct staging *staging)
{
    const struct kvt_transfer *outer = staging->outer;
    uint64_t at = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < outer->nslices; i++) {
        const struct kvt_slice *slice = &outer->slices[i];
        staging->slices[i] = *slice;
        if (slice->region->desc.device == NULL) {
            continue;
        }
        staging->slices[i].region = staging->device->pool;
        staging->slices[i].offset = at;
        staging->pieces[n++] = (struct kvt_device_piece){.id = slice->region->target_id,
                                                         .offset = slice->offset,
                                                         .pool_offset = at,
                                                         .len = slice->len};
        at += slice->len;
    }
}

kvb_status_t kvt_staging_start(struct kvt_transfer *transfer)
{
    struct kvt_device *device;
    uint64_t len;
    uint32_t npieces;
    kvb_status_t status = measure(transfer, &device, &len, &npieces);
    if (status != KVB_OK) {
        return status;
    }
    struct staging *staging =
        malloc(sizeof *staging + transfer->nslices * sizeof staging->slices[0] +
               npieces * sizeof staging->pieces[0]);
    if (staging == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *staging = (struct staging){
        .inner = *transfer,
        .outer = transfer,
        .device = device,
        .phase = WAITING,
        .len = len,
        .npieces = npieces,
        .pieces = (struct kvt_device_piece *)(void *)&staging->slices[transfer->nslices],
    };
    kvb_list_init(&staging->link);
    kvb_list_init(&staging->inner.impl.link);
    kvb_timer_init(&staging->deadline, on_deadline);
    describe(staging);
    staging->inner.slices = staging->slices;
    staging->inner.impl.staged = true;

    if (!kvb_list_empty(&device->waiting) || !place(staging)) {
        kvb_list_push_back(&device->waiting, &staging->link);
    } else {
        status = begin(staging);
    }
    if (status != KVB_OK) {
        kvb_list_remove(&staging->link);
        free(staging);
        return status;
    }
    transfer->impl.staging = staging;
    kvb_sched_timer_set(device->sched, &staging->deadline, transfer->deadline_ns);
    return KVB_OK;
}

void kvt_staging_init(struct kvt_device *device)
{
    kvb_list_init(&device->placed);
    kvb_list_init(&device->waiting);
    kvb_event_init(&device->turn, on_turn);
}

void kvt_staging_cleanup(struct kvt_device *device)
{
    kvb_assert(kvb_list_empty(&device->placed) && kvb_list_empty(&device->waiting));
    kvb_sched_unpost(&device->turn);
}
