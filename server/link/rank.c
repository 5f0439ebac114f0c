/* SPDX-License-Identifier: Apache-2.0 */
#include "rank.h"

#include "internal.h"
#include "session.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void op_call(void *impl, enum kvb_link_type type, const void *msg, uint64_t deadline_ns,
                    kvp_rank_call_fn done, void *arg)
{
    struct kvp_link_rank *rank = impl;
    kvp_session_call(rank->session, type, msg, deadline_ns, done, arg);
}

static void op_hurry_pauses(void *impl, uint64_t deadline_ns)
{
    struct kvp_link_rank *rank = impl;
    kvp_session_hurry_pauses(rank->session, deadline_ns);
}

static void op_drain(void *impl, bool abort, uint64_t deadline_ns, kvp_rank_done_fn done, void *arg)
{
    kvp_tasks_drain(impl, abort, deadline_ns, done, arg);
}

static void op_drain_stop(void *impl)
{
    kvp_tasks_drain_stop(impl);
}

static struct kvp_drain_progress op_progress(void *impl)
{
    return kvp_tasks_progress(impl);
}

static void op_stay_changed(void *impl)
{
    kvp_tasks_stay_changed(impl);
}

static void op_unregister(void *impl, const char (*tags)[KVB_NAME_MAX], uint32_t ntags,
                          uint64_t deadline_ns, kvp_rank_done_fn done, void *arg)
{
    kvp_regions_unregister(impl, tags, ntags, deadline_ns, done, arg);
}

static void op_register(void *impl, const char (*tags)[KVB_NAME_MAX], uint32_t ntags,
                        kvp_rank_done_fn done, void *arg)
{
    kvp_regions_register(impl, tags, ntags, done, arg);
}

static uint32_t op_registered(void *impl, const char *tag, uint64_t *bytes_p)
{
    return kvp_regions_registered(impl, tag, bytes_p);
}

static void op_each_region(void *impl, kvp_region_fn each, void *arg)
{
    kvp_regions_each(impl, each, arg);
}

static void op_queues(void *impl, struct kvp_queue_view views[KVP_QUEUE_KINDS])
{
    kvp_tasks_queues(impl, views);
}

static bool op_device(void *impl, struct kvt_device_info *info_p)
{
    return kvp_rank_device_info(impl, info_p);
}

static const char *op_cause(void *impl)
{
    const struct kvp_link_rank *rank = impl;
    return rank->cause;
}

static void op_disconnect(void *impl, const char *reason)
{
    struct kvp_link_rank *rank = impl;
    kvp_session_close(rank->session, reason);
}

const struct kvp_rank_ops kvp_link_rank_ops = {
    .call = op_call,
    .hurry_pauses = op_hurry_pauses,
    .drain = op_drain,
    .drain_stop = op_drain_stop,
    .progress = op_progress,
    .stay_changed = op_stay_changed,
    .unregister = op_unregister,
    .register_ = op_register,
    .registered = op_registered,
    .each_region = op_each_region,
    .queues = op_queues,
    .device = op_device,
    .cause = op_cause,
    .disconnect = op_disconnect,
};

kvb_status_t kvp_link_rank_create(struct kvp_link *owner, struct kvp_session *session,
                                  const struct kvb_link_hello *hello, struct kvp_link_rank **rank_p)
{
    struct kvp_link_rank *rank = calloc(1, sizeof *rank);
    if (rank == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    rank->base = (struct kvp_rank){
        .ops = &kvp_link_rank_ops, .impl = rank, .index = hello->rank, .roles = hello->roles};
    rank->owner = owner;
    rank->sched = owner->config.sched;
    rank->session = session;
    rank->connected = true;
    rank->socket = -1;
    (void)snprintf(rank->instance_name, sizeof rank->instance_name, "%s", hello->instance);
    (void)snprintf(rank->name, sizeof rank->name, "%s/%u", hello->instance, hello->rank);
    if ((hello->roles & KVB_ROLE_WORKER) != 0) {
        (void)snprintf(rank->label, sizeof rank->label, "%u", hello->rank);
    } else {
        strcpy(rank->label, "scheduler");
    }
    kvp_tasks_init(rank);
    kvp_regions_init(rank, hello);
    owner->nranks++;
    *rank_p = rank;
    return KVB_OK;
}

void kvp_link_rank_admitted(struct kvp_link_rank *rank, struct kvp_instance *instance)
{
    rank->instance = instance;
    rank->space = *kvp_instance_space(instance);
    rank->hold_id = kvp_instance_hold_id(instance);
    rank->shape = *kvp_instance_shape(instance);
}

void kvp_link_rank_disconnected(struct kvp_link_rank *rank)
{
    rank->connected = false;
    if (rank->owner->config.store != NULL &&
        rank->hold_id != 0) { /* what it was promised, nobody will get */
        kvs_client_discard_instance(rank->owner->config.store, rank->hold_id);
    }
    kvp_tasks_stop(rank);
    kvp_regions_stop(rank);
}

void kvp_link_rank_keep_socket(struct kvp_link_rank *rank, int fd)
{
    rank->socket = fd;
}

bool kvp_link_rank_busy(const struct kvp_link_rank *rank)
{
    return rank->drain.active || rank->unregister.active || rank->registering.active;
}

void kvp_link_rank_release(struct kvp_link_rank *rank)
{
    rank->base.stay = NULL;
    rank->session = NULL;
    rank->connected = false;
    rank->released = true;
    if (rank->instance != NULL) { /* else it was refused, and another may have this name */
        kvp_tasks_forget_shown(rank);
        kvp_regions_forget_shown(rank);
    }
    kvp_link_rank_settle(rank);
}

void kvp_link_rank_settle(struct kvp_link_rank *rank)
{
    if (!rank->released || !kvp_tasks_none(rank) || !kvb_list_empty(&rank->regions) ||
        !kvp_rank_device_close(rank)) {
        return;
    }
    kvb_assert(!kvp_link_rank_busy(rank));
    kvp_tasks_cleanup(rank);
    kvp_regions_cleanup(rank);
    if (rank->socket >= 0) {
        (void)close(rank->socket);
    }
    struct kvp_link *owner = rank->owner;
    free(rank);
    owner->nranks--;
    kvp_link_settle(owner);
}
