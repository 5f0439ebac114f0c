/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_DRIVER_DRIVER_H
#define SERVER_DRIVER_DRIVER_H

#include "connector/instance.h"
#include "driver/spec.h"
#include "driver/web.h"

#include "base/metrics.h"

/*
 * Unmodified servers of vLLM and SGLang as instances of the fleet: what an instance asks of its
 * rank becomes calls of that server's own routes, in an order and with checks that make them safe.
 * No KV moves this way, and nothing is shared; what is gained is that resets, sleep, wake and
 * weight updates are one safe, truthful call. Loop thread only.
 */
struct kvp_driver;

struct kvp_driver_config {
    struct kvb_sched *sched;
    struct kvp_fleet *fleet;
    const struct kvp_web_ops *web;
    void *web_ctx;
    struct kvb_metrics *metrics;         /* made from kvp_metric_table; NULL: nothing is counted */
    const struct kvp_engine_spec *specs; /* copied */
    uint32_t nspecs;
    const char *tenant; /* of all of them; copied */
    uint64_t health_interval_ms;
    uint64_t health_ms; /* bound of one look */
    uint32_t misses;    /* so many in a row, and it is gone */
    uint64_t call_ms;   /* bound of a call, where the caller's own is not nearer; not of a pause */
    uint64_t relay_ms;  /* the same of what is relayed */
};

/* Each server is looked at from now on, and attaches when it is there. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvp_driver_create(const struct kvp_driver_config *config,
                                            struct kvp_driver **driver_p);
/* Every instance is let go, and nothing runs any more; at once, but not inside of one of its own
 * calls. Idempotent. */
void kvp_driver_stop(struct kvp_driver *driver);
/* Stopped, and the fleet is gone before. NULL: nothing. */
void kvp_driver_destroy(struct kvp_driver *driver);

#endif
