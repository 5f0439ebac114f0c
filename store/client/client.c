/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches, spread over the nodes. Each batch becomes a flight: one call for each node that holds
 * some of its items. The flight counts its calls down and completes the batch when the last is
 * done; a call that a node did not take is done at once, in an event. One timer stops what is left
 * at the deadline: nodes answer that soon (store/node.h), so the batch ends within its bound.
 */
#include "store/client.h"

#include "placement.h"

#include "base/assert.h"
#include "store/node.h"

#include <stdlib.h>
#include <string.h>

#define NODES_MAX   1024u
#define BATCHES_MAX 4096u      /* in flight */
#define ITEMS_MAX   (1u << 20) /* of all batches in flight */

/* How long after its deadline what moves bytes has to stop. */
#define STOP_MS 200

struct flight;

struct flight_call {
    struct kvs_node_call base;
    struct flight *flight;
    struct kvs_node *node; /* NULL: done */
};

struct flight {
    struct kvs_batch *batch;
    struct kvs_client *client;
    struct kvb_timer deadline;
    struct kvb_event end;
    uint32_t ncalls;
    uint32_t left;   /* calls not done */
    uint32_t *index; /* the items, those of one node together */
    struct flight_call calls[];
};

struct member {
    struct kvs_node *node;
    char *name;
};

struct kvs_client {
    struct kvb_sched *sched;
    struct member *members;
    struct kvs_place *places; /* of the same */
    uint32_t nmembers;
    struct kvb_list batches; /* in flight */
    uint32_t nbatches;
    uint32_t nitems;
};

kvb_status_t kvs_client_create(struct kvb_sched *sched, struct kvs_client **client_p)
{
    struct kvs_client *client = calloc(1, sizeof *client);
    if (client == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    client->sched = sched;
    kvb_list_init(&client->batches);
    *client_p = client;
    return KVB_OK;
}

void kvs_client_destroy(struct kvs_client *client)
{
    if (client == NULL) {
        return;
    }
    kvb_assert(client->nbatches == 0);
    for (uint32_t i = 0; i < client->nmembers; i++) {
        free(client->members[i].name);
    }
    free(client->members);
    free(client->places);
    free(client);
}

kvb_status_t kvs_client_add_node(struct kvs_client *client, const char *name, struct kvs_node *node,
                                 uint64_t weight)
{
    for (uint32_t i = 0; i < client->nmembers; i++) {
        if (strcmp(client->members[i].name, name) == 0) {
            return KVB_ERR_EXISTS;
        }
    }
    if (client->nmembers == NODES_MAX) {
        return KVB_ERR_LIMIT;
    }
    size_t n = client->nmembers + 1;
    struct member *members = realloc(client->members, n * sizeof *members);
    if (members == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    client->members = members;
    struct kvs_place *places = realloc(client->places, n * sizeof *places);
    if (places == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    client->places = places;
    char *copy = strdup(name);
    if (copy == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    members[n - 1] = (struct member){.node = node, .name = copy};
    places[n - 1] = kvs_place_of(name, weight);
    client->nmembers++;
    return KVB_OK;
}

/* ---- flights ---- */

static void land(struct flight *flight)
{
    struct kvs_client *client = flight->client;
    struct kvs_batch *batch = flight->batch;
    kvb_sched_timer_clear(client->sched, &flight->deadline);
    kvb_sched_unpost(&flight->end);
    kvb_list_remove(&batch->impl.link);
    client->nbatches--;
    client->nitems -= batch->nitems;
    batch->impl.state = NULL;
    free(flight->index);
    free(flight);
    batch->done(batch);
}

/* For a flight whose calls ended before submit returned. */
static void on_end(struct kvb_event *event)
{
    land(kvb_container_of(event, struct flight, end));
}

static void on_call_done(struct kvs_node_call *base)
{
    struct flight_call *call = kvb_container_of(base, struct flight_call, base);
    struct flight *flight = call->flight;
    kvb_assert(call->node != NULL);
    call->node = NULL;
    if (--flight->left == 0) {
        land(flight);
    }
}

static void stop(struct flight *flight, bool expired, uint64_t stop_deadline_ns)
{
    for (uint32_t i = 0; i < flight->ncalls; i++) {
        struct flight_call *call = &flight->calls[i];
        if (call->node != NULL) {
            call->node->ops->stop(call->node, &call->base, expired, stop_deadline_ns);
        }
    }
}

static void on_deadline(struct kvb_timer *timer)
{
    struct flight *flight = kvb_container_of(timer, struct flight, deadline);
    stop(flight, true, kvb_deadline_in_ms(flight->client->sched->clock, STOP_MS));
}

/* Makes a call for each node that has some of the items; the items of one lie together. */
static void group(struct flight *flight, const uint32_t *place, uint32_t *count)
{
    const struct kvs_client *client = flight->client;
    uint32_t at = 0;
    for (uint32_t node = 0; node < client->nmembers; node++) {
        uint32_t n = count[node];
        count[node] = at; /* from here on: where its next item goes */
        if (n > 0) {
            flight->calls[flight->ncalls++] = (struct flight_call){
                .base = {.batch = flight->batch,
                         .index = flight->index + at,
                         .n = n,
                         .done = on_call_done},
                .flight = flight,
                .node = client->members[node].node,
            };
        }
        at += n;
    }
    for (uint32_t i = 0; i < flight->batch->nitems; i++) {
        flight->index[count[place[i]]++] = i;
    }
}

static kvb_status_t spread(struct flight *flight)
{
    const struct kvs_client *client = flight->client;
    const struct kvs_batch *batch = flight->batch;
    uint32_t *place = malloc(batch->nitems * sizeof *place);
    uint32_t *count = calloc(client->nmembers, sizeof *count);
    flight->index = malloc(batch->nitems * sizeof *flight->index);
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    if (place != NULL && count != NULL && flight->index != NULL) {
        uint64_t seed = kvs_placement_seed(batch->space);
        for (uint32_t i = 0; i < batch->nitems; i++) {
            const struct kvs_item *item = &batch->items[i];
            place[i] = kvs_placement_pick(client->places, client->nmembers, seed,
                                          item->placement.len != 0 ? item->placement : item->key);
            count[place[i]]++;
        }
        group(flight, place, count);
        status = KVB_OK;
    }
    free(place);
    free(count);
    return status;
}

static kvb_status_t create_flight(struct kvs_client *client, struct kvs_batch *batch,
                                  struct flight **flight_p)
{
    size_t ncalls = client->nmembers < batch->nitems ? client->nmembers : batch->nitems;
    struct flight *flight = malloc(sizeof *flight + ncalls * sizeof flight->calls[0]);
    if (flight == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *flight = (struct flight){.batch = batch, .client = client};
    kvb_timer_init(&flight->deadline, on_deadline);
    kvb_event_init(&flight->end, on_end);
    if (client->nmembers == 1) { /* the common case: no placement, no copy */
        flight->ncalls = 1;
        flight->calls[0] = (struct flight_call){
            .base = {.batch = batch, .n = batch->nitems, .done = on_call_done},
            .flight = flight,
            .node = client->members[0].node,
        };
    } else if (client->nmembers > 1) {
        kvb_status_t status = spread(flight);
        if (status != KVB_OK) {
            free(flight->index);
            free(flight);
            return status;
        }
    }
    *flight_p = flight;
    return KVB_OK;
}

static void fill(struct flight_call *call, kvb_status_t status)
{
    for (uint32_t i = 0; i < call->base.n; i++) {
        kvs_node_call_item(&call->base, i)->status = status;
    }
}

/* A node that does not take its part misses; the others are not held up by it. */
static void send(struct flight *flight)
{
    for (uint32_t i = 0; i < flight->ncalls; i++) {
        struct flight_call *call = &flight->calls[i];
        kvb_status_t status = call->node->ops->submit(call->node, &call->base);
        if (status == KVB_OK) {
            flight->left++;
        } else {
            call->node = NULL;
            fill(call, status);
        }
    }
    if (flight->left == 0) {
        kvb_sched_post(flight->client->sched, &flight->end);
    }
}

kvb_status_t kvs_client_submit(struct kvs_client *client, struct kvs_batch *batch)
{
    if (batch->nitems == 0 || batch->space->tenant[0] == '\0') {
        return KVB_ERR_INVALID;
    }
    if (client->nbatches >= BATCHES_MAX || batch->nitems > ITEMS_MAX - client->nitems) {
        return KVB_ERR_AGAIN;
    }
    struct flight *flight;
    kvb_status_t status = create_flight(client, batch, &flight);
    if (status != KVB_OK) {
        return status;
    }
    for (uint32_t i = 0; i < batch->nitems; i++) {
        batch->items[i].status = KVB_ERR_UNAVAILABLE; /* if there is no node at all */
        batch->items[i].len = 0;
    }
    batch->impl.client = client;
    batch->impl.state = flight;
    kvb_list_push_back(&client->batches, &batch->impl.link);
    client->nbatches++;
    client->nitems += batch->nitems;
    kvb_sched_timer_set(client->sched, &flight->deadline, batch->deadline_ns);
    send(flight);
    return KVB_OK;
}

void kvs_client_cancel(struct kvs_batch *batch, uint64_t stop_deadline_ns)
{
    if (batch->impl.state != NULL) { /* not done yet */
        stop(batch->impl.state, false, stop_deadline_ns);
    }
}

/* ---- holds ---- */

static void discard(struct kvs_client *client, struct kvs_hold hold, bool all_of_instance)
{
    for (uint32_t i = 0; i < client->nmembers; i++) {
        struct kvs_node *node = client->members[i].node;
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
