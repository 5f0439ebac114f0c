/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_LANE_H
#define TESTS_FUZZ_LANE_H

/* What the targets of a tcp lane have in common: one real end on a simulated network, and another
 * that says what it likes. TCP_SIM_LEN is defined before. */
#define TESTS_PLAIN 1
#include "fuzz.h"
#include "tcp_sim.h"

#include "base/le.h"
#include "base/log.h"

struct fuzz_lane {
    struct tcp_sim rig;
    struct tcp_raw raw;
    bool met; /* the real end has connected to it */
};

static inline void fuzz_lane_accept_(void *ctx, int fd)
{
    struct fuzz_lane *lane = ctx;
    struct kvt_net *net = &lane->rig.net.base;
    struct kvt_socket *socket;
    kvb_status_t status = net->ops->adopt(net, fd, &socket);
    kvb_assert(status == KVB_OK);
    if (lane->met) { /* one that comes later is not talked to */
        net->ops->close(socket);
        return;
    }
    lane->met = true;
    tcp_raw_own(&lane->raw, net, socket);
}

static inline void fuzz_lane_open(struct fuzz_lane *lane)
{
    tcp_sim_open(&lane->rig, NULL);
    kvb_log_threshold = KVB_LOG_ERROR;
}

/* It plays the node; the real end is a peer of one lane. in_flight_max 0: the default. */
static inline void fuzz_lane_as_node(struct fuzz_lane *lane, uint32_t in_flight_max)
{
    lane->rig.side.accept = fuzz_lane_accept_;
    lane->rig.side.ctx = lane;
    tcp_sim_peer(&lane->rig,
                 (struct kvt_tcp_peer_config){.lanes = 1, .in_flight_max = in_flight_max});
}

/* It was the node, and goes. */
static inline void fuzz_lane_leave_peer(struct fuzz_lane *lane)
{
    tcp_raw_close(&lane->raw);
    sim_advance(&lane->rig.sim, 10000);
}

/* It was a client, and goes: nothing of it stays at the node. */
static inline void fuzz_lane_leave_node(struct fuzz_lane *lane)
{
    tcp_raw_close(&lane->raw);
    sim_settle(&lane->rig.sim);
    kvb_assert(lane->rig.node.sessions == 0 && lane->rig.node.running == 0);
}

#endif
