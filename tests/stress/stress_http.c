/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP thread, loop thread and clients at once: requests that wait and are answered by the loop,
 * probes, views published meanwhile, clients that vanish at any point, and a stop in the middle of
 * it all. Every request that was read to its end gets exactly one answer.
 */
#include "http_client.h"
#include "rest_server.h"

#include "base/assert.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLIENTS  6
#define REQUESTS 150
#define ROUNDS   3

static struct rest_server rest;
static atomic_bool stopping;
static atomic_uint answered, vanished, refused;

static const char *const requests[] = {
    "POST /sleep?level=1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "POST /wake_up HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n{\"tags\":null}",
    "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /is_sleeping HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /v1/kvplane/instances HTTP/1.1\r\nHost: x\r\n\r\n",
    "POST /v1/kvplane/tenants/default/reset HTTP/1.1\r\nHost: x\r\n\r\n",
    "POST /pause HTTP/1.1\r\nHost: x\r\nPrefer: respond-async\r\n\r\n",
    "POST /sleep?level=9 HTTP/1.1\r\nHost: x\r\n\r\n",
};
#define KINDS      (sizeof requests / sizeof requests[0] + 1)
#define LARGE_BODY 100000 /* goes through the parser's thread */
static char large[LARGE_BODY + 256];

static void make_large(void)
{
    int head = snprintf(large, sizeof large,
                        "POST /update_weights HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n",
                        LARGE_BODY);
    memset(large + head, 'x', LARGE_BODY);
    memcpy(large + head, "{\"a\":\"", 6);
    memcpy(large + head + LARGE_BODY - 2, "\"}", 2);
}

static void *client(void *arg)
{
    unsigned seed = *(const unsigned *)arg;
    int fd = -1;

    for (unsigned i = 0; i < REQUESTS; i++) {
        unsigned kind = (unsigned)rand_r(&seed) % KINDS;
        const char *request = kind < KINDS - 1 ? requests[kind] : large;
        bool vanish = rand_r(&seed) % 5 == 0;
        fd = fd >= 0 ? fd : http_connect(rest.port);
        if (fd < 0) {
            kvb_assert(atomic_load(&stopping));
            break;
        }
        size_t len = strlen(request);
        http_send(fd, request, vanish ? (size_t)rand_r(&seed) % (len + 1) : len);
        if (vanish) {
            close(fd);
            fd = -1;
            atomic_fetch_add(&vanished, 1);
            continue;
        }
        struct http_answer answer = http_receive(fd, false);
        bool close_told = http_header(&answer, "Connection") != NULL;
        kvb_assert(answer.status != 0 || atomic_load(&stopping));
        atomic_fetch_add(answer.status == 503 || answer.status == 0 ? &refused : &answered, 1);
        http_answer_free(&answer);
        if (close_told || answer.status == 0) {
            close(fd);
            fd = -1;
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    return NULL;
}

static void *publisher(void *arg)
{
    struct kvp_view view = rest.fleet.views[0];

    (void)arg;
    while (!atomic_load(&stopping)) {
        view.is_sleeping = !view.is_sleeping;
        kvp_board_publish(rest.board, &view);
        usleep(200);
    }
    return NULL;
}

int main(void)
{
    const char *given = getenv("KVPLANE_SEED");
    unsigned seed = given != NULL ? (unsigned)strtoul(given, NULL, 10) : 1;

    printf("KVPLANE_SEED=%u\n", seed);
    make_large();
    for (unsigned round = 0; round < ROUNDS; round++) {
        pthread_t clients[CLIENTS], publishing;
        unsigned seeds[CLIENTS];
        atomic_store(&stopping, false);
        rest_start(&rest, NULL, 3); /* small: some are told to come back */
        pthread_create(&publishing, NULL, publisher, NULL);
        for (unsigned i = 0; i < CLIENTS; i++) {
            seeds[i] = seed + round * CLIENTS + i;
            pthread_create(&clients[i], NULL, client, &seeds[i]);
        }
        if (round + 1 < ROUNDS) {
            for (unsigned i = 0; i < CLIENTS; i++) {
                pthread_join(clients[i], NULL);
            }
        }
        atomic_store(&stopping, true);
        pthread_join(publishing, NULL);
        rest_stop(&rest); /* in the last round: under their hands */
        for (unsigned i = 0; round + 1 == ROUNDS && i < CLIENTS; i++) {
            pthread_join(clients[i], NULL);
        }
    }
    printf("answered=%u refused=%u vanished=%u\n", atomic_load(&answered), atomic_load(&refused),
           atomic_load(&vanished));
    return atomic_load(&answered) > REQUESTS ? 0 : 1;
}
