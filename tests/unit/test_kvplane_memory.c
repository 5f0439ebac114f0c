/* SPDX-License-Identifier: Apache-2.0 */
#include "fail_alloc.h"
#include "fake_daemon.h"
#include "link_reencode.h"
#include "session.h"

#include <criterion/criterion.h>

#include <sys/timerfd.h>

/* The codec and the library out of memory, at every allocation they make. */

Test(kvplane_memory, the_codec_fails_whole_at_every_allocation)
{
    for (enum link_codec codec = 0; codec < LINK_CODECS; codec++) {
        struct kvb_writer sample;
        kvb_writer_init(&sample, 4096);
        link_sample(codec, &sample);
        for (uint64_t n = 0;; n++) {
            struct kvb_writer again;
            kvb_writer_init(&again, 4096);
            fail_alloc_arm(n);
            kvb_status_t status =
                link_reencode(codec, (struct kvb_span){sample.data, sample.len}, &again);
            bool hit = fail_alloc_disarm();
            bool failed = status == KVB_ERR_NO_MEMORY || again.status == KVB_ERR_NO_MEMORY;
            cr_assert_eq(hit, failed, "codec %d allocation %d", codec, (int)n);
            kvb_writer_cleanup(&again);
            if (!hit) {
                cr_assert_gt(n, 0);
                break;
            }
        }
        kvb_writer_cleanup(&sample);
    }
}

/* ---- the library ---- */

static struct engine {
    struct fake_daemon daemon;
    struct kvplane *kv;
    struct kvplane_call *pause;
    int disconnected, reason;
    int completed, result;
} engine;

static void on_state(void *ctx, struct kvplane_state *state)
{
    (void)ctx;
    state->ntags = 1;
    state->tags[0].tag = "kv_cache";
}

static void on_pause(void *ctx, struct kvplane_call *call, enum kvplane_pause_mode mode)
{
    (void)ctx, (void)mode;
    engine.pause = call;
}

static void on_relay(void *ctx, struct kvplane_call *call, const char *method, const char *body,
                     size_t len)
{
    (void)ctx, (void)method;
    kvplane_answer_relay(call, KVPLANE_OK, false, body, len);
}

static void on_disconnected(void *ctx, int reason)
{
    (void)ctx;
    engine.disconnected++;
    engine.reason = reason;
}

static void on_batch(void *arg, const int *results, size_t n)
{
    (void)arg, (void)n;
    engine.completed++;
    engine.result = results[0];
}

static const struct kvplane_callbacks callbacks = {
    .state = on_state, .pause = on_pause, .relay = on_relay, .disconnected = on_disconnected};

static int open_engine(void)
{
    struct kvplane_options options = {
        .socket = engine.daemon.path, .instance = "llm-0", .layout = "l", .callbacks = &callbacks};
    return kvplane_open(&options, &engine.kv);
}

static void setup(void)
{
    memset(&engine, 0, sizeof engine);
    fake_daemon_init(&engine.daemon);
    fake_daemon_listen(&engine.daemon);
}

static void setup_attached(void)
{
    struct kvb_link_hello hello;
    setup();
    cr_assert_eq(open_engine(), KVPLANE_OK);
    cr_assert(fake_daemon_greet(&engine.daemon, engine.kv, KVB_OK, "", &hello));
    cr_assert(FAKE_DAEMON_UNTIL(engine.kv, kvplane_attached(engine.kv)));
}

static void teardown(void)
{
    kvplane_close(engine.kv);
    fake_daemon_cleanup(&engine.daemon);
}

static const struct kvplane_slice slice = {1, 0, 4096};
static const struct kvplane_entry entry = {
    .key = "key", .key_len = 3, .slices = &slice, .nslices = 1};
static const struct kvplane_key key = {.key = "key", .len = 3};
static const struct kvplane_keys keys = {0, &key, 1};

Test(kvplane_memory, open_fails_whole)
{
    for (uint64_t n = 0;; n++) {
        setup();
        fail_alloc_arm(n);
        int result = open_engine();
        bool hit = fail_alloc_disarm();
        cr_assert_eq(result, hit ? KVPLANE_ERR_NO_MEMORY : KVPLANE_OK);
        cr_assert_eq(engine.kv == NULL, hit);
        teardown();
        if (!hit) {
            cr_assert_gt(n, 1);
            break;
        }
    }
}

static int submit(int kind)
{
    struct kvplane_region region = {.tag = "kv_cache", .fd = 0, .len = 1};
    kvplane_token token = {1, 1};
    switch (kind) {
    case 0:
        return kvplane_register_region(engine.kv, &region, NULL, NULL);
    case 1:
        return kvplane_lookup(engine.kv, 1, token, &keys, 1, NULL, NULL);
    case 2:
        return kvplane_put(engine.kv, &entry, 1, on_batch, NULL);
    case 3:
        return kvplane_get(engine.kv, 1, token, &entry, 1, on_batch, NULL);
    case 4:
        return kvplane_discard(engine.kv, 1);
    default:
        return kvplane_report(engine.kv, 1, 1, 1, 1);
    }
}

Test(kvplane_memory, a_call_that_was_not_accepted_never_completes)
{
    for (int kind = 0; kind < 6; kind++) {
        setup_attached();
        size_t pending = 0;
        for (uint64_t n = 0;; n++) {
            fail_alloc_arm(n);
            int result = submit(kind);
            bool hit = fail_alloc_disarm();
            cr_assert_eq(result, hit ? KVPLANE_ERR_NO_MEMORY : KVPLANE_OK, "kind %d", kind);
            pending += !hit && kind != 5;
            cr_assert_eq(kvplane_pending(engine.kv), pending);
            if (!hit) {
                cr_assert_gt(n, 1);
                break;
            }
        }
        teardown();
        cr_assert_eq(engine.completed, kind == 2 || kind == 3);
    }
}

static void send_call(uint16_t type, uint64_t seq)
{
    struct kvb_writer writer;
    uint8_t body[200] = {'{'};
    kvb_writer_init(&writer, 4096);
    if (type == KVB_LINK_PAUSE) {
        kvb_link_pause_pack(&writer, &(struct kvb_link_pause){1, KVB_PAUSE_KEEP});
    } else if (type == KVB_LINK_LINEAGE) {
        kvb_link_lineage_pack(&writer,
                              &(struct kvb_link_lineage){.lineage = {{1, 1}}, .token = {{2, 2}}});
    } else if (type == KVB_LINK_RELAY) {
        kvb_link_relay_pack(&writer, &(struct kvb_link_relay){2, "m", {body, sizeof body}});
    }
    fake_daemon_send(&engine.daemon, NULL, type, 0, seq, &writer);
}

/* The daemon answers a get and makes four calls; then one allocation of the library fails. */
Test(kvplane_memory, a_session_that_cannot_go_on_ends_and_completes_everything_once)
{
    for (uint64_t n = 0;; n++) {
        setup_attached();
        cr_assert_eq(submit(3), KVPLANE_OK);
        cr_assert_eq(submit(2), KVPLANE_OK);
        cr_assert(fake_daemon_take(&engine.daemon, engine.kv));
        struct kvb_writer writer;
        kvb_writer_init(&writer, 4096);
        kvb_status_t status = KVB_OK;
        kvb_link_batch_reply_pack(&writer, &(struct kvb_link_batch_reply){1, &status});
        fake_daemon_reply(&engine.daemon, NULL, &engine.daemon.frame, &writer);
        send_call(KVB_LINK_LINEAGE, 1);
        send_call(KVB_LINK_PAUSE, 2);
        send_call(KVB_LINK_STATE, 3);
        send_call(KVB_LINK_RELAY, 4);
        fail_alloc_arm(n);
        for (int i = 0; i < 3; i++) {
            (void)kvplane_process(engine.kv);
        }
        bool hit = fail_alloc_disarm();
        cr_assert_eq(kvplane_attached(engine.kv), !hit, "allocation %d", (int)n);
        cr_assert_eq(engine.disconnected, 0, "the daemon has not let go yet");
        fake_daemon_hang_up(&engine.daemon);
        cr_assert(FAKE_DAEMON_UNTIL(engine.kv, engine.disconnected == 1));
        cr_assert_eq(engine.reason, hit ? KVPLANE_ERR_NO_MEMORY : KVPLANE_ERR_DISCONNECTED);
        cr_assert_eq(engine.completed, 2, "allocation %d", (int)n);
        cr_assert_eq(engine.result, KVPLANE_ERR_DISCONNECTED, "the put was never answered");
        teardown();
        if (!hit) {
            cr_assert_gt(n, 6);
            break;
        }
    }
}

/* The one reply that was owed is lost: the daemon must not wait for it for ever. */
Test(kvplane_memory, an_answer_that_cannot_be_sent_ends_the_session)
{
    for (uint64_t n = 0; n < 2; n++) {
        setup_attached();
        send_call(KVB_LINK_PAUSE, 2);
        cr_assert(FAKE_DAEMON_UNTIL(engine.kv, engine.pause != NULL));
        fail_alloc_arm(n);
        kvplane_answer(engine.pause, KVPLANE_OK);
        cr_assert(fail_alloc_disarm());
        struct pollfd poll_fd = {.fd = kvplane_fd(engine.kv), .events = POLLIN};
        cr_assert_eq(poll(&poll_fd, 1, 1000 * FAKE_DAEMON_WAIT_S), 1, "there is something to do");
        cr_assert_not(fake_daemon_take(&engine.daemon, engine.kv));
        fake_daemon_hang_up(&engine.daemon);
        cr_assert(FAKE_DAEMON_UNTIL(engine.kv, engine.disconnected == 1));
        cr_assert_eq(engine.reason, KVPLANE_ERR_NO_MEMORY);
        teardown();
    }
}

/* ---- time ---- */

/* The bound of ten seconds, without waiting for it: the library's timer is set to fire at once. */
Test(kvplane_memory, a_daemon_that_does_not_answer_hello_is_given_up_and_tried_again)
{
    struct kvb_link_hello hello;
    setup();
    cr_assert_eq(open_engine(), KVPLANE_OK);
    cr_assert(fake_daemon_accept(&engine.daemon, engine.kv));
    cr_assert(fake_daemon_take(&engine.daemon, engine.kv));
    struct itimerspec left;
    cr_assert_eq(timerfd_gettime(engine.kv->timer_fd, &left), 0);
    cr_assert(left.it_value.tv_sec >= 5 && left.it_value.tv_sec <= 10);
    struct itimerspec now = {.it_value = {.tv_nsec = 1}};
    cr_assert_eq(timerfd_settime(engine.kv->timer_fd, 0, &now, NULL), 0);
    char byte;
    cr_assert_not(fake_daemon_read(&engine.daemon, engine.kv, &byte, 1));
    cr_assert(strstr(kvplane_last_error(engine.kv), "in time") != NULL);
    fake_daemon_hang_up(&engine.daemon);
    cr_assert(fake_daemon_greet(&engine.daemon, engine.kv, KVB_OK, "", &hello));
    cr_assert(FAKE_DAEMON_UNTIL(engine.kv, kvplane_attached(engine.kv)));
    teardown();
}

/* It doubles, up to two seconds. */
Test(kvplane_memory, the_back_off_grows_to_its_limit)
{
    setup();
    fake_daemon_stop_listening(&engine.daemon);
    cr_assert_eq(open_engine(), KVPLANE_OK);
    for (int i = 0; i < 12; i++) {
        uint32_t base_ms = engine.kv->backoff_ms;
        struct itimerspec now = {.it_value = {.tv_nsec = 1}};
        struct itimerspec left;
        cr_assert_eq(timerfd_settime(engine.kv->timer_fd, 0, &now, NULL), 0);
        cr_assert_eq(kvplane_wait(engine.kv, 1000 * FAKE_DAEMON_WAIT_S), KVPLANE_OK);
        cr_assert_eq(timerfd_gettime(engine.kv->timer_fd, &left), 0);
        uint64_t ms =
            (uint64_t)left.it_value.tv_sec * 1000 + (uint64_t)left.it_value.tv_nsec / 1000000;
        cr_assert_leq(ms, base_ms + base_ms / 2);
        cr_assert_eq(engine.kv->backoff_ms, base_ms < 1000 ? 2 * base_ms : 2000);
    }
    teardown();
}
