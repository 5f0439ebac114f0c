/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of the kernel (transport/net.h), alone and under the tcp transport. */
#include "loop.h"
#include "tcp_rig.h"
#include "test_memory.h"
#include "test_values.h"

#include "transport/tcp.h"

#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define MIB(n) ((uint64_t)(n) << 20)

/* ---- a loop that is run until something is so, or a limit passed ---- */

struct world {
    struct kvp_loop *loop;
    struct kvb_sched *sched;
    struct kvb_io *io;
    bool (*so)(void *arg);
    void *arg;
    struct kvb_event look;
    struct kvb_timer limit;
    bool late;
};

static const struct kvp_loop_ops loop_ops;
static void world_open(struct world *world);
static void world_close(struct world *world);

/* The first loop of a process opens descriptors that stay. */
static size_t count_fds(void)
{
    struct world world;
    world_open(&world);
    world_close(&world);
    return test_count_fds();
}

static void on_look(struct kvb_event *event)
{
    struct world *world = kvb_container_of(event, struct world, look);
    if (world->so(world->arg) || world->late) {
        kvp_loop_stop(world->loop);
        return;
    }
    kvb_sched_post(world->sched, event);
}

static void on_limit(struct kvb_timer *timer)
{
    kvb_container_of(timer, struct world, limit)->late = true;
}

static void world_open(struct world *world)
{
    *world = (struct world){0};
    cr_assert_eq(kvp_loop_create(&loop_ops, world, &world->loop), KVB_OK);
    world->sched = kvp_loop_sched(world->loop);
    world->io = kvp_loop_io(world->loop);
    kvb_event_init(&world->look, on_look);
    kvb_timer_init(&world->limit, on_limit);
}

static void world_close(struct world *world)
{
    kvp_loop_destroy(world->loop);
}

/* True: it came to be so within 240 s. */
static bool run_until(struct world *world, bool (*so)(void *arg), void *arg)
{
    world->so = so;
    world->arg = arg;
    world->late = false;
    kvb_sched_post(world->sched, &world->look);
    kvb_sched_timer_set(world->sched, &world->limit,
                        kvb_deadline_in_ms(world->sched->clock, 240000));
    kvp_loop_run(world->loop);
    kvb_sched_timer_clear(world->sched, &world->limit);
    return !world->late;
}

static bool is_true(void *arg)
{
    const bool *flag = arg;
    return *flag;
}

/* A listening socket on a free port of loopback. */
static int listen_any(char address[64])
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    cr_assert_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    cr_assert_eq(listen(fd, 16), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    (void)snprintf(address, 64, "127.0.0.1:%d", ntohs(at.sin_port));
    return fd;
}

/* ---- sockets ---- */

struct end {
    struct kvt_net *net;
    struct kvt_socket *socket;
    bool ready;
    unsigned events;
};

static void on_ready(struct kvt_socket *socket, unsigned events)
{
    struct end *end = socket->ctx;
    end->ready = true;
    end->events = events;
    end->net->ops->want(socket, 0);
}

static kvb_status_t begin(struct world *world, struct end *end, struct kvt_net *net,
                          const char *address)
{
    *end = (struct end){.net = net};
    kvb_status_t status = net->ops->connect(net, address, &end->socket);
    if (status == KVB_OK) {
        end->socket->ready = on_ready;
        end->socket->ctx = end;
        net->ops->want(end->socket, KVB_IO_WRITE);
        cr_assert(!end->ready, "never inside a call");
        cr_assert(run_until(world, is_true, &end->ready));
    }
    return status;
}

static kvb_status_t put_byte(struct end *end)
{
    struct iovec byte = {(char[1]){'x'}, 1};
    size_t len;
    return end->net->ops->write(end->socket, &byte, 1, &len);
}

Test(net, connecting_ends_with_writable_and_the_first_write_tells_which)
{
    struct world world;
    struct kvt_net *net;
    struct end end;
    char address[64], none[64];
    size_t fds = count_fds();
    world_open(&world);
    cr_assert_eq(kvt_net_kernel_create(world.io, 256u << 10, &net), KVB_OK);
    int listener = listen_any(address);
    cr_assert_eq(begin(&world, &end, net, address), KVB_OK);
    cr_assert_eq(put_byte(&end), KVB_OK);
    net->ops->close(end.socket);

    (void)close(listen_any(none)); /* nobody listens there now */
    cr_assert_eq(begin(&world, &end, net, none), KVB_OK);
    cr_assert_eq(put_byte(&end), KVB_ERR_UNAVAILABLE);
    net->ops->close(end.socket);

    /* a name, all of whose addresses are tried; a host without /etc/hosts knows none */
    char by_name[64];
    struct addrinfo *found = NULL;
    bool known = getaddrinfo("localhost", NULL, NULL, &found) == 0;
    if (known) {
        freeaddrinfo(found);
    }
    (void)snprintf(by_name, sizeof by_name, "localhost%s", strrchr(address, ':'));
    cr_assert_eq(begin(&world, &end, net, by_name), KVB_OK);
    cr_assert_eq(put_byte(&end), known ? KVB_OK : KVB_ERR_UNAVAILABLE);
    net->ops->close(end.socket);
    cr_assert_eq(begin(&world, &end, net, "no..such:1"), KVB_OK);
    cr_assert_eq(put_byte(&end), KVB_ERR_UNAVAILABLE);
    net->ops->close(end.socket);

    /* given up while the name is looked up */
    cr_assert_eq(net->ops->connect(net, by_name, &end.socket), KVB_OK);
    net->ops->close(end.socket);

    (void)close(listener);
    kvt_net_kernel_destroy(net);
    world_close(&world);
    for (int i = 0; i < 2000 && test_count_fds() != fds; i++) {
        (void)usleep(1000); /* the lookup's thread closes its descriptor when it is through */
    }
    cr_assert_eq(test_count_fds(), fds);
}

/* ---- a name with two addresses or three, all of this machine ---- */

static struct {
    uint16_t ports[3]; /* 0: one to which nothing leads; the third: there is none */
    struct sockaddr_in at[3];
    struct addrinfo found[3];
    uint32_t refusals; /* so many connections are refused when they have come about */
} twice;

/* Known to this program alone. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **found_p)
{
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (host == NULL || strcmp(host, "twice") != 0) {
        if (real == NULL) {
            *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
        }
        return real(host, port, hints, found_p);
    }
    if (hints != NULL && (hints->ai_flags & AI_NUMERICHOST) != 0) {
        return EAI_NONAME;
    }
    for (int i = 0; i < 3; i++) {
        bool leads = twice.ports[i] != 0;
        twice.at[i] =
            (struct sockaddr_in){.sin_family = AF_INET,
                                 .sin_port = htons(twice.ports[i]),
                                 .sin_addr = {htonl(leads ? INADDR_LOOPBACK : INADDR_BROADCAST)}};
        twice.found[i] = (struct addrinfo){.ai_family = AF_INET,
                                           .ai_socktype = SOCK_STREAM,
                                           .ai_addr = (struct sockaddr *)&twice.at[i],
                                           .ai_addrlen = sizeof twice.at[i],
                                           .ai_next = NULL};
        if (i > 0 && (i == 1 || leads)) {
            twice.found[i - 1].ai_next = &twice.found[i];
        }
    }
    *found_p = &twice.found[0];
    return 0;
}

void freeaddrinfo(struct addrinfo *found)
{
    static void (*real)(struct addrinfo *);
    if (found == &twice.found[0]) {
        return;
    }
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "freeaddrinfo");
    }
    real(found);
}

/* On loopback the kernel refuses at once, or never. */
int getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    static int (*real)(int, int, int, void *, socklen_t *);
    if (level == SOL_SOCKET && name == SO_ERROR && twice.refusals > 0) {
        twice.refusals--;
        *(int *)value = ECONNREFUSED;
        return 0;
    }
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "getsockopt");
    }
    return real(fd, level, name, value, len);
}

static uint16_t port_of(const char *address)
{
    return (uint16_t)atoi(strrchr(address, ':') + 1);
}

/* A port that answers nothing: those who wait to be accepted there are as many as it takes. */
static int listen_to_nobody(uint16_t *port_p, int waiting[4])
{
    char address[64];
    int fd = listen_any(address);
    *port_p = port_of(address);
    cr_assert_eq(listen(fd, 0), 0);
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(*port_p), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    for (int i = 0; i < 4; i++) {
        waiting[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(waiting[i], (struct sockaddr *)&at, sizeof at);
    }
    return fd;
}

Test(net, the_next_address_is_tried_when_one_refuses_and_when_one_says_nothing)
{
    enum how {
        REFUSES,
        SAYS_NOTHING,
        BOTH_REFUSE,
        BOTH_SAY_NOTHING, /* and the third takes it */
        SAYS_NOTHING_AND_NOTHING_LEADS_THERE,
        HOWS
    };
    struct world world;
    struct kvt_net *net;
    struct end end;
    char address[64], first[64];
    size_t fds = count_fds();
    for (int how = 0; how < HOWS; how++) {
        int waiting[4] = {-1, -1, -1, -1};
        world_open(&world);
        cr_assert_eq(kvt_net_kernel_create(world.io, 0, &net), KVB_OK);
        int listener = listen_any(address), other;
        twice.ports[1] = how == SAYS_NOTHING_AND_NOTHING_LEADS_THERE ? 0 : port_of(address);
        twice.ports[2] = 0;
        if (how == SAYS_NOTHING || how >= BOTH_SAY_NOTHING) {
            other = listen_to_nobody(&twice.ports[0], waiting);
            if (how == BOTH_SAY_NOTHING) {
                twice.ports[2] = twice.ports[1];
                twice.ports[1] = twice.ports[0];
            }
        } else {
            other = listen_any(first);
            twice.ports[0] = port_of(first);
        }
        twice.refusals = how == REFUSES ? 1 : how == BOTH_REFUSE ? 2 : 0;
        cr_assert_eq(begin(&world, &end, net, "twice:1"), KVB_OK);
        bool fails = how == BOTH_REFUSE || how == SAYS_NOTHING_AND_NOTHING_LEADS_THERE;
        cr_assert_eq(put_byte(&end), fails ? KVB_ERR_UNAVAILABLE : KVB_OK, "%d", how);
        cr_assert_eq(twice.refusals, 0);
        net->ops->close(end.socket);
        /* closed while it waits for the first */
        cr_assert_eq(net->ops->connect(net, "twice:1", &end.socket), KVB_OK);
        net->ops->close(end.socket);
        (void)close(listener);
        (void)close(other);
        for (int i = 0; i < 4 && waiting[i] >= 0; i++) {
            (void)close(waiting[i]);
        }
        kvt_net_kernel_destroy(net);
        world_close(&world);
    }
    for (int i = 0; i < 2000 && test_count_fds() != fds; i++) {
        (void)usleep(1000); /* the lookup's thread closes its descriptor when it is through */
    }
    cr_assert_eq(test_count_fds(), fds);
}

Test(net, addresses_have_one_form)
{
    static const char *const good[] = {"127.0.0.1:1", "[::1]:65535", "a.b-c:80", "[fe80::1%lo]:7"};
    static const char *const bad[] = {"",       ":",    "a",       "a:",    ":1",      "a:0",
                                      "a:b",    "a:1x", "a:65536", "::1:1", "[::1]",   "[::1]1",
                                      "[::1:1", "[]:1", "a:-1",    "a: 1",  "a:000001"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_assert(kvt_address_valid(good[i]), "%s", good[i]);
    }
    struct world world;
    struct kvt_net *net;
    struct kvt_socket *none = NULL;
    world_open(&world);
    cr_assert_eq(kvt_net_kernel_create(world.io, 0, &net), KVB_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert(!kvt_address_valid(bad[i]), "%s", bad[i]);
        cr_assert_eq(net->ops->connect(net, bad[i], &none), KVB_ERR_INVALID, "%s", bad[i]);
    }
    cr_assert_null(none);
    kvt_net_kernel_destroy(net);
    world_close(&world);
}

/* ---- few local ports (B39) ---- */

static bool write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        return false;
    }
    bool written = fputs(text, file) >= 0;
    return fclose(file) == 0 && written;
}

/* A network of this process's own, with so few ports. */
static bool own_network(const char *ports)
{
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        return false;
    }
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = ioctl(fd, SIOCSIFFLAGS, &loopback) == 0;
    (void)close(fd);
    return up && write_file("/proc/sys/net/ipv4/ip_local_port_range", ports);
}

Test(net, a_shortage_of_local_ports_is_reported_as_that)
{
    if (!own_network("40000 40003")) {
        cr_skip_test("no network namespaces here");
    }
    struct world world;
    struct kvt_net *net;
    struct end ends[8];
    kvb_status_t status = KVB_OK;
    world_open(&world);
    cr_assert_eq(kvt_net_kernel_create(world.io, 0, &net), KVB_OK);
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(50000), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    cr_assert_eq(listen(listener, 16), 0);
    int n = 0;
    for (; n < 8 && status == KVB_OK; n++) {
        status = begin(&world, &ends[n], net, "127.0.0.1:50000");
        if (status == KVB_OK) {
            cr_assert_eq(put_byte(&ends[n]), KVB_OK);
        }
    }
    cr_assert_eq(n, 5, "one more than there are ports");
    cr_assert_eq(status, KVB_ERR_LIMIT);
    for (int i = 0; i < n - 1; i++) {
        net->ops->close(ends[i].socket);
    }
    (void)close(listener);
    kvt_net_kernel_destroy(net);
    world_close(&world);
}

/* ---- the transport over them ---- */

struct cluster {
    struct world world;
    struct kvt_net *net;
    struct rig_node node;
    struct kvt_regions *regions;
    struct kvt_transport *peer;
    struct test_memory memory, engine;
    struct kvt_region *region;
    struct kvb_io_watch listener;
    char address[64];
    bool up, down;
};

static void on_accept(struct kvb_io_watch *watch, unsigned events)
{
    (void)events;
    struct cluster *cluster = kvb_container_of(watch, struct cluster, listener);
    int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        cr_assert_eq(kvt_tcp_server_adopt(cluster->node.server, fd), KVB_OK);
    }
}

static void on_up(void *ctx, const struct kvt_hello *hello)
{
    struct cluster *cluster = ctx;
    cr_assert_str_eq(hello->name, "node");
    cr_assert_eq(hello->incarnation, 77);
    cluster->up = true;
}

static void on_down(void *ctx, kvb_status_t why)
{
    (void)why;
    struct cluster *cluster = ctx;
    cluster->down = true;
}

static void cluster_open(struct cluster *cluster)
{
    static const struct kvt_peer_ops ops = {.up = on_up, .down = on_down};
    *cluster = (struct cluster){0};
    world_open(&cluster->world);
    struct kvb_sched *sched = cluster->world.sched;
    cr_assert_eq(kvt_net_kernel_create(cluster->world.io, 512u << 10, &cluster->net), KVB_OK);
    struct kvt_peer_common common = {.net = cluster->net,
                                     .secret = "secret",
                                     .secret_len = 6,
                                     .hello_ms = 120000,
                                     .silence_ms = 120000,
                                     .stall_ms = 120000};
    test_memory_init(&cluster->memory, "node", MIB(64));
    test_memory_init(&cluster->engine, "engine", MIB(64));
    struct kvt_tcp_server_config server = {
        .common = common, .sched = sched, .name = "node", .incarnation = 77};
    cr_assert_eq(rig_node_init(&cluster->node, cluster->memory.base, MIB(64), server), KVB_OK);
    cluster->listener = (struct kvb_io_watch){.fd = listen_any(cluster->address), .fn = on_accept};
    cr_assert_eq(kvb_io_watch(cluster->world.io, &cluster->listener, KVB_IO_READ), KVB_OK);

    cr_assert_eq(kvt_regions_create(sched, &cluster->regions), KVB_OK);
    struct kvt_region_desc desc = {.owner = 1, .number = 1, .tag = "kv_cache", .len = MIB(64)};
    const char *reason;
    cr_assert_eq(kvt_region_create(cluster->regions, &desc, test_memory_dup(&cluster->engine),
                                   &cluster->region, &reason),
                 KVB_OK);
    cr_assert_eq(kvt_region_register(cluster->region), KVB_OK);
    struct kvt_tcp_peer_config peer = {
        .common = common, .address = cluster->address, .ops = &ops, .ctx = cluster};
    cr_assert_eq(kvt_tcp_peer_create(cluster->regions, &peer, &cluster->peer), KVB_OK);
}

static void on_unregistered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    (void)region;
    cr_assert_eq(status, KVB_OK);
    *(bool *)arg = true;
}

static void cluster_close(struct cluster *cluster)
{
    bool unregistered = false;
    const struct kvb_clock *clock = cluster->world.sched->clock;
    kvt_region_unregister(cluster->region, kvb_deadline_in_ms(clock, 120000),
                          kvb_deadline_in_ms(clock, 240000), on_unregistered, &unregistered);
    cr_assert(run_until(&cluster->world, is_true, &unregistered));
    kvt_region_destroy(cluster->region);
    kvt_transport_destroy(cluster->peer);
    kvt_regions_destroy(cluster->regions);
    kvb_io_unwatch(cluster->world.io, &cluster->listener);
    (void)close(cluster->listener.fd);
    rig_node_cleanup(&cluster->node);
    kvt_net_kernel_destroy(cluster->net);
    world_close(&cluster->world);
    test_memory_cleanup(&cluster->engine);
    test_memory_cleanup(&cluster->memory);
}

struct job {
    struct kvt_transfer transfer;
    struct kvt_slice slice;
    struct kvt_extent extent;
    uint8_t answer[16];
    bool done;
    kvb_status_t status;
};

static void on_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    struct job *job = kvb_container_of(transfer, struct job, transfer);
    cr_assert(!job->done);
    job->done = true;
    job->status = status;
}

static void job_start(struct cluster *cluster, struct job *job, enum kvt_direction direction,
                      uint64_t at, uint64_t len)
{
    *job = (struct job){.slice = {cluster->region, at, len}, .extent = {at, len}};
    job->transfer = (struct kvt_transfer){
        .direction = direction,
        .slices = &job->slice,
        .nslices = 1,
        .type = direction == KVT_TO_SHARE ? RIG_PUT : RIG_GET,
        .ask = {(const uint8_t *)&job->extent, sizeof job->extent},
        .answer = job->answer,
        .answer_cap = sizeof job->answer,
        .deadline_ns = KVB_NEVER,
        .done = on_done,
    };
    cr_assert_eq(kvt_transfer_start(cluster->peer, &job->transfer), KVB_OK);
}

Test(net, puts_and_gets_of_every_size_over_real_sockets)
{
    static const uint64_t sizes[] = {1, 4096, 16384, 16385, 65536, 262145, MIB(1), MIB(24) + 7};
    struct cluster cluster;
    size_t fds = count_fds();
    cluster_open(&cluster);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t len = sizes[i];
        struct job job;
        test_value_fill(cluster.engine.base, len, "t", &i, sizeof i, 1);
        job_start(&cluster, &job, KVT_TO_SHARE, 0, len);
        cr_assert(run_until(&cluster.world, is_true, &job.done));
        cr_assert_eq(job.status, KVB_OK);
        cr_assert_eq(test_value_check(cluster.memory.base, len, "t", &i, sizeof i, 1), len);
        cr_assert_eq(job.transfer.checksum, XXH3_64bits(cluster.memory.base, len));
        memset(cluster.engine.base, 0, len);
        job_start(&cluster, &job, KVT_FROM_SHARE, 0, len);
        cr_assert(run_until(&cluster.world, is_true, &job.done));
        cr_assert_eq(job.status, KVB_OK);
        cr_assert_eq(job.transfer.answer_len, 3);
        cr_assert_eq(test_value_check(cluster.engine.base, len, "t", &i, sizeof i, 1), len);
    }
    cr_assert(cluster.up && !cluster.down);
    cluster_close(&cluster);
    cr_assert_eq(test_count_fds(), fds);
}

struct many {
    struct job jobs[64];
};

static bool all_done(void *arg)
{
    const struct many *many = arg;
    for (size_t i = 0; i < sizeof many->jobs / sizeof many->jobs[0]; i++) {
        if (!many->jobs[i].done) {
            return false;
        }
    }
    return true;
}

Test(net, many_at_once_use_all_lanes_and_do_not_mix)
{
    struct cluster cluster;
    cluster_open(&cluster);
    struct many *many = calloc(1, sizeof *many);
    for (uint64_t round = 0; round < 4; round++) {
        for (uint64_t i = 0; i < 64; i++) {
            if (round % 2 == 0) {
                test_value_fill(cluster.engine.base + i * MIB(1), MIB(1) - i, "t", &i, sizeof i,
                                round / 2);
            } else {
                memset(cluster.engine.base + i * MIB(1), 0, MIB(1));
            }
            job_start(&cluster, &many->jobs[i], round % 2 == 0 ? KVT_TO_SHARE : KVT_FROM_SHARE,
                      i * MIB(1), MIB(1) - i);
        }
        cr_assert(run_until(&cluster.world, all_done, many));
        for (uint64_t i = 0; i < 64; i++) {
            cr_assert_eq(many->jobs[i].status, KVB_OK);
            const uint8_t *at = (round % 2 == 0 ? cluster.memory.base : cluster.engine.base);
            cr_assert_eq(
                test_value_check(at + i * MIB(1), MIB(1) - i, "t", &i, sizeof i, round / 2),
                MIB(1) - i);
        }
    }
    struct kvt_peer_stats stats;
    kvt_tcp_peer_stats(cluster.peer, &stats);
    cr_assert(stats.up);
    cr_assert_eq(stats.lanes, 4);
    cr_assert_eq(stats.transfers, 256);
    cr_assert_eq(stats.transfers_failed, 0);
    free(many);
    cluster_close(&cluster);
}
