/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_WIRE_H
#define BASE_WIRE_H

#include "base/id.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Packing and unpacking of frame payloads: little endian, unaligned, every read checked. Both sides
 * are sticky: after the first error further calls do nothing (reads give zeros and empty spans), so
 * a message is packed or unpacked in a straight line and judged once at the end. Buffers are never
 * cast to structs.
 */
struct kvb_writer {
    uint8_t *data; /* malloc'd, owned */
    size_t len;
    size_t cap;
    size_t max;          /* refuses to grow past this */
    kvb_status_t status; /* OK, ERR_NO_MEMORY or ERR_TOO_LARGE */
};

struct kvb_span { /* borrowed bytes */
    const uint8_t *data;
    size_t len;
};

struct kvb_reader {
    const uint8_t *at;
    const uint8_t *end;
    kvb_status_t status; /* OK or ERR_PROTOCOL */
};

void kvb_writer_init(struct kvb_writer *writer, size_t max);
void kvb_writer_cleanup(struct kvb_writer *writer);
void kvb_put_u8(struct kvb_writer *writer, uint8_t value);
void kvb_put_u16(struct kvb_writer *writer, uint16_t value);
void kvb_put_u32(struct kvb_writer *writer, uint32_t value);
void kvb_put_u64(struct kvb_writer *writer, uint64_t value);
void kvb_put_id(struct kvb_writer *writer, struct kvb_id id);
void kvb_put_bytes(struct kvb_writer *writer, const void *data, size_t len); /* raw, no length */
void kvb_put_span(struct kvb_writer *writer, struct kvb_span span);          /* u32 length, bytes */
void kvb_put_str(struct kvb_writer *writer, const char *text); /* as a span; NULL as "" */

void kvb_reader_init(struct kvb_reader *reader, const void *data, size_t len);
uint8_t kvb_get_u8(struct kvb_reader *reader);
bool kvb_get_bool(struct kvb_reader *reader); /* anything but 0 and 1 is an error */
uint16_t kvb_get_u16(struct kvb_reader *reader);
uint32_t kvb_get_u32(struct kvb_reader *reader);
uint64_t kvb_get_u64(struct kvb_reader *reader);
struct kvb_id kvb_get_id(struct kvb_reader *reader);
/* A span of at most max bytes that borrows from the reader's buffer. */
struct kvb_span kvb_get_span(struct kvb_reader *reader, size_t max);
/* Same into a fixed array with a NUL; text with a NUL inside or longer than cap - 1 is an error. */
void kvb_get_str(struct kvb_reader *reader, char *out, size_t cap);
/* A count of things of at least `each` bytes; more than max, or than the rest can hold, is an error
 * and gives 0. */
uint32_t kvb_get_count(struct kvb_reader *reader, uint32_t max, size_t each);
/* OK only if everything was read and nothing is left over. */
KVB_MUST_USE kvb_status_t kvb_reader_finish(const struct kvb_reader *reader);

#endif
