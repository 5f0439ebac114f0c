/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels between the ends of an RDMA lane, each piece by itself, among it the private data of
 * a connect, which comes before anybody is known. First byte: which. What can be read packs to the
 * same bytes, but for those that carry nothing.
 */
#include "fuzz.h"
#include "wire.h"

#include "base/le.h"

/* Nothing of it is outside of what came. */
static void inside(const uint8_t *part, size_t len, const uint8_t *all, size_t all_len)
{
    kvb_assert(len == 0 || (part >= all && len <= (size_t)(all + all_len - part)));
}

static void judge_connect(const uint8_t *in, size_t len)
{
    struct rwire_connect connect;
    uint8_t again[RWIRE_CONNECT_LEN];
    if (rwire_connect_unpack(in, len, &connect) == KVB_OK) {
        rwire_connect_pack(&connect, again);
        kvb_assert(len >= sizeof again && memcmp(again, in, sizeof again) == 0);
    }
}

static void judge_question(const uint8_t *in, size_t len)
{
    struct rwire_question question;
    if (len >= RWIRE_QUESTION_LEN &&
        rwire_question_unpack(in, (uint32_t)len, &question) == KVB_OK) {
        uint8_t again[RWIRE_QUESTION_LEN];
        inside(question.text, question.text_len, in, len);
        rwire_question_head_pack(question.unhashed, question.body_len, again);
        kvb_assert(memcmp(again, in, sizeof again) == 0);
        kvb_assert(question.text_len == len - sizeof again);
    }
}

static void judge_answer(const uint8_t *in, size_t len)
{
    struct rwire_answer answer;
    if (len >= RWIRE_ANSWER_LEN && rwire_answer_unpack(in, (uint32_t)len, &answer) == KVB_OK) {
        uint8_t again[RWIRE_ANSWER_LEN];
        inside(answer.text, answer.text_len, in, len);
        inside(answer.extents, (size_t)answer.extents_n * RWIRE_EXTENT_LEN, in, len);
        rwire_answer_head_pack(answer.status, answer.extents_n, answer.checksum, again);
        kvb_assert(memcmp(again, in, sizeof again) == 0);
        kvb_status_t status = rwire_extents_check(answer.extents, answer.extents_n, 4096);
        kvb_assert(status == KVB_OK || status == KVB_ERR_PROTOCOL);
    }
}

static void judge_grant(const uint8_t *in, size_t len)
{
    const uint8_t *extents;
    uint32_t n;
    if (len >= RWIRE_GRANT_LEN + RWIRE_EXTENT_LEN &&
        rwire_grant_unpack(in, (uint32_t)len, &n, &extents) == KVB_OK) {
        inside(extents, (size_t)n * RWIRE_EXTENT_LEN, in, len);
        uint64_t sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            sum += rwire_extent_unpack(extents + (size_t)i * RWIRE_EXTENT_LEN).len;
        }
        if (rwire_extents_check(extents, n, sum) == KVB_OK) {
            for (uint32_t i = 0; i < n; i++) {
                uint8_t again[RWIRE_EXTENT_LEN];
                struct rwire_extent extent =
                    rwire_extent_unpack(extents + (size_t)i * RWIRE_EXTENT_LEN);
                kvb_assert(extent.len > 0 && extent.address <= UINT64_MAX - extent.len);
                rwire_extent_pack(&extent, again);
                kvb_assert(memcmp(again, extents + (size_t)i * RWIRE_EXTENT_LEN, 16) == 0);
            }
        }
        kvb_assert(rwire_extents_check(extents, n, sum + 1) == KVB_ERR_PROTOCOL);
    }
}

static void judge_ends(const uint8_t *in, size_t len)
{
    uint64_t checksum;
    kvb_status_t status;
    uint8_t again[RWIRE_DONE_LEN];
    _Static_assert(RWIRE_VERDICT_LEN <= RWIRE_DONE_LEN && RWIRE_REJECT_LEN <= RWIRE_DONE_LEN,
                   "they fit");
    if (len >= RWIRE_DONE_LEN && rwire_done_unpack(in, &status, &checksum) == KVB_OK) {
        rwire_done_pack(status, checksum, again);
        kvb_assert(status <= 0 && memcmp(again, in, RWIRE_DONE_LEN) == 0);
    }
    if (len >= RWIRE_VERDICT_LEN && rwire_verdict_unpack(in, &status) == KVB_OK) {
        rwire_verdict_pack(status, again);
        kvb_assert(status <= 0 && memcmp(again, in, RWIRE_VERDICT_LEN) == 0);
    }
    if (len >= 4) {
        status = rwire_refusal(in);
        rwire_refusal_pack(status, again);
        kvb_assert(status < 0 && (status == KVB_ERR_PROTOCOL || memcmp(again, in, 4) == 0));
    }
    if (len >= RWIRE_PACKET_LEN) {
        const struct rwire_packet packet = rwire_packet_unpack(in);
        rwire_packet_pack(&packet, again);
        kvb_assert(memcmp(again, in, RWIRE_PACKET_LEN) == 0);
    }
}

static void judge_reject(const uint8_t *in, size_t len)
{
    uint8_t again[RWIRE_REJECT_LEN];
    kvb_status_t status = rwire_reject_status(in, len);
    rwire_reject_pack(status, again);
    kvb_assert(status < 0);
    kvb_assert(status == KVB_ERR_UNAVAILABLE || memcmp(again, in, RWIRE_REJECT_LEN) == 0);
}

/* What is taken has room for its head, and no more than its type may have. */
static void judge_frame(const uint8_t *in, size_t len)
{
    enum { TEXT_MAX = 4096, EXTENTS_BYTES = RWIRE_EXTENTS_MAX * RWIRE_EXTENT_LEN };
    if (len >= 16) {
        const struct kvb_frame frame = {.type = (uint16_t)kvb_le_get(in, 2),
                                        .flags = (uint16_t)kvb_le_get(in + 2, 2),
                                        .seq = kvb_le_get(in + 4, 8),
                                        .len = (uint32_t)kvb_le_get(in + 12, 4)};
        bool reply = (frame.flags & KVB_FRAME_REPLY) != 0;
        if (rwire_frame_check(&frame, TEXT_MAX) == KVB_OK) {
            kvb_assert(frame.type != 0 && frame.len <= RWIRE_ANSWER_LEN + TEXT_MAX + EXTENTS_BYTES);
            kvb_assert(frame.type > KVT_TYPE_MAX ||
                       frame.len >= (reply ? RWIRE_ANSWER_LEN : RWIRE_QUESTION_LEN));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const judges[])(const uint8_t *in, size_t len) = {
        judge_connect, judge_question, judge_answer, judge_grant,
        judge_ends,    judge_frame,    judge_reject};
    if (size > 0 && size < 1 << 20) {
        judges[data[0] % 7](data + 1, size - 1);
    }
    return 0;
}
