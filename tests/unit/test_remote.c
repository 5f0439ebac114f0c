/* SPDX-License-Identifier: Apache-2.0 */
/* A node behind connections, as a client sees it: it comes, goes, comes back as another. */
#include "test_store.h"
#include "wire/wire.h"

#include <criterion/criterion.h>

static const struct test_store_config config = {.share_bytes = MIB(8), .shards = 3};

static struct fake_peer *the_peer(void)
{
    return kvb_container_of(kvb_list_first(&fake_tcp.peers), struct fake_peer, link);
}

static bool is_up(void *arg)
{
    return test_store_up_(arg);
}
/* In its second life. */
static bool is_second(void *arg)
{
    struct kvs_remote_status status;
    kvs_remote_status(arg, &status);
    return status.up && status.incarnation == 2;
}
static bool is_down(void *arg)
{
    return !test_store_up_(arg);
}

static struct kvs_remote_status status_of(struct test_store *store)
{
    struct kvs_remote_status status;
    kvs_remote_status(store->node, &status);
    return status;
}

/* The process of the node is gone, with everything in it. */
static void kill_node(struct test_store *store)
{
    kvs_service_destroy(store->service);
    store->service = NULL;
    kvs_keeper_stop(&store->keeper);
    kvs_share_destroy(store->share);
    store->share = NULL;
}

static void start_node(struct test_store *store, uint64_t incarnation)
{
    const struct kvs_share_config share = {.bytes = config.share_bytes, .shards = config.shards};
    cr_assert_eq(kvs_share_create(&store->sim.random, &share, &store->share), KVB_OK);
    kvs_keeper_start(&store->keeper, store->share, &store->sim.sched, test_store_poked_,
                     &store->keeper);
    test_store_serve(store, &config, incarnation);
}

/* ---- a node that is away is a miss, at once ---- */

Test(remote, what_is_asked_of_a_node_that_is_away_misses_at_once)
{
    struct test_store store;
    struct test_job job;
    test_store_open(&store, &config, false);
    cr_assert_eq(test_put(&store, "k", 1, 100, 1), KVB_OK);
    kill_node(&store);
    cr_assert(sim_run_until(&store.sim, is_down, store.node, 1000));
    for (int op = 0; op < KVS_BATCH_OPS; op++) {
        uint64_t now_ns = store.sim.now_ns;
        test_job_init(&job, &store, (enum kvs_batch_op)op);
        for (uint64_t i = 0; i < 16; i++) {
            test_job_add(&job, &store, "k", 1, i * 100, 100);
        }
        test_job_run(&job, &store);
        for (int i = 0; i < 16; i++) {
            cr_assert_eq(job.items[i].status, KVB_ERR_UNAVAILABLE, "op %d", op);
        }
        cr_assert_eq(store.sim.now_ns, now_ns, "nothing was waited for");
    }
    kvs_client_discard(store.client, (struct kvs_hold){9, 1}); /* to nobody: no effect */
    start_node(&store, 2);
    cr_assert(sim_run_until(&store.sim, is_up, store.node, 5000));
    cr_assert_eq(test_exists(&store, "k", 1), KVB_ERR_NOT_FOUND);
    test_store_close(&store);
}

static void on_removed(void *ctx, struct kvs_node *node)
{
    (void)node;
    *(bool *)ctx = true;
}

Test(remote, a_node_that_never_was_there_costs_nothing)
{
    struct test_store store;
    struct kvs_node *nobody;
    test_store_open(&store, &config, false);
    const struct kvs_remote_config away = {
        .sched = &store.sim.sched,
        .regions = store.regions,
        .ways = {{&kvs_by_tcp, &(struct kvt_tcp_peer_config){.address = "nobody"}}}};
    cr_assert_eq(kvs_remote_create(&away, &nobody), KVB_OK);
    cr_assert_eq(kvs_client_add_node(store.client, "nobody", nobody, MIB(8)), KVB_OK);
    uint32_t there = 0;
    for (uint64_t i = 0; i < 40; i++) {
        kvb_status_t status = test_put(&store, &i, sizeof i, 100, 1);
        cr_assert(status == KVB_OK || status == KVB_ERR_UNAVAILABLE);
        there += status == KVB_OK;
    }
    cr_assert_gt(there, 0);
    bool gone = false;
    cr_assert_eq(kvs_client_remove_node(store.client, "nobody", on_removed, &gone), KVB_OK);
    cr_assert(sim_run_until_true(&store.sim, &gone, 1000));
    kvs_remote_destroy(nobody);
    test_store_close(&store);
}

/* ---- several ways ---- */

/* A second carrier, as good as the first one. */
static kvb_status_t fast_create(struct kvt_regions *regions, const void *peer,
                                const struct kvt_peer_ops *ops, void *ctx,
                                struct kvt_transport **transport_p)
{
    return kvs_by_tcp.create(regions, peer, ops, ctx, transport_p);
}
static const struct kvs_carrier by_fast = {
    .name = "fast", .create = fast_create, .stats = kvt_tcp_peer_stats};

/* One that this process is too short of something for. */
static kvb_status_t short_create(struct kvt_regions *regions, const void *peer,
                                 const struct kvt_peer_ops *ops, void *ctx,
                                 struct kvt_transport **transport_p)
{
    (void)regions;
    (void)peer;
    (void)ops;
    (void)ctx;
    (void)transport_p;
    return KVB_ERR_LIMIT;
}
static const struct kvs_carrier by_short = {
    .name = "short", .create = short_create, .stats = kvt_tcp_peer_stats};

Test(remote, a_way_that_cannot_be_made_costs_the_node_only_if_it_is_the_last)
{
    struct test_store store;
    struct kvs_node *node;
    struct kvs_way_status way;
    test_store_open(&store, &config, false);
    struct kvs_remote_config remote = {
        .sched = &store.sim.sched,
        .regions = store.regions,
        .ways = {{&by_short, NULL},
                 {&kvs_by_tcp, &(struct kvt_tcp_peer_config){.address = "node"}}}};
    cr_assert_eq(kvs_remote_create(&remote, &node), KVB_OK);
    cr_assert(sim_run_until(&store.sim, is_up, store.node, 1000));
    cr_assert(kvs_remote_way(node, 0, &way));
    cr_assert_str_eq(way.by, "tcp");
    cr_assert(!kvs_remote_way(node, 1, &way));
    kvs_remote_destroy(node);
    const struct kvs_way tcp = remote.ways[1];
    remote.ways[1] = remote.ways[0];
    remote.ways[0] = tcp;
    cr_assert_eq(kvs_remote_create(&remote, &node), KVB_ERR_LIMIT);
    test_store_close(&store);
}

/* A node that is reached as `fast` and as `node`; its share is one. */
struct two_ways {
    struct test_store store;
    struct kvs_service *fast;
};

static void serve_fast(struct two_ways *two)
{
    const struct kvs_service_config service = {.sched = &two->store.sim.sched,
                                               .share = two->store.share,
                                               .name = "fast",
                                               .incarnation = 1};
    cr_assert_eq(kvs_service_create(&service, &two->fast), KVB_OK);
}

static void unserve_fast(struct two_ways *two)
{
    kvs_service_destroy(two->fast);
    two->fast = NULL;
}

static void open_two_ways_by(struct two_ways *two, bool fast, const struct kvs_carrier *first)
{
    struct test_store *store = &two->store;
    bool gone = false;
    two->fast = NULL;
    test_store_open(store, &config, false);
    if (fast) {
        serve_fast(two);
    }
    const struct kvs_remote_config both = {
        .sched = &store->sim.sched,
        .regions = store->regions,
        .ways = {{first, &(struct kvt_tcp_peer_config){.address = "fast"}},
                 {&kvs_by_tcp, &(struct kvt_tcp_peer_config){.address = "node"}}},
    };
    cr_assert_eq(kvs_client_remove_node(store->client, "here", on_removed, &gone), KVB_OK);
    cr_assert(sim_run_until_true(&store->sim, &gone, 1000));
    kvs_remote_destroy(store->node);
    cr_assert_eq(kvs_remote_create(&both, &store->node), KVB_OK);
    cr_assert_eq(kvs_client_add_node(store->client, "here", store->node, MIB(8)), KVB_OK);
}

static void open_two_ways(struct two_ways *two, bool fast)
{
    open_two_ways_by(two, fast, &by_fast);
}

static void close_two_ways(struct two_ways *two)
{
    kvs_service_destroy(two->fast);
    test_store_close(&two->store);
}

static struct kvs_way_status way_of(const struct two_ways *two, uint32_t number)
{
    struct kvs_way_status way;
    cr_assert(kvs_remote_way(two->store.node, number, &way));
    return way;
}

/* Puts and gets a block; by which way its questions went. */
static const char *carried(struct two_ways *two, uint64_t key)
{
    uint64_t fast = way_of(two, 0).stats.transfers, slow = way_of(two, 1).stats.transfers;
    cr_assert_eq(test_put(&two->store, &key, sizeof key, 1000, 1), KVB_OK);
    cr_assert_eq(test_get(&two->store, &key, sizeof key, 1000, 1), KVB_OK);
    fast = way_of(two, 0).stats.transfers - fast;
    slow = way_of(two, 1).stats.transfers - slow;
    cr_assert((fast == 0) != (slow == 0), "%lu %lu", (unsigned long)fast, (unsigned long)slow);
    return fast > 0 ? "fast" : "node";
}

/* Whether a key is there: the answer to a question of one item. */
static kvb_status_t look_up(struct two_ways *two)
{
    struct test_job job;
    test_job_add(test_job_init(&job, &two->store, KVS_EXISTS), &two->store, "k", 1, 0, 1);
    test_job_submit(&job, &two->store);
    cr_assert(sim_run_until_true(&two->store.sim, &job.done, 1000));
    return job.items[0].status;
}

Test(remote, the_best_way_that_is_up_carries_the_questions)
{
    struct two_ways two;
    struct kvs_way_status none;
    uint64_t second = 2;
    open_two_ways(&two, true);
    sim_advance(&two.store.sim, 100);
    cr_expect_str_eq(status_of(&two.store).by, "fast");
    cr_expect_str_eq(carried(&two, 1), "fast");
    cr_expect(way_of(&two, 0).up && way_of(&two, 1).up);
    cr_expect_str_eq(way_of(&two, 0).by, "fast");
    cr_expect_str_eq(way_of(&two, 1).by, "tcp");
    cr_expect(!kvs_remote_way(two.store.node, 2, &none));
    unserve_fast(&two);
    sim_settle(&two.store.sim);
    cr_expect(status_of(&two.store).up, "one way is enough");
    cr_expect_str_eq(status_of(&two.store).by, "tcp");
    cr_expect_eq(way_of(&two, 0).why, KVB_ERR_DISCONNECTED);
    cr_expect_str_eq(carried(&two, second), "node");
    serve_fast(&two);
    sim_advance(&two.store.sim, 100);
    cr_expect_str_eq(status_of(&two.store).by, "fast");
    cr_expect_eq(way_of(&two, 0).why, KVB_OK);
    cr_expect_str_eq(carried(&two, 3), "fast");
    cr_expect_eq(test_get(&two.store, &second, sizeof second, 1000, 1), KVB_OK, "it is one node");
    close_two_ways(&two);
}

/* A carrier that is up, and reaches no memory of an engine: what rdma is where it may not lock any.
 */
static bool reaches_nothing(struct kvt_transport *transport, const struct kvt_region *region)
{
    (void)transport;
    (void)region;
    return false;
}

static kvb_status_t blind_create(struct kvt_regions *regions, const void *peer,
                                 const struct kvt_peer_ops *ops, void *ctx,
                                 struct kvt_transport **transport_p)
{
    static struct kvt_transport_ops blind;
    kvb_status_t status = kvs_by_tcp.create(regions, peer, ops, ctx, transport_p);
    if (status == KVB_OK) {
        blind = *(*transport_p)->ops;
        blind.reaches = reaches_nothing;
        (*transport_p)->ops = &blind;
    }
    return status;
}
static const struct kvs_carrier by_blind = {
    .name = "blind", .create = blind_create, .stats = kvt_tcp_peer_stats};

Test(remote, memory_that_a_way_does_not_reach_goes_by_the_next_and_questions_by_the_best)
{
    struct two_ways two;
    open_two_ways_by(&two, true, &by_blind);
    sim_advance(&two.store.sim, 100);
    cr_expect_str_eq(status_of(&two.store).by, "blind");
    cr_expect_str_eq(carried(&two, 1), "node");
    uint64_t asked = way_of(&two, 0).stats.transfers;
    cr_expect_eq(look_up(&two), KVB_ERR_NOT_FOUND);
    cr_expect_gt(way_of(&two, 0).stats.transfers, asked, "it names no memory");
    kvs_service_destroy(two.store.service); /* the other way is gone: there is none for the bytes */
    two.store.service = NULL;
    sim_advance(&two.store.sim, 1000);
    uint64_t key = 2;
    cr_expect_neq(test_put(&two.store, &key, sizeof key, 1000, 1), KVB_OK);
    cr_expect_eq(look_up(&two), KVB_ERR_NOT_FOUND);
    close_two_ways(&two);
}

/* A carrier whose transfers fail on this side, as those of a GPU that is gone. */
static struct {
    struct kvt_transport_ops ops;
    kvb_status_t (*start)(struct kvt_transport *transport, struct kvt_transfer *transfer);
    struct kvb_event event;
    struct kvt_transfer *transfer;
} lame;

static void lame_end(struct kvb_event *event)
{
    (void)event;
    lame.transfer->ours = true;
    kvt_transfer_finish(lame.transfer, KVB_ERR_IO);
}

static kvb_status_t lame_start(struct kvt_transport *transport, struct kvt_transfer *transfer)
{
    if (transfer->nslices == 0) {
        return lame.start(transport, transfer);
    }
    lame.transfer = transfer;
    kvb_event_init(&lame.event, lame_end);
    kvb_sched_post(transport->sched, &lame.event);
    return KVB_OK;
}

static kvb_status_t lame_create(struct kvt_regions *regions, const void *peer,
                                const struct kvt_peer_ops *ops, void *ctx,
                                struct kvt_transport **transport_p)
{
    kvb_status_t status = kvs_by_tcp.create(regions, peer, ops, ctx, transport_p);
    if (status == KVB_OK) {
        lame.ops = *(*transport_p)->ops;
        lame.start = lame.ops.start;
        lame.ops.start = lame_start;
        (*transport_p)->ops = &lame.ops;
    }
    return status;
}
static const struct kvs_carrier by_lame = {
    .name = "lame", .create = lame_create, .stats = kvt_tcp_peer_stats};

static void see_sick(void *arg, const struct kvs_client_node *node)
{
    *(bool *)arg = *(bool *)arg || node->sick;
}

Test(remote, what_fails_on_this_side_is_not_held_against_the_node)
{
    struct two_ways two;
    bool sick = false;
    open_two_ways_by(&two, true, &by_lame);
    sim_advance(&two.store.sim, 100);
    for (uint64_t key = 0; key < 5; key++) {
        cr_assert_eq(test_put(&two.store, &key, sizeof key, 1000, 1), KVB_ERR_IO);
    }
    kvs_client_each_node(two.store.client, see_sick, &sick);
    cr_assert_not(sick);
    cr_assert_eq(look_up(&two), KVB_ERR_NOT_FOUND, "it is asked as before");
    close_two_ways(&two);
}

Test(remote, a_way_that_never_connects_costs_nothing_where_another_does)
{
    struct two_ways two;
    open_two_ways(&two, false);
    sim_advance(&two.store.sim, 100);
    cr_expect_str_eq(status_of(&two.store).by, "tcp");
    for (uint64_t i = 0; i < 20; i++) {
        cr_expect_str_eq(carried(&two, i), "node");
    }
    cr_expect_eq(way_of(&two, 0).stats.transfers, 0, "it is not asked");
    close_two_ways(&two);
}

static kvb_status_t asked_status;
static uint32_t nasked;

static void on_asked(struct kvs_remote_tenants *ask, kvb_status_t status)
{
    (void)ask;
    asked_status = status;
    nasked++;
}

/* Between the loss of a way and the word of it, questions go on by the next one. */
Test(remote, a_way_that_was_lost_a_moment_ago_is_passed_over)
{
    struct two_ways two;
    open_two_ways(&two, true);
    sim_advance(&two.store.sim, 100);
    unserve_fast(&two);
    cr_expect(way_of(&two, 0).up, "nobody has been told");
    struct kvs_remote_tenants ask = {.done = on_asked}; /* is begun inside the call */
    cr_assert_eq(kvs_remote_tenants(two.store.node, sim_in_ms(&two.store.sim, 1000), &ask), KVB_OK);
    cr_expect_eq(way_of(&two, 0).stats.transfers, 2, "its status, and now");
    sim_settle(&two.store.sim);
    cr_expect_eq(nasked, 1);
    cr_expect_eq(asked_status, KVB_OK, "%s", kvb_status_label(asked_status));
    cr_expect_eq(look_up(&two), KVB_ERR_NOT_FOUND, "the node's answer");
    close_two_ways(&two);
}

/* The last way is what the others fall back to: it is asked first, rather than one that may take a
 * question and then not connect. */
Test(remote, while_no_way_is_up_the_last_one_is_asked_first)
{
    struct two_ways two;
    open_two_ways(&two, true);
    sim_advance(&two.store.sim, 100);
    unserve_fast(&two);
    kvs_service_destroy(two.store.service);
    two.store.service = NULL;
    sim_settle(&two.store.sim);
    cr_expect(!status_of(&two.store).up);
    cr_expect_null(status_of(&two.store).by);
    fake_tcp.first_asked[0] = '\0';
    cr_expect_eq(look_up(&two), KVB_ERR_UNAVAILABLE);
    cr_expect_str_eq(fake_tcp.first_asked, "node");
    close_two_ways(&two);
}

/* A node that started anew is another, whichever way says so first. */
Test(remote, figures_of_an_earlier_life_are_not_told_by_the_other_way)
{
    struct two_ways two;
    open_two_ways(&two, true);
    sim_advance(&two.store.sim, 100);
    cr_expect_str_eq(carried(&two, 1), "fast");
    sim_advance(&two.store.sim, 1100);
    cr_expect_eq(status_of(&two.store).puts, 1);
    unserve_fast(&two);
    sim_settle(&two.store.sim);
    cr_expect_eq(status_of(&two.store).puts, 1, "the node is the same");
    kvs_service_drain(two.store.service);
    sim_advance(&two.store.sim, 1100);
    cr_expect(status_of(&two.store).draining);
    serve_fast(&two);
    cr_assert(sim_run_until(&two.store.sim, is_up, two.store.node, 1000));
    sim_advance(&two.store.sim, 60);
    cr_expect_str_eq(status_of(&two.store).by, "fast");
    cr_expect(status_of(&two.store).draining, "until it says otherwise");
    close_two_ways(&two);
}

/* ---- restarts ---- */

Test(remote, a_node_that_came_back_as_another_has_nothing_of_before_and_takes_new_puts)
{
    struct test_store store;
    test_store_open(&store, &config, false);
    for (uint64_t life = 2; life < 6; life++) {
        for (uint64_t i = 0; i < 20; i++) {
            cr_assert_eq(test_put(&store, &i, sizeof i, 1000 + i, life), KVB_OK);
        }
        kill_node(&store);
        sim_settle(&store.sim);
        start_node(&store, life);
        cr_assert(sim_run_until(&store.sim, is_up, store.node, 5000));
        cr_assert_eq(status_of(&store).incarnation, life);
        for (uint64_t i = 0; i < 20; i++) {
            cr_assert_eq(test_get(&store, &i, sizeof i, 1000 + i, life), KVB_ERR_NOT_FOUND);
        }
    }
    test_store_close(&store);
}

enum { JOBS = 12 };

Test(remote, a_node_killed_at_any_moment_under_load_loses_what_it_held_and_nothing_else)
{
    for (uint32_t turns = 0; turns < 60; turns++) {
        struct test_store store;
        static struct test_job jobs[JOBS];
        static uint64_t keys[JOBS];
        test_store_open(&store, &config, false);
        for (uint64_t i = 0; i < 4; i++) {
            keys[i] = i;
            cr_assert_eq(test_put(&store, &keys[i], 8, KIB(64), 1), KVB_OK);
        }
        for (uint64_t j = 0; j < JOBS; j++) {
            bool get = j < 4;
            keys[j] = j;
            uint8_t *value = store.memory.base + MIB(1) + j * KIB(64);
            if (get) {
                memset(value, TEST_PREFILL, KIB(64));
            } else {
                test_value_fill(value, KIB(64), "t", &keys[j], 8, 1);
            }
            test_job_init(&jobs[j], &store, get ? KVS_GET : KVS_PUT);
            test_job_add(&jobs[j], &store, &keys[j], 8, MIB(1) + j * KIB(64), KIB(64));
            test_job_submit(&jobs[j], &store);
        }
        for (uint32_t i = 0; i < turns; i++) {
            (void)sim_turn(&store.sim);
        }
        kill_node(&store);
        for (uint64_t j = 0; j < JOBS; j++) {
            cr_assert(sim_run_until_true(&store.sim, &jobs[j].done, 1000));
            kvb_status_t status = jobs[j].items[0].status;
            cr_assert(status == KVB_OK || status == KVB_ERR_UNAVAILABLE, "%s",
                      kvb_status_label(status));
            if (j < 4 && status == KVB_OK) {
                cr_assert_eq(test_value_check(store.memory.base + MIB(1) + j * KIB(64), KIB(64),
                                              "t", &keys[j], 8, 1),
                             KIB(64));
            }
        }
        start_node(&store, 2);
        cr_assert(sim_run_until(&store.sim, is_second, store.node, 5000));
        for (uint64_t j = 0; j < JOBS; j++) {
            cr_assert_eq(test_get(&store, &keys[j], 8, KIB(64), 1), KVB_ERR_NOT_FOUND);
            cr_assert_eq(test_put(&store, &keys[j], 8, KIB(64), 2), KVB_OK);
            cr_assert_eq(test_get(&store, &keys[j], 8, KIB(64), 2), KVB_OK);
        }
        cr_assert_null(kvs_share_validate(store.share));
        test_store_close(&store);
    }
}

Test(remote, lanes_that_are_cut_fail_only_what_was_on_them)
{
    struct test_store store;
    struct test_job jobs[2];
    test_store_open(&store, &config, false);
    fake_tcp.held[FAKE_RECEIVING] = true;
    for (int j = 0; j < 2; j++) {
        test_job_init(&jobs[j], &store, KVS_PUT);
        test_job_add(&jobs[j], &store, j == 0 ? "a" : "b", 1, 0, KIB(64));
        test_job_submit(&jobs[j], &store);
    }
    sim_settle(&store.sim);
    fake_lane_close(fake_waiting(FAKE_RECEIVING)->lane);
    cr_assert(sim_run_until_true(&store.sim, &jobs[0].done, 100));
    cr_assert_eq(jobs[0].items[0].status, KVB_ERR_UNAVAILABLE);
    cr_assert(!jobs[1].done);
    fake_tcp.held[FAKE_RECEIVING] = false;
    fake_go(fake_waiting(FAKE_RECEIVING));
    cr_assert(sim_run_until_true(&store.sim, &jobs[1].done, 100));
    cr_assert_eq(jobs[1].items[0].status, KVB_OK);
    cr_assert(status_of(&store).up, "one is left");
    test_store_close(&store);
}

/* ---- calls ---- */

Test(remote, what_the_transport_has_no_room_for_waits_and_is_never_lost)
{
    struct test_store store;
    static struct test_job jobs[8];
    static uint64_t keys[8][16];
    test_store_open(&store, &config, false);
    fake_tcp.held[FAKE_RECEIVING] = true;
    for (int j = 0; j < 8; j++) {
        test_job_init(&jobs[j], &store, KVS_PUT);
        for (int i = 0; i < 16; i++) {
            keys[j][i] = (uint64_t)(j * 16 + i);
            test_job_add(&jobs[j], &store, &keys[j][i], 8, 0, 100);
        }
        test_job_submit(&jobs[j], &store);
    }
    sim_settle(&store.sim);
    cr_assert_eq(the_peer()->base.in_flight, 8);
    fake_tcp.held[FAKE_RECEIVING] = false;
    for (struct fake_exchange *one; (one = fake_waiting(FAKE_RECEIVING)) != NULL;) {
        fake_go(one);
    }
    for (int j = 0; j < 8; j++) {
        cr_assert(sim_run_until_true(&store.sim, &jobs[j].done, 1000));
        for (int i = 0; i < 16; i++) {
            cr_assert_eq(jobs[j].items[i].status, KVB_OK);
        }
    }
    cr_assert_eq(test_stats(&store).puts, 128);
    test_store_close(&store);
}

Test(remote, when_others_fill_the_transport_time_makes_room)
{
    struct test_store store;
    struct test_job job;
    test_store_open(&store, &config, false);
    sim_advance(&store.sim, 10);
    fake_tcp.held[FAKE_ASKED] = true;
    for (uint64_t i = 0; i < 8; i++) {
        kvs_client_discard(store.client, (struct kvs_hold){9, i});
    }
    cr_assert_eq(the_peer()->base.in_flight, 8);
    test_job_add(test_job_init(&job, &store, KVS_EXISTS), &store, "k", 1, 0, 1);
    test_job_submit(&job, &store);
    sim_settle(&store.sim);
    cr_assert(!job.done);
    fake_tcp.held[FAKE_ASKED] = false;
    for (struct fake_exchange *one; (one = fake_waiting(FAKE_ASKED)) != NULL;) {
        fake_go(one);
    }
    cr_assert(sim_run_until_true(&store.sim, &job.done, 100));
    cr_assert_eq(job.items[0].status, KVB_ERR_NOT_FOUND);
    test_store_close(&store);
}

Test(remote, at_the_deadline_what_was_begun_has_timed_out_and_the_rest_was_never_asked)
{
    struct test_store store;
    struct test_job job;
    test_store_open(&store, &config, false);
    for (int s = FAKE_ASKED; s < FAKE_STAGES; s++) {
        fake_tcp.held[s] = true;
    }
    sim_advance(&store.sim, 10);
    uint32_t others = the_peer()->base.in_flight; /* a status, perhaps */
    test_job_init(&job, &store, KVS_PUT);
    job.batch.deadline_ns = sim_in_ms(&store.sim, 100);
    static uint64_t keys[16];
    for (uint64_t i = 0; i < 16; i++) {
        keys[i] = i;
        test_job_add(&job, &store, &keys[i], 8, 0, 100);
    }
    test_job_submit(&job, &store);
    cr_assert(sim_run_until_true(&store.sim, &job.done, 1000));
    cr_assert_lt(store.sim.now_ns, job.batch.deadline_ns + 300 * KVB_NS_PER_MS);
    for (uint32_t i = 0; i < 16; i++) {
        cr_assert_eq(job.items[i].status, i < 8 - others ? KVB_ERR_TIMEOUT : KVB_ERR_UNAVAILABLE,
                     "item %u", i);
    }
    cr_assert_eq(kvt_region_refs(store.region), 0);
    for (int s = FAKE_ASKED; s < FAKE_STAGES; s++) {
        fake_tcp.held[s] = false;
    }
    test_store_close(&store);
}

Test(remote, a_lookup_stopped_half_way_answers_every_key_once)
{
    for (uint32_t turns = 0; turns < 24; turns++) {
        struct test_store store;
        static struct kvs_item items[1000];
        static uint32_t keys[1000];
        struct test_job job;
        test_store_open(&store, &config, false);
        for (uint32_t i = 0; i < 1000; i++) {
            keys[i] = i;
            items[i] = (struct kvs_item){.key = {(const uint8_t *)&keys[i], i % 97 == 0 ? 0 : 4}};
        }
        test_job_init(&job, &store, KVS_EXISTS);
        job.batch.items = items;
        job.batch.nitems = 1000;
        test_job_submit(&job, &store);
        for (uint32_t i = 0; i < turns; i++) {
            (void)sim_turn(&store.sim);
        }
        if (!job.done) {
            test_job_cancel(&job, &store);
        }
        cr_assert(sim_run_until_true(&store.sim, &job.done, 100));
        for (uint32_t i = 0; i < 1000; i++) {
            cr_assert(items[i].status == KVB_ERR_CANCELED ||
                      items[i].status == (i % 97 == 0 ? KVB_ERR_INVALID : KVB_ERR_NOT_FOUND));
        }
        test_store_close(&store);
    }
}

Test(remote, an_answer_for_other_keys_than_were_asked_about_is_none)
{
    static const uint8_t said[64];
    static const uint32_t lens[] = {0, 1, 63};
    for (int i = 0; i < 3; i++) {
        struct test_store store;
        test_store_open(&store, &config, false);
        cr_assert_eq(test_put(&store, "k", 1, 100, 1), KVB_OK);
        fake_tcp.lie = said;
        fake_tcp.lie_len = lens[i];
        fake_tcp.lie_type = KVS_ASK_EXISTS;
        fake_tcp.lies = 1;
        cr_expect_eq(test_exists(&store, "k", 1), KVB_ERR_PROTOCOL);
        cr_assert_eq(fake_tcp.lies, 0);
        cr_assert_eq(test_exists(&store, "k", 1), KVB_OK);
        test_store_close(&store);
    }
}

Test(remote, of_two_puts_of_one_key_the_second_is_not_asked_before_the_first_has_its_answer)
{
    struct test_store store;
    struct test_job job;
    test_store_open(&store, &config, false);
    fake_tcp.held[FAKE_RECEIVING] = true;
    test_job_init(&job, &store, KVS_PUT);
    test_job_add(&job, &store, "k", 1, 0, MIB(1));
    test_job_add(&job, &store, "k", 1, MIB(2), 10);
    test_job_add(&job, &store, "j", 1, MIB(2), 10);
    test_job_submit(&job, &store);
    sim_settle(&store.sim);
    cr_assert_eq(the_peer()->base.in_flight, 1, "what comes behind it waits, too");
    fake_tcp.held[FAKE_RECEIVING] = false;
    fake_go(fake_waiting(FAKE_RECEIVING));
    cr_assert(sim_run_until_true(&store.sim, &job.done, 1000));
    cr_assert_eq(job.items[0].status, KVB_OK);
    cr_assert_eq(job.items[1].status, KVB_ERR_EXISTS);
    cr_assert_eq(job.items[2].status, KVB_OK);
    test_store_close(&store);
}

struct own_call {
    struct kvs_node_call call;
    bool done;
};

static void on_own_done(struct kvs_node_call *call)
{
    kvb_container_of(call, struct own_call, call)->done = true;
}

Test(remote, what_is_stopped_is_told_why_begun_or_not)
{
    static const struct {
        bool expired;
        kvb_status_t begun, rest;
    } ways[] = {{true, KVB_ERR_TIMEOUT, KVB_ERR_UNAVAILABLE},
                {false, KVB_ERR_CANCELED, KVB_ERR_CANCELED}};
    for (int w = 0; w < 2; w++) {
        struct test_store store;
        struct test_job job;
        static uint64_t keys[16];
        test_store_open(&store, &config, false);
        fake_tcp.held[FAKE_RECEIVING] = true;
        test_job_init(&job, &store, KVS_PUT);
        for (uint64_t i = 0; i < 16; i++) {
            keys[i] = i;
            test_job_add(&job, &store, &keys[i], 8, 0, 100);
        }
        struct own_call own = {.call = {.batch = &job.batch, .n = 16, .done = on_own_done}};
        cr_assert_eq(store.node->ops->submit(store.node, &own.call), KVB_OK);
        sim_settle(&store.sim);
        store.node->ops->stop(store.node, &own.call, ways[w].expired, sim_in_ms(&store.sim, 200));
        cr_assert(!own.done, "later");
        cr_assert(sim_run_until_true(&store.sim, &own.done, 200));
        for (int i = 0; i < 16; i++) {
            cr_assert_eq(job.items[i].status, i < 8 ? ways[w].begun : ways[w].rest, "item %d", i);
        }
        fake_tcp.held[FAKE_RECEIVING] = false;
        test_store_close(&store);
    }
}

/* ---- holds ---- */

static void hold_k(struct test_store *store, struct kvs_client *client)
{
    struct test_job job;
    test_job_add(test_job_init(&job, store, KVS_EXISTS), store, "k", 1, 0, 1);
    job.batch.hold = (struct kvs_hold){9, 1};
    cr_assert_eq(kvs_client_submit(client, &job.batch), KVB_OK);
    cr_assert(sim_run_until_true(&store->sim, &job.done, 1000));
    cr_assert_eq(job.items[0].status, KVB_OK);
}

Test(remote, holds_of_two_clients_whose_instances_have_one_number_are_two)
{
    struct test_store store;
    struct kvs_node *second;
    struct kvs_client *client;
    test_store_open(&store, &config, false);
    const struct kvs_remote_config other = {
        .sched = &store.sim.sched,
        .regions = store.regions,
        .ways = {{&kvs_by_tcp, &(struct kvt_tcp_peer_config){.address = "node"}}}};
    cr_assert_eq(kvs_remote_create(&other, &second), KVB_OK);
    cr_assert(sim_run_until(&store.sim, is_up, second, 1000));
    cr_assert_eq(kvs_client_create(&store.sim.sched, &client), KVB_OK);
    cr_assert_eq(kvs_client_add_node(client, "node", second, MIB(8)), KVB_OK);
    cr_assert_eq(test_put(&store, "k", 1, 1000, 1), KVB_OK);
    hold_k(&store, store.client);
    hold_k(&store, client);
    cr_assert_eq(test_stats(&store).core.holds, 2);
    kvs_client_discard_instance(client, 9);
    sim_settle(&store.sim);
    cr_assert_eq(test_stats(&store).core.holds, 1, "the other's promise stands");
    kvs_client_discard(store.client, (struct kvs_hold){9, 1});
    sim_settle(&store.sim);
    cr_assert_eq(test_stats(&store).core.holds, 0);
    kvs_client_destroy(client);
    kvs_remote_destroy(second);
    test_store_close(&store);
}

/* ---- what the node says of itself ---- */

struct heard {
    uint32_t calls;
    struct kvs_remote_status last;
};

static void on_changed(void *ctx, struct kvs_node *node, const struct kvs_remote_status *status)
{
    struct heard *heard = ctx;
    (void)node;
    heard->calls++;
    heard->last = *status;
}

Test(remote, its_figures_and_state_are_told_as_they_change)
{
    struct test_store store;
    struct kvs_node *watched;
    struct heard heard = {0};
    test_store_open(&store, &config, false);
    const struct kvs_remote_config watch = {
        .sched = &store.sim.sched,
        .regions = store.regions,
        .ways = {{&kvs_by_tcp, &(struct kvt_tcp_peer_config){.address = "node"}}},
        .changed = on_changed,
        .ctx = &heard};
    cr_assert_eq(kvs_remote_create(&watch, &watched), KVB_OK);
    cr_assert(!heard.last.up);
    cr_assert_eq(test_put(&store, "k", 1, 1000, 1), KVB_OK);
    cr_assert_eq(test_get(&store, "k", 1, 1000, 1), KVB_OK);
    sim_advance(&store.sim, 1100);
    cr_assert(heard.last.up);
    cr_assert_eq(heard.last.incarnation, 1);
    cr_assert_eq(heard.last.capacity_bytes, test_stats(&store).core.share_bytes);
    cr_assert_eq(heard.last.used_bytes, test_stats(&store).core.used_bytes);
    cr_assert_eq(heard.last.objects, 1);
    cr_assert_eq(heard.last.puts, 1);
    cr_assert_eq(heard.last.put_bytes, 1000);
    cr_assert_eq(heard.last.gets, 1);
    cr_assert_eq(heard.last.get_bytes, 1000);
    cr_assert(!heard.last.draining);
    kvs_service_drain(store.service);
    sim_advance(&store.sim, 1100);
    cr_assert(heard.last.draining);
    kill_node(&store);
    cr_assert(sim_run_until(&store.sim, is_down, watched, 1000));
    cr_assert(!heard.last.up);
    start_node(&store, 2);
    sim_advance(&store.sim, 1100);
    cr_assert(heard.last.up);
    cr_assert(!heard.last.draining);
    cr_assert_eq(heard.last.incarnation, 2);
    cr_assert_eq(heard.last.objects, 0);
    cr_assert_lt(heard.calls, 20, "not more often than there is news");
    kvs_remote_destroy(watched);
    test_store_close(&store);
}

struct listed {
    struct kvs_remote_tenants ask;
    uint32_t n;
    uint64_t objects;
    bool done;
    kvb_status_t status;
};

static void on_tenants(struct kvs_remote_tenants *ask, kvb_status_t status)
{
    struct listed *listed = kvb_container_of(ask, struct listed, ask);
    listed->status = status;
    listed->n = ask->n;
    for (uint32_t i = 0; i < ask->n; i++) {
        char want[64];
        (void)snprintf(want, sizeof want, "t%u", i);
        cr_assert_str_eq(ask->tenants[i].tenant, want);
        listed->objects += ask->tenants[i].stats.objects;
    }
    listed->done = true;
}

Test(remote, its_tenants_are_listed_however_many)
{
    static const uint32_t counts[] = {0, 1, 255, 256, 257, 600};
    for (int c = 0; c < 6; c++) {
        struct test_store store;
        struct listed listed = {.ask.done = on_tenants};
        test_store_open(&store, &config, false);
        for (uint32_t i = 0; i < counts[c]; i++) {
            (void)snprintf(store.space.tenant, sizeof store.space.tenant, "t%u", i);
            cr_assert_eq(test_put(&store, "k", 1, 64, 1), KVB_OK);
        }
        cr_assert_eq(kvs_remote_tenants(store.node, sim_in_ms(&store.sim, 1000), &listed.ask),
                     KVB_OK);
        cr_assert(!listed.done);
        cr_assert(sim_run_until_true(&store.sim, &listed.done, 1000));
        cr_assert_eq(listed.status, KVB_OK);
        cr_assert_eq(listed.n, counts[c]);
        cr_assert_eq(listed.objects, counts[c]);
        listed.done = false;
        fake_tcp.held[FAKE_ASKED] = true;
        cr_assert_eq(kvs_remote_tenants(store.node, sim_in_ms(&store.sim, 1000), &listed.ask),
                     KVB_OK);
        kill_node(&store);
        cr_assert(sim_run_until_true(&store.sim, &listed.done, 1000));
        cr_assert_eq(listed.status, KVB_ERR_UNAVAILABLE);
        fake_tcp.held[FAKE_ASKED] = false;
        sim_settle(&store.sim);
        listed.done = false;
        cr_assert_eq(kvs_remote_tenants(store.node, sim_in_ms(&store.sim, 1000), &listed.ask),
                     KVB_OK);
        cr_assert(sim_run_until_true(&store.sim, &listed.done, 1000));
        cr_assert_eq(listed.status, KVB_ERR_UNAVAILABLE);
        start_node(&store, 3);
        test_store_close(&store);
    }
}

/* Behind a first page that is full and sound. */
Test(remote, a_node_cannot_make_a_list_of_tenants_go_on_for_ever)
{
    static const struct {
        uint32_t n, next;
        kvb_status_t status;
    } pages[] = {{0, 0, KVB_OK},
                 {0, 256, KVB_ERR_PROTOCOL}, /* empty, and more to come */
                 {1, 256, KVB_ERR_PROTOCOL},
                 {1, 258, KVB_ERR_PROTOCOL}};
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        static struct kvs_wire_tenants said;
        struct test_store store;
        struct listed listed = {.ask.done = on_tenants};
        struct kvb_writer page;
        test_store_open(&store, &config, false);
        for (uint32_t t = 0; t < 256; t++) {
            (void)snprintf(store.space.tenant, sizeof store.space.tenant, "t%u", t);
            cr_assert_eq(test_put(&store, "k", 1, 64, 1), KVB_OK);
        }
        said = (struct kvs_wire_tenants){.n = pages[i].n, .next = pages[i].next};
        strcpy(said.at[0].tenant, "t256");
        kvb_writer_init(&page, 4096);
        kvs_tenants_pack(&page, &said);
        cr_assert_eq(page.status, KVB_OK);
        fake_tcp.lie = page.data;
        fake_tcp.lie_len = (uint32_t)page.len;
        fake_tcp.lie_type = KVS_ASK_TENANTS;
        fake_tcp.lies_after = 1;
        fake_tcp.lies = 1000;
        cr_assert_eq(kvs_remote_tenants(store.node, sim_in_ms(&store.sim, 1000), &listed.ask),
                     KVB_OK);
        cr_assert(sim_run_until_true(&store.sim, &listed.done, 2000));
        cr_expect_eq(listed.status, pages[i].status);
        cr_expect_eq(fake_tcp.lies, 999, "it was asked once");
        fake_tcp.lies = 0;
        kvb_writer_cleanup(&page);
        test_store_close(&store);
    }
}

struct object_list {
    struct kvs_remote_list ask;
    struct kvs_list list;
    bool done;
    kvb_status_t status;
};

static void on_objects(struct kvs_remote_list *ask, kvb_status_t status)
{
    struct object_list *objects = kvb_container_of(ask, struct object_list, ask);
    objects->status = status;
    objects->done = true;
}

static kvb_status_t list_objects(struct test_store *store, struct object_list *objects)
{
    objects->ask = (struct kvs_remote_list){.done = on_objects, .list = &objects->list};
    objects->done = false;
    cr_assert_eq(kvs_remote_list(store->node, sim_in_ms(&store->sim, 1000), &objects->ask), KVB_OK);
    cr_assert(!objects->done);
    cr_assert(sim_run_until_true(&store->sim, &objects->done, 2000));
    return objects->status;
}

Test(remote, its_objects_are_listed_part_by_part)
{
    static struct object_list objects;
    struct test_store store;
    uint32_t n = 0;
    test_store_open(&store, &config, false);
    for (uint64_t k = 0; k < 20; k++) {
        cr_assert_eq(test_put(&store, &k, sizeof k, 64, 1), KVB_OK);
    }
    strcpy(objects.list.tenant, store.space.tenant);
    objects.list.max = 6;
    do {
        cr_assert_eq(list_objects(&store, &objects), KVB_OK);
        for (uint32_t i = 0; i < objects.list.n; i++) {
            cr_expect_str_eq(objects.list.at[i].layout, store.space.layout);
            cr_expect(kvb_id_equal(objects.list.at[i].lineage.id, store.lineage.id));
            cr_expect_eq(objects.list.at[i].len, 64);
        }
        n += objects.list.n;
    } while (objects.list.more);
    cr_expect_eq(n, 20);
    objects.list.place = (struct kvs_list_place){0};
    strcpy(objects.list.tenant, "nobody");
    cr_assert_eq(list_objects(&store, &objects), KVB_OK);
    cr_expect_eq(objects.list.n, 0);
    cr_expect_not(objects.list.more);
    static const struct { /* an answer of a node that lies, and what becomes of it */
        uint32_t n;
        kvb_status_t status;
    } lies[] = {{6, KVB_OK}, {7, KVB_ERR_PROTOCOL}};
    for (int i = 0; i < 2; i++) {
        static struct kvs_list said;
        struct kvb_writer page;
        said = (struct kvs_list){.n = lies[i].n, .place = {9, 9, 9}};
        for (uint32_t k = 0; k < said.n; k++) {
            said.at[k].key_len = 1;
        }
        kvb_writer_init(&page, 4096);
        kvs_list_pack(&page, &said);
        fake_tcp.lie = page.data;
        fake_tcp.lie_len = (uint32_t)page.len;
        fake_tcp.lie_type = KVS_ASK_LIST;
        fake_tcp.lies_after = 0;
        fake_tcp.lies = 1;
        objects.list.place = (struct kvs_list_place){1, 2, 3};
        cr_expect_eq(list_objects(&store, &objects), lies[i].status);
        cr_expect_eq(objects.list.place.shard, lies[i].status == KVB_OK ? 9 : 1);
        kvb_writer_cleanup(&page);
    }
    fake_tcp.held[FAKE_ASKED] = true;
    objects.done = false;
    cr_assert_eq(kvs_remote_list(store.node, sim_in_ms(&store.sim, 1000), &objects.ask), KVB_OK);
    kill_node(&store);
    cr_assert(sim_run_until_true(&store.sim, &objects.done, 2000));
    cr_expect_eq(objects.status, KVB_ERR_UNAVAILABLE);
    fake_tcp.held[FAKE_ASKED] = false;
    sim_settle(&store.sim);
    cr_expect_eq(list_objects(&store, &objects), KVB_ERR_UNAVAILABLE);
    start_node(&store, 3);
    test_store_close(&store);
}

Test(remote, destroying_it_ends_what_nobody_waits_for)
{
    struct test_store store;
    test_store_open(&store, &config, false);
    fake_tcp.held[FAKE_ASKED] = true;
    sim_advance(&store.sim, 1500); /* a status is asked for */
    for (uint64_t i = 0; i < 4; i++) {
        kvs_client_discard(store.client, (struct kvs_hold){9, i});
    }
    cr_assert_gt(the_peer()->base.in_flight, 3);
    test_store_close(&store);
}
