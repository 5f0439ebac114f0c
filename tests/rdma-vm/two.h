/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDMA_VM_TWO_H
#define RDMA_VM_TWO_H

/*
 * Two processes over transport/rdma, on the device of KVPLANE_RDMA_ADDRESS: a node that serves
 * plain memory (tcp_rig.h), this program again, and this one with an engine's memory as a region.
 * The node's memory is visible here too, so that what arrived is seen by the CPU, not by the
 * device.
 */
#include "real_loop.h"
#include "tcp_rig.h"
#include "verbs_rig.h"

#include "transport/rdma.h"

#include <sys/types.h>

struct two {
    struct real_loop loop;
    struct kvt_rdma_device *device;
    struct kvt_regions *regions;
    struct kvt_rdma_memory *memory;
    struct kvt_transport *peer;
    bool up;
    uint32_t ups, downs;
    kvb_status_t why; /* of the last down */
    /* the node */
    pid_t node;
    char address[64];
    int node_fd;
    uint8_t *node_memory;
    size_t node_len;
    /* the engine: always at the same address */
    uint8_t *engine;
    size_t engine_len;
    int engine_fd;
    struct kvt_region *region;
    uint64_t generation;
};

/* First in main(): becomes the node, if this process was started as that. */
void two_main(int argc, char **argv);

/* A node, a device, and a peer that is up; no memory of an engine yet. */
void two_open(struct two *two, size_t node_len);
/* Everything is given back, or the program fails; the node is killed. */
void two_close(struct two *two);

void two_node_start(struct two *two); /* again, with the same memory; two->address is new */
void two_node_kill(struct two *two);

/* The engine's memory: new pages at two->engine, which stays for good once it was chosen. */
void two_engine_map(struct two *two, size_t len);
void two_engine_unmap(struct two *two);
void two_register(struct two *two);   /* as a region of a new generation */
void two_unregister(struct two *two); /* within a second and its stop; then it is destroyed */

struct two_job {
    struct kvt_transfer transfer;
    struct kvt_slice slice;
    struct kvt_extent extent;
    uint8_t answer[64];
    bool done;
    kvb_status_t status;
};
/* RIG_PUT or RIG_GET of [at, at + len) of both memories. */
kvb_status_t two_start(struct two *two, struct two_job *job, uint16_t type, size_t at, size_t len);
bool two_await(struct two *two, const bool *flag, uint64_t ms);
/* To its end. */
kvb_status_t two_move(struct two *two, uint16_t type, size_t at, size_t len);
/* Puts and gets what nothing else has, and looks. */
bool two_works(struct two *two);

#endif
