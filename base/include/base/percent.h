/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_PERCENT_H
#define BASE_PERCENT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * Decodes %XX (and '+' as a space, in queries only) of len bytes at text into out, NUL-terminated.
 * INVALID: a '%' without two hex digits, or a NUL byte, coded or not (it would cut the name short
 * and make two names one). TOO_LARGE: more than cap - 1 bytes.
 */
KVB_MUST_USE kvb_status_t kvb_percent_decode(const char *text, size_t len, bool plus_is_space,
                                             char *out, size_t cap);

#endif
