/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_STORE_H
#define TESTS_STORE_H

/*
 * A store of one node, its client, and an engine's memory beside it, under a simulated clock. Over
 * the loopback, or over a transport that obeys the test (fake_transport.h); or, in a program with
 * TEST_STORE_REMOTE, with the node behind connections (service, remote, fake_tcp.h). Values are
 * made by test_values.h, so that every byte read says whose it is.
 */
#include "fake_transport.h"
#include "sim_sched.h"
#include "test_memory.h"
#include "test_values.h"

#include "base/log.h"
#include "store/client.h"
#include "store/node.h"
#include "store/share.h"

#ifdef TEST_STORE_REMOTE
#include "fake_tcp.h"

#include "store/service.h"
/* A put that was given up may have been stored all the same, its answer on the way. */
#define TEST_ANSWER_MAY_BE_LOST true
#else
#define TEST_ANSWER_MAY_BE_LOST false
#endif

#define KIB(n) ((uint64_t)(n) << 10)
#define MIB(n) ((uint64_t)(n) << 20)

struct test_store {
    struct sim_sched sim;
    struct kvt_regions *regions;
    struct kvt_transport *transport;
    struct fake_transport *fake; /* NULL: loopback */
    struct kvs_share *share;
    struct kvs_keeper keeper;
#ifdef TEST_STORE_REMOTE
    struct kvs_service *service;
#endif
    struct kvs_node *node;
    struct kvs_client *client;
    struct test_memory memory;
    struct kvt_region *region;
    uint64_t scratch; /* where single values go in the memory */
    struct kvb_lineage lineage;
    struct kvs_space space;
};

#ifndef TEST_STORE_MEMORY
#define TEST_STORE_MEMORY MIB(16)
#endif

struct test_store_config {
    uint64_t share_bytes;
    uint32_t shards;
    uint64_t ticket_ms; /* 0: the default */
    uint32_t events;    /* of the share */
};

static inline void test_store_poked_(void *ctx)
{
    kvs_keeper_woken(ctx); /* posts to the loop: one that runs in this very thread */
}

#ifdef TEST_STORE_REMOTE

static inline void test_store_serve(struct test_store *store,
                                    const struct test_store_config *config, uint64_t incarnation)
{
    const struct kvs_service_config service = {
        .sched = &store->sim.sched,
        .share = store->share,
        .name = "node",
        .incarnation = incarnation,
        .ticket_ms = config->ticket_ms,
    };
    kvb_assert(kvs_service_create(&service, &store->service) == KVB_OK);
}

static inline bool test_store_up_(void *arg)
{
    struct kvs_remote_status status;
    kvs_remote_status(arg, &status);
    return status.up;
}

static inline void test_store_open_node_(struct test_store *store,
                                         const struct test_store_config *config, bool fake)
{
    kvb_assert(!fake);
    fake_tcp_init();
    test_store_serve(store, config, 1);
    const struct kvs_remote_config remote = {
        .sched = &store->sim.sched,
        .regions = store->regions,
        .ways = {{&kvs_by_tcp,
                  &(struct kvt_tcp_peer_config){.address = "node", .in_flight_max = 8}}},
    };
    kvb_assert(kvs_remote_create(&remote, &store->node) == KVB_OK);
    kvb_assert(sim_run_until(&store->sim, test_store_up_, store->node, 1000));
    sim_settle(&store->sim);
}

static inline void test_store_close_node_(struct test_store *store)
{
    kvs_remote_destroy(store->node);
    kvs_service_destroy(store->service);
    kvb_assert(fake_tcp.running == 0);
}

static inline uint32_t test_store_calls(struct test_store *store)
{
    return kvs_remote_calls(store->node);
}

#else

static inline void test_store_open_node_(struct test_store *store,
                                         const struct test_store_config *config, bool fake)
{
    const struct kvs_node_config node = {.ticket_ms = config->ticket_ms};
    if (fake) {
        store->fake = fake_transport_create(store->regions, 8);
        store->transport = &store->fake->base;
    } else {
        kvb_assert(kvt_loopback_create(store->regions, 8, &store->transport) == KVB_OK);
    }
    kvb_assert(kvs_node_create(&store->sim.sched, store->transport, store->share, &node,
                               &store->node) == KVB_OK);
}

static inline void test_store_close_node_(struct test_store *store)
{
    kvs_node_destroy(store->node);
    kvt_transport_destroy(store->transport);
}

static inline uint32_t test_store_calls(struct test_store *store)
{
    return kvs_node_calls(store->node);
}

#endif

static inline void test_store_open(struct test_store *store, const struct test_store_config *config,
                                   bool fake)
{
    *store = (struct test_store){
        .lineage = {{1, 1}},
        .space = {.tenant = "t", .layout = "l"},
    };
    sim_init(&store->sim, sim_seed(1));
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    kvb_assert(kvt_regions_create(&store->sim.sched, &store->regions) == KVB_OK);
    const struct kvs_share_config share = {
        .bytes = config->share_bytes, .shards = config->shards, .events = config->events};
    kvb_assert(kvs_share_create(&store->sim.random, &share, &store->share) == KVB_OK);
    kvs_keeper_start(&store->keeper, store->share, &store->sim.sched, test_store_poked_,
                     &store->keeper);
    test_store_open_node_(store, config, fake);
    kvb_assert(kvs_client_create(&store->sim.sched, &store->client) == KVB_OK);
    kvb_assert(kvs_client_add_node(store->client, "here", store->node, config->share_bytes) ==
               KVB_OK);
    test_memory_init(&store->memory, "engine", TEST_STORE_MEMORY);
    struct kvt_region_desc desc = {.number = 1, .tag = "kv_cache", .len = TEST_STORE_MEMORY};
    const char *reason;
    kvb_assert(kvt_region_create(store->regions, &desc, test_memory_dup(&store->memory),
                                 &store->region, &reason) == KVB_OK);
    kvb_assert(kvt_region_register(store->region) == KVB_OK);
}

static inline void test_store_unregistered_(void *arg, struct kvt_region *region,
                                            kvb_status_t status)
{
    (void)region;
    kvb_assert(status == KVB_OK);
    *(bool *)arg = true;
}

static inline void test_store_close(struct test_store *store)
{
    bool done = kvt_region_state(store->region) != KVT_REGION_REGISTERED;
    if (!done) {
        kvt_region_unregister(store->region, sim_in_ms(&store->sim, 1), sim_in_ms(&store->sim, 2),
                              test_store_unregistered_, &done);
        kvb_assert(sim_run_until_true(&store->sim, &done, 10));
    }
    kvt_region_destroy(store->region);
    kvs_client_destroy(store->client);
    test_store_close_node_(store);
    kvs_keeper_stop(&store->keeper);
    kvs_share_destroy(store->share);
    kvt_regions_destroy(store->regions);
    test_memory_cleanup(&store->memory);
    sim_cleanup(&store->sim);
}

/* A batch of up to 16 items, each of one slice. */
#define TEST_ITEMS_MAX 16
struct test_job {
    struct kvs_batch batch;
    struct kvs_space space;
    struct kvs_item items[TEST_ITEMS_MAX];
    struct kvt_slice slices[TEST_ITEMS_MAX];
    bool inside; /* a call is running: nothing may complete */
    bool done;
};

static inline void test_job_done_(struct kvs_batch *batch)
{
    struct test_job *job = kvb_container_of(batch, struct test_job, batch);
    kvb_assert(!job->inside);
    kvb_assert(!job->done);
    for (uint32_t i = 0; i < batch->nitems; i++) {
        kvb_assert(batch->items[i].status != KVB_IN_PROGRESS);
    }
    job->done = true;
}

static inline struct test_job *test_job_init(struct test_job *job, struct test_store *store,
                                             enum kvs_batch_op op)
{
    *job = (struct test_job){.space = store->space};
    job->batch = (struct kvs_batch){
        .op = op,
        .space = &job->space,
        .lineage = store->lineage,
        .deadline_ns = sim_in_ms(&store->sim, 60000),
        .items = job->items,
        .done = test_job_done_,
    };
    return job;
}

static inline struct kvs_item *test_job_add(struct test_job *job, struct test_store *store,
                                            const void *key, size_t key_len, uint64_t offset,
                                            uint64_t len)
{
    uint32_t i = job->batch.nitems++;
    kvb_assert(i < TEST_ITEMS_MAX);
    job->slices[i] = (struct kvt_slice){store->region, offset, len};
    job->items[i] = (struct kvs_item){
        .key = {key, key_len},
        .slices = &job->slices[i],
        .nslices = 1,
    };
    return &job->items[i];
}

static inline void test_job_submit(struct test_job *job, struct test_store *store)
{
    job->done = false;
    job->inside = true;
    kvb_assert(kvs_client_submit(store->client, &job->batch) == KVB_OK);
    job->inside = false;
}

static inline void test_job_cancel(struct test_job *job, struct test_store *store)
{
    job->inside = true;
    kvs_client_cancel(&job->batch, sim_in_ms(&store->sim, 200));
    job->inside = false;
}

static inline void test_job_run(struct test_job *job, struct test_store *store)
{
    test_job_submit(job, store);
    kvb_assert(sim_run_until_true(&store->sim, &job->done, 120000));
}

/* ---- one item; loopback only ---- */

static inline kvb_status_t test_put(struct test_store *store, const void *key, size_t key_len,
                                    uint64_t len, uint64_t weights)
{
    struct test_job job;
    test_value_fill(store->memory.base, len, store->space.tenant, key, key_len, weights);
    test_job_add(test_job_init(&job, store, KVS_PUT), store, key, key_len, 0, len);
    test_job_run(&job, store);
    return job.items[0].status;
}

/* OK also means: every byte is that value, and nothing was written around it. */
static inline kvb_status_t test_get(struct test_store *store, const void *key, size_t key_len,
                                    uint64_t len, uint64_t weights)
{
    struct test_job job;
    memset(store->memory.base, TEST_PREFILL, len + 64);
    test_job_add(test_job_init(&job, store, KVS_GET), store, key, key_len, 0, len);
    test_job_run(&job, store);
    if (job.items[0].status == KVB_OK) {
        kvb_assert(job.items[0].len == len);
        kvb_assert(test_value_check(store->memory.base, len, store->space.tenant, key, key_len,
                                    weights) == len);
    }
    for (uint64_t i = len; i < len + 64; i++) {
        kvb_assert(store->memory.base[i] == TEST_PREFILL);
    }
    return job.items[0].status;
}

static inline kvb_status_t test_exists(struct test_store *store, const void *key, size_t key_len)
{
    struct test_job job;
    test_job_add(test_job_init(&job, store, KVS_EXISTS), store, key, key_len, 0, 1);
    test_job_run(&job, store);
    return job.items[0].status;
}

static inline kvb_status_t test_remove(struct test_store *store, const void *key, size_t key_len,
                                       bool force)
{
    struct test_job job;
    test_job_add(test_job_init(&job, store, KVS_REMOVE), store, key, key_len, 0, 1);
    job.batch.force = force;
    test_job_run(&job, store);
    return job.items[0].status;
}

static inline struct kvs_share_stats test_stats(struct test_store *store)
{
    struct kvs_share_stats stats;
    kvs_share_stats(store->share, &stats);
    const struct kvs_core_stats *core = &stats.core;
    kvb_assert(core->used_bytes <= core->share_bytes);
    kvb_assert(core->used_bytes == core->live_bytes + core->reserved_bytes +
                                       core->quarantined_bytes + core->retired_bytes);
    return stats;
}

#endif
