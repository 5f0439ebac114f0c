/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench exists: how many keys a second one core of one shard answers in batches, among 10^7
 * objects, half of the keys being there, next to a bare prefetching probe, one line of equally
 * large memory per key. Medians over interleaved rounds.
 */
#include "core_rig.h"

#define OBJECTS 10000000u
#define BATCH   1000u
#define BATCHES 300u /* per round */

static struct kvs_core *core;
static struct kvs_core_where where;
static struct rig_memory memory;
static uint8_t keys[BATCH][RIG_KEY];
static struct kvs_core_entry entries[BATCH];
static bool there[BATCH];
static uint64_t places[BATCH];
static uint64_t random_state = 1;
static volatile uint64_t sink;

enum way { PROBE, EXISTS, WAYS };
static const char *const names[WAYS] = {"bare probe", "exists"};

static void prepare(void)
{
    for (uint32_t i = 0; i < BATCH; i++) {
        uint64_t n = rig_next(&random_state) % (2 * OBJECTS);
        there[i] = n < OBJECTS;
        rig_key(n, keys[i]);
        entries[i] = (struct kvs_core_entry){.key = {.block = {.data = keys[i], .len = RIG_KEY}}};
        places[i] = rig_next(&random_state) % memory.lines;
    }
}

static uint64_t once_ns(enum way way)
{
    prepare();
    uint64_t start_ns = rig_now_ns();
    if (way == PROBE) {
        sink += rig_probe(&memory, places, BATCH);
    } else {
        kvs_core_exists(core, 1, &where, entries, BATCH, (struct kvs_core_holder){0}, 0);
    }
    uint64_t ns = rig_now_ns() - start_ns;
    for (uint32_t i = 0; way == EXISTS && i < BATCH; i++) {
        if ((entries[i].status == KVB_OK) != there[i]) {
            fprintf(stderr, "a wrong answer\n");
            exit(1);
        }
    }
    return ns;
}

int main(void)
{
    int cpu = rig_pin();
    core = rig_create(OBJECTS);
    where = rig_where(1);
    for (uint64_t i = 0; i < OBJECTS; i++) {
        rig_put(core, &where, i);
    }
    struct kvs_core_stats stats = rig_stats(core);
    memory = rig_memory(stats.metadata_bytes);
    printf("%u objects, %u-byte keys, %.1f bytes of memory each; cpu %d\n", OBJECTS, RIG_KEY,
           (double)stats.metadata_bytes / OBJECTS, cpu);
    static double rate[WAYS][RIG_ROUNDS];
    for (uint32_t round = 0; round < RIG_ROUNDS; round++) {
        for (enum way way = 0; way < WAYS; way++) {
            double ns[BATCHES];
            for (uint32_t i = 0; i < BATCHES; i++) {
                ns[i] = (double)once_ns(way);
            }
            rate[way][round] = BATCH * 1e9 / rig_quantile(ns, BATCHES, 0.5);
        }
    }
    double mid[WAYS];
    printf("%-14s %14s %10s\n", "batches of 1000", "keys/s", "ns/key");
    for (enum way way = 0; way < WAYS; way++) {
        mid[way] = rig_quantile(rate[way], RIG_ROUNDS, 0.5);
        printf("%-14s %14.0f %10.1f\n", names[way], mid[way], 1e9 / mid[way]);
    }
    printf("bench exists: keys_per_s=%.0f limit_per_s=%.0f\n", mid[EXISTS], mid[PROBE]);
    kvs_core_destroy(core);
    return 0;
}
