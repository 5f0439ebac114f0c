/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include "base/assert.h"

#include <errno.h>
#include <sys/random.h>
#include <time.h>

static uint64_t real_now_ns(void *ctx)
{
    (void)ctx;
    struct timespec ts;
    int rc = clock_gettime(CLOCK_MONOTONIC, &ts);
    kvb_assert(rc == 0);
    return (uint64_t)ts.tv_sec * KVB_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static void real_fill(void *ctx, void *buf, size_t len)
{
    (void)ctx;
    char *at = buf;
    while (len > 0) {
        ssize_t n = getrandom(at, len, 0);
        if (n < 0) {
            kvb_assert(errno == EINTR);
            continue;
        }
        at += n;
        len -= (size_t)n;
    }
}

const struct kvb_clock kvb_clock_real = {.now_ns = real_now_ns};
const struct kvb_random kvb_random_real = {.fill = real_fill};
