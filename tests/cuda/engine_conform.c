/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libkvplane_cuda takes a GPU and NVIDIA's runtime to do, as statements about real ones: built
 * where the toolkit is; exits 77, said aloud, where there is no GPU. No daemon is needed: handing
 * over is refused for want of one, everything else is as with it. A few seconds on a device.
 */
#include "kvplane_cuda.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SKIPPED 77
enum { LEN = 64 << 20, PIECES = 700, PIECE_ROOM = 4096 };

static struct kvplane *kv;
static struct kvplane_cuda *kc;
static unsigned said, failed;

static void says(bool holds, const char *statement)
{
    said++;
    failed += !holds;
    printf("%s %u - %s%s%s\n", holds ? "ok" : "not ok", said, statement, holds ? "" : ": ",
           holds ? "" : kvplane_cuda_last_error(kc));
    fflush(stdout);
}

static void on_state(void *ctx, struct kvplane_state *state)
{
    (void)ctx;
    kvplane_cuda_state(kc, state);
}

static size_t free_bytes(void)
{
    size_t n = 0;
    size_t total = 0;
    (void)cudaMemGetInfo(&n, &total);
    return n;
}

/* Others may use the device, too. */
static bool about(size_t a, size_t b)
{
    return (a > b ? a - b : b - a) <= LEN / 8;
}

static unsigned char *pattern(unsigned seed)
{
    unsigned char *bytes = malloc(LEN);
    unsigned long long x = seed;
    for (size_t i = 0; bytes != NULL && i < LEN; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        bytes[i] = (unsigned char)(x >> 56);
    }
    return bytes;
}

static bool holds(const void *at, const unsigned char *want, size_t len)
{
    unsigned char *seen = malloc(len);
    bool same = seen != NULL && cudaMemcpy(seen, at, len, cudaMemcpyDeviceToHost) == cudaSuccess &&
                memcmp(seen, want, len) == 0;
    free(seen);
    return same;
}

/* ---- puts ---- */

static unsigned calls;
static int last;

static void on_put(void *arg, const int *results, size_t n)
{
    (void)arg;
    (void)n;
    calls++;
    last = results[0];
}

static void CUDART_CB slowly(void *arg)
{
    (void)arg;
    (void)nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
}

static void puts_wait(char *memory)
{
    struct kvplane_slice slice = {0};
    cudaStream_t slow;
    cudaStream_t idle = NULL;
    cudaEvent_t event = NULL;
    says(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking) == cudaSuccess &&
             cudaStreamCreateWithFlags(&idle, cudaStreamNonBlocking) == cudaSuccess &&
             cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess,
         "streams and events of another runtime in this process");
    says(kvplane_cuda_slice(kc, memory + 4096, 4096, &slice) == KVPLANE_OK && slice.offset == 4096,
         "an address is told as a slice");
    struct kvplane_entry entry = {.key = "k", .key_len = 1, .slices = &slice, .nslices = 1};
    (void)cudaLaunchHostFunc(slow, slowly, NULL);
    (void)cudaEventRecord(event, slow);
    says(kvplane_cuda_put_after(kc, event, &entry, 1, on_put, NULL) == KVPLANE_OK &&
             kvplane_cuda_put_after_stream(kc, slow, &entry, 1, on_put, NULL) == KVPLANE_OK,
         "puts are held for an event and for a stream");
    (void)cudaEventRecord(event, idle);
    (void)cudaStreamSynchronize(idle);
    says(cudaEventQuery(event) == cudaSuccess && cudaEventDestroy(event) == cudaSuccess,
         "the event fires elsewhere, and is destroyed");
    (void)kvplane_cuda_process(kc);
    says(cudaStreamQuery(slow) == cudaErrorNotReady && calls == 0 && kvplane_cuda_held(kc) == 2,
         "and nothing is sent while the first stream runs");
    (void)cudaGetLastError();
    (void)cudaStreamSynchronize(slow);
    for (int i = 0; i < 1000 && calls < 2; i++) {
        (void)kvplane_cuda_wait(kc, 10);
    }
    says(calls == 2 && last == KVPLANE_ERR_DISCONNECTED && kvplane_cuda_held(kc) == 0,
         "when it has run they are sent (there is no daemon)");
    says(cudaGetLastError() == cudaSuccess, "the engine's own last error is none of it");
    (void)cudaStreamDestroy(slow);
    (void)cudaStreamDestroy(idle);
}

/* ---- packing ---- */

static void packing(char *memory)
{
    static struct kvplane_cuda_piece pieces[PIECES];
    unsigned char *bytes = pattern(1);
    unsigned char *want = malloc(LEN);
    char *staging = memory + LEN / 2;
    cudaStream_t stream;
    size_t at = 0;
    if (bytes == NULL || want == NULL) {
        says(false, "out of memory");
        return;
    }
    (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    (void)cudaMemcpy(memory, bytes, LEN, cudaMemcpyHostToDevice);
    memcpy(want, bytes, LEN);
    for (size_t i = 0; i < PIECES; i++) { /* of many sizes, at all kinds of places */
        size_t odd = i % 3 == 0 ? i % 16 : i % 3 == 1 ? i % 4 * 4 : 0;
        size_t len = i % 3 == 0 ? i + 1 : i % 3 == 1 ? (i + 1) * 4 : 2048;
        pieces[i] = (struct kvplane_cuda_piece){memory + i * PIECE_ROOM + odd, at, len};
        memcpy(want + LEN / 2 + at, bytes + i * PIECE_ROOM + odd, len);
        at += len + i % 5;
    }
    int result = kvplane_cuda_gather(kc, stream, staging, pieces, PIECES);
    says(result == KVPLANE_OK && cudaStreamSynchronize(stream) == cudaSuccess,
         "the kernel loads and runs");
    says(holds(memory, want, LEN), "pieces are gathered, and nothing else is touched");
    unsigned char *others = pattern(2);
    if (others != NULL) {
        memcpy(want, others, LEN / 2);
        for (size_t i = 0; i < PIECES; i++) {
            size_t to = (size_t)((char *)pieces[i].address - memory);
            memcpy(want + to, bytes + to, pieces[i].len);
        }
        (void)cudaMemcpy(memory, others, LEN / 2, cudaMemcpyHostToDevice);
        says(kvplane_cuda_scatter(kc, stream, staging, pieces, PIECES) == KVPLANE_OK &&
                 cudaStreamSynchronize(stream) == cudaSuccess && holds(memory, want, LEN / 2),
             "and scattered");
    }
    free(others);
    free(want);
    free(bytes);
    (void)cudaStreamDestroy(stream);
}

/* ---- sleep ---- */

static void sleeping(const struct kvplane_cuda_memory *memory, char *at)
{
    const char *tags[] = {memory->tag};
    const bool keep[] = {true};
    unsigned char *bytes = pattern(3);
    (void)cudaMemcpy(at, bytes, LEN, cudaMemcpyHostToDevice);
    size_t awake = free_bytes();
    says(kvplane_cuda_release(kc, false, tags, keep, 1) == KVPLANE_OK &&
             kvplane_cuda_release(kc, true, tags, keep, 1) == KVPLANE_OK,
         "memory is copied aside and given back");
    says(about(free_bytes(), awake + LEN), "the device has it again");
    says(kvplane_cuda_restore(kc, tags, 1) == KVPLANE_ERR_BAD_STATE,
         "it comes back (and there is no daemon to hand it to)");
    says(bytes != NULL && holds(at, bytes, LEN), "at its address, with its bytes");
    free(bytes);
}

static void adopting(char *memory)
{
    struct kvplane_cuda_options options = {.kv = kv};
    struct kvplane_cuda *other = NULL;
    void *base = NULL;
    says(kvplane_cuda_open(&options, &other) == KVPLANE_OK &&
             kvplane_cuda_adopt(other, 1, "kv_cache", memory + LEN / 2, 4096, &base) == KVPLANE_OK,
         "memory is adopted by an address inside it");
    says(base == memory, "the region is the whole of its allocation");
    says(kvplane_cuda_close(other) == KVPLANE_OK, "and given up");
}

int main(void)
{
    static const struct kvplane_callbacks callbacks = {.state = on_state};
    struct kvplane_options session = {.instance = "conform",
                                      .layout = "bytes",
                                      .socket = "/nonexistent/engine.sock",
                                      .callbacks = &callbacks};
    if (kvplane_open(&session, &kv) != KVPLANE_OK) {
        fprintf(stderr, "%s\n", kvplane_last_error(NULL));
        return 1;
    }
    struct kvplane_cuda_options options = {.kv = kv};
    int result = kvplane_cuda_open(&options, &kc);
    if (result == KVPLANE_ERR_UNAVAILABLE) {
        printf("SKIP: no GPU for libkvplane_cuda: %s\n", kvplane_cuda_last_error(NULL));
        kvplane_close(kv);
        return SKIPPED;
    }
    struct kvplane_cuda_memory memory = {
        .region = 1, .tag = "kv_cache", .len = LEN, .fabric = true};
    void *at = NULL;
    size_t before = free_bytes();
    says(result == KVPLANE_OK, "the GPU is opened");
    says(result == KVPLANE_OK && kvplane_cuda_allocate(kc, &memory, &at) == KVPLANE_OK,
         "memory is allocated, with a fabric handle or without");
    if (at != NULL) {
        puts_wait(at);
        packing(at);
        sleeping(&memory, at);
        adopting(at);
    }
    kvplane_close(kv);
    says(kvplane_cuda_close(kc) == KVPLANE_OK, "everything is given back");
    kc = NULL;
    says(about(free_bytes(), before), "the device has all of it again");
    printf("%u statements, %u do not hold\n", said, failed);
    return failed != 0;
}
