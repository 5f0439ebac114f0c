/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDMA_WIRE_H
#define RDMA_WIRE_H

#include "handshake.h"

#include "base/frame.h"
#include "transport/rdma.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What travels between the two ends of a queue pair; integers are little endian.
 *
 * Before it is made, in the private data of its connecting, what both ends can and want:
 *
 *   offset  size  field                  asking                       answering
 *        0     4  magic "KVR1"
 *        4     4  version                least                        agreed
 *        8     4  version                most                         0
 *       12     4  path MTU, bytes        most; 0: not said            agreed
 *       16     4  window                 messages it has room for at once
 *       20     4  message bytes          the longest it has room for
 *       24     4  READs under way        wanted                       agreed
 *       28     4  requests               0                            at most, not answered
 *
 * A rejection carries the magic and a status (4 bytes each).
 *
 * Then messages. Each SEND is a packet: its number on this queue pair from 0 (4), the number of
 * packets that its sender has room for in all so far (4), and a piece of one message. A message
 * begins with the header of base/frame.h in the first piece; the pieces that follow are its
 * next bytes. Questions (type: the node's own, 1 to KVT_TYPE_MAX), 24 the header:
 *
 *       24         4  1: the body comes without a checksum (version 2), else 0
 *       28         4  body_len
 *       32         .  text
 *
 * and their answers (same type and seq, flag REPLY):
 *
 *       24         4  status
 *       28         4  extents   how many follow; 0: no body
 *       32         8  checksum  XXH3-64 of the body; 0: no body
 *       40  16 * ext  extents   address (8), length (4), remote key (4)
 *        .         .  text
 *
 * and the transport's own:
 */
#define RWIRE_MESSAGES(X)                                                                          \
    /* name, type, least, most bytes of payload */                                                 \
    X(HELLO, 0xff01, 56, 256)                                                                      \
    X(CHALLENGE, 0xff02, 56, 256)                                                                  \
    X(PROOF, 0xff03, 32, 32)                                                                       \
    X(ADMITTED, 0xff04, 41, 104)                                                                   \
    X(REFUSED, 0xff05, 4, 4)                                                                       \
    X(ALIVE, 0xff06, 0, 0)                                                                         \
    /* room for more packets, which every packet tells; for where nothing else is to be said */    \
    X(CREDIT, 0xff10, 0, 0)                                                                        \
    /* seq of the question: where the body goes. extents (4), 0 (4), extents */                    \
    X(GRANT, 0xff11, 24, 8 + 16 * RWIRE_EXTENTS_MAX)                                               \
    /* the client is through with what was granted: status (4), 0 (4), checksum (8) */             \
    X(DONE, 0xff12, 16, 16)                                                                        \
    /* what the body of an answer was worth: status (4), 0 (4) */                                  \
    X(VERDICT, 0xff13, 8, 8)

#define RWIRE_EXTENTS_MAX (64u << 10)
enum rwire_message {
#define X(name, type, least, most) RWIRE_##name = (type),
    RWIRE_MESSAGES(X)
#undef X
};

#define RWIRE_CONNECT_LEN  32u
#define RWIRE_REJECT_LEN   8u
#define RWIRE_PACKET_LEN   8u
#define RWIRE_QUESTION_LEN 8u  /* of its payload, before the text */
#define RWIRE_ANSWER_LEN   16u /* of its payload, before extents and text */
#define RWIRE_EXTENT_LEN   16u
#define RWIRE_GRANT_LEN    8u
#define RWIRE_DONE_LEN     16u
#define RWIRE_VERDICT_LEN  8u

extern const struct kvt_protocol kvt_rdma_protocol;

/* ---- connecting ---- */

struct rwire_connect {
    uint32_t version_min, version; /* answering: version_min is the agreed one */
    uint32_t mtu;
    uint32_t window;
    uint32_t message_bytes;
    uint32_t rd_atomic;
    uint32_t requests;
};
void rwire_connect_pack(const struct rwire_connect *connect, uint8_t out[RWIRE_CONNECT_LEN]);
/* PROTOCOL: too short, or not ours. What it says is not judged. */
KVB_MUST_USE kvb_status_t rwire_connect_unpack(const uint8_t *in, size_t len,
                                               struct rwire_connect *connect_p);
void rwire_reject_pack(kvb_status_t status, uint8_t out[RWIRE_REJECT_LEN]);
/* What a rejection says; UNAVAILABLE: nothing of ours. */
kvb_status_t rwire_reject_status(const uint8_t *in, size_t len);

/* ---- packets and messages ---- */

struct rwire_packet {
    uint32_t number, room;
};
void rwire_packet_pack(const struct rwire_packet *packet, uint8_t out[RWIRE_PACKET_LEN]);
struct rwire_packet rwire_packet_unpack(const uint8_t in[RWIRE_PACKET_LEN]);

/* Is it a message that may come, and of a length that it may have? PROTOCOL. */
KVB_MUST_USE kvb_status_t rwire_frame_check(const struct kvb_frame *frame, uint32_t text_max);

struct rwire_extent {
    uint64_t address;
    uint32_t len;
    uint32_t key;
};
void rwire_extent_pack(const struct rwire_extent *extent, uint8_t out[RWIRE_EXTENT_LEN]);
struct rwire_extent rwire_extent_unpack(const uint8_t in[RWIRE_EXTENT_LEN]);
/* n of them. PROTOCOL: an empty one, one that reaches past the end of all addresses, or together
 * not body_len. */
KVB_MUST_USE kvb_status_t rwire_extents_check(const uint8_t *in, uint32_t n, uint64_t body_len);

struct rwire_question {
    bool unhashed; /* nobody on that side reads its body: DONE has no checksum */
    uint32_t body_len;
    const uint8_t *text;
    uint32_t text_len;
};
KVB_MUST_USE kvb_status_t rwire_question_unpack(const uint8_t *payload, uint32_t len,
                                                struct rwire_question *question_p);

struct rwire_answer {
    kvb_status_t status;
    uint32_t extents_n;
    const uint8_t *extents;
    uint64_t checksum;
    const uint8_t *text;
    uint32_t text_len;
};
/* PROTOCOL: a status that does not exist or is not final, a body with one that is not OK, lengths
 * that contradict each other. */
KVB_MUST_USE kvb_status_t rwire_answer_unpack(const uint8_t *payload, uint32_t len,
                                              struct rwire_answer *answer_p);
void rwire_answer_head_pack(kvb_status_t status, uint32_t extents_n, uint64_t checksum,
                            uint8_t out[RWIRE_ANSWER_LEN]);
void rwire_question_head_pack(bool unhashed, uint32_t body_len, uint8_t out[RWIRE_QUESTION_LEN]);

void rwire_grant_head_pack(uint32_t extents_n, uint8_t out[RWIRE_GRANT_LEN]);
KVB_MUST_USE kvb_status_t rwire_grant_unpack(const uint8_t *payload, uint32_t len,
                                             uint32_t *extents_n_p, const uint8_t **extents_p);
void rwire_done_pack(kvb_status_t status, uint64_t checksum, uint8_t out[RWIRE_DONE_LEN]);
KVB_MUST_USE kvb_status_t rwire_done_unpack(const uint8_t in[RWIRE_DONE_LEN],
                                            kvb_status_t *status_p, uint64_t *checksum_p);
void rwire_verdict_pack(kvb_status_t status, uint8_t out[RWIRE_VERDICT_LEN]);
KVB_MUST_USE kvb_status_t rwire_verdict_unpack(const uint8_t in[RWIRE_VERDICT_LEN],
                                               kvb_status_t *status_p);
void rwire_refusal_pack(kvb_status_t status, uint8_t out[4]);
/* PROTOCOL if it says nothing. */
kvb_status_t rwire_refusal(const uint8_t payload[4]);

#endif
