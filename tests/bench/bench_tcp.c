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

#define MEMORY (256u << 20)   /* walked, on each side */
#define SHARE  (512ull << 20) /* as much as the limit's server walks */
#define ROUNDS 7u

enum way { LIMIT, OURS, REDIS, WAYS };

#define SLICE  (16u << 20) /* bytes: ours and the limit take turns, so that neighbours meet both */
#define SLICES 8u          /* of a round */
#define ROUND  (SLICES * SLICE)

struct size {
    const char *name;
    uint32_t len, outstanding;
};
static const struct size sizes[] = {
    {"64 KiB", 64u << 10, 16},
    {"1 MiB", 1u << 20, 8},
    {"4 MiB", 4u << 20, 4},
};
enum { SIZES = sizeof sizes / sizeof sizes[0], MIB = 1 };

static struct limit_tcp *limit;
static struct rig_net net;
static struct rig_client client;
static struct redis redis;
static uint64_t next_key;

static uint64_t run(const struct size *size, enum kvs_batch_op op, uint64_t first, uint32_t bytes,
                    uint32_t *failed_p)
{
    struct rig_run run = {.op = op,
                          .first = first,
                          .n = bytes / size->len,
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
        (void)run(size, KVS_GET, first, ROUND, &missing);
        if (missing == 0) {
            return;
        }
        (void)run(size, KVS_PUT, first, ROUND, &failed); /* those that are there: EXISTS */
    }
    rig_fail("the keys to get do not stay");
}

/* One slice; ns. */
static uint64_t ours(const struct size *size, bool put, uint64_t first)
{
    uint32_t failed;
    uint64_t ns = run(size, put ? KVS_PUT : KVS_GET, first, SLICE, &failed);
    if (failed != 0) {
        rig_fail("%u %s failed", failed, put ? "puts" : "gets");
    }
    return ns;
}

/* A round of both, slice by slice. Puts are of new keys, gets of those that were put last. */
static void round_of_two(const struct size *size, bool put, double *limit_rate, double *our_rate)
{
    uint64_t first = put ? next_key : next_key - ROUND / size->len;
    uint64_t limit_ns = 0, our_ns = 0;
    if (!put) {
        make_present(size, first);
    }
    for (uint32_t i = 0; i < SLICES; i++) {
        uint32_t n = SLICE / size->len;
        limit_ns += limit_tcp_run(limit, put, size->len, n, size->outstanding, 0, NULL);
        our_ns += ours(size, put, first + (uint64_t)i * n);
    }
    next_key += put ? ROUND / size->len : 0;
    *limit_rate = rig_gib_per_s(ROUND, limit_ns);
    *our_rate = rig_gib_per_s(ROUND, our_ns);
}

static double redis_rate(const struct size *size, bool put, uint32_t depth)
{
    return redis_per_s(&redis, &net, put ? "set" : "get", size->len, 2 * ROUND / size->len,
                       MEMORY / size->len, 4, depth) *
           size->len / (1u << 30);
}

struct figures {
    double limit_ratio[2], redis_x[2]; /* get, put */
};

static struct figures measure(const struct size *size)
{
    double rate[2][WAYS][ROUNDS], ratio[2][WAYS][ROUNDS], ignored;
    redis_forget(&redis, &net);
    /* Every page of the share was there before, and is evicted from; every key of Redis is there.
     */
    for (uint64_t warm = 0; warm < SHARE + MEMORY; warm += ROUND) {
        round_of_two(size, true, &ignored, &ignored);
        (void)redis_rate(size, true, 1);
    }
    for (uint32_t r = 0; r < ROUNDS; r++) {
        for (int put = 1; put >= 0; put--) {
            round_of_two(size, put != 0, &rate[put][LIMIT][r], &rate[put][OURS][r]);
            rate[put][REDIS][r] = redis_rate(size, put != 0, 1);
            ratio[put][LIMIT][r] = rate[put][OURS][r] / rate[put][LIMIT][r];
            ratio[put][REDIS][r] = rate[put][OURS][r] / rate[put][REDIS][r];
            ratio[put][OURS][r] = rate[put][LIMIT][r] / rate[put][REDIS][r];
        }
    }
    struct figures figures;
    for (int put = 0; put < 2; put++) {
        figures.limit_ratio[put] = rig_quantile(ratio[put][LIMIT], ROUNDS, 0.5);
        figures.redis_x[put] = rig_quantile(ratio[put][REDIS], ROUNDS, 0.5);
        printf("%-8s %-4s", size->name, put ? "put" : "get");
        for (int way = LIMIT; way < WAYS; way++) {
            printf(" %10.2f", rig_quantile(rate[put][way], ROUNDS, 0.5));
        }
        printf(" %10.2f %10.2f %14.2f\n", figures.limit_ratio[put], figures.redis_x[put],
               rig_quantile(ratio[put][OURS], ROUNDS, 0.5));
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
            rate[put] = redis_rate(size, put != 0, depths[i]);
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
    struct rig_server server;
    rig_server_start(&server, RIG_SERVER_CPU, &rig_node_ops,
                     &(struct rig_node){.share_bytes = SHARE});
    limit = limit_tcp_open(&limit_config);
    redis_start(&redis);
    rig_net_open(&net, MEMORY);
    rig_client_open(&client, &net, &server, 1);

    printf("GiB/s, medians of %u rounds; server on cpu %d, client on cpu %d\n", ROUNDS,
           RIG_SERVER_CPU, RIG_CLIENT_CPU);
    printf("%-8s %-4s %10s %10s %10s %10s %10s %14s\n", "value", "", "limit", "ours", "redis",
           "of limit", "x redis", "limit x redis");
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
