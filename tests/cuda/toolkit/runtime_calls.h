/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA runtime's calls that engine/cuda and its tests use: X(name, arguments). Where NVIDIA's
 * header is found, check_runtime.c compares.
 */
#define RUNTIME_CALLS(X)                                                                           \
    X(cudaGetDevice, (int *device))                                                                \
    X(cudaSetDevice, (int device))                                                                 \
    X(cudaDeviceSynchronize, (void))                                                               \
    X(cudaDeviceReset, (void))                                                                     \
    X(cudaGetLastError, (void))                                                                    \
    X(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned int flags))                      \
    X(cudaStreamDestroy, (cudaStream_t stream))                                                    \
    X(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned int flags))           \
    X(cudaStreamSynchronize, (cudaStream_t stream))                                                \
    X(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned int flags))                         \
    X(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream))                                   \
    X(cudaEventQuery, (cudaEvent_t event))                                                         \
    X(cudaEventDestroy, (cudaEvent_t event))                                                       \
    X(cudaHostAlloc, (void **host, size_t size, unsigned int flags))                               \
    X(cudaFreeHost, (void *host))                                                                  \
    X(cudaMemcpy, (void *to, const void *from, size_t len, enum cudaMemcpyKind kind))              \
    X(cudaMemcpyAsync,                                                                             \
      (void *to, const void *from, size_t len, enum cudaMemcpyKind kind, cudaStream_t stream))     \
    X(cudaMemGetInfo, (size_t * free_bytes, size_t * total_bytes))                                 \
    X(cudaGetDriverEntryPointByVersion,                                                            \
      (const char *symbol, void **address, unsigned int version, unsigned long long flags,         \
       enum cudaDriverEntryPointQueryResult *found))                                               \
    X(cudaLibraryLoadData,                                                                         \
      (cudaLibrary_t * library, const void *code, enum cudaJitOption *jit, void **jit_values,      \
       unsigned int njit, enum cudaLibraryOption *options, void **values, unsigned int noptions))  \
    X(cudaLibraryGetKernel, (cudaKernel_t * kernel, cudaLibrary_t library, const char *name))      \
    X(cudaLibraryUnload, (cudaLibrary_t library))                                                  \
    X(cudaLaunchKernel, (const void *function, dim3 grid, dim3 block, void **arguments,            \
                         size_t shared_bytes, cudaStream_t stream))

#define RUNTIME_CONSTANTS(X)                                                                       \
    X(cudaSuccess, 0)                                                                              \
    X(cudaErrorInvalidValue, 1)                                                                    \
    X(cudaErrorMemoryAllocation, 2)                                                                \
    X(cudaErrorStubLibrary, 34)                                                                    \
    X(cudaErrorInsufficientDriver, 35)                                                             \
    X(cudaErrorNoDevice, 100)                                                                      \
    X(cudaErrorInvalidDevice, 101)                                                                 \
    X(cudaErrorInvalidKernelImage, 200)                                                            \
    X(cudaErrorNoKernelImageForDevice, 209)                                                        \
    X(cudaErrorInvalidPtx, 218)                                                                    \
    X(cudaErrorJitCompilerNotFound, 221)                                                           \
    X(cudaErrorUnsupportedPtxVersion, 222)                                                         \
    X(cudaErrorJitCompilationDisabled, 223)                                                        \
    X(cudaErrorInvalidResourceHandle, 400)                                                         \
    X(cudaErrorSymbolNotFound, 500)                                                                \
    X(cudaErrorNotReady, 600)                                                                      \
    X(cudaErrorIllegalAddress, 700)                                                                \
    X(cudaErrorNotPermitted, 800)                                                                  \
    X(cudaErrorNotSupported, 801)
