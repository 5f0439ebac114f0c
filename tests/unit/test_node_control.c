/* SPDX-License-Identifier: Apache-2.0 */
/* A store node's routes over a real share. */
#include "http/params.h"
#include "node/control.h"
#include "node/routes.h"
#include "test_store.h"

#include <criterion/criterion.h>

static struct test_store store;
static struct kvp_node_control *control;
static uint32_t drains;
static const struct kvs_node_record record = {.name = "s", .address = "h:1"};

#define LINEAGE "lineage=00000000000000010000000000000001"
#define OBJECT  "tenant=t&layout=l&" LINEAGE "&key=6b31" /* k1 */
#define VALUE   ((uint64_t)8192)

static void drain(void *ctx)
{
    (void)ctx;
    drains++;
}

static uint32_t running(void *ctx)
{
    (void)ctx;
    return 3;
}

static void ignore(void *ctx)
{
    (void)ctx;
}

static void begin(void)
{
    const struct test_store_config shape = {.share_bytes = MIB(4), .shards = 2, .events = 16};
    test_store_open(&store, &shape, false);
    const struct kvp_node_control_config config = {.sched = &store.sim.sched,
                                                   .share = store.share,
                                                   .client = store.client,
                                                   .record = &record,
                                                   .queue_max = 2,
                                                   .wake = ignore,
                                                   .drain = drain,
                                                   .running = running};
    cr_assert_eq(kvp_node_control_create(&config, &control), KVB_OK);
    cr_assert_eq(test_put(&store, "k1", 2, VALUE, 1), KVB_OK);
}

static void end(void)
{
    kvp_node_control_destroy(control);
    test_store_close(&store);
}

TestSuite(node_control, .init = begin, .fini = end);

struct asked {
    struct kvp_request request;
    uint32_t replies;
    unsigned code;
    json_t *body;
};

static void told(struct kvp_request *request, unsigned code, json_t *body, unsigned retry_after_s)
{
    struct asked *asked = kvb_container_of(request, struct asked, request);
    (void)retry_after_s;
    asked->replies++;
    asked->code = code;
    asked->body = body;
    memset(request, 0xdd, sizeof *request); /* it is gone: whoever looks at it is caught */
}

static void submit(struct asked *asked, enum kvp_store_route_id route, const char *query)
{
    struct kvp_param_error wrong;
    memset(asked, 0, sizeof *asked);
    asked->request.route = &kvp_store_routes[route];
    asked->request.reply = told;
    cr_assert_eq(kvp_params_read(asked->request.route, query, NULL, &asked->request.params,
                                 asked->request.instance, &wrong),
                 KVB_OK, "%s", wrong.message);
    cr_assert_eq(kvp_inbox_submit(kvp_node_control_inbox(control), &asked->request), KVB_OK);
    kvp_node_control_run(control);
}

/* The code; *what is the text of that member of the answer. */
static unsigned ask(enum kvp_store_route_id route, const char *query, const char *member,
                    char what[128])
{
    struct asked asked;
    submit(&asked, route, query);
    sim_advance(&store.sim, 1);
    cr_assert_eq(asked.replies, 1);
    json_t *value = json_object_get(asked.body, asked.code == 200 ? member : "error");
    char *text =
        json_dumps(asked.code == 200 ? value : json_object_get(value, "param"), JSON_ENCODE_ANY);
    snprintf(what, 128, "%s", text != NULL ? text : "");
    free(text);
    json_decref(asked.body);
    return asked.code;
}

static char said[128];

Test(node_control, an_object_is_found_by_all_that_its_key_is_made_of)
{
    static const char *const others[] = {
        "tenant=u&layout=l&" LINEAGE "&key=6b31",
        "tenant=t&layout=m&" LINEAGE "&key=6b31",
        "tenant=t&layout=l&lineage=00000000000000010000000000000002&key=6b31",
        "tenant=t&layout=l&" LINEAGE "&key=6b32",
        OBJECT "&group=1",
        OBJECT "&part=1",
    };
    cr_expect_eq(ask(KVP_STORE_get_object, OBJECT, "bytes", said), 200);
    cr_expect_str_eq(said, "8192");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        cr_expect_eq(ask(KVP_STORE_get_object, others[i], "bytes", said), 404, "%s", others[i]);
    }
}

Test(node_control, what_is_missing_is_named_and_nothing_has_happened)
{
    static const struct {
        const char *query;
        const char *name;
    } cases[] = {
        {NULL, "\"tenant\""},
        {"tenant=t", "\"layout\""},
        {"tenant=t&layout=l", "\"lineage\""},
        {"tenant=t&layout=l&" LINEAGE, "\"key\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_expect_eq(ask(KVP_STORE_remove_object, cases[i].query, "status", said), 400);
        cr_expect_str_eq(said, cases[i].name);
    }
    cr_expect_eq(ask(KVP_STORE_pin_object, OBJECT, "status", said), 400);
    cr_expect_str_eq(said, "\"pin\"");
    cr_expect_eq(test_exists(&store, "k1", 2), KVB_OK);
}

Test(node_control, a_pinned_object_is_removed_only_by_force)
{
    cr_expect_eq(ask(KVP_STORE_pin_object, OBJECT "&pin=hard", "pin", said), 200);
    cr_expect_str_eq(said, "\"hard\"");
    cr_expect_eq(ask(KVP_STORE_remove_object, OBJECT, "status", said), 409);
    cr_expect_eq(test_exists(&store, "k1", 2), KVB_OK);
    cr_expect_eq(ask(KVP_STORE_remove_object, OBJECT "&force=true", "status", said), 200);
    cr_expect_eq(test_exists(&store, "k1", 2), KVB_ERR_NOT_FOUND);
    cr_expect_eq(ask(KVP_STORE_remove_object, OBJECT, "status", said), 404);
    cr_expect_eq(ask(KVP_STORE_pin_object, OBJECT "&pin=soft", "status", said), 404);
}

Test(node_control, what_matches_a_pattern_is_removed_of_that_tenant_alone)
{
    cr_assert_eq(test_put(&store, "k2", 2, VALUE, 1), KVB_OK);
    cr_assert_eq(test_put(&store, "x*", 2, VALUE, 1), KVB_OK);
    cr_expect_eq(ask(KVP_STORE_remove_object, "pattern=6b*", "removed", said), 400);
    cr_expect_str_eq(said, "\"tenant\"");
    cr_expect_eq(ask(KVP_STORE_remove_object, OBJECT "&pattern=6b*", "removed", said), 400);
    cr_expect_eq(ask(KVP_STORE_remove_object, "tenant=u&pattern=*", "removed", said), 200);
    cr_expect_str_eq(said, "0");
    cr_expect_eq(ask(KVP_STORE_pin_object, OBJECT "&pin=hard", "pin", said), 200);
    cr_expect_eq(ask(KVP_STORE_remove_object, "tenant=t&pattern=6b31", "kept", said), 200);
    cr_expect_str_eq(said, "1", "pinned");
    cr_expect_eq(ask(KVP_STORE_remove_object, "tenant=t&pattern=6b?&force=true", "removed", said),
                 200);
    cr_expect_str_eq(said, "2");
    cr_expect_eq(test_exists(&store, "x*", 2), KVB_OK);
    cr_expect_eq(ask(KVP_STORE_remove_object, "tenant=t&pattern=2a", "removed", said), 200);
    cr_expect_str_eq(said, "0", "a byte that is a star is no star");
    cr_expect_eq(ask(KVP_STORE_remove_object, "tenant=t&pattern=?2a", "removed", said), 200);
    cr_expect_str_eq(said, "1");
}

Test(node_control, events_tell_what_became_of_objects)
{
    struct asked asked;
    uint32_t stored = 0;
    for (uint32_t shard = 0; shard < 2; shard++) {
        char query[32];
        snprintf(query, sizeof query, "shard=%u", shard);
        submit(&asked, KVP_STORE_list_events, query);
        cr_assert_eq(asked.code, 200);
        json_t *events = json_object_get(asked.body, "events");
        for (size_t i = 0; i < json_array_size(events); i++) {
            json_t *event = json_array_get(events, i);
            cr_expect_str_eq(json_string_value(json_object_get(event, "event")), "stored");
            cr_expect_str_eq(json_string_value(json_object_get(event, "key")), "6b31");
            cr_expect_eq(json_integer_value(json_object_get(event, "bytes")), (json_int_t)VALUE);
            stored++;
        }
        json_decref(asked.body);
    }
    cr_expect_eq(stored, 1);
    cr_expect_eq(ask(KVP_STORE_list_events, "shard=2", "events", said), 400);
}

Test(node_control, the_node_shows_its_figures_and_leaves_when_it_is_asked)
{
    cr_expect_eq(ask(KVP_STORE_get_node, NULL, "objects", said), 200);
    cr_expect_str_eq(said, "1");
    cr_expect_eq(ask(KVP_STORE_get_node, NULL, "requests_running", said), 200);
    cr_expect_str_eq(said, "3");
    cr_expect_eq(ask(KVP_STORE_drain, NULL, "status", said), 200);
    cr_expect_str_eq(said, "\"draining\"");
    cr_expect_eq(drains, 1);
}

Test(node_control, what_is_open_at_the_end_is_answered_once)
{
    struct asked open;
    struct asked late;
    submit(&open, KVP_STORE_get_object, OBJECT);
    cr_expect_eq(open.replies, 0, "the share answers in a later turn");
    kvp_node_control_close(control);
    cr_expect_eq(open.replies, 1);
    cr_expect_eq(open.code, 503);
    sim_advance(&store.sim, 1); /* its answer goes nowhere */
    cr_expect_eq(open.replies, 1);
    memset(&late, 0, sizeof late);
    cr_expect_eq(kvp_inbox_submit(kvp_node_control_inbox(control), &late.request),
                 KVB_ERR_CANCELED);
    json_decref(open.body);
}
