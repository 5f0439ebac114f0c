/* SPDX-License-Identifier: Apache-2.0 */
#include "message.h"

#define PIECE_LEN 32u

/* The members of the account, in the order in which they travel. */
#define LEDGER(X) KVT_DEVICE_HOLDINGS(X) X(copies)

void cuda_message_pack(struct kvb_writer *writer, const struct cuda_message *message)
{
    kvb_put_u8(writer, (uint8_t)message->type);
    kvb_put_u64(writer, message->seq);
    switch (message->type) {
    case CUDA_IMPORT:
        kvb_put_u64(writer, message->import.id);
        kvb_put_u8(writer, (uint8_t)message->import.source);
        kvb_put_bytes(writer, message->import.fabric, sizeof message->import.fabric);
        kvb_put_u64(writer, message->import.offset);
        kvb_put_u64(writer, message->import.len);
        kvb_put_u64(writer, message->import.whole);
        break;
    case CUDA_DROP:
        kvb_put_u64(writer, message->drop);
        break;
    case CUDA_COPY:
        kvb_put_u8(writer, message->copy.to_pool);
        kvb_put_u32(writer, message->copy.n);
        for (uint32_t i = 0; i < message->copy.n; i++) {
            const struct cuda_piece *piece = &message->copy.pieces[i];
            kvb_put_u64(writer, piece->id);
            kvb_put_u64(writer, piece->offset);
            kvb_put_u64(writer, piece->pool_offset);
            kvb_put_u64(writer, piece->len);
        }
        break;
    case CUDA_ANSWER:
        kvb_put_u32(writer, (uint32_t)message->answer.status);
#define X(member) kvb_put_u32(writer, message->answer.ledger.member);
        LEDGER(X)
#undef X
        kvb_put_u8(writer, message->answer.cause.poisoned);
        kvb_put_str(writer, message->answer.cause.text);
        break;
    }
}

static void get_import(struct kvb_reader *reader, struct gpu_import *import)
{
    *import = (struct gpu_import){.id = kvb_get_u64(reader), .fd = -1};
    uint8_t source = kvb_get_u8(reader);
    if (source > GPU_SOURCE_FABRIC) {
        reader->status = KVB_ERR_PROTOCOL;
    }
    import->source = source == GPU_SOURCE_FABRIC ? GPU_SOURCE_FABRIC : GPU_SOURCE_FD;
    for (size_t i = 0; i < sizeof import->fabric; i++) {
        import->fabric[i] = kvb_get_u8(reader);
    }
    import->offset = kvb_get_u64(reader);
    import->len = kvb_get_u64(reader);
    import->whole = kvb_get_u64(reader);
}

kvb_status_t cuda_message_unpack(const void *data, size_t len, struct cuda_piece *pieces,
                                 struct cuda_message *message_p)
{
    struct kvb_reader reader;
    kvb_reader_init(&reader, data, len);
    struct cuda_message message = {.type = (enum cuda_message_type)kvb_get_u8(&reader)};
    message.seq = kvb_get_u64(&reader);
    switch (message.type) {
    case CUDA_IMPORT:
        get_import(&reader, &message.import);
        break;
    case CUDA_DROP:
        message.drop = kvb_get_u64(&reader);
        break;
    case CUDA_COPY:
        message.copy.to_pool = kvb_get_bool(&reader);
        message.copy.n = kvb_get_count(&reader, pieces != NULL ? CUDA_PIECES_MAX : 0, PIECE_LEN);
        message.copy.pieces = pieces;
        for (uint32_t i = 0; i < message.copy.n; i++) {
            pieces[i].id = kvb_get_u64(&reader);
            pieces[i].offset = kvb_get_u64(&reader);
            pieces[i].pool_offset = kvb_get_u64(&reader);
            pieces[i].len = kvb_get_u64(&reader);
        }
        if (message.copy.n == 0) {
            reader.status = KVB_ERR_PROTOCOL;
        }
        break;
    case CUDA_ANSWER:
        message.answer.status = kvb_status_from_wire((int)kvb_get_u32(&reader));
#define X(member) message.answer.ledger.member = kvb_get_u32(&reader);
        LEDGER(X)
#undef X
        message.answer.cause.poisoned = kvb_get_bool(&reader);
        kvb_get_str(&reader, message.answer.cause.text, sizeof message.answer.cause.text);
        break;
    default:
        return KVB_ERR_PROTOCOL;
    }
    kvb_status_t status = kvb_reader_finish(&reader);
    if (status == KVB_OK) {
        *message_p = message;
    }
    return status;
}
