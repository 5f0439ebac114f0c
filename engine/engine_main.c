/* SPDX-License-Identifier: Apache-2.0 */
#include "control.h"
#include "generate.h"
#include "options.h"
#include "ranks.h"

#include "base/clock.h"
#include "engine/main.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define RANKS_MAX (KVE_WORLD_MAX - 1)

enum setting {
    SET_INSTANCE,
    SET_TENANT,
    SET_SOCKET,
    SET_MODEL,
    SET_TP,
    SET_PP,
    SET_STORE_TP,
    SET_BLOCK_BYTES,
    SET_BLOCKS,
    SET_WEIGHTS_BYTES,
    SET_WEIGHTS_ID,
    SET_WEIGHTS_NAME,
    SET_MAX_RUNNING,
    SET_FINGERPRINT,
    SET_TRACKS_LINEAGE,
    SET_TRACE,
    SET_REQUESTS,
    SET_SEED,
    SET_SPEED,
    SET_PROMPT,
    SET_MAX_TOKENS,
    SET_MISBEHAVE,
    SET_CONTROL,
    SET_COUNT
};
static const struct kve_option options[SET_COUNT] = {
    [SET_INSTANCE] = {"instance", "NAME", "engine", "name of this instance"},
    [SET_TENANT] = {"tenant", "NAME", "default", "whose objects these are"},
    [SET_SOCKET] = {"socket", "PATH", "$KVPLANE_SOCKET", "the daemon's engine socket"},
    [SET_MODEL] = {"model", NULL, "", "compute by a transformer, --weights-id is its seed"},
    [SET_TP] = {"tp", "N", "1", "ranks of a pipeline stage, each a process"},
    [SET_PP] = {"pp", "N", "1", "pipeline stages"},
    [SET_STORE_TP] = {"store-tp", "N", "none", "parts of a stage's block, as other tp share them"},
    [SET_BLOCK_BYTES] = {"block-bytes", "N", "16384", "bytes of a stage's KV block"},
    [SET_BLOCKS] = {"blocks", "N", "2048", "blocks of the KV cache"},
    [SET_WEIGHTS_BYTES] = {"weights-bytes", "N", "4194304", "bytes of the weights"},
    [SET_WEIGHTS_ID] = {"weights-id", "N", "1", "which weights it starts with"},
    [SET_WEIGHTS_NAME] = {"weights-name", "TEXT", "none", "version it says it started with"},
    [SET_MAX_RUNNING] = {"max-running", "N", "8", "requests at a time"},
    [SET_FINGERPRINT] = {"fingerprint", NULL, "", "name the weights by a hash of their bytes"},
    [SET_TRACKS_LINEAGE] = {"tracks-lineage", NULL, "", "keep the token of every cached block"},
    [SET_TRACE] = {"trace", "FILE", "generated", "requests as JSON lines"},
    [SET_REQUESTS] = {"requests", "N", "1000", "how many of them"},
    [SET_SEED] = {"seed", "N", "1", "of the generated trace"},
    [SET_SPEED] = {"speed", "X", "idle", "replay the trace at X times its pace; 0: at once"},
    [SET_PROMPT] = {"prompt", "TEXT", "none", "continue it by the model, tell, and end"},
    [SET_MAX_TOKENS] = {"max-tokens", "N", "32", "by so many tokens (bytes)"},
    [SET_MISBEHAVE] = {"misbehave", "CALL-HOW[:N],...", "", "for tests: release-late:MS, ..."},
    [SET_CONTROL] = {"control", "FD", "", "for the rehearsal: obey JSON lines"},
};

const struct kve_option *kve_engine_options(size_t *n_p)
{
    *n_p = SET_COUNT;
    return options;
}

struct settings {
    struct kve_engine_options engine;
    const char *trace_path;
    uint32_t requests;
    uint64_t seed;
    double speed; /* negative: idle */
    const char *prompt;
    uint32_t max_tokens;
};

static bool take(void *ctx, size_t i, const char *value)
{
    struct settings *settings = ctx;
    struct kve_engine_options *engine = &settings->engine;
    uint64_t n = 0;
    char *end;

    switch ((enum setting)i) {
    case SET_INSTANCE:
        engine->instance = value;
        return true;
    case SET_TENANT:
        engine->tenant = value;
        return true;
    case SET_SOCKET:
        engine->socket = value;
        return true;
    case SET_MODEL:
        engine->model = true;
        return true;
    case SET_TP:
        return kve_option_number32(value, 1, 64, &engine->tp);
    case SET_PP:
        return kve_option_number32(value, 1, 64, &engine->pp);
    case SET_STORE_TP:
        return kve_option_number32(value, 1, 64, &engine->store_tp);
    case SET_BLOCK_BYTES:
        if (!kve_option_number(value, 64, 1u << 30, &n)) {
            return false;
        }
        engine->block_bytes = n;
        return true;
    case SET_BLOCKS:
        return kve_option_number32(value, 1, 1u << 24, &engine->nblocks);
    case SET_WEIGHTS_BYTES:
        if (!kve_option_number(value, 4096, 1ull << 36, &n)) {
            return false;
        }
        engine->weights_bytes = n;
        return true;
    case SET_WEIGHTS_ID:
        return kve_option_number(value, 1, INT64_MAX, &engine->weights);
    case SET_WEIGHTS_NAME:
        engine->weights_name = value;
        return true;
    case SET_MAX_RUNNING:
        return kve_option_number32(value, 1, 4096, &engine->max_running);
    case SET_FINGERPRINT:
        engine->fingerprint = true;
        return true;
    case SET_TRACKS_LINEAGE:
        engine->tracks_lineage = true;
        return true;
    case SET_TRACE:
        settings->trace_path = value;
        return true;
    case SET_REQUESTS:
        return kve_option_number32(value, 1, 1u << 24, &settings->requests);
    case SET_SEED:
        return kve_option_number(value, 0, UINT64_MAX, &settings->seed);
    case SET_SPEED:
        settings->speed = strtod(value, &end);
        return end != value && *end == '\0' && settings->speed >= 0 && settings->speed <= 1e9;
    case SET_PROMPT:
        settings->prompt = value;
        return true;
    case SET_MAX_TOKENS:
        return kve_option_number32(value, 1, KVE_MODEL_CONTEXT, &settings->max_tokens);
    case SET_MISBEHAVE:
        return kve_misbehave_parse(value, &engine->misbehave);
    case SET_CONTROL:
        if (!kve_option_number(value, 0, 1u << 20, &n)) {
            return false;
        }
        engine->control_fd = (int)n;
        return true;
    case SET_COUNT:
        break;
    }
    return false;
}

/* ---- replay ---- */

struct replay {
    const struct settings *settings;
    const struct kve_trace *trace;
    uint64_t started_ns;
    uint32_t next, ended;
};

static void replayed(void *arg, struct kve_run *run)
{
    struct replay *replay = arg;

    (void)run;
    replay->ended++;
}

/* Begins what is due; returns ms until the next one, -1: none. */
static int replay_turn(struct replay *replay, struct kve_engine *engine)
{
    double speed = replay->settings->speed;
    uint64_t now_ns = kvb_now_ns(&kvb_clock_real);

    if (speed < 0 || !kve_engine_attached(engine)) {
        return -1;
    }
    if (replay->started_ns == 0) {
        replay->started_ns = now_ns;
    }
    while (replay->next < replay->trace->nrequests) {
        const struct kve_trace_request *request = &replay->trace->requests[replay->next];
        double due_ms = speed == 0 ? 0 : (double)request->timestamp_ms / speed;
        double now_ms = (double)(now_ns - replay->started_ns) / 1e6;
        struct kve_run *run;
        if (due_ms > now_ms) {
            return due_ms - now_ms > 1000 ? 1000 : (int)(due_ms - now_ms) + 1;
        }
        if (kve_engine_run(engine, NULL, replay->next, 1, true, false, replayed, NULL, replay,
                           &run) != KVB_OK) {
            fprintf(stderr,
                    "engine %s: request %" PRIu32 " has %" PRIu32 " blocks, more than the pool\n",
                    engine->options.instance, replay->next, request->nblocks);
            replay->ended++;
        }
        replay->next++;
    }
    return -1;
}

/* ---- one prompt ---- */

#define NAME_WAIT_MS 5000 /* for the name of the weights, without which nothing is shared */

struct prompting {
    const struct settings *settings;
    uint64_t attached_ns;
    bool asked, ended;
    int code;
};

static void continued(void *arg, struct kve_run *run)
{
    struct prompting *prompting = arg;
    const json_t *output = json_array_get(run->outputs, 0), *token;
    size_t i;

    prompting->ended = true;
    if (!json_is_object(output)) {
        fprintf(stderr, "kvplane engine: aborted\n");
        return;
    }
    printf("tokens:");
    json_array_foreach(json_object_get(output, "tokens"), i, token)
    {
        printf(" %d", (int)json_integer_value(token));
    }
    printf("\nblocks of the prompt: %d from the store, %d computed; %" PRIu64 " put\n",
           (int)json_integer_value(json_object_get(output, "store_blocks")),
           (int)json_integer_value(json_object_get(output, "computed_blocks")), run->counts.stored);
    prompting->code = 0;
}

static bool start_prompt(struct prompting *prompting, struct kve_engine *engine)
{
    const char *text = prompting->settings->prompt;
    json_t *tokens = json_array(), *prompts = json_pack("[o]", tokens);
    kvb_status_t status = prompts == NULL ? KVB_ERR_NO_MEMORY : KVB_OK;
    struct kve_run *run;

    for (size_t i = 0; text[i] != '\0' && status == KVB_OK; i++) {
        status = json_array_append_new(tokens, json_integer((unsigned char)text[i])) == 0
                     ? KVB_OK
                     : KVB_ERR_NO_MEMORY;
    }
    if (status == KVB_OK) {
        status = kve_engine_generate(engine, prompts, prompting->settings->max_tokens, true, false,
                                     continued, NULL, prompting, &run);
    }
    json_decref(prompts);
    if (status != KVB_OK) {
        fprintf(stderr, "kvplane engine: --prompt: %s\n",
                status == KVB_ERR_INVALID ? "empty, or too long for the model or --blocks"
                                          : kvb_status_text(status));
    }
    return status == KVB_OK;
}

/* Asks when the daemon is there, and, if the weights are to have a name, knows it. Returns ms until
 * it looks again, -1: when something happens. False: it has ended. */
static bool prompt_turn(struct prompting *prompting, struct kve_engine *engine, int *wait_ms_p)
{
    const struct kve_engine_options *set = &engine->options;
    uint64_t now_ns = kvb_now_ns(&kvb_clock_real);

    *wait_ms_p = -1;
    if (prompting->settings->prompt == NULL || prompting->asked || !kve_engine_attached(engine)) {
        return !prompting->ended;
    }
    if (prompting->attached_ns == 0) {
        prompting->attached_ns = now_ns;
    }
    if (!engine->named && (set->fingerprint || set->weights_name != NULL) &&
        now_ns - prompting->attached_ns < NAME_WAIT_MS * KVB_NS_PER_MS) {
        *wait_ms_p = NAME_WAIT_MS;
        return true;
    }
    prompting->asked = true;
    *wait_ms_p = 0;
    return start_prompt(prompting, engine);
}

static void print_result(const struct kve_engine *engine)
{
    const struct kve_counts *counts = &engine->counts;

    printf("engine %s: requests=%" PRIu64 " blocks_checked=%" PRIu64 " hits=%" PRIu64
           " caught=%" PRIu64 " stale=%" PRIu64 " torn=%" PRIu64 " errors=%" PRIu64 "\n",
           engine->options.instance, counts->requests, counts->blocks_checked, counts->hits,
           counts->caught, counts->stale, counts->torn, counts->errors);
    if (engine->story[0] != '\0') {
        printf("%s\n", engine->story);
    }
    fflush(stdout);
}

/* ---- the loop ---- */

static int soonest(int a, int b)
{
    return a < 0 ? b : b < 0 || a < b ? a : b;
}

static int loop(struct kve_engine *engine, const struct settings *settings, struct replay *replay,
                struct prompting *prompting, struct kve_control *control, int signals)
{
    bool told = settings->speed < 0;
    bool waiting = false;

    for (;;) {
        struct pollfd fds[3 + RANKS_MAX] = {
            {.fd = signals, .events = POLLIN},
            {.fd = kvplane_fd(engine->kv), .events = POLLIN},
            {.fd = control == NULL ? -1 : settings->engine.control_fd, .events = POLLIN},
        };
        int wait_ms = replay_turn(replay, engine), prompt_ms;

        wait_ms = soonest(wait_ms, kve_engine_turn(engine));
        if (!prompt_turn(prompting, engine, &prompt_ms)) {
            return prompting->code;
        }
        wait_ms = soonest(wait_ms, prompt_ms);
        if (control != NULL) {
            kve_control_tell(control);
            fds[2].events |= kve_control_flush(control) ? POLLOUT : 0;
        } else if (engine->refused) {
            fprintf(stderr, "engine %s: refused: %s\n", engine->options.instance,
                    kvplane_last_error(engine->kv));
            return 1;
        } else if (waiting !=
                   (!kve_engine_attached(engine) && kvplane_last_error(engine->kv)[0] != '\0')) {
            waiting = !waiting;
            fprintf(stderr, "engine %s: %s%s\n", engine->options.instance,
                    waiting ? "waiting for its daemon: " : "attached",
                    waiting ? kvplane_last_error(engine->kv) : "");
        }
        if (!told && replay->ended == replay->trace->nrequests) {
            told = true;
            print_result(engine);
        }
        if (engine->broken) {
            return 1;
        }
        size_t n = 3 + kve_ranks_poll(engine->ranks, fds + 3, RANKS_MAX);
        if (poll(fds, n, wait_ms) < 0 && errno != EINTR) {
            fprintf(stderr, "engine %s: poll: %m\n", engine->options.instance);
            return 1;
        }
        if ((fds[0].revents & POLLIN) != 0) {
            return 0;
        }
        if (control != NULL && fds[2].revents != 0 && !kve_control_read(control)) {
            return 0;
        }
    }
}

static int run_engine(struct settings *settings)
{
    struct kve_ranks *ranks = NULL;
    struct kve_engine *engine;
    struct kve_control *control = NULL;
    /* outlives the engine: what is in flight at the end is counted when the engine goes */
    struct replay replay = {.settings = settings, .trace = settings->engine.trace};
    struct prompting prompting = {.settings = settings, .code = 1};
    sigset_t mask;
    int signals, code = 1;

    /* Before anything else runs, so that none is lost. */
    sigemptyset(&mask);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGTERM);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0) {
        fprintf(stderr, "kvplane engine: signalfd: %m\n");
        return 1;
    }
    kvb_status_t status = kve_ranks_start(&settings->engine, &ranks);
    if (status == KVB_OK) {
        settings->engine.gather = kve_ranks_gather(ranks);
        status = kve_engine_create(&settings->engine, &engine);
    }
    if (status != KVB_OK) {
        fprintf(stderr, "kvplane engine: could not start\n");
        kve_ranks_stop(ranks);
        close(signals);
        return 1;
    }
    engine->ranks = ranks;
    if (settings->engine.control_fd >= 0) {
        control = kve_control_create(engine, settings->engine.control_fd);
    }
    if (settings->engine.control_fd < 0 || control != NULL) {
        code = loop(engine, settings, &replay, &prompting, control, signals);
    }
    kve_engine_destroy(engine);
    kve_ranks_stop(ranks);
    if (control != NULL) {
        kve_control_destroy(control);
    }
    close(signals);
    return code;
}

/* What was not said. False: told what does not go together. */
static bool complete(struct settings *settings)
{
    struct kve_engine_options *engine = &settings->engine;

    if (engine->model) {
        if (settings->trace_path != NULL || settings->speed >= 0) {
            fprintf(stderr, "kvplane engine: a trace has no tokens: not with --model\n");
            return false;
        }
        return kve_generate_options(engine) == KVB_OK;
    }
    if (settings->prompt != NULL) {
        fprintf(stderr, "kvplane engine: --prompt needs --model\n");
        return false;
    }
    engine->block_bytes = engine->block_bytes == 0 ? 16384 : engine->block_bytes;
    engine->weights_bytes = engine->weights_bytes == 0 ? 4u << 20 : engine->weights_bytes;
    return true;
}

int kve_engine_main(int argc, char **argv)
{
    struct settings settings = {
        .engine = {.instance = "engine",
                   .tenant = "default",
                   .weights = 1,
                   .nblocks = 2048,
                   .max_running = 8,
                   .tp = 1,
                   .pp = 1,
                   .control_fd = -1},
        .requests = 1000,
        .seed = 1,
        .speed = -1,
        .max_tokens = 32,
    };
    struct kve_trace trace;
    struct kve_trace_error error;
    kvb_status_t status;
    int code;

    if (!kve_options_parse("kvplane engine", options, SET_COUNT, argc, argv, take, &settings) ||
        !kve_options_choose_fault("kvplane engine")) {
        return 2;
    }
    if (!complete(&settings) || kve_parts_check(&settings.engine) != KVB_OK) {
        return 2;
    }
    if (settings.engine.model) {
        return run_engine(&settings);
    }
    if (settings.trace_path != NULL) {
        status = kve_trace_load(settings.trace_path, settings.requests, &trace, &error);
        if (status != KVB_OK) {
            kve_trace_tell("kvplane engine", settings.trace_path, &error);
            return 2;
        }
    } else {
        status = kve_trace_generate(settings.seed, settings.requests, &trace);
        if (status != KVB_OK) {
            fprintf(stderr, "kvplane engine: %s\n", kvb_status_text(status));
            return 1;
        }
    }
    settings.engine.trace = &trace;
    code = run_engine(&settings);
    kve_trace_cleanup(&trace);
    return code;
}
