/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SPLITMIX_H
#define TESTS_SPLITMIX_H

#include <stddef.h>
#include <stdint.h>

/* The generator of whatever must repeat with its seed: the state is one number, and any will do. */
static inline uint64_t splitmix_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static inline void splitmix_fill(uint64_t *state, void *buf, size_t len)
{
    uint8_t *out = buf;
    for (size_t i = 0; i < len; i++) {
        out[i] = (uint8_t)(splitmix_next(state) >> 32);
    }
}

#endif
