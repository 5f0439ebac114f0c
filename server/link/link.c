/* SPDX-License-Identifier: Apache-2.0 */
#include "link.h"

#include "internal.h"
#include "rank.h"
#include "session.h"

#include "base/assert.h"

#include <stdlib.h>

static void on_stop_event(struct kvb_event *event)
{
    struct kvp_link *link = kvb_container_of(event, struct kvp_link, stop_event);
    if (link->nsessions > 0 || link->nranks > 0 || link->stopped == NULL) {
        return;
    }
    void (*stopped)(void *ctx) = link->stopped;
    link->stopped = NULL;
    stopped(link->stopped_ctx);
}

void kvp_link_settle(struct kvp_link *link)
{
    if (link->config.metrics != NULL) {
        kvb_series_set(kvb_series0(link->config.metrics, KVP_M_SESSIONS), link->nsessions);
    }
    if (link->stopped != NULL) {
        kvb_sched_post(link->config.sched, &link->stop_event);
    }
}

kvb_status_t kvp_link_create(const struct kvp_link_config *config, struct kvp_link **link_p)
{
    struct kvp_link *link = calloc(1, sizeof *link);
    if (link == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    link->config = *config;
    kvb_list_init(&link->sessions);
    kvb_list_init(&link->starved);
    kvb_event_init(&link->stop_event, on_stop_event);
    kvb_status_t status = kvp_listener_create(link, &link->listener);
    if (status != KVB_OK) {
        free(link);
        return status;
    }
    *link_p = link;
    return KVB_OK;
}

void kvp_link_beat(struct kvp_link *link)
{
    kvb_list_each(&link->sessions, each)
    {
        const struct kvp_link_rank *rank = kvp_session_rank(kvp_session_of(each));
        if (rank != NULL && !rank->released) {
            kvp_tasks_show(rank);
        }
    }
}

void kvp_link_stop(struct kvp_link *link, void (*done)(void *ctx), void *ctx)
{
    kvb_assert(link->listener != NULL);
    kvp_listener_destroy(link->listener);
    link->listener = NULL;
    link->stopped = done;
    link->stopped_ctx = ctx;
    kvb_list_each(&link->sessions, each)
    {
        kvp_session_close(kvp_session_of(each), "the daemon stops");
    }
    kvp_link_settle(link);
}

void kvp_link_destroy(struct kvp_link *link)
{
    kvb_assert(link->listener == NULL && link->nsessions == 0 && link->nranks == 0);
    kvb_sched_unpost(&link->stop_event);
    free(link);
}
