/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes on a real etcd, in which memory runs out once, at every place in turn where the
 * coordinator asks for any, for itself, for JSON or for HTTP: who asked is told; the same asked
 * again is done; a retirement that is said to have succeeded has been left by everybody; and what
 * the others hear of (nodes, quotas, retired lineages) they hear all the same.
 */
#define FAIL_CALLS_CALLERS 3
#include "etcd_rig.h"
#include "fail_calls.h"
#include "fake_etcd.h"

#include "base/log.h"

#include <curl/curl.h>
#include <jansson.h>

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- what fails, beside allocations ---- */

#define WRAP(type, failed, name, parameters, arguments)                                            \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        return FAIL_CALLS_NOW() ? (failed) : __real_##name arguments;                              \
    }
WRAP(json_t *, NULL, json_object, (void), ())
WRAP(json_t *, NULL, json_array, (void), ())
WRAP(json_t *, NULL, json_string, (const char *text), (text))
WRAP(json_t *, NULL, json_stringn_nocheck, (const char *text, size_t len), (text, len))
static bool no_text; /* there is no memory for any, until there is again */
char *__real_json_dumps(const json_t *json, size_t flags);
char *__wrap_json_dumps(const json_t *json, size_t flags);
char *__wrap_json_dumps(const json_t *json, size_t flags)
{
    return FAIL_CALLS_NOW() || no_text ? NULL : __real_json_dumps(json, flags);
}
WRAP(CURL *, NULL, curl_easy_init, (void), ())
WRAP(CURLM *, NULL, curl_multi_init, (void), ())
WRAP(CURLMcode, CURLM_OUT_OF_MEMORY, curl_multi_add_handle, (CURLM * multi, CURL *easy),
     (multi, easy))
WRAP(struct curl_slist *, NULL, curl_slist_append, (struct curl_slist * list, const char *text),
     (list, text))

/* Both take what they are given, also when they fail. */
int __real_json_object_set_new(json_t *object, const char *key, json_t *value);
int __wrap_json_object_set_new(json_t *object, const char *key, json_t *value);
int __wrap_json_object_set_new(json_t *object, const char *key, json_t *value)
{
    if (FAIL_CALLS_NOW()) {
        json_decref(value);
        return -1;
    }
    return __real_json_object_set_new(object, key, value);
}
int __real_json_array_append_new(json_t *array, json_t *value);
int __wrap_json_array_append_new(json_t *array, json_t *value);
int __wrap_json_array_append_new(json_t *array, json_t *value)
{
    if (FAIL_CALLS_NOW()) {
        json_decref(value);
        return -1;
    }
    return __real_json_array_append_new(array, value);
}

/* ---- two processes, an instance each ---- */

struct process {
    struct real_loop *loop;
    struct kvs_coordinator *coordinator;
    struct kvs_member *member;
    bool up;
    bool node;
    uint64_t quota;
    uint32_t nretired;
    struct kvb_lineage retired[64];
    uint32_t ntold, ntenant;
    struct kvb_lineage told;
};

#define EVENTUALLY(process, condition)                                                             \
    do {                                                                                           \
        uint64_t end_ = kvb_deadline_in_ms(&kvb_clock_real, ETCD_RIG_LIMIT_MS);                    \
        while (!(condition)) {                                                                     \
            cr_assert(real_now_ns() < end_, "place %zx: never: %s", fail_calls_place(),            \
                      #condition);                                                                 \
            real_step((process)->loop, end_);                                                      \
        }                                                                                          \
    } while (0)

static void on_told(void *ctx, struct kvb_lineage lineage, uint64_t retirement)
{
    struct process *process = ctx;
    process->ntold++;
    process->told = lineage;
    kvs_member_left(process->member, retirement);
}
static void on_told_tenant(void *ctx, uint64_t retirement)
{
    struct process *process = ctx;
    process->ntenant++;
    kvs_member_left(process->member, retirement);
}
static void on_member_reachable(void *ctx, bool reachable)
{
    (void)ctx, (void)reachable;
}
static void on_lost(void *ctx)
{
    (void)ctx;
}
static const struct kvs_member_ops member_ops = {.told = on_told,
                                                 .told_tenant = on_told_tenant,
                                                 .reachable = on_member_reachable,
                                                 .lost = on_lost};

static void on_node(void *ctx, const struct kvs_node_record *record)
{
    ((struct process *)ctx)->node = strcmp(record->name, "n") == 0;
}
static void on_node_gone(void *ctx, const char *name)
{
    (void)ctx, (void)name; /* after a lease's time: it might come back */
}
static void on_retired(void *ctx, const struct kvb_lineage *lineages, uint32_t n)
{
    struct process *process = ctx;
    for (uint32_t i = 0; i < n; i++) {
        process->retired[process->nretired++ % 64] = lineages[i];
    }
}
static void on_quota(void *ctx, const char *tenant, uint64_t bytes)
{
    (void)tenant;
    ((struct process *)ctx)->quota = bytes;
}
static void on_reachable(void *ctx, bool reachable)
{
    ((struct process *)ctx)->up = reachable;
}
static const struct kvs_watch_ops watch_ops = {on_node, on_node_gone, on_retired, on_quota,
                                               on_reachable};

static bool heard(const struct process *process, struct kvb_lineage lineage)
{
    for (uint32_t i = 0; i < process->nretired && i < 64; i++) {
        if (kvb_lineage_equal(process->retired[i], lineage)) {
            return true;
        }
    }
    return false;
}

/* What fails failed for want of memory, or because its connection found none; on a slow machine
 * also because etcd took its time. */
static void check_told(kvb_status_t status, const char *what)
{
    cr_assert((fail_hit && status == KVB_ERR_NO_MEMORY) || status == KVB_ERR_UNAVAILABLE ||
                  status == KVB_ERR_TIMEOUT,
              "place %zx, %s: %s", fail_calls_place(), what, kvb_status_label(status));
}

static void start(struct process *process, struct real_loop *loop, const char *prefix,
                  const char *name)
{
    const char *const endpoints[] = {getenv(ETCD_RIG_ENV)};
    const struct kvs_space space = {"t", "l"};
    const struct kvs_etcd_config config = {.sched = &loop->sim.sched,
                                           .io = &loop->io,
                                           .endpoints = endpoints,
                                           .nendpoints = 1,
                                           .prefix = prefix,
                                           .request_ms = ETCD_RIG_REQUEST_MS,
                                           .lease_ms = 60000, /* nobody is gone here */
                                           .grace_ms = 10000, /* what is swept up is, soon */
                                           .process = "test"};
    kvb_status_t status;
    *process = (struct process){.loop = loop};
    while ((status = kvs_etcd_create(&config, &process->coordinator)) != KVB_OK) {
        check_told(status, "create");
    }
    while ((status = kvs_coordinator_watch(process->coordinator, &watch_ops, process)) != KVB_OK) {
        check_told(status, "watch");
    }
    EVENTUALLY(process, process->up);
    while ((status = kvs_member_open(process->coordinator, name, &space, &member_ops, process,
                                     &process->member)) != KVB_OK) {
        check_told(status, "open");
    }
    while ((status = kvs_member_publish(process->member, "{\"x\":1}")) != KVB_OK) {
        check_told(status, "publish");
    }
}

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

enum question { RESOLVE, CHECK, STEP, RETIRE, RESET, QUOTA, WITHDRAW };
static const char *const questions[] = {"resolve", "check", "step",    "retire",
                                        "reset",   "quota", "withdraw"};
static uint64_t epoch, step; /* of the last reset, and the next one of it */

/* Asked until it is done; the lineage that it is about, and of the answer. */
static void ask(struct process *process, enum question question, struct kvb_lineage *lineage_p)
{
    for (uint32_t try = 0;; try++) {
        struct ask asked = {.request.done = on_answer};
        uint64_t deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, 60000);
        switch (question) {
        case RESOLVE:
            kvs_member_resolve(process->member, "v1", &asked.request);
            break;
        case CHECK:
            kvs_member_check(process->member, "v1", *lineage_p, &asked.request);
            break;
        case STEP:
            kvs_member_step(process->member, epoch, step, &asked.request);
            break;
        case RETIRE:
            kvs_member_retire(process->member, lineage_p, 1, "v1", deadline_ns, &asked.request);
            break;
        case RESET:
            kvs_tenant_reset(process->coordinator, "t", process->member, deadline_ns,
                             &asked.request);
            break;
        case QUOTA:
            kvs_coordinator_set_quota(process->coordinator, "t", 4096, &asked.request);
            break;
        case WITHDRAW:
            kvs_coordinator_withdraw(process->coordinator, &asked.request);
            break;
        }
        EVENTUALLY(process, asked.done);
        if (asked.status == KVB_OK) {
            cr_assert(question != CHECK || asked.request.bound, "place %zx: bound, and denied",
                      fail_calls_place());
            if (question == RESOLVE || question == STEP) {
                *lineage_p = asked.request.lineage;
            }
            epoch = question == RESET ? asked.request.epoch : epoch;
            return;
        }
        if (question == STEP && asked.status == KVB_ERR_FENCED) {
            return; /* its part in the epoch could not be said */
        }
        check_told(asked.status, questions[question]);
        cr_assert_lt(try, 20, "place %zx, %s: does not recover", fail_calls_place(),
                     questions[question]);
        EVENTUALLY(process, process->up);
    }
}

static void run(struct process *p, struct process *q)
{
    const struct kvs_node_record node = {
        .name = "n", .address = "127.0.0.1:1", .capacity_bytes = 1 << 20, .incarnation = 7};
    struct kvb_lineage a, b, next;
    kvb_status_t status;
    while ((status = kvs_coordinator_announce(p->coordinator, &node)) != KVB_OK) {
        check_told(status, "announce");
    }
    EVENTUALLY(q, q->node);
    ask(p, QUOTA, NULL);
    EVENTUALLY(q, q->quota == 4096);

    ask(p, RESOLVE, &a);
    ask(q, RESOLVE, &b);
    cr_assert(kvb_lineage_equal(a, b), "place %zx: one name, two lineages", fail_calls_place());
    ask(p, CHECK, &a);
    ask(q, CHECK, &b);

    uint32_t ntold = q->ntold;
    ask(p, RETIRE, &a);
    cr_assert(q->ntold > ntold && kvb_lineage_equal(q->told, a),
              "place %zx: success, and one has not left", fail_calls_place());
    EVENTUALLY(q, heard(q, a) && heard(p, a));
    ask(q, RESOLVE, &next);
    cr_assert(!kvb_lineage_equal(a, next), "place %zx: retired, and bound", fail_calls_place());

    uint32_t ntenant = q->ntenant;
    ask(p, RESET, NULL);
    cr_assert_gt(q->ntenant, ntenant, "place %zx: success, and one has not left",
                 fail_calls_place());
    EVENTUALLY(q, heard(q, next));
    for (step = 1; step <= 3; step++) { /* from the third on one is retired */
        ask(p, STEP, &next);
    }
    ask(p, RETIRE, &next);

    const struct kvb_lineage own = {{3, 3}};
    kvs_member_leave(q->member, "v1");
    kvs_member_abandon(q->member, own);
    ask(p, RESOLVE, &a); /* and what was said before it has been done */
    ask(q, RESOLVE, &b);
    cr_assert(kvb_lineage_equal(a, b), "place %zx: one name, two lineages", fail_calls_place());
    ask(p, WITHDRAW, NULL);
}

static void two_processes(void)
{
    struct real_loop loop;
    struct process p, q;
    char prefix[64];
    fail_calls_pause();
    real_init(&loop, sim_seed(1));
    sim_reserve_timers(&loop.sim.sched);
    (void)etcd_rig_prefix(prefix);
    fail_calls_resume();
    start(&p, &loop, prefix, "a");
    start(&q, &loop, prefix, "b");
    run(&p, &q);
    kvs_member_close(q.member);
    kvs_member_close(p.member);
    real_run_for(&loop, 1);
    kvs_coordinator_destroy(q.coordinator);
    kvs_coordinator_destroy(p.coordinator);
    fail_calls_stop();
    real_cleanup(&loop);
}

Test(etcd_calls, memory_that_runs_out_once_costs_a_retry_and_no_promise, .timeout = 1100)
{
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    if (getenv(ETCD_RIG_ENV) == NULL) {
        cr_skip("no etcd");
    }
    fail_callers = 2; /* each run takes a while */
    FAIL_CALLS_EACH(1)
    {
        two_processes();
    }
    fprintf(stderr, "%u places, %u of them failed\n", fail_nsites, fail_hits);
}

/* What an instance asks waits for its record, which is tried again from time to time, and not at
 * once for as long as there is stack. */
Test(etcd_calls, a_record_that_finds_no_memory_for_a_while_is_made_when_there_is_some)
{
    const struct kvs_space space = {"t", "l"};
    struct ask asked = {.request.done = on_answer};
    struct kvs_member *other;
    struct real_loop loop;
    struct process p;
    char prefix[64];
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    if (getenv(ETCD_RIG_ENV) == NULL) {
        cr_skip("no etcd");
    }
    real_init(&loop, sim_seed(1));
    sim_reserve_timers(&loop.sim.sched);
    (void)etcd_rig_prefix(prefix);
    start(&p, &loop, prefix, "a");
    no_text = true;
    kvb_status_t status = kvs_member_open(p.coordinator, "b", &space, &member_ops, &p, &other);
    cr_assert_eq(status, KVB_OK);
    kvs_member_resolve(other, "v1", &asked.request);
    real_run_for(&loop, 300);
    cr_assert_not(asked.done);
    no_text = false;
    EVENTUALLY(&p, asked.done);
    cr_expect_eq(asked.status, KVB_OK, "%s", kvb_status_label(asked.status));
    kvs_member_close(other);
    kvs_member_close(p.member);
    real_run_for(&loop, 1);
    kvs_coordinator_destroy(p.coordinator);
    real_cleanup(&loop);
}

/* ---- what goes on by itself, at an etcd that is played ---- */

static uint64_t jumped_ns;
static uint64_t jumping_now_ns(void *ctx)
{
    (void)ctx;
    return real_now_ns() + jumped_ns;
}
static const struct kvb_clock jumping_clock = {.now_ns = jumping_now_ns};

struct played {
    struct process process; /* its callbacks' */
    struct real_loop loop;
    struct fake_etcd fake;
    bool steps_alone; /* what fails is of a lineage's end and of steps */
    bool compacted, forgot;
    uint32_t keepalives, txns;
};

static const char *encode(const char *text, char out[512])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t len = strlen(text);
    char *end = out;
    kvb_assert(len < 360);
    for (size_t i = 0; i < len; i += 3) {
        uint32_t bits = (uint32_t)(uint8_t)text[i] << 16;
        bits |= i + 1 < len ? (uint32_t)(uint8_t)text[i + 1] << 8 : 0;
        bits |= i + 2 < len ? (uint32_t)(uint8_t)text[i + 2] : 0;
        *end++ = digits[bits >> 18];
        *end++ = digits[bits >> 12 & 63];
        *end++ = i + 1 < len ? digits[bits >> 6 & 63] : '=';
        *end++ = i + 2 < len ? digits[bits & 63] : '=';
    }
    *end = '\0';
    return out;
}

static const char old_name[] = "/kvplane/v1/name/t/l/old";
#define PLAYED_EPOCH (6 << 8) /* of a reset at the revision at which it answers */
static const char step_taken[] =
    "{\"epoch\":\"1536\",\"step\":\"1\",\"lineage\":\"000000000000000100000000000000cc\","
    "\"previous\":\"000000000000000100000000000000dd\"}";
static const char record[] = "{\"path\":\"t/l/\",\"whole\":false,\"quiet\":false,\"awaited\":false,"
                             "\"lineages\":[\"000000000000000100000000000000aa\"]}";

/* All that it holds: a name without members and a step of an epoch, and, on a second page, a
 * retirement; after what was heard has been compacted, another one. */
static char *play(void *ctx, const char *path, const char *body, int *status_p)
{
    struct played *played = ctx;
    char key[512], value[512], step_key[512], step_value[512];
    char *text = NULL;
    (void)status_p;
    played->keepalives += strcmp(path, "/v3/lease/keepalive") == 0;
    if (strcmp(path, "/v3/kv/txn") == 0) {
        played->txns++;
        played->forgot = played->forgot || (strstr(body, "request_delete_range") != NULL &&
                                            strstr(body, "\"compare\"") != NULL &&
                                            strstr(body, encode(old_name, key)) != NULL);
    }
    if (strcmp(path, "/v3/kv/range") != 0) {
        return NULL;
    }
    unsigned rev = played->compacted ? 12 : 5;
    if (strstr(body, "revision") == NULL) {
        cr_assert_geq(
            asprintf(&text,
                     "{\"header\":{\"revision\":\"%u\"},\"more\":true,\"kvs\":["
                     "{\"key\":\"%s\",\"create_revision\":\"2\",\"mod_revision\":\"2\",\"value\":"
                     "\"%s\"},"
                     "{\"key\":\"%s\",\"create_revision\":\"2\",\"mod_revision\":\"2\",\"value\":"
                     "\"%s\"}]}",
                     rev, encode(old_name, key), encode("000000000000000100000000000000bb", value),
                     encode("/kvplane/v1/step/t/l/", step_key), encode(step_taken, step_value)),
            0);
        return text;
    }
    cr_assert_geq(
        asprintf(
            &text,
            "{\"header\":{\"revision\":\"%u\"},\"kvs\":[{\"key\":\"%s\","
            "\"create_revision\":\"%u\",\"mod_revision\":\"%u\",\"value\":\"%s\"},{\"key\":\"%s\","
            "\"create_revision\":\"3\",\"mod_revision\":\"3\",\"value\":\"NQ==\"}]}",
            rev,
            encode(played->compacted ? "/kvplane/v1/retired/two" : "/kvplane/v1/retired/one", key),
            rev == 5 ? 3u : rev, rev == 5 ? 3u : rev, encode(record, value),
            encode("/kvplane/v1/retired/broken", step_key)),
        0);
    return text;
}

/* Time passes faster than it does, but not so fast that a slow machine could not follow. */
#define AWAIT(played, condition, seconds)                                                          \
    do {                                                                                           \
        uint64_t end_ = kvb_deadline_in_ms(&kvb_clock_real, ETCD_RIG_LIMIT_MS);                    \
        for (uint32_t i_ = 1; !(condition); i_++) {                                                \
            cr_assert(real_now_ns() < end_, "place %zx: never: %s", fail_calls_place(),            \
                      #condition);                                                                 \
            real_step(&(played)->loop, kvb_deadline_in_ms(&kvb_clock_real, 1));                    \
            if (i_ % 4 == 0) {                                                                     \
                jumped_ns += (seconds)*KVB_NS_PER_S;                                               \
            }                                                                                      \
        }                                                                                          \
    } while (0)

static void play_on(struct played *played)
{
    struct process *process = &played->process;
    const struct kvs_space space = {"t", "l"};
    struct ask resolve;
    kvb_status_t status;
    while ((status = kvs_coordinator_watch(process->coordinator, &watch_ops, process)) != KVB_OK) {
        check_told(status, "watch");
    }
    AWAIT(played, process->up && process->nretired > 0, 1);
    /* one that comes later is told what lies there */
    while ((status = kvs_coordinator_watch(process->coordinator, &watch_ops, process)) != KVB_OK) {
        check_told(status, "watch");
    }
    AWAIT(played, process->nretired > 1, 1);
    while ((status = kvs_member_open(process->coordinator, "a", &space, &member_ops, process,
                                     &process->member)) != KVB_OK) {
        check_told(status, "open");
    }
    do {
        resolve = (struct ask){.request.done = on_answer};
        kvs_member_resolve(process->member, "v1", &resolve.request);
        AWAIT(played, resolve.done && process->up, 1);
    } while (resolve.status != KVB_OK);
    uint32_t txns = played->txns;
    kvs_member_leave(process->member, "v1");
    AWAIT(played, played->txns > txns, 1);

    if (played->steps_alone) {
        fail_calls_resume();
    }
    kvs_member_abandon(process->member, (struct kvb_lineage){{3, 3}});
    struct ask reset, taken;
    do { /* its epoch: whoever cannot close it takes no step in it */
        do {
            reset = (struct ask){.request.done = on_answer};
            kvs_tenant_reset(process->coordinator, "t", process->member, KVB_NEVER, &reset.request);
            AWAIT(played, reset.done && process->up, 1);
        } while (reset.status != KVB_OK);
        do {
            taken = (struct ask){.request.done = on_answer};
            kvs_member_step(process->member, PLAYED_EPOCH, 2, &taken.request);
            AWAIT(played, taken.done && process->up, 1);
        } while (taken.status != KVB_OK && taken.status != KVB_ERR_FENCED);
    } while (taken.status != KVB_OK);
    if (played->steps_alone) {
        fail_calls_pause();
    }
    uint32_t keepalives = played->keepalives;
    txns = played->txns;
    AWAIT(played, played->keepalives > keepalives + 1 && played->txns > txns + 1, 40);
    AWAIT(played, process->up, 1);

    played->compacted = true;
    played->fake.rev = 12;
    fake_push(&played->fake, "{\"result\":{\"header\":{\"revision\":\"12\"},\"watch_id\":\"1\","
                             "\"canceled\":true,\"compact_revision\":\"9\"}}");
    AWAIT(played, process->ntold > 0, 2);
    AWAIT(played, process->up && played->forgot, 5);
}

static void played_run(bool steps_alone)
{
    static struct played played;
    char endpoint[64];
    const char *const endpoints[] = {endpoint};
    played = (struct played){.process = {.loop = &played.loop}, .steps_alone = steps_alone};
    jumped_ns = 0;
    fail_calls_pause();
    real_init(&played.loop, sim_seed(1));
    played.loop.sim.sched.clock = &jumping_clock;
    sim_reserve_timers(&played.loop.sim.sched);
    fake_open(&played.fake, &played.loop.io);
    played.fake.script = play;
    played.fake.ctx = &played;
    (void)snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", played.fake.port);
    const struct kvs_etcd_config config = {.sched = &played.loop.sim.sched,
                                           .io = &played.loop.io,
                                           .endpoints = endpoints,
                                           .nendpoints = 1,
                                           .request_ms = 600000,
                                           .lease_ms = 600000,
                                           .grace_ms = 10000};
    cr_assert_eq(kvs_etcd_create(&config, &played.process.coordinator), KVB_OK);
    if (!steps_alone) {
        fail_calls_resume();
    }
    play_on(&played);
    fail_calls_stop();
    kvs_member_close(played.process.member);
    kvs_coordinator_destroy(played.process.coordinator);
    fake_close(&played.fake);
    real_cleanup(&played.loop);
}

Test(etcd_calls, what_goes_on_by_itself_goes_on_when_there_is_memory_again, .timeout = 1100)
{
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    if (getenv("KVPLANE_EVERY_PLACE") == NULL) {
        fail_stride = 8; /* 600 runs of half a second: all of them are ./dev coverage's */
    }
    for (int steps = 0; steps < 2; steps++) {
        fail_callers = steps == 0 ? 2 : 3; /* there the transactions differ */
        FAIL_CALLS_EACH(1)
        {
            played_run(steps == 1);
        }
        fprintf(stderr, "%u places, %u of them failed\n", fail_nsites, fail_hits);
    }
}
