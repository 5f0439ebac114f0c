/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_DEVICE_H
#define TRANSPORT_DEVICE_H

#include "base/list.h"
#include "base/sched.h"
#include "base/status.h"
#include "base/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Memory that this process does not touch itself: another one does (CUDA's: transport/cuda.h), and
 * copies between it and a pool of host memory. Transports never see such a region. A transfer that
 * names one goes through the pool (transport/staging.c): a put is copied there first and moved from
 * there, a get is moved there and copied on. The pool is a host region like any other, so every
 * transport can move its bytes, whatever it needs of them.
 *
 * Nothing here waits for the other process. A job is done later, exactly once, never inside the
 * call that starts it; by its deadline, or the other process is killed and it is done when that is
 * gone. Loop thread only.
 */
struct kvt_device;
struct kvt_region;
struct kvt_region_desc;

struct kvt_device_job {
    void (*done)(struct kvt_device_job *job, kvb_status_t status);
    uint64_t deadline_ns;
    struct kvb_list link; /* in a list of the device's while the job runs; empty: it does not */
    bool direct;          /* set when an import is done: move() takes it */
    /* the device's own */
    struct {
        uint64_t seq;
        uint64_t id;
        unsigned step;
        kvb_status_t status;
        struct kvt_device_move *move;
    } impl;
};

struct kvt_device_piece {
    uint64_t id; /* of the import */
    uint64_t offset;
    uint64_t pool_offset;
    uint64_t len;
};

/* A transfer that the device's process makes by itself, over connections of its own to the node: a
 * question with a body, as in transport.h. All of it stays as it is until the job is done. */
struct kvt_device_move {
    const char *address; /* of the node; shorter than KVT_DEVICE_ADDRESS_MAX */
    bool to_node;
    uint16_t type;
    struct kvb_span ask; /* at most KVT_DEVICE_ASK_MAX */
    uint8_t *answer;
    uint32_t answer_cap; /* at most KVT_DEVICE_ANSWER_MAX */
    uint32_t answer_len; /* set before the job is done */
    bool told;           /* so, too: how it ended is that process's word, not the end of that */
    uint64_t deadline_ns;
    const struct kvt_device_piece *pieces; /* of imports that are direct; pool_offset: unused */
    uint32_t n;
};
#define KVT_DEVICE_ADDRESS_MAX 80u
#define KVT_DEVICE_ASK_MAX     8192u
#define KVT_DEVICE_ANSWER_MAX  1024u

/* The other process, for operators: what it held when it last answered for an import or a drop, in
 * references of each kind. */
#define KVT_DEVICE_HOLDINGS(X)                                                                     \
    X(regions)                                                                                     \
    X(descriptors) X(handles) X(addresses) X(mappings) X(contexts) X(dma_bufs) X(registrations)

#define KVT_DEVICE_CAUSE_MAX 192

struct kvt_device_info {
    int pid; /* 0: none runs */
    /* since open; failures: whatever `cause` was set for */
    uint32_t starts, kills, failures;
#define X(member) uint32_t member;
    KVT_DEVICE_HOLDINGS(X)
#undef X
    char cause[KVT_DEVICE_CAUSE_MAX]; /* of the last failure, for people; "" */
    /* Where regions can be reached by an RDMA device: */
    bool direct;                           /* it was asked for */
    uint64_t moves;                        /* transfers that went without the pool */
    char pool_cause[KVT_DEVICE_CAUSE_MAX]; /* why the pool was used instead, last; "" */
};

struct kvt_device_ops {
    const char *name;
    /*
     * Takes hold of what the descriptor names, under an id of the caller's. fd is borrowed during
     * the call. done: INVALID (it does not name such memory), UNSUPPORTED (this machine has none),
     * NO_MEMORY, IO, TIMEOUT, UNAVAILABLE (the other process died): nothing is held.
     */
    void (*import)(struct kvt_device *device, uint64_t id, const struct kvt_region_desc *desc,
                   int fd, struct kvt_device_job *job);
    /* Lets go of it; OK: nothing of ours holds it, be it because that process is gone. TIMEOUT: it
     * could not even be killed. */
    void (*drop)(struct kvt_device *device, uint64_t id, struct kvt_device_job *job);
    /* Up to KVT_DEVICE_PIECES_MAX pieces, to the pool or from it; copied during the call. done:
     * GENERATION (an import is not there any more), IO, TIMEOUT, UNAVAILABLE: nothing of it is
     * running any more. */
    void (*copy)(struct kvt_device *device, bool to_pool, const struct kvt_device_piece *pieces,
                 uint32_t n, struct kvt_device_job *job);
    /*
     * NULL: never. done: as the end of a transfer; UNSUPPORTED: it was not begun, and is to go
     * through the pool; UNAVAILABLE: that process died. In all cases: nothing of it is running any
     * more.
     */
    void (*move)(struct kvt_device *device, struct kvt_device_move *move,
                 struct kvt_device_job *job);
    /* Brings the deadline of a running job forward; a move is told to end by half of that. */
    void (*hurry)(struct kvt_device *device, struct kvt_device_job *job, uint64_t deadline_ns);
    void (*info)(struct kvt_device *device, struct kvt_device_info *info_p);
};

#define KVT_DEVICE_PIECES_MAX 1024u
#define KVT_DEVICE_COPY_MS    10000u /* a copy's own bound */
#define KVT_DEVICE_DROP_MS    5000u  /* and a drop's */

struct kvt_device {
    const struct kvt_device_ops *ops;
    struct kvb_sched *sched;
    struct kvt_region *pool; /* registered for as long as the device is open */
    uint64_t pool_len;
    void (*changed)(void *arg); /* its info has; set by who opened it; NULL: nobody asks */
    void *changed_arg;

    /* staging's: transfers that have their place in the pool, in its order, and those that wait */
    struct kvb_list placed;
    struct kvb_list waiting;
    struct kvb_event turn;
};

#endif
