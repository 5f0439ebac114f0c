/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_sse.h"

#include <stdio.h>
#include <string.h>

/* What follows `name: ` in the line; NULL: another field, or a comment. */
static const char *field(const char *line, const char *name)
{
    size_t len = strlen(name);
    if (strncmp(line, name, len) != 0 || line[len] != ':') {
        return NULL;
    }
    return line + len + (line[len + 1] == ' ' ? 2 : 1);
}

void kvp_sse_restart(struct kvp_sse *sse)
{
    sse->len = 0;
    sse->skip = false;
    sse->data[0] = '\0';
    sse->next_id[0] = '\0';
}

static void take_line(struct kvp_sse *sse, void (*on_event)(void *ctx, const char *data), void *ctx)
{
    const char *value;
    if (sse->line[0] == '\0') {
        if (sse->next_id[0] != '\0') {
            strcpy(sse->id, sse->next_id);
        }
        if (sse->data[0] != '\0') {
            on_event(ctx, sse->data);
        }
        sse->data[0] = '\0';
    } else if ((value = field(sse->line, "data")) != NULL) {
        (void)snprintf(sse->data, sizeof sse->data, "%s", value);
    } else if ((value = field(sse->line, "id")) != NULL && strlen(value) < sizeof sse->id) {
        strcpy(sse->next_id, value);
    }
}

void kvp_sse_feed(struct kvp_sse *sse, const char *bytes, size_t len,
                  void (*on_event)(void *ctx, const char *data), void *ctx)
{
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] == '\n') {
            sse->line[sse->skip ? 0 : sse->len] = '\0';
            if (!sse->skip) {
                take_line(sse, on_event, ctx);
            }
            sse->len = 0;
            sse->skip = false;
        } else if (bytes[i] != '\r' && sse->len + 1 < sizeof sse->line) {
            sse->line[sse->len++] = bytes[i];
        } else if (bytes[i] != '\r') {
            sse->skip = true;
        }
    }
}
