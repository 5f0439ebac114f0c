/* SPDX-License-Identifier: Apache-2.0 */
/* The store's questions and answers as they travel. */
#include "store_samples.h"
#include "transport/tcp.h"

#include <criterion/criterion.h>

#include <stdlib.h>

Test(store_wire, questions_are_numbered_without_holes_and_have_names_of_their_own)
{
    uint16_t n = 0;
#define X(name, type, label, fields, body, answer) n++;
    KVS_QUESTIONS(X)
#undef X
    cr_assert_null(kvs_question_info(0));
    cr_assert_null(kvs_question_info((uint16_t)(n + 1)));
    for (uint16_t type = 1; type <= n; type++) {
        cr_assert_eq(kvs_question_info(type)->type, type);
        for (uint16_t other = 1; other < type; other++) {
            cr_assert_str_neq(kvs_question_info(type)->label, kvs_question_info(other)->label);
        }
    }
}

Test(store_wire, what_is_packed_is_read_as_it_was)
{
    for (enum store_codec codec = 0; codec < STORE_CODECS; codec++) {
        struct kvb_writer out, again;
        kvb_writer_init(&out, 4096);
        kvb_writer_init(&again, 4096);
        store_sample(codec, &out);
        cr_assert_eq(out.status, KVB_OK);
        struct kvb_span in = {out.data, out.len};
        cr_assert_eq(store_reencode(codec, in, &again), KVB_OK, "codec %d", codec);
        cr_assert_eq(again.len, out.len);
        cr_assert(out.len == 0 || memcmp(again.data, out.data, out.len) == 0);
        kvb_writer_cleanup(&out);
        kvb_writer_cleanup(&again);
    }
}

Test(store_wire, every_byte_missing_or_left_over_is_refused)
{
    for (enum store_codec codec = 0; codec < STORE_CODECS; codec++) {
        struct kvb_writer out, again;
        kvb_writer_init(&out, 4096);
        kvb_writer_init(&again, 4096);
        store_sample(codec, &out);
        size_t len = out.len;
        for (size_t cut = 0; cut < len; cut++) {
            /* a copy of its own, so that reading past it is a fault under asan */
            uint8_t *bytes = malloc(cut + 1);
            memcpy(bytes, out.data, cut);
            cr_assert_eq(store_reencode(codec, (struct kvb_span){bytes, cut}, &again),
                         KVB_ERR_PROTOCOL, "codec %d cut at %zu", codec, cut);
            free(bytes);
        }
        kvb_put_u8(&out, 0);
        cr_assert_eq(store_reencode(codec, (struct kvb_span){out.data, out.len}, &again),
                     KVB_ERR_PROTOCOL, "codec %d left over", codec);
        kvb_writer_cleanup(&out);
        kvb_writer_cleanup(&again);
    }
}

/* ---- fields out of their limits ---- */

static struct kvs_ask ask;

static kvb_status_t travel(enum kvs_question type)
{
    static struct kvs_ask got;
    struct kvb_writer out;
    kvb_writer_init(&out, KVT_ASK_MAX);
    kvs_ask_pack(&out, type, &ask);
    cr_assert_eq(out.status, KVB_OK);
    kvb_status_t status = kvs_ask_unpack((struct kvb_span){out.data, out.len}, type, &got);
    kvb_writer_cleanup(&out);
    return status;
}

static void good(void)
{
    ask = (struct kvs_ask){
        .space = {.tenant = store_span_("t"), .layout = store_span_("")},
        .len = 1,
        .nkeys = 1,
        .keys = {{store_span_("k"), 0, 0}},
    };
}

Test(store_wire, each_field_has_its_limits)
{
    static uint8_t bytes[600];
    memset(bytes, 'x', sizeof bytes);
    good();
    cr_assert_eq(travel(KVS_ASK_GET), KVB_OK, "an empty layout is one");

    ask.space.tenant = (struct kvb_span){bytes, KVS_WIRE_TENANT_MAX};
    ask.space.layout = (struct kvb_span){bytes, KVS_WIRE_LAYOUT_MAX};
    ask.keys[0].block = (struct kvb_span){bytes, KVS_CORE_KEY_MAX};
    ask.len = KVS_CORE_VALUE_MAX;
    cr_assert_eq(travel(KVS_ASK_GET), KVB_OK);

    good();
    ask.space.tenant.len = 0;
    cr_assert_eq(travel(KVS_ASK_GET), KVB_ERR_PROTOCOL, "no tenant");
    ask.space.tenant = (struct kvb_span){bytes, KVS_WIRE_TENANT_MAX + 1};
    cr_assert_eq(travel(KVS_ASK_GET), KVB_ERR_PROTOCOL, "a tenant too long");
    ask.space.tenant = (struct kvb_span){(const uint8_t *)"a\0b", 3};
    cr_assert_eq(travel(KVS_ASK_GET), KVB_ERR_PROTOCOL, "a tenant that would end early");

    good();
    ask.space.layout = (struct kvb_span){bytes, KVS_WIRE_LAYOUT_MAX + 1};
    cr_assert_eq(travel(KVS_ASK_GET), KVB_ERR_PROTOCOL, "a layout too long");
    ask.space.layout = (struct kvb_span){(const uint8_t *)"\0", 1};
    cr_assert_eq(travel(KVS_ASK_GET), KVB_ERR_PROTOCOL, "a layout that would end early");

    good();
    ask.keys[0].block.len = 0;
    cr_assert_eq(travel(KVS_ASK_GET), KVB_ERR_PROTOCOL, "no key");
    cr_assert_eq(travel(KVS_ASK_EXISTS), KVB_ERR_PROTOCOL, "no key among keys");
    ask.keys[0].block = (struct kvb_span){bytes, KVS_CORE_KEY_MAX + 1};
    cr_assert_eq(travel(KVS_ASK_GET), KVB_ERR_PROTOCOL, "a key too long");
    cr_assert_eq(travel(KVS_ASK_REMOVE), KVB_ERR_PROTOCOL, "a key too long among keys");

    good();
    ask.len = 0;
    cr_assert_eq(travel(KVS_ASK_GET), KVB_ERR_PROTOCOL, "no bytes");
    ask.len = KVS_CORE_VALUE_MAX + 1;
    cr_assert_eq(travel(KVS_ASK_GET), KVB_ERR_PROTOCOL, "too many bytes");

    good();
    ask.nkeys = 0;
    cr_assert_eq(travel(KVS_ASK_EXISTS), KVB_ERR_PROTOCOL, "about nothing");
    ask.pin = (enum kvs_pin)3;
    cr_assert_eq(travel(KVS_ASK_PUT), KVB_ERR_PROTOCOL, "a pin there is not");

    good();
    ask.max = 1;
    cr_assert_eq(travel(KVS_ASK_LIST), KVB_OK);
    ask.max = 0;
    cr_assert_eq(travel(KVS_ASK_LIST), KVB_ERR_PROTOCOL, "none");
    ask.max = KVS_LIST_MAX + 1;
    cr_assert_eq(travel(KVS_ASK_LIST), KVB_ERR_PROTOCOL, "more than there is room for");
}

Test(store_wire, more_keys_than_one_step_does_are_refused)
{
    struct kvb_writer out;
    kvb_writer_init(&out, KVT_ASK_MAX);
    good();
    ask.nkeys = KVS_WIRE_ITEMS_MAX;
    for (uint32_t i = 0; i < ask.nkeys; i++) {
        ask.keys[i] = ask.keys[0];
    }
    cr_assert_eq(travel(KVS_ASK_EXISTS), KVB_OK);
    kvs_ask_pack(&out, KVS_ASK_EXISTS, &ask);
    /* one more than there may be, and there they are */
    size_t at = 4 + 1 + 4 + 16 + 16;
    cr_assert_eq(out.data[at] + out.data[at + 1] * 256u, KVS_WIRE_ITEMS_MAX);
    out.data[at]++;
    kvb_put_span(&out, ask.keys[0].block);
    kvb_put_u32(&out, 0);
    kvb_put_u32(&out, 0);
    static struct kvs_ask got;
    cr_assert_eq(kvs_ask_unpack((struct kvb_span){out.data, out.len}, KVS_ASK_EXISTS, &got),
                 KVB_ERR_PROTOCOL);
    kvb_writer_cleanup(&out);
}

Test(store_wire, two_spaces_never_travel_as_the_same_bytes)
{
    static const struct {
        const char *tenant, *layout;
    } pairs[] = {{"a", "b/c"}, {"a/b", "c"}, {"ab", "c"}, {"a", "bc"}, {"abc", ""}};
    struct kvb_writer out[5];
    static struct kvs_ask got[5];
    for (int i = 0; i < 5; i++) {
        good();
        ask.space.tenant = store_span_(pairs[i].tenant);
        ask.space.layout = store_span_(pairs[i].layout);
        kvb_writer_init(&out[i], 4096);
        kvs_ask_pack(&out[i], KVS_ASK_PUT, &ask);
        cr_assert_eq(
            kvs_ask_unpack((struct kvb_span){out[i].data, out[i].len}, KVS_ASK_PUT, &got[i]),
            KVB_OK);
        for (int j = 0; j < i; j++) {
            struct kvb_span a = got[i].space.packed, b = got[j].space.packed;
            cr_assert(a.len != b.len || memcmp(a.data, b.data, a.len) != 0);
        }
    }
    for (int i = 0; i < 5; i++) {
        kvb_writer_cleanup(&out[i]);
    }
}

Test(store_wire, an_answer_of_other_statuses_than_there_are_is_refused)
{
    struct kvs_wire_item items[1];
    static const int32_t statuses[] = {1, -5000, INT32_MIN, INT32_MAX};
    for (int i = 0; i < 4; i++) {
        struct kvb_writer out;
        kvb_writer_init(&out, 64);
        kvb_put_u32(&out, (uint32_t)statuses[i]);
        kvb_put_u64(&out, 0);
        cr_assert_eq(kvs_items_unpack((struct kvb_span){out.data, out.len}, items, 1),
                     KVB_ERR_PROTOCOL);
        kvb_writer_cleanup(&out);
    }
}

Test(store_wire, the_sizes_that_the_header_gives_are_right)
{
    static const struct {
        enum store_codec codec;
        size_t len;
    } sizes[] = {{STORE_items, STORE_ITEMS * KVS_ITEM_WIRE},
                 {STORE_len, KVS_LEN_WIRE},
                 {STORE_status, KVS_STATUS_WIRE}};
    for (int i = 0; i < 3; i++) {
        struct kvb_writer out;
        kvb_writer_init(&out, 4096);
        store_sample(sizes[i].codec, &out);
        cr_assert_eq(out.len, sizes[i].len);
        kvb_writer_cleanup(&out);
    }
    static struct kvs_wire_tenants tenants;
    tenants.n = KVS_WIRE_TENANTS_MAX;
    for (uint32_t i = 0; i < tenants.n; i++) {
        memset(tenants.at[i].tenant, 'x', KVS_WIRE_TENANT_MAX);
    }
    struct kvb_writer out;
    kvb_writer_init(&out, 1 << 20);
    kvs_tenants_pack(&out, &tenants);
    cr_assert_eq(out.len, KVS_TENANTS_WIRE_MAX);
    kvb_writer_cleanup(&out);
}

Test(store_wire, a_list_is_read_only_as_far_as_there_is_room_and_sense)
{
    static struct kvs_list list, got;
    struct kvb_writer out;
    list.n = KVS_LIST_MAX;
    for (uint32_t i = 0; i < list.n; i++) {
        memset(list.at[i].layout, 'x', KVS_WIRE_LAYOUT_MAX);
        list.at[i].key_len = KVS_CORE_KEY_MAX;
        list.at[i].len = KVS_CORE_VALUE_MAX;
    }
    kvb_writer_init(&out, 1 << 20);
    kvs_list_pack(&out, &list);
    cr_assert_eq(out.len, KVS_LIST_WIRE_MAX);
    got.max = KVS_LIST_MAX;
    cr_assert_eq(kvs_list_unpack((struct kvb_span){out.data, out.len}, &got), KVB_OK);
    got.max = KVS_LIST_MAX - 1;
    cr_assert_eq(kvs_list_unpack((struct kvb_span){out.data, out.len}, &got), KVB_ERR_PROTOCOL);
    got.max = KVS_LIST_MAX;
    list.at[3].key_len = 0;
    out.len = 0;
    kvs_list_pack(&out, &list);
    cr_assert_eq(kvs_list_unpack((struct kvb_span){out.data, out.len}, &got), KVB_ERR_PROTOCOL,
                 "no key");
    list.at[3].key_len = 1;
    list.at[3].len = KVS_CORE_VALUE_MAX + 1;
    out.len = 0;
    kvs_list_pack(&out, &list);
    cr_assert_eq(kvs_list_unpack((struct kvb_span){out.data, out.len}, &got), KVB_ERR_PROTOCOL,
                 "longer than there is");
    kvb_writer_cleanup(&out);
}
