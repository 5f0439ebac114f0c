/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/engine.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * SGLang's routes. It tells nothing of its state: what is known is what it acknowledged, and one
 * that attaches is taken to be awake. Giving up what is given up, or bringing back what is there,
 * may end its scheduler; so each is only named where it is known to be otherwise, and where that is
 * not known (a move was sent, and its connection broke, or it failed) nothing is, until it is
 * started anew. It
 * knows no `wait`: that is asked of its load here. Whether weights that are released are kept is a
 * matter of how it was launched.
 */

#define RESET_TRIES    20
#define RESET_AGAIN_MS 100

static json_int_t number_of(const json_t *object, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(object, name));
    return value > 0 && value < UINT32_MAX ? value : 0;
}

/* Of one replica, or of several: their sum. */
static bool load_of(const char *body, size_t len, struct kvb_load *load_p)
{
    json_t *json = len > 0 ? json_loadb(body, len, 0, NULL) : NULL;
    json_int_t all = 0, waiting = 0;
    bool told = json_is_array(json) ? json_array_size(json) > 0 : json_is_object(json);
    for (size_t i = 0; i < (json_is_array(json) ? json_array_size(json) : 1); i++) {
        const json_t *one = json_is_array(json) ? json_array_get(json, i) : json;
        told = told && json_is_integer(json_object_get(one, "num_reqs"));
        all += number_of(one, "num_reqs");
        waiting += number_of(one, "num_waiting_reqs");
    }
    json_decref(json);
    if (told) {
        load_p->running = (uint32_t)(all > waiting ? all - waiting : 0);
        load_p->waiting = (uint32_t)waiting;
    }
    return told;
}

/* 200, and not {"success":false}. */
static bool done(const struct kvp_web_answer *answer)
{
    json_t *json = kvp_answer_ok(answer) ? kvp_answer_json(answer) : NULL;
    bool failed = !kvp_answer_ok(answer) || json_is_false(json_object_get(json, "success"));
    json_decref(json);
    return !failed;
}

/* ---- pause ---- */

static void begin_pause(struct kvp_engine_call *call);

static void on_continued(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    if (!done(answer)) {
        kvp_engine_call_fail(call, answer);
        return;
    }
    call->engine->known.paused = false;
    begin_pause(call);
}

/* One that came between the last look and the pause would be frozen: it is let run. */
static void on_frozen_load(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvb_load load = {0};
    if (kvp_answer_ok(answer) && load_of(answer->body, answer->len, &load) && load.running > 0) {
        kvp_engine_call_post(call, on_continued, "{}", "/continue_generation");
    } else {
        kvp_engine_call_paused(call, NULL);
    }
}

static void on_paused(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvp_known *known = &call->engine->known;
    call->moves = false;
    if (answer->http_status == 404 && !known->no_pause) {
        known->no_pause = true;
        kvp_engine_call_drained(call, kvp_engine_call_paused);
    } else if (!done(answer)) {
        kvp_engine_call_fail(call, answer);
    } else if (call->mode == KVB_PAUSE_WAIT) {
        known->paused = true;
        kvp_engine_call_get(call, on_frozen_load, "/get_load");
    } else {
        kvp_engine_call_paused(call, NULL);
    }
}

static void pause_now(struct kvp_engine_call *call, const struct kvp_web_answer *none)
{
    (void)none;
    call->moves = true; /* late it would stop, unseen, what goes on again */
    kvp_engine_call_post(call, on_paused,
                         call->mode == KVB_PAUSE_ABORT ? "{\"mode\":\"abort\"}"
                                                       : "{\"mode\":\"in_place\"}",
                         "/pause_generation");
}

static void begin_pause(struct kvp_engine_call *call)
{
    struct kvp_known *known = &call->engine->known;
    if (known->no_pause) {
        kvp_engine_call_drained(call, kvp_engine_call_paused);
    } else if (call->mode == KVB_PAUSE_WAIT) {
        kvp_engine_call_drained(call, pause_now);
    } else {
        pause_now(call, NULL);
    }
}

/* ---- reset ---- */

static void flush(struct kvp_engine_call *call, const struct kvp_web_answer *none);

static void on_flushed(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    const union kvp_rank_reply busy = {.reset_local = {.status = KVB_ERR_BUSY, .blocks_held = 1}};
    if (done(answer)) {
        kvp_engine_call_end(call, KVB_OK);
    } else if (answer->http_status != 400) {
        kvp_engine_call_fail(call, answer);
    } else if (call->preempt && ++call->tries < RESET_TRIES) { /* what was aborted lets go soon */
        kvp_engine_call_after(call, RESET_AGAIN_MS, flush);
    } else {
        kvp_engine_say(call->engine, "/flush_cache: %.200s", answer->body);
        kvp_engine_call_end_with(call, KVB_ERR_BUSY, &busy);
    }
}

static void flush(struct kvp_engine_call *call, const struct kvp_web_answer *none)
{
    (void)none;
    kvp_engine_call_post(call, on_flushed, NULL, "/flush_cache");
}

static void on_retracted(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    call->moves = false;
    if (!done(answer)) {
        kvp_engine_call_fail(call, answer);
    } else {
        flush(call, NULL);
    }
}

static void begin_reset(struct kvp_engine_call *call)
{
    const struct kvp_known *known = &call->engine->known;
    if (call->preempt && known->paused && known->mode == KVB_PAUSE_KEEP && !known->no_pause) {
        call->moves = true;
        kvp_engine_call_post(call, on_retracted, "{\"mode\":\"retract\"}", "/pause_generation");
    } else {
        flush(call, NULL);
    }
}

/* ---- release, restore ---- */

static const char *cannot_release(const struct kvp_engine *engine, unsigned tags)
{
    (void)engine;
    (void)tags;
    return NULL;
}

/* {"tags":[…]} of those; static. */
static const char *tags_body(unsigned tags)
{
    static const char *const bodies[] = {
        "{\"tags\":[]}",
        "{\"tags\":[\"weights\"]}",
        "{\"tags\":[\"kv_cache\"]}",
        "{\"tags\":[\"weights\",\"kv_cache\"]}",
    };
    return bodies[tags & 3];
}
_Static_assert(KVP_TAG_WEIGHTS == 0 && KVP_TAG_KV == 1, "their bits are the places above");

/* False: some of these may be here or not; the call has ended. */
static bool sure_of(struct kvp_engine_call *call)
{
    const struct kvp_known *known = &call->engine->known;
    if (((known->falling | known->rising) & call->tags) == 0) {
        return true;
    }
    kvp_engine_say(call->engine,
                   "a move of its memory broke off, and it does not tell what came of "
                   "it: restart that server");
    kvp_engine_call_end(call, KVB_ERR_BAD_STATE);
    return false;
}

static void on_released(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvp_known *known = &call->engine->known;
    if (!done(answer)) {
        kvp_engine_call_not_moved(call, call->tags, answer);
        return;
    }
    for (unsigned tag = 0; tag < KVP_ENGINE_TAGS; tag++) {
        if ((call->tags & KVP_TAG_BIT(tag)) != 0) {
            known->tags[tag] =
                (call->offload & KVP_TAG_BIT(tag)) != 0 ? KVB_OFFLOADED : KVB_DISCARDED;
        }
    }
    known->falling &= ~call->tags;
    kvp_engine_call_end(call, KVB_OK);
}

static void begin_release(struct kvp_engine_call *call)
{
    struct kvp_known *known = &call->engine->known;
    unsigned tags = 0;
    if (!sure_of(call)) {
        return;
    }
    for (unsigned tag = 0; tag < KVP_ENGINE_TAGS; tag++) {
        unsigned bit = call->tags & KVP_TAG_BIT(tag);
        if (known->tags[tag] == KVB_OFFLOADED || known->tags[tag] == KVB_DISCARDED) {
            known->tags[tag] = bit == 0                     ? known->tags[tag]
                               : (call->offload & bit) != 0 ? KVB_OFFLOADED
                                                            : KVB_DISCARDED;
        } else {
            tags |= bit;
        }
    }
    call->tags = tags;
    if (tags == 0) {
        kvp_engine_call_end(call, KVB_OK);
        return;
    }
    kvp_engine_call_moves(call, tags, true);
    kvp_engine_call_post(call, on_released, tags_body(tags), "/release_memory_occupation");
}

static void on_restored(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvp_known *known = &call->engine->known;
    if (!done(answer)) {
        kvp_engine_call_not_moved(call, call->tags, answer);
        return;
    }
    known->rising &= ~call->tags;
    for (unsigned tag = 0; tag < KVP_ENGINE_TAGS; tag++) {
        if ((call->tags & KVP_TAG_BIT(tag)) != 0) {
            known->tags[tag] = KVB_RESIDENT;
        }
    }
    kvp_engine_call_end(call, KVB_OK);
}

static void begin_restore(struct kvp_engine_call *call)
{
    struct kvp_known *known = &call->engine->known;
    if (!sure_of(call)) {
        return;
    }
    for (unsigned tag = 0; tag < KVP_ENGINE_TAGS; tag++) {
        if (known->tags[tag] == KVB_RESIDENT) {
            call->tags &= ~KVP_TAG_BIT(tag);
        }
    }
    if (call->tags == 0) {
        kvp_engine_call_end(call, KVB_OK);
        return;
    }
    kvp_engine_call_moves(call, call->tags, false);
    kvp_engine_call_post(call, on_restored, tags_body(call->tags), "/resume_memory_occupation");
}

/* ---- state ---- */

static void end_learning(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvp_engine *engine = call->engine;
    json_t *json = kvp_answer_ok(answer) ? kvp_answer_json(answer) : NULL;
    json_int_t tp = number_of(json, "tp_size");
    json_int_t len = number_of(json, "context_length");
    engine->foreign.world_size = tp > 0 && tp <= KVB_RANKS_MAX ? (uint32_t)tp : 1;
    engine->known.max_model_len = (uint32_t)len;
    json_decref(json);
    kvp_engine_call_end_state(call);
}

static void on_model_info(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvp_known *known = &call->engine->known;
    if (answer->http_status == 404 && call->step++ == 0) { /* newer ones have it under this */
        kvp_engine_call_get(call, on_model_info, "/model_info");
        return;
    }
    json_t *json = kvp_answer_ok(answer) ? kvp_answer_json(answer) : NULL;
    const char *model = json_string_value(json_object_get(json, "model_path"));
    (void)snprintf(known->model, sizeof known->model, "%.255s", model != NULL ? model : "");
    kvb_utf8_clean(known->model); /* it may be anything, and was cut */
    json_decref(json);
    kvp_engine_call_get(call, end_learning, call->step == 0 ? "/get_server_info" : "/server_info");
}

/* What a move that broke off has left can be asked of nobody. */
static void begin_state(struct kvp_engine_call *call)
{
    struct kvp_known *known = &call->engine->known;
    if (call->learning && call->engine->anew) {
        memset(known, 0, sizeof *known);
    }
    if (call->learning) {
        kvp_engine_call_get(call, on_model_info, "/get_model_info");
    } else {
        kvp_engine_call_end_state(call);
    }
}

/* ---- relays ---- */

/* vLLM's {"request_ids"}: without any, all. */
static char *abort_body(const char *body, size_t len)
{
    json_t *json = len > 0 ? json_loadb(body, len, 0, NULL) : NULL;
    const char *id = json_string_value(json_array_get(json_object_get(json, "request_ids"), 0));
    json_t *out = json_pack("{s:s, s:b}", "rid", id != NULL ? id : "", "abort_all", id == NULL);
    char *text = json_dumps(out, JSON_COMPACT);
    json_decref(out);
    json_decref(json);
    return text;
}

static const struct kvp_relay relays[] = {
    {.method = "start_weight_update"}, /* it has no such thing: each update is one call */
    {.method = "start_draft_weight_update"},
    {.method = "finish_weight_update"},
    {.method = "reset_mm_cache"}, /* its flush is of all of them */
    {.method = "reset_encoder_cache"},
    {.method = "abort_requests", .path = "/abort_request", .body = abort_body},
    {.method = "health_generate", .path = "/health_generate", .get = true},
    {.method = "server_info", .path = "/get_server_info", .get = true},
    {.method = "model_info", .path = "/get_model_info", .get = true},
    {.method = "weight_info", .path = "/get_weight_version", .get = true},
    {.method = NULL},
};

const struct kvp_dialect kvp_dialect_sglang = {
    .kind = "sglang",
    .busy_503 = true,
    .done = done,
    .pause = begin_pause,
    .resume_path = "/continue_generation",
    .resume_body = "{}",
    .reset = begin_reset,
    .release = begin_release,
    .restore = begin_restore,
    .state = begin_state,
    .cannot_release = cannot_release,
    .relays = relays,
    .load_path = "/get_load",
    .load = load_of,
};
