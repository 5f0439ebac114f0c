/* SPDX-License-Identifier: Apache-2.0 */
#include "pattern.h"

#include <string.h>

/* Word i of a block is a counter, mixed; any word can be made without those before it. */
#define STEP        0x9e3779b97f4a7c15u
#define POISON_BYTE 0xdb

static uint64_t absorb(uint64_t state, const void *data, size_t len)
{
    const unsigned char *bytes = data;

    state = kve_mix64(state + STEP);
    for (size_t i = 0; i < len; i++) {
        state = (state ^ bytes[i]) * 0x00000100000001b3u;
    }
    return kve_mix64(state);
}

static uint64_t seed_of(const struct kve_pattern_source *source, uint64_t weights)
{
    uint64_t state = kve_mix64(weights * STEP);

    state = absorb(state, source->tenant, strlen(source->tenant));
    state = absorb(state, source->layout, strlen(source->layout));
    return absorb(state, source->key, source->key_len);
}

static inline uint64_t word_at(uint64_t seed, size_t i)
{
    return kve_mix64(seed + i * STEP);
}

static inline unsigned char byte_at(uint64_t seed, size_t offset)
{
    uint64_t word = word_at(seed, offset / 8);

    return ((const unsigned char *)&word)[offset % 8];
}

void kve_pattern_fill(const struct kve_pattern_source *source, void *buf, size_t len)
{
    uint64_t seed = seed_of(source, source->weights);
    unsigned char *out = buf;
    size_t words = len / 8;

    for (size_t i = 0; i < words; i++) {
        uint64_t word = word_at(seed, i);
        memcpy(out + i * 8, &word, 8);
    }
    for (size_t offset = words * 8; offset < len; offset++) {
        out[offset] = byte_at(seed, offset);
    }
}

void kve_pattern_poison(void *buf, size_t len)
{
    memset(buf, POISON_BYTE, len);
}

const char *kve_verdict_text(enum kve_verdict verdict)
{
    switch (verdict) {
    case KVE_GOOD:
        return "good";
    case KVE_STALE:
        return "stale";
    case KVE_TORN:
        return "torn";
    }
    return "?";
}

static bool equals(uint64_t seed, const unsigned char *in, size_t len)
{
    size_t words = len / 8;
    uint64_t wrong = 0;

    for (size_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, in + i * 8, 8);
        wrong |= word ^ word_at(seed, i);
    }
    for (size_t offset = words * 8; offset < len; offset++) {
        wrong |= (uint64_t)(in[offset] ^ byte_at(seed, offset));
    }
    return wrong == 0;
}

enum kve_verdict kve_pattern_check(const struct kve_pattern_source *source, const void *buf,
                                   size_t len, const uint64_t *others, size_t nothers,
                                   struct kve_finding *finding)
{
    const unsigned char *in = buf;
    uint64_t seed = seed_of(source, source->weights);

    if (equals(seed, in, len)) {
        return KVE_GOOD;
    }
    *finding = (struct kve_finding){.verdict = KVE_TORN};
    for (size_t offset = 0; offset < len; offset++) {
        unsigned char expected = byte_at(seed, offset);
        if (in[offset] == expected) {
            continue;
        }
        if (finding->bad_bytes++ == 0) {
            finding->offset = offset;
            finding->expected = expected;
            finding->got = in[offset];
            finding->poison = in[offset] == POISON_BYTE;
        }
    }
    for (size_t i = 0; i < nothers && finding->verdict == KVE_TORN; i++) {
        if (others[i] != source->weights && equals(seed_of(source, others[i]), in, len)) {
            finding->verdict = KVE_STALE;
            finding->weights = others[i];
        }
    }
    return finding->verdict;
}
