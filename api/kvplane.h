/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVPLANE_H
#define KVPLANE_H

/*
 * libkvplane: what an inference engine links to share its KV blocks through kvplane and to be put
 * to sleep, updated and woken safely. One handle is one session: one rank of one instance with its
 * daemon over a Unix socket.
 *
 * Threads. The library starts none. A handle is used by one thread at a time. Nothing here blocks
 * unless it says so. kvplane_fd() becomes readable whenever there is something to do;
 * kvplane_process() then does it: it reads, writes, runs callbacks. Call it also after a batch of
 * calls, to send them at once. Callbacks run inside kvplane_process(), kvplane_wait() and
 * kvplane_close() only; they may call everything but those three. An engine whose main loop may be
 * busy for longer than its daemon's bounds gives the handle a thread of its own.
 *
 * Words: a *region* is a range of memory the engine hands over as a descriptor; a *block* is what
 * one key names, a list of slices of regions; the *lineage* is one state of the weights, random and
 * shared by the engines that hold the same; a *token* says in which stay in a lineage something was
 * computed. It changes whenever the daemon makes the engine leave or join a lineage.
 *
 * The life of a handle: kvplane_open(); callbacks.attached; kvplane_register_region() for every
 * region; lookups, gets and puts. When callbacks.disconnected comes, serve without a store, call
 * kvplane_reattach(), and at the next `attached` register the regions again.
 *
 * The rule that keeps outputs right. Take kvplane_get_token() when a request STARTS computing and
 * give that token with all its lookups, gets and puts, also if the lineage changes while it runs.
 * What is carried across a change of weights is then refused (KVPLANE_ERR_FENCED): lookups and gets
 * are misses, puts are dropped.
 *
 * And the engine's own prefix cache: from the moment its weights are written, what was cached
 * before serves nothing any more, also while the call that wrote them still runs. Only the engine
 * can see to that; kvplane's part, a new token and a reset_local, comes with the call's end.
 *
 * Every asynchronous call that returned KVPLANE_OK completes exactly once, through its callback,
 * in any order, also when the daemon dies (then with KVPLANE_ERR_DISCONNECTED). Memory named by a
 * put or a get belongs to the transfer until then: the daemon may still be writing into it. For the
 * same reason a connection that the library gives up completes its calls only when the daemon has
 * let go of it too; a daemon that hangs without dying has to be killed.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVPLANE_API __attribute__((visibility("default")))

/* Results. Same numbers as the daemon's; kvplane_strerror() has a line for each. Any other negative
 * number: a failure. */
enum kvplane_result {
    KVPLANE_OK = 0,
    KVPLANE_ERR_INVALID = -1,   /* an argument is not allowed; nothing was sent */
    KVPLANE_ERR_NOT_FOUND = -2, /* get: a miss */
    KVPLANE_ERR_EXISTS = -3,    /* put: the block was there already and stays; as good as stored */
    KVPLANE_ERR_TOO_LARGE = -4, /* over a limit of the library or the store */
    KVPLANE_ERR_UNSUPPORTED = -5, /* for callbacks: this engine has no such call */
    KVPLANE_ERR_BAD_STATE = -6,   /* not attached, or attached already */
    KVPLANE_ERR_BUSY = -7,        /* reset_local: blocks are held */
    KVPLANE_ERR_FENCED = -10,     /* the token is of an earlier stay: compute it again */
    KVPLANE_ERR_TICKET = -11, /* the object's space was wanted before the read was done: a miss */
    KVPLANE_ERR_GENERATION = -12, /* the region was released meanwhile */
    KVPLANE_ERR_CHECKSUM = -13,   /* the stored bytes were bad: a miss */
    KVPLANE_ERR_CLOSED =
        -14, /* between two lineages (asleep, updating, local cache not reset): a miss */
    KVPLANE_ERR_AGAIN = -20, /* the handle's queue is full: process, then try again */
    KVPLANE_ERR_NO_SPACE = -21,
    KVPLANE_ERR_QUOTA = -22,
    KVPLANE_ERR_TIMEOUT = -23,
    KVPLANE_ERR_CANCELED = -24,
    KVPLANE_ERR_PROTOCOL = -30,
    KVPLANE_ERR_DISCONNECTED = -31, /* the daemon is gone; see kvplane_callbacks.disconnected */
    KVPLANE_ERR_UNAVAILABLE = -32,
    KVPLANE_ERR_REFUSED = -33, /* hello refused; kvplane_last_error() says why and what to change */
    KVPLANE_ERR_DRAINING = -34, /* put: its place is about to leave; the next one goes elsewhere */
    KVPLANE_ERR_NO_MEMORY = -40,
    KVPLANE_ERR_IO = -41,
    KVPLANE_ERR_LIMIT = -42,
};

KVPLANE_API const char *kvplane_strerror(int result);
KVPLANE_API const char *kvplane_version(void);

struct kvplane;      /* a session */
struct kvplane_call; /* a call from the daemon that waits for kvplane_answer*() */

typedef struct kvplane_token {
    uint64_t hi, lo;
} kvplane_token;

enum kvplane_pause_mode { KVPLANE_PAUSE_ABORT, KVPLANE_PAUSE_WAIT, KVPLANE_PAUSE_KEEP };
enum kvplane_role { KVPLANE_ROLE_SCHEDULER = 1, KVPLANE_ROLE_WORKER = 2, KVPLANE_ROLE_BOTH = 3 };
enum kvplane_memory {
    KVPLANE_MEMORY_HOST = 0,
    KVPLANE_MEMORY_CUDA = 1,       /* cuMemExportToShareableHandle, POSIX_FILE_DESCRIPTOR */
    KVPLANE_MEMORY_CUDA_FABRIC = 2 /* the same, FABRIC */
};
enum kvplane_residency { KVPLANE_RESIDENT, KVPLANE_OFFLOADED, KVPLANE_DISCARDED, KVPLANE_UNKNOWN };

struct kvplane_tag_state {
    const char *tag;
    enum kvplane_residency residency;
};

/* The engine's truth about itself, told at attach and whenever the daemon asks. */
struct kvplane_state {
    bool paused;
    enum kvplane_pause_mode pause_mode;
    bool weight_change_running; /* one has begun and not ended, or its end is unknown */
    bool weights_written;       /* since the last callbacks.lineage (the library clears nothing: say
                                   what is so) */
    bool local_reset_done; /* the own prefix cache was emptied since the last callbacks.lineage */
    size_t ntags;
    struct kvplane_tag_state tags[8]; /* each once; names are copied after the callback returned */
};

/*
 * Calls from the daemon. Each must be answered exactly once, now or later, from the handle's
 * thread, with kvplane_answer() or, where it says so, a special form (which a failure does not
 * need). `call` is valid until answered or the handle is closed. Every one may come again after an
 * answer was lost, even while it is still open: doing it twice must be as good as once, and each
 * call gets its own answer. An answer after a disconnect is due all the same and goes nowhere.
 * Strings and arrays are valid until the callback returns. All but `state` may be NULL; a NULL one
 * answers KVPLANE_ERR_UNSUPPORTED.
 */
struct kvplane_callbacks {
    /* Stop scheduling, then answer when idle: the current step is done, no load from the store is
     * wanted any more, and for ABORT and WAIT no request is running or waits for a load. ABORT ends
     * running requests as aborted, WAIT lets them finish, KEEP freezes them. New requests queue. If
     * `resume` comes first, answer KVPLANE_ERR_CANCELED. */
    void (*pause)(void *ctx, struct kvplane_call *call, enum kvplane_pause_mode mode);
    /* Schedule again (only ever called with all memory resident). */
    void (*resume)(void *ctx, struct kvplane_call *call);
    /* Empty the engine's own prefix cache. Blocks held by requests: with preempt, preempt those
     * (they compute again); without, answer KVPLANE_ERR_BUSY by kvplane_answer_reset() with how
     * many are held and change nothing. */
    void (*reset_local)(void *ctx, struct kvplane_call *call, bool preempt);
    /* Give up the memory of these tags. First with commit = false: copy aside what offload[i] asks
     * for, everything stays mapped and valid. Then with commit = true: unmap and free; the daemon
     * holds no registration of it any more. */
    void (*release)(void *ctx, struct kvplane_call *call, bool commit, const char *const *tags,
                    const bool *offload, size_t ntags);
    /* Map fresh memory for these tags at the same addresses, copy back what was offloaded, hand
     * every region of them over anew by kvplane_register_region() (higher generation), then answer.
     * Also asked for a resident tag, to undo: hand the same memory over anew. */
    void (*restore)(void *ctx, struct kvplane_call *call, const char *const *tags, size_t ntags);
    /* Compute a name over the weights really held; answer by kvplane_answer_text(). Every rank is
     * asked. Ranks that answer alike name the whole model, which engines that are split otherwise
     * share; of different answers one name is made, which only engines that are split alike can
     * have. NULL: this engine has no fingerprints, which the daemon is told at attach. */
    void (*fingerprint)(void *ctx, struct kvplane_call *call);
    /* A weight-update call, collective_rpc, … ; answer by kvplane_answer_relay(). body is JSON
     * text, not terminated. */
    void (*relay)(void *ctx, struct kvplane_call *call, const char *method, const char *body,
                  size_t len);
    /* Another lineage from now on; kvplane_get_token() has changed already. left: nothing of before
     * may be used again, except under its old token; else it is a join of what the engine already
     * computes with. name: of the weights, "" for a lineage of this engine alone. No answer:
     * returning is the acknowledgement. */
    void (*lineage)(void *ctx, bool left, const char *name);
    /* Fill in *state, which comes zeroed. Asked before every attach and whenever the daemon needs
     * to know. Required. */
    void (*state)(void *ctx, struct kvplane_state *state);
    /* The daemon went away (KVPLANE_ERR_DISCONNECTED) or the connection was given up (PROTOCOL,
     * NO_MEMORY). What was open has completed with KVPLANE_ERR_DISCONNECTED. Keep serving without a
     * store; kvplane_reattach() when ready, also from here. */
    void (*disconnected)(void *ctx, int reason);
    /* Attaching ended: KVPLANE_OK; KVPLANE_ERR_REFUSED by the daemon or KVPLANE_ERR_INVALID for a
     * wrong callbacks.state, both with the reason in kvplane_last_error(): kvplane_reattach() tries
     * again. Until the daemon has answered, nothing is called and it is tried again for ever. */
    void (*attached)(void *ctx, int result);
};

/* One group of layers whose KV is kept in blocks of its own. */
struct kvplane_group {
    uint32_t block_tokens;
    uint32_t window_tokens; /* sliding window: only the last so many tokens of a prefix are needed
                               (what the window holds beside the token computed); 0: all of them */
};

struct kvplane_options {
    const char *socket;   /* path of the daemon's engine socket; NULL: $KVPLANE_SOCKET */
    const char *instance; /* [A-Za-z0-9._-]{1,63} */
    const char *tenant;   /* NULL: "default" */
    const char *layout; /* text that names everything that makes bytes interchangeable, at most 255
                           bytes: model, type, blocks, layers, heads, format. Not how the engine is
                           split: the daemon adds that (store_tp_size) */
    const char *model;  /* what clients call the model, at most 255 bytes: /v1/models tells them.
                           NULL: the instance's name */
    uint32_t max_model_len;   /* tokens of a sequence, told there too; 0: not told */
    const char *weights_name; /* version of the weights it starts with, if it knows one; NULL. The
                                 library stops telling it once weights were written. What two
                                 engines share from the start is under their fingerprint */
    unsigned roles; /* kvplane_role; 0: both. SCHEDULER: lookup, discard, report, lifecycle; WORKER:
                       regions, put, get. What the role does not have is INVALID */
    uint32_t rank;  /* 0 … world_size - 1: stage * tp_size + place in its stage */
    uint32_t world_size;       /* 0: 1 */
    uint32_t local_world_size; /* ranks of it on this host; 0: all. Another number is refused: one
                                  daemon serves one host */
    uint32_t tp_size;          /* ranks of one pipeline stage; 0: world_size */
    /* Parts in which a stage's block is stored: a multiple of tp_size. Rank r moves parts r * n …
     * r * n + n - 1, where n = store_tp_size / tp_size, each a list of slices in an order that does
     * not depend on tp_size: then engines of other tp_size, with the same store_tp_size, layout and
     * number of stages, read and write the same blocks. 0: each rank stores its own part in its own
     * form, and only engines that are split alike share. */
    uint32_t store_tp_size;
    uint32_t block_tokens;              /* tokens per block; 0: 16 */
    const struct kvplane_group *groups; /* KV groups, numbered from 0, at most 16; copied */
    size_t ngroups; /* 0: every group asked for is of full attention and of block_tokens */
    bool
        tracks_lineage; /* keeps the token per local block and gives the oldest one with each put */
    size_t queue_max;   /* calls in flight before KVPLANE_ERR_AGAIN, at most 65536; 0: 1024 */
    const struct kvplane_callbacks *callbacks; /* borrowed for the handle's life */
    void *ctx;                                 /* first argument of every callback */
};

/*
 * Creates a handle and begins to attach, which goes on in kvplane_process(); callbacks.attached
 * tells the end. A daemon that is not there yet is tried again, with back-off, until
 * kvplane_close(). The options are copied. Errors: INVALID (kvplane_last_error(NULL) names the
 * option), NO_MEMORY, IO.
 */
KVPLANE_API int kvplane_open(const struct kvplane_options *options, struct kvplane **kv_p);

/* Ends everything: open calls complete with KVPLANE_ERR_CANCELED inside this call, then the handle
 * and the daemon's open calls are freed. The daemon may still write into the memory of gets that
 * were open: process until kvplane_pending() is 0 first, or unmap it. NULL: nothing. */
KVPLANE_API void kvplane_close(struct kvplane *kv);

/* After `disconnected` or `attached` with a failure: attach again. All regions must be registered
 * again. What the daemon must know of the last stay (lineage, token, its name, retirements) the
 * library remembers and tells. BAD_STATE: it is attached or attaching. */
KVPLANE_API int kvplane_reattach(struct kvplane *kv);

/* Ends the session in order: the daemon finishes or stops what is open, and gives up every region.
 * `disconnected` with KVPLANE_ERR_CANCELED tells that it holds nothing any more; until then the
 * memory stays mapped. For an engine whose memory goes without the daemon having asked for it
 * (`release`). kvplane_reattach() goes on, in the same stay. OK as well while a session is ending
 * already, whatever ended it: `disconnected`, with that reason, is still to come. BAD_STATE: it is
 * not attached, the daemon holds nothing. */
KVPLANE_API int kvplane_detach(struct kvplane *kv);

KVPLANE_API int kvplane_fd(const struct kvplane *kv); /* poll it for reading; owned by the handle */
/* Never blocks. ERR_DISCONNECTED: there is no connection, and none is tried until
 * kvplane_reattach(). ERR_BAD_STATE: called from a callback. */
KVPLANE_API int kvplane_process(struct kvplane *kv);
/* Blocks until there is something to do, at most timeout_ms (-1: for ever), then processes.
 * ERR_TIMEOUT: there was nothing. ERR_DISCONNECTED as kvplane_process(), at once. */
KVPLANE_API int kvplane_wait(struct kvplane *kv, int timeout_ms);
KVPLANE_API bool kvplane_attached(const struct kvplane *kv);
/* Calls that have not completed. */
KVPLANE_API size_t kvplane_pending(const struct kvplane *kv);
/* Why it is not attached, for people; "" if nothing is wrong. Valid until the next call. NULL: why
 * this thread's last kvplane_open() failed. */
KVPLANE_API const char *kvplane_last_error(const struct kvplane *kv);

/* The present stay. Take it when a request starts computing. Before the first attach: all zero,
 * always fenced. */
KVPLANE_API kvplane_token kvplane_get_token(const struct kvplane *kv);

/* ---- memory
 * ----------------------------------------------------------------------------------------------------
 */

struct kvplane_region {
    uint32_t region; /* your number, unique in this handle */
    enum kvplane_memory kind;
    const char *tag;    /* "kv_cache", "weights", … */
    bool host_resident; /* sleep does not touch it */
    int fd; /* HOST: a memfd sealed against shrinking (F_SEAL_SHRINK); CUDA: an exported handle;
               CUDA_FABRIC: a memfd with the 64 bytes of one. Borrowed for the call */
    uint64_t fd_offset, len; /* bytes; offset a multiple of the page size */
    uint64_t generation;     /* greater than every earlier one of this number */
};
typedef void (*kvplane_done_fn)(void *arg, int result);

/*
 * Hands a region over. done (may be NULL) tells how the daemon took it. A region of host memory is
 * usable in puts and gets from the moment this returns KVPLANE_OK: order on the link is kept; one
 * of CUDA memory from the moment done tells KVPLANE_OK. To hand it over anew: the same number, a
 * higher generation. Not counted against queue_max. LIMIT: 256 wait for their answer, or out of
 * descriptors.
 */
KVPLANE_API int kvplane_register_region(struct kvplane *kv, const struct kvplane_region *region,
                                        kvplane_done_fn done, void *arg);

/* ---- blocks
 * ----------------------------------------------------------------------------------------------------
 */

struct kvplane_slice {
    uint32_t region;
    uint64_t offset, len;
};
struct kvplane_entry {
    const void *key; /* 1 to 512 bytes */
    size_t key_len;
    const void *placement; /* key that decides where the block lives: that of block
                              kvplane_placement(); NULL: the key itself */
    size_t placement_len;
    uint32_t group, part;               /* KV group; which part of the block: one of this rank's
                                           (store_tp_size; else the rank). Any other is INVALID */
    kvplane_token token;                /* put only: the stay in which it was computed */
    const struct kvplane_slice *slices; /* at most 256, together at most 1 GiB */
    size_t nslices;
};
struct kvplane_key {
    const void *key;
    size_t len;
    const void *placement; /* as in the block's put; NULL: the key itself */
    size_t placement_len;
};
struct kvplane_keys {
    uint32_t group;
    const struct kvplane_key *keys; /* in prefix order */
    size_t nkeys;
};

/*
 * Which block's key decides where block number `block` of a prompt lives (0: the first): give that
 * key as placement in its put, its get and its lookup. About 1,024 consecutive tokens share one, so
 * that the lookup of a long prompt asks few nodes; within the first of these, fewer, for that is
 * where prompts part, and those that begin alike would all lie on one node. block_tokens as in
 * kvplane_options.
 */
KVPLANE_API size_t kvplane_placement(size_t block, uint32_t block_tokens);

/* At most 16 groups of 4,096 keys, all beginning at the same token, a multiple of every group's
 * block. hits[i]: how many blocks of groups[i] are in the longest prefix from there that all these
 * groups can use, with every rank's part: of full attention all of them are there, of a sliding
 * window those that the window reaches back to. result other than OK: nothing was looked up, hits
 * are 0. What is found is held for `request` until got, discarded, or the hold's bound. */
typedef void (*kvplane_lookup_fn)(void *arg, int result, const uint32_t *hits, size_t ngroups);
KVPLANE_API int kvplane_lookup(struct kvplane *kv, uint64_t request, kvplane_token token,
                               const struct kvplane_keys *groups, size_t ngroups,
                               kvplane_lookup_fn done, void *arg);
/* Lets go of what a lookup holds for this request. */
KVPLANE_API int kvplane_discard(struct kvplane *kv, uint64_t request);

/* results[i] for entries[i], valid until done returns. get: anything but OK is a block to compute;
 * its bytes are undefined. put: OK and EXISTS mean stored. 1 to 4,096 entries; TOO_LARGE also if
 * they come to 8 MiB with keys and slices. Arguments are copied before the call returns; the memory
 * behind the slices is not. */
typedef void (*kvplane_batch_fn)(void *arg, const int *results, size_t n);
KVPLANE_API int kvplane_put(struct kvplane *kv, const struct kvplane_entry *entries, size_t n,
                            kvplane_batch_fn done, void *arg);
KVPLANE_API int kvplane_get(struct kvplane *kv, uint64_t request, kvplane_token token,
                            const struct kvplane_entry *entries, size_t n, kvplane_batch_fn done,
                            void *arg);

/* Tell the daemon the load, whenever it changes (it waits for idle by asking pause, not by this; a
 * reset that was refused for held blocks is tried again when blocks_held comes to 0). Never AGAIN,
 * also allowed while not attached: the newest report is sent when there is room for it. */
KVPLANE_API int kvplane_report(struct kvplane *kv, uint32_t running, uint32_t waiting,
                               uint32_t loading, uint32_t blocks_held);

/*
 * Leaves the lineage by the engine's own will: for resets, and changes of weights, that the daemon
 * has not asked for. The stay, and the name of its weights, end inside this call, whatever it
 * returns: kvplane_get_token() is zero, which is always fenced, until the daemon has told the next
 * one, and what was in flight is refused by it. done with KVPLANE_OK: the daemon has left, too, and
 * there is a new token; with anything else: it may still deliver to gets in flight, but will take
 * the engine in again only as one that has left. SCHEDULER. BAD_STATE: it is not attached, which is
 * as good: the daemon that it attaches to hears of it; an attempt to attach that is on its way told
 * of the stay that has ended, and is given up for another one. AGAIN: one is on its way.
 */
KVPLANE_API int kvplane_leave(struct kvplane *kv, kvplane_done_fn done, void *arg);

/* ---- answers to callbacks
 * -------------------------------------------------------------------------------------- */

/* The daemon's id of the operation that this call is part of, for the engine's log (`op` of the
 * daemon's lines); 0: of none. Before it is answered. */
KVPLANE_API uint64_t kvplane_call_operation(const struct kvplane_call *call);
KVPLANE_API void kvplane_answer(struct kvplane_call *call, int result);
KVPLANE_API void kvplane_answer_reset(struct kvplane_call *call, int result, uint32_t blocks_held);
KVPLANE_API void kvplane_answer_text(struct kvplane_call *call, int result,
                                     const char *text); /* fingerprint */
/* json: the answer's JSON object, or with a failure the message for people. */
KVPLANE_API void kvplane_answer_relay(struct kvplane_call *call, int result, bool weights_written,
                                      const char *json, size_t len);

#ifdef __cplusplus
}
#endif
#endif
