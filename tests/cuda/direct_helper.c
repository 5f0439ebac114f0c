/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA helper over the fake's verbs (direct.h). Misuse of either fake ends it with a signal. */
#define TESTS_PLAIN
#include "direct.h"
#include "fake_verbs.h"
#include "helper.h"
#include "tcp_rig.h"

#include "base/log.h"
#include "transport/cuda.h"
#include "transport/rdma.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TICK_NS (KVB_NS_PER_MS / 2)

static struct direct_shared *shared;
static struct kvb_sched *sched; /* the helper's */
static struct kvb_io *io;

static struct {
    struct sim_sched sim; /* of its own, under the real clock */
    struct kvb_timer timer;
    struct fake_verbs *fake;
} wire;

static struct {
    struct rig_node rig;
    struct kvt_rdma_device *device;
    struct kvt_rdma_share *share;
    struct kvt_rdma_server *server;
    struct kvt_rdma_listener *listener;
    uint64_t lives;
} node;

/* ---- verbs: the fake's, but for what a GPU's memory is to them ---- */

/* Of the fake driver: a descriptor of what is mapped there; -1: nothing is. */
typedef int (*pages_fn)(uintptr_t at, size_t len, uint64_t *offset_p);

static int gpu_pages(const void *at, size_t len, uint64_t *offset_p)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *address = driver != NULL ? dlsym(driver, "fake_cuda_pages") : NULL;
    pages_fn pages;
    if (address == NULL) {
        return -1;
    }
    memcpy(&pages, &address, sizeof pages);
    return pages((uintptr_t)at, len, offset_p);
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *at, size_t len, int access)
{
    uint64_t offset;
    int fd = shared->peer_memory ? gpu_pages(at, len, &offset) : -1;
    if (fd < 0) {
        return fake_verbs_table.ibv_reg_mr(pd, at, len, access);
    }
    wire.fake->devices[FAKE_ASKER].no_dma_buf = false;
    struct ibv_mr *mr =
        fake_verbs_table.ibv_reg_dmabuf_mr(pd, offset, len, (uintptr_t)at, fd, access);
    wire.fake->devices[FAKE_ASKER].no_dma_buf = shared->no_dma_buf;
    (void)close(fd);
    return mr;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova,
                                    int fd, int access)
{
    if (shared->forget_descriptor) {
        (void)fcntl(fd, F_DUPFD_CLOEXEC, 0);
    }
    kvb_assert(access == IBV_ACCESS_LOCAL_WRITE); /* no key for anybody else */
    return fake_verbs_table.ibv_reg_dmabuf_mr(pd, offset, len, iova, fd, access);
}

static int dereg_mr(struct ibv_mr *mr)
{
    uint64_t offset;
    if (mr->length >= (2u << 20) && mr->addr != shared->node) {
        int fd = gpu_pages(mr->addr, mr->length, &offset);
        kvb_assert(fd >= 0); /* mapped still: the registration goes first */
        (void)close(fd);
        if (shared->forget_registration) {
            return 0;
        }
    }
    return fake_verbs_table.ibv_dereg_mr(mr);
}

static struct kvt_verbs verbs;

/* ---- the wire ---- */

static void wire_turn(struct kvb_timer *timer)
{
    uint64_t due_ns = kvb_sched_turn(&wire.sim.sched);
    kvb_sched_timer_set(sched, timer, due_ns);
}

static void wire_wake(void *ctx)
{
    (void)ctx;
    kvb_sched_timer_set(sched, &wire.timer, 0);
}

/* ---- the node ---- */

static void accepted(void *ctx, struct kvt_rdma_conn *conn)
{
    (void)ctx;
    if (kvt_rdma_server_adopt(node.server, conn) != KVB_OK) {
        (void)fprintf(stderr, "a connection was not adopted\n");
    }
}

static void node_open(void)
{
    char reason[KVT_RDMA_REASON_MAX] = "";
    struct kvt_rdma_server_config server = {
        .common = {.secret = "a secret", .secret_len = 8},
        .device = node.device,
        .sched = sched,
        .io = io,
        .name = "node-1",
        .incarnation = 10 + ++node.lives,
        .ops = &rig_server_ops,
        .ctx = &node.rig,
    };
    struct kvt_rdma_listener_config listener = {.device = node.device,
                                                .sched = sched,
                                                .io = io,
                                                .address = FAKE_NODE_ADDRESS ":0",
                                                .accepted = accepted};
    kvb_assert(kvt_rdma_server_create(&server, &node.server) == KVB_OK);
    kvb_assert(kvt_rdma_listener_create(&listener, &node.listener, reason) == KVB_OK);
    (void)snprintf(shared->address, sizeof shared->address, FAKE_NODE_ADDRESS ":%u",
                   kvt_rdma_listener_port(node.listener));
}

static void node_close(void)
{
    kvt_rdma_listener_destroy(node.listener);
    kvt_rdma_server_destroy(node.server);
    kvb_assert(node.rig.running == 0);
}

static void node_start(void)
{
    char reason[KVT_RDMA_REASON_MAX] = "";
    const struct kvt_rdma_config config = {.device = "fake1", .verbs = &verbs};
    node.rig = (struct rig_node){.base = shared->node, .len = DIRECT_NODE_LEN};
    kvb_list_init(&node.rig.waiting);
    kvb_assert(kvt_rdma_device_open(&config, sched, io, &node.device, reason) == KVB_OK);
    kvb_assert(kvt_rdma_share_register(node.device, shared->node, DIRECT_NODE_LEN, &node.share,
                                       reason) == KVB_OK);
    node_open();
}

/* ---- what the test wants ---- */

static void arm(const char *name, uint32_t number, int value)
{
    atomic_store(&shared->failed, 0);
    fake_verbs_fail(strcmp(name, "any") != 0 ? name : NULL, value != 0 ? number : UINT64_MAX,
                    value);
}

static void run_command(void)
{
    static char name[sizeof shared->name]; /* the fake keeps the pointer */
    switch (shared->command) {
    case DIRECT_NOTHING:
        break;
    case DIRECT_FAIL:
        memcpy(name, shared->name, sizeof name);
        arm(name, shared->number, shared->value);
        break;
    case DIRECT_MUTE:
        fake_verbs_mute(FAKE_ASKER, shared->number != 0);
        break;
    case DIRECT_LATE:
        node.rig.late = shared->number != 0;
        if (!node.rig.late) {
            rig_answer_all(&node.rig);
        }
        break;
    case DIRECT_VERDICT:
        node.rig.verdict = (kvb_status_t)shared->value;
        break;
    case DIRECT_CLOSE:
        node_close();
        break;
    case DIRECT_OPEN:
        node_open();
        break;
    case DIRECT_REMOVE:
        fake_verbs_remove(FAKE_ASKER, true);
        break;
    }
}

static void on_tick(struct kvb_timer *timer)
{
    if (atomic_load(&shared->asked) != atomic_load(&shared->done)) {
        run_command();
        (void)atomic_fetch_add(&shared->done, 1);
    }
    atomic_store(&shared->mrs, fake_verbs_mrs(FAKE_ASKER, 0));
    atomic_store(&shared->failed, fake_verbs_has_failed());
    atomic_store(&shared->posted, fake_verbs_posted(FAKE_ASKER));
    atomic_store(&shared->running, node.rig.running);
    atomic_store(&shared->puts, node.rig.puts);
    atomic_store(&shared->gets, node.rig.gets);
    atomic_store(&shared->gone, node.rig.gone);
    kvb_sched_timer_set(sched, timer, kvb_now_ns(sched->clock) + TICK_NS);
}

static void started(struct kvb_sched *its_sched, struct kvb_io *its_io)
{
    static struct kvb_timer tick;
    sched = its_sched;
    io = its_io;
    sim_init(&wire.sim, sim_seed(1));
    wire.sim.sched.clock = &kvb_clock_real;
    wire.sim.sched.wake = wire_wake;
    kvb_timer_init(&wire.timer, wire_turn);
    wire.fake = fake_verbs_open(&wire.sim);
    wire.fake->devices[FAKE_ASKER].no_dma_buf = shared->no_dma_buf;
    wire.fake->devices[FAKE_ASKER].absent = shared->no_device;
    verbs = fake_verbs_table;
    verbs.ibv_reg_mr = reg_mr;
    verbs.ibv_reg_dmabuf_mr = reg_dmabuf_mr;
    verbs.ibv_dereg_mr = dereg_mr;
    node_start();
    arm(shared->fail_name, shared->fail_number, shared->fail_value);
    kvb_timer_init(&tick, on_tick);
    on_tick(&tick);
}

int main(int argc, char **argv)
{
    static const struct cuda_helper_edges edges = {.verbs = &verbs, .started = started};
    const char *path = getenv(DIRECT_SHARED_ENV);
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (argc < 2 || strcmp(argv[1], KVT_CUDA_HELPER_COMMAND) != 0 || fd < 0) {
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    kvb_assert(shared != MAP_FAILED);
    (void)close(fd);
    kvb_log_threshold = KVB_LOG_ERROR;
    return cuda_helper_main(argc - 1, argv + 1, &edges);
}
