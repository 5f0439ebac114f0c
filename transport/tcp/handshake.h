/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TCP_HANDSHAKE_H
#define TCP_HANDSHAKE_H

#include "wire.h"

#include "base/clock.h"

/*
 * How both sides of a lane come to know each other, before anything else is heard of either:
 *
 *   client                                node
 *   HELLO      what I can do, nonce  ->
 *                                    <-   CHALLENGE  what I can do, nonce
 *   PROOF      HMAC(client, both)    ->
 *                                    <-   ADMITTED   HMAC(node, both, who I am), who I am
 *                                         or REFUSED, at any point, and the end
 *
 * The client proves itself first: a stranger learns nothing that was made with the secret, nor
 * whose node this is. HMAC-SHA256 over the whole of both greetings, so that nobody in between can
 * talk the two into an older version; a label for each side, so that no side's proof can be sent
 * back to it.
 */
#define TCP_GREETING_LEN 56u
#define TCP_PROOF_LEN    32u
#define TCP_NAME_MAX     64u /* with its NUL */

struct tcp_greeting { /* HELLO, CHALLENGE; what a later version adds behind it is signed, not read
                       */
    uint32_t version_min, version_max;
    uint64_t features;
    uint32_t silence_ms;
    uint8_t nonce[32];
};

struct tcp_identity { /* ADMITTED */
    char name[TCP_NAME_MAX];
    uint64_t incarnation;
};

/* What either side has heard and said so far. */
struct tcp_handshake {
    uint8_t hello[TCP_PAYLOAD_MAX];
    uint8_t challenge[TCP_PAYLOAD_MAX];
    size_t hello_len, challenge_len;
    /* agreed, after tcp_handshake_agree */
    uint32_t version;
    uint64_t features;
    uint32_t their_silence_ms;
};

/* This side's own greeting, with a fresh nonce, into the handshake's hello or challenge. */
void tcp_greeting_make(const struct kvt_peer_common *common, const struct kvb_random *random,
                       uint8_t out[TCP_PAYLOAD_MAX], size_t *len_p);
/* Takes the other side's, as it came. PROTOCOL: a range of versions, or a silence, of nothing. */
KVB_MUST_USE kvb_status_t tcp_greeting_take(const uint8_t *payload, size_t len,
                                            uint8_t into[TCP_PAYLOAD_MAX], size_t *len_p);
/* Both greetings are there. UNSUPPORTED: no common version. */
KVB_MUST_USE kvb_status_t tcp_handshake_agree(struct tcp_handshake *shake, bool client);

/* PROOF's payload. NO_MEMORY. */
KVB_MUST_USE kvb_status_t tcp_proof_make(const struct kvt_peer_common *common,
                                         const struct tcp_handshake *shake,
                                         uint8_t out[TCP_PROOF_LEN]);
/* REFUSED: it is not the right one. NO_MEMORY. */
KVB_MUST_USE kvb_status_t tcp_proof_check(const struct kvt_peer_common *common,
                                          const struct tcp_handshake *shake,
                                          const uint8_t proof[TCP_PROOF_LEN]);

/* ADMITTED's payload. */
KVB_MUST_USE kvb_status_t tcp_identity_make(const struct kvt_peer_common *common,
                                            const struct tcp_handshake *shake,
                                            const struct tcp_identity *identity,
                                            uint8_t out[TCP_PAYLOAD_MAX], size_t *len_p);
/* PROTOCOL: no legal name. REFUSED: the node does not know the secret. NO_MEMORY. */
KVB_MUST_USE kvb_status_t tcp_identity_take(const struct kvt_peer_common *common,
                                            const struct tcp_handshake *shake,
                                            const uint8_t *payload, size_t len,
                                            struct tcp_identity *identity_p);

/* Printable ASCII, 1 to TCP_NAME_MAX - 1 bytes. */
bool tcp_name_valid(const char *name, size_t len);

#endif
