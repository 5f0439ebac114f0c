/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_STORE_SAMPLES_H
#define TESTS_STORE_SAMPLES_H

/*
 * One sample of every question and answer of store/wire, and reading any bytes as one of them and
 * packing what was read again: for the unit test, the fuzzer and its seeds. Include path: store/.
 */
#include "wire/wire.h"

#include "base/assert.h"

#include <string.h>

enum store_codec {
#define X(name, type, label, fields, body, answer) STORE_##name = (type)-1,
    KVS_QUESTIONS(X)
#undef X
        STORE_items,
    STORE_len,
    STORE_status,
    STORE_tenants,
    STORE_list,
    STORE_CODECS
};
#define STORE_ITEMS 3u /* items of the answers that are made and read here */

static inline struct kvb_span store_span_(const char *text)
{
    return (struct kvb_span){(const uint8_t *)text, strlen(text)};
}

static inline void store_sample(enum store_codec codec, struct kvb_writer *out)
{
    static struct kvs_ask ask;
    static struct kvs_wire_tenants tenants;
    static struct kvs_list list;
    const struct kvs_wire_item items[STORE_ITEMS] = {
        {KVB_OK, 4096}, {KVB_ERR_NOT_FOUND, 0}, {KVB_ERR_BUSY, UINT64_MAX}};
    ask = (struct kvs_ask){
        .space = {.tenant = store_span_("team-a"), .layout = store_span_("model/bf16/16")},
        .lineage = {{1, 2}},
        .hold = {3, 4},
        .force = true,
        .pin = KVS_PIN_HARD,
        .len = 1 << 20,
        .all_of_instance = true,
        .from = 7,
        .place = {8, 9, 10},
        .max = KVS_LIST_MAX,
        .nkeys = 3,
        .keys = {{store_span_("k"), 0, 1}, {store_span_("a/b"), 2, 3}, {store_span_("k"), 0, 1}},
    };
    switch (codec) {
    case STORE_items:
        kvs_items_pack(out, items, STORE_ITEMS);
        break;
    case STORE_len:
        kvs_len_pack(out, 4096);
        break;
    case STORE_status:
        kvs_status_pack(out, &(struct kvs_wire_status){true, 1, 2, 3, 4, 5, 6, 7});
        break;
    case STORE_tenants:
        tenants.next = 2;
        tenants.n = 2;
        tenants.at[0] = (struct kvs_wire_tenant){"a", {UINT64_MAX, 1, 2, 3, 4}};
        tenants.at[1] = (struct kvs_wire_tenant){"b/c", {5, 6, 7, 8, 9}};
        kvs_tenants_pack(out, &tenants);
        break;
    case STORE_list:
        list = (struct kvs_list){.more = true, .place = {1, 2, 3}, .n = 2};
        list.at[0] = (struct kvs_listed){"l/m", {{1, 2}}, "key", 3, 4, 5, 6, KVS_PIN_SOFT};
        list.at[1] = (struct kvs_listed){"", {{7, 8}}, "k", 1, 0, 0, 1, KVS_PIN_NONE};
        kvs_list_pack(out, &list);
        break;
    default:
        kvs_ask_pack(out, (enum kvs_question)(codec + 1), &ask);
    }
}

/* Reads bytes as that and packs them again. */
static inline kvb_status_t store_reencode(enum store_codec codec, struct kvb_span in,
                                          struct kvb_writer *again)
{
    static struct kvs_ask ask;
    static struct kvs_wire_tenants tenants;
    static struct kvs_list list = {.max = STORE_ITEMS};
    struct kvs_wire_item items[STORE_ITEMS];
    struct kvs_wire_status wire;
    uint64_t len;
    kvb_status_t status;
    switch (codec) {
    case STORE_items:
        status = kvs_items_unpack(in, items, STORE_ITEMS);
        if (status == KVB_OK) {
            kvs_items_pack(again, items, STORE_ITEMS);
        }
        return status;
    case STORE_len:
        status = kvs_len_unpack(in, &len);
        if (status == KVB_OK) {
            kvs_len_pack(again, len);
        }
        return status;
    case STORE_status:
        status = kvs_status_unpack(in, &wire);
        if (status == KVB_OK) {
            kvs_status_pack(again, &wire);
        }
        return status;
    case STORE_tenants:
        status = kvs_tenants_unpack(in, &tenants);
        if (status == KVB_OK) {
            kvs_tenants_pack(again, &tenants);
        }
        return status;
    case STORE_list:
        status = kvs_list_unpack(in, &list);
        if (status == KVB_OK) {
            kvs_list_pack(again, &list);
        }
        return status;
    default:
        status = kvs_ask_unpack(in, (enum kvs_question)(codec + 1), &ask);
        if (status == KVB_OK) {
            kvs_ask_pack(again, (enum kvs_question)(codec + 1), &ask);
        }
        return status;
    }
}

#endif
