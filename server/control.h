/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONTROL_H
#define SERVER_CONTROL_H

#include "cluster.h"
#include "connector/instance.h"
#include "control/routes.h"
#include "events.h"
#include "http/inbox.h"

/*
 * The daemon's routes (control/routes.h): what a request asks for is done by the loop, and answered
 * exactly once.
 */
struct kvp_control;

struct kvp_control_config {
    struct kvp_fleet *fleet;
    struct kvs_coordinator *coordinator;
    struct kvp_cluster *cluster;
    struct kvp_events *events;
    struct kvs_client *client; /* of the nodes that the cluster tells of */
    struct kvb_sched *sched;
    const struct kvb_clock *clock;
    uint64_t retire_ms; /* bound of a tenant's reset */
    bool never_sleeps;  /* sleep mode is off: asked for all the same it is refused */
    bool verbs_for_all; /* a verb without an instance is for all of them, if there are several */
    uint32_t queue_max; /* requests submitted and not yet replied to */
    void (*wake)(void *ctx); /* any thread: kvp_control_run() is due */
    void *wake_ctx;
    void (*quiet)(void *ctx); /* kvp_control_quiet() has become true; may be NULL */
    void *quiet_ctx;
};

KVB_MUST_USE kvb_status_t kvp_control_create(const struct kvp_control_config *config,
                                             struct kvp_control **control_p);
/* Where requests are submitted. */
struct kvp_inbox *kvp_control_inbox(struct kvp_control *control);
/* Loop thread: handles what was submitted. */
void kvp_control_run(struct kvp_control *control);
/* Loop thread: replies 503 to everything still open, and to all that comes later. */
void kvp_control_close(struct kvp_control *control);
/* Nothing that it asked of the client is under way; once closed, for good. */
bool kvp_control_quiet(const struct kvp_control *control);
/* Closed and quiet, after kvp_fleet_destroy() and kvs_coordinator_destroy(), which end what
 * control started: until then outcomes still come, and bodies that were relayed are still read. */
void kvp_control_destroy(struct kvp_control *control);

/* What an instance is in, in short: for the answers of failed operations, and events. A new object;
 * NULL: out of memory. */
json_t *kvp_state_json(const struct kvp_view *view);

/* An instance in short, as the others of the cluster see it. A new object; NULL: out of memory. */
json_t *kvp_view_describe(const struct kvp_view *view);

/* Does a collective_rpc of this method count as a weight change (DESIGN.md section 4)? */
bool kvp_method_changes_weights(const char *method);

#endif
