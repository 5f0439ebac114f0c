/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"
#include "trace.h"

/* The same from a file that has a name, whole. */
static void load(const uint8_t *data, size_t len, kvb_status_t read)
{
    char path[32];
    struct kve_trace trace;
    struct kve_trace_error error = {.line = 0};
    int fd = fuzz_file(data, len, path);
    fuzz_memory_begin();
    kvb_status_t status = kve_trace_load(path, 100, &trace, &error);
    fuzz_memory_end((256u << 10) + 400 * len); /* a value of two bytes is 50 of jansson's */
    if (status == KVB_OK) {
        kvb_assert(trace.nrequests > 0 && trace.nrequests <= 100 && trace.longest > 0);
        kve_trace_cleanup(&trace);
    } else {
        fuzz_told(error.text);
        kvb_assert(read != KVB_ERR_NOT_FOUND || error.line == 0);
    }
    (void)close(fd);
}

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
    if (status != KVB_ERR_NOT_FOUND) {
        fuzz_told(error.text);
    }
    kve_trace_reader_cleanup(&reader);
    fclose(file);
    load(data, len, status);
    return 0;
}
