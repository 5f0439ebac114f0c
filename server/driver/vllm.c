/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/engine.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * vLLM's routes for development (VLLM_SERVER_DEV_MODE=1). What its versions differ in is found by
 * asking. What has to be seen to:
 *
 * - /sleep pauses by itself, so it is told mode=keep: whoever was to be aborted was by the pause.
 * - /sleep at another level while asleep changes nothing, and says 200 (foreign.sleeps_once). While
 *   partly awake only versions that answer in JSON heed it; others are woken whole before.
 * - /wake_up with a tag that is awake wakes nothing of what it names beside it: one tag at a time.
 *   With anything it lifts a mere pause, and with the last tag any: then it is paused again
 *   (mode=keep), for who is to run says /resume.
 * - /resume never asks whether memory is there; so it is only sent where it is known to be.
 * - /is_sleeping is true of a mere pause, too; what is asleep only a gauge tells, and that only
 * from the last sleep or wake that succeeded.
 * - the oldest answer 200 without a body, whatever came of it.
 */

#define RESET_TRIES    20
#define RESET_AGAIN_MS 50

/* ---- what it says ---- */

/* True or false of a member; -1: it is not there. */
static int flag_of(const struct kvp_web_answer *answer, const char *name)
{
    json_t *json = kvp_answer_json(answer);
    const json_t *flag = json_object_get(json, name);
    int value = json_is_boolean(flag) ? json_is_true(flag) : -1;
    json_decref(json);
    return value;
}

/* The sum of all series of a name in a Prometheus text, with `label` among their labels (NULL:
 * any). -1: there is none. */
static double metric(const char *text, const char *name, const char *label)
{
    double sum = -1;
    size_t len = strlen(name);
    for (const char *line = text; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        if (strncmp(line, name, len) == 0 && (line[len] == '{' || line[len] == ' ')) {
            size_t labels = line[len] == '{' ? strcspn(line + len, "}\n") : 0;
            const char *value = line + len + labels;
            bool whole = line[len] != '{' || *value == '}';
            if (whole &&
                (label == NULL || memmem(line + len, labels, label, strlen(label)) != NULL)) {
                double number = strtod(value + (*value == '}'), NULL);
                sum = (sum < 0 ? 0 : sum) + (number > 0 ? number : 0);
            }
        }
        line = end != NULL ? end + 1 : NULL;
    }
    return sum;
}

static bool load_of(const char *body, size_t len, struct kvb_load *load_p)
{
    double running = metric(body, "vllm:num_requests_running", NULL);
    double waiting = metric(body, "vllm:num_requests_waiting", NULL);
    (void)len;
    if (running < 0 || running > UINT32_MAX || waiting > UINT32_MAX) {
        return false;
    }
    load_p->running = (uint32_t)running;
    load_p->waiting = waiting > 0 ? (uint32_t)waiting : 0;
    return true;
}

static void all_resident(struct kvp_known *known)
{
    known->tags[KVP_TAG_WEIGHTS] = known->tags[KVP_TAG_KV] = KVB_RESIDENT;
    known->falling = known->rising = 0;
}

/* ---- pause ---- */

static void on_paused(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    if (kvp_answer_ok(answer)) {
        kvp_engine_call_paused(call, NULL);
    } else if (answer->http_status == 404) { /* then it is idle when nothing runs */
        call->engine->known.no_pause = true;
        kvp_engine_call_drained(call, kvp_engine_call_paused);
    } else {
        kvp_engine_call_fail(call, answer);
    }
}

static void begin_pause(struct kvp_engine_call *call)
{
    if (call->engine->known.no_pause) {
        kvp_engine_call_drained(call, kvp_engine_call_paused);
    } else {
        kvp_engine_call_post(call, on_paused, NULL, "/pause?mode=%s&clear_cache=false",
                             kvb_pause_mode_text(call->mode));
    }
}

/* ---- reset ---- */

static void begin_reset(struct kvp_engine_call *call);

/* What it shares by a connector is to be cleared as well: no rule of lineages holds there. */
static bool outside(const struct kvp_known *known)
{
    return known->left && !known->no_connector;
}

static void begin_reset_again(struct kvp_engine_call *call, const struct kvp_web_answer *none)
{
    (void)none;
    begin_reset(call);
}

static void end_busy(struct kvp_engine_call *call, uint32_t held)
{
    if (call->preempt && ++call->tries < RESET_TRIES) { /* what was preempted lets go soon */
        kvp_engine_call_after(call, RESET_AGAIN_MS, begin_reset_again);
        return;
    }
    const union kvp_rank_reply reply = {
        .reset_local = {.status = KVB_ERR_BUSY, .blocks_held = held}};
    kvp_engine_call_end_with(call, KVB_ERR_BUSY, &reply);
}

static void begin_reset_inside(struct kvp_engine_call *call);

/* What it shares by its connector is cleared with it, or it has none: from here on all is anew. */
static void end_reset(struct kvp_engine_call *call)
{
    call->engine->known.left = false;
    kvp_engine_call_end(call, KVB_OK);
}

/* It has not said whether it was: it was, if nothing held a block. */
static void on_reset_load(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvb_load load = {0};
    if (!kvp_answer_ok(answer) || !load_of(answer->body, answer->len, &load)) {
        kvp_engine_say(call->engine, "this version does not say whether its cache was reset");
        end_busy(call, 1);
    } else if (load.running > 0) {
        end_busy(call, load.running);
    } else {
        end_reset(call);
    }
}

/* The one answer is for both: whether blocks are held, or its connector could not. */
static void on_reset_inside(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    if (!kvp_answer_ok(answer)) {
        kvp_engine_call_fail(call, answer);
    } else if (flag_of(answer, "success") == 0) {
        end_busy(call, 1);
    } else if (call->engine->known.connector) {
        kvp_engine_say(call->engine, "what its connector shares could not be cleared");
        kvp_engine_call_end(call, KVB_ERR_UNAVAILABLE);
    } else { /* older ones say so where there is none */
        end_reset(call);
    }
}

static void on_reset(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    const struct kvp_known *known = &call->engine->known;
    int success = flag_of(answer, "success");
    if (answer->http_status == 500 && call->preempt) { /* its way to say that some are held yet */
        kvp_engine_say(call->engine, "%.200s", answer->body);
        end_busy(call, 1);
    } else if (!kvp_answer_ok(answer)) {
        kvp_engine_call_fail(call, answer);
    } else if (success >= 0) {
        if (success != 0) {
            end_reset(call);
        } else if (outside(known)) {
            begin_reset_inside(call);
        } else {
            end_busy(call, 1);
        }
    } else if (known->paused && known->mode != KVB_PAUSE_KEEP) {
        end_reset(call);
    } else {
        kvp_engine_call_get(call, on_reset_load, "/metrics");
    }
}

static void begin_reset_inside(struct kvp_engine_call *call)
{
    kvp_engine_call_post(call, on_reset_inside, NULL,
                         "/reset_prefix_cache?reset_running_requests=%s",
                         call->preempt ? "true" : "false");
}

static void begin_reset(struct kvp_engine_call *call)
{
    kvp_engine_call_post(call, on_reset, NULL, "/reset_prefix_cache?reset_running_requests=%s%s",
                         call->preempt ? "true" : "false",
                         outside(&call->engine->known) ? "&reset_external=true" : "");
}

/* ---- release ---- */

static const char *cannot_release(const struct kvp_engine *engine, unsigned tags)
{
    const struct kvp_known *known = &engine->known;
    bool weights = (tags & KVP_TAG_BIT(KVP_TAG_WEIGHTS)) != 0;
    bool kv_here = known->tags[KVP_TAG_KV] == KVB_RESIDENT;
    if (known->no_sleep) {
        return KVP_FOREIGN_NO_RELEASE;
    }
    if (weights && kv_here && (tags & KVP_TAG_BIT(KVP_TAG_KV)) == 0) {
        return "vLLM releases weights only together with kv_cache: use /sleep";
    }
    if (!weights && known->no_release_kv && known->tags[KVP_TAG_WEIGHTS] == KVB_RESIDENT) {
        return "this version of vLLM has no /release_kv_cache_memory: use /sleep";
    }
    return NULL;
}

/* What it is to be then. */
static void fallen(struct kvp_engine_call *call)
{
    struct kvp_known *known = &call->engine->known;
    for (unsigned tag = 0; tag < KVP_ENGINE_TAGS; tag++) {
        if ((call->tags & KVP_TAG_BIT(tag)) != 0) {
            known->tags[tag] =
                (call->offload & KVP_TAG_BIT(tag)) != 0 ? KVB_OFFLOADED : KVB_DISCARDED;
        }
    }
    known->falling &= ~call->tags;
}

static void on_asleep(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    int sleeping = kvp_answer_ok(answer) ? flag_of(answer, "is_sleeping") : -1;
    if (sleeping == 0) {
        all_resident(&call->engine->known);
        kvp_engine_say(call->engine, "it answered that it sleeps, and says that it does not");
        kvp_engine_call_end(call, KVB_ERR_REFUSED);
        return;
    }
    if (sleeping < 0) {
        kvp_engine_say(call->engine, "%s: it does not say whether it sleeps", call->route);
        kvp_engine_call_end(call, KVB_ERR_TIMEOUT);
        return;
    }
    fallen(call);
    kvp_engine_call_end(call, KVB_OK);
}

static void on_released(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvp_known *known = &call->engine->known;
    if (!kvp_answer_ok(answer)) { /* how far it came cannot be asked */
        kvp_engine_call_not_moved(call, call->tags, answer);
        return;
    }
    known->tells = known->tells || answer->len > 0;
    known->paused = true;
    if (call->told) { /* late, but now it is known */
        fallen(call);
    }
    kvp_engine_call_get(call, on_asleep, "/is_sleeping");
}

static void sleep_now(struct kvp_engine_call *call)
{
    struct kvp_known *known = &call->engine->known;
    bool weights = (call->tags & KVP_TAG_BIT(KVP_TAG_WEIGHTS)) != 0;
    bool offload = weights ? (call->offload & KVP_TAG_BIT(KVP_TAG_WEIGHTS)) != 0
                           : known->tags[KVP_TAG_WEIGHTS] != KVB_DISCARDED; /* as they are */
    kvp_engine_call_moves(call, call->tags, true);
    kvp_engine_call_post(call, on_released, NULL, "/sleep?level=%d&mode=keep", offload ? 1 : 2);
}

static void on_held(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    if (!kvp_answer_ok(answer)) {
        kvp_engine_call_fail(call, answer);
    } else {
        sleep_now(call);
    }
}

static void on_whole(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    if (!kvp_answer_ok(answer)) {
        kvp_engine_call_not_moved(call, KVP_TAG_BIT(KVP_ENGINE_TAGS) - 1, answer);
        return;
    }
    /* All of it goes, to where each was or is to be. */
    struct kvp_known *known = &call->engine->known;
    for (unsigned tag = 0; tag < KVP_ENGINE_TAGS; tag++) {
        if ((call->tags & KVP_TAG_BIT(tag)) == 0) {
            call->tags |= KVP_TAG_BIT(tag);
            call->offload |= call->were[tag] == KVB_OFFLOADED ? KVP_TAG_BIT(tag) : 0;
        }
    }
    all_resident(known);
    if (known->no_pause) {
        sleep_now(call);
    } else {
        kvp_engine_call_post(call, on_held, NULL, "/pause?mode=keep&clear_cache=false");
    }
}

static void release_kv(struct kvp_engine_call *call)
{
    kvp_engine_call_moves(call, call->tags, true);
    kvp_engine_call_post(call, on_released, NULL, "/release_kv_cache_memory");
}

static void on_kv_held(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    if (!kvp_answer_ok(answer)) {
        kvp_engine_call_fail(call, answer);
    } else {
        release_kv(call);
    }
}

static void on_kv_back(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    if (!kvp_answer_ok(answer)) {
        kvp_engine_call_not_moved(call, call->tags, answer);
        return;
    }
    all_resident(&call->engine->known);
    kvp_engine_call_post(call, on_kv_held, NULL, "/pause?mode=keep&clear_cache=false");
}

/* It is known not to be there. */
static bool lies(const struct kvp_known *known, unsigned tag)
{
    return known->tags[tag] == KVB_OFFLOADED || known->tags[tag] == KVB_DISCARDED;
}

static void begin_release(struct kvp_engine_call *call)
{
    struct kvp_known *known = &call->engine->known;
    unsigned kv = KVP_TAG_BIT(KVP_TAG_KV);
    bool partly =
        !kvp_known_resident(known) && !(lies(known, KVP_TAG_WEIGHTS) && lies(known, KVP_TAG_KV));
    if (call->tags == kv && kvp_known_resident(known)) {
        release_kv(call);
    } else if (call->tags == kv && known->tags[KVP_TAG_WEIGHTS] == KVB_RESIDENT) {
        /* No sleep, which would take the weights; and what is asked for is heeded only when all is
         * awake. It resumes by that. */
        kvp_engine_call_moves(call, kv, false);
        kvp_engine_call_post(call, on_kv_back, NULL, "/wake_up?tags=kv_cache");
    } else if (partly && !known->tells) { /* the oldest heed a sleep only when all is awake */
        kvp_engine_call_moves(call, KVP_TAG_BIT(KVP_TAG_WEIGHTS) | kv, false);
        kvp_engine_call_post(call, on_whole, NULL, "/wake_up");
    } else {
        sleep_now(call);
    }
}

/* ---- restore ---- */

static void wake_next(struct kvp_engine_call *call);

static void on_paused_again(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    if (!kvp_answer_ok(answer)) { /* it runs, which nobody expects: asked for anew */
        kvp_engine_say(call->engine, "%s: it resumed by itself, and did not pause again",
                       call->route);
        call->engine->known.paused = false;
        kvp_engine_call_end(call, KVB_ERR_TIMEOUT);
        return;
    }
    kvp_engine_call_end(call, KVB_OK);
}

static void on_woken_state(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvp_known *known = &call->engine->known;
    int sleeping = kvp_answer_ok(answer) ? flag_of(answer, "is_sleeping") : -1;
    bool all = kvp_known_resident(known);
    if (sleeping < 0) {
        kvp_engine_say(call->engine, "%s: it does not say whether it sleeps", call->route);
        kvp_engine_call_moves(call, call->tags, false);
        kvp_engine_call_end(call, KVB_ERR_TIMEOUT);
    } else if (sleeping == 0) {
        all_resident(known);
        if (known->paused && !known->no_pause) {
            kvp_engine_call_post(call, on_paused_again, NULL, "/pause?mode=keep&clear_cache=false");
        } else {
            kvp_engine_call_end(call, KVB_OK);
        }
    } else if (!all) {
        kvp_engine_call_end(call, KVB_OK);
    } else if (call->tries++ == 0) { /* it took what was named for nothing: everything, then */
        call->step = KVP_ENGINE_TAGS;
        wake_next(call);
    } else {
        for (unsigned tag = 0; tag < KVP_ENGINE_TAGS; tag++) {
            known->tags[tag] =
                (call->tags & KVP_TAG_BIT(tag)) != 0 ? KVB_UNKNOWN : known->tags[tag];
        }
        kvp_engine_say(call->engine, "it answered that it wakes, and says that it sleeps");
        kvp_engine_call_end(call, KVB_ERR_REFUSED);
    }
}

static void on_woken(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvp_known *known = &call->engine->known;
    if (!kvp_answer_ok(answer)) {
        kvp_engine_call_not_moved(
            call, call->step < KVP_ENGINE_TAGS ? KVP_TAG_BIT(call->step) : call->tags, answer);
        return;
    }
    if (call->step < KVP_ENGINE_TAGS) {
        known->tags[call->step] = KVB_RESIDENT;
        known->rising &= ~KVP_TAG_BIT(call->step);
        call->step++;
        wake_next(call);
    } else {
        all_resident(known);
        kvp_engine_call_get(call, on_woken_state, "/is_sleeping");
    }
}

static bool needs_waking(const struct kvp_engine_call *call, unsigned tag)
{
    const struct kvp_known *known = &call->engine->known;
    return (call->tags & KVP_TAG_BIT(tag)) != 0 && known->tags[tag] != KVB_RESIDENT;
}

static void wake_next(struct kvp_engine_call *call)
{
    if (call->tries > 0) {
        kvp_engine_call_moves(call, call->tags, false);
        kvp_engine_call_post(call, on_woken, NULL, "/wake_up");
        return;
    }
    while (call->step < KVP_ENGINE_TAGS && !needs_waking(call, call->step)) {
        call->step++;
    }
    if (call->step == KVP_ENGINE_TAGS) {
        kvp_engine_call_get(call, on_woken_state, "/is_sleeping");
        return;
    }
    kvp_engine_call_moves(call, KVP_TAG_BIT(call->step), false);
    kvp_engine_call_post(call, on_woken, NULL, "/wake_up?tags=%s",
                         kvp_engine_tag_names[call->step]);
}

static void begin_restore(struct kvp_engine_call *call)
{
    for (unsigned tag = 0; tag < KVP_ENGINE_TAGS; tag++) {
        if (needs_waking(call, tag)) {
            wake_next(call);
            return;
        }
    }
    kvp_engine_call_end(call, KVB_OK); /* handed over anew: nothing is */
}

/* ---- state ---- */

static void on_models(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvp_known *known = &call->engine->known;
    json_t *json = kvp_answer_ok(answer) ? kvp_answer_json(answer) : NULL;
    const json_t *first = json_array_get(json_object_get(json, "data"), 0);
    const char *model = json_string_value(json_object_get(first, "id"));
    json_int_t len = json_integer_value(json_object_get(first, "max_model_len"));
    (void)snprintf(known->model, sizeof known->model, "%.255s", model != NULL ? model : "");
    kvb_utf8_clean(known->model); /* it may be anything, and was cut */
    known->max_model_len = len > 0 && len <= UINT32_MAX ? (uint32_t)len : 0;
    json_decref(json);
    kvp_engine_call_end_state(call);
}

static void on_world_size(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    json_t *json = kvp_answer_ok(answer) ? kvp_answer_json(answer) : NULL;
    json_int_t size = json_integer_value(json_object_get(json, "world_size"));
    call->engine->foreign.world_size = size > 0 && size <= KVB_RANKS_MAX ? (uint32_t)size : 1;
    json_decref(json);
    kvp_engine_call_get(call, on_models, "/v1/models");
}

/* No answer but a "no" says that it cannot sleep. */
static void on_server_info(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    const char *text = kvp_answer_ok(answer) ? answer->body : "";
    call->engine->known.no_sleep = strstr(text, "\"enable_sleep_mode\":false") != NULL ||
                                   strstr(text, "\"enable_sleep_mode\": false") != NULL;
    call->engine->foreign.no_release = call->engine->known.no_sleep;
    call->engine->known.no_connector = strstr(text, "\"kv_transfer_config\":null") != NULL ||
                                       strstr(text, "\"kv_transfer_config\": null") != NULL;
    call->engine->known.connector =
        !call->engine->known.no_connector && strstr(text, "\"kv_transfer_config\":") != NULL;
    kvp_engine_call_get(call, on_world_size, "/get_world_size");
}

static void end_state(struct kvp_engine_call *call)
{
    if (call->learning) {
        kvp_engine_call_get(call, on_server_info, "/server_info?config_format=json");
    } else {
        kvp_engine_call_end_state(call);
    }
}

/*
 * It sleeps or is paused; which, and of what, is for its gauge to say where it is not known. Of a
 * move that may have been done the gauge counts only if it says that it was: it is set at the
 * very end. One that brings memory back is repeated: twice does no harm. Of one that is not known
 * yet nothing else says that memory is there, and the gauge of versions without
 * /release_kv_cache_memory says so after any wake.
 */
static void on_gauge(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvp_known *known = &call->engine->known;
    const char *text = kvp_answer_ok(answer) ? answer->body : "";
    bool offloaded =
        metric(text, "vllm:engine_sleep_state", "sleep_state=\"weights_offloaded\"") > 0;
    bool discarded = metric(text, "vllm:engine_sleep_state", "sleep_state=\"discard_all\"") > 0;
    bool by_gauge = call->learning || kvp_known_resident(known);
    bool awake =
        !call->learning || (!known->no_release_kv &&
                            metric(text, "vllm:engine_sleep_state", "sleep_state=\"awake\"") > 0);
    for (unsigned tag = 0; tag < KVP_ENGINE_TAGS; tag++) {
        unsigned bit = KVP_TAG_BIT(tag);
        enum kvb_residency deep =
            tag == KVP_TAG_WEIGHTS && offloaded ? KVB_OFFLOADED : KVB_DISCARDED;
        if ((known->falling & bit) != 0) {
            known->tags[tag] = offloaded || discarded ? deep : KVB_UNKNOWN;
            known->falling &= offloaded || discarded ? ~bit : ~0u;
        } else if (by_gauge && (known->rising & bit) == 0) {
            known->tags[tag] = offloaded || discarded ? deep : awake ? KVB_RESIDENT : KVB_UNKNOWN;
        }
    }
    end_state(call);
}

static void on_is_paused(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvp_known *known = &call->engine->known;
    int paused = kvp_answer_ok(answer) ? flag_of(answer, "is_paused") : -1;
    known->no_pause = answer->http_status == 404;
    known->paused = paused >= 0 ? paused != 0 : known->paused || call->asleep;
    bool moved = known->falling != 0 || known->rising != 0;
    if (!call->asleep) {
        all_resident(known);
        end_state(call);
    } else if (moved || call->learning || kvp_known_resident(known)) {
        kvp_engine_call_get(call, on_gauge, "/metrics");
    } else {
        end_state(call);
    }
}

static void on_is_sleeping(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    int sleeping = kvp_answer_ok(answer) ? flag_of(answer, "is_sleeping") : -1;
    if (answer->http_status == 404) {
        kvp_engine_say(call->engine,
                       "it has no /is_sleeping: start it with VLLM_SERVER_DEV_MODE=1");
        kvp_engine_call_end(call, KVB_ERR_UNSUPPORTED);
    } else if (sleeping < 0) {
        kvp_engine_call_fail(call, answer);
    } else {
        call->asleep = sleeping != 0;
        kvp_engine_call_get(call, on_is_paused, "/is_paused");
    }
}

/* Asked with the wrong method it does nothing, and says whether it is there. */
static void on_release_kv(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    call->engine->known.no_release_kv = answer->http_status == 404;
    kvp_engine_call_get(call, on_is_sleeping, "/is_sleeping");
}

static void begin_state(struct kvp_engine_call *call)
{
    if (call->learning) { /* nothing of an earlier life */
        memset(&call->engine->known, 0, sizeof call->engine->known);
        kvp_engine_call_get(call, on_release_kv, "/release_kv_cache_memory");
    } else {
        kvp_engine_call_get(call, on_is_sleeping, "/is_sleeping");
    }
}

/* ---- relays ---- */

/* SGLang's {"rid", "abort_all"}: one request, or all. */
static char *abort_body(const char *body, size_t len)
{
    json_t *json = len > 0 ? json_loadb(body, len, 0, NULL) : NULL;
    const char *rid = json_string_value(json_object_get(json, "rid"));
    bool one = rid != NULL && rid[0] != '\0' && !json_is_true(json_object_get(json, "abort_all"));
    json_t *out = one ? json_pack("{s:[s]}", "request_ids", rid) : json_object();
    char *text = json_dumps(out, JSON_COMPACT);
    json_decref(out);
    json_decref(json);
    return text;
}

static const struct kvp_relay relays[] = {
    {.method = "weights_checker", .path = "/weight_checker"},
    {.method = "load_lora_adapter", .path = "/v1/load_lora_adapter"},
    {.method = "unload_lora_adapter", .path = "/v1/unload_lora_adapter"},
    {.method = "init_communicator", .path = "/init_communicator/"}, /* TRL's server */
    {.method = "update_named_param", .path = "/update_named_param/"},
    {.method = "batch_update_named_params", .path = "/batch_update_named_params/"},
    {.method = "close_communicator", .path = "/close_communicator/"},
    {.method = "start_weight_update", .path = "/start_weight_update", .optional = true},
    {.method = "start_draft_weight_update", .path = "/start_draft_weight_update"},
    {.method = "finish_weight_update", .path = "/finish_weight_update", .optional = true},
    {.method = "abort_request", .path = "/abort_requests", .body = abort_body},
    {.method = "health_generate", .never = true},
    {.method = "server_info", .path = "/server_info?config_format=json", .get = true},
    {.method = "weight_info", .path = "/weight_info", .get = true},
    {.method = "model_info", .never = true},
    {.method = NULL},
};

const struct kvp_dialect kvp_dialect_vllm = {
    .kind = "vllm",
    .sleeps_once = true,
    .tells_state = true,
    .done = kvp_answer_ok,
    .pause = begin_pause,
    .resume_path = "/resume",
    .reset = begin_reset,
    .release = begin_release,
    .restore = begin_restore,
    .state = begin_state,
    .cannot_release = cannot_release,
    .relays = relays,
    .load_path = "/metrics",
    .load = load_of,
};
