/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "memory.h"
#include "misbehave.h"
#include "pattern.h"
#include "pool.h"
#include "trace.h"

#include "base/list.h"
#include "kvplane.h"

#include <jansson.h>

/*
 * The reference engine: everything an inference engine does with KV, and nothing of what it
 * computes. A request looks its prompt up, gets what hits, "computes" the rest (fills it with the
 * pattern of the weights it holds), puts that, and leaves its blocks to the local prefix cache.
 * Every block that is read, from the store, from the local cache, or by the last step of a
 * request, is checked byte by byte.
 *
 *   engine.c     the handle, the loop's turn, results
 *   request.c    the life of a request
 *   lifecycle.c  what the daemon asks: pause, reset, release, restore …
 *   relay.c      weight updates and other relayed calls
 *   control.c    the rehearsal's own channel
 *   parts.c      which bytes of a block one rank holds
 *   ranks.c      the other ranks: processes that do with their parts what this one does
 *
 * One thread owns all of it. Request states:
 */
#define KVE_REQUEST_STATES(X)                                                                      \
    X(WAITING)     /* owns: nothing. waits for: the scheduler, blocks */                           \
    X(NEED_LOOKUP) /* owns: blocks. waits for: room on the link */                                 \
    X(LOOKUP)      /* owns: blocks, a lookup. waits for: its answer */                             \
    X(NEED_GET)    /* owns: blocks, a hold in the store. waits for: room on the link */            \
    X(LOADING)     /* owns: blocks, a get that writes to them. waits for: its end */               \
    X(RUNNING)     /* owns: blocks. waits for: its turns to compute */                             \
    X(NEED_PUT)    /* owns: blocks, results done. waits for: room on the link */                   \
    X(STORING)     /* owns: blocks, a put that reads from them. waits for: its end */
enum kve_request_state {
#define X(name) KVE_##name,
    KVE_REQUEST_STATES(X)
#undef X
        KVE_REQUEST_STATE_COUNT
};

/* Why a block that was asked for did not come. */
#define KVE_MISSES(X)                                                                              \
    X(not_found, KVPLANE_ERR_NOT_FOUND)                                                            \
    X(fenced, KVPLANE_ERR_FENCED)                                                                  \
    X(closed, KVPLANE_ERR_CLOSED)                                                                  \
    X(ticket, KVPLANE_ERR_TICKET)                                                                  \
    X(generation, KVPLANE_ERR_GENERATION)                                                          \
    X(checksum, KVPLANE_ERR_CHECKSUM)                                                              \
    X(canceled, KVPLANE_ERR_CANCELED)                                                              \
    X(timeout, KVPLANE_ERR_TIMEOUT)                                                                \
    X(disconnected, KVPLANE_ERR_DISCONNECTED)                                                      \
    X(unavailable, KVPLANE_ERR_UNAVAILABLE)                                                        \
    X(other, 0)
enum kve_miss {
#define X(name, result) KVE_MISS_##name,
    KVE_MISSES(X)
#undef X
        KVE_MISS_COUNT
};
extern const char *const kve_miss_names[KVE_MISS_COUNT];

/* What happened, counted; of one run or of all. */
#define KVE_COUNTERS(X)                                                                            \
    X(requests)    /* finished */                                                                  \
    X(aborted)     /* ended by a pause */                                                          \
    X(preempted)   /* begun again */                                                               \
    X(blocks)      /* of all prompts begun */                                                      \
    X(local_hits)  /* found in the local prefix cache */                                           \
    X(looked_up)   /* asked of the store */                                                        \
    X(hits)        /* got from the store */                                                        \
    X(computed)    /* the rest */                                                                  \
    X(stored)      /* put: stored, or there already */                                             \
    X(put_fenced)  /* put: refused as of an earlier stay */                                        \
    X(put_dropped) /* put: not stored for another reason */                                        \
    X(bytes_got)                                                                                   \
    X(bytes_put)                                                                                   \
    X(blocks_checked) /* read and compared byte by byte */                                         \
    X(caught)         /* transfers refused by fence, generation, ticket or checksum */             \
    X(stale)                                                                                       \
    X(torn)                                                                                        \
    X(errors) /* of the engine itself, or the link */
struct kve_counts {
#define X(name) uint64_t name;
    KVE_COUNTERS(X)
#undef X
    uint64_t missed[KVE_MISS_COUNT];
};
json_t *kve_counts_json(const struct kve_counts *counts); /* NULL: no memory */
/* Adds what was counted there, n times; -1 takes it away. */
void kve_counts_add(struct kve_counts *counts, const struct kve_counts *more, int n);
/* Adds what the object says; unknown and missing members are nothing. */
void kve_counts_add_json(struct kve_counts *counts, const json_t *object);

/* Numbers of the regions on the link. */
enum kve_region { KVE_REGION_KV_CACHE, KVE_REGION_WEIGHTS };

struct kve_engine;
struct kve_run;
typedef void (*kve_run_fn)(void *arg, struct kve_run *run);

/* Requests begun together; done is called when the last one has ended (its put too). */
struct kve_run {
    struct kvb_list link; /* in engine.runs */
    uint64_t number;      /* the asker's */
    uint32_t left, stalled;
    bool told_stalled;
    json_t *unfinished; /* trace indexes of aborted requests */
    struct kve_counts counts;
    kve_run_fn done;       /* the run is freed after it */
    kve_run_fn stalled_fn; /* may be NULL: all that are left wait for the next resume */
    void *arg;
};

enum kve_slot_from { KVE_FROM_NOWHERE, KVE_FROM_CACHE, KVE_FROM_STORE, KVE_FROM_COMPUTE };
struct kve_slot {
    uint32_t block;
    uint32_t from;    /* kve_slot_from */
    uint64_t weights; /* whose bytes it holds */
};

struct kve_request {
    struct kvb_list link; /* in engine.waiting or engine.active */
    struct kve_engine *engine;
    struct kve_run *run;
    uint64_t number; /* unique; names its holds in the store */
    uint32_t index;  /* in the trace */
    enum kve_request_state state;
    bool use_cache; /* may find blocks in the local prefix cache */
    bool stall;     /* halfway, waits for the next resume */
    bool stalled;   /* does so now; counted in run.stalled */
    bool dead;      /* aborted; ends when its transfer does */
    bool again;     /* preempted; begins anew when its transfer ends */
    bool counted;   /* its prompt is in counts.blocks */
    kvplane_token token;
    const struct kve_trace_request *trace;
    uint32_t nlocal, nhit;
    uint32_t ncomputed;
    uint32_t left;           /* ranks, this one too, whose part of the transfer has not ended */
    uint32_t unacked;        /* of what other ranks were told of it */
    int *results;            /* of the transfer's blocks, over the ranks that have ended it */
    struct kve_slot slots[]; /* trace->nblocks; block KVE_NO_BLOCK: none yet */
};

struct kve_engine_options {
    const char *instance;
    const char *tenant;
    const char *socket;       /* NULL: $KVPLANE_SOCKET */
    const char *weights_name; /* version it says it was started with; NULL */
    uint64_t weights;         /* id of the weights it is started with */
    size_t block_bytes;       /* of all ranks of one stage */
    uint32_t tp, pp;          /* ranks of a stage, stages */
    uint32_t store_tp;        /* parts of a stage's block in the store; 0: each rank its own */
    uint32_t rank;
    int control_fd; /* -1: none; other ranks close it */
    uint32_t nblocks;
    size_t weights_bytes;
    uint32_t max_running;
    bool fingerprint;
    bool tracks_lineage;
    struct kve_misbehave misbehave;
    const struct kve_trace *trace; /* borrowed for the engine's life */
};

#define KVE_WEIGHTS_SEEN_MAX 4096
#define KVE_KEY_TEXT         20

struct kve_ranks;

struct kve_engine {
    struct kve_engine_options options;
    struct kvplane *kv;
    struct kve_ranks *ranks; /* the others; NULL: none. Borrowed */
    char layout[64];
    bool attached;
    bool lost;    /* the daemon went away: attach again */
    bool refused; /* the daemon does not want it: last_error says why */
    bool closing;
    bool broken;      /* another rank is gone: it cannot go on */
    bool changed;     /* a callback has run: what waits may be able to go on */
    uint64_t session; /* grows when the daemon's open calls become void */

    /* memory */
    struct kve_memory kv_cache, weights;
    struct kve_pool *pool;
    kvplane_token *block_tokens; /* stay in which a cached block was computed */
    bool cache_closed; /* a stay was left (not with tracks_lineage) or the weights were written, and
                          the cache was not reset since */

    /* weights: ids held before, or held by others, that bytes may be mistaken for */
    uint64_t seen[KVE_WEIGHTS_SEEN_MAX];
    size_t nseen;
    char version[256];  /* what weight_info answers */
    uint32_t transfers; /* init_weight_transfer_engine calls */
    bool weight_change_running, weights_written, local_reset_done;
    bool fingerprinting;

    /* scheduler */
    struct kvb_list waiting; /* requests not begun, oldest first */
    struct kvb_list active;  /* requests begun */
    struct kvb_list runs;
    uint32_t nwaiting;
    bool paused;
    enum kvplane_pause_mode pause_mode;
    struct kvb_list pauses; /* calls to be answered when idle */
    uint64_t next_number;
    uint32_t told_running, told_waiting, told_loading, told_held;

    /* late answers */
    struct kvb_list late;

    struct kve_counts counts;
    char story[640]; /* of the first bad byte; "" = none */

    /* for one call at a time */
    struct kvplane_entry *entries;
    struct kvplane_slice *slices;
    struct kvplane_key *keys;
    char (*key_text)[KVE_KEY_TEXT]; /* two for each block: its key and its placement's */
    struct kve_block_of *blocks;
    int *results;
    unsigned char *part_bytes; /* one part, in one piece */
};

/* Maps its memory, writes the first weights, opens the link. INVALID, NO_MEMORY, IO; why is
 * printed. */
KVB_MUST_USE kvb_status_t kve_engine_create(const struct kve_engine_options *options,
                                            struct kve_engine **engine_p);
/* Every rank's session is. */
bool kve_engine_attached(const struct kve_engine *engine);
void kve_engine_destroy(struct kve_engine *engine);

/* Does what can be done now. Returns how long it may sleep at most, ms; 0: there is more to do, -1:
 * until the link has something. */
int kve_engine_turn(struct kve_engine *engine);

/* Requests first … first + count - 1 of the trace; or, with indexes, those. INVALID: not in the
 * trace, or longer than the pool. */
KVB_MUST_USE kvb_status_t kve_engine_run(struct kve_engine *engine, const uint32_t *indexes,
                                         uint32_t first, uint32_t count, bool use_cache, bool stall,
                                         kve_run_fn done, kve_run_fn stalled_fn, void *arg,
                                         struct kve_run **run_p);
json_t *kve_engine_stats(struct kve_engine *engine);
/* An id that bytes may be mistaken for. */
void kve_engine_see_weights(struct kve_engine *engine, uint64_t weights);

/* ---- between the files of the engine ---- */

/* 0: there are none, or what is there was never loaded. */
uint64_t kve_weights_held(const struct kve_engine *engine);
void kve_weights_write(struct kve_engine *engine, uint64_t weights);
void kve_weights_fingerprint(const struct kve_engine *engine, char out[40]);

void kve_requests_turn(struct kve_engine *engine, bool *more_p);
/* Ends what runs and waits, as a pause of mode abort does. Returns how many. */
uint32_t kve_requests_abort(struct kve_engine *engine);
void kve_requests_preempt(struct kve_engine *engine);
void kve_requests_unstall(struct kve_engine *engine);
/* What keeps a pause of this mode from being complete. */
bool kve_requests_idle(const struct kve_engine *engine, enum kvplane_pause_mode mode);
void kve_requests_load(const struct kve_engine *engine, uint32_t *running_p, uint32_t *waiting_p,
                       uint32_t *loading_p);
void kve_requests_destroy(struct kve_engine *engine);

extern const struct kvplane_callbacks kve_callbacks;
void kve_lifecycle_turn(struct kve_engine *engine);
void kve_lifecycle_register(struct kve_engine *engine); /* every mapped region, anew */
/* The handle is gone or its calls are void. */
void kve_lifecycle_forget(struct kve_engine *engine);
/* ms until the next late answer; -1: none */
int kve_lifecycle_wait_ms(const struct kve_engine *engine);

void kve_relay(void *ctx, struct kvplane_call *call, const char *method, const char *body,
               size_t len);
/* An answer to a relayed call, subject to misbehaviour. */
void kve_answer_relay(struct kve_engine *engine, struct kvplane_call *call, int result,
                      bool weights_written, const json_t *answer, const char *message);

#endif
