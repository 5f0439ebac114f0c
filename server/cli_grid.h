/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLI_GRID_H
#define SERVER_CLI_GRID_H

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Lists of an answer as tables of text, for people: columns as wide as their widest cell. */
enum { KVP_COLUMNS_MAX = 11, KVP_CELL_MAX = 72 };

struct kvp_column {
    const char *head;   /* NULL: there are no more */
    const char *member; /* of a row that it shows; NAME.NAME: of a member of it; "": all of it */
    void (*cell)(char cell[KVP_CELL_MAX], const json_t *value); /* value NULL: it has none */
    bool right;                                                 /* aligned */
};

/* A line of heads, and one for each object of rows. title: NULL: none; bold: the heads, on a
 * terminal. What could move its cursor is shown as `?`, whoever wrote the cells. */
void kvp_table_print(FILE *out, const char *title, bool bold, const struct kvp_column *columns,
                     const json_t *rows);

/* A text of an answer; "-" where there is none. */
const char *kvp_text_of(const json_t *value);

/* A value of an answer in a cell; "-" where there is none. */
void kvp_cell_text(char *cell, const json_t *value);
void kvp_cell_count(char *cell, const json_t *value);
void kvp_cell_bytes(char *cell, const json_t *value);
void kvp_cell_length(char *cell, const json_t *value); /* of an array */
void kvp_cell_yes(char *cell, const json_t *value);    /* yes, or no */
void kvp_cell_puts(char *cell, const json_t *node);    /* their rate, and that of their bytes */
void kvp_cell_gets(char *cell, const json_t *node);
void kvp_cell_took(char *cell, const json_t *value);  /* milliseconds, as seconds */
void kvp_cell_ago(char *cell, const json_t *value);   /* seconds; null: never */
void kvp_cell_as_of(char *cell, const json_t *value); /* the same; none: now */

#endif
