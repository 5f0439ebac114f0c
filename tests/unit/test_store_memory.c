/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out of memory at every allocation, one after the other: what was asked fails with NO_MEMORY or is
 * done, exactly once, nothing is left behind (the leak checker sees the rest), and a retry works.
 */
#include "fail_alloc.h"
#include "test_store.h"

#ifdef TEST_STORE_REMOTE
#include "service/service.h"
#endif
#include "base/mutex.h"
#include "store/coordinator.h"

#include <criterion/criterion.h>

static const struct test_store_config config = {.share_bytes = MIB(4), .shards = 2};
static const struct kvs_share_config share_config = {.bytes = MIB(4), .shards = 2};
static const struct kvs_node_config node_config = {0};

#ifdef TEST_STORE_REMOTE
static bool no_more_mappings;

int __real_mprotect(void *at, size_t len, int protection);
int __wrap_mprotect(void *at, size_t len, int protection);
int __wrap_mprotect(void *at, size_t len, int protection)
{
    return no_more_mappings ? -1 : __real_mprotect(at, len, protection);
}
#endif

Test(store_memory, creating_fails_whole_at_every_allocation)
{
    struct sim_sched sim;
    sim_init(&sim, 1);
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    bool more = true;
    for (uint64_t n = 0; more; n++) {
        struct kvt_regions *regions = NULL;
        struct kvt_transport *transport = NULL;
        struct kvs_share *share = NULL;
        struct kvs_node *node = NULL;
        struct kvs_client *client = NULL;
        struct kvs_coordinator *coordinator = NULL;
        fail_alloc_arm(n);
        kvb_status_t status = kvt_regions_create(&sim.sched, &regions);
        if (status == KVB_OK) {
            status = kvt_loopback_create(regions, 4, &transport);
        }
        if (status == KVB_OK) {
            status = kvs_share_create(&sim.random, &share_config, &share);
        }
        if (status == KVB_OK) {
            status = kvs_node_create(&sim.sched, transport, share, &node_config, &node);
        }
        if (status == KVB_OK) {
            status = kvs_client_create(&sim.sched, &client);
        }
        if (status == KVB_OK) {
            status = kvs_client_add_node(client, "a", node, 1);
        }
        if (status == KVB_OK) {
            status = kvs_share_set_quota(share, "t", MIB(1));
        }
        if (status == KVB_OK) {
            status = kvs_embedded_create(&sim.sched, 1, &kvs_share_reclaim, share, &coordinator);
        }
        more = fail_alloc_disarm();
        cr_assert_eq(status, more ? KVB_ERR_NO_MEMORY : KVB_OK, "allocation %lu", n);
        kvs_coordinator_destroy(coordinator);
        kvs_client_destroy(client);
        kvs_node_destroy(node);
        kvs_share_destroy(share);
        kvt_transport_destroy(transport);
        kvt_regions_destroy(regions);
    }
    sim_cleanup(&sim);
}

#ifdef TEST_STORE_REMOTE

Test(store_memory, a_service_and_a_node_behind_it_fail_whole_at_every_allocation)
{
    struct test_store store;
    test_store_open(&store, &config, false);
    bool more = true;
    for (uint64_t n = 0; more; n++) {
        struct kvs_service *service = NULL;
        struct kvs_node *node = NULL;
        const struct kvs_service_config served = {
            .sched = &store.sim.sched, .share = store.share, .name = "other"};
        const struct kvs_remote_config remote = {
            .sched = &store.sim.sched,
            .regions = store.regions,
            .ways = {{&kvs_by_tcp, &(struct kvt_tcp_peer_config){.address = "other"}}}};
        fail_alloc_arm(n);
        kvb_status_t status = kvs_service_create(&served, &service);
        if (status == KVB_OK) {
            status = kvs_remote_create(&remote, &node);
        }
        if (status == KVB_OK) {
            sim_advance(&store.sim, 200); /* it connects, again if it must */
        }
        more = fail_alloc_disarm();
        cr_assert(status == KVB_OK || (more && status == KVB_ERR_NO_MEMORY));
        if (status == KVB_OK) {
            cr_assert(sim_run_until(&store.sim, test_store_up_, node, 5000));
        }
        kvs_remote_destroy(node);
        kvs_service_destroy(service);
        sim_settle(&store.sim);
    }
    cr_assert_null(kvs_share_validate(store.share));
    test_store_close(&store);
}

struct listed {
    struct kvs_remote_tenants ask;
    uint32_t times;
    uint32_t n;
    kvb_status_t status;
};

static void on_tenants(struct kvs_remote_tenants *ask, kvb_status_t status)
{
    struct listed *listed = kvb_container_of(ask, struct listed, ask);
    listed->times++;
    listed->status = status;
    listed->n = ask->n;
}

struct parts {
    struct kvs_remote_list ask;
    struct kvs_list list;
    uint32_t times;
    kvb_status_t status;
};

static void on_part(struct kvs_remote_list *ask, kvb_status_t status)
{
    struct parts *parts = kvb_container_of(ask, struct parts, ask);
    parts->times++;
    parts->status = status;
}

/* What lies there, asked. */
static kvb_status_t ask_what_is_there(struct test_store *store, uint64_t n, bool *failed_p)
{
    static struct parts parts;
    parts = (struct parts){.ask = {.done = on_part, .list = &parts.list}, .list.max = 6};
    strcpy(parts.list.tenant, store->space.tenant);
    fail_alloc_arm(n);
    kvb_status_t status = kvs_remote_list(store->node, sim_in_ms(&store->sim, 1000), &parts.ask);
    sim_advance(&store->sim, 2000);
    *failed_p = fail_alloc_disarm();
    cr_assert_eq(parts.times, status == KVB_OK, "told once, or never taken");
    status = status == KVB_OK ? parts.status : status;
    cr_assert(status != KVB_OK || parts.list.n == 1);
    return status;
}

/* Who is there, asked; and holds given back, of which nobody is told. */
static kvb_status_t ask_who_is_there(struct test_store *store, uint64_t n, bool *failed_p)
{
    struct listed listed = {.ask.done = on_tenants};
    fail_alloc_arm(n);
    kvb_status_t status =
        kvs_remote_tenants(store->node, sim_in_ms(&store->sim, 1000), &listed.ask);
    kvs_client_discard_instance(store->client, 9);
    sim_advance(&store->sim, 2000);
    *failed_p = fail_alloc_disarm();
    cr_assert_eq(listed.times, status == KVB_OK, "told once, or never taken");
    status = status == KVB_OK ? listed.status : status;
    cr_assert(status != KVB_OK || listed.n == 1);
    return status;
}

Test(store_memory, questions_beside_the_batches_end_once_at_every_allocation)
{
    kvb_status_t (*const questions[])(struct test_store *, uint64_t, bool *) = {ask_who_is_there,
                                                                                ask_what_is_there};
    for (int q = 0; q < 2; q++) {
        bool more = true;
        for (uint64_t n = 0; more; n++) {
            struct test_store store;
            test_store_open(&store, &config, false);
            cr_assert_eq(test_put(&store, "k", 1, 100, 1), KVB_OK);
            kvb_status_t status = questions[q](&store, n, &more);
            cr_assert(status == KVB_OK ||
                          (more && (status == KVB_ERR_NO_MEMORY || status == KVB_ERR_UNAVAILABLE)),
                      "%d, allocation %lu: %s", q, n, kvb_status_label(status));
            bool failed;
            cr_assert_eq(questions[q](&store, UINT64_MAX - 1, &failed), KVB_OK, "a retry works");
            cr_assert_eq(test_get(&store, "k", 1, 100, 1), KVB_OK);
            cr_assert_null(kvs_share_validate(store.share));
            test_store_close(&store);
        }
    }
}

/* A get whose bytes went wrong on the way, and the scrub that it leads to. */
Test(store_memory, a_scrub_is_made_or_not_at_every_allocation)
{
    bool more = true;
    for (uint64_t n = 0; more; n++) {
        struct test_store store;
        test_store_open(&store, &config, false);
        cr_assert_eq(test_put(&store, "k", 1, KIB(700), 1), KVB_OK);
        fake_tcp.corrupt = 1;
        struct test_job job;
        test_job_add(test_job_init(&job, &store, KVS_GET), &store, "k", 1, 0, KIB(700));
        fail_alloc_arm(n);
        kvb_status_t status = kvs_client_submit(store.client, &job.batch);
        if (status == KVB_OK) {
            cr_assert(sim_run_until_true(&store.sim, &job.done, 1000));
            status = job.items[0].status;
        }
        sim_advance(&store.sim, 10);
        more = fail_alloc_disarm();
        cr_assert(status == KVB_ERR_CHECKSUM || (more && status == KVB_ERR_NO_MEMORY),
                  "allocation %lu: %s", n, kvb_status_label(status));
        cr_assert_leq(test_stats(&store).scrubs, 1);
        cr_assert(more || test_stats(&store).scrubs == 1);
        cr_assert_eq(test_stats(&store).core.tickets, 0);
        fake_tcp.corrupt = 0;
        cr_assert_eq(test_get(&store, "k", 1, KIB(700), 1), KVB_OK, "the object stays");
        test_store_close(&store);
    }
}

/* Connections are refused while there is no place for a session, and taken when there is. */
Test(store_memory, a_connection_without_a_session_is_none)
{
    struct test_store store;
    test_store_open(&store, &config, false);
    fake_peer_cut(kvb_container_of(kvb_list_first(&fake_tcp.peers), struct fake_peer, link));
    no_more_mappings = true;
    enum { SESSIONS = 1 << 16 };
    static uint64_t sessions[SESSIONS];
    uint32_t n = 0;
    while (n < SESSIONS && kvs_share_session_open(store.share, &sessions[n]) == KVB_OK) {
        n++;
    }
    cr_assert_lt(n, SESSIONS);
    cr_assert_null(kvs_share_validate(store.share), "open in every shard, or in none");
    sim_advance(&store.sim, 1000);
    cr_assert_not(test_store_up_(store.node));
    no_more_mappings = false;
    for (uint32_t i = 0; i < n; i++) {
        kvs_share_session_close(store.share, sessions[i]);
    }
    cr_assert(sim_run_until(&store.sim, test_store_up_, store.node, 5000));
    cr_assert_eq(test_put(&store, "k", 1, 100, 1), KVB_OK);
    test_store_close(&store);
}

#endif

static void on_nothing(struct kvb_timer *timer)
{
    (void)timer;
}

/* The scheduler's first timer takes room for many, and asserts that it gets it. */
static void make_room_for_timers(struct test_store *store)
{
    struct kvb_timer timer;
    kvb_timer_init(&timer, on_nothing);
    kvb_sched_timer_set(&store->sim.sched, &timer, sim_in_ms(&store->sim, 1));
    kvb_sched_timer_clear(&store->sim.sched, &timer);
}

/* True: an allocation failed on the way. */
static bool one_try(struct test_store *store, enum kvs_batch_op op, uint64_t n)
{
    struct test_job job;
    make_room_for_timers(store);
    test_value_fill(store->memory.base, KIB(700), "t", "k", 1, 1);
    test_job_init(&job, store, op);
    test_job_add(&job, store, "k", 1, 0, KIB(700)); /* more extents than fit inline */
    test_job_add(&job, store, "j", 1, 0, 100);
    test_job_add(&job, store, "k", 1, 0, KIB(700));
    job.batch.hold.instance = op == KVS_EXISTS ? 9 : 0;
#ifdef TEST_STORE_REMOTE
    kvb_writer_cleanup(&store->service->answer); /* as of a node that has answered nothing yet */
#endif
    fail_alloc_arm(n);
    kvb_status_t status = kvs_client_submit(store->client, &job.batch);
    if (status == KVB_OK) {
        cr_assert(sim_run_until_true(&store->sim, &job.done, 1000));
    } else {
        cr_assert_eq(status, KVB_ERR_NO_MEMORY);
    }
    bool failed = fail_alloc_disarm();
    sim_settle(&store->sim);
    for (uint32_t i = 0; status == KVB_OK && i < 3; i++) {
        kvb_status_t item = job.items[i].status;
        cr_assert(item == KVB_OK || item == KVB_ERR_NO_MEMORY || item == KVB_ERR_EXISTS ||
                      item == KVB_ERR_NOT_FOUND,
                  "%s", kvb_status_label(item));
        cr_assert(failed || item != KVB_ERR_NO_MEMORY);
    }
    struct kvs_share_stats stats = test_stats(store);
    cr_assert_eq(stats.core.attempts + stats.core.tickets + test_store_calls(store), 0);
    cr_assert_eq(kvt_region_refs(store->region), 0);
    cr_assert_null(kvs_share_validate(store->share));
    return failed;
}

Test(store_memory, every_batch_ends_once_at_every_allocation)
{
    for (int op = KVS_EXISTS; op <= KVS_REMOVE; op++) {
        bool more = true;
        for (uint64_t n = 0; more; n++) {
            struct test_store store;
            test_store_open(&store, &config, false);
            if (op != KVS_PUT) {
                cr_assert_eq(test_put(&store, "k", 1, KIB(700), 1), KVB_OK);
                cr_assert_eq(test_put(&store, "j", 1, 100, 1), KVB_OK);
            }
            more = one_try(&store, (enum kvs_batch_op)op, n);
            cr_assert(!one_try(&store, (enum kvs_batch_op)op, UINT64_MAX - 1), "a retry works");
            kvs_client_discard_instance(store.client, 9);
            kvs_share_clear(store.share);
            sim_advance(&store.sim, 1000);
            cr_assert_eq(test_stats(&store).core.used_bytes, 0);
            test_store_close(&store);
        }
    }
}

/* ---- coordinator ---- */

struct asked {
    struct kvs_coord_request request;
    uint32_t done;
    kvb_status_t status;
};

static void on_answer(struct kvs_coord_request *request, kvb_status_t status)
{
    struct asked *asked = kvb_container_of(request, struct asked, request);
    asked->done++;
    asked->status = status;
}

static struct kvs_member *members[3];
static uint32_t told[3];

static void on_told(void *ctx, struct kvb_lineage lineage, uint64_t retirement)
{
    uintptr_t i = (uintptr_t)ctx;
    (void)lineage;
    told[i]++;
    kvs_member_left(members[i], retirement);
}
static void on_told_tenant(void *ctx, uint64_t retirement)
{
    on_told(ctx, (struct kvb_lineage){0}, retirement);
}
static void on_reachable(void *ctx, bool reachable)
{
    (void)ctx, (void)reachable;
}
static const struct kvs_member_ops member_ops = {
    .told = on_told, .told_tenant = on_told_tenant, .reachable = on_reachable};

/* The first step of an epoch. */
Test(store_memory, a_step_is_taken_whole_or_not_at_every_allocation)
{
    bool more = true;
    for (uint64_t n = 0; more; n++) {
        struct test_store store;
        struct kvs_coordinator *coordinator;
        struct asked reset = {.request.done = on_answer}, step = reset, again = reset;
        test_store_open(&store, &config, false);
        cr_assert_eq(kvs_embedded_create(&store.sim.sched, 1000, &kvs_share_reclaim, store.share,
                                         &coordinator),
                     KVB_OK);
        cr_assert_eq(
            kvs_member_open(coordinator, "m", &store.space, &member_ops, (void *)0, &members[0]),
            KVB_OK);
        kvs_tenant_reset(coordinator, "t", members[0], sim_in_ms(&store.sim, 100), &reset.request);
        sim_settle(&store.sim);
        cr_assert_eq(reset.status, KVB_OK);
        fail_alloc_arm(n);
        kvs_member_step(members[0], reset.request.epoch, 1, &step.request);
        more = fail_alloc_disarm();
        sim_settle(&store.sim);
        cr_assert_eq(step.status, more ? KVB_ERR_NO_MEMORY : KVB_OK);
        kvs_member_step(members[0], reset.request.epoch, 1, &again.request);
        sim_settle(&store.sim);
        cr_assert_eq(again.status, KVB_OK);
        cr_assert(more || kvb_lineage_equal(again.request.lineage, step.request.lineage));
        kvs_member_close(members[0]);
        kvs_coordinator_destroy(coordinator);
        test_store_close(&store);
    }
}

Test(store_memory, a_coordinator_does_all_or_nothing_at_every_allocation)
{
    for (int what = 0; what < 4; what++) {
        bool more = true;
        for (uint64_t n = 0; more; n++) {
            struct test_store store;
            struct kvs_coordinator *coordinator;
            struct asked first = {.request.done = on_answer}, asked = first;
            test_store_open(&store, &config, false);
            cr_assert_eq(test_put(&store, "k", 1, 100, 1), KVB_OK);
            cr_assert_eq(kvs_embedded_create(&store.sim.sched, 1000, &kvs_share_reclaim,
                                             store.share, &coordinator),
                         KVB_OK);
            for (uintptr_t i = 0; i < 3; i++) {
                told[i] = 0;
                cr_assert_eq(kvs_member_open(coordinator, "m", &store.space, &member_ops, (void *)i,
                                             &members[i]),
                             KVB_OK);
            }
            kvs_member_resolve(members[1], "v1", &first.request);
            sim_settle(&store.sim);
            struct kvb_lineage lineages[2] = {first.request.lineage, store.lineage};
            uint64_t deadline_ns = sim_in_ms(&store.sim, 100);
            make_room_for_timers(&store);
            fail_alloc_arm(n);
            if (what == 0) {
                kvs_member_resolve(members[0], "v2", &asked.request);
            } else if (what == 1) {
                kvs_member_retire(members[0], lineages, 2, "v1", deadline_ns, &asked.request);
            } else if (what == 2) {
                kvs_tenant_reset(coordinator, "t", members[0], deadline_ns, &asked.request);
            } else {
                kvs_tenant_reset(coordinator, "t", NULL, deadline_ns, &asked.request);
            }
            more = fail_alloc_disarm();
            sim_advance(&store.sim, 10);
            cr_assert_eq(asked.done, 1);
            cr_assert_eq(asked.status, more ? KVB_ERR_NO_MEMORY : KVB_OK, "%d: allocation %lu",
                         what, n);
            if (more) {
                cr_assert_eq(told[0] + told[1] + told[2], 0, "nobody heard of it");
                cr_assert_eq(test_exists(&store, "k", 1), KVB_OK);
                struct asked check = {.request.done = on_answer};
                kvs_member_check(members[1], "v1", lineages[0], &check.request);
                sim_settle(&store.sim);
                cr_assert(check.request.bound);
            }
            for (int i = 0; i < 3; i++) {
                kvs_member_close(members[i]);
            }
            kvs_coordinator_destroy(coordinator);
            test_store_close(&store);
        }
    }
}
