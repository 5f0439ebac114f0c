/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvplane_cuda: this process is the engine, on the fake driver and a runtime over it; the daemon
 * and its helper are processes of their own. What is held is what the kernel says of the device's
 * memory. A byte is told by tenant, key, weights and place, so that one of another block, another
 * time or another layout is seen.
 */
#include "driver.h"
#include "pieces.h"
#include "rig.h"
#include "runtime.h"

#include "base/clock.h"
#include "kvplane_cuda.h"

#include <criterion/criterion.h>

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { BLOCKS = 4, BLOCK = 64 << 10, UNIT = FAKE_CUDA_GRANULARITY, LIMIT_MS = 60000 };
enum { KV = 3, WEIGHTS = 5 };

static struct {
    struct cuda_rig rig;
    struct kvplane *kv;
    struct kvplane_cuda *kc;
    char *memory, *weights;
    cudaStream_t stream;
    unsigned weights_id;
    bool paused, attached, forgot_to_release;
    uint64_t at_commit; /* held when the daemon said that it had let go */
    int release_result, restore_result;
    unsigned registrations;
    char socket[128], url[128];
    pid_t daemon;
} t;

static uint64_t now_ms(void)
{
    return kvb_now_ns(&kvb_clock_real) / KVB_NS_PER_MS;
}

/* ---- the engine ---- */

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
    if (commit) {
        t.at_commit = cuda_rig_held(&t.rig);
    }
    t.release_result = kvplane_cuda_release(t.kc, commit, tags, offload, ntags);
    kvplane_answer(call, t.release_result);
}

/* Of a restore that failed: all of it is there, or nothing is. */
static void is_all_or_nothing(void)
{
    const char *call = fake_runtime_fired(atomic_load(&t.rig.control->fired_call));
    struct kvplane_cuda_ledger now;
    struct kvplane_state state = {0};
    kvplane_cuda_get_ledger(t.kc, &now);
    kvplane_cuda_state(t.kc, &state);
    bool there = state.tags[0].residency == KVPLANE_RESIDENT;
    cr_assert_eq(state.tags[1].residency, there ? KVPLANE_RESIDENT : KVPLANE_OFFLOADED, "%s", call);
    cr_assert(there || state.tags[0].residency == KVPLANE_DISCARDED, "%s", call);
    cr_assert_eq(now.mappings, there ? 2 : 0, "%s", call);
}

static void on_restore(void *ctx, struct kvplane_call *call, const char *const *tags, size_t ntags)
{
    (void)ctx;
    t.restore_result = kvplane_cuda_restore(t.kc, tags, ntags);
    if (t.restore_result != KVPLANE_OK) {
        is_all_or_nothing();
    }
    kvplane_answer(call, t.restore_result);
}

static void on_state(void *ctx, struct kvplane_state *state)
{
    (void)ctx;
    state->paused = t.paused;
    state->local_reset_done = true;
    kvplane_cuda_state(t.kc, state);
}

static void on_attached(void *ctx, int result)
{
    (void)ctx;
    t.attached = result == KVPLANE_OK;
    if (t.attached) {
        cr_assert_eq(kvplane_cuda_hand_over(t.kc), KVPLANE_OK, "%s", kvplane_cuda_last_error(t.kc));
    }
}

static void on_disconnected(void *ctx, int reason)
{
    (void)ctx;
    (void)reason;
    t.attached = false;
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

static void on_registered(void *ctx, uint32_t region, int result)
{
    (void)ctx;
    (void)region;
    cr_assert_eq(result, KVPLANE_OK);
    t.registrations++;
}

static void run_until(bool (*condition)(void), const char *what)
{
    uint64_t end_ms = now_ms() + LIMIT_MS;
    while (!condition()) {
        cr_assert_lt(now_ms(), end_ms, "%s", what);
        (void)kvplane_cuda_wait(t.kc, 20);
    }
}

static bool is_ready(void)
{
    return t.attached && kvplane_cuda_ready(t.kc);
}

static bool nothing_pending(void)
{
    return kvplane_pending(t.kv) == 0 && kvplane_cuda_held(t.kc) == 0;
}

static struct kvplane_cuda_ledger ledger(void)
{
    struct kvplane_cuda_ledger now;
    kvplane_cuda_get_ledger(t.kc, &now);
    return now;
}

/* ---- bytes ---- */

static uint8_t byte_of(const char *tenant, unsigned key, unsigned weights, size_t at)
{
    uint64_t x = at + 0x9e3779b97f4a7c15u * (key + 1) + 0xbf58476d1ce4e5b9u * (weights + 1) +
                 (uint64_t)tenant[0] * 0x94d049bb133111ebu;
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185u;
    return (uint8_t)(x >> 27 ^ x >> 50);
}

static void expect(uint8_t *bytes, size_t len, unsigned key, unsigned weights)
{
    for (size_t i = 0; i < len; i++) {
        bytes[i] = byte_of("default", key, weights, i);
    }
}

static void write_gpu(void *to, const void *from, size_t len)
{
    cr_assert_eq(cudaMemcpy(to, from, len, cudaMemcpyHostToDevice), cudaSuccess);
}

static void read_gpu(void *to, const void *from, size_t len)
{
    cr_assert_eq(cudaMemcpy(to, from, len, cudaMemcpyDeviceToHost), cudaSuccess);
}

static bool gpu_has(const char *at, size_t len, unsigned key, unsigned weights)
{
    uint8_t *seen = malloc(len);
    uint8_t *want = malloc(len);
    cr_assert(seen != NULL && want != NULL);
    read_gpu(seen, at, len);
    expect(want, len, key, weights);
    bool same = memcmp(seen, want, len) == 0;
    free(seen);
    free(want);
    return same;
}

static void fill_gpu(char *at, size_t len, unsigned key, unsigned weights)
{
    uint8_t *bytes = malloc(len);
    cr_assert_not_null(bytes);
    expect(bytes, len, key, weights);
    write_gpu(at, bytes, len);
    free(bytes);
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
        (void)execv(argv[0], argv);
        _exit(127);
    }
    return pid;
}

/* Byte by byte: what is behind the line stays in the pipe. */
static void read_line(int fd, char *line, size_t cap)
{
    size_t len = 0;
    while (len < cap - 1 && (len == 0 || line[len - 1] != '\n')) {
        cr_assert_eq(read(fd, line + len, 1), 1, "a line is written");
        len++;
    }
    line[len] = '\0';
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
                    (char[]){"2MiB"},
                    NULL};
    t.daemon = run_program(argv, out[1]);
    (void)close(out[1]);
    char line[256];
    read_line(out[0], line, sizeof line);
    (void)close(out[0]);
    cr_assert_eq(sscanf(line, "kvplane ready %127s", t.url), 1);
}

static void end_daemon(int signum)
{
    int how;
    (void)kill(t.daemon, signum);
    cr_assert_eq(waitpid(t.daemon, &how, 0), t.daemon);
    cr_assert(signum == SIGKILL || (WIFEXITED(how) && WEXITSTATUS(how) == 0));
}

static pid_t commanding;
static int command_status;

static bool command_ended(void)
{
    return waitpid(commanding, &command_status, WNOHANG) == commanding;
}

static bool try_command(const char *verb, const char *option, const char *value)
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
    return WIFEXITED(command_status) && WEXITSTATUS(command_status) == 0;
}

static void command(const char *verb, const char *option, const char *value)
{
    cr_assert(try_command(verb, option, value), "%s", verb);
}

/* ---- blocks ---- */

struct outcome {
    unsigned calls, stored;
    int last;
};

static void on_put(void *arg, const int *results, size_t n)
{
    struct outcome *outcome = arg;
    outcome->calls++;
    for (size_t i = 0; i < n; i++) {
        outcome->last = results[i];
        outcome->stored += results[i] == KVPLANE_OK;
    }
}

static void on_result(void *arg, const int *results, size_t n)
{
    (void)n;
    *(int *)arg = results[0];
}

static void on_lookup(void *arg, int result, const uint32_t *found, size_t ngroups)
{
    (void)ngroups;
    *(uint32_t *)arg = result == KVPLANE_OK ? found[0] : 0;
}

static char key_of_[4] = "b00";

/* The entry for block `key` at this address of the GPU; slice: the caller's. */
static struct kvplane_entry entry_at(const char *at, size_t len, unsigned key,
                                     struct kvplane_slice *slice)
{
    cr_assert_eq(kvplane_cuda_slice(t.kc, at, len, slice), KVPLANE_OK);
    key_of_[1] = (char)('0' + key / 10);
    key_of_[2] = (char)('0' + key % 10);
    return (struct kvplane_entry){.key = key_of_,
                                  .key_len = 3,
                                  .token = kvplane_get_token(t.kv),
                                  .slices = slice,
                                  .nslices = 1};
}

static int get_block(char *at, size_t len, unsigned key)
{
    struct kvplane_slice slice;
    struct kvplane_entry entry = entry_at(at, len, key, &slice);
    struct kvplane_key one = {entry.key, entry.key_len, NULL, 0};
    struct kvplane_keys keys = {.keys = &one, .nkeys = 1};
    uint32_t hits = 0;
    int got = KVPLANE_ERR_NOT_FOUND;
    cr_assert_eq(kvplane_lookup(t.kv, 1, entry.token, &keys, 1, on_lookup, &hits), KVPLANE_OK);
    run_until(nothing_pending, "lookup");
    if (hits == 1) {
        cr_assert_eq(kvplane_get(t.kv, 1, entry.token, &entry, 1, on_result, &got), KVPLANE_OK);
        run_until(nothing_pending, "get");
    }
    return got;
}

/* What a step of the engine computes: written by the GPU, later. */
static uint8_t computed_[BLOCKS][BLOCK];

static void compute(cudaStream_t stream, unsigned block)
{
    expect(computed_[block], BLOCK, block, t.weights_id);
    cr_assert_eq(cudaMemcpyAsync(t.memory + block * BLOCK, computed_[block], BLOCK,
                                 cudaMemcpyHostToDevice, stream),
                 cudaSuccess);
}

/* Blocks that came from the store; each is checked byte by byte, or computed and put. */
static unsigned run_prompt(void)
{
    unsigned read = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        char *at = t.memory + i * BLOCK;
        uint8_t junk[64];
        memset(junk, 0xee, sizeof junk);
        write_gpu(at, junk, sizeof junk);
        if (get_block(at, BLOCK, i) == KVPLANE_OK) {
            cr_assert(gpu_has(at, BLOCK, i, t.weights_id), "block %u", i);
            read++;
            continue;
        }
        struct kvplane_slice slice;
        struct kvplane_entry entry = entry_at(at, BLOCK, i, &slice);
        struct outcome outcome = {0};
        compute(t.stream, i);
        cr_assert_eq(kvplane_cuda_put_after_stream(t.kc, t.stream, &entry, 1, on_put, &outcome),
                     KVPLANE_OK);
        run_until(nothing_pending, "put");
        cr_assert(outcome.calls == 1 && outcome.stored == 1);
    }
    return read;
}

/* ---- */

static void begin(bool with_daemon)
{
    if (!cuda_rig_init(&t.rig, 64)) {
        cr_skip_test("nothing can be mounted here");
    }
    (void)snprintf(t.socket, sizeof t.socket, "%s/engine.sock", t.rig.dir);
    if (with_daemon) {
        start_daemon();
    }
}

static void open_session(size_t queue_max)
{
    struct kvplane_options options = {.instance = "gpu",
                                      .layout = "bytes/64KiB",
                                      .socket = t.socket,
                                      .weights_name = "1",
                                      .queue_max = queue_max,
                                      .callbacks = &calls};
    cr_assert_eq(kvplane_open(&options, &t.kv), KVPLANE_OK);
}

static void open_handle(size_t held_max)
{
    struct kvplane_cuda_options options = {
        .kv = t.kv, .held_max = held_max, .registered = on_registered};
    cr_assert_eq(kvplane_cuda_open(&options, &t.kc), KVPLANE_OK, "%s",
                 kvplane_cuda_last_error(NULL));
}

static int allocate_kv(void)
{
    struct kvplane_cuda_memory memory = {KV, "kv_cache", UNIT - 4096, false};
    return kvplane_cuda_allocate(t.kc, &memory, (void **)&t.memory);
}

static int allocate_weights(void)
{
    struct kvplane_cuda_memory memory = {WEIGHTS, "weights", UNIT, false};
    return kvplane_cuda_allocate(t.kc, &memory, (void **)&t.weights);
}

static void setup(size_t queue_max, size_t held_max)
{
    begin(true);
    open_session(queue_max);
    open_handle(held_max);
    cr_assert_eq(allocate_kv(), KVPLANE_OK);
    cr_assert_eq(allocate_weights(), KVPLANE_OK);
    cr_assert_eq(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking), cudaSuccess);
    fill_gpu(t.weights, UNIT, 1000, t.weights_id);
    run_until(is_ready, "attached");
}

/* Nothing is left of anything, here and in the other processes. */
static void leaves_nothing(void)
{
    if (t.stream != NULL) {
        cr_assert_eq(cudaStreamDestroy(t.stream), cudaSuccess);
    }
    cr_assert_eq(cudaDeviceReset(), cudaSuccess);
    cr_assert(cuda_rig_comes_to(&t.rig, 0), "%llu bytes are held",
              (unsigned long long)cuda_rig_held(&t.rig));
    cr_assert_eq(fake_runtime.host_bytes, 0);
    cr_assert_eq(fake_runtime.streams, 0);
    cr_assert_eq(fake_runtime.events, 0);
    cr_assert_eq(fake_runtime.libraries, 0);
    cr_assert_eq(atomic_load(&t.rig.control->misuse), 0);
}

/* After each test: nothing of it stays on this machine. */
static void end(void)
{
    if (t.rig.control != NULL) {
        cuda_rig_cleanup(&t.rig);
    }
}

static void cleanup(void)
{
    kvplane_close(t.kv);
    cr_assert_eq(kvplane_cuda_close(t.kc), KVPLANE_OK);
    end_daemon(SIGTERM);
    leaves_nothing();
}

/* ---- sleep and wake ---- */

static const uint64_t mine = FAKE_CUDA_CONTEXT;

Test(engine_cuda, memory_is_shared_and_sleeps_and_nothing_of_it_is_held_meanwhile, .timeout = 600,
     .fini = end)
{
    setup(0, 0);
    cr_assert_eq(run_prompt(), 0);
    cr_assert_eq(run_prompt(), BLOCKS);
    const uint64_t awake = mine + 2 * UNIT + FAKE_CUDA_CONTEXT; /* and the helper's context */
    const char *address = t.memory;
    for (int cycle = 0; cycle < 3; cycle++) {
        cr_assert_eq(cuda_rig_held(&t.rig), awake, "cycle %d", cycle);
        cr_assert_eq(ledger().handles, 0);
        command("sleep", "--level", "1");
        cr_assert_eq(t.at_commit, mine + 2 * UNIT, "the daemon had let go before");
        cr_assert_eq(cuda_rig_held(&t.rig), mine, "cycle %d", cycle);
        cr_assert_eq(fake_runtime.host_bytes, UNIT, "the weights, and only they");
        struct kvplane_cuda_ledger asleep = ledger();
        cr_assert(asleep.mappings == 0 && asleep.handles == 0 && asleep.mapped_bytes == 0);
        cr_assert_eq(asleep.address_bytes, 2 * UNIT);
        cr_assert_eq(asleep.offload_bytes, UNIT);
        command("wake", NULL, NULL);
        run_until(is_ready, "ready");
        cr_assert_eq(fake_runtime.host_bytes, 0);
        cr_assert(t.memory == address && gpu_has(t.weights, UNIT, 1000, t.weights_id));
        (void)run_prompt();
        cr_assert_eq(run_prompt(), BLOCKS, "cycle %d", cycle);
    }
    cleanup();
}

Test(engine_cuda, a_deeper_sleep_gives_up_the_copy_and_a_copy_is_never_of_an_earlier_time,
     .timeout = 600, .fini = end)
{
    setup(0, 0);
    command("sleep", "--level", "1");
    cr_assert_eq(fake_runtime.host_bytes, UNIT);
    command("sleep", "--level", "2");
    cr_assert_eq(fake_runtime.host_bytes, 0);
    cr_assert_eq(cuda_rig_held(&t.rig), mine);
    command("wake", NULL, NULL);
    run_until(is_ready, "ready");
    /* A sleep that came as far as the copy and no further: the next one copies again. */
    const char *tags[] = {"weights"};
    const bool keep[] = {true};
    fill_gpu(t.weights, UNIT, 1000, 1);
    cr_assert_eq(kvplane_cuda_release(t.kc, false, tags, keep, 1), KVPLANE_OK);
    fill_gpu(t.weights, UNIT, 1000, 2);
    command("sleep", "--level", "1");
    command("wake", NULL, NULL);
    run_until(is_ready, "ready");
    cr_assert(gpu_has(t.weights, UNIT, 1000, 2));
    cleanup();
}

Test(engine_cuda, a_copy_and_an_unmapping_wait_for_what_the_gpu_was_given, .timeout = 600,
     .fini = end)
{
    setup(0, 0);
    static uint8_t late[UNIT];
    expect(late, sizeof late, 1000, 7);
    fake_runtime_pause(t.stream, true);
    cr_assert_eq(cudaMemcpyAsync(t.weights, late, UNIT, cudaMemcpyHostToDevice, t.stream),
                 cudaSuccess);
    command("sleep", "--level", "1");
    command("wake", NULL, NULL);
    run_until(is_ready, "ready");
    cr_assert(gpu_has(t.weights, UNIT, 1000, 7), "the copy has what was queued before it");
    const char *tags[] = {"kv_cache"};
    const bool keep[] = {false};
    fake_runtime_pause(t.stream, true);
    compute(t.stream, 0);
    cr_assert_eq(kvplane_cuda_release(t.kc, true, tags, keep, 1), KVPLANE_OK);
    fake_runtime_pause(t.stream, false);
    fake_runtime_drain();
    cr_assert_eq(cudaDeviceSynchronize(), cudaSuccess, "nothing was unmapped under it");
    cleanup();
}

/* What is to be kept and was not copied is not thrown away; the tags that are no region's are no
 * mistake. */
Test(engine_cuda, what_is_to_be_kept_is_kept, .timeout = 600, .fini = end)
{
    setup(0, 0);
    const char *tags[] = {"other", "weights"};
    const bool keep[] = {false, true};
    cr_assert_eq(kvplane_cuda_release(t.kc, true, tags, keep, 2), KVPLANE_ERR_BAD_STATE);
    cr_assert_str_not_empty(kvplane_cuda_last_error(t.kc));
    struct kvplane_state state = {0};
    kvplane_cuda_state(t.kc, &state);
    cr_assert_eq(state.ntags, 2);
    cr_assert(state.tags[0].residency == KVPLANE_RESIDENT &&
              state.tags[1].residency == KVPLANE_RESIDENT);
    cr_assert(gpu_has(t.weights, UNIT, 1000, t.weights_id));
    cleanup();
}

/* ---- puts that wait ---- */

static void ticks(int n)
{
    for (int i = 0; i < n; i++) {
        cr_assert_eq(kvplane_cuda_wait(t.kc, 1000), KVPLANE_OK,
                     "it wakes by itself while it holds");
    }
}

/* Puts block 0, computed by a stream that stands still, after `event`, with old bytes there. */
static void put_late(cudaEvent_t event, struct outcome *outcome)
{
    fill_gpu(t.memory, BLOCK, 0, t.weights_id + 100);
    fake_runtime_pause(t.stream, true);
    compute(t.stream, 0);
    struct kvplane_slice slice;
    struct kvplane_entry entry = entry_at(t.memory, BLOCK, 0, &slice);
    char key[3];
    memcpy(key, entry.key, sizeof key);
    entry.key = key;
    int result;
    if (event != NULL) {
        cr_assert_eq(cudaEventRecord(event, t.stream), cudaSuccess);
        result = kvplane_cuda_put_after(t.kc, event, &entry, 1, on_put, outcome);
    } else {
        result = kvplane_cuda_put_after_stream(t.kc, t.stream, &entry, 1, on_put, outcome);
    }
    cr_assert_eq(result, KVPLANE_OK);
    /* All of it is copied: what it was made of may go at once. */
    memset(key, 'x', sizeof key);
    memset(&slice, 0xff, sizeof slice);
    memset(&entry, 0xff, sizeof entry);
}

static void stored_late(const struct outcome *outcome)
{
    ticks(5);
    cr_assert_eq(outcome->calls, 0);
    cr_assert_eq(kvplane_cuda_held(t.kc), 1);
    cr_assert_eq(kvplane_pending(t.kv), 0, "nothing was sent");
    fake_runtime_pause(t.stream, false);
    run_until(nothing_pending, "put");
    cr_assert(outcome->calls == 1 && outcome->stored == 1);
    cr_assert_eq(get_block(t.memory + BLOCK, BLOCK, 0), KVPLANE_OK);
    cr_assert(gpu_has(t.memory + BLOCK, BLOCK, 0, t.weights_id), "as it was when it was done");
    cr_assert_eq(cudaGetLastError(), cudaSuccess, "the engine's own errors are not mixed with it");
}

Test(engine_cuda, a_put_is_not_sent_before_its_event_has_fired, .timeout = 600, .fini = end)
{
    setup(0, 0);
    cudaEvent_t event;
    struct outcome outcome = {0};
    cr_assert_eq(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    put_late(event, &outcome);
    stored_late(&outcome);
    cr_assert_eq(cudaEventDestroy(event), cudaSuccess);
    cleanup();
}

Test(engine_cuda, what_becomes_of_the_event_afterwards_changes_nothing, .timeout = 600, .fini = end)
{
    setup(0, 0);
    cudaEvent_t event;
    cudaStream_t idle;
    struct outcome outcome = {0};
    cr_assert_eq(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    cr_assert_eq(cudaStreamCreateWithFlags(&idle, cudaStreamNonBlocking), cudaSuccess);
    put_late(event, &outcome);
    cr_assert_eq(cudaEventRecord(event, idle), cudaSuccess, "fires at once");
    while (cudaEventQuery(event) != cudaSuccess) {
        (void)poll(NULL, 0, 1);
    }
    (void)cudaGetLastError();
    cr_assert_eq(cudaEventDestroy(event), cudaSuccess);
    stored_late(&outcome);
    cr_assert_eq(cudaStreamDestroy(idle), cudaSuccess);
    cleanup();
}

Test(engine_cuda, a_put_waits_for_its_stream_and_for_no_other, .timeout = 600, .fini = end)
{
    setup(0, 0);
    cudaStream_t other;
    struct outcome late = {0};
    struct outcome soon = {0};
    cr_assert_eq(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    put_late(NULL, &late);
    compute(other, 1);
    struct kvplane_slice slice;
    struct kvplane_entry entry = entry_at(t.memory + BLOCK, BLOCK, 1, &slice);
    cr_assert_eq(kvplane_cuda_put_after_stream(t.kc, other, &entry, 1, on_put, &soon), KVPLANE_OK);
    while (soon.calls == 0) {
        ticks(1);
    }
    cr_assert_eq(soon.stored, 1);
    stored_late(&late);
    cr_assert_eq(cudaStreamDestroy(other), cudaSuccess);
    cleanup();
}

Test(engine_cuda, a_release_drops_the_puts_that_would_send_what_comes_there_next, .timeout = 600,
     .fini = end)
{
    setup(0, 0);
    struct outcome outcome = {0};
    put_late(NULL, &outcome);
    const char *other[] = {"weights"};
    const char *tags[] = {"kv_cache"};
    const bool keep[] = {false};
    cr_assert_eq(kvplane_cuda_release(t.kc, true, other, keep, 1), KVPLANE_OK);
    cr_assert_eq(outcome.calls, 0, "they do not lie there");
    fake_runtime_pause(t.stream, true);
    cr_assert_eq(kvplane_cuda_release(t.kc, true, tags, keep, 1), KVPLANE_OK);
    cr_assert_eq(outcome.calls, 1);
    cr_assert_eq(outcome.last, KVPLANE_ERR_GENERATION);
    cr_assert_eq(kvplane_cuda_restore(t.kc, tags, 1), KVPLANE_OK);
    cr_assert_eq(kvplane_cuda_restore(t.kc, other, 1), KVPLANE_OK);
    run_until(is_ready, "ready");
    run_until(nothing_pending, "all");
    cr_assert_eq(get_block(t.memory, BLOCK, 0), KVPLANE_ERR_NOT_FOUND);
    cleanup();
}

/* The lineage is left while a put waits: what was computed under the old token is not stored, also
 * if the memory stays where it is. */
Test(engine_cuda, a_put_that_was_held_across_a_leaving_is_refused, .timeout = 600, .fini = end)
{
    setup(0, 0);
    struct outcome outcome = {0};
    put_late(NULL, &outcome);
    command("reset", "--reset-external", "true");
    fake_runtime_pause(t.stream, false);
    run_until(nothing_pending, "put");
    cr_assert_eq(outcome.calls, 1);
    cr_assert_eq(outcome.last, KVPLANE_ERR_FENCED, "%d", outcome.last);
    cr_assert_eq(get_block(t.memory, BLOCK, 0), KVPLANE_ERR_NOT_FOUND);
    cleanup();
}

static struct outcome again;

/* A callback may put again, and may not process. */
static void on_put_again(void *arg, const int *results, size_t n)
{
    on_put(arg, results, n);
    cr_assert_eq(kvplane_cuda_process(t.kc), KVPLANE_ERR_BAD_STATE);
    struct kvplane_slice slice;
    struct kvplane_entry entry = entry_at(t.memory, BLOCK, 1, &slice);
    cr_assert_eq(kvplane_cuda_put_after_stream(t.kc, t.stream, &entry, 1, on_put, &again),
                 KVPLANE_OK);
}

Test(engine_cuda, a_callback_may_put_again, .timeout = 600, .fini = end)
{
    setup(0, 0);
    struct outcome outcome = {0};
    struct kvplane_slice slice;
    struct kvplane_entry entry = entry_at(t.memory, BLOCK, 0, &slice);
    cr_assert_eq(kvplane_cuda_put_after_stream(t.kc, t.stream, &entry, 1, on_put_again, &outcome),
                 KVPLANE_OK);
    run_until(nothing_pending, "both");
    cr_assert(outcome.calls == 1 && outcome.stored == 1);
    cr_assert(again.calls == 1 && again.stored == 1);
    /* And one that is dropped: the callback runs in the release. */
    const char *tags[] = {"kv_cache"};
    const bool keep[] = {false};
    fake_runtime_pause(t.stream, true);
    cr_assert_eq(kvplane_cuda_put_after_stream(t.kc, t.stream, &entry, 1, on_put, &outcome),
                 KVPLANE_OK);
    cr_assert_eq(kvplane_cuda_release(t.kc, true, tags, keep, 1), KVPLANE_OK);
    cr_assert(outcome.calls == 2 && outcome.last == KVPLANE_ERR_GENERATION);
    cr_assert_eq(kvplane_cuda_restore(t.kc, tags, 1), KVPLANE_OK);
    run_until(is_ready, "ready");
    cleanup();
}

Test(engine_cuda, held_puts_are_bounded_and_a_full_session_delays_them, .timeout = 600, .fini = end)
{
    setup(1, 3);
    struct outcome outcome = {0};
    struct kvplane_slice slice;
    fake_runtime_pause(t.stream, true);
    for (unsigned i = 0; i < 4; i++) {
        compute(t.stream, i);
        struct kvplane_entry entry = entry_at(t.memory + i * BLOCK, BLOCK, i, &slice);
        cr_assert_eq(kvplane_cuda_put_after_stream(t.kc, t.stream, &entry, 1, on_put, &outcome),
                     i < 3 ? KVPLANE_OK : KVPLANE_ERR_AGAIN);
    }
    struct kvplane_entry entry = entry_at(t.memory, BLOCK, 0, &slice);
    cr_assert_eq(kvplane_cuda_put_after(t.kc, NULL, &entry, 1, on_put, &outcome),
                 KVPLANE_ERR_INVALID);
    cr_assert_eq(kvplane_cuda_put_after_stream(t.kc, t.stream, &entry, 0, on_put, &outcome),
                 KVPLANE_ERR_INVALID);
    entry.key_len = 513;
    cr_assert_eq(kvplane_cuda_put_after_stream(t.kc, t.stream, &entry, 1, on_put, &outcome),
                 KVPLANE_ERR_TOO_LARGE);
    fake_runtime_pause(t.stream, false);
    run_until(nothing_pending, "one at a time");
    cr_assert(outcome.calls == 3 && outcome.stored == 3);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(get_block(t.memory + 3 * BLOCK, BLOCK, i), KVPLANE_OK);
        cr_assert(gpu_has(t.memory + 3 * BLOCK, BLOCK, i, t.weights_id));
    }
    cleanup();
}

Test(engine_cuda, what_the_gpu_did_not_do_is_not_put, .timeout = 600, .fini = end)
{
    setup(0, 0);
    struct outcome outcome = {0};
    put_late(NULL, &outcome);
    fake_runtime_lose(cudaErrorIllegalAddress);
    while (outcome.calls == 0) {
        (void)kvplane_cuda_wait(t.kc, 1000);
    }
    cr_assert_eq(outcome.last, KVPLANE_ERR_IO);
    cr_assert_not_null(strstr(kvplane_cuda_last_error(t.kc), "cudaErrorIllegalAddress"), "%s",
                       kvplane_cuda_last_error(t.kc));
    fake_runtime_lose(cudaSuccess); /* only for the end of the test */
    fake_runtime_pause(t.stream, false);
    cr_assert_eq(get_block(t.memory, BLOCK, 0), KVPLANE_ERR_NOT_FOUND);
    cleanup();
}

static bool is_attached(void)
{
    return t.attached;
}

static bool is_detached(void)
{
    return !t.attached;
}

Test(engine_cuda, a_daemon_that_dies_costs_what_is_held_and_the_next_one_gets_the_memory,
     .timeout = 600, .fini = end)
{
    setup(0, 0);
    struct outcome outcome = {0};
    put_late(NULL, &outcome);
    end_daemon(SIGKILL);
    run_until(is_detached, "seen");
    fake_runtime_pause(t.stream, false);
    fake_runtime_drain();
    (void)kvplane_cuda_process(t.kc);
    cr_assert(outcome.calls == 1 && outcome.last == KVPLANE_ERR_DISCONNECTED);
    cr_assert(cuda_rig_comes_to(&t.rig, mine + 2 * UNIT), "only the engine holds it");
    start_daemon();
    cr_assert_eq(kvplane_reattach(t.kv), KVPLANE_OK);
    run_until(is_attached, "the next one");
    run_until(is_ready, "ready");
    (void)run_prompt();
    cr_assert_eq(run_prompt(), BLOCKS);
    cleanup();
}

/* ---- every call failed once ---- */

static void arm(unsigned n)
{
    atomic_store(&t.rig.control->victim, (int)getpid());
    cuda_rig_arm(&t.rig, n, FAKE_CUDA_FAIL, 999 /* no call's own */);
    atomic_store(&t.rig.control->spared, 0);
}

/* a: after, b: before */
static void same(const struct kvplane_cuda_ledger *a, const struct kvplane_cuda_ledger *b,
                 const char *what)
{
    /* A release of a handle that fails leaves it, until the next try. */
    size_t left = strcmp(what, "cuMemRelease") == 0;
    cr_assert(a->mappings == b->mappings && a->handles <= b->handles + left, "%s", what);
    cr_assert(a->regions == b->regions + (a->handles > b->handles ? left : 0) ||
                  a->regions == b->regions,
              "%s", what);
    cr_assert(a->mapped_bytes == b->mapped_bytes && a->address_bytes == b->address_bytes, "%s",
              what);
    cr_assert(a->offload_bytes == b->offload_bytes && a->held == b->held, "%s", what);
}

/* undone: a failure leaves everything as it was; else, as far as it came. */
static void each_call_fails_once(int (*operation)(void), void (*back)(void), bool undone)
{
    for (unsigned n = 1;; n++) {
        struct kvplane_cuda_ledger before = ledger();
        uint64_t held = cuda_rig_held(&t.rig);
        uint64_t host = fake_runtime.host_bytes;
        arm(n);
        int result = operation();
        bool fired = cuda_rig_disarm(&t.rig);
        const char *call = fake_runtime_fired(atomic_load(&t.rig.control->fired_call));
        if (fired) {
            cr_assert_neq(result, KVPLANE_OK, "%s failed, and nobody said so", call);
            cr_assert_str_not_empty(kvplane_cuda_last_error(t.kc));
            cr_assert_eq(cudaGetLastError(), cudaSuccess, "%s", call);
            if (undone) {
                struct kvplane_cuda_ledger after = ledger();
                same(&after, &before, call);
                cr_assert(cuda_rig_comes_to(&t.rig, held), "%s", call);
                cr_assert_eq(fake_runtime.host_bytes, host, "%s", call);
            }
            result = operation();
        }
        cr_assert_eq(result, KVPLANE_OK, "%s failed once: %s", call, kvplane_cuda_last_error(t.kc));
        back();
        if (!fired) {
            cr_assert_gt(n, 1);
            return;
        }
    }
}

static const char *const all_tags[] = {"kv_cache", "weights"};
static const bool keep_weights[] = {false, true};

static int do_hand_over(void)
{
    return kvplane_cuda_hand_over(t.kc);
}

static int do_prepare(void)
{
    return kvplane_cuda_release(t.kc, false, all_tags, keep_weights, 2);
}

static int do_commit(void)
{
    return kvplane_cuda_release(t.kc, true, all_tags, keep_weights, 2);
}

static int do_restore(void)
{
    return kvplane_cuda_restore(t.kc, all_tags, 2);
}

static void back_from_hand_over(void)
{
    run_until(is_ready, "ready");
    cr_assert_eq(cuda_rig_held(&t.rig), mine + 2 * UNIT + FAKE_CUDA_CONTEXT);
}

Test(engine_cuda, a_handing_over_that_fails_leaves_nothing_and_can_be_repeated, .timeout = 600,
     .fini = end)
{
    setup(0, 0);
    each_call_fails_once(do_hand_over, back_from_hand_over, true);
    command("sleep", "--level", "2");
    cr_assert_eq(cuda_rig_held(&t.rig), mine);
    cleanup();
}

/* With no daemon, whose part would hide what is left here. */
static void setup_alone(void)
{
    if (t.rig.control == NULL) {
        begin(false);
    }
    open_session(0);
    open_handle(0);
    cr_assert_eq(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking), cudaSuccess);
}

static void cleanup_alone(void)
{
    kvplane_close(t.kv);
    cr_assert_eq(kvplane_cuda_close(t.kc), KVPLANE_OK, "%s", kvplane_cuda_last_error(t.kc));
    leaves_nothing();
}

static uint32_t next_region = 10;
static void *allocated;

static int do_allocate(void)
{
    struct kvplane_cuda_memory memory = {next_region, "kv_cache", UNIT + 1, false};
    return kvplane_cuda_allocate(t.kc, &memory, &allocated);
}

static void back_from_allocate(void)
{
    next_region++;
    cr_assert(ledger().handles == 0 && ledger().mapped_bytes == 2 * UNIT * ledger().regions);
}

static void back_from_prepare(void)
{
    cr_assert_eq(fake_runtime.host_bytes, UNIT);
    const bool nothing[] = {false, false};
    cr_assert_eq(do_restore(), KVPLANE_ERR_BAD_STATE, "no daemon");
    cr_assert_eq(kvplane_cuda_release(t.kc, true, all_tags, nothing, 2), KVPLANE_OK);
    cr_assert_eq(fake_runtime.host_bytes, 0);
    cr_assert_eq(do_restore(), KVPLANE_ERR_BAD_STATE);
    cr_assert_eq(ledger().mappings, 2);
}

static void back_from_commit(void)
{
    cr_assert(ledger().mappings == 0 && ledger().handles == 0);
    cr_assert_eq(cuda_rig_held(&t.rig), mine);
    cr_assert_eq(fake_runtime.host_bytes, UNIT);
    cr_assert_eq(do_restore(), KVPLANE_ERR_BAD_STATE);
    cr_assert(gpu_has(t.weights, UNIT, 1000, 0));
    cr_assert_eq(do_prepare(), KVPLANE_OK);
}

Test(engine_cuda, every_call_failed_once_leaves_nothing_and_a_retry_works, .timeout = 600,
     .fini = end)
{
    setup_alone();
    each_call_fails_once(do_allocate, back_from_allocate, true);
    cleanup_alone();
    setup_alone();
    cr_assert_eq(allocate_kv(), KVPLANE_OK);
    cr_assert_eq(allocate_weights(), KVPLANE_OK);
    fill_gpu(t.weights, UNIT, 1000, 0);
    each_call_fails_once(do_prepare, back_from_prepare, true);
    fill_gpu(t.weights, UNIT, 1000, 0);
    cr_assert_eq(do_prepare(), KVPLANE_OK);
    each_call_fails_once(do_commit, back_from_commit, false);
    cleanup_alone();
}

static int do_put_after(void)
{
    struct kvplane_slice slice;
    struct kvplane_entry entry = entry_at(t.memory, BLOCK, 0, &slice);
    static cudaEvent_t event;
    if (event == NULL) {
        atomic_uint fuse = atomic_exchange(&t.rig.control->fuse, 0);
        cr_assert_eq(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
        cr_assert_eq(cudaEventRecord(event, t.stream), cudaSuccess);
        atomic_store(&t.rig.control->fuse, fuse);
        fake_runtime.events--; /* not the library's */
    }
    return kvplane_cuda_put_after(t.kc, event, &entry, 1, NULL, NULL);
}

static int do_put_after_stream(void)
{
    struct kvplane_slice slice;
    struct kvplane_entry entry = entry_at(t.memory, BLOCK, 0, &slice);
    return kvplane_cuda_put_after_stream(t.kc, t.stream, &entry, 1, NULL, NULL);
}

static void nothing(void)
{
}

static int do_gather(void)
{
    const struct kvplane_cuda_piece piece = {t.memory, 0, 4096};
    return kvplane_cuda_gather(t.kc, t.stream, t.memory + UNIT / 2, &piece, 1);
}

/* Closing goes on where it failed. */
static void close_with_the_nth_call_failed(unsigned n, bool *fired)
{
    setup_alone();
    cr_assert_eq(allocate_kv(), KVPLANE_OK);
    cr_assert_eq(allocate_weights(), KVPLANE_OK);
    cr_assert_eq(do_prepare(), KVPLANE_OK);
    cr_assert_eq(do_put_after_stream(), KVPLANE_OK);
    cr_assert_eq(do_gather(), KVPLANE_OK);
    fake_runtime_drain();
    kvplane_close(t.kv);
    arm(n);
    int result = kvplane_cuda_close(t.kc);
    *fired = cuda_rig_disarm(&t.rig);
    if (*fired) {
        cr_assert_neq(result, KVPLANE_OK);
        cr_assert_str_not_empty(kvplane_cuda_last_error(t.kc));
        result = kvplane_cuda_close(t.kc);
    }
    cr_assert_eq(result, KVPLANE_OK);
    leaves_nothing();
}

Test(engine_cuda, every_call_of_a_put_a_packing_and_an_end_failed_once, .timeout = 600, .fini = end)
{
    setup_alone();
    cr_assert_eq(allocate_kv(), KVPLANE_OK);
    fake_runtime_pause(t.stream, true); /* what it runs counts for no fuse */
    each_call_fails_once(do_put_after_stream, nothing, true);
    each_call_fails_once(do_put_after, nothing, true);
    each_call_fails_once(do_gather, nothing, true);
    fake_runtime_pause(t.stream, false);
    fake_runtime_drain();
    cleanup_alone();
    bool fired = true;
    for (unsigned n = 1; fired; n++) {
        close_with_the_nth_call_failed(n, &fired);
    }
}

Test(engine_cuda, an_opening_that_fails_leaves_nothing_and_says_why, .timeout = 600, .fini = end)
{
    begin(false);
    open_session(0);
    struct kvplane_cuda_options options = {.kv = t.kv};
    int device;
    bool fired = true;
    cr_assert_eq(cudaGetDevice(&device), cudaSuccess); /* the driver starts */
    for (unsigned n = 1; fired; n++) {
        struct kvplane_cuda *kc = NULL;
        arm(n);
        int result = kvplane_cuda_open(&options, &kc);
        fired = cuda_rig_disarm(&t.rig);
        cr_assert_eq(result == KVPLANE_OK, !fired);
        if (fired) {
            cr_assert_str_not_empty(kvplane_cuda_last_error(NULL));
            cr_assert_null(kc);
        } else {
            cr_assert_eq(kvplane_cuda_close(kc), KVPLANE_OK);
        }
    }
    options.device = FAKE_CUDA_DEVICES;
    cr_assert_eq(kvplane_cuda_open(&options, &t.kc), KVPLANE_ERR_UNAVAILABLE);
    cr_assert_str_eq(kvplane_cuda_last_error(NULL),
                     "cudaSetDevice: cudaErrorInvalidDevice (cudaErrorInvalidDevice)");
    options.device = -1;
    cr_assert_eq(kvplane_cuda_open(&options, &t.kc), KVPLANE_ERR_INVALID);
    kvplane_close(t.kv);
    leaves_nothing();
}

/* The same over the whole way, with the daemon's part: each call of the engine in a sleep and in a
 * wake. What fails is said, and the same command again does it. */
static unsigned command_with_the_nth_call_failed(unsigned n, const char *verb, const char *option,
                                                 const char *value, const int *result)
{
    arm(n);
    bool ok = try_command(verb, option, value);
    bool fired = cuda_rig_disarm(&t.rig);
    const char *call = fake_runtime_fired(atomic_load(&t.rig.control->fired_call));
    cr_assert(fired || ok, "%s", verb);
    if (!ok) {
        cr_assert(try_command(verb, option, value), "%s again, after %s: %d", verb, call, *result);
    }
    return fired;
}

Test(engine_cuda, every_call_of_a_sleep_and_a_wake_failed_once, .timeout = 1100, .fini = end)
{
    setup(0, 0);
    bool sleeping = true;
    bool waking = true;
    for (unsigned n = 1; sleeping || waking; n++) {
        sleeping = sleeping &&
                   command_with_the_nth_call_failed(n, "sleep", "--level", "1", &t.release_result);
        if (!sleeping) {
            command("sleep", "--level", "1");
        }
        cr_assert(cuda_rig_comes_to(&t.rig, mine), "sleep, call %u", n);
        cr_assert(ledger().mappings == 0 && ledger().handles == 0);
        cr_assert_eq(fake_runtime.host_bytes, UNIT);
        waking =
            waking && command_with_the_nth_call_failed(n, "wake", NULL, NULL, &t.restore_result);
        if (!waking) {
            command("wake", NULL, NULL);
        }
        run_until(is_ready, "ready");
        cr_assert_eq(cuda_rig_held(&t.rig), mine + 2 * UNIT + FAKE_CUDA_CONTEXT, "wake, call %u",
                     n);
        cr_assert_eq(fake_runtime.host_bytes, 0);
        cr_assert(gpu_has(t.weights, UNIT, 1000, t.weights_id), "wake, call %u", n);
    }
    (void)run_prompt();
    cr_assert_eq(run_prompt(), BLOCKS);
    cleanup();
}

/* ---- memory that the engine made ---- */

struct own {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    uint64_t len;
};
static struct kvt_cu cu;

static struct own make_own(unsigned types, int device)
{
    char why[256];
    struct own own = {.len = 2 * UNIT};
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = types,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    cr_assert(cu.init != NULL || kvt_cu_open(KVT_CU_LIBRARY, &cu, why) == KVB_OK);
    cr_assert_eq(cu.mem_create(&own.handle, own.len, &prop, 0), CUDA_SUCCESS);
    cr_assert_eq(cu.mem_reserve(&own.at, own.len, 0, 0, 0), CUDA_SUCCESS);
    cr_assert_eq(cu.mem_map(own.at, own.len, 0, own.handle, 0), CUDA_SUCCESS);
    cr_assert_eq(cu.mem_access(own.at, own.len, &access, 1), CUDA_SUCCESS);
    return own;
}

static void free_own(const struct own *own)
{
    cr_assert_eq(cu.mem_unmap(own->at, own->len), CUDA_SUCCESS);
    cr_assert_eq(cu.mem_release(own->handle), CUDA_SUCCESS);
    cr_assert_eq(cu.mem_free(own->at, own->len), CUDA_SUCCESS);
}

static struct own adoptee;
static void *base;

static int do_adopt(void)
{
    return kvplane_cuda_adopt(t.kc, 20, "kv_cache", (char *)(uintptr_t)adoptee.at + UNIT, 4096,
                              &base);
}

static int do_adopt_handle(void)
{
    return kvplane_cuda_adopt_handle(t.kc, 21, "kv_cache", adoptee.handle, adoptee.len);
}

Test(engine_cuda, memory_that_cannot_be_handed_over_is_refused_with_the_reason, .timeout = 600,
     .fini = end)
{
    setup_alone();
    struct own secret = make_own(CU_MEM_HANDLE_TYPE_NONE, 0);
    struct own elsewhere = make_own(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1);
    void *at = (void *)(uintptr_t)secret.at;
    cr_assert_eq(kvplane_cuda_adopt(t.kc, 20, "kv_cache", at, UNIT, &base), KVPLANE_ERR_INVALID);
    cr_assert_not_null(strstr(kvplane_cuda_last_error(t.kc), "requestedHandleTypes"));
    cr_assert_eq(kvplane_cuda_adopt_handle(t.kc, 20, "kv_cache", elsewhere.handle, 2 * UNIT),
                 KVPLANE_ERR_INVALID);
    adoptee = make_own(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    at = (void *)(uintptr_t)adoptee.at;
    cr_assert_eq(kvplane_cuda_adopt(t.kc, 20, "kv_cache", at, 2 * UNIT + 1, &base),
                 KVPLANE_ERR_INVALID, "past its end");
    cr_assert_eq(kvplane_cuda_adopt(t.kc, 20, "no tag!", at, UNIT, &base), KVPLANE_ERR_INVALID);
    cr_assert_eq(ledger().regions, 0);
    each_call_fails_once(do_adopt, nothing, false);
    cr_assert_eq(base, at, "the region is the whole allocation");
    each_call_fails_once(do_adopt_handle, nothing, false);
    cr_assert_eq(allocate_kv(), KVPLANE_OK);
    cr_assert_eq(kvplane_cuda_adopt(t.kc, KV, "kv_cache", at, UNIT, &base), KVPLANE_ERR_EXISTS);
    cr_assert_eq(allocate_kv(), KVPLANE_ERR_EXISTS);
    struct kvplane_slice slice;
    cr_assert_eq(kvplane_cuda_slice(t.kc, (char *)at + 100, 28, &slice), KVPLANE_OK);
    cr_assert(slice.region == 20 && slice.offset == 100 && slice.len == 28);
    cr_assert_eq(kvplane_cuda_slice(t.kc, (char *)at + 2 * UNIT - 1, 2, &slice),
                 KVPLANE_ERR_NOT_FOUND);
    free_own(&secret);
    free_own(&elsewhere);
    free_own(&adoptee);
    cr_assert_eq(cuda_rig_held(&t.rig), mine + UNIT, "the library holds none of it");
    cleanup_alone();
}

static bool first_adopted_is_ready(void)
{
    return t.registrations > 0 && is_ready();
}

/* types: what it can be exported as. by_handle: else by address. */
static void adopted_memory_sleeps(unsigned types, bool by_handle)
{
    begin(true);
    open_session(0);
    open_handle(0);
    cr_assert_eq(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking), cudaSuccess);
    adoptee = make_own(types, 0);
    t.memory = (char *)(uintptr_t)adoptee.at;
    cr_assert_eq(by_handle ? do_adopt_handle() : do_adopt(), KVPLANE_OK);
    run_until(first_adopted_is_ready, "ready");
    cr_assert_eq(cuda_rig_held(&t.rig), mine + 2 * UNIT + FAKE_CUDA_CONTEXT);
    fill_gpu(t.memory, BLOCK, 0, 0);
    struct outcome outcome = {0};
    struct kvplane_slice slice = {by_handle ? 21 : 20, 0, BLOCK};
    struct kvplane_entry entry = {
        .key = "b00", .key_len = 3, .token = kvplane_get_token(t.kv), .slices = &slice};
    entry.nslices = 1;
    cr_assert_eq(kvplane_cuda_put_after_stream(t.kc, t.stream, &entry, 1, on_put, &outcome),
                 KVPLANE_OK);
    run_until(nothing_pending, "put");
    cr_assert_eq(outcome.stored, 1);
    const char *tags[] = {"kv_cache"};
    const bool keep[] = {false};
    /* The engine is asked, by hand: the library first, then what is the engine's. */
    cr_assert_eq(kvplane_cuda_release(t.kc, true, tags, keep, 1), KVPLANE_OK);
    struct kvplane_state state = {0};
    kvplane_cuda_state(t.kc, &state);
    cr_assert_eq(state.tags[0].residency, KVPLANE_DISCARDED);
    end_daemon(SIGKILL);
    run_until(is_detached, "seen");
    free_own(&adoptee);
    cr_assert(cuda_rig_comes_to(&t.rig, mine), "nothing here holds it");
    if (by_handle) {
        cr_assert_eq(kvplane_cuda_restore(t.kc, tags, 1), KVPLANE_ERR_INVALID, "adopt it first");
    }
    kvplane_close(t.kv);
    cr_assert_eq(kvplane_cuda_close(t.kc), KVPLANE_OK);
    leaves_nothing();
}

Test(engine_cuda, memory_adopted_by_address_is_shared_and_not_held, .timeout = 600, .fini = end)
{
    adopted_memory_sleeps(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, false);
}

Test(engine_cuda, memory_adopted_by_handle_is_shared_and_not_held, .timeout = 600, .fini = end)
{
    adopted_memory_sleeps(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, true);
}

Test(engine_cuda, memory_that_only_the_fabric_shares_is_handed_over_so, .timeout = 600, .fini = end)
{
    adopted_memory_sleeps(CU_MEM_HANDLE_TYPE_FABRIC, true);
}

Test(engine_cuda, fabric_is_asked_for_only_where_it_really_is, .timeout = 600, .fini = end)
{
    setup_alone();
    atomic_store(&t.rig.control->no_fabric, 1);
    struct kvplane_cuda_memory memory = {KV, "kv_cache", UNIT, true};
    cr_assert_eq(kvplane_cuda_allocate(t.kc, &memory, (void **)&t.memory), KVPLANE_OK, "%s",
                 kvplane_cuda_last_error(t.kc));
    fill_gpu(t.memory, UNIT, 1, 1);
    cr_assert(gpu_has(t.memory, UNIT, 1, 1));
    cleanup_alone();
}

Test(engine_cuda, the_current_device_of_the_engine_stays_what_it_was, .timeout = 600, .fini = end)
{
    begin(false);
    open_session(0);
    struct kvplane_cuda_options options = {.kv = t.kv, .device = 1};
    int current = -1;
    cr_assert_eq(kvplane_cuda_open(&options, &t.kc), KVPLANE_OK);
    cr_assert_eq(allocate_kv(), KVPLANE_OK);
    cr_assert_eq(allocate_weights(), KVPLANE_OK);
    cr_assert_eq(do_prepare(), KVPLANE_OK);
    cr_assert_eq(do_commit(), KVPLANE_OK);
    cr_assert_eq(cudaGetDevice(&current), cudaSuccess);
    cr_assert_eq(current, 0);
    t.stream = NULL;
    cleanup_alone();
}

/* ---- many small pieces ---- */

enum { PIECES = PIECES_MAX + 50, PIECE = 192, PACKED = PIECES * PIECE };

/* Every other 192 bytes of the first half of the memory; the staging area is the second half. */
static void pieces_of(struct kvplane_cuda_piece *pieces)
{
    for (unsigned i = 0; i < PIECES; i++) {
        pieces[i] = (struct kvplane_cuda_piece){t.memory + i * 2 * PIECE, i * PIECE, PIECE};
    }
}

static void fill_pieces(unsigned weights)
{
    for (unsigned i = 0; i < PIECES; i++) {
        fill_gpu(t.memory + i * 2 * PIECE, PIECE, 200 + i, weights);
    }
}

Test(engine_cuda, small_pieces_are_put_as_one_slice_and_come_back_where_they_were, .timeout = 600,
     .fini = end)
{
    setup(0, 0);
    static struct kvplane_cuda_piece pieces[PIECES];
    char *staging = t.memory + UNIT / 2;
    struct outcome outcome = {0};
    struct kvplane_slice slice;
    pieces_of(pieces);
    fill_pieces(0);
    fake_runtime_pause(t.stream, true);
    cr_assert_eq(kvplane_cuda_gather(t.kc, t.stream, staging, pieces, PIECES), KVPLANE_OK);
    struct kvplane_entry entry = entry_at(staging, PACKED, 9, &slice);
    cr_assert_eq(kvplane_cuda_put_after_stream(t.kc, t.stream, &entry, 1, on_put, &outcome),
                 KVPLANE_OK);
    ticks(3);
    cr_assert_eq(outcome.calls, 0, "the packing is waited for");
    fake_runtime_pause(t.stream, false);
    run_until(nothing_pending, "put");
    cr_assert_eq(outcome.stored, 1);
    cr_assert_eq(fake_runtime.launches, 2);
    /* What lies between the pieces is nobody's to write. */
    fill_gpu(t.memory, UNIT, 77, 77);
    cr_assert_eq(get_block(staging, PACKED, 9), KVPLANE_OK);
    cr_assert_eq(kvplane_cuda_scatter(t.kc, t.stream, staging, pieces, PIECES), KVPLANE_OK);
    cr_assert_eq(cudaStreamSynchronize(t.stream), cudaSuccess);
    static uint8_t seen[UNIT], want[UNIT];
    expect(want, UNIT, 77, 77);
    for (unsigned i = 0; i < PIECES; i++) {
        cr_assert(gpu_has(t.memory + i * 2 * PIECE, PIECE, 200 + i, 0), "piece %u", i);
    }
    read_gpu(seen, t.memory, UNIT / 2);
    for (size_t i = 0; i < (size_t)PIECES * 2 * PIECE; i++) {
        cr_assert(i / PIECE % 2 == 0 || seen[i] == want[i], "byte %zu", i);
    }
    cleanup();
}

Test(engine_cuda, engines_that_pack_and_engines_that_do_not_share_blocks, .timeout = 600,
     .fini = end)
{
    setup(0, 0);
    enum { FEW = 100 }; /* of one entry's slices */
    static struct kvplane_cuda_piece pieces[PIECES];
    static struct kvplane_slice slices[FEW];
    struct outcome outcome = {0};
    char *staging = t.memory + UNIT / 2;
    pieces_of(pieces);
    fill_pieces(0);
    for (unsigned i = 0; i < FEW; i++) {
        cr_assert_eq(kvplane_cuda_slice(t.kc, pieces[i].address, PIECE, &slices[i]), KVPLANE_OK);
    }
    struct kvplane_slice unused;
    struct kvplane_entry entry = entry_at(staging, 1, 9, &unused);
    entry.slices = slices;
    entry.nslices = FEW;
    cr_assert_eq(kvplane_cuda_put_after_stream(t.kc, t.stream, &entry, 1, on_put, &outcome),
                 KVPLANE_OK);
    run_until(nothing_pending, "put");
    cr_assert_eq(outcome.stored, 1);
    cr_assert_eq(get_block(staging, FEW * PIECE, 9), KVPLANE_OK);
    for (unsigned i = 0; i < FEW; i++) {
        cr_assert(gpu_has(staging + i * PIECE, PIECE, 200 + i, 0), "piece %u", i);
    }
    cleanup();
}

Test(engine_cuda, where_the_kernel_does_not_load_slices_are_left, .timeout = 600, .fini = end)
{
    setup_alone();
    cr_assert_eq(allocate_kv(), KVPLANE_OK);
    struct kvplane_cuda_piece piece = {t.memory, 0, 16};
    fake_runtime.no_image = cudaErrorUnsupportedPtxVersion;
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(kvplane_cuda_gather(t.kc, t.stream, t.memory + 4096, &piece, 1),
                     KVPLANE_ERR_UNSUPPORTED);
        cr_assert_not_null(strstr(kvplane_cuda_last_error(t.kc), "cudaErrorUnsupportedPtxVersion"));
    }
    piece.len = 0;
    cr_assert_eq(kvplane_cuda_scatter(t.kc, t.stream, t.memory, &piece, 1), KVPLANE_ERR_INVALID);
    piece.len = 16;
    piece.offset = UINT32_MAX;
    cr_assert_eq(kvplane_cuda_scatter(t.kc, t.stream, t.memory, &piece, 1), KVPLANE_ERR_TOO_LARGE);
    cleanup_alone();
}

/* ---- the example ---- */

/* By another process than this one, which is no engine here. */
static bool example_is_told(const char *verb)
{
    int how;
    char *argv[] = {(char[]){KVPLANE_PROGRAM}, (char *)(uintptr_t)verb, (char[]){"--url"}, t.url,
                    NULL};
    pid_t pid = run_program(argv, -1);
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    return WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

Test(engine_cuda, the_example_shares_sleeps_and_wakes, .timeout = 600, .fini = end)
{
    begin(true);
    int out[2];
    char line[128];
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    cr_assert_gt(fcntl(out[1], F_SETPIPE_SZ, 1 << 20), 0); /* it writes on while we do not read */
    char *argv[] = {(char[]){KVPLANE_CUDA_EXAMPLE}, t.socket, (char[]){"1000000000"}, NULL};
    pid_t example = run_program(argv, out[1]);
    (void)close(out[1]);
    read_line(out[0], line, sizeof line);
    cr_assert_str_eq(line, "0 of 4 blocks from the store, 0 wrong\n");
    read_line(out[0], line, sizeof line);
    cr_assert_str_eq(line, "4 of 4 blocks from the store, 0 wrong\n");
    cr_assert(example_is_told("sleep"));
    cr_assert_eq(cuda_rig_held(&t.rig), mine, "its context");
    cr_assert(example_is_told("wake"));
    int left = 0; /* what it wrote before the sleep */
    cr_assert_eq(ioctl(out[0], FIONREAD, &left), 0);
    for (int seen = 0; seen <= left; seen += (int)strlen(line)) {
        read_line(out[0], line, sizeof line);
        cr_assert_not_null(strstr(line, ", 0 wrong\n"));
    }
    (void)kill(example, SIGKILL);
    cr_assert_eq(waitpid(example, NULL, 0), example);
    (void)close(out[0]);
    end_daemon(SIGTERM);
    cr_assert(cuda_rig_comes_to(&t.rig, 0));
}
