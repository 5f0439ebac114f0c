/* SPDX-License-Identifier: Apache-2.0 */
#include "base/id.h"
#include "base/status.h"

#include <criterion/criterion.h>

#include <string.h>

static const struct {
    int value;
    kvb_status_t status;
    const char *label;
} all[] = {
#define X(name, number, label, text) {number, KVB_##name, label},
    KVB_STATUS_LIST(X)
#undef X
};
#define COUNT (sizeof all / sizeof all[0])

Test(status, numbers_and_labels_are_unique_and_labels_fit_metrics)
{
    for (size_t i = 0; i < COUNT; i++) {
        cr_assert_str_eq(kvb_status_label(all[i].status), all[i].label);
        cr_assert_gt(strlen(kvb_status_text(all[i].status)), 0);
        cr_assert_eq(strspn(all[i].label, "abcdefghijklmnopqrstuvwxyz_"), strlen(all[i].label));
        for (size_t j = 0; j < i; j++) {
            cr_assert_neq(all[i].value, all[j].value);
            cr_assert_str_neq(all[i].label, all[j].label);
        }
    }
    cr_assert_str_eq(kvb_status_label((kvb_status_t)-9999), "unknown");
    cr_assert_str_eq(kvb_status_text((kvb_status_t)-9999), "unknown status");
}

/* They travel on the link: a number that changes breaks engines that were built before. */
Test(status, numbers_of_released_statuses_never_change)
{
    static const struct {
        kvb_status_t status;
        int value;
    } released[] = {
        {KVB_OK, 0},
        {KVB_IN_PROGRESS, 1},
        {KVB_ERR_INVALID, -1},
        {KVB_ERR_NOT_FOUND, -2},
        {KVB_ERR_EXISTS, -3},
        {KVB_ERR_TOO_LARGE, -4},
        {KVB_ERR_UNSUPPORTED, -5},
        {KVB_ERR_BAD_STATE, -6},
        {KVB_ERR_BUSY, -7},
        {KVB_ERR_FENCED, -10},
        {KVB_ERR_TICKET, -11},
        {KVB_ERR_GENERATION, -12},
        {KVB_ERR_CHECKSUM, -13},
        {KVB_ERR_CLOSED, -14},
        {KVB_ERR_AGAIN, -20},
        {KVB_ERR_NO_SPACE, -21},
        {KVB_ERR_QUOTA, -22},
        {KVB_ERR_TIMEOUT, -23},
        {KVB_ERR_CANCELED, -24},
        {KVB_ERR_PROTOCOL, -30},
        {KVB_ERR_DISCONNECTED, -31},
        {KVB_ERR_UNAVAILABLE, -32},
        {KVB_ERR_REFUSED, -33},
        {KVB_ERR_DRAINING, -34},
        {KVB_ERR_NO_MEMORY, -40},
        {KVB_ERR_IO, -41},
        {KVB_ERR_LIMIT, -42},
        {KVB_ERR_INTERNAL, -43},
    };
    for (size_t i = 0; i < sizeof released / sizeof released[0]; i++) {
        cr_assert_eq((int)released[i].status, released[i].value);
    }
}

Test(status, any_number_from_a_peer_becomes_a_status)
{
    for (int value = -100; value <= 100; value++) {
        kvb_status_t wanted = KVB_ERR_PROTOCOL;
        for (size_t i = 0; i < COUNT; i++) {
            wanted = all[i].value == value ? all[i].status : wanted;
        }
        cr_assert_eq(kvb_status_from_wire(value), wanted, "%d", value);
    }
}

struct zeros_first {
    int zeros;
};

static void fill(void *ctx, void *buf, size_t len)
{
    struct zeros_first *state = ctx;
    memset(buf, state->zeros-- > 0 ? 0 : 0xab, len);
}

Test(id, a_drawn_id_is_never_none)
{
    struct zeros_first state = {3};
    struct kvb_random random = {fill, &state};
    struct kvb_id id = kvb_id_draw(&random);
    char text[KVB_ID_HEX_LEN + 1];
    cr_assert_not(kvb_id_none(id));
    cr_assert_eq(state.zeros, -1);
    kvb_id_format(id, text);
    cr_assert_str_eq(text, "abababababababababababababababab");
    kvb_id_format((struct kvb_id){1, 2}, text);
    cr_assert_str_eq(text, "00000000000000010000000000000002");
    cr_assert(kvb_id_none((struct kvb_id){0, 0}));
    cr_assert_not(kvb_id_none((struct kvb_id){0, 1}));
    cr_assert_not(kvb_id_none((struct kvb_id){1, 0}));
    cr_assert_not(kvb_id_equal((struct kvb_id){1, 2}, (struct kvb_id){1, 3}));
    cr_assert_not(kvb_id_equal((struct kvb_id){1, 2}, (struct kvb_id){0, 2}));
    cr_assert(kvb_id_equal(kvb_id_draw(&random), id));
    cr_assert_not(kvb_id_equal(kvb_id_draw(&kvb_random_real), kvb_id_draw(&kvb_random_real)));
}
