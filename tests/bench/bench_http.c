/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP server. First /health at 64 connections that are kept, asked by wrk as fast as it can:
 * requests a second of the daemon beside those of nginx, which returns a constant of the same
 * shape, and of libmicrohttpd alone, which does so too. In turns, servers on one core, wrk on the
 * other. Then probes as a kubelet makes them, each on a connection of its own: without other load,
 * and beside wrk with 1,000 connections while a sleep waits for what an engine still does.
 */
#include "rig.h"

#include <microhttpd.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS    7
#define ROUND_S   1
#define CROWD     "1000"
#define PROBES    400u
#define PACE_MS   20u /* between two probes beside the crowd */
#define DRAIN_S   60  /* or $KVPLANE_BENCH_DRAIN_S */
#define BLOCK     (1u << 20)
#define CONSTANT  "{\"status\":\"ok\"}"
#define AN_ID     "5ef750895536127a0eb02d5f3f1c1b5f"
#define MS(ns)    ((double)(ns) / 1e6)
#define NS_PER_MS 1000000u

/* ---- the others ---- */

static pid_t start_nginx(uint16_t port)
{
    char dir[64], path[96];
    rig_temp_dir(dir);
    snprintf(path, sizeof path, "%s/nginx.conf", dir);
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        rig_fail("%s: %m", path);
    }
    fprintf(file,
            "worker_processes 1; daemon off; master_process off; pid nginx.pid; error_log stderr;\n"
            "events { worker_connections 4096; }\n"
            "http {\n"
            "  access_log off; keepalive_requests 1000000000; keepalive_timeout 150s;\n"
            "  client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f;\n"
            "  uwsgi_temp_path u; scgi_temp_path s; default_type application/json;\n"
            "  server {\n"
            "    listen 127.0.0.1:%u;\n"
            "    location /health { add_header X-Request-Id %s; return 200 '%s'; }\n"
            "  }\n"
            "}\n",
            port, AN_ID, CONSTANT);
    fclose(file);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rig_pin(RIG_SERVER_CPU);
        execlp("nginx", "nginx", "-p", dir, "-c", path, "-e", "stderr", NULL);
        _exit(127);
    }
    return pid;
}

static enum MHD_Result answer(void *cls, struct MHD_Connection *mhd, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *len, void **con_cls)
{
    static char seen;
    (void)url;
    (void)method;
    (void)version;
    (void)data;
    (void)len;
    if (*con_cls == NULL) { /* the head is there, the body is to come */
        *con_cls = &seen;
        return MHD_YES;
    }
    return MHD_queue_response(mhd, 200, cls);
}

/* libmicrohttpd as it comes, in the way of serving that is its fastest here. */
static pid_t start_bare(uint16_t port)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rig_pin(RIG_SERVER_CPU);
        static char constant[] = CONSTANT;
        struct MHD_Response *response =
            MHD_create_response_from_buffer(sizeof constant - 1, constant, MHD_RESPMEM_PERSISTENT);
        if (response == NULL ||
            MHD_add_response_header(response, "Content-Type", "application/json") != MHD_YES ||
            MHD_add_response_header(response, "X-Request-Id", AN_ID) != MHD_YES ||
            MHD_start_daemon(MHD_USE_POLL_INTERNAL_THREAD, port, NULL, NULL, answer, response,
                             MHD_OPTION_END) == NULL) {
            _exit(1);
        }
        for (;;) {
            pause();
        }
    }
    return pid;
}

static void await(uint16_t port, pid_t pid, const char *what)
{
    struct rig rig = {.port = port};
    struct rig_http http;
    for (uint64_t end_ns = rig_now_ns() + 10000ull * NS_PER_MS; !rig_http_try(&http, &rig);
         usleep(10000)) {
        if (rig_now_ns() > end_ns || waitpid(pid, NULL, WNOHANG) != 0) {
            rig_fail("%s does not come up", what);
        }
    }
    if (rig_http_call(&http, "GET", "/health", NULL) != 200 || strcmp(http.body, CONSTANT) != 0) {
        rig_fail("%s answers: %s", what, http.body);
    }
    rig_http_close(&http);
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* All its threads have used so far. */
static double cpu_s(pid_t pid)
{
    char path[64];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL ||
        fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
               &system) != 2) {
        rig_fail("%s: cannot be read", path);
    }
    fclose(file);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* ---- wrk ---- */

struct wrk {
    pid_t pid;
    FILE *out;
};

static void wrk_start(struct wrk *wrk, uint16_t port, const char *connections, unsigned seconds)
{
    char url[64], duration[16];
    int out[2];
    snprintf(url, sizeof url, "http://127.0.0.1:%u/health", port);
    snprintf(duration, sizeof duration, "%us", seconds);
    if (pipe2(out, O_CLOEXEC) != 0) {
        rig_fail("pipe: %m");
    }
    wrk->pid = fork();
    if (wrk->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rig_pin(RIG_CLIENT_CPU);
        dup2(out[1], 1);
        execlp("wrk", "wrk", "-t1", "-c", connections, "-d", duration, "--timeout", "10s", url,
               NULL);
        _exit(127);
    }
    close(out[1]);
    wrk->out = fdopen(out[0], "re");
}

/* Requests a second; every one of them was answered with 200. */
static double wrk_end(struct wrk *wrk)
{
    static char text[4096];
    size_t len = fread(text, 1, sizeof text - 1, wrk->out);
    int status;
    text[len] = '\0';
    fclose(wrk->out);
    const char *rate = strstr(text, "Requests/sec:");
    if (waitpid(wrk->pid, &status, 0) != wrk->pid || status != 0 || rate == NULL ||
        strstr(text, "Non-2xx") != NULL || strstr(text, "Socket errors") != NULL) {
        rig_fail("wrk said: %s", text);
    }
    return atof(rate + strlen("Requests/sec:"));
}

static double wrk_run(uint16_t port)
{
    struct wrk wrk;
    wrk_start(&wrk, port, "64", ROUND_S);
    return wrk_end(&wrk);
}

/* ---- probes ---- */

static double probe_ms(const struct rig *rig, struct rig_engine *engine)
{
    struct rig_http http;
    uint64_t start_ns = rig_now_ns();
    rig_http_open(&http, rig);
    if (rig_http_call(&http, "GET", "/health", engine) != 200) {
        rig_fail("/health: %s", http.body);
    }
    rig_http_close(&http);
    return MS(rig_now_ns() - start_ns);
}

/* Beside the crowd, while a sleep waits. */
static void probe_in_a_drain(struct rig *rig, struct rig_engine *engine, unsigned drain_s)
{
    static double ms[100000];
    size_t n = 0;
    struct wrk wrk;
    struct rig_http sleep;
    uint64_t key = 0;

    engine->pause_waits = true;
    wrk_start(&wrk, rig->port, CROWD, drain_s + 1);
    rig_http_open(&sleep, rig);
    rig_http_send(&sleep, "POST", "/sleep?level=1&mode=wait");
    uint64_t end_ns = rig_now_ns() + drain_s * 1000ull * NS_PER_MS;
    while (rig_now_ns() < end_ns && n < sizeof ms / sizeof ms[0]) {
        if (engine->outstanding == 0) { /* what its requests computed */
            rig_engine_put(engine, ++key, 0, BLOCK);
        }
        ms[n++] = probe_ms(rig, engine);
        usleep(PACE_MS * 1000);
        (void)kvplane_process(engine->kv);
    }
    if (engine->pausing == NULL) {
        rig_fail("the sleep did not ask for a pause");
    }
    rig_engine_wait(engine, 0);
    rig_engine_paused(engine);
    if (rig_http_answer(&sleep, engine) != 200) {
        rig_fail("/sleep: %s", sleep.body);
    }
    rig_http_close(&sleep);
    double rps = wrk_end(&wrk);
    double max = rig_quantile(ms, n, 1);
    printf("%s connections of wrk and a drain of %u s: %.0f requests/s, %zu fresh probes "
           "fresh_p50_ms=%.1f fresh_p99_ms=%.1f fresh_max_ms=%.1f\n",
           CROWD, drain_s, rps, n, rig_quantile(ms, n, 0.5), rig_quantile(ms, n, 0.99), max);
}

int main(void)
{
    const char *given = getenv("KVPLANE_BENCH_DRAIN_S");
    unsigned drain_s = given != NULL ? (unsigned)strtoul(given, NULL, 10) : DRAIN_S;
    struct rig rig;
    struct rig_engine engine;

    setvbuf(stdout, NULL, _IOLBF, 0);
    rig_start(&rig, RIG_SERVER_CPU, (const char *[]){"--store-bytes", "256MiB", NULL});
    rig_engine_open(&engine, &rig, "bench", "bench", BLOCK);
    uint16_t ports[3] = {rig_free_port(), rig.port, rig_free_port()};
    pid_t nginx = start_nginx(ports[0]);
    pid_t bare = start_bare(ports[2]);
    await(ports[0], nginx, "nginx");
    await(ports[2], bare, "libmicrohttpd");

    double rps[3][ROUNDS], ratio[ROUNDS], limit[ROUNDS], us[3][ROUNDS];
    const pid_t pids[3] = {nginx, rig.daemon, bare};
    for (int i = 0; i < ROUNDS; i++) {
        for (int j = 0; j < 3; j++) {
            double begun_s = cpu_s(pids[j]);
            rps[j][i] = wrk_run(ports[j]);
            us[j][i] = (cpu_s(pids[j]) - begun_s) * 1e6 / (rps[j][i] * ROUND_S);
            (void)kvplane_process(engine.kv);
        }
        ratio[i] = rps[1][i] / rps[0][i];
        limit[i] = rps[2][i] / rps[0][i];
        printf("round %d: nginx %.0f, kvplane %.0f, libmicrohttpd alone %.0f requests/s\n", i + 1,
               rps[0][i], rps[1][i], rps[2][i]);
    }
    end(nginx);
    end(bare);
    printf("CPU of a request: nginx %.1f us, kvplane %.1f us, libmicrohttpd alone %.1f us\n",
           rig_quantile(us[0], ROUNDS, 0.5), rig_quantile(us[1], ROUNDS, 0.5),
           rig_quantile(us[2], ROUNDS, 0.5));
    static double ms[PROBES];
    for (uint32_t i = 0; i < PROBES; i++) {
        ms[i] = probe_ms(&rig, &engine);
    }
    double probe_p99_ms = rig_quantile(ms, PROBES, 0.99);
    probe_in_a_drain(&rig, &engine, drain_s);
    rig_engine_close(&engine);
    rig_stop(&rig);
    printf("mhd_limit_ratio=%.3f (libmicrohttpd alone beside nginx)\n",
           rig_quantile(limit, ROUNDS, 0.5));
    printf("bench http: health_rps_ratio=%.3f probe_p99_ms=%.3f\n",
           rig_quantile(ratio, ROUNDS, 0.5), probe_p99_ms);
    return 0;
}
