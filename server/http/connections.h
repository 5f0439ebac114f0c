/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_CONNECTIONS_H
#define SERVER_HTTP_CONNECTIONS_H

#include "base/list.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/*
 * Connections, each in the list of its state, which it entered last in its order. At the limit one
 * is shut down for each new one, so that a probe on a new connection always gets in: the one that
 * has been idle or receiving for longest, or has not taken its answer for still longer. Those that
 * wait for an answer are never touched; so that they cannot be all, kvp_connections_crowded() says
 * when no more may begin to wait. Those that have been receiving for too long are shut whenever one
 * is opened or a request begins. HTTP thread only.
 */
struct kvp_http;

enum kvp_connection_state {
    KVP_CONNECTION_IDLE,      /* no request begun */
    KVP_CONNECTION_RECEIVING, /* its TLS handshake or its request has begun, and is not whole */
    KVP_CONNECTION_WAITING,   /* for the answer */
    KVP_CONNECTION_STREAMING, /* events, without an end */
    KVP_CONNECTION_PASSING,   /* to and from the engine's server */
    KVP_CONNECTION_SENDING,   /* the answer is there, and not all of it gone */
    KVP_CONNECTION_SHUT,      /* until libmicrohttpd has seen it */
    KVP_CONNECTION_STATES
};

struct kvp_connection {
    struct kvp_http *http;
    struct kvb_list link; /* in the list of its state */
    enum kvp_connection_state state;
    int fd;                        /* borrowed from libmicrohttpd until its CLOSED notice */
    uint64_t since_ns;             /* in this state */
    struct kvp_exchange *exchange; /* its request that has begun; NULL: none */
    uint8_t from[16];              /* its address; of IPv4 the first four bytes, the others 0 */
    bool has_from;                 /* a Unix socket has none */
    struct ucred peer;             /* of a Unix socket */
    struct kvp_tls *tls;           /* that it began with; its own reference. NULL: none */
};

struct kvp_connections {
    struct kvb_list lists[KVP_CONNECTION_STATES]; /* oldest first */
    uint32_t counts[KVP_CONNECTION_STATES];
    uint32_t n; /* of all */
    uint32_t max;
    uint32_t crowd;      /* so many that wait or stream are enough */
    uint64_t receive_ns; /* a request arrives whole in it */
};

void kvp_connections_init(struct kvp_connections *connections, uint32_t max, uint64_t receive_ns);
/* Idle. from: NULL where it is not known. NULL: out of memory. Makes room for it first. */
struct kvp_connection *kvp_connection_opened(struct kvp_connections *connections,
                                             struct kvp_http *http, int fd,
                                             const struct sockaddr *from, uint64_t now_ns);
void kvp_connection_closed(struct kvp_connections *connections, struct kvp_connection *connection);
/* One that is shut stays so. */
void kvp_connection_enters(struct kvp_connections *connections, struct kvp_connection *connection,
                           enum kvp_connection_state state, uint64_t now_ns);
/* As many wait or stream as may: half of all, or a quarter where another half may pass. */
bool kvp_connections_crowded(const struct kvp_connections *connections);
/* At least n of its address wait. */
bool kvp_connections_wait_from(const struct kvp_connections *connections,
                               const struct kvp_connection *like, uint32_t n);

#endif
