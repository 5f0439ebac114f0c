/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A network that misbehaves on request: a TCP proxy between two processes under test.
 *
 *   kvplane_proxy LISTEN-PORT HOST:PORT        port 0: a free one; prints `ready 127.0.0.1:PORT`
 *
 * Commands are JSON lines on stdin, each answered by one line on stdout; the end of stdin ends it.
 *
 *   {"cmd":"rule","way":"there"|"back",        bytes from who connected, or to it; on all
 *    "delay_ms":N,                             connections, now and to come, until the next rule
 *    "bytes_per_s":N,                          (0: as fast as it goes)
 *    "piece":N,                                at most N bytes in one write
 *    "after":N,"then":"cut"|"reset"|"drop"|"freeze"|"half"}
 *       after N more bytes of that way (of each connection): close both ends; reset them; swallow
 *       what comes, of both ways, in silence; read no more; or reset the far end and tell the near
 *       one nothing. Without `then`, nothing.
 *   {"cmd":"clear"}          no rules; connections that have lost bytes are reset
 *   {"cmd":"reset"}          resets every connection
 *   {"cmd":"refuse","on":B}  connections are refused
 *   {"cmd":"stats"}
 * Answer: {"connections":N,"accepted":N,"fired":N,"there":BYTES,"back":BYTES} or {"error":TEXT}.
 */
#include "base/clock.h"

#include <jansson.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUFFER_BYTES    (256u << 10)
#define CONNECTIONS_MAX 512
#define BURSTS_MAX      256 /* reads that wait for their delay, of one way */
#define LINE_BYTES      65536
#define TICK_MS         2 /* while something is throttled or delayed */

#define THENS(X)                                                                                   \
    X(NOTHING, "")                                                                                 \
    X(CUT, "cut")                                                                                  \
    X(RESET, "reset")                                                                              \
    X(DROP, "drop")                                                                                \
    X(FREEZE, "freeze")                                                                            \
    X(HALF, "half")
enum then {
#define X(name, text) THEN_##name,
    THENS(X)
#undef X
        THEN_COUNT
};
static const char *const then_texts[THEN_COUNT] = {
#define X(name, text) text,
    THENS(X)
#undef X
};

enum way { THERE, BACK };
static const char *const way_texts[] = {"there", "back"};

struct rule {
    uint64_t delay_ns, bytes_per_s, piece, after;
    enum then then;
};

struct burst {
    size_t len;
    uint64_t due_ns;
};

/* One way of a connection. */
struct flow {
    char *buffer; /* what was read and not yet written */
    size_t len;
    struct burst bursts[BURSTS_MAX];
    size_t nbursts;
    uint64_t passed;    /* bytes under the present rule */
    uint64_t credit_ns; /* when the last byte sent under a throttle has been paid for */
    bool ended;         /* its reader saw the end */
    bool told;          /* and its writer was told */
};

struct connection {
    int fds[2]; /* who connected; the target; -1: closed */
    struct flow flows[2];
    bool silent; /* bytes of both ways vanish */
    bool frozen; /* nothing is read */
    bool lost;   /* can never go on as if nothing had happened */
};

static struct rule rules[2];
static struct connection *connections[CONNECTIONS_MAX];
static size_t nconnections;
static struct sockaddr_in target;
static uint16_t listen_port;
static int listener = -1;
static uint64_t accepted, fired, moved[2];

/* ---- connections ---- */

static void reset_fd(int *fd)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};

    if (*fd >= 0) {
        setsockopt(*fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(*fd);
        *fd = -1;
    }
}

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

static void both(struct connection *connection, void (*how)(int *fd))
{
    how(&connection->fds[0]);
    how(&connection->fds[1]);
}

static void open_listener(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons(listen_port)};
    socklen_t len = sizeof address;
    int one = 1;

    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (listener < 0 || bind(listener, (const struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 128) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &len) != 0) {
        fprintf(stderr, "proxy: cannot listen: %s\n", strerror(errno));
        exit(1);
    }
    listen_port = ntohs(address.sin_port);
}

static void accept_one(void)
{
    int one = 1;
    int near = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct connection *connection;

    if (near < 0) {
        return;
    }
    connection = nconnections < CONNECTIONS_MAX ? calloc(1, sizeof *connection) : NULL;
    if (connection == NULL) {
        reset_fd(&near);
        return;
    }
    connection->fds[0] = near;
    connection->fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    for (size_t way = 0; way < 2; way++) {
        setsockopt(connection->fds[way], IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof one);
        connection->flows[way].buffer = malloc(BUFFER_BYTES);
    }
    if (connection->fds[1] < 0 ||
        (connect(connection->fds[1], (const struct sockaddr *)&target, sizeof target) != 0 &&
         errno != EINPROGRESS)) {
        both(connection, reset_fd);
    }
    accepted++;
    connections[nconnections++] = connection;
}

static void forget_closed(void)
{
    for (size_t i = nconnections; i-- > 0;) {
        struct connection *connection = connections[i];
        if (connection->fds[0] >= 0 || connection->fds[1] >= 0) {
            continue;
        }
        free(connection->flows[0].buffer);
        free(connection->flows[1].buffer);
        free(connection);
        connections[i] = connections[--nconnections];
    }
}

/* ---- bytes ---- */

static void fire(struct connection *connection, enum then then)
{
    fired++;
    switch (then) {
    case THEN_CUT:
        both(connection, close_fd);
        break;
    case THEN_RESET:
        both(connection, reset_fd);
        break;
    case THEN_DROP:
        connection->silent = true;
        connection->lost = true;
        break;
    case THEN_FREEZE:
        connection->frozen = true;
        break;
    case THEN_HALF:
        reset_fd(&connection->fds[1]);
        connection->silent = true;
        connection->lost = true;
        break;
    case THEN_NOTHING:
    case THEN_COUNT:
        break;
    }
}

static bool fires(const struct rule *rule, const struct flow *flow)
{
    return rule->then != THEN_NOTHING && flow->passed >= rule->after;
}

/* From fds[way] into the flow. */
static void take(struct connection *connection, enum way way, uint64_t now_ns)
{
    struct flow *flow = &connection->flows[way];
    size_t room = flow->nbursts < BURSTS_MAX ? BUFFER_BYTES - flow->len : 0;
    ssize_t n;

    if (room == 0 || flow->ended || connection->fds[way] < 0) {
        return;
    }
    n = read(connection->fds[way], flow->buffer + flow->len, room);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (connection->silent) {
        if (n <= 0) {
            close_fd(&connection->fds[way]); /* the other end is not told */
        }
        return;
    }
    if (n < 0) {
        both(connection, reset_fd);
        return;
    }
    flow->ended = n == 0;
    flow->len += (size_t)n;
    if (n > 0) {
        flow->bursts[flow->nbursts++] =
            (struct burst){.len = (size_t)n, .due_ns = now_ns + rules[way].delay_ns};
    }
}

/* How much may be written now. */
static size_t allowed(const struct flow *flow, const struct rule *rule, uint64_t now_ns)
{
    size_t len = 0;

    for (size_t i = 0; i < flow->nbursts && flow->bursts[i].due_ns <= now_ns; i++) {
        len += flow->bursts[i].len;
    }
    if (rule->then != THEN_NOTHING && len > rule->after - flow->passed) {
        len = (size_t)(rule->after - flow->passed);
    }
    if (rule->piece > 0 && len > rule->piece) {
        len = (size_t)rule->piece;
    }
    if (rule->bytes_per_s > 0) {
        /* A few milliseconds' worth, whenever the last one has been paid for. */
        uint64_t portion = rule->bytes_per_s / 250 + 1;
        if (flow->credit_ns > now_ns) {
            return 0;
        }
        len = len > portion ? (size_t)portion : len;
    }
    return len;
}

static void sent(struct flow *flow, const struct rule *rule, size_t n, uint64_t now_ns)
{
    size_t left = n;

    flow->len -= n;
    memmove(flow->buffer, flow->buffer + n, flow->len);
    flow->passed += n;
    while (left > 0) {
        size_t part = left < flow->bursts[0].len ? left : flow->bursts[0].len;
        flow->bursts[0].len -= part;
        left -= part;
        if (flow->bursts[0].len == 0) {
            flow->nbursts--;
            memmove(flow->bursts, flow->bursts + 1, flow->nbursts * sizeof flow->bursts[0]);
        }
    }
    if (rule->bytes_per_s > 0) {
        uint64_t from_ns = flow->credit_ns > now_ns ? flow->credit_ns : now_ns;
        flow->credit_ns = from_ns + n * UINT64_C(1000000000) / rule->bytes_per_s;
    }
}

/* From the flow to the other end. */
static void give(struct connection *connection, enum way way, uint64_t now_ns)
{
    struct flow *flow = &connection->flows[way];
    const struct rule *rule = &rules[way];
    int to = connection->fds[1 - way];
    size_t len;
    ssize_t n;

    if (connection->silent || connection->frozen || to < 0) {
        return;
    }
    if (fires(rule, flow)) {
        fire(connection, rule->then);
        return;
    }
    len = allowed(flow, rule, now_ns);
    if (len > 0) {
        n = send(to, flow->buffer, len, MSG_NOSIGNAL);
        if (n > 0) {
            moved[way] += (uint64_t)n;
            sent(flow, rule, (size_t)n, now_ns);
        } else if (errno != EAGAIN && errno != EINTR && errno != ENOTCONN) {
            both(connection, reset_fd);
            return;
        }
        if (fires(rule, flow)) {
            fire(connection, rule->then);
            return;
        }
    }
    if (flow->ended && flow->len == 0 && !flow->told) {
        shutdown(to, SHUT_WR);
        flow->told = true;
    }
    if (connection->flows[0].told && connection->flows[1].told) {
        both(connection, close_fd);
    }
}

/* ---- commands ---- */

static void answer(const char *error)
{
    json_t *object =
        error != NULL
            ? json_pack("{s:s}", "error", error)
            : json_pack("{s:I,s:I,s:I,s:I,s:I}", "connections", (json_int_t)nconnections,
                        "accepted", (json_int_t)accepted, "fired", (json_int_t)fired, "there",
                        (json_int_t)moved[THERE], "back", (json_int_t)moved[BACK]);

    json_dumpf(object, stdout, JSON_COMPACT);
    json_decref(object);
    putchar('\n');
    fflush(stdout);
}

static uint64_t number(const json_t *object, const char *name)
{
    return (uint64_t)json_integer_value(json_object_get(object, name));
}

static const char *set_rule(const json_t *command)
{
    const char *way = json_string_value(json_object_get(command, "way"));
    const char *then = json_string_value(json_object_get(command, "then"));
    enum way w = way != NULL && strcmp(way, way_texts[BACK]) == 0 ? BACK : THERE;
    struct rule rule = {.delay_ns = number(command, "delay_ms") * KVB_NS_PER_MS,
                        .bytes_per_s = number(command, "bytes_per_s"),
                        .piece = number(command, "piece"),
                        .after = number(command, "after")};

    if (way == NULL || strcmp(way, way_texts[w]) != 0) {
        return "way: there or back";
    }
    for (size_t i = 0; then != NULL && i <= THEN_COUNT; i++) {
        if (i == THEN_COUNT) {
            return "then: cut, reset, drop, freeze or half";
        }
        if (strcmp(then, then_texts[i]) == 0) {
            rule.then = (enum then)i;
            break;
        }
    }
    rules[w] = rule;
    for (size_t i = 0; i < nconnections; i++) {
        connections[i]->flows[w].passed = 0;
    }
    return NULL;
}

static void clear(void)
{
    memset(rules, 0, sizeof rules);
    for (size_t i = 0; i < nconnections; i++) {
        connections[i]->frozen = false;
        if (connections[i]->lost) {
            both(connections[i], reset_fd);
        }
    }
}

static void obey(const json_t *command)
{
    const char *cmd = json_string_value(json_object_get(command, "cmd"));
    const char *error = NULL;

    if (cmd == NULL) {
        error = "not a command";
    } else if (strcmp(cmd, "rule") == 0) {
        error = set_rule(command);
    } else if (strcmp(cmd, "clear") == 0) {
        clear();
    } else if (strcmp(cmd, "reset") == 0) {
        for (size_t i = 0; i < nconnections; i++) {
            both(connections[i], reset_fd);
        }
    } else if (strcmp(cmd, "refuse") == 0) {
        if (json_is_true(json_object_get(command, "on"))) {
            close_fd(&listener);
        } else if (listener < 0) {
            open_listener();
        }
    } else if (strcmp(cmd, "stats") != 0) {
        error = "unknown command";
    }
    forget_closed();
    answer(error);
}

/* False: the end. */
static bool read_commands(void)
{
    static char line[LINE_BYTES];
    static size_t len;
    ssize_t n = read(STDIN_FILENO, line + len, sizeof line - len);
    char *end;

    if (n <= 0) {
        return false;
    }
    len += (size_t)n;
    while ((end = memchr(line, '\n', len)) != NULL) {
        size_t used = (size_t)(end - line) + 1;
        json_t *command = json_loadb(line, used - 1, 0, NULL);
        obey(command);
        json_decref(command);
        len -= used;
        memmove(line, line + used, len);
    }
    return len < sizeof line;
}

/* ---- the loop ---- */

static short wanted(const struct connection *connection, enum way way, uint64_t now_ns, bool *tick)
{
    const struct flow *in = &connection->flows[way], *out = &connection->flows[1 - way];
    const bool frozen = connection->frozen;
    short events = 0;

    if (!frozen && !in->ended && in->len < BUFFER_BYTES && in->nbursts < BURSTS_MAX) {
        events |= POLLIN;
    }
    if (!frozen && !connection->silent &&
        (out->len > 0 || (out->ended && !out->told) || fires(&rules[1 - way], out))) {
        bool now = out->len == 0 || allowed(out, &rules[1 - way], now_ns) > 0;
        events |= now ? POLLOUT : 0;
        *tick = *tick || !now;
    }
    return events;
}

static bool turn(void)
{
    static struct pollfd fds[2 + 2 * CONNECTIONS_MAX];
    uint64_t now_ns = kvb_now_ns(&kvb_clock_real);
    size_t n = nconnections;
    bool tick = false;

    fds[0] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = listener, .events = POLLIN};
    for (size_t i = 0; i < 2 * n; i++) {
        struct connection *connection = connections[i / 2];
        short events = wanted(connection, (enum way)(i % 2), now_ns, &tick);
        /* An end that is asked for nothing would be told of a hang-up again and again. */
        fds[2 + i] =
            (struct pollfd){.fd = events == 0 ? -1 : connection->fds[i % 2], .events = events};
    }
    if (poll(fds, (nfds_t)(2 + 2 * n), tick ? TICK_MS : -1) < 0 && errno != EINTR) {
        return false;
    }
    now_ns = kvb_now_ns(&kvb_clock_real);
    for (size_t i = 0; i < 2 * n; i++) {
        if ((fds[2 + i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
            take(connections[i / 2], (enum way)(i % 2), now_ns);
        }
    }
    for (size_t i = 0; i < 2 * n; i++) {
        give(connections[i / 2], (enum way)(i % 2), now_ns);
    }
    forget_closed();
    if (listener >= 0 && (fds[1].revents & POLLIN) != 0) {
        accept_one();
    }
    return (fds[0].revents & (POLLIN | POLLHUP)) == 0 || read_commands();
}

int main(int argc, char **argv)
{
    char host[64];
    unsigned port;

    signal(SIGPIPE, SIG_IGN);
    if (argc != 3 || sscanf(argv[2], "%63[0-9.]:%u", host, &port) != 2 ||
        inet_pton(AF_INET, host, &target.sin_addr) != 1) {
        fprintf(stderr, "usage: kvplane_proxy LISTEN-PORT HOST:PORT\n");
        return 2;
    }
    target.sin_family = AF_INET;
    target.sin_port = htons((uint16_t)port);
    listen_port = (uint16_t)atoi(argv[1]);
    open_listener();
    printf("ready 127.0.0.1:%u\n", listen_port);
    fflush(stdout);
    while (turn()) {
    }
    for (size_t i = 0; i < nconnections; i++) {
        both(connections[i], reset_fd);
    }
    forget_closed();
    return 0;
}
