/* SPDX-License-Identifier: Apache-2.0 */
/* Who gets an accepted connection, and what becomes of it, over services that only take notes. */
#include "listen.h"
#include "loop.h"
#include "node/server.h"

#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 3, CONNS = 2 * THREADS, LANES = 64, WAIT_MS = 120000 };

/* ---- services ---- */

struct kvs_service {
    char name[64];
    atomic_uint nfds;
    atomic_uint nconns; /* of rdma */
    bool has_device;
    int fds[LANES];
    atomic_bool draining;
    pthread_t thread;
    bool adopted;
};
static struct kvs_service services[THREADS + 1];
static atomic_uint nservices; /* created */
static atomic_uint ndestroyed;
static uint32_t fail_at; /* the number of the service that cannot be created; 0: none */
static atomic_bool refuse;

kvb_status_t kvs_service_create(const struct kvs_service_config *config,
                                struct kvs_service **service_p)
{
    uint32_t n = atomic_fetch_add(&nservices, 1) + 1;
    if (n == fail_at) {
        return KVB_ERR_NO_MEMORY;
    }
    cr_assert_not_null(config->common.net);
    services[n - 1].has_device = config->rdma != NULL;
    cr_assert_not_null(config->io);
    snprintf(services[n - 1].name, sizeof services[n - 1].name, "%s", config->name);
    *service_p = &services[n - 1];
    return KVB_OK;
}

void kvs_service_destroy(struct kvs_service *service)
{
    if (service == NULL) {
        return;
    }
    for (uint32_t i = 0; i < atomic_load(&service->nfds); i++) {
        close(service->fds[i]);
    }
    atomic_fetch_add(&ndestroyed, 1);
}

kvb_status_t kvs_service_adopt(struct kvs_service *service, int fd)
{
    if (atomic_load(&refuse)) {
        close(fd);
        return KVB_ERR_LIMIT;
    }
    cr_assert(!service->adopted || pthread_equal(service->thread, pthread_self()));
    service->adopted = true;
    service->thread = pthread_self();
    service->fds[atomic_load(&service->nfds)] = fd;
    atomic_fetch_add(&service->nfds, 1);
    return KVB_OK;
}

void kvs_service_drain(struct kvs_service *service)
{
    atomic_store(&service->draining, true);
}

uint32_t kvs_service_running(const struct kvs_service *service)
{
    (void)service;
    return 2;
}

void kvs_service_stats(const struct kvs_service *service, struct kvs_service_stats *stats_p)
{
    *stats_p = (struct kvs_service_stats){
        .tcp = {.lanes = atomic_load(&service->nfds), .connects = 5},
        .rdma = {.lanes = atomic_load(&service->nconns), .connects = 7},
    };
}

/* ---- rdma: connections are numbers ---- */

static struct kvt_rdma_listener_config rdma_config;
static atomic_int nrdma_listeners;
static atomic_uint ndropped;
static kvb_status_t rdma_status;
static bool rdma_must;
static struct kvt_rdma_device *const device = (struct kvt_rdma_device *)&rdma_config;

static struct kvt_rdma_conn *conn(uint32_t number)
{
    static char conns[CONNS];
    return (struct kvt_rdma_conn *)(void *)&conns[number];
}

kvb_status_t kvt_rdma_listener_create(const struct kvt_rdma_listener_config *config,
                                      struct kvt_rdma_listener **listener_p,
                                      char reason[KVT_RDMA_REASON_MAX])
{
    if (rdma_status != KVB_OK) {
        snprintf(reason, KVT_RDMA_REASON_MAX, "a test");
        return rdma_status;
    }
    rdma_config = *config;
    atomic_fetch_add(&nrdma_listeners, 1);
    *listener_p = (struct kvt_rdma_listener *)&rdma_config;
    return KVB_OK;
}

void kvt_rdma_listener_destroy(struct kvt_rdma_listener *listener)
{
    if (listener != NULL) {
        atomic_fetch_sub(&nrdma_listeners, 1);
    }
}

uint16_t kvt_rdma_listener_port(const struct kvt_rdma_listener *listener)
{
    cr_assert_not_null(listener);
    return 4711;
}

void kvt_rdma_conn_drop(struct kvt_rdma_conn *dropped)
{
    cr_assert_not_null(dropped);
    atomic_fetch_add(&ndropped, 1);
}

kvb_status_t kvs_service_adopt_rdma(struct kvs_service *service, struct kvt_rdma_conn *adopted)
{
    cr_assert_not_null(adopted);
    cr_assert(service->has_device);
    cr_assert(!service->adopted || pthread_equal(service->thread, pthread_self()));
    service->adopted = true;
    service->thread = pthread_self();
    atomic_fetch_add(&service->nconns, 1);
    return KVB_OK;
}

static atomic_int nnets;

kvb_status_t kvt_net_kernel_create(struct kvb_io *io, uint32_t buffer_bytes, struct kvt_net **net_p)
{
    (void)buffer_bytes;
    atomic_fetch_add(&nnets, 1);
    *net_p = (struct kvt_net *)io; /* never looked into */
    return KVB_OK;
}

void kvt_net_kernel_destroy(struct kvt_net *net)
{
    if (net != NULL) {
        atomic_fetch_sub(&nnets, 1);
    }
}

/* ---- the owner's loop, turned by the test ---- */

static struct kvp_loop *loop;
static struct kvp_server *server;
static uint16_t port;
static bool (*condition)(void);
static uint64_t give_up_ns;

static void on_beat(void *ctx, uint64_t now_ns, uint64_t lag_ns)
{
    (void)ctx;
    (void)lag_ns;
    if (condition == NULL || condition() || now_ns > give_up_ns) {
        kvp_loop_stop(loop);
    }
}

static const struct kvp_loop_ops loop_ops = {.beat = on_beat};

static void run_until(bool (*what)(void))
{
    condition = what;
    give_up_ns = kvb_deadline_in_ms(&kvb_clock_real, WAIT_MS);
    kvp_loop_run(loop);
    cr_assert(what(), "not in time");
}

static kvb_status_t create_with(struct kvt_rdma_device *rdma)
{
    int listener;
    cr_assert_eq(kvp_listen("127.0.0.1", 0, &listener, &port), KVB_OK);
    const struct kvp_server_config config = {.sched = kvp_loop_sched(loop),
                                             .io = kvp_loop_io(loop),
                                             .listener = listener,
                                             .rdma = rdma,
                                             .rdma_listen = "10.0.0.1:7",
                                             .rdma_must = rdma_must,
                                             .threads = THREADS,
                                             .name = "n"};
    kvb_status_t status = kvp_server_create(&config, &server);
    if (status != KVB_OK) {
        close(listener);
    }
    return status;
}

static kvb_status_t create(void)
{
    return create_with(NULL);
}

static int dial(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void begin(void)
{
    cr_assert_eq(kvp_loop_create(&loop_ops, NULL, &loop), KVB_OK);
}

static void end(void)
{
    kvp_server_destroy(server);
    kvp_loop_destroy(loop);
    cr_expect_eq(atomic_load(&nnets), 0);
    cr_expect_eq(atomic_load(&nrdma_listeners), 0);
}

TestSuite(server, .init = begin, .fini = end);

static bool all_adopted(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < THREADS; i++) {
        n += atomic_load(&services[i].nfds);
    }
    return n == 2 * THREADS;
}

static bool stats_came(void)
{
    struct kvs_service_stats stats;
    kvp_server_stats(server, &stats);
    return stats.tcp.lanes == 2 * THREADS;
}

Test(server, connections_go_to_the_threads_in_turn_and_stay_there)
{
    int fds[2 * THREADS];
    struct kvs_service_stats stats;
    cr_assert_eq(create(), KVB_OK);
    for (uint32_t i = 0; i < 2 * THREADS; i++) {
        fds[i] = dial();
    }
    run_until(all_adopted);
    for (uint32_t i = 0; i < THREADS; i++) {
        cr_expect_eq(atomic_load(&services[i].nfds), 2);
        cr_expect_str_eq(services[i].name, "n");
    }
    cr_expect_eq(kvp_server_running(server), 2 * THREADS);
    run_until(stats_came);
    kvp_server_stats(server, &stats);
    cr_expect_eq(stats.tcp.connects, 5 * THREADS);
    cr_expect_geq(kvp_server_beat_ns(server),
                  kvb_now_ns(&kvb_clock_real) - WAIT_MS * KVB_NS_PER_MS);
    for (uint32_t i = 0; i < 2 * THREADS; i++) {
        close(fds[i]);
    }
}

/* ---- rdma ---- */

static bool all_conns_adopted(void)
{
    struct kvs_service_stats stats;
    kvp_server_stats(server, &stats);
    return stats.rdma.lanes == CONNS;
}

Test(server, connections_of_rdma_go_to_the_threads_in_turn_too)
{
    struct kvs_service_stats stats;
    cr_assert_eq(create_with(device), KVB_OK);
    cr_expect_str_eq(rdma_config.address, "10.0.0.1:7");
    cr_expect_eq(rdma_config.device, device);
    cr_expect_eq(kvp_server_rdma_port(server), 4711);
    for (uint32_t i = 0; i < CONNS; i++) {
        rdma_config.accepted(rdma_config.ctx, conn(i));
    }
    run_until(all_conns_adopted);
    for (uint32_t i = 0; i < THREADS; i++) {
        cr_expect_eq(atomic_load(&services[i].nconns), CONNS / THREADS);
    }
    kvp_server_stats(server, &stats);
    cr_expect_eq(stats.rdma.connects, 7 * THREADS);
    cr_expect_eq(stats.tcp.lanes, 0);
    cr_expect_eq(atomic_load(&ndropped), 0);
}

Test(server, without_a_device_there_is_tcp_alone)
{
    cr_assert_eq(create(), KVB_OK);
    cr_expect_eq(atomic_load(&nrdma_listeners), 0);
    cr_expect_eq(kvp_server_rdma_port(server), 0);
    cr_expect(!services[0].has_device);
}

Test(server, an_address_of_rdma_that_cannot_be_listened_at_fails_it_whole)
{
    rdma_status = KVB_ERR_EXISTS;
    rdma_must = true;
    cr_expect_eq(create_with(device), KVB_ERR_EXISTS);
    cr_expect_eq(atomic_load(&ndestroyed), THREADS);
}

Test(server, where_tcp_will_do_an_address_of_rdma_that_fails_costs_rdma_alone)
{
    rdma_status = KVB_ERR_UNAVAILABLE;
    cr_assert_eq(create_with(device), KVB_OK);
    cr_expect_eq(kvp_server_rdma_port(server), 0);
    cr_expect_eq(atomic_load(&ndestroyed), 0);
}

Test(server, every_connection_of_rdma_is_adopted_or_dropped_also_at_the_end)
{
    cr_assert_eq(create_with(device), KVB_OK);
    for (uint32_t i = 0; i < CONNS; i++) {
        rdma_config.accepted(rdma_config.ctx, conn(i));
    }
    kvp_server_destroy(server);
    server = NULL;
    uint32_t adopted = 0;
    for (uint32_t i = 0; i < THREADS; i++) {
        adopted += atomic_load(&services[i].nconns);
    }
    cr_expect_eq(adopted + atomic_load(&ndropped), CONNS);
}

static int refused_fd;

static bool refused_is_closed(void)
{
    char byte;
    return recv(refused_fd, &byte, 1, MSG_DONTWAIT) == 0;
}

Test(server, a_connection_that_is_not_admitted_is_closed_and_the_next_is_taken)
{
    cr_assert_eq(create(), KVB_OK);
    atomic_store(&refuse, true);
    refused_fd = dial();
    run_until(refused_is_closed);
    close(refused_fd);
    atomic_store(&refuse, false);
    int fds[2 * THREADS];
    for (uint32_t i = 0; i < 2 * THREADS; i++) {
        fds[i] = dial();
    }
    run_until(all_adopted);
    for (uint32_t i = 0; i < 2 * THREADS; i++) {
        close(fds[i]);
    }
}

Test(server, draining_reaches_every_thread)
{
    cr_assert_eq(create(), KVB_OK);
    kvp_server_drain(server);
    kvp_server_drain(server);
    for (uint32_t i = 0; i < THREADS; i++) {
        cr_expect(atomic_load(&services[i].draining));
    }
}

Test(server, destroying_it_ends_every_thread_and_nobody_is_let_in)
{
    cr_assert_eq(create(), KVB_OK);
    int fd = dial(); /* accepted by nobody yet */
    kvp_server_destroy(server);
    server = NULL;
    cr_expect_eq(atomic_load(&ndestroyed), THREADS);
    cr_expect_eq(atomic_load(&nnets), 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int late = socket(AF_INET, SOCK_STREAM, 0);
    cr_expect_neq(connect(late, (struct sockaddr *)&to, sizeof to), 0);
    close(late);
    close(fd);
}

Test(server, whichever_thread_cannot_begin_nothing_stays)
{
    for (fail_at = 1; fail_at <= THREADS; fail_at++) {
        atomic_store(&nservices, 0);
        atomic_store(&ndestroyed, 0);
        cr_expect_eq(create(), KVB_ERR_NO_MEMORY);
        cr_expect_null(server);
        cr_expect_eq(atomic_load(&ndestroyed), fail_at - 1);
        cr_expect_eq(atomic_load(&nnets), 0);
    }
}
