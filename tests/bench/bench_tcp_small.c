/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench tcp-small: 4 KiB values in batches of 32 over loopback TCP, a store node in a process of
 * its own and this process as its client: puts and gets a second, how long a batch takes, and
 * single lookups. Next to them the limit program with the same values, one message each.
 */
#include "limit_tcp.h"
#include "net_rig.h"

#include <stdio.h>

#define VALUE       4096u
#define BATCH       32u
#define BATCHES     1000u
#define OUTSTANDING 4u /* batches */
#define ROUNDS      7u
#define MEMORY      (64u << 20)

static struct limit_tcp *limit;
static struct rig_net net;
static struct rig_client client;
static uint64_t next_key;

enum way { LIMIT_PUT, PUT, LIMIT_GET, GET, LOOKUP, LOOKUP_ONE, WAYS };
static const struct {
    const char *name;
    enum kvs_batch_op op;
    uint32_t batch, outstanding;
} ways[WAYS] = {
    [LIMIT_PUT] = {.name = "limit put"},
    [PUT] = {"put", KVS_PUT, BATCH, OUTSTANDING},
    [LIMIT_GET] = {.name = "limit get"},
    [GET] = {"get", KVS_GET, BATCH, OUTSTANDING},
    [LOOKUP] = {"lookup", KVS_EXISTS, BATCH, OUTSTANDING},
    [LOOKUP_ONE] = {"lookup of one, one at a time", KVS_EXISTS, 1, 1},
};

struct figure {
    double per_s, p50_us, p99_us;
};

static struct figure once(enum way way)
{
    static double ns[BATCH * BATCHES];
    uint32_t n = BATCH * BATCHES, samples;
    uint64_t took;
    if (way == LIMIT_PUT || way == LIMIT_GET) {
        took = limit_tcp_run(limit, way == LIMIT_PUT, VALUE, n, BATCH * OUTSTANDING, 0, ns);
        samples = n;
    } else {
        n = ways[way].batch == 1 ? BATCHES : n;
        struct rig_run run = {.op = ways[way].op,
                              .first = way == PUT ? next_key : next_key - n,
                              .n = n,
                              .len = VALUE,
                              .batch = ways[way].batch,
                              .outstanding = ways[way].outstanding,
                              .latency_ns = ns};
        took = rig_client_run(&client, &run);
        if (run.failed != 0) {
            rig_fail("%u of %u: %s failed", run.failed, n, ways[way].name);
        }
        next_key += way == PUT ? n : 0;
        samples = n / ways[way].batch;
    }
    double p99 = rig_quantile(ns, samples, 0.99);
    return (struct figure){(double)n * 1e9 / (double)took, rig_quantile(ns, samples, 0.5) / 1e3,
                           p99 / 1e3};
}

int main(void)
{
    static const struct limit_tcp_config limit_config = LIMIT_TCP_CONFIG;
    limit = limit_tcp_open(&limit_config);
    struct rig_server server;
    rig_server_start(&server, RIG_SERVER_CPU, &rig_node_ops,
                     &(struct rig_node){.share_bytes = 1ull << 30});
    rig_net_open(&net, MEMORY);
    rig_client_open(&client, &net, &server, 1);
    for (uint32_t i = 0; i < 10; i++) { /* every page of the share is there, and evicted from */
        (void)once(PUT);
    }
    static double per_s[WAYS][ROUNDS], p50[WAYS][ROUNDS], p99[WAYS][ROUNDS];
    for (uint32_t r = 0; r < ROUNDS; r++) {
        for (enum way way = 0; way < WAYS; way++) {
            struct figure figure = once(way);
            per_s[way][r] = figure.per_s;
            p50[way][r] = figure.p50_us;
            p99[way][r] = figure.p99_us;
        }
    }
    printf("%u-byte values, batches of %u, %u of them at a time; medians of %u rounds\n"
           "%-30s %12s %12s %12s\n",
           VALUE, BATCH, OUTSTANDING, ROUNDS, "", "keys/s", "p50 us", "p99 us");
    for (enum way way = 0; way < WAYS; way++) {
        printf("%-30s %12.0f %12.1f %12.1f\n", ways[way].name,
               rig_quantile(per_s[way], ROUNDS, 0.5), rig_quantile(p50[way], ROUNDS, 0.5),
               rig_quantile(p99[way], ROUNDS, 0.5));
    }
    rig_client_close(&client);
    rig_net_close(&net);
    rig_server_stop(&server);
    limit_tcp_close(limit);
    printf("bench tcp-small: puts_per_s=%.0f gets_per_s=%.0f lookups_per_s=%.0f "
           "batch_put_p99_us=%.0f batch_get_p99_us=%.0f\n",
           rig_quantile(per_s[PUT], ROUNDS, 0.5), rig_quantile(per_s[GET], ROUNDS, 0.5),
           rig_quantile(per_s[LOOKUP], ROUNDS, 0.5), rig_quantile(p99[PUT], ROUNDS, 0.5),
           rig_quantile(p99[GET], ROUNDS, 0.5));
    return 0;
}
