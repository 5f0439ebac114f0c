/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_IMPL_H
#define TRANSPORT_IMPL_H

/*
 * What a transport's implementation may know and call. The common part (transport.c) checks
 * arguments, counts, holds the references on regions and completes; an implementation only moves
 * bytes. Loop thread only.
 *
 *   start       the transfer was checked and is counted; on failure it is as if it never was
 *   cancel      kvt_transfer_finish() must come, later, by the deadline; repeated calls arrive too
 *   region_*    may be NULL: nothing to do. unregister: no transfer names the region any more
 *   destroy     frees the transport
 */
#include "transport/device.h"
#include "transport/transport.h"

struct kvt_regions {
    struct kvb_sched *sched;
    const struct kvt_memory_ops *memory[KVT_MEMORY_KINDS]; /* NULL: not supported here */
    struct kvb_list transports;
    struct kvb_list transfers; /* of all transports: started, not completed */
    uint32_t n;                /* regions that exist */
    uint32_t registered;
    uint64_t last_id;      /* of an import to a device */
    struct kvb_list stale; /* fault runs: registrations that outlived their region */
};

struct kvt_region {
    struct kvt_regions *regions;
    struct kvt_region_desc desc;
    enum kvt_region_state state;
    const struct kvt_memory_ops *memory; /* NULL: memory of a device */
    int fd;                              /* -1 when unregistered, and when a device has it */
    void *map;                           /* NULL unless registered or draining */
    /* What transfers go through: map, but for the stale registration of a fault run. */
    void *target;
    uint32_t refs;
    uint64_t pinned_bytes; /* the transports' that pin */
    /* While it is registered with them: not -1: a dma-buf of its memory, and where in it. */
    int dma_buf;
    uint64_t dma_buf_offset;

    /* memory of a device only */
    bool direct;               /* its device moves its bytes by itself, too */
    uint64_t id;               /* what the device knows it by */
    uint64_t target_id;        /* as target: what transfers name */
    struct kvt_device_job job; /* import, then drop */
    bool imported;
    kvt_region_done_fn registered;
    void *registered_arg;

    /* draining only */
    bool quiescing;       /* past the drain deadline: its transfers were cancelled */
    kvb_status_t refused; /* not OK: why a transport could not take its registration back */
    uint64_t stop_deadline_ns;
    struct kvb_event step;
    struct kvb_timer bound;
    kvt_region_done_fn done;
    void *arg;

    /* Fault runs: released under its transfers. The last of them unmaps, and frees a destroyed one.
     */
    bool destroyed;
};

struct kvt_share {
    struct kvt_transport *transport;
    void *base;
    uint64_t len;
};

/* Fills what is common. A transport may come when regions are registered already: one whose
 * region_register does something must then be told of them by itself. */
void kvt_transport_init(struct kvt_transport *transport, const struct kvt_transport_ops *ops,
                        struct kvt_regions *regions, uint32_t in_flight_max);

/* Completes a started transfer, once; gives its references back, then calls done. Never inside
 * start or cancel. OK becomes GENERATION if one of its regions was released meanwhile. The transfer
 * is the caller's again. */
void kvt_transfer_finish(struct kvt_transfer *transfer, kvb_status_t status);

/* Bytes between a region and our own memory. Errors are those of the memory kind. */
KVB_MUST_USE kvb_status_t kvt_region_read(const struct kvt_region *region, uint64_t offset,
                                          void *dst, size_t len);
KVB_MUST_USE kvb_status_t kvt_region_write(const struct kvt_region *region, uint64_t offset,
                                           const void *src, size_t len);

/*
 * Transfers that name memory of a device (staging.c). start and cancel as a transport's; moved: the
 * transfer between pool and node is over. Refusals of start: INVALID also: of two devices, or more
 * than the pool has room for.
 */
KVB_MUST_USE kvb_status_t kvt_staging_start(struct kvt_transfer *transfer);
void kvt_staging_cancel(struct kvt_transfer *transfer, uint64_t stop_deadline_ns);
void kvt_staging_moved(struct kvt_transfer *inner, kvb_status_t status);
bool kvt_staging_needed(const struct kvt_transfer *transfer);

/*
 * Those that the device moves itself (direct.c). start: UNSUPPORTED: through the pool; NO_MEMORY.
 * What cannot be begun after all goes through the pool then.
 */
KVB_MUST_USE kvb_status_t kvt_direct_start(struct kvt_transfer *transfer);
void kvt_direct_cancel(struct kvt_transfer *transfer, uint64_t stop_deadline_ns);

/* Of a device: before anything is staged, and after everything is. */
void kvt_staging_init(struct kvt_device *device);
void kvt_staging_cleanup(struct kvt_device *device);

/* For transport.c. usable: a transfer may name it. */
bool kvt_region_usable(const struct kvt_region *region);
void kvt_region_get(struct kvt_region *region);
void kvt_region_put(struct kvt_region *region);

#endif
