/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INSTANCE_FIXTURE_H
#define TESTS_INSTANCE_FIXTURE_H

#include "fake_rank.h"

#include "base/log.h"
#include "store/coordinator.h"

#include <string.h>

/* A fleet with the embedded coordinator and one or two scripted engines, under a simulated clock.
 */

/* How a request was answered; kept until the world closes. */
struct told {
    struct told *next;
    struct world *world;
    uint32_t times;
    kvb_status_t status;
    char message[700];
    enum kvp_side side;
    char at[KVP_AT_MAX];
    bool nothing_to_do, local_done;
    uint32_t blocks_held;
    enum kvp_external external;
    uint32_t ntags_woken, ntags_ignored;
    struct kvp_view view;
    bool has_view;
    uint64_t operation_id;
    uint64_t calls; /* the engine had had by then */
};

struct world {
    struct sim_sched sim;
    struct kvs_coordinator *coordinator;
    struct kvp_fleet *fleet;
    struct fake_engine engine; /* instance a */
    struct fake_engine other;  /* instance b, if world_add_other() */
    bool has_other;
    struct told *told;
    uint64_t changes;
    uint64_t retired; /* lineages reclaimed */
};

static inline void world_retire_(void *ctx, const struct kvb_lineage *lineages, uint32_t n)
{
    struct world *w = ctx;
    (void)lineages;
    w->retired += n;
}

static inline kvb_status_t world_lineages_(void *ctx, const char *tenant,
                                           struct kvb_lineage **lineages_p, uint32_t *n_p)
{
    (void)ctx;
    (void)tenant;
    *lineages_p = NULL;
    *n_p = 0;
    return KVB_OK;
}

static inline void world_changed_(void *ctx, const struct kvp_view *view)
{
    struct world *w = ctx;
    (void)view;
    w->changes++;
}

static inline void world_open_fleet(struct world *w, bool store, const char *unversioned)
{
    static const struct kvs_reclaim_ops reclaim = {.retire = world_retire_,
                                                   .lineages = world_lineages_};
    memset(w, 0, sizeof *w);
    kvb_log_threshold = getenv("KVPLANE_TEST_LOG") != NULL ? KVB_LOG_DEBUG : KVB_LOG_ERROR;
    sim_init(&w->sim, sim_seed(1));
    if (store) {
        kvb_status_t status =
            kvs_embedded_create(&w->sim.sched, 600000, &reclaim, w, &w->coordinator);
        kvb_assert(status == KVB_OK);
    }
    struct kvp_fleet_config config = {
        .sched = &w->sim.sched,
        .coordinator = w->coordinator,
        .bounds = {.drain_ms = 480000,
                   .transfer_ms = 60000,
                   .abort_ms = 200,
                   .slot_wait_ms = 30000,
                   .retire_ms = 10000,
                   .forward_retry_ms = 1000,
                   .forward_tries = 3},
        .unversioned_event = unversioned,
        .changed = world_changed_,
        .ctx = w,
    };
    kvb_status_t status = kvp_fleet_create(&config, &w->fleet);
    kvb_assert(status == KVB_OK);
}

static inline void world_open(struct world *w, uint32_t ranks, bool store)
{
    world_open_fleet(w, store, NULL);
    fake_engine_init(&w->engine, &w->sim, w->fleet, "a", ranks);
    fake_engine_attach(&w->engine);
    sim_settle(&w->sim);
}

static inline void world_add_other(struct world *w)
{
    fake_engine_init(&w->other, &w->sim, w->fleet, "b", 1);
    w->has_other = true;
    fake_engine_attach(&w->other);
    sim_settle(&w->sim);
}

static inline void world_close(struct world *w)
{
    w->engine.mute = false;
    fake_engine_drop_link(&w->engine);
    if (w->has_other) {
        fake_engine_drop_link(&w->other);
    }
    for (uint32_t i = 0; i < w->engine.nranks; i++) {
        kvb_sched_unpost(&w->engine.ranks[i].gone);
    }
    sim_settle(&w->sim);
    kvp_fleet_destroy(w->fleet);
    if (w->coordinator != NULL) {
        kvs_coordinator_destroy(w->coordinator);
    }
    for (struct told *told = w->told; told != NULL;) {
        struct told *next = told->next;
        kvb_assert(told->times == 1); /* every request is answered exactly once */
        free(told);
        told = next;
    }
    sim_cleanup(&w->sim);
}

static inline struct kvp_view world_view(struct world *w)
{
    struct kvp_view view;
    bool found = kvp_fleet_view(w->fleet, "a", &view);
    kvb_assert(found);
    return view;
}

static inline void world_told_(void *arg, const struct kvp_outcome *outcome)
{
    struct told *told = arg;
    kvb_assert(told->times == 0);
    told->times++;
    told->calls = told->world->engine.ncalls;
    told->status = outcome->status;
    told->side = outcome->side;
    snprintf(told->at, sizeof told->at, "%s", outcome->at != NULL ? outcome->at : "");
    told->nothing_to_do = outcome->nothing_to_do;
    told->local_done = outcome->local_done;
    told->blocks_held = outcome->blocks_held;
    told->external = outcome->external;
    told->ntags_woken = outcome->ntags_woken;
    told->ntags_ignored = outcome->ntags_ignored;
    snprintf(told->message, sizeof told->message, "%s", outcome->message);
    if (outcome->view != NULL) {
        told->view = *outcome->view;
        told->has_view = true;
    }
}

/* "sleep 1 keep optout", "wake weights v=3", "pause wait clear", "reset external", … */
static inline struct kvp_ask world_ask(const char *words)
{
    static const struct {
        const char *word;
        enum kvp_operation operation;
        const char *method;
    } verbs[] = {
        {"pause", KVP_OP_PAUSE, ""},
        {"resume", KVP_OP_RESUME, ""},
        {"sleep", KVP_OP_SLEEP, ""},
        {"wake", KVP_OP_WAKE, ""},
        {"release", KVP_OP_RELEASE_KV, ""},
        {"occupation", KVP_OP_RELEASE, ""},

        {"reset", KVP_OP_RESET, ""},
        {"start", KVP_OP_START_UPDATE, "start_weight_update"},
        {"update", KVP_OP_UPDATE, "update_weights"},
        {"finish", KVP_OP_FINISH_UPDATE, "finish_weight_update"},
        {"version", KVP_OP_SET_VERSION, "update_weight_version"},
        {"relay", KVP_OP_RELAY, "get_world_size"},
        {"tenant", KVP_OP_TENANT_RESET, ""},
    };
    struct kvp_ask ask = {.operation = KVP_OP_COUNT, .level = 1};
    char copy[256];
    snprintf(copy, sizeof copy, "%s", words);
    char *rest = NULL;
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        if (ask.operation == KVP_OP_COUNT) {
            for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
                if (strcmp(verbs[i].word, word) == 0) {
                    ask.operation = verbs[i].operation;
                    strcpy(ask.method, verbs[i].method);
                }
            }
            kvb_assert(ask.operation != KVP_OP_COUNT);
        } else if (strcmp(word, "wait") == 0) {
            ask.mode = KVP_MODE_WAIT;
        } else if (strcmp(word, "keep") == 0) {
            ask.mode = KVP_MODE_KEEP;
        } else if (strcmp(word, "retract") == 0) {
            ask.mode = KVP_MODE_RETRACT;
        } else if (strcmp(word, "clear") == 0) {
            ask.clear_cache = true;
        } else if (strcmp(word, "optout") == 0) {
            ask.reset_external = KVP_NO;
        } else if (strcmp(word, "external") == 0) {
            ask.reset_external = KVP_YES;
        } else if (strcmp(word, "preempt") == 0) {
            ask.reset_running_requests = true;
        } else if (strcmp(word, "at_once") == 0) {
            ask.at_once = true;
        } else if (strcmp(word, "keep_pause") == 0) {
            ask.keep_pause = true;
        } else if (strncmp(word, "v=", 2) == 0) {
            strcpy(ask.weight_version, word + 2);
        } else if (strncmp(word, "method=", 7) == 0) {
            strcpy(ask.method, word + 7);
        } else if (ask.operation == KVP_OP_SLEEP) {
            ask.level = (uint32_t)(word[0] - '0');
        } else {
            ask.tags_given = true;
            strcpy(ask.tags[ask.ntags++], word);
        }
    }
    if (ask.operation != KVP_OP_SLEEP) {
        ask.level = 0;
    }
    return ask;
}

static inline struct told *world_start_on(struct world *w, const char *instance, const char *words)
{
    struct kvp_ask ask = world_ask(words);
    struct told *told = calloc(1, sizeof *told);
    kvb_assert(told != NULL);
    told->world = w;
    told->next = w->told;
    w->told = told;
    kvb_status_t status =
        kvp_fleet_request(w->fleet, instance, &ask, "req", world_told_, told, &told->operation_id);
    kvb_assert(status == KVB_OK && told->times == 0);
    return told;
}

static inline struct told *world_start(struct world *w, const char *words)
{
    return world_start_on(w, "a", words);
}

static inline bool world_is_told_(void *arg)
{
    const struct told *told = arg;
    return told->times > 0;
}

/* Until it is answered, an hour of simulated time at most; aborts if it is not. */
static inline void world_await(struct world *w, struct told *told)
{
    bool answered = sim_run_until(&w->sim, world_is_told_, told, 2 * 3600 * 1000);
    kvb_assert(answered);
    sim_settle(&w->sim);
}

static inline struct told *world_do(struct world *w, const char *words)
{
    struct told *told = world_start(w, words);
    world_await(w, told);
    return told;
}

#endif
