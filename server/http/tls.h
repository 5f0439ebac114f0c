/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_TLS_H
#define SERVER_HTTP_TLS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/*
 * What a server shows to its TLS clients and asks of them: a certificate with its key, and the
 * authorities of client certificates. Counted: a connection keeps the one it began with, so that
 * another one can take its place at any time. Any thread.
 */
struct kvp_tls;

/* Paths of PEM files. */
struct kvp_tls_files {
    const char *cert; /* the server's, followed by those between it and its authority */
    const char *key;
    const char *client_ca; /* "": clients show none */
};

/*
 * Reads and checks them; the first reference is the caller's. now_s: Unix time. INVALID or IO:
 * error (at least KVP_TLS_ERROR_MAX bytes) names the key of the configuration, the file and what is
 * wrong with it: not there, not PEM, the key is another one's, expired. NO_MEMORY. A key that
 * everybody may read is a warning.
 */
#define KVP_TLS_ERROR_MAX 512
KVB_MUST_USE kvb_status_t kvp_tls_load(const struct kvp_tls_files *files, int64_t now_s,
                                       struct kvp_tls **tls_p, char *error);
struct kvp_tls *kvp_tls_get(struct kvp_tls *tls);
void kvp_tls_put(struct kvp_tls *tls); /* NULL: nothing */
/* Unix time at which the first of its certificates expires. */
int64_t kvp_tls_expires(const struct kvp_tls *tls);

#endif
