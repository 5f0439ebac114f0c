/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_CORE_MEMORY_H
#define STORE_CORE_MEMORY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * An array that grows in place: address range for its largest size from the start, memory behind it
 * as it grows. Nothing is ever moved, so growing costs the same at every size, and what lies inside
 * is reached by base and index. Beyond the first 2 MiB in huge pages, where the system gives any.
 * New memory is zero.
 */
struct kvs_memory {
    char *base;
    size_t reserved;
    size_t committed;
};

KVB_MUST_USE kvb_status_t kvs_memory_init(struct kvs_memory *memory, size_t max_bytes);
void kvs_memory_cleanup(struct kvs_memory *memory);

/* At least the first `bytes` can be used afterwards; false: beyond its largest size, or no memory.
 */
KVB_MUST_USE bool kvs_memory_grow(struct kvs_memory *memory, size_t bytes);

/* Gives the memory behind a part back to the system; it stays usable, and is zero again. */
void kvs_memory_return(struct kvs_memory *memory, size_t offset, size_t len);

#endif
