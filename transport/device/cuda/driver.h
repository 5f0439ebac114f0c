/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_CUDA_DRIVER_H
#define TRANSPORT_CUDA_DRIVER_H

#include "calls.h"
#include "types.h"

#include "base/status.h"

#include <stdbool.h>

/*
 * The CUDA driver, opened at run time and never linked. A process opens it once, after its last
 * fork, and keeps it to its end (the driver does not survive being closed). Only the helper process
 * does (helper.c), and tests that play an engine.
 */
struct kvt_cu {
    int version; /* of the driver: 1000 * major + 10 * minor */
    int ndevices;
#define X(need, name, v, member, arguments) CUresult(*member) arguments;
    KVT_CU_CALLS(X)
#undef X
};

#define KVT_CU_LIBRARY "libcuda.so.1"

/*
 * Opens library and starts the driver. why: one line, what is missing, on failure.
 * NOT_FOUND: there is no driver. UNAVAILABLE: no device. UNSUPPORTED: it cannot be used (a call is
 * missing, or it does not start).
 */
KVB_MUST_USE kvb_status_t kvt_cu_open(const char *library, struct kvt_cu *cu_p, char why[256]);

/* "CUDA_ERROR_OUT_OF_MEMORY (out of memory)" */
void kvt_cu_error_text(const struct kvt_cu *cu, CUresult result, char *out, size_t cap);

/* The context of the process is lost: nothing works any more but its exit. */
bool kvt_cu_poisons(CUresult result);

#endif
