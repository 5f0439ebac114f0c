/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_fleet.h"

#include "base/assert.h"
#include "transport/device.h"

#include <stdio.h>
#include <string.h>

struct kvp_view *fake_fleet_add(struct kvp_fleet *fleet, const char *name)
{
    kvb_assert(fleet->nviews < FAKE_INSTANCES);
    struct kvp_view *view = &fleet->views[fleet->nviews++];

    *view = (struct kvp_view){.attached = true,
                              .ever_attached = true,
                              .world_size = 2,
                              .ranks = 2,
                              .ready = true,
                              .ntags = 2,
                              .open = true,
                              .coordinator_reachable = true,
                              .registered_regions = 2,
                              .registered_bytes = 4096,
                              .lineage = {{0x0123456789abcdefull, 0xfedcba9876543210ull}}};
    snprintf(view->instance, sizeof view->instance, "%s", name);
    strcpy(view->tenant, "default");
    strcpy(view->layout, "layout-1");
    strcpy(view->tags[0].tag, "kv_cache");
    strcpy(view->tags[1].tag, "weights");
    return view;
}

struct fake_call *fake_fleet_last(struct kvp_fleet *fleet)
{
    return fleet->ncalls > 0 ? &fleet->calls[(fleet->ncalls - 1) % FAKE_CALLS] : NULL;
}

void fake_fleet_finish(struct kvp_fleet *fleet, struct fake_call *call, struct kvp_outcome outcome)
{
    kvb_assert(call->open);
    call->open = false;
    outcome.operation_id = call->id;
    if (fleet->nviews > 0) {
        outcome.view = &fleet->views[0];
    }
    call->done(call->arg, &outcome);
}

void fake_fleet_finish_all(struct kvp_fleet *fleet, struct kvp_outcome outcome)
{
    for (uint32_t i = 0; i < FAKE_CALLS; i++) {
        if (fleet->calls[i].open) {
            fake_fleet_finish(fleet, &fleet->calls[i], outcome);
        }
    }
}

uint64_t kvp_fleet_take_id(struct kvp_fleet *fleet)
{
    return FAKE_FLEET_IDS + ++fleet->nids;
}

kvb_status_t kvp_fleet_request(struct kvp_fleet *fleet, const char *instance,
                               const struct kvp_ask *ask, const char *request_id,
                               kvp_outcome_fn done, void *arg, uint64_t *operation_id_p)
{
    if (fleet->status != KVB_OK) {
        return fleet->status;
    }
    struct fake_call *call = &fleet->calls[fleet->ncalls % FAKE_CALLS];

    kvb_assert(!call->open);
    fleet->ncalls++;
    *call = (struct fake_call){
        .open = true, .ask = *ask, .done = done, .arg = arg, .id = fleet->ncalls};
    snprintf(call->instance, sizeof call->instance, "%s", instance != NULL ? instance : "");
    snprintf(call->request_id, sizeof call->request_id, "%s", request_id);
    if (operation_id_p != NULL) {
        *operation_id_p = call->id;
    }
    return KVB_OK;
}

/* A call like that which started it. */
kvb_status_t kvp_fleet_await(struct kvp_fleet *fleet, uint64_t id, kvp_outcome_fn done, void *arg)
{
    struct kvp_operation_record record;
    if (!kvp_fleet_operation(fleet, id, &record) || record.finished) {
        return KVB_ERR_NOT_FOUND;
    }
    struct kvp_ask ask = {.operation = record.operation};
    return kvp_fleet_request(fleet, record.instance, &ask, "", done, arg, NULL);
}

kvb_status_t kvp_fleet_cancel(struct kvp_fleet *fleet, uint64_t id)
{
    fleet->canceled[fleet->ncanceled++ % FAKE_CALLS] = id;
    return fleet->cancel_status;
}

void kvp_fleet_forget(struct kvp_fleet *fleet, void *arg)
{
    for (uint32_t i = 0; i < FAKE_CALLS; i++) {
        if (fleet->calls[i].arg == arg) {
            fleet->calls[i].open = false;
        }
    }
}

bool kvp_fleet_view(struct kvp_fleet *fleet, const char *instance, struct kvp_view *view_p)
{
    if (instance == NULL && fleet->nviews != 1) {
        return false;
    }
    for (uint32_t i = 0; i < fleet->nviews; i++) {
        if (instance == NULL || strcmp(fleet->views[i].instance, instance) == 0) {
            *view_p = fleet->views[i];
            return true;
        }
    }
    return false;
}

void kvp_fleet_each(struct kvp_fleet *fleet, void (*each)(void *arg, const struct kvp_view *view),
                    void *arg)
{
    for (uint32_t i = 0; i < fleet->nviews; i++) {
        each(arg, &fleet->views[i]);
    }
}

/* Rank 0 has a helper and rank 1 is gone. */
void kvp_fleet_each_rank(struct kvp_fleet *fleet, const char *instance,
                         void (*each)(void *arg, const struct kvp_rank_view *view), void *arg)
{
    static const struct kvt_device_info info = {.pid = 4711,
                                                .starts = 3,
                                                .kills = 2,
                                                .failures = 4,
                                                .regions = 1,
                                                .mappings = 1,
                                                .cause = "mem_map: CUDA_ERROR_OUT_OF_MEMORY",
                                                .registrations = 1,
                                                .direct = true,
                                                .moves = 12,
                                                .pool_cause = "a reason"};
    struct kvp_rank_view view = {.attached = true,
                                 .worker = true,
                                 .scheduler = true,
                                 .ntags = 1,
                                 .regions = 2,
                                 .region_bytes = 4096,
                                 .device = &info,
                                 .queues = {[KVP_QUEUE_PUT] = {1, 2, 3000000, 4}}};
    strcpy(view.tags[0].tag, "kv_cache");
    (void)fleet;
    (void)instance;
    each(arg, &view);
    each(arg, &(struct kvp_rank_view){.rank = 1});
}

/* Of rank 0: one that is registered, what it replaced, and one that is not. */
void kvp_rank_each_region(const struct kvp_rank_view *view, kvp_region_fn each, void *arg)
{
    static const struct kvp_region_view views[] = {
        {1, "weights", "cuda", "unregistered", true, false, 3, 1 << 20, 0, 0},
        {0, "kv_cache", "host", "registered", true, true, 7, 4096, 4096, 2},
        {0, "kv_cache", "host", "draining", false, false, 6, 4096, 4096, 1},
    };
    for (size_t i = 0; view->attached && i < sizeof views / sizeof views[0]; i++) {
        each(arg, &views[i]);
    }
}

uint32_t kvp_fleet_count(const struct kvp_fleet *fleet)
{
    return fleet->nviews;
}

void kvp_fleet_each_operation(struct kvp_fleet *fleet,
                              void (*each)(void *arg, const struct kvp_operation_record *record),
                              void *arg)
{
    for (uint32_t i = fleet->nrecords; i > 0; i--) {
        each(arg, &fleet->records[i - 1]);
    }
}

bool kvp_fleet_operation(struct kvp_fleet *fleet, uint64_t id,
                         struct kvp_operation_record *record_p)
{
    for (uint32_t i = 0; i < fleet->nrecords; i++) {
        if (fleet->records[i].id == id) {
            *record_p = fleet->records[i];
            return true;
        }
    }
    return false;
}

void fake_coordinator_finish(struct kvs_coordinator *coordinator, kvb_status_t status)
{
    uint32_t n = coordinator->nresets;
    coordinator->nresets = 0;
    for (uint32_t i = 0; i < n; i++) {
        coordinator->resets[i]->done(coordinator->resets[i], status);
    }
}

void kvs_tenant_reset(struct kvs_coordinator *coordinator, const char *tenant,
                      struct kvs_member *member, uint64_t deadline_ns,
                      struct kvs_coord_request *request)
{
    kvb_assert(coordinator->nresets < FAKE_RESETS && member == NULL);
    coordinator->resets[coordinator->nresets++] = request;
    coordinator->reset_deadline_ns = deadline_ns;
    snprintf(coordinator->reset_tenant, sizeof coordinator->reset_tenant, "%s", tenant);
}

void kvs_coordinator_each_name(struct kvs_coordinator *coordinator,
                               void (*each)(void *arg, const struct kvs_space *space,
                                            const char *name, struct kvb_lineage lineage,
                                            uint32_t members),
                               void *arg)
{
    for (uint32_t i = 0; i < coordinator->nnames; i++) {
        const struct fake_name *name = &coordinator->names[i];
        each(arg, &name->space, name->name, (struct kvb_lineage){{1, i + 1}}, name->members);
    }
}

void kvs_coordinator_each_instance(struct kvs_coordinator *coordinator,
                                   void (*each)(void *arg,
                                                const struct kvs_instance_record *record),
                                   void *arg)
{
    const struct kvs_space space = {"default", "layout-1"};
    if (coordinator->instance_text != NULL) {
        each(arg, &(struct kvs_instance_record){.instance = coordinator->instance_name != NULL
                                                                ? coordinator->instance_name
                                                                : "far",
                                                .space = &space,
                                                .process = "host/1",
                                                .own = coordinator->instance_own,
                                                .token = 7,
                                                .text = coordinator->instance_text});
    }
    if (coordinator->instance_again != NULL) {
        each(arg, &(struct kvs_instance_record){.instance = coordinator->instance_again,
                                                .space = &space,
                                                .process = "host/2",
                                                .token = 8,
                                                .text = "{}"});
    }
}

/* ---- the cluster ---- */

uint64_t kvp_cluster_left_out(const struct kvp_cluster *cluster, const char **reason_p)
{
    *reason_p = "raise RLIMIT_MEMLOCK";
    return cluster->left_out;
}

bool kvp_cluster_alone(const struct kvp_cluster *cluster)
{
    return !cluster->etcd;
}

bool kvp_cluster_reachable(const struct kvp_cluster *cluster)
{
    return cluster->away_ns == 0;
}

uint64_t kvp_cluster_away_ns(const struct kvp_cluster *cluster)
{
    return cluster->away_ns;
}

void kvp_cluster_each_node(struct kvp_cluster *cluster,
                           void (*each)(void *arg, const struct kvp_cluster_node *node), void *arg)
{
    for (uint32_t i = 0; i < cluster->nnodes; i++) {
        each(arg, &cluster->nodes[i]);
    }
}

kvb_status_t kvp_cluster_ask_tenants(struct kvp_cluster *cluster, uint64_t deadline_ns,
                                     struct kvp_cluster_tenants *ask)
{
    (void)deadline_ns;
    if (cluster->status == KVB_OK) {
        kvb_assert(cluster->nasks < FAKE_RESETS);
        cluster->asks[cluster->nasks++] = ask;
    }
    return cluster->status;
}

static void fill_list(const struct kvp_cluster_node *node, uint32_t nobjects, struct kvs_list *list)
{
    list->n = 0;
    while (list->n < list->max && list->n < 3 && list->place.object < nobjects) {
        struct kvs_listed *listed = &list->at[list->n++];
        memset(listed, 0, sizeof *listed);
        strcpy(listed->layout, "l");
        listed->key_len = (uint32_t)snprintf((char *)listed->key, sizeof listed->key, "%s/%u",
                                             node->record->name, list->place.object++);
        listed->len = 7;
        listed->pin = KVS_PIN_SOFT;
    }
    list->more = list->place.object < nobjects;
}

/* Answers inside the call, which the real one never does. */
kvb_status_t kvp_cluster_ask_list(struct kvp_cluster *cluster, const char *node,
                                  uint64_t deadline_ns, struct kvp_cluster_list *ask)
{
    (void)deadline_ns;
    uint32_t i = 0;
    cluster->nlists++;
    while (i < cluster->nnodes && strcmp(cluster->nodes[i].record->name, node) != 0) {
        i++;
    }
    kvb_assert(i < cluster->nnodes);
    cluster->asked_list = *ask->list;
    if (cluster->list_status[i] == KVB_IN_PROGRESS) {
        cluster->list_ask = ask;
        return KVB_OK;
    }
    if (cluster->list_status[i] == KVB_OK) {
        fill_list(&cluster->nodes[i], cluster->list_objects[i], ask->list);
        ask->done(ask, KVB_OK);
        return KVB_OK;
    }
    return cluster->list_status[i];
}

void fake_cluster_finish(struct kvp_cluster *cluster)
{
    uint32_t n = cluster->nasks;
    cluster->nasks = 0;
    for (uint32_t i = 0; i < n; i++) {
        cluster->asks[i]->done(cluster->asks[i], cluster->tenants, cluster->ntenants,
                               cluster->silent);
    }
}

kvb_status_t kvp_cluster_set_quota(struct kvp_cluster *cluster, const char *tenant, uint64_t bytes,
                                   struct kvs_coord_request *request)
{
    snprintf(cluster->quota_tenant, sizeof cluster->quota_tenant, "%s", tenant);
    cluster->quota_bytes = bytes;
    cluster->quota_request = request;
    return cluster->quota_status;
}

void kvp_fleet_each_left(const struct kvp_fleet *fleet,
                         void (*each)(void *arg, const struct kvp_left *leaving), void *arg)
{
    for (uint32_t i = fleet->nleavings; i > 0; i--) {
        each(arg, &fleet->leavings[i - 1]);
    }
}
