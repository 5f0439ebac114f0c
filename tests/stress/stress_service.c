/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One share, used at once by several I/O threads that serve it over TCP and by this process's own
 * client; clients in threads of their own put, get, look up, pin and remove, tenants and lineages
 * mixed, while lineages are retired, tenants removed, everything cleared, statistics read, and the
 * services of single threads destroyed and made anew under their clients. Every byte that a get
 * brings is checked. For ThreadSanitizer.
 */
#include "loop.h"
#include "test_memory.h"
#include "test_values.h"

#include "base/log.h"
#include "base/mutex.h"
#include "store/client.h"
#include "store/node.h"
#include "store/service.h"
#include "store/share.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>

#define RESTART_MS  60
#define SERVERS     3
#define CLIENTS     3
#define BATCHES     2000 /* of each client */
#define ITEMS       12
#define KEYS        120
#define VALUE_MAX   (16u << 10)
#define PLACE       (64u << 10) /* of an item in a client's memory */
#define SHARE       (8ull << 20)
#define WAITING_MAX 64

static struct kvs_share *share;
static uint16_t port;
static atomic_ulong weights = 1; /* the lineage that is not retired yet */
static atomic_ulong gets_ok, misses, puts_ok, away;
static atomic_bool over;

/* ---- what a value must be: of (tenant, key, lineage), so that all writers write the same ---- */

static uint64_t len_of(uint64_t key)
{
    return 1 + key * 7919 % VALUE_MAX;
}

static struct kvb_lineage lineage_of(uint64_t of)
{
    return (struct kvb_lineage){{9, of}};
}

/* ---- servers ---- */

struct server {
    pthread_t thread;
    struct kvp_loop *loop;
    struct kvt_net *net;
    struct kvs_service *service;
    struct kvb_timer restart;
    uint64_t lives;
    struct kvb_mutex lock;
    int waiting[WAITING_MAX]; /* accepted; guarded by lock */
    uint32_t nwaiting;
};
static struct server servers[SERVERS];

static void start_service(struct server *server)
{
    const struct kvs_service_config config = {
        .sched = kvp_loop_sched(server->loop),
        .share = share,
        .common = {.net = server->net},
        .name = "stress",
        .incarnation = 1,
        .ticket_ms = 50,
    };
    kvb_assert(kvs_service_create(&config, &server->service) == KVB_OK);
    server->lives++;
}

/* Every lane of it is cut, whatever is on them. */
static void on_restart(struct kvb_timer *timer)
{
    struct server *server = kvb_container_of(timer, struct server, restart);
    struct kvb_sched *sched = kvp_loop_sched(server->loop);
    kvs_service_destroy(server->service);
    start_service(server);
    kvb_sched_timer_set(sched, timer, kvb_deadline_in_ms(sched->clock, RESTART_MS));
}

static void on_server_woken(void *ctx)
{
    struct server *server = ctx;
    if (atomic_load(&over)) {
        kvp_loop_stop(server->loop);
        return;
    }
    int fds[WAITING_MAX];
    kvb_mutex_lock(&server->lock);
    uint32_t n = server->nwaiting;
    memcpy(fds, server->waiting, n * sizeof fds[0]);
    server->nwaiting = 0;
    kvb_mutex_unlock(&server->lock);
    for (uint32_t i = 0; i < n; i++) {
        (void)!kvs_service_adopt(server->service, fds[i]);
    }
}

static void *serve(void *arg)
{
    struct server *server = arg;
    struct kvb_sched *sched = kvp_loop_sched(server->loop);
    kvb_timer_init(&server->restart, on_restart);
    if (server == &servers[0]) {
        kvb_sched_timer_set(sched, &server->restart, kvb_deadline_in_ms(sched->clock, RESTART_MS));
    }
    kvp_loop_run(server->loop);
    kvb_sched_timer_clear(sched, &server->restart);
    kvs_service_destroy(server->service);
    kvt_net_kernel_destroy(server->net);
    return NULL;
}

static int listener;

static void *accept_all(void *arg)
{
    (void)arg;
    for (uint32_t next = 0;; next++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            return NULL; /* shut down: the end */
        }
        struct server *server = &servers[next % SERVERS];
        kvb_mutex_lock(&server->lock);
        bool full = server->nwaiting == WAITING_MAX;
        if (!full) {
            server->waiting[server->nwaiting++] = fd;
        }
        kvb_mutex_unlock(&server->lock);
        if (full) {
            (void)close(fd);
        }
        kvp_loop_wake(server->loop);
    }
}

/* ---- clients: remote ones, and the process's own ---- */

struct user {
    pthread_t thread;
    uint64_t number;
    bool local;
    struct kvp_loop *loop;
    struct kvt_regions *regions;
    struct kvt_net *net;
    struct kvt_transport *loopback;
    struct kvs_keeper keeper; /* local */
    struct kvs_node *node;
    struct kvs_client *client;
    struct test_memory memory;
    struct kvt_region *region;
    uint64_t random;
    uint32_t batches;
    uint64_t of; /* whose values this batch is about */
    struct kvs_space space;
    uint64_t keys[ITEMS];
    struct kvt_slice slices[ITEMS];
    struct kvs_item items[ITEMS];
    struct kvs_batch batch;
    struct kvb_event next;
    struct kvb_timer pause;
    bool unregistered;
};

static uint64_t draw(struct user *user, uint64_t below)
{
    user->random = user->random * 6364136223846793005ull + 1442695040888963407ull;
    return (user->random >> 33) % below;
}

static uint8_t *place(struct user *user, uint32_t i)
{
    return user->memory.base + (uint64_t)i * PLACE;
}

static void check(struct user *user, uint32_t i)
{
    const struct kvs_item *item = &user->items[i];
    uint64_t len = len_of(user->keys[i]);
    switch (item->status) {
    case KVB_OK:
        kvb_assert(item->len == len);
        kvb_assert(test_value_check(place(user, i), len, user->space.tenant, &user->keys[i], 8,
                                    user->of) == len);
        atomic_fetch_add(&gets_ok, 1);
        break;
    case KVB_ERR_NOT_FOUND:
    case KVB_ERR_TICKET: /* slower than 50 ms, under a sanitizer */
        atomic_fetch_add(&misses, 1);
        break;
    default:
        kvb_assert(item->status == KVB_ERR_UNAVAILABLE || item->status == KVB_ERR_CANCELED);
    }
}

static void on_done(struct kvs_batch *batch)
{
    struct user *user = kvb_container_of(batch, struct user, batch);
    struct kvb_sched *sched = kvp_loop_sched(user->loop);
    bool unavailable = false;
    for (uint32_t i = 0; i < batch->nitems; i++) {
        kvb_status_t status = batch->items[i].status;
        unavailable = unavailable || status == KVB_ERR_UNAVAILABLE;
        kvb_assert(status != KVB_ERR_CHECKSUM && status != KVB_ERR_PROTOCOL &&
                   status != KVB_ERR_INVALID && status != KVB_IN_PROGRESS);
        if (batch->op == KVS_GET) {
            check(user, i);
        } else if (batch->op == KVS_PUT && status == KVB_OK) {
            atomic_fetch_add(&puts_ok, 1);
        }
    }
    if (unavailable) {
        atomic_fetch_add(&away, 1);
        kvb_sched_timer_set(sched, &user->pause, kvb_deadline_in_ms(sched->clock, 10));
    } else {
        kvb_sched_post(sched, &user->next);
    }
}

static enum kvs_batch_op choose_op(struct user *user)
{
    static const enum kvs_batch_op ops[] = {KVS_PUT, KVS_PUT, KVS_PUT, KVS_GET,   KVS_GET,
                                            KVS_GET, KVS_GET, KVS_PIN, KVS_EXISTS};
    return draw(user, 30) == 0 ? KVS_REMOVE : ops[draw(user, 9)];
}

/* What nobody else would do: at any time, from one thread. */
static void disturb(struct user *user)
{
    struct kvs_share_stats stats;
    switch (draw(user, 120)) {
    case 0: {
        uint64_t old = atomic_fetch_add(&weights, 1);
        struct kvb_lineage lineage = lineage_of(old);
        kvs_share_retire(share, &lineage, 1);
        break;
    }
    case 1:
        kvs_share_remove_tenant(share, "t1");
        break;
    case 2:
        kvs_share_clear(share);
        break;
    default:
        kvs_share_stats(share, &stats);
        kvb_assert(stats.core.used_bytes == stats.core.live_bytes + stats.core.reserved_bytes +
                                                stats.core.quarantined_bytes +
                                                stats.core.retired_bytes);
    }
}

static void next_batch(struct user *user)
{
    if (user->batches++ == BATCHES) {
        kvp_loop_stop(user->loop);
        return;
    }
    if (user->local) {
        disturb(user);
    }
    enum kvs_batch_op op = choose_op(user);
    user->of = atomic_load(&weights);
    (void)snprintf(user->space.tenant, sizeof user->space.tenant, "t%lu", draw(user, 3));
    (void)snprintf(user->space.layout, sizeof user->space.layout, "l%lu", draw(user, 2));
    for (uint32_t i = 0; i < ITEMS; i++) {
        uint64_t key = draw(user, KEYS);
        uint64_t len = len_of(key);
        user->keys[i] = key;
        user->slices[i] = (struct kvt_slice){user->region, (uint64_t)i * PLACE, len};
        user->items[i] = (struct kvs_item){
            .key = {(const uint8_t *)&user->keys[i], 8}, .slices = &user->slices[i], .nslices = 1};
        if (op == KVS_PUT) {
            test_value_fill(place(user, i), len, user->space.tenant, &user->keys[i], 8, user->of);
        } else {
            memset(place(user, i), TEST_PREFILL, len);
        }
    }
    user->batch = (struct kvs_batch){
        .op = op,
        .space = &user->space,
        .lineage = lineage_of(user->of),
        .hold = {op == KVS_EXISTS || op == KVS_GET ? 1 : 0, user->batches / 4},
        .force = draw(user, 2) == 0,
        .pin = draw(user, 4) == 0 ? KVS_PIN_SOFT : KVS_PIN_NONE,
        .deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, 20000),
        .items = user->items,
        .nitems = ITEMS,
        .done = on_done,
    };
    kvb_assert(kvs_client_submit(user->client, &user->batch) == KVB_OK);
    if (draw(user, 16) == 0) {
        kvs_client_discard(user->client, user->batch.hold);
    }
    if (draw(user, 10) == 0) { /* what it was to bring is not looked at */
        kvs_client_cancel(&user->batch, kvb_deadline_in_ms(&kvb_clock_real, 1000));
    }
}

static void on_next(struct kvb_event *event)
{
    next_batch(kvb_container_of(event, struct user, next));
}
static void on_pause_over(struct kvb_timer *timer)
{
    next_batch(kvb_container_of(timer, struct user, pause));
}

static void on_unregistered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    (void)region;
    struct user *user = arg;
    kvb_assert(status == KVB_OK);
    kvp_loop_stop(user->loop);
}

static void open_node(struct user *user)
{
    struct kvb_sched *sched = kvp_loop_sched(user->loop);
    if (user->local) {
        kvb_assert(kvt_loopback_create(user->regions, 64, &user->loopback) == KVB_OK);
        kvb_assert(kvs_node_create(sched, user->loopback, share, &(struct kvs_node_config){0},
                                   &user->node) == KVB_OK);
        return;
    }
    char address[64];
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", port);
    kvb_assert(kvt_net_kernel_create(kvp_loop_io(user->loop), 0, &user->net) == KVB_OK);
    const struct kvs_remote_config remote = {
        .sched = sched,
        .regions = user->regions,
        .ways = {{&kvs_by_tcp, &(struct kvt_tcp_peer_config){.common = {.net = user->net},
                                                             .address = address,
                                                             .in_flight_max = 16}}},
    };
    kvb_assert(kvs_remote_create(&remote, &user->node) == KVB_OK);
}

static void *use(void *arg)
{
    struct user *user = arg;
    struct kvb_sched *sched = kvp_loop_sched(user->loop);
    struct kvt_region_desc desc = {.number = 1, .tag = "kv_cache", .len = ITEMS * PLACE};
    const char *reason;
    kvb_event_init(&user->next, on_next);
    kvb_timer_init(&user->pause, on_pause_over);
    kvb_assert(kvt_regions_create(sched, &user->regions) == KVB_OK);
    open_node(user);
    test_memory_init(&user->memory, "user", ITEMS * PLACE);
    kvb_assert(kvt_region_create(user->regions, &desc, test_memory_dup(&user->memory),
                                 &user->region, &reason) == KVB_OK);
    kvb_assert(kvt_region_register(user->region) == KVB_OK);
    kvb_assert(kvs_client_create(sched, &user->client) == KVB_OK);
    kvb_assert(kvs_client_add_node(user->client, "node", user->node, SHARE) == KVB_OK);
    kvb_sched_post(sched, &user->next);
    kvp_loop_run(user->loop);

    kvt_region_unregister(user->region, kvb_deadline_in_ms(sched->clock, 1000),
                          kvb_deadline_in_ms(sched->clock, 2000), on_unregistered, user);
    kvp_loop_run(user->loop);
    kvt_region_destroy(user->region);
    kvs_client_destroy(user->client);
    if (user->local) {
        kvs_node_destroy(user->node);
        kvt_transport_destroy(user->loopback);
    } else {
        kvs_remote_destroy(user->node);
        kvt_net_kernel_destroy(user->net);
    }
    kvt_regions_destroy(user->regions);
    test_memory_cleanup(&user->memory);
    return NULL;
}

/* ---- the whole ---- */

static void listen_somewhere(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    kvb_assert(listener >= 0);
    kvb_assert(bind(listener, (const struct sockaddr *)&at, sizeof at) == 0);
    kvb_assert(listen(listener, 64) == 0);
    kvb_assert(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
    port = ntohs(at.sin_port);
}

static struct user users[CLIENTS + 1];

static void on_user_woken(void *ctx)
{
    struct user *user = ctx;
    if (user->local) {
        kvs_keeper_woken(&user->keeper);
    }
}

int main(void)
{
    static const struct kvp_loop_ops server_ops = {.woken = on_server_woken};
    static const struct kvp_loop_ops user_ops = {.woken = on_user_woken};
    const struct kvs_share_config config = {.bytes = SHARE, .shards = 4};
    pthread_t acceptor;
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, 2);
    kvb_assert(kvs_share_create(&kvb_random_real, &config, &share) == KVB_OK);
    listen_somewhere();
    for (int i = 0; i < SERVERS; i++) {
        struct server *server = &servers[i];
        kvb_mutex_init(&server->lock, "accepted");
        kvb_assert(kvp_loop_create(&server_ops, server, &server->loop) == KVB_OK);
        kvb_assert(kvt_net_kernel_create(kvp_loop_io(server->loop), 0, &server->net) == KVB_OK);
        start_service(server);
    }
    for (uint64_t i = 0; i <= CLIENTS; i++) {
        users[i] = (struct user){.number = i, .local = i == CLIENTS, .random = i + 1};
        kvb_assert(kvp_loop_create(&user_ops, &users[i], &users[i].loop) == KVB_OK);
    }
    struct user *local = &users[CLIENTS];
    kvs_keeper_start(&local->keeper, share, kvp_loop_sched(local->loop), kvp_loop_wake,
                     local->loop);
    for (int i = 0; i < SERVERS; i++) {
        kvb_assert(pthread_create(&servers[i].thread, NULL, serve, &servers[i]) == 0);
    }
    kvb_assert(pthread_create(&acceptor, NULL, accept_all, NULL) == 0);
    for (int i = 0; i <= CLIENTS; i++) {
        kvb_assert(pthread_create(&users[i].thread, NULL, use, &users[i]) == 0);
    }
    for (int i = 0; i <= CLIENTS; i++) {
        kvb_assert(pthread_join(users[i].thread, NULL) == 0);
    }
    atomic_store(&over, true);
    kvb_assert(shutdown(listener, SHUT_RDWR) == 0);
    kvb_assert(pthread_join(acceptor, NULL) == 0);
    for (int i = 0; i < SERVERS; i++) {
        kvp_loop_wake(servers[i].loop);
        kvb_assert(pthread_join(servers[i].thread, NULL) == 0);
        for (uint32_t w = 0; w < servers[i].nwaiting; w++) {
            (void)close(servers[i].waiting[w]);
        }
    }
    (void)close(listener);

    kvb_assert(kvs_share_validate(share) == NULL);
    struct kvs_share_stats stats;
    kvs_share_clear(share);
    while (kvs_share_upkeep(share, kvb_now_ns(&kvb_clock_real)) == 0) {
    }
    kvs_share_stats(share, &stats);
    kvb_assert(stats.core.used_bytes == 0);
    kvb_assert(stats.core.attempts == 0 && stats.core.tickets == 0);
    kvb_assert(kvs_share_validate(share) == NULL);
    kvs_keeper_stop(&local->keeper);
    for (int i = 0; i <= CLIENTS; i++) {
        kvp_loop_destroy(users[i].loop);
    }
    for (int i = 0; i < SERVERS; i++) {
        kvp_loop_destroy(servers[i].loop);
    }
    kvs_share_destroy(share);
    printf("puts %lu gets %lu misses %lu away %lu, services of the first thread %lu\n",
           atomic_load(&puts_ok), atomic_load(&gets_ok), atomic_load(&misses), atomic_load(&away),
           servers[0].lives);
    (void)fflush(stdout);
    kvb_assert(atomic_load(&gets_ok) > 500 && atomic_load(&puts_ok) > 500);
    return 0;
}
