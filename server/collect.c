/* SPDX-License-Identifier: Apache-2.0 */
#include "collect.h"

#include "metrics.h"

#include <malloc.h>
#include <stdio.h>
#include <time.h>

static void set0(struct kvb_metrics *metrics, enum kvp_metric which, double value)
{
    kvb_series_set(kvb_series0(metrics, which), value);
}

static void collect_tenant(void *arg, const char *tenant, const struct kvs_core_tenant_stats *stats)
{
    struct kvb_metrics *metrics = arg;
    const char *values[] = {tenant};
    kvb_series_set(kvb_series(metrics, KVP_M_TENANT_USED, values), (double)stats->used_bytes);
    kvb_series_set(kvb_series(metrics, KVP_M_TENANT_OBJECTS, values), (double)stats->objects);
}

static void collect_share(const struct kvp_collect *collect)
{
    struct kvb_metrics *metrics = collect->metrics;
    struct kvs_share_stats stats;
    kvs_share_stats(collect->share, &stats);
    set0(metrics, KVP_M_STORE_CAPACITY, (double)stats.core.share_bytes);
    set0(metrics, KVP_M_STORE_USED, (double)stats.core.used_bytes);
    set0(metrics, KVP_M_STORE_RESERVED, (double)stats.core.reserved_bytes);
    set0(metrics, KVP_M_STORE_QUARANTINED, (double)stats.core.quarantined_bytes);
    set0(metrics, KVP_M_STORE_RETIRED, (double)stats.core.retired_bytes);
    set0(metrics, KVP_M_STORE_OBJECTS, (double)stats.core.objects);
    set0(metrics, KVP_M_STORE_EVICTED, (double)stats.core.evicted);
    set0(metrics, KVP_M_STORE_RECLAIMED, (double)stats.core.reclaimed);
    const struct {
        const char *label;
        uint64_t n;
    } operations[] = {
#define X(name, what) {#name, stats.name},
        KVS_NODE_COUNTERS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        const char *values[] = {operations[i].label};
        kvb_series_set(kvb_series(metrics, KVP_M_STORE_EVENTS, values), (double)operations[i].n);
    }
    kvs_share_each_tenant(collect->share, collect_tenant, metrics);
}

static void on_collect(void *ctx)
{
    const struct kvp_collect *collect = ctx;
    if (collect->share != NULL) {
        collect_share(collect);
    }
    const struct mallinfo2 heap = mallinfo2();
    set0(collect->metrics, KVP_M_HEAP, (double)heap.uordblks + (double)heap.hblkhd);
    set0(collect->metrics, KVP_M_LOOP_LAG, (double)kvp_loop_lag_ns(collect->loop) / 1e9);
}

void kvp_collect_init(struct kvp_collect *collect, struct kvb_metrics *metrics,
                      struct kvs_share *share, struct kvp_loop *loop)
{
    *collect = (struct kvp_collect){.metrics = metrics, .share = share, .loop = loop};
    const char *version[] = {KVP_VERSION};
    kvb_series_set(kvb_series(metrics, KVP_M_BUILD_INFO, version), 1);
    set0(metrics, KVP_M_START_TIME, (double)time(NULL));
    kvb_metrics_on_collect(metrics, on_collect, collect);
}

void kvp_collect_server(struct kvb_metrics *metrics, struct kvp_server *server,
                        const struct kvp_rdma *rdma)
{
    kvp_rdma_collect(rdma, metrics);
    if (server == NULL) {
        return;
    }
    struct kvs_service_stats stats;
    kvp_server_stats(server, &stats);
    kvp_metrics_peer(metrics, "-", "tcp", &stats.tcp);
    if (rdma->share != NULL) {
        kvp_metrics_peer(metrics, "-", "rdma", &stats.rdma);
    }
    set0(metrics, KVP_M_NODE_REQUESTS, kvp_server_running(server));
}

void kvp_collect_instance(struct kvp_collect *collect, const struct kvp_view *view)
{
    struct kvb_metrics *metrics = collect->metrics;
    const char *values[] = {view->instance, view->tenant};
    const struct {
        enum kvp_metric which;
        bool value;
    } states[] = {
        {KVP_M_INSTANCE_UP, view->attached},
        {KVP_M_INSTANCE_READY, view->ready},
        {KVP_M_INSTANCE_SLEEPING, view->is_sleeping},
        {KVP_M_INSTANCE_OPEN, view->open},
        {KVP_M_INSTANCE_SHARED, view->weights_name[0] != '\0'},
    };
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        kvb_series_set(kvb_series(metrics, states[i].which, values), states[i].value);
    }
}

struct walk {
    struct kvb_metrics *metrics;
    uint64_t since_ns;
    uint64_t latest_ns;
};

static void count_operation(void *arg, const struct kvp_operation_record *record)
{
    struct walk *walk = arg;
    if (!record->finished || record->finished_ns <= walk->since_ns) {
        return;
    }
    if (record->finished_ns > walk->latest_ns) {
        walk->latest_ns = record->finished_ns;
    }
    const char *values[] = {kvp_operation_label(record->operation),
                            kvb_status_label(record->status)};
    kvb_series_add(kvb_series(walk->metrics, KVP_M_OPERATIONS, values), 1);
    kvb_series_observe(kvb_series(walk->metrics, KVP_M_OPERATION_SECONDS, values),
                       (double)(record->finished_ns - record->started_ns) / 1e9);
}

void kvp_collect_beat(struct kvp_collect *collect, struct kvp_fleet *fleet, uint64_t lag_ns)
{
    if (lag_ns > collect->lag_max_ns) {
        collect->lag_max_ns = lag_ns;
        set0(collect->metrics, KVP_M_LOOP_LAG_MAX, (double)lag_ns / 1e9);
    }
    if (fleet != NULL) {
        struct walk walk = {collect->metrics, collect->counted_ns, collect->counted_ns};
        kvp_fleet_each_operation(fleet, count_operation, &walk);
        collect->counted_ns = walk.latest_ns;
    }
}

void kvp_collect_answered(struct kvp_collect *collect, const struct kvp_http_answered *answered)
{
    char code[16];
    (void)snprintf(code, sizeof code, "%u", answered->http_status);
    const char *values[] = {answered->route != NULL ? answered->route->operation : "none", code};
    kvb_series_add(kvb_series(collect->metrics, KVP_M_HTTP_REQUESTS, values), 1);
    kvb_series_observe(kvb_series(collect->metrics, KVP_M_HTTP_SECONDS, values),
                       (double)answered->took_ns / 1e9);
}
