/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TCP_WIRE_H
#define TCP_WIRE_H

#include "handshake.h"

#include "base/frame.h"
#include "base/status.h"
#include "transport/tcp.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What travels on a lane. Every frame has the header of base/frame.h; integers are little endian.
 *
 * Questions (type: the node's own, 1 to KVT_TYPE_MAX) and their answers (same type and seq,
 * flag REPLY):
 *
 *   offset      size  field
 *        0        24  header; len: all that follows
 *       24         4  check     low half of XXH3-64 over bytes 28 to the end of the text
 *       28         4  status    of an answer; 0 in a question
 *       32         4  text_len  of the question, or answer
 *       36         4  body_len
 *       40  text_len  text
 *        .  body_len  body
 *        .        16  trailer, only after a body: status (4; 0: whole, else why it was abandoned),
 * 0 (4), XXH3-64 of the body (8; 0 if abandoned)
 *
 * The transport's own messages are frames without that head:
 */
#define TCP_MESSAGES(X)                                                                            \
    /* name, type, least, most bytes of payload */                                                 \
    X(HELLO, 0xff01, 56, 256)     /* client: versions, features, silence, nonce */                 \
    X(CHALLENGE, 0xff02, 56, 256) /* node: the same */                                             \
    X(PROOF, 0xff03, 32, 32)      /* client: HMAC */                                               \
    X(ADMITTED, 0xff04, 41, 104)  /* node: HMAC, incarnation, name */                              \
    X(REFUSED, 0xff05, 4, 4)      /* node: status */                                               \
    X(ALIVE, 0xff06, 0, 0)        /* either: nothing else was sent for a while */
enum tcp_message {
#define X(name, type, least, most) TCP_##name = (type),
    TCP_MESSAGES(X)
#undef X
};

#define TCP_HEAD_LEN    (KVB_FRAME_HEADER_LEN + 16u)
#define TCP_TRAILER_LEN 16u

extern const struct kvt_protocol kvt_tcp_protocol;

struct tcp_head {
    struct kvb_frame frame;
    kvb_status_t status;
    uint32_t text_len;
    uint32_t body_len;
};

/* Writes TCP_HEAD_LEN + text_len bytes; head->frame.len is computed. text: NULL if text_len is 0.
 */
void tcp_head_pack(const struct tcp_head *head, const void *text, uint8_t *out);

/* Bytes that a frame with this header needs before its text can be judged are all there in `in`
 * (TCP_HEAD_LEN). PROTOCOL: lengths that contradict each other or the limits, a status that does
 * not exist or is not final, one in a question, a body in an answer that is not OK. */
KVB_MUST_USE kvb_status_t tcp_head_unpack(const struct kvb_frame *frame,
                                          const uint8_t in[TCP_HEAD_LEN], uint32_t text_max,
                                          struct tcp_head *head_p);
/* in: as much as tcp_head_pack wrote. */
bool tcp_text_intact(const uint8_t *in, uint32_t text_len);

void tcp_trailer_pack(kvb_status_t status, uint64_t checksum, uint8_t out[TCP_TRAILER_LEN]);
KVB_MUST_USE kvb_status_t tcp_trailer_unpack(const uint8_t in[TCP_TRAILER_LEN],
                                             kvb_status_t *status_p, uint64_t *checksum_p);

/* What REFUSED says; PROTOCOL if it says nothing. */
kvb_status_t tcp_refusal(const uint8_t payload[4]);

/* A frame of the transport's own; returns its bytes. */
size_t tcp_message_pack(enum tcp_message type, const void *payload, size_t len,
                        uint8_t out[KVB_FRAME_HEADER_LEN + KVT_PAYLOAD_MAX]);
/* Is the type one of ours, with a legal length and no flags? */
KVB_MUST_USE kvb_status_t tcp_message_check(const struct kvb_frame *frame);

#endif
