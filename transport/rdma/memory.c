/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registrations. The node's memory once, whole, for peers to read and write. The engine's one a
 * region, local only: no remote key to it is ever made, so that taking the registration back here
 * is all that it takes. They are made and unmade where regions are (region.c), by a transport that
 * moves nothing; the peers look them up by address.
 */
#include "memory.h"

#include "base/assert.h"
#include "base/faults.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* ---- one ---- */

/* A number from a file of /proc, behind `name` where one is given; 0: not there. */
static uint64_t proc_number(const char *path, const char *name)
{
    char line[256];
    uint64_t value = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    while (fgets(line, sizeof line, file) != NULL) {
        size_t len = name != NULL ? strlen(name) : 0;
        if (name == NULL || strncmp(line, name, len) == 0) {
            value = strtoull(line + len, NULL, 10);
            break;
        }
    }
    (void)fclose(file);
    return value;
}

static uint64_t lines_of(const char *path)
{
    uint64_t lines = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    for (int c; (c = getc(file)) != EOF;) {
        lines += c == '\n';
    }
    (void)fclose(file);
    return lines;
}

/* ENOMEM has three causes, of which the kernel does not say which it was. */
static kvb_status_t explain_no_memory(const struct kvt_rdma_device *device, uint64_t len,
                                      char *reason)
{
    struct rlimit limit;
    uint64_t pinned = proc_number("/proc/self/status", "VmPin:") << 10;
    uint64_t maps = lines_of("/proc/self/maps");
    uint64_t maps_max = proc_number("/proc/sys/vm/max_map_count", NULL);
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        (len > limit.rlim_cur || pinned > limit.rlim_cur - len)) {
        (void)snprintf(reason, KVT_RDMA_REASON_MAX,
                       "%s cannot register %llu bytes: %llu are locked already and the limit of "
                       "locked memory is %llu (RLIMIT_MEMLOCK): raise it (ulimit -l, LimitMEMLOCK= "
                       "of the unit, --ulimit memlock= of the container)",
                       device->info.device, (unsigned long long)len, (unsigned long long)pinned,
                       (unsigned long long)limit.rlim_cur);
        return KVB_ERR_LIMIT;
    }
    bool finite = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    if (maps_max != 0 && maps + 16 >= maps_max) {
        (void)snprintf(reason, KVT_RDMA_REASON_MAX,
                       "%s cannot register %llu bytes: this process has %llu mappings of at most "
                       "%llu: raise vm.max_map_count",
                       device->info.device, (unsigned long long)len, (unsigned long long)maps,
                       (unsigned long long)maps_max);
        return KVB_ERR_LIMIT;
    }
    if (finite) { /* it may be that, too: others of this user count as well on some kernels */
        (void)snprintf(reason, KVT_RDMA_REASON_MAX,
                       "%s cannot register %llu bytes: out of memory, or of locked memory: the "
                       "limit is %llu (RLIMIT_MEMLOCK), of which %llu are locked: raise it (ulimit "
                       "-l, LimitMEMLOCK= of the unit)",
                       device->info.device, (unsigned long long)len,
                       (unsigned long long)limit.rlim_cur, (unsigned long long)pinned);
        return KVB_ERR_LIMIT;
    }
    (void)snprintf(reason, KVT_RDMA_REASON_MAX,
                   "%s cannot register %llu bytes: out of memory, or of the device's %d "
                   "registrations",
                   device->info.device, (unsigned long long)len, device->attr.max_mr);
    return KVB_ERR_NO_MEMORY;
}

static kvb_status_t explain(const struct kvt_rdma_device *device, uint64_t len, int error,
                            char *reason)
{
    char text[128];
    switch (error) {
    case ENOMEM:
        return explain_no_memory(device, len, reason);
    case EFAULT:
        (void)snprintf(reason, KVT_RDMA_REASON_MAX,
                       "%s cannot register %llu bytes: bad address: not all of it is mapped and "
                       "writable",
                       device->info.device, (unsigned long long)len);
        return KVB_ERR_INVALID;
    case ENOSPC:
    case EMFILE:
    case EAGAIN:
        (void)snprintf(reason, KVT_RDMA_REASON_MAX,
                       "%s cannot register %llu bytes: it has no room for more than %d "
                       "registrations: use fewer, larger regions",
                       device->info.device, (unsigned long long)len, device->attr.max_mr);
        return KVB_ERR_LIMIT;
    default:
        (void)snprintf(reason, KVT_RDMA_REASON_MAX, "%s cannot register %llu bytes: %s (%d)",
                       device->info.device, (unsigned long long)len,
                       strerror_r(error, text, sizeof text), error);
        return KVB_ERR_IO;
    }
}

/* dma_buf: -1, or a descriptor of the memory, in which it lies at that offset. */
static kvb_status_t try_register(struct kvt_rdma_device *device, void *base, uint64_t len,
                                 int access, int dma_buf, uint64_t offset, struct ibv_mr **mr_p,
                                 char reason[KVT_RDMA_REASON_MAX])
{
    kvb_status_t status;
    if (len > SIZE_MAX || (device->attr.max_mr_size != 0 && len > device->attr.max_mr_size)) {
        (void)snprintf(reason, KVT_RDMA_REASON_MAX,
                       "%s cannot register %llu bytes in one: its limit (max_mr_size) is %llu: use "
                       "smaller regions",
                       device->info.device, (unsigned long long)len,
                       (unsigned long long)device->attr.max_mr_size);
        status = KVB_ERR_LIMIT;
    } else if (kvt_rdma_device_dead(device)) {
        (void)snprintf(reason, KVT_RDMA_REASON_MAX, "%s is lost", device->info.device);
        status = KVB_ERR_IO;
    } else {
        errno = 0;
        struct ibv_mr *mr =
            dma_buf < 0 ? device->verbs->ibv_reg_mr(device->pd, base, (size_t)len, access)
                        : device->verbs->ibv_reg_dmabuf_mr(device->pd, offset, (size_t)len,
                                                           (uintptr_t)base, dma_buf, access);
        if (mr != NULL) {
            *mr_p = mr;
            return KVB_OK;
        }
        status = explain(device, len, errno, reason);
    }
    return status;
}

static void tell_failure(kvb_status_t status, const char *reason)
{
    KVB_LOG(ERROR, "rdma: memory could not be registered", KVB_STATUS(status),
            KVB_STR("reason", reason));
}

kvb_status_t rmem_register(struct kvt_rdma_device *device, void *base, uint64_t len, int access,
                           struct ibv_mr **mr_p, char reason[KVT_RDMA_REASON_MAX])
{
    kvb_status_t status = try_register(device, base, len, access, -1, 0, mr_p, reason);
    if (status != KVB_OK) {
        tell_failure(status, reason);
    }
    return status;
}

/* IO: it stands. A device that is gone has let go of everything, whatever it answers. */
static kvb_status_t deregister(struct kvt_rdma_device *device, struct ibv_mr *mr)
{
    int error = device->verbs->ibv_dereg_mr(mr);
    if (error == 0) {
        return KVB_OK;
    }
    KVB_LOG(ERROR, "rdma: a registration could not be taken back",
            KVB_STR("device", device->info.device), KVB_ERRNO(error));
    return kvt_rdma_device_dead(device) ? KVB_OK : KVB_ERR_IO;
}

void *rmem_pages(size_t len)
{
    void *pages =
        mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages != MAP_FAILED ? pages : NULL;
}

void rmem_pages_free(void *pages, size_t len)
{
    if (pages != NULL) {
        (void)munmap(pages, len);
    }
}

/* ---- the node's ---- */

struct kvt_rdma_share {
    struct kvb_list link;
    struct kvt_rdma_device *device;
    uint8_t *base;
    uint64_t len;
    struct ibv_mr *mr;
};

kvb_status_t kvt_rdma_share_register(struct kvt_rdma_device *device, void *base, uint64_t len,
                                     struct kvt_rdma_share **share_p,
                                     char reason[KVT_RDMA_REASON_MAX])
{
    if (len == 0 || (uintptr_t)base > UINTPTR_MAX - len) {
        (void)snprintf(reason, KVT_RDMA_REASON_MAX, "no memory at all to register");
        return KVB_ERR_INVALID;
    }
    struct kvt_rdma_share *share = malloc(sizeof *share);
    if (share == NULL) {
        (void)snprintf(reason, KVT_RDMA_REASON_MAX, "out of memory");
        return KVB_ERR_NO_MEMORY;
    }
    *share = (struct kvt_rdma_share){.device = device, .base = base, .len = len};
    kvb_status_t status =
        rmem_register(device, base, len,
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
                      &share->mr, reason);
    if (status != KVB_OK) {
        free(share);
        return status;
    }
    kvb_list_push_back(&device->shares, &share->link);
    *share_p = share;
    return KVB_OK;
}

void kvt_rdma_share_unregister(struct kvt_rdma_share *share)
{
    if (share == NULL) {
        return;
    }
    kvb_list_remove(&share->link);
    (void)deregister(share->device, share->mr); /* the process ends with it */
    free(share);
}

const struct kvt_rdma_share *rdev_share_of(const struct kvt_rdma_device *device, const void *base,
                                           uint64_t len)
{
    uintptr_t at = (uintptr_t)base;
    kvb_list_each(&device->shares, link)
    {
        const struct kvt_rdma_share *share = kvb_container_of(link, struct kvt_rdma_share, link);
        uintptr_t from = (uintptr_t)share->base;
        if (at >= from && at - from <= share->len && len <= share->len - (at - from)) {
            return share;
        }
    }
    return NULL;
}

uint32_t rshare_key(const struct kvt_rdma_share *share)
{
    return share->mr->rkey;
}

/* ---- the engine's ---- */

struct registration {
    uint8_t *base;
    uint64_t len;
    struct ibv_mr *mr;         /* NULL: left out */
    struct kvt_region *region; /* NULL: a stale one, of a fault run */
    uint64_t owner;
    uint32_t number;
};

struct kvt_rdma_memory {
    struct kvt_transport base; /* which moves nothing */
    struct kvt_rdma_device *device;
    struct registration *all; /* by address; no two overlap, since mappings do not */
    uint32_t n, cap;
    bool optional; /* what the device does not take goes another way */
    struct kvt_rdma_memory_stats counted;
    char reason[KVT_RDMA_REASON_MAX];
};

static struct kvt_rdma_memory *of(struct kvt_transport *transport)
{
    return kvb_container_of(transport, struct kvt_rdma_memory, base);
}

struct kvt_rdma_device *rmem_device(struct kvt_rdma_memory *memory)
{
    return memory->device;
}

/* How many begin at or before that address. */
static uint32_t count_up_to(const struct kvt_rdma_memory *memory, uintptr_t at)
{
    uint32_t from = 0, to = memory->n;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if ((uintptr_t)memory->all[middle].base <= at) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    return from;
}

struct ibv_mr *rmem_find(const struct kvt_rdma_memory *memory, const void *at, uint64_t *len_p)
{
    uint32_t i = count_up_to(memory, (uintptr_t)at);
    if (i == 0) {
        return NULL;
    }
    const struct registration *is = &memory->all[i - 1];
    uint64_t offset = (uintptr_t)at - (uintptr_t)is->base;
    if (offset >= is->len) {
        return NULL;
    }
    *len_p = is->len - offset;
    return is->mr;
}

bool rmem_covers(const struct kvt_rdma_memory *memory, const struct kvt_region *region)
{
    uint64_t len = 0;
    return region->memory->address != NULL &&
           rmem_find(memory, region->memory->address(region->map), &len) != NULL;
}

/* Where it may, a region does without: the engine starts, or wakes, and its bytes go another way.
 */
static kvb_status_t leave_out(struct kvt_rdma_memory *memory, const struct kvt_region *region,
                              kvb_status_t status)
{
    memory->counted.failed++;
    rdev_count(memory->device, KVT_RDMA_REGISTRATION);
    if (!memory->optional || status == KVB_ERR_INVALID) {
        if (region->desc.kind == KVT_MEMORY_HOST) { /* a GPU's has other ways: its owner tells */
            tell_failure(status, memory->reason);
        }
        return status == KVB_ERR_INVALID ? KVB_ERR_IO : status; /* the mapping is ours */
    }
    memory->counted.left_out++;
    KVB_LOG(WARN, "rdma: memory of an engine is not registered and goes another way",
            KVB_STR("tag", region->desc.tag), KVB_U64("region", region->desc.number),
            KVB_U64("bytes", region->desc.len), KVB_STATUS(status),
            KVB_STR("reason", memory->reason));
    return KVB_OK;
}

static kvb_status_t region_register(struct kvt_transport *transport, struct kvt_region *region)
{
    struct kvt_rdma_memory *memory = of(transport);
    if (region->memory->address == NULL) {
        return KVB_OK; /* nothing here reaches it; a transfer that names it is refused */
    }
    if (kvt_rdma_device_dead(memory->device)) {
        return KVB_OK; /* so it is here; and the engine wakes, over tcp or without the others */
    }
    if (memory->n == memory->cap) {
        uint32_t cap = memory->cap != 0 ? 2 * memory->cap : 16;
        struct registration *all = realloc(memory->all, cap * sizeof *all);
        if (all == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        memory->all = all;
        memory->cap = cap;
    }
    uint8_t *base = region->memory->address(region->map);
    struct ibv_mr *mr = NULL;
    kvb_status_t status =
        try_register(memory->device, base, region->desc.len, IBV_ACCESS_LOCAL_WRITE,
                     region->dma_buf, region->dma_buf_offset, &mr, memory->reason);
    if (status != KVB_OK) {
        status = leave_out(memory, region, status);
    }
    if (status != KVB_OK) {
        return status;
    }
    uint32_t at = count_up_to(memory, (uintptr_t)base);
    memmove(memory->all + at + 1, memory->all + at, (memory->n - at) * sizeof *memory->all);
    memory->all[at] = (struct registration){
        .base = base,
        .len = region->desc.len,
        .mr = mr,
        .region = region,
        .owner = region->desc.owner,
        .number = region->desc.number,
    };
    memory->n++;
    if (mr == NULL) {
        return KVB_OK;
    }
    memory->counted.registered++;
    memory->counted.pinned_bytes += region->desc.len;
    region->pinned_bytes += region->desc.len;
    return KVB_OK;
}

/* Fault run `unregister-skipped`: the first registration of a region is never taken back (region.c
 * keeps its mapping, too). */
static bool keep_stale(struct kvt_rdma_memory *memory, struct registration *is)
{
    if (!kvb_fault(KVB_FAULT_UNREGISTER_SKIPPED)) {
        return false;
    }
    for (uint32_t i = 0; i < memory->n; i++) {
        const struct registration *other = &memory->all[i];
        if (other->region == NULL && other->owner == is->owner && other->number == is->number &&
            other->len == is->len) {
            return false;
        }
    }
    is->region = NULL;
    return true;
}

static void remove_at(struct kvt_rdma_memory *memory, uint32_t i)
{
    memory->n--;
    memmove(memory->all + i, memory->all + i + 1, (memory->n - i) * sizeof *memory->all);
}

static kvb_status_t region_unregister(struct kvt_transport *transport, struct kvt_region *region)
{
    struct kvt_rdma_memory *memory = of(transport);
    uint32_t i = 0;
    while (i < memory->n && memory->all[i].region != region) {
        i++;
    }
    if (i == memory->n) {
        return KVB_OK;
    }
    if (memory->all[i].mr == NULL) {
        memory->counted.left_out--;
        remove_at(memory, i);
        return KVB_OK;
    }
    if (!keep_stale(memory, &memory->all[i])) {
        kvb_status_t status = deregister(memory->device, memory->all[i].mr);
        if (status != KVB_OK) {
            return status;
        }
        remove_at(memory, i);
    }
    memory->counted.unregistered++;
    memory->counted.pinned_bytes -= region->desc.len;
    region->pinned_bytes -= region->desc.len;
    return KVB_OK;
}

static void destroy(struct kvt_transport *transport)
{
    struct kvt_rdma_memory *memory = of(transport);
    while (memory->n > 0) {
        kvb_assert(memory->all[memory->n - 1].region == NULL);
        (void)deregister(memory->device, memory->all[memory->n - 1].mr);
        remove_at(memory, memory->n - 1);
    }
    free(memory->all);
    free(memory);
}

static const struct kvt_transport_ops memory_ops = {
    .name = "rdma memory",
    .capabilities = KVT_CAP_PINS_MEMORY,
    .region_register = region_register,
    .region_unregister = region_unregister,
    .destroy = destroy,
};

kvb_status_t kvt_rdma_memory_create(struct kvt_rdma_device *device, struct kvt_regions *regions,
                                    struct kvt_rdma_memory **memory_p)
{
    kvb_assert(regions->registered == 0);
    struct kvt_rdma_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    memory->device = device;
    kvt_transport_init(&memory->base, &memory_ops, regions, 0);
    *memory_p = memory;
    return KVB_OK;
}

void kvt_rdma_memory_destroy(struct kvt_rdma_memory *memory)
{
    if (memory != NULL) {
        kvt_transport_destroy(&memory->base);
    }
}

void kvt_rdma_memory_optional(struct kvt_rdma_memory *memory)
{
    memory->optional = true;
}

const char *kvt_rdma_memory_reason(const struct kvt_rdma_memory *memory)
{
    return memory->reason;
}

void kvt_rdma_memory_stats(const struct kvt_rdma_memory *memory,
                           struct kvt_rdma_memory_stats *stats_p)
{
    *stats_p = memory->counted;
    stats_p->registrations = memory->n - memory->counted.left_out;
}
