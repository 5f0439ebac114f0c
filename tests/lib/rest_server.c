/* SPDX-License-Identifier: Apache-2.0 */
#include "rest_server.h"

#include "control/probes.h"
#include "http_client.h"
#include "page/page.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/metrics.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct kvb_metric families[] = {
    {.name = "kvplane_test", .type = KVB_GAUGE, .help = "For tests."}};

static void wake(void *ctx)
{
    struct rest_server *rest = ctx;
    sem_post(&rest->woken);
}

/* Until there is something to do. */
static void await(struct rest_server *rest, uint64_t due_ns)
{
    struct timespec until = {.tv_sec = (time_t)(due_ns / KVB_NS_PER_S),
                             .tv_nsec = (long)(due_ns % KVB_NS_PER_S)};
    int rc;
    do {
        rc = due_ns == KVB_NEVER ? sem_wait(&rest->woken)
                                 : sem_clockwait(&rest->woken, CLOCK_MONOTONIC, &until);
    } while (rc != 0 && errno == EINTR);
}

static void *loop(void *arg)
{
    struct rest_server *rest = arg;
    uint64_t due_ns = KVB_NEVER;
    bool stop = false;

    while (!stop) {
        await(rest, due_ns);
        pthread_mutex_lock(&rest->lock);
        stop = rest->stop;
        kvp_board_beat(rest->board);
        if (stop) {
            kvp_control_close(rest->control);
        } else {
            kvp_control_run(rest->control);
        }
        if (!rest->hold) {
            fake_fleet_finish_all(&rest->fleet, (struct kvp_outcome){.local_done = true});
            fake_coordinator_finish(&rest->coordinator, KVB_OK);
            fake_cluster_finish(&rest->cluster);
        }
        due_ns = kvb_sched_turn(&rest->sched);
        pthread_cond_broadcast(&rest->turned);
        pthread_mutex_unlock(&rest->lock);
    }
    return NULL;
}

void (*rest_answered)(const struct kvp_http_answered *answered);

static void probe(void *ctx, const struct kvp_route *route, const char *instance,
                  struct kvp_probe_answer *answer_p)
{
    const struct rest_server *rest = ctx;
    kvp_probe(route, instance, rest->board, rest->metrics, answer_p);
}

static bool stopping(void *ctx)
{
    return kvp_board_is_stopping(((const struct rest_server *)ctx)->board);
}

static void answered(void *ctx, const struct kvp_http_answered *seen)
{
    (void)ctx;
    if (rest_answered != NULL) {
        rest_answered(seen);
    }
}

static size_t stream(void *ctx, uint64_t *cursor, char *text, size_t cap)
{
    return kvp_events_stream(((const struct rest_server *)ctx)->events, cursor, text, cap);
}

static const struct kvp_http_ops ops = {.probe = probe,
                                        .document = kvp_page_document,
                                        .stopping = stopping,
                                        .answered = answered,
                                        .stream = stream};

void rest_start(struct rest_server *rest, const struct kvp_http_config *config, uint32_t queue_max)
{
    struct kvp_http_config http = config != NULL ? *config : (struct kvp_http_config){0};

    memset(rest, 0, sizeof *rest);
    kvb_log_threshold = KVB_LOG_ERROR; /* what is provoked here is not to be read */
    kvb_sched_init(&rest->sched, &kvb_clock_real, &kvb_random_real);
    sem_init(&rest->woken, 0, 0);
    pthread_mutex_init(&rest->lock, NULL);
    pthread_cond_init(&rest->turned, NULL);
    struct kvp_view *view = fake_fleet_add(&rest->fleet, "engine-0");
    rest->metrics = kvb_metrics_create(families, 1);
    kvb_assert(rest->metrics != NULL);
    kvb_series_set(kvb_series0(rest->metrics, 0), 1.0);
    kvb_status_t status = kvp_board_create(
        &(struct kvp_board_config){.clock = &kvb_clock_real, .heartbeat_ms = 60000}, &rest->board);
    kvb_assert(status == KVB_OK);
    kvp_board_publish(rest->board, view);
    status = kvp_events_create(0, &rest->events);
    kvb_assert(status == KVB_OK);
    status = kvp_control_create(
        &(struct kvp_control_config){.sched = &rest->sched,
                                     .fleet = &rest->fleet,
                                     .coordinator = &rest->coordinator,
                                     .events = rest->events,
                                     .cluster = &rest->cluster,
                                     .clock = &kvb_clock_real,
                                     .retire_ms = 10000,
                                     .queue_max = queue_max != 0 ? queue_max : 64,
                                     .wake = wake,
                                     .wake_ctx = rest},
        &rest->control);
    kvb_assert(status == KVB_OK);
    http.clock = http.clock != NULL ? http.clock : &kvb_clock_real;
    http.random = &kvb_random_real;
    http.routes = &kvp_route_table;
    http.inbox = kvp_control_inbox(rest->control);
    http.ops = &ops;
    http.ctx = rest;
    status = kvp_http_start(&http, &rest->http);
    kvb_assert(status == KVB_OK);
    rest->port = kvp_http_port(rest->http);
    int error = pthread_create(&rest->loop, NULL, loop, rest);
    kvb_assert(error == 0);
}

void rest_stop(struct rest_server *rest)
{
    kvp_board_stopping(rest->board);
    pthread_mutex_lock(&rest->lock);
    rest->stop = true;
    pthread_mutex_unlock(&rest->lock);
    wake(rest);
    pthread_join(rest->loop, NULL);
    kvp_http_stop(rest->http);
    fake_fleet_finish_all(&rest->fleet, (struct kvp_outcome){.status = KVB_ERR_CANCELED});
    fake_coordinator_finish(&rest->coordinator, KVB_ERR_CANCELED);
    fake_cluster_finish(&rest->cluster);
    kvp_control_destroy(rest->control);
    kvb_sched_cleanup(&rest->sched);
    kvp_board_destroy(rest->board);
    kvp_events_destroy(rest->events);
    kvb_metrics_destroy(rest->metrics);
    pthread_cond_destroy(&rest->turned);
    pthread_mutex_destroy(&rest->lock);
    sem_destroy(&rest->woken);
}

void rest_hold(struct rest_server *rest, bool hold)
{
    pthread_mutex_lock(&rest->lock);
    rest->hold = hold;
    pthread_mutex_unlock(&rest->lock);
}

bool rest_wait_calls(struct rest_server *rest, uint32_t n)
{
    struct timespec until;
    int error = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += HTTP_WAIT_MS / 1000;
    pthread_mutex_lock(&rest->lock);
    while (rest->fleet.ncalls < n && error == 0) {
        error = pthread_cond_timedwait(&rest->turned, &rest->lock, &until);
    }
    bool came = rest->fleet.ncalls >= n;
    pthread_mutex_unlock(&rest->lock);
    return came;
}

uint32_t rest_calls(struct rest_server *rest)
{
    pthread_mutex_lock(&rest->lock);
    uint32_t n = rest->fleet.ncalls;
    pthread_mutex_unlock(&rest->lock);
    return n;
}

void rest_finish(struct rest_server *rest)
{
    pthread_mutex_lock(&rest->lock);
    fake_fleet_finish_all(&rest->fleet, (struct kvp_outcome){.local_done = true});
    pthread_mutex_unlock(&rest->lock);
}
