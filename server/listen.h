/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_LISTEN_H
#define SERVER_LISTEN_H

#include "base/status.h"

#include <stdint.h>
#include <sys/types.h>

/*
 * A TCP socket that listens there and does not block. host: an address or a name; port 0: any.
 * INVALID: not an address of this host. BUSY: the port is taken. IO, LIMIT. Each logged with its
 * cause.
 */
KVB_MUST_USE kvb_status_t kvp_listen(const char *host, uint16_t port, int *fd_p, uint16_t *port_p);

/*
 * A Unix socket, in two steps. A lock file beside it, not the socket, says who serves it: the lock
 * ends with its process, however that ends, while a socket file stays; whoever holds the lock may
 * replace the socket. The lock file is never removed: another process could have it open already.
 * At the end the socket is removed, then the lock is closed. key: of the configuration, for what is
 * logged.
 */
#define KVP_UNIX_PATH_MAX 108 /* sockaddr_un's */
/* INVALID: the path is too long. BUSY: another process serves it. IO. */
KVB_MUST_USE kvb_status_t kvp_unix_lock(const char *key, const char *path, int *lock_fd_p);
/* Under its lock; what a dead process left is replaced. It does not block, and is never open to
 * more than mode says. INVALID: there is something else at this path. IO. */
KVB_MUST_USE kvb_status_t kvp_unix_bind(const char *key, const char *path, mode_t mode, int *fd_p);

#endif
