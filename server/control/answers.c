/* SPDX-License-Identifier: Apache-2.0 */
#include "control/internal.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

static const char *mode_text(enum kvp_pause_kind mode)
{
    switch (mode) {
    case KVP_MODE_ABORT:
        return "abort";
    case KVP_MODE_WAIT:
        return "wait";
    case KVP_MODE_KEEP:
        return "keep";
    case KVP_MODE_RETRACT:
        return "retract";
    }
    KVB_UNREACHABLE("pause mode");
}

/* What every success may say besides. */
static json_t *with_common(json_t *json, const struct kvp_outcome *outcome)
{
    if (outcome->external == KVP_EXTERNAL_PENDING) {
        kvp_json_set_text(json, "external", "pending");
    }
    if (outcome->nothing_to_do) {
        (void)json_object_set_new(json, "nothing_to_do", json_true());
    }
    return json;
}

json_t *kvp_answer_paused(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    const struct kvp_params *params = &pending->params;
    enum kvp_pause_kind mode = params->wait_for_inflight_requests ? KVP_MODE_WAIT : params->mode;
    bool clear = !kvp_given(params, KVP_PARAM_clear_cache) || params->clear_cache;

    return with_common(json_pack("{s:s, s:s, s:b}", "status", "paused", "mode", mode_text(mode),
                                 "clear_cache", clear),
                       outcome);
}

json_t *kvp_answer_resumed(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    (void)pending;
    return with_common(json_pack("{s:s}", "status", "resumed"), outcome);
}

/* The level in force: a sleep that found a deeper one changed nothing. */
static uint32_t level_of(const struct kvp_view *view)
{
    uint32_t level = 0;
    for (uint32_t i = 0; view != NULL && i < view->ntags; i++) {
        bool kv = strcmp(view->tags[i].tag, "kv_cache") == 0;
        if (view->tags[i].residency == KVB_DISCARDED && !kv) {
            level = 2;
        } else if (view->tags[i].residency != KVB_RESIDENT && level == 0) {
            level = 1;
        }
    }
    return level;
}

json_t *kvp_answer_sleeping(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    const struct kvp_params *params = &pending->params;
    uint32_t level = kvp_given(params, KVP_PARAM_level) ? params->level : KVP_SLEEP_LEVEL_DEFAULT;

    if (outcome->nothing_to_do && level_of(outcome->view) > level) {
        level = level_of(outcome->view);
    }
    return with_common(json_pack("{s:s, s:i, s:s}", "status", "sleeping", "level", (int)level,
                                 "mode", mode_text(params->mode)),
                       outcome);
}

static json_t *names_json(const char (*names)[KVB_NAME_MAX], uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) {
        (void)json_array_append_new(list, json_string(names[i]));
    }
    return list;
}

json_t *kvp_answer_woken(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    (void)pending;
    bool asleep = outcome->view != NULL && outcome->view->is_sleeping;
    return with_common(
        json_pack("{s:s, s:o, s:o}", "status", asleep ? "sleeping" : "awake", "tags_woken",
                  names_json(outcome->tags_woken, outcome->ntags_woken), "tags_ignored",
                  names_json(outcome->tags_ignored, outcome->ntags_ignored)),
        outcome);
}

json_t *kvp_answer_released(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    (void)pending;
    return with_common(json_pack("{s:s}", "status", "kv_cache_released"), outcome);
}

static const char *external_text(enum kvp_external external)
{
    switch (external) {
    case KVP_EXTERNAL_NONE:
        return "not_asked";
    case KVP_EXTERNAL_DONE:
        return "done";
    case KVP_EXTERNAL_PENDING:
        return "pending";
    case KVP_EXTERNAL_FAILED:
        return "failed";
    }
    KVB_UNREACHABLE("external");
}

const char *kvp_outcome_message(const struct kvp_outcome *outcome)
{
    return outcome->message != NULL && outcome->message[0] != '\0'
               ? outcome->message
               : kvb_status_text(outcome->status);
}

bool kvp_reset_succeeded(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    return outcome->status == KVB_OK &&
           !(pending->params.reset_external && (outcome->external == KVP_EXTERNAL_PENDING ||
                                                outcome->external == KVP_EXTERNAL_FAILED));
}

json_t *kvp_answer_reset(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    bool success = kvp_reset_succeeded(pending, outcome);
    json_t *json = json_pack("{s:b, s:b, s:s}", "success", success, "local", outcome->local_done,
                             "external", external_text(outcome->external));
    if (!success) {
        kvp_json_set_text(json, "message", kvp_outcome_message(outcome));
        kvp_json_set_side(json, outcome->status != KVB_OK ? outcome->side : KVP_SIDE_COORDINATOR,
                          outcome->at);
        kvp_json_set_u64(json, "blocks_held", outcome->blocks_held);
    }
    return json;
}

/* The engine's JSON, whatever kind of value; text that is not JSON comes as a string. */
static json_t *relayed_json(const struct kvp_outcome *outcome)
{
    if (outcome->relay_body == NULL || outcome->relay_len == 0) {
        return NULL;
    }
    json_t *json = json_loadb(outcome->relay_body, outcome->relay_len, JSON_DECODE_ANY, NULL);
    return json != NULL ? json : json_stringn(outcome->relay_body, outcome->relay_len);
}

static json_t *with_relayed(json_t *json, const struct kvp_pending *pending,
                            const struct kvp_outcome *outcome)
{
    json_t *relayed = relayed_json(outcome);

    if (relayed != NULL && !json_is_null(relayed)) {
        (void)json_object_set(json, "result", relayed);
    }
    json_decref(relayed);
    kvp_json_set_text(json, "weight_version", pending->params.weight_version);
    return with_common(json, outcome);
}

json_t *kvp_answer_relayed(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    return with_relayed(json_pack("{s:s}", "message", pending->action->text), pending, outcome);
}

/* One shape for all of them: none of their clients fails on a member too many. */
json_t *kvp_answer_plain(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    json_t *json = json_pack("{s:s, s:b, s:s}", "status", "ok", "success", 1, "message",
                             pending->action->text);

    if (outcome->ntags_woken > 0) {
        (void)json_object_set_new(json, "tags_woken",
                                  names_json(outcome->tags_woken, outcome->ntags_woken));
    }
    if (outcome->ntags_ignored > 0) {
        (void)json_object_set_new(json, "tags_ignored",
                                  names_json(outcome->tags_ignored, outcome->ntags_ignored));
    }
    return with_relayed(json, pending, outcome);
}

json_t *kvp_answer_aborted(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    json_t *relayed = relayed_json(outcome);
    json_int_t aborted = json_integer_value(json_object_get(relayed, "aborted"));

    (void)pending;
    json_decref(relayed);
    return with_common(json_pack("{s:s, s:I}", "status", "aborted", "aborted", aborted), outcome);
}

json_t *kvp_answer_version_set(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    return with_common(
        json_pack("{s:b, s:s}", "success", 1, "new_version", pending->params.new_version), outcome);
}

json_t *kvp_answer_rpc_results(const struct kvp_pending *pending, const struct kvp_outcome *outcome)
{
    json_t *relayed = relayed_json(outcome);
    json_t *results = json_object_get(relayed, "results");

    (void)pending;
    if (json_is_array(results)) {
        json_incref(results);
    } else if (json_is_array(relayed)) {
        results = json_incref(relayed);
    } else {
        results = json_array();
        if (relayed != NULL) {
            (void)json_array_append(results, relayed);
        }
    }
    json_decref(relayed);
    return with_common(json_pack("{s:o}", "results", results), outcome);
}
