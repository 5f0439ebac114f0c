/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_rank.h"

#include "own_alloc.h"

#include "transport/device.h"

#include <stdlib.h>
#include <string.h>

struct fake_call {
    struct kvb_list link; /* rank.calls, or engine.pauses */
    struct fake_rank *rank;
    struct kvb_event event;
    struct kvb_timer timer;
    enum kvb_link_type type; /* EVENT: drain, REGISTER_REGION: unregister or register */
    bool register_;
    bool abort;
    bool done_already; /* its effect */
    bool slow;         /* engine->lineage_ms have not passed */
    enum fake_fault fault;
    uint64_t deadline_ns;
    union {
        struct kvb_link_lineage lineage;
        struct kvb_link_pause pause;
        struct kvb_link_reset_local reset;
        struct kvb_link_release release;
        struct kvb_link_restore restore;
        struct kvb_link_relay relay;
    } msg;
    char *body;
    char tags[KVB_TAGS_MAX][KVB_NAME_MAX];
    uint32_t ntags;
    kvp_rank_call_fn call_done;
    kvp_rank_done_fn done;
    void *arg;
    /* the answer */
    kvb_status_t status;
    union kvp_rank_reply reply;
    bool has_reply;
};

const char *fake_fault_text(enum fake_fault fault)
{
    static const char *const texts[] = {
        [FAKE_OK] = "ok",         [FAKE_ERROR] = "error",
        [FAKE_SILENT] = "silent", [FAKE_LATE] = "late",
        [FAKE_SLOW] = "slow",     [FAKE_DIE] = "die",
        [FAKE_VANISH] = "vanish", [FAKE_VANISH_OTHER] = "another vanishes"};
    return texts[fault];
}

static void tell(const struct fake_call *call, kvb_status_t status)
{
    const struct fake_engine *engine = call->rank->engine;
    if (engine->watch != NULL) {
        const struct fake_step step = {
            .rank = call->rank->rank.index,
            .type = call->type,
            .register_ = call->register_,
            .commit = call->type == KVB_LINK_RELEASE && call->msg.release.commit,
        };
        engine->watch(engine->watch_ctx, &step, status);
    }
}

static void complete(struct fake_call *call, kvb_status_t status)
{
    tell(call, status);
    struct fake_rank *rank = call->rank;
    if (rank->drain == call) {
        rank->drain = NULL;
    }
    kvb_list_remove(&call->link);
    kvb_sched_unpost(&call->event);
    kvb_sched_timer_clear(&rank->engine->sim->sched, &call->timer);
    bool told = status == KVB_OK || (status != KVB_ERR_TIMEOUT && status != KVB_ERR_DISCONNECTED);
    const union kvp_rank_reply *reply = told && call->has_reply ? &call->reply : NULL;
    if (call->call_done != NULL) {
        call->call_done(call->arg, status, reply);
    } else if (call->done != NULL) {
        call->done(call->arg, status);
    }
    free(call->body);
    free(call);
    fake_engine_check(rank->engine);
}

static struct fake_tag *tag_of(struct fake_rank *rank, const char *tag)
{
    for (uint32_t i = 0; i < rank->engine->ntags; i++) {
        if (strcmp(rank->tags[i].tag, tag) == 0) {
            return &rank->tags[i];
        }
    }
    return NULL;
}

static void do_release(struct fake_rank *rank, const struct kvb_link_release *msg)
{
    for (uint32_t i = 0; i < msg->ntags; i++) {
        struct fake_tag *tag = tag_of(rank, msg->tags[i].tag);
        kvb_assert(tag != NULL);
        kvb_assert(!tag->registered); /* P3: no pin outlives its mapping */
        kvb_assert(rank->transfers == 0 || tag->residency != KVB_RESIDENT);
        if (msg->commit) {
            kvb_assert(rank->engine->paused || tag->residency != KVB_RESIDENT ||
                       rank->engine->ranks[0].instance == NULL); /* nobody schedules */
            tag->residency = msg->tags[i].offload ? KVB_OFFLOADED : KVB_DISCARDED;
            tag->handed = false;
        }
    }
}

static void do_restore(struct fake_rank *rank, const struct kvb_link_restore *msg)
{
    for (uint32_t i = 0; i < msg->ntags; i++) {
        struct fake_tag *tag = tag_of(rank, msg->tags[i]);
        kvb_assert(tag != NULL);
        tag->residency = KVB_RESIDENT;
        tag->generation++;
        tag->handed = true;
        if (!tag->released) {
            tag->registered = true; /* on arrival */
        }
    }
}

static kvb_status_t do_register(struct fake_call *call)
{
    for (uint32_t i = 0; i < call->ntags; i++) {
        struct fake_tag *tag = tag_of(call->rank, call->tags[i]);
        if (tag != NULL && tag->released && !tag->handed) {
            return KVB_ERR_BAD_STATE;
        }
    }
    for (uint32_t i = 0; i < call->ntags; i++) {
        struct fake_tag *tag = tag_of(call->rank, call->tags[i]);
        if (tag != NULL) {
            kvb_assert(tag->residency == KVB_RESIDENT); /* P3 */
            tag->registered = true;
            tag->released = false;
        }
    }
    return KVB_OK;
}

static void do_unregister(struct fake_call *call)
{
    kvb_assert(!call->rank->rank.stay->open); /* closed before its memory goes */
    for (uint32_t i = 0; i < call->ntags; i++) {
        struct fake_tag *tag = tag_of(call->rank, call->tags[i]);
        if (tag != NULL) {
            tag->registered = false;
            tag->released = true;
            tag->handed = false;
        }
    }
}

static void fill_state(const struct fake_rank *rank, struct kvb_engine_state *state)
{
    const struct fake_engine *engine = rank->engine;
    memset(state, 0, sizeof *state);
    state->paused = engine->paused && !engine->stopping;
    state->pause_mode = engine->pause_mode;
    state->weight_change_running = engine->update || rank->updating;
    state->weights_written = rank->weights_written;
    state->local_reset_done = engine->local_reset_done;
    state->ntags = engine->ntags;
    for (uint32_t i = 0; i < engine->ntags; i++) {
        strcpy(state->tags[i].tag, rank->tags[i].tag);
        state->tags[i].residency = rank->tags[i].residency;
    }
}

static kvb_status_t do_relay(struct fake_call *call)
{
    struct fake_rank *rank = call->rank;
    struct fake_engine *engine = rank->engine;
    const char *method = call->msg.relay.method;
    strcpy(engine->last_method, method);
    call->has_reply = true;
    memset(&call->reply, 0, sizeof call->reply);
    if (strcmp(method, "start_weight_update") == 0) {
        rank->updating = true;
    } else if (strcmp(method, "finish_weight_update") == 0) {
        rank->updating = false;
    } else if (strncmp(method, "update_weights", 14) == 0) {
        rank->weights++;
        rank->weights_written = true;
        call->reply.relay.weights_written = true;
    } else if (strcmp(method, "unknown") == 0) {
        call->reply.relay.status = KVB_ERR_UNSUPPORTED;
        return KVB_ERR_UNSUPPORTED;
    }
    static const char answer[] = "{\"done\":true}";
    call->reply.relay.body =
        (struct kvb_span){.data = (const uint8_t *)answer, .len = sizeof answer - 1};
    return KVB_OK;
}

static void end_pauses(struct fake_engine *engine, kvb_status_t status)
{
    engine->stopping = false;
    for (struct kvb_list *link; (link = kvb_list_first(&engine->pauses)) != NULL;) {
        struct fake_call *call = kvb_container_of(link, struct fake_call, link);
        kvb_list_remove(&call->link);
        kvb_list_push_back(&call->rank->calls, &call->link);
        call->status = status;
        call->done_already = true;
        kvb_sched_post(&engine->sim->sched, &call->event);
    }
}

/* What the call does in the engine. False: it is answered later. */
static bool effect(struct fake_call *call)
{
    struct fake_rank *rank = call->rank;
    struct fake_engine *engine = rank->engine;
    call->status = KVB_OK;
    switch (call->type) {
    case KVB_LINK_LINEAGE:
        rank->lineage = call->msg.lineage;
        if (call->msg.lineage.left && rank == &engine->ranks[0]) { /* where the cache is */
            engine->local_reset_done = engine->cached == 0 && engine->held == 0;
        }
        rank->weights_written = false;
        return true;
    case KVB_LINK_PAUSE:
        engine->paused = true;
        engine->pause_mode = call->msg.pause.mode;
        if (call->msg.pause.mode == KVB_PAUSE_ABORT) {
            engine->busy = 0;
            engine->held = 0;
        }
        engine->stopping = engine->busy > 0 && call->msg.pause.mode != KVB_PAUSE_KEEP;
        if (!engine->stopping) {
            return true;
        }
        kvb_list_remove(&call->link);
        kvb_list_push_back(&engine->pauses, &call->link);
        return false;
    case KVB_LINK_RESUME:
        for (uint32_t r = 0; r < engine->nranks; r++) {
            kvb_assert(engine->ranks[r].instance != NULL); /* nor without a rank */
            for (uint32_t t = 0; t < engine->ntags; t++) {
                /* work is never scheduled onto memory that is not there */
                kvb_assert(engine->ranks[r].tags[t].residency == KVB_RESIDENT);
            }
        }
        engine->paused = false;
        end_pauses(engine, KVB_ERR_CANCELED);
        return true;
    case KVB_LINK_RESET_LOCAL:
        call->has_reply = true;
        call->reply.reset_local = (struct kvb_link_reset_local_reply){.status = KVB_OK};
        if (engine->held > 0 && !call->msg.reset.preempt) {
            call->reply.reset_local.status = KVB_ERR_BUSY;
            call->reply.reset_local.blocks_held = engine->held;
            call->status = KVB_ERR_BUSY;
            return true;
        }
        engine->preempts += engine->held > 0;
        engine->held = 0;
        engine->cached = 0;
        engine->resets++;
        engine->local_reset_done = true;
        return true;
    case KVB_LINK_RELEASE:
        if (rank->refuses_release && call->msg.release.commit) {
            call->status = KVB_ERR_INTERNAL;
            return true;
        }
        do_release(rank, &call->msg.release);
        return true;
    case KVB_LINK_RESTORE:
        do_restore(rank, &call->msg.restore);
        return true;
    case KVB_LINK_FINGERPRINT:
        if (engine->no_fingerprint != KVB_OK) {
            call->status = engine->no_fingerprint;
            return true;
        }
        call->has_reply = true;
        memset(&call->reply, 0, sizeof call->reply);
        snprintf(call->reply.fingerprint.name, sizeof call->reply.fingerprint.name, "w%u",
                 rank->weights);
        return true;
    case KVB_LINK_RELAY:
        call->status = do_relay(call);
        return true;
    case KVB_LINK_STATE:
        call->has_reply = true;
        call->reply.state.status = KVB_OK;
        fill_state(rank, &call->reply.state.state);
        return true;
    case KVB_LINK_EVENT: /* drain */
        if (call->abort) {
            rank->transfers = 0;
        }
        if (rank->transfers == 0) {
            return true;
        }
        kvb_assert(rank->drain == NULL);
        rank->drain = call;
        return false;
    case KVB_LINK_REGISTER_REGION:
        if (call->register_) {
            call->status = do_register(call);
        } else if (rank->refuses_unregister) {
            call->status = rank->engine->says != KVB_OK ? rank->engine->says : KVB_ERR_TIMEOUT;
        } else {
            do_unregister(call);
        }
        return true;
    default:
        kvb_assert(false);
        return true;
    }
}

static void start_dying(struct fake_rank *rank)
{
    struct fake_engine *engine = rank->engine;
    for (uint32_t r = 0; r < engine->nranks; r++) { /* its ranks die together */
        engine->ranks[r].dying = true;
        kvb_sched_post(&engine->sim->sched, &engine->ranks[r].gone);
    }
}

static void start_dying_alone(struct fake_rank *rank)
{
    rank->dying = true;
    rank->alone = true;
    kvb_sched_post(&rank->engine->sim->sched, &rank->gone);
}

static void on_call(struct kvb_event *event)
{
    struct fake_call *call = kvb_container_of(event, struct fake_call, event);
    struct fake_engine *engine = call->rank->engine;
    if (call->done_already) {
        complete(call, call->status);
        return;
    }
    /* Drain, unregister and register are the link's own: they do all or nothing, and say so. */
    bool link_only = call->type == KVB_LINK_EVENT || call->type == KVB_LINK_REGISTER_REGION;
    if (link_only && call->fault != FAKE_OK && call->fault != FAKE_DIE &&
        call->fault != FAKE_VANISH && call->fault != FAKE_VANISH_OTHER) {
        complete(call, engine->says != KVB_OK ? engine->says
                       : call->register_      ? KVB_ERR_NO_MEMORY
                                              : KVB_ERR_TIMEOUT);
        return;
    }
    switch (call->fault) {
    case FAKE_OK:
    case FAKE_FAULT_COUNT:
        if (effect(call)) {
            complete(call, call->status);
        }
        return;
    case FAKE_ERROR:
        complete(call, engine->says != KVB_OK ? engine->says : KVB_ERR_INTERNAL);
        return;
    case FAKE_LATE:
        (void)effect(call);
        return; /* the timer answers */
    case FAKE_SILENT:
    case FAKE_SLOW:
        return;
    case FAKE_DIE:
        start_dying(call->rank);
        return;
    case FAKE_VANISH:
        start_dying_alone(call->rank);
        return;
    case FAKE_VANISH_OTHER:
        start_dying_alone(&engine->ranks[(call->rank->rank.index + 1) % engine->nranks]);
        call->fault = FAKE_OK;
        if (effect(call)) { /* answered after the other one is gone */
            call->done_already = true;
            kvb_sched_post(&engine->sim->sched, &call->event);
        }
        return;
    }
}

static void on_deadline(struct kvb_timer *timer)
{
    struct fake_call *call = kvb_container_of(timer, struct fake_call, timer);
    if (call->slow) {
        call->slow = false;
        kvb_sched_timer_set(&call->rank->engine->sim->sched, &call->timer, call->deadline_ns);
        on_call(&call->event);
        return;
    }
    if (call->fault == FAKE_SLOW) {
        struct fake_call later = *call; /* the engine gets to it only now */
        later.call_done = NULL;
        later.done = NULL;
        complete(call, KVB_ERR_TIMEOUT);
        kvb_list_init(&later.link);
        later.body = NULL;
        if (!later.rank->dying && !effect(&later)) {
            kvb_list_remove(&later.link);
            if (later.rank->drain == &later) {
                later.rank->drain = NULL;
            }
        }
        return;
    }
    complete(call, KVB_ERR_TIMEOUT);
}

static struct fake_call *call_create(struct fake_rank *rank, enum kvb_link_type type,
                                     uint64_t deadline_ns)
{
    struct fake_engine *engine = rank->engine;
    struct fake_call *call = own_calloc(1, sizeof *call);
    call->rank = rank;
    call->type = type;
    call->deadline_ns = deadline_ns;
    if (++engine->ncalls == engine->fault_at) {
        call->fault = engine->fault;
    }
    if (engine->mute) {
        call->fault = FAKE_SILENT;
    }
    kvb_event_init(&call->event, on_call);
    kvb_timer_init(&call->timer, on_deadline);
    kvb_assert(deadline_ns != KVB_NEVER); /* P5 */
    kvb_sched_timer_set(&engine->sim->sched, &call->timer, deadline_ns);
    kvb_list_push_back(&rank->calls, &call->link);
    call->slow = type == KVB_LINK_LINEAGE && engine->lineage_ms > 0;
    if (call->slow) {
        uint64_t at_ns = kvb_deadline_in_ms(engine->sim->sched.clock, engine->lineage_ms);
        kvb_sched_timer_set(&engine->sim->sched, &call->timer,
                            at_ns + engine->ncalls); /* in order */
    } else {
        kvb_sched_post(&engine->sim->sched, &call->event);
    }
    return call;
}

static void fake_call(void *impl, enum kvb_link_type type, const void *msg, uint64_t deadline_ns,
                      kvp_rank_call_fn done, void *arg)
{
    struct fake_rank *rank = impl;
    struct fake_call *call = call_create(rank, type, deadline_ns);
    static const size_t sizes[] = {
        [KVB_LINK_LINEAGE] = sizeof call->msg.lineage,
        [KVB_LINK_PAUSE] = sizeof call->msg.pause,
        [KVB_LINK_RESUME] = sizeof(struct kvb_link_resume),
        [KVB_LINK_RESET_LOCAL] = sizeof call->msg.reset,
        [KVB_LINK_RELEASE] = sizeof call->msg.release,
        [KVB_LINK_RESTORE] = sizeof call->msg.restore,
        [KVB_LINK_RELAY] = sizeof call->msg.relay,
        [KVB_LINK_STATE] = 0,
        [KVB_LINK_FINGERPRINT] = 0,
    };
    if (msg != NULL) {
        memcpy(&call->msg, msg, sizes[type]);
    }
    call->call_done = done;
    call->arg = arg;
    tell(call, KVB_IN_PROGRESS);
}

static void hurry(struct kvb_list *calls, const struct fake_rank *rank, uint64_t deadline_ns)
{
    kvb_list_each(calls, link)
    {
        struct fake_call *call = kvb_container_of(link, struct fake_call, link);
        if (call->rank == rank && call->type == KVB_LINK_PAUSE && call->deadline_ns > deadline_ns) {
            call->deadline_ns = deadline_ns;
            kvb_sched_timer_set(&rank->engine->sim->sched, &call->timer, deadline_ns);
        }
    }
}

static void fake_hurry_pauses(void *impl, uint64_t deadline_ns)
{
    struct fake_rank *rank = impl;
    hurry(&rank->calls, rank, deadline_ns);
    hurry(&rank->engine->pauses, rank, deadline_ns);
}

static void fake_drain(void *impl, bool abort, uint64_t deadline_ns, kvp_rank_done_fn done,
                       void *arg)
{
    struct fake_call *call = call_create(impl, KVB_LINK_EVENT, deadline_ns);
    call->abort = abort;
    call->done = done;
    call->arg = arg;
    tell(call, KVB_IN_PROGRESS);
}

static void fake_drain_stop(void *impl)
{
    struct fake_rank *rank = impl;
    if (rank->drain != NULL) {
        struct fake_call *call = rank->drain;
        call->status = KVB_ERR_CANCELED;
        call->done_already = true;
        rank->drain = NULL;
        kvb_sched_post(&rank->engine->sim->sched, &call->event);
    }
}

static struct kvp_drain_progress fake_progress(void *impl)
{
    const struct fake_rank *rank = impl;
    return (struct kvp_drain_progress){.running = rank->transfers};
}

static void fake_stay_changed(void *impl)
{
    struct fake_rank *rank = impl;
    rank->stays++;
}

static void memory_call(struct fake_rank *rank, bool register_, const char (*tags)[KVB_NAME_MAX],
                        uint32_t ntags, uint64_t deadline_ns, kvp_rank_done_fn done, void *arg)
{
    struct fake_call *call = call_create(rank, KVB_LINK_REGISTER_REGION, deadline_ns);
    call->register_ = register_;
    call->ntags = ntags;
    memcpy(call->tags, tags, ntags * sizeof call->tags[0]);
    call->done = done;
    call->arg = arg;
    tell(call, KVB_IN_PROGRESS);
}

static void fake_unregister(void *impl, const char (*tags)[KVB_NAME_MAX], uint32_t ntags,
                            uint64_t deadline_ns, kvp_rank_done_fn done, void *arg)
{
    memory_call(impl, false, tags, ntags, deadline_ns, done, arg);
}

static void fake_register(void *impl, const char (*tags)[KVB_NAME_MAX], uint32_t ntags,
                          kvp_rank_done_fn done, void *arg)
{
    struct fake_rank *rank = impl;
    memory_call(rank, true, tags, ntags, sim_in_ms(rank->engine->sim, 10000), done, arg);
}

static uint32_t fake_registered(void *impl, const char *tag, uint64_t *bytes_p)
{
    if (bytes_p != NULL) {
        *bytes_p = 0;
    }
    if (tag == NULL) {
        const struct fake_rank *rank = impl;
        uint32_t n = 0;
        for (uint32_t i = 0; i < rank->engine->ntags; i++) {
            n += rank->tags[i].registered;
        }
        return n;
    }
    const struct fake_tag *found = tag_of(impl, tag);
    return found != NULL && found->registered;
}

static void fake_each_region(void *impl, kvp_region_fn each, void *arg)
{
    const struct fake_rank *rank = impl;
    for (uint32_t i = 0; i < rank->engine->ntags; i++) {
        each(arg, &(struct kvp_region_view){.number = i,
                                            .tag = rank->tags[i].tag,
                                            .kind = "host",
                                            .state = rank->tags[i].registered ? "registered"
                                                                              : "unregistered",
                                            .current = true,
                                            .generation = rank->tags[i].generation});
    }
}

static void fake_queues(void *impl, struct kvp_queue_view views[KVP_QUEUE_KINDS])
{
    const struct fake_rank *rank = impl;
    memset(views, 0, KVP_QUEUE_KINDS * sizeof views[0]);
    views[KVP_QUEUE_GET].running = rank->transfers;
}

static bool fake_device(void *impl, struct kvt_device_info *info_p)
{
    const struct fake_rank *rank = impl;
    *info_p = (struct kvt_device_info){.pid = 4242, .starts = 1, .regions = 1};
    return rank->cause != NULL;
}

static const char *fake_cause(void *impl)
{
    const struct fake_rank *rank = impl;
    return rank->cause != NULL ? rank->cause : "";
}

static void fake_disconnect(void *impl, const char *reason)
{
    struct fake_rank *rank = impl;
    (void)reason;
    rank->dying = true;
    kvb_sched_post(&rank->engine->sim->sched, &rank->gone);
}

static const struct kvp_rank_ops fake_ops = {
    .call = fake_call,
    .drain = fake_drain,
    .drain_stop = fake_drain_stop,
    .hurry_pauses = fake_hurry_pauses,
    .progress = fake_progress,
    .stay_changed = fake_stay_changed,
    .unregister = fake_unregister,
    .register_ = fake_register,
    .registered = fake_registered,
    .each_region = fake_each_region,
    .queues = fake_queues,
    .device = fake_device,
    .cause = fake_cause,
    .disconnect = fake_disconnect,
};

static void rank_gone(struct fake_rank *rank)
{
    for (struct kvb_list *link; (link = kvb_list_first(&rank->calls)) != NULL;) {
        complete(kvb_container_of(link, struct fake_call, link), KVB_ERR_DISCONNECTED);
    }
    kvb_list_each(&rank->engine->pauses, link)
    {
        struct fake_call *call = kvb_container_of(link, struct fake_call, link);
        if (call->rank == rank) {
            complete(call, KVB_ERR_DISCONNECTED);
        }
    }
    rank->engine->stopping = false; /* it answers nobody, and is paused */
    struct kvp_instance *instance = rank->instance;
    rank->instance = NULL;
    for (uint32_t i = 0; i < FAKE_TAGS_MAX; i++) {
        rank->tags[i].registered = false;
        rank->tags[i].released = false;
        rank->tags[i].handed = false;
    }
    if (instance != NULL) {
        kvp_instance_rank_gone(instance, &rank->rank, "connection closed");
    }
}

static void restart_rank(struct fake_rank *rank)
{
    for (uint32_t i = 0; i < FAKE_TAGS_MAX; i++) {
        rank->tags[i].residency = KVB_RESIDENT;
        rank->tags[i].generation = 1;
    }
    rank->transfers = 0;
    rank->weights = 0;
    rank->weights_written = false;
    rank->updating = false;
    memset(&rank->lineage, 0, sizeof rank->lineage);
}

static void on_gone(struct kvb_event *event)
{
    struct fake_rank *rank = kvb_container_of(event, struct fake_rank, gone);
    struct fake_engine *engine = rank->engine;
    rank_gone(rank);
    if (rank->dying) {
        bool keeps = rank->alone && rank != &engine->ranks[0]; /* the scheduler went on */
        rank->dying = false;
        rank->alone = false;
        restart_rank(rank);
        if (keeps) {
            return;
        }
        engine->paused = false;
        engine->busy = engine->held = engine->cached = 0;
        engine->local_reset_done = true;
        engine->update = false;
    }
}

void fake_engine_init(struct fake_engine *engine, struct sim_sched *sim, struct kvp_fleet *fleet,
                      const char *instance, uint32_t nranks)
{
    memset(engine, 0, sizeof *engine);
    engine->sim = sim;
    engine->fleet = fleet;
    engine->nranks = nranks;
    engine->ntags = 2;
    engine->local_reset_done = true;
    engine->fingerprints = true;
    kvb_list_init(&engine->pauses);
    engine->hello.version = KVB_LINK_VERSION;
    engine->hello.world_size = nranks;
    engine->hello.local_world_size = nranks;
    engine->hello.block_tokens = 16;
    strcpy(engine->hello.instance, instance);
    strcpy(engine->hello.tenant, "default");
    strcpy(engine->hello.layout, "layout");
    for (uint32_t i = 0; i < nranks; i++) {
        struct fake_rank *rank = &engine->ranks[i];
        rank->engine = engine;
        rank->tags[0].tag = "kv_cache";
        rank->tags[1].tag = "weights";
        rank->tags[2].tag = "draft";
        kvb_list_init(&rank->calls);
        kvb_event_init(&rank->gone, on_gone);
        restart_rank(rank);
    }
}

kvb_status_t fake_engine_try_attach(struct fake_engine *engine)
{
    for (uint32_t i = 0; i < engine->nranks; i++) {
        struct fake_rank *rank = &engine->ranks[i];
        if (rank->instance != NULL) {
            continue;
        }
        struct kvb_link_hello hello = engine->hello;
        hello.rank = i;
        hello.roles = i == 0 ? KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER : KVB_ROLE_WORKER;
        hello.flags = engine->fingerprints ? KVB_ENGINE_FINGERPRINTS : 0;
        hello.lineage = rank->lineage.lineage;
        hello.token = rank->lineage.token;
        strcpy(hello.lineage_name, rank->lineage.name);
        hello.nretired = rank->lineage.nretired;
        memcpy(hello.retired, rank->lineage.retired, sizeof hello.retired);
        fill_state(rank, &hello.state);
        rank->rank.ops = &fake_ops;
        rank->rank.impl = rank;
        char reason[256] = "";
        kvb_status_t status = kvp_fleet_hello(engine->fleet, &hello, &rank->rank, reason,
                                              sizeof reason, &rank->instance);
        if (status != KVB_OK) {
            fprintf(stderr, "hello refused: %s: %s\n", kvb_status_label(status), reason);
            return status;
        }
        for (uint32_t t = 0; t < engine->ntags; t++) {
            /* regions that are there are handed over at once */
            rank->tags[t].registered = rank->tags[t].residency == KVB_RESIDENT;
        }
    }
    return KVB_OK;
}

void fake_engine_attach(struct fake_engine *engine)
{
    kvb_status_t status = fake_engine_try_attach(engine);
    kvb_assert(status == KVB_OK);
}

void fake_engine_drop_link(struct fake_engine *engine)
{
    for (uint32_t i = 0; i < engine->nranks; i++) {
        rank_gone(&engine->ranks[i]);
    }
}

void fake_engine_restart(struct fake_engine *engine)
{
    for (uint32_t i = 0; i < engine->nranks; i++) {
        engine->ranks[i].dying = true;
        on_gone(&engine->ranks[i].gone);
        kvb_sched_unpost(&engine->ranks[i].gone);
    }
}

void fake_engine_lose_rank(struct fake_engine *engine, uint32_t index)
{
    engine->ranks[index].dying = true;
    engine->ranks[index].alone = true;
    on_gone(&engine->ranks[index].gone);
}

bool fake_engine_attached(const struct fake_engine *engine)
{
    for (uint32_t i = 0; i < engine->nranks; i++) {
        if (engine->ranks[i].instance == NULL) {
            return false;
        }
    }
    return true;
}

void fake_engine_finish_requests(struct fake_engine *engine)
{
    engine->busy = 0;
    engine->cached += engine->held;
    engine->held = 0;
    end_pauses(engine, KVB_OK);
    for (uint32_t i = 0; i < engine->nranks; i++) {
        struct fake_rank *rank = &engine->ranks[i];
        rank->transfers = 0;
        if (rank->drain != NULL && rank->drain->fault == FAKE_OK) {
            rank->drain->status = KVB_OK;
            rank->drain->done_already = true;
            kvb_sched_post(&engine->sim->sched, &rank->drain->event);
            rank->drain = NULL;
        }
    }
    if (fake_engine_attached(engine)) {
        fake_engine_report(engine);
    }
}

void fake_engine_report(struct fake_engine *engine)
{
    struct kvb_load load = {.running = engine->busy, .blocks_held = engine->held};
    kvp_instance_report(engine->ranks[0].instance, &engine->ranks[0].rank, &load);
}

void fake_engine_check(const struct fake_engine *engine)
{
    for (uint32_t r = 0; r < engine->nranks; r++) {
        for (uint32_t t = 0; t < engine->ntags; t++) {
            const struct fake_tag *tag = &engine->ranks[r].tags[t];
            kvb_assert(!tag->registered || tag->residency == KVB_RESIDENT);
        }
    }
}

bool fake_engine_serves(const struct fake_engine *engine)
{
    for (uint32_t r = 0; r < engine->nranks; r++) {
        for (uint32_t t = 0; t < engine->ntags; t++) {
            const struct fake_tag *tag = &engine->ranks[r].tags[t];
            if (tag->residency != KVB_RESIDENT || !tag->registered) {
                return false;
            }
        }
    }
    return !engine->paused && fake_engine_attached(engine);
}

bool fake_engine_open(const struct fake_engine *engine)
{
    for (uint32_t r = 0; r < engine->nranks; r++) {
        const struct fake_rank *rank = &engine->ranks[r];
        if (rank->rank.stay == NULL || !rank->rank.stay->open ||
            !kvb_token_equal(rank->rank.stay->token, rank->lineage.token)) {
            return false;
        }
    }
    return true;
}
