/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_CORE_ARENA_H
#define STORE_CORE_ARENA_H

#include "memory.h"

#include <stdint.h>

/*
 * Where all records of a shard live (objects, lineages, leases, ...): named by 32-bit handles, in
 * units of 8 bytes, so that a link costs 4 bytes. Records of one size share a segment; an empty
 * segment serves any size again, so the memory follows what is stored, not what once was. Handle 0
 * is none.
 */
#define KVS_UNIT          8u
#define KVS_SEGMENT_UNITS 32768u
#define KVS_SEGMENT_BYTES (KVS_SEGMENT_UNITS * KVS_UNIT)
#define KVS_RECORD_MAX    640u /* bytes */

struct kvs_segment;

struct kvs_arena {
    struct kvs_memory records;
    struct kvs_memory table; /* of struct kvs_segment */
    uint32_t nsegments;      /* ever used */
    uint32_t spare;          /* empty ones with memory behind them, a list */
    uint32_t nspare;
    uint32_t empty; /* empty ones without, a list */
    uint32_t nempty;
    uint32_t room[KVS_RECORD_MAX / KVS_UNIT + 1]; /* per size: segments with room, a list */
};

KVB_MUST_USE kvb_status_t kvs_arena_init(struct kvs_arena *arena, uint64_t max_bytes);
void kvs_arena_cleanup(struct kvs_arena *arena);

/* A record of `bytes`, not cleared; 0: no memory. */
uint32_t kvs_arena_alloc(struct kvs_arena *arena, size_t bytes);
void kvs_arena_free(struct kvs_arena *arena, uint32_t handle);

/* Gives the memory of every segment without records back; the next record asks for some again. For
 * when nothing is stored: otherwise a few such segments are worth keeping. */
void kvs_arena_trim(struct kvs_arena *arena);

static inline void *kvs_arena_at(const struct kvs_arena *arena, uint32_t handle)
{
    return arena->records.base + (size_t)handle * KVS_UNIT;
}

/* Records given out now; walks the segments. */
uint64_t kvs_arena_records(const struct kvs_arena *arena);

/* Memory taken from the system, all of it. */
uint64_t kvs_arena_bytes(const struct kvs_arena *arena);

#endif
