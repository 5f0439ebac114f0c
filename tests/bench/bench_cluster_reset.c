/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench cluster-reset: two store nodes and an etcd of three on one core, a daemon and its engines
 * on the other.
 *
 * First, POST /reset_prefix_cache?reset_external=true, from the client's send to its receipt, with
 * 10^4 … 10^7 objects in the nodes. The ruler is a bare etcd transaction (one compare, two puts)
 * that is measured beside each sample, with the same etcd, over a kept connection. As in bench
 * reset there are two kinds of sample: of an instance that holds all the objects (one of each
 * number, while another instance reads), and of one beside it (many).
 *
 * Then, what a node costs that dies with 10^5 or 10^7 objects: how long single lookups take in the
 * seconds after it, and the daemon's processor time.
 *
 * The first argument: the largest number of objects (default 10000000).
 */
#include "cluster_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH   4096u
#define VALUE   64u
#define BESIDE  200u /* samples beside the objects */
#define READS   1000u
#define READING 4096u /* bytes of what is read */
#define NS      1000000000u

static struct rig rig;
static struct rig_etcd etcd;
static struct rig_store stores[2];
static struct rig_engine full, beside, reader;
static struct rig_http control;
static uint64_t next_key;

static void fill(uint64_t n)
{
    while (n > 0) {
        uint32_t batch = n < BATCH ? (uint32_t)n : BATCH;
        rig_engine_wait(&full, 3);
        rig_engine_put_many(&full, next_key, batch, VALUE);
        next_key += batch;
        n -= batch;
    }
    rig_engine_wait(&full, 0);
}

static double reset_us(struct rig_engine *engine, const char *instance)
{
    char target[128];
    snprintf(target, sizeof target, "/reset_prefix_cache?reset_external=true&instance=%s",
             instance);
    uint64_t start = rig_now_ns();
    int status = rig_http_call(&control, "POST", target, engine);
    double us = (double)(rig_now_ns() - start) / 1e3;
    if (status != 200 || strstr(control.body, "true") == NULL) {
        rig_fail("reset: %d %s", status, control.body);
    }
    return us;
}

static double used_bytes(void)
{
    double used = 0;
    for (int i = 0; i < 2; i++) {
        struct rig_http http;
        rig_http_open(&http, &stores[i].rest);
        (void)rig_http_call(&http, "GET", "/metrics", NULL);
        used += rig_http_number(&http, "kvplane_store_used_bytes");
        rig_http_close(&http);
    }
    return used;
}

/* One block from the store into the engine, as a request that hits waits for it. */
static double read_us(void)
{
    static uint64_t i;
    uint64_t start = rig_now_ns();
    rig_engine_get(&reader, i++ % READS, 0, READING);
    rig_engine_wait(&reader, 0);
    return (double)(rig_now_ns() - start) / 1e3;
}

static double reads_p99_us(double *us, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        us[i] = read_us();
    }
    return rig_quantile(us, n, 0.99);
}

/* Reads until the space of what was reset is back; how the reads went. */
static double reads_while_reclaiming(double used_before, size_t *n_p)
{
    static double us[1u << 20];
    size_t n = 0;
    uint64_t end = rig_now_ns() + 60ull * NS;
    do {
        for (int i = 0; i < 200; i++) {
            us[n++ % (1u << 20)] = read_us();
        }
        if (rig_now_ns() > end) {
            rig_fail("%.0f bytes did not come back", used_bytes() - used_before);
        }
    } while (used_bytes() > used_before);
    *n_p = n;
    return rig_quantile(us, n < (1u << 20) ? n : 1u << 20, 0.99);
}

struct sample {
    double reset_p99, txn_p99;
};

static struct sample measure(uint64_t objects)
{
    double reset[BESIDE + 1], txn[BESIDE + 1], quiet[READS];
    double used_before = used_bytes();
    fill(objects);
    rig_http_open(&control, &rig); /* filling takes longer than an idle connection lives */
    for (uint32_t i = 0; i < BESIDE; i++) {
        txn[i] = rig_etcd_txn_us(&etcd, 2, 200);
        reset[i] = reset_us(&beside, "beside");
    }
    double reads_before = reads_p99_us(quiet, READS);
    txn[BESIDE] = rig_etcd_txn_us(&etcd, 2, 200);
    double own = reset[BESIDE] = reset_us(&full, "full");
    size_t nreads;
    uint64_t start = rig_now_ns();
    double reads_during = reads_while_reclaiming(used_before, &nreads);
    double reclaimed_s = (double)(rig_now_ns() - start) / NS;
    rig_http_close(&control);
    double reset_p50 = rig_quantile(reset, BESIDE + 1, 0.5);
    double txn_p50 = rig_quantile(txn, BESIDE + 1, 0.5);
    struct sample sample = {rig_quantile(reset, BESIDE + 1, 0.99),
                            rig_quantile(txn, BESIDE + 1, 0.99)};
    printf("%9.0e %9.0f %9.0f %9.0f %9.0f %9.0f %11.0f %11.0f %8zu %8.2f\n", (double)objects,
           reset_p50, sample.reset_p99, own, txn_p50, sample.txn_p99, reads_before, reads_during,
           nreads, reclaimed_s);
    return sample;
}

/* ---- a node that dies ---- */

static double dead(uint64_t objects)
{
    enum { SECONDS = 3 };
    static double us[2][1u << 18];
    size_t n[2] = {0, 0};
    double cpu[2];
    fill(objects);
    for (int after = 0; after < 2; after++) {
        if (after) {
            rig_store_kill(&stores[1]);
        }
        double begin = rig_cpu_ms(rig.daemon);
        for (uint64_t end = rig_now_ns() + (uint64_t)SECONDS * NS; rig_now_ns() < end;) {
            us[after][n[after]++ % (1u << 18)] = read_us();
        }
        /* Reads cost the daemon the same, whatever they find: what is beyond that is the death's.
         */
        cpu[after] = (rig_cpu_ms(rig.daemon) - begin) / (double)n[after] * 1e3;
    }
    printf("%9.0e %12.0f %12.0f %12.0f %12.0f %14.1f %14.1f\n", (double)objects,
           rig_quantile(us[0], n[0], 0.99), rig_quantile(us[1], n[1], 0.99),
           rig_quantile(us[0], n[0], 1), rig_quantile(us[1], n[1], 1), cpu[0], cpu[1]);
    double worst_us = rig_quantile(us[1], n[1], 1);
    static int life; /* a name is taken until its lease has ended */
    char name[16];
    snprintf(name, sizeof name, "b%d", ++life);
    rig_store_start(&stores[1], name, &etcd, "4GiB");
    return worst_us;
}

int main(int argc, char **argv)
{
    uint64_t most = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000000;
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* it takes minutes */
    rig_etcd_start(&etcd, 3);
    rig_store_start(&stores[0], "a", &etcd, "4GiB");
    rig_store_start(&stores[1], "b", &etcd, "4GiB");
    rig_start(&rig, RIG_CLIENT_CPU,
              (const char *[]){"--store-bytes", "0", "--etcd", etcd.endpoints, NULL});
    rig_engine_open(&full, &rig, "full", "full", 1u << 20);
    rig_engine_open(&beside, &rig, "beside", "beside", 1u << 20);
    rig_engine_open(&reader, &rig, "reader", "reader", 1u << 20);
    rig_engine_put_many(&reader, 0, READS, READING);
    rig_engine_wait(&reader, 0);

    printf("us; two store nodes and an etcd of %u on cpu %d, a daemon and its engines on cpu %d\n",
           etcd.n, RIG_SERVER_CPU, RIG_CLIENT_CPU);
    printf("%9s %9s %9s %9s %9s %9s %11s %11s %8s %8s\n", "objects", "reset p50", "p99", "whole",
           "txn p50", "p99", "read p99", "reclaiming", "reads", "s");
    double ratio = 0, first = 0, last = 0;
    for (uint64_t objects = 10000; objects <= most; objects *= 10) {
        struct sample sample = measure(objects);
        ratio = sample.reset_p99 / sample.txn_p99;
        last = sample.reset_p99;
        first = first == 0 ? last : first;
    }
    printf(
        "\na store node dies: single reads in the 3 s before and after, the daemon's CPU for each\n"
        "%9s %12s %12s %12s %12s %14s %14s\n",
        "objects", "p99 before", "after", "max before", "after", "us CPU before", "after");
    double small = dead(most / 100), large = dead(most);
    rig_stop(&rig);
    rig_store_kill(&stores[0]);
    rig_store_kill(&stores[1]);
    rig_etcd_stop(&etcd);
    printf("bench cluster-reset: p99_of_txn=%.2f p99_1e4_us=%.0f p99_most_us=%.0f "
           "dead_small_max_us=%.0f dead_large_max_us=%.0f\n",
           ratio, first, last, small, large);
    return 0;
}
