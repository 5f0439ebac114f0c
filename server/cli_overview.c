/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_call.h"
#include "cli_grid.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_cluster(const json_t *cluster)
{
    bool reachable = json_is_true(json_object_get(cluster, "coordinator_reachable"));
    (void)printf("cluster: coordinator %s%s, %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
                 " nodes up\n",
                 json_string_value(json_object_get(cluster, "coordinator")),
                 reachable ? "" : " (CANNOT BE REACHED)",
                 json_integer_value(json_object_get(cluster, "nodes_up")),
                 json_integer_value(json_object_get(cluster, "nodes")));
    const json_t *left_out = json_object_get(cluster, "rdma_left_out");
    if (left_out != NULL) {
        (void)printf("rdma: the bytes of %" JSON_INTEGER_FORMAT " regions go by tcp: %s\n",
                     json_integer_value(left_out),
                     json_string_value(json_object_get(cluster, "rdma_left_out_reason")));
    }
}

static void print_nodes(const json_t *nodes)
{
    static const char *const head[] = {"NAME",     "ADDRESS",   "STATE",   "BY",
                                       "CAPACITY", "USED",      "OBJECTS", "PUT",
                                       "GET",      "LAST SEEN", NULL};
    struct kvp_grid grid = {0};
    size_t i;
    const json_t *node;
    kvp_grid_head(&grid, head);
    json_array_foreach(nodes, i, node)
    {
        char(*row)[KVP_CELL_MAX] = kvp_grid_row(&grid);
        if (row == NULL) {
            break;
        }
        kvp_cell_text(row[0], json_object_get(node, "name"));
        kvp_cell_text(row[1], json_object_get(node, "address"));
        kvp_cell_text(row[2], json_object_get(node, "state"));
        kvp_cell_text(row[3], json_object_get(node, "transport"));
        kvp_cell_bytes(row[4], json_object_get(node, "capacity_bytes"));
        kvp_cell_bytes(row[5], json_object_get(node, "used_bytes"));
        kvp_cell_count(row[6], json_object_get(node, "objects"));
        kvp_cell_rate(row[7], node, "puts_per_s", "put_bytes_per_s");
        kvp_cell_rate(row[8], node, "gets_per_s", "get_bytes_per_s");
        kvp_cell_ago(row[9], json_object_get(node, "last_seen_s"));
    }
    kvp_grid_print(stdout, "nodes", &grid);
    kvp_grid_cleanup(&grid);
}

static void print_tenants(const json_t *tenants)
{
    static const char *const head[] = {"NAME", "LINEAGES", "USED", "OBJECTS", "QUOTA", NULL};
    struct kvp_grid grid = {0};
    size_t i;
    const json_t *tenant;
    kvp_grid_head(&grid, head);
    json_array_foreach(tenants, i, tenant)
    {
        char(*row)[KVP_CELL_MAX] = kvp_grid_row(&grid);
        if (row == NULL) {
            break;
        }
        kvp_cell_text(row[0], json_object_get(tenant, "name"));
        (void)snprintf(row[1], KVP_CELL_MAX, "%zu",
                       json_array_size(json_object_get(tenant, "lineages")));
        kvp_cell_bytes(row[2], json_object_get(tenant, "used_bytes"));
        kvp_cell_count(row[3], json_object_get(tenant, "objects"));
        kvp_cell_bytes(row[4], json_object_get(tenant, "quota_bytes"));
    }
    kvp_grid_print(stdout, "tenants", &grid);
    kvp_grid_cleanup(&grid);
}

static void print_instances(const json_t *instances)
{
    static const char *const head[] = {"NAME",    "TENANT",    "STATE", "AS OF",
                                       "VERSION", "SHARED AS", NULL};
    struct kvp_grid grid = {0};
    size_t i;
    const json_t *instance;
    kvp_grid_head(&grid, head);
    json_array_foreach(instances, i, instance)
    {
        char(*row)[KVP_CELL_MAX] = kvp_grid_row(&grid);
        if (row == NULL) {
            break;
        }
        kvp_cell_text(row[0], json_object_get(instance, "instance"));
        kvp_cell_text(row[1], json_object_get(instance, "tenant"));
        kvp_cell_text(row[2], json_object_get(instance, "state"));
        kvp_cell_as_of(row[3], json_object_get(instance, "age_s"));
        kvp_cell_text(row[4], json_object_get(instance, "weight_version"));
        kvp_cell_text(row[5], json_object_get(instance, "weights_name"));
    }
    kvp_grid_print(stdout, "instances", &grid);
    kvp_grid_cleanup(&grid);
}

static void rank_state(char *cell, const json_t *rank)
{
    const char *tag;
    json_t *residency;
    size_t used = 0;
    if (!json_is_true(json_object_get(rank, "attached"))) {
        (void)snprintf(cell, KVP_CELL_MAX, "GONE");
        return;
    }
    if (!json_is_true(json_object_get(rank, "answers"))) {
        (void)snprintf(cell, KVP_CELL_MAX, "DOES NOT ANSWER");
        return;
    }
    kvp_cell_text(cell, NULL);
    json_object_foreach(json_object_get(rank, "tags"), tag, residency)
    {
        int n = snprintf(cell + used, KVP_CELL_MAX - used, "%s%s %s", used > 0 ? ", " : "", tag,
                         json_string_value(residency));
        if (n < 0 || (size_t)n >= KVP_CELL_MAX - used) {
            break;
        }
        used += (size_t)n;
    }
}

/* What keeps GPU memory alive, in one number: 0 asleep. */
static void references(char *cell, const json_t *held)
{
    const char *kind;
    json_t *n;
    json_int_t sum = 0;
    json_object_foreach((json_t *)(uintptr_t)held, kind, n)
    {
        sum += json_integer_value(n);
    }
    if (held != NULL) {
        (void)snprintf(cell, KVP_CELL_MAX, "%" JSON_INTEGER_FORMAT, sum);
    } else {
        kvp_cell_text(cell, NULL);
    }
}

static void print_ranks(const json_t *instances)
{
    static const char *const head[] = {"INSTANCE", "RANK", "STATE", "REGIONS",    "BYTES", "HELPER",
                                       "HOLDS",    "PATH", "KILLS", "LAST CAUSE", NULL};
    struct kvp_grid grid = {0};
    size_t i;
    size_t k;
    const json_t *instance;
    const json_t *rank;
    kvp_grid_head(&grid, head);
    json_array_foreach(instances, i, instance)
    {
        json_array_foreach(json_object_get(instance, "rank_states"), k, rank)
        {
            char(*row)[KVP_CELL_MAX] = kvp_grid_row(&grid);
            if (row == NULL) {
                break;
            }
            const json_t *helper = json_object_get(rank, "helper");
            kvp_cell_text(row[0], json_object_get(instance, "instance"));
            kvp_cell_count(row[1], json_object_get(rank, "rank"));
            rank_state(row[2], rank);
            kvp_cell_count(row[3], json_object_get(rank, "registered_regions"));
            kvp_cell_bytes(row[4], json_object_get(rank, "registered_bytes"));
            kvp_cell_count(row[5], json_object_get(helper, "pid"));
            references(row[6], json_object_get(helper, "held"));
            kvp_cell_text(row[7], json_object_get(helper, "path"));
            kvp_cell_count(row[8], json_object_get(helper, "kills"));
            kvp_cell_text(row[9], json_object_get(helper, "last_cause"));
        }
    }
    if (grid.rows > 1) {
        kvp_grid_print(stdout, "ranks of this daemon", &grid);
    }
    kvp_grid_cleanup(&grid);
}

json_t *kvp_call_collect(struct kvp_call *call, int *rc_p)
{
    static const struct {
        const char *path, *list;
    } parts[] = {{"/v1/kvplane/cluster", "instances"},
                 {"/v1/kvplane/nodes", "nodes"},
                 {"/v1/kvplane/tenants", "tenants"},
                 {"/v1/kvplane/instances", "instances"}};
    json_t *all = json_object();
    *rc_p = KVP_CLI_DONE;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && *rc_p == KVP_CLI_DONE; i++) {
        json_t *part = kvp_call_fetch_all(call, parts[i].path, parts[i].list, rc_p);
        (void)json_object_del(part, "next"); /* all is here */
        if (i == 0) {                        /* the number of nodes would hide the nodes */
            json_t *cluster = json_object();
            (void)json_object_set(all, "instances", json_object_get(part, "instances"));
            (void)json_object_del(part, "instances");
            (void)json_object_update(cluster, part);
            (void)json_object_set_new(all, "cluster", cluster);
        } else if (i == 3) { /* in full, but only those of this daemon */
            (void)json_object_set(all, "own_instances", json_object_get(part, "instances"));
        } else {
            (void)json_object_update(all, part);
        }
        json_decref(part);
    }
    if (*rc_p != KVP_CLI_DONE) {
        json_decref(all);
        return NULL;
    }
    return all;
}

int kvp_cli_overview(struct kvp_call *call, bool json)
{
    int rc;
    json_t *all = kvp_call_collect(call, &rc);
    if (all != NULL && json) {
        (void)json_dumpf(all, stdout, JSON_COMPACT);
        (void)printf("\n");
    } else if (all != NULL) {
        print_cluster(json_object_get(all, "cluster"));
        print_nodes(json_object_get(all, "nodes"));
        print_tenants(json_object_get(all, "tenants"));
        print_instances(json_object_get(all, "instances"));
        print_ranks(json_object_get(all, "own_instances"));
    }
    json_decref(all);
    return rc;
}
