/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include "base/assert.h"

#include <xxhash.h>

#include <stdlib.h>
#include <string.h>

static void make_ready(struct kvs_call *call)
{
    kvb_list_remove(&call->link);
    kvb_list_push_back(&call->calls->ready, &call->link);
    kvb_sched_post(call->calls->sched, &call->calls->work);
}

void kvs_calls_feed(struct kvs_calls *calls)
{
    struct kvb_list *link = kvb_list_first(&calls->starved);
    if (link != NULL) {
        make_ready(kvb_container_of(link, struct kvs_call, link));
    }
}

void kvs_call_wake(struct kvs_call *call)
{
    make_ready(call);
    kvs_calls_feed(call->calls);
}

void kvs_call_answer(struct kvs_call *call, uint32_t index, kvb_status_t status, uint64_t len)
{
    struct kvs_item *item = kvs_call_item(call, index);
    kvb_assert(call->left > 0);
    item->status = status;
    item->len = len;
    call->left--;
    if (call->calls->ops->answered != NULL) {
        call->calls->ops->answered(call, status, len);
    }
}

bool kvs_call_waits_for_earlier(const struct kvs_call *call, uint32_t index)
{
    return call->earlier != NULL && call->earlier[index] != KVS_NO_ITEM &&
           kvs_call_item(call, call->earlier[index])->status == KVB_IN_PROGRESS;
}

/* ---- steps ---- */

static void finish(struct kvs_call *call)
{
    struct kvs_calls *calls = call->calls;
    struct kvs_node_call *base = call->base;
    kvb_assert(kvb_list_empty(&call->ops));
    (void)atomic_fetch_sub_explicit(&calls->n, 1, memory_order_relaxed);
    kvb_list_remove(&call->link);
    free(call->earlier);
    calls->ops->ended(call);
    base->done(base);
}

static void park(struct kvs_call *call, struct kvb_list *where)
{
    kvb_list_remove(&call->link);
    kvb_list_push_back(where, &call->link);
}

static void step(struct kvs_call *call)
{
    struct kvs_calls *calls = call->calls;
    kvb_status_t status = call->next < call->base->n ? calls->ops->step(call) : KVB_OK;
    if (status != KVB_ERR_BUSY) {
        kvs_calls_feed(calls);
    }
    if (call->left == 0) {
        finish(call);
    } else if (status == KVB_ERR_BUSY) {
        park(call, &calls->starved);
    } else if (status == KVB_ERR_AGAIN || (status == KVB_OK && call->next < call->base->n)) {
        make_ready(call);
    } else {
        park(call, &calls->parked);
    }
}

static void on_work(struct kvb_event *event)
{
    struct kvs_calls *calls = kvb_container_of(event, struct kvs_calls, work);
    uint32_t steps = atomic_load_explicit(&calls->n, memory_order_relaxed);
    for (; steps > 0; steps--) { /* each ready call once; those made ready meanwhile: next turn */
        struct kvb_list *link = kvb_list_pop(&calls->ready);
        if (link == NULL) {
            break;
        }
        step(kvb_container_of(link, struct kvs_call, link));
    }
    if (!kvb_list_empty(&calls->ready)) {
        kvb_sched_post(calls->sched, &calls->work);
    }
}

/* ---- begin and end ---- */

static bool same_key(const struct kvs_item *a, const struct kvs_item *b)
{
    return a->group == b->group && a->part == b->part && a->key.len == b->key.len &&
           memcmp(a->key.data, b->key.data, a->key.len) == 0;
}

/* Finds for each put the nearest earlier one of the same key. */
static kvb_status_t find_earlier(struct kvs_call *call)
{
    uint32_t n = call->base->n;
    uint32_t slots = 4;
    uint64_t seed; /* keys are the engines' to choose: nobody finds out which ones collide */
    call->calls->sched->random->fill(call->calls->sched->random->ctx, &seed, sizeof seed);
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
        const struct kvs_item *item = kvs_call_item(call, i);
        uint64_t hash = XXH3_64bits_withSeed(item->key.data, item->key.len,
                                             seed + item->part * 31 + item->group);
        uint32_t slot = (uint32_t)hash & (slots - 1);
        while (last[slot] != KVS_NO_ITEM && !same_key(kvs_call_item(call, last[slot]), item)) {
            slot = (slot + 1) & (slots - 1);
        }
        earlier[i] = last[slot];
        last[slot] = i;
    }
    free(last);
    call->earlier = earlier;
    return KVB_OK;
}

kvb_status_t kvs_call_submit(struct kvs_calls *calls, struct kvs_call *call,
                             struct kvs_node_call *base)
{
    *call = (struct kvs_call){.calls = calls, .base = base, .left = base->n};
    kvb_list_init(&call->link);
    kvb_list_init(&call->ops);
    if (base->batch->op == KVS_PUT && base->n > 1) {
        kvb_status_t status = find_earlier(call);
        if (status != KVB_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < base->n; i++) {
        kvs_call_item(call, i)->status = KVB_IN_PROGRESS;
    }
    base->impl.state = call;
    (void)atomic_fetch_add_explicit(&calls->n, 1, memory_order_relaxed);
    make_ready(call);
    return KVB_OK;
}

void kvs_call_answer_rest(struct kvs_call *call, kvb_status_t status)
{
    while (call->next < call->base->n) {
        uint32_t index = call->next++;
        kvs_call_answer(call, index, status, 0);
    }
}

void kvs_call_stop(struct kvs_call *call, bool expired)
{
    kvs_call_answer_rest(call, expired ? KVB_ERR_UNAVAILABLE : KVB_ERR_CANCELED);
    make_ready(call);
}

void kvs_calls_init(struct kvs_calls *calls, struct kvb_sched *sched,
                    const struct kvs_calls_ops *ops)
{
    *calls = (struct kvs_calls){.sched = sched, .ops = ops};
    kvb_event_init(&calls->work, on_work);
    kvb_list_init(&calls->ready);
    kvb_list_init(&calls->parked);
    kvb_list_init(&calls->starved);
}

void kvs_calls_cleanup(struct kvs_calls *calls)
{
    kvb_assert(atomic_load_explicit(&calls->n, memory_order_relaxed) == 0);
    kvb_sched_unpost(&calls->work);
}
