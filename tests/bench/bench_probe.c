/* SPDX-License-Identifier: Apache-2.0 */
/* /health in every lifecycle state, and while the loop copies large blocks: probes never wait
 * (promise P6). */
#include "rig.h"

#include <stdio.h>

#define PROBES 400u
#define BLOCK  (64u << 20)

static double p99_ms(struct rig *rig, struct rig_engine *engine, bool busy)
{
    static double ms[PROBES];
    for (uint32_t i = 0; i < PROBES; i++) {
        if (busy && engine->outstanding == 0) {
            static uint64_t key;
            for (int k = 0; k < 4; k++) {
                rig_engine_put(engine, ++key, 0, BLOCK);
            }
        }
        if (busy) {
            (void)kvplane_process(engine->kv);
        }
        struct rig_http http; /* a new connection each, as the kubelet does */
        uint64_t start = rig_now_ns();
        rig_http_open(&http, rig);
        if (rig_http_call(&http, "GET", "/health", NULL) != 200) {
            rig_fail("/health: %s", http.body);
        }
        ms[i] = (double)(rig_now_ns() - start) / 1e6;
        rig_http_close(&http);
    }
    rig_engine_wait(engine, 0);
    return rig_quantile(ms, PROBES, 0.99);
}

static void expect_done(struct rig_http *control, struct rig_engine *engine, const char *target)
{
    int status = rig_http_answer(control, engine);
    if (status != 200) {
        rig_fail("POST %s: %d %s", target, status, control->body);
    }
}

int main(void)
{
    struct rig rig;
    rig_start(&rig, RIG_SERVER_CPU, (const char *[]){"--store-bytes", "512MiB", NULL});
    struct rig_engine engine;
    rig_engine_open(&engine, &rig, "bench", "bench", BLOCK);
    struct rig_http control;
    rig_http_open(&control, &rig);

    static const struct {
        const char *state;
        const char *target; /* POST that leads into it, NULL: nothing */
        bool busy;
        bool waits; /* the engine leaves it waiting meanwhile */
    } states[] = {
        {"running", NULL, false, false},
        {"running, 64 MiB puts", NULL, true, false},
        {"pausing", "/pause?mode=wait", false, true},
        {"paused", NULL, false, false},
        {"running again", "/resume", false, false},
        {"falling asleep", "/sleep?level=1&mode=wait", false, true},
        {"asleep", NULL, false, false},
        {"half awake", "/wake_up?tags=weights", false, false},
        {"awake", "/wake_up", false, false},
    };
    double worst = 0;
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        engine.pause_waits = states[i].waits;
        if (states[i].target != NULL) {
            rig_http_send(&control, "POST", states[i].target);
        }
        if (states[i].waits) {
            rig_engine_await_pause(&engine);
        } else if (states[i].target != NULL) {
            expect_done(&control, &engine, states[i].target);
        }
        double ms = p99_ms(&rig, &engine, states[i].busy);
        if (states[i].waits) {
            rig_engine_paused(&engine);
            expect_done(&control, &engine, states[i].target);
        }
        printf("%-24s /health p99 %7.3f ms\n", states[i].state, ms);
        worst = ms > worst ? ms : worst;
    }
    rig_http_close(&control);
    rig_engine_close(&engine);
    rig_stop(&rig);
    printf("bench probe: p99_ms=%.3f\n", worst);
    return 0;
}
