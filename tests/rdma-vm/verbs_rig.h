/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDMA_VM_VERBS_RIG_H
#define RDMA_VM_VERBS_RIG_H

/*
 * Raw verbs for the programs of this folder: two queue pairs of one process, connected to each
 * other over the device of KVPLANE_RDMA_ADDRESS; one-sided transfers, which wait; and what the
 * kernel says about memory. Any failure prints where, and ends the program.
 */
#include <infiniband/verbs.h>

#include <stdbool.h>
#include <stdint.h>

#define check(condition)                                                                           \
    ((condition) ? (void)0 : rig_failed(__FILE__, __LINE__, __func__, #condition))
_Noreturn void rig_failed(const char *file, int line, const char *function, const char *what);

struct rig_link {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;   /* ours: the one that asks */
    struct ibv_qp *peer; /* answers by itself: one-sided */
};
void rig_link_open(struct rig_link *link);
void rig_link_close(struct rig_link *link);

/* For our own side (no remote key), and for the other's. */
void rig_register(struct rig_link *link, void *at, size_t len, struct ibv_mr **mr_p);
void rig_register_remote(struct rig_link *link, void *at, size_t len, struct ibv_mr **mr_p);
void rig_unregister(struct ibv_mr *mr);

/* READ or WRITE between local memory and the other side's; returns when it has completed, with
 * success. */
void rig_move(struct rig_link *link, enum ibv_wr_opcode opcode, const struct ibv_mr *local,
              void *at, const struct ibv_mr *remote, void *remote_at, size_t len);

uint8_t *rig_node_memory(size_t len); /* private and touched */
size_t rig_pinned(void);              /* bytes of this process: VmPin, exact */
size_t rig_memory_free(void);         /* bytes of the machine: MemFree */

#endif
