/* SPDX-License-Identifier: Apache-2.0 */
#include "body.h"

#include "base/assert.h"
#include "transport_impl.h"

#include <string.h>

static const uint8_t zeros[64u << 10];

bool kvt_body_addressable(const struct kvt_body *body)
{
    if (body->slices == NULL) {
        return true;
    }
    uint64_t left = body->left + body->offset;
    for (uint32_t i = body->at; left > 0; i++) {
        if (body->slices[i].region->memory->address == NULL) {
            return false;
        }
        left -= body->slices[i].len;
    }
    return true;
}

/* The bytes of a piece from its offset on, no more than max and than are left of the body. */
static uint64_t piece_len(const struct kvt_body *body, uint64_t max)
{
    uint64_t len = body->slices != NULL ? body->slices[body->at].len - body->offset
                   : body->iov != NULL  ? body->iov[body->at].iov_len - body->offset
                                        : sizeof zeros;
    len = len < body->left ? len : body->left;
    return len < max ? len : max;
}

static void *piece_address(const struct kvt_body *body)
{
    if (body->slices != NULL) {
        const struct kvt_slice *slice = &body->slices[body->at];
        uint8_t *base = slice->region->memory->address(slice->region->target);
        return base + slice->offset + body->offset;
    }
    if (body->iov != NULL) {
        return (uint8_t *)body->iov[body->at].iov_base + body->offset;
    }
    union { /* an iovec to be read has no const */
        const uint8_t *in;
        void *out;
    } nothing = {.in = zeros};
    return nothing.out;
}

/* len: at most the rest of the piece. */
static void take(struct kvt_body *body, uint64_t len)
{
    body->left -= len;
    body->offset += len;
    if (kvt_body_nothing(body)) {
        body->offset = 0;
        return;
    }
    uint64_t whole =
        body->slices != NULL ? body->slices[body->at].len : body->iov[body->at].iov_len;
    if (body->offset == whole) {
        body->at++;
        body->offset = 0;
    }
}

uint64_t kvt_body_peek(const struct kvt_body *body, uint64_t max, struct iovec *out, int *n_p,
                       int n_max)
{
    struct kvt_body ahead = *body;
    uint64_t total = 0;
    int n = 0;
    while (n < n_max && total < max && ahead.left > 0) {
        uint64_t len = piece_len(&ahead, max - total);
        out[n++] = (struct iovec){.iov_base = piece_address(&ahead), .iov_len = (size_t)len};
        take(&ahead, len);
        total += len;
    }
    *n_p = n;
    return total;
}

void kvt_body_skip(struct kvt_body *body, uint64_t len)
{
    kvb_assert(len <= body->left);
    while (len > 0) {
        uint64_t piece = piece_len(body, len);
        take(body, piece);
        len -= piece;
    }
}

kvb_status_t kvt_body_read(struct kvt_body *body, uint8_t *to, uint64_t len)
{
    kvb_assert(len <= body->left);
    while (len > 0) {
        uint64_t piece = piece_len(body, len);
        if (body->slices != NULL) {
            const struct kvt_slice *slice = &body->slices[body->at];
            kvb_status_t status =
                kvt_region_read(slice->region, slice->offset + body->offset, to, (size_t)piece);
            if (status != KVB_OK) {
                return status;
            }
        } else {
            memcpy(to, piece_address(body), (size_t)piece);
        }
        take(body, piece);
        to += piece;
        len -= piece;
    }
    return KVB_OK;
}

kvb_status_t kvt_body_write(struct kvt_body *body, const uint8_t *from, uint64_t len)
{
    kvb_assert(len <= body->left);
    if (kvt_body_nothing(body)) {
        body->left -= len;
        return KVB_OK;
    }
    while (len > 0) {
        uint64_t piece = piece_len(body, len);
        if (body->slices != NULL) {
            const struct kvt_slice *slice = &body->slices[body->at];
            kvb_status_t status =
                kvt_region_write(slice->region, slice->offset + body->offset, from, (size_t)piece);
            if (status != KVB_OK) {
                return status;
            }
        } else {
            memcpy(piece_address(body), from, (size_t)piece);
        }
        take(body, piece);
        from += piece;
        len -= piece;
    }
    return KVB_OK;
}
