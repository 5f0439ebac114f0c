/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver of a vLLM or SGLang server that answers anything. First line: `v` or `s`. Then lines:
 * digits, the HTTP status, a blank and the answer to the oldest request (a tab in it is the end of
 * a line); or a letter:
 *
 *   x  its connection breaks      n  nobody listens      w, W  time passes (a look, a bound)
 *   a, i, k  pause: abort, wait, keep   u  resume        c, C  reset, preempting
 *   o, d TAG  release: offload, discard   s TAG  restore   t  state   l  it has left
 *   rMETHOD BODY  relay           g  disconnect
 *
 * Each call ends once, and nothing is asked of a server that has not answered what moves memory.
 */
#include "driver/engine.h"
#include "fuzz.h"
#include "sim_sched.h"

#include "base/log.h"

enum { CALLS_MAX = 48 };

struct kvp_instance {
    bool attached;
};

static struct {
    struct sim_sched sim;
    struct kvp_driver *driver;
    struct kvp_instance instance;
    struct kvp_stay stay;
    struct kvp_rank *rank;
    struct kvb_list asks;
    uint32_t calls, called;
    bool ended[CALLS_MAX];
} on;

/* ---- the server ---- */

struct ask {
    struct kvb_list link;
    struct kvp_web_call *call;
};

static void web_start(void *ctx, const struct kvp_web_ask *what, struct kvp_web_call *call)
{
    struct ask *ask = calloc(1, sizeof *ask);
    (void)ctx;
    kvb_assert(ask != NULL && call->impl == NULL);
    kvb_assert(strncmp(what->url, "http://h:1/", 11) == 0);
    kvb_assert(strpbrk(what->url, " \r\n") == NULL); /* what a body says does not write requests */
    ask->call = call;
    call->impl = ask;
    kvb_list_push_back(&on.asks, &ask->link);
}

static void web_cancel(void *ctx, struct kvp_web_call *call)
{
    struct ask *ask = call->impl;
    (void)ctx;
    if (ask != NULL) {
        call->impl = NULL;
        kvb_list_remove(&ask->link);
        free(ask);
    }
}

static const struct kvp_web_ops web = {.start = web_start, .cancel = web_cancel};

static void web_answer(kvb_status_t status, unsigned http_status, const char *body)
{
    struct kvb_list *link = kvb_list_first(&on.asks);
    if (link == NULL) {
        return;
    }
    struct kvp_web_call *call = kvb_container_of(link, struct ask, link)->call;
    size_t len = strlen(body);
    char *copy = malloc(len + 1); /* exactly: one byte too many is seen */
    kvb_assert(copy != NULL);
    memcpy(copy, body, len + 1);
    for (char *at = copy; (at = strchr(at, '\t')) != NULL; at++) {
        *at = '\n';
    }
    const struct kvp_web_answer answer = {.status = status,
                                          .http_status = http_status,
                                          .body = copy,
                                          .len = len,
                                          .why = status == KVB_OK ? "" : "it broke"};
    web_cancel(NULL, call);
    call->done(call, &answer);
    free(copy);
}

/* ---- the fleet ---- */

kvb_status_t kvp_fleet_hello(struct kvp_fleet *fleet, const struct kvb_link_hello *hello,
                             struct kvp_rank *rank, char *reason, size_t reason_cap,
                             struct kvp_instance **instance_p)
{
    (void)fleet, (void)reason, (void)reason_cap;
    kvb_assert(on.rank == NULL && kvb_name_valid(hello->instance));
    kvb_assert(kvb_utf8_printable(hello->model, strlen(hello->model)));
    rank->stay = &on.stay;
    on.rank = rank;
    *instance_p = &on.instance;
    return KVB_OK;
}
void kvp_instance_rank_gone(struct kvp_instance *instance, struct kvp_rank *rank,
                            const char *reason)
{
    (void)instance;
    kvb_assert(rank == on.rank && on.called == on.calls);
    fuzz_told(reason);
    on.rank = NULL;
}
void kvp_instance_report(struct kvp_instance *instance, struct kvp_rank *rank,
                         const struct kvb_load *load)
{
    (void)instance, (void)load;
    kvb_assert(rank == on.rank);
}

static void on_done(void *arg, kvb_status_t status, const union kvp_rank_reply *reply)
{
    bool *ended = arg;
    kvb_assert(!*ended && status <= 0);
    *ended = true;
    on.called++;
    (void)reply;
    const char *cause = on.rank->ops->cause(on.rank->impl);
    kvb_assert(cause[0] == '\0' || kvb_utf8_printable(cause, strlen(cause)));
}

static void call(enum kvb_link_type type, const void *msg)
{
    if (on.calls == CALLS_MAX) {
        return;
    }
    bool *ended = &on.ended[on.calls++];
    on.rank->ops->call(on.rank->impl, type, msg, sim_in_ms(&on.sim, 5000), on_done, ended);
    kvb_assert(!*ended);
}

static void release(const char *tag, bool offload)
{
    struct kvb_link_release msg = {.commit = true, .ntags = 1};
    (void)snprintf(msg.tags[0].tag, sizeof msg.tags[0].tag, "%s",
                   tag[0] == 'w' ? "weights" : "kv_cache");
    msg.tags[0].offload = offload;
    call(KVB_LINK_RELEASE, &msg);
}

static void relay(char *text)
{
    char *body = strchr(text, ' ');
    struct kvb_link_relay msg = {.operation = 1};
    size_t len = body != NULL ? (size_t)(body - text) : strlen(text);
    if (len == 0 || len >= sizeof msg.method || !kvb_utf8_printable(text, len)) {
        return; /* the link's own rule */
    }
    memcpy(msg.method, text, len);
    msg.body = (struct kvb_span){(const uint8_t *)(body != NULL ? body + 1 : ""),
                                 body != NULL ? strlen(body + 1) : 0};
    call(KVB_LINK_RELAY, &msg);
}

static void act(char *line)
{
    const struct kvb_link_lineage left = {.left = true};
    struct kvb_link_restore restore = {.ntags = 1};
    switch (line[0]) {
    case 'x':
        web_answer(KVB_ERR_DISCONNECTED, 0, "");
        return;
    case 'n':
        web_answer(KVB_ERR_REFUSED, 0, "");
        return;
    case 'w':
    case 'W':
        sim_advance(&on.sim, line[0] == 'w' ? 1000 : 6000);
        return;
    default:
        break;
    }
    if (on.rank == NULL) {
        return;
    }
    switch (line[0]) {
    case 'a':
    case 'i':
    case 'k':
        call(KVB_LINK_PAUSE, &(struct kvb_link_pause){.mode = line[0] == 'a'   ? KVB_PAUSE_ABORT
                                                              : line[0] == 'i' ? KVB_PAUSE_WAIT
                                                                               : KVB_PAUSE_KEEP});
        return;
    case 'u':
        call(KVB_LINK_RESUME, &(struct kvb_link_resume){.operation = 1});
        return;
    case 'c':
    case 'C':
        call(KVB_LINK_RESET_LOCAL, &(struct kvb_link_reset_local){.preempt = line[0] == 'C'});
        return;
    case 'o':
    case 'd':
        release(line + 1, line[0] == 'o');
        return;
    case 's':
        strcpy(restore.tags[0], line[1] == 'w' ? "weights" : "kv_cache");
        call(KVB_LINK_RESTORE, &restore);
        return;
    case 't':
        call(KVB_LINK_STATE, NULL);
        return;
    case 'l':
        call(KVB_LINK_LINEAGE, &left);
        return;
    case 'r':
        relay(line + 1);
        return;
    case 'g':
        on.rank->ops->disconnect(on.rank->impl, "told to");
        return;
    default:
        return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_lines lines = {(const char *)data, size};
    struct kvp_engine_spec spec = {.kind = "vllm", .name = "engine-0", .url = "http://h:1"};
    char *line = fuzz_line(&lines);
    memset(&on, 0, sizeof on);
    kvb_list_init(&on.asks);
    kvb_log_threshold = KVB_LOG_ERROR;
    sim_init(&on.sim, 1);
    if (line != NULL && line[0] == 's') {
        strcpy(spec.kind, "sglang");
    }
    free(line);
    const struct kvp_driver_config config = {.sched = &on.sim.sched,
                                             .web = &web,
                                             .specs = &spec,
                                             .nspecs = 1,
                                             .tenant = "t",
                                             .health_interval_ms = 500,
                                             .health_ms = 2000,
                                             .misses = 3,
                                             .call_ms = 5000,
                                             .relay_ms = 5000};
    kvb_status_t status = kvp_driver_create(&config, &on.driver);
    kvb_assert(status == KVB_OK);
    sim_settle(&on.sim);
    while ((line = fuzz_line(&lines)) != NULL) {
        if (line[0] >= '0' && line[0] <= '9') {
            char *body = line;
            unsigned code = (unsigned)strtoul(line, &body, 10);
            web_answer(KVB_OK, code % 1000, body + (*body == ' '));
        } else {
            act(line);
        }
        sim_settle(&on.sim);
        free(line);
    }
    kvp_driver_stop(on.driver);
    sim_settle(&on.sim);
    kvb_assert(on.rank == NULL && on.called == on.calls && kvb_list_empty(&on.asks));
    kvp_driver_destroy(on.driver);
    sim_cleanup(&on.sim);
    return 0;
}
