/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_grid.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

char (*kvp_grid_row(struct kvp_grid *grid))[KVP_CELL_MAX]
{
    if (grid->rows == grid->cap) {
        size_t cap = grid->cap * 2 + 16;
        char(*cells)[KVP_COLUMNS_MAX][KVP_CELL_MAX] = realloc(grid->cells, cap * sizeof *cells);
        if (cells == NULL) {
            return NULL;
        }
        grid->cells = cells;
        grid->cap = cap;
    }
    memset(grid->cells[grid->rows], 0, sizeof *grid->cells);
    return grid->cells[grid->rows++];
}

void kvp_grid_print(FILE *out, const char *title, const struct kvp_grid *grid)
{
    size_t widths[KVP_COLUMNS_MAX] = {0};
    for (size_t i = 0; i < grid->rows; i++) {
        for (size_t k = 0; k < grid->columns; k++) {
            size_t len = strlen(grid->cells[i][k]);
            widths[k] = len > widths[k] ? len : widths[k];
        }
    }
    if (title != NULL) {
        (void)fprintf(out, "\n%s\n", title);
    }
    int indent = title != NULL ? 2 : 0;
    for (size_t i = 0; i < grid->rows; i++) {
        bool bold = i == 0 && grid->bold_head;
        (void)fprintf(out, "%s", bold ? "\x1b[1m" : "");
        for (size_t k = 0; k < grid->columns; k++) {
            bool last = k + 1 == grid->columns;
            (void)fprintf(out, "%*s%-*s", k > 0 ? 2 : indent, "", last ? 0 : (int)widths[k],
                          grid->cells[i][k]);
        }
        (void)fprintf(out, "%s\n", bold ? "\x1b[0m" : "");
    }
}

void kvp_grid_head(struct kvp_grid *grid, const char *const *names)
{
    char(*row)[KVP_CELL_MAX] = kvp_grid_row(grid);
    for (grid->columns = 0; names[grid->columns] != NULL; grid->columns++) {
        if (row != NULL) {
            (void)snprintf(row[grid->columns], KVP_CELL_MAX, "%s", names[grid->columns]);
        }
    }
}

void kvp_cell_clean(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at != '\0'; at++) {
        if (at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0) { /* the same in Latin-1's upper half */
            at[0] = at[1] = '?';
        } else if (at[0] < ' ' || at[0] == 0x7f) {
            at[0] = '?';
        }
    }
}

/* ---- cells ---- */

void kvp_cell_text(char *cell, const json_t *value)
{
    const char *string = json_string_value(value);
    (void)snprintf(cell, KVP_CELL_MAX, "%s", string != NULL && string[0] != '\0' ? string : "-");
    kvp_cell_clean(cell);
}

void kvp_cell_count(char *cell, const json_t *value)
{
    if (json_is_number(value)) {
        (void)snprintf(cell, KVP_CELL_MAX, "%.0f", json_number_value(value));
    } else {
        kvp_cell_text(cell, NULL);
    }
}

void kvp_cell_bytes(char *cell, const json_t *value)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double number = json_number_value(value);
    size_t unit = 0;
    if (!json_is_number(value)) {
        kvp_cell_text(cell, NULL);
        return;
    }
    for (; number >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++) {
        number /= 1024;
    }
    bool whole = number == (double)(uint64_t)number;
    (void)snprintf(cell, KVP_CELL_MAX, whole ? "%.0f %s" : "%.1f %s", number, units[unit]);
}

void kvp_cell_rate(char *cell, const json_t *object, const char *per_s, const char *bytes_per_s)
{
    char of_bytes[KVP_CELL_MAX];
    kvp_cell_bytes(of_bytes, json_object_get(object, bytes_per_s));
    (void)snprintf(cell, KVP_CELL_MAX, "%.0f/s %.40s/s",
                   json_number_value(json_object_get(object, per_s)), of_bytes);
}

void kvp_cell_ago(char *cell, const json_t *value)
{
    if (json_is_number(value)) {
        (void)snprintf(cell, KVP_CELL_MAX, "%.1f s ago", json_number_value(value));
    } else {
        (void)snprintf(cell, KVP_CELL_MAX, "never");
    }
}

void kvp_cell_as_of(char *cell, const json_t *value)
{
    if (json_number_value(value) > 0) {
        kvp_cell_ago(cell, value);
    } else {
        (void)snprintf(cell, KVP_CELL_MAX, "now");
    }
}

void kvp_grid_cleanup(struct kvp_grid *grid)
{
    free(grid->cells);
    *grid = (struct kvp_grid){0};
}
