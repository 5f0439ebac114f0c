/* SPDX-License-Identifier: Apache-2.0 */
#include "rehearse.h"

#include "model/model.h"
#include "options.h"

#include "base/faults.h"
#include "engine/main.h"

#include <dirent.h>
#include <ftw.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum setting {
    SET_TRACE,
    SET_STEPS,
    SET_REQUESTS,
    SET_SEED,
    SET_JSON,
    SET_FAULT,
    SET_TP,
    SET_MODEL,
    SET_PROMPTS,
    SET_PROMPT_TOKENS,
    SET_MAX_TOKENS,
    SET_CLUSTER,
    SET_HAPPENS,
    SET_SECONDS,
    SET_SHARE,
    SET_MEMBERS,
    SET_STORES,
    SET_TRANSPORT,
    SET_BLOCK_BYTES,
    SET_SLOW,
    SET_COUNT
};
static const struct kve_option options[SET_COUNT] = {
    [SET_TRACE] = {"trace", "FILE", "generated", "requests as JSON lines"},
    [SET_STEPS] = {"steps", "N", "12, or 20", "how many times the weights change, or nearly"},
    [SET_REQUESTS] = {"requests", "N", "600", "requests over all steps"},
    [SET_SEED] = {"seed", "N", "$KVPLANE_SEED or 1", "of all that is drawn"},
    [SET_JSON] = {"json", NULL, "", "a line of JSON for each step, and one at the end"},
    [SET_FAULT] = {"fault", "NAME", "", "take a protection out and see it fail; list: which"},
    [SET_TP] = {"tp", "N", "1, or 2", "ranks of engine A; engine B has one and shares its blocks"},
    [SET_MODEL] = {"model", NULL, "",
                   "engines that compute: their outputs are a third one's, which never sleeps"},
    [SET_PROMPTS] = {"prompts", "N", "20", "of a model: prompts of one cycle"},
    [SET_PROMPT_TOKENS] = {"prompt-tokens", "N", "256", "of a model: the longest prompt"},
    [SET_MAX_TOKENS] = {"max-tokens", "N", "24", "of a model: tokens of an output"},
    [SET_CLUSTER] = {"cluster", NULL, "",
                     "etcd of three, three store nodes, a daemon beside each engine"},
    [SET_HAPPENS] = {"cluster-fault", "NAME", "all",
                     "what happens to it while steps are played: NAME, all (in turn), none; list"},
    [SET_SECONDS] = {"fault-seconds", "N", "5 to 30", "how long that lasts"},
    [SET_SHARE] = {"daemon-share", "MIB", "0", "memory that each daemon of a cluster contributes"},
    [SET_MEMBERS] = {"cluster-etcd", "N", "3", "members of its etcd: 3, or 1 on a slow machine"},
    [SET_STORES] = {"cluster-stores", "N", "3", "its store nodes, 1 to 3"},
    [SET_TRANSPORT] = {"transport", "NAME", "auto", "of the cluster: auto, rdma or tcp"},
    [SET_BLOCK_BYTES] = {"block-bytes", "N", "16384", "bytes of one KV block"},
    [SET_SLOW] = {"slow", "N", "1", "every bound N times as long: for a machine that is emulated"},
};

const struct kve_option *kve_rehearse_options(size_t *n_p)
{
    *n_p = SET_COUNT;
    return options;
}

/* A prompt's last block is computed: it has to be less than a tenth of the prompt. The answers of
 * prompts in flight, which nobody reads yet, have to fit into a socket. */
#define PROMPT_TOKENS_MIN 192
#define PROMPT_TOKENS_MAX 1024
#define MAX_TOKENS_MAX    256
#define PROMPTS_MAX       256

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
    case SET_TP:
        return kve_option_number32(value, 1, 64, &r->tp);
    case SET_MODEL:
        r->play = &kve_play_model;
        return true;
    case SET_PROMPTS:
        return kve_option_number32(value, 1, PROMPTS_MAX, &r->prompts);
    case SET_PROMPT_TOKENS:
        return kve_option_number32(value, PROMPT_TOKENS_MIN, PROMPT_TOKENS_MAX, &r->prompt_tokens);
    case SET_MAX_TOKENS:
        return kve_option_number32(value, 1, MAX_TOKENS_MAX, &r->max_tokens);
    case SET_CLUSTER:
        r->cluster = true;
        return true;
    case SET_HAPPENS:
        r->happening = value;
        return true;
    case SET_SECONDS:
        return kve_option_number32(value, 1, 3600, &r->happens_seconds);
    case SET_SHARE:
        return kve_option_number32(value, 0, 1u << 20, &r->share_mib);
    case SET_MEMBERS:
        return kve_option_number32(value, 1, KVE_MEMBERS, &r->nmembers) && r->nmembers != 2;
    case SET_STORES:
        return kve_option_number32(value, 1, KVE_STORES, &r->nstores);
    case SET_TRANSPORT:
        r->transport = value;
        return strcmp(value, "auto") == 0 || strcmp(value, "rdma") == 0 ||
               strcmp(value, "tcp") == 0;
    case SET_BLOCK_BYTES:
        return kve_option_number32(value, 256, 1u << 24, &r->block_bytes);
    case SET_SLOW:
        return kve_option_number32(value, 1, 100, &r->slow);
    case SET_COUNT:
        break;
    }
    return false;
}

static void tell_story(struct kve_rehearsal *r, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));

static void tell_story(struct kve_rehearsal *r, const char *format, va_list args)
{
    int len;

    if (r->story[0] == '\0') {
        len =
            snprintf(r->story, sizeof r->story, "%s%s", r->where, r->where[0] == '\0' ? "" : ": ");
        vsnprintf(r->story + len, sizeof r->story - (size_t)len, format, args);
    }
}

void kve_rehearse_story(struct kve_rehearsal *r, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    tell_story(r, format, args);
    va_end(args);
}

bool kve_rehearse_fail(struct kve_rehearsal *r, const char *format, ...)
{
    va_list args;

    r->errors++;
    va_start(args, format);
    tell_story(r, format, args);
    va_end(args);
    return false;
}

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

bool kve_form_sleeps(enum kve_form form)
{
    return forms[form].sleeps;
}

bool kve_form_updates(enum kve_form form)
{
    return forms[form].updates;
}

void kve_rehearse_row(struct kve_rehearsal *r, uint32_t step, enum kve_form form,
                      enum kve_naming naming, const char *happening)
{
    r->row = &r->rows[r->nrows++];
    *r->row = (struct kve_row){.step = step + 1,
                               .form = forms[form].label,
                               .naming = namings[naming],
                               .happening = happening,
                               .sleep_ms = -1,
                               .wake_ms = -1};
    snprintf(r->where, sizeof r->where, "%s %" PRIu32 " (%s, %s%s%s)", r->play->step, r->row->step,
             r->row->form, r->row->naming, happening[0] == '\0' ? "" : ", ", happening);
}

uint32_t kve_rehearse_bound(const struct kve_rehearsal *r, uint32_t ms)
{
    return ms * r->slow;
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

/* Of a cluster. -1: go on; else the exit code. */
static int choose_happening(const struct kve_rehearsal *r)
{
    if (r->happening != NULL && strcmp(r->happening, "list") == 0) {
        kve_happenings_list();
        return 0;
    }
    if (r->happening != NULL &&
        kve_happening_of(r->happening, KVE_HAPPENS_NOTHING) == KVE_HAPPENING_COUNT) {
        fprintf(stderr,
                "kvplane rehearse: there is no cluster fault %s; --cluster-fault list shows them\n",
                r->happening);
        return 2;
    }
    if (!r->cluster &&
        (r->happening != NULL || r->happens_seconds > 0 || r->share_mib > 0 ||
         r->nmembers != KVE_MEMBERS || r->nstores != KVE_STORES || r->transport != NULL)) {
        fprintf(stderr, "kvplane rehearse: --cluster-…, --fault-seconds, --daemon-share and "
                        "--transport need --cluster\n");
        return 2;
    }
    return -1;
}

/* -1: go on; else the exit code. */
static int choose_play(struct kve_rehearsal *r)
{
    bool model = r->play == &kve_play_model;

    if (model && (r->cluster || r->trace_path != NULL)) {
        fprintf(stderr, "kvplane rehearse: --model makes its own prompts, on one machine: not with "
                        "--cluster or --trace\n");
        return 2;
    }
    if (!model && (r->prompts > 0 || r->prompt_tokens > 0 || r->max_tokens > 0)) {
        fprintf(stderr,
                "kvplane rehearse: --prompts, --prompt-tokens and --max-tokens need --model\n");
        return 2;
    }
    if (model && KVE_MODEL_LANES % (r->tp == 0 ? 1 : r->tp) != 0) {
        fprintf(stderr, "kvplane rehearse: --tp %" PRIu32 ": the model has %d lanes\n", r->tp,
                KVE_MODEL_LANES);
        return 2;
    }
    r->steps = r->steps == 0 ? r->play->steps : r->steps;
    r->tp = r->tp == 0 && model ? 2 : r->tp;
    r->prompts = r->prompts == 0 ? 20 : r->prompts;
    r->prompt_tokens = r->prompt_tokens == 0 ? 256 : r->prompt_tokens;
    r->max_tokens = r->max_tokens == 0 ? 24 : r->max_tokens;
    return -1;
}

/* ---- what they leave ---- */

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

/* After a failure, the logs' ends. */
static void show_logs(const struct kve_rehearsal *r)
{
    struct dirent *entry;
    DIR *dir = opendir(r->dir);

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (strstr(entry->d_name, ".log") != NULL) {
            show_log(r, entry->d_name);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
}

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat;
    (void)type;
    (void)ftw;
    (void)remove(path);
    return 0;
}

/* ---- the run ---- */

static bool play(struct kve_rehearsal *r)
{
    bool done = kve_stage_start(r);

    if (done) {
        r->play->head(r);
    }
    for (uint32_t step = 0; step < r->steps && done; step++) {
        done = r->play->play(r, step);
        r->play->row(r, r->row);
        kve_counts_add(&r->total, &r->row->counts, 1);
    }
    r->where[0] = '\0';
    return done;
}

static int rehearse(struct kve_rehearsal *r)
{
    const struct kve_counts *total = &r->total;
    bool ok = kve_stage_set(r) && play(r);

    kve_stage_end(r);
    ok = ok && r->errors == 0 && total->errors == 0 && total->stale == 0 && total->torn == 0;
    if (!ok && kve_rehearse_stop == 0 && total->stale + total->torn == 0) {
        show_logs(r);
    }
    nftw(r->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    r->play->end(r, ok);
    return ok ? 0 : 1;
}

int kve_rehearse_main(int argc, char **argv)
{
    struct kve_rehearsal r = {
        .play = &kve_play_trace,
        .requests = 600,
        .seed = 1,
        .slow = 1,
        .block_bytes = KVE_BLOCK_BYTES,
        .nmembers = KVE_MEMBERS,
        .nstores = KVE_STORES,
        .a = {.instance = "A", .weights = 1},
        .b = {.instance = "B", .weights = 1, .tracks_lineage = true},
        .control = {.instance = "control", .weights = 1},
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
    code = choose_fault(r.fault);
    if (code < 0) {
        code = choose_happening(&r);
    }
    if (code < 0) {
        code = choose_play(&r);
    }
    if (code >= 0) {
        return code;
    }
    r.random = kve_mix64(r.seed + 1);
    if (r.play->prepare(&r) != KVB_OK) {
        r.play->cleanup(&r);
        return 2;
    }
    r.rows = calloc(r.steps, sizeof *r.rows);
    snprintf(r.dir, sizeof r.dir, "/tmp/kvplane-rehearse-XXXXXX");
    if (r.rows == NULL || mkdtemp(r.dir) == NULL) {
        fprintf(stderr, "kvplane rehearse: cannot start: %m\n");
        free(r.rows);
        r.play->cleanup(&r);
        return 1;
    }
    r.progress = isatty(STDERR_FILENO) && !r.json;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    code = rehearse(&r);
    free(r.rows);
    r.play->cleanup(&r);
    return code;
}
