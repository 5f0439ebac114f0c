/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include "base/assert.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define UPCALLS_MAX 256 /* open calls, also those of earlier sessions; a daemon has a handful */

/* ---- answers ---- */

/* Every answer has this much; which of it travels follows from the call's type. */
struct answer {
    kvb_status_t status;
    uint32_t blocks_held;
    bool weights_written;
    const char *text;
    size_t len;
};

/* A result of the engine as it may travel: final, and one that the daemon knows. */
static kvb_status_t to_status(int result)
{
    kvb_status_t status = kvb_status_from_wire(result);
    return (int)status == result && result <= 0 ? status : KVB_ERR_INTERNAL;
}

static void pack_fingerprint(struct kvb_writer *writer, const struct answer *answer)
{
    struct kvb_link_fingerprint_reply reply = {.status = answer->status};
    if (answer->status == KVB_OK) {
        if (answer->len == 0 || answer->len >= sizeof reply.name ||
            !kvb_utf8_printable(answer->text, answer->len)) {
            reply.status = KVB_ERR_INVALID;
        } else {
            memcpy(reply.name, answer->text, answer->len);
        }
    }
    kvb_link_fingerprint_reply_pack(writer, &reply);
}

static void pack_relay(struct kvb_writer *writer, const struct answer *answer)
{
    struct kvb_link_relay_reply reply = {.status = answer->status,
                                         .weights_written = answer->weights_written,
                                         .body = {(const uint8_t *)answer->text, answer->len}};
    if (answer->len > KVB_RELAY_BODY_MAX) {
        reply.status = KVB_ERR_TOO_LARGE;
        reply.body.len = 0;
    }
    kvb_link_relay_reply_pack(writer, &reply);
}

static void pack_answer(struct kvb_writer *writer, uint16_t type, const struct answer *answer)
{
    switch (type) {
    case KVB_LINK_RESET_LOCAL: {
        struct kvb_link_reset_local_reply reply = {answer->status, answer->blocks_held};
        kvb_link_reset_local_reply_pack(writer, &reply);
        break;
    }
    case KVB_LINK_FINGERPRINT:
        pack_fingerprint(writer, answer);
        break;
    case KVB_LINK_RELAY:
        pack_relay(writer, answer);
        break;
    default:
        kvb_link_status_pack(writer, answer->status);
    }
}

static void call_free(struct kvplane_call *call)
{
    kvb_list_remove(&call->link);
    call->kv->nupcalls--;
    free(call);
}

static void answer_call(struct kvplane_call *call, const struct answer *answer)
{
    struct kvplane *kv = call->kv;
    if (call->operation != 0) {
        kv->hello.state.last_operation = call->operation;
    }
    if (call->writes_weights || answer->weights_written) {
        kv->hello.weights_name[0] = '\0';
    }
    if (call->alive && kv->state == SESSION_ATTACHED) {
        struct kvb_writer writer;
        kvplane_frame_begin(&writer, call->type);
        pack_answer(&writer, call->type, answer);
        kvb_status_t status =
            kvplane_frame_send(kv, &writer, call->type, KVB_FRAME_REPLY, call->seq, -1);
        if (status != KVB_OK) {
            kvplane_session_doom(kv, status);
        }
    }
    call_free(call);
}

uint64_t kvplane_call_operation(const struct kvplane_call *call)
{
    return call->operation;
}

void kvplane_answer(struct kvplane_call *call, int result)
{
    answer_call(call, &(struct answer){.status = to_status(result)});
}

void kvplane_answer_reset(struct kvplane_call *call, int result, uint32_t blocks_held)
{
    answer_call(call, &(struct answer){.status = to_status(result), .blocks_held = blocks_held});
}

void kvplane_answer_text(struct kvplane_call *call, int result, const char *text)
{
    answer_call(call, &(struct answer){.status = to_status(result),
                                       .text = text,
                                       .len = text == NULL ? 0 : strlen(text)});
}

void kvplane_answer_relay(struct kvplane_call *call, int result, bool weights_written,
                          const char *json, size_t len)
{
    answer_call(call, &(struct answer){.status = to_status(result),
                                       .weights_written = weights_written,
                                       .text = json,
                                       .len = json == NULL ? 0 : len});
}

void kvplane_upcalls_orphan(struct kvplane *kv)
{
    kvb_list_each(&kv->upcalls, link)
    {
        kvb_container_of(link, struct kvplane_call, link)->alive = false;
    }
}

/* ---- the engine's account of itself ---- */

kvb_status_t kvplane_upcalls_state(struct kvplane *kv, struct kvb_engine_state *state_p)
{
    struct kvplane_state told = {.ntags = 0};
    kv->callbacks->state(kv->ctx, &told);
    struct kvb_engine_state state = {.last_operation = kv->hello.state.last_operation,
                                     .paused = told.paused,
                                     .pause_mode = (enum kvb_pause_mode)told.pause_mode,
                                     .weight_change_running = told.weight_change_running,
                                     .weights_written = told.weights_written,
                                     .local_reset_done = told.local_reset_done};
    bool valid = told.ntags <= KVB_TAGS_MAX && (unsigned)told.pause_mode <= KVPLANE_PAUSE_KEEP;
    for (size_t i = 0; valid && i < told.ntags; i++) {
        const struct kvplane_tag_state *tag = &told.tags[i];
        valid = tag->tag != NULL && kvb_name_valid(tag->tag) &&
                (unsigned)tag->residency <= KVPLANE_UNKNOWN;
        for (uint32_t j = 0; valid && j < state.ntags; j++) {
            valid = strcmp(tag->tag, state.tags[j].tag) != 0;
        }
        if (valid) {
            strcpy(state.tags[i].tag, tag->tag);
            state.tags[i].residency = (enum kvb_residency)tag->residency;
            state.ntags++;
        }
    }
    if (!valid) {
        kvplane_session_error(kv, "callbacks.state: pause mode, number or names of tags are wrong");
        return KVB_ERR_INVALID;
    }
    if (state.weights_written || state.weight_change_running) {
        kv->hello.weights_name[0] = '\0'; /* it names what the engine was started with */
    }
    *state_p = state;
    return KVB_OK;
}

/* ---- calls from the daemon ---- */

/* The numbers of the C API are those of the link. */
_Static_assert((int)KVPLANE_PAUSE_ABORT == (int)KVB_PAUSE_ABORT &&
                   (int)KVPLANE_PAUSE_WAIT == (int)KVB_PAUSE_WAIT &&
                   (int)KVPLANE_PAUSE_KEEP == (int)KVB_PAUSE_KEEP,
               "pause modes");
_Static_assert((int)KVPLANE_RESIDENT == (int)KVB_RESIDENT &&
                   (int)KVPLANE_OFFLOADED == (int)KVB_OFFLOADED &&
                   (int)KVPLANE_DISCARDED == (int)KVB_DISCARDED &&
                   (int)KVPLANE_UNKNOWN == (int)KVB_UNKNOWN,
               "residencies");
_Static_assert((int)KVPLANE_ROLE_SCHEDULER == (int)KVB_ROLE_SCHEDULER &&
                   (int)KVPLANE_ROLE_WORKER == (int)KVB_ROLE_WORKER,
               "roles");
_Static_assert((int)KVPLANE_MEMORY_CUDA == (int)KVB_MEMORY_CUDA, "memory kinds");
_Static_assert((int)KVPLANE_MEMORY_CUDA_FABRIC == (int)KVB_MEMORY_CUDA_FABRIC, "memory kinds");

static struct kvplane_call *call_create(struct kvplane *kv, const struct kvb_frame *frame,
                                        uint64_t operation)
{
    struct kvplane_call *call = malloc(sizeof *call);
    if (call == NULL) {
        return NULL;
    }
    *call = (struct kvplane_call){
        .kv = kv, .type = frame->type, .seq = frame->seq, .operation = operation, .alive = true};
    kvb_list_push_back(&kv->upcalls, &call->link);
    kv->nupcalls++;
    return call;
}

static kvb_status_t on_lineage(struct kvplane *kv, const struct kvb_frame *frame,
                               struct kvb_span payload)
{
    struct kvb_link_lineage msg;
    kvb_status_t status = kvb_link_lineage_unpack(payload, &msg);
    if (status != KVB_OK) {
        return status;
    }
    kv->hello.lineage = msg.lineage;
    kv->hello.token = msg.token;
    memcpy(kv->hello.lineage_name, msg.name, sizeof msg.name);
    kv->hello.nretired = msg.nretired;
    memcpy(kv->hello.retired, msg.retired, sizeof msg.retired);
    if (kv->callbacks->lineage != NULL) {
        kv->callbacks->lineage(kv->ctx, msg.left, msg.name);
    }
    struct kvb_writer writer;
    kvplane_frame_begin(&writer, frame->type);
    kvb_link_status_pack(&writer, KVB_OK);
    return kvplane_frame_send(kv, &writer, frame->type, KVB_FRAME_REPLY, frame->seq, -1);
}

static kvb_status_t on_state(struct kvplane *kv, const struct kvb_frame *frame,
                             struct kvb_span payload)
{
    if (payload.len != 0) {
        return KVB_ERR_PROTOCOL;
    }
    struct kvb_link_state_reply reply = {.status = KVB_OK};
    reply.status = kvplane_upcalls_state(kv, &reply.state);
    struct kvb_writer writer;
    kvplane_frame_begin(&writer, frame->type);
    kvb_link_state_reply_pack(&writer, &reply);
    return kvplane_frame_send(kv, &writer, frame->type, KVB_FRAME_REPLY, frame->seq, -1);
}

static kvb_status_t on_pause(struct kvplane *kv, const struct kvb_frame *frame,
                             struct kvb_span payload)
{
    struct kvb_link_pause msg;
    kvb_status_t status = kvb_link_pause_unpack(payload, &msg);
    if (status != KVB_OK) {
        return status;
    }
    struct kvplane_call *call = call_create(kv, frame, msg.operation);
    if (call == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    if (kv->callbacks->pause == NULL) {
        kvplane_answer(call, KVB_ERR_UNSUPPORTED);
    } else {
        kv->callbacks->pause(kv->ctx, call, (enum kvplane_pause_mode)msg.mode);
    }
    return KVB_OK;
}

static kvb_status_t on_resume(struct kvplane *kv, const struct kvb_frame *frame,
                              struct kvb_span payload)
{
    struct kvb_link_resume msg;
    kvb_status_t status = kvb_link_resume_unpack(payload, &msg);
    if (status != KVB_OK) {
        return status;
    }
    struct kvplane_call *call = call_create(kv, frame, msg.operation);
    if (call == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    if (kv->callbacks->resume == NULL) {
        kvplane_answer(call, KVB_ERR_UNSUPPORTED);
    } else {
        kv->callbacks->resume(kv->ctx, call);
    }
    return KVB_OK;
}

static kvb_status_t on_reset_local(struct kvplane *kv, const struct kvb_frame *frame,
                                   struct kvb_span payload)
{
    struct kvb_link_reset_local msg;
    kvb_status_t status = kvb_link_reset_local_unpack(payload, &msg);
    if (status != KVB_OK) {
        return status;
    }
    struct kvplane_call *call = call_create(kv, frame, msg.operation);
    if (call == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    if (kv->callbacks->reset_local == NULL) {
        kvplane_answer(call, KVB_ERR_UNSUPPORTED);
    } else {
        kv->callbacks->reset_local(kv->ctx, call, msg.preempt);
    }
    return KVB_OK;
}

static kvb_status_t on_release(struct kvplane *kv, const struct kvb_frame *frame,
                               struct kvb_span payload)
{
    struct kvb_link_release msg;
    kvb_status_t status = kvb_link_release_unpack(payload, &msg);
    if (status != KVB_OK) {
        return status;
    }
    struct kvplane_call *call = call_create(kv, frame, msg.operation);
    if (call == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    const char *tags[KVB_TAGS_MAX];
    bool offload[KVB_TAGS_MAX];
    for (uint32_t i = 0; i < msg.ntags; i++) {
        tags[i] = msg.tags[i].tag;
        offload[i] = msg.tags[i].offload;
        /* Any memory but the cache may hold weights. */
        call->writes_weights |= msg.commit && !offload[i] && strcmp(tags[i], "kv_cache") != 0;
    }
    if (kv->callbacks->release == NULL) {
        kvplane_answer(call, KVB_ERR_UNSUPPORTED);
    } else {
        kv->callbacks->release(kv->ctx, call, msg.commit, tags, offload, msg.ntags);
    }
    return KVB_OK;
}

static kvb_status_t on_restore(struct kvplane *kv, const struct kvb_frame *frame,
                               struct kvb_span payload)
{
    struct kvb_link_restore msg;
    kvb_status_t status = kvb_link_restore_unpack(payload, &msg);
    if (status != KVB_OK) {
        return status;
    }
    struct kvplane_call *call = call_create(kv, frame, msg.operation);
    if (call == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    const char *tags[KVB_TAGS_MAX];
    for (uint32_t i = 0; i < msg.ntags; i++) {
        tags[i] = msg.tags[i];
    }
    if (kv->callbacks->restore == NULL) {
        kvplane_answer(call, KVB_ERR_UNSUPPORTED);
    } else {
        kv->callbacks->restore(kv->ctx, call, tags, msg.ntags);
    }
    return KVB_OK;
}

static kvb_status_t on_fingerprint(struct kvplane *kv, const struct kvb_frame *frame,
                                   struct kvb_span payload)
{
    if (payload.len != 0) {
        return KVB_ERR_PROTOCOL;
    }
    struct kvplane_call *call = call_create(kv, frame, 0);
    if (call == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    if (kv->callbacks->fingerprint == NULL) {
        kvplane_answer(call, KVB_ERR_UNSUPPORTED);
    } else {
        kv->callbacks->fingerprint(kv->ctx, call);
    }
    return KVB_OK;
}

static kvb_status_t on_relay(struct kvplane *kv, const struct kvb_frame *frame,
                             struct kvb_span payload)
{
    struct kvb_link_relay msg;
    kvb_status_t status = kvb_link_relay_unpack(payload, &msg);
    if (status != KVB_OK) {
        return status;
    }
    struct kvplane_call *call = call_create(kv, frame, msg.operation);
    if (call == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    if (kv->callbacks->relay == NULL) {
        kvplane_answer(call, KVB_ERR_UNSUPPORTED);
    } else {
        const char *body = msg.body.len == 0 ? "" : (const char *)msg.body.data;
        kv->callbacks->relay(kv->ctx, call, msg.method, body, msg.body.len);
    }
    return KVB_OK;
}

static kvb_status_t on_event(struct kvplane *kv, const struct kvb_frame *frame,
                             struct kvb_span payload)
{
    (void)kv, (void)frame, (void)payload; /* told, not asked: an engine need not act on any */
    return KVB_OK;
}

kvb_status_t kvplane_upcalls_request(struct kvplane *kv, const struct kvb_frame *frame,
                                     struct kvb_span payload)
{
    static const struct {
        enum kvb_link_type type;
        kvb_status_t (*handle)(struct kvplane *, const struct kvb_frame *, struct kvb_span);
    } handlers[] = {
        {KVB_LINK_LINEAGE, on_lineage},
        {KVB_LINK_PAUSE, on_pause},
        {KVB_LINK_RESUME, on_resume},
        {KVB_LINK_RESET_LOCAL, on_reset_local},
        {KVB_LINK_RELEASE, on_release},
        {KVB_LINK_RESTORE, on_restore},
        {KVB_LINK_FINGERPRINT, on_fingerprint},
        {KVB_LINK_RELAY, on_relay},
        {KVB_LINK_STATE, on_state},
        {KVB_LINK_EVENT, on_event},
    };
    if (kv->nupcalls >= UPCALLS_MAX) {
        return KVB_ERR_PROTOCOL;
    }
    for (size_t i = 0; i < sizeof handlers / sizeof handlers[0]; i++) {
        if (handlers[i].type == frame->type) {
            return handlers[i].handle(kv, frame, payload);
        }
    }
    return KVB_ERR_PROTOCOL;
}
