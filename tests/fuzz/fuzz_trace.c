/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"
#include "trace.h"

/* A whole file: nothing may crash, leak, or be accepted beyond the limits. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct kve_trace_reader reader;
    struct kve_trace_error error = {.line = 0};
    kvb_status_t status;
    struct kve_trace_request request;
    FILE *file = len == 0 ? NULL : fmemopen((void *)(uintptr_t)data, len, "r");

    if (file == NULL) {
        return 0;
    }
    kve_trace_reader_init(&reader, file);
    while ((status = kve_trace_next(&reader, &request, &error)) == KVB_OK) {
        kvb_assert(request.nblocks > 0 && request.nblocks <= KVE_TRACE_BLOCKS_MAX);
        kve_trace_request_cleanup(&request);
    }
    kve_trace_reader_cleanup(&reader);
    fclose(file);
    return 0;
}
