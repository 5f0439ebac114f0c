/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"
#include "rank.h"
#include "session.h"

#include <stdio.h>
#include <string.h>

/* The rank that came after this one under its name has a device of its own by now: the figures are
 * that one's. */
static bool superseded(const struct kvp_link_rank *rank)
{
    kvb_list_each(&rank->owner->sessions, link)
    {
        const struct kvp_link_rank *other = kvp_session_rank(kvp_session_of(link));
        if (other != NULL && other != rank && other->device != NULL &&
            strcmp(other->name, rank->name) == 0) {
            return true;
        }
    }
    return false;
}

static void count(struct kvb_metrics *metrics, enum kvp_metric which, const char *const *values,
                  uint32_t now, uint32_t *shown)
{
    kvb_series_add(kvb_series(metrics, which, values), now - *shown);
    *shown = now;
}

static void show(struct kvp_link_rank *rank, struct kvt_device_info *info)
{
    struct kvb_metrics *metrics = rank->owner->config.metrics;
    if (metrics == NULL) {
        return;
    }
    const char *values[] = {rank->instance_name, rank->label};
    count(metrics, KVP_M_CUDA_STARTS, values, info->starts, &rank->shown_starts);
    count(metrics, KVP_M_CUDA_KILLS, values, info->kills, &rank->shown_kills);
    count(metrics, KVP_M_CUDA_FAILURES, values, info->failures, &rank->shown_failures);
    if (superseded(rank)) {
        return;
    }
    kvb_series_set(kvb_series(metrics, KVP_M_CUDA_HELPERS, values), info->pid != 0);
    const struct {
        const char *what;
        uint32_t n;
    } held[] = {
#define X(member) {#member, info->member},
        KVT_DEVICE_HOLDINGS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) {
        const char *of_kind[] = {rank->instance_name, rank->label, held[i].what};
        kvb_series_set(kvb_series(metrics, KVP_M_CUDA_HELD, of_kind), held[i].n);
    }
}

static void on_changed(void *arg)
{
    struct kvp_link_rank *rank = arg;
    struct kvt_device_info info;
    rank->device->ops->info(rank->device, &info);
    show(rank, &info);
    bool ended = rank->device_ran && info.pid == 0;
    rank->device_ran = info.pid != 0;
    if (ended && rank->connected) {
        kvp_regions_lost(rank);
    }
}

kvb_status_t kvp_rank_device_open(struct kvp_link_rank *rank, uint64_t owner,
                                  struct kvt_device **device_p)
{
    const struct kvp_link_config *config = &rank->owner->config;
    if (rank->device == NULL && config->devices != NULL) {
        kvb_status_t status =
            config->devices->open(config->devices_ctx, rank->name, owner, &rank->device);
        if (status != KVB_OK) {
            return status;
        }
        rank->device->changed = on_changed;
        rank->device->changed_arg = rank;
    }
    *device_p = rank->device;
    return KVB_OK;
}

static void on_closed(void *arg)
{
    struct kvp_link_rank *rank = arg;
    rank->device = NULL;
    if (rank->owner->config.metrics != NULL && !superseded(rank)) {
        const char *values[] = {rank->instance_name, rank->label};
        kvb_series_drop(rank->owner->config.metrics, KVP_M_CUDA_HELPERS, values, 2);
        kvb_series_drop(rank->owner->config.metrics, KVP_M_CUDA_HELD, values, 2);
    }
    kvp_link_rank_settle(rank);
}

bool kvp_rank_device_close(struct kvp_link_rank *rank)
{
    if (rank->device != NULL && !rank->device_closing) {
        rank->device_closing = true;
        rank->owner->config.devices->close(rank->device, on_closed, rank);
    }
    return rank->device == NULL;
}

bool kvp_rank_device_info(const struct kvp_link_rank *rank, struct kvt_device_info *info_p)
{
    if (rank->device != NULL) {
        rank->device->ops->info(rank->device, info_p);
    }
    return rank->device != NULL;
}

void kvp_rank_device_forget_cause(struct kvp_link_rank *rank)
{
    struct kvt_device_info info;
    rank->failures_before = kvp_rank_device_info(rank, &info) ? info.failures : 0;
    rank->cause[0] = '\0';
}

void kvp_rank_device_note_cause(struct kvp_link_rank *rank)
{
    struct kvt_device_info info;
    if (rank->cause[0] == '\0' && kvp_rank_device_info(rank, &info) &&
        info.failures != rank->failures_before) {
        memcpy(rank->cause, info.cause, sizeof rank->cause);
    }
}
