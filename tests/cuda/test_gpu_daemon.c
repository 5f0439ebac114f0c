/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program itself with an engine whose KV lies in GPU memory, on the fake driver: this process
 * is the engine, through the public API; the daemon and its helper are processes of their own. What
 * is held is what the kernel says of the device's memory.
 */
#include "rig.h"

#include "base/clock.h"
#include "engine.h"
#include "kvplane.h"

#include <criterion/criterion.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { BLOCKS = 4, BLOCK = 256 << 10, LEN = 2 << 20, LIMIT_MS = 60000 };
#define EXPORTED CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static struct {
    struct cuda_rig rig;
    struct cuda_engine engine;
    struct cuda_memory memory;
    uint64_t asleep;
    struct kvplane *kv;
    uint64_t generation;
    bool paused, released, registered;
    int register_result;
    char socket[128], url[128];
    pid_t daemon;
} t;

static uint64_t now_ms(void)
{
    return kvb_now_ns(&kvb_clock_real) / KVB_NS_PER_MS;
}

/* ---- the engine ---- */

static void on_registered(void *arg, int result)
{
    (void)arg;
    t.registered = true;
    t.register_result = result;
}

static void hand_over(void)
{
    if (!t.memory.mapped) {
        cr_assert_eq(engine_allocate(&t.engine, &t.memory, LEN, EXPORTED), CUDA_SUCCESS);
    }
    int fd = engine_export(&t.engine, &t.memory);
    struct kvplane_region region = {
        .tag = "kv_cache", .kind = KVPLANE_MEMORY_CUDA, .fd = fd, .len = LEN};
    region.generation = ++t.generation;
    t.registered = false;
    cr_assert_eq(kvplane_register_region(t.kv, &region, on_registered, NULL), KVPLANE_OK);
    (void)close(fd); /* the library has its own; this one would hold the memory, too */
}

static void on_pause(void *ctx, struct kvplane_call *call, enum kvplane_pause_mode mode)
{
    (void)ctx;
    (void)mode;
    t.paused = true;
    kvplane_answer(call, KVPLANE_OK); /* nothing runs between two steps of the test */
}

static void on_resume(void *ctx, struct kvplane_call *call)
{
    (void)ctx;
    t.paused = false;
    kvplane_answer(call, KVPLANE_OK);
}

static void on_reset_local(void *ctx, struct kvplane_call *call, bool preempt)
{
    (void)ctx;
    (void)preempt;
    kvplane_answer(call, KVPLANE_OK);
}

static void on_release(void *ctx, struct kvplane_call *call, bool commit, const char *const *tags,
                       const bool *offload, size_t ntags)
{
    (void)ctx;
    (void)tags;
    (void)offload;
    (void)ntags;
    if (commit) {
        /* The daemon has let go: what is held is ours alone. */
        cr_assert_eq(cuda_rig_held(&t.rig), t.asleep + LEN);
        engine_release(&t.engine, &t.memory);
        t.released = true;
    }
    kvplane_answer(call, KVPLANE_OK);
}

static void on_restore(void *ctx, struct kvplane_call *call, const char *const *tags, size_t ntags)
{
    (void)ctx;
    (void)tags;
    (void)ntags;
    t.released = false;
    hand_over();
    kvplane_answer(call, KVPLANE_OK);
}

static void on_state(void *ctx, struct kvplane_state *state)
{
    (void)ctx;
    state->paused = t.paused;
    state->local_reset_done = true;
    state->tags[0].tag = "kv_cache";
    state->ntags = 1;
    state->tags[0].residency = t.released ? KVPLANE_DISCARDED : KVPLANE_RESIDENT;
}

static void on_attached(void *ctx, int result)
{
    (void)ctx;
    if (result == KVPLANE_OK && !t.released) {
        hand_over();
    }
}

static void on_disconnected(void *ctx, int reason)
{
    (void)ctx;
    (void)reason;
    kvplane_reattach(t.kv);
}

static const struct kvplane_callbacks calls = {
    .pause = on_pause,
    .resume = on_resume,
    .reset_local = on_reset_local,
    .release = on_release,
    .restore = on_restore,
    .state = on_state,
    .disconnected = on_disconnected,
    .attached = on_attached,
};

static void run_until(bool (*condition)(void), const char *what)
{
    uint64_t end_ms = now_ms() + LIMIT_MS;
    while (!condition()) {
        cr_assert_lt(now_ms(), end_ms, "%s", what);
        (void)kvplane_wait(t.kv, 20);
    }
}

static bool is_registered(void)
{
    return t.registered;
}

static bool nothing_pending(void)
{
    return kvplane_pending(t.kv) == 0;
}

/* ---- the other processes ---- */

static pid_t run_program(char *const *argv, int out)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (out >= 0) {
            (void)dup2(out, 1);
        }
        /* What a child of a careless engine would keep: nothing, all of it is closed on exec. */
        (void)execv(argv[0], argv);
        _exit(127);
    }
    return pid;
}

static void start_daemon(void)
{
    int out[2];
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    char *argv[] = {(char[]){KVPLANE_PROGRAM},
                    (char[]){"serve"},
                    (char[]){"--listen"},
                    (char[]){"127.0.0.1:0"},
                    (char[]){"--engine-socket"},
                    t.socket,
                    (char[]){"--store-bytes"},
                    (char[]){"16MiB"},
                    (char[]){"--cuda-pool-bytes"},
                    (char[]){"1MiB"},
                    NULL};
    t.daemon = run_program(argv, out[1]);
    (void)close(out[1]);
    char line[256] = "";
    size_t len = 0;
    while (len < sizeof line - 1 && strchr(line, '\n') == NULL) {
        ssize_t n = read(out[0], line + len, sizeof line - 1 - len);
        cr_assert_gt(n, 0, "the daemon starts");
        len += (size_t)n;
    }
    (void)close(out[0]);
    cr_assert_eq(sscanf(line, "kvplane ready %127s", t.url), 1);
}

static pid_t commanding;
static int command_status;

static bool command_ended(void)
{
    return waitpid(commanding, &command_status, WNOHANG) == commanding;
}

/* kvplane VERB, while the engine goes on answering. */
static void command(const char *verb, const char *option, const char *value)
{
    char *argv[] = {(char[]){KVPLANE_PROGRAM},
                    (char *)(uintptr_t)verb,
                    (char[]){"--url"},
                    t.url,
                    (char *)(uintptr_t)option,
                    (char *)(uintptr_t)value,
                    NULL};
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    commanding = run_program(argv, null);
    (void)close(null);
    run_until(command_ended, verb);
    cr_assert(WIFEXITED(command_status) && WEXITSTATUS(command_status) == 0, "%s", verb);
}

/* ---- a prompt ---- */

static uint32_t hits;
static int got;
static uint32_t puts_done;

static void on_lookup(void *arg, int result, const uint32_t *found, size_t ngroups)
{
    (void)arg;
    (void)ngroups;
    hits = result == KVPLANE_OK ? found[0] : 0;
}

static void on_got(void *arg, const int *results, size_t n)
{
    (void)arg;
    (void)n;
    got = results[0];
}

static void on_put(void *arg, const int *results, size_t n)
{
    (void)arg;
    for (size_t i = 0; i < n; i++) {
        puts_done += results[i] == KVPLANE_OK;
    }
}

/* Blocks that came from the store; each is checked byte by byte, or computed and put. */
static uint32_t run_prompt(void)
{
    static const struct kvplane_key keys[BLOCKS] = {
        {"b0", 2, NULL, 0}, {"b1", 2, NULL, 0}, {"b2", 2, NULL, 0}, {"b3", 2, NULL, 0}};
    static const struct kvplane_keys prompt = {.keys = keys, .nkeys = BLOCKS};
    static uint8_t want[BLOCK], seen[BLOCK];
    kvplane_token token = kvplane_get_token(t.kv);
    uint32_t read = 0;
    hits = 0;
    cr_assert_eq(kvplane_lookup(t.kv, 1, token, &prompt, 1, on_lookup, NULL), KVPLANE_OK);
    run_until(nothing_pending, "lookup");
    uint32_t found = hits;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        struct kvplane_slice slice = {.offset = i * BLOCK, .len = BLOCK};
        struct kvplane_entry entry = {keys[i].key, 2, NULL, 0, 0, 0, token, &slice, 1};
        for (uint32_t j = 0; j < BLOCK; j++) {
            want[j] = (uint8_t)(j * 31 + i * 7 + (j >> 10));
        }
        if (i < found) {
            memset(seen, 0xee, sizeof seen);
            cr_assert_eq(engine_fill(&t.engine, &t.memory, i * BLOCK, seen, BLOCK), CUDA_SUCCESS);
            got = KVPLANE_ERR_NOT_FOUND;
            cr_assert_eq(kvplane_get(t.kv, 1, token, &entry, 1, on_got, NULL), KVPLANE_OK);
            run_until(nothing_pending, "get");
            cr_assert_eq(got, KVPLANE_OK);
            cr_assert_eq(engine_read(&t.engine, &t.memory, i * BLOCK, seen, BLOCK), CUDA_SUCCESS);
            cr_assert_arr_eq(seen, want, BLOCK);
            read++;
        } else {
            cr_assert_eq(engine_fill(&t.engine, &t.memory, i * BLOCK, want, BLOCK), CUDA_SUCCESS);
            cr_assert_eq(kvplane_put(t.kv, &entry, 1, on_put, NULL), KVPLANE_OK);
            run_until(nothing_pending, "put");
        }
    }
    return read;
}

/* ---- */

static void setup(void)
{
    char why[256];
    if (!cuda_rig_init(&t.rig, 64)) {
        cr_skip_test("nothing can be mounted here");
    }
    (void)snprintf(t.socket, sizeof t.socket, "%s/engine.sock", t.rig.dir);
    start_daemon();
    cr_assert_eq(kvt_cu_open(KVT_CU_LIBRARY, &t.engine.cu, why), KVB_OK, "%s", why);
    cr_assert_eq(engine_open(&t.engine), CUDA_SUCCESS);
    t.asleep = FAKE_CUDA_CONTEXT;
    struct kvplane_options options = {.instance = "gpu",
                                      .layout = "bytes/256KiB",
                                      .socket = t.socket,
                                      .weights_name = "1",
                                      .callbacks = &calls};
    cr_assert_eq(kvplane_open(&options, &t.kv), KVPLANE_OK);
    run_until(is_registered, "attached");
    cr_assert_eq(t.register_result, KVPLANE_OK);
}

/* But for the lock file and the socket, which are empty. */
static bool held_is(uint64_t bytes)
{
    uint64_t end_ms = now_ms() + LIMIT_MS;
    while (cuda_rig_held(&t.rig) != bytes && now_ms() < end_ms) {
        (void)kvplane_wait(t.kv, 1);
    }
    return cuda_rig_held(&t.rig) == bytes;
}

static void end_daemon(int signum, int want)
{
    int how;
    (void)kill(t.daemon, signum);
    cr_assert_eq(waitpid(t.daemon, &how, 0), t.daemon);
    cr_assert(signum == SIGKILL || (WIFEXITED(how) && WEXITSTATUS(how) == want));
}

static void cleanup(void)
{
    kvplane_close(t.kv);
    end_daemon(SIGTERM, 0);
    engine_free(&t.engine, &t.memory);
    engine_close(&t.engine);
    cr_assert(cuda_rig_comes_to(&t.rig, 0), "%llu bytes are held",
              (unsigned long long)cuda_rig_held(&t.rig));
    cr_assert_eq(atomic_load(&t.rig.control->misuse), 0);
    cr_assert_eq(atomic_load(&t.rig.control->pageable), 0);
    cuda_rig_cleanup(&t.rig);
}

Test(gpu_daemon, blocks_of_gpu_memory_are_shared_and_sleep_holds_nothing, .timeout = 600)
{
    setup();
    cr_assert_eq(run_prompt(), 0);
    cr_assert_eq(puts_done, BLOCKS);
    cr_assert_eq(run_prompt(), BLOCKS);
    uint64_t awake = t.asleep + LEN + FAKE_CUDA_CONTEXT;
    for (int cycle = 0; cycle < 3; cycle++) {
        cr_assert_eq(cuda_rig_held(&t.rig), awake, "cycle %d", cycle);
        command("sleep", "--level", "1");
        cr_assert(t.released);
        cr_assert_eq(cuda_rig_held(&t.rig), t.asleep, "cycle %d", cycle);
        command("wake", NULL, NULL);
        run_until(is_registered, "the answer may be read before that of the registration");
        cr_assert_eq(t.register_result, KVPLANE_OK);
        (void)run_prompt();
        cr_assert_eq(run_prompt(), BLOCKS, "cycle %d", cycle);
    }
    cleanup();
}

Test(gpu_daemon, a_daemon_that_is_killed_leaves_nothing_and_the_next_one_serves, .timeout = 600)
{
    setup();
    (void)run_prompt();
    end_daemon(SIGKILL, 0);
    engine_release(&t.engine, &t.memory);
    t.released = true;
    cr_assert(held_is(t.asleep), "%llu", (unsigned long long)cuda_rig_held(&t.rig));
    t.released = false;
    t.registered = false;
    start_daemon();
    run_until(is_registered, "attached to the next one");
    cr_assert_eq(t.register_result, KVPLANE_OK);
    cr_assert_eq(run_prompt(), 0, "another daemon, another store");
    cr_assert_eq(run_prompt(), BLOCKS);
    cleanup();
}

static bool handed_over_again(void)
{
    return t.generation == 2 && t.registered && t.register_result == KVPLANE_OK;
}

/* The helper is lost with its context in the middle of a put: that fails, and the engine is asked
 * to hand its memory over anew. */
Test(gpu_daemon, a_lost_context_costs_what_ran_and_the_memory_is_had_again, .timeout = 600)
{
    setup();
    atomic_store(&t.rig.control->only, FAKE_CUDA_stream_sync + 1);
    cuda_rig_arm(&t.rig, 1, FAKE_CUDA_POISON, CUDA_ERROR_ILLEGAL_ADDRESS);
    cr_assert_eq(run_prompt(), 0);
    cr_assert(cuda_rig_disarm(&t.rig));
    cr_assert_lt(puts_done, BLOCKS, "it is not lost silently");
    run_until(handed_over_again, "the engine is asked for its memory anew");
    command("sleep", "--level", "1");
    command("wake", NULL, NULL);
    (void)run_prompt();
    cr_assert_eq(run_prompt(), BLOCKS);
    cleanup();
}
