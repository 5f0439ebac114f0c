/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

/*
 * Time and randomness are handed in (DESIGN.md section 12, seam 6), so that the same code runs
 * under a simulated clock and a seeded generator. Nothing below server/main calls clock_gettime()
 * or getrandom() itself.
 */
#define KVB_NS_PER_MS 1000000ull
#define KVB_NS_PER_S  1000000000ull
#define KVB_NEVER     UINT64_MAX /* a deadline that never comes */

struct kvb_clock {
    /* Monotonic nanoseconds; never goes back; any thread. */
    uint64_t (*now_ns)(void *ctx);
    void *ctx;
};

struct kvb_random {
    /* Fills buf with len unpredictable bytes (in tests: seeded ones). Any thread. Never fails. */
    void (*fill)(void *ctx, void *buf, size_t len);
    void *ctx;
};

/* CLOCK_MONOTONIC and getrandom(2). */
extern const struct kvb_clock kvb_clock_real;
extern const struct kvb_random kvb_random_real;

static inline uint64_t kvb_now_ns(const struct kvb_clock *clock)
{
    return clock->now_ns(clock->ctx);
}

/* now + ms, saturating at KVB_NEVER. */
static inline uint64_t kvb_deadline_in_ms(const struct kvb_clock *clock, uint64_t ms)
{
    uint64_t now_ns = kvb_now_ns(clock);
    return ms >= (KVB_NEVER - now_ns) / KVB_NS_PER_MS ? KVB_NEVER : now_ns + ms * KVB_NS_PER_MS;
}

#endif
