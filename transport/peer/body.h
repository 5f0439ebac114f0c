/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PEER_BODY_H
#define PEER_BODY_H

#include "transport/transport.h"

#include <sys/uio.h>

/*
 * A run of bytes in memory, taken from the front: slices of regions (the side that asks), pieces of
 * a node's own memory (the side that is asked), or of nothing: zeros to read, writes go nowhere.
 */
struct kvt_body {
    const struct kvt_slice *slices;
    const struct iovec *iov;
    uint32_t at;     /* which of them is next */
    uint64_t offset; /* from where in it */
    uint64_t left;
};

static inline struct kvt_body kvt_body_slices(const struct kvt_slice *slices, uint64_t len)
{
    return (struct kvt_body){.slices = slices, .left = len};
}
static inline struct kvt_body kvt_body_iov(const struct iovec *iov, uint64_t len)
{
    return (struct kvt_body){.iov = iov, .left = len};
}
static inline bool kvt_body_nothing(const struct kvt_body *body)
{
    return body->slices == NULL && body->iov == NULL;
}
/* The memory is not touched any more; as many bytes are left. */
static inline void kvt_body_let_go(struct kvt_body *body)
{
    *body = (struct kvt_body){.left = body->left};
}

/* All of it has addresses that the CPU and the kernel may use. */
bool kvt_body_addressable(const struct kvt_body *body);
/* Addresses of the next bytes, at most max and n pieces; how many bytes. Takes nothing. The body is
 * addressable; nothing: zeros, to be read only. */
uint64_t kvt_body_peek(const struct kvt_body *body, uint64_t max, struct iovec *out, int *n_p,
                       int n_max);
void kvt_body_skip(struct kvt_body *body, uint64_t len);

/* Copies len bytes, no more than are left, and takes them. Errors are those of the memory. */
KVB_MUST_USE kvb_status_t kvt_body_read(struct kvt_body *body, uint8_t *to, uint64_t len);
KVB_MUST_USE kvb_status_t kvt_body_write(struct kvt_body *body, const uint8_t *from, uint64_t len);

#endif
