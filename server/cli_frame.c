/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_frame.h"

#include "cli_grid.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char *word(const json_t *object, const char *key)
{
    return kvp_text_of(json_object_get(object, key));
}

static void put_table(const struct kvp_frame *frame, const struct kvp_column *columns,
                      const json_t *rows, FILE *out)
{
    (void)fprintf(out, "\n");
    kvp_table_print(out, NULL, frame->bold, columns, rows);
}

/* ---- instances ---- */

/* running, or why not. */
static void put_scheduler(char *cell, const json_t *instance)
{
    const json_t *stopped_by = json_object_get(instance, "stopped_by");
    size_t i;
    const json_t *by;
    size_t used;
    if (!json_is_true(json_object_get(instance, "attached"))) {
        (void)snprintf(cell, KVP_CELL_MAX, "GONE");
        return;
    }
    (void)snprintf(cell, KVP_CELL_MAX, "%s%.32s",
                   json_is_true(json_object_get(instance, "degraded")) ? "DEGRADED, " : "",
                   word(instance, "scheduler"));
    json_array_foreach(stopped_by, i, by)
    {
        used = strlen(cell);
        (void)snprintf(cell + used, KVP_CELL_MAX - used, "%s%s", i == 0 ? " by " : ", ",
                       kvp_text_of(by));
    }
}

static void put_tags(char *cell, const json_t *tags)
{
    const char *tag;
    json_t *residency;
    json_object_foreach((json_t *)(uintptr_t)tags, tag, residency)
    {
        size_t used = strlen(cell);
        (void)snprintf(cell + used, KVP_CELL_MAX - used, "%s%s %s", used > 0 ? ", " : "", tag,
                       kvp_text_of(residency));
    }
}

/* Of a fingerprint the beginning is enough. */
static void put_name(char *cell, const json_t *name)
{
    kvp_cell_text(cell, name);
    cell[24] = '\0';
}

static const struct kvp_column of_instances[] = {
    {"INSTANCE", "instance", kvp_cell_text, false},
    {"TENANT", "tenant", kvp_cell_text, false},
    {"SCHEDULER", "", put_scheduler, false},
    {"MEMORY", "tags", put_tags, false},
    {"RUNNING", "load.running", kvp_cell_count, true},
    {"WAITING", "load.waiting", kvp_cell_count, true},
    {"BLOCKS", "load.blocks_held", kvp_cell_count, true},
    {"VERSION", "weight_version", kvp_cell_text, false},
    {"SHARED AS", "lineage.weights_name", put_name, false},
    {.head = NULL},
};

void kvp_put_driven(const json_t *instances, FILE *out)
{
    size_t i;
    const json_t *instance;
    json_array_foreach(instances, i, instance)
    {
        const json_t *driven = json_object_get(instance, "driven");
        char text[512];
        if (driven != NULL) {
            (void)snprintf(text, sizeof text, "%.64s: %.16s at %.256s, no KV moves this way",
                           word(instance, "instance"), word(driven, "kind"), word(driven, "url"));
            kvb_utf8_clean(text);
            (void)fprintf(out, "%s\n", text);
        }
    }
}

static void put_instances(const struct kvp_frame *frame, const json_t *instances, FILE *out)
{
    size_t i;
    const json_t *instance;
    put_table(frame, of_instances, instances, out);
    kvp_put_driven(instances, out);
    json_array_foreach(instances, i, instance)
    {
        const json_t *why = json_object_get(instance, "not_ready");
        char text[KVP_CELL_MAX * 2];
        if (why != NULL) {
            (void)snprintf(text, sizeof text, "%.64s: %s", word(instance, "instance"),
                           kvp_text_of(why));
            kvb_utf8_clean(text);
            (void)fprintf(out, "%s\n", text);
        }
    }
}

/* ---- queues ---- */

json_t *kvp_frame_queues(const char *metrics)
{
    static const char *const queues[] = {"put", "get", "lookup"};
    static const char *const states[] = {"queued", "running"};
    json_t *all = json_object();
    for (size_t i = 0; i < sizeof queues / sizeof queues[0]; i++) {
        json_t *one = json_object();
        for (size_t k = 0; k < sizeof states / sizeof states[0]; k++) {
            char name[64];
            char label[64];
            double sum = 0;
            (void)snprintf(name, sizeof name, "\nkvplane_tasks_%s{", states[k]);
            (void)snprintf(label, sizeof label, "queue=\"%s\"", queues[i]);
            for (const char *at = metrics; (at = strstr(at, name)) != NULL; at++) {
                const char *end = strchr(at, '}');
                bool is = end != NULL && memmem(at, (size_t)(end - at), label, strlen(label));
                sum += is ? strtod(end + 1, NULL) : 0;
            }
            (void)json_object_set_new(one, states[k], json_real(sum));
        }
        (void)json_object_set_new(all, queues[i], one);
    }
    return all;
}

static void put_queues(const json_t *queues, FILE *out)
{
    const char *name;
    json_t *queue;
    const char *before = "\ntransfers: ";
    json_object_foreach((json_t *)(uintptr_t)queues, name, queue)
    {
        (void)fprintf(out, "%s%s %.0f queued, %.0f running", before, name,
                      json_number_value(json_object_get(queue, "queued")),
                      json_number_value(json_object_get(queue, "running")));
        before = "; ";
    }
    (void)fprintf(out, "%s", queues != NULL ? "\n" : "");
}

/* ---- nodes ---- */

/* And what part of its capacity that is. */
static void put_used(char *cell, const json_t *node)
{
    double capacity = json_number_value(json_object_get(node, "capacity_bytes"));
    double used = json_number_value(json_object_get(node, "used_bytes"));
    kvp_cell_bytes(cell, json_object_get(node, "used_bytes"));
    size_t len = strlen(cell);
    (void)snprintf(cell + len, KVP_CELL_MAX - len, " %.0f%%",
                   capacity > 0 ? 100 * used / capacity : 0);
}

static const struct kvp_column of_nodes[] = {
    {"NODE", "name", kvp_cell_text, false},
    {"STATE", "state", kvp_cell_text, false},
    {"BY", "transport", kvp_cell_text, false},
    {"CAPACITY", "capacity_bytes", kvp_cell_bytes, true},
    {"USED", "", put_used, true},
    {"OBJECTS", "objects", kvp_cell_count, true},
    {"PUT", "", kvp_cell_puts, false},
    {"GET", "", kvp_cell_gets, false},
    {.head = NULL},
};

/* ---- operations ---- */

/* The progress of that operation; what belongs to none of those that run is free. */
static struct kvp_progress *progress_of(struct kvp_frame *frame, const json_t *operations,
                                        json_int_t id)
{
    size_t free_one = KVP_FRAME_OPERATIONS;
    for (size_t k = 0; k < KVP_FRAME_OPERATIONS; k++) {
        bool used = false;
        size_t i;
        const json_t *operation;
        json_array_foreach(operations, i, operation)
        {
            used = used ||
                   (strcmp(word(operation, "status"), "running") == 0 &&
                    json_integer_value(json_object_get(operation, "id")) == frame->running[k].id);
        }
        if (used && frame->running[k].id == id) {
            return &frame->running[k].progress;
        }
        free_one = !used && free_one == KVP_FRAME_OPERATIONS ? k : free_one;
    }
    if (free_one == KVP_FRAME_OPERATIONS) {
        return NULL;
    }
    memset(&frame->running[free_one], 0, sizeof frame->running[0]);
    frame->running[free_one].id = id;
    return &frame->running[free_one].progress;
}

static const struct kvp_column of_operations[] = {
    {"ENDED", "id", kvp_cell_count, false},
    {"OPERATION", "operation", kvp_cell_text, false},
    {"INSTANCE", "instance", kvp_cell_text, false},
    {"RESULT", "result", kvp_cell_text, false},
    {"TOOK", "elapsed_ms", kvp_cell_took, true},
    {"MESSAGE", "message", kvp_cell_text, false},
    {.head = NULL},
};

static void put_operations(struct kvp_frame *frame, const json_t *operations, size_t width,
                           FILE *out)
{
    size_t i;
    json_t *ended;
    const json_t *operation;
    bool any = false;
    char line[KVP_PROGRESS_MAX];
    json_array_foreach(operations, i, operation)
    {
        struct kvp_progress *progress = NULL;
        if (strcmp(word(operation, "status"), "running") == 0) {
            progress = progress_of(frame, operations,
                                   json_integer_value(json_object_get(operation, "id")));
        }
        if (progress != NULL) {
            kvp_progress_line(progress, operation, width, line);
            (void)fprintf(out, "%s%s\n", any ? "" : "\n", line);
            any = true;
        }
    }
    json_t *latest = json_array();
    json_array_foreach(operations, i, ended)
    {
        if (strcmp(word(ended, "status"), "running") != 0 &&
            json_array_size(latest) < KVP_FRAME_OPERATIONS) {
            (void)json_array_append(latest, ended);
        }
    }
    put_table(frame, of_operations, latest, out);
    json_decref(latest);
}

void kvp_frame_write(struct kvp_frame *frame, const json_t *all, size_t width, FILE *out)
{
    const json_t *cluster = json_object_get(all, "cluster");
    bool reachable = json_is_true(json_object_get(cluster, "coordinator_reachable"));
    char coordinator[KVP_CELL_MAX];
    kvp_cell_text(coordinator, json_object_get(cluster, "coordinator"));
    (void)fprintf(
        out, "coordinator %s%s, %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT " nodes up\n",
        coordinator, reachable ? "" : " (CANNOT BE REACHED)",
        json_integer_value(json_object_get(cluster, "nodes_up")),
        json_integer_value(json_object_get(cluster, "nodes")));
    put_instances(frame, json_object_get(all, "own_instances"), out);
    put_queues(json_object_get(all, "queues"), out);
    put_table(frame, of_nodes, json_object_get(all, "nodes"), out);
    put_operations(frame, json_object_get(all, "operations"), width, out);
}

size_t kvp_frame_clip(const char *text, size_t rows, size_t columns, FILE *out)
{
    size_t row = 0;
    while (*text != '\0' && row < rows) {
        size_t column = 0;
        if (row > 0) {
            (void)fprintf(out, "\r\n");
        }
        for (; *text != '\0' && *text != '\n'; text++) {
            if (*text == '\x1b') { /* ESC [ digits m */
                const char *end = strchr(text, 'm');
                if (end == NULL) {
                    break;
                }
                (void)fprintf(out, "%.*s", (int)(end - text + 1), text);
                text = end;
                continue;
            }
            bool begins = ((unsigned char)*text & 0xc0) != 0x80; /* a character */
            column += begins;
            if (column <= columns) {
                (void)fputc(*text, out);
            }
        }
        (void)fprintf(out, "\x1b[K");
        text += *text == '\n';
        row++;
    }
    return row;
}
