/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"
#include "session.h"

#include "base/assert.h"
#include "base/log.h"

#include <uv.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/*
 * The lock file, not the socket, says who is the daemon: the lock ends with its process, however
 * that ends, while a socket file stays. Whoever holds the lock may replace the socket. The lock
 * file is never removed: a second daemon could have it open already.
 */
enum { BACKLOG = 64, ACCEPTS_PER_TURN = 16, ACCEPT_RETRY_MS = 100 };

struct kvp_listener {
    uv_poll_t poll;
    struct kvb_timer retry; /* out of descriptors: nothing is accepted until then */
    struct kvp_link *link;
    int fd;
    int lock_fd;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
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

static kvb_status_t take_lock(const char *path, int *fd_p)
{
    char name[sizeof(struct sockaddr_un) + 8];
    (void)snprintf(name, sizeof name, "%s.lock", path);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        KVB_LOG(ERROR, "lock file of the engine socket", KVB_STR("path", name), KVB_ERRNO(errno));
        return KVB_ERR_IO;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        KVB_LOG(ERROR, "another daemon serves this engine socket", KVB_STR("path", path));
        (void)close(fd);
        return KVB_ERR_BUSY;
    }
    *fd_p = fd;
    return KVB_OK;
}

static kvb_status_t bind_socket(const char *path, int *fd_p)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    struct stat old;
    if (lstat(path, &old) == 0) {
        if (!S_ISSOCK(old.st_mode)) {
            KVB_LOG(ERROR, "engine socket: there is something else at this path",
                    KVB_STR("path", path));
            return KVB_ERR_INVALID;
        }
        (void)unlink(path); /* bind says what is wrong if this failed */
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        KVB_LOG(ERROR, "engine socket", KVB_ERRNO(errno));
        return KVB_ERR_IO;
    }
    /* Never open to others, not even between bind and chmod. No other thread runs yet. */
    mode_t mask = umask(0177);
    int rc = bind(fd, (const struct sockaddr *)&address, sizeof address);
    int error = errno;
    (void)umask(mask);
    if (rc == 0 && listen(fd, BACKLOG) == 0) {
        *fd_p = fd;
        return KVB_OK;
    }
    KVB_LOG(ERROR, "engine socket", KVB_STR("path", path), KVB_ERRNO(rc == 0 ? errno : error));
    (void)close(fd);
    return KVB_ERR_IO;
}

kvb_status_t kvp_listener_create(struct kvp_link *link, struct kvp_listener **listener_p)
{
    int rc;
    kvb_status_t status = KVB_ERR_INVALID;
    struct kvp_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    listener->link = link;
    kvb_timer_init(&listener->retry, on_retry);
    if (strlen(link->config.path) >= sizeof listener->path) {
        KVB_LOG(ERROR, "engine socket: path is too long", KVB_STR("path", link->config.path),
                KVB_U64("limit", sizeof listener->path - 1));
        goto err_free;
    }
    (void)snprintf(listener->path, sizeof listener->path, "%s", link->config.path);
    status = take_lock(listener->path, &listener->lock_fd);
    if (status != KVB_OK) {
        goto err_free;
    }
    if (link->config.devices != NULL && link->config.devices->clear != NULL) {
        status = link->config.devices->clear(link->config.devices_ctx);
    }
    if (status == KVB_OK) {
        status = bind_socket(listener->path, &listener->fd);
    }
    if (status != KVB_OK) {
        goto err_lock;
    }
    if (link->config.any_uid && chmod(listener->path, 0666) != 0) {
        KVB_LOG(ERROR, "engine socket", KVB_STR("path", listener->path), KVB_ERRNO(errno));
        status = KVB_ERR_IO;
        goto err_socket;
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
