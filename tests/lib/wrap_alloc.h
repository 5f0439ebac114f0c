/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_WRAP_ALLOC_H
#define TESTS_WRAP_ALLOC_H

/*
 * What FAIL_ALLOC_LINK (tests/unit/CMakeLists.txt) puts in the place of every allocation, for
 * fail_alloc.h and fail_calls.h, one of which says which of them fail.
 */
#include <stdbool.h>
#include <stddef.h>

/* frame: of the wrapper, with the place in the code that allocates. */
bool wrap_alloc_fails(const void *const *frame);
#define WRAP_ALLOC_FAILS_ wrap_alloc_fails(__builtin_frame_address(0))

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);

void *__wrap_malloc(size_t size)
{
    return WRAP_ALLOC_FAILS_ ? NULL : __real_malloc(size);
}
void *__wrap_calloc(size_t n, size_t size)
{
    return WRAP_ALLOC_FAILS_ ? NULL : __real_calloc(n, size);
}
void *__wrap_realloc(void *p, size_t size)
{
    return WRAP_ALLOC_FAILS_ ? NULL : __real_realloc(p, size);
}
void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return WRAP_ALLOC_FAILS_ ? NULL : __real_aligned_alloc(alignment, size);
}
char *__wrap_strdup(const char *text)
{
    return WRAP_ALLOC_FAILS_ ? NULL : __real_strdup(text);
}

#endif
