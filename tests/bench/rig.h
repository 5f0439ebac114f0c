/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_RIG_H
#define BENCH_RIG_H

#include "kvplane.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * What the benches share: a real daemon in a process of its own, an engine that answers every
 * lifecycle call at once, an HTTP client on one keep-alive connection, and medians. Any failure
 * prints why and exits 1. Server on cpu 0, this process on cpu 1 (reference/performance.md section
 * 0: unpinned figures are bimodal).
 */
#define RIG_SERVER_CPU 0
#define RIG_CLIENT_CPU 1
#define RIG_ANY_CPU    (-1)

struct rig {
    pid_t daemon;
    uint16_t port;
    char dir[64];
    char socket[96];
};

/* `extra` (NULL-terminated) is added to `kvplane serve --listen 127.0.0.1:0 --engine-socket …`. */
void rig_start(struct rig *rig, int cpu, const char *const *extra);
void rig_stop(struct rig *rig);

/* `kvplane` with these arguments (NULL-terminated) on that cpu; the line of its output that begins
 * with `ready`. It ends with this process. */
pid_t rig_program(int cpu, const char *const *args, const char *ready, char *line, size_t cap);

struct rig_engine {
    struct kvplane *kv;
    char *memory; /* its kv_cache region, number 1, mapped here */
    size_t len;
    int fd;
    uint64_t generation;
    bool attached;
    uint32_t outstanding; /* puts and gets not completed */
    uint64_t failed;      /* entries that completed with something else than OK */
    bool pause_waits;     /* requests run: a pause is answered by rig_engine_paused() */
    struct kvplane_call *pausing;
};
void rig_engine_open(struct rig_engine *engine, const struct rig *rig, const char *instance,
                     const char *layout, size_t len);
void rig_engine_close(struct rig_engine *engine);
void rig_engine_await_pause(struct rig_engine *engine);
void rig_engine_paused(struct rig_engine *engine); /* answers the pause that waits */
/* One block of `len` bytes at `offset`; counted in outstanding until done. Waits while the library
 * says AGAIN. */
void rig_engine_put(struct rig_engine *engine, uint64_t key, uint64_t offset, uint64_t len);
void rig_engine_get(struct rig_engine *engine, uint64_t key, uint64_t offset, uint64_t len);
/* `n` blocks with keys first … first + n - 1, all from the same bytes; one batch. */
void rig_engine_put_many(struct rig_engine *engine, uint64_t first, uint32_t n, uint64_t len);
/* Processes until at most `outstanding` are left. */
void rig_engine_wait(struct rig_engine *engine, uint32_t outstanding);

struct rig_http {
    int fd;
    char body[65536];
};
void rig_http_open(struct rig_http *http, const struct rig *rig);
bool rig_http_try(struct rig_http *http, const struct rig *rig); /* false: nobody listens */
void rig_http_close(struct rig_http *http);
/* Sends, then waits for the answer while `engine` (may be NULL) goes on being processed. Returns
 * the HTTP status. */
int rig_http_call(struct rig_http *http, const char *method, const char *target,
                  struct rig_engine *engine);
/* The two halves of it. */
void rig_http_send(struct rig_http *http, const char *method, const char *target);
int rig_http_answer(struct rig_http *http, struct rig_engine *engine);
/* A number out of the last answer's JSON or metrics text: what stands behind `"name":` or `name `.
 */
double rig_http_number(const struct rig_http *http, const char *name);

/* A new directory under /tmp, removed with all in it when this process ends. */
void rig_temp_dir(char dir[64]);
uint16_t rig_free_port(void); /* of loopback; nobody has it now */
void rig_pin(int cpu);
uint64_t rig_now_ns(void);
/* Sorts; q in 0 … 1. */
double rig_quantile(double *values, size_t n, double q);
double rig_gib_per_s(uint64_t bytes, uint64_t ns);
/* Memory of the kind that shares and regions have (a memfd's), every page of it there. */
char *rig_memory(size_t len);
_Noreturn void rig_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
