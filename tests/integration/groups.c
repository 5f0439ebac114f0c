/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups SOCKET: two engines of one model on libkvplane, whose layers are of two kinds: full
 * attention in blocks of 16 tokens, a sliding window of 64 tokens in blocks of 32. Instance `two`
 * has two ranks, `one` has one; a stored block has two parts. Checks every byte it gets, prints
 * `groups ok`, and then serves until its stdin ends. Driven by test_ranks.py.
 */
#include "kvplane.h"

#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PART_BYTES = 4096, BLOCKS = 32, REGION_BYTES = 2 * BLOCKS * PART_BYTES };
enum { DEVICE = 1, HOST }; /* regions */

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct rank {
    struct kvplane *kv;
    uint32_t first_part, nparts;
    unsigned char *memory; /* NULL: released */
    int fds[2];            /* of the memory that sleep takes, and of what it does not touch */
    uint64_t generation;
    bool paused, shares;
};
static struct rank ranks[3]; /* two of `two`, one of `one` */

static unsigned char byte_of(uint32_t group, uint32_t block, uint32_t part, size_t i)
{
    return (unsigned char)(group * 101 + block * 13 + part * 57 + i * 7 + i / 256);
}

/* ---- what the daemon asks ---- */

static int sealed(void)
{
    int fd = memfd_create("groups", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, REGION_BYTES) == 0);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return fd;
}

static void hand_over(struct rank *rank, uint32_t region)
{
    struct kvplane_region msg = {.region = region,
                                 .tag = "kv_cache",
                                 .host_resident = region == HOST,
                                 .fd = rank->fds[region - DEVICE],
                                 .len = REGION_BYTES,
                                 .generation = ++rank->generation};
    CHECK(kvplane_register_region(rank->kv, &msg, NULL, NULL) == KVPLANE_OK);
}

static void map(struct rank *rank)
{
    if (rank->memory == NULL) {
        rank->fds[0] = sealed();
        rank->memory =
            mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, rank->fds[0], 0);
        CHECK(rank->memory != MAP_FAILED);
    }
}

static void on_pause(void *ctx, struct kvplane_call *call, enum kvplane_pause_mode mode)
{
    (void)mode;
    ((struct rank *)ctx)->paused = true;
    kvplane_answer(call, KVPLANE_OK);
}
static void on_resume(void *ctx, struct kvplane_call *call)
{
    ((struct rank *)ctx)->paused = false;
    kvplane_answer(call, KVPLANE_OK);
}
static void on_reset(void *ctx, struct kvplane_call *call, bool preempt)
{
    (void)ctx;
    (void)preempt;
    kvplane_answer(call, KVPLANE_OK);
}
static void on_release(void *ctx, struct kvplane_call *call, bool commit, const char *const *tags,
                       const bool *offload, size_t ntags)
{
    struct rank *rank = ctx;
    (void)tags;
    (void)offload;
    (void)ntags;
    if (commit && rank->memory != NULL) {
        munmap(rank->memory, REGION_BYTES);
        close(rank->fds[0]);
        rank->memory = NULL;
    }
    kvplane_answer(call, KVPLANE_OK);
}
static void on_restore(void *ctx, struct kvplane_call *call, const char *const *tags, size_t ntags)
{
    (void)tags;
    (void)ntags;
    map(ctx);
    hand_over(ctx, DEVICE);
    kvplane_answer(call, KVPLANE_OK);
}
static void on_fingerprint(void *ctx, struct kvplane_call *call)
{
    (void)ctx;
    kvplane_answer_text(call, KVPLANE_OK, "model-1"); /* of all of it, as every rank says */
}
static void on_state(void *ctx, struct kvplane_state *state)
{
    const struct rank *rank = ctx;
    state->paused = rank->paused;
    state->local_reset_done = true;
    state->ntags = 1;
    state->tags[0].tag = "kv_cache";
    state->tags[0].residency = rank->memory == NULL ? KVPLANE_DISCARDED : KVPLANE_RESIDENT;
}
/* What is put before that is of a stay that nobody else shares. */
static void on_lineage(void *ctx, bool left, const char *name)
{
    struct rank *rank = ctx;
    rank->shares = !left && name[0] != '\0';
}
static void on_attached(void *ctx, int result)
{
    struct rank *rank = ctx;
    CHECK(result == KVPLANE_OK);
    hand_over(rank, HOST);
    hand_over(rank, DEVICE);
}
static const struct kvplane_callbacks callbacks = {.pause = on_pause,
                                                   .resume = on_resume,
                                                   .reset_local = on_reset,
                                                   .release = on_release,
                                                   .restore = on_restore,
                                                   .fingerprint = on_fingerprint,
                                                   .lineage = on_lineage,
                                                   .state = on_state,
                                                   .attached = on_attached};

static void open_rank(struct rank *rank, const char *socket, const char *instance, uint32_t index,
                      uint32_t world)
{
    static const struct kvplane_group groups[] = {{.block_tokens = 16},
                                                  {.block_tokens = 32, .window_tokens = 64}};
    const struct kvplane_options options = {
        .socket = socket,
        .instance = instance,
        .layout = "groups/1",
        .roles = index == 0 ? KVPLANE_ROLE_BOTH : KVPLANE_ROLE_WORKER,
        .rank = index,
        .world_size = world,
        .store_tp_size = 2,
        .groups = groups,
        .ngroups = 2,
        .callbacks = &callbacks,
        .ctx = rank,
    };
    rank->nparts = 2 / world;
    rank->first_part = index * rank->nparts;
    rank->fds[1] = sealed();
    map(rank);
    CHECK(kvplane_open(&options, &rank->kv) == KVPLANE_OK);
}

/* ---- blocks ---- */

static void turn(void)
{
    struct pollfd fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = (struct pollfd){.fd = kvplane_fd(ranks[i].kv), .events = POLLIN};
    }
    for (int i = 0; i < 3; i++) {
        CHECK(kvplane_process(ranks[i].kv) == KVPLANE_OK);
    }
    (void)poll(fds, 3, 20);
}

static size_t name_of(char key[16], uint32_t group, uint32_t block)
{
    return (size_t)snprintf(key, 16, "g%u-b%u", group, block);
}

/* Part j of a rank's block: one slice of each of two halves. */
static void slices_of(const struct rank *rank, uint32_t block, uint32_t j,
                      struct kvplane_slice slices[2])
{
    for (uint32_t half = 0; half < 2; half++) {
        slices[half] =
            (struct kvplane_slice){.region = DEVICE,
                                   .offset = (uint64_t)block * rank->nparts * PART_BYTES +
                                             (half * rank->nparts + j) * (PART_BYTES / 2),
                                   .len = PART_BYTES / 2};
    }
}

static void on_batch(void *arg, const int *results, size_t n)
{
    int *result = arg;
    *result = KVPLANE_OK;
    for (size_t i = 0; i < n; i++) {
        *result =
            results[i] != KVPLANE_OK && results[i] != KVPLANE_ERR_EXISTS ? results[i] : *result;
    }
}

/* The rank's parts of one block. */
static int move(struct rank *rank, bool get, uint32_t group, uint32_t block)
{
    struct kvplane_entry entries[2];
    struct kvplane_slice slices[2][2];
    char key[16];
    size_t len = name_of(key, group, block);
    int result = 1;
    for (uint32_t j = 0; j < rank->nparts; j++) {
        slices_of(rank, block, j, slices[j]);
        for (uint32_t s = 0; s < 2; s++) {
            for (size_t i = 0; i < PART_BYTES / 2; i++) {
                rank->memory[slices[j][s].offset + i] =
                    get ? 0xee
                        : byte_of(group, block, rank->first_part + j, s * (PART_BYTES / 2) + i);
            }
        }
        entries[j] = (struct kvplane_entry){.key = key,
                                            .key_len = len,
                                            .group = group,
                                            .part = rank->first_part + j,
                                            .token = kvplane_get_token(rank->kv),
                                            .slices = slices[j],
                                            .nslices = 2};
    }
    CHECK((get ? kvplane_get(rank->kv, 1, kvplane_get_token(rank->kv), entries, rank->nparts,
                             on_batch, &result)
               : kvplane_put(rank->kv, entries, rank->nparts, on_batch, &result)) == KVPLANE_OK);
    while (result == 1) {
        turn();
    }
    for (uint32_t j = 0; get && result == KVPLANE_OK && j < rank->nparts; j++) {
        for (uint32_t s = 0; s < 2; s++) {
            for (size_t i = 0; i < PART_BYTES / 2; i++) {
                CHECK(rank->memory[slices[j][s].offset + i] ==
                      byte_of(group, block, rank->first_part + j, s * (PART_BYTES / 2) + i));
            }
        }
    }
    return result;
}

struct hits {
    bool done;
    int result;
    uint32_t of[2];
};
static void on_lookup(void *arg, int result, const uint32_t *hits, size_t ngroups)
{
    struct hits *found = arg;
    CHECK(ngroups == 2);
    *found = (struct hits){true, result, {hits[0], hits[1]}};
}

/* A prompt of 256 tokens. */
static struct hits look_up(struct rank *rank)
{
    struct kvplane_key keys[2][16];
    char names[2][16][16];
    struct kvplane_keys groups[2];
    struct hits found = {.done = false};
    for (uint32_t g = 0; g < 2; g++) {
        groups[g] = (struct kvplane_keys){.group = g, .keys = keys[g], .nkeys = g == 0 ? 16 : 8};
        for (uint32_t i = 0; i < groups[g].nkeys; i++) {
            keys[g][i] = (struct kvplane_key){.key = names[g][i]};
            keys[g][i].len = name_of(names[g][i], g, i);
        }
    }
    CHECK(kvplane_lookup(rank->kv, 1, kvplane_get_token(rank->kv), groups, 2, on_lookup, &found) ==
          KVPLANE_OK);
    while (!found.done) {
        turn();
    }
    return found;
}

static void expect(struct rank *rank, uint32_t full, uint32_t window)
{
    struct hits found = {.done = false};
    for (int tries = 0; tries < 500; tries++) { /* until the lineage is open and shared */
        found = look_up(rank);
        if (found.result == KVPLANE_OK && found.of[0] == full && found.of[1] == window) {
            return;
        }
    }
    fprintf(stderr, "hits %u and %u, result %d; not %u and %u\n", found.of[0], found.of[1],
            found.result, full, window);
    exit(1);
}

static void put(struct rank *rank, uint32_t group, uint32_t block)
{
    int result = KVPLANE_ERR_CLOSED;
    for (int tries = 0; tries < 500 && result != KVPLANE_OK; tries++) {
        result = move(rank, false, group, block);
    }
    if (result != KVPLANE_OK) {
        fprintf(stderr, "put of group %u, block %u: %s\n", group, block, kvplane_strerror(result));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    open_rank(&ranks[0], argv[1], "two", 0, 2);
    open_rank(&ranks[1], argv[1], "two", 1, 2);
    open_rank(&ranks[2], argv[1], "one", 0, 1);
    while (!ranks[0].shares || !ranks[1].shares || !ranks[2].shares) {
        turn();
    }
    /* Full attention has 12 blocks, 192 tokens, block 9 of rank 0 alone; of the window's, 2 … 3 and
     * 5 are there. */
    for (uint32_t block = 0; block < 12; block++) {
        put(&ranks[0], 0, block);
        if (block != 9) {
            put(&ranks[1], 0, block);
        }
    }
    static const uint32_t kept[] = {2, 3, 5};
    for (int i = 0; i < 3; i++) {
        put(&ranks[0], 1, kept[i]);
        put(&ranks[1], 1, kept[i]);
    }
    /* 9 blocks of 16 (144 tokens) are whole; prefixes end at multiples of 32: of 128 tokens the
     * window needs blocks 2 and 3. The other engine, split otherwise, finds the same. */
    expect(&ranks[0], 8, 4);
    expect(&ranks[2], 8, 4);
    for (uint32_t block = 0; block < 8; block++) {
        CHECK(move(&ranks[2], true, 0, block) == KVPLANE_OK);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(move(&ranks[2], true, 1, kept[i]) == KVPLANE_OK);
    }
    CHECK(move(&ranks[2], true, 0, 9) == KVPLANE_ERR_NOT_FOUND); /* half of it is there */
    /* It puts what is missing, and the two ranks read it: each its own part. */
    put(&ranks[2], 0, 9);
    put(&ranks[2], 1, 4);
    expect(&ranks[0], 12, 6); /* 192 tokens: the window's blocks 4 and 5 */
    for (int r = 0; r < 2; r++) {
        CHECK(move(&ranks[r], true, 0, 9) == KVPLANE_OK);
        CHECK(move(&ranks[r], true, 1, 4) == KVPLANE_OK);
    }
    printf("groups ok\n");
    fflush(stdout);
    struct pollfd end = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&end, 1, 0) == 0) {
        turn();
    }
    for (int i = 0; i < 3; i++) {
        kvplane_close(ranks[i].kv);
        munmap(ranks[i].memory, REGION_BYTES);
        close(ranks[i].fds[0]);
        close(ranks[i].fds[1]);
    }
    return 0;
}
