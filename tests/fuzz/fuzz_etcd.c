/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What etcd may answer: lines, each a letter and JSON. j: to the step of joining that runs; s: on
 * the watch; t: to a transaction. Nothing is sent: only a first turn of the loop runs.
 */
#include "etcd_impl.h"
#include "sim_sched.h"

#include "base/log.h"

#include <string.h>

static kvb_status_t no_watch(struct kvb_io *io, struct kvb_io_watch *watch, unsigned events)
{
    (void)events;
    watch->impl = io;
    return KVB_OK;
}
static void no_unwatch(struct kvb_io *io, struct kvb_io_watch *watch)
{
    (void)io;
    watch->impl = NULL;
}
static const struct kvb_io_ops io_ops = {.watch = no_watch, .unwatch = no_unwatch};

static void on_told(void *ctx, struct kvb_lineage lineage, uint64_t retirement)
{
    (void)ctx, (void)lineage, (void)retirement;
}
static void on_tenant(void *ctx, uint64_t retirement)
{
    (void)ctx, (void)retirement;
}
static void on_reachable(void *ctx, bool reachable)
{
    (void)ctx, (void)reachable;
}
static const struct kvs_member_ops member_ops = {
    .told = on_told, .told_tenant = on_tenant, .reachable = on_reachable};

static void on_node(void *ctx, const struct kvs_node_record *record)
{
    (void)ctx;
    kvb_assert(strlen(record->address) < sizeof record->address);
    kvb_assert(strlen(record->name) < sizeof record->name);
}
static void on_gone(void *ctx, const char *name)
{
    (void)ctx, (void)name;
}
static void on_retired(void *ctx, const struct kvb_lineage *lineages, uint32_t n)
{
    (void)ctx;
    kvb_assert(lineages != NULL && n > 0);
}
static void on_quota(void *ctx, const char *tenant, uint64_t bytes)
{
    (void)ctx, (void)tenant, (void)bytes;
}
static const struct kvs_watch_ops watch_ops = {on_node, on_gone, on_retired, on_quota,
                                               on_reachable};

static void see_name(void *arg, const struct kvs_space *space, const char *name,
                     struct kvb_lineage lineage, uint32_t members)
{
    (void)arg, (void)space, (void)name, (void)lineage, (void)members;
}
static void see_instance(void *arg, const struct kvs_instance_record *record)
{
    (void)arg, (void)record;
}
static kvb_status_t see_kv(void *ctx, const struct kvs_kv *kv)
{
    (void)ctx;
    kvb_assert(kv->key[kv->key_len] == '\0' && kv->value[kv->value_len] == '\0');
    return KVB_OK;
}

static void answer_txn(const json_t *object)
{
    struct kvs_txn_answer answer;
    json_t *then = json_pack("[{s:{}}, {s:{}}]", "request_range", "request_put");
    json_t *otherwise = json_pack("[{s:{}}]", "request_range");
    bool sound;
    if (kvs_txn_parse(object, then, otherwise, &answer)) {
        struct kvs_found found;
        kvb_status_t status = kvs_op_one_kv(&answer, 0, &found);
        kvb_assert(status != KVB_OK || found.n <= 1);
        free(found.value);
        status = kvs_wire_each_kv(kvs_txn_kvs(&answer, 0, &sound), see_kv, NULL);
        (void)status;
    }
    json_decref(then);
    json_decref(otherwise);
}

static void feed(struct etcd *etcd, const char *line, size_t len)
{
    json_t *object = len < 2 ? NULL : json_loadb(line + 1, len - 1, 0, NULL);
    if (!json_is_object(object)) {
        json_decref(object);
        return;
    }
    if (line[0] == 'j' && kvs_http_running(&etcd->join)) {
        kvs_http_cancel(&etcd->join);
        etcd->join.done(&etcd->join, KVB_OK, object);
    } else if (line[0] == 's') {
        etcd->stream.object(&etcd->stream, object);
    } else if (line[0] == 't') {
        answer_txn(object);
    }
    json_decref(object);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sim_sched sim;
    struct kvb_io io = {.ops = &io_ops};
    const char *const endpoints[] = {"http://127.0.0.1:1"};
    const struct kvs_space space = {"t", "l"};
    struct kvs_coordinator *coordinator;
    struct kvs_member *member;
    kvb_log_threshold = KVB_LOG_ERROR;
    sim_init(&sim, 1);
    const struct kvs_etcd_config config = {
        .sched = &sim.sched, .io = &io, .endpoints = endpoints, .nendpoints = 1};
    kvb_status_t status = kvs_etcd_create(&config, &coordinator);
    kvb_assert(status == KVB_OK);
    status = kvs_coordinator_watch(coordinator, &watch_ops, NULL);
    kvb_assert(status == KVB_OK);
    status = kvs_member_open(coordinator, "a", &space, &member_ops, NULL, &member);
    kvb_assert(status == KVB_OK);
    (void)kvb_sched_turn(&sim.sched);
    kvb_container_of(member, struct member, base)->told_rev = 1;
    struct etcd *etcd = kvs_etcd_of(coordinator);
    const char *text = (const char *)data;
    while (size > 0) {
        const char *end = memchr(text, '\n', size);
        size_t len = end == NULL ? size : (size_t)(end - text);
        feed(etcd, text, len);
        text += len + (end != NULL);
        size -= len + (end != NULL);
    }
    kvs_coordinator_each_name(coordinator, see_name, NULL);
    kvs_coordinator_each_instance(coordinator, see_instance, NULL);
    kvs_member_close(member);
    kvs_coordinator_destroy(coordinator);
    sim_cleanup(&sim);
    return 0;
}
