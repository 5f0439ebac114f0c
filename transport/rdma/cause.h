/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDMA_CAUSE_H
#define RDMA_CAUSE_H

#include "verbs.h"

#include "transport/rdma.h"

/*
 * What is done about each thing that can go wrong. A queue pair does not survive an error of one of
 * its work requests, so each costs the lane: `transfer` is what the transfer ends with whose work
 * it was, `lane` why the lane ends, for all others on it; a new queue pair is made by itself, at
 * once or after the wait that grows with each failure. DROP: not before the longest wait, since
 * nothing will be better soon. DEAD: never again.
 */
enum rcause_reaction { RCAUSE_NOTHING, RCAUSE_REBUILD, RCAUSE_DROP, RCAUSE_DEAD };

struct rcause {
    enum kvt_rdma_cause cause;
    kvb_status_t transfer;
    kvb_status_t lane;
    enum rcause_reaction reaction;
};
const struct rcause *rcause_of_wc(enum ibv_wc_status status); /* not of SUCCESS */
/* NULL: not an error, or none that is looked at here. */
const struct rcause *rcause_of_cm(enum rdma_cm_event_type event);
const struct rcause *rcause_of_device(enum ibv_event_type event);

#endif
