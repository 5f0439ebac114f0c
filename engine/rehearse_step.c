/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One step: rollout, the way to the next weights, rollout, and then the promises. Some requests
 * are in flight when the way begins, on purpose: half done ones that a pause aborts or keeps, and
 * in fault runs a hail of gets.
 *
 * What is promised (and judged, but in fault runs): a request that ran after the way, whose blocks
 * were all looked up or computed and put in the present stay, hits entirely when it is read again
 * from the store alone: by whoever ran it, and by the other one if both hold the same weights under
 * one name.
 */
#include "parts.h"
#include "rehearse.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RUN_MS         300000 /* bound of a run */
#define OPEN_MS        20000  /* bound until an instance takes part again */
#define CALL_MS        30000  /* bound of a call of the trainer's */
#define STALLED_MAX    4      /* requests held halfway; fewer than an engine runs at a time */
#define JUDGED_MAX     8      /* requests whose blocks are promised, of each side and step */
#define HAIL           32     /* requests of a hail, of each side */
#define HAIL_RECENT    8      /* from how far back its first half is drawn */
#define LOADING_TRIES  100
#define LOADING_WANTED 6
#define WELL_MS        20000 /* bound until every node is used again */
#define EMPTY_MS       20000 /* bound until what a reset cleared was reclaimed */
#define SLACK_BYTES    (1u << 20)
/* Connections come and go, each with its buffers, on several threads. */
#define CLUSTER_SLACK_BYTES (8u << 20)
/* A sanitizer keeps what was freed; then only region bytes are judged. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define JUDGE_GROWTH false
#else
#define JUDGE_GROWTH true
#endif

struct plan {
    enum kve_form form;
    enum kve_naming naming;
    enum kve_happening happening;
};

/* In turn. Every second one of a form tells kvplane something else. */
static const struct plan plans[] = {
    {KVE_FORM_SLEEP_1, KVE_NAMING_VERSION, 0},     {KVE_FORM_SLEEP_2, KVE_NAMING_FINGERPRINT, 0},
    {KVE_FORM_RELEASE, KVE_NAMING_VERSION, 0},     {KVE_FORM_RESET, KVE_NAMING_VERSION, 0},
    {KVE_FORM_NAP, KVE_NAMING_VERSION, 0},         {KVE_FORM_SLEEP_2, KVE_NAMING_NONE, 0},
    {KVE_FORM_KEEP, KVE_NAMING_VERSION, 0},        {KVE_FORM_PLAIN, KVE_NAMING_NONE, 0},
    {KVE_FORM_SLEEP_1, KVE_NAMING_FINGERPRINT, 0}, {KVE_FORM_NAP, KVE_NAMING_FINGERPRINT, 0},
    {KVE_FORM_KEEP, KVE_NAMING_NONE, 0},           {KVE_FORM_SLEEP_2, KVE_NAMING_VERSION, 0},
};
/* An engine or a daemon that died knows no version that it saw change: a fingerprint names. */
static const struct plan cluster_plans[] = {
    {KVE_FORM_SLEEP_1, KVE_NAMING_VERSION, KVE_HAPPENS_NOTHING},
    {KVE_FORM_SLEEP_2, KVE_NAMING_FINGERPRINT, KVE_HAPPENS_STORE_KILLED},
    {KVE_FORM_RESET, KVE_NAMING_FINGERPRINT, KVE_HAPPENS_ETCD_AWAY},
    {KVE_FORM_KEEP, KVE_NAMING_VERSION, KVE_HAPPENS_STORE_FROZEN},
    {KVE_FORM_RELEASE, KVE_NAMING_VERSION, KVE_HAPPENS_ETCD_MEMBER_KILLED},
    {KVE_FORM_SLEEP_1, KVE_NAMING_FINGERPRINT, KVE_HAPPENS_DAEMON_KILLED},
    {KVE_FORM_NAP, KVE_NAMING_FINGERPRINT, KVE_HAPPENS_STORE_CUT},
    {KVE_FORM_SLEEP_2, KVE_NAMING_FINGERPRINT, KVE_HAPPENS_ENGINE_KILLED},
    {KVE_FORM_SLEEP_2, KVE_NAMING_VERSION, KVE_HAPPENS_ETCD_AWAY},
    {KVE_FORM_RESET, KVE_NAMING_VERSION, KVE_HAPPENS_STORE_CUT},
    {KVE_FORM_PLAIN, KVE_NAMING_NONE, KVE_HAPPENS_STORE_FROZEN},
    {KVE_FORM_SLEEP_1, KVE_NAMING_VERSION, KVE_HAPPENS_ETCD_AWAY},
};
#define TENANT_RESET_EVERY 4 /* steps */

static const struct {
    const char *label;
    bool sleeps, updates;
} forms[] = {
#define X(name, label, sleeps, updates) {label, sleeps, updates},
    KVE_FORMS(X)
#undef X
};
static const char *const namings[] = {
#define X(name, label) label,
    KVE_NAMINGS(X)
#undef X
};

/* ---- runs ---- */

static const char *const ev_done[] = {"done", "error", NULL};
static const char *const ev_stalled[] = {"stalled", "done", "error", NULL};
static const char *const ev_stats[] = {"stats", NULL};
static const char *const ev_ok[] = {"ok", NULL};

static bool await(struct kve_rehearsal *r, struct kve_side *side, const char *const *names,
                  json_int_t id, json_t **event_p)
{
    kvb_status_t status =
        kve_child_await(&side->engine->child, names, id, kve_rehearse_bound(r, RUN_MS),
                        &kve_rehearse_stop, event_p);

    if (status == KVB_ERR_CANCELED) {
        return kve_rehearse_fail(r, "interrupted");
    }
    if (status != KVB_OK) {
        return kve_rehearse_fail(r, "engine %s: waiting for %s: %s", side->instance, names[0],
                                 kvb_status_text(status));
    }
    if (strcmp(json_string_value(json_object_get(*event_p, "event")), "error") == 0) {
        kve_rehearse_fail(r, "engine %s: %s", side->instance,
                          json_string_value(json_object_get(*event_p, "text")));
        json_decref(*event_p);
        return false;
    }
    return true;
}

static bool tell(struct kve_rehearsal *r, struct kve_side *side, json_t *command)
{
    kvb_status_t status = kve_child_tell(&side->engine->child, command);

    return status == KVB_OK || kve_rehearse_fail(r, "engine %s: cannot be told: %s", side->instance,
                                                 kvb_status_text(status));
}

struct run {
    struct kve_side *side;
    json_int_t id; /* 0: nothing was to be run */
    bool rollout;  /* its requests count as the trace's */
    uint32_t count;
};

/* indexes is taken. */
static bool start(struct kve_rehearsal *r, struct run *run, struct kve_side *side, json_t *indexes,
                  bool rollout, bool use_cache, bool stall)
{
    *run =
        (struct run){.side = side, .rollout = rollout, .count = (uint32_t)json_array_size(indexes)};
    if (run->count == 0) {
        json_decref(indexes);
        return true;
    }
    run->id = ++r->last_id;
    return tell(r, side,
                json_pack("{s:s,s:I,s:o,s:b,s:b}", "cmd", "run", "id", run->id, "indexes", indexes,
                          "use_cache", use_cache, "stall", stall));
}

/* Waits for its end; unfinished_p (may be NULL) gets what a pause aborted, counts_p what happened.
 */
static bool finish(struct kve_rehearsal *r, struct run *run, json_t *unfinished,
                   struct kve_counts *counts_p)
{
    struct kve_counts counts = {0};
    json_t *event;

    if (run->id == 0) {
        return true;
    }
    if (!await(r, run->side, ev_done, run->id, &event)) {
        return false;
    }
    kve_counts_add_json(&counts, json_object_get(event, "counts"));
    if (unfinished != NULL) {
        json_array_extend(unfinished, json_object_get(event, "unfinished"));
    }
    json_decref(event);
    if (run->rollout) {
        r->requests_done += counts.requests;
        r->row->requests += counts.requests;
    }
    if (counts_p != NULL) {
        *counts_p = counts;
    }
    run->id = 0;
    return true;
}

static json_t *range(uint32_t first, uint32_t count)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < count; i++) {
        json_array_append_new(list, json_integer((json_int_t)first + i));
    }
    return list;
}

bool kve_side_stats(struct kve_rehearsal *r, struct kve_side *side, json_t **stats_p)
{
    json_int_t id = ++r->last_id;
    json_t *event;

    if (!tell(r, side, json_pack("{s:s,s:I}", "cmd", "stats", "id", id)) ||
        !await(r, side, ev_stats, id, &event)) {
        return false;
    }
    *stats_p = json_incref(json_object_get(event, "stats"));
    json_decref(event);
    return true;
}

/* ---- the trainer ---- */

/* What an answer must say of the shared store. */
enum external {
    ANY,     /* that it was done, if it says something of success */
    LEFT,    /* the same, and while the coordinator is known to be away, that this is pending */
    CLEARED, /* the same of a reset; while the coordinator is away it is no success */
};

static bool is_answer(const struct kve_rehearsal *r, enum external external, const json_t *answer)
{
    const char *said = json_string_value(json_object_get(answer, "external"));
    bool done = !json_is_false(json_object_get(answer, "success"));
    bool pending = said != NULL && strcmp(said, "pending") == 0;

    if (external == ANY || !r->away) {
        return done;
    }
    return external == CLEARED ? !done : done && (pending || !r->pending);
}

static bool rest(struct kve_rehearsal *r, const struct kve_side *side, enum external external,
                 double *ms, const json_t *body, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* A POST to a side's daemon that must be answered so; its time is added to *ms if that is not NULL.
 * body is borrowed. */
static bool rest(struct kve_rehearsal *r, const struct kve_side *side, enum external external,
                 double *ms, const json_t *body, const char *format, ...)
{
    uint64_t began_ns = kvb_now_ns(&kvb_clock_real);
    char path[256], *text;
    long http_status = 0;
    json_t *answer = NULL;
    kvb_status_t status;
    double took_ms;
    va_list args;

    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    status = kve_rest_call(side->daemon->rest, "POST", path, body, &http_status, &answer);
    took_ms = (double)(kvb_now_ns(&kvb_clock_real) - began_ns) / 1e6;
    if (ms != NULL) {
        *ms = (*ms < 0 ? 0 : *ms) + took_ms;
    }
    if (status == KVB_OK && http_status == 200 && is_answer(r, external, answer) &&
        took_ms < kve_rehearse_bound(r, CALL_MS)) {
        json_decref(answer);
        return true;
    }
    text = answer == NULL ? NULL : json_dumps(answer, JSON_COMPACT);
    kve_rehearse_fail(r, "step %" PRIu32 " (%s%s%s): POST %s after %.0f ms%s: %s, %ld %.600s",
                      r->row->step, r->row->form, r->row->happening[0] == '\0' ? "" : ", ",
                      r->row->happening, path, took_ms,
                      r->pending ? ", with the coordinator away" : "",
                      status == KVB_OK ? "not the answer it should be" : kvb_status_text(status),
                      http_status, text == NULL ? "" : text);
    free(text);
    json_decref(answer);
    return false;
}

/* The weights are named v<id>: a trainer numbers its steps. */
static void version_of(uint64_t weights, char out[64])
{
    snprintf(out, 64, "v%" PRIu64, weights);
}

/* start, update, finish: the new API. Tells a version only if it should. */
static bool update_bracket(struct kve_rehearsal *r, struct kve_side *side, uint64_t weights,
                           enum kve_naming naming)
{
    char version[64];
    json_t *update = json_pack("{s:{s:I}}", "update_info", "weights_id", (json_int_t)weights);
    json_t *end;
    bool done;

    version_of(weights, version);
    end = naming == KVE_NAMING_VERSION ? json_pack("{s:s}", "weight_version", version)
                                       : json_object();
    done = rest(r, side, ANY, NULL, NULL, "/start_weight_update?instance=%s", side->instance) &&
           rest(r, side, ANY, NULL, update, "/update_weights?instance=%s", side->instance) &&
           rest(r, side, ANY, NULL, end, "/finish_weight_update?instance=%s", side->instance);
    json_decref(update);
    json_decref(end);
    return done;
}

/* One call that loads weights, as trainers with their own worker extension do. */
static bool update_rpc(struct kve_rehearsal *r, struct kve_side *side, uint64_t weights,
                       enum kve_naming naming)
{
    char version[64];
    json_t *load = json_pack("{s:s,s:{s:I}}", "method", "reload_weights", "kwargs", "weights_id",
                             (json_int_t)weights);
    json_t *name;
    bool done = rest(r, side, ANY, NULL, load, "/collective_rpc?instance=%s", side->instance);

    version_of(weights, version);
    name = json_pack("{s:s}", "new_version", version);
    if (done && naming == KVE_NAMING_VERSION) {
        done = rest(r, side, ANY, NULL, name, "/update_weight_version?instance=%s", side->instance);
    }
    json_decref(load);
    json_decref(name);
    return done;
}

/* What kvplane can know of this side from now on. */
static void named(struct kve_side *side, uint64_t weights, enum kve_naming naming)
{
    side->weights = weights;
    switch (naming) {
    case KVE_NAMING_VERSION:
        version_of(weights, side->name);
        if (side->unseen) {
            side->name[0] = '\0';
            side->unseen = false;
        }
        break;
    case KVE_NAMING_FINGERPRINT:
        snprintf(side->name, sizeof side->name, "fp%" PRIu64, weights);
        break;
    case KVE_NAMING_NONE:
        side->name[0] = '\0';
        break;
    }
}

static bool set_fingerprint(struct kve_rehearsal *r, struct kve_side *side, bool on)
{
    json_int_t id = ++r->last_id;
    json_t *event;

    if (!tell(r, side, json_pack("{s:s,s:I,s:b}", "cmd", "fingerprint", "id", id, "on", on)) ||
        !await(r, side, ev_ok, id, &event)) {
        return false;
    }
    json_decref(event);
    return true;
}

/* Both learn the id, so that its bytes are known wherever they turn up. */
static bool see(struct kve_rehearsal *r, struct kve_side *side, uint64_t weights)
{
    json_int_t id = ++r->last_id;
    json_t *event;

    if (!tell(
            r, side,
            json_pack("{s:s,s:I,s:[I]}", "cmd", "see", "id", id, "weights", (json_int_t)weights)) ||
        !await(r, side, ev_ok, id, &event)) {
        return false;
    }
    json_decref(event);
    return true;
}

/* Until lookups and puts are let through. */
static bool await_open(struct kve_rehearsal *r, struct kve_side *side)
{
    uint64_t deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, kve_rehearse_bound(r, OPEN_MS));
    char path[128];

    snprintf(path, sizeof path, "/v1/kvplane/instances/%s", side->instance);
    for (;;) {
        struct timespec pause = {.tv_nsec = 2000000};
        long http_status = 0;
        json_t *answer = NULL;
        kvb_status_t status =
            kve_rest_call(side->daemon->rest, "GET", path, NULL, &http_status, &answer);
        const json_t *lineage = json_object_get(answer, "lineage");
        /* Without the coordinator nobody learns what its name stands for. */
        bool named =
            side->name[0] == '\0' || r->away || json_object_get(lineage, "weights_name") != NULL;
        bool open = json_is_true(json_object_get(lineage, "open")) && named;
        char *text;
        if (open) {
            json_decref(answer);
            return true;
        }
        if (status != KVB_OK || http_status != 200 || kvb_now_ns(&kvb_clock_real) > deadline_ns) {
            text = answer == NULL ? NULL : json_dumps(answer, JSON_COMPACT);
            kve_rehearse_fail(r, "instance %s does not take part again%s: %s, %ld %.700s",
                              side->instance, side->name[0] == '\0' ? "" : " under its name",
                              kvb_status_text(status), http_status, text == NULL ? "" : text);
            free(text);
            json_decref(answer);
            return false;
        }
        json_decref(answer);
        nanosleep(&pause, NULL);
    }
}

/* ---- memory ---- */

static bool region_bytes(struct kve_rehearsal *r, const char *tag, uint64_t *bytes_p)
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
static bool judge_asleep(struct kve_rehearsal *r, bool weights_too)
{
    struct kve_kernel_memory memory;
    uint64_t kv_cache = 0, weights = 0;

    if (!region_bytes(r, "kv_cache", &kv_cache) || !region_bytes(r, "weights", &weights)) {
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
        kve_rehearse_fail(r,
                          "step %" PRIu32 ": %" PRIu64 " region bytes are still held while asleep",
                          r->row->step, r->row->asleep_bytes);
    }
    if (r->first_engine_rss == 0) {
        r->first_engine_rss = r->row->engine_rss;
    } else if (JUDGE_GROWTH && r->row->engine_rss > r->first_engine_rss + SLACK_BYTES) {
        kve_rehearse_fail(r,
                          "step %" PRIu32 ": engine %s holds %" PRIu64
                          " bytes asleep, after the first cycle it was %" PRIu64,
                          r->row->step, r->a.instance, r->row->engine_rss, r->first_engine_rss);
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
            return kve_rehearse_fail(r, "step %" PRIu32 ": %s, %.40s bytes of %s stay used",
                                     r->row->step, after, line + sizeof used - 1, process->name);
        }
        nanosleep(&pause, NULL);
    }
}

static bool await_empty(struct kve_rehearsal *r, const char *after)
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
            "step %" PRIu32 ": %s has %" PRIu64
            " anonymous bytes after the tenant's reset, the first time it was %" PRIu64,
            r->row->step, process->name, memory.anon, process->first_anon);
    }
    return true;
}

static bool tenant_reset(struct kve_rehearsal *r)
{
    bool done = rest(r, &r->a, ANY, NULL, NULL, "/v1/kvplane/tenants/rehearsal/reset") &&
                await_open(r, &r->a) && await_open(r, &r->b) &&
                await_empty(r, "after the tenant's reset");

    for (uint32_t i = 0; i < r->stage.nprocesses && done; i++) {
        struct kve_process *process = &r->stage.processes[i];
        done = process->ready != KVE_READY_LINE || judge_growth(r, process);
    }
    return done;
}

/* ---- the way to the next weights ---- */

struct way {
    struct plan plan;
    uint64_t weights; /* that both will hold */
    bool bracket;     /* start, update, finish; else one rpc */
    const char *mode; /* of the pause before A sleeps */
};

/* B never sleeps: its weights change in flight, with its requests kept or simply running. */
static bool update_b(struct kve_rehearsal *r, const struct way *way)
{
    struct kve_side *b = &r->b;
    bool keep = way->plan.form == KVE_FORM_KEEP || way->bracket;
    bool done = true;

    if (!forms[way->plan.form].updates) {
        return true;
    }
    if (keep) {
        done = rest(r, b, ANY, NULL, NULL, "/pause?mode=keep&clear_cache=false&instance=%s",
                    b->instance);
    }
    done = done && (way->bracket ? update_bracket(r, b, way->weights, way->plan.naming)
                                 : update_rpc(r, b, way->weights, way->plan.naming));
    if (done && keep) {
        done = rest(r, b, ANY, NULL, NULL, "/resume?instance=%s", b->instance);
    }
    named(b, way->weights, way->plan.naming);
    return done;
}

static bool reset_external(struct kve_rehearsal *r, struct kve_side *side, double *ms)
{
    return rest(r, side, CLEARED, ms, NULL,
                "/reset_prefix_cache?reset_external=true&reset_running_requests=true&instance=%s",
                side->instance);
}

/* A's way until it lies down. */
static bool lie_down(struct kve_rehearsal *r, const struct way *way)
{
    const char *a = r->a.instance;
    double *ms = &r->row->sleep_ms;

    switch (way->plan.form) {
    case KVE_FORM_SLEEP_1:
    case KVE_FORM_NAP:
        return rest(r, &r->a, LEFT, ms, NULL, "/pause?mode=%s&instance=%s", way->mode, a) &&
               rest(r, &r->a, LEFT, ms, NULL, "/sleep?level=1&instance=%s", a);
    case KVE_FORM_SLEEP_2:
        return rest(r, &r->a, LEFT, ms, NULL, "/sleep?level=2&mode=%s&instance=%s", way->mode, a);
    case KVE_FORM_RELEASE:
        return rest(r, &r->a, LEFT, ms, NULL, "/pause?mode=abort&instance=%s", a) &&
               rest(r, &r->a, LEFT, ms, NULL, "/release_kv_cache_memory?instance=%s", a);
    case KVE_FORM_PLAIN:
        return rest(r, &r->a, LEFT, ms, NULL, "/pause?mode=abort&instance=%s", a);
    case KVE_FORM_KEEP:
        return rest(r, &r->a, ANY, ms, NULL, "/pause?mode=keep&clear_cache=false&instance=%s", a);
    case KVE_FORM_RESET:
        return reset_external(r, &r->a, ms);
    }
    return false;
}

static bool get_up(struct kve_rehearsal *r, const struct way *way)
{
    const char *a = r->a.instance;
    double *ms = &r->row->wake_ms;
    char version[64];
    bool done = true;

    version_of(way->weights, version);
    switch (way->plan.form) {
    case KVE_FORM_SLEEP_1:
        done = rest(r, &r->a, ANY, ms, NULL, "/wake_up?tags=weights&instance=%s", a) &&
               update_bracket(r, &r->a, way->weights, way->plan.naming) &&
               rest(r, &r->a, ANY, ms, NULL, "/wake_up?tags=kv_cache&instance=%s", a) &&
               rest(r, &r->a, ANY, ms, NULL, "/resume?instance=%s", a);
        break;
    case KVE_FORM_SLEEP_2:
        /* The wake of the last tag ends the update and starts the scheduler: no resume. */
        done = rest(r, &r->a, ANY, ms, NULL, "/wake_up?tags=weights&instance=%s", a) &&
               update_rpc(r, &r->a, way->weights, way->plan.naming) &&
               rest(r, &r->a, ANY, ms, NULL, "/wake_up?tags=kv_cache&instance=%s", a);
        break;
    case KVE_FORM_RELEASE:
        done = update_bracket(r, &r->a, way->weights, way->plan.naming) &&
               rest(r, &r->a, ANY, ms, NULL, "/wake_up?tags=kv_cache&instance=%s", a);
        break;
    case KVE_FORM_NAP:
        /* Nothing was loaded; the version says so once more, or the fingerprint does. */
        done = way->plan.naming == KVE_NAMING_VERSION
                   ? rest(r, &r->a, ANY, ms, NULL, "/wake_up?weight_version=%s&instance=%s",
                          version, a)
                   : rest(r, &r->a, ANY, ms, NULL, "/wake_up?instance=%s", a);
        break;
    case KVE_FORM_PLAIN:
        done = update_bracket(r, &r->a, way->weights, way->plan.naming) &&
               rest(r, &r->a, ANY, ms, NULL, "/resume?instance=%s", a);
        break;
    case KVE_FORM_KEEP:
        done = (way->bracket ? update_bracket(r, &r->a, way->weights, way->plan.naming)
                             : update_rpc(r, &r->a, way->weights, way->plan.naming)) &&
               rest(r, &r->a, ANY, ms, NULL, "/resume?instance=%s", a);
        break;
    case KVE_FORM_RESET:
        return true; /* the names of both stay */
    }
    named(&r->a, way->weights, way->plan.naming);
    return done;
}

/* ---- promises ---- */

static uint64_t blocks_of(const struct kve_rehearsal *r, uint32_t first, uint32_t count)
{
    uint64_t n = 0;

    for (uint32_t i = first; i < first + count; i++) {
        n += r->trace.requests[i].nblocks;
    }
    return n;
}

/* What is expected of blocks that are read again. */
enum promise {
    NOTHING,
    HOPED, /* something happens to the cluster: each may miss */
    PROMISED
};

/* Reads requests again from the store alone. Always done, also where nothing is promised: what
 * comes is checked all the same. */
static bool read_again(struct kve_rehearsal *r, struct kve_side *side, uint32_t first,
                       uint32_t count, enum promise promise, const char *whose)
{
    struct kve_counts counts = {0};
    uint64_t blocks = blocks_of(r, first, count);
    char reasons[256] = "";
    struct run run;

    if (!start(r, &run, side, range(first, count), false, false, false) ||
        !finish(r, &run, NULL, &counts)) {
        return false;
    }
    if (promise == NOTHING || r->fault != NULL) {
        return true;
    }
    if (promise == HOPED) {
        r->row->hoped += blocks;
        r->row->had += counts.hits;
        return true;
    }
    r->row->promised += blocks;
    r->row->kept += counts.hits;
    if (counts.hits < blocks) {
        for (size_t i = 0; i < KVE_MISS_COUNT; i++) {
            size_t len = strlen(reasons);
            if (counts.missed[i] > 0) {
                snprintf(reasons + len, sizeof reasons - len, " %s=%" PRIu64, kve_miss_names[i],
                         counts.missed[i]);
            }
        }
        kve_rehearse_fail(r,
                          "step %" PRIu32
                          " (%s, %s): %s had to get what %s put, and missed %" PRIu64 " of %" PRIu64
                          " blocks:%s",
                          r->row->step, r->row->form, r->row->naming, side->instance, whose,
                          blocks - counts.hits, blocks, reasons);
    }
    return true;
}

/* ---- the step ---- */

static uint32_t at_most(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/*
 * In fault runs: requests at random, from the store alone, on both. They keep the small store
 * turning over, so that space is used again while a held transfer still names it, and they are what
 * is in flight when the way begins.
 */
struct hail {
    struct run a, b;
};

/* First those that ran just before `next` and should hit, then any, which push those out. */
static json_t *draw_hail(struct kve_rehearsal *r, uint32_t next)
{
    json_t *list = json_array();
    uint32_t recent = at_most(next, HAIL_RECENT);

    for (uint32_t i = 0; i < HAIL; i++) {
        uint64_t index = i < HAIL / 2 && recent > 0 ? next - 1 - kve_rehearse_draw(r, recent)
                                                    : kve_rehearse_draw(r, r->trace.nrequests);
        json_array_append_new(list, json_integer((json_int_t)index));
    }
    return list;
}

static bool start_hail(struct kve_rehearsal *r, struct hail *hail, uint32_t next_a, uint32_t next_b)
{
    memset(hail, 0, sizeof *hail);
    return r->fault == NULL ||
           (start(r, &hail->a, &r->a, draw_hail(r, next_a), false, false, false) &&
            start(r, &hail->b, &r->b, draw_hail(r, next_b), false, false, false));
}

/* Until some of A's hail waits for bytes: those are what the way is to run into. If none come, they
 * do not. */
static bool await_loading(struct kve_rehearsal *r)
{
    bool done = r->fault == NULL;

    for (int i = 0; i < LOADING_TRIES && !done; i++) {
        struct timespec pause = {.tv_nsec = 1000000};
        json_t *object;
        if (!kve_side_stats(r, &r->a, &object)) {
            return false;
        }
        done = json_integer_value(json_object_get(object, "loading")) >= LOADING_WANTED;
        json_decref(object);
        nanosleep(&pause, NULL);
    }
    return true;
}

static bool end_hail(struct kve_rehearsal *r, struct hail *hail)
{
    return finish(r, &hail->a, NULL, NULL) && finish(r, &hail->b, NULL, NULL);
}

/* Rollout up to the way; some of it is still in flight when this returns. */
struct rollout {
    struct run a_done, a_late, b_done, b_late;
    struct hail hail;
    uint32_t first_late[2], nlate[2]; /* of the trace; A's and B's */
};

static bool start_rollout(struct kve_rehearsal *r, struct rollout *rollout, uint32_t first,
                          uint32_t na, uint32_t nb, bool stall_a, bool stall_b)
{
    uint32_t a_late = at_most(na / 2, STALLED_MAX), b_late = at_most(nb / 2, STALLED_MAX);
    uint32_t a_done = na - a_late, b_done = nb - b_late;
    json_t *event;

    *rollout = (struct rollout){.first_late = {first + a_done, first + na + b_done},
                                .nlate = {a_late, b_late}};
    if (!start(r, &rollout->a_done, &r->a, range(first, a_done), true, true, false) ||
        !start(r, &rollout->b_done, &r->b, range(first + na, b_done), true, true, false) ||
        !finish(r, &rollout->a_done, NULL, NULL) || !finish(r, &rollout->b_done, NULL, NULL)) {
        return false;
    }
    if (!start(r, &rollout->a_late, &r->a, range(rollout->first_late[0], a_late), true, true,
               stall_a) ||
        !start(r, &rollout->b_late, &r->b, range(first + na + b_done, b_late), true, true,
               stall_b)) {
        return false;
    }
    for (size_t i = 0; i < 2; i++) {
        struct run *late = i == 0 ? &rollout->a_late : &rollout->b_late;
        if (late->id == 0 || !(i == 0 ? stall_a : stall_b)) {
            continue;
        }
        if (!await(r, late->side, ev_stalled, late->id, &event)) {
            return false;
        }
        /* Prompts that hit entirely end without stalling: finish() wants to see that again. */
        if (strcmp(json_string_value(json_object_get(event, "event")), "done") == 0) {
            json_array_append(late->side->engine->child.events, event);
        }
        json_decref(event);
    }
    if (stall_a) {
        return true; /* kept requests: a hail would push out what they put */
    }
    /* Each gets first what the other one put. */
    return start_hail(r, &rollout->hail, first + na + b_done, first + a_done) && await_loading(r);
}

static bool end_rollout(struct kve_rehearsal *r, struct rollout *rollout)
{
    json_t *unfinished = json_array();
    struct run again = {0};
    bool done = finish(r, &rollout->a_late, unfinished, NULL) &&
                finish(r, &rollout->b_late, unfinished, NULL) && end_hail(r, &rollout->hail);

    /* A trainer sends what a pause aborted once more. */
    done = done && start(r, &again, &r->a, json_deep_copy(unfinished), true, true, false) &&
           finish(r, &again, NULL, NULL);
    json_decref(unfinished);
    return done;
}

static bool check_held(struct kve_rehearsal *r, struct kve_side *side)
{
    json_t *object;
    uint64_t held;

    if (!kve_side_stats(r, side, &object)) {
        return false;
    }
    held = (uint64_t)json_integer_value(json_object_get(object, "weights_id"));
    json_decref(object);
    if (held != side->weights) {
        return kve_rehearse_fail(r, "engine %s holds weights %" PRIu64 " instead of %" PRIu64,
                                 side->instance, held, side->weights);
    }
    return true;
}

/* Adds what both engines have counted so far to *counts, and keeps the first bad byte's story. */
static bool add_stats(struct kve_rehearsal *r, struct kve_counts *counts)
{
    struct kve_side *sides[] = {&r->a, &r->b};

    for (size_t i = 0; i < 2; i++) {
        const char *story;
        json_t *object;
        if (!kve_side_stats(r, sides[i], &object)) {
            return false;
        }
        kve_counts_add_json(counts, object);
        kve_counts_add(counts, &sides[i]->past, 1);
        story = json_string_value(json_object_get(object, "story"));
        if (story != NULL && story[0] != '\0' && r->story[0] == '\0') {
            snprintf(r->story, sizeof r->story, "step %" PRIu32 " (%s, %s): %s", r->row->step,
                     r->row->form, r->row->naming, story);
        }
        json_decref(object);
    }
    return true;
}

/* A node that cannot be reached is a miss. */
static bool judge_answers(struct kve_rehearsal *r)
{
    uint64_t other = r->row->counts.missed[KVE_MISS_other];

    return !r->cluster || other == 0 ||
           kve_rehearse_fail(r,
                             "step %" PRIu32 " (%s, %s): %" PRIu64
                             " blocks were answered with an error that is no miss",
                             r->row->step, r->row->form, r->row->happening, other);
}

/* The way itself; B's update falls before, into or after A's. */
static bool go(struct kve_rehearsal *r, const struct way *way)
{
    uint64_t kv_cache = 0, weights = 0;
    uint64_t when = kve_rehearse_draw(r, 3);
    bool sleeps = forms[way->plan.form].sleeps;

    if (!region_bytes(r, "kv_cache", &kv_cache) || !region_bytes(r, "weights", &weights)) {
        return false;
    }
    r->row->awake_bytes = kv_cache + weights;
    kve_table_progress(r, "on the way");
    return (when != 0 || update_b(r, way)) && lie_down(r, way) &&
           (!sleeps || judge_asleep(r, way->plan.form != KVE_FORM_RELEASE)) &&
           (when != 1 || update_b(r, way)) && get_up(r, way) && (when != 2 || update_b(r, way));
}

/* Where the bytes of requests kept across an update would turn up, if they did. */
static bool read_late(struct kve_rehearsal *r, const struct rollout *rollout)
{
    struct kve_side *sides[] = {&r->a, &r->b};

    for (size_t i = 0; i < 4; i++) {
        if (!read_again(r, sides[i / 2], rollout->first_late[i % 2], rollout->nlate[i % 2], NOTHING,
                        sides[i % 2]->instance)) {
            return false;
        }
    }
    return true;
}

/* What runs after the way: of the trace, A's requests and then B's. */
struct span {
    uint32_t first, na, nb;
};

static bool after(struct kve_rehearsal *r, struct span span, enum promise promise)
{
    uint32_t first = span.first, first_b = span.first + span.na;
    uint32_t a_judged = at_most(span.na, JUDGED_MAX), b_judged = at_most(span.nb, JUDGED_MAX);
    bool shared =
        r->a.weights == r->b.weights && r->a.name[0] != '\0' && strcmp(r->a.name, r->b.name) == 0;
    enum promise both = shared ? promise : NOTHING;
    struct run runs[4];
    struct hail hail;

    r->row->shared = shared;
    kve_table_progress(r, "rollout");
    if (!start_hail(r, &hail, first, first) ||
        !start(r, &runs[0], &r->a, range(first, a_judged), true, false, false) ||
        !start(r, &runs[1], &r->b, range(first_b, b_judged), true, false, false) ||
        !start(r, &runs[2], &r->a, range(first + a_judged, span.na - a_judged), true, true,
               false) ||
        !start(r, &runs[3], &r->b, range(first_b + b_judged, span.nb - b_judged), true, true,
               false)) {
        return false;
    }
    for (size_t i = 0; i < 4; i++) {
        if (!finish(r, &runs[i], NULL, NULL)) {
            return false;
        }
    }
    kve_table_progress(r, "promises");
    return read_again(r, &r->b, first, a_judged, both, "A") &&
           read_again(r, &r->a, first_b, b_judged, both, "B") &&
           read_again(r, &r->a, first, a_judged, promise, "A") &&
           read_again(r, &r->b, first_b, b_judged, promise, "B") && end_hail(r, &hail);
}

/* What a reset cleared, or was put before by others under another state: the store has none of it
 * for this side. Bytes cannot tell, the weights are the same. */
static bool judge_cleared(struct kve_rehearsal *r, struct kve_side *side, uint32_t index)
{
    struct kve_counts counts = {0};
    struct run run;

    if (!start(r, &run, side, range(index, 1), false, false, false) ||
        !finish(r, &run, NULL, &counts)) {
        return false;
    }
    if (counts.hits > 0) {
        r->row->counts.stale += counts.hits;
        return kve_rehearse_fail(
            r, "step %" PRIu32 " (%s, %s): %s got %" PRIu64 " blocks that its reset had cleared",
            r->row->step, r->row->form, r->row->happening, side->instance, counts.hits);
    }
    return true;
}

/* A node that was left alone is used again once somebody asks it. */
static bool use_until_well(struct kve_rehearsal *r, struct span span)
{
    uint64_t deadline_ns = kvb_deadline_in_ms(&kvb_clock_real, kve_rehearse_bound(r, WELL_MS));

    while (!kve_cluster_well(r)) {
        if (kvb_now_ns(&kvb_clock_real) > deadline_ns) {
            return kve_rehearse_fail(r, "step %" PRIu32 " (%s): not all nodes are used again",
                                     r->row->step, r->row->happening);
        }
        if (!after(r, span, HOPED)) {
            return false;
        }
    }
    return true;
}

/* Goes on under what happens for as long as it lasts, and after it until the cluster is whole. */
static bool endure(struct kve_rehearsal *r, const struct way *way, struct span span)
{
    enum kve_happening happening = way->plan.happening;
    bool b_too = kve_rehearse_draw(r, 2) == 0;
    bool away = r->away;
    pid_t engine = r->a.engine->child.pid;
    struct run run;

    if (!after(r, span, HOPED)) {
        return false;
    }
    if (away &&
        (!reset_external(r, &r->a, NULL) || !judge_cleared(r, &r->a, span.first) ||
         (b_too && (!reset_external(r, &r->b, NULL) || !judge_cleared(r, &r->b, span.first))))) {
        return false;
    }
    if (!start(r, &run, &r->a, range(span.first, span.na), false, false, false) ||
        !kve_happening_middle(r, happening)) {
        return false;
    }
    if (r->a.engine->child.pid != engine) {
        run.id = 0; /* it went with its engine, whose next life knows of nobody's bytes */
        for (uint64_t weights = 1; weights <= r->last_weights; weights++) {
            if (!see(r, &r->a, weights)) {
                return false;
            }
        }
    }
    if (!finish(r, &run, NULL, NULL) || !await_open(r, &r->a) ||
        (away && r->a.engine->child.pid != engine && !judge_cleared(r, &r->a, span.first))) {
        return false;
    }
    while (!kve_happening_over(r)) {
        if (!after(r, span, HOPED)) {
            return false;
        }
    }
    if (!kve_happening_end(r, happening) || !await_open(r, &r->a) || !await_open(r, &r->b)) {
        return false;
    }
    if (!away) {
        return use_until_well(r, span);
    }
    /* Both have their names again, and nothing was put under them yet. */
    return r->a.name[0] == '\0' || r->b.name[0] == '\0' ||
           (await_empty(r, "after the coordinator was back") &&
            judge_cleared(r, &r->a, span.first));
}

static bool play(struct kve_rehearsal *r, const struct way *way, uint32_t first, uint32_t count)
{
    uint32_t quarter = count / 4;
    const struct span span = {first + 2 * quarter, count - 3 * quarter, quarter};
    enum kve_happening happening = way->plan.happening;
    bool early = happening != KVE_HAPPENS_NOTHING && kve_rehearse_draw(r, 2) == 0;
    bool keep = way->plan.form == KVE_FORM_KEEP;
    /* Only where a resume will come for them. */
    bool stall_a = keep || (r->fault == NULL && way->bracket && way->plan.form != KVE_FORM_RESET);
    bool stall_b = keep || (way->bracket && forms[way->plan.form].updates);
    struct rollout rollout;

    kve_table_progress(r, "rollout");
    return set_fingerprint(r, &r->a, way->plan.naming == KVE_NAMING_FINGERPRINT) &&
           set_fingerprint(r, &r->b, way->plan.naming == KVE_NAMING_FINGERPRINT) &&
           see(r, &r->a, way->weights) && see(r, &r->b, way->weights) &&
           (!early || kve_happening_begin(r, happening)) &&
           start_rollout(r, &rollout, first, quarter, quarter, stall_a, stall_b) &&
           (early || kve_happening_begin(r, happening)) && go(r, way) && end_rollout(r, &rollout) &&
           await_open(r, &r->a) && await_open(r, &r->b) && check_held(r, &r->a) &&
           check_held(r, &r->b) && read_late(r, &rollout) &&
           (happening == KVE_HAPPENS_NOTHING || endure(r, way, span)) && after(r, span, PROMISED);
}

static struct plan plan_of(const struct kve_rehearsal *r, uint32_t step)
{
    struct plan plan;

    if (!r->cluster) {
        return plans[step % (sizeof plans / sizeof plans[0])];
    }
    plan = cluster_plans[step % (sizeof cluster_plans / sizeof cluster_plans[0])];
    if (plan.happening != KVE_HAPPENS_NOTHING && r->happening != NULL) {
        plan.happening = kve_happening_of(r->happening, plan.happening);
    }
    return plan;
}

bool kve_rehearse_step(struct kve_rehearsal *r, uint32_t step, uint32_t first, uint32_t count)
{
    struct way way = {.plan = plan_of(r, step)};
    struct kve_counts before = {0};
    bool done, reset;

    if (!kve_happening_possible(r, way.plan.happening)) {
        way.plan.happening = KVE_HAPPENS_NOTHING;
    }
    r->row = &r->rows[r->nrows++];
    *r->row = (struct kve_row){.step = step + 1,
                               .form = forms[way.plan.form].label,
                               .naming = namings[way.plan.naming],
                               .happening = kve_happening_label(way.plan.happening),
                               .sleep_ms = -1,
                               .wake_ms = -1};
    way.weights = forms[way.plan.form].updates ? ++r->last_weights : r->a.weights;
    way.bracket = kve_rehearse_draw(r, 2) == 0;
    way.mode = kve_rehearse_draw(r, 4) == 0 ? "abort" : "keep";
    reset = (step + 1) % TENANT_RESET_EVERY == 0 || way.plan.happening != KVE_HAPPENS_NOTHING;
    done = add_stats(r, &before) && play(r, &way, first, count) && (!reset || tenant_reset(r));
    /* What was counted is shown also when the step broke off. */
    if (!add_stats(r, &r->row->counts)) {
        return false;
    }
    kve_counts_add(&r->row->counts, &before, -1);
    return done && judge_answers(r);
}
