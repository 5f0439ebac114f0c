/* SPDX-License-Identifier: Apache-2.0 */
#include "store/share.h"

/*
 * Between two steps of a long upkeep the loop, the processor and the shard's lock are left to those
 * who read and write. Nobody waits for what is reclaimed: puts take retired space first, and more
 * than they need. At this pace a quarter of a million objects come back in a second, for a tenth
 * of one processor.
 */
#define REST_NS KVB_NS_PER_MS

static void on_step(struct kvb_event *event)
{
    struct kvs_keeper *keeper = kvb_container_of(event, struct kvs_keeper, step);
    uint64_t due_ns = kvs_share_upkeep(keeper->share, kvb_now_ns(keeper->sched->clock));
    keeper->resting = due_ns == 0;
    if (keeper->resting) {
        due_ns = kvb_now_ns(keeper->sched->clock) + REST_NS;
    }
    kvb_sched_timer_set(keeper->sched, &keeper->due, due_ns);
}

static void on_due(struct kvb_timer *timer)
{
    struct kvs_keeper *keeper = kvb_container_of(timer, struct kvs_keeper, due);
    kvb_sched_post(keeper->sched, &keeper->step);
}

void kvs_keeper_start(struct kvs_keeper *keeper, struct kvs_share *share, struct kvb_sched *sched,
                      void (*wake)(void *ctx), void *ctx)
{
    *keeper = (struct kvs_keeper){.share = share, .sched = sched};
    kvb_event_init(&keeper->step, on_step);
    kvb_timer_init(&keeper->due, on_due);
    kvs_share_on_poke(share, wake, ctx);
}

void kvs_keeper_woken(struct kvs_keeper *keeper)
{
    if (!keeper->resting) {
        kvb_sched_post(keeper->sched, &keeper->step);
    }
}

void kvs_keeper_stop(struct kvs_keeper *keeper)
{
    kvs_share_on_poke(keeper->share, NULL, NULL);
    kvb_sched_unpost(&keeper->step);
    kvb_sched_timer_clear(keeper->sched, &keeper->due);
}
