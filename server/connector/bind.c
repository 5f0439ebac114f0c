/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/instance_impl.h"

#include "base/assert.h"

#include <xxhash.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Between the lineage rules and the world: every action becomes a call on ranks or coordinator,
 * every answer an event. A call to several ranks ends when each has answered, with the first
 * failure. Answers carry the ask number they were asked with; whether they still count is the
 * rules' business.
 */

struct lineage_call {
    struct kvb_list link; /* instance.lineage_calls */
    struct kvp_instance *instance;
    enum kvp_lineage_do what;
    uint32_t ask;
    uint32_t left;
    kvb_status_t status;
    uint32_t nnames;
    char (*names)[KVB_WEIGHTS_NAME_MAX]; /* FINGERPRINT: by rank */
};
/* One rank's share of it. */
struct rank_call {
    struct lineage_call *call;
    struct kvp_rank *rank;
};

/* What stands for the weights of all ranks: the name that all of them give, else a hash of theirs.
 */
static void combine_names(const struct lineage_call *call, char name[KVB_WEIGHTS_NAME_MAX])
{
    bool alike = true;
    for (uint32_t i = 1; i < call->nnames; i++) {
        alike = alike && strcmp(call->names[i], call->names[0]) == 0;
    }
    if (alike) { /* of the whole model: an engine split otherwise may have the same name */
        memcpy(name, call->names[0], KVB_WEIGHTS_NAME_MAX);
        return;
    }
    XXH128_hash_t hash = XXH3_128bits(call->names, call->nnames * sizeof call->names[0]);
    snprintf(name, KVB_WEIGHTS_NAME_MAX, "%u-%016llx%016llx", call->nnames,
             (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

struct coord_call {
    struct kvb_list link; /* instance.coord_calls */
    struct kvs_coord_request request;
    struct kvp_instance *instance; /* NULL: destroyed meanwhile */
    struct kvp_op *op;             /* tenant reset */
    enum kvp_lineage_do what;
    uint32_t ask;
    uint64_t asked_ns;
    struct kvb_log_context log; /* whose doing it is */
    struct kvb_lineage lineages[KVB_RETIRED_MAX];
};

static void mark_unknown(struct kvp_instance *instance, const struct kvp_rank *rank)
{
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        if (instance->sessions[i].rank == rank) {
            instance->sessions[i].unknown = true;
        }
    }
    kvp_instance_schedule_reconcile(instance);
}

static void lineage_call_end(struct lineage_call *call)
{
    struct kvp_instance *instance = call->instance;
    struct lineage_call done = *call;
    char name[KVB_WEIGHTS_NAME_MAX] = "";
    if (call->names != NULL) {
        combine_names(call, name);
    }
    kvb_list_remove(&call->link);
    free(call->names);
    free(call);
    switch (done.what) {
    case KVP_DO_SEND:
        if (done.ask == instance->lineage.send_ask) { /* else of a stay that was left since */
            instance->ack_status = done.status;
        }
        if (done.status == KVB_OK) {
            KVP_LINEAGE(instance, acked, done.ask);
            if (instance->lineage.ack != KVP_ACK_LEFT) {
                kvp_instance_left(instance);
            }
        } else {
            KVB_LOG(WARN, "the engine did not acknowledge its lineage",
                    KVB_STR("instance", instance->name), KVB_STATUS(done.status));
            kvp_instance_schedule_reconcile(instance);
            kvp_op_lineage_moved(instance);
        }
        break;
    case KVP_DO_LOCAL_RESET:
        if (done.status != KVB_OK && done.status != KVB_ERR_BUSY) {
            kvp_instance_schedule_reconcile(instance); /* asks again */
        }
        KVP_LINEAGE(instance, local_reset, done.ask, done.status);
        break;
    case KVP_DO_FINGERPRINT:
        if (done.status == KVB_ERR_NO_MEMORY) {
            kvp_instance_schedule_reconcile(instance); /* asks again */
        }
        KVP_LINEAGE(instance, fingerprint, done.ask, done.status, name);
        break;
    default:
        KVB_UNREACHABLE("no such call");
    }
    kvp_instance_changed(instance);
}

static void on_rank_answer(void *arg, kvb_status_t status, const union kvp_rank_reply *reply)
{
    struct rank_call *rank_call = arg;
    struct lineage_call *call = rank_call->call;
    if (status == KVB_ERR_TIMEOUT) {
        mark_unknown(call->instance, rank_call->rank);
    }
    if (call->what == KVP_DO_FINGERPRINT && status == KVB_ERR_NO_MEMORY) {
        status = KVB_ERR_IO; /* the engine has none for it; what is asked again is our own lack */
    }
    if (status != KVB_OK && call->status == KVB_OK) {
        call->status = status;
    }
    if (call->what == KVP_DO_FINGERPRINT && status == KVB_OK && reply != NULL) {
        char *name = call->names[rank_call->rank->index];
        snprintf(name, KVB_WEIGHTS_NAME_MAX, "%s", reply->fingerprint.name);
    }
    free(rank_call);
    if (--call->left == 0) {
        lineage_call_end(call);
    }
}

/* Nobody was asked: who waits for the answer is told. */
static void call_failed(struct kvp_instance *instance, enum kvp_lineage_do what, uint32_t ask)
{
    kvp_instance_schedule_reconcile(instance); /* asks again */
    switch (what) {
    case KVP_DO_SEND:
        instance->ack_status = KVB_ERR_NO_MEMORY;
        kvp_op_lineage_moved(instance);
        break;
    case KVP_DO_LOCAL_RESET:
        KVP_LINEAGE(instance, local_reset, ask, KVB_ERR_NO_MEMORY);
        break;
    case KVP_DO_FINGERPRINT:
        KVP_LINEAGE(instance, fingerprint, ask, KVB_ERR_NO_MEMORY, "");
        break;
    default:
        KVB_UNREACHABLE("no such call");
    }
}

static void call_ranks(struct kvp_instance *instance, enum kvp_lineage_do what, uint32_t ask,
                       uint8_t roles, enum kvb_link_type type, const void *msg)
{
    struct lineage_call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        call_failed(instance, what, ask);
        return;
    }
    call->instance = instance;
    call->what = what;
    call->ask = ask;
    kvb_list_push_back(&instance->lineage_calls, &call->link);
    uint64_t deadline_ns = kvp_instance_bound(instance, type);
    call->left = 1;
    if (what == KVP_DO_FINGERPRINT) {
        call->nnames = instance->shape.world_size;
        call->names = calloc(call->nnames, sizeof call->names[0]);
        if (call->names == NULL) {
            roles = 0; /* nobody is asked */
        }
    }
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        struct kvp_rank *rank = instance->sessions[i].rank;
        if ((rank->roles & roles) == 0) {
            continue;
        }
        struct rank_call *rank_call = malloc(sizeof *rank_call);
        if (rank_call == NULL) {
            call->status = KVB_ERR_NO_MEMORY;
            continue;
        }
        *rank_call = (struct rank_call){.call = call, .rank = rank};
        call->left++;
        rank->ops->call(rank->impl, type, msg, deadline_ns, on_rank_answer, rank_call);
    }
    if (--call->left == 0) {
        /* nobody was asked: out of memory, or no such rank */
        kvb_list_remove(&call->link);
        free(call->names);
        free(call);
        call_failed(instance, what, ask);
    }
}

/* ---- coordinator ---- */

static void on_coord_answer(struct kvs_coord_request *request, kvb_status_t status)
{
    struct coord_call *call = kvb_container_of(request, struct coord_call, request);
    struct kvp_instance *instance = call->instance;
    kvb_list_remove(&call->link);
    if (instance == NULL || instance->fleet->closing) {
        free(call);
        return;
    }
    const struct kvb_log_context before = kvb_log_context();
    kvb_log_set_context(&call->log);
    if (status == KVB_ERR_NO_MEMORY) {
        kvp_instance_schedule_reconcile(instance); /* asks again */
    }
    switch (call->what) {
    case KVP_DO_RESOLVE:
    case KVP_DO_STEP: {
        bool was_named = kvp_lineage_named(&instance->lineage);
        KVP_LINEAGE(instance, resolved, call->ask, status, request->lineage,
                    kvp_instance_random(instance));
        if (!was_named && kvp_lineage_named(&instance->lineage)) {
            kvp_instance_event(instance, "joined", instance->lineage.joined_name);
        }
        break;
    }
    case KVP_DO_CHECK:
        KVP_LINEAGE(instance, checked, call->ask, status, request->bound,
                    kvp_instance_random(instance));
        break;
    case KVP_DO_RETIRE:
        instance->retire_status = status;
        KVB_LOG(INFO, "retirement at the coordinator", KVB_STR("instance", instance->name),
                KVB_STATUS(status),
                KVB_MS("took", kvb_now_ns(instance->fleet->config.sched->clock) - call->asked_ns));
        kvp_instance_event(instance, "retired", kvb_status_label(status));
        KVP_LINEAGE(instance, retired, call->ask, status);
        break;
    default: /* tenant reset */
        if (call->op != NULL) {
            if (status != KVB_OK) {
                kvp_op_blame(call->op, KVP_SIDE_COORDINATOR, NULL);
            }
            kvp_op_step_done(call->op, status);
        }
        break;
    }
    free(call);
    kvp_instance_changed(instance);
    kvb_log_set_context(&before);
}

static struct coord_call *coord_call(struct kvp_instance *instance, enum kvp_lineage_do what,
                                     uint32_t ask)
{
    struct coord_call *call = calloc(1, sizeof *call);
    if (call != NULL) {
        call->instance = instance;
        call->what = what;
        call->ask = ask;
        call->asked_ns = kvb_now_ns(instance->fleet->config.sched->clock);
        call->log = kvb_log_context();
        call->request.done = on_coord_answer;
        kvb_list_push_back(&instance->coord_calls, &call->link);
    }
    return call;
}

static void no_memory(struct kvp_instance *instance, const struct kvp_lineage_action *action)
{
    struct kvb_lineage none = {{0, 0}};
    kvp_instance_schedule_reconcile(instance); /* asks again */
    switch (action->what) {
    case KVP_DO_RESOLVE:
    case KVP_DO_STEP:
        KVP_LINEAGE(instance, resolved, action->ask, KVB_ERR_NO_MEMORY, none,
                    kvp_instance_random(instance));
        break;
    case KVP_DO_CHECK:
        KVP_LINEAGE(instance, checked, action->ask, KVB_ERR_NO_MEMORY, false,
                    kvp_instance_random(instance));
        break;
    default:
        instance->retire_status = KVB_ERR_NO_MEMORY;
        KVP_LINEAGE(instance, retired, action->ask, KVB_ERR_NO_MEMORY);
        break;
    }
}

static void ask_coordinator(struct kvp_instance *instance, const struct kvp_lineage_action *action)
{
    const struct kvp_lineage *l = &instance->lineage;
    struct coord_call *call = coord_call(instance, action->what, action->ask);
    if (call == NULL) {
        no_memory(instance, action);
        return;
    }
    switch (action->what) {
    case KVP_DO_RESOLVE:
        kvs_member_resolve(instance->member, l->name, &call->request);
        break;
    case KVP_DO_STEP:
        kvs_member_step(instance->member, l->epoch, l->step, &call->request);
        break;
    case KVP_DO_CHECK:
        kvs_member_check(instance->member, l->joined_name, l->lineage, &call->request);
        break;
    default:
        memcpy(call->lineages, l->retired, l->retiring * sizeof l->retired[0]);
        kvs_member_retire(instance->member, call->lineages, l->retiring,
                          l->retire_name && l->last_name[0] != '\0' ? l->last_name : NULL,
                          kvp_instance_in_ms(instance, instance->fleet->config.bounds.retire_ms),
                          &call->request);
        break;
    }
}

bool kvp_bind_tenant_reset(struct kvp_op *op, uint64_t deadline_ns)
{
    struct kvp_instance *instance = op->instance;
    struct coord_call *call = coord_call(instance, KVP_DO_MEMBER_LEFT, 0);
    if (call == NULL) {
        return false;
    }
    call->op = op;
    kvs_tenant_reset(instance->fleet->config.coordinator, instance->space.tenant, NULL, deadline_ns,
                     &call->request);
    return true;
}

/* ---- the actions ---- */

static void run_action(struct kvp_instance *instance, const struct kvp_lineage_action *action)
{
    switch (action->what) {
    case KVP_DO_SEND: {
        if (!instance->attached) {
            return; /* attaching sends it */
        }
        struct kvb_link_lineage msg;
        kvp_lineage_message(&instance->lineage, &msg);
        instance->ack_status = KVB_IN_PROGRESS;
        call_ranks(instance, KVP_DO_SEND, action->ask, KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER,
                   KVB_LINK_LINEAGE, &msg);
        return;
    }
    case KVP_DO_STAY:
        kvp_lineage_stay(&instance->lineage, &instance->stay);
        for (uint32_t i = 0; i < instance->nsessions; i++) {
            instance->sessions[i].rank->ops->stay_changed(instance->sessions[i].rank->impl);
        }
        return;
    case KVP_DO_LOCAL_RESET: {
        struct kvb_link_reset_local msg = {.operation = 0, .preempt = false};
        call_ranks(instance, KVP_DO_LOCAL_RESET, action->ask, KVB_ROLE_SCHEDULER,
                   KVB_LINK_RESET_LOCAL, &msg);
        return;
    }
    case KVP_DO_FINGERPRINT:
        call_ranks(instance, KVP_DO_FINGERPRINT, action->ask, KVB_ROLE_WORKER, KVB_LINK_FINGERPRINT,
                   NULL);
        return;
    case KVP_DO_RESOLVE:
    case KVP_DO_STEP:
    case KVP_DO_CHECK:
    case KVP_DO_RETIRE:
        ask_coordinator(instance, action);
        return;
    case KVP_DO_LEAVE_NAME:
        kvp_instance_event(instance, "left", action->name);
        if (instance->member != NULL) {
            kvs_member_leave(instance->member, action->name);
        }
        return;
    case KVP_DO_ABANDON:
        if (instance->member != NULL) {
            kvs_member_abandon(instance->member, action->lineage);
        }
        return;
    case KVP_DO_MEMBER_LEFT:
        if (instance->member != NULL) {
            kvs_member_left(instance->member, action->retirement);
        }
        return;
    }
}

/* What it was in until now; a stay that never began is none. */
static void note_leaving(struct kvp_instance *instance, enum kvp_leave why)
{
    struct kvp_fleet *fleet = instance->fleet;
    if (kvb_id_equal(instance->stay.lineage.id, (struct kvb_id){0, 0})) {
        return;
    }
    struct kvp_left *leaving = &fleet->leavings[fleet->nleavings++ % KVP_LEAVINGS];
    *leaving = (struct kvp_left){
        .lineage = instance->stay.lineage,
        .reason = kvp_leave_label(why),
        .at_ns = kvb_now_ns(fleet->config.sched->clock),
    };
    (void)snprintf(leaving->instance, sizeof leaving->instance, "%s", instance->name);
    (void)snprintf(leaving->tenant, sizeof leaving->tenant, "%s", instance->space.tenant);
    (void)snprintf(leaving->weights_name, sizeof leaving->weights_name, "%s", instance->stay_name);
}

void kvp_fleet_each_left(const struct kvp_fleet *fleet,
                         void (*each)(void *arg, const struct kvp_left *leaving), void *arg)
{
    uint64_t kept = fleet->nleavings < KVP_LEAVINGS ? fleet->nleavings : KVP_LEAVINGS;
    for (uint64_t i = 1; i <= kept; i++) {
        each(arg, &fleet->leavings[(fleet->nleavings - i) % KVP_LEAVINGS]);
    }
}

void kvp_bind_run(struct kvp_instance *instance, const struct kvp_lineage_out *out)
{
    const struct kvp_fleet_config *config = &instance->fleet->config;
    for (enum kvp_leave why = KVP_LEAVE_PAUSE; why <= KVP_LEAVE_ECHO; why++) {
        if ((out->left & 1u << why) == 0) {
            continue;
        }
        note_leaving(instance, why);
        if (config->left != NULL) {
            config->left(config->ctx, instance->name, kvp_leave_label(why));
        }
    }
    kvp_lineage_stay(&instance->lineage, &instance->stay);
    (void)snprintf(instance->stay_name, sizeof instance->stay_name, "%s",
                   instance->lineage.joined_name);
    for (uint32_t i = 0; i < out->n; i++) {
        run_action(instance, &out->actions[i]);
    }
    kvp_op_lineage_moved(instance);
}

/* ---- what the coordinator tells ---- */

static void on_told(void *ctx, struct kvb_lineage lineage, uint64_t retirement)
{
    struct kvp_instance *instance = ctx;
    KVP_LINEAGE(instance, told, lineage, retirement, kvp_instance_random(instance));
    kvp_instance_changed(instance);
}

static void on_told_tenant(void *ctx, uint64_t retirement)
{
    struct kvp_instance *instance = ctx;
    kvp_instance_event(instance, "tenant_reset", "told");
    KVP_LINEAGE(instance, told_tenant, retirement, kvp_instance_random(instance));
    kvp_instance_changed(instance);
}

static void on_reachable(void *ctx, bool reachable)
{
    struct kvp_instance *instance = ctx;
    kvp_instance_event(instance, "coordinator", reachable ? "reachable" : "unreachable");
    KVP_LINEAGE(instance, reachable, reachable);
    kvp_instance_changed(instance);
}

static void on_lost(void *ctx)
{
    struct kvp_instance *instance = ctx;
    kvp_instance_event(instance, "coordinator", "lost");
    KVP_LINEAGE(instance, lost, kvp_instance_random(instance));
    kvp_instance_changed(instance);
}

const struct kvs_member_ops kvp_bind_member_ops = {
    .told = on_told,
    .told_tenant = on_told_tenant,
    .reachable = on_reachable,
    .lost = on_lost,
};

void kvp_bind_destroy(struct kvp_instance *instance)
{
    if (instance->member != NULL) {
        kvs_member_close(instance->member);
        instance->member = NULL;
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&instance->coord_calls)) != NULL;) {
        struct coord_call *call = kvb_container_of(link, struct coord_call, link);
        call->instance = NULL; /* freed when its answer comes */
        call->op = NULL;
    }
    kvb_assert(kvb_list_empty(&instance->lineage_calls));
}
