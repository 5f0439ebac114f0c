/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory through its helper process, on the fake driver: this process is the engine, which
 * allocates and hands over, and the daemon, which registers and moves. What is held is what the
 * kernel says of the device's memory.
 */
#include "fail_alloc.h"
#include "lock.h"
#include "real_loop.h"
#include "rig.h"
#include "test_memory.h"

#include "base/xxh3.h"
#include "engine.h"
#include "transport/cuda.h"
#include "transport/transport.h"

#include <criterion/criterion.h>

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MIB       (1u << 20)
#define LEN       (4 * MIB) /* of the region */
#define POOL      (1 * MIB)
#define SHARE     (4 * MIB)
#define LIMIT_MS  120000u
#define EXPORTED  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define TRANSFERS 32u

struct setup {
    struct cuda_rig rig;
    struct real_loop loop;
    struct kvt_regions *regions;
    struct kvt_transport *transport;
    uint8_t *node;
    struct kvt_share *share;
    char lock_path[128];
    struct kvt_device *device;
    bool closed;

    struct cuda_engine engine;
    struct cuda_memory memory;
    uint64_t asleep; /* held when the region's memory is released: the engine's context */

    struct kvt_region *region;
    bool registered, unregistered;
    kvb_status_t register_status, unregister_status;

    struct kvt_transfer transfer[TRANSFERS];
    struct kvt_slice slices[TRANSFERS][4];
    struct kvt_extent extents[TRANSFERS];
    uint32_t ends;
    kvb_status_t status[TRANSFERS];
};

static struct setup *now;

static const char *program(void)
{
    return KVPLANE_PROGRAM;
}

static void open_device(struct setup *s)
{
    struct kvt_cuda_config config = {
        .sched = &s->loop.sim.sched,
        .io = &s->loop.io,
        .regions = s->regions,
        .program = program(),
        .lock_path = s->lock_path,
        .owner = 7,
        .pool_len = POOL,
        .start_ms = LIMIT_MS,
    };
    cr_assert_eq(kvt_cuda_open(&config, &s->device), KVB_OK);
}

/* Of the daemon; no engine yet. */
static void setup_daemon(struct setup *s)
{
    now = s;
    memset(s, 0, sizeof *s);
    if (!cuda_rig_init(&s->rig, 64)) {
        cr_skip_test("nothing can be mounted here");
    }
    atomic_store(&s->rig.control->spared, (int)getpid());
    real_init(&s->loop, sim_seed(1));
    cr_assert_eq(kvt_regions_create(&s->loop.sim.sched, &s->regions), KVB_OK);
    cr_assert_eq(kvt_loopback_create(s->regions, TRANSFERS, &s->transport), KVB_OK);
    s->node = calloc(1, SHARE);
    cr_assert_eq(kvt_share_create(s->transport, s->node, SHARE, &s->share), KVB_OK);
    (void)snprintf(s->lock_path, sizeof s->lock_path, "%s/lock", s->rig.dir);
    open_device(s);
}

static void setup_engine(struct setup *s)
{
    char why[256] = "";
    cr_assert_eq(kvt_cu_open(KVT_CU_LIBRARY, &s->engine.cu, why), KVB_OK, "%s", why);
    cr_assert_eq(engine_open(&s->engine), CUDA_SUCCESS);
    s->asleep = cuda_rig_held(&s->rig);
    cr_assert_eq(engine_allocate(&s->engine, &s->memory, LEN, EXPORTED), CUDA_SUCCESS);
}

static void setup(struct setup *s)
{
    setup_daemon(s);
    setup_engine(s);
}

static bool is_true(void *flag)
{
    return *(bool *)flag;
}

static void on_closed(void *arg)
{
    struct setup *s = arg;
    s->closed = true;
}

static void close_device(struct setup *s)
{
    s->closed = false;
    kvt_cuda_close(s->device, on_closed, s);
    cr_assert(real_run_until(&s->loop, is_true, &s->closed, LIMIT_MS));
}

static bool let_go(void *arg)
{
    struct setup *s = arg;
    return cuda_rig_held(&s->rig) == s->asleep;
}

static void cleanup(struct setup *s)
{
    kvt_region_destroy(s->region);
    close_device(s);
    engine_free(&s->engine, &s->memory);
    /* The kernel may take a moment to free what was last held by a message that nobody read. */
    cr_assert(real_run_until(&s->loop, let_go, s, LIMIT_MS), "nothing of the region is held");
    engine_close(&s->engine);
    cr_assert_eq(cuda_rig_held(&s->rig), 0);
    cr_assert_eq(atomic_load(&s->rig.control->misuse), 0, "no call that the driver forbids");
    cr_assert_eq(atomic_load(&s->rig.control->pageable), 0, "copies go through the pinned pool");
    kvt_share_destroy(s->share);
    kvt_transport_destroy(s->transport);
    kvt_regions_destroy(s->regions);
    free(s->node);
    real_cleanup(&s->loop);
    cuda_rig_cleanup(&s->rig);
}

/* ---- a region's life ---- */

static void on_registered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    struct setup *s = arg;
    cr_assert_eq(region, s->region);
    cr_assert(!s->registered);
    s->registered = true;
    s->register_status = status;
}

static void on_unregistered(void *arg, struct kvt_region *region, kvb_status_t status)
{
    struct setup *s = arg;
    cr_assert_eq(region, s->region);
    cr_assert(!s->unregistered);
    s->unregistered = true;
    s->unregister_status = status;
}

static bool by_fabric; /* what is handed over is a handle */

/* Takes fd. */
static void hand_over_fd(struct setup *s, int fd)
{
    struct kvt_region_desc desc = {.owner = 7,
                                   .number = 1,
                                   .kind = KVT_MEMORY_CUDA,
                                   .tag = "kv_cache",
                                   .len = LEN,
                                   .generation = 1,
                                   .device = s->device,
                                   .fabric = by_fabric};
    const char *reason = "";
    cr_assert_geq(fd, 0);
    kvt_region_destroy(s->region);
    cr_assert_eq(kvt_region_create(s->regions, &desc, fd, &s->region, &reason), KVB_OK, "%s",
                 reason);
}

static void hand_over(struct setup *s)
{
    hand_over_fd(s, engine_export(&s->engine, &s->memory));
}

static void start_register(struct setup *s, uint64_t within_ms)
{
    s->registered = false;
    cr_assert_eq(kvt_region_register_start(
                     s->region, kvb_deadline_in_ms(&kvb_clock_real, within_ms), on_registered, s),
                 KVB_IN_PROGRESS);
    cr_assert(!s->registered, "never inside the call");
}

static kvb_status_t register_within(struct setup *s, uint64_t within_ms)
{
    start_register(s, within_ms);
    cr_assert(real_run_until(&s->loop, is_true, &s->registered, LIMIT_MS));
    cr_assert_eq(kvt_region_state(s->region),
                 s->register_status == KVB_OK ? KVT_REGION_REGISTERED : KVT_REGION_MAPPED);
    return s->register_status;
}

static kvb_status_t register_region(struct setup *s)
{
    return register_within(s, LIMIT_MS);
}

static void start_unregister(struct setup *s, uint64_t drain_ms, uint64_t stop_ms)
{
    s->unregistered = false;
    kvt_region_unregister(s->region, kvb_deadline_in_ms(&kvb_clock_real, drain_ms),
                          kvb_deadline_in_ms(&kvb_clock_real, stop_ms), on_unregistered, s);
}

static kvb_status_t unregister_within(struct setup *s, uint64_t drain_ms, uint64_t stop_ms)
{
    start_unregister(s, drain_ms, stop_ms);
    cr_assert(real_run_until(&s->loop, is_true, &s->unregistered, LIMIT_MS));
    return s->unregister_status;
}

static kvb_status_t unregister_region(struct setup *s)
{
    return unregister_within(s, LIMIT_MS, 2 * LIMIT_MS);
}

static void sleep_engine(struct setup *s)
{
    cr_assert_eq(unregister_region(s), KVB_OK);
    engine_release(&s->engine, &s->memory);
}

static void wake_engine(struct setup *s)
{
    cr_assert_eq(engine_allocate(&s->engine, &s->memory, LEN, EXPORTED), CUDA_SUCCESS);
    hand_over(s);
    cr_assert_eq(register_region(s), KVB_OK);
}

static struct kvt_device_info info(struct setup *s)
{
    struct kvt_device_info info;
    s->device->ops->info(s->device, &info);
    return info;
}

/* ---- transfers ---- */

static void on_done(struct kvt_transfer *transfer, kvb_status_t status)
{
    now->status[transfer - now->transfer] = status;
    now->ends++;
}

/* Two slices with a gap, of len in all; a run of the share. */
static void start_transfer(struct setup *s, uint32_t i, enum kvt_direction direction, uint64_t at,
                           uint64_t len, uint64_t node_at)
{
    uint64_t half = len / 2;
    s->slices[i][0] = (struct kvt_slice){s->region, at, half};
    s->slices[i][1] = (struct kvt_slice){s->region, at + half + 512, len - half};
    s->extents[i] = (struct kvt_extent){node_at, len};
    s->transfer[i] = (struct kvt_transfer){
        .direction = direction,
        .slices = s->slices[i],
        .nslices = 2,
        .hash = true,
        .share = s->share,
        .extents = &s->extents[i],
        .nextents = 1,
        .deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, LIMIT_MS),
        .done = on_done,
    };
    s->status[i] = KVB_IN_PROGRESS;
    cr_assert_eq(kvt_transfer_start(s->transport, &s->transfer[i]), KVB_OK);
    cr_assert_eq(s->status[i], KVB_IN_PROGRESS, "never inside the call");
}

static uint32_t wanted_ends;

static bool all_ended(void *arg)
{
    const struct setup *s = arg;
    return s->ends >= wanted_ends;
}

static void run_until_ended(struct setup *s, uint32_t n)
{
    wanted_ends = n;
    cr_assert(real_run_until(&s->loop, all_ended, s, LIMIT_MS));
    cr_assert_eq(s->ends, n, "each ends once");
    s->ends = 0;
}

static kvb_status_t move(struct setup *s, enum kvt_direction direction, uint64_t at, uint64_t len,
                         uint64_t node_at)
{
    start_transfer(s, 0, direction, at, len, node_at);
    run_until_ended(s, 1);
    return s->status[0];
}

static void fill(uint8_t *bytes, size_t len, uint32_t seed)
{
    for (size_t i = 0; i < len; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(seed >> 24);
    }
}

static void check_both_ways(struct setup *s)
{
    static uint8_t bytes[LEN], seen[LEN];
    const uint64_t at = 4096 + 64, len = 300000, half = len / 2, node = 777;
    fill(bytes, sizeof bytes, 1);
    cr_assert_eq(engine_fill(&s->engine, &s->memory, 0, bytes, LEN), CUDA_SUCCESS);
    cr_assert_eq(move(s, KVT_TO_SHARE, at, len, node), KVB_OK);
    cr_assert_arr_eq(s->node + node, bytes + at, half);
    cr_assert_arr_eq(s->node + node + half, bytes + at + half + 512, len - half);
    cr_assert_eq(s->transfer[0].checksum, XXH3_64bits(s->node + node, len));

    fill(s->node, SHARE, 2);
    cr_assert_eq(move(s, KVT_FROM_SHARE, at, len, node), KVB_OK);
    memcpy(bytes + at, s->node + node, half);
    memcpy(bytes + at + half + 512, s->node + node + half, len - half);
    cr_assert_eq(engine_read(&s->engine, &s->memory, 0, seen, LEN), CUDA_SUCCESS);
    cr_assert_arr_eq(seen, bytes, LEN, "what was asked for, and not a byte beside it");
    cr_assert_eq(s->transfer[0].checksum, XXH3_64bits(s->node + node, len));
}

Test(cuda, bytes_go_both_ways_through_the_pool)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    check_both_ways(&s);
    cr_assert_gt(atomic_load(&s.rig.control->calls[FAKE_CUDA_copy_batch_v13]), 0);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

static void on_driver(const char *version, enum fake_cuda_call call)
{
    struct setup s;
    cr_assert_eq(setenv("FAKE_CUDA_VERSION", version, 1), 0);
    setup(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    check_both_ways(&s);
    cr_assert_gt(atomic_load(&s.rig.control->calls[call]), 0);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

Test(cuda, copies_are_batched_as_a_driver_of_12_8_has_it)
{
    on_driver("12080", FAKE_CUDA_copy_batch_v12);
}

Test(cuda, copies_go_one_by_one_where_the_driver_has_no_batches)
{
    on_driver("12020", FAKE_CUDA_copy_out_async);
}

Test(cuda, pieces_that_follow_one_another_are_one_copy)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    start_transfer(&s, 0, KVT_TO_SHARE, 0, 8192, 0);
    run_until_ended(&s, 1);
    cr_assert_eq(atomic_load(&s.rig.control->pieces), 2);
    s.slices[0][1].offset = 4096;
    cr_assert_eq(kvt_transfer_start(s.transport, &s.transfer[0]), KVB_OK);
    run_until_ended(&s, 1);
    cr_assert_eq(atomic_load(&s.rig.control->pieces), 3);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

Test(cuda, awake_and_asleep_hold_the_same_in_every_cycle)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    uint64_t awake = s.asleep + LEN + FAKE_CUDA_CONTEXT; /* the helper's context, too */
    for (int cycle = 0; cycle < 5; cycle++) {
        cr_assert_eq(cuda_rig_held(&s.rig), awake, "cycle %d", cycle);
        struct kvt_device_info held = info(&s);
        cr_assert_eq(held.mappings, 1);
        cr_assert_eq(held.handles + held.descriptors, 0, "the mapping alone holds it");
        check_both_ways(&s);
        sleep_engine(&s);
        cr_assert_eq(cuda_rig_held(&s.rig), s.asleep, "cycle %d", cycle);
        held = info(&s);
        cr_assert_eq(held.regions + held.descriptors + held.handles + held.addresses +
                         held.mappings + held.contexts,
                     0);
        cr_assert_gt(held.pid, 0, "the helper lives on, and holds nothing");
        wake_engine(&s);
    }
    cr_assert_eq(info(&s).starts, 1);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

static size_t lines_of(int pid, const char *what)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", pid, what);
    size_t n = 0;
    if (strcmp(what, "fd") == 0) {
        DIR *dir = opendir(path);
        while (dir != NULL && readdir(dir) != NULL) {
            n++;
        }
        (void)closedir(dir);
        return n;
    }
    FILE *file = fopen(path, "re");
    cr_assert_not_null(file);
    for (int c; (c = fgetc(file)) != EOF;) {
        n += c == '\n';
    }
    (void)fclose(file);
    return n;
}

Test(cuda, many_cycles_leave_no_mapping_and_no_descriptor_in_either_process)
{
    struct setup s;
    setup(&s);
    size_t maps = 0, fds = 0, own_fds = 0;
    for (int cycle = 0; cycle < 200; cycle++) {
        hand_over(&s);
        cr_assert_eq(register_region(&s), KVB_OK);
        cr_assert_eq(unregister_region(&s), KVB_OK);
        if (cycle == 20) { /* threads have come and gone, arenas are there */
            maps = lines_of(info(&s).pid, "maps");
            fds = lines_of(info(&s).pid, "fd");
            own_fds = test_count_fds();
        }
    }
    cr_assert_leq(lines_of(info(&s).pid, "maps"), maps + 20, "not one for each cycle");
    cr_assert_eq(lines_of(info(&s).pid, "fd"), fds);
    cr_assert_eq(test_count_fds(), own_fds);
    cr_assert_eq(info(&s).starts, 1);
    cleanup(&s);
}

/* ---- the test of memory, tested: each reference forgotten, one by one ---- */

static void send_fd(int to, int fd)
{
    char byte = 0;
    struct iovec iov = {&byte, 1};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(cmsg), &fd, sizeof fd);
    cr_assert_eq(sendmsg(to, &msg, 0), 1);
}

Test(cuda, each_single_forgotten_reference_is_seen_in_the_account)
{
    enum { FD, UNREAD, CHILD, HANDLE, MAPPING, DMA_BUF, REGISTRATION, FORGOTTEN };
    struct setup s;
    setup(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    for (int what = 0; what < FORGOTTEN; what++) {
        int fd = engine_export(&s.engine, &s.memory);
        int sockets[2] = {-1, -1};
        pid_t child = 0;
        CUmemGenericAllocationHandle handle = 0;
        struct cuda_memory mapping = {.len = LEN};
        void *pinned = MAP_FAILED;
        if (what == UNREAD) {
            cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
            send_fd(sockets[0], fd);
        } else if (what == CHILD) {
            child = fork();
            if (child == 0) {
                (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (int i = 3; i < 256; i++) { /* all it keeps is this one */
                    if (i != fd) {
                        (void)close(i);
                    }
                }
                for (;;) {
                    (void)pause();
                }
            }
        } else if (what == HANDLE || what == MAPPING) {
            cr_assert_eq(s.engine.cu.mem_import(&handle, (void *)(intptr_t)fd, EXPORTED),
                         CUDA_SUCCESS);
        }
        if (what == MAPPING) {
            cr_assert_eq(engine_map(&s.engine, &mapping, handle), CUDA_SUCCESS);
            cr_assert_eq(s.engine.cu.mem_release(handle), CUDA_SUCCESS);
        }
        if (what == DMA_BUF || what == REGISTRATION) {
            (void)close(fd);
            cr_assert_eq(s.engine.cu.mem_range_handle(&fd, s.memory.at, LEN,
                                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
                         CUDA_SUCCESS);
        }
        if (what == REGISTRATION) { /* as a NIC's: it outlives the descriptor */
            pinned = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0);
            cr_assert_neq(pinned, MAP_FAILED);
        }
        if (what != FD && what != DMA_BUF) {
            (void)close(fd);
        }

        sleep_engine(&s);
        cr_assert_eq(cuda_rig_held(&s.rig), s.asleep + LEN, "forgotten reference %d", what);

        if (what == FD || what == DMA_BUF) {
            (void)close(fd);
        } else if (what == UNREAD) {
            (void)close(sockets[0]);
            (void)close(sockets[1]);
        } else if (what == CHILD) {
            (void)kill(child, SIGKILL);
            (void)waitpid(child, NULL, 0);
        } else if (what == HANDLE) {
            (void)s.engine.cu.mem_release(handle);
        } else if (what == MAPPING) {
            engine_free(&s.engine, &mapping);
        } else if (what == REGISTRATION) {
            (void)munmap(pinned, LEN);
        }
        cr_assert_eq(cuda_rig_held(&s.rig), s.asleep, "given back %d", what);
        wake_engine(&s);
    }
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

/* ---- every step goes wrong once ---- */

/* fresh: with a helper that starts, too. */
static void fail_imports(enum fake_cuda_action action, int code, kvb_status_t want_a,
                         kvb_status_t want_b, bool fresh)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    if (!fresh) {
        cr_assert_eq(register_region(&s), KVB_OK);
        cr_assert_eq(unregister_region(&s), KVB_OK);
    }
    uint32_t steps = 0;
    for (uint32_t n = 1;; n++) {
        uint64_t before = cuda_rig_held(&s.rig);
        hand_over(&s);
        cuda_rig_arm(&s.rig, n, action, code);
        kvb_status_t status = register_region(&s);
        char what[64];
        (void)snprintf(what, sizeof what, "call %u: %s", n, cuda_rig_fired(&s.rig));
        bool fired = cuda_rig_disarm(&s.rig);
        if (!fired) {
            cr_assert_eq(status, KVB_OK, "%s", what);
            break;
        }
        steps++;
        cr_assert(status == want_a || status == want_b, "%s: %s", what, kvb_status_label(status));
        cr_assert(cuda_rig_comes_to(&s.rig, before), "%s: nothing leaked", what);
        cr_assert_eq(register_region(&s), KVB_OK, "%s: the retry works", what);
        cr_assert_eq(move(&s, KVT_TO_SHARE, 0, 4096, 0), KVB_OK, "%s", what);
        cr_assert_eq(unregister_region(&s), KVB_OK, "%s", what);
        cr_assert_eq(cuda_rig_held(&s.rig), before, "%s", what);
        if (fresh) {
            kvt_region_destroy(s.region);
            s.region = NULL;
            close_device(&s);
            open_device(&s);
        }
    }
    cr_assert_geq(steps, fresh ? 15 : 11, "%u steps", steps);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

Test(cuda, each_step_of_importing_fails_once_and_nothing_leaks, .timeout = 600)
{
    fail_imports(FAKE_CUDA_FAIL, CUDA_ERROR_OUT_OF_MEMORY, KVB_ERR_NO_MEMORY, KVB_ERR_UNSUPPORTED,
                 true);
}

Test(cuda, each_step_of_importing_fails_in_a_helper_that_runs, .timeout = 600)
{
    fail_imports(FAKE_CUDA_FAIL, CUDA_ERROR_NOT_PERMITTED, KVB_ERR_IO, KVB_ERR_IO, false);
}

Test(cuda, the_helper_dies_at_each_step_of_importing, .timeout = 600)
{
    fail_imports(FAKE_CUDA_DIE, 0, KVB_ERR_UNAVAILABLE, KVB_ERR_UNAVAILABLE, true);
}

static bool fired_or_registered(void *arg)
{
    const struct setup *s = arg;
    return s->registered || atomic_load(&s->rig.control->fired) > 0;
}

/* Given up when it hangs: that needs no bound that a slow machine could meet by itself. */
Test(cuda, the_helper_hangs_at_each_step_of_importing_and_is_killed, .timeout = 600)
{
    struct setup s;
    setup(&s);
    uint32_t steps = 0;
    for (uint32_t n = 1;; n++) {
        hand_over(&s);
        cuda_rig_arm(&s.rig, n, FAKE_CUDA_HANG, 0);
        start_register(&s, LIMIT_MS);
        cr_assert_eq(kvt_region_state(s.region), KVT_REGION_REGISTERING);
        cr_assert(real_run_until(&s.loop, fired_or_registered, &s, LIMIT_MS));
        if (s.registered) {
            break;
        }
        steps++;
        cr_assert_eq(unregister_within(&s, 1, 100), KVB_OK);
        cr_assert(s.registered);
        cr_assert_eq(s.register_status, KVB_ERR_CANCELED);
        cr_assert_eq(kvt_region_state(s.region), KVT_REGION_UNREGISTERED);
        cr_assert(cuda_rig_comes_to(&s.rig, s.asleep + LEN), "%s", cuda_rig_fired(&s.rig));
        cr_assert_eq(info(&s).kills, steps);
    }
    cr_assert(!cuda_rig_disarm(&s.rig));
    cr_assert_geq(steps, 15, "%u steps", steps);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

Test(cuda, a_helper_that_hangs_is_killed_when_the_import_is_late)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    atomic_store(&s.rig.control->only, FAKE_CUDA_mem_map + 1);
    cuda_rig_arm(&s.rig, 1, FAKE_CUDA_HANG, 0);
    cr_assert_eq(register_within(&s, 300), KVB_ERR_TIMEOUT);
    (void)cuda_rig_disarm(&s.rig);
    cr_assert(cuda_rig_comes_to(&s.rig, s.asleep + LEN));
    cr_assert_eq(register_region(&s), KVB_OK, "the retry works");
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

Test(cuda, the_context_is_lost_at_each_step_of_importing, .timeout = 600)
{
    fail_imports(FAKE_CUDA_POISON, CUDA_ERROR_ILLEGAL_ADDRESS, KVB_ERR_IO, KVB_ERR_UNSUPPORTED,
                 true);
}

/* mem_access fails and then mem_unmap, which was to undo what came before. */
Test(cuda, an_import_whose_undoing_fails_too_is_undone_again_or_killed)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    for (uint32_t burst = 1; burst <= 2; burst++) {
        hand_over(&s);
        /* import, properties, granularity, context, its being current, streams, pool, address,
         * mapping: the eleventh */
        cuda_rig_arm(&s.rig, 11, FAKE_CUDA_FAIL, CUDA_ERROR_OPERATING_SYSTEM);
        atomic_store(&s.rig.control->burst, burst);
        cr_assert_eq(register_region(&s), KVB_ERR_IO);
        cr_assert_eq(atomic_load(&s.rig.control->fired), 1 + burst);
        cr_assert_str_eq(cuda_rig_fired(&s.rig), "cuMemUnmap");
        (void)cuda_rig_disarm(&s.rig);
        cr_assert(cuda_rig_comes_to(&s.rig, s.asleep + LEN), "burst %u", burst);
        cr_assert_eq(info(&s).kills, burst == 2, "burst %u", burst);
        cr_assert_not_null(strstr(info(&s).cause, burst == 1 ? "mem_access" : "mem_unmap"));
        cr_assert_eq(register_region(&s), KVB_OK);
        cr_assert_eq(unregister_region(&s), KVB_OK);
    }
    cleanup(&s);
}

static void fail_releases(enum fake_cuda_action action, int code, uint64_t drain_ms,
                          uint64_t stop_ms, bool restarts)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    uint32_t steps = 0;
    for (uint32_t n = 1;; n++) {
        cr_assert_eq(register_region(&s), KVB_OK);
        uint32_t starts = info(&s).starts;
        cuda_rig_arm(&s.rig, n, action, code);
        cr_assert_eq(unregister_within(&s, drain_ms, stop_ms), KVB_OK);
        char what[64];
        (void)snprintf(what, sizeof what, "call %u: %s", n, cuda_rig_fired(&s.rig));
        bool fired = cuda_rig_disarm(&s.rig);
        cr_assert(cuda_rig_comes_to(&s.rig, s.asleep + LEN), "%s: nothing leaked", what);
        hand_over(&s);
        if (!fired) {
            break;
        }
        steps++;
        cr_assert_eq(register_region(&s), KVB_OK, "%s", what);
        cr_assert_eq(info(&s).starts, starts + restarts, "%s", what);
        cr_assert_eq(move(&s, KVT_TO_SHARE, 0, 4096, 0), KVB_OK, "%s", what);
        cr_assert_eq(unregister_region(&s), KVB_OK);
        hand_over(&s);
    }
    cr_assert_geq(steps, 8, "%u steps", steps);
    cleanup(&s);
}

Test(cuda, each_step_of_releasing_fails_once_and_is_done_again, .timeout = 600)
{
    fail_releases(FAKE_CUDA_FAIL, CUDA_ERROR_OPERATING_SYSTEM, LIMIT_MS, LIMIT_MS, false);
}

Test(cuda, the_helper_dies_at_each_step_of_releasing_which_is_a_release, .timeout = 600)
{
    fail_releases(FAKE_CUDA_DIE, 0, LIMIT_MS, LIMIT_MS, true);
}

Test(cuda, the_helper_hangs_at_each_step_of_releasing_and_is_killed, .timeout = 600)
{
    fail_releases(FAKE_CUDA_HANG, 0, 100, 1600, true);
}

Test(cuda, the_context_is_lost_at_each_step_of_releasing, .timeout = 600)
{
    fail_releases(FAKE_CUDA_POISON, CUDA_ERROR_ILLEGAL_ADDRESS, LIMIT_MS, LIMIT_MS, true);
}

static void fail_copies(enum fake_cuda_action action, int code, kvb_status_t want, bool survives)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    uint32_t steps = 0;
    for (enum kvt_direction direction = KVT_TO_SHARE; direction <= KVT_FROM_SHARE; direction++) {
        for (uint32_t n = 1;; n++) {
            cr_assert_eq(register_region(&s), KVB_OK);
            cuda_rig_arm(&s.rig, n, action, code);
            kvb_status_t status = move(&s, direction, 0, POOL, 0); /* all of the pool */
            char what[64];
            (void)snprintf(what, sizeof what, "call %u: %s", n, cuda_rig_fired(&s.rig));
            bool fired = cuda_rig_disarm(&s.rig);
            cr_assert_eq(status, fired ? want : KVB_OK, "%s: %s", what, kvb_status_label(status));
            if (fired && survives) {
                cr_assert_eq(move(&s, direction, 0, POOL, 0), KVB_OK, "%s", what);
            } else if (fired) {
                cr_assert_eq(kvt_transfer_start(s.transport, &s.transfer[0]), KVB_OK);
                run_until_ended(&s, 1);
                cr_assert(s.status[0] == KVB_ERR_UNAVAILABLE, "%s: the region went with it", what);
            }
            cr_assert_eq(unregister_region(&s), KVB_OK, "%s", what);
            cr_assert(cuda_rig_comes_to(&s.rig, s.asleep + LEN), "%s", what);
            hand_over(&s);
            if (!fired) {
                break;
            }
            steps++;
        }
    }
    cr_assert_geq(steps, 6, "%u steps", steps);
    cleanup(&s);
}

Test(cuda, each_step_of_copying_fails_once, .timeout = 600)
{
    fail_copies(FAKE_CUDA_FAIL, CUDA_ERROR_OPERATING_SYSTEM, KVB_ERR_IO, true);
}

Test(cuda, the_helper_dies_at_each_step_of_copying, .timeout = 600)
{
    fail_copies(FAKE_CUDA_DIE, 0, KVB_ERR_UNAVAILABLE, false);
}

Test(cuda, the_context_is_lost_at_each_step_of_copying, .timeout = 600)
{
    fail_copies(FAKE_CUDA_POISON, CUDA_ERROR_ILLEGAL_ADDRESS, KVB_ERR_IO, false);
}

/* ---- this process is out of something ---- */

Test(cuda, each_allocation_fails_once_and_a_retry_works, .timeout = 600)
{
    struct setup s;
    setup(&s);
    close_device(&s);
    uint64_t failures = 0;
    bool hit = true;
    for (uint64_t n = 0; hit; n++) { /* opening */
        struct kvt_cuda_config config = {.sched = &s.loop.sim.sched,
                                         .io = &s.loop.io,
                                         .regions = s.regions,
                                         .program = program(),
                                         .lock_path = s.lock_path,
                                         .owner = 7,
                                         .pool_len = POOL,
                                         .start_ms = LIMIT_MS};
        size_t fds = test_count_fds();
        fail_alloc_arm(n);
        kvb_status_t status = kvt_cuda_open(&config, &s.device);
        hit = fail_alloc_disarm();
        cr_assert_eq(status, hit ? KVB_ERR_NO_MEMORY : KVB_OK);
        cr_assert(!hit || test_count_fds() == fds);
        failures += hit;
    }
    hand_over(&s);
    hit = true;
    for (uint64_t n = 0; hit; n++) { /* importing, with a helper that starts */
        fail_alloc_arm(n);
        kvb_status_t status = register_region(&s);
        hit = fail_alloc_disarm();
        cr_assert(hit ? status == KVB_ERR_NO_MEMORY : status == KVB_OK, "%s",
                  kvb_status_label(status));
        cr_assert(cuda_rig_comes_to(&s.rig, s.asleep + LEN + (hit ? 0 : FAKE_CUDA_CONTEXT)));
        failures += hit;
    }
    for (enum kvt_direction direction = KVT_TO_SHARE; direction <= KVT_FROM_SHARE; direction++) {
        hit = true;
        for (uint64_t n = 0; hit; n++) { /* copying */
            start_transfer(&s, 0, direction, 0, 8192, 0);
            run_until_ended(&s, 1);
            cr_assert_eq(s.status[0], KVB_OK);
            fail_alloc_arm(n);
            kvb_status_t status = kvt_transfer_start(s.transport, &s.transfer[0]);
            if (status == KVB_OK) {
                run_until_ended(&s, 1);
                status = s.status[0];
            }
            hit = fail_alloc_disarm();
            cr_assert_eq(status, hit ? KVB_ERR_NO_MEMORY : KVB_OK);
            failures += hit;
        }
    }
    hit = true;
    for (uint64_t n = 0; hit; n++) { /* letting go: always */
        fail_alloc_arm(n);
        cr_assert_eq(unregister_region(&s), KVB_OK);
        hit = fail_alloc_disarm();
        cr_assert(cuda_rig_comes_to(&s.rig, s.asleep + LEN));
        hand_over(&s);
        cr_assert_eq(register_region(&s), KVB_OK);
        failures += hit;
    }
    cr_assert_geq(failures, 12, "%u", (unsigned)failures);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

Test(cuda, a_helper_that_cannot_be_watched_is_not_left_behind)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    for (uint64_t n = 0; n < 2; n++) {
        size_t fds = test_count_fds();
        s.loop.fail_watch_after = n;
        cr_assert_eq(register_region(&s), KVB_ERR_NO_MEMORY);
        s.loop.fail_watch_after = UINT64_MAX;
        cr_assert_eq(test_count_fds(), fds);
        cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1, "no child is left");
        cr_assert(cuda_rig_comes_to(&s.rig, s.asleep + LEN));
    }
    cr_assert_eq(register_region(&s), KVB_OK);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

Test(cuda, a_process_out_of_descriptors_says_so)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    size_t fds = test_count_fds() - 3; /* ".", ".." and the folder itself */
    struct rlimit old, few;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    for (size_t n = 0; n < 3; n++) {
        few = (struct rlimit){.rlim_cur = fds + n, .rlim_max = old.rlim_max};
        cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
        kvb_status_t status = register_region(&s);
        cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
        cr_assert_eq(status, KVB_ERR_LIMIT, "%zu more: %s", n, kvb_status_label(status));
        cr_assert_eq(test_count_fds() - 3, fds);
    }
    cr_assert_eq(register_region(&s), KVB_OK);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

/* ---- one's fault is not another's ---- */

Test(cuda, a_lost_context_is_told_with_its_cause_and_harms_no_other_engine)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    struct kvt_device *first = s.device;
    struct kvt_region *first_region = s.region;
    s.region = NULL;
    (void)snprintf(s.lock_path, sizeof s.lock_path, "%s/lock2", s.rig.dir);
    open_device(&s); /* another engine */
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    struct kvt_region *second_region = s.region;
    struct kvt_device *second = s.device;

    s.device = first;
    s.region = first_region;
    atomic_store(&s.rig.control->only, FAKE_CUDA_stream_sync + 1);
    cuda_rig_arm(&s.rig, 1, FAKE_CUDA_POISON, CUDA_ERROR_ILLEGAL_ADDRESS);
    cr_assert_eq(move(&s, KVT_TO_SHARE, 0, 4096, 0), KVB_ERR_IO);
    cr_assert(cuda_rig_disarm(&s.rig));
    cr_assert_not_null(strstr(info(&s).cause, "stream_sync: CUDA_ERROR_ILLEGAL_ADDRESS"), "%s",
                       info(&s).cause);
    s.region = second_region;
    cr_assert_eq(move(&s, KVT_TO_SHARE, 0, 4096, 0), KVB_OK, "the other serves on");
    cr_assert_eq(unregister_region(&s), KVB_OK);
    kvt_region_destroy(s.region);
    s.region = first_region;
    cr_assert_eq(unregister_region(&s), KVB_OK);
    kvt_region_destroy(s.region);
    s.region = NULL;
    close_device(&s);
    s.device = second;
    cleanup(&s);
}

/* ---- stopping ---- */

Test(cuda, a_region_is_let_go_of_within_its_bound_while_a_copy_does_not_end)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    atomic_store(&s.rig.control->paused, 1);
    start_transfer(&s, 0, KVT_TO_SHARE, 0, 4096, 0);
    uint64_t began_ns = real_now_ns();
    cr_assert_eq(unregister_within(&s, 50, 3000), KVB_OK);
    cr_assert_lt(real_now_ns() - began_ns, 10 * KVB_NS_PER_S);
    cr_assert_eq(s.ends, 1, "the transfer ended before");
    cr_assert_eq(s.status[0], KVB_ERR_CANCELED);
    atomic_store(&s.rig.control->paused, 0);
    engine_release(&s.engine, &s.memory);
    cr_assert(cuda_rig_comes_to(&s.rig, s.asleep));
    cr_assert_eq(info(&s).kills, 1);
    cr_assert_eq(atomic_load(&s.rig.control->pieces), 0, "nothing was copied after its end");
    atomic_store(&s.rig.control->queued, 0);
    cleanup(&s);
}

static bool copies_wait(void *arg)
{
    const struct setup *s = arg;
    return atomic_load(&s->rig.control->queued) > 0;
}

Test(cuda, unregistering_waits_for_a_copy_that_ends)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    atomic_store(&s.rig.control->paused, 1);
    start_transfer(&s, 0, KVT_FROM_SHARE, 0, 4096, 0);
    cr_assert(real_run_until(&s.loop, copies_wait, &s, LIMIT_MS));
    start_unregister(&s, LIMIT_MS, 2 * LIMIT_MS);
    real_run_for(&s.loop, 20);
    cr_assert(!s.unregistered);
    atomic_store(&s.rig.control->paused, 0);
    cr_assert(real_run_until(&s.loop, is_true, &s.unregistered, LIMIT_MS));
    cr_assert_eq(s.unregister_status, KVB_OK);
    cr_assert_eq(s.status[0], KVB_OK);
    cr_assert_eq(info(&s).kills, 0);
    s.ends = 0;
    cleanup(&s);
}

Test(cuda, a_region_given_up_while_it_is_imported_is_let_go_of)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    start_register(&s, LIMIT_MS);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cr_assert_eq(s.register_status, KVB_ERR_CANCELED);
    cr_assert_eq(cuda_rig_held(&s.rig), s.asleep + LEN);
    cleanup(&s);
}

Test(cuda, a_cancelled_transfer_ends_canceled_and_gives_its_place_back)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    atomic_store(&s.rig.control->paused, 1);
    start_transfer(&s, 0, KVT_TO_SHARE, 0, POOL, 0);
    start_transfer(&s, 1, KVT_TO_SHARE, 0, POOL, 0); /* waits for its place */
    uint64_t stop_ns = kvb_deadline_in_ms(&kvb_clock_real, LIMIT_MS);
    kvt_transfer_cancel(&s.transfer[1], stop_ns);
    kvt_transfer_cancel(&s.transfer[1], stop_ns);
    run_until_ended(&s, 1);
    cr_assert_eq(s.status[1], KVB_ERR_CANCELED);
    kvt_transfer_cancel(&s.transfer[0], stop_ns);
    cr_assert_eq(s.status[0], KVB_IN_PROGRESS);
    atomic_store(&s.rig.control->paused, 0);
    run_until_ended(&s, 1);
    cr_assert_eq(s.status[0], KVB_ERR_CANCELED);
    cr_assert_eq(move(&s, KVT_TO_SHARE, 0, POOL, 0), KVB_OK);
    cr_assert_eq(info(&s).kills, 0);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

Test(cuda, transfers_that_wait_for_a_place_get_it_in_turn)
{
    static uint8_t bytes[LEN];
    struct setup s;
    setup(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    fill(bytes, sizeof bytes, 3);
    cr_assert_eq(engine_fill(&s.engine, &s.memory, 0, bytes, LEN), CUDA_SUCCESS);
    const uint64_t len = 100000; /* ten of them fit */
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        start_transfer(&s, i, KVT_TO_SHARE, i * 120000, len, i * len);
    }
    run_until_ended(&s, TRANSFERS);
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        cr_assert_eq(s.status[i], KVB_OK);
        cr_assert_arr_eq(s.node + i * len, bytes + i * 120000, len / 2);
        cr_assert_arr_eq(s.node + i * len + len / 2, bytes + i * 120000 + len / 2 + 512, len / 2);
    }
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

Test(cuda, what_the_pool_has_no_room_for_is_refused)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    start_transfer(&s, 0, KVT_TO_SHARE, 0, POOL, 0);
    run_until_ended(&s, 1);
    s.slices[0][1].len++;
    s.extents[0].len++;
    cr_assert_eq(kvt_transfer_start(s.transport, &s.transfer[0]), KVB_ERR_INVALID);
    cr_assert_eq(kvt_region_refs(s.region), 0);
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

/* ---- refusals ---- */

Test(cuda, what_is_no_gpu_memory_is_refused)
{
    struct setup s;
    setup(&s);
    int fd = memfd_create("host", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(fd, LEN), 0);
    hand_over_fd(&s, fd);
    cr_assert_eq(register_region(&s), KVB_ERR_INVALID);
    cr_assert_not_null(strstr(info(&s).cause, "mem_import"));
    cr_assert_eq(info(&s).contexts, 0);
    cleanup(&s);
}

static int fabric_handle(struct setup *s, size_t len)
{
    uint8_t handle[KVT_CU_FABRIC_LEN];
    int fd = memfd_create("handle", MFD_CLOEXEC);
    cr_assert_eq(s->engine.cu.mem_export(handle, s->memory.handle, CU_MEM_HANDLE_TYPE_FABRIC, 0),
                 CUDA_SUCCESS);
    cr_assert_eq(write(fd, handle, len), (ssize_t)len);
    return fd;
}

Test(cuda, memory_of_the_fabric_is_handed_over_as_its_handle)
{
    struct setup s;
    setup(&s);
    engine_free(&s.engine, &s.memory);
    by_fabric = true;
    cr_assert_eq(engine_allocate(&s.engine, &s.memory, LEN, CU_MEM_HANDLE_TYPE_FABRIC),
                 CUDA_SUCCESS);
    hand_over_fd(&s, fabric_handle(&s, KVT_CU_FABRIC_LEN - 1));
    cr_assert_eq(register_region(&s), KVB_ERR_INVALID, "too short");
    int fds[2];
    cr_assert_eq(pipe(fds), 0);
    hand_over_fd(&s, fds[0]); /* whoever reads it waits for ever */
    cr_assert_eq(register_region(&s), KVB_ERR_INVALID);
    (void)close(fds[1]);

    hand_over_fd(&s, fabric_handle(&s, KVT_CU_FABRIC_LEN));
    cr_assert_eq(register_region(&s), KVB_OK);
    check_both_ways(&s);
    engine_release(&s.engine, &s.memory);
    cr_assert_eq(cuda_rig_held(&s.rig), s.asleep + LEN + FAKE_CUDA_CONTEXT,
                 "the import holds it, not the handle");
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cr_assert_eq(cuda_rig_held(&s.rig), s.asleep);
    cleanup(&s);
}

Test(cuda, a_machine_without_a_driver_says_so)
{
    struct setup s;
    setup(&s);
    cr_assert_eq(setenv("LD_LIBRARY_PATH", "", 1), 0);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(info(&s).cause, "no CUDA driver"), "%s", info(&s).cause);
    cleanup(&s);
}

Test(cuda, a_machine_without_a_gpu_says_so)
{
    struct setup s;
    setup(&s);
    cr_assert_eq(unsetenv("FAKE_CUDA_DIR"), 0);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(info(&s).cause, "no device"), "%s", info(&s).cause);
    cleanup(&s);
}

/* It leaves a question unread, which the kernel tells us before its answer. */
Test(cuda, the_last_words_of_a_helper_are_heard)
{
    struct setup s;
    setup(&s);
    cr_assert_eq(unsetenv("FAKE_CUDA_DIR"), 0);
    hand_over(&s);
    start_register(&s, LIMIT_MS);
    siginfo_t how;
    cr_assert_eq(waitid(P_PID, (id_t)info(&s).pid, &how, WEXITED | WNOWAIT), 0);
    cr_assert(real_run_until(&s.loop, is_true, &s.registered, LIMIT_MS));
    cr_assert_eq(s.register_status, KVB_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(info(&s).cause, "no device"), "%s", info(&s).cause);
    cleanup(&s);
}

/* ---- daemons that die, and helpers that are left ---- */

enum { HANGS = 1, FORKED = 2 };

/* Another daemon, with an engine of its own, which is killed with a region registered. HANGS: its
 * helper then hangs in the driver. FORKED: a child of the daemon's lives on, and has its socket. */
static void daemon_is_killed(int how)
{
    struct cuda_rig rig;
    if (!cuda_rig_init(&rig, 64)) {
        cr_skip_test("nothing can be mounted here");
    }
    int done[2];
    cr_assert_eq(pipe(done), 0);
    pid_t daemon = fork();
    if (daemon == 0) {
        static struct setup s;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        now = &s;
        s.rig = rig;
        real_init(&s.loop, 1);
        atomic_store(&rig.control->spared, (int)getpid());
        kvb_assert(kvt_regions_create(&s.loop.sim.sched, &s.regions) == KVB_OK);
        (void)snprintf(s.lock_path, sizeof s.lock_path, "%s/lock", rig.dir);
        open_device(&s);
        setup_engine(&s);
        hand_over(&s);
        kvb_assert(register_region(&s) == KVB_OK);
        if ((how & HANGS) != 0) {
            cuda_rig_arm(&rig, 1, FAKE_CUDA_HANG, 0);
            start_unregister(&s, LIMIT_MS, 2 * LIMIT_MS);
            while (atomic_load(&rig.control->fired) == 0) {
                real_run_for(&s.loop, 1);
            }
        }
        engine_free(&s.engine, &s.memory);
        pid_t child = (how & FORKED) != 0 ? fork() : getpid();
        if (child != 0) {
            kvb_assert(write(done[1], &child, sizeof child) == sizeof child);
        }
        for (;;) {
            (void)pause();
        }
    }
    pid_t child;
    cr_assert_eq(read(done[0], &child, sizeof child), sizeof child);
    cr_assert_eq(cuda_rig_held(&rig), LEN + 2 * FAKE_CUDA_CONTEXT, "the helper has it");
    cr_assert_eq(kill(daemon, SIGKILL), 0);
    cr_assert_eq(waitpid(daemon, NULL, 0), daemon);
    if ((how & FORKED) != 0) { /* it has the engine's context, being its child, too */
        cr_assert(cuda_rig_comes_to(&rig, FAKE_CUDA_CONTEXT));
        cr_assert_eq(kill(child, SIGKILL), 0);
    }
    cr_assert(cuda_rig_comes_to(&rig, 0), "%llu bytes are held",
              (unsigned long long)cuda_rig_held(&rig));
    (void)close(done[0]);
    (void)close(done[1]);
    cuda_rig_cleanup(&rig);
}

Test(cuda, a_helper_ends_with_its_daemon)
{
    daemon_is_killed(0);
}

Test(cuda, a_helper_that_hangs_ends_with_its_daemon)
{
    daemon_is_killed(HANGS);
}

Test(cuda, a_helper_ends_with_its_daemon_though_a_child_of_that_has_its_socket)
{
    daemon_is_killed(FORKED);
    daemon_is_killed(FORKED | HANGS);
}

/* By hand: nobody kills it here, and its parent lives on. */
Test(cuda, a_helper_that_hangs_ends_when_its_socket_is_closed)
{
    struct setup s;
    setup(&s);
    int sockets[2];
    char lock[160], parent[16];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    (void)snprintf(lock, sizeof lock, "%s/lock2", s.rig.dir);
    (void)snprintf(parent, sizeof parent, "%d", (int)getpid());
    cuda_rig_arm(&s.rig, 1, FAKE_CUDA_HANG, 0);
    pid_t pid = fork();
    if (pid == 0) {
        int pool = memfd_create("pool", 0);
        (void)!ftruncate(pool, POOL);
        (void)dup2(pool, 100);
        (void)dup2(sockets[1], KVT_CUDA_SOCKET_FD);
        (void)dup2(100, KVT_CUDA_POOL_FD);
        (void)execl(program(), program(), KVT_CUDA_HELPER_COMMAND, lock, parent, NULL);
        _exit(127);
    }
    (void)close(sockets[1]);
    for (uint32_t i = 0; i < LIMIT_MS && atomic_load(&s.rig.control->fired) == 0; i++) {
        real_run_for(&s.loop, 1);
    }
    cr_assert(cuda_rig_disarm(&s.rig));
    cr_assert_eq(waitpid(pid, NULL, WNOHANG), 0);
    (void)close(sockets[0]);
    int how;
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    cr_assert(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    cleanup(&s);
}

/* Somebody who holds the lock and does not end by himself. */
static pid_t hold_lock(const struct setup *s)
{
    int done[2];
    char byte;
    cr_assert_eq(pipe(done), 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        kvb_assert(cuda_lock_take(s->lock_path) == KVB_OK && write(done[1], "x", 1) == 1);
        for (;;) {
            (void)pause();
        }
    }
    cr_assert_eq(read(done[0], &byte, 1), 1);
    (void)close(done[0]);
    (void)close(done[1]);
    return pid;
}

Test(cuda, a_helper_left_by_an_earlier_daemon_is_ended_before_anything_is_accepted)
{
    struct setup s;
    setup(&s);
    pid_t left = hold_lock(&s);
    kvb_status_t status;
    cr_assert_eq(kvt_cuda_evict(s.lock_path), KVB_ERR_BUSY, "killed, not known to be gone");
    while ((status = kvt_cuda_evict(s.lock_path)) == KVB_ERR_BUSY) {
    }
    cr_assert_eq(status, KVB_OK);
    int how;
    cr_assert_eq(waitpid(left, &how, 0), left);
    cr_assert(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    cr_assert_eq(kvt_cuda_evict(s.lock_path), KVB_OK, "nobody has it");
    cleanup(&s);
}

Test(cuda, a_helper_takes_the_lock_of_its_engine_before_it_does_anything)
{
    struct setup s;
    setup(&s);
    pid_t left = hold_lock(&s);
    hand_over(&s);
    cr_assert_eq(register_region(&s), KVB_OK);
    cr_assert_eq(waitpid(left, NULL, 0), left);
    cr_assert_eq(cuda_lock_take(s.lock_path), KVB_ERR_BUSY, "and keeps it");
    cr_assert_eq(unregister_region(&s), KVB_OK);
    cleanup(&s);
}

Test(cuda, the_loop_turns_while_the_driver_hangs)
{
    struct setup s;
    setup(&s);
    hand_over(&s);
    cuda_rig_arm(&s.rig, 1, FAKE_CUDA_HANG, 0);
    start_register(&s, LIMIT_MS);
    cr_assert(real_run_until(&s.loop, fired_or_registered, &s, LIMIT_MS));
    uint64_t end_ns = real_now_ns() + LIMIT_MS * KVB_NS_PER_MS;
    uint32_t turns = 0;
    for (; turns < 200 && real_now_ns() < end_ns; turns++) {
        real_run_for(&s.loop, 1);
    }
    cr_assert_eq(turns, 200, "nothing of it waits in the loop");
    cr_assert(!s.registered);
    cr_assert_eq(unregister_within(&s, 1, 200), KVB_OK);
    cr_assert(cuda_rig_disarm(&s.rig));
    cleanup(&s);
}
