/* SPDX-License-Identifier: Apache-2.0 */
#include "base/metrics.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS, USED, TOOK, BY, STANDARD, FAMILIES };
static const double bounds[] = {0.5, 1, 2.5};
static const struct kvb_metric table[FAMILIES] = {
    [CALLS] = {"t_calls_total", KVB_COUNTER, "Calls.", {NULL}, NULL, 0},
    [USED] = {"t_used_bytes", KVB_GAUGE, "Back\\slash, new\nline, \"quote\".", {NULL}, NULL, 0},
    [TOOK] = {"t_took_seconds", KVB_HISTOGRAM, "Took.", {"what", NULL}, bounds, 3},
    [BY] = {"t_by_total", KVB_COUNTER, "By.", {"tenant", "reason", NULL}, NULL, 0},
    [STANDARD] = {"t_standard_seconds", KVB_HISTOGRAM, "Standard.", {NULL}, NULL, 0},
};

static char *text_of(struct kvb_metrics *metrics)
{
    char *text = NULL;
    size_t len = 0;
    cr_assert_eq(kvb_metrics_write(metrics, &text, &len), KVB_OK);
    cr_assert_eq(strlen(text), len);
    cr_assert_eq(text[len - 1], '\n', "the text ends in a newline");
    return text;
}

static void assert_has(struct kvb_metrics *metrics, const char *wanted)
{
    char *text = text_of(metrics);
    cr_assert(strstr(text, wanted) != NULL, "no %s in:\n%s", wanted, text);
    free(text);
}

static void assert_has_not(struct kvb_metrics *metrics, const char *unwanted)
{
    char *text = text_of(metrics);
    cr_assert_null(strstr(text, unwanted), "%s", text);
    free(text);
}

static struct kvb_series *by(struct kvb_metrics *metrics, const char *tenant, const char *reason)
{
    return kvb_series(metrics, BY, (const char *const[]){tenant, reason});
}

Test(metrics, the_exposition_is_as_prometheus_reads_it)
{
    struct kvb_metrics *metrics = kvb_metrics_create(table, FAMILIES - 1);
    kvb_series_add(kvb_series0(metrics, CALLS), 3);
    kvb_series_add(kvb_series0(metrics, CALLS), 4);
    kvb_series_set(kvb_series0(metrics, USED), 0.1);
    struct kvb_series *took = kvb_series(metrics, TOOK, (const char *const[]){"get"});
    kvb_series_observe(took, 0.5); /* a bound belongs to its bucket */
    kvb_series_observe(took, 0.75);
    kvb_series_observe(took, 99);
    kvb_series_add(by(metrics, "a", "b"), 1);
    cr_assert_eq(kvb_series_value(took), 3);
    cr_assert_eq(kvb_series_value(kvb_series0(metrics, CALLS)), 7);
    char *text = text_of(metrics);
    cr_assert_str_eq(text, "# HELP t_calls_total Calls.\n"
                           "# TYPE t_calls_total counter\n"
                           "t_calls_total 7\n"
                           "# HELP t_used_bytes Back\\\\slash, new\\nline, \"quote\".\n"
                           "# TYPE t_used_bytes gauge\n"
                           "t_used_bytes 0.1\n"
                           "# HELP t_took_seconds Took.\n"
                           "# TYPE t_took_seconds histogram\n"
                           "t_took_seconds_bucket{what=\"get\",le=\"0.5\"} 1\n"
                           "t_took_seconds_bucket{what=\"get\",le=\"1\"} 2\n"
                           "t_took_seconds_bucket{what=\"get\",le=\"2.5\"} 2\n"
                           "t_took_seconds_bucket{what=\"get\",le=\"+Inf\"} 3\n"
                           "t_took_seconds_sum{what=\"get\"} 100.25\n"
                           "t_took_seconds_count{what=\"get\"} 3\n"
                           "# HELP t_by_total By.\n"
                           "# TYPE t_by_total counter\n"
                           "t_by_total{tenant=\"a\",reason=\"b\"} 1\n");
    free(text);
    kvb_metrics_destroy(metrics);
}

Test(metrics, a_family_without_labels_is_there_from_the_start)
{
    struct kvb_metrics *metrics = kvb_metrics_create(table, FAMILIES);
    assert_has(metrics, "\nt_calls_total 0\n");
    assert_has(metrics, "t_standard_seconds_bucket{le=\"+Inf\"} 0\n");
    assert_has_not(metrics, "other");
    kvb_metrics_destroy(metrics);
    kvb_metrics_destroy(NULL);
}

Test(metrics, label_values_are_escaped_and_always_utf8)
{
    struct kvb_metrics *metrics = kvb_metrics_create(table, FAMILIES);
    kvb_series_add(by(metrics, "q\"b\\n\nend", "\xc3\xa9"), 1);
    kvb_series_add(by(metrics, "bad\xff\xc3", NULL), 2);
    assert_has(metrics, "t_by_total{tenant=\"q\\\"b\\\\n\\nend\",reason=\"\xc3\xa9\"} 1\n");
    assert_has(metrics, "t_by_total{tenant=\"bad??\",reason=\"\"} 2\n");
    kvb_metrics_destroy(metrics);
}

Test(metrics, long_values_are_cut_between_characters_and_meet_there)
{
    struct kvb_metrics *metrics = kvb_metrics_create(table, FAMILIES);
    char value[KVB_LABEL_VALUE_MAX + 20];
    char wanted[KVB_LABEL_VALUE_MAX + 80];
    memset(value, 'x', sizeof value);
    memcpy(value + KVB_LABEL_VALUE_MAX - 1, "\xc3\xa9", 3); /* across the limit */
    struct kvb_series *series = by(metrics, value, "");
    snprintf(wanted, sizeof wanted, "{tenant=\"%.*s\",", KVB_LABEL_VALUE_MAX - 1, value);
    assert_has(metrics, wanted);
    value[KVB_LABEL_VALUE_MAX - 1] = '\0';
    cr_assert_eq(by(metrics, value, ""), series);
    memset(value, 'y', sizeof value);
    value[KVB_LABEL_VALUE_MAX] = '\0';
    series = by(metrics, value, "");
    value[KVB_LABEL_VALUE_MAX] = 'z';
    value[KVB_LABEL_VALUE_MAX + 1] = '\0';
    cr_assert_eq(by(metrics, value, ""), series);
    kvb_metrics_destroy(metrics);
}

Test(metrics, invented_names_share_one_series_past_the_limit)
{
    struct kvb_metrics *metrics = kvb_metrics_create(table, FAMILIES);
    struct kvb_series *first = by(metrics, "0", "r");
    struct kvb_series *other = NULL;
    for (int i = 0; i < KVB_SERIES_MAX + 100; i++) {
        char tenant[16];
        snprintf(tenant, sizeof tenant, "%d", i);
        struct kvb_series *series = by(metrics, tenant, "r");
        cr_assert_not_null(series);
        kvb_series_add(series, 1);
        if (i == KVB_SERIES_MAX) {
            other = series;
        }
        cr_assert(i < KVB_SERIES_MAX ? series != other : series == other, "%d", i);
    }
    cr_assert_eq(by(metrics, "0", "r"), first, "those that were there stay");
    assert_has(metrics, "t_by_total{tenant=\"1023\",reason=\"r\"} 1\n");
    assert_has(metrics, "t_by_total{tenant=\"other\",reason=\"other\"} 100\n");
    assert_has_not(metrics, "\"1024\"");
    kvb_metrics_destroy(metrics);
}

static void drop(struct kvb_metrics *metrics, const char *tenant, const char *reason)
{
    const char *values[] = {tenant, reason};
    kvb_series_drop(metrics, BY, values, reason == NULL ? 1 : 2);
}

Test(metrics, what_is_dropped_is_shown_no_more_and_begins_anew)
{
    struct kvb_metrics *metrics = kvb_metrics_create(table, FAMILIES);
    kvb_series_add(by(metrics, "a", "x"), 1);
    kvb_series_add(by(metrics, "a", "y"), 2);
    kvb_series_add(by(metrics, "ab", "x"), 3);
    kvb_series_add(by(metrics, "b", "x"), 4);
    drop(metrics, "a", "y");
    assert_has(metrics, "{tenant=\"a\",reason=\"x\"} 1\n");
    assert_has_not(metrics, "{tenant=\"a\",reason=\"y\"}");
    drop(metrics, "a", NULL); /* whatever the rest is, but not what only begins so */
    drop(metrics, "nobody", NULL);
    assert_has_not(metrics, "{tenant=\"a\"");
    assert_has(metrics, "{tenant=\"ab\",reason=\"x\"} 3\n");
    assert_has(metrics, "{tenant=\"b\",reason=\"x\"} 4\n");
    kvb_series_add(by(metrics, "a", "x"), 5);
    assert_has(metrics, "{tenant=\"a\",reason=\"x\"} 5\n");
    kvb_metrics_destroy(metrics);
}

Test(metrics, names_that_come_and_go_use_up_no_place)
{
    struct kvb_metrics *metrics = kvb_metrics_create(table, FAMILIES);
    kvb_series_add(by(metrics, "stays", "x"), 1);
    for (int i = 0; i < 3 * KVB_SERIES_MAX; i++) {
        char tenant[16];
        snprintf(tenant, sizeof tenant, "t%d", i % 2000);
        struct kvb_series *series = by(metrics, tenant, "x");
        drop(metrics, tenant, NULL);
        kvb_series_add(series, 1); /* whoever has it in hand may still write into it */
    }
    kvb_series_add(by(metrics, "t7", "x"), 1);
    assert_has(metrics, "{tenant=\"stays\",reason=\"x\"} 1\n");
    assert_has(metrics, "{tenant=\"t7\",reason=\"x\"} 1\n");
    assert_has_not(metrics, "other");
    kvb_metrics_destroy(metrics);
}

Test(metrics, invented_names_that_go_again_do_not_grow_the_process)
{
    struct kvb_metrics *metrics = kvb_metrics_create(table, FAMILIES);
    for (int i = 0; i < KVB_SERIES_EVER + 10; i++) {
        char tenant[16];
        snprintf(tenant, sizeof tenant, "t%d", i);
        kvb_series_add(by(metrics, tenant, "x"), 1);
        drop(metrics, tenant, NULL);
    }
    assert_has(metrics, "t_by_total{tenant=\"other\",reason=\"other\"} 10\n");
    assert_has_not(metrics, "{tenant=\"t");
    kvb_metrics_destroy(metrics);
}

Test(metrics, buckets_are_cumulative_and_end_at_the_count)
{
    struct kvb_metrics *metrics = kvb_metrics_create(table, FAMILIES);
    struct kvb_series *series = kvb_series0(metrics, STANDARD);
    for (size_t i = 0; i < kvb_buckets_seconds_len; i++) {
        cr_assert(i == 0 || kvb_buckets_seconds[i] > kvb_buckets_seconds[i - 1]);
        kvb_series_observe(series, kvb_buckets_seconds[i]);
    }
    kvb_series_observe(series, (double)INFINITY);
    kvb_series_observe(series, (double)NAN); /* belongs nowhere else */
    kvb_series_observe(series, -1);
    char *text = text_of(metrics);
    unsigned long last = 0;
    size_t lines = 0;
    for (const char *at = text; (at = strstr(at, "t_standard_seconds_bucket")) != NULL; at++) {
        unsigned long count = strtoul(strstr(at, "} ") + 2, NULL, 10);
        cr_assert_gt(count, last);
        last = count;
        lines++;
    }
    cr_assert_eq(lines, kvb_buckets_seconds_len + 1);
    cr_assert_eq(last, kvb_buckets_seconds_len + 3);
    const char *count = strstr(text, "t_standard_seconds_count ");
    cr_assert_eq(strtoul(count + strlen("t_standard_seconds_count "), NULL, 10), last);
    free(text);
    kvb_metrics_destroy(metrics);
}

Test(metrics, numbers_read_back_as_they_were)
{
    struct kvb_metrics *metrics = kvb_metrics_create(table, FAMILIES);
    struct kvb_series *used = kvb_series0(metrics, USED);
    kvb_series_set(used, 1e15);
    assert_has(metrics, "\nt_used_bytes 1e+15\n");
    kvb_series_set(used, 1234567890123);
    assert_has(metrics, "\nt_used_bytes 1234567890123\n");
    kvb_series_set(used, 1.0 / 3);
    assert_has(metrics, "\nt_used_bytes 0.33333333333333331\n");
    kvb_series_set(used, (double)NAN);
    assert_has(metrics, "\nt_used_bytes NaN\n");
    kvb_series_set(used, -(double)INFINITY);
    assert_has(metrics, "\nt_used_bytes -Inf\n");
    kvb_metrics_destroy(metrics);
}

static void collect(void *ctx)
{
    struct kvb_metrics *metrics = ctx;
    /* A new series: the registry's lock is not held. */
    kvb_series_set(kvb_series0(metrics, USED), 42);
    kvb_series_add(by(metrics, "collected", ""), 1);
}

Test(metrics, collectors_run_before_every_write)
{
    struct kvb_metrics *metrics = kvb_metrics_create(table, FAMILIES);
    kvb_metrics_on_collect(metrics, collect, metrics);
    kvb_metrics_on_collect(metrics, collect, metrics);
    assert_has(metrics, "\nt_used_bytes 42\n");
    assert_has(metrics, "{tenant=\"collected\",reason=\"\"} 4\n");
    kvb_metrics_destroy(metrics);
}

Test(metrics, a_sum_of_others_is_shown_behind_them_under_its_own_name)
{
    static const struct kvb_metric more[] = {
        {"m_sum_total", KVB_COUNTER, "Sum.", {"way", NULL}, NULL, 0},
        {"m_took_seconds", KVB_HISTOGRAM, "Took.", {NULL}, NULL, 0},
    };
    struct kvb_metrics *metrics = kvb_metrics_create(table, FAMILIES);
    struct kvb_metrics *behind = kvb_metrics_create(more, 2);
    const char *way[] = {"all"};
    kvb_metrics_show_behind(metrics, behind);
    kvb_series_add(by(metrics, "a", "x"), 1);
    kvb_series_add(by(metrics, "a", "y"), 2);
    kvb_series_add(by(metrics, "b", "x"), 4);
    kvb_series_add(by(metrics, "gone", "x"), 8);
    drop(metrics, "gone", NULL);
    kvb_series_sum(kvb_series(behind, 0, way), metrics, BY, NULL, NULL);
    assert_has(metrics, "\nm_sum_total{way=\"all\"} 7\n");
    kvb_series_sum(kvb_series(behind, 0, way), metrics, BY, "tenant=\"a\"", "reason=\"x\"");
    assert_has(metrics, "\nm_sum_total{way=\"all\"} 2\n");
    kvb_series_observe(kvb_series0(metrics, STANDARD), 0.5);
    kvb_series_observe(kvb_series0(metrics, STANDARD), 2);
    for (int i = 0; i < 2; i++) { /* made anew, not added to */
        kvb_series_sum(kvb_series0(behind, 1), metrics, STANDARD, NULL, NULL);
    }
    assert_has(metrics, "\nm_took_seconds_bucket{le=\"1\"} 1\n");
    assert_has(metrics, "\nm_took_seconds_sum 2.5\nm_took_seconds_count 2\n");
    kvb_metrics_destroy(metrics);
    kvb_metrics_destroy(behind);
}
