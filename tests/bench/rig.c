/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 30000 /* nothing in a bench takes longer; then something hangs */

static pid_t daemon_pid; /* for rig_fail */

_Noreturn void rig_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    if (daemon_pid > 0) {
        kill(daemon_pid, SIGKILL);
    }
    exit(1);
}

uint64_t rig_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void rig_pin(int cpu)
{
    if (cpu == RIG_ANY_CPU) {
        return;
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        printf("cpu %d is not to be had: figures are unpinned\n", cpu);
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double rig_quantile(double *values, size_t n, double q)
{
    qsort(values, n, sizeof *values, compare);
    size_t i = (size_t)(q * (double)n);
    return values[i < n ? i : n - 1];
}

/* ---- directories ---- */

#define DIRS_MAX 8
static char dirs[DIRS_MAX][64];
static size_t ndirs;
static pid_t dirs_owner; /* not children that fail */

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void remove_dirs(void)
{
    for (size_t i = 0; i < ndirs && dirs_owner == getpid(); i++) {
        (void)nftw(dirs[i], remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
}

void rig_temp_dir(char dir[64])
{
    if (ndirs == DIRS_MAX || (ndirs == 0 && atexit(remove_dirs) != 0)) {
        rig_fail("too many directories");
    }
    dirs_owner = getpid();
    strcpy(dir, "/tmp/kvplane-bench-XXXXXX");
    if (mkdtemp(dir) == NULL) {
        rig_fail("mkdtemp: %s", strerror(errno));
    }
    strcpy(dirs[ndirs++], dir);
}

uint16_t rig_free_port(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
        rig_fail("no free port: %s", strerror(errno));
    }
    close(fd);
    return ntohs(address.sin_port);
}

double rig_gib_per_s(uint64_t bytes, uint64_t ns)
{
    return (double)bytes / (double)ns * 1e9 / (1u << 30);
}

char *rig_memory(size_t len)
{
    int fd = memfd_create("kvplane-bench", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)len) != 0) {
        rig_fail("memfd of %zu bytes: %s", len, strerror(errno));
    }
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    if (memory == MAP_FAILED) {
        rig_fail("mmap of %zu bytes: %s", len, strerror(errno));
    }
    memset(memory, 0x5a, len);
    return memory;
}

/* ---- the daemon --------------------------------------------------------------------------------
 */

pid_t rig_program(int cpu, const char *const *args, const char *ready, char *line, size_t cap)
{
    char self[4096], program[4200];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(program, sizeof program, "%s/kvplane", self);
    const char *argv[64] = {program};
    for (size_t argc = 1; *args != NULL && argc < 63; argc++) {
        argv[argc] = *args++;
    }
    int out[2];
    if (pipe(out) != 0) {
        rig_fail("pipe: %s", strerror(errno));
    }
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rig_pin(cpu);
        dup2(out[1], 1);
        close(out[0]);
        close(out[1]);
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(out[1]);
    FILE *lines = fdopen(out[0], "r");
    do {
        if (fgets(line, (int)cap, lines) == NULL) {
            rig_fail("%s %s did not come up", program, argv[1]);
        }
    } while (strncmp(line, ready, strlen(ready)) != 0);
    return pid; /* the pipe stays open: it may print more */
}

void rig_start(struct rig *rig, int cpu, const char *const *extra)
{
    rig_temp_dir(rig->dir);
    snprintf(rig->socket, sizeof rig->socket, "%s/engine.sock", rig->dir);
    const char *args[64] = {"serve",     "--listen",    "127.0.0.1:0", "--engine-socket",
                            rig->socket, "--log-level", "warn"};
    size_t n = 7;
    for (; extra != NULL && *extra != NULL && n < 63; extra++) {
        args[n++] = *extra;
    }
    char line[256];
    unsigned port = 0;
    rig->daemon = rig_program(cpu, args, "kvplane ready ", line, sizeof line);
    daemon_pid = rig->daemon;
    if (sscanf(line, "kvplane ready http://127.0.0.1:%u", &port) != 1) {
        rig_fail("the daemon said: %s", line);
    }
    rig->port = (uint16_t)port;
    rig_pin(RIG_CLIENT_CPU);
}

void rig_stop(struct rig *rig)
{
    kill(rig->daemon, SIGTERM);
    int status;
    waitpid(rig->daemon, &status, 0);
    daemon_pid = 0;
    if (status != 0) {
        rig_fail("the daemon ended with status %d", status);
    }
}

/* ---- the engine --------------------------------------------------------------------------------
 */

static void hand_over(struct rig_engine *engine)
{
    struct kvplane_region region = {.region = 1,
                                    .kind = KVPLANE_MEMORY_HOST,
                                    .tag = "kv_cache",
                                    .fd = engine->fd,
                                    .len = engine->len,
                                    .generation = ++engine->generation};
    int rc = kvplane_register_region(engine->kv, &region, NULL, NULL);
    if (rc != KVPLANE_OK) {
        rig_fail("register_region: %s", kvplane_strerror(rc));
    }
}

static void on_attached(void *ctx, int result)
{
    struct rig_engine *engine = ctx;
    if (result != KVPLANE_OK) {
        rig_fail("attach: %s: %s", kvplane_strerror(result), kvplane_last_error(engine->kv));
    }
    hand_over(engine);
    engine->attached = true;
}

static void on_disconnected(void *ctx, int reason)
{
    (void)ctx;
    rig_fail("the daemon went away: %s", kvplane_strerror(reason));
}

static void on_pause(void *ctx, struct kvplane_call *call, enum kvplane_pause_mode mode)
{
    struct rig_engine *engine = ctx;
    (void)mode;
    if (engine->pause_waits) {
        engine->pausing = call;
    } else {
        kvplane_answer(call, KVPLANE_OK);
    }
}

static void on_resume(void *ctx, struct kvplane_call *call)
{
    (void)ctx;
    kvplane_answer(call, KVPLANE_OK);
}

static void on_reset_local(void *ctx, struct kvplane_call *call, bool preempt)
{
    (void)ctx;
    (void)preempt;
    kvplane_answer_reset(call, KVPLANE_OK, 0);
}

static void on_release(void *ctx, struct kvplane_call *call, bool commit, const char *const *tags,
                       const bool *offload, size_t ntags)
{
    (void)ctx;
    (void)commit;
    (void)tags;
    (void)offload;
    (void)ntags;
    kvplane_answer(call, KVPLANE_OK);
}

static void on_restore(void *ctx, struct kvplane_call *call, const char *const *tags, size_t ntags)
{
    for (size_t i = 0; i < ntags; i++) {
        if (strcmp(tags[i], "kv_cache") == 0) {
            hand_over(ctx);
        }
    }
    kvplane_answer(call, KVPLANE_OK);
}

static void on_relay(void *ctx, struct kvplane_call *call, const char *method, const char *body,
                     size_t len)
{
    (void)ctx;
    (void)method;
    (void)body;
    (void)len;
    kvplane_answer_relay(call, KVPLANE_OK, false, "{}", 2);
}

static void on_state(void *ctx, struct kvplane_state *state)
{
    (void)ctx;
    *state = (struct kvplane_state){.local_reset_done = true, .ntags = 1};
    state->tags[0] = (struct kvplane_tag_state){"kv_cache", KVPLANE_RESIDENT};
}

static const struct kvplane_callbacks callbacks = {
    .pause = on_pause,
    .resume = on_resume,
    .reset_local = on_reset_local,
    .release = on_release,
    .restore = on_restore,
    .relay = on_relay,
    .state = on_state,
    .disconnected = on_disconnected,
    .attached = on_attached,
};

static void engine_step(struct rig_engine *engine)
{
    int rc = kvplane_wait(engine->kv, WAIT_MS);
    if (rc != KVPLANE_OK) {
        rig_fail("nothing from the daemon in %d s: %s", WAIT_MS / 1000, kvplane_strerror(rc));
    }
}

void rig_engine_open(struct rig_engine *engine, const struct rig *rig, const char *instance,
                     const char *layout, size_t len)
{
    *engine = (struct rig_engine){.len = len};
    engine->fd = memfd_create("kvplane-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (engine->fd < 0 || ftruncate(engine->fd, (off_t)len) != 0 ||
        fcntl(engine->fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        rig_fail("memfd of %zu bytes: %s", len, strerror(errno));
    }
    engine->memory =
        mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, engine->fd, 0);
    if (engine->memory == MAP_FAILED) {
        rig_fail("mmap: %s", strerror(errno));
    }
    memset(engine->memory, 0x5a, len);
    struct kvplane_options options = {
        .socket = rig->socket,
        .instance = instance,
        .layout = layout,
        .callbacks = &callbacks,
        .ctx = engine,
    };
    int rc = kvplane_open(&options, &engine->kv);
    if (rc != KVPLANE_OK) {
        rig_fail("kvplane_open: %s", kvplane_strerror(rc));
    }
    /* Attached, and told its first lineage. */
    kvplane_token token;
    do {
        engine_step(engine);
        token = kvplane_get_token(engine->kv);
    } while (!engine->attached || (token.hi == 0 && token.lo == 0));
}

void rig_engine_close(struct rig_engine *engine)
{
    kvplane_close(engine->kv);
    munmap(engine->memory, engine->len);
    close(engine->fd);
}

void rig_engine_await_pause(struct rig_engine *engine)
{
    while (engine->pausing == NULL) {
        engine_step(engine);
    }
}

void rig_engine_paused(struct rig_engine *engine)
{
    kvplane_answer(engine->pausing, KVPLANE_OK);
    engine->pausing = NULL;
    engine->pause_waits = false;
}

static void on_done(void *arg, const int *results, size_t n)
{
    struct rig_engine *engine = arg;
    for (size_t i = 0; i < n; i++) {
        engine->failed += results[i] != KVPLANE_OK;
    }
    engine->outstanding--;
}

static void submit(struct rig_engine *engine, bool put, uint64_t first, uint32_t n, uint64_t offset,
                   uint64_t len)
{
    static uint64_t keys[4096][2];
    static struct kvplane_entry entries[4096];
    struct kvplane_slice slice = {.region = 1, .offset = offset, .len = len};
    kvplane_token token = kvplane_get_token(engine->kv);
    for (uint32_t i = 0; i < n; i++) {
        keys[i][0] = first + i;
        keys[i][1] = (first + i) * 0x9e3779b97f4a7c15u;
        entries[i] = (struct kvplane_entry){.key = keys[i],
                                            .key_len = sizeof keys[i],
                                            .token = token,
                                            .slices = &slice,
                                            .nslices = 1};
    }
    for (;;) {
        int rc = put ? kvplane_put(engine->kv, entries, n, on_done, engine)
                     : kvplane_get(engine->kv, 0, token, entries, n, on_done, engine);
        if (rc == KVPLANE_OK) {
            break;
        }
        if (rc != KVPLANE_ERR_AGAIN) {
            rig_fail("%s: %s", put ? "put" : "get", kvplane_strerror(rc));
        }
        engine_step(engine);
    }
    engine->outstanding++;
}

void rig_engine_put(struct rig_engine *engine, uint64_t key, uint64_t offset, uint64_t len)
{
    submit(engine, true, key, 1, offset, len);
}

void rig_engine_get(struct rig_engine *engine, uint64_t key, uint64_t offset, uint64_t len)
{
    submit(engine, false, key, 1, offset, len);
}

void rig_engine_put_many(struct rig_engine *engine, uint64_t first, uint32_t n, uint64_t len)
{
    submit(engine, true, first, n, 0, len);
}

void rig_engine_wait(struct rig_engine *engine, uint32_t outstanding)
{
    (void)kvplane_process(engine->kv);
    while (engine->outstanding > outstanding) {
        engine_step(engine);
    }
}

/* ---- HTTP --------------------------------------------------------------------------------------
 */

bool rig_http_try(struct rig_http *http, const struct rig *rig)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(rig->port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    http->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    setsockopt(http->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(http->fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(http->fd);
        return false;
    }
    return true;
}

void rig_http_open(struct rig_http *http, const struct rig *rig)
{
    if (!rig_http_try(http, rig)) {
        rig_fail("connect: %s", strerror(errno));
    }
}

void rig_http_close(struct rig_http *http)
{
    close(http->fd);
}

void rig_http_send(struct rig_http *http, const char *method, const char *target)
{
    char head[1024];
    int len =
        snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: bench\r\nContent-Length: 0\r\n\r\n",
                 method, target);
    if (send(http->fd, head, (size_t)len, MSG_NOSIGNAL) != len) {
        rig_fail("send: %s", strerror(errno));
    }
}

int rig_http_answer(struct rig_http *http, struct rig_engine *engine)
{
    static char buf[1 << 20];
    size_t have = 0;
    for (;;) {
        struct pollfd fds[2] = {
            {.fd = http->fd, .events = POLLIN},
            {.fd = engine != NULL ? kvplane_fd(engine->kv) : -1, .events = POLLIN}};
        if (poll(fds, 2, WAIT_MS) <= 0) {
            rig_fail("no answer in %d s", WAIT_MS / 1000);
        }
        if (fds[1].revents != 0) {
            (void)kvplane_process(engine->kv);
        }
        if (fds[0].revents == 0) {
            continue;
        }
        ssize_t n = recv(http->fd, buf + have, sizeof buf - 1 - have, 0);
        if (n <= 0) {
            rig_fail("connection ended");
        }
        have += (size_t)n;
        buf[have] = '\0';
        char *end = strstr(buf, "\r\n\r\n");
        char *length = strcasestr(buf, "content-length:");
        if (end == NULL || length == NULL || length > end) {
            continue;
        }
        size_t body = (size_t)atol(length + strlen("content-length:"));
        if (have < (size_t)(end + 4 - buf) + body) {
            continue;
        }
        snprintf(http->body, sizeof http->body, "%.*s", (int)body, end + 4);
        return atoi(buf + strlen("HTTP/1.1 "));
    }
}

int rig_http_call(struct rig_http *http, const char *method, const char *target,
                  struct rig_engine *engine)
{
    rig_http_send(http, method, target);
    return rig_http_answer(http, engine);
}

double rig_http_number(const struct rig_http *http, const char *name)
{
    char quoted[128];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = strstr(http->body, quoted);
    if (at != NULL) {
        return strtod(at + strlen(quoted), NULL);
    }
    for (at = http->body; (at = strstr(at, name)) != NULL; at += strlen(name)) {
        const char *value = strchr(at, ' ');
        bool line_start = at == http->body || at[-1] == '\n';
        char after = at[strlen(name)];
        if (line_start && value != NULL && (after == ' ' || after == '{')) {
            return strtod(value, NULL);
        }
    }
    rig_fail("no '%s' in: %.300s", name, http->body);
}
