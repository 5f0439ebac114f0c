/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake driver; fake.h says what it is. An address of the device is reserved in this process and
 * never accessible to the CPU, so that a stray access faults as it would on a GPU; the bytes of a
 * mapping are reached by a second, private address.
 *
 * One lock over everything, not held while a call hangs. A stream runs its copies in order on a
 * thread of its own, and looks at their addresses when it runs them: what was unmapped under a
 * queued copy loses the process its context, as it would.
 */
#include "fake.h"

#include "types.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define MANY 1024u

struct allocation { /* a handle */
    bool used;
    int fd;
    size_t size;
};
struct range {
    uintptr_t at;
    size_t size;
    /* of mappings only */
    uint8_t *bytes;
    int fd;
    bool access;
};
struct copy {
    struct copy *next;
    uintptr_t to, from;
    size_t len;
    bool in;
};
struct CUstream_st {
    pthread_t thread;
    struct copy *first, *last;
    bool busy, ends;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct fake_cuda_control *control;
static char directory[256];
static dev_t device_of_files;
static CUresult sticky;
static struct allocation handles[MANY];
static struct range reserved[MANY], mapped[MANY], registered[MANY];
static struct {
    unsigned users;
    int fd;
} contexts[FAKE_CUDA_DEVICES];
static _Thread_local int current; /* device + 1 */

/* ---- the fuse ---- */

static bool counts(enum fake_cuda_call call)
{
    unsigned only = atomic_load(&control->only);
    int victim = atomic_load(&control->victim);
    return atomic_load(&control->spared) != (int)getpid() &&
           (victim == 0 || victim == (int)getpid()) && (only == 0 || only == (unsigned)call + 1);
}

static bool burns(enum fake_cuda_call call)
{
    if (!counts(call)) {
        return false;
    }
    unsigned left = atomic_load(&control->fuse);
    while (left > 0 && !atomic_compare_exchange_weak(&control->fuse, &left, left - 1)) {
    }
    if (left > 0 || atomic_load(&control->fired) == 0) {
        return left == 1;
    }
    left = atomic_load(&control->burst);
    while (left > 0 && !atomic_compare_exchange_weak(&control->burst, &left, left - 1)) {
    }
    return left > 0;
}

#define SKIPPED ((CUresult)-1)

static CUresult enter(enum fake_cuda_call call)
{
    if (control == NULL) {
        return call == FAKE_CUDA_init ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    }
    (void)atomic_fetch_add(&control->calls[call], 1);
    if (sticky == CUDA_SUCCESS && burns(call)) {
        (void)atomic_store(&control->fired_call, (unsigned)call);
        (void)atomic_fetch_add(&control->fired, 1);
        CUresult code = (CUresult)atomic_load(&control->code);
        switch ((enum fake_cuda_action)atomic_load(&control->action)) {
        case FAKE_CUDA_FAIL:
            return code;
        case FAKE_CUDA_POISON:
            sticky = code;
            break;
        case FAKE_CUDA_HANG:
            for (;;) {
                (void)pause();
            }
        case FAKE_CUDA_DIE:
            (void)raise(SIGKILL);
            break;
        case FAKE_CUDA_SKIP:
            return SKIPPED;
        }
    }
    return sticky;
}

#define ENTER(member)                                                                              \
    CUresult entered = enter(FAKE_CUDA_##member);                                                  \
    if (entered != CUDA_SUCCESS) {                                                                 \
        return entered == SKIPPED ? CUDA_SUCCESS : entered;                                        \
    }

static CUresult misuse(void)
{
    (void)atomic_fetch_add(&control->misuse, 1);
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- start ---- */

static CUresult fake_init(unsigned flags)
{
    const char *dir = getenv("FAKE_CUDA_DIR");
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (dir == NULL || snprintf(directory, sizeof directory, "%s", dir) >= (int)sizeof directory) {
        return CUDA_ERROR_NO_DEVICE;
    }
    (void)pthread_mutex_lock(&lock);
    if (control == NULL) {
        char path[300];
        (void)snprintf(path, sizeof path, "%s/" FAKE_CUDA_CONTROL, directory);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        struct stat st;
        void *page = MAP_FAILED;
        if (fd >= 0 && fstat(fd, &st) == 0) {
            device_of_files = st.st_dev;
            page = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        }
        if (fd >= 0) {
            (void)close(fd);
        }
        control = page != MAP_FAILED ? page : NULL;
    }
    (void)pthread_mutex_unlock(&lock);
    if (control == NULL || control->magic != FAKE_CUDA_MAGIC) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    ENTER(init);
    return control->ndevices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* Asked for before the page is there, too: by the environment. */
static int version_of_driver(void)
{
    const char *text = getenv("FAKE_CUDA_VERSION");
    return text != NULL ? (int)strtol(text, NULL, 10) : 13000;
}

static CUresult fake_driver_version(int *version)
{
    ENTER(driver_version);
    *version = version_of_driver();
    return CUDA_SUCCESS;
}

static CUresult fake_device_count(int *count)
{
    ENTER(device_count);
    *count = control->ndevices;
    return CUDA_SUCCESS;
}

static bool is_device(int device)
{
    return device >= 0 && device < control->ndevices && device < FAKE_CUDA_DEVICES;
}

static CUresult fake_device_get(CUdevice *device, int ordinal)
{
    ENTER(device_get);
    if (!is_device(ordinal)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult fake_device_uuid(CUuuid *uuid, CUdevice device)
{
    ENTER(device_uuid);
    if (!is_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    memcpy(uuid->bytes, "fake CUDA GPU  ", 16);
    uuid->bytes[15] = (char)('0' + device);
    return CUDA_SUCCESS;
}

static CUresult fake_device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER(device_attribute);
    if (!is_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) {
        *value = atomic_load(&control->unordered) != 0 ? CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE
                                                       : CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) {
        *value = atomic_load(&control->unflushable) != 0
                     ? 0
                     : CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
        return CUDA_SUCCESS;
    }
    *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
             attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED ||
             (attribute == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED &&
              atomic_load(&control->no_dma_buf) == 0) ||
             attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
    return CUDA_SUCCESS;
}

/* ---- memory that the kernel accounts ---- */

/* mode: which device, what it may be exported as; it travels with the file. -1: no room. */
static int make_file(size_t size, mode_t mode)
{
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 && (fallocate(fd, 0, 0, (off_t)size) != 0 || fchmod(fd, 0600 | mode) != 0)) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

static int dup_fd(int fd)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static CUresult fake_context_retain(CUcontext *context, CUdevice device)
{
    ENTER(context_retain);
    if (!is_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    CUresult result = CUDA_SUCCESS;
    (void)pthread_mutex_lock(&lock);
    if (contexts[device].users == 0) {
        contexts[device].fd = make_file(FAKE_CUDA_CONTEXT, 0);
        result = contexts[device].fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS) {
        (void)atomic_fetch_add(&control->contexts, contexts[device].users == 0);
        contexts[device].users++;
        *context = (CUcontext)(uintptr_t)(unsigned)(device + 1);
    }
    (void)pthread_mutex_unlock(&lock);
    return result;
}

static CUresult fake_context_release(CUdevice device)
{
    ENTER(context_release);
    if (!is_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    (void)pthread_mutex_lock(&lock);
    bool held = contexts[device].users > 0;
    if (held && --contexts[device].users == 0) {
        (void)close(contexts[device].fd);
        (void)atomic_fetch_sub(&control->contexts, 1);
    }
    (void)pthread_mutex_unlock(&lock);
    return held ? CUDA_SUCCESS : misuse();
}

static CUresult fake_context_set(CUcontext context)
{
    ENTER(context_set);
    current = (int)(uintptr_t)context;
    return CUDA_SUCCESS;
}

static bool no_context(void)
{
    return current == 0 || contexts[current - 1].users == 0;
}

static CUresult fake_mem_info(size_t *free_bytes, size_t *total_bytes)
{
    ENTER(mem_info);
    struct statvfs st;
    if (no_context()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (statvfs(directory, &st) != 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *free_bytes = st.f_bfree * st.f_frsize;
    *total_bytes = st.f_blocks * st.f_frsize;
    return CUDA_SUCCESS;
}

static CUresult fake_mem_granularity(size_t *granularity, const CUmemAllocationProp *prop,
                                     CUmemAllocationGranularity_flags option)
{
    ENTER(mem_granularity);
    (void)option;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !is_device(prop->location.id)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *granularity = FAKE_CUDA_GRANULARITY;
    return CUDA_SUCCESS;
}

/* Takes fd. */
static CUresult new_handle(CUmemGenericAllocationHandle *handle, int fd, size_t size)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    (void)pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < MANY; i++) {
        if (!handles[i].used) {
            handles[i] = (struct allocation){.used = true, .fd = fd, .size = size};
            *handle = i + 1;
            result = CUDA_SUCCESS;
            (void)atomic_fetch_add(&control->handles, 1);
            break;
        }
    }
    (void)pthread_mutex_unlock(&lock);
    if (result != CUDA_SUCCESS) {
        (void)close(fd);
    }
    return result;
}

static struct allocation *find_handle(CUmemGenericAllocationHandle handle)
{
    return handle > 0 && handle <= MANY && handles[handle - 1].used ? &handles[handle - 1] : NULL;
}

#define MODE_DEVICE(device) ((mode_t)(unsigned)(device)) /* the last two bits */
#define MODE_FD             010u
#define MODE_FABRIC         020u

static CUresult fake_mem_create(CUmemGenericAllocationHandle *handle, size_t size,
                                const CUmemAllocationProp *prop, unsigned long long flags)
{
    ENTER(mem_create);
    if (flags != 0 || size == 0 || size % FAKE_CUDA_GRANULARITY != 0 ||
        prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !is_device(prop->location.id)) {
        return misuse();
    }
    unsigned types = prop->requestedHandleTypes;
    if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0 && atomic_load(&control->no_fabric) != 0) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    mode_t mode = MODE_DEVICE(prop->location.id);
    mode |= (types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 ? MODE_FD : 0;
    mode |= (types & CU_MEM_HANDLE_TYPE_FABRIC) != 0 ? MODE_FABRIC : 0;
    int fd = make_file(size, mode);
    return fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : new_handle(handle, fd, size);
}

static CUresult fake_mem_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    ENTER(mem_properties);
    struct stat st;
    (void)pthread_mutex_lock(&lock);
    const struct allocation *allocation = find_handle(handle);
    bool found = allocation != NULL && fstat(allocation->fd, &st) == 0;
    (void)pthread_mutex_unlock(&lock);
    if (!found) {
        return misuse();
    }
    *prop = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes =
            ((st.st_mode & MODE_FD) != 0 ? (unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0) |
            ((st.st_mode & MODE_FABRIC) != 0 ? (unsigned)CU_MEM_HANDLE_TYPE_FABRIC : 0),
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)(st.st_mode & 3u)},
    };
    return CUDA_SUCCESS;
}

static CUresult fake_mem_release(CUmemGenericAllocationHandle handle)
{
    ENTER(mem_release);
    (void)pthread_mutex_lock(&lock);
    struct allocation *allocation = find_handle(handle);
    bool found = allocation != NULL;
    if (found) {
        (void)close(allocation->fd);
        allocation->used = false;
        (void)atomic_fetch_sub(&control->handles, 1);
    }
    (void)pthread_mutex_unlock(&lock);
    return found ? CUDA_SUCCESS : misuse();
}

struct fabric {
    uint32_t magic;
    int32_t pid;
    int32_t fd;
    uint32_t zero;
    uint64_t inode;
};

static CUresult fake_mem_export(void *shareable, CUmemGenericAllocationHandle handle,
                                CUmemAllocationHandleType type, unsigned long long flags)
{
    ENTER(mem_export);
    (void)pthread_mutex_lock(&lock);
    const struct allocation *allocation = find_handle(handle);
    struct stat st;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (allocation == NULL || flags != 0 || fstat(allocation->fd, &st) != 0) {
        result = misuse();
    } else if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && (st.st_mode & MODE_FD) != 0) {
        int fd = dup_fd(allocation->fd);
        memcpy(shareable, &fd, sizeof fd);
        result = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
    } else if (type == CU_MEM_HANDLE_TYPE_FABRIC && (st.st_mode & MODE_FABRIC) != 0) {
        struct fabric fabric = {.magic = FAKE_CUDA_MAGIC,
                                .pid = (int32_t)getpid(),
                                .fd = allocation->fd,
                                .inode = st.st_ino};
        memset(shareable, 0, KVT_CU_FABRIC_LEN);
        memcpy(shareable, &fabric, sizeof fabric);
        result = CUDA_SUCCESS;
    }
    (void)pthread_mutex_unlock(&lock);
    return result;
}

static int open_fabric(const void *blob)
{
    struct fabric fabric;
    struct stat st;
    char path[64];
    memcpy(&fabric, blob, sizeof fabric);
    if (fabric.magic != FAKE_CUDA_MAGIC) {
        return -1;
    }
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", fabric.pid, fabric.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &st) != 0 || st.st_ino != fabric.inode)) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

static CUresult fake_mem_import(CUmemGenericAllocationHandle *handle, void *os_handle,
                                CUmemAllocationHandleType type)
{
    ENTER(mem_import);
    int fd = -1;
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        fd = dup_fd((int)(intptr_t)os_handle); /* the caller keeps its own */
    } else if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        fd = open_fabric(os_handle);
    }
    struct stat st;
    if (fd < 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (fstat(fd, &st) != 0 || st.st_dev != device_of_files || st.st_nlink != 0 ||
        st.st_size < (off_t)FAKE_CUDA_GRANULARITY) {
        (void)close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return new_handle(handle, fd, (size_t)st.st_size);
}

/* ---- addresses ---- */

static struct range *find(struct range *ranges, uintptr_t at, size_t len)
{
    for (unsigned i = 0; i < MANY; i++) {
        if (ranges[i].size != 0 && at >= ranges[i].at && len <= ranges[i].size &&
            at - ranges[i].at <= ranges[i].size - len) {
            return &ranges[i];
        }
    }
    return NULL;
}

static bool overlaps(const struct range *ranges, uintptr_t at, size_t len)
{
    for (unsigned i = 0; i < MANY; i++) {
        if (ranges[i].size != 0 && at < ranges[i].at + ranges[i].size && ranges[i].at < at + len) {
            return true;
        }
    }
    return false;
}

static struct range *find_exact(struct range *ranges, uintptr_t at, size_t len)
{
    struct range *range = find(ranges, at, len);
    return range != NULL && range->at == at && range->size == len ? range : NULL;
}

static bool add(struct range *ranges, const struct range *range)
{
    for (unsigned i = 0; i < MANY; i++) {
        if (ranges[i].size == 0) {
            ranges[i] = *range;
            return true;
        }
    }
    return false;
}

static CUresult fake_mem_reserve(CUdeviceptr *address, size_t size, size_t alignment,
                                 CUdeviceptr wanted, unsigned long long flags)
{
    ENTER(mem_reserve);
    if (size == 0 || size % FAKE_CUDA_GRANULARITY != 0 || flags != 0 ||
        (alignment & (alignment - 1)) != 0) {
        return misuse();
    }
    size_t align = alignment > FAKE_CUDA_GRANULARITY ? alignment : FAKE_CUDA_GRANULARITY;
    void *hint = (void *)(uintptr_t)wanted;
    uint8_t *all = MAP_FAILED;
    if (hint != NULL) {
        all = mmap(hint, size, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    }
    if (all == MAP_FAILED) { /* elsewhere, as the driver does */
        all =
            mmap(NULL, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all == MAP_FAILED) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        size_t before = (align - (uintptr_t)all % align) % align;
        if (before > 0) {
            (void)munmap(all, before);
        }
        (void)munmap(all + before + size, align - before);
        all += before;
    }
    (void)pthread_mutex_lock(&lock);
    bool added = add(reserved, &(struct range){.at = (uintptr_t)all, .size = size});
    (void)pthread_mutex_unlock(&lock);
    if (!added) {
        (void)munmap(all, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = (uintptr_t)all;
    (void)atomic_fetch_add(&control->addresses, 1);
    return CUDA_SUCCESS;
}

static CUresult fake_mem_free(CUdeviceptr address, size_t size)
{
    ENTER(mem_free);
    (void)pthread_mutex_lock(&lock);
    struct range *range = find_exact(reserved, (uintptr_t)address, size);
    bool ok = range != NULL && !overlaps(mapped, (uintptr_t)address, size);
    if (ok) {
        (void)munmap((void *)range->at, size);
        range->size = 0;
        (void)atomic_fetch_sub(&control->addresses, 1);
    }
    (void)pthread_mutex_unlock(&lock);
    return ok ? CUDA_SUCCESS : misuse();
}

static CUresult fake_mem_map(CUdeviceptr address, size_t size, size_t offset,
                             CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    ENTER(mem_map);
    CUresult result = CUDA_SUCCESS;
    (void)pthread_mutex_lock(&lock);
    const struct allocation *allocation = find_handle(handle);
    struct range range = {.at = (uintptr_t)address, .size = size, .fd = -1};
    if (allocation == NULL || offset != 0 || flags != 0 || size != allocation->size ||
        find(reserved, range.at, size) == NULL || overlaps(mapped, range.at, size)) {
        result = misuse();
        goto out;
    }
    range.bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, allocation->fd, 0);
    range.fd = dup_fd(allocation->fd);
    if (range.bytes == MAP_FAILED || range.fd < 0 || !add(mapped, &range)) {
        if (range.bytes != MAP_FAILED) {
            (void)munmap(range.bytes, size);
        }
        if (range.fd >= 0) {
            (void)close(range.fd);
        }
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    (void)atomic_fetch_add(&control->mappings, result == CUDA_SUCCESS);
out:
    (void)pthread_mutex_unlock(&lock);
    return result;
}

static CUresult fake_mem_unmap(CUdeviceptr address, size_t size)
{
    ENTER(mem_unmap);
    (void)pthread_mutex_lock(&lock);
    struct range *range = find_exact(mapped, (uintptr_t)address, size);
    bool found = range != NULL;
    if (found) {
        (void)munmap(range->bytes, size);
        (void)mmap((void *)range->at, size, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        (void)close(range->fd);
        range->size = 0;
        (void)atomic_fetch_sub(&control->mappings, 1);
    }
    (void)pthread_mutex_unlock(&lock);
    return found ? CUDA_SUCCESS : misuse();
}

static CUresult fake_mem_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *desc,
                                size_t count)
{
    ENTER(mem_access);
    (void)pthread_mutex_lock(&lock);
    struct range *range = find_exact(mapped, (uintptr_t)address, size);
    bool ok = range != NULL && count == 1 && desc->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
              is_device(desc->location.id) && desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (ok && atomic_load(&control->visible) != 0) {
        ok = mmap((void *)range->at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                  range->fd, 0) != MAP_FAILED;
    }
    if (ok) {
        range->access = true;
    }
    (void)pthread_mutex_unlock(&lock);
    return ok ? CUDA_SUCCESS : misuse();
}

static CUresult fake_mem_range_handle(void *handle, CUdeviceptr address, size_t size,
                                      CUmemRangeHandleType type, unsigned long long flags)
{
    ENTER(mem_range_handle);
    (void)pthread_mutex_lock(&lock);
    const struct range *range = find_exact(mapped, (uintptr_t)address, size);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (range == NULL || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0) {
        result = misuse();
    } else {
        int fd = dup_fd(range->fd);
        memcpy(handle, &fd, sizeof fd);
        result = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
    }
    (void)pthread_mutex_unlock(&lock);
    return result;
}

static CUresult fake_flush_writes(CUflushGPUDirectRDMAWritesTarget target,
                                  CUflushGPUDirectRDMAWritesScope scope)
{
    ENTER(flush_writes);
    if (no_context()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX &&
                   scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES
               ? CUDA_SUCCESS
               : misuse();
}

static CUresult fake_mem_retain(CUmemGenericAllocationHandle *handle, void *address)
{
    ENTER(mem_retain);
    (void)pthread_mutex_lock(&lock);
    const struct range *range = find(mapped, (uintptr_t)address, 1);
    size_t size = range != NULL ? range->size : 0;
    int fd = range != NULL ? dup_fd(range->fd) : -1;
    (void)pthread_mutex_unlock(&lock);
    return fd < 0 ? CUDA_ERROR_INVALID_VALUE : new_handle(handle, fd, size);
}

static CUresult fake_mem_range(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    ENTER(mem_range);
    (void)pthread_mutex_lock(&lock);
    const struct range *range = find(mapped, (uintptr_t)address, 1);
    if (range != NULL) {
        *base = range->at;
        *size = range->size;
    }
    (void)pthread_mutex_unlock(&lock);
    return range != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult fake_host_register(void *address, size_t size, unsigned flags)
{
    ENTER(host_register);
    (void)flags;
    if (no_context()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    CUresult result = CUDA_SUCCESS;
    (void)pthread_mutex_lock(&lock);
    if (overlaps(registered, (uintptr_t)address, size)) {
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    } else if (!add(registered, &(struct range){.at = (uintptr_t)address, .size = size})) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    (void)atomic_fetch_add(&control->pinned, result == CUDA_SUCCESS);
    (void)pthread_mutex_unlock(&lock);
    return result;
}

static CUresult fake_host_unregister(void *address)
{
    ENTER(host_unregister);
    CUresult result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    (void)pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < MANY; i++) {
        if (registered[i].size != 0 && registered[i].at == (uintptr_t)address) {
            registered[i].size = 0;
            result = CUDA_SUCCESS;
            (void)atomic_fetch_sub(&control->pinned, 1);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return result;
}

/* ---- copies ---- */

/* The bytes of a range of the device; NULL: nothing is mapped there, or may be touched. */
static uint8_t *device_bytes(uintptr_t at, size_t len)
{
    const struct range *range = find(mapped, at, len);
    return range != NULL && range->access ? range->bytes + (at - range->at) : NULL;
}

static bool move_locked(const struct copy *copy)
{
    uint8_t *device = device_bytes(copy->in ? copy->to : copy->from, copy->len);
    if (device == NULL) {
        return false;
    }
    if (copy->in) {
        memcpy(device, (const void *)copy->from, copy->len);
    } else {
        memcpy((void *)copy->to, device, copy->len);
    }
    return true;
}

static CUresult copy_now(struct copy copy)
{
    if (no_context()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    (void)pthread_mutex_lock(&lock);
    bool ok = move_locked(&copy);
    (void)pthread_mutex_unlock(&lock);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_copy_in(CUdeviceptr to, const void *from, size_t len)
{
    ENTER(copy_in);
    return copy_now(
        (struct copy){.to = (uintptr_t)to, .from = (uintptr_t)from, .len = len, .in = true});
}

static CUresult fake_copy_out(void *to, CUdeviceptr from, size_t len)
{
    ENTER(copy_out);
    return copy_now((struct copy){.to = (uintptr_t)to, .from = (uintptr_t)from, .len = len});
}

static void *run_stream(void *arg)
{
    struct CUstream_st *stream = arg;
    (void)pthread_mutex_lock(&lock);
    while (!stream->ends || stream->first != NULL) {
        if (stream->first == NULL) {
            (void)pthread_cond_wait(&changed, &lock);
            continue;
        }
        if (atomic_load(&control->paused) != 0) {
            (void)pthread_mutex_unlock(&lock);
            (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            (void)pthread_mutex_lock(&lock);
            continue;
        }
        struct copy *copy = stream->first;
        stream->first = copy->next;
        if (sticky == CUDA_SUCCESS && !move_locked(copy)) {
            sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        (void)atomic_fetch_add(&control->pieces, 1);
        (void)atomic_fetch_sub(&control->queued, 1);
        free(copy);
        (void)pthread_cond_broadcast(&changed);
    }
    (void)pthread_mutex_unlock(&lock);
    return NULL;
}

static CUresult fake_stream_create(CUstream *stream, unsigned flags)
{
    ENTER(stream_create);
    (void)flags;
    if (no_context()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    struct CUstream_st *made = calloc(1, sizeof *made);
    if (made == NULL || pthread_create(&made->thread, NULL, run_stream, made) != 0) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *stream = made;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream stream)
{
    ENTER(stream_destroy);
    if (stream == NULL) {
        return misuse();
    }
    (void)pthread_mutex_lock(&lock);
    stream->ends = true;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
    (void)pthread_join(stream->thread, NULL);
    free(stream);
    return CUDA_SUCCESS;
}

static CUresult fake_stream_sync(CUstream stream)
{
    ENTER(stream_sync);
    (void)pthread_mutex_lock(&lock);
    while (stream->first != NULL) {
        (void)pthread_cond_wait(&changed, &lock);
    }
    CUresult result = sticky;
    (void)pthread_mutex_unlock(&lock);
    return result;
}

static CUresult submit(CUstream stream, const struct copy *what)
{
    if (no_context() || stream == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    struct copy *copy = malloc(sizeof *copy);
    if (copy == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *copy = *what;
    copy->next = NULL;
    (void)pthread_mutex_lock(&lock);
    if (device_bytes(copy->in ? copy->to : copy->from, copy->len) == NULL) {
        (void)pthread_mutex_unlock(&lock);
        free(copy);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (find(registered, copy->in ? copy->from : copy->to, copy->len) == NULL) {
        (void)atomic_fetch_add(&control->pageable, 1);
    }
    if (stream->first == NULL) {
        stream->first = copy;
    } else {
        stream->last->next = copy;
    }
    stream->last = copy;
    (void)atomic_fetch_add(&control->queued, 1);
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult fake_copy_in_async(CUdeviceptr to, const void *from, size_t len, CUstream stream)
{
    ENTER(copy_in_async);
    return submit(
        stream,
        &(struct copy){.to = (uintptr_t)to, .from = (uintptr_t)from, .len = len, .in = true});
}

static CUresult fake_copy_out_async(void *to, CUdeviceptr from, size_t len, CUstream stream)
{
    ENTER(copy_out_async);
    return submit(stream, &(struct copy){.to = (uintptr_t)to, .from = (uintptr_t)from, .len = len});
}

/* Which side is the device's is seen by the addresses, as the driver sees it. */
static CUresult batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes,
                      size_t count, const CUmemcpyAttributes *attributes,
                      const size_t *attribute_at, size_t nattributes, CUstream stream)
{
    if (count == 0 || nattributes == 0 || nattributes > count || attribute_at[0] != 0 ||
        attributes[0].srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
        attributes[0].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY || stream == NULL) {
        return misuse();
    }
    for (size_t i = 0; i < count; i++) {
        (void)pthread_mutex_lock(&lock);
        bool in = device_bytes((uintptr_t)to[i], sizes[i]) != NULL;
        (void)pthread_mutex_unlock(&lock);
        CUresult result = submit(stream, &(struct copy){.to = (uintptr_t)to[i],
                                                        .from = (uintptr_t)from[i],
                                                        .len = sizes[i],
                                                        .in = in});
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult fake_copy_batch_v12(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                    CUmemcpyAttributes *attributes, size_t *attribute_at,
                                    size_t nattributes, size_t *failed_at, CUstream stream)
{
    ENTER(copy_batch_v12);
    CUresult result = batch(to, from, sizes, count, attributes, attribute_at, nattributes, stream);
    if (result != CUDA_SUCCESS) {
        *failed_at = SIZE_MAX;
    }
    return result;
}

static CUresult fake_copy_batch_v13(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                    CUmemcpyAttributes *attributes, size_t *attribute_at,
                                    size_t nattributes, CUstream stream)
{
    ENTER(copy_batch_v13);
    return batch(to, from, sizes, count, attributes, attribute_at, nattributes, stream);
}

/* ---- texts ---- */

static const struct {
    CUresult code;
    const char *name;
} names[] = {
#define X(name, value) {(CUresult)(value), #name},
    KVT_CU_RESULTS(X)
#undef X
};

static CUresult fake_error_name(CUresult error, const char **text)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i].code == error) {
            *text = names[i].name;
            return CUDA_SUCCESS;
        }
    }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_error_string(CUresult error, const char **text)
{
    return fake_error_name(error, text);
}

/* ---- the one way in ---- */

typedef void (*any_fn)(void);
static const struct {
    const char *name;
    int version;
    any_fn fn;
} table[] = {
#define X(need, name, version, member, arguments) {#name, version, (any_fn)fake_##member},
    KVT_CU_CALLS(X) FAKE_CUDA_ENGINE_CALLS(X)
#undef X
};

/* As the kernel's peer memory finds what an RDMA device is to register by address: a descriptor of
 * the pages that are mapped there, and where in it; -1: none are. */
int fake_cuda_pages(uintptr_t at, size_t len, uint64_t *offset_p);

__attribute__((visibility("default"))) int fake_cuda_pages(uintptr_t at, size_t len,
                                                           uint64_t *offset_p)
{
    int fd = -1;
    (void)pthread_mutex_lock(&lock);
    const struct range *range = find(mapped, at, len);
    if (range != NULL) {
        fd = dup_fd(range->fd);
        *offset_p = at - range->at;
    }
    (void)pthread_mutex_unlock(&lock);
    return fd;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *found);

__attribute__((visibility("default"))) CUresult
cuGetProcAddress_v2(const char *symbol, void **address, int version, cuuint64_t flags,
                    CUdriverProcAddressQueryResult *found)
{
    (void)flags;
    int knows = version_of_driver();
    size_t best = SIZE_MAX;
    bool newer = false;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(table[i].name, symbol) != 0) {
            continue;
        }
        if (table[i].version > version || table[i].version > knows) {
            newer = true;
        } else if (best == SIZE_MAX || table[i].version > table[best].version) {
            best = i;
        }
    }
    /* asked for what is newer than the driver */
    if (best == SIZE_MAX || version > knows) {
        *address = NULL;
        *found = newer || best != SIZE_MAX ? 2 : 1;
        return CUDA_ERROR_NOT_FOUND;
    }
    memcpy(address, &table[best].fn, sizeof *address);
    *found = 0;
    return CUDA_SUCCESS;
}
