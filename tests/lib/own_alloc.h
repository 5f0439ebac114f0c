/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_OWN_ALLOC_H
#define TESTS_OWN_ALLOC_H

/*
 * Memory of a test double: it is not what runs out. Where allocations are wrapped (fail_calls.h,
 * fail_alloc.h), this goes past the wrapper.
 */
#include "base/assert.h"

#include <stdlib.h>

/* The linker resolves it where calloc is wrapped; elsewhere it is not there. */
__attribute__((weak)) void *__real_calloc(size_t n, size_t size);

static inline void *own_calloc(size_t n, size_t size)
{
    void *p = __real_calloc != NULL ? __real_calloc(n, size) : calloc(n, size);
    kvb_assert(p != NULL);
    return p;
}

#endif
