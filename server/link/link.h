/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LINK_LINK_H
#define LINK_LINK_H

#include "connector/instance.h"

#include "base/metrics.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * The daemon's side of the engine link (DESIGN.md section 7): the Unix socket, one session for
 * each rank that connects, its regions, and its put and get queues. Gives ranks to the fleet, takes
 * bytes to and from the store client. Loop thread only.
 */
struct kvp_link;
struct uv_loop_s;

/* Memory that another process reaches for us (a GPU's: transport/cuda.h), one device for each rank
 * that hands some over. close: later done, exactly once; nothing of it is held then. clear: ends
 * what an earlier daemon left and may hold such memory; called once, with the socket's lock held
 * and before anybody is admitted; may take seconds. NULL: nothing to do. */
struct kvp_link_devices {
    kvb_status_t (*clear)(void *ctx);
    kvb_status_t (*open)(void *ctx, const char *rank, uint64_t owner, struct kvt_device **device_p);
    void (*close)(struct kvt_device *device, void (*done)(void *arg), void *arg);
};

struct kvp_link_config {
    struct kvb_sched *sched;
    struct uv_loop_s *loop;
    struct kvp_fleet *fleet;
    struct kvs_client *store;    /* NULL: no store; lookups miss, puts and gets are refused */
    struct kvt_regions *regions; /* of the engines; borrowed */
    struct kvb_metrics *metrics; /* made from kvp_metric_table; NULL: nothing is counted */
    const char *path;            /* of the socket; its lock file is path.lock */
    bool any_uid;                /* also peers that are neither of this uid nor root */
    uint32_t sessions_max;
    uint32_t queue_max;   /* tasks accepted and not begun, in each queue of each session */
    uint32_t running_max; /* tasks begun, in each queue of each session */
    uint64_t transfer_ms; /* bound of one task once begun, and until a device must have a region */
    uint64_t abort_ms;    /* the same once it was asked to stop */
    /* May an engine claim this tenant? NULL: any. reason: at least 256 bytes. */
    bool (*tenant_allowed)(void *ctx, const char *tenant, char *reason, size_t reason_cap);
    void *ctx;
    const struct kvp_link_devices *devices; /* NULL: such regions are refused, UNSUPPORTED */
    void *devices_ctx;
};

/*
 * Takes the lock, replaces a socket that a dead daemon left, and listens. BUSY: another daemon has
 * the lock. INVALID: the path is too long or not a socket. IO. NO_MEMORY. What is wrong is logged.
 */
KVB_MUST_USE kvb_status_t kvp_link_create(const struct kvp_link_config *config,
                                          struct kvp_link **link_p);

/* At each heartbeat: how old what waits in the queues is, for the metrics. */
void kvp_link_beat(struct kvp_link *link);

/* Admits nobody any more and ends every session; done, later, once the last one and all of its
 * transfers are gone. */
void kvp_link_stop(struct kvp_link *link, void (*done)(void *ctx), void *ctx);
void kvp_link_destroy(struct kvp_link *link); /* stopped */

#endif
