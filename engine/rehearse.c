/* SPDX-License-Identifier: Apache-2.0 */
#include "rehearse.h"

#include "options.h"

#include "base/faults.h"
#include "engine/main.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 30000
#define TENANT   "rehearsal"
/* Enough for what a step promises; in fault runs so small that space is used again at once. */
#define STORE_BYTES       "536870912"
#define STORE_BYTES_FAULT "4194304"

enum setting {
    SET_TRACE,
    SET_STEPS,
    SET_REQUESTS,
    SET_SEED,
    SET_JSON,
    SET_FAULT,
    SET_HELP,
    SET_COUNT
};
static const struct kve_option options[SET_COUNT] = {
    [SET_TRACE] = {"trace", "FILE", "generated", "requests as JSON lines"},
    [SET_STEPS] = {"steps", "N", "12", "how many times the weights change, or nearly"},
    [SET_REQUESTS] = {"requests", "N", "600", "requests over all steps"},
    [SET_SEED] = {"seed", "N", "$KVPLANE_SEED or 1", "of all that is drawn"},
    [SET_JSON] = {"json", NULL, "", "a line of JSON for each step, and one at the end"},
    [SET_FAULT] = {"fault", "NAME", "", "take a protection out and see it fail; list: which"},
    [SET_HELP] = {"help", NULL, "", "this text"},
};

volatile int kve_rehearse_stop;

static void on_signal(int number)
{
    (void)number;
    kve_rehearse_stop = 1;
}

static bool take(void *ctx, size_t i, const char *value)
{
    struct kve_rehearsal *r = ctx;

    switch ((enum setting)i) {
    case SET_TRACE:
        r->trace_path = value;
        return true;
    case SET_STEPS:
        return kve_option_number32(value, 1, 10000, &r->steps);
    case SET_REQUESTS:
        return kve_option_number32(value, 1, 1u << 24, &r->requests);
    case SET_SEED:
        return kve_option_number(value, 0, UINT64_MAX, &r->seed);
    case SET_JSON:
        r->json = true;
        return true;
    case SET_FAULT:
        r->fault = value;
        return true;
    case SET_HELP:
        r->help = true;
        return true;
    case SET_COUNT:
        break;
    }
    return false;
}

bool kve_rehearse_fail(struct kve_rehearsal *r, const char *format, ...)
{
    va_list args;

    r->errors++;
    if (r->story[0] == '\0') {
        va_start(args, format);
        vsnprintf(r->story, sizeof r->story, format, args);
        va_end(args);
    }
    return false;
}

uint64_t kve_rehearse_draw(struct kve_rehearsal *r, uint64_t below)
{
    r->random += 0x9e3779b97f4a7c15u;
    return kve_mix64(r->random) % below;
}

/* ---- faults ---- */

static void list_faults(void)
{
    for (size_t i = 0; i < kvb_fault_count(); i++) {
        const char *what;
        const char *name = kvb_fault_text(i, &what);
        printf("%-20s %s\n", name, what);
    }
    printf("%-20s %s\n", "NAME:first",
           "that protection alone: the others then catch what drain and ticket let through");
    printf("%-20s %s\n", "none", "the same hostile schedule, nothing taken out");
}

/* -1: go on; else the exit code. */
static int choose_fault(const char *fault)
{
    if (fault == NULL) {
        return -1;
    }
    if (strcmp(fault, "list") == 0) {
        list_faults();
        return 0;
    }
#ifdef KVB_FAULTS
    if (kvb_fault_choose(fault) != KVB_OK) {
        fprintf(stderr, "kvplane rehearse: there is no fault %s; --fault list shows them\n", fault);
        return 2;
    }
    setenv("KVPLANE_FAULT", fault, 1);
    return -1;
#else
    fprintf(stderr,
            "kvplane rehearse: this build has no fault switches; ./dev rehearse --fault %s "
            "makes one that has\n",
            fault);
    return 2;
#endif
}

/* ---- processes ---- */

static bool start_daemon(struct kve_rehearsal *r)
{
    char socket[128], log[128], url[128];
    char program[] = "kvplane", serve[] = "serve", listen[] = "--listen", address[] = "127.0.0.1:0";
    char engine_socket[] = "--engine-socket", store[] = "--store-bytes";
    char bytes[32];
    char *const argv[] = {program, serve, listen, address, engine_socket,
                          socket,  store, bytes,  NULL};
    kvb_status_t status;

    snprintf(socket, sizeof socket, "%s/engine.sock", r->dir);
    snprintf(log, sizeof log, "%s/daemon.log", r->dir);
    snprintf(bytes, sizeof bytes, "%s", r->fault == NULL ? STORE_BYTES : STORE_BYTES_FAULT);
    if (kve_child_start(&r->daemon, "daemon", argv, log) != KVB_OK) {
        return kve_rehearse_fail(r, "cannot start the daemon: %s", strerror(errno));
    }
    status = kve_child_await_text(&r->daemon, "kvplane ready ", url, sizeof url, START_MS,
                                  &kve_rehearse_stop);
    if (status != KVB_OK) {
        return kve_rehearse_fail(r, "the daemon did not become ready: %s", kvb_status_text(status));
    }
    r->rest = kve_rest_open(url, &kve_rehearse_stop);
    return r->rest != NULL || kve_rehearse_fail(r, "out of memory");
}

static bool start_engine(struct kve_rehearsal *r, struct kve_side *side, bool tracks_lineage)
{
    static const char *const attached[] = {"attached", "refused", NULL};
    char args[20][160];
    char *argv[21];
    char log[128];
    size_t n = 0;
    json_t *event;
    kvb_status_t status;

#define ARG(...)                                                                                   \
    do {                                                                                           \
        snprintf(args[n], sizeof args[n], __VA_ARGS__);                                            \
        argv[n] = args[n];                                                                         \
        n++;                                                                                       \
    } while (0)
    ARG("kvplane");
    ARG("engine");
    ARG("--instance=%s", side->instance);
    ARG("--tenant=%s", TENANT);
    ARG("--socket=%s/engine.sock", r->dir);
    ARG("--weights-id=%" PRIu64, side->weights);
    ARG("--weights-name=v%" PRIu64, side->weights);
    ARG("--requests=%" PRIu32, r->requests);
    ARG("--seed=%" PRIu64, r->seed);
    ARG("--control=%d", KVE_CHILD_FD);
    if (r->fault != NULL) {
        ARG("--max-running=16"); /* many at a time: most of them are held */
    }
    if (tracks_lineage) {
        ARG("--tracks-lineage");
    }
#undef ARG
    if (r->trace_path != NULL) {
        static char trace[4200];
        snprintf(trace, sizeof trace, "--trace=%s", r->trace_path);
        argv[n++] = trace;
    }
    argv[n] = NULL;
    snprintf(log, sizeof log, "%s/engine-%s.log", r->dir, side->instance);
    if (kve_child_start(&side->child, side->instance, argv, log) != KVB_OK) {
        return kve_rehearse_fail(r, "cannot start engine %s: %s", side->instance, strerror(errno));
    }
    status = kve_child_await(&side->child, attached, 0, START_MS, &kve_rehearse_stop, &event);
    if (status != KVB_OK) {
        return kve_rehearse_fail(r, "engine %s did not attach: %s", side->instance,
                                 kvb_status_text(status));
    }
    if (json_object_get(event, "text") != NULL) {
        kve_rehearse_fail(r, "engine %s was refused: %s", side->instance,
                          json_string_value(json_object_get(event, "text")));
        json_decref(event);
        return false;
    }
    json_decref(event);
    return true;
}

static void stop_child(struct kve_rehearsal *r, struct kve_child *child)
{
    bool ran = child->pid > 0;

    kve_child_stop(child);
    if (ran && kve_rehearse_stop == 0 &&
        !(WIFEXITED(child->exit_status) && WEXITSTATUS(child->exit_status) == 0)) {
        kve_rehearse_fail(r, "%s ended badly (wait status 0x%x)", child->name, child->exit_status);
    }
}

static void show_log(const struct kve_rehearsal *r, const char *name)
{
    char path[400], tail[4097];
    FILE *file;
    size_t n;

    snprintf(path, sizeof path, "%s/%s", r->dir, name);
    file = fopen(path, "re");
    if (file == NULL) {
        return;
    }
    if (fseek(file, -(long)(sizeof tail - 1), SEEK_END) != 0) {
        rewind(file);
    }
    n = fread(tail, 1, sizeof tail - 1, file);
    tail[n] = '\0';
    fclose(file);
    if (n > 0) {
        fprintf(stderr, "---- the end of %s\n%s\n", name, tail);
    }
}

/* Removes the directory and what is in it; before that, after a failure, shows the logs' ends. */
static void remove_dir(const struct kve_rehearsal *r, bool show)
{
    struct dirent *entry;
    DIR *dir = opendir(r->dir);

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        if (show && strstr(entry->d_name, ".log") != NULL) {
            show_log(r, entry->d_name);
        }
        unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(r->dir);
}

/* ---- the run ---- */

static kvb_status_t load_trace(struct kve_rehearsal *r)
{
    struct kve_trace_error error;
    kvb_status_t status;

    if (r->trace_path == NULL) {
        return kve_trace_generate(r->seed, r->requests, &r->trace);
    }
    status = kve_trace_load(r->trace_path, r->requests, &r->trace, &error);
    if (status != KVB_OK) {
        kve_trace_tell("kvplane rehearse", r->trace_path, &error);
        return status;
    }
    if (r->trace.nrequests < r->requests) {
        fprintf(stderr,
                "kvplane rehearse: %s has %" PRIu32 " requests, %" PRIu32 " were asked for\n",
                r->trace_path, r->trace.nrequests, r->requests);
        return KVB_ERR_INVALID;
    }
    return KVB_OK;
}

static bool play(struct kve_rehearsal *r)
{
    uint32_t first = 0;

    if (!start_daemon(r) || !start_engine(r, &r->a, false) || !start_engine(r, &r->b, true)) {
        return false;
    }
    kve_table_head(r);
    for (uint32_t step = 0; step < r->steps; step++) {
        uint32_t next = (uint32_t)((uint64_t)r->requests * (step + 1) / r->steps);
        bool done = kve_rehearse_step(r, step, first, next - first);
        kve_table_row(r, r->row);
        if (!done) {
            return false;
        }
        first = next;
    }
    return true;
}

static void add_counts(struct kve_counts *total, const struct kve_counts *counts)
{
#define X(name) total->name += counts->name;
    KVE_COUNTERS(X)
#undef X
}

static int rehearse(struct kve_rehearsal *r)
{
    struct kve_counts total = {0};
    bool ok = play(r);

    stop_child(r, &r->a.child);
    stop_child(r, &r->b.child);
    stop_child(r, &r->daemon);
    for (uint32_t i = 0; i < r->nrows; i++) {
        add_counts(&total, &r->rows[i].counts);
    }
    ok = ok && r->errors == 0 && total.errors == 0 && total.stale == 0 && total.torn == 0;
    remove_dir(r, !ok && kve_rehearse_stop == 0 && total.stale + total.torn == 0);
    if (r->rest != NULL) {
        kve_rest_close(r->rest);
    }
    kve_table_end(r, &total, ok);
    return ok ? 0 : 1;
}

int kve_rehearse_main(int argc, char **argv)
{
    struct kve_rehearsal r = {
        .steps = 12,
        .requests = 600,
        .seed = 1,
        .daemon.fd = -1,
        .a = {.child.fd = -1, .instance = "A", .weights = 1},
        .b = {.child.fd = -1, .instance = "B", .weights = 1},
        .last_weights = 1,
    };
    const struct sigaction action = {.sa_handler = on_signal};
    const char *seed = getenv("KVPLANE_SEED");
    int code;

    if (seed != NULL && !kve_option_number(seed, 0, UINT64_MAX, &r.seed)) {
        fprintf(stderr, "kvplane rehearse: KVPLANE_SEED: %s is no number\n", seed);
        return 2;
    }
    if (!kve_options_parse("kvplane rehearse", options, SET_COUNT, argc, argv, take, &r)) {
        return 2;
    }
    if (r.help) {
        printf("usage: kvplane rehearse [options]\n\nPlays an RL run with a daemon and two "
               "engines, and "
               "checks every byte that is read.\n\n");
        kve_options_help(options, SET_COUNT);
        return 0;
    }
    code = choose_fault(r.fault);
    if (code >= 0) {
        return code;
    }
    if (load_trace(&r) != KVB_OK) {
        return 2;
    }
    r.rows = calloc(r.steps, sizeof *r.rows);
    snprintf(r.dir, sizeof r.dir, "/tmp/kvplane-rehearse-XXXXXX");
    if (r.rows == NULL || mkdtemp(r.dir) == NULL) {
        fprintf(stderr, "kvplane rehearse: cannot start: %m\n");
        free(r.rows);
        kve_trace_cleanup(&r.trace);
        return 1;
    }
    r.random = kve_mix64(r.seed + 1);
    r.progress = isatty(STDERR_FILENO) && !r.json;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    code = rehearse(&r);
    free(r.rows);
    kve_trace_cleanup(&r.trace);
    return code;
}
