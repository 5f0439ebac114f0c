/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A share served to others, taken apart: the connection goes a stage at a time (fake_tcp.h), so
 * anything can happen between reserve, bytes and commit, and between find, bytes and release.
 */
#include "share/share_impl.h"
#include "test_store.h"
#include "wire/wire.h"

#include <criterion/criterion.h>

#define TICKET_MS 300

static void open_store(struct test_store *store)
{
    test_store_open(
        store,
        &(struct test_store_config){.share_bytes = MIB(4), .shards = 1, .ticket_ms = TICKET_MS},
        false);
}

static struct test_job *begin(struct test_job *job, struct test_store *store, enum kvs_batch_op op,
                              const char *key, uint64_t offset, uint64_t len)
{
    test_job_add(test_job_init(job, store, op), store, key, strlen(key), offset, len);
    test_job_submit(job, store);
    return job;
}

/* Runs until an exchange stands at that stage. */
static bool stands(void *stage)
{
    return fake_waiting(*(enum fake_stage *)stage) != NULL;
}
static struct fake_exchange *run_to(struct test_store *store, enum fake_stage stage)
{
    cr_assert(sim_run_until(&store->sim, stands, &stage, 1000));
    return fake_waiting(stage);
}

static void run_to_end(struct test_store *store, struct test_job *job)
{
    cr_assert(sim_run_until_true(&store->sim, &job->done, 120000));
    if (kvs_remote_calls(store->node) == 0) {
        cr_assert_eq(kvt_region_refs(store->region), 0);
    }
}

/* Of the node; whoever asked may not have heard yet. */
static void assert_at_rest(struct test_store *store, uint64_t used)
{
    struct kvs_share_stats stats = test_stats(store);
    cr_assert_eq(stats.core.used_bytes, used);
    cr_assert_eq(stats.core.attempts, 0);
    cr_assert_eq(stats.core.tickets, 0);
    cr_assert_eq(stats.core.quarantined_bytes, 0);
    cr_assert_eq(kvs_service_running(store->service), 0);
    cr_assert_null(kvs_share_validate(store->share));
}

static struct fake_peer *peer_of(struct fake_exchange *exchange)
{
    return exchange->peer;
}

static bool reconnected(void *arg)
{
    return test_store_up_(arg);
}

/* ---- B23: a writer that dies at any point leaves nothing, and its space is free at once ---- */

Test(service, b23_a_writer_that_died_leaves_nothing_and_its_space_is_free_at_once)
{
    static const enum fake_stage stages[] = {FAKE_ASKED, FAKE_RECEIVING, FAKE_ANSWERED};
    for (int s = 0; s < 3; s++) {
        for (uint64_t moved = 0; moved <= MIB(2); moved += MIB(1)) {
            struct test_store store;
            struct test_job job;
            open_store(&store);
            fake_tcp.held[stages[s]] = true;
            begin(&job, &store, KVS_PUT, "k", 0, MIB(2));
            struct fake_exchange *exchange = run_to(&store, stages[s]);
            if (stages[s] == FAKE_RECEIVING) {
                fake_move_body(exchange, moved);
                cr_assert_eq(test_stats(&store).core.attempts, 1);
            }
            fake_peer_cut(peer_of(exchange));
            fake_tcp.held[stages[s]] = false;
            bool stored = stages[s] == FAKE_ANSWERED; /* only its answer was lost */
            assert_at_rest(&store, stored ? test_stats(&store).core.live_bytes : 0);
            run_to_end(&store, &job);
            cr_assert_eq(job.items[0].status, KVB_ERR_UNAVAILABLE);
            cr_assert(sim_run_until(&store.sim, reconnected, store.node, 1000));
            cr_assert_eq(test_exists(&store, "k", 1), stored ? KVB_OK : KVB_ERR_NOT_FOUND);
            if (!stored) {
                cr_assert_eq(test_put(&store, "all", 3, MIB(4), 1), KVB_OK, "all of it");
                cr_assert_eq(test_get(&store, "all", 3, MIB(4), 1), KVB_OK);
            }
            test_store_close(&store);
        }
    }
}

Test(service, b23_a_put_is_seen_by_nobody_before_its_commit_and_blocks_nobody)
{
    struct test_store store;
    struct test_job slow, other;
    open_store(&store);
    test_value_fill(store.memory.base, KIB(100), "t", "k", 1, 1);
    fake_tcp.held[FAKE_RECEIVING] = true;
    begin(&slow, &store, KVS_PUT, "k", 0, KIB(100));
    struct fake_exchange *writer = run_to(&store, FAKE_RECEIVING);
    fake_move_body(writer, KIB(50));
    cr_assert_eq(test_exists(&store, "k", 1), KVB_ERR_NOT_FOUND);
    begin(&other, &store, KVS_GET, "k", MIB(8), KIB(100));
    run_to_end(&store, &other);
    cr_assert_eq(other.items[0].status, KVB_ERR_NOT_FOUND);
    cr_assert_eq(test_remove(&store, "k", 1, true), KVB_ERR_NOT_FOUND);

    /* another puts the same key meanwhile and is first */
    writer->held = true;
    fake_tcp.held[FAKE_RECEIVING] = false;
    test_value_fill(store.memory.base + MIB(8), KIB(100), "t", "k", 1, 2);
    run_to_end(&store, begin(&other, &store, KVS_PUT, "k", MIB(8), KIB(100)));
    cr_assert_eq(other.items[0].status, KVB_OK);
    writer->held = false;
    fake_go(writer);
    run_to_end(&store, &slow);
    cr_assert_eq(slow.items[0].status, KVB_ERR_EXISTS);
    cr_assert_eq(test_get(&store, "k", 1, KIB(100), 2), KVB_OK, "the first to commit stays");
    cr_assert_eq(test_stats(&store).core.objects, 1);
    test_store_close(&store);
}

Test(service, a_put_given_up_on_its_way_leaves_nothing)
{
    for (uint64_t moved = 0; moved <= MIB(1); moved += KIB(512)) {
        struct test_store store;
        struct test_job job;
        open_store(&store);
        fake_tcp.held[FAKE_RECEIVING] = true;
        begin(&job, &store, KVS_PUT, "k", 0, MIB(1));
        fake_move_body(run_to(&store, FAKE_RECEIVING), moved);
        test_job_cancel(&job, &store);
        run_to_end(&store, &job);
        cr_assert_eq(job.items[0].status, KVB_ERR_CANCELED);
        fake_tcp.held[FAKE_RECEIVING] = false;
        sim_settle(&store.sim);
        fake_go(run_to(&store, FAKE_RECEIVING)); /* the end of the body: abandoned */
        sim_settle(&store.sim);
        assert_at_rest(&store, 0);
        cr_assert_eq(test_exists(&store, "k", 1), KVB_ERR_NOT_FOUND);
        cr_assert_eq(test_put(&store, "k", 1, MIB(1), 2), KVB_OK, "a retry works");
        test_store_close(&store);
    }
}

Test(service, what_is_cleared_while_its_bytes_come_in_is_fenced)
{
    for (int way = 0; way < 3; way++) {
        struct test_store store;
        struct test_job job;
        open_store(&store);
        fake_tcp.held[FAKE_RECEIVING] = true;
        begin(&job, &store, KVS_PUT, "k", 0, KIB(100));
        (void)run_to(&store, FAKE_RECEIVING);
        if (way == 0) {
            kvs_share_retire(store.share, &store.lineage, 1);
        } else if (way == 1) {
            kvs_share_remove_tenant(store.share, "t");
        } else {
            kvs_share_clear(store.share);
        }
        fake_tcp.held[FAKE_RECEIVING] = false;
        fake_go(fake_waiting(FAKE_RECEIVING));
        run_to_end(&store, &job);
        sim_advance(&store.sim, 200);
        cr_assert_eq(job.items[0].status, KVB_ERR_FENCED, "way %d", way);
        cr_assert_eq(test_stats(&store).puts_fenced, 1);
        assert_at_rest(&store, 0);
        test_store_close(&store);
    }
}

Test(service, a_writer_slower_than_its_attempt_is_refused_and_its_space_is_free)
{
    for (uint64_t moved = 0; moved < MIB(1); moved += KIB(256)) {
        struct test_store store;
        struct test_job slow;
        open_store(&store);
        fake_tcp.held[FAKE_RECEIVING] = true;
        begin(&slow, &store, KVS_PUT, "k", 0, MIB(1));
        fake_move_body(run_to(&store, FAKE_RECEIVING), moved);
        fake_tcp.held[FAKE_ANSWERED] = true; /* the writer does not hear of it, and goes on */
        sim_advance(&store.sim, TICKET_MS - 1);
        cr_assert_eq(test_stats(&store).core.attempts, 1, "within its time it is waited for");
        sim_advance(&store.sim, 1);
        assert_at_rest(&store, 0);
        cr_assert_eq(test_stats(&store).puts_failed, 1);
        fake_tcp.held[FAKE_RECEIVING] = false;
        fake_tcp.held[FAKE_ANSWERED] = false;
        run_to_end(&store, &slow);
        cr_assert_eq(slow.items[0].status, KVB_ERR_TIMEOUT);
        cr_assert_eq(test_exists(&store, "k", 1), KVB_ERR_NOT_FOUND);
        cr_assert_eq(test_put(&store, "all", 3, MIB(4), 1), KVB_OK, "all of it");
        cr_assert_eq(test_get(&store, "all", 3, MIB(4), 1), KVB_OK);
        test_store_close(&store);
    }
}

/* ---- B25: a reader slower than its ticket ---- */

enum away { BY_REMOVE, BY_CLEAR, BY_EVICTION, AWAYS };

static void give_away(struct test_store *store, enum away away)
{
    if (away == BY_REMOVE) {
        cr_assert_eq(test_remove(store, "slow", 4, true), KVB_OK);
    } else if (away == BY_CLEAR) {
        kvs_share_clear(store->share);
    }
}

/* Everything but what is locked is written over. */
static kvb_status_t overwrite(struct test_store *store, uint64_t len)
{
    struct test_job job;
    memset(store->memory.base + MIB(8), 'x', len);
    run_to_end(store, begin(&job, store, KVS_PUT, "all", MIB(8), len));
    return job.items[0].status;
}

Test(service, b25_a_reader_slower_than_its_ticket_gets_an_error_never_a_mix)
{
    for (int away = 0; away < AWAYS; away++) {
        struct test_store store;
        struct test_job job;
        open_store(&store);
        cr_assert_eq(test_put(&store, "slow", 4, MIB(1), 1), KVB_OK);
        fake_tcp.held[FAKE_SENDING] = true;
        begin(&job, &store, KVS_GET, "slow", 0, MIB(1));
        struct fake_exchange *reader = run_to(&store, FAKE_SENDING);
        fake_move_body(reader, KIB(512));
        give_away(&store, (enum away)away);
        sim_advance(&store.sim, TICKET_MS + 200);
        cr_assert_eq(overwrite(&store, MIB(4)), KVB_OK, "its space is wanted, and free");
        fake_go(reader);
        run_to_end(&store, &job);
        cr_assert_eq(job.items[0].status, KVB_ERR_TICKET, "way %d", away);
        cr_assert_eq(test_stats(&store).gets_ticket, 1);
        fake_tcp.held[FAKE_SENDING] = false;
        test_store_close(&store);
    }
}

Test(service, b25_within_its_ticket_a_reader_gets_the_right_bytes_whatever_happens)
{
    for (int away = 0; away < AWAYS; away++) {
        struct test_store store;
        struct test_job job;
        open_store(&store);
        cr_assert_eq(test_put(&store, "slow", 4, MIB(1), 1), KVB_OK);
        memset(store.memory.base, TEST_PREFILL, MIB(1));
        fake_tcp.held[FAKE_SENDING] = true;
        begin(&job, &store, KVS_GET, "slow", 0, MIB(1));
        struct fake_exchange *reader = run_to(&store, FAKE_SENDING);
        fake_move_body(reader, KIB(512));
        give_away(&store, (enum away)away);
        cr_assert_eq(overwrite(&store, MIB(4)), KVB_ERR_NO_SPACE);
        cr_assert_eq(overwrite(&store, MIB(3)), KVB_OK);
        fake_go(reader);
        run_to_end(&store, &job);
        cr_assert_eq(job.items[0].status, KVB_OK, "way %d", away);
        cr_assert_eq(test_value_check(store.memory.base, MIB(1), "t", "slow", 4, 1), MIB(1));
        fake_tcp.held[FAKE_SENDING] = false;
        test_store_close(&store);
    }
}

Test(service, a_reader_that_died_at_any_step_holds_nothing)
{
    static const enum fake_stage stages[] = {FAKE_ASKED, FAKE_SENDING, FAKE_ANSWERED};
    for (int s = 0; s < 3; s++) {
        struct test_store store;
        struct test_job job;
        open_store(&store);
        cr_assert_eq(test_put(&store, "k", 1, MIB(1), 1), KVB_OK);
        uint64_t used = test_stats(&store).core.used_bytes;
        fake_tcp.held[stages[s]] = true;
        begin(&job, &store, KVS_GET, "k", 0, MIB(1));
        struct fake_exchange *reader = run_to(&store, stages[s]);
        fake_peer_cut(peer_of(reader));
        fake_tcp.held[stages[s]] = false;
        assert_at_rest(&store, used);
        run_to_end(&store, &job);
        cr_assert_eq(job.items[0].status, KVB_ERR_UNAVAILABLE);
        cr_assert(sim_run_until(&store.sim, reconnected, store.node, 1000));
        cr_assert_eq(test_get(&store, "k", 1, MIB(1), 1), KVB_OK);
        test_store_close(&store);
    }
}

Test(service, bytes_that_went_wrong_on_the_way_are_a_miss_and_the_object_stays)
{
    struct test_store store;
    open_store(&store);
    cr_assert_eq(test_put(&store, "k", 1, KIB(700), 1), KVB_OK);
    fake_tcp.corrupt = 1;
    cr_assert_eq(test_get(&store, "k", 1, KIB(700), 1), KVB_ERR_CHECKSUM);
    sim_settle(&store.sim);
    cr_assert_eq(test_stats(&store).scrubs, 1);
    cr_assert_eq(test_stats(&store).scrubs_bad, 0);
    cr_assert_eq(test_get(&store, "k", 1, KIB(700), 1), KVB_OK);
    assert_at_rest(&store, test_stats(&store).core.live_bytes);
    test_store_close(&store);
}

Test(service, bytes_of_a_put_that_went_wrong_on_the_way_are_not_kept)
{
    struct test_store store;
    open_store(&store);
    fake_tcp.corrupt = 1;
    cr_assert_eq(test_put(&store, "k", 1, KIB(700), 1), KVB_ERR_CHECKSUM);
    sim_settle(&store.sim);
    assert_at_rest(&store, 0);
    cr_assert_eq(test_stats(&store).scrubs, 0, "there is nothing to look at");
    cr_assert_eq(test_put(&store, "k", 1, KIB(700), 1), KVB_OK);
    cr_assert_eq(test_get(&store, "k", 1, KIB(700), 1), KVB_OK);
    test_store_close(&store);
}

Test(service, an_object_that_is_gone_when_it_is_to_be_scrubbed_is_nobodys_loss)
{
    struct test_store store;
    struct test_job job;
    open_store(&store);
    cr_assert_eq(test_put(&store, "k", 1, KIB(700), 1), KVB_OK);
    fake_tcp.corrupt = 1;
    begin(&job, &store, KVS_GET, "k", 0, KIB(700));
    (void)run_to(&store, FAKE_SENDING);
    fake_tcp.held[FAKE_ASKED] = true;
    run_to_end(&store, &job);
    cr_assert_eq(job.items[0].status, KVB_ERR_CHECKSUM);
    struct fake_exchange *scrub = run_to(&store, FAKE_ASKED);
    cr_assert_eq(scrub->request.type, KVS_ASK_SCRUB);
    kvs_share_clear(store.share);
    fake_tcp.held[FAKE_ASKED] = false;
    fake_go(scrub);
    sim_advance(&store.sim, 10);
    cr_assert_eq(test_stats(&store).scrubs, 0);
    assert_at_rest(&store, 0);
    test_store_close(&store);
}

Test(service, bytes_that_went_bad_where_they_lie_are_a_miss_and_the_object_is_dropped)
{
    struct test_store store;
    open_store(&store);
    cr_assert_eq(test_put(&store, "k", 1, MIB(1), 1), KVB_OK);
    store.share->shards[0].base[0] ^= 1; /* the first object of an empty share lies at its begin */
    cr_assert_eq(test_get(&store, "k", 1, MIB(1), 1), KVB_ERR_CHECKSUM);
    sim_settle(&store.sim);
    cr_assert_eq(test_stats(&store).scrubs_bad, 1);
    cr_assert_eq(test_get(&store, "k", 1, MIB(1), 1), KVB_ERR_NOT_FOUND);
    cr_assert_eq(test_put(&store, "k", 1, MIB(1), 1), KVB_OK, "it can be put again");
    cr_assert_eq(test_get(&store, "k", 1, MIB(1), 1), KVB_OK);
    test_store_close(&store);
}

Test(service, a_node_destroyed_in_a_scrub_leaves_nothing)
{
    struct test_store store;
    open_store(&store);
    cr_assert_eq(test_put(&store, "k", 1, MIB(3), 1), KVB_OK);
    fake_tcp.corrupt = 1;
    cr_assert_eq(test_get(&store, "k", 1, MIB(3), 1), KVB_ERR_CHECKSUM);
    while (test_stats(&store).core.tickets == 0) {
        (void)sim_turn(&store.sim);
    }
    kvs_service_destroy(store.service);
    cr_assert_eq(test_stats(&store).core.tickets, 0);
    test_store_serve(&store, &(struct test_store_config){0}, 2);
    test_store_close(&store);
}

/* ---- room ---- */

/* A share so full of small objects that room for a large one is not made in one call. */
static struct fake_exchange *wait_for_room(struct test_store *store, struct test_job *big)
{
    test_store_open(store, &(struct test_store_config){.share_bytes = MIB(1), .shards = 1}, false);
    for (uint64_t i = 0; test_stats(store).core.evicted == 0; i++) {
        cr_assert_eq(test_put(store, &i, sizeof i, 64, 1), KVB_OK);
    }
    fake_tcp.held[FAKE_ASKED] = true;
    begin(big, store, KVS_PUT, "big", 0, KIB(900));
    struct fake_exchange *exchange = run_to(store, FAKE_ASKED);
    fake_go(exchange);
    cr_assert_eq(exchange->stage, FAKE_SERVING, "room is being made");
    cr_assert_eq(test_stats(store).core.attempts, 0);
    cr_assert_eq(kvs_service_running(store->service), 1);
    return exchange;
}

Test(service, room_is_made_in_steps_with_other_requests_in_between)
{
    struct test_store store;
    struct test_job big, small;
    (void)wait_for_room(&store, &big);
    begin(&small, &store, KVS_EXISTS, "none", 0, 1);
    fake_tcp.held[FAKE_ASKED] = false;
    run_to_end(&store, &big);
    run_to_end(&store, &small);
    cr_assert_eq(big.items[0].status, KVB_OK);
    cr_assert_eq(small.items[0].status, KVB_ERR_NOT_FOUND);
    cr_assert_null(kvs_share_validate(store.share));
    test_store_close(&store);
}

Test(service, a_writer_that_died_while_room_was_made_for_it_is_forgotten)
{
    struct test_store store;
    struct test_job big;
    struct fake_exchange *exchange = wait_for_room(&store, &big);
    fake_tcp.held[FAKE_ASKED] = false;
    fake_peer_cut(peer_of(exchange));
    cr_assert_eq(kvs_service_running(store.service), 0);
    run_to_end(&store, &big);
    cr_assert(sim_run_until(&store.sim, reconnected, store.node, 1000));
    cr_assert_eq(test_exists(&store, "big", 3), KVB_ERR_NOT_FOUND);
    cr_assert_null(kvs_share_validate(store.share));
    test_store_close(&store);
}

/* ---- B45: clearing does not stop anybody ---- */

Test(service, b45_clearing_very_many_objects_goes_in_bounded_steps_between_requests)
{
    struct test_store store;
    enum { N = 20000 };
    test_store_open(&store, &(struct test_store_config){.share_bytes = MIB(16), .shards = 2},
                    false);
    for (uint64_t i = 0; i < N; i++) {
        cr_assert_eq(test_put(&store, &i, sizeof i, 8, 1), KVB_OK);
    }
    struct kvb_lineage old = store.lineage;
    kvs_share_retire(store.share, &old, 1);
    store.lineage.id.lo++;
    uint64_t before = test_stats(&store).core.reclaimed;
    for (uint64_t i = 0; test_stats(&store).core.retired_bytes > 0; i++) {
        uint64_t reclaimed = test_stats(&store).core.reclaimed;
        (void)sim_turn(&store.sim);
        cr_assert_leq(test_stats(&store).core.reclaimed - reclaimed, 256, "a step of one turn");
        if (i % 8 == 0) {
            cr_assert_eq(test_put(&store, &i, sizeof i, 8, 2), KVB_OK);
            cr_assert_eq(test_get(&store, &i, sizeof i, 8, 2), KVB_OK);
            uint64_t gone = N - 1 - i % N;
            cr_assert(i == gone || test_exists(&store, &gone, sizeof gone) != KVB_OK);
        }
    }
    cr_assert_eq(test_stats(&store).core.reclaimed - before, N);
    test_store_close(&store);
}

/* ---- draining ---- */

static bool told_draining(void *arg)
{
    struct kvs_remote_status status;
    kvs_remote_status(arg, &status);
    return status.draining;
}

Test(service, a_draining_node_takes_no_puts_and_serves_its_readers)
{
    struct test_store store;
    struct test_job late;
    open_store(&store);
    cr_assert_eq(test_put(&store, "k", 1, 1000, 1), KVB_OK);
    fake_tcp.held[FAKE_RECEIVING] = true;
    begin(&late, &store, KVS_PUT, "begun", 0, 1000);
    struct fake_exchange *writer = run_to(&store, FAKE_RECEIVING);
    cr_assert_eq(kvs_service_running(store.service), 1);
    kvs_service_drain(store.service);
    cr_assert(!told_draining(store.node));
    for (int i = 0; i < 5; i++) { /* none of them is held against the node */
        cr_assert_eq(test_put(&store, "new", 3, 1000, 1), KVB_ERR_DRAINING);
        cr_assert(told_draining(store.node), "its answer says so");
    }
    cr_assert_eq(test_get(&store, "k", 1, 1000, 1), KVB_OK);
    cr_assert_eq(test_exists(&store, "k", 1), KVB_OK);
    fake_tcp.held[FAKE_RECEIVING] = false;
    fake_go(writer);
    run_to_end(&store, &late);
    cr_assert_eq(late.items[0].status, KVB_OK, "what was begun is finished");
    cr_assert_eq(kvs_service_running(store.service), 0);
    sim_advance(&store.sim, 1500);
    cr_assert(told_draining(store.node));
    test_store_close(&store);
}

/* ---- pins ---- */

static kvb_status_t put_pinned(struct test_store *store, const char *key, enum kvs_pin pin)
{
    struct test_job job;
    test_value_fill(store->memory.base, KIB(64), "t", key, strlen(key), 1);
    test_job_add(test_job_init(&job, store, KVS_PUT), store, key, strlen(key), 0, KIB(64));
    job.batch.pin = pin;
    test_job_run(&job, store);
    return job.items[0].status;
}

static kvb_status_t pin(struct test_store *store, const char *key, enum kvs_pin how)
{
    struct test_job job;
    test_job_add(test_job_init(&job, store, KVS_PIN), store, key, strlen(key), 0, 1);
    job.batch.pin = how;
    test_job_run(&job, store);
    return job.items[0].status;
}

static void fill(struct test_store *store, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        cr_assert_eq(test_put(store, &i, sizeof i, KIB(64), 1), KVB_OK);
    }
}

Test(service, what_is_pinned_stays_hard_always_and_soft_longest)
{
    struct test_store store;
    open_store(&store);
    cr_assert_eq(put_pinned(&store, "hard", KVS_PIN_HARD), KVB_OK);
    cr_assert_eq(put_pinned(&store, "soft", KVS_PIN_SOFT), KVB_OK);
    cr_assert_eq(put_pinned(&store, "none", KVS_PIN_NONE), KVB_OK);
    cr_assert_eq(put_pinned(&store, "later", KVS_PIN_NONE), KVB_OK);
    cr_assert_eq(pin(&store, "later", KVS_PIN_HARD), KVB_OK);
    cr_assert_eq(pin(&store, "nothing", KVS_PIN_HARD), KVB_ERR_NOT_FOUND);
    fill(&store, 200);
    cr_assert_eq(test_exists(&store, "none", 4), KVB_ERR_NOT_FOUND);
    cr_assert_eq(test_get(&store, "soft", 4, KIB(64), 1), KVB_OK);
    cr_assert_eq(test_get(&store, "later", 5, KIB(64), 1), KVB_OK);
    cr_assert_eq(test_put(&store, "much", 4, MIB(4) - KIB(128), 1), KVB_OK);
    cr_assert_eq(test_exists(&store, "soft", 4), KVB_ERR_NOT_FOUND, "when nothing else is left");
    cr_assert_eq(test_get(&store, "hard", 4, KIB(64), 1), KVB_OK);
    cr_assert_eq(test_remove(&store, "hard", 4, false), KVB_ERR_BUSY);
    cr_assert_eq(pin(&store, "hard", KVS_PIN_NONE), KVB_OK);
    cr_assert_eq(test_remove(&store, "hard", 4, false), KVB_OK);
    test_store_close(&store);
}

/* ---- questions as nobody of ours asks them ---- */

struct raw {
    struct kvt_transfer transfer;
    uint8_t answer[64];
    kvb_status_t status;
    bool done;
};

static void on_raw(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct raw *raw = kvb_container_of(transfer, struct raw, transfer);
    raw->status = status;
    raw->done = true;
}

static kvb_status_t ask_raw(struct test_store *store, uint16_t type, const void *ask, size_t len,
                            uint64_t body_len)
{
    struct raw raw = {0};
    struct kvt_slice slice = {store->region, 0, body_len};
    struct fake_peer *peer =
        kvb_container_of(kvb_list_first(&fake_tcp.peers), struct fake_peer, link);
    raw.transfer = (struct kvt_transfer){
        .direction = KVT_TO_SHARE,
        .slices = &slice,
        .nslices = body_len > 0 ? 1 : 0,
        .deadline_ns = KVB_NEVER,
        .done = on_raw,
        .type = type,
        .ask = {ask, len},
        .answer = raw.answer,
        .answer_cap = sizeof raw.answer,
    };
    cr_assert_eq(kvt_transfer_start(&peer->base, &raw.transfer), KVB_OK);
    cr_assert(sim_run_until_true(&store->sim, &raw.done, 1000));
    return raw.status;
}

Test(service, a_question_that_makes_no_sense_changes_nothing)
{
    struct test_store store;
    open_store(&store);
    cr_assert_eq(test_put(&store, "k", 1, 1000, 1), KVB_OK);
    uint64_t used = test_stats(&store).core.used_bytes;
    static uint8_t junk[64];
    for (uint16_t type = 1; type < 20; type++) {
        const struct kvs_question_info *info = kvs_question_info(type);
        kvb_status_t want = info == NULL ? KVB_ERR_UNSUPPORTED : KVB_ERR_PROTOCOL;
        cr_assert_eq(ask_raw(&store, type, junk, sizeof junk, 0), want, "type %u", type);
        cr_assert_eq(ask_raw(&store, type, junk, sizeof junk, 1000), want, "type %u", type);
    }
    /* a put without a body; a lookup with one */
    static struct kvs_ask ask;
    struct kvb_writer out;
    ask = (struct kvs_ask){.space.tenant = {(const uint8_t *)"t", 1},
                           .space.layout = {(const uint8_t *)"l", 1},
                           .lineage = {{77, 77}},
                           .nkeys = 1,
                           .keys = {{{(const uint8_t *)"n", 1}, 0, 0}}};
    kvb_writer_init(&out, 4096);
    kvs_ask_pack(&out, KVS_ASK_PUT, &ask);
    cr_assert_eq(ask_raw(&store, KVS_ASK_PUT, out.data, out.len, 0), KVB_ERR_PROTOCOL);
    kvb_status_t put = ask_raw(&store, KVS_ASK_PUT, out.data, out.len, 10);
    cr_assert_eq(put, KVB_OK, "%s", kvb_status_label(put));
    out.len = 0;
    kvs_ask_pack(&out, KVS_ASK_EXISTS, &ask);
    cr_assert_eq(ask_raw(&store, KVS_ASK_EXISTS, out.data, out.len, 10), KVB_ERR_PROTOCOL);
    cr_assert_eq(ask_raw(&store, KVS_ASK_EXISTS, out.data, out.len, 0), KVB_OK);
    kvb_writer_cleanup(&out);
    cr_assert_eq(test_remove(&store, "n", 1, true), KVB_ERR_NOT_FOUND, "of no lineage of ours");
    store.lineage = (struct kvb_lineage){{77, 77}};
    cr_assert_eq(test_remove(&store, "n", 1, true), KVB_OK);
    assert_at_rest(&store, used);
    test_store_close(&store);
}

/* ---- spaces ---- */

static void count_tenants(void *arg, const char *tenant, const struct kvs_core_tenant_stats *stats)
{
    (void)tenant, (void)stats;
    ++*(uint32_t *)arg;
}

Test(service, asking_about_tenants_that_stored_nothing_makes_none_known)
{
    struct test_store store;
    uint32_t known = 0;
    open_store(&store);
    for (int i = 0; i < 50; i++) {
        (void)snprintf(store.space.tenant, sizeof store.space.tenant, "t%d", i);
        cr_assert_eq(test_exists(&store, "k", 1), KVB_ERR_NOT_FOUND);
        cr_assert_eq(test_get(&store, "k", 1, 10, 1), KVB_ERR_NOT_FOUND);
        cr_assert_eq(test_remove(&store, "k", 1, true), KVB_ERR_NOT_FOUND);
        cr_assert_eq(pin(&store, "k", KVS_PIN_SOFT), KVB_ERR_NOT_FOUND);
    }
    kvs_share_each_tenant(store.share, count_tenants, &known);
    cr_assert_eq(known, 0);
    cr_assert_eq(test_stats(&store).lookups, 50);
    cr_assert_eq(test_stats(&store).gets_missed, 50);
    test_store_close(&store);
}

Test(service, more_spaces_than_are_remembered_are_all_kept_apart)
{
    struct test_store store;
    open_store(&store);
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < 3000; i++) {
            (void)snprintf(store.space.tenant, sizeof store.space.tenant, "t%lu", i / 60);
            (void)snprintf(store.space.layout, sizeof store.space.layout, "l%lu", i % 60);
            if (round == 0) {
                cr_assert_eq(test_put(&store, "k", 1, 64, i), KVB_OK);
            } else {
                cr_assert_eq(test_get(&store, "k", 1, 64, i), KVB_OK, "space %lu", i);
            }
        }
    }
    test_store_close(&store);
}

/* ---- created or not at all ---- */

Test(service, a_name_that_does_not_fit_is_refused)
{
    struct test_store store;
    open_store(&store);
    struct kvs_share_config none = {.bytes = 100};
    struct kvs_share *share;
    cr_assert_eq(kvs_share_create(&store.sim.random, &none, &share), KVB_ERR_INVALID);
    test_store_close(&store);
}

Test(service, connections_that_come_and_go_leave_nothing_but_their_counts)
{
    struct test_store store;
    uint64_t metadata = 0;
    open_store(&store);
    for (int round = 0; round < 3000; round++) {
        if (round % 1000 == 0) {
            cr_assert_eq(test_put(&store, &round, sizeof round, 1000, 1), KVB_OK);
        }
        struct fake_peer *peer =
            kvb_container_of(kvb_list_first(&fake_tcp.peers), struct fake_peer, link);
        fake_peer_cut(peer);
        cr_assert(sim_run_until(&store.sim, reconnected, store.node, 1000));
        cr_assert(fake_has_lane_(peer) || sim_run_until(&store.sim, reconnected, store.node, 1000));
        sim_advance(&store.sim, 60);
        if (round == 20) {
            metadata = test_stats(&store).core.metadata_bytes;
        }
    }
    cr_assert_eq(test_stats(&store).core.metadata_bytes, metadata);
    kvs_service_destroy(store.service);
    sim_settle(&store.sim);
    cr_assert_eq(test_stats(&store).puts, 3, "of a service that is gone");
    test_store_serve(&store, &(struct test_store_config){0}, 2);
    test_store_close(&store);
}
