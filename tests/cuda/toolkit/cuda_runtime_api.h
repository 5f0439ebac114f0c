/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_TOOLKIT_RUNTIME_H
#define TESTS_CUDA_TOOLKIT_RUNTIME_H

/* As cuda.h beside it. */
#include "runtime_calls.h"

#include <stddef.h>

typedef enum cudaError {
#define X(name, value) name = (value),
    RUNTIME_CONSTANTS(X)
#undef X
} cudaError_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };
enum cudaJitOption { cudaJitMaxRegisters = 0 };
enum cudaLibraryOption { cudaLibraryHostUniversalFunctionAndDataTable = 0 };
#define cudaEnableDefault      0x0
#define cudaStreamNonBlocking  0x01
#define cudaEventDisableTiming 0x02
#define cudaHostAllocDefault   0x00

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUlib_st *cudaLibrary_t;
typedef struct CUkern_st *cudaKernel_t;
struct dim3 {
    unsigned int x, y, z;
};
typedef struct dim3 dim3;

#define X(name, arguments) cudaError_t name arguments;
RUNTIME_CALLS(X)
#undef X
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

#endif
