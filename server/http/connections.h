/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_CONNECTIONS_H
#define SERVER_HTTP_CONNECTIONS_H

#include "base/list.h"

#include <stdint.h>
#include <sys/socket.h>

/*
 * Connections, in one of two lists, oldest first: idle (no request begun) and receiving; those
 * whose request is being answered are in none. At the limit the oldest of both is shut down for
 * each new one, so that a probe on a new connection always gets in, and those that wait for an
 * answer are never touched. HTTP thread only.
 */
struct kvp_http;

struct kvp_connection {
    struct kvp_http *http;
    struct kvb_list link; /* in idle or receiving, or in none while answered */
    int fd;               /* borrowed from libmicrohttpd until its CLOSED notice */
    uint64_t since_ns;    /* in this list */
    struct ucred peer;    /* of a Unix socket */
    struct kvp_tls *tls;  /* that it began with; its own reference. NULL: none */
};

struct kvp_connections {
    struct kvb_list idle;
    struct kvb_list receiving;
    uint32_t n;
    uint32_t max;
};

void kvp_connections_init(struct kvp_connections *connections, uint32_t max);
/* NULL: out of memory. Makes room for it first. */
struct kvp_connection *kvp_connection_opened(struct kvp_connections *connections,
                                             struct kvp_http *http, int fd, uint64_t now_ns);
void kvp_connection_closed(struct kvp_connections *connections, struct kvp_connection *connection);
void kvp_connection_idle(struct kvp_connections *connections, struct kvp_connection *connection,
                         uint64_t now_ns);
void kvp_connection_receiving(struct kvp_connections *connections,
                              struct kvp_connection *connection, uint64_t now_ns);
void kvp_connection_answering(struct kvp_connection *connection);

#endif
