/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <string.h>

/* From a small piece of a block to the largest block there may be. */
static const double sizes[] = {1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20,
                               1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30};

#define KIND_COUNTER   .type = KVB_COUNTER
#define KIND_GAUGE     .type = KVB_GAUGE
#define KIND_HISTOGRAM .type = KVB_HISTOGRAM
#define KIND_BYTES                                                                                 \
    .type = KVB_HISTOGRAM, .buckets = sizes, .nbuckets = sizeof sizes / sizeof sizes[0]

const struct kvb_metric kvp_metric_table[KVP_METRIC_COUNT] = {
#define X(id, kind, exposed, text, ...)                                                            \
    [KVP_M_##id] = {.name = (exposed), KIND_##kind, .help = (text), .labels = {__VA_ARGS__}},
    KVP_METRICS(X)
#undef X
};

void kvp_metrics_table(FILE *out)
{
    static const char *const types[] = {
        [KVB_COUNTER] = "counter", [KVB_GAUGE] = "gauge", [KVB_HISTOGRAM] = "histogram"};
    (void)fprintf(out, "| metric | type | labels | what it says |\n|---|---|---|---|\n");
    for (size_t i = 0; i < KVP_METRIC_COUNT; i++) {
        const struct kvb_metric *metric = &kvp_metric_table[i];
        (void)fprintf(out, "| `%s` | %s | ", metric->name, types[metric->type]);
        for (size_t k = 0; metric->labels[k] != NULL; k++) {
            (void)fprintf(out, "%s`%s`", k > 0 ? " " : "", metric->labels[k]);
        }
        (void)fprintf(out, " | %s |\n", metric->help);
    }
}

void kvp_metrics_beat(struct kvb_metrics *metrics, const char *loop, uint64_t lag_ns)
{
    const char *values[] = {loop};
    kvb_series_observe(kvb_series(metrics, KVP_M_LOOP_LAG, values), (double)lag_ns / 1e9);
}

/* What is counted in bytes has a family of its own. */
static const char *direction_of(const char *counter)
{
    return strcmp(counter, "bytes_sent") == 0       ? "sent"
           : strcmp(counter, "bytes_received") == 0 ? "received"
                                                    : NULL;
}

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
        const char *direction = direction_of(events[i].event);
        const char *values[] = {node, transport, direction != NULL ? direction : events[i].event};
        kvb_series_set(kvb_series(metrics,
                                  direction != NULL ? KVP_M_CONNECTION_BYTES : KVP_M_CONNECTIONS,
                                  values),
                       (double)events[i].n);
    }
    const char *values[] = {node, transport};
    kvb_series_set(kvb_series(metrics, KVP_M_LANES, values), stats->lanes);
}
