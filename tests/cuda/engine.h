/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_ENGINE_H
#define TESTS_CUDA_ENGINE_H

/* What an engine does with its memory, on whichever driver: allocate for export, map, write, hand
 * over, let go. Each returns the driver's answer to the first call that failed. */
#include "driver.h"

#include <stdbool.h>
#include <string.h>

struct cuda_engine {
    struct kvt_cu cu;
    CUdevice device;
    CUcontext context;
};

struct cuda_memory {
    size_t len;
    CUmemGenericAllocationHandle handle; /* 0: none */
    CUdeviceptr at;                      /* reserved; 0: not */
    bool mapped;
};

static inline CUresult engine_open(struct cuda_engine *engine)
{
    CUresult result = engine->cu.device_get(&engine->device, 0);
    if (result == CUDA_SUCCESS) {
        result = engine->cu.context_retain(&engine->context, engine->device);
    }
    return result == CUDA_SUCCESS ? engine->cu.context_set(engine->context) : result;
}

static inline void engine_close(struct cuda_engine *engine)
{
    (void)engine->cu.context_set(NULL);
    (void)engine->cu.context_release(engine->device);
}

static inline CUmemAllocationProp engine_prop(const struct cuda_engine *engine, unsigned types)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = types,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = engine->device},
    };
}

/* Physical memory for memory->len, at memory->at, which is reserved if it is 0. */
static inline CUresult engine_map(const struct cuda_engine *engine, struct cuda_memory *memory,
                                  CUmemGenericAllocationHandle handle)
{
    const struct kvt_cu *cu = &engine->cu;
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = engine->device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUresult result = CUDA_SUCCESS;
    if (memory->at == 0) {
        result = cu->mem_reserve(&memory->at, memory->len, 0, 0, 0);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->mem_map(memory->at, memory->len, 0, handle, 0);
    }
    if (result == CUDA_SUCCESS) {
        memory->mapped = true;
        result = cu->mem_access(memory->at, memory->len, &access, 1);
    }
    return result;
}

static inline CUresult engine_allocate(const struct cuda_engine *engine, struct cuda_memory *memory,
                                       size_t len, unsigned types)
{
    CUmemAllocationProp prop = engine_prop(engine, types);
    memory->len = len;
    CUresult result = engine->cu.mem_create(&memory->handle, len, &prop, 0);
    return result == CUDA_SUCCESS ? engine_map(engine, memory, memory->handle) : result;
}

/* Sleep: the address stays. */
static inline void engine_release(const struct cuda_engine *engine, struct cuda_memory *memory)
{
    if (memory->mapped) {
        (void)engine->cu.mem_unmap(memory->at, memory->len);
        memory->mapped = false;
    }
    if (memory->handle != 0) {
        (void)engine->cu.mem_release(memory->handle);
        memory->handle = 0;
    }
}

static inline void engine_free(const struct cuda_engine *engine, struct cuda_memory *memory)
{
    engine_release(engine, memory);
    if (memory->at != 0) {
        (void)engine->cu.mem_free(memory->at, memory->len);
        memory->at = 0;
    }
}

/* A descriptor of it; -1: cannot be exported. */
static inline int engine_export(const struct cuda_engine *engine, const struct cuda_memory *memory)
{
    int fd = -1;
    return engine->cu.mem_export(&fd, memory->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 0) == CUDA_SUCCESS
               ? fd
               : -1;
}

static inline CUresult engine_fill(const struct cuda_engine *engine,
                                   const struct cuda_memory *memory, size_t offset,
                                   const void *from, size_t len)
{
    return engine->cu.copy_in(memory->at + offset, from, len);
}

static inline CUresult engine_read(const struct cuda_engine *engine,
                                   const struct cuda_memory *memory, size_t offset, void *to,
                                   size_t len)
{
    return engine->cu.copy_out(to, memory->at + offset, len);
}

#endif
