/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_CUDA_GPU_H
#define TRANSPORT_CUDA_GPU_H

#include "driver.h"

#include "base/list.h"
#include "transport/device.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * What the helper process holds of GPU memory, and an account of it. A region is imported, mapped
 * and made accessible, or nothing of it is left; dropping undoes that in reverse, and what could
 * not be undone stays in the account, so that dropping again goes on from there. A GPU's context,
 * streams and registration of the pool come with its first region and go with its last.
 *
 * One thread imports and drops; copies run on others, each on a region that cannot be dropped under
 * them (BUSY).
 */
#define GPU_DEVICES_MAX 16

struct gpu_device {
    uint32_t regions; /* that use it */
    CUdevice device;
    CUcontext context; /* NULL: none is held */
    CUstream streams[2];
    bool pool_registered;
};

struct gpu_ledger { /* references that this process holds */
#define X(member) uint32_t member;
    KVT_DEVICE_HOLDINGS(X)
#undef X
    uint32_t copies;
};

struct gpu {
    const struct kvt_cu *cu;
    uint8_t *pool; /* page-locked where a context is held */
    size_t pool_len;
    struct gpu_device devices[GPU_DEVICES_MAX];
    struct kvb_list regions;
};

struct gpu_region {
    struct kvb_list link;
    uint64_t id;
    int fd; /* -1: none */
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at; /* of the whole of what was imported; 0: not reserved */
    size_t at_len;
    bool mapped;
    uint64_t offset, len; /* the region in it */
    struct gpu_device *device;
    atomic_uint copies; /* queued or running */
};

/* Why something failed. */
struct gpu_cause {
    bool poisoned;  /* nothing will work any more in this process */
    char text[192]; /* the call and the driver's words for it */
};

enum gpu_source { GPU_SOURCE_FD, GPU_SOURCE_FABRIC };
struct gpu_import {
    uint64_t id;
    enum gpu_source source;
    int fd; /* taken, in every case */
    uint8_t fabric[KVT_CU_FABRIC_LEN];
    uint64_t offset, len; /* of the region, in what the handle names */
    uint64_t whole;       /* its whole size; 0: offset + len */
};

struct gpu_piece {
    struct gpu_region *region;
    uint64_t offset; /* in the region */
    uint64_t pool_offset;
    uint64_t len;
};

void gpu_init(struct gpu *gpu, const struct kvt_cu *cu, void *pool, size_t pool_len);

/* All or nothing, unless undoing failed, too: then it stays in the account under its id, to be
 * dropped. INVALID: the driver does not take the handle, or sizes make no sense. EXISTS. NO_MEMORY,
 * IO: the driver's. */
KVB_MUST_USE kvb_status_t gpu_import(struct gpu *gpu, const struct gpu_import *import,
                                     struct gpu_cause *cause);

/* Until nothing is left of it. OK also when there is no such region. BUSY: copies run. IO: a step
 * failed; what is left can be dropped again. */
KVB_MUST_USE kvb_status_t gpu_drop(struct gpu *gpu, uint64_t id, struct gpu_cause *cause);

/* A region that copies may name; NULL: none. */
struct gpu_region *gpu_find(struct gpu *gpu, uint64_t id);

/* Is the piece inside its region and the pool? */
bool gpu_piece_fits(const struct gpu *gpu, const struct gpu_piece *piece);

/* Joins pieces that follow one another on both sides; returns how many are left. */
uint32_t gpu_coalesce(struct gpu_piece *pieces, uint32_t n);

/* Begins to copy, to the pool or from it: pieces of one device, behind what was begun before in
 * that direction. Any thread, one at a time and direction. Also after a failure some of it may be
 * running, until gpu_finish() has answered. */
KVB_MUST_USE kvb_status_t gpu_begin(struct gpu *gpu, bool to_pool, const struct gpu_piece *pieces,
                                    uint32_t n, struct gpu_cause *cause);

/* Waits until everything is over that was begun in that direction. On failure the context is
 * lost, and what became of the copies is not known. */
KVB_MUST_USE kvb_status_t gpu_finish(struct gpu *gpu, bool to_pool, const struct gpu_device *device,
                                     struct gpu_cause *cause);

struct gpu_ledger gpu_count(const struct gpu *gpu);

#endif
