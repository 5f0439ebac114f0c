/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_progress.h"

#include "cli_grid.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

enum { BAR = 20 };

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static const char *word(const json_t *object, const char *key, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL && text[0] != '\0' ? text : otherwise;
}

/* A part of one, as a bar. */
static void put_bar(char bar[BAR + 1], double part)
{
    memset(bar, '.', BAR);
    memset(bar, '#', part >= 1 ? BAR : part > 0 ? (size_t)(part * BAR) : 0);
    bar[BAR] = '\0';
}

/* Of the drain: bytes if there are any, else tasks. 0 to 1. */
static double done_part(const struct kvp_progress *progress, double tasks, double bytes)
{
    return progress->most_bytes > 0   ? 1 - bytes / progress->most_bytes
           : progress->most_tasks > 0 ? 1 - tasks / progress->most_tasks
                                      : 0;
}

static void put_drain(char *out, size_t cap, double part, double tasks, double bytes)
{
    char bar[BAR + 1];
    char left[KVP_CELL_MAX];
    json_t *amount = json_real(bytes);
    put_bar(bar, part);
    kvp_cell_bytes(left, amount);
    json_decref(amount);
    (void)snprintf(out, cap, "  [%s] %.0f task%s, %s left", bar, tasks, tasks == 1 ? "" : "s",
                   left);
}

void kvp_progress_line(struct kvp_progress *progress, const json_t *operation, size_t width,
                       char line[KVP_PROGRESS_MAX])
{
    const json_t *drain = json_object_get(operation, "drain");
    double tasks = number(drain, "queued") + number(drain, "running");
    double bytes = number(drain, "bytes_left");
    double age_ms = number(operation, "elapsed_ms");
    double all = number(operation, "instances_all");
    double done = number(operation, "instances_done");
    char of_drain[KVP_PROGRESS_MAX] = "";
    char of_all[KVP_PROGRESS_MAX] = "";
    char rest[KVP_PROGRESS_MAX] = "";

    if (tasks > progress->most_tasks || bytes > progress->most_bytes) {
        progress->most_tasks = tasks > progress->most_tasks ? tasks : progress->most_tasks;
        progress->most_bytes = bytes > progress->most_bytes ? bytes : progress->most_bytes;
        progress->since_ms = age_ms;
    }
    double part = done_part(progress, tasks, bytes);
    if (progress->most_tasks > 0 || progress->most_bytes > 0) {
        put_drain(of_drain, sizeof of_drain, part, tasks, bytes);
    }
    if (all > 0) {
        const char *slowest = word(operation, "slowest", "");
        (void)snprintf(of_all, sizeof of_all, "%s%.64s, %.0f of %.0f done",
                       slowest[0] != '\0' ? " on " : "", slowest, done, all);
        if (of_drain[0] == '\0') {
            char bar[BAR + 1];
            part = done / all;
            put_bar(bar, part);
            (void)snprintf(of_drain, sizeof of_drain, "  [%s]", bar);
        }
    }
    if (part > 0 && part < 1 && age_ms > progress->since_ms) {
        double left_ms = (age_ms - progress->since_ms) / part * (1 - part);
        (void)snprintf(rest, sizeof rest, ", about %.0f s left", left_ms / 1e3);
    }
    if (json_object_get(operation, "deadline_in_ms") != NULL) {
        size_t used = strlen(rest);
        (void)snprintf(rest + used, sizeof rest - used, ", at most %.0f s",
                       number(operation, "deadline_in_ms") / 1e3);
    }
    (void)snprintf(line, KVP_PROGRESS_MAX, "%.32s %.64s: %.32s%.100s%.96s  %.1f s%.64s",
                   word(operation, "operation", "operation"), word(operation, "instance", ""),
                   word(operation, "step", "waits for its turn"), of_all, of_drain, age_ms / 1e3,
                   rest);
    kvb_utf8_clean(line);
    if (width < KVP_PROGRESS_MAX) {
        line[width] = '\0';
    }
}
