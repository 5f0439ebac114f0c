/* SPDX-License-Identifier: Apache-2.0 */
#include "storage.h"

#include "collect.h"
#include "metrics.h"
#include "node/leaving.h"
#include "node/server.h"
#include "program.h"
#include "rdma.h"

#include "base/assert.h"
#include "base/faults.h"
#include "base/log.h"
#include "store/node.h"
#include "transport/cuda.h"
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TRANSFERS_MAX = 1024, /* of the loopback transport, at one time */
    WITHDRAW_MS = 3000,   /* etcd has answered by then, or the lease will tell */
};

struct kvp_storage {
    const struct kvp_config *config;
    struct kvp_loop *loop;
    struct kvb_metrics *metrics;
    struct kvt_regions *regions;
    struct kvs_client *client;
    struct kvs_coordinator *coordinator;
    /* the own share; NULL: none */
    struct kvs_share *share;
    struct kvs_keeper keeper;
    struct kvt_transport *loopback;
    struct kvs_node *node;
    struct kvp_cluster *cluster;
    /* with etcd; NULL: alone */
    struct kvt_net *net;
    struct kvp_rdma rdma;
    struct kvt_rdma_memory *memory; /* the engines', for rdma; NULL: none */
    struct kvt_peer_common common;
    struct kvt_rdma_config
        gpu_rdma_device; /* the daemon's own, or, if it has none, what it wanted */
    struct kvt_cuda_direct gpu_rdma;
    struct kvt_rdma_info rdma_info;
    struct kvp_server *server;
    struct kvp_leaving leaving;
    struct kvs_node_record record; /* of the own share */
    kvb_status_t quotas;           /* of setting them one after the other */
};

/* ---- start ---- */

static kvb_status_t create_share(struct kvp_storage *storage)
{
    const struct kvp_config *config = storage->config;
    struct kvb_sched *sched = kvp_loop_sched(storage->loop);
    const struct kvs_share_config share = {.bytes = config->store_bytes,
                                           .shards = (uint32_t)config->shards};
    const struct kvs_node_config node = {.ticket_ms = kvb_fault_run() ? 0 : config->transfer_bound,
                                         .hold_ms = config->hold};
    kvb_status_t status = kvp_program_memory(config->store_bytes);
    if (status == KVB_OK) {
        status = kvs_share_create(sched->random, &share, &storage->share);
    }
    if (status != KVB_OK) {
        return status;
    }
    kvs_keeper_start(&storage->keeper, storage->share, sched, kvp_loop_wake, storage->loop);
    status = kvt_loopback_create(storage->regions, TRANSFERS_MAX, &storage->loopback);
    if (status == KVB_OK) {
        status = kvs_node_create(sched, storage->loopback, storage->share, &node, &storage->node);
    }
    return status;
}

static void set_quota(void *arg, const char *tenant, uint64_t quota)
{
    struct kvp_storage *storage = arg;
    if (quota != KVP_QUOTA_NONE && storage->quotas == KVB_OK) {
        storage->quotas = kvp_cluster_want_quota(storage->cluster, tenant, quota);
    }
}

static kvb_status_t set_quotas(struct kvp_storage *storage)
{
    bool well_formed = kvp_config_each_tenant(storage->config->tenants, set_quota, storage);
    kvb_assert(well_formed); /* checked at start */
    return storage->quotas;
}

static kvb_status_t create_alone(struct kvp_storage *storage)
{
    const struct kvp_config *config = storage->config;
    struct kvb_sched *sched = kvp_loop_sched(storage->loop);
    kvb_status_t status = kvs_embedded_create(sched, config->name_grace, &kvs_share_reclaim,
                                              storage->share, &storage->coordinator);
    if (status != KVB_OK) {
        return status;
    }
    storage->record =
        (struct kvs_node_record){.name = "local", .capacity_bytes = config->store_bytes};
    const struct kvp_cluster_params params = {.sched = sched,
                                              .coordinator = storage->coordinator,
                                              .alone = true,
                                              .share = storage->share,
                                              .own = storage->record,
                                              .client = storage->client,
                                              .local = storage->node,
                                              .regions = storage->regions,
                                              .metrics = storage->metrics};
    return kvp_cluster_create(&params, &storage->cluster);
}

/* The own share is served to the others. */
static kvb_status_t create_server(struct kvp_storage *storage,
                                  const struct kvp_cluster_config *cluster,
                                  const struct kvt_peer_common *common)
{
    const struct kvp_config *config = storage->config;
    char address[KVP_ADDRESS_MAX];
    int listener;
    kvb_status_t status = kvp_rdma_serve(&storage->rdma, cluster, storage->share);
    if (status == KVB_OK) {
        status = kvp_program_listen(config->cluster_listen, &listener, address);
    }
    if (status != KVB_OK) {
        return status;
    }
    kvp_program_record(cluster, address, config->store_bytes, &storage->record);
    const struct kvp_server_config server = {
        .metrics = storage->metrics,
        .sched = kvp_loop_sched(storage->loop),
        .io = kvp_loop_io(storage->loop),
        .share = storage->share,
        .listener = listener,
        .rdma = storage->rdma.share != NULL ? storage->rdma.device : NULL,
        .rdma_listen = storage->rdma.listen,
        .rdma_must = storage->rdma.only,
        .threads = (uint32_t)config->io_threads,
        .common = *common,
        .name = storage->record.name,
        .incarnation = storage->record.incarnation,
        .ticket_ms = kvb_fault_run() ? 0 : config->transfer_bound,
        .hold_ms = config->hold,
        .lanes_max = (uint32_t)config->lanes_max,
        .lanes_each_max = (uint32_t)config->lanes_each_max,
    };
    status = kvp_server_create(&server, &storage->server);
    if (status != KVB_OK) {
        (void)close(listener);
        return status;
    }
    kvp_rdma_address(&storage->rdma, kvp_server_rdma_port(storage->server), storage->record.rdma);
    return KVB_OK;
}

/* What a helper needs to reach nodes as this process does. Where it has no device, a helper finds
 * that out, too, and says why. */
static void set_gpu_rdma(struct kvp_storage *storage, const struct kvt_peer_common *common)
{
    if (strcmp(storage->config->gpu_rdma, "direct") != 0) {
        return;
    }
    storage->common = *common;
    storage->gpu_rdma_device = storage->rdma.config;
    if (storage->rdma.device != NULL) {
        kvt_rdma_device_info(storage->rdma.device, &storage->rdma_info);
        storage->gpu_rdma_device.device = storage->rdma_info.device;
        storage->gpu_rdma_device.port = storage->rdma_info.port;
    }
    storage->gpu_rdma = (struct kvt_cuda_direct){&storage->gpu_rdma_device, &storage->common};
}

static kvb_status_t create_in_cluster(struct kvp_storage *storage)
{
    const struct kvp_config *config = storage->config;
    const struct kvp_cluster_config cluster = kvp_config_cluster(config);
    struct kvb_sched *sched = kvp_loop_sched(storage->loop);
    struct kvb_io *io = kvp_loop_io(storage->loop);
    struct kvp_cluster_params params = {.sched = sched,
                                        .share = storage->share,
                                        .client = storage->client,
                                        .local = storage->node,
                                        .regions = storage->regions,
                                        .metrics = storage->metrics};
    char process[128] = "";
    (void)gethostname(process, sizeof process - 24);
    (void)snprintf(process + strlen(process), 24, "/%ld", (long)getpid());
    kvb_status_t status = kvt_net_kernel_create(io, 0, &storage->net);
    if (status == KVB_OK) {
        status = kvp_program_common(&cluster, &params.common);
        params.common.net = storage->net;
    }
    if (status == KVB_OK) {
        status = kvp_rdma_open(&cluster, sched, io, &storage->rdma);
    }
    if (status == KVB_OK) {
        set_gpu_rdma(storage, &params.common);
    }
    if (status == KVB_OK && storage->rdma.device != NULL) {
        status = kvt_rdma_memory_create(storage->rdma.device, storage->regions, &storage->memory);
        params.rdma = storage->memory;
        if (status == KVB_OK && !storage->rdma.only) {
            kvt_rdma_memory_optional(storage->memory);
        }
        params.io = io;
        params.rdma_only = storage->rdma.only;
    }
    if (status == KVB_OK && storage->share != NULL) {
        status = create_server(storage, &cluster, &params.common);
        params.own = storage->record;
    }
    if (status == KVB_OK) {
        status = kvp_program_etcd(&cluster, config->name_grace, process, sched, io,
                                  &storage->coordinator);
    }
    if (status == KVB_OK) {
        params.coordinator = storage->coordinator;
        status = kvp_cluster_create(&params, &storage->cluster);
    }
    explicit_bzero(&params.common, sizeof params.common);
    return status;
}

/* At a scrape; any thread. */
static void on_collect(void *ctx)
{
    struct kvp_storage *storage = ctx;
    kvp_collect_server(storage->metrics, storage->server, &storage->rdma);
}

static const char *transport_text(const struct kvp_storage *storage)
{
    return storage->net == NULL           ? "loopback"
           : storage->rdma.device == NULL ? "tcp"
           : storage->rdma.only           ? "rdma"
                                          : "rdma, else tcp";
}

kvb_status_t kvp_storage_create(const struct kvp_config *config, struct kvp_loop *loop,
                                struct kvb_metrics *metrics, struct kvp_storage **storage_p)
{
    struct kvp_storage *storage = calloc(1, sizeof *storage);
    if (storage == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    storage->config = config;
    storage->loop = loop;
    storage->metrics = metrics;
    struct kvb_sched *sched = kvp_loop_sched(loop);
    kvb_status_t status = kvt_regions_create(sched, &storage->regions);
    if (status == KVB_OK && config->store_bytes > 0) {
        status = create_share(storage);
    }
    if (status == KVB_OK) {
        status = kvs_client_create(sched, &storage->client);
    }
    if (status == KVB_OK) {
        kvs_client_set_health(storage->client, &(struct kvs_client_health){
                                                   .lookup_ms = (uint32_t)config->node_bound / 10,
                                                   .transfer_ms = (uint32_t)config->node_bound});
    }
    if (status == KVB_OK) {
        status = config->etcd[0] != '\0' ? create_in_cluster(storage) : create_alone(storage);
    }
    if (status == KVB_OK) {
        status = set_quotas(storage);
    }
    if (status != KVB_OK) {
        KVB_LOG(ERROR, "the store cannot be created", KVB_U64("bytes", config->store_bytes),
                KVB_STATUS(status));
        kvp_storage_destroy(storage);
        return status;
    }
    KVB_LOG(INFO, "store", KVB_STR("transport", transport_text(storage)),
            KVB_STR("coordinator", storage->net != NULL ? config->etcd : "embedded"),
            KVB_U64("store_bytes", config->store_bytes), KVB_STR("node", storage->record.name),
            KVB_STR("address", storage->record.address), KVB_STR("rdma", storage->record.rdma));
    kvb_metrics_on_collect(metrics, on_collect, storage);
    *storage_p = storage;
    return KVB_OK;
}

/* ---- while it runs ---- */

void kvp_storage_woken(struct kvp_storage *storage)
{
    if (storage->share != NULL) {
        kvs_keeper_woken(&storage->keeper);
    }
}

const char *kvp_storage_transport(const struct kvp_storage *storage, struct kvs_node *node)
{
    if (node == storage->node) {
        return "loopback";
    }
    struct kvs_remote_status status;
    kvs_remote_status(node, &status);
    return status.by != NULL ? status.by : "none";
}

struct kvs_client *kvp_storage_client(struct kvp_storage *storage)
{
    return storage->client;
}

struct kvs_coordinator *kvp_storage_coordinator(struct kvp_storage *storage)
{
    return storage->coordinator;
}

struct kvt_regions *kvp_storage_regions(struct kvp_storage *storage)
{
    return storage->regions;
}

const struct kvp_server *kvp_storage_server(const struct kvp_storage *storage)
{
    return storage->server;
}

struct kvs_share *kvp_storage_share(struct kvp_storage *storage)
{
    return storage->share;
}

struct kvp_cluster *kvp_storage_cluster(struct kvp_storage *storage)
{
    return storage->cluster;
}

const struct kvt_cuda_direct *kvp_storage_gpu_rdma(const struct kvp_storage *storage)
{
    return storage->gpu_rdma.rdma != NULL ? &storage->gpu_rdma : NULL;
}

/* ---- stop ---- */

bool kvp_storage_leave(struct kvp_storage *storage, void (*left)(void *ctx), void *ctx)
{
    if (storage->server == NULL) {
        return false;
    }
    kvp_cluster_drain(storage->cluster);
    storage->leaving = (struct kvp_leaving){.sched = kvp_loop_sched(storage->loop),
                                            .share = storage->share,
                                            .server = storage->server,
                                            .over = left,
                                            .ctx = ctx};
    kvp_leaving_start(&storage->leaving, storage->config->share_drain_bound);
    return true;
}

void kvp_storage_hurry(struct kvp_storage *storage)
{
    kvp_leaving_stop(&storage->leaving);
}

void kvp_storage_stop(struct kvp_storage *storage, void (*stopped)(void *ctx), void *ctx)
{
    kvp_cluster_stop(storage->cluster, WITHDRAW_MS, stopped, ctx);
}

void kvp_storage_destroy(struct kvp_storage *storage)
{
    if (storage == NULL) {
        return;
    }
    kvp_leaving_stop(&storage->leaving);
    kvp_server_destroy(storage->server);
    if (storage->coordinator != NULL) {
        kvs_coordinator_destroy(storage->coordinator);
    }
    if (storage->client != NULL) {
        kvs_client_destroy(storage->client);
    }
    kvp_cluster_destroy(storage->cluster);
    kvt_rdma_memory_destroy(storage->memory);
    kvt_net_kernel_destroy(storage->net);
    kvs_node_destroy(storage->node);
    kvt_transport_destroy(storage->loopback);
    kvt_regions_destroy(storage->regions);
    kvp_rdma_close(&storage->rdma);
    if (storage->share != NULL) {
        kvs_keeper_stop(&storage->keeper);
        kvs_share_destroy(storage->share);
    }
    explicit_bzero(&storage->common, sizeof storage->common);
    free(storage);
}
