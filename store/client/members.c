/* SPDX-License-Identifier: Apache-2.0 */
#include "members.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

#define NODES_MAX 1024u

static const struct kvs_client_health default_limits = {
    .lookup_ms = 500,
    .transfer_ms = 5000,
    .bytes_per_ms = 8192,
    .failures = 3,
    .backoff_ms = 2000,
};

void kvs_members_init(struct kvs_members *members, struct kvb_sched *sched)
{
    *members = (struct kvs_members){.sched = sched, .limits = default_limits};
    kvb_list_init(&members->leaving);
}

void kvs_members_limit(struct kvs_members *members, const struct kvs_client_health *limits)
{
    const struct kvs_client_health *fallback = &default_limits;
#define TAKE(name) .name = limits->name != 0 ? limits->name : fallback->name
    members->limits = (struct kvs_client_health){
        TAKE(lookup_ms), TAKE(transfer_ms), TAKE(bytes_per_ms), TAKE(failures), TAKE(backoff_ms)};
#undef TAKE
}

static void free_member(struct kvs_member *member)
{
    kvb_assert(member->ncalls == 0);
    kvb_sched_unpost(&member->event);
    kvb_list_remove(&member->link);
    free(member->name);
    free(member);
}

void kvs_members_cleanup(struct kvs_members *members)
{
    for (uint32_t i = 0; i < members->n; i++) {
        free_member(members->all[i]);
    }
    for (struct kvb_list *link; (link = kvb_list_first(&members->leaving)) != NULL;) {
        free_member(kvb_container_of(link, struct kvs_member, link));
    }
    free(members->all);
    free(members->readable.places);
    free(members->readable.members);
    free(members->writable.places);
    free(members->writable.members);
}

/* ---- who there is ---- */

static void choose_anew(struct kvs_members *members)
{
    members->choice_until_ns = 0;
}

static kvb_status_t grow_choice(struct kvs_choice *choice, uint32_t cap)
{
    struct kvs_place *places = realloc(choice->places, cap * sizeof *places);
    if (places == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    choice->places = places;
    struct kvs_member **members = realloc(choice->members, cap * sizeof(struct kvs_member *));
    if (members == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    choice->members = members;
    return KVB_OK;
}

static kvb_status_t grow(struct kvs_members *members)
{
    uint32_t cap = members->cap == 0 ? 4 : 2 * members->cap;
    struct kvs_member **all = realloc(members->all, cap * sizeof(struct kvs_member *));
    if (all == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    members->all = all;
    kvb_status_t status = grow_choice(&members->readable, cap);
    if (status == KVB_OK) {
        status = grow_choice(&members->writable, cap);
    }
    if (status == KVB_OK) {
        members->cap = cap;
    }
    return status;
}

static void on_removed(struct kvb_event *event)
{
    struct kvs_member *member = kvb_container_of(event, struct kvs_member, event);
    void (*removed)(void *, struct kvs_node *) = member->removed;
    void *ctx = member->ctx;
    struct kvs_node *node = member->node;
    free_member(member);
    removed(ctx, node);
}

kvb_status_t kvs_members_add(struct kvs_members *members, const char *name, struct kvs_node *node,
                             uint64_t weight)
{
    if (kvs_members_find(members, name) != NULL) {
        return KVB_ERR_EXISTS;
    }
    if (members->n == NODES_MAX) {
        return KVB_ERR_LIMIT;
    }
    if (members->n == members->cap) {
        kvb_status_t status = grow(members);
        if (status != KVB_OK) {
            return status;
        }
    }
    struct kvs_member *member = calloc(1, sizeof *member);
    char *copy = strdup(name);
    if (member == NULL || copy == NULL) {
        free(member);
        free(copy);
        return KVB_ERR_NO_MEMORY;
    }
    *member = (struct kvs_member){.owner = members, .node = node, .name = copy};
    kvb_list_init(&member->calls);
    kvb_list_init(&member->link);
    kvb_event_init(&member->event, on_removed);
    members->all[members->n++] = member;
    kvs_member_set(member, weight, false);
    return KVB_OK;
}

struct kvs_member *kvs_members_find(const struct kvs_members *members, const char *name)
{
    for (uint32_t i = 0; i < members->n; i++) {
        if (strcmp(members->all[i]->name, name) == 0) {
            return members->all[i];
        }
    }
    return NULL;
}

void kvs_member_set(struct kvs_member *member, uint64_t weight, bool readable_only)
{
    member->weight = weight;
    member->place = kvs_place_of(member->name, weight);
    member->readable_only = readable_only;
    choose_anew(member->owner);
}

void kvs_member_remove(struct kvs_member *member, void (*removed)(void *ctx, struct kvs_node *node),
                       void *ctx)
{
    struct kvs_members *members = member->owner;
    uint32_t i = 0;
    while (members->all[i] != member) {
        i++;
    }
    members->all[i] = members->all[--members->n];
    choose_anew(members);
    member->gone = true;
    member->removed = removed;
    member->ctx = ctx;
    kvb_list_push_back(&members->leaving, &member->link);
    if (member->ncalls == 0) {
        kvb_sched_post(members->sched, &member->event);
    }
}

/* ---- who is in the choice ---- */

static void choose(struct kvs_choice *choice, struct kvs_member *member)
{
    choice->places[choice->n] = member->place;
    choice->members[choice->n++] = member;
}

const struct kvs_choice *kvs_members_choice(struct kvs_members *members, enum kvs_batch_op op)
{
    uint64_t now_ns = kvb_now_ns(members->sched->clock);
    if (now_ns >= members->choice_until_ns) {
        members->choice_until_ns = KVB_NEVER;
        members->readable.n = 0;
        members->writable.n = 0;
        for (uint32_t i = 0; i < members->n; i++) {
            struct kvs_member *member = members->all[i];
            if (kvs_health_may_ask(&member->health, now_ns)) {
                choose(&members->readable, member);
                if (!member->readable_only) {
                    choose(&members->writable, member);
                }
            } else if (!member->health.trying &&
                       member->health.next_ns < members->choice_until_ns) {
                members->choice_until_ns = member->health.next_ns;
            }
        }
    }
    return op == KVS_PUT ? &members->writable : &members->readable;
}

/* ---- a call ---- */

static uint64_t span_ns(const struct kvs_member *member, enum kvs_batch_op op)
{
    const struct kvs_client_health *limits = &member->owner->limits;
    if (op != KVS_PUT && op != KVS_GET) {
        return limits->lookup_ms * KVB_NS_PER_MS;
    }
    /* the bytes before it are on the same link */
    return (limits->transfer_ms + member->bytes / limits->bytes_per_ms) * KVB_NS_PER_MS;
}

void kvs_member_call_begin(struct kvs_member *member, struct kvs_member_call *call,
                           enum kvs_batch_op op, uint64_t bytes)
{
    uint64_t now_ns = kvb_now_ns(member->owner->sched->clock);
    member->bytes += bytes;
    member->ncalls++;
    if (member->asked_ns == 0) {
        member->asked_ns = now_ns;
    }
    *call = (struct kvs_member_call){
        .member = member,
        .health = kvs_health_begin(&member->health, op),
        .bytes = bytes,
        .begun_ns = now_ns,
        .span_ns = span_ns(member, op),
    };
    call->bound_ns = member->node->ops->in_process ? KVB_NEVER : now_ns + call->span_ns;
    if (call->health.tries) {
        choose_anew(member->owner); /* one at a time */
    }
    kvb_list_init(&call->link);
    kvb_list_push_back(&member->calls, &call->link);
}

static void failed(struct kvs_member_call *call, bool silent, kvb_status_t why)
{
    struct kvs_member *member = call->member;
    const struct kvs_client_health *limits = &member->owner->limits;
    uint64_t now_ns = kvb_now_ns(member->owner->sched->clock);
    if (member->node->ops->in_process || member->gone) {
        return;
    }
    member->last_failure = why;
    member->failed_ns = now_ns;
    if (kvs_health_failed(&member->health, &call->health, silent, limits, now_ns)) {
        KVB_LOG_LIMITED(WARN, "store node is sick: nothing is placed there for a while",
                        KVB_STR("node", member->name), KVB_STATUS(why),
                        KVB_STR("silent", silent ? "yes" : "no"),
                        KVB_U64("again_in_ms", limits->backoff_ms));
    }
    choose_anew(member->owner);
}

void kvs_member_call_late(struct kvs_member_call *call)
{
    struct kvs_member *member = call->member;
    const struct kvs_node_ops *ops = member->node->ops;
    kvb_assert(!call->late);
    call->late = true;
    uint64_t now_ns = kvb_now_ns(member->owner->sched->clock);
    uint64_t heard_ns = ops->heard_ns == NULL ? 0 : ops->heard_ns(member->node);
    uint64_t since_ns = heard_ns > member->asked_ns ? heard_ns : member->asked_ns;
    bool silent = now_ns - since_ns >= call->span_ns;
    if (silent || now_ns >= call->bound_ns) {
        failed(call, silent, KVB_ERR_TIMEOUT);
    }
    /* else the batch had less time than a node may take */
}

enum kvs_verdict kvs_verdict(kvb_status_t status)
{
    switch (status) {
    case KVB_OK:
    case KVB_ERR_NOT_FOUND:
    case KVB_ERR_EXISTS:
    case KVB_ERR_BUSY:
    case KVB_ERR_FENCED:
    case KVB_ERR_TICKET:
    case KVB_ERR_NO_SPACE:
    case KVB_ERR_QUOTA:
    case KVB_ERR_DRAINING: /* a word about puts; it is read still */
        return KVS_NODE_ANSWERED;
    case KVB_ERR_UNAVAILABLE:
    case KVB_ERR_DISCONNECTED:
    case KVB_ERR_TIMEOUT:
    case KVB_ERR_PROTOCOL:
    case KVB_ERR_REFUSED:
    case KVB_ERR_CHECKSUM: /* one bad object is dropped by its node; a node of bad bytes is sick */
    case KVB_ERR_IO:
    case KVB_ERR_INTERNAL:
        return KVS_NODE_FAILED;
    default: /* the caller's fault, or this process's */
        return KVS_NO_VERDICT;
    }
}

static void answered(struct kvs_member_call *call)
{
    struct kvs_member *member = call->member;
    uint64_t now_ns = kvb_now_ns(member->owner->sched->clock);
    uint64_t since_ns = member->health.since_ns;
    member->asked_ns = member->ncalls > 1 ? now_ns : 0;
    if (kvs_health_answered(&member->health, &call->health)) {
        KVB_LOG_LIMITED(INFO, "store node is back", KVB_STR("node", member->name),
                        KVB_MS("sick_for", now_ns - since_ns));
        choose_anew(member->owner);
    }
}

void kvs_member_call_end(struct kvs_member_call *call, enum kvs_verdict verdict, kvb_status_t why)
{
    struct kvs_member *member = call->member;
    if (verdict == KVS_NODE_ANSWERED) {
        answered(call);
    } else if (verdict == KVS_NODE_FAILED && !call->late) {
        failed(call, false, why);
    } else if (!call->late && member->ncalls == 1) {
        member->asked_ns = 0; /* nobody waits any more */
    }
    kvs_health_end(&member->health, &call->health);
    if (call->health.tries) {
        choose_anew(member->owner);
    }
    kvb_list_remove(&call->link);
    call->member = NULL;
    member->bytes -= call->bytes;
    if (--member->ncalls == 0 && member->gone) {
        kvb_sched_post(member->owner->sched, &member->event);
    }
}
