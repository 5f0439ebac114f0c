/* SPDX-License-Identifier: Apache-2.0 */
#include "placement.h"

#include "base/assert.h"

#include <xxhash.h>

#include <math.h>
#include <string.h>

struct kvs_place kvs_place_of(const char *name, uint64_t weight)
{
    return (struct kvs_place){
        .seed = XXH3_64bits(name, strlen(name)),
        .weight = weight == 0 ? 1 : (double)weight,
    };
}

uint64_t kvs_placement_seed(const struct kvs_space *space)
{
    uint64_t tenant = XXH3_64bits(space->tenant, strlen(space->tenant));
    return XXH3_64bits_withSeed(space->layout, strlen(space->layout), tenant);
}

/*
 * The node of the highest weight / -ln(u) wins, u being uniform in (0, 1) and drawn from the hash
 * of (node, key): then each wins in proportion to its weight, and its score depends on nothing but
 * itself.
 */
static double score(const struct kvs_place *place, uint64_t key_hash)
{
    uint64_t hash = XXH3_64bits_withSeed(&key_hash, sizeof key_hash, place->seed);
    double u = ((double)(hash >> 11) + 0.5) * 0x1p-53;
    return place->weight / -log(u);
}

uint32_t kvs_placement_pick(const struct kvs_place *places, uint32_t n, uint64_t space_seed,
                            struct kvb_span key)
{
    kvb_assert(n > 0);
    if (n == 1) {
        return 0;
    }
    uint64_t key_hash = XXH3_64bits_withSeed(key.data, key.len, space_seed);
    uint32_t best = 0;
    double best_score = -1;
    for (uint32_t i = 0; i < n; i++) {
        double s = score(&places[i], key_hash);
        if (s > best_score) {
            best = i;
            best_score = s;
        }
    }
    return best;
}
