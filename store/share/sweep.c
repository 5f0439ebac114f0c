/* SPDX-License-Identifier: Apache-2.0 */
#include "share_impl.h"

#define SWEEP_STEP 256 /* buckets of the index: about as many objects */

/* The usual walk with one place to come back to: the last `*` met. */
static bool matches(void *arg, struct kvb_span block)
{
    const struct kvs_sweep *sweep = arg;
    const uint8_t *pattern = sweep->pattern;
    uint32_t n = sweep->pattern_len, p = 0, star = UINT32_MAX;
    size_t k = 0, star_k = 0;
    while (k < block.len) {
        bool escaped = p + 1 < n && pattern[p] == '\\';
        if (p < n && pattern[p] == '*') {
            star = p++;
            star_k = k;
        } else if (p < n && !escaped && (pattern[p] == '?' || pattern[p] == block.data[k])) {
            p++;
            k++;
        } else if (escaped && pattern[p + 1] == block.data[k]) {
            p += 2;
            k++;
        } else if (star != UINT32_MAX) {
            p = star + 1;
            k = ++star_k;
        } else {
            return false;
        }
    }
    while (p < n && pattern[p] == '*') {
        p++;
    }
    return p == n;
}

bool kvs_share_sweep(struct kvs_share *share, uint64_t now_ns, struct kvs_sweep *sweep)
{
    struct kvs_core_sweep core = {
        .force = sweep->force, .matches = matches, .arg = sweep, .next = sweep->impl.next};
    if (sweep->impl.shard >= share->nshards ||
        kvs_names_find_tenant(&share->names, sweep->tenant, &core.tenant) != KVB_OK) {
        return false;
    }
    struct kvs_shard *shard = &share->shards[sweep->impl.shard];
    kvb_mutex_lock(&shard->lock);
    bool more = kvs_core_sweep(shard->core, now_ns, &core, SWEEP_STEP);
    kvb_mutex_unlock(&shard->lock);
    sweep->removed += core.removed;
    sweep->kept += core.kept;
    sweep->impl.next = core.next;
    if (!more) {
        sweep->impl.shard++;
        sweep->impl.next = 0;
    }
    return sweep->impl.shard < share->nshards;
}
