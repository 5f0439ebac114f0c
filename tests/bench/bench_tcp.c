/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench tcp: a store node in a process of its own and this process as its client, values over
 * loopback TCP and 4 lanes, against the limit program (limit_tcp.h) and Redis, all on the same two
 * cores, in interleaved rounds; medians. Then small operations at half load.
 *
 * Ours and the limit have the same number of values in flight and walk memories of the same size on
 * both sides; redis-benchmark has one in flight on each of its 4 connections and reads and writes
 * one buffer on its side.
 */
#include "limit_tcp.h"
#include "net_rig.h"
#include "redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY (256u << 20) /* walked, on each side */
#define SHARE  (1ull << 30)
#define ROUNDS 7u

enum way { LIMIT, OURS, REDIS, WAYS };

struct size {
    const char *name;
    uint32_t len, sample, outstanding;
};
static const struct size sizes[] = {
    {"64 KiB", 64u << 10, 96u << 20, 16},
    {"1 MiB", 1u << 20, 128u << 20, 8},
    {"4 MiB", 4u << 20, 128u << 20, 8},
};
enum { SIZES = sizeof sizes / sizeof sizes[0], MIB = 1 };

static struct limit_tcp *limit;
static struct rig_net net;
static struct rig_client client;
static struct redis redis;
static uint64_t next_key;

static uint64_t run(const struct size *size, enum kvs_batch_op op, uint64_t first,
                    uint32_t *failed_p)
{
    struct rig_run run = {.op = op,
                          .first = first,
                          .n = size->sample / size->len,
                          .len = size->len,
                          .batch = 1,
                          .outstanding = size->outstanding};
    uint64_t ns = rig_client_run(&client, &run);
    *failed_p = run.failed;
    return ns;
}

/* The share is full, and the hand of its eviction may just pass the youngest. */
static void make_present(const struct size *size, uint64_t first)
{
    for (int i = 0; i < 10; i++) {
        uint32_t missing, failed;
        (void)run(size, KVS_GET, first, &missing);
        if (missing == 0) {
            return;
        }
        (void)run(size, KVS_PUT, first, &failed); /* those that are there: EXISTS */
    }
    rig_fail("the keys to get do not stay");
}

/* GiB/s. Puts are of new keys; gets of those put last. */
static double ours(const struct size *size, bool put)
{
    uint32_t n = size->sample / size->len, failed;
    uint64_t first = put ? next_key : next_key - n;
    if (!put) {
        make_present(size, first);
    }
    uint64_t ns = run(size, put ? KVS_PUT : KVS_GET, first, &failed);
    if (failed != 0) {
        rig_fail("%u of %u %s failed", failed, n, put ? "puts" : "gets");
    }
    next_key += put ? n : 0;
    return rig_gib_per_s(size->sample, ns);
}

static double once(const struct size *size, enum way way, bool put)
{
    uint32_t n = size->sample / size->len;
    switch (way) {
    case LIMIT:
        return rig_gib_per_s(size->sample,
                             limit_tcp_run(limit, put, size->len, n, size->outstanding, 0, NULL));
    case OURS:
        return ours(size, put);
    case REDIS:
    case WAYS:
        break;
    }
    return redis_per_s(&redis, &net, put ? "set" : "get", size->len, n, MEMORY / size->len, 4, 1) *
           size->len / (1u << 30);
}

struct figures {
    double rate[2][WAYS]; /* get, put */
    double limit_ratio[2], redis_x[2];
};

static struct figures measure(const struct size *size)
{
    static double rate[2][WAYS][ROUNDS], ratio[2][WAYS][ROUNDS];
    redis_forget(&redis, &net);
    for (uint64_t warm = 0; warm < SHARE + MEMORY; warm += size->sample) {
        (void)ours(size, true); /* every page of the share was there before, and is evicted from */
    }
    /* Every key that is got is there. */
    for (int way = LIMIT; way < WAYS; way++) {
        (void)once(size, way, true);
    }
    (void)redis_per_s(&redis, &net, "set", size->len, 4 * MEMORY / size->len, MEMORY / size->len, 4,
                      1);
    for (uint32_t r = 0; r < ROUNDS; r++) {
        for (int put = 1; put >= 0; put--) {
            for (int way = LIMIT; way < WAYS; way++) {
                rate[put][way][r] = once(size, way, put != 0);
            }
            ratio[put][LIMIT][r] = rate[put][OURS][r] / rate[put][LIMIT][r];
            ratio[put][REDIS][r] = rate[put][OURS][r] / rate[put][REDIS][r];
        }
    }
    struct figures figures;
    for (int put = 0; put < 2; put++) {
        for (int way = LIMIT; way < WAYS; way++) {
            figures.rate[put][way] = rig_quantile(rate[put][way], ROUNDS, 0.5);
        }
        figures.limit_ratio[put] = rig_quantile(ratio[put][LIMIT], ROUNDS, 0.5);
        figures.redis_x[put] = rig_quantile(ratio[put][REDIS], ROUNDS, 0.5);
        printf("%-8s %-4s %12.2f %12.2f %12.2f %10.2f %10.2f\n", size->name, put ? "put" : "get",
               figures.rate[put][LIMIT], figures.rate[put][OURS], figures.rate[put][REDIS],
               figures.limit_ratio[put], figures.redis_x[put]);
    }
    return figures;
}

/* What redis-benchmark's -P does: more than one request in flight on each connection. */
static void pipelined(const struct size *size)
{
    static const uint32_t depths[] = {1, 4, 16};
    printf("redis %s, GiB/s set / get:", size->name);
    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++) {
        double rate[2];
        for (int put = 1; put >= 0; put--) {
            rate[put] = redis_per_s(&redis, &net, put ? "set" : "get", size->len,
                                    size->sample / size->len, MEMORY / size->len, 4, depths[i]) *
                        size->len / (1u << 30);
        }
        printf("  -P %u %.2f / %.2f", depths[i], rate[1], rate[0]);
    }
    printf("\n");
}

/* ---- small operations ---- */

#define SMALL     4096u
#define SMALL_OPS 20000u
#define SMALL_WAY 16u /* in flight at full load */

static void small_line(const char *name, double full_per_s, double *ns, uint32_t n)
{
    double p50 = rig_quantile(ns, n, 0.5), p99 = rig_quantile(ns, n, 0.99);
    printf("%-26s %12.0f %12.1f %12.1f\n", name, full_per_s, p50 / 1e3, p99 / 1e3);
}

static void small_ours(const char *name, enum kvs_batch_op op)
{
    static double ns[SMALL_OPS];
    struct rig_run run = {.op = op,
                          .first = op == KVS_PUT ? next_key : next_key - SMALL_OPS,
                          .n = SMALL_OPS,
                          .len = SMALL,
                          .batch = 1,
                          .outstanding = SMALL_WAY};
    double full = SMALL_OPS * 1e9 / (double)rig_client_run(&client, &run);
    next_key += op == KVS_PUT ? SMALL_OPS : 0;
    run.first = op == KVS_PUT ? next_key : run.first;
    run.per_s = full / 2;
    run.latency_ns = ns;
    uint32_t failed = run.failed;
    (void)rig_client_run(&client, &run);
    next_key += op == KVS_PUT ? SMALL_OPS : 0;
    if (failed + run.failed != 0) {
        rig_fail("%u of %u small operations failed", failed + run.failed, 2 * SMALL_OPS);
    }
    small_line(name, full, ns, SMALL_OPS);
}

static void small_limit(const char *name, bool put)
{
    static double ns[SMALL_OPS];
    double full =
        SMALL_OPS * 1e9 / (double)limit_tcp_run(limit, put, SMALL, SMALL_OPS, SMALL_WAY, 0, NULL);
    (void)limit_tcp_run(limit, put, SMALL, SMALL_OPS, 256, full / 2, ns);
    small_line(name, full, ns, SMALL_OPS);
}

static void small_operations(void)
{
    printf("\nsmall operations, one at a time, begun at half the rate of full load\n"
           "%-26s %12s %12s %12s\n",
           "", "full ops/s", "p50 us", "p99 us");
    small_limit("limit put 4 KiB", true);
    small_ours("put 4 KiB", KVS_PUT);
    small_limit("limit get 4 KiB", false);
    small_ours("get 4 KiB", KVS_GET);
    small_ours("lookup of one key", KVS_EXISTS);
}

int main(void)
{
    static const struct limit_tcp_config limit_config = LIMIT_TCP_CONFIG;
    limit = limit_tcp_open(&limit_config);
    redis_start(&redis);
    struct rig_server server;
    rig_server_start(&server, RIG_SERVER_CPU, &rig_node_ops,
                     &(struct rig_node){.share_bytes = SHARE});
    rig_net_open(&net, MEMORY);
    rig_client_open(&client, &net, &server, 1);

    printf("GiB/s, medians of %u rounds; server on cpu %d, client on cpu %d\n", ROUNDS,
           RIG_SERVER_CPU, RIG_CLIENT_CPU);
    printf("%-8s %-4s %12s %12s %12s %10s %10s\n", "value", "", "limit", "ours", "redis",
           "of limit", "x redis");
    struct figures figures[SIZES];
    for (size_t s = 0; s < SIZES; s++) {
        figures[s] = measure(&sizes[s]);
        pipelined(&sizes[s]);
    }
    small_operations();

    rig_client_close(&client);
    rig_net_close(&net);
    rig_server_stop(&server);
    redis_stop(&redis);
    limit_tcp_close(limit);
    printf("bench tcp: get_1m_ratio=%.2f put_1m_ratio=%.2f redis_get_x=%.2f redis_set_x=%.2f\n",
           figures[MIB].limit_ratio[0], figures[MIB].limit_ratio[1], figures[MIB].redis_x[0],
           figures[MIB].redis_x[1]);
    return 0;
}
