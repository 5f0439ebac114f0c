/* SPDX-License-Identifier: Apache-2.0 */
#include "collect.h"

#include "build.h"
#include "metrics.h"

#include "base/log.h"

#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static void set0(struct kvb_metrics *metrics, enum kvp_metric which, double value)
{
    kvb_series_set(kvb_series0(metrics, which), value);
}

static void set1(struct kvb_metrics *metrics, enum kvp_metric which, const char *label,
                 double value)
{
    const char *values[] = {label};
    kvb_series_set(kvb_series(metrics, which, values), value);
}

/* ---- the share ---- */

static void collect_tenant(void *arg, const char *tenant, const struct kvs_core_tenant_stats *stats)
{
    struct kvb_metrics *metrics = arg;
    set1(metrics, KVP_M_TENANT_USED, tenant, (double)stats->used_bytes);
    set1(metrics, KVP_M_TENANT_OBJECTS, tenant, (double)stats->objects);
    set1(metrics, KVP_M_TENANT_EVICTED, tenant, (double)stats->evicted);
}

static void collect_events(struct kvb_metrics *metrics, const struct kvs_share_stats *stats)
{
    const struct {
        enum kvp_metric which;
        const char *result; /* NULL: the family has no label */
        uint64_t n;
    } events[] = {
        {KVP_M_STORE_LOOKUPS, "hit", stats->lookup_hits},
        {KVP_M_STORE_LOOKUPS, "miss", stats->lookups - stats->lookup_hits},
        {KVP_M_STORE_PUTS, "ok", stats->puts},
        {KVP_M_STORE_PUTS, "existed", stats->puts_existed},
        {KVP_M_STORE_PUTS, "refused", stats->puts_refused},
        {KVP_M_STORE_PUTS, "fenced", stats->puts_fenced},
        {KVP_M_STORE_PUTS, "failed", stats->puts_failed},
        {KVP_M_STORE_PUT_BYTES, NULL, stats->put_bytes},
        {KVP_M_STORE_GETS, "ok", stats->gets},
        {KVP_M_STORE_GETS, "missed", stats->gets_missed},
        {KVP_M_STORE_GETS, "ticket", stats->gets_ticket},
        {KVP_M_STORE_GETS, "checksum", stats->gets_checksum},
        {KVP_M_STORE_GETS, "failed", stats->gets_failed},
        {KVP_M_STORE_GET_BYTES, NULL, stats->get_bytes},
        {KVP_M_STORE_REMOVED, NULL, stats->removes},
        {KVP_M_STORE_SCRUBS, "good", stats->scrubs - stats->scrubs_bad},
        {KVP_M_STORE_SCRUBS, "bad", stats->scrubs_bad},
        {KVP_M_CHECKSUMS, "get", stats->gets_checksum},
        {KVP_M_CHECKSUMS, "scrub", stats->scrubs_bad},
    };
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        if (events[i].result != NULL) {
            set1(metrics, events[i].which, events[i].result, (double)events[i].n);
        } else {
            set0(metrics, events[i].which, (double)events[i].n);
        }
    }
}

static void collect_share(const struct kvp_collect *collect)
{
    struct kvb_metrics *metrics = collect->metrics;
    struct kvs_share_stats stats;
    kvs_share_stats(collect->share, &stats);
    const struct kvs_core_stats *core = &stats.core;
    const struct {
        enum kvp_metric which;
        uint64_t value;
    } figures[] = {
        {KVP_M_STORE_CAPACITY, core->share_bytes},
        {KVP_M_STORE_USED, core->used_bytes},
        {KVP_M_STORE_RESERVED, core->reserved_bytes},
        {KVP_M_STORE_QUARANTINED, core->quarantined_bytes},
        {KVP_M_STORE_RETIRED, core->retired_bytes},
        {KVP_M_STORE_LOCKED, core->locked_bytes},
        {KVP_M_STORE_OBJECTS, core->objects},
        {KVP_M_STORE_TICKETS, core->tickets},
        {KVP_M_STORE_HOLDS, core->holds},
        {KVP_M_STORE_EVICTED, core->evicted},
        {KVP_M_STORE_RECLAIMED, core->reclaimed},
        {KVP_M_STORE_TICKETS_LOST, core->tickets_lost},
    };
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        set0(metrics, figures[i].which, (double)figures[i].value);
    }
    collect_events(metrics, &stats);
    kvs_share_each_tenant(collect->share, collect_tenant, metrics);
}

/* ---- the process ---- */

static double count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    double n = -3; /* `.`, `..`, and the one that reads it */
    if (dir == NULL) {
        return 0;
    }
    while (readdir(dir) != NULL) {
        n++;
    }
    (void)closedir(dir);
    return n;
}

/* Of /proc/self/stat, after the name in parentheses: threads and memory. */
static void collect_stat(struct kvb_metrics *metrics)
{
    char text[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    size_t n = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    if (file != NULL) {
        (void)fclose(file);
    }
    text[n] = '\0';
    const char *rest = strrchr(text, ')');
    long threads;
    unsigned long virtual_bytes;
    long resident_pages;
    if (rest != NULL &&
        sscanf(rest,
               ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld "
               "%*d %*u %lu %ld",
               &threads, &virtual_bytes, &resident_pages) == 3) {
        set0(metrics, KVP_M_PROCESS_THREADS, (double)threads);
        set0(metrics, KVP_M_PROCESS_VIRTUAL, (double)virtual_bytes);
        set0(metrics, KVP_M_PROCESS_RESIDENT,
             (double)resident_pages * (double)sysconf(_SC_PAGESIZE));
    }
}

static double seconds_of(const struct timeval *time)
{
    return (double)time->tv_sec + (double)time->tv_usec / 1e6;
}

static void collect_process(struct kvb_metrics *metrics)
{
    const struct mallinfo2 heap = mallinfo2();
    struct rusage usage;
    struct rlimit limit;
    set0(metrics, KVP_M_HEAP, (double)heap.uordblks + (double)heap.hblkhd);
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        set0(metrics, KVP_M_PROCESS_CPU, seconds_of(&usage.ru_utime) + seconds_of(&usage.ru_stime));
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        set0(metrics, KVP_M_PROCESS_FDS_MAX, (double)limit.rlim_cur);
    }
    set0(metrics, KVP_M_PROCESS_FDS, count_fds());
    collect_stat(metrics);
    for (enum kvb_log_level level = KVB_LOG_ERROR; level <= KVB_LOG_TRACE; level++) {
        set1(metrics, KVP_M_LOG_LINES, kvb_log_level_text(level), (double)kvb_log_lines(level));
    }
    set0(metrics, KVP_M_LOG_HELD_BACK, (double)kvb_log_held_back());
}

static void collect_loop(struct kvb_metrics *metrics, const char *loop, uint64_t beat_ns)
{
    uint64_t now_ns = kvb_now_ns(&kvb_clock_real);
    set1(metrics, KVP_M_LOOP_BEAT, loop, now_ns > beat_ns ? (double)(now_ns - beat_ns) / 1e9 : 0);
}

static void on_collect(void *ctx)
{
    const struct kvp_collect *collect = ctx;
    if (collect->share != NULL) {
        collect_share(collect);
    }
    collect_process(collect->metrics);
    collect_loop(collect->metrics, "main", kvp_loop_beat_ns(collect->loop));
}

void kvp_collect_init(struct kvp_collect *collect, struct kvb_metrics *metrics,
                      struct kvs_share *share, struct kvp_loop *loop)
{
    *collect = (struct kvp_collect){.metrics = metrics, .share = share, .loop = loop};
    const char *build[] = {KVP_VERSION, kvp_build_revision, kvp_build_compiler, kvp_build_features};
    kvb_series_set(kvb_series(metrics, KVP_M_BUILD_INFO, build), 1);
    set0(metrics, KVP_M_PROCESS_START, (double)time(NULL));
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
    set1(metrics, KVP_M_CHECKSUMS, "wire", (double)(stats.tcp.checksums + stats.rdma.checksums));
    set0(metrics, KVP_M_NODE_REQUESTS, kvp_server_running(server));
    collect_loop(metrics, "io", kvp_server_beat_ns(server));
}

/* ---- instances ---- */

static const enum kvp_metric of_instance[] = {
    KVP_M_INSTANCE_UP,        KVP_M_INSTANCE_READY,     KVP_M_INSTANCE_SLEEPING,
    KVP_M_INSTANCE_DEGRADED,  KVP_M_INSTANCE_SCHEDULER, KVP_M_INSTANCE_TAG,
    KVP_M_INSTANCE_OPEN,      KVP_M_INSTANCE_SHARED,    KVP_M_INSTANCE_RETIREMENTS,
    KVP_M_INSTANCE_REQUESTS,  KVP_M_INSTANCE_BLOCKS,    KVP_M_OPERATIONS_RUNNING,
    KVP_M_OPERATIONS_WAITING,
};

static struct kvp_collect_known *know(struct kvp_collect *collect, const struct kvp_view *view)
{
    for (uint32_t i = 0; i < collect->nknown; i++) {
        if (strcmp(collect->known[i].instance, view->instance) == 0) {
            return &collect->known[i];
        }
    }
    if (collect->nknown == KVP_INSTANCES_MAX) {
        return NULL;
    }
    struct kvp_collect_known *known = &collect->known[collect->nknown++];
    strcpy(known->instance, view->instance);
    strcpy(known->tenant, view->tenant);
    return known;
}

static bool has_tag(const struct kvp_view *view, const char *tag)
{
    for (uint32_t i = 0; i < view->ntags; i++) {
        if (strcmp(view->tags[i].tag, tag) == 0) {
            return true;
        }
    }
    return false;
}

/* An instance that came back as another tenant's, or without a tag: what it was before is gone. */
static void forget_before(struct kvp_collect *collect, const struct kvp_view *view)
{
    struct kvp_collect_known *known = know(collect, view);
    if (known == NULL) {
        return;
    }
    if (strcmp(known->tenant, view->tenant) != 0) {
        const char *values[] = {known->instance, known->tenant};
        for (size_t i = 0; i < sizeof of_instance / sizeof of_instance[0]; i++) {
            kvb_series_drop(collect->metrics, of_instance[i], values, 2);
        }
        strcpy(known->tenant, view->tenant);
    }
    for (uint32_t i = 0; i < known->ntags; i++) {
        const char *values[] = {known->instance, known->tenant, known->tags[i]};
        if (!has_tag(view, known->tags[i])) {
            kvb_series_drop(collect->metrics, KVP_M_INSTANCE_TAG, values, 3);
        }
    }
    known->ntags = view->ntags;
    for (uint32_t i = 0; i < view->ntags; i++) {
        memcpy(known->tags[i], view->tags[i].tag, sizeof known->tags[i]);
    }
}

static void show_states(struct kvb_metrics *metrics, const struct kvp_view *view)
{
    static const char *const schedulers[] = {
#define X(name, text) [KVP_SCHEDULER_##name] = (text),
        KVP_SCHEDULER_STATES(X)
#undef X
    };
    for (size_t i = 0; i < sizeof schedulers / sizeof schedulers[0]; i++) {
        const char *values[] = {view->instance, view->tenant, schedulers[i]};
        kvb_series_set(kvb_series(metrics, KVP_M_INSTANCE_SCHEDULER, values), view->scheduler == i);
    }
    for (uint32_t t = 0; t < view->ntags; t++) {
        for (enum kvb_residency state = KVB_RESIDENT; state <= KVB_UNKNOWN; state++) {
            const char *values[] = {view->instance, view->tenant, view->tags[t].tag,
                                    kvb_residency_text(state)};
            kvb_series_set(kvb_series(metrics, KVP_M_INSTANCE_TAG, values),
                           view->tags[t].residency == state);
        }
    }
}

void kvp_collect_instance(struct kvp_collect *collect, const struct kvp_view *view)
{
    struct kvb_metrics *metrics = collect->metrics;
    const char *values[] = {view->instance, view->tenant};
    const struct {
        enum kvp_metric which;
        double value;
    } figures[] = {
        {KVP_M_INSTANCE_UP, view->attached},
        {KVP_M_INSTANCE_READY, view->ready},
        {KVP_M_INSTANCE_SLEEPING, view->is_sleeping},
        {KVP_M_INSTANCE_DEGRADED, view->degraded},
        {KVP_M_INSTANCE_OPEN, view->open},
        {KVP_M_INSTANCE_SHARED, view->weights_name[0] != '\0'},
        {KVP_M_INSTANCE_RETIREMENTS, view->retirements_pending},
        {KVP_M_INSTANCE_BLOCKS, view->load.blocks_held},
        {KVP_M_OPERATIONS_RUNNING, view->operation_id != 0},
        {KVP_M_OPERATIONS_WAITING, view->waiting_operations},
    };
    const struct {
        const char *state;
        uint32_t n;
    } requests[] = {{"running", view->load.running},
                    {"waiting", view->load.waiting},
                    {"loading", view->load.loading}};
    forget_before(collect, view);
    kvp_compat_instance(collect->compat, view);
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        kvb_series_set(kvb_series(metrics, figures[i].which, values), figures[i].value);
    }
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        const char *of_state[] = {view->instance, view->tenant, requests[i].state};
        kvb_series_set(kvb_series(metrics, KVP_M_INSTANCE_REQUESTS, of_state), requests[i].n);
    }
    show_states(metrics, view);
}

/* ---- operations ---- */

void kvp_collect_step(struct kvp_collect *collect, const char *operation, const char *step,
                      kvb_status_t status, uint64_t took_ns)
{
    const char *values[] = {operation, step, kvb_status_label(status)};
    kvb_series_observe(kvb_series(collect->metrics, KVP_M_STEP_SECONDS, values),
                       (double)took_ns / 1e9);
    if (status != KVB_OK) {
        kvb_series_add(kvb_series(collect->metrics, KVP_M_STEP_FAILURES, values), 1);
    }
}

void kvp_collect_operation(struct kvp_collect *collect, const struct kvp_operation_record *record)
{
    const char *values[] = {kvp_operation_label(record->operation),
                            kvb_status_label(record->status)};
    kvb_series_add(kvb_series(collect->metrics, KVP_M_OPERATIONS, values), 1);
    kvb_series_observe(kvb_series(collect->metrics, KVP_M_OPERATION_SECONDS, values),
                       (double)(record->finished_ns - record->started_ns) / 1e9);
}

void kvp_collect_left(struct kvp_collect *collect, const char *why)
{
    const char *values[] = {why};
    kvb_series_add(kvb_series(collect->metrics, KVP_M_LINEAGES_LEFT, values), 1);
}

/* ---- transfers ---- */

/* Runs of one result are counted at once. */
static void count_results(struct kvb_metrics *metrics, const char *direction, const char *transport,
                          const struct kvs_node_call *call)
{
    uint32_t run = 0;
    for (uint32_t i = 0; i < call->n; i++) {
        kvb_status_t status = kvs_node_call_item(call, i)->status;
        run++;
        if (i + 1 == call->n || kvs_node_call_item(call, i + 1)->status != status) {
            const char *values[] = {direction, transport, kvb_status_label(status)};
            kvb_series_add(kvb_series(metrics, KVP_M_TRANSFERS, values), run);
            run = 0;
        }
    }
}

void kvp_collect_moved(struct kvp_collect *collect, const char *transport,
                       const struct kvs_node_call *call, uint64_t took_ns)
{
    const char *values[] = {call->batch->op == KVS_PUT ? "put" : "get", transport};
    struct kvb_series *sizes = kvb_series(collect->metrics, KVP_M_TRANSFER_BYTES, values);
    count_results(collect->metrics, values[0], transport, call);
    kvb_series_observe(kvb_series(collect->metrics, KVP_M_TRANSFER_SECONDS, values),
                       (double)took_ns / 1e9);
    for (uint32_t i = 0; i < call->n; i++) {
        const struct kvs_item *item = kvs_node_call_item(call, i);
        uint64_t bytes = 0;
        for (uint32_t s = 0; item->status == KVB_OK && s < item->nslices; s++) {
            bytes += item->slices[s].len;
        }
        if (item->status == KVB_OK) {
            kvb_series_observe(sizes, (double)bytes);
        }
    }
}

/* ---- the rest ---- */

void kvp_collect_beat(struct kvp_collect *collect, uint64_t lag_ns)
{
    kvp_metrics_beat(collect->metrics, "main", lag_ns);
}

void kvp_collect_answered(struct kvp_collect *collect, const struct kvp_http_answered *answered)
{
    char code[16];
    (void)snprintf(code, sizeof code, "%u", answered->http_status);
    const char *values[] = {answered->route != NULL ? answered->route->operation : "none", code};
    kvb_series_add(kvb_series(collect->metrics, KVP_M_HTTP_REQUESTS, values), 1);
    kvb_series_observe(kvb_series(collect->metrics, KVP_M_HTTP_SECONDS, values),
                       (double)answered->took_ns / 1e9);
    if (answered->route != NULL && answered->route->role == KVP_ROLE_ADMIN) {
        const char *audited[] = {answered->route->operation, answered->http_status < 400 ? "ok"
                                                             : answered->http_status < 500
                                                                 ? "refused"
                                                                 : "failed"};
        kvb_series_add(kvb_series(collect->metrics, KVP_M_AUDITED, audited), 1);
    }
}
