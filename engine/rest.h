/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_REST_H
#define ENGINE_REST_H

#include "base/status.h"

#include <jansson.h>

/* The daemon's REST API as a trainer uses it: one connection, one call at a time, waits for the
 * answer. */
struct kve_rest;

/* base: http://HOST:PORT. stop, if not NULL, ends a call that is running as soon as it is not 0.
 * NULL: no memory. */
struct kve_rest *kve_rest_open(const char *base, const volatile int *stop);
void kve_rest_close(struct kve_rest *rest);

/*
 * method GET or POST; body NULL: none. OK: answered, with whatever *http_status_p; *answer_p is the
 * answer's JSON, NULL if it is none, owned by the caller. UNAVAILABLE, TIMEOUT, CANCELED,
 * NO_MEMORY.
 */
KVB_MUST_USE kvb_status_t kve_rest_call(struct kve_rest *rest, const char *method, const char *path,
                                        const json_t *body, long *http_status_p, json_t **answer_p);

/* The last answer as it came, NUL-terminated; valid until the next call. */
const char *kve_rest_text(const struct kve_rest *rest);

#endif
