/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"
#include "prefix.h"
#include "rank.h"
#include "session.h"

#include "base/assert.h"
#include "base/faults.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Lookups, puts and gets of one rank. A task is one message of the engine. Whatever happens to it,
 * it ends in finish(), the only place that answers, counts, takes it off its queue and frees it: so
 * it completes exactly once on every path.
 *
 * The stay is judged three times: when the message comes (the lineage is taken down then), when
 * the task begins, and when it ends. A put that slips through between two of them is stored under
 * the lineage that it was computed under, where nobody of the new stay looks; a get that ends in
 * another stay has failed, whatever the store says.
 */
enum {
    LOOKUP_WAVE = 4096,         /* items asked of the store at once, but at least one block */
    QUEUE_BYTES_MAX = 64 << 20, /* of messages waiting in one queue */
};

struct kvp_task {
    struct kvb_list link;
    struct kvp_link_rank *rank;
    enum kvp_task_kind kind;
    bool running;
    bool finishing;
    uint64_t seq;
    uint64_t since_ns;
    uint8_t *payload; /* what the message's spans borrow from */
    size_t len;
    struct kvb_lineage lineage;
    struct kvb_token token;
    bool private_;
    uint64_t bytes;
    union {
        struct kvb_link_lookup lookup;
        struct kvb_link_batch batch;
    } msg;
    struct kvs_batch store;
    struct kvs_item *items;
    /* lookup */
    struct kvp_prefix prefix;
    /* put, get */
    kvb_status_t *statuses; /* by entry */
    uint32_t *entries;      /* of the items */
    struct kvt_slice *slices;
    struct kvp_region **uses;
    uint32_t nuses;
};

static struct kvb_metrics *metrics_of(const struct kvp_link_rank *rank)
{
    return rank->owner->config.metrics;
}

static void show_of_queue(const struct kvp_link_rank *rank, enum kvp_task_kind kind,
                          enum kvp_metric which, double value)
{
    const char *values[] = {rank->instance_name, rank->label, kvp_queue_text((enum kvp_queue)kind)};
    if (metrics_of(rank) != NULL && !rank->released) {
        kvb_series_set(kvb_series(metrics_of(rank), which, values), value);
    }
}

static void count_tasks(struct kvp_link_rank *rank, enum kvp_task_kind kind, int queued,
                        int running)
{
    struct kvp_task_queue *queue = &rank->queues[kind];
    queue->nqueued += (uint32_t)queued;
    queue->nrunning += (uint32_t)running;
    rank->owner->tasks_running[kind] += (uint32_t)running;
    show_of_queue(rank, kind, KVP_M_TASKS_QUEUED, queue->nqueued);
    show_of_queue(rank, kind, KVP_M_TASKS_RUNNING, queue->nrunning);
}

void kvp_tasks_forget_shown(const struct kvp_link_rank *rank)
{
    static const enum kvp_metric families[] = {KVP_M_TASKS_QUEUED, KVP_M_TASKS_RUNNING,
                                               KVP_M_TASK_AGE};
    const char *values[] = {rank->instance_name, rank->label};
    for (size_t i = 0; metrics_of(rank) != NULL && i < sizeof families / sizeof families[0]; i++) {
        kvb_series_drop(metrics_of(rank), families[i], values, 2);
    }
}

/* ---- the stay ---- */

static kvb_status_t judge(const struct kvp_link_rank *rank, enum kvp_task_kind kind,
                          struct kvb_token token)
{
    if (!rank->connected) {
        return KVB_ERR_DISCONNECTED;
    }
    const struct kvp_stay *stay = rank->base.stay;
    bool unfenced = kind == KVP_TASK_PUT && kvb_fault(KVB_FAULT_PUT_NOT_FENCED);
    if (!unfenced && !kvb_token_equal(token, stay->token)) {
        return KVB_ERR_FENCED;
    }
    bool uncounted = kind == KVP_TASK_PUT && kvb_fault_all(KVB_FAULT_PUT_NOT_FENCED);
    if (!uncounted && !stay->open) {
        return KVB_ERR_CLOSED;
    }
    return KVB_OK;
}

/* Once more, of a task that was let in. */
static kvb_status_t judge_again(const struct kvp_link_rank *rank, enum kvp_task_kind kind,
                                struct kvb_token token)
{
    if (kvb_fault_all(KVB_FAULT_DRAIN_SKIPPED) && rank->connected) {
        return KVB_OK;
    }
    return judge(rank, kind, token);
}

/* At the end: what was begun in this stay still counts, if it is the same stay. */
static kvb_status_t judge_end(const struct kvp_link_rank *rank, enum kvp_task_kind kind,
                              struct kvb_token token)
{
    kvb_status_t status = judge_again(rank, kind, token);
    /* A put that ends while closed, in the stay it began in, is where it belongs. */
    return status == KVB_ERR_CLOSED && kind == KVP_TASK_PUT ? KVB_OK : status;
}

/* ---- the one end ---- */

static void answer_lookup(struct kvp_task *task, kvb_status_t status)
{
    struct kvb_metrics *metrics = metrics_of(task->rank);
    struct kvb_link_lookup_reply reply = {.status = status, .ngroups = task->msg.lookup.ngroups};
    uint64_t asked = 0;
    uint64_t hits = 0;
    for (uint32_t i = 0; i < reply.ngroups; i++) {
        reply.hits[i] = status == KVB_OK ? kvp_prefix_hits(&task->prefix, i) : 0;
        asked += task->msg.lookup.groups[i].nkeys;
        hits += reply.hits[i];
    }
    kvp_count(metrics, KVP_M_LOOKUPS, kvb_status_label(status), 1);
    kvp_count(metrics, KVP_M_LOOKUP_BLOCKS, "hit", hits);
    kvp_count(metrics, KVP_M_LOOKUP_BLOCKS,
              status != KVB_OK ? kvb_status_label(status)
              : task->private_ ? "private"
                               : "absent",
              asked - hits);
    kvp_observe0(metrics, KVP_M_LOOKUP_SECONDS,
                 kvb_now_ns(task->rank->sched->clock) - task->since_ns);
    if (task->rank->connected) {
        struct kvb_writer writer;
        kvb_writer_init(&writer, 4096);
        kvb_link_lookup_reply_pack(&writer, &reply);
        kvp_session_reply(task->rank->session, KVB_LINK_LOOKUP, task->seq, &writer);
    }
}

static void answer_batch(struct kvp_task *task, kvb_status_t status)
{
    struct kvb_metrics *metrics = metrics_of(task->rank);
    bool put = task->kind == KVP_TASK_PUT;
    enum kvp_metric family = put ? KVP_M_PUTS : KVP_M_GETS;
    uint64_t run = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < task->msg.batch.nentries; i++) {
        kvb_status_t *each = &task->statuses[i];
        if (*each == KVB_IN_PROGRESS) { /* nothing of its own to tell */
            *each = status;
        } else if (status != KVB_OK && (*each == KVB_OK || *each == KVB_ERR_EXISTS)) {
            *each = status; /* done, but in another stay */
        }
        if (*each == KVB_OK) {
            const struct kvb_link_entry *entry = &task->msg.batch.entries[i];
            for (uint32_t k = 0; k < entry->nslices; k++) {
                bytes += entry->slices[k].len;
            }
        }
        if (i > 0 && *each != each[-1]) { /* runs of one result are counted at once */
            kvp_count(metrics, family, kvb_status_label(each[-1]), run);
            run = 0;
        }
        run++;
    }
    if (run > 0) {
        kvp_count(metrics, family, kvb_status_label(task->statuses[task->msg.batch.nentries - 1]),
                  run);
    }
    kvp_count0(metrics, put ? KVP_M_PUT_BYTES : KVP_M_GET_BYTES, bytes);
    kvp_observe0(metrics, put ? KVP_M_PUT_SECONDS : KVP_M_GET_SECONDS,
                 kvb_now_ns(task->rank->sched->clock) - task->since_ns);
    if (task->rank->connected) {
        struct kvb_link_batch_reply reply = {.nentries = task->msg.batch.nentries,
                                             .statuses = task->statuses};
        struct kvb_writer writer;
        kvb_writer_init(&writer, 16 + KVB_ENTRIES_MAX * sizeof(uint32_t));
        kvb_link_batch_reply_pack(&writer, &reply);
        kvp_session_reply(task->rank->session, put ? KVB_LINK_PUT : KVB_LINK_GET, task->seq,
                          &writer);
    }
}

static void wake_starved(struct kvp_link *owner)
{
    for (struct kvb_list *link; (link = kvb_list_pop(&owner->starved)) != NULL;) {
        struct kvp_link_rank *rank = kvb_container_of(link, struct kvp_link_rank, starved);
        kvb_sched_post(rank->sched, &rank->dispatch);
    }
}

static bool transfers_none(const struct kvp_link_rank *rank)
{
    return rank->queues[KVP_TASK_PUT].nqueued + rank->queues[KVP_TASK_PUT].nrunning +
               rank->queues[KVP_TASK_GET].nqueued + rank->queues[KVP_TASK_GET].nrunning ==
           0;
}

static void free_task(struct kvp_task *task)
{
    kvp_prefix_cleanup(&task->prefix);
    free(task->statuses);
    free(task->entries);
    free(task->slices);
    free(task->items);
    free(task->uses);
    free(task->payload);
    free(task);
}

/* status: of every entry that has none of its own; not OK takes back what had succeeded. Last
 * statement of its callers: it may free the rank. */
static void finish(struct kvp_task *task, kvb_status_t status)
{
    struct kvp_link_rank *rank = task->rank;
    kvb_assert(!task->finishing);
    task->finishing = true;
    if (task->kind == KVP_TASK_LOOKUP) {
        answer_lookup(task, status);
        kvb_link_lookup_free(&task->msg.lookup);
    } else {
        answer_batch(task, status);
        kvb_link_batch_free(&task->msg.batch);
    }
    kvb_list_remove(&task->link);
    if (task->running) {
        count_tasks(rank, task->kind, 0, -1);
    } else {
        rank->queues[task->kind].queued_bytes -= task->len;
        count_tasks(rank, task->kind, -1, 0);
    }
    uint32_t nuses = task->nuses;
    struct kvp_region **uses = task->uses;
    task->uses = NULL;
    free_task(task);
    wake_starved(rank->owner);
    if (!rank->released) {
        kvb_sched_post(rank->sched, &rank->dispatch);
        if (rank->drain.active && transfers_none(rank)) {
            kvb_sched_post(rank->sched, &rank->drain.event);
        }
    }
    for (uint32_t i = 0; i < nuses; i++) {
        /* The last region of a released rank takes the rank along; there are no more after it. */
        kvp_region_unuse(uses[i]);
    }
    free(uses);
    if (nuses == 0) {
        kvp_link_rank_settle(rank);
    }
}

/* ---- lookups ---- */

static uint32_t wave_keys(const struct kvp_task *task)
{
    uint32_t keys = LOOKUP_WAVE / task->rank->shape.nparts;
    return keys > 0 ? keys : 1;
}

/* The next blocks to be asked for, every part of each. False: none is left. */
static bool next_wave(struct kvp_task *task)
{
    uint32_t n = 0;
    if (!kvp_prefix_next(&task->prefix, wave_keys(task))) {
        return false;
    }
    for (uint32_t g = 0; g < task->msg.lookup.ngroups; g++) {
        const struct kvb_link_group *group = &task->msg.lookup.groups[g];
        const struct kvp_prefix_group *wave = &task->prefix.groups[g];
        for (uint32_t k = 0; k < wave->asked; k++) {
            const struct kvb_link_key *key = &group->keys[wave->first + k];
            for (uint32_t part = 0; part < task->rank->shape.nparts; part++) {
                task->items[n++] = (struct kvs_item){.key = key->key,
                                                     .placement = key->placement,
                                                     .group = group->group,
                                                     .part = part};
            }
        }
    }
    task->store.nitems = n;
    return true;
}

/* A block is there if every part of it is. */
static void judge_wave(struct kvp_task *task)
{
    const struct kvs_item *item = task->items;
    uint32_t parts = task->rank->shape.nparts;
    for (uint32_t g = 0; g < task->msg.lookup.ngroups; g++) {
        const struct kvp_prefix_group *wave = &task->prefix.groups[g];
        for (uint32_t k = 0; k < wave->asked; k++, item += parts) {
            bool there = true;
            for (uint32_t part = 0; part < parts; part++) {
                there = there && item[part].status == KVB_OK;
            }
            kvp_prefix_tell(&task->prefix, g, wave->first + k, there);
        }
    }
}

static void on_wave(struct kvs_batch *batch)
{
    struct kvp_task *task = kvb_container_of(batch, struct kvp_task, store);
    struct kvp_link_rank *rank = task->rank;
    judge_wave(task);
    kvb_status_t status = judge_end(rank, KVP_TASK_LOOKUP, task->token);
    if (status == KVB_OK && next_wave(task)) {
        if (kvs_client_submit(rank->owner->config.store, &task->store) == KVB_OK) {
            return;
        }
        kvp_prefix_stop(&task->prefix); /* no room there: what was found so far is told */
    }
    if (status != KVB_OK) {
        kvs_client_discard(rank->owner->config.store, task->store.hold);
    }
    finish(task, status);
}

/* What is to be searched, and room for a wave of it. */
static kvb_status_t prepare_lookup(struct kvp_task *task)
{
    const struct kvb_link_lookup *msg = &task->msg.lookup;
    const struct kvp_shape *shape = &task->rank->shape;
    struct kvb_link_group_info infos[KVB_GROUPS_MAX];
    uint32_t nkeys[KVB_GROUPS_MAX];
    uint64_t most = 0;
    for (uint32_t g = 0; g < msg->ngroups; g++) {
        const struct kvb_link_group_info *info = kvp_shape_group(shape, msg->groups[g].group);
        if (info == NULL) {
            return KVB_ERR_PROTOCOL; /* hello has told which groups there are */
        }
        infos[g] = *info;
        nkeys[g] = msg->groups[g].nkeys;
        most += nkeys[g];
    }
    uint64_t wave = wave_keys(task);
    most = most < wave ? most : wave;
    task->items = calloc(most * shape->nparts + 1, sizeof *task->items);
    return task->items == NULL ? KVB_ERR_NO_MEMORY
                               : kvp_prefix_init(&task->prefix, infos, nkeys, msg->ngroups);
}

static kvb_status_t take_lookup(struct kvp_task *task)
{
    struct kvb_span payload = {task->payload, task->len};
    kvb_status_t status = kvb_link_lookup_unpack(payload, &task->msg.lookup);
    if (status != KVB_OK) {
        return status;
    }
    status = prepare_lookup(task);
    if (status != KVB_OK) {
        kvb_link_lookup_free(&task->msg.lookup);
        return status;
    }
    task->token = task->msg.lookup.token;
    task->store.op = KVS_EXISTS;
    task->store.hold = (struct kvs_hold){task->rank->hold_id, task->msg.lookup.request};
    task->store.done = on_wave;
    return KVB_OK;
}

/* ---- puts and gets ---- */

static void on_batch(struct kvs_batch *batch)
{
    struct kvp_task *task = kvb_container_of(batch, struct kvp_task, store);
    for (uint32_t i = 0; i < task->store.nitems; i++) {
        task->statuses[task->entries[i]] = task->items[i].status;
    }
    finish(task, judge_end(task->rank, task->kind, task->token));
}

/* Fills one item, and a use for each slice; what is wrong with one entry is that entry's. */
static kvb_status_t take_entry(struct kvp_task *task, const struct kvb_link_entry *entry,
                               struct kvs_item *item, uint32_t *nslices)
{
    struct kvp_link_rank *rank = task->rank;
    if (!kvp_shape_owns(&rank->shape, rank->base.index, entry->part) ||
        kvp_shape_group(&rank->shape, entry->group) == NULL) {
        return KVB_ERR_INVALID; /* not this rank's to touch */
    }
    if (task->kind == KVP_TASK_PUT) {
        kvb_status_t status = judge(rank, KVP_TASK_PUT, entry->token);
        if (status != KVB_OK) {
            return status;
        }
    }
    struct kvt_slice *slices = task->slices + *nslices;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < entry->nslices; i++) {
        kvb_status_t status = kvp_regions_use(rank, &entry->slices[i], &task->uses[task->nuses]);
        if (status != KVB_OK) {
            return status; /* the uses taken so far go with the task */
        }
        slices[i] = (struct kvt_slice){kvp_region_memory(task->uses[task->nuses]),
                                       entry->slices[i].offset, entry->slices[i].len};
        task->nuses++;
        bytes += entry->slices[i].len;
    }
    *item = (struct kvs_item){.key = entry->key,
                              .placement = entry->placement,
                              .group = entry->group,
                              .part = entry->part,
                              .slices = slices,
                              .nslices = entry->nslices};
    *nslices += entry->nslices;
    task->bytes += bytes;
    return KVB_OK;
}

static kvb_status_t take_batch(struct kvp_task *task)
{
    struct kvb_span payload = {task->payload, task->len};
    struct kvb_link_batch *msg = &task->msg.batch;
    kvb_status_t status = kvb_link_batch_unpack(payload, msg);
    if (status != KVB_OK) {
        return status;
    }
    size_t nslices = 0;
    for (uint32_t i = 0; i < msg->nentries; i++) {
        nslices += msg->entries[i].nslices;
    }
    task->statuses = calloc(msg->nentries + 1, sizeof *task->statuses);
    task->entries = calloc(msg->nentries + 1, sizeof *task->entries);
    task->items = calloc(msg->nentries + 1, sizeof *task->items);
    task->slices = calloc(nslices + 1, sizeof *task->slices);
    task->uses = calloc(nslices + 1, sizeof(struct kvp_region *));
    if (task->statuses == NULL || task->entries == NULL || task->items == NULL ||
        task->slices == NULL || task->uses == NULL) {
        kvb_link_batch_free(msg);
        return KVB_ERR_NO_MEMORY;
    }
    /* A put's entries each have their token; those that are let in all have the stay's. */
    task->token = task->kind == KVP_TASK_PUT ? task->rank->base.stay->token : msg->token;
    uint32_t used = 0;
    for (uint32_t i = 0; i < msg->nentries; i++) {
        uint32_t n = task->store.nitems;
        task->statuses[i] = take_entry(task, &msg->entries[i], &task->items[n], &used);
        if (task->statuses[i] == KVB_OK) {
            task->statuses[i] = KVB_IN_PROGRESS;
            task->entries[n] = i;
            task->store.nitems++;
        }
    }
    task->store.op = task->kind == KVP_TASK_PUT ? KVS_PUT : KVS_GET;
    task->store.hold =
        (struct kvs_hold){task->kind == KVP_TASK_GET ? task->rank->hold_id : 0, msg->request};
    task->store.done = on_batch;
    return KVB_OK;
}

/* ---- the queues ---- */

/* Begins a task, or ends it; AGAIN: the store has no room, it stays queued. */
static kvb_status_t begin(struct kvp_task *task)
{
    struct kvp_link_rank *rank = task->rank;
    const struct kvp_link_config *config = &rank->owner->config;
    uint64_t now_ns = kvb_now_ns(rank->sched->clock);
    kvb_status_t status = judge_again(rank, task->kind, task->token);
    if (status == KVB_OK && now_ns - task->since_ns > config->transfer_ms * KVB_NS_PER_MS) {
        status = KVB_ERR_TIMEOUT; /* the time it waited counts */
    }
    if (status != KVB_OK) {
        goto out_finish;
    }
    if (config->store == NULL) {
        status = task->kind == KVP_TASK_LOOKUP ? KVB_OK : KVB_ERR_UNAVAILABLE;
        goto out_finish;
    }
    if (task->store.nitems == 0) { /* every entry has its status already, or nothing was asked */
        goto out_finish;
    }
    if (task->kind == KVP_TASK_PUT && kvb_fault(KVB_FAULT_PUT_NOT_FENCED)) {
        task->lineage = rank->base.stay->lineage;
    }
    task->store.space = &rank->space;
    task->store.lineage = task->lineage;
    task->store.items = task->items;
    task->store.deadline_ns = kvb_deadline_in_ms(rank->sched->clock, config->transfer_ms);
    status = kvs_client_submit(config->store, &task->store);
    if (status == KVB_ERR_AGAIN) {
        return status;
    }
    if (status != KVB_OK) {
        goto out_finish;
    }
    kvb_list_remove(&task->link);
    kvb_list_push_back(&rank->queues[task->kind].running, &task->link);
    task->running = true;
    rank->queues[task->kind].queued_bytes -= task->len;
    count_tasks(rank, task->kind, -1, 1);
    return KVB_OK;

out_finish:
    finish(task, status);
    return KVB_OK;
}

static void dispatch(struct kvp_link_rank *rank)
{
    for (int kind = 0; kind < KVP_TASK_KINDS; kind++) {
        struct kvp_task_queue *queue = &rank->queues[kind];
        for (struct kvb_list *link; queue->nrunning < rank->owner->config.running_max &&
                                    (link = kvb_list_first(&queue->queued)) != NULL;) {
            struct kvp_task *task = kvb_container_of(link, struct kvp_task, link);
            if (begin(task) != KVB_ERR_AGAIN) {
                continue;
            }
            const uint32_t *running = rank->owner->tasks_running;
            if (running[KVP_TASK_LOOKUP] + running[KVP_TASK_PUT] + running[KVP_TASK_GET] == 0) {
                finish(task, KVB_ERR_AGAIN); /* no end of ours will make room */
                continue;
            }
            kvb_list_remove(&rank->starved);
            kvb_list_push_back(&rank->owner->starved, &rank->starved);
            return;
        }
    }
}

static void on_dispatch(struct kvb_event *event)
{
    dispatch(kvb_container_of(event, struct kvp_link_rank, dispatch));
}

static kvb_status_t make_task(struct kvp_link_rank *rank, enum kvp_task_kind kind, uint64_t seq,
                              uint8_t *payload, size_t len, struct kvp_task **task_p)
{
    struct kvp_task *task = calloc(1, sizeof *task);
    if (task == NULL) {
        free(payload);
        return KVB_ERR_NO_MEMORY;
    }
    task->rank = rank;
    task->kind = kind;
    task->seq = seq;
    task->since_ns = kvb_now_ns(rank->sched->clock);
    task->payload = payload;
    task->len = len;
    task->lineage = rank->base.stay->lineage;
    task->private_ = rank->base.stay->private_;
    kvb_status_t status = kind == KVP_TASK_LOOKUP ? take_lookup(task) : take_batch(task);
    if (status != KVB_OK) {
        free_task(task);
        return status;
    }
    *task_p = task;
    return KVB_OK;
}

kvb_status_t kvp_tasks_submit(struct kvp_link_rank *rank, enum kvp_task_kind kind, uint64_t seq,
                              uint8_t *payload, size_t len)
{
    struct kvp_task *task;
    kvb_status_t status = make_task(rank, kind, seq, payload, len, &task);
    if (status != KVB_OK) {
        return status;
    }
    struct kvp_task_queue *queue = &rank->queues[kind];
    bool full = queue->nqueued >= rank->owner->config.queue_max ||
                queue->queued_bytes + len > QUEUE_BYTES_MAX;
    kvb_list_push_back(&queue->queued, &task->link);
    queue->queued_bytes += len;
    count_tasks(rank, kind, 1, 0);
    status = full ? KVB_ERR_AGAIN : KVB_OK;
    if (status == KVB_OK && kind != KVP_TASK_PUT) { /* a put's entries were judged one by one */
        status = judge(rank, kind, task->token);
    }
    if (status != KVB_OK) {
        finish(task, status);
        return KVB_OK;
    }
    if (kind == KVP_TASK_LOOKUP) {
        (void)next_wave(task);
    }
    dispatch(rank);
    return KVB_OK;
}

/* ---- stopping ---- */

/* Ends the tasks that have not begun. */
static void end_queued(struct kvp_link_rank *rank, enum kvp_task_kind kind, kvb_status_t status)
{
    for (struct kvb_list *link; (link = kvb_list_first(&rank->queues[kind].queued)) != NULL;) {
        finish(kvb_container_of(link, struct kvp_task, link), status);
    }
}

/* What an operation does to transfers belongs to its story. */
static void tell_stopped(const struct kvp_link_rank *rank, const char *why, uint32_t queued,
                         uint32_t running)
{
    if (queued + running > 0) {
        KVB_LOG(INFO, why, KVB_STR("rank", rank->name), KVB_U64("queued", queued),
                KVB_U64("running", running));
    }
}

static void stop_running(struct kvp_link_rank *rank, enum kvp_task_kind kind)
{
    uint64_t stop_ns = kvb_deadline_in_ms(rank->sched->clock, rank->owner->config.abort_ms);
    kvb_list_each(&rank->queues[kind].running, link)
    {
        kvs_client_cancel(&kvb_container_of(link, struct kvp_task, link)->store, stop_ns);
    }
}

void kvp_tasks_stay_changed(struct kvp_link_rank *rank)
{
    uint32_t queued = 0;
    uint32_t running = 0;
    for (int kind = 0; kind < KVP_TASK_KINDS; kind++) {
        kvb_list_each(&rank->queues[kind].queued, link)
        {
            struct kvp_task *task = kvb_container_of(link, struct kvp_task, link);
            kvb_status_t status = judge_again(rank, kind, task->token);
            if (status != KVB_OK) {
                finish(task, status);
                queued++;
            }
        }
    }
    kvb_list_each(&rank->queues[KVP_TASK_GET].running, link)
    {
        struct kvp_task *task = kvb_container_of(link, struct kvp_task, link);
        if (judge_end(rank, KVP_TASK_GET, task->token) != KVB_OK) {
            kvs_client_cancel(&task->store,
                              kvb_deadline_in_ms(rank->sched->clock, rank->owner->config.abort_ms));
            running++;
        }
    }
    tell_stopped(rank, "transfers of an earlier stay are stopped", queued, running);
}

void kvp_tasks_stop(struct kvp_link_rank *rank)
{
    for (int kind = 0; kind < KVP_TASK_KINDS; kind++) {
        end_queued(rank, kind, KVB_ERR_DISCONNECTED);
        stop_running(rank, kind);
    }
    if (rank->drain.active) {
        kvb_sched_post(rank->sched, &rank->drain.event);
    }
}

/* ---- drain ---- */

static void end_drain(struct kvp_link_rank *rank, kvb_status_t status)
{
    rank->drain.active = false;
    kvb_sched_timer_clear(rank->sched, &rank->drain.bound);
    kvb_sched_unpost(&rank->drain.event);
    rank->drain.done(rank->drain.arg, status);
}

static void on_drain_event(struct kvb_event *event)
{
    struct kvp_link_rank *rank = kvb_container_of(event, struct kvp_link_rank, drain.event);
    if (!rank->connected) {
        end_drain(rank, KVB_ERR_DISCONNECTED);
    } else if (rank->drain.stopped) {
        end_drain(rank, KVB_ERR_CANCELED);
    } else if (transfers_none(rank) || kvb_fault(KVB_FAULT_DRAIN_SKIPPED)) {
        end_drain(rank, KVB_OK);
    } /* else the end of the last one posts again */
}

static void on_drain_bound(struct kvb_timer *timer)
{
    struct kvp_link_rank *rank = kvb_container_of(timer, struct kvp_link_rank, drain.bound);
    end_drain(rank, KVB_ERR_TIMEOUT);
}

void kvp_tasks_drain(struct kvp_link_rank *rank, bool abort, uint64_t deadline_ns,
                     kvp_rank_done_fn done, void *arg)
{
    kvb_assert(!rank->drain.active);
    rank->drain.active = true;
    rank->drain.stopped = false;
    rank->drain.done = done;
    rank->drain.arg = arg;
    if (abort && !kvb_fault(KVB_FAULT_DRAIN_SKIPPED)) {
        struct kvp_drain_progress now = kvp_tasks_progress(rank);
        tell_stopped(rank, "transfers are stopped", now.queued, now.running);
        end_queued(rank, KVP_TASK_PUT, KVB_ERR_CANCELED);
        end_queued(rank, KVP_TASK_GET, KVB_ERR_CANCELED);
        stop_running(rank, KVP_TASK_PUT);
        stop_running(rank, KVP_TASK_GET);
    }
    kvb_sched_post(rank->sched, &rank->drain.event); /* it may be so already */
    kvb_sched_timer_set(rank->sched, &rank->drain.bound, deadline_ns);
}

void kvp_tasks_drain_stop(struct kvp_link_rank *rank)
{
    if (rank->drain.active) {
        rank->drain.stopped = true;
        kvb_sched_post(rank->sched, &rank->drain.event);
    }
}

static struct kvp_queue_view queue_view(const struct kvp_link_rank *rank, enum kvp_task_kind kind)
{
    const struct kvp_task_queue *queue = &rank->queues[kind];
    const struct kvb_list *lists[] = {&queue->queued, &queue->running};
    uint64_t now_ns = kvb_now_ns(rank->sched->clock);
    struct kvp_queue_view view = {.queued = queue->nqueued, .running = queue->nrunning};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        kvb_list_each(lists[i], link)
        {
            const struct kvp_task *task = kvb_container_of(link, struct kvp_task, link);
            uint64_t age_ns = now_ns - task->since_ns;
            view.bytes += task->bytes;
            view.oldest_age_ns = age_ns > view.oldest_age_ns ? age_ns : view.oldest_age_ns;
        }
    }
    return view;
}

void kvp_tasks_queues(const struct kvp_link_rank *rank, struct kvp_queue_view *views)
{
    for (int kind = 0; kind < KVP_TASK_KINDS; kind++) {
        views[kind] = queue_view(rank, (enum kvp_task_kind)kind);
    }
}

void kvp_tasks_show(const struct kvp_link_rank *rank)
{
    for (int kind = 0; kind < KVP_TASK_KINDS; kind++) {
        struct kvp_queue_view view = queue_view(rank, (enum kvp_task_kind)kind);
        show_of_queue(rank, (enum kvp_task_kind)kind, KVP_M_TASK_AGE,
                      (double)view.oldest_age_ns / 1e9);
    }
}

struct kvp_drain_progress kvp_tasks_progress(const struct kvp_link_rank *rank)
{
    struct kvp_drain_progress progress = {0};
    for (int kind = KVP_TASK_PUT; kind <= KVP_TASK_GET; kind++) {
        struct kvp_queue_view view = queue_view(rank, (enum kvp_task_kind)kind);
        progress.queued += view.queued;
        progress.running += view.running;
        progress.bytes_left += view.bytes;
    }
    return progress;
}

/* ---- life ---- */

void kvp_tasks_init(struct kvp_link_rank *rank)
{
    for (int kind = 0; kind < KVP_TASK_KINDS; kind++) {
        kvb_list_init(&rank->queues[kind].queued);
        kvb_list_init(&rank->queues[kind].running);
    }
    kvb_list_init(&rank->starved);
    kvb_event_init(&rank->dispatch, on_dispatch);
    kvb_event_init(&rank->drain.event, on_drain_event);
    kvb_timer_init(&rank->drain.bound, on_drain_bound);
}

bool kvp_tasks_none(const struct kvp_link_rank *rank)
{
    return transfers_none(rank) &&
           rank->queues[KVP_TASK_LOOKUP].nqueued + rank->queues[KVP_TASK_LOOKUP].nrunning == 0;
}

void kvp_tasks_cleanup(struct kvp_link_rank *rank)
{
    kvb_assert(kvp_tasks_none(rank));
    kvb_list_remove(&rank->starved);
    kvb_sched_unpost(&rank->dispatch);
    kvb_sched_unpost(&rank->drain.event);
    kvb_sched_timer_clear(rank->sched, &rank->drain.bound);
}
