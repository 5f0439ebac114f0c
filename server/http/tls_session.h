/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_TLS_SESSION_H
#define SERVER_HTTP_TLS_SESSION_H

#include "http/tls.h"

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <stdbool.h>

/* A session of libmicrohttpd's. HTTP thread only. */

/* TLS 1.2 and 1.3. */
#define KVP_TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

/* It shows and asks what tls says; the caller holds tls until its connection is closed. 0, or
 * GnuTLS's code. */
int kvp_tls_begin(struct kvp_tls *tls, gnutls_session_t session);
/* Clients should show a certificate. */
bool kvp_tls_asks(const struct kvp_tls *tls);
/* This one has: it was verified within the handshake. */
bool kvp_tls_shown(gnutls_session_t session);

#endif
