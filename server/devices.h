/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_DEVICES_H
#define SERVER_DEVICES_H

#include "link/link.h"

#include "base/io.h"

/*
 * GPU memory of engines, for the link: a CUDA device for each rank that hands some over. The lock
 * of a rank's helper is a file beside the engine socket, `SOCKET.cuda-HASH`, HASH being that of the
 * rank's name; the next daemon removes it.
 */
struct kvp_devices {
    struct kvb_sched *sched;
    struct kvb_io *io;
    struct kvt_regions *regions;
    const char *socket; /* path of the engine socket */
    uint64_t pool_len;
    const struct kvt_cuda_direct *direct; /* an RDMA device is to reach it; NULL: none is */
};

extern const struct kvp_link_devices kvp_device_ops; /* their ctx: a struct kvp_devices */

#endif
