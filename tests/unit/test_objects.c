/* SPDX-License-Identifier: Apache-2.0 */
/* Objects by key alone, over nodes of a real client that do what the test says. */
#include "control.h"
#include "fake_fleet.h"
#include "fake_node.h"
#include "http/params.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

enum { NODES = 3 };

static struct sim_sched sim;
static struct kvs_client *client;
static struct fake_node nodes[NODES];
static struct kvp_fleet fleet;
static struct kvs_coordinator coordinator;
static struct kvp_cluster cluster;
static struct kvp_control *control;
static uint32_t quiets;

#define LINEAGE "lineage=00000000000000010000000000000001"
#define OBJECT  "tenant=t&layout=l&" LINEAGE "&key=6b31&part=2" /* k1 */

static const struct kvs_node_record records[NODES] = {
    {.name = "n0", .capacity_bytes = 1}, {.name = "n1", .capacity_bytes = 1}, {.name = "n2"}};

static void ignore(void *ctx)
{
    (void)ctx;
}

static void count_quiet(void *ctx)
{
    (void)ctx;
    quiets++;
}

static void begin(void)
{
    sim_init(&sim, sim_seed(1));
    cr_assert_eq(kvs_client_create(&sim.sched, &client), KVB_OK);
    for (uint32_t i = 0; i < NODES; i++) {
        fake_node_init(&nodes[i], &sim);
        nodes[i].with = KVB_ERR_NOT_FOUND;
        cr_assert_eq(kvs_client_add_node(client, records[i].name, &nodes[i].base, 1), KVB_OK);
        cluster.nodes[i] = (struct kvp_cluster_node){.record = &records[i], .used = true};
    }
    cluster.nnodes = NODES;
    fake_fleet_add(&fleet, "engine-0");
    const struct kvp_control_config config = {.fleet = &fleet,
                                              .coordinator = &coordinator,
                                              .cluster = &cluster,
                                              .client = client,
                                              .sched = &sim.sched,
                                              .clock = sim.sched.clock,
                                              .queue_max = 4,
                                              .wake = ignore,
                                              .quiet = count_quiet};
    cr_assert_eq(kvp_control_create(&config, &control), KVB_OK);
}

static void end(void)
{
    kvp_control_close(control);
    sim_advance(&sim, 1000);
    kvp_control_destroy(control);
    kvs_client_destroy(client);
    sim_cleanup(&sim);
}

TestSuite(objects, .init = begin, .fini = end);

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

static void submit_with(struct asked *asked, enum kvp_route_id route, const char *query,
                        json_t *body)
{
    struct kvp_param_error wrong;
    memset(asked, 0, sizeof *asked);
    asked->request.json = body;
    asked->request.route = &kvp_routes[route];
    asked->request.reply = told;
    cr_assert_eq(kvp_params_read(asked->request.route, query, NULL, &asked->request.params,
                                 asked->request.instance, &wrong),
                 KVB_OK, "%s", wrong.message);
    cr_assert_eq(kvp_inbox_submit(kvp_control_inbox(control), &asked->request), KVB_OK);
    kvp_control_run(control);
}

static void submit(struct asked *asked, enum kvp_route_id route, const char *query)
{
    submit_with(asked, route, query, NULL);
}

/* The code, and "n0=ok n1=not_found …". */
static unsigned ask(enum kvp_route_id route, const char *query, char said[256], json_t **body_p)
{
    struct asked asked;
    size_t i;
    json_t *node;
    submit(&asked, route, query);
    sim_advance(&sim, 10);
    cr_assert_eq(asked.replies, 1);
    said[0] = '\0';
    json_array_foreach(json_object_get(asked.body, "nodes"), i, node)
    {
        size_t used = strlen(said);
        snprintf(said + used, 256 - used, "%s%s=%s", i > 0 ? " " : "",
                 json_string_value(json_object_get(node, "node")),
                 json_string_value(json_object_get(node, "result")));
    }
    if (body_p != NULL) {
        *body_p = asked.body;
    } else {
        json_decref(asked.body);
    }
    return asked.code;
}

static char said[256];

Test(objects, every_node_is_asked_and_the_answer_tells_of_each)
{
    json_t *body;
    nodes[1].with = KVB_OK;
    cr_expect_eq(ask(KVP_ROUTE_get_object, OBJECT, said, &body), 200);
    cr_expect_str_eq(said, "n0=not_found n1=ok n2=not_found");
    json_t *want = json_loads("{\"tenant\":\"t\",\"layout\":\"l\",\"lineage\":"
                              "\"00000000000000010000000000000001\",\"key\":\"6b31\",\"group\":0,"
                              "\"part\":2,\"exists\":true,\"bytes\":7,\"nodes_silent\":0}",
                              0, NULL);
    json_object_del(body, "nodes");
    cr_expect(json_equal(want, body));
    json_decref(want);
    json_decref(body);
    for (uint32_t i = 0; i < NODES; i++) {
        cr_expect_eq(nodes[i].calls_taken, 1);
    }
}

/* What two nodes and a third say: what is answered. */
Test(objects, what_some_nodes_do_not_say_is_not_taken_for_no)
{
    static const struct {
        enum kvp_route_id route;
        kvb_status_t with[NODES];
        unsigned code;
    } cases[] = {
        {KVP_ROUTE_get_object, {KVB_ERR_NOT_FOUND, KVB_ERR_NOT_FOUND, KVB_ERR_NOT_FOUND}, 404},
        {KVP_ROUTE_get_object, {KVB_ERR_NOT_FOUND, KVB_ERR_TIMEOUT, KVB_ERR_NOT_FOUND}, 503},
        {KVP_ROUTE_get_object, {KVB_ERR_UNAVAILABLE, KVB_OK, KVB_ERR_TIMEOUT}, 200},
        {KVP_ROUTE_remove_object, {KVB_ERR_NOT_FOUND, KVB_OK, KVB_ERR_NOT_FOUND}, 200},
        {KVP_ROUTE_remove_object, {KVB_ERR_NOT_FOUND, KVB_OK, KVB_ERR_UNAVAILABLE}, 503},
        {KVP_ROUTE_remove_object, {KVB_ERR_BUSY, KVB_OK, KVB_ERR_UNAVAILABLE}, 409},
        {KVP_ROUTE_remove_object, {KVB_ERR_NOT_FOUND, KVB_ERR_NOT_FOUND, KVB_ERR_NOT_FOUND}, 404},
        {KVP_ROUTE_pin_object, {KVB_ERR_NOT_FOUND, KVB_OK, KVB_ERR_UNAVAILABLE}, 200},
        {KVP_ROUTE_pin_object, {KVB_ERR_NOT_FOUND, KVB_ERR_TIMEOUT, KVB_ERR_NOT_FOUND}, 503},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char want[256] = "";
        for (uint32_t n = 0; n < NODES; n++) {
            nodes[n].with = cases[i].with[n];
            size_t used = strlen(want);
            snprintf(want + used, sizeof want - used, "%sn%u=%s", n > 0 ? " " : "", n,
                     kvb_status_label(cases[i].with[n]));
        }
        cr_expect_eq(ask(cases[i].route, OBJECT "&pin=hard", said, NULL), cases[i].code, "case %zu",
                     i);
        cr_expect_str_eq(said, want);
        sim_advance(&sim, 5000); /* a node that was left alone may be asked again */
    }
}

Test(objects, a_node_that_is_silent_or_not_used_holds_nobody_up)
{
    struct asked asked;
    nodes[0].answer = FAKE_SILENT;
    nodes[1].with = KVB_OK;
    cluster.nodes[2].record = &(struct kvs_node_record){.name = "unused"};
    submit(&asked, KVP_ROUTE_get_object, OBJECT);
    sim_advance(&sim, 1000);
    cr_assert_eq(asked.replies, 1);
    cr_expect_eq(asked.code, 200);
    cr_expect_eq(json_integer_value(json_object_get(asked.body, "nodes_silent")), 2);
    json_decref(asked.body);
    /* It is sick by now: it is not waited for. */
    cr_expect_eq(ask(KVP_ROUTE_get_object, OBJECT, said, NULL), 200);
    cr_expect_str_eq(said, "n0=unavailable n1=ok unused=unavailable");
    cluster.nnodes = 0;
    cr_expect_eq(ask(KVP_ROUTE_get_object, OBJECT, said, NULL), 503);
}

Test(objects, what_is_not_given_of_the_namespace_is_the_instance_s)
{
    json_t *body;
    nodes[1].with = KVB_OK;
    fleet.views[0].lineage.id = (struct kvb_id){7, 9};
    cr_expect_eq(ask(KVP_ROUTE_get_object, "key=6b31", said, &body), 200);
    cr_expect_str_eq(json_string_value(json_object_get(body, "tenant")), "default");
    cr_expect_str_eq(json_string_value(json_object_get(body, "layout")), "layout-1");
    cr_expect_str_eq(json_string_value(json_object_get(body, "lineage")),
                     "00000000000000070000000000000009");
    json_decref(body);
    cr_expect_eq(ask(KVP_ROUTE_get_object, "key=6b31&instance=nobody", said, NULL), 404);
    cr_expect_eq(ask(KVP_ROUTE_get_object, OBJECT "&instance=nobody", said, NULL), 200,
                 "nothing of it is needed");
    fake_fleet_add(&fleet, "engine-1");
    cr_expect_eq(ask(KVP_ROUTE_get_object, "key=6b31", said, NULL), 400);
    cr_expect_eq(ask(KVP_ROUTE_get_object, "key=6b31&instance=engine-1", said, NULL), 200);
    uint32_t taken = nodes[0].calls_taken;
    cr_expect_eq(ask(KVP_ROUTE_remove_object, "instance=engine-1", said, NULL), 400, "key");
    cr_expect_eq(ask(KVP_ROUTE_pin_object, OBJECT, said, NULL), 400, "pin");
    cr_expect_eq(nodes[0].calls_taken, taken);
}

Test(objects, what_is_open_at_the_end_is_answered_once_and_ended)
{
    struct asked asked;
    nodes[0].answer = FAKE_SILENT;
    submit(&asked, KVP_ROUTE_get_object, OBJECT);
    cr_expect_not(kvp_control_quiet(control));
    quiets = 0;
    kvp_control_close(control);
    cr_expect_eq(asked.replies, 1);
    cr_expect_eq(asked.code, 503);
    json_decref(asked.body);
    cr_expect_eq(quiets, 0, "never inside the call");
    sim_advance(&sim, 10);
    cr_expect(kvp_control_quiet(control));
    cr_expect_eq(quiets, 1);
    cr_expect_eq(asked.replies, 1);
}

/* ---- many keys at once ---- */

static unsigned ask_for(const char *body_text, json_t **body_p)
{
    struct asked asked;
    json_t *body = json_loads(body_text, 0, NULL);
    submit_with(&asked, KVP_ROUTE_list_existing, "tenant=t&layout=l&" LINEAGE, body);
    sim_advance(&sim, 10);
    cr_assert_eq(asked.replies, 1);
    json_decref(body);
    *body_p = asked.body;
    return asked.code;
}

static json_t *object_of(const json_t *body, size_t i)
{
    return json_array_get(json_object_get(body, "objects"), i);
}

Test(objects, of_many_keys_each_is_told_in_the_order_asked)
{
    json_t *body;
    nodes[1].with = KVB_OK;
    cr_expect_eq(ask_for("{\"keys\":[\"6b31\",\"6B32\",\"00\"]}", &body), 200);
    cr_assert_eq(json_array_size(json_object_get(body, "objects")), 3);
    static const char *const keys[] = {"6b31", "6b32", "00"};
    for (size_t i = 0; i < 3; i++) {
        const json_t *object = object_of(body, i);
        cr_expect_str_eq(json_string_value(json_object_get(object, "key")), keys[i]);
        cr_expect(json_is_true(json_object_get(object, "exists")));
        cr_expect_eq(json_array_size(json_object_get(object, "nodes")), 1);
        cr_expect_str_eq(json_string_value(json_array_get(json_object_get(object, "nodes"), 0)),
                         "n1");
    }
    cr_expect_eq(json_integer_value(json_object_get(body, "nodes_silent")), 0);
    json_decref(body);
    nodes[1].with = KVB_ERR_NOT_FOUND;
    cr_expect_eq(ask_for("{\"keys\":[\"6b31\"]}", &body), 200);
    cr_expect(json_is_false(json_object_get(object_of(body, 0), "exists")));
    cr_expect_null(json_object_get(object_of(body, 0), "bytes"));
    json_decref(body);
    nodes[2].with = KVB_ERR_TIMEOUT; /* it may have it */
    cr_expect_eq(ask_for("{\"keys\":[\"6b31\"]}", &body), 200);
    cr_expect(json_is_null(json_object_get(object_of(body, 0), "exists")));
    cr_expect_eq(json_integer_value(json_object_get(body, "nodes_silent")), 1);
    json_decref(body);
}

Test(objects, what_is_no_list_of_keys_is_400_and_nobody_is_asked)
{
    static const char *const bad[] = {"{}",
                                      "{\"keys\":[]}",
                                      "{\"keys\":\"6b31\"}",
                                      "{\"keys\":[\"6b31\",7]}",
                                      "{\"keys\":[\"6b3\"]}",
                                      "{\"keys\":[\"6b31\",\"\"]}",
                                      "{\"keys\":[null]}"};
    json_t *body;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(ask_for(bad[i], &body), 400, "%s", bad[i]);
        cr_expect_str_eq(
            json_string_value(json_object_get(json_object_get(body, "error"), "param")),
            "body.keys");
        json_decref(body);
        cr_expect(kvp_control_quiet(control));
    }
    json_t *keys = json_array();
    for (int i = 0; i < 1001; i++) {
        (void)json_array_append_new(keys, json_string("00"));
    }
    for (int more = 1; more >= 0; more--) {
        json_t *asked_body = json_pack("{s:O}", "keys", keys);
        char *text = json_dumps(asked_body, 0);
        cr_expect_eq(ask_for(text, &body), more ? 400 : 200);
        free(text);
        json_decref(asked_body);
        json_decref(body);
        (void)json_array_remove(keys, 0);
    }
    json_decref(keys);
}

/* ---- lists ---- */

/* Page after page; " key key …", and what was silent as " !node=result". */
static void list_pages(const char *query, unsigned limit, char *keys, size_t cap)
{
    char next[KVP_CURSOR_MAX + 32] = "";
    keys[0] = '\0';
    do {
        struct asked asked;
        char whole[KVP_CURSOR_MAX + 256];
        size_t i;
        const json_t *row;
        snprintf(whole, sizeof whole, "%s&limit=%u%s", query, limit, next);
        submit(&asked, KVP_ROUTE_get_object, whole);
        sim_advance(&sim, 10);
        cr_assert_eq(asked.replies, 1);
        cr_assert_eq(asked.code, 200, "%s", whole);
        const json_t *objects = json_object_get(asked.body, "objects");
        cr_expect_leq(json_array_size(objects), limit);
        json_array_foreach(objects, i, row)
        {
            uint8_t key[64];
            size_t len;
            size_t used = strlen(keys);
            cr_assert(kvp_hex_read(json_string_value(json_object_get(row, "key")), key, sizeof key,
                                   &len));
            snprintf(keys + used, cap - used, " %.*s", (int)len, (const char *)key);
        }
        const json_t *silent = json_object_get(asked.body, "silent");
        cr_expect_eq(json_integer_value(json_object_get(asked.body, "nodes_silent")),
                     (json_int_t)json_array_size(silent));
        json_array_foreach(silent, i, row)
        {
            size_t used = strlen(keys);
            snprintf(keys + used, cap - used, " !%s=%s",
                     json_string_value(json_object_get(row, "node")),
                     json_string_value(json_object_get(row, "result")));
        }
        const char *cursor = json_string_value(json_object_get(asked.body, "next"));
        cr_assert_not_null(json_object_get(asked.body, "next"));
        next[0] = '\0';
        if (cursor != NULL) {
            snprintf(next, sizeof next, "&cursor=%s", cursor);
        }
        json_decref(asked.body);
    } while (next[0] != '\0');
}

Test(objects, a_namespace_is_listed_page_by_page_over_all_nodes)
{
    static const struct kvs_node_record shuffled[] = {
        {.name = "n2"}, {.name = "n0"}, {.name = "n1"}};
    char keys[512];
    for (uint32_t i = 0; i < NODES; i++) {
        cluster.nodes[i].record = &shuffled[i];
        cluster.list_objects[i] = 4 - i;
    }
    for (unsigned limit = 1; limit <= 12; limit++) {
        list_pages("namespace=t", limit, keys, sizeof keys);
        cr_expect_str_eq(keys, " n0/0 n0/1 n0/2 n1/0 n1/1 n2/0 n2/1 n2/2 n2/3", "by %u", limit);
    }
    list_pages("namespace=t&layout=m&" LINEAGE, 5, keys, sizeof keys);
    cr_expect_str_eq(cluster.asked_list.tenant, "t");
    cr_expect_str_eq(cluster.asked_list.layout, "m");
    cr_expect_eq(cluster.asked_list.lineage.id.lo, 1);

    struct asked asked;
    submit(&asked, KVP_ROUTE_get_object, "namespace=t&limit=1");
    json_t *want = json_loads(
        "{\"namespace\":\"t\",\"objects\":[{\"key\":\"6e302f30\",\"tenant\":\"t\",\"layout\":"
        "\"l\",\"lineage\":\"00000000000000000000000000000000\",\"group\":0,\"part\":0,\"bytes\":"
        "7,\"pin\":\"soft\",\"node\":\"n0\"}],\"silent\":[],\"nodes_silent\":0,"
        "\"next\":\"objects:n0/0.0.1\"}",
        0, NULL);
    cr_expect(json_equal(want, asked.body));
    json_decref(want);
    json_decref(asked.body);
    cluster.nnodes = 0;
    list_pages("namespace=t", 5, keys, sizeof keys);
    cr_expect_str_eq(keys, "");
}

Test(objects, a_node_that_does_not_answer_is_named_in_the_list_and_the_rest_is_there)
{
    char keys[512];
    for (uint32_t i = 0; i < NODES; i++) {
        cluster.list_objects[i] = 2;
    }
    cluster.list_status[1] = KVB_ERR_UNAVAILABLE;
    list_pages("namespace=t", 10, keys, sizeof keys);
    cr_expect_str_eq(keys, " n0/0 n0/1 n2/0 n2/1 !n1=unavailable");
    struct asked asked; /* it answers in the end that it did not */
    cluster.list_status[1] = KVB_IN_PROGRESS;
    submit(&asked, KVP_ROUTE_get_object, "namespace=t");
    cr_expect_eq(asked.replies, 0);
    cluster.list_ask->done(cluster.list_ask, KVB_ERR_TIMEOUT);
    cr_assert_eq(asked.replies, 1);
    cr_expect_eq(json_array_size(json_object_get(asked.body, "objects")), 4);
    cr_expect(json_is_null(json_object_get(asked.body, "next")));
    json_decref(asked.body);
    /* and where the time is over, the page ends; the next one goes on behind it */
    submit(&asked, KVP_ROUTE_get_object, "namespace=t");
    sim_advance(&sim, 2000);
    cluster.list_ask->done(cluster.list_ask, KVB_ERR_TIMEOUT);
    cr_assert_eq(asked.replies, 1);
    cr_expect_eq(json_array_size(json_object_get(asked.body, "objects")), 2);
    cr_expect_str_eq(json_string_value(json_object_get(asked.body, "next")), "objects:n2/0.0.0");
    json_decref(asked.body);
}

Test(objects, a_list_that_is_open_at_the_end_is_answered_once_and_ended)
{
    struct asked asked;
    cluster.list_status[0] = KVB_IN_PROGRESS;
    submit(&asked, KVP_ROUTE_get_object, "namespace=t");
    cr_expect_not(kvp_control_quiet(control));
    quiets = 0;
    kvp_control_close(control);
    cr_expect_eq(asked.replies, 1);
    cr_expect_eq(asked.code, 503);
    json_decref(asked.body);
    uint32_t asked_so_far = cluster.nlists;
    cluster.list_ask->done(cluster.list_ask, KVB_OK);
    cr_expect_eq(cluster.nlists, asked_so_far, "nobody else is asked for it");
    cr_expect(kvp_control_quiet(control));
    cr_expect_eq(quiets, 1);
    cr_expect_eq(asked.replies, 1);
}

Test(objects, what_is_no_place_in_a_list_is_400)
{
    static const char *const wrong[] = {
        "cursor=nodes:n0",
        "cursor=objects:n0",
        "cursor=objects:n0/1.2",
        "cursor=objects:n0/a.b.c",
        "cursor=objects:n0/1.2.3.4",
        "cursor=objects:/1.2.3",
        "key=6b31",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char query[128];
        snprintf(query, sizeof query, "namespace=t&%s", wrong[i]);
        cr_expect_eq(ask(KVP_ROUTE_get_object, query, said, NULL), 400, "%s", wrong[i]);
    }
    cr_expect_eq(cluster.nlists, 0);
    char keys[64];
    list_pages("namespace=t&cursor=objects:n1/0.0.0", 5, keys, sizeof keys);
    cr_expect_eq(cluster.nlists, 2, "n0 is behind it");
}
