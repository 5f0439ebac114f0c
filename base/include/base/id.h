/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_ID_H
#define BASE_ID_H

#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/*
 * A random 128-bit id, compared only for equality (DESIGN.md section 3). Two types, so that the
 * compiler keeps a lineage (which weights) and a token (which stay in a lineage) apart. All zero
 * bits mean "none"; a drawn id never is.
 */
struct kvb_id {
    uint64_t hi;
    uint64_t lo;
};
struct kvb_lineage {
    struct kvb_id id;
};
struct kvb_token {
    struct kvb_id id;
};

#define KVB_ID_HEX_LEN 32 /* characters, without the terminating NUL */

struct kvb_id kvb_id_draw(const struct kvb_random *random);

/* Writes KVB_ID_HEX_LEN lower-case digits and a NUL. */
void kvb_id_format(struct kvb_id id, char out[KVB_ID_HEX_LEN + 1]);

/* Either case; exactly so many digits. */
bool kvb_id_parse(const char *hex, size_t len, struct kvb_id *id_p);

/* -1: it is none. Either case. */
int kvb_hex_digit(char c);

static inline bool kvb_id_equal(struct kvb_id a, struct kvb_id b)
{
    return a.hi == b.hi && a.lo == b.lo;
}
static inline bool kvb_id_none(struct kvb_id a)
{
    return a.hi == 0 && a.lo == 0;
}
static inline bool kvb_lineage_equal(struct kvb_lineage a, struct kvb_lineage b)
{
    return kvb_id_equal(a.id, b.id);
}
static inline bool kvb_token_equal(struct kvb_token a, struct kvb_token b)
{
    return kvb_id_equal(a.id, b.id);
}

#endif
