/* SPDX-License-Identifier: Apache-2.0 */
#include "remote.h"

#include "base/assert.h"
#include "base/log.h"

#include <xxhash.h>

#include <stdlib.h>

static const struct kvs_node_ops remote_ops;

struct kvs_remote *kvs_remote_of(struct kvs_node *node)
{
    kvb_assert(node->ops == &remote_ops);
    return kvb_container_of(node, struct kvs_remote, base);
}

/* ---- calls ---- */

static void remote_ended(struct kvs_call *call)
{
    free(call);
}

static const struct kvs_calls_ops calls_ops = {.step = kvs_question_step, .ended = remote_ended};

static kvb_status_t remote_submit(struct kvs_node *node, struct kvs_node_call *node_call)
{
    struct kvs_remote *remote = kvs_remote_of(node);
    struct kvs_call *call = malloc(sizeof *call);
    if (call == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kvb_status_t status = kvs_call_submit(&remote->calls, call, node_call);
    if (status != KVB_OK) {
        free(call);
    }
    return status;
}

static void remote_stop(struct kvs_node *node, struct kvs_node_call *node_call, bool expired,
                        uint64_t stop_deadline_ns)
{
    (void)node;
    struct kvs_call *call = node_call->impl.state;
    kvs_call_stop(call, expired);
    kvs_question_stop_all(call, expired ? KVB_ERR_TIMEOUT : KVB_ERR_CANCELED, stop_deadline_ns);
}

/* ---- asides: questions whose answer nobody waits for; those that cannot be asked are not ---- */

#define ASIDE_MS 2000

struct aside {
    struct kvb_list link;
    struct kvb_writer ask;
    struct kvt_transfer transfer;
};

static void destroy_aside(struct aside *aside)
{
    kvb_list_remove(&aside->link);
    kvb_writer_cleanup(&aside->ask);
    free(aside);
}

static void on_aside_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    (void)status;
    destroy_aside(kvb_container_of(transfer, struct aside, transfer));
}

void kvs_remote_aside(struct kvs_remote *remote, enum kvs_question type)
{
    struct aside *aside = calloc(1, sizeof *aside);
    if (aside == NULL) {
        return;
    }
    kvb_list_init(&aside->link);
    kvb_writer_init(&aside->ask, KVT_ASK_MAX);
    kvs_ask_pack(&aside->ask, type, &remote->ask);
    aside->transfer = (struct kvt_transfer){
        .deadline_ns = kvb_deadline_in_ms(remote->sched->clock, ASIDE_MS),
        .done = on_aside_done,
        .type = (uint16_t)type,
        .ask = {aside->ask.data, aside->ask.len},
    };
    if (aside->ask.status == KVB_OK && kvs_remote_start(remote, &aside->transfer) == KVB_OK) {
        kvb_list_push_back(&remote->asides, &aside->link);
    } else {
        destroy_aside(aside);
    }
}

struct kvs_hold kvs_remote_hold(const struct kvs_remote *remote, struct kvs_hold hold)
{
    if (hold.instance != 0) {
        uint64_t instance =
            XXH3_64bits_withSeed(&hold.instance, sizeof hold.instance, remote->hold_salt);
        hold.instance = instance == 0 ? 1 : instance;
    }
    return hold;
}

/* What it does not reach ends at its bound. */
static void remote_discard(struct kvs_node *node, struct kvs_hold hold, bool all_of_instance)
{
    struct kvs_remote *remote = kvs_remote_of(node);
    remote->ask.hold = kvs_remote_hold(remote, hold);
    remote->ask.all_of_instance = all_of_instance;
    kvs_remote_aside(remote, KVS_ASK_DISCARD);
}

static uint64_t remote_heard_ns(struct kvs_node *node)
{
    const struct kvs_remote *remote = kvs_remote_of(node);
    uint64_t last_ns = 0;
    for (uint32_t i = 0; i < remote->nways; i++) {
        struct kvt_peer_stats stats;
        remote->ways[i].by->stats(remote->ways[i].transport, &stats);
        last_ns = stats.heard_ns > last_ns ? stats.heard_ns : last_ns;
    }
    return last_ns;
}

static const struct kvs_node_ops remote_ops = {
    .submit = remote_submit,
    .stop = remote_stop,
    .discard = remote_discard,
    .heard_ns = remote_heard_ns,
};

/* ---- ways ---- */

/* It is no fault of the transfer's: another way may take it. */
static bool not_this_way(kvb_status_t status)
{
    return status == KVB_ERR_UNAVAILABLE || status == KVB_ERR_UNSUPPORTED;
}

kvb_status_t kvs_remote_start(struct kvs_remote *remote, struct kvt_transfer *transfer)
{
    kvb_status_t status = KVB_ERR_UNAVAILABLE;
    for (uint32_t i = 0; i < remote->nways && not_this_way(status); i++) {
        if (remote->ways[i].up) {
            status = kvt_transfer_start(remote->ways[i].transport, transfer);
        }
    }
    for (uint32_t i = remote->nways; i > 0 && not_this_way(status); i--) {
        if (!remote->ways[i - 1].up) {
            status = kvt_transfer_start(remote->ways[i - 1].transport, transfer);
        }
    }
    return status;
}

static kvb_status_t open_ways(struct kvs_remote *remote, const struct kvs_remote_config *config)
{
    kvb_status_t status = KVB_OK;
    for (uint32_t i = 0; i < KVS_WAYS_MAX && config->ways[i].by != NULL; i++) {
        struct kvs_remote_way *way = &remote->ways[remote->nways];
        *way = (struct kvs_remote_way){.remote = remote, .by = config->ways[i].by};
        status = way->by->create(config->regions, config->ways[i].config, &kvs_report_peer_ops, way,
                                 &way->transport);
        remote->nways += status == KVB_OK;
        if (status != KVB_OK) { /* a device may be short of something: the last is what counts */
            KVB_LOG_LIMITED(WARN, "a node is not reached this way", KVB_STR("by", way->by->name),
                            KVB_STATUS(status));
        }
    }
    return status;
}

/* What runs on them ends inside: asides, a report. */
static void close_ways(struct kvs_remote *remote)
{
    for (uint32_t i = 0; i < remote->nways; i++) {
        kvt_transport_destroy(remote->ways[i].transport);
    }
}

bool kvs_remote_way(struct kvs_node *node, uint32_t number, struct kvs_way_status *way_p)
{
    const struct kvs_remote *remote = kvs_remote_of(node);
    if (number >= remote->nways) {
        return false;
    }
    const struct kvs_remote_way *way = &remote->ways[number];
    *way_p = (struct kvs_way_status){.by = way->by->name, .up = way->up, .why = way->why};
    way->by->stats(way->transport, &way_p->stats);
    return true;
}

/* ---- the rest ---- */

uint32_t kvs_remote_calls(struct kvs_node *node)
{
    return atomic_load_explicit(&kvs_remote_of(node)->calls.n, memory_order_relaxed);
}

static void on_retry(struct kvb_timer *timer)
{
    struct kvs_remote *remote = kvb_container_of(timer, struct kvs_remote, retry);
    kvs_calls_feed(&remote->calls);
}

kvb_status_t kvs_remote_create(const struct kvs_remote_config *config, struct kvs_node **node_p)
{
    struct kvs_remote *remote = calloc(1, sizeof *remote);
    if (remote == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    remote->base.ops = &remote_ops;
    remote->sched = config->sched;
    remote->changed = config->changed;
    remote->ctx = config->ctx;
    config->sched->random->fill(config->sched->random->ctx, &remote->hold_salt,
                                sizeof remote->hold_salt);
    kvb_list_init(&remote->idle);
    kvb_list_init(&remote->asides);
    kvb_timer_init(&remote->retry, on_retry);
    kvs_calls_init(&remote->calls, config->sched, &calls_ops);
    kvs_report_init(remote);
    kvb_status_t status = open_ways(remote, config);
    if (status != KVB_OK) {
        close_ways(remote);
        free(remote);
        return status;
    }
    *node_p = &remote->base;
    return KVB_OK;
}

void kvs_remote_destroy(struct kvs_node *node)
{
    if (node == NULL) {
        return;
    }
    struct kvs_remote *remote = kvs_remote_of(node);
    kvs_calls_cleanup(&remote->calls);
    kvb_assert(remote->nlistings == 0);
    remote->changed = NULL;
    close_ways(remote);
    kvb_assert(kvb_list_empty(&remote->asides));
    kvs_report_cleanup(remote);
    kvs_question_cleanup(remote);
    kvb_sched_timer_clear(remote->sched, &remote->retry);
    free(remote);
}
