/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"
#include "rehearse_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of every prompt of a group, the first quarter is the same: their first blocks are put once. */
#define COMMON_PART 4

/* ---- prompts ---- */

static void draw_tokens(struct kve_rehearsal *r, uint16_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (uint16_t)kve_rehearse_draw(r, KVE_MODEL_VOCAB);
    }
}

kvb_status_t kve_model_prepare(struct kve_rehearsal *r)
{
    struct kve_model *model = calloc(1, sizeof *model);

    r->model = model;
    if (model == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    model->per_group = (r->prompts + KVE_GROUP_COUNT - 1) / KVE_GROUP_COUNT;
    model->nprompts = KVE_SETS * KVE_GROUP_COUNT * model->per_group;
    model->nweights = r->steps + 1;
    model->prompts = calloc(model->nprompts, sizeof *model->prompts);
    model->book = calloc(model->nweights * model->nprompts, sizeof *model->book);
    if (model->prompts == NULL || model->book == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < model->nprompts; i++) {
        struct kve_prompt *prompt = &model->prompts[i];
        const struct kve_prompt *first = &model->prompts[i / model->per_group * model->per_group];
        /* Not all end with a whole block. */
        prompt->ntokens = r->prompt_tokens - (uint32_t)kve_rehearse_draw(r, KVE_MODEL_BLOCK_TOKENS);
        prompt->tokens = calloc(prompt->ntokens, sizeof *prompt->tokens);
        if (prompt->tokens == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        draw_tokens(r, prompt->tokens, prompt->ntokens);
        if (prompt != first) {
            memcpy(prompt->tokens, first->tokens,
                   r->prompt_tokens / COMMON_PART * sizeof *prompt->tokens);
        }
    }
    return KVB_OK;
}

void kve_model_cleanup(struct kve_rehearsal *r)
{
    struct kve_model *model = r->model;

    if (model == NULL) {
        return;
    }
    for (uint64_t i = 0; model->book != NULL && i < model->nweights * model->nprompts; i++) {
        kve_answer_cleanup(&model->book[i]);
    }
    for (uint32_t i = 0; model->prompts != NULL && i < model->nprompts; i++) {
        free(model->prompts[i].tokens);
    }
    free(model->book);
    free(model->prompts);
    free(model);
    r->model = NULL;
}

uint32_t kve_model_group(const struct kve_rehearsal *r, uint32_t step, enum kve_group group)
{
    return (step % KVE_SETS * KVE_GROUP_COUNT + group) * r->model->per_group;
}

static struct kve_answer *control_of(const struct kve_rehearsal *r, uint64_t weights,
                                     uint32_t prompt)
{
    return &r->model->book[(weights - 1) * r->model->nprompts + prompt];
}

/* ---- asking ---- */

static json_t *prompts_json(const struct kve_model *model, uint32_t first, uint32_t count)
{
    json_t *list = json_array();

    for (uint32_t i = first; i < first + count; i++) {
        json_t *tokens = json_array();
        for (uint32_t k = 0; k < model->prompts[i].ntokens; k++) {
            json_array_append_new(tokens, json_integer(model->prompts[i].tokens[k]));
        }
        json_array_append_new(list, tokens);
    }
    return list;
}

static bool start(struct kve_rehearsal *r, struct kve_prompts *run, struct kve_side *side,
                  uint32_t first, uint32_t count, enum kve_source source, bool use_cache,
                  bool stall)
{
    *run = (struct kve_prompts){.side = side,
                                .id = ++r->last_id,
                                .weights = side->weights,
                                .source = source,
                                .first = first,
                                .count = count};
    return kve_side_tell(r, side,
                         json_pack("{s:s,s:I,s:o,s:I,s:b,s:b}", "cmd", "generate", "id", run->id,
                                   "prompts", prompts_json(r->model, first, count), "max_tokens",
                                   (json_int_t)r->max_tokens, "use_cache", use_cache, "stall",
                                   stall));
}

bool kve_prompts_start(struct kve_rehearsal *r, struct kve_prompts *run, struct kve_side *side,
                       uint32_t first, uint32_t count, enum kve_source source, bool use_cache)
{
    return start(r, run, side, first, count, source, use_cache, false);
}

bool kve_prompts_stall(struct kve_rehearsal *r, struct kve_prompts *run, struct kve_side *side,
                       uint32_t first, uint32_t count)
{
    static const char *const names[] = {"stalled", "error", NULL};
    json_t *event;

    if (!start(r, run, side, first, count, KVE_SOURCE_ANY, true, true) ||
        !kve_side_await(r, side, names, run->id, &event)) {
        return false;
    }
    json_decref(event);
    return true;
}

/* The answer's event, owned by the caller; its counts are added to the row's. */
static bool await_done(struct kve_rehearsal *r, struct kve_prompts *run, json_t **event_p)
{
    static const char *const names[] = {"done", "error", NULL};

    if (!kve_side_await(r, run->side, names, run->id, event_p)) {
        return false;
    }
    run->id = 0;
    kve_counts_add_json(&r->row->counts, json_object_get(*event_p, "counts"));
    return true;
}

static bool parse(struct kve_rehearsal *r, const struct kve_prompts *run, uint32_t i,
                  const json_t *event, struct kve_answer *answer_p)
{
    uint32_t prompt = run->first + i;
    const char *why;
    kvb_status_t status = kve_answer_parse(
        json_array_get(json_object_get(event, "outputs"), i),
        r->model->prompts[prompt].ntokens / KVE_MODEL_BLOCK_TOKENS, r->tp, answer_p, &why);

    return status == KVB_OK ||
           kve_rehearse_fail(r, "engine %s: the output of prompt %" PRIu32 ": %s",
                             run->side->instance, prompt, why);
}

/* ---- the control ---- */

/* It has to compute, and the same every time. */
static bool learn_group(struct kve_rehearsal *r, uint32_t first)
{
    struct kve_prompts run;
    json_t *event;
    bool done = true;

    if (!kve_prompts_start(r, &run, &r->control, first, r->model->per_group, KVE_SOURCE_ANY,
                           false) ||
        !await_done(r, &run, &event)) {
        return false;
    }
    for (uint32_t i = 0; i < run.count && done; i++) {
        struct kve_answer *answer = control_of(r, run.weights, first + i);
        done = parse(r, &run, i, event, answer);
        if (done && answer->computed != answer->prompt_blocks) {
            done = kve_rehearse_fail(r, "the control did not compute all of prompt %" PRIu32,
                                     first + i);
        }
    }
    json_decref(event);
    return done;
}

/* While weights change an instance is closed: nothing comes from the store, nothing gets there. */
bool kve_control_learn(struct kve_rehearsal *r, uint64_t weights)
{
    struct kve_side *control = &r->control;
    const char *name = control->instance;
    json_t *update = json_pack("{s:{s:I}}", "update_info", "weights_id", (json_int_t)weights);
    bool done;

    if (control_of(r, weights, 0)->ntokens > 0) {
        json_decref(update);
        return true;
    }
    kve_table_progress(r, "the control computes");
    done =
        kve_side_post(r, control, KVE_ANY, NULL, NULL, "/start_weight_update?instance=%s", name) &&
        kve_side_post(r, control, KVE_ANY, NULL, update, "/update_weights?instance=%s", name);
    json_decref(update);
    control->weights = weights;
    done = done && kve_side_check_held(r, control);
    for (uint32_t first = 0; first < r->model->nprompts && done; first += r->model->per_group) {
        done = learn_group(r, first);
    }
    return done && kve_side_post(r, control, KVE_ANY, NULL, NULL,
                                 "/finish_weight_update?instance=%s", name);
}

/* ---- the verdict ---- */

/* Which weights a wrong part is of; 0: none that the book knows. */
static uint64_t whose(const struct kve_rehearsal *r, uint32_t prompt,
                      const struct kve_answer *answer, const struct kve_difference *difference)
{
    for (uint64_t weights = 1; weights <= r->model->nweights; weights++) {
        if (difference->block != KVE_NOWHERE &&
            kve_answer_part_is(answer, control_of(r, weights, prompt), difference->block,
                               difference->part)) {
            return weights;
        }
    }
    return 0;
}

static void tell_token(const struct kve_answer *answer, const struct kve_answer *control,
                       uint32_t token, char out[96])
{
    if (token == KVE_NOWHERE) {
        snprintf(out, 96, "no token differs");
    } else if (token >= answer->ntokens || token >= control->ntokens) {
        snprintf(out, 96, "%" PRIu32 " tokens, and not %" PRIu32, answer->ntokens,
                 control->ntokens);
    } else {
        snprintf(out, 96, "token %" PRIu32 " of %" PRIu32 " is %" PRIu32 ", and not %" PRIu32,
                 token, control->ntokens, answer->tokens[token], control->tokens[token]);
    }
}

static void tell_block(const struct kve_answer *answer, const struct kve_difference *difference,
                       uint64_t weights, char out[128])
{
    if (difference->block == KVE_NOWHERE) {
        snprintf(out, 128, "no block differs");
        return;
    }
    int len = snprintf(out, 128,
                       "the first wrong block is %" PRIu32 " of %" PRIu32 ", part %" PRIu32 ", ",
                       difference->block, answer->nblocks, difference->part);
    if (weights > 0) {
        snprintf(out + len, 128 - (size_t)len, "that of weights %" PRIu64, weights);
    } else {
        snprintf(out + len, 128 - (size_t)len, "that of no weights");
    }
}

static void accuse(struct kve_rehearsal *r, const struct kve_prompts *run, uint32_t prompt,
                   const struct kve_answer *answer, const struct kve_difference *difference)
{
    const struct kve_answer *control = control_of(r, run->weights, prompt);
    uint64_t weights = whose(r, prompt, answer, difference);
    char token[96], block[128];

    r->row->counts.stale += weights > 0;
    r->row->counts.torn += weights == 0;
    tell_token(answer, control, difference->token, token);
    tell_block(answer, difference, weights, block);
    kve_rehearse_story(r,
                       "instance %s with weights %" PRIu64 " is not as the control: prompt %" PRIu32
                       ", %s; %s (%" PRIu32 " blocks of its own cache, %" PRIu32
                       " of the store, %" PRIu32 " computed)",
                       run->side->instance, run->weights, prompt, token, block, answer->local,
                       answer->store, answer->computed);
}

static void judge(struct kve_rehearsal *r, const struct kve_prompts *run, uint32_t prompt,
                  const struct kve_answer *answer)
{
    struct kve_tally *row = &r->model->row;
    struct kve_difference difference, later;
    bool same = kve_answer_same(answer, control_of(r, run->weights, prompt), &difference) ||
                kve_answer_same(answer, control_of(r, run->side->weights, prompt), &later);

    row->outputs++;
    row->tokens += answer->ntokens;
    row->store += answer->store;
    row->identical += same;
    if (!same) {
        accuse(r, run, prompt, answer, &difference);
    }
    if (run->source != KVE_SOURCE_ANY) {
        kve_share_add(&row->shares[run->source], answer);
    }
}

static bool is_unfinished(const json_t *event, uint32_t i)
{
    const json_t *list = json_object_get(event, "unfinished");

    for (size_t k = 0; k < json_array_size(list); k++) {
        if (json_integer_value(json_array_get(list, k)) == (json_int_t)i) {
            return true;
        }
    }
    return false;
}

bool kve_prompts_finish(struct kve_rehearsal *r, struct kve_prompts *run)
{
    json_t *event;
    bool done = true;

    if (run->id == 0) {
        return true;
    }
    if (!await_done(r, run, &event)) {
        return false;
    }
    for (uint32_t i = 0; i < run->count && done; i++) {
        struct kve_answer answer;
        if (is_unfinished(event, i)) {
            done = kve_prompts_run(r, run->side, run->first + i, 1, KVE_SOURCE_ANY, true);
            continue;
        }
        done = parse(r, run, i, event, &answer);
        if (done) {
            if (!run->mixed) {
                judge(r, run, run->first + i, &answer);
            }
            kve_answer_cleanup(&answer);
        }
    }
    json_decref(event);
    return done;
}

bool kve_prompts_run(struct kve_rehearsal *r, struct kve_side *side, uint32_t first, uint32_t count,
                     enum kve_source source, bool use_cache)
{
    struct kve_prompts run;

    return kve_prompts_start(r, &run, side, first, count, source, use_cache) &&
           kve_prompts_finish(r, &run);
}

bool kve_prompts_cleared(struct kve_rehearsal *r, struct kve_side *side, uint32_t first,
                         uint32_t count)
{
    uint64_t before = r->model->row.store, n;

    if (!kve_prompts_run(r, side, first, count, KVE_SOURCE_ANY, false)) {
        return false;
    }
    n = r->model->row.store - before;
    if (n > 0) {
        r->row->counts.stale += n;
        kve_rehearse_story(r, "%s got %" PRIu64 " blocks that its reset had cleared",
                           side->instance, n);
    }
    return true;
}
