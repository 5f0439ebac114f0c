/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LIB_REST_SERVER_H
#define TESTS_LIB_REST_SERVER_H

#include "board.h"
#include "control.h"
#include "fake_fleet.h"
#include "http/http.h"

#include <pthread.h>
#include <semaphore.h>

/* The real HTTP server, board and control on a loopback port, a thread as their loop, and behind
 * them a fake fleet with one instance, engine-0. */
struct rest_server {
    struct kvb_sched sched;             /* under lock, its thread's alone */
    struct kvp_fleet fleet;             /* under lock */
    struct kvs_coordinator coordinator; /* under lock */
    struct kvp_cluster cluster;         /* under lock */
    struct kvp_board *board;
    struct kvp_events *events;
    struct kvp_control *control;
    struct kvp_http *http;
    struct kvb_metrics *metrics;
    uint16_t port;
    pthread_t loop;
    sem_t woken;
    pthread_mutex_t lock;
    pthread_cond_t turned;
    bool hold; /* under lock: operations stay open until rest_finish() */
    bool stop; /* under lock */
};

/* Told of every answer, unless NULL. */
extern void (*rest_answered)(const struct kvp_http_answered *answered);

/* config: NULL, or limits and tokens to use; the rest is filled in. queue_max 0: 64. */
void rest_start(struct rest_server *rest, const struct kvp_http_config *config, uint32_t queue_max);
void rest_stop(struct rest_server *rest); /* as the daemon does it */

void rest_hold(struct rest_server *rest, bool hold);
/* Waits until so many operations were asked for since the start; false: they were not, in time. */
bool rest_wait_calls(struct rest_server *rest, uint32_t n);
uint32_t rest_calls(struct rest_server *rest);
/* Ends every open operation with OK. */
void rest_finish(struct rest_server *rest);

#endif
