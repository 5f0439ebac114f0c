/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_CLIENT_PLACEMENT_H
#define STORE_CLIENT_PLACEMENT_H

#include "base/wire.h"
#include "store/client.h"

/*
 * Which node an object lies on: rendezvous hashing, weighted by capacity (DESIGN.md section 10).
 * Every client computes the same from the same members, without asking anybody; a member that
 * comes or goes moves only the objects that it gains or loses.
 */
struct kvs_place {
    uint64_t seed; /* of its name */
    double weight; /* > 0; only ratios matter */
};

struct kvs_place kvs_place_of(const char *name, uint64_t weight);

/* What a placement key is hashed with: keys of two spaces lie independently. */
uint64_t kvs_placement_seed(const struct kvs_space *space);

/* Index of the place, n > 0. */
uint32_t kvs_placement_pick(const struct kvs_place *places, uint32_t n, uint64_t space_seed,
                            struct kvb_span key);

#endif
