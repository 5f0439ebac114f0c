/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A share's server from all sides at once: connections that come, say something senseless and go,
 * while other threads read its figures, it is told to drain, and it is taken down in the middle of
 * it, again and again.
 */
#include "listen.h"
#include "loop.h"
#include "node/server.h"

#include "base/assert.h"
#include "base/log.h"
#include "store/share.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROUNDS = 8, CALLERS = 3, ROUND_MS = 150 };

static struct kvp_loop *loop;
static struct kvp_server *server;
static uint16_t port;
static uint64_t round_ends_ns;
static atomic_bool stop;
static atomic_uint calls;
static atomic_uint reads;

static void on_beat(void *ctx, uint64_t now_ns, uint64_t lag_ns)
{
    (void)ctx;
    (void)lag_ns;
    if (now_ns > round_ends_ns) {
        kvp_loop_stop(loop);
    }
}

static void *call(void *arg)
{
    static const char nonsense[64] = "GET / HTTP/1.0\r\n\r\n";
    (void)arg;
    while (!atomic_load(&stop)) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        kvb_assert(fd >= 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) {
            unsigned n = atomic_fetch_add(&calls, 1);
            (void)send(fd, nonsense, n % sizeof nonsense, MSG_NOSIGNAL);
        }
        (void)close(fd);
    }
    return NULL;
}

static void *read_figures(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop)) {
        struct kvs_service_stats stats;
        kvp_server_stats(server, &stats);
        (void)kvp_server_running(server);
        kvb_assert(kvp_server_beat_ns(server) <= kvb_now_ns(&kvb_clock_real));
        atomic_fetch_add(&reads, 1);
    }
    return NULL;
}

static void play(struct kvs_share *share, bool drain)
{
    pthread_t threads[CALLERS + 1];
    int listener;
    kvb_status_t status = kvp_listen("127.0.0.1", 0, &listener, &port);
    kvb_assert(status == KVB_OK);
    const struct kvp_server_config config = {.sched = kvp_loop_sched(loop),
                                             .io = kvp_loop_io(loop),
                                             .share = share,
                                             .listener = listener,
                                             .threads = 2,
                                             .name = "stress",
                                             .incarnation = 1,
                                             .lanes_max = 16,
                                             .lanes_each_max = 16};
    status = kvp_server_create(&config, &server);
    kvb_assert(status == KVB_OK);
    atomic_store(&stop, false);
    for (int i = 0; i < CALLERS + 1; i++) {
        int error = pthread_create(&threads[i], NULL, i == 0 ? read_figures : call, NULL);
        kvb_assert(error == 0);
    }
    if (drain) {
        kvp_server_drain(server);
    }
    round_ends_ns = kvb_deadline_in_ms(&kvb_clock_real, ROUND_MS);
    kvp_loop_run(loop);
    atomic_store(&stop, true); /* of the readers: who destroys it knows that nobody asks any more */
    (void)pthread_join(threads[0], NULL);
    kvp_server_destroy(server);
    for (int i = 1; i < CALLERS + 1; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

int main(void)
{
    static const struct kvp_loop_ops ops = {.beat = on_beat};
    const struct kvs_share_config shape = {.bytes = 4u << 20, .shards = 2};
    struct kvs_share *share;
    (void)signal(SIGPIPE, SIG_IGN);
    kvb_log_threshold = KVB_LOG_ERROR; /* what is provoked here is not to be read */
    kvb_status_t status = kvs_share_create(&kvb_random_real, &shape, &share);
    kvb_assert(status == KVB_OK);
    status = kvp_loop_create(&ops, NULL, &loop);
    kvb_assert(status == KVB_OK);
    for (int i = 0; i < ROUNDS; i++) {
        play(share, i % 2 == 1);
    }
    kvp_loop_destroy(loop);
    kvs_share_destroy(share);
    kvb_assert(atomic_load(&calls) > 0 && atomic_load(&reads) > 0);
    printf("stress_server: ok calls=%u reads=%u\n", atomic_load(&calls), atomic_load(&reads));
    return 0;
}
