/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LINK_COUNTERS_H
#define LINK_COUNTERS_H

#include "metrics.h"

#include <stdint.h>

/* Counting for the link, also without a registry (unit tests). */
static inline void kvp_count(struct kvb_metrics *metrics, enum kvp_metric which, const char *label,
                             uint64_t n)
{
    if (metrics != NULL && n > 0) {
        const char *values[] = {label};
        kvb_series_add(kvb_series(metrics, which, values), n);
    }
}

static inline void kvp_count0(struct kvb_metrics *metrics, enum kvp_metric which, uint64_t n)
{
    if (metrics != NULL && n > 0) {
        kvb_series_add(kvb_series0(metrics, which), n);
    }
}

static inline void kvp_observe0(struct kvb_metrics *metrics, enum kvp_metric which, uint64_t ns)
{
    if (metrics != NULL) {
        kvb_series_observe(kvb_series0(metrics, which), (double)ns / 1e9);
    }
}

#endif
