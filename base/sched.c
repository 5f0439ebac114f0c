/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sched.h"

#include "base/assert.h"

#include <stdlib.h>

void kvb_sched_init(struct kvb_sched *sched, const struct kvb_clock *clock,
                    const struct kvb_random *random)
{
    *sched = (struct kvb_sched){.clock = clock, .random = random};
    kvb_list_init(&sched->ready);
}

void kvb_sched_cleanup(struct kvb_sched *sched)
{
    kvb_assert(kvb_list_empty(&sched->ready));
    kvb_assert(sched->heap_len == 0);
    free(sched->heap);
    sched->heap = NULL;
    sched->heap_cap = 0;
}

static void wake(struct kvb_sched *sched)
{
    if (sched->wake != NULL) {
        sched->wake(sched->wake_ctx);
    }
}

void kvb_sched_post(struct kvb_sched *sched, struct kvb_event *event)
{
    if (kvb_event_posted(event)) {
        return;
    }
    bool first = kvb_list_empty(&sched->ready);
    kvb_list_push_back(&sched->ready, &event->link);
    if (first) {
        wake(sched);
    }
}

void kvb_sched_unpost(struct kvb_event *event)
{
    kvb_list_remove(&event->link);
}

/* A binary heap of timers; timer->slot is its index + 1, so clearing one is O(log n) without a
 * search. */

static void place(struct kvb_sched *sched, uint32_t i, struct kvb_timer *timer)
{
    sched->heap[i] = timer;
    timer->slot = i + 1;
}

static void sift_up(struct kvb_sched *sched, uint32_t i, struct kvb_timer *timer)
{
    while (i > 0) {
        uint32_t parent = (i - 1) / 2;
        if (sched->heap[parent]->deadline_ns <= timer->deadline_ns) {
            break;
        }
        place(sched, i, sched->heap[parent]);
        i = parent;
    }
    place(sched, i, timer);
}

static void sift_down(struct kvb_sched *sched, uint32_t i, struct kvb_timer *timer)
{
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= sched->heap_len) {
            break;
        }
        if (child + 1 < sched->heap_len &&
            sched->heap[child + 1]->deadline_ns < sched->heap[child]->deadline_ns) {
            child++;
        }
        if (timer->deadline_ns <= sched->heap[child]->deadline_ns) {
            break;
        }
        place(sched, i, sched->heap[child]);
        i = child;
    }
    place(sched, i, timer);
}

void kvb_sched_timer_clear(struct kvb_sched *sched, struct kvb_timer *timer)
{
    if (timer->slot == 0) {
        return;
    }
    uint32_t i = timer->slot - 1;
    kvb_assert(i < sched->heap_len && sched->heap[i] == timer);
    timer->slot = 0;
    struct kvb_timer *last = sched->heap[--sched->heap_len];
    if (last == timer) {
        return;
    }
    if (last->deadline_ns < timer->deadline_ns) {
        sift_up(sched, i, last);
    } else {
        sift_down(sched, i, last);
    }
}

static void heap_reserve(struct kvb_sched *sched)
{
    if (sched->heap_len < sched->heap_cap) {
        return;
    }
    uint32_t cap = sched->heap_cap == 0 ? 64 : sched->heap_cap * 2;
    struct kvb_timer **heap = realloc(sched->heap, cap * sizeof *heap);
    /* A few bytes per timer, bounded by the bounds on sessions and operations: without them no
     * deadline holds. */
    kvb_assert(heap != NULL);
    sched->heap = heap;
    sched->heap_cap = cap;
}

void kvb_sched_timer_set(struct kvb_sched *sched, struct kvb_timer *timer, uint64_t deadline_ns)
{
    kvb_sched_timer_clear(sched, timer);
    timer->deadline_ns = deadline_ns;
    if (deadline_ns == KVB_NEVER) {
        return;
    }
    heap_reserve(sched);
    sift_up(sched, sched->heap_len++, timer);
    if (timer->slot == 1) {
        wake(sched);
    }
}

uint64_t kvb_sched_turn(struct kvb_sched *sched)
{
    uint64_t now_ns = kvb_now_ns(sched->clock);
    /* No more than there were: a timer that arms itself for now must not hold up the events. */
    uint32_t due_max = sched->heap_len;
    while (due_max-- > 0 && sched->heap_len > 0 && sched->heap[0]->deadline_ns <= now_ns) {
        struct kvb_timer *timer = sched->heap[0];
        kvb_sched_timer_clear(sched, timer);
        timer->fn(timer);
    }
    /* Only what was posted before this turn: take the ring over to a local head. */
    struct kvb_list batch;
    kvb_list_init(&batch);
    if (!kvb_list_empty(&sched->ready)) {
        batch = sched->ready;
        batch.next->prev = &batch;
        batch.prev->next = &batch;
        kvb_list_init(&sched->ready);
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&batch)) != NULL;) {
        struct kvb_event *event = kvb_container_of(link, struct kvb_event, link);
        event->fn(event);
    }
    if (!kvb_list_empty(&sched->ready)) {
        return 0;
    }
    return sched->heap_len == 0 ? KVB_NEVER : sched->heap[0]->deadline_ns;
}
