/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_CUDA_LOOP_H
#define TRANSPORT_CUDA_LOOP_H

#include "base/io.h"
#include "base/sched.h"

/* The loop of the helper process: a scheduler in real time and the readiness of descriptors, by
 * epoll. One thread, to the end of the process. */
struct helper_loop {
    struct kvb_sched sched;
    struct kvb_io io;
    int epoll_fd;
    struct kvb_io_watch **batch; /* what is being told; those that were unwatched are NULL */
    int nbatch;
};

/* IO. */
KVB_MUST_USE kvb_status_t helper_loop_init(struct helper_loop *loop);
/* What is ready, or, if nothing is, until something is or falls due; and a turn. */
void helper_loop_step(struct helper_loop *loop);

#endif
