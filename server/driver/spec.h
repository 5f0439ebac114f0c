/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_DRIVER_SPEC_H
#define SERVER_DRIVER_SPEC_H

#include "base/link.h"

/* The servers that a configuration names (`engine`). */

#define KVP_ENGINE_KINDS   "vllm sglang"
#define KVP_ENGINE_URL_MAX 256
#define KVP_ENGINES_MAX    64

/* One of the servers, as the configuration names it. */
struct kvp_engine_spec {
    char kind[16]; /* vllm, sglang */
    char name[KVB_NAME_MAX];
    char url[KVP_ENGINE_URL_MAX];
};
/*
 * KIND=[NAME@]URL, separated by commas; without a name the n-th is engine-N. INVALID: error (at
 * least 256 bytes) says what is wrong with which.
 */
KVB_MUST_USE kvb_status_t kvp_engine_specs(const char *list,
                                           struct kvp_engine_spec specs[KVP_ENGINES_MAX],
                                           uint32_t *n_p, char *error);

#endif
