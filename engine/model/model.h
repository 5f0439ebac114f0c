/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_MODEL_H
#define ENGINE_MODEL_MODEL_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/*
 * A small decoder-only transformer: RMS norms, rotary positions, grouped-query attention over paged
 * KV, SwiGLU, tied embeddings; greedy. Only arithmetic: no I/O, no clock.
 *
 * It is made of LANES, each with one KV head, the query heads that share it, and a piece of the
 * inner layer. A rank of tp holds LANES / tp lanes and what every rank needs (embeddings, norms).
 * What a lane adds to a token is a whole vector; those of all lanes are gathered and added in the
 * lanes' order, and every other sum runs in index order too. So outputs and KV are the same bits
 * whatever tp is, in whatever batches the tokens come, from prefill or decoding.
 */
enum {
    KVE_MODEL_LAYERS = 4,
    KVE_MODEL_HIDDEN = 64,
    KVE_MODEL_LANES = 4,    /* KV heads; the greatest tp */
    KVE_MODEL_HEADS = 2,    /* query heads of a lane */
    KVE_MODEL_HEAD_DIM = 8, /* of each head */
    KVE_MODEL_INNER = 32,   /* of a lane's feed-forward */
    KVE_MODEL_VOCAB = 256,
    KVE_MODEL_BLOCK_TOKENS = 16,
    KVE_MODEL_CONTEXT = 4096, /* tokens of a sequence */
    KVE_MODEL_CONTEXT_BLOCKS = KVE_MODEL_CONTEXT / KVE_MODEL_BLOCK_TOKENS,
};
/* Names all that makes KV interchangeable. */
extern const char kve_model_layout[];

/*
 * A block, of a rank of n lanes: keys [n][LAYERS][HEAD_DIM][BLOCK_TOKENS], then values
 * [n][LAYERS][BLOCK_TOKENS][HEAD_DIM], each a bfloat16. Lane by lane, so that any split by lanes is
 * a range of each of the two planes.
 */
size_t kve_model_block_bytes(uint32_t lanes);

/* Consecutive tokens of one sequence, to be computed in one go. */
struct kve_span {
    uint32_t first;    /* position of the first of them; KV of all before is in the blocks */
    uint32_t n;        /* at least 1 */
    uint32_t token_at; /* in batch.tokens */
    uint32_t block_at; /* in batch.blocks: the sequence's blocks from position 0 on */
};
enum {
    KVE_BATCH_SPANS = 64,
    KVE_BATCH_TOKENS = 256, /* of all spans: bounds how long a step takes */
    KVE_BATCH_BLOCKS = KVE_BATCH_SPANS * KVE_MODEL_CONTEXT_BLOCKS,
};
struct kve_batch {
    uint32_t nspans, ntokens, nblocks;
    struct kve_span spans[KVE_BATCH_SPANS];
    uint16_t tokens[KVE_BATCH_TOKENS];
    uint32_t blocks[KVE_BATCH_BLOCKS]; /* block tables, as many as nblocks */
};

/*
 * Fills `all`, where every rank has `bytes` bytes, in order of rank, and this rank's are there
 * already. Anything but OK ends the step with that. NULL: there is one rank.
 */
typedef kvb_status_t (*kve_model_gather_fn)(void *arg, void *all, size_t bytes);

struct kve_model;

/* tp divides LANES. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kve_model_create(uint32_t rank, uint32_t tp, kve_model_gather_fn gather,
                                           void *arg, struct kve_model **model_p);
void kve_model_destroy(struct kve_model *model);

/* Bytes of a rank's weights. */
size_t kve_model_weights_bytes(uint32_t tp);
/* Writes the rank's weights, those of this seed, to memory aligned to 64. */
void kve_model_generate(const struct kve_model *model, uint64_t seed, void *weights);
/*
 * A name for the whole model: computed over the bytes that this rank really holds, and, for the
 * lanes of other ranks, from the list of digests that came with the weights. So ranks that hold
 * pieces of one model say the same name, and the same one whatever tp is.
 */
void kve_model_fingerprint(const struct kve_model *model, const void *weights, char out[40]);

/*
 * One step: computes every token of the batch, writes its KV to the blocks at kv, reads that of the
 * tokens before it from there. next[i]: the token that follows span i; NULL: nobody asks. All ranks
 * do it at once, with the same batch. What gather failed with; the blocks of the spans are
 * undefined then.
 */
KVB_MUST_USE kvb_status_t kve_model_forward(struct kve_model *model, const void *weights, void *kv,
                                            const struct kve_batch *batch, uint16_t *next);
/* What next[span] was chosen by in the last step that chose: VOCAB numbers. */
const float *kve_model_logits(const struct kve_model *model, uint32_t span);

#endif
