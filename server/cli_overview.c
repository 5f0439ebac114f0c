/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_call.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

enum { COLUMNS_MAX = 10, CELL_MAX = 72 };

struct table {
    size_t columns;
    size_t rows;
    size_t cap;
    char (*cells)[COLUMNS_MAX][CELL_MAX]; /* NULL: out of memory, or no row yet */
};

/* A row of empty cells; NULL: out of memory. */
static char (*table_row(struct table *table))[CELL_MAX]
{
    if (table->rows == table->cap) {
        size_t cap = table->cap * 2 + 16;
        char(*cells)[COLUMNS_MAX][CELL_MAX] = realloc(table->cells, cap * sizeof *cells);
        if (cells == NULL) {
            return NULL;
        }
        table->cells = cells;
        table->cap = cap;
    }
    memset(table->cells[table->rows], 0, sizeof *table->cells);
    return table->cells[table->rows++];
}

static void table_print(const char *title, const struct table *table)
{
    size_t widths[COLUMNS_MAX] = {0};
    for (size_t i = 0; i < table->rows; i++) {
        for (size_t k = 0; k < table->columns; k++) {
            size_t len = strlen(table->cells[i][k]);
            widths[k] = len > widths[k] ? len : widths[k];
        }
    }
    (void)printf("\n%s\n", title);
    for (size_t i = 0; i < table->rows; i++) {
        for (size_t k = 0; k < table->columns; k++) {
            bool last = k + 1 == table->columns;
            (void)printf("  %-*s", last ? 0 : (int)widths[k], table->cells[i][k]);
        }
        (void)printf("\n");
    }
}

static void table_head(struct table *table, const char *const *names)
{
    char(*row)[CELL_MAX] = table_row(table);
    for (table->columns = 0; names[table->columns] != NULL; table->columns++) {
        if (row != NULL) {
            (void)snprintf(row[table->columns], CELL_MAX, "%s", names[table->columns]);
        }
    }
}

/* ---- cells ---- */

static void text(char *cell, const json_t *value)
{
    const char *string = json_string_value(value);
    (void)snprintf(cell, CELL_MAX, "%s", string != NULL && string[0] != '\0' ? string : "-");
}

static void count(char *cell, const json_t *value)
{
    if (json_is_number(value)) {
        (void)snprintf(cell, CELL_MAX, "%.0f", json_number_value(value));
    } else {
        text(cell, NULL);
    }
}

static void bytes(char *cell, const json_t *value)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double number = json_number_value(value);
    size_t unit = 0;
    if (!json_is_number(value)) {
        text(cell, NULL);
        return;
    }
    for (; number >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++) {
        number /= 1024;
    }
    bool whole = number == (double)(uint64_t)number;
    (void)snprintf(cell, CELL_MAX, whole ? "%.0f %s" : "%.1f %s", number, units[unit]);
}

static void rate(char *cell, const json_t *object, const char *per_s, const char *bytes_per_s)
{
    char of_bytes[CELL_MAX];
    bytes(of_bytes, json_object_get(object, bytes_per_s));
    (void)snprintf(cell, CELL_MAX, "%.0f/s %.40s/s",
                   json_number_value(json_object_get(object, per_s)), of_bytes);
}

static void ago(char *cell, const json_t *value)
{
    if (json_is_number(value)) {
        (void)snprintf(cell, CELL_MAX, "%.1f s ago", json_number_value(value));
    } else {
        (void)snprintf(cell, CELL_MAX, "never");
    }
}

static void as_of(char *cell, const json_t *value)
{
    if (json_number_value(value) > 0) {
        ago(cell, value);
    } else {
        (void)snprintf(cell, CELL_MAX, "now");
    }
}

/* ---- the overview ---- */

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
    struct table table = {0};
    size_t i;
    const json_t *node;
    table_head(&table, head);
    json_array_foreach(nodes, i, node)
    {
        char(*row)[CELL_MAX] = table_row(&table);
        if (row == NULL) {
            break;
        }
        text(row[0], json_object_get(node, "name"));
        text(row[1], json_object_get(node, "address"));
        text(row[2], json_object_get(node, "state"));
        text(row[3], json_object_get(node, "transport"));
        bytes(row[4], json_object_get(node, "capacity_bytes"));
        bytes(row[5], json_object_get(node, "used_bytes"));
        count(row[6], json_object_get(node, "objects"));
        rate(row[7], node, "puts_per_s", "put_bytes_per_s");
        rate(row[8], node, "gets_per_s", "get_bytes_per_s");
        ago(row[9], json_object_get(node, "last_seen_s"));
    }
    table_print("nodes", &table);
    free(table.cells);
}

static void print_tenants(const json_t *tenants)
{
    static const char *const head[] = {"NAME", "LINEAGES", "USED", "OBJECTS", "QUOTA", NULL};
    struct table table = {0};
    size_t i;
    const json_t *tenant;
    table_head(&table, head);
    json_array_foreach(tenants, i, tenant)
    {
        char(*row)[CELL_MAX] = table_row(&table);
        if (row == NULL) {
            break;
        }
        text(row[0], json_object_get(tenant, "name"));
        (void)snprintf(row[1], CELL_MAX, "%zu",
                       json_array_size(json_object_get(tenant, "lineages")));
        bytes(row[2], json_object_get(tenant, "used_bytes"));
        count(row[3], json_object_get(tenant, "objects"));
        bytes(row[4], json_object_get(tenant, "quota_bytes"));
    }
    table_print("tenants", &table);
    free(table.cells);
}

static void print_instances(const json_t *instances)
{
    static const char *const head[] = {"NAME",    "TENANT",    "STATE", "AS OF",
                                       "VERSION", "SHARED AS", NULL};
    struct table table = {0};
    size_t i;
    const json_t *instance;
    table_head(&table, head);
    json_array_foreach(instances, i, instance)
    {
        char(*row)[CELL_MAX] = table_row(&table);
        if (row == NULL) {
            break;
        }
        text(row[0], json_object_get(instance, "instance"));
        text(row[1], json_object_get(instance, "tenant"));
        text(row[2], json_object_get(instance, "state"));
        as_of(row[3], json_object_get(instance, "age_s"));
        text(row[4], json_object_get(instance, "weight_version"));
        text(row[5], json_object_get(instance, "weights_name"));
    }
    table_print("instances", &table);
    free(table.cells);
}

static void rank_state(char *cell, const json_t *rank)
{
    const char *tag;
    json_t *residency;
    size_t used = 0;
    if (!json_is_true(json_object_get(rank, "attached"))) {
        (void)snprintf(cell, CELL_MAX, "GONE");
        return;
    }
    if (!json_is_true(json_object_get(rank, "answers"))) {
        (void)snprintf(cell, CELL_MAX, "DOES NOT ANSWER");
        return;
    }
    text(cell, NULL);
    json_object_foreach(json_object_get(rank, "tags"), tag, residency)
    {
        int n = snprintf(cell + used, CELL_MAX - used, "%s%s %s", used > 0 ? ", " : "", tag,
                         json_string_value(residency));
        if (n < 0 || (size_t)n >= CELL_MAX - used) {
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
        (void)snprintf(cell, CELL_MAX, "%" JSON_INTEGER_FORMAT, sum);
    } else {
        text(cell, NULL);
    }
}

static void print_ranks(const json_t *instances)
{
    static const char *const head[] = {"INSTANCE", "RANK", "STATE", "REGIONS",    "BYTES", "HELPER",
                                       "HOLDS",    "PATH", "KILLS", "LAST CAUSE", NULL};
    struct table table = {0};
    size_t i;
    size_t k;
    const json_t *instance;
    const json_t *rank;
    table_head(&table, head);
    json_array_foreach(instances, i, instance)
    {
        json_array_foreach(json_object_get(instance, "rank_states"), k, rank)
        {
            char(*row)[CELL_MAX] = table_row(&table);
            if (row == NULL) {
                break;
            }
            const json_t *regions = json_object_get(rank, "regions");
            const json_t *helper = json_object_get(rank, "helper");
            text(row[0], json_object_get(instance, "instance"));
            count(row[1], json_object_get(rank, "rank"));
            rank_state(row[2], rank);
            count(row[3], json_object_get(regions, "registered"));
            bytes(row[4], json_object_get(regions, "bytes"));
            count(row[5], json_object_get(helper, "pid"));
            references(row[6], json_object_get(helper, "held"));
            text(row[7], json_object_get(helper, "path"));
            count(row[8], json_object_get(helper, "kills"));
            text(row[9], json_object_get(helper, "last_cause"));
        }
    }
    if (table.rows > 1) {
        table_print("ranks of this daemon", &table);
    }
    free(table.cells);
}

/* An answer's object; NULL: *rc_p says why, it was told. */
static json_t *fetch(struct kvp_call *call, const char *path, int *rc_p)
{
    long code = 0;
    *rc_p = kvp_call_send(call, false, path, &code);
    if (*rc_p != KVP_CLI_DONE) {
        return NULL;
    }
    json_t *json = code == 200 && call->answer != NULL ? json_loads(call->answer, 0, NULL) : NULL;
    if (!json_is_object(json)) {
        json_decref(json);
        *rc_p = kvp_call_refused(call, code);
        return NULL;
    }
    return json;
}

int kvp_cli_overview(struct kvp_call *call, bool json)
{
    static const char *const paths[] = {"/v1/kvplane/cluster", "/v1/kvplane/nodes",
                                        "/v1/kvplane/tenants", "/v1/kvplane/instances"};
    int rc = KVP_CLI_DONE;
    json_t *all = json_object();
    for (size_t i = 0; i < sizeof paths / sizeof paths[0] && rc == KVP_CLI_DONE; i++) {
        json_t *part = fetch(call, paths[i], &rc);
        if (i == 0) { /* the number of nodes would hide the nodes */
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
    if (rc == KVP_CLI_DONE && json) {
        (void)json_dumpf(all, stdout, JSON_COMPACT);
        (void)printf("\n");
    } else if (rc == KVP_CLI_DONE) {
        print_cluster(json_object_get(all, "cluster"));
        print_nodes(json_object_get(all, "nodes"));
        print_tenants(json_object_get(all, "tenants"));
        print_instances(json_object_get(all, "instances"));
        print_ranks(json_object_get(all, "own_instances"));
    }
    json_decref(all);
    return rc;
}
