/* SPDX-License-Identifier: Apache-2.0 */
#include "message.h"

#include <string.h>

#define PIECE_LEN 32u

/* The members of the account, in the order in which they travel. */
#define LEDGER(X) KVT_DEVICE_HOLDINGS(X) X(copies)

/* Of an RDMA device, and of connections to nodes: numbers. */
/* clang-format off */
#define DIRECT(X) \
    X(rdma.port) \
    X(rdma.gid_index) \
    X(rdma.mtu) \
    X(rdma.depth) \
    X(rdma.sge) \
    X(rdma.inline_bytes) \
    X(rdma.window) \
    X(rdma.rd_atomic) \
    X(rdma.ack_timeout_ms) \
    X(rdma.retries) \
    X(rdma.rnr_retries) \
    X(rdma.resolve_ms) \
    X(common.hello_ms) \
    X(common.ping_ms) \
    X(common.silence_ms) \
    X(common.stall_ms) \
    X(common.ask_max)
/* clang-format on */

static void put_pieces(struct kvb_writer *writer, const struct cuda_piece *pieces, uint32_t n)
{
    kvb_put_u32(writer, n);
    for (uint32_t i = 0; i < n; i++) {
        kvb_put_u64(writer, pieces[i].id);
        kvb_put_u64(writer, pieces[i].offset);
        kvb_put_u64(writer, pieces[i].pool_offset);
        kvb_put_u64(writer, pieces[i].len);
    }
}

static uint32_t get_pieces(struct kvb_reader *reader, struct cuda_piece *pieces)
{
    uint32_t n = kvb_get_count(reader, pieces != NULL ? CUDA_PIECES_MAX : 0, PIECE_LEN);
    for (uint32_t i = 0; i < n; i++) {
        pieces[i].id = kvb_get_u64(reader);
        pieces[i].offset = kvb_get_u64(reader);
        pieces[i].pool_offset = kvb_get_u64(reader);
        pieces[i].len = kvb_get_u64(reader);
    }
    if (n == 0) {
        reader->status = KVB_ERR_PROTOCOL;
    }
    return n;
}

static void put_cause(struct kvb_writer *writer, const struct gpu_cause *cause)
{
    kvb_put_u8(writer, cause->poisoned);
    kvb_put_str(writer, cause->text);
}

static void get_cause(struct kvb_reader *reader, struct gpu_cause *cause)
{
    cause->poisoned = kvb_get_bool(reader);
    kvb_get_str(reader, cause->text, sizeof cause->text);
}

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
        put_pieces(writer, message->copy.pieces, message->copy.n);
        break;
    case CUDA_ANSWER:
        kvb_put_u32(writer, (uint32_t)message->answer.status);
        kvb_put_u8(writer, message->answer.direct);
#define X(member) kvb_put_u32(writer, message->answer.ledger.member);
        LEDGER(X)
#undef X
        put_cause(writer, &message->answer.cause);
        break;
    case CUDA_DIRECT:
        kvb_put_str(writer, message->direct.rdma.device != NULL ? message->direct.rdma.device : "");
        kvb_put_u8(writer, message->direct.rdma.gid_set);
#define X(member) kvb_put_u32(writer, message->direct.member);
        DIRECT(X)
#undef X
        kvb_put_u64(writer, message->direct.common.features);
        kvb_put_span(writer, (struct kvb_span){message->direct.common.secret,
                                               message->direct.common.secret_len});
        break;
    case CUDA_MOVE:
        kvb_put_u8(writer, message->move.to_node);
        kvb_put_u16(writer, message->move.type);
        kvb_put_str(writer, message->move.address);
        kvb_put_u64(writer, message->move.within_ms);
        kvb_put_u32(writer, message->move.answer_cap);
        kvb_put_span(writer, message->move.ask);
        put_pieces(writer, message->move.pieces, message->move.n);
        break;
    case CUDA_STOP:
        kvb_put_u64(writer, message->stop.seq);
        kvb_put_u64(writer, message->stop.within_ms);
        break;
    case CUDA_MOVED:
        kvb_put_u32(writer, (uint32_t)message->moved.status);
        kvb_put_span(writer, message->moved.answer);
        put_cause(writer, &message->moved.cause);
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

static void get_direct(struct kvb_reader *reader, struct cuda_message *message)
{
    kvb_get_str(reader, message->direct.device, sizeof message->direct.device);
    message->direct.rdma.gid_set = kvb_get_bool(reader);
#define X(member) message->direct.member = kvb_get_u32(reader);
    DIRECT(X)
#undef X
    message->direct.common.features = kvb_get_u64(reader);
    struct kvb_span secret = kvb_get_span(reader, KVT_SECRET_MAX);
    if (reader->status == KVB_OK && secret.len > 0) {
        memcpy(message->direct.common.secret, secret.data, secret.len);
        message->direct.common.secret_len = (uint32_t)secret.len;
    }
}

static void get_move(struct kvb_reader *reader, struct cuda_piece *pieces,
                     struct cuda_message *message)
{
    message->move.to_node = kvb_get_bool(reader);
    message->move.type = kvb_get_u16(reader);
    kvb_get_str(reader, message->move.address, sizeof message->move.address);
    message->move.within_ms = kvb_get_u64(reader);
    message->move.answer_cap = kvb_get_u32(reader);
    message->move.ask = kvb_get_span(reader, KVT_DEVICE_ASK_MAX);
    message->move.pieces = pieces;
    message->move.n = get_pieces(reader, pieces);
    if (message->move.answer_cap > KVT_DEVICE_ANSWER_MAX) {
        reader->status = KVB_ERR_PROTOCOL;
    }
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
        message.copy.pieces = pieces;
        message.copy.n = get_pieces(&reader, pieces);
        break;
    case CUDA_ANSWER:
        message.answer.status = kvb_status_from_wire((int)kvb_get_u32(&reader));
        message.answer.direct = kvb_get_bool(&reader);
#define X(member) message.answer.ledger.member = kvb_get_u32(&reader);
        LEDGER(X)
#undef X
        get_cause(&reader, &message.answer.cause);
        break;
    case CUDA_DIRECT:
        get_direct(&reader, &message);
        break;
    case CUDA_MOVE:
        get_move(&reader, pieces, &message);
        break;
    case CUDA_STOP:
        message.stop.seq = kvb_get_u64(&reader);
        message.stop.within_ms = kvb_get_u64(&reader);
        break;
    case CUDA_MOVED:
        message.moved.status = kvb_status_from_wire((int)kvb_get_u32(&reader));
        message.moved.answer = kvb_get_span(&reader, KVT_DEVICE_ANSWER_MAX);
        get_cause(&reader, &message.moved.cause);
        break;
    default:
        return KVB_ERR_PROTOCOL;
    }
    kvb_status_t status = kvb_reader_finish(&reader);
    if (status == KVB_OK) {
        *message_p = message;
        if (message.type == CUDA_DIRECT) {
            message_p->direct.rdma.device = message_p->direct.device;
        }
    }
    return status;
}
