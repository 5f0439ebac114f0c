/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "base/status.h"

#include <criterion/criterion.h>
#include <jansson.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

static int pipe_fds[2];
static char line[KVB_LOG_LINE_MAX * 4];

static void start(enum kvb_log_format format)
{
    cr_assert_eq(pipe2(pipe_fds, O_NONBLOCK), 0);
    kvb_log_setup(KVB_LOG_INFO, format, pipe_fds[1]);
}

/* What was written since the last call; the time stamp, which changes, is cut off a logfmt line. */
static const char *logged(void)
{
    ssize_t n = read(pipe_fds[0], line, sizeof line - 1);
    line[n < 0 ? 0 : n] = '\0';
    if (strncmp(line, "ts=", 3) == 0) {
        return strchr(line, ' ') + 1;
    }
    return line;
}

Test(log, logfmt_puts_identity_first_and_quotes_what_needs_it)
{
    start(KVB_LOG_LOGFMT);
    kvb_log_request("r-17");
    KVB_LOG(INFO, "instance asleep", KVB_U64("level", 2), KVB_STR("instance", "llm-0"),
            KVB_STR("none", NULL), KVB_STR("empty", ""), KVB_STR("path", "/a/b.c:1"),
            KVB_STR("quoted", "say \"hi\"\\\n\t\r\x01"), KVB_STR("equals", "a=b"),
            KVB_I64("minus", -5), KVB_MS("took", 1500000), KVB_HEX("key", "\x00\xff", 2),
            KVB_STATUS(KVB_ERR_FENCED), KVB_STR("utf8", "\xc3\xa9"), KVB_STR("bad", "a\xc3z"));
    cr_assert_str_eq(logged(),
                     "level=info req=r-17 instance=llm-0 msg=\"instance asleep\" level=2 "
                     "empty=\"\" path=/a/b.c:1 "
                     "quoted=\"say \\\"hi\\\"\\\\\\n\\t\\r\\u0001\" equals=\"a=b\" minus=-5 "
                     "took_ms=1.5 key=00ff status=fenced utf8=\"\xc3\xa9\" bad=\"a\\ufffdz\"\n");
    kvb_log_request(NULL);
    cr_assert_null(kvb_log_current_request());
    KVB_LOG(ERROR, "plain");
    cr_assert_str_eq(logged(), "level=error msg=plain\n");
}

Test(log, errno_comes_as_number_and_text)
{
    start(KVB_LOG_LOGFMT);
    errno = EINTR;
    KVB_LOG(WARN, "x", KVB_ERRNO(ENOENT));
    cr_assert_str_eq(logged(), "level=warn msg=x errno=2 error=\"No such file or directory\"\n");
    cr_assert_eq(errno, EINTR, "logging leaves errno alone");
}

Test(log, json_lines_are_json_whatever_is_in_them)
{
    start(KVB_LOG_JSON);
    char every[256];
    for (int i = 1; i < 256; i++) {
        every[i - 1] = (char)i;
    }
    every[255] = '\0';
    kvb_log_request("r\"1");
    KVB_LOG(INFO, "m\"\n", KVB_STR("every", every), KVB_DBL("nan", (double)NAN),
            KVB_DBL("inf", (double)INFINITY), KVB_DBL("half", 0.5), KVB_U64("big", INT64_MAX),
            KVB_HEX("key", "\x01", 1), KVB_STR("instance", "i"));
    const char *text = logged();
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    cr_assert_not_null(json, "%s in %s", error.text, text);
    cr_assert_eq(text[strlen(text) - 1], '\n');
    cr_assert_str_eq(json_string_value(json_object_get(json, "msg")), "m\"\n");
    cr_assert_str_eq(json_string_value(json_object_get(json, "req")), "r\"1");
    cr_assert_str_eq(json_string_value(json_object_get(json, "level")), "info");
    cr_assert_str_eq(json_string_value(json_object_get(json, "key")), "01");
    cr_assert(json_is_null(json_object_get(json, "nan")));
    cr_assert(json_is_null(json_object_get(json, "inf")));
    cr_assert(json_real_value(json_object_get(json, "half")) == 0.5);
    const char *kept = json_string_value(json_object_get(json, "every"));
    cr_assert(memcmp(kept, every, 127) == 0, "all of ASCII comes through");
    json_decref(json);
    const char *ts = strstr(text, "\"ts\":\"");
    cr_assert_eq(ts, text + 1, "identity first");
    cr_assert_lt(strstr(text, "\"instance\""), strstr(text, "\"msg\""));
}

/* A text of each length around the limit, with a character that may be cut in two. */
Test(log, a_line_over_the_limit_is_cut_whole_and_says_so)
{
    char text[KVB_LOG_LINE_MAX + 200];
    int cut = 0;
    for (int format = 0; format < 2; format++) {
        for (size_t len = KVB_LOG_LINE_MAX - 300; len < sizeof text; len++) {
            start((enum kvb_log_format)format);
            memset(text, 'x', len);
            memcpy(text + len - 3, "\"\xc3\xa9", 3);
            text[len] = '\0';
            KVB_LOG(INFO, "long", KVB_STR("text", text), KVB_U64("after", 12345));
            logged();
            size_t n = strlen(line);
            cr_assert_leq(n, KVB_LOG_LINE_MAX);
            cr_assert_eq(line[n - 1], '\n');
            cr_assert_eq(strchr(line, '\n'), line + n - 1, "one line");
            bool says = strstr(line, format == 0 ? " cut=true\n" : ",\"cut\":true}\n") != NULL;
            bool whole = strstr(line, "after") != NULL;
            cr_assert_neq(says, whole, "format %d length %zu: %s", format, len, line + n - 60);
            if (format == 1) {
                json_t *json = json_loads(line, 0, NULL);
                cr_assert_not_null(json, "length %zu: %s", len, line + n - 60);
                json_decref(json);
            } else {
                cr_assert_neq(line[n - 2], '=', "no key without a value");
            }
            cut += says;
            close(pipe_fds[0]);
            close(pipe_fds[1]);
        }
    }
    cr_assert_gt(cut, 100);
}

/* P6: whoever does not read the log must not stop who writes it. */
Test(log, a_pipe_that_nobody_reads_loses_lines_and_stops_nobody)
{
    start(KVB_LOG_LOGFMT);
    cr_assert_eq(fcntl(pipe_fds[1], F_SETFL, 0), 0, "writing to it may block");
    uint64_t before = kvb_log_held_back();
    for (int i = 0; i < 5000; i++) {
        KVB_LOG(INFO, "a line", KVB_U64("i", i));
    }
    cr_assert_gt(kvb_log_held_back(), before);
    (void)logged();
    while (read(pipe_fds[0], line, sizeof line) > 0) {
    }
    KVB_LOG(ERROR, "plain");
    cr_assert_str_eq(logged(), "level=error msg=plain\n", "and goes on");
}

Test(log, levels_are_compared_and_parsed)
{
    enum kvb_log_level level = KVB_LOG_ERROR;
    start(KVB_LOG_LOGFMT);
    KVB_LOG(DEBUG, "not now");
    cr_assert_str_eq(logged(), "");
    cr_assert(kvb_log_parse_level("Debug", &level));
    cr_assert_eq(level, KVB_LOG_DEBUG);
    cr_assert_not(kvb_log_parse_level("loud", &level));
    cr_assert_eq(level, KVB_LOG_DEBUG);
    kvb_log_setup(KVB_LOG_TRACE, KVB_LOG_LOGFMT, pipe_fds[1]);
    KVB_LOG(TRACE, "now");
    cr_assert_str_eq(logged(), "level=trace msg=now\n");
}

Test(log, a_limited_place_writes_ten_a_second_and_tells_how_many_it_held_back)
{
    struct kvb_log_limit limit = {0};
    uint32_t held = 0;
    uint32_t allowed = 0;
    uint32_t told = 0;
    for (int i = 0; i < 100; i++) {
        if (kvb_log_allowed(&limit, &held)) {
            allowed++;
            told += held;
        }
    }
    cr_assert_geq(allowed, 10);
    cr_assert_leq(allowed, 20, "at most two seconds were touched");
    limit.window--; /* a second later */
    cr_assert(kvb_log_allowed(&limit, &held));
    cr_assert_eq(allowed + told + held, 100, "none is forgotten");
    cr_assert(kvb_log_allowed(&limit, &held));
    cr_assert_eq(held, 0, "and none is told twice");
}

Test(log, a_limited_line_carries_what_was_held_back)
{
    start(KVB_LOG_LOGFMT);
    KVB_LOG_LIMITED(WARN, "peer", KVB_U64("n", 1));
    cr_assert_str_eq(logged(), "level=warn msg=peer held_back=0 n=1\n");
}
