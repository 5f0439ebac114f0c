/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_grid.h"

#include "base/status.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef char row_cells[KVP_COLUMNS_MAX][KVP_CELL_MAX];

static const json_t *value_of(const json_t *row, const char *member)
{
    const char *dot = strchr(member, '.');
    char outer[32];
    if (dot == NULL) {
        return member[0] == '\0' ? row : json_object_get(row, member);
    }
    (void)snprintf(outer, sizeof outer, "%.*s", (int)(dot - member), member);
    return json_object_get(json_object_get(row, outer), dot + 1);
}

static void print_row(FILE *out, int indent, const struct kvp_column *columns, size_t ncolumns,
                      const size_t *widths, row_cells cells)
{
    for (size_t k = 0; k < ncolumns; k++) {
        int width = k + 1 == ncolumns && !columns[k].right ? 0 : (int)widths[k];
        (void)fprintf(out, "%*s%*s", k > 0 ? 2 : indent, "", columns[k].right ? width : -width,
                      cells[k]);
    }
}

void kvp_table_print(FILE *out, const char *title, bool bold, const struct kvp_column *columns,
                     const json_t *rows)
{
    size_t widths[KVP_COLUMNS_MAX] = {0};
    size_t nrows = json_array_size(rows) + 1;
    size_t ncolumns = 0;
    row_cells *cells = calloc(nrows, sizeof *cells);
    if (cells == NULL) {
        (void)fprintf(out, "%s\n", kvb_status_text(KVB_ERR_NO_MEMORY));
        return;
    }
    for (; columns[ncolumns].head != NULL; ncolumns++) {
        const struct kvp_column *column = &columns[ncolumns];
        for (size_t i = 0; i < nrows; i++) {
            char *cell = cells[i][ncolumns];
            if (i == 0) {
                (void)snprintf(cell, KVP_CELL_MAX, "%s", column->head);
            } else {
                column->cell(cell, value_of(json_array_get(rows, i - 1), column->member));
                kvb_utf8_clean(cell);
            }
            size_t len = strlen(cell);
            widths[ncolumns] = len > widths[ncolumns] ? len : widths[ncolumns];
        }
    }
    if (title != NULL) {
        (void)fprintf(out, "\n%s\n", title);
    }
    for (size_t i = 0; i < nrows; i++) {
        bool head = i == 0 && bold;
        (void)fprintf(out, "%s", head ? "\x1b[1m" : "");
        print_row(out, title != NULL ? 2 : 0, columns, ncolumns, widths, cells[i]);
        (void)fprintf(out, "%s\n", head ? "\x1b[0m" : "");
    }
    free(cells);
}

/* ---- cells ---- */

const char *kvp_text_of(const json_t *value)
{
    const char *text = json_string_value(value);
    return text != NULL && text[0] != '\0' ? text : "-";
}

void kvp_cell_text(char *cell, const json_t *value)
{
    (void)snprintf(cell, KVP_CELL_MAX, "%s", kvp_text_of(value));
    kvb_utf8_clean(cell);
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
    bool whole = number >= 0 && number < 1e15 && number == (double)(uint64_t)number;
    (void)snprintf(cell, KVP_CELL_MAX, whole ? "%.0f %s" : "%.1f %s", number, units[unit]);
}

void kvp_cell_length(char *cell, const json_t *value)
{
    (void)snprintf(cell, KVP_CELL_MAX, "%zu", json_array_size(value));
}

void kvp_cell_yes(char *cell, const json_t *value)
{
    (void)snprintf(cell, KVP_CELL_MAX, "%s", json_is_true(value) ? "yes" : "no");
}

static void put_rate(char *cell, const json_t *per_s, const json_t *bytes_per_s)
{
    char of_bytes[KVP_CELL_MAX];
    kvp_cell_bytes(of_bytes, bytes_per_s);
    (void)snprintf(cell, KVP_CELL_MAX, "%.0f/s %.40s/s", json_number_value(per_s), of_bytes);
}

void kvp_cell_puts(char *cell, const json_t *node)
{
    put_rate(cell, json_object_get(node, "puts_per_s"), json_object_get(node, "put_bytes_per_s"));
}

void kvp_cell_gets(char *cell, const json_t *node)
{
    put_rate(cell, json_object_get(node, "gets_per_s"), json_object_get(node, "get_bytes_per_s"));
}

void kvp_cell_took(char *cell, const json_t *value)
{
    (void)snprintf(cell, KVP_CELL_MAX, "%.3f s", json_number_value(value) / 1e3);
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
