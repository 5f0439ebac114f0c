/* SPDX-License-Identifier: Apache-2.0 */
#include "control.h"

#include "ranks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINE_MAX_BYTES (1u << 20)
#define OUT_MAX_BYTES  (64u << 20) /* of answers that nobody reads */

struct kve_control {
    struct kve_engine *engine;
    int fd;
    bool gone;
    bool told_attached, told_refused;
    char *line;
    size_t len, cap;
    char *out; /* not sent yet */
    size_t out_len, out_cap;
};

struct kve_control *kve_control_create(struct kve_engine *engine, int fd)
{
    struct kve_control *control = calloc(1, sizeof *control);

    if (control != NULL) {
        control->engine = engine;
        control->fd = fd;
        control->cap = LINE_MAX_BYTES;
        control->line = malloc(control->cap);
        if (control->line == NULL) {
            free(control);
            control = NULL;
        }
    }
    if (control == NULL) {
        close(fd);
    }
    return control;
}

void kve_control_destroy(struct kve_control *control)
{
    close(control->fd);
    free(control->line);
    free(control->out);
    free(control);
}

bool kve_control_flush(struct kve_control *control)
{
    size_t done = 0;

    while (done < control->out_len && !control->gone) {
        ssize_t n = send(control->fd, control->out + done, control->out_len - done,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
            break;
        }
        done += n > 0 ? (size_t)n : 0;
        control->gone = control->gone || (n < 0 && errno != EINTR);
    }
    if (done > 0) {
        control->out_len -= done;
        memmove(control->out, control->out + done, control->out_len);
    }
    return control->out_len > 0 && !control->gone;
}

/* Room for len more bytes of answers. */
static bool make_room(struct kve_control *control, size_t len)
{
    size_t need = control->out_len + len;

    if (need > OUT_MAX_BYTES) {
        return false;
    }
    if (need > control->out_cap) {
        char *more = realloc(control->out, 2 * need);
        if (more == NULL) {
            return false;
        }
        control->out = more;
        control->out_cap = 2 * need;
    }
    return true;
}

/* Never waits: what the other side does not read now is sent when it does. Takes `object`. */
static void say(struct kve_control *control, json_t *object)
{
    char *text = object == NULL ? NULL : json_dumps(object, JSON_COMPACT);
    size_t len = text == NULL ? 0 : strlen(text);

    json_decref(object);
    if (text == NULL || !make_room(control, len + 1)) {
        control->gone = true; /* the asker learns by the end of the stream */
        free(text);
        return;
    }
    memcpy(control->out + control->out_len, text, len);
    control->out[control->out_len + len] = '\n';
    control->out_len += len + 1;
    free(text);
    (void)kve_control_flush(control);
}

static void say_error(struct kve_control *control, json_int_t id, const char *text)
{
    say(control, json_pack("{s:I,s:s,s:s}", "id", id, "event", "error", "text", text));
}

static void run_done(void *arg, struct kve_run *run)
{
    say(arg, json_pack("{s:I,s:s,s:o,s:O,s:O*}", "id", (json_int_t)run->number, "event", "done",
                       "counts", kve_counts_json(&run->counts), "unfinished", run->unfinished,
                       "outputs", run->outputs));
}

static void run_stalled(void *arg, struct kve_run *run)
{
    say(arg, json_pack("{s:I,s:s}", "id", (json_int_t)run->number, "event", "stalled"));
}

static bool small(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) <= UINT32_MAX;
}

static void start_run(struct kve_control *control, json_int_t id, const json_t *command)
{
    const json_t *first = json_object_get(command, "first");
    const json_t *count = json_object_get(command, "count");
    const json_t *list = json_object_get(command, "indexes");
    size_t n = list == NULL ? (small(count) ? (size_t)json_integer_value(count) : 0)
                            : json_array_size(list);
    uint32_t *indexes = list == NULL || n == 0 ? NULL : malloc(n * sizeof *indexes);
    kvb_status_t status = n > 0 ? KVB_OK : KVB_ERR_INVALID;
    struct kve_run *run = NULL;

    for (size_t i = 0; indexes != NULL && i < n; i++) {
        const json_t *index = json_array_get(list, i);
        status = small(index) ? status : KVB_ERR_INVALID;
        indexes[i] = (uint32_t)json_integer_value(index);
    }
    if (list != NULL && indexes == NULL) {
        status = KVB_ERR_INVALID;
    }
    if (status == KVB_OK) {
        status = kve_engine_run(control->engine, indexes, (uint32_t)json_integer_value(first),
                                (uint32_t)n, !json_is_false(json_object_get(command, "use_cache")),
                                json_is_true(json_object_get(command, "stall")), run_done,
                                run_stalled, control, &run);
    }
    free(indexes);
    if (status != KVB_OK) {
        say_error(control, id, "no such requests in the trace, or longer than the pool");
        return;
    }
    run->number = (uint64_t)id;
}

static void start_generate(struct kve_control *control, json_int_t id, const json_t *command)
{
    const json_t *most = json_object_get(command, "max_tokens");
    struct kve_run *run;
    kvb_status_t status =
        !small(most) ? KVB_ERR_INVALID
                     : kve_engine_generate(control->engine, json_object_get(command, "prompts"),
                                           (uint32_t)json_integer_value(most),
                                           !json_is_false(json_object_get(command, "use_cache")),
                                           json_is_true(json_object_get(command, "stall")),
                                           run_done, run_stalled, control, &run);

    if (status != KVB_OK) {
        say_error(control, id,
                  "no model, not prompts of its tokens, or too long for it or the pool");
        return;
    }
    run->number = (uint64_t)id;
}

static void obey(struct kve_control *control, const json_t *command)
{
    json_int_t id = json_integer_value(json_object_get(command, "id"));
    const char *cmd = json_string_value(json_object_get(command, "cmd"));
    struct kve_engine *engine = control->engine;

    if (cmd == NULL) {
        say_error(control, id, "not a command");
    } else if (strcmp(cmd, "run") == 0) {
        start_run(control, id, command);
    } else if (strcmp(cmd, "generate") == 0) {
        start_generate(control, id, command);
    } else if (strcmp(cmd, "stats") == 0) {
        say(control, json_pack("{s:I,s:s,s:o}", "id", id, "event", "stats", "stats",
                               kve_engine_stats(engine)));
    } else if (strcmp(cmd, "see") == 0) {
        const json_t *list = json_object_get(command, "weights");
        for (size_t i = 0; i < json_array_size(list); i++) {
            kve_engine_see_weights(engine, (uint64_t)json_integer_value(json_array_get(list, i)));
        }
        say(control, json_pack("{s:I,s:s}", "id", id, "event", "ok"));
    } else if (strcmp(cmd, "fingerprint") == 0) {
        engine->fingerprinting = json_is_true(json_object_get(command, "on"));
        if (kve_ranks_tell(engine->ranks, KVE_RANK_FINGERPRINT, 0, engine->fingerprinting,
                           (kvplane_token){0, 0}, NULL, 0) != KVB_OK) {
            say_error(control, id, "out of memory");
            return;
        }
        say(control, json_pack("{s:I,s:s}", "id", id, "event", "ok"));
    } else {
        say_error(control, id, "unknown command");
    }
}

bool kve_control_read(struct kve_control *control)
{
    char *end;
    ssize_t n =
        recv(control->fd, control->line + control->len, control->cap - control->len, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return !control->gone;
    }
    if (n <= 0) {
        return false;
    }
    control->len += (size_t)n;
    while ((end = memchr(control->line, '\n', control->len)) != NULL) {
        size_t len = (size_t)(end - control->line);
        json_t *command = json_loadb(control->line, len, 0, NULL);
        obey(control, command);
        json_decref(command);
        control->len -= len + 1;
        memmove(control->line, end + 1, control->len);
    }
    return control->len < control->cap && !control->gone;
}

void kve_control_tell(struct kve_control *control)
{
    const struct kve_engine *engine = control->engine;

    bool attached = kve_engine_attached(engine);

    if (attached != control->told_attached) {
        control->told_attached = attached;
        say(control, json_pack("{s:s}", "event", attached ? "attached" : "detached"));
    }
    if (engine->refused && !control->told_refused) {
        control->told_refused = true;
        say(control,
            json_pack("{s:s,s:s}", "event", "refused", "text", kvplane_last_error(engine->kv)));
    }
}
