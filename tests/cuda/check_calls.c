/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled only, where NVIDIA's headers are found: each call of our list, with NVIDIA's types in
 * place of ours, must have exactly the type that NVIDIA gives it at that version.
 */
#include "calls.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#define X(need, name, version, member, arguments)                                                  \
    _Static_assert(__builtin_types_compatible_p(CUresult(*) arguments, PFN_##name##_v##version),   \
                   #name);
KVT_CU_CALLS(X)
