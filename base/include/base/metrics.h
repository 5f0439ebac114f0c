/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_METRICS_H
#define BASE_METRICS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Counters, gauges and histograms with Prometheus text exposition (format 0.0.4). The families are
 * one table handed in at creation; a series is made by the first kvb_series() with its label
 * values. A family has at most KVB_SERIES_MAX series: further label values share one series whose
 * values are all "other" (a peer that invents names must not grow the process or the scrape).
 * Values are atomics: updating one is lock free; any thread.
 *
 * What a series is of may go (a rank, a node): then kvb_series_drop(). So whoever wants a series
 * with labels asks for it each time: one that was dropped meanwhile is not shown.
 */
#define KVB_SERIES_MAX      1024
#define KVB_SERIES_EVER     4096 /* of a family, with those that were dropped and never came back */
#define KVB_LABELS_MAX      4
#define KVB_LABEL_VALUE_MAX 128 /* bytes; longer values are cut at a UTF-8 boundary */

enum kvb_metric_type { KVB_COUNTER, KVB_GAUGE, KVB_HISTOGRAM };

struct kvb_metric {
    const char *name; /* kvplane_store_used_bytes; counters end in _total */
    enum kvb_metric_type type;
    const char *help;
    const char *labels[KVB_LABELS_MAX + 1]; /* names, NULL-terminated */
    const double
        *buckets; /* histograms: upper bounds, ascending, without +Inf; NULL: kvb_buckets_seconds */
    size_t nbuckets;
};

extern const double kvb_buckets_seconds[];
extern const size_t kvb_buckets_seconds_len;

struct kvb_metrics;
struct kvb_series;

/* `table` (n families) must outlive the registry; a family is named by its index in it. Returns
 * NULL: out of memory. */
struct kvb_metrics *kvb_metrics_create(const struct kvb_metric *table, size_t n);
void kvb_metrics_destroy(struct kvb_metrics *metrics);

/* The series of a family for these label values (as many as the family has labels; NULL values are
 * ""). Never NULL. */
struct kvb_series *kvb_series(struct kvb_metrics *metrics, size_t family,
                              const char *const *values);
/* Same for families without labels. */
struct kvb_series *kvb_series0(struct kvb_metrics *metrics, size_t family);

/* Takes away the series whose first n label values are these: it is shown no more, and begins anew
 * if it is asked for again. Any thread. */
void kvb_series_drop(struct kvb_metrics *metrics, size_t family, const char *const *values,
                     size_t n);

void kvb_series_add(struct kvb_series *series, uint64_t n); /* counter */
void kvb_series_set(struct kvb_series *series,
                    double value); /* gauge; counters mirrored from elsewhere */
void kvb_series_observe(struct kvb_series *series, double value); /* histogram */
double kvb_series_value(const struct kvb_series *series); /* tests, status; a histogram's count */

/* Makes of series (gauge or mirrored counter, or a histogram with the same buckets) the sum of the
 * series of another registry's family whose labels, as they are shown, contain `with` and not
 * `without` (NULL: all; none). Any thread. */
void kvb_series_sum(struct kvb_series *series, struct kvb_metrics *of, size_t family,
                    const char *with, const char *without);

/* The exposition of `behind` follows that of metrics, in the same text. Once, before others use
 * them; the collectors of metrics run first. */
void kvb_metrics_show_behind(struct kvb_metrics *metrics, struct kvb_metrics *behind);

/* Called at the start of every write, to fetch values that live elsewhere. May take short locks,
 * must not wait. */
void kvb_metrics_on_collect(struct kvb_metrics *metrics, void (*collect)(void *ctx), void *ctx);

/* The whole exposition as a malloc'd NUL-terminated text, returned to the caller; *len_p without
 * the NUL. */
KVB_MUST_USE kvb_status_t kvb_metrics_write(struct kvb_metrics *metrics, char **text_p,
                                            size_t *len_p);

#endif
