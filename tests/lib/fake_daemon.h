/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_DAEMON_H
#define TESTS_FAKE_DAEMON_H

/*
 * The daemon's side of the engine link, scripted by a test in the same thread: it listens on a
 * Unix socket in a temporary folder, takes one frame at a time, and sends what the test tells it.
 * While it waits, it lets the library work. Nothing waits for longer than FAKE_DAEMON_WAIT_S.
 */
#include "base/assert.h"
#include "base/frame.h"
#include "base/link.h"
#include "kvplane.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define FAKE_DAEMON_WAIT_S 10

struct fake_daemon {
    char folder[64];
    char path[100];
    int listener; /* -1: not listening */
    int fd;       /* -1: no connection */
    int passed;   /* descriptor that came with the last frame; -1: none; owned */
    uint64_t next_seq;
    struct kvb_frame frame; /* last one taken */
    uint8_t *payload;
};

static inline uint64_t fake_now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec;
}

static inline void fake_daemon_listen(struct fake_daemon *daemon)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, daemon->path);
    unlink(daemon->path);
    daemon->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int rc = bind(daemon->listener, (const struct sockaddr *)&address, sizeof address);
    kvb_assert(rc == 0);
    rc = listen(daemon->listener, 4);
    kvb_assert(rc == 0);
}

static inline void fake_daemon_init(struct fake_daemon *daemon)
{
    *daemon = (struct fake_daemon){.listener = -1, .fd = -1, .passed = -1, .next_seq = 1};
    strcpy(daemon->folder, "/tmp/kvplane-test-XXXXXX");
    char *made = mkdtemp(daemon->folder);
    kvb_assert(made != NULL);
    snprintf(daemon->path, sizeof daemon->path, "%s/engine.sock", daemon->folder);
}

static inline int fake_daemon_take_passed(struct fake_daemon *daemon)
{
    int fd = daemon->passed;
    daemon->passed = -1;
    return fd;
}

static inline void fake_daemon_hang_up(struct fake_daemon *daemon)
{
    if (daemon->fd >= 0) {
        close(daemon->fd);
    }
    daemon->fd = -1;
}

static inline void fake_daemon_stop_listening(struct fake_daemon *daemon)
{
    if (daemon->listener >= 0) {
        close(daemon->listener);
        unlink(daemon->path);
    }
    daemon->listener = -1;
}

static inline void fake_daemon_cleanup(struct fake_daemon *daemon)
{
    fake_daemon_hang_up(daemon);
    fake_daemon_stop_listening(daemon);
    if (daemon->passed >= 0) {
        close(daemon->passed);
    }
    free(daemon->payload);
    rmdir(daemon->folder);
}

/* Lets the library work once, for a moment at most. */
static inline void fake_daemon_turn(struct kvplane *kv)
{
    if (kv != NULL) {
        (void)kvplane_wait(kv, 1);
    }
}

/* Waits for a connection. False: none came. */
static inline bool fake_daemon_accept(struct fake_daemon *daemon, struct kvplane *kv)
{
    uint64_t deadline_s = fake_now_s() + FAKE_DAEMON_WAIT_S;
    while (fake_now_s() < deadline_s) {
        daemon->fd = accept4(daemon->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (daemon->fd >= 0) {
            return true;
        }
        fake_daemon_turn(kv);
    }
    return false;
}

/* Reads exactly len bytes. False: the stream ended, or nothing came. */
static inline bool fake_daemon_read(struct fake_daemon *daemon, struct kvplane *kv, void *buf,
                                    size_t len)
{
    uint64_t deadline_s = fake_now_s() + FAKE_DAEMON_WAIT_S;
    size_t have = 0;
    while (have < len && fake_now_s() < deadline_s) {
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec vector = {(char *)buf + have, len - have};
        struct msghdr msg = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
        ssize_t n = recvmsg(daemon->fd, &msg, MSG_CMSG_CLOEXEC);
        if (n == 0) {
            return false;
        }
        if (n < 0) {
            fake_daemon_turn(kv);
            continue;
        }
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        if (cmsg != NULL) {
            kvb_assert(daemon->passed < 0);
            memcpy(&daemon->passed, CMSG_DATA(cmsg), sizeof(int));
        }
        have += (size_t)n;
    }
    return have == len;
}

/* Takes the next frame. False: the stream ended or nothing came. */
static inline bool fake_daemon_take(struct fake_daemon *daemon, struct kvplane *kv)
{
    uint8_t header[KVB_FRAME_HEADER_LEN];
    if (!fake_daemon_read(daemon, kv, header, sizeof header) ||
        kvb_frame_unpack(header, &daemon->frame) != KVB_OK) {
        return false;
    }
    free(daemon->payload);
    daemon->payload = malloc(daemon->frame.len + 1);
    return fake_daemon_read(daemon, kv, daemon->payload, daemon->frame.len);
}

static inline struct kvb_span fake_daemon_payload(const struct fake_daemon *daemon)
{
    return (struct kvb_span){daemon->payload, daemon->frame.len};
}

static inline void fake_daemon_send_bytes(struct fake_daemon *daemon, struct kvplane *kv,
                                          const void *data, size_t len)
{
    const char *at = data;
    while (len > 0) {
        ssize_t n = send(daemon->fd, at, len, MSG_NOSIGNAL);
        if (n < 0) {
            fake_daemon_turn(kv);
            continue;
        }
        at += n;
        len -= (size_t)n;
    }
}

/* Sends a frame; takes the writer's bytes. */
static inline void fake_daemon_send(struct fake_daemon *daemon, struct kvplane *kv, uint16_t type,
                                    uint16_t flags, uint64_t seq, struct kvb_writer *writer)
{
    uint8_t header[KVB_FRAME_HEADER_LEN];
    struct kvb_frame frame = {type, flags, seq, (uint32_t)writer->len};
    kvb_assert(writer->status == KVB_OK);
    kvb_frame_pack(&frame, header);
    fake_daemon_send_bytes(daemon, kv, header, sizeof header);
    fake_daemon_send_bytes(daemon, kv, writer->data, writer->len);
    kvb_writer_cleanup(writer);
}

/* Answers the request `frame` with what the writer holds. */
static inline void fake_daemon_reply(struct fake_daemon *daemon, struct kvplane *kv,
                                     const struct kvb_frame *frame, struct kvb_writer *writer)
{
    fake_daemon_send(daemon, kv, frame->type, KVB_FRAME_REPLY, frame->seq, writer);
}

static inline void fake_daemon_reply_status(struct fake_daemon *daemon, struct kvplane *kv,
                                            const struct kvb_frame *frame, kvb_status_t status)
{
    struct kvb_writer writer;
    kvb_writer_init(&writer, 64);
    kvb_link_status_pack(&writer, status);
    fake_daemon_reply(daemon, kv, frame, &writer);
}

/* Takes HELLO and answers it. */
static inline bool fake_daemon_greet(struct fake_daemon *daemon, struct kvplane *kv,
                                     kvb_status_t status, const char *reason,
                                     struct kvb_link_hello *hello_p)
{
    if (!fake_daemon_accept(daemon, kv) || !fake_daemon_take(daemon, kv) ||
        daemon->frame.type != KVB_LINK_HELLO ||
        kvb_link_hello_unpack(fake_daemon_payload(daemon), hello_p) != KVB_OK) {
        return false;
    }
    struct kvb_link_hello_reply reply = {.status = status, .session = 1};
    strcpy(reply.reason, reason);
    struct kvb_writer writer;
    kvb_writer_init(&writer, 1024);
    kvb_link_hello_reply_pack(&writer, &reply);
    fake_daemon_reply(daemon, kv, &daemon->frame, &writer);
    return true;
}

/* Sends a request and takes its reply. False: something else came, or nothing. */
static inline bool fake_daemon_ask(struct fake_daemon *daemon, struct kvplane *kv, uint16_t type,
                                   struct kvb_writer *writer)
{
    uint64_t seq = daemon->next_seq++;
    fake_daemon_send(daemon, kv, type, 0, seq, writer);
    return fake_daemon_take(daemon, kv) && daemon->frame.type == type &&
           daemon->frame.flags == KVB_FRAME_REPLY && daemon->frame.seq == seq;
}

/* Waits until a condition holds; false if it never does. */
#define FAKE_DAEMON_UNTIL(kv, condition)                                                           \
    ({                                                                                             \
        uint64_t fake_deadline_s_ = fake_now_s() + FAKE_DAEMON_WAIT_S;                             \
        while (!(condition) && fake_now_s() < fake_deadline_s_) {                                  \
            fake_daemon_turn(kv);                                                                  \
        }                                                                                          \
        (condition);                                                                               \
    })

#endif
