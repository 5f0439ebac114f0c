/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP server. First /health at 64 connections that are kept, asked by wrk as fast as it can:
 * requests a second of the daemon beside those of nginx, which returns a constant of the same
 * shape, and of libmicrohttpd alone, which does so too. In turns, servers on one core, wrk on the
 * other. Then probes as a kubelet makes them, each on a connection of its own: without other load,
 * and beside wrk with 1,000 connections while a sleep waits for what an engine still does.
 */
#include "rig.h"
#include "web_rig.h"

#include <microhttpd.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
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
    return web_nginx(RIG_SERVER_CPU,
                     "server { listen 127.0.0.1:%u;\n"
                     "  location /health { add_header X-Request-Id %s; return 200 '%s'; } }\n",
                     port, AN_ID, CONSTANT);
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

/* ---- wrk ---- */

static double wrk_run(uint16_t port)
{
    struct web_wrk wrk;
    web_wrk_start(&wrk, RIG_CLIENT_CPU, port, "/health", "64", ROUND_S);
    return web_wrk_end(&wrk);
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
    struct web_wrk wrk;
    struct rig_http sleep;
    uint64_t key = 0;

    engine->pause_waits = true;
    web_wrk_start(&wrk, RIG_CLIENT_CPU, rig->port, "/health", CROWD, drain_s + 1);
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
    double rps = web_wrk_end(&wrk);
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
    web_await(ports[0], nginx, "nginx", "/health", CONSTANT);
    web_await(ports[2], bare, "libmicrohttpd", "/health", CONSTANT);

    double rps[3][ROUNDS], ratio[ROUNDS], limit[ROUNDS], us[3][ROUNDS];
    const pid_t pids[3] = {nginx, rig.daemon, bare};
    for (int i = 0; i < ROUNDS; i++) {
        for (int j = 0; j < 3; j++) {
            double begun_s = web_cpu_s(pids[j]);
            rps[j][i] = wrk_run(ports[j]);
            us[j][i] = (web_cpu_s(pids[j]) - begun_s) * 1e6 / (rps[j][i] * ROUND_S);
            (void)kvplane_process(engine.kv);
        }
        ratio[i] = rps[1][i] / rps[0][i];
        limit[i] = rps[2][i] / rps[0][i];
        printf("round %d: nginx %.0f, kvplane %.0f, libmicrohttpd alone %.0f requests/s\n", i + 1,
               rps[0][i], rps[1][i], rps[2][i]);
    }
    web_end(nginx);
    web_end(bare);
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
