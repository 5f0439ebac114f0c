/* SPDX-License-Identifier: Apache-2.0 */
/* `kvplane events`: what has happened, and, with --follow, what happens. */
#include "cli_grid.h"
#include "cli_run.h"
#include "cli_sse.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATH "/v1/kvplane/events"
enum { RETRY_S = 1, DEAD_S = 60 };

/* `paused (sleep), kv_cache discarded, weights offloaded` */
static void put_state(const json_t *state, char *out, size_t cap)
{
    size_t i;
    const char *tag;
    json_t *item;
    const json_t *stopped_by = json_object_get(state, "stopped_by");
    FILE *text = fmemopen(out, cap, "w");
    if (text == NULL) {
        return;
    }
    (void)fprintf(text, "%s", json_is_true(json_object_get(state, "attached")) ? "" : "GONE, ");
    (void)fprintf(text, "%s", kvp_text_of(json_object_get(state, "scheduler")));
    json_array_foreach(stopped_by, i, item)
    {
        (void)fprintf(text, "%s%s%s", i == 0 ? " (" : ", ", kvp_text_of(item),
                      i + 1 == json_array_size(stopped_by) ? ")" : "");
    }
    json_object_foreach(json_object_get(state, "tags"), tag, item)
    {
        (void)fprintf(text, ", %s %s", tag, kvp_text_of(item));
    }
    (void)fprintf(text, "%s", json_is_true(json_object_get(state, "degraded")) ? ", DEGRADED" : "");
    (void)fclose(text);
}

static void print_event(const struct kvp_cli *cli, const json_t *event)
{
    if (cli->json) {
        (void)json_dumpf(event, stdout, JSON_COMPACT);
        (void)printf("\n");
        return;
    }
    char when[32] = "";
    char detail[1024] = "";
    char kind[KVP_CELL_MAX];
    char instance[KVP_CELL_MAX];
    json_int_t at_ms = json_integer_value(json_object_get(event, "at_ms"));
    time_t seconds = (time_t)(at_ms / 1000);
    struct tm tm;
    if (at_ms > 0 && localtime_r(&seconds, &tm) != NULL) {
        (void)strftime(when, sizeof when, "%F %T", &tm);
    }
    kvp_cell_text(kind, json_object_get(event, "kind"));
    kvp_cell_text(instance, json_object_get(event, "instance"));
    const json_t *state = json_object_get(event, "state");
    const json_t *lost = json_object_get(event, "lost");
    const char *text = json_string_value(json_object_get(event, "detail"));
    if (state != NULL) {
        put_state(state, detail, sizeof detail);
    } else if (strcmp(kind, "restarted") == 0) {
        (void)snprintf(detail, sizeof detail,
                       "the daemon was started anew: what the one before told last is gone");
    } else if (lost != NULL) {
        (void)snprintf(detail, sizeof detail, "%" JSON_INTEGER_FORMAT " events were forgotten",
                       json_integer_value(lost));
    } else {
        (void)snprintf(detail, sizeof detail, "%s", text != NULL ? text : "");
    }
    kvb_utf8_clean(detail);
    (void)printf("%19s.%03d  %-12s %-16s %s\n", when, (int)(at_ms % 1000), instance, kind, detail);
}

/* What the stream tells as events of their own. */
static void tell_gap(const struct kvp_cli *cli, const json_t *page)
{
    bool restarted = json_is_true(json_object_get(page, "restarted"));
    json_int_t lost = json_integer_value(json_object_get(page, "lost"));
    if (restarted || lost > 0) {
        json_t *gap =
            json_pack("{s:s, s:I}", "kind", restarted ? "restarted" : "lost", "lost", lost);
        print_event(cli, gap);
        json_decref(gap);
    }
}

static int pages(struct kvp_cli *cli)
{
    json_int_t next = cli->after != NULL ? strtoll(cli->after, NULL, 10) : 0;
    for (;;) {
        char path[128];
        int rc;
        size_t i;
        const json_t *event;
        (void)snprintf(path, sizeof path, PATH "?after=%" JSON_INTEGER_FORMAT, next);
        json_t *page = kvp_call_fetch(&cli->call, path, &rc);
        if (page == NULL) {
            return rc;
        }
        const json_t *events = json_object_get(page, "events");
        tell_gap(cli, page);
        json_array_foreach(events, i, event)
        {
            print_event(cli, event);
        }
        json_int_t last = json_integer_value(json_object_get(page, "next"));
        bool more = json_array_size(events) > 0 && last != next;
        json_decref(page);
        if (!more) {
            return KVP_CLI_DONE;
        }
        next = last;
    }
}

/* ---- --follow ---- */

struct follower {
    struct kvp_cli *cli;
    struct kvp_sse sse;
    bool was_there; /* a stream has begun, this time or before */
};

static void on_event(void *ctx, const char *data)
{
    struct follower *follower = ctx;
    json_t *event = json_loads(data, 0, NULL);
    if (event != NULL) {
        print_event(follower->cli, event);
        json_decref(event);
    }
}

static size_t on_bytes(char *data, size_t size, size_t n, void *ctx)
{
    struct follower *follower = ctx;
    long code = 0;
    (void)curl_easy_getinfo(follower->cli->call.curl, CURLINFO_RESPONSE_CODE, &code);
    if (code == 200) {
        follower->was_there = true;
        kvp_sse_feed(&follower->sse, data, size * n, on_event, follower);
        (void)fflush(stdout);
    }
    return size * n;
}

/* One connection, to its end; its status, 0: there was none. */
static long follow_once(struct follower *follower, CURLcode *result_p)
{
    struct kvp_call *call = &follower->cli->call;
    char url[4096];
    char last[KVP_SSE_ID_MAX + 32];
    long code = 0;
    (void)snprintf(url, sizeof url, "%s" PATH, call->base);
    (void)snprintf(last, sizeof last, "Last-Event-ID: %s", follower->sse.id);
    struct curl_slist *headers = kvp_call_headers(call, "Accept: text/event-stream");
    headers = curl_slist_append(headers, last);
    kvp_sse_restart(&follower->sse);
    (void)curl_easy_setopt(call->curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(call->curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(call->curl, CURLOPT_WRITEFUNCTION, on_bytes);
    (void)curl_easy_setopt(call->curl, CURLOPT_WRITEDATA, follower);
    (void)curl_easy_setopt(call->curl, CURLOPT_NOPROXY, "*");
    (void)curl_easy_setopt(call->curl, CURLOPT_CONNECTTIMEOUT, 5L);
    /* A stream has a sign of life every few seconds. */
    (void)curl_easy_setopt(call->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    (void)curl_easy_setopt(call->curl, CURLOPT_LOW_SPEED_TIME, (long)DEAD_S);
    *result_p = curl_easy_perform(call->curl);
    (void)curl_easy_getinfo(call->curl, CURLINFO_RESPONSE_CODE, &code);
    (void)curl_easy_setopt(call->curl, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    return code;
}

static int follow(struct kvp_cli *cli)
{
    struct follower follower = {.cli = cli};
    (void)snprintf(follower.sse.id, sizeof follower.sse.id, "%s",
                   cli->after != NULL ? cli->after : "0");
    for (;;) {
        CURLcode result = CURLE_OK;
        long code = follow_once(&follower, &result);
        if (code >= 400 && code < 500) {
            (void)fprintf(stderr, "kvplane: %s: the daemon answers %ld\n",
                          kvp_call_where(&cli->call), code);
            return KVP_CLI_REFUSED;
        }
        if (!follower.was_there) {
            char why[CURL_ERROR_SIZE + 128];
            kvp_call_why(&cli->call, result, why, sizeof why);
            (void)fprintf(stderr, "kvplane: %s: %s\n", kvp_call_where(&cli->call),
                          code >= 500 ? "too many streams, or none" : why);
            return code >= 500 ? KVP_CLI_REFUSED : KVP_CLI_UNREACHABLE;
        }
        (void)sleep(RETRY_S);
    }
}

int kvp_cli_events(struct kvp_cli *cli)
{
    if (cli->after != NULL && (cli->after[0] == '\0' || strlen(cli->after) > 18 ||
                               cli->after[strspn(cli->after, "0123456789")] != '\0')) {
        return kvp_cli_bad_usage(cli, "--after", "must be an event's id");
    }
    return cli->follow ? follow(cli) : pages(cli);
}
