/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_FAULTS_H
#define BASE_FAULTS_H

#include "base/clock.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * Fault switches: each takes one protection out, so that `./dev rehearse --fault NAME` can show
 * that the rehearsal would notice (an experiment without a control proves nothing). Compiled in
 * only with KVB_FAULTS; a release build has none: there the tests below are the constant false.
 *
 * NAME removes its protection and every other that would hide it; NAME:first removes that
 * protection alone, and the rest must catch it. `none` removes nothing, but runs the same hostile
 * schedule (two-sided loopback, transfers held between their steps and across lifecycle steps,
 * small store).
 */
#define KVB_FAULT_LIST(X)                                                                          \
    X(LINEAGE_KEPT, "lineage-kept", "nothing is left at reset, sleep or update")                   \
    X(PUT_NOT_FENCED, "put-not-fenced",                                                            \
      "a put is stored under the current lineage whatever it was computed under")                  \
    X(UNREGISTER_SKIPPED, "unregister-skipped",                                                    \
      "the old registration of a region, or import of GPU memory, goes on being used after the "   \
      "wake")                                                                                      \
    X(DRAIN_SKIPPED, "drain-skipped",                                                              \
      "memory is released under running transfers; counts, references, generation and lineage go " \
      "unchecked")                                                                                 \
    X(TICKET_IGNORED, "ticket-ignored",                                                            \
      "a read succeeds although its space was given away; quarantine and checksum are off")

enum kvb_fault_name {
    KVB_FAULT_NONE,
#define X(name, text, what) KVB_FAULT_##name,
    KVB_FAULT_LIST(X)
#undef X
};

#ifdef KVB_FAULTS
/* "NAME", "NAME:first" or "none"; once, at start, before other threads. INVALID: no such fault. */
KVB_MUST_USE kvb_status_t kvb_fault_choose(const char *text);
/* A fault run: the hostile schedule is on. */
bool kvb_fault_run(void);
/* This protection is taken out. */
bool kvb_fault(enum kvb_fault_name name);
/* Every other protection that would hide it is taken out too (not with :first). */
bool kvb_fault_all(enum kvb_fault_name name);
/* How long the hostile schedule holds a transfer between two of its steps, drawn anew at each: 0
 * for most, and outside fault runs; a few ms for some; long enough to straddle a lifecycle step for
 * a few. */
uint64_t kvb_fault_hold_ns(const struct kvb_random *random);
#else
#define kvb_fault_run()           false
#define kvb_fault(name)           false
#define kvb_fault_all(name)       false
#define kvb_fault_hold_ns(random) ((void)(random), UINT64_C(0))
#endif

/* What `--fault list` prints, also in a build without them. */
size_t kvb_fault_count(void);
const char *kvb_fault_text(size_t i, const char **what_p);

#endif
