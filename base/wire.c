/* SPDX-License-Identifier: Apache-2.0 */
#include "base/wire.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

void kvb_writer_init(struct kvb_writer *writer, size_t max)
{
    *writer = (struct kvb_writer){.max = max};
}

void kvb_writer_cleanup(struct kvb_writer *writer)
{
    free(writer->data);
    *writer = (struct kvb_writer){.max = writer->max};
}

/* Room for len more bytes, already counted in; NULL after an error. */
static uint8_t *extend(struct kvb_writer *writer, size_t len)
{
    if (writer->status != KVB_OK) {
        return NULL;
    }
    if (len > writer->max - writer->len) {
        writer->status = KVB_ERR_TOO_LARGE;
        return NULL;
    }
    size_t need = writer->len + len;
    if (need > writer->cap) {
        size_t cap = writer->cap > writer->max / 2 ? writer->max : writer->cap * 2;
        cap = cap < 128 ? 128 : cap;
        cap = cap < need ? need : cap;
        uint8_t *data = realloc(writer->data, cap);
        if (data == NULL) {
            writer->status = KVB_ERR_NO_MEMORY;
            return NULL;
        }
        writer->data = data;
        writer->cap = cap;
    }
    uint8_t *at = writer->data + writer->len;
    writer->len = need;
    return at;
}

static void put_le(struct kvb_writer *writer, uint64_t value, size_t len)
{
    uint8_t *at = extend(writer, len);
    for (size_t i = 0; at != NULL && i < len; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}

void kvb_put_u8(struct kvb_writer *writer, uint8_t value)
{
    put_le(writer, value, 1);
}

void kvb_put_u16(struct kvb_writer *writer, uint16_t value)
{
    put_le(writer, value, 2);
}

void kvb_put_u32(struct kvb_writer *writer, uint32_t value)
{
    put_le(writer, value, 4);
}

void kvb_put_u64(struct kvb_writer *writer, uint64_t value)
{
    put_le(writer, value, 8);
}

void kvb_put_id(struct kvb_writer *writer, struct kvb_id id)
{
    kvb_put_u64(writer, id.hi);
    kvb_put_u64(writer, id.lo);
}

void kvb_put_bytes(struct kvb_writer *writer, const void *data, size_t len)
{
    uint8_t *at = len == 0 ? NULL : extend(writer, len);
    if (at != NULL) {
        memcpy(at, data, len);
    }
}

void kvb_put_span(struct kvb_writer *writer, struct kvb_span span)
{
    if (span.len > UINT32_MAX && writer->status == KVB_OK) {
        writer->status = KVB_ERR_TOO_LARGE;
    }
    kvb_put_u32(writer, (uint32_t)span.len);
    kvb_put_bytes(writer, span.data, span.len);
}

void kvb_put_str(struct kvb_writer *writer, const char *text)
{
    size_t len = text == NULL ? 0 : strlen(text);
    kvb_put_span(writer, (struct kvb_span){(const uint8_t *)text, len});
}

void kvb_reader_init(struct kvb_reader *reader, const void *data, size_t len)
{
    static const uint8_t nothing[1];
    const uint8_t *at = data == NULL ? nothing : data;
    kvb_assert(data != NULL || len == 0);
    *reader = (struct kvb_reader){.at = at, .end = at + len};
}

/* The next len bytes, taken; NULL after an error. */
static const uint8_t *take(struct kvb_reader *reader, size_t len)
{
    if (reader->status != KVB_OK) {
        return NULL;
    }
    if (len > (size_t)(reader->end - reader->at)) {
        reader->status = KVB_ERR_PROTOCOL;
        return NULL;
    }
    const uint8_t *at = reader->at;
    reader->at += len;
    return at;
}

static uint64_t get_le(struct kvb_reader *reader, size_t len)
{
    const uint8_t *at = take(reader, len);
    uint64_t value = 0;
    for (size_t i = 0; at != NULL && i < len; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

uint8_t kvb_get_u8(struct kvb_reader *reader)
{
    return (uint8_t)get_le(reader, 1);
}

bool kvb_get_bool(struct kvb_reader *reader)
{
    uint8_t value = kvb_get_u8(reader);
    if (value > 1) {
        reader->status = KVB_ERR_PROTOCOL;
    }
    return value == 1;
}

uint16_t kvb_get_u16(struct kvb_reader *reader)
{
    return (uint16_t)get_le(reader, 2);
}

uint32_t kvb_get_u32(struct kvb_reader *reader)
{
    return (uint32_t)get_le(reader, 4);
}

uint64_t kvb_get_u64(struct kvb_reader *reader)
{
    return get_le(reader, 8);
}

struct kvb_id kvb_get_id(struct kvb_reader *reader)
{
    uint64_t hi = kvb_get_u64(reader);
    uint64_t lo = kvb_get_u64(reader);
    return (struct kvb_id){reader->status == KVB_OK ? hi : 0, lo};
}

struct kvb_span kvb_get_span(struct kvb_reader *reader, size_t max)
{
    uint32_t len = kvb_get_u32(reader);
    if (len > max) {
        reader->status = KVB_ERR_PROTOCOL;
    }
    const uint8_t *at = take(reader, len);
    return at == NULL ? (struct kvb_span){NULL, 0} : (struct kvb_span){at, len};
}

void kvb_get_str(struct kvb_reader *reader, char *out, size_t cap)
{
    struct kvb_span span = kvb_get_span(reader, cap - 1);
    if (span.len > 0 && memchr(span.data, '\0', span.len) != NULL) {
        reader->status = KVB_ERR_PROTOCOL;
        span.len = 0;
    }
    if (span.len > 0) {
        memcpy(out, span.data, span.len);
    }
    out[span.len] = '\0';
}

uint32_t kvb_get_count(struct kvb_reader *reader, uint32_t max, size_t each)
{
    uint32_t count = kvb_get_u32(reader);
    if (count > max || (each > 0 && count > (size_t)(reader->end - reader->at) / each)) {
        reader->status = KVB_ERR_PROTOCOL;
        return 0;
    }
    return count;
}

kvb_status_t kvb_reader_finish(const struct kvb_reader *reader)
{
    if (reader->status != KVB_OK) {
        return reader->status;
    }
    return reader->at == reader->end ? KVB_OK : KVB_ERR_PROTOCOL;
}
