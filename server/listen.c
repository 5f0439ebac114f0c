/* SPDX-License-Identifier: Apache-2.0 */
#include "listen.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LISTEN_BACKLOG 1024

_Static_assert(sizeof(((struct sockaddr_un *)0)->sun_path) == KVP_UNIX_PATH_MAX, "sun_path");

kvb_status_t kvp_listen(const char *host, uint16_t port, int *fd_p, uint16_t *port_p)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[8];
    int on = 1;
    kvb_status_t status = KVB_ERR_IO;

    snprintf(service, sizeof service, "%u", port);
    int error = getaddrinfo(host, service, &hints, &found);
    if (error != 0) {
        KVB_LOG(ERROR, "not an address to listen on", KVB_STR("host", host),
                KVB_STR("cause", gai_strerror(error)));
        return KVB_ERR_INVALID;
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, LISTEN_BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &len) != 0) {
        status = errno == EADDRINUSE                  ? KVB_ERR_BUSY
                 : errno == EADDRNOTAVAIL             ? KVB_ERR_INVALID
                 : errno == EMFILE || errno == ENFILE ? KVB_ERR_LIMIT
                                                      : KVB_ERR_IO;
        KVB_LOG(ERROR, "cannot listen", KVB_STR("host", host), KVB_U64("port", port),
                KVB_ERRNO(errno));
        goto err_socket;
    }
    char text[8];
    if (getnameinfo((struct sockaddr *)&bound, len, NULL, 0, text, sizeof text, NI_NUMERICSERV) !=
        0) {
        goto err_socket;
    }
    *fd_p = fd;
    *port_p = (uint16_t)strtoul(text, NULL, 10);
    freeaddrinfo(found);
    return KVB_OK;

err_socket:
    if (fd >= 0) {
        close(fd);
    }
    freeaddrinfo(found);
    return status;
}

kvb_status_t kvp_unix_lock(const char *key, const char *path, int *lock_fd_p)
{
    char name[KVP_UNIX_PATH_MAX + 8];
    if (strlen(path) >= KVP_UNIX_PATH_MAX) {
        KVB_LOG(ERROR, "the path of a Unix socket is too long", KVB_STR("key", key),
                KVB_STR("path", path), KVB_U64("limit", KVP_UNIX_PATH_MAX - 1));
        return KVB_ERR_INVALID;
    }
    (void)snprintf(name, sizeof name, "%s.lock", path);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        KVB_LOG(ERROR, "the lock file of a Unix socket", KVB_STR("key", key), KVB_STR("path", name),
                KVB_ERRNO(errno));
        return KVB_ERR_IO;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        KVB_LOG(ERROR, "another process serves this Unix socket", KVB_STR("key", key),
                KVB_STR("path", path));
        (void)close(fd);
        return KVB_ERR_BUSY;
    }
    *lock_fd_p = fd;
    return KVB_OK;
}

kvb_status_t kvp_unix_bind(const char *key, const char *path, mode_t mode, int *fd_p)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    struct stat old;
    if (lstat(path, &old) == 0) {
        if (!S_ISSOCK(old.st_mode)) {
            KVB_LOG(ERROR, "there is something else where a Unix socket would be",
                    KVB_STR("key", key), KVB_STR("path", path));
            return KVB_ERR_INVALID;
        }
        (void)unlink(path); /* bind says what is wrong if this failed */
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* Never open to others, not even between bind and chmod. The mask is the process's: nobody else
     * makes files while it starts. */
    mode_t mask = umask(0177);
    bool bound = fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    int error = errno;
    (void)umask(mask);
    errno = error;
    if (bound && chmod(path, mode) == 0 && listen(fd, LISTEN_BACKLOG) == 0) {
        *fd_p = fd;
        return KVB_OK;
    }
    KVB_LOG(ERROR, "a Unix socket", KVB_STR("key", key), KVB_STR("path", path), KVB_ERRNO(errno));
    if (bound) {
        (void)unlink(path);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return KVB_ERR_IO;
}
