/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_CUDA_LOCK_H
#define TRANSPORT_CUDA_LOCK_H

#include "base/status.h"

#include <stdbool.h>

/*
 * The lock file of an instance: its helper holds it for as long as it lives, whatever becomes of
 * the daemon that started it, so that nobody takes the instance's memory for released while an
 * earlier helper holds it. A record lock: the kernel gives it back when the process is gone, and
 * says who holds it.
 */

/* Takes it for this process, to its end, without waiting. BUSY: another process has it. IO. */
KVB_MUST_USE kvb_status_t cuda_lock_take(const char *path);

/* Kills who holds it, if any. OK: nobody does. BUSY: killed, but not gone yet: ask again. IO. */
KVB_MUST_USE kvb_status_t cuda_lock_evict(const char *path);

#endif
