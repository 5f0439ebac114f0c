/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's arithmetic, run on the host thread by thread, against what the pieces say. */
#include "pieces.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 1 << 16, EDGE = 64 };

static void fill(uint8_t *bytes, size_t len, uint64_t *state)
{
    for (size_t i = 0; i < len; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(*state >> 56);
    }
}

/* How often a run of thread `lane` writes each byte is seen by running it onto two backgrounds that
 * differ in every bit: what is the same in both was written. */
static void count_written(const struct pieces *pieces, uint32_t lane, uint32_t lanes, uint8_t *to,
                          size_t len, uint8_t *counts)
{
    uint8_t *first = malloc(len);
    cr_assert_not_null(first);
    memset(to, 0x00, len);
    pieces_copy(pieces, 0, lane, lanes);
    memcpy(first, to, len);
    memset(to, 0xff, len);
    pieces_copy(pieces, 0, lane, lanes);
    for (size_t i = 0; i < len; i++) {
        counts[i] = (uint8_t)(counts[i] + (first[i] == to[i]));
    }
    free(first);
}

static void check_one(uint32_t len, uint32_t piece_at, uint32_t staged_at, uint32_t scatter,
                      uint32_t lanes)
{
    static _Alignas(64) uint8_t memory[ROOM], staging[ROOM];
    static uint8_t counts[ROOM];
    uint64_t state = len * 131u + piece_at * 17u + staged_at;
    struct pieces pieces = {.staging = (uint64_t)(uintptr_t)(staging + EDGE), .scatter = scatter};
    pieces.piece[0] =
        (struct pieces_piece){(uint64_t)(uintptr_t)(memory + EDGE + piece_at), staged_at, len};
    uint8_t *in_memory = memory + EDGE + piece_at;
    uint8_t *in_staging = staging + EDGE + staged_at;
    uint8_t *to = scatter != 0 ? in_memory : in_staging;
    const uint8_t *from = scatter != 0 ? in_staging : in_memory;
    uint8_t *whole = scatter != 0 ? memory : staging;

    /* All threads: the piece is there, and nothing else was touched, on either side. */
    fill(memory, ROOM, &state);
    fill(staging, ROOM, &state);
    uint8_t *kept = malloc(ROOM);
    cr_assert_not_null(kept);
    memcpy(kept, whole, ROOM);
    for (uint32_t lane = 0; lane < lanes; lane++) {
        pieces_copy(&pieces, 0, lane, lanes);
    }
    cr_assert_arr_eq(to, from, len);
    cr_assert_eq(memcmp(kept, whole, (size_t)(to - whole)), 0, "before it");
    cr_assert_eq(memcmp(kept + (to - whole) + len, to + len, ROOM - (size_t)(to - whole) - len), 0,
                 "behind it");
    free(kept);

    /* And each byte is written by exactly one of them. */
    memset(counts, 0, len);
    for (uint32_t lane = 0; lane < lanes; lane++) {
        count_written(&pieces, lane, lanes, to, len, counts);
    }
    for (uint32_t i = 0; i < len; i++) {
        cr_assert_eq(counts[i], 1, "byte %u of %u, at %u and %u, %u threads", i, len, piece_at,
                     staged_at, lanes);
    }
}

Test(pieces, every_byte_is_copied_by_exactly_one_thread)
{
    static const uint32_t lens[] = {1, 3, 4, 15, 16, 17, 48, 60, 256, 1000, 1024, 4096};
    static const uint32_t places[] = {0, 1, 4, 8, 12, 16, 48};
    static const uint32_t threads[] = {1, 3, 32};
    for (size_t l = 0; l < sizeof lens / sizeof lens[0]; l++) {
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            for (size_t s = 0; s < sizeof places / sizeof places[0]; s++) {
                uint32_t n = threads[(l + p + s) % 3];
                check_one(lens[l], places[p], places[s], (uint32_t)(p + s) % 2, n);
            }
        }
    }
}

/* Pieces of one list are told apart by their index, in both directions. */
Test(pieces, each_index_is_its_own_piece)
{
    static _Alignas(16) uint8_t memory[PIECES_MAX * 64], staging[PIECES_MAX * 32];
    static uint8_t want[sizeof staging];
    static struct pieces pieces;
    uint64_t state = 7;
    fill(memory, sizeof memory, &state);
    pieces.staging = (uint64_t)(uintptr_t)staging;
    for (uint32_t i = 0; i < PIECES_MAX; i++) {
        uint32_t place = (i * 37) % PIECES_MAX; /* 254 and 37 have no common divisor */
        pieces.piece[i] =
            (struct pieces_piece){(uint64_t)(uintptr_t)(memory + i * 64), place * 32, 32};
        memcpy(want + place * 32, memory + i * 64, 32);
    }
    for (uint32_t i = 0; i < PIECES_MAX; i++) {
        pieces_copy(&pieces, i, 0, 1);
    }
    cr_assert_arr_eq(staging, want, sizeof staging);
    memset(memory, 0, sizeof memory);
    pieces.scatter = 1;
    for (uint32_t i = 0; i < PIECES_MAX; i++) {
        pieces_copy(&pieces, i, 0, 1);
    }
    for (uint32_t i = 0; i < PIECES_MAX; i++) {
        cr_assert_arr_eq(memory + i * 64, want + (i * 37) % PIECES_MAX * 32, 32);
    }
}

/* The arguments of a kernel have at most 4,096 bytes on every GPU. */
_Static_assert(sizeof(struct pieces) == 4080, "as pieces.ptx says");
