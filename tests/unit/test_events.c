/* SPDX-License-Identifier: Apache-2.0 */
#include "events.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvp_events *events;
static struct kvp_event page[KVP_EVENTS_PAGE_MAX];
static uint64_t lost;

static void setup(void)
{
    cr_assert_eq(kvp_events_create(&events), KVB_OK);
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
    for (uint32_t n; (n = kvp_events_read(events, after, page, 256, &lost)) > 0; seen += n) {
        cr_assert_eq(lost, 0);
        for (uint32_t i = 0; i < n; i++) {
            cr_assert_eq(page[i].id, ++after);
            cr_assert_eq((uint32_t)atoi(page[i].detail), seen + i);
        }
    }
    cr_assert_eq(seen, 600);
    add(1);
    cr_assert_eq(kvp_events_read(events, after, page, 256, &lost), 1);
    cr_assert_eq(page[0].id, 601);
    cr_assert_gt(page[0].at_ms, 1700000000000u);
}

Test(events, who_comes_late_is_told_how_much_was_forgotten)
{
    add(KVP_EVENTS_MAX + 100);
    cr_assert_eq(kvp_events_read(events, 40, page, 256, &lost), 256);
    cr_assert_eq(lost, 60);
    cr_assert_eq(page[0].id, 101);
    /* from the beginning: nobody missed what came before */
    cr_assert_eq(kvp_events_read(events, 0, page, 256, &lost), 256);
    cr_assert_eq(lost, 0);
    cr_assert_eq(page[0].id, 101);
    /* an id of an earlier daemon */
    cr_assert_eq(kvp_events_read(events, 1u << 30, page, 256, &lost), 256);
    cr_assert_eq(page[0].id, 101);
}

Test(events, a_state_is_told_when_it_is_another)
{
    static const char *const states[] = {"{\"s\":1}", "{\"s\":1}", "{\"s\":2}", "{\"s\":1}"};
    for (size_t i = 0; i < 4; i++) {
        kvp_events_add_state(events, "a", json_loads(states[i], 0, NULL));
    }
    kvp_events_add_state(events, "b", json_loads("{\"s\":1}", 0, NULL));
    kvp_events_add_state(events, "b", NULL);
    cr_assert_eq(kvp_events_read(events, 0, page, 256, &lost), 4);
    cr_assert_str_eq(page[0].kind, "state");
    cr_assert_str_eq(page[1].detail, "{\"s\":2}");
    cr_assert_str_eq(page[3].instance, "b");
    json_t *json = kvp_event_json(&page[1]);
    cr_assert_eq(json_integer_value(json_object_get(json_object_get(json, "state"), "s")), 2);
    json_decref(json);
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
    static const char want[] = "id: 10\nevent: lost\ndata: {\"lost\":3}\n\nid: 11\nevent: sleep\n";
    cr_assert_eq(strncmp(text, want, sizeof want - 1), 0, "%.80s", text);
}
