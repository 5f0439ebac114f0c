/* SPDX-License-Identifier: Apache-2.0 */
#include "control/pages.h"

#include <inttypes.h>
#include <stdio.h>
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

static json_t *age_json(const struct kvp_control *control, uint64_t at_ns)
{
    uint64_t now_ns = kvb_now_ns(control->config.clock);
    return at_ns == 0 ? json_null()
                      : json_real(at_ns > now_ns ? 0 : (double)(now_ns - at_ns) / 1e9);
}

static json_t *node_json(const struct kvp_control *control, const struct kvp_cluster_node *node)
{
    const struct kvs_remote_status *status = &node->status;
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
    (void)json_object_set_new(json, "last_seen_s", age_json(control, status->heard_ns));
    return json;
}

struct listing {
    const struct kvp_control *control;
    struct kvp_page page;
};

static void add_node(void *arg, const struct kvp_cluster_node *node)
{
    struct listing *listing = arg;
    if (kvp_page_wants(&listing->page, node->record->name)) {
        kvp_page_add(&listing->page, node->record->name, node_json(listing->control, node));
    }
}

void kvp_read_nodes(struct kvp_control *control, struct kvp_request *request)
{
    struct listing listing = {.control = control};
    if (kvp_page_begin(control, request, "nodes", &listing.page)) {
        kvp_cluster_each_node(control->config.cluster, add_node, &listing);
        kvp_control_reply(control, request, 200, kvp_page_end(&listing.page), 0);
    }
}

/* ---- one of them ---- */

static json_t *way_json(const struct kvp_control *control, const struct kvs_way_status *way)
{
    json_t *json = json_pack("{s:s, s:b, s:I, s:o}", "transport", way->by, "up", way->up, "lanes",
                             (json_int_t)way->stats.lanes, "last_heard_s",
                             age_json(control, way->stats.heard_ns));
    if (!way->up && way->why != KVB_OK) {
        kvp_json_set_text(json, "down_because", kvb_status_label(way->why));
    }
#define X(name, what) kvp_json_set_u64(json, #name, way->stats.name);
    KVT_PEER_COUNTERS(X)
#undef X
    return json;
}

static json_t *node_detail_json(const struct kvp_control *control,
                                const struct kvp_cluster_node *node)
{
    json_t *json = node_json(control, node);
    json_t *ways = json_array();
    json_t *failure = json_null();
    for (uint32_t i = 0; i < node->nways; i++) {
        (void)json_array_append_new(ways, way_json(control, &node->ways[i]));
    }
    if (node->last_failure != KVB_OK) {
        failure = json_pack("{s:s, s:s, s:o}", "status", kvb_status_label(node->last_failure),
                            "message", kvb_status_text(node->last_failure), "age_s",
                            age_json(control, node->failed_ns));
    }
    (void)json_object_update_new(
        json, json_pack("{s:b, s:b, s:o, s:o, s:I, s:o, s:o}", "used", node->used, "draining",
                        node->record->draining || node->status.draining, "incarnation",
                        json_sprintf("%016" PRIx64, node->record->incarnation), "sick_for_s",
                        age_json(control, node->sick_ns), "in_flight", (json_int_t)node->in_flight,
                        "last_failure", failure, "ways", ways));
    return json;
}

struct sought {
    const struct kvp_control *control;
    const char *name;
    json_t *found; /* NULL: not yet */
};

static void take_node(void *arg, const struct kvp_cluster_node *node)
{
    struct sought *sought = arg;
    if (sought->found == NULL && strcmp(node->record->name, sought->name) == 0) {
        sought->found = node_detail_json(sought->control, node);
    }
}

void kvp_read_node(struct kvp_control *control, struct kvp_request *request)
{
    struct sought sought = {.control = control, .name = request->path_arg};
    kvp_cluster_each_node(control->config.cluster, take_node, &sought);
    if (sought.found != NULL) {
        kvp_control_reply(control, request, 200, sought.found, 0);
    } else {
        kvp_control_reply_error(control, request, KVB_ERR_NOT_FOUND, "path.name",
                                "there is no node of that name");
    }
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

struct instances {
    struct kvp_page page;
    double age_s; /* of what the coordinator told */
};

/* By name; of those that share one by their tokens. */
static void insert(struct instances *instances, const char *name, uint64_t token, json_t *json)
{
    char key[KVP_PAGE_KEY_MAX];
    (void)snprintf(key, sizeof key, "%s/%020" PRIu64, name, token);
    if (json != NULL && kvp_page_wants(&instances->page, key)) { /* NULL: it was no text */
        kvp_page_add(&instances->page, key, json);
    } else {
        json_decref(json);
    }
}

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
    insert(instances, view->instance, 0, json);
}

/* The coordinator has it under that token. */
static void complete_own(const struct kvp_page *page, const struct kvs_instance_record *record)
{
    for (uint32_t i = 0; i < page->n; i++) {
        json_t *json = page->rows[i].json;
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
        complete_own(&instances->page, record);
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
    insert(instances, record->instance, record->token, json);
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
    struct instances instances = {0};
    uint32_t counts[2] = {0, 0};
    if (away_ns != 0 && now_ns > away_ns) {
        instances.age_s = (double)(now_ns - away_ns) / 1e9;
    }
    if (!kvp_page_begin(control, request, "instances", &instances.page)) {
        return;
    }
    kvp_cluster_each_node(config->cluster, count_node, counts);
    kvp_fleet_each(config->fleet, add_own_instance, &instances);
    kvs_coordinator_each_instance(config->coordinator, add_instance, &instances);
    json_t *body = json_pack("{s:s, s:b, s:i, s:i}", "coordinator",
                             kvp_cluster_alone(config->cluster) ? "embedded" : "etcd",
                             "coordinator_reachable", kvp_cluster_reachable(config->cluster),
                             "nodes", (int)counts[0], "nodes_up", (int)counts[1]);
    add_left_out(config->cluster, body);
    (void)json_object_update_new(body, kvp_page_end(&instances.page));
    kvp_control_reply(control, request, 200, body, 0);
}
