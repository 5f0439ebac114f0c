/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_CORE_EXTENTS_H
#define STORE_CORE_EXTENTS_H

#include "store/core.h"

/* Adds a run, merged with the last one if they adjoin. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_extents_append(struct kvs_extents *extents, uint64_t offset,
                                             uint64_t len);

#endif
