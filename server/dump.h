/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_DUMP_H
#define SERVER_DUMP_H

#include "http/inbox.h"

#include "base/metrics.h"
#include "base/sched.h"

#include <pthread.h>
#include <stdio.h>

/*
 * SIGUSR1: the whole state in one JSON document, for whoever looks for a fault. It is what the REST
 * API says, asked of the loop as every request is, page by page, with the configuration and the
 * metrics of the moment; so nothing waits longer than those requests do. A thread of its own writes
 * the file: whole or not at all, the same name each time, readable by this user alone; the log says
 * where it is.
 */
struct kvp_dump_ask {
    const char *name; /* in the document */
    const char *path; /* of a GET route of kind CONTROL */
};

struct kvp_dump_config {
    const char *program; /* "serve", "store" */
    const char *dir;     /* where the file lies; "": $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR or /tmp */
    const struct kvp_dump_ask *asks;
    uint32_t nasks;
    const struct kvp_route_table *routes;
    struct kvp_inbox *inbox;
    struct kvb_metrics *metrics;
    void (*show_config)(const void *config, FILE *out); /* as JSON */
    const void *config;
};

struct kvp_dump;

/* NULL: out of memory. */
struct kvp_dump *kvp_dump_create(const struct kvp_dump_config *config);
/* Loop thread. One that is under way already goes on, and no other begins; logged. */
void kvp_dump_start(struct kvp_dump *dump);
/* Its inbox is closed; waits for the file to be written. NULL: nothing. */
void kvp_dump_destroy(struct kvp_dump *dump);

#endif
