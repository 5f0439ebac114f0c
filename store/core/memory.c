/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include "base/assert.h"

#include <stdint.h>
#include <sys/mman.h>

#define HUGE_PAGE  ((size_t)2 << 20)
#define SMALL_STEP ((size_t)64 << 10)

static size_t round_up(size_t bytes, size_t step)
{
    return (bytes + step - 1) / step * step;
}

kvb_status_t kvs_memory_init(struct kvs_memory *memory, size_t max_bytes)
{
    size_t reserved = round_up(max_bytes, HUGE_PAGE);
    char *range = mmap(NULL, reserved + HUGE_PAGE, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
        return KVB_ERR_NO_MEMORY;
    }
    /* Keep the aligned part only. */
    size_t before = round_up((uintptr_t)range, HUGE_PAGE) - (uintptr_t)range;
    if (before > 0) {
        munmap(range, before);
    }
    munmap(range + before + reserved, HUGE_PAGE - before);
    *memory = (struct kvs_memory){.base = range + before, .reserved = reserved};
    return KVB_OK;
}

void kvs_memory_cleanup(struct kvs_memory *memory)
{
    if (memory->base != NULL) {
        munmap(memory->base, memory->reserved);
        memory->base = NULL;
    }
}

bool kvs_memory_grow(struct kvs_memory *memory, size_t bytes)
{
    if (bytes <= memory->committed) {
        return true;
    }
    if (bytes > memory->reserved) {
        return false;
    }
    size_t end = round_up(bytes, bytes <= HUGE_PAGE ? SMALL_STEP : HUGE_PAGE);
    char *from = memory->base + memory->committed;
    if (mprotect(from, end - memory->committed, PROT_READ | PROT_WRITE) != 0) {
        return false;
    }
    if (end > HUGE_PAGE) {
        size_t huge = memory->committed > HUGE_PAGE ? memory->committed : HUGE_PAGE;
        /* Advice only: without huge pages it is slower, not wrong. */
        (void)madvise(memory->base + huge, end - huge, MADV_HUGEPAGE);
    }
    memory->committed = end;
    return true;
}

void kvs_memory_return(struct kvs_memory *memory, size_t offset, size_t len)
{
    kvb_assert(offset + len <= memory->committed);
    (void)madvise(memory->base + offset, len, MADV_DONTNEED);
}
