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

enum answer { AT_ONCE, SILENT, REFUSE };

struct fake_node {
    struct kvs_node base;
    struct sim_sched *sim;
    enum answer answer;
    kvb_status_t with;     /* what items come to, or submit answers */
    struct kvb_list calls; /* in flight, by impl.link; impl.state: ended, and only to be told */
    struct kvb_event event;
    uint64_t heard_ns;
    uint32_t calls_taken, items, in_flight, stops, expired, discards, discards_all;
};

static void on_event(struct kvb_event *event)
{
    struct fake_node *fake = kvb_container_of(event, struct fake_node, event);
    for (bool more = true; more;) {
        more = false;
        kvb_list_each(&fake->calls, link)
        {
            struct kvs_node_call *call = kvb_container_of(link, struct kvs_node_call, impl.link);
            if (call->impl.state != NULL) {
                kvb_list_remove(&call->impl.link);
                fake->in_flight--;
                call->done(call);
                more = true;
                break; /* anything may have happened */
            }
        }
    }
}

static void fake_end_call(struct fake_node *fake, struct kvs_node_call *call, kvb_status_t status)
{
    for (uint32_t i = 0; call->impl.state == NULL && i < call->n; i++) {
        struct kvs_item *item = kvs_node_call_item(call, i);
        item->status = status;
        item->len = 7;
    }
    call->impl.state = fake;
    kvb_sched_post(&fake->sim->sched, &fake->event);
}

static kvb_status_t fake_submit(struct kvs_node *node, struct kvs_node_call *call)
{
    struct fake_node *fake = kvb_container_of(node, struct fake_node, base);
    fake->calls_taken++;
    fake->items += call->n;
    if (fake->answer == REFUSE) {
        return fake->with;
    }
    for (uint32_t i = 0; i < call->n; i++) {
        kvs_node_call_item(call, i)->status = KVB_IN_PROGRESS;
    }
    call->impl.state = NULL;
    kvb_list_push_back(&fake->calls, &call->impl.link);
    fake->in_flight++;
    if (fake->answer == AT_ONCE) {
        fake_end_call(fake, call, fake->with);
    }
    return KVB_OK;
}

static void fake_stop(struct kvs_node *node, struct kvs_node_call *call, bool expired,
                      uint64_t stop_deadline_ns)
{
    struct fake_node *fake = kvb_container_of(node, struct fake_node, base);
    (void)stop_deadline_ns;
    fake->stops++;
    fake->expired += expired;
    fake_end_call(fake, call,
                  !expired                        ? KVB_ERR_CANCELED
                  : call->batch->op == KVS_EXISTS ? KVB_ERR_UNAVAILABLE
                                                  : KVB_ERR_TIMEOUT);
}

static void fake_discard(struct kvs_node *node, struct kvs_hold hold, bool all_of_instance)
{
    struct fake_node *fake = kvb_container_of(node, struct fake_node, base);
    cr_assert_eq(hold.instance, 5);
    fake->discards += !all_of_instance;
    fake->discards_all += all_of_instance;
}

static const struct kvs_node_ops fake_ops = {
    .submit = fake_submit,
    .stop = fake_stop,
    .discard = fake_discard,
};

static void fake_node_init(struct fake_node *fake, struct sim_sched *sim)
{
    *fake = (struct fake_node){.base.ops = &fake_ops, .sim = sim};
    kvb_list_init(&fake->calls);
    kvb_event_init(&fake->event, on_event);
}

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
    world.nodes[1].with = KVB_ERR_NO_MEMORY;
    cr_assert_eq(submit(&world), KVB_OK);
    cr_assert(sim_run_until(&world.sim, is_done, &world, 10));
    cr_assert_eq(count(&world, KVB_ERR_NO_MEMORY), world.nodes[1].items);
    for (uint32_t i = 0; i < NODES; i++) {
        world.nodes[i].answer = REFUSE;
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

Test(members, a_removed_node_gets_nothing_and_is_given_back_when_its_last_call_ended)
{
    struct world world;
    world_open(&world, NODES);
    world.nodes[1].answer = SILENT;
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
            nodes[i].answer = (enum answer)sim_below(&world.sim, 3);
            nodes[i].with = nodes[i].answer == REFUSE       ? KVB_ERR_UNAVAILABLE
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

Test(members, a_remove_asks_every_node_and_tells_what_holds_for_all)
{
    static const struct {
        kvb_status_t one, other, together;
    } cases[] = {
        {KVB_OK, KVB_ERR_NOT_FOUND, KVB_OK},
        {KVB_ERR_NOT_FOUND, KVB_ERR_NOT_FOUND, KVB_ERR_NOT_FOUND},
        {KVB_OK, KVB_ERR_BUSY, KVB_ERR_BUSY},
        {KVB_ERR_NOT_FOUND, KVB_ERR_DISCONNECTED, KVB_ERR_DISCONNECTED},
        {KVB_OK, KVB_ERR_DISCONNECTED, KVB_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world world;
        world_open(&world, NODES);
        for (uint32_t n = 0; n < NODES; n++) {
            world.nodes[n].with = n == 2 ? cases[i].one : cases[i].other;
        }
        cr_assert_eq(run(&world, KVS_REMOVE), KVB_OK);
        for (uint32_t n = 0; n < NODES; n++) {
            cr_assert_eq(items_of(&world, n), ITEMS);
        }
        cr_assert_eq(count(&world, cases[i].together), ITEMS, "case %zu", i);
        world_close(&world);
    }
}
