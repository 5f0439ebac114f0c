/* SPDX-License-Identifier: Apache-2.0 */
#include "events.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvp_events *events;
static struct kvp_event page[KVP_EVENTS_PAGE_MAX];
static struct kvp_events_gap gap;
static uint32_t made; /* states */

static void setup(void)
{
    cr_assert_eq(kvp_events_create(0, &events), KVB_OK);
}
static void teardown(void)
{
    kvp_events_destroy(events);
}
TestSuite(events, .init = setup, .fini = teardown);

static void add(uint32_t n)
{
    char detail[16];
    for (uint32_t i = 0; i < n; i++) {
        snprintf(detail, sizeof detail, "%u", i);
        kvp_events_add(events, "a", "sleep", detail);
    }
}

Test(events, a_reader_gets_each_once_in_order_and_goes_on_where_it_was)
{
    uint64_t after = 0;
    uint32_t seen = 0;

    add(600);
    for (uint32_t n; (n = kvp_events_read(events, after, page, 256, &gap)) > 0; seen += n) {
        cr_assert_eq(gap.lost, 0);
        for (uint32_t i = 0; i < n; i++) {
            cr_assert_eq(page[i].id, ++after);
            cr_assert_eq((uint32_t)atoi(page[i].detail), seen + i);
        }
    }
    cr_assert_eq(seen, 600);
    add(1);
    cr_assert_eq(kvp_events_read(events, after, page, 256, &gap), 1);
    cr_assert_eq(page[0].id, 601);
    cr_assert_gt(page[0].at_ms, 1700000000000u);
}

Test(events, who_comes_late_is_told_how_much_was_forgotten)
{
    add(KVP_EVENTS_MAX + 100);
    cr_assert_eq(kvp_events_read(events, 40, page, 256, &gap), 256);
    cr_assert_eq(gap.lost, 60);
    cr_assert_eq(page[0].id, 101);
    /* from the beginning: nobody missed what came before */
    cr_assert_eq(kvp_events_read(events, 0, page, 256, &gap), 256);
    cr_assert_eq(gap.lost, 0);
    cr_assert_eq(page[0].id, 101);
    cr_assert(!gap.restarted);
}

/* Whatever the next daemon has told by then, and also if the clock was set back. */
Test(events, who_goes_on_after_a_restart_is_told_so_and_gets_all_there_is)
{
    static const uint64_t epochs[] = {100, 5000, 1u << 20, 3};
    struct kvp_events *next = NULL;
    add(50);
    for (size_t i = 0; i < 4; i++) {
        char text[8192];
        uint64_t cursor = 50;
        uint64_t epoch = epochs[i];
        cr_assert_eq(kvp_events_create(epoch, &next), KVB_OK);
        cr_assert_eq(kvp_events_read(next, 50, page, 256, &gap), 0);
        cr_assert_eq(kvp_events_stream(next, &cursor, text, sizeof text), 0, "nothing yet");
        for (uint32_t k = 0; k < 30; k++) {
            kvp_events_add(next, "a", "wake", "");
        }
        cr_assert_eq(kvp_events_read(next, 50, page, 256, &gap), 30);
        cr_assert(gap.restarted);
        cr_assert_eq(page[0].id, epoch + 1);
        size_t len = kvp_events_stream(next, &cursor, text, sizeof text - 1);
        text[len] = '\0';
        const char *told = strstr(text, "event: restarted\n");
        const char *first = strstr(text, "event: wake\n");
        cr_assert(told != NULL && first != NULL && told < first, "%s", text);
        cr_assert_null(strstr(told + 1, "event: restarted\n"), "once");
        cr_assert_eq(kvp_events_read(next, cursor, page, 256, &gap), 0);
        cr_assert(!gap.restarted);
        kvp_events_destroy(next);
    }
    cr_assert_lt(kvp_events_epoch(), (uint64_t)1 << 53, "exact in JavaScript");
}

static json_t *make(const struct kvp_view *view)
{
    json_t *tags = json_object();
    for (uint32_t i = 0; i < view->ntags; i++) {
        (void)json_object_set_new(tags, view->tags[i].tag, json_string("discarded"));
    }
    made++;
    return json_pack("{s:s, s:i, s:o}", "instance", view->instance, "s", (int)view->stopped_by,
                     "tags", tags);
}

static json_t *make_nothing(const struct kvp_view *view)
{
    (void)view;
    return NULL;
}

Test(events, a_state_is_told_when_it_is_another_and_made_only_then)
{
    static const unsigned states[] = {1, 1, 2, 1};
    struct kvp_view view = {.instance = "a", .attached = true};
    for (uint32_t i = 0; i < 4; i++) {
        view.stopped_by = states[i];
        for (uint32_t reports = 0; reports < 10; reports++) { /* a load is no state */
            view.load.running = reports;
            kvp_events_add_state(events, &view, make);
        }
    }
    cr_assert_eq(made, 3);
    strcpy(view.instance, "b");
    kvp_events_add_state(events, &view, make_nothing); /* no memory: told by the next */
    kvp_events_add_state(events, &view, make);
    cr_assert_eq(kvp_events_read(events, 0, page, 256, &gap), 4);
    cr_assert_str_eq(page[0].kind, "state");
    cr_assert_str_eq(page[1].detail, "{\"instance\":\"a\",\"s\":2,\"tags\":{}}");
    cr_assert_str_eq(page[3].instance, "b");
    json_t *json = kvp_event_json(&page[1]);
    cr_assert_eq(json_integer_value(json_object_get(json_object_get(json, "state"), "s")), 2);
    json_decref(json);
}

/* Each difference counts, and the largest state there is fits. */
Test(events, every_state_is_told_however_long_it_is)
{
    struct kvp_view view = {.attached = true};
    uint32_t told = 0;
    memset(view.instance, 'x', KVB_NAME_MAX - 1);
    for (view.ntags = 0; view.ntags <= KVB_TAGS_MAX; view.ntags++) {
        kvp_events_add_state(events, &view, make);
        cr_assert_eq(kvp_events_read(events, told, page, 256, &gap), 1, "%u", view.ntags);
        json_t *state = json_loads(page[0].detail, 0, NULL);
        cr_assert_eq(json_object_size(json_object_get(state, "tags")), view.ntags);
        json_decref(state);
        told++;
        if (view.ntags < KVB_TAGS_MAX) {
            memset(view.tags[view.ntags].tag, 'a' + (int)view.ntags, KVB_NAME_MAX - 1);
        }
    }
    view.ntags = KVB_TAGS_MAX;
    for (uint32_t i = 0; i < 5; i++) {
        view.attached = i != 1;
        view.degraded = i == 2;
        view.scheduler = i == 3 ? KVP_SCHEDULER_PAUSED : KVP_SCHEDULER_RUNNING;
        view.tags[7].residency = i == 4 ? KVB_OFFLOADED : KVB_RESIDENT;
        kvp_events_add_state(events, &view, make);
        cr_assert_eq(kvp_events_read(events, told, page, 256, &gap), i > 0, "%u", i);
        told += i > 0;
    }
}

Test(events, a_stream_is_whole_events_whatever_room_there_is)
{
    kvp_events_add(events, "a", "sleep", "two\nlines \"quoted\"");
    add(400);
    for (size_t cap = 0; cap < 2000; cap += 37) {
        char text[2001];
        uint64_t cursor = 0, seen = 0;
        for (int turns = 0; turns < 1000; turns++) {
            memset(text, 'x', sizeof text);
            size_t len = kvp_events_stream(events, &cursor, text, cap);
            cr_assert_leq(len, cap);
            cr_assert_eq(text[cap + 1 < sizeof text ? cap + 1 : cap], 'x');
            if (len == 0) {
                break;
            }
            cr_assert_eq(strncmp(text, "id: ", 4), 0);
            cr_assert_eq(memcmp(text + len - 2, "\n\n", 2), 0);
            for (const char *at = text; at < text + len; seen++) {
                cr_assert_eq(strtoull(at + 4, NULL, 10), seen + 1);
                at = strstr(at, "\n\n") + 2;
            }
        }
        cr_assert(seen == 401 || (seen == 0 && cap < 200), "%zu: %lu", cap, seen);
    }
}

Test(events, a_stream_that_was_overtaken_says_so)
{
    char text[4096];
    uint64_t cursor = 7;
    add(KVP_EVENTS_MAX + 10);
    size_t len = kvp_events_stream(events, &cursor, text, sizeof text - 1);
    text[len] = '\0';
    static const char want[] =
        "id: 10\nevent: lost\ndata: {\"kind\":\"lost\",\"lost\":3}\n\nid: 11\nevent: sleep\n";
    cr_assert_eq(strncmp(text, want, sizeof want - 1), 0, "%.80s", text);
}
