/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request that HTTP has understood, on its way through control, and what others say meanwhile.
 * First byte: which route. Second: 1, there are two instances; 2, the fleet refuses; 4, what was
 * asked of it fails; 8, nothing was done locally. Then lines: the query, the body (JSON), what the
 * engine answers to what is relayed, what another daemon has told of its instance.
 *
 * Each is answered exactly once, with JSON that can be told, and a refusal says why.
 */
#include "control.h"
#include "events.h"
#include "fake_fleet.h"
#include "fuzz.h"
#include "http/params.h"
#include "sim_sched.h"

#include "base/log.h"

static struct kvp_fleet fleet;
static struct kvs_coordinator coordinator;
static struct kvp_cluster cluster;
static struct kvp_events *events;

struct asked {
    struct kvp_request request;
    uint32_t replies;
};

static void no_wake(void *ctx)
{
    (void)ctx;
}

static void on_reply(struct kvp_request *request, unsigned http_status, json_t *body,
                     unsigned retry_after_s)
{
    struct asked *asked = kvb_container_of(request, struct asked, request);
    char *text = json_dumps(body, JSON_COMPACT);

    (void)retry_after_s;
    kvb_assert(++asked->replies == 1 && http_status >= 200 && http_status < 600);
    kvb_assert((json_is_object(body) || json_is_array(body)) && text != NULL); /* /get_load */
    if (http_status >= 400 && json_object_get(body, "error") != NULL) {
        fuzz_told(json_string_value(json_object_get(json_object_get(body, "error"), "message")));
    }
    kvb_assert(http_status < 400 || json_object_get(body, "error") != NULL ||
               json_is_false(json_object_get(body, "success")) ||
               json_object_get(body, "instances") != NULL);
    free(text);
    json_decref(body);
    free(request->body); /* as the HTTP side does */
    json_decref(request->json);
    memset(request, 0xdd, sizeof *request); /* it is gone: whoever looks at it is caught */
}

static struct kvp_control *create(struct sim_sched *sim, bool two)
{
    struct kvp_control *control;
    kvb_status_t status = kvp_events_create(0, &events);
    kvb_assert(status == KVB_OK);
    const struct kvp_control_config config = {.fleet = &fleet,
                                              .coordinator = &coordinator,
                                              .cluster = &cluster,
                                              .events = events,
                                              .sched = &sim->sched,
                                              .clock = sim->sched.clock,
                                              .retire_ms = 10000,
                                              .queue_max = 4,
                                              .wake = no_wake};
    memset(&fleet, 0, sizeof fleet);
    memset(&coordinator, 0, sizeof coordinator);
    memset(&cluster, 0, sizeof cluster);
    (void)fake_fleet_add(&fleet, "engine-0");
    if (two) {
        (void)fake_fleet_add(&fleet, "engine-1");
    }
    status = kvp_control_create(&config, &control);
    kvb_assert(status == KVB_OK);
    return control;
}

/* False: refused before it came so far. */
static bool prepare(struct asked *asked, uint8_t route, const char *query, const char *body)
{
    struct kvp_param_error wrong;
    struct kvp_request *request = &asked->request;
    request->route = &kvp_routes[route % KVP_ROUTE_COUNT];
    if (request->route->where != KVP_CONTROL && request->route->where != KVP_STREAM) {
        return false;
    }
    request->reply = on_reply;
    strcpy(request->request_id, "req-1");
    strcpy(request->path_arg, "7");
    if (body != NULL && body[0] != '\0' && request->route->method == KVP_POST) {
        request->body_len = strlen(body);
        request->json = json_loadb(body, request->body_len, 0, NULL);
        request->body = strdup(body);
        if (!json_is_object(request->json)) {
            json_decref(request->json);
            request->json = NULL;
        }
    }
    if (kvp_params_read(request->route, query != NULL && query[0] != '\0' ? query : NULL,
                        request->json, &request->params, request->instance, &wrong) == KVB_OK) {
        return true;
    }
    free(request->body);
    json_decref(request->json);
    return false;
}

static void answer(struct kvp_control *control, struct sim_sched *sim, struct asked *asked,
                   uint8_t how, const char *relayed)
{
    const struct kvp_outcome outcome = {
        .status = (how & 4) != 0 ? KVB_ERR_TIMEOUT : KVB_OK,
        .local_done = (how & 8) == 0,
        .relay_body = relayed,
        .relay_len = relayed != NULL ? strlen(relayed) : 0,
    };
    kvb_status_t status = kvp_inbox_submit(kvp_control_inbox(control), &asked->request);
    kvb_assert(status == KVB_OK);
    for (int i = 0; i < 8 || asked->replies == 0; i++) {
        kvb_assert(i < 32); /* nothing waits for longer than was asked for */
        kvp_control_run(control);
        fake_fleet_finish_all(&fleet, outcome);
        fake_coordinator_finish(&coordinator, KVB_OK);
        fake_cluster_finish(&cluster);
        sim_advance(sim, i < 8 ? 100 : 1000000);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct asked asked = {.replies = 0};
    struct sim_sched sim;
    if (size < 2) {
        return 0;
    }
    kvb_log_threshold = KVB_LOG_ERROR;
    sim_init(&sim, 1);
    struct kvp_control *control = create(&sim, (data[1] & 1) != 0);
    struct fuzz_lines lines = {(const char *)data + 2, size - 2};
    char *query = fuzz_line(&lines), *body = fuzz_line(&lines), *relayed = fuzz_line(&lines),
         *record = fuzz_line(&lines);
    fleet.status = (data[1] & 2) != 0 ? KVB_ERR_BUSY : KVB_OK;
    coordinator.instance_text = record;
    if (prepare(&asked, data[0], query, body)) {
        answer(control, &sim, &asked, data[1], relayed);
        kvb_assert(asked.replies == 1);
    }
    kvp_control_close(control);
    fake_fleet_finish_all(&fleet, (struct kvp_outcome){.status = KVB_ERR_CANCELED});
    kvp_control_destroy(control);
    kvp_events_destroy(events);
    sim_cleanup(&sim);
    free(query);
    free(body);
    free(relayed);
    free(record);
    return 0;
}
