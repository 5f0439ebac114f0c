/* SPDX-License-Identifier: Apache-2.0 */
#include "control/pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_DEFAULT 100u

/* What comes after the list's name and a colon; NULL: it is no cursor of this list. */
static const char *key_of(const char *cursor, const char *list)
{
    size_t len = strlen(list);
    bool ours = strncmp(cursor, list, len) == 0 && cursor[len] == ':' && cursor[len + 1] != '\0';
    return ours ? cursor + len + 1 : NULL;
}

const char *kvp_page_after(struct kvp_control *control, struct kvp_request *request,
                           const char *list)
{
    const struct kvp_params *params = &request->params;
    const char *after = kvp_given(params, KVP_PARAM_cursor) ? key_of(params->cursor, list) : "";
    if (after == NULL) {
        kvp_control_reply_error(control, request, KVB_ERR_INVALID, "query.cursor",
                                "query.cursor: must be what this list gave as next");
    }
    return after;
}

uint32_t kvp_page_limit(const struct kvp_params *params)
{
    return kvp_given(params, KVP_PARAM_limit) ? params->limit : LIMIT_DEFAULT;
}

bool kvp_page_begin(struct kvp_control *control, struct kvp_request *request, const char *list,
                    struct kvp_page *page)
{
    const char *after = kvp_page_after(control, request, list);
    if (after == NULL) {
        return false;
    }
    *page = (struct kvp_page){.list = list, .limit = kvp_page_limit(&request->params)};
    (void)snprintf(page->after, sizeof page->after, "%s", after);
    page->rows = calloc(page->limit, sizeof page->rows[0]);
    if (page->rows == NULL) {
        kvp_control_reply_error(control, request, KVB_ERR_NO_MEMORY, NULL,
                                "out of memory; try again");
        return false;
    }
    return true;
}

bool kvp_page_wants(struct kvp_page *page, const char *key)
{
    if (strcmp(key, page->after) <= 0) {
        return false;
    }
    if (page->n == page->limit && strcmp(key, page->rows[page->n - 1].key) >= 0) {
        page->more = true;
        return false;
    }
    return true;
}

void kvp_page_add(struct kvp_page *page, const char *key, json_t *json)
{
    if (page->n == page->limit) {
        page->more = true;
        json_decref(page->rows[--page->n].json);
    }
    uint32_t at = page->n;
    while (at > 0 && strcmp(page->rows[at - 1].key, key) > 0) {
        at--;
    }
    memmove(&page->rows[at + 1], &page->rows[at], (page->n - at) * sizeof page->rows[0]);
    (void)snprintf(page->rows[at].key, sizeof page->rows[at].key, "%s", key);
    page->rows[at].json = json;
    page->n++;
}

json_t *kvp_page_end(struct kvp_page *page)
{
    json_t *list = json_array();
    json_t *next = json_null();
    for (uint32_t i = 0; i < page->n; i++) {
        (void)json_array_append_new(list, page->rows[i].json);
    }
    if (page->more) {
        next = json_sprintf("%s:%s", page->list, page->rows[page->n - 1].key);
    }
    free(page->rows);
    return json_pack("{s:o, s:o}", page->list, list, "next", next);
}
