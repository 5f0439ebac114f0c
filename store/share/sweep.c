/* SPDX-License-Identifier: Apache-2.0 */
#include "share_impl.h"

#define SWEEP_STEP   256 /* buckets of the index: about as many objects */
#define STEPS_AS_ONE 256 /* of a comparison, that cost as much as the rest of an object */

/* The usual walk with one place to come back to: the last `*` met. Stars make it long: half a key
 * for each byte of it. */
static bool walk(const struct kvs_sweep *sweep, struct kvb_span block, uint32_t *steps_p)
{
    const uint8_t *pattern = sweep->pattern;
    uint32_t n = sweep->pattern_len, p = 0, star = UINT32_MAX;
    size_t k = 0, star_k = 0;
    while (k < block.len) {
        ++*steps_p;
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

static bool matches(struct kvs_core_sweep *core, struct kvb_span block)
{
    uint32_t steps = 0;
    bool match = walk(core->arg, block, &steps);
    uint32_t cost = steps / STEPS_AS_ONE;
    core->budget -= cost < core->budget ? cost : core->budget;
    return match;
}

bool kvs_share_sweep(struct kvs_share *share, uint64_t now_ns, struct kvs_sweep *sweep)
{
    struct kvs_core_sweep core = {.force = sweep->force,
                                  .matches = matches,
                                  .arg = sweep,
                                  .next = sweep->impl.next,
                                  .budget = SWEEP_STEP};
    if (sweep->impl.shard >= share->nshards ||
        kvs_names_find_tenant(&share->names, sweep->tenant, &core.tenant) != KVB_OK) {
        return false;
    }
    struct kvs_shard *shard = &share->shards[sweep->impl.shard];
    kvb_mutex_lock(&shard->lock);
    bool more = kvs_core_sweep(shard->core, now_ns, &core);
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
