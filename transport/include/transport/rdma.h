/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSPORT_RDMA_H
#define TRANSPORT_RDMA_H

#include "base/io.h"
#include "base/sched.h"
#include "transport/peer.h"
#include "transport/transport.h"

/*
 * Transfers to a node behind RDMA connections (DESIGN.md section 6): reliable connected queue
 * pairs, made by librdmacm. Questions and answers are messages (SEND); the client itself moves the
 * bytes, by READ and WRITE between its own registration of the engine's memory and the node's:
 *
 *   put   question ->  <- GRANT (where)  WRITEs, DONE (checksum) ->  <- ANSWER
 *   get   question ->  <- ANSWER and GRANT  READs, DONE ->  <- VERDICT
 *
 * DONE travels on the queue pair of the WRITEs, so that no commit overtakes its bytes. Of the
 * engine's memory no remote key exists. A grant's key opens all of the node's memory: peers that
 * do not trust each other use tcp.
 *
 * A queue pair belongs to one engine rank's transfers (kvt_region_desc.owner), and one to all
 * questions without a body. A transfer that is to stop, and whose posted work does not come to its
 * end in time, takes its queue pair along: moved to error, every flush taken, or else destroyed,
 * after which nothing of it touches memory. The other transfers on that queue pair then end
 * DISCONNECTED, and a new one is made.
 *
 * A process without the libraries (built without them) gets UNSUPPORTED from
 * kvt_rdma_device_open(), and nothing else of this file does anything there.
 */
#define KVT_RDMA_VERSION          2u /* 2: a put's body may come without a checksum */
#define KVT_RDMA_VERSION_MIN      1u
#define KVT_RDMA_VERSION_UNHASHED 2u

#define KVT_RDMA_REASON_MAX 320u /* bytes of a reason, with its NUL */

/* ---- a device ---- */

/* One of a process: one port of one device, its protection domain, and the node's memory there.
 * Shared by the loops of the process; opened, closed and watched by one of them. */
struct kvt_rdma_device;
struct kvt_verbs; /* transport/rdma/verbs.h */

struct kvt_rdma_config {
    const char *device; /* its name, as ibv_devices prints it; NULL or "": the first usable one */
    uint32_t port;      /* from 1; 0: the first that is active */
    bool gid_set;       /* gid_index counts; else the first routable one of RoCE v2 */
    uint32_t gid_index;
    uint32_t mtu;   /* path: 256, 512, 1,024, 2,048 or 4,096; 0: the port's. Both ends use the
                       smaller of theirs (1,024 where the other says nothing) */
    uint32_t depth; /* work requests posted on a queue pair, 16 to what the device can; 0: 256 */
    uint32_t sge;   /* pieces of memory in one, 1 to 32 and what the device can; 0: 16, or fewer if
                       the   device has fewer */
    uint32_t inline_bytes;   /* messages up to this travel in their work request; 0: 128, or fewer
                                if the device takes fewer */
    uint32_t window;         /* messages under way each way on a lane, 4 to 1,024; 0: 64 */
    uint32_t rd_atomic;      /* READs under way on a queue pair; 0: what both devices can */
    uint32_t ack_timeout_ms; /* a packet not acknowledged is sent again; rounded up to the device's
                                steps (4.096 us * 2^n); 0: 67 */
    uint32_t retries;        /* so often, 1 to 7; 0: 7 */
    uint32_t rnr_retries;    /* where the receiver is not ready, 1 to 7 (7: for ever); 0: 6 */
    uint32_t resolve_ms;     /* address and route are found within; 0: 1,000 */
    const struct kvt_verbs *verbs; /* NULL: the libraries' */
};

/*
 * Opens the device that fits the config; sched and io are those of the loop that watches it. Not
 * OK: reason says what is wrong and what to change. UNSUPPORTED: built without the libraries, or
 * nothing usable here (no device, iWARP, no active port, no address of its own that others could
 * reach): tcp it is, under `auto`. INVALID: the config names what is not there, or what this device
 * cannot. LIMIT, NO_MEMORY, IO. Asks the devices, which may take milliseconds.
 */
KVB_MUST_USE kvb_status_t kvt_rdma_device_open(const struct kvt_rdma_config *config,
                                               struct kvb_sched *sched, struct kvb_io *io,
                                               struct kvt_rdma_device **device_p,
                                               char reason[KVT_RDMA_REASON_MAX]);
/* Nothing of it is used any more. NULL: nothing. */
void kvt_rdma_device_close(struct kvt_rdma_device *device);

struct kvt_rdma_info { /* what it came to */
    char device[64];
    uint32_t port, gid_index, mtu, depth, sge, inline_bytes, window, rd_atomic;
    char link[16];    /* "infiniband", "roce v2" */
    char address[64]; /* of the port, as text; "": the network's (InfiniBand) */
};
void kvt_rdma_device_info(const struct kvt_rdma_device *device, struct kvt_rdma_info *info_p);

/* Any thread. The device is gone or broken: nothing works until the process starts anew. */
bool kvt_rdma_device_dead(const struct kvt_rdma_device *device);
/* Any thread. Its port can carry something now. */
bool kvt_rdma_device_port_up(const struct kvt_rdma_device *device);

/*
 * Why something went wrong: every completion status of a work request, every event of a connection
 * and of the device, counted for the whole device.
 *
 *   name, label of metrics, what it means
 */
#define KVT_RDMA_CAUSES(X)                                                                         \
    X(WC_LOC_LEN, "local_length", "a message did not fit where it was received")                   \
    X(WC_LOC_QP_OP, "local_operation", "the device refused a work request of ours")                \
    X(WC_LOC_PROT, "local_protection", "a work request named memory that is not registered")       \
    X(WC_FLUSH, "flushed", "given up with its queue pair, after something else went wrong")        \
    X(WC_BAD_RESP, "bad_response", "the peer's device answered what it was not asked")             \
    X(WC_LOC_ACCESS, "local_access", "the peer's bytes may not go where they were to go")          \
    X(WC_REM_INV_REQ, "remote_invalid_request", "the peer's device refused the request")           \
    X(WC_REM_ACCESS, "remote_access", "the peer's memory may not be reached there")                \
    X(WC_REM_OP, "remote_operation", "the peer's device could not do it")                          \
    X(WC_RETRY_EXC, "retries_exceeded", "the peer's device does not answer")                       \
    X(WC_RNR_RETRY_EXC, "receiver_not_ready", "the peer has no room for a message")                \
    X(WC_REM_ABORT, "remote_abort", "the peer's device aborted it")                                \
    X(WC_FATAL, "fatal", "the device failed")                                                      \
    X(WC_RESP_TIMEOUT, "response_timeout", "the peer's device did not answer in time")             \
    X(WC_GENERAL, "general", "the device gives no reason")                                         \
    X(WC_OTHER, "other", "a status that queue pairs of this kind do not have")                     \
    X(CM_ADDR_ERROR, "address_error", "no device leads to the address")                            \
    X(CM_ROUTE_ERROR, "route_error", "no route to the address")                                    \
    X(CM_CONNECT_ERROR, "connect_error", "the connection could not be made")                       \
    X(CM_UNREACHABLE, "unreachable", "nobody answers at the address")                              \
    X(CM_REJECTED, "rejected", "the other end does not want the connection")                       \
    X(CM_DISCONNECTED, "disconnected", "the other end closed the connection")                      \
    X(CM_DEVICE_REMOVAL, "device_removed", "the device was removed")                               \
    X(CM_ADDR_CHANGE, "address_changed", "the address belongs to another device now")              \
    X(CM_OTHER, "unexpected_event", "an event that such connections do not have")                  \
    X(DEV_FATAL, "device_fatal", "the device failed as a whole")                                   \
    X(DEV_PORT_DOWN, "port_down", "the port lost its link")                                        \
    X(DEV_QP_FATAL, "queue_pair_fatal", "the device gave a queue pair up")                         \
    X(DEV_CQ_ERROR, "completion_queue_error", "a completion queue was overrun or broken")          \
    X(DEV_SRQ_ERROR, "receive_queue_error", "the shared receive queue broke")                      \
    X(OTHER_DEVICE, "other_device", "the address is reached over another device than the chosen")  \
    X(DISAGREED, "disagreed", "the two ends cannot agree on the connection's limits")              \
    X(QUIESCED, "quiesced", "a queue pair was given up to stop a transfer")                        \
    X(DESTROYED_UNFLUSHED, "destroyed_unflushed",                                                  \
      "a queue pair was destroyed since its work was not given back in time")                      \
    X(REGISTRATION, "registration_refused", "memory of an engine could not be registered")         \
    X(TAKEN_BACK, "taken_back", "a queue pair was destroyed to take granted memory back")
enum kvt_rdma_cause {
#define X(name, label, what) KVT_RDMA_##name,
    KVT_RDMA_CAUSES(X)
#undef X
        KVT_RDMA_CAUSES_N
};
const char *kvt_rdma_cause_label(enum kvt_rdma_cause cause);
const char *kvt_rdma_cause_text(enum kvt_rdma_cause cause);
/* Any thread: how often since it was opened. */
uint64_t kvt_rdma_device_count(const struct kvt_rdma_device *device, enum kvt_rdma_cause cause);

/* ---- memory ---- */

/*
 * The node's own memory, for peers to read and write: before the servers that grant parts of it,
 * and until they are destroyed. Pins it, which takes as long as the kernel needs for its pages.
 * LIMIT (RLIMIT_MEMLOCK, mappings, the device), NO_MEMORY, INVALID (bad address): reason says which
 * and what to change. Any thread, one at a time.
 */
struct kvt_rdma_share;
KVB_MUST_USE kvb_status_t kvt_rdma_share_register(struct kvt_rdma_device *device, void *base,
                                                  uint64_t len, struct kvt_rdma_share **share_p,
                                                  char reason[KVT_RDMA_REASON_MAX]);
void kvt_rdma_share_unregister(struct kvt_rdma_share *share); /* NULL: nothing */

/*
 * The registrations of the engine's regions, one each, whatever the number of peers: made and taken
 * back with the regions' own (kvt_region_register, kvt_region_unregister), local access only. To be
 * made before the first region is registered, destroyed after the last and after the peers. Why the
 * last registration failed, and what to change, is said by kvt_rdma_memory_reason() and in the log;
 * "": none has failed. Loop thread of the regions. NO_MEMORY.
 */
struct kvt_rdma_memory;
KVB_MUST_USE kvb_status_t kvt_rdma_memory_create(struct kvt_rdma_device *device,
                                                 struct kvt_regions *regions,
                                                 struct kvt_rdma_memory **memory_p);
void kvt_rdma_memory_destroy(struct kvt_rdma_memory *memory); /* NULL: nothing */
/* From here on a region that the device does not take is registered without it: transfers over rdma
 * that name it are refused at start (UNSUPPORTED), and another transport moves its bytes. */
void kvt_rdma_memory_optional(struct kvt_rdma_memory *memory);
const char *kvt_rdma_memory_reason(const struct kvt_rdma_memory *memory);

struct kvt_rdma_memory_stats {
    uint64_t registrations;                    /* that stand */
    uint64_t pinned_bytes;                     /* kvt_region_pinned() of all regions */
    uint64_t left_out;                         /* regions that are registered without */
    uint64_t registered, unregistered, failed; /* since it was made */
};
void kvt_rdma_memory_stats(const struct kvt_rdma_memory *memory,
                           struct kvt_rdma_memory_stats *stats_p);

/* ---- the side that asks ---- */

struct kvt_rdma_peer_config {
    struct kvt_peer_common common;  /* net: not used */
    struct kvt_rdma_memory *memory; /* of the same regions; outlives the peer */
    struct kvb_io *io;
    const char *address;     /* HOST:PORT, [IPV6]:PORT; HOST an address, not a name; copied */
    uint32_t lanes;          /* 2 to 64: one for questions without a body, the rest for the engine
                                ranks, which share them if they are more; 0: 17 */
    uint32_t in_flight_max;  /* transfers; 0: 1,024 */
    uint64_t bytes_max;      /* of their bodies together; 0: 256 MiB; a single one always goes */
    uint32_t stop_ms;        /* after its deadline, a transfer's posted work may go on for so long
                                before its queue pair is given up; 0: 200 */
    uint32_t backoff_ms;     /* first wait before connecting again; 0: 50 */
    uint32_t backoff_max_ms; /* the waits double up to it, each with jitter; 0: 2,000 */
    uint32_t idle_ms;        /* a lane but the first is closed after it; 0: 60,000 */
    /* The CPU does not reach the slices' memory, so nothing is hashed on this side: of a put the
     * node makes the checksum of what has arrived, a get's bytes are compared with none. It is the
     * transport's own checks alone that vouch for the way. A node that does not know of it is not
     * reached (REFUSED). */
    bool unhashed;
    const struct kvt_peer_ops *ops;
    void *ctx;
};

/* As kvt_tcp_peer_create (transport/tcp.h): starting, ending, up and down are the same there and
 * here. Slices must be of memory that has addresses: UNSUPPORTED at start. A deadline, and a cancel
 * (by its stop deadline), end a transfer when none of its work is posted any more. INVALID,
 * NO_MEMORY, LIMIT, IO. */
KVB_MUST_USE kvb_status_t kvt_rdma_peer_create(struct kvt_regions *regions,
                                               const struct kvt_rdma_peer_config *config,
                                               struct kvt_transport **transport_p);
/* The node is elsewhere now: the next connection goes there, at once if none stands. INVALID,
 * NO_MEMORY: all as before. */
KVB_MUST_USE kvb_status_t kvt_rdma_peer_set_address(struct kvt_transport *transport,
                                                    const char *address);
void kvt_rdma_peer_stats(const struct kvt_transport *transport, struct kvt_peer_stats *stats_p);

/* ---- the side that is asked ---- */

/*
 * The lanes of one I/O thread of a node, as kvt_tcp_server (transport/tcp.h): the same calls and
 * events. What they grant is memory registered with the same device (kvt_rdma_share_register;
 * asserted). A request whose memory was granted, and that is answered before its client said that
 * it is through, costs its client the lane: the queue pair is destroyed inside kvt_answer, so that
 * nothing touches that memory any more when it returns.
 */
struct kvt_rdma_server;
struct kvt_rdma_conn; /* a connection that arrived and belongs to nobody yet */

struct kvt_rdma_server_config {
    struct kvt_peer_common common; /* net: not used */
    struct kvt_rdma_device *device;
    struct kvb_sched *sched;
    struct kvb_io *io;
    const char *name; /* of the node; at most 63 bytes */
    uint64_t incarnation;
    uint32_t lanes_max;      /* admitted ones, of this server; 0: 256, or what the device's queues
                                can hold */
    uint32_t lanes_each_max; /* of these, from one remote address; 0: 64 */
    uint32_t strangers_max;  /* not admitted yet, beside those; when one more comes the oldest goes;
                                0: 64 */
    uint32_t requests_max;   /* of one lane, not answered; agreed at connect; 0: 256 */
    const struct kvt_server_ops *ops;
    void *ctx;
};

/* INVALID, NO_MEMORY, LIMIT (descriptors, the device's queues), IO. */
KVB_MUST_USE kvb_status_t kvt_rdma_server_create(const struct kvt_rdma_server_config *config,
                                                 struct kvt_rdma_server **server_p);
/* Closes every lane (gone, closed). NULL: nothing. */
void kvt_rdma_server_destroy(struct kvt_rdma_server *server);
/* Takes the connection, also on a failure, where it is rejected: LIMIT, NO_MEMORY, IO, INVALID (the
 * two ends cannot agree). The server's thread. */
KVB_MUST_USE kvb_status_t kvt_rdma_server_adopt(struct kvt_rdma_server *server,
                                                struct kvt_rdma_conn *conn);
void kvt_rdma_server_stats(const struct kvt_rdma_server *server, struct kvt_peer_stats *stats_p);

/* ---- connections that arrive ---- */

/* Ports of RDMA are a space of their own: it may be the number of the tcp listener. */
struct kvt_rdma_listener;

struct kvt_rdma_listener_config {
    struct kvt_rdma_device *device;
    struct kvb_sched *sched; /* of the owner's loop */
    struct kvb_io *io;
    const char *address; /* HOST:PORT, [IPV6]:PORT; HOST an address, any ("0.0.0.0") too; port 0: a
                            free one */
    uint32_t backlog;    /* 0: 128 */
    /* A connection is there; it is the callee's: kvt_rdma_server_adopt, on the thread of any
     * server of that device, or kvt_rdma_conn_drop. */
    void (*accepted)(void *ctx, struct kvt_rdma_conn *conn);
    void *ctx;
};

/* Not OK: reason says why. INVALID (address), EXISTS (port in use), UNAVAILABLE (no such address
 * here), LIMIT, NO_MEMORY, IO. */
KVB_MUST_USE kvb_status_t kvt_rdma_listener_create(const struct kvt_rdma_listener_config *config,
                                                   struct kvt_rdma_listener **listener_p,
                                                   char reason[KVT_RDMA_REASON_MAX]);
/* Connections handed over live on. NULL: nothing. */
void kvt_rdma_listener_destroy(struct kvt_rdma_listener *listener);
uint16_t kvt_rdma_listener_port(const struct kvt_rdma_listener *listener);

/* Rejects it. Any thread. */
void kvt_rdma_conn_drop(struct kvt_rdma_conn *conn);

#endif
