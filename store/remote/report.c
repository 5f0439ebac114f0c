/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the node says of itself: asked for when it comes, and each REPORT_MS while it is there. And
 * its tenants, page by page, when somebody wants to know.
 */
#include "remote.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#define REPORT_MS 1000

static void tell(struct kvs_remote *remote)
{
    if (remote->changed != NULL) {
        remote->changed(remote->ctx, &remote->base, &remote->status);
    }
}

/* ---- status ---- */

static void on_report(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct kvs_remote *remote = kvb_container_of(transfer, struct kvs_remote, report);
    struct kvs_wire_status wire;
    struct kvs_remote_status before = remote->status;
    remote->report_asked = false;
    if (status == KVB_OK) {
        status = kvs_status_unpack((struct kvb_span){remote->report_answer, transfer->answer_len},
                                   &wire);
    }
    if (status != KVB_OK || !remote->status.up) {
        return;
    }
    remote->status = (struct kvs_remote_status){
        .up = true,
        .by = before.by,
        .draining = wire.draining,
        .incarnation = before.incarnation,
        .heard_ns = kvb_now_ns(remote->sched->clock),
        .capacity_bytes = wire.capacity_bytes,
        .used_bytes = wire.used_bytes,
        .objects = wire.objects,
        .puts = wire.puts,
        .put_bytes = wire.put_bytes,
        .gets = wire.gets,
        .get_bytes = wire.get_bytes,
    };
    tell(remote);
}

void kvs_report_draining(struct kvs_remote *remote)
{
    if (remote->status.up && !remote->status.draining) {
        remote->status.draining = true;
        tell(remote);
    }
}

static void ask_for_report(struct kvs_remote *remote)
{
    kvb_sched_timer_set(remote->sched, &remote->report_due,
                        kvb_deadline_in_ms(remote->sched->clock, REPORT_MS));
    if (remote->report_asked) {
        return;
    }
    remote->report = (struct kvt_transfer){
        .deadline_ns = kvb_deadline_in_ms(remote->sched->clock, 2ull * REPORT_MS),
        .done = on_report,
        .type = KVS_ASK_STATUS,
        .answer = remote->report_answer,
        .answer_cap = sizeof remote->report_answer,
    };
    remote->report_asked = kvs_remote_start(remote, &remote->report) == KVB_OK;
}

static void on_report_due(struct kvb_timer *timer)
{
    ask_for_report(kvb_container_of(timer, struct kvs_remote, report_due));
}

/* It is up while some way is. */
static void look_at_ways(struct kvs_remote *remote)
{
    remote->status.up = false;
    remote->status.by = NULL;
    for (uint32_t i = remote->nways; i-- > 0;) {
        if (remote->ways[i].up) {
            remote->status.up = true;
            remote->status.by = remote->ways[i].by->name;
        }
    }
}

static void on_up(void *ctx, const struct kvt_hello *hello)
{
    struct kvs_remote_way *way = ctx;
    struct kvs_remote *remote = way->remote;
    bool news = !remote->status.up || remote->status.incarnation != hello->incarnation;
    way->up = true;
    way->why = KVB_OK;
    if (news) {
        remote->status = (struct kvs_remote_status){
            .incarnation = hello->incarnation,
            .heard_ns = kvb_now_ns(remote->sched->clock),
            /* until it says more */
            .capacity_bytes = remote->status.capacity_bytes,
            .used_bytes = remote->status.used_bytes,
            .objects = remote->status.objects,
        };
    }
    look_at_ways(remote);
    tell(remote);
    if (news) {
        ask_for_report(remote);
    }
}

static void on_down(void *ctx, kvb_status_t why)
{
    struct kvs_remote_way *way = ctx;
    struct kvs_remote *remote = way->remote;
    way->up = false;
    way->why = why;
    look_at_ways(remote);
    if (!remote->status.up) {
        kvb_sched_timer_clear(remote->sched, &remote->report_due);
    }
    tell(remote);
}

const struct kvt_peer_ops kvs_report_peer_ops = {.up = on_up, .down = on_down};

void kvs_remote_status(struct kvs_node *node, struct kvs_remote_status *status_p)
{
    *status_p = kvs_remote_of(node)->status;
}

void kvs_report_init(struct kvs_remote *remote)
{
    kvb_timer_init(&remote->report_due, on_report_due);
}

void kvs_report_cleanup(struct kvs_remote *remote)
{
    kvb_sched_timer_clear(remote->sched, &remote->report_due);
}

/* ---- tenants ---- */

struct listing {
    struct kvs_remote_tenants *ask;
    struct kvs_remote *remote;
    uint64_t deadline_ns;
    struct kvb_writer question;
    struct kvs_wire_tenants page;
    struct kvt_transfer transfer;
    struct kvb_event failed; /* before anything was begun */
    kvb_status_t status;
    uint8_t answer[KVS_TENANTS_WIRE_MAX];
};

static void finish_listing(struct listing *listing, kvb_status_t status)
{
    struct kvs_remote_tenants *ask = listing->ask;
    struct kvs_remote_tenant *tenants = ask->tenants;
    listing->remote->nlistings--;
    kvb_writer_cleanup(&listing->question);
    free(listing);
    ask->done(ask, status);
    free(tenants);
}

static kvb_status_t keep_page(struct listing *listing)
{
    struct kvs_remote_tenants *ask = listing->ask;
    const struct kvs_wire_tenants *page = &listing->page;
    struct kvs_remote_tenant *grown = realloc(ask->tenants, (ask->n + page->n + 1) * sizeof *grown);
    if (grown == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    ask->tenants = grown;
    for (uint32_t i = 0; i < page->n; i++) {
        struct kvs_remote_tenant *tenant = &ask->tenants[ask->n++];
        memcpy(tenant->tenant, page->at[i].tenant, sizeof tenant->tenant);
        tenant->stats = page->at[i].stats;
    }
    return KVB_OK;
}

static void on_page(struct kvt_transfer *transfer, kvb_status_t status);

static kvb_status_t ask_for_page(struct listing *listing, uint32_t from)
{
    struct kvs_remote *remote = listing->remote;
    remote->ask.from = from;
    listing->question.len = 0;
    kvs_ask_pack(&listing->question, KVS_ASK_TENANTS, &remote->ask);
    if (listing->question.status != KVB_OK) {
        return listing->question.status;
    }
    listing->transfer = (struct kvt_transfer){
        .deadline_ns = listing->deadline_ns,
        .done = on_page,
        .type = KVS_ASK_TENANTS,
        .ask = {listing->question.data, listing->question.len},
        .answer = listing->answer,
        .answer_cap = sizeof listing->answer,
    };
    return kvs_remote_start(remote, &listing->transfer);
}

static void on_page(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct listing *listing = kvb_container_of(transfer, struct listing, transfer);
    struct kvs_wire_tenants *page = &listing->page;
    if (status == KVB_OK) {
        status = kvs_tenants_unpack((struct kvb_span){listing->answer, transfer->answer_len}, page);
    }
    if (status == KVB_OK) {
        status = keep_page(listing);
    }
    if (status == KVB_OK && page->next != 0) {
        /* pages follow each other, none is empty, and they end: a node cannot make us ask for ever
         * or keep more than there may be */
        uint32_t n = listing->ask->n;
        bool sound = page->n > 0 && page->next == n && n <= KVS_CORE_TENANT_MAX;
        status = sound ? ask_for_page(listing, page->next) : KVB_ERR_PROTOCOL;
        if (status == KVB_OK) {
            return;
        }
    }
    finish_listing(listing, status == KVB_ERR_DISCONNECTED ? KVB_ERR_UNAVAILABLE : status);
}

static void on_failed(struct kvb_event *event)
{
    struct listing *listing = kvb_container_of(event, struct listing, failed);
    finish_listing(listing, listing->status);
}

kvb_status_t kvs_remote_tenants(struct kvs_node *node, uint64_t deadline_ns,
                                struct kvs_remote_tenants *ask)
{
    struct kvs_remote *remote = kvs_remote_of(node);
    struct listing *listing = calloc(1, sizeof *listing);
    if (listing == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    ask->tenants = NULL;
    ask->n = 0;
    listing->ask = ask;
    listing->remote = remote;
    listing->deadline_ns = deadline_ns;
    kvb_writer_init(&listing->question, KVT_ASK_MAX);
    kvb_event_init(&listing->failed, on_failed);
    remote->nlistings++;
    listing->status = ask_for_page(listing, 0);
    if (listing->status != KVB_OK) {
        kvb_sched_post(remote->sched, &listing->failed);
    }
    return KVB_OK;
}
