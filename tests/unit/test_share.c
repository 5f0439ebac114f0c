/* SPDX-License-Identifier: Apache-2.0 */
/* A share by itself: its memory, removing by pattern, events, upkeep. */
#include "share/share_impl.h"
#include "test_store.h"

#include <criterion/criterion.h>

#include <endian.h>
#include <stdlib.h>

static void open_store(struct test_store *store, uint32_t shards)
{
    test_store_open(store, &(struct test_store_config){.share_bytes = MIB(4), .shards = shards},
                    false);
}

/* ---- memory ---- */

Test(share, its_memory_is_touched_on_request_and_huge_pages_are_there_or_refused)
{
    struct kvs_share *share;
    struct kvs_share_config config = {.bytes = MIB(4), .prefault = true};
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    cr_assert_eq(kvs_share_create(&kvb_random_real, &config, &share), KVB_OK);
    unsigned char resident[MIB(4) / 4096] = {0};
    cr_assert_eq(mincore(share->memory, MIB(4), resident), 0);
    for (size_t i = 0; i < sizeof resident; i++) {
        cr_assert(resident[i] & 1, "page %zu", i);
    }
    kvs_share_destroy(share);
    config.huge_pages = true;
    kvb_status_t status = kvs_share_create(&kvb_random_real, &config, &share);
    cr_assert(status == KVB_OK || status == KVB_ERR_NO_MEMORY);
    if (status == KVB_OK) {
        kvs_share_destroy(share);
    }
    cr_assert(!test_memfd_held("kvplane-share"));
}

Test(share, what_cannot_be_a_share_is_refused)
{
    struct kvs_share *share;
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    static const struct kvs_share_config bad[] = {
        {.bytes = 0},
        {.bytes = KVS_CORE_PAGE - 1},
        {.bytes = MIB(1), .shards = 17},
        {.bytes = KVS_CORE_SHARE_MAX * 2, .shards = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(kvs_share_create(&kvb_random_real, &bad[i], &share), KVB_ERR_INVALID);
    }
}

/* ---- names ---- */

Test(share, a_space_among_many_is_found_as_soon_as_one_among_few, .timeout = 60)
{
    struct kvs_names names;
    kvs_names_init(&names, 7);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < KVS_SPACES_MAX; i++) {
            struct kvs_space named = {.tenant = "t"};
            uint32_t number = 0, tenant = 0;
            (void)snprintf(named.tenant, sizeof named.tenant, "t%u", i % 100);
            (void)snprintf(named.layout, sizeof named.layout, "l%u", i / 100);
            if (round == 0) {
                cr_assert_eq(kvs_names_find_space(&names, &named, &number, &tenant),
                             KVB_ERR_NOT_FOUND);
                cr_assert_eq(kvs_names_space(&names, &named, &number, &tenant), KVB_OK);
            } else {
                cr_assert_eq(kvs_names_find_space(&names, &named, &number, &tenant), KVB_OK);
            }
            cr_assert_eq(number, i);
            cr_assert_eq(tenant, i % 100);
        }
    }
    struct kvs_space more = {"t1", "more"};
    uint32_t number, tenant;
    cr_assert_eq(kvs_names_space(&names, &more, &number, &tenant), KVB_ERR_LIMIT);
    cr_assert_eq(kvs_names_ntenants(&names), 100);
    struct kvs_space text;
    kvs_names_space_text(&names, 101, &text);
    cr_assert_str_eq(text.tenant, "t1");
    cr_assert_str_eq(text.layout, "l1");
    kvs_names_cleanup(&names);
}

/* ---- by pattern ---- */

static uint64_t sweep(struct test_store *store, const char *tenant, const void *pattern, size_t len,
                      bool force, uint64_t *kept_p)
{
    struct kvs_sweep sweep = {.pattern_len = (uint32_t)len, .force = force};
    (void)snprintf(sweep.tenant, sizeof sweep.tenant, "%s", tenant);
    memcpy(sweep.pattern, pattern, len);
    while (kvs_share_sweep(store->share, store->sim.now_ns, &sweep)) {
    }
    if (kept_p != NULL) {
        *kept_p = sweep.kept;
    }
    return sweep.removed;
}

Test(share, a_pattern_means_what_it_says)
{
    static const struct {
        const char *pattern, *key;
        bool match;
    } cases[] = {
        {"abc", "abc", true},       {"abc", "abcd", false},      {"abc", "ab", false},
        {"*", "x", true},           {"a*", "a", true},           {"a*", "ab/c", true},
        {"a*", "ba", false},        {"*c", "abc", true},         {"*c", "abcd", false},
        {"a*b*c", "axxbyyc", true}, {"a*b*c", "axxcyyb", false}, {"a*bc", "abcbc", true},
        {"?", "a", true},           {"?", "ab", false},          {"a?c", "abc", true},
        {"\\*", "*", true},         {"\\*", "a", false},         {"a\\?", "a?", true},
        {"a\\?", "ab", false},      {"\\\\", "\\", true},        {"**a**", "xay", true},
        {"", "a", false},           {"*a*b", "aab", true},       {"\\", "\\", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct test_store store;
        open_store(&store, 1);
        const char *key = cases[i].key, *pattern = cases[i].pattern;
        cr_assert_eq(test_put(&store, key, strlen(key), 10, 1), KVB_OK);
        cr_assert_eq(sweep(&store, "t", pattern, strlen(pattern), false, NULL), cases[i].match,
                     "%s %s", pattern, key);
        cr_assert_eq(test_exists(&store, key, strlen(key)),
                     cases[i].match ? KVB_ERR_NOT_FOUND : KVB_OK);
        test_store_close(&store);
    }
}

Test(share, a_pattern_removes_of_its_tenant_alone_in_all_layouts_and_lineages)
{
    struct test_store store;
    open_store(&store, 3);
    for (int t = 0; t < 2; t++) {
        for (int l = 0; l < 2; l++) {
            for (uint64_t g = 1; g < 3; g++) {
                for (uint64_t k = 0; k < 50; k++) {
                    char key[16];
                    strcpy(store.space.tenant, t == 0 ? "t" : "u");
                    strcpy(store.space.layout, l == 0 ? "l" : "m");
                    store.lineage.id.lo = g;
                    (void)snprintf(key, sizeof key, "%s%lu", k % 2 == 0 ? "even" : "odd", k);
                    cr_assert_eq(test_put(&store, key, strlen(key), 64, 1), KVB_OK);
                }
            }
        }
    }
    struct kvb_lineage retired = {{1, 2}};
    kvs_share_retire(store.share, &retired, 1);
    cr_assert_eq(sweep(&store, "t", "even*", 5, false, NULL), 50, "of what is not cleared");
    cr_assert_eq(sweep(&store, "nobody", "*", 1, true, NULL), 0);
    struct kvs_core_tenant_stats stats;
    kvs_share_tenant_stats(store.share, "t", &stats);
    cr_assert_eq(stats.objects, 50);
    kvs_share_tenant_stats(store.share, "u", &stats);
    cr_assert_eq(stats.objects, 100);
    cr_assert_null(kvs_share_validate(store.share));
    test_store_close(&store);
}

Test(share, a_pattern_keeps_what_is_promised_or_pinned_unless_it_is_forced)
{
    struct test_store store;
    struct test_job job;
    uint64_t kept;
    open_store(&store, 2);
    cr_assert_eq(test_put(&store, "held", 4, 64, 1), KVB_OK);
    cr_assert_eq(test_put(&store, "free", 4, 64, 1), KVB_OK);
    test_job_add(test_job_init(&job, &store, KVS_PUT), &store, "pinned", 6, 0, 64);
    job.batch.pin = KVS_PIN_SOFT;
    test_job_run(&job, &store);
    test_job_add(test_job_init(&job, &store, KVS_EXISTS), &store, "held", 4, 0, 1);
    job.batch.hold = (struct kvs_hold){9, 1};
    test_job_run(&job, &store);
    cr_assert_eq(sweep(&store, "t", "*", 1, false, &kept), 1);
    cr_assert_eq(kept, 2);
    cr_assert_eq(test_exists(&store, "free", 4), KVB_ERR_NOT_FOUND);
    cr_assert_eq(sweep(&store, "t", "*", 1, true, &kept), 2);
    cr_assert_eq(kept, 0);
    cr_assert_eq(test_stats(&store).core.used_bytes, 0);
    test_store_close(&store);
}

Test(share, removing_by_pattern_goes_in_bounded_steps_while_the_index_grows)
{
    struct test_store store;
    open_store(&store, 1);
    uint64_t n = 0, steps = 0;
    for (; n < 3000; n++) {
        cr_assert_eq(test_put(&store, &n, sizeof n, 8, 1), KVB_OK);
    }
    struct kvs_sweep all = {.tenant = "t", .pattern = "*", .pattern_len = 1};
    uint64_t before = 0;
    while (kvs_share_sweep(store.share, store.sim.now_ns, &all)) {
        cr_assert_leq(all.removed - before, 2000, "of a few hundred buckets");
        before = all.removed;
        steps++;
        for (uint64_t i = 0; i < 200 && n < 6000; i++, n++) {
            cr_assert_eq(test_put(&store, &n, sizeof n, 8, 1), KVB_OK);
        }
    }
    cr_assert_gt(steps, 5);
    for (uint64_t i = 0; i < 3000; i++) {
        cr_assert_eq(test_exists(&store, &i, sizeof i), KVB_ERR_NOT_FOUND,
                     "was there all the time");
    }
    cr_assert_null(kvs_share_validate(store.share));
    test_store_close(&store);
}

Test(share, a_pattern_that_is_long_to_compare_makes_its_steps_short)
{
    enum { OBJECTS = 300, KEY = KVS_CORE_KEY_MAX };
    static const struct {
        const char *begin, *middle, *end;
        uint32_t middles, steps_min, steps_max;
    } cases[] = {
        {"*", "a", "b*", KEY / 2 - 1, OBJECTS / 2, OBJECTS + 3}, /* an object or two in each */
        {"*", "a*", "b", KEY / 4, 1, 20},                        /* many stars alone are no work */
        {"*", "", "b", 0, 1, 20},
        {"", "?", "", KEY - 1, 1, 20},
    };
    struct test_store store;
    open_store(&store, 1);
    for (uint32_t i = 0; i < OBJECTS; i++) {
        uint8_t key[KEY];
        memset(key, 'a', sizeof key);
        memcpy(key, &(uint32_t){htobe32(i)}, sizeof i);
        cr_assert_eq(test_put(&store, key, sizeof key, 8, 1), KVB_OK);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvs_sweep sweep = {.tenant = "t"};
        uint32_t steps = 1;
        char pattern[KVS_PATTERN_MAX + 1];
        strcpy(pattern, cases[i].begin);
        for (uint32_t n = 0; n < cases[i].middles; n++) {
            strcat(pattern, cases[i].middle);
        }
        strcat(pattern, cases[i].end);
        sweep.pattern_len = (uint32_t)strlen(pattern);
        memcpy(sweep.pattern, pattern, sweep.pattern_len);
        while (kvs_share_sweep(store.share, store.sim.now_ns, &sweep)) {
            steps++;
        }
        cr_assert_eq(sweep.removed, 0);
        cr_expect_geq(steps, cases[i].steps_min, "case %zu: %u", i, steps);
        cr_expect_leq(steps, cases[i].steps_max, "case %zu: %u", i, steps);
    }
    test_store_close(&store);
}

/* ---- events ---- */

/* The store's own share has no events: puts go to one that has, by its index alone. */
/* ---- lists ---- */

/* Every step of a list; how often each key, a number, was met. */
static uint32_t list_all(struct test_store *store, struct kvs_list *list, uint32_t *met, uint64_t n,
                         void (*between)(struct test_store *store))
{
    uint32_t total = 0;
    list->place = (struct kvs_list_place){0};
    do {
        kvs_share_list(store->share, list);
        cr_assert_leq(list->n, list->max);
        for (uint32_t i = 0; i < list->n; i++) {
            uint64_t key;
            cr_assert_eq(list->at[i].key_len, sizeof key);
            memcpy(&key, list->at[i].key, sizeof key);
            cr_assert_lt(key, n);
            met[key]++;
        }
        total += list->n;
        if (between != NULL) {
            between(store);
        }
    } while (list->more);
    return total;
}

Test(share, a_list_has_the_tenant_s_objects_once_by_any_number_of_them)
{
    static struct kvs_list list;
    static uint32_t met[1000];
    struct test_store store;
    open_store(&store, 3);
    for (uint64_t k = 0; k < 600; k++) {
        strcpy(store.space.tenant, k % 3 == 0 ? "u" : "t");
        strcpy(store.space.layout, k % 2 == 0 ? "l" : "m");
        store.lineage.id.lo = k % 4;
        cr_assert_eq(test_put(&store, &k, sizeof k, 64, 1), KVB_OK);
    }
    store.lineage.id.lo = 4;
    struct kvb_lineage retired = store.lineage;
    uint64_t gone = 600;
    cr_assert_eq(test_put(&store, &gone, sizeof gone, 64, 1), KVB_OK);
    kvs_share_retire(store.share, &retired, 1);
    for (list.max = 1; list.max <= KVS_LIST_MAX; list.max += list.max < 5 ? 1 : 83) {
        memset(met, 0, sizeof met);
        strcpy(list.tenant, "t");
        cr_assert_eq(list_all(&store, &list, met, 600, NULL), 400, "by %u", list.max);
        for (uint64_t k = 0; k < 600; k++) {
            cr_assert_eq(met[k], k % 3 != 0, "%lu by %u", k, list.max);
        }
    }
    list.max = 7;
    strcpy(list.layout, "m");
    cr_assert_eq(list_all(&store, &list, met, 600, NULL), 200, "of a layout");
    cr_assert_str_eq(list.at[0].layout, "m");
    list.lineage = store.lineage;
    cr_assert_eq(list_all(&store, &list, met, 600, NULL), 0);
    list.layout[0] = '\0';
    list.lineage.id.lo = 1;
    cr_assert_eq(list_all(&store, &list, met, 600, NULL), 100, "of a lineage");
    cr_assert(kvb_id_equal(list.at[0].lineage.id, list.lineage.id));
    strcpy(list.tenant, "nobody");
    cr_assert_eq(list_all(&store, &list, met, 600, NULL), 0);
    test_store_close(&store);
}

static uint64_t nput;

static void put_some(struct test_store *store)
{
    for (uint64_t i = 0; i < 200 && nput < 6000; i++, nput++) {
        cr_assert_eq(test_put(store, &nput, sizeof nput, 8, 1), KVB_OK);
        uint64_t old = 2 * i;
        if (nput % 2 == 0) { /* and some go that were there */
            struct test_job job;
            test_job_add(test_job_init(&job, store, KVS_REMOVE), store, &old, sizeof old, 0, 1);
            test_job_run(&job, store);
        }
    }
}

Test(share, a_list_misses_nothing_that_is_there_all_the_time_while_the_index_grows)
{
    static struct kvs_list list = {.tenant = "t", .max = 50};
    static uint32_t met[6000];
    struct test_store store;
    open_store(&store, 1);
    for (nput = 0; nput < 3000; nput++) {
        cr_assert_eq(test_put(&store, &nput, sizeof nput, 8, 1), KVB_OK);
    }
    (void)list_all(&store, &list, met, 6000, put_some);
    cr_assert_eq(nput, 6000);
    for (uint64_t k = 0; k < 3000; k++) {
        cr_assert(met[k] > 0 || (k < 400 && k % 2 == 0), "%lu", k);
    }
    test_store_close(&store);
}

Test(share, a_list_goes_in_bounded_steps_and_takes_any_place)
{
    static struct kvs_list list = {.tenant = "t", .max = KVS_LIST_MAX};
    struct test_store store;
    uint32_t steps = 0;
    open_store(&store, 2);
    strcpy(store.space.tenant, "other");
    for (uint64_t k = 0; k < 12000; k++) {
        cr_assert_eq(test_put(&store, &k, sizeof k, 8, 1), KVB_OK);
    }
    strcpy(store.space.tenant, "t");
    cr_assert_eq(test_put(&store, "0123", 4, 8, 1), KVB_OK);
    uint32_t n = 0;
    do {
        kvs_share_list(store.share, &list);
        n += list.n;
        steps++;
    } while (list.more);
    cr_assert_eq(n, 1);
    cr_assert_gt(steps, 3, "also where nothing is found");
    static const struct kvs_list_place places[] = {
        {2, 0, 0}, {UINT32_MAX, 1, 1}, {1, UINT32_MAX, 0}};
    for (int i = 0; i < 3; i++) {
        list.place = places[i];
        kvs_share_list(store.share, &list);
        cr_assert_eq(list.n, 0);
        cr_assert_not(list.more);
    }
    test_store_close(&store);
}

static struct kvs_core_where where_of(struct kvs_share *share, const struct kvs_space *space)
{
    struct kvs_core_where where = {.lineage = {{5, 6}}};
    cr_assert_eq(kvs_names_space(&share->names, space, &where.space, &where.tenant), KVB_OK);
    return where;
}

static kvb_status_t put(struct kvs_share *share, const struct kvs_core_where *where,
                        const char *key, uint64_t len)
{
    struct kvs_shard *shard = &share->shards[0];
    struct kvs_core_key core_key = {{(const uint8_t *)key, strlen(key)}, 1, 2};
    struct kvs_core_put what = {.len = len, .session = KVS_LOCAL_SESSION, .deadline_ns = KVB_NEVER};
    struct kvs_attempt attempt;
    struct kvs_extents extents;
    kvs_extents_init(&extents);
    kvb_mutex_lock(&shard->lock);
    kvb_status_t status =
        kvs_core_reserve(shard->core, 1, where, &core_key, &what, &attempt, &extents);
    if (status == KVB_OK) {
        status = kvs_core_commit(shard->core, 1, attempt, KVS_LOCAL_SESSION, 0);
    }
    kvb_mutex_unlock(&shard->lock);
    kvs_extents_cleanup(&extents);
    return status;
}

static struct kvs_share *share_with_events(uint32_t n)
{
    struct kvs_share *share;
    const struct kvs_share_config config = {.bytes = MIB(1), .shards = 1, .events = n};
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    cr_assert_eq(kvs_share_create(&kvb_random_real, &config, &share), KVB_OK);
    return share;
}

static const struct kvs_space space = {"tenant", "layout"};

Test(share, what_becomes_of_objects_is_told_in_order)
{
    struct kvs_share *share = share_with_events(64);
    struct kvs_core_where where = where_of(share, &space);
    static struct kvs_event events[64];
    uint64_t lost;
    cr_assert_eq(kvs_share_events(share, 0, 0, events, 64, &lost), 0);
    cr_assert_eq(put(share, &where, "big", KIB(700)), KVB_OK);
    cr_assert_eq(put(share, &where, "big", 1), KVB_ERR_EXISTS, "nothing happened");
    cr_assert_eq(put(share, &where, "bigger", KIB(800)), KVB_OK); /* evicts big */
    cr_assert_eq(put(share, &where, "a", 100), KVB_OK);
    struct kvs_core_key key = {{(const uint8_t *)"a", 1}, 1, 2};
    cr_assert_eq(kvs_share_remove(share, 1, &where, &key, false), KVB_OK);
    kvs_share_retire(share, &where.lineage, 1);
    kvs_share_remove_tenant(share, "tenant");
    kvs_share_clear(share);
    static const struct {
        enum kvs_event_kind kind;
        const char *key, *tenant, *layout;
        uint64_t len;
    } want[] = {
        {KVS_EVENT_STORED, "big", "tenant", "layout", KIB(700)},
        {KVS_EVENT_EVICTED, "big", "tenant", "layout", KIB(700)},
        {KVS_EVENT_STORED, "bigger", "tenant", "layout", KIB(800)},
        {KVS_EVENT_STORED, "a", "tenant", "layout", 100},
        {KVS_EVENT_REMOVED, "a", "tenant", "layout", 100},
        {KVS_EVENT_RETIRED, "", "", "", 0},
        {KVS_EVENT_TENANT_REMOVED, "", "tenant", "", 0},
        {KVS_EVENT_CLEARED, "", "", "", 0},
    };
    uint32_t n = kvs_share_events(share, 0, 0, events, 64, &lost);
    cr_assert_eq(n, 8);
    cr_assert_eq(lost, 0);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(events[i].seq, i + 1);
        cr_assert_eq(events[i].kind, want[i].kind, "event %u: %s", i,
                     kvs_event_text(events[i].kind));
        cr_assert_eq(events[i].key_len, strlen(want[i].key));
        cr_assert_eq(memcmp(events[i].key, want[i].key, events[i].key_len), 0);
        cr_assert_str_eq(events[i].space.tenant, want[i].tenant);
        cr_assert_str_eq(events[i].space.layout, want[i].layout);
        cr_assert_eq(events[i].len, want[i].len);
        cr_assert_eq(kvb_lineage_equal(events[i].lineage, where.lineage), i < 6);
        cr_assert_eq(events[i].part, i < 5 ? 2 : 0);
    }
    cr_assert_eq(kvs_share_events(share, 0, 6, events, 1, &lost), 1, "at most as many as asked");
    cr_assert_eq(events[0].seq, 7);
    cr_assert_eq(kvs_share_events(share, 0, 8, events, 64, &lost), 0);
    cr_assert_eq(kvs_share_events(share, 1, 0, events, 64, &lost), 0, "no such shard");
    kvs_share_destroy(share);
}

Test(share, events_wait_for_nobody_and_say_how_many_were_missed)
{
    struct kvs_share *share = share_with_events(4);
    struct kvs_core_where where = where_of(share, &space);
    static struct kvs_event events[8];
    uint64_t lost;
    for (int i = 0; i < 10; i++) {
        char key[8];
        (void)snprintf(key, sizeof key, "k%d", i);
        cr_assert_eq(put(share, &where, key, 10), KVB_OK);
    }
    cr_assert_eq(kvs_share_events(share, 0, 0, events, 8, &lost), 4);
    cr_assert_eq(lost, 6);
    cr_assert_eq(events[0].seq, 7);
    cr_assert_eq(memcmp(events[0].key, "k6", 2), 0);
    cr_assert_eq(events[3].seq, 10);
    cr_assert_eq(kvs_share_events(share, 0, 7, events, 8, &lost), 3);
    cr_assert_eq(lost, 0);
    kvs_share_destroy(share);
}

/* ---- upkeep ---- */

static void on_poked(void *ctx)
{
    ++*(uint32_t *)ctx;
}

Test(share, its_owner_is_poked_once_for_what_it_does_not_know)
{
    struct kvs_share *share = share_with_events(0);
    struct kvs_core_where where = where_of(share, &space);
    uint32_t pokes = 0;
    kvs_share_on_poke(share, on_poked, &pokes);
    cr_assert_eq(kvs_share_upkeep(share, 1), KVB_NEVER);
    cr_assert_eq(put(share, &where, "a", 100), KVB_OK);
    kvs_share_clear(share);
    kvs_share_clear(share);
    cr_assert_eq(pokes, 1);
    cr_assert_eq(kvs_share_upkeep(share, 1), KVB_NEVER, "one step was enough");
    struct kvs_share_stats stats;
    kvs_share_stats(share, &stats);
    cr_assert_eq(stats.core.used_bytes, 0);
    kvs_share_clear(share);
    cr_assert_eq(pokes, 2, "it is told anew");

    /* a lease: the first pokes, later ones do not; the owner comes back by itself */
    struct kvs_lookup *lookup = calloc(1, sizeof *lookup);
    (void)kvs_share_upkeep(share, 1);
    cr_assert_eq(put(share, &where, "a", 100), KVB_OK);
    lookup->entries[0].key = (struct kvs_core_key){{(const uint8_t *)"a", 1}, 1, 2};
    for (uint64_t i = 1; i <= 3; i++) {
        kvs_share_exists(share, 10, &where, lookup, 1, (struct kvs_hold){9, i}, 5 * KVB_NS_PER_S);
        cr_assert_eq(lookup->entries[0].status, KVB_OK);
        cr_assert_eq(pokes, 3);
    }
    cr_assert_eq(kvs_share_upkeep(share, 10), 5 * KVB_NS_PER_S);
    cr_assert_eq(kvs_share_upkeep(share, 20), 5 * KVB_NS_PER_S, "early: nothing happens");
    cr_assert_eq(kvs_share_upkeep(share, 5 * KVB_NS_PER_S), KVB_NEVER);
    kvs_share_stats(share, &stats);
    cr_assert_eq(stats.core.holds, 0);
    kvs_share_exists(share, 6 * KVB_NS_PER_S, &where, lookup, 1, (struct kvs_hold){9, 1},
                     9 * KVB_NS_PER_S);
    cr_assert_eq(pokes, 4, "it looks no more by itself, and is told");
    free(lookup);
    kvs_share_destroy(share);
}

static uint64_t reclaimed(struct kvs_share *share)
{
    struct kvs_share_stats stats;
    kvs_share_stats(share, &stats);
    return stats.core.reclaimed;
}

Test(share, reclaiming_leaves_the_loop_and_the_locks_to_readers_between_its_steps)
{
    enum { OBJECTS = 8000, STEP_MAX = 256 };
    struct test_store store;
    open_store(&store, 1);
    struct kvs_core_where where = where_of(store.share, &space);
    for (int i = 0; i < OBJECTS; i++) {
        char key[8];
        (void)snprintf(key, sizeof key, "%d", i);
        cr_assert_eq(put(store.share, &where, key, 16), KVB_OK);
    }
    kvs_share_clear(store.share);
    for (uint64_t before = 0, now, ms = 0; before < OBJECTS; before = now, ms++) {
        cr_assert_lt(ms, 2 * OBJECTS / STEP_MAX, "it comes back all the same");
        sim_settle(&store.sim);
        for (int i = 0; i < 3; i++) { /* also where its loop is woken all the time */
            kvs_keeper_woken(&store.keeper);
            sim_settle(&store.sim);
        }
        now = reclaimed(store.share);
        cr_assert_leq(now - before, STEP_MAX, "%lu in %lu ms", now, ms);
        sim_advance(&store.sim, 1);
    }
    test_store_close(&store);
}
