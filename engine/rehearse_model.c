/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One cycle: both generate and read it again, A lies down in one of several ways, B goes on, A
 * comes back part by part, the weights of the two change at different moments, and again both
 * generate and read. B generates all the while, and some of what A does is in flight when it has to
 * lie down.
 *
 * What is judged: every output is the control's with the weights that its engine holds, token by
 * token and block by block, wherever its KV came from; and (but in fault runs) reads that must hit
 * take all but the last block of each prompt from the store.
 */
#include "rehearse_model.h"

#include "model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HAIL_MAX       16 /* prompts of one of its runs */
#define LOADING_WANTED 4
#define IN_FLIGHT_MAX  8 /* prompts: fewer than an engine runs at a time, and short answers */

/* When B takes the next weights. */
enum moment { BEFORE, ASLEEP, AFTER };

/* What A gets back first. */
enum order { WEIGHTS_FIRST, KV_CACHE_FIRST, AT_ONCE };

struct cycle {
    enum kve_form form;
    enum kve_naming naming;
    enum order order;
    enum moment moment;
    uint32_t mode; /* of the pauses */
};

static const char *const modes[] = {"abort", "keep", "wait"};
#define NMODES (sizeof modes / sizeof modes[0])

/* In turn; each time round with the next moment and the next mode. Two that keep the weights are
 * never neighbours: the second would find its prompts put already. */
static const struct cycle cycles[] = {
    {KVE_FORM_SLEEP_1, KVE_NAMING_VERSION, WEIGHTS_FIRST, ASLEEP, 0},
    {KVE_FORM_SLEEP_2, KVE_NAMING_FINGERPRINT, WEIGHTS_FIRST, BEFORE, 1},
    {KVE_FORM_NAP, KVE_NAMING_FINGERPRINT, AT_ONCE, BEFORE, 1},
    {KVE_FORM_RELEASE, KVE_NAMING_VERSION, WEIGHTS_FIRST, AFTER, 0},
    {KVE_FORM_KEEP, KVE_NAMING_VERSION, AT_ONCE, AFTER, 1},
    {KVE_FORM_RESET, KVE_NAMING_VERSION, AT_ONCE, BEFORE, 1},
    {KVE_FORM_SLEEP_2, KVE_NAMING_VERSION, KV_CACHE_FIRST, ASLEEP, 2},
    {KVE_FORM_NAP, KVE_NAMING_VERSION, WEIGHTS_FIRST, BEFORE, 1},
    {KVE_FORM_SLEEP_1, KVE_NAMING_FINGERPRINT, KV_CACHE_FIRST, BEFORE, 1},
    {KVE_FORM_NAP, KVE_NAMING_FINGERPRINT, KV_CACHE_FIRST, BEFORE, 2},
    {KVE_FORM_RELEASE, KVE_NAMING_FINGERPRINT, KV_CACHE_FIRST, ASLEEP, 0},
};
#define NCYCLES (sizeof cycles / sizeof cycles[0])

/* One cycle as it is played. */
struct scene {
    struct cycle cycle;
    const char *mode;
    uint32_t step;
    uint64_t weights; /* that both will hold */
    bool updates;
    bool asleep_put; /* B put what A reads of its sleep under what A holds after it */
};

/* ---- generating ---- */

static uint32_t group(const struct kve_rehearsal *r, const struct scene *scene,
                      enum kve_group which)
{
    return kve_model_group(r, scene->step, which);
}

static bool generate(struct kve_rehearsal *r, const struct scene *scene, struct kve_side *side,
                     enum kve_group which, enum kve_source source)
{
    return kve_prompts_run(r, side, group(r, scene, which), r->model->per_group, source, false);
}

static uint32_t in_flight(const struct kve_rehearsal *r)
{
    return r->model->per_group < IN_FLIGHT_MAX ? r->model->per_group : IN_FLIGHT_MAX;
}

/* What is in flight while something else happens: an engine's own cache is part of it. */
static bool start_traffic(struct kve_rehearsal *r, const struct scene *scene,
                          struct kve_prompts *traffic, struct kve_side *side)
{
    return kve_prompts_start(r, traffic, side, group(r, scene, KVE_GROUP_TRAFFIC), in_flight(r),
                             KVE_SOURCE_ANY, kve_rehearse_draw(r, 2) == 0);
}

/* The same before a pause, which a resume will follow: half done, unless it waits for their end. */
static bool start_before_pause(struct kve_rehearsal *r, const struct scene *scene,
                               struct kve_prompts *traffic, struct kve_side *side)
{
    if (strcmp(scene->mode, "wait") == 0) {
        return start_traffic(r, scene, traffic, side);
    }
    if (!kve_prompts_stall(r, traffic, side, group(r, scene, KVE_GROUP_TRAFFIC), in_flight(r))) {
        return false;
    }
    traffic->mixed = scene->cycle.form == KVE_FORM_KEEP;
    return true;
}

/* Both at once, from the store or by computing; they may hold different weights. */
static bool both(struct kve_rehearsal *r, const struct scene *scene, enum kve_group which)
{
    uint32_t first = group(r, scene, which), count = r->model->per_group;
    struct kve_prompts a, b;

    return kve_prompts_start(r, &a, &r->a, first, count, KVE_SOURCE_ANY, false) &&
           kve_prompts_start(r, &b, &r->b, first, count, KVE_SOURCE_ANY, false) &&
           kve_prompts_finish(r, &a) && kve_prompts_finish(r, &b);
}

/* Each puts its own; then each reads its own, and the other's. */
static bool exchange(struct kve_rehearsal *r, const struct scene *scene)
{
    uint32_t first_a = group(r, scene, KVE_GROUP_A), first_b = group(r, scene, KVE_GROUP_B);
    uint32_t count = r->model->per_group;
    struct kve_prompts a, b;

    return kve_prompts_start(r, &a, &r->a, first_a, count, KVE_SOURCE_ANY, true) &&
           kve_prompts_start(r, &b, &r->b, first_b, count, KVE_SOURCE_ANY, true) &&
           kve_prompts_finish(r, &a) && kve_prompts_finish(r, &b) &&
           generate(r, scene, &r->a, KVE_GROUP_A, KVE_SOURCE_OWN) &&
           generate(r, scene, &r->b, KVE_GROUP_B, KVE_SOURCE_OWN) &&
           generate(r, scene, &r->a, KVE_GROUP_B, KVE_SOURCE_AWAKE) &&
           generate(r, scene, &r->b, KVE_GROUP_A, KVE_SOURCE_AWAKE);
}

/* ---- memory ---- */

/* Nobody holds anything of what A has released. */
static bool judge_memory(struct kve_rehearsal *r, bool kv_cache_too, bool weights_too)
{
    uint64_t kv_cache, weights;

    if (!kve_region_bytes(r, "kv_cache", &kv_cache) || !kve_region_bytes(r, "weights", &weights)) {
        return false;
    }
    if (kv_cache_too && weights_too) {
        r->row->awake_bytes = kv_cache + weights;
    }
    return r->fault != NULL || ((kv_cache_too || kv_cache == 0) && (weights_too || weights == 0)) ||
           kve_rehearse_fail(
               r,
               "%" PRIu64 " bytes of kv_cache and %" PRIu64 " of weights are held; resident: %s%s",
               kv_cache, weights, kv_cache_too ? "kv_cache" : "", weights_too ? "weights" : "");
}

/* ---- the way to the next weights ---- */

static bool update(struct kve_rehearsal *r, const struct scene *scene, struct kve_side *side)
{
    bool done = scene->step % 2 == 0
                    ? kve_side_update_bracket(r, side, scene->weights, scene->cycle.naming)
                    : kve_side_update_rpc(r, side, scene->weights, scene->cycle.naming);

    kve_side_named(side, scene->weights, scene->cycle.naming);
    return done;
}

/* An engine that is awake is paused for it, with what it has in flight. */
static bool update_awake(struct kve_rehearsal *r, const struct scene *scene, struct kve_side *side)
{
    struct kve_prompts traffic;

    return start_before_pause(r, scene, &traffic, side) &&
           kve_side_post(r, side, KVE_ANY, NULL, NULL, "/pause?mode=%s%s&instance=%s", scene->mode,
                         scene->cycle.form == KVE_FORM_KEEP ? "&clear_cache=false" : "",
                         side->instance) &&
           update(r, scene, side) &&
           kve_side_post(r, side, KVE_ANY, NULL, NULL, "/resume?instance=%s", side->instance) &&
           kve_prompts_finish(r, &traffic);
}

/* B's moment, if this is it: after it the two hold different weights, for a while. */
static bool update_b(struct kve_rehearsal *r, const struct scene *scene, enum moment moment)
{
    if (!scene->updates || scene->cycle.moment != moment) {
        return true;
    }
    kve_table_progress(r, "B takes the next weights");
    return update_awake(r, scene, &r->b) && kve_side_await_open(r, &r->b);
}

static bool wake(struct kve_rehearsal *r, const char *tag)
{
    return kve_side_post(r, &r->a, KVE_ANY, &r->row->wake_ms, NULL, "/wake_up?tags=%s&instance=%s",
                         tag, r->a.instance);
}

/* The last of it; with nothing loaded, a version says once more which weights these are. */
static bool wake_last(struct kve_rehearsal *r, const struct scene *scene, const char *tags)
{
    char version[64];

    if (scene->updates || scene->cycle.naming != KVE_NAMING_VERSION) {
        return kve_side_post(r, &r->a, KVE_ANY, &r->row->wake_ms, NULL, "/wake_up?%sinstance=%s",
                             tags, r->a.instance);
    }
    kve_version_of(scene->weights, version);
    return kve_side_post(r, &r->a, KVE_ANY, &r->row->wake_ms, NULL,
                         "/wake_up?%sweight_version=%s&instance=%s", tags, version, r->a.instance);
}

/* Back with the weights of before, or with none, it takes the next ones awake. */
static bool update_late(struct kve_rehearsal *r, const struct scene *scene)
{
    if (scene->cycle.form == KVE_FORM_SLEEP_2) {
        return update(r, scene, &r->a); /* it holds nothing that it could generate with */
    }
    return both(r, scene, KVE_GROUP_A) && update_awake(r, scene, &r->a);
}

/* In between B goes on. */
static bool get_up(struct kve_rehearsal *r, const struct scene *scene)
{
    bool weights_too = scene->cycle.form != KVE_FORM_RELEASE;

    if (scene->cycle.form == KVE_FORM_RESET) {
        return true;
    }
    if (scene->cycle.form == KVE_FORM_KEEP) {
        return update(r, scene, &r->a) && kve_side_post(r, &r->a, KVE_ANY, &r->row->wake_ms, NULL,
                                                        "/resume?instance=%s", r->a.instance);
    }
    kve_table_progress(r, "A wakes");
    switch (scene->cycle.order) {
    case WEIGHTS_FIRST:
        /* The wake of the last tag ends an update and starts the scheduler. */
        return (!weights_too || wake(r, "weights")) && judge_memory(r, false, true) &&
               generate(r, scene, &r->b, KVE_GROUP_B, KVE_SOURCE_ANY) &&
               (!scene->updates || update(r, scene, &r->a)) &&
               wake_last(r, scene, "tags=kv_cache&");
    case KV_CACHE_FIRST:
        return wake(r, "kv_cache") && judge_memory(r, true, !weights_too) &&
               generate(r, scene, &r->b, KVE_GROUP_B, KVE_SOURCE_ANY) &&
               (!weights_too || wake_last(r, scene, "tags=weights&")) &&
               (!scene->updates || update_late(r, scene));
    case AT_ONCE:
        return wake_last(r, scene, "");
    }
    return false;
}

/* Awake from level 2 with kv_cache first, A cannot generate until it is given weights. */
static bool wakes_without_weights(const struct scene *scene)
{
    return scene->cycle.form == KVE_FORM_SLEEP_2 && scene->cycle.order == KV_CACHE_FIRST;
}

/* ---- what the way runs into ---- */

/* Reads, from the store alone, of prompts of this cycle (not A's own: a reset is to have cleared
 * them): what A waits for when it lies down. In fault runs both read more, and push each other's
 * blocks out of the small store. */
struct hail {
    struct kve_prompts runs[4];
};

static bool start_hail(struct kve_rehearsal *r, const struct scene *scene, struct hail *hail)
{
    uint32_t all = (KVE_GROUP_COUNT - KVE_GROUP_B) * r->model->per_group;
    size_t n = r->fault == NULL ? 1 : sizeof hail->runs / sizeof hail->runs[0];

    *hail = (struct hail){0};
    for (size_t i = 0; i < n; i++) {
        struct kve_side *side = i % 2 == 0 ? &r->a : &r->b;
        if (side == &r->a && wakes_without_weights(scene)) {
            continue;
        }
        if (!kve_prompts_start(r, &hail->runs[i], side, group(r, scene, KVE_GROUP_B),
                               all < HAIL_MAX ? all : HAIL_MAX, KVE_SOURCE_ANY, false)) {
            return false;
        }
        hail->runs[i].mixed = scene->cycle.form == KVE_FORM_KEEP;
    }
    return kve_side_await_loading(r, &r->a, r->fault == NULL ? 1 : LOADING_WANTED);
}

static bool end_hail(struct kve_rehearsal *r, struct hail *hail)
{
    for (size_t i = 0; i < sizeof hail->runs / sizeof hail->runs[0]; i++) {
        if (!kve_prompts_finish(r, &hail->runs[i])) {
            return false;
        }
    }
    return true;
}

/* ---- the cycle ---- */

static bool while_asleep(struct kve_rehearsal *r, struct scene *scene)
{
    const struct cycle *cycle = &scene->cycle;

    if (kve_form_sleeps(cycle->form) && !kve_judge_asleep(r, cycle->form != KVE_FORM_RELEASE)) {
        return false;
    }
    kve_table_progress(r, "B generates");
    if (!generate(r, scene, &r->b, KVE_GROUP_B, KVE_SOURCE_ANY) || !update_b(r, scene, ASLEEP) ||
        !generate(r, scene, &r->b, KVE_GROUP_ASLEEP, KVE_SOURCE_ANY)) {
        return false;
    }
    scene->asleep_put = r->b.weights == scene->weights;
    return true;
}

/* What A has in flight when it has to lie down. */
static bool start_late(struct kve_rehearsal *r, const struct scene *scene,
                       struct kve_prompts *traffic)
{
    if (scene->cycle.form == KVE_FORM_RESET) {
        return start_traffic(r, scene, traffic, &r->a); /* no resume will come */
    }
    return wakes_without_weights(scene) || start_before_pause(r, scene, traffic, &r->a);
}

static bool go(struct kve_rehearsal *r, struct scene *scene)
{
    const struct cycle *cycle = &scene->cycle;
    struct kve_prompts a = {0}, b;
    struct hail hail;

    if (!judge_memory(r, true, true)) {
        return false;
    }
    kve_table_progress(r, "A lies down");
    return update_b(r, scene, BEFORE) &&
           (r->a.weights == r->b.weights || both(r, scene, KVE_GROUP_A)) &&
           start_late(r, scene, &a) && start_traffic(r, scene, &b, &r->b) &&
           start_hail(r, scene, &hail) &&
           kve_side_lie_down(r, &r->a, cycle->form, scene->mode, &r->row->sleep_ms) &&
           kve_prompts_finish(r, &b) && while_asleep(r, scene) &&
           start_traffic(r, scene, &b, &r->b) && get_up(r, scene) && kve_prompts_finish(r, &b) &&
           kve_prompts_finish(r, &a) && end_hail(r, &hail) && kve_side_await_open(r, &r->a) &&
           (r->a.weights == r->b.weights || both(r, scene, KVE_GROUP_ASLEEP)) &&
           update_b(r, scene, AFTER);
}

/* Whose puts what follows must hit is known now. */
static bool after(struct kve_rehearsal *r, const struct scene *scene)
{
    bool reset = scene->cycle.form == KVE_FORM_RESET;
    bool kept = !reset && !scene->updates;
    bool done;

    kve_table_progress(r, "both generate");
    if (reset &&
        !kve_prompts_cleared(r, &r->a, group(r, scene, KVE_GROUP_A), r->model->per_group)) {
        return false;
    }
    /* Where the bytes of requests kept across an update would turn up, if they did. */
    if (scene->cycle.form == KVE_FORM_KEEP && !both(r, scene, KVE_GROUP_TRAFFIC)) {
        return false;
    }
    done = scene->asleep_put
               ? generate(r, scene, &r->a, KVE_GROUP_ASLEEP,
                          kve_form_sleeps(scene->cycle.form) ? KVE_SOURCE_ASLEEP : KVE_SOURCE_AWAKE)
               : generate(r, scene, &r->b, KVE_GROUP_ASLEEP, KVE_SOURCE_AWAKE);
    return done && (!kept || generate(r, scene, &r->a, KVE_GROUP_A, KVE_SOURCE_OWN)) &&
           generate(r, scene, &r->b, KVE_GROUP_AWAKE, KVE_SOURCE_ANY) &&
           generate(r, scene, &r->a, KVE_GROUP_AWAKE, KVE_SOURCE_AWAKE) && exchange(r, scene);
}

static bool open_and_well(struct kve_rehearsal *r)
{
    return kve_side_await_open(r, &r->a) && kve_side_await_open(r, &r->b) &&
           kve_side_check_held(r, &r->a) && kve_side_check_held(r, &r->b);
}

/* Also that there were any, if they have to. In fault runs the store is too small for promises. */
static bool judge_shares(struct kve_rehearsal *r, const struct kve_tally *tally, bool any)
{
    static const char *const labels[] = {
#define X(name, label) label,
        KVE_SOURCES(X)
#undef X
    };
    bool good = true;

    for (size_t i = 0; i < KVE_SOURCE_COUNT && r->fault == NULL; i++) {
        const struct kve_share *share = &tally->shares[i];
        if ((any || share->blocks > 0) && !kve_share_good(share)) {
            good = kve_rehearse_fail(
                r,
                "of %" PRIu64 " blocks that had to come from the store (%s puts) %" PRIu64
                " did; %" PRIu64 " of %" PRIu64 " prompts computed more than their last block",
                share->blocks, labels[i], share->store, share->incomplete, share->answers);
        }
    }
    return good;
}

static bool play_scene(struct kve_rehearsal *r, struct scene *scene)
{
    bool fingerprint = scene->cycle.naming == KVE_NAMING_FINGERPRINT;

    return kve_control_learn(r, r->a.weights) && kve_control_learn(r, scene->weights) &&
           kve_side_await_open(r, &r->a) && kve_side_await_open(r, &r->b) &&
           kve_side_fingerprint(r, &r->a, fingerprint) &&
           kve_side_fingerprint(r, &r->b, fingerprint) && exchange(r, scene) && go(r, scene) &&
           open_and_well(r) && after(r, scene) && judge_shares(r, &r->model->row, false);
}

static void add_tally(struct kve_tally *total, const struct kve_tally *row)
{
    total->outputs += row->outputs;
    total->identical += row->identical;
    total->tokens += row->tokens;
    total->store += row->store;
    for (size_t i = 0; i < KVE_SOURCE_COUNT; i++) {
        kve_share_add_all(&total->shares[i], &row->shares[i]);
    }
}

static bool play_cycle(struct kve_rehearsal *r, uint32_t step)
{
    struct scene scene = {.cycle = cycles[step % NCYCLES], .step = step};
    bool done;

    scene.cycle.moment = (scene.cycle.moment + step / NCYCLES) % (AFTER + 1);
    scene.mode = modes[(scene.cycle.mode + step / NCYCLES) % NMODES];
    if (scene.cycle.form == KVE_FORM_RELEASE || scene.cycle.form == KVE_FORM_KEEP) {
        scene.mode = modes[scene.cycle.mode]; /* it is part of the form */
    } else if (r->fault != NULL) {
        scene.mode = "keep"; /* loads outlive the pause, if nothing stops them */
    }
    scene.updates = kve_form_updates(scene.cycle.form);
    scene.weights = scene.updates ? ++r->last_weights : r->a.weights;
    r->model->row = (struct kve_tally){0};
    kve_rehearse_row(r, step, scene.cycle.form, scene.cycle.naming, "");
    done = play_scene(r, &scene);
    r->row->requests = r->model->row.outputs;
    add_tally(&r->model->total, &r->model->row);
    return done && (step + 1 < r->steps || judge_shares(r, &r->model->total, true));
}

const struct kve_play kve_play_model = {
    .step = "cycle",
    .steps = 20,
    .prepare = kve_model_prepare,
    .play = play_cycle,
    .head = kve_model_table_head,
    .row = kve_model_table_row,
    .end = kve_model_table_end,
    .cleanup = kve_model_cleanup,
};
