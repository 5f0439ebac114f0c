/* SPDX-License-Identifier: Apache-2.0 */
#include "actors.h"
#include "cluster.h"
#include "etcd.h"
#include "link/link.h"
#include "wire.h"

#include "base/assert.h"
#include "base/faults.h"
#include "store/node.h"
#include "store/service.h"
#include "store/share.h"
#include "transport/tcp.h"
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The store node and the daemon, put together as server/node/store.c and server/storage.c do, less
 * what the simulation stands in for: loops, threads, listening sockets, HTTP.
 */
enum {
    LEASE_MS = 6000,
    GRACE_MS = 20000,
    TICKET_MS = 5000,
    HOLD_MS = 4000,
    TRANSFER_MS = 5000,
    SILENCE_MS = 1500,
};

/* ---- a share, served to others ---- */

struct served {
    struct sim_process *process;
    struct kvs_share *share;
    struct kvs_keeper keeper;
    struct kvb_event woken;
    struct kvs_service *service;
    struct kvs_node_record record;
};

static void on_woken(struct kvb_event *event)
{
    kvs_keeper_woken(&kvb_container_of(event, struct served, woken)->keeper);
}

static void wake_keeper(void *ctx)
{
    struct served *served = ctx;
    kvb_sched_post(&served->process->sched, &served->woken);
}

static void on_accept(void *ctx, int fd)
{
    struct served *served = ctx;
    kvb_status_t status = kvs_service_adopt(served->service, fd);
    (void)status; /* not taken: the net closes it */
}

static struct kvt_peer_common common_of(struct kvt_net *net)
{
    return (struct kvt_peer_common){.net = net,
                                    .secret = "sim",
                                    .secret_len = 3,
                                    .ping_ms = SILENCE_MS / 3,
                                    .silence_ms = SILENCE_MS,
                                    .hello_ms = 1000,
                                    .stall_ms = 3000};
}

static void must(kvb_status_t status)
{
    if (status != KVB_OK) {
        sim_fail("a process cannot start: %s", kvb_status_text(status));
    }
}

static void serve(struct served *served, struct sim_process *process, const char *name,
                  uint64_t bytes)
{
    served->process = process;
    kvb_event_init(&served->woken, on_woken);
    const struct kvs_share_config config = {.bytes = bytes, .shards = 2};
    must(kvs_share_create(&process->random, &config, &served->share));
    kvs_keeper_start(&served->keeper, served->share, &process->sched, wake_keeper, served);
    struct kvt_net *net = sim_net_open(process, on_accept, served);
    (void)snprintf(served->record.name, sizeof served->record.name, "%s", name);
    sim_address(process->machine, served->record.address);
    served->record.capacity_bytes = bytes;
    served->record.incarnation = kvb_id_draw(&process->random).lo;
    const struct kvs_service_config service = {.sched = &process->sched,
                                               .share = served->share,
                                               .common = common_of(net),
                                               .name = served->record.name,
                                               .incarnation = served->record.incarnation,
                                               .ticket_ms = kvb_fault_run() ? 0 : TICKET_MS,
                                               .hold_ms = HOLD_MS,
                                               .lanes_max = 256,
                                               .lanes_each_max = 64};
    must(kvs_service_create(&service, &served->service));
}

static const char *validate(const struct served *served)
{
    return served->share == NULL ? NULL : kvs_share_validate(served->share);
}

static struct kvs_coordinator *reach_etcd(struct sim_process *process)
{
    static const char *const endpoints[] = {"http://sim-etcd"};
    const struct kvs_etcd_config config = {.sched = &process->sched,
                                           .endpoints = endpoints,
                                           .nendpoints = 1,
                                           .request_ms = 2000,
                                           .lease_ms = LEASE_MS,
                                           .grace_ms = GRACE_MS,
                                           .process = process->name};
    struct kvs_coordinator *coordinator;
    must(kvs_etcd_create(&config, &coordinator));
    return coordinator;
}

/* ---- store nodes ---- */

struct sim_node {
    struct served served;
    struct kvp_cluster *cluster;
};

struct sim_node *sim_node_start(uint32_t number, uint32_t machine, uint64_t bytes)
{
    struct sim_node *node = calloc(1, sizeof *node);
    kvb_assert(node != NULL);
    char name[32];
    (void)snprintf(name, sizeof name, "store-%u", number);
    sim.off[machine] = false;
    struct sim_process *process = sim_process_start(name, machine);
    serve(&node->served, process, name, bytes);
    const struct kvp_cluster_params params = {.sched = &process->sched,
                                              .coordinator = reach_etcd(process),
                                              .share = node->served.share,
                                              .own = node->served.record};
    must(kvp_cluster_create(&params, &node->cluster));
    return node;
}

struct sim_process *sim_node_process(const struct sim_node *node)
{
    return node->served.process;
}

void sim_node_drain(struct sim_node *node)
{
    kvs_service_drain(node->served.service);
    kvp_cluster_drain(node->cluster);
}

const char *sim_node_validate(struct sim_node *node)
{
    return validate(&node->served);
}

uint64_t sim_node_reserved(struct sim_node *node)
{
    struct kvs_share_stats stats;
    kvs_share_stats(node->served.share, &stats);
    return stats.core.reserved_bytes;
}

/* ---- daemons ---- */

struct sim_daemon {
    struct sim_process *process;
    struct served served; /* share NULL: none */
    struct kvt_regions *regions;
    struct kvt_transport *loopback;
    struct kvs_node *node;
    struct kvs_client *client;
    struct kvs_coordinator *coordinator;
    struct kvp_cluster *cluster;
    struct kvp_fleet *fleet;
    struct kvp_link *link;
    uint32_t number;
    char instance[32];
};

static void on_changed(void *ctx, const struct kvp_view *view)
{
    (void)ctx;
    if (view->ready && view->is_sleeping) {
        sim_fail("P4: %s is ready and asleep", view->instance);
    }
}

static void on_describe(void *ctx, const struct kvp_view *view, char *text, size_t cap)
{
    (void)ctx;
    (void)snprintf(text, cap, "{\"open\":%s}", view->open ? "true" : "false");
}

static void on_fleet_event(void *ctx, const char *instance, const char *kind, const char *detail)
{
    (void)ctx;
    (void)instance;
    (void)kind;
    (void)detail;
}

static void create_store(struct sim_daemon *daemon, const char *name, uint64_t store_bytes)
{
    struct sim_process *process = daemon->process;
    struct kvb_sched *sched = &process->sched;
    must(kvt_regions_create(sched, &daemon->regions));
    must(kvs_client_create(sched, &daemon->client));
    kvs_client_set_health(daemon->client,
                          &(struct kvs_client_health){.lookup_ms = 300, .transfer_ms = 3000});
    struct kvp_cluster_params params = {
        .sched = sched, .client = daemon->client, .regions = daemon->regions};
    if (store_bytes > 0) {
        const struct kvs_node_config node = {.ticket_ms = kvb_fault_run() ? 0 : TICKET_MS,
                                             .hold_ms = HOLD_MS};
        serve(&daemon->served, process, name, store_bytes);
        must(kvt_loopback_create(daemon->regions, 64, &daemon->loopback));
        must(kvs_node_create(sched, daemon->loopback, daemon->served.share, &node, &daemon->node));
        params.share = daemon->served.share;
        params.own = daemon->served.record;
        params.local = daemon->node;
        params.common = common_of(process->net);
    } else {
        params.common = common_of(sim_net_open(process, NULL, NULL));
    }
    daemon->coordinator = reach_etcd(process);
    params.coordinator = daemon->coordinator;
    must(kvp_cluster_create(&params, &daemon->cluster));
}

struct sim_daemon *sim_daemon_start(uint32_t number, uint32_t machine, uint64_t store_bytes)
{
    struct sim_daemon *daemon = calloc(1, sizeof *daemon);
    kvb_assert(daemon != NULL);
    char name[32];
    (void)snprintf(name, sizeof name, "daemon-%u", number);
    (void)snprintf(daemon->instance, sizeof daemon->instance, "engine-%u", number);
    sim.off[machine] = false;
    daemon->process = sim_process_start(name, machine);
    daemon->number = number;
    create_store(daemon, name, store_bytes);
    const struct kvp_fleet_config fleet = {.sched = &daemon->process->sched,
                                           .coordinator = daemon->coordinator,
                                           .bounds = {.drain_ms = 10000,
                                                      .transfer_ms = TRANSFER_MS,
                                                      .abort_ms = 200,
                                                      .slot_wait_ms = 5000,
                                                      .retire_ms = 4000,
                                                      .forward_retry_ms = 500,
                                                      .forward_tries = 3},
                                           .changed = on_changed,
                                           .describe = on_describe,
                                           .event = on_fleet_event};
    must(kvp_fleet_create(&fleet, &daemon->fleet));
    const struct kvp_link_config link = {.sched = &daemon->process->sched,
                                         .fleet = daemon->fleet,
                                         .store = daemon->client,
                                         .regions = daemon->regions,
                                         .path = "",
                                         .sessions_max = 16,
                                         .queue_max = 64,
                                         .running_max = 8,
                                         .transfer_ms = TRANSFER_MS,
                                         .abort_ms = 200};
    must(kvp_link_create(&link, &daemon->link));
    return daemon;
}

struct sim_process *sim_daemon_process(const struct sim_daemon *daemon)
{
    return daemon->process;
}

struct kvp_fleet *sim_daemon_fleet(const struct sim_daemon *daemon)
{
    return daemon->fleet;
}

const char *sim_daemon_validate(struct sim_daemon *daemon)
{
    return validate(&daemon->served);
}

void sim_daemon_kill(struct sim_daemon *daemon, bool off)
{
    sim_process_kill(daemon->process, off);
    sim_wire_died(daemon->process);
}

/* ---- what is asked of them ---- */

/* An operation ends: its steps have bounds, and there are not many. */
#define ANSWER_MAX_NS (900 * KVB_NS_PER_S)

struct ask {
    struct ask *next;
    struct sim_daemon *daemon;
    struct kvp_ask what;
    char body[64];
    uint64_t asked_ns;
    uint64_t weights; /* of its engine, then, */
    struct sim_shares shares;
    uint32_t times;
    kvb_status_t *status_p; /* NULL: nobody wants it */
};
static struct ask *asks;

static bool changes_weights(enum kvp_operation operation)
{
    return operation == KVP_OP_START_UPDATE || operation == KVP_OP_UPDATE ||
           operation == KVP_OP_FINISH_UPDATE;
}

static void on_outcome(void *arg, const struct kvp_outcome *outcome)
{
    struct ask *ask = arg;
    if (ask->times++ > 0) {
        sim_fail("P5: %s of %s was answered twice", kvp_operation_label(ask->what.operation),
                 ask->daemon->instance);
    }
    sim_counts.operations_failed += outcome->status != KVB_OK;
    if (ask->status_p != NULL) {
        *ask->status_p = outcome->status;
    }
    if (outcome->status != KVB_OK && changes_weights(ask->what.operation)) {
        sim_weights_changed(ask->daemon->number); /* it has left, whatever reached the engine */
    }
    bool tenant = ask->what.operation == KVP_OP_TENANT_RESET;
    bool own = ask->what.operation == KVP_OP_RESET && ask->what.reset_external == KVP_YES;
    for (uint32_t i = 0; outcome->status == KVB_OK && i < SIM_ENGINES_MAX; i++) {
        struct sim_resets *resets = &sim_resets[i];
        uint64_t *own_ns = own && i == ask->daemon->number && ask->weights < SIM_WEIGHTS_MAX &&
                                   ask->shares.named && ask->shares.changes == sim_shares[i].changes
                               ? &resets->own_ns[ask->weights]
                               : NULL;
        uint64_t *reset_ns = tenant ? &resets->tenant_ns : own_ns;
        if (reset_ns != NULL && ask->asked_ns > *reset_ns) {
            *reset_ns = ask->asked_ns;
        }
    }
}

void sim_daemon_ask(struct sim_daemon *daemon, const struct kvp_ask *what, kvb_status_t *status_p)
{
    struct kvp_view view;
    if (daemon->process->dead || !kvp_fleet_view(daemon->fleet, daemon->instance, &view)) {
        return;
    }
    struct ask *ask = calloc(1, sizeof *ask);
    kvb_assert(ask != NULL);
    *ask = (struct ask){.next = asks,
                        .daemon = daemon,
                        .what = *what,
                        .asked_ns = sim.now_ns,
                        .weights = sim_weights_of(daemon->number),
                        .shares = sim_shares[daemon->number],
                        .status_p = status_p};
    if (status_p != NULL) {
        *status_p = KVB_IN_PROGRESS;
    }
    if (what->body != NULL) {
        (void)snprintf(ask->body, sizeof ask->body, "%s", what->body);
        ask->what.body = ask->body;
    }
    asks = ask;
    sim_counts.operations++;
    must(kvp_fleet_request(daemon->fleet, daemon->instance, &ask->what, "sim", on_outcome, ask,
                           NULL));
}

uint32_t sim_asks_check(void)
{
    uint32_t open = 0;
    for (struct ask *ask = asks; ask != NULL; ask = ask->next) {
        if (ask->times > 0 || ask->daemon->process->dead) {
            continue;
        }
        open++;
        if (sim.now_ns - ask->asked_ns > ANSWER_MAX_NS) {
            sim_fail("P5: %s of %s is not answered after %llu s",
                     kvp_operation_label(ask->what.operation), ask->daemon->instance,
                     (unsigned long long)((sim.now_ns - ask->asked_ns) / KVB_NS_PER_S));
        }
    }
    return open;
}
