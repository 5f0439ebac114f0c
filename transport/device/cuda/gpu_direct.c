/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_direct.h"

#include "base/assert.h"
#include "base/log.h"
#include "transport_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODES_MAX 64u
#define IDLE_MS   120000u /* a node that nothing was moved to or from is left */
#define LANES     2u      /* to a node: the one that always stands, and that of the rank */
#define STOP_MS   1000u   /* moves that a region is taken from have ended by then */
#define DRAIN_MS  200u    /* and may come to their own end until then */

struct direct_region {
    struct kvb_list link;
    struct gpu_direct *direct;
    uint64_t id;
    struct kvt_region *region;
    CUcontext context;
    bool flush; /* what the device wrote is seen by the GPU only after a flush */
    void (*removed)(void *arg, kvb_status_t status);
    void *arg;
};

struct direct_node {
    struct kvb_list link;
    char address[KVT_DEVICE_ADDRESS_MAX];
    struct kvt_transport *peer;
    uint32_t moves; /* under way */
    uint64_t used_ns;
};

struct direct_move {
    struct kvb_list link;
    struct kvt_transfer transfer;
    struct gpu_direct *direct;
    struct direct_node *node;
    uint64_t seq;
    const struct direct_region *region; /* one of them: all are of one GPU */
    uint8_t answer[KVT_DEVICE_ANSWER_MAX];
    struct kvt_slice slices[]; /* the question after them */
};

struct gpu_direct {
    struct gpu_direct_config config;
    struct kvt_peer_common common;
    struct kvt_rdma_device *device;
    struct kvt_regions *regions;
    struct kvt_rdma_memory *memory;
    struct kvb_list all;   /* struct direct_region */
    struct kvb_list nodes; /* the one used last is the last */
    struct kvb_list moves;
    uint32_t nnodes;
    uint32_t dma_bufs; /* descriptors open now */
    uint32_t last_number;
    struct kvb_timer idle;
};

static void say(struct gpu_cause *cause, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void say(struct gpu_cause *cause, const char *format, ...)
{
    size_t at = strlen(cause->text);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(cause->text + at, sizeof cause->text - at, format, args);
    va_end(args);
}

static uint64_t now_ns(const struct gpu_direct *direct)
{
    return kvb_now_ns(direct->config.sched->clock);
}

/* ---- the memory, as regions of this process: an address that only devices use ---- */

static kvb_status_t memory_check(int fd, uint64_t offset, uint64_t len, const char **reason_p)
{
    (void)fd, (void)offset, (void)len, (void)reason_p;
    return KVB_OK;
}

static kvb_status_t memory_map(int fd, uint64_t offset, uint64_t len, void **map_p)
{
    (void)fd, (void)len;
    *map_p = (void *)(uintptr_t)offset; // NOLINT(performance-no-int-to-ptr)
    return KVB_OK;
}

static void memory_unmap(void *map, uint64_t len)
{
    (void)map, (void)len; /* gpu.c's */
}

static void *memory_address(void *map)
{
    return map;
}

static kvb_status_t memory_copy_in(void *map, uint64_t offset, const void *src, size_t len)
{
    (void)map, (void)offset, (void)src, (void)len;
    return KVB_ERR_UNSUPPORTED;
}

static kvb_status_t memory_copy_out(void *map, uint64_t offset, void *dst, size_t len)
{
    (void)map, (void)offset, (void)dst, (void)len;
    return KVB_ERR_UNSUPPORTED;
}

static const struct kvt_memory_ops memory_ops = {
    .name = "cuda, mapped",
    .check = memory_check,
    .map = memory_map,
    .unmap = memory_unmap,
    .address = memory_address,
    .copy_in = memory_copy_in,
    .copy_out = memory_copy_out,
};

/* ---- registering ---- */

static struct direct_region *find(const struct gpu_direct *direct, uint64_t id)
{
    kvb_list_each(&direct->all, link)
    {
        struct direct_region *region = kvb_container_of(link, struct direct_region, link);
        if (region->id == id) {
            return region;
        }
    }
    return NULL;
}

static int attribute(const struct kvt_cu *cu, CUdevice device, CUdevice_attribute which)
{
    int value = 0;
    return cu->device_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

/* Is what a device wrote seen by the GPU whose memory it is, once it says that it is through? Else
 * a flush makes it so, where there is one. */
static kvb_status_t judge_writes(const struct kvt_cu *cu, struct direct_region *region,
                                 CUdevice device, struct gpu_cause *cause)
{
    region->flush = attribute(cu, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) <
                    CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
    bool can = cu->flush_writes != NULL &&
               (attribute(cu, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) &
                CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0;
    if (region->flush && !can) {
        say(cause, "this GPU does not say when it sees what an RDMA device wrote");
        return KVB_ERR_UNSUPPORTED;
    }
    return KVB_OK;
}

/* -1: cause says why. */
static int export(struct gpu_direct *direct, const struct gpu_region *gpu, struct gpu_cause *cause)
{
    const struct kvt_cu *cu = direct->config.cu;
    int fd = -1;
    char text[96];
    if (cu->mem_range_handle == NULL ||
        attribute(cu, gpu->device->device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) == 0) {
        say(cause, "dma-buf: the CUDA driver exports none");
        return -1;
    }
    CUresult result = cu->context_set(gpu->device->context);
    if (result == CUDA_SUCCESS) { /* of the whole mapping: what can be exported for certain */
        result =
            cu->mem_range_handle(&fd, gpu->at, gpu->at_len, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    }
    if (result != CUDA_SUCCESS) {
        kvt_cu_error_text(cu, result, text, sizeof text);
        cause->poisoned = cause->poisoned || kvt_cu_poisons(result);
        say(cause, "dma-buf: %s", text);
        return -1;
    }
    direct->dma_bufs++;
    return fd;
}

static void close_dma_buf(struct gpu_direct *direct, int fd)
{
    (void)close(fd);
    direct->dma_bufs--;
}

/* As a dma-buf, or else by address. The registration holds the memory; the descriptor would hold it
 * beyond that. */
static kvb_status_t register_region(struct gpu_direct *direct, struct direct_region *region,
                                    const struct gpu_region *gpu, struct gpu_cause *cause)
{
    kvb_status_t status = KVB_ERR_UNSUPPORTED;
    int fd = export(direct, gpu, cause);
    if (fd >= 0) {
        region->region->dma_buf = fd;
        region->region->dma_buf_offset = gpu->offset;
        status = kvt_region_register(region->region);
        region->region->dma_buf = -1;
        close_dma_buf(direct, fd);
        if (status != KVB_OK) {
            say(cause, "dma-buf: %s", kvt_rdma_memory_reason(direct->memory));
        }
    }
    if (status != KVB_OK && !cause->poisoned) {
        status = kvt_region_register(region->region);
        if (status != KVB_OK) {
            say(cause, "; nvidia-peermem: %s", kvt_rdma_memory_reason(direct->memory));
        }
    }
    return status;
}

kvb_status_t gpu_direct_add(struct gpu_direct *direct, const struct gpu_region *gpu,
                            struct gpu_cause *cause)
{
    struct direct_region *region = calloc(1, sizeof *region);
    struct kvt_region_desc desc = {
        .owner = 1,
        .number = ++direct->last_number,
        .kind = KVT_MEMORY_CUDA,
        .tag = "direct",
        .fd_offset = gpu->at + gpu->offset,
        .len = gpu->len,
        .generation = 1,
    };
    const char *reason = "out of memory";
    if (region == NULL) {
        say(cause, "%s", reason);
        return KVB_ERR_NO_MEMORY;
    }
    if (kvt_rdma_device_dead(direct->device)) {
        say(cause, "the RDMA device is lost");
        free(region);
        return KVB_ERR_UNSUPPORTED;
    }
    region->direct = direct;
    region->id = gpu->id;
    region->context = gpu->device->context;
    kvb_status_t status = judge_writes(direct->config.cu, region, gpu->device->device, cause);
    if (status != KVB_OK) {
        free(region);
        return status;
    }
    status = kvt_region_create(direct->regions, &desc, -1, &region->region, &reason);
    if (status != KVB_OK) {
        say(cause, "%s", reason);
        free(region);
        return status;
    }
    status = register_region(direct, region, gpu, cause);
    if (status != KVB_OK) {
        kvt_region_destroy(region->region);
        free(region);
        return status;
    }
    cause->text[0] = '\0'; /* of what was tried first */
    kvb_list_push_back(&direct->all, &region->link);
    return KVB_OK;
}

static void on_unregistered(void *arg, struct kvt_region *of, kvb_status_t status)
{
    struct direct_region *region = arg;
    void (*removed)(void *, kvb_status_t) = region->removed;
    void *removed_arg = region->arg;
    if (status == KVB_OK) {
        kvt_region_destroy(of);
        kvb_list_remove(&region->link);
        free(region);
    }
    removed(removed_arg, status);
}

void gpu_direct_remove(struct gpu_direct *direct, uint64_t id,
                       void (*done)(void *arg, kvb_status_t status), void *arg)
{
    struct direct_region *region = find(direct, id);
    if (region == NULL) {
        done(arg, KVB_OK);
        return;
    }
    if (kvt_region_state(region->region) != KVT_REGION_REGISTERED) {
        done(arg, KVB_ERR_BUSY); /* asked twice */
        return;
    }
    uint64_t now = now_ns(direct);
    region->removed = done;
    region->arg = arg;
    kvt_region_unregister(region->region, now + DRAIN_MS * KVB_NS_PER_MS,
                          now + STOP_MS * KVB_NS_PER_MS, on_unregistered, region);
}

/* ---- nodes ---- */

static void node_up(void *ctx, const struct kvt_hello *hello)
{
    (void)ctx, (void)hello; /* the peer has said so in the log */
}

static void node_down(void *ctx, kvb_status_t why)
{
    (void)ctx, (void)why;
}

static const struct kvt_peer_ops node_ops = {.up = node_up, .down = node_down};

static void leave_node(struct gpu_direct *direct, struct direct_node *node)
{
    kvb_assert(node->moves == 0);
    kvt_transport_destroy(node->peer);
    kvb_list_remove(&node->link);
    direct->nnodes--;
    free(node);
}

static void on_idle(struct kvb_timer *timer)
{
    struct gpu_direct *direct = kvb_container_of(timer, struct gpu_direct, idle);
    uint64_t now = now_ns(direct);
    kvb_list_each(&direct->nodes, link)
    {
        struct direct_node *node = kvb_container_of(link, struct direct_node, link);
        if (node->moves == 0 && now >= node->used_ns + IDLE_MS * KVB_NS_PER_MS) {
            leave_node(direct, node);
        }
    }
    if (direct->nnodes > 0) {
        kvb_sched_timer_set(direct->config.sched, timer, now + IDLE_MS / 4 * KVB_NS_PER_MS);
    }
}

/* True: there is room for one more. */
static bool make_room(struct gpu_direct *direct)
{
    kvb_list_each(&direct->nodes, link)
    {
        struct direct_node *node = kvb_container_of(link, struct direct_node, link);
        if (direct->nnodes >= NODES_MAX && node->moves == 0) {
            leave_node(direct, node);
        }
    }
    return direct->nnodes < NODES_MAX;
}

/* NULL: it cannot be reached from here. */
static struct direct_node *node_of(struct gpu_direct *direct, const char *address)
{
    kvb_list_each(&direct->nodes, link)
    {
        struct direct_node *node = kvb_container_of(link, struct direct_node, link);
        if (strcmp(node->address, address) == 0) {
            kvb_list_remove(link);
            kvb_list_push_back(&direct->nodes, link);
            return node;
        }
    }
    struct direct_node *node = make_room(direct) ? calloc(1, sizeof *node) : NULL;
    if (node == NULL) {
        return NULL;
    }
    const struct kvt_rdma_peer_config config = {
        .common = direct->common,
        .memory = direct->memory,
        .io = direct->config.io,
        .address = address,
        .lanes = LANES,
        .unhashed = true,
        .ops = &node_ops,
        .ctx = node,
    };
    kvb_status_t status = kvt_rdma_peer_create(direct->regions, &config, &node->peer);
    if (status != KVB_OK) {
        KVB_LOG_LIMITED(WARN, "a node cannot be reached from a CUDA helper",
                        KVB_STR("address", address), KVB_STATUS(status));
        free(node);
        return NULL;
    }
    (void)snprintf(node->address, sizeof node->address, "%s", address);
    node->used_ns = now_ns(direct);
    kvb_list_push_back(&direct->nodes, &node->link);
    if (direct->nnodes++ == 0) {
        kvb_sched_timer_set(direct->config.sched, &direct->idle,
                            node->used_ns + IDLE_MS * KVB_NS_PER_MS);
    }
    return node;
}

/* ---- moving ---- */

static void move_free(struct direct_move *move)
{
    kvb_list_remove(&move->link);
    move->node->moves--;
    move->node->used_ns = now_ns(move->direct);
    free(move);
}

/* The GPU sees what the RDMA device wrote. */
static kvb_status_t flush(const struct direct_move *move, struct gpu_cause *cause)
{
    const struct kvt_cu *cu = move->direct->config.cu;
    if (!move->region->flush) {
        return KVB_OK;
    }
    CUresult result = cu->context_set(move->region->context);
    if (result == CUDA_SUCCESS) {
        result = cu->flush_writes(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);
    }
    if (result != CUDA_SUCCESS) {
        char text[96];
        kvt_cu_error_text(cu, result, text, sizeof text);
        cause->poisoned = kvt_cu_poisons(result);
        say(cause, "flush_writes: %s", text);
    }
    return result == CUDA_SUCCESS ? KVB_OK : KVB_ERR_IO;
}

static void on_moved(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct direct_move *move = kvb_container_of(transfer, struct direct_move, transfer);
    struct gpu_direct *direct = move->direct;
    struct gpu_cause cause = {0};
    if (status == KVB_ERR_UNAVAILABLE && transfer->answer_len == 0) {
        status = KVB_ERR_UNSUPPORTED; /* no connection came about: nothing was begun */
    }
    if (status == KVB_OK && transfer->direction == KVT_FROM_SHARE) {
        status = flush(move, &cause);
    }
    direct->config.ops->moved(direct->config.ctx, move->seq, status, transfer->answer,
                              transfer->answer_len, &cause);
    move_free(move);
}

static kvb_status_t find_slices(struct gpu_direct *direct, const struct cuda_message *message,
                                struct direct_move *move)
{
    for (uint32_t i = 0; i < message->move.n; i++) {
        const struct cuda_piece *piece = &message->move.pieces[i];
        const struct direct_region *region = find(direct, piece->id);
        if (region == NULL) {
            return KVB_ERR_GENERATION;
        }
        if (i > 0 && region->context != move->region->context) {
            return KVB_ERR_UNSUPPORTED;
        }
        move->region = region;
        move->slices[i] = (struct kvt_slice){region->region, piece->offset, piece->len};
    }
    return KVB_OK;
}

static kvb_status_t start(struct direct_move *move, const struct cuda_message *message)
{
    struct gpu_direct *direct = move->direct;
    uint8_t *ask = (uint8_t *)&move->slices[message->move.n];
    kvb_status_t status = find_slices(direct, message, move);
    move->node = status == KVB_OK ? node_of(direct, message->move.address) : NULL;
    if (move->node == NULL) {
        return status == KVB_OK ? KVB_ERR_UNSUPPORTED : status;
    }
    if (message->move.ask.len > 0) {
        memcpy(ask, message->move.ask.data, message->move.ask.len);
    }
    move->transfer = (struct kvt_transfer){
        .direction = message->move.to_node ? KVT_TO_SHARE : KVT_FROM_SHARE,
        .slices = move->slices,
        .nslices = message->move.n,
        .deadline_ns =
            message->move.within_ms == UINT64_MAX
                ? KVB_NEVER
                : kvb_deadline_in_ms(direct->config.sched->clock, message->move.within_ms),
        .done = on_moved,
        .type = message->move.type,
        .ask = {ask, message->move.ask.len},
        .answer = move->answer,
        .answer_cap = message->move.answer_cap,
    };
    status = kvt_transfer_start(move->node->peer, &move->transfer);
    bool otherwise = status != KVB_OK && status != KVB_ERR_GENERATION && status != KVB_ERR_INVALID;
    return otherwise ? KVB_ERR_UNSUPPORTED : status;
}

kvb_status_t gpu_direct_move(struct gpu_direct *direct, const struct cuda_message *message)
{
    if (kvt_rdma_device_dead(direct->device)) {
        return KVB_ERR_UNSUPPORTED;
    }
    struct direct_move *move =
        calloc(1, sizeof *move + message->move.n * sizeof move->slices[0] + message->move.ask.len);
    if (move == NULL) {
        return KVB_ERR_UNSUPPORTED;
    }
    move->direct = direct;
    move->seq = message->seq;
    kvb_status_t status = start(move, message);
    if (status != KVB_OK) {
        free(move);
        return status;
    }
    move->node->moves++;
    kvb_list_push_back(&direct->moves, &move->link);
    return KVB_OK;
}

void gpu_direct_stop(struct gpu_direct *direct, uint64_t seq, uint64_t within_ms)
{
    kvb_list_each(&direct->moves, link)
    {
        struct direct_move *move = kvb_container_of(link, struct direct_move, link);
        if (move->seq == seq) {
            kvt_transfer_cancel(&move->transfer,
                                kvb_deadline_in_ms(direct->config.sched->clock, within_ms));
            return;
        }
    }
}

void gpu_direct_count(const struct gpu_direct *direct, struct gpu_ledger *ledger)
{
    struct kvt_rdma_memory_stats stats;
    kvt_rdma_memory_stats(direct->memory, &stats);
    ledger->registrations = (uint32_t)stats.registrations;
    ledger->dma_bufs = direct->dma_bufs;
}

/* ---- life ---- */

kvb_status_t gpu_direct_open(const struct gpu_direct_config *config, struct gpu_direct **direct_p,
                             struct gpu_cause *cause)
{
    char reason[KVT_RDMA_REASON_MAX] = "out of memory";
    struct gpu_direct *direct = calloc(1, sizeof *direct);
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    if (direct == NULL) {
        goto err_say;
    }
    direct->config = *config;
    direct->common = *config->common;
    kvb_list_init(&direct->all);
    kvb_list_init(&direct->nodes);
    kvb_list_init(&direct->moves);
    kvb_timer_init(&direct->idle, on_idle);
    status = kvt_rdma_device_open(config->rdma, config->sched, config->io, &direct->device, reason);
    if (status != KVB_OK) {
        goto err_free;
    }
    status = kvt_regions_create(config->sched, &direct->regions);
    if (status != KVB_OK) {
        goto err_device;
    }
    direct->regions->memory[KVT_MEMORY_CUDA] = &memory_ops;
    status = kvt_rdma_memory_create(direct->device, direct->regions, &direct->memory);
    if (status != KVB_OK) {
        goto err_regions;
    }
    *direct_p = direct;
    return KVB_OK;

err_regions:
    kvt_regions_destroy(direct->regions);
err_device:
    kvt_rdma_device_close(direct->device);
err_free:
    free(direct);
err_say:
    say(cause, "%s", reason);
    return status;
}
