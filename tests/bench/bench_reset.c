/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /reset_prefix_cache?reset_external=true, from the client's send to its receipt, with 10^4 …
 * 10^7 live objects in the store, while another instance goes on putting. Two kinds of sample:
 * resets of an instance whose own lineage holds all the objects (few: each needs a refill), and
 * resets of one beside it (many). After the last one the used bytes must come back to 0: they were
 * real objects.
 */
#include "rig.h"

#include <stdio.h>
#include <string.h>

#define BATCH  4096u
#define VALUE  64u
#define BESIDE 300u /* samples beside the objects */

static uint64_t next_key;

static void fill(struct rig_engine *engine, uint64_t n)
{
    while (n > 0) {
        uint32_t batch = n < BATCH ? (uint32_t)n : BATCH;
        rig_engine_wait(engine, 3);
        rig_engine_put_many(engine, next_key, batch, VALUE);
        next_key += batch;
        n -= batch;
    }
    rig_engine_wait(engine, 0);
}

static double reset_us(struct rig_http *http, const char *instance, struct rig_engine *engine)
{
    char target[128];
    snprintf(target, sizeof target, "/reset_prefix_cache?reset_external=true&instance=%s",
             instance);
    uint64_t start = rig_now_ns();
    int status = rig_http_call(http, "POST", target, engine);
    double us = (double)(rig_now_ns() - start) / 1e3;
    if (status != 200 || strstr(http->body, "true") == NULL) {
        rig_fail("reset: %d %s", status, http->body);
    }
    return us;
}

static double health_ms(struct rig_http *http)
{
    uint64_t start = rig_now_ns();
    if (rig_http_call(http, "GET", "/health", NULL) != 200) {
        rig_fail("/health: %s", http->body);
    }
    return (double)(rig_now_ns() - start) / 1e6;
}

/* Spins on the metric, at most 60 s. */
static void await_empty(struct rig_http *http, struct rig_engine *engine)
{
    uint64_t deadline = rig_now_ns() + 60000000000u;
    do {
        (void)rig_http_call(http, "GET", "/metrics", engine);
        if (rig_http_number(http, "kvplane_store_used_bytes") == 0) {
            return;
        }
    } while (rig_now_ns() < deadline);
    rig_fail("used bytes did not come back to 0: %.0f",
             rig_http_number(http, "kvplane_store_used_bytes"));
}

int main(void)
{
    struct rig rig;
    rig_start(&rig, RIG_SERVER_CPU, (const char *[]){"--store-bytes", "2GiB", NULL});
    struct rig_engine full, beside;
    rig_engine_open(&full, &rig, "full", "bench", 1u << 20);
    rig_engine_open(&beside, &rig, "beside", "bench", 1u << 20);
    struct rig_http control, probe;
    rig_http_open(&control, &rig);
    rig_http_open(&probe, &rig);

    static const struct {
        const char *label;
        uint64_t objects;
        uint32_t refills;
    } sizes[] = {
        {"1e4", 10000, 40}, {"1e5", 100000, 20}, {"1e6", 1000000, 5}, {"1e7", 10000000, 2}};
    double p99[4] = {0}, health[4 * (BESIDE + 64)];
    size_t nhealth = 0;
    printf("%10s %8s %12s %12s %14s\n", "objects", "samples", "p50 us", "p99 us", "whole lineage");
    for (size_t s = 0; s < 4; s++) {
        double us[BESIDE + 64], own = 0;
        size_t n = 0;
        fill(&full, sizes[s].objects);
        for (uint32_t i = 0; i < BESIDE; i++) {
            rig_engine_put_many(&full, next_key, 1, VALUE); /* puts run meanwhile */
            next_key++;
            us[n++] = reset_us(&control, "beside", &beside);
            rig_engine_wait(&full, 0);
            health[nhealth++] = health_ms(&probe);
        }
        for (uint32_t r = 0; r < sizes[s].refills; r++) {
            double t = reset_us(&control, "full", &full);
            us[n++] = t;
            own = t > own ? t : own;
            health[nhealth++] = health_ms(&probe);
            if (r + 1 < sizes[s].refills) {
                fill(&full, sizes[s].objects);
            }
        }
        await_empty(&probe, &full);
        double p50 = rig_quantile(us, n, 0.50);
        p99[s] = rig_quantile(us, n, 0.99);
        printf("%10s %8zu %12.0f %12.0f %11.0f us\n", sizes[s].label, n, p50, p99[s], own);
    }
    double health_p99 = rig_quantile(health, nhealth, 0.99);
    rig_http_close(&control);
    rig_http_close(&probe);
    rig_engine_close(&full);
    rig_engine_close(&beside);
    rig_stop(&rig);
    printf("bench reset: p99_us_1e4=%.0f p99_us_1e5=%.0f p99_us_1e6=%.0f p99_us_1e7=%.0f "
           "health_p99_ms=%.3f\n",
           p99[0], p99[1], p99[2], p99[3], health_p99);
    return 0;
}
