/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_device.h"
#include "fake_transport.h"
#include "link/link.h"
#include "metrics.h"
#include "sim_sched.h"
#include "test_memory.h"

#include "base/frame.h"
#include "base/log.h"
#include "store/client.h"

#include <criterion/criterion.h>
#include <uv.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

/*
 * The link under a fleet, a store and a transport that do only what a test says. Real sockets, a
 * clock that only the test moves.
 */

/* ---- the fleet ---- */

struct kvp_instance {
    struct kvs_space space;
    struct kvp_shape shape;
};

static struct {
    struct kvp_instance instance;
    struct kvp_stay stay;
    struct kvp_rank *ranks[8];
    uint32_t nranks;
    uint32_t gone;
    uint32_t leaves;
    uint32_t open_calls_when_gone;
    uint32_t reports;
    uint32_t lost_tags;
    const char *refuse;
    bool call_in_hello;
} fleet;

struct answer {
    uint32_t times;
    kvb_status_t status;
};

static uint32_t open_calls;

static void on_called(void *arg, kvb_status_t status, const union kvp_rank_reply *reply)
{
    (void)reply;
    struct answer *answer = arg;
    answer->times++;
    answer->status = status;
    open_calls--;
}

static void on_done(void *arg, kvb_status_t status)
{
    struct answer *answer = arg;
    answer->times++;
    answer->status = status;
    open_calls--;
}

static struct answer call_in_hello;

kvb_status_t kvp_fleet_hello(struct kvp_fleet *f, const struct kvb_link_hello *hello,
                             struct kvp_rank *rank, char *reason, size_t reason_cap,
                             struct kvp_instance **instance_p)
{
    (void)f;
    if (fleet.refuse != NULL) {
        (void)snprintf(reason, reason_cap, "%s", fleet.refuse);
        return KVB_ERR_REFUSED;
    }
    rank->stay = &fleet.stay;
    fleet.ranks[fleet.nranks++] = rank;
    (void)snprintf(fleet.instance.space.tenant, sizeof fleet.instance.space.tenant, "%s",
                   hello->tenant);
    kvb_assert(kvp_shape_make(hello, &fleet.instance.shape, reason, reason_cap) == KVB_OK);
    *instance_p = &fleet.instance;
    if (fleet.call_in_hello) {
        open_calls++;
        rank->ops->call(rank->impl, KVB_LINK_STATE, NULL, KVB_NEVER, on_called, &call_in_hello);
    }
    return KVB_OK;
}

void kvp_instance_rank_gone(struct kvp_instance *instance, struct kvp_rank *rank,
                            const char *reason)
{
    (void)instance;
    (void)reason;
    fleet.gone++;
    fleet.open_calls_when_gone += open_calls;
    for (uint32_t i = 0; i < fleet.nranks; i++) {
        if (fleet.ranks[i] == rank) {
            fleet.ranks[i] = NULL;
        }
    }
}

void kvp_instance_memory_lost(struct kvp_instance *instance, const struct kvp_rank *rank,
                              const char (*tags)[KVB_NAME_MAX], uint32_t ntags)
{
    (void)instance;
    (void)rank;
    fleet.lost_tags += ntags;
    cr_assert_str_eq(tags[0], "kv_cache");
}

bool kvp_instance_leave(struct kvp_instance *instance, void (*done)(void *arg), void *arg)
{
    (void)instance;
    fleet.leaves++;
    done(arg);
    return true;
}

void kvp_instance_report(struct kvp_instance *instance, struct kvp_rank *rank,
                         const struct kvb_load *load)
{
    (void)instance;
    (void)rank;
    (void)load;
    fleet.reports++;
}

const struct kvs_space *kvp_instance_space(const struct kvp_instance *instance)
{
    return &instance->space;
}

uint64_t kvp_instance_hold_id(const struct kvp_instance *instance)
{
    (void)instance;
    return 7;
}

const struct kvp_shape *kvp_instance_shape(const struct kvp_instance *instance)
{
    return &instance->shape;
}

/* ---- the store ---- */

static struct {
    struct kvb_list batches;
    uint32_t submitted;
    uint32_t canceled;
    uint32_t discarded;
    uint64_t discarded_instance;
    kvb_status_t refuse; /* not OK: what the next submits answer */
    struct kvb_lineage lineage;
} store;

kvb_status_t kvs_client_submit(struct kvs_client *client, struct kvs_batch *batch)
{
    (void)client;
    if (store.refuse != KVB_OK) {
        return store.refuse;
    }
    store.submitted++;
    store.lineage = batch->lineage;
    kvb_list_init(&batch->impl.link);
    kvb_list_push_back(&store.batches, &batch->impl.link);
    return KVB_OK;
}

void kvs_client_cancel(struct kvs_batch *batch, uint64_t stop_deadline_ns)
{
    (void)batch;
    (void)stop_deadline_ns;
    store.canceled++;
}

void kvs_client_discard(struct kvs_client *client, struct kvs_hold hold)
{
    (void)client;
    (void)hold;
    store.discarded++;
}

void kvs_client_discard_instance(struct kvs_client *client, uint64_t instance)
{
    (void)client;
    store.discarded_instance = instance;
}

static struct kvs_batch *oldest_batch(void)
{
    struct kvb_list *link = kvb_list_first(&store.batches);
    return link == NULL ? NULL : kvb_container_of(link, struct kvs_batch, impl.link);
}

static void end_batch(kvb_status_t status)
{
    struct kvs_batch *batch = oldest_batch();
    cr_assert_not_null(batch);
    kvb_list_remove(&batch->impl.link);
    for (uint32_t i = 0; i < batch->nitems; i++) {
        batch->items[i].status = status;
    }
    batch->done(batch);
}

/* ---- the process ---- */

static struct sim_sched sim;
static uv_loop_t loop;
static struct kvt_regions *regions;
static struct fake_transport *transport;
static struct kvp_link *link_;
static struct kvb_metrics *metrics;
static char dir[64];
static char path[96];
static char store_object; /* its address stands for the store */

/* Of a rank's memory that this process does not reach; one at a time. */
static struct fake_device device;
static struct {
    uint32_t opened, closed;
    kvb_status_t refuse;
    void (*done)(void *arg);
    void *arg;
} devices;

static kvb_status_t open_device(void *ctx, const char *rank, uint64_t owner,
                                struct kvt_device **device_p)
{
    (void)ctx;
    cr_assert_str_eq(rank, "a/0");
    cr_assert_eq(owner, 7 * KVB_RANKS_MAX);
    if (devices.refuse != KVB_OK) {
        return devices.refuse;
    }
    cr_assert_eq(devices.opened, devices.closed);
    devices.opened++;
    fake_device_init(&device, regions, &sim.sched, 8192, 8192);
    *device_p = &device.base;
    return KVB_OK;
}

static void on_pool_gone(void *arg, struct kvt_region *pool, kvb_status_t status)
{
    (void)arg;
    cr_assert_eq(status, KVB_OK);
    kvt_region_destroy(pool);
    fake_device_free(&device);
    devices.closed++;
    devices.done(devices.arg);
}

static void close_device(struct kvt_device *its, void (*done)(void *arg), void *arg)
{
    cr_assert(its == &device.base && kvb_list_empty(&device.jobs) && device.imported == 0);
    devices.done = done;
    devices.arg = arg;
    kvt_region_unregister(its->pool, sim.now_ns, sim.now_ns + 1, on_pool_gone, NULL);
}

static const struct kvp_link_devices device_ops = {.open = open_device, .close = close_device};

static void turn(void)
{
    for (int i = 0; i < 6; i++) {
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        sim_settle(&sim);
    }
}

static struct kvp_link_config config_now(void)
{
    return (struct kvp_link_config){
        .sched = &sim.sched,
        .loop = &loop,
        .store = (struct kvs_client *)(void *)&store_object,
        .regions = regions,
        .path = path,
        .sessions_max = 16,
        .queue_max = 4,
        .running_max = 2,
        .transfer_ms = 60000,
        .abort_ms = 200,
        .metrics = metrics,
        .devices = &device_ops,
    };
}

static void setup(void)
{
    metrics = kvb_metrics_create(kvp_metric_table, KVP_METRIC_COUNT);
    memset(&fleet, 0, sizeof fleet);
    memset(&store, 0, sizeof store);
    memset(&devices, 0, sizeof devices);
    kvb_list_init(&store.batches);
    kvb_log_threshold = KVB_LOG_ERROR;
    sim_init(&sim, sim_seed(1));
    cr_assert_eq(uv_loop_init(&loop), 0);
    cr_assert_eq(kvt_regions_create(&sim.sched, &regions), KVB_OK);
    transport = fake_transport_create(regions, 64);
    (void)snprintf(dir, sizeof dir, "/tmp/kvp-test-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/engine.sock", dir);
    fleet.stay = (struct kvp_stay){.lineage.id = {1, 1}, .token.id = {2, 2}, .open = true};
    struct kvp_link_config config = config_now();
    cr_assert_eq(kvp_link_create(&config, &link_), KVB_OK);
}

static void on_stopped(void *ctx)
{
    *(bool *)ctx = true;
}

static void stop_link(void)
{
    bool stopped = false;
    kvp_link_stop(link_, on_stopped, &stopped);
    turn();
    while (oldest_batch() != NULL) {
        end_batch(KVB_ERR_CANCELED);
    }
    sim_advance(&sim, 1000);
    turn();
    cr_assert(stopped, "every session and rank goes");
    kvp_link_destroy(link_);
}

static void teardown(void)
{
    stop_link();
    cr_assert_eq(devices.opened, devices.closed);
    kvt_transport_destroy(&transport->base);
    kvt_regions_destroy(regions);
    kvb_metrics_destroy(metrics);
    cr_assert_eq(uv_run(&loop, UV_RUN_NOWAIT), 0);
    cr_assert_eq(uv_loop_close(&loop), 0);
    sim_cleanup(&sim);
    char lock[128];
    (void)snprintf(lock, sizeof lock, "%s.lock", path);
    (void)unlink(lock);
    cr_assert_eq(rmdir(dir), 0, "the socket is gone");
    cr_assert_eq(fleet.open_calls_when_gone, 0, "a rank's calls complete before it is gone");
    cr_assert_eq(open_calls, 0, "every call completes");
}

TestSuite(link, .init = setup, .fini = teardown);

/* ---- the engine ---- */

struct engine {
    int fd;
    uint64_t seq;
};

static struct engine engine_connect(void)
{
    struct engine engine = {.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    cr_assert_eq(connect(engine.fd, (struct sockaddr *)&address, sizeof address), 0);
    turn();
    return engine;
}

static void send_bytes(const struct engine *engine, const void *data, size_t len, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {(void *)(uintptr_t)data, len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(cmsg), &fd, sizeof fd);
    }
    cr_assert_eq(sendmsg(engine->fd, &msg, MSG_NOSIGNAL), (ssize_t)len);
}

static void send_frame(struct engine *engine, uint16_t type, uint16_t flags, uint64_t seq,
                       struct kvb_writer *writer, int fd)
{
    struct kvb_frame frame = {
        .type = type, .flags = flags, .seq = seq, .len = (uint32_t)writer->len};
    uint8_t *bytes = malloc(KVB_FRAME_HEADER_LEN + writer->len);
    kvb_frame_pack(&frame, bytes);
    if (writer->len > 0) {
        memcpy(bytes + KVB_FRAME_HEADER_LEN, writer->data, writer->len);
    }
    send_bytes(engine, bytes, KVB_FRAME_HEADER_LEN + writer->len, fd);
    free(bytes);
    kvb_writer_cleanup(writer);
}

/* A frame from the daemon, if one is there; payload at most cap bytes. */
static bool receive(const struct engine *engine, struct kvb_frame *frame, uint8_t *payload,
                    size_t cap)
{
    turn();
    uint8_t header[KVB_FRAME_HEADER_LEN];
    ssize_t n = recv(engine->fd, header, sizeof header, MSG_DONTWAIT);
    if (n != (ssize_t)sizeof header) {
        return false;
    }
    cr_assert_eq(kvb_frame_unpack(header, frame), KVB_OK);
    cr_assert_leq(frame->len, cap);
    if (frame->len > 0) {
        cr_assert_eq(recv(engine->fd, payload, frame->len, MSG_DONTWAIT), (ssize_t)frame->len);
    }
    return true;
}

static bool closed(const struct engine *engine)
{
    turn();
    char byte;
    for (;;) {
        ssize_t n = recv(engine->fd, &byte, 1, MSG_DONTWAIT);
        if (n <= 0) {
            return n == 0 || errno == ECONNRESET;
        }
    }
}

static struct kvb_link_hello hello_of(uint32_t rank, uint32_t world_size)
{
    struct kvb_link_hello hello = {
        .version = KVB_LINK_VERSION,
        .roles = KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER,
        .rank = rank,
        .world_size = world_size,
        .local_world_size = world_size,
        .block_tokens = 16,
        .instance = "a",
        .tenant = "default",
        .layout = "test",
        .state = {.ntags = 1, .tags = {{.tag = "kv_cache", .residency = KVB_RESIDENT}}},
    };
    return hello;
}

static void send_hello(struct engine *engine, const struct kvb_link_hello *hello)
{
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1u << 16);
    kvb_link_hello_pack(&writer, hello);
    cr_assert_eq(writer.status, KVB_OK);
    send_frame(engine, KVB_LINK_HELLO, 0, ++engine->seq, &writer, -1);
}

static struct engine engine_attach_as(const struct kvb_link_hello *hello)
{
    struct engine engine = engine_connect();
    send_hello(&engine, hello);
    struct kvb_frame frame;
    uint8_t payload[512];
    cr_assert(receive(&engine, &frame, payload, sizeof payload));
    struct kvb_link_hello_reply reply;
    cr_assert_eq(kvb_link_hello_reply_unpack((struct kvb_span){payload, frame.len}, &reply),
                 KVB_OK);
    cr_assert_eq(reply.status, KVB_OK, "%s", reply.reason);
    return engine;
}

static struct engine engine_attach(void)
{
    struct kvb_link_hello hello = hello_of(0, 1);
    return engine_attach_as(&hello);
}

static struct kvp_rank *rank_now(void)
{
    cr_assert_gt(fleet.nranks, 0);
    return fleet.ranks[fleet.nranks - 1];
}

/* Answers with a status. */
static kvb_status_t next_status(const struct engine *engine, uint16_t type)
{
    struct kvb_frame frame;
    uint8_t payload[64];
    cr_assert(receive(engine, &frame, payload, sizeof payload), "an answer");
    cr_assert_eq(frame.type, type);
    cr_assert_eq(frame.flags, KVB_FRAME_REPLY);
    kvb_status_t status;
    cr_assert_eq(kvb_link_status_unpack((struct kvb_span){payload, frame.len}, &status), KVB_OK);
    return status;
}

static uint8_t memory_kind = KVB_MEMORY_HOST; /* of what is handed over */

static void send_region(struct engine *engine, uint32_t number, uint64_t generation,
                        const struct test_memory *memory, const char *tag, uint8_t flags)
{
    struct kvb_link_region msg = {.region = number,
                                  .kind = memory_kind,
                                  .flags = flags,
                                  .len = memory->len,
                                  .generation = generation};
    (void)snprintf(msg.tag, sizeof msg.tag, "%s", tag);
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1024);
    kvb_link_region_pack(&writer, &msg);
    send_frame(engine, KVB_LINK_REGISTER_REGION, 0, ++engine->seq, &writer, memory->fd);
}

static kvb_status_t hand_over(struct engine *engine, uint32_t number, uint64_t generation,
                              const struct test_memory *memory, const char *tag, uint8_t flags)
{
    send_region(engine, number, generation, memory, tag, flags);
    return next_status(engine, KVB_LINK_REGISTER_REGION);
}

/* A put or get of n entries of one slice each, of region 1. */
static uint64_t send_batch(struct engine *engine, uint16_t type, uint32_t n, struct kvb_token token)
{
    struct kvb_link_entry entries[16] = {{.group = 0}};
    struct kvb_slice slices[16];
    cr_assert_leq(n, 16);
    for (uint32_t i = 0; i < n; i++) {
        slices[i] = (struct kvb_slice){.region = 1, .offset = 64 * i, .len = 64};
        entries[i] = (struct kvb_link_entry){.key = {(const uint8_t *)"0123456789abcdef" + i, 1},
                                             .token = token,
                                             .nslices = 1,
                                             .slices = &slices[i]};
    }
    struct kvb_link_batch batch = {
        .request = type == KVB_LINK_GET ? 9 : 0, .token = token, .nentries = n, .entries = entries};
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1u << 16);
    kvb_link_batch_pack(&writer, &batch);
    cr_assert_eq(writer.status, KVB_OK);
    send_frame(engine, type, 0, ++engine->seq, &writer, -1);
    turn();
    return engine->seq;
}

static const struct kvb_token good_token = {{2, 2}};
static const struct kvb_token old_token = {{3, 3}};

/* The answer of a batch; statuses: room for 16. False: none is there. */
static bool next_batch_answer(const struct engine *engine, uint64_t *seq_p, kvb_status_t *statuses)
{
    struct kvb_frame frame;
    uint8_t payload[256];
    if (!receive(engine, &frame, payload, sizeof payload)) {
        return false;
    }
    cr_assert_eq(frame.flags, KVB_FRAME_REPLY);
    struct kvb_link_batch_reply reply;
    cr_assert_eq(kvb_link_batch_reply_unpack((struct kvb_span){payload, frame.len}, &reply),
                 KVB_OK);
    for (uint32_t i = 0; i < reply.nentries; i++) {
        statuses[i] = reply.statuses[i];
    }
    kvb_link_batch_reply_free(&reply);
    *seq_p = frame.seq;
    return true;
}

static kvb_status_t one_answer(const struct engine *engine, uint64_t seq)
{
    kvb_status_t statuses[16];
    uint64_t got;
    cr_assert(next_batch_answer(engine, &got, statuses), "an answer");
    cr_assert_eq(got, seq);
    return statuses[0];
}

static struct test_memory memory1;
static struct test_memory memory2;

static struct engine engine_with_regions(void)
{
    test_memory_init(&memory1, "link-one", 8192);
    test_memory_init(&memory2, "link-two", 8192);
    struct engine engine = engine_attach();
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 1, &memory2, "kv_cache", 0), KVB_OK);
    return engine;
}

static void engine_end(struct engine *engine)
{
    (void)close(engine->fd);
    turn();
    test_memory_cleanup(&memory1);
    test_memory_cleanup(&memory2);
}

static const char kv_cache[1][KVB_NAME_MAX] = {"kv_cache"};

static struct answer unregister(struct kvp_rank *rank, uint64_t ms)
{
    struct answer answer = {0};
    open_calls++;
    rank->ops->unregister(rank->impl, kv_cache, 1, sim_in_ms(&sim, ms), on_done, &answer);
    cr_assert_eq(answer.times, 0, "never inside the call");
    sim_advance(&sim, ms + 1);
    turn();
    cr_assert_eq(answer.times, 1);
    return answer;
}

static struct answer register_again(struct kvp_rank *rank)
{
    struct answer answer = {0};
    open_calls++;
    rank->ops->register_(rank->impl, kv_cache, 1, on_done, &answer);
    cr_assert_eq(answer.times, 0, "never inside the call");
    sim_advance(&sim, 1000);
    cr_assert_eq(answer.times, 1);
    return answer;
}

/* ---- sessions ---- */

Test(link, hello_comes_first_and_once)
{
    struct engine engine = engine_connect();
    struct kvb_writer writer;
    kvb_writer_init(&writer, 64);
    kvb_link_discard_pack(&writer, 1);
    send_frame(&engine, KVB_LINK_DISCARD, 0, 1, &writer, -1);
    cr_assert(closed(&engine), "something else first");
    (void)close(engine.fd);

    engine = engine_attach();
    struct kvb_link_hello hello = hello_of(0, 1);
    send_hello(&engine, &hello);
    cr_assert(closed(&engine), "hello twice");
    (void)close(engine.fd);
    turn();
    cr_assert_eq(fleet.gone, 1);

    engine = engine_connect();
    sim_advance(&sim, 10001);
    cr_assert(closed(&engine), "no hello within its bound");
    (void)close(engine.fd);
}

Test(link, a_refused_hello_is_told_why_and_the_connection_ends)
{
    fleet.refuse = "rank 0 is attached already";
    struct engine engine = engine_connect();
    struct kvb_link_hello hello = hello_of(0, 1);
    send_hello(&engine, &hello);
    struct kvb_frame frame;
    uint8_t payload[512];
    cr_assert(receive(&engine, &frame, payload, sizeof payload));
    struct kvb_link_hello_reply reply;
    cr_assert_eq(kvb_link_hello_reply_unpack((struct kvb_span){payload, frame.len}, &reply),
                 KVB_OK);
    cr_assert_eq(reply.status, KVB_ERR_REFUSED);
    cr_assert_str_eq(reply.reason, fleet.refuse);
    cr_assert(closed(&engine));
    (void)close(engine.fd);
    cr_assert_eq(fleet.gone, 0, "it never was there");
}

static kvb_status_t answer_to_hello(const struct engine *engine)
{
    struct kvb_frame frame;
    uint8_t payload[512];
    struct kvb_link_hello_reply reply;
    cr_assert(receive(engine, &frame, payload, sizeof payload));
    cr_assert_eq(kvb_link_hello_reply_unpack((struct kvb_span){payload, frame.len}, &reply),
                 KVB_OK);
    return reply.status;
}

/* Read in the same turn, in either order. */
Test(link, a_hello_that_comes_before_its_predecessors_end_is_asked_to_come_again)
{
    struct kvb_link_hello hello = hello_of(0, 1);
    for (int first = 0; first < 2; first++) {
        fleet.refuse = NULL;
        struct engine killed = engine_attach();
        struct engine engine = engine_connect();
        fleet.refuse = "this rank is attached already";
        if (first == 0) {
            (void)close(killed.fd);
        }
        send_hello(&engine, &hello);
        if (first == 1) {
            (void)close(killed.fd);
        }
        cr_assert_eq(answer_to_hello(&engine), KVB_ERR_AGAIN);
        cr_assert(closed(&engine));
        (void)close(engine.fd);
        cr_assert_eq(fleet.gone, (uint32_t)first + 1);
    }
    struct engine engine = engine_connect(); /* nobody goes: it is final */
    send_hello(&engine, &hello);
    cr_assert_eq(answer_to_hello(&engine), KVB_ERR_REFUSED);
    (void)close(engine.fd);
}

Test(link, another_version_is_refused_by_name)
{
    struct engine engine = engine_connect();
    struct kvb_link_hello hello = hello_of(0, 1);
    hello.version = KVB_LINK_VERSION + 1;
    send_hello(&engine, &hello);
    struct kvb_frame frame;
    uint8_t payload[512];
    cr_assert(receive(&engine, &frame, payload, sizeof payload));
    struct kvb_link_hello_reply reply;
    cr_assert_eq(kvb_link_hello_reply_unpack((struct kvb_span){payload, frame.len}, &reply),
                 KVB_OK);
    cr_assert_eq(reply.status, KVB_ERR_REFUSED);
    cr_assert_not_null(strstr(reply.reason, "version"));
    cr_assert_eq(fleet.nranks, 0);
    (void)close(engine.fd);
}

Test(link, a_call_made_while_hello_is_taken_goes_out_after_its_answer)
{
    fleet.call_in_hello = true;
    struct engine engine = engine_attach(); /* asserts that the first frame answers hello */
    struct kvb_frame frame;
    uint8_t payload[64];
    cr_assert(receive(&engine, &frame, payload, sizeof payload));
    cr_assert_eq(frame.type, KVB_LINK_STATE);
    cr_assert_eq(frame.flags, 0);
    (void)close(engine.fd);
    turn();
    cr_assert_eq(call_in_hello.times, 1);
    cr_assert_eq(call_in_hello.status, KVB_ERR_DISCONNECTED);
}

/* B03: every bad input costs its sender the connection and nobody else anything. */
Test(link, bad_frames_cost_their_sender_the_connection_and_nobody_else_anything)
{
    struct engine good = engine_attach();
    size_t fds = test_count_fds();
    struct kvb_frame bad[] = {
        {.type = 999, .seq = 1, .len = 0},                            /* no such message */
        {.type = KVB_LINK_HELLO, .seq = 1, .len = 1u << 30},          /* beyond its limit */
        {.type = KVB_LINK_HELLO, .seq = 1, .len = 4},                 /* fields missing */
        {.type = KVB_LINK_PAUSE, .seq = 1, .len = 0},                 /* wrong direction */
        {.type = KVB_LINK_STATE, .seq = 1, .flags = KVB_FRAME_REPLY}, /* never asked */
        {.type = KVB_LINK_HELLO, .seq = 1, .flags = KVB_FRAME_REPLY}, /* not a reply */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0] + 3; i++) {
        struct engine engine = engine_connect();
        uint8_t bytes[KVB_FRAME_HEADER_LEN + 4] = {0};
        if (i < sizeof bad / sizeof bad[0]) {
            kvb_frame_pack(&bad[i], bytes);
            send_bytes(&engine, bytes, KVB_FRAME_HEADER_LEN + (bad[i].len == 4 ? 4 : 0), -1);
        } else if (i == sizeof bad / sizeof bad[0]) {
            uint8_t noise[4096];
            sim.random.fill(sim.random.ctx, noise, sizeof noise);
            send_bytes(&engine, noise, sizeof noise, -1);
        } else if (i == sizeof bad / sizeof bad[0] + 1) {
            kvb_frame_pack(&(struct kvb_frame){.type = KVB_LINK_HELLO, .seq = 1, .len = 100},
                           bytes);
            send_bytes(&engine, bytes, KVB_FRAME_HEADER_LEN, -1); /* half, then silence */
            turn();
            sim_advance(&sim, 10001);
        } else {
            (void)shutdown(engine.fd, SHUT_WR); /* nothing at all */
        }
        cr_assert(closed(&engine), "case %zu", i);
        (void)close(engine.fd);
        turn();
        struct kvb_writer writer;
        kvb_writer_init(&writer, 64);
        kvb_link_discard_pack(&writer, 1);
        send_frame(&good, KVB_LINK_DISCARD, 0, ++good.seq, &writer, -1);
        cr_assert_eq(next_status(&good, KVB_LINK_DISCARD), KVB_OK, "case %zu", i);
    }
    cr_assert_eq(test_count_fds(), fds);
    cr_assert_eq(fleet.gone, 0);
    (void)close(good.fd);
}

Test(link, an_attached_engine_that_breaks_the_protocol_loses_its_connection)
{
    static const uint16_t types[] = {
        KVB_LINK_REGISTER_REGION, KVB_LINK_LOOKUP,  KVB_LINK_PUT,  KVB_LINK_GET,
        KVB_LINK_REPORT,          KVB_LINK_DISCARD, KVB_LINK_LEAVE};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct engine engine = engine_attach();
        struct kvb_writer writer;
        kvb_writer_init(&writer, 64);
        kvb_put_u8(&writer, 0xff);
        send_frame(&engine, types[i], 0, ++engine.seq, &writer, -1);
        cr_assert(closed(&engine), "%u", types[i]);
        (void)close(engine.fd);
        turn();
        cr_assert_eq(fleet.gone, i + 1);
        fleet.nranks = 0;
    }
}

Test(link, a_message_of_the_wrong_direction_ends_the_connection)
{
    static const struct kvb_frame wrong[] = {
        {.type = KVB_LINK_PAUSE, .seq = 100},
        {.type = KVB_LINK_RELAY, .seq = 100},
        {.type = KVB_LINK_EVENT, .seq = 100},
        {.type = KVB_LINK_EVENT, .seq = 100, .flags = KVB_FRAME_REPLY},
        {.type = KVB_LINK_PUT, .seq = 100, .flags = KVB_FRAME_REPLY},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct engine engine = engine_attach();
        uint8_t bytes[KVB_FRAME_HEADER_LEN];
        kvb_frame_pack(&wrong[i], bytes);
        send_bytes(&engine, bytes, sizeof bytes, -1);
        cr_assert(closed(&engine), "%zu", i);
        (void)close(engine.fd);
        turn();
        fleet.nranks = 0;
    }
}

Test(link, a_leave_is_answered_when_the_instance_has_left)
{
    struct engine engine = engine_attach();
    struct kvb_writer writer;
    kvb_writer_init(&writer, 64);
    send_frame(&engine, KVB_LINK_LEAVE, 0, ++engine.seq, &writer, -1);
    cr_assert_eq(next_status(&engine, KVB_LINK_LEAVE), KVB_OK);
    cr_assert_eq(fleet.leaves, 1);
    (void)close(engine.fd);

    struct kvb_link_hello hello = hello_of(0, 1);
    hello.roles = KVB_ROLE_WORKER;
    turn();
    fleet.nranks = 0;
    engine = engine_attach_as(&hello);
    kvb_writer_init(&writer, 64);
    send_frame(&engine, KVB_LINK_LEAVE, 0, ++engine.seq, &writer, -1);
    cr_assert(closed(&engine), "a worker knows no requests");
    cr_assert_eq(fleet.leaves, 1);
    (void)close(engine.fd);
}

Test(link, a_message_of_the_other_role_ends_the_connection)
{
    struct kvb_link_hello hello = hello_of(0, 1);
    hello.roles = KVB_ROLE_WORKER;
    struct engine engine = engine_attach_as(&hello);
    struct kvb_writer writer;
    kvb_writer_init(&writer, 64);
    kvb_link_discard_pack(&writer, 1);
    send_frame(&engine, KVB_LINK_DISCARD, 0, ++engine.seq, &writer, -1);
    cr_assert(closed(&engine));
    (void)close(engine.fd);
}

Test(link, an_engine_that_does_not_read_stalls_only_itself)
{
    struct engine slow = engine_attach();
    struct engine good = engine_attach();
    struct kvb_writer writer;
    /* It asks and never reads an answer, until it cannot even ask any more. */
    uint32_t sent = 0;
    for (;;) {
        uint8_t bytes[KVB_FRAME_HEADER_LEN + 64];
        kvb_writer_init(&writer, 64);
        kvb_link_discard_pack(&writer, 1);
        kvb_frame_pack(&(struct kvb_frame){.type = KVB_LINK_DISCARD,
                                           .seq = ++slow.seq,
                                           .len = (uint32_t)writer.len},
                       bytes);
        memcpy(bytes + KVB_FRAME_HEADER_LEN, writer.data, writer.len);
        size_t len = KVB_FRAME_HEADER_LEN + writer.len;
        kvb_writer_cleanup(&writer);
        ssize_t n = send(slow.fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            turn();
            n = send(slow.fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        }
        if (n != (ssize_t)len) {
            break;
        }
        cr_assert_lt(++sent, 2000000u, "what waits for it is bounded");
    }
    kvb_writer_init(&writer, 64);
    kvb_link_discard_pack(&writer, 1);
    send_frame(&good, KVB_LINK_DISCARD, 0, ++good.seq, &writer, -1);
    cr_assert_eq(next_status(&good, KVB_LINK_DISCARD), KVB_OK);
    cr_assert_eq(fleet.gone, 0, "slow is not dead");
    (void)close(slow.fd);
    (void)close(good.fd);
}

/* Who cancels the drain of an engine that hangs does not wait for the drain's bound. */
Test(link, pauses_that_are_hurried_end_by_that_deadline_and_nothing_else_does)
{
    struct engine engine = engine_attach();
    struct kvp_rank *rank = rank_now();
    struct answer paused = {0};
    struct answer soon = {0};
    struct answer asked = {0};
    open_calls += 3;
    rank->ops->call(rank->impl, KVB_LINK_PAUSE, &(struct kvb_link_pause){.operation = 1},
                    sim_in_ms(&sim, 60000), on_called, &paused);
    rank->ops->call(rank->impl, KVB_LINK_PAUSE, &(struct kvb_link_pause){.operation = 1},
                    sim_in_ms(&sim, 50), on_called, &soon);
    rank->ops->call(rank->impl, KVB_LINK_STATE, NULL, sim_in_ms(&sim, 60000), on_called, &asked);
    rank->ops->hurry_pauses(rank->impl, sim_in_ms(&sim, 100));
    sim_advance(&sim, 51);
    cr_assert_eq(soon.status, KVB_ERR_TIMEOUT, "its own bound was earlier");
    cr_assert_eq(paused.times, 0);
    sim_advance(&sim, 50);
    cr_assert_eq(paused.status, KVB_ERR_TIMEOUT);
    cr_assert_eq(asked.times, 0, "nothing else");
    sim_advance(&sim, 60000);
    cr_assert_eq(asked.status, KVB_ERR_TIMEOUT);
    (void)close(engine.fd);
}

Test(link, calls_complete_once_and_late_answers_are_dropped)
{
    struct engine engine = engine_attach();
    struct kvp_rank *rank = rank_now();
    struct answer first = {0};
    struct answer second = {0};
    open_calls += 2;
    rank->ops->call(rank->impl, KVB_LINK_RESUME, &(struct kvb_link_resume){.operation = 1},
                    sim_in_ms(&sim, 100), on_called, &first);
    rank->ops->call(rank->impl, KVB_LINK_RESUME, &(struct kvb_link_resume){.operation = 2},
                    sim_in_ms(&sim, 5000), on_called, &second);
    struct kvb_frame asked[2];
    uint8_t payload[64];
    cr_assert(receive(&engine, &asked[0], payload, sizeof payload));
    cr_assert(receive(&engine, &asked[1], payload, sizeof payload));
    cr_assert_lt(asked[0].seq, asked[1].seq, "in the order of the calls");
    sim_advance(&sim, 101);
    cr_assert_eq(first.times, 1);
    cr_assert_eq(first.status, KVB_ERR_TIMEOUT);

    for (int i = 0; i < 2; i++) { /* late, and twice */
        struct kvb_writer writer;
        kvb_writer_init(&writer, 64);
        kvb_link_status_pack(&writer, KVB_OK);
        send_frame(&engine, KVB_LINK_RESUME, KVB_FRAME_REPLY, asked[0].seq, &writer, -1);
    }
    struct kvb_writer writer;
    kvb_writer_init(&writer, 64);
    kvb_link_status_pack(&writer, KVB_ERR_BUSY);
    send_frame(&engine, KVB_LINK_RESUME, KVB_FRAME_REPLY, asked[1].seq, &writer, -1);
    turn();
    cr_assert_eq(first.times, 1, "dropped");
    cr_assert_eq(second.times, 1);
    cr_assert_eq(second.status, KVB_ERR_BUSY);
    cr_assert_eq(fleet.gone, 0, "late is not broken");

    kvb_writer_init(&writer, 64);
    kvb_link_status_pack(&writer, KVB_OK);
    send_frame(&engine, KVB_LINK_RESUME, KVB_FRAME_REPLY, asked[1].seq + 100, &writer, -1);
    cr_assert(closed(&engine), "an answer to what was never asked");
    (void)close(engine.fd);
}

Test(link, an_answer_of_another_type_than_the_call_ends_the_connection)
{
    struct engine engine = engine_attach();
    struct kvp_rank *rank = rank_now();
    struct answer answer = {0};
    open_calls++;
    rank->ops->call(rank->impl, KVB_LINK_PAUSE, &(struct kvb_link_pause){.operation = 1},
                    sim_in_ms(&sim, 5000), on_called, &answer);
    struct kvb_frame asked;
    uint8_t payload[64];
    cr_assert(receive(&engine, &asked, payload, sizeof payload));
    struct kvb_writer writer;
    kvb_writer_init(&writer, 64);
    kvb_link_status_pack(&writer, KVB_OK);
    send_frame(&engine, KVB_LINK_RESUME, KVB_FRAME_REPLY, asked.seq, &writer, -1);
    cr_assert(closed(&engine));
    cr_assert_eq(answer.times, 1);
    cr_assert_eq(answer.status, KVB_ERR_DISCONNECTED, "it is no pause that was done");
    (void)close(engine.fd);
}

Test(link, one_daemon_is_admitted_and_a_dead_ones_socket_replaced)
{
    struct kvp_link_config config = config_now();
    struct kvp_link *other = NULL;
    kvb_log_threshold = (enum kvb_log_level) - 1;
    cr_assert_eq(kvp_link_create(&config, &other), KVB_ERR_BUSY);
    struct engine engine = engine_attach(); /* the first was not disturbed */
    (void)close(engine.fd);
    stop_link();

    int dead = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    cr_assert_eq(bind(dead, (struct sockaddr *)&address, sizeof address), 0);
    (void)close(dead);
    cr_assert_eq(kvp_link_create(&config, &link_), KVB_OK, "what a dead daemon left");
    engine = engine_attach();
    (void)close(engine.fd);
}

Test(link, something_else_at_the_path_is_left_alone)
{
    struct kvp_link_config config = config_now();
    char file[128];
    (void)snprintf(file, sizeof file, "%s/precious", dir);
    int fd = open(file, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    (void)close(fd);
    config.path = file;
    struct kvp_link *other = NULL;
    kvb_log_threshold = (enum kvb_log_level) - 1;
    cr_assert_eq(kvp_link_create(&config, &other), KVB_ERR_INVALID);
    cr_assert_eq(access(file, F_OK), 0);
    (void)unlink(file);
    (void)snprintf(file, sizeof file, "%s/precious.lock", dir);
    (void)unlink(file);
}

static void send_lookup(struct engine *engine, uint32_t nkeys, struct kvb_token token);
static kvb_status_t next_hits(const struct engine *engine, uint32_t *hits_p);

/* ---- tasks ---- */

Test(link, a_put_is_stored_under_the_lineage_of_its_stay)
{
    struct engine engine = engine_with_regions();
    uint64_t seq = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    cr_assert(kvb_lineage_equal(store.lineage, fleet.stay.lineage));
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&engine, seq), KVB_OK);
    engine_end(&engine);
}

Test(link, what_is_of_another_stay_never_reaches_the_store)
{
    static const uint16_t types[] = {KVB_LINK_PUT, KVB_LINK_GET};
    struct engine engine = engine_with_regions();
    for (size_t i = 0; i < 2; i++) {
        uint64_t seq = send_batch(&engine, types[i], 1, old_token);
        cr_assert_eq(one_answer(&engine, seq), KVB_ERR_FENCED);
        fleet.stay.open = false;
        seq = send_batch(&engine, types[i], 1, good_token);
        cr_assert_eq(one_answer(&engine, seq), KVB_ERR_CLOSED);
        fleet.stay.open = true;
    }
    cr_assert_eq(store.submitted, 0);
    engine_end(&engine);
}

static void leave(void)
{
    fleet.stay = (struct kvp_stay){.lineage.id = {9, 9}, .token.id = {8, 8}, .open = true};
    rank_now()->ops->stay_changed(rank_now()->impl);
}

Test(link, what_ends_in_another_stay_has_failed_whatever_the_store_says)
{
    static const uint16_t types[] = {KVB_LINK_PUT, KVB_LINK_GET};
    struct engine engine = engine_with_regions();
    for (size_t i = 0; i < 2; i++) {
        fleet.stay = (struct kvp_stay){.lineage.id = {1, 1}, .token.id = {2, 2}, .open = true};
        uint64_t seq = send_batch(&engine, types[i], 3, good_token);
        cr_assert_eq(oldest_batch()->lineage.id.hi, 1);
        leave();
        cr_assert_eq(store.canceled, i, "a running get is stopped, a put may end in its lineage");
        cr_assert_eq(oldest_batch()->lineage.id.hi, 1, "never the new one");
        end_batch(KVB_OK);
        kvb_status_t statuses[16];
        uint64_t got;
        cr_assert(next_batch_answer(&engine, &got, statuses));
        cr_assert_eq(got, seq);
        for (int k = 0; k < 3; k++) {
            cr_assert_eq(statuses[k], KVB_ERR_FENCED);
        }
    }
    engine_end(&engine);
}

Test(link, a_get_that_ends_while_closed_has_failed)
{
    struct engine engine = engine_with_regions();
    uint64_t seq = send_batch(&engine, KVB_LINK_GET, 1, good_token);
    fleet.stay.open = false;
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&engine, seq), KVB_ERR_CLOSED);
    engine_end(&engine);
}

Test(link, what_waits_when_the_stay_ends_is_answered_at_once)
{
    struct engine engine = engine_with_regions();
    uint64_t seqs[4];
    for (int i = 0; i < 4; i++) { /* two run, two wait */
        seqs[i] = send_batch(&engine, KVB_LINK_GET, 1, good_token);
    }
    cr_assert_eq(store.submitted, 2);
    leave();
    cr_assert_eq(one_answer(&engine, seqs[2]), KVB_ERR_FENCED);
    cr_assert_eq(one_answer(&engine, seqs[3]), KVB_ERR_FENCED);
    end_batch(KVB_ERR_CANCELED);
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&engine, seqs[0]), KVB_ERR_CANCELED);
    cr_assert_eq(one_answer(&engine, seqs[1]), KVB_ERR_FENCED);
    cr_assert_eq(store.submitted, 2);
    engine_end(&engine);
}

Test(link, what_is_wrong_with_one_entry_is_that_entrys)
{
    struct engine engine = engine_with_regions();
    struct kvb_slice slices[5] = {
        {1, 0, 64}, {77, 0, 64}, {1, 8192, 1}, {1, 8128, 65}, {2, 8128, 64}};
    struct kvb_link_entry entries[6];
    for (uint32_t i = 0; i < 6; i++) {
        entries[i] = (struct kvb_link_entry){.key = {(const uint8_t *)"012345" + i, 1},
                                             .token = good_token,
                                             .part = i == 5,
                                             .nslices = 1,
                                             .slices = &slices[i == 5 ? 0 : i]};
    }
    struct kvb_link_batch batch = {.nentries = 6, .entries = entries};
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1u << 16);
    kvb_link_batch_pack(&writer, &batch);
    send_frame(&engine, KVB_LINK_PUT, 0, ++engine.seq, &writer, -1);
    turn();
    cr_assert_eq(oldest_batch()->nitems, 2);
    end_batch(KVB_OK);
    kvb_status_t statuses[16];
    uint64_t seq;
    cr_assert(next_batch_answer(&engine, &seq, statuses));
    cr_assert_eq(statuses[0], KVB_OK);
    cr_assert_eq(statuses[1], KVB_ERR_INVALID, "no such region");
    cr_assert_eq(statuses[2], KVB_ERR_INVALID, "past its end");
    cr_assert_eq(statuses[3], KVB_ERR_INVALID, "over its end");
    cr_assert_eq(statuses[4], KVB_OK, "its last bytes");
    cr_assert_eq(statuses[5], KVB_ERR_INVALID, "a part of a rank that is not there");
    engine_end(&engine);
}

/* B11: every way a task can end, over both queues; nothing is left pending. */
Test(link, every_task_is_answered_exactly_once_on_every_path)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    static const kvb_status_t ends[] = {
        KVB_OK,           KVB_ERR_EXISTS, KVB_ERR_NO_SPACE, KVB_ERR_QUOTA,      KVB_ERR_TIMEOUT,
        KVB_ERR_CANCELED, KVB_ERR_TICKET, KVB_ERR_CHECKSUM, KVB_ERR_GENERATION, KVB_ERR_NOT_FOUND,
    };
    static const kvb_status_t refusals[] = {KVB_ERR_INVALID, KVB_ERR_NO_MEMORY, KVB_ERR_AGAIN};
    for (int round = 0; round < 2; round++) {
        uint16_t type = round == 0 ? KVB_LINK_PUT : KVB_LINK_GET;
        for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
            uint64_t seq = send_batch(&engine, type, 2, good_token);
            end_batch(ends[i]);
            cr_assert_eq(one_answer(&engine, seq), ends[i]);
        }
        for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
            store.refuse = refusals[i];
            uint64_t seq = send_batch(&engine, type, 2, good_token);
            cr_assert_eq(one_answer(&engine, seq), refusals[i]);
            store.refuse = KVB_OK;
        }
        struct kvp_drain_progress progress = rank->ops->progress(rank->impl);
        cr_assert_eq(progress.queued + progress.running, 0);
        cr_assert_eq(progress.bytes_left, 0);
    }
    uint64_t seq;
    kvb_status_t statuses[16];
    cr_assert_not(next_batch_answer(&engine, &seq, statuses), "and not once more");
    engine_end(&engine);
}

static double counted(enum kvp_metric family, const char *label)
{
    return kvb_series_value(kvb_series(metrics, family, &label));
}

/* Bytes are those that really came or went. */
Test(link, every_block_is_counted_under_what_became_of_it)
{
    struct engine engine = engine_with_regions();
    for (int round = 0; round < 2; round++) {
        bool put = round == 0;
        uint64_t seq = send_batch(&engine, put ? KVB_LINK_PUT : KVB_LINK_GET, 4, good_token);
        struct kvs_batch *batch = oldest_batch();
        kvb_list_remove(&batch->impl.link);
        static const kvb_status_t ends[] = {KVB_OK, KVB_ERR_NO_SPACE, KVB_ERR_NO_SPACE, KVB_OK};
        for (uint32_t i = 0; i < 4; i++) {
            batch->items[i].status = ends[i];
        }
        batch->done(batch);
        cr_assert_eq(one_answer(&engine, seq), KVB_OK);
        enum kvp_metric family = put ? KVP_M_PUTS : KVP_M_GETS;
        cr_expect_eq(counted(family, "ok"), 2);
        cr_expect_eq(counted(family, kvb_status_label(KVB_ERR_NO_SPACE)), 2);
        cr_expect_eq(
            kvb_series_value(kvb_series(metrics, put ? KVP_M_PUT_BYTES : KVP_M_GET_BYTES, NULL)),
            2 * 64);
        (void)send_batch(&engine, put ? KVB_LINK_PUT : KVB_LINK_GET, 3, old_token);
        cr_expect_eq(counted(family, kvb_status_label(KVB_ERR_FENCED)), 3);
        kvb_status_t statuses[16];
        cr_assert(next_batch_answer(&engine, &seq, statuses));
    }
    uint32_t hits;
    send_lookup(&engine, 3, good_token);
    struct kvs_batch *batch = oldest_batch();
    kvb_list_remove(&batch->impl.link);
    for (uint32_t i = 0; i < 3; i++) {
        batch->items[i].status = i < 2 ? KVB_OK : KVB_ERR_NOT_FOUND;
    }
    batch->done(batch);
    cr_assert_eq(next_hits(&engine, &hits), KVB_OK);
    cr_assert_eq(hits, 2);
    cr_expect_eq(counted(KVP_M_LOOKUP_BLOCKS, "hit"), 2);
    cr_expect_eq(counted(KVP_M_LOOKUP_BLOCKS, "absent"), 1);
    fleet.stay.private_ = true;
    send_lookup(&engine, 3, good_token);
    end_batch(KVB_ERR_NOT_FOUND);
    cr_assert_eq(next_hits(&engine, &hits), KVB_OK);
    cr_expect_eq(counted(KVP_M_LOOKUP_BLOCKS, "private"), 3, "misses that a name would make hits");
    engine_end(&engine);
}

Test(link, a_full_queue_says_again_and_goes_on_when_there_is_room)
{
    struct engine engine = engine_with_regions();
    uint64_t seqs[7];
    for (int i = 0; i < 7; i++) { /* two run, four wait, one is too many */
        seqs[i] = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    }
    cr_assert_eq(one_answer(&engine, seqs[6]), KVB_ERR_AGAIN);
    for (int i = 0; i < 6; i++) {
        end_batch(KVB_OK);
        cr_assert_eq(one_answer(&engine, seqs[i]), KVB_OK);
    }
    engine_end(&engine);
}

Test(link, a_store_without_room_is_asked_again_when_a_batch_ends)
{
    struct engine engine = engine_with_regions();
    uint64_t first = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    store.refuse = KVB_ERR_AGAIN;
    uint64_t second = send_batch(&engine, KVB_LINK_GET, 1, good_token);
    store.refuse = KVB_OK;
    turn();
    cr_assert_eq(store.submitted, 1);
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&engine, first), KVB_OK);
    cr_assert_eq(store.submitted, 2);
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&engine, second), KVB_OK);
    engine_end(&engine);
}

Test(link, a_store_without_room_goes_on_with_another_ranks_batch)
{
    struct engine first = engine_with_regions();
    struct engine second = engine_attach();
    cr_assert_eq(hand_over(&second, 1, 1, &memory2, "kv_cache", 0), KVB_OK);
    (void)send_batch(&first, KVB_LINK_PUT, 1, good_token);
    store.refuse = KVB_ERR_AGAIN;
    uint64_t seq = send_batch(&second, KVB_LINK_PUT, 1, good_token);
    store.refuse = KVB_OK;
    end_batch(KVB_OK);
    turn();
    cr_assert_eq(store.submitted, 2);
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&second, seq), KVB_OK);
    (void)close(second.fd);
    engine_end(&first);
}

Test(link, time_in_the_queue_counts)
{
    struct engine engine = engine_with_regions();
    uint64_t seqs[3];
    for (int i = 0; i < 3; i++) {
        seqs[i] = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    }
    sim_advance(&sim, 60001);
    end_batch(KVB_ERR_TIMEOUT);
    cr_assert_eq(one_answer(&engine, seqs[0]), KVB_ERR_TIMEOUT);
    cr_assert_eq(one_answer(&engine, seqs[2]), KVB_ERR_TIMEOUT, "never begun");
    end_batch(KVB_ERR_TIMEOUT);
    engine_end(&engine);
}

/* ---- lookups ---- */

static void send_lookup(struct engine *engine, uint32_t nkeys, struct kvb_token token)
{
    struct kvb_link_key *keys = calloc(nkeys, sizeof *keys);
    uint32_t *names = calloc(nkeys, sizeof *names);
    for (uint32_t i = 0; i < nkeys; i++) {
        names[i] = i;
        keys[i].key = (struct kvb_span){(const uint8_t *)&names[i], sizeof names[i]};
        keys[i].placement = (struct kvb_span){(const uint8_t *)names, sizeof names[0]};
    }
    struct kvb_link_group group = {.group = 3, .nkeys = nkeys, .keys = keys};
    struct kvb_link_lookup msg = {.request = 9, .token = token, .ngroups = 1, .groups = &group};
    struct kvb_writer writer;
    kvb_writer_init(&writer, 4u << 20);
    kvb_link_lookup_pack(&writer, &msg);
    cr_assert_eq(writer.status, KVB_OK);
    send_frame(engine, KVB_LINK_LOOKUP, 0, ++engine->seq, &writer, -1);
    free(keys);
    free(names);
    turn();
}

static kvb_status_t next_hits(const struct engine *engine, uint32_t *hits_p)
{
    struct kvb_frame frame;
    uint8_t payload[256];
    cr_assert(receive(engine, &frame, payload, sizeof payload), "an answer");
    struct kvb_link_lookup_reply reply;
    cr_assert_eq(kvb_link_lookup_reply_unpack((struct kvb_span){payload, frame.len}, &reply),
                 KVB_OK);
    *hits_p = reply.ngroups == 1 ? reply.hits[0] : UINT32_MAX;
    return reply.status;
}

Test(link, a_hit_is_a_prefix_that_every_ranks_part_has)
{
    struct kvb_link_hello hello = hello_of(0, 3);
    struct engine engine = engine_attach_as(&hello);
    send_lookup(&engine, 4, good_token);
    struct kvs_batch *batch = oldest_batch();
    cr_assert_eq(batch->op, KVS_EXISTS);
    cr_assert_eq(batch->nitems, 12);
    cr_assert_eq(batch->hold.instance, 7);
    cr_assert_eq(batch->hold.request, 9);
    for (uint32_t i = 0; i < batch->nitems; i++) {
        uint32_t key;
        memcpy(&key, batch->items[i].key.data, sizeof key);
        cr_assert_eq(batch->items[i].group, 3);
        uint32_t placement;
        memcpy(&placement, batch->items[i].placement.data, sizeof placement);
        cr_assert_eq(placement, 0, "where its put has laid it");
        /* block 2 lacks the part of rank 1; block 3 is whole again */
        batch->items[i].status = key == 2 && batch->items[i].part == 1 ? KVB_ERR_NOT_FOUND : KVB_OK;
    }
    kvb_list_remove(&batch->impl.link);
    batch->done(batch);
    uint32_t hits;
    cr_assert_eq(next_hits(&engine, &hits), KVB_OK);
    cr_assert_eq(hits, 2);
    (void)close(engine.fd);
}

/* Two groups: full attention in blocks of 16, a window of 64 tokens in blocks of 32. */
Test(link, a_hit_is_a_prefix_that_all_groups_can_use)
{
    struct kvb_link_hello hello = hello_of(0, 2);
    hello.ngroups = 2;
    hello.groups[0] = (struct kvb_link_group_info){16, 0};
    hello.groups[1] = (struct kvb_link_group_info){32, 64};
    struct engine engine = engine_attach_as(&hello);
    struct kvb_link_key keys[8];
    uint8_t names[8];
    for (uint8_t i = 0; i < 8; i++) {
        names[i] = i;
        keys[i] = (struct kvb_link_key){.key = {&names[i], 1}};
    }
    struct kvb_link_group groups[2] = {{1, 4, keys}, {0, 8, keys}};
    struct kvb_link_lookup msg = {
        .request = 9, .token = good_token, .ngroups = 2, .groups = groups};
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1u << 16);
    kvb_link_lookup_pack(&writer, &msg);
    send_frame(&engine, KVB_LINK_LOOKUP, 0, ++engine.seq, &writer, -1);
    turn();
    /* Full attention has 7 blocks, 112 tokens; the window's block 2 (to 96) lacks a part, so does
     * its block 1 not: of 96 tokens it needs 1 and 2, of 64 it needs 0 and 1. */
    uint32_t asked = 0;
    while (!kvb_list_empty(&store.batches)) {
        struct kvs_batch *batch = oldest_batch();
        for (uint32_t i = 0; i < batch->nitems; i++) {
            struct kvs_item *item = &batch->items[i];
            uint8_t key = item->key.data[0];
            bool gone = item->group == 0 ? key == 7 : key == 2 && item->part == 1;
            item->status = gone ? KVB_ERR_NOT_FOUND : KVB_OK;
            asked++;
        }
        kvb_list_remove(&batch->impl.link);
        batch->done(batch);
        turn();
    }
    struct kvb_frame frame;
    uint8_t payload[256];
    cr_assert(receive(&engine, &frame, payload, sizeof payload), "an answer");
    struct kvb_link_lookup_reply reply;
    cr_assert_eq(kvb_link_lookup_reply_unpack((struct kvb_span){payload, frame.len}, &reply),
                 KVB_OK);
    cr_assert_eq(reply.status, KVB_OK);
    cr_assert_eq(reply.hits[0], 2, "in the order asked: the window first");
    cr_assert_eq(reply.hits[1], 4);
    cr_assert_eq(asked, (8 + 3) * 2, "the last window of all was never asked for");
    groups[1].group = 2; /* one that hello did not name */
    kvb_writer_init(&writer, 1u << 16);
    kvb_link_lookup_pack(&writer, &msg);
    send_frame(&engine, KVB_LINK_LOOKUP, 0, ++engine.seq, &writer, -1);
    turn();
    cr_assert(closed(&engine));
    (void)close(engine.fd);
}

Test(link, a_rank_touches_only_its_own_parts)
{
    struct kvb_link_hello hello = hello_of(1, 2);
    hello.store_tp_size = 4;
    struct engine engine = engine_attach_as(&hello);
    test_memory_init(&memory1, "link-one", 8192);
    test_memory_init(&memory2, "link-two", 8192);
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    struct kvb_slice slice = {.region = 1, .offset = 0, .len = 100};
    struct kvb_link_entry entries[6];
    for (uint32_t part = 0; part < 6; part++) {
        entries[part] = (struct kvb_link_entry){.key = {(const uint8_t *)"k", 1},
                                                .part = part,
                                                .token = good_token,
                                                .nslices = 1,
                                                .slices = &slice};
    }
    struct kvb_link_batch msg = {.token = good_token, .nentries = 6, .entries = entries};
    for (int get = 0; get < 2; get++) {
        struct kvb_writer writer;
        kvb_writer_init(&writer, 1u << 16);
        kvb_link_batch_pack(&writer, &msg);
        send_frame(&engine, get ? KVB_LINK_GET : KVB_LINK_PUT, 0, ++engine.seq, &writer, -1);
        turn();
        struct kvs_batch *batch = oldest_batch();
        cr_assert_eq(batch->nitems, 2);
        cr_assert_eq(batch->items[0].part, 2);
        cr_assert_eq(batch->items[1].part, 3);
        end_batch(KVB_OK);
        kvb_status_t statuses[16];
        uint64_t seq;
        cr_assert(next_batch_answer(&engine, &seq, statuses));
        for (uint32_t part = 0; part < 6; part++) {
            cr_assert_eq(statuses[part], part == 2 || part == 3 ? KVB_OK : KVB_ERR_INVALID,
                         "part %u", part);
        }
    }
    engine_end(&engine);
}

Test(link, a_long_prompt_is_looked_up_in_waves_until_its_prefix_ends)
{
    struct kvb_link_hello hello = hello_of(0, 3);
    struct engine engine = engine_attach_as(&hello);
    uint32_t wave = 4096 / 3;
    send_lookup(&engine, 4000, good_token);
    end_batch(KVB_OK);
    end_batch(KVB_OK);
    cr_assert_eq(oldest_batch()->nitems, (4000 - 2 * wave) * 3);
    end_batch(KVB_ERR_NOT_FOUND);
    uint32_t hits;
    cr_assert_eq(next_hits(&engine, &hits), KVB_OK);
    cr_assert_eq(hits, 2 * wave);
    cr_assert_null(oldest_batch());
    (void)close(engine.fd);
}

Test(link, a_lookup_of_another_stay_finds_nothing_and_holds_nothing)
{
    struct engine engine = engine_attach();
    uint32_t hits;
    send_lookup(&engine, 4, old_token);
    cr_assert_eq(next_hits(&engine, &hits), KVB_ERR_FENCED);
    cr_assert_eq(store.submitted, 0);
    send_lookup(&engine, 4, good_token);
    leave();
    end_batch(KVB_OK);
    cr_assert_eq(next_hits(&engine, &hits), KVB_ERR_FENCED);
    cr_assert_eq(hits, 0);
    cr_assert_eq(store.discarded, 1);
    (void)close(engine.fd);
}

/* ---- drain ---- */

Test(link, drained_means_nothing_queued_and_nothing_running)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    for (int i = 0; i < 3; i++) {
        (void)send_batch(&engine, KVB_LINK_PUT, 1, good_token);
        (void)send_batch(&engine, KVB_LINK_GET, 1, good_token);
    }
    struct kvp_drain_progress progress = rank->ops->progress(rank->impl);
    cr_assert_eq(progress.queued, 2);
    cr_assert_eq(progress.running, 4);
    cr_assert_eq(progress.bytes_left, 6 * 64);
    struct answer answer = {0};
    sim.now_ns += 5;
    struct kvp_queue_view queues[KVP_QUEUE_KINDS];
    rank->ops->queues(rank->impl, queues);
    for (int i = KVP_QUEUE_PUT; i <= KVP_QUEUE_GET; i++) {
        cr_expect_eq(queues[i].queued, 1);
        cr_expect_eq(queues[i].running, 2);
        cr_expect_eq(queues[i].bytes, 3 * 64);
        cr_expect_eq(queues[i].oldest_age_ns, 5);
    }
    cr_expect_eq(queues[KVP_QUEUE_LOOKUP].queued + queues[KVP_QUEUE_LOOKUP].running, 0);
    cr_expect_eq(queues[KVP_QUEUE_LOOKUP].oldest_age_ns, 0);
    open_calls++;
    rank->ops->drain(rank->impl, false, sim_in_ms(&sim, 1000), on_done, &answer);
    for (int i = 0; i < 6; i++) {
        turn();
        cr_assert_eq(answer.times, 0, "after %d of 6", i);
        end_batch(i % 2 == 0 ? KVB_OK : KVB_ERR_TIMEOUT);
    }
    turn();
    cr_assert_eq(answer.times, 1);
    cr_assert_eq(answer.status, KVB_OK);
    engine_end(&engine);
}

/* None of its kind runs then: the store's room is others'. */
Test(link, a_batch_that_waits_for_room_in_the_store_is_not_drained)
{
    static const uint16_t types[] = {KVB_LINK_PUT, KVB_LINK_GET};
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    for (size_t i = 0; i < 2; i++) {
        uint32_t hits;
        send_lookup(&engine, 1, good_token); /* runs, and is no transfer */
        store.refuse = KVB_ERR_AGAIN;
        uint64_t seq = send_batch(&engine, types[i], 1, good_token);
        struct kvp_drain_progress progress = rank->ops->progress(rank->impl);
        cr_assert_eq(progress.queued, 1);
        cr_assert_eq(progress.running, 0);
        struct answer answer = {0};
        open_calls++;
        rank->ops->drain(rank->impl, false, sim_in_ms(&sim, 1000), on_done, &answer);
        turn();
        cr_assert_eq(answer.times, 0, "%u is queued", types[i]);
        store.refuse = KVB_OK;
        end_batch(KVB_OK);
        cr_assert_eq(next_hits(&engine, &hits), KVB_OK);
        cr_assert_eq(answer.times, 0, "%u runs", types[i]);
        end_batch(KVB_OK);
        cr_assert_eq(one_answer(&engine, seq), KVB_OK);
        cr_assert_eq(answer.times, 1);
        cr_assert_eq(answer.status, KVB_OK);
    }
    engine_end(&engine);
}

Test(link, a_drain_of_nothing_waits_for_what_comes_before_it_is_told)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    struct answer answer = {0};
    open_calls++;
    rank->ops->drain(rank->impl, false, sim_in_ms(&sim, 1000), on_done, &answer);
    cr_assert_eq(answer.times, 0, "never inside the call");
    uint64_t seq = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    cr_assert_eq(answer.times, 0);
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&engine, seq), KVB_OK);
    cr_assert_eq(answer.times, 1);
    cr_assert_eq(answer.status, KVB_OK);
    engine_end(&engine);
}

Test(link, a_drain_that_is_not_done_by_its_deadline_says_so_and_undoes_nothing)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    uint64_t seq = send_batch(&engine, KVB_LINK_GET, 1, good_token);
    struct answer answer = {0};
    open_calls++;
    rank->ops->drain(rank->impl, false, sim_in_ms(&sim, 1000), on_done, &answer);
    sim_advance(&sim, 1001);
    cr_assert_eq(answer.times, 1);
    cr_assert_eq(answer.status, KVB_ERR_TIMEOUT);
    cr_assert_eq(store.canceled, 0);
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&engine, seq), KVB_OK);
    cr_assert_eq(answer.times, 1);
    engine_end(&engine);
}

Test(link, an_aborting_drain_stops_what_runs_and_fails_what_waits)
{
    static const uint16_t types[] = {KVB_LINK_PUT, KVB_LINK_GET};
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    for (size_t t = 0; t < 2; t++) {
        uint64_t seqs[3];
        store.canceled = 0;
        for (int i = 0; i < 3; i++) {
            seqs[i] = send_batch(&engine, types[t], 1, good_token);
        }
        struct answer answer = {0};
        open_calls++;
        rank->ops->drain(rank->impl, true, sim_in_ms(&sim, 1000), on_done, &answer);
        cr_assert_eq(one_answer(&engine, seqs[2]), KVB_ERR_CANCELED);
        cr_assert_eq(store.canceled, 2);
        cr_assert_eq(answer.times, 0, "they are told to stop, they have not stopped");
        end_batch(KVB_ERR_CANCELED);
        cr_assert_eq(one_answer(&engine, seqs[0]), KVB_ERR_CANCELED);
        cr_assert_eq(answer.times, 0, "one has not");
        end_batch(KVB_ERR_CANCELED);
        cr_assert_eq(one_answer(&engine, seqs[1]), KVB_ERR_CANCELED);
        turn();
        cr_assert_eq(answer.times, 1);
        cr_assert_eq(answer.status, KVB_OK);
    }
    engine_end(&engine);
}

Test(link, a_drain_that_is_stopped_ends_canceled_and_stops_no_transfer)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    uint64_t seq = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    struct answer answer = {0};
    open_calls++;
    rank->ops->drain_stop(rank->impl); /* none runs: nothing happens */
    rank->ops->drain(rank->impl, false, sim_in_ms(&sim, 1000), on_done, &answer);
    rank->ops->drain_stop(rank->impl);
    cr_assert_eq(answer.times, 0, "never inside a call");
    turn();
    cr_assert_eq(answer.times, 1);
    cr_assert_eq(answer.status, KVB_ERR_CANCELED);
    cr_assert_eq(store.canceled, 0);
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&engine, seq), KVB_OK);
    /* And the next one is its own. */
    answer = (struct answer){0};
    open_calls++;
    rank->ops->drain(rank->impl, false, sim_in_ms(&sim, 1000), on_done, &answer);
    turn();
    cr_assert_eq(answer.status, KVB_OK);
    engine_end(&engine);
}

/* ---- regions ---- */

static struct kvt_share *share;
static char share_bytes[8192];

/* A transfer that holds region memory of a running put until the test ends it. */
static void hold_region(const struct kvs_batch *batch, struct kvt_transfer *transfer,
                        struct kvt_extent *extent)
{
    cr_assert_eq(kvt_share_create(&transport->base, share_bytes, sizeof share_bytes, &share),
                 KVB_OK);
    *extent = (struct kvt_extent){0, batch->items[0].slices[0].len};
    *transfer = (struct kvt_transfer){.direction = KVT_TO_SHARE,
                                      .share = share,
                                      .slices = batch->items[0].slices,
                                      .nslices = 1,
                                      .extents = extent,
                                      .nextents = 1,
                                      .deadline_ns = KVB_NEVER};
}

static void ignore_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    (void)transfer;
    (void)status;
}

static void add_text(void *arg, const struct kvp_region_view *view)
{
    char *text = arg;
    size_t used = strlen(text);
    (void)snprintf(text + used, 512 - used, "%s%u %s %s %llu%s%s, %llu bytes, %u transfers",
                   used > 0 ? "; " : "", view->number, view->kind, view->state,
                   (unsigned long long)view->generation, view->current ? "" : " old",
                   view->kept_across_sleep ? " kept" : "", (unsigned long long)view->bytes,
                   view->transfers);
}

/* The regions of a rank as they are told. */
static const char *told_regions(struct kvp_rank *rank)
{
    static char text[512];
    text[0] = '\0';
    rank->ops->each_region(rank->impl, add_text, text);
    return text;
}

Test(link, unregistered_means_that_nothing_of_ours_holds_the_memory)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    struct test_memory host;
    test_memory_init(&host, "link-host", 4096);
    cr_assert_eq(hand_over(&engine, 3, 1, &host, "kv_cache", KVB_REGION_HOST_RESIDENT), KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 3);
    size_t maps = test_count_maps("memfd:link-one");
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 1,
                 "the host-resident one stays");
    cr_expect_str_eq(told_regions(rank), "1 host unregistered 1, 8192 bytes, 0 transfers; "
                                         "2 host unregistered 1, 8192 bytes, 0 transfers; "
                                         "3 host registered 1 kept, 4096 bytes, 0 transfers");
    cr_assert_eq(test_count_maps("memfd:link-one"), maps - 1);
    test_memory_cleanup(&memory1); /* the test's own hold of it */
    cr_assert_not(test_memfd_held("link-one"), "no mapping, no descriptor");
    test_memory_init(&memory1, "link-one", 8192);
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK, "again: nothing happens");
    uint64_t seq = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    cr_assert_eq(one_answer(&engine, seq), KVB_ERR_GENERATION);
    test_memory_cleanup(&host);
    engine_end(&engine);
}

/* A level-1 sleep, a selective wake and a release of the KV cache alone each go over some tags. */
Test(link, of_several_tags_only_those_that_go_are_unregistered)
{
    static const char names[2][KVB_NAME_MAX] = {"kv_cache", "weights"};
    struct kvb_link_hello hello = hello_of(0, 1);
    hello.state.ntags = 2;
    hello.state.tags[1] = (struct kvb_tag_state){.tag = "weights", .residency = KVB_RESIDENT};
    struct engine engine = engine_attach_as(&hello);
    struct kvp_rank *rank = rank_now();
    test_memory_init(&memory1, "link-one", 8192);
    test_memory_init(&memory2, "link-two", 8192);
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, names[0], 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 1, &memory2, names[1], 0), KVB_OK);
    for (uint64_t tags = 1; tags < 4; tags++) {
        char gone[2][KVB_NAME_MAX];
        uint32_t ngone = 0;
        for (uint32_t t = 0; t < 2; t++) {
            if ((tags & (1u << t)) != 0) {
                memcpy(gone[ngone++], names[t], KVB_NAME_MAX);
            }
        }
        struct answer answer = {0};
        open_calls++;
        rank->ops->unregister(rank->impl, (const char(*)[KVB_NAME_MAX])gone, ngone,
                              sim_in_ms(&sim, 1000), on_done, &answer);
        sim_advance(&sim, 1001);
        turn();
        cr_assert_eq(answer.status, KVB_OK);
        for (uint32_t t = 0; t < 2; t++) {
            cr_expect_eq(rank->ops->registered(rank->impl, names[t], NULL), (tags & (1u << t)) == 0,
                         "%s of %u", names[t], (unsigned)tags);
        }
        cr_assert_eq(hand_over(&engine, 1, 1 + tags, &memory1, names[0], 0), KVB_OK);
        cr_assert_eq(hand_over(&engine, 2, 1 + tags, &memory2, names[1], 0), KVB_OK);
        for (uint32_t t = 0; t < 2; t++) {
            cr_expect_eq(rank->ops->registered(rank->impl, names[t], NULL), (tags & (1u << t)) == 0,
                         "%s waits for its wake", names[t]);
        }
        answer = (struct answer){0};
        open_calls++;
        rank->ops->register_(rank->impl, (const char(*)[KVB_NAME_MAX])gone, ngone, on_done,
                             &answer);
        sim_advance(&sim, 1000);
        cr_assert_eq(answer.status, KVB_OK);
        cr_assert_eq(rank->ops->registered(rank->impl, NULL, NULL), 2);
    }
    engine_end(&engine);
}

/* ---- B10: what is asked at any moment of a sleep ---- */

/* The steps of a sleep and a wake as they reach a rank; the moment is before one of them. */
enum moment {
    AWAKE,
    LEFT,
    DRAINING,
    DRAINED,
    UNREGISTERING,
    ASLEEP,
    HANDED_OVER, /* and not registered: half awake */
    REGISTERED,
    AWAKE_AGAIN,
    MOMENTS
};

static struct answer told_drained, told_gone;

static void go_to(struct engine *engine, enum moment moment)
{
    struct kvp_rank *rank = rank_now();
    switch (moment) {
    case AWAKE:
        fleet.stay = (struct kvp_stay){.lineage.id = {1, 1}, .token = good_token, .open = true};
        break;
    case LEFT:
        fleet.stay = (struct kvp_stay){.lineage.id = {9, 9}, .token.id = {8, 8}};
        rank->ops->stay_changed(rank->impl);
        break;
    case DRAINING:
        told_drained = (struct answer){0};
        open_calls++;
        rank->ops->drain(rank->impl, false, sim_in_ms(&sim, 1000), on_done, &told_drained);
        break;
    case DRAINED: /* the store ends what runs */
        while (oldest_batch() != NULL) {
            end_batch(KVB_OK);
            turn();
        }
        turn();
        cr_assert_eq(told_drained.times, 1);
        cr_assert_eq(told_drained.status, KVB_OK);
        break;
    case UNREGISTERING:
        told_gone = (struct answer){0};
        open_calls++;
        rank->ops->unregister(rank->impl, kv_cache, 1, sim_in_ms(&sim, 1000), on_done, &told_gone);
        break;
    case ASLEEP:
        sim_advance(&sim, 1001);
        turn();
        cr_assert_eq(told_gone.times, 1);
        cr_assert_eq(told_gone.status, KVB_OK);
        break;
    case HANDED_OVER:
        send_region(engine, 1, 2, &memory1, "kv_cache", 0);
        send_region(engine, 2, 2, &memory2, "kv_cache", 0);
        break;
    case REGISTERED:
        cr_assert_eq(register_again(rank).status, KVB_OK);
        break;
    case AWAKE_AGAIN:
        fleet.stay.token.id = (struct kvb_id){7, 7};
        fleet.stay.open = true;
        rank->ops->stay_changed(rank->impl);
        break;
    case MOMENTS:
        break;
    }
    turn();
}

/* How often a request of that number was answered so far; how: the last time. */
static uint32_t answers_to(const struct engine *engine, uint64_t seq, kvb_status_t *status_p)
{
    uint32_t times = 0;
    struct kvb_frame frame;
    uint8_t payload[256];
    while (receive(engine, &frame, payload, sizeof payload)) {
        if (frame.seq != seq) {
            continue;
        }
        times++;
        kvb_status_t statuses[16] = {KVB_OK};
        struct kvb_link_batch_reply batch;
        struct kvb_link_lookup_reply lookup;
        struct kvb_span body = {payload, frame.len};
        if (frame.type == KVB_LINK_LOOKUP) {
            cr_assert_eq(kvb_link_lookup_reply_unpack(body, &lookup), KVB_OK);
            statuses[0] = lookup.status;
        } else {
            cr_assert_eq(kvb_link_batch_reply_unpack(body, &batch), KVB_OK);
            statuses[0] = batch.statuses[0];
            kvb_link_batch_reply_free(&batch);
        }
        *status_p = statuses[0];
    }
    return times;
}

/* busy: as many before it as may run at a time, so that it is in the queue when the sleep comes. */
static void ask_at(enum moment when, uint16_t type, bool busy)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    uint64_t seq = 0;
    uint32_t times = 0;
    kvb_status_t status = KVB_IN_PROGRESS;
    go_to(&engine, AWAKE);
    for (int i = 0; busy && i < 2; i++) {
        if (type == KVB_LINK_LOOKUP) {
            send_lookup(&engine, 1, good_token);
        } else {
            (void)send_batch(&engine, type, 1, good_token);
        }
    }
    for (enum moment moment = AWAKE; moment < MOMENTS; moment++) {
        if (moment != AWAKE) {
            go_to(&engine, moment);
        }
        if (moment == when && type == KVB_LINK_LOOKUP) {
            send_lookup(&engine, 1, fleet.stay.token);
            seq = engine.seq;
        } else if (moment == when) {
            seq = send_batch(&engine, type, 1, fleet.stay.token);
        }
        if (seq != 0) {
            times += answers_to(&engine, seq, &status);
        }
        if (moment >= DRAINED && moment < AWAKE_AGAIN) {
            struct kvp_drain_progress left = rank->ops->progress(rank->impl);
            cr_assert_eq(left.queued + left.running, 0, "type %u at %d: pending at %d", type, when,
                         moment);
            cr_assert_eq(times, when <= moment, "type %u at %d: not answered at %d", type, when,
                         moment);
        }
    }
    cr_assert_eq(times, when < AWAKE_AGAIN, "type %u at %d", type, when);
    if (when == AWAKE_AGAIN) {
        end_batch(KVB_OK);
        times = answers_to(&engine, seq, &status);
        cr_assert_eq(times, 1);
        cr_assert_eq(status, KVB_OK, "and afterwards it is as before");
    } else if (when == AWAKE) { /* in the stay that it was asked in, or refused */
        cr_assert_eq(status, KVB_ERR_FENCED, "type %u: %s", type, kvb_status_label(status));
    } else { /* asleep, or what it names is not there */
        cr_assert(status == KVB_ERR_CLOSED ||
                      (when >= UNREGISTERING && status == KVB_ERR_GENERATION),
                  "type %u at %d: %s", type, when, kvb_status_label(status));
    }
    engine_end(&engine);
    fleet.nranks = 0; /* it is gone */
}

Test(link, b10_what_is_asked_at_any_moment_of_a_sleep_is_answered_once_and_before_memory_goes)
{
    static const uint16_t types[] = {KVB_LINK_LOOKUP, KVB_LINK_PUT, KVB_LINK_GET};
    for (size_t t = 0; t < 3; t++) {
        for (enum moment when = AWAKE; when < MOMENTS; when++) {
            for (int busy = 0; busy < 2; busy++) {
                ask_at(when, types[t], busy == 1);
            }
        }
    }
}

static double pinned_of(uint32_t region)
{
    char number[16];
    const char *values[] = {"a", "0", number};
    (void)snprintf(number, sizeof number, "%u", region);
    return kvb_series_value(kvb_series(metrics, KVP_M_REGION_PINNED, values));
}

Test(link, a_scheduler_without_memory_takes_no_series_of_the_first_worker_along)
{
    struct kvb_link_hello hello = hello_of(0, 1);
    hello.roles = KVB_ROLE_SCHEDULER;
    struct engine scheduler = engine_attach_as(&hello);
    struct engine worker = engine_with_regions();
    const char *values[] = {"a", "0"};
    cr_expect_eq(kvb_series_value(kvb_series(metrics, KVP_M_REGIONS, values)), 2);
    (void)close(scheduler.fd);
    turn();
    cr_expect_eq(kvb_series_value(kvb_series(metrics, KVP_M_REGIONS, values)), 2);
    engine_end(&worker);
    cr_expect_eq(kvb_series_value(kvb_series(metrics, KVP_M_REGIONS, values)), 0);
}

/* A sleep goes on to the engine's release when this has answered (test_plan). */
Test(link, unregistered_means_that_every_transport_has_let_go_and_a_wake_that_each_has_it_again)
{
    struct fake_transport *second = fake_transport_create(regions, 64);
    second->pins = true;
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    struct test_memory host;
    test_memory_init(&host, "link-host", 4096);
    cr_assert_eq(hand_over(&engine, 3, 1, &host, "kv_cache", KVB_REGION_HOST_RESIDENT), KVB_OK);
    cr_assert_eq(transport->registered, 3);
    cr_assert_eq(second->registered, 3);
    cr_expect_eq(pinned_of(1), 8192);
    cr_expect_eq(pinned_of(3), 4096);
    for (uint64_t cycle = 2; cycle < 5; cycle++) {
        cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
        cr_expect_eq(transport->unregistered, 2 * (cycle - 1));
        cr_expect_eq(second->unregistered, 2 * (cycle - 1));
        cr_expect_eq(pinned_of(1) + pinned_of(2), 0);
        cr_expect_eq(pinned_of(3), 4096, "sleep does not touch it");
        cr_assert_eq(hand_over(&engine, 1, cycle, &memory1, "kv_cache", 0), KVB_OK);
        cr_assert_eq(hand_over(&engine, 2, cycle, &memory2, "kv_cache", 0), KVB_OK);
        cr_expect_eq(second->registered, 3 + 2 * (cycle - 2), "not before the wake's own step");
        cr_assert_eq(register_again(rank).status, KVB_OK);
        cr_expect_eq(transport->registered, 3 + 2 * (cycle - 1));
        cr_expect_eq(second->registered, 3 + 2 * (cycle - 1));
        cr_expect_eq(pinned_of(1), 8192);
        cr_expect_eq(pinned_of(2), 8192);
    }
    test_memory_cleanup(&host);
    engine_end(&engine);
    sim_advance(&sim, 1000);
    turn();
    cr_expect_eq(second->registered, second->unregistered);
    kvt_transport_destroy(&second->base);
}

Test(link, what_the_last_transport_cannot_register_no_transport_keeps)
{
    struct fake_transport *second = fake_transport_create(regions, 64);
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    cr_assert_eq(hand_over(&engine, 1, 2, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 2, &memory2, "kv_cache", 0), KVB_OK);
    kvb_log_threshold = (enum kvb_log_level) - 1;
    second->register_ = KVB_ERR_LIMIT;
    cr_assert_eq(register_again(rank).status, KVB_ERR_LIMIT);
    cr_assert_eq(transport->registered, transport->unregistered, "the first let go again");
    second->register_ = KVB_OK;
    cr_assert_eq(hand_over(&engine, 1, 3, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 3, &memory2, "kv_cache", 0), KVB_OK);
    cr_assert_eq(register_again(rank).status, KVB_OK);
    cr_assert_eq(transport->registered - transport->unregistered, 2);
    engine_end(&engine);
    sim_advance(&sim, 1000);
    turn();
    kvt_transport_destroy(&second->base);
}

Test(link, a_failed_unregister_registers_again_what_it_had_undone)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    uint64_t seq = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    struct kvt_transfer transfer;
    struct kvt_extent extent;
    hold_region(oldest_batch(), &transfer, &extent);
    transfer.done = ignore_done;
    cr_assert_eq(kvt_transfer_start(&transport->base, &transfer), KVB_OK);

    cr_assert_eq(unregister(rank, 1000).status, KVB_ERR_TIMEOUT);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 2, "all, or nothing");
    struct test_memory more;
    test_memory_init(&more, "link-more", 4096);
    cr_assert_eq(hand_over(&engine, 3, 1, &more, "kv_cache", 0), KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 3, "what comes, at once");
    test_memory_cleanup(&more);
    struct kvb_slice of_two = {2, 0, 64};
    struct kvb_link_entry entry = {
        .key = {(const uint8_t *)"k", 1}, .token = good_token, .nslices = 1, .slices = &of_two};
    struct kvb_link_batch batch = {.nentries = 1, .entries = &entry};
    struct kvb_writer writer;
    kvb_writer_init(&writer, 4096);
    kvb_link_batch_pack(&writer, &batch);
    send_frame(&engine, KVB_LINK_PUT, 0, ++engine.seq, &writer, -1);
    turn();
    cr_assert_eq(store.submitted, 2, "the one that had been undone serves again");

    fake_end(&transfer, KVB_OK);
    kvt_share_destroy(share);
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&engine, seq), KVB_OK);
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&engine, engine.seq), KVB_OK);
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK, "the retry");
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 0);
    test_memory_cleanup(&memory2);
    cr_assert_not(test_memfd_held("link-two"));
    test_memory_init(&memory2, "link-two", 8192);
    engine_end(&engine);
}

Test(link, what_was_handed_over_while_an_unregister_failed_serves)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    uint64_t seq = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    struct kvt_transfer transfer;
    struct kvt_extent extent;
    hold_region(oldest_batch(), &transfer, &extent);
    transfer.done = ignore_done;
    cr_assert_eq(kvt_transfer_start(&transport->base, &transfer), KVB_OK);

    struct answer answer = {0};
    open_calls++;
    rank->ops->unregister(rank->impl, kv_cache, 1, sim_in_ms(&sim, 1000), on_done, &answer);
    turn();
    cr_assert_eq(hand_over(&engine, 2, 2, &memory2, "kv_cache", 0), KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 1, "not now");
    sim_advance(&sim, 1001);
    turn();
    cr_assert_eq(answer.status, KVB_ERR_TIMEOUT);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 2, "as if it had not begun");

    fake_end(&transfer, KVB_OK);
    kvt_share_destroy(share);
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&engine, seq), KVB_OK);
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 0);
    engine_end(&engine);
}

Test(link, unregistered_includes_what_was_replaced_and_is_still_in_use)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    uint64_t seq = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    struct kvt_transfer transfer;
    struct kvt_extent extent;
    hold_region(oldest_batch(), &transfer, &extent);
    transfer.done = ignore_done;
    cr_assert_eq(kvt_transfer_start(&transport->base, &transfer), KVB_OK);
    send_region(&engine, 1, 2, &memory1, "kv_cache", 0); /* the same memory anew */
    turn();
    cr_expect_str_eq(told_regions(rank), "1 host draining 1 old, 8192 bytes, 1 transfers; "
                                         "2 host registered 1, 8192 bytes, 0 transfers; "
                                         "1 host registered 2, 8192 bytes, 0 transfers");

    cr_assert_eq(unregister(rank, 1000).status, KVB_ERR_TIMEOUT, "it holds the same memory");
    fake_end(&transfer, KVB_ERR_CANCELED);
    kvt_share_destroy(share);
    sim_advance(&sim, 1000);
    cr_assert_eq(next_status(&engine, KVB_LINK_REGISTER_REGION), KVB_OK);
    end_batch(KVB_ERR_CANCELED);
    cr_assert_eq(one_answer(&engine, seq), KVB_ERR_CANCELED);
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    test_memory_cleanup(&memory1);
    cr_assert_not(test_memfd_held("link-one"));
    test_memory_init(&memory1, "link-one", 8192);
    engine_end(&engine);
}

Test(link, a_region_that_was_refused_holds_up_no_wake)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    struct test_memory longer = memory1;
    longer.len = 1u << 20;
    cr_assert_eq(hand_over(&engine, 5, 1, &longer, "kv_cache", 0), KVB_ERR_INVALID);
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    cr_assert_eq(hand_over(&engine, 1, 2, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 2, &memory2, "kv_cache", 0), KVB_OK);
    cr_assert_eq(register_again(rank).status, KVB_OK);
    struct test_memory third;
    test_memory_init(&third, "link-three", 4096);
    cr_assert_eq(hand_over(&engine, 5, 1, &third, "weights", 0), KVB_OK, "it never was one");
    test_memory_cleanup(&third);
    engine_end(&engine);
}

Test(link, only_what_is_handed_over_anew_is_registered_again)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    cr_assert_eq(register_again(rank).status, KVB_ERR_BAD_STATE);
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_ERR_GENERATION);
    cr_assert_eq(hand_over(&engine, 1, 2, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 0,
                 "handed over, not registered");
    cr_assert_eq(register_again(rank).status, KVB_ERR_BAD_STATE, "2 was not handed over");
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 0, "all, or nothing");
    cr_assert_eq(hand_over(&engine, 1, 3, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 3, &memory2, "kv_cache", 0), KVB_OK);
    cr_assert_eq(register_again(rank).status, KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 2);
    uint64_t seq = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    end_batch(KVB_OK);
    cr_assert_eq(one_answer(&engine, seq), KVB_OK);
    engine_end(&engine);
}

Test(link, a_failed_register_leaves_nothing_registered_and_the_retry_works)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    cr_assert_eq(hand_over(&engine, 1, 2, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 2, &memory2, "kv_cache", 0), KVB_OK);
    kvb_log_threshold = (enum kvb_log_level) - 1;
    transport->register_ = KVB_ERR_LIMIT;
    cr_assert_eq(register_again(rank).status, KVB_ERR_LIMIT);
    transport->register_ = KVB_OK;
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 0);
    cr_assert_eq(hand_over(&engine, 1, 3, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 3, &memory2, "kv_cache", 0), KVB_OK);
    cr_assert_eq(register_again(rank).status, KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 2);
    engine_end(&engine);
}

Test(link, a_task_that_waited_while_its_region_was_released_is_refused_by_the_transport)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    uint64_t seqs[3];
    for (int i = 0; i < 3; i++) {
        seqs[i] = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    }
    /* No transfer has begun: nothing holds the region. The third is not even submitted. */
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    test_memory_cleanup(&memory1);
    cr_assert_not(test_memfd_held("link-one"), "a task that names it does not hold it");
    test_memory_init(&memory1, "link-one", 8192);
    cr_assert_eq(hand_over(&engine, 1, 2, &memory2, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 2, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(register_again(rank).status, KVB_OK);
    end_batch(KVB_ERR_GENERATION);
    turn();
    cr_assert_eq(one_answer(&engine, seqs[0]), KVB_ERR_GENERATION);
    end_batch(KVB_ERR_GENERATION);
    cr_assert_eq(one_answer(&engine, seqs[1]), KVB_ERR_GENERATION);
    const struct kvt_region *named = oldest_batch()->items[0].slices[0].region;
    cr_assert_eq(kvt_region_state(named), KVT_REGION_UNREGISTERED,
                 "the memory it named, not what has its number now");
    end_batch(KVB_ERR_GENERATION);
    cr_assert_eq(one_answer(&engine, seqs[2]), KVB_ERR_GENERATION);
    engine_end(&engine);
}

Test(link, a_region_handed_over_anew_while_in_use_is_answered_when_the_old_one_is_gone)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    uint64_t seq = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    struct kvt_transfer transfer;
    struct kvt_extent extent;
    hold_region(oldest_batch(), &transfer, &extent);
    transfer.done = ignore_done;
    cr_assert_eq(kvt_transfer_start(&transport->base, &transfer), KVB_OK);
    send_region(&engine, 1, 2, &memory1, "kv_cache", 0);
    turn();
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 3,
                 "the truth: the old one too");
    sim_advance(&sim, 5000); /* it cannot be stopped: tried again and again */
    struct kvb_frame frame;
    uint8_t payload[64];
    cr_assert_not(receive(&engine, &frame, payload, sizeof payload), "not yet");
    fake_end(&transfer, KVB_ERR_CANCELED);
    kvt_share_destroy(share);
    sim_advance(&sim, 1000);
    cr_assert_eq(next_status(&engine, KVB_LINK_REGISTER_REGION), KVB_OK);
    end_batch(KVB_ERR_CANCELED);
    cr_assert_eq(one_answer(&engine, seq), KVB_ERR_CANCELED);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 2);
    engine_end(&engine);
}

Test(link, a_region_of_a_tag_that_hello_calls_released_waits_for_the_wake)
{
    struct kvb_link_hello hello = hello_of(0, 1);
    hello.state.tags[0].residency = KVB_DISCARDED;
    struct engine engine = engine_attach_as(&hello);
    test_memory_init(&memory1, "link-one", 8192);
    test_memory_init(&memory2, "link-two", 8192);
    struct kvp_rank *rank = rank_now();
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 0);
    cr_assert_eq(register_again(rank).status, KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 1);
    engine_end(&engine);
}

Test(link, a_region_without_a_descriptor_or_with_a_bad_one_is_refused)
{
    struct engine engine = engine_with_regions();
    struct kvb_link_region msg = {.region = 5, .tag = "kv_cache", .len = 1u << 20, .generation = 1};
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1024);
    kvb_link_region_pack(&writer, &msg);
    kvb_log_threshold = (enum kvb_log_level) - 1;
    send_frame(&engine, KVB_LINK_REGISTER_REGION, 0, ++engine.seq, &writer, memory1.fd);
    cr_assert_eq(next_status(&engine, KVB_LINK_REGISTER_REGION), KVB_ERR_INVALID,
                 "longer than its memory");
    kvb_writer_init(&writer, 1024);
    kvb_link_region_pack(&writer, &msg);
    send_frame(&engine, KVB_LINK_REGISTER_REGION, 0, ++engine.seq, &writer, -1);
    cr_assert(closed(&engine), "a region is its descriptor");
    engine_end(&engine);
}

Test(link, descriptors_that_nobody_asked_for_are_closed)
{
    struct engine engine = engine_with_regions();
    size_t fds = test_count_fds();
    struct kvb_writer writer;
    for (int i = 0; i < 40; i++) {
        kvb_writer_init(&writer, 64);
        kvb_link_discard_pack(&writer, 1);
        send_frame(&engine, KVB_LINK_DISCARD, 0, ++engine.seq, &writer, memory1.fd);
        cr_assert_eq(next_status(&engine, KVB_LINK_DISCARD), KVB_OK);
    }
    cr_assert_eq(test_count_fds(), fds);
    engine_end(&engine);
}

/* B37: registrations come and go by thousands, of sizes that change. */
Test(link, thousands_of_cycles_leave_no_descriptor_and_no_mapping)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    size_t fds = test_count_fds();
    size_t maps = test_count_maps("");
    for (uint64_t i = 2; i < 2502; i++) {
        cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
        memory1.len = 4096 * (1 + i % 2); /* as it is said to be */
        memory2.len = 4096 * (1 + i % 3 / 2);
        cr_assert_eq(hand_over(&engine, 1, i, &memory1, "kv_cache", 0), KVB_OK);
        cr_assert_eq(hand_over(&engine, 2, i, &memory2, "kv_cache", 0), KVB_OK);
        cr_assert_eq(register_again(rank).status, KVB_OK);
    }
    cr_assert_eq(test_count_fds(), fds);
    cr_assert_leq(test_count_maps(""), maps + 2, "of malloc");
    cr_assert_eq(transport->registered - transport->unregistered, 2);
    memory1.len = memory2.len = 8192;
    engine_end(&engine);
}

/* B38: at the first hand-over as at a wake, of the first region as of the last. */
Test(link, every_registration_that_fails_is_told_and_leaves_nothing_registered)
{
    static const kvb_status_t statuses[] = {KVB_ERR_LIMIT, KVB_ERR_NO_MEMORY, KVB_ERR_IO};
    uint64_t generation = 1;
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    struct test_memory third;
    test_memory_init(&third, "link-three", 8192);
    kvb_log_threshold = (enum kvb_log_level) - 1;
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        size_t fds = test_count_fds();
        size_t maps = test_count_maps("");
        transport->register_ = statuses[i];
        cr_assert_eq(hand_over(&engine, 3, 1, &third, "kv_cache", 0), statuses[i], "to the engine");
        transport->register_ = KVB_OK;
        cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 2);
        cr_assert_eq(test_count_fds(), fds);
        cr_assert_eq(test_count_maps(""), maps);
        for (uint32_t nth = 0; nth < 2; nth++) {
            cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
            generation++;
            cr_assert_eq(hand_over(&engine, 1, generation, &memory1, "kv_cache", 0), KVB_OK);
            cr_assert_eq(hand_over(&engine, 2, generation, &memory2, "kv_cache", 0), KVB_OK);
            transport->register_ = statuses[i];
            transport->register_after = nth;
            cr_assert_eq(register_again(rank).status, statuses[i], "to who wakes it");
            transport->register_ = KVB_OK;
            cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 0);
            cr_assert_eq(transport->registered, transport->unregistered);
            cr_assert_eq(test_count_fds(), fds - 4, "what was undone holds nothing");
            cr_assert_eq(test_count_maps("memfd:link-one"), 1, "the test's own");
            generation++;
            cr_assert_eq(hand_over(&engine, 1, generation, &memory1, "kv_cache", 0), KVB_OK);
            cr_assert_eq(hand_over(&engine, 2, generation, &memory2, "kv_cache", 0), KVB_OK);
            cr_assert_eq(register_again(rank).status, KVB_OK);
        }
    }
    test_memory_cleanup(&third);
    engine_end(&engine);
}

static kvb_status_t hand_over_at(struct engine *engine, uint32_t number, uint64_t generation,
                                 const struct test_memory *memory, uint64_t offset, uint64_t len,
                                 const char *tag)
{
    struct kvb_link_region msg = {.region = number,
                                  .kind = KVB_MEMORY_HOST,
                                  .fd_offset = offset,
                                  .len = len,
                                  .generation = generation};
    (void)snprintf(msg.tag, sizeof msg.tag, "%s", tag);
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1024);
    kvb_link_region_pack(&writer, &msg);
    send_frame(engine, KVB_LINK_REGISTER_REGION, 0, ++engine->seq, &writer, memory->fd);
    return next_status(engine, KVB_LINK_REGISTER_REGION);
}

/* B38: else it would be held under one name when it is given up under another (promise P3). */
Test(link, memory_that_is_another_region_too_is_refused)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    struct test_memory both;
    test_memory_init(&both, "link-both", 4 * 4096);
    cr_assert_eq(hand_over_at(&engine, 3, 1, &both, 4096, 8192, "kv_cache"), KVB_OK);
    static const struct {
        uint64_t page, pages;
        kvb_status_t status;
    } cases[] = {
        {1, 2, KVB_ERR_INVALID}, {0, 4, KVB_ERR_INVALID}, {0, 2, KVB_ERR_INVALID},
        {2, 2, KVB_ERR_INVALID}, {1, 1, KVB_ERR_INVALID}, {2, 1, KVB_ERR_INVALID},
        {0, 1, KVB_OK},          {3, 1, KVB_OK},
    };
    size_t fds = test_count_fds();
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool other = i % 2 == 0;
        cr_assert_eq(hand_over_at(&engine, 4 + i, 1, &both, cases[i].page * 4096,
                                  cases[i].pages * 4096, other ? "weights" : "kv_cache"),
                     cases[i].status, "case %u", i);
        if (cases[i].status != KVB_OK) {
            cr_assert_eq(test_count_fds(), fds, "nothing of it is kept");
        }
    }
    cr_assert_eq(hand_over_at(&engine, 3, 2, &both, 4096, 8192, "kv_cache"), KVB_OK,
                 "the same number: it is handed over anew");
    uint64_t seq = send_batch(&engine, KVB_LINK_PUT, 1, good_token); /* names region 1 */
    turn();
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    cr_assert_eq(hand_over_at(&engine, 21, 1, &memory1, 0, 8192, "kv_cache"), KVB_OK,
                 "what only a task names is held by nobody");
    end_batch(KVB_ERR_GENERATION);
    cr_assert_eq(one_answer(&engine, seq), KVB_ERR_GENERATION);
    cr_assert_eq(hand_over_at(&engine, 20, 1, &both, 4096, 4096, "kv_cache"), KVB_OK,
                 "nothing has it any more");
    test_memory_cleanup(&both);
    engine_end(&engine);
}

/* ---- death ---- */

Test(link, a_dead_engines_memory_is_let_go_when_its_transfers_are_gone)
{
    struct engine engine = engine_with_regions();
    struct kvp_rank *rank = rank_now();
    for (int i = 0; i < 3; i++) {
        (void)send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    }
    struct kvt_transfer transfer;
    struct kvt_extent extent;
    hold_region(oldest_batch(), &transfer, &extent);
    transfer.done = ignore_done;
    cr_assert_eq(kvt_transfer_start(&transport->base, &transfer), KVB_OK);
    struct answer call = {0};
    struct answer drain = {0};
    struct answer release = {0};
    open_calls += 3;
    rank->ops->call(rank->impl, KVB_LINK_STATE, NULL, KVB_NEVER, on_called, &call);
    rank->ops->drain(rank->impl, false, KVB_NEVER, on_done, &drain);
    rank->ops->unregister(rank->impl, kv_cache, 1, KVB_NEVER, on_done, &release);
    (void)close(engine.fd);
    turn();
    cr_assert_eq(fleet.gone, 1);
    cr_assert(call.times == 1 && call.status == KVB_ERR_DISCONNECTED);
    cr_assert(drain.times == 1 && drain.status == KVB_ERR_DISCONNECTED);
    cr_assert(release.times == 1 && release.status == KVB_ERR_DISCONNECTED);
    cr_assert_eq(store.canceled, 2, "what ran was stopped");
    sim_advance(&sim, 1000);
    test_memory_cleanup(&memory1);
    cr_assert(test_memfd_held("link-one"), "never taken away under a transfer");
    fake_end(&transfer, KVB_ERR_CANCELED);
    end_batch(KVB_ERR_CANCELED);
    end_batch(KVB_ERR_CANCELED);
    cr_assert_null(oldest_batch(), "what waited was not begun");
    sim_advance(&sim, 1000);
    kvt_share_destroy(share);
    cr_assert_not(test_memfd_held("link-one"));
    test_memory_cleanup(&memory2);
    cr_assert_eq(call.times + drain.times + release.times, 3);
}

/* The end of the stream is what tells an engine that nobody writes into its memory any more. */
Test(link, the_connection_ends_only_when_the_transfers_have)
{
    struct engine engine = engine_with_regions();
    (void)send_batch(&engine, KVB_LINK_GET, 1, good_token);
    turn();
    cr_assert_not_null(oldest_batch());
    send_bytes(&engine, "not a frame, but twenty-four", 28, -1); /* or it shuts its side down */
    turn();
    cr_assert_eq(fleet.gone, 1);
    sim_advance(&sim, 5000);
    cr_assert_not(closed(&engine), "a get is still running");
    end_batch(KVB_ERR_CANCELED);
    sim_advance(&sim, 1000);
    cr_assert(closed(&engine));
    (void)close(engine.fd);
}

Test(link, what_a_dead_engine_was_promised_is_given_back)
{
    struct engine engine = engine_with_regions();
    cr_assert_eq(store.discarded_instance, 0);
    engine_end(&engine);
    cr_assert_eq(store.discarded_instance, 7);
}

Test(link, disconnecting_a_rank_tells_its_instance_later)
{
    struct engine engine = engine_attach();
    struct kvp_rank *rank = rank_now();
    rank->ops->disconnect(rank->impl, "for the test");
    cr_assert_eq(fleet.gone, 0);
    cr_assert(closed(&engine));
    cr_assert_eq(fleet.gone, 1);
    (void)close(engine.fd);
}

/* ---- memory of a device: it takes time to register ---- */

static struct engine gpu_engine(void)
{
    memory_kind = KVB_MEMORY_CUDA;
    test_memory_init(&memory1, "link-one", 8192);
    test_memory_init(&memory2, "link-two", 8192);
    return engine_attach();
}

static void end_job(kvb_status_t status)
{
    struct kvt_device_job *job = fake_device_job(&device);
    cr_assert_not_null(job);
    fake_device_end(&device, job, status);
    turn();
}

static bool answered(const struct engine *engine)
{
    turn();
    char byte;
    return recv(engine->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
}

Test(link, memory_of_a_device_is_answered_for_when_the_device_has_it)
{
    struct engine engine = gpu_engine();
    struct kvp_rank *rank = rank_now();
    cr_assert_eq(devices.opened, 0, "no device before there is need of one");
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    device.hold[FAKE_IMPORT] = true;
    send_region(&engine, 2, 1, &memory2, "kv_cache", 0);
    cr_assert_not(answered(&engine));
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 1);
    end_job(KVB_OK);
    cr_assert_eq(next_status(&engine, KVB_LINK_REGISTER_REGION), KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 2);
    cr_expect_eq(pinned_of(2), 8192);
    uint64_t seq = send_batch(&engine, KVB_LINK_PUT, 1, good_token);
    end_batch(KVB_OK);
    turn();
    cr_assert_eq(one_answer(&engine, seq), KVB_OK);
    cr_assert_eq(devices.opened, 1);
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    cr_assert_eq(device.imported, 0);
    cr_expect_eq(pinned_of(1) + pinned_of(2), 0);
    engine_end(&engine);
}

Test(link, memory_that_the_device_refuses_is_refused_and_the_same_hand_over_works_later)
{
    struct engine engine = gpu_engine();
    struct kvp_rank *rank = rank_now();
    devices.refuse = KVB_ERR_LIMIT;
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_ERR_LIMIT);
    devices.refuse = KVB_OK;
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    device.fail[FAKE_IMPORT] = KVB_ERR_UNSUPPORTED;
    cr_assert_eq(hand_over(&engine, 2, 1, &memory2, "kv_cache", 0), KVB_ERR_UNSUPPORTED);
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    cr_assert_eq(hand_over(&engine, 1, 2, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(register_again(rank).status, KVB_OK, "the refused one is nobody's");
    cr_assert_eq(hand_over(&engine, 2, 1, &memory2, "kv_cache", 0), KVB_OK);
    engine_end(&engine);
}

Test(link, a_hand_over_on_its_way_is_given_up_by_an_unregister)
{
    struct engine engine = gpu_engine();
    struct kvp_rank *rank = rank_now();
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    device.hold[FAKE_IMPORT] = true;
    send_region(&engine, 2, 1, &memory2, "kv_cache", 0);
    turn();
    struct answer answer = {0};
    open_calls++;
    rank->ops->unregister(rank->impl, kv_cache, 1, sim_in_ms(&sim, 1000), on_done, &answer);
    turn();
    cr_assert_eq(answer.times, 0, "the device may have it");
    end_job(KVB_OK);
    cr_assert_eq(next_status(&engine, KVB_LINK_REGISTER_REGION), KVB_ERR_CANCELED);
    cr_assert_eq(answer.times, 1);
    cr_assert_eq(answer.status, KVB_OK);
    cr_assert_eq(device.imported, 0);
    device.hold[FAKE_IMPORT] = false;
    cr_assert_eq(hand_over(&engine, 1, 2, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(device.imported, 0, "not before the wake's own step");
    cr_assert_eq(register_again(rank).status, KVB_OK);
    cr_assert_eq(device.imported, 1);
    engine_end(&engine);
}

Test(link, a_wake_waits_for_every_region_of_a_device_and_is_undone_if_one_fails)
{
    struct engine engine = gpu_engine();
    struct kvp_rank *rank = rank_now();
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 1, &memory2, "kv_cache", 0), KVB_OK);
    kvb_status_t ends[] = {KVB_ERR_NO_MEMORY, KVB_OK};
    for (uint64_t i = 0; i < 2; i++) {
        cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
        cr_assert_eq(hand_over(&engine, 1, 2 + i, &memory1, "kv_cache", 0), KVB_OK);
        cr_assert_eq(hand_over(&engine, 2, 2 + i, &memory2, "kv_cache", 0), KVB_OK);
        device.hold[FAKE_IMPORT] = true;
        struct answer answer = {0};
        open_calls++;
        rank->ops->register_(rank->impl, kv_cache, 1, on_done, &answer);
        sim_advance(&sim, 1000);
        end_job(KVB_OK);
        cr_assert_eq(answer.times, 0);
        end_job(ends[i]);
        sim_advance(&sim, 1000);
        device.hold[FAKE_IMPORT] = false;
        cr_assert_eq(answer.times, 1);
        cr_assert_eq(answer.status, ends[i]);
        cr_assert_eq(device.imported, i == 0 ? 0 : 2, "all or nothing");
    }
    engine_end(&engine);
}

static double of_helper(enum kvp_metric which, const char *kind)
{
    const char *values[] = {"a", "0", kind};
    return kvb_series_value(kvb_series(metrics, which, values));
}

Test(link, what_a_device_says_of_a_failure_is_told_for_that_failure_alone)
{
    struct engine engine = gpu_engine();
    struct kvp_rank *rank = rank_now();
    struct kvt_device_info info;
    cr_assert_not(rank->ops->device(rank->impl, &info), "none before it is needed");
    cr_assert_str_eq(rank->ops->cause(rank->impl), "");
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert(rank->ops->device(rank->impl, &info));
    device.info = (struct kvt_device_info){
        .pid = 9, .starts = 1, .failures = 1, .mappings = 3, .cause = "of an earlier copy"};
    device.base.changed(device.base.changed_arg);
    cr_expect_eq(of_helper(KVP_M_CUDA_HELPERS, NULL), 1);
    cr_expect_eq(of_helper(KVP_M_CUDA_STARTS, NULL), 1);
    cr_expect_eq(of_helper(KVP_M_CUDA_FAILURES, NULL), 1);
    cr_expect_eq(of_helper(KVP_M_CUDA_HELD, "mappings"), 3);
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    cr_assert_str_eq(rank->ops->cause(rank->impl), "");
    cr_assert_eq(hand_over(&engine, 1, 2, &memory1, "kv_cache", 0), KVB_OK);
    device.hold[FAKE_IMPORT] = true;
    struct answer answer = {0};
    open_calls++;
    rank->ops->register_(rank->impl, kv_cache, 1, on_done, &answer);
    sim_advance(&sim, 1000);
    device.info = (struct kvt_device_info){.starts = 2, .kills = 1, .failures = 2, .cause = "why"};
    device.base.changed(device.base.changed_arg);
    end_job(KVB_ERR_IO);
    device.info.failures++;
    strcpy(device.info.cause, "of what came after it");
    sim_advance(&sim, 1000);
    device.hold[FAKE_IMPORT] = false;
    cr_assert_eq(answer.status, KVB_ERR_IO);
    cr_assert_str_eq(rank->ops->cause(rank->impl), "why", "also after it was undone");
    cr_expect_eq(of_helper(KVP_M_CUDA_HELPERS, NULL), 0);
    cr_expect_eq(of_helper(KVP_M_CUDA_STARTS, NULL), 2);
    cr_expect_eq(of_helper(KVP_M_CUDA_KILLS, NULL), 1);
    cr_expect_eq(of_helper(KVP_M_CUDA_HELD, "mappings"), 0);
    cr_assert_eq(hand_over(&engine, 1, 3, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(register_again(rank).status, KVB_OK);
    cr_assert_str_eq(rank->ops->cause(rank->impl), "");
    engine_end(&engine);
}

Test(link, a_failed_release_of_a_device_is_undone)
{
    struct engine engine = gpu_engine();
    struct kvp_rank *rank = rank_now();
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 1, &memory2, "kv_cache", 0), KVB_OK);
    device.fail[FAKE_DROP] = KVB_ERR_TIMEOUT;
    cr_assert_eq(unregister(rank, 1000).status, KVB_ERR_TIMEOUT);
    cr_assert_eq(device.imported, 2, "as before");
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 2);
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    cr_assert_eq(device.imported, 0);
    engine_end(&engine);
}

Test(link, what_an_undone_release_of_a_device_cannot_have_again_is_told_as_lost)
{
    struct engine engine = gpu_engine();
    struct kvp_rank *rank = rank_now();
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 1, &memory2, "kv_cache", 0), KVB_OK);
    device.fail[FAKE_DROP] = KVB_ERR_TIMEOUT;
    device.fail[FAKE_IMPORT] = KVB_ERR_UNAVAILABLE;
    cr_assert_eq(unregister(rank, 1000).status, KVB_ERR_TIMEOUT);
    turn();
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 1);
    cr_assert_eq(fleet.lost_tags, 1, "or nobody would ever ask for it");
    cr_assert_eq(hand_over(&engine, 1, 2, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 2, &memory2, "kv_cache", 0), KVB_OK);
    cr_assert_eq(register_again(rank).status, KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 2);
    engine_end(&engine);
}

Test(link, new_memory_of_a_device_replaces_the_old_when_it_is_there)
{
    struct engine engine = gpu_engine();
    struct kvp_rank *rank = rank_now();
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    device.hold[FAKE_IMPORT] = true;
    send_region(&engine, 1, 2, &memory2, "kv_cache", 0);
    turn();
    cr_assert_eq(device.imported, 1);
    send_region(&engine, 1, 3, &memory1, "kv_cache", 0); /* and a newer one that is faster */
    turn();
    struct kvt_device_job *slow = fake_device_job(&device);
    struct kvt_device_job *fast =
        kvb_container_of(device.jobs.next->next, struct kvt_device_job, link);
    device.hold[FAKE_DROP] = true;
    fake_device_end(&device, fast, KVB_OK);
    cr_assert_not(answered(&engine), "the old one is still held");
    fake_device_end(&device, slow, KVB_OK);
    cr_assert_eq(next_status(&engine, KVB_LINK_REGISTER_REGION), KVB_ERR_GENERATION);
    device.hold[FAKE_DROP] = false;
    kvb_sched_post(&sim.sched, &device.turn);
    cr_assert_eq(next_status(&engine, KVB_LINK_REGISTER_REGION), KVB_OK);
    turn();
    cr_assert_eq(device.imported, 1);
    cr_assert_eq(rank->ops->registered(rank->impl, "kv_cache", NULL), 1);
    engine_end(&engine);
}

Test(link, memory_that_went_with_its_device_is_not_registered_and_is_waited_for_anew)
{
    struct engine engine = gpu_engine();
    struct kvp_rank *rank = rank_now();
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 1, &memory2, "kv_cache", 0), KVB_OK);
    device.info.pid = 9;
    device.base.changed(device.base.changed_arg);
    cr_assert_eq(fleet.lost_tags, 0);
    device.info.pid = 0;
    device.base.changed(device.base.changed_arg);
    cr_assert_eq(fleet.lost_tags, 1);
    turn();
    cr_assert_eq(rank->ops->registered(rank->impl, NULL, NULL), 0);
    cr_assert_eq(hand_over(&engine, 1, 2, &memory1, "kv_cache", 0), KVB_OK);
    cr_assert_eq(hand_over(&engine, 2, 2, &memory2, "kv_cache", 0), KVB_OK);
    cr_assert_eq(device.imported, 0, "not before the step that registers both");
    cr_assert_eq(register_again(rank).status, KVB_OK);
    cr_assert_eq(rank->ops->registered(rank->impl, NULL, NULL), 2);
    cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
    device.info.pid = 9;
    device.base.changed(device.base.changed_arg);
    device.info.pid = 0;
    device.base.changed(device.base.changed_arg);
    cr_assert_eq(fleet.lost_tags, 1, "it had nothing");
    engine_end(&engine);
}

/* A device that is late is killed, and with it goes all that the rank has there. */
Test(link, a_device_is_given_time_to_let_go_of_what_is_replaced)
{
    struct engine engine = gpu_engine();
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
    device.hold[FAKE_DROP] = true;
    send_region(&engine, 1, 2, &memory2, "kv_cache", 0);
    turn();
    cr_assert_eq(device.imported, 2);
    cr_assert_geq(fake_device_job(&device)->deadline_ns, sim.now_ns + 4 * KVB_NS_PER_S);
    end_job(KVB_OK);
    cr_assert_eq(next_status(&engine, KVB_LINK_REGISTER_REGION), KVB_OK);
    device.hold[FAKE_DROP] = false;
    engine_end(&engine);
}

Test(link, an_engine_that_goes_while_its_memory_is_on_its_way_leaves_nothing)
{
    for (int registering = 0; registering < 2; registering++) {
        struct engine engine = gpu_engine();
        struct kvp_rank *rank = rank_now();
        struct answer answer = {0};
        cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_OK);
        if (registering) {
            cr_assert_eq(unregister(rank, 1000).status, KVB_OK);
            cr_assert_eq(hand_over(&engine, 1, 2, &memory1, "kv_cache", 0), KVB_OK);
            device.hold[FAKE_IMPORT] = true;
            open_calls++;
            rank->ops->register_(rank->impl, kv_cache, 1, on_done, &answer);
        } else {
            device.hold[FAKE_IMPORT] = true;
            send_region(&engine, 2, 1, &memory2, "kv_cache", 0);
        }
        turn();
        (void)close(engine.fd);
        turn();
        cr_assert_eq(answer.times, registering);
        cr_assert_eq(answer.status, registering ? KVB_ERR_DISCONNECTED : KVB_OK);
        cr_assert_eq(devices.closed, devices.opened - 1, "it may hold something yet");
        end_job(KVB_OK);
        sim_advance(&sim, 1000);
        turn();
        cr_assert_eq(device.imported, 0);
        cr_assert_eq(devices.closed, devices.opened);
        test_memory_cleanup(&memory1);
        test_memory_cleanup(&memory2);
    }
}

Test(link, memory_of_a_device_is_refused_where_there_are_none)
{
    stop_link();
    struct kvp_link_config config = config_now();
    config.devices = NULL;
    cr_assert_eq(kvp_link_create(&config, &link_), KVB_OK);
    struct engine engine = gpu_engine();
    cr_assert_eq(hand_over(&engine, 1, 1, &memory1, "kv_cache", 0), KVB_ERR_UNSUPPORTED);
    engine_end(&engine);
}
