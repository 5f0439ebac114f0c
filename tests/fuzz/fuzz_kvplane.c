/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvplane under a daemon that sends anything. The input is a row of records: type, flags, which
 * seq, length (two bytes), payload; each goes out as a frame with a right checksum, so that what is
 * behind the header is reached. Whatever comes: every call completes exactly once, and nothing
 * completes after the end.
 */
#include "fake_daemon.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct fake_daemon side;
static struct {
    unsigned submitted, completed, disconnected, ntags;
    struct kvplane_call *kept;
} engine;

static void on_state(void *ctx, struct kvplane_state *state)
{
    (void)ctx;
    state->ntags = engine.ntags % 3;
    state->tags[0].tag = "kv_cache";
    state->tags[1].tag = "weights";
}
/* Every other call is answered late. */
static bool keep(struct kvplane_call *call)
{
    struct kvplane_call *kept = engine.kept;
    engine.kept = kept == NULL ? call : NULL;
    if (kept != NULL) {
        kvplane_answer(kept, KVPLANE_ERR_CANCELED);
    }
    return kept == NULL;
}
static void on_pause(void *ctx, struct kvplane_call *call, enum kvplane_pause_mode mode)
{
    (void)ctx;
    kvb_assert((unsigned)mode <= KVPLANE_PAUSE_KEEP);
    if (!keep(call)) {
        kvplane_answer(call, KVPLANE_OK);
    }
}
static void on_resume(void *ctx, struct kvplane_call *call)
{
    (void)ctx;
    if (!keep(call)) {
        kvplane_answer(call, KVPLANE_OK);
    }
}
static void on_reset_local(void *ctx, struct kvplane_call *call, bool preempt)
{
    (void)ctx;
    kvplane_answer_reset(call, KVPLANE_ERR_BUSY, preempt);
}
static void on_release(void *ctx, struct kvplane_call *call, bool commit, const char *const *tags,
                       const bool *offload, size_t ntags)
{
    (void)ctx, (void)commit, (void)offload;
    for (size_t i = 0; i < ntags; i++) {
        kvb_assert(kvb_name_valid(tags[i]));
    }
    kvplane_answer(call, KVPLANE_OK);
}
static void on_restore(void *ctx, struct kvplane_call *call, const char *const *tags, size_t ntags)
{
    (void)ctx;
    engine.ntags += ntags > 0 && kvb_name_valid(tags[0]);
    kvplane_answer(call, KVPLANE_OK);
}
static void on_fingerprint(void *ctx, struct kvplane_call *call)
{
    (void)ctx;
    kvplane_answer_text(call, KVPLANE_OK, "fp");
}
static void on_relay(void *ctx, struct kvplane_call *call, const char *method, const char *body,
                     size_t len)
{
    (void)ctx;
    kvplane_answer_relay(call, KVPLANE_OK, method[0] == 'u', body, len);
}
static void on_lineage(void *ctx, bool left, const char *name)
{
    (void)ctx, (void)left;
    kvb_assert(strlen(name) < KVB_WEIGHTS_NAME_MAX);
}
static void on_disconnected(void *ctx, int reason)
{
    (void)ctx, (void)reason;
    engine.disconnected++;
}
static void on_done(void *arg, int result)
{
    (void)arg, (void)result;
    engine.completed++;
}
static void on_lookup(void *arg, int result, const uint32_t *hits, size_t ngroups)
{
    (void)arg;
    kvb_assert(ngroups == 1 && hits[0] <= 2 && (result == KVPLANE_OK || hits[0] == 0));
    engine.completed++;
}
static void on_batch(void *arg, const int *results, size_t n)
{
    (void)arg;
    kvb_assert(n == 2 && results[0] <= 0 && results[1] <= 0);
    engine.completed++;
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
};

static void submit(struct kvplane *kv)
{
    static const struct kvplane_slice slice = {1, 0, 4096};
    static const struct kvplane_entry entries[2] = {
        {.key = "a", .key_len = 1, .slices = &slice, .nslices = 1},
        {.key = "b", .key_len = 1, .slices = &slice, .nslices = 1}};
    static const struct kvplane_key keys[2] = {{.key = "a", .len = 1}, {.key = "b", .len = 1}};
    static const struct kvplane_keys group = {0, keys, 2};
    struct kvplane_region region = {.tag = "kv_cache", .fd = 0, .len = 1};
    kvplane_token token = kvplane_get_token(kv);
    engine.submitted += kvplane_register_region(kv, &region, on_done, NULL) == KVPLANE_OK;
    engine.submitted += kvplane_lookup(kv, 1, token, &group, 1, on_lookup, NULL) == KVPLANE_OK;
    engine.submitted += kvplane_put(kv, entries, 2, on_batch, NULL) == KVPLANE_OK;
    engine.submitted += kvplane_get(kv, 1, token, entries, 2, on_batch, NULL) == KVPLANE_OK;
    (void)kvplane_report(kv, 1, 2, 3, 4);
}

/* The seq of an open call, of one that never was, or a number of the daemon's own. */
static uint64_t choose_seq(const uint64_t seqs[5], uint8_t which)
{
    return which < 5 ? seqs[which] : which < 10 ? seqs[which - 5] + (1u << 20) : which;
}

static void play(struct kvplane *kv, const uint64_t seqs[5], const uint8_t *data, size_t size)
{
    while (size >= 5 && kvplane_attached(kv)) {
        size_t len = (size_t)data[3] | (size_t)data[4] << 8;
        len = len > size - 5 ? size - 5 : len;
        struct kvb_writer writer;
        kvb_writer_init(&writer, 1u << 16);
        kvb_put_bytes(&writer, data + 5, len);
        fake_daemon_send(&side, kv, data[0], data[1] & KVB_FRAME_REPLY, choose_seq(seqs, data[2]),
                         &writer);
        (void)kvplane_process(kv);
        data += 5 + len;
        size -= 5 + len;
    }
    /* The rest comes raw. */
    uint8_t sink[4096];
    (void)send(side.fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)kvplane_process(kv);
    while (recv(side.fd, sink, sizeof sink, MSG_DONTWAIT) > 0) {
    }
}

static void remove_folder(void)
{
    fake_daemon_cleanup(&side);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvb_link_hello hello;
    struct kvplane *kv = NULL;
    uint64_t seqs[5];
    if (side.path[0] == '\0') {
        fake_daemon_init(&side);
        atexit(remove_folder);
    }
    fake_daemon_listen(&side);
    memset(&engine, 0, sizeof engine);
    struct kvplane_options options = {
        .socket = side.path, .instance = "fuzz", .layout = "l", .callbacks = &callbacks};
    kvb_assert(kvplane_open(&options, &kv) == KVPLANE_OK);
    kvb_assert(fake_daemon_greet(&side, kv, KVB_OK, "", &hello));
    while (!kvplane_attached(kv)) {
        (void)kvplane_wait(kv, -1);
    }
    submit(kv);
    for (int i = 0; i < 5; i++) {
        kvb_assert(fake_daemon_take(&side, kv));
        seqs[i] = side.frame.seq;
    }
    close(fake_daemon_take_passed(&side));
    play(kv, seqs, data, size);
    fake_daemon_hang_up(&side);
    while (engine.disconnected == 0) {
        (void)kvplane_wait(kv, -1);
    }
    kvb_assert(engine.submitted == 4 && engine.completed == 4);
    kvplane_close(kv);
    kvb_assert(engine.completed == 4 && engine.disconnected == 1);
    fake_daemon_stop_listening(&side);
    free(side.payload);
    side.payload = NULL;
    return 0;
}
