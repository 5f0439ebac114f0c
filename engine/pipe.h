/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_PIPE_H
#define ENGINE_PIPE_H

#include "base/list.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Messages between the ranks of one reference engine: both ends are this program, of one fork, so
 * that a struct is passed as it is. Never blocks; what does not fit waits here, in order.
 */
struct kve_pipe {
    int fd;              /* a SOCK_STREAM socket; owned */
    struct kvb_list out; /* not sent yet */
    uint8_t *in;         /* what has come of the next message */
    size_t in_len, in_cap;
};

void kve_pipe_init(struct kve_pipe *pipe, int fd);
void kve_pipe_cleanup(struct kve_pipe *pipe);
/* NO_MEMORY. A peer that is gone is told by kve_pipe_receive(). */
KVB_MUST_USE kvb_status_t kve_pipe_send(struct kve_pipe *pipe, const void *message, size_t len);
/* Sends what waits; true: there is more, poll for writing. */
bool kve_pipe_flush(struct kve_pipe *pipe);
/* The next whole message, to be freed; *message_p NULL: none yet. DISCONNECTED, NO_MEMORY. */
KVB_MUST_USE kvb_status_t kve_pipe_receive(struct kve_pipe *pipe, void **message_p, size_t *len_p);

#endif
