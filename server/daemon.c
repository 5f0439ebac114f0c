/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon.h"

#include "board.h"
#include "collect.h"
#include "config_values.h"
#include "control.h"
#include "control/probes.h"
#include "devices.h"
#include "driver/driver.h"
#include "dump.h"
#include "events.h"
#include "http/http.h"
#include "link/link.h"
#include "loop.h"
#include "metrics.h"
#include "page/page.h"
#include "program.h"
#include "storage.h"
#include "upstream.h"

#include "base/assert.h"
#include "base/log.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Start: from the inside out, so that whoever can be reached has everything he needs. Stop: first
 * nobody is let in any more and what is asked is answered (control; only probes still are), then
 * the engines are let go (link: their transfers end, their regions go, the instances hear of it)
 * while others read what they still want of the share, then what was told to the cluster is taken
 * back, and only then the rest is taken apart, from the outside in.
 */
enum {
    STREAM_BEAT_MS = 15000,  /* event streams show that they live */
    HEARTBEAT_MS = 2000,     /* a loop that has not turned for so long hangs */
    PARSING_MS = 10000,      /* no body takes so long to parse */
    STOP_MS = 15000,         /* transfers of engines that were let go have ended by then */
    INSTANCES_MAX = 64,      /* in `instances` */
    ENGINE_CONNECTIONS = 16, /* of a server that is driven: calls, relays, looks */
};

struct kvp_daemon {
    const struct kvp_config *config;
    struct kvp_loop *loop;
    struct kvb_metrics *metrics;
    struct kvp_storage *storage;
    struct kvp_board *board;
    struct kvp_events *events;
    uint64_t streams_beat_ns; /* the last sign of life on event streams */
    struct kvp_fleet *fleet;
    struct kvp_devices devices;
    struct kvp_link *link;
    struct kvp_web *web; /* of the driver */
    struct kvp_driver *driver;
    struct kvp_control *control;
    struct kvp_rest rest;
    struct kvp_upstream upstream;
    _Atomic(uint64_t) parsing_since_ns[KVP_REST_SERVERS]; /* kvp_http_config */
    struct kvp_collect collect;
    struct kvp_dump *dump;
    struct kvb_timer stop_bound;
    uint64_t told_ns; /* kvp_program_alive() */
    bool stopping;
    bool lets_go; /* of engines */
    bool leaves;  /* others still read the share */
    kvb_status_t ended;
};

/* ---- what the parts ask ---- */

static void on_woken(void *ctx)
{
    struct kvp_daemon *daemon = ctx;
    if (daemon->storage != NULL) {
        kvp_storage_woken(daemon->storage);
    }
    if (daemon->control != NULL) {
        kvp_control_run(daemon->control);
    }
}

static bool etcd_reachable(const struct kvp_daemon *daemon)
{
    const struct kvp_cluster *cluster = kvp_storage_cluster(daemon->storage);
    return !kvp_cluster_alone(cluster) && kvp_cluster_reachable(cluster);
}

static void on_beat(void *ctx, uint64_t now_ns, uint64_t lag_ns)
{
    struct kvp_daemon *daemon = ctx;
    kvp_program_alive(now_ns, &daemon->told_ns);
    if (kvp_rest_started(&daemon->rest)) { /* whole */
        kvp_board_beat(daemon->board);
        if (now_ns - daemon->streams_beat_ns >= STREAM_BEAT_MS * KVB_NS_PER_MS) {
            daemon->streams_beat_ns = now_ns;
            kvp_rest_wake(&daemon->rest, true);
        }
        kvp_collect_beat(&daemon->collect, lag_ns);
        kvp_link_beat(daemon->link);
        kvb_series_set(kvb_series0(daemon->metrics, KVP_M_HTTP_CONNECTIONS),
                       kvp_rest_connections(&daemon->rest));
        kvb_series_set(kvb_series0(daemon->metrics, KVP_M_ETCD_REACHABLE), etcd_reachable(daemon));
    }
}

static void wake_streams(const struct kvp_daemon *daemon)
{
    if (kvp_rest_started(&daemon->rest)) {
        kvp_rest_wake(&daemon->rest, false);
    }
}

static void on_changed(void *ctx, const struct kvp_view *view)
{
    struct kvp_daemon *daemon = ctx;
    kvp_board_publish(daemon->board, view);
    kvp_upstream_tell(&daemon->upstream, view);
    kvp_collect_instance(&daemon->collect, view);
    kvp_events_add_state(daemon->events, view, kvp_state_json);
    wake_streams(daemon);
}

static void on_describe(void *ctx, const struct kvp_view *view, char *text, size_t cap)
{
    (void)ctx;
    json_t *json = kvp_view_describe(view);
    if (json_dumpb(json, NULL, 0, JSON_COMPACT) >= cap) { /* names full of escapes */
        (void)json_object_del(json, "weights_name");
        (void)json_object_del(json, "weight_version");
    }
    size_t len = json_dumpb(json, text, cap - 1, JSON_COMPACT);
    text[len < cap ? len : 0] = '\0';
    json_decref(json);
}

static void on_event(void *ctx, const char *instance, const char *kind, const char *detail)
{
    struct kvp_daemon *daemon = ctx;
    KVB_LOG(INFO, kind, KVB_STR("instance", instance), KVB_STR("detail", detail));
    kvp_events_add(daemon->events, instance, kind, detail);
    wake_streams(daemon);
}

static void on_stepped(void *ctx, const char *operation, const char *step, kvb_status_t status,
                       uint64_t took_ns)
{
    kvp_collect_step(&((struct kvp_daemon *)ctx)->collect, operation, step, status, took_ns);
}

static void on_ended(void *ctx, const struct kvp_operation_record *record)
{
    kvp_collect_operation(&((struct kvp_daemon *)ctx)->collect, record);
}

static void on_lineage_left(void *ctx, const char *instance, const char *why)
{
    (void)instance;
    kvp_collect_left(&((struct kvp_daemon *)ctx)->collect, why);
}

/* What the store's client moved. */
static void on_moved(void *ctx, struct kvs_node *node, const struct kvs_node_call *call,
                     uint64_t took_ns)
{
    struct kvp_daemon *daemon = ctx;
    kvp_collect_moved(&daemon->collect, kvp_storage_transport(daemon->storage, node), call,
                      took_ns);
}

struct tenant_question {
    const char *tenant;
    bool allowed;
};

static void compare_tenant(void *arg, const char *tenant, uint64_t quota)
{
    (void)quota;
    struct tenant_question *question = arg;
    question->allowed = question->allowed || strcmp(tenant, question->tenant) == 0;
}

static bool tenant_allowed(void *ctx, const char *tenant, char *reason, size_t reason_cap)
{
    const struct kvp_daemon *daemon = ctx;
    const char *tenants = daemon->config->tenants;
    struct tenant_question question = {.tenant = tenant, .allowed = tenants[0] == '\0'};
    bool well_formed = kvp_config_each_tenant(tenants, compare_tenant, &question);
    kvb_assert(well_formed); /* checked at start */
    if (!question.allowed) {
        (void)snprintf(reason, reason_cap,
                       "engines of this daemon may not claim the tenant `%s`, only: %s (its key "
                       "`tenants`)",
                       tenant, tenants);
    }
    return question.allowed;
}

/* ---- stop ---- */

static void on_storage_stopped(void *ctx)
{
    struct kvp_daemon *daemon = ctx;
    kvp_loop_stop(daemon->loop);
}

/* Nobody uses this process any more. */
static void go(struct kvp_daemon *daemon)
{
    bool quiet = daemon->control == NULL || kvp_control_quiet(daemon->control);
    if (!daemon->lets_go && !daemon->leaves && quiet) {
        if (kvp_rest_started(&daemon->rest)) { /* else it never began */
            kvp_rest_stop(&daemon->rest);
        }
        kvp_storage_stop(daemon->storage, on_storage_stopped, daemon);
    }
}

static void on_link_stopped(void *ctx)
{
    struct kvp_daemon *daemon = ctx;
    kvb_sched_timer_clear(kvp_loop_sched(daemon->loop), &daemon->stop_bound);
    daemon->lets_go = false;
    go(daemon);
}

static void on_control_quiet(void *ctx)
{
    struct kvp_daemon *daemon = ctx;
    if (daemon->stopping) {
        go(daemon);
    }
}

static void on_left(void *ctx)
{
    struct kvp_daemon *daemon = ctx;
    daemon->leaves = false;
    go(daemon);
}

static void on_stop_bound(struct kvb_timer *timer)
{
    struct kvp_daemon *daemon = kvb_container_of(timer, struct kvp_daemon, stop_bound);
    KVB_LOG(ERROR, "transfers did not end in time", KVB_U64("bound_ms", STOP_MS));
    daemon->ended = KVB_ERR_TIMEOUT;
    kvp_loop_stop(daemon->loop);
}

static void on_signalled(void *ctx, int signum)
{
    struct kvp_daemon *daemon = ctx;
    if (signum == SIGHUP) {
        if (kvp_rest_started(&daemon->rest)) {
            kvp_rest_reload(&daemon->rest);
        }
        return;
    }
    if (signum == SIGUSR1) {
        if (kvp_rest_started(&daemon->rest)) {
            kvp_dump_start(daemon->dump);
        }
        return;
    }
    KVB_LOG(INFO, "stopping", KVB_STR("signal", strsignal(signum)));
    if (daemon->stopping) { /* the rest is bounded anyway */
        if (daemon->leaves) {
            kvp_storage_hurry(daemon->storage);
            on_left(daemon);
        }
        return;
    }
    daemon->stopping = true;
    kvp_program_notify("STOPPING=1");
    kvp_board_stopping(daemon->board);
    if (daemon->upstream.proxy != NULL) {
        kvp_proxy_drain(daemon->upstream.proxy);
    }
    kvp_control_close(daemon->control);
    struct kvb_sched *sched = kvp_loop_sched(daemon->loop);
    kvb_sched_timer_set(sched, &daemon->stop_bound, kvb_deadline_in_ms(sched->clock, STOP_MS));
    daemon->leaves = kvp_storage_leave(daemon->storage, on_left, daemon);
    daemon->lets_go = true;
    kvp_driver_stop(daemon->driver);
    kvp_link_stop(daemon->link, on_link_stopped, daemon);
}

/* ---- HTTP ---- */

static void on_probe(void *ctx, const struct kvp_route *route, const char *instance,
                     struct kvp_probe_answer *answer_p)
{
    const struct kvp_daemon *daemon = ctx;
    kvp_probe(route, instance, daemon->board, daemon->metrics, answer_p);
}

static bool on_is_stopping(void *ctx)
{
    return kvp_board_is_stopping(((const struct kvp_daemon *)ctx)->board);
}

static void on_answered(void *ctx, const struct kvp_http_answered *answered)
{
    kvp_program_audit(answered);
    kvp_collect_answered(&((struct kvp_daemon *)ctx)->collect, answered);
}

static size_t on_stream(void *ctx, uint64_t *cursor, char *text, size_t cap)
{
    return kvp_events_stream(((const struct kvp_daemon *)ctx)->events, cursor, text, cap);
}

static const struct kvp_http_ops http_ops = {.probe = on_probe,
                                             .document = kvp_page_document,
                                             .stopping = on_is_stopping,
                                             .answered = on_answered,
                                             .stream = on_stream};

/* ---- start ---- */

static const struct kvp_loop_ops loop_ops = {
    .woken = on_woken, .signalled = on_signalled, .beat = on_beat};

static uint64_t io_beat_ns(void *ctx, uint32_t which)
{
    return kvp_server_thread_beat_ns(ctx, which);
}

static uint64_t bodies_beat_ns(void *ctx, uint32_t which)
{
    const struct kvp_daemon *daemon = ctx;
    uint64_t since_ns = atomic_load(&daemon->parsing_since_ns[which]);
    return since_ns != 0 ? since_ns : KVB_NEVER;
}

/* The board is asked before the storage goes. */
static kvb_status_t watch_threads(struct kvp_daemon *daemon)
{
    const struct kvp_server *server = kvp_storage_server(daemon->storage);
    uint32_t n = server != NULL ? kvp_server_threads(server) : 0;
    kvb_status_t status =
        kvp_board_watch(daemon->board, "bodies", PARSING_MS, bodies_beat_ns, daemon, 0);
    if (status == KVB_OK) {
        status =
            kvp_board_watch(daemon->board, "bodies-unix", PARSING_MS, bodies_beat_ns, daemon, 1);
    }
    for (uint32_t i = 0; i < n && status == KVB_OK; i++) {
        char name[KVB_NAME_MAX];
        (void)snprintf(name, sizeof name, "io-%u", i);
        status = kvp_board_watch(daemon->board, name, HEARTBEAT_MS, io_beat_ns,
                                 (void *)(uintptr_t)server, i);
    }
    return status;
}

static bool verbs_for_all(const struct kvp_config *config)
{
    return strcmp(config->fleet_verbs, "all") == 0 ||
           (strcmp(config->fleet_verbs, "auto") == 0 && config->nengines > 0);
}

static kvb_status_t create_board(struct kvp_daemon *daemon)
{
    char names[INSTANCES_MAX][KVB_NAME_MAX];
    const char *pointers[INSTANCES_MAX + KVP_ENGINES_MAX];
    uint32_t n = 0;
    for (const char *at = daemon->config->instances; *at != '\0'; n++) {
        if (n == INSTANCES_MAX) {
            KVB_LOG(ERROR, "instances: too many", KVB_U64("limit", INSTANCES_MAX));
            return KVB_ERR_INVALID;
        }
        at = kvp_next_item(at, names[n], sizeof names[n]);
        pointers[n] = names[n];
    }
    for (uint32_t i = 0; i < daemon->config->nengines; i++) { /* configured, so waited for */
        pointers[n++] = daemon->config->engines[i].name;
    }
    const struct kvp_board_config board = {.clock = &kvb_clock_real,
                                           .instances = pointers,
                                           .ninstances = n,
                                           .heartbeat_ms = HEARTBEAT_MS,
                                           .as_one = verbs_for_all(daemon->config)};
    return kvp_board_create(&board, &daemon->board);
}

static kvb_status_t create_fleet(struct kvp_daemon *daemon)
{
    const struct kvp_config *config = daemon->config;
    const struct kvp_fleet_config fleet = {
        .sched = kvp_loop_sched(daemon->loop),
        .coordinator = kvp_storage_coordinator(daemon->storage),
        .bounds = {.drain_ms = config->drain_bound,
                   .transfer_ms = config->transfer_bound,
                   .abort_ms = config->abort_bound,
                   .slot_wait_ms = config->slot_wait,
                   .retire_ms = config->retire_bound,
                   .forward_retry_ms = config->forward_retry,
                   .forward_tries = (uint32_t)config->forward_tries},
        .unversioned_event = strcmp(config->unversioned, "none") == 0 ? NULL : config->unversioned,
        .changed = on_changed,
        .describe = on_describe,
        .event = on_event,
        .stepped = on_stepped,
        .ended = on_ended,
        .left = on_lineage_left,
        .ctx = daemon,
    };
    return kvp_fleet_create(&fleet, &daemon->fleet);
}

static kvb_status_t create_link(struct kvp_daemon *daemon)
{
    const struct kvp_config *config = daemon->config;
    daemon->devices = (struct kvp_devices){
        .sched = kvp_loop_sched(daemon->loop),
        .io = kvp_loop_io(daemon->loop),
        .regions = kvp_storage_regions(daemon->storage),
        .socket = config->engine_socket,
        .pool_len = config->cuda_pool_bytes,
        .direct = kvp_storage_gpu_rdma(daemon->storage),
    };
    const struct kvp_link_config link = {
        .sched = kvp_loop_sched(daemon->loop),
        .loop = kvp_loop_uv(daemon->loop),
        .fleet = daemon->fleet,
        .store = kvp_storage_client(daemon->storage),
        .regions = kvp_storage_regions(daemon->storage),
        .metrics = daemon->metrics,
        .path = config->engine_socket,
        .any_uid = config->engine_any_uid,
        .sessions_max = (uint32_t)config->sessions_max,
        .queue_max = (uint32_t)config->queue_max,
        .running_max = (uint32_t)config->running_max,
        .transfer_ms = config->transfer_bound,
        .abort_ms = config->abort_bound,
        .tenant_allowed = tenant_allowed,
        .ctx = daemon,
        .devices = &kvp_device_ops,
        .devices_ctx = &daemon->devices,
    };
    return kvp_link_create(&link, &daemon->link);
}

static kvb_status_t create_driver(struct kvp_daemon *daemon)
{
    const struct kvp_config *config = daemon->config;
    char *authorization = NULL;
    char tenant[KVB_NAME_MAX] = "default";
    kvb_status_t status =
        kvp_program_bearer("engine-token-file", config->engine_token_file, &authorization);
    if (status != KVB_OK) {
        return status;
    }
    (void)kvp_next_item(config->tenants, tenant, sizeof tenant);
    tenant[strcspn(tenant, "=")] = '\0';
    status = kvp_web_create(kvp_loop_sched(daemon->loop), kvp_loop_io(daemon->loop),
                            ENGINE_CONNECTIONS * (config->nengines + 1), authorization,
                            config->upstream_ca_file, &daemon->web);
    kvp_program_bearer_free(authorization);
    if (status != KVB_OK) {
        return status;
    }
    const struct kvp_driver_config driver = {
        .sched = kvp_loop_sched(daemon->loop),
        .fleet = daemon->fleet,
        .web = &kvp_web_ops,
        .web_ctx = daemon->web,
        .metrics = daemon->metrics,
        .specs = config->engines,
        .nspecs = config->nengines,
        .tenant = tenant[0] != '\0' ? tenant : "default",
        .health_interval_ms = config->engine_health_interval,
        .health_ms = config->engine_health_bound,
        .misses = (uint32_t)config->engine_health_misses,
        .call_ms = config->engine_call_bound,
        .relay_ms = config->engine_relay_bound,
    };
    return kvp_driver_create(&driver, &daemon->driver);
}

static kvb_status_t create_control(struct kvp_daemon *daemon)
{
    const struct kvp_control_config control = {.fleet = daemon->fleet,
                                               .coordinator =
                                                   kvp_storage_coordinator(daemon->storage),
                                               .cluster = kvp_storage_cluster(daemon->storage),
                                               .events = daemon->events,
                                               .client = kvp_storage_client(daemon->storage),
                                               .sched = kvp_loop_sched(daemon->loop),
                                               .clock = &kvb_clock_real,
                                               .retire_ms = daemon->config->retire_bound,
                                               .never_sleeps = !daemon->config->sleep_mode,
                                               .verbs_for_all = verbs_for_all(daemon->config),
                                               .queue_max = (uint32_t)daemon->config->requests_max,
                                               .wake = kvp_loop_wake,
                                               .wake_ctx = daemon->loop,
                                               .quiet = on_control_quiet,
                                               .quiet_ctx = daemon};
    return kvp_control_create(&control, &daemon->control);
}

static void show_config(const void *config, FILE *out)
{
    kvp_config_show(config, out);
}

static kvb_status_t create_dump(struct kvp_daemon *daemon)
{
    static const struct kvp_dump_ask asks[] = {
        {"instances", "/v1/kvplane/instances"}, {"regions", "/v1/kvplane/regions"},
        {"queues", "/v1/kvplane/queues"},       {"operations", "/v1/kvplane/operations"},
        {"cluster", "/v1/kvplane/cluster"},     {"nodes", "/v1/kvplane/nodes"},
        {"tenants", "/v1/kvplane/tenants"},
    };
    const struct kvp_dump_config dump = {.program = "serve",
                                         .dir = daemon->config->dump_dir,
                                         .asks = asks,
                                         .nasks = sizeof asks / sizeof asks[0],
                                         .routes = &kvp_route_table,
                                         .inbox = kvp_control_inbox(daemon->control),
                                         .metrics = daemon->metrics,
                                         .show_config = show_config,
                                         .config = daemon->config};
    daemon->dump = kvp_dump_create(&dump);
    return daemon->dump == NULL ? KVB_ERR_NO_MEMORY : KVB_OK;
}

static kvb_status_t create_http(struct kvp_daemon *daemon)
{
    const struct kvp_config *config = daemon->config;
    const struct kvp_rest_config rest = kvp_config_rest(config);
    const struct kvp_cluster_config cluster = kvp_config_cluster(config);
    const struct kvp_http_config http = {
        .routes = &kvp_route_table,
        .fds_reserved =
            kvp_program_descriptors(&cluster, (uint32_t)config->sessions_max) +
            (daemon->upstream.proxy != NULL ? (uint32_t)config->upstream_requests_max : 0),
        .proxy = daemon->upstream.proxy,
        .pass_free = strcmp(config->upstream_auth, "engine") == 0,
        .pass_authorization = daemon->upstream.authorization,
        .parsing_since_ns = daemon->parsing_since_ns,
        .inbox = kvp_control_inbox(daemon->control),
        .ops = &http_ops,
        .ctx = daemon};
    return kvp_rest_start(&daemon->rest, &rest, &http, daemon->metrics);
}

kvb_status_t kvp_daemon_create(const struct kvp_config *config, struct kvp_daemon **daemon_p)
{
    struct kvp_daemon *daemon = calloc(1, sizeof *daemon);
    if (daemon == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    daemon->config = config;
    kvb_timer_init(&daemon->stop_bound, on_stop_bound);
    kvb_status_t status = kvp_loop_create(&loop_ops, daemon, &daemon->loop);
    if (status != KVB_OK) {
        KVB_LOG(ERROR, "the event loop cannot be created; too few descriptors? (ulimit -n)",
                KVB_STATUS(status));
        free(daemon);
        return status;
    }
    daemon->metrics = kvb_metrics_create(kvp_metric_table, KVP_METRIC_COUNT);
    status = daemon->metrics == NULL
                 ? KVB_ERR_NO_MEMORY
                 : kvp_storage_create(config, daemon->loop, daemon->metrics, &daemon->storage);
    if (status == KVB_OK) {
        kvp_collect_init(&daemon->collect, daemon->metrics, kvp_storage_share(daemon->storage),
                         daemon->loop);
        if (config->metrics_compat) {
            daemon->collect.compat = kvp_compat_create(daemon->metrics);
            status = daemon->collect.compat == NULL ? KVB_ERR_NO_MEMORY : KVB_OK;
        }
        kvs_client_on_moved(kvp_storage_client(daemon->storage), on_moved, daemon);
    }
    if (status == KVB_OK) {
        status = create_board(daemon);
    }
    if (status == KVB_OK) {
        status = watch_threads(daemon);
    }
    if (status == KVB_OK) {
        status = kvp_events_create(kvp_events_epoch(), &daemon->events);
    }
    if (status == KVB_OK) {
        status = kvp_upstream_create(config, daemon->metrics, &daemon->upstream);
    }
    if (status == KVB_OK) {
        status = create_fleet(daemon);
    }
    if (status == KVB_OK) {
        status = create_link(daemon);
    }
    if (status == KVB_OK) {
        status = create_driver(daemon);
    }
    if (status == KVB_OK) {
        status = create_control(daemon);
    }
    if (status == KVB_OK) {
        status = create_dump(daemon);
    }
    if (status == KVB_OK) {
        status = create_http(daemon);
    }
    if (status != KVB_OK) {
        kvp_daemon_destroy(daemon);
        return status;
    }
    *daemon_p = daemon;
    return KVB_OK;
}

kvb_status_t kvp_daemon_run(struct kvp_daemon *daemon)
{
    KVB_LOG(INFO, "serving", KVB_STR("rest", daemon->rest.url),
            KVB_STR("engine_socket", daemon->config->engine_socket),
            KVB_U64("store_bytes", daemon->config->store_bytes));
    (void)printf("kvplane ready %s\n", daemon->rest.url);
    (void)fflush(stdout);
    kvp_program_notify("READY=1");
    kvp_loop_run(daemon->loop);
    return daemon->ended;
}

void kvp_daemon_destroy(struct kvp_daemon *daemon)
{
    if (daemon->link != NULL && !daemon->stopping) { /* never ran: nobody attached */
        kvp_link_stop(daemon->link, on_link_stopped, daemon);
        kvp_loop_run(daemon->loop);
    }
    if (daemon->driver != NULL) {
        kvp_driver_stop(daemon->driver);
    }
    if (daemon->fleet != NULL) {
        kvp_fleet_destroy(daemon->fleet);
    }
    kvp_driver_destroy(daemon->driver);
    kvp_web_destroy(daemon->web);
    if (daemon->link != NULL) {
        kvp_link_destroy(daemon->link);
    }
    kvp_storage_destroy(daemon->storage); /* ends what control asked of the coordinator */
    kvp_dump_destroy(daemon->dump);
    if (daemon->control != NULL) {
        kvp_control_destroy(daemon->control);
    }
    if (daemon->board != NULL) {
        kvp_board_destroy(daemon->board);
    }
    kvp_events_destroy(daemon->events);
    kvp_upstream_destroy(&daemon->upstream);
    kvb_metrics_destroy(daemon->metrics);
    kvp_compat_destroy(daemon->collect.compat);
    kvp_loop_destroy(daemon->loop);
    free(daemon);
}

/* ---- the subcommand ---- */

static kvb_status_t create(const struct kvp_config *config, struct kvp_daemon **daemon_p)
{
    kvp_mooncake_tell(&config->mooncake);
    if (!config->sleep_mode) {
        KVB_LOG(INFO, "sleep mode is off: no engine can be put to sleep");
    }
    return kvp_daemon_create(config, daemon_p);
}

int kvp_serve_main(int argc, char **argv)
{
    char error[KVP_CONFIG_ERROR_MAX];
    struct kvp_config config;
    kvp_loop_hold_signals();
    kvb_status_t status = kvp_config_read(argc - 1, (const char *const *)argv + 1, &config, error);
    if (status != KVB_OK) {
        (void)fprintf(stderr, "kvplane serve: %s\n", error);
        return status == KVB_ERR_INVALID ? 2 : 1;
    }
    int code = 1;
    struct kvp_daemon *daemon;
    if (kvp_program_begin(config.log_level, config.log_format, config.fault) != KVB_OK) {
        code = 2;
    } else if (create(&config, &daemon) == KVB_OK) {
        status = kvp_daemon_run(daemon);
        if (status == KVB_OK) {
            kvp_daemon_destroy(daemon);
            code = 0;
        } /* else transfers still run over what would be freed: the process's end does it */
    }
    kvp_config_cleanup(&config);
    return code;
}
