/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include "http_client.h"

#include "base/clock.h"
#include "engine.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define EXPORTED CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define MEMFD    "rank-memory"

static const char *const tag_names[RANK_TAGS] = {"kv_cache", "weights"};

uint64_t ranks_now_ms(void)
{
    return kvb_now_ns(&kvb_clock_real) / KVB_NS_PER_MS;
}

void ranks_pause(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* ==== a rank: everything here runs in its process ==== */

struct memory { /* of one tag */
    struct cuda_memory device;
    int fd; /* host memory; -1: none */
    uint8_t *host;
    uint8_t *aside; /* offloaded */
};

static struct {
    struct rank_page *page;
    uint32_t index;
    enum kvplane_memory kind;
    struct cuda_engine engine;
    struct kvplane *kv;
    struct memory memory[RANK_TAGS];
    uint64_t generation;
    uint8_t block[RANK_BLOCK];
    int status; /* of the put or get that was asked */
} me;

static uint8_t pattern(size_t i, uint32_t seed)
{
    return (uint8_t)(i * 31 + (i >> 9) + seed * 101 + 7);
}

static void fill_block(uint32_t seed)
{
    for (size_t i = 0; i < RANK_BLOCK; i++) {
        me.block[i] = pattern(i, seed);
    }
}

static bool write_memory(struct memory *memory, const void *from, size_t len)
{
    if (me.kind == KVPLANE_MEMORY_HOST) {
        memcpy(memory->host, from, len);
        return true;
    }
    return engine_fill(&me.engine, &memory->device, 0, from, len) == CUDA_SUCCESS;
}

static bool read_memory(struct memory *memory, void *to, size_t len)
{
    if (me.kind == KVPLANE_MEMORY_HOST) {
        memcpy(to, memory->host, len);
        return true;
    }
    return engine_read(&me.engine, &memory->device, 0, to, len) == CUDA_SUCCESS;
}

/* What is left of it can be tried again. */
static bool give_up(struct memory *memory)
{
    if (me.kind == KVPLANE_MEMORY_HOST) {
        if (memory->host != NULL) {
            (void)munmap(memory->host, RANK_LEN);
            (void)close(memory->fd);
            memory->host = NULL;
            memory->fd = -1;
        }
        return true;
    }
    struct cuda_memory *device = &memory->device;
    if (device->mapped) {
        if (me.engine.cu.mem_unmap(device->at, device->len) != CUDA_SUCCESS) {
            return false;
        }
        device->mapped = false;
    }
    if (device->handle != 0) {
        if (me.engine.cu.mem_release(device->handle) != CUDA_SUCCESS) {
            return false;
        }
        device->handle = 0;
    }
    return true;
}

static bool take(struct memory *memory)
{
    if (me.kind == KVPLANE_MEMORY_HOST) {
        memory->fd = memfd_create(MEMFD, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        kvb_assert(memory->fd >= 0 && ftruncate(memory->fd, RANK_LEN) == 0 &&
                   fcntl(memory->fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
        memory->host = mmap(NULL, RANK_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
        kvb_assert(memory->host != MAP_FAILED);
        return true;
    }
    if (engine_allocate(&me.engine, &memory->device, RANK_LEN, EXPORTED) == CUDA_SUCCESS) {
        return true;
    }
    kvb_assert(give_up(memory)); /* only one call fails at a time */
    return false;
}

static void on_registered(void *arg, int result)
{
    (void)arg;
    (void)atomic_fetch_add(result == KVPLANE_OK ? &me.page->registered : &me.page->refused, 1);
}

static bool hand_over(uint32_t tag)
{
    struct memory *memory = &me.memory[tag];
    bool host = me.kind == KVPLANE_MEMORY_HOST;
    int fd = host ? memory->fd : engine_export(&me.engine, &memory->device);
    struct kvplane_region region = {.region = tag,
                                    .tag = tag_names[tag],
                                    .kind = me.kind,
                                    .fd = fd,
                                    .len = RANK_LEN,
                                    .generation = ++me.generation};
    if (fd < 0) {
        return false;
    }
    kvb_assert(kvplane_register_region(me.kv, &region, on_registered, NULL) == KVPLANE_OK);
    if (!host) {
        (void)close(fd);
    }
    return true;
}

static uint32_t tag_of(const char *name)
{
    return strcmp(name, tag_names[0]) == 0 ? 0 : 1;
}

static void die(void)
{
    atomic_store(&me.page->dying, 1);
    (void)raise(SIGKILL);
}

/* At the beginning of each call. True: it dies at its end. */
static bool enter(void)
{
    (void)atomic_fetch_add(&me.page->calls, 1);
    unsigned left = atomic_load(&me.page->die_at);
    while (left > 0 && !atomic_compare_exchange_weak(&me.page->die_at, &left, left - 1)) {
    }
    if (left == 1 && atomic_load(&me.page->die_late) == 0) {
        die();
    }
    return left == 1;
}

static void leave(bool dies)
{
    if (dies) {
        die();
    }
}

static void on_pause(void *ctx, struct kvplane_call *call, enum kvplane_pause_mode mode)
{
    (void)ctx;
    (void)mode;
    bool dies = enter();
    atomic_store(&me.page->paused, 1);
    leave(dies);
    kvplane_answer(call, KVPLANE_OK);
}

static void on_resume(void *ctx, struct kvplane_call *call)
{
    (void)ctx;
    bool dies = enter();
    for (uint32_t i = 0; i < RANK_TAGS; i++) {
        kvb_assert(atomic_load(&me.page->residency[i]) == KVPLANE_RESIDENT);
    }
    atomic_store(&me.page->paused, 0);
    leave(dies);
    kvplane_answer(call, KVPLANE_OK);
}

static void on_reset_local(void *ctx, struct kvplane_call *call, bool preempt)
{
    (void)ctx;
    (void)preempt;
    bool dies = enter();
    leave(dies);
    kvplane_answer(call, KVPLANE_OK);
}

static bool release_tag(uint32_t tag, bool commit, bool offload)
{
    struct memory *memory = &me.memory[tag];
    bool resident = atomic_load(&me.page->residency[tag]) == KVPLANE_RESIDENT;
    if (offload && resident && memory->aside == NULL) {
        memory->aside = malloc(RANK_LEN);
        kvb_assert(memory->aside != NULL);
        if (!read_memory(memory, memory->aside, RANK_LEN)) {
            free(memory->aside);
            memory->aside = NULL;
            return false;
        }
    }
    if (!commit) {
        return true;
    }
    if (!offload) {
        free(memory->aside);
        memory->aside = NULL;
    }
    (void)atomic_fetch_add(&me.page->commits, 1);
    if (!give_up(memory)) {
        return false;
    }
    atomic_store(&me.page->residency[tag], offload ? KVPLANE_OFFLOADED : KVPLANE_DISCARDED);
    return true;
}

static void on_release(void *ctx, struct kvplane_call *call, bool commit, const char *const *tags,
                       const bool *offload, size_t ntags)
{
    (void)ctx;
    bool dies = enter();
    bool ok = true;
    for (size_t i = 0; i < ntags && ok; i++) {
        ok = release_tag(tag_of(tags[i]), commit, offload[i]);
    }
    leave(dies);
    kvplane_answer(call, ok ? KVPLANE_OK : KVPLANE_ERR_IO);
}

/* All of it, or as it was. */
static bool restore_tag(uint32_t tag)
{
    struct memory *memory = &me.memory[tag];
    if (atomic_load(&me.page->residency[tag]) == KVPLANE_RESIDENT) {
        return hand_over(tag);
    }
    if (!take(memory)) {
        return false;
    }
    fill_block(1000 + tag);
    bool ok = memory->aside != NULL ? write_memory(memory, memory->aside, RANK_LEN)
                                    : write_memory(memory, me.block, RANK_BLOCK);
    if (ok && memory->aside != NULL) {
        ok = read_memory(memory, me.block, RANK_BLOCK);
        for (size_t i = 0; ok && i < RANK_BLOCK; i++) {
            (void)atomic_fetch_add(&me.page->wrong_bytes, me.block[i] != pattern(i, 1000 + tag));
        }
    }
    if (!ok || !hand_over(tag)) {
        kvb_assert(give_up(memory));
        return false;
    }
    free(memory->aside);
    memory->aside = NULL;
    atomic_store(&me.page->residency[tag], KVPLANE_RESIDENT);
    return true;
}

static void on_restore(void *ctx, struct kvplane_call *call, const char *const *tags, size_t ntags)
{
    (void)ctx;
    bool dies = enter();
    bool ok = true;
    for (size_t i = 0; i < ntags && ok; i++) {
        ok = restore_tag(tag_of(tags[i]));
    }
    leave(dies);
    kvplane_answer(call, ok ? KVPLANE_OK : KVPLANE_ERR_IO);
}

static void on_lineage(void *ctx, bool left, const char *name)
{
    (void)ctx;
    (void)left;
    (void)name;
    bool dies = enter();
    leave(dies);
}

static void on_state(void *ctx, struct kvplane_state *state)
{
    (void)ctx;
    if (atomic_load(&me.page->attached) != 0) {
        bool dies = enter();
        leave(dies);
    }
    state->paused = atomic_load(&me.page->paused) != 0;
    state->local_reset_done = true;
    state->ntags = RANK_TAGS;
    for (uint32_t i = 0; i < RANK_TAGS; i++) {
        state->tags[i].tag = tag_names[i];
        state->tags[i].residency = (enum kvplane_residency)atomic_load(&me.page->residency[i]);
    }
}

static void on_attached(void *ctx, int result)
{
    (void)ctx;
    if (result != KVPLANE_OK) { /* its place may still be taken by the one that died */
        ranks_pause();
        kvb_assert(kvplane_reattach(me.kv) == KVPLANE_OK);
        return;
    }
    for (uint32_t i = 0; i < RANK_TAGS; i++) {
        if (atomic_load(&me.page->residency[i]) == KVPLANE_RESIDENT) {
            kvb_assert(hand_over(i));
        }
    }
    atomic_store(&me.page->attached, 1);
}

static void on_disconnected(void *ctx, int reason)
{
    (void)ctx;
    (void)reason;
    (void)kvplane_reattach(me.kv);
}

static void on_moved(void *arg, const int *results, size_t n)
{
    (void)arg;
    (void)n;
    me.status = results[0];
}

static int wait_moved(int started)
{
    me.status = started;
    while (started == KVPLANE_OK && kvplane_pending(me.kv) > 0) {
        (void)kvplane_wait(me.kv, 10);
    }
    return me.status;
}

/* Puts a block of the KV cache, and gets it back to where something else lies by then. */
static int put_and_get(uint32_t nonce)
{
    char key[48];
    int len = snprintf(key, sizeof key, "%u/%u/%d", me.index, nonce, (int)getpid());
    struct kvplane_slice slice = {.region = 0, .len = RANK_BLOCK};
    kvplane_token token = kvplane_get_token(me.kv);
    struct kvplane_entry entry = {.key = key,
                                  .key_len = (size_t)len,
                                  .part = me.index,
                                  .token = token,
                                  .slices = &slice,
                                  .nslices = 1};
    fill_block(nonce);
    kvb_assert(write_memory(&me.memory[0], me.block, RANK_BLOCK));
    int status = wait_moved(kvplane_put(me.kv, &entry, 1, on_moved, NULL));
    if (status != KVPLANE_OK) {
        return status;
    }
    memset(me.block, 0xee, RANK_BLOCK);
    kvb_assert(write_memory(&me.memory[0], me.block, RANK_BLOCK));
    status = wait_moved(kvplane_get(me.kv, 1, token, &entry, 1, on_moved, NULL));
    if (status == KVPLANE_OK) {
        kvb_assert(read_memory(&me.memory[0], me.block, RANK_BLOCK));
        for (size_t i = 0; i < RANK_BLOCK; i++) {
            (void)atomic_fetch_add(&me.page->wrong_bytes, me.block[i] != pattern(i, nonce));
        }
    }
    return status;
}

static _Noreturn void rank_main(const struct gpu_fleet *fleet, const struct gpu_instance *instance,
                                uint32_t index)
{
    static const struct kvplane_callbacks calls = {
        .pause = on_pause,
        .resume = on_resume,
        .reset_local = on_reset_local,
        .release = on_release,
        .restore = on_restore,
        .lineage = on_lineage,
        .state = on_state,
        .disconnected = on_disconnected,
        .attached = on_attached,
    };
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)syscall(SYS_close_range, 3u, ~0u, 0);
    me.page = instance->ranks[index].page;
    me.index = index;
    me.kind = instance->kind;
    if (me.kind != KVPLANE_MEMORY_HOST) {
        char why[256];
        kvb_assert(kvt_cu_open(KVT_CU_LIBRARY, &me.engine.cu, why) == KVB_OK);
        kvb_assert(engine_open(&me.engine) == CUDA_SUCCESS);
    }
    for (uint32_t i = 0; i < RANK_TAGS; i++) {
        me.memory[i].fd = -1;
        kvb_assert(take(&me.memory[i]));
        fill_block(1000 + i);
        kvb_assert(write_memory(&me.memory[i], me.block, RANK_BLOCK));
    }
    struct kvplane_options options = {
        .instance = instance->name,
        .layout = "bytes/64KiB",
        .socket = fleet->socket,
        .roles = index == 0 ? KVPLANE_ROLE_BOTH : KVPLANE_ROLE_WORKER,
        .rank = index,
        .world_size = instance->n,
        .callbacks = &calls,
    };
    kvb_assert(kvplane_open(&options, &me.kv) == KVPLANE_OK);
    for (;;) {
        (void)kvplane_wait(me.kv, 2);
        unsigned asked = atomic_load(&me.page->asked);
        if (asked != atomic_load(&me.page->ask)) {
            atomic_store(&me.page->result, put_and_get(asked));
            atomic_store(&me.page->asked, asked + 1);
        }
    }
}

/* ==== the test's side ==== */

static pid_t run_daemon(char *const *argv, int out)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(out, 1);
        (void)execv(argv[0], argv);
        _exit(127);
    }
    return pid;
}

void fleet_start(struct gpu_fleet *fleet, const char *bound, const char *fault)
{
    int out[2];
    char line[256] = "";
    unsigned port = 0;
    size_t len = 0;
    memset(fleet, 0, sizeof *fleet);
    if (!cuda_rig_init(&fleet->rig, 96)) {
        cr_skip_test("nothing can be mounted here");
    }
    (void)snprintf(fleet->socket, sizeof fleet->socket, "%s/engine.sock", fleet->rig.dir);
    char *argv[] = {(char[]){KVPLANE_PROGRAM},
                    (char[]){"serve"},
                    (char[]){"--listen"},
                    (char[]){"127.0.0.1:0"},
                    (char[]){"--engine-socket"},
                    fleet->socket,
                    (char[]){"--store-bytes"},
                    (char[]){"16MiB"},
                    (char[]){"--cuda-pool-bytes"},
                    (char[]){"1MiB"},
                    (char[]){"--transfer-bound"},
                    (char *)(uintptr_t)bound,
                    (char[]){"--log-level"},
                    (char[]){"error"},
                    (char[]){"--fault"},
                    (char *)(uintptr_t)fault,
                    NULL};
    if (fault == NULL) {
        argv[14] = NULL;
    }
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    fleet->daemon = run_daemon(argv, out[1]);
    (void)close(out[1]);
    while (len < sizeof line - 1 && strchr(line, '\n') == NULL) {
        ssize_t n = read(out[0], line + len, sizeof line - 1 - len);
        cr_assert_gt(n, 0, "the daemon starts");
        len += (size_t)n;
    }
    (void)close(out[0]);
    cr_assert_eq(sscanf(line, "kvplane ready http://127.0.0.1:%u", &port), 1, "%s", line);
    fleet->port = (uint16_t)port;
}

void fleet_stop(struct gpu_fleet *fleet)
{
    int how;
    (void)kill(fleet->daemon, SIGTERM);
    cr_assert_eq(waitpid(fleet->daemon, &how, 0), fleet->daemon);
    cr_assert(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    cr_assert(cuda_rig_comes_to(&fleet->rig, 0), "%llu bytes are held",
              (unsigned long long)cuda_rig_held(&fleet->rig));
    cr_assert_eq(atomic_load(&fleet->rig.control->misuse), 0);
    cuda_rig_cleanup(&fleet->rig);
}

void instance_start_rank(struct gpu_fleet *fleet, struct gpu_instance *instance, uint32_t rank)
{
    struct gpu_rank *it = &instance->ranks[rank];
    if (it->page == NULL) {
        it->page =
            mmap(NULL, sizeof *it->page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq((void *)it->page, MAP_FAILED);
    }
    memset(it->page, 0, sizeof *it->page);
    it->pid = fork();
    if (it->pid == 0) {
        rank_main(fleet, instance, rank);
    }
    cr_assert_gt(it->pid, 0);
}

void instance_start(struct gpu_fleet *fleet, struct gpu_instance *instance)
{
    for (uint32_t i = 0; i < instance->n; i++) {
        instance_start_rank(fleet, instance, i);
    }
    for (uint32_t i = 0; i < instance->n; i++) {
        RANKS_UNTIL(atomic_load(&instance->ranks[i].page->registered) == RANK_TAGS,
                    "rank %u of %s is registered", i, instance->name);
    }
    fleet_wait_attached(fleet, instance, true);
}

void instance_reap(struct gpu_instance *instance, uint32_t rank)
{
    cr_assert_eq(waitpid(instance->ranks[rank].pid, NULL, 0), instance->ranks[rank].pid);
    instance->ranks[rank].pid = 0;
}

void instance_stop(struct gpu_fleet *fleet, struct gpu_instance *instance)
{
    for (uint32_t i = 0; i < instance->n; i++) {
        cr_assert_eq(atomic_load(&instance->ranks[i].page->wrong_bytes), 0, "rank %u", i);
        (void)kill(instance->ranks[i].pid, SIGKILL);
        instance_reap(instance, i);
        (void)munmap(instance->ranks[i].page, sizeof *instance->ranks[i].page);
        instance->ranks[i].page = NULL;
    }
    fleet_wait_attached(fleet, instance, false);
}

static void target(const struct gpu_instance *instance, const char *path, char *out, size_t cap)
{
    (void)snprintf(out, cap, "%s%cinstance=%s", path, strchr(path, '?') != NULL ? '&' : '?',
                   instance->name);
}

int fleet_post_start(struct gpu_fleet *fleet, const struct gpu_instance *instance, const char *path)
{
    char at[256];
    char text[512];
    target(instance, path, at, sizeof at);
    (void)snprintf(text, sizeof text,
                   "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                   at);
    int fd = http_connect(fleet->port);
    cr_assert(http_send_text(fd, text));
    return fd;
}

int fleet_post(struct gpu_fleet *fleet, const struct gpu_instance *instance, const char *path,
               char **body_p)
{
    int fd = fleet_post_start(fleet, instance, path);
    struct http_answer answer = http_receive(fd, false);
    (void)close(fd);
    cr_assert_neq(answer.status, 0, "%s was not answered", path);
    if (body_p != NULL) {
        *body_p = answer.body;
        answer.body = NULL;
    }
    int status = answer.status;
    http_answer_free(&answer);
    return status;
}

json_t *fleet_view(struct gpu_fleet *fleet, const struct gpu_instance *instance)
{
    char path[128];
    (void)snprintf(path, sizeof path, "/v1/kvplane/instances/%s", instance->name);
    struct http_answer answer = http_ask(fleet->port, "GET", path, NULL, NULL);
    json_t *view = answer.status == 200 ? json_loads(answer.body, 0, NULL) : json_object();
    http_answer_free(&answer);
    cr_assert_not_null(view);
    return view;
}

json_t *view_rank(const json_t *view, uint32_t rank)
{
    return json_array_get(json_object_get(view, "rank_states"), rank);
}

int fleet_helper_pid(struct gpu_fleet *fleet, const struct gpu_instance *instance, uint32_t rank)
{
    json_t *view = fleet_view(fleet, instance);
    const json_t *helper = json_object_get(view_rank(view, rank), "helper");
    int pid = (int)json_integer_value(json_object_get(helper, "pid"));
    json_decref(view);
    return pid;
}

void fleet_wait_attached(struct gpu_fleet *fleet, const struct gpu_instance *instance,
                         bool attached)
{
    json_t *view = fleet_view(fleet, instance);
    RANKS_UNTIL((json_is_true(json_object_get(view, "attached")) == attached &&
                 json_object_get(view, "operation") == NULL) ||
                    (json_decref(view), view = fleet_view(fleet, instance), false),
                "%s is%s attached", instance->name, attached ? "" : " not");
    json_decref(view);
}

uint64_t fleet_due(struct gpu_fleet *fleet, const struct gpu_instance *const *instances, size_t n)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        json_t *view = fleet_view(fleet, instances[i]);
        for (uint32_t r = 0; r < instances[i]->n; r++) {
            const struct gpu_rank *rank = &instances[i]->ranks[r];
            const json_t *count = json_object_get(view_rank(view, r), "registered_regions");
            bool registered = json_integer_value(count) > 0;
            if (rank->pid == 0 || instances[i]->kind == KVPLANE_MEMORY_HOST) {
                continue;
            }
            bytes += FAKE_CUDA_CONTEXT + (registered ? FAKE_CUDA_CONTEXT : 0);
            for (uint32_t t = 0; t < RANK_TAGS; t++) {
                bool there = atomic_load(&rank->page->residency[t]) == KVPLANE_RESIDENT;
                bytes += there ? RANK_LEN : 0;
            }
        }
        json_decref(view);
    }
    return bytes;
}

uint32_t fleet_host_references(const struct gpu_fleet *fleet)
{
    char path[320];
    char text[512];
    uint32_t n = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/maps", (int)fleet->daemon);
    FILE *maps = fopen(path, "re");
    cr_assert_not_null(maps);
    while (fgets(text, sizeof text, maps) != NULL) {
        n += strstr(text, "/memfd:" MEMFD) != NULL;
    }
    (void)fclose(maps);
    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)fleet->daemon);
    DIR *dir = opendir(path);
    cr_assert_not_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)fleet->daemon, entry->d_name);
        ssize_t len = readlink(path, text, sizeof text - 1);
        text[len > 0 ? len : 0] = '\0';
        n += strstr(text, "/memfd:" MEMFD) != NULL;
    }
    (void)closedir(dir);
    return n;
}

void instance_moves(struct gpu_instance *instance)
{
    for (uint32_t i = 0; i < instance->n; i++) {
        struct rank_page *page = instance->ranks[i].page;
        uint64_t end_ms = ranks_now_ms() + RANK_WAIT_MS;
        int result = KVPLANE_ERR_AGAIN;
        while (result != KVPLANE_OK) { /* it may still be about to open */
            unsigned n = atomic_fetch_add(&page->ask, 1) + 1;
            RANKS_UNTIL(atomic_load(&page->asked) == n, "rank %u has tried", i);
            result = atomic_load(&page->result);
            cr_assert_lt(ranks_now_ms(), end_ms, "rank %u: %s", i, kvplane_strerror(result));
        }
        cr_assert_eq(atomic_load(&page->wrong_bytes), 0, "rank %u", i);
    }
}

bool instance_all(const struct gpu_instance *instance, uint32_t tag,
                  enum kvplane_residency residency)
{
    for (uint32_t i = 0; i < instance->n; i++) {
        if (atomic_load(&instance->ranks[i].page->residency[tag]) != residency) {
            return false;
        }
    }
    return true;
}
