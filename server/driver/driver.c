/* SPDX-License-Identifier: Apache-2.0 */
#include "config_values.h"
#include "driver/engine.h"
#include "metrics.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * A server that is there is asked what it is, and says hello to the fleet as one rank, scheduler
 * and worker, whatever its own world is. One that is gone is let go, and looked for from then on:
 * what it is when it is back, it is asked anew. A server whose /health answers and whose calls do
 * not is not gone; each call has a bound.
 *
 * Nothing of an earlier life is echoed: whether it is the same process cannot be told.
 */

static void look(struct kvp_engine *engine);

const struct kvp_dialect *kvp_dialect_of(const char *kind)
{
    static const struct kvp_dialect *const dialects[] = {&kvp_dialect_vllm, &kvp_dialect_sglang};
    for (size_t i = 0; i < sizeof dialects / sizeof dialects[0]; i++) {
        if (strcmp(dialects[i]->kind, kind) == 0) {
            return dialects[i];
        }
    }
    return NULL;
}

/* ---- it goes ---- */

static void cancel_looks(struct kvp_engine *engine)
{
    const struct kvp_driver_config *config = &engine->driver->config;
    config->web->cancel(config->web_ctx, &engine->health);
    config->web->cancel(config->web_ctx, &engine->asked_load);
    kvb_sched_timer_clear(config->sched, &engine->bound);
}

static void tick_in(struct kvp_engine *engine, uint64_t ms)
{
    struct kvb_sched *sched = kvp_engine_sched(engine);
    if (!engine->driver->stopped) {
        kvb_sched_timer_set(sched, &engine->tick, kvb_deadline_in_ms(sched->clock, ms));
    }
}

/* all: also what moves memory is not waited for any more. */
static void go(struct kvp_engine *engine, const char *why, bool all)
{
    struct kvp_instance *instance = engine->instance;
    engine->leave = false;
    engine->misses = 0;
    if (instance == NULL) {
        kvp_engine_drop_calls(engine, all); /* of learning */
        return;
    }
    KVB_LOG(WARN, "engine server is gone", KVB_STR("instance", engine->name),
            KVB_STR("url", engine->url), KVB_STR("why", why));
    kvp_engine_drop_calls(engine, all);
    engine->instance = NULL;
    kvp_instance_rank_gone(instance, &engine->rank, why);
    tick_in(engine, engine->driver->config.health_interval_ms);
}

static void on_pump(struct kvb_event *event)
{
    struct kvp_engine *engine = kvb_container_of(event, struct kvp_engine, pump);
    if (engine->leave) {
        char why[sizeof engine->cause];
        memcpy(why, engine->cause, sizeof why);
        go(engine, why, false);
    }
    kvp_engine_run_lane(engine);
}

/* ---- it comes ---- */

static void on_learned(void *arg, kvb_status_t status, const union kvp_rank_reply *reply)
{
    struct kvp_engine *engine = arg;
    const struct kvp_known *known = &engine->known;
    char reason[256] = "";
    if (status != KVB_OK) {
        if (!engine->driver->stopped) {
            KVB_LOG_LIMITED(WARN, "engine server cannot be driven",
                            KVB_STR("instance", engine->name), KVB_STR("url", engine->url),
                            KVB_STR("cause", engine->cause), KVB_STATUS(status));
        }
        return;
    }
    engine->anew = false;
    struct kvb_link_hello hello = {.version = KVB_LINK_VERSION,
                                   .roles = KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER,
                                   .world_size = 1,
                                   .local_world_size = 1,
                                   .block_tokens = 16,
                                   .max_model_len = known->max_model_len,
                                   .state = reply->state.state};
    /* Its own cache is as it is: what is asked of it from now on is what counts. */
    hello.state.local_reset_done = true;
    strcpy(hello.instance, engine->name);
    strcpy(hello.tenant, engine->driver->tenant);
    (void)snprintf(hello.layout, sizeof hello.layout, "%s over http", engine->dialect->kind);
    strcpy(hello.model, known->model);
    status = kvp_fleet_hello(engine->driver->config.fleet, &hello, &engine->rank, reason,
                             sizeof reason, &engine->instance);
    if (status != KVB_OK) {
        KVB_LOG_LIMITED(ERROR, "engine server is not admitted", KVB_STR("instance", engine->name),
                        KVB_STR("reason", reason), KVB_STATUS(status));
        return;
    }
    memset(&engine->load, 0, sizeof engine->load);
    KVB_LOG(INFO, "engine server attached", KVB_STR("instance", engine->name),
            KVB_STR("kind", engine->dialect->kind), KVB_STR("url", engine->url));
}

/* ---- looking ---- */

static void on_load(struct kvp_web_call *web, const struct kvp_web_answer *answer)
{
    struct kvp_engine *engine = kvb_container_of(web, struct kvp_engine, asked_load);
    struct kvb_load load = {0};
    if (answer->status != KVB_OK || !kvp_answer_ok(answer) || engine->instance == NULL ||
        !engine->dialect->load(answer->body, answer->len, &load)) {
        return;
    }
    load.blocks_held = load.running; /* at least one each */
    bool waits = engine->reset_refused && load.blocks_held == 0;
    if (waits || memcmp(&load, &engine->load, sizeof load) != 0) {
        engine->reset_refused = engine->reset_refused && !waits;
        engine->load = load;
        kvp_instance_report(engine->instance, &engine->rank, &load);
    }
}

static void ask_load(struct kvp_engine *engine)
{
    const struct kvp_driver_config *config = &engine->driver->config;
    char url[KVP_ENGINE_URL_MAX + 64];
    if (engine->asked_load.impl == NULL) {
        (void)snprintf(url, sizeof url, "%s%s", engine->url, engine->dialect->load_path);
        config->web->start(config->web_ctx, &(struct kvp_web_ask){.url = url}, &engine->asked_load);
    }
}

/* Somebody else has put it to sleep, paused or woken it: what is known of it here is begun anew. */
static void on_watched(void *arg, kvb_status_t status, const union kvp_rank_reply *reply)
{
    struct kvp_engine *engine = arg;
    const struct kvp_known *was = &engine->watched;
    const struct kvp_known *is = &engine->known;
    (void)reply;
    if (status == KVB_OK && engine->instance != NULL && (was->falling | was->rising) == 0 &&
        (was->paused != is->paused || memcmp(was->tags, is->tags, sizeof is->tags) != 0)) {
        kvp_engine_say(engine, "its state was changed by somebody else: use the verbs here");
        engine->leave = true; /* not inside of its own call */
        kvb_sched_post(kvp_engine_sched(engine), &engine->pump);
    }
}

static void watch(struct kvp_engine *engine)
{
    if (engine->dialect->tells_state && kvb_list_empty(&engine->lane)) {
        engine->watched = engine->known;
        kvp_engine_ask_state(engine, false, on_watched, engine);
    }
}

static void missed(struct kvp_engine *engine, const char *why, bool at_once)
{
    const struct kvp_driver_config *config = &engine->driver->config;
    char text[160];
    engine->misses++;
    if (config->metrics != NULL) {
        const char *values[] = {engine->name};
        kvb_series_add(kvb_series(config->metrics, KVP_M_ENGINE_MISSES, values), 1);
    }
    if (engine->instance == NULL) {
        KVB_LOG_LIMITED(WARN, "engine server is not there yet", KVB_STR("instance", engine->name),
                        KVB_STR("url", engine->url), KVB_STR("why", why));
    }
    if (at_once || engine->misses >= config->misses) {
        (void)snprintf(text, sizeof text, "%s/health: %.100s", "", why);
        go(engine, text, false);
    }
}

static void on_health(struct kvp_web_call *web, const struct kvp_web_answer *answer)
{
    struct kvp_engine *engine = kvb_container_of(web, struct kvp_engine, health);
    struct kvb_sched *sched = kvp_engine_sched(engine);
    bool busy = !kvb_list_empty(&engine->lane) || !kvb_list_empty(&engine->beside);
    char why[32];
    kvb_sched_timer_clear(sched, &engine->bound);
    tick_in(engine, engine->driver->config.health_interval_ms);
    engine->anew = engine->anew || answer->status == KVB_ERR_REFUSED;
    if (answer->status != KVB_OK) {
        missed(engine, answer->why, answer->status == KVB_ERR_REFUSED);
    } else if (answer->http_status == 503 && busy && engine->dialect->busy_503) {
        kvp_engine_alive(engine);
    } else if (answer->http_status >= 500 || answer->http_status == 404) {
        (void)snprintf(why, sizeof why, "it answers %u", answer->http_status);
        missed(engine, why, answer->http_status == 503);
    } else {
        engine->misses = 0;
        kvp_engine_alive(engine);
        if (engine->instance != NULL) {
            ask_load(engine);
            watch(engine);
        } else if (kvb_list_empty(&engine->lane)) {
            kvp_engine_ask_state(engine, true, on_learned, engine);
        }
    }
}

static void on_health_bound(struct kvb_timer *timer)
{
    struct kvp_engine *engine = kvb_container_of(timer, struct kvp_engine, bound);
    const struct kvp_driver_config *config = &engine->driver->config;
    config->web->cancel(config->web_ctx, &engine->health);
    tick_in(engine, config->health_interval_ms);
    missed(engine, "no answer within its bound", false);
}

static void look(struct kvp_engine *engine)
{
    const struct kvp_driver_config *config = &engine->driver->config;
    char url[KVP_ENGINE_URL_MAX + 16];
    if (engine->health.impl != NULL || engine->driver->stopped) {
        return;
    }
    kvb_sched_timer_clear(config->sched, &engine->tick);
    kvb_sched_timer_set(config->sched, &engine->bound,
                        kvb_deadline_in_ms(config->sched->clock, config->health_ms));
    (void)snprintf(url, sizeof url, "%s/health", engine->url);
    config->web->start(config->web_ctx, &(struct kvp_web_ask){.url = url}, &engine->health);
}

void kvp_engine_look(struct kvp_engine *engine)
{
    /* One that is under way may have been asked before what is to be found out. */
    engine->driver->config.web->cancel(engine->driver->config.web_ctx, &engine->health);
    look(engine);
}

static void on_tick(struct kvb_timer *timer)
{
    struct kvp_engine *engine = kvb_container_of(timer, struct kvp_engine, tick);
    const struct kvp_driver_config *config = &engine->driver->config;
    config->web->cancel(config->web_ctx, &engine->asked_load); /* has had a whole interval */
    look(engine);
}

/* ---- create and destroy ---- */

static void engine_init(struct kvp_engine *engine, struct kvp_driver *driver,
                        const struct kvp_engine_spec *spec)
{
    engine->driver = driver;
    engine->dialect = kvp_dialect_of(spec->kind);
    kvb_assert(engine->dialect != NULL); /* checked with the configuration */
    strcpy(engine->name, spec->name);
    strcpy(engine->url, spec->url);
    engine->foreign = (struct kvp_foreign){.kind = engine->dialect->kind,
                                           .url = engine->url,
                                           .sleeps_once = engine->dialect->sleeps_once};
    engine->rank = (struct kvp_rank){.ops = &kvp_engine_rank_ops,
                                     .impl = engine,
                                     .foreign = &engine->foreign,
                                     .roles = KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER};
    kvb_list_init(&engine->lane);
    kvb_list_init(&engine->beside);
    kvb_list_init(&engine->laters);
    kvb_event_init(&engine->pump, on_pump);
    kvb_timer_init(&engine->tick, on_tick);
    kvb_timer_init(&engine->bound, on_health_bound);
    engine->anew = true;
    engine->health.done = on_health;
    engine->asked_load.done = on_load;
    tick_in(engine, 0);
}

kvb_status_t kvp_driver_create(const struct kvp_driver_config *config, struct kvp_driver **driver_p)
{
    struct kvp_driver *driver =
        calloc(1, sizeof *driver + config->nspecs * sizeof driver->engines[0]);
    if (driver == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    driver->config = *config;
    driver->config.specs = NULL;
    (void)snprintf(driver->tenant, sizeof driver->tenant, "%s", config->tenant);
    driver->n = config->nspecs;
    for (uint32_t i = 0; i < driver->n; i++) {
        engine_init(&driver->engines[i], driver, &config->specs[i]);
    }
    *driver_p = driver;
    return KVB_OK;
}

void kvp_driver_stop(struct kvp_driver *driver)
{
    driver->stopped = true;
    for (uint32_t i = 0; i < driver->n; i++) {
        struct kvp_engine *engine = &driver->engines[i];
        cancel_looks(engine);
        go(engine, "the daemon is shutting down", true);
        kvb_sched_timer_clear(kvp_engine_sched(engine), &engine->tick);
        kvb_sched_unpost(&engine->pump);
    }
}

void kvp_driver_destroy(struct kvp_driver *driver)
{
    if (driver != NULL) {
        kvb_assert(driver->stopped);
        free(driver);
    }
}
