/* SPDX-License-Identifier: Apache-2.0 */
/* What daemon and helper say to each other: each message arrives as it was said, and nothing else
 * is taken for one. */
#include "message.h"

#include <criterion/criterion.h>

#include <string.h>

static struct cuda_piece given[2] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
static uint8_t text[] = "a question";

static const struct cuda_message *samples(size_t *n_p)
{
    static struct cuda_message all[8];
    all[0] = (struct cuda_message){.type = CUDA_IMPORT,
                                   .seq = 1,
                                   .import = {.id = 2,
                                              .source = GPU_SOURCE_FABRIC,
                                              .fd = -1,
                                              .fabric = {9},
                                              .offset = 3,
                                              .len = 4,
                                              .whole = 5}};
    all[1] = (struct cuda_message){.type = CUDA_DROP, .seq = 2, .drop = 77};
    all[2] = (struct cuda_message){
        .type = CUDA_COPY, .seq = 3, .copy = {.to_pool = true, .n = 2, .pieces = given}};
    all[3] = (struct cuda_message){.type = CUDA_ANSWER,
                                   .seq = 4,
                                   .answer = {.status = KVB_ERR_IO,
                                              .direct = true,
                                              .ledger = {.regions = 1, .registrations = 6},
                                              .cause = {.poisoned = true, .text = "why"}}};
    all[4] = (struct cuda_message){
        .type = CUDA_DIRECT,
        .seq = 5,
        .direct = {.rdma = {.device = "mlx5_0", .port = 2, .gid_set = true, .resolve_ms = 9},
                   .common = {.secret = "secret", .secret_len = 6, .features = 3, .ask_max = 8}}};
    all[5] = (struct cuda_message){.type = CUDA_MOVE,
                                   .seq = 6,
                                   .move = {.to_node = true,
                                            .type = 3,
                                            .address = "10.0.0.1:7",
                                            .within_ms = UINT64_MAX,
                                            .answer_cap = 8,
                                            .ask = {text, sizeof text},
                                            .n = 2,
                                            .pieces = given}};
    all[6] =
        (struct cuda_message){.type = CUDA_STOP, .seq = 7, .stop = {.seq = 6, .within_ms = 100}};
    all[7] = (struct cuda_message){
        .type = CUDA_MOVED,
        .seq = 6,
        .moved = {.status = KVB_ERR_IO, .answer = {text, sizeof text}, .cause = {true, "why"}}};
    *n_p = sizeof all / sizeof all[0];
    return all;
}

static size_t pack(const struct cuda_message *message, uint8_t out[CUDA_MESSAGE_MAX])
{
    struct kvb_writer writer;
    kvb_writer_init(&writer, CUDA_MESSAGE_MAX);
    cuda_message_pack(&writer, message);
    cr_assert_eq(writer.status, KVB_OK);
    size_t len = writer.len;
    memcpy(out, writer.data, len);
    kvb_writer_cleanup(&writer);
    return len;
}

Test(cuda_messages, each_arrives_as_it_was_said_and_no_part_of_one_is_one)
{
    static uint8_t said[CUDA_MESSAGE_MAX], again[CUDA_MESSAGE_MAX];
    static struct cuda_piece pieces[CUDA_PIECES_MAX];
    size_t n;
    const struct cuda_message *all = samples(&n);
    for (size_t i = 0; i < n; i++) {
        struct cuda_message heard;
        size_t len = pack(&all[i], said);
        memset(pieces, 0, sizeof pieces);
        cr_assert_eq(cuda_message_unpack(said, len, pieces, &heard), KVB_OK, "%zu", i);
        cr_assert_eq(heard.type, all[i].type);
        cr_assert_eq(pack(&heard, again), len);
        cr_assert_eq(memcmp(said, again, len), 0, "%zu", i);
        for (size_t part = 0; part < len; part++) {
            cr_assert_eq(cuda_message_unpack(said, part, pieces, &heard), KVB_ERR_PROTOCOL,
                         "%zu: %zu bytes of %zu", i, part, len);
        }
        said[len] = 0;
        cr_assert_eq(cuda_message_unpack(said, len + 1, pieces, &heard), KVB_ERR_PROTOCOL);
    }
}

Test(cuda_messages, what_there_is_no_room_for_is_refused)
{
    static uint8_t said[CUDA_MESSAGE_MAX], room[KVT_DEVICE_ASK_MAX + 1];
    static struct cuda_piece pieces[CUDA_PIECES_MAX];
    struct cuda_message heard;
    struct cuda_message move = {.type = CUDA_MOVE,
                                .move = {.ask = {room, KVT_DEVICE_ASK_MAX},
                                         .answer_cap = KVT_DEVICE_ANSWER_MAX,
                                         .n = 1,
                                         .pieces = given}};
    cr_assert_eq(cuda_message_unpack(said, pack(&move, said), pieces, &heard), KVB_OK);
    cr_assert_eq(cuda_message_unpack(said, pack(&move, said), NULL, &heard), KVB_ERR_PROTOCOL);
    move.move.ask.len++;
    cr_assert_eq(cuda_message_unpack(said, pack(&move, said), pieces, &heard), KVB_ERR_PROTOCOL);
    move.move.ask.len = 0;
    move.move.answer_cap++;
    cr_assert_eq(cuda_message_unpack(said, pack(&move, said), pieces, &heard), KVB_ERR_PROTOCOL);
    move.move.answer_cap = 0;
    move.move.n = 0;
    cr_assert_eq(cuda_message_unpack(said, pack(&move, said), pieces, &heard), KVB_ERR_PROTOCOL,
                 "nothing to move");
    struct cuda_message moved = {.type = CUDA_MOVED,
                                 .moved = {.answer = {room, KVT_DEVICE_ANSWER_MAX + 1}}};
    cr_assert_eq(cuda_message_unpack(said, pack(&moved, said), pieces, &heard), KVB_ERR_PROTOCOL);
}
