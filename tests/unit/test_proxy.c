/* SPDX-License-Identifier: Apache-2.0 */
/* What is passed on, where to, and what is left out; the way of whole requests is
 * integration/test_passthrough.py. */
#include "metrics.h"
#include "proxy/internal.h"
#include "splitmix.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEN(text) (text), strlen(text)

/* ---- headers ---- */

Test(proxy, what_is_of_one_connection_is_known_in_any_case_and_nothing_else)
{
    const char *const hops[] = {"Connection",       "keep-alive",          "TE",
                                "tRAILER",          "Transfer-Encoding",   "UPGRADE",
                                "Proxy-Connection", "proxy-authorization", "Content-Length"};
    const char *const ends[] = {"Connections", "Keep",         "T", "TEE", "Proxy",
                                "Date",        "Content-Type", ""};
    for (size_t i = 0; i < sizeof hops / sizeof hops[0]; i++) {
        cr_assert(kvp_field_is_hop(LEN(hops[i])), "%s", hops[i]);
    }
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        cr_assert_not(kvp_field_is_hop(LEN(ends[i])), "%s", ends[i]);
    }
}

Test(proxy, a_connection_header_names_whole_words)
{
    cr_assert(kvp_field_named("close, X-One ,\tx-two", LEN("X-Two")));
    cr_assert(kvp_field_named("close, X-One ,\tx-two", LEN("x-one")));
    cr_assert(kvp_field_named(",,a", LEN("A")));
    cr_assert_not(kvp_field_named("close, X-One", LEN("X")));
    cr_assert_not(kvp_field_named("close, X-One", LEN("X-One-More")));
    cr_assert_not(kvp_field_named("", LEN("X")));
    cr_assert_not(kvp_field_named(" , ,", LEN("")));
}

static void read_lines(struct kvp_fields *fields, const char *lines)
{
    kvp_fields_reset(fields);
    while (*lines != '\0') {
        size_t len = strcspn(lines, "\n") + 1;
        kvp_fields_add(fields, lines, len);
        lines += len;
    }
    kvp_fields_finish(fields, "http://engine:8000");
}

Test(proxy, the_head_of_an_answer_loses_what_is_of_its_connection)
{
    struct kvp_fields fields = {.text = NULL};
    read_lines(&fields,
               "A: 1\r\nConnection: X-Mine\r\nx-mine: 2\r\nContent-Length: 42\r\nB:\r\nA:  3 \t\r\n"
               "TE: x\r\n");
    const char *const left[][2] = {{"A", "1"}, {"B", ""}, {"A", "3"}};
    cr_assert_not(fields.bad);
    cr_assert_eq(fields.n, 3);
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_str_eq(fields.text + fields.at[i].name, left[i][0]);
        cr_assert_str_eq(fields.text + fields.at[i].value, left[i][1]);
    }
    cr_assert(fields.has_length);
    cr_assert_eq(fields.length, 42);
    read_lines(&fields, "Transfer-Encoding: chunked\r\nContent-Length: 42\r\n");
    cr_assert_not(fields.bad);
    cr_assert_not(fields.has_length, "chunks say where a body ends");
    kvp_fields_cleanup(&fields);
}

Test(proxy, what_is_elsewhere_at_the_engine_s_own_server_is_here)
{
    struct kvp_fields fields = {.text = NULL};
    read_lines(&fields,
               "location: HTTP://engine:8000/a/?b\r\nContent-Location: http://engine:80000/\r\n"
               "X-Location: http://engine:8000/a\r\n");
    cr_assert_str_eq(fields.text + fields.at[0].value, "/a/?b");
    cr_assert_str_eq(fields.text + fields.at[1].value, "http://engine:80000/");
    cr_assert_str_eq(fields.text + fields.at[2].value, "http://engine:8000/a");
    kvp_fields_cleanup(&fields);
}

Test(proxy, a_head_that_two_could_read_in_two_ways_is_bad)
{
    const char *const bad[] = {"no colon\r\n",
                               ": no name\r\n",
                               "A : 1\r\n",
                               "A: 1\r\n folded\r\n",
                               "A: 1\rB: 2\r\n",
                               "Content-Length: 1\r\nContent-Length: 2\r\n",
                               "Content-Length: -1\r\n",
                               "Content-Length: 1 2\r\n",
                               "Content-Length:\r\n",
                               "Content-Length: 99999999999999999999\r\n",
                               "A: \x7f\r\n",
                               "(A): 1\r\n"};
    struct kvp_fields fields = {.text = NULL};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        read_lines(&fields, bad[i]);
        cr_assert(fields.bad, "%s", bad[i]);
    }
    kvp_fields_reset(&fields);
    kvp_fields_add(&fields, "A: \0\r\n", 6);
    cr_assert(fields.bad);
    read_lines(&fields, "Content-Length: 7\r\nContent-Length: 7\r\n");
    cr_assert_not(fields.bad, "said twice, the same");
    kvp_fields_reset(&fields);
    for (int i = 0; i < KVP_FIELDS_MAX; i++) {
        kvp_fields_add(&fields, LEN("A: 1\r\n"));
    }
    cr_assert_not(fields.bad);
    kvp_fields_add(&fields, LEN("A: 1\r\n"));
    cr_assert(fields.bad, "too many");
    char *line = malloc(KVP_FIELDS_TEXT_MAX + 8);
    cr_assert_not_null(line);
    memset(line, 'x', KVP_FIELDS_TEXT_MAX + 8);
    line[1] = ':';
    kvp_fields_reset(&fields);
    kvp_fields_add(&fields, line, KVP_FIELDS_TEXT_MAX + 8);
    cr_assert(fields.bad, "too long");
    free(line);
    kvp_fields_cleanup(&fields);
}

/* ---- rings ---- */

Test(proxy, a_ring_gives_what_it_took_in_its_order_and_never_has_more_than_its_bound)
{
    enum { MAX = 5000 };
    static char in[512], out[512];
    for (uint64_t round = 0; round < 20; round++) {
        uint64_t seed = round;
        struct kvp_ring ring = {.data = NULL};
        uint64_t put = 0, got = 0;
        for (int i = 0; i < 2000; i++) {
            size_t len = 1 + splitmix_next(&seed) % sizeof in;
            if (splitmix_next(&seed) % 2 == 0) {
                for (size_t k = 0; k < len; k++) {
                    in[k] = (char)((put + k) * 31 >> 3);
                }
                size_t took = kvp_ring_put(&ring, MAX, in, len);
                cr_assert_eq(took, len < MAX - (put - got) ? len : MAX - (put - got));
                put += took;
            } else {
                size_t gave = kvp_ring_take(&ring, out, len);
                cr_assert_eq(gave, len < put - got ? len : put - got);
                for (size_t k = 0; k < gave; k++) {
                    cr_assert_eq(out[k], (char)((got + k) * 31 >> 3));
                }
                got += gave;
            }
            cr_assert_eq(ring.len, put - got);
            cr_assert_leq(ring.cap, MAX);
        }
        free(ring.data);
    }
}

/* ---- which server ---- */

static struct kvp_proxy *proxy;
static struct kvb_metrics *metrics;

static void begin(enum kvp_gate paused, enum kvp_gate asleep)
{
    metrics = kvb_metrics_create(kvp_metric_table, KVP_METRIC_COUNT);
    cr_assert_not_null(metrics);
    const struct kvp_proxy_config config = {.clock = &kvb_clock_real,
                                            .metrics = metrics,
                                            .while_paused = paused,
                                            .while_asleep = asleep,
                                            .requests_max = 8,
                                            .hold_max = 8,
                                            .hold_ms = 1000,
                                            .idle_max = 8,
                                            .connect_ms = 1000,
                                            .ca_file = ""};
    cr_assert_eq(kvp_proxy_create(&config, &proxy), KVB_OK);
}

static void finish(void)
{
    kvp_proxy_destroy(proxy);
    kvb_metrics_destroy(metrics);
}

static struct kvp_target *kept[64];
static uint32_t nkept;

/* The name of the target that it goes to, "hold", or the status of its refusal. */
static const char *admit(const char *instance, bool generates)
{
    static char said[KVB_NAME_MAX + 16];
    struct kvp_target *target = NULL;
    struct kvp_proxy_refusal refusal = {.http_status = 0};
    kvb_mutex_lock(&proxy->lock);
    enum kvp_admission admission =
        kvp_proxy_admit_locked(proxy, instance, generates, &target, &refusal);
    kvb_mutex_unlock(&proxy->lock);
    switch (admission) {
    case KVP_ADMITTED:
        kept[nkept++] = target;
        (void)snprintf(said, sizeof said, "to %s", target->name);
        return said;
    case KVP_HOLD:
        return "hold";
    case KVP_REFUSED:
        (void)snprintf(said, sizeof said, "%u %s", refusal.http_status, refusal.reason);
        return said;
    }
    return NULL;
}

static void let_go(void)
{
    kvb_mutex_lock(&proxy->lock);
    while (nkept > 0) {
        kvp_proxy_put_target_locked(proxy, kept[--nkept]);
    }
    kvb_mutex_unlock(&proxy->lock);
}

static void give(const char *name)
{
    cr_assert_eq(kvp_proxy_set_target(proxy, name, "http://127.0.0.1:9"), KVB_OK);
}

Test(proxy, of_several_servers_the_one_that_runs_and_has_least_to_do)
{
    begin(KVP_GATE_PASS, KVP_GATE_REFUSE);
    cr_assert_str_eq(admit("", true), "503 unknown");
    give("a");
    give("b");
    give("c");
    cr_assert_str_eq(admit("", true), "to a");
    cr_assert_str_eq(admit("", true), "to b");
    cr_assert_str_eq(admit("b", true), "to b");
    kvp_proxy_tell(proxy, "a", KVP_TARGET_PAUSED, "");
    kvp_proxy_tell(proxy, "c", KVP_TARGET_GONE, "");
    cr_assert_str_eq(admit("", true), "to b", "paused and gone ones come behind");
    kvp_proxy_tell(proxy, "b", KVP_TARGET_ASLEEP, "");
    cr_assert_str_eq(admit("", true), "to a");
    kvp_proxy_tell(proxy, "a", KVP_TARGET_ASLEEP, "");
    cr_assert_str_eq(admit("", true), "503 asleep");
    cr_assert_str_eq(admit("c", true), "to c", "tried, for all we know");
    cr_assert_str_eq(admit("", false), "to a", "it computes nothing");
    cr_assert_str_eq(admit("d", false), "404 unknown");
    kvp_proxy_remove_target(proxy, "a"); /* what is with it goes on */
    cr_assert_str_eq(admit("a", false), "404 unknown");
    let_go();
    finish();
}

static uint64_t hand_ns = KVB_NS_PER_S;

static uint64_t read_hand(void *ctx)
{
    (void)ctx;
    return hand_ns;
}

static const struct kvb_clock by_hand = {.now_ns = read_hand};

static struct kvp_target *find(const char *name)
{
    kvb_list_each(&proxy->targets, link)
    {
        struct kvp_target *target = kvb_container_of(link, struct kvp_target, link);
        if (strcmp(target->name, name) == 0) {
            return target;
        }
    }
    return NULL;
}

Test(proxy, equals_take_turns_and_one_that_was_not_reached_comes_behind)
{
    begin(KVP_GATE_PASS, KVP_GATE_REFUSE);
    give("a");
    give("b");
    const char *const turns[] = {"to a", "to b", "to a", "to b"};
    for (size_t i = 0; i < 4; i++) {
        cr_assert_str_eq(admit("", true), turns[i]);
        let_go();
    }
    kvb_mutex_lock(&proxy->lock);
    proxy->config.clock = &by_hand;
    find("a")->unreached_ns = hand_ns;
    kvb_mutex_unlock(&proxy->lock);
    hand_ns += KVB_NS_PER_S - 1;
    for (size_t i = 0; i < 4; i++) {
        cr_assert_str_eq(admit("", true), "to b");
    }
    kvp_proxy_tell(proxy, "b", KVP_TARGET_GONE, "");
    cr_assert_str_eq(admit("", true), "to a", "both are away, and it has less to do");
    kvp_proxy_tell(proxy, "b", KVP_TARGET_RUNNING, "");
    hand_ns++;
    cr_assert_str_eq(admit("", true), "to a", "it may be there again");
    let_go();
    finish();
}

Test(proxy, who_goes_stays_in_the_state_that_he_was_in)
{
    begin(KVP_GATE_HOLD, KVP_GATE_REFUSE);
    give("");
    cr_assert_str_eq(admit("", true), "to ");
    kvp_proxy_tell(proxy, "a", KVP_TARGET_ASLEEP, "");
    kvp_proxy_tell(proxy, "a", KVP_TARGET_GONE, "");
    cr_assert_str_eq(admit("", true), "503 asleep");
    kvp_proxy_tell(proxy, "a", KVP_TARGET_RUNNING, "");
    kvp_proxy_tell(proxy, "b", KVP_TARGET_PAUSED, "");
    cr_assert_str_eq(admit("", true), "hold", "one server of two: the worse of them");
    cr_assert_str_eq(admit("a", true), "to ");
    cr_assert_str_eq(admit("b", true), "hold");
    cr_assert_str_eq(admit("c", true), "404 unknown");
    give("b");
    cr_assert_str_eq(admit("", true), "to ", "b has its own");
    kvp_proxy_drain(proxy);
    cr_assert_str_eq(admit("", true), "503 closed");
    let_go();
    finish();
}

Test(proxy, only_http_servers_are_targets)
{
    const char *const good[] = {"http://h", "https://h:1", "http://[::1]:8000/", "http://h:80"};
    const char *const bad[] = {"",           "h:1",        "ftp://h",    "http://h/p",
                               "http://h?q", "http://h#f", "http://u@h", "http://h:0x1"};
    begin(KVP_GATE_PASS, KVP_GATE_PASS);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_assert_eq(kvp_proxy_set_target(proxy, "a", good[i]), KVB_OK, "%s", good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(kvp_proxy_set_target(proxy, "a", bad[i]), KVB_ERR_INVALID, "%s", bad[i]);
    }
    for (int i = 0; i < KVP_PROXY_TARGETS_MAX; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "t%d", i);
        cr_assert_eq(kvp_proxy_set_target(proxy, name, "http://h"),
                     i < KVP_PROXY_TARGETS_MAX - 1 ? KVB_OK : KVB_ERR_LIMIT);
    }
    finish();
}

Test(proxy, what_makes_an_engine_compute)
{
    cr_assert(kvp_proxy_generates("POST", "/v1/chat/completions"));
    cr_assert(kvp_proxy_generates("POST", "/generate/?x=1"));
    cr_assert_not(kvp_proxy_generates("GET", "/v1/chat/completions"));
    cr_assert_not(kvp_proxy_generates("POST", "/tokenize"));
    cr_assert_not(kvp_proxy_generates("POST", "/v1/chat/completions/1"));
    cr_assert_not(kvp_proxy_generates("POST", "/"));
}

Test(proxy, what_changes_an_engine_by_whatever_method)
{
    const struct {
        const char *method, *path;
        bool changes;
    } cases[] = {
        {"GET", "/v1/models", false},      {"HEAD", "/x", false},
        {"OPTIONS", "/x", false},          {"POST", "/v1/completions", false},
        {"PUT", "/generate?x", false},     {"POST", "/slow_down", true},
        {"DELETE", "/v1/x", true},         {"FROB", "/x", true},
        {"GET", "/slow_down?x=1", true},   {"HEAD", "/start_profile", true},
        {"GET", "/%73low_down/", true},    {"GET", "/weights_checker", true},
        {"GET", "/slow_down/more", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(kvp_proxy_changes(cases[i].method, cases[i].path), cases[i].changes, "%s %s",
                     cases[i].method, cases[i].path);
    }
}
