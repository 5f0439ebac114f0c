/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gather/scatter kernel: loaded when it is first used, from an image in the library: code for
 * several architectures if nvcc was there to make it, else the PTX of the repository, which the
 * driver compiles.
 */
#include "handle.h"
#include "pieces.h"

/* The file, and an end for when it is text. */
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        "kve_cuda_image:\n"
        ".incbin \"" KVPLANE_CUDA_IMAGE "\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const unsigned char kve_cuda_image[];

/* What says that this GPU or driver has no use for the image, now and later. */
static bool is_of_image(cudaError_t error)
{
    return error == cudaErrorInvalidKernelImage || error == cudaErrorNoKernelImageForDevice ||
           error == cudaErrorInvalidPtx || error == cudaErrorUnsupportedPtxVersion ||
           error == cudaErrorJitCompilerNotFound || error == cudaErrorJitCompilationDisabled ||
           error == cudaErrorNotSupported;
}

static int load(struct kvplane_cuda *kc)
{
    cudaError_t error = cudaSuccess;
    if (kc->no_kernel) {
        return KVPLANE_ERR_UNSUPPORTED;
    }
    if (kc->library == NULL) {
        error = cudaLibraryLoadData(&kc->library, kve_cuda_image, NULL, NULL, 0, NULL, NULL, 0);
        kc->library = error == cudaSuccess ? kc->library : NULL;
    }
    int result = kve_cuda_runtime_result(kc, error, "cudaLibraryLoadData");
    if (result == KVPLANE_OK && kc->kernel == NULL) {
        error = cudaLibraryGetKernel(&kc->kernel, kc->library, PIECES_KERNEL);
        kc->kernel = error == cudaSuccess ? kc->kernel : NULL;
        result = kve_cuda_runtime_result(kc, error, "cudaLibraryGetKernel");
    }
    if (is_of_image(error)) {
        kc->no_kernel = true;
        result = KVPLANE_ERR_UNSUPPORTED;
    }
    return result;
}

int kve_cuda_pack_close(struct kvplane_cuda *kc)
{
    int result = KVPLANE_OK;
    if (kc->library != NULL) {
        result = KVE_RUNTIME(kc, cudaLibraryUnload, kc->library);
        kc->library = result == KVPLANE_OK ? NULL : kc->library;
    }
    return result;
}

static int check(const void *staging, const struct kvplane_cuda_piece *pieces, size_t n)
{
    if (staging == NULL || (pieces == NULL && n > 0)) {
        return KVPLANE_ERR_INVALID;
    }
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].address == NULL || pieces[i].len == 0) {
            return KVPLANE_ERR_INVALID;
        }
        if (pieces[i].len > UINT32_MAX || pieces[i].offset > UINT32_MAX - pieces[i].len) {
            return KVPLANE_ERR_TOO_LARGE;
        }
    }
    return KVPLANE_OK;
}

/* At most PIECES_MAX: what fits into the arguments. */
static int launch(struct kvplane_cuda *kc, cudaStream_t stream, struct pieces *arguments,
                  const struct kvplane_cuda_piece *pieces, size_t n)
{
    uint32_t longest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t len = (uint32_t)pieces[i].len;
        arguments->piece[i] = (struct pieces_piece){(uint64_t)(uintptr_t)pieces[i].address,
                                                    (uint32_t)pieces[i].offset, len};
        longest = len > longest ? len : longest;
    }
    uint32_t blocks = longest / (16 * PIECES_THREADS) + 1;
    dim3 grid = {blocks < PIECES_BLOCKS ? blocks : PIECES_BLOCKS, (unsigned)n, 1};
    dim3 block = {PIECES_THREADS, 1, 1};
    void *all[] = {arguments};
    return kve_cuda_runtime_result(
        kc, cudaLaunchKernel((const void *)kc->kernel, grid, block, all, 0, stream),
        "cudaLaunchKernel");
}

static int pack(struct kvplane_cuda *kc, cudaStream_t stream, const void *staging, bool scatter,
                const struct kvplane_cuda_piece *pieces, size_t n)
{
    int before = 0;
    int result = check(staging, pieces, n);
    if (result == KVPLANE_OK) {
        result = kve_cuda_enter(kc, &before);
    }
    if (result != KVPLANE_OK) {
        return result;
    }
    result = load(kc);
    struct pieces arguments = {.staging = (uint64_t)(uintptr_t)staging, .scatter = scatter};
    for (size_t done = 0; done < n && result == KVPLANE_OK; done += PIECES_MAX) {
        size_t some = n - done < PIECES_MAX ? n - done : PIECES_MAX;
        result = launch(kc, stream, &arguments, pieces + done, some);
    }
    kve_cuda_leave(kc, before);
    return result;
}

int kvplane_cuda_gather(struct kvplane_cuda *kc, struct CUstream_st *stream, void *staging,
                        const struct kvplane_cuda_piece *pieces, size_t n)
{
    return pack(kc, stream, staging, false, pieces, n);
}

int kvplane_cuda_scatter(struct kvplane_cuda *kc, struct CUstream_st *stream, const void *staging,
                         const struct kvplane_cuda_piece *pieces, size_t n)
{
    return pack(kc, stream, staging, true, pieces, n);
}
