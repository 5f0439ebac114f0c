/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process's own share as a node. Lookups, removes and pins are answered in their step. Puts
 * and gets become operations (op.c), which answer later and wake their call.
 */
#include "local.h"

#include "base/assert.h"

#include <stdlib.h>

#define DEFAULT_HOLD_MS 60000

#define BEGIN_STEP 64 /* puts, gets, removes, pins */

static const struct kvs_node_ops local_ops;

static struct kvs_local *of(struct kvs_node *node)
{
    kvb_assert(node->ops == &local_ops);
    return kvb_container_of(node, struct kvs_local, base);
}

static struct kvs_local_call *call_of(struct kvs_call *base)
{
    return kvb_container_of(base, struct kvs_local_call, base);
}

/* ---- steps of a call ---- */

static void lookup_step(struct kvs_local_call *call)
{
    struct kvs_local *local = call->local;
    struct kvs_call *base = &call->base;
    uint64_t now_ns = kvb_now_ns(local->sched->clock);
    uint32_t n = base->base->n - base->next;
    n = n < KVS_LOOKUP_STEP ? n : KVS_LOOKUP_STEP;
    for (uint32_t i = 0; i < n; i++) {
        const struct kvs_item *item = kvs_call_item(base, base->next + i);
        local->lookup->entries[i].key = (struct kvs_core_key){item->key, item->group, item->part};
    }
    kvs_share_exists(local->share, now_ns, &call->where, local->lookup, n, base->base->batch->hold,
                     now_ns + local->hold_ms * KVB_NS_PER_MS);
    for (uint32_t i = 0; i < n; i++) {
        const struct kvs_core_entry *entry = &local->lookup->entries[i];
        kvs_call_answer(base, base->next++, entry->status,
                        entry->status == KVB_OK ? entry->len : 0);
    }
}

/* Removes and pins. */
static kvb_status_t change_item(struct kvs_local_call *call, uint32_t index)
{
    const struct kvs_batch *batch = call->base.base->batch;
    const struct kvs_item *item = kvs_call_item(&call->base, index);
    struct kvs_core_key key = {item->key, item->group, item->part};
    uint64_t now_ns = kvb_now_ns(call->local->sched->clock);
    kvb_status_t status =
        batch->op == KVS_PIN
            ? kvs_share_pin(call->local->share, now_ns, &call->where, &key, batch->pin)
            : kvs_share_remove(call->local->share, now_ns, &call->where, &key, batch->force);
    kvs_call_answer(&call->base, index, status, 0);
    return KVB_OK;
}

static kvb_status_t begin_item(struct kvs_local_call *call, uint32_t index)
{
    enum kvs_batch_op op = call->base.base->batch->op;
    if (op == KVS_REMOVE || op == KVS_PIN) {
        return change_item(call, index);
    }
    if (kvs_call_waits_for_earlier(&call->base, index)) {
        return KVB_IN_PROGRESS;
    }
    return kvs_op_begin(call, index);
}

static kvb_status_t local_step(struct kvs_call *base)
{
    struct kvs_local_call *call = call_of(base);
    if (base->base->batch->op == KVS_EXISTS) {
        lookup_step(call);
        return KVB_OK;
    }
    for (uint32_t begun = 0; begun < BEGIN_STEP && base->next < base->base->n; begun++) {
        /* counted first: what it does may end at once, and the call with it */
        uint32_t index = base->next++;
        kvb_status_t status = begin_item(call, index);
        if (status != KVB_OK) {
            base->next--;
            return status;
        }
    }
    return KVB_OK;
}

static void local_answered(struct kvs_call *base, kvb_status_t status, uint64_t len)
{
    kvs_count_answer(&call_of(base)->local->counts, base->base->batch->op, status, len);
}

static void local_ended(struct kvs_call *base)
{
    free(call_of(base));
}

static const struct kvs_calls_ops calls_ops = {local_step, local_answered, local_ended};

/* ---- the interface ---- */

static kvb_status_t local_submit(struct kvs_node *node, struct kvs_node_call *node_call)
{
    struct kvs_local *local = of(node);
    const struct kvs_batch *batch = node_call->batch;
    struct kvs_local_call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    call->local = local;
    call->where.lineage = batch->lineage;
    /* Only a put makes a space: who asks for what is not there leaves nothing behind. */
    struct kvs_names *names = &local->share->names;
    kvb_status_t status =
        batch->op == KVS_PUT
            ? kvs_names_space(names, batch->space, &call->where.space, &call->where.tenant)
            : kvs_names_find_space(names, batch->space, &call->where.space, &call->where.tenant);
    bool absent = status == KVB_ERR_NOT_FOUND;
    if (status == KVB_OK) {
        call->seed = kvs_share_seed(local->share, &call->where);
    }
    if (status == KVB_OK || absent) {
        status = kvs_call_submit(&local->calls, &call->base, node_call);
    }
    if (status == KVB_OK && absent) {
        kvs_call_answer_rest(&call->base, KVB_ERR_NOT_FOUND);
    }
    if (status != KVB_OK) {
        free(call);
    }
    return status;
}

static void local_stop(struct kvs_node *node, struct kvs_node_call *node_call, bool expired,
                       uint64_t stop_deadline_ns)
{
    (void)node;
    struct kvs_local_call *call = call_of(node_call->impl.state);
    kvs_call_stop(&call->base, expired);
    kvs_op_stop_all(call, expired ? KVB_ERR_TIMEOUT : KVB_ERR_CANCELED, stop_deadline_ns);
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
    return atomic_load_explicit(&of(node)->calls.n, memory_order_relaxed);
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
    local->ticket_ms = kvs_ticket_ms(config->ticket_ms);
    local->hold_ms = config->hold_ms != 0 ? config->hold_ms : DEFAULT_HOLD_MS;
    kvb_list_init(&local->idle);
    kvs_scrubs_init(&local->scrubs, sched, share, &local->counts, local->ticket_ms * KVB_NS_PER_MS);
    kvs_calls_init(&local->calls, sched, &calls_ops);
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
    kvs_calls_cleanup(&local->calls);
    kvs_scrubs_cleanup(&local->scrubs);
    kvs_op_cleanup(local);
    kvs_share_counts_remove(local->share, &local->counts);
    destroy_reach(local);
    free(local->lookup);
    free(local);
}
