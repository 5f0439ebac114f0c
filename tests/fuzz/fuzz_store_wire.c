/* SPDX-License-Identifier: Apache-2.0 */
/* Every unpacker of the store's questions and answers: the first byte chooses it, the rest are its
 * bytes. What can be read must pack to the same bytes again. */
#include "store_samples.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    struct kvb_writer again;
    struct kvb_span in = {data + 1, size - 1};
    kvb_writer_init(&again, in.len);
    if (store_reencode((enum store_codec)(data[0] % STORE_CODECS), in, &again) == KVB_OK) {
        kvb_assert(again.status == KVB_OK);
        kvb_assert(again.len == in.len);
        kvb_assert(in.len == 0 || memcmp(again.data, in.data, in.len) == 0);
    }
    kvb_writer_cleanup(&again);
    return 0;
}
