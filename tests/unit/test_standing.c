/* SPDX-License-Identifier: Apache-2.0 */
#include "standing.h"

#include <criterion/criterion.h>

#include <string.h>

static struct {
    uint32_t ups, downs;
    kvb_status_t why;
    struct kvt_hello hello;
} told;

static void on_up(void *ctx, const struct kvt_hello *hello)
{
    (void)ctx;
    told.ups++;
    told.hello = *hello;
}

static void on_down(void *ctx, kvb_status_t why)
{
    (void)ctx;
    told.downs++;
    told.why = why;
}

static const struct kvt_peer_ops ops = {.up = on_up, .down = on_down};
static struct kvt_standing node;

static void begin(void)
{
    memset(&told, 0, sizeof told);
    node = (struct kvt_standing){.by = "test", .ops = &ops};
}

TestSuite(standing, .init = begin);

static void admit(uint64_t incarnation)
{
    const struct kvt_identity identity = {.name = "n", .incarnation = incarnation};
    const struct kvt_handshake shake = {.version = 3, .features = 5};
    kvt_standing_admitted(&node, &identity, &shake);
}

static void lose(kvb_status_t why)
{
    node.admitted--;
    kvt_standing_gone(&node, true, why);
}

static void tell(uint32_t ups, uint32_t downs)
{
    kvt_standing_tell(&node, "here:1");
    cr_expect_eq(told.ups, ups);
    cr_expect_eq(told.downs, downs);
    kvt_standing_tell(&node, "here:1");
    cr_expect_eq(told.ups, ups, "once");
    cr_expect_eq(told.downs, downs, "once");
}

Test(standing, nothing_is_told_before_anything_is_known)
{
    tell(0, 0);
    kvt_standing_gone(&node, false, KVB_ERR_TIMEOUT);
    tell(0, 0);
    node.reached = true; /* nothing else is tried now */
    tell(0, 1);
    cr_expect_eq(told.why, KVB_ERR_TIMEOUT);
}

Test(standing, up_and_down_come_in_turn_with_the_reason)
{
    admit(7);
    cr_expect(node.reached);
    tell(1, 0);
    cr_expect_eq(told.hello.incarnation, 7);
    cr_expect_eq(told.hello.version, 3);
    cr_expect_eq(told.hello.features, 5);
    cr_expect_str_eq(told.hello.name, "n");
    admit(7);
    lose(KVB_ERR_IO);
    tell(1, 0); /* one lane is enough */
    lose(KVB_ERR_UNSUPPORTED);
    tell(1, 1);
    cr_expect_eq(told.why, KVB_ERR_REFUSED, "no version in common");
    admit(7);
    tell(2, 1);
}

Test(standing, another_life_of_the_node_is_a_down_and_an_up)
{
    admit(7);
    tell(1, 0);
    node.why = KVB_ERR_REFUSED; /* of some earlier try */
    admit(8);
    tell(2, 1);
    cr_expect_eq(told.why, KVB_ERR_DISCONNECTED);
    cr_expect_eq(told.hello.incarnation, 8);
}

Test(standing, what_comes_and_goes_before_it_was_told_is_told_as_it_is_now)
{
    admit(7);
    lose(KVB_ERR_IO);
    tell(0, 1);
    admit(7);
    lose(KVB_ERR_IO);
    admit(7);
    tell(1, 1);
}

Test(standing, each_end_is_counted_by_what_it_was)
{
    static const struct {
        bool admitted;
        kvb_status_t why;
        struct kvt_peer_stats counted;
    } ends[] = {
        {true, KVB_ERR_IO, {.disconnects = 1}},
        {false, KVB_ERR_IO, {.connect_failures = 1}},
        {true, KVB_ERR_TIMEOUT, {.disconnects = 1, .silences = 1}},
        {false, KVB_ERR_TIMEOUT, {.connect_failures = 1}},
        {true, KVB_ERR_PROTOCOL, {.disconnects = 1, .protocol_errors = 1}},
        {false, KVB_ERR_PROTOCOL, {.connect_failures = 1, .protocol_errors = 1}},
    };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        struct kvt_peer_stats counted = {0};
        kvt_count_end(&counted, ends[i].admitted, ends[i].why);
        cr_expect_eq(counted.disconnects, ends[i].counted.disconnects);
        cr_expect_eq(counted.connect_failures, ends[i].counted.connect_failures);
        cr_expect_eq(counted.silences, ends[i].counted.silences);
        cr_expect_eq(counted.protocol_errors, ends[i].counted.protocol_errors);
    }
}

static void draw(void *ctx, void *out, size_t len)
{
    memset(out, *(const int *)ctx, len);
}

Test(standing, waits_double_up_to_their_limit_between_half_and_all)
{
    static const struct {
        uint32_t failures;
        uint64_t most_ms;
    } waits[] = {{0, 50}, {1, 50}, {2, 100}, {3, 200}, {6, 1600}, {7, 2000}, {UINT32_MAX, 2000}};
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        uint64_t most_ns = waits[i].most_ms * KVB_NS_PER_MS;
        for (int byte = 0; byte < 256; byte += 15) {
            const struct kvb_random random = {.fill = draw, .ctx = &byte};
            uint64_t wait_ns = kvt_backoff_ns(&random, 50, 2000, waits[i].failures);
            cr_expect(wait_ns >= most_ns / 2 && wait_ns <= most_ns, "%u", waits[i].failures);
            cr_expect(byte != 0 || wait_ns == most_ns / 2);
        }
    }
}
