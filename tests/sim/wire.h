/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_WIRE_H
#define TESTS_SIM_WIRE_H

#include "world.h"

#include "base/frame.h"
#include "base/wire.h"

/*
 * The engine link between a daemon and the ranks of an engine on the same machine: whole frames, in
 * order, some microseconds later. The daemon's end is its kvp_stream (server/link/stream.h), the
 * engine's is this.
 */
struct sim_wire;
struct kvp_link;

struct sim_wire_ops { /* on the engine's process */
    /* payload: borrowed */
    void (*frame)(void *ctx, const struct kvb_frame *frame, struct kvb_span payload);
    /* The daemon's end is closed: no transfer of its touches the engine's memory any more. The wire
     * is no more. */
    void (*closed)(void *ctx);
};

/* NULL: nobody listens. */
struct sim_wire *sim_wire_connect(struct sim_process *engine, const struct sim_wire_ops *ops,
                                  void *ctx);
/* fd: comes with it, taken; -1: none. Takes the writer's bytes. */
void sim_wire_send(struct sim_wire *wire, uint16_t type, uint16_t flags, uint64_t seq,
                   struct kvb_writer *writer, int fd);
/* The engine's direction is shut: it gives the connection up, and waits for `closed`. */
void sim_wire_shut(struct sim_wire *wire);
/* Either process was killed. Of the daemon: `closed` follows on the engine's side. */
void sim_wire_died(struct sim_process *process);

#endif
