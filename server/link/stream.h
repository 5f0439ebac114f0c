/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LINK_STREAM_H
#define LINK_STREAM_H

#include "base/frame.h"
#include "base/sched.h"
#include "base/wire.h"

#include <stdbool.h>

/*
 * One connected Unix stream socket: whole frames in, whole frames out, descriptors beside them
 * (the edge of the link: below it is libuv, above it nothing is). Bounded both ways: a peer that
 * does not read is not read from either, and one that lets too much pile up is closed. Loop thread
 * only; callbacks come from the loop, never inside a call.
 */
struct kvp_stream;
struct uv_loop_s;

#define KVP_STREAM_OUT_HIGH (1u << 20)  /* bytes: above it, the peer is not read from */
#define KVP_STREAM_OUT_MAX  (80u << 20) /* bytes: above it, the peer is closed */
#define KVP_STREAM_FDS_MAX  16          /* descriptors received and not yet taken */
#define KVP_STREAM_FRAME_MS 10000       /* a frame that has begun is complete by then */
#define KVP_STREAM_FLUSH_MS 1000        /* kvp_stream_finish(): last bytes are out by then */

struct kvp_stream_ops {
    /* Judges a header before its payload is read; anything but OK ends the stream with it. */
    kvb_status_t (*header)(void *ctx, const struct kvb_frame *frame);
    /* A whole frame; payload (malloc'd, NULL if empty) is taken. Not OK: ends the stream. */
    kvb_status_t (*frame)(void *ctx, const struct kvb_frame *frame, uint8_t *payload);
    /* The stream has ended, by whichever side; the last callback. Once. */
    void (*closed)(void *ctx, const char *reason);
};

/* Takes fd (non-blocking), on success only. NO_MEMORY, IO. */
KVB_MUST_USE kvb_status_t kvp_stream_create(struct kvb_sched *sched, struct uv_loop_s *loop, int fd,
                                            const struct kvp_stream_ops *ops, void *ctx,
                                            struct kvp_stream **stream_p);

/*
 * Queues a frame; takes the writer's bytes and leaves it empty. A writer that failed, or too much
 * queued already, ends the stream.
 */
void kvp_stream_send(struct kvp_stream *stream, uint16_t type, uint16_t flags, uint64_t seq,
                     struct kvb_writer *writer);

/* The oldest descriptor that came with what was read so far; -1: none. The caller owns it. */
int kvp_stream_take_fd(struct kvp_stream *stream);

/* Ends the stream: nothing more is read or written. Idempotent; `closed` follows. */
void kvp_stream_close(struct kvp_stream *stream, const char *reason);
/* The same once everything queued is written, within KVP_STREAM_FLUSH_MS. */
void kvp_stream_finish(struct kvp_stream *stream, const char *reason);
/* Whether it has ended, or will as soon as what the peer has sent is read: that one is gone. */
bool kvp_stream_over(const struct kvp_stream *stream);
/* After `closed`: the socket, which the peer does not see closed until the caller closes it. */
int kvp_stream_take_socket(struct kvp_stream *stream);
/* After `closed` only; frees it, and closes the socket if nobody took it. */
void kvp_stream_destroy(struct kvp_stream *stream);

#endif
