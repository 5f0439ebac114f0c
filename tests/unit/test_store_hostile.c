/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store under the hostile schedule of a fault run: transfers are held between their steps and
 * across the release and the fresh handing over of memory, the share is small, tickets are short.
 * With every protection on nothing wrong is ever read; with one taken out it is (a test that could
 * not fail would prove nothing); with the first of two taken out the second catches it.
 */
#include "test_store.h"

#include "base/faults.h"

#include <criterion/criterion.h>

#ifdef KVB_FAULTS

#define JOBS  24
#define KEYS  40
#define VALUE KIB(12)

struct hostile {
    struct test_store store;
    struct test_job jobs[JOBS];
    char keys[JOBS][16];
    uint64_t job_weights[JOBS]; /* of the bytes put */
    bool running[JOBS];
    bool puts[JOBS];
    uint64_t weights; /* that the engine holds */
    uint64_t read, bad, caught;
};

static uint64_t place_of(uint32_t job)
{
    return job * KIB(32);
}

static void start_job(struct hostile *h, uint32_t j)
{
    struct test_store *store = &h->store;
    (void)snprintf(h->keys[j], sizeof h->keys[j], "k%lu", sim_below(&store->sim, KEYS));
    h->puts[j] = sim_below(&store->sim, 2) == 0;
    uint8_t *value = store->memory.base + place_of(j);
    if (h->puts[j]) {
        test_value_fill(value, VALUE, "t", h->keys[j], strlen(h->keys[j]), h->weights);
    } else {
        memset(value, TEST_PREFILL, VALUE);
    }
    test_job_init(&h->jobs[j], store, h->puts[j] ? KVS_PUT : KVS_GET);
    test_job_add(&h->jobs[j], store, h->keys[j], strlen(h->keys[j]), place_of(j), VALUE);
    h->running[j] = true;
    test_job_submit(&h->jobs[j], store);
}

static void end_job(struct hostile *h, uint32_t j)
{
    kvb_status_t status = h->jobs[j].items[0].status;
    h->running[j] = false;
    h->caught +=
        status == KVB_ERR_GENERATION || status == KVB_ERR_TICKET || status == KVB_ERR_CHECKSUM;
    if (status == KVB_OK && !h->puts[j]) {
        h->read++;
        h->bad += test_value_check(h->store.memory.base + place_of(j), VALUE, "t", h->keys[j],
                                   strlen(h->keys[j]), h->weights) != VALUE;
    }
}

static void end_jobs(struct hostile *h)
{
    for (uint32_t j = 0; j < JOBS; j++) {
        if (h->running[j] && h->jobs[j].done) {
            end_job(h, j);
        }
    }
}

static void work(struct hostile *h, uint64_t ms)
{
    for (; ms > 0; ms--) {
        end_jobs(h);
        for (uint32_t j = 0; j < JOBS; j++) {
            if (!h->running[j] && sim_below(&h->store.sim, 8) == 0) {
                start_job(h, j);
            }
        }
        sim_advance(&h->store.sim, 1);
    }
}

/* Memory is released and fresh pages are handed over. With the drain in place every transfer has
 * ended before. */
static void cycle(struct hostile *h, bool new_weights)
{
    struct test_store *store = &h->store;
    bool done = false;
    struct kvb_lineage old = store->lineage;
    if (new_weights) {
        store->lineage.id.lo++;
        h->weights++;
        kvs_share_retire(store->share, &old, 1);
    }
    if (!kvb_fault(KVB_FAULT_DRAIN_SKIPPED) || new_weights) {
        /* what was asked in the old stay ends in it: that is the connector's, not the store's */
        for (uint32_t j = 0; j < JOBS; j++) {
            if (h->running[j] && !h->jobs[j].done) {
                test_job_cancel(&h->jobs[j], store);
            }
        }
        for (uint32_t j = 0; j < JOBS; j++) {
            if (h->running[j]) {
                cr_assert(sim_run_until_true(&store->sim, &h->jobs[j].done, 1000));
                h->running[j] = false;
            }
        }
    }
    kvt_region_unregister(store->region, sim_in_ms(&store->sim, 100), sim_in_ms(&store->sim, 200),
                          test_store_unregistered_, &done);
    cr_assert(sim_run_until_true(&store->sim, &done, 500));
    end_jobs(h);
    struct test_memory before = store->memory;
    test_memory_init(&store->memory, "engine", TEST_STORE_MEMORY);
    memset(store->memory.base, 'j', place_of(JOBS));
    test_memory_cleanup(&before);
    struct kvt_region *old_region = store->region;
    struct kvt_region_desc desc = *kvt_region_desc(old_region);
    desc.generation++;
    const char *reason;
    cr_assert_eq(kvt_region_create(store->regions, &desc, test_memory_dup(&store->memory),
                                   &store->region, &reason),
                 KVB_OK);
    cr_assert_eq(kvt_region_register(store->region), KVB_OK);
    kvt_region_destroy(old_region);
}

static void run(struct hostile *h, const char *fault, uint64_t ticket_ms, int cycles,
                bool until_caught)
{
    *h = (struct hostile){.weights = 1};
    cr_assert_eq(kvb_fault_choose(fault), KVB_OK);
    test_store_open(
        &h->store,
        &(struct test_store_config){.share_bytes = KIB(256), .shards = 1, .ticket_ms = ticket_ms},
        false);
    /* what is to be caught is rare: longer, if need be */
    for (int i = 0; i < cycles || (until_caught && h->caught == 0 && i < 20 * cycles); i++) {
        work(h, 250);
        cycle(h, i % 3 == 0);
        cr_assert_null(kvs_share_validate(h->store.share));
    }
    for (uint32_t j = 0; j < JOBS; j++) {
        if (h->running[j]) {
            cr_assert(sim_run_until_true(&h->store.sim, &h->jobs[j].done, 120000));
        }
    }
    kvs_share_clear(h->store.share);
    sim_advance(&h->store.sim, 1000);
    cr_assert_eq(test_stats(&h->store).core.used_bytes, 0);
    cr_log_info("%s: seed %lu read %lu bad %lu caught %lu\n", fault, h->store.sim.seed, h->read,
                h->bad, h->caught);
    test_store_close(&h->store);
}

static struct hostile h;

Test(store_hostile, with_every_protection_nothing_wrong_is_read)
{
    run(&h, "none", 20, 20, false);
    cr_assert_gt(h.read, 200);
    cr_assert_eq(h.bad, 0);
}

Test(store_hostile, control_a_skipped_unregister_is_seen)
{
    run(&h, "unregister-skipped", 1000, 20, false);
    cr_assert_gt(h.bad, 0);
}

Test(store_hostile, control_a_skipped_drain_is_seen)
{
    run(&h, "drain-skipped", 1000, 20, false);
    cr_assert_gt(h.bad, 0);
}

Test(store_hostile, a_skipped_drain_alone_is_caught_by_the_generation)
{
    run(&h, "drain-skipped:first", 1000, 20, true);
    cr_assert_eq(h.bad, 0);
    cr_assert_gt(h.caught, 0);
}

Test(store_hostile, control_an_ignored_ticket_is_seen)
{
    run(&h, "ticket-ignored", 4, 20, false);
    cr_assert_gt(h.bad, 0);
}

Test(store_hostile, an_ignored_ticket_alone_is_caught_by_the_checksum)
{
    run(&h, "ticket-ignored:first", 4, 20, true);
    cr_assert_eq(h.bad, 0);
    cr_assert_gt(h.caught, 0);
}

#endif
