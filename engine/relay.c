/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Calls that the daemon passes on: weight updates and what engines answer about themselves. Each
 * has an effect that can be seen: it is counted by its name (get_reference_stats), and those that
 * bring weights write them. New weights come as an id: in the body, its update_info or its kwargs,
 * or, if none is given, as the next number. kvplane passes that on unread.
 */
#include "parts.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct relayed {
    struct kve_engine *engine;
    struct kvplane_call *call;
    const json_t *body; /* an object, or NULL */
    uint64_t session;   /* of the call */
};
typedef void (*relay_fn)(const struct relayed *relayed);

static void reply(const struct relayed *relayed, bool weights_written, json_t *answer)
{
    if (answer == NULL) {
        kve_answer_relay(relayed->engine, relayed->call, KVPLANE_ERR_NO_MEMORY, weights_written,
                         NULL, "out of memory");
        return;
    }
    kve_answer_relay(relayed->engine, relayed->call, KVPLANE_OK, weights_written, answer, NULL);
    json_decref(answer);
}

static void refuse(const struct relayed *relayed, int result, const char *message)
{
    kve_answer_relay(relayed->engine, relayed->call, result, false, NULL, message);
}

/* The id of the new weights wherever the call carries it. */
static uint64_t new_weights(const struct relayed *relayed)
{
    const json_t *const places[] = {relayed->body, json_object_get(relayed->body, "update_info"),
                                    json_object_get(relayed->body, "kwargs")};
    uint64_t last = 0;

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const json_t *id = json_object_get(places[i], "weights_id");
        if (json_is_integer(id) && json_integer_value(id) > 0) {
            return (uint64_t)json_integer_value(id);
        }
    }
    for (size_t i = 0; i < relayed->engine->nseen; i++) {
        last = relayed->engine->seen[i] > last ? relayed->engine->seen[i] : last;
    }
    return last + 1;
}

static bool write_weights(const struct relayed *relayed)
{
    struct kve_engine *engine = relayed->engine;

    if (engine->weights.fd < 0) {
        refuse(relayed, KVPLANE_ERR_BAD_STATE, "the weights are not in memory: wake them first");
        return false;
    }
    kve_weights_write(engine, new_weights(relayed));
    /* An engine that was not paused has gone on caching since the change began. Its end is another
     * leaving, and the reset after that opens the cache again. */
    engine->cache_closed = true;
    engine->weights_written = true;
    return true;
}

static void set_version(struct kve_engine *engine, const json_t *version)
{
    if (json_is_string(version)) {
        snprintf(engine->version, sizeof engine->version, "%s", json_string_value(version));
        kvb_utf8_clean(engine->version); /* it may have been cut within a character */
    }
}

static void init_weight_transfer_engine(const struct relayed *relayed)
{
    if (!json_is_object(json_object_get(relayed->body, "init_info"))) {
        refuse(relayed, KVPLANE_ERR_INVALID, "init_info is missing");
        return;
    }
    relayed->engine->transfers++;
    reply(relayed, false, json_pack("{s:s}", "message", "Weight transfer initialized"));
}

static void start_weight_update(const struct relayed *relayed)
{
    relayed->engine->weight_change_running = true;
    reply(relayed, false, json_pack("{s:s}", "message", "Weight update started"));
}

static void load_weights(const struct relayed *relayed)
{
    if (write_weights(relayed)) {
        set_version(relayed->engine, json_object_get(relayed->body, "weight_version"));
        reply(relayed, true, json_pack("{s:s}", "message", "Weights updated"));
    }
}

/* vLLM's update_info, TensorRT-LLM's weights, prime-rl's weight_dir. */
static void update_weights(const struct relayed *relayed)
{
    static const char *const any[] = {"update_info", "weights", "weight_dir"};

    for (size_t i = 0; i < sizeof any / sizeof any[0]; i++) {
        if (json_object_get(relayed->body, any[i]) != NULL) {
            load_weights(relayed);
            return;
        }
    }
    refuse(relayed, KVPLANE_ERR_INVALID, "update_info is missing");
}

/* SGLang's: `reset_tensors` writes garbage, the others read. */
static void check_weights(const struct relayed *relayed)
{
    const char *action = json_string_value(json_object_get(relayed->body, "action"));

    if (action != NULL && strcmp(action, "reset_tensors") == 0) {
        load_weights(relayed);
        return;
    }
    reply(relayed, false,
          json_pack("{s:b,s:s}", "success", 1, "message", "Weights are as they were"));
}

/* What it has nothing to do for: it is counted. */
static void take_note(const struct relayed *relayed)
{
    reply(relayed, false, json_pack("{s:b}", "success", 1));
}

static void generate(const struct relayed *relayed)
{
    if (relayed->engine->kv_cache.fd < 0 || relayed->engine->weights.fd < 0) {
        refuse(relayed, KVPLANE_ERR_BAD_STATE, "memory is not resident");
        return;
    }
    reply(relayed, false, json_pack("{s:i}", "tokens", 1));
}

static void finish_weight_update(const struct relayed *relayed)
{
    relayed->engine->weight_change_running = false;
    set_version(relayed->engine, json_object_get(relayed->body, "weight_version"));
    reply(relayed, false, json_pack("{s:s}", "message", "Weight update finished"));
}

static void update_weight_version(const struct relayed *relayed)
{
    set_version(relayed->engine, json_object_get(relayed->body, "new_version"));
    reply(relayed, false,
          json_pack("{s:b,s:s}", "success", 1, "new_version", relayed->engine->version));
}

static void weight_info(const struct relayed *relayed)
{
    reply(relayed, false, json_pack("{s:s}", "weight_version", relayed->engine->version));
}

static void get_world_size(const struct relayed *relayed)
{
    reply(relayed, false,
          json_pack("{s:i}", "world_size", (int)kve_world(&relayed->engine->options)));
}

static void abort_requests(const struct relayed *relayed)
{
    uint32_t n = kve_requests_abort(relayed->engine);

    reply(relayed, false, json_pack("{s:s,s:i}", "status", "aborted", "aborted", (int)n));
}

/* ---- collective_rpc ---- */

static void reload_weights(const struct relayed *relayed)
{
    if (write_weights(relayed)) {
        reply(relayed, true, json_pack("{s:[n]}", "results"));
    }
}

static void stats(const struct relayed *relayed)
{
    reply(relayed, false, json_pack("{s:[o]}", "results", kve_engine_stats(relayed->engine)));
}

/* A run that a relayed call waits for. */
static void run_done(void *arg, struct kve_run *run)
{
    const struct relayed *relayed = arg;
    const struct kve_engine *engine = relayed->engine;

    if (relayed->session == engine->session && !engine->closing && kvplane_attached(engine->kv)) {
        reply(relayed, false, json_pack("{s:[o]}", "results", kve_counts_json(&run->counts)));
    }
}

static void run(const struct relayed *relayed)
{
    const json_t *kwargs = json_object_get(relayed->body, "kwargs");
    const json_t *first = json_object_get(kwargs, "first");
    const json_t *count = json_object_get(kwargs, "count");
    const json_t *cache = json_object_get(kwargs, "use_cache");
    struct relayed *copy = malloc(sizeof *copy);
    struct kve_run *started;
    kvb_status_t status = KVB_ERR_INVALID;

    if (relayed->engine->options.rank != 0) { /* rank 0 tells it what to do */
        free(copy);
        reply(relayed, false, json_pack("{s:[n]}", "results"));
        return;
    }
    if (copy == NULL) {
        refuse(relayed, KVPLANE_ERR_NO_MEMORY, "out of memory");
        return;
    }
    *copy = *relayed;
    copy->body = NULL;
    if (json_integer_value(first) >= 0 && json_integer_value(first) <= UINT32_MAX &&
        json_integer_value(count) > 0 && json_integer_value(count) <= UINT32_MAX) {
        status = kve_engine_run(relayed->engine, NULL, (uint32_t)json_integer_value(first),
                                (uint32_t)json_integer_value(count), !json_is_false(cache), false,
                                run_done, NULL, copy, &started);
    }
    if (status != KVB_OK) {
        free(copy);
        refuse(relayed, (int)status, "first and count must name requests of the trace");
        return;
    }
    started->owned = copy; /* also of a run that the engine's end cuts off */
}

struct relay_row {
    const char *name;
    relay_fn fn;
};
static const struct relay_row methods[] = {
    {"init_weight_transfer_engine", init_weight_transfer_engine},
    {"start_weight_update", start_weight_update},
    {"start_draft_weight_update", start_weight_update},
    {"update_weights", update_weights},
    {"update_weights_from_disk", load_weights},
    {"update_weights_from_tensor", load_weights},
    {"update_weights_from_distributed", load_weights},
    {"update_weights_from_ipc", load_weights},
    {"areal_update_weights", load_weights},
    {"areal_update_weights_xccl", load_weights},
    {"update_named_param", load_weights},
    {"batch_update_named_params", load_weights},
    {"weights_checker", check_weights},
    {"load_lora_adapter", take_note},
    {"unload_lora_adapter", take_note},
    {"init_weights_update_group", take_note},
    {"destroy_weights_update_group", take_note},
    {"areal_init_weights_update_group", take_note},
    {"areal_set_update_weight_meta", take_note},
    {"init_communicator", take_note},
    {"close_communicator", take_note},
    {"reset_mm_cache", take_note},
    {"reset_encoder_cache", take_note},
    {"health_generate", generate},
    {"abort_request", abort_requests},
    {"finish_weight_update", finish_weight_update},
    {"update_weight_version", update_weight_version},
    {"weight_info", weight_info},
    {"get_world_size", get_world_size},
    {"abort_requests", abort_requests},
};
/* The last two change no weights, which kvplane sees from how their names begin. */
static const struct relay_row rpcs[] = {
    {"reload_weights", reload_weights},
    {"update_weights", reload_weights},
    {"get_reference_stats", stats},
    {"check_reference_run", run},
};

static relay_fn find(const struct relay_row *rows, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return rows[i].fn;
        }
    }
    return NULL;
}

/* Of calls that it knows. Out of memory: one count less. */
static void count_call(struct kve_engine *engine, const char *method)
{
    json_int_t n = json_integer_value(json_object_get(engine->calls, method));
    (void)json_object_set_new(engine->calls, method, json_integer(n + 1));
}

void kve_relay(void *ctx, struct kvplane_call *call, const char *method, const char *body,
               size_t len)
{
    static const char collective[] = "collective_rpc";
    struct kve_engine *engine = ctx;
    json_t *object = len == 0 ? NULL : json_loadb(body, len, 0, NULL);
    const struct relayed relayed = {engine, call, json_is_object(object) ? object : NULL,
                                    engine->session};
    relay_fn fn;

    engine->changed = true;
    if (engine->options.misbehave.calls[KVE_CALL_relay].how == KVE_REFUSE &&
        kve_misbehave_next(&engine->options.misbehave, KVE_CALL_relay) == KVE_REFUSE) {
        kvplane_answer_relay(call, KVPLANE_ERR_IO, false, "told to refuse", 14);
        json_decref(object);
        return;
    }
    if (strncmp(method, collective, sizeof collective - 1) == 0) {
        /* "collective_rpc:NAME", or plain with the name in the body */
        const char *name = method[sizeof collective - 1] == ':'
                               ? method + sizeof collective
                               : json_string_value(json_object_get(relayed.body, "method"));
        fn = name == NULL ? NULL : find(rpcs, sizeof rpcs / sizeof rpcs[0], name);
    } else {
        fn = find(methods, sizeof methods / sizeof methods[0], method);
    }
    if (fn == NULL) {
        refuse(&relayed, KVPLANE_ERR_UNSUPPORTED, "the reference engine has no such call");
    } else {
        count_call(engine, method);
        fn(&relayed);
    }
    json_decref(object);
}
