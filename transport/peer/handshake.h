/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PEER_HANDSHAKE_H
#define PEER_HANDSHAKE_H

#include "base/clock.h"
#include "transport/peer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
struct kvt_protocol { /* what is spoken on the lane, once both know each other */
    uint32_t version_min, version;
    const char *client_label, *node_label; /* signed: no proof of one protocol is one of another */
};

#define KVT_PAYLOAD_MAX  256u /* of a message of the handshake */
#define KVT_GREETING_LEN 56u
#define KVT_PROOF_LEN    32u
#define KVT_NAME_MAX     64u /* with its NUL */

struct kvt_greeting { /* HELLO, CHALLENGE; what a later version adds behind it is signed, not read
                       */
    uint32_t version_min, version_max;
    uint64_t features;
    uint32_t silence_ms;
    uint8_t nonce[32];
};

struct kvt_identity { /* ADMITTED */
    char name[KVT_NAME_MAX];
    uint64_t incarnation;
};

/* What either side has heard and said so far. */
struct kvt_handshake {
    uint8_t hello[KVT_PAYLOAD_MAX];
    uint8_t challenge[KVT_PAYLOAD_MAX];
    size_t hello_len, challenge_len;
    /* agreed, after kvt_handshake_agree */
    uint32_t version;
    uint64_t features;
    uint32_t their_silence_ms;
};

/* This side's own greeting, with a fresh nonce, into the handshake's hello or challenge. */
void kvt_greeting_make(const struct kvt_protocol *protocol, const struct kvt_peer_common *common,
                       const struct kvb_random *random, uint8_t out[KVT_PAYLOAD_MAX],
                       size_t *len_p);
/* Takes the other side's, as it came. PROTOCOL: a range of versions, or a silence, of nothing. */
KVB_MUST_USE kvb_status_t kvt_greeting_take(const uint8_t *payload, size_t len,
                                            uint8_t into[KVT_PAYLOAD_MAX], size_t *len_p);
/* Both greetings are there. UNSUPPORTED: no common version. */
KVB_MUST_USE kvb_status_t kvt_handshake_agree(struct kvt_handshake *shake, bool client);

/* The client's whole answer to CHALLENGE: takes it, agrees, makes PROOF's payload. PROTOCOL,
 * UNSUPPORTED, NO_MEMORY: as those. */
KVB_MUST_USE kvb_status_t kvt_challenge_take(const struct kvt_protocol *protocol,
                                             const struct kvt_peer_common *common,
                                             struct kvt_handshake *shake, const uint8_t *payload,
                                             size_t len, uint8_t proof[KVT_PROOF_LEN]);
/* The node's to HELLO: takes it, agrees, makes the challenge. PROTOCOL; UNSUPPORTED: the client is
 * to be told. */
KVB_MUST_USE kvb_status_t kvt_hello_take(const struct kvt_protocol *protocol,
                                         const struct kvt_peer_common *common,
                                         const struct kvb_random *random,
                                         struct kvt_handshake *shake, const uint8_t *payload,
                                         size_t len);

/* PROOF's payload. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvt_proof_make(const struct kvt_protocol *protocol,
                                         const struct kvt_peer_common *common,
                                         const struct kvt_handshake *shake,
                                         uint8_t out[KVT_PROOF_LEN]);
/* REFUSED: it is not the right one. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvt_proof_check(const struct kvt_protocol *protocol,
                                          const struct kvt_peer_common *common,
                                          const struct kvt_handshake *shake,
                                          const uint8_t proof[KVT_PROOF_LEN]);

/* ADMITTED's payload. */
KVB_MUST_USE kvb_status_t kvt_identity_make(const struct kvt_protocol *protocol,
                                            const struct kvt_peer_common *common,
                                            const struct kvt_handshake *shake,
                                            const struct kvt_identity *identity,
                                            uint8_t out[KVT_PAYLOAD_MAX], size_t *len_p);
/* PROTOCOL: no legal name. REFUSED: the node does not know the secret. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvt_identity_take(const struct kvt_protocol *protocol,
                                            const struct kvt_peer_common *common,
                                            const struct kvt_handshake *shake,
                                            const uint8_t *payload, size_t len,
                                            struct kvt_identity *identity_p);

/* Printable ASCII, 1 to KVT_NAME_MAX - 1 bytes. */
bool kvt_name_valid(const char *name, size_t len);

#endif
