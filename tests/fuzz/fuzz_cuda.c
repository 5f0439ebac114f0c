/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between the daemon and its CUDA helper: what is accepted packs to itself, and names no
 * more pieces than there is room for. */
#include "message.h"

#include "base/assert.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cuda_piece pieces[CUDA_PIECES_MAX];
    struct cuda_message message;
    if (cuda_message_unpack(data, size, pieces, &message) != KVB_OK) {
        return 0;
    }
    struct kvb_writer writer;
    kvb_writer_init(&writer, CUDA_MESSAGE_MAX);
    cuda_message_pack(&writer, &message);
    kvb_assert(writer.status == KVB_OK);
    /* A status that is not in the list is read as PROTOCOL. */
    bool same = writer.len == size && memcmp(writer.data, data, size) == 0;
    bool unknown = (message.type == CUDA_ANSWER && message.answer.status == KVB_ERR_PROTOCOL) ||
                   (message.type == CUDA_MOVED && message.moved.status == KVB_ERR_PROTOCOL);
    kvb_assert(same || (unknown && writer.len == size));
    kvb_writer_cleanup(&writer);
    return 0;
}
