/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_LINK_H
#define BASE_LINK_H

#include "base/id.h"
#include "base/status.h"
#include "base/wire.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * The engine link (DESIGN.md section 7): the messages between an engine rank and its daemon over a
 * Unix stream socket, descriptors beside them as SCM_RIGHTS. Both sides use the structs, pack and
 * unpack functions of this header; there is no other description of the protocol.
 *
 * Every request gets exactly one reply with its seq; a reply begins with a status. A malformed
 * frame costs its sender the connection and nobody else anything. EVENT is the only message without
 * a reply. The engine's first frame is HELLO, the daemon's first frame is the reply to it.
 *
 * A daemon closes its end of the socket only when every transfer of the session is over or
 * quiesced: the end of the stream is what tells the engine that its memory is its own again. An
 * engine that gives the connection up closes its direction (SHUT_WR) and waits for that.
 */
#define KVB_LINK_VERSION 4

#define KVB_NAME_MAX         64  /* instance, tenant, tag names: bytes with NUL; [A-Za-z0-9._-]+ */
#define KVB_MODEL_MAX        256 /* what clients call a model, text, with NUL */
#define KVB_LAYOUT_MAX       256 /* layout fingerprint, text, with NUL */
#define KVB_WEIGHTS_NAME_MAX 256 /* name of the weights (version or fingerprint), with NUL */
#define KVB_KEY_MAX          512 /* block key bytes; at least 1 */
#define KVB_VALUE_MAX        (1ull << 30) /* bytes of one block */
#define KVB_TAGS_MAX         8            /* tags of one engine */
#define KVB_GROUPS_MAX       16           /* KV groups of one engine */
#define KVB_ENTRIES_MAX      4096         /* entries of one batch */
#define KVB_SLICES_MAX       256          /* slices of one entry */
#define KVB_REGIONS_MAX      256          /* regions of one session */
#define KVB_RANKS_MAX        1024         /* world size */
#define KVB_PARTS_MAX        1024         /* parts of one block, over all ranks */
#define KVB_GROUP_TOKENS_MAX (1u << 20)   /* tokens of one group's block */
#define KVB_RETIRED_MAX      64           /* undelivered retirements an engine keeps */
#define KVB_RELAY_METHOD_MAX 128
#define KVB_RELAY_BODY_MAX   (32u << 20)

/* dir: E = engine to daemon, D = daemon to engine. max: largest payload, request or reply. bound:
 * default time to answer, ms. LEAVE, FINGERPRINT and STATE have an empty request, EVENT any
 * payload. */
#define KVB_LINK_MESSAGES(X)                                                                       \
    /* name             id  label              dir  max          bound_ms */                       \
    X(HELLO, 1, "hello", 'E', 1u << 16, 10000)                                                     \
    X(REGISTER_REGION, 2, "register_region", 'E', 1024, 10000)                                     \
    X(LOOKUP, 3, "lookup", 'E', 8u << 20, 5000)                                                    \
    X(DISCARD, 4, "discard", 'E', 64, 5000)                                                        \
    X(PUT, 5, "put", 'E', 8u << 20, 60000)                                                         \
    X(GET, 6, "get", 'E', 8u << 20, 60000)                                                         \
    X(REPORT, 7, "report", 'E', 64, 5000)                                                          \
    X(LEAVE, 8, "leave", 'E', 64, 10000)                                                           \
    X(LINEAGE, 16, "lineage", 'D', 4096, 10000)                                                    \
    X(PAUSE, 17, "pause", 'D', 64, 480000)                                                         \
    X(RESUME, 18, "resume", 'D', 64, 30000)                                                        \
    X(RESET_LOCAL, 19, "reset_local", 'D', 64, 30000)                                              \
    X(RELEASE, 20, "release", 'D', 1024, 120000)                                                   \
    X(RESTORE, 21, "restore", 'D', 1024, 120000)                                                   \
    X(FINGERPRINT, 22, "fingerprint", 'D', 1024, 120000)                                           \
    X(RELAY, 23, "relay", 'D', (32u << 20) + 4096, 3600000)                                        \
    X(STATE, 24, "state", 'D', 4096, 10000)                                                        \
    X(EVENT, 25, "event", 'D', 1u << 16, 0)

enum kvb_link_type {
#define X(name, id, label, dir, max, bound) KVB_LINK_##name = (id),
    KVB_LINK_MESSAGES(X)
#undef X
};
struct kvb_link_info {
    uint16_t type;
    const char *label;
    char dir;
    uint32_t max;
    uint32_t bound_ms;
};
/* NULL for a number that is not in the table. */
const struct kvb_link_info *kvb_link_info(uint16_t type);

/* ---- words
 * -------------------------------------------------------------------------------------------------
 */

#define KVB_RESIDENCY_LIST(X)                                                                      \
    X(RESIDENT, "resident")                                                                        \
    X(OFFLOADED, "offloaded") X(DISCARDED, "discarded") X(UNKNOWN, "unknown")
enum kvb_residency {
#define X(name, text) KVB_##name,
    KVB_RESIDENCY_LIST(X)
#undef X
};
const char *kvb_residency_text(enum kvb_residency residency);

#define KVB_PAUSE_MODES(X) X(ABORT, "abort") X(WAIT, "wait") X(KEEP, "keep")
enum kvb_pause_mode {
#define X(name, text) KVB_PAUSE_##name,
    KVB_PAUSE_MODES(X)
#undef X
};
const char *kvb_pause_mode_text(enum kvb_pause_mode mode);

enum kvb_role { KVB_ROLE_SCHEDULER = 1, KVB_ROLE_WORKER = 2 }; /* bits */
/* CUDA_FABRIC: the descriptor is a memfd with the handle (64 bytes): data, that holds nothing. */
enum kvb_memory_kind { KVB_MEMORY_HOST, KVB_MEMORY_CUDA, KVB_MEMORY_CUDA_FABRIC, KVB_MEMORY_KINDS };
enum kvb_region_flag { KVB_REGION_HOST_RESIDENT = 1 }; /* sleep does not touch it */

/* What the engine can do and can answer (hello). */
enum kvb_engine_flag {
    KVB_ENGINE_TRACKS_LINEAGE =
        1, /* keeps the token per local block, gives the oldest one with each put */
    KVB_ENGINE_FINGERPRINTS = 2, /* answers FINGERPRINT */
};

struct kvb_tag_state {
    char tag[KVB_NAME_MAX];
    enum kvb_residency residency;
};

/* The engine's own account of itself; part of HELLO, and the reply to STATE. */
struct kvb_engine_state {
    uint64_t last_operation; /* id of the last lifecycle operation it acted on, 0: none */
    bool paused;
    enum kvb_pause_mode pause_mode; /* how, if paused */
    bool weight_change_running;     /* between the start and the end of one, or its end unknown */
    bool weights_written;           /* since the last lineage it acknowledged */
    bool local_reset_done; /* its own prefix cache was reset since the last lineage it acknowledged
                            */
    uint32_t ntags;
    struct kvb_tag_state tags[KVB_TAGS_MAX];
};

struct kvb_load {
    uint32_t running;     /* requests being computed (frozen ones of `keep` too) */
    uint32_t waiting;     /* accepted, not begun */
    uint32_t loading;     /* waiting for a get */
    uint32_t blocks_held; /* blocks of the local cache that a reset would have to wait for */
};

/* ---- messages: one struct each, and one for each reply that is more than a status
 * ------------------------------ */

/* What the blocks of one KV group are. */
struct kvb_link_group_info {
    uint32_t block_tokens;
    uint32_t window_tokens; /* sliding window: only the last so many tokens of a prefix are needed;
                               0: all of them */
};

struct kvb_link_hello {
    uint16_t version;
    uint8_t roles; /* kvb_role bits */
    uint8_t flags; /* kvb_engine_flag bits */
    uint32_t rank;
    uint32_t world_size;
    uint32_t local_world_size; /* must equal world_size: a world that spans hosts is refused */
    uint32_t tp_size;          /* ranks of one pipeline stage; 0: all of the world */
    uint32_t store_tp_size; /* parts in which a block of one stage is stored, a multiple of tp_size
                               (DESIGN.md section 3, layout); 0: each rank stores its own */
    uint32_t block_tokens;  /* tokens per block, for the placement group (DESIGN.md section 10) */
    uint32_t ngroups; /* KV groups, numbered from 0; 0: whatever is asked for is of full attention
                         and of block_tokens */
    struct kvb_link_group_info groups[KVB_GROUPS_MAX];
    char instance[KVB_NAME_MAX];
    char tenant[KVB_NAME_MAX];
    char layout[KVB_LAYOUT_MAX];
    char model[KVB_MODEL_MAX];               /* what clients call it; "": the engine does not say */
    uint32_t max_model_len;                  /* tokens of a sequence; 0: the engine does not say */
    char weights_name[KVB_WEIGHTS_NAME_MAX]; /* version it was started with; "" if it does not know
                                              */
    /* echo: what it last acknowledged; token none: it never did, or it restarted (DESIGN.md section
     * 4, Attaching) */
    struct kvb_lineage lineage;
    struct kvb_token token;
    char lineage_name[KVB_WEIGHTS_NAME_MAX]; /* name under which that lineage was joined; "" =
                                                private */
    uint32_t nretired; /* retirements not delivered that a daemon left with it */
    struct kvb_lineage retired[KVB_RETIRED_MAX];
    struct kvb_engine_state state;
};
struct kvb_link_hello_reply {
    kvb_status_t status; /* AGAIN: the engine tries again by itself after a while; any other failure
                            is final and told to it with the reason */
    char reason[256];    /* why refused, and what to change */
    uint64_t session;
};

struct kvb_link_region {
    uint32_t region; /* the engine's own number of it, unique in the session */
    uint8_t kind;    /* kvb_memory_kind */
    uint8_t flags;   /* kvb_region_flag bits */
    char tag[KVB_NAME_MAX];
    uint64_t fd_offset; /* where it begins in the descriptor that comes with the frame */
    uint64_t len;
    uint64_t generation; /* greater than every earlier one of this region */
};

/* One span of engine memory. */
struct kvb_slice {
    uint32_t region;
    uint64_t offset;
    uint64_t len;
};

struct kvb_link_key {
    struct kvb_span key;       /* 1 to KVB_KEY_MAX bytes */
    struct kvb_span placement; /* the one its put carried; empty: the key itself */
};
struct kvb_link_group {
    uint32_t group;
    uint32_t nkeys;
    struct kvb_link_key *keys; /* in prefix order */
};
struct kvb_link_lookup {
    uint64_t request; /* the engine's request: what is found is held for it */
    struct kvb_token token;
    uint32_t ngroups;
    struct kvb_link_group *groups;
};
struct kvb_link_lookup_reply {
    kvb_status_t status; /* OK also for a miss; FENCED, CLOSED: why nothing was looked up */
    uint32_t ngroups;
    uint32_t hits[KVB_GROUPS_MAX]; /* blocks of each group in the longest prefix that all of them
                                      can use with every rank's part, in the order asked */
};

struct kvb_link_entry {
    struct kvb_span key;       /* 1 to KVB_KEY_MAX bytes */
    struct kvb_span placement; /* placement key; empty: the key itself */
    uint32_t group;
    uint32_t part; /* of the block: one of the asking rank's own */
    struct kvb_token
        token; /* PUT: the stay in which it was computed, the oldest of what it derives from */
    uint32_t nslices;
    struct kvb_slice *slices;
};
struct kvb_link_batch {     /* PUT and GET */
    uint64_t request;       /* GET: the lookup's request, whose hold it takes; PUT: 0 */
    struct kvb_token token; /* GET: the stay in which it was looked up */
    uint32_t nentries;
    struct kvb_link_entry *entries;
};
struct kvb_link_batch_reply {
    uint32_t nentries;
    kvb_status_t *statuses; /* one for each entry, in order */
};

struct kvb_link_lineage { /* the reply, a plain status, is the acknowledgement */
    struct kvb_lineage lineage;
    struct kvb_token token;
    char name[KVB_WEIGHTS_NAME_MAX]; /* "" = private */
    bool left; /* a leave (keep nothing of before) rather than a join of what it already computes
                  with */
    uint32_t nretired; /* to be kept and given back in hello until a later LINEAGE no longer lists
                          them */
    struct kvb_lineage retired[KVB_RETIRED_MAX];
};
struct kvb_link_pause { /* answered when idle as DESIGN.md section 8 says; status CANCELED if a
                           RESUME came first */
    uint64_t operation;
    enum kvb_pause_mode mode;
};
struct kvb_link_resume {
    uint64_t operation;
};
struct kvb_link_reset_local { /* BUSY: blocks are held and preempt was not asked */
    uint64_t operation;
    bool preempt;
};
struct kvb_link_reset_local_reply {
    kvb_status_t status;
    uint32_t blocks_held;
};
struct kvb_link_release_tag {
    char tag[KVB_NAME_MAX];
    bool offload; /* false: discard */
};
struct kvb_link_release {
    uint64_t operation;
    bool commit; /* false: only offload (copy aside, still mapped); true: unmap and free. Two phases
                    over all ranks */
    uint32_t ntags;
    struct kvb_link_release_tag tags[KVB_TAGS_MAX];
};
struct kvb_link_restore { /* the fresh REGISTER_REGIONs come before the reply */
    uint64_t operation;
    uint32_t ntags;
    char tags[KVB_TAGS_MAX][KVB_NAME_MAX];
};
struct kvb_link_fingerprint_reply {
    kvb_status_t status;
    char name[KVB_WEIGHTS_NAME_MAX];
};
struct kvb_link_relay {
    uint64_t operation;
    char method[KVB_RELAY_METHOD_MAX]; /* update_weights, collective_rpc:reload_weights,
                                          get_world_size, … */
    struct kvb_span body;              /* JSON text, may be empty */
};
struct kvb_link_relay_reply {
    kvb_status_t status;  /* UNSUPPORTED: the engine has no such call */
    bool weights_written; /* by this call */
    struct kvb_span body; /* JSON text of the answer, or of the error's message */
};
struct kvb_link_state_reply {
    kvb_status_t status;
    struct kvb_engine_state state;
};

/*
 * pack: appends to the writer. unpack: fills *msg_p from a payload; spans borrow from it; arrays
 * are malloc'd and owned by the struct until kvb_link_*_free(). Everything is checked: limits
 * above, names' alphabet, other text printable UTF-8, enum ranges, final statuses, counts against
 * what is left, slices (not empty, no overflow, sum at most KVB_VALUE_MAX), no tag twice, batches
 * and lookups not empty, an echo whole or absent, nothing left over. ERR_PROTOCOL or ERR_NO_MEMORY;
 * hello: ERR_UNSUPPORTED for another version, whose payload cannot be read.
 */
#define KVB_LINK_CODEC(name, type)                                                                 \
    void kvb_link_##name##_pack(struct kvb_writer *writer, const struct type *msg);                \
    KVB_MUST_USE kvb_status_t kvb_link_##name##_unpack(struct kvb_span payload, struct type *msg_p);
KVB_LINK_CODEC(hello, kvb_link_hello)
KVB_LINK_CODEC(hello_reply, kvb_link_hello_reply)
KVB_LINK_CODEC(region, kvb_link_region)
KVB_LINK_CODEC(lookup, kvb_link_lookup)
KVB_LINK_CODEC(lookup_reply, kvb_link_lookup_reply)
KVB_LINK_CODEC(batch, kvb_link_batch)
KVB_LINK_CODEC(batch_reply, kvb_link_batch_reply)
KVB_LINK_CODEC(load, kvb_load)
KVB_LINK_CODEC(lineage, kvb_link_lineage)
KVB_LINK_CODEC(pause, kvb_link_pause)
KVB_LINK_CODEC(resume, kvb_link_resume)
KVB_LINK_CODEC(reset_local, kvb_link_reset_local)
KVB_LINK_CODEC(reset_local_reply, kvb_link_reset_local_reply)
KVB_LINK_CODEC(release, kvb_link_release)
KVB_LINK_CODEC(restore, kvb_link_restore)
KVB_LINK_CODEC(fingerprint_reply, kvb_link_fingerprint_reply)
KVB_LINK_CODEC(relay, kvb_link_relay)
KVB_LINK_CODEC(relay_reply, kvb_link_relay_reply)
KVB_LINK_CODEC(state_reply, kvb_link_state_reply)
#undef KVB_LINK_CODEC

void kvb_link_lookup_free(struct kvb_link_lookup *msg);
void kvb_link_batch_free(struct kvb_link_batch *msg);
void kvb_link_batch_reply_free(struct kvb_link_batch_reply *msg);

/* Replies that are only a status (REGISTER_REGION, DISCARD, REPORT, LEAVE, LINEAGE, PAUSE, RESUME,
 * RELEASE, RESTORE), and DISCARD's request (the engine's request number). */
void kvb_link_status_pack(struct kvb_writer *writer, kvb_status_t status);
KVB_MUST_USE kvb_status_t kvb_link_status_unpack(struct kvb_span payload, kvb_status_t *status_p);
void kvb_link_discard_pack(struct kvb_writer *writer, uint64_t request);
KVB_MUST_USE kvb_status_t kvb_link_discard_unpack(struct kvb_span payload, uint64_t *request_p);

/* True for 1 to KVB_NAME_MAX - 1 characters of [A-Za-z0-9._-]. */
bool kvb_name_valid(const char *name);

#endif
