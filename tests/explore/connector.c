/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every order in which things can happen to one instance of the real connector (fsm.c, plan.c,
 * operation.c, steps.c, fleet.c, bind.c, lineage.c): two clients that ask at any moment, an engine
 * of two ranks whose every answer may come, fail, be lost, come late or do its work after the
 * daemon gave up, ranks that die or lose their connection and attach again, a coordinator that
 * answers or does not, and time. The engine and the coordinator are the small references below;
 * everything else is the code.
 *
 * In each state: P3 (nothing is registered that is not mapped; no memory goes that is registered
 * or that a transfer names; what the daemon says of a tag is what the ranks hold), P4 (an answer is
 * true: what succeeded is so on all ranks, what failed has left what was), P5 (every call has a
 * deadline, every queue its limit, every request one answer). From each state: all comes to rest if
 * all goes well, and every request is answered even if nobody answers the daemon any more.
 *
 * usage: connector_explorer [--depth N] [--states N] [--lens NAME] [--replay TRACE]
 */
#include "connector/instance_impl.h"
#include "explore_main.h"
#include "heap.h"
#include "search.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS    2u
#define TAGS     2u
#define CALLS    8u /* of one rank that may be unanswered */
#define REQUESTS 4u
#define CLIENTS  2u
#define COORD    4u
#define NAMES    4u

static const char *const tag_names[TAGS] = {"kv_cache", "weights"};
enum { KV, WEIGHTS };

/* ---- what is explored ---- */

#define MENU_MAX 10u
struct lens {
    struct explore_lens base;
    uint32_t requests, faults, deaths;
    bool store; /* with a coordinator */
    bool fingerprints;
    bool cancels;       /* a client may cancel what it asked for */
    const char *before; /* of the menu: done already; NULL: nothing */
    const char *menu[MENU_MAX + 1];
};
#define LENS(name_, depth_) .base = {.name = (name_), .depth = (depth_)}
static const struct lens lenses[] = {
    /* One at a time, and one thing that goes wrong: to the end. */
    {LENS("alone", 0), .requests = 1, .faults = 1,
     .menu = {"sleep 1", "sleep 2", "release", "pause keep", "reset", "start", "update", NULL}},
    {LENS("dies", 0), .requests = 1, .deaths = 1,
     .menu = {"sleep 1", "sleep 2", "release", "pause keep", "reset", "start", "update", NULL}},
    /* The same, asleep. */
    {LENS("asleep", 0), .requests = 1, .faults = 1, .before = "sleep 1",
     .menu = {"sleep 1", "wake", "wake weights", "resume", "sleep 2", "release", NULL}},
    {LENS("wakes", 0), .requests = 1, .deaths = 1, .before = "sleep 1",
     .menu = {"sleep 1", "wake", "wake weights", "sleep 2", NULL}},
    /* Undo that fails, too. */
    {LENS("undo", 0), .requests = 1, .faults = 3, .menu = {"sleep 1", "sleep 2", NULL}},
    /* Who sleeps and wakes, with every failure of a step on the way. */
    {LENS("steps", 0), .requests = 2, .faults = 1,
     .menu = {"sleep 1", "sleep 2", "wake", "wake weights", "resume", "pause keep", NULL}},
    /* Ranks that go and come back. */
    {LENS("ranks", 9), .requests = 2, .deaths = 2,
     .menu = {"sleep 1", "wake", "resume", "pause keep", NULL}},
    /* More is asked than one at a time. */
    {LENS("clients", 12), .requests = 3, .cancels = true,
     .menu = {"sleep 1", "wake", "pause keep", "resume", "release", "reset", NULL}},
    /* Weights change. */
    {LENS("weights", 6), .requests = 3, .faults = 1,
     .menu = {"start", "update", "finish", "sleep 1", "wake", "resume", NULL}},
    /* A coordinator that answers, does not, and tells of others' resets. */
    {LENS("store", 4), .requests = 2, .faults = 1, .deaths = 1, .store = true, .fingerprints = true,
     .menu = {"reset external", "tenant", "sleep 1", "wake", NULL}},
};
#define NLENSES (sizeof lenses / sizeof lenses[0])
static const struct lens *lens;

/* ---- the world ---- */

enum link_state { LINK_UP, LINK_ENDING /* its calls have ended */, LINK_DOWN };

struct call {
    enum kvb_link_type type; /* EVENT: drain; REGISTER_REGION: register or unregister */
    bool register_;
    bool zombie;  /* the daemon gave it up, the engine has yet to get to it */
    bool stopped; /* drain_stop, or a resume that came before it was idle */
    bool finite;  /* it has a deadline */
    bool commit, preempt, left;
    uint32_t tags, offload; /* bits */
    enum kvb_pause_mode mode;
    char method[24];
    struct kvb_lineage lineage;
    struct kvb_token token;
    char name[32];
    kvp_rank_call_fn call_done;
    kvp_rank_done_fn done;
    void *arg;
};
struct rank {
    struct kvp_rank rank;
    struct kvp_instance *instance;
    enum link_state link;
    bool died; /* the process, not only its connection */
    enum kvb_residency residency[TAGS];
    bool registered[TAGS];
    bool released[TAGS]; /* unregistered, and not registered again */
    bool handed[TAGS];   /* handed over since */
    bool transfers;      /* a put or get runs that names kv_cache */
    bool written;
    uint32_t weights;
    struct kvb_lineage lineage; /* acknowledged */
    struct kvb_token token;
    char name[32];
    uint32_t ncalls;
    struct call calls[CALLS];
};
struct engine {
    bool paused, update;
    enum kvb_pause_mode mode;
    bool cached, stale; /* blocks of its own cache; of a stay that was left */
    bool local_reset_done;
    bool refused; /* a local reset, because blocks are held: a report follows */
};
struct request {
    uint8_t told; /* times */
    uint8_t menu;
    uint8_t client;
    uint64_t id;
    struct kvb_token token; /* of the stay in which it was asked */
};
enum coord_kind { COORD_RESOLVE, COORD_CHECK, COORD_RETIRE, COORD_TENANT, COORD_STEP };
struct coord {
    struct kvs_coord_request *request;
    enum coord_kind kind;
    char name[32];
    struct kvb_lineage lineage;
};
struct kvs_member {
    const struct kvs_member_ops *ops;
    void *ctx;
    bool open;
};
struct kvs_coordinator {
    int unused;
};
struct world {
    struct kvp_fleet *fleet;
    struct kvp_instance *instance;
    struct rank ranks[RANKS];
    struct engine engine;
    struct request requests[REQUESTS];
    uint32_t nrequests;
    uint32_t faults, deaths, tellings, cancels; /* left to come */
    /* P4: where each tag must be once all is quiet; UNKNOWN: anything (memory went, a rank died) */
    enum kvb_residency expected[TAGS];
    bool expect_any;
    /* coordinator */
    struct kvs_member member;
    struct kvs_coordinator coordinator;
    bool away;
    uint32_t ncoords;
    struct coord coords[COORD];
    struct {
        char name[32];
        struct kvb_lineage lineage;
    } names[NAMES];
    uint32_t nnames;
    bool tell;         /* a reset of the tenant is on its way to this member */
    bool told_pending; /* and has come: it has yet to say that it left */
};
struct clockwork { /* opaque: the timers in it are those of the objects */
    struct kvb_sched sched;
    struct kvb_clock clock;
    struct kvb_random random;
    uint64_t now_ns;
};
static struct world *world;
static struct clockwork *clockwork;

static uint64_t clock_now(void *ctx)
{
    return ((const struct clockwork *)ctx)->now_ns;
}

static void draw(void *ctx, void *buf, size_t len)
{
    (void)ctx;
    for (size_t i = 0; i < len; i += sizeof(uint64_t)) {
        uint64_t word = heap_draw();
        memcpy((char *)buf + i, &word, len - i < sizeof word ? len - i : sizeof word);
    }
}

/* Everything that is posted or due now. */
static void settle(void)
{
    for (uint32_t turns = 0; kvb_sched_turn(&clockwork->sched) <= clockwork->now_ns; turns++) {
        if (turns > 10000) {
            search_fail("the daemon never comes to rest by itself");
            return;
        }
    }
}

/* ---- the engine, as it truly is ---- */

static uint32_t tag_index(const char *tag)
{
    for (uint32_t t = 0; t < TAGS; t++) {
        if (strcmp(tag_names[t], tag) == 0) {
            return t;
        }
    }
    search_fail("a tag is named that the engine has not");
    return 0;
}

static bool rank_whole(const struct rank *rank)
{
    bool whole = rank->link == LINK_UP;
    for (uint32_t t = 0; t < TAGS; t++) {
        whole = whole && rank->residency[t] == KVB_RESIDENT && rank->registered[t];
    }
    return whole;
}

static bool engine_serves(void)
{
    bool serves = !world->engine.paused;
    for (uint32_t r = 0; r < RANKS; r++) {
        serves = serves && rank_whole(&world->ranks[r]);
    }
    return serves;
}

/* Work is never scheduled onto memory that is not there, nor asked for without a rank. */
static void judge_resume(bool asked)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct rank *rank = &world->ranks[r];
        for (uint32_t t = 0; t < TAGS; t++) {
            bool there = rank->residency[t] == KVB_RESIDENT || (!asked && rank->link != LINK_UP);
            if ((asked && rank->link == LINK_DOWN) || !there) {
                search_fail("work is scheduled onto %s of rank %u, which is not there",
                            tag_names[t], r);
            }
        }
    }
}

static struct call *new_call(void *impl, enum kvb_link_type type, uint64_t deadline_ns, void *arg)
{
    struct rank *rank = impl;
    kvb_assert(rank->ncalls < CALLS);
    struct call *call = &rank->calls[rank->ncalls++];
    memset(call, 0, sizeof *call);
    call->type = type;
    call->arg = arg;
    call->finite = deadline_ns != KVB_NEVER;
    if (!call->finite) {
        search_fail("P5: a call of %s has no deadline", kvb_link_info((uint16_t)type)->label);
    }
    return call;
}

/* It is there, and did not come only while an operation that it is no part of ends. */
static bool scheduler_known(void)
{
    const struct kvp_instance *instance = world->instance;
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        const struct kvp_session_of *session = &instance->sessions[i];
        if (session->rank == &world->ranks[0].rank) {
            return world->ranks[0].link == LINK_UP && !session->fresh;
        }
    }
    return false;
}

static void rank_call(void *impl, enum kvb_link_type type, const void *msg, uint64_t deadline_ns,
                      kvp_rank_call_fn done, void *arg)
{
    struct rank *rank = impl;
    struct call *call = new_call(rank, type, deadline_ns, arg);
    call->call_done = done;
    switch (type) {
    case KVB_LINK_LINEAGE: {
        const struct kvb_link_lineage *lineage = msg;
        call->lineage = lineage->lineage;
        call->token = lineage->token;
        call->left = lineage->left;
        snprintf(call->name, sizeof call->name, "%.31s", lineage->name);
        break;
    }
    case KVB_LINK_PAUSE:
        call->mode = ((const struct kvb_link_pause *)msg)->mode;
        break;
    case KVB_LINK_RESUME:
        judge_resume(true);
        for (uint32_t i = 0; i + 1 < rank->ncalls; i++) { /* what is not idle yet never will be */
            rank->calls[i].stopped =
                rank->calls[i].stopped || rank->calls[i].type == KVB_LINK_PAUSE;
        }
        break;
    case KVB_LINK_RESET_LOCAL:
        call->preempt = ((const struct kvb_link_reset_local *)msg)->preempt;
        break;
    case KVB_LINK_RELEASE: {
        const struct kvb_link_release *release = msg;
        call->commit = release->commit;
        for (uint32_t i = 0; i < release->ntags; i++) {
            uint32_t bit = 1u << tag_index(release->tags[i].tag);
            call->tags |= bit;
            call->offload |= release->tags[i].offload ? bit : 0;
            if (call->commit && !world->engine.paused && scheduler_known() &&
                rank->residency[tag_index(release->tags[i].tag)] == KVB_RESIDENT) {
                search_fail("memory of rank %u is to go while the scheduler runs",
                            rank->rank.index);
            }
        }
        break;
    }
    case KVB_LINK_RESTORE: {
        const struct kvb_link_restore *restore = msg;
        for (uint32_t i = 0; i < restore->ntags; i++) {
            call->tags |= 1u << tag_index(restore->tags[i]);
        }
        break;
    }
    case KVB_LINK_RELAY:
        snprintf(call->method, sizeof call->method, "%.23s",
                 ((const struct kvb_link_relay *)msg)->method);
        break;
    default:
        break;
    }
}

static void rank_drain(void *impl, bool abort, uint64_t deadline_ns, kvp_rank_done_fn done,
                       void *arg)
{
    struct call *call = new_call(impl, KVB_LINK_EVENT, deadline_ns, arg);
    call->preempt = abort;
    call->done = done;
}

static void rank_hurry_pauses(void *impl, uint64_t deadline_ns)
{
    (void)impl; /* any call may time out at any moment */
    (void)deadline_ns;
}

static void rank_drain_stop(void *impl)
{
    struct rank *rank = impl;
    for (uint32_t i = 0; i < rank->ncalls; i++) {
        rank->calls[i].stopped = rank->calls[i].stopped || rank->calls[i].type == KVB_LINK_EVENT;
    }
}

static struct kvp_drain_progress rank_progress(void *impl)
{
    const struct rank *rank = impl;
    return (struct kvp_drain_progress){.running = rank->transfers};
}

static void rank_stay_changed(void *impl)
{
    (void)impl;
}

static void memory_call(void *impl, bool register_, const char (*tags)[KVB_NAME_MAX],
                        uint32_t ntags, uint64_t deadline_ns, kvp_rank_done_fn done, void *arg)
{
    struct call *call = new_call(impl, KVB_LINK_REGISTER_REGION, deadline_ns, arg);
    call->register_ = register_;
    call->done = done;
    for (uint32_t i = 0; i < ntags; i++) {
        call->tags |= 1u << tag_index(tags[i]);
    }
}

static void rank_unregister(void *impl, const char (*tags)[KVB_NAME_MAX], uint32_t ntags,
                            uint64_t deadline_ns, kvp_rank_done_fn done, void *arg)
{
    memory_call(impl, false, tags, ntags, deadline_ns, done, arg);
}

static void rank_register(void *impl, const char (*tags)[KVB_NAME_MAX], uint32_t ntags,
                          kvp_rank_done_fn done, void *arg)
{
    memory_call(impl, true, tags, ntags, clockwork->now_ns, done, arg); /* bounded by the device */
}

static uint32_t rank_registered(void *impl, const char *tag, uint64_t *bytes_p)
{
    const struct rank *rank = impl;
    uint32_t n = 0;
    for (uint32_t t = 0; t < TAGS; t++) {
        n += rank->registered[t] && (tag == NULL || strcmp(tag, tag_names[t]) == 0);
    }
    if (bytes_p != NULL) {
        *bytes_p = n;
    }
    return n;
}

static void rank_each_region(void *impl, kvp_region_fn each, void *arg)
{
    (void)impl;
    (void)each;
    (void)arg;
}

static void rank_queues(void *impl, struct kvp_queue_view views[KVP_QUEUE_KINDS])
{
    (void)impl;
    memset(views, 0, KVP_QUEUE_KINDS * sizeof views[0]);
}

static bool rank_device(void *impl, struct kvt_device_info *info_p)
{
    (void)impl;
    (void)info_p;
    return false;
}

static const char *rank_cause(void *impl)
{
    (void)impl;
    return "";
}

static void rank_disconnect(void *impl, const char *reason)
{
    (void)impl;
    (void)reason;
    search_fail("the connector ends a connection");
}

static const struct kvp_rank_ops rank_ops = {
    .call = rank_call,
    .drain = rank_drain,
    .drain_stop = rank_drain_stop,
    .hurry_pauses = rank_hurry_pauses,
    .progress = rank_progress,
    .stay_changed = rank_stay_changed,
    .unregister = rank_unregister,
    .register_ = rank_register,
    .registered = rank_registered,
    .each_region = rank_each_region,
    .queues = rank_queues,
    .device = rank_device,
    .cause = rank_cause,
    .disconnect = rank_disconnect,
};

static void do_release(struct rank *rank, const struct call *call)
{
    for (uint32_t t = 0; t < TAGS; t++) {
        if ((call->tags & 1u << t) == 0) {
            continue;
        }
        if (rank->registered[t]) {
            search_fail("P3: rank %u is to release %s, which is registered", rank->rank.index,
                        tag_names[t]);
        }
        if (rank->transfers && rank->residency[t] == KVB_RESIDENT) {
            search_fail("P3: rank %u is to release %s under a transfer", rank->rank.index,
                        tag_names[t]);
        }
        if (!call->commit) {
            continue;
        }
        if (rank->residency[t] == KVB_DISCARDED && (call->offload & 1u << t) != 0) {
            search_fail("P4: rank %u is to keep aside %s, which is gone", rank->rank.index,
                        tag_names[t]);
        }
        rank->residency[t] = (call->offload & 1u << t) != 0 ? KVB_OFFLOADED : KVB_DISCARDED;
        rank->handed[t] = false;
    }
}

static void do_restore(struct rank *rank, const struct call *call)
{
    for (uint32_t t = 0; t < TAGS; t++) {
        if ((call->tags & 1u << t) != 0) {
            rank->residency[t] = KVB_RESIDENT;
            rank->handed[t] = true;
            rank->registered[t] = rank->registered[t] || !rank->released[t]; /* on arrival */
        }
    }
}

static kvb_status_t do_memory(struct rank *rank, const struct call *call)
{
    for (uint32_t t = 0; t < TAGS; t++) {
        bool named = (call->tags & 1u << t) != 0;
        if (named && call->register_ && rank->released[t] && !rank->handed[t]) {
            return KVB_ERR_BAD_STATE;
        }
    }
    for (uint32_t t = 0; t < TAGS; t++) {
        if ((call->tags & 1u << t) == 0) {
            continue;
        }
        if (call->register_ && rank->residency[t] != KVB_RESIDENT) {
            search_fail("P3: %s of rank %u is registered and is not mapped", tag_names[t],
                        rank->rank.index);
        }
        if (!call->register_ && rank->rank.stay->open) {
            search_fail("P1: open while memory of rank %u is unregistered", rank->rank.index);
        }
        rank->registered[t] = call->register_;
        rank->released[t] = !call->register_;
        rank->handed[t] = rank->handed[t] && call->register_;
        rank->transfers = rank->transfers && (call->register_ || t != KV);
    }
    return KVB_OK;
}

static void fill_state(const struct rank *rank, struct kvb_engine_state *state_p)
{
    const struct engine *engine = &world->engine;
    bool idle = true;
    for (uint32_t i = 0; i < world->ranks[0].ncalls; i++) {
        idle = idle && world->ranks[0].calls[i].type != KVB_LINK_PAUSE;
    }
    memset(state_p, 0, sizeof *state_p);
    state_p->paused = engine->paused && idle;
    state_p->pause_mode = engine->mode;
    state_p->weight_change_running = engine->update;
    state_p->weights_written = rank->written;
    state_p->local_reset_done = engine->local_reset_done;
    state_p->ntags = TAGS;
    for (uint32_t t = 0; t < TAGS; t++) {
        strcpy(state_p->tags[t].tag, tag_names[t]);
        state_p->tags[t].residency = rank->residency[t];
    }
}

/* What the call does in the engine, and its answer. */
static kvb_status_t effect(struct rank *rank, const struct call *call,
                           union kvp_rank_reply *reply_p, bool *has_reply_p)
{
    struct engine *engine = &world->engine;
    *has_reply_p = false;
    switch (call->type) {
    case KVB_LINK_LINEAGE:
        if (call->left && rank == &world->ranks[0]) {
            /* blocks of no stay are of an engine that has only just started */
            bool other = !kvb_token_equal(rank->token, call->token);
            engine->stale =
                engine->stale || (other && engine->cached && !kvb_id_none(rank->token.id));
            engine->local_reset_done = false;
        }
        rank->lineage = call->lineage;
        rank->token = call->token;
        memcpy(rank->name, call->name, sizeof rank->name);
        rank->written = false;
        return KVB_OK;
    case KVB_LINK_PAUSE:
        engine->paused = true;
        engine->mode = call->mode;
        return KVB_OK;
    case KVB_LINK_RESUME:
        judge_resume(false);
        engine->paused = false;
        return KVB_OK;
    case KVB_LINK_RESET_LOCAL:
        engine->cached = false;
        engine->stale = false;
        engine->local_reset_done = true;
        engine->refused = false;
        *has_reply_p = true;
        memset(reply_p, 0, sizeof *reply_p);
        return KVB_OK;
    case KVB_LINK_RELEASE:
        do_release(rank, call);
        return KVB_OK;
    case KVB_LINK_RESTORE:
        do_restore(rank, call);
        return KVB_OK;
    case KVB_LINK_FINGERPRINT:
        *has_reply_p = true;
        memset(reply_p, 0, sizeof *reply_p);
        snprintf(reply_p->fingerprint.name, sizeof reply_p->fingerprint.name, "w%u", rank->weights);
        return KVB_OK;
    case KVB_LINK_STATE:
        *has_reply_p = true;
        memset(reply_p, 0, sizeof *reply_p);
        fill_state(rank, &reply_p->state.state);
        return KVB_OK;
    case KVB_LINK_RELAY:
        *has_reply_p = true;
        memset(reply_p, 0, sizeof *reply_p);
        if (strcmp(call->method, "start_weight_update") == 0) {
            engine->update = true;
        } else if (strcmp(call->method, "finish_weight_update") == 0) {
            engine->update = false;
        } else if (strcmp(call->method, "update_weights") == 0) {
            rank->weights = 1;
            rank->written = true;
            reply_p->relay.weights_written = true;
            engine->stale = engine->stale || engine->cached; /* of other weights */
        }
        return KVB_OK;
    case KVB_LINK_EVENT:
        rank->transfers = false;
        return KVB_OK;
    case KVB_LINK_REGISTER_REGION:
        return do_memory(rank, call);
    default:
        search_fail("the engine is asked what it does not know");
        return KVB_OK;
    }
}

/* ---- events ---- */

enum how {
    HOW_OK,
    HOW_ERROR,    /* refused; nothing was done */
    HOW_LOST,     /* no answer by its deadline; nothing was done */
    HOW_LATE,     /* done, but the answer comes after its deadline */
    HOW_SLOW,     /* no answer by its deadline; done after that */
    HOW_BUSY,     /* a local reset: blocks are held */
    HOW_CUT,      /* of a rank whose connection has ended */
    HOW_LATE_WORK /* what was given up is done now */
};
static const char *const how_texts[] = {
    "is answered",
    "fails",
    "is not answered by its deadline (not done)",
    "is not answered by its deadline (done)",
    "is not answered by its deadline (will be done)",
    "is refused: blocks are held",
    "ends with its connection",
    "is done late",
};

enum event {
    EV_CALL, /* rank, call, how */
    EV_DIE,  /* rank; RANKS: all */
    EV_CUT,  /* the connection of rank ends; its process goes on. 2: what was asked is done */
    EV_GONE,
    EV_ATTACH,
    EV_ASK, /* client, menu */
    EV_CANCEL,
    EV_TIME,
    EV_COORD, /* which, how */
    EV_REACHED,
    EV_REPORT,
    EV_TOLD,
    EV_LEFT
};
#define CHOICE(event, a, b, c) ((uint16_t)((event) << 10 | (a) << 7 | (b) << 4 | (c)))

static const char *call_text(const struct call *call)
{
    if (call->type == KVB_LINK_EVENT) {
        return "drain";
    }
    if (call->type == KVB_LINK_REGISTER_REGION) {
        return call->register_ ? "register" : "unregister";
    }
    if (call->type == KVB_LINK_RELEASE) {
        return call->commit ? "release" : "offload";
    }
    return kvb_link_info((uint16_t)call->type)->label;
}

static void remove_call(struct rank *rank, uint32_t at)
{
    rank->ncalls--;
    memmove(&rank->calls[at], &rank->calls[at + 1], (rank->ncalls - at) * sizeof rank->calls[0]);
    memset(&rank->calls[rank->ncalls], 0, sizeof rank->calls[0]);
}

static void answer(const struct call *call, kvb_status_t status, const union kvp_rank_reply *reply)
{
    if (call->call_done != NULL) {
        call->call_done(call->arg, status, reply);
    } else {
        call->done(call->arg, status);
    }
}

static void end_call(struct rank *rank, uint32_t at, enum how how)
{
    struct call call = rank->calls[at];
    union kvp_rank_reply reply;
    bool has_reply = false;
    kvb_status_t status = KVB_OK;
    if (how == HOW_SLOW) {
        rank->calls[at].zombie = true;
        answer(&call, KVB_ERR_TIMEOUT, NULL);
        return;
    }
    remove_call(rank, at);
    switch (how) {
    case HOW_OK:
    case HOW_LATE:
    case HOW_LATE_WORK:
        if (call.stopped && call.type == KVB_LINK_PAUSE) {
            status = KVB_ERR_CANCELED;
        } else if (call.stopped) {
            status = KVB_ERR_CANCELED; /* a drain: it ended, or it was stopped */
        } else {
            status = effect(rank, &call, &reply, &has_reply);
        }
        break;
    case HOW_ERROR:
        status = call.type == KVB_LINK_REGISTER_REGION ? KVB_ERR_NO_MEMORY : KVB_ERR_INTERNAL;
        break;
    case HOW_BUSY:
        status = KVB_ERR_BUSY;
        memset(&reply, 0, sizeof reply);
        reply.reset_local.status = KVB_ERR_BUSY;
        reply.reset_local.blocks_held = 1;
        has_reply = true;
        world->engine.refused = true;
        break;
    case HOW_CUT:
        status = KVB_ERR_DISCONNECTED;
        break;
    case HOW_LOST:
    case HOW_SLOW:
        break;
    }
    if (how == HOW_LATE_WORK) {
        return;
    }
    if (how == HOW_LATE || how == HOW_LOST) {
        status = KVB_ERR_TIMEOUT;
        has_reply = false;
    }
    answer(&call, status, has_reply ? &reply : NULL);
}

static void end_calls(struct rank *rank)
{
    for (uint32_t i = 0; i < rank->ncalls;) {
        if (rank->calls[i].zombie) {
            remove_call(rank, i);
        } else {
            end_call(rank, i, HOW_CUT);
            settle();
        }
    }
}

static void die(uint32_t r)
{
    struct rank *rank = &world->ranks[r];
    if (rank->link == LINK_UP) {
        rank->link = LINK_ENDING;
        rank->died = true;
        for (uint32_t i = rank->ncalls; i-- > 0;) {
            if (rank->calls[i].zombie) {
                remove_call(rank, i);
            }
        }
    }
}

static void cut(uint32_t r, bool done)
{
    struct rank *rank = &world->ranks[r];
    rank->link = LINK_ENDING;
    for (uint32_t i = 0;
         i < rank->ncalls;) { /* what it got, it does; of the rest it hears nothing */
        struct call *call = &rank->calls[i];
        union kvp_rank_reply reply;
        bool has_reply;
        bool engines = call->type != KVB_LINK_EVENT && call->type != KVB_LINK_REGISTER_REGION;
        if (engines && (done || call->zombie)) {
            (void)effect(rank, call, &reply, &has_reply);
        }
        if (call->zombie) {
            remove_call(rank, i);
        } else {
            i++;
        }
    }
}

static void restart(struct rank *rank)
{
    for (uint32_t t = 0; t < TAGS; t++) {
        rank->residency[t] = KVB_RESIDENT;
    }
    rank->weights = 0;
    rank->written = false;
    memset(&rank->lineage, 0, sizeof rank->lineage);
    memset(&rank->token, 0, sizeof rank->token);
    memset(rank->name, 0, sizeof rank->name);
    if (rank == &world->ranks[0]) {
        world->engine = (struct engine){.local_reset_done = true};
    }
}

static void gone(uint32_t r)
{
    struct rank *rank = &world->ranks[r];
    end_calls(rank);
    rank->link = LINK_DOWN;
    for (uint32_t t = 0; t < TAGS; t++) {
        rank->registered[t] = rank->released[t] = rank->handed[t] = false;
    }
    rank->transfers = false;
    if (rank->died) {
        restart(rank);
        rank->died = false;
    }
    kvp_instance_rank_gone(rank->instance, &rank->rank, "connection closed");
}

static void attach(uint32_t r)
{
    struct rank *rank = &world->ranks[r];
    static struct kvb_link_hello hello;
    memset(&hello, 0, sizeof hello);
    hello.version = KVB_LINK_VERSION;
    hello.world_size = hello.local_world_size = RANKS;
    hello.block_tokens = 16;
    hello.rank = r;
    hello.roles = r == 0 ? KVB_ROLE_SCHEDULER | KVB_ROLE_WORKER : KVB_ROLE_WORKER;
    hello.flags = lens->fingerprints ? KVB_ENGINE_FINGERPRINTS : 0;
    strcpy(hello.instance, "a");
    strcpy(hello.tenant, "default");
    strcpy(hello.layout, "layout");
    hello.lineage = rank->lineage;
    hello.token = rank->token;
    memcpy(hello.lineage_name, rank->name, sizeof rank->name);
    fill_state(rank, &hello.state);
    rank->rank.ops = &rank_ops;
    rank->rank.impl = rank;
    char reason[256] = "";
    kvb_status_t status =
        kvp_fleet_hello(world->fleet, &hello, &rank->rank, reason, sizeof reason, &rank->instance);
    if (status != KVB_OK) {
        search_fail("hello refused: %s", reason);
        return;
    }
    if (world->instance == NULL) {
        world->instance = rank->instance;
        world->instance->lineage.asks = HEAP_ASK_BASE;
    }
    rank->link = LINK_UP;
    for (uint32_t t = 0; t < TAGS; t++) { /* what is there is handed over at once */
        rank->registered[t] = rank->residency[t] == KVB_RESIDENT;
        rank->released[t] = rank->handed[t] = false;
    }
}

/* ---- the coordinator ---- */

kvb_status_t kvs_member_open(struct kvs_coordinator *coordinator, const char *instance,
                             const struct kvs_space *space, const struct kvs_member_ops *ops,
                             void *ctx, struct kvs_member **member_p)
{
    (void)coordinator;
    (void)instance;
    (void)space;
    world->member = (struct kvs_member){.ops = ops, .ctx = ctx, .open = true};
    *member_p = &world->member;
    return KVB_OK;
}

static void coord_ask(struct kvs_coord_request *request, enum coord_kind kind, const char *name,
                      struct kvb_lineage lineage)
{
    kvb_assert(world->ncoords < COORD);
    struct coord *coord = &world->coords[world->ncoords++];
    *coord = (struct coord){.request = request, .kind = kind, .lineage = lineage};
    snprintf(coord->name, sizeof coord->name, "%.31s", name != NULL ? name : "");
}

void kvs_member_close(struct kvs_member *member)
{
    member->open = false;
    search_fail("the member is closed");
}

void kvs_member_resolve(struct kvs_member *member, const char *name,
                        struct kvs_coord_request *request)
{
    (void)member;
    coord_ask(request, COORD_RESOLVE, name, (struct kvb_lineage){{0, 0}});
}

void kvs_member_check(struct kvs_member *member, const char *name, struct kvb_lineage lineage,
                      struct kvs_coord_request *request)
{
    (void)member;
    coord_ask(request, COORD_CHECK, name, lineage);
}

void kvs_member_retire(struct kvs_member *member, const struct kvb_lineage *lineages, uint32_t n,
                       const char *name, uint64_t deadline_ns, struct kvs_coord_request *request)
{
    (void)member;
    if (deadline_ns == KVB_NEVER) {
        search_fail("P5: a retirement has no deadline");
    }
    coord_ask(request, COORD_RETIRE, name, n > 0 ? lineages[0] : (struct kvb_lineage){{0, 0}});
}

void kvs_tenant_reset(struct kvs_coordinator *coordinator, const char *tenant,
                      struct kvs_member *member, uint64_t deadline_ns,
                      struct kvs_coord_request *request)
{
    (void)coordinator;
    (void)tenant;
    (void)member;
    if (deadline_ns == KVB_NEVER) {
        search_fail("P5: a tenant's reset has no deadline");
    }
    coord_ask(request, COORD_TENANT, NULL, (struct kvb_lineage){{0, 0}});
    world->nnames = 0;
    memset(world->names, 0, sizeof world->names);
    world->tell = true; /* every instance is told, also this one */
}

void kvs_member_step(struct kvs_member *member, uint64_t epoch, uint64_t step,
                     struct kvs_coord_request *request)
{
    (void)member;
    (void)epoch;
    (void)step;
    coord_ask(request, COORD_STEP, NULL, (struct kvb_lineage){{0, 0}});
}

void kvs_member_leave(struct kvs_member *member, const char *name)
{
    (void)member;
    (void)name;
}

void kvs_member_abandon(struct kvs_member *member, struct kvb_lineage lineage)
{
    (void)member;
    (void)lineage;
}

void kvs_member_left(struct kvs_member *member, uint64_t retirement)
{
    (void)member;
    (void)retirement;
    for (uint32_t r = 0; r < RANKS; r++) {
        if (world->ranks[r].link == LINK_UP && world->instance->attached &&
            !kvb_token_equal(world->ranks[r].token, world->instance->lineage.token)) {
            search_fail("P1: says that it left, and rank %u has not acknowledged it", r);
        }
    }
    world->told_pending = false;
}

kvb_status_t kvs_member_publish(struct kvs_member *member, const char *text)
{
    (void)member;
    (void)text;
    return KVB_OK;
}

static void unbind(const char *name, struct kvb_lineage lineage)
{
    for (uint32_t i = 0; i < world->nnames;) {
        if (strcmp(world->names[i].name, name) == 0 ||
            kvb_id_equal(world->names[i].lineage.id, lineage.id)) {
            world->names[i] = world->names[--world->nnames];
            memset(&world->names[world->nnames], 0, sizeof world->names[0]);
        } else {
            i++;
        }
    }
}

static void coord_answer(uint32_t at, enum how how)
{
    struct coord coord = world->coords[at];
    struct kvs_coord_request *request = coord.request;
    kvb_status_t status = KVB_OK;
    world->ncoords--;
    memmove(&world->coords[at], &world->coords[at + 1],
            (world->ncoords - at) * sizeof world->coords[0]);
    memset(&world->coords[world->ncoords], 0, sizeof world->coords[0]);
    if (how != HOW_OK) {
        status = how == HOW_LOST ? KVB_ERR_TIMEOUT : KVB_ERR_UNAVAILABLE;
        world->away = world->away || status == KVB_ERR_UNAVAILABLE;
    }
    if (coord.kind == COORD_RETIRE && status != KVB_ERR_UNAVAILABLE) {
        unbind(coord.name, coord.lineage);
    }
    if (coord.kind == COORD_RESOLVE && status == KVB_OK) {
        uint32_t i = 0;
        while (i < world->nnames && strcmp(world->names[i].name, coord.name) != 0) {
            i++;
        }
        if (i == world->nnames) {
            kvb_assert(world->nnames < NAMES);
            memcpy(world->names[i].name, coord.name, sizeof coord.name);
            world->names[i].lineage.id.hi = heap_draw();
            world->names[i].lineage.id.lo = heap_draw();
            world->nnames++;
        }
        request->lineage = world->names[i].lineage;
    }
    if (coord.kind == COORD_CHECK && status == KVB_OK) {
        request->bound = false;
        for (uint32_t i = 0; i < world->nnames; i++) {
            request->bound =
                request->bound || (strcmp(world->names[i].name, coord.name) == 0 &&
                                   kvb_id_equal(world->names[i].lineage.id, coord.lineage.id));
        }
    }
    if (how == HOW_ERROR && world->member.open) {
        world->member.ops->reachable(world->member.ctx, false);
    }
    request->done(request, status);
}

/* ---- clients ---- */

static struct kvp_ask menu_ask(const char *words)
{
    static const struct {
        const char *verb;
        enum kvp_operation operation;
        const char *method;
    } verbs[] = {
        {"pause", KVP_OP_PAUSE, ""},
        {"resume", KVP_OP_RESUME, ""},
        {"sleep", KVP_OP_SLEEP, ""},
        {"wake", KVP_OP_WAKE, ""},
        {"release", KVP_OP_RELEASE, ""},
        {"reset", KVP_OP_RESET, ""},
        {"start", KVP_OP_START_UPDATE, "start_weight_update"},
        {"update", KVP_OP_UPDATE, "update_weights"},
        {"finish", KVP_OP_FINISH_UPDATE, "finish_weight_update"},
        {"tenant", KVP_OP_TENANT_RESET, ""},
    };
    struct kvp_ask ask;
    memset(&ask, 0, sizeof ask);
    size_t len = strcspn(words, " ");
    const char *rest = words[len] == ' ' ? words + len + 1 : "";
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strlen(verbs[i].verb) == len && strncmp(verbs[i].verb, words, len) == 0) {
            ask.operation = verbs[i].operation;
            strcpy(ask.method, verbs[i].method);
        }
    }
    if (ask.operation == KVP_OP_SLEEP) {
        ask.level = (uint32_t)(rest[0] - '0');
    } else if (strcmp(rest, "keep") == 0) {
        ask.mode = KVP_MODE_KEEP;
    } else if (strcmp(rest, "external") == 0) {
        ask.reset_external = KVP_YES;
    } else if (rest[0] != '\0') {
        ask.tags_given = true;
        ask.ntags = 1;
        strcpy(ask.tags[0], rest);
    }
    return ask;
}

static void expect(uint32_t tag, enum kvb_residency residency)
{
    world->expected[tag] = residency;
}

/* What an answer says must be so, now, on every rank. */
static void judge_told(const struct request *request, const struct kvp_outcome *outcome)
{
    const char *words = lens->menu[request->menu];
    struct kvp_ask ask = menu_ask(words);
    const struct kvp_instance *instance = world->instance;
    bool whole = instance->attached;
    for (uint32_t r = 0; r < RANKS; r++) {
        whole = whole && world->ranks[r].link == LINK_UP;
    }
    if (outcome->status != KVB_OK && outcome->message[0] == '\0') {
        search_fail("%s failed and says nothing", words);
    }
    if (!whole && outcome->status == KVB_OK && instance->running == NULL && !instance->attached) {
        search_fail("P4: %s succeeded, and a rank is gone", words);
    }
    if (!whole || outcome->status != KVB_OK) {
        return;
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct rank *rank = &world->ranks[r];
        for (uint32_t t = 0; t < TAGS; t++) {
            bool woken = ask.operation == KVP_OP_WAKE &&
                         (!ask.tags_given || strcmp(ask.tags[0], tag_names[t]) == 0);
            bool slept = ask.operation == KVP_OP_SLEEP || ask.operation == KVP_OP_RELEASE;
            bool gone_now = t == KV || ask.level == 2;
            if (woken && (rank->residency[t] != KVB_RESIDENT || !rank->registered[t])) {
                search_fail("P4: %s succeeded, and %s of rank %u is not there", words, tag_names[t],
                            r);
            }
            if (slept && (gone_now ? rank->residency[t] != KVB_DISCARDED
                                   : rank->residency[t] == KVB_RESIDENT)) {
                search_fail("P4: %s succeeded, and %s of rank %u is %s", words, tag_names[t], r,
                            kvb_residency_text(rank->residency[t]));
            }
            enum kvb_residency says = outcome->view->tags[t].residency;
            bool lost = says == KVB_UNKNOWN && instance->reconcile; /* and knows that it is */
            if (says != rank->residency[t] && !lost) {
                search_fail("P3: %s succeeded, and says that %s is %s: on rank %u it is %s", words,
                            outcome->view->tags[t].tag, kvb_residency_text(says), r,
                            kvb_residency_text(rank->residency[t]));
            }
        }
        bool leaves = ask.operation == KVP_OP_RESET && ask.reset_external == KVP_YES;
        if (leaves && kvb_token_equal(rank->token, request->token)) {
            search_fail("P1: %s succeeded, and rank %u is in the stay in which it was asked", words,
                        r);
        }
    }
    if ((ask.operation == KVP_OP_SLEEP || ask.operation == KVP_OP_RELEASE ||
         ask.operation == KVP_OP_PAUSE) &&
        !world->engine.paused) {
        search_fail("P4: %s succeeded, and the scheduler runs", words);
    }
    if (ask.operation == KVP_OP_RESUME && !engine_serves()) {
        search_fail("P4: %s succeeded, and the engine does not serve", words);
    }
    if (ask.operation == KVP_OP_RESET && world->engine.stale) {
        search_fail("P1: %s succeeded, and the engine's own cache was not reset", words);
    }
}

static void note_expected(const struct request *request, const struct kvp_outcome *outcome)
{
    struct kvp_ask ask = menu_ask(lens->menu[request->menu]);
    const struct kvp_op *running = world->instance->running;
    (void)running;
    if (outcome->status != KVB_OK) {
        if (outcome->view != NULL && outcome->view->degraded) {
            world->expect_any = true; /* forward only: it may have gone any part of the way */
        }
        return;
    }
    for (uint32_t t = 0; t < TAGS; t++) {
        if (ask.operation == KVP_OP_SLEEP || ask.operation == KVP_OP_RELEASE) {
            enum kvb_residency now = world->expected[t];
            bool gone_now = t == KV || ask.level == 2;
            expect(t, gone_now || now == KVB_DISCARDED ? KVB_DISCARDED : KVB_OFFLOADED);
        } else if (ask.operation == KVP_OP_WAKE &&
                   (!ask.tags_given || strcmp(ask.tags[0], tag_names[t]) == 0)) {
            expect(t, KVB_RESIDENT);
        }
    }
}

static void on_told(void *arg, const struct kvp_outcome *outcome)
{
    struct request *request = arg;
    if (++request->told > 1) {
        search_fail("P5: %s is answered twice", lens->menu[request->menu]);
        return;
    }
    judge_told(request, outcome);
    note_expected(request, outcome);
    memset(&request->token, 0, sizeof request->token);
    request->id = 0;
}

static struct request *pending_of(uint32_t client)
{
    for (uint32_t i = 0; i < world->nrequests; i++) {
        if (world->requests[i].client == client && world->requests[i].told == 0) {
            return &world->requests[i];
        }
    }
    return NULL;
}

static bool any_pending(void)
{
    for (uint32_t i = 0; i < world->nrequests; i++) {
        if (world->requests[i].told == 0) {
            return true;
        }
    }
    return false;
}

static void ask(uint32_t client, uint32_t menu)
{
    struct request *request = &world->requests[world->nrequests++];
    struct kvp_ask what = menu_ask(lens->menu[menu]);
    *request = (struct request){
        .menu = (uint8_t)menu, .client = (uint8_t)client, .token = world->instance->stay.token};
    world->fleet->last_op_id = heap_draw();
    kvb_status_t status =
        kvp_fleet_request(world->fleet, "a", &what, "r", on_told, request, &request->id);
    if (status != KVB_OK || request->told != 0) {
        search_fail("P5: %s is answered inside of the call", lens->menu[menu]);
    }
}

/* ---- choices ---- */

static bool blocked(const struct rank *rank, uint32_t at)
{
    const struct call *call = &rank->calls[at];
    bool engines = call->type != KVB_LINK_EVENT && call->type != KVB_LINK_REGISTER_REGION;
    for (uint32_t i = 0; i < at; i++) {
        const struct call *before = &rank->calls[i];
        if (before->type == call->type && !before->zombie) {
            return true; /* in their order */
        }
        if (engines && before->zombie) {
            return true; /* the engine is still at that */
        }
    }
    return false;
}

static uint32_t call_choices(uint32_t r, uint16_t *out, bool faults)
{
    const struct rank *rank = &world->ranks[r];
    uint32_t n = 0;
    for (uint32_t i = 0; i < rank->ncalls; i++) {
        const struct call *call = &rank->calls[i];
        bool engines = call->type != KVB_LINK_EVENT && call->type != KVB_LINK_REGISTER_REGION;
        bool stuck = blocked(rank, i);
        if (rank->link == LINK_ENDING) {
            out[n++] = CHOICE(EV_CALL, r, i, HOW_CUT);
            continue;
        }
        if (call->zombie) {
            if (!stuck) {
                out[n++] = CHOICE(EV_CALL, r, i, HOW_LATE_WORK);
            }
            continue;
        }
        if (!stuck) {
            out[n++] = CHOICE(EV_CALL, r, i, HOW_OK);
        }
        if (!faults || call->stopped) {
            continue;
        }
        if (!stuck) {
            out[n++] = CHOICE(EV_CALL, r, i, HOW_ERROR);
        }
        if (call->type == KVB_LINK_REGISTER_REGION && call->register_) {
            continue;
        }
        out[n++] = CHOICE(EV_CALL, r, i, HOW_LOST);
        if (engines && call->type != KVB_LINK_STATE && call->type != KVB_LINK_FINGERPRINT) {
            if (!stuck) {
                out[n++] = CHOICE(EV_CALL, r, i, HOW_LATE);
            }
            out[n++] = CHOICE(EV_CALL, r, i, HOW_SLOW);
        }
        if (call->type == KVB_LINK_RESET_LOCAL && !call->preempt && !stuck) {
            out[n++] = CHOICE(EV_CALL, r, i, HOW_BUSY);
        }
    }
    return n;
}

/* A reset is done when every member has left. */
static bool coord_can(const struct coord *coord)
{
    return coord->kind != COORD_TENANT || (!world->tell && !world->told_pending);
}

/* And may end because a member did not. */
static bool coord_waits(const struct coord *coord)
{
    return coord->kind == COORD_TENANT || coord->kind == COORD_RETIRE;
}

static bool timers(void)
{
    return clockwork->sched.heap_len > 0;
}

static uint32_t choices(uint16_t out[SEARCH_CHOICES_MAX])
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        n += call_choices(r, out + n, world->faults > 0);
        const struct rank *rank = &world->ranks[r];
        if (rank->link == LINK_ENDING) {
            out[n++] = CHOICE(EV_GONE, r, 0, 0);
        } else if (rank->link == LINK_DOWN) {
            out[n++] = CHOICE(EV_ATTACH, r, 0, 0);
        } else if (world->deaths > 0) {
            out[n++] = CHOICE(EV_DIE, r, 0, 0);
            out[n++] = CHOICE(EV_CUT, r, 0, 0);
            if (rank->ncalls > 0) {
                out[n++] = CHOICE(EV_CUT, r, 1, 0);
            }
        }
    }
    if (world->deaths > 0 && world->ranks[0].link == LINK_UP && world->ranks[1].link == LINK_UP) {
        out[n++] = CHOICE(EV_DIE, RANKS, 0, 0);
    }
    for (uint32_t c = 0; c < CLIENTS; c++) {
        const struct request *mine = pending_of(c);
        if (mine == NULL && world->nrequests < lens->requests) {
            for (uint32_t m = 0; lens->menu[m] != NULL; m++) {
                out[n++] = CHOICE(EV_ASK, c, m & 7, m >> 3);
            }
            break; /* clients differ in nothing but what they wait for */
        }
    }
    for (uint32_t c = 0; c < CLIENTS && world->cancels > 0; c++) {
        if (pending_of(c) != NULL) {
            out[n++] = CHOICE(EV_CANCEL, c, 0, 0);
        }
    }
    for (uint32_t i = 0; i < world->ncoords; i++) {
        if (coord_can(&world->coords[i])) {
            out[n++] = CHOICE(EV_COORD, 0, i, HOW_OK);
        }
        if (world->faults > 0) {
            out[n++] = CHOICE(EV_COORD, 0, i, HOW_ERROR);
            if (coord_waits(&world->coords[i])) {
                out[n++] = CHOICE(EV_COORD, 0, i, HOW_LOST);
            }
        }
    }
    if (world->away) {
        out[n++] = CHOICE(EV_REACHED, 0, 0, 0);
    }
    if (world->engine.refused && world->ranks[0].link == LINK_UP) {
        out[n++] = CHOICE(EV_REPORT, 0, 0, 0);
    }
    if (world->tellings > 0 || world->tell) {
        out[n++] = CHOICE(EV_TOLD, 0, 0, 0);
    }
    if (timers()) {
        out[n++] = CHOICE(EV_TIME, 0, 0, 0);
    }
    kvb_assert(n <= SEARCH_CHOICES_MAX);
    return n;
}

/* History, which changes nothing of what comes: so that states are seen to be the same. */
static void scrub_op(struct kvp_op *op)
{
    struct kvp_operation_record *record = &op->record;
    uint64_t id = record->id;
    enum kvp_operation operation = record->operation;
    memset(record, 0, sizeof *record);
    record->id = id;
    record->operation = operation;
    op->blamed = true;
    op->step_ns = 0;
    if (op->message[0] != '\0') {
        memset(op->message, 0, sizeof op->message);
        op->message[0] = '.';
    }
}

static void scrub(void)
{
    struct kvp_fleet *fleet = world->fleet;
    struct kvp_instance *instance = world->instance;
    fleet->nrecords = 0;
    fleet->nleavings = 0;
    fleet->last_op_id = heap_draw();
    if (instance->message[0] != '\0') {
        memset(instance->message, 0, sizeof instance->message);
        instance->message[0] = '.';
    }
    if (instance->running != NULL) {
        scrub_op(instance->running);
    }
    kvb_list_each(&instance->waiting, link)
    {
        scrub_op(kvb_container_of(link, struct kvp_op, link));
    }
    kvb_list_each(&instance->beside, link)
    {
        scrub_op(kvb_container_of(link, struct kvp_op, link));
    }
    fleet->last_op_id = 0;
}

static void apply(uint16_t choice)
{
    uint32_t a = (choice >> 7) & 7;
    uint32_t b = (choice >> 4) & 7;
    uint32_t c = choice & 15;
    heap_enter();
    world->fleet->last_op_id = heap_draw();
    switch ((enum event)(choice >> 10)) {
    case EV_CALL:
        if (c != HOW_OK && c != HOW_CUT && c != HOW_LATE_WORK) {
            world->faults -= world->faults > 0;
            world->ranks[a].calls[b].finite = true;
        }
        end_call(&world->ranks[a], b, (enum how)c);
        break;
    case EV_DIE:
        world->deaths--;
        for (uint32_t r = 0; r < RANKS; r++) {
            if (r == a || a == RANKS) {
                die(r);
            }
        }
        world->expect_any = true;
        break;
    case EV_CUT:
        world->deaths--;
        cut(a, b == 1);
        world->expect_any = world->expect_any || any_pending();
        break;
    case EV_GONE:
        gone(a);
        break;
    case EV_ATTACH:
        attach(a);
        break;
    case EV_ASK:
        ask(a, b | c << 3);
        break;
    case EV_CANCEL:
        world->cancels--;
        (void)!kvp_fleet_cancel(world->fleet, pending_of(a)->id);
        break;
    case EV_TIME: {
        const struct kvb_timer *first = clockwork->sched.heap[0];
        clockwork->now_ns =
            first->deadline_ns > clockwork->now_ns ? first->deadline_ns : clockwork->now_ns;
        break;
    }
    case EV_COORD:
        world->faults -= c != HOW_OK && world->faults > 0;
        coord_answer(b, (enum how)c);
        break;
    case EV_REACHED:
        world->away = false;
        world->member.ops->reachable(world->member.ctx, true);
        break;
    case EV_REPORT: {
        struct kvb_load load = {0};
        world->engine.refused = false;
        kvp_instance_report(world->instance, &world->ranks[0].rank, &load);
        break;
    }
    case EV_TOLD:
        if (!world->tell) {
            world->tellings--;
            world->nnames = 0;
            memset(world->names, 0, sizeof world->names);
        }
        world->tell = false;
        world->told_pending = true;
        world->member.ops->told_tenant(world->member.ctx, heap_draw());
        break;
    case EV_LEFT:
        break;
    }
    settle();
    /* What runs, computes: blocks of the engine's own cache, puts and gets. */
    if (engine_serves()) {
        world->engine.cached = true;
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        struct rank *rank = &world->ranks[r];
        rank->transfers = rank->transfers || (rank->link == LINK_UP && rank->rank.stay->open);
    }
    scrub();
    heap_leave();
}

static void describe(uint16_t choice, char *out, size_t cap)
{
    uint32_t a = (choice >> 7) & 7;
    uint32_t b = (choice >> 4) & 7;
    uint32_t c = choice & 15;
    switch ((enum event)(choice >> 10)) {
    case EV_CALL:
        snprintf(out, cap, "rank %u: %s %s", a,
                 a < RANKS && b < world->ranks[a].ncalls ? call_text(&world->ranks[a].calls[b])
                                                         : "?",
                 c < sizeof how_texts / sizeof how_texts[0] ? how_texts[c] : "?");
        break;
    case EV_DIE:
        snprintf(out, cap, a == RANKS ? "the engine dies" : "rank %u dies", a);
        break;
    case EV_CUT:
        snprintf(out, cap, "rank %u loses its connection%s", a,
                 b == 1 ? " (what it was asked is done)" : "");
        break;
    case EV_GONE:
        snprintf(out, cap, "rank %u is gone", a);
        break;
    case EV_ATTACH:
        snprintf(out, cap, "rank %u attaches", a);
        break;
    case EV_ASK:
        snprintf(out, cap, "client %u: %s", a, lens->menu[b | c << 3]);
        break;
    case EV_CANCEL:
        snprintf(out, cap, "client %u cancels", a);
        break;
    case EV_TIME:
        snprintf(out, cap, "time passes to the next timer");
        break;
    case EV_COORD:
        snprintf(out, cap, "the coordinator %s",
                 c == HOW_OK     ? "answers"
                 : c == HOW_LOST ? "waited in vain"
                                 : "cannot be reached");
        break;
    case EV_REACHED:
        snprintf(out, cap, "the coordinator is back");
        break;
    case EV_REPORT:
        snprintf(out, cap, "no block is held any more");
        break;
    case EV_TOLD:
        snprintf(out, cap, "another resets the tenant");
        break;
    case EV_LEFT:
        break;
    }
}

/* ---- what must be so ---- */

/* Nobody works at it, and nobody is about to. */
static bool quiet(void)
{
    const struct kvp_instance *instance = world->instance;
    bool calls =
        world->ncoords > 0 || world->tell || world->away || world->engine.refused || timers();
    for (uint32_t r = 0; r < RANKS; r++) {
        calls = calls || world->ranks[r].ncalls > 0 || world->ranks[r].link != LINK_UP;
    }
    return !calls && !any_pending() && instance->running == NULL && !instance->reconcile;
}

static void judge_memory(void)
{
    const struct kvp_instance *instance = world->instance;
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct rank *rank = &world->ranks[r];
        for (uint32_t t = 0; t < TAGS; t++) {
            if (rank->registered[t] && rank->residency[t] != KVB_RESIDENT) {
                search_fail("P3: %s of rank %u is registered and is not mapped", tag_names[t], r);
            }
        }
    }
    /* What the daemon believes of each rank, unless it knows that it does not know. */
    for (uint32_t i = 0; i < instance->nsessions; i++) {
        const struct kvp_session_of *session = &instance->sessions[i];
        const struct rank *rank = session->rank->impl;
        bool working = false;
        for (uint32_t c = 0; c < rank->ncalls; c++) {
            working = working || rank->calls[c].zombie;
        }
        for (uint32_t t = 0; t < session->state.ntags && !session->unknown && !working; t++) {
            if (rank->link == LINK_UP && session->state.tags[t].residency != rank->residency[t]) {
                search_fail("P3: %s of rank %u is %s, and the daemon takes it for %s", tag_names[t],
                            rank->rank.index, kvb_residency_text(rank->residency[t]),
                            kvb_residency_text(session->state.tags[t].residency));
            }
        }
    }
}

static void judge_view(void)
{
    struct kvp_view view;
    kvp_instance_fill_view(world->instance, &view);
    if (view.ready && !engine_serves()) {
        bool known = true;
        for (uint32_t r = 0; r < RANKS; r++) { /* of a pause that is on its way nobody can know */
            known = known && world->ranks[r].link == LINK_UP;
            for (uint32_t i = 0; i < world->ranks[r].ncalls; i++) {
                known = known && !world->ranks[r].calls[i].zombie;
            }
        }
        if (known) {
            search_fail("P3: says that it is ready, and the engine does not serve");
        }
    }
    if (world->instance->running == NULL && view.attached) {
        for (uint32_t t = 0; t < view.ntags; t++) {
            for (uint32_t r = 0; r < RANKS; r++) {
                const struct rank *rank = &world->ranks[r];
                bool working = false;
                for (uint32_t c = 0; c < rank->ncalls; c++) {
                    working = working || rank->calls[c].zombie;
                }
                if (rank->link == LINK_UP && !working &&
                    !kvp_instance_any_unknown(world->instance) &&
                    view.tags[t].residency != KVB_UNKNOWN &&
                    view.tags[t].residency != rank->residency[t]) {
                    search_fail("P3: says that %s is %s: on rank %u it is %s", view.tags[t].tag,
                                kvb_residency_text(view.tags[t].residency), r,
                                kvb_residency_text(rank->residency[t]));
                }
            }
        }
    }
    if (view.waiting_operations > KVP_WAITING_MAX) {
        search_fail("P5: more wait than may");
    }
}

static void judge_open(void)
{
    const struct kvp_stay *stay = &world->instance->stay;
    if (!stay->open) {
        return;
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct rank *rank = &world->ranks[r];
        if (rank->link != LINK_UP) {
            continue;
        }
        /* a join changes the token, and is acknowledged while it is open */
        if (!kvb_token_equal(rank->token, stay->token) &&
            world->instance->lineage.ack != KVP_ACK_JOIN) {
            search_fail("P1: open before rank %u acknowledged its stay", r);
        }
        for (uint32_t t = 0; t < TAGS; t++) {
            if (rank->residency[t] != KVB_RESIDENT) {
                search_fail("P1: open, and %s of rank %u is not there", tag_names[t], r);
            }
        }
    }
    if (world->engine.stale && world->ranks[0].link == LINK_UP) {
        search_fail("P1: open, and the engine's own cache has blocks of a stay that was left");
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        for (uint32_t i = 0; i < world->ranks[r].ncalls; i++) {
            if (strcmp(world->ranks[r].calls[i].method, "update_weights") == 0) {
                search_fail("P1: open while weights of rank %u are being written", r);
            }
        }
    }
}

static void judge_rest(void)
{
    const struct kvp_instance *instance = world->instance;
    const struct kvp_fsm *fsm = &instance->fsm;
    bool degraded = (fsm->stopped_by & KVP_STOPPED_BY_DEGRADED) != 0;
    if (kvp_instance_any_unknown(instance)) {
        search_fail("P4: at rest, and does not know what a rank is");
    }
    for (uint32_t t = 0; t < TAGS; t++) {
        const struct kvb_tag_state *tag = kvp_fsm_find_tag(fsm, tag_names[t]);
        for (uint32_t r = 0; r < RANKS; r++) {
            const struct rank *rank = &world->ranks[r];
            if (!degraded && rank->residency[t] != world->ranks[0].residency[t]) {
                search_fail("P4: at rest, and %s is %s on rank 0 and %s on rank %u", tag_names[t],
                            kvb_residency_text(world->ranks[0].residency[t]),
                            kvb_residency_text(rank->residency[t]), r);
            }
            if (!degraded && tag->residency != rank->residency[t]) {
                search_fail("P3: at rest, and says that %s is %s: on rank %u it is %s",
                            tag_names[t], kvb_residency_text(tag->residency), r,
                            kvb_residency_text(rank->residency[t]));
            }
            if (!degraded && !world->expect_any && rank->residency[t] != world->expected[t]) {
                search_fail("P4: at rest, %s of rank %u should be %s and is %s", tag_names[t], r,
                            kvb_residency_text(world->expected[t]),
                            kvb_residency_text(rank->residency[t]));
            }
            if (!degraded && rank->residency[t] == KVB_RESIDENT && !rank->registered[t]) {
                search_fail("P4: at rest, and %s of rank %u is not registered", tag_names[t], r);
            }
        }
    }
    if (fsm->stopped_by == 0 && !engine_serves()) {
        search_fail("P4: at rest, nobody stopped it, and the engine does not serve");
    }
    if (fsm->stopped_by != 0 && !world->engine.paused) {
        search_fail("P3: at rest, says that it is stopped, and the scheduler runs");
    }
    if (fsm->stopped_by == 0 && !world->engine.update && fsm->bracket == KVP_BRACKET_NONE &&
        !instance->stay.open) {
        search_fail("P4: at rest and serving, and never opens again");
    }
    if (world->told_pending) {
        search_fail("P5: was told of a retirement, and never says that it left");
    }
}

static void judge(void)
{
    judge_memory();
    judge_view();
    judge_open();
    if (quiet()) {
        judge_rest();
    }
}

/* ---- to the end ---- */

enum way { WAY_WELL, WAY_MUTE };

static const char *way_text(uint32_t way)
{
    return way == WAY_WELL ? "from here on everything goes well"
                           : "from here on nobody answers the daemon";
}

/* A weight update whose end nobody knows: the daemon asks until a client ends it. */
static bool open_bracket(void)
{
    return !any_pending() && world->instance->fsm.bracket == KVP_BRACKET_UNKNOWN &&
           world->engine.update;
}

static bool rest(uint32_t way)
{
    return way == WAY_WELL ? quiet() || open_bracket() : !any_pending();
}

static uint16_t follow(uint32_t way)
{
    uint16_t out[SEARCH_CHOICES_MAX];
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct rank *rank = &world->ranks[r];
        uint32_t n = call_choices(r, out, false);
        if (way == WAY_WELL && n > 0) {
            return out[0];
        }
        for (uint32_t i = 0; way == WAY_MUTE && i < rank->ncalls; i++) {
            const struct call *call = &rank->calls[i];
            if (call->zombie) {
                continue;
            }
            if (rank->link == LINK_ENDING) {
                return CHOICE(EV_CALL, r, i, HOW_CUT);
            }
            if (call->finite) {
                bool device = call->type == KVB_LINK_REGISTER_REGION && call->register_;
                return CHOICE(EV_CALL, r, i, device ? HOW_ERROR : HOW_LOST);
            }
        }
        if (rank->link == LINK_ENDING) {
            return CHOICE(EV_GONE, r, 0, 0);
        }
        if (way == WAY_WELL && rank->link == LINK_DOWN) {
            return CHOICE(EV_ATTACH, r, 0, 0);
        }
    }
    if (way == WAY_WELL && world->tell) {
        return CHOICE(EV_TOLD, 0, 0, 0);
    }
    for (uint32_t i = 0; i < world->ncoords; i++) {
        if (way == WAY_MUTE || coord_can(&world->coords[i])) {
            return CHOICE(EV_COORD, 0, i,
                          way == WAY_WELL                  ? HOW_OK
                          : coord_waits(&world->coords[i]) ? HOW_LOST
                                                           : HOW_ERROR);
        }
    }
    if (way == WAY_WELL && world->away) {
        return CHOICE(EV_REACHED, 0, 0, 0);
    }
    if (way == WAY_WELL && world->engine.refused) {
        return CHOICE(EV_REPORT, 0, 0, 0);
    }
    if (timers()) {
        return CHOICE(EV_TIME, 0, 0, 0);
    }
    return world->ncoords > 0 ? CHOICE(EV_COORD, 0, 0, HOW_LOST) : SEARCH_NONE;
}

/* ---- the search ---- */

static void hash(uint64_t hash_p[2])
{
    const void *roots[] = {world};
    const uint32_t *flags[KVP_WAITING_MAX + 2 * REQUESTS];
    uint32_t n = 0;
    const struct kvp_instance *instance = world->instance;
    flags[n++] = &instance->reconcile_timer.slot;
    if (instance->running != NULL) {
        flags[n++] = &instance->running->timer.slot;
    }
    kvb_list_each(&instance->waiting, link)
    {
        flags[n++] = &kvb_container_of(link, struct kvp_op, link)->timer.slot;
    }
    kvb_list_each(&instance->beside, link)
    {
        flags[n++] = &kvb_container_of(link, struct kvp_op, link)->timer.slot;
    }
    heap_hash(roots, 1, flags, n, clockwork->now_ns, hash_p);
}

static void all_goes_well(void)
{
    while (!quiet() && !search_failed()) {
        uint16_t choice = follow(WAY_WELL);
        kvb_assert(choice != SEARCH_NONE);
        apply(choice);
        heap_enter();
    }
}

static void create(const struct explore_lens *chosen)
{
    lens = (const struct lens *)(const void *)chosen; /* it begins with it */
    heap_clear();
    heap_enter();
    world = calloc(1, sizeof *world);
    clockwork = calloc(1, sizeof *clockwork);
    kvb_assert(world != NULL && clockwork != NULL);
    heap_opaque(clockwork);
    clockwork->now_ns = HEAP_TIME_BASE;
    clockwork->clock = (struct kvb_clock){.now_ns = clock_now, .ctx = clockwork};
    clockwork->random = (struct kvb_random){.fill = draw, .ctx = clockwork};
    kvb_sched_init(&clockwork->sched, &clockwork->clock, &clockwork->random);
    struct kvp_fleet_config config = {
        .sched = &clockwork->sched,
        .coordinator = lens->store ? &world->coordinator : NULL,
        .bounds = {.drain_ms = 480000,
                   .transfer_ms = 60000,
                   .abort_ms = 200,
                   .slot_wait_ms = 30000,
                   .retire_ms = 10000,
                   .forward_retry_ms = 1000,
                   .forward_tries = 1},
    };
    kvb_status_t status = kvp_fleet_create(&config, &world->fleet);
    kvb_assert(status == KVB_OK);
    struct kvp_fleet *fleet = world->fleet;
    heap_hole(fleet->records, sizeof fleet->records);
    heap_hole(fleet->leavings, sizeof fleet->leavings);
    world->faults = lens->faults;
    world->deaths = lens->deaths;
    world->tellings = lens->store ? 1 : 0;
    world->cancels = lens->cancels ? 1 : 0;
    world->engine.local_reset_done = true;
    for (uint32_t r = 0; r < RANKS; r++) {
        for (uint32_t t = 0; t < TAGS; t++) {
            world->ranks[r].residency[t] = world->expected[t] = KVB_RESIDENT;
        }
        attach(r);
    }
    settle();
    all_goes_well(); /* until it is open */
    for (uint32_t m = 0; lens->before != NULL && lens->menu[m] != NULL; m++) {
        if (strcmp(lens->menu[m], lens->before) == 0) {
            ask(0, m);
            settle();
            all_goes_well();
            memset(world->requests, 0, sizeof world->requests);
            world->nrequests = 0;
        }
    }
    scrub();
    heap_leave();
    heap_first();
}

static const struct search_model model = {
    .begin = heap_begin,
    .choices = choices,
    .apply = apply,
    .judge = judge,
    .hash = hash,
    .describe = describe,
    .save = heap_mark,
    .load = heap_back,
    .nways = 2,
    .follow = follow,
    .rest = rest,
    .way_text = way_text,
};

const struct explore explore = {
    .model = &model,
    .lenses = &lenses[0].base,
    .lens_bytes = sizeof lenses[0],
    .nlenses = NLENSES,
    .create = create,
};
