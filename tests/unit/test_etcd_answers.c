/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator on something that answers like etcd, but not always well: nothing of an answer is
 * believed, and none that is not sound means success.
 */
#include "fake_etcd.h"
#include "real_loop.h"

#include "base/log.h"
#include "store/coordinator.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#define LIMIT_MS 240000

struct rig {
    struct real_loop loop;
    struct fake_etcd fake;
    struct kvs_coordinator *coordinator;
    struct kvs_member *member;
    bool up, told;
    uint32_t nnodes, nlost;
    struct kvs_node_record node; /* the last one */
    /* the script */
    const char *path; /* answers to this are `text`; NULL: none */
    const char *what; /* and the request holds this; NULL: any */
    const char *text;
    int status;
    uint32_t left; /* so many times */
    /* one answer to a transaction, after so many, is as it would be but for one thing */
    int wrong; /* which, from 0; -1: none */
    uint32_t skip;
    bool fails;                          /* as one whose conditions did not hold */
    bool reached;                        /* it came to that transaction */
    bool applied;                        /* it was answered so */
    bool past;                           /* there is no such thing in it */
    uint32_t puts;                       /* transactions that put something */
    struct kvs_coord_request *withdraws; /* asked for when a transaction is */
    const char *next_path, *next_text;   /* the script after this one, once */
    char *watched;                       /* what was last asked to be watched */
    uint64_t jumps_ns;      /* the clock does, when the script's last answer is given */
    uint32_t grants, beats; /* asked for */
};

/* The real clock, and what the test adds. */
static uint64_t jumped_ns;

#define WITHIN_MS(ms, rig, condition)                                                              \
    do {                                                                                           \
        uint64_t end_ = kvb_deadline_in_ms(&kvb_clock_real, ms);                                   \
        while (!(condition)) {                                                                     \
            cr_assert(real_now_ns() < end_, "never: %s", #condition);                              \
            real_step(&(rig)->loop, end_);                                                         \
        }                                                                                          \
    } while (0)
#define EVENTUALLY(rig, condition) WITHIN_MS(LIMIT_MS, rig, condition)
/* For what would happen later all the same, when the time for it comes. */
#define SOON(rig, condition) WITHIN_MS(60000, rig, condition)

static void on_told(void *ctx, struct kvb_lineage lineage, uint64_t retirement)
{
    struct rig *rig = ctx;
    (void)lineage;
    rig->told = true;
    kvs_member_left(rig->member, retirement);
}
static void on_told_tenant(void *ctx, uint64_t retirement)
{
    struct rig *rig = ctx;
    rig->told = true;
    kvs_member_left(rig->member, retirement);
}
static void on_reachable(void *ctx, bool reachable)
{
    ((struct rig *)ctx)->up = reachable;
}
static void on_lost(void *ctx)
{
    ((struct rig *)ctx)->nlost++;
}
static const struct kvs_member_ops member_ops = {
    .told = on_told, .told_tenant = on_told_tenant, .reachable = on_reachable, .lost = on_lost};
static void on_node(void *ctx, const struct kvs_node_record *record)
{
    struct rig *rig = ctx;
    rig->nnodes++;
    rig->node = *record;
}
static void on_gone(void *ctx, const char *name)
{
    (void)ctx, (void)name;
}
static void on_retired(void *ctx, const struct kvb_lineage *lineages, uint32_t n)
{
    (void)ctx;
    cr_assert(n == 0 || lineages != NULL);
}
static void on_quota(void *ctx, const char *tenant, uint64_t bytes)
{
    (void)ctx, (void)tenant, (void)bytes;
}
static const struct kvs_watch_ops watch_ops = {on_node, on_gone, on_retired, on_quota,
                                               on_reachable};

enum wrong { NO_KVS, TWICE, OTHER, EPOCH, NUMBER, MORE, WRONGS };

/* kvs of a range that is not what was asked for. */
static void make_wrong(json_t *range, enum wrong wrong)
{
    json_t *kv =
        json_pack("{s:s, s:s, s:s, s:s}", "key", "eA==", "create_revision", "5", "mod_revision",
                  "5", "value", wrong == EPOCH ? "NTEyMA==" /* EPOCH_REV << 8 */ : "NQ==");
    switch (wrong) {
    case NO_KVS:
        (void)json_object_del(range, "kvs");
        break;
    case TWICE:
        (void)json_object_set_new(range, "kvs", json_pack("[O, O]", kv, kv));
        break;
    case OTHER:
    case EPOCH:
        (void)json_object_set_new(range, "kvs", json_pack("[O]", kv));
        break;
    case NUMBER:
        (void)json_object_set_new(range, "kvs", json_integer(5));
        break;
    case MORE:
    case WRONGS:
        (void)json_object_set_new(range, "more", json_true());
        break;
    }
    json_decref(kv);
}

/* A sound answer but for one thing; NULL: there is no such thing in it. */
static char *wrong_answer(struct rig *rig, const char *body)
{
    char *good = fake_txn_(&rig->fake, body);
    json_t *answer = json_loads(good, 0, NULL);
    free(good);
    if (rig->fails) {
        json_t *asked = json_loads(body, 0, NULL);
        json_t *responses = json_array();
        for (size_t i = 0; i < json_array_size(json_object_get(asked, "failure")); i++) {
            json_array_append_new(responses, json_pack("{s:{}}", "response_range"));
        }
        (void)json_object_del(answer, "succeeded");
        (void)json_object_set_new(answer, "responses", responses);
        json_decref(asked);
    }
    json_t *responses = json_object_get(answer, "responses");
    size_t at = (size_t)rig->wrong / WRONGS;
    json_t *range = json_object_get(json_array_get(responses, at), "response_range");
    char *text = NULL;
    rig->reached = true;
    if (rig->fails && json_array_size(responses) == 0 && rig->wrong == 0) {
        text = json_dumps(answer, 0); /* that they did not hold is all that it says */
        rig->applied = true;
    }
    rig->past = at >= json_array_size(responses);
    if (range != NULL) {
        make_wrong(range, (enum wrong)(rig->wrong % WRONGS));
        text = json_dumps(answer, 0);
        rig->applied = true;
    }
    json_decref(answer);
    return text;
}

static char *script(void *ctx, const char *path, const char *body, int *status_p)
{
    struct rig *rig = ctx;
    bool txn = strcmp(path, "/v3/kv/txn") == 0;
    rig->puts += txn && strstr(body, "request_put") != NULL;
    rig->grants += strcmp(path, "/v3/lease/grant") == 0;
    rig->beats += strcmp(path, "/v3/lease/keepalive") == 0;
    if (txn && rig->withdraws != NULL) {
        kvs_coordinator_withdraw(rig->coordinator, rig->withdraws);
        rig->withdraws = NULL;
    }
    if (txn && rig->wrong >= 0 && !rig->reached && rig->skip-- == 0) {
        return wrong_answer(rig, body);
    }
    if (strcmp(path, "/v3/watch") == 0) {
        free(rig->watched);
        rig->watched = strdup(body);
    }
    if (rig->path == NULL || strcmp(rig->path, path) != 0 || rig->left == 0 ||
        (rig->what != NULL && strstr(body, rig->what) == NULL)) {
        return NULL;
    }
    rig->left -= rig->left != UINT32_MAX;
    *status_p = rig->status;
    char *text = strdup(rig->text);
    if (rig->left == 0) {
        jumped_ns += rig->jumps_ns;
        rig->jumps_ns = 0;
    }
    if (rig->left == 0 && rig->next_path != NULL) {
        rig->path = rig->next_path;
        rig->text = rig->next_text;
        rig->next_path = NULL;
        rig->status = 200;
        rig->left = 1;
    }
    return text;
}

static uint32_t request_ms = 600; /* short: most answers lead nowhere */

static void rig_open_coordinator(struct rig *rig)
{
    char endpoint[64];
    const char *const endpoints[] = {endpoint};
    (void)snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", rig->fake.port);
    const struct kvs_etcd_config config = {.sched = &rig->loop.sim.sched,
                                           .io = &rig->loop.io,
                                           .endpoints = endpoints,
                                           .nendpoints = 1,
                                           .request_ms = request_ms,
                                           .lease_ms = 600000,
                                           .grace_ms = 600000};
    cr_assert_eq(kvs_etcd_create(&config, &rig->coordinator), KVB_OK);
    cr_assert_eq(kvs_coordinator_watch(rig->coordinator, &watch_ops, rig), KVB_OK);
}

static void rig_open(struct rig *rig)
{
    const struct kvs_space space = {"t", "l"};
    memset(rig, 0, sizeof *rig);
    rig->wrong = -1;
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    real_init(&rig->loop, sim_seed(1));
    fake_open(&rig->fake, &rig->loop.io);
    rig->fake.script = script;
    rig->fake.ctx = rig;
    rig_open_coordinator(rig);
    EVENTUALLY(rig, rig->up);
    cr_assert_eq(kvs_member_open(rig->coordinator, "a", &space, &member_ops, rig, &rig->member),
                 KVB_OK);
}

static void rig_close(struct rig *rig)
{
    kvs_member_close(rig->member);
    kvs_coordinator_destroy(rig->coordinator);
    fake_close(&rig->fake);
    real_cleanup(&rig->loop);
    free(rig->watched);
}

struct ask {
    struct kvs_coord_request request;
    bool done;
    kvb_status_t status;
};
static void on_answer(struct kvs_coord_request *request, kvb_status_t status)
{
    struct ask *ask = kvb_container_of(request, struct ask, request);
    cr_assert(!ask->done);
    ask->done = true;
    ask->status = status;
}
static struct kvs_coord_request *asked(struct ask *ask)
{
    *ask = (struct ask){.request.done = on_answer};
    return &ask->request;
}

/* What is asked, one after the other. */
enum question { RESOLVE, CHECK, RETIRE, RESET, QUOTA, QUESTIONS };
static kvb_status_t question(struct rig *rig, enum question question)
{
    struct ask ask;
    struct kvb_lineage lineage = {{1, 2}};
    switch (question) {
    case RESOLVE:
        kvs_member_resolve(rig->member, "v1", asked(&ask));
        break;
    case CHECK:
        kvs_member_check(rig->member, "v1", lineage, asked(&ask));
        break;
    case RETIRE:
        kvs_member_retire(rig->member, &lineage, 1, "v1", KVB_NEVER, asked(&ask));
        break;
    case RESET:
        kvs_tenant_reset(rig->coordinator, "t", rig->member, KVB_NEVER, asked(&ask));
        break;
    default:
        kvs_coordinator_set_quota(rig->coordinator, "t", 1, asked(&ask));
        break;
    }
    EVENTUALLY(rig, ask.done);
    return ask.status;
}

/* By what its transaction holds it is known: keys are base64, so a piece of the prefix and kind
 * would not be; the shape tells. */
static const struct {
    int status;
    const char *text;
} bad_answers[] = {
    {200, ""},
    {200, "x"},
    {200, "{"},
    {200, "null"},
    {200, "[]"},
    {200, "{}"},
    {200, "{\"succeeded\":true}"},
    {200, "{\"header\":{},\"succeeded\":true,\"responses\":[]}"},
    {200, "{\"header\":{\"revision\":\"0\"},\"succeeded\":true,\"responses\":[{},{}]}"},
    {200, "{\"header\":{\"revision\":\"9\"},\"succeeded\":true}"},
    {200, "{\"header\":{\"revision\":\"9\"},\"succeeded\":true,\"responses\":[]}"},
    {200, "{\"header\":{\"revision\":\"9\"},\"succeeded\":true,\"responses\":{}}"},
    {200, "{\"header\":{\"revision\":\"9\"},\"succeeded\":\"true\",\"responses\":[{},{},{}]}"},
    {200, "{\"header\":{\"revision\":\"-9\"},\"succeeded\":true,\"responses\":[{},{},{}]}"},
    {200, "{\"header\":{\"revision\":9},\"succeeded\":true,\"responses\":[{},{},{}]}"},
    {200, "{\"header\":{\"revision\":\"99999999999999999999\"},\"succeeded\":true}"},
    {200, "{\"header\":{\"revision\":\"9\"},\"responses\":[null,null]}"},
    {200, "{\"header\":{\"revision\":\"9\"},\"responses\":[{\"response_range\":{\"kvs\":5}},"
          "{\"response_range\":{\"kvs\":[5]}}]}"},
    {200, "{\"error\":\"strange\"}"},
    {200, "{\"error\":{\"grpc_code\":14,\"message\":\"x\"}}"},
    {400, "{\"error\":\"etcdserver: too many operations\",\"code\":3}"},
    {403, "{\"error\":\"etcdserver: permission denied\",\"code\":7}"},
    {401, "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}"},
    {404, "not found"},
    {500, "oops"},
    {503, "{\"error\":\"etcdserver: no leader\",\"code\":14}"},
};

Test(etcd_answers, none_that_is_not_sound_means_success, .timeout = 1100)
{
    struct rig rig;
    rig_open(&rig);
    for (int q = 0; q < QUESTIONS; q++) {
        cr_assert_eq(question(&rig, q), KVB_OK, "question %d", q);
        /* each is parsed in one place; what differs is what its parts mean */
        size_t stride = q == RETIRE || q == RESOLVE ? 1 : 5;
        for (size_t i = stride == 1 ? 0 : (size_t)q; i < sizeof bad_answers / sizeof bad_answers[0];
             i += stride) {
            rig.path = "/v3/kv/txn";
            rig.left = UINT32_MAX;
            rig.status = bad_answers[i].status;
            rig.text = bad_answers[i].text;
            kvb_status_t status = question(&rig, q);
            cr_assert_eq(status, KVB_ERR_UNAVAILABLE, "question %d, answer %zu: %s", q, i,
                         kvb_status_label(status));
            rig.path = NULL;
            EVENTUALLY(&rig, rig.up);
        }
        cr_assert_eq(question(&rig, q), KVB_OK, "question %d", q);
    }
    rig_close(&rig);
}

Test(etcd_answers, one_bad_answer_is_asked_again_elsewhere_or_later)
{
    struct rig rig;
    request_ms = 10000;
    rig_open(&rig);
    cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
    static const size_t passing[] = {0, 1, 2, 3, 4, 18, 19, 23, 24, 25};
    for (size_t i = 0; i < sizeof passing / sizeof passing[0]; i++) {
        rig.path = "/v3/kv/txn";
        rig.left = 1;
        rig.status = bad_answers[passing[i]].status;
        rig.text = bad_answers[passing[i]].text;
        cr_assert_eq(question(&rig, RETIRE), KVB_OK, "answer %zu", passing[i]);
    }
    rig_close(&rig);
}

/* Joining: each step answered badly for a while, then well. */
Test(etcd_answers, joining_goes_on_until_every_answer_is_sound, .timeout = 1100)
{
    static const char *const paths[] = {"/v3/lease/grant", "/v3/kv/range", "/v3/watch"};
    static const char *const texts[] = {
        "",
        "{}",
        "[]",
        "{\"header\":{\"revision\":\"5\"},\"ID\":\"0\",\"TTL\":\"9\"}",
        "{\"header\":{\"revision\":\"5\"},\"ID\":\"7\"}",
        "{\"header\":{\"revision\":\"x\"},\"ID\":\"x\",\"TTL\":\"9\"}",
        "{\"header\":{\"revision\":\"5\"},\"kvs\":5,\"ID\":7}",
        "{\"header\":{\"revision\":\"5\"},\"kvs\":[{}],\"more\":true}",
        "{\"header\":{\"revision\":\"5\"},\"kvs\":[{\"key\":\"!!!!\",\"mod_revision\":\"3\","
        "\"create_revision\":\"3\"}]}",
        "{\"header\":{\"revision\":\"5\"},\"kvs\":[{\"key\":\"YQ==\",\"mod_revision\":\"3\","
        "\"create_revision\":\"4\"}]}",
        "{\"result\":{\"watch_id\":\"9\",\"created\":true}}\n",
        "{\"result\":5}\n",
        "{\"result\":{\"watch_id\":\"1\",\"canceled\":true}}\n",
        "{\"result\":{\"watch_id\":\"1\",\"canceled\":true,\"compact_revision\":\"9\"}}\n",
        "{\"error\":{\"grpc_code\":3,\"message\":\"x\"}}\n",
        "\n\n\n",
    };
    for (size_t p = 0; p < 3; p++) {
        for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
            struct rig rig = {.wrong = -1};
            kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
            real_init(&rig.loop, sim_seed(1));
            fake_open(&rig.fake, &rig.loop.io);
            rig.fake.script = script;
            rig.fake.ctx = &rig;
            rig.path = paths[p];
            rig.text = texts[t];
            rig.status = 200;
            rig.left = 2;
            rig_open_coordinator(&rig);
            EVENTUALLY(&rig, rig.up);
            cr_assert(rig.left == 0 || t == 3 || t == 4 || p > 0, "it was believed: %s %s",
                      paths[p], texts[t]);
            kvs_coordinator_destroy(rig.coordinator);
            fake_close(&rig.fake);
            real_cleanup(&rig.loop);
            free(rig.watched);
        }
    }
}

/* "/kvplane/v1/" and then: */
static const char *key_of(const char *rest, char out[256])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char key[128];
    size_t len = (size_t)snprintf(key, sizeof key, "/kvplane/v1/%s", rest);
    char *end = out;
    for (size_t i = 0; i < len; i += 3) {
        uint32_t bits = (uint32_t)(uint8_t)key[i] << 16;
        bits |= i + 1 < len ? (uint32_t)(uint8_t)key[i + 1] << 8 : 0;
        bits |= i + 2 < len ? (uint32_t)(uint8_t)key[i + 2] : 0;
        *end++ = digits[bits >> 18];
        *end++ = digits[bits >> 12 & 63];
        *end++ = i + 1 < len ? digits[bits >> 6 & 63] : '=';
        *end++ = i + 2 < len ? digits[bits & 63] : '=';
    }
    *end = '\0';
    return out;
}

static void push_put(struct rig *rig, const char *key, const char *value, uint64_t rev)
{
    char line[1024], encoded[256];
    (void)snprintf(
        line, sizeof line,
        "{\"result\":{\"header\":{\"revision\":\"%llu\"},\"watch_id\":\"1\",\"events\":[{"
        "\"kv\":{\"key\":\"%s\",\"create_revision\":\"%llu\",\"mod_revision\":\"%llu\","
        "\"version\":\"1\",\"value\":\"%s\"}}]}}",
        (unsigned long long)rev, key_of(key, encoded), (unsigned long long)rev,
        (unsigned long long)rev, value);
    fake_push(&rig->fake, line);
}

static void push_delete(struct rig *rig, const char *key, uint64_t rev)
{
    char line[1024], encoded[256];
    (void)snprintf(line, sizeof line,
                   "{\"result\":{\"header\":{\"revision\":\"%llu\"},\"watch_id\":\"1\","
                   "\"events\":[{\"type\":\"DELETE\",\"kv\":{\"key\":\"%s\","
                   "\"mod_revision\":\"%llu\"}}]}}",
                   (unsigned long long)rev, key_of(key, encoded), (unsigned long long)rev);
    fake_push(&rig->fake, line);
}

/* Values that somebody else wrote, or a later version of ours: said in the log, and passed over. */
Test(etcd_answers, what_lies_there_is_not_believed_either)
{
    struct rig rig;
    rig_open(&rig);
    cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
    static const char *const keys[] = {"name/t/l/v1", "name/",        "name/t",      "in/t/l/x",
                                       "in/x",        "member/t/l/x", "member/",     "step/t/l/",
                                       "step/",       "epoch/t",      "retired/x",   "retired/",
                                       "left/x/y",    "node/n",       "node/%zz",    "quota/t",
                                       "quota/%00",   "quota/%",      "unknown/kind"};
    static const char *const values[] = {
        "",                                             /* nothing */
        "e30=",                                         /* {} */
        "W10=",                                         /* [] */
        "bnVsbA==",                                     /* null */
        "NQ==",                                         /* 5 */
        "LTU=",                                         /* -5 */
        "AA==",                                         /* a NUL */
        "/////w==",                                     /* no UTF-8 */
        "eyJwYXRoIjo1LCJsaW5lYWdlcyI6W119",             /* {"path":5,"lineages":[]} */
        "eyJwYXRoIjoidC9sLyIsImxpbmVhZ2VzIjpbNV19",     /* {"path":"t/l/","lineages":[5]} */
        "eyJwYXRoIjoidC9sLyIsImxpbmVhZ2VzIjpbIngiXX0=", /* … ["x"] */
    };
    uint64_t rev = 10;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            push_put(&rig, keys[k], values[v], rev++);
        }
    }
    push_put(&rig, "node/fine", "eyJhZGRyZXNzIjoiaDoxIn0=", rev++); /* {"address":"h:1"} */
    EVENTUALLY(&rig, rig.nnodes == 1);
    cr_assert(rig.up);
    cr_assert_eq(rig.nlost, 0);
    rig.fake.rev = rev + 1;
    for (int q = CHECK; q < QUESTIONS; q++) {
        cr_assert_eq(question(&rig, q), KVB_OK, "question %d", q);
    }
    rig_close(&rig);
}

/* Processes of an earlier version say nothing of rdma, those of a later one more than is known. */
Test(etcd_answers, records_of_nodes_are_read_whatever_version_wrote_them)
{
    struct rig rig;
    rig_open(&rig);
    /* {"address":"h:1","rdma":"r:2","later":[1]} */
    push_put(&rig, "node/new", "eyJhZGRyZXNzIjoiaDoxIiwicmRtYSI6InI6MiIsImxhdGVyIjpbMV19", 10);
    EVENTUALLY(&rig, rig.nnodes == 1);
    cr_expect_str_eq(rig.node.address, "h:1");
    cr_expect_str_eq(rig.node.rdma, "r:2");
    push_put(&rig, "node/old", "eyJhZGRyZXNzIjoiaDoxIn0=", 11); /* {"address":"h:1"} */
    EVENTUALLY(&rig, rig.nnodes == 2);
    cr_expect_str_eq(rig.node.rdma, "");
    push_put(&rig, "node/bad", "eyJhZGRyZXNzIjoiaDoxIiwicmRtYSI6NX0=", 12); /* …"rdma":5} */
    push_put(&rig, "node/long",                                             /* of 64 bytes */
             "eyJhZGRyZXNzIjoiaDoxIiwicmRtYSI6InJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJy"
             "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnIifQ==",
             13);
    push_put(&rig, "node/last", "eyJhZGRyZXNzIjoiaDoxIn0=", 14);
    EVENTUALLY(&rig, rig.nnodes == 3);
    cr_expect_str_eq(rig.node.name, "last");
    rig_close(&rig);
}

/* A name is unbound and said to be retired in one revision: half of it must not pass for all; and
 * what was heard before it is not older than it is. */
Test(etcd_answers, a_revision_of_which_half_was_heard_is_heard_again)
{
    static const char *const broken[] = {"{\"kv\":5}", "{\"type\":5,\"kv\":{}}",
                                         "{\"type\":\"MOVE\",\"kv\":{}}"};
    for (size_t b = 0; b < sizeof broken / sizeof broken[0]; b++) {
        struct rig rig;
        char line[2048], encoded[256];
        rig_open(&rig);
        size_t len =
            (size_t)snprintf(line, sizeof line,
                             "{\"result\":{\"header\":{\"revision\":\"20\"},\"watch_id\":\"1\","
                             "\"events\":[");
        for (int rev = 19; rev <= 20; rev++) {
            len += (size_t)snprintf(
                line + len, sizeof line - len,
                "{\"kv\":{\"key\":\"%s\",\"create_revision\":\"%d\",\"mod_revision\":\"%d\","
                "\"version\":\"1\",\"value\":\"%s\"}},",
                key_of(rev == 19 ? "node/one" : "node/two", encoded), rev, rev,
                "eyJhZGRyZXNzIjoiaDoxIn0="); /* {"address":"h:1"} */
        }
        (void)snprintf(line + len, sizeof line - len, "%s]}}", broken[b]);
        fake_push(&rig.fake, line);
        EVENTUALLY(&rig,
                   rig.nnodes == 2 && strstr(rig.watched, "\"start_revision\":\"6\"") == NULL);
        cr_assert_not_null(strstr(rig.watched, "\"start_revision\":\"20\""), "%s", rig.watched);
        rig_close(&rig);
    }
}

/* Restored from a backup: what it says of members is of another history than what was heard. */
Test(etcd_answers, an_etcd_whose_history_went_back_is_joined_anew)
{
    struct rig rig;
    rig_open(&rig);
    cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
    push_put(&rig, "node/fine", "eyJhZGRyZXNzIjoiaDoxIn0=", 30);
    EVENTUALLY(&rig, rig.nnodes == 1);
    rig.fake.rev = 29;
    free(rig.watched);
    rig.watched = NULL;
    cr_assert_eq(question(&rig, RETIRE), KVB_ERR_UNAVAILABLE);
    EVENTUALLY(&rig, rig.nlost == 1);
    EVENTUALLY(&rig, rig.up && rig.watched != NULL);
    cr_assert_not_null(strstr(rig.watched, "\"start_revision\":\"6\""), "%s", rig.watched);
    push_put(&rig, "node/fine", "eyJhZGRyZXNzIjoiaDoyIn0=", 7); /* {"address":"h:2"} */
    EVENTUALLY(&rig, rig.nnodes == 2);
    for (int q = 0; q < QUESTIONS; q++) {
        cr_assert_eq(question(&rig, q), KVB_OK, "question %d", q);
    }
    rig_close(&rig);
}

static struct kvs_coord_request *jumps_when_answered;
static uint64_t jumping_now_ns(void *ctx)
{
    (void)ctx;
    if (jumps_when_answered != NULL && kvb_event_posted(&jumps_when_answered->impl.event)) {
        jumped_ns += 600 * KVB_NS_PER_S;
        jumps_when_answered = NULL;
    }
    return real_now_ns() + jumped_ns;
}
static const struct kvb_clock jumping_clock = {.now_ns = jumping_now_ns};

static struct {
    struct kvb_event event;
    struct rig *rig;
    bool ran;
    uint32_t nlost;
} before;
static void on_before(struct kvb_event *event)
{
    (void)event;
    before.ran = true;
    before.nlost = before.rig->nlost;
}

Test(etcd_answers, a_process_stopped_for_longer_than_its_lease_leaves_before_anything_it_had_begun)
{
    struct rig rig;
    rig_open(&rig);
    rig.loop.sim.sched.clock = &jumping_clock;
    cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
    before.rig = &rig;
    kvb_event_init(&before.event, on_before);
    kvb_sched_post(&rig.loop.sim.sched, &before.event);
    jumped_ns = 600000 * KVB_NS_PER_MS;
    (void)kvb_sched_turn(&rig.loop.sim.sched);
    cr_assert(before.ran);
    cr_assert_eq(before.nlost, 1);
    cr_assert(!rig.up);
    rig_close(&rig);
}

/* The watch was faster than the answer: the lineage it names is retired, and that was told. */
Test(etcd_answers, an_answer_that_the_watch_has_overtaken_is_asked_anew)
{
    struct rig rig;
    rig_open(&rig);
    cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
    struct ask ask;
    rig.fake.hold = true;
    rig.fake.rev = 9; /* of a time when it was bound */
    kvs_member_resolve(rig.member, "v1", asked(&ask));
    EVENTUALLY(&rig, rig.fake.held != NULL);
    push_put(&rig, "name/t/l/v1", "MDAwMDAwMDAwMDAwMDAwMTAwMDAwMDAwMDAwMDAwMDI=", 10);
    push_delete(&rig, "name/t/l/v1", 11);
    push_put(&rig, "node/fine", "eyJhZGRyZXNzIjoiaDoxIn0=", 12);
    EVENTUALLY(&rig, rig.nnodes == 1);
    rig.fake.rev = 12;
    fake_answer_held(&rig.fake, NULL);
    real_run_for(&rig.loop, 100);
    cr_assert(!ask.done);
    rig.fake.rev = 20; /* and bound again */
    EVENTUALLY(&rig, ask.done);
    cr_assert_eq(ask.status, KVB_OK);
    rig.fake.hold = true;
    kvs_member_check(rig.member, "v1", (struct kvb_lineage){{1, 2}}, asked(&ask));
    EVENTUALLY(&rig, rig.fake.held != NULL);
    push_put(&rig, "node/fine", "eyJhZGRyZXNzIjoiaDoyIn0=", 21); /* {"address":"h:2"} */
    EVENTUALLY(&rig, rig.nnodes == 2);
    fake_answer_held(&rig.fake, NULL);
    EVENTUALLY(&rig, ask.done);
    cr_assert_eq(ask.status, KVB_OK);
    cr_assert(!ask.request.bound);
    rig_close(&rig);
}

/* etcd is out of reach and back while a member's record is under way, which then fails: what was
 * asked meanwhile waits for that record. */
Test(etcd_answers, a_member_whose_record_fails_late_is_made_known_all_the_same)
{
    struct rig rig;
    const struct kvs_space space = {"t", "l"};
    struct kvs_member *late;
    struct ask quota, resolve;
    request_ms = 3000;
    rig_open(&rig);
    cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
    rig.fake.hold = true;
    cr_assert_eq(kvs_member_open(rig.coordinator, "late", &space, &member_ops, &rig, &late),
                 KVB_OK);
    EVENTUALLY(&rig, rig.fake.held != NULL);
    rig.path = "/v3/kv/txn";
    rig.text = "{}";
    rig.status = 200;
    rig.left = UINT32_MAX;
    kvs_coordinator_set_quota(rig.coordinator, "t", 1, asked(&quota));
    EVENTUALLY(&rig, quota.done && !rig.up);
    EVENTUALLY(&rig, rig.up);
    kvs_member_resolve(late, "v2", asked(&resolve));
    fake_answer_held(&rig.fake, "{}"); /* the record has failed */
    rig.left = 0;
    EVENTUALLY(&rig, resolve.done);
    cr_assert_eq(resolve.status, KVB_OK);
    kvs_member_close(late);
    rig_close(&rig);
}

/* ---- the lease: 600 s, of which we count 480; kept alive every 150 ---- */

#define KEPT_ALIVE "{\"result\":{\"ID\":\"7\",\"TTL\":\"600\"}}"

static void on_jumping_clock(struct rig *rig, const char *path, const char *text, int status,
                             uint32_t times, uint64_t first_jump_s)
{
    rig_open(rig);
    rig->loop.sim.sched.clock = &jumping_clock;
    SOON(rig, rig->beats == 1);                   /* as it has joined */
    cr_assert_eq(question(rig, RESOLVE), KVB_OK); /* by then that beat is answered */
    rig->path = path;
    rig->text = text;
    rig->status = status;
    rig->left = times;
    rig->grants = rig->beats = 0;
    jumped_ns += first_jump_s * KVB_NS_PER_S;
}

static void close_jumping(struct rig *rig)
{
    rig->loop.sim.sched.clock = &kvb_clock_real;
    rig_close(rig);
    jumped_ns = 0;
}

/* The first answer takes longer than the lease, and says no; the second one comes at once. */
Test(etcd_answers, a_lease_counts_from_when_it_was_asked_for_last)
{
    struct rig rig;
    request_ms = 900000;
    on_jumping_clock(&rig, "/v3/lease/grant", "{}", 503, 1, 481);
    rig.jumps_ns = 500 * KVB_NS_PER_S;
    EVENTUALLY(&rig, rig.nlost == 1);
    EVENTUALLY(&rig, rig.up);
    cr_assert_eq(rig.grants, 2);
    close_jumping(&rig);
}

Test(etcd_answers, a_keepalive_that_is_not_sound_does_not_prolong_the_lease)
{
    static const char *const texts[] = {"{}",
                                        "{\"result\":{}}",
                                        "{\"result\":{\"ID\":\"8\",\"TTL\":\"600\"}}",
                                        "{\"result\":{\"ID\":\"7\",\"TTL\":\"x\"}}",
                                        "{\"result\":{\"ID\":\"7\"}}",
                                        "x"};
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        struct rig rig;
        on_jumping_clock(&rig, "/v3/lease/keepalive", texts[t], 200, UINT32_MAX, 300);
        EVENTUALLY(&rig, !rig.up);
        jumped_ns += 181 * KVB_NS_PER_S;
        EVENTUALLY(&rig, rig.nlost == 1);
        close_jumping(&rig);
    }
}

/* The answer comes 300 s after it was asked for, and no other one that is sound. */
Test(etcd_answers, a_lease_does_not_count_from_when_the_answer_came)
{
    struct rig rig;
    request_ms = 900000;
    on_jumping_clock(&rig, "/v3/lease/keepalive", KEPT_ALIVE, 200, 1, 151);
    rig.jumps_ns = 300 * KVB_NS_PER_S;
    EVENTUALLY(&rig, rig.beats == 1);
    rig.text = "{}";
    rig.left = UINT32_MAX;
    SOON(&rig, !rig.up);
    cr_assert_eq(rig.nlost, 0);
    jumped_ns += 181 * KVB_NS_PER_S;
    SOON(&rig, rig.nlost == 1);
    close_jumping(&rig);
}

Test(etcd_answers, a_keepalive_that_took_long_is_followed_by_another_at_once)
{
    struct rig rig;
    request_ms = 900000;
    on_jumping_clock(&rig, "/v3/lease/keepalive", KEPT_ALIVE, 200, 1, 151);
    rig.jumps_ns = 200 * KVB_NS_PER_S;
    SOON(&rig, rig.beats == 2);
    cr_assert_eq(rig.nlost, 0);
    close_jumping(&rig);
}

Test(etcd_answers, a_lease_that_has_outlived_an_outage_is_kept_alive_at_once)
{
    struct rig rig;
    on_jumping_clock(&rig, "/v3/lease/keepalive", "{}", 503, UINT32_MAX, 151);
    EVENTUALLY(&rig, !rig.up);
    rig.left = 0;
    rig.beats = 0;
    EVENTUALLY(&rig, rig.up);
    SOON(&rig, rig.beats == 1);
    cr_assert_eq(rig.nlost, 0);
    close_jumping(&rig);
}

/* Where nobody asks for anything. */
Test(etcd_answers, a_ping_notices_that_history_went_back)
{
    struct rig rig;
    on_jumping_clock(&rig, NULL, NULL, 0, 0, 0);
    rig.fake.rev = 3;
    jumped_ns += 151 * KVB_NS_PER_S;
    SOON(&rig, rig.nlost == 1);
    close_jumping(&rig);
}

Test(etcd_answers, a_watch_that_does_not_show_the_pings_is_replaced)
{
    struct rig rig;
    on_jumping_clock(&rig, NULL, NULL, 0, 0, 0);
    free(rig.watched);
    rig.watched = NULL;
    jumped_ns += 151 * KVB_NS_PER_S;
    SOON(&rig, rig.watched != NULL);
    cr_assert(rig.up);
    close_jumping(&rig);
}

/* Questions of more than one transaction, or of another kind. */
#define EPOCH_REV 20 /* its epoch is 20 << 8 */
enum { STEP = QUESTIONS, NOTHING, RECORD, ALL_QUESTIONS };
static kvb_status_t other_question(struct rig *rig, int which)
{
    struct ask ask;
    struct kvb_lineage lineage = {{1, 2}};
    if (which < QUESTIONS) {
        return question(rig, (enum question)which);
    }
    if (which == STEP) {
        kvs_member_step(rig->member, EPOCH_REV << 8, 1, asked(&ask));
    } else if (which == NOTHING) {
        kvs_member_retire(rig->member, &lineage, 0, "none", KVB_NEVER, asked(&ask));
    } else {
        const struct kvs_space space = {"t", "l"};
        struct kvs_member *member;
        cr_assert_eq(kvs_member_open(rig->coordinator, "b", &space, &member_ops, rig, &member),
                     KVB_OK);
        kvs_member_resolve(member, "v1", asked(&ask));
        EVENTUALLY(rig, ask.done);
        kvs_member_close(member);
        return ask.status;
    }
    EVENTUALLY(rig, ask.done);
    return ask.status;
}

/* Every range of a question's first two transactions, wrong in every way, also as the answer of one
 * whose conditions did not hold: what is not what was asked for is no answer. */
static void each_wrong_answer(struct rig *rig, int q, uint32_t skip, bool fails)
{
    for (rig->wrong = 0;; rig->wrong++) {
        rig->skip = skip;
        rig->fails = fails;
        rig->applied = rig->reached = rig->past = false;
        kvb_status_t status = other_question(rig, q);
        int how = rig->wrong % WRONGS;
        cr_assert(status == KVB_OK || status == KVB_ERR_UNAVAILABLE ||
                      (q == STEP && status == KVB_ERR_FENCED),
                  "question %d, %u, %d, wrong %d: %s", q, skip, fails, rig->wrong,
                  kvb_status_label(status));
        bool first = rig->applied && skip == 0 && !fails;
        cr_assert(!first || q != RESOLVE || status == KVB_ERR_UNAVAILABLE, "wrong %d", rig->wrong);
        cr_assert(!first || (q != RETIRE && q != NOTHING) || how < NUMBER ||
                      status == KVB_ERR_UNAVAILABLE,
                  "question %d, wrong %d", q, rig->wrong);
        EVENTUALLY(rig, rig->up);
        if (!rig->reached || rig->past) {
            break;
        }
    }
    rig->wrong = -1;
}

Test(etcd_answers, none_is_believed_of_which_one_thing_is_wrong, .timeout = 1100)
{
    struct rig rig;
    request_ms = 10000;
    rig_open(&rig);
    push_put(&rig, "name/t/l/v1", "MDAwMDAwMDAwMDAwMDAwMTAwMDAwMDAwMDAwMDAwMDI=", 10);
    push_put(&rig, "node/fine", "eyJhZGRyZXNzIjoiaDoxIn0=", 11); /* {"address":"h:1"} */
    EVENTUALLY(&rig, rig.nnodes == 1);
    rig.fake.rev = EPOCH_REV;
    cr_assert_eq(question(&rig, RESET), KVB_OK);
    for (int q = RESOLVE; q < ALL_QUESTIONS; q++) {
        for (uint32_t skip = 0; skip < 2; skip++) {
            each_wrong_answer(&rig, q, skip, false);
            each_wrong_answer(&rig, q, skip, true);
        }
        cr_assert_eq(other_question(&rig, q), KVB_OK, "question %d", q);
    }
    rig_close(&rig);
}

/* The watch has told the asker of a reset that all have left, and its trainer goes on, before a
 * member has the answer to its own word that it has. */
Test(etcd_answers, a_step_waits_until_it_is_known_that_its_member_took_part_in_the_reset)
{
    for (int took_part = 0; took_part < 2; took_part++) {
        struct rig rig;
        struct ask ask;
        rig_open(&rig);
        cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
        rig.fake.rev = EPOCH_REV + 2;
        rig.fake.hold = true;
        /* {"path":"t/","asker":"","whole":true,"quiet":false,"awaited":true,"lineages":[]} */
        push_put(&rig, "retired/x",
                 "eyJwYXRoIjoidC8iLCJhc2tlciI6IiIsIndob2xlIjp0cnVlLCJxdWlldCI6"
                 "ZmFsc2UsImF3YWl0ZWQiOnRydWUsImxpbmVhZ2VzIjpbXX0=",
                 EPOCH_REV);
        EVENTUALLY(&rig, rig.fake.held != NULL);
        kvs_member_step(rig.member, EPOCH_REV << 8, 1, asked(&ask));
        push_put(&rig, "node/fine", "eyJhZGRyZXNzIjoiaDoxIn0=", EPOCH_REV + 1);
        EVENTUALLY(&rig, rig.nnodes == 1);
        cr_assert(!ask.done);
        fake_answer_held(&rig.fake, took_part ? NULL : "{\"header\":{\"revision\":\"22\"}}");
        EVENTUALLY(&rig, ask.done);
        cr_assert_eq(ask.status, took_part ? KVB_OK : KVB_ERR_FENCED, "%s",
                     kvb_status_label(ask.status));
        rig_close(&rig);
    }
}

static const char no_lease[] = "{\"error\":\"etcdserver: requested lease not found\",\"code\":5}";

/* A lease that etcd does not have: whatever it is that is told so, everybody has left. */
Test(etcd_answers, a_lease_that_is_not_there_is_lost)
{
    enum { BY_QUESTION, BY_KEEPALIVE, BY_PING, WAYS };
    for (int way = 0; way < WAYS; way++) {
        struct rig rig;
        request_ms = 10000;
        rig_open(&rig);
        rig.loop.sim.sched.clock = &jumping_clock;
        cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
        rig.path = way == BY_KEEPALIVE ? "/v3/lease/keepalive" : "/v3/kv/txn";
        rig.text = no_lease;
        rig.status = 404;
        rig.left = 1;
        if (way == BY_QUESTION) {
            cr_assert_eq(question(&rig, RESOLVE), KVB_ERR_UNAVAILABLE);
        } else {
            jumped_ns += 151 * KVB_NS_PER_S; /* a quarter of the lease: it is kept alive */
        }
        EVENTUALLY(&rig, rig.nlost == 1);
        EVENTUALLY(&rig, rig.up);
        cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
        rig.loop.sim.sched.clock = &kvb_clock_real;
        rig_close(&rig);
        jumped_ns = 0;
    }
}

/* What was answered under a lease that is lost by then binds nothing. */
Test(etcd_answers, an_answer_under_a_lease_that_was_lost_since_is_none)
{
    for (int known = 0; known < 2; known++) { /* and if etcd does not have that lease either */
        struct rig rig;
        struct ask ask;
        request_ms = 600000; /* longer than what is jumped over */
        rig_open(&rig);
        rig.loop.sim.sched.clock = &jumping_clock;
        cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
        rig.fake.hold = true;
        kvs_member_resolve(rig.member, "v2", asked(&ask));
        EVENTUALLY(&rig, rig.fake.held != NULL);
        rig.fake.hold = false;
        rig.path = "/v3/lease/keepalive";
        rig.text = no_lease;
        rig.status = 404;
        rig.left = 1;
        rig.next_path = "/v3/lease/grant"; /* another one than it had */
        rig.next_text = "{\"header\":{\"revision\":\"5\"},\"ID\":\"8\",\"TTL\":\"600\"}";
        jumped_ns = 151 * KVB_NS_PER_S;
        EVENTUALLY(&rig, rig.nlost == 1);
        EVENTUALLY(&rig, rig.up);
        if (!ask.done) {
            fake_answer_held(&rig.fake, known ? NULL : no_lease);
        }
        EVENTUALLY(&rig, ask.done);
        cr_assert_eq(ask.status, KVB_ERR_UNAVAILABLE);
        cr_assert_eq(rig.nlost, 1, "the lease that it has now is another one");
        rig.loop.sim.sched.clock = &kvb_clock_real;
        rig_close(&rig);
        jumped_ns = 0;
    }
}

/* Answered, and not told yet when the lease ends. */
Test(etcd_answers, an_answer_that_binds_and_is_on_its_way_when_the_lease_ends_is_none)
{
    struct rig rig;
    struct ask ask;
    rig_open(&rig);
    rig.loop.sim.sched.clock = &jumping_clock;
    cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
    kvs_member_resolve(rig.member, "v2", asked(&ask));
    jumps_when_answered = &ask.request;
    EVENTUALLY(&rig, ask.done);
    cr_assert_eq(jumps_when_answered, NULL);
    cr_assert_eq(ask.status, KVB_ERR_UNAVAILABLE);
    EVENTUALLY(&rig, rig.nlost == 1);
    rig.loop.sim.sched.clock = &kvb_clock_real;
    rig_close(&rig);
    jumped_ns = 0;
}

Test(etcd_answers, a_node_withdrawn_while_it_is_announced_is_not_there)
{
    struct rig rig;
    struct ask ask;
    const struct kvs_node_record node = {.name = "n", .address = "127.0.0.1:1", .incarnation = 7};
    const char *const not_so = "{\"header\":{\"revision\":\"9\"}}";
    rig_open(&rig);
    cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
    rig.path = "/v3/kv/txn"; /* what it rested on has changed: for the announcement, */
    rig.text = not_so;       /* and for the withdrawal */
    rig.status = 200;
    rig.left = 2;
    rig.puts = 0;
    rig.withdraws = asked(&ask);
    cr_assert_eq(kvs_coordinator_announce(rig.coordinator, &node), KVB_OK);
    EVENTUALLY(&rig, ask.done);
    cr_assert_eq(ask.status, KVB_OK);
    cr_assert_eq(rig.puts, 1, "it is not put again");
    cr_assert(rig.up);
    rig_close(&rig);
}

/* Its transaction, of revision 32, names a member that came with revision 30. */
static void retire_that_waits(struct rig *rig, struct ask *ask)
{
    struct kvb_lineage lineage = {{1, 2}};
    char encoded[256], text[512];
    (void)snprintf(text, sizeof text,
                   "{\"header\":{\"revision\":\"32\"},\"succeeded\":true,\"responses\":["
                   "{\"response_put\":{}},{\"response_range\":{\"kvs\":[{\"key\":\"%s\","
                   "\"create_revision\":\"30\",\"mod_revision\":\"30\"}]}}]}",
                   key_of("member/t/l/x", encoded));
    rig->path = "/v3/kv/txn";
    rig->text = text;
    rig->status = 200;
    rig->left = 1;
    kvs_member_retire(rig->member, &lineage, 1, NULL, KVB_NEVER, asked(ask));
    EVENTUALLY(rig, rig->left == 0);
    real_run_for(&rig->loop, 100);
    cr_assert(!ask->done, "it waits: %s", kvb_status_label(ask->status));
}

/* The watch is behind the answer: that it shows no such member does not mean that it has gone. */
Test(etcd_answers, a_retirement_waits_for_members_that_were_not_heard_of_yet)
{
    struct rig rig;
    struct ask ask;
    request_ms = 60000;
    rig_open(&rig);
    cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
    retire_that_waits(&rig, &ask);
    push_put(&rig, "member/t/l/x", "e30=", 30);
    push_put(&rig, "node/fine", "eyJhZGRyZXNzIjoiaDoxIn0=", 33); /* {"address":"h:1"} */
    EVENTUALLY(&rig, rig.nnodes == 1);
    cr_assert(!ask.done, "it waits: %s", kvb_status_label(ask.status));
    push_delete(&rig, "member/t/l/x", 34);
    EVENTUALLY(&rig, ask.done);
    cr_assert_eq(ask.status, KVB_OK);
    rig_close(&rig);
}

/* etcd has its record already, so others wait for it; it does not know that yet itself. */
Test(etcd_answers, a_member_is_told_of_a_retirement_heard_before_the_answer_to_its_record)
{
    /* {"path":"t/l/","asker":"","whole":false,"quiet":false,"awaited":true,"lineages":[{1, 2}]} */
    static const char record[] =
        "eyJwYXRoIjoidC9sLyIsImFza2VyIjoiIiwid2hvbGUiOmZhbHNlLCJxdWlldCI6ZmFsc2UsImF3YWl0"
        "ZWQiOnRydWUsImxpbmVhZ2VzIjpbIjAwMDAwMDAwMDAwMDAwMDEwMDAwMDAwMDAwMDAwMDAyIl19";
    struct rig rig, late = {0};
    const struct kvs_space space = {"t", "l"};
    rig_open(&rig);
    cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
    rig.fake.hold = true;
    cr_assert_eq(kvs_member_open(rig.coordinator, "late", &space, &member_ops, &late, &late.member),
                 KVB_OK);
    EVENTUALLY(&rig, rig.fake.held != NULL);
    push_put(&rig, "retired/00000000000000030000000000000004", record, 30);
    EVENTUALLY(&rig, rig.told);
    cr_assert(!late.told);
    rig.fake.rev = 31;
    fake_answer_held(&rig.fake, NULL);
    SOON(&rig, late.told);
    kvs_member_close(late.member);
    rig_close(&rig);
}

/* Waited for when etcd's history goes back: nobody knows any more who has left. */
Test(etcd_answers, a_retirement_that_waits_when_history_goes_back_is_no_success)
{
    struct rig rig;
    struct ask ask;
    request_ms = 60000;
    rig_open(&rig);
    cr_assert_eq(question(&rig, RESOLVE), KVB_OK);
    push_put(&rig, "member/t/l/x", "e30=", 30);
    push_put(&rig, "node/fine", "eyJhZGRyZXNzIjoiaDoxIn0=", 31);
    EVENTUALLY(&rig, rig.nnodes == 1);
    rig.fake.rev = 32;
    retire_that_waits(&rig, &ask);
    rig.fake.rev = 29;
    cr_assert_eq(question(&rig, QUOTA), KVB_ERR_UNAVAILABLE);
    EVENTUALLY(&rig, ask.done);
    cr_assert_eq(ask.status, KVB_ERR_TIMEOUT);
    rig_close(&rig);
}

Test(etcd_answers, what_cannot_be_retired_and_what_cannot_be_asked_yet_is_told)
{
    struct rig rig = {.wrong = -1};
    struct ask ask;
    const struct kvs_space space = {"t", "l"};
    static const struct kvb_lineage many[255];
    char name[257];
    memset(name, 'x', 256);
    name[256] = '\0';
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    real_init(&rig.loop, sim_seed(1));
    fake_open(&rig.fake, &rig.loop.io);
    rig.fake.script = script;
    rig.fake.ctx = &rig;
    rig_open_coordinator(&rig);
    kvs_coordinator_set_quota(rig.coordinator, "t", 1, asked(&ask)); /* not in touch yet */
    EVENTUALLY(&rig, ask.done);
    cr_assert_eq(ask.status, KVB_ERR_UNAVAILABLE);
    EVENTUALLY(&rig, rig.up);
    cr_assert_eq(kvs_member_open(rig.coordinator, "a", &space, &member_ops, &rig, &rig.member),
                 KVB_OK);
    kvs_member_retire(rig.member, many, 255, NULL, KVB_NEVER, asked(&ask));
    EVENTUALLY(&rig, ask.done);
    cr_assert_eq(ask.status, KVB_ERR_INVALID);
    kvs_member_retire(rig.member, many, 0, name, KVB_NEVER, asked(&ask));
    EVENTUALLY(&rig, ask.done);
    cr_assert_eq(ask.status, KVB_ERR_INVALID);
    rig_close(&rig);
}
