/* SPDX-License-Identifier: Apache-2.0 */
/* The store client over nodes that do what the test says. */
#include "fake_node.h"
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
    struct kvs_node *removed;
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
        fake_node_init(&world->nodes[i], &world->sim);
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
            cr_assert_eq(world.nodes[i].calls_taken, 1, "one call for each node");
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
        asked += world.nodes[i].calls_taken;
    }
    cr_assert_eq(asked, 1);
    world_close(&world);
}

Test(client, a_silent_node_is_unavailable_at_the_deadline_and_the_others_answer)
{
    struct world world;
    world_open(&world, NODES);
    world.nodes[2].answer = FAKE_SILENT;
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

Test(client, what_is_for_one_node_goes_there_wherever_it_is_placed)
{
    struct world world;
    world_open(&world, NODES);
    world.inside = true;
    cr_assert_eq(kvs_client_submit_to(world.client, "node-9", &world.batch), KVB_ERR_NOT_FOUND);
    cr_assert_eq(kvs_client_submit_to(world.client, "node-1", &world.batch), KVB_OK);
    world.inside = false;
    cr_assert(sim_run_until(&world.sim, is_done, &world, 1000));
    cr_assert_eq(world.nodes[1].items, ITEMS);
    cr_assert_eq(count(&world, KVB_OK), ITEMS);
    for (uint32_t i = 0; i < NODES; i++) {
        cr_assert_eq(world.nodes[i].calls_taken, i == 1);
    }
    /* One that is silent is left alone after that. */
    world.nodes[1].answer = FAKE_SILENT;
    world.done = 0;
    world.batch.deadline_ns = sim_in_ms(&world.sim, 2000);
    cr_assert_eq(kvs_client_submit_to(world.client, "node-1", &world.batch), KVB_OK);
    cr_assert(sim_run_until(&world.sim, is_done, &world, 2000));
    cr_assert_eq(count(&world, KVB_ERR_UNAVAILABLE), ITEMS);
    cr_assert_eq(kvs_client_submit_to(world.client, "node-1", &world.batch), KVB_ERR_UNAVAILABLE);
    world_close(&world);
}

Test(client, a_node_that_refuses_fails_its_items_alone)
{
    struct world world;
    world_open(&world, NODES);
    world.nodes[1].answer = FAKE_REFUSE;
    world.nodes[1].with = KVB_ERR_NO_MEMORY;
    cr_assert_eq(submit(&world), KVB_OK);
    cr_assert(sim_run_until(&world.sim, is_done, &world, 10));
    cr_assert_eq(count(&world, KVB_ERR_NO_MEMORY), world.nodes[1].items);
    for (uint32_t i = 0; i < NODES; i++) {
        world.nodes[i].answer = FAKE_REFUSE;
        world.nodes[i].with = KVB_ERR_NO_MEMORY;
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
    world.nodes[0].answer = FAKE_SILENT;
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
        cr_assert_eq(world.nodes[i].held_by, 5);
        cr_assert_eq(world.nodes[i].discards_all, 1);
    }
    world_close(&world);
}

/* ---- nodes that come and go ---- */

static void on_removed(void *ctx, struct kvs_node *node)
{
    struct world *world = ctx;
    cr_assert(!world->inside, "removed inside a call");
    cr_assert_null(world->removed);
    cr_assert_eq(kvb_container_of(node, struct fake_node, base)->in_flight, 0);
    world->removed = node;
}

static kvb_status_t remove_node(struct world *world, const char *name)
{
    world->inside = true;
    world->removed = NULL;
    kvb_status_t status = kvs_client_remove_node(world->client, name, on_removed, world);
    world->inside = false;
    return status;
}

static kvb_status_t run(struct world *world, enum kvs_batch_op op)
{
    world->batch.op = op;
    world->batch.deadline_ns = sim_in_ms(&world->sim, 60000);
    kvb_status_t status = submit(world);
    if (status == KVB_OK) {
        cr_assert(sim_run_until(&world->sim, is_done, world, 61000));
    }
    return status;
}

static uint32_t items_of(struct world *world, uint32_t node)
{
    uint32_t items = world->nodes[node].items;
    world->nodes[node].items = 0;
    return items;
}

Test(members, there_is_a_limit_and_who_is_beyond_it_is_told)
{
    struct world world;
    char name[16];
    uint32_t n = 0;
    kvb_status_t status;
    world_open(&world, 0);
    fake_node_init(&world.nodes[0], &world.sim);
    do {
        (void)snprintf(name, sizeof name, "node-%u", n++);
        status = kvs_client_add_node(world.client, name, &world.nodes[0].base, 1);
    } while (status == KVB_OK && n < 5000);
    cr_assert_eq(status, KVB_ERR_LIMIT);
    cr_assert_geq(n, 1000);
    world_close(&world);
}

Test(members, a_removed_node_gets_nothing_and_is_given_back_when_its_last_call_ended)
{
    struct world world;
    world_open(&world, NODES);
    world.nodes[1].answer = FAKE_SILENT;
    world.batch.op = KVS_PUT;
    cr_assert_eq(submit(&world), KVB_OK);
    cr_assert_eq(remove_node(&world, "node-1"), KVB_OK);
    cr_assert_eq(world.nodes[1].stops, 1);
    cr_assert(sim_run_until(&world.sim, is_done, &world, 10), "at once, not at the deadline");
    cr_assert_eq(count(&world, KVB_ERR_UNAVAILABLE), world.nodes[1].items);
    cr_assert_eq(count(&world, KVB_OK), ITEMS - world.nodes[1].items);
    sim_settle(&world.sim);
    cr_assert_eq(world.removed, &world.nodes[1].base);
    (void)items_of(&world, 1);
    cr_assert_eq(run(&world, KVS_GET), KVB_OK);
    cr_assert_eq(items_of(&world, 1), 0);
    cr_assert_eq(count(&world, KVB_OK), ITEMS, "the others have its place");
    cr_assert_eq(remove_node(&world, "node-1"), KVB_ERR_NOT_FOUND);
    cr_assert_eq(kvs_client_add_node(world.client, "node-1", &world.nodes[1].base, 1), KVB_OK);
    world_close(&world);
}

Test(members, an_idle_node_is_given_back_later_and_its_name_is_free_at_once)
{
    struct world world;
    world_open(&world, 1);
    cr_assert_eq(remove_node(&world, "node-0"), KVB_OK);
    cr_assert_null(world.removed);
    cr_assert_eq(kvs_client_add_node(world.client, "node-0", &world.nodes[0].base, 1), KVB_OK);
    sim_settle(&world.sim);
    cr_assert_eq(world.removed, &world.nodes[0].base);
    cr_assert_eq(remove_node(&world, "node-0"), KVB_OK);
    world_close(&world); /* with a removal that is not over */
}

Test(members, puts_go_where_they_would_without_a_node_that_is_readable_only)
{
    struct world world;
    world_open(&world, NODES);
    cr_assert_eq(run(&world, KVS_GET), KVB_OK);
    uint32_t of_2 = items_of(&world, 2);
    cr_assert_gt(of_2, 0);
    cr_assert_eq(kvs_client_set_node(world.client, "node-2", 1, true), KVB_OK);
    cr_assert_eq(run(&world, KVS_PUT), KVB_OK);
    cr_assert_eq(items_of(&world, 2), 0);
    cr_assert_eq(count(&world, KVB_OK), ITEMS);
    cr_assert_eq(run(&world, KVS_GET), KVB_OK);
    cr_assert_eq(items_of(&world, 2), of_2);
    cr_assert_eq(run(&world, KVS_EXISTS), KVB_OK);
    cr_assert_eq(items_of(&world, 2), of_2);
    cr_assert_eq(kvs_client_set_node(world.client, "node-2", 1, false), KVB_OK);
    cr_assert_eq(run(&world, KVS_PUT), KVB_OK);
    cr_assert_eq(items_of(&world, 2), of_2);
    cr_assert_eq(kvs_client_set_node(world.client, "node-2", 1000000, false), KVB_OK);
    cr_assert_eq(run(&world, KVS_PUT), KVB_OK);
    cr_assert_gt(items_of(&world, 2), ITEMS * 9 / 10, "a new weight counts");
    cr_assert_eq(kvs_client_set_node(world.client, "node-9", 1, false), KVB_ERR_NOT_FOUND);
    world_close(&world);
}

/* Random batches, stops, and nodes that come, go and are slow: each batch completes once. */
Test(members, batches_in_flight_across_changes_complete_once)
{
    struct world world;
    world_open(&world, 0);
    struct fake_node nodes[8];
    bool in[8] = {false};
    struct flying {
        struct world world; /* for its items; no client of its own */
        bool running;
    } *flying = calloc(16, sizeof *flying);
    uint64_t begun = 0, ended = 0;
    struct kvs_node *leaving = NULL;
    for (uint32_t i = 0; i < 8; i++) {
        fake_node_init(&nodes[i], &world.sim);
    }
    for (uint32_t step = 0; step < 20000; step++) {
        uint32_t i = (uint32_t)sim_below(&world.sim, 8);
        char name[16];
        (void)snprintf(name, sizeof name, "n%u", i);
        switch (sim_below(&world.sim, 8)) {
        case 0:
            if (!in[i] && &nodes[i].base != leaving) {
                in[i] = true;
                cr_assert_eq(kvs_client_add_node(world.client, name, &nodes[i].base, 1 + i),
                             KVB_OK);
            }
            break;
        case 1:
            if (in[i] && leaving == NULL) {
                in[i] = false;
                leaving = &nodes[i].base;
                cr_assert_eq(remove_node(&world, name), KVB_OK);
            }
            break;
        case 2:
            if (in[i]) {
                bool readable_only = sim_below(&world.sim, 2);
                cr_assert_eq(kvs_client_set_node(world.client, name, 1 + i, readable_only), KVB_OK);
            }
            break;
        case 3:
            nodes[i].answer = (enum fake_answer)sim_below(&world.sim, 3);
            nodes[i].with = nodes[i].answer == FAKE_REFUSE  ? KVB_ERR_UNAVAILABLE
                            : sim_below(&world.sim, 2) == 0 ? KVB_OK
                                                            : KVB_ERR_CHECKSUM;
            break;
        case 4:
            sim_advance(&world.sim, sim_below(&world.sim, 300));
            break;
        case 5:
            if (flying[i].running && flying[i].world.done == 0) {
                kvs_client_cancel(&flying[i].world.batch, sim_in_ms(&world.sim, 10));
            }
            break;
        default: {
            struct flying *f = &flying[sim_below(&world.sim, 16)];
            if (f->running && f->world.done == 0) {
                break;
            }
            ended += f->running;
            f->running = true;
            f->world = (struct world){.client = world.client};
            f->world.batch = world.batch;
            f->world.batch.items = f->world.items;
            memcpy(f->world.items, world.items, sizeof world.items);
            f->world.batch.op = (enum kvs_batch_op)sim_below(&world.sim, KVS_BATCH_OPS);
            f->world.batch.nitems = 1 + (uint32_t)sim_below(&world.sim, ITEMS);
            f->world.batch.deadline_ns = sim_in_ms(&world.sim, sim_below(&world.sim, 3000));
            cr_assert_eq(submit(&f->world), KVB_OK);
            begun++;
        }
        }
        sim_settle(&world.sim);
        if (world.removed != NULL) {
            cr_assert_eq(world.removed, leaving);
            world.removed = NULL;
            leaving = NULL;
        }
    }
    sim_advance(&world.sim, 4000);
    for (uint32_t i = 0; i < 16; i++) {
        ended += flying[i].running && flying[i].world.done == 1;
    }
    cr_assert_eq(begun, ended);
    cr_assert_gt(begun, 4000);
    for (uint32_t i = 0; i < 8; i++) {
        cr_assert_eq(nodes[i].in_flight, 0);
    }
    free(flying);
    world_close(&world);
}

Test(members, a_remove_and_a_pin_ask_every_node_and_tell_what_holds_for_all)
{
    static const struct {
        kvb_status_t one, other, together, pinned;
    } cases[] = {
        {KVB_OK, KVB_ERR_NOT_FOUND, KVB_OK, KVB_OK},
        {KVB_ERR_NOT_FOUND, KVB_ERR_NOT_FOUND, KVB_ERR_NOT_FOUND, KVB_ERR_NOT_FOUND},
        {KVB_OK, KVB_ERR_BUSY, KVB_ERR_BUSY, KVB_OK},
        {KVB_ERR_NOT_FOUND, KVB_ERR_DISCONNECTED, KVB_ERR_DISCONNECTED, KVB_ERR_DISCONNECTED},
        {KVB_OK, KVB_ERR_DISCONNECTED, KVB_ERR_DISCONNECTED, KVB_OK},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        bool pin = i % 2 == 1;
        struct world world;
        world_open(&world, NODES);
        for (uint32_t n = 0; n < NODES; n++) {
            world.nodes[n].with = n == 2 ? cases[i / 2].one : cases[i / 2].other;
        }
        cr_assert_eq(run(&world, pin ? KVS_PIN : KVS_REMOVE), KVB_OK);
        for (uint32_t n = 0; n < NODES; n++) {
            cr_assert_eq(items_of(&world, n), ITEMS);
        }
        cr_assert_eq(count(&world, pin ? cases[i / 2].pinned : cases[i / 2].together), ITEMS,
                     "case %zu", i);
        world_close(&world);
    }
}

/* ---- sick nodes ---- */

static void find_node(void *arg, const struct kvs_client_node *node)
{
    struct kvs_client_node *found = arg;
    if (node->node == found->node) {
        *found = *node;
    }
}

static struct kvs_client_node told(struct world *world, uint32_t node)
{
    struct kvs_client_node found = {.node = &world->nodes[node].base};
    kvs_client_each_node(world->client, find_node, &found);
    cr_assert_not_null(found.name);
    return found;
}

static bool sick(struct world *world, uint32_t node)
{
    return told(world, node).sick;
}

static void node_is(struct world *world, uint32_t node, enum fake_answer answer, kvb_status_t with)
{
    world->nodes[node].answer = answer;
    world->nodes[node].with = with;
}

/* Three times: it is sick then. */
static void make_sick(struct world *world, uint32_t node)
{
    node_is(world, node, FAKE_AT_ONCE, KVB_ERR_DISCONNECTED);
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert(!sick(world, node));
        cr_assert_eq(run(world, KVS_PUT), KVB_OK);
    }
    cr_assert(sick(world, node));
    (void)items_of(world, node);
}

/* kvcache-ai/Mooncake issue 2704 (B48): a node whose transfers fail goes on being chosen. */
Test(health, b48_a_node_that_fails_transfers_leaves_the_choice_and_comes_back)
{
    struct world world;
    world_open(&world, 3);
    node_is(&world, 1, FAKE_AT_ONCE, KVB_ERR_DISCONNECTED);
    uint32_t failed_batches = 0;
    for (uint32_t i = 0; i < 200; i++) {
        uint64_t before_ns = world.sim.now_ns;
        node_is(&world, 1, FAKE_AT_ONCE, KVB_OK); /* its lookups work all the time */
        cr_assert_eq(run(&world, KVS_EXISTS), KVB_OK);
        node_is(&world, 1, FAKE_AT_ONCE, KVB_ERR_DISCONNECTED);
        cr_assert_eq(run(&world, i % 2 == 0 ? KVS_PUT : KVS_GET), KVB_OK);
        failed_batches += count(&world, KVB_OK) != ITEMS;
        cr_assert_eq(world.sim.now_ns, before_ns, "nobody waits for it");
    }
    cr_assert_leq(failed_batches, 2 * 3);
    cr_assert(sick(&world, 1));
    cr_assert_eq(run(&world, KVS_PUT), KVB_OK);
    cr_assert_eq(count(&world, KVB_OK), ITEMS, "its puts go to the next");
    node_is(&world, 1, FAKE_AT_ONCE, KVB_OK); /* it heals */
    (void)items_of(&world, 1);
    sim_advance(&world.sim, 1999);
    cr_assert_eq(run(&world, KVS_PUT), KVB_OK);
    cr_assert_eq(items_of(&world, 1), 0, "left alone for the back-off");
    sim_advance(&world.sim, 1);
    cr_assert_eq(run(&world, KVS_PUT), KVB_OK);
    cr_assert_gt(items_of(&world, 1), 0);
    cr_assert(!sick(&world, 1));
    cr_assert_eq(run(&world, KVS_GET), KVB_OK);
    cr_assert_eq(count(&world, KVB_OK), ITEMS);
    world_close(&world);
}

Test(health, only_failures_in_a_row_make_sick)
{
    struct world world;
    world_open(&world, NODES);
    for (uint32_t i = 0; i < 10; i++) {
        node_is(&world, 1, FAKE_AT_ONCE, KVB_ERR_CHECKSUM);
        cr_assert_eq(run(&world, KVS_GET), KVB_OK);
        cr_assert_eq(run(&world, KVS_GET), KVB_OK);
        node_is(&world, 1, FAKE_AT_ONCE, KVB_ERR_NOT_FOUND);
        cr_assert_eq(run(&world, KVS_GET), KVB_OK);
        cr_assert(!sick(&world, 1));
    }
    cr_assert_eq(told(&world, 1).failures, 20);
    cr_assert_eq(told(&world, 1).calls, 30);
    world_close(&world);
}

Test(health, what_fails_together_counts_once)
{
    struct world world;
    world_open(&world, NODES);
    node_is(&world, 1, FAKE_SILENT, KVB_OK);
    struct world others[10];
    for (uint32_t i = 0; i < 10; i++) {
        others[i] = (struct world){.client = world.client, .batch = world.batch};
        others[i].batch.op = KVS_GET;
        others[i].batch.items = others[i].items;
        memcpy(others[i].items, world.items, sizeof world.items);
        cr_assert_eq(submit(&others[i]), KVB_OK);
    }
    sim_settle(&world.sim);
    cr_assert_eq(told(&world, 1).in_flight, 10);
    kvb_list_each(&world.nodes[1].calls, link)
    {
        fake_end_call(&world.nodes[1], kvb_container_of(link, struct kvs_node_call, impl.link),
                      KVB_ERR_DISCONNECTED);
    }
    sim_settle(&world.sim);
    cr_assert_eq(told(&world, 1).failures, 10);
    cr_assert(!sick(&world, 1), "one connection broke");
    node_is(&world, 1, FAKE_AT_ONCE, KVB_ERR_DISCONNECTED);
    cr_assert_eq(run(&world, KVS_GET), KVB_OK);
    cr_assert(!sick(&world, 1));
    cr_assert_eq(run(&world, KVS_GET), KVB_OK);
    cr_assert(sick(&world, 1));
    world_close(&world);
}

Test(health, what_says_nothing_of_the_node_does_not_count)
{
    static const struct {
        kvb_status_t status;
        bool counts;
    } cases[] = {
        {KVB_ERR_UNAVAILABLE, true}, {KVB_ERR_DISCONNECTED, true}, {KVB_ERR_TIMEOUT, true},
        {KVB_ERR_PROTOCOL, true},    {KVB_ERR_REFUSED, true},      {KVB_ERR_CHECKSUM, true},
        {KVB_ERR_IO, true},          {KVB_ERR_INTERNAL, true},     {KVB_ERR_NOT_FOUND, false},
        {KVB_ERR_EXISTS, false},     {KVB_ERR_NO_SPACE, false},    {KVB_ERR_QUOTA, false},
        {KVB_ERR_GENERATION, false}, {KVB_ERR_NO_MEMORY, false},   {KVB_ERR_TOO_LARGE, false},
        {KVB_ERR_CANCELED, false},   {KVB_ERR_FENCED, false},      {KVB_ERR_TICKET, false},
        {KVB_ERR_DRAINING, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (uint32_t refused = 0; refused < 2; refused++) {
            struct world world;
            world_open(&world, NODES);
            node_is(&world, 3, refused ? FAKE_REFUSE : FAKE_AT_ONCE, cases[i].status);
            for (uint32_t n = 0; n < 5; n++) {
                cr_assert_eq(run(&world, KVS_GET), KVB_OK);
            }
            cr_assert_eq(sick(&world, 3), cases[i].counts, "%s", kvb_status_label(cases[i].status));
            world_close(&world);
        }
    }
}

/* As when the GPU of one engine fails: the others go on to be served by the node. */
Test(health, what_failed_on_this_side_does_not_count_whatever_it_is)
{
    struct world world;
    world_open(&world, NODES);
    node_is(&world, 3, FAKE_AT_ONCE, KVB_ERR_IO);
    world.nodes[3].ours = true;
    for (uint32_t n = 0; n < 5; n++) {
        cr_assert_eq(run(&world, KVS_GET), KVB_OK);
        cr_assert_gt(count(&world, KVB_ERR_IO), 0, "it is told all the same");
    }
    cr_assert(!sick(&world, 3));
    world.nodes[3].ours = false;
    for (uint32_t n = 0; n < 3; n++) {
        cr_assert_eq(run(&world, KVS_GET), KVB_OK);
    }
    cr_assert(sick(&world, 3));
    world_close(&world);
}

Test(health, a_lookup_of_a_silent_node_is_a_miss_at_its_bound_and_then_at_once)
{
    struct world world;
    world_open(&world, NODES);
    node_is(&world, 2, FAKE_SILENT, KVB_OK);
    uint64_t before_ns = world.sim.now_ns;
    cr_assert_eq(run(&world, KVS_EXISTS), KVB_OK);
    cr_assert_eq(world.sim.now_ns - before_ns, 500 * KVB_NS_PER_MS, "not the batch's 60 s");
    cr_assert_eq(count(&world, KVB_ERR_UNAVAILABLE), items_of(&world, 2));
    cr_assert_eq(count(&world, KVB_OK) + count(&world, KVB_ERR_UNAVAILABLE), ITEMS);
    cr_assert(sick(&world, 2), "nothing at all was heard of it");
    before_ns = world.sim.now_ns;
    cr_assert_eq(run(&world, KVS_EXISTS), KVB_OK);
    cr_assert_eq(run(&world, KVS_PUT), KVB_OK);
    cr_assert_eq(run(&world, KVS_GET), KVB_OK);
    cr_assert_eq(world.sim.now_ns, before_ns);
    cr_assert_eq(count(&world, KVB_OK), ITEMS);
    cr_assert_eq(world.nodes[2].calls_taken, 1);
    world_close(&world);
}

Test(health, a_node_that_is_heard_is_slow_not_silent)
{
    struct world world;
    world_open(&world, NODES);
    node_is(&world, 2, FAKE_SILENT, KVB_OK);
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert(!sick(&world, 2));
        world.nodes[2].heard_ns = sim_in_ms(&world.sim, 100);
        cr_assert_eq(run(&world, KVS_EXISTS), KVB_OK);
    }
    cr_assert(sick(&world, 2), "three bounds in a row");
    world_close(&world);
}

Test(health, deadlines_shorter_than_the_bound_are_no_failures_but_silence_is)
{
    struct world world;
    world_open(&world, NODES);
    node_is(&world, 2, FAKE_SILENT, KVB_OK);
    for (uint32_t i = 0; i < 10; i++) {
        cr_assert_eq(sick(&world, 2), i > 5, "after %u times 90 ms", i);
        world.batch.op = KVS_EXISTS;
        world.batch.deadline_ns = sim_in_ms(&world.sim, 90);
        cr_assert_eq(submit(&world), KVB_OK);
        cr_assert(sim_run_until(&world.sim, is_done, &world, 100));
    }
    world_close(&world);
}

Test(health, silence_begins_with_a_question)
{
    for (uint32_t canceled = 0; canceled < 2; canceled++) {
        struct world world;
        world_open(&world, NODES);
        node_is(&world, 2, canceled ? FAKE_SILENT : FAKE_AT_ONCE, KVB_OK);
        world.batch.op = KVS_EXISTS;
        world.batch.deadline_ns = sim_in_ms(&world.sim, 60000);
        cr_assert_eq(submit(&world), KVB_OK);
        kvs_client_cancel(&world.batch, sim_in_ms(&world.sim, 10));
        cr_assert(sim_run_until(&world.sim, is_done, &world, 100));
        sim_advance(&world.sim, 10000); /* nobody asks it anything */
        node_is(&world, 2, FAKE_SILENT, KVB_OK);
        world.batch.deadline_ns = sim_in_ms(&world.sim, 90);
        cr_assert_eq(submit(&world), KVB_OK);
        cr_assert(sim_run_until(&world.sim, is_done, &world, 100));
        cr_assert(!sick(&world, 2));
        world_close(&world);
    }
}

Test(health, one_item_that_fails_is_a_failure)
{
    struct world world;
    world_open(&world, NODES);
    node_is(&world, 2, FAKE_SILENT, KVB_OK);
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert(!sick(&world, 2));
        world.batch.op = KVS_GET;
        world.batch.deadline_ns = sim_in_ms(&world.sim, 60000);
        cr_assert_eq(submit(&world), KVB_OK);
        struct kvs_node_call *call = kvb_container_of(kvb_list_first(&world.nodes[2].calls),
                                                      struct kvs_node_call, impl.link);
        fake_end_call(&world.nodes[2], call, KVB_OK);
        cr_assert_gt(call->n, 1);
        kvs_node_call_item(call, call->n - 1)->status = KVB_ERR_CHECKSUM;
        cr_assert(sim_run_until(&world.sim, is_done, &world, 100));
        cr_assert_eq(count(&world, KVB_ERR_CHECKSUM), 1, "told entry by entry");
        cr_assert_eq(count(&world, KVB_OK), ITEMS - 1);
    }
    cr_assert(sick(&world, 2));
    world_close(&world);
}

Test(health, a_transfer_gets_the_time_that_its_bytes_take)
{
    struct world world;
    world_open(&world, 1);
    world.nodes[0].answer = FAKE_SILENT;
    struct kvt_slice slice = {.len = 8192 * 1000};
    world.items[0].slices = &slice;
    world.items[0].nslices = 1;
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t before_ns = world.sim.now_ns;
        cr_assert_eq(run(&world, i == 0 ? KVS_PUT : KVS_GET), KVB_OK);
        cr_assert_eq(world.sim.now_ns - before_ns, 6000 * KVB_NS_PER_MS);
        cr_assert_eq(count(&world, KVB_ERR_TIMEOUT), ITEMS);
        sim_advance(&world.sim, 2000);
    }
    world_close(&world);
}

Test(health, one_call_at_a_time_tries_a_sick_node)
{
    struct world world;
    world_open(&world, NODES);
    make_sick(&world, 1);
    uint32_t before = world.nodes[1].calls_taken;
    node_is(&world, 1, FAKE_SILENT, KVB_OK);
    sim_advance(&world.sim, 2000);
    world.batch.op = KVS_EXISTS;
    world.batch.deadline_ns = sim_in_ms(&world.sim, 60000);
    cr_assert_eq(submit(&world), KVB_OK);
    struct world other = {.client = world.client, .batch = world.batch};
    other.batch.items = other.items;
    memcpy(other.items, world.items, sizeof world.items);
    for (uint32_t i = 0; i < 5; i++) {
        cr_assert_eq(submit(&other), KVB_OK);
        sim_settle(&world.sim);
        cr_assert_eq(other.done, 1, "the others go on without it");
    }
    cr_assert_eq(world.nodes[1].calls_taken, before + 1);
    cr_assert(sim_run_until(&world.sim, is_done, &world, 600));
    cr_assert(sick(&world, 1));
    sim_advance(&world.sim, 1990);
    cr_assert_eq(run(&world, KVS_EXISTS), KVB_OK);
    cr_assert_eq(world.nodes[1].calls_taken, before + 1, "it is left alone again");
    sim_advance(&world.sim, 10);
    node_is(&world, 1, FAKE_AT_ONCE, KVB_OK);
    cr_assert_eq(run(&world, KVS_EXISTS), KVB_OK);
    cr_assert_eq(world.nodes[1].calls_taken, before + 2);
    cr_assert(!sick(&world, 1));
    cr_assert_eq(told(&world, 1).sick_times, 1);
    world_close(&world);
}

Test(health, a_try_that_is_canceled_says_nothing_and_another_may_follow)
{
    struct world world;
    world_open(&world, NODES);
    make_sick(&world, 1);
    sim_advance(&world.sim, 2000);
    node_is(&world, 1, FAKE_SILENT, KVB_OK);
    world.batch.op = KVS_GET;
    world.batch.deadline_ns = sim_in_ms(&world.sim, 60000);
    cr_assert_eq(submit(&world), KVB_OK);
    kvs_client_cancel(&world.batch, sim_in_ms(&world.sim, 10));
    cr_assert(sim_run_until(&world.sim, is_done, &world, 20));
    cr_assert(sick(&world, 1));
    node_is(&world, 1, FAKE_AT_ONCE, KVB_OK);
    cr_assert_eq(run(&world, KVS_GET), KVB_OK);
    cr_assert(!sick(&world, 1));
    world_close(&world);
}

Test(health, an_answer_to_a_call_from_before_brings_nobody_back)
{
    struct world world;
    world_open(&world, NODES);
    node_is(&world, 1, FAKE_SILENT, KVB_OK);
    struct world other = {.client = world.client, .batch = world.batch};
    other.batch.op = KVS_GET;
    other.batch.deadline_ns = sim_in_ms(&world.sim, 60000);
    other.batch.items = other.items;
    memcpy(other.items, world.items, sizeof world.items);
    cr_assert_eq(submit(&other), KVB_OK);
    make_sick(&world, 1);
    fake_end_call(
        &world.nodes[1],
        kvb_container_of(kvb_list_first(&world.nodes[1].calls), struct kvs_node_call, impl.link),
        KVB_OK);
    sim_settle(&world.sim);
    cr_assert_eq(other.done, 1);
    cr_assert(sick(&world, 1));
    world_close(&world);
}

Test(health, one_that_came_back_leaves_at_its_first_failure)
{
    struct world world;
    world_open(&world, NODES);
    make_sick(&world, 1);
    sim_advance(&world.sim, 2000);
    node_is(&world, 1, FAKE_AT_ONCE, KVB_OK);
    cr_assert_eq(run(&world, KVS_EXISTS), KVB_OK);
    cr_assert(!sick(&world, 1));
    node_is(&world, 1, FAKE_AT_ONCE, KVB_ERR_DISCONNECTED);
    cr_assert_eq(run(&world, KVS_PUT), KVB_OK);
    cr_assert(sick(&world, 1), "its lookups worked, its puts have not since");
    sim_advance(&world.sim, 2000);
    node_is(&world, 1, FAKE_AT_ONCE, KVB_OK);
    cr_assert_eq(run(&world, KVS_PUT), KVB_OK);
    node_is(&world, 1, FAKE_AT_ONCE, KVB_ERR_DISCONNECTED);
    cr_assert_eq(run(&world, KVS_PUT), KVB_OK);
    cr_assert(!sick(&world, 1), "puts had worked");
    world_close(&world);
}

Test(health, with_every_node_sick_everything_misses_at_once)
{
    struct world world;
    world_open(&world, 1);
    make_sick(&world, 0);
    uint64_t before_ns = world.sim.now_ns;
    for (uint32_t op = 0; op < KVS_BATCH_OPS; op++) {
        cr_assert_eq(run(&world, (enum kvs_batch_op)op), KVB_OK);
        cr_assert_eq(count(&world, KVB_ERR_UNAVAILABLE), ITEMS);
    }
    cr_assert_eq(world.sim.now_ns, before_ns);
    cr_assert_eq(items_of(&world, 0), 0);
    world_close(&world);
}

Test(health, a_remove_that_could_not_ask_a_sick_node_does_not_say_that_it_is_gone)
{
    struct world world;
    world_open(&world, NODES);
    make_sick(&world, 1);
    for (uint32_t missing = 0; missing < 2; missing++) {
        for (uint32_t i = 0; i < NODES; i++) {
            node_is(&world, i, FAKE_AT_ONCE, missing ? KVB_ERR_NOT_FOUND : KVB_OK);
        }
        cr_assert_eq(run(&world, KVS_REMOVE), KVB_OK);
        cr_assert_eq(count(&world, KVB_ERR_UNAVAILABLE), ITEMS);
        cr_assert_eq(items_of(&world, 1), 0);
    }
    world_close(&world);
}

Test(health, no_node_is_blamed_when_this_process_was_held_up)
{
    struct world world;
    world_open(&world, NODES);
    node_is(&world, 2, FAKE_SILENT, KVB_OK);
    world.batch.op = KVS_EXISTS;
    world.batch.deadline_ns = sim_in_ms(&world.sim, 60000);
    cr_assert_eq(submit(&world), KVB_OK);
    sim_settle(&world.sim);
    world.sim.now_ns = sim_in_ms(&world.sim, 20000); /* SIGSTOP */
    (void)sim_turn(&world.sim);
    cr_assert_eq(world.done, 0, "its answer may be there");
    fake_end_call(
        &world.nodes[2],
        kvb_container_of(kvb_list_first(&world.nodes[2].calls), struct kvs_node_call, impl.link),
        KVB_OK);
    sim_settle(&world.sim);
    cr_assert_eq(world.done, 1);
    cr_assert_eq(count(&world, KVB_OK), ITEMS);
    cr_assert(!sick(&world, 2));
    /* and for longer than the batch has */
    cr_assert_eq(submit(&world), KVB_OK);
    sim_settle(&world.sim);
    world.sim.now_ns = sim_in_ms(&world.sim, 100000);
    sim_settle(&world.sim);
    cr_assert_eq(world.done, 1);
    cr_assert(!sick(&world, 2));
    world_close(&world);
}

Test(health, a_node_in_this_process_is_bounded_by_the_batch_alone_and_never_sick)
{
    struct world world;
    world_open(&world, 2);
    struct kvs_node_ops here = fake_node_ops;
    here.in_process = true;
    world.nodes[1].base.ops = &here;
    node_is(&world, 1, FAKE_SILENT, KVB_OK);
    uint64_t before_ns = world.sim.now_ns;
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(run(&world, KVS_EXISTS), KVB_OK);
    }
    cr_assert_eq(world.sim.now_ns - before_ns, 4 * 60000 * KVB_NS_PER_MS);
    cr_assert(!sick(&world, 1));
    world_close(&world);
}

Test(health, limits_are_settable_and_0_is_the_default)
{
    struct world world;
    world_open(&world, 0);
    kvs_client_set_health(world.client,
                          &(struct kvs_client_health){.lookup_ms = 120, .failures = 1});
    fake_node_init(&world.nodes[0], &world.sim);
    cr_assert_eq(kvs_client_add_node(world.client, "a", &world.nodes[0].base, 77), KVB_OK);
    node_is(&world, 0, FAKE_SILENT, KVB_OK);
    uint64_t before_ns = world.sim.now_ns;
    cr_assert_eq(run(&world, KVS_EXISTS), KVB_OK);
    cr_assert_eq(world.sim.now_ns - before_ns, 120 * KVB_NS_PER_MS);
    struct kvs_client_node node = told(&world, 0);
    cr_assert(node.sick);
    cr_assert_eq(node.sick_ns, world.sim.now_ns);
    cr_assert_eq(node.weight, 77);
    cr_assert_str_eq(node.name, "a");
    sim_advance(&world.sim, 2000);
    node_is(&world, 0, FAKE_AT_ONCE, KVB_OK);
    cr_assert_eq(run(&world, KVS_PUT), KVB_OK);
    node_is(&world, 0, FAKE_AT_ONCE, KVB_ERR_TIMEOUT);
    cr_assert_eq(run(&world, KVS_PUT), KVB_OK);
    cr_assert(sick(&world, 0), "one failure is enough");
    world_close(&world);
}
