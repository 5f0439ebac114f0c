/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_UPSTREAM_H
#define SERVER_UPSTREAM_H

#include "config.h"
#include "connector/instance.h"
#include "proxy/proxy.h"

#include "base/metrics.h"

/* The engines' own servers, as the keys of the daemon say: what passes requests on to them, and the
 * state of their instances, as it is told. */
struct kvp_upstream {
    struct kvp_proxy *proxy; /* NULL: nothing is passed on */
    char *authorization;     /* that a request gets which brings none; NULL: none */
};

/* INVALID, IO: a file of the keys, or the url; logged. NO_MEMORY, LIMIT. */
KVB_MUST_USE kvb_status_t kvp_upstream_create(const struct kvp_config *config,
                                              struct kvb_metrics *metrics,
                                              struct kvp_upstream *upstream);
void kvp_upstream_destroy(struct kvp_upstream *upstream); /* also where it never was */
/* kvp_fleet_config.changed */
void kvp_upstream_tell(const struct kvp_upstream *upstream, const struct kvp_view *view);

#endif
