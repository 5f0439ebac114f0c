/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled only, where NVIDIA's cuda.h is found: our declarations of the driver's types against its
 * own. A difference in size, place or value is a compile error.
 */
#define CUdevice                         own_CUdevice
#define CUdeviceptr                      own_CUdeviceptr
#define CUmemGenericAllocationHandle     own_CUmemGenericAllocationHandle
#define CUcontext                        own_CUcontext
#define CUstream                         own_CUstream
#define CUresult                         own_CUresult
#define cudaError_enum                   own_cudaError_enum
#define CUdevice_attribute               own_CUdevice_attribute
#define CUmemAllocationHandleType        own_CUmemAllocationHandleType
#define CUmemAllocationGranularity_flags own_CUmemAllocationGranularity_flags
#define CUmemRangeHandleType             own_CUmemRangeHandleType
#define CUflushGPUDirectRDMAWritesTarget own_CUflushGPUDirectRDMAWritesTarget
#define CUflushGPUDirectRDMAWritesScope  own_CUflushGPUDirectRDMAWritesScope
#define CUdriverProcAddressQueryResult   own_CUdriverProcAddressQueryResult
#define cuuint64_t                       own_cuuint64_t
#define CUuuid                           own_CUuuid
#define CUuuid_st                        own_CUuuid_st
#define CUmemLocation                    own_CUmemLocation
#define CUmemLocation_st                 own_CUmemLocation_st
#define CUmemAllocationProp              own_CUmemAllocationProp
#define CUmemAllocationProp_st           own_CUmemAllocationProp_st
#define CUmemAccessDesc                  own_CUmemAccessDesc
#define CUmemAccessDesc_st               own_CUmemAccessDesc_st
#define CUmemcpyAttributes               own_CUmemcpyAttributes
#define CUmemcpyAttributes_st            own_CUmemcpyAttributes_st
#define KVT_CU_NAME(name)                own_##name
#include "types.h"

#undef CUdevice
#undef CUdeviceptr
#undef CUmemGenericAllocationHandle
#undef CUcontext
#undef CUstream
#undef CUresult
#undef cudaError_enum
#undef CUdevice_attribute
#undef CUmemAllocationHandleType
#undef CUmemAllocationGranularity_flags
#undef CUmemRangeHandleType
#undef CUflushGPUDirectRDMAWritesTarget
#undef CUflushGPUDirectRDMAWritesScope
#undef CUdriverProcAddressQueryResult
#undef cuuint64_t
#undef CUuuid
#undef CUuuid_st
#undef CUmemLocation
#undef CUmemLocation_st
#undef CUmemAllocationProp
#undef CUmemAllocationProp_st
#undef CUmemAccessDesc
#undef CUmemAccessDesc_st
#undef CUmemcpyAttributes
#undef CUmemcpyAttributes_st
#undef CU_MEMHOSTREGISTER_PORTABLE
enum { own_CU_MEMHOSTREGISTER_PORTABLE = 0x01 };

#include <cuda.h>

#define SIZE(type)                                                                                 \
    _Static_assert(sizeof(own_##type) == sizeof(type), #type);                                     \
    _Static_assert(_Alignof(own_##type) == _Alignof(type), #type)
#define MEMBER(type, member)                                                                       \
    _Static_assert(offsetof(own_##type, member) == offsetof(type, member), #type "." #member);     \
    _Static_assert(sizeof(((own_##type *)0)->member) == sizeof(((type *)0)->member),               \
                   #type "." #member)

SIZE(CUdevice);
SIZE(CUdeviceptr);
SIZE(CUmemGenericAllocationHandle);
SIZE(CUcontext);
SIZE(CUstream);
SIZE(CUresult);
SIZE(CUdevice_attribute);
SIZE(CUmemAllocationHandleType);
SIZE(CUmemAllocationGranularity_flags);
SIZE(CUmemRangeHandleType);
SIZE(CUdriverProcAddressQueryResult);
SIZE(cuuint64_t);
SIZE(CUuuid);
SIZE(CUmemLocation);
SIZE(CUmemAllocationProp);
SIZE(CUmemAccessDesc);
SIZE(CUmemcpyAttributes);
_Static_assert(KVT_CU_FABRIC_LEN == sizeof(CUmemFabricHandle), "fabric handle");

MEMBER(CUmemLocation, type);
MEMBER(CUmemLocation, id);
MEMBER(CUmemAllocationProp, type);
MEMBER(CUmemAllocationProp, requestedHandleTypes);
MEMBER(CUmemAllocationProp, location);
MEMBER(CUmemAllocationProp, win32HandleMetaData);
MEMBER(CUmemAllocationProp, allocFlags.compressionType);
MEMBER(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
MEMBER(CUmemAllocationProp, allocFlags.usage);
MEMBER(CUmemAllocationProp, allocFlags.reserved);
MEMBER(CUmemAccessDesc, location);
MEMBER(CUmemAccessDesc, flags);
MEMBER(CUmemcpyAttributes, srcAccessOrder);
MEMBER(CUmemcpyAttributes, srcLocHint);
MEMBER(CUmemcpyAttributes, dstLocHint);
MEMBER(CUmemcpyAttributes, flags);

#define X(name, value) _Static_assert((int)(name) == (int)own_##name, #name);
KVT_CU_RESULTS(X)
KVT_CU_CONSTANTS(X)
#undef X
_Static_assert(CU_MEMHOSTREGISTER_PORTABLE == own_CU_MEMHOSTREGISTER_PORTABLE, "host register");
