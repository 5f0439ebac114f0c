/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's calls that have no counterpart in the CUDA runtime: X(name, version,
 * arguments). The runtime finds them (cudaGetDriverEntryPointByVersion), so that nothing links the
 * driver, which a machine that only builds does not have.
 */
#define KVE_CUDA_CALLS(X)                                                                          \
    X(cuDeviceGetAttribute, 2000, (int *value, CUdevice_attribute attribute, CUdevice device))     \
    X(cuMemGetAllocationGranularity, 10020,                                                        \
      (size_t * granularity, const CUmemAllocationProp *prop,                                      \
       CUmemAllocationGranularity_flags option))                                                   \
    X(cuMemCreate, 10020,                                                                          \
      (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,        \
       unsigned long long flags))                                                                  \
    X(cuMemRelease, 10020, (CUmemGenericAllocationHandle handle))                                  \
    X(cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle * handle, void *address))  \
    X(cuMemGetAllocationPropertiesFromHandle, 10020,                                               \
      (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle))                           \
    X(cuMemExportToShareableHandle, 10020,                                                         \
      (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,       \
       unsigned long long flags))                                                                  \
    X(cuMemAddressReserve, 10020,                                                                  \
      (CUdeviceptr * address, size_t size, size_t alignment, CUdeviceptr wanted,                   \
       unsigned long long flags))                                                                  \
    X(cuMemAddressFree, 10020, (CUdeviceptr address, size_t size))                                 \
    X(cuMemGetAddressRange, 3020, (CUdeviceptr * base, size_t * size, CUdeviceptr address))        \
    X(cuMemMap, 10020,                                                                             \
      (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,       \
       unsigned long long flags))                                                                  \
    X(cuMemUnmap, 10020, (CUdeviceptr address, size_t size))                                       \
    X(cuMemSetAccess, 10020,                                                                       \
      (CUdeviceptr address, size_t size, const CUmemAccessDesc *desc, size_t count))               \
    X(cuGetErrorName, 6000, (CUresult error, const char **text))                                   \
    X(cuGetErrorString, 6000, (CUresult error, const char **text))
