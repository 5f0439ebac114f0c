/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled only, where NVIDIA's headers are found: what toolkit/ says of the runtime, and
 * engine/cuda of the driver, against NVIDIA's own.
 */
#include "toolkit/runtime_calls.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#define X(name, arguments)                                                                         \
    _Static_assert(__builtin_types_compatible_p(cudaError_t(*) arguments, __typeof__(&name)),      \
                   #name);
RUNTIME_CALLS(X)
#undef X
#define X(name, value) _Static_assert((int)name == (value), #name);
RUNTIME_CONSTANTS(X)
#undef X
_Static_assert(cudaMemcpyHostToDevice == 1 && cudaMemcpyDeviceToHost == 2, "copies");
_Static_assert(cudaDriverEntryPointSuccess == 0 && cudaEnableDefault == 0, "entry points");
_Static_assert(cudaStreamNonBlocking == 1 && cudaEventDisableTiming == 2, "flags");
_Static_assert(cudaHostAllocDefault == 0 && sizeof(dim3) == 3 * sizeof(unsigned), "more of them");
_Static_assert(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED == 110, "attribute");

#include "../../engine/cuda/driver_calls.h"
#define X(name, version, arguments)                                                                \
    _Static_assert(__builtin_types_compatible_p(CUresult(*) arguments, PFN_##name##_v##version),   \
                   #name);
KVE_CUDA_CALLS(X)
