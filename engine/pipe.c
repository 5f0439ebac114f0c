/* SPDX-License-Identifier: Apache-2.0 */
#include "pipe.h"

#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct waiting {
    struct kvb_list link;
    size_t len, sent;
    uint8_t bytes[];
};

void kve_pipe_init(struct kve_pipe *pipe, int fd)
{
    *pipe = (struct kve_pipe){.fd = fd};
    kvb_list_init(&pipe->out);
}

void kve_pipe_cleanup(struct kve_pipe *pipe)
{
    for (struct kvb_list *link; (link = kvb_list_pop(&pipe->out)) != NULL;) {
        free(kvb_container_of(link, struct waiting, link));
    }
    free(pipe->in);
    close(pipe->fd);
}

bool kve_pipe_flush(struct kve_pipe *pipe)
{
    for (struct kvb_list *link; (link = kvb_list_first(&pipe->out)) != NULL;) {
        struct waiting *waiting = kvb_container_of(link, struct waiting, link);
        ssize_t n = send(pipe->fd, waiting->bytes + waiting->sent, waiting->len - waiting->sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return errno == EAGAIN; /* else the peer is gone: receiving tells */
        }
        waiting->sent += (size_t)n;
        if (waiting->sent == waiting->len) {
            kvb_list_remove(link);
            free(waiting);
        }
    }
    return false;
}

kvb_status_t kve_pipe_send(struct kve_pipe *pipe, const void *message, size_t len)
{
    uint64_t prefix = len;
    struct waiting *waiting = malloc(sizeof *waiting + sizeof prefix + len);

    if (waiting == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    waiting->len = sizeof prefix + len;
    waiting->sent = 0;
    memcpy(waiting->bytes, &prefix, sizeof prefix);
    memcpy(waiting->bytes + sizeof prefix, message, len);
    kvb_list_push_back(&pipe->out, &waiting->link);
    (void)kve_pipe_flush(pipe);
    return KVB_OK;
}

/* Reads until `want` bytes of the message are there. AGAIN: they are not. */
static kvb_status_t fill(struct kve_pipe *pipe, size_t want)
{
    if (pipe->in_cap < want) {
        uint8_t *more = realloc(pipe->in, want);
        if (more == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        pipe->in = more;
        pipe->in_cap = want;
    }
    while (pipe->in_len < want) {
        ssize_t n = recv(pipe->fd, pipe->in + pipe->in_len, want - pipe->in_len, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EAGAIN) {
            return KVB_ERR_AGAIN;
        }
        if (n <= 0) {
            return KVB_ERR_DISCONNECTED;
        }
        pipe->in_len += (size_t)n;
    }
    return KVB_OK;
}

kvb_status_t kve_pipe_receive(struct kve_pipe *pipe, void **message_p, size_t *len_p)
{
    uint64_t len = 0;
    kvb_status_t status = fill(pipe, sizeof len);

    if (status == KVB_OK) {
        memcpy(&len, pipe->in, sizeof len);
        status = fill(pipe, sizeof len + len);
    }
    *message_p = NULL;
    if (status != KVB_OK) {
        return status == KVB_ERR_AGAIN ? KVB_OK : status;
    }
    *message_p = malloc(len + 1);
    if (*message_p == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    memcpy(*message_p, pipe->in + sizeof len, len);
    *len_p = len;
    pipe->in_len = 0;
    return KVB_OK;
}
