/* SPDX-License-Identifier: Apache-2.0 */
#include "control/pages.h"

#include "base/assert.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_MAX 512

void kvp_json_set_text(json_t *object, const char *name, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        (void)json_object_set_new(object, name, json_string(text));
    }
}

void kvp_json_set_side(json_t *object, enum kvp_side side, const char *at)
{
    kvp_json_set_text(object, "side", kvp_side_text(side));
    kvp_json_set_text(object, "at", at);
}

void kvp_json_set_u64(json_t *object, const char *name, uint64_t value)
{
    (void)json_object_set_new(object, name, json_integer((json_int_t)value));
}

static const char *scheduler_text(enum kvp_scheduler scheduler)
{
    switch (scheduler) {
#define X(name, text)                                                                              \
    case KVP_SCHEDULER_##name:                                                                     \
        return text;
        KVP_SCHEDULER_STATES(X)
#undef X
    }
    KVB_UNREACHABLE("scheduler state");
}

static json_t *stoppers_json(unsigned bits)
{
    json_t *list = json_array();
#define X(name, bit, text)                                                                         \
    if ((bits & (bit)) != 0) {                                                                     \
        (void)json_array_append_new(list, json_string(text));                                      \
    }
    KVP_STOPPERS(X)
#undef X
    return list;
}

/* The short form, for the answers of failed operations. */
json_t *kvp_state_json(const struct kvp_view *view)
{
    return json_pack("{s:s, s:b, s:s, s:o, s:o, s:b}", "instance", view->instance, "attached",
                     view->attached, "scheduler", scheduler_text(view->scheduler), "stopped_by",
                     stoppers_json(view->stopped_by), "tags",
                     kvp_tags_json(view->tags, view->ntags), "degraded", view->degraded);
}

static json_t *drain_json(const struct kvp_drain_progress *drain)
{
    return json_pack("{s:I, s:I, s:I}", "queued", (json_int_t)drain->queued, "running",
                     (json_int_t)drain->running, "bytes_left", (json_int_t)drain->bytes_left);
}

static int64_t ms_until(const struct kvp_control *control, uint64_t deadline_ns)
{
    uint64_t now_ns = kvb_now_ns(control->config.clock);
    return deadline_ns > now_ns ? (int64_t)((deadline_ns - now_ns) / KVB_NS_PER_MS) : 0;
}

static void set_deadline(const struct kvp_control *control, json_t *object, uint64_t deadline_ns)
{
    if (deadline_ns != KVB_NEVER && deadline_ns != 0) {
        (void)json_object_set_new(object, "deadline_in_ms",
                                  json_integer(ms_until(control, deadline_ns)));
    }
}

static json_t *lineage_json(const struct kvp_view *view)
{
    char hex[KVB_ID_HEX_LEN + 1];
    kvb_id_format(view->lineage.id, hex);
    json_t *json = json_pack("{s:s, s:b, s:b, s:I, s:b}", "id", hex, "open", view->open,
                             "weight_change_running", view->weight_change_running,
                             "retirements_pending", (json_int_t)view->retirements_pending,
                             "coordinator_reachable", view->coordinator_reachable);
    kvp_json_set_text(json, "weights_name", view->weights_name);
    kvp_json_set_text(json, "private_reason", view->private_reason);
    return json;
}

static json_t *instance_json(struct kvp_control *control, const struct kvp_view *view)
{
    json_t *json = kvp_state_json(view);

    kvp_json_set_text(json, "tenant", view->tenant);
    kvp_json_set_text(json, "layout", view->layout);
    kvp_json_set_text(json, "message", view->message);
    if (view->kind[0] != '\0') { /* a server that is driven: no KV moves through here */
        (void)json_object_set_new(json, "driven",
                                  json_pack("{s:s, s:s}", "kind", view->kind, "url", view->url));
    }
    kvp_json_set_u64(json, "world_size",
                     view->own_world_size > 0 ? view->own_world_size : view->world_size);
    kvp_json_set_u64(json, "ranks", view->ranks);
    (void)json_object_update_new(
        json, json_pack("{s:b, s:b, s:b, s:s}", "is_paused", view->is_paused, "is_sleeping",
                        view->is_sleeping, "ready", view->ready, "weight_version",
                        view->weight_version[0] != '\0' ? view->weight_version : "default"));
    if (!view->ready) {
        kvp_json_set_text(json, "not_ready", view->not_ready);
    }
    (void)json_object_set_new(json, "regions",
                              json_pack("{s:I, s:I}", "registered",
                                        (json_int_t)view->registered_regions, "bytes",
                                        (json_int_t)view->registered_bytes));
    (void)json_object_set_new(json, "rank_states", kvp_ranks_json(control, view->instance));
    (void)json_object_set_new(json, "lineage", lineage_json(view));
    (void)json_object_set_new(
        json, "load",
        json_pack("{s:I, s:I, s:I, s:I}", "running", (json_int_t)view->load.running, "waiting",
                  (json_int_t)view->load.waiting, "loading", (json_int_t)view->load.loading,
                  "blocks_held", (json_int_t)view->load.blocks_held));
    if (view->operation_id != 0) {
        json_t *operation = json_pack(
            "{s:I, s:s, s:s, s:o, s:I}", "id", (json_int_t)view->operation_id, "operation",
            kvp_operation_label(view->operation), "step", view->step, "drain",
            drain_json(&view->drain), "waiting", (json_int_t)view->waiting_operations);
        set_deadline(control, operation, view->deadline_ns);
        (void)json_object_set_new(json, "operation", operation);
    }
    return json;
}

/* ---- reads ---- */

static void list_name(void *arg, const struct kvp_view *view)
{
    char *list = arg;
    size_t used = strlen(list);
    snprintf(list + used, MESSAGE_MAX - used, "%s%s", used > 0 ? ", " : "", view->instance);
}

struct first {
    struct kvp_view *view;
    bool none;
};

static void keep_first(void *arg, const struct kvp_view *view)
{
    struct first *first = arg;
    if (first->none) {
        *first->view = *view;
        first->none = false;
    }
}

bool kvp_find_instance(struct kvp_control *control, struct kvp_request *request,
                       struct kvp_view *view_p)
{
    struct kvp_fleet *fleet = control->config.fleet;
    const char *name = request->instance[0] != '\0' ? request->instance : NULL;
    char names[MESSAGE_MAX] = "";
    char message[MESSAGE_MAX + 64];

    if (kvp_fleet_view(fleet, name, view_p)) {
        return true;
    }
    if (kvp_means_all(control, request)) { /* they are alike: the first stands for them */
        struct first first = {.view = view_p, .none = true};
        kvp_fleet_each(fleet, keep_first, &first);
        strcpy(request->instance, view_p->instance);
        return true;
    }
    if (name != NULL) {
        kvp_control_reply_error(control, request, KVB_ERR_NOT_FOUND, "query.instance",
                                "there is no instance of that name");
    } else if (kvp_fleet_count(fleet) == 0) {
        kvp_control_reply_error(control, request, KVB_ERR_BAD_STATE, NULL,
                                "no engine has attached yet");
    } else {
        kvp_fleet_each(fleet, list_name, names);
        snprintf(message, sizeof message, "say which by ?instance=NAME: %s", names);
        kvp_control_reply_error(control, request, KVB_ERR_INVALID, "query.instance", message);
    }
    return false;
}

struct listing {
    struct kvp_control *control;
    struct kvp_page page;
};

static void add_instance(void *arg, const struct kvp_view *view)
{
    struct listing *listing = arg;
    if (kvp_page_wants(&listing->page, view->instance)) {
        kvp_page_add(&listing->page, view->instance, instance_json(listing->control, view));
    }
}

void kvp_read_instances(struct kvp_control *control, struct kvp_request *request)
{
    struct listing listing = {.control = control};
    if (kvp_page_begin(control, request, "instances", &listing.page)) {
        kvp_fleet_each(control->config.fleet, add_instance, &listing);
        kvp_control_reply(control, request, 200, kvp_page_end(&listing.page), 0);
    }
}

void kvp_read_instance(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_view view;

    if (kvp_fleet_view(control->config.fleet, request->path_arg, &view)) {
        kvp_control_reply(control, request, 200, instance_json(control, &view), 0);
    } else {
        kvp_control_reply_error(control, request, KVB_ERR_NOT_FOUND, "path.name",
                                "there is no instance of that name");
    }
}

json_t *kvp_operation_json(const struct kvp_control *control,
                           const struct kvp_operation_record *record)
{
    const char *status = !record->finished          ? "running"
                         : record->status == KVB_OK ? "succeeded"
                                                    : "failed";
    uint64_t end_ns = record->finished ? record->finished_ns : kvb_now_ns(control->config.clock);
    json_t *json = json_pack("{s:I, s:s, s:s, s:s}", "id", (json_int_t)record->id, "operation",
                             kvp_operation_label(record->operation), "instance", record->instance,
                             "status", status);

    kvp_json_set_text(json, "request_id", record->request_id);
    kvp_json_set_text(json, "message", record->message);
    (void)json_object_set_new(
        json, "elapsed_ms",
        json_real((double)(end_ns > record->started_ns ? end_ns - record->started_ns : 0) / 1e6));
    if (record->finished) {
        kvp_json_set_text(json, "result", kvb_status_label(record->status));
        if (record->status != KVB_OK) {
            kvp_json_set_side(json, record->side, record->at);
        }
    } else {
        kvp_json_set_text(json, "step", record->step);
        (void)json_object_set_new(json, "drain", drain_json(&record->drain));
        set_deadline(control, json, record->deadline_ns);
    }
    return json;
}

/* Its place on the pages: newest first. False: not on this one. */
static bool has_place(struct listing *listing, uint64_t id, char key[KVP_PAGE_KEY_MAX])
{
    (void)snprintf(key, KVP_PAGE_KEY_MAX, "%020" PRIu64, UINT64_MAX - id);
    return kvp_page_wants(&listing->page, key);
}

static void add_operation(void *arg, const struct kvp_operation_record *record)
{
    struct listing *listing = arg;
    char key[KVP_PAGE_KEY_MAX];
    if (has_place(listing, record->id, key)) {
        kvp_page_add(&listing->page, key, kvp_operation_json(listing->control, record));
    }
}

static void add_own(void *arg, const struct kvp_own *own)
{
    struct listing *listing = arg;
    char key[KVP_PAGE_KEY_MAX];
    if (has_place(listing, own->record.id, key)) {
        kvp_page_add(&listing->page, key, own->ops->json(own));
    }
}

void kvp_read_operations(struct kvp_control *control, struct kvp_request *request)
{
    struct listing listing = {.control = control};
    if (kvp_page_begin(control, request, "operations", &listing.page)) {
        kvp_fleet_each_operation(control->config.fleet, add_operation, &listing);
        kvp_own_each(control, add_own, &listing);
        kvp_control_reply(control, request, 200, kvp_page_end(&listing.page), 0);
    }
}

/* Decimal digits only; an id that overflows is one that does not exist. */
static bool parse_id(const char *text, uint64_t *id_p)
{
    uint64_t id = 0;
    if (text[0] == '\0' || text[strspn(text, "0123456789")] != '\0' || strlen(text) > 19) {
        return false;
    }
    for (; *text != '\0'; text++) {
        id = id * 10 + (uint64_t)(*text - '0');
    }
    *id_p = id;
    return true;
}

/* What an id in the path names: one of no single instance, or one of one. */
struct named {
    uint64_t id;
    struct kvp_own *own; /* NULL: of one instance, with this record */
    struct kvp_operation_record record;
};

static bool find_operation(struct kvp_control *control, struct kvp_request *request,
                           struct named *named_p)
{
    if (parse_id(request->path_arg, &named_p->id)) {
        named_p->own = kvp_own_find(control, named_p->id);
        if (named_p->own != NULL ||
            kvp_fleet_operation(control->config.fleet, named_p->id, &named_p->record)) {
            return true;
        }
    }
    kvp_control_reply_error(control, request, KVB_ERR_NOT_FOUND, "path.id",
                            "there is no such operation, or it ended too long ago");
    return false;
}

static void reply_operation(struct kvp_control *control, struct kvp_request *request)
{
    struct named named;

    if (find_operation(control, request, &named)) {
        kvp_control_reply(control, request, 200,
                          named.own != NULL ? named.own->ops->json(named.own)
                                            : kvp_operation_json(control, &named.record),
                          0);
    }
}

static void on_end(struct kvp_pending *pending)
{
    if (pending->request != NULL) {
        reply_operation(pending->control, pending->request);
    }
    kvp_pending_free(pending);
}

static void on_ended(void *arg, const struct kvp_outcome *outcome)
{
    (void)outcome;
    on_end(arg);
}

static void on_waited(struct kvb_timer *timer)
{
    struct kvp_pending *pending = kvb_container_of(timer, struct kvp_pending, timer);

    kvp_fleet_forget(pending->control->config.fleet, pending);
    reply_operation(pending->control, pending->request);
    kvp_pending_free(pending);
}

/* With a timeout: when it has ended, or as it is by then. */
void kvp_read_operation(struct kvp_control *control, struct kvp_request *request)
{
    struct named named;

    if (request->params.timeout == 0) {
        reply_operation(control, request);
        return;
    }
    if (!find_operation(control, request, &named)) {
        return;
    }
    struct kvp_pending *pending = kvp_pending_create(control, request);
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    if (pending != NULL && named.own != NULL) {
        status = kvp_own_await(named.own, pending, on_end) ? KVB_OK : KVB_ERR_NOT_FOUND;
    } else if (pending != NULL) {
        status = kvp_fleet_await(control->config.fleet, named.id, on_ended, pending);
    }
    if (status == KVB_OK) {
        pending->timer.fn = on_waited;
        kvb_sched_timer_set(control->config.sched, &pending->timer,
                            kvb_deadline_in_ms(control->config.clock, request->params.timeout));
        return;
    }
    if (pending != NULL) {
        kvp_pending_free(pending);
    }
    if (status == KVB_ERR_NOT_FOUND) { /* it has ended */
        reply_operation(control, request);
    } else {
        kvp_control_reply_error(control, request, status, NULL, "out of memory; try again");
    }
}

void kvp_cancel_operation(struct kvp_control *control, struct kvp_request *request)
{
    struct named named;

    if (!find_operation(control, request, &named)) {
        return;
    }
    switch (named.own != NULL ? kvp_own_cancel(named.own)
                              : kvp_fleet_cancel(control->config.fleet, named.id)) {
    case KVB_OK:
        kvp_control_reply(
            control, request, 200,
            json_pack("{s:s, s:I}", "status", "canceling", "operation_id", (json_int_t)named.id),
            0);
        return;
    case KVB_ERR_NOT_FOUND:
        kvp_control_reply_error(control, request, KVB_ERR_BAD_STATE, NULL,
                                "the operation has ended");
        return;
    default:
        kvp_control_reply_error(
            control, request, KVB_ERR_BAD_STATE, NULL,
            "it cannot be canceled: only pause, sleep and release can, until memory is discarded");
    }
}

void kvp_read_events(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_events_gap gap = {0};
    uint64_t next = request->params.after;
    json_t *list = json_array();
    struct kvp_event *page = calloc(KVP_EVENTS_PAGE_MAX, sizeof *page);
    uint32_t n = page == NULL ? 0
                              : kvp_events_read(control->config.events, next, page,
                                                KVP_EVENTS_PAGE_MAX, &gap);
    for (uint32_t i = 0; i < n; i++) {
        (void)json_array_append_new(list, kvp_event_json(&page[i]));
        next = page[i].id;
    }
    free(page);
    kvp_control_reply(control, request, 200,
                      json_pack("{s:o, s:I, s:I, s:b}", "events", list, "next", (json_int_t)next,
                                "lost", (json_int_t)gap.lost, "restarted", gap.restarted),
                      0);
}
