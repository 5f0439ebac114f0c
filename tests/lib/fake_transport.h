/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_TRANSPORT_H
#define TESTS_FAKE_TRANSPORT_H

/*
 * A transport that does nothing by itself: a started transfer waits until the test ends it. So a
 * test can hold one between any two steps, end it as it likes, ignore a cancel, or refuse to start.
 * Include path: transport/ (private headers).
 */
#include "base/assert.h"
#include "transport_impl.h"

#include <xxhash.h>

#include <stdlib.h>

struct fake_transport {
    struct kvt_transport base;
    uint32_t started;        /* so far */
    uint32_t cancels;        /* so far */
    kvb_status_t refuse;     /* not OK: what start answers */
    kvb_status_t register_;  /* not OK: what registering a region answers */
    uint32_t registered;     /* so far */
    uint32_t unregistered;   /* so far */
    bool pins;               /* what it registers */
    uint32_t register_after; /* so many are registered before register_ counts */
    uint32_t clings;         /* so often it cannot take a registration back */
};

static inline struct fake_transport *fake_of_(struct kvt_transport *transport)
{
    return kvb_container_of(transport, struct fake_transport, base);
}

static inline kvb_status_t fake_start_(struct kvt_transport *transport,
                                       struct kvt_transfer *transfer)
{
    struct fake_transport *fake = fake_of_(transport);
    (void)transfer;
    if (fake->refuse != KVB_OK) {
        return fake->refuse;
    }
    fake->started++;
    return KVB_OK;
}

static inline void fake_cancel_(struct kvt_transport *transport, struct kvt_transfer *transfer,
                                uint64_t stop_deadline_ns)
{
    (void)transfer;
    (void)stop_deadline_ns;
    fake_of_(transport)->cancels++;
}

static inline kvb_status_t fake_register_(struct kvt_transport *transport,
                                          struct kvt_region *region)
{
    struct fake_transport *fake = fake_of_(transport);
    bool refused = fake->register_ != KVB_OK && fake->register_after == 0;
    fake->register_after -= fake->register_ != KVB_OK && !refused;
    if (!refused) {
        fake->registered++;
        region->pinned_bytes += fake->pins ? region->desc.len : 0;
    }
    return refused ? fake->register_ : KVB_OK;
}

static inline kvb_status_t fake_unregister_(struct kvt_transport *transport,
                                            struct kvt_region *region)
{
    struct fake_transport *fake = fake_of_(transport);
    if (fake->clings > 0) {
        fake->clings--;
        return KVB_ERR_IO;
    }
    fake->unregistered++;
    region->pinned_bytes -= fake->pins ? region->desc.len : 0;
    return KVB_OK;
}

static inline void fake_destroy_(struct kvt_transport *transport)
{
    free(fake_of_(transport));
}

static inline struct fake_transport *fake_transport_create(struct kvt_regions *regions,
                                                           uint32_t in_flight_max)
{
    static const struct kvt_transport_ops ops = {
        .name = "fake",
        .start = fake_start_,
        .cancel = fake_cancel_,
        .region_register = fake_register_,
        .region_unregister = fake_unregister_,
        .destroy = fake_destroy_,
    };
    struct fake_transport *fake = calloc(1, sizeof *fake);
    kvb_assert(fake != NULL);
    kvt_transport_init(&fake->base, &ops, regions, in_flight_max);
    return fake;
}

/* The oldest transfer that waits, or NULL. */
static inline struct kvt_transfer *fake_oldest(struct fake_transport *fake)
{
    struct kvb_list *link = kvb_list_first(&fake->base.regions->transfers);
    return link == NULL ? NULL : kvb_container_of(link, struct kvt_transfer, impl.link);
}

/* Moves the transfer's first len bytes, in order (len: UINT64_MAX for all), and sets its checksum
 * if it is all of them. */
static inline void fake_move(struct kvt_transfer *transfer, uint64_t len)
{
    XXH64_hash_t check = 0;
    XXH3_state_t *hash = XXH3_createState();
    kvb_assert(hash != NULL && XXH3_64bits_reset(hash) == XXH_OK);
    uint64_t soff = 0, eoff = 0;
    uint32_t s = 0, e = 0;
    while (len > 0 && s < transfer->nslices) {
        const struct kvt_slice *slice = &transfer->slices[s];
        const struct kvt_extent *extent = &transfer->extents[e];
        uint64_t n =
            slice->len - soff < extent->len - eoff ? slice->len - soff : extent->len - eoff;
        n = n < len ? n : len;
        uint8_t *share = (uint8_t *)transfer->share->base + extent->offset + eoff;
        kvb_assert((transfer->direction == KVT_TO_SHARE
                        ? kvt_region_read(slice->region, slice->offset + soff, share, n)
                        : kvt_region_write(slice->region, slice->offset + soff, share, n)) ==
                   KVB_OK);
        kvb_assert(XXH3_64bits_update(hash, share, n) == XXH_OK);
        len -= n;
        soff += n;
        eoff += n;
        if (soff == slice->len) {
            s++;
            soff = 0;
        }
        if (eoff == extent->len) {
            e++;
            eoff = 0;
        }
    }
    check = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    if (s == transfer->nslices) {
        transfer->checksum = check;
    }
}

/* Ends it; not from inside start or cancel. */
static inline void fake_end(struct kvt_transfer *transfer, kvb_status_t status)
{
    kvt_transfer_finish(transfer, status);
}

#endif
