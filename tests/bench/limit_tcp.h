/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_LIMIT_TCP_H
#define BENCH_LIMIT_TCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * The ruler of bench tcp: what a bare C program reaches that moves and hashes the same bytes as the
 * store does, with the same socket calls, and does nothing else. A server process on RIG_SERVER_CPU
 * that holds a memory, and a client in this process; a header for each message, bodies written
 * straight from and read straight into their place, epoll on both sides, requests pipelined over
 * several connections.
 *
 *   get: header -> header, body, hash; the client hashes what arrives and compares
 *   put: header, body, hash -> header; both sides hash, and the server compares
 */
struct limit_tcp_config {
    size_t memory;       /* of the client; it is walked */
    size_t server;       /* of the server; so is it */
    uint32_t lanes;      /* connections, at most LIMIT_TCP_LANES */
    uint32_t buffer;     /* bytes of a socket's buffer, each way; 0: the kernel's choice */
    uint32_t chunk;      /* bytes moved and hashed at a time */
    uint32_t lane_chunk; /* bytes moved on one connection before the next has its turn */
};
#define LIMIT_TCP_LANES 16
/* The best of those tried: DESIGN.md's 4 lanes, everything in flight in the cache. */
#define LIMIT_TCP_CONFIG                                                                           \
    {                                                                                              \
        .memory = 256u << 20, .server = 512u << 20, .lanes = 4, .buffer = 2u << 20,                \
        .chunk = 512u << 10, .lane_chunk = 1u << 20                                                \
    }

struct limit_tcp;
struct limit_tcp *limit_tcp_open(const struct limit_tcp_config *config);
void limit_tcp_close(struct limit_tcp *limit);
/* n values of len bytes, at most `outstanding` requests at a time; how long it took. per_s, if not
 * 0: they are due at that rate, and the client looks for work instead of sleeping. latency_ns: of
 * each, from when it was due; or NULL. */
uint64_t limit_tcp_run(struct limit_tcp *limit, bool put, uint32_t len, uint32_t n,
                       uint32_t outstanding, double per_s, double *latency_ns);

#endif
