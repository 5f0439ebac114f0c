/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 1 MiB blocks between an engine's region and the daemon's own share, through the link, 8
 * outstanding. The limit is one thread that copies and hashes the same bytes between the same kinds
 * of memory, in the same round.
 */
#include "rig.h"

#include "base/xxh3.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCK       (1u << 20)
#define BLOCKS      128u /* per round: region and share are walked, so neither side is hot */
#define OUTSTANDING 8u
#define ROUNDS      7u

static double gib_per_s(uint64_t ns)
{
    return (double)BLOCKS * BLOCK / (double)ns * 1e9 / (1u << 30);
}

/* The best anybody could do: hash what was just copied, in pieces that stay in the cache. On the
 * server's core, which is idle meanwhile: two cores are not alike on a shared machine. */
static double limit(char *to, const char *from)
{
    enum { PIECE = 64 << 10 };
    rig_pin(RIG_SERVER_CPU);
    uint64_t start = rig_now_ns();
    for (size_t b = 0; b < BLOCKS; b++) {
        XXH3_state_t state;
        XXH3_64bits_reset(&state);
        for (size_t at = 0; at < BLOCK; at += PIECE) {
            memcpy(to + b * BLOCK + at, from + b * BLOCK + at, PIECE);
            XXH3_64bits_update(&state, to + b * BLOCK + at, PIECE);
        }
        if (XXH3_64bits_digest(&state) == 0) {
            rig_fail("a hash of 0 is unlikely");
        }
    }
    double rate = gib_per_s(rig_now_ns() - start);
    rig_pin(RIG_CLIENT_CPU);
    return rate;
}

static double engine_round(struct rig_engine *engine, bool put, uint64_t first)
{
    uint64_t start = rig_now_ns();
    for (uint32_t i = 0; i < BLOCKS; i++) {
        rig_engine_wait(engine, OUTSTANDING - 1);
        if (put) {
            rig_engine_put(engine, first + i, (uint64_t)i * BLOCK, BLOCK);
        } else {
            rig_engine_get(engine, first + i, (uint64_t)i * BLOCK, BLOCK);
        }
    }
    rig_engine_wait(engine, 0);
    return gib_per_s(rig_now_ns() - start);
}

int main(void)
{
    struct rig rig;
    rig_start(&rig, RIG_SERVER_CPU, (const char *[]){"--store-bytes", "1GiB", NULL});
    struct rig_engine engine;
    rig_engine_open(&engine, &rig, "bench", "bench", (size_t)BLOCKS * BLOCK);
    char *plain = mmap(NULL, (size_t)BLOCKS * BLOCK, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (plain == MAP_FAILED) {
        rig_fail("mmap");
    }
    /* Every page of the share is touched once before anything is measured. */
    uint64_t key = 0;
    for (int warm = 0; warm < 9; warm++, key += BLOCKS) {
        engine_round(&engine, true, key);
    }
    engine.failed = 0;

    double put_ratio[ROUNDS], get_ratio[ROUNDS];
    printf("%8s %12s %12s %12s\n", "round", "limit GiB/s", "put GiB/s", "get GiB/s");
    for (uint32_t r = 0; r < ROUNDS; r++, key += BLOCKS) {
        double best = limit(plain, engine.memory);
        double put = engine_round(&engine, true, key);
        double get = engine_round(&engine, false, key);
        put_ratio[r] = put / best;
        get_ratio[r] = get / best;
        printf("%8u %12.2f %12.2f %12.2f\n", r, best, put, get);
    }
    if (engine.failed != 0) {
        rig_fail("%llu transfers failed", (unsigned long long)engine.failed);
    }
    rig_engine_close(&engine);
    rig_stop(&rig);
    printf("bench local: get_ratio=%.2f put_ratio=%.2f\n", rig_quantile(get_ratio, ROUNDS, 0.5),
           rig_quantile(put_ratio, ROUNDS, 0.5));
    return 0;
}
