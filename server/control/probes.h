/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONTROL_PROBES_H
#define SERVER_CONTROL_PROBES_H

#include "board.h"
#include "control/routes.h"
#include "http/probe.h"

/* Answers a route of kind PROBE from the board and the metrics registry. Never waits. */
void kvp_probe(const struct kvp_route *route, const char *instance, struct kvp_board *board,
               struct kvb_metrics *metrics, struct kvp_probe_answer *answer_p);

/* api/openapi.yaml as it was when this was built. */
extern const char kvp_openapi[];
extern const char kvp_openapi_end[];

#endif
