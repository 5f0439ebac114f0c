/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that parsed a request serves it. What the index alone answers is answered inside
 * request(): at most one step of work (KVS_WIRE_ITEMS_MAX keys), under the locks of the shards
 * that it is about. Puts and gets: op.c.
 */
#include "service.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_HOLD_MS 60000

/* ---- answers ---- */

static void answer_status(struct kvt_request *request, kvb_status_t status)
{
    kvt_answer(request, status, NULL, 0);
}

/* Answers with what was packed. */
static void answer(struct kvs_service *service, struct kvt_request *request)
{
    struct kvb_writer *out = &service->answer;
    if (out->status == KVB_OK) {
        kvt_answer(request, KVB_OK, out->data, (uint32_t)out->len);
    } else {
        answer_status(request, out->status);
    }
}

static struct kvb_writer *begin_answer(struct kvs_service *service)
{
    service->answer.len = 0; /* its room stays */
    service->answer.status = KVB_OK;
    return &service->answer;
}

static void answer_items(struct kvs_service *service, struct kvt_request *request)
{
    kvs_items_pack(begin_answer(service), service->items, service->ask.nkeys);
    answer(service, request);
}

/* ---- questions ---- */

static uint64_t now(const struct kvs_service *service)
{
    return kvb_now_ns(service->sched->clock);
}

static void serve_exists(struct kvs_service *service, struct kvt_request *request,
                         const struct kvs_core_where *where)
{
    const struct kvs_ask *ask = &service->ask;
    uint64_t now_ns = now(service);
    uint32_t hits = 0;
    for (uint32_t i = 0; i < ask->nkeys; i++) {
        service->lookup.entries[i].key = ask->keys[i];
    }
    kvs_share_exists(service->share, now_ns, where, &service->lookup, ask->nkeys, ask->hold,
                     now_ns + service->hold_ns);
    for (uint32_t i = 0; i < ask->nkeys; i++) {
        const struct kvs_core_entry *entry = &service->lookup.entries[i];
        bool hit = entry->status == KVB_OK;
        service->items[i] = (struct kvs_wire_item){entry->status, hit ? entry->len : 0};
        hits += hit;
    }
    KVS_COUNT(&service->counts, lookups, ask->nkeys);
    KVS_COUNT(&service->counts, lookup_hits, hits);
    answer_items(service, request);
}

static void serve_remove(struct kvs_service *service, struct kvt_request *request,
                         const struct kvs_core_where *where)
{
    const struct kvs_ask *ask = &service->ask;
    uint64_t now_ns = now(service);
    for (uint32_t i = 0; i < ask->nkeys; i++) {
        kvb_status_t status =
            kvs_share_remove(service->share, now_ns, where, &ask->keys[i], ask->force);
        service->items[i] = (struct kvs_wire_item){.status = status};
        kvs_count_answer(&service->counts, KVS_REMOVE, status, 0);
    }
    answer_items(service, request);
}

static void serve_pin(struct kvs_service *service, struct kvt_request *request,
                      const struct kvs_core_where *where)
{
    const struct kvs_ask *ask = &service->ask;
    uint64_t now_ns = now(service);
    for (uint32_t i = 0; i < ask->nkeys; i++) {
        service->items[i] = (struct kvs_wire_item){
            .status = kvs_share_pin(service->share, now_ns, where, &ask->keys[i], ask->pin)};
    }
    answer_items(service, request);
}

static void serve_discard(struct kvs_service *service, struct kvt_request *request,
                          const struct kvs_core_where *where)
{
    (void)where;
    kvs_share_discard(service->share, service->ask.hold, service->ask.all_of_instance);
    answer_status(request, KVB_OK);
}

static void serve_status(struct kvs_service *service, struct kvt_request *request,
                         const struct kvs_core_where *where)
{
    (void)where;
    struct kvs_share_stats stats;
    kvs_share_stats(service->share, &stats);
    const struct kvs_wire_status status = {
        .draining = atomic_load_explicit(&service->draining, memory_order_relaxed),
        .capacity_bytes = stats.core.share_bytes,
        .used_bytes = stats.core.used_bytes,
        .objects = stats.core.objects,
        .puts = stats.puts,
        .put_bytes = stats.put_bytes,
        .gets = stats.gets,
        .get_bytes = stats.get_bytes,
    };
    kvs_status_pack(begin_answer(service), &status);
    answer(service, request);
}

static void serve_tenants(struct kvs_service *service, struct kvt_request *request,
                          const struct kvs_core_where *where)
{
    (void)where;
    struct kvs_wire_tenants *tenants = &service->tenants;
    uint32_t i = service->ask.from;
    tenants->n = 0;
    while (tenants->n < KVS_WIRE_TENANTS_MAX &&
           kvs_share_tenant_at(service->share, i, tenants->at[tenants->n].tenant,
                               &tenants->at[tenants->n].stats)) {
        tenants->n++;
        i++;
    }
    tenants->next = tenants->n == KVS_WIRE_TENANTS_MAX ? i : 0;
    kvs_tenants_pack(begin_answer(service), tenants);
    answer(service, request);
}

static void serve_list(struct kvs_service *service, struct kvt_request *request,
                       const struct kvs_core_where *where)
{
    (void)where;
    const struct kvs_ask *ask = &service->ask;
    struct kvs_list *list = &service->list;
    memset(list->tenant, 0, sizeof list->tenant);
    memset(list->layout, 0, sizeof list->layout);
    memcpy(list->tenant, ask->space.tenant.data, ask->space.tenant.len);
    if (ask->space.layout.len > 0) {
        memcpy(list->layout, ask->space.layout.data, ask->space.layout.len);
    }
    list->lineage = ask->lineage;
    list->max = ask->max;
    list->place = ask->place;
    kvs_share_list(service->share, list);
    kvs_list_pack(begin_answer(service), list);
    answer(service, request);
}

/* A client read bytes that did not match their checksum: is it the object that is bad? */
static void serve_scrub(struct kvs_service *service, struct kvt_request *request,
                        const struct kvs_core_where *where)
{
    const struct kvs_core_key *key = &service->ask.keys[0];
    struct kvs_shard *shard =
        kvs_share_shard(service->share, kvs_share_seed(service->share, where), key->block);
    kvs_scrub_start(&service->scrubs, shard, where, key);
    answer_status(request, KVB_OK);
}

static const struct {
    void (*serve)(struct kvs_service *service, struct kvt_request *request,
                  const struct kvs_core_where *where);
    enum kvs_batch_op op; /* what it is counted as where its space is unknown */
} handlers[] = {
    [KVS_ASK_EXISTS] = {serve_exists, KVS_EXISTS}, [KVS_ASK_GET] = {kvs_serve_get, KVS_GET},
    [KVS_ASK_PUT] = {kvs_serve_put, KVS_PUT},      [KVS_ASK_REMOVE] = {serve_remove, KVS_REMOVE},
    [KVS_ASK_PIN] = {serve_pin, KVS_PIN},          [KVS_ASK_DISCARD] = {serve_discard, KVS_PIN},
    [KVS_ASK_STATUS] = {serve_status, KVS_PIN},    [KVS_ASK_TENANTS] = {serve_tenants, KVS_PIN},
    [KVS_ASK_SCRUB] = {serve_scrub, KVS_PIN},      [KVS_ASK_LIST] = {serve_list, KVS_PIN},
};

/* Nothing was ever put there, or it cannot be: the same answer for every key. */
static void answer_without_space(struct kvs_service *service, struct kvt_request *request,
                                 const struct kvs_question_info *info, kvb_status_t status)
{
    struct kvs_ask *ask = &service->ask;
    for (uint32_t i = 0; i < ask->nkeys; i++) {
        service->items[i] = (struct kvs_wire_item){.status = status};
        kvs_count_answer(&service->counts, handlers[info->type].op, status, 0);
    }
    if (info->answer == KVS_ANSWER_ITEMS) {
        answer_items(service, request);
    } else {
        answer_status(request, status);
    }
}

static void on_request(void *ctx, struct kvt_request *request)
{
    struct kvs_service *service = ctx;
    struct kvs_core_where where = {0};
    const struct kvs_question_info *info = kvs_question_info(request->type);
    request->state = NULL;
    if (info == NULL) { /* of a later version */
        answer_status(request, KVB_ERR_UNSUPPORTED);
        return;
    }
    if (info->body != (request->body_len > 0) ||
        kvs_ask_unpack(request->ask, (enum kvs_question)info->type, &service->ask) != KVB_OK) {
        answer_status(request, KVB_ERR_PROTOCOL);
        return;
    }
    if ((info->fields & KVS_FIELD_SPACE) != 0 && info->type != KVS_ASK_LIST) {
        bool make = info->type == KVS_ASK_PUT;
        kvb_status_t status = kvs_spaces_find(&service->spaces, &service->ask, make, &where);
        if (status != KVB_OK) {
            answer_without_space(service, request, info, status);
            return;
        }
    }
    handlers[info->type].serve(service, request, &where);
}

/* ---- lanes ---- */

static kvb_status_t on_opened(void *ctx, const struct kvt_lane *from, void **session_p)
{
    (void)from;
    struct kvs_service *service = ctx;
    struct kvs_lane *lane = malloc(sizeof *lane);
    if (lane == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    lane->service = service;
    kvb_status_t status = kvs_share_session_open(service->share, &lane->session);
    if (status != KVB_OK) {
        free(lane);
        return status;
    }
    *session_p = lane;
    return KVB_OK;
}

static void on_closed(void *ctx, void *session)
{
    struct kvs_service *service = ctx;
    struct kvs_lane *lane = session;
    kvs_share_session_close(service->share, lane->session);
    free(lane);
}

static const struct kvt_server_ops server_ops = {
    .opened = on_opened,
    .closed = on_closed,
    .request = on_request,
    .received = kvs_serve_received,
    .sent = kvs_serve_sent,
    .gone = kvs_serve_gone,
};

kvb_status_t kvs_service_adopt(struct kvs_service *service, int fd)
{
    return kvt_tcp_server_adopt(service->tcp, fd);
}

kvb_status_t kvs_service_adopt_rdma(struct kvs_service *service, struct kvt_rdma_conn *conn)
{
    return kvt_rdma_server_adopt(service->rdma, conn);
}

void kvs_service_drain(struct kvs_service *service)
{
    atomic_store_explicit(&service->draining, true, memory_order_relaxed);
}

uint32_t kvs_service_running(const struct kvs_service *service)
{
    return atomic_load_explicit(&service->running, memory_order_relaxed);
}

void kvs_service_stats(const struct kvs_service *service, struct kvs_service_stats *stats_p)
{
    *stats_p = (struct kvs_service_stats){.rdma = {0}};
    kvt_tcp_server_stats(service->tcp, &stats_p->tcp);
    if (service->rdma != NULL) {
        kvt_rdma_server_stats(service->rdma, &stats_p->rdma);
    }
}

/* ---- create and destroy ---- */

/* What carries its questions. */
static kvb_status_t open_servers(struct kvs_service *service,
                                 const struct kvs_service_config *config)
{
    const struct kvt_tcp_server_config tcp = {
        .common = config->common,
        .sched = config->sched,
        .name = config->name,
        .incarnation = config->incarnation,
        .lanes_max = config->lanes_max,
        .lanes_each_max = config->lanes_each_max,
        .ops = &server_ops,
        .ctx = service,
    };
    const struct kvt_rdma_server_config rdma = {
        .common = config->common,
        .device = config->rdma,
        .sched = config->sched,
        .io = config->io,
        .name = config->name,
        .incarnation = config->incarnation,
        .lanes_max = config->lanes_max,
        .lanes_each_max = config->lanes_each_max,
        .ops = &server_ops,
        .ctx = service,
    };
    kvb_status_t status = kvt_tcp_server_create(&tcp, &service->tcp);
    if (status == KVB_OK && config->rdma != NULL) {
        status = kvt_rdma_server_create(&rdma, &service->rdma);
    }
    return status;
}

static void close_servers(struct kvs_service *service)
{
    kvt_rdma_server_destroy(service->rdma);
    kvt_tcp_server_destroy(service->tcp);
}

kvb_status_t kvs_service_create(const struct kvs_service_config *config,
                                struct kvs_service **service_p)
{
    struct kvs_service *service = calloc(1, sizeof *service);
    if (service == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    service->sched = config->sched;
    service->share = config->share;
    service->ticket_ns = kvs_ticket_ms(config->ticket_ms) * KVB_NS_PER_MS;
    service->hold_ns = (config->hold_ms != 0 ? config->hold_ms : DEFAULT_HOLD_MS) * KVB_NS_PER_MS;
    kvb_writer_init(&service->answer, KVT_ASK_MAX);
    kvs_scrubs_init(&service->scrubs, service->sched, service->share, &service->counts,
                    service->ticket_ns);
    kvs_serve_init(service);
    kvb_status_t status =
        kvs_spaces_init(&service->spaces, &config->share->names, config->sched->random);
    if (status != KVB_OK) {
        goto err_service;
    }
    status = open_servers(service, config);
    if (status != KVB_OK) {
        goto err_servers;
    }
    kvs_share_counts_add(service->share, &service->counts);
    *service_p = service;
    return KVB_OK;

err_servers:
    close_servers(service);
    kvs_spaces_cleanup(&service->spaces);
err_service:
    free(service);
    return status;
}

void kvs_service_destroy(struct kvs_service *service)
{
    if (service == NULL) {
        return;
    }
    close_servers(service);
    kvb_assert(kvs_service_running(service) == 0);
    kvs_serve_cleanup(service);
    kvs_scrubs_cleanup(&service->scrubs);
    kvs_share_counts_remove(service->share, &service->counts);
    kvs_spaces_cleanup(&service->spaces);
    kvb_writer_cleanup(&service->answer);
    free(service);
}
