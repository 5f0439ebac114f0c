/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that belong to no single instance: of all of them (fan.c), and of a tenant
 * (tenants.c). They are listed, shown, waited for and canceled beside those of the fleet.
 */
#include "control/internal.h"

#include <stdio.h>

void kvp_own_begin(struct kvp_own *own, struct kvp_control *control, const struct kvp_own_ops *ops,
                   enum kvp_operation operation, const struct kvp_request *request)
{
    own->control = control;
    own->ops = ops;
    kvb_list_init(&own->watchers);
    own->record = (struct kvp_operation_record){
        .id = kvp_fleet_take_id(control->config.fleet),
        .operation = operation,
        .started_ns = kvb_now_ns(control->config.clock),
    };
    (void)snprintf(own->record.request_id, sizeof own->record.request_id, "%s",
                   request->request_id);
    kvb_list_push_back(&control->owns, &own->link);
    control->nowns++;
}

static void own_free(struct kvp_own *own)
{
    own->control->nowns--;
    kvb_list_remove(&own->link);
    own->ops->free(own);
}

void kvp_own_finished(struct kvp_own *own)
{
    own->record.finished = true;
    own->record.finished_ns = kvb_now_ns(own->control->config.clock);
}

void kvp_own_tell_end(struct kvp_own *own)
{
    struct kvp_control *control = own->control;
    struct kvb_list *waits;
    kvb_list_each(&control->owns, link)
    {
        struct kvp_own *old = kvb_container_of(link, struct kvp_own, link);
        if (control->nowns > KVP_OWNS_KEPT && old->record.finished && old != own) {
            own_free(old);
        }
    }
    while ((waits = kvb_list_first(&own->watchers)) != NULL) {
        struct kvp_pending *pending = kvb_container_of(waits, struct kvp_pending, wait_link);
        pending->on_end(pending);
    }
}

struct kvp_own *kvp_own_find(struct kvp_control *control, uint64_t id)
{
    kvb_list_each(&control->owns, link)
    {
        struct kvp_own *own = kvb_container_of(link, struct kvp_own, link);
        if (own->record.id == id) {
            return own;
        }
    }
    return NULL;
}

void kvp_own_each(const struct kvp_control *control,
                  void (*each)(void *arg, const struct kvp_own *own), void *arg)
{
    kvb_list_each(&control->owns, link)
    {
        each(arg, kvb_container_of(link, struct kvp_own, link));
    }
}

bool kvp_own_await(struct kvp_own *own, struct kvp_pending *pending,
                   void (*on_end)(struct kvp_pending *pending))
{
    if (!own->record.finished) {
        pending->on_end = on_end;
        kvb_list_push_back(&own->watchers, &pending->wait_link);
    }
    return !own->record.finished;
}

kvb_status_t kvp_own_cancel(struct kvp_own *own)
{
    return own->record.finished ? KVB_ERR_NOT_FOUND : own->ops->cancel(own);
}

void kvp_owns_destroy_ended(struct kvp_control *control)
{
    kvb_list_each(&control->owns, link)
    {
        struct kvp_own *own = kvb_container_of(link, struct kvp_own, link);
        if (own->record.finished) {
            own_free(own);
        }
    }
}
