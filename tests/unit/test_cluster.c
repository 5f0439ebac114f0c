/* SPDX-License-Identifier: Apache-2.0 */
/* What the coordinator tells of nodes, lineages and quotas, against fakes of everything around. */
#include "cluster.h"
#include "metrics.h"
#include "sim_sched.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

enum { MAX = 16 };

static struct sim_sched sim;

/* ---- the coordinator ---- */

static const struct kvs_watch_ops *watch;
static void *watch_ctx;
static struct kvs_node_record announced;
static uint32_t nannounced;
static struct kvs_coord_request *withdrawal;
static struct kvs_coord_request *quota_told;
static char quota_tenant[64];
static uint64_t quota_bytes;
static uint32_t nquotas;
static kvb_status_t announce_status;
static struct kvs_coordinator *const coordinator = (struct kvs_coordinator *)&announced;

kvb_status_t kvs_coordinator_watch(struct kvs_coordinator *c, const struct kvs_watch_ops *ops,
                                   void *ctx)
{
    cr_assert_eq(c, coordinator);
    watch = ops;
    watch_ctx = ctx;
    return KVB_OK;
}

kvb_status_t kvs_coordinator_announce(struct kvs_coordinator *c,
                                      const struct kvs_node_record *record)
{
    cr_assert_eq(c, coordinator);
    announced = *record;
    nannounced++;
    return announce_status;
}

void kvs_coordinator_withdraw(struct kvs_coordinator *c, struct kvs_coord_request *request)
{
    cr_assert_eq(c, coordinator);
    withdrawal = request;
}

void kvs_coordinator_set_quota(struct kvs_coordinator *c, const char *tenant, uint64_t bytes,
                               struct kvs_coord_request *request)
{
    cr_assert_eq(c, coordinator);
    snprintf(quota_tenant, sizeof quota_tenant, "%s", tenant);
    quota_bytes = bytes;
    quota_told = request;
    nquotas++;
}

/* ---- remote nodes ---- */

const struct kvs_carrier kvs_by_tcp = {.name = "tcp"};

static uint64_t left_out; /* of its regions */

void kvt_rdma_memory_stats(const struct kvt_rdma_memory *memory,
                           struct kvt_rdma_memory_stats *stats_p)
{
    (void)memory;
    *stats_p = (struct kvt_rdma_memory_stats){.left_out = left_out};
}

const char *kvt_rdma_memory_reason(const struct kvt_rdma_memory *memory)
{
    (void)memory;
    return "too little";
}
const struct kvs_carrier kvs_by_rdma = {.name = "rdma"};

static struct kvt_rdma_memory *const rdma_memory = (struct kvt_rdma_memory *)&nquotas;

struct remote {
    struct kvs_node node;
    char address[256], rdma_address[256];
    void (*changed)(void *ctx, struct kvs_node *node, const struct kvs_remote_status *status);
    void *ctx;
    struct kvs_remote_status status;
    struct kvs_way_status ways[KVS_WAYS_MAX];
    uint32_t nways;
    struct kvs_remote_tenants *ask;
    struct kvs_remote_list *list_ask;
};
static uint32_t nremotes; /* that exist */
static uint32_t ncreated;
static struct remote *last_remote;
static kvb_status_t remote_status;

kvb_status_t kvs_remote_create(const struct kvs_remote_config *config, struct kvs_node **node_p)
{
    if (remote_status != KVB_OK) {
        return remote_status;
    }
    struct remote *remote = calloc(1, sizeof *remote);
    while (remote->nways < KVS_WAYS_MAX && config->ways[remote->nways].by != NULL) {
        remote->ways[remote->nways].by = config->ways[remote->nways].by->name;
        remote->nways++;
    }
    for (uint32_t i = 0; i < remote->nways; i++) {
        bool rdma = config->ways[i].by == &kvs_by_rdma;
        const struct kvt_tcp_peer_config *tcp = config->ways[i].config;
        const struct kvt_rdma_peer_config *by_rdma = config->ways[i].config;
        const char *address = rdma ? by_rdma->address : tcp->address;
        char *out = rdma ? remote->rdma_address : remote->address;
        snprintf(out, sizeof remote->address, "%s", address);
        cr_assert(!rdma || by_rdma->memory == rdma_memory);
    }
    remote->changed = config->changed;
    remote->ctx = config->ctx;
    nremotes++;
    ncreated++;
    last_remote = remote;
    *node_p = &remote->node;
    return KVB_OK;
}

void kvs_remote_destroy(struct kvs_node *node)
{
    struct remote *remote = (struct remote *)node;
    cr_assert(remote->ask == NULL && remote->list_ask == NULL, "a question is under way");
    nremotes--;
    free(remote);
}

void kvs_remote_status(struct kvs_node *node, struct kvs_remote_status *status_p)
{
    *status_p = ((const struct remote *)node)->status;
}

bool kvs_remote_way(struct kvs_node *node, uint32_t number, struct kvs_way_status *way_p)
{
    const struct remote *remote = (const struct remote *)node;
    if (number >= remote->nways) {
        return false;
    }
    *way_p = remote->ways[number];
    return true;
}

static kvb_status_t ask_status;

kvb_status_t kvs_remote_tenants(struct kvs_node *node, uint64_t deadline_ns,
                                struct kvs_remote_tenants *ask)
{
    (void)deadline_ns;
    if (ask_status != KVB_OK) {
        return ask_status;
    }
    ((struct remote *)node)->ask = ask;
    return KVB_OK;
}

kvb_status_t kvs_remote_list(struct kvs_node *node, uint64_t deadline_ns,
                             struct kvs_remote_list *ask)
{
    (void)deadline_ns;
    ((struct remote *)node)->list_ask = ask;
    return KVB_OK;
}

static void remote_answer(struct remote *remote, kvb_status_t status, const char *tenant,
                          uint64_t used, uint64_t objects)
{
    struct kvs_remote_tenants *ask = remote->ask;
    ask->n = 0;
    ask->tenants = calloc(1, sizeof *ask->tenants);
    if (status == KVB_OK) {
        ask->n = 1;
        snprintf(ask->tenants[0].tenant, 64, "%s", tenant);
        ask->tenants[0].stats.used_bytes = used;
        ask->tenants[0].stats.objects = objects;
    }
    void *mine = ask->tenants;
    remote->ask = NULL;
    ask->done(ask, status);
    free(mine);
}

/* ---- the client ---- */

struct member {
    char name[64];
    struct kvs_node *node;
    uint64_t weight;
    bool readable_only;
};
static struct member members[MAX];
static uint32_t nmembers;
static struct {
    struct kvs_node *node;
    void (*removed)(void *ctx, struct kvs_node *node);
    void *ctx;
} removals[MAX];
static uint32_t nremovals;
static struct kvs_client *const client = (struct kvs_client *)&members;

static struct member *member(const char *name)
{
    for (uint32_t i = 0; i < nmembers; i++) {
        if (strcmp(members[i].name, name) == 0) {
            return &members[i];
        }
    }
    return NULL;
}

kvb_status_t kvs_client_add_node(struct kvs_client *c, const char *name, struct kvs_node *node,
                                 uint64_t weight)
{
    cr_assert_eq(c, client);
    cr_assert_null(member(name), "%s is there", name);
    struct member *m = &members[nmembers++];
    *m = (struct member){.node = node, .weight = weight};
    snprintf(m->name, sizeof m->name, "%s", name);
    return KVB_OK;
}

kvb_status_t kvs_client_set_node(struct kvs_client *c, const char *name, uint64_t weight,
                                 bool readable_only)
{
    cr_assert_eq(c, client);
    struct member *m = member(name);
    cr_assert_not_null(m, "%s is not there", name);
    m->weight = weight;
    m->readable_only = readable_only;
    return KVB_OK;
}

kvb_status_t kvs_client_remove_node(struct kvs_client *c, const char *name,
                                    void (*removed)(void *ctx, struct kvs_node *node), void *ctx)
{
    cr_assert_eq(c, client);
    struct member *m = member(name);
    cr_assert_not_null(m);
    removals[nremovals].node = m->node;
    removals[nremovals].removed = removed;
    removals[nremovals++].ctx = ctx;
    *m = members[--nmembers];
    return KVB_OK;
}

static void finish_removals(void)
{
    for (uint32_t i = 0; i < nremovals; i++) {
        removals[i].removed(removals[i].ctx, removals[i].node);
    }
    nremovals = 0;
    sim_advance(&sim, 1);
}

void kvs_client_each_node(const struct kvs_client *c,
                          void (*each)(void *arg, const struct kvs_client_node *node), void *arg)
{
    cr_assert_eq(c, client);
    for (uint32_t i = 0; i < nmembers; i++) {
        each(arg,
             &(struct kvs_client_node){
                 .name = members[i].name, .node = members[i].node, .sick = i == 0, .failures = 7});
    }
}

/* ---- the share ---- */

static uint32_t nretired;
static uint64_t share_quota = 1;
static char share_tenant[64];
static struct kvs_share_stats share_stats;
static kvb_status_t share_status;
static struct kvs_share *const share = (struct kvs_share *)&share_stats;

void kvs_share_retire(struct kvs_share *s, const struct kvb_lineage *lineages, uint32_t n)
{
    (void)s;
    (void)lineages;
    nretired += n;
}

kvb_status_t kvs_share_set_quota(struct kvs_share *s, const char *tenant, uint64_t bytes)
{
    (void)s;
    snprintf(share_tenant, sizeof share_tenant, "%s", tenant);
    share_quota = bytes;
    return share_status;
}

void kvs_share_stats(struct kvs_share *s, struct kvs_share_stats *stats_p)
{
    (void)s;
    *stats_p = share_stats;
}

static uint32_t nlists;

void kvs_share_list(struct kvs_share *s, struct kvs_list *list)
{
    cr_assert_eq(s, share);
    list->n = 0;
    nlists++;
}

void kvs_share_each_tenant(struct kvs_share *s,
                           void (*each)(void *arg, const char *tenant,
                                        const struct kvs_core_tenant_stats *stats),
                           void *arg)
{
    (void)s;
    each(arg, "t", &(struct kvs_core_tenant_stats){.used_bytes = 10, .objects = 1});
}

/* ---- the world ---- */

static struct kvp_cluster *cluster;
static struct kvs_node local;

static struct kvp_cluster_params params_of(bool with_share, bool with_client)
{
    return (struct kvp_cluster_params){
        .sched = &sim.sched,
        .coordinator = coordinator,
        .share = with_share ? share : NULL,
        .own = {.name = "own", .address = "h:1", .capacity_bytes = 100, .incarnation = 1},
        .client = with_client ? client : NULL,
        .local = &local,
    };
}

static void make(bool with_share, bool with_client)
{
    struct kvp_cluster_params params = params_of(with_share, with_client);
    cr_assert_eq(kvp_cluster_create(&params, &cluster), KVB_OK);
}

static void tell(const char *name, const char *address, uint64_t capacity, uint64_t incarnation,
                 bool draining)
{
    struct kvs_node_record record = {
        .capacity_bytes = capacity, .incarnation = incarnation, .draining = draining};
    snprintf(record.name, sizeof record.name, "%s", name);
    snprintf(record.address, sizeof record.address, "%s", address);
    watch->node(watch_ctx, &record);
}

static void begin(void)
{
    sim_init(&sim, sim_seed(1));
}

static void end(void)
{
    kvp_cluster_destroy(cluster);
    cr_expect_eq(nremotes, 0);
    sim_cleanup(&sim);
}

TestSuite(cluster, .init = begin, .fini = end);

/* ---- nodes ---- */

Test(cluster, a_node_that_is_told_of_is_used_and_the_own_share_without_a_socket)
{
    make(true, true);
    cr_expect_str_eq(announced.name, "own");
    cr_expect_eq(member("own")->node, &local);
    tell("own", "h:1", 100, 1, false);
    cr_expect_eq(ncreated, 0, "no connection to itself");
    tell("a", "a:1", 50, 9, false);
    cr_expect_eq(ncreated, 1);
    cr_expect_str_eq(last_remote->address, "a:1");
    cr_expect_eq(member("a")->weight, 50);
    cr_expect_not(member("a")->readable_only);
}

Test(cluster, a_stranger_of_the_same_name_does_not_take_the_place_of_the_own_share)
{
    make(true, true);
    tell("own", "elsewhere:1", 100, 2, true);
    cr_expect_eq(ncreated, 0);
    cr_expect_eq(member("own")->node, &local);
    cr_expect_not(member("own")->readable_only);
    watch->node_gone(watch_ctx, "own");
    cr_expect_eq(member("own")->node, &local);
}

Test(cluster, a_store_node_uses_no_other)
{
    make(true, false);
    tell("a", "a:1", 50, 9, false);
    cr_expect_eq(ncreated, 0);
    cr_expect_eq(nmembers, 0);
}

Test(cluster, a_change_is_a_change_and_another_life_is_another_node)
{
    make(false, true);
    tell("a", "a:1", 50, 9, false);
    tell("a", "a:1", 60, 9, true);
    cr_expect_eq(ncreated, 1);
    cr_expect_eq(member("a")->weight, 60);
    cr_expect(member("a")->readable_only);
    tell("a", "a:1", 60, 10, false); /* restarted */
    cr_expect_eq(ncreated, 2);
    cr_expect_eq(nremovals, 1);
    cr_expect_not(member("a")->readable_only);
    tell("a", "b:1", 60, 10, false); /* moved */
    cr_expect_eq(ncreated, 3);
    cr_expect_str_eq(last_remote->address, "b:1");
    cr_expect_eq(nremotes, 3, "the old ones stay until nothing of them is under way");
    finish_removals();
    cr_expect_eq(nremotes, 1);
}

Test(cluster, a_node_that_left_is_used_no_more)
{
    make(true, true);
    tell("a", "a:1", 50, 9, false);
    watch->node_gone(watch_ctx, "a");
    watch->node_gone(watch_ctx, "a");
    watch->node_gone(watch_ctx, "own");
    cr_expect_null(member("a"));
    cr_expect_not_null(member("own"));
    finish_removals();
    cr_expect_eq(nremotes, 0);
}

Test(cluster, what_cannot_be_used_now_is_tried_again)
{
    make(false, true);
    remote_status = KVB_ERR_NO_MEMORY;
    tell("a", "a:1", 50, 9, true);
    cr_expect_null(member("a"));
    remote_status = KVB_OK;
    sim_advance(&sim, 2500);
    cr_assert_not_null(member("a"));
    cr_expect(member("a")->readable_only);
}

Test(cluster, a_node_that_says_it_leaves_gets_nothing_new_before_etcd_tells)
{
    make(false, true);
    tell("a", "a:1", 50, 9, false);
    struct kvs_remote_status status = {.up = true, .draining = true};
    last_remote->changed(last_remote->ctx, &last_remote->node, &status);
    cr_expect(member("a")->readable_only);
    tell("a", "a:1", 50, 9, false); /* an older word does not undo it */
    cr_expect(member("a")->readable_only);
    struct remote *old = last_remote;
    watch->node_gone(watch_ctx, "a");
    status.draining = false;
    old->changed(old->ctx, &old->node, &status); /* of one that has left: nothing */
    finish_removals();
}

/* ---- ways ---- */

/* What a node of each kind is reached by, under each wish, with and without a device. */
Test(cluster, a_node_is_reached_by_what_both_sides_have_and_the_config_allows)
{
    static const struct {
        const char *what;
        bool device, only; /* of this process */
        bool rdma;         /* the node has an address of it */
        const char *ways;
    } cases[] = {
        {"auto, both can", true, false, true, "rdma tcp "},
        {"auto, the node cannot", true, false, false, "tcp "},
        {"auto, this process cannot", false, false, true, "tcp "},
        {"tcp, or auto, nobody can", false, false, false, "tcp "},
        {"rdma, both can", true, true, true, "rdma "},
        {"rdma, the node cannot", true, true, false, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvp_cluster_params params = params_of(false, true);
        struct kvs_node_record record = {.name = "a", .address = "a:1", .incarnation = 9};
        char ways[64] = "";
        params.rdma = cases[i].device ? rdma_memory : NULL;
        params.rdma_only = cases[i].only;
        cr_assert_eq(kvp_cluster_create(&params, &cluster), KVB_OK);
        strcpy(record.rdma, cases[i].rdma ? "10.0.0.1:2" : "");
        uint32_t before = ncreated;
        watch->node(watch_ctx, &record);
        cr_expect_eq(member("a") != NULL, cases[i].ways[0] != '\0', "%s", cases[i].what);
        if (ncreated > before) {
            for (uint32_t w = 0; w < last_remote->nways; w++) {
                strcat(strcat(ways, last_remote->ways[w].by), " ");
            }
            cr_expect_str_eq(last_remote->rdma_address, params.rdma != NULL ? record.rdma : "",
                             "%s", cases[i].what);
        }
        cr_expect_str_eq(ways, cases[i].ways, "%s", cases[i].what);
        sim_advance(&sim, 2100); /* nor later */
        cr_expect_eq(member("a") != NULL, cases[i].ways[0] != '\0', "%s", cases[i].what);
        watch->node_gone(watch_ctx, "a");
        finish_removals();
        kvp_cluster_destroy(cluster);
        cluster = NULL;
    }
}

Test(cluster, a_node_whose_rdma_address_changes_is_another)
{
    struct kvs_node_record record = {.name = "a", .address = "a:1", .incarnation = 9};
    struct kvp_cluster_params params = params_of(false, true);
    params.rdma = rdma_memory;
    cr_assert_eq(kvp_cluster_create(&params, &cluster), KVB_OK);
    watch->node(watch_ctx, &record);
    watch->node(watch_ctx, &record);
    cr_expect_eq(ncreated, 1);
    strcpy(record.rdma, "10.0.0.1:2");
    watch->node(watch_ctx, &record);
    cr_expect_eq(ncreated, 2);
    cr_expect_str_eq(last_remote->rdma_address, "10.0.0.1:2");
    finish_removals();
}

/* ---- the own share ---- */

Test(cluster, what_is_retired_is_retired_in_the_share)
{
    struct kvb_lineage lineages[2] = {{{1, 1}}, {{2, 2}}};
    make(true, false);
    watch->retired(watch_ctx, lineages, 2);
    cr_expect_eq(nretired, 2);
}

Test(cluster, a_quota_is_kept_in_the_part_that_the_share_is_of_the_capacity)
{
    make(true, false);
    watch->quota(watch_ctx, "t", 1000);
    cr_expect_eq(share_quota, 1000, "alone");
    cr_expect_str_eq(share_tenant, "t");
    tell("a", "a:1", 300, 9, false);
    cr_expect_eq(share_quota, 250);
    tell("own", "h:1", 100, 1, false);
    cr_expect_eq(share_quota, 250, "not counted twice");
    tell("a", "a:1", 300, 9, true);
    cr_expect_eq(share_quota, 1000, "one that leaves takes no new objects");
    tell("b", "b:1", 100, 9, false);
    cr_expect_eq(share_quota, 500);
    watch->node_gone(watch_ctx, "b");
    cr_expect_eq(share_quota, 1000);
    watch->quota(watch_ctx, "t", UINT64_MAX);
    cr_expect_eq(share_quota, UINT64_MAX);
    watch->quota(watch_ctx, "t", UINT64_MAX - 1); /* no overflow on the way */
    cr_expect_eq(share_quota, UINT64_MAX - 1);
    tell("c", "c:1", UINT64_MAX - 99, 9, false); /* nor in what others say of themselves */
    cr_expect_eq(share_quota, 99);
}

Test(cluster, a_wanted_quota_is_told_until_the_coordinator_has_it)
{
    make(false, true);
    cr_assert_eq(kvp_cluster_want_quota(cluster, "t", 77), KVB_OK);
    cr_expect_eq(nquotas, 0);
    watch->reachable(watch_ctx, true);
    cr_assert_eq(nquotas, 1);
    cr_expect_eq(quota_bytes, 77);
    watch->reachable(watch_ctx, true); /* while it is asked */
    cr_expect_eq(nquotas, 1);
    quota_told->done(quota_told, KVB_ERR_UNAVAILABLE);
    watch->reachable(watch_ctx, false);
    watch->reachable(watch_ctx, true);
    cr_expect_eq(nquotas, 2);
    quota_told->done(quota_told, KVB_OK);
    watch->reachable(watch_ctx, false);
    watch->reachable(watch_ctx, true);
    cr_expect_eq(nquotas, 2, "somebody may have changed it since");
}

Test(cluster, alone_nobody_is_told_and_quotas_are_whole)
{
    struct kvp_cluster_params params = params_of(true, true);
    params.alone = true;
    cr_assert_eq(kvp_cluster_create(&params, &cluster), KVB_OK);
    cr_expect_eq(nannounced, 0);
    cr_expect_null(watch);
    cr_expect(kvp_cluster_reachable(cluster));
    cr_expect_eq(kvp_cluster_want_quota(cluster, "t", 40), KVB_OK);
    cr_expect_eq(share_quota, 40);
    share_status = KVB_ERR_LIMIT;
    cr_expect_eq(kvp_cluster_want_quota(cluster, "u", 40), KVB_ERR_LIMIT);
}

Test(cluster, a_share_that_cannot_be_announced_leaves_nothing_behind)
{
    struct kvp_cluster_params params = params_of(true, true);
    announce_status = KVB_ERR_NO_MEMORY;
    cr_expect_eq(kvp_cluster_create(&params, &cluster), KVB_ERR_NO_MEMORY);
    cr_expect_null(cluster);
}

/* ---- figures ---- */

static struct kvp_cluster_node seen[MAX];
static uint32_t nseen;

static void see(void *arg, const struct kvp_cluster_node *node)
{
    (void)arg;
    seen[nseen++] = *node;
}

Test(cluster, figures_are_of_the_node_and_rates_of_the_last_seconds)
{
    make(true, true);
    tell("a", "a:1", 50, 9, false);
    last_remote->status = (struct kvs_remote_status){.up = true, .objects = 3, .puts = 100};
    sim_advance(&sim, 2100);
    last_remote->status.puts = 300;
    share_stats.gets = 40;
    sim_advance(&sim, 2000);
    kvp_cluster_each_node(cluster, see, NULL);
    cr_assert_eq(nseen, 2);
    cr_expect_str_eq(seen[0].record->name, "a", "by name");
    cr_expect(seen[1].own && seen[1].used && seen[1].status.up);
    cr_expect_float_eq(seen[1].gets, 20, 0.5);
    cr_expect(seen[1].sick);
    cr_expect_eq(seen[0].status.objects, 3);
    cr_expect_float_eq(seen[0].puts, 100, 2);
    cr_expect_eq(seen[0].failures, 7);
    last_remote->status.puts = 5; /* it started anew */
    sim_advance(&sim, 2000);
    nseen = 0;
    kvp_cluster_each_node(cluster, see, NULL);
    cr_expect_eq(seen[0].puts, 0);
}

Test(cluster, what_rdma_could_not_register_is_told_where_there_is_rdma)
{
    const char *reason = NULL;
    struct kvp_cluster_params params = params_of(false, true);
    left_out = 3;
    cr_assert_eq(kvp_cluster_create(&params, &cluster), KVB_OK);
    cr_expect_eq(kvp_cluster_left_out(cluster, &reason), 0);
    kvp_cluster_destroy(cluster);
    params.rdma = rdma_memory;
    cr_assert_eq(kvp_cluster_create(&params, &cluster), KVB_OK);
    cr_expect_eq(kvp_cluster_left_out(cluster, &reason), 3);
    cr_expect_str_eq(reason, "too little");
}

Test(cluster, metrics_tell_of_every_node_and_of_those_that_left)
{
    struct kvb_metrics *metrics = kvb_metrics_create(kvp_metric_table, KVP_METRIC_COUNT);
    struct kvp_cluster_params params = params_of(true, true);
    const char *of_a[] = {"a"};
    const char *connects[] = {"a", "tcp", "connects"};
    const char *lanes[] = {"a", "tcp"};
    params.metrics = metrics;
    cr_assert_eq(kvp_cluster_create(&params, &cluster), KVB_OK);
    tell("a", "a:1", 50, 9, false);
    last_remote->status = (struct kvs_remote_status){.up = true, .objects = 3};
    last_remote->ways[0].stats = (struct kvt_peer_stats){.connects = 4, .lanes = 3};
    sim_advance(&sim, 2100);
    cr_expect_eq(kvb_series_value(kvb_series(metrics, KVP_M_NODE_UP, of_a)), 1);
    cr_expect_eq(kvb_series_value(kvb_series(metrics, KVP_M_NODE_OBJECTS, of_a)), 3);
    cr_expect_eq(kvb_series_value(kvb_series(metrics, KVP_M_NODE_FAILURES, of_a)), 7);
    cr_expect_eq(kvb_series_value(kvb_series(metrics, KVP_M_CONNECTIONS, connects)), 4);
    cr_expect_eq(kvb_series_value(kvb_series(metrics, KVP_M_LANES, lanes)), 3);
    watch->node_gone(watch_ctx, "a");
    cr_expect_eq(kvb_series_value(kvb_series(metrics, KVP_M_NODE_UP, of_a)), 0);
    cr_expect_eq(kvb_series_value(kvb_series(metrics, KVP_M_NODE_OBJECTS, of_a)), 0);
    kvp_cluster_destroy(cluster);
    cluster = NULL;
    kvb_metrics_destroy(metrics);
}

/* 1, 0, or -1: nothing is told of it. */
static int up(struct kvb_metrics *metrics, const char *node)
{
    char *text;
    char line[64];
    size_t len;
    cr_assert_eq(kvb_metrics_write(metrics, &text, &len), KVB_OK);
    snprintf(line, sizeof line, "\nkvplane_node_up{node=\"%s\"} ", node);
    const char *at = strstr(text, line);
    int value = at == NULL ? -1 : at[strlen(line)] - '0';
    free(text);
    return value;
}

Test(cluster, a_node_that_is_missed_is_told_of_for_a_day)
{
    enum { HOUR_MS = 3600 * 1000 };
    struct kvb_metrics *metrics = kvb_metrics_create(kvp_metric_table, KVP_METRIC_COUNT);
    struct kvp_cluster_params params = params_of(true, true);
    params.metrics = metrics;
    cr_assert_eq(kvp_cluster_create(&params, &cluster), KVB_OK);
    for (int i = 0; i < 3; i++) {
        const char *names[] = {"gone", "back", "left"};
        tell(names[i], "a:1", 50, 9, i == 2);
        last_remote->status.up = true;
    }
    sim_advance(&sim, 2100);
    cr_expect_eq(up(metrics, "gone"), 1);
    watch->node_gone(watch_ctx, "gone");
    watch->node_gone(watch_ctx, "back");
    watch->node_gone(watch_ctx, "left");
    finish_removals();
    cr_expect_eq(up(metrics, "gone"), 0);
    cr_expect_eq(up(metrics, "left"), -1, "it had said so");
    for (int i = 0; i < 23; i++) {
        sim_advance(&sim, HOUR_MS);
    }
    cr_expect_eq(up(metrics, "gone"), 0);
    tell("back", "a:1", 50, 10, false);
    last_remote->status.up = true;
    sim_advance(&sim, 2100);
    cr_expect_eq(up(metrics, "back"), 1);
    watch->node_gone(watch_ctx, "back");
    finish_removals();
    for (int i = 0; i < 2; i++) {
        sim_advance(&sim, HOUR_MS);
    }
    cr_expect_eq(up(metrics, "gone"), -1);
    cr_expect_eq(up(metrics, "back"), 0, "it is missed anew, from then on");
    kvp_cluster_destroy(cluster);
    cluster = NULL;
    kvb_metrics_destroy(metrics);
}

struct gathered {
    struct kvp_cluster_tenants ask;
    uint32_t done;
    uint32_t n;
    uint32_t silent;
    struct kvp_cluster_tenant tenants[4];
};

static void on_gathered(struct kvp_cluster_tenants *ask, const struct kvp_cluster_tenant *tenants,
                        uint32_t n, uint32_t silent)
{
    struct gathered *gathered = (struct gathered *)ask;
    gathered->done++;
    gathered->n = n;
    gathered->silent = silent;
    for (uint32_t i = 0; i < n; i++) {
        gathered->tenants[i] = tenants[i];
    }
}

Test(cluster, tenants_are_summed_over_the_nodes_that_answer)
{
    struct gathered gathered = {.ask = {on_gathered}};
    make(true, true);
    watch->quota(watch_ctx, "t", 1000);
    tell("a", "a:1", 50, 9, false);
    struct remote *a = last_remote;
    tell("b", "b:1", 50, 9, false);
    struct remote *b = last_remote;
    tell("c", "c:1", 50, 9, false);
    struct remote *c = last_remote;
    cr_assert_eq(kvp_cluster_ask_tenants(cluster, 1, &gathered.ask), KVB_OK);
    sim_advance(&sim, 1);
    remote_answer(a, KVB_OK, "t", 5, 2);
    remote_answer(b, KVB_ERR_TIMEOUT, NULL, 0, 0);
    cr_expect_eq(gathered.done, 0, "one has not answered");
    remote_answer(c, KVB_OK, "u", 7, 1);
    cr_assert_eq(gathered.done, 1);
    cr_assert_eq(gathered.n, 2);
    cr_expect_eq(gathered.silent, 1);
    cr_expect_str_eq(gathered.tenants[0].tenant, "t");
    cr_expect_eq(gathered.tenants[0].used_bytes, 15);
    cr_expect_eq(gathered.tenants[0].objects, 3);
    cr_expect_eq(gathered.tenants[0].quota_bytes, 1000);
    cr_expect_eq(gathered.tenants[1].quota_bytes, UINT64_MAX);
}

Test(cluster, without_other_nodes_the_answer_still_comes_later)
{
    struct gathered gathered = {.ask = {on_gathered}};
    make(true, true);
    cr_assert_eq(kvp_cluster_ask_tenants(cluster, 1, &gathered.ask), KVB_OK);
    cr_expect_eq(gathered.done, 0, "not inside the call");
    sim_advance(&sim, 1);
    cr_expect_eq(gathered.done, 1);
}

Test(cluster, a_node_that_cannot_be_asked_is_silent)
{
    struct gathered gathered = {.ask = {on_gathered}};
    make(true, true);
    tell("a", "a:1", 50, 9, false);
    ask_status = KVB_ERR_NO_MEMORY;
    cr_assert_eq(kvp_cluster_ask_tenants(cluster, 1, &gathered.ask), KVB_OK);
    sim_advance(&sim, 1);
    cr_expect_eq(gathered.done, 1);
    cr_expect_eq(gathered.silent, 1);
    cr_expect_eq(gathered.n, 1);
}

Test(cluster, a_node_that_left_is_kept_while_it_is_asked)
{
    struct gathered gathered = {.ask = {on_gathered}};
    make(false, true);
    tell("a", "a:1", 50, 9, false);
    struct remote *a = last_remote;
    cr_assert_eq(kvp_cluster_ask_tenants(cluster, 1, &gathered.ask), KVB_OK);
    watch->node_gone(watch_ctx, "a");
    finish_removals();
    cr_expect_eq(nremotes, 1);
    sim_advance(&sim, 1);
    remote_answer(a, KVB_OK, "t", 5, 2);
    cr_expect_eq(nremotes, 1, "not destroyed inside its own callback");
    cr_expect_eq(gathered.done, 1);
    sim_advance(&sim, 1);
    cr_expect_eq(nremotes, 0);
}

static uint32_t nlisted;
static kvb_status_t listed_status;

static void on_listed(struct kvp_cluster_list *ask, kvb_status_t status)
{
    (void)ask;
    nlisted++;
    listed_status = status;
}

Test(cluster, objects_are_asked_of_one_node_which_is_kept_meanwhile)
{
    static struct kvs_list list = {.tenant = "t", .max = 1};
    struct kvp_cluster_list ask = {.done = on_listed, .list = &list};
    make(true, true);
    tell("a", "a:1", 50, 9, false);
    struct remote *a = last_remote;
    cr_assert_eq(kvp_cluster_ask_list(cluster, "nobody", 1, &ask), KVB_ERR_NOT_FOUND);
    cr_assert_eq(kvp_cluster_ask_list(cluster, "own", 1, &ask), KVB_OK);
    cr_expect_eq(nlisted, 0, "not inside the call");
    sim_advance(&sim, 1);
    cr_expect_eq(nlisted, 1);
    cr_expect_eq(nlists, 1, "of the own share");
    cr_assert_eq(kvp_cluster_ask_list(cluster, "a", 1, &ask), KVB_OK);
    watch->node_gone(watch_ctx, "a");
    finish_removals();
    sim_advance(&sim, 1);
    struct kvs_remote_list *asked = a->list_ask;
    cr_assert_eq(asked->list, &list);
    a->list_ask = NULL;
    asked->done(asked, KVB_ERR_TIMEOUT);
    cr_expect_eq(nremotes, 1, "not destroyed inside its own callback");
    cr_expect_eq(nlisted, 2);
    cr_expect_eq(listed_status, KVB_ERR_TIMEOUT);
    sim_advance(&sim, 1);
    cr_expect_eq(nremotes, 0);
}

/* ---- leaving ---- */

static uint32_t nstopped;

static void on_stopped(void *ctx)
{
    (void)ctx;
    nstopped++;
}

Test(cluster, draining_is_announced_and_nothing_new_is_placed_here)
{
    make(true, true);
    kvp_cluster_drain(cluster);
    cr_expect(announced.draining);
    cr_expect(member("own")->readable_only);
}

Test(cluster, it_stops_when_the_share_is_withdrawn)
{
    make(true, true);
    kvp_cluster_stop(cluster, 3000, on_stopped, NULL);
    sim_advance(&sim, 2000);
    cr_expect_eq(nstopped, 0);
    withdrawal->done(withdrawal, KVB_OK);
    cr_expect_eq(nstopped, 1);
    sim_advance(&sim, 5000);
    cr_expect_eq(nstopped, 1);
    struct gathered gathered = {.ask = {on_gathered}};
    cr_expect_eq(kvp_cluster_ask_tenants(cluster, 1, &gathered.ask), KVB_ERR_CANCELED);
}

Test(cluster, what_the_coordinator_told_is_as_old_as_it_is_away)
{
    make(true, true);
    cr_expect_eq(kvp_cluster_away_ns(cluster), 0, "it never told anything");
    watch->reachable(watch_ctx, true);
    cr_expect_eq(kvp_cluster_away_ns(cluster), 0);
    sim_advance(&sim, 5);
    uint64_t went_ns = kvb_now_ns(sim.sched.clock);
    watch->reachable(watch_ctx, false);
    sim_advance(&sim, 5);
    watch->reachable(watch_ctx, false); /* said again */
    cr_expect_eq(kvp_cluster_away_ns(cluster), went_ns);
    watch->reachable(watch_ctx, true);
    cr_expect_eq(kvp_cluster_away_ns(cluster), 0);
}

Test(cluster, a_silent_etcd_holds_nobody_up)
{
    make(true, true);
    kvp_cluster_stop(cluster, 3000, on_stopped, NULL);
    sim_advance(&sim, 3001);
    cr_expect_eq(nstopped, 1);
    withdrawal->done(withdrawal, KVB_ERR_CANCELED); /* when the coordinator is destroyed */
    cr_expect_eq(nstopped, 1);
}

Test(cluster, without_a_share_it_stops_at_once_but_not_inside_the_call_nor_under_a_question)
{
    struct gathered gathered = {.ask = {on_gathered}};
    make(false, true);
    tell("a", "a:1", 50, 9, false);
    cr_assert_eq(kvp_cluster_ask_tenants(cluster, 1, &gathered.ask), KVB_OK);
    kvp_cluster_stop(cluster, 3000, on_stopped, NULL);
    sim_advance(&sim, 10);
    cr_expect_eq(nstopped, 0);
    remote_answer(last_remote, KVB_ERR_TIMEOUT, NULL, 0, 0);
    cr_expect_eq(nstopped, 1);
    cr_expect_null(withdrawal);
}
