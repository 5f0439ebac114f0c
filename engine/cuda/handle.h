/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_CUDA_HANDLE_H
#define ENGINE_CUDA_HANDLE_H

/*
 * Inside libkvplane_cuda: handle.c (life, errors, CUDA's calls, the loop), memory.c (regions and
 * what they hold), hold.c (puts that wait), pack.c (the kernel). One thread uses a handle.
 */
#include "driver_calls.h"

#include "base/link.h"
#include "base/list.h"
#include "base/status.h"
#include "kvplane_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

struct kve_cuda_driver {
#define X(name, version, arguments) CUresult(*name) arguments;
    KVE_CUDA_CALLS(X)
#undef X
};

/* What a region holds are independent facts, so that giving back and making can each go on from
 * wherever the other, or a call that failed, left it. */
struct kve_cuda_region {
    uint32_t number;
    char tag[KVB_NAME_MAX]; /* "": see sweep() in memory.c */
    uint64_t len;           /* of the whole allocation */
    bool adopted, fabric;
    CUdeviceptr at; /* own: reserved, for the handle's life; adopted: 0 if by handle */
    CUmemGenericAllocationHandle engines; /* adopted by handle: never released here */
    CUmemGenericAllocationHandle handle;  /* a reference of ours; 0: none */
    bool mapped;                          /* own only */
    bool resident;       /* it can be used, and its bytes are what they should be */
    void *copy;          /* pinned memory; NULL: none */
    bool copied;         /* it has the region's bytes */
    uint64_t generation; /* last handed over; 0: never */
    uint64_t taken;      /* generation that the daemon has taken */
};

struct kvplane_cuda {
    /* immutable */
    struct kvplane *kv;
    int device;
    size_t held_max;
    void (*registered)(void *ctx, uint32_t region, int result);
    void *ctx;
    struct kve_cuda_driver driver;
    int epoll_fd, timer_fd;

    /* memory.c; one that was handed over is never removed */
    struct kve_cuda_region *regions[KVB_REGIONS_MAX];
    size_t nregions;
    char tags[KVB_TAGS_MAX][KVB_NAME_MAX];
    size_t ntags;

    /* hold.c */
    struct kvb_list waiting, ready; /* struct held: the GPU is not done; done, not sent yet */
    size_t nheld;
    bool ticking, processing, closing;
    cudaStream_t stream; /* in which the events of others are waited for; NULL: none yet */
    cudaEvent_t *spare;  /* held_max of room */
    size_t nspare, nevents;

    /* pack.c */
    cudaLibrary_t library;
    cudaKernel_t kernel; /* NULL: not loaded */
    bool no_kernel;      /* it does not load on this GPU */

    char error[256];
};

/* A failed call's result, named in last_error. what: the call. */
int kve_cuda_driver_result(struct kvplane_cuda *kc, CUresult result, const char *what);
int kve_cuda_runtime_result(struct kvplane_cuda *kc, cudaError_t result, const char *what);
int kve_cuda_refuse(struct kvplane_cuda *kc, int result, const char *why);

#define KVE_DRIVER(kc, call, ...)                                                                  \
    kve_cuda_driver_result((kc), (kc)->driver.call(__VA_ARGS__), #call)
#define KVE_RUNTIME(kc, call, ...) kve_cuda_runtime_result((kc), call(__VA_ARGS__), #call)

/* Makes the handle's GPU the current one; leave puts back what was, if enter returned OK. */
int kve_cuda_enter(struct kvplane_cuda *kc, int *before_p);
void kve_cuda_leave(const struct kvplane_cuda *kc, int before);

/* Blocks until the GPU has done what it was given. */
int kve_cuda_settle(struct kvplane_cuda *kc);

int kve_cuda_memory_close(struct kvplane_cuda *kc);

int kve_cuda_hold_init(struct kvplane_cuda *kc);
/* Sends what the GPU is done with; calls back. */
void kve_cuda_hold_turn(struct kvplane_cuda *kc);
/* Completes held puts that name one of these regions (NULL: every one) with result. */
void kve_cuda_hold_drop(struct kvplane_cuda *kc, bool (*names)(const void *arg, uint32_t region),
                        const void *arg, int result);
int kve_cuda_hold_close(struct kvplane_cuda *kc);

int kve_cuda_pack_close(struct kvplane_cuda *kc);

#endif
