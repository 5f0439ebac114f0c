/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

const struct kvb_metric kvp_metric_table[KVP_METRIC_COUNT] = {
#define X(id, kind, exposed, text, ...)                                                            \
    [KVP_M_##id] = {.name = (exposed), .type = KVB_##kind, .help = (text), .labels = {__VA_ARGS__}},
    KVP_METRICS(X)
#undef X
};

void kvp_metrics_peer(struct kvb_metrics *metrics, const char *node, const char *transport,
                      const struct kvt_peer_stats *stats)
{
    const struct {
        const char *event;
        uint64_t n;
    } events[] = {
#define X(name, what) {#name, stats->name},
        KVT_PEER_COUNTERS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        const char *values[] = {node, transport, events[i].event};
        kvb_series_set(kvb_series(metrics, KVP_M_CONNECTIONS, values), (double)events[i].n);
    }
    const char *values[] = {node, transport};
    kvb_series_set(kvb_series(metrics, KVP_M_LANES, values), stats->lanes);
}
