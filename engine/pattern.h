/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_PATTERN_H
#define ENGINE_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What stands for KV: bytes made from (tenant, layout, weights id, block key), so that a reader who
 * knows which weights it holds knows every byte it may see. Shares no code with the product: not
 * its checksum, not its lineages.
 */
struct kve_pattern_source {
    const char *tenant;
    const char *layout;
    uint64_t weights; /* id of the weights; 0 is never one */
    const void *key;
    size_t key_len;
};

/* One round of a 64-bit finaliser (bijective). */
static inline uint64_t kve_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void kve_pattern_fill(const struct kve_pattern_source *source, void *buf, size_t len);

/* Fills a buffer with bytes that are no block's, so that what a get did not write shows. */
void kve_pattern_poison(void *buf, size_t len);

enum kve_verdict {
    KVE_GOOD,
    KVE_STALE, /* the whole block is that of other weights */
    KVE_TORN   /* anything else that is wrong */
};
const char *kve_verdict_text(enum kve_verdict verdict);

struct kve_finding {
    enum kve_verdict verdict;
    uint64_t weights; /* STALE: whose the bytes are */
    size_t offset;    /* of the first wrong byte */
    size_t bad_bytes;
    uint8_t expected, got;
    bool poison; /* the first wrong byte was never written */
};

/* Judges len bytes that should be `source`'s. others: ids of weights that it may have been mistaken
 * for. The finding is filled whenever the verdict is not GOOD. */
enum kve_verdict kve_pattern_check(const struct kve_pattern_source *source, const void *buf,
                                   size_t len, const uint64_t *others, size_t nothers,
                                   struct kve_finding *finding);

#endif
