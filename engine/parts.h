/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_PARTS_H
#define ENGINE_PARTS_H

#include "engine.h"

/*
 * What one rank holds of a block. Without store_tp that is one part, its share of the bytes as they
 * lie. With it, it is store_tp / tp parts, each of two slices: a rank's block has two planes (as
 * keys and values), and in each of them the parts lie side by side, so that the same part is the
 * same bytes whatever tp is, and never contiguous where there are several.
 */
#define KVE_WORLD_MAX 64 /* ranks of one reference engine */

struct kve_block_of {
    uint64_t key;
    uint64_t placement; /* key of the block that decides where it lives */
    uint64_t weights;
    uint32_t block; /* of the pool */
    int32_t result; /* of its transfer; kve_rank_results */
};

/* INVALID: the block cannot be split so; why is printed. */
KVB_MUST_USE kvb_status_t kve_parts_check(const struct kve_engine_options *options);
uint32_t kve_parts(const struct kve_engine_options *options); /* of one rank */
uint32_t kve_world(const struct kve_engine_options *options);
/* Bytes of this rank's share of one block. */
size_t kve_parts_bytes(const struct kve_engine_options *options);

void kve_parts_fill(struct kve_engine *engine, const struct kve_block_of *what);
void kve_parts_poison(struct kve_engine *engine, const struct kve_block_of *what);
/* The verdict on the worst of them; the finding is its. Memory that is not mapped is torn. */
enum kve_verdict kve_parts_judge(struct kve_engine *engine, const struct kve_block_of *what,
                                 struct kve_finding *finding);

/* Of the bytes of this rank's part j of a block, as they are. */
uint64_t kve_parts_hash(const struct kve_engine *engine, uint32_t block, uint32_t j);

/* The key of a block as kvplane is told it; returns its length. */
size_t kve_parts_key(uint64_t key, char out[KVE_KEY_TEXT]);
/* Fills the engine's scratch with what kvplane is asked for n blocks: n * kve_parts() entries. */
size_t kve_parts_entries(struct kve_engine *engine, const struct kve_block_of *blocks, size_t n,
                         kvplane_token token);
/* What two parts of a block come to: failure before EXISTS before OK. */
int kve_parts_worse(int a, int b);
/* One result for each block, of its parts' results. */
void kve_parts_results(const struct kve_engine *engine, const int *results, size_t nblocks,
                       int *blocks_p);

#endif
