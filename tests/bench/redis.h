/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_REDIS_H
#define BENCH_REDIS_H

#include "net_rig.h"

/* The peer: redis-server on RIG_SERVER_CPU, redis-benchmark on RIG_CLIENT_CPU, nothing saved, over
 * loopback TCP. */
struct redis {
    pid_t pid;
    char port[8];
    char dir[64];
};
void redis_start(struct redis *redis);
void redis_stop(struct redis *redis);
void redis_forget(struct redis *redis, struct rig_net *net); /* every key */
/* `test`: "set" or "get"; n requests of len bytes over keys 0 … keys - 1, `pipeline` at a time on
 * each connection. Requests a second, as redis-benchmark says. */
double redis_per_s(struct redis *redis, struct rig_net *net, const char *test, uint32_t len,
                   uint32_t n, uint32_t keys, uint32_t connections, uint32_t pipeline);

#endif
