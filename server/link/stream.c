/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include "base/assert.h"
#include "base/list.h"

#include <uv.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * Who ends a stream: end() writes the reason, stops the poll handle and posts `ended`; that event
 * closes the handle and, once libuv has let go of it, tells `closed`. So every path ends the same
 * way, once, and never inside a call of ours.
 *
 * A descriptor arrives with the bytes it was sent with, so by the time a frame is whole its
 * descriptor has been received. What nobody has taken when no frame is left half read was not
 * expected by anybody, and is closed.
 */
enum {
    IN_BYTES = 64 << 10,
    IOV_MAX_OURS = 32,
    READS_PER_TURN = 8, /* then the other sessions have theirs */
};

struct chunk {
    struct kvb_list link;
    uint8_t header[KVB_FRAME_HEADER_LEN];
    uint8_t *payload; /* malloc'd, owned */
    size_t len;       /* header and payload */
    size_t done;
};

struct kvp_stream {
    struct kvb_sched *sched;
    const struct kvp_stream_ops *ops;
    void *ctx;
    uv_poll_t poll;
    int fd;
    bool ending;    /* end() was called */
    bool finishing; /* ends when everything is written */
    bool released;  /* libuv has let go of the handle, `closed` was told */
    char reason[160];
    struct kvb_event ended;
    struct kvb_event flush;
    struct kvb_timer bound; /* of a frame half read, or of the last flush */

    struct kvb_list out;
    size_t out_bytes;

    uint8_t in[IN_BYTES];
    size_t in_len;
    bool have_frame; /* header read, payload incomplete */
    struct kvb_frame frame;
    uint8_t *payload;
    size_t payload_len;
    int fds[KVP_STREAM_FDS_MAX];
    uint32_t nfds;
};

static void chunk_destroy(struct chunk *chunk)
{
    free(chunk->payload);
    free(chunk);
}

static void end(struct kvp_stream *stream, const char *reason)
{
    if (stream->ending) {
        return;
    }
    stream->ending = true;
    if (reason != stream->reason) {
        (void)snprintf(stream->reason, sizeof stream->reason, "%s", reason);
    }
    (void)uv_poll_stop(&stream->poll);
    kvb_sched_unpost(&stream->flush);
    kvb_sched_timer_clear(stream->sched, &stream->bound);
    kvb_sched_post(stream->sched, &stream->ended);
}

static void on_uv_closed(uv_handle_t *handle)
{
    struct kvp_stream *stream = handle->data;
    stream->released = true;
    stream->ops->closed(stream->ctx, stream->reason);
}

static void on_ended(struct kvb_event *event)
{
    struct kvp_stream *stream = kvb_container_of(event, struct kvp_stream, ended);
    while (stream->nfds > 0) {
        (void)close(stream->fds[--stream->nfds]);
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&stream->out)) != NULL;) {
        chunk_destroy(kvb_container_of(link, struct chunk, link));
    }
    free(stream->payload);
    stream->payload = NULL;
    uv_close((uv_handle_t *)&stream->poll, on_uv_closed); /* the descriptor outlives the handle */
}

static void on_io(uv_poll_t *poll, int status, int events);

static void watch(struct kvp_stream *stream)
{
    int events = 0;
    if (!stream->finishing && stream->out_bytes <= KVP_STREAM_OUT_HIGH) {
        events |= UV_READABLE;
    }
    if (stream->out_bytes > 0) {
        events |= UV_WRITABLE;
    }
    if (uv_poll_start(&stream->poll, events | UV_DISCONNECT, on_io) != 0) {
        end(stream, "the socket cannot be watched");
    }
    /* The peer cannot complete a frame while we do not read. */
    bool half = (stream->have_frame || stream->in_len > 0) && (events & UV_READABLE) != 0;
    if (!half && !stream->finishing) {
        kvb_sched_timer_clear(stream->sched, &stream->bound);
    } else if (!kvb_timer_armed(&stream->bound)) {
        uint64_t ms = stream->finishing ? KVP_STREAM_FLUSH_MS : KVP_STREAM_FRAME_MS;
        kvb_sched_timer_set(stream->sched, &stream->bound,
                            kvb_deadline_in_ms(stream->sched->clock, ms));
    }
}

static void on_bound(struct kvb_timer *timer)
{
    struct kvp_stream *stream = kvb_container_of(timer, struct kvp_stream, bound);
    end(stream, stream->finishing ? stream->reason : "a frame was not completed in time");
}

/* ---- out ---- */

static size_t gather(struct kvp_stream *stream, struct iovec *iov)
{
    size_t n = 0;
    kvb_list_each(&stream->out, link)
    {
        struct chunk *chunk = kvb_container_of(link, struct chunk, link);
        if (n + 2 > IOV_MAX_OURS) {
            break;
        }
        size_t skip = chunk->done;
        if (skip < KVB_FRAME_HEADER_LEN) {
            iov[n++] = (struct iovec){chunk->header + skip, KVB_FRAME_HEADER_LEN - skip};
            skip = KVB_FRAME_HEADER_LEN;
        }
        if (chunk->len > skip) {
            iov[n++] =
                (struct iovec){chunk->payload + (skip - KVB_FRAME_HEADER_LEN), chunk->len - skip};
        }
    }
    return n;
}

static void written(struct kvp_stream *stream, size_t n)
{
    stream->out_bytes -= n;
    while (n > 0) {
        struct chunk *chunk = kvb_container_of(kvb_list_first(&stream->out), struct chunk, link);
        size_t left = chunk->len - chunk->done;
        if (n < left) {
            chunk->done += n;
            return;
        }
        n -= left;
        kvb_list_remove(&chunk->link);
        chunk_destroy(chunk);
    }
}

static void write_out(struct kvp_stream *stream)
{
    while (stream->out_bytes > 0) {
        struct iovec iov[IOV_MAX_OURS];
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = gather(stream, iov)};
        ssize_t n = sendmsg(stream->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            if (errno != EAGAIN) {
                end(stream, "the peer closed the connection");
            }
            return;
        }
        written(stream, (size_t)n);
    }
    if (stream->finishing) {
        end(stream, stream->reason);
    }
}

static void on_flush(struct kvb_event *event)
{
    struct kvp_stream *stream = kvb_container_of(event, struct kvp_stream, flush);
    write_out(stream);
    if (!stream->ending) {
        watch(stream);
    }
}

static void queue_frame(struct kvp_stream *stream, const struct kvb_frame *frame,
                        struct kvb_writer *writer)
{
    if (writer->status != KVB_OK) {
        end(stream, kvb_status_text(writer->status));
        return;
    }
    if (stream->out_bytes + writer->len > KVP_STREAM_OUT_MAX) {
        end(stream, "the peer does not read what it is sent");
        return;
    }
    struct chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL) {
        end(stream, kvb_status_text(KVB_ERR_NO_MEMORY));
        return;
    }
    kvb_frame_pack(frame, chunk->header);
    chunk->len = KVB_FRAME_HEADER_LEN + writer->len;
    chunk->payload = writer->data;
    writer->data = NULL;
    kvb_list_push_back(&stream->out, &chunk->link);
    stream->out_bytes += chunk->len;
    /* In a later turn, so that the answers of one turn go out together. */
    kvb_sched_post(stream->sched, &stream->flush);
}

void kvp_stream_send(struct kvp_stream *stream, uint16_t type, uint16_t flags, uint64_t seq,
                     struct kvb_writer *writer)
{
    struct kvb_frame frame = {
        .type = type, .flags = flags, .seq = seq, .len = (uint32_t)writer->len};
    if (!stream->ending && !stream->finishing) {
        queue_frame(stream, &frame, writer);
    }
    kvb_writer_cleanup(writer);
}

/* ---- in ---- */

/* Everything that is whole in the buffer is handed on; what is left over moves to its front. */
static void parse(struct kvp_stream *stream)
{
    size_t at = 0;
    kvb_status_t status = KVB_OK;
    while (!stream->ending && !stream->finishing) {
        if (!stream->have_frame) {
            if (stream->in_len - at < KVB_FRAME_HEADER_LEN) {
                break;
            }
            status = kvb_frame_unpack(stream->in + at, &stream->frame);
            if (status == KVB_OK) {
                status = stream->ops->header(stream->ctx, &stream->frame);
            }
            if (status != KVB_OK) {
                goto err_end;
            }
            at += KVB_FRAME_HEADER_LEN;
            if (stream->frame.len > 0) {
                stream->payload = malloc(stream->frame.len);
                if (stream->payload == NULL) {
                    status = KVB_ERR_NO_MEMORY;
                    goto err_end;
                }
            }
            stream->payload_len = 0;
            stream->have_frame = true;
        }
        size_t want = stream->frame.len - stream->payload_len;
        size_t have = stream->in_len - at;
        size_t n = want < have ? want : have;
        if (n > 0) {
            memcpy(stream->payload + stream->payload_len, stream->in + at, n);
        }
        stream->payload_len += n;
        at += n;
        if (stream->payload_len < stream->frame.len) {
            break;
        }
        stream->have_frame = false;
        uint8_t *payload = stream->payload;
        stream->payload = NULL;
        kvb_sched_timer_clear(stream->sched, &stream->bound); /* the next frame has its own */
        status = stream->ops->frame(stream->ctx, &stream->frame, payload);
        if (status != KVB_OK) {
            goto err_end;
        }
    }
    memmove(stream->in, stream->in + at, stream->in_len - at);
    stream->in_len -= at;
    if (!stream->have_frame && stream->in_len == 0) {
        while (stream->nfds > 0) {
            (void)close(stream->fds[--stream->nfds]);
        }
    }
    return;

err_end:
    end(stream, kvb_status_text(status));
}

/* Keeps what fits, closes the rest. NULL, or why not all could be taken. */
static const char *take_descriptors(struct kvp_stream *stream, struct msghdr *msg)
{
    bool fits = true;
    size_t came = 0;
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg != NULL; cmsg = CMSG_NXTHDR(msg, cmsg)) {
        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        came += n;
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof fd, sizeof fd);
            if (stream->nfds < KVP_STREAM_FDS_MAX) {
                stream->fds[stream->nfds++] = fd;
            } else {
                fits = false;
                (void)close(fd);
            }
        }
    }
    if ((msg->msg_flags & MSG_CTRUNC) != 0 && came < KVP_STREAM_FDS_MAX) {
        return "this daemon has no descriptor left for a region (ulimit -n)";
    }
    return fits && (msg->msg_flags & MSG_CTRUNC) == 0 ? NULL
                                                      : "more descriptors than anybody asked for";
}

/* One read, straight into the payload in progress and then into the buffer. False: nothing there.
 */
static bool read_some(struct kvp_stream *stream)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(KVP_STREAM_FDS_MAX * sizeof(int))];
    } control;
    struct iovec iov[2];
    size_t niov = 0;
    size_t direct = stream->have_frame ? stream->frame.len - stream->payload_len : 0;
    if (direct > 0) {
        iov[niov++] = (struct iovec){stream->payload + stream->payload_len, direct};
    }
    iov[niov++] = (struct iovec){stream->in + stream->in_len, IN_BYTES - stream->in_len};
    struct msghdr msg = {.msg_iov = iov,
                         .msg_iovlen = niov,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(stream->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR) {
            end(stream, "the connection was reset");
        }
        return false;
    }
    const char *untaken = take_descriptors(stream, &msg);
    if (untaken != NULL) {
        end(stream, untaken);
        return false;
    }
    if (n == 0) {
        end(stream, "the peer closed the connection");
        return false;
    }
    size_t got = (size_t)n;
    size_t into_payload = got < direct ? got : direct;
    stream->payload_len += into_payload;
    stream->in_len += got - into_payload;
    parse(stream);
    return true;
}

static void on_io(uv_poll_t *poll, int status, int events)
{
    struct kvp_stream *stream = poll->data;
    if (status < 0) {
        end(stream, "the connection was reset");
        return;
    }
    if ((events & UV_WRITABLE) != 0) {
        write_out(stream);
    }
    if ((events & (UV_READABLE | UV_DISCONNECT)) != 0 && !stream->finishing) {
        for (int i = 0; i < READS_PER_TURN && !stream->ending; i++) {
            if (stream->out_bytes > KVP_STREAM_OUT_HIGH || !read_some(stream)) {
                break;
            }
        }
    }
    if ((events & UV_DISCONNECT) != 0 && (events & UV_READABLE) == 0) {
        end(stream, "the peer closed the connection");
    }
    if (!stream->ending) {
        watch(stream);
    }
}

kvb_status_t kvp_stream_create(struct kvb_sched *sched, struct uv_loop_s *loop, int fd,
                               const struct kvp_stream_ops *ops, void *ctx,
                               struct kvp_stream **stream_p)
{
    struct kvp_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    stream->sched = sched;
    stream->ops = ops;
    stream->ctx = ctx;
    stream->fd = fd;
    kvb_list_init(&stream->out);
    kvb_event_init(&stream->ended, on_ended);
    kvb_event_init(&stream->flush, on_flush);
    kvb_timer_init(&stream->bound, on_bound);
    if (uv_poll_init(loop, &stream->poll, fd) != 0) {
        free(stream);
        return KVB_ERR_IO;
    }
    stream->poll.data = stream;
    watch(stream); /* a failure ends it, by its event */
    *stream_p = stream;
    return KVB_OK;
}

int kvp_stream_take_fd(struct kvp_stream *stream)
{
    if (stream->nfds == 0) {
        return -1;
    }
    int fd = stream->fds[0];
    memmove(stream->fds, stream->fds + 1, --stream->nfds * sizeof stream->fds[0]);
    return fd;
}

void kvp_stream_close(struct kvp_stream *stream, const char *reason)
{
    end(stream, reason);
}

void kvp_stream_finish(struct kvp_stream *stream, const char *reason)
{
    if (stream->ending || stream->finishing) {
        return;
    }
    stream->finishing = true;
    (void)snprintf(stream->reason, sizeof stream->reason, "%s", reason);
    kvb_sched_timer_set(stream->sched, &stream->bound,
                        kvb_deadline_in_ms(stream->sched->clock, KVP_STREAM_FLUSH_MS));
    kvb_sched_post(stream->sched, &stream->flush);
}

bool kvp_stream_over(const struct kvp_stream *stream)
{
    struct pollfd peer = {.fd = stream->fd, .events = POLLRDHUP};
    return stream->ending || (poll(&peer, 1, 0) > 0 && peer.revents != 0);
}

int kvp_stream_take_socket(struct kvp_stream *stream)
{
    kvb_assert(stream->released);
    int fd = stream->fd;
    stream->fd = -1;
    return fd;
}

void kvp_stream_destroy(struct kvp_stream *stream)
{
    kvb_assert(stream->released);
    if (stream->fd >= 0) {
        (void)close(stream->fd);
    }
    free(stream);
}
