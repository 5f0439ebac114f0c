/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_URING_PIN_H
#define TESTS_URING_PIN_H

/*
 * A transport whose registrations are pins of the kernel: io_uring's fixed buffers hold physical
 * pages as an RDMA driver's memory regions do. A region is one fixed buffer of a ring of its own;
 * a transfer reads or writes a file (the node's memory) from or into those pages.
 */
#include "base/assert.h"
#include "transport_impl.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PIN_DEPTH   8
#define PIN_REGIONS 8

struct pin_ring {
    const struct kvt_region *region; /* NULL: free */
    int fd;
    uint8_t *map;
    size_t map_len;
    struct io_uring_sqe *sqes;
    struct io_uring_params params;
};

struct pin {
    struct kvt_transport base;
    int file;   /* where transfers go and come from */
    bool piped; /* it is a pipe: offsets mean nothing */
    bool keep;  /* the control: registrations are not taken back */
    struct pin_ring rings[PIN_REGIONS];
    struct kvb_list running;
    struct kvb_event look;
};

struct pin_job {
    struct kvb_list link;
    struct kvt_transfer *transfer;
    struct pin_ring *ring;
    bool stopped;
};

/* 0, or an errno. */
static inline int pin_ring_open(struct pin_ring *ring)
{
    *ring = (struct pin_ring){.fd = -1};
    ring->fd = (int)syscall(__NR_io_uring_setup, PIN_DEPTH, &ring->params);
    if (ring->fd < 0) {
        return errno;
    }
    const struct io_uring_params *p = &ring->params;
    kvb_assert((p->features & IORING_FEAT_SINGLE_MMAP) != 0);
    size_t sq = p->sq_off.array + p->sq_entries * sizeof(uint32_t);
    size_t cq = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    ring->map_len = sq > cq ? sq : cq;
    ring->map = mmap(NULL, ring->map_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                     ring->fd, IORING_OFF_SQ_RING);
    ring->sqes = mmap(NULL, p->sq_entries * sizeof *ring->sqes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQES);
    kvb_assert(ring->map != MAP_FAILED && (void *)ring->sqes != MAP_FAILED);
    return 0;
}

static inline void pin_ring_close(struct pin_ring *ring)
{
    (void)munmap(ring->sqes, ring->params.sq_entries * sizeof *ring->sqes);
    (void)munmap(ring->map, ring->map_len);
    (void)close(ring->fd);
    ring->region = NULL;
}

static inline _Atomic uint32_t *pin_u32(const struct pin_ring *ring, uint32_t at)
{
    return (_Atomic uint32_t *)(void *)(ring->map + at);
}

static inline void pin_submit(struct pin_ring *ring, struct io_uring_sqe sqe)
{
    uint32_t tail = *pin_u32(ring, ring->params.sq_off.tail);
    uint32_t slot = tail & *pin_u32(ring, ring->params.sq_off.ring_mask);
    ring->sqes[slot] = sqe;
    *pin_u32(ring, ring->params.sq_off.array + slot * (uint32_t)sizeof slot) = slot;
    *pin_u32(ring, ring->params.sq_off.tail) = tail + 1;
    kvb_assert(syscall(__NR_io_uring_enter, ring->fd, 1, 0, 0, NULL, 0) == 1);
}

/* False: there is no completion. */
static inline bool pin_reap(struct pin_ring *ring, struct io_uring_cqe *cqe_p)
{
    uint32_t head = *pin_u32(ring, ring->params.cq_off.head);
    if (head == *pin_u32(ring, ring->params.cq_off.tail)) {
        return false;
    }
    uint32_t slot = head & *pin_u32(ring, ring->params.cq_off.ring_mask);
    memcpy(cqe_p, ring->map + ring->params.cq_off.cqes + slot * sizeof *cqe_p, sizeof *cqe_p);
    *pin_u32(ring, ring->params.cq_off.head) = head + 1;
    return true;
}

static inline struct pin *pin_of(struct kvt_transport *transport)
{
    return kvb_container_of(transport, struct pin, base);
}

static inline kvb_status_t pin_region_register(struct kvt_transport *transport,
                                               struct kvt_region *region)
{
    struct pin *pin = pin_of(transport);
    struct pin_ring *ring = pin->rings;
    while (ring->region != NULL) {
        kvb_assert(++ring < pin->rings + PIN_REGIONS);
    }
    if (pin_ring_open(ring) != 0) {
        return KVB_ERR_IO;
    }
    struct iovec iov = {region->map, region->desc.len};
    if (syscall(__NR_io_uring_register, ring->fd, IORING_REGISTER_BUFFERS, &iov, 1) != 0) {
        kvb_status_t status = errno == ENOMEM ? KVB_ERR_LIMIT : KVB_ERR_IO;
        pin_ring_close(ring);
        return status;
    }
    ring->region = region;
    return KVB_OK;
}

static inline struct pin_ring *pin_ring_of(struct pin *pin, const struct kvt_region *region)
{
    for (struct pin_ring *ring = pin->rings; ring < pin->rings + PIN_REGIONS; ring++) {
        if (ring->region == region) {
            return ring;
        }
    }
    kvb_assert(false);
    return NULL;
}

static inline kvb_status_t pin_region_unregister(struct kvt_transport *transport,
                                                 struct kvt_region *region)
{
    struct pin_ring *ring = pin_ring_of(pin_of(transport), region);
    kvb_list_each(&pin_of(transport)->running, link)
    {
        kvb_assert(kvb_container_of(link, struct pin_job, link)->ring != ring);
    }
    kvb_assert(syscall(__NR_io_uring_register, ring->fd, IORING_UNREGISTER_BUFFERS, NULL, 0) == 0);
    pin_ring_close(ring);
    return KVB_OK;
}

static inline kvb_status_t pin_start(struct kvt_transport *transport, struct kvt_transfer *transfer)
{
    struct pin *pin = pin_of(transport);
    const struct kvt_slice *slice = transfer->slices;
    kvb_assert(transfer->nslices == 1 && transfer->nextents == 1);
    struct pin_job *job = malloc(sizeof *job);
    kvb_assert(job != NULL);
    *job = (struct pin_job){.transfer = transfer, .ring = pin_ring_of(pin, slice->region)};
    transfer->impl.state = job;
    kvb_list_push_back(&pin->running, &job->link);
    bool in = transfer->direction == KVT_TO_SHARE;
    pin_submit(job->ring, (struct io_uring_sqe){
                              .opcode = in ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED,
                              .fd = pin->file,
                              .off = pin->piped ? UINT64_MAX : transfer->extents->offset,
                              .addr = (uintptr_t)slice->region->map + slice->offset,
                              .len = (uint32_t)slice->len,
                              .user_data = 1,
                          });
    kvb_sched_post(transport->sched, &pin->look);
    return KVB_OK;
}

static inline void pin_cancel(struct kvt_transport *transport, struct kvt_transfer *transfer,
                              uint64_t stop_deadline_ns)
{
    struct pin_job *job = transfer->impl.state;
    (void)stop_deadline_ns;
    if (!job->stopped) {
        job->stopped = true;
        pin_submit(job->ring, (struct io_uring_sqe){.opcode = IORING_OP_ASYNC_CANCEL, .addr = 1});
        kvb_sched_post(transport->sched, &pin_of(transport)->look);
    }
}

/* Looks until nothing runs, without waiting in the kernel for longer than a moment. */
static inline void pin_look(struct kvb_event *event)
{
    struct pin *pin = kvb_container_of(event, struct pin, look);
    bool some = false, stopping = false;
    kvb_list_each(&pin->running, link)
    {
        struct pin_job *job = kvb_container_of(link, struct pin_job, link);
        struct io_uring_cqe cqe;
        stopping = stopping || !pin->piped || job->stopped;
        while (job != NULL && pin_reap(job->ring, &cqe)) {
            if (cqe.user_data != 1) {
                continue; /* of the cancel */
            }
            struct kvt_transfer *transfer = job->transfer;
            kvb_status_t status = cqe.res == (int)transfer->slices->len ? KVB_OK
                                  : job->stopped                        ? KVB_ERR_CANCELED
                                                                        : KVB_ERR_IO;
            kvb_list_remove(&job->link);
            free(job);
            job = NULL;
            some = true;
            kvt_transfer_finish(transfer, status);
        }
        if (some) {
            break; /* the list may be another one now */
        }
    }
    if (!kvb_list_empty(&pin->running) && (some || stopping)) {
        if (!some) {
            (void)poll(NULL, 0, 1);
        }
        kvb_sched_post(pin->base.sched, &pin->look);
    }
}

static inline void pin_destroy(struct kvt_transport *transport)
{
    kvb_sched_unpost(&pin_of(transport)->look);
}

static inline void pin_init(struct pin *pin, struct kvt_regions *regions, int file)
{
    static const struct kvt_transport_ops ops = {
        .name = "pin",
        .capabilities = KVT_CAP_PINS_MEMORY,
        .start = pin_start,
        .cancel = pin_cancel,
        .region_register = pin_region_register,
        .region_unregister = pin_region_unregister,
        .destroy = pin_destroy,
    };
    *pin = (struct pin){.file = file};
    kvb_list_init(&pin->running);
    kvb_event_init(&pin->look, pin_look);
    kvt_transport_init(&pin->base, &ops, regions, PIN_DEPTH / 2);
}

/* Pages of this process that are pinned, in KiB. */
static inline uint64_t pin_kib(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    kvb_assert(file != NULL);
    char line[256];
    uint64_t kib = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "VmPin: %lu kB", &kib) == 1) {
            break;
        }
    }
    (void)fclose(file);
    return kib;
}

/* NULL: this kernel pins; else why not. */
static inline const char *pin_refused(void)
{
    static char why[128];
    struct pin_ring ring;
    int error = pin_ring_open(&ring);
    if (error != 0) {
        (void)snprintf(why, sizeof why, "io_uring_setup: %s", strerror(error));
        return why;
    }
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct iovec iov = {page, 4096};
    if (syscall(__NR_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &iov, 1) != 0) {
        (void)snprintf(why, sizeof why, "IORING_REGISTER_BUFFERS: %s", strerror(errno));
        error = 1;
    } else { /* closing a ring gives its buffers back some time later */
        (void)syscall(__NR_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0);
    }
    pin_ring_close(&ring);
    (void)munmap(page, 4096);
    return error != 0 ? why : NULL;
}

#endif
