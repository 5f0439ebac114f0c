/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_NODE_H
#define TESTS_FAKE_NODE_H

/*
 * A store node that does what the test says: answers at once with one status, refuses, or says
 * nothing until it is stopped or the test ends a call.
 */
#include "sim_sched.h"

#include "store/node.h"

enum fake_answer { FAKE_AT_ONCE, FAKE_SILENT, FAKE_REFUSE };

struct fake_node {
    struct kvs_node base;
    struct sim_sched *sim;
    enum fake_answer answer;
    kvb_status_t with;     /* what items come to, or submit answers */
    bool ours;             /* and that is not its fault */
    struct kvb_list calls; /* in flight, by impl.link; impl.state: ended, and only to be told */
    struct kvb_event event;
    uint64_t heard_ns;
    uint64_t held_by; /* of the last discard */
    uint32_t calls_taken, items, in_flight, stops, expired, discards, discards_all;
};

static inline void fake_on_event_(struct kvb_event *event)
{
    struct fake_node *fake = kvb_container_of(event, struct fake_node, event);
    for (bool more = true; more;) {
        more = false;
        kvb_list_each(&fake->calls, link)
        {
            struct kvs_node_call *call = kvb_container_of(link, struct kvs_node_call, impl.link);
            if (call->impl.state != NULL) {
                kvb_list_remove(&call->impl.link);
                fake->in_flight--;
                call->done(call);
                more = true;
                break; /* anything may have happened */
            }
        }
    }
}

static inline void fake_end_call(struct fake_node *fake, struct kvs_node_call *call,
                                 kvb_status_t status)
{
    for (uint32_t i = 0; call->impl.state == NULL && i < call->n; i++) {
        struct kvs_item *item = kvs_node_call_item(call, i);
        item->status = status;
        item->len = 7;
    }
    call->ours = fake->ours;
    call->impl.state = fake;
    kvb_sched_post(&fake->sim->sched, &fake->event);
}

static inline kvb_status_t fake_submit_(struct kvs_node *node, struct kvs_node_call *call)
{
    struct fake_node *fake = kvb_container_of(node, struct fake_node, base);
    fake->calls_taken++;
    fake->items += call->n;
    if (fake->answer == FAKE_REFUSE) {
        return fake->with;
    }
    for (uint32_t i = 0; i < call->n; i++) {
        kvs_node_call_item(call, i)->status = KVB_IN_PROGRESS;
    }
    call->impl.state = NULL;
    kvb_list_push_back(&fake->calls, &call->impl.link);
    fake->in_flight++;
    if (fake->answer == FAKE_AT_ONCE) {
        fake_end_call(fake, call, fake->with);
    }
    return KVB_OK;
}

static inline void fake_stop_(struct kvs_node *node, struct kvs_node_call *call, bool expired,
                              uint64_t stop_deadline_ns)
{
    struct fake_node *fake = kvb_container_of(node, struct fake_node, base);
    (void)stop_deadline_ns;
    fake->stops++;
    fake->expired += expired;
    fake_end_call(fake, call,
                  !expired                        ? KVB_ERR_CANCELED
                  : call->batch->op == KVS_EXISTS ? KVB_ERR_UNAVAILABLE
                                                  : KVB_ERR_TIMEOUT);
}

static inline void fake_discard_(struct kvs_node *node, struct kvs_hold hold, bool all_of_instance)
{
    struct fake_node *fake = kvb_container_of(node, struct fake_node, base);
    fake->held_by = hold.instance;
    fake->discards += !all_of_instance;
    fake->discards_all += all_of_instance;
}

static inline uint64_t fake_heard_ns_(struct kvs_node *node)
{
    return kvb_container_of(node, struct fake_node, base)->heard_ns;
}

static const struct kvs_node_ops fake_node_ops = {
    .submit = fake_submit_,
    .stop = fake_stop_,
    .discard = fake_discard_,
    .heard_ns = fake_heard_ns_,
};

static inline void fake_node_init(struct fake_node *fake, struct sim_sched *sim)
{
    *fake = (struct fake_node){.base.ops = &fake_node_ops, .sim = sim};
    kvb_list_init(&fake->calls);
    kvb_event_init(&fake->event, fake_on_event_);
}

#endif
