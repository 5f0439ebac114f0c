/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_TOKENS_H
#define SERVER_TOKENS_H

#include "http/http.h"

/*
 * Reads a token file: one token a line, `TOKEN` or `admin TOKEN` for all, `read TOKEN` for what
 * only reads; empty lines and lines that begin with # are skipped. INVALID or IO: error (at least
 * KVP_CONFIG_ERROR_MAX bytes) names the file, the line and what is allowed, never the token.
 */
KVB_MUST_USE kvb_status_t kvp_tokens_read(const char *path,
                                          struct kvp_http_token tokens[KVP_HTTP_TOKENS_MAX],
                                          uint32_t *ntokens_p, char *error);

#endif
