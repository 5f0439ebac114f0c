/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAIL_ALLOC_H
#define TESTS_FAIL_ALLOC_H

/*
 * Allocation that fails when the test says so. Include in one source file of the program and link
 * it with FAIL_ALLOC_LINK (tests/unit/CMakeLists.txt): then the allocations of everything that is
 * linked statically go through here. Single-threaded programs only.
 */
#include "wrap_alloc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static uint64_t fail_alloc_after = UINT64_MAX; /* this many more succeed, and the next one fails */
static bool fail_alloc_hit;                    /* it has failed */

bool wrap_alloc_fails(const void *const *frame)
{
    (void)frame;
    if (fail_alloc_after == UINT64_MAX || fail_alloc_after-- > 0) {
        return false;
    }
    fail_alloc_after = UINT64_MAX;
    fail_alloc_hit = true;
    return true;
}

/* The n-th allocation from here fails, once (from 0). */
static inline void fail_alloc_arm(uint64_t n)
{
    fail_alloc_after = n;
    fail_alloc_hit = false;
}

/* False: there were fewer, nothing failed. */
static inline bool fail_alloc_disarm(void)
{
    fail_alloc_after = UINT64_MAX;
    return fail_alloc_hit;
}

#endif
