/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_RUNTIME_H
#define TESTS_CUDA_RUNTIME_H

/*
 * A CUDA runtime over the fake driver, linked by tests in place of libcudart (which wants more of a
 * driver than can be faked). It models what is dangerous: work runs late and in the order of its
 * stream only, an event fires when its stream has come there, recording again moves it, one that
 * was never recorded counts as fired, and unmapping or freeing waits for nobody. A copy that finds
 * its memory unmapped loses the context. Its calls count for the driver's fuse.
 */
#include "toolkit/runtime_calls.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

struct fake_runtime {
    uint64_t host_bytes; /* of cudaHostAlloc */
    unsigned streams, events, libraries;
    unsigned launches;    /* of kernels, run */
    cudaError_t no_image; /* what loading a library answers, if not success */
};
extern struct fake_runtime fake_runtime;

/* The stream does nothing until it goes on, or cudaDeviceSynchronize() waits for it. */
void fake_runtime_pause(cudaStream_t stream, bool paused);
/* Everything queued in all streams that are not paused has been done. */
void fake_runtime_drain(void);
/* A lost context, as what a stream met when it ran; cudaSuccess: found again. */
void fake_runtime_lose(cudaError_t error);
/* The name of what burned the fuse, of the driver's calls and the runtime's. */
const char *fake_runtime_fired(unsigned call);

#endif
