/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes on a connection of the real HTTP server, over loopback. First byte: bit 0, a server that
 * asks for tokens; the rest, how many bytes arrive at a time (0: all). A NUL and a P among them are
 * a body's blanks, FUZZ_BLANKS of them: more than are read between others. Then this end says no
 * more, and reads what it is answered to its end: whole answers, JSON, each with a length and the
 * request's name, and where something was refused, why.
 */
#include "fuzz.h"
#include "http_blanks.h"
#include "http_client.h"
#include "rest_server.h"

#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

enum { ANSWERS_BYTES = 1 << 20, BLANKS_MAX = 2 };

static struct rest_server servers[2];

static const struct rest_server *server(bool tokens)
{
    static const struct kvp_http_token known[] = {{"secret-of-an-admin", KVP_ROLE_ADMIN},
                                                  {"secret-of-a-reader", KVP_ROLE_READ}};
    struct kvp_http_config config = {.idle_timeout_s = 600};
    if (servers[tokens].http == NULL) {
        config.tokens = tokens ? known : NULL;
        config.ntokens = tokens ? 2 : 0;
        rest_start(&servers[tokens], &config, 0);
        kvb_log_threshold = KVB_LOG_ERROR;
    }
    return &servers[tokens];
}

/* ---- what came back ---- */

struct answers {
    char *text;
    size_t len;
    bool cut;         /* the other end reset the connection: it did not read all of it */
    bool stream;      /* one has no end */
    bool may_be_bare; /* to a HEAD */
};

static const char *find(const char *text, size_t len, const char *what)
{
    return memmem(text, len, what, strlen(what));
}

static const char *value_of(const char *head, size_t len, const char *name)
{
    const char *line = find(head, len, name);
    return line == NULL ? NULL : line + strlen(name);
}

static void judge_body(unsigned status, const char *body, size_t len)
{
    json_t *json = json_loadb(body, len, JSON_DECODE_ANY, NULL);
    kvb_assert(json != NULL);
    if (status >= 400) {
        const json_t *error = json_object_get(json, "error");
        kvb_assert(json_is_string(json_object_get(error, "message")));
        fuzz_told(json_string_value(json_object_get(error, "message")));
        kvb_assert(json_integer_value(json_object_get(error, "code")) == status);
    }
    json_decref(json);
}

/* One answer; how many bytes it was, 0: it is not whole. */
static size_t judge_one(const struct answers *answers, const char *text, size_t len)
{
    const char *end = find(text, len, "\r\n\r\n");
    if (end == NULL) {
        return 0;
    }
    size_t head = (size_t)(end + 4 - text);
    kvb_assert(strncmp(text, "HTTP/1.1 ", 9) == 0 || strncmp(text, "HTTP/1.0 ", 9) == 0);
    unsigned status = (unsigned)strtoul(text + 9, NULL, 10);
    if (status == 100) {
        return head;
    }
    kvb_assert(status >= 200 && status < 600);
    kvb_assert(value_of(text, head, "\r\nX-Request-Id: ") != NULL);
    const char *length = value_of(text, head, "\r\nContent-Length: ");
    if (length == NULL || status == 304) {
        kvb_assert(status == 304 || find(text, head, "text/event-stream") != NULL);
        return status == 304 ? head : len;
    }
    size_t body = strtoull(length, NULL, 10);
    bool json = find(text, head, "\r\nContent-Type: application/json\r\n") != NULL;
    kvb_assert(json || status < 400);
    if (answers->may_be_bare && body > 0 &&
        (len == head || strncmp(text + head, "HTTP/1.", 7) == 0)) {
        return head;
    }
    if (len - head < body) {
        return 0;
    }
    if (json) {
        judge_body(status, text + head, body);
    }
    return head + body;
}

static void judge(const struct answers *answers)
{
    for (size_t at = 0; at < answers->len;) {
        size_t n = judge_one(answers, answers->text + at, answers->len - at);
        kvb_assert(n > 0 || answers->cut || answers->stream || answers->len == ANSWERS_BYTES);
        if (n == 0) {
            return;
        }
        at += n;
    }
}

/* ---- the connection ---- */

/* More has come; false: no more will. */
static bool hear(int fd, struct answers *answers)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (answers->stream || answers->len == ANSWERS_BYTES) {
        return false;
    }
    int ready;
    while ((ready = poll(&wait, 1, HTTP_WAIT_MS)) < 0 && errno == EINTR) {
        /* by the alarm with which libFuzzer looks for inputs that take too long */
    }
    kvb_assert(ready == 1); /* every request is answered, and whoever says no more is let go */
    ssize_t n = recv(fd, answers->text + answers->len, ANSWERS_BYTES - answers->len, 0);
    answers->cut = answers->cut || n < 0;
    answers->len += n > 0 ? (size_t)n : 0;
    answers->stream = find(answers->text, answers->len, "text/event-stream") != NULL;
    return n > 0;
}

static void talk(int fd, const uint8_t *data, size_t size, size_t step, struct answers *answers)
{
    step = step == 0 ? size : step;
    for (size_t at = 0; at < size && !answers->cut; at += step) {
        size_t len = step < size - at ? step : size - at;
        answers->cut = send(fd, data + at, len, MSG_NOSIGNAL) != (ssize_t)len;
    }
    (void)shutdown(fd, SHUT_WR);
    while (hear(fd, answers)) {
    }
}

/* The bytes as they are sent: to be freed. */
static uint8_t *with_blanks(const uint8_t *data, size_t size, size_t *len_p)
{
    uint8_t *out = malloc(size + BLANKS_MAX * FUZZ_BLANKS + 1);
    size_t len = 0, blanks = 0;
    kvb_assert(out != NULL);
    for (size_t i = 0; i < size; i++) {
        if (i + 1 < size && data[i] == '\0' && data[i + 1] == 'P' && blanks++ < BLANKS_MAX) {
            memset(out + len, ' ', FUZZ_BLANKS);
            len += FUZZ_BLANKS;
            i++;
        } else {
            out[len++] = data[i];
        }
    }
    *len_p = len;
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct linger at_once = {1, 0}; /* no port stays taken for a minute */
    if (size == 0) {
        return 0;
    }
    struct answers answers = {.text = malloc(ANSWERS_BYTES)};
    kvb_assert(answers.text != NULL);
    answers.may_be_bare = find((const char *)data, size, "HEAD ") != NULL;
    int fd = http_connect(server((data[0] & 1) != 0)->port);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    size_t len = 0;
    uint8_t *bytes = with_blanks(data + 1, size - 1, &len);
    talk(fd, bytes, len, len == size - 1 ? data[0] >> 1 : 0, &answers);
    (void)close(fd);
    free(bytes);
    judge(&answers);
    free(answers.text);
    return 0;
}
