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

/* Bytes 8 * word to 8 * word + 7 of the value with this seed: any part can be made alone. */
static inline uint64_t test_value_word_(uint64_t seed, uint64_t word)
{
    uint64_t z = seed + (word + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    return z ^ (z >> 27);
}

static inline void test_value_fill(uint8_t *out, size_t len, const char *tenant, const void *key,
                                   size_t key_len, uint64_t weights)
{
    uint64_t seed = test_value_seed_(tenant, key, key_len, weights);
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = test_value_word_(seed, i / 8);
        memcpy(out + i, &word, len - i < 8 ? len - i : 8);
    }
}

/* Index of the first wrong byte, or len. */
static inline size_t test_value_check(const uint8_t *in, size_t len, const char *tenant,
                                      const void *key, size_t key_len, uint64_t weights)
{
    uint64_t seed = test_value_seed_(tenant, key, key_len, weights);
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = test_value_word_(seed, i / 8);
        size_t n = len - i < 8 ? len - i : 8;
        if (memcmp(in + i, &word, n) != 0) {
            const uint8_t *want = (const uint8_t *)&word;
            size_t at = 0;
            while (in[i + at] == want[at]) {
                at++;
            }
            return i + at;
        }
    }
    return len;
}

#endif
