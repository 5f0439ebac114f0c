/* SPDX-License-Identifier: Apache-2.0 */
#include "handshake.h"

#include "base/assert.h"
#include "base/le.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

/* Offsets in a greeting, and in ADMITTED. */
enum { AT_MIN = 0, AT_MAX = 4, AT_FEATURES = 8, AT_SILENCE = 16, AT_ZERO = 20, AT_NONCE = 24 };
_Static_assert(AT_NONCE + 32 == KVT_GREETING_LEN, "the nonce is the last field");
enum { AT_INCARNATION = KVT_PROOF_LEN, AT_NAME_LEN = 40, AT_NAME = 41 };

/* ---- greetings ---- */

void kvt_greeting_make(const struct kvt_protocol *protocol, const struct kvt_peer_common *common,
                       const struct kvb_random *random, uint8_t out[KVT_PAYLOAD_MAX], size_t *len_p)
{
    kvb_le_put(out + AT_MIN, protocol->version_min, 4);
    kvb_le_put(out + AT_MAX, protocol->version, 4);
    kvb_le_put(out + AT_FEATURES, common->features, 8);
    kvb_le_put(out + AT_SILENCE, common->silence_ms, 4);
    kvb_le_put(out + AT_ZERO, 0, 4);
    random->fill(random->ctx, out + AT_NONCE, 32);
    *len_p = KVT_GREETING_LEN;
}

static struct kvt_greeting greeting_unpack(const uint8_t *payload)
{
    struct kvt_greeting greeting = {
        .version_min = (uint32_t)kvb_le_get(payload + AT_MIN, 4),
        .version_max = (uint32_t)kvb_le_get(payload + AT_MAX, 4),
        .features = kvb_le_get(payload + AT_FEATURES, 8),
        .silence_ms = (uint32_t)kvb_le_get(payload + AT_SILENCE, 4),
    };
    memcpy(greeting.nonce, payload + AT_NONCE, sizeof greeting.nonce);
    return greeting;
}

kvb_status_t kvt_greeting_take(const uint8_t *payload, size_t len, uint8_t into[KVT_PAYLOAD_MAX],
                               size_t *len_p)
{
    kvb_assert(len >= KVT_GREETING_LEN && len <= KVT_PAYLOAD_MAX); /* the table of messages */
    struct kvt_greeting greeting = greeting_unpack(payload);
    if (greeting.version_min == 0 || greeting.version_min > greeting.version_max ||
        greeting.silence_ms == 0) {
        return KVB_ERR_PROTOCOL;
    }
    memcpy(into, payload, len);
    *len_p = len;
    return KVB_OK;
}

kvb_status_t kvt_handshake_agree(struct kvt_handshake *shake, bool client)
{
    struct kvt_greeting hello = greeting_unpack(shake->hello);
    struct kvt_greeting challenge = greeting_unpack(shake->challenge);
    uint32_t least =
        hello.version_min > challenge.version_min ? hello.version_min : challenge.version_min;
    uint32_t most =
        hello.version_max < challenge.version_max ? hello.version_max : challenge.version_max;
    if (least > most) {
        return KVB_ERR_UNSUPPORTED;
    }
    shake->version = most;
    shake->features = hello.features & challenge.features;
    shake->their_silence_ms = client ? challenge.silence_ms : hello.silence_ms;
    return KVB_OK;
}

/* ---- proofs ---- */

static kvb_status_t sign(const struct kvt_peer_common *common, const struct kvt_handshake *shake,
                         const char *label, const uint8_t *more, size_t more_len,
                         uint8_t out[KVT_PROOF_LEN])
{
    /* label, NUL, then each part behind its length: no two lists of parts give the same bytes. */
    uint8_t text[32 + 3 * (4 + KVT_PAYLOAD_MAX)];
    const struct {
        const uint8_t *data;
        size_t len;
    } parts[] = {{shake->hello, shake->hello_len},
                 {shake->challenge, shake->challenge_len},
                 {more, more_len}};
    size_t len = strlen(label) + 1;
    memcpy(text, label, len);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        kvb_le_put(text + len, parts[i].len, 4);
        len += 4;
        if (parts[i].len > 0) {
            memcpy(text + len, parts[i].data, parts[i].len);
            len += parts[i].len;
        }
    }
    unsigned int mac_len = 0;
    if (HMAC(EVP_sha256(), common->secret, (int)common->secret_len, text, len, out, &mac_len) ==
        NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kvb_assert(mac_len == KVT_PROOF_LEN);
    return KVB_OK;
}

kvb_status_t kvt_proof_make(const struct kvt_protocol *protocol,
                            const struct kvt_peer_common *common, const struct kvt_handshake *shake,
                            uint8_t out[KVT_PROOF_LEN])
{
    return sign(common, shake, protocol->client_label, NULL, 0, out);
}

/* In constant time: how long it takes says nothing about how much of the proof was right. */
static kvb_status_t compare(const uint8_t *proof, const uint8_t *right)
{
    return CRYPTO_memcmp(proof, right, KVT_PROOF_LEN) == 0 ? KVB_OK : KVB_ERR_REFUSED;
}

kvb_status_t kvt_proof_check(const struct kvt_protocol *protocol,
                             const struct kvt_peer_common *common,
                             const struct kvt_handshake *shake, const uint8_t proof[KVT_PROOF_LEN])
{
    uint8_t right[KVT_PROOF_LEN];
    kvb_status_t status = sign(common, shake, protocol->client_label, NULL, 0, right);
    return status == KVB_OK ? compare(proof, right) : status;
}

/* ---- who the node is ---- */

bool kvt_name_valid(const char *name, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (name[i] < '!' || name[i] > '~') {
            return false;
        }
    }
    return len > 0 && len < KVT_NAME_MAX;
}

kvb_status_t kvt_identity_make(const struct kvt_protocol *protocol,
                               const struct kvt_peer_common *common,
                               const struct kvt_handshake *shake,
                               const struct kvt_identity *identity, uint8_t out[KVT_PAYLOAD_MAX],
                               size_t *len_p)
{
    size_t name_len = strlen(identity->name);
    kvb_le_put(out + AT_INCARNATION, identity->incarnation, 8);
    kvb_le_put(out + AT_NAME_LEN, name_len, 1);
    memcpy(out + AT_NAME, identity->name, name_len);
    size_t len = AT_NAME + name_len;
    kvb_status_t status =
        sign(common, shake, protocol->node_label, out + AT_INCARNATION, len - AT_INCARNATION, out);
    if (status == KVB_OK) {
        *len_p = len;
    }
    return status;
}

kvb_status_t kvt_identity_take(const struct kvt_protocol *protocol,
                               const struct kvt_peer_common *common,
                               const struct kvt_handshake *shake, const uint8_t *payload,
                               size_t len, struct kvt_identity *identity_p)
{
    uint8_t right[KVT_PROOF_LEN];
    kvb_status_t status = sign(common, shake, protocol->node_label, payload + AT_INCARNATION,
                               len - AT_INCARNATION, right);
    if (status == KVB_OK) {
        status = compare(payload, right);
    }
    if (status != KVB_OK) {
        return status;
    }
    struct kvt_identity identity = {.incarnation = kvb_le_get(payload + AT_INCARNATION, 8)};
    size_t name_len = payload[AT_NAME_LEN];
    if (len != AT_NAME + name_len || name_len >= sizeof identity.name) {
        return KVB_ERR_PROTOCOL;
    }
    memcpy(identity.name, payload + AT_NAME, name_len);
    if (!kvt_name_valid(identity.name, name_len)) {
        return KVB_ERR_PROTOCOL;
    }
    *identity_p = identity;
    return KVB_OK;
}

/* ---- whole steps ---- */

kvb_status_t kvt_challenge_take(const struct kvt_protocol *protocol,
                                const struct kvt_peer_common *common, struct kvt_handshake *shake,
                                const uint8_t *payload, size_t len, uint8_t proof[KVT_PROOF_LEN])
{
    kvb_status_t status = kvt_greeting_take(payload, len, shake->challenge, &shake->challenge_len);
    if (status == KVB_OK) {
        status = kvt_handshake_agree(shake, true);
    }
    return status == KVB_OK ? kvt_proof_make(protocol, common, shake, proof) : status;
}

kvb_status_t kvt_hello_take(const struct kvt_protocol *protocol,
                            const struct kvt_peer_common *common, const struct kvb_random *random,
                            struct kvt_handshake *shake, const uint8_t *payload, size_t len)
{
    kvb_status_t status = kvt_greeting_take(payload, len, shake->hello, &shake->hello_len);
    if (status != KVB_OK) {
        return status;
    }
    kvt_greeting_make(protocol, common, random, shake->challenge, &shake->challenge_len);
    return kvt_handshake_agree(shake, false);
}
