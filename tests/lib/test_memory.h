/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_MEMORY_H
#define TESTS_MEMORY_H

/*
 * An engine's memory as a test holds it: a sealed memfd, mapped between two guard pages, so that
 * one byte past either end is a fault. And what the kernel says about this process.
 */
#include "base/assert.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TEST_PREFILL 0xee

struct test_memory {
    int fd;
    uint8_t *base; /* of the len usable bytes */
    size_t len;    /* a multiple of the page size */
    uint8_t *reserved;
    size_t page;
};

/* len is rounded up to pages; all bytes are TEST_PREFILL. */
static inline void test_memory_init(struct test_memory *memory, const char *name, size_t len)
{
    memory->page = (size_t)sysconf(_SC_PAGESIZE);
    memory->len = (len + memory->page - 1) / memory->page * memory->page;
    memory->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    kvb_assert(memory->fd >= 0);
    kvb_assert(ftruncate(memory->fd, (off_t)memory->len) == 0);
    kvb_assert(fcntl(memory->fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    memory->reserved = mmap(NULL, memory->len + 2 * memory->page, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    kvb_assert(memory->reserved != MAP_FAILED);
    memory->base = memory->reserved + memory->page;
    kvb_assert(mmap(memory->base, memory->len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                    memory->fd, 0) == memory->base);
    memset(memory->base, TEST_PREFILL, memory->len);
}

static inline void test_memory_cleanup(struct test_memory *memory)
{
    kvb_assert(munmap(memory->reserved, memory->len + 2 * memory->page) == 0);
    kvb_assert(close(memory->fd) == 0);
    memory->base = NULL;
}

/* A descriptor to hand over. */
static inline int test_memory_dup(const struct test_memory *memory)
{
#ifdef __SANITIZE_THREAD__
    /* TSan sees no F_DUPFD, nor the close of a descriptor that libuv closed before: it would take
     * the new one for the old. It does see open. */
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", memory->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
#else
    int fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
#endif
    kvb_assert(fd >= 0);
    return fd;
}

static inline size_t test_count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    kvb_assert(dir != NULL);
    size_t n = 0;
    while (readdir(dir) != NULL) {
        n++;
    }
    (void)closedir(dir);
    return n;
}

/* Lines of /proc/self/maps that contain text ("" : all of them). */
static inline size_t test_count_maps(const char *text)
{
    FILE *file = fopen("/proc/self/maps", "re");
    kvb_assert(file != NULL);
    char line[512];
    size_t n = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        n += strstr(line, text) != NULL;
    }
    (void)fclose(file);
    return n;
}

/* Does this process still hold the memfd of that name, by a mapping or a descriptor? */
static inline bool test_memfd_held(const char *name)
{
    char want[128];
    (void)snprintf(want, sizeof want, "memfd:%s", name);
    if (test_count_maps(want) > 0) {
        return true;
    }
    DIR *dir = opendir("/proc/self/fd");
    kvb_assert(dir != NULL);
    bool held = false;
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char target[256];
        ssize_t len = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
        if (len > 0) {
            target[len] = '\0';
            held = held || strstr(target, want) != NULL;
        }
    }
    (void)closedir(dir);
    return held;
}

#endif
