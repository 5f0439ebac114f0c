/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_LE_H
#define BASE_LE_H

#include <stddef.h>
#include <stdint.h>

/* Integers as they travel: little endian, at any address. len: bytes, at most 8. */
static inline void kvb_le_put(uint8_t *out, uint64_t value, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

static inline uint64_t kvb_le_get(const uint8_t *in, size_t len)
{
    uint64_t value = 0;
    for (size_t i = 0; i < len; i++) {
        value |= (uint64_t)in[i] << (8 * i);
    }
    return value;
}

static inline void kvb_le_put32(uint8_t *out, uint32_t value)
{
    kvb_le_put(out, value, 4);
}

static inline void kvb_le_put64(uint8_t *out, uint64_t value)
{
    kvb_le_put(out, value, 8);
}

static inline uint32_t kvb_le_get32(const uint8_t *in)
{
    return (uint32_t)kvb_le_get(in, 4);
}

static inline uint64_t kvb_le_get64(const uint8_t *in)
{
    return kvb_le_get(in, 8);
}

#endif
