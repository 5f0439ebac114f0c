/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions of GPU memory. An own one has an address that is reserved once and physical memory that
 * comes and goes: make() goes up from whatever is there, give_back() down, and either can go on
 * where a call failed. A mapping alone holds the memory; a handle is held only for the time of a
 * call, so that nothing of ours is left to forget when it is unmapped.
 */
#include "handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FABRIC_BYTES 64 /* of a fabric handle */

/* ---- what holds the memory ---- */

static int drop_handle(struct kvplane_cuda *kc, struct kve_cuda_region *region)
{
    int result = KVPLANE_OK;
    if (region->handle != 0) {
        result = KVE_DRIVER(kc, cuMemRelease, region->handle);
        region->handle = result == KVPLANE_OK ? 0 : region->handle;
    }
    return result;
}

static int drop_copy(struct kvplane_cuda *kc, struct kve_cuda_region *region)
{
    int result = KVPLANE_OK;
    region->copied = false;
    if (region->copy != NULL) {
        result = KVE_RUNTIME(kc, cudaFreeHost, region->copy);
        region->copy = result == KVPLANE_OK ? NULL : region->copy;
    }
    return result;
}

static int properties(struct kvplane_cuda *kc, bool fabric, CUmemAllocationProp *prop_p)
{
    int has_fabric = 0;
    int has_rdma = 0;
    int result =
        KVE_DRIVER(kc, cuDeviceGetAttribute, &has_rdma,
                   CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, kc->device);
    if (result == KVPLANE_OK && fabric) {
        result = KVE_DRIVER(kc, cuDeviceGetAttribute, &has_fabric,
                            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, kc->device);
    }
    *prop_p = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    prop_p->location.id = kc->device;
    prop_p->allocFlags.gpuDirectRDMACapable = has_rdma != 0;
    prop_p->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (has_fabric != 0) {
        prop_p->requestedHandleTypes |= CU_MEM_HANDLE_TYPE_FABRIC;
    }
    return result;
}

static int create(struct kvplane_cuda *kc, struct kve_cuda_region *region)
{
    CUmemAllocationProp prop;
    int result = properties(kc, region->fabric, &prop);
    if (result == KVPLANE_OK) {
        result = KVE_DRIVER(kc, cuMemCreate, &region->handle, region->len, &prop, 0);
        /* The attribute says what the GPU could; whether this process may says only a try. */
        if (result != KVPLANE_OK && result != KVPLANE_ERR_NO_MEMORY && region->fabric) {
            region->fabric = false;
            result = create(kc, region);
        }
    }
    return result;
}

static int map(struct kvplane_cuda *kc, struct kve_cuda_region *region)
{
    int result = KVE_DRIVER(kc, cuMemMap, region->at, region->len, 0, region->handle, 0);
    region->mapped = result == KVPLANE_OK;
    return result;
}

static int make(struct kvplane_cuda *kc, struct kve_cuda_region *region)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    access.location.id = kc->device;
    int result = KVPLANE_OK;
    if (!region->mapped && region->handle == 0) {
        result = create(kc, region);
    }
    if (result == KVPLANE_OK && !region->mapped) {
        result = map(kc, region);
    }
    if (result == KVPLANE_OK) {
        result = KVE_DRIVER(kc, cuMemSetAccess, region->at, region->len, &access, 1);
    }
    if (result == KVPLANE_OK) {
        result = drop_handle(kc, region);
    }
    if (result == KVPLANE_OK && region->copied) {
        void *at = (void *)(uintptr_t)region->at;
        result = KVE_RUNTIME(kc, cudaMemcpy, at, region->copy, region->len, cudaMemcpyHostToDevice);
    }
    region->resident = result == KVPLANE_OK;
    return result;
}

static int give_back(struct kvplane_cuda *kc, struct kve_cuda_region *region)
{
    int result = KVPLANE_OK;
    if (region->mapped) {
        result = KVE_DRIVER(kc, cuMemUnmap, region->at, region->len);
        region->mapped = result != KVPLANE_OK;
    }
    region->resident = region->resident && region->mapped;
    return result == KVPLANE_OK ? drop_handle(kc, region) : result;
}

static int give_back_all(struct kvplane_cuda *kc, struct kve_cuda_region *region)
{
    int result = region->adopted ? drop_handle(kc, region) : give_back(kc, region);
    if (result == KVPLANE_OK) {
        result = drop_copy(kc, region);
    }
    if (result == KVPLANE_OK && !region->adopted && region->at != 0) {
        result = KVE_DRIVER(kc, cuMemAddressFree, region->at, region->len);
        region->at = result == KVPLANE_OK ? 0 : region->at;
    }
    return result;
}

/* What could not be given back when it was made in vain has no tag: only this looks at it. */
static void sweep(struct kvplane_cuda *kc)
{
    for (size_t i = kc->nregions; i-- > 0;) {
        struct kve_cuda_region *region = kc->regions[i];
        if (region->tag[0] == '\0' && give_back_all(kc, region) == KVPLANE_OK) {
            free(region);
            kc->regions[i] = kc->regions[--kc->nregions];
        }
    }
}

/* Made in vain; the error stays that of the making. */
static void abandon(struct kvplane_cuda *kc, struct kve_cuda_region *region)
{
    char why[sizeof kc->error];
    memcpy(why, kc->error, sizeof why);
    region->tag[0] = '\0';
    region->resident = false;
    sweep(kc);
    memcpy(kc->error, why, sizeof why);
}

int kve_cuda_memory_close(struct kvplane_cuda *kc)
{
    int result = KVPLANE_OK;
    while (kc->nregions > 0 && result == KVPLANE_OK) {
        struct kve_cuda_region *region = kc->regions[kc->nregions - 1];
        result = give_back_all(kc, region);
        if (result == KVPLANE_OK) {
            free(region);
            kc->nregions--;
        }
    }
    return result;
}

/* ---- the list ---- */

static struct kve_cuda_region *find(const struct kvplane_cuda *kc, uint32_t number)
{
    for (size_t i = 0; i < kc->nregions; i++) {
        if (kc->regions[i]->number == number && kc->regions[i]->tag[0] != '\0') {
            return kc->regions[i];
        }
    }
    return NULL;
}

static bool has_tag(const struct kvplane_cuda *kc, const char *tag)
{
    for (size_t i = 0; i < kc->ntags; i++) {
        if (strcmp(kc->tags[i], tag) == 0) {
            return true;
        }
    }
    return false;
}

static int add(struct kvplane_cuda *kc, uint32_t number, const char *tag,
               struct kve_cuda_region **region_p)
{
    bool known = has_tag(kc, tag);
    sweep(kc);
    if (kc->nregions == KVB_REGIONS_MAX || (!known && kc->ntags == KVB_TAGS_MAX)) {
        return kve_cuda_refuse(kc, KVPLANE_ERR_LIMIT, "256 regions and 8 tags at most");
    }
    struct kve_cuda_region *region = calloc(1, sizeof *region);
    if (region == NULL) {
        return kve_cuda_refuse(kc, KVPLANE_ERR_NO_MEMORY, "out of memory");
    }
    region->number = number;
    (void)snprintf(region->tag, sizeof region->tag, "%s", tag);
    if (!known) {
        memcpy(kc->tags[kc->ntags++], region->tag, sizeof region->tag);
    }
    kc->regions[kc->nregions++] = region;
    *region_p = region;
    return KVPLANE_OK;
}

/* ---- allocate ---- */

static int round_up(struct kvplane_cuda *kc, uint64_t *len)
{
    CUmemAllocationProp prop;
    size_t granularity = 0;
    int result = properties(kc, false, &prop);
    if (result == KVPLANE_OK) {
        result = KVE_DRIVER(kc, cuMemGetAllocationGranularity, &granularity, &prop,
                            CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    }
    if (result == KVPLANE_OK && (granularity == 0 || *len > INT64_MAX - (granularity - 1))) {
        result = kve_cuda_refuse(kc, KVPLANE_ERR_INVALID, "len: too large");
    }
    if (result == KVPLANE_OK) {
        *len = (*len + granularity - 1) / granularity * granularity;
    }
    return result;
}

static int allocate(struct kvplane_cuda *kc, const struct kvplane_cuda_memory *memory,
                    void **address_p)
{
    uint64_t len = memory->len;
    int result = round_up(kc, &len);
    struct kve_cuda_region *region = NULL;
    if (result == KVPLANE_OK) {
        result = add(kc, memory->region, memory->tag, &region);
    }
    if (result != KVPLANE_OK) {
        return result;
    }
    region->len = len;
    region->fabric = memory->fabric;
    result = KVE_DRIVER(kc, cuMemAddressReserve, &region->at, len, 0, 0, 0);
    if (result == KVPLANE_OK) {
        result = make(kc, region);
    }
    if (result == KVPLANE_OK) {
        *address_p = (void *)(uintptr_t)region->at;
        return KVPLANE_OK;
    }
    abandon(kc, region);
    return result;
}

static int check(struct kvplane_cuda *kc, uint64_t len, const char *tag)
{
    if (tag == NULL || !kvb_name_valid(tag)) {
        return kve_cuda_refuse(kc, KVPLANE_ERR_INVALID,
                               "tag: must be 1 to 63 characters of A-Z a-z 0-9 . _ -");
    }
    return len == 0 || len > INT64_MAX
               ? kve_cuda_refuse(kc, KVPLANE_ERR_INVALID, "len: 0, or too large")
               : KVPLANE_OK;
}

int kvplane_cuda_allocate(struct kvplane_cuda *kc, const struct kvplane_cuda_memory *memory,
                          void **address_p)
{
    int before = 0;
    int result = check(kc, memory->len, memory->tag);
    if (result == KVPLANE_OK && find(kc, memory->region) != NULL) {
        result = kve_cuda_refuse(kc, KVPLANE_ERR_EXISTS, "there is such a region");
    }
    if (result == KVPLANE_OK) {
        result = kve_cuda_enter(kc, &before);
    }
    if (result == KVPLANE_OK) {
        result = allocate(kc, memory, address_p);
        kve_cuda_leave(kc, before);
    }
    return result;
}

/* ---- adopt ---- */

/* It can be exported, which is looked at before anything is kept. */
static int judge(struct kvplane_cuda *kc, CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp prop = {0};
    int result = KVE_DRIVER(kc, cuMemGetAllocationPropertiesFromHandle, &prop, handle);
    if (result != KVPLANE_OK) {
        return result;
    }
    unsigned types = (unsigned)prop.requestedHandleTypes;
    unsigned either = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
    if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop.location.id != kc->device) {
        return kve_cuda_refuse(kc, KVPLANE_ERR_INVALID, "the memory is not on this handle's GPU");
    }
    return (types & either) != 0
               ? KVPLANE_OK
               : kve_cuda_refuse(kc, KVPLANE_ERR_INVALID,
                                 "the memory was not made exportable: set requestedHandleTypes of "
                                 "its CUmemAllocationProp to POSIX_FILE_DESCRIPTOR");
}

static int find_or_add(struct kvplane_cuda *kc, uint32_t number, const char *tag,
                       struct kve_cuda_region **region_p)
{
    struct kve_cuda_region *region = find(kc, number);
    if (region == NULL) {
        return add(kc, number, tag, region_p);
    }
    if (!region->adopted || strcmp(region->tag, tag) != 0) {
        return kve_cuda_refuse(kc, KVPLANE_ERR_EXISTS, "there is such a region, of other memory");
    }
    *region_p = region;
    return KVPLANE_OK;
}

/* The mapping that a range lies in, if it is one of an exportable allocation. */
static int look_up(struct kvplane_cuda *kc, struct kve_cuda_region *region, CUdeviceptr at,
                   uint64_t len, CUdeviceptr *base_p, uint64_t *whole_p)
{
    CUdeviceptr base = 0;
    size_t whole = 0;
    int result = KVE_DRIVER(kc, cuMemGetAddressRange, &base, &whole, at);
    if (result != KVPLANE_OK) {
        return result;
    }
    if (at < base || at - base > whole || len > whole - (at - base)) {
        return kve_cuda_refuse(kc, KVPLANE_ERR_INVALID,
                               "the range is not inside one mapping of one allocation");
    }
    result = drop_handle(kc, region); /* what an earlier try could not */
    if (result == KVPLANE_OK) {
        result =
            KVE_DRIVER(kc, cuMemRetainAllocationHandle, &region->handle, (void *)(uintptr_t)at);
    }
    if (result != KVPLANE_OK) {
        return result;
    }
    result = judge(kc, region->handle);
    int dropped = drop_handle(kc, region);
    if (result == KVPLANE_OK && dropped == KVPLANE_OK) {
        *base_p = base;
        *whole_p = whole;
    }
    return result != KVPLANE_OK ? result : dropped;
}

/* By handle if that is not 0, else by address. */
static int adopt(struct kvplane_cuda *kc, uint32_t number, const char *tag, CUdeviceptr at,
                 CUmemGenericAllocationHandle handle, uint64_t len, void **base_p)
{
    struct kve_cuda_region *region = NULL;
    CUdeviceptr base = 0;
    bool is_new = find(kc, number) == NULL;
    int result = find_or_add(kc, number, tag, &region);
    if (result != KVPLANE_OK) {
        return result;
    }
    region->adopted = true;
    result = handle != 0 ? judge(kc, handle) : look_up(kc, region, at, len, &base, &len);
    if (result != KVPLANE_OK) {
        if (is_new) {
            abandon(kc, region);
        }
        return result;
    }
    region->at = base;
    region->engines = handle;
    region->len = len;
    region->resident = true;
    if (base_p != NULL) {
        *base_p = (void *)(uintptr_t)base;
    }
    return KVPLANE_OK;
}

int kvplane_cuda_adopt(struct kvplane_cuda *kc, uint32_t region, const char *tag, void *address,
                       uint64_t len, void **base_p)
{
    int before = 0;
    int result = check(kc, len, tag);
    if (result == KVPLANE_OK && address == NULL) {
        result = kve_cuda_refuse(kc, KVPLANE_ERR_INVALID, "address: not given");
    }
    if (result == KVPLANE_OK) {
        result = kve_cuda_enter(kc, &before);
    }
    if (result == KVPLANE_OK) {
        result = adopt(kc, region, tag, (CUdeviceptr)(uintptr_t)address, 0, len, base_p);
        kve_cuda_leave(kc, before);
    }
    return result;
}

int kvplane_cuda_adopt_handle(struct kvplane_cuda *kc, uint32_t region, const char *tag,
                              unsigned long long handle, uint64_t len)
{
    int before = 0;
    int result = check(kc, len, tag);
    if (result == KVPLANE_OK && handle == 0) {
        result = kve_cuda_refuse(kc, KVPLANE_ERR_INVALID, "handle: not given");
    }
    if (result == KVPLANE_OK) {
        result = kve_cuda_enter(kc, &before);
    }
    if (result == KVPLANE_OK) {
        result = adopt(kc, region, tag, 0, handle, len, NULL);
        kve_cuda_leave(kc, before);
    }
    return result;
}

int kvplane_cuda_slice(const struct kvplane_cuda *kc, const void *address, uint64_t len,
                       struct kvplane_slice *slice_p)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
    for (size_t i = 0; i < kc->nregions; i++) {
        const struct kve_cuda_region *region = kc->regions[i];
        if (region->tag[0] != '\0' && region->at != 0 && at >= region->at && len > 0 &&
            len <= region->len && at - region->at <= region->len - len) {
            *slice_p = (struct kvplane_slice){region->number, at - region->at, len};
            return KVPLANE_OK;
        }
    }
    return KVPLANE_ERR_NOT_FOUND;
}

/* ---- hand over ---- */

struct handing { /* lives until the session completes it, which is before the handle's end */
    struct kvplane_cuda *kc;
    struct kve_cuda_region *region;
    uint64_t generation;
};

static void on_registered(void *arg, int result)
{
    struct handing handing = *(struct handing *)arg;
    free(arg);
    if (result == KVPLANE_OK) {
        handing.region->taken = handing.generation;
    }
    if (handing.kc->registered != NULL) {
        handing.kc->registered(handing.kc->ctx, handing.region->number, result);
    }
}

/* A fabric handle is data; it travels as a file of it. */
static int wrap_fabric(struct kvplane_cuda *kc, const void *bytes, int *fd_p)
{
    int fd = memfd_create("kvplane-fabric", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && write(fd, bytes, FABRIC_BYTES) == FABRIC_BYTES) {
        *fd_p = fd;
        return KVPLANE_OK;
    }
    (void)snprintf(kc->error, sizeof kc->error, "memfd_create: %m");
    if (fd >= 0) {
        (void)close(fd);
    }
    return KVPLANE_ERR_IO;
}

static int export_handle(struct kvplane_cuda *kc, CUmemGenericAllocationHandle handle, int *fd_p,
                         enum kvplane_memory *kind_p)
{
    CUmemAllocationProp prop = {0};
    unsigned char fabric[FABRIC_BYTES];
    int result = KVE_DRIVER(kc, cuMemGetAllocationPropertiesFromHandle, &prop, handle);
    if (result != KVPLANE_OK) {
        return result;
    }
    if (((unsigned)prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
        *kind_p = KVPLANE_MEMORY_CUDA;
        return KVE_DRIVER(kc, cuMemExportToShareableHandle, fd_p, handle,
                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    }
    *kind_p = KVPLANE_MEMORY_CUDA_FABRIC;
    result =
        KVE_DRIVER(kc, cuMemExportToShareableHandle, fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0);
    return result == KVPLANE_OK ? wrap_fabric(kc, fabric, fd_p) : result;
}

static int export_region(struct kvplane_cuda *kc, struct kve_cuda_region *region, int *fd_p,
                         enum kvplane_memory *kind_p)
{
    int result = drop_handle(kc, region); /* what an earlier try could not */
    if (result == KVPLANE_OK && region->engines != 0) {
        return export_handle(kc, region->engines, fd_p, kind_p);
    }
    if (result == KVPLANE_OK) {
        result = KVE_DRIVER(kc, cuMemRetainAllocationHandle, &region->handle,
                            (void *)(uintptr_t)region->at);
    }
    if (result != KVPLANE_OK) {
        return result;
    }
    result = export_handle(kc, region->handle, fd_p, kind_p);
    int dropped = drop_handle(kc, region);
    if (result == KVPLANE_OK && dropped != KVPLANE_OK) {
        (void)close(*fd_p);
        result = dropped;
    }
    return result;
}

static int hand_over(struct kvplane_cuda *kc, struct kve_cuda_region *region)
{
    struct kvplane_region msg = {
        .region = region->number, .tag = region->tag, .fd = -1, .len = region->len};
    msg.generation = region->generation + 1;
    struct handing *handing = malloc(sizeof *handing);
    if (handing == NULL) {
        return kve_cuda_refuse(kc, KVPLANE_ERR_NO_MEMORY, "out of memory");
    }
    int result = export_region(kc, region, &msg.fd, &msg.kind);
    if (result != KVPLANE_OK) {
        goto err;
    }
    *handing = (struct handing){kc, region, msg.generation};
    result = kvplane_register_region(kc->kv, &msg, on_registered, handing);
    (void)close(msg.fd); /* the session has its own until it is sent; this one would hold, too */
    if (result != KVPLANE_OK) {
        result = kve_cuda_refuse(kc, result, kvplane_strerror(result));
        goto err;
    }
    region->generation = msg.generation;
    return KVPLANE_OK;
err:
    free(handing);
    return result;
}

int kvplane_cuda_hand_over(struct kvplane_cuda *kc)
{
    int before = 0;
    int result = kve_cuda_enter(kc, &before);
    if (result != KVPLANE_OK) {
        return result;
    }
    for (size_t i = 0; i < kc->nregions && result == KVPLANE_OK; i++) {
        if (kc->regions[i]->resident) {
            result = hand_over(kc, kc->regions[i]);
        }
    }
    kve_cuda_leave(kc, before);
    return result;
}

bool kvplane_cuda_ready(const struct kvplane_cuda *kc)
{
    for (size_t i = 0; i < kc->nregions; i++) {
        const struct kve_cuda_region *region = kc->regions[i];
        if (region->resident && (region->generation == 0 || region->taken != region->generation)) {
            return false;
        }
    }
    return true;
}

/* ---- sleep and wake ---- */

/* Of a release or a restore: which tags, and what of them is kept. */
struct tags {
    const struct kvplane_cuda *kc;
    const char *const *tags;
    const bool *offload; /* NULL: a restore */
    size_t n;
};

/* The place of the region's tag; n: it is not meant. */
static size_t place(const struct tags *tags, const struct kve_cuda_region *region)
{
    size_t i = 0;
    while (i < tags->n && strcmp(tags->tags[i], region->tag) != 0) {
        i++;
    }
    return i;
}

/* The first region from *at on that is meant; NULL: there is none. */
static struct kve_cuda_region *next(const struct tags *tags, size_t *at)
{
    while (*at < tags->kc->nregions) {
        struct kve_cuda_region *region = tags->kc->regions[(*at)++];
        if (place(tags, region) < tags->n) {
            return region;
        }
    }
    return NULL;
}

static bool is_kept(const struct tags *tags, const struct kve_cuda_region *region)
{
    return tags->offload[place(tags, region)];
}

static bool is_named(const void *arg, uint32_t number)
{
    const struct tags *tags = arg;
    const struct kve_cuda_region *region = find(tags->kc, number);
    return region != NULL && place(tags, region) < tags->n;
}

/* A copy that is there is of an earlier time: made again. */
static int copy_aside(struct kvplane_cuda *kc, struct kve_cuda_region *region)
{
    const void *at = (const void *)(uintptr_t)region->at;
    int result = KVPLANE_OK;
    region->copied = false;
    if (region->copy == NULL) {
        result = KVE_RUNTIME(kc, cudaHostAlloc, &region->copy, region->len, cudaHostAllocDefault);
        region->copy = result == KVPLANE_OK ? region->copy : NULL;
    }
    if (result == KVPLANE_OK) {
        result = KVE_RUNTIME(kc, cudaMemcpy, region->copy, at, region->len, cudaMemcpyDeviceToHost);
        region->copied = result == KVPLANE_OK;
    }
    return result;
}

static int prepare(struct kvplane_cuda *kc, const struct tags *tags)
{
    struct kve_cuda_region *region;
    int result = kve_cuda_settle(kc); /* what it still writes is to be in the copy */
    for (size_t at = 0; result == KVPLANE_OK && (region = next(tags, &at)) != NULL;) {
        if (!region->adopted && region->resident && is_kept(tags, region)) {
            result = copy_aside(kc, region);
        }
    }
    if (result == KVPLANE_OK) {
        return KVPLANE_OK;
    }
    for (size_t at = 0; (region = next(tags, &at)) != NULL;) {
        if (!region->adopted && region->resident) {
            (void)drop_copy(kc, region); /* what cannot be freed is freed later */
        }
    }
    return result;
}

static int commit_one(struct kvplane_cuda *kc, struct kve_cuda_region *region, bool keep)
{
    if (region->adopted) {
        region->resident = false;
        region->copied = keep;
        region->engines = 0;
        return drop_handle(kc, region);
    }
    int result = give_back(kc, region);
    if (result == KVPLANE_OK && !keep) {
        result = drop_copy(kc, region);
    }
    return result;
}

static int commit(struct kvplane_cuda *kc, const struct tags *tags)
{
    struct kve_cuda_region *region;
    for (size_t at = 0; (region = next(tags, &at)) != NULL;) {
        if (!region->adopted && region->resident && !region->copied && is_kept(tags, region)) {
            return kve_cuda_refuse(kc, KVPLANE_ERR_BAD_STATE, "what is to be kept was not copied");
        }
    }
    /* Unmapping waits for nothing: work under it would lose the context. */
    int result = kve_cuda_settle(kc);
    if (result != KVPLANE_OK) {
        return result;
    }
    sweep(kc);
    kve_cuda_hold_drop(kc, is_named, tags, KVPLANE_ERR_GENERATION);
    for (size_t at = 0; (region = next(tags, &at)) != NULL;) {
        int one = commit_one(kc, region, is_kept(tags, region));
        result = result == KVPLANE_OK ? one : result; /* the others are given back all the same */
    }
    return result;
}

int kvplane_cuda_release(struct kvplane_cuda *kc, bool commit_, const char *const *tags,
                         const bool *offload, size_t ntags)
{
    const struct tags what = {kc, tags, offload, ntags};
    int before = 0;
    int result = kve_cuda_enter(kc, &before);
    if (result == KVPLANE_OK) {
        result = (commit_ ? commit : prepare)(kc, &what);
        kve_cuda_leave(kc, before);
    }
    return result;
}

static int bring_back(struct kvplane_cuda *kc, struct kve_cuda_region *region)
{
    if (!region->adopted) {
        return make(kc, region);
    }
    if (region->at == 0 && region->engines == 0) {
        return kve_cuda_refuse(kc, KVPLANE_ERR_INVALID,
                               "memory that was adopted by handle has to be adopted anew first");
    }
    region->resident = true;
    return KVPLANE_OK;
}

static int bring_all_back(struct kvplane_cuda *kc, const struct tags *tags)
{
    bool brought[KVB_REGIONS_MAX] = {false};
    struct kve_cuda_region *region;
    int result = KVPLANE_OK;
    for (size_t at = 0; result == KVPLANE_OK && (region = next(tags, &at)) != NULL;) {
        if (!region->resident) {
            brought[at - 1] = true;
            result = bring_back(kc, region);
        }
    }
    if (result == KVPLANE_OK) {
        return KVPLANE_OK;
    }
    char why[sizeof kc->error];
    memcpy(why, kc->error, sizeof why);
    for (size_t at = 0; (region = next(tags, &at)) != NULL;) {
        if (brought[at - 1]) {
            region->resident = false;
            (void)(region->adopted ? drop_handle(kc, region) : give_back(kc, region));
        }
    }
    memcpy(kc->error, why, sizeof why);
    return result;
}

int kvplane_cuda_restore(struct kvplane_cuda *kc, const char *const *tags, size_t ntags)
{
    const struct tags what = {kc, tags, NULL, ntags};
    struct kve_cuda_region *region;
    int before = 0;
    int result = kve_cuda_enter(kc, &before);
    if (result != KVPLANE_OK) {
        return result;
    }
    result = bring_all_back(kc, &what);
    for (size_t at = 0; result == KVPLANE_OK && (region = next(&what, &at)) != NULL;) {
        result = hand_over(kc, region);
    }
    for (size_t at = 0; result == KVPLANE_OK && (region = next(&what, &at)) != NULL;) {
        result = drop_copy(kc, region);
    }
    kve_cuda_leave(kc, before);
    return result;
}

/* ---- the truth ---- */

static enum kvplane_residency residency(const struct kve_cuda_region *region)
{
    if (region->resident) {
        return KVPLANE_RESIDENT;
    }
    if (region->mapped || region->handle != 0) {
        return KVPLANE_UNKNOWN;
    }
    return region->copied ? KVPLANE_OFFLOADED : KVPLANE_DISCARDED;
}

void kvplane_cuda_state(const struct kvplane_cuda *kc, struct kvplane_state *state)
{
    for (size_t i = 0; i < kc->ntags; i++) {
        bool found = false;
        enum kvplane_residency all = KVPLANE_UNKNOWN;
        for (size_t r = 0; r < kc->nregions; r++) {
            if (strcmp(kc->regions[r]->tag, kc->tags[i]) == 0) {
                enum kvplane_residency one = residency(kc->regions[r]);
                all = !found || one == all ? one : KVPLANE_UNKNOWN;
                found = true;
            }
        }
        if (found && state->ntags < sizeof state->tags / sizeof state->tags[0]) {
            state->tags[state->ntags++] = (struct kvplane_tag_state){kc->tags[i], all};
        }
    }
}

void kvplane_cuda_get_ledger(const struct kvplane_cuda *kc, struct kvplane_cuda_ledger *ledger_p)
{
    struct kvplane_cuda_ledger ledger = {
        .regions = kc->nregions, .held = kc->nheld, .events = kc->nevents};
    for (size_t i = 0; i < kc->nregions; i++) {
        const struct kve_cuda_region *region = kc->regions[i];
        ledger.adopted += region->adopted;
        ledger.mappings += region->mapped;
        ledger.mapped_bytes += region->mapped ? region->len : 0;
        ledger.handles += region->handle != 0;
        ledger.address_bytes += !region->adopted && region->at != 0 ? region->len : 0;
        ledger.offload_bytes += region->copy != NULL ? region->len : 0;
    }
    *ledger_p = ledger;
}
