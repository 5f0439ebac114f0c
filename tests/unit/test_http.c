/* SPDX-License-Identifier: Apache-2.0 */
/* The real server on a loopback port, spoken to byte by byte. */
#include "http/connections.h"
#include "http_client.h"
#include "rest_server.h"

#include <criterion/criterion.h>
#include <jansson.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static struct rest_server rest;

#define HOST "Host: x\r\n"

static void setup(void)
{
    rest_start(&rest, NULL, 0);
}

static void teardown(void)
{
    rest_stop(&rest);
}

TestSuite(http, .init = setup, .fini = teardown, .timeout = 600);
TestSuite(http_own, .timeout = 600); /* tests that start the server themselves */

/* ---- helpers ---- */

static uint32_t count_entries(const char *path)
{
    uint32_t n = 0;
    DIR *dir = opendir(path);
    cr_assert_not_null(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    closedir(dir);
    return n;
}

static uint32_t open_fds(void)
{
    return count_entries("/proc/self/fd");
}

static uint32_t threads(void)
{
    return count_entries("/proc/self/task");
}

/* Descriptors are closed by the HTTP thread a moment after the client's end. */
static void expect_fds(uint32_t want)
{
    struct timespec pause = {.tv_nsec = 2000000};
    for (uint32_t i = 0; open_fds() != want && i < HTTP_WAIT_MS / 2; i++) {
        nanosleep(&pause, NULL);
    }
    cr_expect_eq(open_fds(), want, "%u descriptors instead of %u", open_fds(), want);
}

static json_t *json_of(const struct http_answer *answer)
{
    return json_loadb(answer->body != NULL ? answer->body : "", answer->len, 0, NULL);
}

/* A complete answer in our shape: JSON object, its length, its request id. */
static void expect_shape(const struct http_answer *answer, int status, const char *what)
{
    cr_expect_eq(answer->status, status, "%s: %d %s", what, answer->status,
                 answer->body != NULL ? answer->body : "");
    cr_expect_not_null(http_header(answer, "Content-Length"), "%s", what);
    const char *type = http_header(answer, "Content-Type");
    cr_expect(type != NULL && strcmp(type, "application/json") == 0, "%s", what);
    cr_expect_not_null(http_header(answer, "X-Request-Id"), "%s", what);
    json_t *json = json_of(answer);
    cr_expect(json_is_object(json), "%s", what);
    if (status >= 400) {
        json_t *error = json_object_get(json, "error");
        cr_expect(json_is_string(json_object_get(error, "message")), "%s", what);
        cr_expect(json_is_string(json_object_get(error, "type")), "%s", what);
        cr_expect_not_null(json_object_get(error, "param"), "%s", what);
        cr_expect_eq(json_integer_value(json_object_get(error, "code")), status, "%s", what);
    }
    json_decref(json);
}

static void expect_param(const struct http_answer *answer, const char *param, const char *what)
{
    json_t *json = json_of(answer);
    const char *got = json_string_value(json_object_get(json_object_get(json, "error"), "param"));
    cr_expect(got != NULL && strcmp(got, param) == 0, "%s: %s instead of %s", what,
              got != NULL ? got : "null", param);
    json_decref(json);
}

static void expect_health(void)
{
    struct http_answer answer = http_ask(rest.port, "GET", "/health", NULL, NULL);
    cr_expect_eq(answer.status, 200);
    http_answer_free(&answer);
}

/* ---- answers ---- */

Test(http, every_route_answers_in_the_one_shape_with_and_without_a_slash)
{
    for (uint32_t i = 0; i < KVP_ROUTE_COUNT; i++) {
        const struct kvp_route *route = &kvp_routes[i];
        static const char all[] =
            "{\"init_info\": {}, \"update_info\": {}, \"new_version\": \"1\", "
            "\"method\": \"reload_weights\", \"action\": \"compare\", "
            "\"lora_name\": \"a\", \"force\": true, "
            "\"quota_bytes\": \"none\"}"; /* what any of them needs */
        const char *body = route->method == KVP_POST ? all : NULL;
        char path[128];
        if (route->where == KVP_STATIC) {
            continue; /* test_page.c */
        }
        snprintf(path, sizeof path, "%s", route->path);
        char *brace = strchr(path, '{');
        int status = strstr(path, "/objects") == NULL ? 200 : 400; /* without a key */
        if (brace != NULL) {
            bool instance = strstr(path, "instances") != NULL;
            bool tenant = strstr(path, "tenants") != NULL;
            bool call = route->id == KVP_ROUTE_engine_call;
            snprintf(brace, 64, "%s%s",
                     instance ? "engine-0"
                     : tenant ? "default"
                     : call   ? "pause_generation"
                              : "7",
                     strchr(strchr(route->path, '{'), '}') + 1);
            status = instance || tenant || call ? 200 : 404;
        }
        for (int slash = 0; slash < 2; slash++) {
            struct http_answer answer =
                http_ask(rest.port, route->method == KVP_GET ? "GET" : "POST", path, NULL, body);
            if (route->id == KVP_ROUTE_metrics || route->id == KVP_ROUTE_openapi) {
                cr_expect_eq(answer.status, 200);
                cr_expect(answer.len > 0 && answer.body[answer.len - 1] == '\n');
            } else if (route->id == KVP_ROUTE_get_load) {
                cr_expect_eq(answer.status, 200);
                cr_expect_eq(answer.body[0], '['); /* as its clients read it */
            } else {
                expect_shape(&answer, status, path);
            }
            http_answer_free(&answer);
            strcat(path, "/");
        }
    }
}

/* What comes on a connection until it holds `want`; false: it ended, or not in time. */
static bool read_until(int fd, char *text, size_t cap, const char *want)
{
    size_t used = strlen(text);
    while (strstr(text, want) == NULL) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (used + 1 >= cap || poll(&wait, 1, HTTP_WAIT_MS) != 1) {
            return false;
        }
        ssize_t n = read(fd, text + used, cap - used - 1);
        if (n <= 0) {
            return false;
        }
        used += (size_t)n;
        text[used] = '\0';
    }
    return true;
}

#define STREAM "GET /v1/kvplane/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"

Test(http, events_come_as_a_page_or_as_a_stream_that_goes_on_where_it_was)
{
    char text[8192] = "";
    kvp_events_add(rest.events, "engine-0", "sleep", "ok");
    struct http_answer answer = http_ask(rest.port, "GET", "/v1/kvplane/events", NULL, NULL);
    expect_shape(&answer, 200, "page");
    cr_expect_not_null(strstr(answer.body, "\"next\":1"));
    http_answer_free(&answer);

    int fd = http_connect(rest.port);
    http_send_text(fd, STREAM "\r\n");
    cr_assert(read_until(fd, text, sizeof text, "\"id\":1"), "%s", text);
    cr_expect_not_null(strstr(text, "text/event-stream"));
    /* nothing is new: it sleeps, and wakes */
    for (int i = 2; i < 6; i++) {
        char want[32];
        kvp_events_add(rest.events, "engine-0", "wake", "ok");
        kvp_http_wake(rest.http, false);
        snprintf(want, sizeof want, "\"id\":%d", i);
        cr_assert(read_until(fd, text, sizeof text, want), "%s", text);
    }
    text[0] = '\0';
    kvp_http_wake(rest.http, true);
    cr_assert(read_until(fd, text, sizeof text, ": \n\n"), "%s", text);
    close(fd);

    text[0] = '\0';
    fd = http_connect(rest.port);
    http_send_text(fd, STREAM "Last-Event-ID: 4\r\n\r\n");
    cr_assert(read_until(fd, text, sizeof text, "\"id\":5"), "%s", text);
    cr_expect_null(strstr(text, "\"id\":4"));
    close(fd);
}

Test(http, streams_are_limited_and_end_with_their_client_or_the_daemon)
{
    char text[8192];
    int fds[KVP_HTTP_STREAMS_MAX];
    kvp_events_add(rest.events, "engine-0", "sleep", "ok");
    for (int i = 0; i < KVP_HTTP_STREAMS_MAX; i++) {
        text[0] = '\0';
        fds[i] = http_connect(rest.port);
        http_send_text(fds[i], STREAM "\r\n");
        cr_assert(read_until(fds[i], text, sizeof text, "\"id\":1"), "%d %s", i, text);
    }
    struct http_answer answer =
        http_ask(rest.port, "GET", "/v1/kvplane/events", "Accept: text/event-stream\r\n", NULL);
    expect_shape(&answer, 503, "one too many");
    http_answer_free(&answer);
    answer = http_ask(rest.port, "GET", "/health", NULL, NULL);
    expect_shape(&answer, 200, "a probe beside them");
    http_answer_free(&answer);
    close(fds[0]); /* noticed when there is something to say */
    int fd = -1;
    for (int tries = 0; tries < 1000 && fd < 0; tries++) {
        kvp_http_wake(rest.http, true);
        text[0] = '\0';
        fd = http_connect(rest.port);
        http_send_text(fd, STREAM "\r\n");
        cr_assert(read_until(fd, text, sizeof text, "\r\n\r\n"));
        if (strncmp(text, "HTTP/1.1 200", 12) != 0) {
            close(fd);
            fd = -1;
        }
    }
    cr_assert_geq(fd, 0);
    fds[0] = fd;
    rest_stop(&rest); /* ends them all: it does not wait for their clients */
    for (int i = 0; i < KVP_HTTP_STREAMS_MAX; i++) {
        while (read(fds[i], text, sizeof text) > 0) {
        }
        close(fds[i]);
    }
    rest_start(&rest, NULL, 0);
}

Test(http, metrics_and_contract_have_their_types)
{
    struct http_answer answer = http_ask(rest.port, "GET", "/metrics", NULL, NULL);
    cr_expect_eq(strncmp(http_header(&answer, "Content-Type"), "text/plain; version=0.0.4", 25), 0);
    cr_expect(strstr(answer.body, "\nkvplane_test 1\n") != NULL, "%s", answer.body);
    http_answer_free(&answer);
    answer = http_ask(rest.port, "GET", "/openapi.yaml", NULL, NULL);
    cr_expect_str_eq(http_header(&answer, "Content-Type"), "application/yaml");
    cr_expect(strstr(answer.body, "\nopenapi: 3.") != NULL);
    http_answer_free(&answer);
}

Test(http, head_is_answered_where_get_is)
{
    static const char *const paths[] = {"/health", "/is_sleeping", "/metrics", "/weight_info"};
    int fd = http_connect(rest.port);

    for (size_t i = 0; i < 4; i++) { /* one connection: a body would garble the next answer */
        char request[128];
        snprintf(request, sizeof request, "HEAD %s HTTP/1.1\r\n" HOST "\r\n", paths[i]);
        cr_assert(http_send_text(fd, request));
        struct http_answer answer = http_receive(fd, true);
        cr_expect_eq(answer.status, 200);
        cr_expect(strtoul(http_header(&answer, "Content-Length"), NULL, 10) > 0);
        http_answer_free(&answer);
    }
    close(fd);
}

Test(http, unknown_routes_and_wrong_methods_are_told)
{
    static const struct {
        const char *method;
        const char *path;
        int status;
        const char *allow;
    } cases[] = {
        {"GET", "/nosuch", 404, NULL},
        {"GET", "//health", 404, NULL},
        {"GET", "/health//", 404, NULL},
        {"GET", "//", 404, NULL},
        {"GET", "/page/none", 404, NULL},
        {"POST", "/", 405, "GET, HEAD"},
        {"GET", "/v1%2Fkvplane/instances", 404, NULL},
        {"GET", "/v1/kvplane/instances/a%2Fb", 404, NULL},
        {"GET", "/health%00", 400, NULL},
        {"POST", "/sleep%00x", 400, NULL},
        {"POST", "/sleep%2", 400, NULL},
        {"GET", "/sleep", 405, "POST"},
        {"PUT", "/sleep", 405, "POST"},
        {"DELETE", "/sleep", 405, "POST"},
        {"HEAD", "/sleep", 405, "POST"},
        {"OPTIONS", "/health", 405, "GET, HEAD"},
        {"HEAD", "/flush_cache", 405, "GET, POST"}, /* a HEAD does nothing */
        {"PUT", "/release_memory_occupation", 405, "GET, POST"},
        {"POST", "/health", 405, "GET, HEAD"},
        {"BREW", "/health", 405, "GET, HEAD"},
        {"OPTIONS", "*", 404, NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_answer answer = http_ask(rest.port, cases[i].method, cases[i].path, NULL, NULL);
        if (strcmp(cases[i].method, "HEAD") == 0) {
            cr_expect_eq(answer.status, cases[i].status);
        } else {
            expect_shape(&answer, cases[i].status, cases[i].path);
        }
        const char *allow = http_header(&answer, "Allow");
        cr_expect_eq(allow != NULL, cases[i].allow != NULL, "%s", cases[i].path);
        if (allow != NULL && cases[i].allow != NULL) {
            cr_expect_str_eq(allow, cases[i].allow);
        }
        http_answer_free(&answer);
    }
    cr_expect_eq(rest_calls(&rest), 0);
    struct http_answer answer = http_ask(rest.port, "GET", "http://elsewhere:1/health", NULL, NULL);
    cr_expect_eq(answer.status, 200, "absolute form, as proxies send it");
    http_answer_free(&answer);
}

Test(http, a_request_id_is_taken_if_sane_else_made)
{
    static const char *const bad[] = {
        "X-Request-Id: \r\n", "X-Request-Id: a b\r\n", "X-Request-Id: a\"b\r\n",
        "X-Request-Id: 0123456789012345678901234567890123456789012345678901234567890123\r\n"};
    struct http_answer answer =
        http_ask(rest.port, "POST", "/pause", "X-Request-Id: step-7.A_b:c\r\n", NULL);
    cr_expect_str_eq(http_header(&answer, "X-Request-Id"), "step-7.A_b:c");
    http_answer_free(&answer);
    pthread_mutex_lock(&rest.lock);
    cr_expect_str_eq(fake_fleet_last(&rest.fleet)->request_id, "step-7.A_b:c");
    pthread_mutex_unlock(&rest.lock);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        answer = http_ask(rest.port, "GET", "/nosuch", bad[i], NULL);
        const char *id = http_header(&answer, "X-Request-Id");
        cr_expect_eq(strlen(id), KVB_ID_HEX_LEN, "%s", id);
        cr_expect_eq(strspn(id, "0123456789abcdef"), KVB_ID_HEX_LEN);
        http_answer_free(&answer);
    }
}

Test(http, bad_parameters_are_named_and_change_nothing)
{
    static const struct {
        const char *target;
        const char *body;
        const char *param;
    } cases[] = {
        {"/reset_prefix_cache?reset_external", NULL, "query.reset_external"},
        {"/reset_prefix_cache?reset_external=", NULL, "query.reset_external"},
        {"/reset_prefix_cache?reset_external=2", NULL, "query.reset_external"},
        {"/sleep?level", NULL, "query.level"},
        {"/sleep?level=3", NULL, "query.level"},
        {"/sleep?level=-1", NULL, "query.level"},
        {"/sleep?level=invalid", NULL, "query.level"},
        {"/sleep?level=1.5", NULL, "query.level"},
        {"/sleep?level=2%20", NULL, "query.level"},
        {"/sleep?level=%00", NULL, "query"},
        {"/sleep?mode=invalid", NULL, "query.mode"},
        {"/sleep?mode=WAIT", NULL, "query.mode"},
        {"/sleep?instance=a/b", NULL, "query.instance"},
        {"/sleep", "{\"level\": 3}", "body.level"},
        {"/sleep", "{\"level\": 3", "body"},
        {"/sleep", "level=2", "body"},
        {"/sleep", "[1]", "body"},
        {"/sleep", "2", "body"},
        {"/sleep", "{\"a\": \"\\u0000\"}", "body"},
        {"/sleep", "{\"a\": \"\xff\"}", "body"},
        {"/sleep", "{} {}", "body"},
        {"/pause", "{\"mode\": \"stop\"}", "body.mode"},
        {"/wake_up", "{\"tags\": [1]}", "body.tags"},
        {"/collective_rpc", "{}", "body.method"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_answer answer =
            http_ask(rest.port, "POST", cases[i].target, NULL, cases[i].body);
        expect_shape(&answer, 400, cases[i].target);
        expect_param(&answer, cases[i].param, cases[i].target);
        http_answer_free(&answer);
    }
    cr_expect_eq(rest_calls(&rest), 0);
}

/* What is near the mistake is repeated. */
Test(http, a_body_that_is_no_json_is_told_in_text)
{
    struct http_answer answer = http_ask(rest.port, "POST", "/pause", NULL, "[[\x1b[2J]]");
    cr_assert_eq(answer.status, 400);
    cr_assert_null(strstr(answer.body, "u001"), "%s", answer.body);
    http_answer_free(&answer);
}

Test(http, odd_but_legal_queries_are_served)
{
    static const char *const targets[] = {
        "/reset_prefix_cache?",
        "/reset_prefix_cache?&",
        "/reset_prefix_cache?=true",
        "/reset_prefix_cache?reset_external=TRUE",
        "/wake_up?tags",
        "/wake_up?tags=",
        "/sleep?LEVEL=2",
        "/sleep?levle=2",
        "/sleep?level=2#x",
        "/pause/?mode=keep",
        "/reset_prefix_cache?reset_external=true&reset_external=false",
    };

    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        struct http_answer answer = http_ask(rest.port, "POST", targets[i], NULL, NULL);
        int want = strchr(targets[i], '#') != NULL ? 400 : 200;
        expect_shape(&answer, want, targets[i]);
        http_answer_free(&answer);
    }
}

/* ---- framing ---- */

Test(http, bodies_of_every_framing_are_read)
{
    static const char *const requests[] = {
        "POST /sleep HTTP/1.1\r\n" HOST "\r\n",
        "POST /sleep HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n",
        "POST /sleep HTTP/1.1\r\n" HOST
        "Content-Type: application/octet-stream\r\nContent-Length: 0\r\n\r\n",
        "POST /sleep HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\n{}",
        "POST /sleep HTTP/1.1\r\n" HOST "Transfer-Encoding: Chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n"
        "0\r\n\r\n",
        "POST /sleep HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n0\r\nTrailer: x\r\n\r\n",
        "GET /health HTTP/1.1\r\n" HOST "Content-Length: 37\r\n\r\nPOST /pause HTTP/1.1\r\n"
        "Host: localhst\r\n",
        "GET /weight_info HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\n{}",
        "GET /nosuch HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nabcd",
        "PUT /sleep HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nabcd",
        "POST /sleep?level=9 HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nabcd",
    };
    static const int statuses[] = {200, 200, 200, 200, 200, 200, 200, 200, 404, 405, 400};
    size_t n = sizeof requests / sizeof requests[0];
    int pipelined = http_connect(rest.port);
    int kept = http_connect(rest.port);

    for (size_t i = 0; i < n; i++) { /* one after the other, and all at once */
        cr_assert(http_send_text(kept, requests[i]));
        struct http_answer answer = http_receive(kept, false);
        expect_shape(&answer, statuses[i], requests[i]);
        http_answer_free(&answer);
        cr_assert(http_send_text(pipelined, requests[i]));
    }
    for (size_t i = 0; i < n; i++) {
        struct http_answer answer = http_receive(pipelined, false);
        expect_shape(&answer, statuses[i], requests[i]);
        http_answer_free(&answer);
    }
    close(kept);
    close(pipelined);
    cr_expect_eq(rest_calls(&rest), 12);
}

Test(http, expectations_are_met_or_refused)
{
    int fd = http_connect(rest.port);
    http_send_text(fd, "POST /pause HTTP/1.1\r\n" HOST
                       "Expect: 100-continue\r\nContent-Length: 2048\r\n\r\n");
    struct http_answer answer = http_receive(fd, true);
    cr_expect_eq(answer.status, 100);
    cr_expect_null(http_header(&answer, "Content-Length"));
    http_answer_free(&answer);
    char body[2049];
    snprintf(body, sizeof body, "{\"x\":%2041s", "1}");
    cr_assert_eq(strlen(body), 2046);
    http_send_text(fd, body);
    http_send_text(fd, "  ");
    answer = http_receive(fd, false);
    expect_shape(&answer, 200, "after 100");
    http_answer_free(&answer);
    close(fd);

    fd = http_connect(rest.port); /* refused before the client sends what is too large */
    http_send_text(fd, "POST /pause HTTP/1.1\r\n" HOST
                       "Expect: 100-continue\r\nContent-Length: 2000000\r\n\r\n");
    answer = http_receive(fd, false);
    expect_shape(&answer, 413, "100-continue");
    cr_expect(http_closed(fd));
    http_answer_free(&answer);
    close(fd);

    answer = http_ask(rest.port, "POST", "/pause", "Expect: foo\r\n", NULL);
    expect_shape(&answer, 417, "Expect: foo");
    http_answer_free(&answer);
    cr_expect_eq(rest_calls(&rest), 1);
}

/* ---- sizes ---- */

static char *filled(size_t len, char with)
{
    char *text = malloc(len + 1);
    cr_assert_not_null(text);
    memset(text, with, len);
    text[len] = '\0';
    return text;
}

Test(http, heads_have_limits)
{
    static const struct {
        size_t target;
        size_t header;
        unsigned headers;
        int status;
        bool whole; /* it is read to its end before it is refused */
    } cases[] = {
        {8000, 0, 0, 404, true},     {9000, 0, 0, 414, true},    {65536, 0, 0, 414, false},
        {1 << 20, 0, 0, 414, false}, {10, 8192, 0, 404, true},   {10, 30000, 0, 404, true},
        {10, 33000, 0, 431, true},   {10, 65536, 0, 431, false}, {10, 1 << 20, 0, 431, false},
        {10, 0, 90, 404, true},      {10, 0, 200, 431, true},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *target = filled(cases[i].target, 'a');
        char *value = filled(cases[i].header, 'v');
        int fd = http_connect(rest.port);
        bool sent = http_send_text(fd, "GET /") && http_send_text(fd, target) &&
                    http_send_text(fd, " HTTP/1.1\r\n" HOST "X: ") && http_send_text(fd, value) &&
                    http_send_text(fd, "\r\n");
        for (unsigned j = 0; sent && j < cases[i].headers; j++) {
            sent = http_send_text(fd, "Y: z\r\n");
        }
        sent = sent && http_send_text(fd, "\r\n");
        struct http_answer answer = http_receive(fd, false);
        if (cases[i].whole || answer.status != 0) { /* else it may have hung up on us */
            expect_shape(&answer, cases[i].status, "limits");
        }
        http_answer_free(&answer);
        close(fd);
        free(target);
        free(value);
    }
    expect_health();
}

Test(http, a_query_of_thousands_of_parameters_is_read_and_answered)
{
    static const unsigned counts[] = {10, 1000, 2000, 4000};

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        int fd = http_connect(rest.port);
        char *query = filled(2 * (size_t)counts[i], 'a');
        for (size_t j = 1; j < 2 * (size_t)counts[i]; j += 2) {
            query[j] = '&';
        }
        cr_assert(http_send_text(fd, "POST /sleep?") && http_send_text(fd, query) &&
                  http_send_text(fd, "level=7 HTTP/1.1\r\n" HOST "\r\n"));
        struct http_answer answer = http_receive(fd, false);
        expect_shape(&answer, 400, "many parameters");
        cr_expect_not_null(strstr(answer.body, "query.level"), "%u: %s", counts[i], answer.body);
        http_answer_free(&answer);
        close(fd);
        free(query);
    }
    expect_health();
}

/* Sends a body of len bytes, a JSON object, in pieces of 64 KiB. */
static struct http_answer send_body(const char *path, size_t len, bool chunked)
{
    size_t piece = 64u << 10;
    char *text = filled(len, 'x');
    char line[128];
    int fd = http_connect(rest.port);
    bool sent = true;

    memcpy(text, "{\"b\":\"", 6);
    memcpy(text + len - 2, "\"}", 2);
    snprintf(line, sizeof line, "POST %s HTTP/1.1\r\n" HOST, path);
    http_send_text(fd, line);
    if (chunked) {
        snprintf(line, sizeof line, "Transfer-Encoding: chunked\r\n\r\n");
    } else {
        snprintf(line, sizeof line, "Content-Length: %zu\r\n\r\n", len);
    }
    http_send_text(fd, line);
    for (size_t at = 0; sent && at < len; at += piece) {
        size_t n = len - at < piece ? len - at : piece;
        if (chunked) {
            snprintf(line, sizeof line, "%zx\r\n", n);
            http_send_text(fd, line);
        }
        sent = http_send(fd, text + at, n) && (!chunked || http_send_text(fd, "\r\n"));
    }
    if (chunked) {
        http_send_text(fd, "0\r\n\r\n");
    }
    struct http_answer answer = http_receive(fd, false);
    http_answer_free(&answer);
    cr_expect(http_send_text(fd, "GET /livez HTTP/1.1\r\n" HOST "\r\n"));
    struct http_answer next = http_receive(fd, false); /* the connection is still good */
    expect_shape(&next, 200, "after a large body");
    http_answer_free(&next);
    close(fd);
    free(text);
    return answer;
}

Test(http, bodies_have_limits_and_are_read_to_their_end)
{
    for (int chunked = 0; chunked < 2; chunked++) {
        cr_expect_eq(send_body("/sleep", KVP_BODY_SMALL, chunked).status, 200);
        cr_expect_eq(send_body("/sleep", KVP_BODY_SMALL + 1, chunked).status, 413);
        cr_expect_eq(send_body("/sleep", 8u << 20, chunked).status, 413);
        cr_expect_eq(send_body("/nosuch", 1u << 20, chunked).status, 404);
    }
    cr_expect_eq(rest_calls(&rest), 2);
}

Test(http, bodies_for_the_engine_may_be_large_and_arrive_whole)
{
    rest_hold(&rest, false);
    for (int chunked = 0; chunked < 2; chunked++) {
        cr_expect_eq(send_body("/update_weights", KVP_BODY_RELAY, chunked).status, 200);
        pthread_mutex_lock(&rest.lock);
        cr_expect_eq(fake_fleet_last(&rest.fleet)->ask.body_len, KVP_BODY_RELAY);
        pthread_mutex_unlock(&rest.lock);
        cr_expect_eq(send_body("/update_weights", KVP_BODY_RELAY + 1, chunked).status, 413);
    }
    cr_expect_eq(rest_calls(&rest), 2);
}

Test(http, a_body_of_too_many_values_is_refused)
{
    size_t n = 3u << 20;
    char *body = filled(n, ',');
    memcpy(body, "{\"a\":[1", 7);
    for (size_t i = 8; i < n; i += 2) {
        body[i] = '1';
    }
    memcpy(body + n - 3, "1]}", 3);
    struct http_answer answer = http_ask(rest.port, "POST", "/update_weights", NULL, body);
    expect_shape(&answer, 413, "values");
    http_answer_free(&answer);
    free(body);
    cr_expect_eq(rest_calls(&rest), 0);
}

Test(http, parameters_in_large_bodies_are_read_and_judged)
{
    char *body = filled(300000, 'x');
    memcpy(body, "{\"weight_version\":\"v5\",\"b\":\"", 28);
    memcpy(body + 300000 - 2, "\"}", 2);
    struct http_answer answer = http_ask(rest.port, "POST", "/update_weights", NULL, body);
    expect_shape(&answer, 200, "large");
    cr_expect(strstr(answer.body, "\"weight_version\":\"v5\"") != NULL, "%s", answer.body);
    http_answer_free(&answer);
    memcpy(body, "{\"weight_version\":[\"\"],\"b\":\"", 28);
    answer = http_ask(rest.port, "POST", "/update_weights", NULL, body);
    expect_shape(&answer, 400, "large and wrong");
    expect_param(&answer, "body.weight_version", "large and wrong");
    http_answer_free(&answer);
    body[0] = '[';
    answer = http_ask(rest.port, "POST", "/update_weights", NULL, body);
    expect_shape(&answer, 400, "large and no object");
    http_answer_free(&answer);
    free(body);
    cr_expect_eq(rest_calls(&rest), 1);
}

Test(http, an_endless_refused_body_ends_the_connection)
{
    int fd = http_connect(rest.port);
    char *text = filled(1u << 20, 'x');
    uint64_t sent = 0;

    http_send_text(fd, "POST /sleep HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
    while (sent < 4ull * KVP_HTTP_DISCARD_MAX && http_send_text(fd, "100000\r\n") &&
           http_send(fd, text, 1u << 20) && http_send_text(fd, "\r\n")) {
        sent += 1u << 20;
    }
    cr_expect_lt(sent, 4ull * KVP_HTTP_DISCARD_MAX);
    free(text);
    close(fd);
    expect_health();
}

/* ---- waiting ---- */

#define WAITING 60

Test(http, no_thread_waits_and_probes_go_on_while_requests_wait)
{
    int fds[WAITING];
    uint32_t before = open_fds();
    uint32_t threads_before = threads();

    rest_hold(&rest, true);
    for (int i = 0; i < WAITING; i++) {
        fds[i] = http_connect(rest.port);
        http_send_text(fds[i], "POST /sleep HTTP/1.1\r\n" HOST "\r\n");
    }
    cr_assert(rest_wait_calls(&rest, WAITING));
    cr_expect_eq(threads(), threads_before);
    for (int i = 0; i < 20; i++) {
        expect_health();
    }
    rest_finish(&rest);
    for (int i = 0; i < WAITING; i++) {
        struct http_answer answer = http_receive(fds[i], false);
        expect_shape(&answer, 200, "waited");
        http_answer_free(&answer);
        close(fds[i]);
    }
    expect_fds(before);
}

Test(http, clients_that_vanish_cancel_nothing_and_leave_nothing)
{
    uint32_t before = open_fds();

    rest_hold(&rest, true);
    for (int i = 0; i < WAITING; i++) {
        int fd = http_connect(rest.port);
        http_send_text(fd, "POST /sleep HTTP/1.1\r\n" HOST "\r\n");
        cr_assert(rest_wait_calls(&rest, (uint32_t)i + 1));
        if (i % 2 == 0) { /* with a reset instead of an orderly end */
            struct linger now = {.l_onoff = 1};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        }
        close(fd);
    }
    expect_health();
    pthread_mutex_lock(&rest.lock);
    for (uint32_t i = 0; i < WAITING; i++) {
        cr_expect(rest.fleet.calls[i].open, "canceled by the client's end");
    }
    pthread_mutex_unlock(&rest.lock);
    rest_finish(&rest);
    expect_fds(before);
    expect_health();
}

/* Gives the HTTP thread something to do for a while: n requests at once on one connection. */
static int keep_busy(int n)
{
    static const char request[] = "HEAD /openapi.yaml HTTP/1.1\r\n" HOST "\r\n";
    size_t len = sizeof request - 1;
    char *text = malloc((size_t)n * len);
    int fd = http_connect(rest.port);

    cr_assert_not_null(text);
    for (int i = 0; i < n; i++) {
        memcpy(text + (size_t)i * len, request, len);
    }
    cr_assert(http_send(fd, text, (size_t)n * len));
    free(text);
    return fd;
}

Test(http, an_end_that_comes_with_half_a_request_is_seen)
{
    uint32_t before = open_fds();
    int busy = keep_busy(800);

    for (int i = 0; i < 50; i++) { /* data and end are there before the server looks */
        int fd = http_connect(rest.port);
        http_send_text(fd, "POST /sleep HTTP/1.1\r\nHos");
        close(fd);
    }
    for (int i = 0; i < 800; i++) {
        struct http_answer answer = http_receive(busy, true);
        cr_assert_eq(answer.status, 200);
        http_answer_free(&answer);
    }
    close(busy);
    expect_fds(before);
}

Test(http, vanishing_in_the_middle_of_a_request_leaves_nothing)
{
    static const char request[] =
        "POST /update_weights?x=y HTTP/1.1\r\n" HOST "Content-Length: 12\r\n\r\n{\"abc\": 123}";
    uint32_t before = open_fds();

    for (size_t cut = 1; cut < sizeof request - 1; cut++) {
        int fd = http_connect(rest.port);
        http_send(fd, request, cut);
        close(fd);
    }
    expect_fds(before);
    expect_health();
    cr_expect_eq(rest_calls(&rest), 0);
}

Test(http_own, too_many_in_flight_are_told_to_come_back)
{
    rest_start(&rest, NULL, 4);
    int fds[4];

    rest_hold(&rest, true);
    for (int i = 0; i < 4; i++) {
        fds[i] = http_connect(rest.port);
        http_send_text(fds[i], "POST /sleep HTTP/1.1\r\n" HOST "\r\n");
    }
    cr_assert(rest_wait_calls(&rest, 4));
    struct http_answer answer = http_ask(rest.port, "POST", "/sleep", NULL, NULL);
    expect_shape(&answer, 503, "full");
    cr_expect_str_eq(http_header(&answer, "Retry-After"), "1");
    http_answer_free(&answer);
    expect_health();
    rest_finish(&rest);
    for (int i = 0; i < 4; i++) {
        answer = http_receive(fds[i], false);
        cr_expect_eq(answer.status, 200);
        http_answer_free(&answer);
        close(fds[i]);
    }
    rest_hold(&rest, false);
    answer = http_ask(rest.port, "POST", "/sleep", NULL, NULL);
    cr_expect_eq(answer.status, 200);
    http_answer_free(&answer);
    rest_stop(&rest);
}

Test(http, what_a_body_has_in_its_lists_is_not_lost)
{
    /* A tag that is no text is refused where the list is read. */
    struct http_answer answer = http_ask(rest.port, "POST", "/collective_rpc", NULL,
                                         "{\"method\":\"skyrl_wake_for_weight_sync\","
                                         "\"kwargs\":{\"tags\":[7]}}");
    expect_shape(&answer, 400, "a tag");
    http_answer_free(&answer);
    /* One key too few: what is read is the list's, and not its first level. */
    answer =
        http_ask(rest.port, "POST", "/v1/kvplane/objects/exists", NULL, "{\"keys\":[\"6b3\"]}");
    expect_shape(&answer, 400, "a key");
    cr_expect(strstr(answer.body, "hex digits") != NULL, "%s", answer.body);
    http_answer_free(&answer);
}

Test(http, respond_async_is_202_with_location_only_when_asked)
{
    rest_hold(&rest, true);
    struct http_answer answer =
        http_ask(rest.port, "POST", "/sleep", "Prefer: wait=5, Respond-Async\r\n", NULL);
    expect_shape(&answer, 202, "async");
    cr_expect_str_eq(http_header(&answer, "Location"), "/v1/kvplane/operations/1");
    http_answer_free(&answer);
    rest_hold(&rest, false);
    rest_finish(&rest);
    answer = http_ask(rest.port, "POST", "/sleep", "Prefer: respond-asynchronously\r\n", NULL);
    expect_shape(&answer, 200, "not asked");
    cr_expect_null(http_header(&answer, "Location"));
    http_answer_free(&answer);
}

/* ---- many and slow connections ---- */

static void allow_many_fds(void)
{
    struct rlimit files;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max < 8192 ? files.rlim_max : 8192;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
}

#define IDLE 1000

Test(http_own, a_thousand_idle_connections_are_kept_and_cost_no_thread)
{
    static int fds[IDLE];

    allow_many_fds();
    rest_start(&rest, NULL, 0);
    uint32_t before = open_fds();
    uint32_t threads_before = threads();
    for (int i = 0; i < IDLE; i++) {
        fds[i] = http_connect(rest.port);
        cr_assert(fds[i] >= 0);
        cr_assert(http_send_text(fds[i], "GET /health HTTP/1.1\r\n" HOST "\r\n"));
        struct http_answer answer = http_receive(fds[i], false);
        cr_assert_eq(answer.status, 200);
        http_answer_free(&answer);
    }
    cr_expect_eq(open_fds(), before + 2 * IDLE);
    cr_expect_eq(threads(), threads_before);
    expect_health();
    for (int i = 0; i < IDLE; i += 100) { /* they still work */
        cr_assert(http_send_text(fds[i], "GET /health HTTP/1.1\r\n" HOST "\r\n"));
        struct http_answer answer = http_receive(fds[i], false);
        cr_expect_eq(answer.status, 200);
        http_answer_free(&answer);
    }
    for (int i = 0; i < IDLE; i++) {
        close(fds[i]);
    }
    expect_fds(before);
    rest_stop(&rest);
    cr_expect_eq(threads(), threads_before - 3); /* HTTP thread, parser and loop */
}

#define CROWD 600

Test(http_own, all_of_a_crowd_that_comes_at_once_are_let_in)
{
    static int fds[CROWD];
    struct kvp_http_config config = {.connections_max = 2 * CROWD};

    allow_many_fds();
    rest_start(&rest, &config, 0);
    uint32_t before = open_fds();
    int busy = keep_busy(2000); /* so that they all wait when it looks */
    for (int i = 0; i < CROWD; i++) {
        fds[i] = http_connect(rest.port);
        cr_assert(fds[i] >= 0);
    }
    close(busy);
    for (int i = 0; i < CROWD; i++) {
        cr_assert(http_send_text(fds[i], "GET /health HTTP/1.1\r\n" HOST "\r\n"));
    }
    for (int i = 0; i < CROWD; i++) {
        struct http_answer answer = http_receive(fds[i], false);
        cr_assert_eq(answer.status, 200, "%d", i);
        http_answer_free(&answer);
        close(fds[i]);
    }
    expect_fds(before);
    rest_stop(&rest);
}

#define LIMIT 64

/* Opens LIMIT + 50 connections that got as far as text, and asks for health with each. */
static void crowd(const char *text)
{
    struct kvp_http_config config = {.connections_max = LIMIT};
    int fds[LIMIT + 50];
    uint32_t closed = 0;

    rest_start(&rest, &config, 0);
    uint32_t before = open_fds();
    for (int i = 0; i < LIMIT + 50; i++) {
        fds[i] = http_connect(rest.port);
        http_send_text(fds[i], text);
        expect_health();
    }
    for (int i = 0; i < LIMIT + 50; i++) {
        char byte;
        closed += recv(fds[i], &byte, 1, MSG_DONTWAIT) == 0;
        close(fds[i]);
    }
    cr_expect(closed >= 50, "%u closed to make room", closed);
    expect_fds(before);
    expect_health();
    rest_stop(&rest);
}

Test(http_own, connections_leave_descriptors_to_the_rest_of_the_process)
{
    static const struct {
        uint32_t reserved, allowed;
    } cases[] = {{500, 200}, {5000, 175}}; /* a quarter at least */
    enum { OVER = 60, MOST = 200 + OVER };

    for (int c = 0; c < 2; c++) {
        struct kvp_http_config config = {.fds_reserved = cases[c].reserved};
        int n = (int)cases[c].allowed + OVER;
        int fds[MOST], closed = 0;
        cr_assert_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){700, 700}), 0);
        rest_start(&rest, &config, 0);
        for (int i = 0; i < n; i++) {
            fds[i] = http_connect(rest.port);
            expect_health();
        }
        for (int i = 0; i < n; i++) {
            char byte;
            closed += recv(fds[i], &byte, 1, MSG_DONTWAIT) == 0;
            close(fds[i]);
        }
        cr_expect(closed >= OVER && closed <= OVER + 5, "%d closed", closed);
        rest_stop(&rest);
    }
}

Test(http_own, idle_connections_beyond_the_limit_make_room)
{
    crowd("");
}

Test(http_own, slow_senders_beyond_the_limit_make_room)
{
    crowd("POST /sleep HTTP/1.1\r\nHost: x\r\nX: ");
}

Test(http_own, slow_bodies_beyond_the_limit_make_room)
{
    crowd("POST /sleep HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{");
}

/* Asks for more than both ends' buffers hold, and reads its first bytes alone. */
static int deaf_client(void)
{
    static const char request[] = "GET /openapi.yaml HTTP/1.1\r\n" HOST "\r\n";
    int fd = http_connect(rest.port);
    int size = 4096;
    char start[16];

    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size), 0);
    for (int i = 0; i < 100; i++) {
        (void)http_send_text(fd, request);
    }
    cr_assert_eq(recv(fd, start, sizeof start, MSG_WAITALL), sizeof start);
    return fd;
}

Test(http_own, those_that_do_not_read_their_answers_make_room)
{
    struct kvp_http_config config = {.connections_max = 16};
    int deaf[48];

    rest_start(&rest, &config, 0);
    uint32_t before = open_fds();
    for (int i = 0; i < 48; i++) {
        deaf[i] = deaf_client();
        expect_health();
    }
    for (int i = 0; i < 48; i++) {
        close(deaf[i]);
    }
    expect_fds(before);
    rest_stop(&rest);
}

/* Streams have no end: they take a quarter, so that a call finds its place beside any number of
 * them. */
Test(http_own, no_more_than_half_of_all_wait_for_an_answer)
{
    static const int admitted[] = {8, 4};
    static const char *const asks[] = {"POST /sleep HTTP/1.1\r\n" HOST "\r\n", STREAM "\r\n"};
    struct kvp_http_config config = {.connections_max = 16};
    int fds[40];
    int refused = 0;

    for (int each = 0; each < 2; each++) {
        rest_start(&rest, &config, 0);
        rest_hold(&rest, true);
        for (int i = 0; i < 40; i++) {
            fds[i] = http_connect(rest.port);
            http_send_text(fds[i], asks[each]);
            expect_health();
        }
        int call = http_connect(rest.port);
        if (each == 1) {
            http_send_text(call, asks[0]);
            expect_health();
        }
        for (int i = admitted[each]; i < 40; i++) {
            struct http_answer answer = http_receive(fds[i], false);
            refused += answer.status == 503; /* or its connection made room since */
            cr_expect(answer.status == 503 || answer.status == 0, "%d %d", i, answer.status);
            http_answer_free(&answer);
        }
        cr_expect_gt(refused, 0);
        rest_finish(&rest);
        if (each == 1) {
            char text[4096] = "";
            cr_expect(read_until(call, text, sizeof text, "HTTP/1.1 200"), "%s", text);
        }
        close(call);
        for (int i = 0; i < admitted[each]; i++) {
            char text[4096] = "";
            cr_expect(read_until(fds[i], text, sizeof text, "HTTP/1.1 200"), "%d %s", i, text);
        }
        for (int i = 0; i < 40; i++) {
            close(fds[i]);
        }
        rest_stop(&rest);
    }
}

/* Which of these, in their order of opening, went last; -1: none. */
static int gone(struct kvp_connection *const *connections, int n)
{
    static int known = 0;
    for (int i = 0; i < n; i++) {
        if (connections[i]->state == KVP_CONNECTION_SHUT && (known & 1 << i) == 0) {
            known |= 1 << i;
            return i;
        }
    }
    return -1;
}

Test(connections, who_does_not_take_an_answer_goes_after_a_grace_and_before_who_came_since)
{
    const uint64_t grace_ns = KVP_HTTP_SEND_NS;
    struct kvp_connections all;
    struct kvp_connection *each[8];
    int fds[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    kvp_connections_init(&all, 4, KVB_NEVER);
    for (int i = 0; i < 4; i++) {
        each[i] = kvp_connection_opened(&all, NULL, fds[0], NULL, 1);
        cr_assert_not_null(each[i]);
    }
    kvp_connection_enters(&all, each[0], KVP_CONNECTION_SENDING, 1);
    kvp_connection_enters(&all, each[1], KVP_CONNECTION_SENDING, 2);
    kvp_connection_enters(&all, each[2], KVP_CONNECTION_WAITING, 1);
    kvp_connection_enters(&all, each[3], KVP_CONNECTION_IDLE, grace_ns + 1);
    cr_expect_not(kvp_connections_crowded(&all));
    each[4] = kvp_connection_opened(&all, NULL, fds[0], NULL, grace_ns + 2);
    cr_expect_eq(gone(each, 4), 3, "an idle one, rather than one that may still read");
    kvp_connection_enters(&all, each[3], KVP_CONNECTION_IDLE, grace_ns + 1); /* stays shut */
    each[5] = kvp_connection_opened(&all, NULL, fds[0], NULL, grace_ns + 2);
    cr_expect_eq(gone(each, 5), 0, "not one that was opened since");
    kvp_connection_enters(&all, each[4], KVP_CONNECTION_WAITING, grace_ns + 2);
    cr_expect(kvp_connections_crowded(&all));
    kvp_connection_enters(&all, each[5], KVP_CONNECTION_WAITING, grace_ns + 2);
    each[6] = kvp_connection_opened(&all, NULL, fds[0], NULL, grace_ns + 2);
    cr_expect_eq(gone(each, 6), 1, "the only one that can be spared");
    kvp_connection_enters(&all, each[6], KVP_CONNECTION_WAITING, grace_ns + 2);
    each[7] = kvp_connection_opened(&all, NULL, fds[0], NULL, grace_ns + 2);
    cr_expect_eq(gone(each, 7), -1, "never one that waits");
    for (int i = 0; i < 8; i++) {
        kvp_connection_closed(&all, each[i]);
    }
    cr_expect_eq(all.n, 0);
    close(fds[0]);
    close(fds[1]);
}

Test(http_own, the_oldest_goes_first_be_it_idle_or_slow)
{
    struct kvp_http_config config = {.connections_max = 16};
    int slow[15];

    rest_start(&rest, &config, 0);
    for (int i = 0; i < 15; i++) {
        slow[i] = http_connect(rest.port);
        http_send_text(slow[i], "POST /sleep HTTP/1.1\r\nX: ");
        expect_health();
    }
    int young = http_connect(rest.port);
    for (int i = 0; i < 8; i++) {
        int next = http_connect(rest.port); /* and stays */
        cr_assert(http_send_text(young, "GET /health HTTP/1.1\r\n" HOST "\r\n"), "%d", i);
        struct http_answer answer = http_receive(young, false);
        cr_assert_eq(answer.status, 200, "sacrificed at %d", i);
        http_answer_free(&answer);
        close(slow[i]);
        slow[i] = next;
    }
    for (int i = 0; i < 15; i++) {
        close(slow[i]);
    }
    close(young);
    rest_stop(&rest);
}

Test(http_own, requests_that_wait_are_never_sacrificed)
{
    struct kvp_http_config config = {.connections_max = 16};
    int waiting[8], idle[40];

    rest_start(&rest, &config, 0);
    rest_hold(&rest, true);
    for (int i = 0; i < 8; i++) {
        waiting[i] = http_connect(rest.port);
        http_send_text(waiting[i], "POST /sleep HTTP/1.1\r\n" HOST "\r\n");
    }
    cr_assert(rest_wait_calls(&rest, 8));
    for (int i = 0; i < 40; i++) {
        idle[i] = http_connect(rest.port);
        expect_health();
    }
    rest_finish(&rest);
    for (int i = 0; i < 8; i++) {
        struct http_answer answer = http_receive(waiting[i], false);
        expect_shape(&answer, 200, "waited in a crowd");
        http_answer_free(&answer);
        close(waiting[i]);
    }
    for (int i = 0; i < 40; i++) {
        close(idle[i]);
    }
    rest_stop(&rest);
}

Test(http, a_request_that_comes_byte_by_byte_is_answered_and_stalls_nobody)
{
    static const char request[] =
        "POST /sleep?level=2 HTTP/1.1\r\n" HOST "Content-Length: 16\r\n\r\n{\"mode\": \"keep\"}";
    int fd = http_connect(rest.port);

    for (size_t i = 0; i < sizeof request - 1; i++) {
        cr_assert(http_send(fd, request + i, 1));
        expect_health();
    }
    struct http_answer answer = http_receive(fd, false);
    expect_shape(&answer, 200, "byte by byte");
    cr_expect(strstr(answer.body, "\"level\":2,\"mode\":\"keep\"") != NULL, "%s", answer.body);
    http_answer_free(&answer);
    close(fd);
}

Test(http_own, connections_of_one_address_have_a_limit_if_configured)
{
    struct kvp_http_config config = {.connections_per_ip_max = 3};
    int fds[5];
    uint32_t closed = 0;

    rest_start(&rest, &config, 0);
    for (int i = 0; i < 5; i++) {
        fds[i] = http_connect(rest.port);
        http_send_text(fds[i], "GET /health HTTP/1.1\r\n" HOST "\r\n");
        struct http_answer answer = http_receive(fds[i], false);
        closed += answer.status == 0;
        http_answer_free(&answer);
    }
    cr_expect_eq(closed, 2);
    for (int i = 0; i < 5; i++) {
        close(fds[i]);
    }
    rest_stop(&rest);
}

Test(http_own, idle_connections_are_closed_in_time)
{
    struct kvp_http_config config = {.idle_timeout_s = 1};
    rest_start(&rest, &config, 0);
    int idle = http_connect(rest.port);
    int slow = http_connect(rest.port);
    http_send_text(slow, "POST /sleep HTTP/1.1\r\n");
    cr_expect(http_closed(idle));
    cr_expect(http_closed(slow));
    close(idle);
    close(slow);
    rest_stop(&rest);
}

static _Atomic(uint64_t) hand_ns;

static uint64_t read_hand(void *ctx)
{
    (void)ctx;
    return atomic_load(&hand_ns);
}

Test(http_own, a_request_that_never_ends_is_given_up)
{
    static const struct kvb_clock by_hand = {.now_ns = read_hand};
    struct kvp_http_config config = {.clock = &by_hand, .receive_timeout_s = 7};

    atomic_store(&hand_ns, KVB_NS_PER_S);
    rest_start(&rest, &config, 0);
    int slow = http_connect(rest.port);
    http_send_text(slow, "POST /sleep HTTP/1.1\r\nX: ");
    int idle = http_connect(rest.port);
    expect_health();
    atomic_fetch_add(&hand_ns, 7 * KVB_NS_PER_S);
    expect_health();
    cr_expect(http_send_text(slow, "still in time\r\n"));
    atomic_fetch_add(&hand_ns, 1);
    /* a request on any connection looks for those that are overdue */
    cr_assert(http_send_text(idle, "GET /health HTTP/1.1\r\n" HOST "\r\n"));
    cr_expect(http_closed(slow));
    struct http_answer answer = http_receive(idle, false); /* that one libmicrohttpd looks after */
    cr_expect_eq(answer.status, 200);
    http_answer_free(&answer);
    close(slow);
    close(idle);
    rest_stop(&rest);
}

Test(http_own, requests_of_one_address_have_a_limit_and_its_probes_none)
{
    struct kvp_http_config config = {.requests_each_max = 3};
    int fds[5];

    rest_start(&rest, &config, 0);
    rest_hold(&rest, true);
    for (int i = 0; i < 5; i++) {
        fds[i] = http_connect(rest.port);
        http_send_text(fds[i], "POST /sleep HTTP/1.1\r\n" HOST "\r\n");
        expect_health();
    }
    for (int i = 3; i < 5; i++) {
        struct http_answer answer = http_receive(fds[i], false);
        expect_shape(&answer, 503, "one too many");
        cr_expect_not_null(strstr(answer.body, "requests-each-max"), "%s", answer.body);
        cr_expect_str_eq(http_header(&answer, "Retry-After"), "1");
        http_answer_free(&answer);
    }
    rest_finish(&rest);
    for (int i = 0; i < 5; i++) { /* each is done with, and the next may come */
        if (i < 3) {
            struct http_answer answer = http_receive(fds[i], false);
            expect_shape(&answer, 200, "within the limit");
            http_answer_free(&answer);
        }
        close(fds[i]);
    }
    rest_hold(&rest, false);
    struct http_answer answer = http_ask(rest.port, "POST", "/pause", NULL, NULL);
    expect_shape(&answer, 200, "the next");
    http_answer_free(&answer);
    rest_stop(&rest);
}

Test(connections, addresses_are_told_apart_and_none_is_none)
{
    static const char *const texts[] = {"127.0.0.1", "127.0.0.2", "::1", "127.0.0.1"};
    struct kvp_connections all;
    struct kvp_connection *each[5];
    int fds[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    kvp_connections_init(&all, 100, KVB_NEVER);
    for (int i = 0; i < 5; i++) {
        struct sockaddr_in v4 = {.sin_family = AF_INET};
        struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
        struct sockaddr_un local = {.sun_family = AF_UNIX};
        const void *from = &local;
        if (i < 4 && inet_pton(AF_INET, texts[i], &v4.sin_addr) == 1) {
            from = &v4;
        } else if (i < 4 && inet_pton(AF_INET6, texts[i], &v6.sin6_addr) == 1) {
            from = &v6;
        }
        each[i] = kvp_connection_opened(&all, NULL, fds[0], from, 1);
        cr_expect_eq(each[i]->has_from, i < 4);
        kvp_connection_enters(&all, each[i], KVP_CONNECTION_WAITING, 1);
    }
    static const uint32_t want[] = {2, 1, 1, 2};
    for (int i = 0; i < 4; i++) {
        cr_expect(kvp_connections_wait_from(&all, each[i], want[i]), "%s", texts[i]);
        cr_expect_not(kvp_connections_wait_from(&all, each[i], want[i] + 1), "%s", texts[i]);
    }
    kvp_connection_enters(&all, each[3], KVP_CONNECTION_STREAMING, 1);
    cr_expect_not(kvp_connections_wait_from(&all, each[0], 2), "a stream is no request");
    for (int i = 0; i < 5; i++) {
        kvp_connection_closed(&all, each[i]);
    }
    close(fds[0]);
    close(fds[1]);
}

static atomic_uint seen, seen_without_route, seen_status;

static void see(const struct kvp_http_answered *answered)
{
    atomic_fetch_add(&seen, 1);
    atomic_fetch_add(&seen_without_route, answered->route == NULL);
    atomic_fetch_add(&seen_status, answered->http_status);
}

Test(http_own, every_answer_is_counted_once)
{
    static const char *const targets[] = {"/sleep", "/sleep?level=9", "/nosuch", "/health"};

    rest_answered = see;
    rest_start(&rest, NULL, 0);
    for (int i = 0; i < 4; i++) {
        struct http_answer answer = http_ask(rest.port, "POST", targets[i], NULL, NULL);
        http_answer_free(&answer);
    }
    int fd = http_connect(rest.port);
    http_send_text(fd, "POST /sleep HT"); /* no request: not counted */
    close(fd);
    rest_stop(&rest);
    cr_expect_eq(atomic_load(&seen), 4);
    cr_expect_eq(atomic_load(&seen_without_route), 2);
    cr_expect_eq(atomic_load(&seen_status), 200 + 400 + 404 + 405);
}

Test(http_own, what_the_library_refuses_is_counted_once_and_as_it_was_answered)
{
    static const struct {
        const char *text;
        int status;
        bool begun; /* it was known to be of a route */
    } cases[] = {
        {"GET /health HTTP/1.1\r\n" HOST "nothing\r\n\r\n", 400, false},
        {"POST /sleep HTTP/1.1\r\n" HOST "Content-Length: x\r\n\r\n", 400, false},
        {"POST /sleep HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\nx\r\n", 400, true},
        {"POST /sleep?level=9 HTTP/1.1\r\n" HOST
         "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nx\r\n",
         400, true},
        {"POST /nosuch HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\nx\r\n", 400, false},
        {"POST /health HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\nx\r\n", 400, false},
    };
    const unsigned n = sizeof cases / sizeof cases[0];

    rest_answered = see;
    rest_start(&rest, NULL, 0);
    unsigned routes = 0, before = atomic_load(&seen), sum = atomic_load(&seen_status),
             without = atomic_load(&seen_without_route);
    for (unsigned i = 0; i < n; i++) {
        int fd = http_connect(rest.port);
        http_send_text(fd, cases[i].text);
        struct http_answer answer = http_receive(fd, false);
        expect_shape(&answer, cases[i].status, cases[i].text);
        cr_expect(http_closed(fd), "%s", cases[i].text);
        http_answer_free(&answer);
        close(fd);
        routes += cases[i].begun;
    }
    rest_stop(&rest);
    cr_expect_eq(atomic_load(&seen) - before, n, "%u", atomic_load(&seen) - before);
    cr_expect_eq(atomic_load(&seen_status) - sum, 400 * n);
    cr_expect_eq(atomic_load(&seen_without_route) - without, n - routes);
}

Test(http, a_request_is_named_as_its_client_or_its_trace_names_it)
{
    static const struct {
        const char *headers;
        const char *id; /* NULL: a new one */
    } cases[] = {
        {"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
         "0af7651916cd43dd8448eb211c80319c"},
        {"X-Request-Id: mine\r\n"
         "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
         "mine"},
        {"traceparent: cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more\r\n",
         "0af7651916cd43dd8448eb211c80319c"}, /* of a later version */
        {"traceparent: 00-00000000000000000000000000000000-b7ad6b7169203331-01\r\n", NULL},
        {"traceparent: ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n", NULL},
        {"traceparent: 00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01\r\n", NULL},
        {"traceparent: 00-0af7651916cd43dd8448eb211c80319c\r\n", NULL},
        {"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-101\r\n", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_answer answer = http_ask(rest.port, "GET", "/health", cases[i].headers, NULL);
        const char *id = http_header(&answer, "X-Request-Id");
        cr_assert_not_null(id);
        if (cases[i].id != NULL) {
            cr_expect_str_eq(id, cases[i].id);
        } else {
            cr_expect_eq(strlen(id), 32);
            cr_expect_null(strstr(cases[i].headers, id), "%zu", i);
        }
        http_answer_free(&answer);
    }
}

/* ---- tokens ---- */

Test(http_own, tokens_that_are_read_anew_take_the_place_of_the_old)
{
    static const struct kvp_http_token first[] = {{"first", KVP_ROLE_ADMIN}};
    static const struct kvp_http_token second[] = {{"second", KVP_ROLE_ADMIN},
                                                   {"third", KVP_ROLE_READ}};
    static const char *const headers[] = {
        "Authorization: Bearer first\r\n", "Authorization: Bearer second\r\n",
        "Authorization: Bearer third\r\n", "Authorization: Bearer \r\n"};
    static const int statuses[2][4] = {{200, 401, 401, 401}, {401, 200, 403, 401}};
    struct kvp_http_config config = {.tokens = first, .ntokens = 1};
    struct kvp_http_token given[2];

    memset(given, 0xee, sizeof given); /* what is behind a secret's end is no part of it */
    for (int i = 0; i < 2; i++) {
        given[i].role = second[i].role;
        strcpy(given[i].secret, second[i].secret);
    }
    rest_start(&rest, &config, 0);
    for (int anew = 0; anew < 2; anew++) {
        if (anew) {
            cr_assert_eq(kvp_http_set_tokens(rest.http, given, 2), KVB_OK);
        }
        for (int i = 0; i < 4; i++) {
            struct http_answer answer = http_ask(rest.port, "POST", "/pause", headers[i], NULL);
            cr_expect_eq(answer.status, statuses[anew][i], "%d %d: %d", anew, i, answer.status);
            http_answer_free(&answer);
        }
    }
    cr_assert_eq(kvp_http_set_tokens(rest.http, second, 0), KVB_ERR_BAD_STATE); /* never open */
    rest_stop(&rest);
    rest_start(&rest, NULL, 0);
    cr_assert_eq(kvp_http_set_tokens(rest.http, second, 2), KVB_ERR_BAD_STATE);
    rest_stop(&rest);
}

Test(http_own, streams_end_with_their_token_and_say_so)
{
    static const struct kvp_http_token first[] = {
        {"stays", KVP_ROLE_READ}, {"goes", KVP_ROLE_ADMIN}, {"shrinks", KVP_ROLE_ADMIN}};
    static const struct kvp_http_token second[] = {
        {"new", KVP_ROLE_ADMIN}, {"shrinks", KVP_ROLE_READ}, {"stays", KVP_ROLE_READ}};
    static const struct {
        const char *header;
        bool ends;
    } cases[] = {{"Authorization: Bearer stays\r\n\r\n", false},
                 {"Authorization: Bearer goes\r\n\r\n", true},
                 {"Authorization: Bearer shrinks\r\n\r\n", false}}; /* who reads may read */
    struct kvp_http_config config = {.tokens = first, .ntokens = 3};
    char text[8192];
    int fds[3];

    rest_start(&rest, &config, 0);
    for (int i = 0; i < 3; i++) {
        fds[i] = http_connect(rest.port);
        http_send_text(fds[i], STREAM);
        http_send_text(fds[i], cases[i].header);
        text[0] = '\0';
        cr_assert(read_until(fds[i], text, sizeof text, ": \n\n"), "%d %s", i, text);
    }
    cr_assert_eq(kvp_http_set_tokens(rest.http, first, 3), KVB_OK); /* nothing is new */
    kvp_events_add(rest.events, "engine-0", "sleep", "ok");
    kvp_http_wake(rest.http, false);
    for (int i = 0; i < 3; i++) {
        text[0] = '\0';
        cr_expect(read_until(fds[i], text, sizeof text, "\"id\":1"), "%d %s", i, text);
    }
    cr_assert_eq(kvp_http_set_tokens(rest.http, second, 3), KVB_OK);
    kvp_events_add(rest.events, "engine-0", "wake", "ok");
    kvp_http_wake(rest.http, false);
    for (int i = 0; i < 3; i++) {
        text[0] = '\0';
        cr_expect(read_until(fds[i], text, sizeof text, cases[i].ends ? "\r\n0\r\n" : "\"id\":2"),
                  "%d %s", i, text);
        cr_expect_eq(strstr(text, ": the token of this stream") != NULL, cases[i].ends, "%s", text);
        cr_expect_eq(strstr(text, "\"id\":2") != NULL, !cases[i].ends, "%s", text);
        close(fds[i]);
    }
    rest_stop(&rest);
}

Test(http_own, tokens_open_what_their_role_may)
{
    static const struct kvp_http_token tokens[] = {{"reader-secret", KVP_ROLE_READ},
                                                   {"admin-secret", KVP_ROLE_ADMIN}};
    static const struct {
        const char *method;
        const char *path;
        const char *header;
        int status;
    } cases[] = {
        {"GET", "/health", NULL, 200},
        {"GET", "/metrics", "Authorization: Bearer wrong\r\n", 200},
        {"GET", "/weight_info", NULL, 401},
        {"GET", "/weight_info", "Authorization: Bearer None\r\n", 401},
        {"GET", "/weight_info", "Authorization: Bearer \r\n", 401},
        {"GET", "/weight_info", "Authorization: Bearer reader-secre\r\n", 401},
        {"GET", "/weight_info", "Authorization: Bearer reader-secret2\r\n", 401},
        {"GET", "/weight_info", "Authorization: Basic reader-secret\r\n", 401},
        {"GET", "/weight_info", "Authorization: bearer reader-secret\r\n", 200},
        {"GET", "/weight_info", "Authorization: Bearer admin-secret\r\n", 200},
        {"POST", "/sleep", NULL, 401},
        {"POST", "/sleep", "Authorization: Bearer reader-secret\r\n", 403},
        {"POST", "/sleep", "Authorization: Bearer admin-secret\r\n", 200},
        {"GET", "/nosuch", NULL, 404},
    };
    struct kvp_http_config config = {.tokens = tokens, .ntokens = 2};

    rest_start(&rest, &config, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_answer answer =
            http_ask(rest.port, cases[i].method, cases[i].path, cases[i].header, NULL);
        cr_expect_eq(answer.status, cases[i].status, "%s %s: %d", cases[i].path,
                     cases[i].header != NULL ? cases[i].header : "-", answer.status);
        if (cases[i].status == 401) {
            expect_shape(&answer, 401, cases[i].path);
            cr_expect_str_eq(http_header(&answer, "WWW-Authenticate"), "Bearer");
        }
        http_answer_free(&answer);
    }
    cr_expect_eq(rest_calls(&rest), 1);
    rest_stop(&rest);
}

Test(http, authorization_is_not_looked_at_without_tokens)
{
    struct http_answer answer =
        http_ask(rest.port, "POST", "/sleep", "Authorization: Bearer None\r\n", NULL);
    expect_shape(&answer, 200, "Bearer None");
    http_answer_free(&answer);
}

/* ---- stopping ---- */

Test(http_own, stopping_answers_everyone_who_waits)
{
    int fds[8];
    uint32_t before = open_fds();
    uint32_t threads_before = threads();

    rest_start(&rest, NULL, 0);
    rest_hold(&rest, true);
    for (int i = 0; i < 8; i++) {
        fds[i] = http_connect(rest.port);
        http_send_text(fds[i], "POST /sleep HTTP/1.1\r\n" HOST "\r\n");
    }
    int half = http_connect(rest.port);
    http_send_text(half, "POST /sleep HTTP/1.1\r\nHo");
    cr_assert(rest_wait_calls(&rest, 8));
    int busy = keep_busy(2000); /* so that the answers are not out yet when it stops */
    rest_stop(&rest);
    close(busy);
    for (int i = 0; i < 8; i++) {
        struct http_answer answer = http_receive(fds[i], false);
        expect_shape(&answer, 503, "stopping");
        cr_expect_str_eq(http_header(&answer, "Connection"), "close");
        cr_expect(http_closed(fds[i]));
        http_answer_free(&answer);
        close(fds[i]);
    }
    cr_expect(http_closed(half));
    close(half);
    cr_expect(http_connect(rest.port) < 0, "still listening");
    expect_fds(before);
    cr_expect_eq(threads(), threads_before);
}

Test(http_own, two_servers_do_not_share_a_port)
{
    struct kvp_http *second = NULL;

    rest_start(&rest, NULL, 0);
    uint32_t before = open_fds();
    struct kvp_http_config config = {
        .port = rest.port, .clock = &kvb_clock_real, .random = &kvb_random_real};
    cr_expect_eq(kvp_http_start(&config, &second), KVB_ERR_BUSY);
    config.address = "no such address";
    cr_expect_eq(kvp_http_start(&config, &second), KVB_ERR_INVALID);
    cr_expect_null(second);
    cr_expect_eq(open_fds(), before);
    rest_stop(&rest);
}
