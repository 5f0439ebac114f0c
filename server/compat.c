/* SPDX-License-Identifier: Apache-2.0 */
#include "compat.h"

#include "metrics.h"

#include <stdlib.h>
#include <string.h>

struct kvp_compat {
    struct kvb_metrics *own;
    struct kvb_metrics *of;
    /* loop thread: of each instance what was shown last */
    uint32_t n;
    struct shown {
        char instance[KVB_NAME_MAX];
        char model[sizeof((struct kvp_view *)0)->model];
        const char *operation; /* that runs; NULL: none of those shown */
    } shown[KVP_INSTANCES_MAX];
};

static const struct kvb_metric table[KVP_COMPAT_COUNT] = {
#define X(id, kind, exposed, text, ...)                                                            \
    [KVP_C_##id] = {.name = (exposed), .type = KVB_##kind, .help = (text), .labels = {__VA_ARGS__}},
    KVP_COMPAT(X)
#undef X
};

/* Each series is the sum of ours whose labels have `with`, without those that have `without`. */
static const struct {
    enum kvp_compat_metric which;
    const char *labels[2];
    enum kvp_metric of;
    const char *with;
    const char *without;
} sums[] = {
#define OPERATION(name, label)                                                                     \
    {KVP_C_OPERATION_SECONDS, {name}, KVP_M_OPERATION_SECONDS, "operation=\"" label "\"", NULL},   \
        {KVP_C_RL_OPERATIONS,                                                                      \
         {name, "success"},                                                                        \
         KVP_M_OPERATIONS,                                                                         \
         "operation=\"" label "\",outcome=\"ok\"",                                                 \
         NULL},                                                                                    \
    {                                                                                              \
        KVP_C_RL_OPERATIONS, {name, "error"}, KVP_M_OPERATIONS, "operation=\"" label "\"",         \
            "outcome=\"ok\""                                                                       \
    }
    OPERATION("sleep", "sleep"),
    OPERATION("wake", "wake"),
    OPERATION("release_kv_cache_memory", "release_kv_cache_memory"),
#undef OPERATION
    {KVP_C_QUERIES, {NULL}, KVP_M_LOOKUP_BLOCKS, NULL, NULL},
    {KVP_C_HITS, {NULL}, KVP_M_LOOKUP_BLOCKS, "result=\"hit\"", NULL},
    {KVP_C_STORE_SECONDS, {"save_put"}, KVP_M_PUT_SECONDS, NULL, NULL},
    {KVP_C_STORE_SECONDS, {"load_get"}, KVP_M_GET_SECONDS, NULL, NULL},
    {KVP_C_STORE_SECONDS, {"lookup_exists"}, KVP_M_LOOKUP_SECONDS, NULL, NULL},
    {KVP_C_STORE_KEYS, {"save_put"}, KVP_M_PUTS, NULL, NULL},
    {KVP_C_STORE_KEYS, {"load_get"}, KVP_M_GETS, NULL, NULL},
    {KVP_C_STORE_KEYS, {"lookup_exists"}, KVP_M_LOOKUP_BLOCKS, NULL, NULL},
    {KVP_C_STORE_FAILED, {"save_put"}, KVP_M_PUTS, NULL, "result=\"ok\""},
    {KVP_C_STORE_FAILED, {"load_get"}, KVP_M_GETS, NULL, "result=\"ok\""},
    {KVP_C_STORE_BYTES, {"save_put"}, KVP_M_PUT_BYTES, NULL, NULL},
    {KVP_C_STORE_BYTES, {"load_get"}, KVP_M_GET_BYTES, NULL, NULL},
    {KVP_C_ALLOCATED, {NULL}, KVP_M_STORE_USED, NULL, NULL},
    {KVP_C_CAPACITY, {NULL}, KVP_M_STORE_CAPACITY, NULL, NULL},
    {KVP_C_KEYS, {NULL}, KVP_M_STORE_OBJECTS, NULL, NULL},
    {KVP_C_EVICTED, {NULL}, KVP_M_STORE_EVICTED, NULL, NULL},
};

/* At a scrape, after ours were collected; any thread. */
static void on_collect(void *ctx)
{
    struct kvp_compat *compat = ctx;
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        kvb_series_sum(kvb_series(compat->own, sums[i].which, sums[i].labels), compat->of,
                       sums[i].of, sums[i].with, sums[i].without);
    }
}

/* ---- instances ---- */

static bool resident(const struct kvp_view *view, const char *tag, enum kvb_residency *residency_p)
{
    *residency_p = KVB_RESIDENT;
    for (uint32_t i = 0; i < view->ntags; i++) {
        if (strcmp(view->tags[i].tag, tag) == 0) {
            *residency_p = view->tags[i].residency;
        }
    }
    return *residency_p == KVB_RESIDENT;
}

static const char *shown_operation(const struct kvp_view *view)
{
    bool shown = view->operation_id != 0 &&
                 (view->operation == KVP_OP_SLEEP || view->operation == KVP_OP_WAKE ||
                  view->operation == KVP_OP_RELEASE_KV);
    return shown ? kvp_operation_label(view->operation) : NULL;
}

/* NULL: there are too many. */
static struct shown *find(struct kvp_compat *compat, const struct kvp_view *view)
{
    for (uint32_t i = 0; i < compat->n; i++) {
        if (strcmp(compat->shown[i].instance, view->instance) == 0) {
            return &compat->shown[i];
        }
    }
    if (compat->n == KVP_INSTANCES_MAX) {
        return NULL;
    }
    struct shown *shown = &compat->shown[compat->n++];
    strcpy(shown->instance, view->instance);
    strcpy(shown->model, view->model);
    return shown;
}

/* It came back with another model: what it was before is gone. */
static void forget_model(struct kvp_compat *compat, struct shown *shown, const char *model)
{
    const char *values[] = {shown->model, shown->instance};
    if (strcmp(shown->model, model) != 0) {
        kvb_series_drop(compat->own, KVP_C_SLEEP_STATE, values, 2);
        kvb_series_drop(compat->own, KVP_C_COMPONENT_STATE, values, 2);
        strcpy(shown->model, model);
    }
}

static void count_running(struct kvp_compat *compat)
{
    static const enum kvp_operation operations[] = {KVP_OP_SLEEP, KVP_OP_WAKE, KVP_OP_RELEASE_KV};
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        const char *values[] = {kvp_operation_label(operations[i])};
        uint32_t n = 0;
        for (uint32_t k = 0; k < compat->n; k++) {
            const char *running = compat->shown[k].operation;
            n += running != NULL && strcmp(running, values[0]) == 0;
        }
        kvb_series_set(kvb_series(compat->own, KVP_C_IN_FLIGHT, values), n);
    }
}

void kvp_compat_instance(struct kvp_compat *compat, const struct kvp_view *view)
{
    if (compat == NULL) {
        return;
    }
    enum kvb_residency weights;
    enum kvb_residency kv;
    bool weights_awake = resident(view, "weights", &weights);
    bool kv_awake = resident(view, "kv_cache", &kv);
    bool awake = !view->is_sleeping;
    const struct {
        enum kvp_compat_metric which;
        const char *word;
        bool value;
    } states[] = {
        {KVP_C_SLEEP_STATE, "awake", awake},
        {KVP_C_SLEEP_STATE, "weights_offloaded", weights == KVB_OFFLOADED},
        {KVP_C_SLEEP_STATE, "discard_all", weights == KVB_DISCARDED},
        {KVP_C_COMPONENT_STATE, "scheduler", view->scheduler == KVP_SCHEDULER_RUNNING},
        {KVP_C_COMPONENT_STATE, "weights", weights_awake},
        {KVP_C_COMPONENT_STATE, "kv_cache", kv_awake},
    };
    struct shown *shown = find(compat, view);
    if (shown != NULL) {
        forget_model(compat, shown, view->model);
        shown->operation = shown_operation(view);
    }
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        const char *values[] = {view->model, view->instance, states[i].word};
        kvb_series_set(kvb_series(compat->own, states[i].which, values), states[i].value);
    }
    count_running(compat);
}

struct kvp_compat *kvp_compat_create(struct kvb_metrics *of)
{
    struct kvp_compat *compat = calloc(1, sizeof *compat);
    if (compat == NULL) {
        return NULL;
    }
    compat->of = of;
    compat->own = kvb_metrics_create(table, KVP_COMPAT_COUNT);
    if (compat->own == NULL) {
        free(compat);
        return NULL;
    }
    kvb_metrics_on_collect(compat->own, on_collect, compat);
    kvb_metrics_show_behind(of, compat->own);
    return compat;
}

void kvp_compat_destroy(struct kvp_compat *compat)
{
    if (compat != NULL) {
        kvb_metrics_destroy(compat->own);
        free(compat);
    }
}
