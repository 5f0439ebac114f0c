/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator on etcd beyond the common contract: several processes, outages of every kind,
 * leases, etcd's own ways. Processes are coordinators in one loop, each behind its own proxy.
 */
#include "etcd_rig.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

struct process {
    struct real_loop *loop;
    struct etcd_rig rig;
    uint32_t nretired;
    struct kvb_lineage retired[512];
    uint32_t nnodes, ngone;
    struct kvs_node_record node;
    char gone[64];
    uint32_t nquotas;
    char tenant[64];
    uint64_t quota;
    uint32_t nreach;
};

static void on_node(void *ctx, const struct kvs_node_record *record)
{
    struct process *process = ctx;
    process->node = *record;
    process->nnodes++;
}
static void on_node_gone(void *ctx, const char *name)
{
    struct process *process = ctx;
    (void)strncpy(process->gone, name, sizeof process->gone - 1);
    process->ngone++;
}
static void on_retired(void *ctx, const struct kvb_lineage *lineages, uint32_t n)
{
    struct process *process = ctx;
    for (uint32_t i = 0; i < n; i++) {
        process->retired[process->nretired++ % 512] = lineages[i];
    }
}
static void on_quota(void *ctx, const char *tenant, uint64_t bytes)
{
    struct process *process = ctx;
    (void)strncpy(process->tenant, tenant, sizeof process->tenant - 1);
    process->quota = bytes;
    process->nquotas++;
}
static const struct kvs_watch_ops watch_ops = {
    .node = on_node, .node_gone = on_node_gone, .retired = on_retired, .quota = on_quota};

#define EVENTUALLY(loop, condition)                                                                \
    do {                                                                                           \
        uint64_t end_ = kvb_deadline_in_ms(&kvb_clock_real, ETCD_RIG_LIMIT_MS);                    \
        while (!(condition)) {                                                                     \
            cr_assert(real_now_ns() < end_, "never: %s", #condition);                              \
            real_step(loop, end_);                                                                 \
        }                                                                                          \
    } while (0)

static bool no_etcd(void)
{
    kvb_log_setup(getenv("KVPLANE_TEST_LOG") ? KVB_LOG_DEBUG : KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    return getenv(ETCD_RIG_ENV) == NULL;
}

/* False: there is no etcd here. */
static bool begin(struct real_loop *loop, char prefix[64])
{
    if (no_etcd()) {
        return false;
    }
    real_init(loop, sim_seed(1));
    (void)etcd_rig_prefix(prefix);
    return true;
}

static void start_on(struct process *process, struct real_loop *loop, const char *url,
                     const char *prefix)
{
    memset(process, 0, sizeof *process);
    process->loop = loop;
    etcd_rig_open(&process->rig, loop, url, prefix, 600000);
    cr_assert_eq(kvs_coordinator_watch(process->rig.coordinator, &watch_ops, process), KVB_OK);
}

static void start(struct process *process, struct real_loop *loop, const char *prefix)
{
    start_on(process, loop, NULL, prefix);
}

static void stop(struct process *process)
{
    etcd_rig_close(&process->rig);
}

static bool retired_here(const struct process *process, struct kvb_lineage lineage)
{
    for (uint32_t i = 0; i < process->nretired && i < 512; i++) {
        if (kvb_lineage_equal(process->retired[i], lineage)) {
            return true;
        }
    }
    return false;
}

/* ---- instances ---- */

struct instance {
    struct process *process;
    struct kvs_member *member;
    bool leaves;
    bool reachable;
    uint32_t ntold, ntenant, nlost;
    struct kvb_lineage told;
    uint64_t retirement;
};

static void on_told(void *ctx, struct kvb_lineage lineage, uint64_t retirement)
{
    struct instance *instance = ctx;
    instance->ntold++;
    instance->told = lineage;
    instance->retirement = retirement;
    if (instance->leaves) {
        kvs_member_left(instance->member, retirement);
    }
}
static void on_told_tenant(void *ctx, uint64_t retirement)
{
    struct instance *instance = ctx;
    instance->ntenant++;
    instance->retirement = retirement;
    if (instance->leaves) {
        kvs_member_left(instance->member, retirement);
    }
}
static void on_reachable(void *ctx, bool reachable)
{
    ((struct instance *)ctx)->reachable = reachable;
}
static void on_lost(void *ctx)
{
    ((struct instance *)ctx)->nlost++;
}
static const struct kvs_member_ops member_ops = {
    .told = on_told, .told_tenant = on_told_tenant, .reachable = on_reachable, .lost = on_lost};

struct ask {
    struct kvs_coord_request request;
    bool done;
    kvb_status_t status;
};

static void on_answer(struct kvs_coord_request *request, kvb_status_t status)
{
    struct ask *ask = kvb_container_of(request, struct ask, request);
    cr_assert(!ask->done, "answered twice");
    ask->done = true;
    ask->status = status;
}

static struct kvs_coord_request *asked(struct ask *ask)
{
    *ask = (struct ask){.request.done = on_answer};
    return &ask->request;
}

static kvb_status_t finish(struct real_loop *loop, struct ask *ask)
{
    EVENTUALLY(loop, ask->done);
    return ask->status;
}

static bool check(struct instance *instance, const char *name, struct kvb_lineage lineage)
{
    struct ask ask;
    kvs_member_check(instance->member, name, lineage, asked(&ask));
    cr_assert_eq(finish(instance->process->loop, &ask), KVB_OK);
    return ask.request.bound;
}

static void join(struct instance *instance, struct process *process, const char *name)
{
    struct kvs_space space = {"t", "l"};
    *instance = (struct instance){.process = process, .leaves = true, .reachable = true};
    cr_assert_eq(kvs_member_open(process->rig.coordinator, name, &space, &member_ops, instance,
                                 &instance->member),
                 KVB_OK);
    (void)check(instance, "nothing", (struct kvb_lineage){{0, 0}}); /* then others know it */
}

static struct kvb_lineage resolve(struct instance *instance, const char *name)
{
    struct ask ask;
    kvs_member_resolve(instance->member, name, asked(&ask));
    kvb_status_t status = finish(instance->process->loop, &ask);
    cr_assert_eq(status, KVB_OK, "%s", kvb_status_label(status));
    cr_assert(!kvb_id_none(ask.request.lineage.id));
    return ask.request.lineage;
}

static kvb_status_t retire(struct instance *instance, struct kvb_lineage lineage, uint64_t ms)
{
    struct ask ask;
    kvs_member_retire(instance->member, &lineage, 1, NULL, kvb_deadline_in_ms(&kvb_clock_real, ms),
                      asked(&ask));
    return finish(instance->process->loop, &ask);
}

/* ---- two processes ---- */

Test(etcd, two_processes_that_race_for_a_name_share_one_lineage)
{
    struct real_loop loop;
    struct process p, q;
    struct instance a, b;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    join(&a, &p, "a");
    join(&b, &q, "b");
    for (int i = 0; i < 30; i++) {
        char name[16];
        struct ask asks[2];
        (void)snprintf(name, sizeof name, "v%d", i);
        kvs_member_resolve(a.member, name, asked(&asks[0]));
        kvs_member_resolve(b.member, name, asked(&asks[1]));
        cr_assert_eq(finish(&loop, &asks[0]), KVB_OK);
        cr_assert_eq(finish(&loop, &asks[1]), KVB_OK);
        cr_assert(kvb_lineage_equal(asks[0].request.lineage, asks[1].request.lineage));
    }
    kvs_member_close(a.member);
    kvs_member_close(b.member);
    stop(&p);
    stop(&q);
    real_cleanup(&loop);
}

Test(etcd, a_member_of_another_process_is_told_and_waited_for)
{
    struct real_loop loop;
    struct process p, q;
    struct instance a, b;
    struct ask ask;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    join(&a, &p, "a");
    join(&b, &q, "b");
    b.leaves = false;
    struct kvb_lineage v1 = resolve(&a, "v1");
    cr_assert(kvb_lineage_equal(v1, resolve(&b, "v1")));
    kvs_member_retire(a.member, &v1, 1, NULL, KVB_NEVER, asked(&ask));
    EVENTUALLY(&loop, b.ntold == 1);
    real_run_for(&loop, 200);
    cr_assert(!ask.done);
    cr_assert(!check(&b, "v1", v1), "unbound already");
    cr_assert(retired_here(&q, v1), "and nodes anywhere know it");
    kvs_member_left(b.member, b.retirement);
    cr_assert_eq(finish(&loop, &ask), KVB_OK);
    /* a process that comes later hears what was retired, for its node; its members do not */
    struct process r;
    struct instance c;
    start(&r, &loop, prefix);
    EVENTUALLY(&loop, retired_here(&r, v1));
    join(&c, &r, "c");
    real_run_for(&loop, 100);
    cr_assert_eq(c.ntold, 0);
    kvs_member_close(a.member);
    kvs_member_close(b.member);
    kvs_member_close(c.member);
    stop(&p);
    stop(&q);
    stop(&r);
    real_cleanup(&loop);
}

Test(etcd, one_that_is_told_in_an_outage_hears_it_after_and_is_waited_for_until_then)
{
    struct real_loop loop;
    struct process p, q;
    struct instance a, b;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    join(&a, &p, "a");
    join(&b, &q, "b");
    struct kvb_lineage v1 = resolve(&a, "v1");
    (void)resolve(&b, "v1");
    proxy_set(&q.rig.proxy, PROXY_CUT);
    cr_assert_eq(retire(&a, v1, 1000), KVB_ERR_TIMEOUT);
    cr_assert_eq(b.ntold, 0);
    proxy_set(&q.rig.proxy, PROXY_PASS);
    EVENTUALLY(&loop, b.ntold == 1);
    cr_assert(kvb_lineage_equal(b.told, v1));
    EVENTUALLY(&loop, b.reachable);
    cr_assert(!check(&b, "v1", v1));
    cr_assert_eq(b.nlost, 0, "its lease had not ended");
    kvs_member_close(a.member);
    kvs_member_close(b.member);
    stop(&p);
    stop(&q);
    real_cleanup(&loop);
}

/* P1: the moment from which nobody waits for a member comes after the moment at which it was told
 * to leave. */
Test(etcd, one_whose_lease_has_ended_has_left_before_anybody_is_answered_success)
{
    struct real_loop loop;
    struct process p, q;
    struct instance a, b;
    struct ask ask;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    join(&a, &p, "a");
    join(&b, &q, "b");
    struct kvb_lineage v1 = resolve(&a, "v1");
    (void)resolve(&b, "v1");
    proxy_set(&q.rig.proxy, PROXY_HANG);
    kvs_member_retire(a.member, &v1, 1, NULL, KVB_NEVER, asked(&ask));
    EVENTUALLY(&loop, b.nlost > 0 || ask.done);
    cr_assert(!ask.done, "success before it had left");
    EVENTUALLY(&loop, ask.done);
    cr_assert_eq(ask.status, KVB_OK);
    cr_assert_eq(b.nlost, 1, "once");
    cr_assert(!b.reachable);
    /* back: it hears it all the same, and joins anew */
    proxy_set(&q.rig.proxy, PROXY_PASS);
    EVENTUALLY(&loop, b.reachable);
    EVENTUALLY(&loop, b.ntold == 1);
    cr_assert(!kvb_lineage_equal(v1, resolve(&b, "v1")));
    cr_assert_eq(retire(&a, v1, 30000), KVB_OK, "and takes part again");
    cr_assert_eq(b.ntold, 2);
    kvs_member_close(a.member);
    kvs_member_close(b.member);
    stop(&p);
    stop(&q);
    real_cleanup(&loop);
}

Test(etcd, a_lease_that_is_taken_away_makes_its_members_leave_at_once)
{
    if (no_etcd()) {
        return;
    }
    struct real_loop loop;
    struct process p;
    struct instance a;
    char prefix[64], leases[4096];
    struct etcd_cluster cluster = {.n = 1};
    real_init(&loop, sim_seed(1));
    (void)snprintf(cluster.members[0].url, sizeof cluster.members[0].url, "%s",
                   getenv(ETCD_RIG_ENV));
    start(&p, &loop, etcd_rig_prefix(prefix));
    join(&a, &p, "a");
    struct kvb_lineage v1 = resolve(&a, "v1");
    char words[256];
    (void)snprintf(words, sizeof words, "get --prefix %sv1/member/ -w fields", prefix);
    cr_assert_eq(etcd_ctl(&cluster, words, leases, sizeof leases), 0);
    const char *lease = strstr(leases, "\"Lease\" : ");
    cr_assert_not_null(lease);
    (void)snprintf(words, sizeof words, "lease revoke %llx", strtoull(lease + 10, NULL, 10));
    cr_assert_eq(etcd_ctl(&cluster, words, leases, sizeof leases), 0);
    EVENTUALLY(&loop, a.nlost == 1);
    EVENTUALLY(&loop, a.reachable);
    cr_assert(kvb_lineage_equal(v1, resolve(&a, "v1")), "still bound: it joins again");
    kvs_member_close(a.member);
    stop(&p);
    real_cleanup(&loop);
}

/* A member that dies with its process (no goodbye) is waited for as long as its lease lives. */
Test(etcd, a_process_that_dies_is_waited_for_until_its_lease_ends)
{
    struct real_loop loop;
    struct process p, q;
    struct instance a, b;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    join(&a, &p, "a");
    join(&b, &q, "b");
    struct kvb_lineage v1 = resolve(&a, "v1");
    (void)resolve(&b, "v1");
    proxy_set(&q.rig.proxy, PROXY_CUT);
    kvs_member_close(b.member);
    stop(&q);
    cr_assert_eq(retire(&a, v1, 1000), KVB_ERR_TIMEOUT);
    cr_assert_eq(retire(&a, v1, 60000), KVB_OK);
    kvs_member_close(a.member);
    stop(&p);
    real_cleanup(&loop);
}

/* ---- outcomes that nobody knows ---- */

static bool cut_txn(void *ctx, const char *data, uint32_t len)
{
    uint32_t *left = ctx;
    return memmem(data, len, "POST /v3/kv/txn", 15) != NULL && *left > 0 && (*left)-- > 0;
}

Test(etcd, what_was_sent_and_not_answered_happens_once)
{
    struct real_loop loop;
    struct process p, q;
    struct instance a, b;
    uint32_t cuts = 0;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    p.rig.proxy.cut_after = cut_txn;
    p.rig.proxy.ctx = &cuts;
    join(&a, &p, "a");
    join(&b, &q, "b");
    for (int i = 0; i < 10; i++) {
        cuts = 1;
        struct kvb_lineage v1 = resolve(&a, "v1");
        cr_assert_eq(cuts, 0, "it was cut");
        cr_assert(kvb_lineage_equal(v1, resolve(&b, "v1")), "one lineage for the name");
        uint32_t told = b.ntold;
        cuts = 1;
        cr_assert_eq(retire(&a, v1, 30000), KVB_OK);
        cr_assert_eq(cuts, 0, "it was cut");
        cr_assert_eq(b.ntold, told + 1, "told once");
        cr_assert(!check(&b, "v1", v1));
    }
    /* a reset of the tenant, too: one epoch */
    struct ask ask;
    cuts = 1;
    kvs_tenant_reset(p.rig.coordinator, "t", a.member, KVB_NEVER, asked(&ask));
    cr_assert_eq(finish(&loop, &ask), KVB_OK);
    cr_assert_eq(b.ntenant, 1);
    cr_assert_eq(b.retirement, ask.request.epoch);
    uint64_t epoch = ask.request.epoch;
    cuts = 1;
    kvs_member_step(a.member, epoch, 1, asked(&ask));
    cr_assert_eq(finish(&loop, &ask), KVB_OK);
    struct kvb_lineage step = ask.request.lineage;
    kvs_member_step(b.member, epoch, 1, asked(&ask));
    cr_assert_eq(finish(&loop, &ask), KVB_OK);
    cr_assert(kvb_lineage_equal(step, ask.request.lineage));
    kvs_member_close(a.member);
    kvs_member_close(b.member);
    stop(&p);
    stop(&q);
    real_cleanup(&loop);
}

static bool cut_and_stay_away(void *ctx, const char *data, uint32_t len)
{
    struct tcp_proxy *proxy = ctx;
    bool txn = memmem(data, len, "POST /v3/kv/txn", 15) != NULL;
    proxy->mode = txn ? PROXY_CUT : proxy->mode;
    return txn;
}

/* The request is sent again when what it bound was retired meanwhile: that must stay retired. */
Test(etcd, a_lineage_that_was_retired_is_never_bound_again)
{
    struct real_loop loop;
    struct process p, q;
    struct instance a, b;
    struct ask ask;
    char prefix[64];
    bool seen = false;
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    join(&a, &p, "a");
    join(&b, &q, "b");
    for (int i = 0; i < 5 && !seen; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "v%d", i);
        EVENTUALLY(&loop, a.reachable);
        p.rig.proxy.ctx = &p.rig.proxy;
        p.rig.proxy.cut_after = cut_and_stay_away;
        kvs_member_resolve(a.member, name, asked(&ask));
        EVENTUALLY(&loop, p.rig.proxy.mode == PROXY_CUT);
        p.rig.proxy.cut_after = NULL;
        struct kvb_lineage lineage = resolve(&b, name); /* as the other's request bound it */
        cr_assert_eq(retire(&b, lineage, 300), KVB_ERR_TIMEOUT, "the other has not heard of it");
        proxy_set(&p.rig.proxy, PROXY_PASS);
        if (finish(&loop, &ask) == KVB_OK) { /* else it was too slow */
            cr_assert(!kvb_lineage_equal(ask.request.lineage, lineage));
            seen = true;
        }
        cr_assert(!kvb_lineage_equal(resolve(&b, name), lineage));
    }
    cr_assert(seen);
    kvs_member_close(a.member);
    kvs_member_close(b.member);
    stop(&p);
    stop(&q);
    real_cleanup(&loop);
}

static bool count_txns(void *ctx, const char *data, uint32_t len)
{
    uint32_t *n = ctx;
    *n += memmem(data, len, "POST /v3/kv/txn", 15) != NULL;
    return false;
}

Test(etcd, alone_in_its_space_a_reset_is_one_transaction)
{
    if (no_etcd()) {
        return;
    }
    struct real_loop loop;
    struct process p;
    struct instance a;
    struct ask ask;
    char prefix[64];
    uint32_t least = UINT32_MAX;
    real_init(&loop, sim_seed(1));
    start(&p, &loop, etcd_rig_prefix(prefix));
    join(&a, &p, "a");
    for (int i = 0; i < 5; i++) {
        uint32_t n = 0;
        struct kvb_lineage v1 = resolve(&a, "v1");
        p.rig.proxy.cut_after = count_txns;
        p.rig.proxy.ctx = &n;
        kvs_member_leave(a.member, "v1"); /* as the connector does: leaves, then retires */
        kvs_member_retire(a.member, &v1, 1, "v1", KVB_NEVER, asked(&ask));
        cr_assert_eq(finish(&loop, &ask), KVB_OK);
        p.rig.proxy.cut_after = NULL;
        least = n < least ? n : least;
    }
    cr_assert_eq(least, 1, "beside those of the session itself, now and then");
    kvs_member_close(a.member);
    stop(&p);
    real_cleanup(&loop);
}

/* The batch that was sent before is done as it was then; what comes after it goes with another. */
Test(etcd, what_is_abandoned_in_an_outage_is_retired_after_it)
{
    struct real_loop loop;
    struct process p, q;
    struct instance a;
    uint32_t cuts = 0;
    char prefix[64];
    const struct kvb_lineage before = {{7, 1}}, in_it = {{7, 2}};
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    p.rig.proxy.cut_after = cut_txn;
    p.rig.proxy.ctx = &cuts;
    join(&a, &p, "a");
    cuts = UINT32_MAX; /* whatever is sent is done, and never answered */
    kvs_member_abandon(a.member, before);
    EVENTUALLY(&loop, retired_here(&q, before) && !a.reachable);
    kvs_member_abandon(a.member, in_it);
    cuts = 0;
    EVENTUALLY(&loop, retired_here(&q, in_it));
    kvs_member_close(a.member);
    stop(&p);
    stop(&q);
    real_cleanup(&loop);
}

Test(etcd, every_operation_ends_within_its_bound_and_says_unavailable)
{
    if (no_etcd()) {
        return;
    }
    static const enum proxy_mode modes[] = {PROXY_CUT, PROXY_HANG};
    for (int m = 0; m < 2; m++) {
        struct real_loop loop;
        struct process p;
        struct instance a;
        struct ask asks[6];
        char prefix[64];
        real_init(&loop, sim_seed(1));
        start(&p, &loop, etcd_rig_prefix(prefix));
        join(&a, &p, "a");
        struct kvb_lineage v1 = resolve(&a, "v1");
        proxy_set(&p.rig.proxy, modes[m]);
        kvs_member_resolve(a.member, "v2", asked(&asks[0]));
        kvs_member_check(a.member, "v1", v1, asked(&asks[1]));
        kvs_member_retire(a.member, &v1, 1, NULL, KVB_NEVER, asked(&asks[2]));
        kvs_tenant_reset(p.rig.coordinator, "t", a.member, KVB_NEVER, asked(&asks[3]));
        kvs_coordinator_set_quota(p.rig.coordinator, "t", 5, asked(&asks[4]));
        kvs_coordinator_set_quota(p.rig.coordinator, "t", 6, asked(&asks[5]));
        for (int i = 0; i < 6; i++) {
            cr_assert_eq(finish(&loop, &asks[i]), KVB_ERR_UNAVAILABLE, "%d", i);
        }
        EVENTUALLY(&loop, !a.reachable);
        proxy_set(&p.rig.proxy, PROXY_PASS);
        EVENTUALLY(&loop, a.reachable);
        (void)resolve(&a, "v2");
        kvs_member_close(a.member);
        stop(&p);
        real_cleanup(&loop);
    }
}

/* What was left behind by an outage in the middle of everything does no harm when it arrives. */
Test(etcd, a_flapping_connection_ends_in_order)
{
    struct real_loop loop;
    struct process p, q;
    struct instance a, b;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    join(&a, &p, "a");
    join(&b, &q, "b");
    for (int i = 0; i < 20; i++) {
        struct ask asks[3];
        struct kvb_lineage any = {{1, (uint64_t)i + 1}};
        kvs_member_resolve(a.member, "v1", asked(&asks[0]));
        kvs_member_retire(a.member, &any, 1, "v1", kvb_deadline_in_ms(&kvb_clock_real, 2000),
                          asked(&asks[1]));
        kvs_member_resolve(b.member, "v1", asked(&asks[2]));
        real_run_for(&loop, sim_below(&loop.sim, 12));
        proxy_set(&p.rig.proxy, PROXY_CUT);
        proxy_set(&p.rig.proxy, PROXY_PASS);
        for (int k = 0; k < 3; k++) {
            (void)finish(&loop, &asks[k]);
        }
    }
    EVENTUALLY(&loop, a.reachable && b.reachable);
    struct kvb_lineage v1 = resolve(&a, "v1");
    cr_assert(kvb_lineage_equal(v1, resolve(&b, "v1")));
    cr_assert_eq(retire(&a, v1, 30000), KVB_OK);
    kvs_member_close(a.member);
    kvs_member_close(b.member);
    stop(&p);
    stop(&q);
    real_cleanup(&loop);
}

/* ---- the watch ---- */

static struct etcd_cluster ours(void)
{
    struct etcd_cluster cluster = {.n = 1};
    (void)snprintf(cluster.members[0].url, sizeof cluster.members[0].url, "%s",
                   getenv(ETCD_RIG_ENV));
    return cluster;
}

Test(etcd, what_was_compacted_while_away_is_read_anew)
{
    struct real_loop loop;
    struct process p, q;
    struct instance a, b;
    char prefix[64], out[4096];
    struct etcd_cluster cluster = ours();
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    join(&a, &p, "a");
    join(&b, &q, "b");
    struct kvb_lineage v1 = resolve(&b, "v1");
    struct kvs_node_record node = {
        .name = "n1", .address = "h:1", .rdma = "10.0.0.1:2", .incarnation = 1};
    cr_assert_eq(kvs_coordinator_announce(p.rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&loop, q.nnodes == 1);
    cr_expect_str_eq(q.node.rdma, "10.0.0.1:2");
    etcd_rig_set_reachable(&q.rig, false);
    cr_assert_eq(retire(&a, v1, 100), KVB_ERR_TIMEOUT);
    struct ask ask;
    kvs_coordinator_withdraw(p.rig.coordinator, asked(&ask));
    cr_assert_eq(finish(&loop, &ask), KVB_OK);
    (void)strcpy(node.name, "n2");
    cr_assert_eq(kvs_coordinator_announce(p.rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&loop, p.nnodes == 2);
    cr_assert_eq(etcd_ctl(&cluster, "get / -w fields", out, sizeof out), 0);
    const char *rev = strstr(out, "\"Revision\" : ");
    cr_assert_not_null(rev);
    char words[64];
    (void)snprintf(words, sizeof words, "compaction %llu", strtoull(rev + 13, NULL, 10));
    cr_assert_eq(etcd_ctl(&cluster, words, out, sizeof out), 0);
    etcd_rig_set_reachable(&q.rig, true);
    EVENTUALLY(&loop, b.ntold == 1);
    EVENTUALLY(&loop, retired_here(&q, v1));
    EVENTUALLY(&loop, q.nnodes == 2 && strcmp(q.node.name, "n2") == 0);
    EVENTUALLY(&loop, q.ngone == 1 && strcmp(q.gone, "n1") == 0);
    cr_assert(!check(&b, "v1", v1));
    kvs_member_close(a.member);
    kvs_member_close(b.member);
    stop(&p);
    stop(&q);
    real_cleanup(&loop);
}

static bool cut_watch(void *ctx, const char *data, uint32_t len)
{
    (void)ctx;
    return memmem(data, len, "POST /v3/watch", 14) != NULL;
}

/* The first endpoint's watch hangs while everything else there is well: only what should come back
 * through it tells. */
Test(etcd, a_silent_watch_is_noticed_and_replaced)
{
    struct real_loop loop;
    struct process p, q;
    struct instance a, b;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    join(&a, &p, "a");
    join(&b, &q, "b");
    struct kvb_lineage v1 = resolve(&a, "v1");
    (void)resolve(&b, "v1");
    /* connections that are open now hang, new ones pass: the watch alone stays on an old one */
    for (uint32_t i = 0; i < PROXY_PAIRS_MAX; i++) {
        struct proxy_pair *pair = &q.rig.proxy.pairs[i];
        if (pair->used) {
            cr_assert_eq(kvb_io_watch(&loop.io, &pair->client.watch, 0), KVB_OK);
            cr_assert_eq(kvb_io_watch(&loop.io, &pair->server.watch, 0), KVB_OK);
        }
    }
    cr_assert_eq(retire(&a, v1, 40000), KVB_OK, "it hears of it through another watch");
    cr_assert_eq(b.ntold, 1);
    cr_assert_eq(b.nlost, 0);
    q.rig.proxy.cut_after = cut_watch; /* and when none can be had it is away */
    proxy_set(&q.rig.proxy, PROXY_CUT);
    q.rig.proxy.mode = PROXY_PASS;
    EVENTUALLY(&loop, !b.reachable);
    q.rig.proxy.cut_after = NULL;
    EVENTUALLY(&loop, b.reachable);
    kvs_member_close(a.member);
    kvs_member_close(b.member);
    stop(&p);
    stop(&q);
    real_cleanup(&loop);
}

/* ---- nodes, quotas, instances ---- */

Test(etcd, nodes_come_change_and_go)
{
    struct real_loop loop;
    struct process p, q;
    struct ask ask;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    struct kvs_node_record node = {
        .name = "n1", .address = "[::1]:7", .capacity_bytes = 1ull << 63, .incarnation = 77};
    cr_assert_eq(kvs_coordinator_announce(p.rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&loop, q.nnodes == 1);
    cr_assert_str_eq(q.node.name, "n1");
    cr_assert_str_eq(q.node.address, "[::1]:7");
    cr_assert_eq(q.node.capacity_bytes, 1ull << 63);
    cr_assert_eq(q.node.incarnation, 77);
    cr_assert(!q.node.draining);
    node.draining = true;
    cr_assert_eq(kvs_coordinator_announce(p.rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&loop, q.nnodes == 2 && q.node.draining);
    /* who watches later is told what there is */
    struct process late;
    start(&late, &loop, prefix);
    EVENTUALLY(&loop, late.nnodes == 1 && late.node.draining);
    /* an outage: nobody is gone, and it is announced again by itself */
    etcd_rig_set_reachable(&p.rig, false);
    etcd_rig_set_reachable(&q.rig, false);
    EVENTUALLY(&loop, late.ngone == 1); /* its lease ends */
    cr_assert_eq(q.ngone, 0);
    etcd_rig_set_reachable(&q.rig, true);
    real_run_for(&loop, 3000);
    cr_assert_eq(q.ngone, 0, "who was away, too, does not know yet whether it comes back");
    etcd_rig_set_reachable(&p.rig, true);
    EVENTUALLY(&loop, late.nnodes == 2 && q.nnodes == 3);
    cr_assert_eq(late.node.incarnation, 77);
    cr_assert_eq(q.ngone, 0);
    kvs_coordinator_withdraw(p.rig.coordinator, asked(&ask));
    cr_assert_eq(finish(&loop, &ask), KVB_OK);
    EVENTUALLY(&loop, q.ngone == 1);
    cr_assert_str_eq(q.gone, "n1");
    stop(&p);
    stop(&q);
    stop(&late);
    real_cleanup(&loop);
}

/* What etcd holds of the one node there is. */
static void expect_newcomer_finds(struct real_loop *loop, const char *prefix, uint64_t incarnation)
{
    struct process late;
    start(&late, loop, prefix);
    EVENTUALLY(loop, late.nnodes == 1);
    cr_assert_eq(late.node.incarnation, incarnation);
    stop(&late);
}

Test(etcd, a_node_that_starts_again_replaces_its_record_and_one_that_was_replaced_stays_away)
{
    struct real_loop loop;
    struct process old, fresh, watcher;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&watcher, &loop, prefix);
    start(&old, &loop, prefix);
    struct kvs_node_record node = {.name = "n1", .address = "h:1", .incarnation = 1};
    cr_assert_eq(kvs_coordinator_announce(old.rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&loop, watcher.nnodes == 1);
    etcd_rig_set_reachable(&old.rig, false); /* as if killed */
    start(&fresh, &loop, prefix);
    node.incarnation = 2;
    cr_assert_eq(kvs_coordinator_announce(fresh.rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&loop, watcher.nnodes == 2 && watcher.node.incarnation == 2);
    real_run_for(&loop, ETCD_RIG_LEASE_MS + 3000); /* the old lease ends, and takes nothing along */
    etcd_rig_set_reachable(&old.rig, true);
    real_run_for(&loop, 500);
    cr_assert_eq(watcher.ngone, 0);
    cr_assert_eq(watcher.node.incarnation, 2);
    stop(&watcher);
    stop(&old);
    stop(&fresh);
    real_cleanup(&loop);
}

Test(etcd, a_node_that_was_replaced_while_it_lived_takes_nothing_along_and_may_come_back)
{
    struct real_loop loop;
    struct process old, fresh, watcher;
    struct ask ask;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&watcher, &loop, prefix);
    start(&old, &loop, prefix);
    start(&fresh, &loop, prefix);
    struct kvs_node_record node = {.name = "n1", .address = "h:1", .incarnation = 1};
    cr_assert_eq(kvs_coordinator_announce(old.rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&loop, watcher.nnodes == 1);
    node.incarnation = 2;
    cr_assert_eq(kvs_coordinator_announce(fresh.rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&loop, watcher.nnodes == 2 && old.node.incarnation == 2);
    /* the one that still has its lease: back when the name is free */
    kvs_coordinator_withdraw(fresh.rig.coordinator, asked(&ask));
    cr_assert_eq(finish(&loop, &ask), KVB_OK);
    EVENTUALLY(&loop, watcher.nnodes == 3 && watcher.node.incarnation == 1);
    EVENTUALLY(&loop, fresh.node.incarnation == 1);
    node.incarnation = 3;
    cr_assert_eq(kvs_coordinator_announce(watcher.rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&loop, old.node.incarnation == 3);
    /* and its leaving leaves the other's record alone */
    node.incarnation = 1;
    node.draining = true;
    cr_assert_eq(kvs_coordinator_announce(old.rig.coordinator, &node), KVB_OK);
    kvs_coordinator_withdraw(old.rig.coordinator, asked(&ask));
    cr_assert_eq(finish(&loop, &ask), KVB_ERR_EXISTS);
    expect_newcomer_finds(&loop, prefix, 3);
    stop(&watcher);
    stop(&old);
    stop(&fresh);
    real_cleanup(&loop);
}

/* It does not know that it was there, and others may have its name all the same. */
static void replaced_unheard(bool away)
{
    struct real_loop loop;
    struct process old, fresh, watcher;
    struct ask ask;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&watcher, &loop, prefix);
    start(&old, &loop, prefix);
    start(&fresh, &loop, prefix);
    struct kvs_node_record node = {.name = "n1", .address = "h:1", .incarnation = 1};
    old.rig.proxy.cut_after = cut_and_stay_away;
    old.rig.proxy.ctx = &old.rig.proxy;
    cr_assert_eq(kvs_coordinator_announce(old.rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&loop, old.rig.proxy.mode == PROXY_CUT && watcher.nnodes == 1);
    old.rig.proxy.cut_after = NULL;
    if (away) { /* for long: it has given up asking */
        etcd_rig_await(&old.rig, false);
    }
    node.incarnation = 2;
    cr_assert_eq(kvs_coordinator_announce(fresh.rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&loop, watcher.nnodes == 2 && watcher.node.incarnation == 2);
    etcd_rig_set_reachable(&old.rig, true);
    do { /* behind what it announces */
        kvs_coordinator_set_quota(old.rig.coordinator, "t", 1, asked(&ask));
    } while (finish(&loop, &ask) == KVB_ERR_UNAVAILABLE);
    kvs_coordinator_withdraw(old.rig.coordinator, asked(&ask));
    cr_assert_eq(finish(&loop, &ask), KVB_ERR_EXISTS);
    expect_newcomer_finds(&loop, prefix, 2);
    cr_assert_eq(watcher.nnodes, 2);
    cr_assert_eq(watcher.ngone, 0);
    stop(&watcher);
    stop(&old);
    stop(&fresh);
    real_cleanup(&loop);
}

Test(etcd, a_node_that_was_replaced_before_it_heard_that_it_was_announced_stays_away)
{
    replaced_unheard(true);
    replaced_unheard(false);
}

/* What it replaces is still there, as it was when it began. */
Test(etcd, a_node_whose_announcement_was_lost_on_its_way_replaces_its_record_all_the_same)
{
    struct real_loop loop;
    struct process old, fresh, watcher;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&watcher, &loop, prefix);
    start(&old, &loop, prefix);
    struct kvs_node_record node = {.name = "n1", .address = "h:1", .incarnation = 1};
    cr_assert_eq(kvs_coordinator_announce(old.rig.coordinator, &node), KVB_OK);
    start(&fresh, &loop, prefix);
    EVENTUALLY(&loop, fresh.nnodes == 1);
    proxy_set(&fresh.rig.proxy, PROXY_HANG);
    node.incarnation = 2;
    cr_assert_eq(kvs_coordinator_announce(fresh.rig.coordinator, &node), KVB_OK);
    etcd_rig_await(&fresh.rig, false);
    cr_assert_eq(watcher.node.incarnation, 1);
    etcd_rig_set_reachable(&fresh.rig, true);
    EVENTUALLY(&loop, watcher.node.incarnation == 2);
    stop(&watcher);
    stop(&old);
    stop(&fresh);
    real_cleanup(&loop);
}

Test(etcd, quotas_are_told_and_taken_back)
{
    struct real_loop loop;
    struct process p, q, late;
    struct ask ask;
    char prefix[64];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    kvs_coordinator_set_quota(p.rig.coordinator, "a.b", 1ull << 40, asked(&ask));
    cr_assert_eq(finish(&loop, &ask), KVB_OK);
    EVENTUALLY(&loop, q.nquotas == 1);
    cr_assert_str_eq(q.tenant, "a.b");
    cr_assert_eq(q.quota, 1ull << 40);
    start(&late, &loop, prefix);
    EVENTUALLY(&loop, late.nquotas == 1 && late.quota == 1ull << 40);
    kvs_coordinator_set_quota(p.rig.coordinator, "a.b", UINT64_MAX, asked(&ask));
    cr_assert_eq(finish(&loop, &ask), KVB_OK);
    EVENTUALLY(&loop, q.nquotas == 2 && q.quota == UINT64_MAX);
    stop(&p);
    stop(&q);
    stop(&late);
    real_cleanup(&loop);
}

struct seen {
    uint32_t n;
    uint64_t token;
    bool own;
    char instance[64], text[1200], tenant[64], layout[256];
};
static void see(void *arg, const struct kvs_instance_record *record)
{
    struct seen *seen = arg;
    seen->n++;
    seen->token = record->token;
    seen->own = record->own;
    (void)snprintf(seen->instance, sizeof seen->instance, "%s", record->instance);
    (void)snprintf(seen->text, sizeof seen->text, "%s", record->text);
    (void)snprintf(seen->tenant, sizeof seen->tenant, "%s", record->space->tenant);
    (void)snprintf(seen->layout, sizeof seen->layout, "%s", record->space->layout);
}
static struct seen seen_by(struct process *process)
{
    struct seen seen = {0};
    kvs_coordinator_each_instance(process->rig.coordinator, see, &seen);
    return seen;
}

Test(etcd, instances_show_their_state_and_a_token_that_grows)
{
    struct real_loop loop;
    struct process p, q;
    struct instance a;
    char prefix[64], long_text[1100];
    if (!begin(&loop, prefix)) {
        return;
    }
    start(&p, &loop, prefix);
    start(&q, &loop, prefix);
    join(&a, &p, "i-1");
    EVENTUALLY(&loop, seen_by(&q).n == 1);
    struct seen first = seen_by(&q);
    cr_assert_str_eq(first.instance, "i-1");
    cr_assert_str_eq(first.tenant, "t");
    cr_assert_str_eq(first.layout, "l");
    cr_assert_gt(first.token, 0);
    cr_assert_not(first.own, "another process told it");
    cr_assert(seen_by(&p).own);
    for (int i = 0; i < 20; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "{\"version\":\"%d \\\" \"}", i);
        cr_assert_eq(kvs_member_publish(a.member, text), KVB_OK);
    }
    EVENTUALLY(&loop, strcmp(seen_by(&q).text, "{\"version\":\"19 \\\" \"}") == 0);
    cr_assert_eq(seen_by(&q).token, first.token, "the same life");
    memset(long_text, ' ', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    cr_assert_eq(kvs_member_publish(a.member, long_text), KVB_ERR_TOO_LARGE);
    /* an outage: the last word is there after it */
    etcd_rig_set_reachable(&p.rig, false);
    cr_assert_eq(kvs_member_publish(a.member, "{\"x\":1}"), KVB_OK);
    etcd_rig_set_reachable(&p.rig, true);
    EVENTUALLY(&loop, strcmp(seen_by(&q).text, "{\"x\":1}") == 0);
    kvs_member_close(a.member);
    EVENTUALLY(&loop, seen_by(&q).n == 0);
    join(&a, &p, "i-1");
    EVENTUALLY(&loop, seen_by(&q).n == 1);
    cr_assert_gt(seen_by(&q).token, first.token, "a later life");
    kvs_member_close(a.member);
    stop(&p);
    stop(&q);
    real_cleanup(&loop);
}

/* ---- names of every kind ---- */

struct name_seen {
    uint32_t n;
    char name[256];
    struct kvs_space space;
    uint32_t members;
};
static void see_name(void *arg, const struct kvs_space *space, const char *name,
                     struct kvb_lineage lineage, uint32_t members)
{
    struct name_seen *seen = arg;
    (void)lineage;
    seen->n++;
    seen->space = *space;
    seen->members = members;
    (void)snprintf(seen->name, sizeof seen->name, "%s", name);
}

Test(etcd, names_and_layouts_may_hold_any_byte)
{
    if (no_etcd()) {
        return;
    }
    struct real_loop loop;
    struct process p;
    char prefix[64];
    real_init(&loop, sim_seed(1));
    start(&p, &loop, etcd_rig_prefix(prefix));
    static const char *const names[] = {"a/b", "%2F", "../..", "\x01\xff\x80", "\"\\", " "};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct instance a = {.process = &p, .leaves = true};
        struct kvs_space space = {.tenant = "t"};
        (void)snprintf(space.layout, sizeof space.layout, "llama/70b:%s", names[i]);
        cr_assert_eq(kvs_member_open(p.rig.coordinator, "a", &space, &member_ops, &a, &a.member),
                     KVB_OK);
        struct kvb_lineage lineage = resolve(&a, names[i]);
        cr_assert(check(&a, names[i], lineage));
        struct name_seen seen;
        EVENTUALLY(&loop, (seen = (struct name_seen){0},
                           kvs_coordinator_each_name(p.rig.coordinator, see_name, &seen),
                           seen.n == 1 && seen.members == 1));
        cr_assert_str_eq(seen.name, names[i]);
        cr_assert_str_eq(seen.space.layout, space.layout);
        cr_assert_eq(retire(&a, lineage, 10000), KVB_OK);
        cr_assert(!check(&a, names[i], lineage));
        kvs_member_close(a.member);
        EVENTUALLY(&loop,
                   (seen = (struct name_seen){0},
                    kvs_coordinator_each_name(p.rig.coordinator, see_name, &seen), seen.n == 0));
    }
    stop(&p);
    real_cleanup(&loop);
}

/* ---- several endpoints, TLS, users ---- */

static kvb_status_t open_cluster(struct process *process, struct real_loop *loop,
                                 const struct etcd_cluster *cluster, const char *user,
                                 const char *password, bool certificates)
{
    const char *endpoints[ETCD_MEMBERS_MAX];
    static char ca[96], cert[96], key[96], prefix[64];
    for (uint32_t i = 0; i < cluster->n; i++) {
        endpoints[i] = cluster->members[i].url;
    }
    (void)snprintf(ca, sizeof ca, "%s/ca.pem", cluster->dir);
    (void)snprintf(cert, sizeof cert, "%s/cert.pem", cluster->dir);
    (void)snprintf(key, sizeof key, "%s/key.pem", cluster->dir);
    const struct kvs_etcd_config config = {
        .sched = &loop->sim.sched,
        .io = &loop->io,
        .endpoints = endpoints,
        .nendpoints = cluster->n,
        .prefix = etcd_rig_prefix(prefix),
        .user = user,
        .password = password,
        .ca_file = certificates ? ca : NULL,
        .cert_file = certificates ? cert : NULL,
        .key_file = certificates ? key : NULL,
        .request_ms = ETCD_RIG_REQUEST_MS,
        .lease_ms = ETCD_RIG_LEASE_MS,
        .grace_ms = 600000,
    };
    memset(process, 0, sizeof *process);
    process->loop = loop;
    process->rig.loop = loop;
    kvb_status_t status = kvs_etcd_create(&config, &process->rig.coordinator);
    if (status == KVB_OK) {
        cr_assert_eq(
            kvs_coordinator_watch(process->rig.coordinator, &etcd_rig_watch_, &process->rig),
            KVB_OK);
        cr_assert_eq(kvs_coordinator_watch(process->rig.coordinator, &watch_ops, process), KVB_OK);
    }
    return status;
}

/* Whichever member is killed or stopped, the others do; and nobody's lease ends over it. */
Test(etcd, a_member_of_etcd_may_die_or_freeze, .timeout = 1100)
{
    if (no_etcd()) {
        return;
    }
    struct real_loop loop;
    struct process p;
    struct instance a;
    struct etcd_cluster cluster;
    real_init(&loop, sim_seed(1));
    etcd_start(&cluster, 3, false);
    cr_assert_eq(open_cluster(&p, &loop, &cluster, NULL, NULL, false), KVB_OK);
    EVENTUALLY(&loop, p.rig.up);
    join(&a, &p, "a");
    for (uint32_t i = 0; i < 3; i++) {
        etcd_kill(&cluster, i);
        for (int k = 0; k < 5; k++) {
            char name[16];
            (void)snprintf(name, sizeof name, "k%u.%d", i, k);
            struct ask ask;
            do { /* an election may be longer than a request's bound */
                EVENTUALLY(&loop, a.reachable);
                kvs_member_resolve(a.member, name, asked(&ask));
            } while (finish(&loop, &ask) == KVB_ERR_UNAVAILABLE);
            cr_assert_eq(ask.status, KVB_OK);
        }
        etcd_restart(&cluster, i);
        etcd_await(&cluster);
    }
    for (uint32_t i = 0; i < 3; i++) {
        etcd_pause_one(&cluster, i, true);
        for (int k = 0; k < 5; k++) {
            char name[16];
            (void)snprintf(name, sizeof name, "p%u.%d", i, k);
            struct ask ask;
            do {
                EVENTUALLY(&loop, a.reachable);
                kvs_member_resolve(a.member, name, asked(&ask));
            } while (finish(&loop, &ask) == KVB_ERR_UNAVAILABLE);
            struct kvb_lineage lineage = ask.request.lineage;
            /* the watch hears it, on whichever member it is */
            do {
                EVENTUALLY(&loop, a.reachable);
                kvs_member_retire(a.member, &lineage, 1, NULL,
                                  kvb_deadline_in_ms(&kvb_clock_real, 20000), asked(&ask));
            } while (finish(&loop, &ask) == KVB_ERR_UNAVAILABLE);
            EVENTUALLY(&loop, retired_here(&p, lineage));
        }
        etcd_pause_one(&cluster, i, false);
        etcd_await(&cluster);
    }
    kvs_member_close(a.member);
    kvs_coordinator_destroy(p.rig.coordinator);
    etcd_stop(&cluster);
    real_cleanup(&loop);
}

Test(etcd, all_of_etcd_may_freeze_and_come_back, .timeout = 1100)
{
    if (no_etcd()) {
        return;
    }
    struct real_loop loop;
    struct process p;
    struct instance a;
    struct ask ask;
    struct etcd_cluster cluster;
    real_init(&loop, sim_seed(1));
    etcd_start(&cluster, 1, false);
    cr_assert_eq(open_cluster(&p, &loop, &cluster, NULL, NULL, false), KVB_OK);
    EVENTUALLY(&loop, p.rig.up);
    join(&a, &p, "a");
    struct kvb_lineage v1 = resolve(&a, "v1");
    struct kvs_node_record node = {.name = "n1", .address = "h:1", .incarnation = 1};
    cr_assert_eq(kvs_coordinator_announce(p.rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&loop, p.nnodes == 1);
    etcd_pause(&cluster, true);
    EVENTUALLY(&loop, !a.reachable);
    kvs_member_retire(a.member, &v1, 1, NULL, KVB_NEVER, asked(&ask));
    cr_assert_eq(finish(&loop, &ask), KVB_ERR_UNAVAILABLE);
    EVENTUALLY(&loop, a.nlost == 1);
    cr_assert_eq(p.ngone, 0, "nobody is gone while etcd cannot be reached");
    etcd_pause(&cluster, false);
    EVENTUALLY(&loop, a.reachable);
    cr_assert(kvb_lineage_equal(v1, resolve(&a, "v1")));
    cr_assert_eq(retire(&a, v1, 30000), KVB_OK);
    real_run_for(&loop, 1000);
    cr_assert_eq(p.ngone, 0, "it has said again that it is there");
    kvs_member_close(a.member);
    kvs_coordinator_destroy(p.rig.coordinator);
    etcd_stop(&cluster);
    real_cleanup(&loop);
}

Test(etcd, over_tls_with_certificates_of_both_sides, .timeout = 1100)
{
    if (no_etcd()) {
        return;
    }
    struct real_loop loop;
    struct process p;
    struct instance a;
    struct etcd_cluster cluster;
    real_init(&loop, sim_seed(1));
    etcd_start(&cluster, 1, true);
    cr_assert_eq(open_cluster(&p, &loop, &cluster, NULL, NULL, true), KVB_OK);
    EVENTUALLY(&loop, p.rig.up);
    join(&a, &p, "a");
    struct kvb_lineage v1 = resolve(&a, "v1");
    cr_assert_eq(retire(&a, v1, 10000), KVB_OK);
    kvs_member_close(a.member);
    kvs_coordinator_destroy(p.rig.coordinator);
    /* without the certificate, and without the authority: never reached */
    cr_assert_eq(open_cluster(&p, &loop, &cluster, NULL, NULL, false), KVB_OK);
    real_run_for(&loop, 1500);
    cr_assert(!p.rig.up);
    kvs_coordinator_destroy(p.rig.coordinator);
    etcd_stop(&cluster);
    real_cleanup(&loop);
}

Test(etcd, with_a_user_and_a_password_and_a_token_that_is_renewed, .timeout = 1100)
{
    if (no_etcd()) {
        return;
    }
    struct real_loop loop;
    struct process p;
    struct instance a;
    struct etcd_cluster cluster;
    real_init(&loop, sim_seed(1));
    etcd_start(&cluster, 1, false);
    cr_assert_eq(etcd_ctl(&cluster, "user add root:secret", NULL, 0), 0);
    cr_assert_eq(etcd_ctl(&cluster, "user grant-role root root", NULL, 0), 0);
    cr_assert_eq(etcd_ctl(&cluster, "auth enable", NULL, 0), 0);
    cr_assert_eq(open_cluster(&p, &loop, &cluster, "root", "secret", false), KVB_OK);
    EVENTUALLY(&loop, p.rig.up);
    join(&a, &p, "a");
    (void)resolve(&a, "v1");
    /* its tokens are forgotten */
    cr_assert_eq(etcd_ctl(&cluster, "--user root:secret auth disable", NULL, 0), 0);
    cr_assert_eq(etcd_ctl(&cluster, "auth enable", NULL, 0), 0);
    struct ask ask;
    do {
        EVENTUALLY(&loop, a.reachable);
        kvs_member_resolve(a.member, "v2", asked(&ask));
    } while (finish(&loop, &ask) == KVB_ERR_UNAVAILABLE);
    cr_assert_eq(ask.status, KVB_OK);
    kvs_member_close(a.member);
    kvs_coordinator_destroy(p.rig.coordinator);
    cr_assert_eq(open_cluster(&p, &loop, &cluster, "root", "wrong", false), KVB_OK);
    real_run_for(&loop, 1500);
    cr_assert(!p.rig.up);
    kvs_coordinator_destroy(p.rig.coordinator);
    cr_assert_eq(open_cluster(&p, &loop, &cluster, NULL, NULL, false), KVB_OK);
    real_run_for(&loop, 1500);
    cr_assert(!p.rig.up);
    kvs_coordinator_destroy(p.rig.coordinator);
    etcd_stop(&cluster);
    real_cleanup(&loop);
}

Test(etcd, refuses_a_config_that_cannot_work)
{
    struct real_loop loop;
    struct kvs_coordinator *coordinator;
    real_init(&loop, sim_seed(1));
    static const char *const bad[] = {"", "127.0.0.1:2379", "ftp://h:1", "http://", "http://h:1/"};
    const struct kvs_etcd_config base = {.sched = &loop.sim.sched, .io = &loop.io};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvs_etcd_config config = base;
        config.endpoints = &bad[i];
        config.nendpoints = 1;
        cr_assert_eq(kvs_etcd_create(&config, &coordinator), KVB_ERR_INVALID, "%s", bad[i]);
    }
    static const char *const good[] = {"http://127.0.0.1:1"};
    struct kvs_etcd_config config = base;
    cr_assert_eq(kvs_etcd_create(&config, &coordinator), KVB_ERR_INVALID, "no endpoint");
    config.endpoints = good;
    config.nendpoints = 1;
    config.prefix = "no-slash";
    cr_assert_eq(kvs_etcd_create(&config, &coordinator), KVB_ERR_INVALID);
    config.prefix = NULL;
    config.user = "u";
    cr_assert_eq(kvs_etcd_create(&config, &coordinator), KVB_ERR_INVALID, "no password");
    config.user = NULL;
    cr_assert_eq(kvs_etcd_create(&config, &coordinator), KVB_OK, "also when it is away");
    kvs_coordinator_destroy(coordinator);
    real_cleanup(&loop);
}

/* ---- many at once, against a model ---- */

#define MANY 6

struct soul {
    struct instance instance;
    /* as the connector would keep it: what it is in, until it leaves */
    bool named;
    char name[8];
    struct kvb_lineage lineage;
    struct ask ask;
    bool asking, retiring, resetting;
    struct kvb_lineage retired[2];
};

struct town {
    struct real_loop *loop;
    struct process processes[3];
    struct soul souls[MANY];
    struct kvb_lineage dead[4096]; /* retired with success: nobody may be in them any more */
    uint32_t ndead;
    uint32_t shared, retired, resets, lost;
};

static struct soul *soul_of(struct instance *instance)
{
    return kvb_container_of(instance, struct soul, instance);
}

static void soul_leaves(struct soul *soul)
{
    if (soul->named) {
        kvs_member_leave(soul->instance.member, soul->name);
    }
    soul->named = false;
}

static void town_told(void *ctx, struct kvb_lineage lineage, uint64_t retirement)
{
    struct soul *soul = soul_of(ctx);
    if (soul->named && kvb_lineage_equal(soul->lineage, lineage)) {
        soul->named = false;
    }
    kvs_member_left(soul->instance.member, retirement);
}

static void town_told_tenant(void *ctx, uint64_t retirement)
{
    struct soul *soul = soul_of(ctx);
    soul->named = false;
    kvs_member_left(soul->instance.member, retirement);
}

static void town_lost(void *ctx)
{
    soul_of(ctx)->named = false;
    soul_of(ctx)->instance.nlost++;
}

static const struct kvs_member_ops town_ops = {.told = town_told,
                                               .told_tenant = town_told_tenant,
                                               .reachable = on_reachable,
                                               .lost = town_lost};

/* No two that hold one name, with no retirement between, are apart; nobody is in what was retired
 * with success. */
static void check_town(const struct town *town)
{
    for (int i = 0; i < MANY; i++) {
        const struct soul *soul = &town->souls[i];
        for (uint32_t d = 0; soul->named && d < town->ndead; d++) {
            cr_assert(!kvb_lineage_equal(soul->lineage, town->dead[d]),
                      "seed %llu: %d is in a lineage whose retirement has answered success",
                      (unsigned long long)town->loop->sim.seed, i);
        }
    }
}

static void soul_answered(struct town *town, struct soul *soul)
{
    kvb_status_t status = soul->ask.status;
    soul->asking = false;
    if (soul->retiring) {
        if (status == KVB_OK) {
            town->dead[town->ndead++ % 4096] = soul->retired[0];
            town->retired++;
        }
        soul->retiring = false;
    } else if (soul->resetting) {
        town->resets += status == KVB_OK;
        soul->resetting = false;
    } else if (status == KVB_OK) {
        soul->lineage = soul->ask.request.lineage;
        soul->named = true;
        for (int i = 0; i < MANY; i++) {
            const struct soul *other = &town->souls[i];
            town->shared += other != soul && other->named && strcmp(other->name, soul->name) == 0 &&
                            kvb_lineage_equal(other->lineage, soul->lineage);
        }
    }
}

/* At once, as the connector does: what it is told next may be about the lineage of this answer. */
static struct town *town_now;
static void on_soul_answer(struct kvs_coord_request *request, kvb_status_t status)
{
    struct ask *ask = kvb_container_of(request, struct ask, request);
    on_answer(request, status);
    soul_answered(town_now, kvb_container_of(ask, struct soul, ask));
    check_town(town_now);
}

static struct kvs_coord_request *soul_asks(struct soul *soul)
{
    soul->ask = (struct ask){.request.done = on_soul_answer};
    return &soul->ask.request;
}

static void soul_acts(struct town *town, struct soul *soul)
{
    struct sim_sched *sim = &town->loop->sim;
    soul->asking = true;
    switch (sim_below(sim, 8)) {
    case 0:
    case 1:
        if (soul->named) { /* reset_external: leaves first */
            soul->retired[0] = soul->lineage;
            soul_leaves(soul);
            soul->retiring = true;
            kvs_member_retire(soul->instance.member, soul->retired, 1, soul->name,
                              kvb_deadline_in_ms(&kvb_clock_real, 4000), soul_asks(soul));
            return;
        }
        break;
    case 2:
        if (sim_below(sim, 8) == 0) {
            soul->named = false;
            soul->resetting = true;
            kvs_tenant_reset(soul->instance.process->rig.coordinator, "t", soul->instance.member,
                             kvb_deadline_in_ms(&kvb_clock_real, 4000), soul_asks(soul));
            return;
        }
        soul_leaves(soul);
        soul->asking = false;
        return;
    default:
        break;
    }
    soul_leaves(soul);
    (void)snprintf(soul->name, sizeof soul->name, "v%llu", (unsigned long long)sim_below(sim, 3));
    kvs_member_resolve(soul->instance.member, soul->name, soul_asks(soul));
}

/* Connections cut, held up and had back at random, while instances of three processes join, leave,
 * reset and reset the tenant. KVPLANE_SEED repeats the choices, not the timing. */
Test(etcd, many_at_once_never_share_what_was_retired, .timeout = 1100)
{
    if (no_etcd()) {
        return;
    }
    static struct town town;
    struct real_loop loop;
    char prefix[64];
    uint64_t seed;
    kvb_random_real.fill(kvb_random_real.ctx, &seed, sizeof seed);
    real_init(&loop, sim_seed(seed));
    (void)etcd_rig_prefix(prefix);
    memset(&town, 0, sizeof town);
    town.loop = &loop;
    town_now = &town;
    for (int i = 0; i < 3; i++) {
        start(&town.processes[i], &loop, prefix);
    }
    for (int i = 0; i < MANY; i++) {
        struct kvs_space space = {"t", "l"};
        struct soul *soul = &town.souls[i];
        soul->instance.process = &town.processes[i % 3];
        cr_assert_eq(kvs_member_open(town.processes[i % 3].rig.coordinator, "a", &space, &town_ops,
                                     &soul->instance, &soul->instance.member),
                     KVB_OK);
    }
    uint64_t end_ns = kvb_deadline_in_ms(&kvb_clock_real, 12000);
    uint64_t acts = 0;
    while (real_now_ns() < end_ns) {
        real_step(&loop, kvb_deadline_in_ms(&kvb_clock_real, 1 + sim_below(&loop.sim, 4)));
        check_town(&town);
        struct soul *soul = &town.souls[sim_below(&loop.sim, MANY)];
        if (!soul->asking && sim_below(&loop.sim, 3) == 0) {
            soul_acts(&town, soul);
            acts++;
        }
        struct tcp_proxy *proxy = &town.processes[sim_below(&loop.sim, 3)].rig.proxy;
        switch (sim_below(&loop.sim, 400)) {
        case 0:
            proxy_set(proxy, PROXY_CUT);
            break;
        case 1:
            proxy_set(proxy, PROXY_HANG);
            break;
        default:
            if (proxy->mode != PROXY_PASS && sim_below(&loop.sim, 40) == 0) {
                proxy_set(proxy, PROXY_PASS);
            }
            break;
        }
    }
    for (int i = 0; i < 3; i++) {
        proxy_set(&town.processes[i].rig.proxy, PROXY_PASS);
    }
    for (int i = 0; i < MANY; i++) {
        struct soul *soul = &town.souls[i];
        EVENTUALLY(&loop, !soul->asking);
    }
    check_town(&town);
    /* at rest, all with one name are together */
    for (int i = 0; i < 3; i++) {
        EVENTUALLY(&loop, town.processes[i].rig.up);
    }
    real_run_for(&loop, 500);
    struct kvb_lineage one = {{0, 0}};
    for (int i = 0; i < MANY; i++) {
        struct soul *soul = &town.souls[i];
        soul_leaves(soul);
        struct kvb_lineage lineage = resolve(&soul->instance, "v0");
        cr_assert(i == 0 || kvb_lineage_equal(one, lineage), "seed %llu",
                  (unsigned long long)loop.sim.seed);
        one = lineage;
    }
    fprintf(stderr, "etcd: %llu acts, %u retired, %u tenant resets, %u times shared, seed %llu\n",
            (unsigned long long)acts, town.retired, town.resets, town.shared,
            (unsigned long long)loop.sim.seed);
    cr_assert_gt(town.retired, 0);
    cr_assert_gt(town.shared, 0);
    for (int i = 0; i < MANY; i++) {
        kvs_member_close(town.souls[i].instance.member);
    }
    for (int i = 0; i < 3; i++) {
        stop(&town.processes[i]);
    }
    real_cleanup(&loop);
}
