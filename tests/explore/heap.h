/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_EXPLORE_HEAP_H
#define TESTS_EXPLORE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Memory at a fixed address for everything that the code under test allocates (the program is
 * linked with --wrap=malloc and its like), so that a whole world of real objects is copied away and
 * put back with their pointers still right: a state of the real code is a value.
 *
 * Two states are the same if what is reached from the roots is, whatever its addresses, its times
 * and its drawn numbers are: pointers are named by the order in which they are met, numbers of
 * heap_draw() and ids in the ranges below likewise (they are compared for equality only), times
 * count from now on, and those that have passed are all alike.
 */
#define HEAP_DRAWN_BASE 0x1d1d000000000000ull /* random numbers and operation ids, renamed */
#define HEAP_ASK_BASE   0xa5c00000u           /* ask numbers, 32 bits; renamed */
#define HEAP_TIME_BASE  0x1000000000000000ull /* now at the beginning, ns; up to twice that */

/* Allocations between these are in the heap; others are libc's. */
void heap_enter(void);
void heap_leave(void);
/* Forgets all that is in it. */
void heap_clear(void);
/* What the code draws: each number is new. */
uint64_t heap_draw(void);

/* Not looked into when states are compared: history, and what is made from the rest. */
void heap_opaque(const void *block);
/* Neither compared nor kept: bytes that nobody reads any more. At the beginning; a second time it
 * changes nothing. */
void heap_hole(const void *at, size_t len);

/* The first state is the present one; back to it. */
void heap_first(void);
void heap_begin(void);
/* The present state is kept, over the one kept before; back to it. */
void heap_mark(void);
void heap_back(void);

/* Of the state as reached from the roots. flags: places of 32 bits of which only counts whether
 * they are 0. */
void heap_hash(const void *const *roots, uint32_t nroots, const uint32_t *const *flags,
               uint32_t nflags, uint64_t now_ns, uint64_t hash_p[2]);
#endif
