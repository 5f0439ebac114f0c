/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_CUDA_GPU_DIRECT_H
#define TRANSPORT_CUDA_GPU_DIRECT_H

#include "gpu.h"
#include "message.h"

#include "base/io.h"
#include "transport/rdma.h"

/*
 * GPU memory that an RDMA device reaches itself, in the helper process (DESIGN.md section 6): the
 * connections, the protection domain, the queue pairs and the registrations are all of this
 * process, so that releasing the memory is this process's alone, and its end releases everything.
 *
 * A region that gpu.h holds is registered beside: as a dma-buf of its mapping, or, where that
 * cannot be had, by its address (the kernel's peer memory, nvidia-peermem). The registration keeps
 * the memory alive as surely as a mapping; it goes before gpu_drop(). A local key only: no peer can
 * reach the memory.
 *
 * Nobody hashes the bytes on this side: the RDMA transport's own checks vouch for the way
 * (transport/rdma.h, `unhashed`). Loop thread only.
 */
struct gpu_direct;

struct gpu_direct_ops {
    /* A move is over, for the reasons of a transport; UNSUPPORTED: nothing of it was begun, it is
     * to go through the pool. cause: with IO, the GPU's; else its text is "". */
    void (*moved)(void *ctx, uint64_t seq, kvb_status_t status, const uint8_t *answer,
                  uint32_t answer_len, const struct gpu_cause *cause);
};

struct gpu_direct_config {
    struct kvb_sched *sched;
    struct kvb_io *io;
    const struct kvt_cu *cu;
    const struct kvt_rdma_config *rdma;   /* copied */
    const struct kvt_peer_common *common; /* of connections to nodes; copied */
    const struct gpu_direct_ops *ops;
    void *ctx;
};

/* As kvt_rdma_device_open(), and so it says why not. */
KVB_MUST_USE kvb_status_t gpu_direct_open(const struct gpu_direct_config *config,
                                          struct gpu_direct **direct_p, struct gpu_cause *cause);

/* Registers a region that was imported. Not OK: nothing of it is held here, and the pool serves it;
 * cause: each way that was tried, and why it failed. */
KVB_MUST_USE kvb_status_t gpu_direct_add(struct gpu_direct *direct, const struct gpu_region *gpu,
                                         struct gpu_cause *cause);

/* Deregisters it, after what moves its bytes has ended or was stopped; done, later or, if there is
 * no such region, at once. IO, TIMEOUT: it is registered as before. */
void gpu_direct_remove(struct gpu_direct *direct, uint64_t id,
                       void (*done)(void *arg, kvb_status_t status), void *arg);

/* Begins a CUDA_MOVE; moved() comes later. Not OK: it does not. UNSUPPORTED: as there; GENERATION:
 * a region is gone; INVALID. */
KVB_MUST_USE kvb_status_t gpu_direct_move(struct gpu_direct *direct,
                                          const struct cuda_message *message);
/* Ends it within that time, if it runs. */
void gpu_direct_stop(struct gpu_direct *direct, uint64_t seq, uint64_t within_ms);

/* Adds what is held. */
void gpu_direct_count(const struct gpu_direct *direct, struct gpu_ledger *ledger);

#endif
