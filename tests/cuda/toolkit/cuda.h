/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_TOOLKIT_CUDA_H
#define TESTS_CUDA_TOOLKIT_CUDA_H

/* What engine/cuda needs of NVIDIA's header of this name, so that it is compiled and tested also
 * where there is no toolkit. Never installed, never used to build the library itself. */
#include "types.h"

enum { CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110 };

#endif
