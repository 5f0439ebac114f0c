/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench lookup: how long one shard takes to look up a prompt of 250 blocks among 10^7 objects, in
 * process, with the promise (hold) that goes with it and without, next to a bare prefetching probe
 * of 250 lines of equally large memory. Every lookup is of another prompt, chosen at random, so
 * nothing of it is in a cache. Medians over interleaved rounds.
 */
#include "core_rig.h"

#define OBJECTS 10000000u
#define BLOCKS  250u
#define PROMPTS (OBJECTS / BLOCKS)
#define LOOKUPS 200u /* per round */

static struct kvs_core *core;
static struct kvs_core_where where;
static struct rig_memory memory;
static uint8_t keys[BLOCKS][RIG_KEY];
static struct kvs_core_entry entries[BLOCKS];
static uint64_t places[BLOCKS];
static uint64_t random_state = 1;
static uint64_t requests;
static volatile uint64_t sink;

enum way { PROBE, LOOKUP, LOOKUP_HELD, WAYS };
static const char *const names[WAYS] = {"bare probe", "lookup", "lookup, held"};

static void prepare(void)
{
    uint64_t prompt = rig_next(&random_state) % PROMPTS;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        rig_key(prompt * BLOCKS + i, keys[i]);
        entries[i] = (struct kvs_core_entry){.key = {.block = {.data = keys[i], .len = RIG_KEY}}};
        places[i] = rig_next(&random_state) % memory.lines;
    }
}

static uint32_t prefix(void)
{
    uint32_t n = 0;
    while (n < BLOCKS && entries[n].status == KVB_OK) {
        n++;
    }
    return n;
}

static double once(enum way way)
{
    prepare();
    struct kvs_core_holder holder = {.instance = way == LOOKUP_HELD, .request = ++requests};
    uint64_t start_ns = rig_now_ns();
    if (way == PROBE) {
        sink += rig_probe(&memory, places, BLOCKS);
    } else {
        kvs_core_exists(core, 1, &where, entries, BLOCKS, holder, KVB_NEVER);
        sink += prefix();
    }
    double us = (double)(rig_now_ns() - start_ns) / 1000;
    if (way != PROBE && prefix() != BLOCKS) {
        fprintf(stderr, "a prompt was not found whole\n");
        exit(1);
    }
    if (way == LOOKUP_HELD) {
        kvb_assert(entries[BLOCKS - 1].held);
        kvs_core_discard(core, holder);
    }
    return us;
}

int main(void)
{
    int cpu = rig_pin();
    core = rig_create(OBJECTS);
    where = rig_where(1);
    uint64_t start_ns = rig_now_ns();
    for (uint64_t i = 0; i < OBJECTS; i++) {
        rig_put(core, &where, i);
    }
    double put_us = (double)(rig_now_ns() - start_ns) / 1000 / OBJECTS;
    struct kvs_core_stats stats = rig_stats(core);
    memory = rig_memory(stats.metadata_bytes);
    printf("%u objects, %u-byte keys, %.1f bytes of memory each; cpu %d; put %.2f us\n", OBJECTS,
           RIG_KEY, (double)stats.metadata_bytes / OBJECTS, cpu, put_us);
    static double p50[WAYS][RIG_ROUNDS];
    static double p99[WAYS][RIG_ROUNDS];
    for (uint32_t round = 0; round < RIG_ROUNDS; round++) {
        for (enum way way = 0; way < WAYS; way++) {
            double us[LOOKUPS];
            for (uint32_t i = 0; i < LOOKUPS; i++) {
                us[i] = once(way);
            }
            p50[way][round] = rig_quantile(us, LOOKUPS, 0.5);
            p99[way][round] = rig_quantile(us, LOOKUPS, 0.99);
        }
    }
    double mid[WAYS];
    printf("%-14s %10s %10s\n", "250 keys", "p50 us", "p99 us");
    for (enum way way = 0; way < WAYS; way++) {
        mid[way] = rig_quantile(p50[way], RIG_ROUNDS, 0.5);
        printf("%-14s %10.1f %10.1f\n", names[way], mid[way],
               rig_quantile(p99[way], RIG_ROUNDS, 0.5));
    }
    printf("bench lookup: p50_us=%.1f limit_us=%.1f held_p50_us=%.1f\n", mid[LOOKUP], mid[PROBE],
           mid[LOOKUP_HELD]);
    kvs_core_destroy(core);
    return 0;
}
