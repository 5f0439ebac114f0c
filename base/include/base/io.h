/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_IO_H
#define BASE_IO_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Readiness of descriptors on one loop (DESIGN.md section 12, seam 6): what sockets below the
 * server are built on. The program's is libuv's (server/loop.h); a test may have its own. Level
 * triggered. Loop thread only. Callbacks never run inside watch or unwatch.
 */
enum { KVB_IO_READ = 1, KVB_IO_WRITE = 2 };

struct kvb_io_watch {
    int fd; /* borrowed; stays open while watched */
    /* events: what is ready; both, on an error or hang-up: reading or writing tells which. */
    void (*fn)(struct kvb_io_watch *watch, unsigned events);
    void *impl; /* the loop's own; NULL: not watched */
};

struct kvb_io;
struct kvb_io_ops {
    kvb_status_t (*watch)(struct kvb_io *io, struct kvb_io_watch *watch, unsigned events);
    void (*unwatch)(struct kvb_io *io, struct kvb_io_watch *watch);
};
struct kvb_io {
    const struct kvb_io_ops *ops;
};

/* Begins to watch, or changes what for (events 0: for nothing, for now). NO_MEMORY, IO. */
KVB_MUST_USE static inline kvb_status_t kvb_io_watch(struct kvb_io *io, struct kvb_io_watch *watch,
                                                     unsigned events)
{
    return io->ops->watch(io, watch, events);
}

/* fn is not called any more; the descriptor may be closed at once. Not watched: nothing. */
static inline void kvb_io_unwatch(struct kvb_io *io, struct kvb_io_watch *watch)
{
    if (watch->impl != NULL) {
        io->ops->unwatch(io, watch);
    }
}

#endif
