/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLI_GRID_H
#define SERVER_CLI_GRID_H

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Tables of text, for people: columns as wide as their widest cell. Zeroes are an empty one. */
enum { KVP_COLUMNS_MAX = 10, KVP_CELL_MAX = 72 };

struct kvp_grid {
    size_t columns;
    size_t rows;
    size_t cap;
    bool bold_head;                               /* the first row, on a terminal */
    char (*cells)[KVP_COLUMNS_MAX][KVP_CELL_MAX]; /* NULL: out of memory, or no row yet */
};

/* A row of empty cells; NULL: out of memory. */
char (*kvp_grid_row(struct kvp_grid *grid))[KVP_CELL_MAX];
void kvp_grid_head(struct kvp_grid *grid, const char *const *names); /* names end with NULL */
/* title: NULL: none. */
void kvp_grid_print(FILE *out, const char *title, const struct kvp_grid *grid);
void kvp_grid_cleanup(struct kvp_grid *grid);

/* A value of an answer in a cell; "-" where there is none. What could move a terminal's cursor is
 * shown as `?`. */
void kvp_cell_text(char *cell, const json_t *value);
void kvp_cell_count(char *cell, const json_t *value);
void kvp_cell_bytes(char *cell, const json_t *value);
void kvp_cell_rate(char *cell, const json_t *object, const char *per_s, const char *bytes_per_s);
void kvp_cell_ago(char *cell, const json_t *value);   /* seconds; null: never */
void kvp_cell_as_of(char *cell, const json_t *value); /* the same; none: now */
void kvp_cell_clean(char *text);

#endif
