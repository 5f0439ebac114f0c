/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/instance_impl.h"

#include "base/assert.h"
#include "transport/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Instances, the ranks that come and go, and what is told about them. An instance is made by the
 * first hello of its name and stays: an engine that dies may attach again. It is attached when the
 * scheduler and every worker of the stated world size are; then what they echo is weighed
 * (lineage.h) and what they are is reconciled before anything else runs.
 */

KVB_MUST_USE kvb_status_t kvp_fleet_create(const struct kvp_fleet_config *config,
                                           struct kvp_fleet **fleet_p)
{
    static const struct {
        const char *name;
        enum kvp_unversioned event;
    } events[] = {{"reset", KVP_UNVERSIONED_RESET},
                  {"finish", KVP_UNVERSIONED_FINISH},
                  {"sleep", KVP_UNVERSIONED_SLEEP}};
    struct kvp_fleet *fleet = calloc(1, sizeof *fleet);
    if (fleet == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    fleet->config = *config;
    kvb_list_init(&fleet->instances);
    kvb_list_init(&fleet->rejected);
    if (config->unversioned_event != NULL && config->unversioned_event[0] != '\0') {
        for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
            if (strcmp(config->unversioned_event, events[i].name) == 0) {
                fleet->unversioned = events[i].event;
            }
        }
        if (fleet->unversioned == KVP_UNVERSIONED_OFF) {
            free(fleet);
            return KVB_ERR_INVALID;
        }
    }
    *fleet_p = fleet;
    return KVB_OK;
}

void kvp_fleet_destroy(struct kvp_fleet *fleet)
{
    fleet->closing = true;
    kvp_op_destroy_rejected(fleet);
    for (struct kvb_list *link; (link = kvb_list_pop(&fleet->instances)) != NULL;) {
        struct kvp_instance *instance = kvb_container_of(link, struct kvp_instance, link);
        kvb_assert(instance->nsessions == 0);
        kvp_op_destroy_all(instance);
        kvp_bind_destroy(instance);
        kvb_sched_timer_clear(fleet->config.sched, &instance->reconcile_timer);
        kvb_sched_unpost(&instance->pump);
        free(instance->sessions);
        free(instance);
    }
    free(fleet);
}

/* ---- telling ---- */

void kvp_instance_event(struct kvp_instance *instance, const char *kind, const char *detail)
{
    const struct kvp_fleet_config *config = &instance->fleet->config;
    if (config->event != NULL) {
        config->event(config->ctx, instance->name, kind, detail);
    }
}

static void publish(struct kvp_instance *instance, const struct kvp_view *view)
{
    const struct kvp_fleet_config *config = &instance->fleet->config;
    char text[KVP_DESCRIPTION_MAX] = "";
    if (config->describe == NULL || instance->member == NULL) {
        return;
    }
    config->describe(config->ctx, view, text, sizeof text);
    if (strcmp(text, instance->described) == 0) {
        return;
    }
    if (kvs_member_publish(instance->member, text) == KVB_OK) {
        strcpy(instance->described, text);
    } else { /* it is only shown; the next change tries again */
        KVB_LOG_LIMITED(WARN, "no memory to publish an instance",
                        KVB_STR("instance", instance->name));
    }
}

void kvp_instance_changed(struct kvp_instance *instance)
{
    const struct kvp_fleet_config *config = &instance->fleet->config;
    if (config->changed != NULL) {
        struct kvp_view view;
        kvp_instance_fill_view(instance, &view);
        config->changed(config->ctx, &view);
        publish(instance, &view);
    }
}

bool kvp_instance_any_unknown(const struct kvp_instance *instance)
{
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        if (instance->sessions[i].unknown) {
            return true;
        }
    }
    return false;
}

static void copy_text(char *dst, size_t cap, const char *src)
{
    snprintf(dst, cap, "%s", src);
}

static struct kvp_drain_progress progress(const struct kvp_instance *instance)
{
    struct kvp_drain_progress all = {0};
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        const struct kvp_rank *rank = instance->sessions[i].rank;
        struct kvp_drain_progress one = rank->ops->progress(rank->impl);
        all.queued += one.queued;
        all.running += one.running;
        all.bytes_left += one.bytes_left;
    }
    return all;
}

static void fill_lineage(const struct kvp_instance *instance, struct kvp_view *view_p)
{
    const struct kvp_lineage *l = &instance->lineage;
    view_p->lineage = l->lineage;
    view_p->open = kvp_lineage_open(l);
    copy_text(view_p->weights_name, sizeof view_p->weights_name, l->joined_name);
    if (instance->foreign == NULL) { /* another has nothing to share */
        copy_text(view_p->private_reason, sizeof view_p->private_reason,
                  kvp_private_text(kvp_lineage_why_private(l)));
    }
    copy_text(view_p->weight_version, sizeof view_p->weight_version,
              instance->weight_version[0] != '\0' ? instance->weight_version : "default");
    view_p->weight_change_running = l->update;
    view_p->retirements_pending = l->nretired;
    view_p->coordinator_reachable = l->coordinator && l->reachable;
}

void kvp_instance_fill_view(struct kvp_instance *instance, struct kvp_view *view_p)
{
    const struct kvp_fsm *fsm = &instance->fsm;
    memset(view_p, 0, sizeof *view_p);
    copy_text(view_p->instance, sizeof view_p->instance, instance->name);
    copy_text(view_p->tenant, sizeof view_p->tenant, instance->space.tenant);
    copy_text(view_p->layout, sizeof view_p->layout, instance->space.layout);
    if (instance->foreign != NULL) {
        copy_text(view_p->kind, sizeof view_p->kind, instance->foreign->kind);
        copy_text(view_p->url, sizeof view_p->url, instance->foreign->url);
        view_p->own_world_size = instance->foreign->world_size;
        view_p->sleeps_once = instance->foreign->sleeps_once;
        view_p->no_release = instance->foreign->no_release;
    }
    view_p->attached = instance->attached;
    view_p->ever_attached = instance->ever_attached;
    view_p->degraded = (fsm->stopped_by & KVP_STOPPED_BY_DEGRADED) != 0;
    snprintf(view_p->message, sizeof view_p->message, "%.255s", instance->message);
    copy_text(view_p->model, sizeof view_p->model,
              instance->model[0] != '\0' ? instance->model : instance->name);
    view_p->max_model_len = instance->max_model_len;
    view_p->tp_size = instance->shape.tp_size;
    view_p->world_size = instance->shape.world_size;
    view_p->ranks = instance->nsessions;
    view_p->scheduler = fsm->scheduler;
    view_p->stopped_by = fsm->stopped_by;
    view_p->pause_mode = fsm->pause_mode;
    view_p->ntags = fsm->ntags;
    memcpy(view_p->tags, fsm->tags, fsm->ntags * sizeof fsm->tags[0]);
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        const struct kvp_rank *rank = instance->sessions[i].rank;
        uint64_t bytes = 0;
        view_p->registered_regions += rank->ops->registered(rank->impl, NULL, &bytes);
        view_p->registered_bytes += bytes;
    }
    struct kvp_derived derived =
        kvp_fsm_derive(fsm, instance->attached, kvp_instance_any_unknown(instance));
    view_p->is_paused = derived.is_paused;
    view_p->is_sleeping = derived.is_sleeping;
    view_p->ready = derived.ready;
    copy_text(view_p->not_ready, sizeof view_p->not_ready, derived.not_ready);
    fill_lineage(instance, view_p);
    view_p->load = instance->load;
    view_p->drain = progress(instance);
    view_p->waiting_operations = instance->nwaiting;
    if (instance->running != NULL && !instance->running->internal) {
        view_p->operation_id = instance->running->record.id;
        view_p->operation = instance->running->ask.operation;
        copy_text(view_p->step, sizeof view_p->step, instance->running->record.step);
        view_p->deadline_ns = instance->running->record.deadline_ns;
    }
}

void kvp_instance_state_text(const struct kvp_instance *instance, char *out, size_t cap)
{
    const struct kvp_fsm *fsm = &instance->fsm;
    if (!instance->attached) {
        snprintf(out, cap, "disconnected");
        return;
    }
    if (kvp_fsm_all_resident(fsm)) {
        snprintf(out, cap, "%s", kvp_scheduler_text(fsm->scheduler));
        return;
    }
    int used = snprintf(out, cap, "%s (", kvp_fsm_none_resident(fsm) ? "asleep" : "partly asleep");
    const char *comma = "";
    for (uint32_t i = 0; i < fsm->ntags && used > 0 && (size_t)used < cap; i++) {
        used += snprintf(out + used, cap - (size_t)used, "%s%s %s", comma, fsm->tags[i].tag,
                         kvb_residency_text(fsm->tags[i].residency));
        comma = ", ";
    }
    if (used > 0 && (size_t)used < cap) {
        snprintf(out + used, cap - (size_t)used, ")");
    }
}

struct kvp_instance *kvp_fleet_find(const struct kvp_fleet *fleet, const char *name)
{
    kvb_list_each(&fleet->instances, link)
    {
        struct kvp_instance *instance = kvb_container_of(link, struct kvp_instance, link);
        if (strcmp(instance->name, name) == 0) {
            return instance;
        }
    }
    return NULL;
}

bool kvp_fleet_view(struct kvp_fleet *fleet, const char *name, struct kvp_view *view_p)
{
    struct kvp_instance *instance = NULL;
    if (name != NULL) {
        instance = kvp_fleet_find(fleet, name);
    } else if (kvp_fleet_count(fleet) == 1) {
        instance = kvb_container_of(kvb_list_first(&fleet->instances), struct kvp_instance, link);
    }
    if (instance == NULL) {
        return false;
    }
    kvp_instance_fill_view(instance, view_p);
    return true;
}

void kvp_fleet_each(struct kvp_fleet *fleet, void (*each)(void *arg, const struct kvp_view *view),
                    void *arg)
{
    kvb_list_each(&fleet->instances, link)
    {
        struct kvp_view view;
        kvp_instance_fill_view(kvb_container_of(link, struct kvp_instance, link), &view);
        each(arg, &view);
    }
}

static void tell_rank(const struct kvp_session_of *session,
                      void (*each)(void *arg, const struct kvp_rank_view *view), void *arg)
{
    const struct kvp_rank *rank = session->rank;
    struct kvt_device_info info;
    struct kvp_rank_view view = {
        .rank = rank->index,
        .attached = true,
        .unknown = session->unknown,
        .worker = (rank->roles & KVB_ROLE_WORKER) != 0,
        .scheduler = (rank->roles & KVB_ROLE_SCHEDULER) != 0,
        .ntags = session->state.ntags,
    };
    memcpy(view.tags, session->state.tags, sizeof view.tags);
    view.regions = rank->ops->registered(rank->impl, NULL, &view.region_bytes);
    view.device = rank->ops->device(rank->impl, &info) ? &info : NULL;
    rank->ops->queues(rank->impl, view.queues);
    view.source = rank;
    each(arg, &view);
}

void kvp_rank_each_region(const struct kvp_rank_view *view, kvp_region_fn each, void *arg)
{
    if (view->source != NULL) {
        view->source->ops->each_region(view->source->impl, each, arg);
    }
}

void kvp_fleet_each_rank(struct kvp_fleet *fleet, const char *name,
                         void (*each)(void *arg, const struct kvp_rank_view *view), void *arg)
{
    const struct kvp_instance *instance = kvp_fleet_find(fleet, name);
    uint32_t world = instance != NULL ? instance->shape.world_size : 0;
    for (uint32_t index = 0; index < world; index++) {
        const struct kvp_session_of *worker = NULL;
        for (uint32_t i = 0; i < instance->nsessions; i++) {
            const struct kvp_rank *rank = instance->sessions[i].rank;
            if (rank->index == index && (rank->roles & KVB_ROLE_WORKER) != 0) {
                worker = &instance->sessions[i];
            }
        }
        if (worker != NULL) {
            tell_rank(worker, each, arg);
        } else {
            each(arg, &(struct kvp_rank_view){.rank = index});
        }
    }
    for (uint32_t i = 0; world > 0 && i < instance->nsessions; i++) {
        if ((instance->sessions[i].rank->roles & KVB_ROLE_WORKER) == 0) {
            tell_rank(&instance->sessions[i], each, arg);
        }
    }
}

uint32_t kvp_fleet_count(const struct kvp_fleet *fleet)
{
    uint32_t n = 0;
    kvb_list_each(&fleet->instances, link)
    {
        n++;
    }
    return n;
}

/* ---- records ---- */

void kvp_fleet_record(struct kvp_fleet *fleet, const struct kvp_operation_record *record)
{
    fleet->records[fleet->nrecords++ % KVP_OPERATION_RECORDS] = *record;
}

uint64_t kvp_fleet_take_id(struct kvp_fleet *fleet)
{
    return ++fleet->last_op_id;
}

static void live_record(const struct kvp_op *op, struct kvp_operation_record *record_p)
{
    *record_p = op->record;
    if (op->instance->running == op) {
        record_p->drain = progress(op->instance);
    }
}

struct each_record {
    void (*each)(void *arg, const struct kvp_operation_record *record);
    void *arg;
    uint64_t id; /* 0: all */
    struct kvp_operation_record found;
    bool any;
};

static void take_record(struct each_record *want, const struct kvp_operation_record *record)
{
    if (want->id == 0) {
        want->each(want->arg, record);
    } else if (want->id == record->id) {
        want->found = *record;
        want->any = true;
    }
}

static void take_list(struct each_record *want, const struct kvb_list *ops)
{
    for (struct kvb_list *link = ops->prev; link != ops; link = link->prev) {
        struct kvp_operation_record record;
        live_record(kvb_container_of(link, struct kvp_op, link), &record);
        take_record(want, &record);
    }
}

static void each_record(struct kvp_fleet *fleet, struct each_record *want)
{
    kvb_list_each(&fleet->instances, link)
    {
        struct kvp_instance *instance = kvb_container_of(link, struct kvp_instance, link);
        take_list(want, &instance->waiting);
        take_list(want, &instance->beside);
        if (instance->running != NULL && !instance->running->internal) {
            struct kvp_operation_record record;
            live_record(instance->running, &record);
            take_record(want, &record);
        }
    }
    uint64_t kept =
        fleet->nrecords < KVP_OPERATION_RECORDS ? fleet->nrecords : KVP_OPERATION_RECORDS;
    for (uint64_t i = 1; i <= kept; i++) {
        take_record(want, &fleet->records[(fleet->nrecords - i) % KVP_OPERATION_RECORDS]);
    }
}

void kvp_fleet_each_operation(struct kvp_fleet *fleet,
                              void (*each)(void *arg, const struct kvp_operation_record *record),
                              void *arg)
{
    struct each_record want = {.each = each, .arg = arg};
    each_record(fleet, &want);
}

bool kvp_fleet_operation(struct kvp_fleet *fleet, uint64_t id,
                         struct kvp_operation_record *record_p)
{
    struct each_record want = {.id = id};
    if (id != 0) {
        each_record(fleet, &want);
    }
    if (want.any) {
        *record_p = want.found;
    }
    return want.any;
}

/* ---- attaching ---- */

void kvp_instance_schedule_reconcile(struct kvp_instance *instance)
{
    struct kvp_fleet *fleet = instance->fleet;
    instance->reconcile = true;
    if (!kvb_timer_armed(&instance->reconcile_timer) && !fleet->closing) {
        kvb_sched_timer_set(fleet->config.sched, &instance->reconcile_timer,
                            kvp_instance_in_ms(instance, fleet->config.bounds.forward_retry_ms));
    }
}

static void on_reconcile_due(struct kvb_timer *timer)
{
    kvp_op_pump(kvb_container_of(timer, struct kvp_instance, reconcile_timer));
}

/* What its ranks echo as one: differing echoes are none. */
static void weigh_echoes(struct kvp_instance *instance, struct kvp_lineage_hello *hello_p,
                         struct kvb_lineage *retired)
{
    const struct kvp_session_of *first = &instance->sessions[0];
    struct kvb_token cache = {{0, 0}}; /* the stay in which the engine's own cache is */
    bool anew = false;
    hello_p->tracks = true;
    hello_p->fingerprints = true;
    hello_p->local_reset_done = true;
    hello_p->lineage = first->lineage;
    hello_p->token = first->token;
    hello_p->name = first->lineage_name;
    hello_p->weights_name = first->weights_name;
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        const struct kvp_session_of *session = &instance->sessions[i];
        const struct kvb_engine_state *state = &session->state;
        bool scheduler = (session->rank->roles & KVB_ROLE_SCHEDULER) != 0;
        bool worker = (session->rank->roles & KVB_ROLE_WORKER) != 0;
        hello_p->tracks = hello_p->tracks && (session->flags & KVB_ENGINE_TRACKS_LINEAGE) != 0;
        hello_p->fingerprints =
            hello_p->fingerprints && (!worker || (session->flags & KVB_ENGINE_FINGERPRINTS) != 0);
        hello_p->update = hello_p->update || state->weight_change_running;
        hello_p->written = hello_p->written || state->weights_written;
        if (scheduler) { /* of one that stayed, what its hello said is long past */
            hello_p->local_reset_done = session->fresh && state->local_reset_done;
            cache = session->fresh ? session->token : instance->lineage.token;
        }
        if (!session->fresh || strcmp(session->weights_name, first->weights_name) != 0) {
            hello_p->weights_name = "";
        }
        /* A rank that stayed attached echoes what it has acknowledged since. */
        struct kvb_token token = session->fresh ? session->token : instance->lineage.token;
        struct kvb_token expect = first->fresh ? first->token : instance->lineage.token;
        anew = anew || kvb_id_none(token.id) || !kvb_token_equal(token, expect);
        for (uint32_t r = 0; r < session->nretired && hello_p->nretired < KVB_RETIRED_MAX; r++) {
            retired[hello_p->nretired++] = session->retired[r];
        }
    }
    if (anew) {
        /* Of a restart the engine says whether its cache is empty. Of a stay it says whether that
         * was so when it began: for the one that begins now it counts for nothing. */
        hello_p->local_reset_done = hello_p->local_reset_done && kvb_id_none(cache.id);
        hello_p->token = (struct kvb_token){{0, 0}};
    } else if (!first->fresh) {
        hello_p->token = instance->lineage.token;
        hello_p->lineage = instance->lineage.lineage;
    }
    hello_p->retired = retired;
}

/* The residency a tag should have: as deep as it lies on any rank, since what one has given up is
 * not there for all. */
static enum kvb_residency deepest(const struct kvp_instance *instance, const char *tag)
{
    enum kvb_residency deep = KVB_RESIDENT;
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        const struct kvb_engine_state *state = &instance->sessions[i].state;
        for (uint32_t t = 0; t < state->ntags; t++) {
            if (strcmp(state->tags[t].tag, tag) == 0 && state->tags[t].residency > deep &&
                state->tags[t].residency != KVB_UNKNOWN) {
                deep = state->tags[t].residency;
            }
        }
    }
    return deep;
}

static void adopt_tags(struct kvp_instance *instance)
{
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        struct kvp_session_of *session = &instance->sessions[i];
        for (uint32_t t = 0; t < session->state.ntags; t++) {
            if (kvp_fsm_add_tag(&instance->fsm, session->state.tags[t].tag) == NULL) {
                KVB_LOG(WARN, "too many tags: one is left out", KVB_STR("instance", instance->name),
                        KVB_STR("tag", session->state.tags[t].tag));
            }
            session->unknown = session->unknown || session->state.tags[t].residency == KVB_UNKNOWN;
        }
    }
    for (uint32_t i = 0; i < instance->fsm.ntags; i++) {
        instance->want[i] = deepest(instance, instance->fsm.tags[i].tag);
    }
}

static void adopt_scheduler(struct kvp_instance *instance, bool keep_stoppers)
{
    struct kvp_fsm *fsm = &instance->fsm;
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        const struct kvp_session_of *session = &instance->sessions[i];
        if ((session->rank->roles & KVB_ROLE_SCHEDULER) == 0 || !session->fresh) {
            continue; /* of one that stayed, the daemon knows more than its hello said */
        }
        bool legal = kvp_fsm_scheduler(fsm, session->state.paused ? KVP_SCHED_SAYS_PAUSED
                                                                  : KVP_SCHED_SAYS_RUNNING);
        kvb_assert(legal);
        fsm->pause_mode = session->state.pause_mode;
    }
    if (!keep_stoppers) {
        bool asleep = false;
        for (uint32_t i = 0; i < fsm->ntags; i++) {
            asleep = asleep || instance->want[i] != KVB_RESIDENT;
        }
        fsm->stopped_by = fsm->scheduler == KVP_SCHEDULER_RUNNING ? 0
                          : asleep                                ? KVP_STOPPED_BY_SLEEP
                                                                  : KVP_STOPPED_BY_PAUSE;
    }
}

/* Did a session of this role stay while others came anew? */
static bool stayed(const struct kvp_instance *instance, uint8_t roles)
{
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        const struct kvp_session_of *session = &instance->sessions[i];
        if (instance->known && !session->fresh && (session->rank->roles & roles) != 0) {
            return true;
        }
    }
    return false;
}

/* What the daemon still goes by, of what it knew before. False: nothing, the engine alone says what
 * it is. A rank that starts anew ends everything that was agreed about weights and caches, but
 * where memory should be, and who stopped a scheduler that stayed, still holds. */
static bool keep_knowledge(struct kvp_instance *instance, bool same_engine)
{
    struct kvp_fsm was = instance->fsm;
    if (same_engine) {
        return true;
    }
    kvp_fsm_init(&instance->fsm);
    memset(&instance->load, 0, sizeof instance->load);
    if (!stayed(instance, KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER)) {
        return false;
    }
    for (uint32_t i = 0; i < was.ntags; i++) { /* in their places: `unregistered` counts by them */
        (void)kvp_fsm_add_tag(&instance->fsm, was.tags[i].tag);
    }
    if (!stayed(instance, KVB_ROLE_SCHEDULER)) {
        return false;
    }
    instance->fsm.stopped_by = was.stopped_by;
    instance->fsm.pause_mode = was.pause_mode;
    bool legal = kvp_fsm_scheduler(&instance->fsm, was.scheduler == KVP_SCHEDULER_RUNNING
                                                       ? KVP_SCHED_SAYS_RUNNING
                                                       : KVP_SCHED_SAYS_PAUSED);
    kvb_assert(legal);
    return true;
}

/* All ranks are there: weigh what they say, before anything runs. */
static void attach(struct kvp_instance *instance)
{
    struct kvb_lineage retired[KVB_RETIRED_MAX];
    struct kvp_lineage_hello hello = {.living = instance->known};
    weigh_echoes(instance, &hello, retired);
    bool keep_stoppers = keep_knowledge(instance, instance->known && !kvb_id_none(hello.token.id));
    enum kvb_residency want[KVB_TAGS_MAX];
    memcpy(want, instance->want, sizeof want);
    uint32_t knew = instance->fsm.ntags;
    adopt_tags(instance);
    memcpy(instance->want, want, knew * sizeof want[0]);
    adopt_scheduler(instance, keep_stoppers);
    if (hello.update && instance->fsm.bracket == KVP_BRACKET_NONE) {
        enum kvp_bracket_effect begins; /* attaching leaves anyhow */
        bool legal = kvp_fsm_bracket(&instance->fsm, KVP_BEV_SAYS_RUNNING, &begins);
        kvb_assert(legal);
    }
    hello.update = instance->fsm.bracket != KVP_BRACKET_NONE;
    hello.stopped = instance->fsm.scheduler != KVP_SCHEDULER_RUNNING;
    instance->attached = true;
    instance->ever_attached = true;
    instance->known = true;
    instance->message[0] = '\0';
    KVP_LINEAGE(instance, attached, &hello, kvp_instance_random(instance));
    kvp_instance_refresh_tags(instance, NULL);
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        instance->sessions[i].fresh = false;
        instance->sessions[i].state.weights_written = false;
    }
    bool as_it_should_be = !kvp_instance_any_unknown(instance);
    for (uint32_t i = 0; i < instance->fsm.ntags; i++) {
        as_it_should_be = as_it_should_be && instance->fsm.tags[i].residency == instance->want[i];
    }
    bool paused = instance->fsm.scheduler != KVP_SCHEDULER_RUNNING;
    if (!as_it_should_be || paused != (instance->fsm.stopped_by != 0)) {
        instance->reconcile = true;
        kvb_sched_timer_clear(instance->fleet->config.sched, &instance->reconcile_timer);
    }
    KVB_LOG(INFO, "instance attached", KVB_STR("instance", instance->name),
            KVB_STR("tenant", instance->space.tenant), KVB_U64("ranks", instance->nsessions));
    kvp_instance_event(instance, "attached", "");
    kvp_instance_changed(instance);
}

static bool complete(const struct kvp_instance *instance)
{
    uint32_t workers = 0;
    bool scheduler = false;
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        uint8_t roles = instance->sessions[i].rank->roles;
        workers += (roles & KVB_ROLE_WORKER) != 0;
        scheduler = scheduler || (roles & KVB_ROLE_SCHEDULER) != 0;
    }
    return scheduler && workers == instance->shape.world_size;
}

void kvp_instance_pump(struct kvb_event *event)
{
    struct kvp_instance *instance = kvb_container_of(event, struct kvp_instance, pump);
    if (!instance->attached && complete(instance) && instance->running == NULL) {
        attach(instance);
    }
    kvp_op_pump(instance);
}

static kvb_status_t refuse(char *reason, size_t cap, const char *text)
{
    snprintf(reason, cap, "%s", text);
    return KVB_ERR_REFUSED;
}

static kvb_status_t check_hello(const struct kvb_link_hello *hello, char *reason, size_t cap)
{
    if (hello->world_size == 0 || hello->world_size > KVB_RANKS_MAX) {
        return refuse(reason, cap, "world_size must be 1 to 1024");
    }
    if (hello->local_world_size != hello->world_size) {
        return refuse(reason, cap,
                      "this world spans hosts (local_world_size differs from world_size): one "
                      "daemon serves one host; run every rank of an instance on it");
    }
    if (hello->rank >= hello->world_size) {
        return refuse(reason, cap, "rank must be less than world_size");
    }
    if ((hello->roles & (KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER)) == 0) {
        return refuse(reason, cap, "a session needs a role: scheduler, worker or both");
    }
    return KVB_OK;
}

static kvb_status_t check_fellows(const struct kvp_instance *instance,
                                  const struct kvb_link_hello *hello, const struct kvp_shape *shape,
                                  const char *layout, char *reason, size_t cap)
{
    if (instance->nsessions == 0) {
        return KVB_OK;
    }
    if (hello->world_size != instance->shape.world_size) {
        return refuse(reason, cap, "world_size differs from the ranks attached already");
    }
    if (strcmp(hello->tenant, instance->space.tenant) != 0) {
        return refuse(reason, cap, "tenant differs from the ranks attached already");
    }
    if (strcmp(layout, instance->space.layout) != 0) {
        return refuse(reason, cap, "layout differs from the ranks attached already");
    }
    if (!kvp_shape_equal(shape, &instance->shape)) {
        return refuse(reason, cap,
                      "tp_size, store_tp_size or KV groups differ from the ranks attached already");
    }
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        const struct kvp_rank *rank = instance->sessions[i].rank;
        if ((rank->roles & hello->roles & KVB_ROLE_SCHEDULER) != 0) {
            return refuse(reason, cap,
                          "the instance has a scheduler already: another engine runs "
                          "under this instance name; give it its own");
        }
        if ((rank->roles & hello->roles & KVB_ROLE_WORKER) != 0 && rank->index == hello->rank) {
            return refuse(reason, cap,
                          "this rank is attached already: another engine runs under "
                          "this instance name; give it its own");
        }
    }
    return KVB_OK;
}

/* Tenant and layout are part of every key: an instance that comes back with others is a new one. */
static kvb_status_t set_space(struct kvp_instance *instance, const struct kvb_link_hello *hello,
                              const struct kvp_shape *shape, const char *layout, char *reason,
                              size_t cap)
{
    struct kvp_fleet *fleet = instance->fleet;
    struct kvs_space space;
    memset(&space, 0, sizeof space);
    copy_text(space.tenant, sizeof space.tenant, hello->tenant);
    copy_text(space.layout, sizeof space.layout, layout);
    bool fresh = instance->sessions == NULL;
    if (!fresh && kvp_shape_equal(shape, &instance->shape) &&
        strcmp(space.tenant, instance->space.tenant) == 0 &&
        strcmp(space.layout, instance->space.layout) == 0) {
        return KVB_OK;
    }
    if (instance->running != NULL) {
        return refuse(reason, cap, "an operation is still ending: try again");
    }
    struct kvp_session_of *sessions = calloc(hello->world_size + 1, sizeof *sessions);
    if (sessions == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    struct kvs_member *member = NULL;
    if (!fresh) {
        kvp_bind_destroy(instance);
    }
    if (fleet->config.coordinator != NULL) {
        kvb_status_t status = kvs_member_open(fleet->config.coordinator, instance->name, &space,
                                              &kvp_bind_member_ops, instance, &member);
        if (status != KVB_OK) {
            free(sessions);
            return status;
        }
    }
    free(instance->sessions);
    instance->sessions = sessions;
    instance->shape = *shape;
    instance->member = member;
    instance->space = space;
    instance->known = false;
    kvp_fsm_init(&instance->fsm);
    kvp_lineage_init(&instance->lineage, member != NULL, fleet->unversioned,
                     kvp_instance_random(instance));
    kvp_lineage_stay(&instance->lineage, &instance->stay);
    return KVB_OK;
}

static struct kvp_instance *instance_create(struct kvp_fleet *fleet, const char *name)
{
    struct kvp_instance *instance = calloc(1, sizeof *instance);
    if (instance == NULL) {
        return NULL;
    }
    instance->fleet = fleet;
    copy_text(instance->name, sizeof instance->name, name);
    while (instance->hold_id == 0) {
        const struct kvb_random *random = fleet->config.sched->random;
        random->fill(random->ctx, &instance->hold_id, sizeof instance->hold_id);
    }
    kvb_list_init(&instance->waiting);
    kvb_list_init(&instance->beside);
    kvb_list_init(&instance->lineage_calls);
    kvb_list_init(&instance->coord_calls);
    kvb_event_init(&instance->pump, kvp_instance_pump);
    kvb_timer_init(&instance->reconcile_timer, on_reconcile_due);
    return instance;
}

static void add_session(struct kvp_instance *instance, const struct kvb_link_hello *hello,
                        struct kvp_rank *rank)
{
    rank->stay = &instance->stay;
    rank->index = hello->rank;
    rank->roles = hello->roles;
    struct kvp_session_of *session = &instance->sessions[instance->nsessions++];
    memset(session, 0, sizeof *session);
    session->rank = rank;
    session->fresh = true;
    session->flags = hello->flags;
    session->state = hello->state;
    session->lineage = hello->lineage;
    session->token = hello->token;
    session->nretired = hello->nretired;
    memcpy(session->retired, hello->retired, hello->nretired * sizeof hello->retired[0]);
    copy_text(session->lineage_name, sizeof session->lineage_name, hello->lineage_name);
    copy_text(session->weights_name, sizeof session->weights_name, hello->weights_name);
}

kvb_status_t kvp_fleet_hello(struct kvp_fleet *fleet, const struct kvb_link_hello *hello,
                             struct kvp_rank *rank, char *reason, size_t reason_cap,
                             struct kvp_instance **instance_p)
{
    struct kvp_shape shape;
    char layout[KVB_LAYOUT_MAX];
    kvb_status_t status = check_hello(hello, reason, reason_cap);
    if (status == KVB_OK) {
        status = kvp_shape_make(hello, &shape, reason, reason_cap);
    }
    if (status == KVB_OK) {
        status = kvp_shape_layout(hello, &shape, layout, sizeof layout, reason, reason_cap);
    }
    if (status != KVB_OK) {
        return status;
    }
    struct kvp_instance *instance = kvp_fleet_find(fleet, hello->instance);
    bool created = instance == NULL;
    if (created && kvp_fleet_count(fleet) >= KVP_INSTANCES_MAX) {
        return refuse(reason, reason_cap,
                      "too many instances: this daemon waits for those whose engines have gone, so "
                      "an engine must come back under its old name; restart the daemon to forget "
                      "them");
    }
    if (created) {
        instance = instance_create(fleet, hello->instance);
        if (instance == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
    }
    status = check_fellows(instance, hello, &shape, layout, reason, reason_cap);
    if (status == KVB_OK) {
        status = set_space(instance, hello, &shape, layout, reason, reason_cap);
    }
    if (status != KVB_OK) {
        if (created) {
            free(instance);
        }
        return status;
    }
    if (created) {
        kvb_list_push_back(&fleet->instances, &instance->link);
    }
    copy_text(instance->model, sizeof instance->model, hello->model);
    instance->max_model_len = hello->max_model_len;
    instance->foreign = rank->foreign;
    add_session(instance, hello, rank);
    kvb_sched_post(fleet->config.sched, &instance->pump);
    *instance_p = instance;
    return KVB_OK;
}

void kvp_instance_rank_gone(struct kvp_instance *instance, struct kvp_rank *rank,
                            const char *reason)
{
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        if (instance->sessions[i].rank == rank) {
            instance->sessions[i] = instance->sessions[--instance->nsessions];
            break;
        }
    }
    rank->stay = NULL;
    bool whole = instance->attached;
    instance->attached = false;
    if ((rank->roles & KVB_ROLE_SCHEDULER) != 0) {
        instance->left = NULL;
    }
    kvp_instance_left(instance);
    kvp_op_rank_gone(instance);
    if (!whole) {
        return;
    }
    instance->found.id = 0; /* what it is when it is back is its own */
    snprintf(instance->message, sizeof instance->message, "rank %u: %.200s", rank->index, reason);
    KVB_LOG(WARN, "instance disconnected", KVB_STR("instance", instance->name),
            KVB_STR("reason", instance->message));
    KVP_LINEAGE(instance, detached);
    char text[KVP_MESSAGE_MAX + 64];
    snprintf(text, sizeof text, "%s: the engine is gone: repeat when it has attached again",
             instance->message);
    kvp_op_fail_waiting(instance, KVB_ERR_DISCONNECTED, text);
    kvp_instance_event(instance, "disconnected", reason);
    kvp_instance_changed(instance);
}

void kvp_instance_report(struct kvp_instance *instance, struct kvp_rank *rank,
                         const struct kvb_load *load)
{
    if ((rank->roles & KVB_ROLE_SCHEDULER) == 0) {
        return; /* the scheduler knows the requests */
    }
    instance->load = *load;
    if (load->blocks_held == 0 && instance->attached) {
        KVP_LINEAGE(instance, report);
    }
    kvp_instance_changed(instance);
}

void kvp_instance_left(struct kvp_instance *instance)
{
    void (*left)(void *arg) = instance->left;
    instance->left = NULL;
    if (left != NULL) {
        left(instance->left_arg);
    }
}

bool kvp_instance_leave(struct kvp_instance *instance, void (*done)(void *arg), void *arg)
{
    if (instance->left != NULL) {
        return false;
    }
    instance->left = done;
    instance->left_arg = arg;
    for (uint32_t i = 0; i < instance->nsessions; i++) { /* what they said of the stay that ends */
        instance->sessions[i].state.local_reset_done = false;
    }
    KVP_LINEAGE(instance, written, kvp_instance_random(instance));
    kvp_instance_event(instance, "engine_left", "");
    kvp_instance_changed(instance);
    if (!instance->attached) {
        kvp_instance_left(instance);
    }
    return true;
}

const struct kvs_space *kvp_instance_space(const struct kvp_instance *instance)
{
    return &instance->space;
}

uint64_t kvp_instance_hold_id(const struct kvp_instance *instance)
{
    return instance->hold_id;
}

const struct kvp_shape *kvp_instance_shape(const struct kvp_instance *instance)
{
    return &instance->shape;
}
