/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/region.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static kvb_status_t refuse(const char **reason_p, const char *reason)
{
    *reason_p = reason;
    return KVB_ERR_INVALID;
}

static kvb_status_t host_check(int fd, uint64_t offset, uint64_t len, const char **reason_p)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (len == 0) {
        return refuse(reason_p, "the region is empty");
    }
    if (offset % page != 0) {
        return refuse(reason_p, "the offset is not a multiple of the page size");
    }
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return refuse(reason_p, "the descriptor is not a memfd");
    }
    if (len > UINT64_MAX - offset || offset + len > (uint64_t)st.st_size) {
        return refuse(reason_p, "offset and length reach past the end of the memfd");
    }
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0) {
        return refuse(reason_p, "the descriptor is not a memfd");
    }
    /* Without this seal its owner can cut it while we copy, and the copy ends in SIGBUS. */
    if ((seals & F_SEAL_SHRINK) == 0) {
        return refuse(reason_p, "the memfd is not sealed against shrinking (F_SEAL_SHRINK)");
    }
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) != O_RDWR ||
        (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
        return refuse(reason_p, "the memfd cannot be written to");
    }
    return KVB_OK;
}

static kvb_status_t host_map(int fd, uint64_t offset, uint64_t len, void **map_p)
{
    if (len > SIZE_MAX || offset > INT64_MAX) {
        return KVB_ERR_INVALID;
    }
    void *map = mmap(NULL, (size_t)len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (map == MAP_FAILED) {
        switch (errno) {
        case ENOMEM: /* also: too many mappings (vm.max_map_count) */
            return KVB_ERR_NO_MEMORY;
        case EAGAIN:
        case ENFILE:
            return KVB_ERR_LIMIT;
        default:
            return KVB_ERR_IO;
        }
    }
    *map_p = map;
    return KVB_OK;
}

static void host_unmap(void *map, uint64_t len)
{
    (void)munmap(map, (size_t)len); /* fails only for ranges that were never ours */
}

static void *host_address(void *map)
{
    return map;
}

static kvb_status_t host_copy_in(void *map, uint64_t offset, const void *src, size_t len)
{
    memcpy((uint8_t *)map + offset, src, len);
    return KVB_OK;
}

static kvb_status_t host_copy_out(void *map, uint64_t offset, void *dst, size_t len)
{
    memcpy(dst, (const uint8_t *)map + offset, len);
    return KVB_OK;
}

const struct kvt_memory_ops kvt_memory_host = {
    .name = "host",
    .check = host_check,
    .map = host_map,
    .unmap = host_unmap,
    .address = host_address,
    .copy_in = host_copy_in,
    .copy_out = host_copy_out,
};
