/* SPDX-License-Identifier: Apache-2.0 */
/* This process's own node, through the client, over the loopback. */
#include "test_store.h"

#include "store/coordinator.h"

#include <criterion/criterion.h>

#include <stdlib.h>

static void open_small(struct test_store *store)
{
    test_store_open(store, &(struct test_store_config){.share_bytes = MIB(8), .shards = 3}, false);
}

/* ---- what goes in comes out ---- */

Test(node, a_get_brings_exactly_what_was_put)
{
    struct test_store store;
    open_small(&store);
    static const uint64_t lens[] = {1, 2, 63, 4096, 65535, 65536, 65537, 1000003};
    for (uint64_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        cr_assert_eq(test_exists(&store, &i, sizeof i), KVB_ERR_NOT_FOUND);
        cr_assert_eq(test_get(&store, &i, sizeof i, lens[i], 1), KVB_ERR_NOT_FOUND);
        cr_assert_eq(test_put(&store, &i, sizeof i, lens[i], 1), KVB_OK);
        cr_assert_eq(test_exists(&store, &i, sizeof i), KVB_OK);
        cr_assert_eq(test_put(&store, &i, sizeof i, lens[i], 2), KVB_ERR_EXISTS, "the first stays");
        cr_assert_eq(test_get(&store, &i, sizeof i, lens[i], 1), KVB_OK);
    }
    for (uint64_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        cr_assert_eq(test_get(&store, &i, sizeof i, lens[i], 1), KVB_OK);
    }
    struct kvs_share_stats stats = test_stats(&store);
    cr_assert_eq(stats.puts, 8);
    cr_assert_eq(stats.gets, 16);
    cr_assert_eq(stats.gets_missed, 8);
    cr_assert_eq(stats.puts_existed, 8);
    cr_assert_null(kvs_share_validate(store.share));
    test_store_close(&store);
}

Test(node, lineage_layout_tenant_group_and_part_each_make_another_object)
{
    struct test_store store;
    struct test_job job;
    open_small(&store);
    uint64_t weights = 0;
    struct kvs_space spaces[] = {{"t", "l"}, {"t", "m"}, {"u", "l"}};
    for (int round = 0; round < 2; round++) {
        weights = 0;
        for (int s = 0; s < 3; s++) {
            for (uint64_t l = 1; l < 3; l++) {
                for (uint32_t piece = 0; piece < 4; piece++) {
                    store.space = spaces[s];
                    store.lineage.id.lo = l;
                    weights++;
                    bool put = round == 0;
                    test_job_init(&job, &store, put ? KVS_PUT : KVS_GET);
                    struct kvs_item *item = test_job_add(&job, &store, "key", 3, 0, 1000);
                    item->group = piece / 2;
                    item->part = piece % 2;
                    memset(store.memory.base, TEST_PREFILL, 1000);
                    if (put) {
                        test_value_fill(store.memory.base, 1000, "", "key", 3, weights);
                    }
                    test_job_run(&job, &store);
                    cr_assert_eq(item->status, KVB_OK);
                    cr_assert_eq(test_value_check(store.memory.base, 1000, "", "key", 3, weights),
                                 1000);
                }
            }
        }
    }
    test_store_close(&store);
}

Test(node, a_put_gathers_and_a_get_scatters)
{
    struct test_store store;
    struct test_job job;
    open_small(&store);
    struct kvt_slice slices[3] = {
        {store.region, 8192, 100}, {store.region, 0, 4096}, {store.region, 100000, 300000}};
    uint64_t len = 100 + 4096 + 300000;
    uint8_t *value = malloc(len), *at = value;
    test_value_fill(value, len, "t", "k", 1, 3);
    for (int i = 0; i < 3; at += slices[i].len, i++) {
        memcpy(store.memory.base + slices[i].offset, at, slices[i].len);
    }
    test_job_add(test_job_init(&job, &store, KVS_PUT), &store, "k", 1, 0, 1);
    job.items[0].slices = slices;
    job.items[0].nslices = 3;
    test_job_run(&job, &store);
    cr_assert_eq(job.items[0].status, KVB_OK);
    cr_assert_eq(test_get(&store, "k", 1, len, 3), KVB_OK, "in one piece");
    memset(store.memory.base, TEST_PREFILL, MIB(1));
    test_job_add(test_job_init(&job, &store, KVS_GET), &store, "k", 1, 0, 1);
    job.items[0].slices = slices;
    job.items[0].nslices = 3;
    test_job_run(&job, &store);
    cr_assert_eq(job.items[0].status, KVB_OK);
    at = value;
    for (int i = 0; i < 3; at += slices[i].len, i++) {
        cr_assert_eq(memcmp(store.memory.base + slices[i].offset, at, slices[i].len), 0);
    }
    cr_assert_eq(store.memory.base[8192 + 100], TEST_PREFILL);
    free(value);
    test_store_close(&store);
}

/* ---- B30: keys and values at their limits ---- */

Test(node, b30_keys_are_bytes_and_their_length_has_limits)
{
    struct test_store store;
    open_small(&store);
    static uint8_t longest[513];
    memset(longest, 'k', sizeof longest);
    static const struct {
        const char *key;
        size_t len;
    } keys[] = {
        {"x", 1},        {" ", 1},        {"\0", 1},        {"\0\0", 2}, {"a/b", 3},
        {"a%2Fb", 5},    {"a%2fb", 5},    {"a:b?c#d&e", 9}, {"a\0b", 3}, {"a\0c", 3},
        {"\xff\xfe", 2}, {"\xc3\xa9", 2}, {"a", 1},         {"A", 1},
    };
    const size_t n = sizeof keys / sizeof keys[0];
    for (uint64_t i = 0; i < n; i++) {
        cr_assert_eq(test_put(&store, keys[i].key, keys[i].len, 500, i), KVB_OK, "key %lu", i);
    }
    for (uint64_t i = 0; i < n; i++) {
        cr_assert_eq(test_get(&store, keys[i].key, keys[i].len, 500, i), KVB_OK, "key %lu", i);
    }
    cr_assert_eq(test_put(&store, longest, 512, 10, 1), KVB_OK);
    cr_assert_eq(test_get(&store, longest, 512, 10, 1), KVB_OK);
    uint64_t used = test_stats(&store).core.used_bytes;
    cr_assert_eq(test_put(&store, longest, 513, 10, 1), KVB_ERR_INVALID);
    cr_assert_eq(test_put(&store, longest, 0, 10, 1), KVB_ERR_INVALID);
    cr_assert_eq(test_get(&store, longest, 513, 10, 1), KVB_ERR_INVALID);
    cr_assert_eq(test_get(&store, longest, 0, 10, 1), KVB_ERR_INVALID);
    cr_assert_eq(test_exists(&store, longest, 513), KVB_ERR_INVALID);
    cr_assert_eq(test_exists(&store, longest, 0), KVB_ERR_INVALID);
    cr_assert_eq(test_remove(&store, longest, 513, true), KVB_ERR_INVALID);
    cr_assert_eq(test_remove(&store, longest, 0, true), KVB_ERR_INVALID);
    cr_assert_eq(test_stats(&store).core.used_bytes, used);
    test_store_close(&store);
}

Test(node, b30_a_buffer_of_another_length_is_told_what_is_needed_and_not_written_past)
{
    struct test_store store;
    struct test_job job;
    open_small(&store);
    cr_assert_eq(test_put(&store, "k", 1, 5000, 1), KVB_OK);
    static const uint64_t lens[] = {1, 4999, 5001};
    for (int i = 0; i < 3; i++) {
        memset(store.memory.base, TEST_PREFILL, 6000);
        /* the guard page lies right behind */
        uint64_t offset = store.memory.len - lens[i];
        test_job_add(test_job_init(&job, &store, KVS_GET), &store, "k", 1, offset, lens[i]);
        test_job_run(&job, &store);
        cr_assert_eq(job.items[0].status, KVB_ERR_TOO_LARGE);
        cr_assert_eq(job.items[0].len, 5000);
    }
    cr_assert_eq(test_stats(&store).core.tickets, 0);
    cr_assert_eq(test_get(&store, "k", 1, 5000, 1), KVB_OK);
    test_store_close(&store);
}

Test(node, b30_values_have_limits)
{
    struct test_store store;
    struct test_job job;
    open_small(&store);
    static struct kvt_slice slices[65];
    for (int i = 0; i < 64; i++) {
        slices[i] = (struct kvt_slice){store.region, 0, MIB(16)};
    }
    slices[64] = (struct kvt_slice){store.region, 0, 1}; /* 1 GiB + 1 */
    cr_assert_eq(test_put(&store, "small", 5, 1, 1), KVB_OK);
    test_job_add(test_job_init(&job, &store, KVS_PUT), &store, "k", 1, 0, 1);
    job.items[0].slices = slices;
    job.items[0].nslices = 65;
    test_job_run(&job, &store);
    cr_assert_eq(job.items[0].status, KVB_ERR_TOO_LARGE);
    job.items[0].nslices = 1; /* more than the share can ever hold */
    test_job_run(&job, &store);
    cr_assert_eq(job.items[0].status, KVB_ERR_TOO_LARGE);
    job.items[0].nslices = 0;
    test_job_run(&job, &store);
    cr_assert_eq(job.items[0].status, KVB_ERR_INVALID);
    slices[0].len = 0;
    job.items[0].nslices = 1;
    test_job_run(&job, &store);
    cr_assert_eq(job.items[0].status, KVB_ERR_INVALID, "no bytes are no value");
    cr_assert_eq(test_get(&store, "small", 5, 1, 1), KVB_OK, "nothing was evicted for any of it");
    cr_assert_eq(test_stats(&store).core.evicted, 0);
    test_store_close(&store);
}

/* ---- batches ---- */

Test(node, of_duplicate_keys_in_a_put_batch_the_first_is_the_first)
{
    struct test_store store;
    struct test_job job;
    open_small(&store);
    test_value_fill(store.memory.base, MIB(1), "t", "k", 1, 1);
    test_value_fill(store.memory.base + MIB(1), 10, "t", "k", 1, 2);
    test_job_init(&job, &store, KVS_PUT);
    test_job_add(&job, &store, "k", 1, 0, MIB(1)); /* long: ends last if it does not wait */
    test_job_add(&job, &store, "k", 1, MIB(1), 10);
    test_job_add(&job, &store, "j", 1, 0, 10);
    test_job_add(&job, &store, "k", 1, 0, 20);
    struct kvs_item *part = test_job_add(&job, &store, "k", 1, 0, 30);
    part->part = 1;
    test_job_run(&job, &store);
    static const kvb_status_t want[] = {KVB_OK, KVB_ERR_EXISTS, KVB_OK, KVB_ERR_EXISTS, KVB_OK};
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(job.items[i].status, want[i], "item %d", i);
    }
    cr_assert_eq(test_get(&store, "k", 1, MIB(1), 1), KVB_OK);

    /* the first fails: the next takes its place */
    test_value_fill(store.memory.base + 64, 10, "t", "m", 1, 2);
    test_job_init(&job, &store, KVS_PUT);
    test_job_add(&job, &store, "m", 1, TEST_STORE_MEMORY, 10);
    test_job_add(&job, &store, "m", 1, 64, 10);
    test_job_run(&job, &store);
    cr_assert_eq(job.items[0].status, KVB_ERR_INVALID);
    cr_assert_eq(job.items[1].status, KVB_OK);
    cr_assert_eq(test_get(&store, "m", 1, 10, 2), KVB_OK);
    test_store_close(&store);
}

Test(node, duplicate_keys_in_other_batches_get_the_same_answer)
{
    struct test_store store;
    struct test_job job;
    open_small(&store);
    cr_assert_eq(test_put(&store, "k", 1, 100, 1), KVB_OK);
    for (int op = KVS_EXISTS; op <= KVS_REMOVE; op++) {
        if (op == KVS_PUT) {
            continue;
        }
        test_job_init(&job, &store, (enum kvs_batch_op)op);
        for (uint64_t i = 0; i < 4; i++) {
            test_job_add(&job, &store, i % 2 == 0 ? "k" : "none", i % 2 == 0 ? 1 : 4, i * 4096,
                         100);
        }
        test_job_run(&job, &store);
        cr_assert_eq(job.items[0].status, KVB_OK);
        cr_assert_eq(job.items[1].status, KVB_ERR_NOT_FOUND);
        cr_assert_eq(job.items[2].status, op == KVS_REMOVE ? KVB_ERR_NOT_FOUND : KVB_OK);
        cr_assert_eq(job.items[3].status, KVB_ERR_NOT_FOUND);
        for (uint64_t i = 0; op == KVS_GET && i < 4; i += 2) {
            cr_assert_eq(test_value_check(store.memory.base + i * 4096, 100, "t", "k", 1, 1), 100);
        }
    }
    cr_assert_eq(test_stats(&store).core.used_bytes, 0);
    test_store_close(&store);
}

Test(node, a_lookup_longer_than_a_step_is_answered_whole)
{
    struct test_store store;
    open_small(&store);
    enum { N = 4096 };
    struct kvs_item *items = calloc(N, sizeof *items);
    uint32_t *keys = calloc(N, sizeof *keys);
    for (uint32_t i = 0; i < N; i++) {
        keys[i] = i;
        items[i].key = (struct kvb_span){(const uint8_t *)&keys[i], 4};
        if (i % 3 == 0) {
            cr_assert_eq(test_put(&store, &keys[i], 4, 1 + i % 50, 1), KVB_OK);
        }
    }
    struct test_job job;
    test_job_init(&job, &store, KVS_EXISTS);
    job.batch.items = items;
    job.batch.nitems = N;
    test_job_run(&job, &store);
    for (uint32_t i = 0; i < N; i++) {
        cr_assert_eq(items[i].status, i % 3 == 0 ? KVB_OK : KVB_ERR_NOT_FOUND, "key %u", i);
        cr_assert_eq(items[i].len, i % 3 == 0 ? 1 + i % 50 : 0);
    }
    free(items);
    free(keys);
    test_store_close(&store);
}

Test(node, more_at_once_than_the_transport_takes_is_no_error)
{
    struct test_store store;
    struct test_job jobs[4];
    open_small(&store);
    for (uint64_t j = 0; j < 4; j++) {
        test_job_init(&jobs[j], &store, KVS_PUT);
        for (uint64_t i = 0; i < 16; i++) {
            static uint64_t keys[64];
            keys[j * 16 + i] = j * 16 + i;
            uint64_t offset = (j * 16 + i) * KIB(64);
            test_value_fill(store.memory.base + offset, KIB(64), "t", &keys[j * 16 + i], 8, 1);
            test_job_add(&jobs[j], &store, &keys[j * 16 + i], 8, offset, KIB(64));
        }
        test_job_submit(&jobs[j], &store);
    }
    for (uint64_t j = 0; j < 4; j++) {
        cr_assert(sim_run_until_true(&store.sim, &jobs[j].done, 1000));
        for (uint64_t i = 0; i < 16; i++) {
            cr_assert_eq(jobs[j].items[i].status, KVB_OK);
        }
    }
    for (uint64_t i = 0; i < 64; i++) {
        cr_assert_eq(test_get(&store, &i, 8, KIB(64), 1), KVB_OK);
    }
    test_store_close(&store);
}

/* ---- holds ---- */

static void fill(struct test_store *store, uint64_t first, uint64_t n)
{
    for (uint64_t i = first; i < first + n; i++) {
        kvb_status_t status = test_put(store, &i, sizeof i, KIB(64), 1);
        cr_assert(status == KVB_OK || status == KVB_ERR_NO_SPACE, "%s", kvb_status_label(status));
    }
}

Test(node, what_a_lookup_promised_is_not_evicted_until_it_is_given_back)
{
    for (int way = 0; way < 3; way++) {
        struct test_store store;
        struct test_job job;
        test_store_open(&store, &(struct test_store_config){.share_bytes = MIB(4), .shards = 1},
                        false);
        cr_assert_eq(test_put(&store, "held", 4, KIB(64), 1), KVB_OK);
        cr_assert_eq(test_put(&store, "free", 4, KIB(64), 1), KVB_OK);
        test_job_add(test_job_init(&job, &store, KVS_EXISTS), &store, "held", 4, 0, 1);
        job.batch.hold = (struct kvs_hold){9, 1};
        test_job_run(&job, &store);
        cr_assert_eq(job.items[0].status, KVB_OK);
        cr_assert_eq(test_stats(&store).core.holds, 1);
        fill(&store, 0, 200);
        cr_assert_eq(test_get(&store, "held", 4, KIB(64), 1), KVB_OK);
        cr_assert_eq(test_put(&store, "all", 3, MIB(4), 1), KVB_ERR_NO_SPACE);
        if (way == 0) {
            kvs_client_discard(store.client, (struct kvs_hold){9, 1});
        } else if (way == 1) {
            kvs_client_discard_instance(store.client, 9);
        } else {
            sim_advance(&store.sim, 61000); /* its bound */
        }
        sim_settle(&store.sim);
        cr_assert_eq(test_stats(&store).core.holds, 0);
        cr_assert_eq(test_put(&store, "all", 3, MIB(4), 1), KVB_OK);
        cr_assert_eq(test_exists(&store, "held", 4), KVB_ERR_NOT_FOUND);
        cr_assert_null(kvs_share_validate(store.share));
        test_store_close(&store);
    }
}

Test(node, getting_what_was_held_gives_the_hold_back)
{
    struct test_store store;
    struct test_job job;
    open_small(&store);
    cr_assert_eq(test_put(&store, "k", 1, 100, 1), KVB_OK);
    test_job_add(test_job_init(&job, &store, KVS_EXISTS), &store, "k", 1, 0, 1);
    job.batch.hold = (struct kvs_hold){9, 1};
    test_job_run(&job, &store);
    test_job_add(test_job_init(&job, &store, KVS_GET), &store, "k", 1, 0, 100);
    job.batch.hold = (struct kvs_hold){9, 1};
    test_job_run(&job, &store);
    cr_assert_eq(job.items[0].status, KVB_OK);
    cr_assert_eq(test_stats(&store).core.holds, 0);
    test_store_close(&store);
}

/* ---- clearing, B22, B27 ---- */

static bool reclaimed(void *arg)
{
    return test_stats(arg).core.used_bytes == 0;
}

Test(node, retired_misses_at_once_refuses_puts_and_its_space_comes_back)
{
    struct test_store store;
    open_small(&store);
    fill(&store, 0, 100);
    struct kvb_lineage old = store.lineage;
    kvs_share_retire(store.share, &old, 1);
    for (uint64_t i = 0; i < 100; i++) {
        cr_assert_eq(test_exists(&store, &i, 8), KVB_ERR_NOT_FOUND);
        cr_assert_eq(test_get(&store, &i, 8, KIB(64), 1), KVB_ERR_NOT_FOUND);
    }
    cr_assert_eq(test_put(&store, "late", 4, 100, 1), KVB_ERR_FENCED);
    cr_assert_eq(test_stats(&store).puts_fenced, 1);
    store.lineage.id.lo = 2;
    cr_assert_eq(test_put(&store, "new", 3, 100, 2), KVB_OK);
    kvs_share_clear(store.share);
    cr_assert(sim_run_until(&store.sim, reclaimed, &store, 1000));
    cr_assert_null(kvs_share_validate(store.share));
    test_store_close(&store);
}

Test(node, reclaiming_goes_in_small_steps_with_other_work_in_between)
{
    struct test_store store;
    test_store_open(&store, &(struct test_store_config){.share_bytes = MIB(8), .shards = 1}, false);
    for (uint64_t i = 0; i < 5000; i++) {
        cr_assert_eq(test_put(&store, &i, 8, 8, 1), KVB_OK);
    }
    kvs_share_clear(store.share);
    uint64_t turns = store.sim.turns;
    cr_assert(sim_run_until(&store.sim, reclaimed, &store, 1000));
    cr_assert_geq(store.sim.turns - turns, 5000 / 256);
    test_store_close(&store);
}

Test(node, b22_tenants_share_nothing)
{
    struct test_store store;
    open_small(&store);
    struct kvs_space a = {.tenant = "a", .layout = "l"}, b = {.tenant = "b", .layout = "l"};
    store.space = a;
    cr_assert_eq(test_put(&store, "k", 1, 1000, 1), KVB_OK);
    store.space = b;
    cr_assert_eq(test_get(&store, "k", 1, 1000, 1), KVB_ERR_NOT_FOUND, "not revealed");
    cr_assert_eq(test_put(&store, "k", 1, 1000, 2), KVB_OK, "not in the way");
    store.space = a;
    cr_assert_eq(test_remove(&store, "k", 1, true), KVB_OK);
    kvs_share_remove_tenant(store.share, "a");
    kvs_share_remove_tenant(store.share, "nobody");
    store.space = b;
    cr_assert_eq(test_get(&store, "k", 1, 1000, 2), KVB_OK);

    /* odd pairs: nothing is joined into one text */
    struct kvs_space odd1 = {.tenant = "a", .layout = "b/c"},
                     odd2 = {.tenant = "a/b", .layout = "c"};
    store.space = odd1;
    cr_assert_eq(test_put(&store, "k", 1, 10, 3), KVB_OK);
    store.space = odd2;
    cr_assert_eq(test_exists(&store, "k", 1), KVB_ERR_NOT_FOUND);
    store.space = (struct kvs_space){.tenant = "a", .layout = "l"};
    cr_assert_eq(test_put(&store, "b/c", 3, 10, 3), KVB_OK);
    store.space = (struct kvs_space){.tenant = "a/b", .layout = "l"};
    cr_assert_eq(test_exists(&store, "c", 1), KVB_ERR_NOT_FOUND);
    cr_assert_null(kvs_share_validate(store.share));
    test_store_close(&store);
}

Test(node, b22_a_full_quota_refuses_its_tenant_alone)
{
    struct test_store store;
    test_store_open(&store, &(struct test_store_config){.share_bytes = MIB(8), .shards = 1}, false);
    struct kvs_space a = {.tenant = "a", .layout = "l"}, b = {.tenant = "b", .layout = "l"};
    /* together more than there is */
    cr_assert_eq(kvs_share_set_quota(store.share, "a", MIB(1)), KVB_OK);
    cr_assert_eq(kvs_share_set_quota(store.share, "b", MIB(16)), KVB_OK);
    store.space = b;
    fill(&store, 0, 40);
    store.space = a;
    cr_assert_eq(test_put(&store, "big", 3, MIB(1) + 1, 1), KVB_ERR_QUOTA);
    fill(&store, 0, 60); /* over quota: of its own */
    struct kvs_core_tenant_stats stats;
    kvs_share_tenant_stats(store.share, "a", &stats);
    cr_assert_eq(stats.quota_bytes, MIB(1));
    cr_assert(stats.used_bytes > 0 && stats.used_bytes <= MIB(1));
    kvs_share_tenant_stats(store.share, "b", &stats);
    cr_assert_eq(stats.objects, 40);
    cr_assert_eq(stats.evicted, 0);
    store.space = b;
    for (uint64_t i = 0; i < 40; i++) {
        cr_assert_eq(test_get(&store, &i, 8, KIB(64), 1), KVB_OK);
    }
    kvs_share_tenant_stats(store.share, "nobody", &stats);
    cr_assert_eq(stats.used_bytes, 0);
    test_store_close(&store);
}

static void count_names(void *arg, const char *tenant, const struct kvs_core_tenant_stats *stats)
{
    (void)tenant;
    (void)stats;
    ++*(uint32_t *)arg;
}

Test(node, who_asks_for_what_is_not_there_leaves_nothing_behind)
{
    struct test_store store;
    open_small(&store);
    cr_assert_eq(test_put(&store, "k", 1, 1000, 1), KVB_OK);
    uint32_t before = 0, after = 0;
    kvs_share_each_tenant(store.share, count_names, &before);
    for (int i = 0; i < 50; i++) {
        snprintf(store.space.tenant, sizeof store.space.tenant, "ghost-%d", i);
        cr_assert_eq(test_exists(&store, "k", 1), KVB_ERR_NOT_FOUND);
        cr_assert_eq(test_get(&store, "k", 1, 1000, 1), KVB_ERR_NOT_FOUND);
        cr_assert_eq(test_remove(&store, "k", 1, true), KVB_ERR_NOT_FOUND);
    }
    kvs_share_each_tenant(store.share, count_names, &after);
    cr_assert_eq(after, before);
    cr_assert_null(kvs_share_validate(store.share));
    test_store_close(&store);
}

static void count_tenant(void *arg, const char *tenant, const struct kvs_core_tenant_stats *stats)
{
    (void)tenant;
    uint64_t *sum = arg;
    *sum += stats->used_bytes;
}

Test(node, b27_used_bytes_are_what_is_there_whatever_happens)
{
    struct test_store store;
    struct test_job jobs[8];
    static uint64_t keys[8][16];
    open_small(&store);
    const char *tenants[] = {"a", "b", "c"};
    for (int round = 0; round < 50; round++) {
        for (int j = 0; j < 8; j++) {
            (void)strcpy(store.space.tenant, tenants[j % 3]);
            test_job_init(&jobs[j], &store, KVS_PUT);
            for (int i = 0; i < 16; i++) {
                keys[j][i] = sim_below(&store.sim, 300);
                test_job_add(&jobs[j], &store, &keys[j][i], 8, sim_below(&store.sim, MIB(8)),
                             1 + sim_below(&store.sim, KIB(200)));
            }
            test_job_submit(&jobs[j], &store);
        }
        for (int i = 0; i < 4; i++) {
            (void)sim_turn(&store.sim);
            (void)test_stats(&store);
        }
        switch (round % 4) {
        case 0:
            kvs_share_clear(store.share);
            break;
        case 1:
            kvs_share_remove_tenant(store.share, "b");
            break;
        case 2:
            kvs_share_retire(store.share, &store.lineage, 1);
            store.lineage.id.lo++;
            break;
        default:
            test_job_cancel(&jobs[0], &store);
            break;
        }
        for (int j = 0; j < 8; j++) {
            while (!jobs[j].done) {
                (void)test_stats(&store);
                cr_assert(sim_turn(&store.sim) != KVB_NEVER || jobs[j].done);
            }
        }
        cr_assert_null(kvs_share_validate(store.share), "seed %lu round %d: %s", store.sim.seed,
                       round, kvs_share_validate(store.share));
        uint64_t sum = 0;
        kvs_share_each_tenant(store.share, count_tenant, &sum);
        cr_assert_eq(sum, test_stats(&store).core.used_bytes);
    }
    kvs_share_clear(store.share);
    cr_assert(sim_run_until(&store.sim, reclaimed, &store, 1000));
    cr_assert_eq(test_stats(&store).core.objects, 0);
    cr_assert_eq(test_stats(&store).core.attempts, 0);
    test_store_close(&store);
}

Test(node, every_item_ends_once_when_cancelled_at_any_step)
{
    bool ended = false;
    for (uint32_t turns = 0; !ended; turns++) {
        struct test_store store;
        struct test_job put, get;
        open_small(&store);
        cr_assert_eq(test_put(&store, "old", 3, MIB(1), 1), KVB_OK);
        uint64_t used = test_stats(&store).core.used_bytes;
        test_job_init(&put, &store, KVS_PUT);
        static uint64_t keys[12];
        for (uint64_t i = 0; i < 12; i++) {
            keys[i] = i;
            test_job_add(&put, &store, &keys[i], 8, MIB(2) + i * KIB(300), KIB(300));
        }
        test_job_init(&get, &store, KVS_GET);
        test_job_add(&get, &store, "old", 3, 0, MIB(1));
        test_job_submit(&put, &store);
        test_job_submit(&get, &store);
        for (uint32_t i = 0; i < turns; i++) {
            (void)sim_turn(&store.sim);
        }
        ended = put.done && get.done;
        if (!put.done) {
            test_job_cancel(&put, &store);
        }
        if (!get.done) {
            test_job_cancel(&get, &store);
        }
        cr_assert(sim_run_until_true(&store.sim, &put.done, 200));
        cr_assert(sim_run_until_true(&store.sim, &get.done, 200));
        for (uint32_t i = 0; i < 12; i++) {
            cr_assert(put.items[i].status == KVB_OK || put.items[i].status == KVB_ERR_CANCELED);
            kvb_status_t there = test_exists(&store, &keys[i], 8);
            if (put.items[i].status == KVB_OK) {
                cr_assert_eq(there, KVB_OK);
            } else if (!TEST_ANSWER_MAY_BE_LOST) {
                cr_assert_eq(there, KVB_ERR_NOT_FOUND);
            }
            if (there == KVB_OK) {
                cr_assert_eq(test_remove(&store, &keys[i], 8, false), KVB_OK);
            }
        }
        cr_assert_eq(test_stats(&store).core.used_bytes, used, "after %u turns", turns);
        cr_assert_eq(test_stats(&store).core.tickets, 0);
        cr_assert_eq(test_stats(&store).core.attempts, 0);
        cr_assert_eq(kvt_region_refs(store.region), 0);
        cr_assert_null(kvs_share_validate(store.share));
        test_store_close(&store);
    }
}

Test(node, the_coordinator_retires_through_it)
{
    struct test_store store;
    struct kvs_coordinator *coordinator;
    struct kvb_lineage *lineages;
    uint32_t n;
    open_small(&store);
    cr_assert_eq(
        kvs_embedded_create(&store.sim.sched, 1000, &kvs_share_reclaim, store.share, &coordinator),
        KVB_OK);
    for (uint64_t l = 1; l <= 200; l++) {
        store.lineage.id.lo = l;
        cr_assert_eq(test_put(&store, "k", 1, 100, l), KVB_OK);
    }
    cr_assert_eq(kvs_share_reclaim.lineages(store.share, "t", &lineages, &n), KVB_OK);
    cr_assert_eq(n, 200);
    kvs_share_reclaim.retire(store.share, lineages, n);
    free(lineages);
    cr_assert(sim_run_until(&store.sim, reclaimed, &store, 1000));
    cr_assert_eq(kvs_share_reclaim.lineages(store.share, "unknown", &lineages, &n), KVB_OK);
    cr_assert_eq(n, 0);
    free(lineages);
    kvs_coordinator_destroy(coordinator);
    test_store_close(&store);
}
