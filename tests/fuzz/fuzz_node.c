/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store node's routes over a real share that holds a few objects. Lines: `METHOD PATH?QUERY`;
 * what a path is not begins with: `+KEY` puts an object, `-` closes with what is open.
 *
 * Each request is answered exactly once, with JSON, and a refusal says why; what one tenant asks
 * takes nothing of another's, and what the node says it holds is what it holds.
 */
#define TEST_STORE_MEMORY (64ull << 10)
#include "fuzz.h"
#include "http/params.h"
#include "node/control.h"
#include "node/routes.h"
#include "test_store.h"

#include "base/log.h"

enum { REQUESTS_MAX = 32, VALUE = 4096, PUTS_MAX = 8 };

struct asked {
    struct kvp_request request;
    uint32_t replies;
    bool submitted;
};

static struct {
    struct test_store store;
    struct kvp_node_control *control;
    struct asked asked[REQUESTS_MAX];
    uint32_t n, puts;
    bool closed;
    bool others_named; /* in a request */
} on;
static const struct kvs_node_record record = {.name = "s", .address = "h:1"};

static void drain(void *ctx)
{
    (void)ctx;
}
static uint32_t running(void *ctx)
{
    (void)ctx;
    return 0;
}
static void no_wake(void *ctx)
{
    (void)ctx;
}

static void on_reply(struct kvp_request *request, unsigned code, json_t *body, unsigned retry_s)
{
    struct asked *asked = kvb_container_of(request, struct asked, request);
    char *text = json_dumps(body, JSON_COMPACT);
    const json_t *error = json_object_get(body, "error");

    (void)retry_s;
    kvb_assert(++asked->replies == 1 && json_is_object(body) && text != NULL);
    kvb_assert(code >= 200 && code < 600 && (code < 400) == (error == NULL));
    if (error != NULL) {
        fuzz_told(json_string_value(json_object_get(error, "message")));
    }
    free(text);
    json_decref(body);
    memset(request, 0xdd, sizeof *request); /* it is gone: whoever looks at it is caught */
}

static void put(const char *key, const char *tenant)
{
    size_t len = strlen(key);
    if (len == 0 || len > KVS_CORE_KEY_MAX || on.puts++ == PUTS_MAX) {
        return;
    }
    strcpy(on.store.space.tenant, tenant);
    (void)test_put(&on.store, key, len, VALUE, 1);
    strcpy(on.store.space.tenant, "t");
}

/* Another tenant's object, which nothing may have touched that did not name it. */
static bool others_is_there(void)
{
    strcpy(on.store.space.tenant, "other");
    kvb_status_t status = test_exists(&on.store, "theirs", 6);
    strcpy(on.store.space.tenant, "t");
    return status == KVB_OK;
}

static void ask(char *line)
{
    char *target = strchr(line, ' ');
    const struct kvp_route *route;
    struct kvp_param_error wrong;
    char arg[KVP_PATH_ARG_MAX];
    struct asked *asked = &on.asked[on.n];
    if (target == NULL || on.n == REQUESTS_MAX) {
        return;
    }
    *target++ = '\0';
    size_t len = strcspn(target, "?");
    const char *query = target[len] == '?' ? target + len + 1 : NULL;
    if (kvp_route_find(&kvp_store_route_table, line, target, len, &route, arg) != KVP_FOUND ||
        route->where != KVP_CONTROL) {
        return;
    }
    asked->request.route = route;
    asked->request.reply = on_reply;
    if (kvp_params_read(route, query, NULL, &asked->request.params, asked->request.instance,
                        &wrong) != KVB_OK) {
        fuzz_told(wrong.param);
        fuzz_told(wrong.message);
        return;
    }
    on.others_named = on.others_named || strcmp(asked->request.params.tenant, "other") == 0;
    kvb_status_t status = kvp_inbox_submit(kvp_node_control_inbox(on.control), &asked->request);
    kvb_assert(status == KVB_OK || on.closed || status == KVB_ERR_AGAIN);
    asked->submitted = status == KVB_OK;
    on.n++;
    kvp_node_control_run(on.control);
    sim_advance(&on.store.sim, 1);
    kvb_assert(on.others_named || others_is_there()); /* what was asked before may go on */
}

static void begin(void)
{
    const struct test_store_config shape = {.share_bytes = MIB(1), .shards = 2, .events = 16};
    memset(&on, 0, sizeof on);
    test_store_open(&on.store, &shape, false);
    kvb_log_threshold = KVB_LOG_ERROR;
    const struct kvp_node_control_config config = {.sched = &on.store.sim.sched,
                                                   .share = on.store.share,
                                                   .client = on.store.client,
                                                   .record = &record,
                                                   .queue_max = 2,
                                                   .wake = no_wake,
                                                   .drain = drain,
                                                   .running = running};
    kvb_status_t status = kvp_node_control_create(&config, &on.control);
    kvb_assert(status == KVB_OK);
    put("k1", "t");
    put("theirs", "other");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_lines lines = {(const char *)data, size};
    char *line;
    begin();
    while ((line = fuzz_line(&lines)) != NULL) {
        if (line[0] == '+') {
            put(line + 1, "t");
        } else if (line[0] == '-') {
            kvp_node_control_close(on.control);
            on.closed = true;
        } else {
            ask(line);
        }
        free(line);
    }
    (void)test_stats(&on.store);
    kvp_node_control_close(on.control);
    sim_advance(&on.store.sim, 10000);
    for (uint32_t i = 0; i < on.n; i++) {
        kvb_assert(on.asked[i].replies == on.asked[i].submitted);
    }
    kvp_node_control_destroy(on.control);
    test_store_close(&on.store);
    return 0;
}
