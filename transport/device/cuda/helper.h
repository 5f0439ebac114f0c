/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_CUDA_HELPER_H
#define TRANSPORT_CUDA_HELPER_H

#include "base/io.h"
#include "base/sched.h"

/* The helper process, inside: what of the outside world is not the program's own. */
struct kvt_verbs;

struct cuda_helper_edges {
    const struct kvt_verbs *verbs; /* NULL: the libraries' */
    /* Its loop is there, and turns as soon as this returns; NULL: nobody asks. */
    void (*started)(struct kvb_sched *sched, struct kvb_io *io);
};

/* kvt_cuda_helper_main() (transport/cuda.h) with other edges. */
int cuda_helper_main(int argc, char **argv, const struct cuda_helper_edges *edges);

#endif
