/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How evenly real prompts lie over the nodes (DESIGN.md section 10).
 *
 *   bench_placement [TRACE.jsonl...]
 *
 * Replays traces as one engine would use the store: every block that was not seen before is put,
 * every other is got. Counts for each node the blocks that lie there, in proportion to its
 * capacity, over 3, 5 and 10 nodes, alike and of capacities 1 : 2 : 3 in turn. Fails if a node has
 * more than a fifth more or less than its part. Beside it, not judged: reads, which follow the
 * prompts' own skew (nearly all of them share their first block), and how many nodes the lookup of
 * one prompt asks.
 *
 * Without arguments: the traces of the folder KVPLANE_SHARED (../shared), else a generated one.
 */
#include "placement.h"
#include "trace.h"

#include "kvplane.h"

#include <glob.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NODES_MAX  10u
#define SPREAD_MAX 0.2

struct block {
    uint64_t id;
    uint64_t leader; /* its placement key */
    uint64_t reads;
    bool used;
};

struct table { /* open addressing, by id */
    struct block *blocks;
    size_t slots;
    size_t n;
};

static struct block *find(struct table *table, uint64_t id)
{
    size_t slot = (size_t)(id * 0x9e3779b97f4a7c15ull) & (table->slots - 1);
    while (table->blocks[slot].used && table->blocks[slot].id != id) {
        slot = (slot + 1) & (table->slots - 1);
    }
    return &table->blocks[slot];
}

static bool fill(struct table *table, const struct kve_trace *trace)
{
    size_t all = 0;
    for (uint32_t r = 0; r < trace->nrequests; r++) {
        all += trace->requests[r].nblocks;
    }
    *table = (struct table){.slots = 1024};
    while (table->slots < 2 * all) {
        table->slots *= 2;
    }
    table->blocks = calloc(table->slots, sizeof *table->blocks);
    if (table->blocks == NULL) {
        return false;
    }
    for (uint32_t r = 0; r < trace->nrequests; r++) {
        const struct kve_trace_request *request = &trace->requests[r];
        for (uint32_t b = 0; b < request->nblocks; b++) {
            struct block *block = find(table, request->blocks[b]);
            block->reads += block->used;
            table->n += !block->used;
            block->used = true;
            block->id = request->blocks[b];
            block->leader = request->blocks[kvplane_placement(b, KVE_TRACE_BLOCK_TOKENS)];
        }
    }
    return true;
}

static uint32_t place(const struct kvs_place *places, uint32_t n, uint64_t leader)
{
    static const struct kvs_space space = {.tenant = "default", .layout = "bench"};
    return kvs_placement_pick(places, n, kvs_placement_seed(&space),
                              (struct kvb_span){(const uint8_t *)&leader, sizeof leader});
}

static double nodes_asked(const struct kve_trace *trace, const struct kvs_place *places, uint32_t n)
{
    uint64_t asked = 0;
    for (uint32_t r = 0; r < trace->nrequests; r++) {
        const struct kve_trace_request *request = &trace->requests[r];
        uint32_t nodes = 0; /* bits */
        for (uint32_t b = 0; b < request->nblocks; b++) {
            size_t leader = kvplane_placement(b, KVE_TRACE_BLOCK_TOKENS);
            nodes |= leader == b ? 1u << place(places, n, request->blocks[b]) : 0;
        }
        asked += (uint32_t)__builtin_popcount(nodes);
    }
    return (double)asked / trace->nrequests;
}

struct spread {
    double least, most; /* of what a node should have */
};

static struct spread spread_of(const uint64_t *count, const uint64_t *weights, uint32_t n)
{
    uint64_t total = 0, weight = 0;
    for (uint32_t i = 0; i < n; i++) {
        total += count[i];
        weight += weights[i];
    }
    struct spread spread = {1e9, 0};
    for (uint32_t i = 0; i < n && total > 0; i++) {
        double part = (double)count[i] * (double)weight / ((double)total * (double)weights[i]);
        spread.least = part < spread.least ? part : spread.least;
        spread.most = part > spread.most ? part : spread.most;
    }
    return spread;
}

/* How far a node is from its part, at most. */
static double measure(const char *name, const struct kve_trace *trace, const struct table *table,
                      uint32_t n, bool weighted)
{
    struct kvs_place places[NODES_MAX];
    uint64_t weights[NODES_MAX], blocks[NODES_MAX] = {0}, reads[NODES_MAX] = {0};
    for (uint32_t i = 0; i < n; i++) {
        char node[32];
        (void)snprintf(node, sizeof node, "store-%u", i);
        weights[i] = (weighted ? 1 + i % 3 : 1) * (64ull << 30);
        places[i] = kvs_place_of(node, weights[i]);
    }
    for (size_t slot = 0; slot < table->slots; slot++) {
        const struct block *block = &table->blocks[slot];
        if (block->used) {
            uint32_t node = place(places, n, block->leader);
            blocks[node]++;
            reads[node] += block->reads;
        }
    }
    struct spread of_blocks = spread_of(blocks, weights, n),
                  of_reads = spread_of(reads, weights, n);
    printf("%-28s %2u nodes, %-8s %8zu blocks: %.3f to %.3f of even; reads %.2f to %.2f; a lookup "
           "asks %.2f\n",
           name, n, weighted ? "weighted" : "alike", table->n, of_blocks.least, of_blocks.most,
           of_reads.least, of_reads.most, nodes_asked(trace, places, n));
    double below = 1 - of_blocks.least, above = of_blocks.most - 1;
    return below > above ? below : above;
}

static bool run(const char *name, const struct kve_trace *trace, double *worst)
{
    static const uint32_t sizes[] = {3, 5, 10};
    struct table table;
    if (!fill(&table, trace)) {
        return false;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int weighted = 0; weighted < 2; weighted++) {
            double far = measure(name, trace, &table, sizes[i], weighted);
            *worst = far > *worst ? far : *worst;
        }
    }
    free(table.blocks);
    return true;
}

static bool run_file(const char *path, double *worst)
{
    struct kve_trace trace;
    struct kve_trace_error error;
    if (kve_trace_load(path, UINT32_MAX, &trace, &error) != KVB_OK) {
        kve_trace_tell("bench_placement", path, &error);
        return false;
    }
    const char *slash = strrchr(path, '/');
    bool done = run(slash == NULL ? path : slash + 1, &trace, worst);
    kve_trace_cleanup(&trace);
    return done;
}

static void find_traces(glob_t *found)
{
    const char *shared = getenv("KVPLANE_SHARED");
    char pattern[512];
    (void)snprintf(pattern, sizeof pattern, "%s/traces/*.jsonl",
                   shared != NULL ? shared : "../shared");
    (void)glob(pattern, 0, NULL, found);
}

int main(int argc, char **argv)
{
    double worst = 0;
    bool done = true;
    glob_t found = {0};
    if (argc == 1) {
        find_traces(&found);
    }
    size_t n = argc > 1 ? (size_t)argc - 1 : found.gl_pathc;
    char **paths = argc > 1 ? argv + 1 : found.gl_pathv;
    for (size_t i = 0; i < n && done; i++) {
        done = run_file(paths[i], &worst);
    }
    globfree(&found);
    if (n == 0) {
        struct kve_trace trace;
        done = kve_trace_generate(1, 4000, &trace) == KVB_OK && run("generated", &trace, &worst);
        kve_trace_cleanup(&trace);
    }
    bool even = worst <= SPREAD_MAX;
    printf("bench placement: spread_max=%.3f limit=%.1f %s\n", worst, SPREAD_MAX,
           done && even ? "ok" : "failed");
    return done && even ? 0 : 1;
}
