/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client process: batches of every kind, several at once, of any tenant, mostly under the lineage
 * that its name stands for now, and sometimes under one of before. Judges every answer.
 */
#include "store/client.h"

#include "history.h"
#include "loop.h"
#include "test_memory.h"
#include "test_values.h"

#include "base/log.h"
#include "store/service.h"

#include <stdlib.h>
#include <unistd.h>

#define JOBS        6u
#define ITEMS       6u
#define LEN_MAX     (1u << 20)
#define GAP         40u /* beside each value, never to be written */
#define SLOT        (LEN_MAX + 2 * GAP)
#define SLICES      3u
#define DEADLINE_MS 4000
#define NEVER_MS    15000 /* a batch that is not done by then is lost */
#define TICK_MS     50

struct client;

struct job {
    struct client *client;
    bool running;
    uint64_t begun_ns;
    struct kvb_timer cancel;
    struct kvs_space space;
    struct kvs_batch batch;
    struct kvs_item items[ITEMS];
    struct kvt_slice slices[ITEMS][SLICES];
    uint32_t tenant;
    uint64_t serial;
    struct {
        uint32_t key, part;
        uint8_t name[24];
        uint32_t name_len;
        uint8_t placement[24];
        uint32_t begun, under_way; /* puts, at the begin */
        bool absent;               /* at the begin */
        uint8_t *slot;
    } of[ITEMS];
};

struct client {
    struct shared *shared;
    char name[32];
    uint64_t random;
    struct kvp_loop *loop;
    struct kvt_net *net;
    struct kvt_regions *regions;
    struct test_memory memory;
    struct kvt_region *region;
    struct kvs_client *store;
    struct kvs_node *nodes[NODES];
    uint32_t removed; /* nodes */
    bool unregistered;
    bool ending;
    struct kvb_timer tick;
    struct job jobs[JOBS];
};

#define fail(client, ...) history_fail((client)->shared, (client)->name, __VA_ARGS__)

static void must(struct client *client, bool condition, const char *what)
{
    if (!condition) {
        fail(client, "%s", what);
    }
}

/* ---- what a job is about ---- */

static struct lineage *lineage_of(const struct job *job)
{
    return &job->client->shared->lineages[job->tenant][job->serial];
}

static struct object *object_of(const struct job *job, uint32_t i)
{
    return &lineage_of(job)->objects[job->of[i].key][job->of[i].part];
}

static uint64_t len_of(uint32_t key, uint32_t part)
{
    static const uint64_t lens[] = {1,    4096, 700,  4096, 16384, 33,     4096,
                                    9001, 4096, 2048, 4096, 70001, LEN_MAX};
    return lens[(key * 3 + part) % (sizeof lens / sizeof lens[0])];
}

static uint64_t weights_of(const struct job *job, uint32_t i)
{
    return job->serial * 16 + job->of[i].part;
}

static bool same_object(const struct job *job, uint32_t a, uint32_t b)
{
    return job->of[a].key == job->of[b].key && job->of[a].part == job->of[b].part;
}

/* ---- judging ---- */

static void judge_found(const struct job *job, uint32_t i)
{
    struct client *client = job->client;
    const struct object *object = object_of(job, i);
    uint64_t retired_ns = atomic_load(&lineage_of(job)->retired_ns);
    if (retired_ns != 0 && retired_ns < job->begun_ns) {
        fail(client, "stale: %s %s of lineage %lu, retired %lu us before", job->space.tenant,
             (const char *)job->of[i].name, job->serial, (job->begun_ns - retired_ns) / 1000);
    }
    if (atomic_load(&object->begun) == 0) {
        fail(client, "found what nobody has put: %s %s", job->space.tenant,
             (const char *)job->of[i].name);
    }
    if (job->of[i].absent && atomic_load(&object->begun) == job->of[i].begun) {
        fail(client, "found what was removed: %s %s of lineage %lu", job->space.tenant,
             (const char *)job->of[i].name, job->serial);
    }
    uint64_t len = len_of(job->of[i].key, job->of[i].part);
    if (job->items[i].len != len) {
        fail(client, "%lu bytes, not %lu: %s %s", job->items[i].len, len, job->space.tenant,
             (const char *)job->of[i].name);
    }
}

static void judge_outside(const struct job *job, uint32_t i)
{
    uint64_t len = len_of(job->of[i].key, job->of[i].part);
    const uint8_t *slot = job->of[i].slot;
    for (uint64_t b = 0; b < 2 * GAP; b++) {
        uint64_t at = b < GAP ? b : b + len;
        if (slot[at] != TEST_PREFILL) {
            fail(job->client, "byte %lu beside %lu was written: %s", at, len,
                 (const char *)job->of[i].name);
        }
    }
}

static void end_get(struct job *job, uint32_t i)
{
    struct shared *shared = job->client->shared;
    (void)atomic_fetch_add(&shared->gets, 1);
    judge_outside(job, i);
    if (job->items[i].status != KVB_OK) {
        return;
    }
    (void)atomic_fetch_add(&shared->hits, 1);
    judge_found(job, i);
    uint64_t len = len_of(job->of[i].key, job->of[i].part);
    uint64_t right = test_value_check(job->of[i].slot + GAP, len, job->space.tenant,
                                      job->of[i].name, job->of[i].name_len, weights_of(job, i));
    if (right != len) {
        fail(job->client, "torn, or another's: byte %lu of %lu of %s %s, lineage %lu", right, len,
             job->space.tenant, (const char *)job->of[i].name, job->serial);
    }
}

static void end_lookup(struct job *job, uint32_t i)
{
    (void)atomic_fetch_add(&job->client->shared->lookups, 1);
    if (job->items[i].status == KVB_OK) {
        judge_found(job, i);
    }
}

/* A put whose end nobody knows may still come true. */
static bool end_is_known(kvb_status_t status)
{
    return status == KVB_OK || status == KVB_ERR_EXISTS || status == KVB_ERR_NO_SPACE ||
           status == KVB_ERR_QUOTA || status == KVB_ERR_FENCED;
}

static void end_put(struct job *job, uint32_t i)
{
    struct shared *shared = job->client->shared;
    kvb_status_t status = job->items[i].status;
    (void)atomic_fetch_add(&shared->puts, 1);
    (void)atomic_fetch_add(&shared->stored, status == KVB_OK);
    (void)atomic_fetch_add(&shared->fenced, status == KVB_ERR_FENCED);
    if (end_is_known(status)) {
        (void)atomic_fetch_sub(&object_of(job, i)->under_way, 1);
    }
}

static void end_remove(struct job *job, uint32_t i)
{
    struct object *object = object_of(job, i);
    kvb_status_t status = job->items[i].status;
    (void)atomic_fetch_add(&job->client->shared->removes, 1);
    bool gone = status == KVB_OK || status == KVB_ERR_NOT_FOUND;
    if (gone && job->of[i].under_way == 0 && atomic_load(&object->under_way) == 0 &&
        atomic_load(&object->begun) == job->of[i].begun) {
        atomic_store(&object->absent_since_ns, clock_ns());
        atomic_store(&object->absent_begun, job->of[i].begun);
    }
}

static void begin_job(struct job *job);

static void on_done(struct kvs_batch *batch)
{
    static void (*const ends[KVS_BATCH_OPS])(struct job *, uint32_t) = {
        [KVS_EXISTS] = end_lookup,
        [KVS_PUT] = end_put,
        [KVS_GET] = end_get,
        [KVS_REMOVE] = end_remove,
    };
    struct job *job = kvb_container_of(batch, struct job, batch);
    struct client *client = job->client;
    struct shared *shared = client->shared;
    must(client, job->running, "done twice");
    job->running = false;
    kvb_sched_timer_clear(kvp_loop_sched(client->loop), &job->cancel);
    for (uint32_t i = 0; i < batch->nitems; i++) {
        kvb_status_t status = batch->items[i].status;
        must(client, status != KVB_IN_PROGRESS, "done without an answer");
        must(client, status != KVB_ERR_INVALID && status != KVB_ERR_INTERNAL,
             kvb_status_label(status));
        (void)atomic_fetch_add(&shared->unavailable, status == KVB_ERR_UNAVAILABLE ||
                                                         status == KVB_ERR_DISCONNECTED ||
                                                         status == KVB_ERR_TIMEOUT);
        (void)atomic_fetch_add(&shared->canceled, status == KVB_ERR_CANCELED);
        ends[batch->op](job, i);
    }
    (void)atomic_fetch_add(&shared->ops, batch->nitems);
    begin_job(job);
}

/* ---- beginning ---- */

/* The value between two gaps, in one to three slices; the last slot ends at the guard page. */
static void lay_out(struct job *job, uint32_t i)
{
    struct client *client = job->client;
    uint64_t len = len_of(job->of[i].key, job->of[i].part);
    uint64_t slot = client->memory.len - (uint64_t)((client->jobs + JOBS - job) * ITEMS - i) * SLOT;
    uint64_t at = slot + GAP;
    uint32_t n = 0;
    job->of[i].slot = client->memory.base + slot;
    while (len > 0) {
        uint64_t part = n + 1 == SLICES ? len : 1 + below(&client->random, (uint32_t)len);
        job->slices[i][n++] = (struct kvt_slice){client->region, at, part};
        at += part;
        len -= part;
    }
    job->items[i].slices = job->slices[i];
    job->items[i].nslices = n;
    memset(job->of[i].slot, TEST_PREFILL, len_of(job->of[i].key, job->of[i].part) + 2 * GAP);
}

static void note_begin(struct job *job, uint32_t i)
{
    struct object *object = object_of(job, i);
    if (job->batch.op == KVS_PUT) {
        (void)atomic_fetch_add(&object->under_way, 1);
        (void)atomic_fetch_add(&object->begun, 1);
        test_value_fill(job->of[i].slot + GAP, len_of(job->of[i].key, job->of[i].part),
                        job->space.tenant, job->of[i].name, job->of[i].name_len,
                        weights_of(job, i));
    }
    job->of[i].under_way = atomic_load(&object->under_way);
    job->of[i].begun = atomic_load(&object->begun);
    /* in the other order than they are written */
    uint32_t absent_begun = atomic_load(&object->absent_begun);
    uint64_t absent_ns = atomic_load(&object->absent_since_ns);
    job->of[i].absent =
        absent_ns != 0 && absent_ns < job->begun_ns && absent_begun == job->of[i].begun;
}

static void add_item(struct job *job, uint32_t i)
{
    struct client *client = job->client;
    bool again;
    do {
        job->of[i].key = below(&client->random, KEYS);
        job->of[i].part = below(&client->random, PARTS);
        again = false;
        for (uint32_t k = 0; k < i; k++) {
            again = again || same_object(job, i, k);
        }
    } while (again);
    job->of[i].name_len =
        (uint32_t)snprintf((char *)job->of[i].name, sizeof job->of[i].name, "k/%u", job->of[i].key);
    int placement_len = snprintf((char *)job->of[i].placement, sizeof job->of[i].placement, "k/%u",
                                 job->of[i].key / 4 * 4);
    job->items[i] = (struct kvs_item){
        .key = {job->of[i].name, job->of[i].name_len},
        .placement = {job->of[i].placement, (size_t)placement_len},
        .part = job->of[i].part,
    };
    lay_out(job, i);
    note_begin(job, i);
}

/* Mostly the present one; sometimes one of a while ago, as of somebody who has not heard. */
static uint64_t choose_serial(struct client *client, uint32_t tenant)
{
    uint64_t serial = atomic_load(&client->shared->serial[tenant]);
    uint64_t back = below(&client->random, 10) == 0 ? below(&client->random, 4) : 0;
    return serial > back ? serial - back : serial;
}

static void on_cancel(struct kvb_timer *timer)
{
    struct job *job = kvb_container_of(timer, struct job, cancel);
    const struct kvb_clock *clock = kvp_loop_sched(job->client->loop)->clock;
    kvs_client_cancel(&job->batch, kvb_deadline_in_ms(clock, 100));
}

/* Some have hardly any time, some are given up while they run. */
static void limit_job(struct job *job)
{
    struct client *client = job->client;
    struct kvb_sched *sched = kvp_loop_sched(client->loop);
    uint64_t soon_ns = kvb_now_ns(sched->clock) + below(&client->random, 3000) * 1000;
    uint32_t how = below(&client->random, 20);
    kvb_timer_init(&job->cancel, on_cancel);
    if (how == 0) {
        kvb_sched_timer_set(sched, &job->cancel, soon_ns);
    }
    job->batch.deadline_ns = how == 1 ? soon_ns : kvb_deadline_in_ms(sched->clock, DEADLINE_MS);
}

static void begin_job(struct job *job)
{
    static const enum kvs_batch_op ops[] = {KVS_PUT, KVS_PUT, KVS_PUT, KVS_GET,   KVS_GET,
                                            KVS_GET, KVS_GET, KVS_GET, KVS_EXISTS};
    struct client *client = job->client;
    struct shared *shared = client->shared;
    if (atomic_load(&shared->stop) != 0 || atomic_load(&shared->failed) != 0) {
        return;
    }
    *job = (struct job){.client = client, .tenant = below(&client->random, TENANTS)};
    job->serial = choose_serial(client, job->tenant);
    strcpy(job->space.tenant, history_tenants[job->tenant]);
    strcpy(job->space.layout, "history");
    uint32_t op = below(&client->random, 40); /* few removes: they make it dull */
    job->batch = (struct kvs_batch){
        .op = op == 39 ? KVS_REMOVE : ops[op % 9],
        .space = &job->space,
        .hold = {.instance = below(&client->random, 4) == 0 ? (uint64_t)getpid() : 0,
                 .request = below(&client->random, 8)},
        .force = below(&client->random, 2) == 0,
        .items = job->items,
        .nitems = 1 + below(&client->random, ITEMS),
        .done = on_done,
    };
    history_lineage_id(shared, job->tenant, job->serial, &job->batch.lineage);
    limit_job(job);
    job->begun_ns = clock_ns();
    for (uint32_t i = 0; i < job->batch.nitems; i++) {
        add_item(job, i);
    }
    job->running = true;
    must(client, kvs_client_submit(client->store, &job->batch) == KVB_OK, "submit");
}

/* ---- the process ---- */

static void on_removed(void *ctx, struct kvs_node *node)
{
    struct client *client = ctx;
    kvs_remote_destroy(node);
    client->removed++;
}

static void on_unregistered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    struct client *client = arg;
    must(client, status == KVB_OK, "a transfer outlived its batch");
    kvt_region_destroy(region);
    client->unregistered = true;
}

static void end(struct client *client)
{
    struct kvb_sched *sched = kvp_loop_sched(client->loop);
    client->ending = true;
    kvt_region_unregister(client->region, kvb_deadline_in_ms(sched->clock, 1000),
                          kvb_deadline_in_ms(sched->clock, 2000), on_unregistered, client);
    for (uint32_t i = 0; i < NODES; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "node-%u", i);
        must(client, kvs_client_remove_node(client->store, name, on_removed, client) == KVB_OK,
             "remove");
    }
}

static void on_tick(struct kvb_timer *timer)
{
    struct client *client = kvb_container_of(timer, struct client, tick);
    struct kvb_sched *sched = kvp_loop_sched(client->loop);
    uint32_t running = 0;
    for (uint32_t i = 0; i < JOBS; i++) {
        struct job *job = &client->jobs[i];
        running += job->running;
        if (job->running && clock_ns() - job->begun_ns > NEVER_MS * 1000000ull) {
            fail(client, "a batch was never done: %u items, operation %d", job->batch.nitems,
                 (int)job->batch.op);
        }
    }
    if (below(&client->random, 10) == 0) {
        kvs_client_discard(client->store,
                           (struct kvs_hold){(uint64_t)getpid(), below(&client->random, 8)});
    }
    if (running == 0 && atomic_load(&client->shared->stop) != 0 && !client->ending) {
        end(client);
    }
    if (client->removed == NODES && client->unregistered) {
        kvp_loop_stop(client->loop);
        return;
    }
    kvb_sched_timer_set(sched, timer, kvb_deadline_in_ms(sched->clock, TICK_MS));
}

static void open_nodes(struct client *client)
{
    struct kvb_sched *sched = kvp_loop_sched(client->loop);
    for (uint32_t i = 0; i < NODES; i++) {
        char name[16], address[32];
        (void)snprintf(name, sizeof name, "node-%u", i);
        (void)snprintf(address, sizeof address, "127.0.0.1:%u", client->shared->nodes[i].port);
        const struct kvt_tcp_peer_config peer = {
            .common = {.net = client->net,
                       .secret = SECRET,
                       .secret_len = sizeof SECRET - 1,
                       .ping_ms = 200,
                       .silence_ms = 800},
            .address = address,
            .lanes = 1 + i,
            .backoff_ms = 10,
            .backoff_max_ms = 200,
        };
        const struct kvs_remote_config config = {
            .sched = sched, .regions = client->regions, .ways = {{&kvs_by_tcp, &peer}}};
        must(client, kvs_remote_create(&config, &client->nodes[i]) == KVB_OK, "remote");
        must(client,
             kvs_client_add_node(client->store, name, client->nodes[i], 1 + i % 2) == KVB_OK,
             "add");
    }
}

void history_client(struct shared *shared, uint32_t number, uint32_t generation)
{
    static const struct kvp_loop_ops loop_ops = {0};
    struct client *client = calloc(1, sizeof *client);
    if (client == NULL) {
        exit(1);
    }
    history_settle_fds();
    size_t fds = test_count_fds();
    client->shared = shared;
    client->random = shared->seed * 1000003 + number * 7919 + generation;
    (void)snprintf(client->name, sizeof client->name, "client-%u.%u", number, generation);
    must(client, kvp_loop_create(&loop_ops, client, &client->loop) == KVB_OK, "loop");
    struct kvb_sched *sched = kvp_loop_sched(client->loop);
    must(client,
         kvt_net_kernel_create(kvp_loop_io(client->loop), SOCKET_BYTES, &client->net) == KVB_OK,
         "net");
    must(client, kvt_regions_create(sched, &client->regions) == KVB_OK, "regions");
    must(client, kvs_client_create(sched, &client->store) == KVB_OK, "client");
    kvs_client_set_health(
        client->store,
        &(struct kvs_client_health){.lookup_ms = 300, .transfer_ms = 1000, .backoff_ms = 200});
    open_nodes(client);
    test_memory_init(&client->memory, "history", (size_t)JOBS * ITEMS * SLOT);
    struct kvt_region_desc desc = {.number = 1, .tag = "kv_cache", .len = client->memory.len};
    const char *reason;
    must(client,
         kvt_region_create(client->regions, &desc, test_memory_dup(&client->memory),
                           &client->region, &reason) == KVB_OK &&
             kvt_region_register(client->region) == KVB_OK,
         "region");
    kvb_timer_init(&client->tick, on_tick);
    kvb_sched_timer_set(sched, &client->tick, 0);
    for (uint32_t i = 0; i < JOBS; i++) {
        client->jobs[i].client = client;
        begin_job(&client->jobs[i]);
    }
    kvp_loop_run(client->loop);
    kvs_client_destroy(client->store);
    kvt_regions_destroy(client->regions);
    kvt_net_kernel_destroy(client->net);
    kvp_loop_destroy(client->loop);
    test_memory_cleanup(&client->memory);
    must(client, test_count_fds() == fds, "descriptors are left");
    free(client);
    exit(0);
}
