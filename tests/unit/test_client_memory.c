/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client out of memory at every allocation, one after the other: what was asked fails with
 * NO_MEMORY and nothing has happened, or it is done, once, and a retry works.
 */
#include "fail_alloc.h"
#include "fake_node.h"

#include "base/log.h"

#include <criterion/criterion.h>

#define NODES 9u
#define ITEMS 64u

struct world {
    struct sim_sched sim;
    struct kvs_client *client;
    struct fake_node nodes[NODES];
    struct kvs_space space;
    struct kvs_item items[ITEMS];
    uint32_t keys[ITEMS];
    struct kvs_batch batch;
    uint32_t done, removed;
};

static void on_done(struct kvs_batch *batch)
{
    kvb_container_of(batch, struct world, batch)->done++;
}

static void on_removed(void *ctx, struct kvs_node *node)
{
    (void)node;
    ((struct world *)ctx)->removed++;
}

static void on_nothing(struct kvb_timer *timer)
{
    (void)timer;
}

static void world_open(struct world *world)
{
    struct kvb_timer timer;
    *world = (struct world){.space = {.tenant = "t", .layout = "l"}};
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    sim_init(&world->sim, 1);
    /* the scheduler takes room for timers with the first, and asserts that it gets it */
    kvb_timer_init(&timer, on_nothing);
    kvb_sched_timer_set(&world->sim.sched, &timer, sim_in_ms(&world->sim, 1));
    kvb_sched_timer_clear(&world->sim.sched, &timer);
    for (uint32_t i = 0; i < ITEMS; i++) {
        world->keys[i] = i;
        world->items[i].key = (struct kvb_span){(const uint8_t *)&world->keys[i], 4};
    }
    for (uint32_t i = 0; i < NODES; i++) {
        fake_node_init(&world->nodes[i], &world->sim);
    }
}

static kvb_status_t add_all(struct world *world, bool *failed)
{
    kvb_status_t status = KVB_OK;
    for (uint32_t i = 0; i < NODES; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "node-%u", i);
        do {
            status = kvs_client_add_node(world->client, name, &world->nodes[i].base, 1 + i);
            *failed = *failed || status == KVB_ERR_NO_MEMORY;
        } while (status == KVB_ERR_NO_MEMORY); /* fails once: the retry works */
    }
    return status;
}

/* One batch; tried again when it was not taken. True: it failed once. */
static bool run(struct world *world, enum kvs_batch_op op)
{
    bool failed = false;
    kvb_status_t status;
    world->done = 0;
    do {
        world->batch = (struct kvs_batch){.op = op,
                                          .space = &world->space,
                                          .deadline_ns = sim_in_ms(&world->sim, 1000),
                                          .items = world->items,
                                          .nitems = ITEMS,
                                          .done = on_done};
        status = kvs_client_submit(world->client, &world->batch);
        cr_assert(status == KVB_OK || status == KVB_ERR_NO_MEMORY);
        failed = failed || status == KVB_ERR_NO_MEMORY;
        if (status != KVB_OK) {
            sim_settle(&world->sim);
            cr_assert_eq(world->done, 0, "not taken");
        }
    } while (status != KVB_OK);
    sim_settle(&world->sim);
    cr_assert_eq(world->done, 1);
    for (uint32_t i = 0; i < ITEMS; i++) {
        cr_assert_eq(world->items[i].status, KVB_OK);
    }
    return failed;
}

Test(client_memory, everything_fails_whole_or_is_done_at_every_allocation)
{
    uint64_t hits = 0;
    bool more = true;
    for (uint64_t n = 0; more; n++) {
        struct world world;
        bool failed = false;
        world_open(&world);
        fail_alloc_arm(n);
        kvb_status_t status = kvs_client_create(&world.sim.sched, &world.client);
        if (status == KVB_ERR_NO_MEMORY) {
            failed = true;
            status = kvs_client_create(&world.sim.sched, &world.client);
        }
        cr_assert_eq(status, KVB_OK);
        cr_assert_eq(add_all(&world, &failed), KVB_OK);
        for (uint32_t op = 0; op < KVS_BATCH_OPS; op++) {
            failed = run(&world, (enum kvs_batch_op)op) || failed;
        }
        cr_assert_eq(kvs_client_remove_node(world.client, "node-3", on_removed, &world), KVB_OK);
        failed = run(&world, KVS_PUT) || failed;
        cr_assert_eq(world.removed, 1);
        more = fail_alloc_disarm();
        cr_assert_eq(failed, more, "allocation %lu: who was told?", n);
        hits += more;
        kvs_client_destroy(world.client);
        sim_cleanup(&world.sim);
    }
    cr_assert_gt(hits, 40);
}
