/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDMA_END_H
#define RDMA_END_H

#include "memory.h"

/*
 * What the lanes of one loop share (those of a peer, or of a server): the channels through which
 * the device is heard, the receive queue, its completion queue, and the buffers that stand in it.
 *
 * No completion queue can be overrun: that of receives has room for every buffer that will ever be
 * posted, and a buffer is posted again only after its completion was taken; that of a lane's sends
 * (lane.c) has room for as many as the lane may have posted. Each lane adds as many buffers as the
 * window that it grants, so that no sender that keeps to it finds the queue empty. Loop thread
 * only.
 */
struct rlane;

struct rbuf { /* a received packet; its buffer stands in the queue again when it was put back */
    struct kvb_list link; /* of its lane's inbox, or itself */
    uint32_t slab;
    uint32_t len;
    uint8_t *data;
    uint64_t lkey_at; /* address, as the device knows it */
};

#define REND_BUCKETS 256u

struct rend {
    struct kvt_rdma_device *device;
    struct kvb_sched *sched;
    struct kvb_io *io;
    /* An event of a connection: already acknowledged. data: its private data, valid now. */
    void (*event)(struct rend *end, const struct rdma_cm_event *event, const uint8_t *data,
                  size_t len);

    struct rdma_event_channel *channel;
    struct rwatch channel_watch;
    struct ibv_comp_channel *completions;
    struct rwatch completions_watch;
    struct ibv_srq *srq;
    struct ibv_cq *received;
    uint32_t lanes_max; /* windows that fit the receive queue */

    struct rslab *slabs; /* slabs_n of slabs_cap; one window of buffers each */
    uint32_t slabs_n;
    uint32_t windows;                    /* taken by lanes */
    struct kvb_list lanes[REND_BUCKETS]; /* those with a queue pair, by its number */
    struct kvb_timer again;              /* what the device refused, a moment ago */
    struct kvb_list unposted;            /* buffers that it did not take */
    bool unarmed;                        /* completions of receives are not told */
    struct kvb_list ready;               /* those that have something to do after what was heard */
    uint32_t generation;                 /* of the last lane */
};

/* lanes: how many there may be at a time, fewer if the device's queues are smaller (lanes_max).
 * NO_MEMORY, LIMIT, IO. */
KVB_MUST_USE kvb_status_t rend_open(struct rend *end, struct kvt_rdma_device *device,
                                    struct kvb_sched *sched, struct kvb_io *io, uint32_t lanes);
void rend_close(struct rend *end); /* no lanes */

/* Room for what one more lane may be sent. LIMIT (lanes_max), NO_MEMORY, IO. */
KVB_MUST_USE kvb_status_t rend_window_get(struct rend *end);
void rend_window_put(struct rend *end);

/* A lane with this queue pair receives from now on, until it is taken out. */
void rend_lane_add(struct rend *end, struct rlane *lane);
void rend_lane_remove(struct rend *end, struct rlane *lane);

/* Takes what has arrived, for all lanes; they are run by rend_run() or by their own turns. */
void rend_poll(struct rend *end);
/* The buffer stands in the queue again. */
void rend_buffer_put(struct rend *end, struct rbuf *buffer);

#endif
