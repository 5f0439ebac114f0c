/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_NET_H
#define TRANSPORT_NET_H

#include "base/io.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * Stream sockets as the tcp transport needs them (DESIGN.md section 12, seam 6): the kernel's, or a
 * simulated network's. Nothing blocks. Loop thread only. ready() never runs inside a call.
 *
 * An address is text: `HOST:PORT`, `[IPV6]:PORT`, HOST an address or a name that is resolved when
 * connecting.
 */
#define KVT_NET_FROM_MAX 64

struct kvt_net;
struct kvt_socket {
    /* events: KVB_IO_READ | KVB_IO_WRITE, of those asked for. Both are the user's to set. */
    void (*ready)(struct kvt_socket *socket, unsigned events);
    void *ctx;
};

struct kvt_net_ops {
    /* Begins to connect: KVB_IO_WRITE becomes ready when it has come to an end, and the first write
     * tells which. INVALID (address), UNAVAILABLE (name unknown, no route), LIMIT (descriptors, or
     * local ports), NO_MEMORY, IO. */
    kvb_status_t (*connect)(struct kvt_net *net, const char *address, struct kvt_socket **socket_p);
    /* A connected descriptor, from accept on another thread perhaps; taken on OK only. */
    kvb_status_t (*adopt)(struct kvt_net *net, int fd, struct kvt_socket **socket_p);
    /* Bytes moved, at least 1: OK. AGAIN: not now. DISCONNECTED: the peer closed (read), or reset.
     * UNAVAILABLE: connecting failed. IO. */
    kvb_status_t (*read)(struct kvt_socket *socket, const struct iovec *to, int n, size_t *len_p);
    kvb_status_t (*write)(struct kvt_socket *socket, const struct iovec *from, int n,
                          size_t *len_p);
    /* What ready() is called for, until changed; 0: nothing. Cannot fail once connected or adopted.
     */
    void (*want)(struct kvt_socket *socket, unsigned events);
    /* A wish: ready() is called for KVB_IO_READ once so many bytes are there (at first 1), or there
     * is no room for them, or there will be no more. NULL: not to be had. */
    void (*gather)(struct kvt_socket *socket, uint32_t bytes);
    /* Who is at the other end, without port, for limits and logs; "": it does not say. */
    void (*from)(struct kvt_socket *socket, char out[KVT_NET_FROM_MAX]);
    void (*close)(struct kvt_socket *socket); /* frees it; ready() does not come any more */
};
/* Has it that form? */
bool kvt_address_valid(const char *address);

struct kvt_net {
    const struct kvt_net_ops *ops;
};

/* The kernel's. io is borrowed. Sockets have NODELAY, keep-alive, and bounded buffers
 * (buffer_bytes each way; 0: the kernel's choice). A name is looked up on a thread of its own, a
 * few at a time, since the resolver may block for long. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvt_net_kernel_create(struct kvb_io *io, uint32_t buffer_bytes,
                                                struct kvt_net **net_p);
void kvt_net_kernel_destroy(struct kvt_net *net); /* no socket open; NULL: nothing */

#endif
