/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest engine whose KV lies in GPU memory and that can be put to sleep:
 *   cc example.c $(pkg-config --cflags --libs kvplane_cuda) -lcudart -o example
 *   ./example SOCKET [PROMPTS]
 * What ../example.c does with host memory. `Computing` a block is a copy that the GPU makes later;
 * its put waits for the event behind it. */
#include <cuda_runtime_api.h>
#include <kvplane_cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 4, BLOCK_BYTES = 65536, MEMORY_BYTES = BLOCKS * BLOCK_BYTES };
static struct kvplane *kv;
static struct kvplane_cuda *kc;
static char *memory; /* of the blocks; the same address for good */
static cudaStream_t stream;
static cudaEvent_t computed;
static bool paused;
static enum kvplane_pause_mode pause_mode;
static struct kvplane_call *pausing; /* a pause that waits for the end of the running prompt */

static void answer_pause(int result)
{
    if (pausing != NULL) {
        kvplane_answer(pausing, result);
    }
    pausing = NULL;
}
static void on_pause(void *ctx, struct kvplane_call *call, enum kvplane_pause_mode mode)
{
    answer_pause(KVPLANE_ERR_CANCELED); /* superseded */
    paused = true, pause_mode = mode, pausing = call;
}
static void on_resume(void *ctx, struct kvplane_call *call)
{
    answer_pause(KVPLANE_ERR_CANCELED);
    paused = false;
    kvplane_answer(call, KVPLANE_OK);
}
static void on_reset_local(void *ctx, struct kvplane_call *call, bool preempt)
{
    kvplane_answer(call, KVPLANE_OK); /* no block outlives its prompt here: nothing to reset */
}
static void on_release(void *ctx, struct kvplane_call *call, bool commit, const char *const *tags,
                       const bool *offload, size_t ntags)
{
    kvplane_answer(call, kvplane_cuda_release(kc, commit, tags, offload, ntags));
}
static void on_restore(void *ctx, struct kvplane_call *call, const char *const *tags, size_t ntags)
{
    kvplane_answer(call, kvplane_cuda_restore(kc, tags, ntags));
}
static void on_state(void *ctx, struct kvplane_state *state)
{
    state->paused = paused, state->pause_mode = pause_mode, state->local_reset_done = true;
    kvplane_cuda_state(kc, state);
}
static void on_attached(void *ctx, int result)
{
    if (result == KVPLANE_OK && kvplane_cuda_hand_over(kc) != KVPLANE_OK) {
        fprintf(stderr, "%s\n", kvplane_cuda_last_error(kc));
    }
}
static void on_disconnected(void *ctx, int reason)
{
    kvplane_reattach(kv); /* until it succeeds, prompts are computed without a store */
}

static bool is_awake(void)
{
    struct kvplane_state state = {0};
    kvplane_cuda_state(kc, &state);
    return !paused && state.tags[0].residency == KVPLANE_RESIDENT && kvplane_cuda_ready(kc);
}
static void on_lookup(void *arg, int result, const uint32_t *hits, size_t ngroups)
{
    *(uint32_t *)arg = hits[0];
}
static void on_got(void *arg, const int *results, size_t n)
{
    *(int *)arg = results[0];
}
static void finish_calls(void)
{
    while (kvplane_pending(kv) > 0 || kvplane_cuda_held(kc) > 0) {
        kvplane_cuda_wait(kc, -1);
    }
}

static void run_prompt(void)
{
    static const struct kvplane_key keys[BLOCKS] = {
        {"b0", 2, NULL, 0}, {"b1", 2, NULL, 0}, {"b2", 2, NULL, 0}, {"b3", 2, NULL, 0}};
    static const struct kvplane_keys prompt = {.keys = keys, .nkeys = BLOCKS};
    static char bytes[BLOCKS][BLOCK_BYTES];
    kvplane_token token = kvplane_get_token(kv); /* before anything is computed */
    uint32_t hits = 0, wrong = 0;
    kvplane_lookup(kv, 1, token, &prompt, 1, on_lookup, &hits);
    finish_calls();
    for (uint32_t i = 0; i < BLOCKS; i++) {
        char *block = memory + i * BLOCK_BYTES;
        struct kvplane_slice slice;
        kvplane_cuda_slice(kc, block, BLOCK_BYTES, &slice);
        struct kvplane_entry entry = {keys[i].key, 2, NULL, 0, 0, 0, token, &slice, 1};
        int got = KVPLANE_ERR_NOT_FOUND;
        if (i < hits && kvplane_get(kv, 1, token, &entry, 1, on_got, &got) == KVPLANE_OK) {
            finish_calls();
        }
        if (got != KVPLANE_OK) { /* compute it, and share it when that is done */
            memset(bytes[i], 'a' + (int)i, BLOCK_BYTES);
            cudaMemcpyAsync(block, bytes[i], BLOCK_BYTES, cudaMemcpyHostToDevice, stream);
            cudaEventRecord(computed, stream);
            kvplane_cuda_put_after(kc, computed, &entry, 1, NULL, NULL);
        }
    }
    finish_calls(); /* the memory belongs to the puts until then */
    for (uint32_t i = 0; i < BLOCKS; i++) {
        cudaMemcpy(bytes[i], memory + i * BLOCK_BYTES, BLOCK_BYTES, cudaMemcpyDeviceToHost);
        wrong += bytes[i][0] != 'a' + (int)i || bytes[i][BLOCK_BYTES - 1] != 'a' + (int)i;
    }
    printf("%u of %d blocks from the store, %u wrong\n", hits, BLOCKS, wrong);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const struct kvplane_callbacks calls = {
        on_pause, on_resume, on_reset_local, on_release,      on_restore, NULL,
        NULL,     NULL,      on_state,       on_disconnected, on_attached};
    static const struct kvplane_cuda_memory kv_cache = {.tag = "kv_cache", .len = MEMORY_BYTES};
    struct kvplane_options options = {.instance = "example", .layout = "bytes/64KiB"};
    options.socket = argc > 1 ? argv[1] : NULL, options.weights_name = "1";
    options.callbacks = &calls;
    int result = kvplane_open(&options, &kv);
    if (result != KVPLANE_OK) {
        fprintf(stderr, "%s\n", kvplane_last_error(NULL));
        return 1;
    }
    struct kvplane_cuda_options gpu = {.kv = kv}; /* device 0 */
    result = kvplane_cuda_open(&gpu, &kc);
    if (result == KVPLANE_OK) {
        result = kvplane_cuda_allocate(kc, &kv_cache, (void **)&memory);
    }
    if (result != KVPLANE_OK) {
        fprintf(stderr, "%s\n", kvplane_cuda_last_error(kc));
        return 1;
    }
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&computed, cudaEventDisableTiming);
    for (int left = argc > 2 ? atoi(argv[2]) : 4; left > 0 && result == KVPLANE_OK;) {
        answer_pause(KVPLANE_OK); /* between two prompts nothing runs: idle */
        result = is_awake() ? kvplane_cuda_process(kc) : kvplane_cuda_wait(kc, -1);
        if (is_awake()) {
            run_prompt(), left--;
        }
    }
    fprintf(stderr, "%s", result == KVPLANE_OK ? "" : kvplane_last_error(kv));
    kvplane_close(kv); /* first: then nobody names the memory */
    int closed = kvplane_cuda_close(kc);
    cudaEventDestroy(computed), cudaStreamDestroy(stream);
    return result != KVPLANE_OK || closed != KVPLANE_OK;
}
