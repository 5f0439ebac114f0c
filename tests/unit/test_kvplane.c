/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_daemon.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* An engine that records what is asked of it, and answers at once or keeps the call. */
struct engine {
    struct fake_daemon daemon;
    struct kvplane *kv;
    struct kvb_link_hello hello; /* the last one that the daemon took */
    struct kvplane_state state;
    bool keep; /* do not answer: leave the call in `kept` */
    struct kvplane_call *kept[8];
    size_t nkept;
    int answer; /* result */
    int attached, attached_result;
    int disconnected, reason;
    bool reattach_at_once;
    bool leaves;    /* its lineage, when it is asked for its state */
    char asked[64]; /* the last callback */
    char detail[256];
    kvplane_token token_in_callback;
};

static bool take(struct engine *engine, struct kvplane_call *call, const char *name)
{
    snprintf(engine->asked, sizeof engine->asked, "%s", name);
    if (engine->keep) {
        engine->kept[engine->nkept++] = call;
    }
    return !engine->keep;
}

static void on_pause(void *ctx, struct kvplane_call *call, enum kvplane_pause_mode mode)
{
    struct engine *engine = ctx;
    snprintf(engine->detail, sizeof engine->detail, "%d", mode);
    if (take(engine, call, "pause")) {
        kvplane_answer(call, engine->answer);
    }
}

static void on_resume(void *ctx, struct kvplane_call *call)
{
    struct engine *engine = ctx;
    if (take(engine, call, "resume")) {
        kvplane_answer(call, engine->answer);
    }
}

static void on_reset_local(void *ctx, struct kvplane_call *call, bool preempt)
{
    struct engine *engine = ctx;
    snprintf(engine->detail, sizeof engine->detail, "%d", preempt);
    if (take(engine, call, "reset_local")) {
        kvplane_answer_reset(call, engine->answer, 7);
    }
}

static void on_release(void *ctx, struct kvplane_call *call, bool commit, const char *const *tags,
                       const bool *offload, size_t ntags)
{
    struct engine *engine = ctx;
    int at = snprintf(engine->detail, sizeof engine->detail, "%d", commit);
    for (size_t i = 0; i < ntags; i++) {
        at += snprintf(engine->detail + at, sizeof engine->detail - (size_t)at, " %s:%d", tags[i],
                       offload[i]);
    }
    if (take(engine, call, "release")) {
        kvplane_answer(call, engine->answer);
    }
}

static void on_restore(void *ctx, struct kvplane_call *call, const char *const *tags, size_t ntags)
{
    struct engine *engine = ctx;
    engine->detail[0] = '\0';
    for (size_t i = 0; i < ntags; i++) {
        strcat(engine->detail, tags[i]);
        strcat(engine->detail, " ");
    }
    if (take(engine, call, "restore")) {
        kvplane_answer(call, engine->answer);
    }
}

static void on_fingerprint(void *ctx, struct kvplane_call *call)
{
    struct engine *engine = ctx;
    if (take(engine, call, "fingerprint")) {
        kvplane_answer_text(call, engine->answer, "fp-1");
    }
}

static void on_relay(void *ctx, struct kvplane_call *call, const char *method, const char *body,
                     size_t len)
{
    struct engine *engine = ctx;
    snprintf(engine->detail, sizeof engine->detail, "%s %.*s", method, len > 100 ? 100 : (int)len,
             body);
    if (take(engine, call, "relay")) {
        kvplane_answer_relay(call, engine->answer, true, "{\"n\":1}", 7);
    }
}

static void on_lineage(void *ctx, bool left, const char *name)
{
    struct engine *engine = ctx;
    snprintf(engine->asked, sizeof engine->asked, "lineage");
    snprintf(engine->detail, sizeof engine->detail, "%d %s", left, name);
    engine->token_in_callback = kvplane_get_token(engine->kv);
}

static void on_state(void *ctx, struct kvplane_state *state)
{
    struct engine *engine = ctx;
    *state = engine->state;
    if (engine->leaves) {
        engine->leaves = false;
        cr_assert_eq(kvplane_leave(engine->kv, NULL, NULL), KVPLANE_ERR_BAD_STATE);
    }
}

static void on_disconnected(void *ctx, int reason)
{
    struct engine *engine = ctx;
    engine->disconnected++;
    engine->reason = reason;
    if (engine->reattach_at_once) {
        cr_assert_eq(kvplane_reattach(engine->kv), KVPLANE_OK);
    }
}

static void on_attached(void *ctx, int result)
{
    struct engine *engine = ctx;
    engine->attached++;
    engine->attached_result = result;
}

static const struct kvplane_callbacks callbacks = {
    .pause = on_pause,
    .resume = on_resume,
    .reset_local = on_reset_local,
    .release = on_release,
    .restore = on_restore,
    .fingerprint = on_fingerprint,
    .relay = on_relay,
    .lineage = on_lineage,
    .state = on_state,
    .disconnected = on_disconnected,
    .attached = on_attached,
};
static const struct kvplane_callbacks only_state = {.state = on_state};

static struct kvplane_options options_of(struct engine *engine)
{
    return (struct kvplane_options){.socket = engine->daemon.path,
                                    .instance = "llm-0",
                                    .layout = "model/fp16/b16",
                                    .weights_name = "v1",
                                    .callbacks = &callbacks,
                                    .ctx = engine};
}

static struct engine *engine_create(void)
{
    struct engine *engine = calloc(1, sizeof *engine);
    engine->state.ntags = 2;
    engine->state.tags[0] = (struct kvplane_tag_state){"kv_cache", KVPLANE_RESIDENT};
    engine->state.tags[1] = (struct kvplane_tag_state){"weights", KVPLANE_OFFLOADED};
    fake_daemon_init(&engine->daemon);
    fake_daemon_listen(&engine->daemon);
    return engine;
}

static void engine_open(struct engine *engine, const struct kvplane_options *options)
{
    cr_assert_eq(kvplane_open(options, &engine->kv), KVPLANE_OK, "%s", kvplane_last_error(NULL));
}

static void attach(struct engine *engine)
{
    int before = engine->attached;
    cr_assert(fake_daemon_greet(&engine->daemon, engine->kv, KVB_OK, "", &engine->hello));
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, kvplane_attached(engine->kv)));
    cr_assert_eq(engine->attached, before + 1);
    cr_assert_eq(engine->attached_result, KVPLANE_OK);
}

static struct engine *attached_engine(void)
{
    struct engine *engine = engine_create();
    struct kvplane_options options = options_of(engine);
    engine_open(engine, &options);
    attach(engine);
    return engine;
}

static void engine_destroy(struct engine *engine)
{
    kvplane_close(engine->kv);
    fake_daemon_cleanup(&engine->daemon);
    free(engine);
}

/* Counts completions, and keeps the last results. */
struct done {
    int times;
    int result;
    size_t n;
    int results[8];
    uint32_t hits[8];
    struct kvplane *again; /* submits another call from inside the callback */
};

static void on_done(void *arg, int result)
{
    struct done *done = arg;
    done->times++;
    done->result = result;
}

static void on_lookup(void *arg, int result, const uint32_t *hits, size_t ngroups)
{
    struct done *done = arg;
    done->times++;
    done->result = result;
    done->n = ngroups;
    memcpy(done->hits, hits, ngroups * sizeof *hits);
}

static struct kvplane_slice slice = {.region = 1, .offset = 0, .len = 4096};
static struct kvplane_entry entry = {.key = "key", .key_len = 3, .slices = &slice, .nslices = 1};
static const struct kvplane_key key = {.key = "key", .len = 3};
static const struct kvplane_keys keys = {.group = 0, .keys = &key, .nkeys = 1};
static const kvplane_token token = {1, 2};

static void on_batch(void *arg, const int *results, size_t n)
{
    struct done *done = arg;
    done->times++;
    done->n = n;
    memcpy(done->results, results, n * sizeof *results);
    done->result = results[0];
    if (done->again != NULL) {
        int result = kvplane_put(done->again, &entry, 1, NULL, NULL);
        cr_assert(result == KVPLANE_OK || result == KVPLANE_ERR_BAD_STATE, "%d", result);
        cr_assert_eq(kvplane_process(done->again), KVPLANE_ERR_BAD_STATE);
    }
}

static void reply_batch(struct engine *engine, const struct kvb_frame *frame,
                        kvb_status_t *statuses, uint32_t n)
{
    struct kvb_link_batch_reply reply = {n, statuses};
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1u << 16);
    kvb_link_batch_reply_pack(&writer, &reply);
    fake_daemon_reply(&engine->daemon, engine->kv, frame, &writer);
}

static struct kvb_writer writer_of(void)
{
    struct kvb_writer writer;
    kvb_writer_init(&writer, 64u << 20);
    return writer;
}

/* ---- attaching ---- */

Test(kvplane, hello_says_what_the_options_and_the_state_say)
{
    struct engine *engine = engine_create();
    struct kvplane_options options = options_of(engine);
    options.tenant = "acme";
    options.roles = KVPLANE_ROLE_WORKER;
    options.rank = 1;
    options.world_size = 2;
    options.tp_size = 1;
    options.store_tp_size = 4;
    static const struct kvplane_group groups[] = {{16, 0}, {32, 1024}};
    options.groups = groups;
    options.ngroups = 2;
    options.tracks_lineage = true;
    options.block_tokens = 512;
    engine->state.paused = true;
    engine->state.pause_mode = KVPLANE_PAUSE_KEEP;
    engine->state.local_reset_done = true;
    engine_open(engine, &options);
    attach(engine);
    const struct kvb_link_hello *hello = &engine->hello;
    cr_assert_eq(hello->version, KVB_LINK_VERSION);
    cr_assert_str_eq(hello->instance, "llm-0");
    cr_assert_str_eq(hello->tenant, "acme");
    cr_assert_str_eq(hello->layout, "model/fp16/b16");
    cr_assert_str_eq(hello->weights_name, "v1");
    cr_assert_eq(hello->roles, KVB_ROLE_WORKER);
    cr_assert_eq(hello->rank, 1);
    cr_assert_eq(hello->world_size, 2);
    cr_assert_eq(hello->local_world_size, 2);
    cr_assert_eq(hello->tp_size, 1);
    cr_assert_eq(hello->store_tp_size, 4);
    cr_assert_eq(hello->block_tokens, 512);
    cr_assert_eq(hello->ngroups, 2);
    cr_assert_eq(hello->groups[1].window_tokens, 1024);
    cr_assert_eq(hello->flags, KVB_ENGINE_TRACKS_LINEAGE | KVB_ENGINE_FINGERPRINTS);
    cr_assert(kvb_id_none(hello->token.id));
    cr_assert(hello->state.paused);
    cr_assert_eq(hello->state.pause_mode, KVB_PAUSE_KEEP);
    cr_assert(hello->state.local_reset_done);
    cr_assert_eq(hello->state.ntags, 2);
    cr_assert_str_eq(hello->state.tags[1].tag, "weights");
    cr_assert_eq(hello->state.tags[1].residency, KVB_OFFLOADED);
    engine_destroy(engine);
}

Test(kvplane, a_refusal_is_told_with_its_reason_and_can_be_tried_again)
{
    struct engine *engine = engine_create();
    struct kvplane_options options = options_of(engine);
    engine_open(engine, &options);
    cr_assert(fake_daemon_greet(&engine->daemon, engine->kv, KVB_ERR_INVALID,
                                "tenant acme is not allowed here", &engine->hello));
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->attached == 1));
    cr_assert_eq(engine->attached_result, KVPLANE_ERR_REFUSED);
    cr_assert_str_eq(kvplane_last_error(engine->kv), "tenant acme is not allowed here");
    cr_assert_not(kvplane_attached(engine->kv));
    cr_assert_eq(kvplane_process(engine->kv), KVPLANE_ERR_DISCONNECTED);
    cr_assert_eq(kvplane_wait(engine->kv, -1), KVPLANE_ERR_DISCONNECTED, "it does not hang");
    cr_assert_eq(engine->disconnected, 0);
    fake_daemon_hang_up(&engine->daemon);
    cr_assert_eq(kvplane_reattach(engine->kv), KVPLANE_OK);
    attach(engine);
    cr_assert_str_eq(kvplane_last_error(engine->kv), "");
    engine_destroy(engine);
}

Test(kvplane, a_daemon_that_is_not_there_yet_is_found_later)
{
    struct engine *engine = engine_create();
    struct kvplane_options options = options_of(engine);
    fake_daemon_stop_listening(&engine->daemon);
    engine_open(engine, &options);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, kvplane_last_error(engine->kv)[0] != '\0'));
    cr_assert(strstr(kvplane_last_error(engine->kv), engine->daemon.path) != NULL);
    cr_assert_eq(engine->attached, 0);
    fake_daemon_listen(&engine->daemon);
    attach(engine);
    engine_destroy(engine);
}

/* Each of these ends an attempt before hello is answered: the library tries again by itself. */
Test(kvplane, an_attempt_that_fails_before_hello_is_answered_is_repeated)
{
    struct engine *engine = engine_create();
    struct kvplane_options options = options_of(engine);
    engine_open(engine, &options);
    for (int how = 0; how < 5; how++) {
        if (how == 0) { /* hangs up at once */
            cr_assert(fake_daemon_accept(&engine->daemon, engine->kv));
        } else if (how == 1) { /* hangs up after hello */
            cr_assert(fake_daemon_accept(&engine->daemon, engine->kv));
            cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
        } else if (how == 2) { /* garbage */
            cr_assert(fake_daemon_accept(&engine->daemon, engine->kv));
            cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
            fake_daemon_send_bytes(&engine->daemon, engine->kv, "GET / HTTP/1.1\r\n\r\n........",
                                   26);
        } else if (how == 3) { /* an answer to another hello */
            cr_assert(fake_daemon_accept(&engine->daemon, engine->kv));
            cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
            struct kvb_writer writer = writer_of();
            kvb_link_hello_reply_pack(&writer, &(struct kvb_link_hello_reply){.session = 1});
            engine->daemon.frame.seq++;
            fake_daemon_reply(&engine->daemon, engine->kv, &engine->daemon.frame, &writer);
        } else { /* not yet */
            cr_assert(fake_daemon_greet(&engine->daemon, engine->kv, KVB_ERR_AGAIN, "starting",
                                        &engine->hello));
        }
        if (how < 2) {
            fake_daemon_hang_up(&engine->daemon);
        } else { /* it must be the library that hangs up */
            char byte;
            cr_assert_not(fake_daemon_read(&engine->daemon, engine->kv, &byte, 1));
            fake_daemon_hang_up(&engine->daemon);
        }
    }
    cr_assert_eq(engine->attached, 0);
    attach(engine);
    cr_assert_eq(engine->disconnected, 0);
    engine_destroy(engine);
}

Test(kvplane, a_call_before_the_reply_to_hello_is_not_allowed)
{
    struct engine *engine = engine_create();
    struct kvplane_options options = options_of(engine);
    engine_open(engine, &options);
    cr_assert(fake_daemon_accept(&engine->daemon, engine->kv));
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    struct kvb_writer writer = writer_of();
    kvb_link_resume_pack(&writer, &(struct kvb_link_resume){1});
    fake_daemon_send(&engine->daemon, engine->kv, KVB_LINK_RESUME, 0, 1, &writer);
    cr_assert_not(fake_daemon_take(&engine->daemon, engine->kv));
    cr_assert_str_eq(engine->asked, "");
    engine_destroy(engine);
}

Test(kvplane, options_are_checked_and_the_error_names_the_option)
{
    struct engine *engine = engine_create();
    struct kvplane_options good = options_of(engine);
    struct kvplane_options bad[9];
    static const char *const names[] = {"socket",       "instance",  "instance", "tenant", "layout",
                                        "weights_name", "callbacks", "rank",     "roles"};
    char long_path[200];
    memset(long_path, 'p', sizeof long_path);
    long_path[199] = '\0';
    for (size_t i = 0; i < 9; i++) {
        bad[i] = good;
    }
    struct kvplane_callbacks none = {.pause = NULL};
    bad[0].socket = long_path;
    bad[1].instance = NULL;
    bad[2].instance = "with space";
    bad[3].tenant = "";
    bad[4].layout = NULL;
    bad[5].weights_name = "line\nbreak";
    bad[6].callbacks = &none;
    bad[7].rank = 1;
    bad[8].roles = 4;
    for (size_t i = 0; i < 9; i++) {
        struct kvplane *kv = NULL;
        cr_assert_eq(kvplane_open(&bad[i], &kv), KVPLANE_ERR_INVALID, "%s", names[i]);
        cr_assert_null(kv);
        cr_assert(strncmp(kvplane_last_error(NULL), names[i], strlen(names[i])) == 0, "%s: %s",
                  names[i], kvplane_last_error(NULL));
    }
    fake_daemon_cleanup(&engine->daemon);
    free(engine);
}

Test(kvplane, a_wrong_state_is_told_to_the_engine_and_not_to_the_daemon)
{
    for (int how = 0; how < 4; how++) {
        struct engine *engine = engine_create();
        struct kvplane_options options = options_of(engine);
        if (how == 0) {
            engine->state.ntags = 9;
        } else if (how == 1) {
            engine->state.tags[0].tag = "kv cache";
        } else if (how == 2) {
            engine->state.tags[1].tag = "kv_cache";
        } else {
            engine->state.tags[1].tag = NULL;
        }
        engine_open(engine, &options);
        cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->attached == 1));
        cr_assert_eq(engine->attached_result, KVPLANE_ERR_INVALID);
        cr_assert(strstr(kvplane_last_error(engine->kv), "state") != NULL);
        engine_destroy(engine);
    }
}

/* ---- calls ---- */

Test(kvplane, a_region_goes_over_with_its_descriptor)
{
    struct engine *engine = attached_engine();
    int memfd = memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_eq(ftruncate(memfd, 8192), 0);
    cr_assert_eq(pwrite(memfd, "hello", 5, 4096), 5);
    struct kvplane_region region = {.region = 3,
                                    .kind = KVPLANE_MEMORY_HOST,
                                    .tag = "kv_cache",
                                    .host_resident = true,
                                    .fd = memfd,
                                    .fd_offset = 4096,
                                    .len = 4096,
                                    .generation = 9};
    struct done done[3] = {{0}};
    for (int i = 0; i < 3; i++) { /* several at once: each descriptor stays with its frame */
        region.region = 3 + (uint32_t)i;
        cr_assert_eq(kvplane_register_region(engine->kv, &region, on_done, &done[i]), KVPLANE_OK);
    }
    close(memfd); /* it was borrowed for the calls */
    cr_assert_eq(kvplane_pending(engine->kv), 3);
    for (int i = 0; i < 3; i++) {
        struct kvb_link_region msg;
        cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
        cr_assert_eq(engine->daemon.frame.type, KVB_LINK_REGISTER_REGION);
        cr_assert_eq(kvb_link_region_unpack(fake_daemon_payload(&engine->daemon), &msg), KVB_OK);
        cr_assert_eq(msg.region, 3 + i);
        cr_assert_str_eq(msg.tag, "kv_cache");
        cr_assert_eq(msg.flags, KVB_REGION_HOST_RESIDENT);
        cr_assert_eq(msg.fd_offset, 4096);
        cr_assert_eq(msg.len, 4096);
        cr_assert_eq(msg.generation, 9);
        int passed = fake_daemon_take_passed(&engine->daemon);
        cr_assert_geq(passed, 0);
        char bytes[5];
        cr_assert_eq(pread(passed, bytes, 5, 4096), 5);
        cr_assert(memcmp(bytes, "hello", 5) == 0);
        close(passed);
        fake_daemon_reply_status(&engine->daemon, engine->kv, &engine->daemon.frame,
                                 i == 1 ? KVB_ERR_GENERATION : KVB_OK);
        cr_assert(FAKE_DAEMON_UNTIL(engine->kv, done[i].times == 1));
        cr_assert_eq(done[i].result, i == 1 ? KVPLANE_ERR_GENERATION : KVPLANE_OK);
    }
    cr_assert_eq(kvplane_pending(engine->kv), 0);
    engine_destroy(engine);
}

Test(kvplane, answers_find_their_calls_in_any_order)
{
    struct engine *engine = attached_engine();
    struct done done[4] = {{0}};
    struct kvplane_slice slices[2] = {{1, 0, 100}, {2, 50, 200}};
    struct kvplane_entry entries[2] = {{.key = "a",
                                        .key_len = 1,
                                        .placement = "pp",
                                        .placement_len = 2,
                                        .group = 1,
                                        .part = 2,
                                        .token = {3, 4},
                                        .slices = slices,
                                        .nslices = 2},
                                       entry};
    struct kvplane_keys groups[2] = {keys, keys};
    groups[1].group = 5;
    cr_assert_eq(kvplane_lookup(engine->kv, 77, token, groups, 2, on_lookup, &done[0]), KVPLANE_OK);
    cr_assert_eq(kvplane_put(engine->kv, entries, 2, on_batch, &done[1]), KVPLANE_OK);
    cr_assert_eq(kvplane_get(engine->kv, 77, token, entries, 2, on_batch, &done[2]), KVPLANE_OK);
    cr_assert_eq(kvplane_discard(engine->kv, 78), KVPLANE_OK);
    cr_assert_eq(kvplane_pending(engine->kv), 4);

    struct kvb_frame frames[4];
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    frames[0] = engine->daemon.frame;
    struct kvb_link_lookup lookup;
    cr_assert_eq(kvb_link_lookup_unpack(fake_daemon_payload(&engine->daemon), &lookup), KVB_OK);
    cr_assert_eq(lookup.request, 77);
    cr_assert_eq(lookup.token.id.hi, 1);
    cr_assert_eq(lookup.token.id.lo, 2);
    cr_assert_eq(lookup.ngroups, 2);
    cr_assert_eq(lookup.groups[1].group, 5);
    cr_assert(memcmp(lookup.groups[1].keys[0].key.data, "key", 3) == 0);
    kvb_link_lookup_free(&lookup);
    for (int i = 1; i < 3; i++) {
        cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
        frames[i] = engine->daemon.frame;
        struct kvb_link_batch msg;
        cr_assert_eq(kvb_link_batch_unpack(fake_daemon_payload(&engine->daemon), &msg), KVB_OK);
        cr_assert_eq(msg.request, i == 1 ? 0 : 77);
        cr_assert_eq(msg.token.id.lo, i == 1 ? 0 : 2);
        cr_assert_eq(msg.nentries, 2);
        cr_assert_eq(msg.entries[0].token.id.lo, i == 1 ? 4 : 0);
        cr_assert_eq(msg.entries[0].placement.len, 2);
        cr_assert_eq(msg.entries[0].group, 1);
        cr_assert_eq(msg.entries[0].part, 2);
        cr_assert_eq(msg.entries[0].slices[1].offset, 50);
        cr_assert_eq(msg.entries[1].placement.len, 0);
        kvb_link_batch_free(&msg);
    }
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    frames[3] = engine->daemon.frame;
    uint64_t request;
    cr_assert_eq(kvb_link_discard_unpack(fake_daemon_payload(&engine->daemon), &request), KVB_OK);
    cr_assert_eq(request, 78);

    reply_batch(engine, &frames[2], (kvb_status_t[]){KVB_OK, KVB_ERR_NOT_FOUND}, 2);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, done[2].times == 1));
    cr_assert_eq(done[2].results[1], KVPLANE_ERR_NOT_FOUND);
    cr_assert_eq(done[0].times + done[1].times, 0);
    reply_batch(engine, &frames[1], (kvb_status_t[]){KVB_ERR_EXISTS, KVB_OK}, 2);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, done[1].times == 1));
    cr_assert_eq(done[1].results[0], KVPLANE_ERR_EXISTS);
    fake_daemon_reply_status(&engine->daemon, engine->kv, &frames[3], KVB_OK);
    struct kvb_writer writer = writer_of();
    kvb_link_lookup_reply_pack(
        &writer, &(struct kvb_link_lookup_reply){.status = KVB_OK, .ngroups = 2, .hits = {0, 1}});
    fake_daemon_reply(&engine->daemon, engine->kv, &frames[0], &writer);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, done[0].times == 1));
    cr_assert_eq(done[0].n, 2);
    cr_assert_eq(done[0].hits[0], 0);
    cr_assert_eq(done[0].hits[1], 1);
    cr_assert_eq(kvplane_pending(engine->kv), 0);
    engine_destroy(engine);
}

Test(kvplane, a_lookup_that_was_refused_has_no_hits)
{
    struct engine *engine = attached_engine();
    struct done done = {0};
    cr_assert_eq(kvplane_lookup(engine->kv, 1, token, &keys, 1, on_lookup, &done), KVPLANE_OK);
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    struct kvb_writer writer = writer_of();
    kvb_link_lookup_reply_pack(&writer, &(struct kvb_link_lookup_reply){
                                            .status = KVB_ERR_FENCED, .ngroups = 1, .hits = {1}});
    fake_daemon_reply(&engine->daemon, engine->kv, &engine->daemon.frame, &writer);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, done.times == 1));
    cr_assert_eq(done.result, KVPLANE_ERR_FENCED);
    cr_assert_eq(done.n, 1);
    cr_assert_eq(done.hits[0], 0);
    engine_destroy(engine);
}

Test(kvplane, a_full_queue_says_again_until_something_completes)
{
    struct engine *engine = engine_create();
    struct kvplane_options options = options_of(engine);
    options.queue_max = 2;
    engine_open(engine, &options);
    attach(engine);
    struct done done = {0};
    cr_assert_eq(kvplane_put(engine->kv, &entry, 1, on_batch, &done), KVPLANE_OK);
    cr_assert_eq(kvplane_put(engine->kv, &entry, 1, on_batch, &done), KVPLANE_OK);
    cr_assert_eq(kvplane_put(engine->kv, &entry, 1, on_batch, &done), KVPLANE_ERR_AGAIN);
    cr_assert_eq(kvplane_lookup(engine->kv, 1, token, &keys, 1, on_lookup, &done),
                 KVPLANE_ERR_AGAIN);
    cr_assert_eq(kvplane_discard(engine->kv, 1), KVPLANE_ERR_AGAIN);
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    reply_batch(engine, &engine->daemon.frame, (kvb_status_t[]){KVB_OK}, 1);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, done.times == 1));
    cr_assert_eq(kvplane_discard(engine->kv, 1), KVPLANE_OK);
    cr_assert_eq(kvplane_pending(engine->kv), 2);
    engine_destroy(engine);
    cr_assert_eq(done.times, 2);
}

Test(kvplane, too_much_unsent_output_says_again)
{
    struct engine *engine = attached_engine();
    struct kvplane_slice many[256];
    for (int i = 0; i < 256; i++) {
        many[i] = (struct kvplane_slice){1, 0, 1};
    }
    struct kvplane_entry *entries = calloc(1000, sizeof *entries);
    for (int i = 0; i < 1000; i++) {
        entries[i] = entry;
        entries[i].slices = many;
        entries[i].nslices = 256;
    }
    int result = KVPLANE_OK;
    int accepted = 0;
    while ((result = kvplane_put(engine->kv, entries, 1000, NULL, NULL)) == KVPLANE_OK) {
        accepted++;
    }
    cr_assert_eq(result, KVPLANE_ERR_AGAIN);
    cr_assert_lt(accepted, 8); /* 5 MB each */
    for (int i = 0; i < accepted; i++) {
        cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    }
    cr_assert_eq(kvplane_put(engine->kv, entries, 1000, NULL, NULL), KVPLANE_OK);
    free(entries);
    engine_destroy(engine);
}

Test(kvplane, arguments_over_a_limit_are_refused_before_anything_is_sent)
{
    struct engine *engine = attached_engine();
    char long_key[513] = {0};
    struct kvplane_slice big[2] = {{1, 0, 1ull << 30}, {1, 0, 1}};
    struct kvplane_slice wrap = {1, UINT64_MAX, 2};
    struct kvplane_slice empty = {1, 0, 0};
    struct kvplane_slice many[257];
    for (int i = 0; i < 257; i++) {
        many[i] = slice;
    }
    struct {
        struct kvplane_entry entry;
        int result;
    } bad[] = {
        {entry, KVPLANE_ERR_INVALID},   {entry, KVPLANE_ERR_TOO_LARGE},
        {entry, KVPLANE_ERR_INVALID},   {entry, KVPLANE_ERR_INVALID},
        {entry, KVPLANE_ERR_INVALID},   {entry, KVPLANE_ERR_TOO_LARGE},
        {entry, KVPLANE_ERR_TOO_LARGE}, {entry, KVPLANE_ERR_INVALID},
        {entry, KVPLANE_ERR_INVALID},   {entry, KVPLANE_ERR_TOO_LARGE},
    };
    bad[0].entry.key_len = 0;
    bad[1].entry.key = long_key, bad[1].entry.key_len = 513;
    bad[2].entry.group = 16;
    bad[3].entry.part = 1024;
    bad[4].entry.nslices = 0;
    bad[5].entry.slices = many, bad[5].entry.nslices = 257;
    bad[6].entry.slices = big, bad[6].entry.nslices = 2;
    bad[7].entry.slices = &wrap;
    bad[8].entry.slices = &empty;
    bad[9].entry.placement = long_key, bad[9].entry.placement_len = 513;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(kvplane_put(engine->kv, &bad[i].entry, 1, NULL, NULL), bad[i].result, "%zu",
                     i);
        cr_assert_eq(kvplane_get(engine->kv, 1, token, &bad[i].entry, 1, NULL, NULL), bad[i].result,
                     "%zu", i);
    }
    struct kvplane_entry *entries = calloc(4097, sizeof *entries);
    cr_assert_eq(kvplane_put(engine->kv, entries, 0, NULL, NULL), KVPLANE_ERR_INVALID);
    cr_assert_eq(kvplane_put(engine->kv, entries, 4097, NULL, NULL), KVPLANE_ERR_TOO_LARGE);
    for (int i = 0; i < 4096; i++) {
        entries[i] = entry;
        entries[i].slices = many;
        entries[i].nslices = 256;
    }
    cr_assert_eq(kvplane_put(engine->kv, entries, 4096, NULL, NULL), KVPLANE_ERR_TOO_LARGE);
    free(entries);
    cr_assert_eq(kvplane_lookup(engine->kv, 1, token, &keys, 0, NULL, NULL), KVPLANE_ERR_INVALID);
    cr_assert_eq(kvplane_lookup(engine->kv, 1, token, &keys, 17, NULL, NULL),
                 KVPLANE_ERR_TOO_LARGE);
    struct kvplane_keys bad_group = keys;
    bad_group.group = 16;
    cr_assert_eq(kvplane_lookup(engine->kv, 1, token, &bad_group, 1, NULL, NULL),
                 KVPLANE_ERR_INVALID);
    bad_group = (struct kvplane_keys){.nkeys = 4097, .keys = &key};
    cr_assert_eq(kvplane_lookup(engine->kv, 1, token, &bad_group, 1, NULL, NULL),
                 KVPLANE_ERR_TOO_LARGE);
    struct kvplane_region region = {.tag = "kv cache", .fd = 0, .len = 1};
    cr_assert_eq(kvplane_register_region(engine->kv, &region, NULL, NULL), KVPLANE_ERR_INVALID);
    region = (struct kvplane_region){.tag = "kv_cache", .fd = -1, .len = 1};
    cr_assert_eq(kvplane_register_region(engine->kv, &region, NULL, NULL), KVPLANE_ERR_INVALID);
    region = (struct kvplane_region){.tag = "kv_cache", .fd = 0, .len = 0};
    cr_assert_eq(kvplane_register_region(engine->kv, &region, NULL, NULL), KVPLANE_ERR_INVALID);
    cr_assert_eq(kvplane_pending(engine->kv), 0);
    /* Nothing was sent: the next frame is the next good call. */
    cr_assert_eq(kvplane_discard(engine->kv, 5), KVPLANE_OK);
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    cr_assert_eq(engine->daemon.frame.type, KVB_LINK_DISCARD);
    engine_destroy(engine);
}

Test(kvplane, what_the_role_does_not_have_is_refused_here)
{
    for (unsigned role = KVPLANE_ROLE_SCHEDULER; role <= KVPLANE_ROLE_WORKER; role++) {
        struct engine *engine = engine_create();
        struct kvplane_options options = options_of(engine);
        bool worker = role == KVPLANE_ROLE_WORKER;
        int scheduling = worker ? KVPLANE_ERR_INVALID : KVPLANE_OK;
        int working = worker ? KVPLANE_OK : KVPLANE_ERR_INVALID;
        struct kvplane_region region = {.tag = "kv_cache", .fd = 0, .len = 1};
        options.roles = role;
        engine_open(engine, &options);
        attach(engine);
        cr_assert_eq(kvplane_lookup(engine->kv, 1, token, &keys, 1, NULL, NULL), scheduling);
        cr_assert_eq(kvplane_discard(engine->kv, 1), scheduling);
        cr_assert_eq(kvplane_report(engine->kv, 1, 1, 1, 1), scheduling);
        cr_assert_eq(kvplane_leave(engine->kv, NULL, NULL), scheduling);
        cr_assert_eq(kvplane_put(engine->kv, &entry, 1, NULL, NULL), working);
        cr_assert_eq(kvplane_get(engine->kv, 1, token, &entry, 1, NULL, NULL), working);
        cr_assert_eq(kvplane_register_region(engine->kv, &region, NULL, NULL), working);
        engine_destroy(engine);
    }
}

Test(kvplane, only_the_newest_report_follows_one_that_is_on_its_way)
{
    struct engine *engine = engine_create();
    struct kvplane_options options = options_of(engine);
    engine_open(engine, &options);
    cr_assert_eq(kvplane_report(engine->kv, 9, 9, 9, 9), KVPLANE_OK); /* not attached yet */
    attach(engine);
    struct kvb_load load;
    for (uint32_t i = 0; i < 100; i++) {
        cr_assert_eq(kvplane_report(engine->kv, i, 2, 3, 4), KVPLANE_OK);
    }
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    cr_assert_eq(engine->daemon.frame.type, KVB_LINK_REPORT);
    cr_assert_eq(kvb_link_load_unpack(fake_daemon_payload(&engine->daemon), &load), KVB_OK);
    cr_assert_eq(load.running, 9);
    fake_daemon_reply_status(&engine->daemon, engine->kv, &engine->daemon.frame, KVB_OK);
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    cr_assert_eq(kvb_link_load_unpack(fake_daemon_payload(&engine->daemon), &load), KVB_OK);
    cr_assert_eq(load.running, 99);
    cr_assert_eq(load.blocks_held, 4);
    fake_daemon_reply_status(&engine->daemon, engine->kv, &engine->daemon.frame, KVB_OK);
    cr_assert_eq(kvplane_discard(engine->kv, 5), KVPLANE_OK);
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    cr_assert_eq(engine->daemon.frame.type, KVB_LINK_DISCARD, "no third report");
    engine_destroy(engine);
}

Test(kvplane, a_callback_may_submit_but_not_process)
{
    struct engine *engine = attached_engine();
    struct done done = {.again = engine->kv};
    cr_assert_eq(kvplane_put(engine->kv, &entry, 1, on_batch, &done), KVPLANE_OK);
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    reply_batch(engine, &engine->daemon.frame, (kvb_status_t[]){KVB_OK}, 1);
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv)); /* the put of the callback */
    cr_assert_eq(engine->daemon.frame.type, KVB_LINK_PUT);
    cr_assert_eq(done.times, 1);
    engine_destroy(engine);
}

/* ---- the end of a session ---- */

/* Submits one call of every kind; counts in done[0..3]. */
static void submit_all(struct engine *engine, struct done done[4])
{
    int memfd = memfd_create("region", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(memfd, 4096), 0);
    struct kvplane_region region = {.tag = "kv_cache", .fd = memfd, .len = 4096};
    cr_assert_eq(kvplane_register_region(engine->kv, &region, on_done, &done[0]), KVPLANE_OK);
    cr_assert_eq(kvplane_lookup(engine->kv, 1, token, &keys, 1, on_lookup, &done[1]), KVPLANE_OK);
    cr_assert_eq(kvplane_put(engine->kv, &entry, 1, on_batch, &done[2]), KVPLANE_OK);
    cr_assert_eq(kvplane_get(engine->kv, 1, token, &entry, 1, on_batch, &done[3]), KVPLANE_OK);
    cr_assert_eq(kvplane_discard(engine->kv, 1), KVPLANE_OK);
    cr_assert_eq(kvplane_report(engine->kv, 1, 1, 1, 1), KVPLANE_OK);
    close(memfd);
}

static void assert_all_once(const struct done done[4], int result)
{
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(done[i].times, 1, "call %d completed %d times", i, done[i].times);
        cr_assert_eq(done[i].result, result, "call %d: %d", i, done[i].result);
    }
}

/* The daemon hangs up after taking k of the six calls, for every k; or with a lifecycle call open.
 */
Test(kvplane, a_disconnect_at_any_moment_completes_every_call_once)
{
    for (int k = 0; k <= 6; k++) {
        struct engine *engine = attached_engine();
        struct done done[4] = {{0}};
        engine->keep = true;
        struct kvb_writer writer = writer_of();
        kvb_link_resume_pack(&writer, &(struct kvb_link_resume){40});
        fake_daemon_send(&engine->daemon, engine->kv, KVB_LINK_RESUME, 0, 1, &writer);
        cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->nkept == 1));
        submit_all(engine, done);
        done[2].again = engine->kv;
        for (int i = 0; i < k; i++) {
            cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
        }
        fake_daemon_hang_up(&engine->daemon);
        cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->disconnected == 1));
        cr_assert_eq(engine->reason, KVPLANE_ERR_DISCONNECTED);
        assert_all_once(done, KVPLANE_ERR_DISCONNECTED);
        cr_assert_eq(kvplane_pending(engine->kv), 0);
        cr_assert_not(kvplane_attached(engine->kv));
        cr_assert_eq(kvplane_put(engine->kv, &entry, 1, NULL, NULL), KVPLANE_ERR_BAD_STATE);
        kvplane_answer(engine->kept[0], KVPLANE_OK); /* goes nowhere */
        cr_assert_eq(kvplane_reattach(engine->kv), KVPLANE_OK);
        attach(engine);
        cr_assert_eq(engine->hello.state.last_operation, 40);
        struct done fresh[4] = {{0}};
        submit_all(engine, fresh);
        engine_destroy(engine);
        assert_all_once(done, KVPLANE_ERR_DISCONNECTED);
        assert_all_once(fresh, KVPLANE_ERR_CANCELED);
    }
}

Test(kvplane, answers_that_were_sent_before_the_daemon_died_still_count)
{
    struct engine *engine = attached_engine();
    struct done done[2] = {{0}};
    cr_assert_eq(kvplane_put(engine->kv, &entry, 1, on_batch, &done[0]), KVPLANE_OK);
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    reply_batch(engine, &engine->daemon.frame, (kvb_status_t[]){KVB_OK}, 1);
    fake_daemon_hang_up(&engine->daemon);
    /* This one is written into a closed socket, before the reply was read. */
    cr_assert_eq(kvplane_put(engine->kv, &entry, 1, on_batch, &done[1]), KVPLANE_OK);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->disconnected == 1));
    cr_assert_eq(done[0].result, KVPLANE_OK);
    cr_assert_eq(done[1].result, KVPLANE_ERR_DISCONNECTED);
    engine_destroy(engine);
}

/* Everything a daemon must not send; each ends the session, and nothing completes before the daemon
 * has let go of the connection: it may be writing into the memory of the get. */
Test(kvplane, a_broken_frame_ends_the_session_when_the_daemon_has_let_go)
{
    enum { WAYS = 16 };
    for (int how = 0; how < WAYS; how++) {
        struct engine *engine = attached_engine();
        struct done done[4] = {{0}};
        struct kvb_frame frames[6];
        submit_all(engine, done); /* register, lookup, put, get, discard, report */
        for (int i = 0; i < 6; i++) {
            cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
            frames[i] = engine->daemon.frame;
        }
        struct kvb_writer writer = writer_of();
        struct kvb_link_lookup_reply lookup = {.status = KVB_OK, .ngroups = 1, .hits = {1}};
        struct kvb_link_pause pause = {1, KVB_PAUSE_WAIT};
        kvb_status_t statuses[2] = {KVB_OK, KVB_OK};
        uint16_t type = KVB_LINK_PAUSE;
        uint16_t flags = 0;
        uint64_t seq = 50;
        bool raw = false;
        switch (how) {
        case 0: /* not a frame */
            raw = true;
            break;
        case 1: /* a message of the engine */
            type = KVB_LINK_LOOKUP;
            break;
        case 2: /* no such message */
            type = 99;
            break;
        case 3: /* a reply to nothing */
            type = KVB_LINK_GET, flags = KVB_FRAME_REPLY, seq = 123456789;
            break;
        case 4: /* a reply of another type */
            type = KVB_LINK_PUT, flags = KVB_FRAME_REPLY, seq = frames[3].seq;
            kvb_link_batch_reply_pack(&writer, &(struct kvb_link_batch_reply){1, statuses});
            break;
        case 5: /* as many statuses as nobody asked for */
            type = KVB_LINK_GET, flags = KVB_FRAME_REPLY, seq = frames[3].seq;
            kvb_link_batch_reply_pack(&writer, &(struct kvb_link_batch_reply){2, statuses});
            break;
        case 6: /* more groups */
            type = KVB_LINK_LOOKUP, flags = KVB_FRAME_REPLY, seq = frames[1].seq;
            lookup.ngroups = 2;
            kvb_link_lookup_reply_pack(&writer, &lookup);
            break;
        case 7: /* more hits than keys */
            type = KVB_LINK_LOOKUP, flags = KVB_FRAME_REPLY, seq = frames[1].seq;
            lookup.hits[0] = 2;
            kvb_link_lookup_reply_pack(&writer, &lookup);
            break;
        case 8: /* something left over */
            kvb_link_pause_pack(&writer, &pause);
            kvb_put_u8(&writer, 0);
            break;
        case 9: /* not there yet */
            type = KVB_LINK_REGISTER_REGION, flags = KVB_FRAME_REPLY, seq = frames[0].seq;
            kvb_put_u32(&writer, KVB_IN_PROGRESS);
            break;
        case 10: /* longer than the type may be */
            for (int i = 0; i < 17; i++) {
                kvb_put_u32(&writer, 0);
            }
            break;
        case 11: /* a second hello reply */
            type = KVB_LINK_HELLO, flags = KVB_FRAME_REPLY, seq = 1;
            break;
        case 12: /* empty, but is not */
            type = KVB_LINK_STATE;
            kvb_put_u8(&writer, 0);
            break;
        case 13: /* no lineage */
            type = KVB_LINK_LINEAGE;
            kvb_link_lineage_pack(&writer, &(struct kvb_link_lineage){.left = true});
            break;
        case 14: /* a reply to a call of long ago */
            type = KVB_LINK_GET, flags = KVB_FRAME_REPLY, seq = frames[3].seq - (1u << 21);
            kvb_link_batch_reply_pack(&writer, &(struct kvb_link_batch_reply){1, statuses});
            break;
        case 15: { /* the announcement of far too much: nobody waits for it */
            uint8_t header[KVB_FRAME_HEADER_LEN];
            kvb_frame_pack(&(struct kvb_frame){KVB_LINK_STATE, 0, 1, UINT32_MAX}, header);
            fake_daemon_send_bytes(&engine->daemon, engine->kv, header, sizeof header);
            break;
        }
        }
        if (how == 15) {
            kvb_writer_cleanup(&writer);
        } else if (raw) {
            fake_daemon_send_bytes(&engine->daemon, engine->kv, "not a frame, but 24 bytes", 25);
        } else {
            fake_daemon_send(&engine->daemon, engine->kv, type, flags, seq, &writer);
        }
        char byte;
        cr_assert_not(fake_daemon_read(&engine->daemon, engine->kv, &byte, 1), "way %d", how);
        cr_assert_not(kvplane_attached(engine->kv));
        for (int i = 0; i < 4; i++) {
            cr_assert_eq(done[i].times, 0, "way %d: call %d completed too early", how, i);
        }
        cr_assert_eq(engine->disconnected, 0);
        cr_assert_eq(kvplane_put(engine->kv, &entry, 1, NULL, NULL), KVPLANE_ERR_BAD_STATE);
        cr_assert_eq(kvplane_reattach(engine->kv), KVPLANE_ERR_BAD_STATE);
        fake_daemon_hang_up(&engine->daemon);
        cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->disconnected == 1), "way %d", how);
        cr_assert_eq(engine->reason, KVPLANE_ERR_PROTOCOL, "way %d", how);
        assert_all_once(done, KVPLANE_ERR_DISCONNECTED);
        cr_assert_str_eq(engine->asked, "", "way %d", how);
        if (engine->daemon.passed >= 0) {
            close(fake_daemon_take_passed(&engine->daemon));
        }
        engine_destroy(engine);
    }
}

Test(kvplane, close_completes_every_call_once_in_every_state)
{
    for (int how = 0; how < 5; how++) {
        struct engine *engine = engine_create();
        struct kvplane_options options = options_of(engine);
        struct done done[4] = {{0}};
        int completed = 0;
        engine_open(engine, &options);
        if (how >= 1) {
            cr_assert(fake_daemon_accept(&engine->daemon, engine->kv));
            cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
        }
        if (how >= 2) {
            struct kvb_writer writer = writer_of();
            kvb_link_hello_reply_pack(&writer, &(struct kvb_link_hello_reply){.session = 1});
            fake_daemon_reply(&engine->daemon, engine->kv, &engine->daemon.frame, &writer);
            cr_assert(FAKE_DAEMON_UNTIL(engine->kv, kvplane_attached(engine->kv)));
            submit_all(engine, done);
            completed = 1;
        }
        if (how == 3) { /* half closed */
            fake_daemon_send_bytes(&engine->daemon, engine->kv, "not a frame, but 24 bytes", 25);
            cr_assert(FAKE_DAEMON_UNTIL(engine->kv, !kvplane_attached(engine->kv)));
        }
        if (how == 4) { /* down */
            fake_daemon_hang_up(&engine->daemon);
            cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->disconnected == 1));
        }
        engine_destroy(engine);
        for (int i = 0; i < 4; i++) {
            cr_assert_eq(done[i].times, completed);
            cr_assert(how == 4 || done[i].result == (completed ? KVPLANE_ERR_CANCELED : 0));
        }
    }
    kvplane_close(NULL);
}

/* ---- calls from the daemon ---- */

static kvb_status_t status_of(struct engine *engine)
{
    kvb_status_t status = KVB_ERR_INTERNAL;
    cr_assert_eq(kvb_link_status_unpack(fake_daemon_payload(&engine->daemon), &status), KVB_OK);
    return status;
}

Test(kvplane, every_lifecycle_call_reaches_the_engine_and_its_answer_the_daemon)
{
    struct engine *engine = attached_engine();
    struct fake_daemon *daemon = &engine->daemon;
    struct kvb_writer writer = writer_of();

    kvb_link_pause_pack(&writer, &(struct kvb_link_pause){1, KVB_PAUSE_KEEP});
    cr_assert(fake_daemon_ask(daemon, engine->kv, KVB_LINK_PAUSE, &writer));
    cr_assert_str_eq(engine->asked, "pause");
    cr_assert_str_eq(engine->detail, "2");
    cr_assert_eq(status_of(engine), KVB_OK);

    writer = writer_of();
    kvb_link_resume_pack(&writer, &(struct kvb_link_resume){2});
    engine->answer = KVPLANE_ERR_BAD_STATE;
    cr_assert(fake_daemon_ask(daemon, engine->kv, KVB_LINK_RESUME, &writer));
    cr_assert_str_eq(engine->asked, "resume");
    cr_assert_eq(status_of(engine), KVB_ERR_BAD_STATE);

    writer = writer_of();
    kvb_link_reset_local_pack(&writer, &(struct kvb_link_reset_local){3, true});
    engine->answer = KVPLANE_ERR_BUSY;
    cr_assert(fake_daemon_ask(daemon, engine->kv, KVB_LINK_RESET_LOCAL, &writer));
    struct kvb_link_reset_local_reply reset;
    cr_assert_eq(kvb_link_reset_local_reply_unpack(fake_daemon_payload(daemon), &reset), KVB_OK);
    cr_assert_str_eq(engine->detail, "1");
    cr_assert_eq(reset.status, KVB_ERR_BUSY);
    cr_assert_eq(reset.blocks_held, 7);
    engine->answer = KVPLANE_OK;

    writer = writer_of();
    kvb_link_release_pack(
        &writer, &(struct kvb_link_release){4, true, 2, {{"kv_cache", false}, {"weights", true}}});
    cr_assert(fake_daemon_ask(daemon, engine->kv, KVB_LINK_RELEASE, &writer));
    cr_assert_str_eq(engine->detail, "1 kv_cache:0 weights:1");
    cr_assert_eq(status_of(engine), KVB_OK);

    writer = writer_of();
    kvb_link_restore_pack(&writer, &(struct kvb_link_restore){5, 2, {"kv_cache", "weights"}});
    cr_assert(fake_daemon_ask(daemon, engine->kv, KVB_LINK_RESTORE, &writer));
    cr_assert_str_eq(engine->detail, "kv_cache weights ");
    cr_assert_eq(status_of(engine), KVB_OK);

    writer = writer_of();
    cr_assert(fake_daemon_ask(daemon, engine->kv, KVB_LINK_FINGERPRINT, &writer));
    struct kvb_link_fingerprint_reply fingerprint;
    cr_assert_eq(kvb_link_fingerprint_reply_unpack(fake_daemon_payload(daemon), &fingerprint),
                 KVB_OK);
    cr_assert_str_eq(fingerprint.name, "fp-1");

    writer = writer_of();
    kvb_link_relay_pack(&writer,
                        &(struct kvb_link_relay){6, "update_weights", {(const uint8_t *)"{}", 2}});
    cr_assert(fake_daemon_ask(daemon, engine->kv, KVB_LINK_RELAY, &writer));
    struct kvb_link_relay_reply relay;
    cr_assert_eq(kvb_link_relay_reply_unpack(fake_daemon_payload(daemon), &relay), KVB_OK);
    cr_assert_str_eq(engine->detail, "update_weights {}");
    cr_assert(relay.weights_written);
    cr_assert_eq(relay.body.len, 7);

    writer = writer_of();
    engine->state.weight_change_running = true;
    cr_assert(fake_daemon_ask(daemon, engine->kv, KVB_LINK_STATE, &writer));
    struct kvb_link_state_reply state;
    cr_assert_eq(kvb_link_state_reply_unpack(fake_daemon_payload(daemon), &state), KVB_OK);
    cr_assert_eq(state.status, KVB_OK);
    cr_assert(state.state.weight_change_running);
    cr_assert_eq(state.state.last_operation, 6);

    writer = writer_of();
    kvb_put_bytes(&writer, "{}", 2);
    fake_daemon_send(daemon, engine->kv, KVB_LINK_EVENT, 0, 60, &writer);
    writer = writer_of();
    kvb_link_lineage_pack(
        &writer, &(struct kvb_link_lineage){
                     .lineage = {{5, 6}}, .token = {{7, 8}}, .name = "step-2", .left = true});
    cr_assert(fake_daemon_ask(daemon, engine->kv, KVB_LINK_LINEAGE, &writer));
    cr_assert_eq(status_of(engine), KVB_OK);
    cr_assert_str_eq(engine->detail, "1 step-2");
    cr_assert_eq(engine->token_in_callback.hi, 7);
    cr_assert_eq(engine->token_in_callback.lo, 8);
    engine_destroy(engine);
}

Test(kvplane, an_answer_may_come_later_and_a_repeated_call_gets_its_own)
{
    struct engine *engine = attached_engine();
    engine->keep = true;
    for (uint64_t seq = 1; seq <= 2; seq++) { /* the same operation twice: the answer was lost */
        struct kvb_writer writer = writer_of();
        kvb_link_pause_pack(&writer, &(struct kvb_link_pause){9, KVB_PAUSE_WAIT});
        fake_daemon_send(&engine->daemon, engine->kv, KVB_LINK_PAUSE, 0, seq, &writer);
    }
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->nkept == 2));
    kvplane_answer(engine->kept[1], KVPLANE_OK);
    kvplane_answer(engine->kept[0], KVPLANE_ERR_CANCELED);
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    cr_assert_eq(engine->daemon.frame.seq, 2);
    cr_assert_eq(status_of(engine), KVB_OK);
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    cr_assert_eq(engine->daemon.frame.seq, 1);
    cr_assert_eq(status_of(engine), KVB_ERR_CANCELED);
    engine_destroy(engine);
}

Test(kvplane, an_answer_from_an_earlier_session_does_not_reach_the_next)
{
    struct engine *engine = attached_engine();
    engine->keep = true;
    engine->reattach_at_once = true;
    struct kvb_writer writer = writer_of();
    kvb_link_resume_pack(&writer, &(struct kvb_link_resume){9});
    fake_daemon_send(&engine->daemon, engine->kv, KVB_LINK_RESUME, 0, 1, &writer);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->nkept == 1));
    fake_daemon_hang_up(&engine->daemon);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->disconnected == 1));
    attach(engine);
    kvplane_answer(engine->kept[0], KVPLANE_OK);
    cr_assert_eq(kvplane_discard(engine->kv, 1), KVPLANE_OK);
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    cr_assert_eq(engine->daemon.frame.type, KVB_LINK_DISCARD);
    engine_destroy(engine);
}

Test(kvplane, what_an_engine_does_not_have_is_unsupported_and_wrong_answers_are_made_right)
{
    struct engine *engine = engine_create();
    struct kvplane_options options = options_of(engine);
    options.callbacks = &only_state;
    engine_open(engine, &options);
    cr_assert(fake_daemon_greet(&engine->daemon, engine->kv, KVB_OK, "", &engine->hello));
    cr_assert_eq(engine->hello.flags, 0);
    struct kvb_writer writer = writer_of();
    kvb_link_resume_pack(&writer, &(struct kvb_link_resume){9});
    cr_assert(fake_daemon_ask(&engine->daemon, engine->kv, KVB_LINK_RESUME, &writer));
    cr_assert_eq(status_of(engine), KVB_ERR_UNSUPPORTED);
    writer = writer_of();
    cr_assert(fake_daemon_ask(&engine->daemon, engine->kv, KVB_LINK_FINGERPRINT, &writer));
    struct kvb_link_fingerprint_reply reply;
    cr_assert_eq(kvb_link_fingerprint_reply_unpack(fake_daemon_payload(&engine->daemon), &reply),
                 KVB_OK);
    cr_assert_eq(reply.status, KVB_ERR_UNSUPPORTED);
    engine_destroy(engine);

    engine = attached_engine();
    engine->answer = 12345; /* no such result */
    writer = writer_of();
    kvb_link_resume_pack(&writer, &(struct kvb_link_resume){9});
    cr_assert(fake_daemon_ask(&engine->daemon, engine->kv, KVB_LINK_RESUME, &writer));
    cr_assert_eq(status_of(engine), KVB_ERR_INTERNAL);
    engine->keep = true;
    writer = writer_of();
    fake_daemon_send(&engine->daemon, engine->kv, KVB_LINK_FINGERPRINT, 0, 70, &writer);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->nkept == 1));
    kvplane_answer(engine->kept[0], KVPLANE_OK); /* success without a text */
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    cr_assert_eq(kvb_link_fingerprint_reply_unpack(fake_daemon_payload(&engine->daemon), &reply),
                 KVB_OK);
    cr_assert_eq(reply.status, KVB_ERR_INVALID);
    engine_destroy(engine);
}

Test(kvplane, a_large_relay_arrives_whole_and_in_pieces)
{
    struct engine *engine = attached_engine();
    size_t len = 20u << 20;
    uint8_t *body = malloc(len);
    memset(body, 'x', len);
    struct kvb_writer writer = writer_of();
    kvb_link_relay_pack(&writer, &(struct kvb_link_relay){1, "m", {body, len}});
    cr_assert(fake_daemon_ask(&engine->daemon, engine->kv, KVB_LINK_RELAY, &writer));
    cr_assert_str_eq(engine->asked, "relay");
    free(body);
    /* byte by byte */
    uint8_t header[KVB_FRAME_HEADER_LEN];
    kvb_frame_pack(&(struct kvb_frame){KVB_LINK_STATE, 0, 99, 0}, header);
    for (size_t i = 0; i < sizeof header; i++) {
        fake_daemon_send_bytes(&engine->daemon, engine->kv, header + i, 1);
        cr_assert_eq(kvplane_process(engine->kv), KVPLANE_OK);
    }
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    cr_assert_eq(engine->daemon.frame.seq, 99);
    engine_destroy(engine);
}

/* ---- the echo ---- */

static void send_lineage(struct engine *engine, const struct kvb_link_lineage *msg)
{
    struct kvb_writer writer = writer_of();
    kvb_link_lineage_pack(&writer, msg);
    cr_assert(fake_daemon_ask(&engine->daemon, engine->kv, KVB_LINK_LINEAGE, &writer));
}

static void next_session(struct engine *engine)
{
    int before = engine->disconnected;
    fake_daemon_hang_up(&engine->daemon);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->disconnected == before + 1));
    cr_assert_eq(kvplane_reattach(engine->kv), KVPLANE_OK);
    attach(engine);
}

Test(kvplane, hello_echoes_the_last_lineage_and_what_it_was_given_to_keep)
{
    struct engine *engine = attached_engine();
    kvplane_token none = kvplane_get_token(engine->kv);
    cr_assert_eq(none.hi + none.lo, 0);
    struct kvb_link_lineage msg = {.lineage = {{1, 2}},
                                   .token = {{3, 4}},
                                   .name = "run7/v3",
                                   .nretired = 2,
                                   .retired = {{{9, 9}}, {{8, 8}}}};
    send_lineage(engine, &msg);
    for (int i = 0; i < 2; i++) { /* also after a session in which no lineage came */
        next_session(engine);
        cr_assert(kvb_lineage_equal(engine->hello.lineage, msg.lineage));
        cr_assert(kvb_token_equal(engine->hello.token, msg.token));
        cr_assert_str_eq(engine->hello.lineage_name, "run7/v3");
        cr_assert_eq(engine->hello.nretired, 2);
        cr_assert_eq(engine->hello.retired[1].id.hi, 8);
        cr_assert_eq(kvplane_get_token(engine->kv).lo, 4);
    }
    msg = (struct kvb_link_lineage){.lineage = {{5, 6}}, .token = {{7, 8}}, .left = true};
    send_lineage(engine, &msg); /* the retirements were delivered */
    next_session(engine);
    cr_assert(kvb_lineage_equal(engine->hello.lineage, msg.lineage));
    cr_assert_str_eq(engine->hello.lineage_name, "");
    cr_assert_eq(engine->hello.nretired, 0);
    engine_destroy(engine);
}

/* The name the engine was started with vouches for nothing once its weights were written. */
Test(kvplane, the_name_at_start_is_not_told_after_the_weights_were_written)
{
    for (int how = 0; how < 5; how++) {
        struct engine *engine = attached_engine();
        struct kvb_writer writer = writer_of();
        if (how == 0) { /* a relay that says so */
            kvb_link_relay_pack(&writer, &(struct kvb_link_relay){1, "update_weights", {NULL, 0}});
            cr_assert(fake_daemon_ask(&engine->daemon, engine->kv, KVB_LINK_RELAY, &writer));
        } else if (how == 1) { /* the state says so */
            engine->state.weights_written = true;
        } else if (how == 2) {
            engine->state.weight_change_running = true;
        } else { /* thrown away, or only kept aside */
            struct kvb_link_release release = {1, true, 1, {{"weights", how == 4}}};
            kvb_link_release_pack(&writer, &release);
            cr_assert(fake_daemon_ask(&engine->daemon, engine->kv, KVB_LINK_RELEASE, &writer));
        }
        next_session(engine);
        engine->state.weights_written = engine->state.weight_change_running = false;
        next_session(engine);
        cr_assert_str_eq(engine->hello.weights_name, how == 4 ? "v1" : "", "way %d", how);
        kvb_writer_cleanup(&writer);
        engine_destroy(engine);
    }
}

static void on_left(void *arg, int result)
{
    *(int *)arg = result;
}

static bool has_token(const struct engine *engine)
{
    kvplane_token token_ = kvplane_get_token(engine->kv);
    return token_.hi != 0 || token_.lo != 0;
}

Test(kvplane, who_leaves_has_no_token_until_the_daemon_has_left_and_told_the_next)
{
    struct engine *engine = attached_engine();
    struct kvb_link_lineage msg = {.lineage = {{1, 2}}, .token = {{3, 4}}, .name = "v1"};
    send_lineage(engine, &msg);
    cr_assert(has_token(engine));
    int result = 1;
    cr_assert_eq(kvplane_leave(engine->kv, on_left, &result), KVPLANE_OK);
    cr_assert_not(has_token(engine));
    cr_assert_eq(kvplane_leave(engine->kv, on_left, &result), KVPLANE_ERR_AGAIN, "one at a time");
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    cr_assert_eq(engine->daemon.frame.type, KVB_LINK_LEAVE);
    struct kvb_frame leave = engine->daemon.frame;
    send_lineage(engine, &msg); /* a join that was on its way */
    cr_assert_not(has_token(engine), "it may be of the stay that it left");
    msg = (struct kvb_link_lineage){.lineage = {{5, 6}}, .token = {{7, 8}}, .left = true};
    send_lineage(engine, &msg);
    cr_assert_eq(result, 1);
    fake_daemon_reply_status(&engine->daemon, engine->kv, &leave, KVB_OK);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, result == KVPLANE_OK));
    cr_assert_eq(kvplane_get_token(engine->kv).lo, 8);
    next_session(engine);
    cr_assert(kvb_token_equal(engine->hello.token, msg.token));
    cr_assert_str_eq(engine->hello.weights_name, "", "they may be others");
    engine_destroy(engine);
}

Test(kvplane, who_leaves_without_an_answer_echoes_nothing)
{
    for (int attached = 0; attached < 2; attached++) {
        struct engine *engine = attached_engine();
        struct kvb_link_lineage msg = {.lineage = {{1, 2}}, .token = {{3, 4}}, .name = "v1"};
        send_lineage(engine, &msg);
        int result = 1;
        if (attached) {
            cr_assert_eq(kvplane_leave(engine->kv, on_left, &result), KVPLANE_OK);
            cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
            send_lineage(engine, &msg); /* told before the daemon has acted on it */
        }
        fake_daemon_hang_up(&engine->daemon);
        cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->disconnected == 1));
        cr_assert_eq(result, attached ? KVPLANE_ERR_DISCONNECTED : 1);
        if (!attached) {
            cr_assert_eq(kvplane_leave(engine->kv, on_left, &result), KVPLANE_ERR_BAD_STATE);
        }
        cr_assert_not(has_token(engine));
        cr_assert_eq(kvplane_reattach(engine->kv), KVPLANE_OK);
        attach(engine);
        cr_assert(kvb_id_none(engine->hello.token.id));
        cr_assert_str_eq(engine->hello.lineage_name, "");
        cr_assert_str_eq(engine->hello.weights_name, "");
        engine_destroy(engine);
    }
}

Test(kvplane, who_leaves_while_hello_is_on_its_way_greets_anew_as_one_that_has_left)
{
    for (int in_state = 0; in_state < 2; in_state++) { /* 1: as the state for hello is asked for */
        struct engine *engine = attached_engine();
        struct kvb_link_lineage msg = {.lineage = {{1, 2}}, .token = {{3, 4}}, .name = "v1"};
        send_lineage(engine, &msg);
        fake_daemon_hang_up(&engine->daemon);
        cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->disconnected == 1));
        cr_assert_eq(kvplane_reattach(engine->kv), KVPLANE_OK);
        engine->leaves = in_state;
        cr_assert(fake_daemon_accept(&engine->daemon, engine->kv));
        if (!in_state) {
            cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
            struct kvb_link_hello before;
            cr_assert_eq(kvb_link_hello_unpack(fake_daemon_payload(&engine->daemon), &before),
                         KVB_OK);
            cr_assert(kvb_token_equal(before.token, msg.token));
            cr_assert_eq(kvplane_leave(engine->kv, NULL, NULL), KVPLANE_ERR_BAD_STATE);
        }
        cr_assert_not(fake_daemon_take(&engine->daemon, engine->kv), "it has hung up");
        fake_daemon_hang_up(&engine->daemon);
        attach(engine);
        cr_assert(kvb_id_none(engine->hello.token.id));
        cr_assert_str_eq(engine->hello.lineage_name, "");
        cr_assert_str_eq(engine->hello.weights_name, "");
        engine_destroy(engine);
    }
}

Test(kvplane, who_detaches_hears_when_the_daemon_has_let_go_and_stays_in_its_lineage)
{
    struct engine *engine = attached_engine();
    struct kvb_link_lineage msg = {.lineage = {{1, 2}}, .token = {{3, 4}}, .name = "v1"};
    struct done done = {0};
    send_lineage(engine, &msg);
    cr_assert_eq(kvplane_get(engine->kv, 1, token, &entry, 1, on_batch, &done), KVPLANE_OK);
    cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
    cr_assert_eq(kvplane_detach(engine->kv), KVPLANE_OK);
    cr_assert_eq(kvplane_detach(engine->kv), KVPLANE_OK, "not before the daemon has let go");
    cr_assert_eq(kvplane_process(engine->kv), KVPLANE_OK);
    cr_assert_eq(done.times, 0, "the daemon may still write into its memory");
    cr_assert_eq(engine->disconnected, 0);
    fake_daemon_hang_up(&engine->daemon);
    cr_assert(FAKE_DAEMON_UNTIL(engine->kv, engine->disconnected == 1));
    cr_assert_eq(done.times, 1);
    cr_assert_eq(kvplane_detach(engine->kv), KVPLANE_ERR_BAD_STATE);
    cr_assert_eq(kvplane_reattach(engine->kv), KVPLANE_OK);
    attach(engine);
    cr_assert(kvb_token_equal(engine->hello.token, msg.token));
    engine_destroy(engine);
}

static int open_descriptors(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL) {
        n++;
    }
    closedir(folder);
    return n;
}

Test(kvplane, descriptors_are_not_leaked_over_many_sessions)
{
    struct engine *engine = attached_engine();
    struct done done[4] = {{0}};
    int before = open_descriptors();
    for (int i = 0; i < 20; i++) {
        submit_all(engine, done); /* one descriptor is sent, and one is still waiting to be */
        cr_assert(fake_daemon_take(&engine->daemon, engine->kv));
        close(fake_daemon_take_passed(&engine->daemon));
        submit_all(engine, done);
        next_session(engine);
    }
    cr_assert_eq(open_descriptors(), before);
    engine_destroy(engine);
}

/* ---- placement ---- */

Test(placement, about_1024_tokens_share_a_key_and_fewer_where_prompts_begin)
{
    static const struct {
        size_t block;
        uint32_t block_tokens;
        size_t leader;
    } cases[] = {
        {0, 512, 0},   {1, 512, 1},  {2, 512, 2},  {3, 512, 2},    {4, 512, 4},
        {5, 512, 4},   {0, 16, 0},   {1, 16, 1},   {3, 16, 2},     {7, 16, 4},
        {31, 16, 16},  {63, 16, 32}, {64, 16, 64}, {127, 16, 64},  {128, 16, 128},
        {200, 0, 192}, {63, 0, 32},  {5, 1024, 5}, {9, 4096, 9},   {4, 300, 3},
        {5, 300, 3},   {2, 300, 2},  {1, 1, 1},    {1023, 1, 512}, {1024, 1, 1024},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(kvplane_placement(cases[i].block, cases[i].block_tokens), cases[i].leader,
                     "block %zu of %u tokens", cases[i].block, cases[i].block_tokens);
    }
}
