/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLI_FRAME_H
#define SERVER_CLI_FRAME_H

#include "cli_progress.h"

#include <stdbool.h>
#include <stdio.h>

/* What `kvplane top` shows, as text; and how much of a text a screen has room for. Pure. */
enum { KVP_FRAME_OPERATIONS = 8 };

struct kvp_frame {
    bool bold; /* heads of tables */
    struct {   /* running operations, from frame to frame */
        json_int_t id;
        struct kvp_progress progress;
    } running[KVP_FRAME_OPERATIONS];
};

/* The transfers of all ranks out of the metrics' text: {"put": {"queued": 1, "running": 2}, …}. */
json_t *kvp_frame_queues(const char *metrics);

/* all: see kvp_call_collect(), and `operations` and `queues`. width: columns of progress lines. */
void kvp_frame_write(struct kvp_frame *frame, const json_t *all, size_t width, FILE *out);

/* Writes at most rows lines of text, each at most columns wide and erased to its end; escape
 * sequences of colours have no width. Returns how many lines. */
size_t kvp_frame_clip(const char *text, size_t rows, size_t columns, FILE *out);

/* A line for each instance that is a server of its own, driven by its routes. */
void kvp_put_driven(const json_t *instances, FILE *out);

#endif
