/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

const struct kvb_metric kvp_metric_table[KVP_METRIC_COUNT] = {
#define X(id, kind, exposed, text, ...)                                                            \
    [KVP_M_##id] = {.name = (exposed), .type = KVB_##kind, .help = (text), .labels = {__VA_ARGS__}},
    KVP_METRICS(X)
#undef X
};
