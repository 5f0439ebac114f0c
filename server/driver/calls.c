/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/engine.h"
#include "metrics.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_AGAIN_MS 100 /* between two looks at whether it is idle */

const char *const kvp_engine_tag_names[KVP_ENGINE_TAGS] = {
    [KVP_TAG_WEIGHTS] = "weights", [KVP_TAG_KV] = "kv_cache"};

/* ---- its end ---- */

/* Who asked hears of it; once. */
static void tell(struct kvp_engine_call *call, kvb_status_t status,
                 const union kvp_rank_reply *reply)
{
    if (!call->told) {
        call->told = true;
        call->done(call->arg, status, reply);
    }
}

static void call_free(struct kvp_engine_call *call)
{
    struct kvp_engine *engine = call->engine;
    const struct kvp_driver_config *config = &engine->driver->config;
    config->web->cancel(config->web_ctx, &call->web);
    kvb_list_remove(&call->link);
    kvb_sched_timer_clear(config->sched, &call->timer);
    kvb_sched_timer_clear(config->sched, &call->pause);
    kvb_sched_unpost(&call->event);
    if (call->type == KVB_LINK_RELAY && call->moves) {
        engine->writing--;
    }
    free(call->body);
    free(call);
    kvb_sched_post(config->sched, &engine->pump);
}

void kvp_engine_call_end_with(struct kvp_engine_call *call, kvb_status_t status,
                              const union kvp_rank_reply *reply)
{
    if (call->type == KVB_LINK_RESET_LOCAL && status == KVB_ERR_BUSY) {
        call->engine->reset_refused = true;
    }
    /* Taken out first: what its end leads to may ask for more. */
    kvb_list_remove(&call->link);
    tell(call, status, reply);
    call_free(call);
}

void kvp_engine_call_end(struct kvp_engine_call *call, kvb_status_t status)
{
    kvp_engine_call_end_with(call, status, NULL);
}

void kvp_engine_say(struct kvp_engine *engine, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(engine->cause, sizeof engine->cause, format, arguments);
    va_end(arguments);
    kvb_utf8_clean(engine->cause);
}

/* Whatever a server says against a call that it should take is its own fault, not the client's. */
static kvb_status_t status_of(unsigned http_status)
{
    switch (http_status) {
    case 404:
    case 405:
    case 501:
        return KVB_ERR_UNSUPPORTED;
    case 503:
        return KVB_ERR_UNAVAILABLE;
    default:
        return KVB_ERR_REFUSED;
    }
}

void kvp_engine_call_fail(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    struct kvp_engine *engine = call->engine;
    /* It may have been done: what is so must be asked. */
    bool open = (call->tags != 0 && (engine->known.falling | engine->known.rising) != 0) ||
                (call->type == KVB_LINK_RESUME && answer->http_status >= 500);
    if (answer->status != KVB_OK) {
        kvp_engine_say(engine, "%s: %s", call->route, answer->why);
        kvp_engine_call_end(call, open ? KVB_ERR_TIMEOUT : answer->status);
        return;
    }
    kvp_engine_say(engine, "%s: HTTP %u %.160s", call->route, answer->http_status, answer->body);
    KVB_LOG_LIMITED(WARN, "engine server refused a call", KVB_STR("instance", engine->name),
                    KVB_STR("url", engine->url), KVB_STR("cause", engine->cause));
    kvp_engine_call_end(call, open ? KVB_ERR_TIMEOUT : status_of(answer->http_status));
}

void kvp_engine_call_moves(struct kvp_engine_call *call, unsigned tags, bool falls)
{
    struct kvp_known *known = &call->engine->known;
    for (unsigned tag = 0; tag < KVP_ENGINE_TAGS; tag++) {
        if ((tags & KVP_TAG_BIT(tag)) != 0) {
            call->were[tag] = known->tags[tag];
            known->tags[tag] = KVB_UNKNOWN;
        }
    }
    known->falling = falls ? known->falling | tags : known->falling & ~tags;
    known->rising = falls ? known->rising & ~tags : known->rising | tags;
}

void kvp_engine_call_not_moved(struct kvp_engine_call *call, unsigned tags,
                               const struct kvp_web_answer *answer)
{
    struct kvp_known *known = &call->engine->known;
    bool nothing = kvp_answer_nothing_done(answer);
    for (unsigned tag = 0; nothing && tag < KVP_ENGINE_TAGS; tag++) {
        if ((tags & KVP_TAG_BIT(tag)) != 0) {
            known->tags[tag] = call->were[tag];
        }
    }
    if (nothing) {
        known->falling &= ~tags;
        known->rising &= ~tags;
    }
    kvp_engine_call_fail(call, answer);
}

json_t *kvp_answer_json(const struct kvp_web_answer *answer)
{
    return answer->len == 0 ? NULL : json_loadb(answer->body, answer->len, JSON_DECODE_ANY, NULL);
}

bool kvp_known_resident(const struct kvp_known *known)
{
    return known->tags[KVP_TAG_WEIGHTS] == KVB_RESIDENT && known->tags[KVP_TAG_KV] == KVB_RESIDENT;
}

/* ---- asking ---- */

/* A bucket for what any answer came to: words, not numbers. */
static const char *outcome_of(const struct kvp_web_answer *answer)
{
    return answer->status != KVB_OK    ? kvb_status_label(answer->status)
           : kvp_answer_ok(answer)     ? "ok"
           : answer->http_status < 500 ? "refused"
                                       : "failed";
}

static void count(const struct kvp_engine_call *call, const char *outcome)
{
    struct kvb_metrics *metrics = call->engine->driver->config.metrics;
    if (metrics != NULL) {
        const char *values[] = {call->engine->name, call->route, outcome};
        kvb_series_add(kvb_series(metrics, KVP_M_ENGINE_CALLS, values), 1);
    }
}

static void on_web(struct kvp_web_call *web, const struct kvp_web_answer *answer)
{
    struct kvp_engine_call *call = kvb_container_of(web, struct kvp_engine_call, web);
    struct kvp_engine *engine = call->engine;
    count(call, outcome_of(answer));
    KVB_LOG(DEBUG, "engine server answered", KVB_STR("instance", engine->name),
            KVB_STR("route", call->route), KVB_STR("outcome", outcome_of(answer)),
            KVB_U64("http_status", answer->http_status),
            KVB_MS("took", kvb_now_ns(kvp_engine_sched(engine)->clock) - call->asked_ns));
    if (answer->status == KVB_ERR_DISCONNECTED || answer->status == KVB_ERR_REFUSED) {
        /* Whether it is gone, or only this connection, is told by a look at it. */
        kvp_engine_say(engine, "%s: %s", call->route, answer->why);
        call->broken = true;
        kvp_engine_look(engine);
        return;
    }
    call->next(call, answer);
}

static void ask(struct kvp_engine_call *call, kvp_next_fn next, bool post, const char *body,
                size_t body_len, const char *path)
{
    struct kvp_engine *engine = call->engine;
    const struct kvp_driver_config *config = &engine->driver->config;
    char url[KVP_ENGINE_URL_MAX + 256];
    if (call->told) { /* nobody goes by it any more; what is so will be asked for */
        kvp_engine_call_end(call, KVB_ERR_CANCELED);
        return;
    }
    (void)snprintf(url, sizeof url, "%s%s", engine->url, path);
    (void)snprintf(call->route, sizeof call->route, "%.*s", (int)strcspn(path, "?"), path);
    call->next = next;
    call->asked_ns = kvb_now_ns(config->sched->clock);
    config->web->start(
        config->web_ctx,
        &(struct kvp_web_ask){.post = post, .url = url, .body = body, .body_len = body_len},
        &call->web);
}

void kvp_engine_call_get(struct kvp_engine_call *call, kvp_next_fn next, const char *format, ...)
{
    char path[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    ask(call, next, false, NULL, 0, path);
}

void kvp_engine_call_post(struct kvp_engine_call *call, kvp_next_fn next, const char *body,
                          const char *format, ...)
{
    char path[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    ask(call, next, true, body, body != NULL ? strlen(body) : 0, path);
}

static void on_pause_over(struct kvb_timer *timer)
{
    struct kvp_engine_call *call = kvb_container_of(timer, struct kvp_engine_call, pause);
    if (call->told) {
        kvp_engine_call_end(call, KVB_ERR_CANCELED);
    } else {
        call->next(call, NULL);
    }
}

void kvp_engine_call_after(struct kvp_engine_call *call, uint64_t ms, kvp_next_fn next)
{
    struct kvb_sched *sched = kvp_engine_sched(call->engine);
    call->next = next;
    kvb_sched_timer_set(sched, &call->pause, kvb_deadline_in_ms(sched->clock, ms));
}

/* ---- idle, by its load ---- */

static void ask_load(struct kvp_engine_call *call, const struct kvp_web_answer *none);

static void on_drain_load(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    if (!kvp_answer_ok(answer) ||
        !call->engine->dialect->load(answer->body, answer->len, &call->load)) {
        kvp_engine_say(call->engine, "%s does not tell whether requests run", call->route);
        kvp_engine_call_end(call, KVB_ERR_UNSUPPORTED);
    } else if (call->load.running > 0) {
        kvp_engine_call_after(call, LOAD_AGAIN_MS, ask_load);
    } else {
        call->drained(call, NULL);
    }
}

static void ask_load(struct kvp_engine_call *call, const struct kvp_web_answer *none)
{
    (void)none;
    kvp_engine_call_get(call, on_drain_load, "%s", call->engine->dialect->load_path);
}

void kvp_engine_call_drained(struct kvp_engine_call *call, kvp_next_fn next)
{
    call->drained = next;
    ask_load(call, NULL);
}

/* ---- state ---- */

void kvp_engine_call_end_state(struct kvp_engine_call *call)
{
    const struct kvp_engine *engine = call->engine;
    const struct kvp_known *known = &engine->known;
    union kvp_rank_reply reply = {.state = {.status = KVB_OK}};
    struct kvb_engine_state *state = &reply.state.state;
    state->paused = known->paused;
    state->pause_mode = known->mode;
    state->weight_change_running = engine->writing > 0;
    state->ntags = KVP_ENGINE_TAGS;
    for (int tag = 0; tag < KVP_ENGINE_TAGS; tag++) {
        strcpy(state->tags[tag].tag, kvp_engine_tag_names[tag]);
        state->tags[tag].residency = known->tags[tag];
    }
    kvp_engine_call_end_with(call, KVB_OK, &reply);
}

/* ---- the lane ---- */

/* Late for who asked. What moves memory, or writes weights, goes on at the server and is waited
 * for; the rest may be asked again. */
static void on_bound(struct kvb_timer *timer)
{
    struct kvp_engine_call *call = kvb_container_of(timer, struct kvp_engine_call, timer);
    bool keep = call->moves && call->web.impl != NULL;
    if (call->begun && call->route[0] != '\0') {
        count(call, "timeout");
    }
    if (keep) {
        tell(call, KVB_ERR_TIMEOUT, NULL);
    } else {
        kvp_engine_call_end(call, KVB_ERR_TIMEOUT);
    }
}

void kvp_engine_call_paused(struct kvp_engine_call *call, const struct kvp_web_answer *none)
{
    (void)none;
    call->engine->known.paused = true;
    call->engine->known.mode = call->mode;
    kvp_engine_call_end(call, KVB_OK);
}

static void on_resumed(struct kvp_engine_call *call, const struct kvp_web_answer *answer)
{
    if (!call->engine->dialect->done(answer)) {
        kvp_engine_call_fail(call, answer);
        return;
    }
    call->engine->known.paused = false;
    kvp_engine_call_end(call, KVB_OK);
}

static void begin_resume(struct kvp_engine_call *call)
{
    const struct kvp_dialect *dialect = call->engine->dialect;
    struct kvp_known *known = &call->engine->known;
    if (!kvp_known_resident(known)) {
        kvp_engine_say(call->engine, "not resumed: its memory is not all resident");
        kvp_engine_call_end(call, KVB_ERR_BAD_STATE);
    } else if (known->no_pause) {
        known->paused = false;
        kvp_engine_call_end(call, KVB_OK);
    } else {
        kvp_engine_call_post(call, on_resumed, dialect->resume_body, "%s", dialect->resume_path);
    }
}

static void begin(struct kvp_engine_call *call)
{
    const struct kvp_dialect *dialect = call->engine->dialect;
    call->begun = true;
    call->engine->cause[0] = '\0';
    switch (call->type) {
    case KVB_LINK_PAUSE:
        dialect->pause(call);
        break;
    case KVB_LINK_RESUME:
        call->moves = true; /* one that comes late would meet a sleep */
        begin_resume(call);
        break;
    case KVB_LINK_RESET_LOCAL:
        dialect->reset(call);
        break;
    case KVB_LINK_RELEASE:
        call->moves = true;
        if (!call->commit) { /* both are one call there: it is done when all may be given up */
            kvp_engine_call_end(call, KVB_OK);
        } else {
            dialect->release(call);
        }
        break;
    case KVB_LINK_RESTORE:
        call->moves = true;
        dialect->restore(call);
        break;
    case KVB_LINK_STATE:
        dialect->state(call);
        break;
    default:
        KVB_UNREACHABLE("not of the lane");
    }
}

static struct kvp_engine_call *first_of(struct kvb_list *lane)
{
    struct kvb_list *link = kvb_list_first(lane);
    return link == NULL ? NULL : kvb_container_of(link, struct kvp_engine_call, link);
}

/* A pause that drains is not waited for by who takes it back. */
static void overtake(struct kvp_engine *engine)
{
    struct kvp_engine_call *first = first_of(&engine->lane);
    if (first == NULL || first->type != KVB_LINK_PAUSE || !first->begun || first->moves) {
        return;
    }
    kvb_list_each(&engine->lane, link)
    {
        if (kvb_container_of(link, struct kvp_engine_call, link)->type == KVB_LINK_RESUME) {
            kvp_engine_call_end(first, KVB_ERR_CANCELED);
            return;
        }
    }
}

/* A write of weights is not of the lane, and may be open long after its caller was told. */
static bool meets_a_write(const struct kvp_engine_call *call)
{
    return call->engine->writing > 0 &&
           (call->type == KVB_LINK_RELEASE || call->type == KVB_LINK_RESTORE);
}

void kvp_engine_run_lane(struct kvp_engine *engine)
{
    overtake(engine);
    struct kvp_engine_call *first = first_of(&engine->lane);
    if (first != NULL && !first->begun && !meets_a_write(first)) {
        begin(first);
    }
}

void kvp_engine_alive(struct kvp_engine *engine)
{
    struct kvb_list *const lists[] = {&engine->lane, &engine->beside};
    for (int i = 0; i < 2; i++) {
        kvb_list_each(lists[i], link)
        {
            struct kvp_engine_call *call = kvb_container_of(link, struct kvp_engine_call, link);
            if (call->broken) { /* it may still be at it: what is so must be asked */
                kvp_engine_call_end(call, KVB_ERR_TIMEOUT);
            }
        }
    }
}

/* ---- what a rank is asked ---- */

static void on_answered_here(struct kvb_event *event)
{
    struct kvp_engine_call *call = kvb_container_of(event, struct kvp_engine_call, event);
    kvp_engine_call_end(call, call->type == KVB_LINK_FINGERPRINT ? KVB_ERR_UNSUPPORTED : KVB_OK);
}

static void on_begin_relay(struct kvb_event *event)
{
    kvp_relay_begin(kvb_container_of(event, struct kvp_engine_call, event));
}

static unsigned tag_bits(const char *name)
{
    for (unsigned tag = 0; tag < KVP_ENGINE_TAGS; tag++) {
        if (strcmp(name, kvp_engine_tag_names[tag]) == 0) {
            return KVP_TAG_BIT(tag);
        }
    }
    return 0;
}

/* Copies what is asked for; the words, as the link would pack them. */
static bool take(struct kvp_engine_call *call, const void *msg)
{
    switch (call->type) {
    case KVB_LINK_PAUSE:
        call->mode = ((const struct kvb_link_pause *)msg)->mode;
        break;
    case KVB_LINK_LINEAGE:
        call->engine->known.left |= ((const struct kvb_link_lineage *)msg)->left;
        break;
    case KVB_LINK_RESET_LOCAL:
        call->preempt = ((const struct kvb_link_reset_local *)msg)->preempt;
        break;
    case KVB_LINK_RELEASE: {
        const struct kvb_link_release *release = msg;
        call->commit = release->commit;
        for (uint32_t i = 0; i < release->ntags; i++) {
            unsigned bit = tag_bits(release->tags[i].tag);
            call->tags |= bit;
            call->offload |= release->tags[i].offload ? bit : 0;
        }
        break;
    }
    case KVB_LINK_RESTORE: {
        const struct kvb_link_restore *restore = msg;
        for (uint32_t i = 0; i < restore->ntags; i++) {
            call->tags |= tag_bits(restore->tags[i]);
        }
        break;
    }
    case KVB_LINK_RELAY: {
        const struct kvb_link_relay *relay = msg;
        strcpy(call->method, relay->method);
        call->body = malloc(relay->body.len + 1);
        if (call->body == NULL) {
            return false;
        }
        if (relay->body.len > 0) {
            memcpy(call->body, relay->body.data, relay->body.len);
        }
        call->body[relay->body.len] = '\0';
        call->body_len = relay->body.len;
        break;
    }
    default:
        break;
    }
    return true;
}

static uint64_t bound_of(const struct kvp_engine *engine, enum kvb_link_type type,
                         uint64_t deadline_ns)
{
    const struct kvp_driver_config *config = &engine->driver->config;
    if (type == KVB_LINK_PAUSE) {
        return deadline_ns;
    }
    uint64_t own_ns = kvb_deadline_in_ms(
        config->sched->clock, type == KVB_LINK_RELAY ? config->relay_ms : config->call_ms);
    return own_ns < deadline_ns ? own_ns : deadline_ns;
}

static struct kvp_engine_call *call_create(struct kvp_engine *engine, enum kvb_link_type type,
                                           kvp_rank_call_fn done, void *arg, uint64_t deadline_ns)
{
    struct kvp_engine_call *call = calloc(1, sizeof *call);
    kvb_assert(call != NULL); /* as for a call of the link: it must be answered */
    call->engine = engine;
    call->type = type;
    call->done = done;
    call->arg = arg;
    call->deadline_ns = deadline_ns;
    call->web.done = on_web;
    kvb_timer_init(&call->timer, on_bound);
    kvb_timer_init(&call->pause, on_pause_over);
    kvb_event_init(&call->event, on_answered_here);
    kvb_sched_timer_set(kvp_engine_sched(engine), &call->timer, deadline_ns);
    return call;
}

static void op_call(void *impl, enum kvb_link_type type, const void *msg, uint64_t deadline_ns,
                    kvp_rank_call_fn done, void *arg)
{
    struct kvp_engine *engine = impl;
    struct kvb_sched *sched = kvp_engine_sched(engine);
    struct kvp_engine_call *call =
        call_create(engine, type, done, arg, bound_of(engine, type, deadline_ns));
    if (!take(call, msg)) {
        call->type = KVB_LINK_FINGERPRINT;
    }
    if (call->type == KVB_LINK_LINEAGE || call->type == KVB_LINK_FINGERPRINT) {
        /* A lineage says whose KV may be found, and none is looked for here; a connector of the
         * server's own is told by the reset that follows a leave. */
        kvb_list_push_back(&engine->beside, &call->link);
        kvb_sched_post(sched, &call->event);
    } else if (type == KVB_LINK_RELAY) {
        call->event.fn = on_begin_relay;
        kvb_list_push_back(&engine->beside, &call->link);
        kvb_sched_post(sched, &call->event);
    } else {
        kvb_list_push_back(&engine->lane, &call->link);
        kvb_sched_post(sched, &engine->pump);
    }
}

void kvp_engine_ask_state(struct kvp_engine *engine, bool learning, kvp_rank_call_fn done,
                          void *arg)
{
    struct kvb_sched *sched = kvp_engine_sched(engine);
    struct kvp_engine_call *call =
        call_create(engine, KVB_LINK_STATE, done, arg,
                    kvb_deadline_in_ms(sched->clock, engine->driver->config.call_ms));
    call->learning = learning;
    kvb_list_push_back(&engine->lane, &call->link);
    kvb_sched_post(sched, &engine->pump);
}

static void op_hurry_pauses(void *impl, uint64_t deadline_ns)
{
    struct kvp_engine *engine = impl;
    kvb_list_each(&engine->lane, link)
    {
        struct kvp_engine_call *call = kvb_container_of(link, struct kvp_engine_call, link);
        if (call->type == KVB_LINK_PAUSE && call->deadline_ns > deadline_ns) {
            call->deadline_ns = deadline_ns;
            kvb_sched_timer_set(kvp_engine_sched(engine), &call->timer, deadline_ns);
        }
    }
}

/* ---- what there is none of: transfers and regions ---- */

struct later {
    struct kvb_list link; /* engine.laters */
    struct kvb_event event;
    kvp_rank_done_fn done;
    void *arg;
    kvb_status_t status;
};

static void end_later(struct later *later, kvb_status_t status)
{
    kvb_list_remove(&later->link);
    kvb_sched_unpost(&later->event);
    later->done(later->arg, status);
    free(later);
}

static void on_later(struct kvb_event *event)
{
    struct later *later = kvb_container_of(event, struct later, event);
    end_later(later, later->status);
}

static void answer_later(struct kvp_engine *engine, kvp_rank_done_fn done, void *arg,
                         kvb_status_t status)
{
    struct later *later = calloc(1, sizeof *later);
    kvb_assert(later != NULL);
    *later = (struct later){.done = done, .arg = arg, .status = status};
    kvb_event_init(&later->event, on_later);
    kvb_list_push_back(&engine->laters, &later->link);
    kvb_sched_post(kvp_engine_sched(engine), &later->event);
}

static void op_drain(void *impl, bool abort, uint64_t deadline_ns, kvp_rank_done_fn done, void *arg)
{
    (void)abort;
    (void)deadline_ns;
    answer_later(impl, done, arg, KVB_OK);
}

static void op_drain_stop(void *impl)
{
    (void)impl;
}

static struct kvp_drain_progress op_progress(void *impl)
{
    (void)impl;
    return (struct kvp_drain_progress){0};
}

static void op_stay_changed(void *impl)
{
    (void)impl;
}

/* Nothing is registered; but this is the last moment to say that these cannot be given up. */
static void op_unregister(void *impl, const char (*tags)[KVB_NAME_MAX], uint32_t ntags,
                          uint64_t deadline_ns, kvp_rank_done_fn done, void *arg)
{
    struct kvp_engine *engine = impl;
    unsigned bits = 0;
    (void)deadline_ns;
    for (uint32_t i = 0; i < ntags; i++) {
        bits |= tag_bits(tags[i]);
    }
    const char *why = engine->writing > 0
                          ? "a weight update is still under way there: repeat when it has ended"
                          : engine->dialect->cannot_release(engine, bits);
    engine->cause[0] = '\0';
    if (why != NULL) {
        kvp_engine_say(engine, "%s", why);
    }
    answer_later(engine, done, arg, why != NULL ? KVB_ERR_BAD_STATE : KVB_OK);
}

static void op_register(void *impl, const char (*tags)[KVB_NAME_MAX], uint32_t ntags,
                        kvp_rank_done_fn done, void *arg)
{
    (void)tags;
    (void)ntags;
    answer_later(impl, done, arg, KVB_OK);
}

static uint32_t op_registered(void *impl, const char *tag, uint64_t *bytes_p)
{
    (void)impl;
    (void)tag;
    if (bytes_p != NULL) {
        *bytes_p = 0;
    }
    return 0;
}

static void op_each_region(void *impl, kvp_region_fn each, void *arg)
{
    (void)impl;
    (void)each;
    (void)arg;
}

static void op_queues(void *impl, struct kvp_queue_view views[KVP_QUEUE_KINDS])
{
    (void)impl;
    memset(views, 0, KVP_QUEUE_KINDS * sizeof views[0]);
}

static bool op_device(void *impl, struct kvt_device_info *info_p)
{
    (void)impl;
    (void)info_p;
    return false;
}

static const char *op_cause(void *impl)
{
    return ((const struct kvp_engine *)impl)->cause;
}

static void op_disconnect(void *impl, const char *reason)
{
    struct kvp_engine *engine = impl;
    kvp_engine_say(engine, "%s", reason);
    engine->leave = true;
    kvb_sched_post(kvp_engine_sched(engine), &engine->pump);
}

const struct kvp_rank_ops kvp_engine_rank_ops = {
    .call = op_call,
    .hurry_pauses = op_hurry_pauses,
    .drain = op_drain,
    .drain_stop = op_drain_stop,
    .progress = op_progress,
    .stay_changed = op_stay_changed,
    .unregister = op_unregister,
    .register_ = op_register,
    .registered = op_registered,
    .each_region = op_each_region,
    .queues = op_queues,
    .device = op_device,
    .cause = op_cause,
    .disconnect = op_disconnect,
};

/* ---- when it goes ---- */

static void drop_list(struct kvb_list *list, bool all)
{
    struct kvb_list kept;
    kvb_list_init(&kept);
    for (struct kvp_engine_call *call; (call = first_of(list)) != NULL;) {
        if (call->moves && call->web.impl != NULL && !all) {
            kvb_list_remove(&call->link);
            kvb_list_push_back(&kept, &call->link);
            tell(call, KVB_ERR_DISCONNECTED, NULL);
        } else {
            kvp_engine_call_end(call, KVB_ERR_DISCONNECTED);
        }
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&kept)) != NULL;) {
        kvb_list_push_back(list, link);
    }
}

void kvp_engine_drop_calls(struct kvp_engine *engine, bool all)
{
    drop_list(&engine->lane, all);
    drop_list(&engine->beside, all);
    for (struct kvb_list *link; (link = kvb_list_first(&engine->laters)) != NULL;) {
        end_later(kvb_container_of(link, struct later, link), KVB_ERR_DISCONNECTED);
    }
}
