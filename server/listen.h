/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_LISTEN_H
#define SERVER_LISTEN_H

#include "base/status.h"

#include <stdint.h>

/*
 * A TCP socket that listens there and does not block. host: an address or a name; port 0: any.
 * INVALID: not an address of this host. BUSY: the port is taken. IO, LIMIT. Each logged with its
 * cause.
 */
KVB_MUST_USE kvb_status_t kvp_listen(const char *host, uint16_t port, int *fd_p, uint16_t *port_p);

#endif
