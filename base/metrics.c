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
 * The series of a family form a list that only grows, and an index by hash, so readers walk them
 * without the lock: a link is stored with release once the series behind it is complete, and loaded
 * with acquire. The lock is for appending, dropping and showing again. Values are relaxed atomics:
 * a scrape is no snapshot across series, but a histogram's count is always the sum of the buckets
 * written with it.
 *
 * A series that is dropped stays in the list, hidden, until it is asked for again: whoever has it
 * in hand just then may write into it.
 */

/* From a memcpy of a small block to a long pause. */
const double kvb_buckets_seconds[] = {0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03,
                                      0.1,     0.3,     1,      3,      10,    30,    100,  300};
const size_t kvb_buckets_seconds_len = sizeof kvb_buckets_seconds / sizeof kvb_buckets_seconds[0];

#define COLLECTORS_MAX 16

struct kvb_series {
    const struct kvb_metric *metric; /* immutable */
    uint64_t hash;                   /* immutable, of labels */
    const char *labels; /* immutable, behind the buckets: {a="b",c="d" as it is shown; "": none */
    _Atomic(struct kvb_series *) next;  /* in the order in which they were made */
    _Atomic(struct kvb_series *) chain; /* of those with the same place in the index */
    atomic_bool hidden;                 /* dropped */
    _Atomic(uint64_t) count;            /* counter: added so far */
    _Atomic(double) value;              /* gauge or mirrored counter; histogram: sum */
    _Atomic(uint64_t) buckets[];        /* histogram: one per bound and one above; not cumulative */
};

#define BOUND_TEXT   32
#define INDEX_PLACES 128 /* by hash; a power of two */

struct family {
    _Atomic(struct kvb_series *) first;

    _Atomic(struct kvb_series *) index[INDEX_PLACES];
    char (*bounds)[BOUND_TEXT]; /* immutable: of a histogram, as they are shown, with +Inf */
    struct kvb_series *other;   /* immutable: takes what is over KVB_SERIES_MAX */
    atomic_bool other_used;
    /* guarded by lock */
    struct kvb_series *last;
    uint32_t shown; /* of the list; without `other` */
    uint32_t len;   /* of the list */
};

struct kvb_metrics {
    struct kvb_mutex lock;
    const struct kvb_metric *table; /* immutable, borrowed */
    size_t n;                       /* immutable */
    struct kvb_metrics *behind;     /* immutable once it is set; NULL: none */
    size_t ncollectors;             /* guarded by lock */
    struct {
        void (*collect)(void *ctx);
        void *ctx;
    } collectors[COLLECTORS_MAX];
    struct family families[];
};

/* A text that grows; failed: there was no memory for all of it. */
struct text {
    char *at;
    size_t len;
    size_t cap;
    bool failed;
};

static void put(struct text *text, const char *bytes, size_t n)
{
    if (n == 0) {
        return; /* there may be no memory yet */
    }
    if (n > text->cap - text->len) {
        size_t cap = text->cap < 4096 ? 4096 : text->cap;
        while (n > cap - text->len) {
            cap *= 2;
        }
        char *at = text->failed ? NULL : realloc(text->at, cap);
        if (at == NULL) {
            text->failed = true;
            return;
        }
        text->at = at;
        text->cap = cap;
    }
    memcpy(text->at + text->len, bytes, n);
    text->len += n;
}

static void put_text(struct text *text, const char *bytes)
{
    put(text, bytes, strlen(bytes));
}

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

/* Every label value with its escapes: quote, backslash and newline. */
#define LABELS_TEXT_MAX (KVB_LABELS_MAX * (2 * KVB_LABEL_VALUE_MAX + 64) + 2)

/* At most KVB_LABEL_VALUE_MAX bytes of well-formed UTF-8, escaped; a byte that is none becomes '?'.
 */
static size_t render_value(char *out, const char *value)
{
    size_t len = value == NULL ? 0 : strlen(value);
    size_t taken = 0;
    size_t at = 0;
    for (size_t i = 0; i < len;) {
        size_t n = kvb_utf8_sequence(value + i, len - i);
        size_t take = n == 0 ? 1 : n;
        if (taken + take > KVB_LABEL_VALUE_MAX) {
            break;
        }
        char c = n == 0 ? '?' : value[i];
        if (c == '"' || c == '\\' || c == '\n') {
            out[at++] = '\\';
            c = c == '\n' ? 'n' : c;
        }
        out[at++] = c;
        for (size_t k = 1; k < take; k++) {
            out[at++] = value[i + k];
        }
        taken += take;
        i += take;
    }
    return at;
}

/* {a="b",c="d" of the first n labels. */
static size_t render_labels(char out[LABELS_TEXT_MAX], const struct kvb_metric *metric,
                            const char *const *values, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(metric->labels[i]);
        kvb_assert_slow(len < 48);
        out[at++] = i == 0 ? '{' : ',';
        memcpy(out + at, metric->labels[i], len);
        at += len;
        out[at++] = '=';
        out[at++] = '"';
        at += render_value(out + at, values[i]);
        out[at++] = '"';
    }
    out[at] = '\0';
    return at;
}

/* FNV-1a */
static uint64_t hash_of(const char *bytes, size_t n)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    }
    return hash;
}

static struct kvb_series *series_create(const struct kvb_metric *metric, const char *labels,
                                        size_t len)
{
    size_t nbuckets = metric->type == KVB_HISTOGRAM ? bucket_count(metric) + 1 : 0;
    size_t size = sizeof(struct kvb_series) + nbuckets * sizeof(uint64_t);
    struct kvb_series *series = calloc(1, size + len + 1);
    if (series != NULL) {
        series->metric = metric;
        series->hash = hash_of(labels, len);
        series->labels = memcpy((char *)series + size, labels, len + 1);
    }
    return series;
}

static void write_number(struct text *out, double value);

static bool render_bounds(struct family *family, const struct kvb_metric *metric)
{
    size_t n = bucket_count(metric);
    family->bounds = calloc(n + 1, sizeof family->bounds[0]);
    for (size_t i = 0; family->bounds != NULL && i <= n; i++) {
        struct text text = {.at = NULL};
        write_number(&text, i < n ? bucket_bounds(metric)[i] : INFINITY);
        bool failed = text.failed || text.len >= BOUND_TEXT;
        memcpy(family->bounds[i], failed ? "" : text.at, failed ? 0 : text.len);
        free(text.at);
        if (failed) {
            return false;
        }
    }
    return family->bounds != NULL;
}

static bool family_init(struct family *family, const struct kvb_metric *metric)
{
    static const char *const others[KVB_LABELS_MAX] = {"other", "other", "other", "other"};
    char text[LABELS_TEXT_MAX];
    size_t labels = label_count(metric);
    family->other = series_create(metric, text, render_labels(text, metric, others, labels));
    /* Without labels there is one series, and it is there from the start. */
    family->other_used = labels == 0;
    return family->other != NULL &&
           (metric->type != KVB_HISTOGRAM || render_bounds(family, metric));
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
        struct family *family = &metrics->families[i];
        for (struct kvb_series *series = family->first, *next; series != NULL; series = next) {
            next = series->next;
            free(series);
        }
        free(family->other);
        free(family->bounds);
    }
    kvb_mutex_cleanup(&metrics->lock);
    free(metrics);
}

/* The series with these labels, or NULL. */
static struct kvb_series *find(const struct family *family, const char *labels, uint64_t hash)
{
    /* Pairs with the store in show_locked(). */
    struct kvb_series *series =
        atomic_load_explicit(&family->index[hash % INDEX_PLACES], memory_order_acquire);
    while (series != NULL && (series->hash != hash || strcmp(series->labels, labels) != 0)) {
        series = atomic_load_explicit(&series->chain, memory_order_relaxed);
    }
    return series;
}

static void clear(struct kvb_series *series)
{
    size_t n = series->metric->type == KVB_HISTOGRAM ? bucket_count(series->metric) + 1 : 0;
    atomic_store_explicit(&series->count, 0, memory_order_relaxed);
    atomic_store_explicit(&series->value, 0, memory_order_relaxed);
    for (size_t i = 0; i < n; i++) {
        atomic_store_explicit(&series->buckets[i], 0, memory_order_relaxed);
    }
}

/* Made, or shown again. NULL: out of memory, or over a limit. */
static struct kvb_series *show_locked(struct family *family, const struct kvb_metric *metric,
                                      const char *labels, size_t len, uint64_t hash)
{
    struct kvb_series *series = find(family, labels, hash);
    if (series != NULL && !series->hidden) { /* by another thread, meanwhile */
        return series;
    }
    if (family->shown == KVB_SERIES_MAX || (series == NULL && family->len == KVB_SERIES_EVER)) {
        return NULL;
    }
    if (series != NULL) {
        clear(series);
        atomic_store_explicit(&series->hidden, false, memory_order_relaxed);
        family->shown++;
        return series;
    }
    series = series_create(metric, labels, len);
    if (series != NULL) {
        _Atomic(struct kvb_series *) *place = &family->index[hash % INDEX_PLACES];
        struct kvb_series *last = family->last;
        family->shown++;
        family->len++;
        family->last = series;
        series->chain = *place;
        /* Pair with the loads in find(), and of those who walk all. */
        atomic_store_explicit(place, series, memory_order_release);
        atomic_store_explicit(last == NULL ? &family->first : &last->next, series,
                              memory_order_release);
    }
    return series;
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
    char text[LABELS_TEXT_MAX];
    size_t len = render_labels(text, metric, label_values, labels);
    uint64_t hash = hash_of(text, len);
    struct kvb_series *series = find(family, text, hash);
    if (series != NULL && !atomic_load_explicit(&series->hidden, memory_order_relaxed)) {
        return series;
    }
    kvb_mutex_lock(&metrics->lock);
    series = show_locked(family, metric, text, len, hash);
    kvb_mutex_unlock(&metrics->lock);
    if (series == NULL) {
        atomic_store_explicit(&family->other_used, true, memory_order_relaxed);
        return family->other;
    }
    return series;
}

void kvb_series_drop(struct kvb_metrics *metrics, size_t index, const char *const *values, size_t n)
{
    kvb_assert(index < metrics->n);
    const struct kvb_metric *metric = &metrics->table[index];
    struct family *family = &metrics->families[index];
    char text[LABELS_TEXT_MAX];
    kvb_assert(n > 0 && n <= label_count(metric));
    size_t len = render_labels(text, metric, values, n);
    kvb_mutex_lock(&metrics->lock);
    for (struct kvb_series *series = family->first; series != NULL; series = series->next) {
        bool is = strncmp(series->labels, text, len) == 0 &&
                  (series->labels[len] == ',' || series->labels[len] == '\0');
        if (is && !series->hidden) {
            atomic_store_explicit(&series->hidden, true, memory_order_relaxed);
            family->shown--;
        }
    }
    kvb_mutex_unlock(&metrics->lock);
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

static bool chosen(const struct kvb_series *series, const char *with, const char *without)
{
    return !atomic_load_explicit(&series->hidden, memory_order_relaxed) &&
           (with == NULL || strstr(series->labels, with) != NULL) &&
           (without == NULL || strstr(series->labels, without) == NULL);
}

#define BUCKETS_MAX 64

/* A histogram's sum, or the value; its buckets on top of those. */
static double add_up(const struct kvb_series *series, uint64_t buckets[BUCKETS_MAX])
{
    if (series->metric->type != KVB_HISTOGRAM) {
        return kvb_series_value(series);
    }
    for (size_t i = 0; i <= bucket_count(series->metric); i++) {
        buckets[i] += atomic_load_explicit(&series->buckets[i], memory_order_relaxed);
    }
    return atomic_load_explicit(&series->value, memory_order_relaxed);
}

void kvb_series_sum(struct kvb_series *series, struct kvb_metrics *of, size_t index,
                    const char *with, const char *without)
{
    kvb_assert(index < of->n);
    const struct family *family = &of->families[index];
    bool histogram = of->table[index].type == KVB_HISTOGRAM;
    uint64_t buckets[BUCKETS_MAX] = {0};
    double value = 0;
    kvb_assert(histogram == (series->metric->type == KVB_HISTOGRAM));
    kvb_assert(!histogram || (bucket_bounds(series->metric) == bucket_bounds(&of->table[index]) &&
                              bucket_count(series->metric) < BUCKETS_MAX));
    /* Pairs with the store in show_locked(), as everywhere. */
    for (const struct kvb_series *each = family->first; each != NULL; each = each->next) {
        value += chosen(each, with, without) ? add_up(each, buckets) : 0;
    }
    if (atomic_load_explicit(&family->other_used, memory_order_relaxed) &&
        chosen(family->other, with, without)) {
        value += add_up(family->other, buckets);
    }
    for (size_t i = 0; histogram && i <= bucket_count(series->metric); i++) {
        atomic_store_explicit(&series->buckets[i], buckets[i], memory_order_relaxed);
    }
    atomic_store_explicit(&series->value, value, memory_order_relaxed);
}

void kvb_metrics_show_behind(struct kvb_metrics *metrics, struct kvb_metrics *behind)
{
    metrics->behind = behind;
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

/* Help texts escape backslash and newline. */
static void write_help(struct text *out, const char *help)
{
    for (; *help != '\0'; help++) {
        if (*help == '\n' || *help == '\\') {
            put_text(out, *help == '\n' ? "\\n" : "\\\\");
        } else {
            put(out, help, 1);
        }
    }
}

static void write_whole(struct text *out, uint64_t n)
{
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + n % 10);
        n /= 10;
    } while (n > 0);
    put(out, digits + at, sizeof digits - at);
}

/* The shortest of two forms that reads back as the same number. */
static void write_number(struct text *out, double value)
{
    char text[32];
    if (isnan(value)) {
        put_text(out, "NaN");
        return;
    }
    if (isinf(value)) {
        put_text(out, value > 0 ? "+Inf" : "-Inf");
        return;
    }
    if (fabs(value) < 1e15 && value == (double)(int64_t)value) { /* most of them, and quick */
        put_text(out, value < 0 ? "-" : "");
        write_whole(out, (uint64_t)fabs(value));
        return;
    }
    snprintf(text, sizeof text, "%.15g", value);
    if (strtod(text, NULL) != value) {
        snprintf(text, sizeof text, "%.17g", value);
    }
    put_text(out, text);
}

static void write_count(struct text *out, uint64_t n)
{
    write_whole(out, n);
    put(out, "\n", 1);
}

/* `name_suffix{labels,le="bound"} `; bound NULL: no le. */
static void write_name(struct text *out, const struct kvb_series *series, const char *suffix,
                       const char *bound)
{
    put_text(out, series->metric->name);
    put_text(out, suffix);
    put_text(out, series->labels);
    if (bound != NULL) {
        put_text(out, series->labels[0] == '\0' ? "{le=\"" : ",le=\"");
        put_text(out, bound);
        put_text(out, "\"");
    }
    put_text(out, series->labels[0] != '\0' || bound != NULL ? "} " : " ");
}

static void write_histogram(struct text *out, const struct kvb_series *series,
                            const struct family *family)
{
    size_t n = bucket_count(series->metric);
    uint64_t count = 0;
    for (size_t i = 0; i <= n; i++) {
        count += atomic_load_explicit(&series->buckets[i], memory_order_relaxed);
        write_name(out, series, "_bucket", family->bounds[i]);
        write_count(out, count);
    }
    write_name(out, series, "_sum", NULL);
    write_number(out, atomic_load_explicit(&series->value, memory_order_relaxed));
    put_text(out, "\n");
    write_name(out, series, "_count", NULL);
    write_count(out, count);
}

static void write_series(struct text *out, const struct kvb_series *series,
                         const struct family *family)
{
    if (series->metric->type == KVB_HISTOGRAM) {
        write_histogram(out, series, family);
        return;
    }
    write_name(out, series, "", NULL);
    write_number(out, kvb_series_value(series));
    put_text(out, "\n");
}

static void write_family(struct text *out, const struct kvb_metric *metric,
                         const struct family *family)
{
    static const char *const types[] = {
        [KVB_COUNTER] = "counter", [KVB_GAUGE] = "gauge", [KVB_HISTOGRAM] = "histogram"};
    put_text(out, "# HELP ");
    put_text(out, metric->name);
    put_text(out, " ");
    write_help(out, metric->help);
    put_text(out, "\n# TYPE ");
    put_text(out, metric->name);
    put_text(out, " ");
    put_text(out, types[metric->type]);
    put_text(out, "\n");
    const struct kvb_series *series = atomic_load_explicit(&family->first, memory_order_acquire);
    while (series != NULL) {
        if (!atomic_load_explicit(&series->hidden, memory_order_relaxed)) {
            write_series(out, series, family);
        }
        series = atomic_load_explicit(&series->next, memory_order_acquire);
    }
    if (atomic_load_explicit(&family->other_used, memory_order_relaxed)) {
        write_series(out, family->other, family);
    }
}

static void collect_and_write(struct text *out, struct kvb_metrics *metrics)
{
    kvb_mutex_lock(&metrics->lock);
    size_t ncollectors = metrics->ncollectors; /* entries below it do not change any more */
    kvb_mutex_unlock(&metrics->lock);
    for (size_t i = 0; i < ncollectors; i++) {
        metrics->collectors[i].collect(metrics->collectors[i].ctx);
    }
    for (size_t i = 0; i < metrics->n; i++) {
        write_family(out, &metrics->table[i], &metrics->families[i]);
    }
}

kvb_status_t kvb_metrics_write(struct kvb_metrics *metrics, char **text_p, size_t *len_p)
{
    struct text out = {.at = NULL};
    for (; metrics != NULL; metrics = metrics->behind) {
        collect_and_write(&out, metrics);
    }
    put(&out, "", 1);
    if (out.failed) {
        free(out.at);
        return KVB_ERR_NO_MEMORY;
    }
    *text_p = out.at;
    *len_p = out.len - 1;
    return KVB_OK;
}
