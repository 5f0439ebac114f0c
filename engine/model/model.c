/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Built with optimisation in every build (CMakeLists.txt), without contraction of products and
 * sums. No loop here adds up along the vectorised direction: each sum has one order, which is the
 * order it is written in.
 */
#include "model.h"

#include "base/assert.h"

#include <xxhash.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    L = KVE_MODEL_LAYERS,
    H = KVE_MODEL_HIDDEN,
    D = KVE_MODEL_HEAD_DIM,
    Q = KVE_MODEL_HEADS * KVE_MODEL_HEAD_DIM, /* of a lane's queries */
    I = KVE_MODEL_INNER,
    V = KVE_MODEL_VOCAB,
    T = KVE_MODEL_BLOCK_TOKENS,
    LANES = KVE_MODEL_LANES,
};

/* Matrices are [inputs][outputs]. */
struct lane_layer {
    float q[H][Q], k[H][D], v[H][D], o[Q][H];
    float gate[H][I], up[H][I], down[I][H];
};
struct lane {
    struct lane_layer layers[L];
};
struct shared {
    float embed[H][V]; /* tied: also makes the logits */
    float turn[H][H];  /* before them: else the model says the token it was given again */
    float attention_norm[L][H], inner_norm[L][H], last_norm[H];
};
struct weights {
    uint64_t digests[LANES]; /* of every lane, also those of other ranks */
    struct shared shared;
    struct lane lanes[];
};

struct kve_model {
    uint32_t lane, lanes; /* the first one held, and how many */
    uint32_t tp;
    kve_model_gather_fn gather;
    void *arg;
    float cos[KVE_MODEL_CONTEXT][D / 2], sin[KVE_MODEL_CONTEXT][D / 2];
    /* of one step */
    float x[KVE_BATCH_TOKENS][H];
    float normed[KVE_BATCH_TOKENS][H];
    float query[KVE_BATCH_TOKENS][Q], seen[KVE_BATCH_TOKENS][Q];
    float new_key[KVE_BATCH_TOKENS][D], new_value[KVE_BATCH_TOKENS][D];
    float gate[KVE_BATCH_TOKENS][I], up[KVE_BATCH_TOKENS][I];
    float added[LANES * KVE_BATCH_TOKENS * H];                              /* [lane][token][H] */
    float key[KVE_MODEL_CONTEXT_BLOCKS][D][T], value[KVE_MODEL_CONTEXT][D]; /* of one sequence */
    float score[KVE_MODEL_CONTEXT];
    float logits[KVE_BATCH_SPANS][V];
};

const char kve_model_layout[] = "model-1/layers=4/hidden=64/heads=4x2x8/inner=128/vocab=256/bf16";
_Static_assert(L == 4 && H == 64 && LANES == 4 && KVE_MODEL_HEADS == 2 && D == 8 && I == 32 &&
                   V == 256,
               "the layout says otherwise");

size_t kve_model_block_bytes(uint32_t lanes)
{
    return (size_t)2 * lanes * L * T * D * sizeof(uint16_t);
}

size_t kve_model_weights_bytes(uint32_t tp)
{
    return sizeof(struct weights) + LANES / tp * sizeof(struct lane);
}

kvb_status_t kve_model_create(uint32_t rank, uint32_t tp, kve_model_gather_fn gather, void *arg,
                              struct kve_model **model_p)
{
    struct kve_model *model = calloc(1, sizeof *model);

    kvb_assert(tp > 0 && LANES % tp == 0 && rank < tp && (tp == 1 || gather != NULL));
    if (model == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    model->lanes = LANES / tp;
    model->lane = rank * model->lanes;
    model->tp = tp;
    model->gather = gather;
    model->arg = arg;
    for (int position = 0; position < KVE_MODEL_CONTEXT; position++) {
        for (int i = 0; i < D / 2; i++) {
            double angle = position * pow(10000, -2.0 * i / D);
            model->cos[position][i] = (float)cos(angle);
            model->sin[position][i] = (float)sin(angle);
        }
    }
    *model_p = model;
    return KVB_OK;
}

void kve_model_destroy(struct kve_model *model)
{
    free(model);
}

/* ---- weights ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Nearly normal numbers: mean 0, this deviation. Which tensor it is makes them, not where it lies.
 */
static void draw(uint64_t seed, uint32_t tensor, float deviation, float *out, size_t n)
{
    uint64_t from = mix(mix(seed) + tensor);

    for (size_t i = 0; i < n; i++) {
        uint64_t bits = mix(from + i * 0x9e3779b97f4a7c15u);
        int sum = (int)(bits & 0xffff) + (int)(bits >> 16 & 0xffff) + (int)(bits >> 32 & 0xffff) +
                  (int)(bits >> 48) - 2 * 0xffff;
        /* the deviation of the sum of four such numbers is 65536 / sqrt(3) */
        out[i] = (float)sum * (1.7320508f / 65536) * deviation;
    }
}

/* So much that what a layer adds outweighs what was there: with less, what comes next depends on
 * the last tokens alone and soon repeats. */
static const float SEES = 6.0f;   /* what attention adds */
static const float THINKS = 3.0f; /* what the inner layer adds */
static const float SHARP = 2.0f;  /* queries and keys: attends to few tokens, not to all alike */

static void draw_lane(uint64_t seed, uint32_t lane, struct lane *out)
{
    const float in = 1 / sqrtf(H);

    for (uint32_t l = 0; l < L; l++) {
        struct lane_layer *layer = &out->layers[l];
        uint32_t tensor = 16 + (lane * L + l) * 8;
        draw(seed, tensor, SHARP * in, layer->q[0], H * Q);
        draw(seed, tensor + 1, SHARP * in, layer->k[0], H * D);
        draw(seed, tensor + 2, in, layer->v[0], H * D);
        draw(seed, tensor + 3, SEES / sqrtf(LANES * Q), layer->o[0], Q * H);
        draw(seed, tensor + 4, in, layer->gate[0], H * I);
        draw(seed, tensor + 5, in, layer->up[0], H * I);
        draw(seed, tensor + 6, THINKS * 2 / sqrtf(LANES * I), layer->down[0], I * H);
    }
}

static void draw_norm(uint64_t seed, uint32_t tensor, float *out, size_t n)
{
    draw(seed, tensor, 0.1f, out, n);
    for (size_t i = 0; i < n; i++) {
        out[i] += 1;
    }
}

void kve_model_generate(const struct kve_model *model, uint64_t seed, void *memory)
{
    struct weights *weights = memory;

    draw(seed, 0, 1, weights->shared.embed[0], H * V);
    draw_norm(seed, 1, weights->shared.attention_norm[0], L * H);
    draw_norm(seed, 2, weights->shared.inner_norm[0], L * H);
    draw_norm(seed, 3, weights->shared.last_norm, H);
    draw(seed, 4, 1 / sqrtf(H), weights->shared.turn[0], H * H);
    /* Lanes that others hold are drawn for their digests, each in a place that is written later. */
    for (uint32_t i = 0; i < LANES; i++) {
        uint32_t lane = (model->lane + model->lanes + i) % LANES;
        struct lane *place = &weights->lanes[(lane + LANES - model->lane) % model->lanes];
        draw_lane(seed, lane, place);
        weights->digests[lane] = XXH3_64bits(place, sizeof *place);
    }
}

void kve_model_fingerprint(const struct kve_model *model, const void *memory, char out[40])
{
    const struct weights *weights = memory;
    uint64_t parts[LANES + 1];

    memcpy(parts, weights->digests, sizeof weights->digests);
    for (uint32_t i = 0; i < model->lanes; i++) {
        parts[model->lane + i] = XXH3_64bits(&weights->lanes[i], sizeof weights->lanes[i]);
    }
    parts[LANES] = XXH3_64bits(&weights->shared, sizeof weights->shared);
    XXH128_hash_t hash = XXH3_128bits(parts, sizeof parts);
    snprintf(out, 40, "fp-%016" PRIx64 "%016" PRIx64, hash.high64, hash.low64);
}

/* ---- arithmetic ---- */

/* Four numbers at a time, each for itself. */
typedef float vec __attribute__((vector_size(16)));
typedef int32_t ivec __attribute__((vector_size(16)));
enum { N = 4, AT_ONCE = 4 };

static inline vec load(const float *from)
{
    vec v;

    memcpy(&v, from, sizeof v);
    return v;
}

static inline void store(float *to, vec v)
{
    memcpy(to, &v, sizeof v);
}

static inline vec all(float x)
{
    return (vec){x, x, x, x};
}

static inline vec choose(ivec mask, vec a, vec b)
{
    return (vec)(((ivec)a & mask) | ((ivec)b & ~mask));
}

/* outs[t][j] = the sum over i, in its order, of ins[t][i] * m[i][j], for 2 * N outputs from j on.
 */
static inline __attribute__((always_inline)) void multiply_some(const float *const *ins,
                                                                uint32_t tokens, const float *m,
                                                                int j, float *const *outs, int n,
                                                                int outputs)
{
    vec sums[AT_ONCE][2] = {{{0}}};

    for (int i = 0; i < n; i++) {
        vec a = load(m + i * outputs + j), b = load(m + i * outputs + j + N);
        for (uint32_t t = 0; t < tokens; t++) {
            vec in = all(ins[t][i]);
            sums[t][0] += in * a;
            sums[t][1] += in * b;
        }
    }
    for (uint32_t t = 0; t < tokens; t++) {
        store(outs[t] + j, sums[t][0]);
        store(outs[t] + j + N, sums[t][1]);
    }
}

/* outs of `tokens` rows = ins times m[n][outputs]; strides between the rows. */
static inline __attribute__((always_inline)) void multiply(const float *in, size_t in_stride,
                                                           const float *m, float *out,
                                                           size_t out_stride, uint32_t tokens,
                                                           int n, int outputs)
{
    for (uint32_t t = 0; t < tokens;) {
        uint32_t some = tokens - t < AT_ONCE ? 1 : AT_ONCE;
        const float *ins[AT_ONCE];
        float *outs[AT_ONCE];
        for (uint32_t k = 0; k < some; k++) {
            ins[k] = in + (t + k) * in_stride;
            outs[k] = out + (t + k) * out_stride;
        }
        for (int j = 0; j < outputs; j += 2 * N) {
            if (some == 1) {
                multiply_some(ins, 1, m, j, outs, n, outputs);
            } else {
                multiply_some(ins, AT_ONCE, m, j, outs, n, outputs);
            }
        }
        t += some;
    }
}

static void norm(const float x[H], const float gain[H], float out[H])
{
    float sum = 0;

    for (int i = 0; i < H; i++) {
        sum += x[i] * x[i];
    }
    float scale = 1 / sqrtf(sum / H + 1e-6f);
    for (int i = 0; i < H; i++) {
        out[i] = x[i] * scale * gain[i];
    }
}

/* e^x, of sums and products alone: the same bits wherever floats are IEEE's. Good to 1e-6; NaN is
 * as the least there is. */
static inline vec exponential(vec x)
{
    const vec least = all(-87), most = all(87), round = all(12582912); /* 1.5 * 2^23 */

    x = choose(x > least, x, least);
    x = choose(x < most, x, most);
    vec n = x * 1.44269504f + round;
    n -= round;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = all(1.98756915e-4f);
    p = p * r + 1.39819995e-3f;
    p = p * r + 8.33345190e-3f;
    p = p * r + 4.16657959e-2f;
    p = p * r + 1.66666655e-1f;
    p = p * r + 5.00000012e-1f;
    p = p * r * r + r + 1;
    return p * (vec)((__builtin_convertvector(n, ivec) + 127) << 23);
}

static inline uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

static inline float from_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static void rotate(const struct kve_model *model, uint32_t position, float vector[D])
{
    for (int i = 0; i < D / 2; i++) {
        float cosine = model->cos[position][i], sine = model->sin[position][i];
        float a = vector[i], b = vector[i + D / 2];
        vector[i] = a * cosine - b * sine;
        vector[i + D / 2] = a * sine + b * cosine;
    }
}

/* ---- attention ---- */

static uint16_t *keys_at(const struct kve_model *model, void *kv, uint32_t block, uint32_t lane,
                         uint32_t layer)
{
    uint16_t *base = kv;

    return base + (size_t)block * kve_model_block_bytes(model->lanes) / sizeof *base +
           (size_t)(lane * L + layer) * T * D;
}

static uint16_t *values_at(const struct kve_model *model, void *kv, uint32_t block, uint32_t lane,
                           uint32_t layer)
{
    return keys_at(model, kv, block, lane, layer) + (size_t)model->lanes * L * T * D;
}

/* Queries of a span, and its keys and values into their blocks. */
static void project(struct kve_model *model, const struct lane_layer *layer, uint32_t lane,
                    uint32_t l, void *kv, const struct kve_batch *batch,
                    const struct kve_span *span)
{
    const float *in = model->normed[span->token_at];

    multiply(in, H, layer->q[0], model->query[span->token_at], Q, span->n, H, Q);
    multiply(in, H, layer->k[0], model->new_key[0], D, span->n, H, D);
    multiply(in, H, layer->v[0], model->new_value[0], D, span->n, H, D);
    for (uint32_t i = 0; i < span->n; i++) {
        uint32_t position = span->first + i, at = position % T;
        uint32_t block = batch->blocks[span->block_at + position / T];
        uint16_t *keys = keys_at(model, kv, block, lane, l);
        uint16_t *values = values_at(model, kv, block, lane, l);

        for (int head = 0; head < KVE_MODEL_HEADS; head++) {
            rotate(model, position, model->query[span->token_at + i] + head * D);
        }
        rotate(model, position, model->new_key[i]);
        for (uint32_t d = 0; d < D; d++) {
            keys[d * T + at] = to_bf16(model->new_key[i][d]);
            values[at * D + d] = to_bf16(model->new_value[i][d]);
        }
    }
}

/* Reads what the span attends to out of its blocks. */
static void read_blocks(struct kve_model *model, uint32_t lane, uint32_t layer, void *kv,
                        const struct kve_batch *batch, const struct kve_span *span)
{
    uint32_t blocks = (span->first + span->n - 1) / T + 1;

    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t block = batch->blocks[span->block_at + b];
        const uint16_t *keys = keys_at(model, kv, block, lane, layer);
        const uint16_t *values = values_at(model, kv, block, lane, layer);
        float *key = model->key[b][0], *value = model->value[b * T];
        for (int i = 0; i < T * D; i++) {
            key[i] = from_bf16(keys[i]);
            value[i] = from_bf16(values[i]);
        }
    }
}

/* What one head sees from `position`. */
static void attend(struct kve_model *model, const float query[D], uint32_t position, float out[D])
{
    uint32_t n = position + 1, blocks = position / T + 1;
    float *score = model->score, most = -INFINITY, sum = 0;
    vec peaks = all(-INFINITY), sums[T / N] = {{0}}, seen[D / N] = {{0}};
    const float scale = 1 / sqrtf(D);

    for (uint32_t b = 0; b < blocks; b++) {
        vec part[T / N] = {{0}};
        for (int d = 0; d < D; d++) {
            for (int i = 0; i < T / N; i++) {
                part[i] += query[d] * load(model->key[b][d] + i * N);
            }
        }
        for (int i = 0; i < T / N; i++) {
            store(score + b * T + i * N, part[i] * scale);
        }
    }
    for (uint32_t i = n; i < blocks * T; i++) {
        score[i] = -INFINITY; /* no token yet */
    }
    for (uint32_t i = 0; i < blocks * T; i += N) {
        vec here = load(score + i);
        peaks = choose(here > peaks, here, peaks);
    }
    for (int i = 0; i < N; i++) {
        most = peaks[i] > most ? peaks[i] : most;
    }
    for (uint32_t i = 0; i < blocks * T; i += N) {
        store(score + i, exponential(load(score + i) - most)); /* of no token: lost beside 1 */
    }
    /* by place in the block, then over the places */
    for (uint32_t b = 0; b < blocks; b++) {
        for (int i = 0; i < T / N; i++) {
            sums[i] += load(score + b * T + i * N);
        }
    }
    for (int i = 0; i < T; i++) {
        sum += sums[i / N][i % N];
    }
    for (uint32_t i = 0; i < n; i++) {
        for (int d = 0; d < D / N; d++) {
            seen[d] += score[i] * load(model->value[i] + d * N);
        }
    }
    for (int d = 0; d < D / N; d++) {
        store(out + d * N, seen[d] / sum);
    }
}

static float *added_at(struct kve_model *model, const struct kve_batch *batch, uint32_t lane,
                       uint32_t token)
{
    return model->added + ((size_t)lane * batch->ntokens + token) * H;
}

static void attention_of_lane(struct kve_model *model, const struct lane_layer *layer,
                              uint32_t lane, uint32_t l, void *kv, const struct kve_batch *batch)
{
    for (uint32_t s = 0; s < batch->nspans; s++) {
        const struct kve_span *span = &batch->spans[s];
        project(model, layer, lane, l, kv, batch, span);
        read_blocks(model, lane, l, kv, batch, span);
        for (uint32_t i = 0; i < span->n; i++) {
            uint32_t token = span->token_at + i;
            for (int head = 0; head < KVE_MODEL_HEADS; head++) {
                attend(model, model->query[token] + head * D, span->first + i,
                       model->seen[token] + head * D);
            }
        }
    }
    multiply(model->seen[0], Q, layer->o[0], added_at(model, batch, model->lane + lane, 0), H,
             batch->ntokens, Q, H);
}

static void inner_of_lane(struct kve_model *model, const struct lane_layer *layer, uint32_t lane,
                          const struct kve_batch *batch)
{
    multiply(model->normed[0], H, layer->gate[0], model->gate[0], I, batch->ntokens, H, I);
    multiply(model->normed[0], H, layer->up[0], model->up[0], I, batch->ntokens, H, I);
    for (uint32_t token = 0; token < batch->ntokens; token++) {
        for (int i = 0; i < I; i += N) {
            vec gate = load(model->gate[token] + i), up = load(model->up[token] + i);
            store(model->up[token] + i, up * (gate / (1 + exponential(-gate))));
        }
    }
    multiply(model->up[0], I, layer->down[0], added_at(model, batch, model->lane + lane, 0), H,
             batch->ntokens, I, H);
}

/* ---- a step ---- */

static void norm_all(struct kve_model *model, const struct kve_batch *batch, const float gain[H])
{
    for (uint32_t token = 0; token < batch->ntokens; token++) {
        norm(model->x[token], gain, model->normed[token]);
    }
}

/* What all lanes of all ranks add. */
static kvb_status_t add_up(struct kve_model *model, const struct kve_batch *batch)
{
    kvb_status_t status = KVB_OK;

    if (model->tp > 1) {
        status = model->gather(model->arg, model->added,
                               (size_t)model->lanes * batch->ntokens * H * sizeof(float));
    }
    for (uint32_t lane = 0; lane < LANES && status == KVB_OK; lane++) {
        const float *added = added_at(model, batch, lane, 0);
        float *x = model->x[0];
        for (uint32_t i = 0; i < batch->ntokens * H; i++) {
            x[i] += added[i];
        }
    }
    return status;
}

static uint16_t greedy(const struct weights *weights, const float x[H], float logits[V])
{
    float last[H], turned[H];
    uint16_t best = 0;

    norm(x, weights->shared.last_norm, last);
    multiply(last, H, weights->shared.turn[0], turned, H, 1, H, H);
    multiply(turned, H, weights->shared.embed[0], logits, V, 1, H, V);
    for (uint16_t i = 1; i < V; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

const float *kve_model_logits(const struct kve_model *model, uint32_t span)
{
    return model->logits[span];
}

kvb_status_t kve_model_forward(struct kve_model *model, const void *memory, void *kv,
                               const struct kve_batch *batch, uint16_t *next)
{
    const struct weights *weights = memory;
    kvb_status_t status = KVB_OK;

    for (uint32_t token = 0; token < batch->ntokens; token++) {
        kvb_assert(batch->tokens[token] < V);
        for (int i = 0; i < H; i++) {
            model->x[token][i] = weights->shared.embed[i][batch->tokens[token]];
        }
    }
    for (uint32_t l = 0; l < L && status == KVB_OK; l++) {
        norm_all(model, batch, weights->shared.attention_norm[l]);
        for (uint32_t lane = 0; lane < model->lanes; lane++) {
            attention_of_lane(model, &weights->lanes[lane].layers[l], lane, l, kv, batch);
        }
        status = add_up(model, batch);
        if (status != KVB_OK) {
            break;
        }
        norm_all(model, batch, weights->shared.inner_norm[l]);
        for (uint32_t lane = 0; lane < model->lanes; lane++) {
            inner_of_lane(model, &weights->lanes[lane].layers[l], lane, batch);
        }
        status = add_up(model, batch);
    }
    for (uint32_t s = 0; s < batch->nspans && next != NULL && status == KVB_OK; s++) {
        const struct kve_span *span = &batch->spans[s];
        next[s] = greedy(weights, model->x[span->token_at + span->n - 1], model->logits[s]);
    }
    return status;
}
