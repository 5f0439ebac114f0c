/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKOFF_MIN_MS 50u
#define BACKOFF_MAX_MS 2000u
#define READ_CHUNK     (64u << 10)
#define READS_PER_TURN 16u        /* then the engine has its turn again */
#define BUFFER_KEEP    (1u << 20) /* a larger input buffer is given back when it is empty */
#define SEND_VECTORS   16

void kvplane_session_error(struct kvplane *kv, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(kv->error, sizeof kv->error, format, args);
    va_end(args);
}

/* ---- timer and poll set ---- */

static void timer_set(struct kvplane *kv, uint64_t ns)
{
    struct itimerspec when = {
        .it_value = {.tv_sec = (time_t)(ns / KVB_NS_PER_S), .tv_nsec = (long)(ns % KVB_NS_PER_S)}};
    int rc = timerfd_settime(kv->timer_fd, 0, &when, NULL);
    kvb_assert(rc == 0);
    kv->timer_armed = ns != 0;
}

static bool timer_fired(struct kvplane *kv)
{
    uint64_t times;
    if (!kv->timer_armed || read(kv->timer_fd, &times, sizeof times) != sizeof times) {
        return false;
    }
    kv->timer_armed = false;
    return true;
}

static void poll_for(struct kvplane *kv, bool writing)
{
    if (kv->want_write == writing) {
        return;
    }
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0u)};
    int rc = epoll_ctl(kv->epoll_fd, EPOLL_CTL_MOD, kv->socket_fd, &event);
    kvb_assert(rc == 0);
    kv->want_write = writing;
}

/* Between half and one and a half times the back-off, which doubles: engines that lost the same
 * daemon do not come back at the same moment. */
static void wait_and_retry(struct kvplane *kv)
{
    uint32_t draw;
    kvb_random_real.fill(kvb_random_real.ctx, &draw, sizeof draw);
    uint64_t base_ns = kv->backoff_ms * KVB_NS_PER_MS;
    timer_set(kv, base_ns / 2 + base_ns * (draw % 1024) / 1024);
    kv->backoff_ms = kv->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : kv->backoff_ms * 2;
    kv->state = SESSION_WAITING;
}

kvb_status_t kvplane_session_start(struct kvplane *kv)
{
    if (kv->state != SESSION_DOWN) {
        return KVB_ERR_BAD_STATE;
    }
    kv->error[0] = '\0';
    bool short_lived = kv->attached_ns != 0 && kvb_now_ns(&kvb_clock_real) - kv->attached_ns <
                                                   BACKOFF_MAX_MS * KVB_NS_PER_MS;
    kv->attached_ns = 0;
    if (short_lived) {
        wait_and_retry(kv); /* a daemon that throws it out each time is not asked without pause */
        return KVB_OK;
    }
    kv->backoff_ms = BACKOFF_MIN_MS;
    kv->state = SESSION_WAITING;
    timer_set(kv, 1); /* the first attempt is made by kvplane_process() */
    return KVB_OK;
}

/* ---- output ---- */

static void out_free(struct kvplane *kv, struct out *out)
{
    kv->out_bytes -= out->len;
    kvb_list_remove(&out->link);
    if (out->fd >= 0) {
        close(out->fd);
    }
    free(out->data);
    free(out);
}

static void out_drop(struct kvplane *kv)
{
    kvb_list_each(&kv->out, link)
    {
        out_free(kv, kvb_container_of(link, struct out, link));
    }
}

void kvplane_frame_begin(struct kvb_writer *writer, uint16_t type)
{
    static const uint8_t header[KVB_FRAME_HEADER_LEN];
    kvb_writer_init(writer, KVB_FRAME_HEADER_LEN + kvb_link_info(type)->max);
    kvb_put_bytes(writer, header, sizeof header);
}

kvb_status_t kvplane_frame_send(struct kvplane *kv, struct kvb_writer *writer, uint16_t type,
                                uint16_t flags, uint64_t seq, int fd)
{
    kvb_status_t status = writer->status;
    struct out *out = status == KVB_OK ? malloc(sizeof *out) : NULL;
    if (out == NULL) {
        kvb_writer_cleanup(writer);
        if (fd >= 0) {
            close(fd);
        }
        return status == KVB_OK ? KVB_ERR_NO_MEMORY : status;
    }
    struct kvb_frame frame = {.type = type,
                              .flags = flags,
                              .seq = seq,
                              .len = (uint32_t)(writer->len - KVB_FRAME_HEADER_LEN)};
    kvb_frame_pack(&frame, writer->data);
    *out = (struct out){.fd = fd, .data = writer->data, .len = writer->len};
    *writer = (struct kvb_writer){0};
    kvb_list_push_back(&kv->out, &out->link);
    kv->out_bytes += out->len;
    poll_for(kv, true);
    return KVB_OK;
}

/* Frames up to the next one that brings a descriptor: that must begin its own message. */
static size_t gather(struct kvplane *kv, struct iovec vectors[SEND_VECTORS])
{
    size_t n = 0;
    kvb_list_each(&kv->out, link)
    {
        struct out *out = kvb_container_of(link, struct out, link);
        if (n == SEND_VECTORS || (n > 0 && out->fd >= 0)) {
            break;
        }
        vectors[n++] = (struct iovec){out->data + out->sent, out->len - out->sent};
    }
    return n;
}

static ssize_t send_some(struct kvplane *kv, struct out *first)
{
    struct iovec vectors[SEND_VECTORS];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct msghdr msg = {.msg_iov = vectors, .msg_iovlen = gather(kv, vectors)};
    if (first->fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(cmsg), &first->fd, sizeof(int));
    }
    ssize_t sent = sendmsg(kv->socket_fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0 && first->fd >= 0) {
        close(first->fd); /* it went with the first byte */
        first->fd = -1;
    }
    return sent;
}

static void out_advance(struct kvplane *kv, size_t sent)
{
    while (sent > 0) {
        struct out *out = kvb_container_of(kvb_list_first(&kv->out), struct out, link);
        size_t left = out->len - out->sent;
        if (sent < left) {
            out->sent += sent;
            return;
        }
        sent -= left;
        out_free(kv, out);
    }
}

static void flush(struct kvplane *kv)
{
    for (struct kvb_list *link; (link = kvb_list_first(&kv->out)) != NULL;) {
        ssize_t sent = send_some(kv, kvb_container_of(link, struct out, link));
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0 && (errno == EAGAIN || errno == ETOOMANYREFS)) {
            return; /* the poll set goes on asking */
        }
        if (sent < 0) {
            /* The daemon is gone, but its last replies may wait to be read: reading finds the end.
             */
            out_drop(kv);
            break;
        }
        out_advance(kv, (size_t)sent);
    }
    poll_for(kv, false);
}

/* ---- the end of a session ---- */

static void socket_close(struct kvplane *kv)
{
    out_drop(kv);
    if (kv->socket_fd >= 0) {
        close(kv->socket_fd); /* also leaves the poll set */
    }
    kv->socket_fd = -1;
    kv->want_write = false;
    kv->in_len = 0;
    kv->doom = KVB_OK;
    timer_set(kv, 0);
}

void kvplane_session_close(struct kvplane *kv, kvb_status_t result)
{
    socket_close(kv);
    kv->state = SESSION_DOWN;
    kvplane_upcalls_orphan(kv);
    kvplane_calls_fail_all(kv, result);
}

/* The daemon's end is closed. */
static void on_gone(struct kvplane *kv)
{
    if (kv->state == SESSION_GREETING) {
        kvplane_session_error(kv, "the daemon at %s hung up before it answered", kv->path);
        socket_close(kv);
        wait_and_retry(kv);
        return;
    }
    kvb_status_t reason = kv->state == SESSION_ENDING ? kv->end_reason : KVB_ERR_DISCONNECTED;
    if (kv->state == SESSION_ATTACHED) {
        kvplane_session_error(kv, "the daemon closed the connection");
    }
    kvplane_session_close(kv, KVB_ERR_DISCONNECTED);
    if (kv->callbacks->disconnected != NULL) {
        kv->callbacks->disconnected(kv->ctx, reason);
    }
}

/* We end it. Before hello was answered nothing of ours is with the daemon. */
static void end(struct kvplane *kv, kvb_status_t reason, const char *why)
{
    kvplane_session_error(kv, "%s", why);
    if (kv->state == SESSION_GREETING) {
        socket_close(kv);
        wait_and_retry(kv);
        return;
    }
    out_drop(kv);
    poll_for(kv, false);
    shutdown(kv->socket_fd, SHUT_WR);
    kv->end_reason = reason;
    kv->state = SESSION_ENDING;
}

void kvplane_session_detach(struct kvplane *kv)
{
    end(kv, KVB_ERR_CANCELED, "detached by the engine");
}

void kvplane_session_doom(struct kvplane *kv, kvb_status_t reason)
{
    kv->doom = reason;
    timer_set(kv, 1);
}

/* ---- attaching ---- */

static void refuse(struct kvplane *kv, kvb_status_t result)
{
    socket_close(kv);
    kv->state = SESSION_DOWN;
    if (kv->callbacks->attached != NULL) {
        kv->callbacks->attached(kv->ctx, result);
    }
}

static kvb_status_t send_hello(struct kvplane *kv)
{
    kvb_status_t status = kvplane_upcalls_state(kv, &kv->hello.state);
    if (status != KVB_OK || kv->state != SESSION_GREETING) {
        return status;
    }
    struct kvb_writer writer;
    kvplane_frame_begin(&writer, KVB_LINK_HELLO);
    kvb_link_hello_pack(&writer, &kv->hello);
    kv->hello_seq = kv->next_seq++ << KVPLANE_SLOT_BITS;
    return kvplane_frame_send(kv, &writer, KVB_LINK_HELLO, 0, kv->hello_seq, -1);
}

static bool connect_socket(struct kvplane *kv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, kv->path, sizeof kv->path);
    struct epoll_event event = {.events = EPOLLIN};
    kv->socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (kv->socket_fd < 0 ||
        connect(kv->socket_fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        epoll_ctl(kv->epoll_fd, EPOLL_CTL_ADD, kv->socket_fd, &event) != 0) {
        kvplane_session_error(kv, "cannot connect to %s: %s", kv->path, strerror(errno));
        socket_close(kv);
        return false;
    }
    return true;
}

static void greet(struct kvplane *kv)
{
    if (!connect_socket(kv)) {
        wait_and_retry(kv);
        return;
    }
    kv->state = SESSION_GREETING;
    kvb_status_t status = send_hello(kv);
    if (kv->state != SESSION_GREETING) {
        return; /* the engine left its lineage when it was asked for its state: greeted anew */
    }
    if (status == KVB_ERR_INVALID) {
        refuse(kv, status);
    } else if (status != KVB_OK) {
        end(kv, status, kvb_status_text(status));
    } else {
        timer_set(kv, kvb_link_info(KVB_LINK_HELLO)->bound_ms * KVB_NS_PER_MS);
    }
}

static kvb_status_t on_hello_reply(struct kvplane *kv, const struct kvb_frame *frame,
                                   struct kvb_span payload)
{
    struct kvb_link_hello_reply reply;
    if (frame->type != KVB_LINK_HELLO || frame->flags != KVB_FRAME_REPLY ||
        frame->seq != kv->hello_seq) {
        return KVB_ERR_PROTOCOL;
    }
    kvb_status_t status = kvb_link_hello_reply_unpack(payload, &reply);
    if (status != KVB_OK) {
        return status;
    }
    if (reply.status == KVB_ERR_AGAIN) {
        end(kv, KVB_ERR_AGAIN, reply.reason);
        return KVB_OK;
    }
    if (reply.status != KVB_OK) {
        kvplane_session_error(kv, "%s", reply.reason);
        refuse(kv, KVB_ERR_REFUSED);
        return KVB_OK;
    }
    timer_set(kv, 0);
    kv->state = SESSION_ATTACHED;
    kv->attached_ns = kvb_now_ns(&kvb_clock_real);
    kv->load_told = !kv->load_known;
    status = kvplane_calls_report(kv);
    if (status == KVB_OK && kv->callbacks->attached != NULL) {
        kv->callbacks->attached(kv->ctx, KVB_OK);
    }
    return status;
}

/* ---- input ---- */

static kvb_status_t on_frame(struct kvplane *kv, const struct kvb_frame *frame,
                             struct kvb_span payload)
{
    if (kv->state == SESSION_GREETING) {
        return on_hello_reply(kv, frame, payload);
    }
    return frame->flags == KVB_FRAME_REPLY ? kvplane_calls_reply(kv, frame, payload)
                                           : kvplane_upcalls_request(kv, frame, payload);
}

/* Handles the whole frames at the start of the buffer; *need_p: bytes that the next one needs. */
static kvb_status_t parse(struct kvplane *kv, size_t *need_p)
{
    size_t at = 0;
    kvb_status_t status = KVB_OK;
    size_t need = KVB_FRAME_HEADER_LEN;
    while (status == KVB_OK && kv->in_len - at >= KVB_FRAME_HEADER_LEN) {
        struct kvb_frame frame;
        status = kvb_frame_unpack(kv->in + at, &frame);
        const struct kvb_link_info *info = status == KVB_OK ? kvb_link_info(frame.type) : NULL;
        if (info == NULL || frame.len > info->max) {
            status = KVB_ERR_PROTOCOL;
            break;
        }
        need = KVB_FRAME_HEADER_LEN + (size_t)frame.len;
        if (kv->in_len - at < need) {
            break;
        }
        status =
            on_frame(kv, &frame, (struct kvb_span){kv->in + at + KVB_FRAME_HEADER_LEN, frame.len});
        if (kv->state != SESSION_ATTACHED) {
            return status; /* refused: what else came does not matter */
        }
        at += need;
        need = KVB_FRAME_HEADER_LEN;
    }
    memmove(kv->in, kv->in + at, kv->in_len - at);
    kv->in_len -= at;
    *need_p = need;
    return status;
}

static bool reserve(struct kvplane *kv, size_t need)
{
    size_t cap = need < READ_CHUNK ? READ_CHUNK : need;
    if (kv->in_cap > BUFFER_KEEP && kv->in_len == 0 && cap == READ_CHUNK) {
        free(kv->in);
        kv->in = NULL;
        kv->in_cap = 0;
    }
    if (kv->in_cap >= cap) {
        return true;
    }
    uint8_t *in = realloc(kv->in, cap);
    if (in == NULL) {
        return false;
    }
    kv->in = in;
    kv->in_cap = cap;
    return true;
}

/* One read. False: nothing (more) to read for now, or no session any more. */
static bool receive(struct kvplane *kv)
{
    if (!reserve(kv, KVB_FRAME_HEADER_LEN)) {
        end(kv, KVB_ERR_NO_MEMORY, "out of memory");
        return false;
    }
    ssize_t n = recv(kv->socket_fd, kv->in + kv->in_len, kv->in_cap - kv->in_len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return errno == EINTR;
    }
    if (n <= 0) {
        on_gone(kv);
        return false;
    }
    if (kv->state == SESSION_ENDING) {
        return true; /* thrown away */
    }
    kv->in_len += (size_t)n;
    size_t need = 0;
    kvb_status_t status = parse(kv, &need);
    if (status == KVB_ERR_PROTOCOL) {
        end(kv, status, "the daemon sent what the protocol does not allow");
    } else if (status != KVB_OK) {
        end(kv, status, kvb_status_text(status));
    } else if (kv->state == SESSION_ATTACHED || kv->state == SESSION_GREETING) {
        if (!reserve(kv, need)) {
            end(kv, KVB_ERR_NO_MEMORY, "out of memory");
        }
    }
    kv->in_len = kv->state == SESSION_ENDING ? 0 : kv->in_len;
    return kv->socket_fd >= 0;
}

void kvplane_session_turn(struct kvplane *kv)
{
    if (timer_fired(kv)) {
        if (kv->state == SESSION_WAITING) {
            greet(kv);
        } else if (kv->state == SESSION_GREETING) {
            end(kv, KVB_ERR_TIMEOUT, "the daemon did not answer hello in time");
        }
    }
    if (kv->doom != KVB_OK && kv->state == SESSION_ATTACHED) {
        end(kv, kv->doom, kvb_status_text(kv->doom));
    }
    if (kv->socket_fd >= 0) {
        flush(kv);
        for (uint32_t i = 0; i < READS_PER_TURN && receive(kv); i++) {
        }
    }
    if (kv->socket_fd >= 0) {
        flush(kv); /* what the callbacks asked and answered */
    }
}
