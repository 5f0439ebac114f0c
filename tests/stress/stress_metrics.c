/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that make and count the same series while others write the exposition: no count is lost,
 * no series is made twice, and every histogram that is written adds up. Run under TSan, too.
 */
#include "base/assert.h"
#include "base/metrics.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 3
#define ROUNDS  3000
#define TRIES   20
#define NAMES   (KVB_SERIES_MAX + 20) /* some share `other` */

enum { COUNTED, TOOK, GOING };
static const struct kvb_metric table[] = {
    [COUNTED] = {"s_counted_total", KVB_COUNTER, "x", {"name", NULL}, NULL, 0},
    [TOOK] = {"s_took_seconds", KVB_HISTOGRAM, "x", {NULL}, NULL, 0},
    [GOING] = {"s_going_total", KVB_COUNTER, "x", {"name", NULL}, NULL, 0}, /* taken away again */
};
static struct kvb_metrics *metrics;
static atomic_uint running;
static pthread_barrier_t together;

static void *count(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%u", i % NAMES);
        if (i < NAMES) {
            pthread_barrier_wait(&together); /* all make the same new series now */
        }
        kvb_series_add(kvb_series(metrics, COUNTED, (const char *const[]){name}), 1);
        kvb_series_observe(kvb_series0(metrics, TOOK), (double)(i % 400));
        kvb_series_add(kvb_series(metrics, GOING, (const char *const[]){name}), 1);
        kvb_series_drop(metrics, GOING, (const char *const[]){name}, 1);
    }
    running--;
    return NULL;
}

/* Sum of the counters in an exposition; the histogram's +Inf bucket and its count must agree. */
static unsigned long sum_of(const char *text)
{
    unsigned long sum = 0;
    for (const char *at = text; (at = strstr(at, "\ns_counted_total{")) != NULL; at++) {
        sum += strtoul(strstr(at, "} ") + 2, NULL, 10);
    }
    const char *all = strstr(text, "le=\"+Inf\"} ");
    const char *total = strstr(text, "s_took_seconds_count ");
    kvb_assert(all != NULL && total != NULL);
    kvb_assert(strtoul(all + strlen("le=\"+Inf\"} "), NULL, 10) ==
               strtoul(total + strlen("s_took_seconds_count "), NULL, 10));
    return sum;
}

static unsigned long write_once(void)
{
    char *text = NULL;
    size_t len = 0;
    kvb_status_t status = kvb_metrics_write(metrics, &text, &len);
    kvb_assert(status == KVB_OK);
    unsigned long sum = sum_of(text);
    free(text);
    return sum;
}

static unsigned one_try(void)
{
    pthread_t threads[THREADS];
    running = THREADS;
    metrics = kvb_metrics_create(table, 3);
    kvb_assert(metrics != NULL);
    for (int i = 0; i < THREADS; i++) {
        int rc = pthread_create(&threads[i], NULL, count, NULL);
        kvb_assert(rc == 0);
    }
    unsigned long last = 0;
    unsigned writes = 0;
    do {
        unsigned long sum = write_once();
        kvb_assert(sum >= last);
        last = sum;
        writes++;
    } while (running > 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    unsigned long sum = write_once();
    if (sum != THREADS * ROUNDS) {
        fprintf(stderr, "counted %lu of %d\n", sum, THREADS * ROUNDS);
        exit(1);
    }
    kvb_metrics_destroy(metrics);
    return writes;
}

int main(void)
{
    unsigned writes = 0;
    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < TRIES; i++) {
        writes += one_try();
    }
    pthread_barrier_destroy(&together);
    printf("stress_metrics: ok tries=%d counted=%d writes=%u\n", TRIES, TRIES * THREADS * ROUNDS,
           writes);
    return 0;
}
