/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VALUES_H
#define TESTS_VALUES_H

/*
 * What the bytes of a block must be: made from (tenant, key, weights id) and nothing else, so that
 * a block read back says whose it is and of which weights. Shares no code with the product's
 * checksum.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t test_value_mix_(uint64_t h, const void *data, size_t len)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < len; i++) {
        h = (h ^ at[i]) * 0x100000001b3ull;
    }
    return (h ^ len) * 0x100000001b3ull;
}

static inline uint64_t test_value_seed_(const char *tenant, const void *key, size_t key_len,
                                        uint64_t weights)
{
    uint64_t h = test_value_mix_(0xcbf29ce484222325ull, tenant, strlen(tenant));
    h = test_value_mix_(h, key, key_len);
    return test_value_mix_(h, &weights, sizeof weights);
}

/* Byte `at` of the value with this seed: any part can be made and checked alone. */
static inline uint8_t test_value_byte_(uint64_t seed, uint64_t at)
{
    uint64_t z = seed + (at / 8 + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z ^= z >> 27;
    return (uint8_t)(z >> (at % 8 * 8));
}

static inline void test_value_fill(uint8_t *out, size_t len, const char *tenant, const void *key,
                                   size_t key_len, uint64_t weights)
{
    uint64_t seed = test_value_seed_(tenant, key, key_len, weights);
    for (size_t i = 0; i < len; i++) {
        out[i] = test_value_byte_(seed, i);
    }
}

/* Index of the first wrong byte, or len. */
static inline size_t test_value_check(const uint8_t *in, size_t len, const char *tenant,
                                      const void *key, size_t key_len, uint64_t weights)
{
    uint64_t seed = test_value_seed_(tenant, key, key_len, weights);
    size_t i = 0;
    while (i < len && in[i] == test_value_byte_(seed, i)) {
        i++;
    }
    return i;
}

#endif
