/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's event stream. First byte: how many bytes arrive at a time. However they are split,
 * the events and the place to go on at are those of the whole.
 */
#include "cli_sse.h"
#include "fuzz.h"

struct heard {
    size_t n, bytes;
    uint64_t sum;
};

static void on_event(void *ctx, const char *data)
{
    struct heard *heard = ctx;
    size_t len = strlen(data);
    kvb_assert(len > 0 && len < KVP_SSE_LINE_MAX);
    heard->n++;
    heard->bytes += len;
    for (size_t i = 0; i < len; i++) {
        heard->sum = heard->sum * 31 + (unsigned char)data[i];
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kvp_sse whole, split;
    struct heard once = {0}, again = {0};
    if (size == 0) {
        return 0;
    }
    size_t step = data[0] == 0 ? 1 : data[0];
    const char *text = (const char *)data + 1;
    size_t len = size - 1;
    memset(&whole, 0, sizeof whole);
    memset(&split, 0, sizeof split);
    kvp_sse_feed(&whole, text, len, on_event, &once);
    for (size_t at = 0; at < len; at += step) {
        kvp_sse_feed(&split, text + at, step < len - at ? step : len - at, on_event, &again);
    }
    kvb_assert(memcmp(&once, &again, sizeof once) == 0 && once.bytes <= len);
    kvb_assert(strcmp(whole.id, split.id) == 0 && strlen(whole.id) < KVP_SSE_ID_MAX);
    kvp_sse_restart(&split);
    kvb_assert(strcmp(whole.id, split.id) == 0);
    return 0;
}
