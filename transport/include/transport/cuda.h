/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_CUDA_H
#define TRANSPORT_CUDA_H

#include "base/io.h"
#include "transport/device.h"
#include "transport/rdma.h"
#include "transport/region.h"

/*
 * GPU memory of one engine process, as a struct kvt_device (DESIGN.md section 6): a helper process,
 * started by exec of this same program when the first region comes, opens the CUDA driver, imports
 * and maps what it is handed, and copies between it and a pinned pool. This process never loads
 * CUDA and never waits for it; a fault there fails what was running, and the next import starts
 * another helper. What an earlier helper held is gone with it: its regions answer UNAVAILABLE, or
 * GENERATION, until they are handed over anew.
 *
 * Loop thread only. The thread that first imports must live as long as the helper is to (it ends
 * with its parent, which to the kernel is that thread).
 */
struct kvt_cuda_direct {                  /* an RDMA device is to reach the memory itself */
    const struct kvt_rdma_config *rdma;   /* verbs: not used */
    const struct kvt_peer_common *common; /* of connections to nodes; net: not used */
};

struct kvt_cuda_config {
    struct kvb_sched *sched;
    struct kvb_io *io;
    struct kvt_regions *regions;
    const char *program;   /* to start, as "PROGRAM cuda-helper …"; NULL: this one */
    const char *lock_path; /* of this engine's helper; copied */
    uint64_t owner;        /* of the regions it is for: one value per engine rank */
    uint64_t pool_len;     /* bytes; a multiple of the page size; what one transfer may have */
    uint32_t start_ms;     /* until a helper must be ready; 0: 30,000 */
    /*
     * NULL: all goes through the pool. Else what can goes without, between the helper's own
     * connections and nodes that the transport reaches by RDMA (kvt_transport_ops.rdma_address);
     * and nobody here hashes it. What cannot goes through the pool, for a reason that the log says
     * once and info keeps. Borrowed, as is all of it.
     */
    const struct kvt_cuda_direct *direct;
};

/* Registers the pool with every transport; starts nothing. INVALID, NO_MEMORY, LIMIT, IO. */
KVB_MUST_USE kvb_status_t kvt_cuda_open(const struct kvt_cuda_config *config,
                                        struct kvt_device **device_p);

/* No region of it is left and nothing is staged. Ends the helper, waits until it is gone, and frees
 * everything; done, later, exactly once. */
void kvt_cuda_close(struct kvt_device *device, void (*done)(void *arg), void *arg);

/*
 * Ends a helper that an earlier daemon left behind; to be asked before that engine's hello is
 * accepted, or its memory could be taken for released while that helper holds it. Not while a
 * device of this process is open on that lock. OK: there is none. BUSY: it was killed and is not
 * gone yet: ask again soon. IO: it cannot be told, or not be killed.
 */
KVB_MUST_USE kvb_status_t kvt_cuda_evict(const char *lock_path);

/* The helper's main(), argv[0] being its subcommand; the program's main calls it. */
int kvt_cuda_helper_main(int argc, char **argv);
#define KVT_CUDA_HELPER_COMMAND "cuda-helper"

/* What the helper finds open. */
#define KVT_CUDA_SOCKET_FD 3
#define KVT_CUDA_POOL_FD   4

#endif
