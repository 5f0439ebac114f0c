/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PEER_STANDING_H
#define PEER_STANDING_H

#include "handshake.h"

#include "base/clock.h"

/*
 * How a peer that asks stands with its node, whatever carries the lanes: is the node there, who is
 * it, and what was the user told of it. The user is told from one place (kvt_standing_tell, an
 * event of the peer's own), up and down in turn, and down before the up of a node that began
 * another life.
 */
struct kvt_standing {
    /* immutable */
    const char *by; /* "tcp", "rdma": for people */
    const struct kvt_peer_ops *ops;
    void *ctx;

    uint32_t admitted; /* lanes */
    bool reached;      /* has been up, or found to be down: nobody waits for the first lane */
    kvb_status_t why;  /* the last failure */
    struct kvt_hello hello;
    struct kvt_peer_stats counted;
    bool told_up, told_down;
    uint64_t told_incarnation;
};

/* A lane was admitted, by that node. */
void kvt_standing_admitted(struct kvt_standing *standing, const struct kvt_identity *identity,
                           const struct kvt_handshake *shake);
/* A connection came to nothing, or (admitted) to its end, and is not counted in admitted any more.
 */
void kvt_standing_gone(struct kvt_standing *standing, bool admitted, kvb_status_t why);
/* Calls up and down as it has become. */
void kvt_standing_tell(struct kvt_standing *standing, const char *address);

/* Counts the end of a lane; of either side. */
void kvt_count_end(struct kvt_peer_stats *counted, bool admitted, kvb_status_t why);
/* What was counted, and how it is now. */
void kvt_stats_of(const struct kvt_peer_stats *counted, uint32_t admitted, uint64_t heard_ns,
                  uint64_t bytes_sent, uint64_t bytes_received, struct kvt_peer_stats *stats_p);

/* The wait before the next try, after so many failures in a row: doubled each time, up to max_ms,
 * and between half of it and all, so that many clients do not come at once. */
uint64_t kvt_backoff_ns(const struct kvb_random *random, uint32_t first_ms, uint32_t max_ms,
                        uint32_t failures);

#endif
