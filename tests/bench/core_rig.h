/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_CORE_RIG_H
#define BENCH_CORE_RIG_H

/*
 * What the benches of a shard share: one filled with real objects, and the limit to compare with, a
 * bare prefetching probe of equally large memory. One thread, pinned, alone on its core if the
 * machine lets it be. The share has no memory: the core never touches it.
 */
#include "base/assert.h"
#include "store/core.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define RIG_KEY     16u           /* bytes of a block key: a hash, as engines use */
#define RIG_VALUE   (16ull << 10) /* bytes of a block */
#define RIG_GROUP   64u           /* probes in flight */
#define RIG_ROUNDS  7u
#define RIG_SESSION 1u

static inline uint64_t rig_mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static inline uint64_t rig_next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ull;
    return rig_mix(*state);
}

static inline uint64_t rig_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* To the last CPU that this process may use. */
static inline int rig_pin(void)
{
    cpu_set_t set;
    int cpu = -1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int i = 0; i < CPU_SETSIZE; i++) {
            cpu = CPU_ISSET(i, &set) ? i : cpu;
        }
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        (void)sched_setaffinity(0, sizeof set, &set);
    }
    return cpu;
}

static inline void rig_key(uint64_t n, uint8_t key[RIG_KEY])
{
    const uint64_t words[2] = {rig_mix(n), rig_mix(~n)};
    memcpy(key, words, RIG_KEY);
}

static inline struct kvs_core_where rig_where(uint64_t lineage)
{
    return (struct kvs_core_where){.lineage = {.id = {.hi = 1, .lo = lineage}}};
}

static inline struct kvs_core *rig_create(uint64_t objects)
{
    struct kvs_core_config config = {.share_bytes = (objects + objects / 16 + 1024) * RIG_VALUE};
    struct kvs_core *core;
    kvb_status_t status = kvs_core_create(&config, &kvb_random_real, &core);
    if (status == KVB_OK) {
        status = kvs_core_session_open(core, RIG_SESSION);
    }
    if (status != KVB_OK) {
        fprintf(stderr, "no shard: %s\n", kvb_status_text(status));
        exit(1);
    }
    return core;
}

/* One put of object n, as the node makes it. */
static inline void rig_put(struct kvs_core *core, const struct kvs_core_where *where, uint64_t n)
{
    uint8_t bytes[RIG_KEY];
    rig_key(n, bytes);
    struct kvs_core_key key = {.block = {.data = bytes, .len = RIG_KEY}};
    struct kvs_core_put put = {.len = RIG_VALUE, .session = RIG_SESSION, .deadline_ns = KVB_NEVER};
    struct kvs_attempt attempt;
    struct kvs_extents extents;
    kvs_extents_init(&extents);
    kvb_status_t status = kvs_core_reserve(core, 1, where, &key, &put, &attempt, &extents);
    if (status == KVB_OK) {
        status = kvs_core_commit(core, 1, attempt, RIG_SESSION, n);
    }
    kvs_extents_cleanup(&extents);
    if (status != KVB_OK) {
        fprintf(stderr, "put %llu: %s\n", (unsigned long long)n, kvb_status_text(status));
        exit(1);
    }
}

static inline struct kvs_core_stats rig_stats(const struct kvs_core *core)
{
    struct kvs_core_stats stats;
    kvs_core_stats(core, &stats);
    return stats;
}

/* ---- the limit ---- */

struct rig_memory {
    uint64_t *at;
    uint64_t lines; /* of 64 bytes */
};

/* As large as the shard's own memory, and in huge pages like it. */
static inline struct rig_memory rig_memory(uint64_t bytes)
{
    const uint64_t huge = 2u << 20;
    bytes = (bytes + huge - 1) / huge * huge;
    char *at = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    kvb_assert(at != MAP_FAILED);
    at += huge - (uintptr_t)at % huge;
    (void)madvise(at, bytes, MADV_HUGEPAGE);
    for (uint64_t i = 0; i < bytes; i += 4096) {
        at[i] = (char)i;
    }
    return (struct rig_memory){.at = (uint64_t *)(void *)at, .lines = bytes / 64};
}

/* Reads n lines at random places, RIG_GROUP in flight: what any lookup of n keys must at least do.
 */
static inline uint64_t rig_probe(const struct rig_memory *memory, const uint64_t *places,
                                 uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t done = 0; done < n; done += RIG_GROUP) {
        uint32_t now = n - done < RIG_GROUP ? n - done : RIG_GROUP;
        for (uint32_t i = 0; i < now; i++) {
            __builtin_prefetch(&memory->at[places[done + i] * 8]);
        }
        for (uint32_t i = 0; i < now; i++) {
            sum += memory->at[places[done + i] * 8];
        }
    }
    return sum;
}

/* ---- figures ---- */

static inline int rig_compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The figure below which `share` of them lie; sorts. */
static inline double rig_quantile(double *figures, uint32_t n, double share)
{
    qsort(figures, n, sizeof *figures, rig_compare);
    uint32_t at = (uint32_t)((double)n * share);
    return figures[at < n ? at : n - 1];
}

#endif
