/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process's own node. Calls stand in one of three rings; one event takes a bounded step of
 * each that is ready. A call is done there and nowhere else, when its last item has an answer, so
 * `done` never runs inside submit or stop.
 *
 * Lookups and removes are answered in their step. Puts and gets become operations (op.c), which
 * answer later and wake their call.
 */
#include "local.h"

#include "base/assert.h"
#include "base/faults.h"

#include <xxhash.h>

#include <stdlib.h>
#include <string.h>

#define DEFAULT_LEASE_MS 60000
/* In fault runs tickets end while transfers are held. */
#define FAULT_TICKET_MS 10

#define LOOKUP_STEP 256 /* keys */
#define BEGIN_STEP  64  /* puts, gets, removes */

#define RECLAIM_STEP    256 /* objects */
#define UPKEEP_EVERY_MS 100

struct kvs_lookup {
    struct kvs_core_entry entries[LOOKUP_STEP];
    uint32_t index[LOOKUP_STEP]; /* of the item */
    struct kvs_shard *shard[LOOKUP_STEP];
};

static const struct kvs_node_ops local_ops;

static struct kvs_local *of(struct kvs_node *node)
{
    kvb_assert(node->ops == &local_ops);
    return kvb_container_of(node, struct kvs_local, base);
}

/* ---- answers ---- */

static void count_put(struct kvs_local *local, kvb_status_t status, uint64_t len)
{
    switch (status) {
    case KVB_OK:
        KVS_COUNT(local, puts, 1);
        KVS_COUNT(local, put_bytes, len);
        break;
    case KVB_ERR_EXISTS:
        KVS_COUNT(local, puts_existed, 1);
        break;
    case KVB_ERR_NO_SPACE:
    case KVB_ERR_QUOTA:
        KVS_COUNT(local, puts_refused, 1);
        break;
    case KVB_ERR_FENCED:
        KVS_COUNT(local, puts_fenced, 1);
        break;
    default:
        KVS_COUNT(local, puts_failed, 1);
    }
}

static void count_get(struct kvs_local *local, kvb_status_t status, uint64_t len)
{
    switch (status) {
    case KVB_OK:
        KVS_COUNT(local, gets, 1);
        KVS_COUNT(local, get_bytes, len);
        break;
    case KVB_ERR_NOT_FOUND:
        KVS_COUNT(local, gets_missed, 1);
        break;
    case KVB_ERR_TICKET:
        KVS_COUNT(local, gets_ticket, 1);
        break;
    case KVB_ERR_CHECKSUM:
        KVS_COUNT(local, gets_checksum, 1);
        break;
    default:
        KVS_COUNT(local, gets_failed, 1);
    }
}

void kvs_local_answer(struct kvs_local_call *call, uint32_t index, kvb_status_t status,
                      uint64_t len)
{
    struct kvs_item *item = kvs_node_call_item(call->call, index);
    kvb_assert(call->left > 0);
    item->status = status;
    item->len = len;
    call->left--;
    switch (call->call->batch->op) {
    case KVS_EXISTS:
        KVS_COUNT(call->local, lookups, 1);
        KVS_COUNT(call->local, lookup_hits, status == KVB_OK);
        break;
    case KVS_PUT:
        count_put(call->local, status, len);
        break;
    case KVS_GET:
        count_get(call->local, status, len);
        break;
    case KVS_REMOVE:
        KVS_COUNT(call->local, removes, status == KVB_OK);
        break;
    }
}

/* ---- steps of a call ---- */

static void make_ready(struct kvs_local_call *call)
{
    kvb_list_remove(&call->link);
    kvb_list_push_back(&call->local->ready, &call->link);
    kvb_sched_post(call->local->sched, &call->local->work);
}

/* The one that has waited longest may go on; when it has taken what it needs, the next (step_call).
 */
static void feed_starved(struct kvs_local *local)
{
    struct kvb_list *link = kvb_list_first(&local->starved);
    if (link != NULL) {
        make_ready(kvb_container_of(link, struct kvs_local_call, link));
    }
}

void kvs_local_wake(struct kvs_local_call *call)
{
    make_ready(call);
    feed_starved(call->local);
}

/* Hands those of the step that lie in one shard to its core, in order. */
static void lookup_shard(struct kvs_local_call *call, struct kvs_shard *shard, uint32_t n)
{
    struct kvs_local *local = call->local;
    struct kvs_lookup *lookup = local->lookup;
    const struct kvs_batch *batch = call->call->batch;
    struct kvs_core_holder holder = {batch->hold.instance, batch->hold.request};
    uint64_t now_ns = kvb_now_ns(local->sched->clock);
    uint32_t nentries = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (lookup->shard[i] != shard) {
            continue;
        }
        const struct kvs_item *item = kvs_node_call_item(call->call, call->next + i);
        lookup->index[nentries] = call->next + i;
        lookup->entries[nentries].key = (struct kvs_core_key){item->key, item->group, item->part};
        nentries++;
    }
    if (nentries == 0) {
        return;
    }
    kvb_mutex_lock(&shard->lock);
    kvs_core_exists(shard->core, now_ns, &call->where, lookup->entries, nentries, holder,
                    now_ns + local->hold_ms * KVB_NS_PER_MS);
    kvb_mutex_unlock(&shard->lock);
    for (uint32_t i = 0; i < nentries; i++) {
        const struct kvs_core_entry *entry = &lookup->entries[i];
        kvs_local_answer(call, lookup->index[i], entry->status,
                         entry->status == KVB_OK ? entry->len : 0);
    }
}

static void lookup_step(struct kvs_local_call *call)
{
    struct kvs_local *local = call->local;
    uint32_t n = call->call->n - call->next;
    n = n < LOOKUP_STEP ? n : LOOKUP_STEP;
    for (uint32_t i = 0; i < n; i++) {
        const struct kvs_item *item = kvs_node_call_item(call->call, call->next + i);
        local->lookup->shard[i] = kvs_share_shard(&local->share, call->seed, item->key);
    }
    for (uint32_t s = 0; s < local->share.nshards; s++) {
        lookup_shard(call, &local->share.shards[s], n);
    }
    call->next += n;
    if (call->call->batch->hold.instance != 0) {
        kvs_local_upkeep(local, false);
    }
}

static void remove_item(struct kvs_local_call *call, uint32_t index)
{
    const struct kvs_item *item = kvs_node_call_item(call->call, index);
    struct kvs_shard *shard = kvs_share_shard(&call->local->share, call->seed, item->key);
    struct kvs_core_key key = {item->key, item->group, item->part};

    kvb_mutex_lock(&shard->lock);
    kvb_status_t status = kvs_core_remove(shard->core, kvb_now_ns(call->local->sched->clock),
                                          &call->where, &key, call->call->batch->force);
    kvb_mutex_unlock(&shard->lock);
    kvs_local_answer(call, index, status, 0);
    kvs_local_upkeep(call->local, false);
}

/* Of two puts of one key in a batch the first is the first, whichever has fewer bytes to move. */
static bool waits_for_earlier(const struct kvs_local_call *call, uint32_t index)
{
    return call->earlier != NULL && call->earlier[index] != KVS_NO_ITEM &&
           kvs_node_call_item(call->call, call->earlier[index])->status == KVB_IN_PROGRESS;
}

static kvb_status_t begin_item(struct kvs_local_call *call, uint32_t index)
{
    if (call->call->batch->op == KVS_REMOVE) {
        remove_item(call, index);
        return KVB_OK;
    }
    if (waits_for_earlier(call, index)) {
        return KVB_IN_PROGRESS;
    }
    return kvs_op_begin(call, index);
}

/* OK: it came to the end of its step; else what it waits for. */
static kvb_status_t begin_step(struct kvs_local_call *call)
{
    for (uint32_t begun = 0; begun < BEGIN_STEP && call->next < call->call->n; begun++) {
        /* counted first: what it does may end at once, and the call with it */
        uint32_t index = call->next++;
        kvb_status_t status = begin_item(call, index);
        if (status != KVB_OK) {
            call->next--;
            return status;
        }
    }
    return KVB_OK;
}

static void finish_call(struct kvs_local_call *call)
{
    struct kvs_node_call *node_call = call->call;
    kvb_assert(kvb_list_empty(&call->ops));
    (void)atomic_fetch_sub_explicit(&call->local->ncalls, 1, memory_order_relaxed);
    kvb_list_remove(&call->link);
    free(call->earlier);
    free(call);
    node_call->done(node_call);
}

static void park(struct kvs_local_call *call, struct kvb_list *where)
{
    kvb_list_remove(&call->link);
    kvb_list_push_back(where, &call->link);
}

static void step_call(struct kvs_local_call *call)
{
    struct kvs_local *local = call->local;
    kvb_status_t status = KVB_OK;

    if (call->next < call->call->n && call->call->batch->op == KVS_EXISTS) {
        lookup_step(call);
    } else {
        status = begin_step(call);
    }
    if (status != KVB_ERR_BUSY) {
        feed_starved(local);
    }
    if (call->left == 0) {
        finish_call(call);
    } else if (status == KVB_ERR_BUSY) {
        park(call, &local->starved);
    } else if (status == KVB_ERR_AGAIN || (status == KVB_OK && call->next < call->call->n)) {
        make_ready(call);
    } else {
        park(call, &local->parked);
    }
}

static void on_work(struct kvb_event *event)
{
    struct kvs_local *local = kvb_container_of(event, struct kvs_local, work);
    uint32_t steps = atomic_load_explicit(&local->ncalls, memory_order_relaxed);
    for (; steps > 0; steps--) { /* each ready call once; those made ready meanwhile: next turn */
        struct kvb_list *link = kvb_list_pop(&local->ready);
        if (link == NULL) {
            break;
        }
        step_call(kvb_container_of(link, struct kvs_local_call, link));
    }
    if (!kvb_list_empty(&local->ready)) {
        kvb_sched_post(local->sched, &local->work);
    }
}

/* ---- the interface ---- */

static bool same_key(const struct kvs_item *a, const struct kvs_item *b)
{
    return a->group == b->group && a->part == b->part && a->key.len == b->key.len &&
           memcmp(a->key.data, b->key.data, a->key.len) == 0;
}

/* Finds for each put the nearest earlier one of the same key. */
static kvb_status_t find_earlier(struct kvs_local_call *call)
{
    uint32_t n = call->call->n;
    uint32_t slots = 4;
    while (slots < 2 * n) {
        slots *= 2;
    }
    uint32_t *earlier = malloc(n * sizeof *earlier);
    uint32_t *last = malloc(slots * sizeof *last); /* of the items of one key, by its hash */
    if (earlier == NULL || last == NULL) {
        free(earlier);
        free(last);
        return KVB_ERR_NO_MEMORY;
    }
    memset(last, 0xff, slots * sizeof *last);
    for (uint32_t i = 0; i < n; i++) {
        const struct kvs_item *item = kvs_node_call_item(call->call, i);
        uint64_t hash = XXH3_64bits_withSeed(item->key.data, item->key.len,
                                             call->seed + item->part * 31 + item->group);
        uint32_t slot = (uint32_t)hash & (slots - 1);
        while (last[slot] != KVS_NO_ITEM &&
               !same_key(kvs_node_call_item(call->call, last[slot]), item)) {
            slot = (slot + 1) & (slots - 1);
        }
        earlier[i] = last[slot];
        last[slot] = i;
    }
    free(last);
    call->earlier = earlier;
    return KVB_OK;
}

static kvb_status_t local_submit(struct kvs_node *node, struct kvs_node_call *node_call)
{
    struct kvs_local *local = of(node);
    const struct kvs_batch *batch = node_call->batch;
    struct kvs_local_call *call = malloc(sizeof *call);
    if (call == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *call = (struct kvs_local_call){.local = local, .call = node_call, .left = node_call->n};
    kvb_list_init(&call->link);
    kvb_list_init(&call->ops);
    call->where.lineage = batch->lineage;
    kvb_status_t status =
        kvs_names_space(&local->share.names, batch->space, &call->where.space, &call->where.tenant);
    if (status != KVB_OK) {
        goto err_call;
    }
    call->seed = kvs_share_seed(&local->share, &call->where);
    if (batch->op == KVS_PUT && node_call->n > 1) {
        status = find_earlier(call);
        if (status != KVB_OK) {
            goto err_call;
        }
    }
    for (uint32_t i = 0; i < node_call->n; i++) {
        kvs_node_call_item(node_call, i)->status = KVB_IN_PROGRESS;
    }
    node_call->impl.state = call;
    (void)atomic_fetch_add_explicit(&local->ncalls, 1, memory_order_relaxed);
    make_ready(call);
    return KVB_OK;

err_call:
    free(call);
    return status;
}

static void local_stop(struct kvs_node *node, struct kvs_node_call *node_call, bool expired,
                       uint64_t stop_deadline_ns)
{
    (void)node;
    struct kvs_local_call *call = node_call->impl.state;
    while (call->next < node_call->n) {
        uint32_t index = call->next++;
        kvs_local_answer(call, index, expired ? KVB_ERR_UNAVAILABLE : KVB_ERR_CANCELED, 0);
    }
    kvs_op_stop_all(call, expired ? KVB_ERR_TIMEOUT : KVB_ERR_CANCELED, stop_deadline_ns);
    make_ready(call);
}

static void local_discard(struct kvs_node *node, struct kvs_hold hold, bool all_of_instance)
{
    struct kvs_local *local = of(node);
    for (uint32_t i = 0; i < local->share.nshards; i++) {
        struct kvs_shard *shard = &local->share.shards[i];
        kvb_mutex_lock(&shard->lock);
        if (all_of_instance) {
            kvs_core_discard_instance(shard->core, hold.instance);
        } else {
            kvs_core_discard(shard->core, (struct kvs_core_holder){hold.instance, hold.request});
        }
        kvb_mutex_unlock(&shard->lock);
    }
}

static const struct kvs_node_ops local_ops = {
    .submit = local_submit,
    .stop = local_stop,
    .discard = local_discard,
};

/* ---- upkeep: space comes back in small steps ---- */

static bool reclaim_shard(struct kvs_local *local, struct kvs_shard *shard)
{
    kvb_mutex_lock(&shard->lock);
    bool more = kvs_core_reclaim(shard->core, kvb_now_ns(local->sched->clock), RECLAIM_STEP);
    kvb_mutex_unlock(&shard->lock);
    return more;
}

/* A step of one shard a turn, until none has anything left. */
static void on_reclaim(struct kvb_event *event)
{
    struct kvs_local *local = kvb_container_of(event, struct kvs_local, reclaim);
    if (!reclaim_shard(local, &local->share.shards[local->reclaim_next])) {
        local->reclaim_next++;
    }
    if (local->reclaim_next < local->share.nshards) {
        kvb_sched_post(local->sched, &local->reclaim);
    } else {
        local->reclaim_next = 0;
        kvs_local_upkeep(local, false);
    }
}

static void on_upkeep(struct kvb_timer *timer)
{
    struct kvs_local *local = kvb_container_of(timer, struct kvs_local, upkeep);
    kvs_local_upkeep(local, true);
}

static uint64_t next_deadline(struct kvs_local *local)
{
    uint64_t next_ns = KVB_NEVER;
    for (uint32_t i = 0; i < local->share.nshards; i++) {
        struct kvs_shard *shard = &local->share.shards[i];
        kvb_mutex_lock(&shard->lock);
        uint64_t deadline_ns = kvs_core_next_deadline_ns(shard->core);
        kvb_mutex_unlock(&shard->lock);
        next_ns = deadline_ns < next_ns ? deadline_ns : next_ns;
    }
    return next_ns;
}

void kvs_local_upkeep(struct kvs_local *local, bool now)
{
    if (now) {
        local->reclaim_next = 0;
        kvb_sched_post(local->sched, &local->reclaim);
        return;
    }
    /* Promises hold without it, so there is no hurry, and asking is not free. */
    if (kvb_timer_armed(&local->upkeep) || kvb_event_posted(&local->reclaim)) {
        return;
    }
    uint64_t next_ns = next_deadline(local);
    if (next_ns != KVB_NEVER) {
        uint64_t soonest_ns = kvb_deadline_in_ms(local->sched->clock, UPKEEP_EVERY_MS);
        kvb_sched_timer_set(local->sched, &local->upkeep,
                            next_ns > soonest_ns ? next_ns : soonest_ns);
    }
}

/* ---- clearing ---- */

void kvs_node_retire(struct kvs_node *node, const struct kvb_lineage *lineages, uint32_t n)
{
    struct kvs_local *local = of(node);
    for (uint32_t i = 0; i < local->share.nshards; i++) {
        struct kvs_shard *shard = &local->share.shards[i];
        kvb_mutex_lock(&shard->lock);
        for (uint32_t j = 0; j < n; j++) {
            kvs_core_retire(shard->core, lineages[j]);
        }
        kvb_mutex_unlock(&shard->lock);
    }
    kvs_local_upkeep(local, true);
}

void kvs_node_remove_tenant(struct kvs_node *node, const char *tenant)
{
    struct kvs_local *local = of(node);
    uint32_t id;
    if (kvs_names_find_tenant(&local->share.names, tenant, &id) != KVB_OK) {
        return;
    }
    for (uint32_t i = 0; i < local->share.nshards; i++) {
        struct kvs_shard *shard = &local->share.shards[i];
        kvb_mutex_lock(&shard->lock);
        kvs_core_remove_tenant(shard->core, id);
        kvb_mutex_unlock(&shard->lock);
    }
    kvs_local_upkeep(local, true);
}

void kvs_node_clear(struct kvs_node *node)
{
    struct kvs_local *local = of(node);
    for (uint32_t i = 0; i < local->share.nshards; i++) {
        struct kvs_shard *shard = &local->share.shards[i];
        kvb_mutex_lock(&shard->lock);
        kvs_core_clear(shard->core);
        kvb_mutex_unlock(&shard->lock);
    }
    kvs_local_upkeep(local, true);
}

struct collected {
    struct kvb_lineage *lineages;
    uint32_t n, cap;
    bool failed;
};

static void collect(void *arg, uint32_t space, struct kvb_lineage lineage)
{
    struct collected *collected = arg;
    (void)space;
    if (collected->n == collected->cap) {
        uint32_t cap = collected->cap == 0 ? 64 : collected->cap * 2;
        struct kvb_lineage *grown = realloc(collected->lineages, cap * sizeof *grown);
        if (grown == NULL) {
            collected->failed = true;
            return;
        }
        collected->lineages = grown;
        collected->cap = cap;
    }
    collected->lineages[collected->n++] = lineage;
}

static kvb_status_t node_lineages(void *ctx, const char *tenant, struct kvb_lineage **lineages_p,
                                  uint32_t *n_p)
{
    struct kvs_local *local = of(ctx);
    struct collected collected = {0};
    uint32_t id;
    if (kvs_names_find_tenant(&local->share.names, tenant, &id) == KVB_OK) {
        for (uint32_t i = 0; i < local->share.nshards; i++) {
            struct kvs_shard *shard = &local->share.shards[i];
            kvb_mutex_lock(&shard->lock);
            kvs_core_each_lineage(shard->core, id, collect, &collected);
            kvb_mutex_unlock(&shard->lock);
        }
    }
    if (collected.failed) {
        free(collected.lineages);
        return KVB_ERR_NO_MEMORY;
    }
    *lineages_p = collected.lineages;
    *n_p = collected.n;
    return KVB_OK;
}

static void node_retire(void *ctx, const struct kvb_lineage *lineages, uint32_t n)
{
    kvs_node_retire(ctx, lineages, n);
}

const struct kvs_reclaim_ops kvs_node_reclaim = {.retire = node_retire, .lineages = node_lineages};

kvb_status_t kvs_node_set_quota(struct kvs_node *node, const char *tenant, uint64_t quota_bytes)
{
    struct kvs_local *local = of(node);
    uint32_t id;
    kvb_status_t status = kvs_names_tenant(&local->share.names, tenant, &id);
    uint64_t each = quota_bytes == UINT64_MAX ? UINT64_MAX : quota_bytes / local->share.nshards;
    for (uint32_t i = 0; i < local->share.nshards && status == KVB_OK; i++) {
        struct kvs_shard *shard = &local->share.shards[i];
        kvb_mutex_lock(&shard->lock);
        status = kvs_core_set_quota(shard->core, id, each);
        kvb_mutex_unlock(&shard->lock);
    }
    return status;
}

/* ---- statistics: any thread ---- */

static void add_core_stats(struct kvs_core_stats *sum, const struct kvs_core_stats *one)
{
    sum->share_bytes += one->share_bytes;
    sum->used_bytes += one->used_bytes;
    sum->live_bytes += one->live_bytes;
    sum->reserved_bytes += one->reserved_bytes;
    sum->quarantined_bytes += one->quarantined_bytes;
    sum->retired_bytes += one->retired_bytes;
    sum->free_bytes += one->free_bytes;
    sum->value_bytes += one->value_bytes;
    sum->locked_bytes += one->locked_bytes;
    sum->objects += one->objects;
    sum->attempts += one->attempts;
    sum->tickets += one->tickets;
    sum->holds += one->holds;
    sum->evicted += one->evicted;
    sum->reclaimed += one->reclaimed;
    sum->fenced += one->fenced;
    sum->tickets_lost += one->tickets_lost;
    sum->metadata_bytes += one->metadata_bytes;
}

void kvs_node_stats(struct kvs_node *node, struct kvs_node_stats *stats_p)
{
    struct kvs_local *local = of(node);
    *stats_p =
        (struct kvs_node_stats){.shards = local->share.nshards,
                                .calls = atomic_load_explicit(&local->ncalls, memory_order_relaxed),
#define X(name, what) .name = atomic_load_explicit(&local->name, memory_order_relaxed),
                                KVS_NODE_COUNTERS(X)
#undef X
        };
    for (uint32_t i = 0; i < local->share.nshards; i++) {
        struct kvs_shard *shard = &local->share.shards[i];
        struct kvs_core_stats one;
        kvb_mutex_lock(&shard->lock);
        kvs_core_stats(shard->core, &one);
        kvb_mutex_unlock(&shard->lock);
        add_core_stats(&stats_p->core, &one);
    }
}

static void tenant_stats(struct kvs_local *local, uint32_t tenant,
                         struct kvs_core_tenant_stats *stats_p)
{
    *stats_p = (struct kvs_core_tenant_stats){0};
    for (uint32_t i = 0; i < local->share.nshards; i++) {
        struct kvs_shard *shard = &local->share.shards[i];
        struct kvs_core_tenant_stats one;
        kvb_mutex_lock(&shard->lock);
        kvs_core_tenant_stats(shard->core, tenant, &one);
        kvb_mutex_unlock(&shard->lock);
        stats_p->quota_bytes =
            one.quota_bytes == UINT64_MAX ? UINT64_MAX : stats_p->quota_bytes + one.quota_bytes;
        stats_p->used_bytes += one.used_bytes;
        stats_p->live_bytes += one.live_bytes;
        stats_p->objects += one.objects;
        stats_p->evicted += one.evicted;
    }
}

void kvs_node_tenant_stats(struct kvs_node *node, const char *tenant,
                           struct kvs_core_tenant_stats *stats_p)
{
    struct kvs_local *local = of(node);
    uint32_t id;
    if (kvs_names_find_tenant(&local->share.names, tenant, &id) == KVB_OK) {
        tenant_stats(local, id, stats_p);
    } else {
        *stats_p = (struct kvs_core_tenant_stats){.quota_bytes = UINT64_MAX};
    }
}

void kvs_node_each_tenant(struct kvs_node *node,
                          void (*each)(void *arg, const char *tenant,
                                       const struct kvs_core_tenant_stats *stats),
                          void *arg)
{
    struct kvs_local *local = of(node);
    uint32_t n = kvs_names_ntenants(&local->share.names);
    for (uint32_t i = 0; i < n; i++) {
        char tenant[64];
        struct kvs_core_tenant_stats stats;
        kvs_names_tenant_text(&local->share.names, i, tenant);
        tenant_stats(local, i, &stats);
        each(arg, tenant, &stats);
    }
}

const char *kvs_node_validate(struct kvs_node *node)
{
    struct kvs_local *local = of(node);
    const char *broken = NULL;
    for (uint32_t i = 0; i < local->share.nshards && broken == NULL; i++) {
        struct kvs_shard *shard = &local->share.shards[i];
        kvb_mutex_lock(&shard->lock);
        broken = kvs_core_validate(shard->core);
        kvb_mutex_unlock(&shard->lock);
    }
    return broken;
}

/* ---- create and destroy ---- */

kvb_status_t kvs_node_create(struct kvb_sched *sched, struct kvt_transport *transport,
                             const struct kvs_node_config *config, struct kvs_node **node_p)
{
    struct kvs_local *local = calloc(1, sizeof *local);
    struct kvs_lookup *lookup = calloc(1, sizeof *lookup);
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    if (local == NULL || lookup == NULL) {
        goto err_free;
    }
    status = kvs_share_init(&local->share, transport, sched->random, config);
    if (status != KVB_OK) {
        goto err_free;
    }
    local->base.ops = &local_ops;
    local->sched = sched;
    local->transport = transport;
    local->lookup = lookup;
    local->ticket_ms = config->ticket_ms != 0 ? config->ticket_ms : DEFAULT_LEASE_MS;
    /* but where they would hide what a skipped drain does */
    if (kvb_fault_run() && !kvb_fault_all(KVB_FAULT_DRAIN_SKIPPED) &&
        local->ticket_ms > FAULT_TICKET_MS) {
        local->ticket_ms = FAULT_TICKET_MS;
    }
    local->hold_ms = config->hold_ms != 0 ? config->hold_ms : DEFAULT_LEASE_MS;
    kvb_list_init(&local->ready);
    kvb_list_init(&local->parked);
    kvb_list_init(&local->starved);
    kvb_list_init(&local->idle);
    kvb_list_init(&local->scrubbing);
    kvb_event_init(&local->work, on_work);
    kvb_event_init(&local->reclaim, on_reclaim);
    kvb_timer_init(&local->upkeep, on_upkeep);
    *node_p = &local->base;
    return KVB_OK;

err_free:
    free(lookup);
    free(local);
    return status;
}

void kvs_node_destroy(struct kvs_node *node)
{
    if (node == NULL) {
        return;
    }
    struct kvs_local *local = of(node);
    kvb_assert(atomic_load_explicit(&local->ncalls, memory_order_relaxed) == 0);
    kvs_scrub_cleanup(local);
    kvs_op_cleanup(local);
    kvb_sched_unpost(&local->work);
    kvb_sched_unpost(&local->reclaim);
    kvb_sched_timer_clear(local->sched, &local->upkeep);
    kvs_share_cleanup(&local->share);
    free(local->lookup);
    free(local);
}
