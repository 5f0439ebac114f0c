/* SPDX-License-Identifier: Apache-2.0 */
#include "listen.h"

#include "base/log.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTEN_BACKLOG 1024

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
