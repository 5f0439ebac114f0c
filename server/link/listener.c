/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"
#include "listen.h"
#include "session.h"

#include "base/assert.h"
#include "base/log.h"

#include <uv.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ACCEPTS_PER_TURN = 16, ACCEPT_RETRY_MS = 100 };

struct kvp_listener {
    uv_poll_t poll;
    struct kvb_timer retry; /* out of descriptors: nothing is accepted until then */
    struct kvp_link *link;
    int fd;
    int lock_fd;
    char path[KVP_UNIX_PATH_MAX];
};

static bool peer_allowed(const struct kvp_link *link, int fd)
{
    if (link->config.any_uid) {
        return true;
    }
    struct ucred peer;
    socklen_t len = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0) {
        return false;
    }
    if (peer.uid == 0 || peer.uid == geteuid()) {
        return true;
    }
    KVB_LOG_LIMITED(WARN, "connection refused: another user", KVB_U64("uid", peer.uid),
                    KVB_I64("pid", peer.pid));
    return false;
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    (void)events;
    struct kvp_listener *listener = poll->data;
    struct kvp_link *link = listener->link;
    if (status < 0) {
        KVB_LOG_LIMITED(ERROR, "engine socket", KVB_STR("reason", uv_strerror(status)));
        return;
    }
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
                KVB_LOG_LIMITED(ERROR, "accept on the engine socket", KVB_ERRNO(errno));
                /* Who waits keeps the descriptor readable: looking again at once would spin. */
                (void)uv_poll_stop(&listener->poll);
                kvb_sched_timer_set(link->config.sched, &listener->retry,
                                    kvb_deadline_in_ms(link->config.sched->clock, ACCEPT_RETRY_MS));
            }
            return;
        }
        if (!peer_allowed(link, fd)) {
            (void)close(fd);
        } else if (link->nsessions >= link->config.sessions_max) {
            KVB_LOG_LIMITED(WARN, "connection refused: too many",
                            KVB_U64("limit", link->config.sessions_max));
            (void)close(fd);
        } else {
            kvp_session_open(link, fd);
        }
    }
}

static void on_retry(struct kvb_timer *timer)
{
    struct kvp_listener *listener = kvb_container_of(timer, struct kvp_listener, retry);
    int rc = uv_poll_start(&listener->poll, UV_READABLE, on_connection);
    kvb_assert(rc == 0); /* it was started before */
}

kvb_status_t kvp_listener_create(struct kvp_link *link, struct kvp_listener **listener_p)
{
    int rc;
    kvb_status_t status;
    struct kvp_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    listener->link = link;
    kvb_timer_init(&listener->retry, on_retry);
    status = kvp_unix_lock("engine-socket", link->config.path, &listener->lock_fd);
    if (status != KVB_OK) {
        goto err_free;
    }
    (void)snprintf(listener->path, sizeof listener->path, "%s", link->config.path);
    if (link->config.devices != NULL && link->config.devices->clear != NULL) {
        status = link->config.devices->clear(link->config.devices_ctx);
    }
    if (status == KVB_OK) {
        status = kvp_unix_bind("engine-socket", listener->path, link->config.any_uid ? 0666 : 0600,
                               &listener->fd);
    }
    if (status != KVB_OK) {
        goto err_lock;
    }
    status = KVB_ERR_IO;
    if (uv_poll_init(link->config.loop, &listener->poll, listener->fd) != 0) {
        goto err_socket;
    }
    listener->poll.data = listener;
    rc = uv_poll_start(&listener->poll, UV_READABLE, on_connection);
    kvb_assert(rc == 0); /* a handle that was just made for a descriptor that can be polled */
    *listener_p = listener;
    return KVB_OK;

err_socket:
    (void)unlink(listener->path);
    (void)close(listener->fd);
err_lock:
    (void)close(listener->lock_fd);
err_free:
    free(listener);
    return status;
}

static void on_uv_closed(uv_handle_t *handle)
{
    struct kvp_listener *listener = handle->data;
    (void)close(listener->lock_fd);
    free(listener);
}

void kvp_listener_destroy(struct kvp_listener *listener)
{
    /* Still ours: the lock is held until the handle is gone. */
    (void)unlink(listener->path);
    kvb_sched_timer_clear(listener->link->config.sched, &listener->retry);
    uv_close((uv_handle_t *)&listener->poll, on_uv_closed);
    (void)close(listener->fd);
}
