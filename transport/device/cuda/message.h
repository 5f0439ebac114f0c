/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_CUDA_MESSAGE_H
#define TRANSPORT_CUDA_MESSAGE_H

#include "gpu.h"

#include "base/wire.h"
#include "transport/rdma.h"

/*
 * What daemon and helper say to each other, one message a datagram (SOCK_SEQPACKET). They are the
 * same program, so there are no versions; what is read is checked all the same. Every question has
 * a number and gets one ANSWER; READY is the answer to having been started (number 0).
 *
 *   IMPORT  + a descriptor, or a fabric handle     COPY  pieces
 *   DROP    id                                     ANSWER  status, the account, cause
 *
 * And where an RDMA device is to reach the memory: first DIRECT, which is answered; then, of each
 * import that is answered `direct` (else cause says why not),
 *
 *   MOVE    a question for a node, pieces          MOVED   status, the node's answer, cause
 *   STOP    the number of a MOVE, within which time it is to end; has no answer of its own
 */
enum cuda_message_type {
    CUDA_IMPORT = 1,
    CUDA_DROP,
    CUDA_COPY,
    CUDA_ANSWER,
    CUDA_DIRECT,
    CUDA_MOVE,
    CUDA_STOP,
    CUDA_MOVED,
};

#define CUDA_MESSAGE_MAX (64u << 10)
#define CUDA_PIECES_MAX  1024u /* of one COPY, or MOVE */

struct cuda_piece {
    uint64_t id, offset, pool_offset, len;
};

struct cuda_message {
    enum cuda_message_type type;
    uint64_t seq;
    union {
        struct gpu_import import; /* but for fd */
        uint64_t drop;
        struct {
            bool to_pool;
            uint32_t n;
            struct cuda_piece *pieces; /* the caller's, CUDA_PIECES_MAX of them */
        } copy;
        struct {
            kvb_status_t status;
            bool direct;
            struct gpu_ledger ledger;
            struct gpu_cause cause;
        } answer;
        struct {
            struct kvt_rdma_config rdma;   /* but for verbs; device: the array, once unpacked */
            struct kvt_peer_common common; /* but for net */
            char device[64];
        } direct;
        struct {
            bool to_node;
            uint16_t type;
            char address[KVT_DEVICE_ADDRESS_MAX];
            uint64_t within_ms; /* UINT64_MAX: no deadline */
            uint32_t answer_cap;
            struct kvb_span ask; /* once unpacked: in what was read */
            uint32_t n;
            struct cuda_piece *pieces; /* as of copy */
        } move;
        struct {
            uint64_t seq;
            uint64_t within_ms;
        } stop;
        struct {
            kvb_status_t status;
            struct kvb_span answer; /* as ask */
            struct gpu_cause cause; /* if the GPU failed */
        } moved;
    };
};

/* Judge by writer->status. */
void cuda_message_pack(struct kvb_writer *writer, const struct cuda_message *message);

/* pieces: room for those of a COPY or MOVE; may be NULL where none is expected. PROTOCOL. */
KVB_MUST_USE kvb_status_t cuda_message_unpack(const void *data, size_t len,
                                              struct cuda_piece *pieces,
                                              struct cuda_message *message_p);

#endif
