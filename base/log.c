/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

/*
 * A line is put together from pieces that are added whole or not at all (a field's number, one
 * escaped character), so that a cut line is still well-formed: what is open is closed, and a last
 * field says that it was cut.
 */

enum kvb_log_level kvb_log_threshold = KVB_LOG_INFO;
static enum kvb_log_format log_format = KVB_LOG_LOGFMT;
static int log_fd = STDERR_FILENO;
static _Thread_local struct kvb_log_context current;

static const char *const levels[] = {
#define X(name, text) text,
    KVB_LOG_LEVELS(X)
#undef X
};

#define CUT_JSON   ",\"cut\":true"
#define CUT_LOGFMT " cut=true"
#define TAIL_LEN   16 /* closing quote, what says cut, brace, newline */
_Static_assert(sizeof CUT_JSON + 3 <= TAIL_LEN, "the tail fits");

struct line {
    char text[KVB_LOG_LINE_MAX];
    size_t len;
    bool open; /* inside a quoted value */
    bool cut;
};

void kvb_log_setup(enum kvb_log_level level, enum kvb_log_format format, int fd)
{
    kvb_log_threshold = level;
    log_format = format;
    log_fd = fd;
}

bool kvb_log_parse_level(const char *text, enum kvb_log_level *level_p)
{
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (strcasecmp(text, levels[i]) == 0) {
            *level_p = (enum kvb_log_level)i;
            return true;
        }
    }
    return false;
}

struct kvb_log_context kvb_log_context(void)
{
    return current;
}

void kvb_log_set_context(const struct kvb_log_context *context)
{
    current = context != NULL ? *context : (struct kvb_log_context){.operation = 0};
}

struct kvb_log_context kvb_log_enter(const char *request_id, uint64_t operation)
{
    struct kvb_log_context before = current;
    snprintf(current.request, sizeof current.request, "%s", request_id == NULL ? "" : request_id);
    current.operation = operation;
    return before;
}

void kvb_log_request(const char *request_id)
{
    (void)kvb_log_enter(request_id, 0);
}

const char *kvb_log_current_request(void)
{
    return current.request[0] == '\0' ? NULL : current.request;
}

/* ---- counted; relaxed: nothing else hangs on them ---- */

static _Atomic(uint64_t) lines[sizeof levels / sizeof levels[0]];
static _Atomic(uint64_t) held_back_lines;

uint64_t kvb_log_lines(enum kvb_log_level level)
{
    return atomic_load_explicit(&lines[level], memory_order_relaxed);
}

uint64_t kvb_log_held_back(void)
{
    return atomic_load_explicit(&held_back_lines, memory_order_relaxed);
}

const char *kvb_log_level_text(enum kvb_log_level level)
{
    return levels[level];
}

static void add(struct line *line, const char *piece, size_t len)
{
    if (line->cut || line->len + len > sizeof line->text - TAIL_LEN) {
        line->cut = true;
        return;
    }
    memcpy(line->text + line->len, piece, len);
    line->len += len;
}

/* `key=` or `"key":`, a separator before it, and the opening quote of a quoted value. */
static void add_key(struct line *line, const char *key, bool quoted)
{
    if (line->cut) {
        return; /* what was open when it was cut stays open for finish() */
    }
    char piece[256];
    bool json = log_format == KVB_LOG_JSON;
    const char *separator = line->len == 0 ? (json ? "{" : "") : json ? "," : " ";
    int n = json ? snprintf(piece, sizeof piece, "%s\"%s\":", separator, key)
                 : snprintf(piece, sizeof piece, "%s%s=", separator, key);
    if (n < 0 || (size_t)n + 1 >= sizeof piece) {
        line->cut = true;
        return;
    }
    if (quoted) {
        piece[n++] = '"';
    }
    add(line, piece, (size_t)n);
    line->open = quoted && !line->cut;
}

static void close_value(struct line *line)
{
    if (line->open && !line->cut) {
        line->open = false;
        line->text[line->len++] = '"'; /* into the tail, which has room for one */
    }
}

static void add_number(struct line *line, const char *key, const char *number)
{
    char value[64];
    int n = snprintf(value, sizeof value, "%s", number);
    size_t before = line->len;
    add_key(line, key, false);
    add(line, value, (size_t)n);
    if (line->cut) {
        line->len = before; /* no key without its value */
    }
}

/* One character of a quoted value: itself, or as an escape that both formats read. */
static size_t escape(const char *at, size_t left, char out[8], size_t *out_len)
{
    size_t n = kvb_utf8_sequence(at, left);
    unsigned char c = (unsigned char)at[0];
    const char *short_form = c == '"'    ? "\\\""
                             : c == '\\' ? "\\\\"
                             : c == '\n' ? "\\n"
                             : c == '\r' ? "\\r"
                             : c == '\t' ? "\\t"
                                         : NULL;
    if (n == 0) {
        *out_len = (size_t)snprintf(out, 8, "\\ufffd"); /* not UTF-8: the replacement character */
        return 1;
    }
    if (short_form != NULL) {
        *out_len = (size_t)snprintf(out, 8, "%s", short_form);
    } else if (c < 0x20 || c == 0x7f) {
        *out_len = (size_t)snprintf(out, 8, "\\u%04x", c);
    } else {
        memcpy(out, at, n);
        *out_len = n;
    }
    return n;
}

static void add_text(struct line *line, const char *key, const char *text)
{
    static const char bare[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                               "._-:/+@%,";
    size_t len = strlen(text);
    bool plain = log_format == KVB_LOG_LOGFMT && len > 0 && strspn(text, bare) == len;
    add_key(line, key, !plain);
    for (size_t i = 0; i < len && !line->cut;) {
        char piece[8];
        size_t piece_len;
        i += escape(text + i, len - i, piece, &piece_len);
        add(line, piece, piece_len);
    }
    close_value(line);
}

static void add_hex(struct line *line, const char *key, const void *data, size_t len)
{
    const unsigned char *bytes = data;
    add_key(line, key, log_format == KVB_LOG_JSON);
    for (size_t i = 0; i < len && !line->cut; i++) {
        char piece[3];
        snprintf(piece, sizeof piece, "%02x", bytes[i]);
        add(line, piece, 2);
    }
    close_value(line);
}

static void add_field(struct line *line, const struct kvb_field *field)
{
    char number[64];
    char text[128];
    switch (field->kind) {
    case KVB_FIELD_STR:
        if (field->str != NULL) {
            add_text(line, field->key, field->str);
        }
        return;
    case KVB_FIELD_HEX:
        add_hex(line, field->key, field->hex.data, field->hex.len);
        return;
    case KVB_FIELD_U64:
        snprintf(number, sizeof number, "%" PRIu64, field->u64);
        break;
    case KVB_FIELD_I64:
        snprintf(number, sizeof number, "%" PRId64, field->i64);
        break;
    case KVB_FIELD_DOUBLE:
        /* JSON has no word for these. */
        snprintf(number, sizeof number, "%.9g", isfinite(field->number) ? field->number : 0);
        if (!isfinite(field->number)) {
            snprintf(number, sizeof number, "null");
        }
        break;
    case KVB_FIELD_ERRNO:
        snprintf(number, sizeof number, "%" PRId64, field->i64);
        add_number(line, field->key, number);
        add_text(line, "error", strerror_r((int)field->i64, text, sizeof text));
        return;
    }
    add_number(line, field->key, number);
}

static void add_time(struct line *line)
{
    struct timespec ts;
    struct tm tm;
    char text[64];
    char stamp[96];
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(stamp, sizeof stamp, "%s.%06ldZ", text, ts.tv_nsec / 1000);
    add_text(line, "ts", stamp);
}

static void finish(struct line *line)
{
    bool json = log_format == KVB_LOG_JSON;
    char tail[TAIL_LEN + 1];
    int n = snprintf(tail, sizeof tail, "%s%s%s\n", line->open ? "\"" : "",
                     !line->cut ? ""
                     : json     ? CUT_JSON
                                : CUT_LOGFMT,
                     json ? "}" : "");
    memcpy(line->text + line->len, tail, (size_t)n);
    line->len += (size_t)n;
}

static bool is_instance(const struct kvb_field *field)
{
    return field->kind == KVB_FIELD_STR && strcmp(field->key, "instance") == 0;
}

void kvb_log_write(enum kvb_log_level level, const char *msg, const struct kvb_field *fields,
                   size_t n)
{
    int saved_errno = errno;
    struct line line = {.len = 0};
    add_time(&line);
    add_text(&line, "level", levels[level]);
    if (current.request[0] != '\0') {
        add_text(&line, "req", current.request);
    }
    if (current.operation != 0) {
        add_field(&line, &KVB_U64("op", current.operation));
    }
    for (size_t i = 0; i < n; i++) {
        if (is_instance(&fields[i])) {
            add_field(&line, &fields[i]);
        }
    }
    add_text(&line, "msg", msg);
    for (size_t i = 0; i < n; i++) {
        if (!is_instance(&fields[i])) {
            add_field(&line, &fields[i]);
        }
    }
    finish(&line);
    atomic_fetch_add_explicit(&lines[level], 1, memory_order_relaxed);
    /* A pipe that nobody reads must not stop the loop, or the probes' thread: the line is lost and
     * counted. One that has room takes a whole line. */
    _Static_assert(KVB_LOG_LINE_MAX <= PIPE_BUF, "a line is one write");
    struct pollfd room = {.fd = log_fd, .events = POLLOUT};
    if (poll(&room, 1, 0) == 0) {
        atomic_fetch_add_explicit(&held_back_lines, 1, memory_order_relaxed);
        errno = saved_errno;
        return;
    }
    ssize_t written;
    do {
        written = write(log_fd, line.text, line.len);
    } while (written < 0 && errno == EINTR);
    /* Nowhere is left to complain of a log that cannot be written. */
    errno = saved_errno;
}

bool kvb_log_allowed(struct kvb_log_limit *limit, uint32_t *held_back_p)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    enum { LINES_PER_S = 10 };
    uint64_t second = kvb_now_ns(&kvb_clock_real) / KVB_NS_PER_S;
    pthread_mutex_lock(&lock);
    if (limit->window != second) {
        limit->window = second;
        limit->written = 0;
    }
    bool allowed = limit->written < LINES_PER_S;
    if (allowed) {
        limit->written++;
        *held_back_p = limit->held_back;
        limit->held_back = 0;
    } else {
        limit->held_back++;
        atomic_fetch_add_explicit(&held_back_lines, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&lock);
    return allowed;
}
