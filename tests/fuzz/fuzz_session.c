/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's side of the engine link under an engine that sends anything, over the real socket.
 * First byte: bit 0, a right hello goes first; bit 1, the fleet refuses it; the rest, how many
 * bytes arrive at a time (0: all). Then records: type, how, seq, length (2 bytes), payload. how: 1,
 * it is a reply; 2, a descriptor goes with it; 4, what the store has been asked is answered first;
 * 8, time passes; 16, it comes as it is, without a header; 32, no descriptor is one of memory.
 * Types from 240 on are no record of the engine's but what its instance does meanwhile (enum act,
 * in the order that a plan keeps), with how: 1, the other way (abort, a device that fails).
 *
 * Each request is answered at most once, and once if the connection lasts; every call of the daemon
 * completes once; in the end there is no descriptor, batch or region left.
 */
#include "connector/shape.h"
#include "fake_device.h"
#include "fuzz.h"
#include "link/link.h"
#include "metrics.h"
#include "sim_sched.h"
#include "test_memory.h"

#include "base/frame.h"
#include "base/log.h"
#include "store/client.h"

#include <uv.h>

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { REGION_BYTES = 64 << 10, CALLS = 9, OUT_MAX = 1 << 18 };

struct kvp_instance {
    struct kvs_space space;
    struct kvp_shape shape;
};

static struct {
    struct sim_sched sim;
    uv_loop_t loop;
    struct kvt_regions *regions;
    struct kvp_link *link;
    struct kvp_instance instance;
    struct kvp_stay stay;
    struct kvp_rank *rank;
    bool refuse;
    uint32_t calls, called;
    uint32_t acts, acted; /* of those that end later */
    bool acting, unregistered;
    struct kvb_list batches;
    struct fake_device device; /* of memory that is not the host's */
    bool has_device;
    void (*device_gone)(void *arg);
    void *device_arg;
    /* the engine */
    int fd;
    struct test_memory memory;
    uint32_t asked[256], answered[256];
    uint8_t in[OUT_MAX];
    size_t in_len;
    bool over;
    bool raw; /* it has said what is no frame: what came after may be part of one */
} on;

/* ---- the fleet ---- */

static void on_called(void *arg, kvb_status_t status, const union kvp_rank_reply *reply)
{
    (void)arg, (void)status, (void)reply;
    on.called++;
}

static void call_all(struct kvp_rank *rank)
{
    static const struct kvb_link_lineage lineage = {.lineage = {{1, 2}}, .token = {{3, 4}}};
    static const struct kvb_link_pause pause = {1, KVB_PAUSE_KEEP};
    static const struct kvb_link_resume resume = {2};
    static const struct kvb_link_reset_local reset = {3, true};
    static const struct kvb_link_release release = {4, false, 1, {{"kv_cache", true}}};
    static const struct kvb_link_restore restore = {5, 1, {"kv_cache"}};
    static const struct kvb_link_relay relay = {6, "m", {(const uint8_t *)"{}", 2}};
    static const struct {
        enum kvb_link_type type;
        const void *message;
    } calls[CALLS] = {
        {KVB_LINK_LINEAGE, &lineage},   {KVB_LINK_PAUSE, &pause},     {KVB_LINK_RESUME, &resume},
        {KVB_LINK_RESET_LOCAL, &reset}, {KVB_LINK_RELEASE, &release}, {KVB_LINK_RESTORE, &restore},
        {KVB_LINK_FINGERPRINT, NULL},   {KVB_LINK_RELAY, &relay},     {KVB_LINK_STATE, NULL}};
    for (uint32_t i = 0; i < CALLS; i++) {
        on.calls++;
        rank->ops->call(rank->impl, calls[i].type, calls[i].message, sim_in_ms(&on.sim, 5000),
                        on_called, NULL);
    }
}

/* Every part of a block is one rank's. */
static void judge_shape(const struct kvb_link_hello *hello)
{
    const struct kvp_shape *shape = &on.instance.shape;
    struct kvp_shape again;
    char reason[256];
    kvb_status_t status = kvp_shape_make(hello, &again, reason, sizeof reason);
    kvb_assert(status == KVB_OK && kvp_shape_equal(shape, &again));
    again.groups[KVB_GROUPS_MAX - 1].window_tokens++;
    kvb_assert(!kvp_shape_equal(shape, &again));
    kvb_assert(shape->nparts > 0 && shape->nparts <= KVB_PARTS_MAX);
    for (uint32_t part = 0; part < shape->nparts; part++) {
        uint32_t owners = 0;
        for (uint32_t rank = 0; rank < shape->world_size; rank++) {
            owners += kvp_shape_owns(shape, rank, part);
        }
        kvb_assert(owners == 1);
    }
}

kvb_status_t kvp_fleet_hello(struct kvp_fleet *fleet, const struct kvb_link_hello *hello,
                             struct kvp_rank *rank, char *reason, size_t reason_cap,
                             struct kvp_instance **instance_p)
{
    (void)fleet;
    if (on.refuse || on.rank != NULL) {
        (void)snprintf(reason, reason_cap, "not now");
        return KVB_ERR_REFUSED;
    }
    kvb_status_t status = kvp_shape_make(hello, &on.instance.shape, reason, reason_cap);
    if (status != KVB_OK) {
        fuzz_told(reason);
        return status;
    }
    judge_shape(hello);
    status = kvp_shape_layout(hello, &on.instance.shape, on.instance.space.layout,
                              sizeof on.instance.space.layout, reason, reason_cap);
    if (status != KVB_OK) {
        fuzz_told(reason);
        return status;
    }
    kvb_assert(kvb_name_valid(hello->tenant) && kvb_name_valid(hello->instance));
    (void)snprintf(on.instance.space.tenant, sizeof on.instance.space.tenant, "%s", hello->tenant);
    rank->stay = &on.stay;
    on.rank = rank;
    *instance_p = &on.instance;
    call_all(rank);
    return KVB_OK;
}
void kvp_instance_rank_gone(struct kvp_instance *instance, struct kvp_rank *rank,
                            const char *reason)
{
    (void)instance;
    kvb_assert(rank == on.rank && on.called == on.calls);
    fuzz_told(reason);
    on.rank = NULL;
}
void kvp_instance_memory_lost(struct kvp_instance *instance, const struct kvp_rank *rank,
                              const char (*tags)[KVB_NAME_MAX], uint32_t ntags)
{
    (void)instance, (void)rank, (void)tags, (void)ntags;
}
bool kvp_instance_leave(struct kvp_instance *instance, void (*done)(void *arg), void *arg)
{
    (void)instance;
    done(arg);
    return true;
}

void kvp_instance_report(struct kvp_instance *instance, struct kvp_rank *rank,
                         const struct kvb_load *load)
{
    (void)instance, (void)rank, (void)load;
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

/* ---- memory of a device ---- */

static kvb_status_t open_device(void *ctx, const char *rank, uint64_t owner,
                                struct kvt_device **device_p)
{
    (void)ctx, (void)rank, (void)owner;
    kvb_assert(!on.has_device);
    fake_device_init(&on.device, on.regions, &on.sim.sched, REGION_BYTES, 8192);
    on.has_device = true;
    *device_p = &on.device.base;
    return KVB_OK;
}

static void on_pool_gone(void *arg, struct kvt_region *pool, kvb_status_t status)
{
    (void)arg;
    kvb_assert(status == KVB_OK);
    kvt_region_destroy(pool);
    fake_device_free(&on.device);
    on.has_device = false;
    on.device_gone(on.device_arg);
}

static void close_device(struct kvt_device *device, void (*done)(void *arg), void *arg)
{
    kvb_assert(device == &on.device.base && kvb_list_empty(&on.device.jobs));
    on.device_gone = done;
    on.device_arg = arg;
    kvt_region_unregister(device->pool, on.sim.now_ns, on.sim.now_ns + 1, on_pool_gone, NULL);
}

static const struct kvp_link_devices device_ops = {.open = open_device, .close = close_device};

/* ---- what the instance does ---- */

enum act {
    ACT_DRAIN,
    ACT_UNREGISTER,
    ACT_REGISTER,
    ACT_STAY,
    ACT_LOOK,
    ACT_HURRY,
    ACT_STOP_DRAIN,
    ACT_DISCONNECT,
    ACT_DEVICE,
    ACTS
};

static void on_act(void *arg, kvb_status_t status)
{
    enum act what = (enum act)(uintptr_t)arg;
    kvb_assert(on.acting && on.acted < on.acts);
    on.acted++;
    on.acting = false;
    if (what != ACT_DRAIN && status == KVB_OK) {
        on.unregistered = what == ACT_UNREGISTER;
    }
}

static void see_region(void *arg, const struct kvp_region_view *view)
{
    (void)arg;
    kvb_assert(view->tag[0] != '\0' && view->state[0] != '\0' && view->kind[0] != '\0');
}

static void look(struct kvp_rank *rank)
{
    struct kvp_queue_view queues[KVP_QUEUE_KINDS];
    struct kvt_device_info info;
    uint64_t bytes = 0;
    rank->ops->queues(rank->impl, queues);
    (void)rank->ops->progress(rank->impl);
    uint32_t n = rank->ops->registered(rank->impl, NULL, &bytes);
    kvb_assert((n == 0) == (bytes == 0));
    rank->ops->each_region(rank->impl, see_region, NULL);
    (void)rank->ops->device(rank->impl, &info);
    kvb_assert(strlen(rank->ops->cause(rank->impl)) < 1024);
}

/* One at a time, as a plan does it. */
static void begin_act(struct kvp_rank *rank, enum act what, bool other)
{
    static const char tags[2][KVB_NAME_MAX] = {"kv_cache", "weights"};
    void *arg = (void *)(uintptr_t)what;
    uint64_t deadline_ns = sim_in_ms(&on.sim, 2000);
    if (on.acting || (what == ACT_REGISTER && !on.unregistered)) {
        return;
    }
    on.acts++;
    on.acting = true;
    if (what == ACT_DRAIN) {
        rank->ops->drain(rank->impl, other, deadline_ns, on_act, arg);
    } else if (what == ACT_UNREGISTER) {
        rank->ops->unregister(rank->impl, tags, other ? 1 : 2, deadline_ns, on_act, arg);
    } else {
        rank->ops->register_(rank->impl, tags, other ? 1 : 2, on_act, arg);
    }
}

static void act(enum act what, bool other)
{
    struct kvp_rank *rank = on.rank;
    if (rank == NULL || what >= ACTS) {
        return;
    }
    switch (what) {
    case ACT_DRAIN:
    case ACT_UNREGISTER:
    case ACT_REGISTER:
        begin_act(rank, what, other);
        return;
    case ACT_STAY:
        on.stay.token.id.lo++;
        on.stay.open = !other;
        rank->ops->stay_changed(rank->impl);
        return;
    case ACT_LOOK:
        look(rank);
        return;
    case ACT_HURRY:
        rank->ops->hurry_pauses(rank->impl, sim_in_ms(&on.sim, 100));
        return;
    case ACT_STOP_DRAIN:
        rank->ops->drain_stop(rank->impl);
        return;
    case ACT_DISCONNECT:
        rank->ops->disconnect(rank->impl, "told to");
        return;
    default:
        if (on.has_device) {
            on.device.fail[other ? FAKE_DROP : FAKE_IMPORT] = KVB_ERR_UNAVAILABLE;
        }
    }
}

/* ---- the store ---- */

kvb_status_t kvs_client_submit(struct kvs_client *client, struct kvs_batch *batch)
{
    (void)client;
    kvb_assert(batch->nitems > 0);
    for (uint32_t i = 0; i < batch->nitems; i++) {
        const struct kvs_item *item = &batch->items[i];
        kvb_assert(item->key.len > 0 && item->key.len <= KVB_KEY_MAX);
        for (uint32_t k = 0; k < item->nslices; k++) {
            kvb_assert(item->slices[k].offset + item->slices[k].len <= REGION_BYTES);
        }
    }
    kvb_list_push_back(&on.batches, &batch->impl.link);
    return KVB_OK;
}
void kvs_client_cancel(struct kvs_batch *batch, uint64_t stop_deadline_ns)
{
    (void)batch, (void)stop_deadline_ns;
}
void kvs_client_discard(struct kvs_client *client, struct kvs_hold hold)
{
    (void)client, (void)hold;
}
void kvs_client_discard_instance(struct kvs_client *client, uint64_t instance)
{
    (void)client, (void)instance;
}

static void end_batches(void)
{
    for (struct kvb_list *link; (link = kvb_list_pop(&on.batches)) != NULL;) {
        struct kvs_batch *batch = kvb_container_of(link, struct kvs_batch, impl.link);
        for (uint32_t i = 0; i < batch->nitems; i++) {
            batch->items[i].status = i % 3 == 2 ? KVB_ERR_NOT_FOUND : KVB_OK;
        }
        batch->done(batch);
    }
}

/* ---- the engine ---- */

static void judge_frames(void)
{
    size_t at = 0;
    while (on.in_len - at >= KVB_FRAME_HEADER_LEN) {
        struct kvb_frame frame;
        kvb_status_t status = kvb_frame_unpack(on.in + at, &frame);
        kvb_assert(status == KVB_OK && kvb_link_info(frame.type) != NULL);
        if (on.in_len - at < KVB_FRAME_HEADER_LEN + frame.len) {
            break;
        }
        if ((frame.flags & KVB_FRAME_REPLY) != 0) {
            kvb_assert(frame.seq < 256);
            kvb_assert(++on.answered[frame.seq] <= on.asked[frame.seq]);
        }
        at += KVB_FRAME_HEADER_LEN + frame.len;
    }
    memmove(on.in, on.in + at, on.in_len - at);
    on.in_len -= at;
}

static void turn(void)
{
    for (int i = 0; i < 4; i++) {
        (void)uv_run(&on.loop, UV_RUN_NOWAIT);
        sim_settle(&on.sim);
    }
    for (ssize_t n = 1; n > 0 && !on.over;) {
        n = recv(on.fd, on.in + on.in_len, sizeof on.in - on.in_len, MSG_DONTWAIT);
        on.over = n == 0 || (n < 0 && errno != EAGAIN);
        on.in_len += n > 0 ? (size_t)n : 0;
        judge_frames();
    }
}

static void say(const uint8_t *bytes, size_t len, size_t step, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    step = step == 0 ? len : step;
    for (size_t at = 0; at < len && !on.over; at += step) {
        size_t n = step < len - at ? step : len - at;
        struct iovec iov = {(void *)(uintptr_t)(bytes + at), n};
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
        if (fd >= 0 && at == 0) {
            message.msg_control = control.bytes;
            message.msg_controllen = sizeof control.bytes;
            struct cmsghdr *header = CMSG_FIRSTHDR(&message);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(sizeof fd);
            memcpy(CMSG_DATA(header), &fd, sizeof fd);
        }
        on.over = sendmsg(on.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n;
        turn();
    }
}

static void say_frame(uint16_t type, uint16_t flags, uint8_t seq, const uint8_t *payload,
                      size_t len, size_t step, int fd)
{
    uint8_t *bytes = malloc(KVB_FRAME_HEADER_LEN + len);
    kvb_assert(bytes != NULL);
    struct kvb_frame frame = {.type = type, .flags = flags, .seq = seq, .len = (uint32_t)len};
    kvb_frame_pack(&frame, bytes);
    if (len > 0) {
        memcpy(bytes + KVB_FRAME_HEADER_LEN, payload, len);
    }
    on.asked[seq] += (flags & KVB_FRAME_REPLY) == 0;
    say(bytes, KVB_FRAME_HEADER_LEN + len, step, fd);
    free(bytes);
}

static void say_hello(size_t step)
{
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1u << 16);
    kvb_link_hello_pack(&writer,
                        &(struct kvb_link_hello){.version = KVB_LINK_VERSION,
                                                 .roles = KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER,
                                                 .world_size = 1,
                                                 .local_world_size = 1,
                                                 .block_tokens = 16,
                                                 .ngroups = 2,
                                                 .groups = {{16, 0}, {16, 32}},
                                                 .instance = "llm-0",
                                                 .tenant = "default",
                                                 .layout = "m"});
    say_frame(KVB_LINK_HELLO, 0, 1, writer.data, writer.len, step, -1);
    kvb_writer_cleanup(&writer);
}

static void say_all(const uint8_t *data, size_t size, size_t step)
{
    while (size >= 5 && !on.over) {
        uint8_t how = data[1];
        size_t len = (size_t)data[3] | (size_t)data[4] << 8;
        len = len > size - 5 ? size - 5 : len;
        int fd = (how & 2) == 0 ? -1 : (how & 32) != 0 ? on.fd : on.memory.fd;
        if ((how & 4) != 0) {
            end_batches();
        }
        if (data[0] >= 0xf0) {
            act((enum act)(data[0] - 0xf0), (how & 1) != 0);
            turn();
        } else if ((how & 16) != 0) {
            on.raw = true;
            say(data + 5, len, step, fd);
        } else {
            say_frame(data[0], how & 1 ? KVB_FRAME_REPLY : 0, data[2], data + 5, len, step, fd);
        }
        if ((how & 8) != 0) {
            sim_advance(&on.sim, 3000);
            turn();
        }
        data += 5 + len;
        size -= 5 + len;
    }
}

/* ---- all of it ---- */

static int lowest_free_fd(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    kvb_assert(fd >= 0);
    (void)close(fd);
    return fd;
}

static void start(char path[96])
{
    static char object; /* its address stands for the store */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memset(&on, 0, sizeof on);
    kvb_list_init(&on.batches);
    sim_init(&on.sim, 1);
    on.stay = (struct kvp_stay){.lineage.id = {1, 1}, .token.id = {3, 4}, .open = true};
    kvb_assert(uv_loop_init(&on.loop) == 0);
    kvb_status_t status = kvt_regions_create(&on.sim.sched, &on.regions);
    kvb_assert(status == KVB_OK);
    test_memory_init(&on.memory, "engine", REGION_BYTES);
    (void)snprintf(path, 96, "/tmp/kvp-fuzz-%d.sock", (int)getpid());
    const struct kvp_link_config config = {
        .sched = &on.sim.sched,
        .loop = &on.loop,
        .store = (struct kvs_client *)(void *)&object,
        .regions = on.regions,
        .path = path,
        .sessions_max = 2,
        .queue_max = 4,
        .running_max = 2,
        .transfer_ms = 60000,
        .abort_ms = 200,
        .devices = &device_ops,
    };
    status = kvp_link_create(&config, &on.link);
    kvb_assert(status == KVB_OK);
    on.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    kvb_assert(connect(on.fd, (struct sockaddr *)&address, sizeof address) == 0);
    turn();
}

static void on_stopped(void *ctx)
{
    *(bool *)ctx = true;
}

static void stop(const char *path)
{
    char lock[112];
    bool stopped = false;
    for (int i = 0; i < 64 && !on.over; i++) { /* what is accepted is answered */
        end_batches();
        turn();
    }
    for (int i = 0; i < 256 && !on.over && !on.raw; i++) {
        kvb_assert(on.answered[i] == on.asked[i]);
    }
    kvp_link_stop(on.link, on_stopped, &stopped);
    on.over = true;
    turn();
    end_batches();
    sim_advance(&on.sim, 1000);
    turn();
    end_batches();
    turn();
    for (int i = 0; i < 8 && !stopped; i++) { /* what a device is asked takes turns */
        sim_advance(&on.sim, 1000);
        turn();
    }
    kvb_assert(stopped && on.rank == NULL && on.called == on.calls && on.acted == on.acts);
    kvb_assert(!on.has_device);
    kvp_link_destroy(on.link);
    (void)close(on.fd);
    kvt_regions_destroy(on.regions);
    test_memory_cleanup(&on.memory);
    (void)uv_run(&on.loop, UV_RUN_NOWAIT);
    kvb_assert(uv_loop_close(&on.loop) == 0);
    sim_cleanup(&on.sim);
    (void)snprintf(lock, sizeof lock, "%s.lock", path);
    (void)unlink(lock);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[96];
    if (size == 0) {
        return 0;
    }
    static bool ran;
    int before = lowest_free_fd();
    kvb_log_threshold = KVB_LOG_ERROR;
    start(path);
    on.refuse = (data[0] & 2) != 0;
    if ((data[0] & 1) != 0) {
        say_hello(data[0] >> 2);
    }
    say_all(data + 1, size - 1, data[0] >> 2);
    stop(path);
    kvb_assert(!ran || lowest_free_fd() == before); /* libuv keeps one of the first loop's */
    ran = true;
    return 0;
}
