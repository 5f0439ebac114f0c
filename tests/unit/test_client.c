/* SPDX-License-Identifier: Apache-2.0 */
/* The store client over nodes that do what the test says. */
#include "placement.h"
#include "sim_sched.h"

#include "store/client.h"
#include "store/node.h"

#include <criterion/criterion.h>

#include <stdlib.h>

/* ---- placement ---- */

#define KEYS 20000u

static void spread(const struct kvs_place *places, uint32_t n, uint32_t *pick)
{
    struct kvs_space space = {.tenant = "t", .layout = "l"};
    uint64_t seed = kvs_placement_seed(&space);
    for (uint32_t i = 0; i < KEYS; i++) {
        pick[i] =
            kvs_placement_pick(places, n, seed, (struct kvb_span){(const uint8_t *)&i, sizeof i});
    }
}

Test(placement, shares_follow_the_weights_within_a_fifth)
{
    static const uint64_t weights[] = {1, 1, 2, 4, 8};
    struct kvs_place places[5];
    uint32_t pick[KEYS], count[5] = {0};
    for (uint32_t i = 0; i < 5; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "node-%u", i);
        places[i] = kvs_place_of(name, weights[i] << 30);
    }
    spread(places, 5, pick);
    for (uint32_t i = 0; i < KEYS; i++) {
        count[pick[i]]++;
    }
    for (uint32_t i = 0; i < 5; i++) {
        double share = (double)count[i] / KEYS, want = (double)weights[i] / 16;
        cr_assert(share > 0.8 * want && share < 1.2 * want, "node %u: %f of %f", i, share, want);
    }
}

Test(placement, a_member_that_comes_or_goes_moves_only_its_own)
{
    struct kvs_place places[6];
    uint32_t before[KEYS], after[KEYS];
    for (uint32_t i = 0; i < 6; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "node-%u", i);
        places[i] = kvs_place_of(name, 100 + i);
    }
    spread(places, 5, before);
    spread(places, 6, after);
    uint32_t moved = 0;
    for (uint32_t i = 0; i < KEYS; i++) {
        cr_assert(before[i] == after[i] || after[i] == 5, "moved between two that stayed");
        moved += before[i] != after[i];
    }
    cr_assert(moved > KEYS / 6 * 8 / 10 && moved < KEYS / 6 * 12 / 10);
}

Test(placement, spaces_lie_independently_and_a_placement_key_keeps_together)
{
    struct kvs_place places[4];
    for (uint32_t i = 0; i < 4; i++) {
        places[i] = kvs_place_of((const char *[]){"a", "b", "c", "d"}[i], 1);
    }
    struct kvs_space one = {.tenant = "a", .layout = "bc"}, other = {.tenant = "ab", .layout = "c"};
    uint64_t seeds[2] = {kvs_placement_seed(&one), kvs_placement_seed(&other)};
    cr_assert_neq(seeds[0], seeds[1]);
    uint32_t same = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        struct kvb_span key = {(const uint8_t *)&i, sizeof i};
        same += kvs_placement_pick(places, 4, seeds[0], key) ==
                kvs_placement_pick(places, 4, seeds[1], key);
    }
    cr_assert(same > 150 && same < 350);
}

/* ---- batches ---- */

enum answer { AT_ONCE, LATER, SILENT, REFUSE };

struct fake_node {
    struct kvs_node base;
    struct sim_sched *sim;
    enum answer answer;
    struct kvs_node_call *call;
    struct kvb_event event;
    uint32_t calls, items, stops, expired, discards, discards_all;
    bool inside;
};

static void on_event(struct kvb_event *event)
{
    struct fake_node *fake = kvb_container_of(event, struct fake_node, event);
    struct kvs_node_call *call = fake->call;
    fake->call = NULL;
    for (uint32_t i = 0; i < call->n; i++) {
        struct kvs_item *item = kvs_node_call_item(call, i);
        if (item->status == KVB_IN_PROGRESS) {
            item->status = KVB_OK;
            item->len = 7;
        }
    }
    call->done(call);
}

static kvb_status_t fake_submit(struct kvs_node *node, struct kvs_node_call *call)
{
    struct fake_node *fake = kvb_container_of(node, struct fake_node, base);
    fake->calls++;
    fake->items += call->n;
    if (fake->answer == REFUSE) {
        return KVB_ERR_NO_MEMORY;
    }
    cr_assert_null(fake->call);
    fake->call = call;
    for (uint32_t i = 0; i < call->n; i++) {
        kvs_node_call_item(call, i)->status = KVB_IN_PROGRESS;
    }
    if (fake->answer == AT_ONCE) {
        kvb_sched_post(&fake->sim->sched, &fake->event);
    }
    return KVB_OK;
}

static void fake_stop(struct kvs_node *node, struct kvs_node_call *call, bool expired,
                      uint64_t stop_deadline_ns)
{
    struct fake_node *fake = kvb_container_of(node, struct fake_node, base);
    (void)stop_deadline_ns;
    cr_assert_eq(fake->call, call);
    fake->stops++;
    fake->expired += expired;
    for (uint32_t i = 0; i < call->n; i++) {
        kvs_node_call_item(call, i)->status = expired ? KVB_ERR_UNAVAILABLE : KVB_ERR_CANCELED;
    }
    kvb_sched_post(&fake->sim->sched, &fake->event);
}

static void fake_discard(struct kvs_node *node, struct kvs_hold hold, bool all_of_instance)
{
    struct fake_node *fake = kvb_container_of(node, struct fake_node, base);
    cr_assert_eq(hold.instance, 5);
    fake->discards += !all_of_instance;
    fake->discards_all += all_of_instance;
}

static const struct kvs_node_ops fake_ops = {fake_submit, fake_stop, fake_discard};

#define NODES 4u
#define ITEMS 200u

struct world {
    struct sim_sched sim;
    struct kvs_client *client;
    struct fake_node nodes[NODES];
    struct kvs_space space;
    struct kvs_item items[ITEMS];
    uint32_t keys[ITEMS];
    struct kvs_batch batch;
    uint32_t done;
    bool inside;
};

static void on_done(struct kvs_batch *batch)
{
    struct world *world = kvb_container_of(batch, struct world, batch);
    cr_assert(!world->inside, "done inside a call");
    world->done++;
    cr_assert_eq(world->done, 1);
    for (uint32_t i = 0; i < batch->nitems; i++) {
        cr_assert_neq(batch->items[i].status, KVB_IN_PROGRESS);
    }
}

static void world_open(struct world *world, uint32_t nnodes)
{
    *world = (struct world){.space = {.tenant = "t", .layout = "l"}};
    sim_init(&world->sim, sim_seed(1));
    cr_assert_eq(kvs_client_create(&world->sim.sched, &world->client), KVB_OK);
    for (uint32_t i = 0; i < nnodes; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "node-%u", i);
        world->nodes[i] = (struct fake_node){.base.ops = &fake_ops, .sim = &world->sim};
        kvb_event_init(&world->nodes[i].event, on_event);
        cr_assert_eq(kvs_client_add_node(world->client, name, &world->nodes[i].base, 1), KVB_OK);
    }
    for (uint32_t i = 0; i < ITEMS; i++) {
        world->keys[i] = i;
        world->items[i].key = (struct kvb_span){(const uint8_t *)&world->keys[i], 4};
    }
    world->batch = (struct kvs_batch){.op = KVS_EXISTS,
                                      .space = &world->space,
                                      .deadline_ns = sim_in_ms(&world->sim, 100),
                                      .items = world->items,
                                      .nitems = ITEMS,
                                      .done = on_done};
}

static kvb_status_t submit(struct world *world)
{
    world->inside = true;
    world->done = 0;
    kvb_status_t status = kvs_client_submit(world->client, &world->batch);
    world->inside = false;
    return status;
}

static bool is_done(void *arg)
{
    return ((struct world *)arg)->done > 0;
}

static void world_close(struct world *world)
{
    kvs_client_destroy(world->client);
    sim_cleanup(&world->sim);
}

static uint32_t count(const struct world *world, kvb_status_t status)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < ITEMS; i++) {
        n += world->items[i].status == status;
    }
    return n;
}

Test(client, every_item_goes_to_one_node_and_is_answered)
{
    for (uint32_t nnodes = 1; nnodes <= NODES; nnodes++) {
        struct world world;
        world_open(&world, nnodes);
        cr_assert_eq(submit(&world), KVB_OK);
        cr_assert(sim_run_until(&world.sim, is_done, &world, 10));
        cr_assert_eq(count(&world, KVB_OK), ITEMS);
        uint32_t items = 0;
        for (uint32_t i = 0; i < nnodes; i++) {
            cr_assert_eq(world.nodes[i].calls, 1, "one call for each node");
            items += world.nodes[i].items;
        }
        cr_assert_eq(items, ITEMS);
        world_close(&world);
    }
}

Test(client, items_of_one_placement_key_go_to_one_node)
{
    struct world world;
    world_open(&world, NODES);
    for (uint32_t i = 0; i < ITEMS; i++) {
        world.items[i].placement = (struct kvb_span){(const uint8_t *)"group", 5};
    }
    cr_assert_eq(submit(&world), KVB_OK);
    cr_assert(sim_run_until(&world.sim, is_done, &world, 10));
    uint32_t asked = 0;
    for (uint32_t i = 0; i < NODES; i++) {
        asked += world.nodes[i].calls;
    }
    cr_assert_eq(asked, 1);
    world_close(&world);
}

Test(client, a_silent_node_is_unavailable_at_the_deadline_and_the_others_answer)
{
    struct world world;
    world_open(&world, NODES);
    world.nodes[2].answer = SILENT;
    cr_assert_eq(submit(&world), KVB_OK);
    sim_advance(&world.sim, 99);
    cr_assert_eq(world.done, 0);
    sim_advance(&world.sim, 2);
    cr_assert_eq(world.done, 1);
    cr_assert_eq(world.nodes[2].expired, 1);
    cr_assert_eq(world.nodes[1].stops, 0);
    cr_assert_eq(count(&world, KVB_ERR_UNAVAILABLE), world.nodes[2].items);
    cr_assert_eq(count(&world, KVB_OK), ITEMS - world.nodes[2].items);
    world_close(&world);
}

Test(client, a_node_that_refuses_fails_its_items_alone)
{
    struct world world;
    world_open(&world, NODES);
    world.nodes[1].answer = REFUSE;
    cr_assert_eq(submit(&world), KVB_OK);
    cr_assert(sim_run_until(&world.sim, is_done, &world, 10));
    cr_assert_eq(count(&world, KVB_ERR_NO_MEMORY), world.nodes[1].items);
    for (uint32_t i = 0; i < NODES; i++) {
        world.nodes[i].answer = REFUSE;
    }
    cr_assert_eq(submit(&world), KVB_OK);
    cr_assert(sim_run_until(&world.sim, is_done, &world, 10));
    cr_assert_eq(count(&world, KVB_ERR_NO_MEMORY), ITEMS);
    world_close(&world);
}

Test(client, without_a_node_everything_is_unavailable)
{
    struct world world;
    world_open(&world, 0);
    cr_assert_eq(submit(&world), KVB_OK);
    cr_assert(sim_run_until(&world.sim, is_done, &world, 10));
    cr_assert_eq(count(&world, KVB_ERR_UNAVAILABLE), ITEMS);
    world_close(&world);
}

Test(client, cancel_completes_once_and_twice_is_once)
{
    struct world world;
    world_open(&world, 1);
    world.nodes[0].answer = SILENT;
    cr_assert_eq(submit(&world), KVB_OK);
    world.inside = true;
    kvs_client_cancel(&world.batch, sim_in_ms(&world.sim, 10));
    kvs_client_cancel(&world.batch, sim_in_ms(&world.sim, 10));
    world.inside = false;
    cr_assert(sim_run_until(&world.sim, is_done, &world, 10));
    cr_assert_eq(count(&world, KVB_ERR_CANCELED), ITEMS);
    sim_advance(&world.sim, 1000);
    world_close(&world);
}

Test(client, refuses_batches_of_nothing_and_of_nobody)
{
    struct world world;
    world_open(&world, 1);
    world.batch.nitems = 0;
    cr_assert_eq(submit(&world), KVB_ERR_INVALID);
    world.batch.nitems = 1;
    world.space.tenant[0] = '\0';
    cr_assert_eq(submit(&world), KVB_ERR_INVALID);
    cr_assert_eq(kvs_client_add_node(world.client, "node-0", &world.nodes[0].base, 1),
                 KVB_ERR_EXISTS);
    world_close(&world);
}

Test(client, says_again_when_too_much_is_in_flight)
{
    struct world world;
    world_open(&world, 0);
    struct kvs_item *items = calloc(1u << 20, sizeof *items);
    world.batch.items = items;
    world.batch.nitems = (1u << 20) + 1;
    cr_assert_eq(submit(&world), KVB_ERR_AGAIN);
    world.batch.nitems = 1u << 20;
    cr_assert_eq(submit(&world), KVB_OK);
    struct kvs_batch other = world.batch;
    other.nitems = 1;
    cr_assert_eq(kvs_client_submit(world.client, &other), KVB_ERR_AGAIN);
    cr_assert(sim_run_until(&world.sim, is_done, &world, 10));
    cr_assert_eq(submit(&world), KVB_OK, "a completion made room");
    cr_assert(sim_run_until(&world.sim, is_done, &world, 10));
    free(items);
    world_close(&world);
}

Test(client, discards_on_every_node)
{
    struct world world;
    world_open(&world, NODES);
    kvs_client_discard(world.client, (struct kvs_hold){5, 6});
    kvs_client_discard_instance(world.client, 5);
    for (uint32_t i = 0; i < NODES; i++) {
        cr_assert_eq(world.nodes[i].discards, 1);
        cr_assert_eq(world.nodes[i].discards_all, 1);
    }
    world_close(&world);
}
