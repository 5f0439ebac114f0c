/* SPDX-License-Identifier: Apache-2.0 */
#include "control.h"
#include "fake_fleet.h"
#include "http/errors.h"
#include "http/params.h"
#include "sim_sched.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvp_fleet fleet;
static struct kvs_coordinator coordinator;
static struct kvp_cluster cluster;
static struct kvp_control *control;
static struct sim_sched sim;
static uint32_t wakes;

/* A request as the HTTP side makes it, and what it was told. */
struct asked {
    struct kvp_request request;
    uint32_t replies;
    unsigned http_status;
    unsigned retry_after_s;
    json_t *body;
    char location[64];
};

static void count_wake(void *ctx)
{
    (void)ctx;
    wakes++;
}

#define QUEUE_MAX 4

#define NOW_NS (100 * KVB_NS_PER_S)

static void make(bool never_sleeps)
{
    sim_init(&sim, 1);
    sim.now_ns = NOW_NS;
    struct kvp_control_config config = {.fleet = &fleet,
                                        .coordinator = &coordinator,
                                        .cluster = &cluster,
                                        .sched = &sim.sched,
                                        .clock = sim.sched.clock,
                                        .retire_ms = 10000,
                                        .never_sleeps = never_sleeps,
                                        .queue_max = QUEUE_MAX,
                                        .wake = count_wake};
    memset(&fleet, 0, sizeof fleet);
    memset(&coordinator, 0, sizeof coordinator);
    fake_fleet_add(&fleet, "engine-0");
    memset(&cluster, 0, sizeof cluster);
    cr_assert_eq(kvp_control_create(&config, &control), KVB_OK);
}

static void setup(void)
{
    make(false);
}

static void teardown(void)
{
    kvp_control_close(control);
    fake_fleet_finish_all(&fleet, (struct kvp_outcome){.status = KVB_ERR_CANCELED});
    kvp_control_destroy(control);
}

TestSuite(control, .init = setup, .fini = teardown);

static void told(struct kvp_request *request, unsigned http_status, json_t *body,
                 unsigned retry_after_s)
{
    struct asked *asked = kvb_container_of(request, struct asked, request);

    asked->replies++;
    asked->http_status = http_status;
    asked->retry_after_s = retry_after_s;
    asked->body = body;
    strcpy(asked->location, request->location);
    free(request->body); /* as the HTTP side does */
    json_decref(request->json);
    memset(request, 0xdd, sizeof *request); /* it is gone: whoever looks at it is caught */
}

static void prepare(struct asked *asked, enum kvp_route_id route, const char *query,
                    const char *body)
{
    struct kvp_param_error wrong;

    memset(asked, 0, sizeof *asked);
    asked->request.route = &kvp_routes[route];
    asked->request.reply = told;
    strcpy(asked->request.request_id, "req-1");
    if (body != NULL) {
        asked->request.body = strdup(body);
        asked->request.body_len = strlen(body);
        asked->request.json = json_loads(body, 0, NULL);
        cr_assert_not_null(asked->request.json);
    }
    cr_assert_eq(kvp_params_read(asked->request.route, query, asked->request.json,
                                 &asked->request.params, asked->request.instance, &wrong),
                 KVB_OK, "%s", wrong.message);
}

static void go(struct asked *asked)
{
    cr_assert_eq(kvp_inbox_submit(kvp_control_inbox(control), &asked->request), KVB_OK);
    kvp_control_run(control);
}

/* Asks what the nodes are asked, too. */
static void ask(struct asked *asked)
{
    go(asked);
    cr_expect_eq(asked->replies, 0);
    fake_cluster_finish(&cluster);
}

/* Asks, and expects that the fleet was asked; the operation is open. */
static struct fake_call *start(struct asked *asked, enum kvp_route_id route, const char *query,
                               const char *body)
{
    uint32_t before = fleet.ncalls;
    prepare(asked, route, query, body);
    go(asked);
    cr_assert_eq(asked->replies, 0);
    cr_assert_eq(fleet.ncalls, before + 1);
    return fake_fleet_last(&fleet);
}

/* Compares the whole body with JSON text. */
static void expect_body(const struct asked *asked, unsigned http_status, const char *text)
{
    json_t *want = json_loads(text, 0, NULL);
    char *got = json_dumps(asked->body, JSON_COMPACT);

    cr_assert_not_null(want);
    cr_expect_eq(asked->replies, 1);
    cr_expect_eq(asked->http_status, http_status, "%u %s", asked->http_status, got);
    cr_expect(json_equal(want, asked->body), "%s instead of %s", got, text);
    free(got);
    json_decref(want);
    json_decref(asked->body);
}

static const char *error_text(const struct asked *asked, const char *name)
{
    return json_string_value(json_object_get(json_object_get(asked->body, "error"), name));
}

static void expect_error(const struct asked *asked, unsigned http_status, const char *param)
{
    json_t *error = json_object_get(asked->body, "error");

    cr_expect_eq(asked->replies, 1);
    cr_expect_eq(asked->http_status, http_status);
    cr_expect_eq(json_integer_value(json_object_get(error, "code")), http_status);
    cr_expect(json_is_string(json_object_get(error, "message")));
    cr_expect(json_is_string(json_object_get(error, "type")));
    if (param != NULL) {
        cr_expect_str_eq(error_text(asked, "param"), param);
    } else {
        cr_expect(json_is_null(json_object_get(error, "param")));
    }
    json_decref(asked->body);
}

/* ---- what is asked ---- */

Test(control, every_operation_route_asks_for_its_operation)
{
    static const struct {
        enum kvp_route_id route;
        const char *body;
        enum kvp_operation operation;
        const char *method;
        const char *answer;
    } cases[] = {
        {KVP_ROUTE_pause, NULL, KVP_OP_PAUSE, "",
         "{\"status\":\"paused\",\"mode\":\"abort\",\"clear_cache\":true}"},
        {KVP_ROUTE_resume, NULL, KVP_OP_RESUME, "", "{\"status\":\"resumed\"}"},
        {KVP_ROUTE_sleep, NULL, KVP_OP_SLEEP, "",
         "{\"status\":\"sleeping\",\"level\":1,\"mode\":\"abort\"}"},
        {KVP_ROUTE_wake_up, NULL, KVP_OP_WAKE, "",
         "{\"status\":\"awake\",\"tags_woken\":[],\"tags_ignored\":[]}"},
        {KVP_ROUTE_release_kv_cache_memory, NULL, KVP_OP_RELEASE_KV, "",
         "{\"status\":\"kv_cache_released\"}"},
        {KVP_ROUTE_reset_prefix_cache, NULL, KVP_OP_RESET, "",
         "{\"success\":true,\"local\":true,\"external\":\"not_asked\"}"},
        {KVP_ROUTE_init_weight_transfer_engine, "{\"init_info\":{}}", KVP_OP_RELAY,
         "init_weight_transfer_engine", "{\"message\":\"Weight transfer initialized\"}"},
        {KVP_ROUTE_start_weight_update, NULL, KVP_OP_START_UPDATE, "start_weight_update",
         "{\"message\":\"Weight update started\"}"},
        {KVP_ROUTE_update_weights, "{\"update_info\":{}}", KVP_OP_UPDATE, "update_weights",
         "{\"message\":\"Weights updated\"}"},
        {KVP_ROUTE_finish_weight_update, "{}", KVP_OP_FINISH_UPDATE, "finish_weight_update",
         "{\"message\":\"Weight update finished\"}"},
        {KVP_ROUTE_update_weight_version, "{\"new_version\":\"7\"}", KVP_OP_SET_VERSION,
         "update_weight_version", "{\"success\":true,\"new_version\":\"7\"}"},
        {KVP_ROUTE_collective_rpc, "{\"method\":\"reload_weights\"}", KVP_OP_UPDATE,
         "collective_rpc:reload_weights", "{\"results\":[]}"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct asked asked;
        struct fake_call *call = start(&asked, cases[i].route, NULL, cases[i].body);
        cr_expect_eq(call->ask.operation, cases[i].operation, "%zu", i);
        cr_expect_str_eq(call->ask.method, cases[i].method);
        cr_expect_str_eq(call->request_id, "req-1");
        cr_expect_str_eq(call->instance, "");
        cr_expect_eq(call->ask.body_len, cases[i].body != NULL ? strlen(cases[i].body) : 0);
        fake_fleet_finish(&fleet, call, (struct kvp_outcome){.local_done = true});
        expect_body(&asked, 200, cases[i].answer);
    }
}

/* ---- ?instance=* ---- */

/* The open call of that instance. */
static struct fake_call *open_call(const char *instance)
{
    for (uint32_t i = fleet.ncalls; i > 0; i--) {
        struct fake_call *call = &fleet.calls[(i - 1) % FAKE_CALLS];
        if (call->open && strcmp(call->instance, instance) == 0) {
            return call;
        }
    }
    return NULL;
}

static void end_call(const char *instance, struct kvp_outcome outcome)
{
    struct fake_call *call = open_call(instance);
    cr_assert_not_null(call, "%s was not asked", instance);
    fake_fleet_finish(&fleet, call, outcome);
}

static void ask_every(struct asked *asked, enum kvp_route_id route, const char *query)
{
    if (fleet.nviews == 1) {
        fake_fleet_add(&fleet, "engine-1");
        fake_fleet_add(&fleet, "engine-2");
    }
    prepare(asked, route, query, NULL);
    cr_assert_str_eq(asked->request.instance, "*");
    go(asked);
}

static const json_t *of_instance(const struct asked *asked, const char *instance, const char *name)
{
    return json_object_get(json_object_get(json_object_get(asked->body, "instances"), instance),
                           name);
}

Test(control, every_instance_is_asked_and_the_answer_has_each)
{
    struct asked asked;
    ask_every(&asked, KVP_ROUTE_reset_prefix_cache, "instance=*&reset_external=true");
    for (uint32_t i = 0; i < 3; i++) {
        cr_expect_eq(open_call(fleet.views[i].instance)->ask.reset_external, KVP_YES);
    }
    end_call("engine-1", (struct kvp_outcome){.status = KVB_ERR_BUSY, .message = "held"});
    end_call("engine-0", (struct kvp_outcome){.local_done = true});
    cr_assert_eq(asked.replies, 0);
    end_call("engine-2", (struct kvp_outcome){.local_done = true});
    cr_assert_eq(asked.http_status, 200); /* wherever it could be done */
    cr_expect(json_is_false(json_object_get(asked.body, "success")));
    cr_expect(json_is_true(of_instance(&asked, "engine-0", "success")));
    cr_expect(json_is_false(of_instance(&asked, "engine-1", "success")));
    cr_expect(json_is_true(of_instance(&asked, "engine-2", "success")));
    json_decref(asked.body);

    ask_every(&asked, KVP_ROUTE_wake_up, "instance=*&tags=weights");
    for (uint32_t i = 0; i < 3; i++) {
        end_call(fleet.views[i].instance, (struct kvp_outcome){0});
    }
    cr_assert_eq(asked.http_status, 200);
    cr_expect(json_is_true(json_object_get(asked.body, "success")));
    cr_expect_str_eq(json_string_value(of_instance(&asked, "engine-2", "status")), "awake");
    json_decref(asked.body);
}

Test(control, all_sleep_or_none_does)
{
    struct asked asked;
    /* level 2 is reached in two steps, of which the first can be undone */
    ask_every(&asked, KVP_ROUTE_sleep, "instance=*&level=2");
    for (uint32_t phase = 1; phase <= 2; phase++) {
        for (uint32_t i = 0; i < 3; i++) {
            cr_assert_eq(asked.replies, 0);
            cr_expect_eq(open_call(fleet.views[i].instance)->ask.level, phase);
            end_call(fleet.views[i].instance, (struct kvp_outcome){0});
        }
    }
    cr_assert_eq(asked.http_status, 200);
    cr_expect_eq(json_integer_value(of_instance(&asked, "engine-1", "level")), 2);
    json_decref(asked.body);

    /* one fails: those that did it wake, the one that slept already does not */
    ask_every(&asked, KVP_ROUTE_sleep, "instance=*&level=2");
    uint64_t slept = open_call("engine-0")->id;
    end_call("engine-0", (struct kvp_outcome){0});
    end_call("engine-2", (struct kvp_outcome){.nothing_to_do = true});
    end_call("engine-1", (struct kvp_outcome){.status = KVB_ERR_TIMEOUT, .message = "slow"});
    cr_assert_eq(asked.replies, 0);
    cr_expect_null(open_call("engine-1"));
    cr_expect_null(open_call("engine-2"));
    struct fake_call *undo = open_call("engine-0");
    cr_expect_eq(undo->ask.operation, KVP_OP_TAKE_BACK);
    cr_expect_eq(undo->ask.take_back, slept);
    end_call("engine-0", (struct kvp_outcome){0});
    cr_expect(json_is_true(of_instance(&asked, "engine-0", "undone")));
    cr_expect_null(of_instance(&asked, "engine-2", "undone"));
    cr_expect_str_eq(error_text(&asked, "message"), "engine-1: slow");
    expect_error(&asked, 503, NULL);

    /* the undoing fails, and says so */
    ask_every(&asked, KVP_ROUTE_pause, "instance=*");
    end_call("engine-0", (struct kvp_outcome){.status = KVB_ERR_BUSY});
    end_call("engine-1", (struct kvp_outcome){0});
    end_call("engine-2", (struct kvp_outcome){0});
    cr_expect_eq(open_call("engine-1")->ask.operation, KVP_OP_TAKE_BACK);
    end_call("engine-1", (struct kvp_outcome){.status = KVB_ERR_TIMEOUT, .message = "gone"});
    end_call("engine-2", (struct kvp_outcome){0});
    cr_expect(json_is_false(of_instance(&asked, "engine-1", "undone")));
    cr_expect_str_eq(json_string_value(of_instance(&asked, "engine-1", "undo_failed")), "gone");
    cr_expect(json_is_true(of_instance(&asked, "engine-2", "undone")));
    expect_error(&asked, 409, NULL);
}

/* What an operation of all instances says of itself. */
static json_t *shown(uint64_t id)
{
    struct asked asked;
    char text[24];
    prepare(&asked, KVP_ROUTE_get_operation, NULL, NULL);
    snprintf(text, sizeof text, "%llu", (unsigned long long)id);
    strcpy(asked.request.path_arg, text);
    go(&asked);
    cr_assert_eq(asked.http_status, 200);
    return asked.body;
}

static const char *member(const json_t *json, const char *name)
{
    const char *text = json_string_value(json_object_get(json, name));
    return text != NULL ? text : "";
}

static uint64_t id_of(const struct asked *asked)
{
    return (uint64_t)json_integer_value(json_object_get(asked->body, "operation_id"));
}

static void start_async(struct asked *asked, const char *query)
{
    if (fleet.nviews == 1) {
        fake_fleet_add(&fleet, "engine-1");
        fake_fleet_add(&fleet, "engine-2");
    }
    prepare(asked, KVP_ROUTE_sleep, query, NULL);
    asked->request.respond_async = true;
    go(asked);
    cr_assert_eq(asked->http_status, 202);
}

Test(control, an_operation_of_all_instances_is_one_and_tells_how_far_it_is)
{
    struct asked asked, waits, list;
    start_async(&asked, "instance=*");
    uint64_t id = id_of(&asked);
    cr_expect_gt(id, FAKE_FLEET_IDS);
    cr_expect_not_null(strstr(asked.location, "/v1/kvplane/operations/100"));
    json_decref(asked.body);
    for (uint32_t i = 0; i < 3; i++) { /* engine-1 has the most to do */
        struct kvp_operation_record *record = &fleet.records[fleet.nrecords++];
        record->id = open_call(fleet.views[i].instance)->id;
        record->operation = KVP_OP_SLEEP;
        record->drain = (struct kvp_drain_progress){.queued = i == 1 ? 9 : 1, .bytes_left = i};
        record->deadline_ns = NOW_NS + (i + 1) * KVB_NS_PER_S;
        strcpy(record->instance, fleet.views[i].instance);
        strcpy(record->step, i == 1 ? "drain" : "offload");
    }
    end_call("engine-0", (struct kvp_outcome){0});
    json_t *json = shown(id);
    cr_expect_str_eq(member(json, "status"), "running");
    cr_expect_str_eq(member(json, "operation"), "sleep");
    cr_expect_str_eq(member(json, "instance"), "*");
    cr_expect_str_eq(member(json, "slowest"), "engine-1");
    cr_expect_str_eq(member(json, "step"), "drain");
    cr_expect_eq(json_integer_value(json_object_get(json, "instances_done")), 1);
    cr_expect_eq(json_integer_value(json_object_get(json, "instances_all")), 3);
    cr_expect_eq(json_number_value(json_object_get(json, "deadline_in_ms")), 2000);
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(json, "drain"), "queued")), 10);
    json_t *instances = json_object_get(json, "instances");
    cr_expect_str_eq(member(json_object_get(instances, "engine-0"), "status"), "sleeping");
    cr_expect_str_eq(member(json_object_get(instances, "engine-1"), "status"), "running");
    json_decref(json);

    prepare(&list, KVP_ROUTE_list_operations, NULL, NULL);
    go(&list);
    json_t *newest = json_array_get(json_object_get(list.body, "operations"), 0);
    cr_expect_eq((uint64_t)json_integer_value(json_object_get(newest, "id")), id);
    json_decref(list.body);

    /* one waits for its end, another not so long */
    char path[24];
    snprintf(path, sizeof path, "%llu", (unsigned long long)id);
    prepare(&waits, KVP_ROUTE_get_operation, "timeout=60", NULL);
    strcpy(waits.request.path_arg, path);
    go(&waits);
    prepare(&asked, KVP_ROUTE_get_operation, "timeout=5", NULL);
    strcpy(asked.request.path_arg, path);
    go(&asked);
    sim_advance(&sim, 6000);
    cr_assert_eq(asked.replies, 1);
    cr_expect_str_eq(member(asked.body, "status"), "running");
    json_decref(asked.body);
    end_call("engine-1", (struct kvp_outcome){0});
    cr_assert_eq(waits.replies, 0);
    end_call("engine-2", (struct kvp_outcome){0});
    cr_assert_eq(waits.replies, 1);
    cr_expect_str_eq(member(waits.body, "status"), "succeeded");
    cr_expect_eq(json_integer_value(json_object_get(waits.body, "instances_done")), 3);
    json_decref(waits.body);
    prepare(&asked, KVP_ROUTE_get_operation, "timeout=5", NULL);
    strcpy(asked.request.path_arg, path);
    go(&asked);
    cr_assert_eq(asked.replies, 1); /* it has ended */
    json_decref(asked.body);
}

static void expect_cancel(uint64_t id, unsigned http_status)
{
    struct asked asked;
    prepare(&asked, KVP_ROUTE_cancel_operation, NULL, NULL);
    snprintf(asked.request.path_arg, 24, "%llu", (unsigned long long)id);
    go(&asked);
    cr_expect_eq(asked.http_status, http_status);
    json_decref(asked.body);
}

Test(control, canceling_an_operation_of_all_instances_takes_back_what_some_have_done)
{
    struct asked asked;
    start_async(&asked, "instance=*&level=2");
    uint64_t id = id_of(&asked);
    json_decref(asked.body);
    uint64_t first = open_call("engine-0")->id;
    end_call("engine-0", (struct kvp_outcome){0});
    uint64_t others = open_call("engine-1")->id + open_call("engine-2")->id;
    expect_cancel(id, 200);
    cr_expect_eq(fleet.ncanceled, 2);
    cr_expect_eq(fleet.canceled[0] + fleet.canceled[1], others);
    end_call("engine-1", (struct kvp_outcome){.status = KVB_ERR_CANCELED});
    end_call("engine-2", (struct kvp_outcome){0}); /* it was too late there */
    cr_expect_eq(open_call("engine-0")->ask.take_back, first);
    cr_expect_not_null(open_call("engine-2"));
    cr_expect_null(open_call("engine-1"));
    expect_cancel(id, 409); /* it is being taken back */
    end_call("engine-0", (struct kvp_outcome){0});
    end_call("engine-2", (struct kvp_outcome){0});
    expect_cancel(id, 409); /* it has ended */
    json_t *json = shown(id);
    cr_expect_str_eq(member(json, "result"), "canceled");
    cr_expect_not_null(strstr(member(json, "message"), "canceled"));
    json_decref(json);

    /* where nobody can cancel what still runs, what has ended is taken back all the same */
    start_async(&asked, "instance=*");
    id = id_of(&asked);
    json_decref(asked.body);
    end_call("engine-0", (struct kvp_outcome){0});
    fleet.cancel_status = KVB_ERR_BAD_STATE;
    expect_cancel(id, 200);
    end_call("engine-1", (struct kvp_outcome){0});
    end_call("engine-2", (struct kvp_outcome){0});
    for (uint32_t i = 0; i < 3; i++) {
        static const char *const engines[] = {"engine-0", "engine-1", "engine-2"};
        cr_expect_eq(open_call(engines[i])->ask.operation, KVP_OP_TAKE_BACK);
        end_call(engines[i], (struct kvp_outcome){0});
    }

    /* where it can be done: what has been done stays; what nobody can cancel goes on */
    for (uint32_t can = 0; can < 2; can++) {
        start_async(&asked, "instance=*&all_or_nothing=false");
        id = id_of(&asked);
        json_decref(asked.body);
        end_call("engine-0", (struct kvp_outcome){0});
        fleet.cancel_status = can ? KVB_OK : KVB_ERR_BAD_STATE;
        expect_cancel(id, can ? 200 : 409);
        const kvb_status_t ends = can ? KVB_ERR_CANCELED : KVB_OK;
        end_call("engine-1", (struct kvp_outcome){.status = ends});
        end_call("engine-2", (struct kvp_outcome){.status = ends});
        json = shown(id);
        cr_expect_str_eq(member(json, "result"), can ? "canceled" : "ok");
        json_decref(json);
    }
    /* and a wake is none of those that can be canceled */
    prepare(&asked, KVP_ROUTE_wake_up, "instance=*", NULL);
    asked.request.respond_async = true;
    go(&asked);
    expect_cancel(id_of(&asked), 409);
    json_decref(asked.body);
}

Test(control, who_asks_all_for_the_same_shares_the_answer)
{
    struct asked first, second, other;
    ask_every(&first, KVP_ROUTE_sleep, "instance=*");
    uint32_t calls = fleet.ncalls;
    ask_every(&second, KVP_ROUTE_sleep, "instance=*");
    cr_expect_eq(fleet.ncalls, calls, "nobody is asked twice");
    ask_every(&other, KVP_ROUTE_sleep, "instance=*&all_or_nothing=false");
    cr_expect_eq(fleet.ncalls, calls + 3, "another thing");
    fake_fleet_finish_all(&fleet, (struct kvp_outcome){0});
    cr_assert(first.replies == 1 && second.replies == 1 && other.replies == 1);
    cr_expect(json_equal(first.body, second.body));
    cr_expect_neq(id_of(&first), id_of(&other));
    json_decref(first.body);
    json_decref(second.body);
    json_decref(other.body);
}

/* Who joined in what is about to be taken back would keep it from being. */
Test(control, while_an_operation_of_all_instances_fails_nobody_begins_another)
{
    struct asked first, again;
    ask_every(&first, KVP_ROUTE_sleep, "instance=*");
    end_call("engine-0", (struct kvp_outcome){0});
    end_call("engine-1", (struct kvp_outcome){.status = KVB_ERR_TIMEOUT, .message = "slow"});
    uint32_t calls = fleet.ncalls;
    ask_every(&again, KVP_ROUTE_sleep, "instance=*");
    cr_expect_eq(fleet.ncalls, calls, "nobody is asked");
    expect_error(&again, 409, NULL);
    end_call("engine-2", (struct kvp_outcome){0});
    cr_expect_eq(open_call("engine-0")->ask.operation, KVP_OP_TAKE_BACK);
    ask_every(&again, KVP_ROUTE_sleep, "instance=*");
    expect_error(&again, 409, NULL);
    end_call("engine-0", (struct kvp_outcome){0});
    end_call("engine-2", (struct kvp_outcome){0});
    cr_expect(json_is_true(of_instance(&first, "engine-0", "undone")));
    expect_error(&first, 503, NULL);
    ask_every(&again, KVP_ROUTE_sleep, "instance=*");
    fake_fleet_finish_all(&fleet, (struct kvp_outcome){0});
    cr_expect_eq(again.http_status, 200, "now it is over");
    json_decref(again.body);
}

Test(control, operations_of_all_instances_that_have_ended_are_told_of_for_a_while)
{
    struct asked asked;
    uint64_t ids[40];
    for (uint32_t i = 0; i < 40; i++) {
        if (fleet.nviews == 1) {
            fake_fleet_add(&fleet, "engine-1");
        }
        prepare(&asked, KVP_ROUTE_collective_rpc, "instance=*", "{\"method\":\"get_x\"}");
        go(&asked);
        fake_fleet_finish_all(&fleet, (struct kvp_outcome){.relay_body = "[1]", .relay_len = 3});
        cr_assert_eq(asked.http_status, 200);
        cr_expect_not_null(of_instance(&asked, "engine-1", "results"));
        ids[i] = id_of(&asked);
        json_decref(asked.body);
    }
    json_t *json = shown(ids[39]);
    cr_expect_null(json_object_get(json_object_get(json_object_get(json, "instances"), "engine-1"),
                                   "results"));
    json_decref(json);
    prepare(&asked, KVP_ROUTE_get_operation, NULL, NULL);
    snprintf(asked.request.path_arg, 24, "%llu", (unsigned long long)ids[0]);
    go(&asked);
    expect_error(&asked, 404, "path.id");
}

Test(control, done_on_some_is_207_and_on_none_the_first_failure)
{
    struct asked asked;
    for (uint32_t failing = 0; failing <= 3; failing++) {
        ask_every(&asked, KVP_ROUTE_release_memory_occupation, "instance=*&all_or_nothing=false");
        for (uint32_t i = 0; i < 3; i++) {
            end_call(fleet.views[i].instance,
                     (struct kvp_outcome){.status = i < failing ? KVB_ERR_TIMEOUT : KVB_OK,
                                          .message = i < failing ? "slow" : ""});
        }
        cr_expect_eq(asked.http_status, failing == 0 ? 200u : failing < 3 ? 207u : 503u);
        cr_expect_eq(json_is_true(json_object_get(asked.body, "success")), failing == 0);
        cr_expect_str_eq(member(asked.body, "message"),
                         failing == 0 ? "Memory released" : "engine-0: slow");
        cr_expect_eq(json_is_true(of_instance(&asked, "engine-2", "success")), failing < 3);
        json_decref(asked.body);
    }
}

Test(control, who_is_missing_keeps_all_from_it_or_is_left_out_as_asked)
{
    struct asked asked;
    ask_every(&asked, KVP_ROUTE_sleep, "instance=*");
    for (uint32_t i = 0; i < 3; i++) {
        end_call(fleet.views[i].instance, (struct kvp_outcome){0});
    }
    json_decref(asked.body);
    fleet.views[1].attached = false;
    uint32_t calls = fleet.ncalls;
    ask_every(&asked, KVP_ROUTE_sleep, "instance=*");
    cr_expect_eq(fleet.ncalls, calls);
    expect_error(&asked, 409, NULL);
    ask_every(&asked, KVP_ROUTE_sleep, "instance=*&all_or_nothing=false");
    cr_expect_null(open_call("engine-1"));
    end_call("engine-0", (struct kvp_outcome){.status = KVB_ERR_TIMEOUT});
    end_call("engine-2", (struct kvp_outcome){0});
    cr_expect_eq(asked.http_status, 207);
    cr_expect(json_is_false(json_object_get(asked.body, "success")));
    cr_expect_not_null(of_instance(&asked, "engine-1", "error"));
    cr_expect_not_null(of_instance(&asked, "engine-0", "error"));
    cr_expect_null(of_instance(&asked, "engine-2", "undone"));
    json_decref(asked.body);
}

Test(control, a_daemon_that_ends_answers_for_all_and_undoes_nothing)
{
    struct asked asked;
    ask_every(&asked, KVP_ROUTE_sleep, "instance=*");
    end_call("engine-0", (struct kvp_outcome){0});
    uint32_t calls = fleet.ncalls;
    kvp_control_close(control);
    expect_error(&asked, 503, NULL);
    fake_fleet_finish_all(&fleet, (struct kvp_outcome){.status = KVB_ERR_CANCELED});
    cr_expect_eq(fleet.ncalls, calls);
}

/* What SGLang, TensorRT-LLM, AReaL, TRL, Dynamo and SkyRL call the same things. */
Test(control, every_other_name_asks_for_the_same_operation)
{
#define PLAIN(text) "{\"status\":\"ok\",\"success\":true,\"message\":\"" text "\"}"
#define TOLD(text)  "{\"message\":\"" text "\"}"
    static const struct {
        enum kvp_route_id route;
        const char *body;
        enum kvp_operation operation;
        const char *method;
        const char *answer;
    } cases[] = {
        {KVP_ROUTE_release_memory_occupation, "{}", KVP_OP_RELEASE, "", PLAIN("Memory released")},
        {KVP_ROUTE_get_release_memory, NULL, KVP_OP_RELEASE, "", PLAIN("Memory released")},
        {KVP_ROUTE_release_memory, "{\"tags\":[\"kv_cache\"]}", KVP_OP_RELEASE, "",
         PLAIN("Memory released")},
        {KVP_ROUTE_resume_memory_occupation, "{\"tags\":null}", KVP_OP_WAKE, "",
         PLAIN("Memory resumed")},
        {KVP_ROUTE_get_resume_memory, NULL, KVP_OP_WAKE, "", PLAIN("Memory resumed")},
        {KVP_ROUTE_resume_memory, NULL, KVP_OP_WAKE, "", PLAIN("Memory resumed")},
        {KVP_ROUTE_flush_cache, NULL, KVP_OP_RESET, "", PLAIN("Cache flushed")},
        {KVP_ROUTE_get_flush_cache, NULL, KVP_OP_RESET, "", PLAIN("Cache flushed")},
        {KVP_ROUTE_pause_generation, "{}", KVP_OP_PAUSE, "", PLAIN("Generation paused")},
        {KVP_ROUTE_continue_generation, "{}", KVP_OP_RESUME, "", PLAIN("Generation continued")},
        {KVP_ROUTE_areal_pause_generation, "{}", KVP_OP_PAUSE, "", PLAIN("Generation paused")},
        {KVP_ROUTE_areal_continue_generation, "{}", KVP_OP_RESUME, "",
         PLAIN("Generation continued")},
        {KVP_ROUTE_abort_requests, "{}", KVP_OP_RELAY, "abort_requests",
         "{\"status\":\"aborted\",\"aborted\":0}"},
        {KVP_ROUTE_abort_request, "{\"abort_all\":true}", KVP_OP_RELAY, "abort_request",
         PLAIN("Aborted")},
        {KVP_ROUTE_reset_mm_cache, NULL, KVP_OP_RELAY, "reset_mm_cache",
         PLAIN("Multimodal cache reset")},
        {KVP_ROUTE_reset_encoder_cache, NULL, KVP_OP_RELAY, "reset_encoder_cache",
         PLAIN("Encoder cache reset")},
        {KVP_ROUTE_start_draft_weight_update, NULL, KVP_OP_START_UPDATE,
         "start_draft_weight_update", TOLD("Draft weight update started")},
        {KVP_ROUTE_update_weights_from_disk, "{}", KVP_OP_UPDATE, "update_weights_from_disk",
         PLAIN("Weights updated")},
        {KVP_ROUTE_update_weights_from_tensor, "{}", KVP_OP_UPDATE, "update_weights_from_tensor",
         PLAIN("Weights updated")},
        {KVP_ROUTE_update_weights_from_distributed, "{}", KVP_OP_UPDATE,
         "update_weights_from_distributed", PLAIN("Weights updated")},
        {KVP_ROUTE_update_weights_from_ipc, "{}", KVP_OP_UPDATE, "update_weights_from_ipc",
         PLAIN("Weights updated")},
        {KVP_ROUTE_init_weights_update_group, "{}", KVP_OP_RELAY, "init_weights_update_group",
         PLAIN("Weight update group initialized")},
        {KVP_ROUTE_destroy_weights_update_group, "{}", KVP_OP_RELAY, "destroy_weights_update_group",
         PLAIN("Weight update group destroyed")},
        {KVP_ROUTE_weights_checker, "{\"action\":\"compare\"}", KVP_OP_RELAY, "weights_checker",
         PLAIN("Weights checked")},
        {KVP_ROUTE_weights_checker, "{\"action\":\"reset_tensors\"}", KVP_OP_UPDATE,
         "weights_checker", PLAIN("Weights checked")},
        {KVP_ROUTE_weight_checker, "{\"action\":\"snapshot\"}", KVP_OP_RELAY, "weights_checker",
         TOLD("Weights checked")},
        {KVP_ROUTE_load_lora_adapter, "{\"lora_name\":\"a\"}", KVP_OP_UPDATE, "load_lora_adapter",
         TOLD("LoRA adapter loaded")},
        {KVP_ROUTE_unload_lora_adapter, "{\"lora_name\":\"a\"}", KVP_OP_RELAY,
         "unload_lora_adapter", TOLD("LoRA adapter unloaded")},
        {KVP_ROUTE_areal_update_weights, "{}", KVP_OP_UPDATE, "areal_update_weights",
         PLAIN("Weights updated")},
        {KVP_ROUTE_areal_update_weights_xccl, "{}", KVP_OP_UPDATE, "areal_update_weights_xccl",
         PLAIN("Weights updated")},
        {KVP_ROUTE_areal_init_weights_update_group, "{}", KVP_OP_RELAY,
         "areal_init_weights_update_group", PLAIN("Weight update group initialized")},
        {KVP_ROUTE_areal_set_update_weight_meta, "{}", KVP_OP_RELAY, "areal_set_update_weight_meta",
         PLAIN("Meta data taken")},
        {KVP_ROUTE_init_communicator, "{}", KVP_OP_RELAY, "init_communicator",
         TOLD("Communicator initialized")},
        {KVP_ROUTE_update_named_param, "{}", KVP_OP_UPDATE, "update_named_param",
         TOLD("Parameter updated")},
        {KVP_ROUTE_batch_update_named_params, "{}", KVP_OP_UPDATE, "batch_update_named_params",
         TOLD("Parameters updated")},
        {KVP_ROUTE_close_communicator, NULL, KVP_OP_RELAY, "close_communicator",
         TOLD("Communicator closed")},
        {KVP_ROUTE_collective_rpc,
         "{\"method\":\"skyrl_sleep_for_weight_sync\",\"kwargs\":{\"offload_kv\":true}}",
         KVP_OP_RELEASE, "", "{\"results\":[]}"},
        {KVP_ROUTE_collective_rpc,
         "{\"method\":\"skyrl_wake_for_weight_sync\",\"kwargs\":{\"tags\":[\"weights\"]}}",
         KVP_OP_WAKE, "", "{\"results\":[]}"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct asked asked;
        struct fake_call *call = start(&asked, cases[i].route, NULL, cases[i].body);
        cr_expect_eq(call->ask.operation, cases[i].operation, "%zu", i);
        cr_expect_str_eq(call->ask.method, cases[i].method);
        fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
        expect_body(&asked, 200, cases[i].answer);
    }
}

Test(control, a_worker_route_of_dynamo_is_the_verb_that_path_or_body_names)
{
    static const struct {
        const char *path;
        const char *body;
        enum kvp_operation operation;
        const char *method;
    } cases[] = {
        {"pause_generation", "{\"mode\":\"wait\",\"clear_cache\":true}", KVP_OP_PAUSE, ""},
        {"resume_generation", "{}", KVP_OP_RESUME, ""},
        {"init_weights_update_group", "{\"engine_rpc\":\"init_weight_transfer_engine\"}",
         KVP_OP_RELAY, "init_weight_transfer_engine"},
        {"update_weights_from_distributed", "{\"engine_rpc\":\"start_weight_update\"}",
         KVP_OP_START_UPDATE, "start_weight_update"},
        {"update_weights_from_distributed", "{\"engine_rpc\":\"update_weights\"}", KVP_OP_UPDATE,
         "update_weights"},
        {"update_weights_from_distributed", "{\"engine_rpc\":\"finish_weight_update\"}",
         KVP_OP_FINISH_UPDATE, "finish_weight_update"},
        {"update_weights_from_distributed", "{}", KVP_OP_UPDATE, "update_weights_from_distributed"},
    };
    struct asked asked;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t before = fleet.ncalls;
        prepare(&asked, KVP_ROUTE_engine_call, NULL, cases[i].body);
        strcpy(asked.request.path_arg, cases[i].path);
        go(&asked);
        cr_assert_eq(fleet.ncalls, before + 1);
        struct fake_call *call = fake_fleet_last(&fleet);
        cr_expect_eq(call->ask.operation, cases[i].operation, "%zu", i);
        cr_expect_str_eq(call->ask.method, cases[i].method);
        cr_expect_eq(call->ask.mode, i == 0 ? KVP_MODE_WAIT : KVP_MODE_ABORT);
        fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
        expect_body(&asked, 200, PLAIN("Done"));
    }
    static const char *const bad[][2] = {{"sleep", "{}"},
                                         {"pause_generation", "{\"engine_rpc\":\"wake_up\"}"}};
    for (size_t i = 0; i < 2; i++) {
        prepare(&asked, KVP_ROUTE_engine_call, NULL, bad[i][1]);
        strcpy(asked.request.path_arg, bad[i][0]);
        go(&asked);
        expect_error(&asked, 400, i == 0 ? "path.name" : "body.engine_rpc");
    }
}

Test(control, memory_is_released_and_resumed_by_tags_and_a_pause_is_not_lifted_by_it)
{
    struct asked asked;
    struct fake_call *call =
        start(&asked, KVP_ROUTE_release_memory_occupation, NULL, "{\"tags\":[\"weights\",\"x\"]}");
    cr_expect(call->ask.tags_given);
    cr_expect_eq(call->ask.ntags, 2);
    cr_expect_str_eq(call->ask.tags[0], "weights");
    fake_fleet_finish(&fleet, call,
                      (struct kvp_outcome){.ntags_ignored = 1, .tags_ignored = {"x"}});
    expect_body(&asked, 200,
                "{\"status\":\"ok\",\"success\":true,\"message\":\"Memory released\","
                "\"tags_ignored\":[\"x\"]}");
    call = start(&asked, KVP_ROUTE_release_memory_occupation, NULL, "{\"tags\":null}");
    cr_expect(!call->ask.tags_given);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    json_decref(asked.body);

    call = start(&asked, KVP_ROUTE_resume_memory_occupation, NULL, "{\"tags\":[\"kv_cache\"]}");
    cr_expect(call->ask.keep_pause && call->ask.tags_given);
    fake_fleet_finish(&fleet, call,
                      (struct kvp_outcome){.ntags_woken = 1, .tags_woken = {"kv_cache"}});
    expect_body(&asked, 200,
                "{\"status\":\"ok\",\"success\":true,\"message\":\"Memory resumed\","
                "\"tags_woken\":[\"kv_cache\"]}");
    call = start(&asked, KVP_ROUTE_wake_up, NULL, NULL);
    cr_expect(!call->ask.keep_pause);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    json_decref(asked.body);

    call = start(&asked, KVP_ROUTE_pause_generation, NULL, "{\"mode\":\"retract\"}");
    cr_expect_eq(call->ask.mode, KVP_MODE_RETRACT);
    cr_expect(!call->ask.clear_cache); /* its clients flush by a call of their own */
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    json_decref(asked.body);
    call = start(&asked, KVP_ROUTE_collective_rpc, NULL,
                 "{\"method\":\"skyrl_sleep_for_weight_sync\",\"kwargs\":{\"offload_kv\":false}}");
    cr_expect(call->ask.tags_given && call->ask.ntags == 1);
    cr_expect_str_eq(call->ask.tags[0], "weights");
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    json_decref(asked.body);
    call = start(&asked, KVP_ROUTE_collective_rpc, NULL,
                 "{\"method\":\"skyrl_wake_for_weight_sync\",\"kwargs\":{\"tags\":[\"weights\"]}}");
    cr_expect(call->ask.keep_pause && call->ask.tags_given && call->ask.ntags == 1);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    json_decref(asked.body);
}

Test(control, failures_of_these_names_say_success_false_too)
{
    struct asked asked;
    struct fake_call *call =
        start(&asked, KVP_ROUTE_update_weights_from_tensor, NULL, "{\"weight_version\":\"1\"}");
    cr_expect_str_eq(call->ask.weight_version, "1");
    fake_fleet_finish(&fleet, call,
                      (struct kvp_outcome){.status = KVB_ERR_UNSUPPORTED, .message = "no such"});
    cr_expect(json_is_false(json_object_get(asked.body, "success")));
    cr_expect_str_eq(json_string_value(json_object_get(asked.body, "message")), "no such");
    expect_error(&asked, 501, NULL);
}

Test(control, a_flush_that_finds_it_busy_is_400_at_once)
{
    struct asked asked;
    struct fake_call *call = start(&asked, KVP_ROUTE_get_flush_cache, NULL, NULL);
    cr_expect(call->ask.at_once);
    cr_expect_eq(call->ask.reset_external, KVP_UNSET);
    fake_fleet_finish(
        &fleet, call,
        (struct kvp_outcome){.status = KVB_ERR_BUSY, .blocks_held = 3, .message = "held"});
    cr_expect(json_is_false(json_object_get(asked.body, "success")));
    cr_expect_eq(json_integer_value(json_object_get(asked.body, "blocks_held")), 3);
    expect_error(&asked, 400, NULL);
    cr_expect_eq(fleet.ncalls, 1);

    call = start(&asked, KVP_ROUTE_flush_cache, NULL, NULL);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){.status = KVB_ERR_DISCONNECTED});
    cr_expect(json_is_false(json_object_get(asked.body, "success")));
    expect_error(&asked, 503, NULL);
}

Test(control, a_flush_with_a_timeout_is_tried_until_then)
{
    struct asked asked;
    const struct kvp_outcome busy = {.status = KVB_ERR_BUSY, .message = "held"};

    for (int gives_up = 0; gives_up < 2; gives_up++) {
        uint64_t began_ns = sim.now_ns;
        uint32_t calls = fleet.ncalls;
        struct fake_call *call = start(&asked, KVP_ROUTE_flush_cache, "timeout=1.5", NULL);
        for (uint32_t tries = 1; asked.replies == 0; tries++) {
            cr_assert_lt(tries, 40);
            fake_fleet_finish(&fleet, call, gives_up || tries < 4 ? busy : (struct kvp_outcome){0});
            if (asked.replies == 0) {
                sim_advance(&sim, 100);
                sim_settle(&sim);
                cr_assert_eq(fleet.ncalls, calls + tries + 1);
                call = fake_fleet_last(&fleet);
                cr_assert(call->open && call->ask.at_once);
            }
        }
        if (gives_up) {
            expect_error(&asked, 400, NULL);
            cr_expect_leq(sim.now_ns - began_ns, 1500 * KVB_NS_PER_MS);
            cr_expect_gt(sim.now_ns - began_ns, 1300 * KVB_NS_PER_MS);
        } else {
            expect_body(&asked, 200, PLAIN("Cache flushed"));
        }
    }
    /* closed between two tries: answered, and nothing is left */
    struct fake_call *call = start(&asked, KVP_ROUTE_flush_cache, "timeout=9", NULL);
    fake_fleet_finish(&fleet, call, busy);
    cr_expect_eq(asked.replies, 0);
    kvp_control_close(control);
    expect_error(&asked, 503, NULL);
}

Test(control, a_token_is_asked_for_only_of_an_engine_that_runs)
{
    struct asked asked;
    struct fake_call *call = start(&asked, KVP_ROUTE_health_generate, NULL, NULL);
    cr_expect_eq(call->ask.operation, KVP_OP_RELAY);
    cr_expect_str_eq(call->ask.method, "health_generate");
    cr_expect_gt(call->ask.bound_ms, 0);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    expect_body(&asked, 200, "{\"status\":\"ok\",\"success\":true,\"generated\":true}");

    call = start(&asked, KVP_ROUTE_health_generate_original, NULL, NULL);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){.status = KVB_ERR_TIMEOUT});
    expect_error(&asked, 503, NULL);
    call = start(&asked, KVP_ROUTE_health_generate, NULL, NULL);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){.status = KVB_ERR_UNSUPPORTED});
    expect_body(&asked, 200, "{\"status\":\"ok\",\"success\":true,\"generated\":false}");

    uint32_t calls = fleet.ncalls;
    fleet.views[0].ready = false; /* asleep, paused */
    prepare(&asked, KVP_ROUTE_health_generate, NULL, NULL);
    go(&asked);
    expect_body(&asked, 200, "{\"status\":\"ok\",\"success\":true,\"generated\":false}");
    fleet.views[0].attached = false;
    prepare(&asked, KVP_ROUTE_health_generate, NULL, NULL);
    go(&asked);
    expect_error(&asked, 503, NULL);
    cr_expect_eq(fleet.ncalls, calls);
}

Test(control, the_load_falls_to_nothing_in_every_form)
{
    static const enum kvp_route_id routes[] = {KVP_ROUTE_load, KVP_ROUTE_get_load,
                                               KVP_ROUTE_list_loads};
    static const char *const busy[] = {
        "{\"server_load\":6,\"num_requests\":6,\"inflight\":4,\"queues\":{\"running\":4,"
        "\"waiting\":2}}",
        "[{\"dp_rank\":0,\"num_reqs\":6,\"num_total_reqs\":6,\"num_running_reqs\":4,"
        "\"num_waiting_reqs\":2}]",
        "{\"dp_rank_count\":1,\"loads\":[{\"dp_rank\":0,\"num_reqs\":6,\"num_total_reqs\":6,"
        "\"num_running_reqs\":4,\"num_waiting_reqs\":2}]}"};
    struct asked asked;

    for (size_t i = 0; i < 3; i++) {
        fleet.views[0].load = (struct kvb_load){.running = 3, .waiting = 2, .loading = 1};
        prepare(&asked, routes[i], NULL, NULL);
        go(&asked);
        expect_body(&asked, 200, busy[i]);
        fleet.views[0].load = (struct kvb_load){0};
        prepare(&asked, routes[i], NULL, NULL);
        go(&asked);
        char *text = json_dumps(asked.body, JSON_COMPACT);
        cr_expect_null(strpbrk(text, "23456789"), "%s", text);
        free(text);
        json_decref(asked.body);
    }
}

Test(control, pause_has_vllm_s_defaults_and_its_old_parameter)
{
    struct asked asked;
    struct fake_call *call = start(&asked, KVP_ROUTE_pause, NULL, NULL);
    cr_expect_eq(call->ask.mode, KVP_MODE_ABORT);
    cr_expect(call->ask.clear_cache);
    cr_expect_eq(call->ask.reset_external, KVP_UNSET);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    json_decref(asked.body);

    call = start(&asked, KVP_ROUTE_pause, "mode=keep&clear_cache=false&reset_external=no", NULL);
    cr_expect_eq(call->ask.mode, KVP_MODE_KEEP);
    cr_expect(!call->ask.clear_cache);
    cr_expect_eq(call->ask.reset_external, KVP_NO);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    expect_body(&asked, 200, "{\"status\":\"paused\",\"mode\":\"keep\",\"clear_cache\":false}");

    call = start(&asked, KVP_ROUTE_pause, NULL, "{\"wait_for_inflight_requests\": true}");
    cr_expect_eq(call->ask.mode, KVP_MODE_WAIT);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    expect_body(&asked, 200, "{\"status\":\"paused\",\"mode\":\"wait\",\"clear_cache\":true}");
}

Test(control, sleep_answers_the_level_in_force)
{
    struct asked asked;

    for (uint32_t level = 0; level <= 2; level++) {
        char query[32], want[96];
        snprintf(query, sizeof query, "level=%u&mode=wait", level);
        struct fake_call *call = start(&asked, KVP_ROUTE_sleep, query, NULL);
        cr_expect_eq(call->ask.level, level);
        cr_expect_eq(call->ask.mode, KVP_MODE_WAIT);
        fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
        snprintf(want, sizeof want, "{\"status\":\"sleeping\",\"level\":%u,\"mode\":\"wait\"}",
                 level);
        expect_body(&asked, 200, want);
    }
    fleet.views[0].tags[1].residency = KVB_DISCARDED; /* the weights */
    fleet.views[0].tags[0].residency = KVB_DISCARDED;
    struct fake_call *call = start(&asked, KVP_ROUTE_sleep, "level=1", NULL);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){.nothing_to_do = true});
    expect_body(&asked, 200,
                "{\"status\":\"sleeping\",\"level\":2,\"mode\":\"abort\",\"nothing_to_do\":true}");
}

Test(control, sleep_with_the_store_away_says_so)
{
    struct asked asked;
    struct fake_call *call = start(&asked, KVP_ROUTE_sleep, NULL, NULL);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){.external = KVP_EXTERNAL_PENDING});
    expect_body(
        &asked, 200,
        "{\"status\":\"sleeping\",\"level\":1,\"mode\":\"abort\",\"external\":\"pending\"}");
}

Test(control, wake_passes_tags_on_and_tells_what_became_of_them)
{
    struct asked asked;
    struct fake_call *call = start(&asked, KVP_ROUTE_wake_up, "tags=weights&tags=foo", NULL);
    cr_expect(call->ask.tags_given);
    cr_expect_eq(call->ask.ntags, 2);
    cr_expect_str_eq(call->ask.tags[1], "foo");
    fleet.views[0].is_sleeping = true;
    fake_fleet_finish(&fleet, call,
                      (struct kvp_outcome){.ntags_woken = 1,
                                           .tags_woken = {"weights"},
                                           .ntags_ignored = 1,
                                           .tags_ignored = {"foo"}});
    expect_body(
        &asked, 200,
        "{\"status\":\"sleeping\",\"tags_woken\":[\"weights\"],\"tags_ignored\":[\"foo\"]}");

    call = start(&asked, KVP_ROUTE_wake_up, NULL, "{\"tags\": []}");
    cr_expect(call->ask.tags_given && call->ask.ntags == 0);
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    json_decref(asked.body);

    call = start(&asked, KVP_ROUTE_wake_up, "weight_version=v3", NULL);
    cr_expect(!call->ask.tags_given);
    cr_expect_str_eq(call->ask.weight_version, "v3");
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    json_decref(asked.body);
}

/* ---- reset ---- */

Test(control, a_reset_that_could_not_be_done_is_200_and_says_so)
{
    static const struct {
        struct kvp_outcome outcome;
        unsigned strict_status;
    } cases[] = {
        {{.status = KVB_ERR_BUSY, .blocks_held = 12, .message = "held"}, 409},
        {{.status = KVB_ERR_TIMEOUT}, 503},
        {{.status = KVB_ERR_UNAVAILABLE, .local_done = true, .external = KVP_EXTERNAL_PENDING},
         503},
        {{.status = KVB_ERR_BAD_STATE}, 409},
        {{.status = KVB_OK, .local_done = true, .external = KVP_EXTERNAL_PENDING}, 503},
        {{.status = KVB_OK, .local_done = true, .external = KVP_EXTERNAL_FAILED}, 503},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct asked asked;
        struct fake_call *call =
            start(&asked, KVP_ROUTE_reset_prefix_cache, "reset_external=1", NULL);
        cr_expect_eq(call->ask.reset_external, KVP_YES);
        fake_fleet_finish(&fleet, call, cases[i].outcome);
        cr_expect_eq(asked.http_status, 200);
        cr_expect(json_is_false(json_object_get(asked.body, "success")), "%zu", i);
        cr_expect(json_is_string(json_object_get(asked.body, "message")));
        cr_expect_eq(json_is_true(json_object_get(asked.body, "local")),
                     cases[i].outcome.local_done);
        cr_expect_eq(json_integer_value(json_object_get(asked.body, "blocks_held")),
                     cases[i].outcome.blocks_held);
        json_decref(asked.body);

        call = start(&asked, KVP_ROUTE_reset_prefix_cache, "reset_external=1&strict=true", NULL);
        fake_fleet_finish(&fleet, call, cases[i].outcome);
        cr_expect_eq(asked.http_status, cases[i].strict_status, "%zu: %u", i, asked.http_status);
        cr_expect(json_is_false(json_object_get(asked.body, "success")));
        cr_expect(json_is_object(json_object_get(asked.body, "error")));
        json_decref(asked.body);
    }
}

Test(control, a_reset_that_was_done_is_success_strict_or_not)
{
    struct asked asked;
    struct kvp_outcome outcome = {.local_done = true, .external = KVP_EXTERNAL_DONE};

    for (int strict = 0; strict < 2; strict++) {
        struct fake_call *call =
            start(&asked, KVP_ROUTE_reset_prefix_cache,
                  strict ? "reset_external=true&strict=1" : "reset_external=true",
                  "{\"reset_running_requests\": true}");
        cr_expect(call->ask.reset_running_requests);
        fake_fleet_finish(&fleet, call, outcome);
        expect_body(&asked, 200, "{\"success\":true,\"local\":true,\"external\":\"done\"}");
    }
}

Test(control, a_reset_for_an_unknown_instance_is_an_error_of_the_request)
{
    struct asked asked;
    struct fake_call *call = start(&asked, KVP_ROUTE_reset_prefix_cache, "instance=nobody", NULL);
    cr_expect_str_eq(call->instance, "nobody");
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){.status = KVB_ERR_NOT_FOUND});
    expect_error(&asked, 404, "query.instance");
}

/* ---- relays ---- */

Test(control, what_is_relayed_stays_readable_until_the_operation_ends)
{
    static const char body[] =
        "{\"update_info\": {\"names\": [\"w\"]}, \"weight_version\": \"v9\"}";
    struct asked asked;

    for (int async = 0; async < 2; async++) {
        prepare(&asked, KVP_ROUTE_update_weights, NULL, body);
        asked.request.respond_async = async != 0;
        go(&asked);
        struct fake_call *call = fake_fleet_last(&fleet);
        cr_expect_str_eq(call->ask.weight_version, "v9");
        cr_expect_eq(asked.replies, async != 0); /* replied: the request's own memory is gone */
        cr_expect_eq(call->ask.body_len, strlen(body));
        cr_expect_eq(memcmp(call->ask.body, body, strlen(body)), 0);
        fake_fleet_finish(&fleet, call,
                          (struct kvp_outcome){.relay_body = "{\"loaded\":1}", .relay_len = 12});
        cr_expect_eq(asked.replies, 1);
        if (async == 0) {
            expect_body(&asked, 200,
                        "{\"message\":\"Weights updated\",\"result\":{\"loaded\":1},"
                        "\"weight_version\":\"v9\"}");
        } else {
            json_decref(asked.body);
        }
    }
}

Test(control, relays_without_what_they_need_are_refused_before_any_effect)
{
    static const struct {
        enum kvp_route_id route;
        const char *body;
        const char *param;
    } cases[] = {
        {KVP_ROUTE_init_weight_transfer_engine, NULL, "body.init_info"},
        {KVP_ROUTE_init_weight_transfer_engine, "{}", "body.init_info"},
        {KVP_ROUTE_init_weight_transfer_engine, "{\"init_info\": 1}", "body.init_info"},
        {KVP_ROUTE_update_weights, NULL, "body"},
        {KVP_ROUTE_update_weights, "{}", "body"},
        {KVP_ROUTE_update_weight_version, NULL, "body.new_version"},
        {KVP_ROUTE_update_weight_version, "{\"new_version\": null}", "body.new_version"},
        {KVP_ROUTE_collective_rpc, NULL, "body.method"},
        {KVP_ROUTE_collective_rpc, "{}", "body.method"},
        {KVP_ROUTE_collective_rpc, "{\"method\": \"\"}", "body.method"},
        {KVP_ROUTE_collective_rpc, "{\"method\": 3}", "body.method"},
        {KVP_ROUTE_collective_rpc, "{\"method\": \"get_\\n\"}", "body.method"},
        {KVP_ROUTE_collective_rpc, "{\"method\": \"sleep\"}", "body.method"},
        {KVP_ROUTE_collective_rpc, "{\"method\": \"wake_up\"}", "body.method"},
        {KVP_ROUTE_collective_rpc, "{\"method\": \"release_kv_cache_memory\"}", "body.method"},
        {KVP_ROUTE_collective_rpc,
         "{\"method\": \"0123456789012345678901234567890123456789012345678901234567890123"
         "0123456789012345678901234567890123456789012345678901234567890123\"}",
         "body.method"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct asked asked;
        prepare(&asked, cases[i].route, NULL, cases[i].body);
        go(&asked);
        expect_error(&asked, 400, cases[i].param);
    }
    cr_expect_eq(fleet.ncalls, 0);
}

Test(control, an_unknown_method_counts_as_a_weight_change)
{
    static const char *const changing[] = {
        "reload_weights",
        "load_weights",
        "update_weights",
        "update_weights_from_ipc",
        "my_own_method",
        "get",
        "skyrl_sleep_for_something_else",
        "add_lora",
        "GET_something",
        "ping2",
    };
    static const char *const harmless[] = {"get_model_info",
                                           "is_ready",
                                           "list_loras",
                                           "check_weights",
                                           "report_usage",
                                           "start_profile",
                                           "init_weight_transfer_engine"};
    struct asked asked;
    char body[128];

    for (size_t i = 0; i < sizeof changing / sizeof changing[0]; i++) {
        snprintf(body, sizeof body, "{\"method\": \"%s\"}", changing[i]);
        struct fake_call *call = start(&asked, KVP_ROUTE_collective_rpc, NULL, body);
        cr_expect_eq(call->ask.operation, KVP_OP_UPDATE, "%s", changing[i]);
        fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
        json_decref(asked.body);
    }
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
        snprintf(body, sizeof body, "{\"method\": \"%s\"}", harmless[i]);
        struct fake_call *call = start(&asked, KVP_ROUTE_collective_rpc, NULL, body);
        cr_expect_eq(call->ask.operation, KVP_OP_RELAY, "%s", harmless[i]);
        fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
        json_decref(asked.body);
    }
}

Test(control, rpc_results_are_a_list_whatever_the_engine_answers)
{
    static const struct {
        const char *relayed;
        const char *answer;
    } cases[] = {
        {"", "{\"results\":[]}"},
        {"null", "{\"results\":[null]}"},
        {"[1,null,\"x\"]", "{\"results\":[1,null,\"x\"]}"},
        {"{\"results\":[{\"a\":1}]}", "{\"results\":[{\"a\":1}]}"},
        {"{\"results\":7}", "{\"results\":[{\"results\":7}]}"},
        {"\"text\"", "{\"results\":[\"text\"]}"},
        {"not json", "{\"results\":[\"not json\"]}"},
        {"\xff", "{\"results\":[]}"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct asked asked;
        struct fake_call *call =
            start(&asked, KVP_ROUTE_collective_rpc, NULL, "{\"method\": \"get_it\"}");
        fake_fleet_finish(&fleet, call,
                          (struct kvp_outcome){.relay_body = cases[i].relayed,
                                               .relay_len = strlen(cases[i].relayed)});
        expect_body(&asked, 200, cases[i].answer);
    }
}

/* ---- failures ---- */

Test(control, every_failure_has_its_code_and_says_what_the_instance_is_in)
{
    static const struct {
        kvb_status_t status;
        unsigned http_status;
        bool retry;
    } cases[] = {
        {KVB_ERR_BUSY, 409, true},          {KVB_ERR_BAD_STATE, 409, true},
        {KVB_ERR_CANCELED, 409, true},      {KVB_ERR_TIMEOUT, 503, false},
        {KVB_ERR_DISCONNECTED, 503, false}, {KVB_ERR_UNAVAILABLE, 503, false},
        {KVB_ERR_UNSUPPORTED, 501, false},  {KVB_ERR_INVALID, 400, false},
        {KVB_ERR_REFUSED, 500, false},      {KVB_ERR_INTERNAL, 500, false},
        {KVB_ERR_PROTOCOL, 502, false},     {KVB_ERR_TOO_LARGE, 413, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct asked asked;
        struct fake_call *call = start(&asked, KVP_ROUTE_sleep, NULL, NULL);
        uint64_t id = call->id;
        fake_fleet_finish(&fleet, call,
                          (struct kvp_outcome){.status = cases[i].status, .message = "why"});
        cr_expect_eq(asked.retry_after_s > 0, cases[i].retry, "%d", cases[i].status);
        cr_expect_str_eq(error_text(&asked, "message"), "why");
        cr_expect_eq(json_integer_value(json_object_get(asked.body, "operation_id")), id);
        cr_expect_str_eq(json_string_value(json_object_get(asked.body, "status")),
                         kvb_status_label(cases[i].status));
        cr_expect_str_eq(
            json_string_value(json_object_get(json_object_get(asked.body, "state"), "scheduler")),
            "running");
        expect_error(&asked, cases[i].http_status, NULL);
    }
}

Test(control, every_failure_says_on_which_side_it_is)
{
    static const struct {
        kvb_status_t status;
        enum kvp_side side;
        const char *at, *text;
    } cases[] = {
        {KVB_ERR_TIMEOUT, KVP_SIDE_ENGINE, "engine-0/3", "engine"},
        {KVB_ERR_TIMEOUT, KVP_SIDE_STORE, NULL, "store"},
        {KVB_ERR_UNAVAILABLE, KVP_SIDE_COORDINATOR, NULL, "coordinator"},
        {KVB_ERR_NO_MEMORY, KVP_SIDE_DAEMON, NULL, "daemon"},
        {KVB_ERR_BUSY, KVP_SIDE_CLIENT, NULL, "client"},
    };
    static const enum kvp_route_id routes[] = {KVP_ROUTE_sleep, KVP_ROUTE_reset_prefix_cache,
                                               KVP_ROUTE_flush_cache,
                                               KVP_ROUTE_release_memory_occupation};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t r = 0; r < sizeof routes / sizeof routes[0]; r++) {
            struct asked asked;
            struct fake_call *call = start(&asked, routes[r], NULL, NULL);
            fake_fleet_finish(&fleet, call,
                              (struct kvp_outcome){.status = cases[i].status,
                                                   .side = cases[i].side,
                                                   .at = cases[i].at});
            cr_expect_str_eq(member(asked.body, "side"), cases[i].text);
            cr_expect_str_eq(member(asked.body, "at"), cases[i].at != NULL ? cases[i].at : "");
            json_decref(asked.body);
        }
        struct asked all;
        ask_every(&all, KVP_ROUTE_pause, "instance=*");
        end_call("engine-0", (struct kvp_outcome){.status = cases[i].status,
                                                  .side = cases[i].side,
                                                  .at = cases[i].at});
        fake_fleet_finish_all(&fleet, (struct kvp_outcome){.nothing_to_do = true});
        cr_expect_str_eq(member(all.body, "side"), cases[i].text);
        cr_expect_str_eq(member(all.body, "at"), cases[i].at != NULL ? cases[i].at : "");
        json_decref(all.body);
        fleet.nviews = 1;
    }
}

Test(control, several_instances_must_be_named)
{
    struct asked asked;

    fake_fleet_add(&fleet, "engine-1");
    struct fake_call *call = start(&asked, KVP_ROUTE_sleep, NULL, NULL);
    fake_fleet_finish(
        &fleet, call,
        (struct kvp_outcome){.status = KVB_ERR_INVALID, .message = "engine-0, engine-1"});
    expect_error(&asked, 400, "query.instance");
    call = start(&asked, KVP_ROUTE_sleep, "instance=engine-1", NULL);
    cr_expect_str_eq(call->instance, "engine-1");
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    json_decref(asked.body);
    prepare(&asked, KVP_ROUTE_weight_info, NULL, NULL);
    go(&asked);
    cr_expect(strstr(error_text(&asked, "message"), "engine-0, engine-1") != NULL);
    expect_error(&asked, 400, "query.instance");
}

/* ---- asynchronous ---- */

/* The operation of that id as it is told; to be freed. */
static json_t *operation_told(const char *id, const char *query)
{
    struct asked asked;
    prepare(&asked, KVP_ROUTE_get_operation, query, NULL);
    strcpy(asked.request.path_arg, id);
    go(&asked);
    cr_assert_eq(asked.http_status, 200);
    return asked.body;
}

static void expect_text(const json_t *object, const char *name, const char *want)
{
    cr_expect_str_eq(json_string_value(json_object_get(object, name)), want);
}

Test(control, a_tenant_s_reset_and_removal_are_operations)
{
    static const struct {
        enum kvp_route_id route;
        const char *operation;
        kvb_status_t reset;
        const char *status, *result;
    } cases[] = {
        {KVP_ROUTE_reset_tenant, "tenant_reset", KVB_OK, "succeeded", "ok"},
        {KVP_ROUTE_reset_tenant, "tenant_reset", KVB_ERR_TIMEOUT, "failed", "timeout"},
        {KVP_ROUTE_remove_tenant, "tenant_remove", KVB_OK, "succeeded", "ok"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct asked asked, waits, list, cancel;
        char id[24];
        cluster.quota_bytes = 0;
        cluster.quota_status = KVB_OK;
        prepare(&asked, cases[i].route, NULL, NULL);
        strcpy(asked.request.path_arg, "idle");
        asked.request.respond_async = true;
        go(&asked);
        cr_assert_eq(asked.http_status, 202);
        snprintf(id, sizeof id, "%lld",
                 (long long)json_integer_value(json_object_get(asked.body, "operation_id")));
        json_decref(asked.body);
        json_t *told = operation_told(id, NULL);
        expect_text(told, "operation", cases[i].operation);
        expect_text(told, "tenant", "idle");
        expect_text(told, "instance", "");
        expect_text(told, "status", "running");
        expect_text(told, "step", "retire");
        json_decref(told);
        prepare(&cancel, KVP_ROUTE_cancel_operation, NULL, NULL);
        strcpy(cancel.request.path_arg, id);
        go(&cancel);
        cr_expect_eq(cancel.http_status, 409);
        json_decref(cancel.body);
        prepare(&waits, KVP_ROUTE_get_operation, "timeout=60", NULL);
        strcpy(waits.request.path_arg, id);
        go(&waits);
        cr_expect_eq(waits.replies, 0);
        fake_coordinator_finish(&coordinator, cases[i].reset);
        cr_expect_eq(asked.replies, 1, "it was answered before");
        cr_assert_eq(waits.replies, 1);
        expect_text(waits.body, "status", cases[i].status);
        expect_text(waits.body, "result", cases[i].result);
        cr_expect_eq(cluster.quota_bytes,
                     cases[i].route == KVP_ROUTE_remove_tenant ? UINT64_MAX : 0,
                     "though nobody waits for the answer");
        json_decref(waits.body);
        prepare(&list, KVP_ROUTE_list_operations, NULL, NULL);
        go(&list);
        expect_text(json_array_get(json_object_get(list.body, "operations"), 0), "operation",
                    cases[i].operation);
        json_decref(list.body);
    }
}

Test(control, respond_async_answers_202_with_the_place_to_look)
{
    struct asked asked;

    prepare(&asked, KVP_ROUTE_sleep, NULL, NULL);
    asked.request.respond_async = true;
    go(&asked);
    cr_expect_str_eq(asked.location, "/v1/kvplane/operations/1");
    expect_body(&asked, 202,
                "{\"status\":\"started\",\"operation_id\":1,"
                "\"location\":\"/v1/kvplane/operations/1\"}");
    fake_fleet_finish(&fleet, fake_fleet_last(&fleet), (struct kvp_outcome){0});
    cr_expect_eq(asked.replies, 1);
    static const enum kvp_route_id others[] = {KVP_ROUTE_reset_prefix_cache,
                                               KVP_ROUTE_release_kv_cache_memory,
                                               KVP_ROUTE_flush_cache, KVP_ROUTE_wake_up};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        prepare(&asked, others[i], NULL, NULL);
        asked.request.respond_async = true;
        go(&asked);
        cr_expect_eq(asked.http_status, 202);
        json_decref(asked.body);
        fake_fleet_finish_all(&fleet, (struct kvp_outcome){0});
        cr_expect_eq(asked.replies, 1);
    }
}

Test(control, what_cannot_be_started_is_answered_once_async_or_not)
{
    for (int async = 0; async < 2; async++) {
        struct asked asked;
        fleet.status = KVB_ERR_NO_MEMORY;
        prepare(&asked, KVP_ROUTE_update_weights, NULL, "{\"a\": 1}");
        asked.request.respond_async = async != 0;
        go(&asked);
        expect_error(&asked, 503, NULL);
        fleet.status = KVB_OK;
    }
}

/* ---- reads ---- */

Test(control, reads_answer_from_the_fleet)
{
    struct asked asked;

    prepare(&asked, KVP_ROUTE_weight_info, NULL, NULL);
    go(&asked);
    expect_body(&asked, 200, "{\"weight_version\":\"default\"}");
    strcpy(fleet.views[0].weight_version, "v1");
    prepare(&asked, KVP_ROUTE_weight_info, "instance=engine-0", NULL);
    go(&asked);
    expect_body(&asked, 200, "{\"weight_version\":\"v1\"}");
    prepare(&asked, KVP_ROUTE_get_world_size, NULL, NULL);
    go(&asked);
    expect_body(&asked, 200, "{\"world_size\":2}");
    fleet.views[0].attached = false;
    prepare(&asked, KVP_ROUTE_get_world_size, NULL, NULL);
    go(&asked);
    expect_error(&asked, 409, NULL);
    prepare(&asked, KVP_ROUTE_weight_info, "instance=x", NULL);
    go(&asked);
    expect_error(&asked, 404, "query.instance");
    fleet.nviews = 0;
    prepare(&asked, KVP_ROUTE_get_world_size, NULL, NULL);
    go(&asked);
    expect_error(&asked, 409, NULL);
}

Test(control, an_instance_is_shown_whole)
{
    struct asked asked;
    struct kvp_view *view = &fleet.views[0];

    view->ready = false;
    strcpy(view->not_ready, "asleep");
    strcpy(view->private_reason, "no version");
    view->stopped_by = KVP_STOPPED_BY_PAUSE | KVP_STOPPED_BY_SLEEP;
    view->scheduler = KVP_SCHEDULER_PAUSED;
    view->tags[0].residency = KVB_DISCARDED;
    view->is_sleeping = view->is_paused = true;
    view->operation_id = 9;
    view->operation = KVP_OP_WAKE;
    strcpy(view->step, "restore");
    view->drain = (struct kvp_drain_progress){1, 2, 3};
    view->deadline_ns = 101 * KVB_NS_PER_S;
    prepare(&asked, KVP_ROUTE_get_instance, NULL, NULL);
    strcpy(asked.request.path_arg, "engine-0");
    go(&asked);
    expect_body(
        &asked, 200,
        "{\"instance\":\"engine-0\",\"attached\":true,\"scheduler\":\"paused\","
        "\"stopped_by\":[\"pause\",\"sleep\"],\"tags\":{\"kv_cache\":\"discarded\","
        "\"weights\":\"resident\"},\"degraded\":false,\"tenant\":\"default\",\"layout\":\"layout-"
        "1\","
        "\"world_size\":2,\"ranks\":2,\"is_paused\":true,\"is_sleeping\":true,\"ready\":false,"
        "\"not_ready\":\"asleep\",\"weight_version\":\"default\",\"regions\":{\"registered\":2,"
        "\"bytes\":4096},\"rank_states\":[{\"rank\":0,\"attached\":true,\"worker\":true,"
        "\"scheduler\":true,\"answers\":true,\"tags\":{\"kv_cache\":\"resident\"},"
        "\"registered_regions\":2,\"registered_bytes\":4096,\"regions\":["
        "{\"id\":1,\"tag\":\"weights\",\"kind\":\"cuda\",\"state\":\"unregistered\","
        "\"current\":true,\"generation\":3,\"bytes\":1048576,\"pinned_bytes\":0,"
        "\"kept_across_sleep\":false,\"transfers\":0},"
        "{\"id\":0,\"tag\":\"kv_cache\",\"kind\":\"host\",\"state\":\"registered\","
        "\"current\":true,\"generation\":7,\"bytes\":4096,\"pinned_bytes\":4096,"
        "\"kept_across_sleep\":true,\"transfers\":2},"
        "{\"id\":0,\"tag\":\"kv_cache\",\"kind\":\"host\",\"state\":\"draining\","
        "\"current\":false,\"generation\":6,\"bytes\":4096,\"pinned_bytes\":4096,"
        "\"kept_across_sleep\":false,\"transfers\":1}],\"queues\":{"
        "\"lookup\":{\"queued\":0,\"running\":0,\"oldest_age_ms\":0.0,\"bytes\":0},"
        "\"put\":{\"queued\":1,\"running\":2,\"oldest_age_ms\":3.0,\"bytes\":4},"
        "\"get\":{\"queued\":0,\"running\":0,\"oldest_age_ms\":0.0,\"bytes\":0}},"
        "\"helper\":{\"running\":true,\"starts\":3,"
        "\"kills\":2,\"failures\":4,\"held\":{\"regions\":1,\"descriptors\":0,\"handles\":0,"
        "\"addresses\":0,\"mappings\":1,\"contexts\":0,\"dma_bufs\":0,\"registrations\":1},"
        "\"pid\":4711,\"last_cause\":\"mem_map: CUDA_ERROR_OUT_OF_MEMORY\","
        "\"gpu_rdma\":\"direct\",\"path\":\"direct\",\"integrity\":\"transport\","
        "\"direct_transfers\":12,\"pool_cause\":\"a reason\"}},{\"rank\":1,\"attached\":false}],"
        "\"lineage\":{\"id\":\"0123456789abcdeffedcba9876543210\",\"open\":true,"
        "\"weight_change_running\":false,\"retirements_pending\":0,\"coordinator_reachable\":true,"
        "\"private_reason\":\"no version\"},\"load\":{\"running\":0,\"waiting\":0,\"loading\":0,"
        "\"blocks_held\":0},\"operation\":{\"id\":9,\"operation\":\"wake\",\"step\":\"restore\","
        "\"drain\":{\"queued\":1,\"running\":2,\"bytes_left\":3},\"waiting\":0,"
        "\"deadline_in_ms\":1000}}");
    prepare(&asked, KVP_ROUTE_list_instances, NULL, NULL);
    go(&asked);
    cr_expect_eq(json_array_size(json_object_get(asked.body, "instances")), 1);
    json_decref(asked.body);
    prepare(&asked, KVP_ROUTE_get_instance, NULL, NULL);
    strcpy(asked.request.path_arg, "a/b");
    go(&asked);
    expect_error(&asked, 404, "path.name");
}

/* "instance/id/generation" of each row of a page, or "instance/queue", in one text; and the cursor.
 */
static const char *page_of(enum kvp_route_id route, const char *query, char next[KVP_CURSOR_MAX])
{
    static char rows[1024];
    const json_t *row;
    struct asked asked;
    size_t i;

    prepare(&asked, route, query, NULL);
    go(&asked);
    cr_assert_eq(asked.http_status, 200, "%s", query);
    const json_t *list = json_object_get(asked.body, "regions");
    list = list != NULL ? list : json_object_get(asked.body, "queues");
    rows[0] = '\0';
    json_array_foreach(list, i, row)
    {
        const char *queue = json_string_value(json_object_get(row, "queue"));
        size_t used = strlen(rows);
        snprintf(rows + used, sizeof rows - used, "%s%s/%s%.0lld", i > 0 ? " " : "",
                 json_string_value(json_object_get(row, "instance")), queue != NULL ? queue : "",
                 json_integer_value(json_object_get(row, "generation")));
    }
    const json_t *cursor = json_object_get(asked.body, "next");
    cr_assert_not_null(cursor, "next is there, or null");
    snprintf(next, KVP_CURSOR_MAX, "%s", json_is_null(cursor) ? "" : json_string_value(cursor));
    json_decref(asked.body);
    return rows;
}

Test(control, regions_and_queues_are_listed_in_order_by_pages)
{
    char query[KVP_CURSOR_MAX + 64];
    char next[KVP_CURSOR_MAX];

    fake_fleet_add(&fleet, "a");
    cr_expect_str_eq(page_of(KVP_ROUTE_list_regions, NULL, next),
                     "a/7 a/6 a/3 engine-0/7 engine-0/6 engine-0/3");
    cr_expect_str_eq(next, "");
    cr_expect_str_eq(page_of(KVP_ROUTE_list_regions, "instance=a", next), "a/7 a/6 a/3");
    cr_expect_str_eq(page_of(KVP_ROUTE_list_queues, "instance=a", next), "a/get a/lookup a/put");
    /* of every length, to the end */
    for (unsigned limit = 1; limit <= 6; limit++) {
        char all[1024] = "";
        unsigned pages = 0;
        snprintf(query, sizeof query, "limit=%u", limit);
        do {
            size_t used = strlen(all);
            snprintf(all + used, sizeof all - used, "%s%s", pages > 0 ? " " : "",
                     page_of(KVP_ROUTE_list_regions, query, next));
            snprintf(query, sizeof query, "limit=%u&cursor=%s", limit, next);
            pages++;
        } while (next[0] != '\0');
        cr_expect_str_eq(all, "a/7 a/6 a/3 engine-0/7 engine-0/6 engine-0/3", "%u", limit);
        cr_expect_eq(pages, (6 + limit - 1) / limit, "no empty page at the end");
    }
    /* The row that a cursor names is gone: on with the next one. */
    cr_expect_str_eq(page_of(KVP_ROUTE_list_regions, "cursor=regions:b/0000", next),
                     "engine-0/7 engine-0/6 engine-0/3");
    cr_expect_str_eq(page_of(KVP_ROUTE_list_regions, "cursor=regions:z", next), "");
}

Test(control, a_cursor_that_the_list_did_not_give_is_400)
{
    static const char *const bad[] = {"cursor=queues:engine-0", "cursor=regions",
                                      "cursor=regions:", "cursor=region:a"};
    struct asked asked;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        prepare(&asked, KVP_ROUTE_list_regions, bad[i], NULL);
        go(&asked);
        expect_error(&asked, 400, "query.cursor");
    }
    prepare(&asked, KVP_ROUTE_list_regions, "instance=x", NULL);
    go(&asked);
    expect_error(&asked, 404, "query.instance");
}

Test(control, operations_are_shown_newest_first_and_one_by_one)
{
    struct asked asked;

    fleet.records[fleet.nrecords++] =
        (struct kvp_operation_record){.id = 1,
                                      .operation = KVP_OP_SLEEP,
                                      .instance = "engine-0",
                                      .request_id = "r",
                                      .finished = true,
                                      .status = KVB_ERR_TIMEOUT,
                                      .message = "late",
                                      .side = KVP_SIDE_ENGINE,
                                      .at = "engine-0/1",
                                      .started_ns = 5 * KVB_NS_PER_S,
                                      .finished_ns = 7 * KVB_NS_PER_S};
    fleet.records[fleet.nrecords++] =
        (struct kvp_operation_record){.id = 2,
                                      .operation = KVP_OP_WAKE,
                                      .instance = "engine-0",
                                      .step = "restore",
                                      .started_ns = 99 * KVB_NS_PER_S,
                                      .deadline_ns = 110 * KVB_NS_PER_S};
    prepare(&asked, KVP_ROUTE_list_operations, NULL, NULL);
    go(&asked);
    expect_body(
        &asked, 200,
        "{\"operations\":[{\"id\":2,\"operation\":\"wake\",\"instance\":\"engine-0\","
        "\"status\":\"running\",\"elapsed_ms\":1000.0,\"step\":\"restore\","
        "\"drain\":{\"queued\":0,\"running\":0,\"bytes_left\":0},\"deadline_in_ms\":10000},"
        "{\"id\":1,\"operation\":\"sleep\",\"instance\":\"engine-0\",\"status\":\"failed\","
        "\"request_id\":\"r\",\"message\":\"late\",\"elapsed_ms\":2000.0,"
        "\"result\":\"timeout\",\"side\":\"engine\",\"at\":\"engine-0/1\"}],\"next\":null}");
    prepare(&asked, KVP_ROUTE_get_operation, NULL, NULL);
    strcpy(asked.request.path_arg, "1");
    go(&asked);
    cr_expect_str_eq(json_string_value(json_object_get(asked.body, "result")), "timeout");
    json_decref(asked.body);
    static const char *const absent[] = {"3", "0", "-1", "x", "1x", "18446744073709551617"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
        prepare(&asked, KVP_ROUTE_get_operation, NULL, NULL);
        strcpy(asked.request.path_arg, absent[i]);
        go(&asked);
        expect_error(&asked, 404, "path.id");
    }
}

Test(control, who_waits_for_an_operation_is_answered_at_its_end_or_when_the_time_is_over)
{
    struct asked asked;
    struct kvp_operation_record *record = &fleet.records[fleet.nrecords++];
    *record = (struct kvp_operation_record){
        .id = 7, .operation = KVP_OP_SLEEP, .instance = "engine-0", .step = "drain"};

    for (int ends = 0; ends < 2; ends++) {
        record->finished = false;
        prepare(&asked, KVP_ROUTE_get_operation, "timeout=2", NULL);
        strcpy(asked.request.path_arg, "7");
        go(&asked);
        cr_assert_eq(asked.replies, 0);
        sim_advance(&sim, 1999);
        sim_settle(&sim);
        cr_assert_eq(asked.replies, 0);
        if (ends) {
            record->finished = true;
            fake_fleet_finish(&fleet, fake_fleet_last(&fleet), (struct kvp_outcome){0});
        }
        sim_advance(&sim, 2);
        sim_settle(&sim);
        cr_assert_eq(asked.replies, 1);
        cr_assert_eq(asked.http_status, 200);
        cr_expect_str_eq(json_string_value(json_object_get(asked.body, "status")),
                         ends ? "succeeded" : "running");
        json_decref(asked.body);
    }
    /* it has ended: at once; and the daemon ends while one waits */
    prepare(&asked, KVP_ROUTE_get_operation, "timeout=2", NULL);
    strcpy(asked.request.path_arg, "7");
    go(&asked);
    cr_assert_eq(asked.replies, 1);
    json_decref(asked.body);
    record->finished = false;
    prepare(&asked, KVP_ROUTE_get_operation, "timeout=2", NULL);
    strcpy(asked.request.path_arg, "7");
    go(&asked);
    kvp_control_close(control);
    expect_error(&asked, 503, NULL);
}

Test(control, what_can_be_canceled_is_and_else_the_answer_says_why_not)
{
    static const struct {
        const char *id;
        kvb_status_t status;
        unsigned http_status;
    } cases[] = {{"7", KVB_OK, 200},
                 {"7", KVB_ERR_BAD_STATE, 409},
                 {"7", KVB_ERR_NOT_FOUND, 409}, /* ended meanwhile */
                 {"8", KVB_OK, 404}};
    fleet.records[fleet.nrecords++] =
        (struct kvp_operation_record){.id = 7, .operation = KVP_OP_SLEEP, .instance = "engine-0"};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct asked asked;
        fleet.cancel_status = cases[i].status;
        prepare(&asked, KVP_ROUTE_cancel_operation, NULL, NULL);
        strcpy(asked.request.path_arg, cases[i].id);
        go(&asked);
        cr_expect_eq(asked.replies, 1);
        cr_expect_eq(asked.http_status, cases[i].http_status, "%zu", i);
        json_decref(asked.body);
    }
}

/* ---- tenants ---- */

Test(control, tenants_are_those_with_instances_or_names)
{
    struct asked asked;

    coordinator.names[coordinator.nnames++] =
        (struct fake_name){.space = {"default", "layout-1"}, .name = "v1", .members = 1};
    coordinator.names[coordinator.nnames++] =
        (struct fake_name){.space = {"other", "layout-2"}, .name = "v2", .members = 0};
    prepare(&asked, KVP_ROUTE_list_tenants, NULL, NULL);
    ask(&asked);
    expect_body(
        &asked, 200,
        "{\"tenants\":[{\"name\":\"default\",\"instances\":[\"engine-0\"],\"lineages\":"
        "[{\"weights_name\":\"v1\",\"layout\":\"layout-1\","
        "\"id\":\"00000000000000010000000000000001\",\"members\":1}],\"used_bytes\":0,"
        "\"objects\":0},"
        "{\"name\":\"other\",\"instances\":[],\"lineages\":[{\"weights_name\":\"v2\","
        "\"layout\":\"layout-2\",\"id\":\"00000000000000010000000000000002\","
        "\"members\":0}],\"used_bytes\":0,\"objects\":0}],\"nodes_silent\":0,\"next\":null}");
    prepare(&asked, KVP_ROUTE_get_tenant, NULL, NULL);
    strcpy(asked.request.path_arg, "other");
    ask(&asked);
    cr_expect_str_eq(json_string_value(json_object_get(asked.body, "name")), "other");
    cr_expect_eq(asked.http_status, 200);
    json_decref(asked.body);
    prepare(&asked, KVP_ROUTE_get_tenant, NULL, NULL);
    strcpy(asked.request.path_arg, "nobody");
    ask(&asked);
    expect_error(&asked, 404, "path.name");
}

Test(control, a_tenant_s_reset_is_the_coordinator_s_and_answers_when_it_has_ended)
{
    static const struct {
        kvb_status_t status;
        unsigned http_status;
    } ends[] = {{KVB_OK, 200}, {KVB_ERR_TIMEOUT, 503}, {KVB_ERR_UNAVAILABLE, 503}};

    for (size_t i = 0; i < 3; i++) {
        struct asked asked;
        prepare(&asked, KVP_ROUTE_reset_tenant, NULL, NULL);
        strcpy(asked.request.path_arg, "default");
        go(&asked);
        cr_assert_eq(coordinator.nresets, 1);
        cr_expect_str_eq(coordinator.reset_tenant, "default");
        cr_expect_eq(coordinator.reset_deadline_ns, 110 * KVB_NS_PER_S);
        cr_expect_eq(asked.replies, 0);
        fake_coordinator_finish(&coordinator, ends[i].status);
        cr_expect_eq(asked.http_status, ends[i].http_status);
        cr_expect_eq(asked.replies, 1);
        json_decref(asked.body);
    }
    struct asked asked;
    prepare(&asked, KVP_ROUTE_reset_tenant, NULL, NULL);
    strcpy(asked.request.path_arg, "a/b");
    go(&asked);
    expect_error(&asked, 404, "path.name");
    cr_expect_eq(coordinator.nresets, 0);
}

Test(control, a_tenant_tells_what_its_instances_left_and_why)
{
    struct asked asked;

    fleet.leavings[fleet.nleavings++] = (struct kvp_left){.instance = "engine-0",
                                                          .tenant = "default",
                                                          .lineage = {{0, 1}},
                                                          .reason = "sleep",
                                                          .at_ns = 97 * KVB_NS_PER_S};
    fleet.leavings[fleet.nleavings++] =
        (struct kvp_left){.instance = "x", .tenant = "other", .reason = "pause"};
    fleet.leavings[fleet.nleavings++] = (struct kvp_left){.instance = "engine-0",
                                                          .tenant = "default",
                                                          .lineage = {{0, 2}},
                                                          .weights_name = "v1",
                                                          .reason = "update_begins",
                                                          .at_ns = NOW_NS};
    prepare(&asked, KVP_ROUTE_get_tenant, NULL, NULL);
    strcpy(asked.request.path_arg, "default");
    ask(&asked);
    expect_body(&asked, 200,
                "{\"name\":\"default\",\"instances\":[\"engine-0\"],\"lineages\":[],"
                "\"used_bytes\":0,\"objects\":0,\"left\":[{\"instance\":\"engine-0\","
                "\"id\":\"00000000000000000000000000000002\",\"reason\":\"update_begins\","
                "\"age_s\":0.0,\"weights_name\":\"v1\"},{\"instance\":\"engine-0\","
                "\"id\":\"00000000000000000000000000000001\",\"reason\":\"sleep\",\"age_s\":3.0}],"
                "\"nodes_silent\":0}");
}

static void remove_tenant(struct asked *asked, const char *tenant, const char *query)
{
    prepare(asked, KVP_ROUTE_remove_tenant, query, NULL);
    strcpy(asked->request.path_arg, tenant);
    go(asked);
}

Test(control, a_tenant_with_instances_is_removed_only_by_force)
{
    struct asked asked;

    remove_tenant(&asked, "default", NULL);
    const char *message =
        json_string_value(json_object_get(json_object_get(asked.body, "error"), "message"));
    cr_expect(strstr(message, "engine-0") != NULL, "%s", message);
    expect_error(&asked, 409, NULL);
    remove_tenant(&asked, "default", "force=false");
    expect_error(&asked, 409, NULL);
    cr_expect_eq(coordinator.nresets, 0, "nothing has happened");
    remove_tenant(&asked, "default", "force=true");
    cr_expect_eq(coordinator.nresets, 1);
    fake_coordinator_finish(&coordinator, KVB_OK);
    cr_expect_eq(asked.http_status, 200);
    json_decref(asked.body);
    /* of another daemon */
    fleet.nviews = 0;
    coordinator.instance_text = "{}";
    remove_tenant(&asked, "default", NULL);
    expect_error(&asked, 409, NULL);
    coordinator.instance_own = true; /* gone: only the coordinator still tells of it */
    remove_tenant(&asked, "default", NULL);
    cr_expect_eq(coordinator.nresets, 1);
    fake_coordinator_finish(&coordinator, KVB_OK);
    cr_expect_eq(asked.http_status, 200);
    json_decref(asked.body);
    /* one that was attached once, and others' tenants */
    fake_fleet_add(&fleet, "gone")->attached = false;
    strcpy(fake_fleet_add(&fleet, "b")->tenant, "other");
    remove_tenant(&asked, "default", NULL);
    cr_expect_eq(coordinator.nresets, 1);
    fake_coordinator_finish(&coordinator, KVB_OK);
    json_decref(asked.body);
    remove_tenant(&asked, "a/b", NULL);
    expect_error(&asked, 404, "path.name");
}

Test(control, a_removed_tenant_loses_its_lineages_and_then_its_quota)
{
    struct asked asked;

    cluster.quota_status = KVB_IN_PROGRESS;
    remove_tenant(&asked, "idle", NULL);
    cr_expect_str_eq(coordinator.reset_tenant, "idle");
    cr_expect_null(cluster.quota_request, "not before its lineages are retired");
    fake_coordinator_finish(&coordinator, KVB_OK);
    cr_assert_not_null(cluster.quota_request);
    cr_expect_str_eq(cluster.quota_tenant, "idle");
    cr_expect_eq(cluster.quota_bytes, UINT64_MAX);
    cr_expect_eq(asked.replies, 0);
    cluster.quota_request->done(cluster.quota_request, KVB_OK);
    expect_body(&asked, 200, "{\"success\":true,\"tenant\":\"idle\"}");
    /* the coordinator takes one, or none of both */
    remove_tenant(&asked, "idle", NULL);
    fake_coordinator_finish(&coordinator, KVB_OK);
    cluster.quota_request->done(cluster.quota_request, KVB_ERR_UNAVAILABLE);
    expect_error(&asked, 503, NULL);
    cluster.quota_request = NULL;
    remove_tenant(&asked, "idle", NULL);
    fake_coordinator_finish(&coordinator, KVB_ERR_TIMEOUT);
    expect_error(&asked, 503, NULL);
    cr_expect_null(cluster.quota_request);
    /* the daemon ends meanwhile: the cluster is not asked any more */
    remove_tenant(&asked, "idle", NULL);
    kvp_control_close(control);
    cr_expect_eq(asked.http_status, 503);
    fake_coordinator_finish(&coordinator, KVB_OK);
    cr_expect_null(cluster.quota_request);
    cr_expect_eq(asked.replies, 1);
    json_decref(asked.body);
}

Test(control, a_quota_is_set_and_taken_away)
{
    static const struct {
        const char *query;
        uint64_t bytes;
    } cases[] = {
        {"quota_bytes=4096", 4096}, {"quota_bytes=0", 0}, {"quota_bytes=none", UINT64_MAX}};
    struct asked asked;

    for (size_t i = 0; i < 3; i++) {
        prepare(&asked, KVP_ROUTE_set_quota, cases[i].query, NULL);
        strcpy(asked.request.path_arg, "default");
        go(&asked);
        cr_expect_eq(cluster.quota_bytes, cases[i].bytes);
        cr_expect_str_eq(cluster.quota_tenant, "default");
        expect_body(&asked, 200, "{\"success\":true,\"tenant\":\"default\"}");
    }
    prepare(&asked, KVP_ROUTE_set_quota, NULL, NULL);
    strcpy(asked.request.path_arg, "default");
    go(&asked);
    expect_error(&asked, 400, "query.quota_bytes");
    cluster.quota_status = KVB_ERR_LIMIT;
    prepare(&asked, KVP_ROUTE_set_quota, NULL, "{\"quota_bytes\":7}");
    strcpy(asked.request.path_arg, "default");
    go(&asked);
    cr_expect_eq(cluster.quota_bytes, 7);
    cr_expect_neq(asked.http_status, 200);
    json_decref(asked.body);
}

/* ---- the cluster ---- */

Test(control, a_tenant_has_the_figures_of_all_nodes_and_its_quota)
{
    struct asked asked;

    cluster.tenants[0] = (struct kvp_cluster_tenant){"other", 4096, 2, 8192};
    cluster.tenants[1] = (struct kvp_cluster_tenant){"default", 1, 1, UINT64_MAX};
    cluster.ntenants = 2;
    cluster.silent = 1;
    prepare(&asked, KVP_ROUTE_get_tenant, NULL, NULL);
    strcpy(asked.request.path_arg, "other");
    ask(&asked);
    expect_body(&asked, 200,
                "{\"name\":\"other\",\"instances\":[],\"lineages\":[],\"used_bytes\":4096,"
                "\"objects\":2,\"quota_bytes\":8192,\"left\":[],\"nodes_silent\":1}");
    cluster.status = KVB_ERR_NO_MEMORY;
    prepare(&asked, KVP_ROUTE_list_tenants, NULL, NULL);
    go(&asked);
    expect_error(&asked, 503, NULL);
}

Test(control, what_the_nodes_say_after_the_end_goes_nowhere)
{
    struct asked asked;

    prepare(&asked, KVP_ROUTE_list_tenants, NULL, NULL);
    go(&asked);
    cr_expect_eq(asked.replies, 0);
    kvp_control_close(control);
    cr_expect_eq(asked.http_status, 503);
    fake_cluster_finish(&cluster);
    cr_expect_eq(asked.replies, 1);
    json_decref(asked.body);
}

static const struct kvs_node_record records[] = {
    {.name = "Own", .address = "h:1", .capacity_bytes = 100},
    {.name = "a", .address = "a:1", .rdma = "r:1", .capacity_bytes = 50},
    {.name = "b", .address = "b:1", .capacity_bytes = 50, .draining = true},
    {.name = "c", .address = "c:1", .capacity_bytes = 50},
};

Test(control, a_node_is_shown_with_its_state_and_its_figures)
{
    static const char *const states[] = {"up", "sick", "draining", "down"};
    struct asked asked;

    cluster.nnodes = 4;
    for (uint32_t i = 0; i < 4; i++) {
        cluster.nodes[i] = (struct kvp_cluster_node){.record = &records[i]};
    }
    cluster.nodes[0].own = true;
    cluster.nodes[1].sick = true;
    cluster.nodes[1].status = (struct kvs_remote_status){
        .up = true, .by = "rdma", .used_bytes = 7, .objects = 3, .heard_ns = 98 * KVB_NS_PER_S};
    cluster.nodes[1].gets = 2.5;
    cluster.nodes[2].status.up = true;
    prepare(&asked, KVP_ROUTE_list_nodes, NULL, NULL);
    go(&asked);
    cr_assert_eq(asked.http_status, 200);
    json_t *list = json_object_get(asked.body, "nodes");
    cr_assert_eq(json_array_size(list), 4);
    for (uint32_t i = 0; i < 4; i++) {
        json_t *node = json_array_get(list, i);
        cr_expect_str_eq(json_string_value(json_object_get(node, "state")), states[i]);
        cr_expect_str_eq(json_string_value(json_object_get(node, "name")), records[i].name);
    }
    json_t *node = json_array_get(list, 1);
    cr_expect_eq(json_integer_value(json_object_get(node, "used_bytes")), 7);
    cr_expect_str_eq(json_string_value(json_object_get(node, "transport")), "rdma");
    cr_expect_str_eq(json_string_value(json_object_get(node, "rdma_address")), "r:1");
    cr_expect_null(json_object_get(json_array_get(list, 3), "transport"));
    cr_expect_float_eq(json_real_value(json_object_get(node, "gets_per_s")), 2.5, 1e-9);
    cr_expect_float_eq(json_real_value(json_object_get(node, "last_seen_s")), 2, 1e-9);
    cr_expect(json_is_null(json_object_get(json_array_get(list, 3), "last_seen_s")));
    json_decref(asked.body);
}

Test(control, one_node_is_shown_in_full)
{
    struct asked asked;

    cluster.nnodes = 2;
    cluster.nodes[0] = (struct kvp_cluster_node){.record = &records[0], .own = true, .used = true};
    cluster.nodes[1] = (struct kvp_cluster_node){
        .record = &records[1],
        .used = true,
        .sick = true,
        .sick_ns = 99 * KVB_NS_PER_S,
        .sick_times = 2,
        .calls = 9,
        .failures = 4,
        .in_flight = 1,
        .last_failure = KVB_ERR_TIMEOUT,
        .failed_ns = 97 * KVB_NS_PER_S,
        .status = {.draining = true, .up = true, .by = "tcp"},
        .nways = 2,
        .ways = {{.by = "rdma", .why = KVB_ERR_REFUSED},
                 {.by = "tcp",
                  .up = true,
                  .stats = {.lanes = 4, .heard_ns = 98 * KVB_NS_PER_S, .bytes_sent = 12}}}};
    prepare(&asked, KVP_ROUTE_get_node, NULL, NULL);
    strcpy(asked.request.path_arg, records[1].name);
    go(&asked);
    cr_assert_eq(asked.http_status, 200);
    json_t *want = json_loads(
        "{\"used\":true,\"draining\":true,\"sick_for_s\":1.0,\"in_flight\":1,\"calls\":9,"
        "\"calls_failed\":4,\"sick_times\":2,\"state\":\"draining\",\"last_failure\":{"
        "\"status\":\"timeout\",\"message\":\"timed out\",\"age_s\":3.0}}",
        0, NULL);
    json_object_set_new(json_object_get(want, "last_failure"), "message",
                        json_string(kvb_status_text(KVB_ERR_TIMEOUT)));
    const char *name;
    json_t *value;
    json_object_foreach(want, name, value)
    {
        cr_expect(json_equal(value, json_object_get(asked.body, name)), "%s", name);
    }
    json_decref(want);
    cr_expect_eq(strlen(json_string_value(json_object_get(asked.body, "incarnation"))), 16);
    const json_t *ways = json_object_get(asked.body, "ways");
    cr_assert_eq(json_array_size(ways), 2);
    const json_t *rdma = json_array_get(ways, 0);
    const json_t *tcp = json_array_get(ways, 1);
    cr_expect_str_eq(json_string_value(json_object_get(rdma, "down_because")), "refused");
    cr_expect(json_is_null(json_object_get(rdma, "last_heard_s")));
    cr_expect_null(json_object_get(tcp, "down_because"));
    cr_expect_eq(json_integer_value(json_object_get(tcp, "lanes")), 4);
    cr_expect_eq(json_integer_value(json_object_get(tcp, "bytes_sent")), 12);
    cr_expect_float_eq(json_real_value(json_object_get(tcp, "last_heard_s")), 2, 1e-9);
    json_decref(asked.body);
    prepare(&asked, KVP_ROUTE_get_node, NULL, NULL);
    strcpy(asked.request.path_arg, records[0].name);
    go(&asked);
    cr_expect(json_is_null(json_object_get(asked.body, "last_failure")));
    cr_expect(json_is_null(json_object_get(asked.body, "sick_for_s")));
    cr_expect_eq(json_array_size(json_object_get(asked.body, "ways")), 0);
    json_decref(asked.body);
    prepare(&asked, KVP_ROUTE_get_node, NULL, NULL);
    strcpy(asked.request.path_arg, "nobody");
    go(&asked);
    expect_error(&asked, 404, "path.name");
}

/* Of every list: all of it, a row at a time, is what it is at once; in the order of names, but
 * operations newest first. */
Test(control, every_list_comes_by_pages)
{
    static const struct {
        enum kvp_route_id route;
        const char *list, *of, *all;
    } lists[] = {
        {KVP_ROUTE_list_instances, "instances", "instance", " a b engine-0"},
        {KVP_ROUTE_list_operations, "operations", "instance", " o3 o2 o1"},
        {KVP_ROUTE_get_cluster, "instances", "instance", " a b engine-0 far"},
        {KVP_ROUTE_list_nodes, "nodes", "name", " n-1 n-2 n-3"},
        {KVP_ROUTE_list_tenants, "tenants", "name", " default other"},
    };
    static const struct kvs_node_record shuffled[] = {
        {.name = "n-3"}, {.name = "n-1"}, {.name = "n-2"}};

    fake_fleet_add(&fleet, "b");
    fake_fleet_add(&fleet, "a");
    coordinator.instance_text = "{}";
    coordinator.names[coordinator.nnames++] =
        (struct fake_name){.space = {"other", "layout-2"}, .name = "v2"};
    cluster.nnodes = 3;
    for (uint64_t i = 0; i < 3; i++) {
        cluster.nodes[i] = (struct kvp_cluster_node){.record = &shuffled[i]};
        fleet.records[fleet.nrecords] = (struct kvp_operation_record){.id = i + 1};
        snprintf(fleet.records[fleet.nrecords++].instance, KVB_NAME_MAX, "o%u", (unsigned)i + 1);
    }
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (unsigned limit = 1; limit <= 5; limit++) {
            char query[KVP_CURSOR_MAX + 64];
            char names[256] = "";
            bool more = true;
            snprintf(query, sizeof query, "limit=%u", limit);
            while (more) {
                struct asked asked;
                size_t k;
                const json_t *row;
                prepare(&asked, lists[i].route, query, NULL);
                go(&asked);
                fake_cluster_finish(&cluster);
                cr_assert_eq(asked.http_status, 200, "%s", query);
                const json_t *rows = json_object_get(asked.body, lists[i].list);
                cr_expect_leq(json_array_size(rows), limit);
                json_array_foreach(rows, k, row)
                {
                    strcat(strcat(names, " "),
                           json_string_value(json_object_get(row, lists[i].of)));
                }
                const json_t *next = json_object_get(asked.body, "next");
                cr_assert_not_null(next);
                more = !json_is_null(next);
                if (more) {
                    snprintf(query, sizeof query, "limit=%u&cursor=%s", limit,
                             json_string_value(next));
                }
                json_decref(asked.body);
            }
            cr_expect_str_eq(names, lists[i].all, "by %u", limit);
        }
        struct asked asked;
        prepare(&asked, lists[i].route, "cursor=regions:a", NULL);
        go(&asked);
        fake_cluster_finish(&cluster);
        expect_error(&asked, 400, "query.cursor");
    }
}

Test(control, the_cluster_is_shown_with_the_instances_of_all_daemons)
{
    struct asked asked;

    coordinator.instance_text = "{\"state\":\"serving\",\"instance\":\"liar\"}";
    cluster.etcd = true;
    cluster.nnodes = 2;
    cluster.nodes[0] = (struct kvp_cluster_node){.record = &records[0], .own = true};
    cluster.nodes[1] = (struct kvp_cluster_node){.record = &records[1]};
    prepare(&asked, KVP_ROUTE_get_cluster, NULL, NULL);
    go(&asked);
    expect_body(&asked, 200,
                "{\"coordinator\":\"etcd\",\"coordinator_reachable\":true,\"nodes\":2,"
                "\"nodes_up\":1,\"instances\":[{\"instance\":\"engine-0\",\"tenant\":\"default\","
                "\"layout\":\"layout-1\",\"token\":0,\"own\":true,\"age_s\":0.0,"
                "\"state\":\"serving\"},"
                "{\"instance\":\"far\",\"tenant\":\"default\",\"layout\":\"layout-1\","
                "\"token\":7,\"own\":false,\"age_s\":0.0,\"daemon\":\"host/1\","
                "\"state\":\"serving\"}],\"next\":null}");
    coordinator.instance_again = "\xff"; /* no text: not shown */
    prepare(&asked, KVP_ROUTE_get_cluster, NULL, NULL);
    go(&asked);
    cr_expect_eq(json_array_size(json_object_get(asked.body, "instances")), 2);
    json_decref(asked.body);
    coordinator.instance_text = "not json";
    prepare(&asked, KVP_ROUTE_get_cluster, NULL, NULL);
    go(&asked);
    cr_expect_eq(asked.http_status, 200);
    json_decref(asked.body);
}

Test(control, while_the_coordinator_is_away_own_instances_are_live_and_others_as_old_as_they_are)
{
    struct asked asked;

    /* What it was told last of our own is old; a stranger of the same name is somebody else. */
    coordinator.instance_name = "engine-0";
    coordinator.instance_text = "{\"state\":\"busy\"}";
    coordinator.instance_own = true;
    coordinator.instance_again = "engine-0";
    cluster.etcd = true;
    cluster.away_ns = 98 * KVB_NS_PER_S;
    fleet.views[0].is_sleeping = true;
    prepare(&asked, KVP_ROUTE_get_cluster, NULL, NULL);
    go(&asked);
    expect_body(&asked, 200,
                "{\"coordinator\":\"etcd\",\"coordinator_reachable\":false,\"nodes\":0,"
                "\"nodes_up\":0,\"instances\":[{\"instance\":\"engine-0\",\"tenant\":\"default\","
                "\"layout\":\"layout-1\",\"token\":7,\"own\":true,\"age_s\":0.0,"
                "\"state\":\"asleep\",\"daemon\":\"host/1\"},"
                "{\"instance\":\"engine-0\",\"tenant\":\"default\",\"layout\":\"layout-1\","
                "\"token\":8,\"own\":false,\"age_s\":2.0,"
                "\"daemon\":\"host/2\"}],\"next\":null}");
}

/* ---- limits and the end ---- */

Test(control, requests_in_flight_are_bounded_and_end_one_by_one)
{
    struct asked asked[QUEUE_MAX + 1];

    for (uint32_t i = 0; i <= QUEUE_MAX; i++) {
        prepare(&asked[i], KVP_ROUTE_sleep, NULL, NULL);
    }
    for (uint32_t i = 0; i < QUEUE_MAX; i++) {
        cr_expect_eq(kvp_inbox_submit(kvp_control_inbox(control), &asked[i].request), KVB_OK);
        kvp_control_run(control);
    }
    cr_expect_eq(kvp_inbox_submit(kvp_control_inbox(control), &asked[QUEUE_MAX].request),
                 KVB_ERR_AGAIN);
    cr_expect_eq(asked[QUEUE_MAX].replies, 0, "it still belongs to the caller");
    fake_fleet_finish(&fleet, &fleet.calls[0], (struct kvp_outcome){0});
    cr_expect_eq(asked[0].replies, 1);
    cr_expect_eq(kvp_inbox_submit(kvp_control_inbox(control), &asked[QUEUE_MAX].request), KVB_OK);
    kvp_control_run(control);
    fake_fleet_finish_all(&fleet, (struct kvp_outcome){0});
    for (uint32_t i = 0; i <= QUEUE_MAX; i++) {
        cr_expect_eq(asked[i].replies, 1);
        json_decref(asked[i].body);
    }
}

Test(control, the_loop_is_woken_for_what_is_submitted)
{
    struct asked asked;

    wakes = 0;
    prepare(&asked, KVP_ROUTE_weight_info, NULL, NULL);
    cr_assert_eq(kvp_inbox_submit(kvp_control_inbox(control), &asked.request), KVB_OK);
    cr_expect_eq(wakes, 1);
    cr_expect_eq(asked.replies, 0);
    kvp_control_run(control);
    cr_expect_eq(asked.replies, 1);
    json_decref(asked.body);
}

Test(control, closing_answers_everything_once_and_refuses_the_rest)
{
    struct asked open, queued, late, reset;

    start(&open, KVP_ROUTE_update_weights, NULL, "{\"a\": 1}");
    prepare(&reset, KVP_ROUTE_reset_tenant, NULL, NULL);
    strcpy(reset.request.path_arg, "default");
    go(&reset);
    prepare(&queued, KVP_ROUTE_sleep, NULL, NULL);
    cr_assert_eq(kvp_inbox_submit(kvp_control_inbox(control), &queued.request), KVB_OK);
    kvp_control_close(control);
    expect_error(&open, 503, NULL);
    expect_error(&queued, 503, NULL);
    expect_error(&reset, 503, NULL);
    prepare(&late, KVP_ROUTE_sleep, NULL, NULL);
    cr_expect_eq(kvp_inbox_submit(kvp_control_inbox(control), &late.request), KVB_ERR_CANCELED);
    cr_expect_eq(late.replies, 0);
    cr_expect_eq(fleet.ncalls, 1, "what was queued was not begun");
    struct fake_call *call = fake_fleet_last(&fleet);
    cr_expect_eq(memcmp(call->ask.body, "{\"a\": 1}", 8), 0, "still relayed");
    fake_fleet_finish(&fleet, call, (struct kvp_outcome){0});
    fake_coordinator_finish(&coordinator, KVB_OK);
    cr_expect_eq(open.replies, 1);
    cr_expect_eq(reset.replies, 1);
}

/* Sleep mode is off: whatever gives memory up is refused before any effect, and nothing else. */
Test(control, without_sleep_mode_memory_is_never_given_up)
{
    static const struct {
        enum kvp_route_id route;
        const char *query;
        bool refused;
    } asks[] = {
        {KVP_ROUTE_sleep, "", true},
        {KVP_ROUTE_sleep, "level=1", true},
        {KVP_ROUTE_sleep, "level=2&mode=keep", true},
        {KVP_ROUTE_release_kv_cache_memory, "", true},
        {KVP_ROUTE_release_memory_occupation, "", true},
        {KVP_ROUTE_release_memory, "tags=kv_cache", true},
        {KVP_ROUTE_sleep, "level=1&instance=*", true},
        {KVP_ROUTE_sleep, "level=0", false},
        {KVP_ROUTE_wake_up, "", false},
        {KVP_ROUTE_pause, "", false},
        {KVP_ROUTE_reset_prefix_cache, "", false},
    };
    teardown();
    make(true);
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        struct asked asked;
        uint32_t before = fleet.ncalls;
        prepare(&asked, asks[i].route, asks[i].query, NULL);
        go(&asked);
        cr_expect_eq(fleet.ncalls, before + (asks[i].refused ? 0 : 1));
        cr_expect_eq(asked.replies, asks[i].refused ? 1 : 0);
        if (asks[i].refused) {
            expect_error(&asked, 501, NULL);
        } else {
            fake_fleet_finish_all(&fleet, (struct kvp_outcome){.status = KVB_ERR_CANCELED});
            json_decref(asked.body);
        }
    }
}

Test(control, memory_that_rdma_could_not_register_is_told_of_with_its_reason)
{
    struct asked asked;
    prepare(&asked, KVP_ROUTE_get_cluster, NULL, NULL);
    go(&asked);
    cr_expect_null(json_object_get(asked.body, "rdma_left_out"));
    json_decref(asked.body);
    cluster.left_out = 2;
    prepare(&asked, KVP_ROUTE_get_cluster, NULL, NULL);
    go(&asked);
    cr_expect_eq(json_integer_value(json_object_get(asked.body, "rdma_left_out")), 2);
    cr_expect_str_eq(json_string_value(json_object_get(asked.body, "rdma_left_out_reason")),
                     "raise RLIMIT_MEMLOCK");
    json_decref(asked.body);
}
