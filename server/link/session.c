/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include "internal.h"
#include "rank.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * A session ends in one way: the stream tells `closed`; then the rank (if a hello made one) is
 * disconnected, its calls complete DISCONNECTED, and when no call is left the instance is told and
 * the session is freed. A callback that makes a new call while the session ends gets the same
 * answer, a turn later, and the end waits for it.
 */
struct call {
    struct kvb_list link;
    struct kvp_session *session;
    uint16_t type;
    uint64_t seq;
    struct kvb_writer frame; /* packed and not sent yet: before the hello was answered */
    struct kvb_timer bound;
    kvp_rank_call_fn done;
    void *arg;
    uint64_t asked_ns;
    struct kvb_log_context log; /* whose doing it is */
};

struct kvp_session {
    struct kvb_list link; /* owner->sessions */
    struct kvp_link *owner;
    struct kvp_stream *stream; /* NULL: ended */
    uint64_t id;
    bool attached; /* hello accepted and answered */
    bool refused;
    struct kvp_link_rank *rank;
    struct kvb_list calls; /* struct call, in the order of their seq */
    uint64_t last_seq;     /* of our calls */
    uint64_t leave_seq;    /* of the engine's LEAVE that waits for its answer */
    char reason[160];
    struct kvb_timer hello_bound;
    struct kvb_event end;
};

/* A reply may be longer than its request's limit, where it carries names. */
enum { REPLY_MIN_MAX = 4096 };

static void complete(struct call *call, kvb_status_t status, const union kvp_rank_reply *reply)
{
    struct kvb_sched *sched = call->session->owner->config.sched;
    const struct kvp_link_rank *rank = call->session->rank;
    const struct kvb_log_context before = kvb_log_context();
    kvb_list_remove(&call->link);
    kvb_sched_timer_clear(sched, &call->bound);
    kvp_rank_call_fn done = call->done;
    void *arg = call->arg;
    kvb_log_set_context(&call->log);
    KVB_LOG(DEBUG, "call to the engine ended", KVB_STR("rank", rank != NULL ? rank->name : NULL),
            KVB_STR("message", kvb_link_info(call->type)->label), KVB_STATUS(status),
            KVB_MS("took", kvb_now_ns(sched->clock) - call->asked_ns));
    kvb_writer_cleanup(&call->frame);
    free(call);
    done(arg, status, reply);
    kvb_log_set_context(&before);
}

/* ---- replies to our calls ---- */

static kvb_status_t unpack_reply(uint16_t type, struct kvb_span payload,
                                 union kvp_rank_reply *reply, kvb_status_t *status_p, bool *more_p)
{
    kvb_status_t status;
    *more_p = true;
    switch (type) {
    case KVB_LINK_RESET_LOCAL:
        status = kvb_link_reset_local_reply_unpack(payload, &reply->reset_local);
        *status_p = reply->reset_local.status;
        return status;
    case KVB_LINK_FINGERPRINT:
        status = kvb_link_fingerprint_reply_unpack(payload, &reply->fingerprint);
        *status_p = reply->fingerprint.status;
        return status;
    case KVB_LINK_RELAY:
        status = kvb_link_relay_reply_unpack(payload, &reply->relay);
        *status_p = reply->relay.status;
        return status;
    case KVB_LINK_STATE:
        status = kvb_link_state_reply_unpack(payload, &reply->state);
        *status_p = reply->state.status;
        return status;
    default:
        *more_p = false;
        return kvb_link_status_unpack(payload, status_p);
    }
}

static kvb_status_t on_reply(struct kvp_session *session, const struct kvb_frame *frame,
                             struct kvb_span payload)
{
    struct call *call = NULL;
    kvb_list_each(&session->calls, link)
    {
        struct call *each = kvb_container_of(link, struct call, link);
        if (each->seq == frame->seq) {
            call = each;
            break;
        }
    }
    if (call == NULL) {
        if (frame->seq > session->last_seq) {
            return KVB_ERR_PROTOCOL; /* an answer to what was never asked */
        }
        const char *label = kvb_link_info(frame->type)->label;
        kvp_count(session->owner->config.metrics, KVP_M_LATE_REPLIES, label, 1);
        KVB_LOG_LIMITED(WARN, "late answer dropped", KVB_STR("rank", session->rank->name),
                        KVB_STR("message", label));
        return KVB_OK;
    }
    if (call->type != frame->type) {
        return KVB_ERR_PROTOCOL;
    }
    union kvp_rank_reply reply;
    memset(&reply, 0, sizeof reply);
    kvb_status_t answered = KVB_OK;
    bool more;
    kvb_status_t status = unpack_reply(frame->type, payload, &reply, &answered, &more);
    if (status != KVB_OK) {
        return status;
    }
    complete(call, answered, more ? &reply : NULL);
    return KVB_OK;
}

static void on_call_bound(struct kvb_timer *timer)
{
    struct call *call = kvb_container_of(timer, struct call, bound);
    const char *label = kvb_link_info(call->type)->label;
    kvp_count(call->session->owner->config.metrics, KVP_M_CALLS_TIMED_OUT, label, 1);
    const struct kvb_log_context before = kvb_log_context();
    kvb_log_set_context(&call->log);
    KVB_LOG_LIMITED(WARN, "no answer within the bound", KVB_STR("rank", call->session->rank->name),
                    KVB_STR("message", label));
    complete(call, KVB_ERR_TIMEOUT, NULL);
    kvb_log_set_context(&before);
}

static void pack_call(struct kvb_writer *writer, uint16_t type, const void *msg)
{
    switch (type) {
    case KVB_LINK_LINEAGE:
        kvb_link_lineage_pack(writer, msg);
        break;
    case KVB_LINK_PAUSE:
        kvb_link_pause_pack(writer, msg);
        break;
    case KVB_LINK_RESUME:
        kvb_link_resume_pack(writer, msg);
        break;
    case KVB_LINK_RESET_LOCAL:
        kvb_link_reset_local_pack(writer, msg);
        break;
    case KVB_LINK_RELEASE:
        kvb_link_release_pack(writer, msg);
        break;
    case KVB_LINK_RESTORE:
        kvb_link_restore_pack(writer, msg);
        break;
    case KVB_LINK_RELAY:
        kvb_link_relay_pack(writer, msg);
        break;
    case KVB_LINK_FINGERPRINT:
    case KVB_LINK_STATE:
        break; /* no payload */
    default:
        KVB_UNREACHABLE("a call of the daemon");
    }
}

void kvp_session_call(struct kvp_session *session, enum kvb_link_type type, const void *msg,
                      uint64_t deadline_ns, kvp_rank_call_fn done, void *arg)
{
    struct call *call = calloc(1, sizeof *call);
    /* A call without an answer would break its operation's promise; a few bytes, bounded by the
     * operations that may run. */
    kvb_assert(call != NULL);
    call->session = session;
    call->type = (uint16_t)type;
    call->seq = ++session->last_seq;
    call->done = done;
    call->arg = arg;
    call->asked_ns = kvb_now_ns(session->owner->config.sched->clock);
    call->log = kvb_log_context();
    kvb_timer_init(&call->bound, on_call_bound);
    kvb_list_push_back(&session->calls, &call->link);
    kvb_writer_init(&call->frame, kvb_link_info(call->type)->max);
    if (session->stream == NULL) {
        kvb_sched_post(session->owner->config.sched, &session->end);
        return;
    }
    kvb_sched_timer_set(session->owner->config.sched, &call->bound, deadline_ns);
    pack_call(&call->frame, call->type, msg);
    if (session->attached) {
        kvp_stream_send(session->stream, call->type, 0, call->seq, &call->frame);
    }
}

void kvp_session_hurry_pauses(struct kvp_session *session, uint64_t deadline_ns)
{
    kvb_list_each(&session->calls, link)
    {
        struct call *call = kvb_container_of(link, struct call, link);
        if (call->type == KVB_LINK_PAUSE && call->bound.deadline_ns > deadline_ns) {
            kvb_sched_timer_set(session->owner->config.sched, &call->bound, deadline_ns);
        }
    }
}

/* ---- requests of the engine ---- */

void kvp_session_reply(struct kvp_session *session, uint16_t type, uint64_t seq,
                       struct kvb_writer *writer)
{
    if (session->stream != NULL) {
        kvp_stream_send(session->stream, type, KVB_FRAME_REPLY, seq, writer);
    } else {
        kvb_writer_cleanup(writer);
    }
}

void kvp_session_reply_status(struct kvp_session *session, uint16_t type, uint64_t seq,
                              kvb_status_t status)
{
    struct kvb_writer writer;
    kvb_writer_init(&writer, REPLY_MIN_MAX);
    kvb_link_status_pack(&writer, status);
    kvp_session_reply(session, type, seq, &writer);
}

static void reply_hello(struct kvp_session *session, uint64_t seq, kvb_status_t status,
                        const char *reason)
{
    struct kvb_link_hello_reply reply = {.status = status, .session = session->id};
    (void)snprintf(reply.reason, sizeof reply.reason, "%s", reason);
    struct kvb_writer writer;
    kvb_writer_init(&writer, REPLY_MIN_MAX);
    kvb_link_hello_reply_pack(&writer, &reply);
    kvp_session_reply(session, KVB_LINK_HELLO, seq, &writer);
}

/* What the fleet asked of the rank while it took it in, goes out after the hello's answer. */
static void send_held_calls(struct kvp_session *session)
{
    kvb_list_each(&session->calls, link)
    {
        struct call *call = kvb_container_of(link, struct call, link);
        kvp_stream_send(session->stream, call->type, 0, call->seq, &call->frame);
    }
}

static void refuse(struct kvp_session *session, uint64_t seq, kvb_status_t status, const char *rank,
                   const char *reason)
{
    KVB_LOG_LIMITED(WARN, "hello refused", KVB_STR("rank", rank), KVB_STR("reason", reason));
    session->refused = true;
    reply_hello(session, seq, status, reason);
    kvp_stream_finish(session->stream, "hello was refused");
}

/* An engine that was killed and is there again at once may be heard of before its predecessor's
 * end is: what stands in its way goes by itself. */
static bool one_goes(const struct kvp_link *owner, const char *instance)
{
    kvb_list_each(&owner->sessions, link)
    {
        const struct kvp_session *other = kvb_container_of(link, struct kvp_session, link);
        if (other->rank != NULL && strcmp(other->rank->instance_name, instance) == 0 &&
            (other->stream == NULL || kvp_stream_over(other->stream))) {
            return true;
        }
    }
    return false;
}

/* False: refused, for the reason. */
static bool admit(struct kvp_session *session, const struct kvb_link_hello *hello,
                  struct kvp_link_rank *rank, char *reason, size_t reason_cap)
{
    const struct kvp_link_config *config = &session->owner->config;
    if (config->tenant_allowed != NULL &&
        !config->tenant_allowed(config->ctx, hello->tenant, reason, reason_cap)) {
        return false;
    }
    struct kvp_instance *instance = NULL;
    session->rank = rank;
    kvb_status_t status =
        kvp_fleet_hello(config->fleet, hello, &rank->base, reason, reason_cap, &instance);
    if (status != KVB_OK) {
        session->rank = NULL;
        if (reason[0] == '\0') {
            (void)snprintf(reason, reason_cap, "%s", kvb_status_text(status));
        }
        return false;
    }
    kvp_link_rank_admitted(rank, instance);
    return true;
}

static kvb_status_t on_hello(struct kvp_session *session, uint64_t seq, struct kvb_span payload)
{
    struct kvp_link_rank *rank = NULL;
    char reason[256] = "";
    struct kvb_link_hello *hello = malloc(sizeof *hello);
    if (hello == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kvb_status_t status = kvb_link_hello_unpack(payload, hello);
    if (status == KVB_ERR_UNSUPPORTED) {
        (void)snprintf(reason, sizeof reason,
                       "this daemon speaks link version %d, the engine another one: use the "
                       "libkvplane of the same release",
                       KVB_LINK_VERSION);
        refuse(session, seq, KVB_ERR_REFUSED, "unknown", reason);
        status = KVB_OK;
        goto out;
    }
    if (status == KVB_OK) {
        status = kvp_link_rank_create(session->owner, session, hello, &rank);
    }
    if (status != KVB_OK) {
        goto out;
    }
    if (!admit(session, hello, rank, reason, sizeof reason)) {
        bool later = one_goes(session->owner, hello->instance);
        refuse(session, seq, later ? KVB_ERR_AGAIN : KVB_ERR_REFUSED, rank->name, reason);
        kvp_link_rank_release(rank);
        goto out;
    }
    KVB_LOG(INFO, "rank attached", KVB_STR("rank", rank->name), KVB_STR("tenant", hello->tenant),
            KVB_U64("world_size", hello->world_size), KVB_U64("session", session->id));
    kvb_sched_timer_clear(session->owner->config.sched, &session->hello_bound);
    reply_hello(session, seq, KVB_OK, "");
    session->attached = true;
    send_held_calls(session);
out:
    free(hello);
    return status;
}

static kvb_status_t on_register(struct kvp_session *session, uint64_t seq, struct kvb_span payload)
{
    struct kvb_link_region msg;
    kvb_status_t status = kvb_link_region_unpack(payload, &msg);
    if (status != KVB_OK) {
        return status;
    }
    int fd = kvp_stream_take_fd(session->stream);
    if (fd < 0) {
        return KVB_ERR_PROTOCOL; /* a region is its descriptor */
    }
    kvp_regions_hand_over(session->rank, seq, &msg, fd);
    return KVB_OK;
}

static kvb_status_t on_discard(struct kvp_session *session, uint64_t seq, struct kvb_span payload)
{
    uint64_t request;
    kvb_status_t status = kvb_link_discard_unpack(payload, &request);
    if (status != KVB_OK) {
        return status;
    }
    if (session->owner->config.store != NULL) {
        kvs_client_discard(session->owner->config.store,
                           (struct kvs_hold){session->rank->hold_id, request});
    }
    kvp_session_reply_status(session, KVB_LINK_DISCARD, seq, KVB_OK);
    return KVB_OK;
}

static kvb_status_t on_report(struct kvp_session *session, uint64_t seq, struct kvb_span payload)
{
    struct kvb_load load;
    kvb_status_t status = kvb_link_load_unpack(payload, &load);
    if (status != KVB_OK) {
        return status;
    }
    kvp_session_reply_status(session, KVB_LINK_REPORT, seq, KVB_OK);
    kvp_instance_report(session->rank->instance, &session->rank->base, &load);
    return KVB_OK;
}

static void on_left(void *arg)
{
    struct kvp_session *session = arg;
    kvp_session_reply_status(session, KVB_LINK_LEAVE, session->leave_seq, KVB_OK);
}

/* What follows on the link is judged by the new stay. */
static kvb_status_t on_leave(struct kvp_session *session, uint64_t seq, struct kvb_span payload)
{
    if (payload.len != 0) {
        return KVB_ERR_PROTOCOL;
    }
    session->leave_seq = seq;
    return kvp_instance_leave(session->rank->instance, on_left, session) ? KVB_OK
                                                                         : KVB_ERR_PROTOCOL;
}

/* Who may send it. */
static unsigned role_of(uint16_t type)
{
    switch (type) {
    case KVB_LINK_LOOKUP:
    case KVB_LINK_DISCARD:
    case KVB_LINK_REPORT:
    case KVB_LINK_LEAVE:
        return KVB_ROLE_SCHEDULER;
    default:
        return KVB_ROLE_WORKER;
    }
}

static kvb_status_t on_request(struct kvp_session *session, const struct kvb_frame *frame,
                               uint8_t **payload_p)
{
    struct kvb_span payload = {*payload_p, frame->len};
    if (frame->type == KVB_LINK_HELLO) {
        return on_hello(session, frame->seq, payload);
    }
    if ((session->rank->base.roles & role_of(frame->type)) == 0) {
        return KVB_ERR_PROTOCOL;
    }
    uint8_t *taken = *payload_p;
    switch (frame->type) {
    case KVB_LINK_REGISTER_REGION:
        return on_register(session, frame->seq, payload);
    case KVB_LINK_DISCARD:
        return on_discard(session, frame->seq, payload);
    case KVB_LINK_REPORT:
        return on_report(session, frame->seq, payload);
    case KVB_LINK_LEAVE:
        return on_leave(session, frame->seq, payload);
    case KVB_LINK_LOOKUP:
        *payload_p = NULL;
        return kvp_tasks_submit(session->rank, KVP_TASK_LOOKUP, frame->seq, taken, frame->len);
    case KVB_LINK_PUT:
        *payload_p = NULL;
        return kvp_tasks_submit(session->rank, KVP_TASK_PUT, frame->seq, taken, frame->len);
    case KVB_LINK_GET:
        *payload_p = NULL;
        return kvp_tasks_submit(session->rank, KVP_TASK_GET, frame->seq, taken, frame->len);
    default:
        KVB_UNREACHABLE("judged by on_header");
    }
}

/* ---- the stream ---- */

static kvb_status_t on_header(void *ctx, const struct kvb_frame *frame)
{
    const struct kvp_session *session = ctx;
    const struct kvb_link_info *info = kvb_link_info(frame->type);
    if (info == NULL) {
        return KVB_ERR_PROTOCOL;
    }
    bool reply = (frame->flags & KVB_FRAME_REPLY) != 0;
    if (reply != (info->dir == 'D') || frame->type == KVB_LINK_EVENT) {
        return KVB_ERR_PROTOCOL;
    }
    /* Hello comes first and once. */
    if ((frame->type == KVB_LINK_HELLO) == session->attached) {
        return KVB_ERR_PROTOCOL;
    }
    uint32_t max = reply && info->max < REPLY_MIN_MAX ? REPLY_MIN_MAX : info->max;
    return frame->len > max ? KVB_ERR_PROTOCOL : KVB_OK;
}

static kvb_status_t on_frame(void *ctx, const struct kvb_frame *frame, uint8_t *payload)
{
    struct kvp_session *session = ctx;
    kvb_status_t status;
    if ((frame->flags & KVB_FRAME_REPLY) != 0) {
        status = on_reply(session, frame, (struct kvb_span){payload, frame->len});
    } else {
        status = on_request(session, frame, &payload);
    }
    free(payload);
    if (status != KVB_OK) {
        KVB_LOG_LIMITED(WARN, "bad frame: connection closed",
                        KVB_STR("rank", session->rank != NULL ? session->rank->name : "none"),
                        KVB_STR("message", kvb_link_info(frame->type)->label), KVB_STATUS(status));
    }
    return status;
}

static void on_end(struct kvb_event *event)
{
    struct kvp_session *session = kvb_container_of(event, struct kvp_session, end);
    struct kvp_link *owner = session->owner;
    struct kvb_list calls;
    kvb_list_init(&calls);
    for (struct kvb_list *link; (link = kvb_list_pop(&session->calls)) != NULL;) {
        kvb_list_push_back(&calls, link);
    }
    for (struct kvb_list *link; (link = kvb_list_first(&calls)) != NULL;) {
        complete(kvb_container_of(link, struct call, link), KVB_ERR_DISCONNECTED, NULL);
    }
    struct kvp_link_rank *rank = session->rank;
    if (!kvb_list_empty(&session->calls) || (rank != NULL && kvp_link_rank_busy(rank))) {
        kvb_sched_post(owner->config.sched, &session->end);
        return;
    }
    if (rank != NULL) {
        KVB_LOG(INFO, "rank detached", KVB_STR("rank", rank->name),
                KVB_STR("reason", session->reason));
        kvp_instance_rank_gone(rank->instance, &rank->base, session->reason);
        kvp_link_rank_release(rank);
    }
    kvb_list_remove(&session->link);
    owner->nsessions--;
    free(session);
    kvp_link_settle(owner);
}

static void on_closed(void *ctx, const char *reason)
{
    struct kvp_session *session = ctx;
    struct kvb_metrics *metrics = session->owner->config.metrics;
    kvp_count(metrics, KVP_M_SESSIONS_ENDED,
              session->refused    ? "refused"
              : session->attached ? "ended"
                                  : "no_hello",
              1);
    (void)snprintf(session->reason, sizeof session->reason, "%s", reason);
    if (session->rank != NULL) {
        kvp_link_rank_keep_socket(session->rank, kvp_stream_take_socket(session->stream));
    }
    kvp_stream_destroy(session->stream);
    session->stream = NULL;
    kvb_sched_timer_clear(session->owner->config.sched, &session->hello_bound);
    if (session->rank != NULL) {
        kvp_link_rank_disconnected(session->rank);
    }
    kvb_sched_post(session->owner->config.sched, &session->end);
}

static void on_hello_bound(struct kvb_timer *timer)
{
    struct kvp_session *session = kvb_container_of(timer, struct kvp_session, hello_bound);
    kvp_stream_close(session->stream, "no hello in time");
}

static const struct kvp_stream_ops stream_ops = {
    .header = on_header, .frame = on_frame, .closed = on_closed};

void kvp_session_open(struct kvp_link *owner, int fd)
{
    const struct kvp_link_config *config = &owner->config;
    struct kvp_session *session = calloc(1, sizeof *session);
    if (session == NULL || kvp_stream_create(config->sched, config->loop, fd, &stream_ops, session,
                                             &session->stream) != KVB_OK) {
        KVB_LOG_LIMITED(ERROR, "connection dropped: out of memory");
        free(session);
        (void)close(fd);
        return;
    }
    session->owner = owner;
    session->id = ++owner->last_session;
    kvb_list_init(&session->calls);
    kvb_event_init(&session->end, on_end);
    kvb_timer_init(&session->hello_bound, on_hello_bound);
    kvb_sched_timer_set(config->sched, &session->hello_bound,
                        kvb_deadline_in_ms(config->sched->clock, KVP_HELLO_MS));
    kvb_list_push_back(&owner->sessions, &session->link);
    owner->nsessions++;
    kvp_link_settle(owner);
}

void kvp_session_close(struct kvp_session *session, const char *reason)
{
    if (session->stream != NULL) {
        kvp_stream_close(session->stream, reason);
    }
}

struct kvp_session *kvp_session_of(struct kvb_list *link)
{
    return kvb_container_of(link, struct kvp_session, link);
}

struct kvp_link_rank *kvp_session_rank(const struct kvp_session *session)
{
    return session->rank;
}
