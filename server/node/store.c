/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store.h"

#include "cluster.h"
#include "collect.h"
#include "dump.h"
#include "loop.h"
#include "metrics.h"
#include "node/control.h"
#include "node/leaving.h"
#include "node/routes.h"
#include "node/server.h"
#include "program.h"
#include "rdma.h"

#include "base/assert.h"
#include "base/faults.h"
#include "base/log.h"
#include "store/node.h"
#include "transport/transport.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Threads: this one, whose loop accepts connections, does the share's upkeep, talks to etcd and
 * answers the REST calls; the I/O threads (node/server.h); those of HTTP, which read a few atomics
 * for probes.
 *
 * It leaves in steps: `draining`, in which others place nothing new here and read what they still
 * want; `going`, in which it is withdrawn; and the end.
 */
enum {
    HEARTBEAT_MS = 2000, /* a loop that has not turned for so long hangs */
    WITHDRAW_MS = 3000,  /* etcd has answered by then, or the lease will tell */
    TRANSFERS_MAX = 16,  /* of this process's own questions for objects */
    GRACE_MS = 60000,    /* a store node names no weights */
};

struct kvp_store {
    const struct kvp_store_config *config;
    struct kvp_loop *loop;
    struct kvb_metrics *metrics;
    struct kvp_collect collect;
    struct kvp_dump *dump;
    struct kvs_share *share;
    struct kvs_keeper keeper;
    /* its own way to its objects */
    struct kvt_regions *regions;
    struct kvt_transport *loopback;
    struct kvs_node *node;
    struct kvs_client *client;
    /* the others' */
    struct kvs_node_record record;
    struct kvp_rdma rdma;
    struct kvp_server *server;
    struct kvs_coordinator *coordinator; /* NULL: no etcd */
    struct kvp_cluster *cluster;
    struct kvp_node_control *control;
    struct kvp_rest rest;
    uint64_t told_ns; /* kvp_program_alive() */
    /* leaving */
    bool going;
    struct kvp_leaving leaving;
    /* read by probes; any thread */
    atomic_bool draining;
    atomic_bool known; /* etcd has been reached once, or there is none */
    atomic_bool etcd_reachable;
};

/* ---- leaving ---- */

static void on_withdrawn(void *ctx)
{
    struct kvp_store *store = ctx;
    kvp_loop_stop(store->loop);
}

static void go(void *ctx)
{
    struct kvp_store *store = ctx;
    store->going = true;
    kvp_leaving_stop(&store->leaving);
    KVB_LOG(INFO, "going", KVB_U64("requests_running", kvp_server_running(store->server)));
    kvp_node_control_close(store->control);
    kvp_rest_stop(&store->rest);
    if (store->cluster != NULL) {
        kvp_cluster_stop(store->cluster, WITHDRAW_MS, on_withdrawn, store);
    } else {
        kvp_loop_stop(store->loop);
    }
}

static void drain(void *ctx)
{
    struct kvp_store *store = ctx;
    if (atomic_load(&store->draining)) {
        return;
    }
    atomic_store(&store->draining, true);
    kvp_program_notify("STOPPING=1");
    store->record.draining = true;
    if (store->cluster != NULL) {
        kvp_cluster_drain(store->cluster);
    }
    store->leaving = (struct kvp_leaving){.sched = kvp_loop_sched(store->loop),
                                          .share = store->share,
                                          .server = store->server,
                                          .over = go,
                                          .ctx = store};
    kvp_leaving_start(&store->leaving, store->config->drain_bound);
}

/* ---- the loop ---- */

static void on_woken(void *ctx)
{
    struct kvp_store *store = ctx;
    if (store->share != NULL) {
        kvs_keeper_woken(&store->keeper);
    }
    if (store->control != NULL) {
        kvp_node_control_run(store->control);
    }
}

static void on_signalled(void *ctx, int signum)
{
    struct kvp_store *store = ctx;
    if (signum == SIGHUP) {
        if (kvp_rest_started(&store->rest)) {
            kvp_rest_reload(&store->rest);
        }
        return;
    }
    if (signum == SIGUSR1) {
        if (kvp_rest_started(&store->rest)) {
            kvp_dump_start(store->dump);
        }
        return;
    }
    KVB_LOG(INFO, "asked to leave", KVB_STR("signal", strsignal(signum)));
    if (!atomic_load(&store->draining)) {
        drain(store);
    } else if (!store->going) {
        go(store);
    }
}

static void on_beat(void *ctx, uint64_t now_ns, uint64_t lag_ns)
{
    struct kvp_store *store = ctx;
    kvp_program_alive(now_ns, &store->told_ns);
    if (kvp_rest_started(&store->rest)) { /* whole */
        kvp_collect_beat(&store->collect, lag_ns);
        kvb_series_set(kvb_series0(store->metrics, KVP_M_HTTP_CONNECTIONS),
                       kvp_rest_connections(&store->rest));
        atomic_store(&store->known,
                     store->cluster == NULL || kvp_cluster_was_reachable(store->cluster));
        atomic_store(&store->etcd_reachable,
                     store->cluster != NULL && kvp_cluster_reachable(store->cluster));
    }
}

static const struct kvp_loop_ops loop_ops = {
    .woken = on_woken, .signalled = on_signalled, .beat = on_beat};

/* ---- probes: HTTP's thread ---- */

#define YES(word) "{\"status\":\"" word "\"}"

static void ask(const struct kvp_store *store, bool ready, const char *yes,
                struct kvp_probe_answer *answer)
{
    uint64_t since_ns = kvb_now_ns(&kvb_clock_real) - HEARTBEAT_MS * KVB_NS_PER_MS;
    json_t *reasons = json_array();
    if (kvp_loop_beat_ns(store->loop) < since_ns) {
        (void)json_array_append_new(
            reasons, json_string("thread main is stuck: the node's loop does not turn"));
    }
    for (uint32_t i = 0; i < kvp_server_threads(store->server); i++) {
        if (kvp_server_thread_beat_ns(store->server, i) < since_ns) {
            (void)json_array_append_new(
                reasons, json_sprintf("thread io-%u is stuck: its loop does not turn", i));
        }
    }
    if (ready && atomic_load(&store->draining)) {
        (void)json_array_append_new(reasons, json_string("the node is leaving"));
    }
    if (ready && !atomic_load(&store->known)) {
        (void)json_array_append_new(
            reasons, json_string("etcd has not been reached yet: nobody knows of this node"));
    }
    if (json_array_size(reasons) > 0) {
        kvp_probe_reasons(reasons, answer);
        return;
    }
    json_decref(reasons);
    kvp_probe_constant(yes, answer);
}

static void on_probe(void *ctx, const struct kvp_route *route, const char *instance,
                     struct kvp_probe_answer *answer_p)
{
    const struct kvp_store *store = ctx;
    (void)instance;
    switch ((enum kvp_store_route_id)route->id) {
    case KVP_STORE_health:
        ask(store, false, YES("ok"), answer_p);
        return;
    case KVP_STORE_livez:
        ask(store, false, YES("alive"), answer_p);
        return;
    case KVP_STORE_readyz:
        ask(store, true, YES("ready"), answer_p);
        return;
    case KVP_STORE_metrics:
        kvp_probe_metrics(store->metrics, answer_p);
        return;
    case KVP_STORE_version:
        answer_p->json = json_pack("{s:s, s:s}", "name", "kvplane store", "version", KVP_VERSION);
        return;
    case KVP_STORE_openapi:
        kvp_probe_bytes(kvp_openapi_store, kvp_openapi_store_end, "application/yaml", answer_p);
        return;
    default:
        KVB_UNREACHABLE("a route of kind CONTROL");
    }
}

static bool on_is_stopping(void *ctx)
{
    return atomic_load(&((struct kvp_store *)ctx)->draining);
}

static void on_answered(void *ctx, const struct kvp_http_answered *answered)
{
    kvp_program_audit(answered);
    kvp_collect_answered(&((struct kvp_store *)ctx)->collect, answered);
}

static const struct kvp_http_ops http_ops = {
    .probe = on_probe, .stopping = on_is_stopping, .answered = on_answered};

/* At a scrape; any thread. */
static void on_collect(void *ctx)
{
    struct kvp_store *store = ctx;
    kvp_collect_server(store->metrics, store->server, &store->rdma);
    kvb_series_set(kvb_series0(store->metrics, KVP_M_ETCD_REACHABLE),
                   atomic_load(&store->etcd_reachable));
}

/* ---- start ---- */

static kvb_status_t create_share(struct kvp_store *store)
{
    const struct kvp_store_config *config = store->config;
    struct kvb_sched *sched = kvp_loop_sched(store->loop);
    const struct kvs_share_config share = {.bytes = config->store_bytes,
                                           .shards = (uint32_t)config->shards,
                                           .huge_pages = config->huge_pages,
                                           .prefault = config->prefault,
                                           .events = (uint32_t)config->events};
    kvb_status_t status = config->huge_pages ? KVB_OK : kvp_program_memory(config->store_bytes);
    if (status == KVB_OK) {
        status = kvs_share_create(sched->random, &share, &store->share);
    }
    if (status != KVB_OK) {
        return status;
    }
    kvs_keeper_start(&store->keeper, store->share, sched, kvp_loop_wake, store->loop);
    kvp_collect_init(&store->collect, store->metrics, store->share, store->loop);
    if (config->metrics_compat) {
        store->collect.compat = kvp_compat_create(store->metrics);
        if (store->collect.compat == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
    }
    status = kvt_regions_create(sched, &store->regions);
    if (status == KVB_OK) {
        status = kvt_loopback_create(store->regions, TRANSFERS_MAX, &store->loopback);
    }
    if (status == KVB_OK) {
        const struct kvs_node_config node = {.ticket_ms = config->ticket};
        status = kvs_node_create(sched, store->loopback, store->share, &node, &store->node);
    }
    if (status == KVB_OK) {
        status = kvs_client_create(sched, &store->client);
    }
    if (status == KVB_OK) {
        status = kvs_client_add_node(store->client, "local", store->node, config->store_bytes);
    }
    return status;
}

static kvb_status_t create_server(struct kvp_store *store)
{
    const struct kvp_store_config *config = store->config;
    const struct kvp_cluster_config cluster = kvp_store_config_cluster(config);
    struct kvt_peer_common common = {.net = NULL};
    char address[KVP_ADDRESS_MAX];
    int listener;
    kvb_status_t status = kvp_program_common(&cluster, &common);
    if (status == KVB_OK) {
        status = kvp_rdma_open(&cluster, kvp_loop_sched(store->loop), kvp_loop_io(store->loop),
                               &store->rdma);
    }
    if (status == KVB_OK) {
        status = kvp_rdma_serve(&store->rdma, &cluster, store->share);
    }
    if (status == KVB_OK) {
        status = kvp_program_listen(config->cluster_listen, &listener, address);
    }
    if (status != KVB_OK) {
        return status;
    }
    kvp_program_record(&cluster, address, config->store_bytes, &store->record);
    const struct kvp_server_config server = {
        .sched = kvp_loop_sched(store->loop),
        .io = kvp_loop_io(store->loop),
        .share = store->share,
        .listener = listener,
        .rdma = store->rdma.share != NULL ? store->rdma.device : NULL,
        .rdma_listen = store->rdma.listen,
        .rdma_must = store->rdma.only,
        .threads = (uint32_t)config->io_threads,
        .common = common,
        .name = store->record.name,
        .incarnation = store->record.incarnation,
        .ticket_ms = kvb_fault_run() ? 0 : config->ticket,
        .hold_ms = config->hold,
        .metrics = store->metrics,
        .lanes_max = (uint32_t)config->lanes_max,
        .lanes_each_max = (uint32_t)config->lanes_each_max,
    };
    status = kvp_server_create(&server, &store->server);
    if (status == KVB_OK) {
        kvp_rdma_address(&store->rdma, kvp_server_rdma_port(store->server), store->record.rdma);
    } else {
        (void)close(listener);
    }
    explicit_bzero(&common, sizeof common);
    return status;
}

static kvb_status_t create_cluster(struct kvp_store *store)
{
    const struct kvp_cluster_config cluster = kvp_store_config_cluster(store->config);
    if (cluster.etcd[0] == '\0') {
        KVB_LOG(WARN, "without etcd nobody is told of this node");
        atomic_store(&store->known, true);
        return KVB_OK;
    }
    struct kvb_sched *sched = kvp_loop_sched(store->loop);
    kvb_status_t status = kvp_program_etcd(&cluster, GRACE_MS, store->record.name, sched,
                                           kvp_loop_io(store->loop), &store->coordinator);
    if (status == KVB_OK) {
        const struct kvp_cluster_params params = {.sched = sched,
                                                  .coordinator = store->coordinator,
                                                  .share = store->share,
                                                  .own = store->record};
        status = kvp_cluster_create(&params, &store->cluster);
    }
    return status;
}

static uint32_t count_running(void *ctx)
{
    return kvp_server_running(((const struct kvp_store *)ctx)->server);
}

static void show_config(const void *config, FILE *out)
{
    kvp_store_config_show(config, out);
}

static kvb_status_t create_dump(struct kvp_store *store)
{
    static const struct kvp_dump_ask asks[] = {{"node", "/v1/kvplane/node"},
                                               {"events", "/v1/kvplane/events"}};
    const struct kvp_dump_config dump = {.program = "store",
                                         .dir = store->config->dump_dir,
                                         .asks = asks,
                                         .nasks = sizeof asks / sizeof asks[0],
                                         .routes = &kvp_store_route_table,
                                         .inbox = kvp_node_control_inbox(store->control),
                                         .metrics = store->metrics,
                                         .show_config = show_config,
                                         .config = store->config};
    store->dump = kvp_dump_create(&dump);
    return store->dump == NULL ? KVB_ERR_NO_MEMORY : KVB_OK;
}

static kvb_status_t create_rest(struct kvp_store *store)
{
    const struct kvp_store_config *config = store->config;
    const struct kvp_node_control_config control = {.sched = kvp_loop_sched(store->loop),
                                                    .share = store->share,
                                                    .client = store->client,
                                                    .record = &store->record,
                                                    .queue_max = (uint32_t)config->requests_max,
                                                    .wake = kvp_loop_wake,
                                                    .wake_ctx = store->loop,
                                                    .drain = drain,
                                                    .running = count_running,
                                                    .ctx = store};
    kvb_status_t status = kvp_node_control_create(&control, &store->control);
    if (status != KVB_OK) {
        return status;
    }
    kvb_metrics_on_collect(store->metrics, on_collect, store);
    status = create_dump(store);
    if (status != KVB_OK) {
        return status;
    }
    const struct kvp_rest_config rest = kvp_store_config_rest(config);
    const struct kvp_cluster_config cluster = kvp_store_config_cluster(config);
    const struct kvp_http_config http = {.routes = &kvp_store_route_table,
                                         .fds_reserved = kvp_program_descriptors(&cluster, 0),
                                         .inbox = kvp_node_control_inbox(store->control),
                                         .ops = &http_ops,
                                         .ctx = store};
    return kvp_rest_start(&store->rest, &rest, &http, store->metrics);
}

kvb_status_t kvp_store_create(const struct kvp_store_config *config, struct kvp_store **store_p)
{
    struct kvp_store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    store->config = config;
    kvb_status_t status = kvp_loop_create(&loop_ops, store, &store->loop);
    if (status != KVB_OK) {
        KVB_LOG(ERROR, "the event loop cannot be created; too few descriptors? (ulimit -n)",
                KVB_STATUS(status));
        free(store);
        return status;
    }
    store->metrics = kvb_metrics_create(kvp_metric_table, KVP_METRIC_COUNT);
    status = store->metrics == NULL ? KVB_ERR_NO_MEMORY : create_share(store);
    if (status == KVB_OK) {
        status = create_server(store);
    }
    if (status == KVB_OK) {
        status = create_cluster(store);
    }
    if (status == KVB_OK) {
        status = create_rest(store);
    }
    if (status != KVB_OK) {
        KVB_LOG(ERROR, "the store node cannot start", KVB_STATUS(status));
        kvp_store_destroy(store);
        return status;
    }
    *store_p = store;
    return KVB_OK;
}

void kvp_store_run(struct kvp_store *store)
{
    KVB_LOG(INFO, "serving", KVB_STR("node", store->record.name),
            KVB_STR("address", store->record.address), KVB_STR("rdma", store->record.rdma),
            KVB_STR("rest", store->rest.url), KVB_U64("store_bytes", store->config->store_bytes));
    (void)printf("kvplane store ready %s %s\n", store->record.address, store->rest.url);
    (void)fflush(stdout);
    kvp_program_notify("READY=1");
    kvp_loop_run(store->loop);
}

void kvp_store_destroy(struct kvp_store *store)
{
    kvp_leaving_stop(&store->leaving);
    if (store->control != NULL) {
        kvp_node_control_close(store->control);
    }
    if (kvp_rest_started(&store->rest)) {
        kvp_rest_stop(&store->rest);
    }
    kvp_server_destroy(store->server);
    if (store->coordinator != NULL) {
        kvs_coordinator_destroy(store->coordinator);
    }
    if (store->client != NULL) {
        kvs_client_destroy(store->client);
    }
    kvp_cluster_destroy(store->cluster);
    kvp_dump_destroy(store->dump);
    kvp_node_control_destroy(store->control);
    kvs_node_destroy(store->node);
    kvt_transport_destroy(store->loopback);
    kvt_regions_destroy(store->regions);
    kvp_rdma_close(&store->rdma);
    if (store->share != NULL) {
        kvs_keeper_stop(&store->keeper);
        kvs_share_destroy(store->share);
    }
    kvb_metrics_destroy(store->metrics);
    kvp_compat_destroy(store->collect.compat);
    kvp_loop_destroy(store->loop);
    free(store);
}

int kvp_store_main(int argc, char **argv)
{
    char error[KVP_CONFIG_ERROR_MAX];
    struct kvp_store_config config;
    kvp_loop_hold_signals();
    kvb_status_t status =
        kvp_store_config_read(argc - 1, (const char *const *)argv + 1, &config, error);
    if (status != KVB_OK) {
        (void)fprintf(stderr, "kvplane store: %s\n", error);
        return status == KVB_ERR_INVALID ? 2 : 1;
    }
    int code = 1;
    struct kvp_store *store;
    if (kvp_program_begin(config.log_level, config.log_format, config.fault) != KVB_OK) {
        code = 2;
    } else if (kvp_store_create(&config, &store) == KVB_OK) {
        kvp_store_run(store);
        kvp_store_destroy(store);
        code = 0;
    }
    kvp_store_config_cleanup(&config);
    return code;
}
