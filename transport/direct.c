/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that name memory of a device and do not go through its pool: the process that holds the
 * memory moves the bytes itself, over connections of its own to the same node, with the same
 * question (transport/device.h, move). The transfer here is the one that is counted and cancelled,
 * and whose regions are held until that process has said that it is over, or is gone; so a region
 * is never let go of under it.
 */
#include "base/assert.h"
#include "transport_impl.h"

#include <stdlib.h>
#include <string.h>

/* After its deadline a move has so long to end by itself, before its process is killed. */
#define GRACE_MS 2000u

struct direct {
    struct kvt_transfer *outer;
    struct kvt_device *device;
    bool cancelled;
    struct kvt_device_job job;
    struct kvt_device_move move;
    struct kvt_device_piece pieces[];
};

/* The device that all of it is memory of, and moves by itself; NULL: there is none. */
static struct kvt_device *device_of(const struct kvt_transfer *transfer)
{
    struct kvt_device *device = transfer->slices[0].region->desc.device;
    for (uint32_t i = 0; i < transfer->nslices; i++) {
        const struct kvt_region *region = transfer->slices[i].region;
        if (region->desc.device != device || !region->direct) {
            return NULL;
        }
    }
    return device;
}

/* Where the node is; NULL: it, or this question, is not for the device. */
static const char *address_of(const struct kvt_transfer *transfer)
{
    const struct kvt_transport *transport = transfer->impl.transport;
    if (transport->ops->rdma_address == NULL || transfer->nslices > KVT_DEVICE_PIECES_MAX ||
        transfer->ask.len > KVT_DEVICE_ASK_MAX || transfer->answer_cap > KVT_DEVICE_ANSWER_MAX) {
        return NULL;
    }
    const char *address = transport->ops->rdma_address(transport);
    return address != NULL && strlen(address) < KVT_DEVICE_ADDRESS_MAX ? address : NULL;
}

static void on_moved(struct kvt_device_job *job, kvb_status_t status)
{
    struct direct *direct = kvb_container_of(job, struct direct, job);
    struct kvt_transfer *transfer = direct->outer;
    bool cancelled = direct->cancelled;
    transfer->answer_len = direct->move.answer_len;
    /* IO: the bytes did not come to rest in its memory */
    transfer->ours = status != KVB_OK && (!direct->move.told || status == KVB_ERR_IO);
    transfer->impl.direct = NULL;
    free(direct);
    if (status == KVB_ERR_UNSUPPORTED) {
        status = cancelled ? KVB_ERR_CANCELED : kvt_staging_start(transfer);
        if (status == KVB_OK) {
            return;
        }
    }
    kvt_transfer_finish(transfer, status);
}

static uint64_t grace_ns(uint64_t deadline_ns)
{
    uint64_t grace = GRACE_MS * KVB_NS_PER_MS;
    return deadline_ns < KVB_NEVER - grace ? deadline_ns + grace : KVB_NEVER;
}

kvb_status_t kvt_direct_start(struct kvt_transfer *transfer)
{
    struct kvt_device *device = device_of(transfer);
    const char *address = device != NULL ? address_of(transfer) : NULL;
    if (address == NULL) {
        return KVB_ERR_UNSUPPORTED;
    }
    struct direct *direct = malloc(sizeof *direct + transfer->nslices * sizeof direct->pieces[0]);
    if (direct == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *direct = (struct direct){
        .outer = transfer,
        .device = device,
        .job = {.done = on_moved, .deadline_ns = grace_ns(transfer->deadline_ns)},
        .move = {.address = address,
                 .to_node = transfer->direction == KVT_TO_SHARE,
                 .type = transfer->type,
                 .ask = transfer->ask,
                 .answer = transfer->answer,
                 .answer_cap = transfer->answer_cap,
                 .deadline_ns = transfer->deadline_ns,
                 .pieces = direct->pieces,
                 .n = transfer->nslices},
    };
    for (uint32_t i = 0; i < transfer->nslices; i++) {
        const struct kvt_slice *slice = &transfer->slices[i];
        direct->pieces[i] = (struct kvt_device_piece){
            .id = slice->region->id, .offset = slice->offset, .len = slice->len};
    }
    kvb_list_init(&direct->job.link);
    transfer->impl.direct = direct;
    transfer->answer_len = 0;
    transfer->checksum = 0;
    device->ops->move(device, &direct->move, &direct->job);
    return KVB_OK;
}

/* What has not ended by half of the time is killed, which takes time, too. */
void kvt_direct_cancel(struct kvt_transfer *transfer, uint64_t stop_deadline_ns)
{
    struct direct *direct = transfer->impl.direct;
    uint64_t now_ns = kvb_now_ns(direct->device->sched->clock);
    uint64_t left_ns = stop_deadline_ns > now_ns ? stop_deadline_ns - now_ns : 0;
    direct->cancelled = true;
    direct->device->ops->hurry(direct->device, &direct->job, now_ns + left_ns / 2);
}
