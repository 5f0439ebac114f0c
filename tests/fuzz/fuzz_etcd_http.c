/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What etcd's gateway may send, below its JSON. First byte: bit 0, a stream, whose objects must be
 * the same however it arrives (else calls: lines of an HTTP status, a blank and the answer, one an
 * attempt); bit 1, with a user, so that a token is asked for; the rest, how many bytes arrive at a
 * time. Every call ends once, with one of the results that it may have.
 */
#include "base/curl.h"

#include <curl/curl.h>

#undef curl_easy_getinfo
#define curl_easy_getinfo(easy, what, number) fuzz_getinfo(what, number)
#define kvb_curl_start                        fuzz_start
#define kvb_curl_stop                         fuzz_stop

static CURLcode fuzz_getinfo(CURLINFO what, long *number_p);
/* Nothing is sent. */
static bool fuzz_start(struct kvb_curl *curl, struct kvb_transfer *transfer)
{
    (void)curl, (void)transfer;
    return true;
}
static void fuzz_stop(struct kvb_curl *curl, struct kvb_transfer *transfer)
{
    (void)curl;
    curl_easy_cleanup(transfer->easy); /* NULL: nothing */
    transfer->easy = NULL;
}
#include "etcd_http.c" /* instead of the library's */
#include "fuzz.h"
#include "sim_sched.h"

static long http_status;
static size_t ended;

static CURLcode fuzz_getinfo(CURLINFO what, long *number_p)
{
    *number_p = what == CURLINFO_RESPONSE_CODE ? http_status : 1;
    return CURLE_OK;
}

static kvb_status_t no_watch(struct kvb_io *io, struct kvb_io_watch *watch, unsigned events)
{
    (void)io, (void)watch, (void)events;
    return KVB_ERR_LIMIT;
}
static void no_unwatch(struct kvb_io *io, struct kvb_io_watch *watch)
{
    (void)io, (void)watch;
}
static const struct kvb_io_ops io_ops = {.watch = no_watch, .unwatch = no_unwatch};

static struct kvs_http *create(struct sim_sched *sim, struct kvb_io *io, bool user)
{
    static const char *const endpoints[] = {"http://127.0.0.1:1", "http://127.0.0.1:2"};
    const struct kvs_http_config config = {.sched = &sim->sched,
                                           .io = io,
                                           .endpoints = endpoints,
                                           .nendpoints = 2,
                                           .user = user ? "u" : NULL,
                                           .password = user ? "p" : NULL};
    struct kvs_http *http;
    kvb_status_t status = kvs_http_create(&config, &http);
    kvb_assert(status == KVB_OK);
    return http;
}

/* ---- a stream ---- */

struct heard {
    struct kvs_http_stream stream;
    size_t n;
    uint64_t sum;
    bool over;
};

static void on_object(struct kvs_http_stream *stream, json_t *object)
{
    struct heard *heard = kvb_container_of(stream, struct heard, stream);
    char *text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
    kvb_assert(text != NULL && !heard->over);
    for (const char *at = text; *at != '\0'; at++) {
        heard->sum = heard->sum * 31 + (unsigned char)*at;
    }
    free(text);
    heard->n++;
}
static void on_ended(struct kvs_http_stream *stream)
{
    struct heard *heard = kvb_container_of(stream, struct heard, stream);
    kvb_assert(!heard->over && !kvs_http_streaming(stream));
    heard->over = true;
}

static void hear(struct kvs_http *http, struct sim_sched *sim, struct heard *heard, char *text,
                 size_t len, size_t step)
{
    *heard = (struct heard){.stream = {.object = on_object, .ended = on_ended}};
    kvs_http_stream_open(http, "/v3/watch", strdup("{}"), &heard->stream);
    for (size_t at = 0; at < len && !heard->over; at += step) {
        size_t n = step < len - at ? step : len - at;
        if (on_stream_data(text + at, 1, n, &heard->stream) != n) {
            break;
        }
        sim_settle(sim);
    }
    kvs_http_stream_close(&heard->stream);
}

/* ---- calls ---- */

static void on_done(struct kvs_http_call *call, kvb_status_t status, json_t *answer)
{
    (void)call;
    ended++;
    kvb_assert(status == KVB_OK || status == KVB_ERR_NOT_FOUND || status == KVB_ERR_REFUSED ||
               status == KVB_ERR_UNAVAILABLE);
    kvb_assert((status == KVB_OK) == json_is_object(answer));
}

static struct kvs_http_call *under_way(struct kvs_http *http)
{
    kvb_list_each(&http->calls, link)
    {
        struct kvs_http_call *call = kvb_container_of(link, struct kvs_http_call, impl.link);
        if (call->impl.transfer.easy != NULL) {
            return call;
        }
    }
    return NULL;
}

static void answer(struct kvs_http_call *call, char *line, size_t step)
{
    char *text = line;
    http_status = strtol(line, &text, 10);
    text += *text == ' ';
    CURLcode result = CURLE_OK;
    size_t len = strlen(text);
    for (size_t at = 0; at < len && result == CURLE_OK; at += step) {
        size_t n = step < len - at ? step : len - at;
        result = on_call_data(text + at, 1, n, call) == n ? CURLE_OK : CURLE_WRITE_ERROR;
    }
    on_call_over(&call->impl.transfer, http_status == 0 ? CURLE_COULDNT_CONNECT : result);
}

static void call_and_answer(struct kvs_http *http, struct sim_sched *sim, struct fuzz_lines lines,
                            size_t step)
{
    struct kvs_http_call calls[2] = {{.done = on_done}, {.done = on_done}};
    ended = 0;
    for (int i = 0; i < 2; i++) {
        kvs_http_call(http, "/v3/kv/txn", strdup("{}"), 0, &calls[i]);
    }
    for (char *line; (line = fuzz_line(&lines)) != NULL; free(line)) {
        struct kvs_http_call *call = under_way(http);
        if (call != NULL) {
            answer(call, line, step);
        }
        sim_settle(sim);
        if (under_way(http) == NULL) {
            sim_advance(sim, ROUND_PAUSE_MS);
        }
    }
    sim_advance(sim, 10000);
    kvb_assert(ended == 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sim_sched sim;
    struct kvb_io io = {.ops = &io_ops};
    if (size == 0) {
        return 0;
    }
    kvb_log_threshold = KVB_LOG_ERROR;
    sim_init(&sim, 1);
    struct kvs_http *http = create(&sim, &io, (data[0] & 2) != 0);
    size_t step = (size_t)(data[0] >> 2) + 1;
    if ((data[0] & 1) != 0) {
        struct heard whole, split;
        char *text = malloc(size);
        kvb_assert(text != NULL);
        memcpy(text, data + 1, size - 1);
        hear(http, &sim, &whole, text, size - 1, size);
        hear(http, &sim, &split, text, size - 1, step);
        kvb_assert(whole.n == split.n && whole.sum == split.sum && whole.over == split.over);
        free(text);
    } else {
        call_and_answer(http, &sim, (struct fuzz_lines){(const char *)data + 1, size - 1}, step);
    }
    kvs_http_destroy(http);
    sim_cleanup(&sim);
    return 0;
}
