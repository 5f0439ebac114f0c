/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_CUDA_PIECES_H
#define ENGINE_CUDA_PIECES_H

/*
 * What one thread of the gather/scatter kernel copies: the same source for the GPU (pieces.cu) and
 * for the host, where a test runs every thread of a grid. Threads of a piece take turns at its
 * units of 16, 4 or 1 bytes, the largest that both addresses and the length allow, so that a warp
 * reads and writes neighbours.
 */
#include <stdint.h>

#ifdef __CUDACC__
#define PIECES_FN     static __device__ __forceinline__
#define PIECES_PARAMS const __grid_constant__ struct pieces
struct alignas(16) pieces_unit16 {
    uint32_t word[4];
};
#else
#define PIECES_FN static inline
struct pieces_unit16 {
    uint32_t word[4];
};
#endif

#define PIECES_KERNEL  "kvplane_cuda_pieces"
#define PIECES_MAX     254u /* of one launch: with them the arguments have 4,080 of 4,096 bytes */
#define PIECES_THREADS 128u /* of a block */
#define PIECES_BLOCKS  16u  /* at most, for one piece */

struct pieces_piece {
    uint64_t address;
    uint32_t offset, len; /* in the staging area */
};
struct pieces { /* the kernel's one argument: by value, so nothing has to outlive the call */
    uint64_t staging;
    uint32_t scatter; /* else gather */
    uint32_t zero;
    struct pieces_piece piece[PIECES_MAX];
};

/* Thread `lane` of the `lanes` threads that copy this piece. */
PIECES_FN void pieces_copy(const struct pieces *pieces, uint32_t index, uint32_t lane,
                           uint32_t lanes)
{
    const struct pieces_piece *piece = &pieces->piece[index];
    uint64_t staged = pieces->staging + piece->offset;
    uint64_t to = pieces->scatter != 0 ? piece->address : staged;
    uint64_t from = pieces->scatter != 0 ? staged : piece->address;
    uint64_t odd = to | from | piece->len;
    if (odd % 16 == 0) {
        struct pieces_unit16 *t = (struct pieces_unit16 *)(uintptr_t)to;
        const struct pieces_unit16 *f = (const struct pieces_unit16 *)(uintptr_t)from;
        for (uint64_t i = lane; i < piece->len / 16; i += lanes) {
            t[i] = f[i];
        }
    } else if (odd % 4 == 0) {
        uint32_t *t = (uint32_t *)(uintptr_t)to;
        const uint32_t *f = (const uint32_t *)(uintptr_t)from;
        for (uint64_t i = lane; i < piece->len / 4; i += lanes) {
            t[i] = f[i];
        }
    } else {
        uint8_t *t = (uint8_t *)(uintptr_t)to;
        const uint8_t *f = (const uint8_t *)(uintptr_t)from;
        for (uint64_t i = lane; i < piece->len; i += lanes) {
            t[i] = f[i];
        }
    }
}

#endif
