/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of a node, a part at a time, when somebody wants to know. */
#include "remote.h"

#include <stdlib.h>
#include <string.h>

struct listing {
    struct kvs_remote_list *ask;
    struct kvs_remote *remote;
    struct kvb_writer question;
    struct kvt_transfer transfer;
    struct kvb_event failed; /* before anything was begun */
    kvb_status_t status;
    uint8_t answer[KVS_LIST_WIRE_MAX];
};

static void finish(struct listing *listing, kvb_status_t status)
{
    struct kvs_remote_list *ask = listing->ask;
    listing->remote->nlistings--;
    kvb_writer_cleanup(&listing->question);
    free(listing);
    ask->done(ask, status == KVB_ERR_DISCONNECTED ? KVB_ERR_UNAVAILABLE : status);
}

static void on_answer(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct listing *listing = kvb_container_of(transfer, struct listing, transfer);
    if (status == KVB_OK) {
        struct kvs_list *list = listing->ask->list;
        struct kvs_list_place before = list->place;
        status = kvs_list_unpack((struct kvb_span){listing->answer, transfer->answer_len}, list);
        if (status != KVB_OK) {
            list->place = before;
        }
    }
    finish(listing, status);
}

static void on_failed(struct kvb_event *event)
{
    struct listing *listing = kvb_container_of(event, struct listing, failed);
    finish(listing, listing->status);
}

static kvb_status_t start(struct listing *listing, uint64_t deadline_ns)
{
    struct kvs_remote *remote = listing->remote;
    const struct kvs_list *list = listing->ask->list;
    remote->ask.space = (struct kvs_space_spans){
        .tenant = {(const uint8_t *)list->tenant, strlen(list->tenant)},
        .layout = {(const uint8_t *)list->layout, strlen(list->layout)},
    };
    remote->ask.lineage = list->lineage;
    remote->ask.place = list->place;
    remote->ask.max = list->max;
    kvs_ask_pack(&listing->question, KVS_ASK_LIST, &remote->ask);
    if (listing->question.status != KVB_OK) {
        return listing->question.status;
    }
    listing->transfer = (struct kvt_transfer){
        .deadline_ns = deadline_ns,
        .done = on_answer,
        .type = KVS_ASK_LIST,
        .ask = {listing->question.data, listing->question.len},
        .answer = listing->answer,
        .answer_cap = sizeof listing->answer,
    };
    return kvs_remote_start(remote, &listing->transfer);
}

kvb_status_t kvs_remote_list(struct kvs_node *node, uint64_t deadline_ns,
                             struct kvs_remote_list *ask)
{
    struct listing *listing = malloc(sizeof *listing);
    if (listing == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    listing->ask = ask;
    listing->remote = kvs_remote_of(node);
    kvb_writer_init(&listing->question, KVT_ASK_MAX);
    kvb_event_init(&listing->failed, on_failed);
    listing->remote->nlistings++;
    listing->status = start(listing, deadline_ns);
    if (listing->status != KVB_OK) {
        kvb_sched_post(listing->remote->sched, &listing->failed);
    }
    return KVB_OK;
}
