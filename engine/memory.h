/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MEMORY_H
#define ENGINE_MEMORY_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Memory of one tag at a fixed address. Mapped, it is a memfd sealed against resizing. Unmapped,
 * only the reservation of the addresses is left, and every access faults. Mapping makes a FRESH
 * memfd every time: pages of a new file are never those of the old one, so whoever still uses the
 * old ones shows.
 */
struct kve_memory {
    char name[80]; /* of the memfd: kve-INSTANCE-TAG; "-GENERATION" is added */
    unsigned char *base;
    size_t len; /* whole pages */
    int fd;     /* -1: not mapped */
    uint64_t generation;
    int aside_fd; /* the copy set aside by kve_memory_offload(); -1: none */
};

/* Reserves the addresses, maps nothing. len is rounded up to whole pages. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kve_memory_init(struct kve_memory *memory, const char *instance,
                                          const char *tag, size_t len);
void kve_memory_cleanup(struct kve_memory *memory);

/* Fresh zeroed pages at the same address, with the next generation. Must not be mapped. NO_MEMORY,
 * IO: nothing changed. */
KVB_MUST_USE kvb_status_t kve_memory_map(struct kve_memory *memory);
/* Gives every page back: the mapping, the descriptor. The copy set aside stays. */
void kve_memory_unmap(struct kve_memory *memory);
/* The same pages handed over anew: only the generation grows. */
void kve_memory_renew(struct kve_memory *memory);

/* Copies the mapped bytes aside, to be brought back by kve_memory_reload(). Repeated: overwrites.
 */
KVB_MUST_USE kvb_status_t kve_memory_offload(struct kve_memory *memory);
/* Copies back what was set aside, and frees that. Must be mapped. */
KVB_MUST_USE kvb_status_t kve_memory_reload(struct kve_memory *memory);
/* Forgets what was set aside. */
void kve_memory_drop_aside(struct kve_memory *memory);

/* ---- what the kernel says ---- */

/*
 * Bytes of memory of memfds whose name begins with `prefix`, as long as any of these processes has
 * them open or mapped; each file is counted once, with the pages it really has (one that is mapped
 * but open nowhere: with the mapping's length). IO: a process cannot be read.
 */
KVB_MUST_USE kvb_status_t kve_kernel_memfd_bytes(const pid_t *pids, size_t npids,
                                                 const char *prefix, uint64_t *bytes_p);

struct kve_kernel_memory {
    uint64_t anon, file, shmem; /* resident bytes of a process, by kind */
};
KVB_MUST_USE kvb_status_t kve_kernel_process_memory(pid_t pid, struct kve_kernel_memory *memory_p);

#endif
