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

void kvs_local_answer(struct kvs_local_call *call, uint32_t index, kvb_status_t status,
                      uint64_t len)
{
    struct kvs_item *item = kvs_node_call_item(call->call, index);
    kvb_assert(call->left > 0);
    item->status = status;
    item->len = len;
    call->left--;
    kvs_count_answer(&call->local->counts, call->call->batch->op, status, len);
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
        local->lookup->shard[i] = kvs_share_shard(local->share, call->seed, item->key);
    }
    for (uint32_t s = 0; s < local->share->nshards; s++) {
        lookup_shard(call, &local->share->shards[s], n);
    }
    call->next += n;
    if (call->call->batch->hold.instance != 0) {
        kvs_share_poke(local->share, false);
    }
}

static void remove_item(struct kvs_local_call *call, uint32_t index)
{
    const struct kvs_item *item = kvs_node_call_item(call->call, index);
    struct kvs_shard *shard = kvs_share_shard(call->local->share, call->seed, item->key);
    struct kvs_core_key key = {item->key, item->group, item->part};

    kvb_mutex_lock(&shard->lock);
    kvb_status_t status = kvs_core_remove(shard->core, kvb_now_ns(call->local->sched->clock),
                                          &call->where, &key, call->call->batch->force);
    kvb_mutex_unlock(&shard->lock);
    kvs_local_answer(call, index, status, 0);
    kvs_share_poke(call->local->share, false);
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
    kvb_status_t status = kvs_names_space(&local->share->names, batch->space, &call->where.space,
                                          &call->where.tenant);
    if (status != KVB_OK) {
        goto err_call;
    }
    call->seed = kvs_share_seed(local->share, &call->where);
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
    kvs_share_discard(of(node)->share, hold, all_of_instance);
}

static const struct kvs_node_ops local_ops = {
    .submit = local_submit,
    .stop = local_stop,
    .discard = local_discard,
    .in_process = true,
};

/* ---- create and destroy ---- */

uint32_t kvs_node_calls(struct kvs_node *node)
{
    return atomic_load_explicit(&of(node)->ncalls, memory_order_relaxed);
}

static void destroy_reach(struct kvs_local *local)
{
    for (uint32_t i = 0; i < local->share->nshards; i++) {
        kvt_share_destroy(local->reach[i]);
    }
    free(local->reach);
}

static kvb_status_t create_reach(struct kvs_local *local)
{
    struct kvs_share *share = local->share;
    local->reach = calloc(share->nshards, sizeof *local->reach);
    if (local->reach == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < share->nshards; i++) {
        struct kvs_shard *shard = &share->shards[i];
        kvb_status_t status =
            kvt_share_create(local->transport, shard->base, shard->len, &local->reach[i]);
        if (status != KVB_OK) {
            destroy_reach(local);
            return status;
        }
    }
    return KVB_OK;
}

kvb_status_t kvs_node_create(struct kvb_sched *sched, struct kvt_transport *transport,
                             struct kvs_share *share, const struct kvs_node_config *config,
                             struct kvs_node **node_p)
{
    struct kvs_local *local = calloc(1, sizeof *local);
    struct kvs_lookup *lookup = calloc(1, sizeof *lookup);
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    if (local == NULL || lookup == NULL) {
        goto err_free;
    }
    local->base.ops = &local_ops;
    local->sched = sched;
    local->transport = transport;
    local->share = share;
    local->lookup = lookup;
    status = create_reach(local);
    if (status != KVB_OK) {
        goto err_free;
    }
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
    kvs_share_counts_add(share, &local->counts);
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
    kvs_share_counts_remove(local->share, &local->counts);
    destroy_reach(local);
    free(local->lookup);
    free(local);
}
