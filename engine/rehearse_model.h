/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_REHEARSE_MODEL_H
#define ENGINE_REHEARSE_MODEL_H

#include "rehearse.h"
#include "rehearse_answer.h"

/*
 * What a rehearsal with a model knows. The same prompts are generated at every version of the
 * weights, so that the store is full of blocks with the right keys and the wrong bytes. The control
 * generates each of them at each version and computes everything; its answers are the book.
 *
 *   rehearse_prompts.c   prompts, runs, the control, the verdicts
 *   rehearse_model.c     one cycle
 */

/* The prompts of a cycle, by what they are for. */
enum kve_group {
    KVE_GROUP_A,       /* A's own */
    KVE_GROUP_B,       /* B's own */
    KVE_GROUP_ASLEEP,  /* B puts them while A sleeps */
    KVE_GROUP_AWAKE,   /* B puts them after A's wake */
    KVE_GROUP_TRAFFIC, /* what is in flight while something else happens */
    KVE_GROUP_COUNT
};
/* Cycles take them in turn, so that prompts of one are new in the next also if the weights stay. */
#define KVE_SETS 2

/* Whose puts a read has to hit. */
#define KVE_SOURCES(X)                                                                             \
    X(OWN, "own")       /* its own */                                                              \
    X(ASLEEP, "asleep") /* the other's, put while A slept */                                       \
    X(AWAKE, "awake")   /* the other's, put while A was awake */
enum kve_source {
#define X(name, label) KVE_SOURCE_##name,
    KVE_SOURCES(X)
#undef X
        KVE_SOURCE_COUNT,
    KVE_SOURCE_ANY /* none has to hit */
};

struct kve_prompt {
    uint32_t ntokens;
    uint16_t *tokens;
};

struct kve_tally {
    uint64_t outputs, identical; /* judged, and the same as the control's */
    uint64_t tokens;             /* of all outputs */
    uint64_t store;              /* blocks of their prompts that came from the store */
    struct kve_share shares[KVE_SOURCE_COUNT];
};

struct kve_model {
    uint32_t per_group; /* prompts */
    uint32_t nprompts;
    struct kve_prompt *prompts; /* [set][group][per_group] */
    uint64_t nweights;          /* ids 1 to this one have a place in the book */
    struct kve_answer *book;    /* [weights - 1][prompt]: the control's */
    struct kve_tally row, total;
};

/* ---- rehearse_prompts.c  ---- */

/* Draws the prompts. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kve_model_prepare(struct kve_rehearsal *r);
void kve_model_cleanup(struct kve_rehearsal *r);
/* The first prompt of a group, in the set of a step; there are model->per_group. */
uint32_t kve_model_group(const struct kve_rehearsal *r, uint32_t step, enum kve_group group);

/* The control takes these weights, and generates every prompt, if it has not before. */
bool kve_control_learn(struct kve_rehearsal *r, uint64_t weights);

/* Prompts that a side continues together. */
struct kve_prompts {
    struct kve_side *side;
    json_int_t id; /* 0: nothing is to be waited for */
    uint64_t weights;
    enum kve_source source;
    uint32_t first, count; /* of the prompts */
    bool mixed;            /* kept across an update: goes on with its old KV, as it should */
};
/* source: whose puts they have to hit (then not the engine's own cache); ANY: whatever it finds. */
bool kve_prompts_start(struct kve_rehearsal *r, struct kve_prompts *run, struct kve_side *side,
                       uint32_t first, uint32_t count, enum kve_source source, bool use_cache);
/* The same, of what has to be in flight when something else begins: returns when all of it waits,
 * half done, for the next resume. */
bool kve_prompts_stall(struct kve_rehearsal *r, struct kve_prompts *run, struct kve_side *side,
                       uint32_t first, uint32_t count);
/*
 * Waits for its end, and judges what was generated: with the weights that the side had when it
 * began, or those that it has now (a request that a pause caught before it began waits for the
 * resume). What a pause aborted is generated again, with the weights of now.
 */
bool kve_prompts_finish(struct kve_rehearsal *r, struct kve_prompts *run);
/* Both. */
bool kve_prompts_run(struct kve_rehearsal *r, struct kve_side *side, uint32_t first, uint32_t count,
                     enum kve_source source, bool use_cache);
/* The side reads from the store what a reset has cleared: none of it comes. */
bool kve_prompts_cleared(struct kve_rehearsal *r, struct kve_side *side, uint32_t first,
                         uint32_t count);

#endif
