/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

#include <xxhash.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

uint32_t kve_parts(const struct kve_engine_options *options)
{
    return options->store_tp == 0 ? 1 : options->store_tp / options->tp;
}

uint32_t kve_world(const struct kve_engine_options *options)
{
    return options->tp * options->pp;
}

size_t kve_parts_bytes(const struct kve_engine_options *options)
{
    return options->block_bytes / options->tp;
}

kvb_status_t kve_parts_check(const struct kve_engine_options *options)
{
    uint32_t store_tp = options->store_tp;

    if (kve_world(options) > KVE_WORLD_MAX) {
        fprintf(stderr, "kvplane engine: --tp times --pp is at most %d\n", KVE_WORLD_MAX);
        return KVB_ERR_INVALID;
    }
    if (store_tp != 0 && store_tp % options->tp != 0) {
        fprintf(stderr, "kvplane engine: --store-tp must be a multiple of --tp\n");
        return KVB_ERR_INVALID;
    }
    if ((store_tp != 0 || options->tp > 1) &&
        options->block_bytes % (store_tp == 0 ? 8 * options->tp : 16 * store_tp) != 0) {
        fprintf(stderr, "kvplane engine: --block-bytes does not divide into these parts\n");
        return KVB_ERR_INVALID;
    }
    return KVB_OK;
}

/* ---- bytes ---- */

struct part {
    uint32_t nslices;
    size_t offset[2]; /* in the rank's share of the block */
    size_t len;       /* of each slice */
};

static struct part part_of(const struct kve_engine_options *options, uint32_t j)
{
    size_t bytes = kve_parts_bytes(options);

    if (options->store_tp == 0) {
        return (struct part){.nslices = 1, .len = bytes};
    }
    size_t len = bytes / 2 / kve_parts(options);
    return (struct part){.nslices = 2, .offset = {j * len, bytes / 2 + j * len}, .len = len};
}

static struct kve_pattern_source source_of(const struct kve_engine *engine,
                                           const struct kve_block_of *what, uint32_t j,
                                           char text[40])
{
    const struct kve_engine_options *options = &engine->options;
    bool whole = options->store_tp == 0 && kve_world(options) == 1;
    int len = whole ? snprintf(text, 40, "b%016" PRIx64, what->key)
                    : snprintf(text, 40, "b%016" PRIx64 "/%" PRIu32, what->key,
                               options->rank * kve_parts(options) + j);

    return (struct kve_pattern_source){.tenant = options->tenant,
                                       .layout = engine->layout,
                                       .weights = what->weights,
                                       .key = text,
                                       .key_len = (size_t)len};
}

void kve_parts_fill(struct kve_engine *engine, const struct kve_block_of *what)
{
    unsigned char *bytes = kve_pool_bytes(engine->pool, what->block);

    for (uint32_t j = 0; j < kve_parts(&engine->options); j++) {
        struct part part = part_of(&engine->options, j);
        char text[40];
        struct kve_pattern_source source = source_of(engine, what, j, text);
        kve_pattern_fill(&source, engine->part_bytes, part.nslices * part.len);
        for (uint32_t s = 0; s < part.nslices; s++) {
            memcpy(bytes + part.offset[s], engine->part_bytes + s * part.len, part.len);
        }
    }
}

void kve_parts_poison(struct kve_engine *engine, const struct kve_block_of *what)
{
    kve_pattern_poison(kve_pool_bytes(engine->pool, what->block),
                       kve_parts_bytes(&engine->options));
}

enum kve_verdict kve_parts_judge(struct kve_engine *engine, const struct kve_block_of *what,
                                 struct kve_finding *finding)
{
    const unsigned char *bytes = kve_pool_bytes(engine->pool, what->block);
    enum kve_verdict worst = KVE_GOOD;

    *finding = (struct kve_finding){.verdict = KVE_TORN};
    if (engine->kv_cache.fd < 0) {
        return KVE_TORN;
    }
    for (uint32_t j = 0; j < kve_parts(&engine->options) && worst == KVE_GOOD; j++) {
        struct part part = part_of(&engine->options, j);
        char text[40];
        struct kve_pattern_source source = source_of(engine, what, j, text);
        for (uint32_t s = 0; s < part.nslices; s++) {
            memcpy(engine->part_bytes + s * part.len, bytes + part.offset[s], part.len);
        }
        worst = kve_pattern_check(&source, engine->part_bytes, part.nslices * part.len,
                                  engine->seen, engine->nseen, finding);
    }
    return worst;
}

uint64_t kve_parts_hash(const struct kve_engine *engine, uint32_t block, uint32_t j)
{
    const unsigned char *bytes = kve_pool_bytes(engine->pool, block);
    struct part part = part_of(&engine->options, j);
    uint64_t hash = 0;

    for (uint32_t s = 0; s < part.nslices; s++) {
        hash = XXH3_64bits_withSeed(bytes + part.offset[s], part.len, hash);
    }
    return hash;
}

/* ---- what kvplane is asked ---- */

size_t kve_parts_key(uint64_t key, char out[KVE_KEY_TEXT])
{
    return (size_t)snprintf(out, KVE_KEY_TEXT, "b%016" PRIx64, key);
}

size_t kve_parts_entries(struct kve_engine *engine, const struct kve_block_of *blocks, size_t n,
                         kvplane_token token)
{
    const struct kve_engine_options *options = &engine->options;
    uint32_t parts = kve_parts(options);
    size_t entries = 0, slices = 0;

    for (size_t i = 0; i < n; i++) {
        char *key = engine->key_text[2 * i], *placement = engine->key_text[2 * i + 1];
        size_t key_len = kve_parts_key(blocks[i].key, key);
        size_t placement_len = kve_parts_key(blocks[i].placement, placement);
        for (uint32_t j = 0; j < parts; j++) {
            struct part part = part_of(options, j);
            engine->entries[entries++] = (struct kvplane_entry){
                .key = key,
                .key_len = key_len,
                .placement = placement,
                .placement_len = placement_len,
                .part = options->rank * parts + j,
                .token = token,
                .slices = &engine->slices[slices],
                .nslices = part.nslices,
            };
            for (uint32_t s = 0; s < part.nslices; s++) {
                engine->slices[slices++] = (struct kvplane_slice){
                    .region = KVE_REGION_KV_CACHE,
                    .offset = kve_pool_offset(engine->pool, blocks[i].block) + part.offset[s],
                    .len = part.len,
                };
            }
        }
    }
    return entries;
}

int kve_parts_worse(int a, int b)
{
    bool failed = a != KVPLANE_OK && a != KVPLANE_ERR_EXISTS;

    return failed || b == KVPLANE_OK ? a : b;
}

void kve_parts_results(const struct kve_engine *engine, const int *results, size_t nblocks,
                       int *blocks_p)
{
    uint32_t parts = kve_parts(&engine->options);

    for (size_t i = 0; i < nblocks; i++) {
        blocks_p[i] = results[i * parts];
        for (uint32_t j = 1; j < parts; j++) {
            blocks_p[i] = kve_parts_worse(blocks_p[i], results[i * parts + j]);
        }
    }
}
