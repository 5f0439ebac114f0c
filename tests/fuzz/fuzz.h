/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

/* What several targets demand beyond no crash. */
#include "base/assert.h"
#include "base/utf8.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What is refused says why, in a text that can be shown. */
static inline void fuzz_told(const char *why)
{
    kvb_assert(why[0] != '\0' && kvb_utf8_printable(why, strlen(why)));
}

/* Output for people: lines and columns, and nothing that moves a cursor. */
static inline void fuzz_shown(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i], next = (unsigned char)text[i + 1];
        kvb_assert((c >= ' ' || c == '\n' || c == '\t') && c != 0x7f);
        kvb_assert(c != 0xc2 || next < 0x80 || next >= 0xa0); /* C1 */
    }
}

/* ---- memory taken, where a sanitizer counts it ---- */

extern int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *,
                                                                       size_t),
                                                     void (*on_free)(const volatile void *))
    __attribute__((weak));

static _Thread_local size_t fuzz_taken_;
static _Thread_local bool fuzz_counts_;

static inline void fuzz_on_malloc_(const volatile void *at, size_t size)
{
    (void)at;
    fuzz_taken_ += fuzz_counts_ ? size : 0;
}
static inline void fuzz_on_free_(const volatile void *at)
{
    (void)at;
}

static inline void fuzz_memory_begin(void)
{
    static bool installed;
    if (!installed && __sanitizer_install_malloc_and_free_hooks != NULL) {
        (void)__sanitizer_install_malloc_and_free_hooks(fuzz_on_malloc_, fuzz_on_free_);
    }
    installed = true;
    fuzz_taken_ = 0;
    fuzz_counts_ = true;
}

/* All that was taken since, freed or not, is at most so much: a few bytes do not cost many. */
static inline void fuzz_memory_end(size_t most)
{
    fuzz_counts_ = false;
    kvb_assert(fuzz_taken_ <= most);
}

/* ---- files ---- */

/* A file with these bytes that has a path for as long as fd is open. */
static inline int fuzz_file(const void *bytes, size_t len, char path[32])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    kvb_assert(fd >= 0);
    ssize_t n = len == 0 ? 0 : write(fd, bytes, len);
    kvb_assert(n == (ssize_t)len);
    (void)snprintf(path, 32, "/proc/self/fd/%d", fd);
    return fd;
}

/* ---- input that is lines ---- */

struct fuzz_lines {
    const char *at;
    size_t left;
};

/* The next line as text of its own, cut at a NUL; NULL: there is none. To be freed. */
static inline char *fuzz_line(struct fuzz_lines *lines)
{
    if (lines->left == 0) {
        return NULL;
    }
    const char *end = memchr(lines->at, '\n', lines->left);
    size_t len = end == NULL ? lines->left : (size_t)(end - lines->at);
    char *line = strndup(lines->at, len);
    kvb_assert(line != NULL);
    lines->at += len + (end != NULL);
    lines->left -= len + (end != NULL);
    return line;
}

#endif
