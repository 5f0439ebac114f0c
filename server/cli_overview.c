/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_call.h"
#include "cli_frame.h"
#include "cli_grid.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_cluster(const json_t *cluster)
{
    bool reachable = json_is_true(json_object_get(cluster, "coordinator_reachable"));
    char text[KVP_CELL_MAX * 4];
    (void)snprintf(text, sizeof text, "%s", kvp_text_of(json_object_get(cluster, "coordinator")));
    kvb_utf8_clean(text);
    (void)printf("cluster: coordinator %s%s, %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
                 " nodes up\n",
                 text, reachable ? "" : " (CANNOT BE REACHED)",
                 json_integer_value(json_object_get(cluster, "nodes_up")),
                 json_integer_value(json_object_get(cluster, "nodes")));
    const json_t *left_out = json_object_get(cluster, "rdma_left_out");
    if (left_out != NULL) {
        (void)snprintf(text, sizeof text, "%s",
                       kvp_text_of(json_object_get(cluster, "rdma_left_out_reason")));
        kvb_utf8_clean(text);
        (void)printf("rdma: the bytes of %" JSON_INTEGER_FORMAT " regions go by tcp: %s\n",
                     json_integer_value(left_out), text);
    }
}

static const struct kvp_column of_nodes[] = {
    {"NAME", "name", kvp_cell_text, false},
    {"ADDRESS", "address", kvp_cell_text, false},
    {"STATE", "state", kvp_cell_text, false},
    {"BY", "transport", kvp_cell_text, false},
    {"CAPACITY", "capacity_bytes", kvp_cell_bytes, true},
    {"USED", "used_bytes", kvp_cell_bytes, true},
    {"OBJECTS", "objects", kvp_cell_count, true},
    {"PUT", "", kvp_cell_puts, false},
    {"GET", "", kvp_cell_gets, false},
    {"LAST SEEN", "last_seen_s", kvp_cell_ago, true},
    {.head = NULL},
};

static const struct kvp_column of_tenants[] = {
    {"NAME", "name", kvp_cell_text, false},         {"LINEAGES", "lineages", kvp_cell_length, true},
    {"USED", "used_bytes", kvp_cell_bytes, true},   {"OBJECTS", "objects", kvp_cell_count, true},
    {"QUOTA", "quota_bytes", kvp_cell_bytes, true}, {.head = NULL},
};

static const struct kvp_column of_instances[] = {
    {"NAME", "instance", kvp_cell_text, false},
    {"TENANT", "tenant", kvp_cell_text, false},
    {"STATE", "state", kvp_cell_text, false},
    {"AS OF", "age_s", kvp_cell_as_of, false},
    {"VERSION", "weight_version", kvp_cell_text, false},
    {"SHARED AS", "weights_name", kvp_cell_text, false},
    {.head = NULL},
};

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
                         kvp_text_of(residency));
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

static const struct kvp_column of_ranks[] = {
    {"INSTANCE", "instance", kvp_cell_text, false},
    {"RANK", "rank", kvp_cell_count, true},
    {"STATE", "", rank_state, false},
    {"REGIONS", "registered_regions", kvp_cell_count, true},
    {"BYTES", "registered_bytes", kvp_cell_bytes, true},
    {"HELPER", "helper.pid", kvp_cell_count, true},
    {"HOLDS", "helper.held", references, true},
    {"PATH", "helper.path", kvp_cell_text, false},
    {"KILLS", "helper.kills", kvp_cell_count, true},
    {"LAST CAUSE", "helper.last_cause", kvp_cell_text, false},
    {.head = NULL},
};

static void print_ranks(const json_t *instances)
{
    size_t i;
    size_t k;
    const json_t *instance;
    json_t *rank;
    json_t *ranks = json_array();
    json_array_foreach(instances, i, instance)
    {
        json_array_foreach(json_object_get(instance, "rank_states"), k, rank)
        {
            (void)json_object_set(rank, "instance", json_object_get(instance, "instance"));
            (void)json_array_append(ranks, rank);
        }
    }
    if (json_array_size(ranks) > 0) {
        kvp_table_print(stdout, "ranks of this daemon", false, of_ranks, ranks);
    }
    json_decref(ranks);
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
        kvp_table_print(stdout, "nodes", false, of_nodes, json_object_get(all, "nodes"));
        kvp_table_print(stdout, "tenants", false, of_tenants, json_object_get(all, "tenants"));
        kvp_table_print(stdout, "instances", false, of_instances,
                        json_object_get(all, "instances"));
        kvp_put_driven(json_object_get(all, "own_instances"), stdout);
        print_ranks(json_object_get(all, "own_instances"));
    }
    json_decref(all);
    return rc;
}
