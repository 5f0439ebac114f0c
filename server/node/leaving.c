/* SPDX-License-Identifier: Apache-2.0 */
#include "node/leaving.h"

#include "base/log.h"

enum {
    QUIET_MS = 1000, /* nobody has read anything for so long: the readers have finished */
    LOOK_MS = 100,
};

static uint64_t count_gets(const struct kvp_leaving *leaving)
{
    struct kvs_share_stats stats;
    kvs_share_stats(leaving->share, &stats);
    return stats.gets;
}

static void on_look(struct kvb_timer *timer)
{
    struct kvp_leaving *leaving = kvb_container_of(timer, struct kvp_leaving, look);
    uint64_t now_ns = kvb_now_ns(leaving->sched->clock);
    uint64_t gets = count_gets(leaving);
    uint32_t running = kvp_server_running(leaving->server);
    if (gets != leaving->gets || running > 0) {
        leaving->gets = gets;
        leaving->quiet_since_ns = now_ns;
    }
    bool quiet = now_ns - leaving->quiet_since_ns >= QUIET_MS * KVB_NS_PER_MS;
    if (!quiet && now_ns < leaving->by_ns) {
        kvb_sched_timer_set(leaving->sched, timer, now_ns + LOOK_MS * KVB_NS_PER_MS);
        return;
    }
    KVB_LOG(INFO,
            quiet ? "the share is read no more" : "the share is still read: its bound is over",
            KVB_U64("requests_running", running));
    leaving->over(leaving->ctx);
}

void kvp_leaving_start(struct kvp_leaving *leaving, uint64_t bound_ms)
{
    KVB_LOG(INFO, "the share leaves", KVB_U64("bound_ms", bound_ms));
    kvb_timer_init(&leaving->look, on_look);
    kvp_server_drain(leaving->server);
    leaving->gets = count_gets(leaving);
    leaving->quiet_since_ns = kvb_now_ns(leaving->sched->clock);
    leaving->by_ns = kvb_deadline_in_ms(leaving->sched->clock, bound_ms);
    kvb_sched_timer_set(leaving->sched, &leaving->look, leaving->quiet_since_ns);
}

void kvp_leaving_stop(struct kvp_leaving *leaving)
{
    if (leaving->sched != NULL) {
        kvb_sched_timer_clear(leaving->sched, &leaving->look);
    }
}
