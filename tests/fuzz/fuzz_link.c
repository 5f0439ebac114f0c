/* SPDX-License-Identifier: Apache-2.0 */
/* Every unpacker of the engine link: the first byte chooses it, the rest is the payload. What can
 * be read must pack to the same bytes again. */
#include "link_reencode.h"

#include "base/assert.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    struct kvb_writer again;
    kvb_writer_init(&again, size - 1);
    struct kvb_span payload = {data + 1, size - 1};
    kvb_status_t status = link_reencode((enum link_codec)(data[0] % LINK_CODECS), payload, &again);
    if (status == KVB_OK) {
        kvb_assert(again.status == KVB_OK);
        kvb_assert(again.len == payload.len);
        kvb_assert(payload.len == 0 || memcmp(again.data, payload.data, payload.len) == 0);
    }
    kvb_writer_cleanup(&again);
    return 0;
}
