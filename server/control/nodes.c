/* SPDX-License-Identifier: Apache-2.0 */
#include "control/internal.h"

#include <string.h>

/* ---- nodes ---- */

static const char *state_of(const struct kvp_cluster_node *node)
{
    if (node->record->draining || node->status.draining) {
        return "draining";
    }
    if (node->own || node->status.up) {
        return node->sick ? "sick" : "up";
    }
    return "down";
}

struct listing {
    const struct kvp_control *control;
    json_t *list;
};

static void add_node(void *arg, const struct kvp_cluster_node *node)
{
    struct listing *listing = arg;
    const struct kvs_remote_status *status = &node->status;
    uint64_t now_ns = kvb_now_ns(listing->control->config.clock);
    json_t *json = json_pack(
        "{s:s, s:b, s:s, s:b, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:I}", "name",
        node->record->name, "own", node->own, "state", state_of(node), "sick", node->sick,
        "capacity_bytes", (json_int_t)node->record->capacity_bytes, "used_bytes",
        (json_int_t)status->used_bytes, "objects", (json_int_t)status->objects, "puts_per_s",
        node->puts, "put_bytes_per_s", node->put_bytes, "gets_per_s", node->gets, "get_bytes_per_s",
        node->get_bytes, "sick_times", (json_int_t)node->sick_times, "calls",
        (json_int_t)node->calls, "calls_failed", (json_int_t)node->failures);
    kvp_json_set_text(json, "address", node->record->address);
    kvp_json_set_text(json, "rdma_address", node->record->rdma);
    kvp_json_set_text(json, "transport", status->by);
    (void)json_object_set_new(json, "last_seen_s",
                              status->heard_ns == 0 ? json_null()
                              : status->heard_ns > now_ns
                                  ? json_real(0)
                                  : json_real((double)(now_ns - status->heard_ns) / 1e9));
    (void)json_array_append_new(listing->list, json);
}

void kvp_read_nodes(struct kvp_control *control, struct kvp_request *request)
{
    struct listing listing = {.control = control, .list = json_array()};
    kvp_cluster_each_node(control->config.cluster, add_node, &listing);
    kvp_control_reply(control, request, 200, json_pack("{s:o}", "nodes", listing.list), 0);
}

/* ---- the cluster ---- */

json_t *kvp_view_describe(const struct kvp_view *view)
{
    const char *state = !view->attached           ? "disconnected"
                        : view->degraded          ? "degraded"
                        : view->operation_id != 0 ? "busy"
                        : view->is_sleeping       ? "asleep"
                        : view->is_paused         ? "paused"
                                                  : "serving";
    json_t *json = json_pack("{s:s}", "state", state);
    kvp_json_set_text(json, "weight_version", view->weight_version);
    kvp_json_set_text(json, "weights_name", view->weights_name);
    return json;
}

/* By name, for people. NULL (what is no text, out of memory): nothing. */
static void insert(json_t *list, json_t *json)
{
    const char *name = json_string_value(json_object_get(json, "instance"));
    if (name == NULL) {
        json_decref(json);
        return;
    }
    size_t at = 0;
    while (at < json_array_size(list) &&
           strcmp(json_string_value(json_object_get(json_array_get(list, at), "instance")), name) <
               0) {
        at++;
    }
    (void)json_array_insert_new(list, at, json);
}

struct instances {
    json_t *list;
    double age_s; /* of what the coordinator told */
};

static json_t *instance_json(const char *instance, const char *tenant, const char *layout,
                             uint64_t token, bool own, double age_s)
{
    return json_pack("{s:s, s:s, s:s, s:I, s:b, s:f}", "instance", instance, "tenant", tenant,
                     "layout", layout, "token", (json_int_t)token, "own", own, "age_s", age_s);
}

/* Of this daemon: as it is now, whatever the coordinator was told. */
static void add_own_instance(void *arg, const struct kvp_view *view)
{
    struct instances *instances = arg;
    json_t *json = instance_json(view->instance, view->tenant, view->layout, 0, true, 0);
    (void)json_object_update_missing_new(json, kvp_view_describe(view));
    insert(instances->list, json);
}

/* The coordinator has it under that token. */
static void complete_own(json_t *list, const struct kvs_instance_record *record)
{
    size_t i;
    json_t *json;
    json_array_foreach(list, i, json)
    {
        const char *name = json_string_value(json_object_get(json, "instance"));
        if (json_is_true(json_object_get(json, "own")) && strcmp(name, record->instance) == 0) {
            kvp_json_set_u64(json, "token", record->token);
            kvp_json_set_text(json, "daemon", record->process);
        }
    }
}

static void add_instance(void *arg, const struct kvs_instance_record *record)
{
    struct instances *instances = arg;
    if (record->own) {
        complete_own(instances->list, record);
        return;
    }
    json_t *json = instance_json(record->instance, record->space->tenant, record->space->layout,
                                 record->token, false, instances->age_s);
    kvp_json_set_text(json, "daemon", record->process);
    json_t *published = json_loads(record->text, 0, NULL); /* of another version? */
    if (json_is_object(published)) {
        (void)json_object_update_missing(json, published);
    }
    json_decref(published);
    insert(instances->list, json);
}

static void count_node(void *arg, const struct kvp_cluster_node *node)
{
    uint32_t *counts = arg; /* all, up */
    counts[0]++;
    counts[1] += node->own || node->status.up;
}

static void add_left_out(const struct kvp_cluster *cluster, json_t *body)
{
    const char *reason = "";
    uint64_t n = kvp_cluster_left_out(cluster, &reason);
    if (n > 0) {
        kvp_json_set_u64(body, "rdma_left_out", n);
        kvp_json_set_text(body, "rdma_left_out_reason", reason);
    }
}

void kvp_read_cluster(struct kvp_control *control, struct kvp_request *request)
{
    const struct kvp_control_config *config = &control->config;
    uint64_t now_ns = kvb_now_ns(config->clock);
    uint64_t away_ns = kvp_cluster_away_ns(config->cluster);
    struct instances instances = {.list = json_array()};
    uint32_t counts[2] = {0, 0};
    if (away_ns != 0 && now_ns > away_ns) {
        instances.age_s = (double)(now_ns - away_ns) / 1e9;
    }
    kvp_cluster_each_node(config->cluster, count_node, counts);
    kvp_fleet_each(config->fleet, add_own_instance, &instances);
    kvs_coordinator_each_instance(config->coordinator, add_instance, &instances);
    json_t *body =
        json_pack("{s:s, s:b, s:i, s:i, s:o}", "coordinator",
                  kvp_cluster_alone(config->cluster) ? "embedded" : "etcd", "coordinator_reachable",
                  kvp_cluster_reachable(config->cluster), "nodes", (int)counts[0], "nodes_up",
                  (int)counts[1], "instances", instances.list);
    add_left_out(config->cluster, body);
    kvp_control_reply(control, request, 200, body, 0);
}
