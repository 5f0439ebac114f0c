/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_OPTIONS_H
#define ENGINE_OPTIONS_H

#include "engine/main.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVE_OPTIONS_MAX 32

/* take(ctx, i, value) for option i in the order given; value NULL if it has none; false: refused.
 * False: told why on stderr. */
bool kve_options_parse(const char *program, const struct kve_option *options, size_t n, int argc,
                       char **argv, bool (*take)(void *ctx, size_t i, const char *value),
                       void *ctx);

/* A whole number within min and max. */
bool kve_option_number(const char *text, uint64_t min, uint64_t max, uint64_t *value_p);
bool kve_option_number32(const char *text, uint32_t min, uint32_t max, uint32_t *value_p);

/* Reads $KVPLANE_FAULT, once. False: told why (no such fault, or a build without them). */
bool kve_options_choose_fault(const char *program);

#endif
