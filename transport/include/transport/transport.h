/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_TRANSPORT_H
#define TRANSPORT_TRANSPORT_H

#include "base/wire.h"
#include "transport/region.h"

/*
 * Moves bytes between regions and shares; knows neither keys nor tenants (DESIGN.md section 6). One
 * interface, several implementations: loopback (this process), tcp (a node behind connections),
 * later rdma. One contract suite runs against each.
 *
 * A transfer copies between slices of regions on the engine's side and the node's memory on the
 * other, in order, as one run of bytes. Where this process reaches the node's memory itself, it
 * names the extents of one share; where the node moves its own bytes (KVT_CAP_ASKS), it carries a
 * question instead, whose meaning is the node's, and no address of the node's memory exists here.
 * A transfer completes exactly once, through its done callback, never inside start or cancel. Loop
 * thread only.
 */
struct kvt_share; /* a node's memory as this transport reaches it */

struct kvt_slice {
    struct kvt_region *region;
    uint64_t offset;
    uint64_t len;
};
struct kvt_extent {
    uint64_t offset; /* in the share */
    uint64_t len;
};

enum kvt_direction { KVT_TO_SHARE, KVT_FROM_SHARE };

struct kvt_transfer {
    /* set by the caller, valid until done */
    enum kvt_direction direction;
    const struct kvt_slice *slices;
    uint32_t nslices; /* 0: only a question */
    bool hash;        /* XXH3-64 over the bytes as they were moved; always, where it asks */
    uint64_t deadline_ns;
    void (*done)(struct kvt_transfer *transfer, kvb_status_t status);
    /* of transports that reach the share */
    struct kvt_share *share;
    const struct kvt_extent *extents; /* same number of bytes as the slices */
    uint32_t nextents;
    /* of transports that ask (KVT_CAP_ASKS) */
    uint16_t type;       /* of the question, the node's own; not 0 */
    struct kvb_span ask; /* the question; may be empty */
    uint8_t *answer;     /* where the node's answer goes; its bytes are not changed after done */
    uint32_t answer_cap; /* a longer answer is PROTOCOL */

    /* set on success */
    uint64_t checksum;
    /* set when the node answered, whatever its status; else 0 */
    uint32_t answer_len;
    /* set with a failure: it was this side's, of memory that could not be reached (a GPU's), and
     * says nothing of the node */
    bool ours;

    /* the transport's own */
    struct {
        struct kvt_transport *transport;
        struct kvb_list link;
        void *state;
        void *staging; /* it names memory of a device: where it is on its way through the pool */
        void *direct;  /* or its way without */
        bool staged;   /* it is the part of such a one that the transport moves */
    } impl;
};

enum kvt_capability {
    KVT_CAP_PINS_MEMORY = 1,   /* a registration keeps physical pages: sleep must unregister */
    KVT_CAP_EXPORTS_KEYS = 2,  /* peers hold keys to engine memory: sleep mode is refused */
    KVT_CAP_NEEDS_STAGING = 4, /* cannot reach device memory itself */
    KVT_CAP_NODE_COPIES = 8,   /* one request each way, the node moves the bytes (loopback, tcp) */
    KVT_CAP_ASKS = 16,         /* the node lies behind a connection and moves its own bytes (tcp) */
};

/* What an implementation gives; transport_impl.h says what it may call. */
struct kvt_transport_ops {
    const char *name;
    unsigned capabilities;
    kvb_status_t (*start)(struct kvt_transport *transport, struct kvt_transfer *transfer);
    void (*cancel)(struct kvt_transport *transport, struct kvt_transfer *transfer,
                   uint64_t stop_deadline_ns);
    /* NULL, or where another process of this host, with the same secret, reaches the node by RDMA:
     * valid until the next call of the transport. NULL: nowhere. */
    const char *(*rdma_address)(const struct kvt_transport *transport);
    /* Whether it can move bytes of that region, which is registered and no device's; NULL: of every
     * one. */
    bool (*reaches)(struct kvt_transport *transport, const struct kvt_region *region);
    kvb_status_t (*region_register)(struct kvt_transport *transport, struct kvt_region *region);
    /* No transfer names it. Not OK: the registration stands as before, and is asked for again. One
     * that is not there: OK. */
    kvb_status_t (*region_unregister)(struct kvt_transport *transport, struct kvt_region *region);
    void (*destroy)(struct kvt_transport *transport);
};
struct kvt_transport {
    const struct kvt_transport_ops *ops;
    struct kvb_sched *sched;
    struct kvt_regions *regions;
    struct kvb_list link; /* one of regions' transports */
    uint32_t in_flight;   /* transfers started, not completed */
    uint32_t in_flight_max;
};

/* A node's memory, for this transport to reach. base is borrowed and outlives the share.
 * NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvt_share_create(struct kvt_transport *transport, void *base,
                                           uint64_t len, struct kvt_share **share_p);
void kvt_share_destroy(struct kvt_share *share); /* no transfer names it; NULL: nothing */

/* The bytes that slices name. INVALID: none, or one that is empty or outside its region.
 * GENERATION: a region is not registered. */
KVB_MUST_USE kvb_status_t kvt_slices_check(const struct kvt_slice *slices, uint32_t n,
                                           uint64_t *len_p);

/*
 * Holds the regions that slices name, as a running transfer does, for what has steps of its own
 * before and after one: unregistering waits for it, too. All registered (asserted). gone: one of
 * them was released all the same (possible only where that protection was taken out).
 */
void kvt_slices_get(const struct kvt_slice *slices, uint32_t n);
void kvt_slices_put(const struct kvt_slice *slices, uint32_t n);
bool kvt_slices_gone(const struct kvt_slice *slices, uint32_t n);

/*
 * Begins a transfer; takes a reference on every region named. Not taken, nothing started, on:
 * INVALID (lengths differ, a slice or extent that is empty or outside, nothing to move; of memory
 * of a device: of more than one, or more than its pool has room for), GENERATION
 * (a region is not registered), AGAIN (in_flight_max: the completion of any transfer makes room),
 * UNAVAILABLE (the node cannot be reached now), UNSUPPORTED (this transport does not reach the
 * memory of a region; another one may).
 * done then tells OK, TIMEOUT (deadline), CANCELED, DISCONNECTED (the node went away meanwhile), or
 * an error of the peer. After any of them but OK a get's destination is undefined.
 */
KVB_MUST_USE kvb_status_t kvt_transfer_start(struct kvt_transport *transport,
                                             struct kvt_transfer *transfer);

/* Stops a started transfer; done comes by the deadline with CANCELED, or with what it had come to.
 * Idempotent. */
void kvt_transfer_cancel(struct kvt_transfer *transfer, uint64_t stop_deadline_ns);

/* The transport of one process: the share is its own memory. Moves at most KVT_LOOPBACK_SLICE bytes
 * a turn and transfer, and KVT_LOOPBACK_TURN bytes a turn, so that long copies, few or many, hold
 * nothing up. NO_MEMORY. */
#define KVT_LOOPBACK_SLICE (256u << 10)
#define KVT_LOOPBACK_TURN  (1u << 20)
KVB_MUST_USE kvb_status_t kvt_loopback_create(struct kvt_regions *regions, uint32_t in_flight_max,
                                              struct kvt_transport **transport_p);

/* No region registered; nothing in flight, but where it asks: there such transfers end CANCELED,
 * inside. NULL: nothing. */
void kvt_transport_destroy(struct kvt_transport *transport);

#endif
