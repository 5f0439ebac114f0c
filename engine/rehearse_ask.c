/* SPDX-License-Identifier: Apache-2.0 */
#include "rehearse.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RUN_MS        300000 /* bound of a run */
#define OPEN_MS       20000  /* bound until an instance takes part again */
#define CALL_MS       30000  /* bound of a call of the trainer's */
#define LOADING_TRIES 100    /* a millisecond each */

/* ---- an engine's own channel ---- */

bool kve_side_await(struct kve_rehearsal *r, struct kve_side *side, const char *const *names,
                    json_int_t id, json_t **event_p)
{
    kvb_status_t status =
        kve_child_await(&side->engine->child, names, id, kve_rehearse_bound(r, RUN_MS),
                        &kve_rehearse_stop, event_p);

    if (status == KVB_ERR_CANCELED) {
        return kve_rehearse_fail(r, "interrupted");
    }
    if (status != KVB_OK) {
        return kve_rehearse_fail(r, "engine %s: waiting for %s: %s", side->instance, names[0],
                                 kvb_status_text(status));
    }
    if (strcmp(json_string_value(json_object_get(*event_p, "event")), "error") == 0) {
        kve_rehearse_fail(r, "engine %s: %s", side->instance,
                          json_string_value(json_object_get(*event_p, "text")));
        json_decref(*event_p);
        return false;
    }
    return true;
}

bool kve_side_tell(struct kve_rehearsal *r, struct kve_side *side, json_t *command)
{
    kvb_status_t status = kve_child_tell(&side->engine->child, command);

    return status == KVB_OK || kve_rehearse_fail(r, "engine %s: cannot be told: %s", side->instance,
                                                 kvb_status_text(status));
}

bool kve_side_stats(struct kve_rehearsal *r, struct kve_side *side, json_t **stats_p)
{
    static const char *const names[] = {"stats", NULL};
    json_int_t id = ++r->last_id;
    json_t *event;

    if (!kve_side_tell(r, side, json_pack("{s:s,s:I}", "cmd", "stats", "id", id)) ||
        !kve_side_await(r, side, names, id, &event)) {
        return false;
    }
    *stats_p = json_incref(json_object_get(event, "stats"));
    json_decref(event);
    return true;
}

bool kve_side_obeys(struct kve_rehearsal *r, struct kve_side *side, json_t *command)
{
    static const char *const ok[] = {"ok", "error", NULL};
    json_int_t id = ++r->last_id;
    json_t *event;

    json_object_set_new(command, "id", json_integer(id));
    if (!kve_side_tell(r, side, command) || !kve_side_await(r, side, ok, id, &event)) {
        return false;
    }
    json_decref(event);
    return true;
}

bool kve_side_fingerprint(struct kve_rehearsal *r, struct kve_side *side, bool on)
{
    return kve_side_obeys(r, side, json_pack("{s:s,s:b}", "cmd", "fingerprint", "on", on));
}

bool kve_side_await_loading(struct kve_rehearsal *r, struct kve_side *side, uint32_t wanted)
{
    bool done = false;

    for (int i = 0; i < LOADING_TRIES && !done; i++) {
        struct timespec pause = {.tv_nsec = 1000000};
        json_t *object;
        if (!kve_side_stats(r, side, &object)) {
            return false;
        }
        done = json_integer_value(json_object_get(object, "loading")) >= wanted;
        json_decref(object);
        nanosleep(&pause, NULL);
    }
    return true;
}

bool kve_side_check_held(struct kve_rehearsal *r, struct kve_side *side)
{
    json_t *object;
    uint64_t held;

    if (!kve_side_stats(r, side, &object)) {
        return false;
    }
    held = (uint64_t)json_integer_value(json_object_get(object, "weights_id"));
    json_decref(object);
    if (held != side->weights) {
        return kve_rehearse_fail(r, "engine %s holds weights %" PRIu64 " instead of %" PRIu64,
                                 side->instance, held, side->weights);
    }
    return true;
}

/* ---- the trainer ---- */

static bool is_answer(const struct kve_rehearsal *r, enum kve_external external,
                      const json_t *answer)
{
    const char *said = json_string_value(json_object_get(answer, "external"));
    bool done = !json_is_false(json_object_get(answer, "success"));
    bool pending = said != NULL && strcmp(said, "pending") == 0;

    if (external == KVE_ANY || !r->away) {
        return done;
    }
    return external == KVE_CLEARED ? !done : done && (pending || !r->pending);
}

bool kve_side_post(struct kve_rehearsal *r, const struct kve_side *side, enum kve_external external,
                   double *ms, const json_t *body, const char *format, ...)
{
    uint64_t began_ns = kvb_now_ns(&kvb_clock_real);
    char path[256], *text;
    long http_status = 0;
    json_t *answer = NULL;
    kvb_status_t status;
    double took_ms;
    va_list args;

    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    status = kve_rest_call(side->daemon->rest, "POST", path, body, &http_status, &answer);
    took_ms = (double)(kvb_now_ns(&kvb_clock_real) - began_ns) / 1e6;
    if (ms != NULL) {
        *ms = (*ms < 0 ? 0 : *ms) + took_ms;
    }
    if (status == KVB_OK && http_status == 200 && is_answer(r, external, answer) &&
        took_ms < kve_rehearse_bound(r, CALL_MS)) {
        json_decref(answer);
        return true;
    }
    text = answer == NULL ? NULL : json_dumps(answer, JSON_COMPACT);
    kve_rehearse_fail(r, "%s: POST %s after %.0f ms%s: %s, %ld %.600s", r->where, path, took_ms,
                      r->pending ? ", with the coordinator away" : "",
                      status == KVB_OK ? "not the answer it should be" : kvb_status_text(status),
                      http_status, text == NULL ? "" : text);
    free(text);
    json_decref(answer);
    return false;
}

void kve_version_of(uint64_t weights, char out[64])
{
    snprintf(out, 64, "v%" PRIu64, weights);
}

bool kve_side_update_bracket(struct kve_rehearsal *r, struct kve_side *side, uint64_t weights,
                             enum kve_naming naming)
{
    char version[64];
    json_t *update = json_pack("{s:{s:I}}", "update_info", "weights_id", (json_int_t)weights);
    json_t *end;
    bool done;

    kve_version_of(weights, version);
    end = naming == KVE_NAMING_VERSION ? json_pack("{s:s}", "weight_version", version)
                                       : json_object();
    done = kve_side_post(r, side, KVE_ANY, NULL, NULL, "/start_weight_update?instance=%s",
                         side->instance) &&
           kve_side_post(r, side, KVE_ANY, NULL, update, "/update_weights?instance=%s",
                         side->instance) &&
           kve_side_post(r, side, KVE_ANY, NULL, end, "/finish_weight_update?instance=%s",
                         side->instance);
    json_decref(update);
    json_decref(end);
    return done;
}

bool kve_side_update_rpc(struct kve_rehearsal *r, struct kve_side *side, uint64_t weights,
                         enum kve_naming naming)
{
    char version[64];
    json_t *load = json_pack("{s:s,s:{s:I}}", "method", "reload_weights", "kwargs", "weights_id",
                             (json_int_t)weights);
    json_t *name;
    bool done =
        kve_side_post(r, side, KVE_ANY, NULL, load, "/collective_rpc?instance=%s", side->instance);

    kve_version_of(weights, version);
    name = json_pack("{s:s}", "new_version", version);
    if (done && naming == KVE_NAMING_VERSION) {
        done = kve_side_post(r, side, KVE_ANY, NULL, name, "/update_weight_version?instance=%s",
                             side->instance);
    }
    json_decref(load);
    json_decref(name);
    return done;
}

void kve_side_named(struct kve_side *side, uint64_t weights, enum kve_naming naming)
{
    side->weights = weights;
    switch (naming) {
    case KVE_NAMING_VERSION:
        kve_version_of(weights, side->name);
        if (side->unseen) {
            side->name[0] = '\0';
            side->unseen = false;
        }
        break;
    case KVE_NAMING_FINGERPRINT:
        snprintf(side->name, sizeof side->name, "fp%" PRIu64, weights);
        break;
    case KVE_NAMING_NONE:
        side->name[0] = '\0';
        break;
    }
}

bool kve_side_reset_external(struct kve_rehearsal *r, struct kve_side *side, double *ms)
{
    return kve_side_post(
        r, side, KVE_CLEARED, ms, NULL,
        "/reset_prefix_cache?reset_external=true&reset_running_requests=true&instance=%s",
        side->instance);
}

bool kve_side_lie_down(struct kve_rehearsal *r, struct kve_side *side, enum kve_form form,
                       const char *mode, double *ms)
{
    const char *name = side->instance;

    switch (form) {
    case KVE_FORM_SLEEP_1:
        return kve_side_post(r, side, KVE_LEFT, ms, NULL, "/pause?mode=%s&instance=%s", mode,
                             name) &&
               kve_side_post(r, side, KVE_LEFT, ms, NULL, "/sleep?level=1&instance=%s", name);
    case KVE_FORM_NAP:
        return kve_side_post(r, side, KVE_LEFT, ms, NULL, "/sleep?level=1&mode=%s&instance=%s",
                             mode, name);
    case KVE_FORM_SLEEP_2:
        return kve_side_post(r, side, KVE_LEFT, ms, NULL, "/sleep?level=2&mode=%s&instance=%s",
                             mode, name);
    case KVE_FORM_RELEASE:
        return kve_side_post(r, side, KVE_LEFT, ms, NULL, "/pause?mode=abort&instance=%s", name) &&
               kve_side_post(r, side, KVE_LEFT, ms, NULL, "/release_kv_cache_memory?instance=%s",
                             name);
    case KVE_FORM_PLAIN:
        return kve_side_post(r, side, KVE_LEFT, ms, NULL, "/pause?mode=abort&instance=%s", name);
    case KVE_FORM_KEEP:
        return kve_side_post(r, side, KVE_ANY, ms, NULL,
                             "/pause?mode=keep&clear_cache=false&instance=%s", name);
    case KVE_FORM_RESET:
        return kve_side_reset_external(r, side, ms);
    }
    return false;
}

bool kve_side_await_open(struct kve_rehearsal *r, struct kve_side *side)
{
    uint64_t deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, kve_rehearse_bound(r, OPEN_MS));
    char path[128];

    snprintf(path, sizeof path, "/v1/kvplane/instances/%s", side->instance);
    for (;;) {
        struct timespec pause = {.tv_nsec = 2000000};
        long http_status = 0;
        json_t *answer = NULL;
        kvb_status_t status =
            kve_rest_call(side->daemon->rest, "GET", path, NULL, &http_status, &answer);
        const json_t *lineage = json_object_get(answer, "lineage");
        /* Without the coordinator nobody learns what its name stands for. */
        bool named =
            side->name[0] == '\0' || r->away || json_object_get(lineage, "weights_name") != NULL;
        bool open = json_is_true(json_object_get(lineage, "open")) && named;
        char *text;
        if (open) {
            json_decref(answer);
            return true;
        }
        if (status != KVB_OK || http_status != 200 || kvb_now_ns(&kvb_clock_real) > deadline_ns) {
            text = answer == NULL ? NULL : json_dumps(answer, JSON_COMPACT);
            kve_rehearse_fail(r, "instance %s does not take part again%s: %s, %ld %.700s",
                              side->instance, side->name[0] == '\0' ? "" : " under its name",
                              kvb_status_text(status), http_status, text == NULL ? "" : text);
            free(text);
            json_decref(answer);
            return false;
        }
        json_decref(answer);
        nanosleep(&pause, NULL);
    }
}
