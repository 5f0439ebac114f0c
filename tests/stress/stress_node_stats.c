/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's loop puts, gets, retires and clears while other threads read its statistics, as
 * metrics do: no race (ThreadSanitizer), and what they read always adds up.
 */
#include "test_store.h"

#include <pthread.h>
#include <stdatomic.h>

#define READERS 2
#define ROUNDS  3000

static struct test_store store;
static atomic_bool stop;

static void each_tenant(void *arg, const char *tenant, const struct kvs_core_tenant_stats *stats)
{
    (void)arg, (void)tenant;
    kvb_assert(stats->live_bytes <= stats->used_bytes);
}

static void *read_stats(void *arg)
{
    uint64_t *reads = arg;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        struct kvs_core_tenant_stats tenant;
        (void)test_stats(&store);
        kvs_share_tenant_stats(store.share, "t", &tenant);
        kvs_share_each_tenant(store.share, each_tenant, NULL);
        ++*reads;
    }
    return NULL;
}

static void one_round(uint64_t round)
{
    uint64_t key = round % 97;
    if (round % 50 == 49) {
        (void)snprintf(store.space.tenant, sizeof store.space.tenant, "t%lu", round / 50 % 5);
    }
    kvb_status_t status = test_put(&store, &key, sizeof key, 1 + key * 100, key);
    kvb_assert(status == KVB_OK || status == KVB_ERR_EXISTS);
    kvb_assert(test_get(&store, &key, sizeof key, 1 + key * 100, key) == KVB_OK);
    if (round % 211 == 210) {
        kvs_share_retire(store.share, &store.lineage, 1);
        store.lineage.id.lo++;
    } else if (round % 307 == 306) {
        kvs_share_clear(store.share);
    }
}

int main(void)
{
    pthread_t threads[READERS];
    uint64_t reads[READERS] = {0};
    test_store_open(&store, &(struct test_store_config){.share_bytes = MIB(4), .shards = 3}, false);
    for (int i = 0; i < READERS; i++) {
        kvb_assert(pthread_create(&threads[i], NULL, read_stats, &reads[i]) == 0);
    }
    for (uint64_t round = 0; round < ROUNDS; round++) {
        one_round(round);
    }
    atomic_store_explicit(&stop, true, memory_order_relaxed);
    for (int i = 0; i < READERS; i++) {
        kvb_assert(pthread_join(threads[i], NULL) == 0);
        kvb_assert(reads[i] > 0);
    }
    kvb_assert(kvs_share_validate(store.share) == NULL);
    test_store_close(&store);
    printf("stats were read %lu and %lu times\n", reads[0], reads[1]);
    return 0;
}
