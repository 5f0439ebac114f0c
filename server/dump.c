/* SPDX-License-Identifier: Apache-2.0 */
#include "dump.h"

#include "build.h"
#include "http/params.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGES_MAX = 100, /* of one list */
    PATH_CAP = 4096,
};

struct ask {
    struct kvp_request request;
    struct kvp_dump *dump;
    const struct kvp_dump_ask *what;
    uint32_t pages;
};

struct kvp_dump {
    struct kvp_dump_config config;
    /* loop thread */
    bool running;
    uint32_t open; /* asks not answered, and one while they are begun */
    json_t *document;
    pthread_t thread;
    bool joinable;
    /* the thread's from its start until `writing` is false again */
    char path[PATH_CAP];
    atomic_bool writing;
};

/* ---- the file: a thread of its own ---- */

/* Of several, separated by colons (systemd's), the first. */
static void name_file(struct kvp_dump *dump)
{
    const char *dirs[] = {dump->config.dir, getenv("RUNTIME_DIRECTORY"), getenv("XDG_RUNTIME_DIR")};
    const char *dir = "/tmp";
    for (size_t i = sizeof dirs / sizeof dirs[0]; i-- > 0;) {
        dir = dirs[i] != NULL && dirs[i][0] != '\0' ? dirs[i] : dir;
    }
    (void)snprintf(dump->path, sizeof dump->path, "%.*s/kvplane-%s-%ld.json",
                   (int)strcspn(dir, ":"), dir, dump->config.program, (long)getpid());
}

/* True: it is there under its name. */
static bool write_file(const json_t *document, const char *path)
{
    char temporary[PATH_CAP + 16];
    (void)snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int fd = mkostemp(temporary, O_CLOEXEC); /* of mode 0600 */
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    if (out == NULL) {
        return false;
    }
    bool ok = json_dumpf(document, out, JSON_INDENT(1) | JSON_PRESERVE_ORDER) == 0;
    ok = !ferror(out) && ok;
    ok = fclose(out) == 0 && ok;
    if (!ok || rename(temporary, path) != 0) {
        int cause = errno;
        (void)unlink(temporary);
        errno = cause;
        return false;
    }
    return true;
}

static void *write_document(void *arg)
{
    struct kvp_dump *dump = arg;
    if (write_file(dump->document, dump->path)) {
        KVB_LOG(INFO, "the state is written", KVB_STR("path", dump->path));
    } else {
        KVB_LOG(ERROR, "the state cannot be written", KVB_STR("path", dump->path),
                KVB_ERRNO(errno));
    }
    json_decref(dump->document);
    dump->document = NULL;
    atomic_store(&dump->writing, false);
    return NULL;
}

static void join(struct kvp_dump *dump)
{
    if (dump->joinable) {
        (void)pthread_join(dump->thread, NULL);
        dump->joinable = false;
    }
}

/* ---- the document ---- */

static void add_config(struct kvp_dump *dump)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    if (out == NULL) {
        return;
    }
    dump->config.show_config(dump->config.config, out);
    if (fclose(out) == 0) {
        (void)json_object_set_new(dump->document, "config", json_loadb(text, len, 0, NULL));
    }
    free(text);
}

/* Line by line, to be read. */
static void add_metrics(struct kvp_dump *dump)
{
    char *text = NULL;
    size_t len = 0;
    char *rest = NULL;
    json_t *lines = json_array();
    if (kvb_metrics_write(dump->config.metrics, &text, &len) == KVB_OK) {
        for (char *line = strtok_r(text, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest)) {
            if (line[0] != '#') {
                (void)json_array_append_new(lines, json_string(line));
            }
        }
    }
    free(text);
    (void)json_object_set_new(dump->document, "metrics", lines);
}

static void finish(struct kvp_dump *dump)
{
    if (--dump->open > 0) {
        return;
    }
    add_metrics(dump);
    dump->running = false;
    name_file(dump);
    atomic_store(&dump->writing, true);
    dump->joinable = pthread_create(&dump->thread, NULL, write_document, dump) == 0;
    if (!dump->joinable) {
        KVB_LOG(ERROR, "the state cannot be written: no thread");
        json_decref(dump->document);
        dump->document = NULL;
        atomic_store(&dump->writing, false);
    }
}

/* The rows of a further page are put behind those of the ones before. */
static void take(json_t *document, const char *name, json_t *body)
{
    json_t *before = json_object_get(document, name);
    const char *key;
    json_t *value;
    if (before == NULL) {
        (void)json_object_set(document, name, body);
        return;
    }
    json_object_foreach(body, key, value)
    {
        json_t *list = json_object_get(before, key);
        if (json_is_array(list) && json_is_array(value)) {
            (void)json_array_extend(list, value);
        }
    }
}

static void ask_page(struct ask *ask, const char *cursor);

static void on_reply(struct kvp_request *request, unsigned http_status, json_t *body,
                     unsigned retry_after_s)
{
    struct ask *ask = kvb_container_of(request, struct ask, request);
    struct kvp_dump *dump = ask->dump;
    char cursor[KVP_CURSOR_MAX] = "";
    (void)retry_after_s;
    const char *next = json_string_value(json_object_get(body, "next"));
    if (next != NULL && http_status == 200 && ++ask->pages < PAGES_MAX) {
        (void)snprintf(cursor, sizeof cursor, "%s", next);
    }
    take(dump->document, ask->what->name, body);
    json_decref(body);
    if (cursor[0] != '\0') {
        ask_page(ask, cursor);
        return;
    }
    free(ask);
    finish(dump);
}

/* The request as if it had come over HTTP. */
static void ask_page(struct ask *ask, const char *cursor)
{
    struct kvp_dump *dump = ask->dump;
    char query[KVP_CURSOR_MAX + 64];
    char arg[KVP_PATH_ARG_MAX];
    struct kvp_param_error error;
    ask->request = (struct kvp_request){.reply = on_reply};
    enum kvp_found found = kvp_route_find(dump->config.routes, "GET", ask->what->path,
                                          strlen(ask->what->path), &ask->request.route, arg);
    (void)snprintf(query, sizeof query, "limit=%u%s%s", KVP_LIMIT_MAX,
                   cursor[0] != '\0' ? "&cursor=" : "", cursor);
    kvb_status_t status = kvp_params_read(ask->request.route, query, NULL, &ask->request.params,
                                          ask->request.instance, &error);
    kvb_assert(found == KVP_FOUND && status == KVB_OK); /* our own route, and what it gave us */
    (void)snprintf(ask->request.request_id, sizeof ask->request.request_id, "dump");
    status = kvp_inbox_submit(dump->config.inbox, &ask->request);
    if (status != KVB_OK) { /* too busy, or going: the rest is told all the same */
        (void)json_object_set_new(dump->document, ask->what->name,
                                  json_pack("{s:s}", "error", kvb_status_text(status)));
        free(ask);
        finish(dump);
    }
}

static void begin_document(struct kvp_dump *dump)
{
    char at[64] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm) != NULL) {
        (void)strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%SZ", &tm);
    }
    dump->document =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I}", "program", dump->config.program, "version",
                  KVP_VERSION, "revision", kvp_build_revision, "compiler", kvp_build_compiler,
                  "features", kvp_build_features, "at", at, "pid", (json_int_t)getpid());
}

void kvp_dump_start(struct kvp_dump *dump)
{
    if (dump->running || atomic_load(&dump->writing)) {
        KVB_LOG(WARN, "the state is being written already");
        return;
    }
    join(dump);
    begin_document(dump);
    if (dump->document == NULL) {
        KVB_LOG(ERROR, "the state cannot be written: out of memory");
        return;
    }
    dump->running = true;
    dump->open = 1;
    add_config(dump);
    for (uint32_t i = 0; i < dump->config.nasks; i++) {
        struct ask *ask = malloc(sizeof *ask);
        if (ask == NULL) {
            continue; /* the document lacks it */
        }
        ask->dump = dump;
        ask->what = &dump->config.asks[i];
        ask->pages = 0;
        dump->open++;
        ask_page(ask, "");
    }
    finish(dump);
}

struct kvp_dump *kvp_dump_create(const struct kvp_dump_config *config)
{
    struct kvp_dump *dump = calloc(1, sizeof *dump);
    if (dump != NULL) {
        dump->config = *config;
    }
    return dump;
}

void kvp_dump_destroy(struct kvp_dump *dump)
{
    if (dump != NULL) {
        kvb_assert(!dump->running); /* the inbox has replied to everything */
        join(dump);
        json_decref(dump->document);
        free(dump);
    }
}
