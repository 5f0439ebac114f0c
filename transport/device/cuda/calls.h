/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's calls that are used: X(need, name, version, member, arguments). version: what
 * cuGetProcAddress is asked for: the interface as it was then, whatever the driver's own version.
 * The list stands by itself, so that tests/cuda/check_calls.c can read it with NVIDIA's types in
 * place of ours. OPTIONAL: may be missing from an older driver, and is NULL then.
 */
#define KVT_CU_CALLS(X)                                                                            \
    X(NEEDED, cuInit, 2000, init, (unsigned flags))                                                \
    X(NEEDED, cuDriverGetVersion, 2020, driver_version, (int *version))                            \
    X(NEEDED, cuDeviceGetCount, 2000, device_count, (int *count))                                  \
    X(NEEDED, cuDeviceGet, 2000, device_get, (CUdevice * device, int ordinal))                     \
    X(NEEDED, cuDeviceGetUuid, 11040, device_uuid, (CUuuid * uuid, CUdevice device))               \
    X(NEEDED, cuDeviceGetAttribute, 2000, device_attribute,                                        \
      (int *value, CUdevice_attribute attribute, CUdevice device))                                 \
    X(NEEDED, cuDevicePrimaryCtxRetain, 7000, context_retain,                                      \
      (CUcontext * context, CUdevice device))                                                      \
    X(NEEDED, cuDevicePrimaryCtxRelease, 11000, context_release, (CUdevice device))                \
    X(NEEDED, cuCtxSetCurrent, 4000, context_set, (CUcontext context))                             \
    X(NEEDED, cuMemGetInfo, 3020, mem_info, (size_t * free_bytes, size_t * total_bytes))           \
    X(NEEDED, cuMemGetAllocationGranularity, 10020, mem_granularity,                               \
      (size_t * granularity, const CUmemAllocationProp *prop,                                      \
       CUmemAllocationGranularity_flags option))                                                   \
    X(NEEDED, cuMemCreate, 10020, mem_create,                                                      \
      (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,        \
       unsigned long long flags))                                                                  \
    X(NEEDED, cuMemGetAllocationPropertiesFromHandle, 10020, mem_properties,                       \
      (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle))                           \
    X(NEEDED, cuMemRelease, 10020, mem_release, (CUmemGenericAllocationHandle handle))             \
    X(NEEDED, cuMemExportToShareableHandle, 10020, mem_export,                                     \
      (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,       \
       unsigned long long flags))                                                                  \
    X(NEEDED, cuMemImportFromShareableHandle, 10020, mem_import,                                   \
      (CUmemGenericAllocationHandle * handle, void *os_handle, CUmemAllocationHandleType type))    \
    X(NEEDED, cuMemAddressReserve, 10020, mem_reserve,                                             \
      (CUdeviceptr * address, size_t size, size_t alignment, CUdeviceptr wanted,                   \
       unsigned long long flags))                                                                  \
    X(NEEDED, cuMemAddressFree, 10020, mem_free, (CUdeviceptr address, size_t size))               \
    X(NEEDED, cuMemMap, 10020, mem_map,                                                            \
      (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,       \
       unsigned long long flags))                                                                  \
    X(NEEDED, cuMemUnmap, 10020, mem_unmap, (CUdeviceptr address, size_t size))                    \
    X(NEEDED, cuMemSetAccess, 10020, mem_access,                                                   \
      (CUdeviceptr address, size_t size, const CUmemAccessDesc *desc, size_t count))               \
    X(OPTIONAL, cuMemGetHandleForAddressRange, 11070, mem_range_handle,                            \
      (void *handle, CUdeviceptr address, size_t size, CUmemRangeHandleType type,                  \
       unsigned long long flags))                                                                  \
    X(OPTIONAL, cuFlushGPUDirectRDMAWrites, 11030, flush_writes,                                   \
      (CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope))            \
    X(NEEDED, cuMemHostRegister, 6050, host_register,                                              \
      (void *address, size_t size, unsigned flags))                                                \
    X(NEEDED, cuMemHostUnregister, 4000, host_unregister, (void *address))                         \
    X(NEEDED, cuMemcpyHtoD, 3020, copy_in, (CUdeviceptr to, const void *from, size_t len))         \
    X(NEEDED, cuMemcpyDtoH, 3020, copy_out, (void *to, CUdeviceptr from, size_t len))              \
    X(NEEDED, cuMemcpyHtoDAsync, 3020, copy_in_async,                                              \
      (CUdeviceptr to, const void *from, size_t len, CUstream stream))                             \
    X(NEEDED, cuMemcpyDtoHAsync, 3020, copy_out_async,                                             \
      (void *to, CUdeviceptr from, size_t len, CUstream stream))                                   \
    /* one name, two interfaces: 12.8 tells which piece failed, 13.0 does not */                   \
    X(OPTIONAL, cuMemcpyBatchAsync, 12080, copy_batch_v12,                                         \
      (CUdeviceptr * to, CUdeviceptr * from, size_t * sizes, size_t count,                         \
       CUmemcpyAttributes * attributes, size_t * attribute_at, size_t nattributes,                 \
       size_t * failed_at, CUstream stream))                                                       \
    X(OPTIONAL, cuMemcpyBatchAsync, 13000, copy_batch_v13,                                         \
      (CUdeviceptr * to, CUdeviceptr * from, size_t * sizes, size_t count,                         \
       CUmemcpyAttributes * attributes, size_t * attribute_at, size_t nattributes,                 \
       CUstream stream))                                                                           \
    X(NEEDED, cuStreamCreate, 2000, stream_create, (CUstream * stream, unsigned flags))            \
    X(NEEDED, cuStreamDestroy, 4000, stream_destroy, (CUstream stream))                            \
    X(NEEDED, cuStreamSynchronize, 2000, stream_sync, (CUstream stream))                           \
    X(NEEDED, cuGetErrorName, 6000, error_name, (CUresult error, const char **text))               \
    X(NEEDED, cuGetErrorString, 6000, error_string, (CUresult error, const char **text))
