/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_VERBS_H
#define TESTS_FAKE_VERBS_H

/*
 * libibverbs and librdmacm in one process, for what a soft device cannot do: any call fails when it
 * is told to, completions are held back, devices go away. Two devices on one wire: FAKE_ASKER
 * (10.0.0.1) and FAKE_NODE (10.0.0.2). It runs as an event of a simulated scheduler, moves a
 * bounded number of bytes a turn, and takes its interleavings and delays from a seed.
 *
 * It models the danger:
 *  - A registration holds the physical pages: its own second mapping of shared memory (memfds).
 *    Whoever unmaps and maps anew at the same address without deregistering moves the old pages,
 *    and is told success. (Private memory has no second mapping: it is used where it lies, so that
 *    a sanitizer sees what is done to freed buffers.)
 *  - Reliable connections: in order on one queue pair and in no order between two; a WRITE is
 * placed piece by piece, from either end, and before a later SEND is received; payload is read when
 * the request runs, not when it is posted; a request can have run although its completion was a
 *    flush; the state of an entry that did not succeed is garbage.
 *  - What hardware would forgive today and not tomorrow is misuse, and ends the test: a queue that
 *    overruns, memory that is deregistered under a posted request or after it was unmapped, a key
 *    that is not alive, a call that would block for ever, an object that is destroyed while another
 *    needs it, one that is used afterwards.
 */
#include "sim_sched.h"
#include "verbs.h"

#include "base/io.h"

#include <stdbool.h>
#include <stdint.h>

enum fake_side { FAKE_ASKER, FAKE_NODE, FAKE_SIDES };
#define FAKE_ASKER_ADDRESS "10.0.0.1"
#define FAKE_NODE_ADDRESS  "10.0.0.2"

#define FAKE_TURN   (256u << 10) /* bytes moved a turn */
#define FAKE_SLICE  (32u << 10)  /* and at once */
#define FAKE_GIDS   8
#define FAKE_CM_MS  4000 /* a peer that says nothing is unreachable after it */
#define FAKE_ACK_MS 500  /* retries of a request without acknowledgement, together */
#define FAKE_RNR_MS 100

/* What a device says of itself: for a test to change before it is looked at. */
struct fake_device {
    struct ibv_device_attr attr;
    struct ibv_port_attr port;
    struct ibv_device *device; /* its kind of transport */
    union ibv_gid gids[FAKE_GIDS];
    uint32_t gid_types[FAKE_GIDS];
    uint32_t max_inline;
    bool absent;      /* there is no such device */
    bool silent;      /* the host is off: it takes nothing and sends nothing */
    bool mute;        /* completions of its queue pairs are held back */
    uint64_t memlock; /* bytes that may be registered */
    bool no_dma_buf;  /* its driver registers none */
};

#define FAKE_OBJECTS(X)                                                                            \
    X(channels)                                                                                    \
    X(ids)                                                                                         \
    X(pds)                                                                                         \
    X(mrs)                                                                                         \
    X(comp_channels)                                                                               \
    X(cqs)                                                                                         \
    X(srqs)                                                                                        \
    X(qps)                                                                                         \
    X(cm_events)    /* got and not acknowledged */                                                 \
    X(cq_events)    /* so */                                                                       \
    X(async_events) /* so */                                                                       \
    X(lists)        /* of devices */

struct fake_counts {
#define X(name) uint32_t name;
    FAKE_OBJECTS(X)
#undef X
};

struct fake_verbs {
    struct sim_sched *sim;
    struct fake_device devices[FAKE_SIDES];
    enum ibv_fork_status fork_status; /* once ENABLED, pages that are registered stay out of
                                         children, for good: mappings are split */
    uint32_t fork_inits;
    uint64_t delay_ns; /* at most, before a request runs or a message of connecting arrives */
    /* counts */
    struct fake_counts open;
    uint64_t pinned; /* bytes registered now */
    uint64_t rnrs;   /* requests that found no receive posted */
    uint64_t sends, writes, reads, bytes;
    uint64_t misuses;
    char misuse[160];   /* the last */
    bool tolerant;      /* misuse is counted and does not end the test */
    bool stale_allowed; /* memory may be unmapped before it is deregistered */
    uint64_t calls;     /* that can fail */
};

extern const struct kvt_verbs fake_verbs_table;

/* One at a time. */
struct fake_verbs *fake_verbs_open(struct sim_sched *sim);
/* Every object is destroyed, and there was no misuse (asserted). */
void fake_verbs_close(void);
/* Nothing is open of what was not open in `before` (NULL: nothing at all); else what is. */
const char *fake_verbs_leak(const struct fake_counts *before);

/* The nth call from here (from 0) of `function` (NULL: of any that makes or does something, not of
 * those that destroy) fails with `error`. Once. */
void fake_verbs_fail(const char *function, uint64_t nth, int error);
/* True: it has failed; no more failures. what_p (may be NULL): the function. */
bool fake_verbs_failed(const char **what_p);
bool fake_verbs_has_failed(void); /* and what is to fail still is */

/* The nth request of that kind (from 0; RECV: of the receives) on the side's queue pairs completes
 * with the status; nothing is moved. */
void fake_verbs_status(enum fake_side side, enum ibv_wc_opcode kind, uint64_t nth,
                       enum ibv_wc_status status);
/* Each message on its way, from that side: what the other end receives may be changed there, in
 * room for FAKE_MESSAGE_MAX bytes. NULL: none. */
#define FAKE_MESSAGE_MAX (64u << 10)
typedef void (*fake_verbs_tap_fn)(void *ctx, enum fake_side from, uint8_t *bytes, uint32_t *len_p);
void fake_verbs_tap(fake_verbs_tap_fn fn, void *ctx);

void fake_verbs_silence(enum fake_side side, bool silent);
void fake_verbs_mute(enum fake_side side, bool mute); /* false: what was held back comes */
void fake_verbs_port(enum fake_side side, bool up);
/* The device is gone. flush: as a driver does that completes what was posted; else nothing comes.
 */
void fake_verbs_remove(enum fake_side side, bool flush);
/* An event of connecting that the side's connections get (all of them). */
void fake_verbs_cm_event(enum fake_side side, enum rdma_cm_event_type event, int status);
void fake_verbs_async_event(enum fake_side side, enum ibv_event_type event);
/* The side's queue pairs become unusable, as after an error of their own. */
void fake_verbs_break(enum fake_side side);
/* Requests posted on the side's queue pairs that have not run. */
uint32_t fake_verbs_posted(enum fake_side side);
/* Registrations of the side, and how many of them grant that access. */
uint32_t fake_verbs_mrs(enum fake_side side, int access);
/* Queue pairs over which the other end has that access. */
uint32_t fake_verbs_qps(enum fake_side side, unsigned access);

/*
 * Readiness of the fake's descriptors (and of others) under a simulated clock, exactly: time passes
 * as soon as none of them is ready. One for each scheduler.
 */
#define FAKE_IO_MAX 256
struct fake_io {
    struct kvb_io base;
    struct sim_sched *sim;
    struct kvb_event look;
    struct kvb_io_watch *watches[FAKE_IO_MAX];
    unsigned events[FAKE_IO_MAX];
    uint32_t watched;
    struct fake_io *next;
};
void fake_io_init(struct fake_io *io, struct sim_sched *sim);
void fake_io_cleanup(struct fake_io *io); /* nothing is watched any more (asserted) */

#endif
