/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_FAKE_H
#define TESTS_CUDA_FAKE_H

/*
 * A CUDA driver for machines without one: a libcuda.so.1 that is found through LD_LIBRARY_PATH
 * (fake.c). Its device memory are unnamed files of a tmpfs of its own, one for each physical
 * allocation, so that the kernel itself keeps the account of what keeps memory alive, over all
 * processes together: handles, mappings, exported descriptors, wherever they are (in flight in
 * sockets, in forked children), dma-bufs, whatever was made of those. What is held is what that
 * tmpfs uses; its size is the device's.
 *
 * Processes find it by FAKE_CUDA_DIR, and in it a page that all of them share: what the driver is
 * said to be, which call is to go wrong, what was seen. Without it the driver finds no device.
 * FAKE_CUDA_VERSION: the driver's version, if it is not to be 13000.
 *
 * Fabric handles: {magic, process, descriptor, inode}; importing opens the exporter's descriptor,
 * so they are data, no reference, and die with the exporter's handle.
 */
#include "calls.h"

#include <stdatomic.h>
#include <stdint.h>

/* What only engines call. */
#define FAKE_CUDA_ENGINE_CALLS(X)                                                                  \
    X(NEEDED, cuMemRetainAllocationHandle, 11000, mem_retain,                                      \
      (CUmemGenericAllocationHandle * handle, void *address))                                      \
    X(NEEDED, cuMemGetAddressRange, 3020, mem_range,                                               \
      (CUdeviceptr * base, size_t * size, CUdeviceptr address))

enum fake_cuda_call {
#define X(need, name, version, member, arguments) FAKE_CUDA_##member,
    KVT_CU_CALLS(X) FAKE_CUDA_ENGINE_CALLS(X)
#undef X
        FAKE_CUDA_CALLS
};

enum fake_cuda_action {
    FAKE_CUDA_FAIL,   /* the call answers `code` and does nothing */
    FAKE_CUDA_POISON, /* the call answers `code`, and so does every later one of that process */
    FAKE_CUDA_HANG,   /* it never returns */
    FAKE_CUDA_DIE,    /* its process is killed there */
    FAKE_CUDA_SKIP,   /* it answers success and does nothing: what it was to undo is forgotten */
};

#define FAKE_CUDA_MAGIC       0x46414b45u
#define FAKE_CUDA_CONTROL     "control"
#define FAKE_CUDA_GRANULARITY (2u << 20)
#define FAKE_CUDA_CONTEXT     (1u << 20) /* what a context costs */
#define FAKE_CUDA_DEVICES     2

struct fake_cuda_control {
    uint32_t magic;
    /* set before a process opens the driver */
    int32_t ndevices;
    /* The CPU reaches the device's addresses, too: for a kernel that is to pin what lies there. */
    atomic_uint visible;
    atomic_uint no_dma_buf;  /* exports none */
    atomic_uint unordered;   /* what an RDMA device wrote is seen only after a flush */
    atomic_uint unflushable; /* which it does not have */
    atomic_uint no_fabric;   /* the attribute says yes, creating says no: no IMEX channel */

    /* The fuse: of the calls that count, the fuse'th does `action`. 0: none. Calls of `spared` (a
     * process) do not count, nor those of another kind, if `only` names one (call + 1). */
    atomic_uint fuse;
    atomic_uint burst; /* and as many that follow it, which count */
    atomic_uint action;
    atomic_int code;
    atomic_int spared;
    atomic_int victim; /* calls of any other process do not count, either; 0: of any */
    atomic_uint only;
    atomic_uint fired;      /* how often */
    atomic_uint fired_call; /* which */

    /* The driver's own account: what exists now, of all processes. Of one that is killed, it stays:
     * only the kernel knows then. */
    atomic_int handles, addresses, mappings, contexts, pinned;

    atomic_uint paused; /* streams take nothing from their queues */

    /* what was seen, of all processes */
    atomic_uint calls[FAKE_CUDA_CALLS];
    atomic_uint queued;   /* copies that streams have not run */
    atomic_uint pieces;   /* copied on streams */
    atomic_uint pageable; /* of those: with host memory that is not registered */
    atomic_uint misuse;   /* calls that NVIDIA leaves undefined or forbids: refused */
};

#endif
