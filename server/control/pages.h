/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONTROL_PAGES_H
#define SERVER_CONTROL_PAGES_H

#include "control/internal.h"

/*
 * A page of a list: the rows whose keys come after the cursor, in the order of their keys, at most
 * `limit` of them. The cursor that an answer gives as `next` is the list's name and the last key of
 * the page, so that a row that came or went meanwhile neither moves the others nor makes the cursor
 * invalid. Rows may be offered in any order; the JSON of one that is not on the page is never made.
 */
#define KVP_PAGE_KEY_MAX 192

struct kvp_page_row {
    char key[KVP_PAGE_KEY_MAX];
    json_t *json;
};

struct kvp_page {
    const char *list;
    uint32_t limit;
    uint32_t n;
    bool more;
    char after[KVP_CURSOR_MAX]; /* "": from the beginning */
    struct kvp_page_row *rows;  /* limit of them */
};

/* For a list of another kind: what its cursor says, "" from the beginning, NULL: replied (it is
 * none of this list); and how many rows there may be. */
const char *kvp_page_after(struct kvp_control *control, struct kvp_request *request,
                           const char *list);
uint32_t kvp_page_limit(const struct kvp_params *params);

/* list: the name of the array in the answer. False: replied (a cursor of another list, or none of
 * ours; out of memory). */
bool kvp_page_begin(struct kvp_control *control, struct kvp_request *request, const char *list,
                    struct kvp_page *page);
/* Is it on the page, as far as is known? Its key is text of A-Z a-z 0-9 . _ - / and unique. */
bool kvp_page_wants(struct kvp_page *page, const char *key);
/* Takes json, of a row that the page wants. */
void kvp_page_add(struct kvp_page *page, const char *key, json_t *json);
/* Ends the page. The answer: `list` and `next`; a new object, NULL: out of memory. */
json_t *kvp_page_end(struct kvp_page *page);

#endif
