/* SPDX-License-Identifier: Apache-2.0 */
/* The documents of the status page as they are sent, and what a browser may be made to send. */
#include "http_client.h"
#include "page/page.h"
#include "rest_server.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct rest_server rest;

static void setup(void)
{
    rest_start(&rest, NULL, 0);
}

static void teardown(void)
{
    rest_stop(&rest);
}

TestSuite(page, .init = setup, .fini = teardown, .timeout = 600);
TestSuite(page_own, .timeout = 600);

static struct http_answer ask_as(const char *method, const char *target, const char *headers)
{
    char text[1024];
    int fd = http_connect(rest.port);
    cr_assert_geq(fd, 0);
    snprintf(text, sizeof text, "%s %s HTTP/1.1\r\n%s%s\r\n", method, target, headers,
             strcmp(method, "POST") == 0 ? "Content-Length: 0\r\n" : "");
    cr_assert(http_send_text(fd, text));
    struct http_answer answer = http_receive(fd, strcmp(method, "HEAD") == 0);
    close(fd);
    return answer;
}

static void expect_header(const struct http_answer *answer, const char *name, const char *part)
{
    const char *value = http_header(answer, name);
    cr_expect(value != NULL && strstr(value, part) != NULL, "%s: %s", name,
              value != NULL ? value : "(none)");
}

static const struct {
    const char *target;
    const char *name;
    const char *type;
} files[] = {
    {"/", "", "text/html; charset=utf-8"},
    {"/page/page.css", "page.css", "text/css; charset=utf-8"},
    {"/page/main.js/", "main.js", "text/javascript; charset=utf-8"},
    {"/page/icon.svg", "icon.svg", "image/svg+xml"},
};

Test(page, its_files_are_sent_whole_and_confined)
{
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const struct kvp_document *document = kvp_page_document(files[i].name);
        struct http_answer answer = ask_as("GET", files[i].target, "Host: x\r\n");
        cr_assert_not_null(document);
        cr_expect_eq(answer.status, 200);
        cr_expect_eq(answer.len, (size_t)(document->end - document->begin));
        cr_expect_eq(memcmp(answer.body, document->begin, answer.len), 0);
        expect_header(&answer, "Content-Type", files[i].type);
        expect_header(&answer, "Content-Security-Policy", "default-src 'none'");
        expect_header(&answer, "Content-Security-Policy", "frame-ancestors 'none'");
        expect_header(&answer, "Content-Security-Policy", "require-trusted-types-for 'script'");
        cr_expect_null(strstr(http_header(&answer, "Content-Security-Policy"), "unsafe"));
        expect_header(&answer, "X-Content-Type-Options", "nosniff");
        expect_header(&answer, "Referrer-Policy", "no-referrer");
        expect_header(&answer, "Cache-Control", "no-cache");
        cr_expect_not_null(http_header(&answer, "X-Request-Id"));
        http_answer_free(&answer);
    }
    struct http_answer none = ask_as("GET", "/page/..%2Fpage.c", "Host: x\r\n");
    cr_expect_eq(none.status, 404);
    http_answer_free(&none);
}

Test(page, who_has_a_file_already_is_told_so)
{
    char etag[64];
    char headers[256];
    struct http_answer answer = ask_as("HEAD", "/page/main.js", "Host: x\r\n");
    cr_expect_eq(answer.status, 200);
    snprintf(etag, sizeof etag, "%s", http_header(&answer, "ETag"));
    http_answer_free(&answer);

    const char *const lists[] = {"%s", "W/%s", "\"other\", %s", "*%.0s"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        char list[128];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(list, sizeof list, lists[i], etag);
#pragma GCC diagnostic pop
        snprintf(headers, sizeof headers, "Host: x\r\nIf-None-Match: %s\r\n", list);
        answer = ask_as("GET", "/page/main.js", headers);
        cr_expect_eq(answer.status, 304, "%s: %d", list, answer.status);
        cr_expect_eq(answer.len, 0);
        expect_header(&answer, "ETag", etag);
        http_answer_free(&answer);
    }
    snprintf(headers, sizeof headers, "Host: x\r\nIf-None-Match: %s\r\n", etag);
    answer = ask_as("GET", "/page/page.css", headers);
    cr_expect_eq(answer.status, 200, "one file's is not another's");
    http_answer_free(&answer);
    answer = ask_as("GET", "/page/main.js", "Host: x\r\nIf-None-Match: \"other\"\r\n");
    cr_expect_eq(answer.status, 200);
    http_answer_free(&answer);
}

/* ---- what a browser may be made to send ---- */

struct sent {
    const char *method;
    const char *target;
    const char *headers;
    int status;
};

static void expect_statuses(const struct sent *sent, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct http_answer answer = ask_as(sent[i].method, sent[i].target, sent[i].headers);
        cr_expect_eq(answer.status, sent[i].status, "%s %s with %s: %d, not %d", sent[i].method,
                     sent[i].target, sent[i].headers, answer.status, sent[i].status);
        http_answer_free(&answer);
    }
}

#define LOCAL "Host: localhost:8100\r\n"
#define SITE  LOCAL "Sec-Fetch-Site: "

Test(page, what_acts_is_not_taken_from_the_page_of_another_site)
{
    static const struct sent sent[] = {
        {"POST", "/pause", LOCAL, 200}, /* a program */
        {"POST", "/pause", SITE "same-origin\r\n", 200},
        {"POST", "/pause", SITE "none\r\n", 200}, /* typed by somebody */
        {"POST", "/pause", SITE "cross-site\r\n", 403},
        {"POST", "/pause", SITE "same-site\r\n", 403}, /* another port */
        {"POST", "/pause", SITE "\r\n", 403},
        {"POST", "/sleep?level=2", SITE "cross-site\r\nOrigin: http://localhost:8100\r\n", 403},
        {"GET", "/release_memory_occupation", SITE "cross-site\r\n", 403}, /* an image */
        {"POST", "/v1/kvplane/tenants/default/reset", SITE "cross-site\r\n", 403},
        {"GET", "/v1/kvplane/instances", SITE "cross-site\r\n", 200}, /* it cannot read it */
        {"GET", "/health", SITE "cross-site\r\n", 200},
        {"GET", "/", SITE "cross-site\r\n", 200}, /* a link */
        /* a browser without Sec-Fetch-Site */
        {"POST", "/pause", LOCAL "Origin: http://localhost:8100\r\n", 200},
        {"POST", "/pause", LOCAL "Origin: https://LOCALHOST:8100\r\n", 200},
        {"POST", "/pause", LOCAL "Origin: http://localhost\r\n", 403},
        {"POST", "/pause", LOCAL "Origin: http://evil.example\r\n", 403},
        {"POST", "/pause", LOCAL "Origin: http://localhost:8100.evil.example\r\n", 403},
        {"POST", "/pause", LOCAL "Origin: null\r\n", 403},
        /* an image on its page: it says nothing but what it is */
        {"GET", "/release_memory_occupation", LOCAL "User-Agent: Mozilla/5.0 (old)\r\n", 403},
        {"GET", "/release_memory_occupation", LOCAL "User-Agent: python-requests/2\r\n", 200},
        {"GET", "/v1/kvplane/instances", LOCAL "Origin: http://evil.example\r\n", 200},
    };
    expect_statuses(sent, sizeof sent / sizeof sent[0]);
}

Test(page, a_name_that_is_not_of_this_machine_leads_to_nothing)
{
    static const struct sent sent[] = {
        {"GET", "/v1/kvplane/instances", "Host: evil.example\r\n", 403},
        {"GET", "/v1/kvplane/instances", "Host: evil.example:8100\r\n", 403},
        {"GET", "/v1/kvplane/instances", "Host: 127.0.0.1.evil.example\r\n", 403},
        {"GET", "/v1/kvplane/instances", "Host: localhost.evil.example\r\n", 403},
        {"GET", "/v1/kvplane/instances", "Host: evillocalhost.\r\n", 403},
        {"GET", "/v1/kvplane/instances", "Host: a.b\r\n", 403},
        {"GET", "/v1/kvplane/instances", "Host: .localhost.\r\n", 403},
        {"GET", "/v1/kvplane/events", "Host: evil.example\r\n", 403},
        {"POST", "/pause", "Host: evil.example\r\nSec-Fetch-Site: same-origin\r\n", 403},
        {"GET", "/health", "Host: evil.example\r\n", 200},
        {"GET", "/", "Host: evil.example\r\n", 200},
        {"GET", "/v1/kvplane/instances", "Host: localhost:8100\r\n", 200},
        {"GET", "/v1/kvplane/instances", "Host: LOCALHOST\r\n", 200},
        {"GET", "/v1/kvplane/instances", "Host: a.localhost:8100\r\n", 200},
        {"GET", "/v1/kvplane/instances", "Host: 127.0.0.1:8100\r\n", 200},
        {"GET", "/v1/kvplane/instances", "Host: 10.1.2.3\r\n", 200},
        {"GET", "/v1/kvplane/instances", "Host: [::1]:8100\r\n", 200},
        {"GET", "/v1/kvplane/instances", "Host: [::ffff:127.0.0.1]\r\n", 200},
        {"GET", "/v1/kvplane/instances", "Host: engine-host:8100\r\n", 200},
    };
    expect_statuses(sent, sizeof sent / sizeof sent[0]);
}

/* A page cannot add a token: names and origins do not matter, and a proxy may have others. */
Test(page_own, with_tokens_the_token_decides_and_documents_need_none)
{
    static const struct kvp_http_token tokens[] = {{"secret", KVP_ROLE_ADMIN}};
#define TOKEN "Authorization: Bearer secret\r\n"
    static const struct sent sent[] = {
        {"POST", "/pause", TOKEN "Host: kv.example\r\nOrigin: https://kv.example.org\r\n", 200},
        {"POST", "/pause", TOKEN "Host: kv.example\r\nSec-Fetch-Site: same-origin\r\n", 200},
        {"POST", "/pause", TOKEN "Host: kv.example\r\nSec-Fetch-Site: cross-site\r\n", 403},
        {"GET", "/v1/kvplane/instances", TOKEN "Host: kv.example\r\n", 200},
        {"GET", "/v1/kvplane/instances", "Host: kv.example\r\n", 401},
        {"POST", "/pause", "Host: localhost\r\n", 401},
        {"GET", "/", "Host: kv.example\r\n", 200},
        {"GET", "/page/main.js", "Host: kv.example\r\n", 200},
    };
    struct kvp_http_config config = {.tokens = tokens, .ntokens = 1};
    rest_start(&rest, &config, 0);
    expect_statuses(sent, sizeof sent / sizeof sent[0]);
    rest_stop(&rest);
}
