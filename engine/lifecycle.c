/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the daemon asks of the engine, answered as api/kvplane.h says and no better: a tag that was
 * released has lost its bytes, a cache that was not reset keeps its blocks, a pause is answered
 * when it is true. Every call may come again.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An answer that misbehaviour holds back, or a pause that waits for idle. */
struct answer {
    struct kvb_list link;
    enum kve_call kind;
    struct kvplane_call *call;
    enum kvplane_pause_mode mode;
    enum kve_how how;
    uint64_t deadline_ns;
    int result;
    uint32_t held;
    bool written;
    size_t len;
    char text[];
};

static const char *const call_texts[KVE_CALL_COUNT] = {
#define X(name) [KVE_CALL_##name] = #name,
    KVE_CALLS(X)
#undef X
};

/* The line by which the daemon's operation is found in this log. */
static void log_answer(const struct kve_engine *engine, const struct answer *answer)
{
    uint64_t operation = kvplane_call_operation(answer->call);
    if (operation != 0) {
        struct kvb_log_context before = kvb_log_enter(NULL, operation);
        KVB_LOG(INFO, "engine answers", KVB_STR("instance", engine->options.instance),
                KVB_STR("call", call_texts[answer->kind]), KVB_I64("result", answer->result));
        kvb_log_set_context(&before);
    }
}

static void send_answer(const struct kve_engine *engine, const struct answer *answer)
{
    log_answer(engine, answer);
    switch (answer->kind) {
    case KVE_CALL_pause:
    case KVE_CALL_resume:
    case KVE_CALL_release:
    case KVE_CALL_restore:
        kvplane_answer(answer->call, answer->result);
        return;
    case KVE_CALL_reset_local:
        kvplane_answer_reset(answer->call, answer->result, answer->held);
        return;
    case KVE_CALL_fingerprint:
        kvplane_answer_text(answer->call, answer->result, answer->text);
        return;
    case KVE_CALL_relay:
        kvplane_answer_relay(answer->call, answer->result, answer->written, answer->text,
                             answer->len);
        return;
    case KVE_CALL_COUNT:
        break;
    }
    KVB_UNREACHABLE("a kind of call");
}

/* text may be NULL. */
static void answer_call(struct kve_engine *engine, enum kve_how how, struct answer what,
                        const char *text, size_t len)
{
    struct answer *answer;

    if (how == KVE_NEVER) {
        return;
    }
    answer = malloc(sizeof *answer + len + 1);
    if (answer == NULL) {
        what.result = KVPLANE_ERR_NO_MEMORY;
        what.len = 0;
        kvplane_answer(what.call, what.result);
        return;
    }
    *answer = what;
    answer->len = len;
    memcpy(answer->text, text == NULL ? "" : text, len);
    answer->text[len] = '\0';
    if (how == KVE_LATE) {
        answer->deadline_ns =
            kvb_deadline_in_ms(&kvb_clock_real, engine->options.misbehave.calls[what.kind].late_ms);
        kvb_list_push_back(&engine->late, &answer->link);
        return;
    }
    send_answer(engine, answer);
    free(answer);
}

static void answer_plain(struct kve_engine *engine, enum kve_how how, enum kve_call kind,
                         struct kvplane_call *call, int result)
{
    answer_call(engine, how, (struct answer){.kind = kind, .call = call, .result = result}, NULL,
                0);
}

void kve_answer_relay(struct kve_engine *engine, struct kvplane_call *call, int result,
                      bool weights_written, const json_t *answer, const char *message)
{
    char *text = answer == NULL ? NULL : json_dumps(answer, JSON_COMPACT);
    const char *body = text != NULL ? text : message != NULL ? message : "{}";

    answer_call(
        engine, kve_misbehave_next(&engine->options.misbehave, KVE_CALL_relay),
        (struct answer){
            .kind = KVE_CALL_relay, .call = call, .result = result, .written = weights_written},
        body, strlen(body));
    free(text);
}

/* ---- scheduling ---- */

static void on_pause(void *ctx, struct kvplane_call *call, enum kvplane_pause_mode mode)
{
    struct kve_engine *engine = ctx;
    enum kve_how how = kve_misbehave_next(&engine->options.misbehave, KVE_CALL_pause);
    struct answer *pause;

    engine->changed = true;
    if (how == KVE_REFUSE) {
        kvplane_answer(call, KVPLANE_ERR_IO);
        return;
    }
    pause = calloc(1, sizeof *pause + 1);
    if (pause == NULL) {
        kvplane_answer(call, KVPLANE_ERR_NO_MEMORY);
        return;
    }
    engine->paused = true;
    engine->pause_mode = mode;
    if (mode == KVPLANE_PAUSE_ABORT) {
        (void)kve_requests_abort(engine);
    }
    pause->kind = KVE_CALL_pause;
    pause->call = call;
    pause->mode = mode;
    pause->how = how;
    kvb_list_push_back(&engine->pauses, &pause->link);
}

static void end_pauses(struct kve_engine *engine, int result)
{
    kvb_list_each(&engine->pauses, link)
    {
        struct answer *pause = kvb_container_of(link, struct answer, link);
        if (result == KVPLANE_OK && !kve_requests_idle(engine, pause->mode)) {
            continue;
        }
        kvb_list_remove(link);
        answer_plain(engine, pause->how, KVE_CALL_pause, pause->call, result);
        free(pause);
    }
}

static void on_resume(void *ctx, struct kvplane_call *call)
{
    struct kve_engine *engine = ctx;
    enum kve_how how = kve_misbehave_next(&engine->options.misbehave, KVE_CALL_resume);

    engine->changed = true;
    if (how == KVE_REFUSE) {
        kvplane_answer(call, KVPLANE_ERR_IO);
        return;
    }
    if (engine->kv_cache.fd < 0 || engine->weights.fd < 0) {
        engine->counts.errors++;
        if (engine->story[0] == '\0') {
            snprintf(engine->story, sizeof engine->story,
                     "instance %s was resumed while its memory was not mapped",
                     engine->options.instance);
        }
        answer_plain(engine, how, KVE_CALL_resume, call, KVPLANE_ERR_BAD_STATE);
        return;
    }
    end_pauses(engine, KVPLANE_ERR_CANCELED);
    engine->paused = false;
    engine->weight_change_running = false;
    kve_requests_unstall(engine);
    answer_plain(engine, how, KVE_CALL_resume, call, KVPLANE_OK);
}

static void on_reset_local(void *ctx, struct kvplane_call *call, bool preempt)
{
    struct kve_engine *engine = ctx;
    enum kve_how how = kve_misbehave_next(&engine->options.misbehave, KVE_CALL_reset_local);
    uint32_t held = kve_pool_held(engine->pool);
    int result = KVPLANE_OK;

    engine->changed = true;
    if (how == KVE_REFUSE) {
        kvplane_answer_reset(call, KVPLANE_ERR_IO, held);
        return;
    }
    if (held > 0 && !preempt) {
        result = KVPLANE_ERR_BUSY;
    } else {
        kve_requests_preempt(engine);
        kve_pool_reset(engine->pool);
        engine->cache_closed = false;
        engine->local_reset_done = true;
        held = kve_pool_held(engine->pool);
    }
    answer_call(
        engine, how,
        (struct answer){.kind = KVE_CALL_reset_local, .call = call, .result = result, .held = held},
        NULL, 0);
}

/* ---- memory ---- */

static struct kve_memory *memory_of(struct kve_engine *engine, const char *tag)
{
    if (strcmp(tag, "kv_cache") == 0) {
        return &engine->kv_cache;
    }
    return strcmp(tag, "weights") == 0 ? &engine->weights : NULL;
}

static int release_one(struct kve_memory *memory, bool commit, bool offload)
{
    kvb_status_t status = KVB_OK;

    if (offload && memory->fd >= 0) {
        status = kve_memory_offload(memory);
    }
    if (status == KVB_OK && commit) {
        kve_memory_unmap(memory);
        if (!offload) {
            kve_memory_drop_aside(memory);
        }
    }
    return (int)status;
}

static void on_release(void *ctx, struct kvplane_call *call, bool commit, const char *const *tags,
                       const bool *offload, size_t ntags)
{
    struct kve_engine *engine = ctx;
    enum kve_how how = kve_misbehave_next(&engine->options.misbehave, KVE_CALL_release);
    int result = KVPLANE_OK;

    if (how == KVE_REFUSE) {
        kvplane_answer(call, KVPLANE_ERR_IO);
        return;
    }
    for (size_t i = 0; i < ntags && result == KVPLANE_OK; i++) {
        struct kve_memory *memory = memory_of(engine, tags[i]);
        result = memory == NULL ? KVPLANE_ERR_INVALID : release_one(memory, commit, offload[i]);
    }
    answer_plain(engine, how, KVE_CALL_release, call, result);
}

static int register_memory(struct kve_engine *engine, uint32_t number, const char *tag,
                           const struct kve_memory *memory)
{
    const struct kvplane_region region = {
        .region = number,
        .kind = KVPLANE_MEMORY_HOST,
        .tag = tag,
        .fd = memory->fd,
        .len = memory->len,
        .generation = memory->generation,
    };
    return kvplane_register_region(engine->kv, &region, NULL, NULL);
}

static int register_tag(struct kve_engine *engine, const char *tag)
{
    bool kv_cache = strcmp(tag, "kv_cache") == 0;

    return kv_cache ? register_memory(engine, KVE_REGION_KV_CACHE, tag, &engine->kv_cache)
                    : register_memory(engine, KVE_REGION_WEIGHTS, tag, &engine->weights);
}

static int restore_one(struct kve_memory *memory)
{
    kvb_status_t status = KVB_OK;

    if (memory->fd >= 0) {
        kve_memory_renew(memory);
        kve_memory_drop_aside(memory);
        return KVPLANE_OK;
    }
    status = kve_memory_map(memory);
    if (status == KVB_OK && memory->aside_fd >= 0) {
        status = kve_memory_reload(memory);
        if (status != KVB_OK) {
            kve_memory_unmap(memory);
        }
    }
    return (int)status;
}

static void on_restore(void *ctx, struct kvplane_call *call, const char *const *tags, size_t ntags)
{
    struct kve_engine *engine = ctx;
    enum kve_how how = kve_misbehave_next(&engine->options.misbehave, KVE_CALL_restore);
    int result = KVPLANE_OK;

    engine->changed = true;
    if (how == KVE_REFUSE) {
        kvplane_answer(call, KVPLANE_ERR_IO);
        return;
    }
    for (size_t i = 0; i < ntags && result == KVPLANE_OK; i++) {
        struct kve_memory *memory = memory_of(engine, tags[i]);
        result = memory == NULL ? KVPLANE_ERR_INVALID : restore_one(memory);
        if (result == KVPLANE_OK) {
            result = register_tag(engine, tags[i]);
        }
    }
    answer_plain(engine, how, KVE_CALL_restore, call, result);
}

void kve_lifecycle_register(struct kve_engine *engine)
{
    static const char *const tags[] = {"kv_cache", "weights"};

    for (size_t i = 0; i < 2; i++) {
        struct kve_memory *memory = memory_of(engine, tags[i]);
        if (memory->fd < 0) {
            continue;
        }
        kve_memory_renew(memory);
        engine->counts.errors += register_tag(engine, tags[i]) != KVPLANE_OK;
    }
}

/* ---- what it says about itself ---- */

static void on_fingerprint(void *ctx, struct kvplane_call *call)
{
    struct kve_engine *engine = ctx;
    enum kve_how how = kve_misbehave_next(&engine->options.misbehave, KVE_CALL_fingerprint);
    char text[40] = "";
    int result = KVPLANE_OK;

    if (how == KVE_REFUSE) {
        result = KVPLANE_ERR_IO;
    } else if (!engine->fingerprinting) {
        result = KVPLANE_ERR_UNSUPPORTED;
    } else if (engine->weights.fd < 0) {
        result = KVPLANE_ERR_BAD_STATE;
    } else {
        engine->computer->fingerprint(engine, text);
    }
    answer_call(engine, how,
                (struct answer){.kind = KVE_CALL_fingerprint, .call = call, .result = result}, text,
                strlen(text));
}

static void on_lineage(void *ctx, bool left, const char *name)
{
    struct kve_engine *engine = ctx;

    engine->changed = true;
    engine->named = name[0] != '\0';
    engine->weights_written = false;
    if (left) {
        /* Nothing of before may be used again, but under its old token. Without a token for each
         * block, that is the whole cache until it was reset. */
        engine->local_reset_done = false;
        engine->cache_closed = !engine->options.tracks_lineage;
    }
}

static void on_state(void *ctx, struct kvplane_state *state)
{
    const struct kve_engine *engine = ctx;
    const struct kve_memory *memories[] = {&engine->kv_cache, &engine->weights};
    static const char *const tags[] = {"kv_cache", "weights"};

    *state = (struct kvplane_state){
        .paused = engine->paused && kvb_list_empty(&engine->pauses),
        .pause_mode = engine->pause_mode,
        .weight_change_running = engine->weight_change_running,
        .weights_written = engine->weights_written,
        .local_reset_done = engine->local_reset_done,
        .ntags = 2,
    };
    for (size_t i = 0; i < 2; i++) {
        state->tags[i].tag = tags[i];
        state->tags[i].residency = memories[i]->fd >= 0         ? KVPLANE_RESIDENT
                                   : memories[i]->aside_fd >= 0 ? KVPLANE_OFFLOADED
                                                                : KVPLANE_DISCARDED;
    }
}

static void on_disconnected(void *ctx, int reason)
{
    struct kve_engine *engine = ctx;

    engine->changed = true;
    (void)reason;
    engine->attached = false;
    engine->lost = true;
    engine->session++;
    kve_lifecycle_forget(engine);
}

static void on_attached(void *ctx, int result)
{
    struct kve_engine *engine = ctx;

    engine->changed = true;
    engine->attached = result == KVPLANE_OK;
    engine->refused = result != KVPLANE_OK;
    if (engine->attached) {
        engine->told_running = UINT32_MAX;
        kve_lifecycle_register(engine);
    }
}

const struct kvplane_callbacks kve_callbacks = {
    .pause = on_pause,
    .resume = on_resume,
    .reset_local = on_reset_local,
    .release = on_release,
    .restore = on_restore,
    .fingerprint = on_fingerprint,
    .relay = kve_relay,
    .lineage = on_lineage,
    .state = on_state,
    .disconnected = on_disconnected,
    .attached = on_attached,
};

/* ---- the turn ---- */

void kve_lifecycle_turn(struct kve_engine *engine)
{
    uint64_t now_ns = kvb_now_ns(&kvb_clock_real);

    end_pauses(engine, KVPLANE_OK);
    kvb_list_each(&engine->late, link)
    {
        struct answer *answer = kvb_container_of(link, struct answer, link);
        if (answer->deadline_ns <= now_ns) {
            kvb_list_remove(link);
            send_answer(engine, answer);
            free(answer);
        }
    }
}

static void drop(struct kvb_list *list)
{
    kvb_list_each(list, link)
    {
        kvb_list_remove(link);
        free(kvb_container_of(link, struct answer, link));
    }
}

void kve_lifecycle_forget(struct kve_engine *engine)
{
    drop(&engine->pauses);
    drop(&engine->late);
}

int kve_lifecycle_wait_ms(const struct kve_engine *engine)
{
    uint64_t now_ns = kvb_now_ns(&kvb_clock_real);
    int wait_ms = -1;

    kvb_list_each(&engine->late, link)
    {
        const struct answer *answer = kvb_container_of(link, struct answer, link);
        int left = answer->deadline_ns <= now_ns
                       ? 0
                       : (int)((answer->deadline_ns - now_ns) / KVB_NS_PER_MS) + 1;
        wait_ms = wait_ms < 0 || left < wait_ms ? left : wait_ms;
    }
    return wait_ms;
}
