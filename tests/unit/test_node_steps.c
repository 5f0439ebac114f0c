/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of a put and a get, taken apart: the transport waits for the test, so anything can
 * happen between reserve, write and commit, and between find, read and release.
 */
#include "share/share_impl.h"
#include "test_store.h"

#include "base/faults.h"

#include <criterion/criterion.h>

#define TICKET_MS 300

static void open_store(struct test_store *store)
{
    test_store_open(
        store,
        &(struct test_store_config){.share_bytes = MIB(4), .shards = 1, .ticket_ms = TICKET_MS},
        true);
}

/* Runs until a transfer of the job waits, or the job is done. */
static struct kvt_transfer *next_transfer(struct test_store *store, const struct test_job *job)
{
    while (fake_oldest(store->fake) == NULL && !job->done) {
        sim_advance(&store->sim, 1);
    }
    return fake_oldest(store->fake);
}

static struct test_job *begin(struct test_job *job, struct test_store *store, enum kvs_batch_op op,
                              const char *key, uint64_t offset, uint64_t len)
{
    test_job_add(test_job_init(job, store, op), store, key, strlen(key), offset, len);
    test_job_submit(job, store);
    return job;
}

static void move_and_end(struct kvt_transfer *transfer)
{
    fake_move(transfer, UINT64_MAX);
    fake_end(transfer, KVB_OK);
}

static kvb_status_t finish(struct test_job *job, struct test_store *store)
{
    for (struct kvt_transfer *transfer; (transfer = next_transfer(store, job)) != NULL;) {
        move_and_end(transfer);
        sim_settle(&store->sim);
    }
    cr_assert(job->done);
    return job->items[0].status;
}

static kvb_status_t put(struct test_store *store, const char *key, uint64_t len, uint64_t weights)
{
    struct test_job job;
    test_value_fill(store->memory.base, len, "t", key, strlen(key), weights);
    return finish(begin(&job, store, KVS_PUT, key, 0, len), store);
}

static kvb_status_t get(struct test_store *store, const char *key, uint64_t len, uint64_t weights)
{
    struct test_job job;
    memset(store->memory.base, TEST_PREFILL, len);
    kvb_status_t status = finish(begin(&job, store, KVS_GET, key, 0, len), store);
    if (status == KVB_OK) {
        cr_assert_eq(test_value_check(store->memory.base, len, "t", key, strlen(key), weights),
                     len);
    }
    return status;
}

static void assert_at_rest(struct test_store *store, uint64_t used)
{
    struct kvs_share_stats stats = test_stats(store);
    cr_assert_eq(stats.core.used_bytes, used);
    cr_assert_eq(stats.core.attempts, 0);
    cr_assert_eq(stats.core.tickets, 0);
    cr_assert_eq(stats.core.quarantined_bytes, 0);
    cr_assert_eq(test_store_calls(store), 0);
    cr_assert_eq(kvt_region_refs(store->region), 0);
    cr_assert_null(kvs_share_validate(store->share));
}

/* ---- B25: a reader slower than its ticket ---- */

enum away { BY_REMOVE, BY_CLEAR, BY_EVICTION, AWAYS };

static void reuse_its_space(struct test_store *store, enum away away)
{
    if (away == BY_REMOVE) {
        struct test_job job;
        test_job_add(test_job_init(&job, store, KVS_REMOVE), store, "slow", 4, 0, 1);
        job.batch.force = true;
        test_job_run(&job, store);
        cr_assert_eq(job.items[0].status, KVB_OK);
    } else if (away == BY_CLEAR) {
        kvs_share_clear(store->share);
    }
}

/* The transfer of this job's first item, if it waits. */
static struct kvt_transfer *own_transfer(struct test_store *store, const struct test_job *job)
{
    kvb_list_each(&store->regions->transfers, link)
    {
        struct kvt_transfer *transfer = kvb_container_of(link, struct kvt_transfer, impl.link);
        if (transfer->slices == &job->slices[0]) {
            return transfer;
        }
    }
    return NULL;
}

/* Ends this job's transfer alone, whoever else's wait. */
static kvb_status_t finish_own(struct test_job *job, struct test_store *store)
{
    for (int i = 0; i < 1000 && !job->done; i++) {
        sim_advance(&store->sim, 1);
        struct kvt_transfer *transfer = own_transfer(store, job);
        if (transfer != NULL) {
            move_and_end(transfer);
        }
    }
    cr_assert(job->done);
    return job->items[0].status;
}

/* Everything but what is locked is written over. */
static kvb_status_t overwrite(struct test_store *store, uint64_t len)
{
    struct test_job job;
    memset(store->memory.base + MIB(8), 'x', len);
    return finish_own(begin(&job, store, KVS_PUT, "all", MIB(8), len), store);
}

Test(node_steps, b25_a_reader_slower_than_its_ticket_is_refused)
{
    for (int away = 0; away < AWAYS; away++) {
        struct test_store store;
        struct test_job job;
        open_store(&store);
        cr_assert_eq(put(&store, "slow", MIB(1), 1), KVB_OK);
        begin(&job, &store, KVS_GET, "slow", 0, MIB(1));
        struct kvt_transfer *reader = next_transfer(&store, &job);
        fake_move(reader, KIB(512));
        reuse_its_space(&store, (enum away)away);
        sim_advance(&store.sim, TICKET_MS + 200);
        cr_assert_eq(overwrite(&store, MIB(4)), KVB_OK, "its space is wanted, and free");
        move_and_end(reader);
        sim_settle(&store.sim);
        cr_assert(job.done);
        cr_assert_eq(job.items[0].status, KVB_ERR_TICKET, "way %d", away);
        cr_assert_eq(test_stats(&store).gets_ticket, 1);
        test_store_close(&store);
    }
}

Test(node_steps, b25_within_its_ticket_a_reader_gets_the_right_bytes_whatever_happens)
{
    for (int away = 0; away < AWAYS; away++) {
        struct test_store store;
        struct test_job job;
        open_store(&store);
        cr_assert_eq(put(&store, "slow", MIB(1), 1), KVB_OK);
        begin(&job, &store, KVS_GET, "slow", 0, MIB(1));
        struct kvt_transfer *reader = next_transfer(&store, &job);
        fake_move(reader, KIB(512));
        reuse_its_space(&store, (enum away)away);
        cr_assert_eq(overwrite(&store, MIB(4)), KVB_ERR_NO_SPACE);
        cr_assert_eq(overwrite(&store, MIB(3)), KVB_OK);
        move_and_end(reader);
        sim_settle(&store.sim);
        cr_assert_eq(job.items[0].status, KVB_OK);
        cr_assert_eq(test_value_check(store.memory.base, MIB(1), "t", "slow", 4, 1), MIB(1));
        test_store_close(&store);
    }
}

/* ---- a writer between its steps ---- */

Test(node_steps, b23_a_put_is_seen_by_nobody_before_its_commit_and_blocks_nobody)
{
    struct test_store store;
    struct test_job slow, other;
    open_store(&store);
    test_value_fill(store.memory.base, KIB(100), "t", "k", 1, 1);
    begin(&slow, &store, KVS_PUT, "k", 0, KIB(100));
    struct kvt_transfer *writer = next_transfer(&store, &slow);
    fake_move(writer, KIB(50));
    test_job_add(test_job_init(&other, &store, KVS_EXISTS), &store, "k", 1, 0, 1);
    test_job_run(&other, &store);
    cr_assert_eq(other.items[0].status, KVB_ERR_NOT_FOUND);
    begin(&other, &store, KVS_GET, "k", MIB(1), KIB(100));
    sim_settle(&store.sim);
    cr_assert(other.done);
    cr_assert_eq(other.items[0].status, KVB_ERR_NOT_FOUND);
    test_job_add(test_job_init(&other, &store, KVS_REMOVE), &store, "k", 1, 0, 1);
    test_job_run(&other, &store);
    cr_assert_eq(other.items[0].status, KVB_ERR_NOT_FOUND);

    /* another puts the same key meanwhile and is first */
    test_value_fill(store.memory.base + MIB(1), KIB(100), "t", "k", 1, 2);
    cr_assert_eq(finish_own(begin(&other, &store, KVS_PUT, "k", MIB(1), KIB(100)), &store), KVB_OK);
    move_and_end(writer);
    sim_settle(&store.sim);
    cr_assert_eq(slow.items[0].status, KVB_ERR_EXISTS);
    uint64_t used = test_stats(&store).core.used_bytes;
    cr_assert_eq(test_stats(&store).core.objects, 1);
    cr_assert_eq(get(&store, "k", KIB(100), 2), KVB_OK, "the first to commit stays");
    assert_at_rest(&store, used);
    test_store_close(&store);
}

Test(node_steps, space_under_a_writer_is_given_to_nobody_until_it_has_stopped)
{
    struct test_store store;
    struct test_job slow;
    open_store(&store);
    begin(&slow, &store, KVS_PUT, "k", 0, MIB(1));
    struct kvt_transfer *writer = next_transfer(&store, &slow);
    sim_advance(&store.sim, TICKET_MS + 500); /* its attempt is over */
    kvs_share_clear(store.share);
    sim_advance(&store.sim, 500);
    cr_assert_eq(overwrite(&store, MIB(4)), KVB_ERR_NO_SPACE);
    cr_assert_eq(overwrite(&store, MIB(3)), KVB_OK);
    fake_move(writer, UINT64_MAX); /* the late bytes */
    struct test_job job;
    memset(store.memory.base, TEST_PREFILL, MIB(3));
    begin(&job, &store, KVS_GET, "all", 0, MIB(3));
    cr_assert_eq(finish_own(&job, &store), KVB_OK, "they hit nobody");
    fake_end(writer, KVB_OK);
    sim_settle(&store.sim);
    cr_assert(slow.done);
    cr_assert(slow.items[0].status == KVB_ERR_TIMEOUT || slow.items[0].status == KVB_ERR_FENCED);
    kvs_share_clear(store.share);
    sim_advance(&store.sim, 500);
    assert_at_rest(&store, 0);
    test_store_close(&store);
}

Test(node_steps, what_is_cleared_between_reserve_and_commit_is_fenced)
{
    for (int way = 0; way < 3; way++) {
        struct test_store store;
        struct test_job job;
        open_store(&store);
        begin(&job, &store, KVS_PUT, "k", 0, KIB(100));
        struct kvt_transfer *writer = next_transfer(&store, &job);
        if (way == 0) {
            kvs_share_retire(store.share, &store.lineage, 1);
        } else if (way == 1) {
            kvs_share_remove_tenant(store.share, "t");
        } else {
            kvs_share_clear(store.share);
        }
        move_and_end(writer);
        sim_advance(&store.sim, 200);
        cr_assert_eq(job.items[0].status, KVB_ERR_FENCED, "way %d", way);
        cr_assert_eq(get(&store, "k", KIB(100), 1), KVB_ERR_NOT_FOUND);
        assert_at_rest(&store, 0);
        test_store_close(&store);
    }
}

Test(node_steps, a_put_whose_attempt_ended_is_refused_and_a_retry_works)
{
    struct test_store store;
    struct test_job job;
    open_store(&store);
    begin(&job, &store, KVS_PUT, "k", 0, KIB(100));
    struct kvt_transfer *writer = next_transfer(&store, &job);
    sim_advance(&store.sim, TICKET_MS + 200);
    move_and_end(writer);
    sim_advance(&store.sim, 200);
    cr_assert_eq(job.items[0].status, KVB_ERR_TIMEOUT);
    assert_at_rest(&store, 0);
    cr_assert_eq(put(&store, "k", KIB(100), 1), KVB_OK);
    cr_assert_eq(get(&store, "k", KIB(100), 1), KVB_OK);
    test_store_close(&store);
}

/* ---- B11: whatever fails at whatever step, nothing is left behind ---- */

Test(node_steps, b11_a_transfer_that_fails_leaves_nothing_and_its_own_reason)
{
    static const kvb_status_t failures[] = {KVB_ERR_TIMEOUT, KVB_ERR_CANCELED, KVB_ERR_GENERATION,
                                            KVB_ERR_IO, KVB_ERR_DISCONNECTED};
    for (size_t f = 0; f < sizeof failures / sizeof failures[0]; f++) {
        for (uint64_t moved = 0; moved <= KIB(100); moved += KIB(50)) {
            struct test_store store;
            struct test_job job;
            open_store(&store);
            cr_assert_eq(put(&store, "old", KIB(100), 1), KVB_OK);
            uint64_t used = test_stats(&store).core.used_bytes;
            for (int op = 0; op < 2; op++) {
                begin(&job, &store, op == 0 ? KVS_PUT : KVS_GET, op == 0 ? "new" : "old", 0,
                      KIB(100));
                struct kvt_transfer *transfer = next_transfer(&store, &job);
                fake_move(transfer, moved);
                fake_end(transfer, failures[f]);
                sim_settle(&store.sim);
                cr_assert(job.done);
                cr_assert_eq(job.items[0].status, failures[f]);
                assert_at_rest(&store, used);
            }
            cr_assert_eq(get(&store, "old", KIB(100), 1), KVB_OK);
            cr_assert_eq(get(&store, "new", KIB(100), 1), KVB_ERR_NOT_FOUND);
            test_store_close(&store);
        }
    }
}

Test(node_steps, b11_a_transfer_that_cannot_start_leaves_nothing)
{
    struct test_store store;
    struct test_job job;
    open_store(&store);
    cr_assert_eq(put(&store, "old", KIB(100), 1), KVB_OK);
    uint64_t used = test_stats(&store).core.used_bytes;
    store.fake->refuse = KVB_ERR_NO_MEMORY;
    cr_assert_eq(finish(begin(&job, &store, KVS_PUT, "new", 0, KIB(100)), &store),
                 KVB_ERR_NO_MEMORY);
    cr_assert_eq(finish(begin(&job, &store, KVS_GET, "old", 0, KIB(100)), &store),
                 KVB_ERR_NO_MEMORY);
    assert_at_rest(&store, used);

    /* full for the moment: it tries again by itself */
    store.fake->refuse = KVB_ERR_AGAIN;
    begin(&job, &store, KVS_GET, "old", 0, KIB(100));
    sim_advance(&store.sim, 20);
    cr_assert(!job.done);
    store.fake->refuse = KVB_OK;
    cr_assert_eq(finish(&job, &store), KVB_OK);
    assert_at_rest(&store, used);
    test_store_close(&store);
}

Test(node_steps, regions_that_are_gone_are_refused_before_anything_is_reserved)
{
    struct test_store store;
    struct test_job job;
    bool done = false;
    open_store(&store);
    cr_assert_eq(put(&store, "old", KIB(100), 1), KVB_OK);
    uint64_t used = test_stats(&store).core.used_bytes;
    kvt_region_unregister(store.region, sim_in_ms(&store.sim, 1), sim_in_ms(&store.sim, 2),
                          test_store_unregistered_, &done);
    sim_settle(&store.sim);
    cr_assert_eq(finish(begin(&job, &store, KVS_PUT, "new", 0, MIB(4)), &store),
                 KVB_ERR_GENERATION);
    cr_assert_eq(finish(begin(&job, &store, KVS_GET, "old", 0, KIB(100)), &store),
                 KVB_ERR_GENERATION);
    assert_at_rest(&store, used);
    cr_assert_eq(test_stats(&store).core.evicted, 0);
    test_store_close(&store);
}

Test(node_steps, b11_hundreds_of_random_failures_leave_the_node_as_it_was)
{
    struct test_store store;
    open_store(&store);
    static char keys[8][16];
    for (int round = 0; round < 400; round++) {
        struct test_job job;
        bool is_put = sim_below(&store.sim, 2) == 0;
        test_job_init(&job, &store, is_put ? KVS_PUT : KVS_GET);
        job.batch.deadline_ns = sim_in_ms(&store.sim, 500);
        uint32_t n = 1 + (uint32_t)sim_below(&store.sim, 8);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t key = sim_below(&store.sim, 40);
            (void)snprintf(keys[i], sizeof keys[i], "k%lu", key);
            uint64_t len = 1 + key * 3000;
            if (is_put) {
                test_value_fill(store.memory.base + i * MIB(1), len, "t", keys[i], strlen(keys[i]),
                                1);
            }
            test_job_add(&job, &store, keys[i], strlen(keys[i]), i * MIB(1), len);
        }
        test_job_submit(&job, &store);
        while (!job.done) {
            store.fake->refuse = sim_below(&store.sim, 10) == 0 ? KVB_ERR_NO_MEMORY : KVB_OK;
            sim_advance(&store.sim, 1 + sim_below(&store.sim, 40));
            struct kvt_transfer *transfer = fake_oldest(store.fake);
            switch (sim_below(&store.sim, 12)) {
            case 0:
                test_job_cancel(&job, &store);
                break;
            case 1:
                kvs_share_clear(store.share);
                break;
            case 2:
                if (transfer != NULL) {
                    fake_end(transfer, KVB_ERR_IO);
                }
                break;
            default:
                if (transfer != NULL) {
                    move_and_end(transfer);
                }
            }
        }
        for (uint32_t i = 0; i < n && !is_put; i++) {
            if (job.items[i].status == KVB_OK) {
                cr_assert_eq(test_value_check(store.memory.base + i * MIB(1), job.items[i].len, "t",
                                              keys[i], strlen(keys[i]), 1),
                             job.items[i].len, "seed %lu round %d", store.sim.seed, round);
            }
        }
        struct kvs_share_stats stats = test_stats(&store);
        cr_assert_eq(stats.core.attempts + stats.core.tickets + test_store_calls(&store), 0,
                     "seed %lu round %d", store.sim.seed, round);
        cr_assert_eq(kvt_region_refs(store.region), 0);
        cr_assert_null(kvs_share_validate(store.share));
    }
    cr_assert_gt(test_stats(&store).gets, 20);
    kvs_share_clear(store.share);
    sim_advance(&store.sim, 1000);
    assert_at_rest(&store, 0);
    test_store_close(&store);
}

Test(node_steps, what_was_cancelled_stays_so_although_its_transfer_still_succeeds)
{
    struct test_store store;
    struct test_job job;
    open_store(&store);
    cr_assert_eq(put(&store, "old", KIB(100), 1), KVB_OK);
    uint64_t used = test_stats(&store).core.used_bytes;
    for (int op = 0; op < 2; op++) {
        begin(&job, &store, op == 0 ? KVS_PUT : KVS_GET, op == 0 ? "new" : "old", 0, KIB(100));
        struct kvt_transfer *transfer = next_transfer(&store, &job);
        test_job_cancel(&job, &store);
        move_and_end(transfer);
        sim_settle(&store.sim);
        cr_assert(job.done);
        cr_assert_eq(job.items[0].status, KVB_ERR_CANCELED);
        assert_at_rest(&store, used);
    }
    cr_assert_eq(get(&store, "new", KIB(100), 1), KVB_ERR_NOT_FOUND);
    test_store_close(&store);
}

/* ---- shards ---- */

Test(node_steps, the_pieces_of_a_block_lie_in_one_shard_and_blocks_in_all)
{
    struct test_store store;
    test_store_open(&store, &(struct test_store_config){.share_bytes = MIB(4), .shards = 4}, true);
    const struct kvt_share *seen[4] = {0};
    for (uint64_t key = 0; key < 64; key++) {
        const struct kvt_share *shard = NULL;
        for (uint32_t piece = 0; piece < 6; piece++) {
            struct test_job job;
            test_job_init(&job, &store, KVS_PUT);
            struct kvs_item *item = test_job_add(&job, &store, &key, sizeof key, 0, 100);
            item->group = piece / 3;
            item->part = piece % 3;
            test_job_submit(&job, &store);
            struct kvt_transfer *transfer = next_transfer(&store, &job);
            cr_assert(shard == NULL || shard == transfer->share);
            shard = transfer->share;
            cr_assert_eq(finish(&job, &store), KVB_OK);
        }
        int i = 0;
        while (i < 4 && seen[i] != NULL && seen[i] != shard) {
            i++;
        }
        cr_assert_lt(i, 4);
        seen[i] = shard;
    }
    cr_assert_not_null(seen[3], "64 blocks use every shard");
    test_store_close(&store);
}

Test(node_steps, a_quota_is_split_over_the_shards)
{
    struct test_store store;
    struct kvs_core_tenant_stats stats;
    test_store_open(&store, &(struct test_store_config){.share_bytes = MIB(4), .shards = 4}, true);
    kvs_share_tenant_stats(store.share, "t", &stats);
    cr_assert_eq(stats.quota_bytes, UINT64_MAX);
    cr_assert_eq(kvs_share_set_quota(store.share, "t", MIB(1)), KVB_OK);
    kvs_share_tenant_stats(store.share, "t", &stats);
    cr_assert_eq(stats.quota_bytes, MIB(1));
    cr_assert_eq(kvs_share_set_quota(store.share, "t", UINT64_MAX), KVB_OK);
    kvs_share_tenant_stats(store.share, "t", &stats);
    cr_assert_eq(stats.quota_bytes, UINT64_MAX);
    test_store_close(&store);
}

/* ---- room ---- */

/* So full of small objects that room for a large one is not made in one step. */
Test(node_steps, room_is_made_in_steps_with_other_calls_in_between)
{
    struct test_store store;
    struct test_job big, small;
    open_store(&store);
    struct kvs_shard *shard = &store.share->shards[0];
    struct kvs_core_where where = {.tenant = 1, .space = 1, .lineage = {{7, 7}}};
    kvb_mutex_lock(&shard->lock);
    for (uint64_t i = 0; i < 16384; i++) {
        struct kvs_core_key key = {.block = {(const uint8_t *)&i, sizeof i}};
        struct kvs_core_put put = {
            .len = 256, .session = KVS_LOCAL_SESSION, .deadline_ns = KVB_NEVER};
        struct kvs_attempt attempt;
        struct kvs_extents extents;
        kvs_extents_init(&extents);
        cr_assert_eq(kvs_core_reserve(shard->core, 0, &where, &key, &put, &attempt, &extents),
                     KVB_OK);
        cr_assert_eq(kvs_core_commit(shard->core, 0, attempt, KVS_LOCAL_SESSION, 0), KVB_OK);
        kvs_extents_cleanup(&extents);
    }
    kvb_mutex_unlock(&shard->lock);
    begin(&big, &store, KVS_PUT, "big", 0, MIB(4));
    (void)sim_turn(&store.sim);
    cr_assert_null(fake_oldest(store.fake), "room is being made");
    cr_assert_eq(test_stats(&store).core.attempts, 0);
    begin(&small, &store, KVS_EXISTS, "none", 0, 1);
    cr_assert(sim_run_until_true(&store.sim, &small.done, 1000));
    cr_assert_not(big.done);
    cr_assert_eq(small.items[0].status, KVB_ERR_NOT_FOUND);
    cr_assert_eq(finish(&big, &store), KVB_OK);
    assert_at_rest(&store, MIB(4));
    test_store_close(&store);
}

/* ---- deadlines ---- */

Test(node_steps, at_the_deadline_what_is_begun_times_out_and_the_rest_is_unavailable)
{
    struct test_store store;
    struct test_job job;
    open_store(&store);
    static uint64_t keys[TEST_ITEMS_MAX];
    test_job_init(&job, &store, KVS_PUT);
    job.batch.deadline_ns = sim_in_ms(&store.sim, 100);
    for (uint64_t i = 0; i < TEST_ITEMS_MAX; i++) { /* twice what the transport takes */
        keys[i] = i;
        test_job_add(&job, &store, &keys[i], 8, i * KIB(4), KIB(4));
    }
    test_job_submit(&job, &store);
    sim_advance(&store.sim, 101);
    cr_assert(!job.done, "its transfers have not stopped yet");
    cr_assert_geq(store.fake->cancels, 8);
    while (fake_oldest(store.fake) != NULL) {
        fake_end(fake_oldest(store.fake), KVB_ERR_CANCELED);
    }
    sim_settle(&store.sim);
    cr_assert(job.done);
    for (uint32_t i = 0; i < TEST_ITEMS_MAX; i++) {
        cr_assert_eq(job.items[i].status, i < 8 ? KVB_ERR_TIMEOUT : KVB_ERR_UNAVAILABLE, "item %u",
                     i);
    }
    assert_at_rest(&store, 0);
    test_store_close(&store);
}

/* ---- checksums ---- */

static uint8_t *stored_byte(const struct kvt_transfer *transfer)
{
    return (uint8_t *)transfer->share->base + transfer->extents[0].offset + 17;
}

Test(node_steps, bytes_that_went_bad_where_they_lie_are_a_miss_and_the_object_is_dropped)
{
    struct test_store store;
    struct test_job job;
    open_store(&store);
    cr_assert_eq(put(&store, "k", MIB(1), 1), KVB_OK);
    cr_assert_eq(put(&store, "good", MIB(1), 1), KVB_OK);
    begin(&job, &store, KVS_GET, "k", 0, MIB(1));
    struct kvt_transfer *reader = next_transfer(&store, &job);
    *stored_byte(reader) ^= 1;
    move_and_end(reader);
    sim_settle(&store.sim);
    cr_assert_eq(job.items[0].status, KVB_ERR_CHECKSUM);
    cr_assert_eq(test_stats(&store).gets_checksum, 1);
    cr_assert_eq(test_stats(&store).scrubs_bad, 1);
    cr_assert_eq(get(&store, "k", MIB(1), 1), KVB_ERR_NOT_FOUND);
    cr_assert_eq(put(&store, "k", MIB(1), 1), KVB_OK, "it can be put again");
    cr_assert_eq(get(&store, "k", MIB(1), 1), KVB_OK);
    cr_assert_eq(get(&store, "good", MIB(1), 1), KVB_OK);
    cr_assert_eq(test_stats(&store).core.tickets, 0);
    test_store_close(&store);
}

Test(node_steps, bytes_that_went_bad_on_the_way_are_a_miss_and_the_object_stays)
{
    struct test_store store;
    struct test_job job;
    open_store(&store);
    cr_assert_eq(put(&store, "k", MIB(1), 1), KVB_OK);
    begin(&job, &store, KVS_GET, "k", 0, MIB(1));
    struct kvt_transfer *reader = next_transfer(&store, &job);
    fake_move(reader, UINT64_MAX);
    reader->checksum ^= 1;
    fake_end(reader, KVB_OK);
    sim_settle(&store.sim);
    cr_assert_eq(job.items[0].status, KVB_ERR_CHECKSUM);
    cr_assert_eq(test_stats(&store).scrubs, 1);
    cr_assert_eq(test_stats(&store).scrubs_bad, 0);
    cr_assert_eq(get(&store, "k", MIB(1), 1), KVB_OK);
    test_store_close(&store);
}

Test(node_steps, a_node_destroyed_in_a_scrub_leaves_nothing)
{
    struct test_store store;
    struct test_job job;
    open_store(&store);
    cr_assert_eq(put(&store, "k", MIB(3), 1), KVB_OK);
    begin(&job, &store, KVS_GET, "k", 0, MIB(3));
    struct kvt_transfer *reader = next_transfer(&store, &job);
    fake_move(reader, UINT64_MAX);
    reader->checksum ^= 1;
    fake_end(reader, KVB_OK);
    (void)sim_turn(&store.sim);
    cr_assert(job.done);
    cr_assert_eq(test_stats(&store).scrubs, 0, "it runs");
    test_store_close(&store);
}

/* ---- controls: with the protection taken out the harm is seen ---- */

#ifdef KVB_FAULTS

static kvb_status_t read_given_away(const char *fault)
{
    struct test_store store;
    struct test_job job;
    if (fault != NULL) {
        cr_assert_eq(kvb_fault_choose(fault), KVB_OK);
    }
    open_store(&store);
    memset(store.memory.base, 'y', MIB(1));
    begin(&job, &store, KVS_PUT, "slow", 0, MIB(1));
    cr_assert_eq(finish(&job, &store), KVB_OK);
    begin(&job, &store, KVS_GET, "slow", 0, MIB(1));
    struct kvt_transfer *reader = next_transfer(&store, &job);
    sim_advance(&store.sim, TICKET_MS + 200);
    cr_assert_eq(overwrite(&store, MIB(4)), KVB_OK);
    move_and_end(reader);
    sim_advance(&store.sim, 400);
    cr_assert(job.done);
    kvb_status_t status = job.items[0].status;
    cr_assert(status != KVB_OK || store.memory.base[0] == 'x', "torn, as it must be here");
    test_store_close(&store);
    return status;
}

Test(node_steps, control_with_every_protection_it_is_refused_by_the_ticket)
{
    cr_assert_eq(read_given_away("none"), KVB_ERR_TICKET);
}

Test(node_steps, control_without_the_ticket_alone_it_is_refused_by_the_checksum)
{
    cr_assert_eq(read_given_away("ticket-ignored:first"), KVB_ERR_CHECKSUM);
}

Test(node_steps, control_without_ticket_and_checksum_it_is_torn)
{
    cr_assert_eq(read_given_away("ticket-ignored"), KVB_OK);
}

#endif
