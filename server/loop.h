/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_LOOP_H
#define SERVER_LOOP_H

#include "base/io.h"
#include "base/sched.h"
#include "base/status.h"

/*
 * One thread's libuv loop, which drives a struct kvb_sched and a struct kvb_io. The daemon has one
 * for everything but HTTP; a store node has one for each I/O thread. What runs under them knows
 * nothing of libuv; sockets of engines (server/link) use kvp_loop_uv().
 *
 * Everything is loop thread only, but for kvp_loop_wake(), kvp_loop_beat_ns() and
 * kvp_loop_lag_ns().
 */
struct kvp_loop;
struct uv_loop_s;

#define KVP_LOOP_BEAT_MS 100 /* how often the heartbeat is taken, and the lag measured */

struct kvp_loop_ops {
    /* Another thread called kvp_loop_wake(); calls coalesce: take everything that waits. */
    void (*woken)(void *ctx);
    /* SIGINT, SIGTERM, SIGHUP or SIGUSR1, held since kvp_loop_hold_signals(). */
    void (*signalled)(void *ctx, int signum);
    /* Each heartbeat: how long after its due time it came. */
    void (*beat)(void *ctx, uint64_t now_ns, uint64_t lag_ns);
};

/*
 * From here to the end of the process these signals do nothing but wait for the loop that has
 * ops.signalled: one that comes before it is taken when it runs, and one that comes after it is
 * gone changes nothing. To be called before the process has a second thread.
 */
void kvp_loop_hold_signals(void);

/* ops: every member may be NULL; borrowed. NO_MEMORY, IO. */
KVB_MUST_USE kvb_status_t kvp_loop_create(const struct kvp_loop_ops *ops, void *ctx,
                                          struct kvp_loop **loop_p);
/* Nothing may be posted, set or open any more but the loop's own. */
void kvp_loop_destroy(struct kvp_loop *loop);

struct kvb_sched *kvp_loop_sched(struct kvp_loop *loop);
struct kvb_io *kvp_loop_io(struct kvp_loop *loop); /* nothing watched when it is destroyed */
struct uv_loop_s *kvp_loop_uv(struct kvp_loop *loop);

/* Runs until kvp_loop_stop(). */
void kvp_loop_run(struct kvp_loop *loop);
void kvp_loop_stop(struct kvp_loop *loop);

/* Any thread, async-signal safe: ops.woken runs on the loop thread, soon. */
void kvp_loop_wake(void *loop);
/* Any thread: monotonic time of the last heartbeat, and its lag. */
uint64_t kvp_loop_beat_ns(const struct kvp_loop *loop);
uint64_t kvp_loop_lag_ns(const struct kvp_loop *loop);

#endif
