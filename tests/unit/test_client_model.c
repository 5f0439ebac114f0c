/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations of many tenants on a client over several nodes, beside a model of what each may
 * see: puts, gets, lookups with and without holds, removes, quotas, retired lineages, tenants that
 * are removed, evictions, nodes that come and go. The model knows nothing of nodes, shards or
 * eviction; it knows what may be there.
 *
 * A tenant whose objects nothing may take away (no quota, room for all) is modelled exactly: what
 * it put is there until it removes it itself, whatever the others do. One with a quota loses
 * objects only by its own puts. Where there is not room for all, an object may be missing, but what
 * is read is always what was put, under that key, by that tenant, under that lineage.
 *
 * One node is in this process, the others lie behind connections, of a simulated network.
 *
 * Each tenant has several lineages at once, as in a rolling update: the same keys, other values.
 */
#include "sim_net.h"
#include "sim_sched.h"
#include "test_memory.h"
#include "test_values.h"

#include "base/log.h"
#include "store/client.h"
#include "store/node.h"
#include "store/service.h"
#include "store/share.h"

#include <criterion/criterion.h>

#define NODES    4u
#define TENANTS  6u
#define LAYOUTS  2u
#define LINEAGES 2u /* at once, of one space */
#define KEYS     24u
#define PARTS    2u
#define JOBS     6u
#define ITEMS    8u
#define LEN_MAX  20000u
#define SLOT     (LEN_MAX + 64u) /* what follows a value has to stay as it is */

/* Names that a careless store would confuse (kvcache-ai/Mooncake issue 2153, B22). */
static const char *const tenants[TENANTS] = {
    "a",       "a/b",   "A",
    "default", "a%2Fb", "a-tenant-with-the-longest-name-that-there-is-0123456789-0123456"};
static const char *const layouts[LAYOUTS] = {"l", "c/l"};

struct object {
    bool maybe;         /* it may be there */
    uint32_t puts;      /* begun, so far */
    uint32_t in_flight; /* puts */
};

struct lineage {
    struct kvb_lineage id;
    uint64_t serial; /* unique: what its values are made from */
    struct object objects[KEYS][PARTS];
};

struct store {
    struct kvs_share *share;
    struct kvs_keeper keeper;
    struct kvs_node *node;
    struct kvs_service *service; /* NULL: it is in this process */
    struct sim_net net;
    struct sim_side side;
    char name[16];
    bool in;
    bool leaving;
};

struct model;

struct job {
    struct model *model;
    bool running;
    struct kvs_space space;
    struct kvs_batch batch;
    struct kvs_item items[ITEMS];
    struct kvt_slice slices[ITEMS];
    uint32_t tenant, layout, slot; /* of the lineage */
    uint64_t serial;
    uint32_t key[ITEMS], part[ITEMS];
    bool maybe[ITEMS];    /* at the begin */
    uint32_t puts[ITEMS]; /* at the begin */
    uint64_t offset[ITEMS];
    bool limited;       /* the tenant had a quota at the begin */
    uint32_t clearings; /* of the tenant, at the begin */
};

struct model {
    struct sim_sched sim;
    struct kvt_regions *regions;
    struct kvt_transport *transport;
    struct test_memory memory;
    struct kvt_region *region;
    struct kvs_client *client;
    struct store stores[NODES];
    struct lineage lineages[TENANTS][LAYOUTS][LINEAGES];
    uint8_t keys[KEYS][512];
    uint32_t key_len[KEYS];
    bool exact[TENANTS];
    uint64_t quota[TENANTS]; /* UINT64_MAX: none */
    uint32_t clearings[TENANTS];
    bool members_change;
    bool same_lineages; /* all tenants and layouts have lineages of the same ids: never retired */
    struct job *jobs;
    uint64_t serial;
    uint64_t step;
    uint64_t hits, misses, stored, refused, removed, retired;
};

#define check(m, condition, ...)                                                                   \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "KVPLANE_SEED=%llu step %llu: ", (unsigned long long)(m)->sim.seed,    \
                    (unsigned long long)(m)->step);                                                \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            cr_assert_fail("%s", #condition);                                                      \
        }                                                                                          \
    } while (0)

static uint32_t below(struct model *m, uint32_t n)
{
    return (uint32_t)sim_below(&m->sim, n);
}

static void poked(void *ctx)
{
    kvs_keeper_woken(ctx);
}

static void renew_lineage(struct model *m, struct lineage *lineage)
{
    *lineage = (struct lineage){.serial = ++m->serial};
    m->sim.random.fill(m->sim.random.ctx, &lineage->id, sizeof lineage->id);
}

static void make_keys(struct model *m)
{
    static const char *const odd[] = {"b/c", "c", "", "/", "b/c/", "b"};
    for (uint32_t k = 0; k < KEYS; k++) {
        size_t n = k < sizeof odd / sizeof odd[0] ? strlen(odd[k]) : 1 + below(m, 40);
        n = k == KEYS - 1 ? 511 : n;
        memset(m->keys[k], k % 3 == 0 ? 0 : 'k', sizeof m->keys[k]);
        if (k < sizeof odd / sizeof odd[0]) {
            memcpy(m->keys[k], odd[k], n);
        } else {
            m->keys[k][n] = (uint8_t)k;
        }
        m->key_len[k] = (uint32_t)n + (k >= sizeof odd / sizeof odd[0] || n == 0);
    }
}

static void on_accept(void *ctx, int fd)
{
    struct store *store = ctx;
    cr_assert_eq(kvs_service_adopt(store->service, fd), KVB_OK);
}

static bool is_up(void *arg)
{
    struct kvs_remote_status status;
    kvs_remote_status(arg, &status);
    return status.up;
}

static void open_here(struct model *m, struct store *store)
{
    const struct kvs_node_config node = {.hold_ms = 500};
    cr_assert_eq(kvs_node_create(&m->sim.sched, m->transport, store->share, &node, &store->node),
                 KVB_OK);
}

static void open_behind_connections(struct model *m, struct store *store)
{
    const struct kvt_peer_common common = {.net = &store->net.base};
    store->side = (struct sim_side){.accept = on_accept, .ctx = store};
    sim_net_init(&store->net, &m->sim, &store->side);
    const struct kvs_service_config service = {
        .sched = &m->sim.sched,
        .share = store->share,
        .common = common,
        .name = store->name,
        .incarnation = 1,
        .hold_ms = 500,
    };
    cr_assert_eq(kvs_service_create(&service, &store->service), KVB_OK);
    const struct kvs_remote_config remote = {
        .sched = &m->sim.sched,
        .regions = m->regions,
        .ways = {{&kvs_by_tcp,
                  &(struct kvt_tcp_peer_config){.common = common, .address = "node:1"}}},
    };
    cr_assert_eq(kvs_remote_create(&remote, &store->node), KVB_OK);
    cr_assert(sim_run_until(&m->sim, is_up, store->node, 1000));
}

static uint32_t calls_of(const struct store *store)
{
    return store->service == NULL ? kvs_node_calls(store->node) : kvs_remote_calls(store->node);
}

static void close_store(struct store *store)
{
    kvs_keeper_stop(&store->keeper);
    if (store->service == NULL) {
        kvs_node_destroy(store->node);
    } else {
        kvs_remote_destroy(store->node);
        kvs_service_destroy(store->service);
    }
    kvs_share_destroy(store->share);
}

static void open_store(struct model *m, uint32_t i, uint64_t share_bytes)
{
    struct store *store = &m->stores[i];
    const struct kvs_share_config share = {.bytes = share_bytes, .shards = 1 + i % 3};
    (void)snprintf(store->name, sizeof store->name, "store-%u", i);
    cr_assert_eq(kvs_share_create(&m->sim.random, &share, &store->share), KVB_OK);
    kvs_keeper_start(&store->keeper, store->share, &m->sim.sched, poked, &store->keeper);
    if (i == 0) {
        open_here(m, store);
    } else {
        open_behind_connections(m, store);
    }
    cr_assert_eq(kvs_client_add_node(m->client, store->name, store->node, share_bytes), KVB_OK);
    store->in = true;
}

static void open_model(struct model *m, uint64_t seed, uint64_t share_bytes)
{
    *m = (struct model){.jobs = calloc(JOBS, sizeof *m->jobs)};
    sim_init(&m->sim, sim_seed(seed));
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    cr_assert_eq(kvt_regions_create(&m->sim.sched, &m->regions), KVB_OK);
    cr_assert_eq(kvt_loopback_create(m->regions, 16, &m->transport), KVB_OK);
    cr_assert_eq(kvs_client_create(&m->sim.sched, &m->client), KVB_OK);
    test_memory_init(&m->memory, "engine", (size_t)JOBS * ITEMS * SLOT);
    struct kvt_region_desc desc = {.number = 1, .tag = "kv_cache", .len = m->memory.len};
    const char *reason;
    cr_assert_eq(
        kvt_region_create(m->regions, &desc, test_memory_dup(&m->memory), &m->region, &reason),
        KVB_OK);
    cr_assert_eq(kvt_region_register(m->region), KVB_OK);
    make_keys(m);
    for (uint32_t i = 0; i < NODES; i++) {
        open_store(m, i, share_bytes);
    }
    for (uint32_t t = 0; t < TENANTS; t++) {
        m->quota[t] = UINT64_MAX;
        for (uint32_t i = 0; i < LAYOUTS * LINEAGES; i++) {
            renew_lineage(m, &m->lineages[t][i / LINEAGES][i % LINEAGES]);
        }
    }
}

static void unregistered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    (void)region;
    cr_assert_eq(status, KVB_OK);
    *(bool *)arg = true;
}

static void close_model(struct model *m)
{
    bool done = false;
    for (uint32_t i = 0; i < NODES; i++) { /* everything goes back to where it began */
        kvs_share_clear(m->stores[i].share);
    }
    sim_advance(&m->sim, 60000); /* holds end */
    for (uint32_t i = 0; i < NODES; i++) {
        struct kvs_share_stats stats;
        kvs_share_stats(m->stores[i].share, &stats);
        check(m, stats.core.used_bytes == 0, "%lu bytes are left", stats.core.used_bytes);
        check(m, kvs_share_validate(m->stores[i].share) == NULL, "%s",
              kvs_share_validate(m->stores[i].share));
    }
    kvt_region_unregister(m->region, sim_in_ms(&m->sim, 1), sim_in_ms(&m->sim, 2), unregistered,
                          &done);
    cr_assert(sim_run_until_true(&m->sim, &done, 10));
    kvt_region_destroy(m->region);
    kvs_client_destroy(m->client);
    for (uint32_t i = 0; i < NODES; i++) {
        close_store(&m->stores[i]);
    }
    kvt_transport_destroy(m->transport);
    kvt_regions_destroy(m->regions);
    test_memory_cleanup(&m->memory);
    sim_cleanup(&m->sim);
    free(m->jobs);
}

/* ---- batches ---- */

static uint64_t len_of(uint32_t key, uint32_t part)
{
    static const uint64_t lens[] = {1, 4096, 777, LEN_MAX, 64, 9000};
    return lens[(key + part) % (sizeof lens / sizeof lens[0])];
}

/* Everything that makes bytes different is in there. */
static uint64_t weights_of(const struct job *job, uint32_t i)
{
    return (job->serial << 8) + (job->layout << 4) + job->part[i];
}

static struct lineage *lineage_of(struct job *job)
{
    return &job->model->lineages[job->tenant][job->layout][job->slot];
}

static struct object *object_of(struct job *job, uint32_t i)
{
    return &lineage_of(job)->objects[job->key[i]][job->part[i]];
}

/* The lineage was retired meanwhile: its place has another one now. */
static bool retired(struct job *job)
{
    return lineage_of(job)->serial != job->serial;
}

static uint8_t *bytes_of(struct job *job, uint32_t i)
{
    return job->model->memory.base + job->offset[i];
}

static void end_put(struct job *job, uint32_t i)
{
    struct model *m = job->model;
    kvb_status_t status = job->items[i].status;
    bool stored = status == KVB_OK || status == KVB_ERR_EXISTS;
    m->stored += stored;
    m->refused += !stored;
    if (retired(job)) {
        return;
    }
    object_of(job, i)->in_flight--;
    if (m->exact[job->tenant]) {
        check(m, stored, "put of %s: %s", tenants[job->tenant], kvb_status_label(status));
    } else {
        check(m,
              stored || status == KVB_ERR_NO_SPACE || status == KVB_ERR_QUOTA ||
                  (m->members_change && status == KVB_ERR_UNAVAILABLE) ||
                  (status == KVB_ERR_FENCED && job->clearings != m->clearings[job->tenant]),
              "put of %s: %s", tenants[job->tenant], kvb_status_label(status));
        check(m, status != KVB_ERR_QUOTA || job->limited || m->quota[job->tenant] != UINT64_MAX,
              "%s has no quota", tenants[job->tenant]);
    }
}

/* What was found: may it be? What was not: may it be missing? */
static void judge_presence(struct job *job, uint32_t i)
{
    struct model *m = job->model;
    kvb_status_t status = job->items[i].status;
    bool now =
        !retired(job) && (object_of(job, i)->maybe || object_of(job, i)->puts != job->puts[i]);
    m->hits += status == KVB_OK;
    m->misses += status != KVB_OK;
    if (status == KVB_OK) {
        check(m, job->maybe[i] || now, "%s found what is not there", tenants[job->tenant]);
        check(m, job->items[i].len == len_of(job->key[i], job->part[i]), "of another length");
    } else {
        check(m, job->items[i].len == 0 || job->batch.op == KVS_GET, "a miss has no length");
        check(m,
              status == KVB_ERR_NOT_FOUND || (m->members_change && status == KVB_ERR_UNAVAILABLE) ||
                  (!m->exact[job->tenant] && status == KVB_ERR_TICKET),
              "%s", kvb_status_label(status));
        check(m,
              !m->exact[job->tenant] || !job->maybe[i] || retired(job) ||
                  !object_of(job, i)->maybe || object_of(job, i)->in_flight > 0,
              "%s lost key %u", tenants[job->tenant], job->key[i]);
    }
}

static void end_get(struct job *job, uint32_t i)
{
    struct model *m = job->model;
    uint8_t *bytes = bytes_of(job, i);
    uint64_t len = len_of(job->key[i], job->part[i]);
    uint64_t from = 0; /* untouched from here on */
    judge_presence(job, i);
    if (job->items[i].status == KVB_OK) {
        uint64_t right = test_value_check(bytes, len, tenants[job->tenant], m->keys[job->key[i]],
                                          m->key_len[job->key[i]], weights_of(job, i));
        check(m, right == len, "%s: byte %lu of key %u is not what was put", tenants[job->tenant],
              right, job->key[i]);
        from = len;
    } else if (job->items[i].status != KVB_ERR_NOT_FOUND) {
        from = len;
    }
    for (uint64_t b = from; b < SLOT; b++) {
        check(m, bytes[b] == TEST_PREFILL, "byte %lu was written", b);
    }
}

static void end_remove(struct job *job, uint32_t i)
{
    struct model *m = job->model;
    kvb_status_t status = job->items[i].status;
    check(m,
          status == KVB_OK || status == KVB_ERR_NOT_FOUND ||
              (!job->batch.force && status == KVB_ERR_BUSY) ||
              (m->members_change && status == KVB_ERR_UNAVAILABLE),
          "remove: %s", kvb_status_label(status));
    m->removed += status == KVB_OK;
    if (retired(job)) {
        return;
    }
    struct object *object = object_of(job, i);
    bool quiet = object->puts == job->puts[i] && object->in_flight == 0;
    if (m->exact[job->tenant] && quiet && job->maybe[i] && object->maybe) {
        check(m, status != KVB_ERR_NOT_FOUND, "%s lost key %u", tenants[job->tenant], job->key[i]);
    }
    if (quiet && (status == KVB_OK || status == KVB_ERR_NOT_FOUND)) {
        object->maybe = false;
    }
}

static void on_done(struct kvs_batch *batch)
{
    struct job *job = kvb_container_of(batch, struct job, batch);
    static void (*const ends[KVS_BATCH_OPS])(struct job *, uint32_t) = {
        [KVS_EXISTS] = judge_presence,
        [KVS_PUT] = end_put,
        [KVS_GET] = end_get,
        [KVS_REMOVE] = end_remove,
    };
    check(job->model, job->running, "done twice");
    job->running = false;
    for (uint32_t i = 0; i < batch->nitems; i++) {
        ends[batch->op](job, i);
    }
}

static void add_item(struct job *job, uint32_t i)
{
    struct model *m = job->model;
    struct object *object;
    bool again;
    do { /* no key twice in one batch: which of two results is which would be a matter of taste */
        job->key[i] = below(m, KEYS);
        job->part[i] = below(m, PARTS);
        again = false;
        for (uint32_t k = 0; k < i; k++) {
            again = again || (job->key[k] == job->key[i] && job->part[k] == job->part[i]);
        }
    } while (again);
    object = object_of(job, i);
    uint64_t len = len_of(job->key[i], job->part[i]);
    job->offset[i] = ((uint64_t)(job - m->jobs) * ITEMS + i) * SLOT;
    job->slices[i] = (struct kvt_slice){m->region, job->offset[i], len};
    uint32_t leader = job->key[i] / 4 * 4; /* some tenants place blocks together */
    bool together = job->tenant % 2 == 0;
    job->items[i] = (struct kvs_item){
        .key = {m->keys[job->key[i]], m->key_len[job->key[i]]},
        .placement = together ? (struct kvb_span){m->keys[leader], m->key_len[leader]}
                              : (struct kvb_span){NULL, 0},
        .part = job->part[i],
        .slices = &job->slices[i],
        .nslices = 1,
    };
    memset(bytes_of(job, i), TEST_PREFILL, SLOT);
    if (job->batch.op == KVS_PUT) {
        test_value_fill(bytes_of(job, i), len, tenants[job->tenant], m->keys[job->key[i]],
                        m->key_len[job->key[i]], weights_of(job, i));
        object->maybe = true;
        object->puts++;
        object->in_flight++;
    }
    job->maybe[i] = object->maybe;
    job->puts[i] = object->puts;
}

static void begin_job(struct model *m, struct job *job)
{
    static const enum kvs_batch_op ops[] = {KVS_PUT, KVS_PUT,    KVS_GET,   KVS_GET,
                                            KVS_GET, KVS_EXISTS, KVS_REMOVE};
    *job = (struct job){.model = m,
                        .running = true,
                        .tenant = below(m, TENANTS),
                        .layout = below(m, LAYOUTS),
                        .slot = below(m, LINEAGES)};
    job->serial = lineage_of(job)->serial;
    job->clearings = m->clearings[job->tenant];
    job->limited = m->quota[job->tenant] != UINT64_MAX;
    strcpy(job->space.tenant, tenants[job->tenant]);
    strcpy(job->space.layout, layouts[job->layout]);
    job->batch = (struct kvs_batch){
        .op = ops[below(m, sizeof ops / sizeof ops[0])],
        .space = &job->space,
        .lineage = lineage_of(job)->id,
        .hold = {.instance = below(m, 3), .request = below(m, 4)},
        .force = below(m, 2) == 0,
        .deadline_ns = sim_in_ms(&m->sim, 60000),
        .items = job->items,
        .nitems = 1 + below(m, ITEMS),
        .done = on_done,
    };
    for (uint32_t i = 0; i < job->batch.nitems; i++) {
        add_item(job, i);
    }
    check(m, kvs_client_submit(m->client, &job->batch) == KVB_OK, "submit");
}

/* ---- what else happens ---- */

static void retire_lineage(struct model *m)
{
    struct lineage *lineage =
        &m->lineages[below(m, TENANTS)][below(m, LAYOUTS)][below(m, LINEAGES)];
    for (uint32_t i = 0; i < NODES; i++) {
        kvs_share_retire(m->stores[i].share, &lineage->id, 1);
    }
    renew_lineage(m, lineage);
    m->retired++;
}

/* All of a tenant's objects. What is being put survives or not. */
static void remove_tenant(struct model *m)
{
    uint32_t t = below(m, TENANTS);
    m->clearings[t]++;
    for (uint32_t i = 0; i < NODES; i++) {
        kvs_share_remove_tenant(m->stores[i].share, tenants[t]);
    }
    for (uint32_t l = 0; l < LAYOUTS * LINEAGES; l++) {
        struct lineage *lineage = &m->lineages[t][l / LINEAGES][l % LINEAGES];
        for (uint32_t o = 0; o < KEYS * PARTS; o++) {
            struct object *object = &lineage->objects[o / PARTS][o % PARTS];
            object->maybe = object->in_flight > 0;
        }
    }
}

static void set_quota(struct model *m)
{
    uint32_t t = below(m, TENANTS);
    if (m->exact[t]) {
        return;
    }
    m->quota[t] = below(m, 4) == 0 ? UINT64_MAX : (uint64_t)below(m, 400) << 10;
    for (uint32_t i = 0; i < NODES; i++) {
        uint64_t part = m->quota[t] == UINT64_MAX ? UINT64_MAX : m->quota[t] / NODES;
        check(m, kvs_share_set_quota(m->stores[i].share, tenants[t], part) == KVB_OK, "quota");
    }
}

static void on_removed(void *ctx, struct kvs_node *node)
{
    struct store *store = ctx;
    cr_assert_eq(store->node, node);
    cr_assert_eq(calls_of(store), 0);
    kvs_share_clear(store->share); /* it comes back with nothing, as a new process does */
    store->leaving = false;
}

static void change_members(struct model *m)
{
    struct store *store = &m->stores[below(m, NODES)];
    if (!store->in && !store->leaving) {
        check(m,
              kvs_client_add_node(m->client, store->name, store->node, 1 + below(m, 3)) == KVB_OK,
              "add");
        store->in = true;
    } else if (store->in && below(m, 2) == 0) {
        check(m, kvs_client_remove_node(m->client, store->name, on_removed, store) == KVB_OK,
              "remove");
        store->in = false;
        store->leaving = true;
    } else if (store->in) {
        check(m,
              kvs_client_set_node(m->client, store->name, 1 + below(m, 3), below(m, 2)) == KVB_OK,
              "set");
    }
}

static void happen(struct model *m)
{
    switch (below(m, 24)) {
    case 0:
        if (!m->same_lineages) {
            retire_lineage(m);
        }
        break;
    case 1:
        if (below(m, 10) == 0) {
            remove_tenant(m);
        }
        break;
    case 2:
        set_quota(m);
        break;
    case 3:
        if (m->members_change) {
            change_members(m);
        }
        break;
    case 4:
        kvs_client_discard(m->client, (struct kvs_hold){1 + below(m, 2), below(m, 4)});
        break;
    case 5:
        kvs_client_discard_instance(m->client, 1 + below(m, 2));
        break;
    default:
        sim_advance(&m->sim, below(m, 20));
    }
}

/* What the tenants have, by the nodes' own count, where the model knows it. */
static void compare_counts(struct model *m)
{
    for (uint32_t t = 0; t < TENANTS; t++) {
        uint64_t there = 0, may = 0;
        for (uint32_t i = 0; i < NODES; i++) {
            struct kvs_core_tenant_stats stats;
            kvs_share_tenant_stats(m->stores[i].share, tenants[t], &stats);
            there += stats.objects;
            check(m, kvs_share_validate(m->stores[i].share) == NULL, "%s",
                  kvs_share_validate(m->stores[i].share));
        }
        for (uint32_t l = 0; l < LAYOUTS * LINEAGES; l++) {
            for (uint32_t o = 0; o < KEYS * PARTS; o++) {
                may +=
                    m->lineages[t][l / LINEAGES][l % LINEAGES].objects[o / PARTS][o % PARTS].maybe;
            }
        }
        check(m, m->exact[t] ? there == may : m->members_change || there <= may,
              "%s has %lu objects, not %lu", tenants[t], there, may);
    }
}

static bool is_done(void *arg)
{
    return !((const struct job *)arg)->running;
}

static void run(struct model *m, uint32_t steps, uint32_t jobs)
{
    for (m->step = 0; m->step < steps; m->step++) {
        struct job *job = &m->jobs[below(m, jobs)];
        if (!job->running) {
            begin_job(m, job);
        }
        if (jobs == 1) {
            check(m, sim_run_until(&m->sim, is_done, job, 1000), "stuck");
        } else {
            for (uint32_t turns = below(m, 4); turns > 0; turns--) {
                (void)sim_turn(&m->sim);
            }
        }
        happen(m);
        if (m->step % 500 == 0) {
            for (uint32_t i = 0; i < jobs; i++) {
                check(m, sim_run_until(&m->sim, is_done, &m->jobs[i], 1000), "stuck");
            }
            sim_settle(&m->sim);
            compare_counts(m);
        }
    }
    sim_settle(&m->sim);
    fprintf(stderr,
            "seed %llu: %lu hits, %lu misses, %lu stored, %lu refused, %lu removed, %lu lineages "
            "retired\n",
            (unsigned long long)m->sim.seed, m->hits, m->misses, m->stored, m->refused, m->removed,
            m->retired);
    cr_assert(m->hits > steps / 10 && m->misses > steps / 4 && m->stored > steps / 4);
}

/* Room for everything and no quotas: nothing ever goes but by its owner's will. */
Test(client_model, what_a_tenant_put_is_there_until_it_removes_it)
{
    struct model *m = malloc(sizeof *m);
    open_model(m, 11, 64ull << 20);
    for (uint32_t t = 0; t < TENANTS; t++) {
        m->exact[t] = true;
    }
    run(m, 12000, 1);
    cr_assert_eq(m->refused, 0);
    close_model(m);
    free(m);
}

/* Not even the lineage tells them apart: the tenant and the layout do. */
Test(client_model, tenants_and_layouts_are_apart_under_one_lineage)
{
    struct model *m = malloc(sizeof *m);
    open_model(m, 15, 64ull << 20);
    m->same_lineages = true;
    for (uint32_t t = 0; t < TENANTS; t++) {
        m->exact[t] = true;
        for (uint32_t i = 0; i < LAYOUTS * LINEAGES; i++) {
            m->lineages[t][i / LINEAGES][i % LINEAGES].id =
                (struct kvb_lineage){.id = {.hi = 1, .lo = i % LINEAGES}};
        }
    }
    run(m, 8000, 1);
    close_model(m);
    free(m);
}

static void on_one(struct kvs_batch *batch)
{
    kvb_container_of(batch, struct job, batch)->running = false;
}

static kvb_status_t one(struct model *m, enum kvs_batch_op op, uint32_t tenant)
{
    struct job *job = &m->jobs[0];
    *job = (struct job){.model = m, .running = true, .serial = tenant};
    (void)snprintf(job->space.tenant, sizeof job->space.tenant, "tenant-%03u", tenant);
    job->slices[0] = (struct kvt_slice){m->region, 0, 5000};
    job->items[0] =
        (struct kvs_item){.key = {(const uint8_t *)"key", 3}, .slices = job->slices, .nslices = 1};
    job->batch = (struct kvs_batch){.op = op,
                                    .space = &job->space,
                                    .lineage = {.id = {1, 1}},
                                    .deadline_ns = sim_in_ms(&m->sim, 60000),
                                    .items = job->items,
                                    .nitems = 1,
                                    .done = on_one};
    if (op == KVS_PUT) {
        test_value_fill(m->memory.base, 5000, job->space.tenant, "key", 3, tenant);
    } else {
        memset(m->memory.base, TEST_PREFILL, 5000);
    }
    cr_assert_eq(kvs_client_submit(m->client, &job->batch), KVB_OK);
    cr_assert(sim_run_until(&m->sim, is_done, job, 1000));
    if (op == KVS_GET && job->items[0].status == KVB_OK) {
        cr_assert_eq(test_value_check(m->memory.base, 5000, job->space.tenant, "key", 3, tenant),
                     5000);
    }
    return job->items[0].status;
}

/* More than any table on the way remembers at once, with names of one length and one key. */
Test(client_model, very_many_tenants_are_apart)
{
    struct model *m = malloc(sizeof *m);
    open_model(m, 16, 16ull << 20);
    for (uint32_t t = 0; t < 600; t++) {
        cr_assert_eq(one(m, KVS_GET, t), KVB_ERR_NOT_FOUND, "tenant %u", t);
        cr_assert_eq(one(m, KVS_PUT, t), KVB_OK, "tenant %u", t);
    }
    for (uint32_t t = 0; t < 600; t += 2) {
        cr_assert_eq(one(m, KVS_REMOVE, t), KVB_OK);
    }
    for (uint32_t t = 0; t < 600; t++) {
        cr_assert_eq(one(m, KVS_GET, t), t % 2 == 0 ? KVB_ERR_NOT_FOUND : KVB_OK, "tenant %u", t);
    }
    close_model(m);
    free(m);
}

/* Half of the tenants have quotas, and press against them: the others lose nothing. */
Test(client_model, the_quota_of_one_takes_nothing_from_another)
{
    struct model *m = malloc(sizeof *m);
    open_model(m, 12, 64ull << 20);
    for (uint32_t t = 0; t < TENANTS; t++) {
        m->exact[t] = t % 2 == 0;
    }
    run(m, 12000, 1);
    cr_assert_gt(m->refused, 0);
    close_model(m);
    free(m);
}

/* Several batches at once: puts, gets, removes and retirements race. */
Test(client_model, batches_that_race_see_only_their_own)
{
    struct model *m = malloc(sizeof *m);
    open_model(m, 13, 64ull << 20);
    run(m, 12000, JOBS);
    close_model(m);
    free(m);
}

/* Far from room for all, and nodes come and go. */
Test(client_model, what_is_evicted_is_missed_and_never_something_else)
{
    struct model *m = malloc(sizeof *m);
    open_model(m, 14, 1ull << 20);
    m->members_change = true;
    run(m, 30000, JOBS);
    close_model(m);
    free(m);
}
