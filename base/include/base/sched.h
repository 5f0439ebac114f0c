/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_SCHED_H
#define BASE_SCHED_H

#include "base/clock.h"
#include "base/list.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Posted events and timers of one thread (DESIGN.md section 12, seam 6). Pure: it never sleeps and
 * starts no thread. Whoever owns the thread drives it: the daemon from its libuv loop, a test or
 * the simulator by hand with its own clock. Connector, store client, node, coordinator and
 * transports take a struct kvb_sched and nothing else of the outside world, so the same code runs
 * under all of them.
 *
 * Loop thread only, all of it. Another thread reaches the loop through a struct kvb_queue and its
 * wake function. Events run in the order in which they were posted; an event posted by an event
 * runs in a later turn, so long work that posts itself again lets everything else run in between.
 * Callbacks never run inside post or set.
 */
struct kvb_event {
    struct kvb_list link; /* owned by the scheduler while posted */
    void (*fn)(struct kvb_event *event);
};

struct kvb_timer {
    uint64_t deadline_ns;
    uint32_t slot; /* place in the heap + 1; 0: not set */
    void (*fn)(struct kvb_timer *timer);
};

struct kvb_sched {
    const struct kvb_clock *clock;
    const struct kvb_random *random;
    struct kvb_list ready;
    struct kvb_timer **heap;
    uint32_t heap_len;
    uint32_t heap_cap;
    /* Called when the first event is posted or the earliest deadline changes; may be NULL (tests).
     */
    void (*wake)(void *ctx);
    void *wake_ctx;
};

void kvb_sched_init(struct kvb_sched *sched, const struct kvb_clock *clock,
                    const struct kvb_random *random);

/* Nothing may be posted or set any more. */
void kvb_sched_cleanup(struct kvb_sched *sched);

static inline void kvb_event_init(struct kvb_event *event, void (*fn)(struct kvb_event *))
{
    kvb_list_init(&event->link);
    event->fn = fn;
}

static inline void kvb_timer_init(struct kvb_timer *timer, void (*fn)(struct kvb_timer *))
{
    timer->deadline_ns = KVB_NEVER;
    timer->slot = 0;
    timer->fn = fn;
}

/* Runs event->fn in a later turn, once. Posting a posted event does nothing. */
void kvb_sched_post(struct kvb_sched *sched, struct kvb_event *event);

/* Takes a posted event back; nothing happens if it is not posted. */
void kvb_sched_unpost(struct kvb_event *event);

static inline bool kvb_event_posted(const struct kvb_event *event)
{
    return !kvb_list_empty(&event->link);
}

/* (Re)arms a timer; KVB_NEVER clears it. It fires once, in the first turn at or after its deadline.
 */
void kvb_sched_timer_set(struct kvb_sched *sched, struct kvb_timer *timer, uint64_t deadline_ns);
void kvb_sched_timer_clear(struct kvb_sched *sched, struct kvb_timer *timer);

static inline bool kvb_timer_armed(const struct kvb_timer *timer)
{
    return timer->slot != 0;
}

/*
 * One turn: fires the timers that are due, then runs the events that were posted when the turn
 * began. Returns when the next turn is due: 0 = at once (events are posted), KVB_NEVER = nothing to
 * wait for, else the earliest deadline.
 */
uint64_t kvb_sched_turn(struct kvb_sched *sched);

#endif
