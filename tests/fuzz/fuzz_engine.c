/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference engine between a rehearsal and a daemon that say anything. First line: `m`, it
 * computes by the model. Then lines: `{…` a command of the rehearsal (engine/control.h); others
 * begin with a letter that says what the daemon does:
 *
 *   l HITS RESULT   answers the oldest lookup        g RESULT, p RESULT   the oldest get, put
 *   r METHOD BODY   relays a call                    k   a new stay begins
 *   a, w, f         pauses: abort, wait, keep        u   resumes
 *   c, C            resets the cache, and preempts   o TAG, d TAG  releases: offload, discard
 *   s TAG           restores                         n   its link is full, or not any more
 *
 * (RESULT: how many errors down from OK.) Whatever comes: each call is answered once at most, each
 * line that the rehearsal hears is JSON, and each command is answered once or ends with the engine.
 */
#include "control.h"
#include "fake_kvplane.h"
#include "fuzz.h"
#include "generate.h"
#include "pattern.h"

#include "engine.h"

#include <sys/socket.h>

enum { CALLS_MAX = 64, COMMANDS_MAX = 64, BLOCK_BYTES = 256 };

static uint64_t blocks[3][4] = {{0, 1, 2, 3}, {0, 1, 12, 13}, {20, 21, 22, 23}};
static struct kve_trace_request requests[3] = {
    {.input_length = 2048, .nblocks = 4, .blocks = blocks[0]},
    {.input_length = 2048, .nblocks = 4, .blocks = blocks[1]},
    {.input_length = 2048, .nblocks = 4, .blocks = blocks[2]},
};
static const struct kve_trace trace = {.requests = requests, .nrequests = 3, .longest = 4};

static struct {
    struct kve_engine *engine;
    struct kve_control *control;
    int fd; /* the rehearsal's end */
    struct kvplane_call calls[CALLS_MAX];
    size_t ncalls;
    uint64_t stays;
    char heard[1 << 16];
    size_t nheard;
    size_t commands, ends; /* told, and answered by their last word */
} on;

/* ---- the rehearsal ---- */

static void judge_line(const char *line, size_t len)
{
    json_t *json = json_loadb(line, len, 0, NULL);
    const char *event = json_string_value(json_object_get(json, "event"));
    kvb_assert(event != NULL);
    if (strcmp(event, "error") == 0) {
        fuzz_told(json_string_value(json_object_get(json, "text")));
    }
    on.ends += json_object_get(json, "id") != NULL && strcmp(event, "stalled") != 0;
    kvb_assert(on.ends <= on.commands);
    json_decref(json);
}

static void hear(void)
{
    ssize_t n;
    while ((n = recv(on.fd, on.heard + on.nheard, sizeof on.heard - on.nheard, MSG_DONTWAIT)) > 0) {
        char *end;
        on.nheard += (size_t)n;
        while ((end = memchr(on.heard, '\n', on.nheard)) != NULL) {
            size_t len = (size_t)(end - on.heard);
            judge_line(on.heard, len);
            on.nheard -= len + 1;
            memmove(on.heard, end + 1, on.nheard);
        }
        kvb_assert(on.nheard < sizeof on.heard); /* no word is as long */
    }
}

static void command(const char *line)
{
    size_t len = strlen(line);
    if (on.commands == COMMANDS_MAX) {
        return;
    }
    on.commands++;
    ssize_t sent = send(on.fd, line, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    kvb_assert(sent == (ssize_t)len);
    bool more = kve_control_read(on.control);
    sent = send(on.fd, "\n", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    kvb_assert(more && sent == 1);
    more = kve_control_read(on.control);
    kvb_assert(more);
}

/* ---- the daemon ---- */

static int result_of(const char *text)
{
    long down = strtol(text, NULL, 10);
    return down > 0 && down < 40 ? (int)-down : KVPLANE_OK;
}

static void answer_lookup(const char *text)
{
    struct fake_asked *asked = fake_find('l');
    char *rest = NULL;
    uint32_t hits = (uint32_t)strtoul(text, &rest, 10);
    if (asked == NULL) {
        return;
    }
    hits = hits < asked->n ? hits : (uint32_t)asked->n;
    asked->kind = 0;
    asked->looked(asked->arg, result_of(rest), &hits, 1);
}

/* The bytes of a get are those that were put, of the weights that the engine has. */
static void fill(const struct fake_asked *asked, size_t i)
{
    const struct kve_pattern_source source = {.tenant = "t",
                                              .layout = on.engine->layout,
                                              .weights = kve_weights_held(on.engine),
                                              .key = asked->keys[i],
                                              .key_len = strlen(asked->keys[i])};
    if (on.engine->kv_cache.fd >= 0 && !on.engine->options.model) {
        kve_pattern_fill(&source, on.engine->kv_cache.base + asked->slices[i].offset, BLOCK_BYTES);
    }
}

static void answer_batch(char kind, const char *text)
{
    struct fake_asked *asked = fake_find(kind);
    int results[64];
    if (asked == NULL) {
        return;
    }
    kvb_assert(asked->n <= 64);
    for (size_t i = 0; i < asked->n; i++) {
        results[i] = i % 2 == 0 ? result_of(text) : KVPLANE_OK;
        if (kind == 'g' && results[i] == KVPLANE_OK) {
            fill(asked, i);
        }
    }
    asked->kind = 0;
    asked->done(asked->arg, results, asked->n);
}

static void call_engine(char what, char *text)
{
    const struct kvplane_callbacks *call = fake.callbacks;
    struct kvplane_call *with = &on.calls[on.ncalls++];
    const char *tag = text[0] != '\0' ? text : "kv_cache";
    char *body = strchr(text, ' ');
    switch (what) {
    case 'r':
        if (body != NULL) {
            *body++ = '\0';
        }
        call->relay(fake.ctx, with, text, body, body != NULL ? strlen(body) : 0);
        kvb_assert(with->fake.result != KVPLANE_ERR_NO_MEMORY);
        return;
    case 'a':
    case 'w':
    case 'f':
        call->pause(fake.ctx, with,
                    what == 'a'   ? KVPLANE_PAUSE_ABORT
                    : what == 'w' ? KVPLANE_PAUSE_WAIT
                                  : KVPLANE_PAUSE_KEEP);
        return;
    case 'u':
        call->resume(fake.ctx, with);
        return;
    case 'c':
    case 'C':
        call->reset_local(fake.ctx, with, what == 'C');
        return;
    case 'o':
    case 'd': {
        const bool offload = what == 'o';
        call->release(fake.ctx, with, true, &tag, &offload, 1);
        return;
    }
    default:
        call->restore(fake.ctx, with, &tag, 1);
    }
}

/* Transfers are over before memory goes: so the daemon promises. */
static bool transfers_run(void)
{
    return fake_find('g') != NULL || fake_find('p') != NULL;
}

static void act(char *line)
{
    char *text = line[0] != '\0' && line[1] == ' ' ? line + 2 : line + (line[0] != '\0');
    switch (line[0]) {
    case 'l':
        answer_lookup(text);
        return;
    case 'g':
    case 'p':
        answer_batch(line[0], text);
        return;
    case 'k':
        on.stays++;
        fake.token = (kvplane_token){on.stays, on.stays};
        fake.callbacks->lineage(fake.ctx, true, "");
        return;
    case 'n':
        fake.full = !fake.full;
        return;
    default:
        if (on.ncalls < CALLS_MAX && strchr("rawfucCods", line[0]) != NULL && line[0] != '\0' &&
            !(strchr("od", line[0]) != NULL && transfers_run())) {
            call_engine(line[0], text);
        }
    }
}

/* ---- the engine ---- */

static void turn(void)
{
    for (int i = 0; i < 4; i++) {
        size_t open = 0;
        for (size_t k = 0; k < sizeof fake.asked / sizeof fake.asked[0]; k++) {
            open += fake.asked[k].kind != 0;
        }
        bool full = fake.full;
        fake.full = full || open > 8;
        (void)kve_engine_turn(on.engine);
        fake.full = full;
    }
    kve_control_tell(on.control);
    (void)kve_control_flush(on.control);
    hear();
    for (size_t i = 0; i < on.ncalls; i++) {
        kvb_assert(on.calls[i].fake.answered <= 1);
    }
}

static void begin(bool model)
{
    int fds[2];
    struct kve_engine_options options = {.model = model,
                                         .instance = "e",
                                         .tenant = "t",
                                         .weights = 1,
                                         .tp = 1,
                                         .pp = 1,
                                         .nblocks = 16,
                                         .max_running = 4,
                                         .control_fd = -1,
                                         .fingerprint = true};
    memset(&on, 0, sizeof on);
    if (model) {
        kvb_status_t status = kve_generate_options(&options);
        kvb_assert(status == KVB_OK);
    } else {
        options.block_bytes = BLOCK_BYTES;
        options.weights_bytes = 8192;
        options.trace = &trace;
    }
    kvb_status_t status = kve_engine_create(&options, &on.engine);
    kvb_assert(status == KVB_OK);
    int rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds);
    kvb_assert(rc == 0);
    on.fd = fds[0];
    on.control = kve_control_create(on.engine, fds[1]);
    kvb_assert(on.control != NULL);
    fake.attached = true;
    on.stays = 1;
    fake.token = (kvplane_token){1, 1};
    fake.callbacks->attached(fake.ctx, KVPLANE_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_lines lines = {(const char *)data, size};
    char *line = fuzz_line(&lines);
    begin(line != NULL && line[0] == 'm');
    for (; line != NULL; line = fuzz_line(&lines)) {
        if (line[0] == '{') {
            command(line);
        } else if (line[0] != 'm') {
            act(line);
        }
        turn();
        free(line);
    }
    kve_engine_destroy(on.engine);
    hear();
    kve_control_destroy(on.control);
    (void)close(on.fd);
    return 0;
}
