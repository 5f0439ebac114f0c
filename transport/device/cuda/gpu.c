/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void gpu_init(struct gpu *gpu, const struct kvt_cu *cu, void *pool, size_t pool_len)
{
    *gpu = (struct gpu){.cu = cu, .pool = pool, .pool_len = pool_len};
    kvb_list_init(&gpu->regions);
}

/* Notes the first cause only: what undoing meets comes after it. */
static kvb_status_t judge(const struct gpu *gpu, CUresult result, const char *call,
                          struct gpu_cause *cause)
{
    if (result == CUDA_SUCCESS) {
        return KVB_OK;
    }
    cause->poisoned = cause->poisoned || kvt_cu_poisons(result);
    if (cause->text[0] == '\0') {
        char text[128];
        kvt_cu_error_text(gpu->cu, result, text, sizeof text);
        (void)snprintf(cause->text, sizeof cause->text, "%s: %s", call, text);
    }
    return result == CUDA_ERROR_OUT_OF_MEMORY ? KVB_ERR_NO_MEMORY : KVB_ERR_IO;
}

static kvb_status_t refuse(struct gpu_cause *cause, kvb_status_t status, const char *why)
{
    (void)snprintf(cause->text, sizeof cause->text, "%s", why);
    return status;
}

#define CALL(member, ...) judge(gpu, gpu->cu->member(__VA_ARGS__), #member, cause)

/* ---- a GPU ---- */

/* In reverse; goes on from where it failed when called again. */
static kvb_status_t device_down(const struct gpu *gpu, struct gpu_device *device,
                                struct gpu_cause *cause)
{
    kvb_status_t status = KVB_OK;
    if (device->context == NULL) {
        return KVB_OK;
    }
    if (device->pool_registered) {
        status = CALL(context_set, device->context);
        if (status == KVB_OK) {
            status = CALL(host_unregister, gpu->pool);
        }
        device->pool_registered = status != KVB_OK;
    }
    for (int i = 1; i >= 0 && status == KVB_OK; i--) {
        if (device->streams[i] != NULL) {
            status = CALL(stream_destroy, device->streams[i]);
            device->streams[i] = status != KVB_OK ? device->streams[i] : NULL;
        }
    }
    if (status == KVB_OK) {
        status = CALL(context_set, NULL);
    }
    if (status == KVB_OK) {
        status = CALL(context_release, device->device);
        device->context = status != KVB_OK ? device->context : NULL;
    }
    return status;
}

/* Whatever it came to, device_down() undoes. */
static kvb_status_t device_up(const struct gpu *gpu, struct gpu_device *device,
                              struct gpu_cause *cause)
{
    kvb_status_t status = KVB_OK;
    if (device->context == NULL) {
        status = CALL(context_retain, &device->context, device->device);
    }
    if (status == KVB_OK) {
        status = CALL(context_set, device->context);
    }
    for (int i = 0; i < 2 && status == KVB_OK; i++) {
        if (device->streams[i] == NULL) {
            status = CALL(stream_create, &device->streams[i], CU_STREAM_NON_BLOCKING);
        }
    }
    if (status == KVB_OK && !device->pool_registered) {
        status = CALL(host_register, gpu->pool, gpu->pool_len, CU_MEMHOSTREGISTER_PORTABLE);
        device->pool_registered = status == KVB_OK;
    }
    return status;
}

/* ---- a region ---- */

static void close_fd(struct gpu_region *region)
{
    if (region->fd >= 0) {
        (void)close(region->fd);
        region->fd = -1;
    }
}

static kvb_status_t release_handle(const struct gpu *gpu, struct gpu_region *region,
                                   struct gpu_cause *cause)
{
    kvb_status_t status = KVB_OK;
    if (region->handle != 0) {
        status = CALL(mem_release, region->handle);
        region->handle = status != KVB_OK ? region->handle : 0;
    }
    return status;
}

static kvb_status_t undo(const struct gpu *gpu, struct gpu_region *region, struct gpu_cause *cause)
{
    kvb_status_t status = KVB_OK;
    if (region->mapped) {
        status = CALL(mem_unmap, region->at, region->at_len);
        region->mapped = status != KVB_OK;
    }
    if (status == KVB_OK && region->at != 0) {
        status = CALL(mem_free, region->at, region->at_len);
        region->at = status != KVB_OK ? region->at : 0;
    }
    if (status == KVB_OK) {
        status = release_handle(gpu, region, cause);
    }
    if (status == KVB_OK && region->device != NULL) {
        if (region->device->regions == 1) {
            status = device_down(gpu, region->device, cause);
        }
        if (status == KVB_OK) {
            region->device->regions--;
            region->device = NULL;
        }
    }
    close_fd(region);
    return status;
}

static void forget(struct gpu_region *region)
{
    kvb_list_remove(&region->link);
    free(region);
}

static kvb_status_t import_handle(const struct gpu *gpu, const struct gpu_import *import,
                                  struct gpu_region *region, struct gpu_cause *cause)
{
    uint8_t fabric[KVT_CU_FABRIC_LEN];
    memcpy(fabric, import->fabric, sizeof fabric);
    bool by_fd = import->source == GPU_SOURCE_FD;
    CUresult result = by_fd
                          ? gpu->cu->mem_import(&region->handle, (void *)(intptr_t)region->fd,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
                          : gpu->cu->mem_import(&region->handle, fabric, CU_MEM_HANDLE_TYPE_FABRIC);
    kvb_status_t status = judge(gpu, result, "mem_import", cause);
    close_fd(region); /* the handle holds the memory now; a descriptor would, too, beyond it */
    return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE
               ? KVB_ERR_INVALID
               : status;
}

/* Where it lies says the handle itself, in this process's numbers. */
static kvb_status_t find_device(struct gpu *gpu, struct gpu_region *region, struct gpu_cause *cause)
{
    CUmemAllocationProp prop = {0};
    kvb_status_t status = CALL(mem_properties, &prop, region->handle);
    if (status != KVB_OK) {
        return status;
    }
    if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop.location.id < 0 ||
        prop.location.id >= GPU_DEVICES_MAX) {
        return refuse(cause, KVB_ERR_INVALID, "the memory is not a device's");
    }
    region->device = &gpu->devices[prop.location.id];
    region->device->device = prop.location.id;
    region->device->regions++;

    size_t granularity = 0;
    status = CALL(mem_granularity, &granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (status == KVB_OK && granularity > 0 && region->at_len <= SIZE_MAX - (granularity - 1)) {
        region->at_len = (region->at_len + granularity - 1) / granularity * granularity;
    }
    return status;
}

static kvb_status_t map(const struct gpu *gpu, struct gpu_region *region, struct gpu_cause *cause)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = region->device->device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    kvb_status_t status = CALL(mem_reserve, &region->at, region->at_len, 0, 0, 0);
    if (status == KVB_OK) {
        status = CALL(mem_map, region->at, region->at_len, 0, region->handle, 0);
        region->mapped = status == KVB_OK;
    }
    if (status == KVB_OK) {
        status = CALL(mem_access, region->at, region->at_len, &access, 1);
    }
    /* From here on the mapping alone holds the memory: one thing less to give back. */
    return status == KVB_OK ? release_handle(gpu, region, cause) : status;
}

static struct gpu_region *find(const struct gpu *gpu, uint64_t id)
{
    kvb_list_each(&gpu->regions, link)
    {
        struct gpu_region *region = kvb_container_of(link, struct gpu_region, link);
        if (region->id == id) {
            return region;
        }
    }
    return NULL;
}

/* The size of what is to be mapped; 0: they make no sense. */
static uint64_t whole_of(const struct gpu_import *import)
{
    if (import->len == 0 || import->len > SIZE_MAX - import->offset) {
        return 0;
    }
    uint64_t end = import->offset + import->len;
    return import->whole == 0 ? end : end <= import->whole ? import->whole : 0;
}

kvb_status_t gpu_import(struct gpu *gpu, const struct gpu_import *import, struct gpu_cause *cause)
{
    uint64_t whole = whole_of(import);
    kvb_status_t status = KVB_OK;
    if (whole == 0) {
        status = refuse(cause, KVB_ERR_INVALID, "offset and length reach past the memory");
    } else if (find(gpu, import->id) != NULL) {
        status = refuse(cause, KVB_ERR_EXISTS, "there is such a region");
    }
    struct gpu_region *region = status == KVB_OK ? calloc(1, sizeof *region) : NULL;
    if (region == NULL) {
        if (import->fd >= 0) {
            (void)close(import->fd);
        }
        return status != KVB_OK ? status : refuse(cause, KVB_ERR_NO_MEMORY, "out of memory");
    }
    region->id = import->id;
    region->fd = import->fd;
    region->at_len = (size_t)whole;
    region->offset = import->offset;
    region->len = import->len;
    kvb_list_push_back(&gpu->regions, &region->link);

    status = import_handle(gpu, import, region, cause);
    if (status == KVB_OK) {
        status = find_device(gpu, region, cause);
    }
    if (status == KVB_OK) {
        status = device_up(gpu, region->device, cause);
    }
    if (status == KVB_OK) {
        status = map(gpu, region, cause);
    }
    if (status != KVB_OK && undo(gpu, region, cause) == KVB_OK) {
        forget(region);
    }
    return status;
}

kvb_status_t gpu_drop(struct gpu *gpu, uint64_t id, struct gpu_cause *cause)
{
    struct gpu_region *region = find(gpu, id);
    if (region == NULL) {
        return KVB_OK;
    }
    if (atomic_load_explicit(&region->copies, memory_order_acquire) > 0) {
        return refuse(cause, KVB_ERR_BUSY, "copies run on the region");
    }
    kvb_status_t status = undo(gpu, region, cause);
    if (status == KVB_OK) {
        forget(region);
    }
    return status;
}

/* ---- copies ---- */

struct gpu_region *gpu_find(struct gpu *gpu, uint64_t id)
{
    struct gpu_region *region = find(gpu, id);
    return region != NULL && region->mapped && region->handle == 0 ? region : NULL;
}

static bool inside(uint64_t offset, uint64_t len, uint64_t limit)
{
    return len != 0 && len <= limit && offset <= limit - len;
}

bool gpu_piece_fits(const struct gpu *gpu, const struct gpu_piece *piece)
{
    return inside(piece->offset, piece->len, piece->region->len) &&
           inside(piece->pool_offset, piece->len, gpu->pool_len);
}

uint32_t gpu_coalesce(struct gpu_piece *pieces, uint32_t n)
{
    uint32_t out = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct gpu_piece *last = out > 0 ? &pieces[out - 1] : NULL;
        if (last != NULL && last->region == pieces[i].region &&
            last->offset + last->len == pieces[i].offset &&
            last->pool_offset + last->len == pieces[i].pool_offset) {
            last->len += pieces[i].len;
        } else {
            pieces[out++] = pieces[i];
        }
    }
    return out;
}

static CUdeviceptr device_address(const struct gpu_piece *piece)
{
    return piece->region->at + piece->region->offset + piece->offset;
}

static kvb_status_t submit_each(const struct gpu *gpu, bool to_pool, const struct gpu_piece *pieces,
                                uint32_t n, CUstream stream, struct gpu_cause *cause)
{
    kvb_status_t status = KVB_OK;
    for (uint32_t i = 0; i < n && status == KVB_OK; i++) {
        uint8_t *host = gpu->pool + pieces[i].pool_offset;
        status = to_pool ? CALL(copy_out_async, host, device_address(&pieces[i]),
                                (size_t)pieces[i].len, stream)
                         : CALL(copy_in_async, device_address(&pieces[i]), host,
                                (size_t)pieces[i].len, stream);
    }
    return status;
}

/* One call for all: the driver's cost is by the call, not by the piece. */
static kvb_status_t submit_batch(const struct gpu *gpu, bool to_pool,
                                 const struct gpu_piece *pieces, uint32_t n, CUstream stream,
                                 struct gpu_cause *cause)
{
    CUdeviceptr *addresses = calloc(n, 2 * sizeof *addresses);
    size_t *sizes = calloc(n, sizeof *sizes);
    kvb_status_t status = KVB_OK;
    if (addresses == NULL || sizes == NULL) {
        free(addresses);
        free(sizes);
        return refuse(cause, KVB_ERR_NO_MEMORY, "out of memory");
    }
    CUdeviceptr *to = addresses;
    CUdeviceptr *from = addresses + n;
    for (uint32_t i = 0; i < n; i++) {
        CUdeviceptr host = (CUdeviceptr)(uintptr_t)(gpu->pool + pieces[i].pool_offset);
        to[i] = to_pool ? host : device_address(&pieces[i]);
        from[i] = to_pool ? device_address(&pieces[i]) : host;
        sizes[i] = (size_t)pieces[i].len;
    }
    /* The pool's bytes stay as they are until the copy is over: they may be read in any order. */
    CUmemcpyAttributes attributes = {.srcAccessOrder = to_pool ? CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
                                                               : CU_MEMCPY_SRC_ACCESS_ORDER_ANY};
    size_t at = 0;
    size_t failed_at = 0;
    if (gpu->cu->copy_batch_v13 != NULL) {
        status = CALL(copy_batch_v13, to, from, sizes, n, &attributes, &at, 1, stream);
    } else {
        status = CALL(copy_batch_v12, to, from, sizes, n, &attributes, &at, 1, &failed_at, stream);
    }
    free(addresses);
    free(sizes);
    return status;
}

kvb_status_t gpu_begin(struct gpu *gpu, bool to_pool, const struct gpu_piece *pieces, uint32_t n,
                       struct gpu_cause *cause)
{
    const struct gpu_device *device = pieces[0].region->device;
    CUstream stream = device->streams[to_pool ? 1 : 0];
    bool batch = n > 1 && (gpu->cu->copy_batch_v13 != NULL || gpu->cu->copy_batch_v12 != NULL);
    kvb_status_t status = CALL(context_set, device->context);
    if (status != KVB_OK) {
        return status;
    }
    return batch ? submit_batch(gpu, to_pool, pieces, n, stream, cause)
                 : submit_each(gpu, to_pool, pieces, n, stream, cause);
}

kvb_status_t gpu_finish(struct gpu *gpu, bool to_pool, const struct gpu_device *device,
                        struct gpu_cause *cause)
{
    kvb_status_t status = CALL(context_set, device->context);
    return status != KVB_OK ? status : CALL(stream_sync, device->streams[to_pool ? 1 : 0]);
}

struct gpu_ledger gpu_count(const struct gpu *gpu)
{
    struct gpu_ledger ledger = {0};
    kvb_list_each(&gpu->regions, link)
    {
        struct gpu_region *region = kvb_container_of(link, struct gpu_region, link);
        ledger.regions++;
        ledger.descriptors += region->fd >= 0;
        ledger.handles += region->handle != 0;
        ledger.addresses += region->at != 0;
        ledger.mappings += region->mapped;
        ledger.copies += atomic_load_explicit(&region->copies, memory_order_relaxed);
    }
    for (int i = 0; i < GPU_DEVICES_MAX; i++) {
        ledger.contexts += gpu->devices[i].context != NULL;
    }
    return ledger;
}
