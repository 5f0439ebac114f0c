/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_ERRORS_H
#define SERVER_HTTP_ERRORS_H

#include "base/status.h"

#include <jansson.h>

/*
 * The one place where a status becomes an HTTP answer, and the one shape of errors:
 * {"error":{"message","type","param","code"}}. message says what to do next.
 */

/* HTTP code of a status. */
unsigned kvp_error_http(kvb_status_t status);

/* Seconds for Retry-After; 0: no such header. */
unsigned kvp_error_retry_s(kvb_status_t status);

/* A new error object; param may be NULL. NULL: out of memory. */
json_t *kvp_error_body(unsigned http_status, const char *param, const char *message);

#endif
