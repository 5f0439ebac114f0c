/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_RANKS_H
#define ENGINE_RANKS_H

#include "parts.h"
#include "pipe.h"

/*
 * The other ranks of an engine: processes of their own, each with its memory and its session. Rank
 * 0, which schedules, tells them what to do with which blocks, in order; they answer.
 */
struct kve_ranks;

enum kve_rank_command {
    KVE_RANK_FILL,        /* compute: the blocks' bytes, of the weights that it holds */
    KVE_RANK_CHECK,       /* read: the blocks' bytes are to be of the weights told */
    KVE_RANK_GET,         /* from the store; what came is checked */
    KVE_RANK_PUT,         /* to the store */
    KVE_RANK_SEE,         /* weights: an id that bytes may be mistaken for */
    KVE_RANK_FINGERPRINT, /* weights: whether it answers with one */
    /* from the rank */
    KVE_RANK_ACK,     /* one for each of the first four: done, or begun */
    KVE_RANK_DONE,    /* and one for GET and PUT, with the blocks' results */
    KVE_RANK_ATTACHED /* n: whether its session is */
};

/* Of a block that came from the store and is wrong. Told once by the rank that found it. */
#define KVE_RANK_BAD 1

struct kve_rank_message {
    enum kve_rank_command command;
    uint32_t n;
    uint64_t request; /* kve_request.number */
    uint64_t weights;
    kvplane_token token;
    uint64_t checked, stale, torn; /* ACK and DONE: what it found */
    char story[640];               /* of the first bad byte; "" = none */
    struct kve_block_of blocks[];
};

/* Starts ranks 1 … world - 1, before this process has memory or threads of its own. In each of
 * them, this call does not return. NULL in *ranks_p: there is one rank. IO, NO_MEMORY. */
KVB_MUST_USE kvb_status_t kve_ranks_start(const struct kve_engine_options *options,
                                          struct kve_ranks **ranks_p);
/* They end with the pipe to them; waits for that. NULL: nothing. */
void kve_ranks_stop(struct kve_ranks *ranks);

/* What rank 0 of a model exchanges with the others; NULL: nothing. */
struct kve_gather *kve_ranks_gather(struct kve_ranks *ranks);
uint32_t kve_ranks_count(const struct kve_ranks *ranks); /* NULL: 0 */
bool kve_ranks_attached(const struct kve_ranks *ranks);
/* Acknowledgements that are missing. */
uint64_t kve_ranks_busy(const struct kve_ranks *ranks);
json_t *kve_ranks_pids(const struct kve_ranks *ranks);

/* To all of them. */
KVB_MUST_USE kvb_status_t kve_ranks_tell(struct kve_ranks *ranks, enum kve_rank_command command,
                                         uint64_t request, uint64_t weights, kvplane_token token,
                                         const struct kve_block_of *blocks, uint32_t n);
/* Takes what came. DISCONNECTED: one of them is gone, and the engine cannot go on. */
KVB_MUST_USE kvb_status_t kve_ranks_turn(struct kve_ranks *ranks, struct kve_engine *engine);
/* Descriptors to poll, at most cap; returns how many. */
struct pollfd;
size_t kve_ranks_poll(struct kve_ranks *ranks, struct pollfd *fds, size_t cap);

/* What they have to tell of a request (request.c). */
void kve_request_told(struct kve_engine *engine, const struct kve_rank_message *message);

#endif
