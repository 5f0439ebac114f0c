/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon.h"

#include "board.h"
#include "collect.h"
#include "config_values.h"
#include "control.h"
#include "control/probes.h"
#include "http/http.h"
#include "link/link.h"
#include "loop.h"
#include "metrics.h"
#include "tokens.h"

#include "base/assert.h"
#include "base/faults.h"
#include "base/log.h"
#include "store/coordinator.h"
#include "store/node.h"
#include "store/share.h"
#include "transport/transport.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/*
 * Start: from the inside out, so that whoever can be reached has everything he needs. Stop: first
 * nobody is let in any more and what is asked is answered (control, HTTP), then the engines are let
 * go (link: their transfers end, their regions go, the instances hear of it), and only then the
 * rest is taken apart, from the outside in.
 */
enum {
    HEARTBEAT_MS = 2000,  /* a loop that has not turned for so long hangs */
    STOP_MS = 15000,      /* transfers of engines that were let go have ended by then */
    TRANSFERS_MAX = 1024, /* of the loopback transport, at one time */
    INSTANCES_MAX = 64,   /* in `instances` */
};

struct kvp_daemon {
    const struct kvp_config *config;
    struct kvp_loop *loop;
    struct kvb_metrics *metrics;
    struct kvt_regions *regions;
    struct kvt_transport *loopback;
    struct kvs_share *share;
    struct kvs_keeper keeper;
    struct kvs_node *node;
    struct kvs_client *client;
    struct kvs_coordinator *coordinator;
    struct kvp_board *board;
    struct kvp_fleet *fleet;
    struct kvp_link *link;
    struct kvp_control *control;
    struct kvp_http *http;
    struct kvp_collect collect;
    struct kvb_timer stop_bound;
    bool stopping;
    kvb_status_t ended;
};

/* ---- what the parts ask ---- */

static void on_woken(void *ctx)
{
    struct kvp_daemon *daemon = ctx;
    if (daemon->share != NULL) {
        kvs_keeper_woken(&daemon->keeper);
    }
    if (daemon->control != NULL) {
        kvp_control_run(daemon->control);
    }
}

static void on_beat(void *ctx, uint64_t now_ns, uint64_t lag_ns)
{
    (void)now_ns;
    struct kvp_daemon *daemon = ctx;
    if (daemon->http != NULL) { /* whole */
        kvp_board_beat(daemon->board);
        kvp_collect_beat(&daemon->collect, daemon->fleet, lag_ns);
    }
}

static void on_changed(void *ctx, const struct kvp_view *view)
{
    struct kvp_daemon *daemon = ctx;
    kvp_board_publish(daemon->board, view);
    kvp_collect_instance(&daemon->collect, view);
}

static void on_event(void *ctx, const char *instance, const char *kind, const char *detail)
{
    (void)ctx;
    KVB_LOG(INFO, kind, KVB_STR("instance", instance), KVB_STR("detail", detail));
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

static void on_link_stopped(void *ctx)
{
    struct kvp_daemon *daemon = ctx;
    kvb_sched_timer_clear(kvp_loop_sched(daemon->loop), &daemon->stop_bound);
    kvp_loop_stop(daemon->loop);
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
    if (daemon->stopping) {
        return; /* it is bounded anyway */
    }
    daemon->stopping = true;
    KVB_LOG(INFO, "stopping", KVB_STR("signal", strsignal(signum)));
    kvp_board_stopping(daemon->board);
    kvp_control_close(daemon->control);
    kvp_http_stop(daemon->http);
    daemon->http = NULL;
    struct kvb_sched *sched = kvp_loop_sched(daemon->loop);
    kvb_sched_timer_set(sched, &daemon->stop_bound, kvb_deadline_in_ms(sched->clock, STOP_MS));
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
    kvp_collect_answered(&((struct kvp_daemon *)ctx)->collect, answered);
}

static const struct kvp_http_ops http_ops = {
    .probe = on_probe, .stopping = on_is_stopping, .answered = on_answered};

/* ---- start ---- */

static const struct kvp_loop_ops loop_ops = {
    .woken = on_woken, .signalled = on_signalled, .beat = on_beat};

static void set_quota(void *arg, const char *tenant, uint64_t quota)
{
    struct kvp_daemon *daemon = arg;
    if (quota == KVP_QUOTA_NONE || daemon->ended != KVB_OK) {
        return;
    }
    daemon->ended = kvs_share_set_quota(daemon->share, tenant, quota);
}

static kvb_status_t create_store(struct kvp_daemon *daemon)
{
    const struct kvp_config *config = daemon->config;
    struct kvb_sched *sched = kvp_loop_sched(daemon->loop);
    const struct kvs_share_config share = {.bytes = config->store_bytes,
                                           .shards = (uint32_t)config->shards};
    const struct kvs_node_config node = {.ticket_ms = kvb_fault_run() ? 0 : config->transfer_bound};
    kvb_status_t status = kvt_regions_create(sched, &daemon->regions);
    if (status == KVB_OK) {
        status = kvt_loopback_create(daemon->regions, TRANSFERS_MAX, &daemon->loopback);
    }
    if (status == KVB_OK) {
        status = kvs_share_create(sched->random, &share, &daemon->share);
    }
    if (status == KVB_OK) {
        kvs_keeper_start(&daemon->keeper, daemon->share, sched, kvp_loop_wake, daemon->loop);
        status = kvs_node_create(sched, daemon->loopback, daemon->share, &node, &daemon->node);
    }
    if (status == KVB_OK && kvp_config_each_tenant(config->tenants, set_quota, daemon)) {
        status = daemon->ended;
    }
    if (status == KVB_OK) {
        status = kvs_client_create(sched, &daemon->client);
    }
    if (status == KVB_OK) {
        status = kvs_client_add_node(daemon->client, "local", daemon->node, config->store_bytes);
    }
    if (status == KVB_OK) {
        status = kvs_embedded_create(sched, config->name_grace, &kvs_share_reclaim, daemon->share,
                                     &daemon->coordinator);
    }
    if (status != KVB_OK) {
        KVB_LOG(ERROR, "the store cannot be created", KVB_U64("bytes", config->store_bytes),
                KVB_STATUS(status));
    }
    return status;
}

static kvb_status_t create_board(struct kvp_daemon *daemon)
{
    char names[INSTANCES_MAX][KVB_NAME_MAX];
    const char *pointers[INSTANCES_MAX];
    uint32_t n = 0;
    for (const char *at = daemon->config->instances; *at != '\0'; n++) {
        if (n == INSTANCES_MAX) {
            KVB_LOG(ERROR, "instances: too many", KVB_U64("limit", INSTANCES_MAX));
            return KVB_ERR_INVALID;
        }
        at = kvp_next_item(at, names[n], sizeof names[n]);
        pointers[n] = names[n];
    }
    const struct kvp_board_config board = {.clock = &kvb_clock_real,
                                           .instances = pointers,
                                           .ninstances = n,
                                           .heartbeat_ms = HEARTBEAT_MS};
    return kvp_board_create(&board, &daemon->board);
}

static kvb_status_t create_fleet(struct kvp_daemon *daemon)
{
    const struct kvp_config *config = daemon->config;
    const struct kvp_fleet_config fleet = {
        .sched = kvp_loop_sched(daemon->loop),
        .coordinator = daemon->coordinator,
        .bounds = {.drain_ms = config->drain_bound,
                   .transfer_ms = config->transfer_bound,
                   .abort_ms = config->abort_bound,
                   .slot_wait_ms = config->slot_wait,
                   .retire_ms = config->retire_bound,
                   .forward_retry_ms = config->forward_retry,
                   .forward_tries = (uint32_t)config->forward_tries},
        .unversioned_event = strcmp(config->unversioned, "none") == 0 ? NULL : config->unversioned,
        .changed = on_changed,
        .event = on_event,
        .ctx = daemon,
    };
    return kvp_fleet_create(&fleet, &daemon->fleet);
}

static kvb_status_t create_link(struct kvp_daemon *daemon)
{
    const struct kvp_config *config = daemon->config;
    const struct kvp_link_config link = {
        .sched = kvp_loop_sched(daemon->loop),
        .loop = kvp_loop_uv(daemon->loop),
        .fleet = daemon->fleet,
        .store = daemon->client,
        .regions = daemon->regions,
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
    };
    return kvp_link_create(&link, &daemon->link);
}

static kvb_status_t create_control(struct kvp_daemon *daemon)
{
    const struct kvp_control_config control = {.fleet = daemon->fleet,
                                               .coordinator = daemon->coordinator,
                                               .clock = &kvb_clock_real,
                                               .retire_ms = daemon->config->retire_bound,
                                               .queue_max = (uint32_t)daemon->config->requests_max,
                                               .wake = kvp_loop_wake,
                                               .wake_ctx = daemon->loop};
    return kvp_control_create(&control, &daemon->control);
}

static kvb_status_t start_http(struct kvp_daemon *daemon, const struct kvp_http_token *tokens,
                               uint32_t ntokens)
{
    const struct kvp_config *config = daemon->config;
    char host[KVB_LAYOUT_MAX];
    uint16_t port;
    kvb_status_t status = kvp_split_address(config->listen, host, sizeof host, &port);
    kvb_assert(status == KVB_OK); /* checked at start */
    const struct kvp_http_config http = {.address = host,
                                         .port = port,
                                         .tokens = tokens,
                                         .ntokens = ntokens,
                                         .connections_max = (uint32_t)config->connections_max,
                                         .idle_timeout_s = (uint32_t)(config->idle_timeout / 1000),
                                         .clock = &kvb_clock_real,
                                         .random = &kvb_random_real,
                                         .routes = &kvp_route_table,
                                         .inbox = kvp_control_inbox(daemon->control),
                                         .ops = &http_ops,
                                         .ctx = daemon};
    return kvp_http_start(&http, &daemon->http);
}

static kvb_status_t create_http(struct kvp_daemon *daemon)
{
    uint32_t ntokens = 0;
    kvb_status_t status = KVB_OK;
    struct kvp_http_token *tokens = calloc(KVP_HTTP_TOKENS_MAX, sizeof *tokens);
    if (tokens == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    if (daemon->config->token_file[0] != '\0') {
        char error[KVP_CONFIG_ERROR_MAX];
        status = kvp_tokens_read(daemon->config->token_file, tokens, &ntokens, error);
        if (status != KVB_OK) {
            KVB_LOG(ERROR, error);
        }
    }
    if (status == KVB_OK) {
        status = start_http(daemon, tokens, ntokens);
    }
    explicit_bzero(tokens, KVP_HTTP_TOKENS_MAX * sizeof *tokens);
    free(tokens);
    return status;
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
    status = daemon->metrics == NULL ? KVB_ERR_NO_MEMORY : create_store(daemon);
    if (status == KVB_OK) {
        kvp_collect_init(&daemon->collect, daemon->metrics, daemon->share, daemon->loop);
        status = create_board(daemon);
    }
    if (status == KVB_OK) {
        status = create_fleet(daemon);
    }
    if (status == KVB_OK) {
        status = create_link(daemon);
    }
    if (status == KVB_OK) {
        status = create_control(daemon);
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
    char host[KVB_LAYOUT_MAX];
    uint16_t port;
    kvb_status_t status = kvp_split_address(daemon->config->listen, host, sizeof host, &port);
    kvb_assert(status == KVB_OK);
    bool bare = strchr(host, ':') == NULL;
    KVB_LOG(INFO, "serving", KVB_STR("host", host), KVB_U64("port", kvp_http_port(daemon->http)),
            KVB_STR("engine_socket", daemon->config->engine_socket),
            KVB_U64("store_bytes", daemon->config->store_bytes));
    (void)printf(bare ? "kvplane ready http://%s:%u\n" : "kvplane ready http://[%s]:%u\n", host,
                 kvp_http_port(daemon->http));
    (void)fflush(stdout);
    kvp_loop_run(daemon->loop);
    return daemon->ended;
}

static void destroy_store(struct kvp_daemon *daemon)
{
    if (daemon->coordinator != NULL) {
        kvs_coordinator_destroy(daemon->coordinator);
    }
    if (daemon->client != NULL) {
        kvs_client_destroy(daemon->client);
    }
    kvs_node_destroy(daemon->node);
    if (daemon->share != NULL) {
        kvs_keeper_stop(&daemon->keeper);
        kvs_share_destroy(daemon->share);
    }
    kvt_transport_destroy(daemon->loopback);
    kvt_regions_destroy(daemon->regions);
}

void kvp_daemon_destroy(struct kvp_daemon *daemon)
{
    if (daemon->link != NULL && !daemon->stopping) { /* never ran: nobody attached */
        kvp_link_stop(daemon->link, on_link_stopped, daemon);
        kvp_loop_run(daemon->loop);
    }
    if (daemon->fleet != NULL) {
        kvp_fleet_destroy(daemon->fleet);
    }
    if (daemon->link != NULL) {
        kvp_link_destroy(daemon->link);
    }
    destroy_store(daemon); /* ends what control asked of the coordinator */
    if (daemon->control != NULL) {
        kvp_control_destroy(daemon->control);
    }
    if (daemon->board != NULL) {
        kvp_board_destroy(daemon->board);
    }
    kvb_metrics_destroy(daemon->metrics);
    kvp_loop_destroy(daemon->loop);
    free(daemon);
}

/* ---- the subcommand ---- */

static kvb_status_t choose_fault(const char *fault)
{
    if (fault[0] == '\0') {
        return KVB_OK;
    }
#ifdef KVB_FAULTS
    kvb_status_t status = kvb_fault_choose(fault);
#else
    kvb_status_t status = KVB_ERR_UNSUPPORTED;
#endif
    if (status == KVB_OK) {
        KVB_LOG(WARN, "a protection is taken out: never serve like this", KVB_STR("fault", fault));
    } else {
        KVB_LOG(ERROR, "fault: no such switch in this build", KVB_STR("fault", fault));
    }
    return status;
}

static void set_up_log(const struct kvp_config *config)
{
    enum kvb_log_level level = KVB_LOG_INFO;
    bool known = kvb_log_parse_level(config->log_level, &level);
    kvb_assert(known); /* one of the words of its list */
    bool json = strcmp(config->log_format, "json") == 0;
    kvb_log_setup(level, json ? KVB_LOG_JSON : KVB_LOG_LOGFMT, STDERR_FILENO);
}

static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* fewer connections then, nothing worse */
    }
}

int kvp_serve_main(int argc, char **argv)
{
    char error[KVP_CONFIG_ERROR_MAX];
    struct kvp_config config;
    kvb_status_t status = kvp_config_read(argc - 1, (const char *const *)argv + 1, &config, error);
    if (status != KVB_OK) {
        (void)fprintf(stderr, "kvplane serve: %s\n", error);
        return status == KVB_ERR_INVALID ? 2 : 1;
    }
    set_up_log(&config);
    raise_descriptor_limit();
    (void)signal(SIGPIPE, SIG_IGN);
    int code = 1;
    struct kvp_daemon *daemon;
    if (choose_fault(config.fault) != KVB_OK) {
        code = 2;
    } else if (kvp_daemon_create(&config, &daemon) == KVB_OK) {
        status = kvp_daemon_run(daemon);
        if (status == KVB_OK) {
            kvp_daemon_destroy(daemon);
            code = 0;
        } /* else transfers still run over what would be freed: the process's end does it */
    }
    kvp_config_cleanup(&config);
    return code;
}
