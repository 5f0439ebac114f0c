/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_HISTORY_H
#define TESTS_HISTORY_H

/*
 * A randomised history check over real processes: store nodes (node.c) and their clients (client.c)
 * are killed with SIGKILL and stopped with SIGSTOP while lineages are retired, tenants removed, and
 * objects put, got, looked up and evicted. What was begun and what has ended stands in memory that
 * all of them share, so that it outlives each; by it every get is judged:
 *
 *   - its bytes are those of (tenant, key, part, lineage), every one, and nothing beside them was
 *     written;
 *   - its lineage was not retired on every node before it began;
 *   - its key was not removed from every node before it began, without a put since.
 *
 * A put counts as begun before it is submitted, and as under way for ever if nobody can say how it
 * ended (its process was killed, its node did not answer). Times are of the machine's monotonic
 * clock. Nothing here is made of kvplane's own code but what is checked.
 */
#include "splitmix.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define NODES       3u
#define CLIENTS     4u
#define IO_THREADS  2u
#define TENANTS     4u
#define KEYS        40u
#define PARTS       2u
#define SERIALS_MAX 2048u /* lineages of one tenant, over time */
#define ORDERS_MAX  16384u
#define SECRET      "history"
/* So little that a large value stands half moved while a process is stopped. */
#define SOCKET_BYTES (64u << 10)

/* What nodes are told to do, in order; each does all of it, also what was told before it began. */
enum order_type { ORDER_RETIRE = 1, ORDER_REMOVE_TENANT };
struct order {
    uint32_t type;
    uint32_t tenant;
    uint64_t serial; /* retire */
};

struct object {
    atomic_uint begun;        /* puts */
    atomic_uint under_way;    /* puts */
    atomic_uint absent_begun; /* begun, when it was removed everywhere and none was under way */
    atomic_ullong absent_since_ns; /* 0: never */
};

struct lineage {
    atomic_ullong retired_ns; /* every node has it; 0: not yet */
    struct object objects[KEYS][PARTS];
};

#define COUNTS(X)                                                                                  \
    X(puts)                                                                                        \
    X(stored)                                                                                      \
    X(gets)                                                                                        \
    X(hits)                                                                                        \
    X(lookups)                                                                                     \
    X(removes)                                                                                     \
    X(unavailable)                                                                                 \
    X(fenced)                                                                                      \
    X(canceled)

struct shared {
    uint64_t seed;
    atomic_uint failed; /* somebody found something wrong, and has said so */
    atomic_uint stop;   /* clients end */
    atomic_uint finish; /* nodes end */
    atomic_ullong ops;  /* items answered */
#define X(name) atomic_ullong name;
    COUNTS(X)
#undef X
    atomic_uint norders;
    struct order orders[ORDERS_MAX];
    struct {
        uint16_t port;
        atomic_uint ready;  /* generation that listens */
        atomic_uint obeyed; /* orders */
        atomic_uint clean;  /* it ended with nothing left */
    } nodes[NODES];
    atomic_ullong serial[TENANTS]; /* the lineage that the tenant's name stands for now */
    struct lineage lineages[TENANTS][SERIALS_MAX];
};

static inline uint64_t clock_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline uint32_t below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(splitmix_next(state) % n);
}

extern const char *const history_tenants[TENANTS];

/* 16 bytes that nobody else has. */
void history_lineage_id(const struct shared *shared, uint32_t tenant, uint64_t serial, void *id);

/* Says it once, with the seed, and makes everybody end. Does not return. */
void history_fail(struct shared *shared, const char *who, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));

/* Opens what a process opens once and keeps (libuv's signal pipe), so that the rest can be counted.
 */
void history_settle_fds(void);

/* Bodies of the processes; they exit. */
void history_node(struct shared *shared, uint32_t node, uint32_t generation)
    __attribute__((noreturn));
void history_client(struct shared *shared, uint32_t client, uint32_t generation)
    __attribute__((noreturn));

#endif
