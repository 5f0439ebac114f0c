/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_REGION_H
#define TRANSPORT_REGION_H

#include "base/list.h"
#include "base/sched.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * A contiguous range of an engine's memory, handed over as a descriptor (DESIGN.md sections 3 and
 * 6). Its life:
 *
 *   mapped        the engine holds it; this process has the descriptor and nothing else
 *   registering   memory of a device: another process is taking hold of it (transport/device.h)
 *   registered    mapped here too and known to the transport: transfers may name it
 *   draining      admission stopped; waits for its transfers, then quiesces what is left
 *   unregistered  nothing of ours holds its memory: no mapping, no registration, no descriptor
 *
 * Transfers hold a reference. A region is never deregistered under one: if quiescing does not
 * finish, unregistering fails and the registration stays. What arrives for an older generation
 * changes nothing. Loop thread only.
 */
#define KVT_REGION_STATES(X)                                                                       \
    X(MAPPED, "mapped")             /* owns: fd. waits for: register */                            \
    X(REGISTERING, "registering")   /* owns: fd. waits for: the device */                          \
    X(REGISTERED, "registered")     /* owns: fd, mapping. waits for: unregister */                 \
    X(DRAINING, "draining")         /* owns: as before. waits for: references to come to 0 */      \
    X(UNREGISTERED, "unregistered") /* owns: nothing. waits for: destroy */
enum kvt_region_state {
#define X(name, text) KVT_REGION_##name,
    KVT_REGION_STATES(X)
#undef X
};
const char *kvt_region_state_text(enum kvt_region_state state);

#define KVT_MEMORY_KINDS_LIST(X) X(HOST, "host") X(CUDA, "cuda")
enum kvt_memory_kind {
#define X(name, text) KVT_MEMORY_##name,
    KVT_MEMORY_KINDS_LIST(X)
#undef X
        KVT_MEMORY_KINDS
};
const char *kvt_memory_kind_text(enum kvt_memory_kind kind);

/* What a kind of memory that this process maps itself can do for us. Memory of a device is reached
 * by another process (transport/device.h), and has none of this. */
struct kvt_memory_ops {
    const char *name;
    /* Checks the descriptor (kind, seals, size against offset + len with overflow) without mapping
     * it. INVALID: *reason_p (static text) says what to change. */
    kvb_status_t (*check)(int fd, uint64_t offset, uint64_t len, const char **reason_p);
    /* NO_MEMORY, LIMIT, IO. */
    kvb_status_t (*map)(int fd, uint64_t offset, uint64_t len, void **map_p);
    void (*unmap)(void *map, uint64_t len);
    /* Address the CPU (and a NIC) may use. */
    void *(*address)(void *map);
    kvb_status_t (*copy_in)(void *map, uint64_t offset, const void *src, size_t len);
    kvb_status_t (*copy_out)(void *map, uint64_t offset, void *dst, size_t len);
};
/* A memfd: sealed against shrinking (or a peer could take the pages away under a copy), writable,
 * at a page boundary. */
extern const struct kvt_memory_ops kvt_memory_host;

struct kvt_region_desc {
    uint64_t owner;  /* whose numbers these are: one value per engine rank */
    uint32_t number; /* the engine's */
    enum kvt_memory_kind kind;
    char tag[64];
    bool host_resident;
    uint64_t fd_offset;
    uint64_t len;
    uint64_t generation;
    struct kvt_device *device; /* whose memory it is; borrowed; NULL for host memory */
    bool fabric; /* CUDA: the descriptor is a memfd with a fabric handle, not the memory itself */
};

/* All regions of a process, and the transports that may move their bytes: registering a region
 * makes it known to each of them, unregistering waits for the transfers of all. */
struct kvt_regions;
struct kvt_region;

/* NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvt_regions_create(struct kvb_sched *sched,
                                             struct kvt_regions **regions_p);
void kvt_regions_destroy(struct kvt_regions *regions); /* no region, no transport; NULL: nothing */
uint32_t kvt_regions_count(const struct kvt_regions *regions); /* that exist */

/* Takes fd on success only. INVALID, UNSUPPORTED (no such kind of memory here): *reason_p (static
 * text) says what does not fit. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvt_region_create(struct kvt_regions *regions,
                                            const struct kvt_region_desc *desc, int fd,
                                            struct kvt_region **region_p, const char **reason_p);
/* mapped or unregistered only (asserted). Closes the descriptor. NULL: nothing. */
void kvt_region_destroy(struct kvt_region *region);

/* mapped -> registered, with every transport or with none. Completes before it returns; for host
 * memory only (asserted). Failures leave it mapped: NO_MEMORY, IO, LIMIT. */
KVB_MUST_USE kvb_status_t kvt_region_register(struct kvt_region *region);

typedef void (*kvt_region_done_fn)(void *arg, struct kvt_region *region, kvb_status_t status);

/*
 * The same for every kind of memory. OK, or a failure as above: as it is with host memory, done is
 * not called. IN_PROGRESS: registering; done, later, exactly once: OK: registered; CANCELED: it was
 * unregistered meanwhile; INVALID, UNSUPPORTED, NO_MEMORY, IO, TIMEOUT, UNAVAILABLE: mapped again,
 * nothing holds its memory.
 */
KVB_MUST_USE kvb_status_t kvt_region_register_start(struct kvt_region *region, uint64_t deadline_ns,
                                                    kvt_region_done_fn done, void *arg);

/*
 * registered or registering -> draining -> unregistered, and the descriptor is closed. New
 * transfers are refused (GENERATION) at once; running ones may finish until drain_deadline_ns, then
 * they are cancelled, and must be gone by stop_deadline_ns, which is later. done, later, exactly
 * once: OK; TIMEOUT: a transfer could not be stopped, the region is REGISTERED again (or a device's
 * process could not be killed: then it counts as registered, for its memory is held); IO: a
 * transport could not take its registration back, also at a second try: REGISTERED again.
 */
void kvt_region_unregister(struct kvt_region *region, uint64_t drain_deadline_ns,
                           uint64_t stop_deadline_ns, kvt_region_done_fn done, void *arg);

const struct kvt_region_desc *kvt_region_desc(const struct kvt_region *region);
enum kvt_region_state kvt_region_state(const struct kvt_region *region);
uint32_t kvt_region_refs(const struct kvt_region *region); /* transfers that name it */
/* Bytes that a registration keeps in memory (KVT_CAP_PINS_MEMORY), each as often as it is
 * registered; 0: none. */
uint64_t kvt_region_pinned(const struct kvt_region *region);

#endif
