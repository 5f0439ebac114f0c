/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel: blocks of column y copy piece y. engine/cuda/ptx.sh makes pieces_ptx.h of it. */
#include "pieces.h"

extern "C" __global__ void kvplane_cuda_pieces(PIECES_PARAMS pieces)
{
    pieces_copy(&pieces, blockIdx.y, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x);
}
