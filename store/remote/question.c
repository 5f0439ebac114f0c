/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The questions of which calls consist: one for each put and get, with the bytes; one for each
 * KVS_WIRE_ITEMS_MAX keys of anything else. A question runs as a transfer and ends with it, once.
 * While the transport is full the call starves; that is told to nobody.
 */
#include "remote.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#define BEGIN_STEP    64 /* puts, gets */
#define FULL_RETRY_MS 1

struct question {
    struct kvb_list link; /* call.ops or remote.idle */
    struct kvs_remote *remote;
    struct kvs_call *call;
    uint32_t first, n;     /* items: those of them that are in progress */
    uint64_t len;          /* put, get */
    kvb_status_t stopped;  /* OK: goes on; else what it ends with */
    struct kvb_writer ask; /* keeps its room from use to use */
    uint8_t len_answer[KVS_LEN_WIRE];
    uint8_t *items_answer; /* malloc'd, or NULL */
    struct kvt_transfer transfer;
};

/* ---- create and destroy ---- */

static struct question *get_question(struct kvs_remote *remote)
{
    struct kvb_list *link = kvb_list_pop(&remote->idle);
    if (link != NULL) {
        return kvb_container_of(link, struct question, link);
    }
    struct question *question = calloc(1, sizeof *question);
    if (question != NULL) {
        question->remote = remote;
        kvb_list_init(&question->link);
        kvb_writer_init(&question->ask, KVT_ASK_MAX);
    }
    return question;
}

static void put_question(struct question *question)
{
    free(question->items_answer);
    question->items_answer = NULL;
    kvb_list_remove(&question->link);
    kvb_list_push_front(&question->remote->idle, &question->link);
}

void kvs_question_cleanup(struct kvs_remote *remote)
{
    kvb_assert(remote->nrunning == 0);
    for (struct kvb_list *link; (link = kvb_list_pop(&remote->idle)) != NULL;) {
        struct question *question = kvb_container_of(link, struct question, link);
        kvb_writer_cleanup(&question->ask);
        free(question);
    }
}

/* ---- answers ---- */

/* All items of a question that has no answer of its own for each. */
static void answer_all(struct kvs_call *call, uint32_t first, uint32_t n, kvb_status_t status,
                       uint64_t len)
{
    for (uint32_t i = first; i < first + n; i++) {
        if (kvs_call_item(call, i)->status == KVB_IN_PROGRESS) {
            kvs_call_answer(call, i, status, len);
        }
    }
}

static uint32_t count_in_progress(const struct question *question)
{
    uint32_t n = 0;
    for (uint32_t i = question->first; i < question->first + question->n; i++) {
        n += kvs_call_item(question->call, i)->status == KVB_IN_PROGRESS;
    }
    return n;
}

/* One answer for each key that was asked about. */
static kvb_status_t answer_items(struct question *question)
{
    struct kvs_wire_item items[KVS_WIRE_ITEMS_MAX];
    struct kvb_span answer = {question->items_answer, question->transfer.answer_len};
    kvb_status_t status = kvs_items_unpack(answer, items, count_in_progress(question));
    if (status != KVB_OK) {
        return status;
    }
    uint32_t next = 0;
    for (uint32_t i = question->first; i < question->first + question->n; i++) {
        if (kvs_call_item(question->call, i)->status == KVB_IN_PROGRESS) {
            kvs_call_answer(question->call, i, items[next].status, items[next].len);
            next++;
        }
    }
    return KVB_OK;
}

/* The bytes stored, which a get learns also where they are not as many as it has room for. */
static uint64_t stored_len(const struct question *question)
{
    uint64_t len;
    struct kvb_span answer = {question->len_answer, question->transfer.answer_len};
    return kvs_len_unpack(answer, &len) == KVB_OK ? len : 0;
}

static void pack_space(struct kvs_ask *ask, const struct kvs_batch *batch)
{
    const struct kvs_space *space = batch->space;
    ask->space.tenant = (struct kvb_span){(const uint8_t *)space->tenant, strlen(space->tenant)};
    ask->space.layout = (struct kvb_span){(const uint8_t *)space->layout, strlen(space->layout)};
    ask->lineage = batch->lineage;
}

/* The bytes of a get were wrong: on the way, or where they lie? The node finds out. */
static void have_scrubbed(struct question *question)
{
    const struct kvs_item *item = kvs_call_item(question->call, question->first);
    struct kvs_ask *ask = &question->remote->ask;
    pack_space(ask, question->call->base->batch);
    ask->nkeys = 1;
    ask->keys[0] = (struct kvs_core_key){item->key, item->group, item->part};
    kvs_remote_aside(question->remote, KVS_ASK_SCRUB);
}

static void on_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct question *question = kvb_container_of(transfer, struct question, transfer);
    struct kvs_remote *remote = question->remote;
    struct kvs_call *call = question->call;
    uint64_t len = status == KVB_OK ? question->len : 0;
    call->base->ours = call->base->ours || (status != KVB_OK && transfer->ours);

    if (status == KVB_OK && question->items_answer != NULL) {
        status = answer_items(question);
    } else if (status == KVB_ERR_TOO_LARGE && call->base->batch->op == KVS_GET) {
        len = stored_len(question);
    } else if (status == KVB_ERR_CHECKSUM && call->base->batch->op == KVS_GET) {
        have_scrubbed(question);
    } else if (status == KVB_ERR_DRAINING) {
        kvs_report_draining(remote);
    } else if (status == KVB_ERR_DISCONNECTED) {
        status = KVB_ERR_UNAVAILABLE; /* the node is gone, or what it would have said of it is */
    }
    if (status != KVB_OK && question->stopped != KVB_OK) {
        status = question->stopped;
    }
    answer_all(call, question->first, question->n, status, len);
    remote->nrunning--;
    put_question(question);
    kvs_call_wake(call);
}

/* ---- begin ---- */

static bool key_fits(const struct kvs_item *item)
{
    return item->key.len > 0 && item->key.len <= KVS_CORE_KEY_MAX;
}

static const enum kvs_question types[KVS_BATCH_OPS] = {
    [KVS_EXISTS] = KVS_ASK_EXISTS, [KVS_PUT] = KVS_ASK_PUT, [KVS_GET] = KVS_ASK_GET,
    [KVS_REMOVE] = KVS_ASK_REMOVE, [KVS_PIN] = KVS_ASK_PIN,
};

/* What it asks, about those of its items that can be asked about. */
static kvb_status_t pack(struct question *question)
{
    struct kvs_remote *remote = question->remote;
    const struct kvs_batch *batch = question->call->base->batch;
    struct kvs_ask *ask = &remote->ask;
    pack_space(ask, batch);
    ask->hold = kvs_remote_hold(remote, batch->hold);
    ask->force = batch->force;
    ask->pin = batch->pin;
    ask->len = question->len;
    ask->nkeys = 0;
    for (uint32_t i = question->first; i < question->first + question->n; i++) {
        const struct kvs_item *item = kvs_call_item(question->call, i);
        if (item->status == KVB_IN_PROGRESS) {
            ask->keys[ask->nkeys++] = (struct kvs_core_key){item->key, item->group, item->part};
        }
    }
    question->ask.len = 0;
    question->ask.status = KVB_OK;
    kvs_ask_pack(&question->ask, types[batch->op], ask);
    return question->ask.status;
}

static kvb_status_t start(struct question *question, bool bytes)
{
    const struct kvs_batch *batch = question->call->base->batch;
    const struct kvs_item *item = kvs_call_item(question->call, question->first);
    question->transfer = (struct kvt_transfer){
        .direction = batch->op == KVS_PUT ? KVT_TO_SHARE : KVT_FROM_SHARE,
        .slices = bytes ? item->slices : NULL,
        .nslices = bytes ? item->nslices : 0,
        .hash = true,
        .deadline_ns = batch->deadline_ns,
        .done = on_done,
        .type = (uint16_t)types[batch->op],
        .ask = {question->ask.data, question->ask.len},
        .answer = question->len_answer,
        .answer_cap = sizeof question->len_answer,
    };
    if (!bytes) {
        uint32_t cap = question->n * KVS_ITEM_WIRE;
        question->items_answer = malloc(cap);
        if (question->items_answer == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        question->transfer.answer = question->items_answer;
        question->transfer.answer_cap = cap;
    }
    return kvs_remote_start(question->remote, &question->transfer);
}

/* Full: the end of any question makes room; if none runs, others fill it, and time does. */
static kvb_status_t starve(struct kvs_remote *remote)
{
    if (remote->nrunning == 0 && !kvb_timer_armed(&remote->retry)) {
        kvb_sched_timer_set(remote->sched, &remote->retry,
                            kvb_deadline_in_ms(remote->sched->clock, FULL_RETRY_MS));
    }
    return KVB_ERR_BUSY;
}

/* OK: it runs, or its items have their answer. BUSY: nothing happened. */
static kvb_status_t ask(struct kvs_call *call, uint32_t first, uint32_t n, bool bytes, uint64_t len)
{
    struct kvs_remote *remote = kvb_container_of(call->calls, struct kvs_remote, calls);
    struct question *question = get_question(remote);
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    if (question != NULL) {
        question->call = call;
        question->first = first;
        question->n = n;
        question->len = len;
        question->stopped = KVB_OK;
        status = pack(question);
        if (status == KVB_OK) {
            status = start(question, bytes);
        }
        if (status == KVB_OK) {
            remote->nrunning++;
            kvb_list_push_back(&call->ops, &question->link);
            return KVB_OK;
        }
        put_question(question);
    }
    if (status == KVB_ERR_AGAIN) {
        return starve(remote);
    }
    answer_all(call, first, n, status, 0);
    return KVB_OK;
}

/* A put or a get. */
static kvb_status_t begin_item(struct kvs_call *call, uint32_t index)
{
    const struct kvs_item *item = kvs_call_item(call, index);
    uint64_t len = 0;
    if (kvs_call_waits_for_earlier(call, index)) {
        return KVB_IN_PROGRESS;
    }
    kvb_status_t status = kvt_slices_check(item->slices, item->nslices, &len);
    if (status == KVB_OK && !key_fits(item)) {
        status = KVB_ERR_INVALID;
    }
    if (status == KVB_OK && len > KVS_CORE_VALUE_MAX) {
        status = KVB_ERR_TOO_LARGE;
    }
    if (status != KVB_OK) {
        kvs_call_answer(call, index, status, 0);
        return KVB_OK;
    }
    return ask(call, index, 1, true, len);
}

static kvb_status_t begin_items(struct kvs_call *call)
{
    for (uint32_t begun = 0; begun < BEGIN_STEP && call->next < call->base->n; begun++) {
        uint32_t index = call->next++; /* counted before it can be answered */
        kvb_status_t status = begin_item(call, index);
        if (status != KVB_OK) {
            call->next--;
            return status;
        }
    }
    return KVB_OK;
}

/* As many keys as one question holds. */
static kvb_status_t begin_keys(struct kvs_call *call)
{
    uint32_t first = call->next;
    uint32_t n = call->base->n - first;
    uint32_t fit = 0;
    n = n < KVS_WIRE_ITEMS_MAX ? n : KVS_WIRE_ITEMS_MAX;
    call->next += n;
    for (uint32_t i = first; i < first + n; i++) {
        if (key_fits(kvs_call_item(call, i))) {
            fit++;
        } else if (kvs_call_item(call, i)->status == KVB_IN_PROGRESS) { /* not on a second try */
            kvs_call_answer(call, i, KVB_ERR_INVALID, 0);
        }
    }
    kvb_status_t status = fit > 0 ? ask(call, first, n, false, 0) : KVB_OK;
    if (status != KVB_OK) {
        call->next = first;
    }
    return status;
}

kvb_status_t kvs_question_step(struct kvs_call *call)
{
    enum kvs_batch_op op = call->base->batch->op;
    return op == KVS_PUT || op == KVS_GET ? begin_items(call) : begin_keys(call);
}

void kvs_question_stop_all(struct kvs_call *call, kvb_status_t status, uint64_t stop_deadline_ns)
{
    kvb_list_each(&call->ops, link)
    {
        struct question *question = kvb_container_of(link, struct question, link);
        if (question->stopped == KVB_OK) {
            question->stopped = status;
        }
        kvt_transfer_cancel(&question->transfer, stop_deadline_ns);
    }
}
