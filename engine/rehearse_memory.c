/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"
#include "rehearse.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EMPTY_MS    20000 /* bound until what a reset cleared was reclaimed */
#define SLACK_BYTES (1u << 20)
/* Connections come and go, each with its buffers, on several threads. */
#define CLUSTER_SLACK_BYTES (8u << 20)
/* A sanitizer keeps what was freed; then only region bytes are judged. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define JUDGE_GROWTH false
#else
#define JUDGE_GROWTH true
#endif

bool kve_region_bytes(struct kve_rehearsal *r, const char *tag, uint64_t *bytes_p)
{
    pid_t pids[KVE_PROCESSES_MAX + KVE_WORLD_MAX];
    size_t npids = 0;
    char prefix[64];
    json_t *stats;

    for (uint32_t i = 0; i < r->stage.nprocesses; i++) {
        if (r->stage.processes[i].child.pid > 0) {
            pids[npids++] = r->stage.processes[i].child.pid;
        }
    }
    if (!kve_side_stats(r, &r->a, &stats)) {
        return false;
    }
    const json_t *ranks = json_object_get(stats, "rank_pids");
    for (size_t i = 1; i < json_array_size(ranks) && i < KVE_WORLD_MAX; i++) {
        pids[npids++] = (pid_t)json_integer_value(json_array_get(ranks, i));
    }
    json_decref(stats);
    snprintf(prefix, sizeof prefix, "kve-%s-%s", r->a.instance, tag);
    if (kve_kernel_memfd_bytes(pids, npids, prefix, bytes_p) != KVB_OK) {
        return kve_rehearse_fail(r, "cannot read /proc of the processes");
    }
    return true;
}

/* A is asleep: nothing of what it released may be held by anybody. */
bool kve_judge_asleep(struct kve_rehearsal *r, bool weights_too)
{
    struct kve_kernel_memory memory;
    uint64_t kv_cache = 0, weights = 0;

    if (!kve_region_bytes(r, "kv_cache", &kv_cache) || !kve_region_bytes(r, "weights", &weights)) {
        return false;
    }
    r->row->asleep_bytes = kv_cache + (weights_too ? weights : 0);
    if (kve_kernel_process_memory(r->a.engine->child.pid, &memory) != KVB_OK) {
        return kve_rehearse_fail(r, "cannot read /proc of engine %s", r->a.instance);
    }
    r->row->engine_rss = memory.anon + memory.file;
    if (r->fault != NULL) {
        return true;
    }
    if (r->row->asleep_bytes != 0) {
        kve_rehearse_fail(r, "%" PRIu64 " region bytes are still held while asleep",
                          r->row->asleep_bytes);
    }
    if (r->first_engine_rss == 0) {
        r->first_engine_rss = r->row->engine_rss;
    } else if (JUDGE_GROWTH && r->row->engine_rss > r->first_engine_rss + SLACK_BYTES) {
        kve_rehearse_fail(
            r, "engine %s holds %" PRIu64 " bytes asleep, after the first cycle it was %" PRIu64,
            r->a.instance, r->row->engine_rss, r->first_engine_rss);
    }
    return true;
}

/* Space comes back in small steps: until this part of the store says that none is used. */
static bool await_share_empty(struct kve_rehearsal *r, const struct kve_process *process,
                              const char *after)
{
    static const char used[] = "\nkvplane_store_used_bytes ";
    uint64_t deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, kve_rehearse_bound(r, EMPTY_MS));

    for (;;) {
        const struct timespec pause = {.tv_nsec = 5000000};
        long http_status = 0;
        json_t *answer = NULL;
        kvb_status_t status =
            kve_rest_call(process->rest, "GET", "/metrics", NULL, &http_status, &answer);
        const char *line = status == KVB_OK ? strstr(kve_rest_text(process->rest), used) : NULL;
        json_decref(answer);
        if (line == NULL) {
            return kve_rehearse_fail(r, "GET /metrics of %s: %s, %ld, no store there",
                                     process->name, kvb_status_text(status), http_status);
        }
        if (strtod(line + sizeof used - 1, NULL) == 0) {
            return true;
        }
        if (kvb_now_ns(&kvb_clock_real) > deadline_ns) {
            return kve_rehearse_fail(r, "%s, %.40s bytes of %s stay used", after,
                                     line + sizeof used - 1, process->name);
        }
        nanosleep(&pause, NULL);
    }
}

bool kve_await_empty(struct kve_rehearsal *r, const char *after)
{
    bool empty = true;

    for (uint32_t i = 0; i < r->stage.nprocesses && empty; i++) {
        const struct kve_process *process = &r->stage.processes[i];
        empty = !process->share || await_share_empty(r, process, after);
    }
    return empty;
}

/* Of what serves: nothing grows from one tenant's reset to the next. */
static bool judge_growth(struct kve_rehearsal *r, struct kve_process *process)
{
    const uint64_t slack = r->cluster ? CLUSTER_SLACK_BYTES : SLACK_BYTES;
    struct kve_kernel_memory memory;

    if (kve_kernel_process_memory(process->child.pid, &memory) != KVB_OK) {
        return kve_rehearse_fail(r, "cannot read /proc of %s", process->name);
    }
    if (process == r->a.daemon) {
        r->row->daemon_anon = memory.anon;
    }
    if (r->fault != NULL) {
        return true;
    }
    if (process->first_anon == 0) {
        process->first_anon = memory.anon;
    } else if (JUDGE_GROWTH && memory.anon > process->first_anon + slack) {
        kve_rehearse_fail(
            r,
            "%s has %" PRIu64
            " anonymous bytes after the tenant's reset, the first time it was %" PRIu64,
            process->name, memory.anon, process->first_anon);
    }
    return true;
}

bool kve_tenant_reset(struct kve_rehearsal *r)
{
    bool done =
        kve_side_post(r, &r->a, KVE_ANY, NULL, NULL, "/v1/kvplane/tenants/rehearsal/reset") &&
        kve_side_await_open(r, &r->a) && kve_side_await_open(r, &r->b) &&
        kve_await_empty(r, "after the tenant's reset");

    for (uint32_t i = 0; i < r->stage.nprocesses && done; i++) {
        struct kve_process *process = &r->stage.processes[i];
        done = process->ready != KVE_READY_LINE || judge_growth(r, process);
    }
    return done;
}
