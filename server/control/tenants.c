/* SPDX-License-Identifier: Apache-2.0 */
#include "control/pages.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIGURES_MS = 2000 }; /* a node that has not said what its tenants have by then is silent */

/* The entry of a tenant in an object by name, made if absent; NULL: out of memory. */
static json_t *tenant_entry(json_t *tenants, const char *name)
{
    json_t *entry = json_object_get(tenants, name);
    if (entry == NULL) {
        entry = json_pack("{s:s, s:[], s:[], s:i, s:i}", "name", name, "instances", "lineages",
                          "used_bytes", 0, "objects", 0);
        if (json_object_set_new(tenants, name, entry) != 0) {
            return NULL;
        }
    }
    return entry;
}

static void add_member(void *arg, const struct kvp_view *view)
{
    json_t *entry = tenant_entry(arg, view->tenant);
    (void)json_array_append_new(json_object_get(entry, "instances"), json_string(view->instance));
}

static void add_name(void *arg, const struct kvs_space *space, const char *name,
                     struct kvb_lineage lineage, uint32_t members)
{
    char hex[KVB_ID_HEX_LEN + 1];
    json_t *entry = tenant_entry(arg, space->tenant);

    kvb_id_format(lineage.id, hex);
    (void)json_array_append_new(json_object_get(entry, "lineages"),
                                json_pack("{s:s, s:s, s:s, s:I}", "weights_name", name, "layout",
                                          space->layout, "id", hex, "members",
                                          (json_int_t)members));
}

static json_t *tenants_json(struct kvp_control *control, const struct kvp_cluster_tenant *figures,
                            uint32_t n)
{
    json_t *tenants = json_object();

    kvp_fleet_each(control->config.fleet, add_member, tenants);
    kvs_coordinator_each_name(control->config.coordinator, add_name, tenants);
    for (uint32_t i = 0; i < n; i++) {
        bool nothing = figures[i].used_bytes == 0 && figures[i].objects == 0 &&
                       figures[i].quota_bytes == UINT64_MAX;
        if (nothing && json_object_get(tenants, figures[i].tenant) == NULL) {
            continue; /* a node still knows its name, and that is all */
        }
        json_t *entry = tenant_entry(tenants, figures[i].tenant);
        kvp_json_set_u64(entry, "used_bytes", figures[i].used_bytes);
        kvp_json_set_u64(entry, "objects", figures[i].objects);
        if (figures[i].quota_bytes != UINT64_MAX) {
            kvp_json_set_u64(entry, "quota_bytes", figures[i].quota_bytes);
        }
    }
    return tenants;
}

struct leavings {
    const char *tenant;
    uint64_t now_ns;
    json_t *list;
};

static void add_leaving(void *arg, const struct kvp_left *leaving)
{
    struct leavings *leavings = arg;
    char hex[KVB_ID_HEX_LEN + 1];
    if (strcmp(leaving->tenant, leavings->tenant) != 0) {
        return;
    }
    kvb_id_format(leaving->lineage.id, hex);
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:f}", "instance", leaving->instance, "id", hex, "reason",
                  leaving->reason, "age_s", (double)(leavings->now_ns - leaving->at_ns) / 1e9);
    kvp_json_set_text(json, "weights_name", leaving->weights_name);
    (void)json_array_append_new(leavings->list, json);
}

static void reply_tenant(struct kvp_pending *pending, json_t *tenants, uint32_t silent)
{
    json_t *entry = json_incref(json_object_get(tenants, pending->tenant));
    if (entry == NULL) {
        kvp_control_reply_error(pending->control, pending->request, KVB_ERR_NOT_FOUND, "path.name",
                                "this tenant has neither instances nor named lineages nor objects");
        return;
    }
    struct leavings leavings = {.tenant = pending->tenant,
                                .now_ns = kvb_now_ns(pending->control->config.clock),
                                .list = json_array()};
    kvp_fleet_each_left(pending->control->config.fleet, add_leaving, &leavings);
    (void)json_object_set_new(entry, "left", leavings.list);
    kvp_json_set_u64(entry, "nodes_silent", silent);
    kvp_control_reply(pending->control, pending->request, 200, entry, 0);
}

static void reply_tenants(struct kvp_pending *pending, json_t *tenants, uint32_t silent)
{
    struct kvp_page page;
    const char *name;
    json_t *entry;

    if (!kvp_page_begin(pending->control, pending->request, "tenants", &page)) {
        return;
    }
    json_object_foreach(tenants, name, entry)
    {
        if (kvp_page_wants(&page, name)) {
            kvp_page_add(&page, name, json_incref(entry));
        }
    }
    json_t *body = kvp_page_end(&page);
    kvp_json_set_u64(body, "nodes_silent", silent);
    kvp_control_reply(pending->control, pending->request, 200, body, 0);
}

static void figures_came(struct kvp_cluster_tenants *ask, const struct kvp_cluster_tenant *figures,
                         uint32_t n, uint32_t silent)
{
    struct kvp_pending *pending = kvb_container_of(ask, struct kvp_pending, figures);

    if (pending->request != NULL) {
        json_t *tenants = tenants_json(pending->control, figures, n);
        if (pending->tenant[0] != '\0') {
            reply_tenant(pending, tenants, silent);
        } else {
            reply_tenants(pending, tenants, silent);
        }
        json_decref(tenants);
    }
    kvp_pending_free(pending);
}

/* Of one that is named, or of all. */
static void ask_figures(struct kvp_control *control, struct kvp_request *request,
                        const char *tenant)
{
    struct kvp_pending *pending = kvp_pending_create(control, request);
    kvb_status_t status = KVB_ERR_NO_MEMORY;

    if (pending != NULL) {
        (void)snprintf(pending->tenant, sizeof pending->tenant, "%s", tenant);
        pending->figures.done = figures_came;
        status = kvp_cluster_ask_tenants(control->config.cluster,
                                         kvb_deadline_in_ms(control->config.clock, FIGURES_MS),
                                         &pending->figures);
        if (status != KVB_OK) {
            kvp_pending_free(pending);
        }
    }
    if (status != KVB_OK) {
        kvp_control_reply_error(control, request, status, NULL, kvb_status_text(status));
    }
}

void kvp_read_tenants(struct kvp_control *control, struct kvp_request *request)
{
    ask_figures(control, request, "");
}

void kvp_read_tenant(struct kvp_control *control, struct kvp_request *request)
{
    if (!kvb_name_valid(request->path_arg)) {
        kvp_control_reply_error(control, request, KVB_ERR_NOT_FOUND, "path.name",
                                "a tenant's name has 1 to 63 characters of A-Z a-z 0-9 . _ -");
        return;
    }
    ask_figures(control, request, request->path_arg);
}

/* ---- what changes them ---- */

/* A reset, or a removal. */
struct kvp_tenant_operation {
    struct kvp_own own;
    const char *what;
    char tenant[KVB_NAME_MAX];
};

static json_t *operation_json(const struct kvp_own *own)
{
    const struct kvp_tenant_operation *operation =
        kvb_container_of((struct kvp_own *)(uintptr_t)own, struct kvp_tenant_operation, own);
    json_t *json = kvp_operation_json(own->control, &own->record);
    kvp_json_set_text(json, "operation", operation->what);
    kvp_json_set_text(json, "tenant", operation->tenant);
    return json;
}

/* Lineages are left at once, and for good. */
static kvb_status_t cancel_operation(struct kvp_own *own)
{
    (void)own;
    return KVB_ERR_BAD_STATE;
}

static void free_operation(struct kvp_own *own)
{
    free(kvb_container_of(own, struct kvp_tenant_operation, own));
}

static const struct kvp_own_ops operation_ops = {
    .json = operation_json, .cancel = cancel_operation, .free = free_operation};

/* What it causes is logged under its id. */
static struct kvb_log_context enter(const struct kvp_pending *pending)
{
    const struct kvp_operation_record *record = &pending->operation->own.record;
    return kvb_log_enter(record->request_id, record->id);
}

static bool begin_operation(struct kvp_pending *pending, const char *what)
{
    struct kvp_tenant_operation *operation = calloc(1, sizeof *operation);
    if (operation == NULL) {
        kvp_control_reply_error(pending->control, pending->request, KVB_ERR_NO_MEMORY, NULL,
                                "out of memory; try again");
        kvp_pending_free(pending);
        return false;
    }
    operation->what = what;
    strcpy(operation->tenant, pending->tenant);
    kvp_own_begin(&operation->own, pending->control, &operation_ops, KVP_OP_TENANT_RESET,
                  pending->request);
    pending->operation = operation;
    struct kvb_log_context before = enter(pending);
    KVB_LOG(INFO, "operation started", KVB_STR("operation", what),
            KVB_STR("tenant", pending->tenant));
    kvb_log_set_context(&before);
    return true;
}

static void end_operation(const struct kvp_pending *pending, kvb_status_t status, const char *why)
{
    struct kvp_own *own = &pending->operation->own;
    struct kvb_log_context before = enter(pending);
    own->record.status = status;
    if (status != KVB_OK) {
        own->record.side = kvp_side_of(status);
        (void)snprintf(own->record.message, sizeof own->record.message, "%s", why);
    }
    kvp_own_finished(own);
    KVB_LOG(INFO, "operation ended", KVB_STR("operation", pending->operation->what),
            KVB_STR("tenant", pending->tenant), KVB_STATUS(status));
    kvb_log_set_context(&before);
}

/* NULL: replied. */
static struct kvp_pending *begin(struct kvp_control *control, struct kvp_request *request,
                                 void (*done)(struct kvs_coord_request *coord, kvb_status_t status))
{
    if (!kvb_name_valid(request->path_arg)) {
        kvp_control_reply_error(control, request, KVB_ERR_NOT_FOUND, "path.name",
                                "a tenant's name has 1 to 63 characters of A-Z a-z 0-9 . _ -");
        return NULL;
    }
    struct kvp_pending *pending = kvp_pending_create(control, request);
    if (pending == NULL) {
        kvp_control_reply_error(control, request, KVB_ERR_NO_MEMORY, NULL,
                                "out of memory; try again");
        return NULL;
    }
    strcpy(pending->tenant, request->path_arg); /* a valid name fits */
    pending->coord.done = done;
    return pending;
}

/* Ends pending. */
static void reply_changed(struct kvp_pending *pending, kvb_status_t status, const char *why)
{
    struct kvp_tenant_operation *operation = pending->operation;
    if (operation != NULL) {
        end_operation(pending, status, why);
    }
    if (pending->request != NULL && status == KVB_OK) {
        kvp_control_reply(pending->control, pending->request, 200,
                          json_pack("{s:b, s:s}", "success", 1, "tenant", pending->tenant), 0);
    } else if (pending->request != NULL) {
        kvp_control_reply_error(pending->control, pending->request, status, NULL, why);
    }
    kvp_pending_free(pending);
    if (operation != NULL) {
        kvp_own_tell_end(&operation->own);
    }
}

static const char *why_not_reset(kvb_status_t status)
{
    return status == KVB_ERR_TIMEOUT
               ? "all lineages are retired, but an instance has not confirmed that it "
                 "left; it is fenced until it does; try again"
               : "the coordinator did not take it; nothing was reset; try again";
}

static void reset_done(struct kvs_coord_request *coord, kvb_status_t status)
{
    reply_changed(kvb_container_of(coord, struct kvp_pending, coord), status,
                  why_not_reset(status));
}

/* Takes pending. */
static void reset(struct kvp_pending *pending, const char *what)
{
    const struct kvp_control_config *config = &pending->control->config;
    if (!begin_operation(pending, what)) {
        return;
    }
    struct kvp_operation_record *record = &pending->operation->own.record;
    (void)snprintf(record->step, sizeof record->step, "retire");
    record->deadline_ns = kvb_deadline_in_ms(config->clock, config->retire_ms);
    if (pending->request->respond_async) {
        kvp_control_started(pending, record->id);
    }
    struct kvb_log_context before = enter(pending);
    kvs_tenant_reset(config->coordinator, pending->tenant, NULL, record->deadline_ns,
                     &pending->coord);
    kvb_log_set_context(&before);
}

void kvp_reset_tenant(struct kvp_control *control, struct kvp_request *request)
{
    struct kvp_pending *pending = begin(control, request, reset_done);
    if (pending != NULL) {
        reset(pending, "tenant_reset");
    }
}

static void quota_done(struct kvs_coord_request *coord, kvb_status_t status)
{
    reply_changed(kvb_container_of(coord, struct kvp_pending, coord), status,
                  "the coordinator did not take the quota; it is as it was; try again");
}

static void set_quota(struct kvp_pending *pending, uint64_t bytes)
{
    kvb_status_t status = kvp_cluster_set_quota(pending->control->config.cluster, pending->tenant,
                                                bytes, &pending->coord);
    if (status != KVB_IN_PROGRESS) {
        reply_changed(pending, status, "the quota cannot be kept: too many tenants, or no memory");
    }
}

void kvp_set_quota(struct kvp_control *control, struct kvp_request *request)
{
    if (!kvp_given(&request->params, KVP_PARAM_quota_bytes)) {
        kvp_control_reply_error(control, request, KVB_ERR_INVALID, "query.quota_bytes",
                                "quota_bytes, a number of bytes or none, is needed");
        return;
    }
    struct kvp_pending *pending = begin(control, request, quota_done);
    if (pending != NULL) {
        set_quota(pending, request->params.quota_bytes);
    }
}

/* Of whom a tenant cannot be taken away. */
struct attached {
    const char *tenant;
    char names[512];
    bool any;
};

static void note_attached(struct attached *attached, const char *tenant, const char *instance)
{
    size_t used = strlen(attached->names);
    if (strcmp(tenant, attached->tenant) == 0) {
        (void)snprintf(attached->names + used, sizeof attached->names - used, "%s%s",
                       attached->any ? ", " : "", instance);
        attached->any = true;
    }
}

static void look_at_own(void *arg, const struct kvp_view *view)
{
    if (view->attached) {
        note_attached(arg, view->tenant, view->instance);
    }
}

/* The coordinator knows who is there of other daemons; its own are looked at themselves. */
static void look_at_other(void *arg, const struct kvs_instance_record *record)
{
    if (!record->own) {
        note_attached(arg, record->space->tenant, record->instance);
    }
}

static void remove_done(struct kvs_coord_request *coord, kvb_status_t status)
{
    struct kvp_pending *pending = kvb_container_of(coord, struct kvp_pending, coord);
    if (status != KVB_OK || pending->control->closing) { /* at the end of all the cluster is gone */
        reply_changed(pending, status, why_not_reset(status));
        return;
    }
    (void)snprintf(pending->operation->own.record.step, sizeof pending->operation->own.record.step,
                   "quota");
    pending->coord = (struct kvs_coord_request){.done = quota_done};
    set_quota(pending, UINT64_MAX);
}

void kvp_remove_tenant(struct kvp_control *control, struct kvp_request *request)
{
    struct attached attached = {.tenant = request->path_arg};
    char message[640];
    kvp_fleet_each(control->config.fleet, look_at_own, &attached);
    kvs_coordinator_each_instance(control->config.coordinator, look_at_other, &attached);
    if (attached.any && !request->params.force) {
        (void)snprintf(message, sizeof message,
                       "instances are attached: %s; end them, or say force=true: they lose what "
                       "they share, and go on",
                       attached.names);
        kvp_control_reply_error(control, request, KVB_ERR_BAD_STATE, NULL, message);
        return;
    }
    struct kvp_pending *pending = begin(control, request, remove_done);
    if (pending != NULL) {
        reset(pending, "tenant_remove");
    }
}
