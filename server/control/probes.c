/* SPDX-License-Identifier: Apache-2.0 */
#include "control/probes.h"

#include "http/errors.h"

#include "base/assert.h"

/* The contract travels inside the program, so that the two cannot differ. */
__asm__(".pushsection .rodata\n"
        ".global kvp_openapi\n"
        ".global kvp_openapi_end\n"
        ".hidden kvp_openapi\n"
        ".hidden kvp_openapi_end\n"
        "kvp_openapi:\n"
        ".incbin \"" KVP_OPENAPI_FILE "\"\n"
        "kvp_openapi_end:\n"
        ".byte 0\n"
        ".popsection\n");

/* arg: the list, made with the first. */
static void add_reason(void *arg, const char *reason)
{
    json_t **reasons = arg;
    if (*reasons == NULL) {
        *reasons = json_array();
    }
    (void)json_array_append_new(*reasons, json_string(reason)); /* out of memory: one reason less */
}

#define YES(word) "{\"status\":\"" word "\"}"

static void ask(struct kvp_board *board, enum kvp_board_question question, const char *yes,
                struct kvp_probe_answer *answer)
{
    json_t *reasons = NULL;

    if (kvp_board_ask(board, question, add_reason, &reasons)) {
        kvp_probe_constant(yes, answer);
        return;
    }
    if (json_array_size(reasons) == 0) {
        add_reason(&reasons, "not now"); /* there was no memory for the reason */
    }
    kvp_probe_reasons(reasons, answer);
}

static void state(struct kvp_board *board, const char *instance, bool sleeping,
                  struct kvp_probe_answer *answer)
{
    char message[KVP_BOARD_REASON_MAX];
    struct kvp_view view;
    kvb_status_t status = kvp_board_view(board, instance, &view, message);

    if (status != KVB_OK) {
        answer->http_status = kvp_error_http(status);
        answer->json = kvp_error_body(
            answer->http_status, status == KVB_ERR_UNAVAILABLE ? NULL : "query.instance", message);
    } else if (sleeping) {
        answer->json = json_pack("{s:b}", "is_sleeping", view.is_sleeping);
    } else {
        answer->json = json_pack("{s:b}", "is_paused", view.is_paused);
    }
}

static void add_model(void *arg, const struct kvp_view *view)
{
    json_t *model = json_pack("{s:s, s:s, s:s, s:s}", "id", view->model, "object", "model",
                              "owned_by", "kvplane", "instance", view->instance);
    (void)json_object_set_new(model, "max_model_len",
                              view->max_model_len > 0 ? json_integer(view->max_model_len)
                                                      : json_null());
    (void)json_array_append_new(arg, model);
}

static json_t *models(struct kvp_board *board)
{
    json_t *list = json_array();
    kvp_board_each(board, add_model, list);
    return list;
}

void kvp_probe(const struct kvp_route *route, const char *instance, struct kvp_board *board,
               struct kvb_metrics *metrics, struct kvp_probe_answer *answer_p)
{
    *answer_p = (struct kvp_probe_answer){.http_status = 200};
    switch (route->id) {
    case KVP_ROUTE_health:
        ask(board, KVP_BOARD_HEALTH, YES("ok"), answer_p);
        return;
    case KVP_ROUTE_livez:
    case KVP_ROUTE_liveness:
        ask(board, KVP_BOARD_LIVE, YES("alive"), answer_p);
        return;
    case KVP_ROUTE_readyz:
    case KVP_ROUTE_ready:
    case KVP_ROUTE_health_ready:
        ask(board, KVP_BOARD_READY, YES("ready"), answer_p);
        return;
    case KVP_ROUTE_startupz:
        ask(board, KVP_BOARD_STARTED, YES("started"), answer_p);
        return;
    case KVP_ROUTE_is_paused:
        state(board, instance, false, answer_p);
        return;
    case KVP_ROUTE_is_sleeping:
        state(board, instance, true, answer_p);
        return;
    case KVP_ROUTE_list_models:
        answer_p->json = json_pack("{s:s, s:o}", "object", "list", "data", models(board));
        return;
    case KVP_ROUTE_metrics:
        kvp_probe_metrics(metrics, answer_p);
        return;
    case KVP_ROUTE_version:
        answer_p->json = json_pack("{s:s, s:s}", "name", "kvplane", "version", KVP_VERSION);
        return;
    case KVP_ROUTE_openapi:
        kvp_probe_bytes(kvp_openapi, kvp_openapi_end, "application/yaml", answer_p);
        return;
    default:
        KVB_UNREACHABLE("a route of kind CONTROL");
    }
}
