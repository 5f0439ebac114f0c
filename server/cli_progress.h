/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLI_PROGRESS_H
#define SERVER_CLI_PROGRESS_H

#include <jansson.h>

#include <stddef.h>

/* A running operation in one line, from what it says of itself. Pure; zeroes are a beginning. */
struct kvp_progress {
    double most_tasks, most_bytes; /* that were left at any time: what a bar is whole at */
    double since_ms;               /* its age when the most was left */
};

enum { KVP_PROGRESS_MAX = 512 };

/*
 * At most width columns: what it is and its step, a bar of the drain and what is left of it, its
 * age, and how long it may still take: an estimate from what has been drained so far, and its
 * deadline. What does not fit is left out from the right.
 */
void kvp_progress_line(struct kvp_progress *progress, const json_t *operation, size_t width,
                       char line[KVP_PROGRESS_MAX]);

#endif
