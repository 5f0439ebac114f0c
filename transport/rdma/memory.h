/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDMA_MEMORY_H
#define RDMA_MEMORY_H

#include "device.h"

#include "transport_impl.h"

/* Registers a range. Not OK: reason says which limit it was, and what to change; logged. */
KVB_MUST_USE kvb_status_t rmem_register(struct kvt_rdma_device *device, void *base, uint64_t len,
                                        int access, struct ibv_mr **mr_p,
                                        char reason[KVT_RDMA_REASON_MAX]);

struct kvt_rdma_device *rmem_device(struct kvt_rdma_memory *memory);

/* The registration in which a byte of the engine's memory lies, and how many bytes from there on
 * do; NULL: none. */
struct ibv_mr *rmem_find(const struct kvt_rdma_memory *memory, const void *at, uint64_t *len_p);

/* Is all of the region (registered, no device's) in one registration? */
bool rmem_covers(const struct kvt_rdma_memory *memory, const struct kvt_region *region);

/* Our own buffers: pages that a child shares, not copies. NULL: no memory. */
void *rmem_pages(size_t len);
void rmem_pages_free(void *pages, size_t len);

#endif
