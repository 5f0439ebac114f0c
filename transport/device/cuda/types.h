/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_CUDA_TYPES_H
#define TRANSPORT_CUDA_TYPES_H

/*
 * What of the CUDA driver's interface is used, declared anew: the driver is opened at run time, so
 * its header is not needed to build, and the same code is compiled everywhere. Names are the
 * driver's own, because tests/cuda/check_types.c compares each of them with NVIDIA's cuda.h
 * wherever that is found, and fails to compile on a difference.
 */
#include <stddef.h>
#include <stdint.h>

#ifndef KVT_CU_NAME /* the check gives the constants other names */
#define KVT_CU_NAME(name) name
#endif

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;

#define KVT_CU_RESULTS(X)                                                                          \
    X(CUDA_SUCCESS, 0)                                                                             \
    X(CUDA_ERROR_INVALID_VALUE, 1)                                                                 \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                 \
    X(CUDA_ERROR_NOT_INITIALIZED, 3)                                                               \
    X(CUDA_ERROR_STUB_LIBRARY, 34)                                                                 \
    X(CUDA_ERROR_NO_DEVICE, 100)                                                                   \
    X(CUDA_ERROR_INVALID_DEVICE, 101)                                                              \
    X(CUDA_ERROR_INVALID_CONTEXT, 201)                                                             \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304)                                                            \
    X(CUDA_ERROR_INVALID_HANDLE, 400)                                                              \
    X(CUDA_ERROR_NOT_FOUND, 500)                                                                   \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                                             \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                                              \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)                                                  \
    X(CUDA_ERROR_NOT_PERMITTED, 800)                                                               \
    X(CUDA_ERROR_NOT_SUPPORTED, 801)
typedef enum cudaError_enum {
#define X(name, value) KVT_CU_NAME(name) = (value),
    KVT_CU_RESULTS(X)
#undef X
} CUresult;

/* Of several enumerations: they are passed as unsigned. */
#define KVT_CU_CONSTANTS(X)                                                                        \
    X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)                                \
    X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103)                        \
    X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 117)                               \
    X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 118)                                    \
    X(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 124)                                                  \
    X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 128)                                       \
    X(CU_MEM_HANDLE_TYPE_NONE, 0)                                                                  \
    X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)                                                 \
    X(CU_MEM_HANDLE_TYPE_FABRIC, 8)                                                                \
    X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                                            \
    X(CU_MEM_LOCATION_TYPE_DEVICE, 1)                                                              \
    X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                                                       \
    X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                                                         \
    X(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 1)                                                      \
    X(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 1)                                                        \
    X(CU_MEMCPY_SRC_ACCESS_ORDER_ANY, 3)                                                           \
    X(CU_STREAM_NON_BLOCKING, 1)                                                                   \
    X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST, 1)                                              \
    X(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE, 0)                                                  \
    X(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, 100)                                               \
    X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES, 200)                                         \
    X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, 0)
enum kvt_cu_constant {
#define X(name, value) KVT_CU_NAME(name) = (value),
    KVT_CU_CONSTANTS(X)
#undef X
};
#define CU_MEMHOSTREGISTER_PORTABLE 0x01

typedef unsigned CUdevice_attribute;
typedef unsigned CUmemAllocationHandleType;
typedef unsigned CUmemAllocationGranularity_flags;
typedef unsigned CUmemRangeHandleType;
typedef unsigned CUflushGPUDirectRDMAWritesTarget;
typedef unsigned CUflushGPUDirectRDMAWritesScope;
typedef unsigned CUdriverProcAddressQueryResult;
typedef uint64_t cuuint64_t;

typedef struct CUuuid_st {
    char bytes[16];
} CUuuid;

#define KVT_CU_FABRIC_LEN 64 /* a handle to memory on the NVLink fabric: data, not a reference */

typedef struct CUmemLocation_st {
    unsigned type;
    int id; /* ordinal of the device */
} CUmemLocation;

typedef struct CUmemAllocationProp_st {
    unsigned type;
    unsigned requestedHandleTypes; /* what it can be exported as */
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc_st {
    CUmemLocation location;
    unsigned flags;
} CUmemAccessDesc;

typedef struct CUmemcpyAttributes_st {
    unsigned srcAccessOrder;
    CUmemLocation srcLocHint;
    CUmemLocation dstLocHint;
    unsigned flags;
} CUmemcpyAttributes;

#endif
