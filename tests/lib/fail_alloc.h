/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAIL_ALLOC_H
#define TESTS_FAIL_ALLOC_H

/*
 * Allocation that fails when the test says so. Include in one source file of the program and link
 * it with FAIL_ALLOC_LINK (tests/unit/CMakeLists.txt): then the allocations of everything that is
 * linked statically go through here. Single-threaded programs only.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static uint64_t fail_alloc_after = UINT64_MAX; /* this many more succeed, and the next one fails */
static bool fail_alloc_hit;                    /* it has failed */

static inline bool fail_alloc_now_(void)
{
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

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);

void *__wrap_malloc(size_t size)
{
    return fail_alloc_now_() ? NULL : __real_malloc(size);
}
void *__wrap_calloc(size_t n, size_t size)
{
    return fail_alloc_now_() ? NULL : __real_calloc(n, size);
}
void *__wrap_realloc(void *p, size_t size)
{
    return fail_alloc_now_() ? NULL : __real_realloc(p, size);
}
void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fail_alloc_now_() ? NULL : __real_aligned_alloc(alignment, size);
}
char *__wrap_strdup(const char *text)
{
    return fail_alloc_now_() ? NULL : __real_strdup(text);
}

#endif
