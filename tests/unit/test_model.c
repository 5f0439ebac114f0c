/* SPDX-License-Identifier: Apache-2.0 */
#include "gather.h"

#include <criterion/criterion.h>
#include <xxhash.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/*
 * One rank, or several (threads that exchange over real sockets), with blocks and a batch.
 * Sequences are prompts out of a seed; blocks of a sequence lie scattered.
 */
enum { BLOCKS = 64, MOST = 256 };

struct rank {
    struct kve_model *model;
    void *weights;
    unsigned char *kv;
    struct kve_gather gather;
    struct kve_batch batch;
    uint16_t next[KVE_BATCH_SPANS];
    kvb_status_t status;
};
static struct ranks {
    uint32_t tp;
    struct rank rank[KVE_MODEL_LANES];
} one, many;

static kvb_status_t gather(void *arg, void *all, size_t bytes)
{
    return kve_gather_all(arg, KVB_OK, all, bytes);
}

static void open_ranks(struct ranks *ranks, uint32_t tp, uint64_t seed)
{
    struct kve_gather_mesh mesh;

    ranks->tp = tp;
    cr_assert_eq(kve_gather_mesh_open(tp, &mesh), KVB_OK);
    for (uint32_t i = 0; i < tp; i++) {
        struct rank *rank = &ranks->rank[i];
        size_t bytes = (kve_model_weights_bytes(tp) + 63) / 64 * 64;
        memset(rank, 0, sizeof *rank);
        rank->gather = (struct kve_gather){.rank = i, .n = tp, .wait_ms = 30000};
        memcpy(rank->gather.fds, mesh.fds[i], sizeof rank->gather.fds);
        cr_assert_eq(kve_model_create(i, tp, gather, &rank->gather, &rank->model), KVB_OK);
        rank->weights = aligned_alloc(64, bytes);
        rank->kv = malloc(BLOCKS * kve_model_block_bytes(KVE_MODEL_LANES / tp));
        /* What nobody wrote, nobody reads: NaN wherever it is. */
        memset(rank->kv, 0xff, BLOCKS * kve_model_block_bytes(KVE_MODEL_LANES / tp));
        kve_model_generate(rank->model, seed, rank->weights);
    }
}

static void close_ranks(struct ranks *ranks)
{
    for (uint32_t i = 0; i < ranks->tp; i++) {
        kve_model_destroy(ranks->rank[i].model);
        free(ranks->rank[i].weights);
        free(ranks->rank[i].kv);
        kve_gather_close(&ranks->rank[i].gather);
    }
    ranks->tp = 0;
}

static void *run_rank(void *arg)
{
    struct rank *rank = arg;

    rank->status = kve_model_forward(rank->model, rank->weights, rank->kv, &rank->batch,
                                     rank->gather.rank == 0 ? rank->next : NULL);
    return NULL;
}

/* Computes rank 0's batch on all ranks, and empties it. */
static void forward(struct ranks *ranks)
{
    pthread_t threads[KVE_MODEL_LANES];

    for (uint32_t i = 1; i < ranks->tp; i++) {
        ranks->rank[i].batch = ranks->rank[0].batch;
        cr_assert_eq(pthread_create(&threads[i], NULL, run_rank, &ranks->rank[i]), 0);
    }
    run_rank(&ranks->rank[0]);
    for (uint32_t i = 1; i < ranks->tp; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(ranks->rank[i].status, KVB_OK);
    }
    cr_assert_eq(ranks->rank[0].status, KVB_OK);
    struct kve_batch *batch = &ranks->rank[0].batch;
    batch->nspans = batch->ntokens = batch->nblocks = 0;
}

struct sequence {
    uint16_t tokens[MOST];
    uint32_t n, done;
    uint32_t blocks[MOST / KVE_MODEL_BLOCK_TOKENS];
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* n tokens; block i is (first + i * stride) modulo BLOCKS. */
static struct sequence prompt(uint64_t seed, uint32_t n, uint32_t first, uint32_t stride)
{
    struct sequence sequence = {.n = n};

    for (uint32_t i = 0; i < n; i++) {
        sequence.tokens[i] = (uint16_t)(mix(seed * 0x9e3779b97f4a7c15u + i) % KVE_MODEL_VOCAB);
    }
    for (uint32_t i = 0; i < MOST / KVE_MODEL_BLOCK_TOKENS; i++) {
        sequence.blocks[i] = (first + i * stride) % BLOCKS;
    }
    return sequence;
}

static void add_span(struct ranks *ranks, struct sequence *sequence, uint32_t n)
{
    struct kve_batch *batch = &ranks->rank[0].batch;

    batch->spans[batch->nspans++] = (struct kve_span){
        .first = sequence->done, .n = n, .token_at = batch->ntokens, .block_at = batch->nblocks};
    memcpy(batch->tokens + batch->ntokens, sequence->tokens + sequence->done, n * sizeof(uint16_t));
    batch->ntokens += n;
    sequence->done += n;
    for (uint32_t i = 0; i * KVE_MODEL_BLOCK_TOKENS < sequence->done; i++) {
        batch->blocks[batch->nblocks++] = sequence->blocks[i];
    }
}

/* Computes what is known, in pieces of `chunk` tokens; then `more` tokens one by one. */
static void go_on(struct ranks *ranks, struct sequence *sequence, uint32_t chunk, uint32_t more)
{
    for (uint32_t end = sequence->n + more; sequence->n < end;) {
        uint32_t left = sequence->n - sequence->done;
        add_span(ranks, sequence, left < chunk ? left : chunk);
        forward(ranks);
        if (sequence->done == sequence->n) {
            sequence->tokens[sequence->n++] = ranks->rank[0].next[0];
        }
    }
}

/* Of what lane `lane` has in the sequence's blocks: the bytes that were written. */
static uint64_t lane_hash(const struct ranks *ranks, const struct sequence *sequence, uint32_t lane)
{
    uint32_t lanes = KVE_MODEL_LANES / ranks->tp;
    const struct rank *rank = &ranks->rank[lane / lanes];
    size_t block_bytes = kve_model_block_bytes(lanes), plane = block_bytes / 2 / lanes;
    uint64_t hash = 0;

    for (uint32_t i = 0; i < sequence->done / KVE_MODEL_BLOCK_TOKENS; i++) {
        const unsigned char *block = rank->kv + sequence->blocks[i] * block_bytes;
        hash = XXH3_64bits_withSeed(block + lane % lanes * plane, plane, hash);
        hash = XXH3_64bits_withSeed(block + block_bytes / 2 + lane % lanes * plane, plane, hash);
    }
    return hash;
}

static void same(const struct ranks *a, const struct sequence *x, const struct ranks *b,
                 const struct sequence *y, const char *what)
{
    cr_assert_eq(x->n, y->n, "%s", what);
    cr_assert_arr_eq(x->tokens, y->tokens, x->n * sizeof x->tokens[0], "%s", what);
    cr_assert_eq(x->done, y->done, "%s", what);
    for (uint32_t lane = 0; lane < KVE_MODEL_LANES; lane++) {
        cr_assert_eq(lane_hash(a, x, lane), lane_hash(b, y, lane), "%s, lane %u", what, lane);
    }
}

static void setup(void)
{
    open_ranks(&one, 1, 1);
}
static void teardown(void)
{
    close_ranks(&one);
}
TestSuite(model, .init = setup, .fini = teardown);

/* ---- one arithmetic ---- */

Test(model, tokens_and_kv_are_the_same_bits_on_any_number_of_ranks)
{
    for (uint32_t tp = 2; tp <= KVE_MODEL_LANES; tp *= 2) {
        struct sequence a = prompt(1, 75, 0, 1), b = a, c = prompt(2, 33, 16, 1), d = c;
        open_ranks(&many, tp, 1);
        go_on(&one, &a, 64, 30);
        go_on(&many, &b, 64, 30);
        same(&one, &a, &many, &b, "one sequence");
        go_on(&one, &c, 20, 30);
        go_on(&many, &d, 20, 30);
        same(&one, &c, &many, &d, "another");
        close_ranks(&many);
    }
}

Test(model, pieces_of_any_size_and_token_by_token_are_the_same_bits)
{
    static const uint32_t chunks[] = {1, 3, 16, 17, 64};
    struct sequence want = prompt(3, 90, 0, 1);

    go_on(&one, &want, 256, 40);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        struct sequence got = prompt(3, 90, 20, 5);
        go_on(&one, &got, chunks[i], 40);
        same(&one, &want, &one, &got, "in pieces");
    }
    /* What decoding wrote is what prefill writes. */
    struct sequence again = prompt(3, 90, 40, 1);
    memcpy(again.tokens, want.tokens, sizeof want.tokens);
    again.n = want.n - 1;
    go_on(&one, &again, 256, 1);
    same(&one, &want, &one, &again, "as a prompt");
}

Test(model, a_batch_is_the_same_bits_as_each_alone)
{
    struct sequence want[5], got[5];

    for (uint32_t i = 0; i < 5; i++) {
        want[i] = prompt(10 + i, 10 + 13 * i, 0, 1);
        got[i] = prompt(10 + i, 10 + 13 * i, 10 * i, 1);
    }
    for (uint32_t steps = 0; steps < 20; steps++) {
        uint16_t *next = one.rank[0].next;
        for (uint32_t i = 0; i < 5; i++) { /* prompts beside decoding, in changing order */
            add_span(&one, &got[(i + steps) % 5],
                     got[(i + steps) % 5].n - got[(i + steps) % 5].done);
        }
        forward(&one);
        for (uint32_t i = 0; i < 5; i++) {
            struct sequence *sequence = &got[(i + steps) % 5];
            sequence->tokens[sequence->n++] = next[i];
        }
    }
    for (uint32_t i = 0; i < 5; i++) {
        unsigned char *kept = malloc(BLOCKS * kve_model_block_bytes(KVE_MODEL_LANES));
        struct ranks other = one;
        memcpy(kept, one.rank[0].kv, BLOCKS * kve_model_block_bytes(KVE_MODEL_LANES));
        other.rank[0].kv = kept;
        go_on(&one, &want[i], 256, 20);
        same(&one, &want[i], &other, &got[i], "of a batch");
        memcpy(one.rank[0].kv, kept, BLOCKS * kve_model_block_bytes(KVE_MODEL_LANES));
        free(kept);
    }
}

Test(model, blocks_that_came_from_elsewhere_are_as_good_as_computed)
{
    struct sequence want = prompt(4, 64, 0, 1), got = prompt(4, 64, 30, 3);
    size_t bytes = kve_model_block_bytes(KVE_MODEL_LANES);

    go_on(&one, &want, 256, 30);
    for (uint32_t i = 0; i < 3; i++) { /* all but the last block of the prompt */
        memcpy(one.rank[0].kv + got.blocks[i] * bytes, one.rank[0].kv + want.blocks[i] * bytes,
               bytes);
    }
    got.done = 48;
    go_on(&one, &got, 256, 30);
    same(&one, &want, &one, &got, "after three blocks of another");
}

/* The same on every machine and from every compiler, or engines that share would not agree. */
Test(model, these_are_its_tokens)
{
    static const uint16_t want[] = {25, 11, 110, 56, 177, 18, 239, 254};
    struct sequence sequence = prompt(1, 75, 0, 1);

    go_on(&one, &sequence, 256, 8);
    cr_assert_arr_eq(sequence.tokens + 75, want, sizeof want);
}

/* ---- nothing is for show ---- */

Test(model, a_wrong_byte_of_any_layer_head_and_plane_is_seen)
{
    struct sequence sequence = prompt(5, 17, 0, 1);
    const size_t bytes = kve_model_block_bytes(KVE_MODEL_LANES);
    unsigned char *block = one.rank[0].kv;
    float want[KVE_MODEL_VOCAB];
    uint32_t other_token = 0;

    go_on(&one, &sequence, 256, 1);
    memcpy(want, kve_model_logits(one.rank[0].model, 0), sizeof want);
    for (size_t i = 0; i < bytes; i++) {
        unsigned char right = block[i];
        block[i] ^= i % 2 == 0 ? 0x55 : 0xc1; /* of a bfloat16: mantissa; sign and exponent */
        sequence.done = 16;
        add_span(&one, &sequence, 1);
        forward(&one);
        cr_assert_neq(memcmp(want, kve_model_logits(one.rank[0].model, 0), sizeof want), 0,
                      "byte %zu changes nothing", i);
        other_token += i % 2 == 1 && one.rank[0].next[0] != sequence.tokens[17];
        block[i] = right;
    }
    cr_assert_gt(other_token, bytes / 4, "of %zu signs and exponents", bytes / 2); /* 2398 */
}

Test(model, other_weights_say_other_things)
{
    for (uint64_t seed = 2; seed < 10; seed++) {
        struct sequence a = prompt(6, 32, 0, 1), b = a;
        go_on(&one, &a, 256, 16);
        open_ranks(&many, 1, seed);
        go_on(&many, &b, 256, 16);
        cr_assert_arr_neq(a.tokens + 32, b.tokens + 32, 16 * sizeof a.tokens[0]);
        cr_assert_neq(lane_hash(&one, &a, 0), lane_hash(&many, &b, 0));
        close_ranks(&many);
    }
}

Test(model, what_it_says_does_not_collapse)
{
    bool said[KVE_MODEL_VOCAB] = {false};
    uint32_t all = 0, least = UINT32_MAX;

    for (uint64_t seed = 1; seed <= 24; seed++) {
        struct sequence sequence = prompt(100 + seed, 48, 0, 1);
        bool here[KVE_MODEL_VOCAB] = {false};
        uint32_t n = 0;
        kve_model_generate(one.rank[0].model, seed % 4 + 1, one.rank[0].weights);
        go_on(&one, &sequence, 256, 64);
        for (uint32_t i = 48; i < sequence.n; i++) {
            n += !here[sequence.tokens[i]];
            all += !said[sequence.tokens[i]];
            here[sequence.tokens[i]] = said[sequence.tokens[i]] = true;
        }
        least = n < least ? n : least;
    }
    cr_assert_geq(least, 24, "different tokens of 64");   /* 34 */
    cr_assert_geq(all, 224, "of the 256 that there are"); /* 249 */
}

/* ---- weights ---- */

Test(model, ranks_of_one_model_say_one_fingerprint_whatever_the_split)
{
    char want[40], got[40], other[40];

    kve_model_fingerprint(one.rank[0].model, one.rank[0].weights, want);
    for (uint32_t tp = 1; tp <= KVE_MODEL_LANES; tp *= 2) {
        open_ranks(&many, tp, 1);
        for (uint32_t i = 0; i < tp; i++) {
            struct rank *rank = &many.rank[i];
            kve_model_fingerprint(rank->model, rank->weights, got);
            cr_assert_str_eq(got, want);
            kve_model_generate(rank->model, 2, rank->weights);
            kve_model_fingerprint(rank->model, rank->weights, other);
            cr_assert_str_neq(other, want);
            kve_model_generate(rank->model, 1, rank->weights);
            kve_model_fingerprint(rank->model, rank->weights, got);
            cr_assert_str_eq(got, want);
        }
        close_ranks(&many);
    }
}

Test(model, a_fingerprint_is_of_the_bytes_really_held)
{
    const size_t bytes = kve_model_weights_bytes(1);
    unsigned char *weights = one.rank[0].weights;
    char want[40], got[40];

    kve_model_fingerprint(one.rank[0].model, weights, want);
    for (size_t at = KVE_MODEL_LANES * sizeof(uint64_t); at < bytes; at += 9973) {
        weights[at] ^= 1;
        kve_model_fingerprint(one.rank[0].model, weights, got);
        cr_assert_str_neq(got, want, "byte %zu", at);
        weights[at] ^= 1;
    }
}

/* ---- a rank that is not there ---- */

Test(model, a_rank_that_is_gone_ends_the_step)
{
    struct sequence sequence = prompt(7, 16, 0, 1);

    open_ranks(&many, 2, 1);
    kve_gather_close(&many.rank[1].gather);
    add_span(&many, &sequence, 16);
    run_rank(&many.rank[0]);
    cr_assert_eq(many.rank[0].status, KVB_ERR_DISCONNECTED);
    close_ranks(&many);
}

Test(model, a_rank_that_says_nothing_ends_the_step)
{
    struct sequence sequence = prompt(7, 16, 0, 1);

    open_ranks(&many, 2, 1);
    many.rank[0].gather.wait_ms = 20;
    add_span(&many, &sequence, 16);
    run_rank(&many.rank[0]);
    cr_assert_eq(many.rank[0].status, KVB_ERR_TIMEOUT);
    close_ranks(&many);
}

struct said {
    struct kve_gather *gather;
    kvb_status_t mine, got;
    unsigned char all[4 * 1024];
};
static void *say(void *arg)
{
    struct said *said = arg;

    memset(said->all + said->gather->rank * 1024, (int)said->gather->rank + 1, 1024);
    said->got = kve_gather_all(said->gather, said->mine, said->all, 1024);
    return NULL;
}

Test(model, what_one_rank_cannot_do_all_ranks_know)
{
    static struct said said[4];
    pthread_t threads[4];

    open_ranks(&many, 4, 1);
    for (uint32_t cannot = 0; cannot <= 4; cannot++) { /* 4: nobody */
        for (uint32_t i = 0; i < 4; i++) {
            said[i] = (struct said){.gather = &many.rank[i].gather,
                                    .mine = i == cannot ? KVB_ERR_BAD_STATE : KVB_OK};
            cr_assert_eq(pthread_create(&threads[i], NULL, say, &said[i]), 0);
        }
        for (uint32_t i = 0; i < 4; i++) {
            pthread_join(threads[i], NULL);
            cr_assert_eq(said[i].got, cannot < 4 ? KVB_ERR_BAD_STATE : KVB_OK);
            for (int k = 0; k < 4 * 1024; k++) {
                cr_assert_eq(said[i].all[k], k / 1024 + 1);
            }
        }
    }
    close_ranks(&many);
}
