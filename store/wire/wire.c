/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include "base/assert.h"

#include <string.h>

static const struct kvs_question_info infos[] = {
#define X(name, number, text, wants, has_body, answers)                                            \
    {.type = (number),                                                                             \
     .label = (text),                                                                              \
     .fields = (wants),                                                                            \
     .body = (has_body),                                                                           \
     .answer = KVS_ANSWER_##answers},
    KVS_QUESTIONS(X)
#undef X
};

const struct kvs_question_info *kvs_question_info(uint16_t type)
{
    /* numbered from 1, without holes (a test) */
    return type >= 1 && type <= sizeof infos / sizeof infos[0] ? &infos[type - 1] : NULL;
}

/* ---- checked reading ---- */

static void require(struct kvb_reader *in, bool holds)
{
    if (!holds) {
        in->status = KVB_ERR_PROTOCOL;
    }
}

static struct kvb_span get_text(struct kvb_reader *in, size_t max)
{
    struct kvb_span text = kvb_get_span(in, max);
    require(in, text.len == 0 || memchr(text.data, '\0', text.len) == NULL);
    return text;
}

static struct kvs_core_key get_key(struct kvb_reader *in)
{
    struct kvs_core_key key = {.block = kvb_get_span(in, KVS_CORE_KEY_MAX)};
    require(in, key.block.len > 0);
    key.group = kvb_get_u32(in);
    key.part = kvb_get_u32(in);
    return key;
}
#define KEY_WIRE_MIN 13u /* length, one byte, group, part */

static void put_key(struct kvb_writer *out, const struct kvs_core_key *key)
{
    kvb_put_span(out, key->block);
    kvb_put_u32(out, key->group);
    kvb_put_u32(out, key->part);
}

static void get_space(struct kvb_reader *in, struct kvs_ask *ask)
{
    const uint8_t *begin = in->at;
    ask->space.tenant = get_text(in, KVS_WIRE_TENANT_MAX);
    require(in, ask->space.tenant.len > 0);
    ask->space.layout = get_text(in, KVS_WIRE_LAYOUT_MAX);
    ask->space.packed = (struct kvb_span){begin, (size_t)(in->at - begin)};
    ask->lineage.id = kvb_get_id(in);
}

static enum kvs_pin get_pin(struct kvb_reader *in)
{
    uint8_t value = kvb_get_u8(in);
    require(in, value <= KVS_PIN_HARD);
    return (enum kvs_pin)value;
}

static void put_place(struct kvb_writer *out, const struct kvs_list_place *place)
{
    kvb_put_u32(out, place->shard);
    kvb_put_u32(out, place->bucket);
    kvb_put_u32(out, place->object);
}

static struct kvs_list_place get_place(struct kvb_reader *in)
{
    struct kvs_list_place place = {.shard = kvb_get_u32(in)};
    place.bucket = kvb_get_u32(in);
    place.object = kvb_get_u32(in);
    return place;
}

/* ---- questions: fields in the order of KVS_WIRE_FIELDS ---- */

static void pack_fields(struct kvb_writer *out, unsigned fields, const struct kvs_ask *ask)
{
    if ((fields & KVS_FIELD_SPACE) != 0) {
        kvb_put_span(out, ask->space.tenant);
        kvb_put_span(out, ask->space.layout);
        kvb_put_id(out, ask->lineage.id);
    }
    if ((fields & KVS_FIELD_HOLD) != 0) {
        kvb_put_u64(out, ask->hold.instance);
        kvb_put_u64(out, ask->hold.request);
    }
    if ((fields & KVS_FIELD_FORCE) != 0) {
        kvb_put_u8(out, ask->force);
    }
    if ((fields & KVS_FIELD_PIN) != 0) {
        kvb_put_u8(out, (uint8_t)ask->pin);
    }
    if ((fields & KVS_FIELD_LEN) != 0) {
        kvb_put_u64(out, ask->len);
    }
    if ((fields & KVS_FIELD_KEY) != 0) {
        put_key(out, &ask->keys[0]);
    }
    if ((fields & KVS_FIELD_KEYS) != 0) {
        kvb_put_u32(out, ask->nkeys);
        for (uint32_t i = 0; i < ask->nkeys; i++) {
            put_key(out, &ask->keys[i]);
        }
    }
    if ((fields & KVS_FIELD_ALL) != 0) {
        kvb_put_u8(out, ask->all_of_instance);
    }
    if ((fields & KVS_FIELD_FROM) != 0) {
        kvb_put_u32(out, ask->from);
    }
    if ((fields & KVS_FIELD_PLACE) != 0) {
        put_place(out, &ask->place);
        kvb_put_u32(out, ask->max);
    }
}

static void get_keys(struct kvb_reader *in, struct kvs_ask *ask)
{
    ask->nkeys = kvb_get_count(in, KVS_WIRE_ITEMS_MAX, KEY_WIRE_MIN);
    require(in, ask->nkeys > 0);
    for (uint32_t i = 0; i < ask->nkeys && in->status == KVB_OK; i++) {
        ask->keys[i] = get_key(in);
    }
}

static void unpack_fields(struct kvb_reader *in, unsigned fields, struct kvs_ask *ask)
{
    if ((fields & KVS_FIELD_SPACE) != 0) {
        get_space(in, ask);
    }
    if ((fields & KVS_FIELD_HOLD) != 0) {
        ask->hold.instance = kvb_get_u64(in);
        ask->hold.request = kvb_get_u64(in);
    }
    if ((fields & KVS_FIELD_FORCE) != 0) {
        ask->force = kvb_get_bool(in);
    }
    if ((fields & KVS_FIELD_PIN) != 0) {
        ask->pin = get_pin(in);
    }
    if ((fields & KVS_FIELD_LEN) != 0) {
        ask->len = kvb_get_u64(in);
        require(in, ask->len > 0 && ask->len <= KVS_CORE_VALUE_MAX);
    }
    if ((fields & KVS_FIELD_KEY) != 0) {
        ask->nkeys = 1;
        ask->keys[0] = get_key(in);
    }
    if ((fields & KVS_FIELD_KEYS) != 0) {
        get_keys(in, ask);
    }
    if ((fields & KVS_FIELD_ALL) != 0) {
        ask->all_of_instance = kvb_get_bool(in);
    }
    if ((fields & KVS_FIELD_FROM) != 0) {
        ask->from = kvb_get_u32(in);
    }
    if ((fields & KVS_FIELD_PLACE) != 0) {
        ask->place = get_place(in);
        ask->max = kvb_get_u32(in);
        require(in, ask->max > 0 && ask->max <= KVS_LIST_MAX);
    }
}

void kvs_ask_pack(struct kvb_writer *out, enum kvs_question type, const struct kvs_ask *ask)
{
    pack_fields(out, kvs_question_info((uint16_t)type)->fields, ask);
}

kvb_status_t kvs_ask_unpack(struct kvb_span in, enum kvs_question type, struct kvs_ask *ask)
{
    struct kvb_reader reader;
    kvb_reader_init(&reader, in.data, in.len);
    unpack_fields(&reader, kvs_question_info((uint16_t)type)->fields, ask);
    return kvb_reader_finish(&reader);
}

/* ---- answers ---- */

void kvs_items_pack(struct kvb_writer *out, const struct kvs_wire_item *items, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        kvb_put_u32(out, (uint32_t)items[i].status);
        kvb_put_u64(out, items[i].len);
    }
}

kvb_status_t kvs_items_unpack(struct kvb_span in, struct kvs_wire_item *items, uint32_t n)
{
    struct kvb_reader reader;
    kvb_reader_init(&reader, in.data, in.len);
    for (uint32_t i = 0; i < n; i++) {
        int32_t status = (int32_t)kvb_get_u32(&reader);
        items[i].status = kvb_status_from_wire(status);
        require(&reader, (int)items[i].status == status && status <= 0);
        items[i].len = kvb_get_u64(&reader);
    }
    return kvb_reader_finish(&reader);
}

void kvs_len_pack(struct kvb_writer *out, uint64_t len)
{
    kvb_put_u64(out, len);
}

kvb_status_t kvs_len_unpack(struct kvb_span in, uint64_t *len_p)
{
    struct kvb_reader reader;
    kvb_reader_init(&reader, in.data, in.len);
    uint64_t len = kvb_get_u64(&reader);
    require(&reader, len > 0 && len <= KVS_CORE_VALUE_MAX);
    kvb_status_t status = kvb_reader_finish(&reader);
    if (status == KVB_OK) {
        *len_p = len;
    }
    return status;
}

void kvs_status_pack(struct kvb_writer *out, const struct kvs_wire_status *status)
{
    kvb_put_u8(out, status->draining);
    kvb_put_u64(out, status->capacity_bytes);
    kvb_put_u64(out, status->used_bytes);
    kvb_put_u64(out, status->objects);
    kvb_put_u64(out, status->puts);
    kvb_put_u64(out, status->put_bytes);
    kvb_put_u64(out, status->gets);
    kvb_put_u64(out, status->get_bytes);
}

kvb_status_t kvs_status_unpack(struct kvb_span in, struct kvs_wire_status *status_p)
{
    struct kvb_reader reader;
    struct kvs_wire_status status = {0};
    kvb_reader_init(&reader, in.data, in.len);
    status.draining = kvb_get_bool(&reader);
    status.capacity_bytes = kvb_get_u64(&reader);
    status.used_bytes = kvb_get_u64(&reader);
    status.objects = kvb_get_u64(&reader);
    status.puts = kvb_get_u64(&reader);
    status.put_bytes = kvb_get_u64(&reader);
    status.gets = kvb_get_u64(&reader);
    status.get_bytes = kvb_get_u64(&reader);
    kvb_status_t result = kvb_reader_finish(&reader);
    if (result == KVB_OK) {
        *status_p = status;
    }
    return result;
}

void kvs_tenants_pack(struct kvb_writer *out, const struct kvs_wire_tenants *tenants)
{
    kvb_put_u32(out, tenants->next);
    kvb_put_u32(out, tenants->n);
    for (uint32_t i = 0; i < tenants->n; i++) {
        const struct kvs_core_tenant_stats *stats = &tenants->at[i].stats;
        kvb_put_str(out, tenants->at[i].tenant);
        kvb_put_u64(out, stats->quota_bytes);
        kvb_put_u64(out, stats->used_bytes);
        kvb_put_u64(out, stats->live_bytes);
        kvb_put_u64(out, stats->objects);
        kvb_put_u64(out, stats->evicted);
    }
}

kvb_status_t kvs_tenants_unpack(struct kvb_span in, struct kvs_wire_tenants *tenants)
{
    struct kvb_reader reader;
    kvb_reader_init(&reader, in.data, in.len);
    tenants->next = kvb_get_u32(&reader);
    tenants->n = kvb_get_count(&reader, KVS_WIRE_TENANTS_MAX, 4 + 1 + 40);
    for (uint32_t i = 0; i < tenants->n && reader.status == KVB_OK; i++) {
        struct kvs_core_tenant_stats *stats = &tenants->at[i].stats;
        kvb_get_str(&reader, tenants->at[i].tenant, sizeof tenants->at[i].tenant);
        require(&reader, tenants->at[i].tenant[0] != '\0');
        stats->quota_bytes = kvb_get_u64(&reader);
        stats->used_bytes = kvb_get_u64(&reader);
        stats->live_bytes = kvb_get_u64(&reader);
        stats->objects = kvb_get_u64(&reader);
        stats->evicted = kvb_get_u64(&reader);
    }
    return kvb_reader_finish(&reader);
}

void kvs_list_pack(struct kvb_writer *out, const struct kvs_list *list)
{
    kvb_put_u8(out, list->more);
    put_place(out, &list->place);
    kvb_put_u32(out, list->n);
    for (uint32_t i = 0; i < list->n; i++) {
        const struct kvs_listed *listed = &list->at[i];
        kvb_put_str(out, listed->layout);
        kvb_put_id(out, listed->lineage.id);
        put_key(out, &(struct kvs_core_key){
                         {listed->key, listed->key_len}, listed->group, listed->part});
        kvb_put_u64(out, listed->len);
        kvb_put_u8(out, (uint8_t)listed->pin);
    }
}

static void get_listed(struct kvb_reader *in, struct kvs_listed *listed)
{
    kvb_get_str(in, listed->layout, sizeof listed->layout);
    listed->lineage.id = kvb_get_id(in);
    struct kvs_core_key key = get_key(in);
    listed->key_len = (uint32_t)key.block.len;
    listed->group = key.group;
    listed->part = key.part;
    listed->len = kvb_get_u64(in);
    require(in, listed->len <= KVS_CORE_VALUE_MAX);
    listed->pin = get_pin(in);
    if (in->status == KVB_OK) {
        memcpy(listed->key, key.block.data, key.block.len);
    }
}

kvb_status_t kvs_list_unpack(struct kvb_span in, struct kvs_list *list)
{
    struct kvb_reader reader;
    kvb_reader_init(&reader, in.data, in.len);
    list->more = kvb_get_bool(&reader);
    list->place = get_place(&reader);
    list->n = kvb_get_count(&reader, list->max, 4 + 16 + KEY_WIRE_MIN + 9);
    for (uint32_t i = 0; i < list->n && reader.status == KVB_OK; i++) {
        get_listed(&reader, &list->at[i]);
    }
    return kvb_reader_finish(&reader);
}
