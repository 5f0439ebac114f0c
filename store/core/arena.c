/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include "base/assert.h"

#define SPARE_MAX 2u /* empty segments kept with their memory, beside one per size */
#define NONE      0u /* lists hold segment number + 1 */

struct kvs_segment {
    uint32_t free;  /* first free record, as a handle; linked through their first word */
    uint32_t fresh; /* first unit never given out */
    uint32_t used;  /* records */
    uint32_t units; /* per record; 0: empty */
    uint32_t prev;  /* in the list it is in */
    uint32_t next;
};

static struct kvs_segment *segment_at(const struct kvs_arena *arena, uint32_t link)
{
    return (struct kvs_segment *)(void *)arena->table.base + (link - 1);
}

static bool is_full(const struct kvs_segment *segment)
{
    return segment->free == 0 && segment->fresh + segment->units > KVS_SEGMENT_UNITS;
}

static void list_push(struct kvs_arena *arena, uint32_t *head, uint32_t link)
{
    struct kvs_segment *segment = segment_at(arena, link);
    segment->prev = NONE;
    segment->next = *head;
    if (*head != NONE) {
        segment_at(arena, *head)->prev = link;
    }
    *head = link;
}

static void list_remove(struct kvs_arena *arena, uint32_t *head, uint32_t link)
{
    struct kvs_segment *segment = segment_at(arena, link);
    if (segment->prev != NONE) {
        segment_at(arena, segment->prev)->next = segment->next;
    } else {
        *head = segment->next;
    }
    if (segment->next != NONE) {
        segment_at(arena, segment->next)->prev = segment->prev;
    }
}

kvb_status_t kvs_arena_init(struct kvs_arena *arena, uint64_t max_bytes)
{
    const uint64_t most = (uint64_t)UINT32_MAX * KVS_UNIT;
    uint64_t segments = (max_bytes < most ? max_bytes : most) / KVS_SEGMENT_BYTES;
    *arena = (struct kvs_arena){.nsegments = 0};
    kvb_status_t status = kvs_memory_init(&arena->records, segments * KVS_SEGMENT_BYTES);
    if (status != KVB_OK) {
        return status;
    }
    status = kvs_memory_init(&arena->table, segments * sizeof(struct kvs_segment));
    if (status != KVB_OK) {
        kvs_memory_cleanup(&arena->records);
    }
    return status;
}

void kvs_arena_cleanup(struct kvs_arena *arena)
{
    kvs_memory_cleanup(&arena->table);
    kvs_memory_cleanup(&arena->records);
}

/* An empty segment, in no list, without memory from now on. */
static void segment_return(struct kvs_arena *arena, uint32_t link)
{
    kvs_memory_return(&arena->records, (size_t)(link - 1) * KVS_SEGMENT_BYTES, KVS_SEGMENT_BYTES);
    list_push(arena, &arena->empty, link);
    arena->nempty++;
}

/* An empty segment, in no list; NONE: no memory. */
static uint32_t segment_take(struct kvs_arena *arena)
{
    uint32_t link = arena->spare;
    if (link != NONE) {
        list_remove(arena, &arena->spare, link);
        arena->nspare--;
        return link;
    }
    link = arena->empty;
    if (link != NONE) {
        list_remove(arena, &arena->empty, link);
        arena->nempty--;
        return link;
    }
    size_t n = (size_t)arena->nsegments + 1;
    if (!kvs_memory_grow(&arena->records, n * KVS_SEGMENT_BYTES) ||
        !kvs_memory_grow(&arena->table, n * sizeof(struct kvs_segment))) {
        return NONE;
    }
    return ++arena->nsegments;
}

uint32_t kvs_arena_alloc(struct kvs_arena *arena, size_t bytes)
{
    kvb_assert(bytes > 0 && bytes <= KVS_RECORD_MAX);
    uint32_t units = (uint32_t)((bytes + KVS_UNIT - 1) / KVS_UNIT);
    uint32_t link = arena->room[units];
    if (link == NONE) {
        link = segment_take(arena);
        if (link == NONE) {
            return 0;
        }
        /* Unit 0 of segment 0 is handle 0: never given out. */
        *segment_at(arena, link) = (struct kvs_segment){.units = units, .fresh = link == 1 ? 1 : 0};
        list_push(arena, &arena->room[units], link);
    }
    struct kvs_segment *segment = segment_at(arena, link);
    uint32_t handle = segment->free;
    if (handle != 0) {
        segment->free = *(uint32_t *)kvs_arena_at(arena, handle);
    } else {
        handle = (link - 1) * KVS_SEGMENT_UNITS + segment->fresh;
        segment->fresh += units;
    }
    segment->used++;
    if (is_full(segment)) {
        list_remove(arena, &arena->room[units], link);
    }
    return handle;
}

void kvs_arena_free(struct kvs_arena *arena, uint32_t handle)
{
    uint32_t link = handle / KVS_SEGMENT_UNITS + 1;
    struct kvs_segment *segment = segment_at(arena, link);
    kvb_assert(handle != 0 && link <= arena->nsegments && segment->used > 0);
    if (is_full(segment)) {
        list_push(arena, &arena->room[segment->units], link);
    }
    *(uint32_t *)kvs_arena_at(arena, handle) = segment->free;
    segment->free = handle;
    segment->used--;
    /* The only one with room for its size stays: leases come and go by the hundred, and giving the
     * memory back each time would cost more than they do. */
    if (segment->used > 0 || (segment->prev == NONE && segment->next == NONE)) {
        return;
    }
    list_remove(arena, &arena->room[segment->units], link);
    segment->units = 0;
    if (arena->nspare < SPARE_MAX) {
        list_push(arena, &arena->spare, link);
        arena->nspare++;
        return;
    }
    segment_return(arena, link);
}

void kvs_arena_trim(struct kvs_arena *arena)
{
    for (uint32_t link; (link = arena->spare) != NONE;) {
        list_remove(arena, &arena->spare, link);
        segment_return(arena, link);
    }
    arena->nspare = 0;
    for (uint32_t units = 0; units < sizeof arena->room / sizeof arena->room[0]; units++) {
        for (uint32_t link = arena->room[units], next; link != NONE; link = next) {
            struct kvs_segment *segment = segment_at(arena, link);
            next = segment->next;
            if (segment->used == 0) {
                list_remove(arena, &arena->room[units], link);
                segment->units = 0;
                segment_return(arena, link);
            }
        }
    }
}

uint64_t kvs_arena_bytes(const struct kvs_arena *arena)
{
    return arena->records.committed - (uint64_t)arena->nempty * KVS_SEGMENT_BYTES +
           arena->table.committed;
}

uint64_t kvs_arena_records(const struct kvs_arena *arena)
{
    uint64_t n = 0;
    for (uint32_t link = 1; link <= arena->nsegments; link++) {
        const struct kvs_segment *segment = segment_at(arena, link);
        n += segment->units == 0 ? 0 : segment->used;
    }
    return n;
}
