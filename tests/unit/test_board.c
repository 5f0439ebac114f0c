/* SPDX-License-Identifier: Apache-2.0 */
#include "board.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

static uint64_t now_ns;
static struct kvp_board *board;
static char reasons[16][KVP_BOARD_REASON_MAX];
static uint32_t nreasons;
static char message[KVP_BOARD_REASON_MAX];

static uint64_t read_clock(void *ctx)
{
    (void)ctx;
    return now_ns;
}
static const struct kvb_clock clock_by_hand = {.now_ns = read_clock};

static void create(const char *const *instances, uint32_t n)
{
    struct kvp_board_config config = {
        .clock = &clock_by_hand, .instances = instances, .ninstances = n, .heartbeat_ms = 1000};
    now_ns = 5 * KVB_NS_PER_S;
    cr_assert_eq(kvp_board_create(&config, &board), KVB_OK);
}

static void destroy(void)
{
    kvp_board_destroy(board);
}

static void note(void *arg, const char *reason)
{
    (void)arg;
    cr_assert_lt(nreasons, 16);
    strcpy(reasons[nreasons++], reason);
}

static bool ask(enum kvp_board_question question)
{
    nreasons = 0;
    bool yes = kvp_board_ask(board, question, note, NULL);
    cr_expect_eq(yes, nreasons == 0, "a no without a reason, or a yes with one");
    return yes;
}

static void publish(const char *name, bool ever, bool attached, bool ready)
{
    struct kvp_view view = {.ever_attached = ever, .attached = attached, .ready = ready};
    snprintf(view.instance, sizeof view.instance, "%s", name);
    if (attached && !ready) {
        strcpy(view.not_ready, "asleep");
    }
    kvp_board_publish(board, &view);
}

TestSuite(board, .fini = destroy);

Test(board, nothing_is_healthy_before_the_first_full_attach)
{
    create(NULL, 0);
    cr_expect(!ask(KVP_BOARD_HEALTH));
    cr_expect(!ask(KVP_BOARD_READY));
    cr_expect(!ask(KVP_BOARD_STARTED));
    cr_expect(ask(KVP_BOARD_LIVE));
    publish("a", false, false, false); /* one of two ranks */
    cr_expect(!ask(KVP_BOARD_HEALTH));
    publish("a", true, true, true);
    cr_expect(ask(KVP_BOARD_HEALTH));
    cr_expect(ask(KVP_BOARD_READY));
    cr_expect(ask(KVP_BOARD_STARTED));
}

Test(board, asleep_is_healthy_and_not_ready)
{
    create(NULL, 0);
    publish("a", true, true, false);
    cr_expect(ask(KVP_BOARD_HEALTH));
    cr_expect(!ask(KVP_BOARD_READY));
    cr_expect_str_eq(reasons[0], "a: asleep");
}

Test(board, the_death_of_any_attached_engine_is_told_until_it_is_back)
{
    create(NULL, 0);
    publish("a", true, true, true);
    publish("b", true, true, true);
    publish("c", false, false, false); /* never fully attached: not missed */
    cr_expect(ask(KVP_BOARD_HEALTH));
    publish("b", true, false, false);
    cr_expect(!ask(KVP_BOARD_HEALTH));
    cr_expect_eq(nreasons, 1);
    cr_expect_eq(strncmp(reasons[0], "b: ", 3), 0);
    cr_expect(!ask(KVP_BOARD_READY));
    cr_expect(ask(KVP_BOARD_STARTED), "a restart of the engine is not a start of the pod");
    publish("b", true, true, true);
    cr_expect(ask(KVP_BOARD_HEALTH));
}

Test(board, configured_instances_are_missed_from_the_start)
{
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    create(names, 5);
    publish("a", true, true, true);
    cr_expect(!ask(KVP_BOARD_HEALTH));
    cr_expect_eq(nreasons, 4);
    for (int i = 1; i < 5; i++) {
        cr_expect(!ask(KVP_BOARD_STARTED));
        publish(names[i], true, true, true);
    }
    cr_expect(ask(KVP_BOARD_HEALTH));
    cr_expect(ask(KVP_BOARD_STARTED));
}

Test(board, a_loop_that_does_not_turn_is_not_alive)
{
    create(NULL, 0);
    publish("a", true, true, true);
    now_ns += KVB_NS_PER_S;
    cr_expect(ask(KVP_BOARD_LIVE));
    now_ns += 1;
    cr_expect(!ask(KVP_BOARD_LIVE));
    cr_expect(!ask(KVP_BOARD_HEALTH));
    cr_expect(ask(KVP_BOARD_STARTED));
    kvp_board_beat(board);
    cr_expect(ask(KVP_BOARD_LIVE));
    cr_expect(ask(KVP_BOARD_HEALTH));
}

static uint64_t beats_ns[2];

static uint64_t read_beat(void *ctx, uint32_t which)
{
    return ((const uint64_t *)ctx)[which];
}

Test(board, a_stuck_thread_is_named_by_livez_alone)
{
    create(NULL, 0);
    publish("a", true, true, true);
    cr_assert_eq(kvp_board_watch(board, "io-0", 2000, read_beat, beats_ns, 0), KVB_OK);
    cr_assert_eq(kvp_board_watch(board, "bodies", 500, read_beat, beats_ns, 1), KVB_OK);
    beats_ns[0] = now_ns;
    beats_ns[1] = KVB_NEVER; /* has nothing to do */
    for (int i = 0; i < 20; i++) {
        now_ns += 100 * KVB_NS_PER_MS;
        kvp_board_beat(board);
        cr_expect(ask(KVP_BOARD_LIVE));
    }
    now_ns += 1;
    cr_expect(!ask(KVP_BOARD_LIVE));
    cr_expect_eq(nreasons, 1);
    cr_expect_str_eq(reasons[0], "thread io-0 is stuck: nothing from it for 2.0 s");
    cr_expect(ask(KVP_BOARD_HEALTH), "the engine is alive");
    beats_ns[1] = now_ns - 500 * KVB_NS_PER_MS - 1;
    cr_expect(!ask(KVP_BOARD_LIVE));
    cr_expect_eq(nreasons, 2, "each by its own bound");
    beats_ns[0] = now_ns + 1; /* it goes on, a little later than we looked at the clock */
    beats_ns[1] = KVB_NEVER;
    cr_expect(ask(KVP_BOARD_LIVE));
}

Test(board, stopping_is_told_by_all_but_livez_and_startupz)
{
    create(NULL, 0);
    publish("a", true, true, true);
    kvp_board_stopping(board);
    cr_expect(!ask(KVP_BOARD_HEALTH));
    cr_expect(!ask(KVP_BOARD_READY));
    cr_expect(ask(KVP_BOARD_LIVE));
    cr_expect(ask(KVP_BOARD_STARTED));
}

Test(board, a_view_is_found_by_name_or_because_it_is_the_only_one)
{
    static const char *const names[] = {"late"};
    struct kvp_view view;

    create(names, 1);
    cr_expect_eq(kvp_board_view(board, "", &view, message), KVB_ERR_UNAVAILABLE);
    cr_expect_eq(kvp_board_view(board, "late", &view, message), KVB_ERR_UNAVAILABLE);
    cr_expect_eq(kvp_board_view(board, "x", &view, message), KVB_ERR_NOT_FOUND);
    publish("a", true, true, true);
    cr_expect_eq(kvp_board_view(board, NULL, &view, message), KVB_OK);
    cr_expect_str_eq(view.instance, "a");
    publish("b", true, true, true);
    cr_expect_eq(kvp_board_view(board, "", &view, message), KVB_ERR_INVALID);
    cr_expect(strstr(message, "a, b") != NULL, "%s", message);
    cr_expect_eq(kvp_board_view(board, "b", &view, message), KVB_OK);
    cr_expect_str_eq(view.instance, "b");
    publish("b", true, false, false);
    cr_expect_eq(kvp_board_view(board, "b", &view, message), KVB_ERR_UNAVAILABLE);
}

Test(board, where_all_are_meant_one_that_sleeps_or_is_gone_speaks_for_them)
{
    const struct kvp_board_config config = {
        .clock = &clock_by_hand, .heartbeat_ms = 1000, .as_one = true};
    struct kvp_view view = {.instance = "b", .ever_attached = true, .attached = true};

    cr_assert_eq(kvp_board_create(&config, &board), KVB_OK);
    publish("a", true, true, true);
    kvp_board_publish(board, &view);
    publish("c", true, true, true);
    cr_expect_eq(kvp_board_view(board, "", &view, message), KVB_OK);
    cr_expect(!view.is_sleeping && !view.is_paused);
    view = (struct kvp_view){.instance = "b", .ever_attached = true, .attached = true};
    view.is_sleeping = view.is_paused = true;
    kvp_board_publish(board, &view);
    cr_expect_eq(kvp_board_view(board, NULL, &view, message), KVB_OK);
    cr_expect(view.is_sleeping && view.is_paused);
    cr_expect_eq(kvp_board_view(board, "c", &view, message), KVB_OK);
    cr_expect(!view.is_sleeping && !view.is_paused, "by its name it is itself");
    publish("b", true, false, false);
    cr_expect_eq(kvp_board_view(board, "", &view, message), KVB_ERR_UNAVAILABLE);
    cr_expect(strncmp(message, "b: ", 3) == 0, "%s", message);
}

Test(board, many_instances_are_remembered)
{
    char name[KVB_NAME_MAX];

    create(NULL, 0);
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "engine-%d", i);
        publish(name, true, true, true);
    }
    cr_expect(ask(KVP_BOARD_HEALTH));
    publish("engine-57", true, false, false);
    cr_expect(!ask(KVP_BOARD_HEALTH));
    cr_expect_eq(nreasons, 1);
}
