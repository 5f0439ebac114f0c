/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest engine that shares its KV blocks and can be put to sleep:
 *   cc example.c $(pkg-config --cflags --libs kvplane) -o example && ./example SOCKET [PROMPTS]
 * A prompt has four blocks: what the store has is fetched, the rest is computed and put. */
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <kvplane.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 4, BLOCK_BYTES = 65536, MEMORY_BYTES = BLOCKS * BLOCK_BYTES };
static struct kvplane *kv;
static char *memory;        /* of the blocks; NULL: none mapped */
static int memfd;           /* the same memory, as the daemon gets it */
static uint64_t generation; /* each handing over is another one */
static bool paused, released;
static enum kvplane_pause_mode pause_mode;
static struct kvplane_call *pausing; /* a pause that waits for the end of the running prompt */

static void hand_over_memory(void)
{
    if (memory == NULL) {
        memfd = memfd_create("kv_cache", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        int failed = ftruncate(memfd, MEMORY_BYTES) | fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK);
        memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
        assert(!failed && memory != MAP_FAILED);
    }
    struct kvplane_region region = {.tag = "kv_cache", .fd = memfd, .len = MEMORY_BYTES};
    region.generation = ++generation;
    kvplane_register_region(kv, &region, NULL, NULL);
}

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
    if (commit && !released) { /* one tag; between prompts nothing in it is worth offloading */
        munmap(memory, MEMORY_BYTES), close(memfd);
        memory = NULL, released = true;
    }
    kvplane_answer(call, KVPLANE_OK);
}
static void on_restore(void *ctx, struct kvplane_call *call, const char *const *tags, size_t ntags)
{
    released = false;
    hand_over_memory();
    kvplane_answer(call, KVPLANE_OK);
}
static void on_state(void *ctx, struct kvplane_state *state)
{
    state->paused = paused, state->pause_mode = pause_mode, state->local_reset_done = true;
    state->tags[0].tag = "kv_cache", state->ntags = 1;
    state->tags[0].residency = released ? KVPLANE_DISCARDED : KVPLANE_RESIDENT;
}
static void on_attached(void *ctx, int result)
{
    if (result == KVPLANE_OK && !released) {
        hand_over_memory();
    }
}
static void on_disconnected(void *ctx, int reason)
{
    kvplane_reattach(kv); /* until it succeeds, prompts are computed without a store */
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
    while (kvplane_pending(kv) > 0) {
        kvplane_wait(kv, -1);
    }
}

static void run_prompt(void)
{
    static const struct kvplane_key keys[BLOCKS] = {
        {"b0", 2, NULL, 0}, {"b1", 2, NULL, 0}, {"b2", 2, NULL, 0}, {"b3", 2, NULL, 0}};
    static const struct kvplane_keys prompt = {.keys = keys, .nkeys = BLOCKS};
    kvplane_token token = kvplane_get_token(kv); /* before anything is computed */
    uint32_t hits = 0;
    kvplane_lookup(kv, 1, token, &prompt, 1, on_lookup, &hits);
    finish_calls();
    for (uint32_t i = 0; i < BLOCKS; i++) {
        struct kvplane_slice slice = {.offset = i * BLOCK_BYTES, .len = BLOCK_BYTES};
        struct kvplane_entry entry = {keys[i].key, 2, NULL, 0, 0, 0, token, &slice, 1};
        int got = KVPLANE_ERR_NOT_FOUND;
        if (i < hits && kvplane_get(kv, 1, token, &entry, 1, on_got, &got) == KVPLANE_OK) {
            finish_calls();
        }
        if (got != KVPLANE_OK) { /* compute it, and share it */
            memset(memory + slice.offset, 'a' + (int)i, BLOCK_BYTES);
            kvplane_put(kv, &entry, 1, NULL, NULL);
        }
    }
    finish_calls(); /* the memory belongs to the puts until then */
    printf("%u of %d blocks from the store\n", hits, BLOCKS);
}

int main(int argc, char **argv)
{
    static const struct kvplane_callbacks calls = {
        on_pause, on_resume, on_reset_local, on_release,      on_restore, NULL,
        NULL,     NULL,      on_state,       on_disconnected, on_attached};
    struct kvplane_options options = {.instance = "example", .layout = "bytes/64KiB"};
    options.socket = argv[1], options.weights_name = "1", options.callbacks = &calls;
    int result = kvplane_open(&options, &kv);
    for (int left = argc > 2 ? atoi(argv[2]) : 4; left > 0 && result == KVPLANE_OK;) {
        answer_pause(KVPLANE_OK); /* between two prompts nothing runs: idle */
        result = paused || memory == NULL ? kvplane_wait(kv, -1) : kvplane_process(kv);
        if (!paused && memory != NULL) {
            run_prompt(), left--;
        }
    }
    fprintf(stderr, "%s", result == KVPLANE_OK ? "" : kvplane_last_error(kv));
    kvplane_close(kv);
    return result != KVPLANE_OK;
}
