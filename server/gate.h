/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_GATE_H
#define SERVER_GATE_H

#include "base/status.h"

#include <stdio.h>

/*
 * The gate of sleep mode: an engine can sleep only if nobody but this host's processes holds its
 * memory (DESIGN.md section 6), so what would hand out keys or handles to it is refused at start.
 * Asked only while sleep mode is on; reads its arguments and two variables of the environment, and
 * opens and loads nothing: of the device that is used in the end, kvt_rdma_device_open() asks the
 * rest (whether it does with local keys), and of memory the hand-over of each region.
 */
struct kvp_gate_facts {
    const char *transport; /* ours */
    /* Named by Mooncake's configuration, and by what; "": not, or something stronger was said. */
    const char *protocol, *protocol_source;
    const char *pool, *pool_source; /* where the engine's KV cache is allocated */
};

/* INVALID: error (KVP_CONFIG_ERROR_MAX bytes) says which, why, and what to change. */
KVB_MUST_USE kvb_status_t kvp_gate_check(const struct kvp_gate_facts *facts, char *error);

/* Markdown: what can sleep and what cannot, with the reasons. */
void kvp_gate_table(FILE *out);

#endif
