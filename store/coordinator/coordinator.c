/* SPDX-License-Identifier: Apache-2.0 */
#include "store/coordinator.h"

#include "coordinator_impl.h"

#include "base/utf8.h"

#include <string.h>

kvb_status_t kvs_member_open(struct kvs_coordinator *coordinator, const char *instance,
                             const struct kvs_space *space, const struct kvs_member_ops *ops,
                             void *ctx, struct kvs_member **member_p)
{
    return coordinator->ops->open(coordinator, instance, space, ops, ctx, member_p);
}

void kvs_member_close(struct kvs_member *member)
{
    if (member != NULL) {
        member->coordinator->ops->close(member);
    }
}

void kvs_member_resolve(struct kvs_member *member, const char *name,
                        struct kvs_coord_request *request)
{
    member->coordinator->ops->resolve(member, name, request);
}

void kvs_member_check(struct kvs_member *member, const char *name, struct kvb_lineage lineage,
                      struct kvs_coord_request *request)
{
    member->coordinator->ops->check(member, name, lineage, request);
}

void kvs_member_leave(struct kvs_member *member, const char *name)
{
    member->coordinator->ops->leave(member, name);
}

void kvs_member_abandon(struct kvs_member *member, struct kvb_lineage lineage)
{
    member->coordinator->ops->abandon(member, lineage);
}

void kvs_member_left(struct kvs_member *member, uint64_t retirement)
{
    member->coordinator->ops->left(member, retirement);
}

void kvs_member_retire(struct kvs_member *member, const struct kvb_lineage *lineages, uint32_t n,
                       const char *name, uint64_t deadline_ns, struct kvs_coord_request *request)
{
    member->coordinator->ops->retire(member, lineages, n, name, deadline_ns, request);
}

void kvs_tenant_reset(struct kvs_coordinator *coordinator, const char *tenant,
                      struct kvs_member *member, uint64_t deadline_ns,
                      struct kvs_coord_request *request)
{
    coordinator->ops->tenant_reset(coordinator, tenant, member, deadline_ns, request);
}

void kvs_member_step(struct kvs_member *member, uint64_t epoch, uint64_t step,
                     struct kvs_coord_request *request)
{
    member->coordinator->ops->step(member, epoch, step, request);
}

void kvs_coordinator_each_name(struct kvs_coordinator *coordinator,
                               void (*each)(void *arg, const struct kvs_space *space,
                                            const char *name, struct kvb_lineage lineage,
                                            uint32_t members),
                               void *arg)
{
    coordinator->ops->each_name(coordinator, each, arg);
}

kvb_status_t kvs_coordinator_watch(struct kvs_coordinator *coordinator,
                                   const struct kvs_watch_ops *ops, void *ctx)
{
    return coordinator->ops->watch(coordinator, ops, ctx);
}

kvb_status_t kvs_coordinator_announce(struct kvs_coordinator *coordinator,
                                      const struct kvs_node_record *record)
{
    return coordinator->ops->announce(coordinator, record);
}

void kvs_coordinator_withdraw(struct kvs_coordinator *coordinator,
                              struct kvs_coord_request *request)
{
    coordinator->ops->withdraw(coordinator, request);
}

void kvs_coordinator_set_quota(struct kvs_coordinator *coordinator, const char *tenant,
                               uint64_t bytes, struct kvs_coord_request *request)
{
    coordinator->ops->set_quota(coordinator, tenant, bytes, request);
}

kvb_status_t kvs_member_publish(struct kvs_member *member, const char *text)
{
    if (!kvb_utf8_printable(text, strlen(text))) {
        return KVB_ERR_INVALID;
    }
    return member->coordinator->ops->publish(member, text);
}

void kvs_coordinator_each_instance(struct kvs_coordinator *coordinator,
                                   void (*each)(void *arg,
                                                const struct kvs_instance_record *record),
                                   void *arg)
{
    coordinator->ops->each_instance(coordinator, each, arg);
}

void kvs_coordinator_destroy(struct kvs_coordinator *coordinator)
{
    if (coordinator != NULL) {
        coordinator->ops->destroy(coordinator);
    }
}

/* ---- requests ---- */

static void on_answer(struct kvb_event *event)
{
    struct kvs_coord_request *request =
        kvb_container_of(event, struct kvs_coord_request, impl.event);
    kvb_list_remove(&request->impl.link);
    request->done(request, request->impl.status);
}

void kvs_request_begin(struct kvb_list *requests, struct kvs_coordinator *coordinator,
                       struct kvs_member *member, struct kvs_coord_request *request)
{
    kvb_event_init(&request->impl.event, on_answer);
    request->impl.coordinator = coordinator;
    request->impl.member = member;
    request->impl.status = KVB_IN_PROGRESS;
    request->impl.state = NULL;
    request->impl.binds = false;
    kvb_list_push_back(requests, &request->impl.link);
}

void kvs_request_answer(struct kvb_sched *sched, struct kvs_coord_request *request,
                        kvb_status_t status)
{
    request->impl.status = status;
    kvb_sched_post(sched, &request->impl.event);
}

void kvs_request_cancel_all(struct kvb_list *requests, void (*disown)(void *state))
{
    for (struct kvb_list *link; (link = kvb_list_pop(requests)) != NULL;) {
        struct kvs_coord_request *request =
            kvb_container_of(link, struct kvs_coord_request, impl.link);
        if (request->impl.state != NULL) {
            disown(request->impl.state);
        }
        kvb_sched_unpost(&request->impl.event);
        request->done(request, KVB_ERR_CANCELED);
    }
}
