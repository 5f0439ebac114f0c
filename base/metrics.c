/* SPDX-License-Identifier: Apache-2.0 */
#include "base/metrics.h"

#include "base/assert.h"
#include "base/mutex.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The series of a family form a list that only grows, so readers walk it without the lock: a link
 * is stored with release once the series behind it is complete, and loaded with acquire. The lock
 * is for appending alone. Values are relaxed atomics: a scrape is no snapshot across series, but a
 * histogram's count is always the sum of the buckets written with it.
 */

/* From a memcpy of a small block to a long pause. */
const double kvb_buckets_seconds[] = {0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03,
                                      0.1,     0.3,     1,      3,      10,    30,    100,  300};
const size_t kvb_buckets_seconds_len = sizeof kvb_buckets_seconds / sizeof kvb_buckets_seconds[0];

#define COLLECTORS_MAX 16

struct kvb_series {
    const struct kvb_metric *metric;                      /* immutable */
    char values[KVB_LABELS_MAX][KVB_LABEL_VALUE_MAX + 1]; /* immutable */
    _Atomic(struct kvb_series *) next;
    _Atomic(uint64_t) count;     /* counter: added so far */
    _Atomic(double) value;       /* gauge or mirrored counter; histogram: sum */
    _Atomic(uint64_t) buckets[]; /* histogram: one per bound and one above; not cumulative */
};

struct family {
    _Atomic(struct kvb_series *) first;
    struct kvb_series *other; /* immutable: takes what is over KVB_SERIES_MAX */
    atomic_bool other_used;
    uint32_t len; /* guarded by lock; without `other` */
};

struct kvb_metrics {
    struct kvb_mutex lock;
    const struct kvb_metric *table; /* immutable, borrowed */
    size_t n;                       /* immutable */
    size_t ncollectors;             /* guarded by lock */
    struct {
        void (*collect)(void *ctx);
        void *ctx;
    } collectors[COLLECTORS_MAX];
    struct family families[];
};

static size_t label_count(const struct kvb_metric *metric)
{
    size_t n = 0;
    while (metric->labels[n] != NULL) {
        n++;
    }
    kvb_assert(n <= KVB_LABELS_MAX);
    return n;
}

static size_t bucket_count(const struct kvb_metric *metric)
{
    return metric->buckets == NULL ? kvb_buckets_seconds_len : metric->nbuckets;
}

static const double *bucket_bounds(const struct kvb_metric *metric)
{
    return metric->buckets == NULL ? kvb_buckets_seconds : metric->buckets;
}

static struct kvb_series *series_create(const struct kvb_metric *metric,
                                        char values[][KVB_LABEL_VALUE_MAX + 1])
{
    size_t nbuckets = metric->type == KVB_HISTOGRAM ? bucket_count(metric) + 1 : 0;
    struct kvb_series *series = calloc(1, sizeof *series + nbuckets * sizeof series->buckets[0]);
    if (series != NULL) {
        series->metric = metric;
        memcpy(series->values, values, sizeof series->values);
    }
    return series;
}

static bool family_init(struct family *family, const struct kvb_metric *metric)
{
    char values[KVB_LABELS_MAX][KVB_LABEL_VALUE_MAX + 1] = {0};
    size_t labels = label_count(metric);
    for (size_t i = 0; i < labels; i++) {
        strcpy(values[i], "other");
    }
    family->other = series_create(metric, values);
    /* Without labels there is one series, and it is there from the start. */
    family->other_used = labels == 0;
    return family->other != NULL;
}

struct kvb_metrics *kvb_metrics_create(const struct kvb_metric *table, size_t n)
{
    struct kvb_metrics *metrics = calloc(1, sizeof *metrics + n * sizeof metrics->families[0]);
    if (metrics == NULL) {
        return NULL;
    }
    kvb_mutex_init(&metrics->lock, "metrics");
    metrics->table = table;
    metrics->n = n;
    for (size_t i = 0; i < n; i++) {
        if (!family_init(&metrics->families[i], &table[i])) {
            kvb_metrics_destroy(metrics);
            return NULL;
        }
    }
    return metrics;
}

void kvb_metrics_destroy(struct kvb_metrics *metrics)
{
    if (metrics == NULL) {
        return;
    }
    for (size_t i = 0; i < metrics->n; i++) {
        struct kvb_series *series = metrics->families[i].first;
        while (series != NULL) {
            struct kvb_series *next = series->next;
            free(series);
            series = next;
        }
        free(metrics->families[i].other);
    }
    kvb_mutex_cleanup(&metrics->lock);
    free(metrics);
}

/* At most KVB_LABEL_VALUE_MAX bytes of well-formed UTF-8; a byte that is none becomes '?'. */
static void copy_value(char out[KVB_LABEL_VALUE_MAX + 1], const char *value)
{
    size_t len = value == NULL ? 0 : strlen(value);
    size_t at = 0;
    for (size_t i = 0; i < len;) {
        size_t n = kvb_utf8_sequence(value + i, len - i);
        size_t take = n == 0 ? 1 : n;
        if (at + take > KVB_LABEL_VALUE_MAX) {
            break;
        }
        memcpy(out + at, n == 0 ? "?" : value + i, take);
        at += take;
        i += take;
    }
    out[at] = '\0';
}

/* The series with these values from `*link_p` on, or NULL and *link_p the link that ends the list.
 */
static struct kvb_series *find(_Atomic(struct kvb_series *) **link_p,
                               char values[][KVB_LABEL_VALUE_MAX + 1], size_t labels)
{
    for (;;) {
        /* Pairs with the store in kvb_series(). */
        struct kvb_series *series = atomic_load_explicit(*link_p, memory_order_acquire);
        if (series == NULL) {
            return NULL;
        }
        size_t same = 0;
        while (same < labels && strcmp(series->values[same], values[same]) == 0) {
            same++;
        }
        if (same == labels) {
            return series;
        }
        *link_p = &series->next;
    }
}

struct kvb_series *kvb_series(struct kvb_metrics *metrics, size_t index,
                              const char *const *label_values)
{
    kvb_assert(index < metrics->n);
    const struct kvb_metric *metric = &metrics->table[index];
    struct family *family = &metrics->families[index];
    size_t labels = label_count(metric);
    if (labels == 0) {
        return family->other;
    }
    char values[KVB_LABELS_MAX][KVB_LABEL_VALUE_MAX + 1] = {0};
    for (size_t i = 0; i < labels; i++) {
        copy_value(values[i], label_values[i]);
    }
    _Atomic(struct kvb_series *) *link = &family->first;
    struct kvb_series *series = find(&link, values, labels);
    if (series != NULL) {
        return series;
    }
    kvb_mutex_lock(&metrics->lock);
    series = find(&link, values, labels); /* what was appended meanwhile */
    if (series == NULL && family->len < KVB_SERIES_MAX) {
        series = series_create(metric, values);
        if (series != NULL) {
            family->len++;
            /* Pairs with the load in find(). */
            atomic_store_explicit(link, series, memory_order_release);
        }
    }
    kvb_mutex_unlock(&metrics->lock);
    if (series == NULL) {
        atomic_store_explicit(&family->other_used, true, memory_order_relaxed);
        return family->other;
    }
    return series;
}

struct kvb_series *kvb_series0(struct kvb_metrics *metrics, size_t family)
{
    kvb_assert(family < metrics->n && label_count(&metrics->table[family]) == 0);
    return metrics->families[family].other;
}

void kvb_series_add(struct kvb_series *series, uint64_t n)
{
    kvb_assert(series->metric->type == KVB_COUNTER);
    atomic_fetch_add_explicit(&series->count, n, memory_order_relaxed);
}

void kvb_series_set(struct kvb_series *series, double value)
{
    kvb_assert(series->metric->type != KVB_HISTOGRAM);
    atomic_store_explicit(&series->value, value, memory_order_relaxed);
}

void kvb_series_observe(struct kvb_series *series, double value)
{
    kvb_assert(series->metric->type == KVB_HISTOGRAM);
    const double *bounds = bucket_bounds(series->metric);
    size_t n = bucket_count(series->metric);
    size_t i = 0;
    while (i < n && !(value <= bounds[i])) {
        i++;
    }
    double sum = atomic_load_explicit(&series->value, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&series->value, &sum, sum + value,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
    atomic_fetch_add_explicit(&series->buckets[i], 1, memory_order_relaxed);
}

double kvb_series_value(const struct kvb_series *series)
{
    if (series->metric->type == KVB_HISTOGRAM) {
        uint64_t count = 0;
        for (size_t i = 0; i <= bucket_count(series->metric); i++) {
            count += atomic_load_explicit(&series->buckets[i], memory_order_relaxed);
        }
        return (double)count;
    }
    /* A counter is either added to or mirrored. */
    return (double)atomic_load_explicit(&series->count, memory_order_relaxed) +
           atomic_load_explicit(&series->value, memory_order_relaxed);
}

void kvb_metrics_on_collect(struct kvb_metrics *metrics, void (*collect)(void *ctx), void *ctx)
{
    kvb_mutex_lock(&metrics->lock);
    kvb_assert(metrics->ncollectors < COLLECTORS_MAX);
    metrics->collectors[metrics->ncollectors].collect = collect;
    metrics->collectors[metrics->ncollectors].ctx = ctx;
    metrics->ncollectors++;
    kvb_mutex_unlock(&metrics->lock);
}

/* ---- exposition, https://prometheus.io/docs/instrumenting/exposition_formats/ ---- */

/* Label values escape quote, backslash and newline; help texts only the latter two. */
static void write_escaped(FILE *out, const char *text, bool label)
{
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            fputs("\\n", out);
        } else if (*text == '\\' || (label && *text == '"')) {
            fprintf(out, "\\%c", *text);
        } else {
            fputc(*text, out);
        }
    }
}

/* The shortest of two forms that reads back as the same number. */
static void write_number(FILE *out, double value)
{
    char text[32];
    if (isnan(value)) {
        fputs("NaN", out);
        return;
    }
    if (isinf(value)) {
        fputs(value > 0 ? "+Inf" : "-Inf", out);
        return;
    }
    snprintf(text, sizeof text, "%.15g", value);
    if (strtod(text, NULL) != value) {
        snprintf(text, sizeof text, "%.17g", value);
    }
    fputs(text, out);
}

/* `name_suffix{labels,le="bound"} `; bound NULL: no le. */
static void write_name(FILE *out, const struct kvb_series *series, const char *suffix,
                       const double *bound)
{
    const struct kvb_metric *metric = series->metric;
    const char *separator = "{";
    fprintf(out, "%s%s", metric->name, suffix);
    for (size_t i = 0; metric->labels[i] != NULL; i++) {
        fprintf(out, "%s%s=\"", separator, metric->labels[i]);
        write_escaped(out, series->values[i], true);
        fputc('"', out);
        separator = ",";
    }
    if (bound != NULL) {
        fprintf(out, "%sle=\"", separator);
        write_number(out, *bound);
        fputc('"', out);
        separator = ",";
    }
    fputs(*separator == ',' ? "} " : " ", out);
}

static void write_histogram(FILE *out, const struct kvb_series *series)
{
    const double *bounds = bucket_bounds(series->metric);
    size_t n = bucket_count(series->metric);
    uint64_t count = 0;
    for (size_t i = 0; i <= n; i++) {
        double infinite = INFINITY;
        count += atomic_load_explicit(&series->buckets[i], memory_order_relaxed);
        write_name(out, series, "_bucket", i < n ? &bounds[i] : &infinite);
        fprintf(out, "%" PRIu64 "\n", count);
    }
    write_name(out, series, "_sum", NULL);
    write_number(out, atomic_load_explicit(&series->value, memory_order_relaxed));
    fputc('\n', out);
    write_name(out, series, "_count", NULL);
    fprintf(out, "%" PRIu64 "\n", count);
}

static void write_series(FILE *out, const struct kvb_series *series)
{
    if (series->metric->type == KVB_HISTOGRAM) {
        write_histogram(out, series);
        return;
    }
    write_name(out, series, "", NULL);
    write_number(out, kvb_series_value(series));
    fputc('\n', out);
}

static void write_family(FILE *out, const struct kvb_metric *metric, const struct family *family)
{
    static const char *const types[] = {
        [KVB_COUNTER] = "counter", [KVB_GAUGE] = "gauge", [KVB_HISTOGRAM] = "histogram"};
    fprintf(out, "# HELP %s ", metric->name);
    write_escaped(out, metric->help, false);
    fprintf(out, "\n# TYPE %s %s\n", metric->name, types[metric->type]);
    const struct kvb_series *series = atomic_load_explicit(&family->first, memory_order_acquire);
    while (series != NULL) {
        write_series(out, series);
        series = atomic_load_explicit(&series->next, memory_order_acquire);
    }
    if (atomic_load_explicit(&family->other_used, memory_order_relaxed)) {
        write_series(out, family->other);
    }
}

kvb_status_t kvb_metrics_write(struct kvb_metrics *metrics, char **text_p, size_t *len_p)
{
    kvb_mutex_lock(&metrics->lock);
    size_t ncollectors = metrics->ncollectors; /* entries below it do not change any more */
    kvb_mutex_unlock(&metrics->lock);
    for (size_t i = 0; i < ncollectors; i++) {
        metrics->collectors[i].collect(metrics->collectors[i].ctx);
    }
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    if (out == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < metrics->n; i++) {
        write_family(out, &metrics->table[i], &metrics->families[i]);
    }
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        return KVB_ERR_NO_MEMORY;
    }
    *text_p = text;
    *len_p = len;
    return KVB_OK;
}
