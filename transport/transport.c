/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/transport.h"

#include "base/assert.h"
#include "base/faults.h"
#include "transport_impl.h"

#include <stdlib.h>

void kvt_transport_init(struct kvt_transport *transport, const struct kvt_transport_ops *ops,
                        struct kvt_regions *regions, uint32_t in_flight_max)
{
    *transport = (struct kvt_transport){
        .ops = ops,
        .sched = regions->sched,
        .regions = regions,
        .in_flight_max = in_flight_max,
    };
    kvb_list_push_back(&regions->transports, &transport->link);
}

void kvt_transport_destroy(struct kvt_transport *transport)
{
    if (transport == NULL) {
        return;
    }
    bool ends_them = (transport->ops->capabilities & KVT_CAP_ASKS) != 0;
    kvb_assert(ends_them || transport->in_flight == 0);
    kvb_assert(transport->ops->region_unregister == NULL || transport->regions->registered == 0);
    kvb_list_remove(&transport->link);
    transport->ops->destroy(transport);
}

kvb_status_t kvt_share_create(struct kvt_transport *transport, void *base, uint64_t len,
                              struct kvt_share **share_p)
{
    struct kvt_share *share = malloc(sizeof *share);
    if (share == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *share = (struct kvt_share){.transport = transport, .base = base, .len = len};
    *share_p = share;
    return KVB_OK;
}

void kvt_share_destroy(struct kvt_share *share)
{
    free(share);
}

/* Is [offset, offset + len) a part of [0, limit)? */
static bool fits(uint64_t offset, uint64_t len, uint64_t limit)
{
    return len != 0 && len <= limit && offset <= limit - len;
}

kvb_status_t kvt_slices_check(const struct kvt_slice *slices, uint32_t n, uint64_t *len_p)
{
    uint64_t len = 0;
    bool registered = true;

    for (uint32_t i = 0; i < n; i++) {
        if (!fits(slices[i].offset, slices[i].len, slices[i].region->desc.len) ||
            slices[i].len > UINT64_MAX - len) {
            return KVB_ERR_INVALID;
        }
        len += slices[i].len;
        registered = registered && kvt_region_usable(slices[i].region);
    }
    if (len == 0) {
        return KVB_ERR_INVALID;
    }
    if (!registered) {
        return KVB_ERR_GENERATION;
    }
    *len_p = len;
    return KVB_OK;
}

static kvb_status_t check_extents(const struct kvt_transfer *transfer, uint64_t slices_len)
{
    uint64_t len = 0;
    for (uint32_t i = 0; i < transfer->nextents; i++) {
        const struct kvt_extent *extent = &transfer->extents[i];
        if (!fits(extent->offset, extent->len, transfer->share->len) ||
            extent->len > UINT64_MAX - len) {
            return KVB_ERR_INVALID;
        }
        len += extent->len;
    }
    return len == slices_len ? KVB_OK : KVB_ERR_INVALID;
}

void kvt_slices_get(const struct kvt_slice *slices, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        kvt_region_get(slices[i].region);
    }
}

void kvt_slices_put(const struct kvt_slice *slices, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        kvt_region_put(slices[i].region);
    }
}

bool kvt_slices_gone(const struct kvt_slice *slices, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (slices[i].region->state == KVT_REGION_UNREGISTERED) {
            return !kvb_fault_all(KVB_FAULT_DRAIN_SKIPPED);
        }
    }
    return false;
}

/* Memory of a device: by way of its pool. */
static bool reaches_all(struct kvt_transport *transport, const struct kvt_transfer *transfer)
{
    for (uint32_t i = 0; transport->ops->reaches != NULL && i < transfer->nslices; i++) {
        const struct kvt_region *region = transfer->slices[i].region;
        region = region->desc.device != NULL ? region->desc.device->pool : region;
        if (!transport->ops->reaches(transport, region)) {
            return false;
        }
    }
    return true;
}

/* Without the pool if that can be. */
static kvb_status_t start(struct kvt_transport *transport, struct kvt_transfer *transfer)
{
    bool of_device = kvt_staging_needed(transfer);
    kvb_status_t status = of_device ? kvt_direct_start(transfer) : KVB_ERR_UNSUPPORTED;
    if (status != KVB_ERR_UNSUPPORTED || !reaches_all(transport, transfer)) {
        return status;
    }
    return of_device ? kvt_staging_start(transfer) : transport->ops->start(transport, transfer);
}

kvb_status_t kvt_transfer_start(struct kvt_transport *transport, struct kvt_transfer *transfer)
{
    bool asks = (transport->ops->capabilities & KVT_CAP_ASKS) != 0;
    kvb_assert(asks || transfer->share->transport == transport);
    uint64_t len;
    kvb_status_t status = KVB_OK;
    if (!asks || transfer->nslices > 0) {
        status = kvt_slices_check(transfer->slices, transfer->nslices, &len);
    }
    if (status == KVB_OK && !asks) {
        status = check_extents(transfer, len);
    }
    if (status != KVB_OK) {
        return status;
    }
    if (transport->in_flight >= transport->in_flight_max) {
        return KVB_ERR_AGAIN;
    }
    kvt_slices_get(transfer->slices, transfer->nslices);
    transfer->impl.transport = transport;
    transfer->impl.state = NULL;
    kvb_list_push_back(&transport->regions->transfers, &transfer->impl.link);
    transport->in_flight++;

    transfer->impl.staging = transfer->impl.direct = NULL;
    transfer->impl.staged = false;
    transfer->ours = false;

    status = start(transport, transfer);
    if (status != KVB_OK) {
        transport->in_flight--;
        kvb_list_remove(&transfer->impl.link);
        kvt_slices_put(transfer->slices, transfer->nslices);
    }
    return status;
}

void kvt_transfer_cancel(struct kvt_transfer *transfer, uint64_t stop_deadline_ns)
{
    struct kvt_transport *transport = transfer->impl.transport;
    if (transfer->impl.direct != NULL) {
        kvt_direct_cancel(transfer, stop_deadline_ns);
    } else if (transfer->impl.staging != NULL) {
        kvt_staging_cancel(transfer, stop_deadline_ns);
    } else {
        transport->ops->cancel(transport, transfer, stop_deadline_ns);
    }
}

void kvt_transfer_finish(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct kvt_transport *transport = transfer->impl.transport;
    if (transfer->impl.staged) {
        kvt_staging_moved(transfer, status);
        return;
    }
    if (status == KVB_OK && kvt_slices_gone(transfer->slices, transfer->nslices)) {
        status = KVB_ERR_GENERATION;
    }
    transport->in_flight--;
    kvb_list_remove(&transfer->impl.link);
    kvt_slices_put(transfer->slices, transfer->nslices);
    transfer->done(transfer, status);
}
