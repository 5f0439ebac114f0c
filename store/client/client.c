/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches, spread over the nodes. Each batch becomes a flight: one call for each node that holds
 * some of its items. The flight counts its calls down and completes the batch when the last is
 * done; a call that a node did not take is done at once, in an event. One timer stops what is not
 * answered: each call at its node's bound, all of them at the batch's deadline. Nodes answer that
 * soon (store/node.h), so the batch ends within its bound; what a stopped call moved is at rest
 * when it is done, not before.
 *
 * A remove and a pin ask every node, each with items of its own, for an object may lie where it was
 * placed while other nodes were there.
 */
#include "store/client.h"

#include "members.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#define BATCHES_MAX 4096u      /* in flight */
#define ITEMS_MAX   (1u << 20) /* of all batches in flight */

/* How long after its deadline what moves bytes has to stop. */
#define STOP_MS 200
/* A timer that fires so late was held up by this process: no node is to blame. */
#define STALL_MS 100

struct flight;

/* A batch for one node alone. */
struct copy {
    struct kvs_batch batch;
    struct kvs_item items[];
};

struct flight_call {
    struct kvs_node_call base;
    struct kvs_member_call member;
    struct flight *flight;
    struct copy *copy; /* of what every node is asked; else NULL */
};

struct flight {
    struct kvs_batch *batch;
    struct kvs_client *client;
    struct kvb_timer bound;
    uint64_t bound_ns;
    struct kvb_event end;
    uint32_t ncalls;
    uint32_t left;   /* calls not done */
    uint32_t *index; /* the items, those of one node together */
    struct flight_call calls[];
};

struct kvs_client {
    struct kvb_sched *sched;
    struct kvs_members members;
    struct kvb_list batches; /* in flight */
    uint32_t nbatches;
    uint32_t nitems;
    void (*moved)(void *ctx, struct kvs_node *node, const struct kvs_node_call *call,
                  uint64_t took_ns);
    void *moved_ctx;
};

kvb_status_t kvs_client_create(struct kvb_sched *sched, struct kvs_client **client_p)
{
    struct kvs_client *client = calloc(1, sizeof *client);
    if (client == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    client->sched = sched;
    kvs_members_init(&client->members, sched);
    kvb_list_init(&client->batches);
    *client_p = client;
    return KVB_OK;
}

void kvs_client_on_moved(struct kvs_client *client,
                         void (*moved)(void *ctx, struct kvs_node *node,
                                       const struct kvs_node_call *call, uint64_t took_ns),
                         void *ctx)
{
    client->moved = moved;
    client->moved_ctx = ctx;
}

void kvs_client_destroy(struct kvs_client *client)
{
    if (client == NULL) {
        return;
    }
    kvb_assert(client->nbatches == 0);
    kvs_members_cleanup(&client->members);
    free(client);
}

/* ---- nodes ---- */

void kvs_client_set_health(struct kvs_client *client, const struct kvs_client_health *health)
{
    kvs_members_limit(&client->members, health);
}

kvb_status_t kvs_client_add_node(struct kvs_client *client, const char *name, struct kvs_node *node,
                                 uint64_t weight)
{
    return kvs_members_add(&client->members, name, node, weight);
}

kvb_status_t kvs_client_set_node(struct kvs_client *client, const char *name, uint64_t weight,
                                 bool readable_only)
{
    struct kvs_member *member = kvs_members_find(&client->members, name);
    if (member == NULL) {
        return KVB_ERR_NOT_FOUND;
    }
    kvs_member_set(member, weight, readable_only);
    return KVB_OK;
}

kvb_status_t kvs_client_remove_node(struct kvs_client *client, const char *name,
                                    void (*removed)(void *ctx, struct kvs_node *node), void *ctx)
{
    struct kvs_member *member = kvs_members_find(&client->members, name);
    if (member == NULL) {
        return KVB_ERR_NOT_FOUND;
    }
    uint64_t stop_ns = kvb_deadline_in_ms(client->sched->clock, STOP_MS);
    kvs_member_remove(member, removed, ctx);
    kvb_list_each(&member->calls, link)
    {
        struct flight_call *call = kvb_container_of(link, struct flight_call, member.link);
        member->node->ops->stop(member->node, &call->base, true, stop_ns);
    }
    return KVB_OK;
}

void kvs_client_each_node(const struct kvs_client *client,
                          void (*each)(void *arg, const struct kvs_client_node *node), void *arg)
{
    for (uint32_t i = 0; i < client->members.n; i++) {
        const struct kvs_member *member = client->members.all[i];
        const struct kvs_client_node node = {
            .name = member->name,
            .node = member->node,
            .weight = member->weight,
            .readable_only = member->readable_only,
            .sick = member->health.sick,
            .sick_ns = member->health.sick ? member->health.since_ns : 0,
            .sick_times = member->health.sick_times,
            .calls = member->health.begun,
            .failures = member->health.failures,
            .last_failure = member->last_failure,
            .failed_ns = member->failed_ns,
            .in_flight = member->ncalls,
        };
        each(arg, &node);
    }
}

/* ---- the end of a flight ---- */

static void free_flight(struct flight *flight)
{
    for (uint32_t i = 0; i < flight->ncalls; i++) {
        free(flight->calls[i].copy);
    }
    free(flight->index);
    free(flight);
}

static void land(struct flight *flight)
{
    struct kvs_client *client = flight->client;
    struct kvs_batch *batch = flight->batch;
    kvb_sched_timer_clear(client->sched, &flight->bound);
    kvb_sched_unpost(&flight->end);
    kvb_list_remove(&batch->impl.link);
    client->nbatches--;
    client->nitems -= batch->nitems;
    batch->impl.state = NULL;
    free_flight(flight);
    batch->done(batch);
}

/* For a flight whose calls ended before submit returned. */
static void on_end(struct kvb_event *event)
{
    land(kvb_container_of(event, struct flight, end));
}

/* Asked of every node. */
static bool of_every_node(enum kvs_batch_op op)
{
    return op == KVS_REMOVE || op == KVS_PIN;
}

/* Of what two nodes say of a key, what holds for both together: the higher. */
static uint32_t rank(enum kvs_batch_op op, kvb_status_t status)
{
    switch (status) {
    case KVB_ERR_NOT_FOUND:
        return 0;
    case KVB_OK: /* a pin is done, a removal is only if nobody else has it */
        return op == KVS_PIN ? 4 : 1;
    case KVB_ERR_BUSY:
        return 3;
    default:
        return 2;
    }
}

static void merge(const struct flight_call *call)
{
    struct kvs_batch *batch = call->flight->batch;
    for (uint32_t i = 0; i < batch->nitems; i++) {
        kvb_status_t status = call->copy->items[i].status;
        if (rank(batch->op, status) > rank(batch->op, batch->items[i].status)) {
            batch->items[i].status = status;
        }
    }
}

/* One item that failed is a failure, whatever became of the rest. */
static enum kvs_verdict judge(const struct kvs_node_call *call, kvb_status_t *why_p)
{
    enum kvs_verdict verdict = KVS_NO_VERDICT;
    for (uint32_t i = 0; i < call->n && verdict != KVS_NODE_FAILED; i++) {
        kvb_status_t status = kvs_node_call_item(call, i)->status;
        enum kvs_verdict of_item = kvs_verdict(status);
        if (call->ours && of_item == KVS_NODE_FAILED) {
            continue;
        }
        if (of_item > verdict) {
            verdict = of_item;
            *why_p = status;
        }
    }
    return verdict;
}

/* The bound was not the batch's own: the node went, that is all. */
static void forget_timeouts(const struct kvs_node_call *call)
{
    for (uint32_t i = 0; i < call->n; i++) {
        struct kvs_item *item = kvs_node_call_item(call, i);
        if (item->status == KVB_ERR_TIMEOUT) {
            item->status = KVB_ERR_UNAVAILABLE;
        }
    }
}

static void end_call(struct flight_call *call)
{
    kvb_status_t why = KVB_OK;
    if (call->member.member->gone) {
        forget_timeouts(&call->base);
    }
    struct kvs_client *client = call->flight->client;
    enum kvs_batch_op op = call->base.batch->op;
    if (client->moved != NULL && (op == KVS_PUT || op == KVS_GET)) {
        client->moved(client->moved_ctx, call->member.member->node, &call->base,
                      kvb_now_ns(client->sched->clock) - call->member.begun_ns);
    }
    enum kvs_verdict verdict = judge(&call->base, &why);
    kvs_member_call_end(&call->member, verdict, why);
    if (call->copy != NULL) {
        merge(call);
    }
}

static void on_call_done(struct kvs_node_call *base)
{
    struct flight_call *call = kvb_container_of(base, struct flight_call, base);
    struct flight *flight = call->flight;
    kvb_assert(call->member.member != NULL);
    end_call(call);
    if (--flight->left == 0) {
        land(flight);
    }
}

/* ---- stopping ---- */

static void stop(struct flight_call *call, bool expired, uint64_t stop_deadline_ns)
{
    struct kvs_node *node = call->member.member->node;
    node->ops->stop(node, &call->base, expired, stop_deadline_ns);
}

static void arm(struct flight *flight)
{
    uint64_t next_ns = flight->batch->deadline_ns;
    for (uint32_t i = 0; i < flight->ncalls; i++) {
        const struct kvs_member_call *call = &flight->calls[i].member;
        if (call->member != NULL && !call->late && call->bound_ns < next_ns) {
            next_ns = call->bound_ns;
        }
    }
    flight->bound_ns = next_ns;
    kvb_sched_timer_set(flight->client->sched, &flight->bound, next_ns);
}

/* Held up: the answers may be there, unread. Nodes get their time again; the batch does not. */
static void allow_again(struct flight *flight, uint64_t now_ns)
{
    for (uint32_t i = 0; i < flight->ncalls; i++) {
        struct kvs_member_call *call = &flight->calls[i].member;
        call->bound_ns = call->bound_ns == KVB_NEVER ? KVB_NEVER : now_ns + call->span_ns;
    }
}

static void on_bound(struct kvb_timer *timer)
{
    struct flight *flight = kvb_container_of(timer, struct flight, bound);
    const struct kvb_clock *clock = flight->client->sched->clock;
    uint64_t now_ns = kvb_now_ns(clock);
    bool held_up = now_ns - flight->bound_ns > STALL_MS * KVB_NS_PER_MS;
    bool over = now_ns >= flight->batch->deadline_ns;
    if (held_up) {
        allow_again(flight, now_ns);
    }
    for (uint32_t i = 0; i < flight->ncalls; i++) {
        struct flight_call *call = &flight->calls[i];
        struct kvs_member_call *member = &call->member;
        if (member->member == NULL || (!over && (member->late || now_ns < member->bound_ns))) {
            continue;
        }
        if (!member->late && !held_up) {
            kvs_member_call_late(member);
        }
        stop(call, true, kvb_deadline_in_ms(clock, STOP_MS));
    }
    if (!over) {
        arm(flight);
    }
}

/* ---- the begin of a flight ---- */

static struct flight_call *add_call(struct flight *flight, struct kvs_member *member,
                                    struct kvs_batch *batch, const uint32_t *index, uint32_t n)
{
    struct flight_call *call = &flight->calls[flight->ncalls++];
    *call = (struct flight_call){
        .base = {.batch = batch, .index = index, .n = n, .done = on_call_done},
        .member.member = member,
        .flight = flight,
    };
    return call;
}

/* Makes a call for each node that has some of the items; the items of one lie together. */
static void group(struct flight *flight, const struct kvs_choice *choice, const uint32_t *place,
                  uint32_t *count)
{
    uint32_t at = 0;
    for (uint32_t node = 0; node < choice->n; node++) {
        uint32_t n = count[node];
        count[node] = at; /* from here on: where its next item goes */
        if (n > 0) {
            (void)add_call(flight, choice->members[node], flight->batch, flight->index + at, n);
        }
        at += n;
    }
    for (uint32_t i = 0; i < flight->batch->nitems; i++) {
        flight->index[count[place[i]]++] = i;
    }
}

static kvb_status_t spread(struct flight *flight, const struct kvs_choice *choice)
{
    const struct kvs_batch *batch = flight->batch;
    uint32_t *place = malloc(batch->nitems * sizeof *place);
    uint32_t *count = calloc(choice->n, sizeof *count);
    flight->index = malloc(batch->nitems * sizeof *flight->index);
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    if (place != NULL && count != NULL && flight->index != NULL) {
        uint64_t seed = kvs_placement_seed(batch->space);
        for (uint32_t i = 0; i < batch->nitems; i++) {
            const struct kvs_item *item = &batch->items[i];
            place[i] = kvs_placement_pick(choice->places, choice->n, seed,
                                          item->placement.len != 0 ? item->placement : item->key);
            count[place[i]]++;
        }
        group(flight, choice, place, count);
        status = KVB_OK;
    }
    free(place);
    free(count);
    return status;
}

/* A call to each node, with items of its own. */
static kvb_status_t repeat(struct flight *flight, const struct kvs_choice *choice)
{
    struct kvs_batch *batch = flight->batch;
    for (uint32_t i = 0; i < choice->n; i++) {
        size_t items = batch->nitems * sizeof batch->items[0];
        struct copy *copy = malloc(sizeof *copy + items);
        if (copy == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        copy->batch = *batch;
        copy->batch.items = copy->items;
        memcpy(copy->items, batch->items, items);
        add_call(flight, choice->members[i], &copy->batch, NULL, batch->nitems)->copy = copy;
    }
    return KVB_OK;
}

/* only: where all of it goes; NULL: where it is placed. */
static kvb_status_t create_flight(struct kvs_client *client, struct kvs_batch *batch,
                                  struct kvs_member *only, struct flight **flight_p)
{
    const struct kvs_choice *choice = kvs_members_choice(&client->members, batch->op);
    bool every = of_every_node(batch->op);
    size_t ncalls = only != NULL                         ? 1
                    : every || choice->n < batch->nitems ? choice->n
                                                         : batch->nitems;
    struct flight *flight = malloc(sizeof *flight + ncalls * sizeof flight->calls[0]);
    if (flight == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *flight = (struct flight){.batch = batch, .client = client};
    kvb_timer_init(&flight->bound, on_bound);
    kvb_event_init(&flight->end, on_end);
    kvb_status_t status = KVB_OK;
    if (only != NULL) {
        (void)add_call(flight, only, batch, NULL, batch->nitems);
    } else if (choice->n == 1 && (!every || client->members.n == 1)) {
        /* the common case: no placement, no copy */
        (void)add_call(flight, choice->members[0], batch, NULL, batch->nitems);
    } else if (every) {
        status = repeat(flight, choice);
    } else if (choice->n > 0) {
        status = spread(flight, choice);
    }
    if (status != KVB_OK) {
        free_flight(flight);
        return status;
    }
    *flight_p = flight;
    return KVB_OK;
}

/* What the items are if no node answers for them. */
static void fill(struct kvs_client *client, struct kvs_batch *batch, const struct flight *flight)
{
    bool all_asked =
        of_every_node(batch->op) && flight->ncalls == client->members.n && flight->ncalls > 0;
    for (uint32_t i = 0; i < batch->nitems; i++) {
        batch->items[i].status = all_asked ? KVB_ERR_NOT_FOUND : KVB_ERR_UNAVAILABLE;
        batch->items[i].len = 0;
    }
}

static uint64_t bytes_of(const struct kvs_node_call *call)
{
    uint64_t bytes = 0;
    if (call->batch->op == KVS_PUT || call->batch->op == KVS_GET) {
        for (uint32_t i = 0; i < call->n; i++) {
            const struct kvs_item *item = kvs_node_call_item(call, i);
            for (uint32_t s = 0; s < item->nslices; s++) {
                bytes += item->slices[s].len;
            }
        }
    }
    return bytes;
}

/* A node that does not take its part misses; the others are not held up by it. */
static void send(struct flight *flight)
{
    for (uint32_t i = 0; i < flight->ncalls; i++) {
        struct flight_call *call = &flight->calls[i];
        struct kvs_member *member = call->member.member;
        kvs_member_call_begin(member, &call->member, flight->batch->op, bytes_of(&call->base));
        kvb_status_t status = member->node->ops->submit(member->node, &call->base);
        if (status == KVB_OK) {
            flight->left++;
            continue;
        }
        for (uint32_t k = 0; k < call->base.n; k++) {
            kvs_node_call_item(&call->base, k)->status = status;
        }
        end_call(call);
    }
    if (flight->left == 0) {
        kvb_sched_post(flight->client->sched, &flight->end);
    }
}

static kvb_status_t submit(struct kvs_client *client, struct kvs_batch *batch,
                           struct kvs_member *only)
{
    if (batch->nitems == 0 || batch->space->tenant[0] == '\0') {
        return KVB_ERR_INVALID;
    }
    if (client->nbatches >= BATCHES_MAX || batch->nitems > ITEMS_MAX - client->nitems) {
        return KVB_ERR_AGAIN;
    }
    struct flight *flight;
    kvb_status_t status = create_flight(client, batch, only, &flight);
    if (status != KVB_OK) {
        return status;
    }
    fill(client, batch, flight);
    batch->impl.client = client;
    batch->impl.state = flight;
    kvb_list_push_back(&client->batches, &batch->impl.link);
    client->nbatches++;
    client->nitems += batch->nitems;
    send(flight);
    arm(flight);
    return KVB_OK;
}

kvb_status_t kvs_client_submit(struct kvs_client *client, struct kvs_batch *batch)
{
    return submit(client, batch, NULL);
}

kvb_status_t kvs_client_submit_to(struct kvs_client *client, const char *name,
                                  struct kvs_batch *batch)
{
    struct kvs_member *member = kvs_members_find(&client->members, name);
    if (member == NULL) {
        return KVB_ERR_NOT_FOUND;
    }
    if (!kvs_health_may_ask(&member->health, kvb_now_ns(client->sched->clock))) {
        return KVB_ERR_UNAVAILABLE;
    }
    return submit(client, batch, member);
}

void kvs_client_cancel(struct kvs_batch *batch, uint64_t stop_deadline_ns)
{
    struct flight *flight = batch->impl.state;
    if (flight == NULL) { /* done */
        return;
    }
    for (uint32_t i = 0; i < flight->ncalls; i++) {
        if (flight->calls[i].member.member != NULL) {
            stop(&flight->calls[i], false, stop_deadline_ns);
        }
    }
}

/* ---- holds ---- */

static void discard(struct kvs_client *client, struct kvs_hold hold, bool all_of_instance)
{
    for (uint32_t i = 0; i < client->members.n; i++) {
        struct kvs_node *node = client->members.all[i]->node;
        node->ops->discard(node, hold, all_of_instance);
    }
}

void kvs_client_discard(struct kvs_client *client, struct kvs_hold hold)
{
    discard(client, hold, false);
}

void kvs_client_discard_instance(struct kvs_client *client, uint64_t instance)
{
    discard(client, (struct kvs_hold){.instance = instance}, true);
}
